"""Why a node was chosen: the cost terms on the chosen nodes and on the two that would have been next.

The terms are looked up once a placement is decided, in the arrays that decided it. A pod for which nothing but packing was
weighed has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement.cost_table import PlacementRequest
from flowsched.scheduling.placement.gang import NEVER, CostTable, Ints
from flowsched.scheduling.plan import Choice, CostTerms, NodeCost
from flowsched.scheduling.state.gpus import copies_by_device

#: So many nodes that were not chosen are told.
OTHERS: Final = 2


def choice_of(offer: PlacementRequest, at: int, nodes: Ints, rows: Sequence[Ints]) -> Choice | None:
    """Why one role of a group went to its nodes; None where nothing but packing was weighed.

    Args:
        offer: The group, as it was priced.
        at: Which of its tables.
        nodes: (k,) where its pods go.
        rows: For each axis of the offer, what is free, as `CostTable` has it. Not modified.
    """
    terms = offer.terms[at] if offer.terms else ()
    if not terms:
        return None
    table = offer.tables[at]
    total = terms[0][1] if len(terms) == 1 else np.sum([ms for _, ms in terms], axis=0)
    left = np.where(table.allowed, total, NEVER)
    left[nodes] = NEVER
    others: list[NodeCost] = []
    while len(others) < OTHERS:
        node = int(left.argmin())
        if left.item(node) >= NEVER:
            break
        others.append(NodeCost(node, _terms_on(terms, node), not has_room(table, rows, node)))
        left[node] = NEVER
    return Choice({node: _terms_on(terms, node) for node in dict.fromkeys(nodes.tolist())}, tuple(others))


def has_room(table: CostTable, rows: Sequence[Ints], node: int) -> bool:
    """Whether one more pod of a role fits on a node."""
    for row, need in zip(rows, table.needs, strict=True):
        asked = need if isinstance(need, int) else need.item(node)
        if row.ndim == 1:
            if asked > 0 and row.item(node) < asked:
                return False
        elif asked and not copies_by_device(row[node : node + 1], asked).item(0):
            return False
    return table.most is None or table.most.item(node) > 0


def _terms_on(terms: Sequence[tuple[str, NDArray[np.int64]]], node: int) -> CostTerms:
    return tuple([(name, ms.item(node)) for name, ms in terms])
