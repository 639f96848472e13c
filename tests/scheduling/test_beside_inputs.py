"""A uniform pod beside its inputs: the few nodes that have them are compared, and the plan is the same as from all nodes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.cycle import _Cycle, cycle
from flowsched.scheduling.placement.cost_table import PlacementRequest, Pricer
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import Home, PodGroup
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.values import replace
from tests.scheduling.scheduling_cases import GIB, bag, claim, gang, run, shape, stage

OURS = PROFILES["flowsched"]
NOW = 1_000_000


def told(plan: Plan) -> Any:
    """A plan as plain values."""
    placements = [
        (p.group, [n.tolist() for n in p.nodes], [m.tolist() for m in p.missing_bytes], p.cost_ms, p.held)
        for p in plan.placements
    ]
    reservations = [(r.group, r.start_ms, [n.tolist() for n in r.nodes]) for r in plan.reservations]
    return placements, reservations, plan.reasons, plan.looked_at, plan.ahead


class World:
    """A random cluster with data, and single pods that wait."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.snapshot, self.catalogue = Snapshot(), Catalogue()
        self.nodes = rng.randint(1, 10)
        for at in range(self.nodes):
            cores = rng.choice([2, 4, 4, 16])
            self.snapshot.put_node(
                NodeInfo(
                    f"n{at}",
                    cores * 1000,
                    cores * rng.choice([1, 4]) * GIB,
                    disk_bytes=100 * GIB,
                    taints=(("t", "", "NoSchedule"),) if rng.random() < 0.15 else (),
                    disk_rate=rng.choice([0, 100_000_000]),
                    nic_in_rate=rng.choice([0, 117_000_000]),
                    ready=rng.random() < 0.9,
                )
            )
        self.datasets = [
            self.catalogue.intern(f"s3://d{at}", rng.choice([0, 1, 1_000, GIB, 40 * GIB]), rng.random() < 0.7)
            for at in range(6)
        ]
        for dataset in self.datasets:
            for node in range(self.nodes):
                if rng.random() < rng.choice([0.1, 0.4, 0.95]):
                    self.catalogue.add_replica(dataset, node)
                elif rng.random() < 0.1:
                    self.catalogue.expect(dataset, node)
        for at in range(rng.randint(0, 6)):
            node, kind = rng.randrange(self.nodes), rng.choice([ClaimKind.RUNNING, ClaimKind.RELEASING])
            if rng.random() < 0.3:
                stage(self.snapshot, f"s{at}", node, 1)
            elif rng.random() < 0.3:
                claim(self.snapshot, f"c{at}", node, 1, kind, queue="a")
            else:
                run(self.snapshot, f"r{at}", node, 1, rng.choice([None, 5, 40_000]))
        self.queues = QueueTree(
            [
                Queue("a", weight=rng.choice([1, 3]), parent=rng.choice([None, "top"])),
                Queue("b", cap=(rng.randint(0, 9) * 1000,) if rng.random() < 0.3 else None),
                Queue("c", order="fifo", paused=rng.random() < 0.1),
            ]
        )
        self.profile: Profile = replace(
            OURS,
            packing=rng.choice(["binpack", "spread"]),
            backfill=rng.choice(["easy", "easy", "easy", "none", "conservative"]),
            locality=rng.random() < 0.85,
            shortest_wait_ms=rng.choice([0, 2_000]),
            queues={"b": replace(OURS, name="other", packing="spread", locality=False)}
            if rng.random() < 0.3
            else {},
        )
        self.backlog = [self._group(key) for key in range(1, rng.randint(3, 25))]

    def _group(self, key: int) -> PodGroup:
        rng = self.rng
        more = {
            "queue": rng.choice("aaabc"),
            "priority": rng.choice([0, 0, 0, 1]),
            "runtime_ms": rng.choice([None, 1_000, 100_000]),
            "high_ms": rng.choice([None, None, 200_000]),
            "ready_ms": NOW - rng.choice([0, 5_000]),
            "inputs": tuple(rng.sample(self.datasets, rng.choice([0, 1, 1, 1, 2]))),
            "home": Home(rng.randrange(self.nodes), GIB) if rng.random() < 0.05 else None,
            "staged_on": (rng.randrange(self.nodes),) if rng.random() < 0.1 else (),
        }
        tolerations = (("t", "Exists", "", ""),) if rng.random() < 0.2 else ()
        what = shape(
            rng.choice([0, 0.5, 1, 1, 2, 3, 3]),
            rng.choice([0, 1, 2]),
            io=rng.choice([0] * 9 + [60_000_000]),
            io_bytes=rng.choice([0] * 9 + [GIB]),
            tolerations=tolerations,
            one_per_node=rng.random() < 0.05,
        )
        if rng.random() < 0.15:
            return gang(key, rng.choice([2, 5, 12]), what, **more)
        return bag(key, rng.choice([1, 1, 1, 1, 1, 3]), what, **more)

    def decide(self) -> Plan:
        return cycle(self.snapshot, self.catalogue, self.queues, self.backlog, self.profile, NOW)


@given(st.integers(0, 1 << 32))
@settings(max_examples=500, deadline=None)
def test_the_plan_is_the_same_as_from_all_nodes(seed: int) -> None:
    """Data and none, reservations, targets, caps, several policies."""
    world = World(seed)
    few = told(world.decide())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Cycle, "beside_inputs", lambda self, group: None)
        all_nodes = told(world.decide())
    assert few == all_nodes


def test_a_pod_beside_its_inputs_is_priced_on_their_nodes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes beside them although that node is emptier than the others; a pod without inputs goes to the fullest node."""
    priced: list[int] = []
    real = Pricer.price

    def price(self: Pricer, group: PodGroup) -> PlacementRequest:
        priced.append(group.key)
        return real(self, group)

    monkeypatch.setattr(Pricer, "price", price)
    snapshot, catalogue = Snapshot(), Catalogue()
    for at, cores in enumerate((2, 4, 16)):
        snapshot.put_node(NodeInfo(f"n{at}", cores * 1000, 64 * GIB))
    dataset = catalogue.intern("s3://lab/x", GIB, True)
    catalogue.add_replica(dataset, 2)
    backlog = [bag(1, 1, shape(1)), bag(2, 1, shape(1), inputs=(dataset,)), bag(3, 1, shape(2))]
    plan = cycle(snapshot, catalogue, QueueTree(), backlog, OURS, NOW)
    assert {each.group: each.nodes[0].tolist() for each in plan.placements} == {1: [0], 2: [2], 3: [1]}
    assert sorted(priced) == [1, 3]
