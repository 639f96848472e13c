"""Who may lead and write: restarts, refusals, orderly ends, and a leader that was paused (P7; rows 13, 14, 15, 18)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowsched import app
from flowsched.errors import ConfigurationError
from flowsched.executor.nodes import NodeInfo
from flowsched.store.database import url_for
from flowsched.store.lease import Lease
from tests.cluster.fake import FakeProcesses
from tests.service.processes import process


@pytest.fixture
def url(database: str | None, tmp_path: Path) -> str:
    return database or url_for(tmp_path / "flowsched.db")


class RefusingCluster(FakeProcesses):
    """A cluster that another process uses."""

    async def open(self, site: object) -> Sequence[NodeInfo]:
        raise ConfigurationError("process 1 runs the local cluster")


async def test_a_process_whose_cluster_refuses_it_deposes_nobody(url: str, tmp_path: Path) -> None:
    """The cluster is opened before the lease is asked for, also by a process that has the leader's name (row 18)."""
    async with process(url, tmp_path, RefusingCluster(), "same") as second:
        before = await Lease(second.database).acquire("same", 60_000, app.now_ms())
        with pytest.raises(ConfigurationError, match="process 1 runs"):
            await second.leader.run()
        assert (await Lease(second.database).read()).epoch == before


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
