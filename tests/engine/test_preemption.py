"""Taking back, as the engine carries it out: who leaves, who waits for it, who comes, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.events import NodeDrained, QueueChanged
from flowsched.engine.explain import explain, situations_of
from flowsched.engine.state.cluster import DrainOrder
from flowsched.engine.step import step
from flowsched.executor.protocol import NodeChanged, PodStarted
from flowsched.scheduling.explain.remedies import outlook
from flowsched.scheduling.plan import Nomination
from flowsched.scheduling.queues.tree import Queue
from tests.engine.scene import Scene, node

RING = {
    "name": "ring",
    "gang": True,
    "roles": {"worker": {"replicas": 3, "command": ["x"], "resources": {"cpu": 1}}},
}


def bag(count: int, **more: Any) -> dict[str, Any]:
    return {"name": "many", "scatter": {"count": count}, "command": ["x"], "resources": {"cpu": 1}, **more}


def filled(**more: Any) -> Scene:
    """Four cores, all taken by a bag of low priority that runs, of which two tasks more wait."""
    scene = Scene(node(cpu=4))
    scene.submit("low", bag(6, **more))
    scene.start(*(f"fs-low-many-{n}-0" for n in range(4)))
    scene.tell(after=1_000)
    return scene


def events(scene: Scene, kind: str) -> list[tuple[str, Any]]:
    """(workflow, body) of the last step's events of a kind."""
    return [(row.workflow, dict(row.body)) for row in scene.last.delta.events if row.kind == kind]


def nominations(scene: Scene) -> list[Nomination]:
    return list(scene.state.cluster.snapshot.nominations.values())


def released(scene: Scene, *names: str) -> None:
    scene.end(*names, code=143, reason="Released")


def test_a_bag_makes_way_for_a_gang_and_goes_on_after_it() -> None:
    """Three of four leave, the gang starts when all three have left, and what was taken away runs again at no charge."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    assert scene.released == ["fs-low-many-1-0", "fs-low-many-2-0", "fs-low-many-3-0"]
    assert scene.launched == []
    assert scene.states("low", "many") == "RUNNING RELEASING RELEASING RELEASING QUEUED QUEUED"
    released(scene, "fs-low-many-1-0", "fs-low-many-2-0")
    assert scene.launched == []  # neither the gang, nor those that wait
    released(scene, "fs-low-many-3-0")
    assert scene.launched == ["fs-high-ring-0-0", "fs-high-ring-1-0", "fs-high-ring-2-0"]
    assert scene.states("low", "many") == "RUNNING QUEUED QUEUED QUEUED QUEUED QUEUED"
    assert nominations(scene) == []
    scene.end("fs-high-ring-0-0", "fs-high-ring-1-0", "fs-high-ring-2-0")
    assert scene.launched == ["fs-low-many-1-1", "fs-low-many-2-1", "fs-low-many-3-1"]
    assert scene.runs["low"].stages[0].charged.tolist() == [0] * 6
    assert scene.runs["low"].stages[0].lost.tolist() == [0] * 6
    scene.end("fs-low-many-0-0", *(f"fs-low-many-{n}-1" for n in (1, 2, 3)))
    scene.end("fs-low-many-4-0", "fs-low-many-5-0")
    assert scene.state_of("low") == "SUCCEEDED: many SUCCEEDED"
    scene.nothing_left()


def test_history_says_who_took_the_room_and_why() -> None:
    """An event for each task, and the reason in its row."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    told = events(scene, "task.evicted")
    message = "high/ring of priority 10 takes its room; its own is 0"
    body = {"stage": "many", "index": 3, "attempt": 0, "reason": "Preempted", "message": message}
    assert told[0] == ("low", body)
    assert len(told) == 3
    rows = {row.index: row.reason for row in scene.last.delta.tasks if row.workflow == "low"}
    assert rows == {1: "Preempted", 2: "Preempted", 3: "Preempted"}
    released(scene, "fs-low-many-3-0")
    (end,) = scene.last.delta.ends
    assert (end.reason, end.message) == ("Released", "Preempted")


