"""What a cycle decides, in small literal cases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from scheduling_cases import GIB, SECOND, bag, claim, cluster, gang, group, node, role, run, shape, stage

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.placement.cost_table import bundle_on
from flowsched.scheduling.plan import Plan, ReasonCode
from flowsched.scheduling.pod_group import Home, PodGroup, Shape
from flowsched.scheduling.policy.framework import PROFILES, Profile, Storage
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.reservations import expected_ends
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace

OURS, KUBE = PROFILES["flowsched"], PROFILES["kube-like"]
NOW = 100 * SECOND


def decide(
    snapshot: Snapshot,
    *backlog: PodGroup,
    catalogue: Catalogue | None = None,
    queues: QueueTree | None = None,
    profile: Profile = OURS,
    now: int = NOW,
) -> Plan:
    return cycle(snapshot, catalogue or Catalogue(), queues or QueueTree(), backlog, profile, now)


def nodes(plan: Plan) -> dict[int, list[list[int]]]:
    return {p.group: [where.tolist() for where in p.nodes] for p in plan.placements}


def codes(plan: Plan) -> dict[int, str]:
    return {reason.group: reason.code.value for reason in plan.reasons}


# ---- gangs ----


def test_a_gang_that_does_not_fit_whole_does_not_start() -> None:
    """Three of four members would fit: none starts, and the reason counts them."""
    plan = decide(cluster(1, 2), gang(1, 4))
    assert nodes(plan) == {}
    assert codes(plan) == {1: "LargerThanCluster"}
    assert plan.reasons[0].message.startswith("3 of 4 members fit an empty cluster")


def test_members_that_fit_are_counted_beside_each_other() -> None:
    """Two servers of one core and four workers of two, on two nodes of two cores: both servers on one, a worker on the other."""
    roles = [role("ps", 2, 2, shape(1)), role("worker", 4, 4, shape(2))]
    plan = decide(cluster(2, 2), group(1, roles))
    assert plan.reasons[0].message.startswith("3 of 6 members fit an empty cluster; worker needs 2 CPU")


def test_members_beyond_the_minimum_go_where_there_is_room() -> None:
    """Of six workers two are needed and three fit."""
    plan = decide(cluster(3), group(1, [role("worker", 6, 2)]))
    assert nodes(plan) == {1: [[0, 0, 0]]}


def test_minimums_of_all_roles_come_before_extras_of_any() -> None:
    """The large role's extra would leave no room for the small role's minimum; it is left out."""
    roles = [role("ps", 1, 1, shape(1)), role("worker", 2, 1, shape(3))]
    plan = decide(cluster(6), group(1, roles))
    assert nodes(plan) == {1: [[0], [0]]}


def test_a_cycle_places_so_many_pods_and_the_rest_follows() -> None:
    """Of 4 + 6 pods and a gang of 3 a cycle of 5 places the first bag and one of the second; one of 11 begins the gang, whole."""
    groups = [bag(1, 4), bag(2, 6), gang(3, 3)]
    five = cycle(cluster(20), Catalogue(), QueueTree(), groups, OURS, NOW, 5)
    assert {key: len(where[0]) for key, where in nodes(five).items()} == {1: 4, 2: 1}
    assert codes(five) == {2: "BacklogWindow", 3: "BacklogWindow"}
    eleven = cycle(cluster(20), Catalogue(), QueueTree(), groups, OURS, NOW, 11)
    assert {key: len(where[0]) for key, where in nodes(eleven).items()} == {1: 4, 2: 6, 3: 3}
    assert codes(eleven) == {}


def test_five_gangs_of_eight_cores_on_twelve_start_one_at_a_time() -> None:
    """Flowsched starts the first whole; a stock cluster interleaves their pods, and no gang is complete."""
    gangs = [gang(key, 8) for key in range(1, 6)]
    ours = decide(cluster(4, 4, 4), *gangs)
    assert {key: len(where[0]) for key, where in nodes(ours).items()} == {1: 8}
    theirs = decide(cluster(4, 4, 4), *gangs, profile=KUBE)
    assert {key: len(where[0]) for key, where in nodes(theirs).items()} == {1: 3, 2: 3, 3: 2, 4: 2, 5: 2}


def test_a_rack_is_chosen_where_the_gang_is_cheapest() -> None:
    """Both racks have room; the second has the data."""
    snapshot, catalogue = Snapshot(), Catalogue()
    for at, rack in enumerate(["a", "a", "b", "b"]):
        snapshot.put_node(node(f"n{at}", 2, rack=rack))
    reads = catalogue.intern("s3://reads", 10 * GIB, origin=True)
    for holder in (2, 3):
        catalogue.add_replica(reads, holder)
    wanted = gang(1, 4, shape(rack="required"), inputs=(reads,))
    assert nodes(decide(snapshot, wanted, catalogue=catalogue)) == {1: [[2, 2, 3, 3]]}


def test_a_gang_that_needs_a_rack_waits_where_only_the_cluster_has_room() -> None:
    """Four cores are free, two in each rack: required waits, preferred starts across racks."""
    snapshot = Snapshot()
    for at, rack in enumerate(["a", "a", "b", "b"]):
        snapshot.put_node(node(f"n{at}", 2, rack=rack))
        run(snapshot, f"r{at}", at, 1, NOW + at * SECOND + SECOND)
    plan = decide(snapshot, gang(1, 3, shape(rack="required")))
    assert codes(plan) == {1: "RackInsufficient"}
    assert plan.reasons[0].start_ms == NOW + SECOND
    assert nodes(decide(snapshot, gang(1, 3, shape(rack="preferred")))) == {1: [[0, 1, 2]]}


def test_one_per_node() -> None:
    """Three nodes with room for two each: three pods find a node of their own, four do not."""
    alone = shape(one_per_node=True)
    assert nodes(decide(cluster(2, 2, 2), gang(1, 3, alone))) == {1: [[0, 1, 2]]}
    assert codes(decide(cluster(2, 2, 2), gang(1, 4, alone))) == {1: "LargerThanCluster"}


def test_a_driver_waits_until_there_is_room_for_its_executors() -> None:
    """Spark's driver needs one core, its `min_resources` five: on four free cores it does not start, on five it does."""
    driver = gang(1, 1, min_resources=(5000, 0))
    busy = cluster(4, 4)
    run(busy, "r", 0, 4, NOW + 60 * SECOND)
    plan = decide(busy, driver)
    assert nodes(plan) == {}
    assert plan.reasons[0].start_ms == NOW + 60 * SECOND
    assert nodes(decide(cluster(4, 1), driver)) == {1: [[1]]}


def test_two_drivers_do_not_start_on_the_room_for_one() -> None:
    """The room for the first one's executors is not given to the second driver in the same cycle."""
    plan = decide(cluster(4, 4), *[gang(key, 1, min_resources=(5000, 0)) for key in (1, 2)])
    assert list(nodes(plan)) == [1]


