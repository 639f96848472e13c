"""Gangs: all or none, anew as a whole, seats, addresses, tokens, devices; and what becomes of servers."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from flowsched.cluster.node.environment import loopback
from flowsched.engine.delta import Delta
from flowsched.engine.events import ProfileChanged, Tick
from flowsched.engine.explain import explain
from flowsched.engine.pod_orders import decode_pods
from flowsched.executor.foreign import PodLeft, RoomTaken
from flowsched.executor.protocol import GangSeat, NodeChanged, Pod, PodGone, ReplicaSeen, Roster
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.values import replace
from flowsched.workflow.spec import Resources
from tests.engine.scene import Scene, node


def gang(workers: int = 2, least: int | None = None, grow: bool = True, **more: Any) -> dict[str, Any]:
    """One server and some workers, three attempts; the model is written by worker 0."""
    worker = {"replicas": workers, "min": least or workers, "command": ["w"], "grow": grow}
    return {
        "name": "g",
        "gang": True,
        "retry": {"attempts": 3},
        "outputs": [{"name": "m", "path": "m", "role": "worker"}],
        "roles": {"ps": {"replicas": 1, "completes": False, "command": ["p"]}, "worker": worker},
        **more,
    }


def seat(pod: Pod) -> GangSeat:
    assert pod.gang is not None
    return pod.gang


def addresses(pod: Pod) -> tuple[str, ...]:
    return tuple(loopback(member) for member in seat(pod).roster.members())


def kept(*deltas: Delta) -> list[Pod]:
    """The launch orders that recovery finds in these rows."""
    intents = [(row.workflow, row.stage, row.pod) for delta in deltas for row in delta.intents]
    return decode_pods(intents, {row[:4]: row.pod for delta in deltas for row in delta.gang_orders})


def test_all_members_start_together_or_none_does() -> None:
    """Three members do not fit two cores, though two would; a second node makes room for all, in one step."""
    scene = Scene(node(cpu=2))
    scene.submit("w", gang())
    assert scene.launched == []
    assert scene.states("w", "g") == "QUEUED QUEUED QUEUED"
    scene.tell(NodeChanged(node("n1", cpu=1)))
    assert scene.launched == ["fs-w-g-0-0", "fs-w-g-1-0", "fs-w-g-2-0"]
    assert [intent.name for intent in scene.last.delta.intents] == ["fs-w-g-0-0", "fs-w-g-1-0", "fs-w-g-2-0"]


def test_a_failed_worker_restarts_the_whole_gang_once_the_others_are_gone() -> None:
    """Each member's attempt rises by one; nobody of the next generation starts beside one of the last."""
    scene = Scene(node(cpu=8))
    scene.submit("w", gang())
    scene.start("fs-w-g-0-0", "fs-w-g-1-0", "fs-w-g-2-0")
    scene.end("fs-w-g-1-0", code=1)
    assert scene.released == ["fs-w-g-0-0", "fs-w-g-2-0"]
    assert scene.states("w", "g") == "RELEASING QUEUED RELEASING"
    scene.end("fs-w-g-0-0", code=143, reason="Released", after=5_000)
    assert scene.launched == []
    assert scene.states("w", "g") == "QUEUED QUEUED RELEASING"
    scene.end("fs-w-g-2-0", code=143, reason="Released")
    assert scene.launched == ["fs-w-g-0-1", "fs-w-g-1-1", "fs-w-g-2-1"]
    assert scene.runs["w"].stages[0].charged.tolist() == [1, 1, 1]


def test_a_worker_that_had_succeeded_runs_again_with_its_gang() -> None:
    """Its own success is worth nothing without the others'."""
    scene = Scene()
    scene.submit("w", gang())
    scene.end("fs-w-g-1-0")
    assert scene.states("w", "g") == "BINDING SUCCEEDED BINDING"
    scene.end("fs-w-g-2-0", code=1)
    assert scene.states("w", "g") == "RELEASING QUEUED QUEUED"
    scene.end("fs-w-g-0-0", code=143, reason="Released")
    scene.tell(Tick(), after=1_000)
    assert scene.launched == ["fs-w-g-0-1", "fs-w-g-1-1", "fs-w-g-2-1"]


