"""The whole service over a `KubeWorld`, in this process: SQLite, the leader's loops, the Kubernetes executor; no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowsched.app import new_id
from flowsched.clock import ServiceClock
from flowsched.cluster.kubernetes.api.client import Connection
from flowsched.cluster.kubernetes.executor import ClusterSettings, KubernetesCluster
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.control.documents import Documents
from flowsched.control.history import ALONE_POLL_S, History
from flowsched.control.leading.leader import Leader, TermSettings
from flowsched.control.service import Service
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.store.database import Database
from flowsched.store.workflows import Workflows
from flowsched.store.writer import GroupWriter
from flowsched.values import replace
from tests.kubernetes.exec_world import nothing


@dataclass(slots=True)
class Running:
    """A service that leads, or stands by."""

    service: Service
    leader: Leader
    cluster: KubernetesCluster
    leading: asyncio.Task[None]

    async def ended(self, workflow: str, patience_s: float = 400.0) -> Any:
        """Wait for a workflow's end."""
        async with asyncio.timeout(patience_s):
            while True:
                view = await self.service.workflow(workflow)
                if view.state in ("SUCCEEDED", "FAILED", "CANCELLED"):
                    return view
                await asyncio.sleep(0.1)

    async def until(self, holds: Callable[[], Awaitable[Any]], patience_s: float = 200.0) -> Any:
        """Wait until something holds."""
        async with asyncio.timeout(patience_s):
            while not (found := await holds()):
                await asyncio.sleep(0.05)
        return found


@asynccontextmanager
async def serving(
    connection: Connection,
    settings: ClusterSettings,
    folder: Path,
    *,
    failpoint: Callable[[str], Awaitable[None]] = nothing,
    database: str | None = None,
    piece_bytes: int = 0,
    service_clock: ServiceClock | None = None,
    half_life_ms: int | None = None,
    awaited: Callable[[Running], bool] = lambda running: running.service.ready()[0],
) -> AsyncIterator[Running]:
    """A service from its start to its end; what runs in the cluster goes on. It is handed out when it is as `awaited`."""
    folder.mkdir(parents=True, exist_ok=True)
    profile = PROFILES["flowsched"]
    profile = profile if half_life_ms is None else replace(profile, half_life_ms=half_life_ms)
    service_clock = service_clock or ServiceClock()
    clock = service_clock.now_ms
    cluster = KubernetesCluster(connection, settings, Lease(clock, failpoint))
    url = database or f"sqlite:///{folder / 'flowsched.db'}"
    async with await Database.open(url) as opened:
        reads = Workflows(opened)
        history, documents = History(reads, ALONE_POLL_S), Documents(reads)
        async with GroupWriter(opened) as writer:
            leader = Leader(
                opened, writer, cluster, documents, profile=profile, holder=new_id(),
                secret=b"s" * 32, clock=clock, monotonic=time.monotonic, failpoint=failpoint,
                settings=TermSettings(piece_bytes=piece_bytes), set_clock=service_clock.set_to,
            )  # fmt: skip
            cluster.lease.may_act = leader.leadership.holds
            service = Service(
                opened, writer, cluster, history, documents, leader, clock=clock, new_id=new_id, failpoint=failpoint,
            )  # fmt: skip
            leading = asyncio.create_task(leader.run())
            running = Running(service, leader, cluster, leading)
            try:
                async with asyncio.timeout(200):
                    while not awaited(running):
                        if leading.done():
                            leading.result()
                        await asyncio.sleep(0.02)
                yield running
            finally:
                leading.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await leading
