"""Attempts: what is charged, how long is waited, what grows, and what a user's retry starts again."""

from __future__ import annotations

from typing import Any

from flowsched.engine.events import Command, Revived, Tick
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import NodeChanged
from tests.engine.scene import Scene, node

READS = [{"name": "i", "uri": "s3://lab/x", "size": 1000}]


def task(**more: Any) -> dict[str, Any]:
    return {"name": "a", "command": ["x"], **more}


def test_back_off_doubles_from_one_second() -> None:
    """1 s, 2 s, 4 s after the first, second and third failure; the engine asks to be woken then."""
    scene = Scene()
    scene.submit("w", task(retry={"attempts": 4}))
    scene.end("fs-w-a-0-0", code=1)
    assert (scene.now, scene.last.wake_ms) == (1_000, 2_000)
    scene.tell(Tick(), after=999)
    assert scene.launched == []
    scene.tell(Tick(), after=1)
    assert scene.launched == ["fs-w-a-0-1"]
    scene.end("fs-w-a-0-1", code=1)
    assert (scene.now, scene.last.wake_ms) == (2_000, 4_000)
    scene.tell(Tick(), after=2_000)
    scene.end("fs-w-a-0-2", code=1)
    assert (scene.now, scene.last.wake_ms) == (4_000, 8_000)
    scene.tell(Tick(), after=4_000)
    scene.end("fs-w-a-0-3", code=1)
    assert scene.state_of("w") == "FAILED: a FAILED"
    assert scene.runs["w"].reason == "a: task 0 failed: exit code 1"
    scene.nothing_left()


def test_back_off_is_a_minute_at_most() -> None:
    """The eighth would be 128 s."""
    scene = Scene()
    scene.submit("w", task(retry={"attempts": 20}))
    for attempt in range(8):
        scene.end(f"fs-w-a-0-{attempt}", code=1)
        wake = scene.last.wake_ms
        assert wake is not None
        waited = wake - scene.now
        scene.tell(Tick(), after=waited)
    assert waited == 60_000


def test_memory_grows_after_being_out_of_it_and_only_then() -> None:
    """256 MiB, an ordinary failure, 256 MiB, out of memory, 384 MiB, out of memory, 576 MiB."""
    scene = Scene()
    scene.submit("w", task(resources={"memory": "256Mi"}, retry={"attempts": 9, "memory_factor": 1.5}))
    for attempt, (code, reason) in enumerate([(1, ""), (137, "OOMKilled"), (137, "OOMKilled")]):
        scene.end(f"fs-w-a-0-{attempt}", code=code, reason=reason)
        scene.tell(Tick(), after=60_000)
    assert [pod.memory_bytes >> 20 for pod in scene.pods.values()] == [256, 256, 384, 576]
    assert scene.state.cluster.snapshot.used[0, 1] == 576 << 20


GROWS = {"retry": {"attempts": 9, "memory_factor": 3}}


def out_of_memory(scene: Scene, *names: str) -> None:
    for name in names:
        scene.end(name, code=137, reason="OOMKilled")
        scene.tell(Tick(), after=60_000)


def told(scene: Scene, kind: str) -> list[str]:
    """The messages of all events of a kind."""
    events = [event for delta in scene.deltas for event in delta.events if event.kind == kind]
    return [str(event.body["message"]) for event in events]


def test_memory_grows_up_to_the_largest_node_and_the_task_then_fails() -> None:
    """4 GiB, then 8 of 12 GiB, since a node has 8; that was too little too, and no equal attempt follows. Events say both."""
    scene = Scene()
    scene.submit("w", task(resources={"memory": "4Gi"}, **GROWS))
    out_of_memory(scene, "fs-w-a-0-0", "fs-w-a-0-1")
    assert [pod.memory_bytes >> 30 for pod in scene.pods.values()] == [4, 8]
    assert told(scene, "task.attempt_failed") == [
        "the next attempt gets 8 GiB, the most that a node has for it, not 12 GiB",
        "it had 8 GiB, and no node has more for it",
    ]
    run = scene.runs["w"]
    assert run.reason == "a: task 0 failed: OOMKilled (it had 8 GiB, and no node has more for it)"


def test_the_largest_node_is_one_that_the_task_may_use() -> None:
    """The large node is another partition's, and the second has no second core: 4 GiB, then 6."""
    scene = Scene(
        node("large", labels={"partition": "large"}, memory_bytes=64 << 30),
        node("thin", cpu=1, labels={"partition": "all"}, memory_bytes=16 << 30),
        node("n0", labels={"partition": "all"}, memory_bytes=6 << 30),
    )
    stage = task(resources={"memory": "4Gi", "cpu": 2}, selector={"partition": "all"}, **GROWS)
    scene.submit("w", stage)
    out_of_memory(scene, "fs-w-a-0-0")
    assert [pod.memory_bytes >> 30 for pod in scene.pods.values()] == [4, 6]


