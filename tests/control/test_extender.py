"""What flowsched says to a kube-scheduler that asks: only of what it alone knows, and never more than it is sure of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from flowsched.app import Settings, assembled, running
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.pod_requests import Hints, hints_of
from flowsched.cluster.local.settings import LocalSettings
from flowsched.control.extender import BINDING, DISK, PROMISED, TO_COME, Extender, _points, scores
from flowsched.errors import InvalidRequest
from flowsched.executor.constraints import Rules
from flowsched.executor.foreign import (
    ForeignGroup,
    ForeignPod,
    GroupSeen,
    PodTemplate,
    PodWaits,
    RoomTaken,
)
from flowsched.executor.protocol import NodeChanged, ReplicaSeen
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.statement import Statement
from flowsched.workflow.spec import Resources
from tests.engine.scene import Scene, node

GB = 10**9
MIB = 1 << 20


def pod(
    cpu: str | None = "1",
    annotations: dict[str, str] | None = None,
    *,
    more: dict[str, str] | None = None,
    **fields: Any,
) -> bytes:
    """A pod as kube-scheduler sends it. `more`: other requests; `fields`: of its spec, or `owner`."""
    owner = fields.pop("owner", None)
    owners = [] if owner is None else [{"kind": owner, "name": "x", "uid": "1", "controller": True}]
    requests = ({} if cpu is None else {"cpu": cpu}) | (more or {})
    meta = {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "annotations": annotations or {},
        "ownerReferences": owners,
    }
    container = {"name": "main", "image": "none", "resources": {"requests": requests}}
    return json.dumps({"metadata": meta, "spec": {"containers": [container], **fields}}).encode()


def refused(scene: Scene, asked: bytes) -> dict[str, str]:
    return Extender().refused(scene.state, 1, asked, scene.now)


def liked(scene: Scene, asked: bytes, *names: str) -> list[int]:
    return scores(scene.state, asked, names or scene.state.cluster.snapshot.names)


def waits(uid: str, group: str, cpu: float = 1) -> PodWaits:
    template = PodTemplate(Resources(int(cpu * 1000), 64 * MIB))
    return PodWaits(ForeignPod(uid, "ns", uid, "1", group, "", template))


def sits(uid: str, at: str, group: str = "", cpu: float = 1) -> RoomTaken:
    return RoomTaken(uid, at, Resources(int(cpu * 1000), 64 * MIB), group=group, namespace="ns", name=uid)


def driver(cores: int = 3) -> Scene:
    """A Spark driver of one core sits on n0 (4 cores); room for executors is held beside it. n1 is empty."""
    scene = Scene(node("n0"), node("n1"))
    group = ForeignGroup(
        "g", "ns", "app", gang=True, minimum=1, min_resources=Resources(cores * 1000, cores * 64 * MIB)
    )
    scene.tell(GroupSeen(group), waits("driver", "g"))
    (order,) = scene.last.binds
    assert order.node == "n0"
    scene.tell(sits("driver", "n0", "g"))
    return scene


def promised() -> Scene:
    """n0 runs a task of four cores for ten minutes; a gang of two times three cores waits for n0 and n1. n2 is too small."""
    scene = Scene(node("n0"), node("n1", cpu=3), node("n2", cpu=2))
    task = {"name": "s", "command": ["x"], "resources": {"cpu": 4}, "estimate": {"runtime": "10m"}}
    scene.submit("long", task)
    (launched,) = scene.last.launches
    assert launched.node == "n0"
    scene.tell(sits(launched.name, "n0", cpu=4))
    scene.start(launched.name)
    roles = {"worker": {"replicas": 2, "command": ["x"], "resources": {"cpu": 3}}}
    scene.submit("gang", {"name": "train", "gang": True, "roles": roles})
    (reservation,) = scene.state.round.reservations
    assert sorted(reservation.nodes[0].tolist()) == [0, 1]
    return scene


# ------------------------------------------------------------------------------------------------------ filter


def test_room_that_is_held_for_executors_is_not_given_away() -> None:
    """kube-scheduler sees three free cores beside the driver; two of them are spoken for."""
    scene = driver()
    assert refused(scene, pod("2")) == {"n0": TO_COME}
    assert refused(scene, pod("1")) == {}


def test_a_pod_that_asks_for_nothing_that_is_held_may_go_anywhere() -> None:
    """Best effort takes no room."""
    scene = driver(4)
    assert refused(scene, pod("1")) == {"n0": TO_COME}
    assert refused(scene, pod(None)) == {}


def test_room_is_free_again_when_the_hold_has_ended() -> None:
    """Ten minutes without executors."""
    scene = driver()
    scene.tell(after=600_000)
    assert refused(scene, pod("2")) == {}


def test_a_pod_that_is_being_bound_is_counted_until_others_can_see_it() -> None:
    """Between our decision and the watch; from then on kube-scheduler counts it itself, and says no itself."""
    scene = Scene(node("n0"))
    scene.tell(GroupSeen(ForeignGroup("g", "ns", "job")), waits("a", "g", cpu=3))
    assert refused(scene, pod("2")) == {"n0": BINDING}
    assert refused(scene, pod("1")) == {}
    scene.tell(sits("a", "n0", "g", cpu=3))
    assert refused(scene, pod("2")) == {}


def test_a_task_that_is_being_bound_is_counted_until_it_starts() -> None:
    """The same for our own."""
    scene = Scene(node("n0"))
    scene.submit("w", {"name": "s", "command": ["x"], "resources": {"cpu": 3}})
    assert refused(scene, pod("2")) == {"n0": BINDING}
    scene.start("fs-w-s-0-0")
    assert refused(scene, pod("2")) == {}


def test_a_task_that_the_watch_has_shown_on_its_node_is_counted_by_others() -> None:
    """It may still take minutes until its process runs."""
    scene = Scene(node("n0"))
    scene.submit("w", {"name": "s", "command": ["x"], "resources": {"cpu": 3}})
    scene.tell(structs.replace(sits("fs-w-s-0-0", "n0", cpu=3), rules=Rules(namespace="ns")))
    assert scene.states("w", "s") == "BINDING"
    assert refused(scene, pod("2")) == {}


def test_of_several_reasons_the_one_that_lasts_is_said() -> None:
    """Room is held beside the driver, and a pod is being bound there."""
    scene = driver()
    scene.tell(GroupSeen(ForeignGroup("h", "ns", "job")), waits("x", "h"))
    assert [order.node for order in scene.last.binds] == ["n0"]
    assert refused(scene, pod("1")) == {"n0": TO_COME}


def test_a_full_node_is_none_of_our_business() -> None:
    """Strangers fill it: kube-scheduler's news of them is fresher than ours."""
    scene = Scene(node("n0"))
    scene.tell(sits("stranger", "n0", cpu=4))
    assert refused(scene, pod("2")) == {}


