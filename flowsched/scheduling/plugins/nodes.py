"""What a pod's rules demand of a node alone: its name, its labels, and where the pod's volumes can be reached."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.domains import nodes_of, only_node
from flowsched.scheduling.podgroup import Shape
from flowsched.scheduling.snapshot import Snapshot

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
