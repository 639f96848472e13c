"""The order of waiting groups that is kept from cycle to cycle, the families of groups, and reasons of groups that are alike."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from scheduling_cases import GIB, SECOND, bag, cluster, gang, node, run, shape, stage

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.cycle_state import Kept
from flowsched.scheduling.plan import Alike, Reason, ReasonCode, Reasons
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.ordering import WaitingOrder, oldest_of
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.values import replace

OURS = PROFILES["flowsched"]
HALF = (2_000, 8 * GIB)
SHAPES = (shape(1, 1), shape(3, 1))


@st.composite
def groups(draw: st.DrawFn, key: int) -> PodGroup:
    """A bag or a gang of one of two queues, two users and three workflows."""
    facts = {
        "queue": draw(st.sampled_from("ab")),
        "user": draw(st.sampled_from(("", "ann"))),
        "workflow": draw(st.sampled_from("xyz")),
        "priority": draw(st.integers(0, 1)),
        "rank_ms": draw(st.sampled_from((0, 5, 900, 70_000, 80_000))),
        "ready_ms": draw(st.integers(0, 40)) * 100 * SECOND,
        "runtime_ms": draw(st.sampled_from((None, 1_000, 9_000))),
    }
    if draw(st.integers(0, 4)) == 0:
        return gang(key, 2, promised_ms=draw(st.sampled_from((None, 7))), **facts)
    return bag(key, draw(st.integers(1, 3)), draw(st.sampled_from(SHAPES)), **facts)


backlogs = st.lists(st.integers(0, 40), max_size=40, unique=True).flatmap(
    lambda keys: st.tuples(*[groups(key) for key in keys])
)


def plain(
    backlog: Sequence[PodGroup], queues: QueueTree, profile: Profile, now: int, longer_ms: int | None
) -> dict[str, list[int]]:
    """The same order, each group looked at."""
    ends: dict[str, int] = {}
    for group in backlog:
        ends[group.workflow] = max(group.rank_ms, ends.get(group.workflow, 0))

    def key(group: PodGroup) -> tuple[int, ...]:
        waited = max(0, now - group.ready_ms)
        first = -group.priority - waited // profile.promote_ms, not (group.gang and group.promised_ms)
        if queues.get(group.queue).order == "fifo":
            return *first, group.ready_ms, group.key
        no_time = longer_ms is not None and group.rank_ms >= longer_ms
        large = group.roles[0].shape.requests[0] > 2_000
        length = 0 if no_time or group.gang or large else ends[group.workflow].bit_length()
        return *first, -(waited // 600_000), length, -group.rank_ms, group.ready_ms, group.key

    names = sorted({group.queue for group in backlog})
    return {
        name: [group.key for group in sorted((g for g in backlog if g.queue == name), key=key)]
        for name in names
    }


@given(
    st.lists(
        st.tuples(backlogs, st.integers(0, 30), st.sampled_from((None, 800, 75_000)), st.booleans()),
        max_size=6,
    )
)
def test_a_kept_order_is_the_order_of_the_groups_that_wait(
    steps: list[tuple[tuple[PodGroup, ...], int, int | None, bool]],
) -> None:
    """Groups come, go and change, time passes, the longest workflow changes, a queue becomes one that is first in, first out."""
    profile = replace(OURS, order="shortest")
    kept, queues, now, known = WaitingOrder(), QueueTree([Queue("a")]), 0, {}
    for backlog, minutes, longer_ms, fifo in steps:
        now += minutes * 60 * SECOND
        if fifo != (queues.get("a").order == "fifo"):
            queues.put(Queue("a", order="fifo" if fifo else "best-effort"))
        stay = [known.get(group.key, group) if group.key % 2 else group for group in backlog]
        known = {group.key: group for group in stay}
        kept.bring(stay, queues, profile, now, HALF)
        ordered = kept.by_queue(longer_ms)
        found = {name: [group.key for group in some] for name, some in ordered.items()}
        assert found == plain(stay, queues, profile, now, longer_ms)
        assert all(group is known[group.key] for some in ordered.values() for group in some)
        runtimes = [profile.default_runtime_ms if g.runtime_ms is None else g.runtime_ms for g in stay]
        cores = [sum(role.count * role.shape.requests[0] for role in group.roles) for group in stay]
        assert kept.work == sum(a * b for a, b in zip(runtimes, cores, strict=True))
        assert kept.oldest() == oldest_of(ordered)


def test_a_long_order_of_which_little_changes_is_that_of_an_order_made_anew() -> None:
    """600 groups, of which some leave, come, or change with and without moving, 40 times."""
    chance, queues, profile = random.Random(7), QueueTree([Queue("a")]), replace(OURS, order="shortest")

    def drawn(key: int) -> PodGroup:
        rank_ms, ready_ms = chance.choice((0, 5, 900, 70_000, 80_000)), chance.randint(0, 40) * 100 * SECOND
        return bag(
            key, 1, chance.choice(SHAPES), rank_ms=rank_ms, ready_ms=ready_ms, workflow=chance.choice("xyz")
        )

    kept, now, known = WaitingOrder(), 0, {key: drawn(key) for key in range(600)}
    for _ in range(40):
        now += chance.choice((0, 1, 60, 600)) * SECOND
        for key in chance.sample(range(700), 5):
            if key in known and chance.random() < 0.3:
                del known[key]
            elif key in known and chance.random() < 0.5:
                known[key] = structs.replace(known[key], shut=(1,))
            else:
                known[key] = drawn(key)
        anew = WaitingOrder()
        for order in (kept, anew):
            order.bring([*known.values()], queues, profile, now, HALF)
        found = [[*map(id, order.by_queue(75_000)["default"])] for order in (kept, anew)]
        assert found[0] == found[1]
        assert kept.work == anew.work


@pytest.mark.parametrize("cores", [1, 3])
def test_a_group_that_asks_for_less_than_in_the_last_cycle_is_looked_at(cores: int) -> None:
    """Two of four cores are free. The third group asks for three, like the others that are refused, and then for one."""
    snapshot, kept = cluster(4), Kept()
    run(snapshot, "c", 0, 2, 60 * SECOND)
    refused = [bag(1, 1, shape(3, 1), rank_ms=9), bag(2, 1, shape(3, 1), rank_ms=8)]
    for asked in (3, cores):
        third = bag(3, 1, shape(asked, 1), runtime_ms=SECOND)
        plan = cycle(snapshot, Catalogue(), QueueTree(), [*refused, third], OURS, 0, kept=kept)
    assert [placed.group for placed in plan.placements] == [3] * (cores == 1)


def test_what_refuses_a_family_refuses_it_at_every_priority() -> None:
    """A core is free. 500 groups that need two cores and more in all wait at each of three priorities, and one that needs one core.
    A cycle looks at 1,024 groups, and comes to it.
    """
    snapshot = cluster(4)
    run(snapshot, "c", 0, 3, 60 * SECOND)
    backlog = [
        bag(
            1_000 * priority + number,
            1,
            shape(2, 1),
            priority=priority,
            rank_ms=9,
            min_resources=(2_000 * number,),
        )
        for priority in (3, 2, 1)
        for number in range(1, 501)
    ]
    small = bag(9_000, 1, shape(1, 1), priority=1, runtime_ms=SECOND)
    plan = cycle(snapshot, Catalogue(), QueueTree(), [*backlog, small], OURS, 0)
    assert [placed.group for placed in plan.placements] == [9_000]


@pytest.mark.parametrize("rate", [0, 50_000_000, 400_000_000])
def test_a_pod_goes_to_the_node_with_its_data_though_its_disk_is_slower_than_it_asks(rate: int) -> None:
    """The first group finds room beside no input, and closes the cycle for copies. The second has its data on n0, where there is
    room; of the disk a pod gets what there is. Room is free on n1 too.
    """
    link = {"nic_in_rate": 125_000_000, "nic_out_rate": 125_000_000}
    snapshot, catalogue = Snapshot(), Catalogue()
    for name, disk_rate in (("n0", rate), ("n1", 400_000_000)):
        snapshot.put_node(node(name, 4, 16, disk_rate=disk_rate, **link))
    stage(snapshot, "s", 1, 4)
    run(snapshot, "c", 0, 2, 600 * SECOND)
    data = [catalogue.intern(name, 5_000_000_000) for name in ("a", "b")]
    for dataset in data:
        catalogue.add_replica(dataset, 0)
    large = bag(1, 1, shape(3, 1), inputs=(data[1],), rank_ms=9, runtime_ms=SECOND)
    small = bag(2, 1, shape(1, 1, io=90_000_000), inputs=(data[0],), runtime_ms=SECOND)
    plan = cycle(snapshot, catalogue, QueueTree(), [large, small], OURS, 0)
    assert [(placed.group, placed.nodes[0].tolist()) for placed in plan.placements] == [(2, [0])]


def test_a_group_moves_when_its_time_has_come_though_nothing_else_changes() -> None:
    """The second group is ready a second earlier: it is ten minutes old first, and goes before one of higher rank."""
    kept, queues = WaitingOrder(), QueueTree()
    backlog = [bag(1, rank_ms=9, ready_ms=SECOND), bag(2, ready_ms=0)]
    found = []
    for now in (599 * SECOND, 600 * SECOND, 601 * SECOND):
        kept.bring(backlog, queues, OURS, now)
        found.append([group.key for group in kept.by_queue()["default"]])
    assert found == [[1, 2], [2, 1], [1, 2]]


def test_reasons_of_groups_that_are_alike_are_made_when_they_are_read() -> None:
    """Three groups wait: one for its own reason, two for the same."""
    own, shared = Reason(7, ReasonCode.PAUSED, "paused"), Reason(1, ReasonCode.INSUFFICIENT, "no room")
    reasons = Reasons([own, Alike(shared, [bag(1), bag(2)])])
    two = Reason(2, ReasonCode.INSUFFICIENT, "no room")
    assert (len(reasons), list(reasons)) == (3, [own, shared, two])
    assert (reasons[2], reasons[-1], reasons[:1]) == (two, two, (own,))
    assert reasons == (own, shared, two)
    assert reasons != (own, shared)
    assert list(reasons.distinct()) == [own, shared]
    with pytest.raises(IndexError):
        reasons[3]


def test_without_a_free_core_pods_of_any_demand_on_disks_are_refused_by_one_look() -> None:
    """Each of thirty pods asks for less of the disk's bandwidth than the one before it: none is looked at but the first."""
    snapshot = cluster(4, disk_rate=1_000_000_000)
    run(snapshot, "runs", 0, 4)
    backlog = [bag(key, what=shape(1, io=1_000_000 * (40 - key))) for key in range(2, 32)]
    plan = cycle(snapshot, Catalogue(), QueueTree(), backlog, OURS, 0)
    assert {each.code for each in plan.reasons} == {ReasonCode.INSUFFICIENT}
    assert len(plan.reasons) == 30
    assert plan.looked_at <= 3


