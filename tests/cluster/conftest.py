"""The worlds in which executors are tested."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from flowsched.cluster.local.executor import LocalCluster, Processes
from flowsched.cluster.local.nodes import virtual_nodes
from flowsched.cluster.local.processes import RunnerProcesses
from flowsched.executor.nodes import NodeInfo
from tests.cluster.fake import FakeProcesses
from tests.cluster.samples import Ear, scripted


class RealWorld:
    """A folder, in which real processes run. Whatever still runs at the end is killed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cluster"
        self.nodes = virtual_nodes(2, cpu_millicores=8000, memory_bytes=8 << 30)
        file = folder / "outside.txt"
        file.write_bytes(b"outside")
        self.outside = file.as_uri()
        self.nothing = (folder / "nothing.txt").as_uri()
        self._open: tuple[LocalCluster, Ear] | None = None

    def processes(self) -> Processes:
        return RunnerProcesses()

    async def open(self) -> tuple[LocalCluster, Ear, Sequence[NodeInfo]]:
        cluster = LocalCluster(self.root, self.nodes, processes=self.processes())
        nodes = await cluster.start()
        ear = Ear(cluster)
        self._open = cluster, ear
        return cluster, ear, nodes

    async def drop(self) -> None:
        if self._open is not None:
            cluster, ear = self._open
            self._open = None
            await cluster.stop()
            await ear.close()

    async def end(self) -> None:
        """Leave nothing behind."""
        await self.drop()
        cluster, ear, _ = await self.open()
        orphans = await cluster.orphans()
        await cluster.release(orphans, 0)
        await asyncio.gather(*(ear.final(name) for name in orphans))
        await self.drop()

    def attempt(self, name: str, node: str = "node-0") -> Path:
        return self.root / "nodes" / node / "attempts" / name


class FakeWorld(RealWorld):
    """The same with fakes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fakes = FakeProcesses(scripted, sizes={self.outside: 7})

    def processes(self) -> Processes:
        return self.fakes

    async def end(self) -> None:
        await self.drop()
        assert self.fakes.violations == []
        assert set(self.fakes.launched.values()) <= {1}


@pytest.fixture
async def real_world(tmp_path: Path) -> AsyncIterator[RealWorld]:
    world = RealWorld(tmp_path)
    yield world
    await world.end()


@pytest.fixture
async def fake_world(tmp_path: Path) -> AsyncIterator[FakeWorld]:
    world = FakeWorld(tmp_path)
    yield world
    await world.end()
