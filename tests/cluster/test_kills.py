"""A real service process, killed -9 at random moments, thirty times or more (P2, P3; rows 1, 2, 9, 10)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster import lives
from tests.forks import Forked

TASKS = 100
KILLS = 30
#: Attempts that end under another service than launched them: with fewer, the test proves little.
ADOPTED = 10
#: On a loaded machine a service has often adopted nothing yet when it is killed, so it takes more kills.
MOST_KILLS = 100
#: A kill at the first intent, before the order is with a runner.
AT_A_LAUNCH = 2, 0.0


@pytest.mark.slow
def test_a_service_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """Every task runs, never twice at once, and each attempt has exactly one end that agrees with what it did."""
    chance = random.Random(20)
    with contextlib.ExitStack() as stack:
        kills = 0
        while kills < KILLS or (kills < MOST_KILLS and not is_proof(tmp_path, ADOPTED)):
            kills += 1
            service = start(tmp_path)
            stack.callback(service.wait)
            stack.callback(service.kill)
            # It is killed while it starts, or after it has launched or adopted something.
            lines, longer_s = chance.choice((1, 2)), chance.uniform(0.0, 0.6)
            wait_for_journal(tmp_path, service, *((lines, longer_s) if gone(tmp_path) else AT_A_LAUNCH))
            if chance.random() < 0.3:
                kill_some_runner(tmp_path, chance)
            service.kill()
            service.wait()
        last = start(tmp_path)
        stack.callback(last.kill)
        assert last.wait(400) == 0
    judge(tmp_path)


def start(root: Path, tasks: int = TASKS, **env: str) -> Forked:
    return Forked([str(root), str(tasks)], module="tests.cluster.kill_driver", env={**os.environ, **env})


def wait_for_journal(root: Path, service: Forked, lines: int, longer_s: float) -> None:
    """Wait until the service has written so many lines, the first of them when it comes up, and some time more."""
    before = written(root)
    end = time.monotonic() + 60
    while time.monotonic() < end and service.poll() is None and written(root) < before + lines:
        time.sleep(0.002)
    time.sleep(longer_s)


def written(root: Path) -> int:
    """How many lines the journal has."""
    journal = root / "journal"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def kill_some_runner(root: Path, chance: random.Random) -> None:
    living = lives.runners_of_all(root / "cluster")
    if living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(sorted(living)), signal.SIGKILL)


def adopted(root: Path) -> int:
    """How many attempts have ended under another service than launched them."""
    service, intended_by, count = 0, {}, 0
    for line in (root / "journal").read_text().splitlines():
        kind, name, *rest = line.split()
        if kind == "service":
            service += 1
        elif kind == "intent":
            intended_by[name] = service
        else:
            count += rest[0] == "PodEnded" and intended_by[name] != service
    return count


def gone(root: Path) -> int:
    """How many attempts are gone: a kill has hit their launch, or their runner."""
    journal = root / "journal"
    return journal.read_text().count(" PodGone ") if journal.exists() else 0


def is_proof(root: Path, least_adopted: int) -> bool:
    """Whether the kills have hit a launch, and attempts under way."""
    return gone(root) > 0 and adopted(root) >= least_adopted


def judge(root: Path, tasks: int = TASKS, least_adopted: int = ADOPTED) -> None:
    finals: dict[str, list[str]] = {}
    intents = Counter[str]()
    for line in (root / "journal").read_text().splitlines():
        kind, name, *rest = line.split()
        if kind == "intent":
            intents[name] += 1
        elif kind == "final":
            assert name not in finals, f"{name} ended twice: {finals[name]} and {rest}"
            finals[name] = rest
    assert set(intents.values()) == {1}
    assert set(finals) == set(intents)
    assert not list(root.glob("task-*/overlap"))
    for task in range(tasks):
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
    print(
        f"{len(intents)} attempts: {dict(kinds)}, {adopted(root)} ended under another service than launched them"
    )
    assert gone(root), "no kill has ever hit a launch: this proves nothing"
    assert adopted(root) >= least_adopted, "hardly anything was adopted: this proves little"