def test_two_workers_that_fail_at_once_are_charged_once() -> None:
    """The second's end comes while it is being released: the gang is restarted one time."""
    scene = Scene()
    scene.submit("w", gang())
    scene.tell(scene.ending("fs-w-g-1-0", code=1), scene.ending("fs-w-g-2-0", code=1))
    assert scene.runs["w"].stages[0].charged.tolist() == [1, 1, 1]
    scene.end("fs-w-g-0-0", code=143, reason="Released")
    scene.tell(Tick(), after=1_000)
    assert scene.launched == ["fs-w-g-0-1", "fs-w-g-1-1", "fs-w-g-2-1"]


def test_servers_are_released_when_the_workers_have_succeeded() -> None:
    """The stage has succeeded then, its children start, and the workflow ends with the last pod."""
    scene = Scene()
    scene.submit("w", gang(), {"name": "c", "needs": ["g"], "command": ["x"]})
    scene.end("fs-w-g-1-0")
    assert scene.released == []
    scene.end("fs-w-g-2-0")
    assert scene.released == ["fs-w-g-0-0"]
    assert scene.launched == ["fs-w-c-0-0"]
    assert scene.state_of("w") == "RUNNING: g SUCCEEDED, c RUNNING"
    scene.end("fs-w-c-0-0")
    assert scene.state_of("w") == "RUNNING: g SUCCEEDED, c SUCCEEDED"
    scene.end("fs-w-g-0-0", code=143, reason="Released")
    assert scene.states("w", "g") == "SUCCEEDED SUCCEEDED SUCCEEDED"
    assert scene.state_of("w") == "SUCCEEDED: g SUCCEEDED, c SUCCEEDED"
    scene.nothing_left()


def test_a_gang_that_fails_for_good_takes_its_members_with_it() -> None:
    """One attempt only: the others are released and end CANCELLED."""
    scene = Scene()
    scene.submit("w", gang(retry={"attempts": 1}))
    scene.end("fs-w-g-1-0", code=2)
    assert scene.states("w", "g") == "RELEASING FAILED RELEASING"
    assert scene.state_of("w") == "RUNNING: g RUNNING"
    scene.end("fs-w-g-0-0", "fs-w-g-2-0")
    assert scene.states("w", "g") == "CANCELLED FAILED CANCELLED"
    assert scene.state_of("w") == "FAILED: g FAILED"
    assert scene.runs["w"].reason == "g: task 1 (worker) failed: exit code 2"


def test_an_elastic_gang_that_does_not_grow_skips_the_rest_for_good() -> None:
    """Three cores for a server and one to four workers: two of them start, two are never needed."""
    scene = Scene(node(cpu=3))
    scene.submit("w", gang(workers=4, least=1, grow=False))
    assert scene.launched == ["fs-w-g-0-0", "fs-w-g-1-0", "fs-w-g-2-0"]
    assert seat(scene.pods["fs-w-g-2-0"]).roster.runs == (("ps", 0, 1), ("worker", 1, 2))
    scene.tell(NodeChanged(node("n1", cpu=4)))
    assert scene.launched == []
    scene.end("fs-w-g-1-0", "fs-w-g-2-0")
    assert scene.states("w", "g") == "RELEASING SUCCEEDED SUCCEEDED SKIPPED SKIPPED"
    scene.end("fs-w-g-0-0", code=143, reason="Released")
    assert scene.state_of("w") == "SUCCEEDED: g SUCCEEDED"
    scene.nothing_left()


