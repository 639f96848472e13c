"""The worlds in which the executors of this machine are tested."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.local.executor import LocalCluster
from flowsched.cluster.local.virtual_nodes import virtual_nodes
from flowsched.executor.protocol import Executor, Pod
from tests.cluster.fake import FakeCluster, FakeProcesses, Outcome
from tests.executors.executor_contract import FactoryWorld
from tests.object_store import object_store


class RealWorld(FactoryWorld):
    """A folder, in which real processes run."""

    options: Mapping[str, Any] = {}  #: of the cluster

    def __init__(self, folder: Path) -> None:
        super().__init__(self.cluster, folder)
        self.root = folder / "cluster"
        self.nodes = virtual_nodes(2, cpu_millicores=8000, memory_bytes=8 << 30)

    async def cluster(self) -> Executor:
        return LocalCluster(self.root, self.nodes, **self.options)

    def attempt(self, name: str, node: str = "node-0") -> Path:
        return self.root / "nodes" / node / "attempts" / name


class FakeWorld(RealWorld):
    """The same with fakes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fakes = FakeProcesses(scripted, sizes={self.outside: 7})

    async def cluster(self) -> Executor:
        return FakeCluster(self.fakes, self.root, self.nodes)

    async def end(self) -> None:
        await self.drop()
        assert self.fakes.violations == []
        assert set(self.fakes.launched.values()) <= {1}


def scripted(what: Pod) -> Outcome:
    """What a `program` does in a world of fakes."""
    exit_code, runtime_ms, ignores_term, sizes, missing = 0, 5, False, {}, set()
    for step in what.env.get("STEPS", "").split(";"):
        word, *rest = shlex.split(step) or [""]
        if word == "sleep":
            runtime_ms = round(float(rest[0]) * 1000)
        elif word == "exit":
            exit_code = int(rest[0])
        elif word == "write":
            sizes[rest[0]] = int(rest[1])
        elif word == "promise":
            missing.add(rest[0])
        elif word == "trap":
            ignores_term = True
    return Outcome(
        exit_code, runtime_ms=runtime_ms, ignores_term=ignores_term, sizes=sizes, missing=frozenset(missing)
    )


@pytest.fixture
async def real_world(tmp_path: Path) -> AsyncIterator[RealWorld]:
    async with RealWorld(tmp_path) as world:
        yield world


@pytest.fixture
async def fake_world(tmp_path: Path) -> AsyncIterator[FakeWorld]:
    async with FakeWorld(tmp_path) as world:
        yield world


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket `lab` with one object."""
    with object_store(monkeypatch) as client:
        client.put_object(Bucket="lab", Key="runs/L001.txt", Body=b"ACGT\n" * 1000)
        yield "lab"
