"""Capacity: the room that is free while a cycle decides, as scratch copies, so that the snapshot stays as it is.

Hard room is what a pod may take now; soft room is hard room less all staging targets. A pod that may bind takes both, a target
takes soft room only. Behind a reservation there is a third: `spare`, what work that outlasts the reservation's start may still
use without touching what was reserved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement.gang import CostTable, Ints, NodeChoice
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.scheduling.state.gpus import DEVICES, GPU, seat
from flowsched.scheduling.state.snapshot import Snapshot

Mask = NDArray[np.bool_]


def whole_of(snapshot: Snapshot, axis: int) -> Ints:
    """(N,) what nodes have of an axis in all, remembered until a node changes. Read-only."""
    found: Ints | None = snapshot.cache.get(("whole", axis))
    if found is None:
        found = np.array(snapshot.allocatable[:, axis], order="C")
        found.setflags(write=False)
        snapshot.cache["whole", axis] = found
    return found


class Capacity:
    """Free room by axis, each (N,) in the axis's unit; GPUs by device (`DEVICES`) (N, D). Axes are copied when they are first
    asked for.

    Attributes:
        staging: Whether soft room differs from hard room anywhere.
        changes: Where hard room has changed, (k,) nodes each time, in order: what is remembered of room is brought up to date
            by it (`score_cache`).
        reservations: How often room has been reserved.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._hard: dict[int, Ints] = {}
        self._soft: dict[int, Ints] = {}
        self._allocatable: dict[int, Ints] = {}
        self._spare: dict[int, Ints] | None = None
        self._least: dict[int, Ints] = {}
        self.changes: list[Ints] = []
        self.reservations = 0
        self.staging = snapshot.any_staging

    def hard(self, axis: int) -> Ints:
        """(N,) what pods may take now. Live."""
        if axis not in self._hard and axis == DEVICES:
            self._hard[axis] = self._snapshot.devices.free(len(self._snapshot))
        elif axis not in self._hard:
            self._hard[axis] = whole_of(self._snapshot, axis) - self._snapshot.used[:, axis]
        return self._hard[axis]

    def pods(self, requests: Sequence[int]) -> int:
        """How many pods the free room would be enough for, if all of it were on one node."""
        parts = [
            int(np.maximum(self.hard(axis), 0).sum()) // need
            for axis, need in enumerate(requests)
            if need > 0
        ]
        return min(parts, default=1 << 60)

    def soft(self, axis: int) -> Ints:
        """(N,) `hard` without the targets of STAGING claims. Live; the same array as `hard` while nothing is staging."""
        if not self.staging:
            return self.hard(axis)
        if axis not in self._soft and axis == DEVICES:
            self._soft[axis] = _unstaged(self._snapshot, self.hard(axis))
        elif axis not in self._soft:
            self._soft[axis] = self.hard(axis) - self._snapshot.staging[:, axis]
        return self._soft[axis]

    def allocatable(self, axis: int) -> Ints:
        """(N,) what nodes have in all."""
        found = self._allocatable.get(axis)
        if found is None and axis == DEVICES:
            found = self._allocatable[axis] = self._snapshot.devices.whole(len(self._snapshot))
        if found is None:
            found = self._allocatable[axis] = whole_of(self._snapshot, axis)
        return found

    def least(self, axis: int) -> Ints:
        """(N,) what may be used by pods that outlast the reservation's start. Live; the same array as `hard` while there is
        none.
        """
        if self._spare is None:
            return self.hard(axis)
        if axis not in self._least:
            self._least[axis] = np.minimum(self.hard(axis), self._spare[axis])
        return self._least[axis]

    def reserve(self, spare: Mapping[int, Ints]) -> None:
        """From now on, pods that outlast the reservation's start may use only `spare`: room by axis."""
        self._spare = dict(spare)
        self._least = {}
        self.reservations += 1

    @property
    def reserved(self) -> bool:
        """Whether there is a reservation."""
        return self._spare is not None

    def rows(
        self, axes: Sequence[int], local: Mask | None, long: Mask | None, *, soft: bool = False
    ) -> list[Ints]:
        """The capacity that a group may use, by axis.

        Args:
            axes: Which axes.
            local: (N,) where none of its inputs is missing: hard room there, soft room elsewhere; None =
                everywhere.
            long: (N,) where it would outlast the reservation's start; None = nowhere.
            soft: Soft room everywhere: all of its pods would be targets.

        Returns:
            For each axis (N,). May be live arrays: read only.
        """
        rows = []
        if not self.staging:
            local, soft = None, False
        elif local is not None and np.count_nonzero(local) == 0:
            soft = True
        for axis in axes:
            row = self.soft(axis) if soft else self.hard(axis)
            if local is not None and not soft:
                row = np.where(_along(local, row), row, self.soft(axis))
            if long is not None and self._spare is not None:
                row = np.where(_along(long, row), np.minimum(row, self._spare[axis]), row)
            rows.append(row)
        return rows

    def allocate(
        self, axes: Sequence[int], table: CostTable, chosen: NodeChoice, bound: Mask | None, long: Mask | None
    ) -> None:
        """Take room for pods.

        Args:
            axes: The axes of the table's needs.
            table: The role.
            chosen: Its pods.
            bound: (k,) whether each pod may bind (the others are targets); None = all may.
            long: (N,) as in `rows`.
        """
        if bound is not None:
            if bound.all():
                bound = None
            else:
                self._split(axes)
        outlasting = chosen.nodes if long is None else chosen.nodes[long[chosen.nodes]]
        hard = chosen.nodes if bound is None else chosen.nodes[bound]
        for axis, need in zip(axes, table.needs, strict=True):
            if axis == DEVICES:
                self._allocate_devices(chosen, bound, long)
                continue
            if self.staging:  # before hard room changes: it is derived from it when first asked for
                _subtract(self.soft(axis), chosen.nodes, need)
            _subtract(self.hard(axis), hard, need)
            if self._spare is not None and long is not None:
                _subtract(self._spare[axis], outlasting, need)
        self._note(hard if long is None else chosen.nodes)

    def _allocate_devices(self, chosen: NodeChoice, bound: Mask | None, long: Mask | None) -> None:
        """Take the devices that were chosen for pods."""
        nodes, devices = chosen.nodes, chosen.devices
        if devices is None:
            return
        if self.staging:
            np.subtract.at(self.soft(DEVICES), nodes, devices)
        hard = slice(None) if bound is None else bound
        np.subtract.at(self.hard(DEVICES), nodes[hard], devices[hard])
        if self._spare is not None and long is not None:
            outlasting = long[nodes]
            np.subtract.at(self._spare[DEVICES], nodes[outlasting], devices[outlasting])

    def _note(self, nodes: Ints) -> None:
        """Room on these nodes has changed."""
        if not len(nodes):
            return
        self.changes.append(nodes)
        for axis, least in self._least.items():
            least[nodes] = self.hard(axis)[nodes]
            if self._spare is not None:
                np.minimum.at(least, nodes, self._spare[axis][nodes])

    def deduct(self, axis: int, nodes: Ints, amounts: Ints) -> None:
        """Keep room for pods that do not exist yet. `nodes` holds no duplicates."""
        if self.staging:
            self.soft(axis)[nodes] -= amounts
        self.hard(axis)[nodes] -= amounts
        self._note(nodes)

    def _split(self, axes: Sequence[int]) -> None:
        """From here on, soft room differs from hard room."""
        if not self.staging:
            self._soft = {axis: self.hard(axis).copy() for axis in set(self._hard) | set(axes)}
            self.staging = True


def _unstaged(snapshot: Snapshot, free: Ints) -> Ints:
    """(N, D) what is free of each GPU beside what STAGING claims will take of it, the oldest first. `free`: not modified."""
    left = free.copy()
    claims = [claim for claim in snapshot.claims.values() if claim.kind is ClaimKind.STAGING]
    for claim in sorted(claims, key=lambda claim: (claim.since_ms, claim.owner)):
        if any(claim.amount[GPU : GPU + 1]):
            seat(left, np.array([claim.node]), claim.amount[GPU])
    return left


def _along(mask: Mask, row: Ints) -> Mask:
    """A mask of nodes for a row of theirs, or of their devices."""
    return mask if row.ndim == 1 else mask[:, None]


def _subtract(row: Ints, nodes: Ints, need: int | Ints) -> None:
    if not len(nodes):
        return
    if isinstance(need, int):
        if need:
            np.subtract.at(row, nodes, need)
    else:
        np.subtract.at(row, nodes, need[nodes])
