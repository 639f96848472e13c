"""What runs around a step that has files of its own: by every shell that is here, since images bring theirs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.pods.container_task import command_of, kubelet_expand
from flowsched.workflow.spec import Step

SHELLS = [[name] for name in ("dash", "bash", "ksh") if shutil.which(name)] + (
    [["busybox", "sh"]] if shutil.which("busybox") else []
)


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = request.param
    return found


def started(
    shell: list[str],
    step: Step,
    tmp_path: Path,
    *,
    watch: bool,
    before: Sequence[Step] = (),
    around: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """A step's container as a process."""
    _, *rest = [kubelet_expand(part, {}) for part in command_of(step, watch=watch, before=before)]
    env = {
        "PATH": os.environ["PATH"],
        "FLOWSCHED_STEP": str(tmp_path / "0"),
        "FLOWSCHED_TERMINATION_LOG": str(tmp_path / "message"),
    }
    return subprocess.Popen(
        [*around, *shell, *rest], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )


@pytest.fixture
def container() -> Sequence[str]:
    """What makes a program the first process of a namespace of its own, as a container runtime does."""
    around = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        around[1:1] = ["--user", "--map-root-user"]
    if subprocess.run([*around, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system permits no namespace of processes")
    return around


def note(tmp_path: Path, name: str) -> str:
    return (tmp_path / f"0.{name}").read_text().strip()


def test_files_are_connected(shell: list[str], tmp_path: Path) -> None:
    """Its input comes from a file, what it prints is added to what earlier steps wrote, and shown; the exit code is its own."""
    (tmp_path / "in").write_text("given")
    (tmp_path / "out").write_text("before ")
    files = {
        name: str(tmp_path / path) for name, path in (("stdin", "in"), ("stdout", "out"), ("stderr", "err"))
    }
    step = Step(("sh", "-c", 'cat; echo " $1"; echo oops >&2; exit 4', "-", "$HOME"), **files)
    earlier = [Step(("true",), stdout=str(tmp_path / "out"))]
    process = started(shell, step, tmp_path, watch=False, before=earlier)
    assert (process.communicate(timeout=120), process.returncode) == ((b"given $HOME\n", None), 4)
    assert (tmp_path / "out").read_text() == "before given $HOME\n"
    assert (tmp_path / "err").read_text() == "oops\n"
    assert (note(tmp_path, "begun"), note(tmp_path, "code")) == ("", "4")


def test_the_first_step_that_names_a_file_empties_it(shell: list[str], tmp_path: Path) -> None:
    """What another attempt wrote there is not this one's; nothing is shown of it. A device stays as it is."""
    (tmp_path / "out").write_text("of an attempt before\n")
    step = Step(("sh", "-c", "echo out; echo err >&2"), stdout=f"{tmp_path}/out", stderr=f"{tmp_path}/out")
    process = started(shell, step, tmp_path, watch=False, before=[Step(("true",), stdout="/elsewhere")])
    assert (process.communicate(timeout=120), process.returncode) == ((b"out\nerr\n", None), 0)
    assert (tmp_path / "out").read_text() == "out\nerr\n"
    assert started(shell, Step(("echo", "x"), stdout="/dev/null"), tmp_path, watch=False).wait(120) == 0


def test_a_tee_that_the_program_does_not_wait_for_finishes(
    shell: list[str], tmp_path: Path, container: Sequence[str]
) -> None:
    """It begins to read when the program has ended, and the first process of the container ends after it."""
    script = f"mkfifo {tmp_path}/p; (sleep 1; tee {tmp_path}/copy) < {tmp_path}/p & echo line > {tmp_path}/p; exit 5"
    step = Step(("sh", "-c", script), stdout=f"{tmp_path}/out")
    assert started(shell, step, tmp_path, watch=True, around=container).wait(120) == 5
    assert (tmp_path / "copy").read_text() == "line\n"
    assert (tmp_path / "out").read_text() == "line\n"


def test_a_daemon_that_the_program_leaves_is_not_waited_for(
    shell: list[str], tmp_path: Path, container: Sequence[str]
) -> None:
    """The container ends with its program, also where the daemon has both ends of a pipe open."""
    talks = "import os, time; os.pipe(); time.sleep(600)"
    step = Step(("sh", "-c", f"{sys.executable} -c '{talks}' & exit 6"), stdout=f"{tmp_path}/out")
    began = time.monotonic()
    assert started(shell, step, tmp_path, watch=True, around=container).wait(120) == 6
    assert time.monotonic() - began < 50


def test_of_a_long_file_the_end_is_shown(shell: list[str], tmp_path: Path) -> None:
    """Ten KiB: a file may be what a task is there to make, and a log is for people."""
    step = Step(("sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; echo end"), stdout=str(tmp_path / "out"))
    shown, _ = started(shell, step, tmp_path, watch=False).communicate(timeout=120)
    assert (len(shown), shown[-5:]) == (10_240, b"xend\n")
    assert (tmp_path / "out").stat().st_size == 100_004


def test_an_image_without_wc_and_tail(shell: list[str], tmp_path: Path) -> None:
    """Nothing is shown; all else is as it was. Some builds of busybox's shell have both in themselves."""
    _, *rest = [
        kubelet_expand(part, {})
        for part in command_of(Step(("/bin/echo", "x"), stdout=f"{tmp_path}/out"), watch=False)
    ]
    env = {"PATH": "/nonexistent", "FLOWSCHED_STEP": str(tmp_path / "0")}
    command = [str(shutil.which(shell[0])), *shell[1:], *rest]
    done = subprocess.run(command, env=env, capture_output=True, timeout=120, check=False)
    probe = subprocess.run(
        [*command[: len(shell)], "-c", "wc </dev/null"], env=env, capture_output=True, check=False
    )
    shown = b"x\n" if probe.returncode == 0 else b""
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, b"")
    assert (tmp_path / "out").read_text() == "x\n"


def test_a_failure_that_is_ignored_is_told_all_the_same(shell: list[str], tmp_path: Path) -> None:
    """The container ends well, so that the next one starts; its message says how the step ended."""
    assert started(shell, Step(("false",), ignore_error=True), tmp_path, watch=False).wait(120) == 0
    assert (tmp_path / "message").read_text() == "ignored exit 1\n"
    assert note(tmp_path, "code") == "1"


def test_a_program_is_never_a_word_of_the_shell(shell: list[str], tmp_path: Path) -> None:
    """`exit` is no program: it is looked for and not found, it does not end the script."""
    step = Step(("exit", "0"), stdout=str(tmp_path / "out"), stderr=str(tmp_path / "err"))
    assert started(shell, step, tmp_path, watch=True).wait(120) == 127


def test_a_file_that_cannot_be_opened_is_a_failure(shell: list[str], tmp_path: Path) -> None:
    """The program does not run; no exit code of its own is noted."""
    step = Step(("touch", str(tmp_path / "ran")), stdin=str(tmp_path / "missing"))
    assert started(shell, step, tmp_path, watch=True).wait(120) != 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.begun"]


def test_the_order_to_end_reaches_the_program(shell: list[str], tmp_path: Path) -> None:
    """The first process of a container gets it; it is noted, passed on, and the program's own answer is the exit code."""
    script = "trap 'echo bye >> said; exit 9' TERM; echo ready > said; while :; do sleep 0.05; done"
    process = started(shell, Step(("sh", "-c", script)), tmp_path, watch=True)
    end = time.monotonic() + 120
    while not (tmp_path / "said").is_file() or not (tmp_path / "said").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 9
    assert (tmp_path / "said").read_text() == "ready\nbye\n"
    assert (note(tmp_path, "term"), note(tmp_path, "code")) == ("", "9")
