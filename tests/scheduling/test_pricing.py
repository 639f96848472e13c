"""Where a placed group leaves no room."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from random_cycles import KINDS, random_cycle

from flowsched.scheduling.placement.cost_table import Assignment, Pricer
from flowsched.scheduling.placement.gang import NodeChoice
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.state.data import Catalogue
from flowsched.values import replace
from tests.scheduling.scheduling_cases import bag, cluster, shape

GIB = 1 << 30


def assignment(pods: list[int], cores: float, memory: int) -> Assignment:
    """Pods of one bag on these nodes, of three."""
    snapshot = cluster(4, 4, 4)
    request = Pricer(snapshot, Catalogue(), PROFILES["flowsched"]).price(bag(1, 9, shape(cores, memory)))
    nodes = np.array(pods)
    return Assignment(request, (NodeChoice(nodes, np.zeros_like(nodes)),), (None,), None)


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
    assert assignment(pods, 1, 1).full(rows).tolist() == full


def test_what_is_not_asked_for_makes_nobody_full() -> None:
    """A node that has given more cores than it has is not full for who asks for none."""
    rows = [np.array([-500, 0, 1_000]), np.array([GIB, 2 * GIB, 0])]
    assert assignment([1], 0, 1).full(rows).tolist() == [False, False, True]


def plain(value: Any) -> Any:
    """A value with its arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.tolist()
    if isinstance(value, msgspec.Struct):
        return plain([getattr(value, name) for name in value.__struct_fields__])
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_a_pricer_that_has_priced_others_prices_as_a_new_one(kind: str, seed: int) -> None:
    """Requirements that the pricer keeps of one group are those of every group with the same shapes and least resources."""
    snapshot, catalogue, _queues, groups, profile, *_ = random_cycle(kind, seed)
    bundles = [replace(group, min_resources=(1_000 * at, GIB)) for at, group in enumerate(groups)]
    pairs = [replace(group, gang=True, roles=group.roles + groups[0].roles) for group in groups]
    several = Pricer(snapshot, catalogue, profile)
    for group in [*groups, *bundles, *pairs, *reversed(groups)]:
        request = several.price(group)
        assert plain(request) == plain(Pricer(snapshot, catalogue, profile).price(group))