def test_memory_beside_no_core_is_no_room_for_executors() -> None:
    """The rest is one bundle: cores here and memory there do not make it."""
    snapshot = Snapshot()
    snapshot.put_node(node("cores", 8, 2))
    snapshot.put_node(node("memory", 1, 64))
    plan = decide(snapshot, gang(1, 1, min_resources=(6000, 24 * GIB)))
    assert nodes(plan) == {}


# ---- hard and soft room ----


def test_a_rest_of_ten_terabytes_on_one_node_is_held() -> None:
    """A driver that will use 10 TiB of a disk of 16: what is left for the next is 6, and not more than there was."""
    snapshot = cluster(4, disk_bytes=16 << 40)
    driver = gang(1, 1, min_resources=(1_000, GIB, 10 << 40))
    eats = bag(2, 1, Shape((1_000, GIB, 7 << 40, 0, 0)))
    plan = cycle(snapshot, Catalogue(), QueueTree(), [driver, eats], OURS, 0)
    assert [(each.group, each.held) for each in plan.placements] == [(1, ((0, (0, 0, 10 << 40, 0, 0)),))]


def test_a_bundle_of_petabytes_is_laid_out_to_the_byte() -> None:
    """Two pebibytes on nodes with one each, none where less than nothing is left; and of little, no more than is asked for."""
    everywhere = np.ones(3, dtype=np.bool_)
    left = [np.array([1 << 50, -5, 1 << 50]), np.array([1_000, 1_000, 1_000])]
    laid = bundle_on(left, (1 << 51, 0), everywhere)
    assert laid is not None
    assert [row.tolist() for row in laid] == [[1 << 50, 0, 1 << 50], [0, 0, 0]]
    assert bundle_on(left, (1 << 52, 0), everywhere) is None
    one = bundle_on([np.array([10, 10, 10])], (15,), everywhere)
    assert one is not None
    assert [row.tolist() for row in one] == [[10, 5, 0]]
    assert bundle_on(left, (1 << 51, 0), np.array([True, True, False])) is None


def test_what_has_its_data_binds_over_the_targets_of_others() -> None:
    """All cores are somebody's target; a pod with nothing to fetch takes one, so that none stays idle."""
    snapshot = cluster(2)
    stage(snapshot, "s", 0, 2)
    assert nodes(decide(snapshot, bag(1, 3))) == {1: [[0, 0]]}


def test_what_must_fetch_its_data_leaves_the_targets_of_others() -> None:
    """The same core is no target for a second one that would have to copy its inputs."""
    snapshot, catalogue = cluster(2, 2), Catalogue()
    stage(snapshot, "s", 0, 2)
    reads = catalogue.intern("s3://reads", GIB, origin=True)
    plan = decide(snapshot, bag(1, 3, inputs=(reads,)), catalogue=catalogue)
    assert nodes(plan) == {1: [[1, 1]]}
    assert codes(plan) == {1: "WaitingForData"}


def test_a_target_holds_no_core_against_later_groups() -> None:
    """The first group must copy its inputs and only aims at the cores; the second starts on them at once."""
    snapshot, catalogue = cluster(2), Catalogue()
    reads = catalogue.intern("s3://reads", GIB, origin=True)
    plan = decide(snapshot, gang(1, 2, inputs=(reads,), priority=1), gang(2, 2), catalogue=catalogue)
    assert nodes(plan) == {1: [[0, 0]], 2: [[0, 0]]}
    assert plan.placements[0].missing_bytes[0].tolist() == [GIB, GIB]


def test_targets_of_one_cycle_do_not_pile_up() -> None:
    """Two groups that both must copy get cores of their own."""
    snapshot, catalogue = cluster(2, 2), Catalogue()
    reads = [catalogue.intern(f"s3://reads{n}", GIB, origin=True) for n in range(3)]
    wanted = [gang(n, 2, inputs=(reads[n],)) for n in range(3)]
    plan = decide(snapshot, *wanted, catalogue=catalogue)
    assert nodes(plan) == {0: [[0, 0]], 1: [[1, 1]]}


def test_a_gang_with_one_member_far_from_its_data_is_a_target_as_a_whole() -> None:
    """Two members fit beside the data, the third does not: none binds, and no hard room is taken."""
    snapshot, catalogue = cluster(2, 2), Catalogue()
    reads = catalogue.intern("s3://reads", GIB, origin=True)
    catalogue.add_replica(reads, 0)
    plan = decide(snapshot, gang(1, 3, inputs=(reads,), priority=1), gang(2, 4), catalogue=catalogue)
    assert nodes(plan) == {1: [[0, 0, 1]], 2: [[0, 0, 1, 1]]}
    assert plan.placements[0].missing_bytes[0].tolist() == [0, 0, GIB]


def test_a_gang_that_finds_no_soft_room_is_not_passed_by_for_ever() -> None:
    """It needs four targets, three are left: smaller groups behind it that must copy get none of them meanwhile."""
    snapshot, catalogue = cluster(4), Catalogue()
    stage(snapshot, "s", 0, 1)
    reads = catalogue.intern("s3://reads", GIB, origin=True)
    large, small = gang(1, 4, inputs=(reads,), priority=1), bag(2, inputs=(reads,))
    plan = decide(snapshot, large, small, bag(3), catalogue=catalogue)
    assert nodes(plan) == {3: [[0]]}
    assert codes(plan) == {1: "WaitingForData", 2: "WaitingForData"}


def test_where_no_new_targets_are_given_work_still_binds_beside_its_data() -> None:
    """As above, and a task has its data on node 1, which is full: it gets no target on node 0 either."""
    snapshot, catalogue = cluster(4, 1), Catalogue()
    stage(snapshot, "s", 0, 1)
    run(snapshot, "r", 1, 1, NOW + 3600 * SECOND)
    far, near = (catalogue.intern(f"s3://{n}", GIB, origin=True) for n in range(2))
    catalogue.add_replica(near, 1)
    large = gang(1, 4, inputs=(far,), priority=1)
    plan = decide(snapshot, large, bag(2, inputs=(near,)), catalogue=catalogue)
    assert nodes(plan) == {}
    assert codes(plan) == {1: "WaitingForData", 2: "WaitingForData"}


def test_the_promise_and_the_lack_of_targets_are_told_apart() -> None:
    """A task that must copy and finds only cores that are others' targets waits for that, not for the promise."""
    snapshot, catalogue = cluster(4, 1), Catalogue()
    run(snapshot, "r", 0, 4, NOW + 3600 * SECOND)
    stage(snapshot, "s", 1, 1)
    far = catalogue.intern("s3://far", GIB, origin=True)
    plan = decide(snapshot, gang(1, 4, priority=1), bag(2, inputs=(far,), runtime_ms=1), catalogue=catalogue)
    assert codes(plan) == {1: "GangIncomplete", 2: "WaitingForData"}


