"""Turns that are taken at once are those that would have been taken one by one."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from flowsched.scheduling import batches
from flowsched.scheduling import cycle as cycle_module
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Nomination, Plan
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.fair_share import FairShareOrder
from flowsched.scheduling.queues.tree import Queue, QueueTree, billionths
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.state.usage import Payer
from flowsched.statement import Statement
from flowsched.values import replace
from tests.scheduling.scheduling_cases import GIB, bag, claim, gang, node, shape

OURS = PROFILES["flowsched"]
HOUR = 3_600_000
NOW = 5 * HOUR


def told(plan: Plan) -> Any:
    """A plan as plain values."""
    placements = [
        (p.group, [n.tolist() for n in p.nodes], [m.tolist() for m in p.missing_bytes], p.cost_ms, p.held)
        for p in plan.placements
    ]
    reservations = [(r.group, r.start_ms, [n.tolist() for n in r.nodes]) for r in plan.reservations]
    return placements, reservations, plan.reasons, plan.looked_at


class World:
    """A random cluster, tree of queues and backlog."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.snapshot = Snapshot()
        for at in range(rng.randint(1, 9)):
            cores = rng.choice([2, 4, 16, 64])
            self.snapshot.put_node(node(f"n{at}", cores, cores * rng.choice([1, 4])))
        self.names = [f"q{at}" for at in range(rng.randint(1, 12))]
        self.queues = QueueTree()
        if rng.random() < 0.7:
            self._configure(nested=rng.random() < 0.6)
        for at in range(rng.randint(0, 10)):
            queue, where = rng.choice(self.names), rng.randrange(len(self.snapshot))
            claim(self.snapshot, f"c{at}", where, rng.randint(1, 3), ClaimKind.RUNNING, queue=queue)
        for _ in range(rng.randint(0, 4)):  # some were served before
            queue = rng.choice(self.names)
            self.snapshot.usage.served_queues[queue] = NOW - rng.randint(0, 3 * HOUR)
            self.snapshot.usage.served_users[Payer(queue, rng.choice("ab"))] = NOW - rng.randint(0, 3 * HOUR)
        self.backlog = [self._group(key) for key in range(1, rng.randint(3, 40))]
        self.most = rng.choice([None, 1, 5, 30, 100])
        self.profile: Profile = replace(
            OURS,
            packing=rng.choice(["binpack", "spread"]),
            window=rng.choice([1024, 1024, 7]),
            backfill=rng.choice(["easy", "easy", "none", "conservative"]),
            queues={"q1": replace(OURS, name="other", packing="spread")} if rng.random() < 0.2 else {},
        )

    def _configure(self, nested: bool) -> None:
        rng = self.rng
        for at, name in enumerate(self.names):
            above = self.names[rng.randrange(at)] if nested and at and rng.random() < 0.6 else None
            self.queues.put(
                Queue(
                    name,
                    weight=rng.choice([1, 1, 2, 7]),
                    parent=above,
                    priority=rng.choice([0, 0, 0, 1]),
                    order=rng.choice(["best-effort", "best-effort", "fifo"]),
                    cap=(rng.randint(0, 40) * 1_000,) if rng.random() < 0.1 else None,
                    paused=rng.random() < 0.05,
                    guarantee=(4_000,) if rng.random() < 0.02 else None,
                )
            )

    def _group(self, key: int) -> PodGroup:
        rng = self.rng
        more = {
            "queue": rng.choice(self.names),
            "user": rng.choice(["", "", "", "a", "b"]),
            "priority": rng.choice([0, 0, 0, 1]),
            "runtime_ms": rng.choice([None, 1_000, 100_000]),
            "ready_ms": NOW - rng.choice([0, 0, 1_000, HOUR, 3 * HOUR]),
            "promised_ms": rng.choice([None] * 20 + [NOW + 5_000]),
        }
        what = rng.choice([shape(1, 1)] * 12 + [shape(1, 2), shape(0, 0)])
        if rng.random() < 0.05:
            return gang(key, rng.choice([2, 5, 30]), what, **more)
        return bag(key, rng.choice([1, 1, 2, 5, 15, 16, 17, 40, 300]), what, **more)

    def decide(self) -> Plan:
        return cycle(self.snapshot, Catalogue(), self.queues, self.backlog, self.profile, NOW, self.most)


