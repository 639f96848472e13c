"""What every executor promises, on Kubernetes: a real API server (and the stand-in), hollow nodes that really run commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.api.client import Connection
from tests.executors.executor_contract import ExecutorContract, program, reads, shell
from tests.kubernetes.exec_world import KubeWorld


@pytest.mark.kubernetes
class TestOnTheRealServer(ExecutorContract):
    @pytest.fixture
    async def world(self, api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[KubeWorld]:
        async with KubeWorld(api, namespace, tmp_path) as world:
            yield world

    async def test_more_outputs_than_a_message_holds(self, world: KubeWorld) -> None:
        """Two hundred outputs: 4 KiB of termination message are not enough, the agent tells the rest."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", ";".join(f"write output{number} 3" for number in range(200)))])
        end = await ear.ended("a")
        assert (end.exit_code, end.reason) == (0, "")
        assert {each.name for each in end.outputs} == {f"output{number}" for number in range(200)}

    async def test_an_input_that_nobody_ordered_is_fetched_by_the_pods_first_step(
        self, world: KubeWorld
    ) -> None:
        """Its origin is known, so the pod does not fail for it; the bytes are the attempt's."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "exit 0", **reads(world.outside))])
        usage = (await ear.ended("a")).usage
        assert (usage.bytes_local, usage.bytes_moved) == (0, 7)

    async def test_the_log_of_a_pod_that_is_gone(self, world: KubeWorld) -> None:
        """Its end is durable, its object removed; the agent has kept what it wrote, in two streams."""
        cluster, ear, _ = await world.open()
        await cluster.launch([shell("a", "echo out; echo err >&2")])
        await ear.ended("a")
        await cluster.settle(["a"])
        async with asyncio.timeout(200):
            while cluster.pods.object_of("a") is not None:
                await asyncio.sleep(0.05)
        assert await cluster.logs("a", "stdout", 0, 100, "node-0") == (b"out\n", False)
        assert await cluster.logs("a", "stderr", 1, 2, "node-0") == (b"rr", True)

    async def test_what_a_failed_pod_wrote_is_dropped(self, world: KubeWorld) -> None:
        """Stage-out cannot know how its task ended; the executor can, and has the agent remove it."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "write bam 12; exit 3")])
        assert (await ear.ended("a")).outputs == ()
        async with asyncio.timeout(200):
            while await cluster.open_dataset("flowsched:a/bam", ["node-0"]) is not None:
                await asyncio.sleep(0.1)

    async def test_a_launch_that_breaks_ends_its_pod(
        self, world: KubeWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its fault was logged, and the task stayed STARTING for ever."""

        def breaks(*_: object) -> bytes:
            raise ValueError("broken")

        monkeypatch.setattr("flowsched.cluster.kubernetes.pods.controller.pod_manifest", breaks)
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "exit 0")])
        end = await ear.ended("a")
        assert (end.reason, end.message) == ("StartFailed", "the launch broke: ValueError('broken')")
