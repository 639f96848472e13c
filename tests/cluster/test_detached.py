"""What detaches itself from everything that a runner leaves behind, and the runner is killed -9 (P2, P5)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowsched.cluster.local import attempt_states, attempts
from flowsched.cluster.local import attempts as kin
from flowsched.cluster.local.runner import cgroups
from flowsched.cluster.local.runner.cgroups import Base, find_base
from flowsched.cluster.local.runner.kin import start_time
from flowsched.cluster.local.runners import is_running
from flowsched.executor.protocol import Pod
from flowsched.workflow.spec import Delivered, Step
from tests.cluster import lives as journaled
from tests.cluster.conftest import RealWorld
from tests.cluster.test_crashes import faulty, open_with, until
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


@pytest.fixture(params=["control groups", "lineage"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the service finds processes by."""
    if request.param == "lineage":
        monkeypatch.setattr(attempt_states, "find_base", lambda: Base("", "", ["not in this test"]))
    elif not find_base().folder:
        pytest.skip(f"no control groups here: {find_base().why_not}")
    return str(request.param)


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
    real_world: RealWorld, tmp_path: Path, by: str, form: str
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
    real_world: RealWorld, tmp_path: Path, by: str, form: str
) -> None:
    """It ends with its runner; the next service tells so."""
    cluster, ear, _ = await real_world.open()
    what = detaching("a", tmp_path / "pid", form)
    await cluster.launch([what])
    await ear.started("a")
    child = await child_of(tmp_path / "pid")
    with killed_at_the_end(child):
        await real_world.drop()
        os.kill(journaled.runner_of(real_world.attempt("a")) or 0, signal.SIGKILL)
        await until(lambda: not lives(child))
        cluster, ear, _ = await real_world.open()
        await cluster.adopt([what])
        assert (await ear.gone("a")).started


async def test_a_cancel_reaches_a_detached_child_of_a_dead_runner(
    real_world: RealWorld, tmp_path: Path, by: str
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


async def test_a_program_that_forks_all_the_time_is_killed(
    real_world: RealWorld, tmp_path: Path, by: str
) -> None:
    """Each of its processes has ended before the service could look at it."""
    cluster, ear, _ = await real_world.open()
    await cluster.launch([detaching("a", tmp_path / "pid", "plain", RUNS_AWAY)])
    await child_of(tmp_path / "pid")
    group = journaled.life_of(real_world.attempt("a")).cgroup
    os.kill(journaled.runner_of(real_world.attempt("a")) or 0, signal.SIGKILL)
    assert (await ear.gone("a")).started
    assert not group or cgroups.members(group) == []


async def test_the_control_group_of_an_attempt_goes_with_it(real_world: RealWorld) -> None:
    """Also of one whose runner was killed, and of one whose folder was removed while no service ran (P5)."""
    base = find_base()
    if not base.folder:
        pytest.skip(f"no control groups here: {base.why_not}")
    root = kin.mark_of(real_world.root.resolve())
    cluster, ear, _ = await real_world.open()
    await cluster.launch([pod("ends"), pod("killed", "sleep", "600"), pod("removed", "sleep", "600")])
    await ear.ended("ends")
    for name in ("killed", "removed"):
        await ear.started(name)
    assert sorted(base.groups(root)) == ["killed", "removed"]
    os.kill(journaled.runner_of(real_world.attempt("killed")) or 0, signal.SIGKILL)
    await ear.gone("killed")
    await real_world.drop()
    attempts.remove_tree(real_world.attempt("removed"))
    await real_world.open()
    await until(lambda: base.groups(root) == {}, "the last group to go")


async def test_a_runner_killed_before_its_task_is_known_leaves_no_control_group(
    real_world: RealWorld,
) -> None:
    """The group is made before `started` names it: it goes with the attempt, not with a later clean-up."""
    base = find_base()
    if not base.folder:
        pytest.skip(f"no control groups here: {base.why_not}")
    cluster, ear = await open_with(real_world, faulty("before_started", "kill"))
    await cluster.launch([pod("a", "sleep", "600")])
    gone = await ear.gone("a")
    assert (gone.reason, gone.started) == ("NotStarted", False)
    assert base.groups(kin.mark_of(real_world.root.resolve())) == {}


async def test_a_stopped_runner_killed_before_its_task_is_known_leaves_no_control_group(
    real_world: RealWorld,
) -> None:
    """The same by a release."""
    base = find_base()
    if not base.folder:
        pytest.skip(f"no control groups here: {base.why_not}")
    cluster, ear = await open_with(real_world, faulty("before_started", "wait"))
    await cluster.launch([pod("a", "sleep", "600")])
    folder = real_world.attempt("a")
    await until((folder / "waiting").exists, "the runner")
    (runner,) = journaled.living_runners(real_world.root)
    os.kill(runner, signal.SIGSTOP)
    await cluster.release(["a"], 0)
    assert (await ear.gone("a")).started is False
    assert base.groups(kin.mark_of(real_world.root.resolve())) == {}


def test_the_next_service_sweeps_the_trial_of_a_killed_one() -> None:
    """A service that is killed while it tries control groups leaves one, which empties itself."""
    base = find_base()
    if not base.folder:
        pytest.skip(f"no control groups here: {base.why_not}")
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(cgroups.__file__).parents[3])!r})
from flowsched.cluster.local.runner import cgroups
cgroups.kill = lambda path: (print(path, flush=True), os.kill(os.getpid(), 9))  # in the middle of the trial
cgroups.trial({base.folder!r})
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    path = killed.stdout.strip()
    assert killed.returncode == -signal.SIGKILL
    assert os.path.isdir(path)
    end = time.monotonic() + 30  # less than the minute after which any trial is swept
    while os.path.isdir(path):
        base.sweep()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_trial_of_a_live_service_is_swept_long_before_the_group_of_an_attempt() -> None:
    """Nothing of it is of use after a minute."""
    base = find_base()
    if not base.folder:
        pytest.skip(f"no control groups here: {base.why_not}")
    paths = [
        f"{base.folder}/{cgroups.PREFIX}{name}-{os.getpid()}-1" for name in ("trial", "trial-new", "other")
    ]
    try:
        for path in paths:
            assert cgroups.make(path) == ""
        for path in (paths[0], paths[2]):
            os.utime(path, (time.time() - 120, time.time() - 120))
        base.sweep()
        assert [os.path.isdir(path) for path in paths] == [False, True, True]
    finally:
        for path in paths:
            cgroups.remove(path)


