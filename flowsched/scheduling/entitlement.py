"""Whose room a group may take: the rules of preemption and of reclaim.

Inside a queue, declared priority decides: a group may take the room of lower ones (*preemption*).

Between queues, the first level decides at which their paths differ. The taker's side may take from the other

- if its queue's priority there is higher (preemption);
- if it stays within its guarantee, what it takes included (reclaim);
- if its weighted dominant share is less than the other's, and with what it takes at most what the other's is without it
  (reclaim, where any queue has a weight or a guarantee).

Nobody takes from a queue that is not `reclaimable`, nor so much that a queue falls below its guarantee. After an exchange the
other side is served no less than the taker, so it cannot take it back: nothing goes to and fro.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement import Ints
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.queues import Queue, QueueTree, Shares
from flowsched.scheduling.victims import Unit

#: The reasons, as tasks and events show them.
PREEMPTED, RECLAIMED = "Preempted", "Reclaimed"
MILLION: Final = 1_000_000
_BITS: Final = 40


def weighs(tree: QueueTree) -> bool:
    """Whether anybody has said what a queue deserves."""
    return any(queue.weight > 1 or queue.guarantee is not None for queue in tree)


@dataclass(slots=True)
class Accounts:
    """What each queue (and its children) will have once those who leave have left and those nominated have come.

    Args:
        tree: The queues.
        shares: What they have now.
        total: (R,) of the cluster.
        extra: By queue, (R,) what is still to come, or (negative) to go.
    """

    tree: QueueTree
    shares: Shares
    total: Sequence[int]
    extra: dict[str, list[int]]

    def add(self, name: str, amount: Sequence[int], times: int) -> None:
        """A queue and its ancestors will have `times` this amount more."""
        for queue in self.tree.path(name):
            sums = self.extra.setdefault(queue.name, [0] * len(self.total))
            for axis, value in enumerate(amount[: len(sums)]):
                sums[axis] += times * value

    def usage(self, name: str) -> Ints:
        """(R,) of the queue and its children."""
        used = np.array(self.shares.usage(name), dtype=np.int64)
        if name in self.extra:
            used += np.array(self.extra[name], dtype=np.int64)
        return used

    def share(self, queue: Queue, used: Ints) -> Ints:
        """Weighted dominant share, in millionths, of each row of (…, R) `used`."""
        shifts = [
            max(0, total.bit_length() - _BITS) for total in self.total
        ]  # bytes times a million are too many
        total = np.array([total >> by for total, by in zip(self.total, shifts, strict=True)], dtype=np.int64)
        parts = (np.maximum(used, 0) >> np.array(shifts, dtype=np.int64)) * MILLION // np.maximum(total, 1)
        result: Ints = np.where(total > 0, parts, 0).max(axis=-1) // queue.weight
        return result


def entitled(
    group: PodGroup,
    need: Sequence[int],
    units: Sequence[Unit],
    accounts: Accounts,
    *,
    preempt: bool,
    reclaim: bool,
) -> NDArray[np.bool_]:
    """Which units a group may take, all of them together included.

    Args:
        group: The taker.
        need: (R,) what it would get.
        units: (U,) what could be taken, the cheapest first.
        accounts: Who has what.
        preempt: Whether higher priority may take from lower.
        reclaim: Whether queues may take back what others have beyond their share.

    Returns:
        (U,).
    """
    may = np.zeros(len(units), dtype=np.bool_)
    by_queue: dict[str, list[int]] = {}
    for at, unit in enumerate(units):
        if unit.queue != group.queue:
            by_queue.setdefault(unit.queue, []).append(at)
        elif preempt and unit.priority < group.priority:
            may[at] = True
    sides: dict[str, list[int]] = {}
    floors: dict[str, int] = {}
    for name, rows in by_queue.items():
        verdict = _side(group, need, name, accounts, preempt=preempt, reclaim=reclaim)
        if verdict is not None:
            sides.setdefault(verdict[0], []).extend(rows)
            floors[verdict[0]] = verdict[1]
    for side, rows in sides.items():
        may[_within(sorted(rows), units, side, floors[side], accounts)] = True
    return may


def _side(
    group: PodGroup, need: Sequence[int], name: str, accounts: Accounts, *, preempt: bool, reclaim: bool
) -> tuple[str, int] | None:
    """The other side's queue at the level where the paths differ, and the share it must keep; None = nothing may be taken."""
    ours, theirs = accounts.tree.path(group.queue), accounts.tree.path(name)
    level = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a.name != b.name), None)
    if level is None or not all(queue.reclaimable for queue in theirs[level:]):
        return None  # one is above the other: its room is ours, or ours is its
    us, them = ours[level], theirs[level]
    if us.priority != them.priority:
        if us.priority > them.priority:
            return (them.name, 0) if preempt else None
        return (them.name, 0) if reclaim and _guaranteed(us, need, accounts) else None
    if not reclaim:
        return None
    if _guaranteed(us, need, accounts):
        return them.name, 0
    mine, yours = accounts.usage(us.name), accounts.usage(them.name)
    if accounts.share(us, mine) >= accounts.share(them, yours):
        return None
    return them.name, int(accounts.share(us, _plus(mine, need)))


