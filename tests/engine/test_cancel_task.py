"""Cancelling one task: what its policies, its gang, its stage and a restart make of it."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.delta import StageWrite, TaskWrite
from flowsched.engine.events import Command
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.engine.state import EngineState
from flowsched.executor.nodes import NodeInfo
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.states import TaskState
from tests.engine.scene import Scene, node

GANG = {"name": "a", "gang": True, "roles": {"r": {"replicas": 2, "command": ["x"], "resources": {"cpu": 1}}}}


def three(**more: Any) -> Scene:
    """Three tasks on two cores, of which two run, with three attempts each; stage b needs them."""
    scene = Scene(node(cpu=2))
    a = {"name": "a", "scatter": {"count": 3}, "command": ["x"], "retry": {"attempts": 3}}
    scene.submit("w", a | more, {"name": "b", "needs": ["a"], "command": ["x"]})
    scene.start("fs-w-a-0-0", "fs-w-a-1-0")
    return scene


def cancel(scene: Scene, task: int, stage: str = "a", reason: str = "") -> None:
    scene.tell(Command("w", "cancel_task", None, reason, stage, task))


def gone(scene: Scene, *names: str) -> None:
    scene.end(*names, code=143, reason="Released")


def test_a_task_that_is_cancelled_fails_for_good_and_its_stage_with_it() -> None:
    """Its pod is taken away, what runs goes on, what waits is cancelled, and no attempt follows."""
    scene = three()
    cancel(scene, 0, reason="hung")
    assert scene.released == ["fs-w-a-0-0"]
    assert scene.states("w", "a") == "RELEASING RUNNING CANCELLED"
    gone(scene, "fs-w-a-0-0")
    scene.end("fs-w-a-1-0")
    assert scene.launched == []
    assert scene.states("w", "a") == "FAILED SUCCEEDED CANCELLED"
    assert scene.state_of("w") == "FAILED: a FAILED, b SKIPPED"
    assert scene.runs["w"].reason == "a: task 0 was cancelled by request: hung"
    assert scene.runs["w"].stages[0].reasons == {0: "Cancelled"}


@pytest.mark.parametrize(
    ("action", "states", "after"),
    [
        ("restart_task", "RELEASING RUNNING CANCELLED", "FAILED RUNNING CANCELLED"),
        ("fail_stage", "RELEASING RUNNING CANCELLED", "FAILED RUNNING CANCELLED"),
        ("abort_workflow", "RELEASING RELEASING CANCELLED", "CANCELLED RELEASING CANCELLED"),
        ("complete_stage", "RELEASING RELEASING SKIPPED", "SUCCEEDED RELEASING SKIPPED"),
        ("ignore", "RELEASING RUNNING QUEUED", "SUCCEEDED RUNNING BINDING"),
    ],
)
def test_a_running_task_that_is_cancelled_does_what_its_policy_says_of_failed_tasks(
    action: str, states: str, after: str
) -> None:
    """But for another try."""
    scene = three(policies=[{"event": "task_failed", "action": action}])
    cancel(scene, 0)
    assert scene.states("w", "a") == states
    gone(scene, "fs-w-a-0-0")
    assert scene.states("w", "a") == after


@pytest.mark.parametrize(
    ("action", "states"),
    [
        ("fail_stage", "RUNNING RUNNING FAILED"),
        ("ignore", "RUNNING RUNNING SUCCEEDED"),
        ("complete_stage", "RELEASING RELEASING SKIPPED"),
        ("abort_workflow", "RELEASING RELEASING FAILED"),
    ],
)
def test_a_waiting_task_that_is_cancelled_never_runs(action: str, states: str) -> None:
    """It holds nothing: it ends at once."""
    scene = three(policies=[{"event": "task_failed", "action": action}])
    cancel(scene, 2)
    assert scene.states("w", "a") == states


def test_a_stage_whose_cancelled_tasks_are_ignored_goes_on_to_the_next() -> None:
    """They count as done, without outputs."""
    scene = three(policies=[{"event": "task_failed", "action": "ignore"}])
    cancel(scene, 2)
    cancel(scene, 0)
    gone(scene, "fs-w-a-0-0")
    scene.end("fs-w-a-1-0")
    assert scene.launched == ["fs-w-b-0-0"]
    scene.start("fs-w-b-0-0")
    scene.end("fs-w-b-0-0")
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED, b SUCCEEDED"


def test_a_gang_ends_with_the_member_that_is_cancelled() -> None:
    """The others are released; nothing of it starts anew."""
    scene = Scene(node(cpu=2))
    scene.submit("w", GANG)
    scene.start("fs-w-a-0-0", "fs-w-a-1-0")
    cancel(scene, 1)
    assert scene.released == ["fs-w-a-0-0", "fs-w-a-1-0"]
    gone(scene, "fs-w-a-0-0", "fs-w-a-1-0")
    assert scene.states("w", "a") == "CANCELLED FAILED"
    assert scene.state_of("w") == "FAILED: a FAILED"


def test_what_has_ended_or_waits_for_other_stages_is_not_cancelled() -> None:
    """Nor is a task twice, or a task of a workflow that is gone."""
    scene = three()
    cancel(scene, 0, "b")
    scene.end("fs-w-a-0-0")
    cancel(scene, 0)
    assert scene.states("w", "a") == "SUCCEEDED RUNNING BINDING"
    assert scene.states("w", "b") == "PENDING"
    cancel(scene, 1)
    cancel(scene, 1)
    assert [row.kind for row in scene.last.delta.events] == []
    scene.tell(Command("gone", "cancel_task", 7, "", "a", 0))
    assert scene.last.delta.commands_done == [7]


def test_a_task_that_was_being_moved_does_not_come_back_once_it_is_cancelled() -> None:
    """Its eviction was under way: it fails when its pod is gone."""
    scene = three()
    stage = scene.runs["w"].stages[0]
    stage.goal[0], stage.task_state[0] = TaskState.QUEUED, TaskState.RELEASING
    stage.counts[TaskState.RUNNING] -= 1
    stage.counts[TaskState.RELEASING] += 1
    cancel(scene, 0)
    gone(scene, "fs-w-a-0-0")
    assert scene.states("w", "a") == "FAILED RUNNING CANCELLED"


def test_a_stage_with_a_task_on_its_way_to_fail_has_failed_after_a_restart() -> None:
    """What waited with it is not started while the pod of the cancelled task is taken away."""
    spec = check_workflow({"name": "w", "stages": [{"name": "a", "scatter": {"count": 2}, "command": ["x"]}]})
    state = EngineState()
    state.cluster.snapshot.put_node(NodeInfo("n0", 4_000, 4 << 30))
    stages = [StageWrite("w", 0, "RUNNING", {}, 0, None, "", {})]
    row = TaskWrite(
        "w",
        0,
        0,
        TaskState.RELEASING,
        0,
        "n0",
        TaskState.FAILED,
        1,
        "Cancelled",
        None,
        0,
        0,
        0,
        0,
        0,
        None,
        0,
        0,
    )
    run = rebuild_run(
        state, spec, StageGraph(spec), Remembered("w", 1, "RUNNING", "", 0, False, False, stages, [row], [])
    )
    assert run.stages[0].failed
    assert run.stages[0].reason == "task 0 failed: Cancelled"
