"""Batches: the first turns of a cycle, decided and placed at once where many queues ask for pods of one kind.

`FairShareOrder` decides pod by pod which queue is served. Where a thousand queues have bags of equal pods, only shares decide, and
the share of a queue after k pods is known beforehand. The keys of all competitors after 0, 1, 2, … pods are therefore one table,
and sorting it gives the order, level by level in a tree. One selection finds the nodes for all, as for one bag.

The batch ends where another fact begins to matter: the next group is of another kind, or a queue's turns grow (see
`FairShareOrder.stride`). The cycle continues turn by turn from there. Order and plan equal those of turn by turn; tests hold the
batch to that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.scheduling.allocation import GroupAllocation
from flowsched.scheduling.cycle_state import CycleState
from flowsched.scheduling.placement.cost_table import PlacementRequest
from flowsched.scheduling.placement.gang import Ints
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.fair_share import Rank, highest_behind, user_priority
from flowsched.scheduling.queues.tree import Queue, QueueTree, Shares, billionths, largest_share
from flowsched.scheduling.reservations import Taken, longest_of
from flowsched.scheduling.state.usage import Payer, UsageBook

#: After so many pods of a group its turns grow.
ROW: Final = 16
#: Tables have so many entries, at most, or one for each member of a level.
_TABLE: Final = 1 << 16
_BITS: Final = 62
#: The key behind all other keys.
_LAST: Final = 1 << _BITS


class Columns(NamedTuple):
    """The competitors of one level, each field of all of them (C,). Sorted by rank (see `fair_share`).

    `used` and `past` are (C, R); `past` None = no competitor had anything. `slots`: the pods of each, as positions in the list of
    all that are asked for, or only the first where the others follow it. `opens`: whether it may ask for more. `axes`: a
    department is measured on this one; -1, and None for all, = by its dominant share.
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

        Each of their members has at most ROW pods, in consecutive slots.
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

    Afterwards, the `keys` of pods that are not known are `_LAST`.
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


# ---- the order of the first turns ----
#
# `Merger` (above) merges the competitors of one level; `_Level` goes through the levels of the tree, from below.


#: With fewer lines than this, turn by turn is as fast.
FEW_LINES: Final = 8


#: Of some groups, whether each is of the kind that is asked for, and nothing keeps it from being tried.
Alike: TypeAlias = Callable[[Sequence[PodGroup]], list[bool]]


class BatchRequest(NamedTuple):
    """The groups that wait in each queue, and what their order depends on."""

    waiting: Mapping[str, Sequence[PodGroup]]
    tree: QueueTree
    shares: Shares
    usage: UsageBook
    profile: Profile
    now: int


class TurnBatch(msgspec.Struct):
    """The first turns.

    Attributes:
        groups: The groups that may get something.
        of: (K,) the group of each pod, as a position in `groups`; pods in the order of their turns.
    """

    groups: list[PodGroup]
    of: Ints

    def turns(self, most: int) -> int:
        """How many of the first pods make up whole turns, at most so many."""
        if most < len(self.of):
            others = np.flatnonzero(self.of[: most + 1] != self.of[most])
            return int(others[-1]) + 1 if len(others) else 0
        return most


class _Member(NamedTuple):
    """A competitor at one level: a queue or a user of one.

    Attributes:
        slots: (S,) its pods in order, as positions in the list of all that are asked for; or only the first, where the others
            follow it.
        number: How many there are.
        open: It may ask for more than these, or for something else.
        served_ms: When it was last given something.
        axis: A department is measured on this one; -1 = by its dominant share.
    """

    name: str
    priority: int
    aged: int
    weight: int
    used: Sequence[int]
    past: Sequence[int]
    slots: Ints | int
    number: int
    open: bool
    served_ms: int
    axis: int = -1


class _Asked(msgspec.Struct):
    """The pods that are asked for by all lines."""

    groups: list[PodGroup] = msgspec.field(default_factory=list)
    counts: list[int] = msgspec.field(default_factory=list)
    size: int = 0

    def line(self, groups: Sequence[PodGroup], alike: Alike) -> tuple[int, int, bool]:
        """The first slot of a line, how many it has, and whether it may ask for more."""
        before, at = self.size, 0
        for group in groups:
            if self.size - before >= ROW or not alike([group])[0]:
                break
            count = group.roles[0].count
            self.groups.append(group)
            self.counts.append(min(count, ROW))
            self.size += min(count, ROW)
            if count > ROW:
                break
            at += 1
        return before, self.size - before, at < len(groups)