def _guaranteed(us: Queue, need: Sequence[int], accounts: Accounts) -> bool:
    """Whether a queue stays within its guarantee with what it would get."""
    promised = us.guarantee or ()
    after = _plus(accounts.usage(us.name), need)
    asked = [axis for axis, value in enumerate(promised[: len(need)]) if value > 0 and need[axis] > 0]
    return bool(asked) and all(int(after[axis]) <= promised[axis] for axis in asked)


def _plus(used: Ints, need: Sequence[int]) -> Ints:
    after = used.copy()
    after[: len(need)] += np.array(need[: len(used)], dtype=np.int64)
    return after


def _within(rows: list[int], units: Sequence[Unit], side: str, floor: int, accounts: Accounts) -> list[int]:
    """Of units on one side, those that may all go together: the side keeps its share, every queue its guarantee."""
    axes = len(accounts.total)
    amounts = np.zeros((len(rows), axes), dtype=np.int64)
    for at, row in enumerate(rows):
        for claim in units[row].claims:
            width = min(len(claim.amount), axes)
            amounts[at, :width] += np.array(claim.amount[:width], dtype=np.int64)
    fine = np.ones(len(rows), dtype=np.bool_)
    paths = [[queue.name for queue in accounts.tree.path(units[row].queue)] for row in rows]
    for name in sorted({name for path in paths for name in path[path.index(side) :]}):
        queue = accounts.tree.get(name)
        if name != side and queue.guarantee is None:
            continue
        mine = np.array([name in path for path in paths])
        used = accounts.usage(name)
        share = accounts.share(queue, used - amounts) if name == side else None
        alone = np.ones(len(rows), dtype=np.bool_) if share is None else share >= floor
        mine &= alone  # what is too much by itself does not keep the smaller ones behind it
        left = used - np.cumsum(np.where(mine[:, None], amounts, 0), axis=0)
        keeps = _keeps(queue, left, amounts)
        if name == side:
            keeps &= accounts.share(queue, left) >= floor
        fine &= (keeps & alone) | ~np.array([name in path for path in paths])
    return [row for row, ok in zip(rows, fine.tolist(), strict=True) if ok]


def _keeps(queue: Queue, left: Ints, amounts: Ints) -> NDArray[np.bool_]:
    """(U,) whether a queue keeps its guarantee on every axis of which something goes."""
    promised = np.zeros(left.shape[1], dtype=np.int64)
    width = min(len(queue.guarantee or ()), len(promised))
    promised[:width] = (queue.guarantee or ())[:width]
    result: NDArray[np.bool_] = ((left >= promised) | (amounts == 0)).all(axis=1)
    return result