def test_a_waiting_task_shrinks_when_the_largest_node_leaves_and_grows_when_a_larger_one_comes() -> None:
    """It waits behind another task on the node of 16 GiB, which is removed: it runs with 8 GiB. With 32 it gets all it wants."""
    for size, given in ((None, 8), (32, 12)):
        scene = Scene(node("n0"), node("n1", memory_bytes=16 << 30))
        scene.submit("other", task(resources={"memory": "15Gi"}))
        scene.submit("w", task(resources={"memory": "4Gi"}, **GROWS))
        out_of_memory(scene, "fs-w-a-0-0")
        assert list(scene.pods) == ["fs-other-a-0-0", "fs-w-a-0-0"]
        if size is None:
            scene.tell(NodeChanged(NodeInfo("n1", 0, 0, ready=False)))
        else:
            scene.tell(NodeChanged(node("n2", memory_bytes=size << 30)))
        scene.tell(Tick(), after=60_000)
        assert scene.pods["fs-w-a-0-1"].memory_bytes >> 30 == given


def test_memory_that_does_not_grow_is_tried_as_often_as_asked() -> None:
    """Without `memory_factor` the document wants equal attempts, also with all that a node has."""
    scene = Scene()
    scene.submit("w", task(resources={"memory": "8Gi"}, retry={"attempts": 3}))
    out_of_memory(scene, "fs-w-a-0-0", "fs-w-a-0-1", "fs-w-a-0-2")
    assert [pod.memory_bytes >> 30 for pod in scene.pods.values()] == [8, 8, 8]
    assert scene.state_of("w") == "FAILED: a FAILED"


def test_the_whole_gang_is_claimed_with_the_memory_it_is_given() -> None:
    """One worker was out of memory: what the pods are given is what the node books, and the ps stays small."""
    scene = Scene()
    roles = {
        "ps": {"replicas": 1, "completes": False, "command": ["p"], "resources": {"memory": "64Mi"}},
        "worker": {"replicas": 2, "command": ["w"], "resources": {"memory": "256Mi"}},
    }
    scene.submit(
        "w", {"name": "g", "gang": True, "retry": {"attempts": 3, "memory_factor": 2}, "roles": roles}
    )
    scene.end("fs-w-g-1-0", code=137, reason="OOMKilled")
    scene.end("fs-w-g-0-0", "fs-w-g-2-0", code=143, reason="Released")
    scene.tell(Tick(), after=1_000)
    given = {name: scene.pods[name].memory_bytes >> 20 for name in scene.launched}
    assert given == {"fs-w-g-0-1": 64, "fs-w-g-1-1": 512, "fs-w-g-2-1": 512}
    assert scene.state.cluster.snapshot.used[0, 1] >> 20 == 1088


def test_an_attempt_that_another_service_has_released_costs_nothing() -> None:
    """The database is a backup of a moment before that: this service has asked for nothing. The task runs again."""
    scene = Scene()
    scene.submit("w", task())
    scene.end("fs-w-a-0-0", code=143, reason="Released")
    assert scene.launched == ["fs-w-a-0-1"]
    scene.end("fs-w-a-0-1", code=0)
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED"


def test_lost_attempts_cost_nothing() -> None:
    """One attempt allowed, three lost: the fourth still runs; from the third on it waits 8 s."""
    scene = Scene()
    scene.submit("w", task())
    scene.gone("fs-w-a-0-0")
    assert scene.launched == ["fs-w-a-0-1"]
    scene.gone("fs-w-a-0-1")
    assert scene.launched == ["fs-w-a-0-2"]
    scene.gone("fs-w-a-0-2")
    assert scene.last.wake_ms == scene.now + 8_000
    scene.tell(Tick(), after=8_000)
    scene.end("fs-w-a-0-3")
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED"
    assert scene.last.delta.tasks[-1].charged == 0


def test_ten_losses_are_quarantine() -> None:
    """It may be what kills its nodes."""
    scene = Scene()
    scene.submit("w", task())
    for attempt in range(10):
        scene.gone(f"fs-w-a-0-{attempt}")
        scene.tell(Tick(), after=1_000_000)
    assert scene.state_of("w") == "FAILED: a FAILED"
    assert scene.runs["w"].reason == "a: task 0 failed: Quarantined (lost 10 times, last: RunnerLost)"


def test_what_went_well_at_last_tells_no_reason() -> None:
    """The row of a success does not say that it failed once."""
    scene = Scene()
    scene.submit("w", task(retry={"attempts": 2}))
    scene.end("fs-w-a-0-0", code=1)
    assert scene.last.delta.tasks == [] or scene.last.delta.tasks[-1].reason == "Failed"
    scene.tell(Tick(), after=1_000)
    scene.end("fs-w-a-0-1")
    assert scene.last.delta.tasks[-1].reason == ""