# ---- data ----


def with_data(*cores: int, size: int = 10 * GIB) -> tuple[Snapshot, Catalogue, int]:
    """A cluster whose node 0 has the dataset, 92 s away from the others at 117 MB/s."""
    snapshot, catalogue = cluster(*cores), Catalogue()
    reads = catalogue.intern("s3://reads", size, origin=True)
    catalogue.add_replica(reads, 0)
    return snapshot, catalogue, reads


def test_a_task_goes_where_its_data_are() -> None:
    """Node 1 is fuller, which packing would prefer; node 0 has the data."""
    snapshot, catalogue, reads = with_data(8, 8)
    run(snapshot, "r", 1, 6)
    assert nodes(decide(snapshot, bag(1, inputs=(reads,)), catalogue=catalogue)) == {1: [[0]]}


@pytest.mark.parametrize(
    ("frees_in_s", "placed", "code"), [(60, {}, "WaitingForLocality"), (300, {1: [[1]]}, None)]
)
def test_a_task_waits_for_its_data_or_moves_by_what_costs_less(
    frees_in_s: int, placed: dict[int, list[list[int]]], code: str | None
) -> None:
    """A copy takes 93 s, one and a half times that counts: the node free in 60 s is waited for, in 300 s is not."""
    snapshot, catalogue, reads = with_data(2, 2)
    run(snapshot, "r", 0, 2, NOW + frees_in_s * SECOND)
    plan = decide(snapshot, bag(1, inputs=(reads,)), catalogue=catalogue)
    assert nodes(plan) == placed
    assert codes(plan).get(1) == code
    if code:
        assert plan.reasons[0].start_ms == NOW + frees_in_s * SECOND


def test_only_as_many_wait_as_will_start_before_a_copy_would_be_there() -> None:
    """Two cores beside the data free up in 20 s, and each task takes one of them for a minute: of five tasks the last would
    start after 140 s, when a copy (93 s, one and a half times that counts) is there. It moves, four wait.
    """
    snapshot, catalogue, reads = with_data(2, 8)
    run(snapshot, "r", 0, 2, NOW + 20 * SECOND)
    plan = decide(snapshot, bag(1, 5, inputs=(reads,), runtime_ms=60 * SECOND), catalogue=catalogue)
    assert nodes(plan) == {1: [[1]]}
    assert codes(plan) == {1: "WaitingForLocality"}


def test_a_node_whose_tasks_do_not_end_is_not_waited_for() -> None:
    """What runs beside the data is overdue by so much that it is expected to take longer yet than a copy: all five move."""
    snapshot, catalogue, reads = with_data(2, 8)
    run(snapshot, "r", 0, 2, NOW - 20 * SECOND, since_ms=NOW - 1_400 * SECOND)
    plan = decide(snapshot, bag(1, 5, inputs=(reads,), runtime_ms=60 * SECOND), catalogue=catalogue)
    assert nodes(plan) == {1: [[1, 1, 1, 1, 1]]}


def test_pods_go_where_fewer_are_starting() -> None:
    """A node starts its pods one after the other. So equal pods are spread: those of one group, of the next one of the cycle, and
    beside what started before the cycle. Nodes that start pods at once are packed.
    """
    assert nodes(decide(cluster(8, 8), bag(1, 6))) == {1: [[0, 0, 0, 0, 0, 0]]}
    slow = cluster(8, 8, start_ms=800)
    assert nodes(decide(slow, bag(1, 4), bag(2, 1), bag(3, 1))) == {1: [[0, 1, 0, 1]], 2: [[0]], 3: [[1]]}
    claim(slow, "p", 0, 1, ClaimKind.RUNNING, starting=True)
    assert nodes(decide(slow, bag(1, 3))) == {1: [[1, 1, 0]]}
    slow.started("p", NOW, Statement())
    assert nodes(decide(slow, bag(1, 1))) == {1: [[0]]}


def test_a_queue_of_starts_is_weighed_against_a_copy() -> None:
    """A copy takes 93 s and counts one and a half times: 100 pods may be starting beside the data, 200 may not."""
    for starting, node_of in ((100, 0), (200, 1)):
        snapshot, catalogue = cluster(400, 400, start_ms=800), Catalogue()
        reads = catalogue.intern("s3://reads", 10 * GIB, origin=True)
        catalogue.add_replica(reads, 0)
        for number in range(starting):
            claim(snapshot, f"p{number}", 0, 1, ClaimKind.RUNNING, starting=True)
        assert nodes(decide(snapshot, bag(1, inputs=(reads,)), catalogue=catalogue)) == {1: [[node_of]]}


def test_estimates_of_centuries_are_compared_too() -> None:
    """Three pods wait for copies on node 0, for each of which 2^62 ms were declared: their sum is beyond 64 bits."""
    snapshot, catalogue, reads = with_data(1, 8)
    run(snapshot, "r", 0, 1, 1 << 62)
    for owner in ("s0", "s1", "s2"):
        claim(snapshot, owner, 0, 1, ClaimKind.STAGING, 1 << 62)
    plan = decide(snapshot, bag(1, 3, inputs=(reads,), runtime_ms=1 << 62), catalogue=catalogue)
    assert nodes(plan) == {1: [[1, 1, 1]]}


def test_room_that_is_reserved_counts_as_full() -> None:
    """The first waits for its gather node, and three of the four cores there are reserved for it in 5 s. Two are free, but the
    second would hold them for longer. It waits too: elsewhere its outputs would take 92 s to get there.
    """
    snapshot = cluster(4, 8)
    run(snapshot, "r", 0, 2, NOW + 5 * SECOND)
    home = Home(0, 10 * GIB)
    first = bag(1, 1, shape(3), home=home, runtime_ms=60 * SECOND, rank_ms=2)
    second = bag(2, 1, shape(2), home=home, runtime_ms=60 * SECOND, rank_ms=1)
    plan = decide(snapshot, first, second)
    assert nodes(plan) == {}
    assert codes(plan) == {1: "WaitingForLocality", 2: "WaitingForLocality"}
    assert [(r.group, r.start_ms) for r in plan.reservations] == [(1, NOW + 5 * SECOND)]


def test_a_bag_does_not_wait_for_room_that_its_own_pods_take() -> None:
    """Two of three find room beside the data and run for five minutes. The third, for which a copy takes two, moves at once."""
    snapshot, catalogue, reads = with_data(2, 8)
    plan = decide(snapshot, bag(1, 3, inputs=(reads,), runtime_ms=300 * SECOND), catalogue=catalogue)
    assert nodes(plan) == {1: [[0, 0, 1]]}


