"""Backfill held to a slow oracle: whoever is promised a start gets the earliest one, and nobody later delays it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import cluster, gang, run, shape

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.data import Catalogue
from tests import soak

EASY = Profile(order="fifo", backfill="easy")


@dataclass
class Oracle:
    """What every node has in use, second by second; slow and plain."""

    cores: list[int]
    used: list[tuple[int, int, int, int]] = field(default_factory=list)  #: node, from, until, cores

    def free(self, node: int, moment: int) -> int:
        return self.cores[node] - sum(c for n, a, b, c in self.used if n == node and a <= moment < b)

    def moments(self) -> list[int]:
        return sorted({0, *(end for _, _, end, _ in self.used), *(start for _, start, _, _ in self.used)})

    def fits(self, start: int, length: int, pods: int, each: int) -> bool:
        looks = [start, *(m for m in self.moments() if start < m < start + length)]
        room = [min(self.free(node, look) for look in looks) for node in range(len(self.cores))]
        return sum(max(0, free) // each for free in room) >= pods

    def earliest(self, length: int, pods: int, each: int) -> int | None:
        return next((m for m in self.moments() if self.fits(m, length, pods, each)), None)

    def put(self, nodes: list[int], start: int, length: int, each: int) -> None:
        self.used += [(node, start, start + length, each) for node in nodes]
        for node in nodes:
            assert all(self.free(node, moment) >= 0 for moment in self.moments())


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Cores of nodes; (node, cores, end) of what runs; (pods, cores of each, length) of what waits."""
    cores = draw(st.lists(st.integers(2, 8), min_size=1, max_size=4))
    running = []
    for node, whole in enumerate(cores):
        left = whole
        for end in draw(st.lists(st.integers(1, 40), max_size=3)):
            taken = draw(st.integers(0, left))
            left -= taken
            if taken:
                running.append((node, taken, end))
    one = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 30))
    return cores, running, draw(st.lists(one, min_size=1, max_size=7))


def planned(
    cores: list[int],
    running: list[tuple[int, int, int]],
    waiting: list[tuple[int, int, int]],
    profile: Profile,
) -> tuple[Oracle, list[PodGroup], Plan]:
    snapshot, oracle = cluster(*cores), Oracle(list(cores))
    for at, (node, taken, end) in enumerate(running):
        run(snapshot, f"r{at}", node, taken, end)
        oracle.used.append((node, 0, end, taken))
    groups = [
        gang(at, pods, shape(each, memory=0), ready_ms=at, runtime_ms=length)
        for at, (pods, each, length) in enumerate(waiting, 1)
    ]
    plan = cycle(snapshot, Catalogue(), QueueTree(), groups, profile, now=0)
    return oracle, groups, plan


@pytest.mark.soak
@settings(deadline=None, max_examples=soak.worlds(120, 1500))
@given(worlds())
def test_easy_backfill_promises_the_first_that_waits_and_keeps_it_from_all_others(
    world: tuple[list[int], list[tuple[int, int, int]], list[tuple[int, int, int]]],
) -> None:
    """One promise at most, the earliest that what runs allows; whatever else starts now, its nodes are free then."""
    oracle, groups, plan = planned(*world, EASY)
    placed = {p.group: p.nodes[0].tolist() for p in plan.placements}
    promised = {r.group: r for r in plan.reservations}
    assert len(promised) <= 1
    for group, (pods, each, length) in zip(groups, world[2], strict=True):
        if group.key in placed:
            oracle.put(placed[group.key], 0, length, each)
        elif group.key in promised:
            reservation = promised[group.key]
            assert reservation.start_ms == oracle.earliest(1_000_000, pods, each)
            oracle.put(reservation.nodes[0].tolist(), reservation.start_ms, length, each)