def test_who_waits_for_its_victims_says_so() -> None:
    """With how many have not left, and when it should start."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    (told,) = explain(scene.state, scene.runs["high"], scene.now)
    assert (told.code, told.numbers) == ("WaitingForVictims", {"victims": 3, "not_left": 3, "nodes": 1})
    released(scene, "fs-low-many-2-0")
    (told,) = explain(scene.state, scene.runs["high"], scene.now)
    assert told.message == (
        "its room on 1 node is being freed: 2 of 3 pods that make way for it have not left yet"
    )


def test_the_start_of_who_waits_for_its_victims_does_not_move_with_the_clock() -> None:
    """It is promised once, and no more when it has passed. Meanwhile no other remedy is named: its room is held for it."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    began, starts = scene.now, []
    for _ in range(4):
        (told,) = explain(scene.state, scene.runs["high"], scene.now)
        assert told.group is not None
        assert situations_of(scene.state, [told.group], scene.now) == {}
        starts.append(told.start_ms)
        scene.tell(NodeChanged(node("n1", cpu=1)), after=4_000)
    assert starts == [began + 10_000] * 3 + [None]
    (other,) = {
        told.group for told in explain(scene.state, scene.runs["low"], scene.now) if told.state == "QUEUED"
    }
    assert other is not None
    assert list(situations_of(scene.state, [other], scene.now)) == [other]


def test_who_leaves_says_why() -> None:
    """The history names the taker."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    told = {each.state: each.message for each in explain(scene.state, scene.runs["low"], scene.now)}
    assert told["RELEASING"] == "is being taken away: Preempted"


def test_who_was_stopped_and_waits_again_says_so() -> None:
    """Beside the reason for which it waits now; those that never ran are counted in the same line."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    released(scene, *(f"fs-low-many-{n}-0" for n in (1, 2, 3)))
    [waits] = [each for each in explain(scene.state, scene.runs["low"], scene.now) if each.state == "QUEUED"]
    assert (waits.code, waits.tasks) == ("Insufficient", 5)
    assert waits.message.endswith("; 3 of 5 were stopped before: Preempted (the events say for what)")


def test_while_it_waits_nobody_else_is_taken_away() -> None:
    """However often the backlog is looked at."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    for _ in range(5):
        scene.tell(NodeChanged(node("n1", cpu=1)), after=10_000)
        assert scene.released == []
    assert [len(each.victims) for each in nominations(scene)] == [3]


def test_room_that_is_being_freed_goes_to_nobody_else() -> None:
    """One victim has left; a pod that is more important than the gang takes another one's room instead."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    released(scene, "fs-low-many-1-0")
    scene.submit("higher", bag(1), priority=20)
    assert scene.launched == []
    assert scene.released == ["fs-low-many-0-0"]


def test_a_task_that_ends_well_while_it_is_being_taken_away_is_done() -> None:
    """It is not run again; its room counts as freed all the same."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    scene.end("fs-low-many-1-0")
    assert scene.states("low", "many") == "RUNNING SUCCEEDED RELEASING RELEASING QUEUED QUEUED"
    assert events(scene, "task.succeeded")[0][1]["index"] == 1
    released(scene, "fs-low-many-2-0", "fs-low-many-3-0")
    assert len(scene.launched) == 3


def test_a_pod_that_starts_while_it_is_being_taken_away_still_leaves() -> None:
    """Bound, taken away, started, gone: the news of the start changes nothing."""
    scene = Scene(node(cpu=3))
    scene.submit("low", bag(3))
    scene.submit("high", RING, priority=1)
    assert scene.states("low", "many") == "RELEASING RELEASING RELEASING"
    scene.tell(PodStarted("fs-low-many-0-0", scene.now))
    assert scene.states("low", "many") == "RELEASING RELEASING RELEASING"
    released(scene, *(f"fs-low-many-{n}-0" for n in range(3)))
    assert len(scene.launched) == 3


def test_a_gang_is_taken_away_as_a_whole_and_starts_anew_as_one() -> None:
    """One core is wanted of its three; all members leave, and all come back with the next attempt."""
    scene = Scene(node(cpu=3))
    scene.submit("low", RING)
    scene.start(*(f"fs-low-ring-{n}-0" for n in range(3)))
    scene.submit("high", bag(1), priority=1)
    assert scene.released == ["fs-low-ring-0-0", "fs-low-ring-1-0", "fs-low-ring-2-0"]
    released(scene, *(f"fs-low-ring-{n}-0" for n in range(3)))
    assert scene.launched == ["fs-high-many-0-0"]
    scene.end("fs-high-many-0-0")
    assert scene.launched == ["fs-low-ring-0-1", "fs-low-ring-1-1", "fs-low-ring-2-1"]
    assert {pod.gang.generation for pod in scene.last.launches if pod.gang} == {1}


def test_a_member_that_has_ended_runs_again_with_its_gang() -> None:
    """The gang's work is common: it starts anew as a whole."""
    scene = Scene(node(cpu=3))
    scene.submit("low", RING)
    scene.start(*(f"fs-low-ring-{n}-0" for n in range(3)))
    scene.end("fs-low-ring-1-0")
    scene.submit("high", bag(2), priority=1)
    assert scene.states("low", "ring") == "RELEASING QUEUED RELEASING"


