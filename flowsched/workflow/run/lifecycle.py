"""The one transition table of a task. `moves` assigns the states that it gives.

A stage's states are an array; an event happens to many tasks at once. A row of `TRANSITIONS` has the effect of an event in
each state; a pair that is absent is illegal. Three habits of clusters are legal and written out: a watch repeats itself (a
state maps to itself), skips states (BINDING to SUCCEEDED), and outlives a decision (a pod that is being released may still
report its start). `advance` drops events of earlier attempts before.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.errors import IllegalTransition
from flowsched.workflow.run.states import TaskState

_S = TaskState
_ILLEGAL: Final = 255


class TaskEvent(IntEnum):
    """The events that can happen to a task."""

    READY = 0  #: the last parent is done
    TARGET = 1  #: a node was chosen and its transfers are wanted
    STAGED = 2  #: the bytes are there
    ALLOCATE = 3  #: room was taken
    COMMIT = 4  #: the intent is part of this step's transaction
    START = 5  #: its process runs
    SUCCEED = 6  #: it ended well, outputs published
    FAIL = 7  #: it ended badly for good
    REQUEUE = 8  #: it ended badly and is given back for another attempt
    RELEASE = 9  #: it shall be taken away and become its goal
    CANCEL = 10  #: it shall not run (it holds nothing)
    SKIP = 11  #: its stage shall not run
    LOSE = 12  #: an output of it was lost, or its gang starts anew: run again
    REVOKE = 13  #: a parent runs again: wait for it
    RESET = 14  #: the user asked for a retry of what failed
    END_QUEUED = 15  #: released, and its goal was QUEUED
    END_SUCCEEDED = 16  #: released, and its goal was SUCCEEDED
    END_CANCELLED = 17  #: released, and its goal was CANCELLED
    END_FAILED = 18  #: released, and its goal was FAILED
    REUSE = 19  #: the result of another workflow's task is taken: it need not run


_E = TaskEvent

TRANSITIONS: Final[Mapping[TaskEvent, Mapping[TaskState, TaskState]]] = {
    _E.READY: {_S.PENDING: _S.QUEUED, _S.QUEUED: _S.QUEUED},
    _E.TARGET: {_S.QUEUED: _S.STAGING, _S.STAGING: _S.STAGING},
    _E.STAGED: {_S.STAGING: _S.QUEUED},
    _E.ALLOCATE: {_S.QUEUED: _S.ALLOCATED},
    _E.COMMIT: {_S.ALLOCATED: _S.BINDING},
    _E.START: {
        _S.BINDING: _S.RUNNING,
        _S.RUNNING: _S.RUNNING,
        _S.RELEASING: _S.RELEASING,
    },
    _E.SUCCEED: {_S.BINDING: _S.SUCCEEDED, _S.RUNNING: _S.SUCCEEDED},
    _E.FAIL: {
        _S.QUEUED: _S.FAILED,
        _S.STAGING: _S.FAILED,
        _S.BINDING: _S.FAILED,
        _S.RUNNING: _S.FAILED,
    },
    _E.REQUEUE: {
        _S.BINDING: _S.QUEUED,
        _S.RUNNING: _S.QUEUED,
    },
    _E.RELEASE: {
        _S.BINDING: _S.RELEASING,
        _S.RUNNING: _S.RELEASING,
        _S.RELEASING: _S.RELEASING,
    },
    _E.CANCEL: {
        _S.PENDING: _S.CANCELLED,
        _S.QUEUED: _S.CANCELLED,
        _S.STAGING: _S.CANCELLED,
        _S.CANCELLED: _S.CANCELLED,
    },
    _E.SKIP: {_S.PENDING: _S.SKIPPED, _S.QUEUED: _S.SKIPPED, _S.SKIPPED: _S.SKIPPED},
    _E.LOSE: {_S.SUCCEEDED: _S.QUEUED},
    _E.REVOKE: {_S.QUEUED: _S.PENDING, _S.STAGING: _S.PENDING, _S.PENDING: _S.PENDING},
    _E.RESET: {_S.FAILED: _S.PENDING, _S.CANCELLED: _S.PENDING, _S.SKIPPED: _S.PENDING},
    _E.END_QUEUED: {_S.RELEASING: _S.QUEUED},
    _E.END_SUCCEEDED: {_S.RELEASING: _S.SUCCEEDED},
    _E.END_CANCELLED: {_S.RELEASING: _S.CANCELLED},
    _E.END_FAILED: {_S.RELEASING: _S.FAILED},
    _E.REUSE: {_S.QUEUED: _S.SUCCEEDED},
}

#: The event that ends a release, by the goal that was set when it began.
END_OF: Final[Mapping[TaskState, TaskEvent]] = {
    _S.QUEUED: _E.END_QUEUED,
    _S.SUCCEEDED: _E.END_SUCCEEDED,
    _S.CANCELLED: _E.END_CANCELLED,
    _S.FAILED: _E.END_FAILED,
}


#: NumPy asks the class of each operand for this. A class that has it not is asked by `EnumType.__getattr__`, so that an array was
#: compared with a state in 7 µs, five times as long as with a number.
TaskState.__array_ufunc__ = np.ndarray.__array_ufunc__  # type: ignore[attr-defined]


def _table() -> NDArray[np.uint8]:
    table = np.full((len(TaskEvent), len(TaskState)), _ILLEGAL, dtype=np.uint8)
    for event, row in TRANSITIONS.items():
        for before, after in row.items():
            table[event, before] = after
    return table


_TABLE: Final = _table()


#: The same as lists: one task at a time is faster so.
_ROWS: Final[list[list[int]]] = _TABLE.tolist()


def after_one(state: int, event: TaskEvent) -> int:
    """The state of one task after an event, as `after`."""
    new = _ROWS[event][state]
    if new == _ILLEGAL:
        return int(after(np.array([state], dtype=np.uint8), event)[0])
    return new


def mask_of(*states: TaskState) -> NDArray[np.bool_]:
    """(states,) True for some of them: `mask[task_state]` says which tasks are in one of these."""
    mask = np.zeros(len(TaskState), dtype=np.bool_)
    mask[[int(state) for state in states]] = True
    return mask


def after(states: NDArray[np.uint8], event: TaskEvent) -> NDArray[np.uint8]:
    """The states after an event.

    Args:
        states: (K,) `TaskState` of the tasks it happens to. Not modified.
        event: The event that happens to all of them.

    Returns:
        (K,) their new states.

    Raises:
        IllegalTransition: The event cannot happen to at least one of them: a bug, shown with the first one.
    """
    new = _TABLE[event, states]
    if (new == _ILLEGAL).any():
        first = int(np.argmax(new == _ILLEGAL))
        raise IllegalTransition(
            f"{event.name} cannot happen in {TaskState(int(states[first])).name} "
            f"(task {first + 1} of {len(states)} it was to happen to)"
        )
    result: NDArray[np.uint8] = new
    return result


def may(states: NDArray[np.uint8], event: TaskEvent) -> NDArray[np.bool_]:
    """(K,) whether the event is legal in each of the states."""
    result: NDArray[np.bool_] = _TABLE[event, states] != _ILLEGAL
    return result
