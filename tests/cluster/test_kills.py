"""A real service process, killed -9 at random moments, thirty times (P2, P3; rows 1, 2, 9, 10)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from flowsched.cluster.local import attempts

TASKS = 100
KILLS = 30


@pytest.mark.slow
def test_a_service_that_is_killed_thirty_times(tmp_path: Path) -> None:
    """Every task runs, never twice at once, and each attempt has exactly one end that agrees with what it did."""
    chance = random.Random(20)
    with contextlib.ExitStack() as stack:
        for _ in range(KILLS):
            service = start(tmp_path)
            stack.callback(service.wait)
            stack.callback(service.kill)
            wait_for_journal(tmp_path, service, chance.uniform(0.0, 0.6))
            if chance.random() < 0.3:
                kill_some_runner(tmp_path, chance)
            service.kill()
            service.wait()
        last = start(tmp_path)
        stack.callback(last.kill)
        assert last.wait(400) == 0
    judge(tmp_path)


def start(root: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.cluster.kill_driver", str(root), str(TASKS)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONPATH": "."})


def wait_for_journal(root: Path, service: subprocess.Popen[bytes], longer_s: float) -> None:
    """Wait until the service has come up and written something, and some time more."""
    journal = root / "journal"
    before = journal.stat().st_size if journal.exists() else 0
    end = time.monotonic() + 60
    while time.monotonic() < end and service.poll() is None:
        if journal.exists() and journal.stat().st_size > before:
            break
        time.sleep(0.002)
    time.sleep(longer_s)


def kill_some_runner(root: Path, chance: random.Random) -> None:
    living = [
        pid
        for folder in root.glob("cluster/nodes/*/attempts/*")
        if (pid := attempts.runner_of(folder)) is not None
    ]
    if living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(sorted(living)), signal.SIGKILL)


def judge(root: Path) -> None:
    finals: dict[str, list[str]] = {}
    intents = Counter[str]()
    service, intended_by, adopted = 0, {}, 0
    for line in (root / "journal").read_text().splitlines():
        kind, name, *rest = line.split()
        if kind == "service":
            service += 1
        elif kind == "intent":
            intents[name] += 1
            intended_by[name] = service
        else:
            adopted += rest[0] == "PodEnded" and intended_by[name] != service
            assert name not in finals, f"{name} ended twice: {finals[name]} and {rest}"
            finals[name] = rest
    assert set(intents.values()) == {1}
    assert set(finals) == set(intents)
    assert not list(root.glob("task-*/overlap"))
    for task in range(TASKS):
        starts = Counter((root / f"task-{task}" / "starts").read_text().split())
        assert set(starts.values()) == {1}, f"an attempt of task {task} ran twice: {starts}"
        mine = {name.split("-")[4]: end for name, end in finals.items() if name.split("-")[3] == str(task)}
        ended = [attempt for attempt, (kind, _, _) in mine.items() if kind == "PodEnded"]
        assert len(ended) == 1
        assert mine[ended[0]] == ["PodEnded", "1", "0"]
        for attempt, (kind, started, _) in mine.items():
            if kind == "PodGone" and started == "0":
                assert attempt not in starts, f"attempt {attempt} of task {task} ran and was called unstarted"
    kinds = Counter(f"{kind} {started}" for kind, started, _ in finals.values())
    print(f"{len(intents)} attempts: {dict(kinds)}, {adopted} ended under another service than launched them")
    assert len(intents) > TASKS, "no kill has ever hit a launch: this proves nothing"
    assert adopted >= 10, "hardly anything was adopted: this proves little"
