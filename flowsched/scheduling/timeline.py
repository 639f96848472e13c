"""Free room over time, with promises in it: what conservative backfill plans on.

Where a `Calendar` only knows when room comes back, here room is also taken again, by what was promised. So room goes up and
down, and something fits at a moment only if it fits until it ends.

Memory and time are bounded: only so many moments are told apart. When there are more, what comes back counts from the next later
moment, and what is taken counts from the next earlier one, so that room is never expected before it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.devices import DEVICES, copies_by_device
from flowsched.scheduling.placement import Ints, RoleTable, Spots

T = TypeVar("T")

#: So many moments are told apart, at most, and fewer where nodes are many: so many numbers are kept.
_MOMENTS: Final = 1_024
_NUMBERS: Final = 4_000_000


class Returns(NamedTuple):
    """What comes back: (M,) when, in any order; (M,) on which node; (M, R) how much."""

    ends: Ints
    nodes: Ints
    amounts: Ints


class Timeline:
    """Free room from each moment until the next; the last one lasts for ever.

    Args:
        returns: When what is held now comes back.
        rows: For each axis, (N,) what is free now. Not modified.
        now: The moment, wall-clock ms.
        devices: (N, D) what is free of each GPU, where parts of them are about: they are columns after those of the axes, here
            and in all amounts.
    """

    def __init__(self, returns: Returns, rows: Sequence[Ints], now: int, devices: Ints | None = None) -> None:
        self._axes = len(rows)
        if devices is not None:
            rows = [*rows, *devices.T]
        size, axes = len(rows[0]), len(rows)
        self._most = max(64, min(_MOMENTS, _NUMBERS // (size * axes)))
        ends = _merged(np.maximum(returns.ends, now), self._most // 2)
        moments = np.unique(np.concatenate([[now], ends]))
        gained = np.zeros((len(moments), size, axes), dtype=np.int64)
        np.add.at(gained, (np.searchsorted(moments, ends), returns.nodes), returns.amounts[:, :axes])
        gained[0] += np.stack(rows, axis=1)
        self._count = len(moments)
        self._times = np.zeros(2 * len(moments) + 16, dtype=np.int64)
        self._free = np.zeros((len(self._times), size, axes), dtype=np.int64)
        self._times[: self._count] = moments
        np.cumsum(gained, axis=0, out=self._free[: self._count])

    def take(self, start: int, end: int, nodes: Ints, amounts: NDArray[np.int64]) -> None:
        """Room that is taken from `start` until `end`: (k,) nodes, with repeats, and (k, R) amounts. Less than nothing is given
        back: the same as was taken, from and until the same.
        """
        taken = np.zeros(self._free.shape[1:], dtype=np.int64)
        np.add.at(taken[:, : amounts.shape[1]], nodes, amounts)
        first = self._moment(start, later=False)
        self._free[first : self._moment(end, later=True)] -= taken

    def _moment(self, at: int, *, later: bool) -> int:
        """The place of a moment, which is told apart from now on if there is room; what was before the first is the first."""
        place = int(np.searchsorted(self._times[: self._count], at, side="left"))
        if place == 0 or (place < self._count and self._times[place] == at):
            return place
        if self._count >= self._most:
            return place if later else place - 1
        if self._count == len(self._times):
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
            self._free = np.concatenate([self._free, np.zeros_like(self._free)])
        for rows in (self._times, self._free):
            rows[place + 1 : self._count + 1] = rows[place : self._count].copy()
        self._times[place], self._free[place] = at, self._free[place - 1]
        self._count += 1
        return place

    def least(self, start: int, end: int) -> NDArray[np.int64]:
        """(N, R) what is free all the time from `start` until `end`."""
        times = self._times[: self._count]
        first = max(0, int(np.searchsorted(times, start, side="right")) - 1)
        last = max(first + 1, int(np.searchsorted(times, end, side="left")))
        found: NDArray[np.int64] = self._free[first:last].min(axis=0)
        return found

    def earliest(
        self,
        axes: Sequence[int],
        tables: Sequence[RoleTable],
        length_ms: int,
        fits: Callable[[list[Ints]], T | None],
    ) -> tuple[int, T] | None:
        """The earliest moment from which something fits until it ends.

        Args:
            axes: Which axes its tables ask for.
            tables: Its roles: where one of them alone has too few places at some moment, nothing is tried.
            length_ms: How long it takes.
            fits: Tries a placement on rows of these axes.

        Returns:
            The moment and the placement; None if it would not fit even at the end of all that is known.
        """
        times = self._times[: self._count]
        narrow = np.flatnonzero(~self._enough(axes, tables))
        until = np.append(times, np.iinfo(np.int64).max)[np.append(narrow, self._count)]
        next_narrow = until[np.searchsorted(narrow, np.arange(self._count), side="left")]
        wide = (next_narrow >= times + length_ms) | (next_narrow == until[-1])
        wide[narrow] = False
        for at in np.flatnonzero(wide).tolist():
            start = int(times[at])
            room = self._free[at] if at + 1 == self._count else self.least(start, start + length_ms)
            placed = fits([np.ascontiguousarray(self._column(room, axis)) for axis in axes])
            if placed is not None:
                return start, placed
        return None

    def _column(self, room: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
        """(..., N) of an axis, (..., N, D) of devices."""
        return room[..., self._axes :] if axis == DEVICES else room[..., axis]

    def _enough(self, axes: Sequence[int], tables: Sequence[RoleTable]) -> NDArray[np.bool_]:
        """(T,) at which moments each role alone has places enough: a quick look that rules most moments out."""
        enough = np.ones(self._count, dtype=np.bool_)
        for table in tables:
            copies = np.full(self._free[: self._count].shape[:2], table.minimum, dtype=np.int64)
            for axis, need in zip(axes, table.needs, strict=True):
                have = self._column(self._free[: self._count], axis)
                if axis == DEVICES:
                    if isinstance(need, int) and need:
                        np.minimum(copies, copies_by_device(have, need), out=copies)
                elif isinstance(need, int):
                    if need:
                        np.minimum(copies, have // need, out=copies)
                else:
                    np.minimum(
                        copies, np.where(need > 0, have // np.maximum(need, 1), table.minimum), out=copies
                    )
            if table.most is not None:
                np.minimum(copies, table.most, out=copies)
            np.maximum(copies, 0, out=copies)
            enough &= (copies * table.allowed).sum(axis=1) >= table.minimum
        return enough


def _merged(ends: Ints, most: int) -> Ints:
    """(M,) the ends, of at most `most` different values, none earlier than it was."""
    distinct = np.unique(ends)
    if len(distinct) <= most:
        return ends
    stride = -(-len(distinct) // most)
    last = np.minimum(np.arange(len(distinct)) // stride * stride + stride - 1, len(distinct) - 1)
    merged: Ints = distinct[last][np.searchsorted(distinct, ends)]
    return merged


def amounts_of(axis_count: int, axes: Sequence[int], table: RoleTable, spots: Spots) -> NDArray[np.int64]:
    """(k, R) what each pod of a role takes where it stands; (k, R + D) with its devices, if it has any."""
    rows = np.zeros((len(spots.nodes), axis_count), dtype=np.int64)
    for axis, need in zip(axes, table.needs, strict=True):
        if axis != DEVICES:
            rows[:, axis] = need if isinstance(need, int) else need[spots.nodes]
    return rows if spots.devices is None else np.hstack([rows, spots.devices])
