"""Short cycles decide what the long way decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsched.executor.constraints import Rules
from flowsched.executor.nodes import ALIGNED, PLENTY, NodeInfo, Zone
from flowsched.scheduling import cycle as cycle_module
from flowsched.scheduling import locality_delay
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Nomination
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import PROFILES, Profile, Storage
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from tests.scheduling.scheduling_cases import (
    GIB,
    at_length,
    bag,
    claim,
    cluster,
    gang,
    role,
    run,
    shape,
    stage,
)
from tests.scheduling.scheduling_cases import group as group_of
from tests.scheduling.scheduling_cases import node as node_of
from tests.scheduling.test_single import NOW, World, told

OURS = PROFILES["flowsched"]


def world(seed: int) -> World:
    """A random cluster and a few groups, most often in one line, gangs of one pod among them."""
    made = World(seed)
    rng = made.rng
    some: list[PodGroup] = []
    for group in made.backlog[: rng.choice([1, 1, 1, 2, 3, 6, 8, 9])]:
        if rng.random() < 0.3:
            group = replace(gang(group.key, 1, group.roles[0].shape), inputs=group.inputs)
        queue = "a" if rng.random() < 0.95 else group.queue
        rank = rng.choice([0, 0, 500, 5_000, 100_000])
        some.append(replace(group, queue=queue, rank_ms=rank, workflow=rng.choice(["w", "x"])))
    made.backlog = some
    made.profile = replace(made.profile, order=rng.choice(["shortest", "rank", "fifo"]))
    return made


@given(st.integers(0, 1 << 32))
@settings(max_examples=800, deadline=None)
def test_a_short_cycle_decides_what_the_long_way_decides(seed: int) -> None:
    """Data and none, targets, several policies, ranks and priorities, full clusters: the same plan."""
    some = world(seed)
    short = told(some.decide())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycle_module, "decide_briefly", at_length)
        long = told(some.decide())
    assert short == long


def unset(*_: object, **__: object) -> None:
    raise AssertionError("the long way was set up")


def briefly(
    snapshot: Snapshot, backlog: Sequence[PodGroup], catalogue: Catalogue | None = None
) -> list[tuple[int, list[int], int]]:
    """Key, nodes and cost of what a cycle places without setting anything up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycle_module, "_Cycle", unset)
        plan = cycle(snapshot, catalogue or Catalogue(), QueueTree(), backlog, OURS, NOW)
    assert plan.looked_at == len(backlog)
    assert not plan.reasons
    return [(each.group, each.nodes[0].tolist(), each.cost_ms) for each in plan.placements]


def test_few_pods_of_one_line_take_room_from_each_other() -> None:
    """Each goes to the fullest node that has room when its turn comes, by priority; a gang of one as well as a bag."""
    snapshot = cluster(2, 4, 16)
    backlog = [bag(1, 1, shape(2)), gang(2, 1, shape(2)), bag(3, 1, shape(1), priority=1)]
    assert briefly(snapshot, backlog) == [(3, [0], 718), (1, [1], 718), (2, [1], 437)]


def test_a_pod_goes_beside_its_inputs() -> None:
    """One holder is emptier than others, and of eight holders the fullest is chosen; the first of two that are alike."""
    snapshot, catalogue = cluster(2, 16, *[8] * 8), Catalogue()
    few, many = (catalogue.intern(f"s3://lab/{name}", GIB, True) for name in ("few", "many"))
    catalogue.add_replica(few, 1)
    for node in range(2, 10):
        catalogue.add_replica(many, node)
    for node in (4, 7):
        run(snapshot, f"p{node}", node, 4)
    backlog = [bag(1, 1, shape(1), inputs=(few,)), gang(2, 1, shape(1), inputs=(many,))]
    assert [nodes for _, nodes, _ in briefly(snapshot, backlog, catalogue)] == [[1], [4]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"queues": QueueTree([Queue("top", paused=True), Queue("default", parent="top")])}, "Paused"),
        ({"queues": QueueTree([Queue("default", cap=(500,))])}, "QueueLimit"),
        ({"backlog": [bag(1, 1, shape(5))]}, "LargerThanNode"),
        ({"backlog": [bag(1, 1, shape(4, selector=(("disktype", "ssd"),)))]}, "NoMatchingNode"),
        ({"backlog": [bag(1), bag(2, 1, shape(4))]}, "Insufficient"),
    ],
)
def test_who_may_not_or_cannot_start_hears_why(change: dict[str, Any], reason: str) -> None:
    """The long way says it, also of the second of two."""
    given: dict[str, Any] = {"queues": QueueTree(), "backlog": [bag(1)], **change}
    plan = cycle(cluster(4), Catalogue(), given["queues"], given["backlog"], OURS, NOW)
    assert [each.code for each in plan.reasons] == [reason]


