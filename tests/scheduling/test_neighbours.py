"""Rules between pods and nodes against the oracle that reads Kubernetes' documentation pod by pod, node by node."""

from __future__ import annotations

import random

import numpy as np
import plain_rules
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_rules import PlainPod, World
from rule_cases import pod, put, shape_of, snapshot_of, world

from flowsched.executor.constraints import Rules, canonical, narrowed, watched_by
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.feasibility import allowed_nodes, beside_others
from flowsched.scheduling.placement.capacity import Capacity
from flowsched.scheduling.placement.cost_table import price
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace
from tests.soak import worlds

OURS = replace(PROFILES["flowsched"], locality=False, contention=False)


def feasible(snapshot: Snapshot, shape: Shape) -> list[str]:
    """The names of the nodes where flowsched would let a pod of the shape run now."""
    mask = allowed_nodes(snapshot, shape, OURS.all_filters()).mask
    mask, _ = beside_others(snapshot, shape, mask)
    free = snapshot.allocatable - snapshot.used
    for axis, need in enumerate(shape.requests):
        if need:
            mask = mask & (free[:, axis] >= need)
    return [snapshot.names[at] for at in np.flatnonzero(mask)]


def group(roles: list[tuple[PlainPod, int, int]], gang: bool = True, key: int = 1) -> PodGroup:
    wanted = tuple(
        RoleRequest(f"role-{at}", shape_of(one), count, least) for at, (one, count, least) in enumerate(roles)
    )
    return PodGroup(key, f"g{key}", "default", "w", 0, 0, 0, gang, wanted, runtime_ms=1000)


@given(st.integers(0, 2**40), st.integers(1, 12), st.integers(0, 25))
@pytest.mark.soak
@settings(max_examples=worlds(120, 2000), deadline=None)
def test_the_feasible_nodes_are_those_of_the_documentation(seed: int, nodes: int, pods: int) -> None:
    """Ten random pods among random neighbours, and each joins them wherever that is allowed."""
    rng = random.Random(seed)
    there = world(rng, nodes, pods)
    snapshot = snapshot_of(there)
    for number in range(10):
        one = pod(rng, nodes)
        expected = there.feasible(one)
        assert feasible(snapshot, shape_of(one)) == expected
        if expected:
            name = rng.choice(expected)
            there.place(one, next(node for node in there.nodes if node.name == name))
            put(snapshot, f"new-{number}", there.pods[-1])


def test_the_random_cases_are_hard_enough() -> None:
    """Of 1,000 random pods some hundred are refused somewhere by each rule, and some hundred may run somewhere."""
    refused = dict.fromkeys(("ports", "spread", "affinity", "anti_affinity", "others_anti_affinity"), 0)
    runs = 0
    for seed in range(250):
        rng = random.Random(seed)
        there = world(rng, 8, 20)
        for _ in range(4):
            one = pod(rng, 8)
            for rule in refused:
                refused[rule] += not all(getattr(there, rule)(one, node) for node in there.nodes)
            runs += 0 < len(there.feasible(one)) < 8
    assert min(refused.values()) > 80, refused
    assert runs > 300


