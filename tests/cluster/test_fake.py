"""The world of fakes: virtual time, scripted ends, and an eye on what callers promise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from flowsched.cluster.local.virtual_nodes import virtual_nodes
from flowsched.executor.protocol import (
    NodeChanged,
    PodEnded,
    PodGone,
    PodStarted,
    ReplicaSeen,
    Transfer,
    TransferDone,
    TransferFailed,
)
from tests.cluster.fake import FakeCluster, FakeProcesses, Outcome
from tests.executors.executor_contract import Observer, pod

NODES = virtual_nodes(2, cpu_millicores=1000, memory_bytes=1 << 40, nic_rate=1000, disk_rate=0)
Open = Callable[[FakeProcesses], "asyncio.Future[tuple[FakeCluster, Observer]]"]

pytestmark = [pytest.mark.looptime]


async def opened(world: FakeProcesses) -> tuple[FakeCluster, Observer]:
    cluster = FakeCluster(world, Path("/nowhere"), NODES)
    await cluster.start()
    return cluster, Observer(cluster)


async def test_a_pod_runs_for_its_hint_in_virtual_time() -> None:
    """An hour takes no time, and the event says when it was."""
    cluster, ear = await opened(FakeProcesses())
    await cluster.launch([pod("a", runtime_hint_ms=3_600_000)])
    await asyncio.sleep(3601)
    (end,) = ear.finals("a")
    (start,) = [event for event in ear.of("a") if isinstance(event, PodStarted)]
    assert end.at_ms - start.at_ms == 3_600_000  # type: ignore[union-attr]


async def test_scripted_ends() -> None:
    """Exit codes, delays, sizes, values and losses are as the script says."""
    script = {
        "fails": Outcome(exit_code=2, runtime_ms=10),
        "oom": Outcome(exit_code=137, reason="OOMKilled", runtime_ms=10),
        "lost": Outcome(gone="RunnerLost", runtime_ms=10),
        "late": Outcome(start_delay_ms=5000, runtime_ms=10),
    }
    cluster, ear = await opened(FakeProcesses(lambda p: script[p.name]))
    await cluster.launch([pod(name, index=number) for number, name in enumerate(script)])
    await asyncio.sleep(4)
    assert [(e.exit_code, e.reason) for e in ear.heard if isinstance(e, PodEnded)] == [
        (2, ""),
        (137, "OOMKilled"),
    ]
    assert [(e.name, e.reason, e.started) for e in ear.heard if isinstance(e, PodGone)] == [
        ("lost", "RunnerLost", True)
    ]
    assert ear.of("late") == []
    await asyncio.sleep(2)
    assert len(ear.finals("late")) == 1


async def test_a_pod_that_ignores_the_signal() -> None:
    """Its release takes the whole grace."""
    cluster, ear = await opened(FakeProcesses(lambda _: Outcome(ignores_term=True, runtime_ms=10**6)))
    await cluster.launch([pod("a")])
    await asyncio.sleep(1)
    await cluster.release(["a"], 30_000)
    await asyncio.sleep(29)
    assert ear.finals("a") == []
    await asyncio.sleep(2)
    (end,) = ear.finals("a")
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason) == (137, "Released")


async def test_transfers_share_links() -> None:
    """2000 bytes over a link of 1000 bytes/s that already carries 1000: three seconds."""
    cluster, ear = await opened(FakeProcesses(sizes={"s3://x": 1000}))
    await cluster.transfer([Transfer("s3://x", 1, "node-0"), Transfer("s3://y", 2000, "node-0")])
    await asyncio.sleep(2.9)
    assert [e.uri for e in ear.heard if isinstance(e, TransferDone)] == ["s3://x"]
    await asyncio.sleep(0.2)
    assert [(e.uri, e.size_bytes) for e in ear.heard if isinstance(e, TransferDone)] == [
        ("s3://x", 1000),
        ("s3://y", 2000),
    ]


async def test_transfers_that_are_told_to_fail() -> None:
    """As the test says."""

    def refuse(order: Transfer) -> TransferFailed | None:
        return TransferFailed(order.uri, order.dest, 0, "no", permanent=True) if "bad" in order.uri else None

    cluster, ear = await opened(FakeProcesses(refuse=refuse))
    await cluster.transfer([Transfer("bad", 1, "node-0"), Transfer("good", 1, "node-0")])
    await asyncio.sleep(1)
    assert [type(e) for e in ear.heard] == [TransferFailed, TransferDone]


async def test_a_node_is_lost() -> None:
    """Its pods are gone, its datasets too, and it is not ready."""
    world = FakeProcesses(lambda _: Outcome(runtime_ms=10**6))
    cluster, ear = await opened(world)
    await cluster.transfer([Transfer("x", 1, "node-0")])
    await cluster.launch([pod("a"), pod("b", index=1, node="node-1")])
    await asyncio.sleep(1)
    world.lose_node("node-0")
    await asyncio.sleep(1)
    assert [(e.reason, e.started) for e in ear.finals("a") if isinstance(e, PodGone)] == [("NodeLost", True)]
    assert ear.finals("b") == []
    assert ReplicaSeen("x", "node-0", 1, present=False) in ear.heard
    assert [e.node.ready for e in ear.heard if isinstance(e, NodeChanged)] == [False]


async def test_the_world_goes_on_without_the_service() -> None:
    """What ended meanwhile is told to the next one, which adopts."""
    world = FakeProcesses()
    cluster, _ = await opened(world)
    task = pod("a", runtime_hint_ms=1000)
    await cluster.launch([task])
    await cluster.stop()
    await asyncio.sleep(5)
    cluster, ear = await opened(world)
    await cluster.adopt([task])
    await asyncio.sleep(0.1)
    assert [type(event) for event in ear.of("a")] == [PodStarted, PodEnded]


async def test_broken_promises_are_written_down() -> None:
    """Two attempts of a task at once, and more than a node has."""
    world = FakeProcesses(lambda _: Outcome(runtime_ms=10**6))
    cluster, _ = await opened(world)
    await cluster.launch([pod("a-1", cpu_millicores=600), pod("a-2", attempt=2, cpu_millicores=600)])
    assert world.violations == [
        "P2: a-2 was launched while a-1 runs",
        "P6: a-2 brings node-0 to 1200 cpu of 1000",
    ]


async def test_an_end_that_waits_to_be_heard_is_not_told_twice() -> None:
    """A release that crosses the pod's end finds it in the queue."""
    world = FakeProcesses()
    cluster = FakeCluster(world, Path("/nowhere"), NODES)
    await cluster.start()
    await cluster.launch([pod("a", runtime_hint_ms=10)])
    await asyncio.sleep(1)
    await cluster.release(["a"], 0)
    await asyncio.sleep(1)
    ear = Observer(cluster)
    await asyncio.sleep(1)
    assert [type(event) for event in ear.of("a")] == [PodStarted, PodEnded]