def first_turns(asker: BatchRequest, amount: Sequence[int], most: int, alike: Alike) -> TurnBatch | None:
    """The groups that get the next pods.

    Args:
        asker: The waiting groups. No queue has a guarantee.
        amount: (R,) what one pod of the kind asks for.
        most: The largest number of pods.
        alike: Whether groups are of that kind.

    Returns:
        The first turns; None if they are not known beforehand.
    """
    likely = (
        2 * most // len(asker.waiting) + 4
    )  # pods of each; a batch that ends for lack of them is tried again
    level = _Level(asker, amount, most, alike, min(likely, ROW))
    found = level.order()
    if likely < ROW and level.merger.short and (found is None or (found.open and len(found.slots) < most)):
        level = _Level(asker, amount, most, alike, ROW)
        found = level.order()
    if found is None or not len(found.slots):
        return None
    wave = TurnBatch(
        level.asked.groups, np.repeat(np.arange(len(level.asked.groups)), level.asked.counts)[found.slots]
    )
    if found.open and len(found.slots) < most:  # the last turn may go on
        wave.of = wave.of[: wave.turns(len(wave.of) - 1)]
    return wave


class _Level:
    """Levels of the tree, from below."""

    def __init__(self, asker: BatchRequest, amount: Sequence[int], most: int, alike: Alike, row: int) -> None:
        self._asker, self._amount, self._alike = asker, amount, alike
        self._total = asker.shares.total
        self.merger = Merger(self._total, amount, most, row)
        self._since = (
            asker.now - asker.profile.promote_ms
        )  #: a group that has asked since then has waited long
        self.asked = _Asked()
        self._below: dict[str | None, dict[str, None]] = {}
        parent_of = asker.tree.parent_of
        for name in asker.waiting if asker.tree.nested else ():
            above = parent_of(name)
            below = self._below.get(above)
            if below is None:
                below = self._begin(above)
            below[name] = None

    def _begin(self, name: str | None) -> dict[str, None]:
        """Where those below a queue are put that ask for something; it is put below its own parent."""
        below = self._below[name] = {}
        if name is not None:
            above = self._asker.tree.parent_of(name)
            others = self._below.get(above)
            if others is None:
                others = self._begin(above)
            others[name] = None
        return below

    def order(self) -> Merged | None:
        """All pods in the order of their turns; None where nothing can be said beforehand."""
        top = self.top()
        if top is None:
            return None
        likely = 2 * self.merger.most // len(top.names) + 4
        found = self.merger.merged(top, likely)
        if found is not None and likely < ROW and found.open and len(found.slots) < self.merger.most:
            found = self.merger.merged(top)
        return found

    def top(self) -> Columns | None:
        """Those below the root."""
        asker = self._asker
        if asker.tree.nested:
            members = self._queues(None)
        elif all(len(groups) == 1 for groups in asker.waiting.values()):
            return self._alone(sorted(asker.waiting, key=self._rank))
        else:
            names = list(asker.waiting)
            members = self._given(names, [self._queue(name, asker.waiting[name]) for name in names])
        return self._columns(members) if members else None

    def _queues(self, parent: str | None) -> list[_Member] | None:
        """The queues below one that ask for something."""
        names = self._below.get(parent, ())
        together = self._together(names)
        return self._given(list(names), [self._department(name, together.get(name)) for name in names])

    def _together(self, names: Iterable[str]) -> dict[str, Merged]:
        """The orders of those departments below which there are only queues of one group each, all worked out at once."""
        waiting, found, leaves, starts = self._asker.waiting, [], list[str](), []
        for name in names:
            below = self._below.get(name)
            if below and not waiting.get(name) and self._are_alone(below):
                found.append(name)
                starts.append(len(leaves))
                leaves += sorted(below, key=self._rank)
        orders = self.merger.merged_each(self._alone(leaves), starts) if found else None
        return {} if orders is None else dict(zip(found, orders, strict=True))

    def _given(
        self, names: Sequence[str], members: Sequence[_Member | list[_Member] | None]
    ) -> list[_Member] | None:
        """The members, if each is known beforehand. Queues given by their users (lists) are worked out at once."""
        found = {name: each for name, each in zip(names, members, strict=True) if isinstance(each, _Member)}
        split = {name: each for name, each in zip(names, members, strict=True) if isinstance(each, list)}
        if len(found) + len(split) < len(names):
            return None
        if split:
            rows, starts = list[_Member](), []
            for users in split.values():
                starts.append(len(rows))
                rows += users
            orders = self.merger.merged_each(_columns_of(rows, self._past), starts)
            if orders is None:
                return None
            for name, order in zip(split, orders, strict=True):
                oldest = min([group.ready_ms for group in self._asker.waiting[name]])
                queue = self._asker.tree.configured(name)
                found[name] = self._ordered(name, queue, order, oldest)
        return [found[name] for name in names]

    def _alone(self, names: Sequence[str]) -> Columns:
        """As `_queue` for many queues, of which none has queues below it and each has one group: there may be thousands.

        `names`: sorted by rank.
        """
        asker, asked, alike, before = self._asker, self.asked, self._alike, self.asked.size
        heads = [asker.waiting[name][0] for name in names]
        fine = np.array(alike(heads))
        wanted = np.array([group.roles[0].count for group in heads])
        if fine.all():
            asked.groups += heads
        else:
            wanted[~fine] = 0
            asked.groups += [heads[at] for at in np.flatnonzero(fine).tolist()]
        numbers = np.minimum(wanted, ROW)
        asked.counts += numbers[fine].tolist()
        asked.size += int(numbers.sum())
        priorities, weights = np.zeros_like(numbers), np.ones_like(numbers)
        if len(asker.tree):
            told = asker.tree.weights_of(names)
            weights = np.array([weight for weight, _ in told])
            if asker.tree.ranks:
                priorities = np.array([priority for _, priority in told])
        ready = np.array([group.ready_ms for group in heads])
        aged = np.zeros_like(numbers)
        if int(ready.min()) <= self._since:
            served = asker.usage.served_queues
            since = np.maximum(ready, np.array([served.get(name, 0) for name in names]))
            aged = np.maximum(asker.now - since, 0) // asker.profile.promote_ms
        return Columns(
            names, priorities, aged, weights, asker.shares.usages(names), self._past(asker.shares.pasts(names)),
            before + np.cumsum(numbers) - numbers,
            numbers, (wanted > ROW) | ~fine, None,
        )  # fmt: skip

    def _past(self, rows: Sequence[Sequence[int]]) -> Ints | None:
        """(C, R); None = no competitor had anything."""
        if not any(rows):
            return None
        nothing = (0,) * len(self._total)
        return np.array([each or nothing for each in rows], dtype=np.int64)

    def _columns(self, members: list[_Member]) -> Columns:
        return _columns_of(sorted(members, key=lambda each: (each.served_ms, each.name)), self._past)

    def _rank(self, name: str) -> Rank:
        """Of a queue."""
        return self._asker.usage.served_queues.get(name, 0), name

    def _queue(self, name: str, groups: Sequence[PodGroup]) -> _Member | list[_Member]:
        """A queue that has none below it; or its users by name, if they take turns."""
        asker, asked, group = self._asker, self.asked, groups[0]
        queue = asker.tree.configured(name)
        if len(groups) > 1:
            if queue is None or queue.order != "fifo":
                user = group.user
                if any(each.user != user for each in groups):
                    return self._users(name, groups)
            oldest = min([each.ready_ms for each in groups])
            return self._member(name, queue, *asked.line(groups, self._alike), oldest)
        before, count, more = asked.size, 0, True
        if self._alike(groups)[0]:  # as `line`, for one group: there are many of these
            count = group.roles[0].count
            more = count > ROW
            count = ROW if more else count
            asked.groups.append(group)
            asked.counts.append(count)
            asked.size += count
        priority, weight = (0, 1) if queue is None else (queue.priority, queue.weight)
        aged = 0
        if group.ready_ms <= self._since:
            aged = self._steps(group.ready_ms, asker.usage.served_queues.get(name, 0))
        used, past = asker.shares.usage(name), asker.shares.past(name)
        return _Member(name, priority, aged, weight, used, past, before, count, more, self._rank(name)[0])

    def _department(self, name: str, order: Merged | None) -> _Member | list[_Member] | None:
        """A queue, with those below it. `order`: of their pods, if it is known."""
        asker, below = self._asker, self._below.get(name)
        if not below and not asker.tree.below(name):
            return self._queue(name, asker.waiting[name])
        queue = asker.tree.configured(name)
        groups = asker.waiting.get(name)
        if below and order is not None:
            oldest = min([asker.waiting[each][0].ready_ms for each in below])
            made: _Member | None = self._ordered(name, queue, order, oldest)
        else:
            members = self._queues(name) or []
            if below and len(members) < len(below):
                return None
            if groups:
                if queue is not None and queue.order == "fifo":
                    return None  # its own line stands for all users: what each of them has does not say where it stands
                members += self._users(name, groups, priority=0)
            made = self._above(name, queue, self._columns(members))
        if made is not None:
            if made.open and not made.number:
                return None  # what its next pod asks for is not of the kind: on what it is measured is not known here
            made = made._replace(axis=largest_share(self._amount, self._total))
        return made

    def _users(self, name: str, groups: Sequence[PodGroup], priority: int | None = None) -> list[_Member]:
        by_user: dict[str, list[PodGroup]] = {}
        for group in groups:
            by_user.setdefault(group.user, []).append(group)
        found, shares, served = [], self._asker.shares, self._asker.usage.served_users
        for user in sorted(by_user, key=lambda user: (served.get(Payer(name, user), 0), user)):
            payer, mine, stands = Payer(name, user), by_user[user], priority or 0
            served_ms = served.get(payer, 0)
            aged = self._steps(min([group.ready_ms for group in mine]), served_ms)
            if priority is None:
                behind = highest_behind(mine)
                stands = behind[0]
                aged = user_priority(mine[0], stands, aged) - stands
                mine = mine[: behind.count(stands)]  # its priority stays the same for so many
            slots, count, more = self.asked.line(mine, self._alike)
            more |= len(mine) < len(by_user[user])
            used, past = shares.of_user(payer), shares.past_of_user(payer)
            found.append(_Member(user, stands, aged, 1, used, past, slots, count, more, served_ms))
        return found

    def _are_alone(self, names: Iterable[str]) -> bool:
        """Whether none of these queues has queues below it, and each has one group."""
        waiting = self._asker.waiting
        if any(len(waiting.get(name, ())) != 1 for name in names):
            return False
        return self._below.keys().isdisjoint(names) and self._asker.tree.parents.isdisjoint(names)

    def _above(self, name: str, queue: Queue | None, members: Columns) -> _Member | None:
        """A queue with others below it."""
        order = self.merger.merged(members)
        if order is None:
            return None
        everybody = [self._asker.waiting.get(each, ()) for each in self._everybody(name)]
        oldest = min([group.ready_ms for groups in everybody for group in groups])
        return self._ordered(name, queue, order, oldest)

    def _ordered(self, name: str, queue: Queue | None, order: Merged, oldest: int) -> _Member:
        return self._member(name, queue, order.slots, len(order.slots), order.open, oldest)

    def _everybody(self, name: str) -> list[str]:
        """A queue and those below it."""
        return [name, *(each for child in self._below.get(name, ()) for each in self._everybody(child))]

    def _member(
        self,
        name: str,
        queue: Queue | None,
        slots: Ints | int,
        count: int,
        more: bool,
        oldest: int,
    ) -> _Member:
        asker = self._asker
        priority, weight = (0, 1) if queue is None else (queue.priority, queue.weight)
        aged = self._steps(oldest, asker.usage.served_queues.get(name, 0))
        used, past = asker.shares.usage(name), asker.shares.past(name)
        return _Member(name, priority, aged, weight, used, past, slots, count, more, self._rank(name)[0])

    def _steps(self, oldest: int, served: int) -> int:
        """Steps of priority for having got nothing. `oldest`: since when it waits; `served`: when it got something last; ms."""
        return max(0, self._asker.now - max(oldest, served)) // self._asker.profile.promote_ms


