"""The watches of a cluster: each collection is listed, then followed, and handed to whoever keeps the view of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

import structlog

from flowsched.cluster.kubernetes.client import Client
from flowsched.cluster.kubernetes.objects import HasMetadata
from flowsched.cluster.kubernetes.watch import Batch, Reflector

log = structlog.get_logger(__name__)
T = TypeVar("T", bound=HasMetadata)

#: Before a collection is read again that could not be understood.
REREAD_S: Final = 5.0
_LOOK_S: Final = 0.02


class Watches:
    """All of them.

    Args:
        client: Of the API server.
        idle_s: A watch that is silent for so long is broken.
    """

    def __init__(self, client: Client, idle_s: float) -> None:
        self._client = client
        self._idle_s = idle_s
        self._reflectors: dict[str, Reflector[Any]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def follow(self, path: str, kind: type[T], handler: Callable[[Batch[T]], None]) -> None:
        """Follow a collection from now on; returns when it has been listed and handed over."""
        listed = asyncio.Event()
        reflector: Reflector[T] = Reflector(self._client, path, kind, idle_s=self._idle_s)
        self._reflectors[path] = reflector
        self._tasks.append(asyncio.create_task(_follow(reflector, handler, listed), name=f"watch {path}"))
        await listed.wait()

    async def close(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def problem(self) -> str:
        """What is wrong with which watch; "" while all are well."""
        return next((f"{path}: {r.problem}" for path, r in self._reflectors.items() if r.problem), "")

    async def synced(self) -> None:
        """Wait until every watch is well: nothing is placed on a view with holes."""
        while not all(r.synced for r in self._reflectors.values()):  # noqa: ASYNC110 - counters of others
            await asyncio.sleep(_LOOK_S)

    async def caught_up(self, path: str, version: int) -> None:
        """Wait until a collection's watch has shown everything up to a version."""
        while self._reflectors[path].version < version:  # noqa: ASYNC110 - as above
            await asyncio.sleep(_LOOK_S)


async def _follow(
    reflector: Reflector[T], handler: Callable[[Batch[T]], None], listed: asyncio.Event
) -> None:
    while True:
        try:
            async with aclosing(reflector.changes()) as batches:
                async for batch in batches:
                    try:
                        handler(batch)
                    finally:
                        listed.set()
        except Exception:  # a view that stands still is worse than one that is read again (FAULTS.md row 28)
            log.exception("a watch was not understood and is begun anew")
        await asyncio.sleep(REREAD_S)
