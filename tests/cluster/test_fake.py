"""The world of fakes has an eye on what callers promise. What it plays is held by the contract and by the tests of the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowsched.cluster.local.virtual_nodes import virtual_nodes
from tests.cluster.fake import FakeCluster, FakeProcesses, Outcome
from tests.executors.executor_contract import pod


@pytest.mark.looptime
async def test_broken_promises_are_written_down() -> None:
    """Two attempts of a task at once, and more than a node has."""
    world = FakeProcesses(lambda _: Outcome(runtime_ms=10**6))
    cluster = FakeCluster(
        world, Path("/nowhere"), virtual_nodes(2, cpu_millicores=1000, memory_bytes=1 << 40)
    )
    await cluster.start()
    await cluster.launch([pod("a-1", cpu_millicores=600), pod("a-2", attempt=2, cpu_millicores=600)])
    assert world.violations == [
        "P2: a-2 was launched while a-1 runs",
        "P6: a-2 brings node-0 to 1200 cpu of 1000",
    ]
