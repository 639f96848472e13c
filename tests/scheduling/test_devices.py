"""GPUs by device: a part of a GPU needs one device with that much free, k whole ones need k that nobody uses."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from scheduling_cases import GIB, frozen, group, node
from waiting_cases import first, starts_with, starts_with_less

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.remedies import Kind, Situation
from flowsched.scheduling.plan import Plan, ReasonCode
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.gpus import allocated_parts, choose, copies_by_device
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace
from tests.soak import worlds

OURS = PROFILES["flowsched"]
NOW = 1000


def gpu(millis: int, cores: int = 1) -> Shape:
    return Shape((cores * 1000, GIB, 0, millis, 0))


def machines(*gpus: int) -> Snapshot:
    """Nodes n0, n1, … of 64 cores and so many GPUs."""
    snapshot = Snapshot()
    for at, count in enumerate(gpus):
        snapshot.put_node(node(f"n{at}", 64, 1024, gpu_millis=count * 1000))
    return snapshot


def hold(
    snapshot: Snapshot,
    at: int,
    *devices: tuple[int, int],
    until: int | None = None,
    kind: ClaimKind = ClaimKind.RUNNING,
    **more: object,
) -> str:
    """Somebody has these devices."""
    owner, millis = f"pod-{len(snapshot.claims)}", sum(part for _, part in devices)
    claim = Claim(owner, at, (1000, GIB, 0, millis, 0), kind, "default", 0, until, devices=devices, **more)  # type: ignore[arg-type]
    snapshot.claim(claim, Statement())
    return owner


def bag(key: int, count: int, millis: int, **more: object) -> PodGroup:
    return group(key, [RoleRequest("task", gpu(millis), count, 1)], gang=False, **more)


def plan(snapshot: Snapshot, *groups: PodGroup, profile: Profile = OURS) -> Plan:
    return cycle(snapshot, Catalogue(), QueueTree([Queue("default")]), groups, profile, NOW)


def placed(found: Plan) -> dict[int, list[tuple[int, list[int]]]]:
    """By group: node and thousandths by device of each of its pods, where devices matter."""
    return {
        each.group: [
            (at, row)
            for nodes, rows in zip(each.nodes, each.devices, strict=True)
            for at, row in zip(nodes.tolist(), rows.tolist(), strict=True)
        ]
        for each in found.placements
        if each.devices
    }


# ---- the rule ----


def test_a_part_goes_to_the_fullest_device_that_takes_it() -> None:
    """The lowest number of equal ones; whole devices are broken last; what fits no device waits."""
    assert choose([1000, 400, 700, 400], 300) == ((1, 300),)
    assert choose([1000, 400, 700, 400], 500) == ((2, 500),)
    assert choose([1000, 400, 700, 400], 800) == ((0, 800),)
    assert choose([400, 400], 700) is None


def test_whole_devices_are_those_that_nobody_uses() -> None:
    """From the lowest number; more than one and a part take the part elsewhere."""
    assert choose([900, 1000, 1000, 1000], 2000) == ((1, 1000), (2, 1000))
    assert choose([900, 1000], 2000) is None
    assert choose([1000, 1000, 600], 1500) == ((0, 1000), (2, 500))
    assert choose([1000, 400], 1500) is None


def test_what_a_pod_was_given_says_what_it_holds() -> None:
    """A launch order names devices and an amount: whole ones first, then the part."""
    assert allocated_parts((3,), 700) == ((3, 700),)
    assert allocated_parts((0, 1), 2000) == ((0, 1000), (1, 1000))
    assert allocated_parts((0, 2), 1500) == ((0, 1000), (2, 500))
    assert allocated_parts((), 0) == ()


@given(
    free=st.lists(st.integers(-200, 1000), min_size=0, max_size=6),
    millis=st.one_of(
        st.integers(1, 1000), st.integers(1, 3).map(lambda k: k * 1000), st.integers(1001, 3500)
    ),
)
def test_as_many_fit_as_are_chosen_one_after_the_other(free: list[int], millis: int) -> None:
    """The number of copies in one formula is what a pod-by-pod choice comes to."""
    left, count = list(free), 0
    while (found := choose(left, millis)) is not None:
        for device, part in found:
            left[device] -= part
        count += 1
    assert copies_by_device(np.array([free], dtype=np.int64).reshape(1, len(free)), millis).tolist() == [
        count
    ]


# ---- the cycle ----


def test_a_pod_goes_where_one_device_has_room_for_it() -> None:
    """0.4 + 0.4 is free on the fuller node: 0.7 goes to the empty one at once."""
    snapshot = machines(2, 2)
    hold(snapshot, 0, (0, 600))
    hold(snapshot, 0, (1, 600))
    assert placed(plan(snapshot, bag(1, 1, 700))) == {1: [(1, [700, 0])]}


def test_a_pod_that_must_wait_is_told_what_is_free_by_device() -> None:
    """The sum would do, no device does; it is promised a start like anybody else."""
    snapshot = machines(2)
    hold(snapshot, 0, (0, 600), until=5000)
    hold(snapshot, 0, (1, 500), until=9000)
    found = plan(snapshot, bag(1, 1, 700))
    assert found.placements == ()
    (reason,) = found.reasons
    assert reason.code is ReasonCode.INSUFFICIENT
    assert reason.message == (
        "no node has room; task needs 1 CPU and 1 GiB memory and 0.7 GPU; n0 has 0.9 GPU free, by device 0.5, 0.4; "
        "of 1 node 1 has GPUs free in pieces only"
    )
    assert reason.numbers["nodes_lacking_gpu_device"] == 1
    assert reason.start_ms == 5000
    assert [(each.start_ms, each.devices[0].tolist()) for each in found.reservations] == [(5000, [[700, 0]])]


def test_a_cluster_without_gpus_says_so() -> None:
    """Before what else is short, and with the option that helps on one machine; where a node has some, it is told as before."""
    none = "no node has a GPU (on one machine `flowsched serve --gpus N` says how many there are)"
    (reason,) = plan(machines(0, 0), bag(1, 1, 1000)).reasons
    assert none in reason.message
    assert reason.code is ReasonCode.LARGER_THAN_NODE
    (some,) = plan(machines(0, 1), bag(1, 1, 2000)).reasons
    assert none not in some.message
    assert "the best node, n1, has 1 GPU free of 1 GPU" in some.message


def test_whole_gpus_are_whole_devices() -> None:
    """Two devices are half used: of the sum of three only two are whole."""
    snapshot = machines(4)
    hold(snapshot, 0, (0, 500))
    hold(snapshot, 0, (1, 500))
    assert placed(plan(snapshot, bag(1, 3, 1000))) == {1: [(0, [0, 0, 1000, 0]), (0, [0, 0, 0, 1000])]}
    assert placed(plan(snapshot, bag(1, 1, 2000))) == {1: [(0, [0, 0, 1000, 1000])]}
    (reason,) = plan(snapshot, bag(1, 1, 3000)).reasons
    assert "n0 has 3 GPU free, by device 1, 1, 0.5, 0.5" in reason.message


def test_groups_of_one_cycle_see_each_others_devices() -> None:
    """Pods of 0.6 break both devices: a whole GPU is not to be had behind them, 0.4 is, twice. The snapshot stays as it was."""
    snapshot = machines(2)
    before = frozen(snapshot)
    found = plan(snapshot, bag(1, 2, 600), bag(2, 1, 1000), bag(3, 3, 400))
    assert placed(found) == {1: [(0, [600, 0]), (0, [0, 600])], 3: [(0, [400, 0]), (0, [0, 400])]}
    assert frozen(snapshot) == before
    assert not snapshot.devices.matter


def test_roles_of_a_gang_compete_for_devices() -> None:
    """A ps of 0.3 and two workers of 0.5 fit two devices; with a worker of 0.8 beside them they do not."""
    roles = [RoleRequest("ps", gpu(300), 1, 1), RoleRequest("worker", gpu(500), 2, 2)]
    assert placed(plan(machines(2), group(1, roles))) == {1: [(0, [0, 300]), (0, [500, 0]), (0, [500, 0])]}
    more = [*roles, RoleRequest("chief", gpu(800), 1, 1)]
    found = plan(machines(2), group(1, more))
    assert found.placements == ()
    assert found.reasons[0].code is ReasonCode.LARGER_THAN_CLUSTER
    assert len(placed(plan(machines(2, 1), group(1, more)))[1]) == 4


def test_extra_members_do_not_take_the_devices_of_another_roles_minimum() -> None:
    """Minimums of all roles first: of two workers of 0.6 one is needed, and the whole GPU is the chief's."""
    roles = [RoleRequest("worker", gpu(600), 2, 1), RoleRequest("chief", gpu(1000, cores=0), 1, 1)]
    assert sorted(placed(plan(machines(2), group(1, roles)))[1]) == [(0, [0, 600]), (0, [1000, 0])]