def _columns_of(
    members: Sequence[_Member], past: Callable[[Sequence[Sequence[int]]], Ints | None]
) -> Columns:
    """Each field of all of them. `past`: makes one array of what they had."""
    names, priorities, aged, weights, used, pasts, slots, numbers, opens, _, axes = zip(*members, strict=True)
    departments = np.array(axes) if max(axes) >= 0 else None
    return Columns(
        names, np.array(priorities), np.array(aged), np.array(weights), np.array(used, dtype=np.int64),
        past(pasts), slots, np.array(numbers), np.array(opens), departments,
    )  # fmt: skip


# ---- serving them ----
#
# One selection of nodes, one entry in the plan for each group.


#: With fewer queues than this, turn by turn is as fast.
FEW: Final = 8


def serve_first(cycle: CycleState, budget: int) -> set[object]:
    """Place what the first turns get, as far as they are known beforehand.

    Args:
        cycle: The cycle; groups that have got everything are taken out of `waiting`.
        budget: It looks at no more groups than so many.

    Returns:
        Queues and payers that were served, those above them included. As many groups were looked at as `given` has more.
    """
    found = _kind(cycle)
    if found is None:
        return set()
    offer, alike = found
    asker = BatchRequest(
        cycle.waiting, cycle.queues, cycle.shares, cycle.snapshot.usage, cycle.profile, cycle.now
    )
    amount = offer.group.roles[0].shape.requests
    wave = first_turns(asker, amount, cycle.left, alike)
    if wave is None:
        return set()
    pods = _within(wave, budget)
    free = cycle.quotas.room(amount, pods)
    pods = wave.turns(free) if free < pods else pods
    if pods == 0:
        return set()
    long = cycle.promises.outlasting(offer)
    packing = cycle.profile.of(offer.group.queue).packing
    table = structs.replace(offer.tables[0], count=pods, minimum=1)
    spots = cycle.standings.place_each(offer.axes, table, packing, spare=long is not None)
    pods = wave.turns(len(spots.nodes)) if len(spots.nodes) < pods else pods
    if pods == 0:
        return set()
    nodes, costs, of = spots.nodes[:pods], spots.costs[:pods], wave.of[:pods]
    cycle.room.take(offer.axes, table, type(spots)(nodes, costs), None, long)
    unknown = cycle.profile.default_runtime_ms
    runtimes = [unknown if group.runtime_ms is None else group.runtime_ms for group in wave.groups]
    ends = cycle.now + np.array(runtimes)[of]
    late = ends
    if any(group.high_ms is not None for group in wave.groups):
        late = cycle.now + np.array([longest_of(group, cycle.profile) for group in wave.groups])[of]
    cycle.promises.taken.append(Taken(ends, late, offer.axes, table, nodes))
    if cycle.horizon is not None:
        cycle.horizon.add(nodes, amount, ends - cycle.now)
    cycle.left -= pods
    return enter(cycle, wave, nodes, costs, of)


