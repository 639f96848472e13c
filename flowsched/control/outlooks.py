"""What would change it: worked out for those who ask, on a copy, beside the loop that decides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from flowsched.engine.explain import Explanation, situation_of
from flowsched.engine.state import EngineState
from flowsched.scheduling.suggest import outlook

#: For so many backlog items of one answer. Each costs up to `suggest.TRIES` cycles.
MOST: Final = 5


async def with_outlooks(state: EngineState, found: Sequence[Explanation], now: int) -> list[Explanation]:
    """The same explanations, the first few with what binds them and what would let them start."""
    answered = list(found)
    left = MOST
    for at, each in enumerate(answered):
        if each.group is None or not left:
            continue
        situation = situation_of(state, each.group, now)  # while nobody decides
        if situation is not None:
            left -= 1
            answered[at] = replace(each, outlook=await asyncio.to_thread(outlook, situation))
    return answered
