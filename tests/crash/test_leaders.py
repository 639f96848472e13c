"""Who may lead and write: restarts, refusals, orderly ends, and a leader that was paused (P7; rows 13, 14, 15, 18)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowsched import app
from flowsched.cluster.fake import FakeProcesses, Outcome
from flowsched.cluster.local import LocalCluster
from flowsched.control import leader as leading
from flowsched.control.history import History
from flowsched.control.intake import Documents
from flowsched.control.leader import Leader
from flowsched.control.service import Service
from flowsched.errors import ConfigurationError, LeadershipLost
from flowsched.scheduling.executor import NodeInfo
from flowsched.scheduling.framework import PROFILES
from flowsched.store.database import Database, url_for
from flowsched.store.lease import Lease
from flowsched.store.workflows import Workflows
from flowsched.store.writer import GroupWriter, no_failpoint

NODES = [NodeInfo(f"node-{number}", 4_000, 4 << 30) for number in range(2)]
SLEEPER = b'{"name": "w", "stages": [{"name": "a", "scatter": {"count": 3}, "command": ["x"]}]}'


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
    url: str, folder: Path, world: FakeProcesses, holder: str, nodes: list[NodeInfo] = NODES
) -> AsyncIterator[Process]:
    """A process on a database, over a world of fake pods that outlives it."""
    async with await Database.open(url) as database, GroupWriter(database) as writer:
        reads = Workflows(database)
        history, documents = History(reads), Documents(reads)
        cluster = LocalCluster(folder, nodes, processes=world, clock=app.now_ms)
        leader = Leader(
            database, writer, cluster, history, documents,
            profile=PROFILES["flowsched"], holder=holder, secret=b"s" * 32,
            clock=app.now_ms, monotonic=time.monotonic, failpoint=no_failpoint,
        )  # fmt: skip
        service = Service(
            database, writer, cluster, history, documents, leader,
            clock=app.now_ms, new_id=app.new_id, failpoint=no_failpoint,
        )  # fmt: skip
        made = Process(database, leader, service, writer)
        try:
            yield made
        finally:
            if made.task is not None:
                made.task.cancel()
                await asyncio.gather(made.task, return_exceptions=True)


@pytest.fixture
def url(database: str | None, tmp_path: Path) -> str:
    return database or url_for(tmp_path / "flowsched.db")


class RefusingCluster(FakeProcesses):
    """A cluster that another process uses."""

    async def open(self, site: object) -> None:
        raise ConfigurationError("process 1 runs the local cluster")


async def test_a_process_whose_cluster_refuses_it_deposes_nobody(url: str, tmp_path: Path) -> None:
    """The cluster is opened before the lease is asked for, also by a process that has the leader's name (row 18)."""
    async with process(url, tmp_path, RefusingCluster(), "same") as second:
        before = await Lease(second.database).acquire("same", 60_000, app.now_ms())
        with pytest.raises(ConfigurationError, match="process 1 runs"):
            await second.leader.run()
        assert (await Lease(second.database).look()).epoch == before


async def test_a_leader_that_ends_lets_another_begin_at_once(url: str, tmp_path: Path) -> None:
    """An orderly end gives the lease back, so that nobody waits for it to run out."""
    async with process(url, tmp_path, FakeProcesses(), "first") as first:
        first.lead()
        await first.ready()
        assert first.task is not None
        first.task.cancel()
        await asyncio.gather(first.task, return_exceptions=True)
        assert await Lease(first.database).acquire("second", 1_000, app.now_ms()) == 2


def test_a_service_keeps_its_name_over_restarts(tmp_path: Path) -> None:
    """The next start on a root takes over from the killed one at once; another root is another holder."""
    first, second = app.Settings(root=tmp_path / "a"), app.Settings(root=tmp_path / "b")
    first.root.mkdir()
    second.root.mkdir()
    assert app.holder_of(first) == app.holder_of(first)
    assert app.holder_of(first) != app.holder_of(second)
