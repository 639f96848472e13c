"""What would change it: worked out for those who ask, on a copy, beside the loop that decides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from flowsched.engine.explain import Explanation, situations_of
from flowsched.engine.state import EngineState
from flowsched.scheduling.suggest import outlook

#: For so many backlog items of one answer. Each costs up to `suggest.TRIES` cycles.
MOST: Final = 3


async def with_outlooks(state: EngineState, found: Sequence[Explanation], now: int) -> list[Explanation]:
    """The same explanations, the first few with what binds them and what would let them start."""
    asked = dict.fromkeys(each.group for each in found if each.group is not None)
    situations = situations_of(state, list(asked)[:MOST], now)  # while nobody decides
    if not situations:
        return list(found)
    outlooks = await asyncio.to_thread(lambda: {group: outlook(each) for group, each in situations.items()})
    return [
        each if each.group not in outlooks else replace(each, outlook=outlooks[each.group]) for each in found
    ]
