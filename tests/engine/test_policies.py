"""What policies do, each action on each event."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.events import Tick
from flowsched.executor.protocol import PodGone
from tests.engine.scene import Scene, node


def scattered(event: str, action: str, **more: Any) -> Scene:
    """Stage a of three tasks on two cores, with three attempts and a policy, and a stage b beside it that waits for room."""
    scene = Scene(node(cpu=2))
    policy = {"event": event, "action": action}
    a = {
        "name": "a",
        "scatter": {"count": 3},
        "command": ["x"],
        "retry": {"attempts": 3},
        "policies": [policy],
    }
    scene.submit("w", a | more, {"name": "b", "needs": ["a"], "command": ["x"]})
    scene.start("fs-w-a-0-0", "fs-w-a-1-0")
    return scene


def test_restart_task_tries_the_task_again_after_a_second() -> None:
    """Its place is taken by who waits meanwhile."""
    scene = scattered("task_failed", "restart_task")
    scene.end("fs-w-a-0-0", code=1)
    assert scene.states("w", "a") == "QUEUED RUNNING BINDING"
    scene.end("fs-w-a-1-0", after=1_000)
    assert scene.launched == ["fs-w-a-0-1"]


def test_fail_stage_gives_no_second_attempt() -> None:
    """Whatever `retry` says; what runs goes on to its end, what waits is cancelled, and who needs it is skipped."""
    scene = scattered("task_failed", "fail_stage")
    scene.end("fs-w-a-0-0", code=1)
    assert scene.states("w", "a") == "FAILED RUNNING CANCELLED"
    assert scene.released == []
    scene.end("fs-w-a-1-0")
    assert scene.state_of("w") == "FAILED: a FAILED, b SKIPPED"
    assert scene.runs["w"].reason == "a: task 0 failed: exit code 1"


def test_abort_workflow_takes_everything_away() -> None:
    """Also what runs."""
    scene = scattered("task_failed", "abort_workflow")
    scene.end("fs-w-a-0-0", code=1)
    assert scene.released == ["fs-w-a-1-0"]
    assert scene.states("w", "a") == "FAILED RELEASING CANCELLED"
    scene.end("fs-w-a-1-0", code=143, reason="Released")
    assert scene.states("w", "a") == "FAILED CANCELLED CANCELLED"
    assert scene.state_of("w") == "FAILED: a FAILED, b CANCELLED"


def test_complete_stage_releases_what_runs_and_skips_what_waits() -> None:
    """The whole stage has succeeded, not only the shard it happened in, and its children start."""
    scene = scattered("task_failed", "complete_stage")
    scene.end("fs-w-a-0-0", code=3)
    assert scene.released == ["fs-w-a-1-0"]
    assert scene.states("w", "a") == "SUCCEEDED RELEASING SKIPPED"
    assert scene.state_of("w") == "RUNNING: a SUCCEEDED, b RUNNING"
    scene.end("fs-w-a-1-0", code=143, reason="Released")
    assert scene.states("w", "a") == "SUCCEEDED SUCCEEDED SKIPPED"


def test_ignore_counts_the_failure_as_done() -> None:
    """The others go on."""
    scene = scattered("task_failed", "ignore")
    scene.end("fs-w-a-0-0", code=3)
    assert scene.states("w", "a") == "SUCCEEDED RUNNING BINDING"


def test_a_policy_may_name_exit_codes() -> None:
    """Code 3 fails the stage, code 1 is tried again."""
    policies = [{"exit_codes": [3], "action": "fail_stage"}]
    for code, expected in ((1, "QUEUED RUNNING BINDING"), (3, "FAILED RUNNING CANCELLED")):
        scene = scattered("task_failed", "fail_stage", policies=policies)
        scene.end("fs-w-a-0-0", code=code)
        assert scene.states("w", "a") == expected


def test_the_first_policy_that_fits_decides() -> None:
    """The general one behind it is not asked."""
    policies = [{"exit_codes": [3], "action": "ignore"}, {"event": "*", "action": "fail_stage"}]
    scene = scattered("task_failed", "ignore", policies=policies)
    scene.end("fs-w-a-0-0", code=3)
    assert scene.states("w", "a") == "SUCCEEDED RUNNING BINDING"
    scene.end("fs-w-a-1-0", code=4)
    assert scene.states("w", "a") == "SUCCEEDED FAILED BINDING"


def test_success_may_complete_the_stage() -> None:
    """The first of three that finds it."""
    scene = scattered("task_completed", "complete_stage")
    scene.end("fs-w-a-0-0")
    assert scene.released == ["fs-w-a-1-0"]
    assert scene.state_of("w") == "RUNNING: a SUCCEEDED, b RUNNING"


def test_success_may_abort_the_workflow() -> None:
    """Volcano's TaskCompleted -> AbortJob."""
    scene = scattered("task_completed", "abort_workflow")
    scene.end("fs-w-a-0-0")
    assert scene.released == ["fs-w-a-1-0"]
    scene.end("fs-w-a-1-0", code=143, reason="Released")
    assert scene.state_of("w") == "FAILED: a CANCELLED, b CANCELLED"
    assert scene.runs["w"].reason == "stage 'a': task 0 completed"


