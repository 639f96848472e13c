"""Pods of short tasks go to their node before there is room, and take over the room of pods like them, and of no others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsched.engine import pipelining
from flowsched.engine.events import NodeDrained, QueueChanged, Recovered
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.engine.state.cluster import DrainOrder
from flowsched.executor.protocol import NodeChanged, PodGone, PodStarted
from flowsched.scheduling.queues.tree import Queue
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.run import TOTALS
from tests.engine.documents import clean, documents
from tests.engine.scene import Scene, node
from tests.engine.test_worlds import NODES, RELAXED
from tests.engine.world import Chances, World
from tests.soak import worlds

SHORT = {"name": "a", "command": ["x"], "scatter": {"count": 60}}


def scene_of(*stages: dict[str, Any], cpu: int = 2, runs_ms: int = 10, **more: Any) -> Scene:
    """A node of two cores on which nine tasks have run, each as long as it says. Eight were enough to show that they are short:
    the pods of tasks 9 and 18 run in one pipeline, in which those of 10 to 17 and of 19 to 26 wait.
    """
    scene = Scene(node(cpu=cpu), pipelines=True)
    scene.submit("w", *(stages or (SHORT,)), **more)
    for at in range(9):
        scene.start(f"fs-w-a-{at}-0")
        scene.end(f"fs-w-a-{at}-0", after=runs_ms)
    return scene


def ahead(scene: Scene) -> dict[str, int]:
    """The pods that the last step has sent ahead, and after how many ends each starts."""
    return {pod.name: pod.after for pod in scene.last.launches if pod.after}


def held(scene: Scene) -> list[str]:
    """The pods that hold room, sorted."""
    return sorted(scene.state.cluster.snapshot.claims)


def waiting(scene: Scene) -> list[str]:
    """The pods that wait for room on their node, in order."""
    return [claim.owner for each in scene.state.cluster.pipelines.values() for claim in each.waiting]


def names(*tasks: int) -> list[str]:
    return sorted(f"fs-w-a-{at}-0" for at in tasks)


SENT = (*range(10, 18), *range(19, 27))


def test_the_next_pods_are_sent_ahead_once_eight_ends_have_shown_that_they_are_short() -> None:
    """Eight for each pod that runs, in order. They hold no room; SQL has their intents."""
    scene = scene_of()
    assert ahead(scene) == {f"fs-w-a-{at}-0": at - 10 for at in range(19, 27)}
    assert waiting(scene) == [f"fs-w-a-{at}-0" for at in SENT]
    assert held(scene) == names(9, 18)
    assert scene.state.cluster.snapshot.used[0, 0] == 2_000
    assert {intent.name for intent in scene.last.delta.intents} == {*names(*range(18, 27))}
    assert len({scene.pods[name].pipeline for name in names(9, *range(18, 27))}) == 1
    assert scene.pods["fs-w-a-8-0"].pipeline == ""


def test_a_pod_that_was_sent_ahead_takes_over_the_room_of_one_that_has_ended() -> None:
    """The first of them, from that moment on; another one is sent after them: fifteen wait, and one has ended."""
    scene = scene_of()
    scene.start("fs-w-a-18-0")
    scene.end("fs-w-a-18-0", after=10)
    assert held(scene) == names(9, 10)
    claim = scene.state.cluster.snapshot.claims["fs-w-a-10-0"]
    assert (claim.since_ms, claim.until_ms) == (scene.now, scene.now + 10)
    assert ahead(scene) == {"fs-w-a-27-0": 17}


def test_a_task_is_charged_for_the_room_that_its_pod_has_had() -> None:
    """Not for the time that the pod waited on its node."""
    scene = scene_of()
    scene.start("fs-w-a-18-0")
    scene.end("fs-w-a-18-0", after=30)
    before = scene.runs["w"].stages[0].totals.copy()
    scene.start("fs-w-a-10-0")
    scene.end("fs-w-a-10-0", after=10)
    charged = dict(zip(TOTALS, (scene.runs["w"].stages[0].totals - before).tolist(), strict=True))
    assert (charged["core_ms"], charged["running_ms"]) == (10, 10)


def test_all_of_them_end_and_nothing_is_left() -> None:
    """Also the last one, which is never sent ahead."""
    scene = scene_of()
    while scene.state.work.runs:
        name = held(scene)[0]
        scene.start(name)
        scene.end(name, after=10)
    assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED"
    scene.nothing_left()


@pytest.mark.parametrize(
    ("why", "stages", "more"),
    [
        ("they are long", [SHORT], {"runs_ms": 101}),
        ("another size waits", [SHORT, {"name": "b", "command": ["x"], "resources": {"cpu": 2}}], {}),
        ("a gang waits", [SHORT, {"name": "b", "gang": True, "roles": {"w": {"replicas": 2, "command": ["x"]}}}], {}),
        ("a policy judges each eviction", [SHORT | {"policies": [{"event": "task_evicted", "action": "fail_stage"}]}], {}),
    ],
)  # fmt: skip
def test_none_is_sent_ahead_where(why: str, stages: list[dict[str, Any]], more: dict[str, Any]) -> None:
    """Nobody is overtaken, and tasks of other kinds wait for room as before."""
    scene = scene_of(*stages, **more)
    assert not any(pod.after for pod in scene.pods.values()), why
    assert waiting(scene) == []


def test_none_is_sent_ahead_on_a_cluster_that_keeps_no_orders() -> None:
    """Kubelets would start them at once."""
    scene = Scene(node(cpu=2))
    scene.submit("w", SHORT)
    for at in range(9):
        scene.start(f"fs-w-a-{at}-0")
        scene.end(f"fs-w-a-{at}-0", after=10)
    assert not any(pod.after or pod.pipeline for pod in scene.pods.values())


def test_none_is_sent_ahead_while_another_user_waits() -> None:
    """Their shares decide who gets the next core. Once the other one waits no more, the rest of the tasks is sent ahead."""
    scene = Scene(node(cpu=2), pipelines=True)
    scene.submit("w", SHORT)
    scene.submit("v", SHORT | {"scatter": {"count": 9}}, user="eve")
    while scene.queued("v", "a"):
        for name in held(scene):
            scene.start(name)
            scene.end(name, after=10)
        assert not ahead(scene) or not scene.queued("v", "a")
    assert waiting(scene)


def test_none_waits_behind_tasks_of_other_kinds() -> None:
    """One core is held for an hour: eight are sent for the pod on the other one."""
    long = {"name": "b", "command": ["x"], "estimate": {"runtime": "1h"}}
    scene = scene_of(long, SHORT)
    assert waiting(scene) == [f"fs-w-a-{at}-0" for at in range(10, 18)]
    scene.end("fs-w-b-0-0")
    assert held(scene) == names(9, 18)


def test_a_cap_of_their_queue_holds() -> None:
    """Its pods take over room from pods that count for the same cap."""
    scene = Scene(node(cpu=4), pipelines=True)
    scene.tell(QueueChanged(Queue("mine", cap=(2_000, -1, -1, -1, -1))))
    scene.submit("other", SHORT)
    scene.submit("w", SHORT, queue="mine")
    for _ in range(40):
        name = held(scene)[0]
        scene.start(name)
        scene.end(name, after=10)
        mine = [claim for claim in scene.state.cluster.snapshot.claims.values() if claim.queue == "mine"]
        assert len(mine) <= 2


def test_so_many_are_sent_at_once_and_one_task_keeps_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reasons of a round say why something waits, so something waits."""
    monkeypatch.setattr(pipelining, "MOST", 2)
    scene = Scene(node(cpu=1), pipelines=True)
    scene.submit("w", SHORT | {"scatter": {"count": 13}})
    for at in range(9):
        scene.start(f"fs-w-a-{at}-0")
        scene.end(f"fs-w-a-{at}-0", after=10)
        assert len(ahead(scene)) <= 2
    assert waiting(scene) == ["fs-w-a-10-0", "fs-w-a-11-0"]
    assert scene.queued("w", "a") == 1


