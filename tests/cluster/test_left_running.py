"""What a task leaves running when its own process ends: readers of its output finish, the rest is ended (P5)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from flowsched.cluster.local.runner.finishing import Finishing, Process, draining
from flowsched.executor.protocol import OutputFile, PodEnded
from flowsched.workflow.spec import Delivered, Step
from tests.cluster.conftest import RealWorld
from tests.executors.executor_contract import contained, pod, shell

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs /proc to see what is left"
)

#: The form of Cromwell's own job script (StandardAsyncExecutionActor): it starts `tee` and does not wait for it.
CROMWELL_SCRIPT = """
cd '{cwd}'
out='{cwd}/out.'$$ err='{cwd}/err.'$$
mkfifo "$out" "$err"
trap 'rm "$out" "$err"' EXIT
touch '{cwd}/stdout' '{cwd}/stderr'
{tee} '{cwd}/stdout' < "$out" &
{tee} '{cwd}/stderr' < "$err" >&2 &
(
i=0; while [ $i -lt {lines} ]; do echo "line $i"; i=$((i+1)); done; echo oops >&2
) > "$out" 2> "$err"
echo $? > rc.tmp
mv rc.tmp rc
"""
#: A reader that the machine gives no CPU until long after the script has ended; and one that has the lowest priority.
LATE_TEE = 'late() {{ sleep 1; tee "$1"; }}; late'
IDLE_TEE = "chrt -i 0 nice -n 19 tee"


def cromwell(cwd: Path, lines: int, tee: str) -> str:
    cwd.mkdir(parents=True, exist_ok=True)
    prefix, _, command = tee.rpartition("; ")
    script = CROMWELL_SCRIPT.format(cwd=cwd, lines=lines, tee=command)
    return f"{prefix.replace('{{', '{').replace('}}', '}')}\n{script}"


def numbered(lines: int) -> str:
    return "".join(f"line {number}\n" for number in range(lines))


async def run(world: RealWorld, *pods: object) -> list[PodEnded]:
    cluster, ear, _ = await world.open()
    await cluster.launch(list(pods))  # type: ignore[arg-type]
    ends = [await ear.ended(pod.name) for pod in pods]  # type: ignore[attr-defined]
    await world.drop()
    return ends


def in_container(name: str, cwd: Path, script: str, index: int = 0) -> object:
    """As Cromwell's TES backend asks for it: its streams go to the files that its script tees into."""
    outputs = tuple(Delivered(f"{cwd}/{file}", f"{cwd}/{file}") for file in ("rc", "stdout", "stderr"))
    step = Step(("/bin/bash", "-c", script), stdout=f"{cwd}/stdout", stderr=f"{cwd}/stderr")
    return contained(name, steps=(step,), outputs=outputs, index=index)


@pytest.mark.parametrize("form", ["container", "plain"])
async def test_a_tee_that_the_script_does_not_wait_for_finishes(
    real_world: RealWorld, tmp_path: Path, form: str
) -> None:
    """It begins to read a second after the script has ended; all lines are in the file when the end is told."""
    cwd = tmp_path / "call/execution"
    script = cromwell(cwd, 100, LATE_TEE)
    pod = in_container("a", cwd, script) if form == "container" else shell("a", script)
    (end,) = await run(real_world, pod)
    assert (end.exit_code, end.reason) == (0, "")
    assert (cwd / "stdout").read_text() == numbered(100)
    assert (cwd / "stderr").read_text() == "oops\n"
    assert (real_world.attempt("a") / "stdout").read_text() == numbered(100)


@pytest.mark.parametrize("form", ["container", "plain"])
async def test_twenty_scripts_at_once_whose_tees_run_last(
    real_world: RealWorld, tmp_path: Path, form: str
) -> None:
    """With SCHED_IDLE, beside processes that take every CPU, the readers have had none when the scripts end."""
    hogs = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
        for _ in range(len(os.sched_getaffinity(0)))
    ]
    try:
        pods = []
        for number in range(20):
            cwd = tmp_path / f"call-{number}/execution"
            script = cromwell(cwd, 1000, IDLE_TEE)
            name = f"a{number}"
            pods.append(
                in_container(name, cwd, script, number)
                if form == "container"
                else shell(name, f"exec bash -c '{script.replace(chr(39), chr(34))}'", index=number)
            )
        ends = await run(real_world, *pods)
    finally:
        for hog in hogs:
            hog.kill()
            await hog.wait()
    assert {(end.exit_code, end.reason) for end in ends} == {(0, "")}
    sizes = [(tmp_path / f"call-{number}/execution/stdout").stat().st_size for number in range(20)]
    assert sizes == [8890] * 20


async def test_a_process_substitution_finishes_before_outputs_are_published(real_world: RealWorld) -> None:
    """Bash waits for none: what `>( … )` still has to write is in the output."""
    script = "exec bash -c 'seq 1000 > >(sleep 0.5; cat > \"$FLOWSCHED_OUTPUT_O\"); exit 0'"
    outputs = (OutputFile("o", "o.txt", "flowsched:a/o"),)
    (end,) = await run(real_world, shell("a", script, outputs=outputs))
    assert (end.exit_code, end.reason) == (0, "")
    assert [output.size_bytes for output in end.outputs] == [3893]


async def test_what_may_still_write_to_the_output_gets_a_moment(real_world: RealWorld) -> None:
    """A line that a background process writes half a second late is in the log."""
    (end,) = await run(real_world, shell("a", "(sleep 0.5; echo late) & echo early"))
    assert end.exit_code == 0
    assert (real_world.attempt("a") / "stdout").read_text() == "early\nlate\n"