def test_pod_by_pod_devices_count_too() -> None:
    """The stock cluster's way does not pack a device twice either."""
    snapshot = machines(2)
    hold(snapshot, 0, (0, 600))
    found = plan(snapshot, bag(1, 3, 450), profile=PROFILES["kube-like"])
    assert placed(found) == {1: [(0, [0, 450]), (0, [0, 450])]}
    assert "pieces" in found.reasons[0].message


def test_targets_keep_their_devices_from_other_targets() -> None:
    """Somebody's inputs are on their way for 0.7 of the only device: it is no target for 0.4, whose inputs must be copied too."""
    snapshot, catalogue = machines(1, 0), Catalogue()
    hold(snapshot, 0, (0, 700), kind=ClaimKind.STAGING)
    data = catalogue.intern("s3://x", 10**9, origin=True)
    waits = bag(1, 1, 400, inputs=(data,))
    found = cycle(snapshot, catalogue, QueueTree([Queue("default")]), [waits], OURS, NOW)
    assert found.placements == ()
    catalogue.add_replica(data, 0, Statement())
    found = cycle(snapshot, catalogue, QueueTree([Queue("default")]), [waits], OURS, NOW)
    assert placed(found) == {1: [(0, [400])]}


def test_a_promised_device_is_not_taken_by_what_would_outlast_the_promise() -> None:
    """The first needs a whole device, from 5000: of the two half used ones the second is given to 0.5 until 9000, not the first."""
    snapshot = machines(2)
    hold(snapshot, 0, (0, 500), until=5000)
    hold(snapshot, 0, (1, 400), until=60_000)
    first, long = bag(1, 1, 1000, priority=1, runtime_ms=1000), bag(2, 1, 500, runtime_ms=8000)
    found = plan(snapshot, first, long)
    assert found.reservations[0].start_ms == 5000
    assert placed(found) == {2: [(0, [0, 500])]}
    third = bag(3, 1, 300, runtime_ms=8000)
    again = plan(snapshot, first, long, third)
    assert placed(again) == {2: [(0, [0, 500])]}
    assert {each.group: each.code for each in again.reasons}[3] is ReasonCode.RESERVED
    short = structs.replace(third, runtime_ms=1000)
    assert placed(plan(snapshot, first, long, short))[3] == [(0, [300, 0])]