def test_a_copy_that_takes_next_to_nothing_is_not_waited_for() -> None:
    """The node with the data is free in half a second; a few bytes are copied sooner than that is argued about."""
    snapshot, catalogue, reads = with_data(2, 2, size=1000)
    run(snapshot, "r", 0, 2, NOW + 500)
    assert nodes(decide(snapshot, bag(1, inputs=(reads,)), catalogue=catalogue)) == {1: [[1]]}


def test_a_room_is_awaited_by_one_only() -> None:
    """One core beside the data frees up soon: the first task waits for it, the second, for which it is too long, moves."""
    snapshot, catalogue, reads = with_data(1, 8)
    run(snapshot, "r", 0, 1, NOW + 20 * SECOND)
    tasks = [bag(key, inputs=(reads,), runtime_ms=300 * SECOND) for key in (1, 2)]
    plan = decide(snapshot, *tasks, catalogue=catalogue)
    assert nodes(plan) == {2: [[1]]}
    assert codes(plan) == {1: "WaitingForLocality"}


@pytest.mark.parametrize(("frees_in_s", "waits"), [(30, True), (130, True), (145, False)])
def test_a_gang_waits_for_its_data_too(frees_in_s: int, waits: bool) -> None:
    """The same choice for a gang, by its slowest member (93 s, priced 139), with a promise of the awaited room."""
    snapshot, catalogue, reads = with_data(4, 4)
    run(snapshot, "r", 0, 4, NOW + frees_in_s * SECOND)
    plan = decide(snapshot, gang(1, 3, inputs=(reads,)), catalogue=catalogue)
    assert codes(plan) == ({1: "WaitingForLocality"} if waits else {})
    assert [(r.group, r.start_ms, r.nodes[0].tolist()) for r in plan.reservations] == [
        (1, NOW + frees_in_s * SECOND, [0, 0, 0])
    ][:waits]


def test_a_copy_ordered_for_one_group_serves_the_next_of_the_same_cycle() -> None:
    """A first task draws the data to node 0; a second one follows them, though another node is fuller."""
    snapshot, catalogue = cluster(8, 8), Catalogue()
    run(snapshot, "r", 1, 5)
    reads = catalogue.intern("s3://reads", 10 * GIB, origin=True)
    large = bag(1, 1, shape(4), inputs=(reads,), priority=1)
    plan = decide(snapshot, large, bag(2, 1, shape(1), inputs=(reads,)), catalogue=catalogue)
    assert nodes(plan) == {1: [[0]], 2: [[0]]}


def test_copies_ordered_in_one_cycle_are_spread_over_links() -> None:
    """Two tasks with inputs of their own: the second does not queue behind the first one's copy."""
    snapshot, catalogue = cluster(4, 4), Catalogue()
    reads = [catalogue.intern(f"s3://reads{n}", 10 * GIB, origin=True) for n in range(2)]
    plan = decide(snapshot, *[bag(n, inputs=(reads[n],)) for n in range(2)], catalogue=catalogue)
    assert nodes(plan) == {0: [[0]], 1: [[1]]}


def test_what_was_staged_once_is_promised_its_nodes_instead_of_being_chased_on() -> None:
    """Its data are on node 0 only, which small work keeps taking; it is not staged a second time, it is next. It waits four times
    as long as a copy of 9 s takes, and no longer; the plan says when to look again.
    """
    for wait, expected in ((30, {}), (60, {1: [[1, 1, 1]]})):
        snapshot, catalogue, reads = with_data(4, 4, size=GIB)
        run(snapshot, "r", 0, 4, NOW + wait * SECOND)
        plan = decide(snapshot, gang(1, 3, inputs=(reads,), staged_on=(0,)), catalogue=catalogue)
        assert nodes(plan) == expected
        if not expected:
            assert plan.reservations[0].start_ms == plan.look_at == NOW + wait * SECOND


def test_lost_inputs_are_waited_for() -> None:
    """Nobody has it and nowhere is it to be had: the producer must run again first."""
    snapshot, catalogue = cluster(4), Catalogue()
    lost = catalogue.intern("run1/align/bam", 5)
    assert codes(decide(snapshot, bag(1, inputs=(lost,)), catalogue=catalogue)) == {1: "WaitingForData"}


def test_a_stock_cluster_does_not_look_at_data() -> None:
    """Under kube-like the emptiest node wins, and nothing is staged."""
    snapshot, catalogue, reads = with_data(4, 8)
    plan = decide(snapshot, bag(1, inputs=(reads,)), catalogue=catalogue, profile=KUBE)
    assert nodes(plan) == {1: [[1]]}
    assert plan.placements[0].missing_bytes[0].tolist() == [0]


# ---- disks ----


def test_disk_bandwidth_is_a_budget() -> None:
    """A disk of 500 MB/s carries two tasks of 200 MB/s; the third waits although cores are free."""
    plan = decide(cluster(8), bag(1, 3, shape(io=200_000_000)))
    assert nodes(plan) == {1: [[0, 0]]}
    assert codes(plan) == {1: "IoBudget"}


def test_a_task_that_asks_for_more_than_a_disk_has_runs_there_alone() -> None:
    """900 MB/s of 500: one runs, a second one has to wait, and so has a small one."""
    plan = decide(cluster(8), bag(1, 2, shape(io=900_000_000), priority=1), bag(2, 1, shape(io=1_000_000)))
    assert nodes(plan) == {1: [[0]]}


def test_io_heavy_tasks_spread_where_others_pack() -> None:
    """Each reads 50 GB: sharing a disk would cost minutes, so each takes a disk of its own."""
    plain, heavy = shape(), shape(io_bytes=50 * GIB)
    assert nodes(decide(cluster(4, 4, 4), bag(1, 3, plain))) == {1: [[0, 0, 0]]}
    assert nodes(decide(cluster(4, 4, 4), bag(1, 3, heavy))) == {1: [[0, 1, 2]]}


def test_io_heavy_groups_of_one_cycle_see_each_other() -> None:
    """Two groups of one heavy pod each take a disk each."""
    heavy = shape(io_bytes=50 * GIB)
    assert nodes(decide(cluster(4, 4), bag(1, 1, heavy), bag(2, 1, heavy))) == {1: [[0]], 2: [[1]]}


# ---- promises and backfill ----


def test_the_first_gang_that_does_not_fit_is_promised_its_earliest_start() -> None:
    """Node 0 frees up at +50 s, node 1 at +20 s: four cores are there at +50 s."""
    snapshot = cluster(2, 2)
    run(snapshot, "a", 0, 2, NOW + 50 * SECOND)
    run(snapshot, "b", 1, 2, NOW + 20 * SECOND)
    plan = decide(snapshot, gang(1, 4), gang(2, 4))
    assert [(r.group, r.start_ms) for r in plan.reservations] == [(1, NOW + 50 * SECOND)]
    assert {r.group: r.start_ms for r in plan.reasons} == {1: NOW + 50 * SECOND, 2: None}


