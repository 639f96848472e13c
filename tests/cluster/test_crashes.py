"""Deaths of the service, of runners and of tasks, in every window of an attempt's life (P2, P3, P5; rows 1, 2, 9, 10)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import flowsched.cluster
from flowsched.cluster.local import attempt_states, watch
from flowsched.cluster.local.executor import LocalCluster
from flowsched.cluster.local.runners import COMMAND
from flowsched.errors import ConfigurationError
from flowsched.executor.protocol import OutputFile, PodEnded, PodGone, PodStarted
from tests.cluster import lives
from tests.cluster.conftest import RealWorld
from tests.executors.executor_contract import Observer, pod, shell


def faulty(where: str, what: str) -> Sequence[str]:
    script = Path(__file__).with_name("faulty_runner.py")
    folder = Path(flowsched.cluster.local.executor.__file__).parent
    return (sys.executable, "-I", "-S", str(script), str(folder), where, what)


class Crash(Exception):
    """The service dies here."""


async def open_with(
    world: RealWorld, command: Sequence[str] | None = None, crash_at: str | None = None
) -> tuple[LocalCluster, Observer]:
    """A cluster with other runners, or one whose service dies at a failpoint."""

    def failpoint(name: str) -> None:
        if name == crash_at:
            raise Crash(name)

    cluster = LocalCluster(world.root, world.nodes, failpoint=failpoint, command=command or COMMAND)
    _, ear, _ = await world.open(cluster)
    return cluster, ear


def state_of(pid: int | str) -> str:
    """The letter of a process's state: S sleeps, Z has ended and is not collected."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def until(holds: Callable[[], object], what: str = "it") -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, f"waited for {what} in vain"
        await asyncio.sleep(0.01)


def living(world: RealWorld, name: str = "a") -> list[int]:
    """Processes whose environment names the attempt, but for its runner."""
    mark = b"FLOWSCHED_FOLDER=" + os.fsencode(world.attempt(name))
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and mark in environment(pid)]


