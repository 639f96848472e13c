"""The first thing that keeps a workflow from running, which every list shows."""

from __future__ import annotations

from flowsched.engine.events import QueueChanged
from flowsched.engine.explain import Explanation, Facts, explain, first_reason, stage_reason
from flowsched.executor.protocol import PodHeld
from flowsched.scheduling.queues.tree import Queue
from tests.engine.scene import Scene, node


def _stage(name: str, cpu: int, **more: object) -> dict[str, object]:
    return {"name": name, "command": ["x"], "resources": {"cpu": cpu}, **more}


def _first(scene: Scene, workflow: str) -> Explanation | None:
    return first_reason(scene.state, scene.runs[workflow], scene.now)


def test_a_workflow_that_waits_for_room_says_so() -> None:
    """And once it runs there is nothing to say, although more of its tasks wait."""
    scene = Scene(node(cpu=4))
    scene.submit("v", _stage("a", 4))
    scene.submit("w", _stage("b", 3, scatter={"count": 5}))
    told = _first(scene, "w")
    assert told is not None
    assert (told.stage, told.tasks, told.code, told.permanent) == ("b", 5, "Insufficient", False)
    scene.end("fs-v-a-0-0")
    scene.start("fs-w-b-0-0")
    assert _first(scene, "w") is None
    of_stage = stage_reason(Facts(scene.state, scene.runs["w"]), scene.runs["w"].stages[0], scene.now)
    assert of_stage is not None
    assert (of_stage.tasks, of_stage.code) == (4, "Insufficient")


def test_what_never_ends_by_itself_is_told_of_a_workflow_that_runs() -> None:
    """One stage runs; another asks for more than any node has."""
    scene = Scene(node(cpu=4))
    scene.submit("w", _stage("a", 1), _stage("b", 64))
    scene.start("fs-w-a-0-0")
    told = _first(scene, "w")
    assert told is not None
    assert (told.stage, told.code, told.permanent) == ("b", "LargerThanNode", True)


def test_a_stage_that_no_node_can_run_is_told_before_its_turn() -> None:
    """Of the workflow, of the stage and in its explanation. A stage that may be skipped is not judged, nor one behind it."""
    scene = Scene(node(cpu=4))
    scene.submit(
        "w",
        _stage("a", 1, outputs=[{"name": "o", "path": "o", "value": True}]),
        _stage("b", 64, needs=["a"]),
    )
    scene.submit(
        "v",
        _stage("a", 1, outputs=[{"name": "o", "path": "o", "value": True}]),
        _stage("b", 64, needs=["a"], when={"equals": {"a.o": "yes"}}),
        _stage("c", 64, needs=["b"]),
        _stage("d", 64, needs=["a"], when="failure"),
    )
    scene.start("fs-w-a-0-0", "fs-v-a-0-0")
    told = _first(scene, "w")
    assert told is not None
    assert (told.stage, told.state, told.code, told.permanent) == ("b", "PENDING", "LargerThanNode", True)
    assert told.message == "larger than any node; task needs 64 CPU; the most that a node has is 4 CPU"
    run = scene.runs["w"]
    assert stage_reason(Facts(scene.state, run), run.stages[1], scene.now) == told
    assert explain(scene.state, run, scene.now, forecast=False)[-1] == told
    assert _first(scene, "v") is None


def test_a_gang_that_its_queues_cap_forbids_is_told_before_its_turn() -> None:
    """The cap is compared with the members that it starts with, together. A stage whose tasks fit one by one is not judged."""
    scene = Scene(node(cpu=4))
    scene.tell(QueueChanged(Queue("all", cap=(3000,))), QueueChanged(Queue("sweep", parent="all")))
    member = {"replicas": 4, "min": 2, "command": ["x"], "resources": {"cpu": 2}}
    scene.submit(
        "w",
        _stage("a", 1),
        _stage("many", 2, needs=["a"], scatter={"count": 9}),
        {"name": "train", "gang": True, "roles": {"worker": member}, "needs": ["a"]},
        queue="sweep",
    )
    scene.start("fs-w-a-0-0")
    told = _first(scene, "w")
    assert told is not None
    assert (told.stage, told.state, told.code, told.permanent) == (
        "train",
        "PENDING",
        "LargerThanQueue",
        True,
    )
    assert told.message == "queue all may never have more than 3 CPU, and this needs 4 CPU"
    assert explain(scene.state, scene.runs["w"], scene.now, forecast=False)[-1] == told


def test_a_gpu_by_a_name_of_kubernetes_is_answered_with_the_field() -> None:
    """No node offers that name."""
    scene = Scene(node(cpu=4))
    gpu = {"nvidia.com/gpu": 1}
    scene.submit("w", {"name": "a", "command": ["x"], "resources": {"cpu": 1, **gpu}})
    told = _first(scene, "w")
    assert told is not None
    assert told.code == "LargerThanNode"
    assert 'no node offers nvidia.com/gpu under that name: ask for "gpu" instead' in told.message


def test_a_stage_that_waits_for_others_names_them() -> None:
    """Of the workflow that is no reason: the others run."""
    scene = Scene(node(cpu=4))
    many = _stage("m", 1, scatter={"count": 3})
    scene.submit("w", _stage("a", 1), many, _stage("b", 1, needs=["a", "m"]))
    scene.start("fs-w-a-0-0", "fs-w-m-0-0", "fs-w-m-1-0", "fs-w-m-2-0")
    run = scene.runs["w"]
    told = stage_reason(Facts(scene.state, run), run.stages[2], scene.now)
    assert told is not None
    assert (told.code, told.message) == ("WaitingForParents", "waits for a, m (0 of 3 shards done)")
    assert _first(scene, "w") is None


def test_it_is_what_explain_says_first() -> None:
    """The same code and message as the whole explanation has for that stage."""
    scene = Scene(node(cpu=2))
    scene.submit("v", _stage("a", 2))
    scene.submit("w", _stage("b", 2, scatter={"count": 3}))
    told, whole = _first(scene, "w"), explain(scene.state, scene.runs["w"], scene.now, forecast=False)
    assert told is not None
    assert (told.code, told.message, told.tasks) == (whole[0].code, whole[0].message, whole[0].tasks)


def test_a_task_that_delivers_its_files_says_how_many_are_at_their_targets() -> None:
    """The run and the stage show the phase and the count while the task is RUNNING; what is stuck is told before it."""
    scene = Scene(node(cpu=2))
    scene.submit("w", _stage("s", 1, scatter={"count": 2}))
    scene.start("fs-w-s-0-0")
    scene.start("fs-w-s-1-0")
    scene.tell(PodHeld("fs-w-s-0-0", "Delivering", "3,000 of 60,000 files"))
    run = scene.runs["w"]
    told = stage_reason(Facts(scene.state, run), run.stages[0], scene.now)
    assert told is not None
    assert (told.state, told.code) == ("DELIVERING", "Delivering")
    assert told.message == "1 of 2 tasks deliver their files: 3,000 of 60,000 files"
    assert _first(scene, "w") is None, "the other task still computes"
    scene.tell(PodHeld("fs-w-s-1-0", "OutputNoRoom", "the disk is full"))
    first = _first(scene, "w")
    assert first is not None
    assert (first.state, first.message) == ("RUNNING", "1 of 2 tasks do not end: the disk is full")