@pytest.mark.parametrize(("runtime", "starts"), [(50_000, True), (50_001, False), (None, False)])
def test_smaller_work_starts_only_if_it_is_done_before_the_promise(runtime: int | None, starts: bool) -> None:
    """The gang needs all four cores at +50 s; a task of 50 s may use the free two, a longer one may not."""
    snapshot = cluster(4)
    run(snapshot, "a", 0, 2, NOW + 50 * SECOND)
    plan = decide(snapshot, gang(1, 4, priority=1), bag(2, 2, runtime_ms=runtime))
    assert (2 in nodes(plan)) is starts
    if not starts:
        assert codes(plan)[2] == "HeldForReservation"


def test_a_long_task_that_is_held_does_not_hold_a_short_one_of_its_shape() -> None:
    """Refusals are remembered by shape within a cycle, but not across what distinguishes these two."""
    snapshot = cluster(4)
    run(snapshot, "a", 0, 2, NOW + 50 * SECOND)
    plan = decide(
        snapshot, gang(1, 4, priority=2), bag(2, priority=1), bag(3, priority=1), bag(4, runtime_ms=SECOND)
    )
    assert nodes(plan) == {4: [[0]]}
    assert codes(plan) == {1: "GangIncomplete", 2: "HeldForReservation", 3: "HeldForReservation"}


def test_what_starts_in_this_cycle_ends_too() -> None:
    """The first gang takes all cores for 30 s: the second is promised them then, and the third task fits before."""
    first, second = gang(1, 3, runtime_ms=30 * SECOND, priority=1), gang(2, 4)
    plan = decide(cluster(4), first, second, bag(3, runtime_ms=40 * SECOND, ready_ms=1))
    assert nodes(plan) == {1: [[0, 0, 0]]}
    assert [(r.group, r.start_ms) for r in plan.reservations] == [(2, NOW + 30 * SECOND)]


def test_long_work_starts_beside_what_is_promised() -> None:
    """The gang will need three of four cores: the fourth may be used for as long as one likes."""
    snapshot = cluster(4)
    run(snapshot, "a", 0, 2, NOW + 50 * SECOND)
    plan = decide(snapshot, gang(1, 3, priority=1), bag(2, 2))
    assert nodes(plan) == {2: [[0]]}


def test_ends_that_are_not_known_or_overdue_are_guessed() -> None:
    """Unknown: a minute from its start, then as long again as it has run; where a promise depends on it, an hour, or what the
    profile says. Overdue: as long as it is overdue.
    """
    snapshot = cluster(1)
    run(snapshot, "unknown", 0, 1)
    slots = np.flatnonzero(snapshot.ledger.kind == ClaimKind.RUNNING)
    ends = [int(expected_ends(snapshot, slots, 60_000, now)[0]) for now in (20 * SECOND, NOW)]
    assert ends == [60 * SECOND, 2 * NOW]
    assert decide(snapshot, gang(1, 1)).reservations[0].start_ms == 3_600_000
    said = replace(OURS, default_runtime_ms=600 * SECOND)
    assert decide(snapshot, gang(1, 1), profile=said).reservations[0].start_ms == 600 * SECOND
    snapshot = cluster(1)
    run(snapshot, "overdue", 0, 1, until_ms=5 * SECOND)
    assert decide(snapshot, gang(1, 1)).reservations[0].start_ms == NOW + (NOW - 5 * SECOND)
    assert decide(snapshot, gang(1, 1), now=6 * SECOND).reservations[0].start_ms == 7 * SECOND


# ---- explanations ----


def test_a_reason_says_how_much_is_missing_where() -> None:
    """Numbers for programs, words for people."""
    snapshot = cluster(4, 4, 4)
    for at, cores in enumerate([3.5, 3.5, 0]):
        run(snapshot, f"r{at}", at, cores, NOW + 60 * SECOND)
    snapshot.claim(Claim("m", 2, (0, 16 * GIB), ClaimKind.RUNNING, "default", 0, None), Statement())
    plan = decide(snapshot, gang(1, 3, shape(1.5)))
    assert plan.reasons[0].code is ReasonCode.INSUFFICIENT
    assert plan.reasons[0].message == (
        "0 of 3 members fit; worker needs 1.5 CPU and 1 GiB memory; the best node, n2, has 4 CPU free of 4 CPU; "
        "of 3 nodes 2 lack CPU, 1 lacks memory"
    )
    numbers = plan.reasons[0].numbers
    assert (
        numbers["fit"],
        numbers["wanted"],
        numbers["nodes_lacking_cpu"],
        numbers["nodes_lacking_memory"],
    ) == (0, 3, 2, 1)


def test_a_reason_speaks_of_the_role_that_does_not_fit() -> None:
    """The large role fits exactly, which is not lacking; the small one's label is what is short."""
    snapshot = Snapshot()
    snapshot.put_node(node("big", 4))
    snapshot.put_node(node("ssd", 1, labels={"disk": "ssd"}))
    run(snapshot, "r", 1, 1, NOW + SECOND)
    roles = [role("worker", 1, 1, shape(4)), role("ps", 1, 1, shape(1, selector=(("disk", "ssd"),)))]
    reason = decide(snapshot, group(1, roles)).reasons[0]
    assert reason.message == (
        "1 of 2 members fit; ps needs 1 CPU and 1 GiB memory; the best node, ssd, has 0 CPU free of 1 CPU; "
        "of 1 node 1 lacks CPU"
    )
    assert reason.numbers["nodes_lacking_memory"] == 0
    snapshot = cluster(4)
    run(snapshot, "r", 0, 2, NOW + SECOND)
    exact = decide(snapshot, gang(1, 2, shape(2, 16))).reasons[0]
    assert (exact.numbers["nodes_lacking_cpu"], exact.numbers["nodes_lacking_memory"]) == (0, 0)


def test_a_gang_that_fits_in_part_is_incomplete() -> None:
    """Two of three members have room now."""
    snapshot = cluster(4)
    run(snapshot, "r", 0, 2, NOW + 60 * SECOND)
    plan = decide(snapshot, gang(1, 3))
    assert (codes(plan), plan.reasons[0].numbers["fit"]) == ({1: "GangIncomplete"}, 2)


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        (shape(selector=(("disk", "ssd"),)), "NoMatchingNode", "2 nodes lack the label disk=ssd"),
        (shape(9), "LargerThanNode", "of 2 nodes 2 lack CPU"),
        (Shape((0, 0, 0, 0, 0, 1)), "LargerThanNode", "fpga"),
    ],
)
def test_what_no_waiting_will_change_is_said(what: Shape, code: str, words: str) -> None:
    """Such groups get no promise, and hold nobody up."""
    snapshot = cluster(8, 8)
    snapshot.vector(replace_extended("fpga"))
    plan = decide(snapshot, gang(1, 1, what), bag(2))
    assert codes(plan) == {1: code}
    assert words in plan.reasons[0].message
    assert (list(nodes(plan)), plan.reservations) == ([2], ())


