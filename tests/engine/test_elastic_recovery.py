"""What a restart makes of an elastic gang's members that have no row."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.delta import StageWrite, TaskWrite
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.engine.state import EngineState
from flowsched.executor.nodes import NodeInfo
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.states import TaskState

S = TaskState


def row(index: int, state: TaskState, goal: TaskState = S.PENDING) -> TaskWrite:
    return TaskWrite("w", 0, index, state, 0, "n0", goal, 1, "", None, 0, 0, 0, 0, 0, None, 0, 0)


@pytest.mark.parametrize(
    ("ps", "goal", "member", "done"),
    [
        (S.RUNNING, S.PENDING, S.PENDING, 0),  # the gang goes on: its second worker was on its way to a node
        (S.RELEASING, S.SUCCEEDED, S.SKIPPED, 1),  # it was done when the crash came
    ],
)
def test_a_member_without_a_row_is_skipped_only_if_its_gang_was_done(
    ps: TaskState, goal: TaskState, member: TaskState, done: int
) -> None:
    """One of two workers was needed and has succeeded; whether the ps still runs tells if that was all."""
    roles: dict[str, Any] = {
        "ps": {"replicas": 1, "command": ["ps"], "completes": False},
        "worker": {"replicas": 2, "min": 1, "command": ["w"]},
    }
    spec = check_workflow({"name": "w", "stages": [{"name": "train", "gang": True, "roles": roles}]})
    state = EngineState()
    state.cluster.snapshot.put_node(NodeInfo("n0", 4_000, 4 << 30))
    stages = [StageWrite("w", 0, "RUNNING", {}, 0, None, "", {})]
    tasks = [row(0, ps, goal), row(1, S.SUCCEEDED)]
    run = rebuild_run(
        state, spec, StageGraph(spec), Remembered("w", 1, "RUNNING", "", 0, False, False, stages, tasks, [])
    )
    assert TaskState(int(run.stages[0].task_state[2])) is member
    assert run.stages[0].done == done
