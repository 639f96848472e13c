"""A real service process that is killed -9 while containers run: FLOWSCHED_KILLS=100 for a hundred times."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest

from flowsched.cluster.local.containers import mark_of
from tests.cluster.test_kills import (
    AT_A_LAUNCH,
    gone,
    is_proof,
    judge,
    kill_some_runner,
    start,
    wait_for_journal,
)
from tests.containers.conftest import EngineOfTests

KILLS = int(os.environ.get("FLOWSCHED_KILLS", "4"))
#: Attempts that end under another service than launched them, and how many kills that may take on a loaded machine.
ADOPTED = 2
MOST_KILLS = 5 * KILLS


@pytest.mark.slow
def test_a_service_is_killed_while_containers_run(tmp_path: Path, engine: EngineOfTests) -> None:
    """No task is lost, none runs twice, and no container is left."""
    chance = random.Random(13)
    tasks = 9 * KILLS
    image = {"FLOWSCHED_TEST_TASK_IMAGE": engine.load("numpy"), "FLOWSCHED_TEST_ENGINE": engine.kind}
    with contextlib.ExitStack() as stack:
        kills = 0
        while kills < KILLS or (kills < MOST_KILLS and not is_proof(tmp_path, ADOPTED)):
            kills += 1
            service = start(tmp_path, tasks, **image)
            stack.callback(service.wait)
            stack.callback(service.kill)
            lines, longer_s = chance.choice((1, 2, 3)), chance.uniform(0.0, 4.0)
            wait_for_journal(tmp_path, service, *((lines, longer_s) if gone(tmp_path) else AT_A_LAUNCH))
            if chance.random() < 0.2:
                kill_some_runner(tmp_path, chance)
            service.kill()
            service.wait()
        last = start(tmp_path, tasks, **image)
        stack.callback(last.kill)
        assert last.wait(1200) == 0
    judge(tmp_path, tasks, ADOPTED)
    root = (tmp_path / "cluster").resolve()
    assert not engine.names(f"label=flowsched.root={mark_of(root)}")
