"""What must hold of every plan, whatever the cluster and the backlog: found by hypothesis, checked by hand here."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import GIB, frozen, shape

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Plan, ReasonCode
from flowsched.scheduling.pod_group import PodGroup, RoleRequest
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import AXES, IO, Snapshot
from flowsched.statement import Statement
from flowsched.values import replace
from tests import soak

NOW = 1_000_000


class World:
    """A random cluster with claims, data, queues and a backlog."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.snapshot, self.catalogue = Snapshot(), Catalogue()
        self.nodes = int(self.rng.integers(1, 9))
        for at in range(self.nodes):
            self.snapshot.put_node(self.node(at))
        datasets = [
            self.catalogue.intern(f"s3://d{n}", int(self.rng.choice([0, 1, GIB, 40 * GIB])), bool(n % 4))
            for n in range(4)
        ]
        for dataset in datasets:
            for node in range(self.nodes):
                if self.pick(0.3):
                    self.catalogue.add_replica(dataset, node)
                elif self.pick(0.1):
                    self.catalogue.expect(dataset, node)
        for number in range(int(self.rng.integers(0, 12))):
            self.run(number)
        self.queues = QueueTree(
            [
                Queue("a", weight=3, parent="top"),
                Queue("b", cap=(6000,) if self.pick(0.5) else None, parent="top"),
                Queue("c", guarantee=(4000,), paused=self.pick(0.1)),
            ]
        )
        self.backlog = [self.group(key) for key in range(int(self.rng.integers(1, 9)))]

    def pick(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def node(self, at: int) -> NodeInfo:
        return NodeInfo(
            f"n{at}",
            int(self.rng.choice([1, 4, 8])) * 1000,
            int(self.rng.choice([4, 16])) * GIB,
            disk_bytes=100 * GIB,
            labels={"disk": str(self.rng.choice(["ssd", "hdd"]))},
            taints=(("gpu", "", "NoSchedule"),) if self.pick(0.15) else (),
            rack=f"r{at % 3}",
            disk_rate=int(self.rng.choice([0, 100, 500])) * 1_000_000,
            ready=not self.pick(0.1),
        )

    def run(self, number: int) -> None:
        node = int(self.rng.integers(self.nodes))
        free = self.snapshot.allocatable[node] - self.snapshot.used[node]
        kind = ClaimKind(int(self.rng.integers(0, 4)))
        cores = int(self.rng.integers(1, 4)) * 1000
        if kind is ClaimKind.STAGING or cores <= free[0]:
            until = None if self.pick(0.3) else int(NOW + self.rng.integers(-50_000, 500_000))
            amount = (cores, min(GIB, int(free[1])), 0, 0, 50_000_000 if free[IO] >= 50_000_000 else 0)
            claim = Claim(
                f"c{number}", node, amount, kind, "abx"[number % 3], NOW - 60_000, until, number % 2
            )
            self.snapshot.claim(claim, Statement())

    def group(self, key: int) -> PodGroup:
        gang = self.pick(0.6)
        rules = {
            "rack": str(self.rng.choice(["required", "preferred"])) if self.pick(0.3) else None,
            "one_per_node": self.pick(0.2),
            "selector": (("disk", "ssd"),) if self.pick(0.3) else (),
            "tolerations": (("gpu", "Exists", "", ""),) if self.pick(0.5) else (),
        }
        roles = []
        for number in range(int(self.rng.integers(1, 3)) if gang else 1):
            count = int(self.rng.integers(1, 7))
            what = shape(
                float(self.rng.choice([0, 0.5, 1, 2, 4])),
                int(self.rng.choice([0, 1, 4])),
                io=int(self.rng.choice([0, 0, 60, 900])) * 1_000_000,
                io_bytes=int(self.rng.choice([0, GIB])),
                **rules,
            )
            roles.append(RoleRequest(f"role{number}", what, count, int(self.rng.integers(1, count + 1))))
        inputs = tuple(int(d) for d in np.flatnonzero(self.rng.random(4) < 0.3))
        return PodGroup(
            key=key * 7 + 1,
            name=f"g{key}",
            queue=str(self.rng.choice(["a", "b", "c", "other"])),
            workflow=f"w{key % 3}",
            priority=int(self.rng.integers(0, 3)),
            rank_ms=int(self.rng.integers(0, 5)) * 1000,
            ready_ms=NOW - int(self.rng.integers(0, 3_000_000)),
            gang=gang,
            roles=tuple(roles),
            inputs=inputs,
            runtime_ms=None if self.pick(0.3) else int(self.rng.integers(1, 400_000)),
            min_resources=(6000, GIB) if gang and self.pick(0.2) else None,
            staged_on=(0,) if inputs and self.pick(0.2) else (),
        )

    def plan(self, profile: Profile = PROFILES["flowsched"]) -> Plan:
        return cycle(self.snapshot, self.catalogue, self.queues, self.backlog, profile, NOW)


worlds = st.integers(0, 2**40).map(World)


def pods(world: World, plan: Plan) -> list[tuple[PodGroup, RoleRequest, int, int]]:
    """(group, role, node, missing bytes) of every placed pod."""
    groups = {group.key: group for group in world.backlog}
    return [
        (groups[placement.group], role, int(node), int(missing))
        for placement in plan.placements
        for role, nodes, misses in zip(
            groups[placement.group].roles, placement.nodes, placement.missing_bytes, strict=True
        )
        for node, missing in zip(nodes, misses, strict=True)
    ]


def binds(world: World, plan: Plan) -> list[tuple[PodGroup, RoleRequest, int, int]]:
    """The pods that start now: a gang with any missing byte is a target as a whole."""
    targets = {
        placement.group
        for placement in plan.placements
        if any(missing.any() for missing in placement.missing_bytes)
    }
    return [pod for pod in pods(world, plan) if pod[3] == 0 and not (pod[0].gang and pod[0].key in targets)]


def taken(world: World, chosen: list[tuple[PodGroup, RoleRequest, int, int]]) -> np.ndarray:
    """(N, R) what these pods take, disk bandwidth clamped to the node's."""
    room = np.zeros_like(world.snapshot.used)
    for _, role, node, _ in chosen:
        amount = np.array(role.shape.requests)
        amount[IO] = min(amount[IO], world.snapshot.allocatable[node, IO])
        room[node] += amount
    return room


@given(worlds)
@pytest.mark.soak
@settings(max_examples=soak.worlds(120, 1500), deadline=None)
def test_no_node_gives_more_than_it_has(world: World) -> None:
    """What starts now fits beside what holds room, on every node and axis."""
    after = world.snapshot.used + taken(world, binds(world, world.plan()))
    assert (after <= np.maximum(world.snapshot.allocatable, world.snapshot.used)).all()


@given(worlds)
@pytest.mark.soak
@settings(max_examples=soak.worlds(120, 1500), deadline=None)
def test_targets_stay_within_soft_room(world: World) -> None:
    """Targets and what starts now together are never more than nodes have free; targets avoid others' targets."""
    plan = world.plan()
    free = world.snapshot.allocatable - world.snapshot.used
    everything = taken(world, pods(world, plan))
    starting = taken(world, binds(world, plan))
    assert (starting <= np.maximum(free, 0)).all()
    targets = everything - starting
    soft = np.maximum(free - world.snapshot.staging, 0)
    assert (targets <= soft).all()


@given(worlds, st.sampled_from(["flowsched", "kube-like"]))
@pytest.mark.soak
@settings(max_examples=soak.worlds(80, 1000), deadline=None)
def test_filters_are_respected(world: World, profile: str) -> None:
    """No pod is on a node that is not ready, lacks its label or has a taint it does not tolerate."""
    for group, role, node, _ in pods(world, world.plan(PROFILES[profile])):
        assert world.snapshot.ready[node], group
        assert all(world.snapshot.labels[node].get(key) == value for key, value in role.shape.selector)
        assert not world.snapshot.taints[node] or role.shape.tolerations


@given(worlds)
@pytest.mark.soak
@settings(max_examples=soak.worlds(120, 1500), deadline=None)
def test_a_gang_gets_every_minimum_or_nothing(world: World) -> None:
    """Each role has at least its minimum and at most its count; nothing is placed twice."""
    groups = {group.key: group for group in world.backlog}
    plan = world.plan()
    keys = [placement.group for placement in plan.placements]
    assert len(keys) == len(set(keys))
    for placement in plan.placements:
        group = groups[placement.group]
        for role, nodes in zip(group.roles, placement.nodes, strict=True):
            assert (role.minimum if group.gang else 1) <= len(nodes) <= role.count


@given(worlds)
@pytest.mark.soak
@settings(max_examples=soak.worlds(80, 1000), deadline=None)
def test_racks_and_one_per_node_are_kept(world: World) -> None:
    """A gang that requires a rack is in one; pods that want a node for themselves have it within their gang."""
    for placement in world.plan().placements:
        group = next(g for g in world.backlog if g.key == placement.group)
        nodes = np.concatenate(placement.nodes)
        if not group.gang:
            continue
        if any(role.shape.rack == "required" for role in group.roles):
            assert len(set(world.snapshot.rack[nodes].tolist())) == 1
        if any(role.shape.one_per_node for role in group.roles):
            assert len(set(nodes.tolist())) == len(nodes)


@given(worlds, st.sampled_from(["flowsched", "kube-like"]))
@pytest.mark.soak
@settings(max_examples=soak.worlds(80, 1000), deadline=None)
def test_caps_hold_and_paused_queues_start_nothing(world: World, profile: str) -> None:
    """Queue b never holds more than its cap through this plan; a paused queue gets nothing."""
    plan = world.plan(PROFILES[profile])
    given_to = dict.fromkeys("abc", 0)
    for group, role, _, _ in pods(world, plan):
        if group.queue in given_to:
            given_to[group.queue] += role.shape.requests[0]
    cap = world.queues.get("b").cap
    if cap is not None and given_to["b"]:
        assert world.snapshot.queue_usage("b")[0] + given_to["b"] <= cap[0]
    if world.queues.get("c").paused:
        assert given_to["c"] == 0


@given(worlds, st.sampled_from(["flowsched", "kube-like"]))
@pytest.mark.soak
@settings(max_examples=soak.worlds(80, 1000), deadline=None)
def test_a_cycle_changes_nothing_and_repeats_itself(world: World, profile: str) -> None:
    """Every array and set is as before, byte by byte; a second call, and one in another order, decide the same."""
    before = frozen(world.snapshot)
    replicas = [world.catalogue.nodes_of(d) for d in range(4)]
    expected = [world.catalogue.expected_on(d) for d in range(4)]
    claims, backlog = dict(world.snapshot.claims), copy.deepcopy(world.backlog)
    first = world.plan(PROFILES[profile])
    assert frozen(world.snapshot) == before
    assert [world.catalogue.nodes_of(d) for d in range(4)] == replicas
    assert [world.catalogue.expected_on(d) for d in range(4)] == expected
    assert (world.snapshot.claims, world.backlog) == (claims, backlog)
    assert said(world.plan(PROFILES[profile])) == said(first)
    world.backlog.reverse()
    world.snapshot.cache.clear()
    assert said(world.plan(PROFILES[profile])) == said(first)


def said(plan: Plan) -> object:
    return (
        [
            (p.group, [n.tolist() for n in p.nodes], [m.tolist() for m in p.missing_bytes], p.cost_ms)
            for p in plan.placements
        ],
        [(r.group, r.start_ms, [n.tolist() for n in r.nodes]) for r in plan.reservations],
        plan.reasons,
        plan.looked_at,
    )


@given(worlds, st.sampled_from(["flowsched", "kube-like"]))
@pytest.mark.soak
@settings(max_examples=soak.worlds(120, 1500), deadline=None)
def test_every_group_that_waits_has_a_reason(world: World, profile: str) -> None:
    """What is not placed as a whole is explained once, in words; what is, is not."""
    plan = world.plan(PROFILES[profile])
    reasons = [reason.group for reason in plan.reasons]
    assert len(reasons) == len(set(reasons))
    placed = {p.group: sum(len(nodes) for nodes in p.nodes) for p in plan.placements}
    for group in world.backlog:
        wanted = sum(role.count for role in group.roles)
        least = sum(role.minimum for role in group.roles) if group.gang else wanted
        if placed.get(group.key, 0) < (least if profile == "flowsched" else wanted):
            assert group.key in reasons
        if placed.get(group.key, 0) == wanted:
            assert group.key not in reasons
    assert all(reason.message and isinstance(reason.code, ReasonCode) for reason in plan.reasons)


@given(worlds)
@pytest.mark.soak
@settings(max_examples=soak.worlds(80, 1000), deadline=None)
def test_what_is_backfilled_never_delays_the_promise(world: World) -> None:
    """If all ends are as estimated, the promised room is free at the promised time, with all that was started."""
    plan = world.plan()
    if not plan.reservations:
        return
    held = plan.reservations[0]
    groups = {group.key: group for group in world.backlog}
    used = np.zeros_like(world.snapshot.used)
    for claim in world.snapshot.claims.values():
        if claim.kind is not ClaimKind.STAGING and ends(claim) > held.start_ms:
            used[claim.node, : len(claim.amount)] += claim.amount
    default = PROFILES["flowsched"].default_runtime_ms
    for group, role, node, _ in binds(world, plan):
        runtime = default if group.runtime_ms is None else group.runtime_ms
        if NOW + runtime > held.start_ms:
            used += taken(world, [(group, role, node, 0)])
    promise = [
        (groups[held.group], role, int(node), 0)
        for role, nodes in zip(groups[held.group].roles, held.nodes, strict=True)
        for node in nodes
    ]
    wanted = taken(world, promise)
    assert (used + wanted <= world.snapshot.allocatable).all(where=wanted > 0)


def ends(claim: Claim) -> int:
    default = PROFILES["flowsched"].default_runtime_ms
    end = claim.since_ms + default if claim.until_ms is None else claim.until_ms
    if end <= NOW:
        end = NOW + max(1000, (NOW - claim.since_ms) // 10)
    return min(end, NOW + 10_000) if claim.kind is ClaimKind.RELEASING else end


@given(worlds)
@settings(max_examples=100, deadline=None)
def test_the_window_bounds_the_work(world: World) -> None:
    """No more groups are looked at than the profile says; the others are told, some by the reason of one that is like them."""
    plan = world.plan(replace(PROFILES["flowsched"], window=2))
    assert plan.looked_at <= 2
    unseen = [reason for reason in plan.reasons if reason.code is ReasonCode.BACKLOG_WINDOW]
    assert len(unseen) <= len(world.backlog) - plan.looked_at
    told = {reason.group for reason in plan.reasons} | {placed.group for placed in plan.placements}
    assert told == {group.key for group in world.backlog}


@given(st.integers(0, 2**40))
@pytest.mark.soak
@settings(max_examples=soak.worlds(80, 1000), deadline=None)
def test_a_statement_rolls_everything_back(seed: int) -> None:
    """Claims, nodes (new, changed, with new resources) and replicas are taken back to the last byte."""
    world = World(seed)
    rng, snapshot, catalogue = world.rng, world.snapshot, world.catalogue
    before, claims = frozen(snapshot), dict(snapshot.claims)
    usage = {name: snapshot.queue_usage(name) for name in (*snapshot.paying_queues, "a", "zz")}
    replicas = [catalogue.nodes_of(d) for d in range(4)]
    names, axes = list(snapshot.names), snapshot.axes
    statement = Statement()
    for step in range(int(rng.integers(1, 40))):
        node = int(rng.integers(len(snapshot)))
        match int(rng.integers(0, 6)):
            case 0:
                info = NodeInfo(f"n{node}", 2000, GIB, labels={"disk": str(step)}, rack=f"x{step}")
                snapshot.put_node(info, statement)
            case 1:
                extended = {"example.com/fpga": step} if rng.random() < 0.3 else {}
                snapshot.put_node(NodeInfo(f"new{step}", 2000, GIB, extended=extended), statement)
            case 2 | 3:
                kind = ClaimKind(int(rng.integers(0, 4)))
                owner = f"c{int(rng.integers(0, 14))}"
                snapshot.claim(Claim(owner, node, (100, 5), kind, "zz", step, None, step % 2), statement)
            case 4:
                snapshot.unclaim(f"c{int(rng.integers(0, 14))}", statement)
            case _:
                change = catalogue.add_replica if rng.random() < 0.5 else catalogue.drop_replica
                change(int(rng.integers(4)), node, statement)
    statement.rollback()
    after = frozen(snapshot)
    grown = {name for name in after if name.startswith("ledger.")}
    assert {n: v for n, v in after.items() if n not in grown} == {
        n: v for n, v in before.items() if n not in grown
    }
    assert (dict(snapshot.claims), snapshot.names, snapshot.axes) == (claims, names, axes)
    assert {name: snapshot.queue_usage(name) for name in usage} == usage
    assert [catalogue.nodes_of(d) for d in range(4)] == replicas
    assert snapshot.index == {name: at for at, name in enumerate(names)}


def test_the_axes_have_the_order_others_rely_on() -> None:
    """A contract: engines and executors build vectors in this order."""
    assert AXES == ("cpu", "memory", "disk", "gpu", "io")