def replace_extended(name: str) -> object:
    from flowsched.workflow.spec import Resources

    return Resources(extended={name: 1})


def test_no_nodes_and_paused_queues_are_said() -> None:
    """The two plainest reasons."""
    assert codes(decide(Snapshot(), bag(1))) == {1: "NoNodes"}
    snapshot = Snapshot()
    snapshot.put_node(node("n", ready=False))
    assert codes(decide(snapshot, bag(1))) == {1: "NoNodes"}
    queues = QueueTree([Queue("default", paused=True)])
    assert codes(decide(cluster(4), bag(1), queues=queues)) == {1: "Paused"}


def test_third_party_plugins_join_through_the_profile() -> None:
    """A filter and a cost of somebody else's, without a line changed here."""

    def even_nodes(snapshot: Snapshot, what: Shape) -> tuple[np.ndarray, str]:
        return np.arange(len(snapshot)) % 2 == 0, "are odd"

    def later_is_cheaper(snapshot: Snapshot, *_: object) -> np.ndarray:
        return (100 - np.arange(len(snapshot))) * SECOND

    profile = replace(OURS, filters=(even_nodes,), costs=(later_is_cheaper,))
    assert nodes(decide(cluster(4, 4, 4, 4), bag(1), profile=profile)) == {1: [[2]]}
    plan = decide(
        cluster(4), gang(1, 5), profile=replace(profile, filters=(lambda s, w: (s.ready & False, "are odd"),))
    )
    assert plan.reasons[0].message == "no node allows worker: of 1 ready nodes 1 node are odd"


def test_a_reason_says_what_all_members_need_together() -> None:
    """Each node has room for one of them, and no resource of a single node is what lacks."""
    reason = decide(cluster(2, 2), gang(1, 6, shape(1))).reasons[0]
    assert reason.code is ReasonCode.LARGER_THAN_CLUSTER
    assert "6 members need together 6 CPU, the nodes have 4 CPU" in reason.message
    assert reason.numbers["nodes_lacking_cpu"] == 0
    assert (reason.numbers["need_together_cpu"], reason.numbers["free_together_cpu"]) == (6000, 4000)


def test_disk_bandwidth_is_named_where_it_is_what_lacks() -> None:
    """Most tasks ask for none: what the service has learned of their kind counts."""
    (full,) = decide(cluster(1), bag(1, 2, shape(io=2_000_000))).reasons
    assert "task needs 1 CPU and 1 GiB memory; " in full.message
    assert "bandwidth" not in full.message
    (busy,) = decide(cluster(8), bag(1, 9, shape(0.5, io=200_000_000))).reasons
    assert "200 MB/s disk bandwidth" in busy.message


# ---- many alike ----


def test_a_pod_goes_beside_its_inputs_however_full_the_others_are() -> None:
    """Its node is emptier than the others; pods without inputs go to the fullest node that has room."""
    snapshot, catalogue = Snapshot(), Catalogue()
    for at, cores in enumerate((2, 4, 16)):
        snapshot.put_node(node(f"n{at}", cores, 64))
    dataset = catalogue.intern("s3://lab/x", GIB, True)
    catalogue.add_replica(dataset, 2)
    backlog = [bag(1), bag(2, inputs=(dataset,)), bag(3, what=shape(2))]
    assert nodes(decide(snapshot, *backlog, catalogue=catalogue)) == {1: [[0]], 2: [[2]], 3: [[1]]}


def test_all_that_wait_for_one_room_get_one_reason() -> None:
    """One of a hundred finds room; each of the others is told why it does not, in its order. The cycle looks at one of those, and
    reserves a start for it.
    """
    plan = decide(cluster(1), *[bag(key) for key in range(1, 101)])
    assert [each.group for each in plan.placements] == [1]
    assert [each.group for each in plan.reasons] == list(range(2, 101))
    assert {each.code for each in plan.reasons} == {ReasonCode.INSUFFICIENT}
    assert [each.group for each in plan.reservations] == [2]
    assert [each.group for each in plan.reasons if each.start_ms is not None] == [2]
    assert plan.looked_at == 2


def test_a_smaller_pod_behind_many_that_find_no_room_is_looked_at() -> None:
    """Fifty of two cores do not fit beside the pod that runs; a short one of half a core behind them does."""
    snapshot = cluster(2)
    run(snapshot, "runs", 0, 1, until_ms=NOW + 60 * SECOND)
    large = {key: bag(key, what=shape(2)) for key in (*range(1, 51), 52, 53)}
    small = bag(51, what=shape(0.5), runtime_ms=SECOND)
    plan = decide(snapshot, *[large.get(key, small) for key in range(1, 54)])
    assert nodes(plan) == {51: [[0]]}
    assert [each.group for each in plan.reasons] == [*range(1, 51), 52, 53]
    assert plan.looked_at == 3


def test_pods_that_differ_in_what_they_read_are_refused_alike() -> None:
    """Each of fifty pods reads another amount of its node's disk: no room for one is no room for all, however much it reads."""
    large = [bag(key, what=shape(2, io_bytes=key << 20)) for key in range(1, 51)]
    plan = decide(cluster(1), *large, bag(51))
    assert nodes(plan) == {51: [[0]]}
    assert {each.group for each in plan.reasons} == set(range(1, 51))
    assert plan.looked_at == 2


def test_a_filter_of_others_may_tell_pods_by_what_they_read() -> None:
    """The filter lets pods that read more than a MiB onto the full node only: others like them in all else go to the free one."""

    def full_node_only(_: Snapshot, what: Shape) -> tuple[NDArray[np.bool_], str]:
        return np.array([True, what.io_bytes <= 1 << 20]), "read too much"

    snapshot = cluster(1, 1)
    run(snapshot, "runs", 0, 1)
    waiting = [
        bag(key, what=shape(io_bytes=2 << 20)) for key in (1, 2)
    ]  # one gets a reserved start, one a refusal
    little = bag(3, what=shape(io_bytes=1 << 20), runtime_ms=SECOND)
    plan = decide(snapshot, *waiting, little, profile=replace(OURS, filters=(full_node_only,)))
    assert nodes(plan) == {3: [[1]]}


def test_long_pods_that_would_delay_a_reserved_start_are_refused_alike() -> None:
    """A core is free until a pod of two cores starts in a minute: forty pods of an hour wait for that, a short one does not."""
    snapshot = cluster(2)
    run(snapshot, "runs", 0, 1, until_ms=NOW + 60 * SECOND)
    long = [bag(key, what=shape(1, io_bytes=key), runtime_ms=3_600 * SECOND) for key in range(2, 42)]
    short = bag(42, runtime_ms=SECOND)
    plan = decide(snapshot, bag(1, what=shape(2)), *long, short)
    assert nodes(plan) == {42: [[0]]}
    assert {each.code for each in plan.reasons if each.group > 1} == {ReasonCode.RESERVED}
    assert plan.looked_at == 3