def environment(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def counting(world: RealWorld, name: str = "a", then: str = "true") -> object:
    """A pod that adds a line to a file when it starts."""
    return shell(name, f'echo start >> "{world.root}/starts-{name}"; {then}')


def starts(world: RealWorld, name: str = "a") -> int:
    path = world.root / f"starts-{name}"
    return len(path.read_text().splitlines()) if path.exists() else 0


async def test_a_runner_without_what_only_linux_has(real_world: RealWorld) -> None:
    """Ends and exit codes are heard, and the journal is written, where there is no `waitid`, `fdatasync` or `posix_fallocate`."""
    cluster, ear = await open_with(real_world, faulty("without", "waitid,fdatasync,posix_fallocate"))
    await cluster.launch([counting(real_world, name, f"exit {code}") for code, name in enumerate("abc")])
    assert [(await ear.ended(name)).exit_code for name in "abc"] == [0, 1, 2]
    assert [starts(real_world, name) for name in "abc"] == [1, 1, 1]


@pytest.mark.parametrize("window", ["launch.made", "launch.ordered"])
async def test_the_service_dies_before_it_spawns(real_world: RealWorld, window: str) -> None:
    """The attempt is gone, unstarted, and a repeated launch starts nothing (row 1)."""
    cluster, _ = await open_with(real_world, crash_at=window)
    pod = counting(real_world)
    with pytest.raises(Crash):
        await cluster.launch([pod])
    await real_world.drop()
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([pod])
    gone = await ear.gone("a")
    assert (gone.reason, gone.started) == ("NotStarted", False)
    await cluster.launch([pod])
    await asyncio.sleep(0.2)
    assert starts(real_world) == 0
    assert not (real_world.attempt("a") / "order").exists()


async def test_the_service_dies_after_it_spawned(real_world: RealWorld) -> None:
    """The pod is adopted and runs once (row 2)."""
    cluster, _ = await open_with(real_world, crash_at="launch.spawned")
    pod = counting(real_world, then="sleep 0.3")
    with pytest.raises(Crash):
        await cluster.launch([pod])
    await until(lambda: lives.has_started(real_world.attempt("a")))
    await real_world.drop()
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([pod])
    assert (await ear.ended("a")).exit_code == 0
    assert starts(real_world) == 1


async def test_an_attempt_that_no_living_runner_has_is_gone(real_world: RealWorld) -> None:
    """Beside a runner of an earlier service that goes on with another attempt."""
    cluster, ear, _ = await real_world.open()
    other = shell("b", "sleep 60")
    await cluster.launch([other])
    await ear.started("b")
    await real_world.drop()
    cluster, ear = await open_with(real_world, crash_at="launch.ordered")
    pod = counting(real_world)
    with pytest.raises(Crash):
        await cluster.launch([pod])
    await real_world.drop()
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([pod, other])
    gone = await ear.gone("a")
    assert (gone.reason, gone.started) == ("NotStarted", False)
    assert [type(event) for event in ear.of("b")] == [PodStarted]
    assert starts(real_world) == 0


@pytest.mark.parametrize("window", ["before_order", "before_prepare"])
async def test_a_release_before_the_start(real_world: RealWorld, window: str) -> None:
    """The runner that has not read the order yet, or not started the task, never starts it (P8)."""
    cluster, ear = await open_with(real_world, faulty(window, "wait"))
    await cluster.launch([counting(real_world)])
    folder = real_world.attempt("a")
    await until((folder / "waiting").exists)
    await cluster.release(["a"], 60_000)
    assert ear.of("a") == []
    (folder / "go").touch()
    gone = await ear.gone("a")
    assert (gone.reason, gone.started) == ("Released", False)
    assert starts(real_world) == 0


@pytest.mark.parametrize("window", ["before_order", "before_prepare"])
async def test_a_restart_between_order_and_start(real_world: RealWorld, window: str) -> None:
    """Nothing is told while the attempt may begin. It is adopted and waited for, and runs once."""
    cluster, _ = await open_with(real_world, faulty(window, "wait"))
    pod = counting(real_world)
    await cluster.launch([pod])
    folder = real_world.attempt("a")
    await until((folder / "waiting").exists)
    await real_world.drop()
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([pod])
    await asyncio.sleep(1.2)  # longer than two scans
    assert ear.heard == []
    (folder / "go").touch()
    assert (await ear.ended("a")).exit_code == 0
    assert [type(event) for event in ear.of("a")] == [PodStarted, PodEnded]
    assert starts(real_world) == 1


@pytest.mark.parametrize(
    ("window", "started"),
    [("before_order", False), ("before_prepare", False), ("after_started", True)],
)
async def test_a_runner_is_killed(real_world: RealWorld, window: str, started: bool) -> None:
    """The attempt is gone; whether its task may have run is told, and nothing of it lives."""
    cluster, ear = await open_with(real_world, faulty(window, "kill"))
    await cluster.launch([counting(real_world)])
    gone = await ear.gone("a")
    reason = "RunnerLost" if started else "NotStarted"
    assert (gone.reason, gone.started) == (reason, started)
    assert starts(real_world) == 0
    assert living(real_world) == []


@pytest.mark.parametrize("code", [0, 3])
async def test_a_task_that_has_ended_before_its_runner_heard_of_it(real_world: RealWorld, code: int) -> None:
    """The runner is killed before it writes the end. The task has ended as it did, and does not run again."""
    cluster, ear = await open_with(real_world, faulty("before_ended", "kill"))
    await cluster.launch([counting(real_world, then=f"exit {code}")])
    end = await ear.ended("a")
    assert (end.exit_code, end.reason, starts(real_world)) == (code, "", 1)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo made > out", (PodEnded, 0, ["out"])),
        ("exit 3", (PodEnded, 3, [])),
        ("true", (PodGone, "RunnerLost", [])),
        ("echo made > out; kill -9 $$", (PodGone, "RunnerLost", [])),
        ("echo made > out; sleep 60 & true", (PodGone, "RunnerLost", [])),
    ],
    ids=["well", "badly", "without its output", "killed", "not wholly"],
)
async def test_a_task_that_ends_while_no_runner_lives(
    real_world: RealWorld, script: str, told: tuple[type, int | str, list[str]]
) -> None:
    """Its shim is stopped, its runner killed, the task ends, the shim goes on: an end of its own stands, with its results.

    Every adopter hears the same. What was killed, has left something at work, or has not made its results is lost.
    """
    cluster, ear, _ = await real_world.open()
    go = real_world.root / "go"
    pod = structs.replace(
        shell("a", f'touch "{real_world.root}/begun"; while [ ! -e "{go}" ]; do sleep 0.01; done; {script}'),
        outputs=(OutputFile("out", "out", "flowsched:w/a/0/0/out"),) if "exit" not in script else (),
    )
    await cluster.launch([pod])
    await ear.started("a")
    life, runner = lives.found(real_world.attempt("a")) or pytest.fail("no record of it")
    shim = int(life.shim.split()[0])
    await until((real_world.root / "begun").exists, "the task's first instruction")
    await until(lambda: state_of(shim) == "S", "the shim, which waits for the task's end")
    await real_world.drop()
    watcher = runner.pid() or pytest.fail("no runner")
    os.kill(watcher, signal.SIGSTOP)  # each of its checks lets the shim go on
    await until(lambda: state_of(watcher) == "T", "the runner's stop")
    os.kill(shim, signal.SIGSTOP)
    os.kill(watcher, signal.SIGKILL)
    go.touch()
    children = Path(f"/proc/{shim}/task/{shim}/children").read_text().split()
    await until(lambda: state_of(children[0]) == "Z", "the task's end")
    os.kill(shim, signal.SIGCONT)
    for _ in range(2):
        cluster, ear, _ = await real_world.open()
        await cluster.adopt([pod])
        final = await ear.final("a")
        kind, how, names = told
        assert isinstance(final, kind), final
        assert (final.exit_code if isinstance(final, PodEnded) else final.reason) == how
        assert [each.name for each in getattr(final, "outputs", ())] == names
        await real_world.drop()


