"""Quotas in one cycle: what flowsched's own pods may have more, all queues together. Pods that others made exist already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowsched.executor.quotas import QuotaLimit
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.state.snapshot import Snapshot


class Exceeded(NamedTuple):
    """A limit that forbids an amount, and the part of it that flowsched's own pods use."""

    quota: str
    limit: QuotaLimit
    need: int
    used: int


class Quotas:
    """The quotas in one cycle, and the usage of the pods under them, the cycle's placements included."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._limits = [
            (name, limit, snapshot.axes.index(limit.axis))
            for name, limits in sorted(snapshot.quotas.items())
            for limit in limits
            if limit.axis in snapshot.axes  # else no pod asks for it
        ]
        self._used = snapshot.quota_used.tolist()

    def allowed(self, group: PodGroup, most: int) -> int:
        """How many pods of a bag may start: 0..most."""
        return self.room(group.roles[0].shape.requests, most) if group.in_quota else most

    def room(self, amount: Sequence[int], most: int) -> int:
        """How many pods of `amount` (R,) the quotas have room for: 0..most."""
        for _, limit, axis in self._limits:
            need = amount[axis] if axis < len(amount) else 0
            if need > 0:
                most = min(most, max(0, limit.hard - limit.others - self._used[axis]) // need)
        return most

    def exceeded(self, amount: Sequence[int]) -> Exceeded | None:
        """The first limit that forbids `amount` (R,); None if all allow it."""
        for name, limit, axis in self._limits:
            need, used = amount[axis] if axis < len(amount) else 0, self._used[axis]
            if need > 0 and limit.others + used + need > limit.hard:
                return Exceeded(name, limit, need, used)
        return None

    def charge(self, group: PodGroup, amount: Sequence[int], pods: int) -> None:
        """The cycle gives a group so many pods of `amount` (R,)."""
        if group.in_quota and self._limits:
            for axis, value in enumerate(amount):
                self._used[axis] += value * pods