def test_the_lost_output_of_a_gang_is_made_by_the_whole_gang() -> None:
    """Also by the server that was still being released, and by members that had not been needed."""
    scene = Scene(node(cpu=3))
    reader = {
        "name": "c",
        "command": ["x"],
        "resources": {"cpu": 3},
        "inputs": [{"name": "i", "from": "g.m"}],
    }
    scene.submit("w", gang(workers=3, least=2), reader)
    scene.end("fs-w-g-1-0", "fs-w-g-2-0")
    assert scene.states("w", "g") == "RELEASING SUCCEEDED SUCCEEDED SKIPPED"
    scene.tell(ReplicaSeen("flowsched:w/g/0/0/m", "n0", 0, present=False))
    assert scene.states("w", "g") == "RELEASING QUEUED QUEUED QUEUED"
    assert scene.states("w", "c") == "PENDING"
    scene.end("fs-w-g-0-0", code=143, reason="Released")
    assert scene.launched == ["fs-w-g-0-1", "fs-w-g-1-1", "fs-w-g-2-1"]


def test_a_member_that_a_policy_restarts_alone_takes_its_old_seat() -> None:
    """The others go on, with the addresses and the token they know."""
    scene = Scene()
    scene.submit("w", gang(policies=[{"event": "task_failed", "action": "restart_task"}]))
    scene.start(*scene.launched)
    scene.end("fs-w-g-1-0", code=1)
    assert scene.states("w", "g") == "RUNNING QUEUED RUNNING"
    scene.tell(Tick(), after=1_000)
    assert scene.launched == ["fs-w-g-1-1"]
    assert seat(scene.pods["fs-w-g-1-1"]) == seat(scene.pods["fs-w-g-1-0"])


def test_members_know_each_other_by_seat() -> None:
    """Ranks in the order of the roles, addresses side by side, one secret; the encoded order does not hold it."""
    scene = Scene()
    scene.submit("w", gang())
    seats = [seat(scene.pods[name]) for name in scene.launched]
    assert [(s.role, s.role_index, s.rank) for s in seats] == [
        ("ps", 0, 0),
        ("worker", 0, 1),
        ("worker", 1, 2),
    ]
    assert addresses(scene.pods["fs-w-g-0-0"]) == ("127.64.0.0", "127.64.0.1", "127.64.0.2")
    assert [loopback(s.member) for s in seats] == ["127.64.0.0", "127.64.0.1", "127.64.0.2"]
    assert {s.roster for s in seats} == {seats[0].roster}
    assert len({s.token for s in seats}) == 1
    assert len(seats[0].token) == 64
    rows = [row.pod for row in (*scene.last.delta.intents, *scene.last.delta.gang_orders)]
    assert not [row for row in rows if seats[0].token.encode() in row]
    assert {seat(pod).token for pod in kept(scene.last.delta)} == {""}


def test_the_rows_of_a_gang_grow_with_its_members_and_not_with_their_square() -> None:
    """What members share stands once for the gang and once for each role: 400 members take less than four times what 100 take."""
    taken = {}
    for workers in (99, 399):
        scene = Scene(node(cpu=400))
        least = {"cpu": 1, "memory": "1Mi"}
        scene.submit("w", gang(workers, resources=least, env={"TEXT": "x" * 1000}))
        delta = scene.last.delta
        assert [row.key == "" for row in delta.gang_orders] == [False, True, False]
        taken[workers] = sum(len(row.pod) for row in (*delta.intents, *delta.gang_orders))
    assert taken[399] < 4 * taken[99]
    assert taken[399] < 400 * 150 + 4_000


def test_a_gang_is_read_back_from_its_rows_as_it_was_launched() -> None:
    """A member that joined later too. The rows have no token, and of a roster that grows the last one."""
    scene = Scene(node(cpu=2))
    scene.submit("w", gang(3, least=1, resources={"cpu": 1, "memory": "1Mi"}))
    assert scene.launched == ["fs-w-g-0-0", "fs-w-g-1-0"]
    scene.tell(NodeChanged(node("n1", cpu=1)))
    assert scene.launched == ["fs-w-g-2-0"]
    roster = seat(scene.pods["fs-w-g-2-0"]).roster
    assert roster.runs == (("ps", 0, 1), ("worker", 1, 2))
    told = [
        structs.replace(pod, gang=replace(seat(pod), token="", roster=roster)) for pod in scene.pods.values()
    ]
    assert kept(*scene.deltas) == told


