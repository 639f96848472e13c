"""What must hold of every preemption, whatever the cluster, the queues and the backlog."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import GIB, bag, frozen, gang, shape

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace
from tests.soak import worlds

NOW = 1_000_000
OURS = PROFILES["flowsched"]
NEVER_TAKES = replace(OURS, preempt=False, reclaim=False)
pytestmark = pytest.mark.soak
MANY = settings(max_examples=worlds(120, 2000), deadline=None)


class World:
    """A full cluster of pods and gangs in three queues, and groups that want in."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.snapshot = Snapshot()
        self.nodes = int(self.rng.integers(1, 7))
        for at in range(self.nodes):
            self.snapshot.put_node(NodeInfo(f"n{at}", int(self.rng.choice([2, 4, 8])) * 1000, 16 * GIB))
        self.queues = QueueTree(
            [
                Queue("a", weight=int(self.rng.integers(1, 4)), priority=int(self.rng.integers(0, 2))),
                Queue("b", guarantee=(int(self.rng.integers(0, 5)) * 1000,) if self.pick(0.7) else None),
                Queue("c", reclaimable=self.pick(0.7)),
            ]
        )
        for number in range(60):
            self.run(number)
        self.backlog = [self.group(key) for key in range(1, int(self.rng.integers(2, 6)))]

    def pick(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def run(self, number: int) -> None:
        node = int(self.rng.integers(self.nodes))
        free = self.snapshot.allocatable[node] - self.snapshot.used[node]
        cores = int(self.rng.choice([1, 1, 2, 4])) * 1000
        if cores > free[0] or free[1] < GIB:
            return
        together = number % 5 == 0
        kind = ClaimKind.RELEASING if self.pick(0.1) else ClaimKind.RUNNING
        claim = Claim(
            f"p{number}",
            node,
            (cores, GIB),
            ClaimKind.RUNNING if together else kind,
            "abc"[number // 10 % 3 if together else number % 3],
            NOW - 90_000,
            None,
            unit=f"gang{number // 10}" if together else f"p{number}" if self.pick(0.9) else "",
            priority=number // 10 % 3 if together else int(self.rng.integers(0, 3)),
            qos=int(self.rng.integers(0, 3)),
            started_ms=None if self.pick(0.2) else NOW - int(self.rng.integers(0, 80_000)),
            elastic=(0, number, 1) if together and number // 10 % 2 else None,
        )
        self.snapshot.claim(claim, Statement())

    def group(self, key: int) -> PodGroup:
        make = gang if self.pick(0.6) else bag
        what = shape(int(self.rng.choice([1, 2, 4])), 1)
        more = {"queue": "abc"[int(self.rng.integers(3))], "priority": int(self.rng.integers(0, 4))}
        return make(key, int(self.rng.integers(1, 6)), what, **more)

    def decide(self, backlog: list[PodGroup] | None = None, profile: Profile = OURS) -> Plan:
        groups = self.backlog if backlog is None else backlog
        return cycle(self.snapshot, Catalogue(), self.queues, groups, profile, NOW)

    def without(self, owners: set[str]) -> Snapshot:
        """The cluster once these, and all who are leaving anyway, have left."""
        snapshot = Snapshot()
        for at in range(self.nodes):
            snapshot.put_node(NodeInfo(f"n{at}", int(self.snapshot.allocatable[at, 0]), 16 * GIB))
        for claim in self.snapshot.claims.values():
            if claim.owner not in owners and claim.kind is ClaimKind.RUNNING:
                snapshot.claim(claim, Statement())
        return snapshot


def fits(snapshot: Snapshot, group: PodGroup, pods: int) -> bool:
    """Whether so many pods of the group have room, by plain counting (all its pods are alike)."""
    need = group.roles[0].shape.requests
    free = snapshot.allocatable - snapshot.used
    room = [min(int(free[n, a]) // need[a] for a in range(2)) for n in range(len(snapshot))]
    return sum(max(0, each) for each in room) >= pods


@MANY
@given(st.integers(0, 2**32))
def test_nobody_is_taken_away_in_vain_or_too_many(seed: int) -> None:
    """With its victims gone the group has room, and without any one of them gone it has not."""
    world = World(seed)
    for group in world.backlog:
        plan = world.decide([group])
        for nomination in plan.nominations:
            gone, pods = set(nomination.victims), nomination.pods
            pods += sum(len(nodes) for placement in plan.placements for nodes in placement.nodes)
            assert fits(world.without(gone), group, pods)
            for eviction in plan.evictions:
                assert not fits(world.without(gone - set(eviction.owners)), group, pods)
        if not plan.nominations:
            assert not plan.evictions


@MANY
@given(st.integers(0, 2**32))
def test_victims_are_whole_units_and_each_is_taken_once(seed: int) -> None:
    """Never half a gang that needs all, never what may not be taken, never the same pod for two."""
    world = World(seed)
    plan = world.decide()
    owners = [owner for eviction in plan.evictions for owner in eviction.owners]
    assert len(owners) == len(set(owners))
    claims = world.snapshot.claims
    spared = {owner for eviction in plan.evictions if eviction.part for owner in eviction.owners}
    for eviction in plan.evictions:
        units = {claims[owner].unit for owner in eviction.owners}
        (unit,) = units
        assert unit != ""
        all_of_it = {claim.owner for claim in claims.values() if claim.unit == unit}
        if eviction.part:
            assert len(all_of_it - spared) >= 1
            assert claims[eviction.owners[0]].elastic is not None
        else:
            assert set(eviction.owners) == all_of_it - spared


@MANY
@given(st.integers(0, 2**32))
def test_all_nominated_groups_have_room_together_and_leave_what_was_placed_alone(seed: int) -> None:
    """Once all victims have left, what was placed and all that was nominated fit side by side."""
    world = World(seed)
    plan = world.decide()
    after = world.without({owner for eviction in plan.evictions for owner in eviction.owners})
    used = after.used.copy()
    groups = {group.key: group for group in world.backlog}
    for placement in plan.placements:
        for node in placement.nodes[0].tolist():
            used[node] += np.array(groups[placement.group].roles[0].shape.requests)
    for nomination in plan.nominations:
        for node, amounts in nomination.room:
            used[node] += np.array(amounts)
    if plan.nominations:
        assert (used <= after.allocatable).all()


@MANY
@given(st.integers(0, 2**32))
def test_guarantees_are_kept_and_rules_between_queues_hold(seed: int) -> None:
    """Nobody falls below its guarantee; who is not reclaimable loses nothing to others; inside a queue only priority takes."""
    world = World(seed)
    before = {name: world.snapshot.queue_usage(name)[0] for name in "abc"}
    for group in world.backlog:
        plan = world.decide([group])
        lost = dict.fromkeys("abc", 0)
        for eviction in plan.evictions:
            for owner in eviction.owners:
                claim = world.snapshot.claims[owner]
                if claim.queue == group.queue:
                    assert claim.priority < group.priority
                else:
                    assert world.queues.get(claim.queue).reclaimable
                    lost[claim.queue] += claim.amount[0]
        for name, amount in lost.items():
            floor = (world.queues.get(name).guarantee or (0,))[0]
            assert amount == 0 or before[name] - amount >= min(floor, before[name])


@MANY
@given(st.integers(0, 2**32))
def test_deciding_changes_nothing_and_is_repeatable(seed: int) -> None:
    """Every array is byte for byte what it was, and the same question has the same answer."""
    world = World(seed)
    before = frozen(world.snapshot)
    first, second = world.decide(), world.decide()
    assert frozen(world.snapshot) == before
    assert (first.evictions, first.nominations) == (second.evictions, second.nominations)
    assert world.decide(profile=NEVER_TAKES).evictions == ()


@MANY
@given(st.integers(0, 2**32))
def test_who_was_taken_away_does_not_take_its_room_back(seed: int) -> None:
    """Give every group its room and let the victims ask again: none of them gets anything back by taking, so nothing goes to and
    fro.
    """
    world = World(seed)
    for group in world.backlog:
        plan = world.decide([group])
        if not plan.evictions:
            continue
        gone = {owner: world.snapshot.claims[owner] for e in plan.evictions for owner in e.owners}
        after = world.without(set(gone))
        number = 0
        for nomination in plan.nominations:
            for node, amounts in nomination.room:
                while number < nomination.pods and amounts[0] > 0:
                    need = group.roles[0].shape.requests
                    owner = f"taker{number}"
                    after.claim(
                        Claim(
                            owner, node, need, ClaimKind.RUNNING, group.queue, NOW, None,
                            unit="taker" if group.gang else owner, priority=group.priority,
                        ),
                        Statement(),
                    )  # fmt: skip
                    amounts = tuple(a - b for a, b in zip(amounts, need, strict=True))
                    number += 1
        for at, claim in enumerate(gone.values()):
            what = shape(claim.amount[0] // 1000, 1)
            again = gang(100 + at, 1, what, queue=claim.queue, priority=claim.priority)
            plan = cycle(after, Catalogue(), world.queues, [again], OURS, NOW)
            assert not [o for e in plan.evictions for o in e.owners if o.startswith("taker")]