def test_a_promise_is_kept_against_pods_that_might_outlast_it() -> None:
    """The gang starts in ten minutes on n0 and n1: what ends before may have n1 until then, nobody knows of the others."""
    scene = promised()
    both = {"n0": PROMISED, "n1": PROMISED}
    assert refused(scene, pod("2")) == both
    assert refused(scene, pod("2", {"flowsched.io/runtime": "11m"})) == both
    assert refused(scene, pod("2", {"flowsched.io/runtime": "9m"})) == {}
    assert refused(scene, pod("2", activeDeadlineSeconds=500)) == {}
    assert refused(scene, pod("2", activeDeadlineSeconds=700)) == both
    assert refused(scene, pod("2", {"flowsched.io/runtime": "1h"}, activeDeadlineSeconds=500)) == {}


def test_a_node_that_is_too_small_is_not_refused_for_a_promise_to_others() -> None:
    """n2 has two cores, of which nothing is promised: that three do not fit is kube-scheduler's to say."""
    assert refused(promised(), pod("3")) == {"n0": PROMISED, "n1": PROMISED}


def test_a_promise_that_is_overdue_is_not_put_off_by_work_however_short() -> None:
    """After eleven minutes the task still runs, and the start that was promised first has passed."""
    scene = promised()
    scene.tell(after=660_000)
    (reservation,) = scene.state.round.reservations
    assert reservation.start_ms > scene.now + 10_000
    assert refused(scene, pod("2", {"flowsched.io/runtime": "1s"})) == {"n0": PROMISED, "n1": PROMISED}


