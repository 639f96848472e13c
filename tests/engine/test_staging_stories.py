"""STAGING: targets, shared copies, failures, nodes that go away, and who pays for the bytes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from flowsched.engine.events import Tick
from flowsched.engine.explain import explain
from flowsched.engine.step import step
from flowsched.executor.protocol import NodeChanged, ReplicaSeen, TransferFailed
from tests.engine.scene import Scene, node

X = "s3://lab/x"


def reader(name: str = "a", uri: str = X, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": ["x"], "inputs": [{"name": "i", "uri": uri, "size": 1000}], **more}


def totals(scene: Scene, ident: str) -> dict[str, int]:
    names = ("queued_ms", "staging_ms", "running_ms", "bytes_local", "bytes_moved")
    return dict(zip(names, scene.runs[ident].stages[0].totals.tolist()[:5], strict=True))


def test_staging_holds_no_cores() -> None:
    """Four tasks wait for bytes on a node of one core, and one that waits for none runs there."""
    scene = Scene(node(cpu=1))
    scene.submit("w", reader())
    assert scene.states("w", "a") == "STAGING"
    assert scene.state.cluster.snapshot.used.sum() == 0
    assert [(t.uri, t.dest, t.source, t.size_bytes) for t in scene.last.transfers] == [(X, "n0", None, 1000)]
    scene.submit("z", {"name": "z", "command": ["x"]})
    assert scene.launched == ["fs-z-z-0-0"]


def test_a_task_is_bound_once_its_bytes_are_there() -> None:
    """Through QUEUED again, in one step; the moments are told apart."""
    scene = Scene()
    scene.submit("w", reader())
    scene.now += 10
    scene.arrive(scene.last.transfers[0])
    assert scene.launched == ["fs-w-a-0-0"]
    scene.start("fs-w-a-0-0")
    scene.end("fs-w-a-0-0", after=500)
    assert totals(scene, "w") == {
        "queued_ms": 0, "staging_ms": 10, "running_ms": 500, "bytes_local": 0, "bytes_moved": 1000,
    }  # fmt: skip
    scene.nothing_left()


def test_a_task_whose_bytes_are_there_waits_for_room_not_for_data() -> None:
    """The bytes come after 10 ms and the only core is free after 5 s: 10 ms of staging, the rest of the wait is queued."""
    scene = Scene(node(cpu=1))
    scene.submit("w", reader())
    order = scene.last.transfers[0]
    scene.submit("busy", {"name": "b", "command": ["x"]})
    scene.now += 10
    scene.arrive(order)
    assert scene.states("w", "a") == "QUEUED"
    scene.end("fs-busy-b-0-0", after=4_990)
    scene.start("fs-w-a-0-0")
    times = scene.runs["w"].stages[0].times[0]
    assert (times[1:4] - times[0]).tolist() == [0, 10, 5_000]
    scene.end("fs-w-a-0-0", after=500)
    assert totals(scene, "w") == {
        "queued_ms": 4_990, "staging_ms": 10, "running_ms": 500, "bytes_local": 0, "bytes_moved": 1000,
    }  # fmt: skip


def test_a_shared_input_is_copied_once_to_a_node() -> None:
    """Four tasks of one stage and one of another workflow read it; one task pays, for the others it was there."""
    scene = Scene(node(cpu=8))
    scene.submit("w", reader(scatter={"count": 4}))
    order = scene.last.transfers[0]
    assert len(scene.last.transfers) == 1
    scene.submit("v", reader())
    assert scene.last.transfers == []
    scene.arrive(order)
    assert len(scene.launched) == 5
    scene.end(*scene.launched)
    assert totals(scene, "w")["bytes_moved"] == 1000
    assert totals(scene, "w")["bytes_local"] == 3000
    assert totals(scene, "v")["bytes_moved"] == 0
    assert totals(scene, "v")["bytes_local"] == 1000


def test_who_still_waits_pays_for_a_copy_whose_orderer_was_cancelled() -> None:
    """The copy goes on, since another workflow wants it too."""
    scene = Scene()
    scene.submit("v", reader())
    order = scene.last.transfers[0]
    scene.submit("w", reader())
    scene.command("v", "cancel")
    assert scene.state_of("v") == "CANCELLED: a CANCELLED"
    scene.arrive(order)
    assert scene.launched == ["fs-w-a-0-0"]
    scene.end("fs-w-a-0-0")
    assert totals(scene, "w")["bytes_moved"] == 1000
    scene.nothing_left()
    assert scene.state.data.moving == {}


def test_bytes_that_turn_out_to_be_more_are_counted_as_they_are() -> None:
    """The document said 1,000; 3,000 came."""
    scene = Scene()
    scene.submit("w", reader())
    scene.arrive(scene.last.transfers[0], size=3_000)
    scene.end("fs-w-a-0-0")
    assert totals(scene, "w")["bytes_moved"] == 3000
    assert totals(scene, "w")["bytes_local"] == 0


def test_a_copy_that_fails_is_tried_again_later_and_given_up_after_eight_times() -> None:
    """After 1, 2, 4, 8, 16, 32 and 60 seconds; then the task fails, since its input is missing."""
    scene = Scene()
    scene.submit("w", reader(retry={"attempts": 5}))
    order = scene.last.transfers[0]
    waits = []
    for _ in range(7):
        scene.miss(order)
        wake = scene.last.wake_ms
        assert wake is not None
        assert scene.last.transfers == []
        waits.append(wake - scene.now)
        scene.tell(Tick(), after=wake - scene.now - 1)
        assert scene.last.transfers == []
        scene.tell(Tick(), after=1)
        assert scene.last.transfers == [order]
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000]
    scene.miss(order)
    assert scene.state_of("w") == "FAILED: a FAILED"
    assert scene.runs["w"].stages[0].reasons == {0: "InputMissing"}
    assert scene.runs["w"].reason == "a: InputMissing: s3://lab/x: reset"
    scene.nothing_left()


def test_a_missing_file_is_named_once() -> None:
    """What the node says of it has its path already."""
    scene = Scene()
    scene.submit("w", reader(uri="file:///lab/x"))
    order = scene.last.transfers[0]
    said = "there is no /lab/x"
    scene.tell(TransferFailed(order.uri, order.dest, scene.now, said, order.source, permanent=True))
    assert scene.runs["w"].reason == "a: InputMissing: there is no /lab/x"
    scene.nothing_left()
    assert scene.state.data.backoff == {}


def test_what_its_origin_does_not_have_is_given_up_at_once() -> None:
    """A 404 stays a 404."""
    scene = Scene()
    scene.submit("w", reader(retry={"attempts": 5}))
    scene.miss(scene.last.transfers[0], permanent=True)
    assert scene.state_of("w") == "FAILED: a FAILED"
    assert scene.last.wake_ms is None


def test_a_source_that_lost_the_bytes_is_no_failure_of_the_copy() -> None:
    """It is tried from elsewhere at once, and does not count among the eight."""
    scene = Scene(node("n0"), node("n1", labels={"only": "n1"}))
    scene.tell(ReplicaSeen(X, "n1", 1_000_000_000))
    full = {"name": "z", "command": ["x"], "resources": {"cpu": 4}, "selector": {"only": "n1"}}
    scene.submit("z", full | {"estimate": {"runtime": "10h"}})
    scene.submit("w", reader())
    (order,) = scene.last.transfers
    assert (order.source, order.dest) == ("n1", "n0")
    scene.miss(order, lost=True)
    assert [(t.source, t.dest) for t in scene.last.transfers] == [(None, "n0")]
    assert scene.state.cluster.catalogue.nodes_of(0) == frozenset()
    assert scene.last.delta.replicas == [(X, "n1", 0, False)]


def test_what_is_known_of_a_failing_copy_is_forgotten_with_who_wanted_it() -> None:
    """Nobody wants it any more: no memory of its tries remains."""
    scene = Scene()
    scene.submit("w", reader())
    scene.miss(scene.last.transfers[0])
    assert len(scene.state.data.backoff) == 1
    scene.command("w", "cancel")
    scene.tell(Tick(), after=1_000)  # then it would be tried again
    assert scene.state.data.backoff == {}
    scene.nothing_left()


def test_targets_on_a_node_that_goes_away_are_chosen_anew() -> None:
    """In the same step; and a copy that was under way to the dead node matters to nobody."""
    scene = Scene(node("n0"), node("n1"))
    scene.submit("w", reader())
    order = scene.last.transfers[0]
    other = {"n0": "n1", "n1": "n0"}[order.dest]
    scene.tell(NodeChanged(node(order.dest, ready=False)))
    assert [(t.uri, t.dest) for t in scene.last.transfers] == [(X, other)]
    scene.miss(order)
    assert scene.states("w", "a") == "STAGING"
    scene.arrive(order.__class__(X, 1000, other))
    assert scene.launched == ["fs-w-a-0-0"]
    assert scene.pods["fs-w-a-0-0"].node == other


def test_nodes_that_died_do_not_count_among_the_targets_a_group_may_have() -> None:
    """Three targets die one after the other: a fourth is chosen."""
    scene = Scene(node("n0"), node("n1"), node("n2"), node("n3"))
    scene.submit("w", reader())
    dests = [scene.last.transfers[0].dest]
    for _ in range(3):
        scene.tell(NodeChanged(node(dests[-1], ready=False)))
        dests.append(scene.last.transfers[0].dest)
    assert sorted(dests) == ["n0", "n1", "n2", "n3"]


def test_cancel_while_staging_takes_back_every_claim() -> None:
    """The copy under way is let go: its end is news for nobody."""
    scene = Scene()
    scene.submit("w", reader(scatter={"count": 3}))
    order = scene.last.transfers[0]
    scene.command("w", "cancel")
    assert scene.state_of("w") == "CANCELLED: a CANCELLED"
    scene.nothing_left()
    scene.arrive(order)
    assert scene.launched == []
    assert scene.state.data.moving == {}
    assert scene.state.cluster.snapshot.inbound.tolist() == [0]


@pytest.mark.parametrize("profile", ["flowsched", "kube-like"])
def test_no_policy_binds_without_the_bytes(profile: str) -> None:
    """Also one that does not look at data."""
    scene = Scene(profile=profile)
    scene.submit("w", reader())
    assert scene.states("w", "a") == "STAGING"
    scene.arrive(scene.last.transfers[0])
    assert scene.launched == ["fs-w-a-0-0"]


def test_the_wait_for_bytes_is_explained() -> None:
    """With the number of datasets and bytes; of a copy that failed: which input, why, and until when it is tried again."""
    scene = Scene()
    scene.submit("w", reader())
    (told,) = explain(scene.state, scene.runs["w"], scene.now)
    assert (told.code, told.state, told.tasks) == ("WaitingForData", "STAGING", 1)
    assert told.numbers == {"datasets": 1, "bytes": 1000}
    assert told.message == "1 input (1000 B) is being copied to n0"
    scene.miss(scene.last.transfers[0])
    (told,) = explain(scene.state, scene.runs["w"], scene.now)
    last_ms = scene.now + 123_000  # after 1, 2, 4, 8, 16, 32 and 60 s
    clock = datetime.fromtimestamp(last_ms / 1000, UTC).strftime("%H:%M:%S UTC")
    assert told.message == (
        f"{X}: reset; tried 1 of 8 times, trying again until {clock} at least; the stage fails then"
    )
    assert told.numbers == {"datasets": 1, "bytes": 1000, "failed": 1, "tries": 1, "last_try_ms": last_ms}


def test_who_stages_longer_than_its_policy_allows_fails() -> None:
    """`task_pending` counts until a pod is bound."""
    scene = Scene()
    policy = {"event": "task_pending", "timeout": "10s", "action": "fail_stage"}
    scene.submit("w", reader(policies=[policy]))
    assert scene.last.wake_ms == 11_000
    scene.tell(Tick(), after=10_000)
    assert scene.state_of("w") == "FAILED: a FAILED"
    scene.nothing_left()


def test_what_was_learned_in_a_dropped_step_is_not_learned() -> None:
    """The commit failed: the events come again, and would count twice."""
    scene = Scene()
    scene.submit("w", {"name": "a", "command": ["x"]}, {"name": "b", "needs": ["a"], "command": ["x"]})
    scene.start("fs-w-a-0-0")
    scene.now += 500
    step(scene.state, [scene.ending("fs-w-a-0-0")], scene.now).drop()
    assert scene.state.work.estimates.runtime_ms("w", "a") is None
    scene.end("fs-w-a-0-0")
    assert scene.state.work.estimates.runtime_ms("w", "a") == 500


def test_an_input_that_was_never_written_fails_its_reader_and_not_the_step() -> None:
    """Shard 0 of a wrote nothing (its failure is ignored): b.0 fails, and b.1, ready in the same step, is cancelled."""
    scene = Scene(node(cpu=2))
    ignore = [{"event": "task_failed", "action": "ignore"}]
    a = {"name": "a", "scatter": {"count": 2}, "command": ["x"], "policies": ignore,
         "outputs": [{"name": "o", "path": "o"}]}  # fmt: skip
    b = {"name": "b", "command": ["x"], "inputs": [{"name": "i", "from": "a.o", "match": "index"}]}
    scene.submit("w", a, b)
    scene.tell(scene.ending("fs-w-a-0-0", code=1), scene.ending("fs-w-a-1-0"))
    assert scene.states("w", "b") == "FAILED CANCELLED"
    assert scene.state_of("w") == "FAILED: a SUCCEEDED, b FAILED"
    assert scene.runs["w"].reason == "b: InputMissing: input 'i': a.o was not written"


def test_a_task_whose_inputs_were_copied_keeps_why_they_were_copied_there() -> None:
    """The costs of the decision to copy, not those once the copy is there; the row says so."""
    scene = Scene(node(nic_in_rate=1_000))
    scene.submit("w", reader())
    scene.arrive(scene.last.transfers[0])
    (intent,) = scene.deltas[-1].intents
    kept = json.loads(intent.choice)
    assert kept["staged"] is True
    assert kept["cost_ms"]["stage-in"] >= 1_000
    scene.end("fs-w-a-0-0")
    scene.nothing_left()


@pytest.mark.parametrize(
    ("more", "asked_s"),
    [({}, [0, 1, 3, 7, 15, 31, 63, 123, 183]), ({"permanent": True}, [0, 60, 120, 180])],
)
def test_a_copy_ahead_of_time_that_fails_rests_as_others_do(
    more: dict[str, bool], asked_s: list[int]
) -> None:
    """Its task waits for room meanwhile, and fails by nothing. Once the task has a node, its own tries begin anew, at once."""
    scene = Scene()
    scene.submit(
        "busy", {"name": "b", "command": ["x"], "resources": {"cpu": 3}, "estimate": {"runtime": "10m"}}
    )
    scene.start("fs-busy-b-0-0")
    scene.submit("w", reader(resources={"cpu": 4}, estimate={"runtime": "1m"}))
    begun, asked = scene.now, []
    while scene.now < begun + 200_000:
        if scene.last.transfers:
            (order,) = scene.last.transfers
            asked.append((scene.now - begun) // 1000)
            scene.miss(order, **more)
        else:
            scene.tell(Tick(), after=1_000)
    assert asked == asked_s
    assert scene.states("w", "a") == "QUEUED"
    scene.end("fs-busy-b-0-0")
    assert scene.states("w", "a") == "STAGING"
    assert [(order.uri, order.ahead) for order in scene.last.transfers] == [(X, 0)]
    scene.miss(scene.last.transfers[0], permanent=True)
    assert scene.state_of("w") == "FAILED: a FAILED"
