"""Moments that lie where they cannot: told by other clocks, read back after the wall clock was set, years from each other."""

from __future__ import annotations

import pytest

from flowsched.engine.delta import StageWrite, TaskWrite
from flowsched.engine.events import Recovered
from flowsched.engine.idle_book import HOUR_MS, KEPT_HOURS, IdleBook
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.engine.state import EngineState
from flowsched.engine.step import step
from flowsched.executor.protocol import PodEnded, PodStarted
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.states import TaskState
from tests.engine.scene import Scene, node

A = {"name": "a", "command": ["x"]}
YEARS = 20 * 365 * 24 * HOUR_MS


@pytest.mark.parametrize("told", [(HOUR_MS, 2 * HOUR_MS), (-HOUR_MS, -2 * HOUR_MS), (HOUR_MS, -HOUR_MS)])
def test_what_clocks_of_others_say_makes_no_duration_negative(told: tuple[int, int]) -> None:
    """A runner's or a node's clock is an hour ahead or behind: start and end lie between what came before and now."""
    scene = Scene()
    scene.submit("w", A)
    scene.tell(PodStarted("fs-w-a-0-0", scene.now + told[0]), after=100)
    ended = scene.tell(PodEnded("fs-w-a-0-0", scene.now + told[1], 0), after=200)
    (end,) = ended.delta.ends
    assert end.started_ms is not None
    assert 1_000 <= end.started_ms <= end.at_ms <= 1_300
    (row,) = ended.delta.tasks
    moments = [m for m in (row.ready_ms, row.bound_ms, row.started_ms, row.ended_ms) if m is not None]
    assert moments == sorted(moments)
    assert moments[-1] <= 1_300


def test_rows_of_the_future_are_of_now_after_a_restart() -> None:
    """The wall clock was set back by an hour while the service was down: a wait of 30 minutes lasts no longer for it."""
    stage = A | {
        "resources": {"cpu": 1_000},
        "policies": [{"event": "task_pending", "timeout": "30m", "action": "fail_stage"}],
    }
    spec = check_workflow({"name": "w", "stages": [stage]})
    state = EngineState()
    state.cluster.snapshot.put_node(node(cpu=4))
    later = 10_000 + HOUR_MS
    queued, goal = TaskState.QUEUED, TaskState.PENDING
    tasks = [
        TaskWrite("w", 0, 0, queued, 0, None, goal, 1, "", None, later, None, None, None, None, None, 0, 0)
    ]
    stages = [StageWrite("w", 0, "RUNNING", {}, later, None, "", {})]
    rows = Remembered("w", 1, "RUNNING", "", later, False, False, stages, tasks, [])
    run = rebuild_run(state, spec, StageGraph(spec), rows)
    first = step(state, [Recovered(run, ())], 10_000)
    first.keep()
    assert run.started_ms == 10_000
    assert run.stages[0].started_ms == 10_000
    assert int(run.stages[0].times.max()) <= 10_000
    assert first.wake_ms == 10_000 + 30 * 60_000


@pytest.mark.timeout(60)
def test_twenty_years_between_two_steps_cost_no_more_than_the_hours_that_are_kept() -> None:
    """Of the gap the book keeps the last month; hours of before are forgotten, and nothing is counted that will be."""
    scene = Scene(node(cpu=4))
    book = IdleBook(resolution_ms=0)
    book.note(scene.state, 1_000)
    book.close(HOUR_MS)
    assert list(book.hours) == [0]
    book.close(YEARS)
    assert len(book.hours) == KEPT_HOURS
    assert min(book.hours) == YEARS // HOUR_MS - KEPT_HOURS  # the hour that begins now has nothing yet
    assert {hour.covered_ms for hour in book.hours.values()} == {HOUR_MS}
    assert {hour.capacity[0] for hour in book.hours.values()} == {4_000 * HOUR_MS}