def test_cancelling_the_taker_gives_its_room_to_others() -> None:
    """What was taken away for it leaves all the same, and comes back."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    released(scene, "fs-low-many-1-0")
    assert scene.launched == []
    scene.command("high", "cancel")
    assert nominations(scene) == []
    assert scene.launched == ["fs-low-many-1-1"]


def test_pausing_the_taker_gives_its_room_to_others() -> None:
    """Held room would stand idle for as long as somebody likes."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    released(scene, "fs-low-many-1-0")
    scene.command("high", "pause")
    assert scene.launched == ["fs-low-many-1-1"]


def test_a_nomination_ends_with_its_node() -> None:
    """The node is gone: the group looks for room again like all others, and takes no more victims for a minute."""
    scene = Scene(node(cpu=3), node("n1", cpu=2))
    scene.submit("low", bag(5))
    scene.start(*(f"fs-low-many-{n}-0" for n in range(5)))
    scene.submit("high", RING, priority=10)
    assert [row[0] for each in nominations(scene) for row in each.room] == [0]
    scene.tell(NodeChanged(node(cpu=3, ready=False)))
    assert nominations(scene) == []
    assert scene.released == []
    assert scene.state.round.reasons[2].code.value != "WaitingForVictims"


def test_a_nomination_ends_after_ten_minutes() -> None:
    """Whatever keeps its victims from leaving: room is not held for ever."""
    scene = filled()
    scene.submit("high", RING, priority=10)
    assert scene.last.wake_ms == scene.now + 600_000
    scene.tell(after=600_000)
    assert nominations(scene) == []
    assert scene.released == []


def test_a_gang_keeps_its_room_while_its_inputs_are_copied_there() -> None:
    """Its victims have left, its data have not come: those that wait do not get in between, and nobody is taken away twice."""
    scene = filled()
    reads = {"inputs": [{"name": "ref", "uri": "s3://lab/ref", "size": 50_000_000_000}]}
    scene.submit("high", RING | reads, priority=10)
    assert len(scene.released) == 3
    released(scene, *(f"fs-low-many-{n}-0" for n in range(3)))
    assert (scene.launched, scene.states("high", "ring")) == ([], "STAGING STAGING STAGING")
    (order,) = scene.last.transfers
    scene.tell(after=60_000)
    assert (scene.launched, scene.released) == ([], [])
    scene.arrive(order)
    while scene.last.transfers:
        scene.arrive(scene.last.transfers[0])
    assert scene.launched == [f"fs-high-ring-{n}-0" for n in range(3)]
    assert nominations(scene) == []


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_the_room_that_is_held_for_a_queue_is_its_own_under_its_cap(tasks: int) -> None:
    """A queue of higher priority that may have two cores: what is freed for it counts once, and it starts."""
    scene = filled()
    scene.tell(QueueChanged(Queue("quick", priority=1, cap=(2000,))))
    scene.submit("short", bag(tasks), queue="quick")
    most = min(tasks, 2)
    assert scene.released == ["fs-low-many-2-0", "fs-low-many-3-0"][-most:]
    released(scene, *scene.released)
    assert scene.launched == [f"fs-short-many-{n}-0" for n in range(most)]
    assert nominations(scene) == []