def test_each_generation_has_addresses_and_a_secret_of_its_own() -> None:
    """A late process of the last generation reaches nobody of the next."""
    scene = Scene()
    scene.submit("w", gang())
    first = seat(scene.pods["fs-w-g-0-0"])
    scene.end("fs-w-g-1-0", code=1)
    scene.end("fs-w-g-0-0", "fs-w-g-2-0", code=143, reason="Released")
    scene.tell(Tick(), after=1_000)
    second = seat(scene.pods["fs-w-g-0-1"])
    assert addresses(scene.pods["fs-w-g-0-1"]) == ("127.64.0.3", "127.64.0.4", "127.64.0.5")
    assert second.token != first.token


def test_two_gangs_share_no_address() -> None:
    """Not even two shards of one stage."""
    scene = Scene(node(cpu=12))
    scene.submit("w", gang(scatter={"count": 2}))
    scene.submit("v", gang())
    blocks = {addresses(pod) for pod in scene.pods.values()}
    assert len(blocks) == 3
    assert len({address for block in blocks for address in block}) == 9
    assert len({seat(pod).token for pod in scene.pods.values()}) == 3


def test_a_kube_like_policy_places_a_gang_pod_by_pod() -> None:
    """That is the disease; the members that come later have the seats they were counted for."""
    scene = Scene(node(cpu=2), profile="kube-like")
    scene.submit("w", gang())
    assert scene.launched == ["fs-w-g-0-0", "fs-w-g-1-0"]
    assert scene.states("w", "g") == "BINDING BINDING QUEUED"
    scene.tell(NodeChanged(node("n1", cpu=1)))
    assert scene.launched == ["fs-w-g-2-0"]
    assert seat(scene.pods["fs-w-g-2-0"]).roster == seat(scene.pods["fs-w-g-0-0"]).roster
    assert seat(scene.pods["fs-w-g-2-0"]).rank == 2


def test_half_a_gang_is_completed_after_the_policy_has_changed() -> None:
    """It was placed pod by pod; under a policy for gangs its last member must still come, or it would wait for ever."""
    scene = Scene(node(cpu=2), profile="kube-like")
    scene.submit("w", gang())
    scene.tell(ProfileChanged(PROFILES["flowsched"]))
    assert scene.launched == []
    scene.tell(NodeChanged(node("n1", cpu=1)))
    assert scene.launched == ["fs-w-g-2-0"]
    assert seat(scene.pods["fs-w-g-2-0"]) == GangSeat(
        "worker", 1, 2, 2, Roster((("ps", 0, 1), ("worker", 1, 2))), seat(scene.pods["fs-w-g-0-0"]).token
    )  # fmt: skip


def devices(scene: Scene) -> dict[int, int]:
    """Thousandths in use of each device."""
    load: dict[int, int] = {}
    for pod in scene.pods.values():
        for device in pod.gpu_ids:
            load[device] = load.get(device, 0) + min(pod.gpu_millis, 1000)
    return load


def gpu(amount: float) -> dict[str, Any]:
    return {"name": "t", "command": ["x"], "resources": {"cpu": 1, "gpu": amount}}


def test_fractions_share_a_device_and_whole_devices_are_nobody_elses() -> None:
    """Two halves on one, a whole one beside it."""
    scene = Scene(node(cpu=8, gpus=2))
    scene.submit("a", gpu(0.5))
    scene.submit("b", gpu(0.5))
    scene.submit("c", gpu(1))
    assert [scene.pods[f"fs-{ident}-t-0-0"].gpu_ids for ident in "abc"] == [(0,), (0,), (1,)]


def test_pieces_of_two_devices_are_not_a_device() -> None:
    """0.6 on each of two: 0.7 fits the sum, and no device. It waits, is told why, and starts when one is free."""
    scene = Scene(node(cpu=8, gpus=2))
    scene.submit("a", gpu(0.6))
    scene.submit("b", gpu(0.6))
    scene.submit("c", gpu(0.7))
    assert devices(scene) == {0: 600, 1: 600}
    (told,) = explain(scene.state, scene.runs["c"], scene.now)
    assert told.code == "Insufficient"
    assert "n0 has 0.8 GPU free, by device 0.4, 0.4; of 1 node 1 has GPUs free in pieces only" in told.message
    scene.end("fs-b-t-0-0")
    assert scene.pods["fs-c-t-0-0"].gpu_ids == (1,)