# ---- taking back ----


def test_the_victim_is_who_has_the_device_that_is_needed() -> None:
    """0.7 for a higher priority: one of 0.6 must go; who has 0.2 of the other device would not do, and stays."""
    snapshot = machines(2)
    hold(snapshot, 0, (0, 600), unit="a", started_ms=0)
    hold(snapshot, 0, (1, 300), unit="b", started_ms=900)
    hold(snapshot, 0, (1, 200), unit="c", started_ms=900)
    hold(snapshot, 0, (1, 300), unit="", started_ms=0)
    found = plan(snapshot, bag(9, 1, 800, priority=5))
    assert [each.owners for each in found.evictions] == [("pod-0",)]
    (nomination,) = found.nominations
    assert nomination.devices == ((0, (800, 0)),)


def test_room_that_is_being_freed_is_held_by_device() -> None:
    """A nominated group waits for 0.8 of the first device: what is free of it is not given to others, the second device is."""
    snapshot = machines(2)
    hold(snapshot, 0, (0, 600), unit="a", started_ms=0)
    hold(snapshot, 0, (1, 700), unit="", started_ms=0)
    found = plan(snapshot, bag(9, 1, 800, priority=5), bag(1, 1, 300), bag(2, 1, 200))
    assert len(found.evictions) == 1
    assert placed(found) == {1: [(0, [0, 300])]}


# ---- suggestions ----