def test_a_capped_queue_keeps_its_room_while_its_inputs_are_copied_there() -> None:
    """The room held, and the copies that go there, are the same two cores."""
    scene = filled()
    scene.tell(QueueChanged(Queue("quick", priority=1, cap=(2000,))))
    reads = {"inputs": [{"name": "ref", "uri": "s3://lab/ref", "size": 50_000_000_000}]}
    scene.submit("short", bag(2, **reads), queue="quick")
    released(scene, *scene.released)
    assert scene.launched == []
    while scene.last.transfers:
        scene.arrive(scene.last.transfers[0])
    assert scene.launched == ["fs-short-many-0-0", "fs-short-many-1-0"]


def test_a_policy_on_evictions_is_kept() -> None:
    """Who said that an evicted task fails its stage gets that."""
    scene = filled(policies=[{"event": "task_evicted", "action": "fail_stage"}])
    scene.submit("high", RING, priority=10)
    assert scene.states("low", "many") == "RUNNING RELEASING RELEASING RELEASING CANCELLED CANCELLED"
    released(scene, *(f"fs-low-many-{n}-0" for n in (1, 2, 3)))
    scene.end("fs-low-many-0-0")
    assert scene.state_of("low") == "FAILED: many FAILED"


def test_a_step_that_is_dropped_takes_nobody_away() -> None:
    """Victims run on, nothing is held; the same step decides the same again."""
    scene = filled()
    before = scene.state.cluster.snapshot.used.tobytes()
    accepted = scene.accepted("high", RING, priority=10)
    first = step(scene.state, [accepted], scene.now)
    releases = first.releases
    first.drop()
    assert scene.state.cluster.snapshot.used.tobytes() == before
    assert scene.states("low", "many") == "RUNNING RUNNING RUNNING RUNNING QUEUED QUEUED"
    assert nominations(scene) == []
    scene.submit("high", RING, priority=10)
    assert scene.last.releases == releases


# ---- nodes that shall be empty ----


def drained(until_ms: int | None, name: str = "n0") -> NodeDrained:
    return NodeDrained(name, None if until_ms is None else DrainOrder(0, until_ms))


def test_a_drained_node_gets_nothing_new_and_is_empty_in_time() -> None:
    """One task ends by itself before the moment, the other is taken away at it and runs elsewhere, at no charge."""
    scene = Scene(node(cpu=2))
    scene.submit("w", bag(3))
    scene.start("fs-w-many-0-0", "fs-w-many-1-0")
    scene.tell(drained(scene.now + 60_000))
    assert scene.last.wake_ms == scene.now + 60_000
    scene.end("fs-w-many-0-0", after=30_000)
    assert scene.launched == []
    scene.tell(after=30_000)
    assert scene.released == ["fs-w-many-1-0"]
    assert events(scene, "task.evicted")[0][1]["message"] == "its node is being emptied"
    released(scene, "fs-w-many-1-0")
    assert scene.launched == []
    scene.tell(NodeChanged(node("n1", cpu=2)))
    assert scene.launched == ["fs-w-many-1-1", "fs-w-many-2-0"]
    assert scene.runs["w"].stages[0].charged.tolist() == [0, 0, 0]


def test_a_gang_leaves_a_drained_node_as_a_whole() -> None:
    """Its members on other nodes too: it starts anew where there is room for all."""
    scene = Scene(node(cpu=2), node("n1", cpu=2), node("n2", cpu=2))
    scene.submit("w", RING)
    names = [f"fs-w-ring-{n}-0" for n in range(3)]
    scene.start(*names)
    (there,) = {scene.pods[name].node for name in names} - {scene.pods[names[0]].node}
    scene.tell(drained(scene.now, there))
    assert scene.released == names
    released(scene, *names)
    assert len(scene.launched) == 3
    assert there not in {pod.node for pod in scene.last.launches}