def test_without_a_free_core_pods_of_any_memory_are_refused_by_one_look() -> None:
    """Each of thirty pods asks for less memory than the one before it."""
    snapshot = cluster(4, memory=64)
    run(snapshot, "runs", 0, 4)
    backlog = [bag(key, what=shape(1, 40 - key)) for key in range(2, 32)]
    plan = cycle(snapshot, Catalogue(), QueueTree(), backlog, OURS, 0)
    assert {each.code for each in plan.reasons} == {ReasonCode.INSUFFICIENT}
    assert (len(plan.reasons), plan.looked_at <= 3) == (30, True)


def test_a_group_that_asks_for_less_than_in_the_last_cycle_is_no_longer_refused_with_others() -> None:
    """One core is free, three pods ask for two; then one of them asks for one."""
    snapshot = cluster(4)
    run(snapshot, "runs", 0, 3)
    larger = [bag(key, what=shape(2)) for key in (1, 2, 3)]
    profile = replace(OURS, backfill="none")
    assert cycle(snapshot, Catalogue(), QueueTree(), larger, profile, 0).placements == ()
    smaller = bag(3, what=shape(1))
    plan = cycle(snapshot, Catalogue(), QueueTree(), [*larger[:2], smaller], profile, 1)
    assert [placed.group for placed in plan.placements] == [3]


