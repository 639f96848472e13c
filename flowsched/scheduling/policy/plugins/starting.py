"""Starting: a node starts its pods one after the other, so a pod waits for those that are before it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.pod_group import PodGroup, RoleRequest
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot


def start_queue(
    snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
) -> NDArray[np.int64] | None:
    """(N,) ms until a node has started the pods that were bound to it before; None where starts take no time."""
    return snapshot.starting * snapshot.start_ms if snapshot.starts_queue else None


def start_step(
    snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
) -> NDArray[np.int64] | None:
    """(N,) ms that one pod of the group adds to the start of the next."""
    return snapshot.start_ms if snapshot.starts_queue else None
