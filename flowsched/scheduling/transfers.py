"""Transfers that start now: admission of copies, in order of the work that waits for them.

Sharing a link fairly among many flows finishes all of them late; serving them in rank order through few
slots finishes the critical ones first (1000genome on 1 Gbit/s: 3.2 times the bound without slots, 1.4 times
with; LOCALITY, admission).

Large datasets move in pieces, where the executor can: a node that has a piece gives it to others while it still waits for
the next one, so that many nodes have the whole in little more than the time of one copy, and each piece crosses the link
to the outside once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from heapq import merge
from typing import Final

import msgspec

from flowsched.errors import ConfigurationError, FlowschedError
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.workflow.resources import parse_bytes

#: Copies up to this size go beside the others: they take next to nothing of the link, and many wait for little.
_SMALL_BYTES: Final = 32 << 20
_SMALL_SLOTS: Final = 5
#: `TransferWant.ahead` of a copy for a task that is not ready, on a node where it may not run.
MAYBE: Final = 3
#: Such copies take one of so many of the slots to the outside, and none while others take these: two flows fill the link. A copy
#: that a task waits for then waits for few pieces: 1 GB beside eight of these takes 14.2 s, with all slots 14.8, and alone 13.6.
_MAYBE_PART: Final = 4
#: Each piece costs a round trip of the scheduler and a record on the disk.
_SMALLEST_PIECE: Final = 64 << 10


def parse_piece_size(text: str) -> int:
    """The size of the pieces that large datasets move in, in bytes; 0 = none do.

    Raises:
        ConfigurationError: It is no amount of bytes, or too small to be worth its record.
    """
    try:
        size = parse_bytes(text)
    except FlowschedError as error:
        raise ConfigurationError(f"--piece-size: {error}") from None
    if 0 < size < _SMALLEST_PIECE:
        raise ConfigurationError(
            f"--piece-size is {size} bytes: say {_SMALLEST_PIECE} or more, or 0 to move datasets as a whole"
        )
    return size


class TransferWant(msgspec.Struct, frozen=True):
    """A dataset is wanted on node `dest`; rank and priority are those of the task that will read it.

    `ahead`: 0 = the task waits for it there; 1 = the task waits for room there; 2 = the task is not ready yet; 3 = nor is this one,
    and it may run elsewhere.
    """

    dataset: int
    dest: int
    rank_ms: int
    priority: int
    ahead: int = 0


def importance(want: TransferWant) -> tuple[int, int, int, int, int]:
    """The order in which wants are served: by priority, then how far ahead, then rank (higher first), then dataset and node."""
    return -want.priority, want.ahead, -want.rank_ms, want.dataset, want.dest


#: The sort key of a want: -priority, ahead, -rank, dataset, and the group that wants it.
_Entry = tuple[int, int, int, int, int]


class Wants:
    """The datasets wanted on each node, the most important first.

    It is kept from step to step: an admission then costs what it orders, and not what waits behind that. Several groups may want
    one dataset on one node.
    """

    def __init__(self, wants: Iterable[TransferWant] = ()) -> None:
        self._lines: dict[int, list[_Entry]] = {}  #: node -> all that is wanted there, sorted
        self._of: dict[int, dict[int, dict[int, _Entry]]] = {}  #: node -> dataset -> group
        for want in wants:
            self.add(want)

    def __contains__(self, pair: tuple[int, int]) -> bool:
        """Whether a dataset is wanted on a node."""
        return pair[0] in self._of.get(pair[1], ())

    def datasets(self) -> set[int]:
        """All that is wanted on some node."""
        return {dataset for line in self._of.values() for dataset in line}

    def nodes(self) -> Iterable[int]:
        """The nodes where something is wanted. Read-only."""
        return self._lines.keys()

    def groups(self, dataset: int, node: int) -> list[int]:
        """The groups that want a dataset on a node."""
        return sorted(self._of.get(node, {}).get(dataset, ()))

    def line(self, node: int) -> Iterator[TransferWant]:
        """All that is wanted on a node, the most important first; what several groups want comes once for each."""
        return (_want_of(entry, node) for entry in self._lines[node])

    def among(self, node: int, datasets: AbstractSet[int]) -> list[TransferWant]:
        """As `line`, of these datasets alone, and each once."""
        of = self._of[node]
        return [_want_of(e, node) for e in sorted(min(of[each].values()) for each in of.keys() & datasets)]

    def add(self, want: TransferWant, group: int = 0, statement: Statement | None = None) -> None:
        """A group wants a dataset on a node that it did not want there. The want of another group stays."""
        entry = -want.priority, want.ahead, -want.rank_ms, want.dataset, group
        self._insert(want.dest, entry)
        if statement is not None:
            statement.undo_with(self._delete, want.dest, entry)

    def remove(self, dataset: int, node: int, group: int, statement: Statement) -> None:
        """A group does not want a dataset on a node any more."""
        entry = self._of[node][dataset][group]
        self._delete(node, entry)
        statement.undo_with(self._insert, node, entry)

    def _insert(self, node: int, entry: _Entry) -> None:
        insort(self._lines.setdefault(node, []), entry)
        self._of.setdefault(node, {}).setdefault(entry[3], {})[entry[4]] = entry

    def _delete(self, node: int, entry: _Entry) -> None:
        line, groups = self._lines[node], self._of[node][entry[3]]
        del line[bisect_left(line, entry)], groups[entry[4]]
        if not groups:
            del self._of[node][entry[3]]
        if not line:
            del self._lines[node], self._of[node]


def _want_of(entry: _Entry, node: int) -> TransferWant:
    priority, ahead, rank, dataset, _ = entry
    return TransferWant(dataset, node, -rank, -priority, ahead)


class TransferOrder(msgspec.Struct, frozen=True):
    """Copy the dataset, or a piece of it, to node `dest` from node `source`, or from its origin where that is None."""

    dataset: int
    source: int | None
    dest: int
    size_bytes: int
    piece: int = 0
    ahead: int = 0


class TransferLimits(msgspec.Struct, frozen=True):
    """How many copies may be in flight at a time, and how fast the outside is.

    Args:
        per_dest: To one node.
        per_source: From one node. With 2 instead of 4 the makespan of 1000genome-22ch is 0.96 of it on links of 1 Gbit/s and 1.06
            of it on 10 Gbit/s, rnaseq-real's 0.96, a generated cycles' 1.19; eleven workflows at once end on average 3 % later.
        origin: From outside, all nodes together.
        origin_rate: Bytes/s from outside, all nodes together.
        piece_bytes: Larger datasets move in pieces of this size; 0 = everything moves as a whole (the executor cannot otherwise).
    """

    per_dest: int = 3
    per_source: int = 4
    origin: int = 8
    origin_rate: int = 117_000_000
    piece_bytes: int = 0

    def pieces(self, size_bytes: int) -> int:
        """How many pieces a dataset of this size moves in."""
        if not self.piece_bytes or size_bytes < 2 * self.piece_bytes:
            return 1
        return -(-size_bytes // self.piece_bytes)

    def piece_size(self, size_bytes: int, piece: int) -> int:
        """Bytes of one piece."""
        if self.pieces(size_bytes) == 1:
            return size_bytes
        return min(self.piece_bytes, size_bytes - piece * self.piece_bytes)

    def pieces_of(self, dataset: int, catalogue: Catalogue) -> int:
        """How many pieces a dataset moves in: one, if it has been found to be indivisible."""
        return 1 if dataset in catalogue.undivided else self.pieces(catalogue.sizes[dataset])


class _Flights:
    """The copies in flight: those from before, and those admitted here."""

    def __init__(self, active: Sequence[TransferOrder], snapshot: Snapshot, limits: TransferLimits) -> None:
        self._snapshot, self._limits = snapshot, limits
        self.to: Counter[int] = Counter()
        self.out_of: Counter[int | None] = Counter()
        self.pairs: dict[tuple[int, int], int] = {}  #: (dataset, node) -> pieces on their way, as bits
        self.from_origin: dict[int, int] = {}  #: dataset -> pieces on their way from outside, as bits
        self.from_outside: set[int] = set()  #: nodes to which copies are on their way from outside
        self._outside_rate = 0  #: bytes/s that these nodes take
        for order in active:
            self.add(order)

    def add(self, order: TransferOrder) -> None:
        self.to[order.dest] += 1
        self.out_of[order.source] += 1
        pair = (order.dataset, order.dest)
        self.pairs[pair] = self.pairs.get(pair, 0) | 1 << order.piece
        if order.source is None:
            if order.dest not in self.from_outside:
                self.from_outside.add(order.dest)
                self._outside_rate += _inbound_rate(order.dest, self._snapshot, self._limits)
            self.from_origin[order.dataset] = self.from_origin.get(order.dataset, 0) | 1 << order.piece

    def outside_is_free(self, dest: int, more: int = 0, ahead: int = 0) -> bool:
        """Whether one more copy may come from outside: there is a slot (of `more` than usual), or those in flight go to nodes which
        together take less than the link gives, and this is another node. A copy that may be wanted elsewhere leaves most slots.
        """
        slots = self._limits.origin if ahead < MAYBE else max(1, self._limits.origin // _MAYBE_PART)
        if self.out_of[None] < slots + more:
            return True
        return dest not in self.from_outside and self._outside_rate < self._limits.origin_rate


def admit(
    wants: Iterable[Wants],
    active: Sequence[TransferOrder],
    snapshot: Snapshot,
    catalogue: Catalogue,
    limits: TransferLimits,
    rests: Callable[[TransferWant], bool] = lambda want: False,
) -> tuple[TransferOrder, ...]:
    """Choose the copies to start now, and where each comes from.

    A want is passed over, and will be asked again, while its node or every source is busy. Lost datasets are
    never ordered.

    Args:
        wants: The copies wanted; served in the order of `importance`.
        active: Copies in flight.
        snapshot: For link and disk rates.
        catalogue: Which nodes have which datasets.
        limits: Slots.
        rests: Whether a want is to be passed over now.

    Returns:
        The orders, most important first.
    """
    flights = _Flights(active, snapshot, limits)
    orders: list[TransferOrder] = []
    lines = [
        _line(some, node, flights, catalogue, limits)
        for some in wants
        for node in some.nodes()
        if snapshot.ready[node]
    ]
    for want in merge(*lines, key=importance):
        size = catalogue.sizes[want.dataset]
        pieces = limits.pieces_of(want.dataset, catalogue)
        if catalogue.is_on(want.dataset, want.dest) or rests(want):
            continue
        # A copy that a task waits for finds a free slot, however much moves ahead of time, and small copies hardly take one.
        slots = limits.per_dest - (want.ahead > 0) + (_SMALL_SLOTS if size <= _SMALL_BYTES else 0)
        while flights.to[want.dest] < slots:
            order = None
            if pieces > 1:
                order = _piece(want, pieces, flights, snapshot, catalogue, limits)
            elif (want.dataset, want.dest) not in flights.pairs:
                found, source = _source(want, flights, snapshot, catalogue, limits)
                order = TransferOrder(want.dataset, source, want.dest, size, 0, want.ahead) if found else None
            if order is None:
                break
            flights.add(order)
            orders.append(order)
    return tuple(orders)


def _line(
    wants: Wants, node: int, flights: _Flights, catalogue: Catalogue, limits: TransferLimits
) -> Iterator[TransferWant]:
    """The wants that may be ordered for a node, until its slots are full. While the outside is full: only copies of nodes."""
    most = limits.per_dest + _SMALL_SLOTS
    for want in wants.line(node):
        if flights.to[node] >= most:
            return
        if not flights.outside_is_free(node, 0 if want.ahead == MAYBE else _SMALL_SLOTS, want.ahead):
            break
        yield want
    else:
        return
    for want in wants.among(node, catalogue.on_nodes):
        if flights.to[node] >= most:
            return
        yield want


def _piece(
    want: TransferWant,
    pieces: int,
    flights: _Flights,
    snapshot: Snapshot,
    catalogue: Catalogue,
    limits: TransferLimits,
) -> TransferOrder | None:
    """The next piece of a large dataset for a node, from the least busy peer that has one; else from outside, if no node has it."""
    dataset, dest = want.dataset, want.dest
    size, every = catalogue.sizes[dataset], (1 << pieces) - 1
    lacks = every & ~catalogue.landed(dataset, dest) & ~flights.pairs.get((dataset, dest), 0)
    if not lacks:
        return None
    best: tuple[int, int, int] | None = None
    on_peers = 0
    for node, has in catalogue.holders(dataset, every):
        if has != every and not snapshot.ready[node]:
            continue  # it is gone, or goes: its pieces come no more
        on_peers |= has
        load = flights.out_of[node]
        if not has & lacks or load >= limits.per_source or node == dest:
            continue
        option = (load, node, has & lacks)
        if best is None or option[:2] < best[:2]:
            best = option
    source: int | None = None
    if best is not None:
        source, candidates = best[1], best[2]
    elif catalogue.origins[dataset] and _fetches(want, flights, snapshot, limits):
        candidates = lacks & ~flights.from_origin.get(dataset, 0)
        if limits.origin_rate <= 4 * int(snapshot.nic_in[dest]):
            # All nodes share the link to the outside: a piece that a peer has comes from that peer, a little later.
            candidates &= ~on_peers
        if not candidates:
            return None
    else:
        return None
    piece = (candidates & -candidates).bit_length() - 1
    return TransferOrder(dataset, source, dest, limits.piece_size(size, piece), piece, want.ahead)


def _fetches(want: TransferWant, flights: _Flights, snapshot: Snapshot, limits: TransferLimits) -> bool:
    """Whether a node may fetch one more piece of a dataset from outside.

    A few flows fill the link. More flows would all end late, and a node can pass on only pieces that have arrived.
    """
    if not flights.outside_is_free(want.dest, 0, want.ahead):
        return False
    flows = max(2, -(-limits.origin_rate // max(int(snapshot.nic_in[want.dest]), 1)) + 1)
    return flights.from_origin.get(want.dataset, 0).bit_count() < flows


def _inbound_rate(node: int, snapshot: Snapshot, limits: TransferLimits) -> int:
    """Bytes/s that a node takes from outside, over its link and onto its disk; where neither is known, all there is."""
    rates = int(snapshot.nic_in[node]), int(snapshot.disk_rate[node])
    return min((rate for rate in rates if rate), default=limits.origin_rate)


def _source(
    want: TransferWant, flights: _Flights, snapshot: Snapshot, catalogue: Catalogue, limits: TransferLimits
) -> tuple[bool, int | None]:
    """Whether there is a source with a free slot, and the one that would be done first.

    All nodes share the link to the outside. If peers have the dataset, that link is used only if it is more than twice as fast.
    """
    size = catalogue.weight(want.dataset)
    more = _SMALL_SLOTS if size <= _SMALL_BYTES else 0
    holders, ready = sorted(catalogue.nodes_of(want.dataset)), snapshot.ready
    # A node that takes no new pods may still give its bytes, but only if no other node has them.
    able = [node for node in holders if ready[node]] or holders
    able = [node for node in able if flights.out_of[node] < limits.per_source + more]
    from_outside = catalogue.origins[want.dataset] and flights.outside_is_free(want.dest, more, want.ahead)
    if not able and not from_outside:
        return False, None
    into = int(snapshot.nic_in[want.dest]) // (flights.to[want.dest] + 1)
    into = min(into, int(snapshot.disk_rate[want.dest]) or into)
    best: tuple[int, int, int] | None = None
    for node in able:
        load = flights.out_of[node]
        rate = min(into, int(snapshot.nic_out[node]) // (load + 1), int(snapshot.disk_rate[node]) or into)
        option = (_milliseconds(size, rate), load, node)
        best = option if best is None else min(best, option)
    if from_outside:
        load = flights.out_of[None]
        rate = min(into, limits.origin_rate // (load + 1))
        outside = _milliseconds(size, rate)
        coming = bool(holders) or want.dataset in flights.from_origin
        if best is None and coming and outside > 2 * _milliseconds(size, into):
            # A peer has the dataset, or soon will, and can pass it on faster than another copy would come from outside.
            return False, None
        if best is None or 2 * outside < best[0]:
            return True, None
    return (False, None) if best is None else (True, best[2])


def _milliseconds(size_bytes: int, rate: int) -> int:
    return size_bytes * 1000 // max(rate, 1)
