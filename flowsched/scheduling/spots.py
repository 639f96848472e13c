"""Where pods go: nodes, what they cost there, and which devices they get. See `placement`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.devices import seat

Ints = NDArray[np.int64]


class Spots(NamedTuple):
    """Where pods of a role go, cheapest first.

    `nodes`: (k,) node indices; `costs`: (k,) ms; `devices`: (k, D) thousandths of each GPU there, None where devices do not
    matter.
    """

    nodes: Ints
    costs: Ints
    devices: Ints | None = None

    def only(self, some: NDArray[np.bool_] | NDArray[np.intp]) -> Spots:
        """Some of them."""
        return Spots(self.nodes[some], self.costs[some], None if self.devices is None else self.devices[some])

    def then(self, more: Spots) -> Spots:
        """These, then others of the same role."""
        devices = None
        if self.devices is not None and more.devices is not None:
            devices = np.concatenate([self.devices, more.devices])
        return Spots(
            np.concatenate([self.nodes, more.nodes]), np.concatenate([self.costs, more.costs]), devices
        )


def on_devices(room: Sequence[Ints], needs: Sequence[int | Ints], spots: Spots) -> Spots:
    """Spots with their devices, if room by device is among the axes, as the last. `room` is not modified; `needs`: by axis."""
    if not room or room[-1].ndim == 1:
        return spots
    need = needs[-1]
    if not len(spots.nodes) or not isinstance(need, int) or not need:
        return spots._replace(devices=np.zeros((len(spots.nodes), room[-1].shape[1]), dtype=np.int64))
    some, places = np.unique(spots.nodes, return_inverse=True)
    return spots._replace(devices=seat(room[-1][some], places, need))


def gang_cost(placed: Sequence[Spots]) -> int:
    """What the slowest member costs, in ms; 0 for no pods at all."""
    if len(placed) == 1 and len(placed[0].costs) == 1:
        return int(placed[0].costs[0])
    return max((int(spots.costs.max()) for spots in placed if len(spots.costs)), default=0)