def departments(seed: int) -> World:
    """A world whose queues stand in departments, most of which have one group each."""
    world = World(seed)
    rng, world.queues, world.backlog = world.rng, QueueTree(), []
    for at in range(rng.randint(1, 4)):
        world.queues.put(Queue(f"d{at}", weight=rng.choice([1, 1, 3]), priority=rng.choice([0, 0, 0, 1])))
        for number in range(rng.randint(0, 7)):
            name = f"d{at}-{number}"
            weight, priority = rng.choice([1, 1, 2]), rng.choice([0, 0, 1])
            world.queues.put(Queue(name, parent=f"d{at}", weight=weight, priority=priority))
            if rng.random() < 0.3:
                where = rng.randrange(len(world.snapshot))
                claim(world.snapshot, name, where, rng.randint(1, 3), ClaimKind.RUNNING, queue=name)
            world.names = [name]
            world.backlog += [
                world._group(100 * at + 10 * number + each + 1)
                for each in range(rng.choice([0, 1, 1, 1, 1, 2]))
            ]
    return world


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken at once."""
    monkeypatch.setattr(cycle_module, "serve_first", lambda cycle, budget: set())


@given(st.integers(0, 1 << 32))
@settings(max_examples=400, deadline=None)
def test_a_wave_is_what_turns_would_give(seed: int) -> None:
    """Random trees, weights, users, priorities, ages, caps, kinds and windows: the same plan."""
    as_turns_would_give(World(seed))


@pytest.mark.parametrize("seed", range(300))
def test_departments_that_are_ordered_at_once_are_as_by_turns(seed: int) -> None:
    """Also where there is only one, and where some of their queues have several groups or none."""
    as_turns_would_give(departments(seed))


def as_turns_would_give(world: World) -> None:
    """The same plan, whether turns are taken at once or one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "FEW", 1)
        ours = told(world.decide())
    with pytest.MonkeyPatch.context() as patch:
        one_by_one(patch)
        plain = told(world.decide())
    assert ours == plain


