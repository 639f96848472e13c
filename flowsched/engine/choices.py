"""Choices as rows keep them: why a task went to its node, as the JSON of a `ChoiceView`, which names nodes.

`{}`: nothing but packing was weighed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from flowsched.scheduling.placement.choice import OTHERS
from flowsched.scheduling.plan import Choice
from flowsched.workflow.views import ChoiceView, NodeCostView

#: Nothing but packing was weighed.
NO_COSTS: Final = "{}"
#: By role: node -> the choice as a row keeps it.
ChoiceRows = Sequence[Mapping[int, str]]
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(ChoiceView)


def choice_rows(choices: Sequence[Choice | None], names: Sequence[str], *, staged: bool) -> ChoiceRows:
    """The choices of a placement as rows keep them. `names`: of nodes, by index. `staged`: copies come first."""
    return [{} if choice is None else _of_role(choice, names, staged) for choice in choices]


def decoded(row: str) -> ChoiceView | None:
    """The choice in a row; None where the row has none."""
    return _DECODER.decode(row) if row else None


def _of_role(choice: Choice, names: Sequence[str], staged: bool) -> dict[int, str]:
    cheapest = [
        (cost.node, NodeCostView(node=names[cost.node], cost_ms=dict(cost.terms), full=cost.full))
        for cost in choice.cheapest(OTHERS + 1)
    ]
    rows = {}
    for node, terms in choice.nodes.items():
        others = [view for at, view in cheapest if at != node][:OTHERS]
        view = ChoiceView(cost_ms=dict(terms), others=others, staged=staged)
        rows[node] = _ENCODER.encode(view).decode()
    return rows