def two_nodes(**more: Any) -> Snapshot:
    """4 and 16 cores; the smaller one is the fuller one, where whoever minds nothing goes."""
    return cluster(4, 16, **more)


def decided(
    group: PodGroup | list[PodGroup], snapshot: Snapshot | None = None, profile: Profile = OURS, **more: Any
) -> list[tuple[int, list[list[int]]]]:
    """Key, and nodes by role, of what a cycle places, also where each group goes its way by itself (`single`)."""
    groups = group if isinstance(group, list) else [group]
    given = {"catalogue": Catalogue(), "queues": QueueTree(), "most": None, **more}
    where = two_nodes() if snapshot is None else snapshot
    asked = (where, given["catalogue"], given["queues"], groups, profile, NOW, given["most"])
    plan = cycle(*asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycle_module, "decide_briefly", at_length)
        assert told(cycle(*asked)) == told(plan)
    return [(each.group, [nodes.tolist() for nodes in each.nodes]) for each in plan.placements]


def test_whoever_minds_nothing_goes_to_the_fullest_node() -> None:
    """What the following tests are about would go there, too, if nobody minded."""
    assert decided(bag(1)) == [(1, [[0]])]


@pytest.mark.parametrize(
    ("group", "nodes"),
    [
        pytest.param(bag(1, shut=(0,)), [[1]], id="a cache without room"),
        pytest.param(bag(1, min_resources=(21_000,)), [], id="room for pods that do not exist yet"),
        pytest.param(group_of(1, [role("a", 1), role("b", 1)]), [[0], [0]], id="two roles"),
        pytest.param(bag(1, 2), [[0, 0]], id="two pods"),
        pytest.param(bag(1, 1, shape(1, rules=Rules(node_name="n1"))), [[1]], id="rules"),
        pytest.param(bag(1, 1, shape(4, selector=(("disk", "ssd"),))), [], id="a label no node has"),
    ],
)
def test_what_a_group_says_of_nodes_beside_its_size(group: PodGroup, nodes: list[list[int]]) -> None:
    """It does not go to the fullest node, or not alone."""
    assert decided(group) == ([(1, nodes)] if nodes else [])


def test_pods_that_load_disks_go_where_nobody_else_does() -> None:
    """Somebody reads and writes on the fuller node."""
    snapshot = two_nodes()
    run(snapshot, "busy", 0, 1, io_bytes=GIB)
    assert decided(bag(1, 1, shape(1, io_bytes=GIB)), snapshot) == [(1, [[1]])]


def test_data_that_are_read_over_the_network_and_images_are_looked_for() -> None:
    """They are on the emptier node; an image that nobody knows changes nothing."""
    catalogue = Catalogue()
    far, image = (catalogue.intern(name, 10 * GIB, True) for name in ("s3://lab/far", "image:bwa"))
    for dataset in (far, image):
        catalogue.add_replica(dataset, 1)
    for group in (bag(1, remote=(far,)), bag(1, 1, shape(1, image="bwa"))):
        assert decided(group, catalogue=catalogue) == [(1, [[1]])]
    assert decided(bag(1, 1, shape(1, image="samtools")), catalogue=catalogue) == [(1, [[0]])]
    away = catalogue.intern("s3://lab/away", GIB, True)
    some = [
        bag(1, inputs=(away,)),
        bag(2, remote=(far,)),
    ]  # they ask for the same, but it does not cost the same
    assert decided(some, catalogue=catalogue) == [(1, [[0]]), (2, [[1]])]


