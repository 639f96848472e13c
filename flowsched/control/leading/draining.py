"""Nodes that users want empty: noted in SQL first, then told to the engine, and again to every new leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flowsched.engine.events import EngineEvent, NodeDrained
from flowsched.errors import NotFound, no_such
from flowsched.store.database import Database
from flowsched.store.settings import Drains
from flowsched.workflow.views import NodeView


async def remembered(database: Database) -> list[EngineEvent]:
    """The drains that are in force, for a new leader's first step."""
    return [NodeDrained(node, until_ms) for node, until_ms in (await Drains(database).all()).items()]


class Draining:
    """What may be asked about emptying nodes; see `facade.DrainFacade`."""

    def __init__(
        self,
        database: Database,
        *,
        nodes: Callable[[], Awaitable[list[NodeView]]],
        tell: Callable[[NodeDrained], Awaitable[None]],
        clock: Callable[[], int],
    ) -> None:
        self._drains = Drains(database)
        self._nodes = nodes
        self._tell = tell
        self._clock = clock

    async def drain(self, name: str, grace_ms: int) -> NodeView:
        """See `facade.DrainFacade.drain`."""
        return await self._change(name, self._clock() + grace_ms)

    async def uncordon(self, name: str) -> NodeView:
        """See `facade.DrainFacade.uncordon`."""
        return await self._change(name, None)

    async def _change(self, name: str, until_ms: int | None) -> NodeView:
        await self._one(name)
        await self._drains.put(name, until_ms)
        await self._tell(NodeDrained(name, until_ms))
        return await self._one(name)

    async def _one(self, name: str) -> NodeView:
        views = {view.name: view for view in await self._nodes()}
        if name not in views:
            raise NotFound(f"{no_such('node', name, views)} (`flowsched nodes` lists them)")
        return views[name]
