"""Moments that lie where they cannot: told by other clocks, read back after the wall clock was set, years from each other."""

from __future__ import annotations

import msgspec
import pytest

from flowsched.engine.delta import StageWrite, TaskWrite
from flowsched.engine.events import Recovered
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.engine.state import EngineState
from flowsched.engine.step import step
from flowsched.executor.protocol import ContainerReport, PodEnded, PodGone, PodStarted, StepEnd
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.states import TaskState
from tests.engine.scene import Scene, node
from tests.engine.world import World

A = {"name": "a", "command": ["x"]}
HOUR_MS = 3_600_000


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


@pytest.mark.parametrize("ahead", [-20_000, -HOUR_MS, HOUR_MS])
def test_a_task_ran_for_as_long_as_its_node_has_measured(ahead: int) -> None:
    """Its node's clock is wrong by 20 s or by an hour. It was bound for 2 s, then ran for 40 s."""
    scene = Scene()
    scene.submit("w", A | {"resources": {"cpu": 1}})
    scene.tell(PodStarted("fs-w-a-0-0", scene.now + 2_000 + ahead), after=2_000)
    ended = scene.tell(PodEnded("fs-w-a-0-0", scene.now + 40_000 + ahead, 0, ran_ms=40_000), after=40_100)
    (end,), (row,) = ended.delta.ends, ended.delta.tasks
    assert end.started_ms is not None
    assert end.at_ms - end.started_ms == 40_000
    assert (row.started_ms, row.ended_ms) == (end.started_ms, end.at_ms)
    assert 1_000 <= end.started_ms <= 3_000
    assert scene.state.work.estimates.runtime_ms("w", "a") == 40_000
    (stage,) = ended.delta.stages
    assert stage.totals["running_ms"] == 40_000
    assert 40_000 <= stage.totals["core_ms"] <= 42_000


def test_a_lost_task_ran_from_the_report_of_its_start_to_the_report_of_its_end() -> None:
    """Its node's clock is an hour behind, and tells no end: the leader's clock counts."""
    scene = Scene()
    scene.submit("w", A | {"resources": {"cpu": 1}})
    scene.tell(PodStarted("fs-w-a-0-0", scene.now - HOUR_MS), after=100)
    lost = scene.tell(PodGone("fs-w-a-0-0", scene.now + 5_000, "NodeLost", started=True), after=5_000)
    assert lost.delta.stages[-1].totals["core_ms"] == 5_100


def test_a_task_does_not_run_for_longer_than_it_was_bound() -> None:
    """Its node came up with a clock an hour behind, which was set while the task ran: nothing is learned from what it measured."""
    scene = Scene()
    scene.submit("w", A | {"resources": {"cpu": 1}})
    scene.tell(PodStarted("fs-w-a-0-0", scene.now - HOUR_MS), after=100)
    ended = scene.tell(PodEnded("fs-w-a-0-0", scene.now + 40_000, 0, ran_ms=HOUR_MS + 40_000), after=40_000)
    assert ended.delta.stages[-1].totals["core_ms"] == 40_100
    assert scene.state.work.estimates.runtime_ms("w", "a") is None


@pytest.mark.parametrize("ahead", [-HOUR_MS, HOUR_MS])
def test_a_task_that_saw_two_leaders_ran_for_as_long_as_its_node_has_measured(ahead: int) -> None:
    """The leader that takes over has a clock an hour behind or ahead. The task was bound for a second, then ran for ten."""
    world = World([node()], 0)
    world.now = 2 * HOUR_MS
    world.submit("w", check_workflow({"name": "w", "stages": [A | {"resources": {"cpu": 1}}]}))
    world.service(world.inbox)
    (name,) = world.live
    world.now += 1_000
    world.service([PodStarted(name, world.now)])
    world.started.add(name)
    world.now += 6_000 + ahead
    world.boot()
    world.service(world.inbox)
    world.now += 4_000
    world.service([PodEnded(name, world.now - ahead, 0, ran_ms=10_000)])
    totals = world.sql.stages["w", 0].totals
    assert totals["running_ms"] == 10_000
    assert 10_000 <= totals["core_ms"] <= 11_000
    assert world.state.work.estimates.runtime_ms("w", "a") == 10_000
    row = world.sql.tasks["w", 0, 0]
    moments = [row.ready_ms, row.bound_ms, row.started_ms, row.ended_ms]
    assert None not in moments
    assert moments == sorted(moments)  # type: ignore[type-var]


def test_steps_of_a_container_task_lie_in_its_attempt() -> None:
    """Its node's clock is an hour behind: the steps come with the attempt, each as long as it was."""
    scene = Scene()
    scene.submit("w", A)
    began = scene.now - HOUR_MS
    scene.tell(PodStarted("fs-w-a-0-0", began), after=100)
    steps = (StepEnd(0, began, began + 1_000), StepEnd(0, began + 1_500, began + 4_000))
    report = ContainerReport(steps)
    event = PodEnded("fs-w-a-0-0", began + 4_000, 0, container=report, ran_ms=4_000)
    (end,) = scene.tell(event, after=4_000).delta.ends
    assert end.started_ms is not None
    seen = msgspec.json.decode(end.report, type=ContainerReport).steps
    assert [(step.started_ms - end.started_ms, step.ended_ms - end.started_ms) for step in seen] == [
        (0, 1_000),
        (1_500, 4_000),
    ]
    assert end.at_ms - end.started_ms == 4_000


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