async def test_two_services_do_not_meet(real_world: RealWorld, tmp_path: Path) -> None:
    """An attempt of the same name under another root has a group of its own."""
    (tmp_path / "other").mkdir()
    other = RealWorld(tmp_path / "other")
    cluster, ear, _ = await real_world.open()
    theirs, heard, _ = await other.open()
    await cluster.launch([pod("a", "sleep", "600")])
    await theirs.launch([pod("a", "sleep", "600")])
    await ear.started("a")
    await heard.started("a")
    groups = {journaled.life_of(world.attempt("a")).cgroup for world in (real_world, other)}
    assert len(groups) == 2 or groups == {""}
    await cluster.release(["a"], 0)
    await ear.final("a")
    await theirs.orphans()  # looks for what others have left
    assert journaled.runner_of(other.attempt("a")) is not None
    await other.end()


def test_a_group_of_version_1_is_killed_while_it_is_frozen(tmp_path: Path) -> None:
    """Where there is no `cgroup.kill`; nothing of it stays frozen."""
    freezer = next((folder for kind, folder in cgroups.own_groups() if kind.endswith("freezer")), None)
    if freezer is None or cgroups.trial(freezer):
        pytest.skip("no freezer of version 1 here that may be written to")
    path = f"{freezer}/{cgroups.PREFIX}test-{os.getpid()}"
    assert cgroups.make(path) == ""
    program = f"import os; open({path + '/cgroup.procs'!r}, 'w').write('0')\n{RUNS_AWAY}"
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        child.wait(60)  # it has forked
        assert not cgroups.is_empty(path)
        end = time.monotonic() + 60
        while not cgroups.is_empty(path):
            cgroups.kill(path)
            assert time.monotonic() < end
            time.sleep(0.002)
    finally:
        cgroups.kill(path)
        assert cgroups.remove(path)


def test_a_folder_of_control_groups_that_cannot_be_written_to() -> None:
    """Its name and the system's words say why."""
    assert cgroups.trial("/nowhere") == "/nowhere: No such file or directory"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_without_a_delegated_group_has_none() -> None:
    """Each hierarchy is named with the system's words: nothing is made, and no attempt fails for it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            base = find_base()
            os.write(write, "\n".join([base.folder, *base.why_not]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        folder, *why_not = answer.read().split("\n")
    os.waitpid(child, 0)
    assert folder == ""
    assert all("Permission denied" in why or "Read-only" in why or "mounted" in why for why in why_not)
    assert why_not