def test_a_department_that_lags_behind_gets_more_than_was_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 queues of a department that has nothing, beside 28 of one that has much: of 26 pods each of the two gets 13."""
    made: list[int] = []
    real = batches._Level.__init__

    def noted(self: Any, *given: Any) -> None:
        made.append(given[-1])
        real(self, *given)

    monkeypatch.setattr(batches._Level, "__init__", noted)
    snapshot = Snapshot()
    for at in range(4):
        snapshot.put_node(node(f"n{at}", 64, 256))
    for at in range(28):
        claim(snapshot, f"c{at}", at % 4, 4, ClaimKind.RUNNING, queue=f"q{at + 2}")
    tree = QueueTree(Queue(f"q{at}", parent="lags" if at < 2 else "leads") for at in range(30))
    backlog = [bag(at + 1, 99, shape(1), queue=f"q{at}") for at in range(30)]
    plan = cycle(snapshot, Catalogue(), tree, backlog, OURS, 0, 26)
    assert {each.group: len(each.nodes[0]) for each in plan.placements} == {1: 13, 2: 13}
    assert made == [5, 16]  # pods of each queue that were looked at


def test_a_queue_that_has_nothing_gets_all_there_is() -> None:
    """Seven others have 20 cores each: 12 pods of one cycle are all its own, which is more than a queue is thought to get."""
    snapshot = Snapshot()
    snapshot.put_node(node("n0", 160, 640))
    for at in range(1, 8):
        claim(snapshot, f"c{at}", 0, 20, ClaimKind.RUNNING, queue=f"q{at}")
    some = [bag(at, 14, shape(1), queue=f"q{at}") for at in range(8)]
    plan = cycle(snapshot, Catalogue(), QueueTree(), some, OURS, 0, 12)
    assert [(each.group, len(each.nodes[0])) for each in plan.placements] == [(0, 12)]


def test_who_is_nominated_is_placed_once() -> None:
    """Ten queues, for the first of which a node is being left; the other node has room for all of them, and for none twice."""
    snapshot = Snapshot()
    for at in range(2):
        snapshot.put_node(node(f"n{at}", 10))
    snapshot.claim(Claim("leaving", 0, (10_000,), ClaimKind.RELEASING, "x", 0, None), Statement())
    snapshot.nominations[3] = Nomination(3, "q3", 1, ((0, (1_000,)),), ("leaving",), 60_000)
    some = [bag(at, 1, shape(1), queue=f"q{at}") for at in range(10)]
    plan = cycle(snapshot, Catalogue(), QueueTree([Queue("q3", priority=1)]), some, OURS, 0, 100)
    assert sorted((each.group, each.nodes[0].tolist()) for each in plan.placements) == [
        (at, [1]) for at in range(10)
    ]


def test_what_may_take_long_is_counted_on_late() -> None:
    """Ten queues fill a node at once, for 10 s, one of them perhaps for 100 s: who is promised its room is promised it for then."""
    snapshot = Snapshot()
    snapshot.put_node(node("n0", 10))
    some = [bag(at, 1, shape(1), queue=f"q{at}", runtime_ms=10_000) for at in range(10)]
    some[0] = structs.replace(some[0], high_ms=100_000)
    last = gang(20, 1, shape(10), queue="z")
    plan = cycle(snapshot, Catalogue(), QueueTree(), [*some, last], OURS, 0, 100)
    assert [(each.group, each.start_ms) for each in plan.reservations] == [(20, 100_000)]


def two_departments(first: tuple[int, ...], second: tuple[int, ...], asks: Shape) -> dict[str, int]:
    """What 8 pods of one cycle are, by department of four queues; what each holds, and what those of the first ask for."""
    snapshot, counts = Snapshot(), Counter[str]()
    snapshot.put_node(node("n0", 64, 64))
    for name, amount in (("a", first), ("b", second)):
        held = Claim(name, 0, amount, ClaimKind.RUNNING, f"{name}0", 0, None)
        snapshot.claim(held, Statement())
    names = [f"{name}{at}" for name in "ab" for at in range(4)] + [f"b{at}" for at in range(4, 9)]
    tree = QueueTree(Queue(name, parent=name[0]) for name in names)
    some = [bag(at, 9, asks if name[0] == "a" else shape(1, 0), queue=name) for at, name in enumerate(names)]
    with pytest.MonkeyPatch.context() as patch:
        one_by_one(patch)
        plain = told(cycle(snapshot, Catalogue(), tree, some, OURS, 0, 8))
    plan = cycle(snapshot, Catalogue(), tree, some, OURS, 0, 8)
    assert told(plan) == plain
    for each in plan.placements:
        counts[names[each.group][0]] += len(each.nodes[0])
    return dict(counts)


def test_a_department_stands_by_what_its_next_pod_asks_for() -> None:
    """One holds all memory, the other 8 of 64 cores: whoever asks for cores stands by cores alone."""
    assert two_departments((0, 60 * GIB), (16_000, 0), shape(1, 0)) == {"a": 8}


def test_a_department_that_asks_for_something_else_stands_by_that() -> None:
    """It holds half of all cores and no memory, which it asks for; the other holds a core: it goes first."""
    assert two_departments((32_000, 0), (1_000, 0), shape(0, 1)) == {"a": 5, "b": 3}


def test_many_queues_are_served_without_a_single_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten queues, two of weight 3 and one of priority 1, 30 pods: the first gets what it asks for, the others by weight."""

    def nobody(*_: object) -> None:
        raise AssertionError("a turn was taken")

    monkeypatch.setattr(
        cycle_module,
        "FairShareOrder",
        type("NoTurns", (), {"__init__": nobody, "none_looked_at": FairShareOrder.none_looked_at}),
    )
    snapshot = Snapshot()
    for at in range(4):
        snapshot.put_node(node(f"n{at}", 64))
    tree = QueueTree([Queue("q0", weight=3), Queue("q1", weight=3), Queue("q2", priority=1)])
    backlog = [bag(at + 1, 3 if at == 2 else 99, shape(1), queue=f"q{at}") for at in range(10)]
    plan = cycle(snapshot, Catalogue(), tree, backlog, OURS, 0, 30)
    assert {each.group: len(each.nodes[0]) for each in plan.placements} == {
        3: 3, 1: 7, 2: 6, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2, 9: 2, 10: 2,
    }  # fmt: skip
    assert [reason.group for reason in plan.reasons] == [1, 2, 4, 5, 6, 7, 8, 9, 10]


@given(st.lists(st.integers(0, (1 << 62) - 1), min_size=1, max_size=5), st.integers(1, (1 << 62) // 10 - 1))
@settings(deadline=None)
def test_shares_are_exact_beyond_64_bits(amounts: list[int], total: int) -> None:
    """Bytes of a large cluster times a billion need 80 bits: the result is that of whole numbers of any size."""
    amounts = [min(amount, total * 8) for amount in amounts]
    found = billionths(np.array(amounts, dtype=np.int64), total)
    assert found.tolist() == [amount * 10**9 // total for amount in amounts]
