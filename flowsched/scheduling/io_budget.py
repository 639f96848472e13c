"""I/O budgets of storages that nodes share: which pods may read from and write to one at the same time, all nodes together.

A pod that works straight on a storage (it is mounted where the pod runs) counts with its expected bytes a second. Two rules
bound the sum. *The budget*: no more than a part of the storage's rate; a pod that alone asks for more than that goes when the
storage is nearly free. *Two groups*: a group that asks for more of it per core than all waiting work on average is heavy. Heavy
groups go in their turn only until the running mix asks for what that average is for the whole cluster. Those left over go after
all others had their turn, if there is still room for them. So pods that compute run beside pods that read, and not after them.

For a group that has waited for `promote_ms` only the budget counts. If it finds none, no later group gets any: that bounds
every wait.

Source: Goponenko, Lamar, Brandt and Dechev, "Metrics for packing efficiency and fairness of HPC cluster batch job scheduling"
(2022) and their two-group approximation of an I/O-aware schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import BURSTS, Profile, Storage
from flowsched.scheduling.queues.ordering import effective_priority, is_reserved
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.claims import Claim
from flowsched.scheduling.state.snapshot import Snapshot

_PERCENT: Final = 100
_ALL: Final = 1 << 62
#: A storage counts as free while at most one part in so many of its budget is in use.
_HARDLY: Final = 8
_MB: Final = 1_000_000


def limits_of(storages: Sequence[Storage], percent: int) -> dict[str, int]:
    """Bytes/s that may be asked for together, by name/read and name/write; none where there is no bound."""
    rates = [pair for storage in storages for pair in storage.rates.items()]
    return {key: max(1, rate * percent // _PERCENT) for key, rate in rates if rate > 0}


Waiting = dict[str, list[PodGroup]]


def budgeted(
    snapshot: Snapshot,
    queues: QueueTree,
    backlog: Sequence[PodGroup],
    waiting: Waiting,
    profile: Profile,
    now: int,
) -> tuple[Budgets, Waiting]:
    """The budgets of one cycle, and its waiting groups by queue, reordered by `Budgets.mixed`.

    If no waiting group asks for a storage, there are no budgets, and the order stays as it is. So does that of a queue with the
    order "fifo" or an order of a plugin.
    """
    percent = profile.io_fill_percent
    some = profile.storages and percent
    if not some or not any(role.shape.direct for group in backlog for role in group.roles):
        return Budgets(snapshot, {}, {}, 0, 0, now), waiting
    others, default_ms = snapshot.direct.others, profile.default_runtime_ms
    limits = limits_of(profile.storages, percent)
    limits = {key: max(1, limit // 10, limit - others.get(key, 0)) for key, limit in limits.items()}
    averages = _averages(snapshot, backlog, default_ms)
    budgets = Budgets(snapshot, limits, averages, default_ms, profile.promote_ms, now)
    ordered = {}
    for name, groups in waiting.items():
        own = profile.of(name)
        is_fixed = own.order == "fifo" or queues.get(name).order == "fifo" or own.queue_order is not None
        ordered[name] = groups if is_fixed else budgets.mixed(groups)
    return budgets, ordered


def _averages(snapshot: Snapshot, backlog: Sequence[PodGroup], default_ms: int) -> dict[str, int]:
    """Bytes/s that all which waits would ask for together, if it were spread evenly over all cores until it is done."""
    moved: dict[str, int] = {}
    work = 0  #: milli-CPU times ms
    for group in backlog:
        runtime = group.runtime_ms or default_ms
        for role in group.roles:
            work += role.count * role.shape.requests[0] * runtime
            direct, declared = role.shape.direct, role.shape.io_bytes * 1000 // BURSTS
            together = sum(rate for _, rate in direct)
            for key, rate in direct:
                each = declared * rate // together if declared else rate * runtime
                moved[key] = moved.get(key, 0) + role.count * each
    cores = snapshot.total[0]
    return {key: bytes_ms * cores // max(work, 1) for key, bytes_ms in moved.items()}


class Budgets(msgspec.Struct):
    """Of one cycle.

    Attributes:
        limits: The most that pods may request together, by name/read and name/write.
        averages: The mean demand of the waiting work, if it were spread over all cores.
        second: Whether every group has had its turn.
        put_off: The groups that go then, in order.
    """

    snapshot: Snapshot
    limits: Mapping[str, int]
    averages: Mapping[str, int]
    default_ms: int
    promote_ms: int
    now: int
    second: bool = False
    put_off: list[PodGroup] = msgspec.field(default_factory=list)
    _used: dict[str, int] = msgspec.field(default_factory=dict)
    _reserved_for: dict[str, int] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._used = dict(self.snapshot.direct.rates)

    def room_for(self, group: PodGroup) -> int:
        """How many more pods of a bag may go now, or, of a gang, how many times its minimum (0 = it has to wait)."""
        if not self.limits:
            return _ALL
        strict = self.second or self._is_aged(group) or is_reserved(group)
        room = _ALL
        for key, rate in demands_of(group).items():
            limit = self.limits.get(key)
            if limit is None:
                continue
            if self._reserved_for.get(key, group.key) != group.key:
                return 0
            used, need = self._used.get(key, 0), min(rate, limit)
            fit = max(0, limit - used) // need
            if fit == 0 and used * _HARDLY <= limit:
                fit = 1
            if not strict and self._is_heavy(group, key, rate):
                average = min(limit, self.averages.get(key, 0))
                fit = min(fit, max((average - used + need // 2) // need, 1 if used == 0 else 0))
            room = min(room, fit)
        return max(room, 0)

    def _is_aged(self, group: PodGroup) -> bool:
        return self.now - group.ready_ms >= self.promote_ms

    def _is_heavy(self, group: PodGroup, key: str, rate: int) -> bool:
        """Whether it asks for more per core than the waiting work does on average."""
        cores = sum(role.shape.requests[0] * (role.minimum if group.gang else 1) for role in group.roles)
        return rate * self.snapshot.total[0] > self.averages.get(key, 0) * cores

    def mixed(self, groups: Sequence[PodGroup]) -> list[PodGroup]:
        """An order in which, as long as the running mix asks for less than the average, heavy groups go before others of their
        (aged) priority. How many of them go is bounded by `room_for`.
        """
        short = [key for key, average in self.averages.items() if self._used.get(key, 0) < average]
        ordered: list[PodGroup] = []
        #: `groups` are in the order of (priority, reserved) already
        alike: dict[tuple[int, bool], list[PodGroup]] = {}
        for group in groups:
            rank = effective_priority(group, self.now, self.promote_ms), is_reserved(group)
            alike.setdefault(rank, []).append(group)
        for same in alike.values():
            heavy = [
                any(self._is_heavy(group, k, r) for k, r in demands_of(group).items() if k in short)
                for group in same
            ]
            ordered += [group for group, first in zip(same, heavy, strict=True) if first]
            ordered += [group for group, first in zip(same, heavy, strict=True) if not first]
        return ordered

    def charge(self, direct: Sequence[tuple[str, int]], pods: int) -> None:
        """Pods are placed."""
        for key, rate in direct:
            self._used[key] = self._used.get(key, 0) + pods * rate

    def defer(self, group: PodGroup) -> Reason | None:
        """Put a group that has no room off until every group has had its turn (None), or say why it waits."""
        if self.second or self._is_aged(group) or is_reserved(group):
            return self._waits(group)
        self.put_off.append(group)
        return None

    def _waits(self, group: PodGroup) -> Reason:
        key, rate = self._tightest(group)
        limit, used = self.limits[key], self._used.get(key, 0)
        if self._is_aged(group):
            self._reserved_for.setdefault(key, group.key)
        name, _, what = key.rpartition("/")
        text = (
            f"pods may {what} {_rate(limit)} of storage {name} together; those that run ask for {_rate(used)}, "
            f"and this asks for {_rate(rate)}"
        )
        if self._reserved_for.get(key, group.key) != group.key:
            text += "; what is left is kept for one that has waited long"
        numbers = {"limit_rate": limit, "used_rate": used, "need_rate": rate}
        return Reason(
            group.key, ReasonCode.STORAGE_BUDGET, text, numbers, self._expected(key, min(rate, limit))
        )

    def _tightest(self, group: PodGroup) -> tuple[str, int]:
        """Of what it asks for, where least is left beside it."""
        asked = [(key, rate) for key, rate in demands_of(group).items() if key in self.limits]
        free = [
            (self._reserved_for.get(k, group.key) == group.key, self.limits[k] - self._used.get(k, 0) - r)
            for k, r in asked
        ]
        return asked[free.index(min(free))]

    def _expected(self, key: str, need: int) -> int | None:
        """When enough running pods are expected to have ended, wall-clock ms; None if that is not known."""
        used, limit = self._used.get(key, 0), self.limits[key]
        running = [(_end(claim, self.default_ms, self.now), rate) for claim, rate in self._on(key)]
        for end, rate in sorted(running):
            used -= rate
            if used + need <= limit or used * _HARDLY <= limit:
                return max(end, self.now)
        return None

    def _on(self, key: str) -> list[tuple[Claim, int]]:
        claims = self.snapshot.direct.claims.values()
        return [(claim, rate) for claim in claims for name, rate in claim.direct if name == key]


def _end(claim: Claim, default_ms: int, now: int) -> int:
    """Its expected end; a late claim is expected to end any moment."""
    until = claim.since_ms + default_ms if claim.until_ms is None else claim.until_ms
    return max(until, now)


def demands_of(group: PodGroup) -> dict[str, int]:
    """Bytes/s that the smallest start of a group asks for, by name/read and name/write."""
    total: dict[str, int] = {}
    for role in group.roles:
        for key, rate in role.shape.direct:
            total[key] = total.get(key, 0) + rate * (role.minimum if group.gang else 1)
    return total


def _rate(amount: int) -> str:
    return f"{-(-amount // _MB)} MB/s"
