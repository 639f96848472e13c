"""The engine as a whole: intents first, pauses, cancels in every state, batches in every order, and nothing left behind."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from flowsched.engine import admission
from flowsched.engine.events import Command, QueueChanged, Recovered, Tick
from flowsched.engine.explain import explain
from flowsched.engine.step import step
from flowsched.executor.protocol import NodeChanged, PodGone, PodStarted
from flowsched.scheduling.plan import Alike, Placement, Plan, Reason, ReasonCode, Reasons
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.queues.tree import Queue
from tests.engine.scene import Scene, node

A = {"name": "a", "command": ["x"]}


def chain(*names: str, **more: Any) -> list[dict[str, Any]]:
    """Stages, each of which needs the one before."""
    return [
        {"name": name, "command": ["x"], "needs": [names[at - 1]] if at else [], **more}
        for at, name in enumerate(names)
    ]


def test_a_launch_is_an_intent_in_the_delta_first() -> None:
    """Attempt, node and epoch, and the whole launch order; the task's row says BINDING."""
    scene = Scene()
    scene.submit("w", A)
    (intent,) = scene.last.delta.intents
    assert (intent.name, intent.node, intent.epoch, intent.attempt, intent.at_ms) == (
        "fs-w-a-0-0",
        "n0",
        1,
        0,
        1_000,
    )
    (row,) = scene.last.delta.tasks
    assert (row.state, row.version, row.node, row.bound_ms, row.started_ms) == (4, 1, "n0", 1_000, None)
    assert [pod.name for pod in scene.last.launches] == ["fs-w-a-0-0"]


def test_a_dropped_step_offers_everything_again() -> None:
    """The commit failed: no pod, no room, no state remains, and the next step decides the same."""
    scene = Scene()
    event = scene.accepted("w", A)
    dropped = step(scene.state, [event], scene.now)
    assert [pod.name for pod in dropped.launches] == ["fs-w-a-0-0"]
    dropped.drop()
    assert scene.state.work.runs == {}
    assert scene.state.work.pods == {}
    assert scene.state.cluster.snapshot.used.sum() == 0
    scene.tell(event)
    assert scene.launched == ["fs-w-a-0-0"]


def test_a_plain_task_from_row_to_row() -> None:
    """What SQL holds of it, step by step."""
    scene = Scene()
    scene.submit("w", A)
    scene.start("fs-w-a-0-0")
    scene.end("fs-w-a-0-0", after=500)
    rows = [(row.version, row.state) for delta in scene.deltas for row in delta.tasks]
    assert rows == [(1, 4), (2, 5), (3, 7)]
    kinds = [event.kind for delta in scene.deltas for event in delta.events]
    assert kinds == [
        "workflow.running", "stage.running", "tasks.placed", "task.running", "task.succeeded", "stage.succeeded",
        "workflow.succeeded",
    ]  # fmt: skip
    scene.nothing_left()


def test_a_step_in_which_nothing_happens_writes_nothing() -> None:
    """Also where something waits: a busy loop of empty commits would wear out the disk."""
    scene = Scene(node(cpu=1))
    scene.submit("w", A | {"scatter": {"count": 3}})
    scene.tell(Tick(), after=5)
    assert not scene.last.delta
    assert scene.launched == []


def test_a_delta_is_as_large_as_what_happened() -> None:
    """One of a thousand tasks ends: two task rows (it, and who takes its place), one stage row, no workflow row."""
    scene = Scene(node(cpu=4))
    scene.submit("w", A | {"scatter": {"count": 1_000}})
    scene.end("fs-w-a-0-0")
    delta = scene.last.delta
    assert [(row.index, row.state) for row in delta.tasks] == [(0, 7), (4, 4)]
    assert len(delta.stages) == 1
    assert delta.stages[0].counts == {"QUEUED": 995, "BINDING": 4, "SUCCEEDED": 1}
    assert delta.workflows == []


