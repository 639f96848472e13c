"""The groups that wait, in the order in which a cycle takes them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.snapshot import AXES
from flowsched.scheduling.state.usage import Payer, UsageBook

OrderKey = tuple[int, ...]
_CPU: Final = AXES.index("cpu")
_NEVER: Final = 1 << 62
#: So many shapes are known to be large, or not.
_MOST_SHAPES: Final = 4096
#: So many moments of groups that have gone may be noted still.
_MOST_GONE: Final = 1_000
#: A list with more changes than one for so many entries is sorted anew: that costs less than to search for each.
_FEW: Final = 32


def effective_priority(group: PodGroup, now: int, promote_ms: int) -> int:
    """The group's priority, and one more for each `promote_ms` it has waited, so that every wait ends."""
    return group.priority + max(0, now - group.ready_ms) // promote_ms


def oldest_of(waiting: Mapping[str, Sequence[PodGroup]]) -> dict[Payer, int]:
    """When the oldest group of each user of a queue became ready. `waiting`: groups by queue."""
    oldest: dict[Payer, int] = {}
    for groups in waiting.values():
        for group in groups:
            payer = Payer(group.queue, group.user)
            oldest[payer] = min(group.ready_ms, oldest.get(payer, group.ready_ms))
    return oldest


class Promotions:
    """Steps of priority that waiting gives to queues and users: one for each `promote_ms` in which one asked and got nothing.

    Args:
        oldest: When the oldest waiting group of each user of a queue became ready.
        queues: The queues that pay.
        usage: When queues and users were given something last.
        now: The moment, wall-clock ms.
        promote_ms: How long one step takes.
    """

    def __init__(
        self, oldest: Mapping[Payer, int], queues: QueueTree, usage: UsageBook, now: int, promote_ms: int
    ) -> None:
        self._queues, self._now, self._promote_ms = queues, now, promote_ms
        self._since: dict[Payer | str, int] = {}
        for payer, ready_ms in oldest.items():
            if ready_ms > now - promote_ms:
                continue
            self._since[payer] = max(ready_ms, usage.served_users.get(payer, 0))
            for name in [queue.name for queue in queues.path(payer.queue)]:
                since = max(ready_ms, usage.served_queues.get(name, 0))
                self._since[name] = min(since, self._since.get(name, now))

    def consume(self, group: PodGroup) -> tuple[int, ...]:
        """The steps of each queue on the group's path, from the root down, of its user, and of the group in its queue.

        Afterwards the queues and the user have none. Empty where waiting has given no step.
        """
        if group.ready_ms > self._now - self._promote_ms and not self._since:
            return ()
        names: list[Payer | str] = [queue.name for queue in self._queues.path(group.queue)]
        names.append(Payer(group.queue, group.user))
        waits = [self._now - self._since.pop(name, self._now) for name in names]
        steps = tuple([max(0, wait) // self._promote_ms for wait in (*waits, self._now - group.ready_ms)])
        return steps if any(steps) else ()


class _Place(NamedTuple):
    """Where a group stands: its queue, its key there, and when time alone will move it (wall-clock ms)."""

    queue: str
    key: OrderKey
    until_ms: int


class _Changes:
    """Changes of a sorted list of unique entries: some leave it, others come into it."""

    __slots__ = ("came", "left")

    def __init__(self) -> None:
        self.left: set[OrderKey] = set()
        self.came: set[OrderKey] = set()

    def note(self, entry: OrderKey, sign: int) -> None:
        """Note that an entry comes (`sign` 1) or leaves (-1)."""
        to, other = (self.came, self.left) if sign > 0 else (self.left, self.came)
        if entry in other:
            other.remove(entry)
        else:
            to.add(entry)

    def are_few(self, entries: list[OrderKey]) -> bool:
        """Whether making them one by one costs less than sorting the list anew."""
        return _FEW * (len(self.left) + len(self.came)) <= len(entries)

    def make(self, entries: list[OrderKey]) -> None:
        """Make the changes."""
        if not self.are_few(entries):
            entries[:] = sorted([*(each for each in entries if each not in self.left), *self.came])
            return
        for each in self.left:
            del entries[bisect_left(entries, each)]
        for each in self.came:
            insort(entries, each)


class _Line:
    """The groups of one queue in their order.

    Attributes:
        keys: Their keys, sorted; the last part of each is the group's.
        groups: The groups, in the order of `keys`.
    """

    __slots__ = ("groups", "keys")

    def __init__(self) -> None:
        self.keys: list[OrderKey] = []
        self.groups: list[PodGroup] = []

    def make(self, changes: _Changes, known: Mapping[int, PodGroup]) -> None:
        """Make changes of the order. `known`: the groups by key."""
        keys, groups = self.keys, self.groups
        if not changes.are_few(keys):
            changes.make(keys)
            groups[:] = [known[key[-1]] for key in keys]
            return
        for key in changes.left:
            at = bisect_left(keys, key)
            del keys[at], groups[at]
        for key in changes.came:
            at = bisect_left(keys, key)
            keys.insert(at, key)
            groups.insert(at, known[key[-1]])

    def replace(self, key: OrderKey, group: PodGroup) -> None:
        """A group that stays where it is has changed."""
        self.groups[bisect_left(self.keys, key)] = group


class _Counted(NamedTuple):
    """Changes of the sorted lists that a `WaitingOrder` keeps beside the order: of all, by workflow, and by user."""

    ranks: _Changes
    ranks_of: defaultdict[str, _Changes]
    ready_of: defaultdict[Payer, _Changes]


def _counted(group: PodGroup) -> tuple[object, ...]:
    """The facts of a group that a `WaitingOrder` counts. (The same roles are mostly one object.)"""
    return (
        group.rank_ms,
        group.runtime_ms,
        group.workflow,
        group.roles,
        group.ready_ms,
        group.queue,
        group.user,
    )


class WaitingOrder:
    """The groups that wait, by queue, in the order in which a cycle looks at them. It is kept from cycle to cycle: a cycle moves
    the groups that have come, gone or changed since the last one, and the groups that time alone moves.

    A group's key is its (aged) priority, its age in whole classes, and the critical path; of equal ones the group that was ready
    first goes first. Lengths of workflows within the same power of two count as equal: among those the critical path goes first,
    which fills a cluster better. In a "fifo" queue only priority and arrival count.

    Where the shortest workflow goes first, a group that is further from the end of its workflow than all work takes on all cores
    has no time to lose, and goes before all: the last to end would end later. So does a gang, or a pod of more than half a node,
    whatever its workflow: room for them has to be collected, and a stream of short workflows would never leave them any.

    A gang that has a reserved start goes before all of its priority: older and longer work would else take back from it what it
    was promised (see decisions/003).

    Attributes:
        work: Milli-CPU times ms that all of them will take.
        changed: The groups that the last `bring` found new or changed.
    """

    def __init__(self) -> None:
        self._basis: tuple[object, ...] = ()
        self._now = self._longer = 0
        self.work = 0
        self.changed: list[PodGroup] = []
        self._clear()

    def _clear(self) -> None:
        self.work, self._longer = 0, _NEVER
        self._groups: dict[int, PodGroup] = {}
        self._places: dict[int, _Place] = {}
        self._queues: dict[str, _Line] = {}
        self._moves: list[tuple[int, int]] = []  #: a heap of (moment, group) at which time moves groups
        self._ranks: list[OrderKey] = []  #: (rank, group) of all, sorted
        self._ranks_of: dict[str, list[OrderKey]] = {}  #: the same, by workflow
        self._ready_of: dict[Payer, list[OrderKey]] = {}  #: (ready, group) by user, sorted
        self._lengths: dict[str, int] = {}  #: how far the end of each workflow is, in powers of two
        self._large: dict[int, tuple[Shape, bool]] = {}  #: by the shape's id: many groups have it in common

    @property
    def furthest_ms(self) -> int | None:
        """The highest rank; None where no group is behind another."""
        return self._ranks[-1][0] if len(self._queues) < len(self._groups) else None

    def oldest(self) -> dict[Payer, int]:
        """When the oldest waiting group of each user of a queue became ready. As `oldest_of`, without a pass over the groups."""
        return {payer: ready[0][0] for payer, ready in self._ready_of.items()}

    def bring(
        self,
        backlog: Sequence[PodGroup],
        queues: QueueTree,
        profile: Profile,
        now: int,
        half: Sequence[int] = (),
    ) -> None:
        """Note which groups wait.

        Args:
            backlog: All that wait; keys are unique.
            queues: The queues that pay.
            profile: The policy.
            now: The moment, wall-clock ms.
            half: (R,) half of the largest node; empty = no pod counts as large.
        """
        basis = queues, queues.changes, profile, tuple(half)
        if basis != self._basis or now < self._now:
            self._clear()
        self._basis, self._now = basis, now
        self._tree, self._profile, self._half = queues, profile, half
        known = self._groups
        changed = self.changed = [group for group in backlog if known.get(group.key) is not group]
        came = sum([group.key not in known for group in changed])
        left: Collection[int] = ()
        if len(known) + came > len(backlog):
            left = known.keys() - {group.key for group in backlog}
        changes = _Counted(_Changes(), defaultdict(_Changes), defaultdict(_Changes))
        for key in left:
            self._count(known.pop(key), -1, changes)
        for group in changed:
            before = known.get(group.key)
            known[group.key] = group
            if before is not None and _counted(before) == _counted(group):
                continue
            if before is not None:
                self._count(before, -1, changes)
            self._count(group, 1, changes)
        moved = {group.key for group in changed}
        changes.ranks.make(self._ranks)
        for workflow, some in changes.ranks_of.items():
            moved |= self._reranked(workflow, some)
        for payer, some in changes.ready_of.items():
            ready = self._ready_of.setdefault(payer, [])
            some.make(ready)
            if not ready:
                del self._ready_of[payer]
        while self._moves and self._moves[0][0] <= now:
            moment, key = heappop(self._moves)
            place = self._places.get(key)
            if key in known and place is not None and place.until_ms == moment:
                moved.add(key)
        self._move(left, moved)

    def by_queue(self, longer_ms: int | None = None) -> dict[str, list[PodGroup]]:
        """The groups of each queue in their order.

        `longer_ms`: how long all that runs and waits takes on all cores together; None = no group is that far from the end of its
        workflow.
        """
        longer = _NEVER if longer_ms is None else longer_ms
        low, high = sorted((self._longer, longer))
        if low < high:
            self._longer = longer
            some = self._ranks[bisect_left(self._ranks, (low,)) : bisect_left(self._ranks, (high,))]
            self._move((), {key for _, key in some})
        ordered = {name: [*self._queues[name].groups] for name in sorted(self._queues)}
        profile = self._profile
        if profile.queue_order is not None or any(each.queue_order for each in profile.queues.values()):
            _by_plugins(ordered, self._tree, profile, self._now)
        return ordered

    def _count(self, group: PodGroup, sign: int, changes: _Counted) -> None:
        """Count a group that has come (`sign` 1) or gone (-1)."""
        runtime_ms = self._profile.default_runtime_ms if group.runtime_ms is None else group.runtime_ms
        self.work += sign * runtime_ms * sum([r.count * r.shape.requests[_CPU] for r in group.roles])
        entry = group.rank_ms, group.key
        changes.ranks.note(entry, sign)
        changes.ranks_of[group.workflow].note(entry, sign)
        changes.ready_of[Payer(group.queue, group.user)].note((group.ready_ms, group.key), sign)

    def _reranked(self, workflow: str, changes: _Changes) -> set[int]:
        """Note new ranks in a workflow. Returns its groups if its end is further, or nearer, by a power of two."""
        ranks = self._ranks_of.setdefault(workflow, [])
        changes.make(ranks)
        length, before = max(ranks[-1][0], 0).bit_length() if ranks else 0, self._lengths.get(workflow)
        self._lengths[workflow] = length
        if not ranks:
            del self._ranks_of[workflow], self._lengths[workflow]
        return set() if length == before else {key for _, key in ranks}

    def _move(self, left: Iterable[int], moved: Iterable[int]) -> None:
        """Put groups where they stand now. `left`: those that wait no more."""
        queues: defaultdict[str, _Changes] = defaultdict(_Changes)
        stay = []
        for key in left:
            place = self._places.pop(key)
            queues[place.queue].note(place.key, -1)
        for key in moved:
            before, place = self._places.get(key), self._place(self._groups[key])
            self._places[key] = place
            if before is not None and before[:2] == place[:2]:
                stay.append(place)
            else:
                if before is not None:
                    queues[before.queue].note(before.key, -1)
                queues[place.queue].note(place.key, 1)
            if before is None or before.until_ms != place.until_ms:
                heappush(self._moves, (place.until_ms, key))
        if len(self._moves) > 2 * len(self._places) + _MOST_GONE:
            self._moves = sorted((place.until_ms, key) for key, place in self._places.items())
        for name, changes in queues.items():
            line = self._queues.get(name)
            if line is None:
                line = self._queues[name] = _Line()
            line.make(changes, self._groups)
            if not line.keys:
                del self._queues[name]
        for place in stay:
            self._queues[place.queue].replace(place.key, self._groups[place.key[-1]])

    def _place(self, group: PodGroup) -> _Place:
        profile, name, since, now = self._profile, group.queue, group.ready_ms, self._now
        own = profile.of(name)
        waited = now - since if since < now else 0
        steps, classes = waited // profile.promote_ms, waited // own.age_class_ms
        until_ms = since + min((steps + 1) * profile.promote_ms, (classes + 1) * own.age_class_ms)
        priority, reserved = -group.priority - steps, not is_reserved(group)
        if own.order == "fifo" or self._tree.get(name).order == "fifo":
            return _Place(name, (priority, reserved, since, group.key), until_ms)
        length = 0 if own.order != "shortest" or self._is_first(group) else self._lengths[group.workflow]
        key = priority, reserved, -classes, length, -group.rank_ms, since, group.key
        return _Place(name, key, until_ms)

    def _is_first(self, group: PodGroup) -> bool:
        """Whether a group goes before those of shorter workflows."""
        if group.rank_ms >= self._longer or group.gang:
            return True
        shape = group.roles[0].shape  # of a bag
        known = self._large.get(id(shape))
        if known is None:
            if len(self._large) >= _MOST_SHAPES:
                self._large.clear()
            known = self._large[id(shape)] = shape, is_large(group, self._half)
        return known[1]


def in_order(
    backlog: Sequence[PodGroup],
    queues: QueueTree,
    profile: Profile,
    now: int,
    work_ms: int | None = None,
    half: Sequence[int] = (),
) -> dict[str, list[PodGroup]]:
    """The groups of each queue in the order of a `WaitingOrder` that knows no others."""
    order = WaitingOrder()
    order.bring(backlog, queues, profile, now, half)
    return order.by_queue(work_ms)


def _by_plugins(ordered: dict[str, list[PodGroup]], queues: QueueTree, profile: Profile, now: int) -> None:
    for name, groups in ordered.items():
        judge = profile.of(name).queue_order
        if judge is not None and queues.get(name).order != "fifo":
            ordered[name] = reordered(groups, judge(groups, now), now, profile.promote_ms)


def reordered(
    groups: Sequence[PodGroup], keys: NDArray[np.int64], now: int, promote_ms: int
) -> list[PodGroup]:
    """Groups by (aged) priority, which bounds every wait, then by a plugin's keys, then as they stood."""
    rows = keys.reshape(len(groups), -1).tolist()
    priorities = [-effective_priority(group, now, promote_ms) for group in groups]
    at = sorted(range(len(groups)), key=lambda number: (priorities[number], rows[number]))
    return [groups[number] for number in at]


def is_large(group: PodGroup, half: Sequence[int]) -> bool:
    """Whether one of its pods asks for more than this of anything."""
    for role in group.roles:
        for need, most in zip(role.shape.requests, half, strict=False):
            if need > most:
                return True
    return False


def is_reserved(group: PodGroup) -> bool:
    """Whether an earlier cycle reserved a start for it that binds others. Of a bag only its next pod has one."""
    return group.gang and group.promised_ms is not None


def pop_reserved(waiting: dict[str, list[PodGroup]], queues: QueueTree) -> PodGroup | None:
    """Take out the group that the cycle considers before all turns: of the groups at the heads of queues, the one with the earliest
    reserved start.

    Otherwise a queue with a smaller share would have the room reserved for its own first group, and the reservation would go from
    one group to the other and hold for neither. The head of a "fifo" queue stays where it is.
    """
    fronts = [
        (groups[0].promised_ms or 0, groups[0].key, name)
        for name, groups in waiting.items()
        if is_reserved(groups[0]) and queues.get(name).order != "fifo"
    ]
    if not fronts:
        return None
    name = min(fronts)[2]
    first = waiting[name].pop(0)
    if not waiting[name]:
        del waiting[name]
    return first


def weighted(parts: Sequence[tuple[Sequence[int], int]], axes: int) -> tuple[int, ...]:
    """(R,) the sum of requests times counts."""
    total = [0] * axes
    for requests, count in parts:
        for axis, need in enumerate(requests[:axes]):
            total[axis] += need * count
    return tuple(total)


def minimum_of(group: PodGroup, axes: int) -> tuple[int, ...]:
    """(R,) the least a group starts with."""
    return weighted([(role.shape.requests, role.minimum if group.gang else 1) for role in group.roles], axes)
