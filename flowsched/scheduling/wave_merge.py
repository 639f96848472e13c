"""The pods of one level's competitors in the order of their turns, all at once: keys after 0, 1, 2, … pods, and one sort.

What share a competitor has after k pods is known beforehand, so where each of its pods stands is a number, and they only grow
with k. See `wave_order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement import Ints
from flowsched.scheduling.queues import billionths

#: After so many pods of a group its turns grow.
ROW: Final = 16
#: Tables have so many entries, at most, or one for each member of a level.
_TABLE: Final = 1 << 16
_BITS: Final = 62
#: Behind everybody.
_LAST: Final = 1 << _BITS


class Columns(NamedTuple):
    """The competitors of one level, each field of all of them (C,). Sorted by name.

    `used` and `past` are (C, R); `past` None = nobody had anything. `slots`: the pods of each, as positions in the list of all that
    are asked for, or only the first where the others follow it. `opens`: whether it may ask for more. `axes`: a department is
    measured on this one; -1, and None for all, = by its dominant share.
    """

    names: Sequence[str]
    priorities: Ints
    aged: Ints
    weights: Ints
    used: Ints
    past: Ints | None
    slots: Sequence[Ints | int] | Ints
    numbers: Ints
    opens: NDArray[np.bool_]
    axes: Ints | None


class Merged(NamedTuple):
    """The order of one level: (K,) slots, and whether it may go on."""

    slots: Ints
    open: bool


class Merger:
    """Merges levels of one tree.

    Args:
        total: (R,) what the cluster has.
        amount: What one pod asks for; may be shorter.
        most: No more pods than so many are asked for.
        row: Where several levels are merged at once, no more than so many of each member are looked at.

    Attributes:
        short: Whether that may have been too few somewhere.
    """

    def __init__(self, total: Sequence[int], amount: Sequence[int], most: int, row: int = ROW) -> None:
        self._total, self.most, self._row = total, most, row
        self.short = False
        self._needs = [*amount[: len(total)], *[0] * (len(total) - len(amount))]

    def merged(self, level: Columns, most: int = _LAST) -> Merged | None:
        """The members' pods in one order, at most so many of each; None where keys would be too long for it, or names are not
        unique.
        """
        count = len(level.names)
        if len(set(level.names)) < count:
            return None
        width = max(1, min(max(ROW, _TABLE // count), self.most, most, int(level.numbers.max())))
        keys = self._keys(level, width)
        if keys is None:
            return None
        caps, more, edges = _edges(level, keys)
        flat = keys.ravel()
        near = np.flatnonzero(flat <= int(edges.min()))
        taken = near[np.argsort(flat[near], kind="stable")][: self.most]
        steps = np.arange(width)
        if isinstance(level.slots, np.ndarray):
            table = level.slots[:, None] + steps
        else:
            table = np.array([each if isinstance(each, int) else 0 for each in level.slots])[:, None] + steps
            for at, each in enumerate(level.slots):
                if not isinstance(each, int):
                    table[at, : caps[at]] = each[: caps[at]]
        return Merged(table.ravel()[taken], bool(more.any()) or len(taken) < len(near))

    def merged_each(self, level: Columns, starts: Sequence[int]) -> list[Merged] | None:
        """As `merged` for each of several levels, which stand in one after the other; `starts`: where each begins.

        Their members have ROW pods at most, whose slots follow each other.
        """
        width = max(1, min(self.most, self._row, int(level.numbers.max())))
        keys = self._keys(level, width)
        if keys is None:
            return None
        _, more, edges = _edges(level, keys)
        part = np.repeat(np.arange(len(starts)), np.diff([*starts, len(keys)]))
        bounds = np.minimum.reduceat(edges, starts)[part]
        self.short |= bool((edges <= bounds)[level.numbers > width].any())
        near = np.flatnonzero(keys <= bounds[:, None])
        near = near[np.argsort(keys.ravel()[near], kind="stable")]
        near = near[np.argsort(part[near // width], kind="stable")]
        slots = (np.asarray(level.slots)[:, None] + np.arange(width)).ravel()[near]
        cuts = np.searchsorted(part[near // width], np.arange(len(starts) + 1)).tolist()
        opens = np.logical_or.reduceat(more, starts).tolist()
        found = []
        for begin, end, is_open in zip(cuts, cuts[1:], opens, strict=False):
            last = min(end, begin + self.most)
            found.append(Merged(slots[begin:last], is_open or last < end))
        return found

    def _keys(self, level: Columns, width: int) -> Ints | None:
        """(C, S) where each member stands before its first pod, its second, …; None where that would be too long."""
        shares = self._shares(level, width)
        if shares is None:
            return None
        if int(level.weights.max()) > 1:
            shares //= level.weights[:, None]
        return keys_of(level.priorities, level.aged, shares)

    def _shares(self, level: Columns, width: int) -> Ints | None:
        """(C, S) shares in billionths, weights not counted; None where that cannot be worked out in 64 bits."""
        best = np.zeros((len(level.names), width), dtype=np.int64)
        have = level.used if level.past is None else level.used + level.past
        for axis, (total, need) in enumerate(zip(self._total, self._needs, strict=True)):
            most = int(have[:, axis].max()) + need * width
            if total <= 0 or not most:
                continue
            if most >= _LAST or total >= _LAST // 10:
                return None
            parts = billionths(have[:, axis, None] + need * np.arange(width), total)
            if level.axes is not None:
                parts[(level.axes >= 0) & (level.axes != axis)] = 0
            np.maximum(best, parts, out=best)
        return best


def _edges(level: Columns, keys: Ints) -> tuple[Ints, NDArray[np.bool_], Ints]:
    """(C,) how many pods of each member are known, whether it may ask for more, and up to which key that changes nothing.

    `keys` of pods that are not known stand behind everybody afterwards.
    """
    width = keys.shape[1]
    caps, more = np.minimum(level.numbers, width), level.opens | (level.numbers > width)
    edges = np.where(caps > 0, keys[np.arange(len(keys)), np.maximum(caps, 1) - 1], keys[:, 0] - 1)
    keys[np.arange(width) >= caps[:, None]] = _LAST
    return caps, more, np.where(more, edges, _LAST - 1)


def keys_of(priorities: Ints, aged: Ints, shares: Ints) -> Ints | None:
    """(C, S) where each member stands after 0, 1, 2, … pods, as one number; None where that is too long.

    Args:
        priorities: (C,).
        aged: (C,) what is added to it until it has got something.
        shares: (C, S).
    """
    first = priorities + aged
    highest = int(first.max())
    steps = int(shares.max()) + 1
    if (highest - int(priorities.min()) + 1) * steps * len(shares) >= _LAST:
        return None
    keys = np.repeat((highest - priorities)[:, None], shares.shape[1], axis=1)
    keys[:, 0] = highest - first
    keys *= steps
    keys += shares
    keys *= len(shares)
    keys += np.arange(len(shares))[:, None]
    return keys
