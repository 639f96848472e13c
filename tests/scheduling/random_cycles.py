"""Random cycles as files: data, queues, claims, NUMA zones, parts of GPUs, rules, and takers of room, under several policies."""

from __future__ import annotations

import random
from typing import Any

import rule_cases
from test_cycle_safety import NOW
from test_cycle_safety import World as DataWorld
from test_devices import random_world as gpu_world
from test_preemption_safety import World as FullWorld
from test_zones import aligned, with_zones

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.recording import recorded
from flowsched.scheduling.pod_group import PodGroup, RoleRequest
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.data import Catalogue
from flowsched.values import replace

DEFAULT = PROFILES["flowsched"]
POLICIES = (
    DEFAULT,
    replace(DEFAULT, name="spread", packing="spread", order="shortest"),
    replace(DEFAULT, name="both", queues={"a": replace(DEFAULT, name="blind", locality=False)}),
    PROFILES["kube-like"],
)


def with_data(seed: int, profile: Profile) -> tuple[Any, ...]:
    """Nodes with replicas, claims of every kind, a tree of queues."""
    world = DataWorld(seed)
    return (world.snapshot, world.catalogue, world.queues, world.backlog, profile, NOW, None)


def with_rules(seed: int, profile: Profile) -> tuple[Any, ...]:
    """Pods on nodes and pods that wait, all with rules about each other."""
    rng = random.Random(seed)
    snapshot = rule_cases.snapshot_of(rule_cases.world(rng, rng.randint(2, 9), rng.randint(0, 12)))
    groups = []
    for key in range(1, rng.randint(2, 6)):
        shape = rule_cases.shape_of(rule_cases.pod(rng, len(snapshot)))
        count = rng.randint(1, 4)
        role = RoleRequest("worker", shape, count, count)
        groups.append(
            PodGroup(key, f"g{key}", rng.choice("ab"), f"w{key % 2}", 0, key * 100, NOW, key % 2 > 0, (role,))
        )
    return (snapshot, Catalogue(), QueueTree([Queue("a", weight=2)]), groups, profile, NOW, None)


def with_numa(seed: int, profile: Profile) -> tuple[Any, ...]:
    """Nodes whose kubelets align pods to zones."""
    rng = random.Random(seed)
    sizes = [tuple(rng.randint(2, 8) for _ in range(rng.randint(1, 3))) for _ in range(3)]
    snapshot = with_zones(*sizes)
    groups = [
        PodGroup(key, f"g{key}", "a", "w", 0, 0, NOW, True,
                 (RoleRequest("worker", aligned(rng.randint(1, 4)), 2, rng.randint(1, 2)),))
        for key in range(1, 4)
    ]  # fmt: skip
    return (snapshot, Catalogue(), QueueTree(), groups, profile, NOW, None)


def with_gpus(seed: int, profile: Profile) -> tuple[Any, ...]:
    """Parts of GPUs held and asked for, and room that may be taken back."""
    snapshot, groups = gpu_world(seed)
    return (snapshot, Catalogue(), QueueTree(), groups, profile, NOW, None)


def with_takers(seed: int, profile: Profile) -> tuple[Any, ...]:
    """A full cluster, groups that may take room, and (every other time) those for whom room is being freed."""
    world = FullWorld(seed)
    if seed % 2:
        for nomination in world.decide().nominations:
            world.snapshot.nominations[nomination.group] = nomination
    return (world.snapshot, Catalogue(), world.queues, world.backlog, profile, NOW, None)


KINDS = {"data": with_data, "rules": with_rules, "numa": with_numa, "gpus": with_gpus, "takers": with_takers}


def random_cycle(kind: str, seed: int) -> tuple[Any, ...]:
    """The arguments of a cycle."""
    return KINDS[kind](seed, POLICIES[seed % len(POLICIES)])


def random_file(kind: str, seed: int) -> bytes:
    """Its file, with what it decided."""
    arguments = random_cycle(kind, seed)
    return recorded(cycle(*arguments), *arguments).packed()