async def test_a_daemon_is_ended_at_once(real_world: RealWorld, tmp_path: Path) -> None:
    """It has no pipe of the task open: no line of its own is written a second later."""
    mark = tmp_path / "mark"
    script = f"setsid sh -c 'sleep 1; echo late > {mark}' > /dev/null 2>&1 < /dev/null & sleep 0.2; exit 3"
    (end,) = await run(real_world, shell("a", script))
    assert end.exit_code == 3
    await asyncio.sleep(1.2)
    assert not mark.exists()


async def test_a_server_that_holds_the_output_is_ended_after_a_grace(real_world: RealWorld) -> None:
    """The task does not wait for it until its timeout."""
    began = time.monotonic()
    (end,) = await run(real_world, shell("a", "sleep 600 & echo done"))
    assert (end.exit_code, end.reason) == (0, "")
    assert time.monotonic() - began < 60


async def test_a_timeout_holds_while_a_reader_finishes(real_world: RealWorld) -> None:
    """The reader is a part of the task."""
    script = "exec bash -c 'echo x > >(while :; do :; done); exit 0'"
    (end,) = await run(real_world, shell("a", script, timeout_ms=1500))
    assert end.reason == "Timeout"


async def test_a_release_holds_while_a_reader_finishes(real_world: RealWorld) -> None:
    """A cancelled task does not wait for it."""
    cluster, ear, _ = await real_world.open()
    script = "exec bash -c 'echo x > >(echo reading; while :; do :; done); exit 0'"
    await cluster.launch([shell("a", script)])
    await ear.started("a")
    log = real_world.attempt("a") / "stdout"
    while "reading" not in log.read_text():
        await asyncio.sleep(0.02)
    await cluster.release(["a"], 0)
    assert (await ear.ended("a")).reason == "Released"


async def test_the_daemon_of_one_task_does_not_end_with_another(real_world: RealWorld) -> None:
    """Both tasks have one runner, which has become the parent of both daemons. Each goes with its own task."""
    cluster, ear, _ = await real_world.open()
    daemon = 'setsid sh -c "exec sleep {}" > /dev/null 2>&1 < /dev/null & sleep 0.2'
    lasting = shell(
        "a", f"({daemon.format('601.5')}); until [ -e go ]; do sleep 0.05; done; pgrep -f '^sleep 601[.]5'"
    )
    await cluster.launch([lasting])
    await ear.started("a")
    await cluster.launch([shell("b", f"({daemon.format('602.5')}); echo ended", index=1)])
    assert (await ear.ended("b")).exit_code == 0
    (real_world.attempt("a") / "work/go").touch()
    assert (await ear.ended("a")).exit_code == 0
    assert len((real_world.attempt("a") / "stdout").read_text().split()) == 1
    assert [name for name in commands() if name.startswith(("sleep 601.5", "sleep 602.5"))] == []


async def test_what_one_task_uses_is_not_told_of_another(real_world: RealWorld) -> None:
    """Beside each other under one runner: one is over its limit of memory, the other sleeps."""
    cluster, ear, _ = await real_world.open()
    works = "import time; x = bytearray(200 << 20); time.sleep(60)"
    await cluster.launch(
        [
            pod("a", "python", "-c", works, memory_bytes=100 << 20),
            shell("b", "(setsid sleep 2 &); sleep 2", memory_bytes=100 << 20, index=1),
        ]
    )
    ends = [await ear.ended(name) for name in ("a", "b")]
    assert [(end.exit_code, end.reason) for end in ends] == [(137, "OOMKilled"), (0, "")]
    assert ends[0].usage.max_rss_bytes > 100 << 20
    assert ends[1].usage.max_rss_bytes < 100 << 20


def commands() -> list[str]:
    """The command lines of all processes."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found.append(
                Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
    return found


PIPE, OTHER, STDOUT = (1, 1), (1, 2), (1, 3)


def process(pid: int, state: str = "S", cpu: int = 0, reads: object = (), writes: object = ()) -> Process:
    return Process(pid, state, cpu, set(reads), set(writes))  # type: ignore[call-overload]


def test_which_processes_drain() -> None:
    """A chain behind a pipe without writers; not a process that talks to itself, nor the reader of one that goes on."""
    tee = process(1, reads=[PIPE], writes=[OTHER])
    gzip = process(2, reads=[OTHER])
    loop = process(3, reads=[(1, 9)], writes=[(1, 9)])
    server = process(4, writes=[(1, 8)])
    logger = process(5, reads=[(1, 8)])
    assert [each.pid for each in draining([gzip, tee, loop, server, logger])] == [1, 2]


def test_a_process_that_waits_for_a_cpu_is_waited_for() -> None:
    """It may be about to open the pipe that it shall read: seconds without a CPU are not counted."""
    finishing = Finishing({STDOUT})
    waits = process(1, "R", cpu=5, writes=[STDOUT])
    assert all(finishing.goes_on([waits], float(second)) for second in range(100))
    asleep = process(1, "S", cpu=6, writes=[STDOUT])
    assert [finishing.goes_on([asleep], 100.0 + second) for second in range(3)] == [True, False, False]


def test_a_reader_that_never_ends_is_ended() -> None:
    """After half a minute without a CPU or bytes, or ten minutes of work; it is named then."""
    idle = Finishing(set())
    reader = process(7, reads=[PIPE])
    assert [idle.goes_on([reader], at) for at in (0.0, 29.0, 29.9, 30.1)] == [True, True, True, False]
    assert idle.cut_short == [7]
    busy = Finishing(set())
    at_work = [process(7, cpu=second, reads=[PIPE]) for second in range(602)]
    assert all(busy.goes_on([each], float(each.cpu)) for each in at_work[:600])
    assert not busy.goes_on([at_work[601]], 601.0)