def test_whole_devices_are_given_whole_or_not_at_all() -> None:
    """Three of four devices are used a little: two whole ones are 2.2 free in sum, and one in truth."""
    scene = Scene(node(cpu=8, gpus=4))
    for ident in "abc":
        scene.submit(ident, gpu(0.6))
    scene.submit("d", gpu(2))
    assert scene.launched == []
    scene.end("fs-a-t-0-0")
    assert scene.pods["fs-d-t-0-0"].gpu_ids == (0, 3)


def test_a_gang_without_devices_for_all_binds_nobody() -> None:
    """Two workers with 0.7 each, and two devices of which one has 0.4 in use: only one worker would fit."""
    scene = Scene(node(cpu=8, gpus=2))
    scene.submit("a", gpu(0.4))
    roles = {"worker": {"replicas": 2, "command": ["w"], "resources": {"gpu": 0.7}}}
    scene.submit("w", {"name": "g", "gang": True, "roles": roles})
    assert scene.launched == []
    scene.end("fs-a-t-0-0")
    assert scene.launched == ["fs-w-g-0-0", "fs-w-g-1-0"]
    assert [scene.pods[name].gpu_ids for name in scene.launched] == [(0,), (1,)]


def test_a_part_that_fits_no_device_here_starts_elsewhere_at_once() -> None:
    """0.4 + 0.4 is free on the fuller node, both devices of the other: the sum would pack 0.7 onto the first."""
    scene = Scene(node(cpu=8, gpus=2), node("n1", cpu=8, gpus=2))
    for ident, amount in (("a", 0.6), ("b", 0.6), ("c", 0.7)):
        scene.submit(ident, gpu(amount))
    told = {name: (pod.node, pod.gpu_ids) for name, pod in scene.pods.items()}
    assert told == {"fs-a-t-0-0": ("n0", (0,)), "fs-b-t-0-0": ("n0", (1,)), "fs-c-t-0-0": ("n1", (0,))}


def refused(scene: Scene, name: str) -> None:
    """A node or the API server did not take a pod that was never started."""
    scene.tell(PodGone(name, scene.now, "OutOfcpu"))


def test_a_refused_member_is_placed_anew_while_the_others_wait_for_it() -> None:
    """Once: no attempt is charged, and those who sit stay."""
    scene = Scene(node(cpu=3), node("n1", cpu=3))
    scene.submit("w", gang())
    refused(scene, "fs-w-g-2-0")
    assert (scene.released, scene.launched) == ([], ["fs-w-g-2-1"])


def test_a_member_that_is_refused_again_takes_the_gang_with_it() -> None:
    """The whole gang begins anew."""
    scene = Scene(node(cpu=3), node("n1", cpu=3))
    scene.submit("w", gang())
    refused(scene, "fs-w-g-2-0")
    refused(scene, "fs-w-g-2-1")
    assert scene.released == ["fs-w-g-0-0", "fs-w-g-1-0"]


def test_a_gang_below_its_minimum_is_released_after_t_gang() -> None:
    """The refused member finds no room: after a minute the others give theirs back, and all wait together."""
    scene = Scene(node(cpu=3))
    scene.submit("w", gang())
    scene.start("fs-w-g-0-0", "fs-w-g-1-0")
    scene.tell(
        RoomTaken("stranger", "n0", Resources(1000, 1 << 20)), PodGone("fs-w-g-2-0", scene.now, "OutOfcpu")
    )
    assert (scene.released, scene.launched, scene.last.wake_ms) == ([], [], scene.now + 60_000)
    scene.tell(after=60_000)
    assert scene.released == ["fs-w-g-0-0", "fs-w-g-1-0"]
    scene.gone("fs-w-g-0-0", "fs-w-g-1-0", reason="Released")
    assert scene.states("w", "g") == "QUEUED QUEUED QUEUED"
    scene.tell(PodLeft("stranger"))
    assert len(scene.launched) == 3
