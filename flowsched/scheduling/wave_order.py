"""The first turns of a cycle, all at once: who gets the next thousand pods, where many lines ask for pods of one kind.

`turns` asks after each pod whose turn it is. Where a thousand queues have bags of equal pods, nothing but shares decides, and what
share a line has after k pods is known beforehand. So the keys of all lines after 0, 1, 2, … pods are one table, and sorting
it gives the order; in a tree, level by level. The order is that of `turns`; tests hold it to that. Nodes come from one
selection, as for one bag (`placement`).

It ends where something else begins to matter: whose head is of another kind, or who has got so much that its turns grow (see
`Turns.stride`), stops the wave before anybody is passed. The turns go on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from flowsched.scheduling.framework import Profile
from flowsched.scheduling.placement import Ints
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.queues import Queue, QueueTree, Shares, largest_share
from flowsched.scheduling.usage import Payer, UsageBook
from flowsched.scheduling.wave_merge import ROW, Columns, Merged, Merger

#: With fewer lines than this, turn by turn is as fast.
FEW_LINES: Final = 8


#: Of some groups, whether each is of the kind that is asked for, and nothing keeps it from being tried.
Alike: TypeAlias = Callable[[Sequence[PodGroup]], list[bool]]


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


@dataclass(slots=True)
class _Asked:
    """The pods that are asked for by all lines."""

    groups: list[PodGroup] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
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


def first_turns(asker: Asker, amount: Sequence[int], most: int, alike: Alike) -> Wave | None:
    """Who gets the next pods.

    Args:
        asker: Who waits. Nobody has a guarantee.
        amount: (R,) what one pod of the kind asks for.
        most: No more than so many.
        alike: Who is of that kind.

    Returns:
        None where nothing can be said beforehand.
    """
    likely = (
        2 * most // len(asker.waiting) + 4
    )  # pods of each; a wave that ends for lack of them is tried again
    level = _Level(asker, amount, most, alike, min(likely, ROW))
    found = level.order()
    if likely < ROW and level.merger.short and (found is None or (found.open and len(found.slots) < most)):
        level = _Level(asker, amount, most, alike, ROW)
        found = level.order()
    if found is None or not len(found.slots):
        return None
    wave = Wave(
        level.asked.groups, np.repeat(np.arange(len(level.asked.groups)), level.asked.counts)[found.slots]
    )
    if found.open and len(found.slots) < most:  # the last turn may go on
        wave.of = wave.of[: wave.turns(len(wave.of) - 1)]
    return wave


class _Level:
    """Levels of the tree, from below."""

    def __init__(self, asker: Asker, amount: Sequence[int], most: int, alike: Alike, row: int) -> None:
        self._asker, self._amount, self._alike = asker, amount, alike
        self._total = asker.shares.total
        self.merger = Merger(self._total, amount, most, row)
        self._since = asker.now - asker.profile.promote_ms  #: who asks since then has waited long
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
            return self._alone(list(asker.waiting))
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
                leaves += sorted(below)
        orders = self.merger.merged_each(self._alone(leaves), starts) if found else None
        return {} if orders is None else dict(zip(found, orders, strict=True))

    def _given(
        self, names: Sequence[str], members: Sequence[_Member | list[_Member] | None]
    ) -> list[_Member] | None:
        """The members, if something can be said of each. Queues that are told by their users (lists) are worked out at once."""
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
        """As `_queue` for all of them, where nobody is below them and each has one group: there may be thousands.

        `names`: sorted.
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
        """(C, R); None = nobody had anything."""
        if not any(rows):
            return None
        nothing = (0,) * len(self._total)
        return np.array([each or nothing for each in rows], dtype=np.int64)

    def _columns(self, members: list[_Member]) -> Columns:
        return _columns_of(sorted(members, key=lambda each: each.name), self._past)

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
        return _Member(name, priority, aged, weight, used, past, before, count, more)

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
        aged = self._steps(min([group.ready_ms for group in groups]), served)
        used, past = shares.of_user(payer), shares.past_of_user(payer)
        return _Member(user, priority, aged, 1, used, past, *asks)

    def _are_alone(self, names: Iterable[str]) -> bool:
        """Whether nobody is below any of some queues, and each has one group."""
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
        return _Member(name, priority, aged, weight, used, past, slots, count, more)

    def _steps(self, oldest: int, served: int) -> int:
        """Steps of priority for having got nothing. `oldest`: since when it waits; `served`: when it got something last; ms."""
        return max(0, self._asker.now - max(oldest, served)) // self._asker.profile.promote_ms


def _columns_of(
    members: Sequence[_Member], past: Callable[[Sequence[Sequence[int]]], Ints | None]
) -> Columns:
    """Each field of all of them. `past`: makes one array of what they had."""
    names, priorities, aged, weights, used, pasts, slots, numbers, opens, axes = zip(*members, strict=True)
    departments = np.array(axes) if max(axes) >= 0 else None
    return Columns(
        names, np.array(priorities), np.array(aged), np.array(weights), np.array(used, dtype=np.int64),
        past(pasts), slots, np.array(numbers), np.array(opens), departments,
    )  # fmt: skip
