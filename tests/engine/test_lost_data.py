"""Outputs that are lost while somebody waits for them: who runs again, who waits, who goes on."""

from __future__ import annotations

from typing import Any

from flowsched.executor.protocol import ReplicaSeen
from tests.engine.scene import Scene, node

OUT = [{"name": "o", "path": "o"}]


def stage(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": ["x"], **more}


def reads(source: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "i", "from": source, **more}]


def lost(uri: str) -> ReplicaSeen:
    return ReplicaSeen(uri, "n0", 0, present=False)


def test_the_producer_of_a_lost_output_runs_again_and_its_reader_waits_for_it() -> None:
    """The reader had not started: it goes back to PENDING, and starts when the output is there again."""
    scene = Scene(node(cpu=2))
    whole = {"resources": {"cpu": 2}}
    scene.submit("w", stage("a", outputs=OUT, **whole), stage("b", inputs=reads("a.o"), **whole))
    scene.submit("z", stage("z", **whole), priority=9)
    scene.end("fs-w-a-0-0")
    assert scene.launched == ["fs-z-z-0-0"]
    assert scene.states("w", "b") == "QUEUED"
    scene.tell(lost("flowsched:w/a/0/0/o"))
    assert (scene.states("w", "a"), scene.states("w", "b")) == ("QUEUED", "PENDING")
    assert scene.state_of("w") == "RUNNING: a RUNNING, b RUNNING"
    scene.end("fs-z-z-0-0")
    assert scene.launched == ["fs-w-a-0-1"]
    scene.end("fs-w-a-0-1")
    assert scene.launched == ["fs-w-b-0-0"]
    assert [given.uris for given in scene.pods["fs-w-b-0-0"].inputs] == [("flowsched:w/a/0/1/o",)]
    assert scene.runs["w"].stages[0].reason == ""
    scene.end("fs-w-b-0-0")
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED, b SUCCEEDED"
    scene.nothing_left()


def test_a_reader_that_runs_goes_on_when_its_input_is_lost() -> None:
    """It has the bytes already."""
    scene = Scene()
    scene.submit("w", stage("a", outputs=OUT), stage("b", inputs=reads("a.o")))
    scene.end("fs-w-a-0-0")
    scene.start("fs-w-b-0-0")
    scene.tell(lost("flowsched:w/a/0/0/o"))
    assert scene.states("w", "b") == "RUNNING"
    assert scene.released == []


def test_nobody_makes_data_again_for_a_workflow_that_is_being_cancelled() -> None:
    """The workflow ends CANCELLED: a producer that was queued again would keep it CANCELLING for ever."""
    scene = Scene()
    scene.submit("w", stage("a", outputs=OUT), stage("b", inputs=reads("a.o")))
    scene.end("fs-w-a-0-0")
    scene.command("w", "cancel")
    scene.tell(lost("flowsched:w/a/0/0/o"))
    assert scene.states("w", "a") == "SUCCEEDED"
    scene.end("fs-w-b-0-0", code=143, reason="Released")
    assert scene.state_of("w") == "CANCELLED: a SUCCEEDED, b CANCELLED"
    scene.nothing_left()


def test_nobody_makes_data_again_for_a_workflow_that_is_being_aborted() -> None:
    """What a policy has ended stays ended."""
    scene = Scene()
    abort = [{"event": "task_failed", "action": "abort_workflow"}]
    scene.submit("w", stage("a", outputs=OUT), stage("b", inputs=reads("a.o")), stage("c", policies=abort))
    scene.end("fs-w-a-0-0")
    scene.end("fs-w-c-0-0", code=1)
    assert scene.released == ["fs-w-b-0-0"]
    scene.tell(lost("flowsched:w/a/0/0/o"))
    assert scene.launched == []
    scene.end("fs-w-b-0-0", code=143, reason="Released")
    assert scene.state_of("w") == "FAILED: a SUCCEEDED, b CANCELLED, c FAILED"
    assert scene.runs["w"].reason == "stage 'c' failed: exit code 1"


def test_a_pod_that_tells_of_a_lost_input_after_a_cancel_wakes_nobody() -> None:
    """PodGone.lost_inputs of a workflow that is ending: its producer stays as it is."""
    scene = Scene()
    scene.submit("w", stage("a", outputs=OUT), stage("b", inputs=reads("a.o")))
    scene.end("fs-w-a-0-0")
    scene.command("w", "cancel")
    scene.gone("fs-w-b-0-0", lost=["flowsched:w/a/0/0/o"])
    assert scene.state_of("w") == "CANCELLED: a SUCCEEDED, b CANCELLED"
    scene.nothing_left()


