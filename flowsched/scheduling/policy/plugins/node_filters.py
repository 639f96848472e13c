"""Where nodes alone let a pod run: labels, taints, names, volumes, host ports, NUMA zones. As Kubernetes reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.pod_group import Shape
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.state.topology import nodes_of, only_node, tolerating_nodes


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
    """Nodes that have only hard taints which the shape tolerates."""
    return tolerating_nodes(snapshot, shape.tolerations), "have a taint it does not tolerate"


def numa_zones(snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
    """Nodes that tell no NUMA zones, or have one that would hold such a pod if it were empty."""
    if not snapshot.zones.is_aligned(shape.requests):
        return np.ones(len(snapshot), dtype=np.bool_), ""
    return snapshot.zones.could(shape.requests, len(snapshot)), "have no NUMA zone that large"


# ---- names, labels, and where volumes can be reached ----


Judged = tuple[NDArray[np.bool_], str]


def node_name(snapshot: Snapshot, shape: Shape) -> Judged:
    """The one node that the pod names."""
    name = shape.rules.node_name if shape.rules else None
    mask = _everywhere(snapshot) if name is None else only_node(snapshot, name)
    return mask, f"are not the node it names, {name}"


def node_affinity(snapshot: Snapshot, shape: Shape) -> Judged:
    """Nodes that one of the terms of its required node affinity selects."""
    terms = shape.rules.nodes if shape.rules else None
    mask = _everywhere(snapshot) if terms is None else nodes_of(snapshot, terms)
    return mask, "do not match its node affinity"


def volume_nodes(snapshot: Snapshot, shape: Shape) -> Judged:
    """Nodes from which all of its volumes can be reached."""
    mask = _everywhere(snapshot)
    for terms in shape.rules.volumes if shape.rules else ():
        mask &= nodes_of(snapshot, terms, fields=False)
    return mask, "cannot reach one of its volumes"


def _everywhere(snapshot: Snapshot) -> NDArray[np.bool_]:
    return np.ones(len(snapshot), dtype=np.bool_)


# ---- host ports: a node has each only once ----


def free_ports(snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
    """Nodes on which no pod holds a host port that the shape needs."""
    mask = np.ones(len(snapshot), dtype=np.bool_)
    for port in shape.rules.ports if shape.rules else ():
        mask &= snapshot.peers.using(port) == 0
    return mask, "have a host port it needs in use"
