"""Starts spaced out, where a node's disk is what tasks wait for.

Tasks that start together compute together and write together: while they compute the disk does nothing, and then all of them
write at a fraction of its rate. If so many fit on a node that their bytes take the disk longer than one of them runs, the disk
decides when the last has ended. So of such tasks a node gets one at a time, and the next when the disk could have done the bytes
of the one before: the last ends no later, and the disk has no pauses once the first has computed. A task waits for this no longer
than another one's bytes take, and only where nobody waits who could use the cores meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from flowsched.engine.backlog import Candidate
from flowsched.engine.changes import Recorder
from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.podgroup import PodGroup, Shape
from flowsched.scheduling.snapshot import IO

Indices = NDArray[np.int64]


class Spacing:
    """Which of the pods that were placed in one look start now.

    Attributes:
        next_ms: When the first of those that wait may start; None = none waits.
    """

    def __init__(self, recorder: Recorder, offered: Iterable[PodGroup]) -> None:
        self._recorder = recorder
        self._offered = offered
        self._alone: bool | None = None
        #: by the shape's id and what its pods take
        self._bound: dict[tuple[int, int], tuple[Shape, NDArray[np.bool_], Indices]] = {}
        self.next_ms: int | None = None

    def fits(self, candidate: Candidate, nodes: Indices) -> NDArray[np.bool_] | None:
        """(K,) which of a bag's pods may start on these nodes now; None = all of them."""
        group = candidate.group
        shape = group.roles[0].shape
        if not shape.io_bytes or candidate.demands or group.gang or not group.runtime_ms:
            return None  # what was learned of IO says how much, not that all of it comes at once
        bound, io_ms = self._disk_bound(shape, group.runtime_ms)
        if not bound[nodes].any() or not self._nobody_else():
            return None
        state, statement, now = self._recorder.state, self._recorder.statement, self._recorder.now
        fits = np.ones(len(nodes), dtype=np.bool_)
        for at, node in enumerate(nodes.tolist()):
            if not bound[node]:
                continue
            free = state.disk_free_at.get(node, 0)
            if free > now:
                fits[at] = False
                self.next_ms = free if self.next_ms is None else min(self.next_ms, free)
            else:
                statement.put(state.disk_free_at, node, now + int(io_ms[node]))
        return fits

    def reason(self, candidate: Candidate) -> Reason:
        """Why the others wait."""
        assert self.next_ms is not None
        wait = self.next_ms - self._recorder.now
        text = f"the disk is what tasks like it wait for: one starts at a time, the next in {(wait + 999) // 1000} s"
        return Reason(candidate.group.key, ReasonCode.IO_BUDGET, text, {"wait_ms": wait}, self.next_ms)

    def _disk_bound(self, shape: Shape, runtime_ms: int) -> tuple[NDArray[np.bool_], Indices]:
        """(N,) where a node full of such pods waits for its disk, and the ms that the bytes of one take there."""
        known = self._bound.get((id(shape), runtime_ms))
        if known is None:
            snapshot = self._recorder.state.snapshot
            disk = snapshot.disk_rate
            io_ms = np.where(disk > 0, min(shape.io_bytes, 1 << 53) * 1000 // np.maximum(disk, 1), 0)
            full = np.full(len(snapshot), 1 << 20, dtype=np.int64)
            for axis, need in enumerate(shape.requests):
                if need > 0 and axis != IO:
                    np.minimum(full, snapshot.allocatable[:, axis] // need, out=full)
            known = self._bound[id(shape), runtime_ms] = shape, full * io_ms > runtime_ms, io_ms
        return known[1:]

    def _nobody_else(self) -> bool:
        """Whether all that wait would wait for disks."""
        if self._alone is None:
            self._alone = all(self._waits_for_disks(group) for group in self._offered)
        return self._alone

    def _waits_for_disks(self, group: PodGroup) -> bool:
        shape = group.roles[0].shape
        if not shape.io_bytes or not group.runtime_ms:
            return False
        bound, _ = self._disk_bound(shape, group.runtime_ms)
        return bool(bound.any())
