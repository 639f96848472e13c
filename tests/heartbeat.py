"""How long the event loop is held: the measure of the tests in which no input may hold it."""

from __future__ import annotations

import asyncio
import time
from typing import Final

BEAT_S: Final = 0.05
#: No function may hold the loop for longer, on a machine that does `WORK` in that time.
HELD_S: Final = 0.2
WORK: Final = 400_000


async def beat(stalls: list[float]) -> None:
    """Beat for ever, and note each time that the loop was held, in seconds.

    On a busy machine a loop is late although no function holds it. The CPU time that its own thread uses between two beats counts.
    Where others use the caches and the cores, the same work needs more of it: what has used much is compared with a fixed work.
    """
    used = time.thread_time()
    while True:
        await asyncio.sleep(BEAT_S)
        before, used = used, time.thread_time()
        if used - before > HELD_S:
            {str(number): number for number in range(WORK)}
            if used - before > min(max(HELD_S, time.thread_time() - used), 2 * HELD_S):
                stalls.append(used - before)
            used = time.thread_time()