def failed_workflow() -> Scene:
    """w: a succeeded, b failed after a stage-in, c skipped."""
    scene = Scene()
    b = {"name": "b", "needs": ["a"], "command": ["x"], "inputs": READS}
    scene.submit("w", task(), b, {"name": "c", "needs": ["b"], "command": ["x"]})
    scene.end("fs-w-a-0-0")
    scene.tell(scene.arrival(scene.last.transfers[0]), after=10)
    scene.start("fs-w-b-0-0")
    scene.end("fs-w-b-0-0", code=1, after=100)
    assert scene.state_of("w") == "FAILED: a SUCCEEDED, b FAILED, c SKIPPED"
    scene.nothing_left()
    return scene


def test_a_users_retry_starts_what_failed_or_was_skipped() -> None:
    """Stage a stays as it is; b begins its attempt 1 with a new account, c waits for it."""
    scene = failed_workflow()
    scene.tell(Revived(scene.runs["w"], 7), after=100_000)
    assert scene.last.delta.commands_done == [7]
    assert scene.launched == ["fs-w-b-0-1"]
    assert scene.state_of("w") == "RUNNING: a SUCCEEDED, b RUNNING, c PENDING"
    scene.start("fs-w-b-0-1")
    scene.end("fs-w-b-0-1", after=50)
    totals = scene.last.delta.stages[0].totals
    assert totals == {
        "queued_ms": 0,
        "staging_ms": 10,
        "running_ms": 150,
        "bytes_local": 1000,
        "bytes_moved": 1000,
        "core_ms": 150,
        "gpu_ms": 0,
        "memory_gib_ms": 38,
    }
    scene.end("fs-w-c-0-0")
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED, b SUCCEEDED, c SUCCEEDED"
    scene.nothing_left()


def test_the_time_for_which_a_run_lay_failed_is_none_of_its_running_time() -> None:
    """A day passed between the failure and the retry. Stage b starts anew; stage a, which succeeded, did not start again."""
    scene = failed_workflow()
    first, failed = scene.runs["w"].started_ms, scene.now
    began = scene.runs["w"].stages[0].started_ms
    assert first is not None
    assert failed - first == 110
    scene.tell(Revived(scene.runs["w"], 7), after=86_400_000)
    run = scene.runs["w"]
    assert (run.started_ms, run.stages[1].started_ms) == (scene.now - 110, scene.now)
    assert run.stages[0].started_ms == began != scene.now
    (written,) = scene.last.delta.workflows
    assert written.started_ms == scene.now - 110
    scene.end("fs-w-b-0-1", after=50)
    assert run.ended_ms is None
    scene.end("fs-w-c-0-0", after=25)
    assert run.ended_ms == scene.now
    assert run.ended_ms - run.started_ms == 110 + 50 + 25


def test_a_retry_that_is_asked_for_twice_is_one() -> None:
    """The second finds the workflow alive: nothing is started a second time, and its row is done."""
    scene = failed_workflow()
    scene.tell(Revived(scene.runs["w"], 7), Revived(scene.runs["w"], 8))
    assert scene.last.delta.commands_done == [7, 8]
    assert scene.launched == ["fs-w-b-0-1"]
    scene.tell(Command("w", "retry", 9))
    assert scene.last.delta.commands_done == [9]
    assert scene.launched == []
    assert scene.states("w", "b") == "BINDING"


def test_a_retry_of_what_runs_changes_nothing() -> None:
    """Above all it tears no gang apart, of which one member has succeeded."""
    scene = Scene()
    roles = {"worker": {"replicas": 2, "command": ["w"]}}
    scene.submit("w", {"name": "g", "gang": True, "roles": roles})
    scene.end("fs-w-g-0-0")
    scene.command("w", "retry")
    assert scene.states("w", "g") == "SUCCEEDED BINDING"
    assert scene.state_of("w") == "RUNNING: g RUNNING"


def test_a_retry_leaves_finished_gangs_alone() -> None:
    """Shard 0 is done, with a member that was never needed; shard 1 failed, and it alone starts again."""
    scene = Scene(node(cpu=2))
    roles = {"worker": {"replicas": 3, "min": 1, "command": ["w"]}}
    scene.submit("w", {"name": "g", "gang": True, "scatter": {"count": 2}, "roles": roles})
    assert scene.launched == ["fs-w-g-0-0", "fs-w-g-1-0"]
    scene.end("fs-w-g-0-0", "fs-w-g-1-0")
    assert scene.launched == ["fs-w-g-3-0", "fs-w-g-4-0"]
    scene.end("fs-w-g-3-0", code=1)
    scene.end("fs-w-g-4-0", code=143, reason="Released")
    assert scene.states("w", "g") == "SUCCEEDED SUCCEEDED SKIPPED FAILED CANCELLED CANCELLED"
    scene.tell(Revived(scene.runs["w"]))
    assert scene.states("w", "g") == "SUCCEEDED SUCCEEDED SKIPPED BINDING BINDING QUEUED"
