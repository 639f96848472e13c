"""Host ports: a node has each only once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.podgroup import Shape
from flowsched.scheduling.snapshot import Snapshot


def free_ports(snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
    """Nodes on which nobody holds a host port it needs."""
    mask = np.ones(len(snapshot), dtype=np.bool_)
    for port in shape.rules.ports if shape.rules else ():
        mask &= snapshot.peers.using(port) == 0
    return mask, "have a host port it needs in use"
