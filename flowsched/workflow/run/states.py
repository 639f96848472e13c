"""The states of tasks, stages and workflows. Each says how one gets in and out; `lifecycle` holds the transitions.

The arrays and the database hold these numbers: never renumber, only add.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final


class TaskState(IntEnum):
    """One task (its present attempt)."""

    PENDING = 0  #: in: workflow accepted, a retry of a parent, out: all parents done
    QUEUED = 1  #: in: parents done, a failed or lost attempt was given back; out: the scheduler chose a node
    STAGING = 2  #: in: target chosen, transfers admitted, no cores held; out: bytes are there (QUEUED again, now local)
    ALLOCATED = 3  #: in: room taken in memory; out: the intent is committed
    BINDING = 4  #: in: intent committed (attempt, node, epoch); out: its process runs
    RUNNING = 5  #: in: its process runs; out: it ended, or shall be taken away
    RELEASING = 6  #: in: it is being taken away; out: it is gone, then it becomes its *goal*
    SUCCEEDED = 7  #: terminal, unless an output is lost while the workflow lives (then QUEUED)
    FAILED = 8  #: terminal: attempts used up, or a policy said so
    CANCELLED = 9  #: terminal: a user cancelled the workflow, or its stage failed before it was started
    SKIPPED = 10  #: terminal: its stage's `when` said no, or what it needs was skipped


TERMINAL: Final = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.SKIPPED})
#: The states in which a pod may exist: exactly these hold room on a node.
HOLDING: Final = frozenset({TaskState.ALLOCATED, TaskState.BINDING, TaskState.RUNNING, TaskState.RELEASING})


class RunState(StrEnum):
    """A stage or a workflow; stages never are CANCELLING or PAUSED."""

    PENDING = "PENDING"  #: nothing of it has been ready yet
    RUNNING = "RUNNING"  #: something of it is ready, placed or running
    PAUSED = "PAUSED"  #: nothing new is started; what runs goes on
    CANCELLING = "CANCELLING"  #: cancel was accepted; something is not gone yet
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"

    terminal: bool  #: whether nothing will happen any more (but for a user's `retry`)

    def __init__(self, state: str) -> None:
        self.terminal = state in ("SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED")


class ReportedState(StrEnum):
    """The state of a stage or a workflow as clients get it: of one in `RunState.RUNNING`, how far its tasks have come."""

    PENDING = "PENDING"  #: nothing of it is ready: other stages must end first, or the service has not looked at it yet
    QUEUED = "QUEUED"  #: tasks are ready, and none has a node
    STAGING = "STAGING"  #: no task has started; the inputs of some are being copied to their nodes
    STARTING = "STARTING"  #: no task runs; some have a node, and their pods are being started
    RUNNING = "RUNNING"  #: at least one task runs
    PAUSED = "PAUSED"
    CANCELLING = "CANCELLING"
    ENGINE = "ENGINE"  #: a run of another engine: no task of it waits or runs; its engine alone knows whether more come
    SUCCEEDED = "SUCCEEDED"  #: it has ended well; `(2× exit 3)`: of two tasks with another exit code than 0
    FAILED = "FAILED"  #: it has ended: a task failed for good; `reason` says which
    CANCELLED = "CANCELLED"  #: it has ended: a user cancelled it, or its workflow was given up
    SKIPPED = "SKIPPED"  #: it has ended: its stage's `when` said no, or what it needs was skipped

    @property
    def stored(self) -> RunState:
        """The state under which the database has it."""
        live = (ReportedState.QUEUED, ReportedState.STAGING, ReportedState.STARTING, ReportedState.ENGINE)
        return RunState.RUNNING if self in live else RunState(self.value)


#: The states of tasks by which a live stage or workflow is in a reported state, the furthest first.
TASKS_IN: Final[Mapping[ReportedState, tuple[TaskState, ...]]] = {
    ReportedState.RUNNING: (TaskState.RUNNING, TaskState.RELEASING),
    ReportedState.STARTING: (TaskState.ALLOCATED, TaskState.BINDING),
    ReportedState.STAGING: (TaskState.STAGING,),
    ReportedState.QUEUED: (TaskState.QUEUED,),
}


#: The same by the states' names, as counts have them. Lists ask for each workflow, and an enum's `name` is slow.
_NAMES_IN: Final = [(reported, [task.name for task in tasks]) for reported, tasks in TASKS_IN.items()]


def reported_state(state: RunState, counts: Mapping[str, int]) -> ReportedState:
    """The state that clients get.

    Args:
        state: The stored state.
        counts: Tasks by the name of their state.
    """
    if state is not RunState.RUNNING:
        return ReportedState(state.value)
    for reported, names in _NAMES_IN:
        for name in names:
            if counts.get(name):
                return reported
    return ReportedState.PENDING if counts.get("PENDING") else ReportedState.RUNNING