def test_none_is_sent_ahead_while_many_groups_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round looks at each of them: it must not cost more where thousands wait."""
    monkeypatch.setattr(pipelining, "MOST_GROUPS", 1)
    scene = Scene(node(cpu=2), pipelines=True)
    scene.submit("w", SHORT)
    scene.submit("v", SHORT, name="w")  # tasks of one kind
    for _ in range(30):
        name = held(scene)[0]
        scene.start(name)
        scene.end(name, after=10)
        assert not ahead(scene) or not (scene.queued("w", "a") and scene.queued("v", "a"))


def test_a_pod_is_sent_only_where_it_may_run() -> None:
    """Tasks of `v` may run on one of two nodes, and are of the same size as those of `w`."""
    scene = Scene(node("n0", cpu=1), node("n1", cpu=1, labels=(("zone", "x"),)), pipelines=True)
    scene.submit("w", SHORT | {"scatter": {"count": 20}})
    scene.submit("v", SHORT | {"scatter": {"count": 40}, "selector": {"zone": "x"}}, name="w")
    while scene.queued("v", "a") > 4:
        name = next(iter(scene.state.cluster.snapshot.claims))
        scene.start(name)
        scene.end(name, after=10)
    sent = [pod for pod in scene.pods.values() if pod.after and pod.workflow == "v"]
    assert {pod.node for pod in sent} == {"n1"}


def test_a_cancel_takes_them_back() -> None:
    """All are released. What ends gives its room to none of them."""
    scene = scene_of()
    scene.command("w", "cancel")
    assert scene.released == names(*range(9, 27))
    assert scene.state.cluster.pipelines == {}
    scene.end("fs-w-a-9-0", code=143, reason="Released")
    assert held(scene) == ["fs-w-a-18-0"]
    scene.tell(*(PodGone(name, scene.now, "Released") for name in names(18, *SENT)))
    scene.nothing_left()


@pytest.mark.parametrize("word", ["pause", "queue", "drain"])
def test_they_are_taken_back_where_no_new_pod_may_start(word: str) -> None:
    """The run or its queue is paused, or their node takes no new pods. What runs there goes on."""
    scene = scene_of()
    if word == "pause":
        scene.command("w", "pause")
    elif word == "queue":
        scene.tell(QueueChanged(Queue("default", paused=True)))
    else:
        scene.tell(NodeDrained("n0", DrainOrder(scene.now)))
    assert scene.released == names(*SENT)
    scene.end("fs-w-a-9-0")
    assert held(scene) == ["fs-w-a-18-0"]


def test_all_are_taken_back_if_one_never_ran() -> None:
    """Its node had no room for its folder, or its runner has died: node and engine may count differently from then on."""
    scene = scene_of()
    scene.tell(PodGone("fs-w-a-10-0", scene.now, "NotStarted"))
    assert scene.released == names(*SENT[1:])
    scene.tell(*(PodGone(name, scene.now, "Released") for name in names(*SENT[1:])))
    assert held(scene) == names(9, 18)
    scene.end("fs-w-a-9-0", after=10)
    assert held(scene) == ["fs-w-a-10-1", "fs-w-a-18-0"]
    assert scene.pods["fs-w-a-10-1"].pipeline != scene.pods["fs-w-a-9-0"].pipeline


def test_one_that_starts_in_the_step_that_dissolves_its_pipeline_keeps_its_room() -> None:
    """Its runner has started it for the end of task 9, which the engine hears of after the loss of task 11."""
    scene = scene_of()
    lost, begun = PodGone("fs-w-a-11-0", scene.now, "NotStarted"), PodStarted("fs-w-a-10-0", scene.now)
    scene.tell(lost, scene.ending("fs-w-a-9-0"), begun)
    assert held(scene) == names(10, 18)
    assert scene.released == names(*SENT[2:])


def test_the_step_that_sends_them_asks_to_be_woken_when_they_are_late() -> None:
    """All pods that run may have started already: nothing else might happen before."""
    scene = Scene(node(cpu=1), pipelines=True)
    scene.submit("w", SHORT)
    for at in range(8):
        scene.start(f"fs-w-a-{at}-0")
        scene.end(f"fs-w-a-{at}-0", after=10)
    assert len(ahead(scene)) == 8
    assert scene.last.wake_ms == scene.now + 5_000


def test_they_are_taken_back_if_the_tasks_before_them_run_long() -> None:
    """After five seconds. They wait for room anywhere, no attempt is charged, and none is sent behind those that are slow."""
    scene = scene_of()
    scene.start(*names(9, 18))
    scene.tell(after=4_989)
    assert scene.released == []
    assert scene.last.wake_ms == scene.now + 1
    scene.tell(after=1)
    assert scene.released == names(*SENT)
    scene.tell(*(PodGone(name, scene.now, "Released") for name in names(*SENT)))
    assert scene.launched == []
    scene.tell(NodeChanged(node("n1", cpu=1)))
    assert "fs-w-a-10-1" in scene.launched
    assert scene.pods["fs-w-a-10-1"].node == "n1"
    assert scene.runs["w"].stages[0].charged.sum() == 0


def test_one_that_has_room_and_does_not_start_is_taken_back_too() -> None:
    """Node and engine disagree: no task may hold a core for ever without running."""
    scene = scene_of()
    scene.end("fs-w-a-9-0", after=10)
    assert held(scene) == names(10, 18)
    scene.tell(after=5_000)
    assert "fs-w-a-10-0" in scene.released


def test_room_that_is_taken_for_others_is_not_handed_over() -> None:
    """A gang takes both cores: its victims leave, and the pods that wait for their room are taken back."""
    scene = scene_of()
    ring = {"name": "g", "gang": True, "roles": {"w": {"replicas": 2, "command": ["x"]}}}
    scene.submit("high", ring, priority=5)
    assert scene.released == names(9, 18)
    scene.end("fs-w-a-9-0", code=143, reason="Released")
    assert scene.released == names(*SENT)
    scene.end("fs-w-a-18-0", code=143, reason="Released")
    assert [name for name in held(scene) if not name.startswith("nominated")] == [
        "fs-high-g-0-0",
        "fs-high-g-1-0",
    ]


def test_after_a_restart_they_hold_room_beyond_their_node_until_they_start_or_are_taken_back() -> None:
    """Their runner lives and may start them at any moment, so the new leader counts them."""
    scene = scene_of()
    after = Scene(node(cpu=2), pipelines=True)
    after.now, after.pods = scene.now, dict(scene.pods)
    rows = {row.index: row for delta in scene.deltas for row in delta.tasks}
    ended = {end.name for delta in scene.deltas for end in delta.ends}
    pods = tuple(pod for name, pod in scene.pods.items() if name not in ended)
    stages = [delta.stages[-1] for delta in scene.deltas if delta.stages][-1:]
    told = Remembered("w", 1, "RUNNING", "", 1_000, False, False, stages, list(rows.values()), [], list(pods))
    spec = check_workflow({"name": "w", "stages": [SHORT]})
    after.runs["w"] = rebuild_run(after.state, spec, StageGraph(spec), told)
    after.tell(Recovered(after.runs["w"], pods))
    assert after.launched == []
    assert held(after) == names(*range(9, 27))
    after.start("fs-w-a-10-0")
    after.tell(after=5_000)
    assert after.released == names(*SENT[1:])
    after.tell(*(PodGone(name, after.now, "Released") for name in names(*SENT[1:])))
    assert held(after) == names(9, 10, 18)


@pytest.fixture
def long_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of worlds run for seconds, and few of each kind."""
    monkeypatch.setattr(pipelining, "SHORT_MS", 1_000_000)
    monkeypatch.setattr(pipelining, "AHEAD_MS", 10_000_000)
    monkeypatch.setattr(pipelining, "LATE_MS", 15_000)
    monkeypatch.setattr(pipelining, "PROOFS", 1)


