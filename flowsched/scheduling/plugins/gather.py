"""What it costs that a pod's outputs are written away from where they will be gathered (LOCALITY, d)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.podgroup import PodGroup, RoleRequest
from flowsched.scheduling.snapshot import Snapshot


def gather_home(
    snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
) -> NDArray[np.int64] | None:
    """(N,) ms to bring one pod's outputs home; 0 at home. None = the group has no home."""
    if group.home is None:
        return None
    rate = max(1, int(snapshot.nic_in[group.home.node]))
    cost = np.full(len(snapshot), group.home.output_bytes * 1000 // rate, dtype=np.int64)
    cost[group.home.node] = 0
    return cost
