"""Choices as rows keep them: why a task went to its node, as JSON that names nodes.

`{"terms": {"stage-in": 0}, "others": [{"node": "n1", "terms": {"stage-in": 41000}, "full": true}], "staged": true}`: times are in
ms, a node without a name stands for every node that has none of the inputs, and what is false is left out. `staged`: the
decision was made before copies of the inputs were ordered to the node. `{}`: nothing but packing was weighed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from flowsched.scheduling.placement.choice import OTHERS
from flowsched.scheduling.plan import Choice, CostTerms, NodeCost

#: Nothing but packing was weighed.
NO_COSTS: Final = "{}"
#: By role: node -> the choice as a row keeps it.
Told = Sequence[Mapping[int, str]]
_ENCODER: Final = msgspec.json.Encoder()


def told(choices: Sequence[Choice | None], names: Sequence[str], *, staged: bool) -> Told:
    """The choices of a placement as rows keep them. `names`: of nodes, by index. `staged`: copies come first."""
    return [{} if choice is None else _of_role(choice, names, staged) for choice in choices]


def _of_role(choice: Choice, names: Sequence[str], staged: bool) -> dict[int, str]:
    cheapest = [(each.node, _other(each, names)) for each in choice.cheapest(OTHERS + 1)]
    return {node: _row(node, terms, cheapest, staged) for node, terms in choice.nodes.items()}


def _row(
    node: int, terms: CostTerms, cheapest: Sequence[tuple[int | None, Mapping[str, Any]]], staged: bool
) -> str:
    others = [other for at, other in cheapest if at != node]
    row: dict[str, Any] = {"terms": dict(terms), "others": others[:OTHERS]}
    if staged:
        row["staged"] = True
    return _ENCODER.encode(row).decode()


def _other(cost: NodeCost, names: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"node": "" if cost.node is None else names[cost.node], "terms": dict(cost.terms)}
    if cost.full:
        row["full"] = True
    return row