def test_a_target_that_is_given_up_frees_no_room() -> None:
    """Room of tasks whose inputs are still being copied is not taken yet, so none of it comes back by the promised start."""
    scene = promised()
    target = Claim("t", 1, (3000, MIB), ClaimKind.STAGING, "default", 0, scene.now + 1)
    scene.state.cluster.snapshot.claim(target, Statement())
    assert refused(scene, pod("2")) == {"n0": PROMISED, "n1": PROMISED}


def test_room_beside_a_promise_is_for_everybody() -> None:
    """n0 has four cores and the gang needs three of them; so has n1, later."""
    scene = promised()
    assert refused(scene, pod("1")) == {"n1": PROMISED}
    scene.tell(NodeChanged(node("n1", cpu=4)))
    assert refused(scene, pod("1")) == {}
    assert refused(scene, pod("1500m")) == {"n0": PROMISED, "n1": PROMISED}


def test_a_promise_to_others_gang_is_kept_too() -> None:
    """Its pods are of two classes: each has its own size."""
    scene = Scene(node("n0"), node("n1"))
    scene.tell(sits("stranger", "n0", cpu=4))
    group = ForeignGroup("g", "ns", "job", gang=True, minimum=2)
    scene.tell(GroupSeen(group), waits("big", "g", cpu=4), waits("small", "g", cpu=2))
    assert len(scene.state.round.reservations) == 1
    assert refused(scene, pod("3")) == {"n0": PROMISED, "n1": PROMISED}
    assert set(refused(scene, pod("1"))) == {scene.state.cluster.snapshot.names[place_of_big(scene)]}


def place_of_big(scene: Scene) -> int:
    """Where the member of four cores shall go: all of that node is promised."""
    (reservation,) = scene.state.round.reservations
    return int(reservation.nodes[0][0])


def test_disk_bandwidth_that_is_spoken_for_is_not_given_twice() -> None:
    """A task of ours reads 400 MB/s of n0's 500."""
    scene = Scene(node("n0"))
    scene.submit("w", {"name": "s", "command": ["x"], "resources": {"cpu": 1}, "io": {"read": "400M/s"}})
    scene.start("fs-w-s-0-0")
    scene.tell(NodeChanged(node("n1")))
    assert refused(scene, pod("1", {"flowsched.io/io-read": "60M/s", "flowsched.io/io-write": "60M/s"})) == {
        "n0": DISK
    }
    assert refused(scene, pod("1", {"flowsched.io/io-read": "50M/s", "flowsched.io/io-write": "50M/s"})) == {}
    assert refused(scene, pod("1", {"flowsched.io/io-read": "60G", "flowsched.io/runtime": "10m"})) == {}
    assert refused(scene, pod("1", {"flowsched.io/io-read": "60G", "flowsched.io/runtime": "9m"})) == {
        "n0": DISK
    }
    assert refused(scene, pod("1", {"flowsched.io/io-read": "9G/s"})) == {"n0": DISK}
    assert refused(scene, pod("1")) == {}


def test_a_policy_without_io_budgets_refuses_nothing_for_them() -> None:
    """As its own cycles do not."""
    scene = Scene(node("n0"), profile="kube-like")
    scene.submit("w", {"name": "s", "command": ["x"], "resources": {"cpu": 1}, "io": {"read": "400M/s"}})
    scene.start("fs-w-s-0-0")
    assert refused(scene, pod("1", {"flowsched.io/io-read": "200M/s"})) == {}


def test_what_the_cluster_itself_needs_is_let_pass() -> None:
    """Pods of DaemonSets (our agents!) and those whose priority is critical."""
    scene = driver(4)
    assert refused(scene, pod("1", owner="ReplicaSet")) == {"n0": TO_COME}
    assert refused(scene, pod("1", owner="DaemonSet")) == {}
    assert refused(scene, pod("1", priority=1_999_999_999)) == {"n0": TO_COME}
    assert refused(scene, pod("1", priority=2_000_000_000)) == {}


def test_a_pod_of_ours_that_was_handed_over_may_have_its_own_room() -> None:
    """Another scheduler places it: what our engine holds is held for this very pod."""
    scene = Scene(node("n0"), node("n1"))
    scene.submit("w", {"name": "s", "command": ["x"], "resources": {"cpu": 3}})
    (launched,) = scene.last.launches
    assert refused(scene, pod("3")) == {launched.node: BINDING}
    assert refused(scene, pod("3", {"flowsched.io/pod": launched.name})) == {}
    assert refused(scene, pod("3", {"flowsched.io/pod": "fs-other-s-0-0"})) == {launched.node: BINDING}