def test_a_suggestion_for_a_part_of_a_gpu_starts_it_and_one_unit_less_does_not() -> None:
    """500 thousandths are free on the best device: ask for so many."""
    snapshot = machines(2)
    hold(snapshot, 0, (0, 600))
    hold(snapshot, 0, (1, 500))
    waits = bag(1, 1, 700)
    tree = QueueTree([Queue("default")])
    situation = Situation(snapshot, Catalogue(), tree, waits, (), OURS, NOW)
    found = first(situation)
    assert found is not None
    assert (found.kind, found.what, found.was, found.to) == (Kind.REQUEST, "gpu", 700, 500)
    assert starts_with(situation, found)
    assert not starts_with_less(situation, found)


@pytest.mark.parametrize("seed", range(40))
def test_every_suggestion_for_parts_of_gpus_is_true_and_the_least(seed: int) -> None:
    """In 40 random worlds: with the change the group starts, with one unit less it does not."""
    snapshot, groups = random_world(seed)
    tree = QueueTree([Queue("default")])
    waits = structs.replace(groups[-1], key=99)
    situation = Situation(snapshot, Catalogue(), tree, waits, tuple(groups[:-1]), OURS, NOW)
    found = first(situation)
    if found is None:
        return
    assert not situation.starts()
    assert starts_with(situation, found)
    assert not starts_with_less(situation, found)


# ---- always ----


def random_world(seed: int) -> tuple[Snapshot, list[PodGroup]]:
    """Nodes with GPUs, some of them in use, and groups that ask for parts and whole ones."""
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 2, 4]) for _ in range(rng.randint(1, 6))]
    snapshot = machines(*sizes)
    asks = [100, 200, 300, 400, 500, 700, 1000, 1000, 2000, 1500]
    for at, size in enumerate(sizes):
        for _ in range(rng.randint(0, 3)):
            found = choose(snapshot.devices.free_on(at), rng.choice(asks))
            if found and size:
                kind = rng.choice([ClaimKind.RUNNING, ClaimKind.RUNNING, ClaimKind.RELEASING])
                until = rng.choice([None, 2000, 50_000])
                hold(
                    snapshot,
                    at,
                    *found,
                    until=until,
                    kind=kind,
                    unit=rng.choice(["", f"u{len(snapshot.claims)}"]),
                )
    groups = []
    for key in range(1, rng.randint(2, 8)):
        if rng.random() < 0.5:
            roles = []
            for name in "ab"[: rng.randint(1, 2)]:
                count = rng.randint(1, 3)
                roles.append(RoleRequest(name, gpu(rng.choice(asks)), count, rng.randint(1, count)))
            groups.append(
                group(key, roles, priority=rng.choice([0, 0, 3]), runtime_ms=rng.choice([500, 90_000]))
            )
        else:
            groups.append(bag(key, rng.randint(1, 5), rng.choice(asks), runtime_ms=rng.choice([500, 90_000])))
    return snapshot, groups


def given_out(snapshot: Snapshot, groups: list[PodGroup], found: Plan) -> dict[int, list[int]]:
    """What is left of each device when all that was placed is there; every pod gets what it asks for, in the form it must have."""
    left = {at: snapshot.devices.free_on(at) for at in range(len(snapshot))}
    for rows in placed(found).values():
        for at, row in rows:
            for device, part in enumerate(row):
                if part:
                    left[at][device] -= part
    asked = {each.key: each.roles for each in groups}
    for each in found.placements:
        for role, nodes in zip(asked[each.group], each.nodes, strict=True):
            for at in nodes.tolist() if not each.devices else ():  # whole ones: any will do
                for device, part in choose(left[at], role.shape.requests[3]) or ((0, 10_000),):
                    left[at][device] -= part
    return left


