"""Data costs: bringing a pod's inputs to a node, and its outputs to the node that gathers them (docs/locality.md)."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.executor.nodes import IMAGE
from flowsched.scheduling.pod_group import PodGroup, RoleRequest
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot

#: The time of any copy beside its bytes: to be ordered, connected, published and reported.
COPY_OVERHEAD_MS: Final = 1_000


class StageIn(msgspec.Struct, frozen=True):
    """Estimated staging time of a group's inputs, and of its image if the catalogue knows it.

    Args:
        origin_rate: Bytes/s from outside, all nodes together.
        price_percent: How much of a new copy's time on the network is charged on top, for other copies that could use
            the link meanwhile. A copy that is on its way already is not charged again.
    """

    name: ClassVar[str] = "stage-in"
    origin_rate: int
    price_percent: int = 0

    def __call__(
        self, snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
    ) -> NDArray[np.int64] | None:
        """(N,) ms until everything is there, and the link's price; 0 exactly where nothing is missing.

        The slowest of: what is already on its way to the node and what is missing, over its network; the latter
        over its disk; and what must come from outside over that link. Copies that have been ordered already count as
        on their way only. None = there are no inputs.
        """
        inputs = group.inputs
        image = catalogue.find(IMAGE + role.shape.image) if role.shape.image else None
        if image is not None:
            inputs = (*inputs, image)
        if not inputs:
            return self._remote(snapshot, catalogue, group)
        nodes = len(snapshot)
        unordered = catalogue.unordered_bytes(inputs, nodes) * 1000
        own = _arrival(unordered, snapshot)
        cost = own
        if snapshot.any_inbound:
            cost = _arrival(unordered + snapshot.inbound * 1000, snapshot)
        outside = [dataset for dataset in inputs if not catalogue.has_replica(dataset)]
        if outside:
            from_outside = (
                unordered if len(outside) == len(inputs) else catalogue.unordered_bytes(outside, nodes) * 1000
            )
            cost = np.maximum(cost, from_outside // max(self.origin_rate, 1))
        cost = cost + own * self.price_percent // 100 + COPY_OVERHEAD_MS
        cost *= catalogue.missing_bytes(inputs, nodes) > 0
        remote = self._remote(snapshot, catalogue, group)
        return cost if remote is None else cost + remote

    def _remote(self, snapshot: Snapshot, catalogue: Catalogue, group: PodGroup) -> NDArray[np.int64] | None:
        """(N,) ms to read over the network what is not copied, and the link's price. None = there is no such thing."""
        if not group.remote:
            return None
        missing = catalogue.missing_bytes(group.remote, len(snapshot)) * 1000
        return _over(missing, snapshot, "nic_in") * (100 + self.price_percent) // 100


def _arrival(amount: NDArray[np.int64], snapshot: Snapshot) -> NDArray[np.int64]:
    """(N,) `amount` over the slower of each node's network and disk."""
    nic, disk = snapshot.uniform("nic_in"), snapshot.uniform("disk_rate")
    if nic and disk:
        return amount // min(nic, disk)
    return np.maximum(_over(amount, snapshot, "nic_in"), _over(amount, snapshot, "disk_rate"))


def _over(amount: NDArray[np.int64], snapshot: Snapshot, column: str) -> NDArray[np.int64]:
    """(N,) `amount` over a column of rates; no time where the rate is 0 (not known)."""
    rate = snapshot.uniform(column)
    if rate is not None:
        return amount // rate if rate else np.zeros_like(amount)
    rates = getattr(snapshot, column)
    return np.where(rates > 0, amount // np.maximum(rates, 1), 0)


# ---- outputs written away from their gather node ----


def gather_home(
    snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
) -> NDArray[np.int64] | None:
    """(N,) ms by which one pod's outputs reach the gather node later than if the pod ran there; 0 on it. None = there is none.

    They wait for what is on its way home already, as far as that takes longer than the pod itself.
    """
    home = group.home
    if home is None:
        return None
    rate = max(1, int(snapshot.nic_in[home.node]))
    behind = max(0, snapshot.coming_bytes(home) * 1000 // rate - (group.runtime_ms or 0))
    sends = snapshot.nic_out
    slowest = np.where(sends > 0, np.minimum(sends, rate), rate)
    cost: NDArray[np.int64] = behind + home.output_bytes * 1000 // slowest
    cost[home.node] = 0
    return cost
