"""The states of a task, told as stories: never read from the table."""

from __future__ import annotations

import numpy as np
import pytest

from flowsched.errors import IllegalTransition
from flowsched.workflow.run.lifecycle import END_OF, TaskEvent, after, may
from flowsched.workflow.run.states import HOLDING, TERMINAL, RunState, TaskState

E = TaskEvent


def lives(*events: TaskEvent, start: TaskState = TaskState.PENDING) -> str:
    """Each state in turn, in words."""
    states = np.array([start], dtype=np.uint8)
    told = [start.name.lower()]
    for event in events:
        states = after(states, event)
        told.append(TaskState(int(states[0])).name.lower())
    return " ".join(told)


def test_a_task_that_goes_well() -> None:
    """Each state in turn."""
    told = lives(E.READY, E.ALLOCATE, E.COMMIT, E.START, E.SUCCEED)
    assert told == "pending queued allocated binding running succeeded"


def test_a_task_that_waits_for_bytes() -> None:
    """STAGING ends in QUEUED, from where it is bound."""
    told = lives(E.READY, E.TARGET, E.TARGET, E.STAGED, E.ALLOCATE)
    assert told == "pending queued staging staging queued allocated"


@pytest.mark.parametrize("held", [TaskState.BINDING, TaskState.RUNNING])
def test_news_may_skip_states(held: TaskState) -> None:
    """A watch that missed something still tells the end."""
    word = held.name.lower()
    assert lives(E.SUCCEED, start=held) == f"{word} succeeded"
    assert lives(E.FAIL, start=held) == f"{word} failed"
    assert lives(E.REQUEUE, start=held) == f"{word} queued"
    assert lives(E.START, start=held) == f"{word} running"
    assert lives(E.RELEASE, start=held) == f"{word} releasing"


def test_a_watch_repeats_itself() -> None:
    """The second time nothing changes."""
    assert lives(E.START, E.START, start=TaskState.BINDING) == "binding running running"
    assert lives(E.READY, E.READY) == "pending queued queued"
    assert lives(E.CANCEL, E.CANCEL) == "pending cancelled cancelled"
    assert lives(E.SKIP, E.SKIP) == "pending skipped skipped"


def test_what_is_being_released_may_still_say_that_it_starts() -> None:
    """It is released all the same, and becomes its goal."""
    told = lives(E.RELEASE, E.START, E.RELEASE, E.END_CANCELLED, start=TaskState.BINDING)
    assert told == "binding releasing releasing releasing cancelled"
    assert lives(END_OF[TaskState.QUEUED], start=TaskState.RELEASING) == "releasing queued"
    assert lives(END_OF[TaskState.SUCCEEDED], start=TaskState.RELEASING) == "releasing succeeded"
    assert lives(END_OF[TaskState.CANCELLED], start=TaskState.RELEASING) == "releasing cancelled"
    assert lives(END_OF[TaskState.FAILED], start=TaskState.RELEASING) == "releasing failed"


def test_what_waits_is_cancelled_or_fails_at_once() -> None:
    """There is nothing to take away."""
    assert lives(E.READY, E.CANCEL) == "pending queued cancelled"
    assert lives(E.READY, E.TARGET, E.CANCEL) == "pending queued staging cancelled"
    assert lives(E.READY, E.FAIL) == "pending queued failed"
    assert lives(E.READY, E.TARGET, E.FAIL) == "pending queued staging failed"
    assert lives(E.READY, E.SKIP) == "pending queued skipped"


def test_what_runs_again() -> None:
    """A lost output, a parent that runs again, a retry."""
    assert lives(E.LOSE, start=TaskState.SUCCEEDED) == "succeeded queued"
    assert lives(E.READY, E.REVOKE, E.REVOKE) == "pending queued pending pending"
    assert lives(E.READY, E.TARGET, E.REVOKE) == "pending queued staging pending"
    for ended in ("failed", "cancelled", "skipped"):
        assert lives(E.RESET, start=TaskState[ended.upper()]) == f"{ended} pending"


@pytest.mark.parametrize(
    ("state", "events"),
    [
        (
            TaskState.PENDING,
            "ALLOCATE TARGET COMMIT START SUCCEED FAIL REQUEUE RELEASE LOSE RESET STAGED",
        ),
        (TaskState.QUEUED, "COMMIT START SUCCEED REQUEUE RELEASE LOSE RESET STAGED END_QUEUED"),
        (TaskState.STAGING, "ALLOCATE COMMIT START SUCCEED REQUEUE RELEASE LOSE SKIP READY"),
        (TaskState.ALLOCATED, "START SUCCEED FAIL CANCEL RELEASE SKIP REVOKE"),
        (TaskState.RUNNING, "READY CANCEL SKIP REVOKE ALLOCATE COMMIT TARGET RESET LOSE END_SUCCEEDED"),
        (TaskState.RELEASING, "SUCCEED FAIL REQUEUE CANCEL SKIP REVOKE ALLOCATE READY LOSE RESET"),
        (TaskState.SUCCEEDED, "READY START SUCCEED FAIL CANCEL RELEASE RESET REVOKE SKIP REQUEUE"),
        (TaskState.FAILED, "READY START SUCCEED FAIL CANCEL RELEASE REVOKE SKIP REQUEUE LOSE"),
        (TaskState.CANCELLED, "READY START SUCCEED FAIL RELEASE REVOKE SKIP REQUEUE LOSE"),
        (TaskState.SKIPPED, "READY START SUCCEED FAIL RELEASE REVOKE CANCEL REQUEUE LOSE"),
    ],
)
def test_what_cannot_happen_is_a_bug(state: TaskState, events: str) -> None:
    """It raises, and `may` says so beforehand."""
    for name in events.split():
        states = np.array([state], dtype=np.uint8)
        assert not may(states, TaskEvent[name])[0], name
        with pytest.raises(IllegalTransition, match=f"{name} cannot happen in {state.name}"):
            after(states, TaskEvent[name])


def test_the_message_names_the_first_task_it_cannot_happen_to() -> None:
    """One of three."""
    states = np.array([TaskState.QUEUED, TaskState.RUNNING, TaskState.QUEUED], dtype=np.uint8)
    message = r"ALLOCATE cannot happen in RUNNING \(task 2 of 3 it was to happen to\)"
    with pytest.raises(IllegalTransition, match=message):
        after(states, E.ALLOCATE)
    assert may(states, E.ALLOCATE).tolist() == [True, False, True]
    assert states.tolist() == [1, 5, 1]


def test_numbers_in_the_database_never_change() -> None:
    """What rows hold."""
    assert " ".join(state.name for state in TaskState) == (
        "PENDING QUEUED STAGING ALLOCATED BINDING RUNNING RELEASING SUCCEEDED FAILED CANCELLED SKIPPED"
    )
    assert [int(state) for state in TaskState] == list(range(11))


def test_which_states_end_and_which_hold_room() -> None:
    """And which states of workflows end."""
    assert sorted(state.name for state in TERMINAL) == ["CANCELLED", "FAILED", "SKIPPED", "SUCCEEDED"]
    assert sorted(state.name for state in HOLDING) == [
        "ALLOCATED",
        "BINDING",
        "RELEASING",
        "RUNNING",
    ]
    assert [state.value for state in RunState if not state.terminal] == [
        "PENDING",
        "RUNNING",
        "PAUSED",
        "CANCELLING",
    ]
