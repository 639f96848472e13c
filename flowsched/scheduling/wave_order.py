"""The first turns of a cycle, all at once: who gets the next thousand pods, where many lines ask for pods of one kind.

`turns` asks after each pod whose turn it is. Where a thousand queues have bags of equal pods, nothing but shares decides, and what
share a line has after k pods is known beforehand. So the keys of all lines after 0, 1, 2, … pods are one table, and sorting
it gives the order; in a tree, level by level. The order is that of `turns`; tests hold it to that. Nodes come from one
selection, as for one bag (`placement`).

It ends where something else begins to matter: whose head is of another kind, or who has got so much that its turns grow (see
`Turns.stride`), stops the wave before anybody is passed. The turns go on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.framework import Profile
from flowsched.scheduling.placement import Ints
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.queues import Queue, QueueTree, Shares, billionths, largest_share
from flowsched.scheduling.usage import Payer, UsageBook

#: After so many pods of a group its turns grow.
ROW: Final = 16
#: With fewer lines than this, turn by turn is as fast.
FEW_LINES: Final = 8
#: Tables have so many entries, at most, or one for each member of a level.
_TABLE: Final = 1 << 16
_BITS: Final = 62
#: Behind everybody.
_LAST: Final = 1 << _BITS


class Asker(NamedTuple):
    """Whose lines they are, and how their shares are counted."""

    waiting: Mapping[str, Sequence[PodGroup]]
    tree: QueueTree
    shares: Shares
    usage: UsageBook
    profile: Profile
    now: int


@dataclass(slots=True)
class Wave:
    """The first turns.

    Attributes:
        groups: Who may get something.
        of: (K,) whose each pod is, as a position in `groups`; pods in the order of their turns.
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
    axis: int = -1


class _Columns(NamedTuple):
    """The competitors of one level: as `_Member`, each field of all of them. Sorted by name."""

    names: Sequence[str]
    priorities: Ints
    aged: Ints
    weights: Ints
    used: Ints
    past: Ints | None
    slots: Sequence[Ints | int]
    numbers: Ints
    opens: NDArray[np.bool_]
    axes: Ints | None


@dataclass(slots=True)
class _Asked:
    """The pods that are asked for by all lines."""

    groups: list[PodGroup] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    size: int = 0

    def line(self, groups: Sequence[PodGroup], alike: Callable[[PodGroup], bool]) -> tuple[int, int, bool]:
        """The first slot of a line, how many it has, and whether it may ask for more."""
        before, at = self.size, 0
        for group in groups:
            if not alike(group) or self.size - before >= ROW:
                break
            count = group.roles[0].count
            self.groups.append(group)
            self.counts.append(min(count, ROW))
            self.size += min(count, ROW)
            if count > ROW:
                break
            at += 1
        return before, self.size - before, at < len(groups)


def first_turns(
    asker: Asker, amount: Sequence[int], most: int, alike: Callable[[PodGroup], bool]
) -> Wave | None:
    """Who gets the next pods.

    Args:
        asker: Who waits. Nobody has a guarantee.
        amount: (R,) what one pod of the kind asks for.
        most: No more than so many.
        alike: Whether a group is of that kind and nothing keeps it from being tried.

    Returns:
        None where nothing can be said beforehand.
    """
    level = _Level(asker, amount, most, alike)
    top = level.top()
    if top is None:
        return None
    likely = 2 * most // len(top.names) + 4  # pods of each; a wave that ends for lack of them is tried again
    found = level.merged(top, likely)
    if found is not None and likely < ROW and found.open and len(found.slots) < most:
        found = level.merged(top)
    if found is None or not len(found.slots):
        return None
    wave = Wave(
        level.asked.groups, np.repeat(np.arange(len(level.asked.groups)), level.asked.counts)[found.slots]
    )
    if found.open and len(found.slots) < most:  # the last turn may go on
        wave.of = wave.of[: wave.turns(len(wave.of) - 1)]
    return wave


class _Merged(NamedTuple):
    """The order of one level: (K,) slots, and whether it may go on."""

    slots: Ints
    open: bool