@pytest.mark.soak
@pytest.mark.usefixtures("long_is_short")
@settings(parent=RELAXED, max_examples=worlds(few=25, many=400))
@given(st.lists(documents(), min_size=1, max_size=3), st.integers(0, 2**32), st.booleans())
def test_every_promise_holds_in_a_bad_world_where_pods_are_sent_ahead(
    docs: list[dict[str, Any]], seed: int, urgent: bool
) -> None:
    """Failures, lost pods, cancels, dropped commits, crashes at every point, and work that takes others' room."""
    chances = Chances(fail=0.1, gone=0.1, crash=0.1, drop=0.1, cancel=0.02, repeat=0.2, lingers=0.4)
    world = World(NODES, seed, chances, pipelines=True)
    for number, document in enumerate(docs):
        document["priority"] = number if urgent else 0
        world.submit(f"w{number}", check_workflow(clean(document)))
    world.run()
    world.finished()


@pytest.mark.usefixtures("long_is_short")
def test_the_worlds_above_do_send_pods_ahead() -> None:
    """A bag of many, and crashes between."""
    for crash in (0.0, 0.2):
        ahead = 0
        for seed in range(4):
            world = World(NODES, seed, Chances(crash=crash), pipelines=True)
            stage = {"name": "s", "scatter": {"count": 200}, "command": ["x"], "resources": {"cpu": 1}}
            then = stage | {"name": "t", "inputs": [{"name": "x", "from": "s.x", "match": "index"}]}
            stage |= {"outputs": [{"name": "x", "path": "x"}]}
            world.submit("w", check_workflow({"name": "w", "stages": [stage, then]}))
            world.run()
            world.finished()
            assert set(world.sql.terminal.values()) == {"SUCCEEDED"}
            ahead += world.seen["started after it was sent ahead"]
        assert ahead > 20
