"""Background work on single objects: tasks of which one that fails is logged and ends no other, and calls that are repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: Pauses between repeated calls about one object: the first, doubled each time, and the longest.
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 20.0
#: Takes (reason, message): what keeps a call from succeeding, for the owner of the object.
Explain = Callable[[str, str], None]


class Backoff:
    """The pauses between repeated calls about one object.

    Args:
        longest_s: The longest; the first is `FIRST_PAUSE_S`, and each is twice as long as the one before.
    """

    def __init__(self, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._pause_s, self._longest_s = FIRST_PAUSE_S, longest_s

    async def wait(self) -> None:
        """Wait before the next call."""
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._longest_s, self._pause_s * 2)


class BackgroundTasks:
    """Tasks that their caller does not wait for.

    Args:
        about: What each works on, for the log: "a pod".
    """

    def __init__(self, about: str) -> None:
        self._about = about
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start it. What it raises is logged."""
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # one object's work must not end the others'
            log.exception("work failed", on=self._about)