def test_a_storage_that_is_full_lets_nobody_more_in() -> None:
    """Its budget is half of 100 bytes/s, of which 45 are asked for."""
    profile = replace(OURS, storages=(Storage("nas", 100),), io_fill_percent=50)
    snapshot, direct = two_nodes(), (("nas/read", 45),)
    run(snapshot, "reader", 1, 1, direct=direct)
    assert decided(bag(1, 1, shape(1, direct=direct)), snapshot, profile) == []
    assert decided(bag(1, 1, shape(1, direct=(("nas/read", 5),))), snapshot, profile) == [(1, [[0]])]


def test_whole_gpus_and_parts_of_them() -> None:
    """Two halves are no whole one, and a part is told which GPU it is of."""
    snapshot = cluster(8, 16, gpu_millis=2_000)
    whole, half = (Shape((1_000, GIB, 0, millis, 0)) for millis in (1_000, 500))
    plan = cycle(snapshot, Catalogue(), QueueTree(), [bag(1, 1, half)], OURS, NOW)
    assert [[rows.tolist() for rows in each.devices] for each in plan.placements] == [[[[500, 0]]]]
    for device in (0, 1):
        claim = Claim(
            f"p{device}", 0, half.requests, ClaimKind.RUNNING, "default", 0, None, devices=((device, 500),)
        )
        snapshot.claim(claim, Statement())
    assert decided(bag(1, 1, whole), snapshot) == [(1, [[1]])]


def test_a_pod_in_one_numa_zone() -> None:
    """Two cores: the fuller node has one free in each of its zones."""
    snapshot = Snapshot()
    for at, zones in enumerate(((4, 4), (16,))):
        told = tuple(Zone({"cpu": each * 1_000}, {"cpu": each * 1_000}) for each in zones)
        snapshot.put_node(replace(node_of(f"n{at}", sum(zones)), zones=told, extended={ALIGNED: PLENTY}))
    three, two = ((cores * 1_000, GIB, 0, 0, 0, 1) for cores in (3, 2))
    for owner in ("a", "b"):
        snapshot.claim(Claim(owner, 0, three, ClaimKind.RUNNING, "default", 0, None), Statement())
    assert decided(bag(1, 1, Shape(two)), snapshot) == [(1, [[1]])]


def test_room_that_is_held_is_for_whom_it_is_held() -> None:
    """Others have left the emptier node for it: it goes there, although there is room on the fuller one."""
    snapshot = two_nodes()
    nomination = Nomination(1, "default", 1, ((1, (1_000,)),), (), NOW + 60_000)
    snapshot.nominations[1] = nomination
    held = Claim(nomination.holder(1), 1, (1_000,), ClaimKind.NOMINATED, "default", NOW, None)
    snapshot.claim(held, Statement())
    assert decided(bag(1), snapshot) == [(1, [[1]])]


def test_what_a_profile_plugs_in_is_asked() -> None:
    """A filter, a cost of each pod, and one of the first: all are against the fuller node. So is a stock scheduler."""

    def only_the_last(snapshot: Snapshot, _: Shape) -> tuple[Any, str]:
        return np.arange(len(snapshot)) == len(snapshot) - 1, "are not the last"

    def dear(snapshot: Snapshot, *_: Any) -> Any:
        return np.array([5_000, 0])

    for change in ({"filters": (only_the_last,)}, {"costs": (dear,)}, {"first_costs": (dear,)}):
        assert decided(bag(1), profile=replace(OURS, **change)) == [(1, [[1]])]
        own = replace(OURS, queues={"default": replace(OURS, **change)})
        assert decided(bag(1), profile=own) == [(1, [[1]])]
    assert decided(bag(1), profile=PROFILES["kube-like"]) == [(1, [[1]])]