def test_pause_starts_nothing_new_and_resume_goes_on() -> None:
    """What runs goes on; its children wait, and are told to be paused."""
    scene = Scene()
    scene.submit("w", *chain("a", "b"))
    scene.command("w", "pause")
    assert scene.last.delta.workflows[0].state == "PAUSED"
    scene.end("fs-w-a-0-0")
    assert scene.launched == []
    (told,) = explain(scene.state, scene.runs["w"], scene.now)
    assert (told.code, told.message) == (
        "Paused",
        "the workflow is paused; `flowsched resume w` lets it go on",
    )
    scene.command("w", "resume")
    assert scene.launched == ["fs-w-b-0-0"]
    assert scene.state_of("w") == "RUNNING: a SUCCEEDED, b RUNNING"


def test_a_paused_queue_starts_nothing() -> None:
    """Until it is opened again."""
    scene = Scene()
    scene.tell(QueueChanged(Queue("slow", paused=True)), QueueChanged(Queue("child", parent="slow")))
    scene.submit("w", A, queue="child")
    assert scene.launched == []
    (told,) = explain(scene.state, scene.runs["w"], scene.now)
    message = "queue 'slow' is paused; `flowsched queue set slow --resume` lets it go on"
    assert (told.code, told.message) == ("Paused", message)
    scene.tell(QueueChanged(Queue("slow")))
    assert scene.launched == ["fs-w-a-0-0"]


def test_a_dropped_change_of_a_queue_is_undone() -> None:
    """Commit failed, queue unchanged."""
    scene = Scene()
    step(scene.state, [QueueChanged(Queue("slow", paused=True))], scene.now).drop()
    assert not scene.state.policy.queues.paused("slow")


def test_cancel_of_what_waits_is_at_once() -> None:
    """Nothing holds a pod: the workflow ends in the same step."""
    scene = Scene(node(cpu=1))
    scene.submit("v", A)
    scene.submit("w", *chain("a", "b"))
    scene.tell(Command("w", "cancel", 5))
    assert scene.last.delta.commands_done == [5]
    assert scene.state_of("w") == "CANCELLED: a CANCELLED, b CANCELLED"
    assert scene.last.delta.workflows[0][:3] == ("w", "CANCELLED", "cancelled by request")
    scene.end("fs-v-a-0-0")
    scene.nothing_left()


def test_cancel_of_what_runs_takes_it_away() -> None:
    """The workflow is CANCELLING until the pod is gone."""
    scene = Scene()
    scene.submit("w", *chain("a", "b"))
    scene.start("fs-w-a-0-0")
    scene.command("w", "cancel")
    assert scene.released == ["fs-w-a-0-0"]
    assert scene.state_of("w") == "CANCELLING: a RUNNING, b CANCELLED"
    scene.command("w", "cancel")
    assert scene.released == []
    scene.gone("fs-w-a-0-0")
    assert scene.state_of("w") == "CANCELLED: a CANCELLED, b CANCELLED"
    scene.nothing_left()


def test_a_cancelled_pod_that_reports_success_ends_cancelled() -> None:
    """Cancel wins (P8), and its outputs are not published."""
    scene = Scene()
    scene.submit("w", A | {"outputs": [{"name": "o", "path": "o"}]})
    scene.command("w", "cancel")
    scene.end("fs-w-a-0-0")
    assert scene.state_of("w") == "CANCELLED: a CANCELLED"
    assert scene.last.delta.outputs == []


def test_cancel_of_a_task_in_back_off() -> None:
    """It is not tried again."""
    scene = Scene()
    scene.submit("w", A | {"retry": {"attempts": 3}})
    scene.end("fs-w-a-0-0", code=1)
    scene.command("w", "cancel")
    assert scene.state_of("w") == "CANCELLED: a CANCELLED"
    scene.nothing_left()


def test_a_cancel_that_comes_with_the_submission() -> None:
    """One batch: nothing is ever launched."""
    scene = Scene()
    scene.tell(scene.accepted("w", A), Command("w", "cancel"))
    assert scene.launched == []
    assert scene.state_of("w") == "CANCELLED: a CANCELLED"
    scene.nothing_left()


def test_commands_for_nobody_are_done_all_the_same() -> None:
    """The workflow ended before they were read: their rows must not come back for ever."""
    scene = Scene()
    scene.tell(Command("gone", "cancel", 3), Command("gone", "pause", 4))
    assert scene.last.delta.commands_done == [3, 4]


