"""What could be taken away for others: claims in units, the least lost work first.

A unit is what leaves together: all pods of a gang, since it cannot go on without one of them, or a single pod of a bag.
Units are ordered by what is lost with them: lower priority first; what has not begun before what runs; BestEffort, then
Burstable, then Guaranteed; little work done before much; the youngest; and by name, so that equal snapshots give equal
victims.

Axes: K claims, U units, R resources, N nodes. Whole numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement import Ints
from flowsched.scheduling.plan import Nomination
from flowsched.scheduling.snapshot import Claim, ClaimKind, Snapshot


@dataclass(frozen=True, slots=True)
class Unit:
    """Claims that are taken away together.

    Args:
        name: What they are to each other.
        claims: The claims.
        queue: Who pays.
        priority: As declared.
        lost_ms: Core-ms of work that would be lost; 0 where nothing of it has begun.
        order: What sorts units, the cheapest to take first.
    """

    name: str
    claims: tuple[Claim, ...]
    queue: str
    priority: int
    lost_ms: int
    order: tuple[int, int, int, int, int, str]


class Victims:
    """Every unit that may be taken away now, in order, as arrays.

    Attributes:
        units: (U,) in order.
        unit: (K,) which unit a claim belongs to, ascending.
        node: (K,) where it is.
        amount: (K, R) what it holds.
        later_ms: When the first of those that have not run long enough will have; None = there are none.
    """

    def __init__(self, snapshot: Snapshot, now: int, min_runtime_ms: int) -> None:
        axes = len(snapshot.axes)
        everybody = units_of(snapshot, now)
        self.units = [unit for unit in everybody if _has_had(unit, now) >= min_runtime_ms]
        young = [_has_had(unit, now) for unit in everybody if _has_had(unit, now) < min_runtime_ms]
        self.later_ms = now + min_runtime_ms - max(young) if young else None
        claims = [claim for unit in self.units for claim in unit.claims]
        counts = [len(unit.claims) for unit in self.units]
        self.unit: Ints = np.repeat(np.arange(len(self.units)), counts)
        self.node: Ints = np.array([claim.node for claim in claims], dtype=np.int64)
        amounts = [snapshot.ledger.amount_of(claim.owner) for claim in claims]
        self.amount: Ints = np.array(amounts, dtype=np.int64).reshape(len(claims), axes)

    def of_unit(self, unit: int) -> slice:
        """The rows of one unit."""
        first, last = np.searchsorted(self.unit, (unit, unit + 1))
        return slice(int(first), int(last))

    def freed(self, axis: int, chosen: NDArray[np.bool_], size: int) -> Ints:
        """(N,) what the chosen units (U,) give back of an axis."""
        rows = chosen[self.unit]
        sums = np.zeros(size, dtype=np.int64)
        np.add.at(sums, self.node[rows], self.amount[rows, axis])
        return sums


def units_of(snapshot: Snapshot, now: int) -> list[Unit]:
    """Units whose pods hold room, the cheapest first."""
    ledger = snapshot.ledger
    by_name: dict[str, list[Claim]] = {}
    for slot in np.flatnonzero(ledger.kind == ClaimKind.RUNNING).tolist():
        claim = snapshot.claims[ledger.owner[slot]]
        if claim.unit:
            by_name.setdefault(claim.unit, []).append(claim)
    return sorted((_unit(*each, now) for each in by_name.items()), key=lambda unit: unit.order)


def _unit(name: str, claims: Sequence[Claim], now: int) -> Unit:
    ran = [
        (claim.amount[0], max(0, now - claim.started_ms)) for claim in claims if claim.started_ms is not None
    ]
    lost = sum(cpu * elapsed for cpu, elapsed in ran) // 1000
    first = claims[0]
    order = (
        first.priority,
        int(bool(ran)),
        max(claim.qos for claim in claims),
        lost,
        -max(claim.since_ms for claim in claims),
        name,
    )
    return Unit(name, tuple(claims), first.queue, first.priority, lost, order)


def _has_had(unit: Unit, now: int) -> int:
    """How many ms since the first of its pods began; for ever where none has: nothing is lost with it."""
    began = [claim.started_ms for claim in unit.claims if claim.started_ms is not None]
    return now - min(began) if began else 1 << 60


def leaving(snapshot: Snapshot) -> Ints:
    """(N, R) what is held by those who are being taken away."""
    ledger = snapshot.ledger
    sums = np.zeros((len(snapshot), len(snapshot.axes)), dtype=np.int64)
    rows = ledger.kind == ClaimKind.RELEASING
    np.add.at(sums, ledger.node[rows], ledger.amount[rows])
    return sums


def held_for(snapshot: Snapshot, nomination: Nomination, node: int) -> tuple[int, ...]:
    """(R,) what is held for a nominated group on a node already."""
    claim = snapshot.claims.get(nomination.holder(node))
    amount = claim.amount if claim is not None else ()
    return amount + (0,) * (len(snapshot.axes) - len(amount))


def awaited(snapshot: Snapshot, served: Collection[int]) -> Ints:
    """(N, R) what nominated groups, but for those `served`, still wait for: what will be free belongs to them first."""
    sums = np.zeros((len(snapshot), len(snapshot.axes)), dtype=np.int64)
    for nomination in (each for each in snapshot.nominations.values() if each.group not in served):
        for node, amounts in nomination.room:
            sums[node, : len(amounts)] += amounts
            sums[node] -= held_for(snapshot, nomination, node)
    return sums
