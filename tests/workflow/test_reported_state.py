"""The state that clients are told, as literal cases."""

from __future__ import annotations

import pytest

from flowsched.workflow.run.states import ReportedState, RunState, reported_state


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"PENDING": 3, "QUEUED": 2}, "QUEUED"),
        ({"QUEUED": 2, "STAGING": 1}, "STAGING"),
        ({"QUEUED": 9, "ALLOCATED": 1}, "STARTING"),
        ({"QUEUED": 9, "BINDING": 1}, "STARTING"),
        ({"STAGING": 1, "BINDING": 1}, "STARTING"),
        ({"QUEUED": 9, "BINDING": 4, "RUNNING": 1}, "RUNNING"),
        ({"SUCCEEDED": 9, "RELEASING": 1}, "RUNNING"),
        ({"SUCCEEDED": 9, "PENDING": 1}, "PENDING"),
        ({"SUCCEEDED": 9}, "RUNNING"),
    ],
)
def test_the_furthest_task_decides(counts: dict[str, int], told: str) -> None:
    """Of a workflow or stage that lives; once all its tasks have ended it is about to end, too."""
    assert reported_state(RunState.RUNNING, counts) == told


@pytest.mark.parametrize("state", [each for each in RunState if each is not RunState.RUNNING])
def test_every_other_state_is_told_as_it_is(state: RunState) -> None:
    """A paused or cancelled workflow may have queued tasks."""
    assert reported_state(state, {"QUEUED": 3, "RUNNING": 1}) == state.value


def test_a_list_by_state_asks_the_database_for_what_it_keeps() -> None:
    """QUEUED, STAGING, STARTING and ENGINE are kept as RUNNING."""
    assert {each.value: each.stored.value for each in ReportedState if each.stored.value != each.value} == {
        "QUEUED": "RUNNING",
        "STAGING": "RUNNING",
        "STARTING": "RUNNING",
        "ENGINE": "RUNNING",
    }
