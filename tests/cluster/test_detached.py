"""What detaches itself from everything that a runner leaves behind, and the runner is killed -9 (P2, P5)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from flowsched.cluster.local.runner.kin import is_running, start_time
from flowsched.executor.protocol import Pod
from flowsched.workflow.spec import Delivered, Step
from tests.cluster import lives as journaled
from tests.cluster.conftest import RealWorld
from tests.cluster.test_crashes import until
from tests.executors.executor_contract import contained, pod

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc to find them")

#: Starts a program with no environment, in a session of its own, without open files; then the task goes on.
DETACH = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[1]], start_new_session=True, env={}, close_fds=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
open(sys.argv[2] + ".tmp", "w").write(str(child.pid))
import os
os.rename(sys.argv[2] + ".tmp", sys.argv[2])
time.sleep(600)
"""
SLEEPS = "import time; time.sleep(600)"
#: Forks and ends, again and again: each of its processes lives for a moment.
RUNS_AWAY = """
import os, time
while True:
    if os.fork():
        os._exit(0)
    time.sleep(0.001)
"""


def detaching(name: str, pid_file: Path, form: str, program: str = SLEEPS) -> Pod:
    command = (sys.executable, "-c", DETACH, program, str(pid_file))
    if form == "plain":
        return pod(name, *command)
    outputs = (
        Delivered("/o/x", f"{pid_file}.delivered"),
    )  # a path of its own: the steps have private mounts
    return contained(name, steps=(Step(command),), outputs=outputs)


def lives(pid: int) -> bool:
    return start_time(pid) != 0 and is_running(pid, start_time(pid))


async def child_of(pid_file: Path) -> int:
    await until(pid_file.exists, "the detached child")
    return int(pid_file.read_text())


@contextlib.contextmanager
def killed_at_the_end(pid: int):  # type: ignore[no-untyped-def]
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("form", ["plain", "container"])
async def test_a_detached_child_dies_when_its_runner_was_killed(
    real_world: RealWorld, tmp_path: Path, form: str
) -> None:
    """It is dead when the attempt is said to be gone, so that no next attempt runs beside it."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([detaching("a", tmp_path / "pid", form)])
    child = await child_of(tmp_path / "pid")
    with killed_at_the_end(child):
        os.kill(journaled.runner_of(real_world.attempt("a")) or 0, signal.SIGKILL)
        gone = await ear.gone("a")
        assert (gone.reason, gone.started, lives(child)) == ("RunnerLost", True, False)


@pytest.mark.parametrize("form", ["plain", "container"])
async def test_a_detached_child_dies_when_its_runner_was_killed_while_the_service_was_down(
    real_world: RealWorld, tmp_path: Path, form: str
) -> None:
    """It ends with its runner; the next service tells so, and the one after it the same."""
    cluster, ear, _ = await real_world.open()
    what = detaching("a", tmp_path / "pid", form)
    await cluster.launch([what])
    await ear.started("a")
    child = await child_of(tmp_path / "pid")
    with killed_at_the_end(child):
        await real_world.drop()
        os.kill(journaled.runner_of(real_world.attempt("a")) or 0, signal.SIGKILL)
        await until(lambda: not lives(child))
        told = []
        for _ in range(2):
            cluster, ear, _ = await real_world.open()
            await cluster.adopt([what])
            told.append(await ear.gone("a"))
            await real_world.drop()
        assert told[0] == told[1]
        assert (told[0].reason, told[0].started) == ("RunnerLost", True)


async def test_a_cancel_reaches_a_detached_child_of_a_dead_runner(
    real_world: RealWorld, tmp_path: Path
) -> None:
    """Released after the runner's death: the child is gone with the attempt (P8)."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([detaching("a", tmp_path / "pid", "plain")])
    child = await child_of(tmp_path / "pid")
    with killed_at_the_end(child):
        os.kill(journaled.runner_of(real_world.attempt("a")) or 0, signal.SIGKILL)
        await cluster.release(["a"], 0)
        await ear.gone("a")
        assert not lives(child)


async def test_a_program_that_forks_all_the_time_is_killed(real_world: RealWorld, tmp_path: Path) -> None:
    """Each of its processes has ended before the service could look at it."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([detaching("a", tmp_path / "pid", "plain", RUNS_AWAY)])
    await child_of(tmp_path / "pid")
    os.kill(journaled.runner_of(real_world.attempt("a")) or 0, signal.SIGKILL)
    assert (await ear.gone("a")).started


async def test_two_services_do_not_meet(real_world: RealWorld, tmp_path: Path) -> None:
    """A release, and what looks for what others have left, do not end an attempt of the same name under another root."""
    (tmp_path / "other").mkdir()
    other = RealWorld(tmp_path / "other")
    cluster, ear, _ = await real_world.open()
    theirs, heard, _ = await other.open()
    await cluster.launch([pod("a", "sleep", "600")])
    await theirs.launch([pod("a", "sleep", "600")])
    await ear.started("a")
    await heard.started("a")
    await cluster.release(["a"], 0)
    await ear.final("a")
    await theirs.orphans()  # looks for what others have left
    assert journaled.runner_of(other.attempt("a")) is not None
    await other.end()
