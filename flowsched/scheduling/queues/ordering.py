"""The groups that wait, in the order in which a cycle takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.usage import Payer, UsageBook

OrderKey = tuple[int, ...]


def effective_priority(group: PodGroup, now: int, promote_ms: int) -> int:
    """The group's priority, and one more for each `promote_ms` it has waited, so that every wait ends."""
    return group.priority + max(0, now - group.ready_ms) // promote_ms


class Promotions:
    """Steps of priority that waiting gives to queues and users: one for each `promote_ms` in which one asked and got nothing.

    Args:
        backlog: The waiting groups.
        queues: The queues that pay.
        usage: When queues and users were given something last.
        now: The moment, wall-clock ms.
        promote_ms: How long one step takes.
    """

    def __init__(
        self, backlog: Sequence[PodGroup], queues: QueueTree, usage: UsageBook, now: int, promote_ms: int
    ) -> None:
        self._queues, self._now, self._promote_ms = queues, now, promote_ms
        self._since: dict[Payer | str, int] = {}
        oldest: dict[Payer, int] = {}
        latest = now - promote_ms
        for group in backlog:
            if group.ready_ms > latest:
                continue
            payer = Payer(group.queue, group.user)
            if group.ready_ms < oldest.get(payer, now):
                oldest[payer] = group.ready_ms
        for payer, ready_ms in oldest.items():
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


def in_order(
    backlog: Sequence[PodGroup],
    queues: QueueTree,
    profile: Profile,
    now: int,
    work_ms: int | None = None,
    half: Sequence[int] = (),
) -> dict[str, list[PodGroup]]:
    """The groups of each queue in the order in which they are looked at.

    `work_ms`: how long all that runs and waits would take on all cores together. Where the shortest workflow goes first, a group
    from which it is further to the end than that has no time to lose, and goes before all: the last to end would end later. So does
    a gang, or a pod of more than half a node (`half`: (R,) of the largest one), whatever its workflow: room for them has to be
    collected, and a stream of short workflows would never leave them any.

    A group's key is its (aged) priority, its age in whole classes, and the critical path; of equal ones the group that was ready
    first goes first. Lengths of workflows within the same power of two count as equal: among those the critical path goes first,
    which fills a cluster better. In a "fifo" queue only priority and arrival count.

    A gang that has a reserved start goes before all of its priority: older and longer work would else take back from it what it
    was promised (see decisions/003).
    """
    waiting: dict[str, list[PodGroup]] = {}
    for group in backlog:
        groups = waiting.get(group.queue)
        if groups is None:
            waiting[group.queue] = [group]
        else:
            groups.append(group)
    lengths: dict[str, int] = {}
    shortest = "shortest" in (profile.order, *(each.order for each in profile.queues.values()))
    if shortest and len(waiting) < len(backlog):
        lengths = _lengths(backlog)
    large: dict[int, bool] = {}  #: by the shape's id: many have it in common

    def is_first(group: PodGroup) -> bool:
        if (work_ms is not None and group.rank_ms >= work_ms) or group.gang:
            return True
        shape = group.roles[0].shape  # of a bag
        known = large.get(id(shape))
        if known is None:
            known = large[id(shape)] = is_large(group, half)
        return known

    def keys_in(name: str, groups: Sequence[PodGroup]) -> Iterator[OrderKey]:
        own = profile.of(name)
        strict = own.order == "fifo" or queues.get(name).order == "fifo"
        by_length = own.order == "shortest" and bool(lengths)
        promote_ms, age_class_ms = profile.promote_ms, own.age_class_ms
        for group in groups:  # hundreds in each cycle: few calls for each
            since = group.ready_ms
            waited = now - since if since < now else 0
            priority = -group.priority - waited // promote_ms
            reserved = not (group.gang and is_reserved(group))
            if strict:
                yield priority, reserved, since, group.key
                continue
            length = lengths[group.workflow] if by_length and not is_first(group) else 0
            yield priority, reserved, -(waited // age_class_ms), length, -group.rank_ms, since, group.key

    ordered = {name: waiting[name] for name in sorted(waiting)}
    for name, groups in ordered.items():
        if len(groups) > 1:
            ordered[name] = [group for _, group in sorted(zip(keys_in(name, groups), groups, strict=True))]
    if profile.queue_order is not None or any(each.queue_order for each in profile.queues.values()):
        _by_plugins(ordered, queues, profile, now)
    return ordered


def _lengths(backlog: Sequence[PodGroup]) -> dict[str, int]:
    """How far the end of each workflow is, in powers of two."""
    remaining: dict[str, int] = {}
    for group in backlog:
        known = remaining.get(group.workflow)
        if known is None or group.rank_ms > known:
            remaining[group.workflow] = max(group.rank_ms, 0)
    return {workflow: furthest.bit_length() for workflow, furthest in remaining.items()}


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
