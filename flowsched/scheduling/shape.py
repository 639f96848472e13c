"""Canonical shapes, and where pods of a shape may run at all.

Placement works on shapes and counts. A shape is canonical: whatever does not matter is left out, whatever
does is sorted, so that equal pods share one mask, computed once for each generation of the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.framework import BUILT_IN_FILTERS, NODE_FILTERS, Filter
from flowsched.scheduling.podgroup import Shape
from flowsched.scheduling.snapshot import Snapshot
from flowsched.workflow import spec


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
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
        resources: What one pod asks for.
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


def all_but(nodes: int, shut: Sequence[int]) -> NDArray[np.bool_]:
    """(N,) all nodes but some."""
    mask = np.ones(nodes, dtype=np.bool_)
    mask[list(shut)] = False
    return mask
