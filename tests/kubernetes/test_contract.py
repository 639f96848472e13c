"""What every executor promises, on Kubernetes: a real API server, hollow nodes that really run commands, and an agent on each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.executors.executor_contract import OUTSIDE, ExecutorContract, World, program, reads, shell
from tests.kubernetes.exec_world import KubeWorld
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.promises import Corner, asked_for, promises, shown

pytestmark = pytest.mark.kubernetes

#: More at a time would wait for the two cores of a small machine.
AT_ONCE = 6


class OnHollowNodes(ExecutorContract):
    """With promises that no other executor has."""

    async def test_more_outputs_than_a_message_holds(self, world: World) -> None:
        """Two hundred outputs: 4 KiB of termination message are not enough, the agent tells the rest."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", ";".join(f"write output{number} 3" for number in range(200)))])
        end = await ear.ended("a")
        assert (end.exit_code, end.reason) == (0, "")
        assert {each.name for each in end.outputs} == {f"output{number}" for number in range(200)}

    async def test_an_input_that_nobody_ordered_is_fetched_by_the_pods_first_step(self, world: World) -> None:
        """Its origin is known, so the pod does not fail for it; the bytes are the attempt's."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "exit 0", **reads(world.outside))])
        usage = (await ear.ended("a")).usage
        assert (usage.bytes_local, usage.bytes_moved) == (0, 7)

    async def test_the_log_of_a_pod_that_is_gone(self, world: Corner) -> None:
        """Its end is durable, its object removed; the agent has kept what it wrote, in two streams."""
        cluster, ear, _ = await world.open()
        await cluster.launch([shell("a", "echo out; echo err >&2")])
        await ear.ended("a")
        await cluster.settle(["a"])
        async with asyncio.timeout(200):
            while cluster.has("a"):
                await asyncio.sleep(0.05)
        assert await cluster.logs("a", "stdout", 0, 100, "node-0") == (b"out\n", False)
        assert await cluster.logs("a", "stderr", 1, 2, "node-0") == (b"rr", True)

    async def test_what_a_failed_pod_wrote_is_dropped(self, world: World) -> None:
        """Stage-out cannot know how its task ended; the executor can, and has the agent remove it."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "write bam 12; exit 3")])
        assert (await ear.ended("a")).outputs == ()
        async with asyncio.timeout(200):
            while await cluster.open_dataset("flowsched:a/bam", ["node-0"]) is not None:
                await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def outcomes(
    control_plane: ControlPlane, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, BaseException | None]:
    """What became of each promise, all of them on two nodes."""
    folder = tmp_path_factory.mktemp("contract")

    async def show() -> Mapping[str, BaseException | None]:
        async with KubeWorld(control_plane.connection(), "contract", folder) as world:

            def corner(prefix: str) -> Corner:
                outside = folder / f"{prefix}outside.txt"
                outside.write_bytes(OUTSIDE)
                return Corner(
                    world.connection,
                    world.settings(),
                    prefix,
                    outside.as_uri(),
                    f"file://{folder}/nothing.txt",
                )

            return await shown(OnHollowNodes, list(asked_for(request)), corner, AT_ONCE)

    with asyncio.Runner() as runner:
        return runner.run(show())


@pytest.mark.parametrize("promise", promises(OnHollowNodes))
def test_on_hollow_nodes(promise: str, outcomes: Mapping[str, BaseException | None]) -> None:
    """As the promise's own docstring says."""
    if (error := outcomes[promise]) is not None:
        raise error


async def test_a_launch_that_breaks_ends_its_pod(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fault was logged, and the task stayed STARTING for ever."""

    def breaks(*_: object) -> bytes:
        raise ValueError("broken")

    monkeypatch.setattr("flowsched.cluster.kubernetes.pods.controller.pod_manifest", breaks)
    async with KubeWorld(control_plane.connection(), namespace, tmp_path, agents=False) as world:
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "exit 0")])
        end = await ear.ended("a")
        assert (end.reason, end.message) == ("StartFailed", "the launch broke: ValueError('broken')")