def test_pods_that_ask_for_more_than_one_without_room_are_refused_with_it() -> None:
    """A core of four is free. Sixty pods of two cores and more ask for ever more memory: one gets a reserved start, and few a look.
    A pod of one core behind them starts, and one that no node could take is told so.
    """
    snapshot = cluster(4)
    run(snapshot, "runs", 0, 3, until_ms=NOW + 60 * SECOND)
    large = [bag(key, what=shape(2 + key % 2, 1 + key // 20)) for key in range(1, 61)]
    too_large = bag(61, what=shape(64))
    plan = decide(snapshot, *large, too_large, bag(62, runtime_ms=SECOND))
    assert nodes(plan) == {62: [[0]]}
    assert {each.code for each in plan.reasons if each.group < 61} == {ReasonCode.INSUFFICIENT}
    assert codes(plan)[61] == "LargerThanNode"
    assert plan.looked_at <= 6
    like = next(each for each in plan.reasons if each.group == 60)
    assert like.message.startswith(
        "a task that asks for no more cpu finds no room: no node has room; task needs "
    )


def test_a_pod_that_knows_of_fewer_resources_is_compared_with_none_that_know_more() -> None:
    """The nodes have a resource more than some pods were made for: these get a look each, behind pods that found no room."""
    snapshot = cluster(2, extended={"example.com/fpga": 2})
    run(snapshot, "runs", 0, 2)
    older = [bag(key, what=shape(1 + key)) for key in (3, 4)]
    newer = [bag(key, what=Shape((*shape(1).requests, *[0] * (len(snapshot.axes) - 5)))) for key in (1, 2, 5)]
    plan = decide(snapshot, *newer, *older)
    assert nodes(plan) == {}
    assert codes(plan) == {
        1: "Insufficient",
        2: "Insufficient",
        3: "LargerThanNode",
        4: "LargerThanNode",
        5: "Insufficient",
    }


def test_pods_that_ask_for_more_of_other_nodes_are_looked_at() -> None:
    """A pod of two cores finds no room on the nodes with its label; larger ones without it start elsewhere."""
    snapshot = Snapshot()
    snapshot.put_node(node("small", 2, labels={"size": "small"}))
    snapshot.put_node(node("large", 8, 64))
    run(snapshot, "runs", 0, 2)
    labelled = [bag(key, what=shape(1, selector=(("size", "small"),))) for key in (1, 2)]
    plan = decide(snapshot, *labelled, bag(3, what=shape(2, 2)), bag(4, what=shape(3, 3)))
    assert nodes(plan) == {3: [[1]], 4: [[1]]}


def test_a_pod_that_gets_no_reserved_start_does_not_take_it_from_those_like_it() -> None:
    """A pod that joins a gang finds no room. The start of the next one, which reads other bytes, is reserved: a long one waits."""
    snapshot = cluster(4)
    run(snapshot, "runs", 0, 2, until_ms=NOW + 60 * SECOND)
    joins, plain = (
        bag(1, what=shape(4), priority=2, extra=True),
        bag(2, what=shape(4, io_bytes=1), priority=1),
    )
    plan = decide(snapshot, joins, plain, bag(3, runtime_ms=900 * SECOND))
    assert nodes(plan) == {}
    assert [each.group for each in plan.reservations] == [2]


def test_a_pod_kept_from_a_node_delays_none_that_may_go_there() -> None:
    """Behind a reserved start a long pod may only go to the node that is reserved. One like it goes to the other node."""
    snapshot = cluster(4, 2)
    run(snapshot, "runs", 0, 2, until_ms=NOW + 60 * SECOND)
    first = bag(1, what=shape(4), priority=3, runtime_ms=SECOND)
    shut = bag(2, priority=2, runtime_ms=900 * SECOND, shut=(1,))
    plan = decide(snapshot, first, shut, bag(3, runtime_ms=900 * SECOND))
    assert nodes(plan) == {3: [[1]]}


def test_a_pod_whose_caches_are_full_is_told_so_though_a_reservation_delays_one_like_it() -> None:
    """The only node with room has none for its data. The one like it, which may go there, would outlast the reserved start."""
    snapshot = cluster(4, 2)
    run(snapshot, "runs", 0, 2, until_ms=NOW + 60 * SECOND)
    run(snapshot, "long", 1, 2, until_ms=NOW + 900 * SECOND)
    first = bag(1, what=shape(4), priority=3, runtime_ms=SECOND)
    like = bag(2, priority=2, runtime_ms=900 * SECOND)
    plan = decide(snapshot, first, like, bag(3, runtime_ms=900 * SECOND, shut=(0,)))
    assert (codes(plan)[2], codes(plan)[3]) == ("HeldForReservation", "CacheFull")


def test_an_old_pod_without_its_share_of_a_storage_keeps_what_is_left_though_one_like_it_finds_no_room() -> (
    None
):
    """The old pod waits for the storage, and for room. A small one that reads of the storage waits behind it."""
    profile = replace(OURS, storages=(Storage("st", read_rate=1_000_000_000),))
    snapshot = cluster(4, 4)
    run(snapshot, "reads", 0, 2, until_ms=NOW + 100 * SECOND, direct=(("st/read", 800_000_000),))
    run(snapshot, "runs", 1, 2, until_ms=NOW + 100 * SECOND)
    first, like = bag(1, what=shape(4), priority=99, runtime_ms=SECOND), bag(2, what=shape(3), priority=98)
    old = bag(3, what=shape(3, direct=(("st/read", 500_000_000),)), priority=2, ready_ms=NOW - 4_000 * SECOND)
    small = bag(4, what=shape(1, direct=(("st/read", 100_000_000),)), runtime_ms=SECOND)
    plan = decide(snapshot, first, like, old, small, profile=profile)
    assert nodes(plan) == {}
    assert codes(plan)[3] == codes(plan)[4] == "StorageBudget"


def test_no_pod_passes_the_head_of_a_fifo_queue_behind_one_that_may_wait() -> None:
    """A pod that joins a gang holds up no other. The next, as large, does: a small one behind it waits for it."""
    snapshot = cluster(2)
    run(snapshot, "runs", 0, 1, until_ms=NOW + 60 * SECOND)
    joins = bag(1, what=shape(2), extra=True, preempts=False)
    small = bag(3, what=shape(0.5), runtime_ms=SECOND)
    queues = QueueTree([Queue("default", order="fifo")])
    plan = decide(snapshot, joins, bag(2, what=shape(2)), small, queues=queues)
    assert nodes(plan) == {}
    assert codes(plan)[3] == "QueueOrder"


def test_pods_of_a_paused_queue_are_told_so_though_pods_like_them_find_no_room() -> None:
    """Three wait for room in one queue, three in another that is paused."""
    snapshot = cluster(2)
    run(snapshot, "runs", 0, 1)
    waiting = [bag(key, what=shape(2), queue="a") for key in (1, 2, 3)]
    paused = [bag(key, what=shape(2), queue="b") for key in (4, 5, 6)]
    plan = decide(snapshot, *waiting, *paused, queues=QueueTree([Queue("a"), Queue("b", paused=True)]))
    assert [codes(plan)[key] for key in range(1, 7)] == ["Insufficient"] * 3 + ["Paused"] * 3


def test_pods_beside_full_nodes_wait_for_their_data() -> None:
    """Free room is kept for copies, the only node with the inputs is full: ten pods wait, and one look tells so of all. Where the
    first of them will run is foreseen. A pod that has its inputs on the other node starts there.
    """
    snapshot, catalogue = cluster(4, 4), Catalogue()
    data = catalogue.intern("data", 1 << 30)
    catalogue.add_replica(data, 0)
    run(snapshot, "runs", 0, 4, until_ms=30 * SECOND)
    stage(snapshot, "staging", 1, 4)
    other = catalogue.intern("other", 1 << 30)
    catalogue.add_replica(other, 1)
    waiting = [bag(key, inputs=(data,)) for key in range(1, 11)]
    plan = decide(snapshot, *waiting, bag(11, inputs=(other,)), catalogue=catalogue, now=0)
    assert codes(plan) == dict.fromkeys(range(1, 11), ReasonCode.WAITING_FOR_DATA)
    assert plan.looked_at == 2
    assert plan.ahead == ((1, 0),)
    assert nodes(plan) == {11: [[1]]}


def test_pods_whose_nodes_are_all_full_are_not_told_to_wait_for_their_data() -> None:
    """Room on a third node is kept for copies. Pods that may run on the two others alone find no room, and are told so."""
    snapshot, catalogue = cluster(4, labels={"at": "x"}), Catalogue()
    snapshot.put_node(node("n1", labels={"at": "x"}))
    snapshot.put_node(node("n2"))
    data = catalogue.intern("data", 1 << 30)
    catalogue.add_replica(data, 0)
    run(snapshot, "runs", 0, 4, until_ms=30 * SECOND)
    run(snapshot, "runs too", 1, 4, until_ms=30 * SECOND)
    stage(snapshot, "staging", 2, 4)
    anywhere = [bag(key, inputs=(data,)) for key in (1, 2)]
    there = [bag(key, what=shape(selector=(("at", "x"),)), inputs=(data,)) for key in (3, 4)]
    plan = decide(snapshot, *anywhere, *there, catalogue=catalogue, now=0)
    assert codes(plan) == {1: "WaitingForData", 2: "WaitingForData", 3: "Insufficient", 4: "Insufficient"}


def beside_full_nodes() -> tuple[Snapshot, Catalogue, list[PodGroup]]:
    """A bag waits beside a full node with its data, and room on another is kept for copies."""
    snapshot, catalogue = cluster(4, 4), Catalogue()
    data = catalogue.intern("data", 1 << 30)
    catalogue.add_replica(data, 0)
    run(snapshot, "runs", 0, 4, until_ms=30 * SECOND)
    stage(snapshot, "staging", 1, 4)
    return snapshot, catalogue, [bag(1, inputs=(data,), priority=1)]


def test_a_gang_beside_full_nodes_gets_a_reserved_start() -> None:
    """It needs all of both nodes: room for one of its pods is no room for it."""
    snapshot, catalogue, first = beside_full_nodes()
    large = gang(2, 8, inputs=first[0].inputs)
    plan = decide(snapshot, *first, large, catalogue=catalogue, now=0)
    assert codes(plan) == {1: "WaitingForData", 2: "GangIncomplete"}
    assert [each.group for each in plan.reservations] == [2]


def test_a_bag_that_the_caches_shut_out_is_told_so_beside_full_nodes() -> None:
    """The cache of the node with room is full for it."""
    snapshot, catalogue, first = beside_full_nodes()
    shut = bag(2, inputs=first[0].inputs, shut=(1,))
    plan = decide(snapshot, *first, shut, catalogue=catalogue, now=0)
    assert codes(plan) == {1: "WaitingForData", 2: "CacheFull"}


@pytest.mark.parametrize(
    ("apart", "values"), [("", "    "), ("queue", "aabb"), ("user", "abcd"), ("priority", (9, 8, 7, 6))]
)
def test_a_cycle_forecasts_where_the_group_behind_the_reserved_start_runs(
    apart: str, values: Sequence[object]
) -> None:
    """Both nodes are full, n0 has the data. The cycle looks at the first of four bags and reserves a start for it. It forecasts the
    nodes of that one and of the next like it, whichever queue or user that belongs to, and refuses all for one reason.
    """
    snapshot, catalogue = cluster(4, 4), Catalogue()
    data = catalogue.intern("data", GIB)
    catalogue.add_replica(data, 0)
    for at in range(2):
        run(snapshot, f"runs-{at}", at, 4, until_ms=(30 + at) * SECOND)
    backlog = [
        structs.replace(bag(key, inputs=(data,)), **({apart: value} if apart else {}))
        for key, value in enumerate(values, start=1)
    ]
    plan = decide(snapshot, *backlog, catalogue=catalogue, now=0)
    assert plan.ahead == ((1, 0), (2, 0))
    assert [each.group for each in plan.reservations] == [1]
    assert codes(plan) == dict.fromkeys(range(1, 5), ReasonCode.INSUFFICIENT)


def test_a_cycle_forecasts_no_group_whose_inputs_are_lost() -> None:
    """The second bag reads what no node and no origin has. The third is the next that may run."""
    snapshot, catalogue = cluster(4), Catalogue()
    data, lost = catalogue.intern("data", GIB, True), catalogue.intern("lost", GIB)
    run(snapshot, "runs", 0, 4, until_ms=30 * SECOND)
    backlog = [bag(1, inputs=(data,)), bag(2, inputs=(lost,)), bag(3, inputs=(data,))]
    plan = decide(snapshot, *backlog, catalogue=catalogue, now=0)
    assert [group for group, _ in plan.ahead] == [1, 3]


def test_a_gang_that_takes_its_reserved_turn_does_not_lift_its_queue() -> None:
    """The gang of queue a has waited 100 hours and takes two of three free cores first. The pod of queue b is older than the other
    group of a, and takes the third.
    """
    now = 360_000 * SECOND
    snapshot = cluster(4)
    run(snapshot, "runs", 0, 1)
    promised = gang(1, 2, queue="a", ready_ms=0, promised_ms=now)
    young, old = bag(2, queue="a", ready_ms=now - 1_000), bag(3, queue="b", ready_ms=now - 2_000)
    plan = decide(snapshot, promised, young, old, queues=QueueTree([Queue("a"), Queue("b")]), now=now)
    assert {each.group for each in plan.placements} == {1, 3}
