"""Feasibility: the nodes on which pods of a canonical shape may run at all, by the rules of nodes and of other pods.

Placement works on shapes and counts. A shape is canonical: it leaves out what does not matter and sorts the rest, so that equal
pods share one mask, computed once for each generation of the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.executor.constraints import Rules
from flowsched.executor.selectors import collide, selects, term_selects
from flowsched.scheduling.pod_group import Shape
from flowsched.scheduling.policy.framework import (
    APART_FILTERS,
    BUILT_IN_FILTERS,
    NODE_FILTERS,
    TOGETHER_FILTERS,
    Filter,
)
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.workflow import spec


class Allowed(msgspec.Struct, frozen=True, eq=False):
    """Where pods of a shape may run.

    Args:
        mask: (N,) True on ready nodes that pass every filter. Read-only.
        refusals: For each filter in turn, what is wrong and with how many ready nodes that passed those
            before.
        count: How many nodes are allowed.
    """

    mask: NDArray[np.bool_]
    refusals: tuple[tuple[str, int], ...]
    count: int


def shape_of(
    snapshot: Snapshot,
    resources: spec.Resources,
    rules: spec.Rules,
    io: int = 0,
    io_bytes: int = 0,
    image: str | None = None,
) -> Shape:
    """The canonical shape of a pod.

    Args:
        snapshot: For its axes.
        resources: The request of one pod.
        rules: Where it may run.
        io: Bytes/s of node disk bandwidth it needs.
        io_bytes: Bytes it reads and writes on the node's disk.
        image: Its container image.
    """
    rows = {
        (t.key, t.operator, "" if t.operator == "Exists" else t.value, t.effect) for t in rules.tolerations
    }
    return Shape(
        requests=snapshot.vector(resources, io),
        selector=tuple(sorted(rules.selector.items())),
        tolerations=tuple(sorted(rows)),
        io_bytes=io_bytes,
        image=image,
        rack=rules.rack,
        one_per_node=rules.one_per_node,
    )


def allowed_nodes(snapshot: Snapshot, shape: Shape, filters: tuple[Filter, ...]) -> Allowed:
    """Where pods of the shape may run as far as nodes alone decide it, remembered until a node changes."""
    key: tuple[object, ...] = ("allowed", shape, filters)
    if filters == BUILT_IN_FILTERS:  # they look at these only: shapes that differ in size share a mask
        aligned = shape.requests if snapshot.zones.is_aligned(shape.requests) else None
        key = ("allowed", shape.selector, shape.tolerations, aligned, shape.rules)
    if shape.rules is not None:
        filters += NODE_FILTERS
    found = snapshot.cache.get(key)
    if found is None:
        found = snapshot.cache[key] = _judge(snapshot, shape, filters)
    allowed: Allowed = found
    return allowed


def _judge(snapshot: Snapshot, shape: Shape, filters: tuple[Filter, ...]) -> Allowed:
    mask = snapshot.ready.copy()
    refusals = []
    left = int(mask.sum())
    for judge in filters:
        passed, reason = judge(snapshot, shape)
        mask &= passed
        now = int(mask.sum())
        if now < left:
            refusals.append((reason, left - now))
        left = now
    mask.setflags(write=False)
    return Allowed(mask, tuple(refusals), left)


def most_of(snapshot: Snapshot, shape: Shape, axis: int, filters: tuple[Filter, ...]) -> int:
    """The most of one resource that a pod of a shape can ever get: of the nodes that allow it and have its other requests in all.

    Nodes count ready or not. Room of pods without a queue does not count: these are the system's, and never leave.

    Returns:
        0 where there is no such node.
    """
    outside = snapshot.queue_usage("")
    key = ("most", axis, shape.requests, shape.selector, shape.tolerations, shape.rules, filters, outside)
    found = snapshot.cache.get(key)
    if found is None:
        room = snapshot.allocatable
        if any(outside):
            ledger, room = snapshot.ledger, room.copy()
            others = np.isin(ledger.kind, (ClaimKind.RUNNING, ClaimKind.RELEASING))
            others &= ledger.queue == ledger.queues.index("")
            np.subtract.at(room, ledger.node[others], ledger.amount[others])
        enough = room >= np.array(shape.requests, dtype=np.int64)
        enough[:, axis] = True
        mask = enough.all(axis=1)
        for judge in filters if shape.rules is None else filters + NODE_FILTERS:
            mask &= judge(snapshot, shape)[0]
        found = snapshot.cache[key] = int(room[mask, axis].max(initial=0))
    most: int = found
    return most


def all_but(nodes: int, shut: Sequence[int]) -> NDArray[np.bool_]:
    """(N,) all nodes but some."""
    mask = np.ones(nodes, dtype=np.bool_)
    mask[list(shut)] = False
    return mask


# ---- rules between pods ----
#
# If the members of a group have no rules about each other, the rules only add a mask. Otherwise the group is placed pod by pod
# (`placement.one_by_one`): the next pod's nodes depend on the last pod's node.


Mask = NDArray[np.bool_]
Refusals = tuple[tuple[str, int], ...]


class InterPodAffinity(msgspec.Struct, frozen=True, eq=False):
    """The effect of rules between pods on a group's roles, in the order of its tables.

    Args:
        shapes: The roles' shapes.
        masks: For each role, (N,) where other pods let it be; if `mutual`, as far as its own members cannot change it.
        refusals: For each role, the reasons that keep it off nodes that allow it, each with the number of nodes.
        mutual: Its members look at each other.
    """

    shapes: tuple[Shape, ...]
    masks: tuple[Mask, ...]
    refusals: tuple[Refusals, ...]
    mutual: bool


def affinity_of(
    snapshot: Snapshot, roles: Sequence[tuple[Shape, int]], allowed: Sequence[Mask]
) -> InterPodAffinity | None:
    """How rules between pods bear on a group; None = not at all.

    Args:
        snapshot: Nodes, and the pods on them.
        roles: For each role its shape and how many pods it has.
        allowed: For each role, (N,) where nodes alone would let it be.
    """
    if all(shape.rules is None for shape, _ in roles):
        return None
    mutual = _depend_on_each_other(snapshot, roles)
    filters = APART_FILTERS if mutual else APART_FILTERS + TOGETHER_FILTERS
    judged = [
        beside_others(snapshot, shape, mask, filters) for (shape, _), mask in zip(roles, allowed, strict=True)
    ]
    if not mutual and not any(refusals for _, refusals in judged):
        return None
    shapes = tuple(shape for shape, _ in roles)
    return InterPodAffinity(
        shapes, tuple(mask for mask, _ in judged), tuple(why for _, why in judged), mutual
    )


def beside_others(
    snapshot: Snapshot,
    shape: Shape,
    allowed: Mask,
    filters: tuple[Filter, ...] = APART_FILTERS + TOGETHER_FILTERS,
) -> tuple[Mask, Refusals]:
    """Where the pods that are on nodes now let a pod be.

    Args:
        snapshot: Nodes, and the pods on them.
        shape: The pod.
        allowed: (N,) where nodes alone would let it be. Not modified.
        filters: Which rules to ask.

    Returns:
        (N,) where it may be, and the reasons that keep it off allowed nodes, each with the number of nodes.
    """
    mask = allowed
    refusals = []
    if shape.rules is not None:
        left = int(mask.sum())
        for judge in filters:
            passed, reason = judge(snapshot, shape)
            mask = mask & passed
            now = int(mask.sum())
            if now < left:
                refusals.append((reason, left - now))
            left = now
    return mask, tuple(refusals)


def _depend_on_each_other(snapshot: Snapshot, roles: Sequence[tuple[Shape, int]]) -> bool:
    """Whether where one member is may matter to another."""
    ruled = [(at, shape.rules) for at, (shape, _) in enumerate(roles) if shape.rules is not None]
    return any(
        _depends_on(snapshot, looking, target)
        for one, looking in ruled
        if looking.about_pods or looking.wishes
        for other, target in ruled
        if one != other or roles[one][1] > 1
    )


def _depends_on(snapshot: Snapshot, looking: Rules, target: Rules) -> bool:
    """Whether a pod of some rules looks at a pod of others. Being looked at by guards works both ways round: the caller asks
    for both.
    """
    labels = dict(target.labels)
    namespaces = snapshot.peers.namespaces
    return (
        any(
            term_selects(term, target.namespace, labels, namespaces)
            for term in (*looking.affinity, *looking.anti_affinity, *(t for _, t in looking.preferred_pods))
        )
        or any(
            spread.selector and looking.namespace == target.namespace and selects(spread.selector, labels)
            for spread in (*looking.spread, *looking.preferred_spread)
        )
        or any(collide(port, used) for port in looking.ports for used in target.ports)
    )