def test_a_node_is_used_again_as_the_cluster_says_it_is_by_then() -> None:
    """It has grown meanwhile."""
    scene = Scene(node(cpu=1))
    scene.tell(drained(scene.now))
    scene.submit("w", bag(3))
    scene.tell(NodeChanged(node(cpu=2)))
    assert scene.launched == []
    (told,) = explain(scene.state, scene.runs["w"], scene.now)
    message = "the only node is not ready: n0 is drained (`flowsched nodes uncordon n0`)"
    assert (told.code, told.message) == ("NoNodes", message)
    scene.tell(drained(None))
    assert scene.launched == ["fs-w-many-0-0", "fs-w-many-1-0"]


def test_a_drain_told_twice_or_before_its_node_is_known_is_kept() -> None:
    """After a restart the drain may be told first."""
    scene = Scene(node(cpu=1))
    scene.tell(drained(scene.now, "n1"), drained(scene.now, "n1"))
    scene.tell(NodeChanged(node("n1", cpu=4)))
    scene.submit("w", bag(2))
    assert scene.launched == ["fs-w-many-0-0"]


def test_a_dropped_step_forgets_a_drain() -> None:
    """The node is ready as before."""
    scene = Scene(node(cpu=1))
    step(scene.state, [drained(scene.now)], scene.now).drop()
    assert scene.state.cluster.drains == {}
    scene.submit("w", bag(1))
    assert scene.launched == ["fs-w-many-0-0"]


def test_a_node_that_is_drained_without_a_deadline_waits_for_its_tasks() -> None:
    """What runs goes on to its end, nothing new starts, and the reason names the author and the words."""
    scene = Scene(node(cpu=2))
    scene.submit("w", bag(3))
    scene.start("fs-w-many-0-0", "fs-w-many-1-0")
    scene.tell(NodeDrained("n0", DrainOrder(scene.now, reason="new disk", author="ada")))
    scene.tell(after=86_400_000)
    assert scene.released == []
    scene.end("fs-w-many-0-0", "fs-w-many-1-0")
    assert scene.launched == []
    (told,) = explain(scene.state, scene.runs["w"], scene.now)
    message = "the only node is not ready: n0 is drained by ada: new disk (`flowsched nodes uncordon n0`)"
    assert (told.code, told.message) == ("NoNodes", message)


# ---- maintenance: a drain from a later moment on ----

HOUR = 3_600_000


def maintained(scene: Scene, in_ms: int, until_ms: int | None = None) -> None:
    """Announce that n0 is drained so much later."""
    scene.tell(NodeDrained("n0", DrainOrder(scene.now + in_ms, until_ms, "new disk", "ada")))


def test_no_task_starts_that_would_run_into_a_maintenance() -> None:
    """Two hours before it, a task of one hour starts and one of three hours waits, and says for which maintenance."""
    scene = Scene(node(cpu=4))
    maintained(scene, 2 * HOUR)
    scene.submit("long", bag(1, estimate={"runtime": "3h"}))
    assert scene.launched == []
    scene.submit("short", bag(1, estimate={"runtime": "1h"}))
    assert scene.launched == ["fs-short-many-0-0"]
    (told,) = explain(scene.state, scene.runs["long"], scene.now)
    assert (told.code, told.message) == (
        "Maintenance",
        "it may not have ended before a maintenance, by its timeout or learned runtime (neither is known: a day): "
        "n0 is drained from 1970-01-01 02:00 UTC on by ada: new disk "
        "(`flowsched nodes uncordon n0`)",
    )
    scene.tell(NodeDrained("n0", None))
    assert scene.launched == ["fs-long-many-0-0"]


def test_a_task_that_would_run_into_a_maintenance_goes_to_another_node() -> None:
    """It takes the node without one, also if that node is full first."""
    scene = Scene(node(cpu=4), node("n1", cpu=1))
    maintained(scene, 2 * HOUR)
    scene.submit("long", bag(2, estimate={"runtime": "3h"}))
    assert scene.launched == ["fs-long-many-0-0"]
    assert scene.pods["fs-long-many-0-0"].node == "n1"
    scene.start("fs-long-many-0-0")
    scene.end("fs-long-many-0-0")
    assert scene.pods["fs-long-many-1-0"].node == "n1"