def test_room_of_a_pod_of_ours_is_not_room_of_its_siblings() -> None:
    """Two tasks of two cores on one node: each has its own two; and where a stranger has come between, kube-scheduler decides."""
    scene = Scene(node("n0"))
    scene.submit("w", {"name": "s", "scatter": {"count": 2}, "command": ["x"], "resources": {"cpu": 2}})
    own = {"flowsched.io/pod": "fs-w-s-0-0"}
    assert refused(scene, pod("2", own)) == {}
    assert refused(scene, pod("3", own)) == {"n0": BINDING}
    scene.start("fs-w-s-1-0")
    scene.tell(sits("stranger", "n0", cpu=1))
    assert refused(scene, pod("2", own)) == {}


def test_questions_change_nothing() -> None:
    """Strangers' resources, datasets and groups are not remembered."""
    scene = promised()
    state = scene.state
    before = (
        state.cluster.snapshot.axes,
        len(state.cluster.catalogue),
        dict(state.work.keys),
        state.cluster.snapshot.used.tolist(),
    )
    asked = pod("1", {"flowsched.io/inputs": "s3://new/one=1G"}, more={"example.com/fpga": "1"})
    refused(scene, asked)
    liked(scene, asked)
    assert before == (
        state.cluster.snapshot.axes, len(state.cluster.catalogue), dict(state.work.keys), state.cluster.snapshot.used.tolist(),
    )  # fmt: skip


def test_the_answer_is_of_the_last_step() -> None:
    """What is held is computed once for a step, and again after the next, or when nodes have changed since."""
    scene = Scene(node("n0"), node("n1", cpu=1))
    scene.tell(GroupSeen(ForeignGroup("g", "ns", "job")), waits("a", "g", cpu=3))
    extender = Extender()
    assert extender.refused(scene.state, 7, pod("2"), scene.now) == {"n0": BINDING}
    scene.tell(NodeChanged(node("n2")))
    assert extender.refused(scene.state, 7, pod("2"), scene.now) == {"n0": BINDING}
    scene.tell(sits("a", "n0", "g", cpu=3))
    assert extender.refused(scene.state, 8, pod("2"), scene.now) == {}


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b'{"spec": 1}', b'{"metadata": {"name": "\xff"}}', b"[" * 99_999]
)
def test_what_is_no_pod_is_refused_with_its_reason(raw: bytes) -> None:
    """A 400; kube-scheduler goes on without us where the extender is `ignorable`."""
    scene = Scene(node())
    with pytest.raises(InvalidRequest, match="the pod cannot be read"):
        refused(scene, raw)
    with pytest.raises(InvalidRequest, match="the pod cannot be read"):
        liked(scene, raw)


@pytest.mark.parametrize("cpu", ["999999999999", "9E", "-1"])
def test_amounts_beyond_reason_are_refused_nowhere_that_nothing_is_held(cpu: str) -> None:
    """They are kube-scheduler's to refuse; arithmetic stays within 64 bits."""
    assert set(refused(driver(), pod(cpu))) == {"n0"}
    assert refused(Scene(node()), pod(cpu)) == {}


# -------------------------------------------------------------------------------------------------- prioritize


def test_a_node_that_has_the_data_is_liked_best() -> None:
    """12 GB at 117 MB/s are two minutes, and half of it again for the link."""
    scene = Scene(node("n0"), node("n1"), node("n2"))
    scene.tell(ReplicaSeen("s3://lab/reads", "n1", 12 * GB))
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://lab/reads"})) == [0, 10, 0]


def test_points_are_in_proportion_to_what_is_missing() -> None:
    """n1 has all of it, n2 most, n0 nothing."""
    scene = Scene(node("n0"), node("n1"), node("n2"))
    for name, size, at in (("a", 9, "n1"), ("b", 3, "n1"), ("a", 9, "n2")):
        scene.tell(ReplicaSeen(f"s3://lab/{name}", at, size * GB))
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://lab/a, s3://lab/b"})) == [0, 10, 7]


