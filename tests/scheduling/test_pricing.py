"""What a group costs, and where it leaves no room: ways that are shorter say what the long ones do."""

from __future__ import annotations

import random

import numpy as np
import pytest

from flowsched.scheduling.placement.cost_table import Assignment, PlacementRequest, Pricer
from flowsched.scheduling.placement.gang import CostTable, NodeChoice
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.state.data import Catalogue
from tests.scheduling.scheduling_cases import bag, cluster, gang, shape

GIB = 1 << 30


def fit(pods: list[int], cores: float, memory: int) -> Assignment:
    """Pods of one bag on these nodes, of three."""
    snapshot = cluster(4, 4, 4)
    offer = Pricer(snapshot, Catalogue(), PROFILES["flowsched"]).price(bag(1, 9, shape(cores, memory)))
    nodes = np.array(pods)
    return Assignment(offer, (NodeChoice(nodes, np.zeros_like(nodes)),), (None,), None)


@pytest.mark.parametrize(
    ("pods", "full"),
    [
        ([1], [False, False, True]),
        ([0], [True, False, True]),
        ([0, 1], [True, False, True]),
        ([1, 1], [False, True, True]),
    ],
)
def test_a_node_is_full_where_no_further_pod_fits(pods: list[int], full: list[bool]) -> None:
    """One core is free on the first node, two on the second, none (less than that) on the third; memory is plenty."""
    rows = [np.array([1_000, 2_000, -500]), np.array([9 * GIB, 9 * GIB, 9 * GIB])]
    assert fit(pods, 1, 1).full(rows).tolist() == full


def test_what_is_not_asked_for_makes_nobody_full() -> None:
    """A node that has given more cores than it has is not full for who asks for none."""
    rows = [np.array([-500, 0, 1_000]), np.array([GIB, 2 * GIB, 0])]
    assert fit([1], 0, 1).full(rows).tolist() == [False, False, True]


@pytest.mark.parametrize("seed", range(30))
def test_groups_that_differ_in_inputs_only_are_priced_as_each_by_itself(seed: int) -> None:
    """What was found for one that asks for the same is used again: every field of the offer is as if nothing had been."""
    rng = random.Random(seed)
    snapshot, catalogue = cluster(4, 8, 8, nic_in_rate=100, disk_rate=200), Catalogue()
    for number in range(4):
        dataset = catalogue.intern(f"s3://x/{number}", rng.randint(0, 5_000), True)
        for at in range(rng.randint(0, 3)):
            catalogue.add_replica(dataset, at)
    kept = Pricer(snapshot, catalogue, PROFILES["flowsched"])
    for key in range(1, 12):
        inputs = tuple(rng.sample(range(4), rng.randint(0, 3)))
        make = rng.choice((bag, bag, gang))
        group = make(
            key, rng.randint(1, 2), shape(rng.choice((1, 2)), io=rng.choice((0, 0, 50))), inputs=inputs
        )
        ours, fresh = kept.price(group), Pricer(snapshot, catalogue, PROFILES["flowsched"])._priced(group)
        assert told(ours) == told(fresh)


def told(offer: PlacementRequest) -> list[object]:
    """Each field, arrays as lists."""
    found: list[object] = []
    for name in offer.__struct_fields__:
        value = getattr(offer, name)
        if name == "tables":
            value = [[plain(getattr(table, each)) for each in CostTable.__struct_fields__] for table in value]
        elif name == "terms":
            value = [[(term, ms.tolist()) for term, ms in terms] for terms in value if terms]
        elif name == "allowed":
            value = [(each.mask.tolist(), each.refusals, each.count) for each in value]
        found.append(plain(value))
    return found


def plain(value: object) -> object:
    """An array as a list."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray) else value
