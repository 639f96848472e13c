"""What it takes to bring the inputs to a node: bytes that are missing over the bandwidth left on their way (LOCALITY, b)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.podgroup import PodGroup, RoleRequest
from flowsched.scheduling.snapshot import Snapshot

#: What any copy takes beside its bytes: to be ordered, connected, published and seen.
COPY_OVERHEAD_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class StageIn:
    """Estimated staging time of a group's inputs, and of its image if the catalogue knows it.

    Args:
        origin_rate: Bytes/s from outside, all nodes together.
    """

    origin_rate: int

    def __call__(
        self, snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
    ) -> NDArray[np.int64]:
        """(N,) ms until everything is there; 0 exactly where nothing is missing.

        The slowest of: what is already on its way to the node and what is missing, over its network; the latter over its disk;
        and what must come from outside over that link. What has been ordered already counts as on its way only.
        """
        nodes = len(snapshot)
        inputs = group.inputs
        image = catalogue.find(role.shape.image) if role.shape.image else None
        if image is not None:
            inputs = (*inputs, image)
        if not inputs:
            return np.zeros(nodes, dtype=np.int64)
        missing = catalogue.missing_bytes(inputs, nodes)
        if not missing.any():
            return missing
        to_order = catalogue.unordered_bytes(inputs, nodes)
        cost = (snapshot.inbound + to_order) * 1000 // np.maximum(snapshot.nic_in, 1)
        disk = snapshot.disk_rate
        cost = np.maximum(cost, np.where(disk > 0, to_order * 1000 // np.maximum(disk, 1), 0))
        outside = [d for d in dict.fromkeys(inputs) if not catalogue.nodes_of(d)]
        if outside:
            from_outside = catalogue.unordered_bytes(outside, nodes)
            cost = np.maximum(cost, from_outside * 1000 // max(self.origin_rate, 1))
        return np.where(missing > 0, cost + COPY_OVERHEAD_MS, 0)