@given(st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_equal_demands_in_another_order_are_the_same_shape_with_the_same_nodes(seed: int) -> None:
    """Terms, labels and volumes have no order, and repeats of required terms say nothing new."""
    rng = random.Random(seed)
    there = world(rng, 8, 20)
    one = pod(rng, 8, much=0.6)
    rules = one.rules
    other = replace(
        rules,
        labels=tuple(reversed(rules.labels)),
        nodes=None if rules.nodes is None else tuple(reversed(rules.nodes)) * 2,
        volumes=tuple(tuple(reversed(terms)) for terms in reversed(rules.volumes)),
        ports=tuple(reversed(rules.ports)) * 2,
        affinity=tuple(reversed(rules.affinity)) * 2,
        anti_affinity=tuple(reversed(rules.anti_affinity)) * 2,
        spread=tuple(reversed(rules.spread)),
    )
    assert canonical(other) == rules
    assert hash(canonical(other)) == hash(rules)
    raw = PlainPod(other, one.selector, one.tolerations, one.requests)
    assert feasible(snapshot_of(there), shape_of(raw)) == feasible(snapshot_of(there), shape_of(one))


@given(st.integers(0, 2**40))
@pytest.mark.soak
@settings(max_examples=worlds(60, 750), deadline=None)
def test_labels_that_nobody_looks_at_change_nothing(seed: int) -> None:
    """With labels narrowed to those that somebody's selectors name, every pod may run on the same nodes."""
    rng = random.Random(seed)
    there = world(rng, 8, 15)
    waiting = [pod(rng, 8) for _ in range(4)]
    watched = watched_by(one.rules for one in (*there.pods, *waiting))
    fewer = [replace(one, rules=narrowed(one.rules, watched) or Rules()) for one in (*there.pods, *waiting)]
    small = snapshot_of(World(there.nodes, fewer[: len(there.pods)], there.namespaces))
    for one, less in zip(waiting, fewer[len(there.pods) :], strict=True):
        assert feasible(small, shape_of(less)) == there.feasible(one)


def chosen_by_greedy(there: World, roles: list[tuple[PlainPod, int, int]]) -> list[list[str]] | None:
    """Pod by pod, minimums first: the allowed node that is fullest afterwards, then the first."""
    chosen: list[list[str]] = [[] for _ in roles]
    for extras in (False, True):
        for at, (one, count, least) in enumerate(roles):
            while len(chosen[at]) < (count if extras else least):
                offers = []
                for number, node in enumerate(there.nodes):
                    if there.allows(one, node):
                        used = sum(other.requests["cpu"] for other in there.on(node))
                        left = node.room["cpu"] - used - one.requests["cpu"]
                        share = left * 1000 // node.room["cpu"] if one.requests["cpu"] else 0
                        offers.append((share, number))
                if not offers:
                    if not extras:
                        return None
                    break
                home = there.nodes[min(offers)[1]]
                there.place(one, home)
                chosen[at].append(home.name)
    return chosen


@given(st.integers(0, 2**40), st.integers(1, 10), st.integers(1, 2), st.booleans())
@pytest.mark.soak
@settings(max_examples=worlds(120, 2000), deadline=None)
def test_groups_with_rules_are_placed_as_pod_by_pod(seed: int, nodes: int, roles: int, gang: bool) -> None:
    """What a careful greedy chooses that looks again after each pod; a gang it gets into a dead end may do better."""
    rng = random.Random(seed)
    there = world(rng, nodes, 10)
    wanted = []
    for _ in range(roles if gang else 1):
        count = rng.randint(1, 6)
        wanted.append((pod(rng, nodes, much=0.4), count, rng.randint(1, count) if gang else 1))
    snapshot = snapshot_of(there)
    before = {name: array.copy() for name, array in (("used", snapshot.used), ("version", snapshot.version))}
    what = group(wanted, gang)
    request = price(what, snapshot, Catalogue(), OURS)
    room = Capacity(snapshot)
    placed = request.place([room.hard(axis) for axis in request.axes], room, snapshot, OURS)
    found = None
    if placed is not None:
        found = [[snapshot.names[at] for at in chosen.nodes] for chosen in placed]
    in_order = [wanted[role] for role in request.order]
    world_before = list(there.pods)
    expected = chosen_by_greedy(there, in_order)
    if expected is None and found is not None:
        assert any(one.rules.affinity for one, _, _ in wanted)
        there.pods[:] = world_before
        assert replayed(there, in_order, found)
    else:
        assert found == expected
    assert all((array == getattr(snapshot, name)).all() for name, array in before.items())


def replayed(there: World, roles: list[tuple[PlainPod, int, int]], found: list[list[str]]) -> bool:
    """Whether each pod, in order, was allowed on its node: minimums first, then what goes beyond."""
    for extras in (False, True):
        for (one, _, least), names in zip(roles, found, strict=True):
            for name in names[least:] if extras else names[:least]:
                node = next(node for node in there.nodes if node.name == name)
                if not there.allows(one, node):
                    return False
                there.place(one, node)
    return all(len(names) >= least for (_, _, least), names in zip(roles, found, strict=True))


@given(st.integers(0, 2**40), st.booleans())
@pytest.mark.soak
@settings(max_examples=worlds(60, 750), deadline=None)
@example(seed=0, kube_like=False)
def test_whatever_a_cycle_places_was_allowed_when_it_was_placed(seed: int, kube_like: bool) -> None:
    """Gangs and bags that see each other; nothing is left behind among the peers, and the cycle repeats itself."""
    rng = random.Random(seed)
    nodes = rng.randint(1, 8)
    there = world(rng, nodes, 8)
    snapshot = snapshot_of(there)
    plain = [[(pod(rng, nodes, much=0.3), rng.randint(1, 4), 1)] for _ in range(5)]
    backlog = []
    for key, roles in enumerate(plain):
        gang = rng.random() < 0.5
        roles = [(one, count, count if gang else 1) for one, count, _ in roles]
        plain[key] = roles
        backlog.append(group(roles, gang, key))
    profile = PROFILES["kube-like"] if kube_like else OURS
    plan = cycle(snapshot, Catalogue(), QueueTree(), backlog, profile, 0)
    again = cycle(snapshot, Catalogue(), QueueTree(), backlog, profile, 0)
    assert [[n.tolist() for n in p.nodes] for p in plan.placements] == [
        [n.tolist() for n in p.nodes] for p in again.placements
    ]
    assert [reason.message for reason in plan.reasons] == [reason.message for reason in again.reasons]
    if kube_like:
        assert sum(len(nodes) for p in plan.placements for nodes in p.nodes) <= 20
        return
    for placement in plan.placements:
        found = [[snapshot.names[at] for at in nodes] for nodes in placement.nodes]
        assert replayed(there, plain[placement.group], found)


@given(st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_pod_by_pod_clusters_keep_the_rules_too(seed: int) -> None:
    """One pod of each of several groups: placed one after another in order of their keys, each is allowed."""
    rng = random.Random(seed)
    nodes = rng.randint(1, 8)
    there = world(rng, nodes, 8)
    snapshot = snapshot_of(there)
    pods = [pod(rng, nodes, much=0.4) for _ in range(6)]
    backlog = [group([(one, 1, 1)], False, key) for key, one in enumerate(pods)]
    plan = cycle(snapshot, Catalogue(), QueueTree(), backlog, PROFILES["kube-like"], 0)
    placed = {p.group: snapshot.names[int(p.nodes[0][0])] for p in plan.placements}
    for key, one in enumerate(pods):
        allowed = there.feasible(one)
        assert (key in placed) == bool(allowed)
        if key in placed:
            assert placed[key] in allowed
            there.place(one, next(node for node in there.nodes if node.name == placed[key]))


@given(st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_what_was_supposed_is_forgotten_by_a_rollback(seed: int) -> None:
    """Claims put and taken back leave the same nodes feasible as if they had never been, whoever asked meanwhile."""
    rng = random.Random(seed)
    there = world(rng, 6, 10)
    snapshot = snapshot_of(there)
    asking = [shape_of(pod(rng, 6, much=0.5)) for _ in range(4)]
    before = [feasible(snapshot, shape) for shape in asking[:2]]
    statement = Statement()
    for number in range(6):
        one = replace(pod(rng, 6), node=rng.choice(there.nodes))
        at = snapshot.index[one.node.name]  # type: ignore[union-attr]
        if rng.random() < 0.5:
            snapshot.unclaim(f"pod-{rng.randrange(10)}", statement)
        snapshot.peers.put(one.rules, [at] * rng.randint(1, 2), statement)
        feasible(snapshot, asking[number % 4])
    statement.rollback()
    fresh = snapshot_of(there)
    assert [feasible(snapshot, shape) for shape in asking[:2]] == before
    assert [feasible(snapshot, shape) for shape in asking] == [feasible(fresh, shape) for shape in asking]


def test_the_oracle_shares_no_code_with_what_it_judges() -> None:
    """It imports the values only."""
    imported = [
        name for name, value in vars(plain_rules).items() if "flowsched" in getattr(value, "__module__", "")
    ]
    assert set(imported) <= {"HostPort", "NodeTerm", "PodTerm", "Requirement", "Rules", "Spread", "Selector"}
