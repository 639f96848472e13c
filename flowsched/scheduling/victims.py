"""Victims: claims that could be taken for other groups, in units, the least lost work first.

The pods of a unit leave together: all pods of a gang, since it cannot go on without one of them, or one pod of a bag. Of a gang
that goes on with fewer members, each beyond the least number of its role (the highest numbers) is a unit of its own, which stands
before the rest of its gang; if that goes, they go with it.

Units are ordered by what is lost with them: lower priority first; what has not begun before what runs; members that a gang can
spare before others; BestEffort, then Burstable, then Guaranteed; little work done before much; what started last.

Axes: K claims, U units, R resources, N nodes. Whole numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement.gang import Ints
from flowsched.scheduling.plan import Nomination
from flowsched.scheduling.policy.framework import VictimOrder
from flowsched.scheduling.reservations import spread
from flowsched.scheduling.state.claims import UNKNOWN, Claim, ClaimKind, Ledger
from flowsched.scheduling.state.gpus import DEVICES
from flowsched.scheduling.state.snapshot import Snapshot

_NEVER: Final = 1 << 60


class Victims:
    """Every unit that may be taken away now, in order, as arrays.

    Attributes:
        priority: (U,) as in `Claim`, the highest of its claims, in order.
        promoted: By unit, as in `Claim`, where waiting had promoted one of its claims.
        queue: (U,) number of the queue that pays, as in `queues`.
        queues: Names of queues.
        unit: (K,) which unit a claim belongs to, ascending.
        node: (K,) where it is.
        amount: (K, R) what it holds.
        devices: (K, D) what it holds of each GPU there; D = 0 where parts of GPUs are not about.
        rest: (U,) of a member that its gang can spare, the unit of the rest of the gang; else -1.
        later_ms: When the first of those that have not run long enough will have; None = there are none.
    """

    def __init__(
        self, snapshot: Snapshot, now: int, min_runtime_ms: int, judge: VictimOrder | None = None
    ) -> None:
        ledger = snapshot.ledger
        self._snapshot = snapshot
        self.queues = ledger.queues
        slots = np.flatnonzero((ledger.kind == ClaimKind.RUNNING) & (ledger.unit > 0))
        unit, rest = _units(ledger, slots)
        _, first = np.unique(unit, return_index=True)
        size = len(first)
        own = np.where(rest < 0, np.arange(size), rest)
        started = ledger.started[slots]
        runs = started != UNKNOWN
        elapsed = np.where(runs, np.maximum(now - started, 0), 0)
        lost, qos, since = (np.zeros(size, dtype=np.int64) for _ in range(3))
        np.add.at(lost, unit, ledger.amount[slots, 0] * elapsed // 1000)
        np.maximum.at(qos, unit, ledger.qos[slots])
        np.maximum.at(since, unit, ledger.since[slots])
        began = np.full(size, _NEVER, dtype=np.int64)
        np.minimum.at(began, own[unit], np.where(runs, started, _NEVER))
        began = began[own]  # a gang has begun, or not, as one
        has_begun = began < _NEVER
        priority = np.full(size, -_NEVER, dtype=np.int64)
        np.maximum.at(
            priority, unit, ledger.priority[slots]
        )  # the pods of a foreign gang may have several priorities
        numbers = np.arange(size)  # they rise with age
        order = _sorted((-numbers, -since, lost, qos, 2 * has_begun + (rest < 0), priority))
        young = has_begun & (now - began < min_runtime_ms)
        self.later_ms = int(began[young].min()) + min_runtime_ms if young.any() else None
        order = order[~young[order]]
        if judge is not None and len(order):
            order = _rest_last(_judged(judge, snapshot, order, slots, unit, priority, now), rest)
        rank = np.full(size, -1, dtype=np.int64)
        rank[order] = np.arange(len(order))
        ranks = rank[unit]
        rows = np.argsort(ranks, kind="stable")
        rows = rows[ranks[rows] >= 0]
        self.priority: Ints = priority[order]
        self.promoted: dict[int, tuple[int, ...]] = {}
        for at in np.flatnonzero(np.isin(slots, list(ledger.promoted))).tolist() if ledger.promoted else ():
            steps = ledger.promoted[int(slots[at])]
            self.promoted[int(ranks[at])] = max(steps, self.promoted.get(int(ranks[at]), ()))
        self.queue: NDArray[np.int32] = ledger.queue[slots][first][order]
        self.unit: Ints = ranks[rows]
        self.rest: Ints = np.where(rest[order] < 0, -1, rank[rest[order]])
        self._slots = slots[rows]
        self.node: Ints = ledger.node[self._slots]
        self.amount: Ints = ledger.amount[self._slots]
        width = snapshot.devices.width if snapshot.devices.matter else 0
        self.devices: Ints = (
            ledger.devices_of(self._slots, width) if width else np.zeros((len(rows), 0), dtype=np.int64)
        )

    def __len__(self) -> int:
        """How many units there are."""
        return len(self.priority)

    def rows_of(self, unit: int) -> slice:
        """The rows of one unit."""
        first, last = np.searchsorted(self.unit, (unit, unit + 1))
        return slice(int(first), int(last))

    def claims_of(self, unit: int) -> list[Claim]:
        """The claims of one unit, by owner."""
        owner, claims = self._snapshot.ledger.owner, self._snapshot.claims
        return [
            claims[name] for name in sorted(owner[slot] for slot in self._slots[self.rows_of(unit)].tolist())
        ]

    def of_user(self, user: str, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(U,) the units of `among` (U,) that belong to a user of their queue."""
        found = np.zeros(len(self), dtype=np.bool_)
        for unit in np.flatnonzero(among).tolist():
            found[unit] = self.claims_of(unit)[0].user == user
        return found

    def named(self, name: str) -> NDArray[np.bool_]:
        """(U,) those units that are, or are a part of, the unit of a name."""
        found = np.zeros(len(self), dtype=np.bool_)
        ledger = self._snapshot.ledger
        found[self.unit[ledger.unit[self._slots] == ledger.unit_number(name)]] = True
        return found

    def amounts(self, axis: int, rows: NDArray[np.intp] | slice) -> Ints:
        """(k,) what some claims hold of an axis, or (k, D) of GPUs by device."""
        found: Ints = self.devices[rows] if axis == DEVICES else self.amount[rows, axis]
        return found

    def together(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(U,) the chosen units, and the members that go with the rest of their gang."""
        found: NDArray[np.bool_] = chosen | ((self.rest >= 0) & chosen[self.rest])
        return found

    def goes_anyway(self, unit: int, chosen: NDArray[np.bool_]) -> bool:
        """Whether it is a member of a gang of which the rest is chosen."""
        rest = int(self.rest[unit])
        return rest >= 0 and bool(chosen[rest])

    def leaving_together(self, chosen: NDArray[np.bool_]) -> Iterator[tuple[list[Claim], bool]]:
        """The claims of chosen units (U,), by owner, of a gang that goes all of them; and whether its gang can spare them."""
        members: dict[int, list[Claim]] = {}
        for unit in np.flatnonzero(chosen & (self.rest >= 0)).tolist():
            members.setdefault(int(self.rest[unit]), []).extend(self.claims_of(unit))
        for unit in np.flatnonzero(chosen).tolist():
            rest = int(self.rest[unit])
            if rest < 0:
                both = [*self.claims_of(unit), *members.get(unit, ())]
                yield sorted(both, key=lambda claim: claim.owner), False
            elif not chosen[rest]:
                yield self.claims_of(unit), True

    def totals(self) -> Ints:
        """(U, R) what each unit holds."""
        sums = np.zeros((len(self), self.amount.shape[1]), dtype=np.int64)
        np.add.at(sums, self.unit, self.amount)
        return sums

    def freed(self, axis: int, chosen: NDArray[np.bool_], size: int) -> Ints:
        """(N,) what the chosen units (U,) give back of an axis."""
        rows = chosen[self.unit]
        sums = np.zeros(size, dtype=np.int64)
        np.add.at(sums, self.node[rows], self.amount[rows, axis])
        return sums


def _units(ledger: Ledger, slots: NDArray[np.intp]) -> tuple[Ints, Ints]:
    """(K,) the unit of each claim, numbered from 0; (U,) the unit of the rest of a gang that can spare a member, else -1."""
    _, unit = np.unique(ledger.unit[slots], return_inverse=True)
    size = int(unit.max()) + 1 if len(unit) else 0
    rest = np.full(size, -1, dtype=np.int64)
    some = np.flatnonzero(ledger.elastic[slots, 2])
    if not len(some):
        return unit, rest
    role, member, least = ledger.elastic[slots[some]].T
    order = _sorted((member, role, unit[some]))
    some, role, least = some[order], role[order], least[order]
    begins = np.ones(len(some), dtype=np.bool_)
    begins[1:] = (unit[some[1:]] != unit[some[:-1]]) | (role[1:] != role[:-1])
    place = np.arange(len(some)) - np.flatnonzero(begins)[np.cumsum(begins) - 1]
    spare = some[place >= least]
    rest = np.concatenate([rest, unit[spare]])
    unit = unit.copy()
    unit[spare] = size + np.arange(len(spare))
    return unit, rest


def _rest_last(order: Ints, rest: Ints) -> Ints:
    """Order (U,), with the rest of a gang behind the members that it can spare."""
    place = np.full(len(rest), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    spare = order[rest[order] >= 0]
    if not len(spare):
        return order
    np.maximum.at(place, rest[spare], place[spare].copy())
    return order[_sorted(((rest[order] < 0).astype(np.int64), place[order]))]


def _judged(
    judge: VictimOrder, snapshot: Snapshot, order: Ints, slots: Ints, unit: Ints, priority: Ints, now: int
) -> Ints:
    """Order (U,) as a plugin sees it, among those of equal priority; ties as before."""
    claims: dict[int, list[Claim]] = {}
    for slot, number in zip(slots.tolist(), unit.tolist(), strict=True):
        claims.setdefault(number, []).append(snapshot.claims[snapshot.ledger.owner[slot]])
    keys = judge(snapshot, [tuple(claims[number]) for number in order.tolist()], now)
    rows, ranks = keys.reshape(len(order), -1).tolist(), priority[order].tolist()
    return order[sorted(range(len(rows)), key=lambda at: (ranks[at], rows[at]))]


def _sorted(keys: Sequence[NDArray[Any]]) -> Ints:
    """Rows in order: by the last key, equal ones by the one before it, and so on; as they stood where all are equal."""
    order = np.arange(len(keys[0]))
    for key in keys:
        order = order[np.argsort(key[order], kind="stable")]
    return order


def leaving(snapshot: Snapshot) -> Ints:
    """(N, R) what RELEASING claims hold."""
    ledger = snapshot.ledger
    sums = np.zeros((len(snapshot), len(snapshot.axes)), dtype=np.int64)
    rows = ledger.kind == ClaimKind.RELEASING
    np.add.at(sums, ledger.node[rows], ledger.amount[rows])
    return sums


def leaving_devices(snapshot: Snapshot) -> Ints:
    """(N, D) what RELEASING claims hold of each GPU."""
    ledger, width = snapshot.ledger, snapshot.devices.width
    rows = np.flatnonzero(ledger.kind == ClaimKind.RELEASING)
    return spread(ledger.node[rows], ledger.devices_of(rows, width), len(snapshot))


def leaving_by_queue(snapshot: Snapshot) -> dict[str, Ints]:
    """By queue, (R,) what its RELEASING claims hold."""
    ledger = snapshot.ledger
    rows = np.flatnonzero(ledger.kind == ClaimKind.RELEASING)
    return {
        ledger.queues[queue]: ledger.amount[rows[ledger.queue[rows] == queue]].sum(axis=0)
        for queue in np.unique(ledger.queue[rows]).tolist()
    }


def claimed_for(snapshot: Snapshot, nomination: Nomination, node: int) -> tuple[int, ...]:
    """(R,) the amounts that a nominated group's claim holds on a node already."""
    claim = snapshot.claims.get(nomination.holder(node))
    amount = claim.amount if claim is not None else ()
    return amount + (0,) * (len(snapshot.axes) - len(amount))


def devices_claimed_for(snapshot: Snapshot, nomination: Nomination, node: int) -> Ints:
    """(D,) the same of each GPU of the node."""
    claim = snapshot.claims.get(nomination.holder(node))
    return snapshot.devices.row(claim.devices if claim is not None else ())


def awaited_devices(snapshot: Snapshot, served: Collection[int]) -> Ints:
    """(N, D) what of each GPU nominated groups, but for those `served`, still wait for."""
    sums = np.zeros((len(snapshot), snapshot.devices.width), dtype=np.int64)
    for nomination in (each for each in snapshot.nominations.values() if each.group not in served):
        for node, amounts in nomination.devices:
            sums[node, : len(amounts)] += amounts
            sums[node] -= devices_claimed_for(snapshot, nomination, node)
    return sums


def awaited(snapshot: Snapshot, served: Collection[int]) -> Ints:
    """(N, R) what nominated groups, but for those `served`, still wait for: what will be free belongs to them first."""
    sums = np.zeros((len(snapshot), len(snapshot.axes)), dtype=np.int64)
    for nomination in (each for each in snapshot.nominations.values() if each.group not in served):
        for node, amounts in nomination.room:
            sums[node, : len(amounts)] += amounts
            sums[node] -= claimed_for(snapshot, nomination, node)
    return sums
