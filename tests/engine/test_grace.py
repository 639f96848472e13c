"""Tasks that are asked to leave and end well within their grace: exit code 0, outputs published."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.events import NodeDrained
from flowsched.engine.state.cluster import DrainOrder
from flowsched.executor.protocol import ContainerReport, NodeChanged, PodEnded
from tests.engine.scene import Scene, node

GANG = {"gang": True, "roles": {"worker": {"replicas": 2, "command": ["x"], "resources": {"cpu": 1}}}}


def drained(**more: Any) -> Scene:
    """Two tasks run on a node that is being emptied, and another stage waits for them."""
    scene = Scene(node(cpu=2))
    first = {"name": "a", "scatter": {"count": 2}, "command": ["x"], "resources": {"cpu": 1}} | more
    if "gang" in more:
        del first["scatter"], first["command"], first["resources"]
    scene.submit("w", first, {"name": "b", "needs": ["a"], "command": ["x"], "resources": {"cpu": 1}})
    scene.start("fs-w-a-0-0", "fs-w-a-1-0")
    scene.tell(NodeDrained("n0", DrainOrder(0, scene.now)))
    assert scene.states("w", "a") == "RELEASING RELEASING"
    scene.tell(NodeChanged(node("n1", cpu=2)))
    return scene


def test_a_task_that_ends_well_within_its_grace_is_done() -> None:
    """It does not run again, its children start, and its time teaches nothing: it may have ended early."""
    scene = drained()
    scene.end("fs-w-a-0-0")
    assert scene.states("w", "a") == "SUCCEEDED RELEASING"
    scene.end("fs-w-a-1-0")
    assert scene.launched == ["fs-w-b-0-0"]
    assert scene.state.work.estimates.runtime_ms("w", "a") is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [(143, "Released"), (3, "Released"), (0, "OutputMissing"), (0, "Released"), (137, "OOMKilled")],
)
def test_any_other_end_within_its_grace_is_followed_by_another_attempt(code: int, reason: str) -> None:
    """No attempt of its retries is charged."""
    scene = drained()
    scene.end("fs-w-a-0-0", code=code, reason=reason)
    assert scene.launched == ["fs-w-a-0-1"]
    assert scene.runs["w"].stages[0].charged.tolist() == [0, 0]


def test_a_script_that_wrote_another_return_code_for_its_client_runs_again() -> None:
    """Cromwell's scripts end with 0 whatever their command returned; the signal may have ended the command."""
    scene = drained()
    scene.tell(PodEnded("fs-w-a-0-0", scene.now, 0, container=ContainerReport((), returned=143)))
    assert scene.launched == ["fs-w-a-0-1"]


@pytest.mark.parametrize(
    ("action", "then"),
    [
        ("complete_stage", "a SUCCEEDED, b RUNNING"),
        ("fail_stage", "a RUNNING, b PENDING"),
        ("abort_workflow", "a RUNNING, b CANCELLED"),
    ],
)
def test_a_policy_about_completed_tasks_holds_within_the_grace_too(action: str, then: str) -> None:
    """As it does for a task that no one asked to leave."""
    scene = drained(policies=[{"event": "task_completed", "action": action}])
    scene.end("fs-w-a-0-0")
    assert scene.state_of("w").partition(": ")[2] == then
    scene.end("fs-w-a-1-0", code=143, reason="Released")
    assert scene.states("w", "a").split()[0] == ("FAILED" if action == "fail_stage" else "SUCCEEDED")


def test_a_task_of_a_stage_that_failed_meanwhile_is_done_too() -> None:
    """As its running tasks go on to their end: a retry need not do it again."""
    scene = Scene(node(cpu=1), node("n1", cpu=1))
    scene.submit("w", {"name": "a", "scatter": {"count": 2}, "command": ["x"], "resources": {"cpu": 1}})
    scene.start("fs-w-a-0-0", "fs-w-a-1-0")
    scene.tell(NodeDrained(scene.pods["fs-w-a-0-0"].node, DrainOrder(0, scene.now)))
    scene.end("fs-w-a-1-0", code=1)
    scene.end("fs-w-a-0-0")
    assert scene.states("w", "a") == "SUCCEEDED FAILED"


def test_a_task_that_a_user_cancelled_stays_cancelled() -> None:
    """However it ends."""
    scene = drained()
    scene.command("w", "cancel")
    scene.end("fs-w-a-0-0")
    scene.end("fs-w-a-1-0", code=143, reason="Released")
    assert scene.states("w", "a") == "CANCELLED CANCELLED"


def test_a_policy_that_fails_what_is_taken_away_holds() -> None:
    """It was about being taken away, which has happened."""
    scene = drained(policies=[{"event": "task_evicted", "action": "fail_stage"}])
    scene.end("fs-w-a-0-0")
    assert scene.states("w", "a").split()[0] == "FAILED"


def test_a_member_of_a_gang_runs_again_with_its_gang() -> None:
    """Its gang starts anew as one."""
    scene = drained(**GANG)
    scene.end("fs-w-a-0-0")
    scene.end("fs-w-a-1-0", code=143, reason="Released")
    assert scene.launched == ["fs-w-a-0-1", "fs-w-a-1-1"]
