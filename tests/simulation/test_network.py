"""The fluid network: max-min fair rates and the ends that follow from them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.simulation.network import Network

flows = st.lists(
    st.tuples(st.integers(1, 5000), st.sets(st.integers(0, 4), min_size=1, max_size=3).map(sorted)),
    min_size=1,
    max_size=9,
)
capacities = st.lists(st.integers(1, 100), min_size=5, max_size=5)


def slow_rates(limits: list[int], paths: dict[int, list[int]]) -> dict[int, Fraction]:
    """Max-min fair rates in exact numbers: raise all flows alike, and stop those that meet a full resource."""
    rates = dict.fromkeys(paths, Fraction(0))
    growing = set(paths)
    while growing:
        steps = []
        for resource, limit in enumerate(limits):
            used = sum((rates[flow] for flow, path in paths.items() if resource in path), Fraction(0))
            count = sum(resource in paths[flow] for flow in growing)
            if count:
                steps.append(((limit - used) / count, resource))
        step = min(steps)[0]
        for flow in growing:
            rates[flow] += step
        full = {resource for room, resource in steps if room == step}
        growing = {flow for flow in growing if not full.intersection(paths[flow])}
    return rates


def slow_ends(limits: list[int], sizes: dict[int, int], paths: dict[int, list[int]]) -> dict[int, Fraction]:
    """When each flow ends, by going from end to end in exact numbers."""
    left, now, ends = {flow: Fraction(size) for flow, size in sizes.items()}, Fraction(0), {}
    while left:
        rates = slow_rates(limits, {flow: paths[flow] for flow in left})
        passed = min(left[flow] / rates[flow] for flow in left)
        now += passed
        for flow in list(left):
            left[flow] -= rates[flow] * passed
            if not left[flow]:
                ends[flow] = now
                del left[flow]
    return ends


@given(capacities, flows)
def test_rates_are_max_min_fair(limits: list[int], asked: list[tuple[int, list[int]]]) -> None:
    """Each flow gets what a slow, exact filling gives it."""
    network = Network(limits)
    for number, (size, path) in enumerate(asked):
        network.start(number, size, path)
    told = slow_rates(limits, {number: path for number, (_, path) in enumerate(asked)})
    for number in range(len(asked)):
        assert network.rate(number) == pytest.approx(float(told[number]), rel=1e-9)


@given(capacities, flows)
def test_flows_end_when_their_bytes_are_through(
    limits: list[int], asked: list[tuple[int, list[int]]]
) -> None:
    """The end of each flow is the one that a slow, exact walk from end to end finds."""
    network, ends = Network(limits), {}
    for number, (size, path) in enumerate(asked):
        network.start(number, size, path)
    while (moment := network.next_end()) is not None:
        for flow in network.advance(moment):
            ends[flow] = network.now
    paths = {number: path for number, (_, path) in enumerate(asked)}
    told = slow_ends(limits, {number: size for number, (size, _) in enumerate(asked)}, paths)
    # Less than a thousandth of a byte is nothing left: at one byte a second that is a millisecond.
    assert ends == pytest.approx({flow: float(end) for flow, end in told.items()}, rel=1e-6, abs=2e-3)


def test_what_a_settled_flow_leaves_goes_to_the_others() -> None:
    """A link of 100 with two flows, one of which passes a link of 20: the other gets 80."""
    network = Network([100, 20])
    network.start("narrow", 1000, [0, 1])
    network.start("wide", 1000, [0])
    assert network.rate("narrow") == 20
    assert network.rate("wide") == 80


def test_a_flow_that_is_given_up_frees_its_share() -> None:
    """Two flows share 100; after one stops at 1 s, the other has 50 of its 200 bytes, and ends 1.5 s later."""
    network = Network([100])
    network.start("a", 200, [0])
    network.start("b", 200, [0])
    assert network.advance(1.0) == []
    network.stop("b")
    assert network.next_end() == pytest.approx(2.5)
