"""The book of idle room outlives its process: read when a term begins, written once a minute.

What a crash loses is less than a minute, and the hour says how much of it was covered. It is not part of a step's commit:
nothing is decided by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from flowsched.engine.idle import HOUR_MS, KEPT_HOURS, Hour, IdleBook
from flowsched.errors import FlowschedError
from flowsched.store.database import Database
from flowsched.store.idle import IdleHours

log = structlog.get_logger(__name__)

PERIOD_S: Final = 60.0


class IdleKeeping:
    """Keeps a leader's book."""

    def __init__(
        self, database: Database, book: IdleBook, *, clock: Callable[[], int], holds: Callable[[], bool]
    ) -> None:
        self._rows = IdleHours(database)
        self._book = book
        self._clock = clock
        self._holds = holds
        self._written = 0  #: the newest hour that is a row

    async def load(self) -> None:
        """What an earlier process saw; hours that are in memory already stay."""
        for hour, body in (await self._rows.list(self._oldest())).items():
            self._book.hours.setdefault(hour, Hour.from_plain(body))

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            if not self._holds():
                continue  # somebody else may write them now
            try:
                await self.once()
            except FlowschedError as error:
                log.warning("the idle hours cannot be written now, trying again later", error=str(error))

    async def once(self) -> None:
        """Write the hours that may have changed."""
        self._book.close(self._clock())
        changed = {hour: each.plain() for hour, each in self._book.hours.items() if hour >= self._written}
        await self._rows.put(changed, self._oldest())
        self._written = max(changed, default=self._written)

    def _oldest(self) -> int:
        return self._clock() // HOUR_MS - KEPT_HOURS + 1
