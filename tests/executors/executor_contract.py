"""What each executor promises, as tests: docs/executors.md. They need pytest with pytest-asyncio.

This file imports nothing else of `tests`: an author of an executor runs it from a clone.

Subclass `ExecutorContract` as a test class and give it a fixture `world`: a `FactoryWorld` with a function that makes executors.
The executor under test has two nodes, `node-0` and `node-1`, and runs commands (`/bin/sh`, `head`, `sleep`).
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

import pytest
from msgspec import structs

from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import (
    ClusterEvent,
    Executor,
    Fingerprint,
    InputFile,
    OutputFile,
    Pod,
    PodEnded,
    PodGone,
    PodStarted,
    ReplicaSeen,
    Transfer,
    TransferDone,
    TransferFailed,
)
from flowsched.workflow.spec import Container, Step

T = TypeVar("T")

#: How long an observer waits for an event: the kubelet of a busy machine needs minutes for a pod.
PATIENCE_S: Final = 240
OUTSIDE: Final = b"outside"


# ---- pods ----


def pod(name: str = "fs-wf-s-0-1", *command: str, **changes: Any) -> Pod:
    """A pod on node-0 that runs a command, by default one that succeeds."""
    plain = Pod(
        name=name,
        workflow="wf",
        stage="s",
        index=0,
        shard=0,
        attempt=1,
        epoch=1,
        node="node-0",
        command=command or ("true",),
        env={},
        image=None,
        cpu_millicores=100,
        memory_bytes=1 << 30,
        gpu_millis=0,
    )
    return structs.replace(plain, **changes)


def shell(name: str, script: str, **changes: Any) -> Pod:
    """A pod that runs a shell script."""
    return pod(name, "/bin/sh", "-c", script, **changes)


def program(name: str, steps: str, **changes: Any) -> Pod:
    """A pod that does some steps in order: `sleep 9; write bam 12; say hello; promise bai; exit 3`.

    `write` writes so many zero bytes into an output, `promise` declares an output and writes nothing. The variable STEPS holds
    the same text, for executors that run no processes.
    """
    lines = []
    outputs = []
    for step in steps.split(";"):
        word, *rest = shlex.split(step)
        if word == "write":
            lines.append(f'head -c {rest[1]} /dev/zero > "$FLOWSCHED_OUTPUT_{rest[0].upper()}"')
        elif word == "say":
            lines.append(f"echo {rest[0]}")
        elif word != "promise":
            lines.append(step)
        if word in ("write", "promise"):
            outputs.append(OutputFile(rest[0], f"{rest[0]}.dat", f"flowsched:{name}/{rest[0]}"))
    return shell(name, "\n".join(lines), outputs=tuple(outputs), **{"env": {"STEPS": steps}, **changes})


def contained(name: str, *scripts: str, **changes: Any) -> Pod:
    """A container task with shell scripts as steps; STEPS holds those that begin with `sleep` or `exit`."""
    files = {
        key: changes.pop(key) for key in ("inputs", "outputs", "mounts", "volumes", "leave") if key in changes
    }
    steps = tuple(Step(("/bin/sh", "-c", script)) for script in scripts)
    changes.setdefault("env", {"STEPS": ";".join(s for s in scripts if s.startswith(("sleep", "exit")))})
    return pod(name, container=Container(changes.pop("steps", steps), **files), **changes)


def reads(uri: str, name: str = "data") -> dict[str, Any]:
    """The field of a pod that reads one dataset."""
    return {"inputs": (InputFile(name, (uri,)),)}


# ---- what an executor reports ----


async def eventually(asked: Callable[[], Awaitable[bool]]) -> None:
    """Ask until the answer is yes.

    Raises:
        TimeoutError: It is not within `PATIENCE_S`.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await asked():
                return
            await asyncio.sleep(0.1)


async def logged(cluster: Executor, name: str) -> bool:
    """Whether the log of a pod has its end."""
    _, more = await cluster.logs(name, "stdout", 0, 1 << 20)
    return not more


async def said(cluster: Executor, name: str) -> bool:
    """Whether a pod has written to its stdout."""
    data, _ = await cluster.logs(name, "stdout", 0, 100)
    return bool(data)