def test_a_reader_waits_for_all_its_parents_although_a_failed_one_runs_again() -> None:
    """Stage b runs in any case, after a (failed, of which a shard is made again) and c: not before c has ended."""
    scene = Scene(node(cpu=3))
    scene.submit(
        "w",
        stage("a", scatter={"count": 2}, outputs=OUT),
        stage("c"),
        stage("b", when="always", needs=["c"], inputs=reads("a.o", optional=True)),
    )
    scene.end("fs-w-a-0-0")
    scene.end("fs-w-a-1-0", code=1)
    assert scene.state_of("w") == "RUNNING: a FAILED, c RUNNING, b PENDING"
    scene.tell(lost("flowsched:w/a/0/0/o"))
    assert scene.launched == ["fs-w-a-0-1"]
    scene.end("fs-w-a-0-1")
    assert scene.state_of("w") == "RUNNING: a FAILED, c RUNNING, b PENDING"
    scene.end("fs-w-c-0-0")
    assert scene.launched == ["fs-w-b-0-0"]


def test_a_stage_that_ended_meanwhile_can_run_again_later() -> None:
    """a.0 is made again, b ends meanwhile; then b.0 and once more a.0 are lost: all of it is made again, in order."""
    scene = Scene(node(cpu=3))
    scene.submit(
        "w",
        stage("a", scatter={"count": 2}, outputs=OUT),
        stage("b", inputs=reads("a.o", match="index"), outputs=OUT),
        stage("slow"),
        stage("c", needs=["slow"], inputs=reads("b.o")),
    )
    scene.end("fs-w-a-0-0", "fs-w-a-1-0")
    scene.end("fs-w-b-0-0")
    scene.tell(lost("flowsched:w/a/0/0/o"))
    assert scene.launched == ["fs-w-a-0-1"]
    scene.end("fs-w-b-1-0")
    assert scene.state_of("w") == "RUNNING: a RUNNING, b SUCCEEDED, slow RUNNING, c PENDING"
    scene.end("fs-w-a-0-1")
    assert scene.state_of("w") == "RUNNING: a SUCCEEDED, b SUCCEEDED, slow RUNNING, c PENDING"
    scene.tell(lost("flowsched:w/b/0/0/o"), lost("flowsched:w/a/0/1/o"))
    assert (scene.states("w", "a"), scene.states("w", "b")) == ("BINDING SUCCEEDED", "PENDING SUCCEEDED")
    scene.end("fs-w-a-0-2")
    assert scene.launched == ["fs-w-b-0-1"]
    scene.end("fs-w-b-0-1")
    scene.end("fs-w-slow-0-0")
    assert scene.launched == ["fs-w-c-0-0"]


def test_losing_one_of_two_replicas_wakes_nobody() -> None:
    """The bytes are still somewhere."""
    scene = Scene(node("n0"), node("n1"))
    scene.submit(
        "w", stage("a", outputs=OUT), stage("b", inputs=reads("a.o"), resources={"cpu": 4}), stage("c")
    )
    scene.end("fs-w-a-0-0")
    where = scene.pods["fs-w-a-0-0"].node
    other = "n1" if where == "n0" else "n0"
    scene.tell(ReplicaSeen("flowsched:w/a/0/0/o", other, 1_000_000))
    scene.tell(ReplicaSeen("flowsched:w/a/0/0/o", where, 0, present=False))
    assert scene.states("w", "a") == "SUCCEEDED"


def test_a_reader_goes_on_without_what_a_member_of_a_failed_gang_had_written() -> None:
    """One of two members succeeds and writes, the other fails: so does the gang. A stage that runs in any case, and may do without,
    has not started when the written output is lost. Nobody can make it again: it starts without it.
    """
    scene = Scene(node(cpu=2))
    role = {"replicas": 2, "command": ["x"], "resources": {"cpu": 1}}
    gang = {
        "name": "a",
        "gang": True,
        "roles": {"m": role},
        "outputs": [{**OUT[0], "role": "m"}],
        "retry": {"attempts": 1},
    }
    any_case = stage("b", inputs=reads("a.o", optional=True), when="always", resources={"cpu": 2})
    scene.submit("w", gang, any_case)
    first, second = scene.launched
    scene.submit("z", stage("z", resources={"cpu": 2}))
    scene.start(first, second)
    scene.end(first)
    scene.end(second, code=1)
    assert scene.launched == ["fs-z-z-0-0"]
    assert scene.states("w", "b") == "QUEUED"
    (written,) = [each.uri for shards in scene.runs["w"].outputs.values() for each in shards.values()]
    scene.tell(lost(written))
    scene.end("fs-z-z-0-0")
    assert scene.launched == ["fs-w-b-0-0"]
    assert scene.pods["fs-w-b-0-0"].inputs == ()
