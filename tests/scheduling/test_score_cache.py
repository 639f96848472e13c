"""What is remembered while a cycle fills nodes decides nothing: the plan is the one that placement would make anew each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.placement import score_cache
from flowsched.scheduling.placement.capacity import Capacity
from flowsched.scheduling.placement.gang import NEVER, CostTable, NodeChoice, place_role
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from tests.house.second_ways import needs
from tests.scheduling.scheduling_cases import GIB, bag, cluster, gang, node, run, shape, stage
from tests.soak import worlds


def placed_anew(
    self: score_cache.ScoreCache, axes: tuple[int, ...], table: CostTable, packing: Any, *, spare: bool
) -> NodeChoice:
    """Instead of `ScoreCache.place`: nothing is remembered."""
    room: Capacity = self._room
    everywhere = np.ones(len(table.allowed), dtype=np.bool_) if spare else None
    rows = room.rows(axes, None, everywhere)
    whole = [room.allocatable(axis) for axis in axes]
    return place_role(rows, whole, table, table.count, packing, NEVER)


def told(plan: Plan) -> Any:
    """A plan as plain values."""
    placements = [
        (p.group, [n.tolist() for n in p.nodes], [m.tolist() for m in p.missing_bytes], p.cost_ms, p.held)
        for p in plan.placements
    ]
    reservations = [(r.group, r.start_ms, [n.tolist() for n in r.nodes]) for r in plan.reservations]
    return placements, reservations, plan.reasons, plan.looked_at


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    snapshot = Snapshot()
    for at in range(draw(st.integers(1, 12))):
        cores, memory = draw(st.sampled_from([(2, 8), (4, 16), (4, 16), (8, 16), (1, 1), (64, 3)]))
        taints = (("t", "", "NoSchedule"),) if draw(st.integers(0, 5)) == 0 else ()
        snapshot.put_node(node(f"n{at}", cores, memory, taints=taints, ready=draw(st.integers(0, 9)) > 0))
        if draw(st.booleans()):
            run(snapshot, f"p{at}", at, draw(st.integers(1, cores)), draw(st.sampled_from([None, 5, 40_000])))
        if draw(st.integers(0, 5)) == 0:
            stage(snapshot, f"s{at}", at, 1)
    return snapshot


SHAPES = st.sampled_from(
    [shape(1), shape(2), shape(0.5, 2), shape(3, 1), shape(1, 4), shape(0, 2), shape(0, 0), shape(1, 1, io=5)]
)


@st.composite
def backlogs(draw: st.DrawFn) -> list[PodGroup]:
    groups = []
    for key in range(1, draw(st.integers(2, 14))):
        more = {
            "queue": draw(st.sampled_from(["a", "b", "c", "capped"])),
            "priority": draw(st.integers(0, 1)),
            "runtime_ms": draw(st.sampled_from([None, 1_000, 10_000, 100_000])),
            "inputs": draw(st.sampled_from([(), (), (0,), (1,), (0, 2)])),
        }
        what = draw(SHAPES)
        if draw(st.integers(0, 3)) == 0:
            groups.append(gang(key, draw(st.sampled_from([1, 2, 5, 30])), what, **more))
        else:
            groups.append(bag(key, draw(st.sampled_from([1, 1, 2, 4, 9, 40])), what, **more))
    return groups


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    """Three inputs that can be had from outside, each on some of the first four nodes."""
    catalogue = Catalogue()
    for at in range(3):
        dataset = catalogue.intern(f"s3://lab/{at}", draw(st.sampled_from([1, GIB, 40 * GIB])), True)
        for holder in draw(st.sets(st.integers(0, 3))):
            catalogue.add_replica(dataset, holder)
    return catalogue


@pytest.mark.soak
@settings(max_examples=worlds(120, 1500), deadline=None)
@given(
    clusters(), catalogues(), backlogs(), st.sampled_from(["binpack", "spread"]), st.sampled_from([None, 7])
)
def test_plans_are_those_of_placing_anew(
    snapshot: Snapshot, catalogue: Catalogue, backlog: list[PodGroup], packing: Any, most: int | None
) -> None:
    """Placements, costs, reservations and reasons, on clusters with reservations, caps, inputs, staging and pods of no size."""
    held = range(len(snapshot), 4)  # by nodes that are not there
    for dataset in range(3):
        for at in held:
            catalogue.drop_replica(dataset, at)
    queues = QueueTree([Queue("capped", cap=(3_000,)), Queue("b", weight=3)])
    profile = Profile(packing=packing, queues={"c": Profile(name="spread", packing="spread")})
    with pytest.MonkeyPatch.context() as patch:
        ours = told(cycle(snapshot, catalogue, queues, backlog, profile, 100, most))
        patch.setattr(score_cache.ScoreCache, "place", placed_anew)
        anew = told(cycle(snapshot, catalogue, queues, backlog, profile, 100, most))
    assert ours == anew


@pytest.mark.soak
@settings(max_examples=worlds(80, 1000), deadline=None)
@given(st.data())
def test_one_pod_after_the_other_goes_where_placement_puts_it(data: st.DataObject) -> None:
    """Sizes of any kind, far apart and equal: one at a time and from the cache, while room is taken between."""
    count = data.draw(st.integers(1, 30))
    kinds = data.draw(
        st.lists(st.tuples(st.integers(1, 200), st.integers(1, 1 << 45)), min_size=1, max_size=4)
    )
    snapshot = Snapshot()
    for at in range(count):
        cores, memory = data.draw(st.sampled_from(kinds))
        snapshot.put_node(NodeInfo(f"n{at}", cores * 100, memory))
    room, packing = Capacity(snapshot), data.draw(st.sampled_from(["binpack", "spread"]))
    scores = score_cache.ScoreCache(room)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    for _ in range(8):
        needs = (
            data.draw(st.sampled_from([0, 100, 1_000])),
            data.draw(st.sampled_from([0, 1, 1 << 20, 1 << 33])),
        )
        table = CostTable(needs, (True, True), allowed, data.draw(st.sampled_from([1, 1, 1, 2, 3, 8])), 1)
        if table.count == 1:
            own = st.none() | st.lists(st.integers(0, 3_000), min_size=count, max_size=count).map(np.array)
            table = structs.replace(table, first=data.draw(own), each=data.draw(own))
        whole = [room.allocatable(axis) for axis in (0, 1)]
        rows = [room.hard(axis) for axis in (0, 1)]
        wanted = place_role(rows, whole, table, table.count, packing, NEVER)
        found = scores.place((0, 1), table, packing, spare=False)
        assert found.nodes.tolist() == wanted.nodes.tolist()
        assert found.costs.tolist() == wanted.costs.tolist()
        room.allocate((0, 1), table, found, None, None)


@needs("score_cache")
def test_a_shape_that_comes_again_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three bags of one shape the others share one table of costs after the first; another shape has none."""
    made: list[object] = []
    real = score_cache._ShapeScores.__init__

    def counted(self: Any, *rest: Any) -> None:
        made.append(self)
        real(self, *rest)

    monkeypatch.setattr(score_cache._ShapeScores, "__init__", counted)
    backlog = [bag(1), bag(2), bag(3), bag(4, what=shape(2))]
    plan = cycle(cluster(4, 4), Catalogue(), QueueTree(), backlog, Profile(), 0)
    assert [p.nodes[0].tolist() for p in plan.placements] == [[0], [0], [0], [1]]
    assert len(made) == 1
