"""One process of the service with everything real but its pods: database, writer, leader, service, over fake pods."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowsched import app
from flowsched.control.documents import Documents
from flowsched.control.history import History
from flowsched.control.leading.leader import Leader
from flowsched.control.service import Service
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.store.database import Database
from flowsched.store.workflows import Workflows
from flowsched.store.writer import GroupWriter, no_failpoint
from tests.cluster.fake import FakeCluster, FakeProcesses

NODES = [NodeInfo(f"node-{number}", 4_000, 4 << 30) for number in range(2)]


@dataclass
class Process:
    """What one process of the service consists of."""

    database: Database
    leader: Leader
    service: Service
    writer: GroupWriter
    task: asyncio.Task[None] | None = None

    def lead(self) -> None:
        self.task = asyncio.create_task(self.leader.run())

    async def ready(self) -> None:
        while not self.service.ready()[0]:
            assert self.task is not None
            if self.task.done():
                self.task.result()
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def process(
    url: str,
    folder: Path,
    world: FakeProcesses,
    holder: str = "one",
    *,
    nodes: list[NodeInfo] = NODES,
    clock: Callable[[], int] = app.now_ms,
    monotonic: Callable[[], float] = time.monotonic,
    failpoint: Callable[[str], Awaitable[None]] = no_failpoint,
    cromwell: Sequence[str] = (),
) -> AsyncIterator[Process]:
    """A process on a database, over a world of fake pods that outlives it."""
    async with await Database.open(url) as database, GroupWriter(database) as writer:
        reads = Workflows(database)
        history, documents = History(reads), Documents(reads)
        cluster = FakeCluster(world, folder, nodes, clock)
        leader = Leader(
            database, writer, cluster, documents,
            profile=PROFILES["flowsched"], holder=holder, secret=b"s" * 32,
            clock=clock, monotonic=monotonic, failpoint=failpoint,
        )  # fmt: skip
        service = Service(
            database, writer, cluster, history, documents, leader,
            clock=clock, new_id=app.new_id, failpoint=failpoint, cromwell=cromwell,
        )  # fmt: skip
        made = Process(database, leader, service, writer)
        try:
            yield made
        finally:
            if made.task is not None:
                made.task.cancel()
                await asyncio.gather(made.task, return_exceptions=True)
