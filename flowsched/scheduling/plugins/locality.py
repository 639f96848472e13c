"""What it takes to bring the inputs to a node: missing bytes over the bandwidth on the way (LOCALITY, b)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.podgroup import PodGroup, RoleRequest
from flowsched.scheduling.snapshot import Snapshot

#: Images are datasets of this kind: node.status.images are their replicas.
IMAGE: Final = "image:"
#: What any copy takes beside its bytes: to be ordered, connected, published and seen.
COPY_OVERHEAD_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class StageIn:
    """Estimated staging time of a group's inputs, and of its image if the catalogue knows it.

    Args:
        origin_rate: Bytes/s from outside, all nodes together.
        price_percent: How much of a new copy's time on the network is charged on top, for those who could use the
            link meanwhile. A copy that is on its way already is not charged again.
    """

    origin_rate: int
    price_percent: int = 0

    def __call__(
        self, snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
    ) -> NDArray[np.int64] | None:
        """(N,) ms until everything is there, and the link's price; 0 exactly where nothing is missing.

        The slowest of: what is already on its way to the node and what is missing, over its network; the latter
        over its disk; and what must come from outside over that link. What has been ordered already counts as on
        its way only. None = there are no inputs.
        """
        inputs = group.inputs
        image = catalogue.find(IMAGE + role.shape.image) if role.shape.image else None
        if image is not None:
            inputs = (*inputs, image)
        if not inputs:
            return None
        nodes = len(snapshot)
        missing = catalogue.missing_bytes(inputs, nodes)
        to_order = catalogue.unordered_bytes(inputs, nodes) * 1000
        over_network = _over(to_order, snapshot, "nic_in")
        cost = over_network
        if snapshot.any_inbound:
            cost = _over(to_order + snapshot.inbound * 1000, snapshot, "nic_in")
        cost = np.maximum(cost, _over(to_order, snapshot, "disk_rate"))
        outside = [dataset for dataset in dict.fromkeys(inputs) if not catalogue.held(dataset)]
        if outside:
            from_outside = catalogue.unordered_bytes(outside, nodes)
            np.maximum(cost, from_outside * 1000 // max(self.origin_rate, 1), out=cost)
        cost += over_network * self.price_percent // 100 + COPY_OVERHEAD_MS
        cost *= missing > 0
        return cost


def _over(amount: NDArray[np.int64], snapshot: Snapshot, column: str) -> NDArray[np.int64]:
    """(N,) `amount` over a column of rates; no time where the rate is 0 (not known)."""
    rate = snapshot.uniform(column)
    if rate is not None:
        return amount // rate if rate else np.zeros_like(amount)
    rates = getattr(snapshot, column)
    return np.where(rates > 0, amount // np.maximum(rates, 1), 0)