def test_a_group_that_waits_is_judged_anew_as_a_maintenance_comes_nearer() -> None:
    """It fits before the maintenance while other tasks hold the node, and does not any more when they end."""
    scene = Scene(node(cpu=1))
    scene.submit("first", bag(1, estimate={"runtime": "1h"}))
    scene.start("fs-first-many-0-0")
    maintained(scene, 3 * HOUR)
    scene.submit("second", bag(1, estimate={"runtime": "1h"}))
    scene.end("fs-first-many-0-0", after=150 * 60_000)
    assert scene.launched == []
    assert [each.code for each in explain(scene.state, scene.runs["second"], scene.now)] == ["Maintenance"]


@pytest.mark.parametrize(("limit", "starts"), [("1h", True), ("3h", False), (None, False)])
def test_a_task_of_unknown_runtime_counts_by_its_time_limit_before_a_maintenance(
    limit: str | None, starts: bool
) -> None:
    """Without a limit it counts a day."""
    scene = Scene(node(cpu=4))
    maintained(scene, 2 * HOUR)
    scene.submit("w", bag(1, **({"timeout": limit} if limit else {})))
    assert scene.launched == ["fs-w-many-0-0"] * starts


def test_a_task_of_unknown_runtime_starts_two_days_before_a_maintenance() -> None:
    """A day is enough for it."""
    scene = Scene(node(cpu=4))
    maintained(scene, 48 * HOUR)
    scene.submit("w", bag(1))
    assert scene.launched == ["fs-w-many-0-0"]


def test_learned_runtimes_count_before_a_maintenance() -> None:
    """A stage of unknown runtime starts once tasks of its kind have ended in time."""
    scene = Scene(node(cpu=1))
    scene.submit("w", bag(3))
    scene.start("fs-w-many-0-0")
    maintained(scene, 2 * HOUR)
    scene.end("fs-w-many-0-0", after=60_000)
    assert scene.launched == ["fs-w-many-1-0"]


def test_a_maintenance_begins_by_itself() -> None:
    """A step is due at that moment: the node closes, what runs goes on, and is moved at the deadline."""
    scene = Scene(node(cpu=1))
    maintained(scene, 2 * HOUR, scene.now + 3 * HOUR)
    scene.submit("w", bag(2, estimate={"runtime": "1h"}))
    scene.start("fs-w-many-0-0")
    assert scene.last.wake_ms == scene.now + 2 * HOUR
    scene.tell(after=2 * HOUR)
    assert not scene.state.cluster.snapshot.ready.any()
    assert scene.released == []
    assert scene.last.wake_ms == scene.now + HOUR
    scene.tell(after=HOUR)
    assert scene.released == ["fs-w-many-0-0"]


def test_a_gang_does_not_run_into_a_maintenance() -> None:
    """All its members must have ended before."""
    scene = Scene(node(cpu=2), node("n1", cpu=2))
    maintained(scene, 2 * HOUR)
    scene.submit("w", RING | {"estimate": {"runtime": "3h"}})
    assert scene.launched == []
    assert [each.code for each in explain(scene.state, scene.runs["w"], scene.now)] == ["Maintenance"]


def test_explain_names_the_queue_whose_tasks_come_first() -> None:
    """Queue b holds all cores, so what waits of queue a goes before its next task. What is freed for b has to do for both."""
    scene = Scene(node(cpu=2))
    scene.submit("b", bag(3), queue="b")
    scene.start("fs-b-many-0-0", "fs-b-many-1-0")
    scene.submit("a", bag(2), queue="a")
    assert scene.launched == []
    (told,) = explain(scene.state, scene.runs["b"], scene.now)
    assert told.message.endswith(
        "lacks CPU; 2 tasks come first: 2 of queue 'a' (`flowsched queue ls` shows the shares)"
    )
    (first,) = explain(scene.state, scene.runs["a"], scene.now)
    assert "come first" not in first.message
    (group,) = situations_of(scene.state, [told.group], scene.now).values()
    (free,) = [each.message for each in outlook(group, most=9).suggestions if each.kind == "free"]
    assert free == ("free 2 CPU on node n0 (held by b/many 2 CPU); a/many would start there too")
