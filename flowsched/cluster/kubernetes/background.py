"""Work on single objects that goes on beside everything else: one that fails is told, and ends nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class Chores:
    """Tasks that nobody waits for one by one.

    Args:
        about: What each works on, for the log: "a pod".
    """

    def __init__(self, about: str) -> None:
        self._about = about
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let it go on by itself; what it raises is logged."""
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End all that goes on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # one object's work must not end the others'
            log.exception("work failed", on=self._about)
