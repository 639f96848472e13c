"""Racks: which of them could hold a whole gang, by segment sums over rack ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def feasible_racks(
    rack: NDArray[np.int32], copies: Sequence[NDArray[np.int64]], minimums: Sequence[int]
) -> list[NDArray[np.intp]]:
    """The racks in which every role alone finds its minimum (necessary, not sufficient for all roles
    together).

    Args:
        rack: (N,) rack ids.
        copies: For each role, (N,) how many of its pods each node could hold.
        minimums: For each role, how many it needs.

    Returns:
        For each such rack, in order of rack id, (n,) its node indices, ascending.
    """
    if not len(rack):
        return []
    racks = int(rack.max()) + 1
    feasible = np.ones(racks, dtype=np.bool_)
    for fits, minimum in zip(copies, minimums, strict=True):
        sums = np.zeros(racks, dtype=np.int64)
        np.add.at(sums, rack, fits)
        feasible &= sums >= minimum
    by_rack = np.argsort(rack, kind="stable")
    bounds = np.searchsorted(rack[by_rack], np.arange(racks + 1))
    return [by_rack[bounds[r] : bounds[r + 1]] for r in np.flatnonzero(feasible).tolist()]
