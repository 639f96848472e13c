"""Reconcile: what the cluster has that nobody asked for is reported, and removed after a grace; what has ended is tidied away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from flowsched.control.dispatch import Dispatcher
from flowsched.executor.protocol import Executor

log = structlog.get_logger(__name__)

#: Between two looks.
PERIOD_S: Final = 5.0
#: An orphan is named once and has this long to be claimed (a recovery may be under way) before it is released.
GRACE_MS: Final = 20_000
RELEASE_MS: Final = 5_000


class Reconciler:
    """Compares what lives with what the engine holds."""

    def __init__(self, dispatcher: Dispatcher, executor: Executor, *, clock: Callable[[], int]) -> None:
        self._dispatcher = dispatcher
        self._executor = executor
        self._clock = clock
        self._seen: dict[str, int] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.look()
            except OSError as error:
                log.warning("attempts cannot be looked through now, trying again", error=str(error))

    async def look(self) -> list[str]:
        """One look. Returns the orphans that were released by it."""
        now = self._clock()
        found = await self._executor.orphans()
        await self._dispatcher.rest()
        wanted = self._dispatcher.state.pods
        living = {name for name in found if name not in wanted}
        for name in living - self._seen.keys():
            log.warning("an attempt lives that nobody asked for", pod=name, released_in_s=GRACE_MS // 1000)
        self._seen = {name: self._seen.get(name, now) for name in living}
        overdue = sorted(name for name, since in self._seen.items() if now - since >= GRACE_MS)
        if overdue:
            await self._executor.release(overdue, RELEASE_MS)
        await self._tidy()
        return overdue

    async def _tidy(self) -> None:
        """Working folders of attempts that ended well are not needed any more; logs and records stay."""
        ended, self._dispatcher.ended = self._dispatcher.ended, []
        well, self._dispatcher.ended_well = self._dispatcher.ended_well, []
        if ended:
            await self._executor.settle(ended)
        if well:
            await self._executor.forget(well)