@pytest.mark.parametrize("order", list(permutations(["started", "ended", "gone", "cancel"])), ids="-".join)
def test_one_batch_in_every_order_ends_in_one_way(order: tuple[str, ...]) -> None:
    """Whatever comes first: at most one end is written, the room is free, and the workflow has ended or runs again."""
    scene = Scene()
    scene.submit("w", A)
    events = {
        "started": PodStarted("fs-w-a-0-0", scene.now),
        "ended": scene.ending("fs-w-a-0-0"),
        "gone": PodGone("fs-w-a-0-0", scene.now, "RunnerLost", started=True),
        "cancel": Command("w", "cancel"),
    }
    scene.tell(*(events[name] for name in order))
    assert len(scene.last.delta.ends) == 1
    seen = order.index
    if seen("ended") < min(seen("gone"), seen("cancel")):
        assert scene.state_of("w") == "SUCCEEDED: a SUCCEEDED"
    else:
        assert scene.state_of("w") == "CANCELLED: a CANCELLED"
    scene.nothing_left()


def test_an_end_that_is_told_twice_counts_once() -> None:
    """In one batch, and again later."""
    scene = Scene()
    scene.submit("w", A | {"scatter": {"count": 2}})
    end = scene.ending("fs-w-a-0-0")
    scene.tell(end, end)
    scene.tell(end)
    assert scene.states("w", "a") == "SUCCEEDED BINDING"
    assert scene.runs["w"].stages[0].done == 1
    assert not scene.last.delta


def test_news_of_an_earlier_attempt_changes_nothing() -> None:
    """The watch lags: attempt 0 is told to have started and failed while attempt 1 runs."""
    scene = Scene()
    scene.submit("w", A)
    scene.gone("fs-w-a-0-0")
    assert scene.launched == ["fs-w-a-0-1"]
    scene.tell(PodStarted("fs-w-a-0-0", scene.now), scene.ending("fs-w-a-0-0", code=1))
    assert scene.states("w", "a") == "BINDING"
    assert not scene.last.delta


def test_a_workflow_that_is_told_twice_is_one() -> None:
    """The second Accepted finds it known."""
    scene = Scene()
    event = scene.accepted("w", A)
    scene.tell(event, event)
    assert scene.launched == ["fs-w-a-0-0"]


def test_extended_resources_may_appear_while_something_waits_for_them() -> None:
    """No node has the axis; then a node offers it, with other pods running meanwhile."""
    scene = Scene()
    scene.submit("v", A)
    scene.submit("w", A | {"resources": {"lab/fpga": 1}})
    assert scene.launched == []
    scene.tell(NodeChanged(node("n1", extended={"lab/fpga": 1, "lab/other": 2})))
    assert scene.launched == ["fs-w-a-0-0"]
    assert scene.pods["fs-w-a-0-0"].node == "n1"
    scene.end("fs-v-a-0-0")
    scene.end("fs-w-a-0-0")
    assert scene.state.cluster.snapshot.used.sum() == 0
    scene.nothing_left()


def test_more_than_the_cluster_is_explained_and_blocks_nobody() -> None:
    """min_resources of 100 cores on 4: it waits with a reason, others run."""
    scene = Scene()
    scene.submit("w", A | {"min_resources": {"cpu": 100}})
    assert scene.launched == []
    (told,) = explain(scene.state, scene.runs["w"], scene.now)
    assert told.code == "LargerThanCluster"
    scene.submit("v", A)
    assert scene.launched == ["fs-v-a-0-0"]


def test_waiting_is_explained_for_every_cause() -> None:
    """Parents, room, a node that is too small, back-off: code, state and number of tasks."""
    scene = Scene(node(cpu=2))
    scene.submit("w", *chain("a", "b", resources={"cpu": 2}))
    scene.submit("v", A | {"scatter": {"count": 5}, "retry": {"attempts": 2}})
    scene.submit("u", A | {"resources": {"cpu": 64}})
    told = {
        ident: [
            (e.stage, e.state, e.code, e.tasks) for e in explain(scene.state, scene.runs[ident], scene.now)
        ]
        for ident in "wvu"
    }
    assert told == {
        "w": [("a", "BINDING", "Starting", 1), ("b", "PENDING", "WaitingForParents", 1)],
        "v": [("a", "QUEUED", "Insufficient", 5)],
        "u": [("a", "QUEUED", "LargerThanNode", 1)],
    }
    scene.end("fs-w-a-0-0")
    scene.end("fs-v-a-0-0", code=1)
    told_v = [(e.stage, e.state, e.code, e.tasks) for e in explain(scene.state, scene.runs["v"], scene.now)]
    assert ("a", "QUEUED", "BackOff", 1) in told_v
    scene.command("v", "cancel")
    told_v = [(e.stage, e.state, e.code, e.tasks) for e in explain(scene.state, scene.runs["v"], scene.now)]
    assert told_v == [("a", "RELEASING", "Releasing", 2)]