def test_users_of_one_queue_take_turns() -> None:
    """Who has nothing yet comes before who came first, where there is room for both and where there is for one."""
    for cores, placed in ((3, [(2, [[0]]), (1, [[0]])]), (2, [(2, [[0]])])):
        snapshot = cluster(cores)
        run(snapshot, "hers", 0, 1, user="ann")
        assert decided([bag(1, user="ann"), bag(2, user="bob")], snapshot) == placed


def test_a_cycle_places_no_more_than_it_may() -> None:
    """Of two it looks at one, or places one."""
    some = [bag(1), bag(2)]
    assert decided(some, most=1) == [(1, [[0]])]
    assert decided(some, profile=replace(OURS, window=1)) == [(1, [[0]])]
    assert decided(some, most=2, profile=replace(OURS, window=2)) == [(1, [[0]]), (2, [[0]])]


def test_kinds_differ_by_labels_and_taints() -> None:
    """The fuller node is tainted and the other has a label: where one may be another may not. Nor may who is bound to a node."""
    snapshot = Snapshot()
    snapshot.put_node(node_of("n0", 4, taints=(("t", "", "NoSchedule"),)))
    snapshot.put_node(node_of("n1", 16, labels={"disk": "ssd"}))
    tolerant = shape(1, tolerations=(("t", "Exists", "", ""),))
    some = [bag(1, 1, tolerant), bag(2), bag(3, 1, replace(tolerant, selector=(("disk", "ssd"),)))]
    assert decided(some, snapshot) == [(1, [[0]]), (2, [[1]]), (3, [[1]])]
    bound = bag(4, 1, replace(tolerant, rules=Rules(node_name="n1")))
    assert decided([bag(1, 1, tolerant), bound], snapshot) == [(1, [[0]]), (4, [[1]])]


def test_a_queue_that_does_not_mind_where_data_are() -> None:
    """Its own profile says so; and the other way round."""
    catalogue = Catalogue()
    far = catalogue.intern("s3://lab/far", 10 * GIB, True)
    catalogue.add_replica(far, 1)
    blind = replace(OURS, locality=False)
    for usual, own, node in ((OURS, blind, 0), (blind, OURS, 1)):
        profile = replace(usual, queues={"default": own})
        assert decided(bag(1, inputs=(far,)), profile=profile, catalogue=catalogue) == [(1, [[node]])]


def test_work_is_what_runs_and_what_waits_over_all_cores() -> None:
    """2 cores for 10 s more, 1 of which nothing is known (20 s), 4 that are late (by a tenth of their minute), a target (20 s)."""
    snapshot = cluster(4, 4)
    run(snapshot, "known", 0, 2, NOW + 10_000)
    claim(snapshot, "unknown", 0, 1, ClaimKind.RUNNING, since_ms=NOW)
    claim(snapshot, "late", 1, 4, ClaimKind.RUNNING, NOW - 10_000, since_ms=NOW - 60_000)
    stage(snapshot, "target", 1, 2)
    profile = replace(OURS, default_runtime_ms=20_000)
    backlog = [bag(1, 3, rank_ms=9_000, runtime_ms=4_000), bag(2, 1, rank_ms=0, runtime_ms=1_000)]
    # (2 * 10 + 1 * 20 + 4 * 6 + 2 * 20 + 3 * 4 + 1) s of one core, over 8 cores
    assert locality_delay.work_ms(snapshot, backlog, profile, NOW) == 117_000 // 8


def test_nobody_asks_for_work_who_is_near_the_end() -> None:
    """What waits takes 4 s on one core; a rank below that is no reason to look at what runs."""
    backlog = [bag(1, 3, rank_ms=3_999, runtime_ms=1_000), bag(2, 1, rank_ms=0, runtime_ms=1_000)]
    snapshot = Snapshot()
    snapshot.put_node(NodeInfo("n0", 1_000, 16 * GIB))
    assert locality_delay.work_ms(snapshot, backlog, OURS, NOW) is None