async def test_what_a_dead_runner_has_left_is_looked_for_once_for_all(
    real_world: RealWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty tasks, and a handful of looks at all processes of the machine: it was a few for each task."""
    looks: list[str] = []
    listdir = os.listdir

    def counted(path: Any = ".") -> Any:
        if str(path) == "/proc":
            looks.append("/proc")
        return listdir(path)

    cluster, ear, _ = await real_world.open()
    names = [f"a{number}" for number in range(40)]
    await cluster.launch([shell(name, "sleep 60") for name in names])
    for name in names:
        await ear.started(name)
    monkeypatch.setattr(os, "listdir", counted)
    os.kill(lives.runner_of(real_world.attempt("a0")) or 0, signal.SIGKILL)
    assert {(await ear.gone(name)).reason for name in names} == {"RunnerLost"}
    assert 1 <= len(looks) <= 10


async def test_a_task_is_killed(real_world: RealWorld) -> None:
    """An ordinary end by signal 9."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([pod("a", "sleep", "60")])
    await ear.started("a")
    await until(lambda: lives.life_of(real_world.attempt("a")).pid)  # type: ignore[union-attr]
    os.kill(lives.life_of(real_world.attempt("a")).pid, signal.SIGKILL)  # type: ignore[union-attr]
    end = await ear.ended("a")
    assert (end.exit_code, end.reason, end.message) == (137, "", "killed by signal 9")


async def test_the_service_dies_before_it_tells_an_end(real_world: RealWorld) -> None:
    """The exit record tells it after the restart (row 9)."""
    cluster, ear = await open_with(real_world, crash_at="look.seen")
    pod = counting(real_world)
    await cluster.launch([pod])
    await until(lambda: lives.has_ended(real_world.attempt("a")))
    assert ear.heard == []
    await real_world.drop()
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([pod])
    assert (await ear.ended("a")).exit_code == 0
    assert starts(real_world) == 1


async def test_a_dead_runner_costs_its_own_attempts_only(real_world: RealWorld) -> None:
    """Those are told as lost. An attempt of an earlier runner goes on, and the next launch starts another runner."""
    cluster, ear, _ = await real_world.open()
    early = shell("early", "sleep 2.5")
    await cluster.launch([early])
    await ear.started("early")
    await real_world.drop()
    cluster, ear, _ = await real_world.open()
    await cluster.adopt([early])
    await cluster.launch([shell("a", "sleep 60"), shell("b", "sleep 60")])
    await ear.started("a")
    await ear.started("b")
    os.kill(lives.runner_of(real_world.attempt("a")) or 0, signal.SIGKILL)
    await cluster.launch([shell("c", "true")])  # its order may still be given to the dead one
    await cluster.launch([shell("d", "true")])
    assert [(await ear.gone(name)).reason for name in ("a", "b")] == ["RunnerLost", "RunnerLost"]
    assert isinstance(await ear.final("c"), PodGone | PodEnded)
    await cluster.launch([shell("e", "true")])
    assert (await ear.ended("e")).exit_code == 0
    assert (await ear.ended("early")).exit_code == 0


async def test_a_stopped_runner_cannot_outlive_a_release(real_world: RealWorld) -> None:
    """A runner that does not do its work is killed some seconds after the grace, with its task (P8)."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([pod("a", "sleep", "60")])
    await ear.started("a")
    os.kill(lives.runner_of(real_world.attempt("a")) or 0, signal.SIGSTOP)
    await cluster.release(["a"], 100)
    gone = await ear.gone("a")
    assert (gone.reason, gone.started) == ("Released", True)
    await until(lambda: living(real_world) == [])


@pytest.mark.parametrize("ended_before", [True, False])
async def test_results_that_take_longer_than_the_grace_end_no_runner(
    real_world: RealWorld, monkeypatch: pytest.MonkeyPatch, ended_before: bool
) -> None:
    """The task has ended well, before it was asked to leave or after: it is done when they are published, and others go on."""
    monkeypatch.setattr(attempt_states, "OVERDUE_S", 0.0)
    monkeypatch.setattr(watch, "SCAN_S", 0.02)
    cluster, ear = await open_with(real_world, faulty("before_published", "wait"))
    await cluster.launch([shell("b", f"until [ -e {real_world.root}/go ]; do sleep 0.1; done", index=1)])
    await ear.started("b")
    output = OutputFile("bam", "bam", "flowsched:a/bam")
    wait = "" if ended_before else "trap '' TERM; echo up; sleep 1; "
    await cluster.launch([shell("a", wait + "echo x > bam", outputs=(output,))])
    folder = real_world.attempt("a")
    if not ended_before:
        await until(lambda: (folder / "stdout").exists() and (folder / "stdout").read_text())
        await cluster.release(["a"], 60_000)
    await until((folder / "waiting").exists)
    await cluster.release(["a"], 0)
    await asyncio.sleep(0.5)
    (folder / "go").touch()
    end = await ear.ended("a")
    assert (end.exit_code, end.reason, len(end.outputs)) == (0, "", 1)
    (real_world.root / "go").touch()
    assert (await ear.ended("b")).reason == ""


async def test_a_removed_folder(real_world: RealWorld) -> None:
    """Somebody removes a live attempt's folder: its processes are killed, and it is gone."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([pod("a", "sleep", "60")])
    await until(lambda: living(real_world), "its process")
    real_world.attempt("a").rename(real_world.root / "elsewhere")
    gone = await ear.gone("a")
    assert gone.reason == "FolderGone"
    await until(lambda: living(real_world) == [])


async def test_one_service_at_a_time(real_world: RealWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one on the same root is refused, and told who is there (row 18)."""
    await real_world.open()
    monkeypatch.setattr("flowsched.cluster.local.executor.ROOT_WAIT_S", 0.1)
    with pytest.raises(ConfigurationError, match=f"process {os.getpid()} runs the local cluster"):
        await LocalCluster(real_world.root, real_world.nodes).start()
