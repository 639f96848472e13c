"""Where a pod may run at all: labels it selects, taints it tolerates, zones that are large enough. As Kubernetes reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.domains import tolerating_nodes
from flowsched.scheduling.podgroup import Shape
from flowsched.scheduling.snapshot import Snapshot


def node_selector(snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
    """Nodes that carry every (label, value) the shape selects."""
    key = ("selector", shape.selector)
    if key not in snapshot.cache:
        mask = np.ones(len(snapshot), dtype=np.bool_)
        for name, value in shape.selector:
            mask &= np.array([labels.get(name) == value for labels in snapshot.labels], dtype=np.bool_)
        snapshot.cache[key] = mask
    found: NDArray[np.bool_] = snapshot.cache[key]
    return found, "lack the label " + ", ".join(f"{name}={value}" for name, value in shape.selector)


def node_taints(snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
    """Nodes all of whose hard taints the shape tolerates."""
    return tolerating_nodes(snapshot, shape.tolerations), "have a taint it does not tolerate"


def numa_zones(snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
    """Nodes that tell no NUMA zones, or have one that would hold such a pod if it were empty."""
    if not snapshot.zones.is_aligned(shape.requests):
        return np.ones(len(snapshot), dtype=np.bool_), ""
    return snapshot.zones.could(shape.requests, len(snapshot)), "have no NUMA zone that large"