class Observer:
    """Collects everything that an executor reports, and waits for it. It is the one reader of `Executor.events`.

    Attributes:
        heard: All events, in the order of their reports.
    """

    def __init__(self, executor: Executor) -> None:
        self.heard: list[ClusterEvent] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._listen(executor))

    async def _listen(self, executor: Executor) -> None:
        async for batch in executor.events():
            self.heard.extend(batch)
            self._news.set()

    def of(self, name: str) -> list[PodStarted | PodEnded | PodGone]:
        """The start and the ends of one pod."""
        found = [event for event in self.heard if isinstance(event, PodStarted | PodEnded | PodGone)]
        return [event for event in found if event.name == name]

    def finals(self, name: str) -> list[PodEnded | PodGone]:
        """The ends of one pod, each as often as it was reported."""
        return [event for event in self.of(name) if isinstance(event, PodEnded | PodGone)]

    @property
    def unfinished(self) -> set[str]:
        """Pods that were reported as started and not as ended."""
        started = {event.name for event in self.heard if isinstance(event, PodStarted)}
        return {name for name in started if not self.finals(name)}

    async def until(self, holds: Callable[[], T]) -> T:
        """Wait until a condition on what was heard holds; returns its value.

        Raises:
            TimeoutError: It does not within `PATIENCE_S`.
        """
        async with asyncio.timeout(PATIENCE_S):
            while not (found := holds()):
                self._news.clear()
                await self._news.wait()
        return found

    async def started(self, name: str) -> PodStarted:
        """Wait for the start of a pod."""
        (first, *_) = await self.until(lambda: [e for e in self.of(name) if isinstance(e, PodStarted)])
        return first

    async def final(self, name: str) -> PodEnded | PodGone:
        """Wait for the end of a pod."""
        return (await self.until(lambda: self.finals(name)))[0]

    async def ended(self, name: str) -> PodEnded:
        """Wait for the end of a pod that runs."""
        event = await self.final(name)
        assert isinstance(event, PodEnded), event
        return event

    async def gone(self, name: str) -> PodGone:
        """Wait for the end of a pod that is lost or never starts."""
        event = await self.final(name)
        assert isinstance(event, PodGone), event
        return event

    async def transferred(self, count: int = 1) -> list[TransferDone | TransferFailed]:
        """Wait for the ends of so many transfers."""

        def done() -> list[TransferDone | TransferFailed]:
            ends = [event for event in self.heard if isinstance(event, TransferDone | TransferFailed)]
            return ends if len(ends) >= count else []

        return await self.until(done)

    async def last(self) -> None:
        """Wait for the end of the executor's events."""
        await asyncio.wait_for(asyncio.shield(self._task), PATIENCE_S)

    async def close(self) -> None:
        """Stop listening."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


# ---- where an executor lives ----


class World(Protocol):
    """Where an executor under test lives. It outlives the executor."""

    outside: str  #: uri of a dataset with the bytes `OUTSIDE`
    nothing: str  #: uri of a dataset that its origin does not have

    async def open(self) -> tuple[Executor, Observer, Sequence[NodeInfo]]:
        """Open an executor over the world."""
        ...

    async def drop(self) -> None:
        """The service dies, the world goes on."""
        ...


class FactoryWorld:
    """The world of executors that a function opens. Use it as a context manager: it ends the pods that are left at its end.

    Args:
        make: Makes an executor; `open` starts it. Each call gives another one over the same nodes, files and processes.
        folder: Where the world keeps the files of `outside`.
    """

    def __init__(self, make: Callable[[], Awaitable[Executor]], folder: Path) -> None:
        self._make = make
        file = folder / "outside.txt"
        file.write_bytes(OUTSIDE)
        self.outside = file.as_uri()
        self.nothing = (folder / "nothing.txt").as_uri()
        self._open: tuple[Executor, Observer] | None = None
        self._left: set[str] = set()

    async def open(self, executor: Executor | None = None) -> tuple[Executor, Observer, Sequence[NodeInfo]]:
        """Open an executor over the world: the given one, or another one of `make`."""
        executor = executor or await self._make()
        nodes = await executor.start()
        observer = Observer(executor)
        self._open = executor, observer
        return executor, observer, nodes

    async def drop(self) -> None:
        """The service dies, the world goes on."""
        if self._open is not None:
            (executor, observer), self._open = self._open, None
            await executor.stop()
            await observer.close()
            self._left = (self._left | observer.unfinished) - {
                name for name in self._left if observer.finals(name)
            }

    async def end(self) -> None:
        """End the pods that still run, and close the executor."""
        await self.drop()
        executor, observer, _ = await self.open()
        left = sorted(self._left.union(await executor.orphans()))
        await executor.release(left, 0)
        await asyncio.gather(*(observer.final(name) for name in left))
        await self.drop()

    async def __aenter__(self) -> Self:
        """Enter the world."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End it."""
        await self.end()


