"""The arrays of a stage: what all its tasks have in common takes no room for each of them."""

from __future__ import annotations

import numpy as np
import pytest

from flowsched.statement import Statement
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.spec import WorkflowSpec


@pytest.fixture
def stage() -> StageRun:
    """A stage of a million tasks, touched."""
    one = {"name": "s", "command": ["x"], "scatter": {"count": 1_000_000}}
    return touched(check_workflow({"name": "w", "stages": [one]}))


def touched(spec: WorkflowSpec) -> StageRun:
    """The first stage of a new run, touched."""
    run = WorkflowRun("w", spec, StageGraph(spec)).stages[0]
    run.touch(np.zeros(1_000_000, dtype=np.int32))
    return run


def held_bytes(stage: StageRun) -> int:
    """What its arrays really hold."""
    arrays = [getattr(stage, name, None) for name in StageRun.__slots__]
    return sum(a.nbytes for a in arrays if isinstance(a, np.ndarray) and a.base is None)


def test_a_task_that_waits_holds_51_bytes(stage: StageRun) -> None:
    """Its state, its goal, whether it is done, and six times."""
    assert held_bytes(stage) // 1_000_000 == 51


def test_what_nobody_has_written_can_be_read_like_any_array(stage: StageRun) -> None:
    """One value for all: elements, slices, comparisons and sums."""
    assert int(stage.node[999_999]) == -1
    assert stage.attempt[[1, 2]].tolist() == [0, 0]
    assert stage.exit_code.shape == (1_000_000,)
    assert bool((stage.version == 0).all())
    assert stage.missing[5:8].tolist() == [0, 0, 0]


def test_writing_without_owning_is_refused(stage: StageRun) -> None:
    """Or one task's attempt would be everybody's."""
    with pytest.raises(ValueError, match="read-only"):
        Statement().set(stage.attempt, np.array([1]), 3)
    assert stage.attempt[:3].tolist() == [0, 0, 0]


def test_an_owned_array_holds_what_it_held(stage: StageRun) -> None:
    """Minus one everywhere but where it is written; undone, minus one everywhere. Another stage's stays as it is."""
    other = touched(WorkflowSpec(name="other", stages=(stage.spec,)))
    statement = Statement()
    statement.set(stage.own("node"), np.array([1]), 7)
    assert stage.node[:3].tolist() == [-1, 7, -1]
    assert other.node[:3].tolist() == [-1, -1, -1]
    assert stage.own("node") is stage.node
    statement.rollback()
    assert stage.node[:3].tolist() == [-1, -1, -1]


def test_what_it_holds_already_need_not_be_written(stage: StageRun) -> None:
    """Zeros into zeros; not so once the array is owned, or where one of the values differs."""
    assert stage.holds_only("moved", 0)
    assert stage.holds_only("moved", np.array([0, 0]))
    assert not stage.holds_only("moved", np.array([0, 5]))
    stage.own("moved")
    assert not stage.holds_only("moved", 0)