@given(st.integers(0, 10**9), st.sampled_from([OURS, PROFILES["kube-like"], PROFILES["volcano-like"]]))
@pytest.mark.soak
@settings(max_examples=worlds(120, 1500), deadline=None)
def test_no_device_is_given_out_twice(seed: int, profile: Profile) -> None:
    """Whatever is placed, no device gives more than it has; a part lies on one device, whole GPUs on devices of their own."""
    snapshot, groups = random_world(seed)
    found = plan(snapshot, *groups, profile=profile)
    asked = {each.key: each for each in groups}
    for each in (each for each in found.placements if each.devices):
        for role, rows in zip(asked[each.group].roles, each.devices, strict=True):
            millis = role.shape.requests[3]
            for row in rows.tolist():
                form = sorted((part for part in row if part), reverse=True)
                assert form == [1000] * (millis // 1000) + [millis % 1000] * (millis % 1000 > 0)
    assert all(part >= 0 for row in given_out(snapshot, groups, found).values() for part in row)


@given(st.integers(0, 10**9), st.sampled_from([OURS, PROFILES["volcano-like"], PROFILES["kube-like"]]))
@pytest.mark.soak
@settings(max_examples=worlds(120, 1500), deadline=None)
def test_nothing_that_fits_is_left_waiting_for_room(seed: int, profile: Profile) -> None:
    """Who is refused for want of room would really find no device, even where the sum would do."""
    snapshot, groups = random_world(seed)
    found = plan(snapshot, *groups, profile=replace(profile, backfill="none", preempt=False))
    left = given_out(snapshot, groups, found)
    short = {each.group for each in found.reasons if each.code is ReasonCode.INSUFFICIENT}
    for each in groups:
        if each.key in short and not each.gang:
            assert all(choose(row, each.roles[0].shape.requests[3]) is None for row in left.values())


@given(st.integers(0, 10**9))
@pytest.mark.soak
@settings(max_examples=worlds(120, 1500), deadline=None)
def test_victims_leave_the_devices_that_are_waited_for(seed: int) -> None:
    """With those gone who shall go or are going, and all that was placed there, every nominated group finds its devices."""
    snapshot, groups = random_world(seed)
    found = plan(snapshot, *groups)
    left = given_out(snapshot, groups, found)
    gone = {owner for each in found.evictions for owner in each.owners}
    for claim in snapshot.claims.values():
        if claim.owner in gone or claim.kind is ClaimKind.RELEASING:
            for device, part in claim.devices:
                left[claim.node][device] += part
    for nomination in found.nominations:
        for at, row in nomination.devices:
            for device, part in enumerate(row):
                if part:
                    left[at][device] -= part
    assert all(part >= 0 for row in left.values() for part in row)


@given(st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_claims_come_and_go_and_every_undo_is_exact(seed: int) -> None:
    """What is held of each device is a function of who is there, and so are the rows of the ledger."""
    snapshot, _ = random_world(seed)
    rng = random.Random(seed)
    before = [snapshot.devices.free_on(at) for at in range(len(snapshot))]
    shared, statement = snapshot.devices.shared, Statement()
    for number in range(6):
        if snapshot.claims and rng.random() < 0.5:
            snapshot.unclaim(rng.choice(sorted(snapshot.claims)), statement)
        else:
            amount = (0, 0, 0, rng.choice([300, 1000, 2500]), 0)
            at = rng.randrange(len(snapshot))
            snapshot.claim(Claim(f"new-{number}", at, amount, ClaimKind.RUNNING, "q", 9, None), statement)
    statement.rollback()
    assert [snapshot.devices.free_on(at) for at in range(len(snapshot))] == before
    assert snapshot.devices.shared == shared


def test_who_does_not_say_which_devices_it_holds_gets_some() -> None:
    """A stranger's pod of two GPUs, then a part, then more than there is: it is there all the same."""
    snapshot = machines(3)
    for number, millis in enumerate((2000, 300, 900)):
        claim = Claim(f"p{number}", 0, (0, 0, 0, millis, 0), ClaimKind.RUNNING, "q", 0, None)
        snapshot.claim(claim, Statement())
    assert [snapshot.claims[f"p{n}"].devices for n in range(3)] == [
        ((0, 1000), (1, 1000)),
        ((2, 300),),
        ((2, 900),),
    ]
    assert snapshot.devices.free_on(0) == [0, 0, -200]


def test_whole_gpus_alone_need_no_devices() -> None:
    """Nobody asks for a part and nobody has one: the plan names no devices, and the sum decides."""
    snapshot = machines(2, 4)
    hold(snapshot, 1, (0, 1000))
    found = plan(snapshot, bag(1, 4, 1000), bag(2, 1, 2000))
    assert [each.devices for each in found.placements] == [()]
    assert "pieces" not in found.reasons[0].message