def _kind(cycle: CycleState) -> tuple[PlacementRequest, Alike] | None:
    """The request that most queue heads have in common, with its costs, and the test whether other groups have the same."""
    profile, tree = cycle.profile, cycle.queues
    if len(cycle.waiting) < FEW or cycle.left < FEW or cycle.snapshot.nominations or tree.promises:
        return None
    if profile.backfill == "conservative" or profile.costs or profile.first_costs or profile.step_costs:
        return None
    if not cycle.snapshot.ready.any():
        return None
    simple = [groups[0] for groups in cycle.waiting.values() if _is_simple(groups[0])]
    if len(simple) < FEW:
        return None
    shapes = [group.roles[0].shape for group in simple]
    kinds = {id(shape): shape for shape in shapes}
    counts: Counter[tuple[int, ...]] = Counter()
    for kind, count in Counter(map(id, shapes)).items():  # mostly one object: hashing requests takes longer
        counts[kinds[kind].requests] += count
    requests, count = counts.most_common(1)[0]
    if count < FEW:
        return None
    first = next(group for group in simple if group.roles[0].shape.requests == requests)
    alike = _alike(cycle, first)
    if not alike([first])[0] or cycle.known_refusal(first) is not None:
        return None
    offer = cycle.pricer.price(first)
    return (offer, alike) if offer.plain else None