def test_equal_tasks_are_spread_until_they_have_started() -> None:
    """Four start on two nodes, two on each. Once they run, nothing is before the next one, and it is packed. A pod that is taken
    away before it started is in no node's queue any more.
    """
    scene = Scene(node("n0", cpu=8, start_ms=800), node("n1", cpu=8, start_ms=800))
    starting = scene.state.cluster.snapshot.starting
    scene.submit("w", A | {"scatter": {"count": 4}})
    assert starting.tolist() == [2, 2]
    scene.start(*scene.pods)
    assert starting.tolist() == [0, 0]
    scene.submit("v", A)
    assert starting.tolist() == [1, 0]
    scene.command("v", "cancel")
    scene.gone("fs-v-a-0-0")
    assert starting.tolist() == [0, 0]


def test_tasks_on_a_node_that_reports_nothing_are_explained() -> None:
    """The rest of the gang waits for them; they are not started twice, and the node's own words are shown. A node that is only
    drained is no such node.
    """
    scene = Scene(node("n0", cpu=2), node("n1", cpu=2))
    scene.submit("w", A | {"scatter": {"count": 4}})
    scene.start(*scene.pods)
    assert explain(scene.state, scene.runs["w"], scene.now) == []
    scene.tell(NodeChanged(node("n0", cpu=2, ready=False)))
    assert explain(scene.state, scene.runs["w"], scene.now) == []
    words = "Kubelet stopped posting node status"
    scene.tell(NodeChanged(node("n0", cpu=2, ready=False, silent=True, trouble=words)))
    (told,) = explain(scene.state, scene.runs["w"], scene.now)
    assert (told.state, told.code, told.tasks) == ("RUNNING", "NodeNotReady", 2)
    assert told.message.startswith("2 of 4 are on n0, not ready (Kubelet stopped posting node status): ")


def test_reasons_do_not_outlive_what_they_are_about() -> None:
    """The last that waited was cancelled: no reason and no reservation is shown any more."""
    scene = Scene(node(cpu=2))
    scene.submit("v", A | {"estimate": {"runtime": "1h"}})
    roles = {"worker": {"replicas": 2, "command": ["w"]}}
    scene.submit("w", {"name": "g", "gang": True, "roles": roles})
    assert len(scene.state.round.reasons) == 1
    assert len(scene.state.round.reservations) == 1
    scene.command("w", "cancel")
    assert scene.state.round.reasons == {}
    assert scene.state.round.reservations == ()


def test_a_service_that_lives_long_forgets_what_has_ended() -> None:
    """Fifty workflows with gangs, inputs, retries and cancels later the books are as empty as before."""
    scene = Scene(node(cpu=8))
    for number in range(50):
        ident = f"w{number}"
        roles = {"worker": {"replicas": 2, "command": ["w"]}}
        scene.submit(
            ident,
            A | {"inputs": [{"name": "i", "uri": f"s3://lab/{number}", "size": 9}], "retry": {"attempts": 2}},
            {"name": "g", "gang": True, "roles": roles, "needs": ["a"]},
        )
        (order,) = scene.last.transfers
        if number % 5 == 0:
            scene.command(ident, "cancel")
        scene.arrive(order)
        if number % 5 == 0:
            continue
        scene.end(f"fs-{ident}-a-0-0")
        scene.end(f"fs-{ident}-g-0-0", f"fs-{ident}-g-1-0")
    scene.nothing_left()
    assert scene.state.data.backoff == {}
    assert scene.state.round.reserved_starts == {}
    assert len(scene.state.cluster.snapshot.names) == 1


