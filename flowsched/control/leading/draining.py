"""Nodes that administrators drain: noted in SQL first, then told to the engine, and again to every new leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from flowsched.control.views import time_at
from flowsched.engine.events import EngineEvent, NodeDrained
from flowsched.engine.state.cluster import DrainOrder
from flowsched.errors import InvalidRequest, NotFound, no_such
from flowsched.store.database import Database
from flowsched.store.settings import Drains
from flowsched.workflow.views import NodeView

#: A start that has passed for no longer than this means now: clocks differ, and requests take time.
PAST_MS: Final = 60_000


async def remembered(database: Database) -> list[EngineEvent]:
    """The drains that are in force, for a new leader's first step."""
    return [NodeDrained(node, order) for node, order in (await Drains(database).all()).items()]


class Draining:
    """Drains nodes, and uncordons them."""

    def __init__(
        self,
        database: Database,
        *,
        nodes: Callable[[], Awaitable[list[NodeView]]],
        notify: Callable[[NodeDrained], Awaitable[None]],
        clock: Callable[[], int],
    ) -> None:
        self._drains = Drains(database)
        self._nodes = nodes
        self._notify = notify
        self._clock = clock

    async def drain(
        self, name: str, *, grace_ms: int | None, start: str | None, reason: str, author: str
    ) -> NodeView:
        """Nothing new goes to the node from `start` (a time; None = now) on.

        Running pods go on to their ends. With `grace_ms`, pods that have not ended so long after the start run again elsewhere.

        Raises:
            NotFound: There is no such node.
        """
        now = self._clock()
        from_ms = now if start is None else time_at(start)
        if from_ms is None or from_ms < now - PAST_MS:
            raise InvalidRequest(f"start: {start!r}; it is a time to come, such as 2026-12-04T18:00Z")
        from_ms = max(now, from_ms)
        until_ms = None if grace_ms is None else from_ms + grace_ms
        return await self._change(name, DrainOrder(from_ms, until_ms, reason, author, now))

    async def uncordon(self, name: str) -> NodeView:
        """Use the node again.

        Raises:
            NotFound: There is no such node.
        """
        return await self._change(name, None)

    async def _change(self, name: str, order: DrainOrder | None) -> NodeView:
        await self._one(name)
        await self._drains.put(name, order)
        await self._notify(NodeDrained(name, order))
        return await self._one(name)

    async def _one(self, name: str) -> NodeView:
        views = {view.name: view for view in await self._nodes()}
        if name not in views:
            raise NotFound(f"{no_such('node', name, views)} (`flowsched nodes` lists them)")
        return views[name]
