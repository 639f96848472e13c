"""Contention: how much an IO-heavy pod and its neighbours slow each other down on one disk."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.pod_group import PodGroup, RoleRequest
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import IO, Snapshot

_MOST: Final = 1 << 62
#: 34 years; times as many neighbours as a node has pods.
_LONGEST_MS: Final = 1 << 40


def slowdown_step(
    snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
) -> NDArray[np.int64] | None:
    """(N,) ms that one IO-heavy neighbour adds.

    With a active tasks a disk gives each 1/(1 + a) of its rate: the pod's own bytes take a times as long on
    top, and its bytes delay the a others by as much together. Twice its bytes over the disk for each
    neighbour, therefore. A pod that works on a shared storage meets them on the node's link instead.
    """
    if not role.shape.io_bytes:
        return None
    key = ("slowdown", role.shape.io_bytes, bool(role.shape.direct))
    known: NDArray[np.int64] | None = snapshot.cache.get(key)
    if known is not None:
        return known
    disk = snapshot.nic_in if role.shape.direct else snapshot.disk_rate
    bytes_ms = min(2 * role.shape.io_bytes * 1000, _MOST)  # of a user's words: products must fit 64 bits
    step = np.where(disk > 0, np.minimum(bytes_ms // np.maximum(disk, 1), _LONGEST_MS), 0)
    step.setflags(write=False)
    snapshot.cache[key] = step
    return step


def slowdown_now(
    snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest
) -> NDArray[np.int64] | None:
    """(N,) ms that the IO-heavy tasks which are there already add, what others use of the disk as it was measured, and what the
    node's own disk, or its link to a shared storage, costs more than the fastest one.
    """
    step = slowdown_step(snapshot, catalogue, group, role)
    if step is None:
        return None
    cost: NDArray[np.int64] = snapshot.io_tasks * step
    own = _own_rate(snapshot, role.shape.io_bytes, is_direct=bool(role.shape.direct))
    return cost if own is None else cost + own


def _own_rate(snapshot: Snapshot, io_bytes: int, *, is_direct: bool) -> NDArray[np.int64] | None:
    """(N,) ms that the pod's own bytes take longer than on the fastest disk (or link) that nothing else uses; None = nowhere."""
    key = ("own rate", io_bytes, is_direct)
    if key in snapshot.cache:
        known: NDArray[np.int64] | None = snapshot.cache[key]
        return known
    left, disk = snapshot.allocatable[:, IO], snapshot.disk_rate
    if is_direct:
        left = disk = snapshot.nic_in
    bytes_ms, fastest = min(io_bytes * 1000, _MOST), max(int(disk.max(initial=0)), 1)
    alone = bytes_ms // np.maximum(disk, 1)
    own = np.where(left > 0, bytes_ms // np.maximum(left, 1) - alone, 0)
    own += np.where(disk > 0, np.minimum(alone, _LONGEST_MS) - bytes_ms // fastest, 0).clip(0)
    found = snapshot.cache[key] = own if own.any() else None
    return found
