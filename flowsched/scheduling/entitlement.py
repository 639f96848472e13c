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
from flowsched.scheduling.victims import Victims

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
    victims: Victims,
    accounts: Accounts,
    *,
    preempt: bool,
    reclaim: bool,
) -> NDArray[np.bool_]:
    """Which units a group may take, all of them together included.

    Args:
        group: The taker.
        need: (R,) what it would get.
        victims: The U units that could be taken, the cheapest first.
        accounts: Who has what.
        preempt: Whether higher priority may take from lower.
        reclaim: Whether queues may take back what others have beyond their share.

    Returns:
        (U,).
    """
    may = np.zeros(len(victims), dtype=np.bool_)
    sides: dict[str, tuple[int, list[int]]] = {}
    for queue in np.unique(victims.queue).tolist():
        name = victims.queues[queue]
        if name == group.queue:
            may |= (victims.queue == queue) & (victims.priority < group.priority) & preempt
            continue
        verdict = _side(group, need, name, accounts, preempt=preempt, reclaim=reclaim)
        if verdict is not None:
            sides.setdefault(verdict[0], (verdict[1], []))[1].append(queue)
    for side, (floor, queues) in sides.items():
        rows = np.flatnonzero(np.isin(victims.queue, queues))
        may[rows[_within(rows, victims, side, floor, accounts)]] = True
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


def _within(
    rows: NDArray[np.intp], victims: Victims, side: str, floor: int, accounts: Accounts
) -> NDArray[np.bool_]:
    """Of units on one side, those that may all go together: the side keeps its share, every queue its guarantee."""
    amounts, queues = victims.totals()[rows], victims.queue[rows]
    paths = {
        queue: [each.name for each in accounts.tree.path(victims.queues[queue])]
        for queue in np.unique(queues).tolist()
    }
    fine = np.ones(len(rows), dtype=np.bool_)
    for name in sorted({name for path in paths.values() for name in path[path.index(side) :]}):
        queue, used = accounts.tree.get(name), accounts.usage(name)
        if name != side and queue.guarantee is None:
            continue
        inside = np.isin(queues, [number for number, path in paths.items() if name in path])
        counted = inside
        if name == side:  # what is too much by itself does not keep the smaller ones behind it
            counted = inside & (accounts.share(queue, used - amounts) >= floor)
        left = used - np.cumsum(np.where(counted[:, None], amounts, 0), axis=0)
        keeps = counted & _keeps(queue, left, amounts)
        if name == side:
            keeps &= accounts.share(queue, left) >= floor
        fine &= keeps | ~inside
    return fine


def _keeps(queue: Queue, left: Ints, amounts: Ints) -> NDArray[np.bool_]:
    """(U,) whether a queue keeps its guarantee on every axis of which something goes."""
    promised = np.zeros(left.shape[1], dtype=np.int64)
    width = min(len(queue.guarantee or ()), len(promised))
    promised[:width] = (queue.guarantee or ())[:width]
    result: NDArray[np.bool_] = ((left >= promised) | (amounts == 0)).all(axis=1)
    return result