def test_a_batch_of_many_ends_is_looked_at_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred workflows end a task in one step: not every stage is looked at again after each of the ends."""
    from flowsched.engine.transaction import Recorder

    scene = Scene(node(cpu=500))
    scene.tell(
        *(
            scene.accepted(f"w{number}", *chain("a", "b", resources={"memory": "1Mi"}))
            for number in range(200)
        )
    )
    looks = 0
    look = Recorder._note_ready

    def counted(self: Any, run: Any, stage: Any, *, anew: bool) -> None:
        nonlocal looks
        looks += 1
        look(self, run, stage, anew=anew)

    monkeypatch.setattr(Recorder, "_note_ready", counted)
    scene.end(*(f"fs-w{number}-a-0-0" for number in range(200)))
    assert len(scene.launched) == 200
    assert looks <= 1_200


def test_after_a_restart_nobody_runs_behind_a_stage_that_was_skipped_for_a_failure() -> None:
    """Rows do not say why b was skipped; the graph does: c must not run when the slow d has ended."""
    stages = [
        *chain("a", "b"),
        {"name": "d", "command": ["x"]},
        {"name": "c", "command": ["x"], "needs": ["b", "d"]},
    ]
    scene = Scene()
    scene.submit("w", *stages)
    scene.end("fs-w-a-0-0", code=1)
    assert scene.state_of("w") == "RUNNING: a FAILED, b SKIPPED, d RUNNING, c SKIPPED"
    run = scene.runs["w"]
    run.stages[1].upset = False
    scene.tell(Recovered(run))
    assert run.stages[1].upset


def test_outputs_of_shards_have_the_name_of_their_item() -> None:
    """In the path, not in the name by which other stages read them; {index} is the shard's number."""
    scene = Scene(node(cpu=4))
    outputs = [{"name": "bam", "path": "out/{item}.{index}.bam"}, {"name": "log", "path": "log"}]
    scatter = {"items": ["HG001", "HG002"]}
    scene.submit("w", {"name": "a", "command": ["x"], "scatter": scatter, "outputs": outputs})
    paths = {
        name: [(output.name, output.path) for output in scene.pods[name].outputs] for name in scene.launched
    }
    assert paths == {
        "fs-w-a-0-0": [("bam", "out/HG001.0.bam"), ("log", "log")],
        "fs-w-a-1-0": [("bam", "out/HG002.1.bam"), ("log", "log")],
    }


def test_the_promise_to_a_bag_holds_until_its_last_task_has_room() -> None:
    """A task runs; two others of its bag wait with a promised start. It stays the bag's once the next one runs."""
    scene = Scene(node(cpu=4))
    four = {"command": ["x"], "resources": {"cpu": 4}, "estimate": {"runtime": "60s"}}
    scene.submit("w", {**four, "name": "s", "scatter": {"count": 3}})
    promised = []
    for _ in range(3):
        promised.append([*scene.state.round.reserved_starts.values()])
        (pod,) = scene.launched
        scene.start(pod)
        scene.end(pod, after=60_000)
    first = promised[0]
    assert promised == [first, first, []]
    assert len(first) == 1


@pytest.mark.parametrize(("waiting", "kept"), [(2, {7: 100}), (1, {})])
def test_the_promise_to_a_bag_that_was_placed_in_part_and_passed_over_holds(
    waiting: int, kept: dict[int, int]
) -> None:
    """One of its pods had room. The cycle passed the rest by together with another group, or none is left."""
    role = RoleRequest("r", Shape(requests=(1,)), waiting, 1)
    asked: Any = {
        "queue": "q",
        "workflow": "w",
        "priority": 0,
        "rank_ms": 0,
        "ready_ms": 0,
        "gang": False,
        "roles": (role,),
    }
    bags = {key: PodGroup(key=key, name="b", **asked) for key in (7, 8)}
    one = np.zeros(1, dtype=np.int64)
    passed = Alike(Reason(8, ReasonCode.BACKLOG_WINDOW, "later"), [bags[8], bags[7]][:waiting])
    plan = Plan((Placement(7, (one,), (one,)),), reasons=Reasons([passed]))
    assert admission._reserved_starts({7: 100}, plan, bags) == kept
