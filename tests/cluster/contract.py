"""What every executor promises. Each implementation runs these: subclass `ExecutorContract` and give it a `world`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import pytest

from flowsched.cluster.local.executor import LocalCluster
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import (
    PodEnded,
    PodGone,
    PodStarted,
    ReplicaSeen,
    Transfer,
    TransferDone,
    TransferFailed,
)
from tests.cluster.samples import Ear, contained, program, reads

OUTSIDE_BYTES = 7


class World(Protocol):
    """Where an executor under test lives. It outlives the executor."""

    outside: str  #: uri of a dataset of `OUTSIDE_BYTES` bytes
    nothing: str  #: uri of a dataset that its origin does not have

    async def open(self) -> tuple[LocalCluster, Ear, Sequence[NodeInfo]]:
        """Open an executor over the world."""
        ...

    async def drop(self) -> None:
        """The service dies, the world goes on."""
        ...


class ExecutorContract:
    """The promises, one per test."""

    async def test_it_says_which_nodes_there_are(self, world: World) -> None:
        """start() answers with the nodes."""
        _, _, nodes = await world.open()
        assert [node.name for node in nodes] == ["node-0", "node-1"]

    async def test_a_pod_starts_and_ends_with_its_outputs(self, world: World) -> None:
        """Started, then ended with exit code 0; the output has its real size and its uri."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "write bam 12")])
        end = await ear.ended("a")
        assert [type(event) for event in ear.of("a")] == [PodStarted, PodEnded]
        assert (end.exit_code, end.reason) == (0, "")
        assert [(o.name, o.uri, o.size_bytes, o.value) for o in end.outputs] == [
            ("bam", "flowsched:a/bam", 12, None)
        ]

    async def test_an_output_can_be_read(self, world: World) -> None:
        """All its bytes, in chunks, from the node that has it, whichever was asked first."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "write bam 3000000", node="node-1")])
        await ear.ended("a")
        for hints in (["node-1"], ["node-0", "node-1"], ["no-such-node"], []):
            opened = await cluster.open_dataset("flowsched:a/bam", hints)
            assert opened is not None
            read = b"".join([chunk async for chunk in opened.chunks])
            assert (opened.size_bytes, opened.directory) == (3_000_000, False)
            assert read == bytes(3_000_000)

    async def test_what_no_node_has_cannot_be_read(self, world: World) -> None:
        """Neither what never was nor what has been removed."""
        cluster, ear, _ = await world.open()
        assert await cluster.open_dataset("flowsched:a/bam", ["node-0"]) is None
        await cluster.launch([program("a", "write bam 12")])
        await ear.ended("a")
        assert await cluster.evict("flowsched:a/bam", "node-0")
        assert await cluster.open_dataset("flowsched:a/bam", ["node-0"]) is None

    async def test_a_failed_pod_publishes_nothing(self, world: World) -> None:
        """The exit code is the program's, and what it wrote is dropped."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "write bam 12; exit 3")])
        end = await ear.ended("a")
        assert (end.exit_code, end.reason, end.outputs) == (3, "", ())

    async def test_an_output_that_is_not_there(self, world: World) -> None:
        """Exit code 0 without a promised output is no success; the reason says so."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "promise bam")])
        end = await ear.ended("a")
        assert (end.exit_code, end.reason, end.outputs) == (0, "OutputMissing", ())
        assert "bam" in end.message

    async def test_a_timeout(self, world: World) -> None:
        """A pod that runs longer than it may is ended with the reason."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "sleep 60", timeout_ms=1_500)])
        end = await ear.ended("a")
        assert (end.exit_code, end.reason) == (143, "Timeout")

    async def test_launching_twice_is_launching_once(self, world: World) -> None:
        """A second launch, at once or after the end, starts nothing."""
        cluster, ear, _ = await world.open()
        again = program("a", "say hello")
        await cluster.launch([again])
        await cluster.launch([again])
        await ear.ended("a")
        await cluster.launch([again])
        await ear.until(lambda: len(ear.finals("a")) >= 2)
        assert len(set(ear.finals("a"))) == 1
        log, more = await cluster.logs("a", "stdout", 0, 100)
        for beyond in (1 << 44, (1 << 63) - 1):  # ext4 refuses to seek there
            assert await cluster.logs("a", "stdout", beyond, 100) == (b"", more)
        assert (len(log.splitlines()), more) == (1, False)

    async def test_a_node_that_does_not_exist(self, world: World) -> None:
        """Nothing starts there, and nothing ever will."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "exit 0", node="node-9")])
        assert await ear.gone("a") == PodGone("a", ear.of("a")[0].at_ms, "NoSuchNode")

    async def test_a_running_pod_is_released(self, world: World) -> None:
        """Exactly one end follows, with the reason."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "sleep 60")])
        await ear.started("a")
        await cluster.release(["a"], 2000)
        end = await ear.ended("a")
        assert (end.exit_code, end.reason) == (143, "Released")
        assert len(ear.finals("a")) == 1

    async def test_a_release_wins_over_a_later_launch(self, world: World) -> None:
        """What is released before it is launched never starts (P8)."""
        cluster, ear, _ = await world.open()
        await cluster.release(["a"], 0)
        assert (await ear.gone("a")).reason == "Released"
        await cluster.launch([program("a", "say hello", node="node-1")])
        await ear.until(lambda: len(ear.finals("a")) == 2)
        assert [type(event) for event in ear.of("a")] == [PodGone, PodGone]

    async def test_a_launch_and_a_release_at_once(self, world: World) -> None:
        """However they meet, there is one end and nothing is left running."""
        cluster, ear, _ = await world.open()
        names = [f"a{number}" for number in range(6)]
        pods = [program(name, "sleep 60", index=number) for number, name in enumerate(names)]
        await asyncio.gather(cluster.launch(pods), cluster.release(names, 0))
        for name in names:
            final = await ear.final(name)
            assert final.reason == "Released"
            assert len(ear.finals(name)) == 1

    async def test_the_release_of_a_pod_that_has_ended(self, world: World) -> None:
        """Its end is told again, unchanged."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "exit 4")])
        await ear.ended("a")
        await cluster.release(["a"], 0)
        await ear.until(lambda: len(ear.finals("a")) == 2)
        first, second = ear.finals("a")
        assert first == second

    async def test_a_restarted_service_adopts_what_runs(self, world: World) -> None:
        """Started, then ended, as if nothing had been."""
        cluster, ear, _ = await world.open()
        running = program("a", "sleep 3; write bam 3")
        await cluster.launch([running])
        await ear.started("a")
        await world.drop()
        cluster, ear, _ = await world.open()
        await cluster.adopt([running])
        end = await ear.ended("a")
        assert [type(event) for event in ear.of("a")] == [PodStarted, PodEnded]
        assert (end.exit_code, len(end.outputs)) == (0, 1)

    async def test_a_restarted_service_adopts_what_has_ended(self, world: World) -> None:
        """The end that nobody heard is told (row 9)."""
        cluster, ear, _ = await world.open()
        ending = program("a", "sleep 0.05; exit 5")
        await cluster.launch([ending])
        await ear.started("a")
        await world.drop()
        await asyncio.sleep(0.5)
        cluster, ear, _ = await world.open()
        await cluster.adopt([ending])
        assert (await ear.ended("a")).exit_code == 5

    async def test_what_was_never_launched_is_gone_for_good(self, world: World) -> None:
        """A service that died between its intent and the launch is told so, and a late launch starts nothing (row 1)."""
        cluster, ear, _ = await world.open()
        never = program("a", "say hello")
        await cluster.adopt([never])
        gone = await ear.gone("a")
        assert (gone.reason, gone.started) == ("NotLaunched", False)
        await cluster.launch([never])
        await ear.until(lambda: len(ear.finals("a")) == 2)
        assert not any(isinstance(event, PodStarted) for event in ear.heard)

    async def test_a_released_pod_that_only_the_disk_knows(self, world: World) -> None:
        """A release after a restart, without an adoption, ends the pod."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "sleep 60")])
        await ear.started("a")
        await world.drop()
        cluster, ear, _ = await world.open()
        await cluster.release(["a"], 1000)
        assert (await ear.ended("a")).reason == "Released"

    async def test_bytes_travel_from_their_origin_and_between_nodes(self, world: World) -> None:
        """Each transfer says what really moved; what is there already moves nothing."""
        cluster, ear, _ = await world.open()
        await cluster.transfer([Transfer(world.outside, OUTSIDE_BYTES, "node-0")])
        await ear.transferred(1)
        await cluster.transfer([Transfer(world.outside, OUTSIDE_BYTES, "node-1", "node-0")])
        await ear.transferred(2)
        await cluster.transfer([Transfer(world.outside, OUTSIDE_BYTES, "node-1")])
        done = await ear.transferred(3)
        assert [
            (d.dest, d.source, d.moved_bytes, d.size_bytes) for d in done if isinstance(d, TransferDone)
        ] == [
            ("node-0", None, 7, 7),
            ("node-1", "node-0", 7, 7),
            ("node-1", None, 0, 7),
        ]

    async def test_one_dataset_ordered_twice_moves_once(self, world: World) -> None:
        """The second order waits for the first."""
        cluster, ear, _ = await world.open()
        await cluster.transfer([Transfer(world.outside, OUTSIDE_BYTES, "node-0")] * 3)
        done = await ear.transferred(3)
        assert sorted(d.moved_bytes for d in done if isinstance(d, TransferDone)) == [0, 0, 7]

    async def test_a_source_that_has_lost_the_bytes(self, world: World) -> None:
        """Lost: the catalogue was wrong, another source may do."""
        cluster, ear, _ = await world.open()
        await cluster.transfer([Transfer(world.outside, OUTSIDE_BYTES, "node-0", "node-1")])
        (failed,) = await ear.transferred()
        assert isinstance(failed, TransferFailed)
        assert (failed.lost, failed.permanent, failed.source) == (True, False, "node-1")

    async def test_a_node_that_cannot_receive(self, world: World) -> None:
        """A transfer to a node that does not exist fails for good."""
        cluster, ear, _ = await world.open()
        await cluster.transfer([Transfer(world.outside, OUTSIDE_BYTES, "node-9")])
        (failed,) = await ear.transferred()
        assert isinstance(failed, TransferFailed)
        assert (failed.lost, failed.permanent) == (False, True)

    async def test_an_input_that_is_not_on_the_node(self, world: World) -> None:
        """The pod never starts, and says which dataset is missing."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "exit 0", **reads("flowsched:nowhere/data"))])
        gone = await ear.gone("a")
        assert (gone.reason, gone.started, gone.lost_inputs) == (
            "InputLost",
            False,
            ("flowsched:nowhere/data",),
        )

    async def test_the_bytes_of_an_attempt(self, world: World) -> None:
        """The first to use what was brought is charged for it; the second found it there."""
        cluster, ear, _ = await world.open()
        await cluster.transfer([Transfer(world.outside, OUTSIDE_BYTES, "node-0")])
        await ear.transferred()
        await cluster.launch([program("a", "exit 0", **reads(world.outside))])
        first = (await ear.ended("a")).usage
        await cluster.launch([program("b", "exit 0", **reads(world.outside))])
        second = (await ear.ended("b")).usage
        assert (first.bytes_local, first.bytes_moved) == (0, 7)
        assert (second.bytes_local, second.bytes_moved) == (7, 0)

    async def test_an_output_is_there_for_the_next_pod(self, world: World) -> None:
        """On the node of its producer without a transfer, elsewhere after one."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "write bam 12")])
        await ear.ended("a")
        await cluster.launch([program("b", "exit 0", **reads("flowsched:a/bam"))])
        assert (await ear.ended("b")).exit_code == 0
        await cluster.transfer([Transfer("flowsched:a/bam", 12, "node-1", "node-0")])
        await ear.transferred()
        await cluster.launch([program("c", "exit 0", node="node-1", **reads("flowsched:a/bam"))])
        assert (await ear.ended("c")).exit_code == 0

    async def test_an_output_is_read_on_another_node(self, world: World) -> None:
        """Without a copy, where the executor can; it counts as moved, and stays while it is read. What is not there is lost."""
        cluster, ear, _ = await world.open()
        if not cluster.remote_reads:
            pytest.skip("pods of this executor read on their own node only")
        await cluster.launch([program("a", "write bam 12")])
        await ear.ended("a")
        elsewhere: dict[str, Any] = {"node": "node-1", "remote": {"flowsched:a/bam": "node-0"}}
        await cluster.launch([program("b", "exit 0", **elsewhere, **reads("flowsched:a/bam"))])
        end = await ear.ended("b")
        assert (end.exit_code, end.usage.bytes_local, end.usage.bytes_moved) == (0, 0, 12)
        await cluster.launch([program("c", "sleep 60", **elsewhere, **reads("flowsched:a/bam"))])
        await ear.started("c")
        assert not await cluster.evict("flowsched:a/bam", "node-0")
        await cluster.release(["c"], 1000)
        await ear.final("c")
        assert await cluster.evict("flowsched:a/bam", "node-0")
        await cluster.launch([program("d", "exit 0", **elsewhere, **reads("flowsched:a/bam"))])
        assert (await ear.gone("d")).lost_inputs == ("flowsched:a/bam",)

    async def test_a_restarted_service_is_told_of_the_replicas(self, world: World) -> None:
        """What lies in the caches is reported at the start."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "write bam 12")])
        await ear.ended("a")
        await world.drop()
        _, ear, _ = await world.open()
        await ear.until(lambda: ear.heard)
        assert ear.heard == [ReplicaSeen("flowsched:a/bam", "node-0", 12)]

    async def test_a_dataset_is_evicted_when_nobody_reads_it(self, world: World) -> None:
        """Not before."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "write bam 12")])
        await ear.ended("a")
        await cluster.launch([program("b", "sleep 60", **reads("flowsched:a/bam"))])
        await ear.started("b")
        assert not await cluster.evict("flowsched:a/bam", "node-0")
        await cluster.release(["b"], 1000)
        await ear.final("b")
        assert await cluster.evict("flowsched:a/bam", "node-0")
        gone = ReplicaSeen("flowsched:a/bam", "node-0", 12, present=False)
        await ear.until(lambda: gone in ear.heard)

    async def test_a_container_task_reports_its_steps(self, world: World) -> None:
        """Each step that ran, in order, with its exit code and its times; nothing was to be delivered."""
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "exit 0", "sleep 0.05", "exit 0")])
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason) == (0, "")
        assert [step.exit_code for step in end.container.steps] == [0, 0, 0]
        assert all(step.started_ms <= step.ended_ms <= end.at_ms for step in end.container.steps)
        assert end.container.outputs == ()

    async def test_a_step_that_fails_ends_a_container_task(self, world: World) -> None:
        """Its exit code is the task's, and the steps after it never run."""
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "exit 3", "true")])
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason) == (3, "")
        assert [step.exit_code for step in end.container.steps] == [3]

    async def test_a_container_task_that_takes_too_long(self, world: World) -> None:
        """The time of all its steps counts; the one that ran says how it was ended. (A step may take a second to begin.)"""
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "sleep 60", timeout_ms=6_000)])
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason) == (143, "Timeout")
        assert [step.exit_code for step in end.container.steps] == [143]

    async def test_a_container_task_is_released(self, world: World) -> None:
        """Like any other, and no further step begins."""
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "sleep 60", "true")])
        await ear.started("a")
        await cluster.release(["a"], 2000)
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason, len(end.container.steps)) == (143, "Released", 1)

    async def test_the_report_of_a_container_task_outlives_the_service(self, world: World) -> None:
        """A service that adopts it is told the same."""
        cluster, ear, _ = await world.open()
        running = contained("a", "sleep 0.6", "exit 0")
        await cluster.launch([running])
        await ear.started("a")
        await world.drop()
        cluster, ear, _ = await world.open()
        await cluster.adopt([running])
        end = await ear.ended("a")
        assert end.container is not None
        assert [step.exit_code for step in end.container.steps] == [0, 0]

    async def test_events_end_with_the_service(self, world: World) -> None:
        """The iterator of events ends after stop()."""
        cluster, ear, _ = await world.open()
        await cluster.stop()
        await asyncio.wait_for(ear._task, 60)

    async def test_the_logs_of_an_unknown_pod(self, world: World) -> None:
        """Nothing, and nothing more to come."""
        cluster, _, _ = await world.open()
        assert await cluster.logs("nobody", "stdout", 0, 100) == (b"", False)