def _is_simple(group: PodGroup) -> bool:
    """Whether nothing but its shape and its queue says where it goes, and when."""
    return group.is_uniform and not group.gang and not group.inputs


def _alike(cycle: CycleState, first: PodGroup) -> Alike:
    """Whether groups are simple, ask for the same as this one, and would find the same room."""
    shape, profile, shares = first.roles[0].shape, cycle.profile, cycle.shares
    own = profile.of(first.queue) if profile.queues else None
    limits = cycle.queues.limits or cycle.user_limits.exist
    long = cycle.promises.too_long(first) if cycle.promises.made else None
    usual = own is None and long is None and not limits
    known: dict[int, tuple[Shape, bool]] = {}  #: by id; kept, so that their ids stay theirs
    free: dict[str, bool] = {}

    def same(other: Shape) -> bool:
        found = known.get(id(other))
        if found is None:
            found = known[id(other)] = other, other == shape
        return found[1]

    def may(group: PodGroup) -> bool:
        if own is not None and profile.of(group.queue) is not own:
            return False
        if limits:
            fine = free.get(group.queue)
            if fine is None:
                bound = shares.limited(group.queue) or cycle.user_limits.bind(group.queue)
                fine = free[group.queue] = not (bound or shares.paused(group.queue))
            if not fine:
                return False
        return long is None or cycle.promises.too_long(group) == long

    def alike(groups: Sequence[PodGroup]) -> list[bool]:
        fine = []
        for group in groups:  # thousands: no call for each, as far as it can be helped
            other = group.roles[0].shape
            fine.append(_is_simple(group) and (other is shape or same(other)) and (usual or may(group)))
        return fine

    return alike