def test_success_may_fail_the_stage() -> None:
    """A task that should never end."""
    scene = scattered("task_completed", "fail_stage")
    scene.end("fs-w-a-0-0")
    assert scene.states("w", "a") == "FAILED RUNNING CANCELLED"


def test_any_event_is_not_success() -> None:
    """`*` is about what goes wrong."""
    scene = scattered("*", "abort_workflow")
    scene.end("fs-w-a-0-0")
    assert scene.states("w", "a") == "SUCCEEDED RUNNING BINDING"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ("task_evicted", "Drained"),
        ("task_evicted", "NodeLost"),
        ("task_evicted", "PodDeleted"),
        ("task_evicted", "EvictionByEvictionAPI"),
        ("task_unknown", "RunnerLost"),
    ],
)
@pytest.mark.parametrize(
    ("action", "states"),
    [
        ("restart_task", "BINDING RUNNING QUEUED"),
        ("fail_stage", "FAILED RUNNING CANCELLED"),
        ("abort_workflow", "FAILED RELEASING CANCELLED"),
        ("complete_stage", "SUCCEEDED RELEASING SKIPPED"),
        ("ignore", "SUCCEEDED RUNNING BINDING"),
    ],
)
def test_a_lost_task_does_what_its_policy_says(event: str, reason: str, action: str, states: str) -> None:
    """Evicted, or lost without a word."""
    scene = scattered(event, action)
    scene.gone("fs-w-a-0-0", reason=reason)
    assert scene.states("w", "a") == states


@pytest.mark.parametrize(("event", "reason"), [("task_evicted", "RunnerLost"), ("task_unknown", "Evicted")])
def test_eviction_and_silence_are_two_events(event: str, reason: str) -> None:
    """A policy on one says nothing on the other: the task is tried again at once."""
    scene = scattered(event, "abort_workflow")
    scene.gone("fs-w-a-0-0", reason=reason)
    assert scene.states("w", "a") == "BINDING RUNNING QUEUED"


def test_a_pod_that_never_ran_is_no_policys_business() -> None:
    """The service died between its commit and the launch: the attempt is void, and the task starts again."""
    scene = Scene(node(cpu=2))
    scene.submit(
        "w", {"name": "a", "command": ["x"], "policies": [{"event": "*", "action": "abort_workflow"}]}
    )
    scene.tell(PodGone("fs-w-a-0-0", scene.now, "Void", started=False))
    assert scene.launched == ["fs-w-a-0-1"]


def test_a_pod_that_ran_and_is_gone_when_a_leader_adopts_was_lost() -> None:
    """The executor knows of no such pod. The engine knows that it ran, so the attempt is not called void, and counts as lost."""
    scene = Scene(node(cpu=2))
    scene.submit("w", {"name": "a", "command": ["x"]})
    scene.start("fs-w-a-0-0")
    scene.tell(PodGone("fs-w-a-0-0", scene.now, "NotLaunched", started=False))
    (end,) = scene.last.delta.ends
    assert (end.name, end.reason, end.started_ms) == ("fs-w-a-0-0", "PodDeleted", 1_000)
    assert scene.launched == ["fs-w-a-0-1"]


def test_who_waits_longer_than_the_policy_allows_fails() -> None:
    """The engine asks to be woken at that moment."""
    scene = Scene(node(cpu=1))
    policy = {"event": "task_pending", "timeout": "10s", "action": "fail_stage"}
    scene.submit("w", {"name": "a", "scatter": {"count": 2}, "command": ["x"], "policies": [policy]})
    assert scene.last.wake_ms == 11_000
    scene.tell(Tick(), after=9_999)
    assert scene.states("w", "a") == "BINDING QUEUED"
    scene.tell(Tick(), after=1)
    assert scene.states("w", "a") == "BINDING FAILED"
    assert scene.runs["w"].stages[0].reasons == {1: "PendingTimeout"}
