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
    """(N,) ms by which one pod's outputs come home later than if it ran there; 0 at home. None = the group has no home.

    They wait for what is on its way home already, as far as that takes longer than the pod itself.
    """
    home = group.home
    if home is None:
        return None
    rate = max(1, int(snapshot.nic_in[home.node]))
    coming = home.coming_bytes + snapshot.homeward.get(home.node, 0)
    behind = max(0, coming * 1000 // rate - (group.runtime_ms or 0))
    sends = snapshot.nic_out
    slowest = np.where(sends > 0, np.minimum(sends, rate), rate)
    cost: NDArray[np.int64] = behind + home.output_bytes * 1000 // slowest
    cost[home.node] = 0
    return cost