def _within(wave: TurnBatch, budget: int) -> int:
    """How many pods go before more than `budget` groups have been looked at."""
    firsts = np.sort(np.unique(wave.of, return_index=True)[1], kind="stable")
    return len(wave.of) if len(firsts) <= budget else int(firsts[budget])


def enter(cycle: CycleState, wave: TurnBatch, nodes: Ints, costs: Ints, of: Ints) -> set[object]:
    """Note for each group what it got, and for each queue what it has."""
    order = np.argsort(of, kind="stable")
    numbers, starts, firsts, counts = _parts(of, order)
    nodes, highest = nodes[order], np.maximum.reduceat(costs[order], starts)
    nothing = np.zeros(len(nodes), dtype=np.int64)
    pods: dict[Payer, int] = {}
    done: set[int] = set()
    rows = np.stack([numbers, starts, counts, highest], axis=1)[np.argsort(firsts, kind="stable")]
    requests = wave.groups[int(of[0])].roles[0].shape.requests
    for number, start, count, cost in rows.tolist():
        group = wave.groups[number]
        end = start + count
        cycle.given[group.key] = GroupAllocation([nodes[start:end]], [nothing[:count]], cost)
        payer = Payer(group.queue, group.user)
        pods[payer] = pods.get(payer, 0) + count
        cycle.quotas.take(group, requests, count)
        if count == group.roles[0].count:
            done.add(group.key)
    cycle.shares.add_each(pods, requests)
    if done:
        for name in {group.queue for group in wave.groups if group.key in done}:
            left = [group for group in cycle.waiting[name] if group.key not in done]
            if left:
                cycle.waiting[name] = left
            else:
                del cycle.waiting[name]
    return _with_those_above({payer.queue for payer in pods} | pods.keys(), cycle)


def _with_those_above(served: set[object], cycle: CycleState) -> set[object]:
    """Queues and payers, the queues above them, too."""
    tree = cycle.queues
    if tree.nested:
        for parent in {tree.parent_of(name) for name in served if isinstance(name, str)}:
            if parent is not None:
                served.update([above.name for above in cycle.shares.path(parent)])
    return served


def _parts(of: Ints, order: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each group that has pods: its number, where they begin in `order`, its first pod, and how many."""
    ordered = of[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(np.append(starts, len(of)))
    return ordered[starts], starts, order[starts], counts