def test_a_second_is_worth_a_point_at_most() -> None:
    """Small differences leave the choice to others."""
    scene = Scene(node("n0"), node("n1"))
    scene.tell(ReplicaSeen("s3://lab/small", "n1", 1000))
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://lab/small"})) == [9, 10]


def test_without_an_opinion_all_get_nothing() -> None:
    """No data, data that are everywhere, data of which nobody knows."""
    scene = Scene(node("n0"), node("n1"))
    for at in ("n0", "n1"):
        scene.tell(ReplicaSeen("s3://ref/hg38", at, 3 * GB))
    assert liked(scene, pod()) == [0, 0]
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://ref/hg38"})) == [0, 0]
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://ref/other=5G"})) == [0, 0]


def test_only_the_nodes_asked_about_are_compared() -> None:
    """The best one is not among them; one is not known here."""
    scene = Scene(node("n0"), node("n1"), node("n2"))
    scene.tell(ReplicaSeen("s3://lab/reads", "n1", 12 * GB))
    asked = pod("1", {"flowsched.io/inputs": "s3://lab/reads"})
    assert liked(scene, asked, "n2", "n0") == [0, 0]
    assert liked(scene, asked, "new", "n1", "n0") == [0, 10, 0]
    assert liked(scene, asked, "new") == [0]


def test_an_image_is_data_too() -> None:
    """Under the name that the pod gives it."""
    scene = Scene(node("n0"), node("n1"))
    scene.tell(ReplicaSeen("image:none", "n0", 4 * GB))
    assert liked(scene, pod()) == [10, 0]
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://new/one=1G"})) == [10, 0]


def test_a_size_that_nobody_has_told_yet_is_taken_from_the_pod() -> None:
    """n1 has it; that it is large is known only to whoever asks."""
    scene = Scene(node("n0"), node("n1"))
    scene.tell(ReplicaSeen("s3://lab/reads", "n1", 0))
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://lab/reads"})) == [9, 10]
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://lab/reads=12G"})) == [0, 10]


def test_what_must_come_from_outside_comes_faster_to_a_faster_node() -> None:
    """Of a dataset that nobody has told of, the size says how much faster; beside one that n1 has."""
    scene = Scene(node("n0", nic_in_rate=GB), node("n1", nic_in_rate=10**7))
    scene.tell(ReplicaSeen("s3://lab/small", "n1", 10**7))
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://new/big=20G"})) == [10, 0]
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://new/big=20G,s3://lab/small"})) == [10, 0]
    assert liked(scene, pod("1", {"flowsched.io/inputs": "s3://new/big,s3://lab/small"})) == [9, 10]


def test_a_busy_disk_is_disliked_by_pods_that_read_much() -> None:
    """One neighbour: twice 50 GB over 500 MB/s."""
    scene = Scene(node("n0"))
    scene.submit("w", {"name": "s", "command": ["x"], "resources": {"cpu": 1}, "io": {"read": "9G"}})
    scene.tell(NodeChanged(node("n1")))
    assert liked(scene, pod("1", {"flowsched.io/io-read": "50G"})) == [0, 10]
    assert liked(scene, pod("1")) == [0, 0]


def test_inputs_of_our_own_pods_need_not_be_said() -> None:
    """The engine knows them: one that was handed over goes to its data."""
    scene = Scene(node("n0"), node("n1"))
    scene.tell(ReplicaSeen("s3://lab/reads", "n1", 12 * GB))
    stage = {"name": "s", "command": ["x"], "inputs": [{"name": "r", "uri": "s3://lab/reads", "size": "12G"}]}
    scene.submit("w", stage)
    (launched,) = scene.last.launches
    assert liked(scene, pod("1", {"flowsched.io/pod": launched.name})) == [0, 10]


@pytest.mark.parametrize("size", ["4Pi", "9E", "-1", "x"])
def test_data_beyond_reason_stay_within_the_scale(size: str) -> None:
    """Whatever a stranger writes."""
    scene = Scene(node("n0"), node("n1"))
    scene.tell(ReplicaSeen("s3://lab/reads", "n1", 12 * GB))
    inputs = ",".join(f"s3://x/{number}={size}" for number in range(3000))
    annotations = {
        "flowsched.io/inputs": f"s3://lab/reads,{inputs}",
        "flowsched.io/io-read": size,
        "flowsched.io/io-write": size,
    }
    assert all(0 <= score <= 10 for score in liked(scene, pod("1", annotations)))