class _Level:
    """Levels of the tree, from below."""

    def __init__(
        self, asker: Asker, amount: Sequence[int], most: int, alike: Callable[[PodGroup], bool]
    ) -> None:
        self._asker, self._amount, self._most, self._alike = asker, amount, most, alike
        self._total = asker.shares.total
        self._since = asker.now - asker.profile.promote_ms  #: who asks since then has waited long
        self._needs = [*amount[: len(self._total)], *[0] * (len(self._total) - len(amount))]
        self.asked = _Asked()
        self._below: dict[str | None, dict[str, None]] = {}
        for name in asker.waiting if asker.tree.nested else ():
            above = asker.tree.parent_of(name)
            while name not in self._below.setdefault(above, {}):
                self._below[above][name] = None
                if above is None:
                    break
                name, above = above, asker.tree.parent_of(above)

    def top(self) -> _Columns | None:
        """Those below the root."""
        asker = self._asker
        if asker.tree.nested:
            members = self._queues(None)
        elif all(len(groups) == 1 for groups in asker.waiting.values()):
            return self._alone()
        else:
            members = self._given([self._queue(name, groups) for name, groups in asker.waiting.items()])
        return self._columns(members) if members else None

    def _queues(self, parent: str | None) -> list[_Member] | None:
        """The queues below one that ask for something."""
        return self._given([self._department(name) for name in self._below.get(parent, ())])

    @staticmethod
    def _given(members: list[_Member | None]) -> list[_Member] | None:
        """The members, if something can be said of each."""
        found = [each for each in members if each is not None]
        return found if len(found) == len(members) else None

    def _alone(self) -> _Columns:
        """As `_queue` for all of them, where none is below another and each has one group: there may be thousands."""
        asker, asked, alike = self._asker, self.asked, self._alike
        names, heads = list(asker.waiting), [groups[0] for groups in asker.waiting.values()]
        fine = [alike(group) for group in heads]
        wanted = np.array([group.roles[0].count if ok else 0 for group, ok in zip(heads, fine, strict=True)])
        numbers = np.minimum(wanted, ROW)
        asked.groups = [group for group, ok in zip(heads, fine, strict=True) if ok]
        asked.counts = numbers[fine].tolist()
        priorities, weights = np.zeros_like(numbers), np.ones_like(numbers)
        configured = [asker.tree.configured(name) for name in names] if len(asker.tree) else []
        for at, queue in enumerate(configured):
            if queue is not None:
                priorities[at], weights[at] = queue.priority, queue.weight
        ready = np.array([group.ready_ms for group in heads])
        aged = np.zeros_like(numbers)
        if int(ready.min()) <= self._since:
            served = asker.usage.served_queues
            since = np.maximum(ready, np.array([served.get(name, 0) for name in names]))
            aged = np.maximum(asker.now - since, 0) // asker.profile.promote_ms
        return _Columns(
            names, priorities, aged, weights, asker.shares.usages(names), self._past(asker.shares.pasts(names)),
            (np.cumsum(numbers) - numbers).tolist(),
            numbers, (wanted > ROW) | ~np.array(fine), None,
        )  # fmt: skip

    def _past(self, rows: Sequence[Sequence[int]]) -> Ints | None:
        """(C, R); None = nobody had anything."""
        if not any(rows):
            return None
        nothing = (0,) * len(self._total)
        return np.array([each or nothing for each in rows], dtype=np.int64)

    def _columns(self, members: list[_Member]) -> _Columns:
        names, priorities, aged, weights, used, past, slots, numbers, opens, axes = zip(
            *sorted(members, key=lambda each: each.name), strict=True
        )
        departments = np.array(axes) if max(axes) >= 0 else None
        return _Columns(
            names, np.array(priorities), np.array(aged), np.array(weights), np.array(used, dtype=np.int64),
            self._past(past), slots, np.array(numbers), np.array(opens), departments,
        )  # fmt: skip

    def _queue(self, name: str, groups: Sequence[PodGroup]) -> _Member | None:
        """A queue that has none below it."""
        asker, asked, group = self._asker, self.asked, groups[0]
        queue = asker.tree.configured(name)
        if len(groups) > 1:
            if queue is None or queue.order != "fifo":
                user = group.user
                if any(each.user != user for each in groups):
                    return self._with_users(name, queue, self._users(name, groups))
            return self._member(name, queue, *asked.line(groups, self._alike), groups)
        before, count, more = asked.size, 0, True
        if self._alike(group):  # as `line`, for one group: there are many of these
            count = group.roles[0].count
            more = count > ROW
            count = ROW if more else count
            asked.groups.append(group)
            asked.counts.append(count)
            asked.size += count
        priority, weight = (0, 1) if queue is None else (queue.priority, queue.weight)
        aged = 0
        if group.ready_ms <= self._since:
            aged = self._steps(groups, asker.usage.served_queues.get(name, 0))
        used, past = asker.shares.usage(name), asker.shares.past(name)
        return _Member(name, priority, aged, weight, used, past, before, count, more)

    def _department(self, name: str) -> _Member | None:
        asker, below = self._asker, self._below.get(name)
        if not below and not asker.tree.below(name):
            return self._queue(name, asker.waiting[name])
        members = self._queues(name) or []
        queue = asker.tree.configured(name)
        groups = asker.waiting.get(name)
        if below and len(members) < len(below):
            return None
        if groups:
            if queue is not None and queue.order == "fifo":
                return None  # its own line stands for all users: what each of them has does not say where it stands
            members += self._users(name, groups, priority=0)
        made = self._with_users(name, queue, members)
        if made is not None:
            if made.open and not made.number:
                return None  # what its next pod asks for is not of the kind: on what it is measured is not known here
            made = made._replace(axis=largest_share(self._amount, self._total))
        return made

    def _users(self, name: str, groups: Sequence[PodGroup], priority: int | None = None) -> list[_Member]:
        by_user: dict[str, list[PodGroup]] = {}
        for group in groups:
            by_user.setdefault(group.user, []).append(group)
        found = []
        for user in sorted(by_user):
            head = by_user[user][0].priority
            mine = by_user[user]
            if priority is None:  # a user stands as its head does
                mine = mine[: next((at for at, each in enumerate(mine) if each.priority != head), len(mine))]
            slots, count, more = self.asked.line(mine, self._alike)
            more |= len(mine) < len(by_user[user])
            stands = head if priority is None else priority
            found.append(self._user(name, user, by_user[user], (slots, count, more), stands))
        return found

    def _user(
        self, name: str, user: str, groups: Sequence[PodGroup], asks: tuple[int, int, bool], priority: int
    ) -> _Member:
        shares, payer = self._asker.shares, Payer(name, user)
        served = self._asker.usage.served_users.get(payer, 0)
        aged = self._steps(groups, served)
        used, past = shares.of_user(payer), shares.past_of_user(payer)
        return _Member(user, priority, aged, 1, used, past, *asks)

    def _with_users(self, name: str, queue: Queue | None, members: list[_Member]) -> _Member | None:
        """A queue with others below it."""
        order = self.merged(self._columns(members))
        if order is None:
            return None
        groups = [group for each in self._everybody(name) for group in self._asker.waiting.get(each, ())]
        return self._member(name, queue, order.slots, len(order.slots), order.open, groups)

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
        groups: Sequence[PodGroup],
    ) -> _Member:
        asker = self._asker
        priority, weight = (0, 1) if queue is None else (queue.priority, queue.weight)
        aged = self._steps(groups, asker.usage.served_queues.get(name, 0))
        used, past = asker.shares.usage(name), asker.shares.past(name)
        return _Member(name, priority, aged, weight, used, past, slots, count, more)

    def _steps(self, groups: Sequence[PodGroup], served: int) -> int:
        """Steps of priority for having got nothing."""
        oldest = groups[0].ready_ms if len(groups) == 1 else min([group.ready_ms for group in groups])
        return max(0, self._asker.now - max(oldest, served)) // self._asker.profile.promote_ms

    def merged(self, level: _Columns, most: int = _LAST) -> _Merged | None:
        """The members' pods in one order, at most so many of each; None where keys would be too long for it, or names are not
        unique.
        """
        count = len(level.names)
        if len(set(level.names)) < count:
            return None
        width = max(1, min(max(ROW, _TABLE // count), self._most, most, int(level.numbers.max())))
        caps, more = np.minimum(level.numbers, width), level.opens | (level.numbers > width)
        shares = self._shares(level, width)
        if shares is None:
            return None
        if int(level.weights.max()) > 1:
            shares //= level.weights[:, None]
        keys = keys_of(level.priorities, level.aged, shares)
        if keys is None:
            return None
        rows, steps = np.arange(count), np.arange(width)
        edges = np.where(caps > 0, keys[rows, np.maximum(caps, 1) - 1], keys[:, 0] - 1)[more]
        keys[steps >= caps[:, None]] = _LAST
        flat = keys.ravel()
        near = np.flatnonzero(flat <= min(int(edges.min(initial=_LAST - 1)), _LAST - 1))
        taken = near[np.argsort(flat[near], kind="stable")][: self._most]
        table = np.array([each if isinstance(each, int) else 0 for each in level.slots])[:, None] + steps
        for at, each in enumerate(level.slots):
            if not isinstance(each, int):
                table[at, : caps[at]] = each[: caps[at]]
        return _Merged(table.ravel()[taken], bool(more.any()) or len(taken) < len(near))

    def _shares(self, level: _Columns, width: int) -> Ints | None:
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
