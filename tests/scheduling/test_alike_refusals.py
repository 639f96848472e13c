"""Groups that are refused as one like them was: the plan is the one that looking at each of them gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from random_cycles import POLICIES, with_data, with_takers
from scheduling_cases import SECOND, bag, cluster, run, stage

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.recording import plan_bytes
from flowsched.scheduling.placement.capacity import Capacity
from flowsched.scheduling.placement.cost_table import PlacementRequest, Pricer
from flowsched.scheduling.plan import ReasonCode
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.fair_share import FairShareOrder
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.data import Catalogue
from flowsched.values import replace

COPIES = 6


def crowded(seed: int, taking: bool, window: int) -> tuple[Any, ...]:
    """A random cycle in which each bag waits several times, of several users, priorities, and ages, or behind one line."""
    rng = random.Random(seed)
    profile = replace(POLICIES[seed % len(POLICIES)], window=window)
    snapshot, catalogue, tree, backlog, profile, now, most = (with_takers if taking else with_data)(
        seed, profile
    )
    if rng.random() < 0.7:
        tree = QueueTree(
            [Queue("a", order=rng.choice(("best-effort", "fifo"))), Queue("b", weight=2), Queue("c")]
        )
    nowhere = catalogue.intern("nowhere", 1)
    lost = rng.choice((0.0, 0.1))
    users, priorities = rng.choice((("",), ("u", "v"))), rng.choice(((0,), (0, 1)))
    groups: list[PodGroup] = []
    for group in backlog:
        for copy in range(COPIES):
            groups.append(
                structs.replace(
                    group,
                    key=group.key + 10_000 * copy,
                    user=rng.choice(users),
                    priority=rng.choice(priorities),
                    queue=rng.choice(("a", "a", "b", "c")),
                    inputs=(nowhere,) if rng.random() < lost else group.inputs,
                    ready_ms=group.ready_ms - rng.choice((0, 0, 7_200 * SECOND)),
                )
            )
    return snapshot, catalogue, tree, groups, profile, now, most


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 20), st.booleans(), st.sampled_from((5, 1024)))
def test_the_plan_is_that_of_one_look_at_each(seed: int, taking: bool, window: int) -> None:
    """Users, lines first in first out, windows, lost inputs, groups that may take room: each refusal says the same, in its turn."""
    found = plan_bytes(cycle(*crowded(seed, taking, window)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FairShareOrder, "stays_first", lambda *_: ())
        assert plan_bytes(cycle(*crowded(seed, taking, window))) == found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 20), st.booleans())
def test_a_full_cluster_is_seen_before_costs_are_computed(seed: int, taking: bool) -> None:
    """Groups that no node has room for get the reasons, promises and forecasts that pricing and placing them in full would give."""
    found = plan_bytes(cycle(*crowded(seed, taking, 1024)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Capacity, "lacks", lambda *_: False)
        patch.setattr(Capacity, "lacks_on", lambda *_: False)
        assert plan_bytes(cycle(*crowded(seed, taking, 1024))) == found


def test_groups_beside_full_nodes_are_refused_without_their_costs() -> None:
    """Free room is kept for copies, the only node with the inputs is full: each of ten waits for its data, and none is priced."""
    snapshot, catalogue = cluster(4, 4), Catalogue()
    data = catalogue.intern("data", 1 << 30)
    catalogue.add_replica(data, 0)
    run(snapshot, "runs", 0, 4, until_ms=90 * SECOND)
    stage(snapshot, "staging", 1, 4)
    groups = [structs.replace(bag(key), inputs=(data,)) for key in range(1, 11)]
    given = (snapshot, catalogue, QueueTree(), groups, PROFILES["flowsched"], 0)
    with pytest.MonkeyPatch.context() as patch:
        priced: list[int] = []
        price = Pricer.price

        def noted(self: Pricer, group: PodGroup) -> PlacementRequest:
            priced.append(group.key)
            return price(self, group)

        patch.setattr(Pricer, "price", noted)
        plan = cycle(*given)
    assert {each.code for each in plan.reasons} == {ReasonCode.WAITING_FOR_DATA}
    assert priced == [1]  # the first finds out that what is free is kept
    assert plan.ahead  # and where they will probably run is foreseen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Capacity, "lacks_on", lambda *_: False)
        assert plan_bytes(cycle(*given)) == plan_bytes(plan)


def test_all_that_wait_for_one_room_get_one_reason() -> None:
    """One of a hundred finds room; each of the others is told why it does not, in its order."""
    snapshot = cluster(1)
    groups = [bag(key) for key in range(1, 101)]
    plan = cycle(snapshot, Catalogue(), QueueTree(), groups, PROFILES["flowsched"], 0)
    assert [each.group for each in plan.placements] == [1]
    assert [each.group for each in plan.reasons] == list(range(2, 101))
    assert {each.code for each in plan.reasons} == {ReasonCode.INSUFFICIENT}
    assert plan.looked_at == 100