@given(st.lists(st.integers(0, 1 << 52), min_size=1, max_size=20))
def test_who_is_cheaper_never_gets_less(cost: list[int]) -> None:
    """The cheapest get 10 and nobody else does; where all cost the same, nobody gets anything."""
    points = _points(np.array(cost, dtype=np.int64))
    if min(cost) == max(cost):
        assert points == [0] * len(cost)
        return
    assert all(0 <= point <= 10 for point in points)
    assert [point == 10 for point in points] == [each == min(cost) for each in cost]
    ordered = [point for _, point in sorted(zip(cost, points, strict=True), key=lambda pair: pair[0])]
    assert ordered == sorted(points, reverse=True)


# ------------------------------------------------------------------------------------------------------- hints


def said(**annotations: str) -> Hints:
    names = {f"flowsched.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return hints_of(parsed(names))


def parsed(annotations: dict[str, str]) -> Pod:
    return Pod(metadata=Pod().metadata.__class__(annotations=annotations))


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        ("", ()),
        (" , ", ()),
        ("s3://a", (("s3://a", 0),)),
        ("s3://a=12Gi, s3://b", (("s3://a", 12 << 30), ("s3://b", 0))),
        ("s3://a=1k,s3://a=2k", (("s3://a", 2000),)),
        ("https://h/a?x=y", (("https://h/a?x=y", 0),)),
        ("https://h/a?part=2=5M", (("https://h/a?part=2", 5_000_000),)),
        ("https://h/a?part=2=", (("https://h/a?part=2", 0),)),
        ("=5M", ()),
    ],
)
def test_inputs_are_uris_with_or_without_a_size(text: str, inputs: tuple[tuple[str, int], ...]) -> None:
    """The last equals sign separates a size, if it is one."""
    assert said(inputs=text).inputs == inputs


def test_disk_traffic_is_a_rate_or_bytes_over_the_runtime() -> None:
    """As in workflow documents."""
    assert said(io_read="100M/s", io_write="20M/s") == Hints(io_rate=120_000_000)
    assert said(io_read="6G", runtime="1m") == Hints(io_rate=100_000_000, io_bytes=6 * GB, runtime_ms=60_000)
    assert said(io_read="6G", io_write="1M/s") == Hints(io_rate=1_000_000, io_bytes=6 * GB)
    assert said(io_write="6G") == Hints(io_bytes=6 * GB)
    assert said(io_read="6G", io_write="1M/s", runtime="1m").io_rate == 1_000_000


def test_what_cannot_be_understood_counts_as_not_said() -> None:
    """Of each annotation by itself."""
    odd = parsed({"flowsched.io/io-read": "much/s", "flowsched.io/runtime": "soon"})
    assert hints_of(odd) == Hints()


# ----------------------------------------------------------------------------------------------------- service


async def test_a_process_that_does_not_lead_has_no_opinion(tmp_path: Path) -> None:
    """A standby replica knows nothing of the cluster: it lets all pass, whatever it is asked."""
    async with assembled(Settings(root=tmp_path, log_level="error")) as (service, _, _, _):
        assert await service.refused_nodes(pod("1")) == {}
        assert await service.node_scores(pod("1"), ["a", "b"]) == [0, 0]


async def test_the_leader_answers_from_its_memory(tmp_path: Path) -> None:
    """Of a real service: its nodes are known, nothing is held, and what is no pod is refused."""
    async with running(
        Settings(port=0, root=tmp_path, log_level="error", local=LocalSettings(nodes=2))
    ) as up:
        (first, second) = (view.name for view in await up.service.nodes())
        up.service._leader.dispatcher.report(
            [ReplicaSeen("s3://lab/reads", second, GB)]
        )  # fits a nearly full disk
        await up.service._leader.dispatcher.settled()
        asked = pod("1", {"flowsched.io/inputs": "s3://lab/reads"})
        assert await up.service.refused_nodes(asked) == {}
        assert await up.service.node_scores(asked, [first, second, "other"]) == [0, 10, 0]
        with pytest.raises(InvalidRequest):
            await up.service.refused_nodes(b"{")
