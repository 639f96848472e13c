"""What becomes of a task's processes and files, through the whole service, on both databases (P2, P5)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import lives
from tests.tes.conftest import BOTH
from tests.tes.running import Running, need_container_paths, running

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' processes")

#: As Cromwell's script: streams are teed into the files that are asked of us, by processes that it does not wait for.
SCRIPT = """
out={cwd}/out.$$
mkfifo $out
(sleep 1; tee {cwd}/stdout) < $out &
(i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done) > $out
echo $? > {cwd}/rc
"""
#: Detaches a process that appends its number to a file all the time, and that nothing of the attempt leads to.
DETACHES = """
import subprocess, sys, time
beats = "import os, time\\nwhile True:\\n    print(os.getpid(), file=open({beats!r}, 'a'))\\n    time.sleep(0.02)"
subprocess.Popen([sys.executable, "-c", beats], start_new_session=True, env={{}}, stdin=subprocess.DEVNULL,
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
time.sleep({runs_s})
"""


@pytest.fixture
async def service(url: str, tmp_path: Path) -> AsyncIterator[Running]:
    need_container_paths(tmp_path)
    async with running(tmp_path / "root", database=url) as up:
        yield up


def task(command: list[str], cwd: Path, **changes: Any) -> dict[str, Any]:
    streams = {name: f"{cwd}/{name}" for name in ("stdout", "stderr")}
    outputs = [{"path": f"{cwd}/{name}", "url": f"{cwd}/{name}"} for name in ("rc", "stdout", "stderr")]
    return {"executors": [{"image": "a", "command": command, **streams}], "outputs": outputs, **changes}


@BOTH
async def test_a_call_that_is_sent_again_leaves_its_lines_once(service: Running, tmp_path: Path) -> None:
    """Cromwell was killed before it wrote the id down: the second task runs in the folder of the first."""
    cwd = tmp_path / "call/execution"
    cwd.mkdir(parents=True)
    lines = []
    for number in range(3):
        sent = task(["bash", "-c", SCRIPT.format(cwd=cwd)], cwd, tags={"sent": str(number)})
        ended = await service.until(await service.create(sent))
        assert ended["state"] == "COMPLETE", ended
        lines.append(((cwd / "rc").read_text(), len((cwd / "stdout").read_text().splitlines())))
    assert lines == [("0\n", 1000)] * 3


@BOTH
async def test_a_task_that_runs_again_in_the_same_folder_does_not_double_its_output(
    service: Running, tmp_path: Path
) -> None:
    """Its script waits for all that it has started, so nothing but the file of the run before can add a line."""
    lines = []
    for number in range(2):
        sent = task(["sh", "-c", f"seq 1000; echo 0 > {tmp_path}/rc"], tmp_path, tags={"sent": str(number)})
        assert (await service.until(await service.create(sent)))["state"] == "COMPLETE"
        lines.append(len((tmp_path / "stdout").read_text().splitlines()))
    assert lines == [1000, 1000]


def runner(root: Path) -> int:
    """The runner of the one attempt that lives."""
    pids = [lives.runner_of(folder) for folder in root.glob("nodes/*/attempts/*")]
    return next(pid for pid in pids if pid is not None)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.02)


def beaten(beats: Path) -> list[str]:
    """The numbers of those that have appended to the file, in the order of their first line."""
    return list(dict.fromkeys(beats.read_text().split())) if beats.exists() else []


@BOTH
async def test_no_next_attempt_runs_beside_a_detached_child_of_the_last(
    service: Running, tmp_path: Path
) -> None:
    """Its runner is killed -9; by the time of the next attempt's first line, no line of the last comes any more."""
    beats = tmp_path / "beats"
    program = DETACHES.format(beats=str(beats), runs_s=600)
    ident = await service.create(
        task([sys.executable, "-c", program], tmp_path, resources={"backend_parameters": {"attempts": "2"}})
    )
    await until(lambda: len(beaten(beats)) == 1)
    os.kill(runner(tmp_path / "root"), signal.SIGKILL)
    await until(lambda: len(beaten(beats)) == 2)
    await service.cancel(ident)
    assert (await service.until(ident))["state"] == "CANCELED"
    first, second = beaten(beats)
    lines = beats.read_text().split()
    assert lines == [first] * lines.count(first) + [second] * lines.count(second)
    await asyncio.sleep(0.2)
    assert beats.read_text().split() == lines
