"""Expiry: workflows that ended long ago leave the database, with their logs, folders of WES runs and what they wrote to caches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from flowsched.control.leading.dispatch import Dispatcher
from flowsched.control.tes import forget_ends, keep_ends
from flowsched.control.wes import expire
from flowsched.errors import FlowschedError
from flowsched.executor.protocol import Executor
from flowsched.log_lines import get_logger
from flowsched.store.database import Database
from flowsched.store.recovery import expired, remove_finished

log = get_logger(__name__)

PERIOD_S: Final = 600.0
#: From a start to the first clean-up: a machine that boots with a wrong clock has asked for the time by then.
FIRST_S: Final = 120.0
_DAY_MS: Final = 86_400_000
#: Between two transactions of a clean-up, so that other writers get their turn.
_PAUSE_S: Final = 0.05
#: Datasets that are looked at before the event loop gets its turn: some 20 ms.
_SLICE: Final = 20_000


class Expiry:
    """Removes what ended more than `keep_days` ago.

    Args:
        database, dispatcher, executor: Where workflows, what they hold and their files are.
        root: Where the folders of WES runs are; None = there are none.
        keep_days: For how long ended workflows are kept; 0 = for ever.
        clock: Wall-clock ms. Should be the earlier of the service's clock and the machine's: a clock that is years ahead would
            remove everything.
    """

    def __init__(
        self,
        database: Database,
        dispatcher: Dispatcher,
        executor: Executor,
        *,
        root: Path | None = None,
        keep_days: float,
        clock: Callable[[], int],
    ) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._executor = executor
        self._root = root
        self._keep_ms = int(keep_days * _DAY_MS)
        self._clock = clock

    async def run(self) -> None:
        """Clean up for ever: two minutes after a start, then every ten minutes."""
        await asyncio.sleep(FIRST_S)
        while self._keep_ms > 0:
            try:
                await self.once()
            except (FlowschedError, OSError) as error:
                log.warning("old workflows cannot be removed now, trying again later", error=str(error))
            except (
                Exception
            ):  # such a fault would end each term of the leader, and no task waits for a clean-up
                log.exception("a clean-up of old workflows failed, trying again later")
            await asyncio.sleep(PERIOD_S)

    async def once(self) -> int:
        """One clean-up. Returns how many workflows were removed."""
        before = self._clock() - self._keep_ms
        total = 0
        await keep_ends(self._database, before)
        while True:
            removed = await remove_finished(self._database, before)
            total += removed.workflows
            if removed.workflows == 0 and removed.rows == 0:
                break
            await asyncio.sleep(_PAUSE_S)
        await forget_ends(self._database, before, self._clock())
        attempts = await self._executor.expire(self._expired)
        if self._root is not None:
            await expire(self._root, self._expired)
        datasets = await self._evict()
        if total or datasets:
            log.info("removed what ended long ago", workflows=total, attempts=attempts, datasets=datasets)
        return total

    async def _expired(self, workflows: Collection[str]) -> set[str]:
        return await expired(self._database, workflows)

    async def _evict(self) -> int:
        """Datasets of workflows that expiry has removed leave the caches (the news comes back as events).

        The row that expiry leaves says which they are. A workflow without that row lives, or is of another database that was used
        with these caches, or has been submitted after the backup that this database was restored from.
        """
        cached = await self._cached()
        gone = [pair for name in await self._expired(cached) for pair in cached[name]]
        for uri, holder in gone:
            await self._executor.evict(uri, holder)
        return len(gone)

    async def _cached(self) -> dict[str, list[tuple[str, str]]]:
        """The contents of caches: workflow -> (uri, node). The catalogue only grows, so it is read in slices."""
        await self._dispatcher.rest()
        state = self._dispatcher.state
        uris = state.cluster.catalogue.uris
        cached: dict[str, list[tuple[str, str]]] = {}
        for dataset in range(len(uris)):
            if dataset % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
                await self._dispatcher.rest()
            uri = uris[dataset]
            if uri.startswith("flowsched:"):
                workflow = uri.removeprefix("flowsched:").partition("/")[0]
                for node in state.cluster.catalogue.nodes_of(dataset):
                    cached.setdefault(workflow, []).append((uri, state.cluster.snapshot.names[node]))
        return cached