def test_a_workflow_gives_way_as_soon_as_its_longest_group_has_gone() -> None:
    """A group of workflow x waits as before; x was longer than y while another group of it waited."""
    kept, queues, profile = WaitingOrder(), QueueTree(), replace(OURS, order="shortest")
    long, x, y = (
        bag(1, workflow="x", rank_ms=9_000),
        bag(2, workflow="x", rank_ms=10),
        bag(3, workflow="y", rank_ms=100),
    )
    found = []
    for backlog in ([long, x, y], [x, y]):
        kept.bring(backlog, queues, profile, 0)
        found.append([group.key for group in kept.by_queue()["default"]])
    assert found == [[3, 1, 2], [2, 3]]


def test_an_order_that_is_asked_for_an_earlier_moment_is_that_of_this_moment() -> None:
    """The group that is ten minutes old goes first. Five minutes earlier the one of higher rank does."""
    kept, queues = WaitingOrder(), QueueTree()
    backlog = [bag(1, rank_ms=9, ready_ms=600 * SECOND), bag(2, ready_ms=0)]
    found = []
    for now in (600 * SECOND, 300 * SECOND):
        kept.bring(backlog, queues, OURS, now)
        found.append([group.key for group in kept.by_queue()["default"]])
    assert found == [[2, 1], [1, 2]]
