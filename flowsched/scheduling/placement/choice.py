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
from flowsched.scheduling.placement.gang import NEVER, Ints, fits
from flowsched.scheduling.plan import Choice, CostTerms, NodeCost

#: So many nodes that were not chosen are reported.
OTHERS: Final = 2


def choice_of(request: PlacementRequest, at: int, nodes: Ints, rows: Sequence[Ints]) -> Choice | None:
    """Why one role of a group went to its nodes; None where nothing but packing was weighed.

    Args:
        request: The group, as it was priced.
        at: Which of its tables.
        nodes: (k,) where its pods go.
        rows: For each axis of the request, what is free, as `CostTable` has it. Not modified.
    """
    terms = request.terms[at] if request.terms else ()
    if not terms:
        return None
    table = request.tables[at]
    total = sum([ms for _, ms in terms[1:]], terms[0][1])
    left = np.where(table.allowed, total, NEVER)
    left[nodes] = NEVER
    others: list[NodeCost] = []
    while len(others) < OTHERS:
        node = int(left.argmin())
        if left.item(node) >= NEVER:
            break
        others.append(
            NodeCost(node, _terms_on(terms, node), not fits(rows, table, slice(node, node + 1)).item(0))
        )
        left[node] = NEVER
    return Choice({node: _terms_on(terms, node) for node in dict.fromkeys(nodes.tolist())}, tuple(others))


def _terms_on(terms: Sequence[tuple[str, NDArray[np.int64]]], node: int) -> CostTerms:
    return tuple([(name, ms.item(node)) for name, ms in terms])