# ---- the promises ----


class ExecutorContract:
    """The promises, one a test. A subclass gives the fixture `world`.

    Attributes:
        container_tasks: Whether the executor runs container tasks (`Pod.container`). An executor that does not refuses them.
    """

    container_tasks: ClassVar[bool] = True

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
        await eventually(lambda: logged(cluster, "a"))  # the node may be clearing up
        for beyond in (1 << 44, (1 << 63) - 1):  # ext4 refuses to seek there
            assert await cluster.logs("a", "stdout", beyond, 100) == (b"", False)
        said = await cluster.logs("a", "stdout", 0, 100)
        assert len(said[0].splitlines()) == 1
        sizes = [await cluster.log_size(name, "stdout", again.node) for name in ("a", "nobody")]
        assert sizes == [len(said[0]), 0]

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

    async def test_a_pod_that_ends_well_within_its_grace_has_done_its_work(self, world: World) -> None:
        """Its end is its own, and its outputs are published."""
        cluster, ear, _ = await world.open()
        await cluster.launch([program("a", "trap '' TERM; say up; sleep 2; write bam 12")])
        await ear.started("a")
        await eventually(lambda: said(cluster, "a"))
        await cluster.release(["a"], 30_000)
        end = await ear.ended("a")
        assert (end.exit_code, end.reason) == (0, "")
        assert [(output.name, output.size_bytes) for output in end.outputs] == [("bam", 12)]

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
        """An end that came while no service ran is reported (row 9)."""
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
        await cluster.transfer([Transfer(world.outside, len(OUTSIDE), "node-0")])
        await ear.transferred(1)
        await cluster.transfer([Transfer(world.outside, len(OUTSIDE), "node-1", "node-0")])
        await ear.transferred(2)
        await cluster.transfer([Transfer(world.outside, len(OUTSIDE), "node-1")])
        done = await ear.transferred(3)
        assert [
            (d.dest, d.source, d.moved_bytes, d.size_bytes) for d in done if isinstance(d, TransferDone)
        ] == [
            ("node-0", None, 7, 7),
            ("node-1", "node-0", 7, 7),
            ("node-1", None, 0, 7),
        ]

    async def test_datasets_outside_are_identified_or_it_says_why_not(self, world: World) -> None:
        """The same bytes have the same version each time. Of a dataset that cannot be identified, the executor says why; one that
        never looks says so of all.
        """
        cluster, _, _ = await world.open()
        found = await cluster.fingerprints([world.outside, world.nothing], by_content=False)
        assert found.keys() == {world.outside, world.nothing}
        assert isinstance(found[world.nothing], str)
        assert found[world.nothing]
        again = await cluster.fingerprints([world.outside], by_content=False)
        assert again == {world.outside: found[world.outside]}
        if isinstance(cluster, Executor) and type(cluster).fingerprints is not Executor.fingerprints:
            assert isinstance(found[world.outside], Fingerprint), found[world.outside]

    async def test_one_dataset_ordered_twice_moves_once(self, world: World) -> None:
        """The second order waits for the first."""
        cluster, ear, _ = await world.open()
        await cluster.transfer([Transfer(world.outside, len(OUTSIDE), "node-0")] * 3)
        done = await ear.transferred(3)
        assert sorted(d.moved_bytes for d in done if isinstance(d, TransferDone)) == [0, 0, 7]

    async def test_a_source_that_has_lost_the_bytes(self, world: World) -> None:
        """Lost: the catalogue was wrong, another source may do."""
        cluster, ear, _ = await world.open()
        await cluster.transfer([Transfer(world.outside, len(OUTSIDE), "node-0", "node-1")])
        (failed,) = await ear.transferred()
        assert isinstance(failed, TransferFailed)
        assert (failed.lost, failed.permanent, failed.source) == (True, False, "node-1")

    async def test_a_node_that_cannot_receive(self, world: World) -> None:
        """A transfer to a node that does not exist fails for good."""
        cluster, ear, _ = await world.open()
        await cluster.transfer([Transfer(world.outside, len(OUTSIDE), "node-9")])
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
        await cluster.transfer([Transfer(world.outside, len(OUTSIDE), "node-0")])
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

    async def test_a_pod_that_was_sent_ahead_starts_when_enough_of_its_pipeline_have_ended(
        self, world: World
    ) -> None:
        """Where the executor keeps such pods: not before, and at once where that has happened meanwhile."""
        cluster, ear, _ = await world.open()
        if not cluster.pipelines:
            pytest.skip("this executor starts pods at once")
        await cluster.launch([program("a", "sleep 0.3; exit 3", pipeline="1-0")])
        await cluster.launch([program("b", "exit 0", pipeline="1-0", after=1)])
        assert (await ear.ended("b")).exit_code == 0
        assert [type(event) for event in ear.of("a")] == [PodStarted, PodEnded]
        begun = next(event.at_ms for event in ear.of("b") if isinstance(event, PodStarted))
        assert begun >= next(event.at_ms for event in ear.of("a") if isinstance(event, PodEnded))
        await cluster.launch([program("c", "exit 0", pipeline="1-0", after=2)])
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
        await eventually(lambda: cluster.evict("flowsched:a/bam", "node-0"))  # the node may be clearing up
        gone = ReplicaSeen("flowsched:a/bam", "node-0", 12, present=False)
        await ear.until(lambda: gone in ear.heard)

    async def test_a_container_task_reports_its_steps(self, world: World) -> None:
        """Each step that ran, in order, with its exit code and its times; nothing was to be delivered."""
        self._needs_container_tasks()
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
        self._needs_container_tasks()
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "exit 3", "true")])
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason) == (3, "")
        assert [step.exit_code for step in end.container.steps] == [3]

    async def test_a_container_task_that_takes_too_long(self, world: World) -> None:
        """The time of all its steps counts; the one that ran says how it was ended. (A step may take a second to begin.)"""
        self._needs_container_tasks()
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "sleep 60", timeout_ms=12_000)])
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason) == (143, "Timeout")
        assert [step.exit_code for step in end.container.steps] == [143]

    async def test_a_container_task_is_released(self, world: World) -> None:
        """Like any other, and no further step begins."""
        self._needs_container_tasks()
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "sleep 60", "true")])
        await ear.started("a")
        await cluster.release(["a"], 2000)
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason, len(end.container.steps)) == (143, "Released", 1)

    async def test_the_report_of_a_container_task_outlives_the_service(self, world: World) -> None:
        """A service that adopts it is told the same."""
        self._needs_container_tasks()
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

    async def test_container_tasks_are_refused_where_they_cannot_run(self, world: World) -> None:
        """The task ends at once and says why; it does not run without its container."""
        if self.container_tasks:
            pytest.skip("this executor runs container tasks")
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "true")])
        end = await ear.ended("a")
        assert (end.exit_code != 0, end.reason, end.container) == (True, "StartFailed", None)
        assert "container" in end.message

    async def test_events_end_with_the_service(self, world: World) -> None:
        """The iterator of events ends after stop()."""
        cluster, ear, _ = await world.open()
        await cluster.stop()
        await ear.last()

    async def test_the_logs_of_an_unknown_pod(self, world: World) -> None:
        """Nothing, and nothing more to come."""
        cluster, _, _ = await world.open()
        assert await cluster.logs("nobody", "stdout", 0, 100) == (b"", False)

    def _needs_container_tasks(self) -> None:
        if not self.container_tasks:
            pytest.skip("this executor refuses container tasks")
