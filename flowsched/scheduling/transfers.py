"""Which bytes move now: admission of transfers, in order of the work that waits for them.

Sharing a link fairly among many flows finishes all of them late; serving them in rank order through few
slots finishes the critical ones first (1000genome on 1 Gbit/s: 3.2 times the bound without slots, 1.4 times
with; LOCALITY, admission).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TransferWant:
    """Somebody of this rank and priority would like the dataset on node `dest`."""

    dataset: int
    dest: int
    rank_ms: int
    priority: int


@dataclass(frozen=True, slots=True)
class TransferOrder:
    """Copy the dataset to node `dest` from node `source`, or from its origin where that is None."""

    dataset: int
    source: int | None
    dest: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """How many copies may be in flight at a time, and how fast the outside is.

    Args:
        per_dest: To one node.
        per_source: From one node.
        origin: From outside, all nodes together.
        origin_rate: Bytes/s from outside, all nodes together.
    """

    per_dest: int = 3
    per_source: int = 4
    origin: int = 8
    origin_rate: int = 117_000_000


class _Flights:
    """What is in flight: the copies that were, and those admitted here."""

    def __init__(self, active: Sequence[TransferOrder]) -> None:
        self.to: Counter[int] = Counter()
        self.out_of: Counter[int | None] = Counter()
        self.pairs: set[tuple[int, int]] = set()
        self.from_origin: set[int] = set()
        for order in active:
            self.add(order)

    def add(self, order: TransferOrder) -> None:
        self.to[order.dest] += 1
        self.out_of[order.source] += 1
        self.pairs.add((order.dataset, order.dest))
        if order.source is None:
            self.from_origin.add(order.dataset)


def admit(
    wants: Sequence[TransferWant],
    active: Sequence[TransferOrder],
    snapshot: Snapshot,
    catalogue: Catalogue,
    limits: TransferLimits,
) -> tuple[TransferOrder, ...]:
    """Choose the copies to start now, and where each comes from.

    A want is passed over, and will be asked again, while its node or every source is busy. Lost datasets are
    never ordered.

    Args:
        wants: What is wanted; served by priority, then rank (both higher first), then dataset and node.
        active: Copies in flight.
        snapshot: For link and disk rates.
        catalogue: Who has what.
        limits: Slots.

    Returns:
        The orders, most important first.
    """
    flights = _Flights(active)
    orders: list[TransferOrder] = []
    ready = snapshot.ready
    for want in sorted(wants, key=lambda w: (-w.priority, -w.rank_ms, w.dataset, w.dest)):
        pair = (want.dataset, want.dest)
        if pair in flights.pairs or flights.to[want.dest] >= limits.per_dest or not ready[want.dest]:
            continue
        if want.dest in catalogue.nodes_of(want.dataset):
            continue
        found, source = _source(want, flights, snapshot, catalogue, limits)
        if not found:
            continue
        order = TransferOrder(want.dataset, source, want.dest, catalogue.sizes[want.dataset])
        flights.add(order)
        orders.append(order)
    return tuple(orders)


def _source(
    want: TransferWant, flights: _Flights, snapshot: Snapshot, catalogue: Catalogue, limits: TransferLimits
) -> tuple[bool, int | None]:
    """Whether there is a source with a free slot, and the one that would be done first.

    The link to the outside is everybody's: it is used beside peers only where it is more than twice as fast.
    """
    size = catalogue.weight(want.dataset)
    into = int(snapshot.nic_in[want.dest]) // (flights.to[want.dest] + 1)
    into = min(into, int(snapshot.disk_rate[want.dest]) or into)
    best: tuple[int, int, int] | None = None
    holders = sorted(catalogue.nodes_of(want.dataset))
    # A node that takes no new pods may still give its bytes, but only where nobody else has them.
    for node in [n for n in holders if snapshot.ready[n]] or holders:
        load = flights.out_of[node]
        if load >= limits.per_source:
            continue
        rate = min(into, int(snapshot.nic_out[node]) // (load + 1), int(snapshot.disk_rate[node]) or into)
        option = (_milliseconds(size, rate), load, node)
        best = option if best is None else min(best, option)
    load = flights.out_of[None]
    if catalogue.origins[want.dataset] and load < limits.origin:
        rate = min(into, limits.origin_rate // (load + 1))
        outside = _milliseconds(size, rate)
        coming = bool(holders) or want.dataset in flights.from_origin
        if best is None and coming and outside > 2 * _milliseconds(size, into):
            # Somebody has it, or soon will, and can pass it on faster than another copy would come from outside.
            return False, None
        if best is None or 2 * outside < best[0]:
            return True, None
    return (False, None) if best is None else (True, best[2])


def _milliseconds(size_bytes: int, rate: int) -> int:
    return size_bytes * 1000 // max(rate, 1)
