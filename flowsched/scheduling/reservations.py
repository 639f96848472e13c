"""Reservations: when room will be free, and the start reserved for a group that must wait (EASY backfill).

Ends are estimates. An unknown runtime counts as the profile's default, and once it is over as long again as the task has run; where
a promise depends on it, as an hour. An overdue task is expected to take as long again as it is overdue, so that a wrong estimate
delays a reserved start by little and often instead of for ever.

Source: Lifka 1995 (EASY).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement.capacity import Capacity, Mask
from flowsched.scheduling.placement.cost_table import PlacementRequest
from flowsched.scheduling.placement.gang import CostTable, Ints, NodeChoice
from flowsched.scheduling.plan import Reservation
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import UNKNOWN_RUNTIME_MS, Profile
from flowsched.scheduling.state.claims import EMPTY, UNKNOWN, ClaimKind
from flowsched.scheduling.state.gpus import DEVICES, copies_by_device
from flowsched.scheduling.state.snapshot import IO, Snapshot

T = TypeVar("T")

#: A pod that is being evicted is expected to be gone after this.
RELEASING_MS: Final = 10_000
#: An overdue pod is expected to run for another tenth of its runtime so far, and at least for this long.
OVERDUE_MS: Final = 1_000
#: How long a task of unknown runtime may well run: one that is backfilled must not delay a reserved start.
LONG_UNKNOWN_MS: Final = 3_600_000


class Taken(msgspec.Struct, frozen=True, eq=False):
    """Room that this cycle gave to pods which start now, until `end_ms`; few hold it beyond `late_ms`."""

    end_ms: int
    late_ms: int
    axes: tuple[int, ...]
    table: CostTable
    nodes: Ints
    devices: Ints | None = None

    @property
    def asked(self) -> tuple[int, ...]:
        """(IO + 1,) what each pod asks for, without GPUs; of a disk perhaps more than a node's."""
        asked = [0] * (IO + 1)
        for axis, need in zip(self.axes, self.table.needs, strict=True):
            if 0 <= axis <= IO:
                asked[axis] = need if isinstance(need, int) else int(need.max())
        return tuple(asked)


class Calendar:
    """When which room will be free again: as expected, or (`late`) when one can rather count on it.

    Reservations are made by late ends, since of many ends that must all come the latest counts; decisions to wait for a place go by
    expected ones.

    `ends`: (M,) wall-clock ms, ascending; `nodes`: (M,); `amounts`: (M, R); `devices`: (M, D), D = 0 where parts of GPUs are not
    about.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        default_runtime_ms: int,
        now: int,
        taken: Sequence[Taken] = (),
        *,
        late: bool = False,
    ) -> None:
        ledger = snapshot.ledger
        slots = ((ledger.kind != EMPTY) & (ledger.kind != ClaimKind.STAGING)).nonzero()[0]
        self.size = len(snapshot)
        self._late, self._axes = late, len(snapshot.axes)
        self.ends: Ints = np.zeros(0, dtype=np.int64)
        self.nodes: Ints = self.ends
        self.amounts: Ints = np.zeros((0, self._axes), dtype=np.int64)
        width = snapshot.devices.width if snapshot.devices.matter else 0
        self.devices: Ints = np.zeros((0, width), dtype=np.int64)
        ends = expected_ends(snapshot, slots, default_runtime_ms, now, late=late)
        devices = ledger.devices_of(slots, width) if width else np.zeros((len(slots), 0), dtype=np.int64)
        self._insert(ends, ledger.node[slots], ledger.amount[slots], devices)
        self.add(taken)

    def add(self, taken: Sequence[Taken]) -> None:
        """Note further started pods. Of equal ends, those noted earlier come first."""
        if not taken:
            return
        nodes = np.concatenate([part.nodes for part in taken])
        amounts = np.zeros((len(nodes), self._axes), dtype=np.int64)
        devices = np.zeros((len(nodes), self.devices.shape[1]), dtype=np.int64)
        before = 0
        for part in taken:
            span = slice(before, before + len(part.nodes))
            before = span.stop
            for axis, need in _sums(part.axes, part.table):
                amounts[span, axis] = need if isinstance(need, int) else need[part.nodes]
            if part.devices is not None:
                devices[span] = part.devices
        moments = [part.late_ms if self._late else part.end_ms for part in taken]
        ends = np.repeat(np.array(moments, dtype=np.int64), [len(part.nodes) for part in taken])
        self._insert(ends, nodes, amounts, devices)

    def _insert(self, ends: Ints, nodes: Ints, amounts: Ints, devices: Ints) -> None:
        if len(self.ends):
            ends, nodes = np.concatenate([self.ends, ends]), np.concatenate([self.nodes, nodes])
            amounts = np.concatenate([self.amounts, amounts])
            devices = np.concatenate([self.devices, devices])
        order = ends.argsort(kind="stable")
        self.ends, self.nodes, self.amounts = ends[order], nodes[order], amounts[order]
        self.devices = devices[order]

    def freed(self, axis: int, until_ms: int) -> Ints:
        """(N,) what will have been given back of an axis by then; of GPUs by device (N, D)."""
        count = int(np.searchsorted(self.ends, until_ms, side="right"))
        if axis == DEVICES:
            return spread(self.nodes[:count], self.devices[:count], self.size)
        sums = np.zeros(self.size, dtype=np.int64)
        np.add.at(sums, self.nodes[:count], self.amounts[:count, axis])
        return sums

    def freed_of_all(self, until_ms: int) -> Ints:
        """(N, R) what will have been given back by then."""
        count = int(np.searchsorted(self.ends, until_ms, side="right"))
        return spread(self.nodes[:count], self.amounts[:count], self.size)

    def earliest(
        self, axes: Sequence[int], rows: Sequence[Ints], fits: Callable[[list[Ints]], bool], now: int
    ) -> tuple[int, list[Ints]] | None:
        """The earliest time at which something fits, if nothing else starts.

        Room only grows along the calendar, so a galloping search over its distinct ends finds it: mostly one of the first ends is
        enough.

        Args:
            axes: Which axes.
            rows: For each of them, (N,) what is free now.
            fits: Whether there is a placement on such rows.
            now: The moment, wall-clock ms.

        Returns:
            The time and the rows then; None if it would not fit even when everything has ended.
        """
        times = np.unique(self.ends, return_counts=True)[
            0
        ]  # without counts numpy loads numpy.ma: 15 ms of CPU
        found: tuple[int, list[Ints]] | None = None
        low, high, stride = -1, len(times), 1  # -1 = now; high is exclusive once something was found
        while low < high:
            middle = (low + high) // 2 if found is not None else min(low + stride, len(times) - 1)
            at = now if middle < 0 else int(times[middle])
            free = [row + self.freed(axis, at) for axis, row in zip(axes, rows, strict=True)]
            if not fits(free):
                if middle == len(times) - 1:
                    return None
                low, stride = middle + 1, 2 * stride
            else:
                found = (at, free)
                high = middle
        return found


def spread(nodes: Ints, rows: Ints, size: int) -> Ints:
    """(N, D) the sum of rows (K, D), by the nodes (K,) they are on."""
    sums = np.zeros((size, rows.shape[1]), dtype=np.int64)
    np.add.at(sums, nodes, rows)
    return sums


def _sums(axes: Sequence[int], table: CostTable) -> list[tuple[int, int | Ints]]:
    """The request of one pod of a role on each axis of the snapshot."""
    return [(axis, need) for axis, need in zip(axes, table.needs, strict=True) if axis != DEVICES]


def seats_of(node_choices: Sequence[NodeChoice], size: int, width: int) -> Ints:
    """(N, D) what pods take of each device."""
    sums = np.zeros((size, width), dtype=np.int64)
    for where in node_choices:
        if where.devices is not None:
            np.add.at(sums, where.nodes, where.devices)
    return sums


def expected_ends(
    snapshot: Snapshot, slots: NDArray[np.intp], default_runtime_ms: int, now: int, *, late: bool = False
) -> Ints:
    """(M,) when the claims in these slots of the ledger are expected to end, or will have ended with good reason; after `now`."""
    ledger = snapshot.ledger
    since, until = ledger.since[slots], ledger.until[slots]
    if late:
        until = np.where(ledger.late[slots] == UNKNOWN, until, ledger.late[slots])
        default_runtime_ms = long_unknown_ms(default_runtime_ms)
    ends = np.where(until == UNKNOWN, since + default_runtime_ms, until)
    elapsed = np.maximum(now - since, 0)
    again = np.where(until == UNKNOWN, elapsed, now - ends)
    overdue = now + np.maximum(np.maximum(OVERDUE_MS, elapsed // 10), again)
    ends = np.where(ends > now, ends, overdue)
    releasing = ledger.kind[slots] == ClaimKind.RELEASING
    return np.where(releasing, np.minimum(ends, now + RELEASING_MS), ends)


def reserved_amounts(
    request: PlacementRequest, node_choices: Sequence[NodeChoice], axis_count: int, size: int
) -> list[Ints]:
    """For each of `axis_count` axes, (N,) the requests of the reserved pods."""
    amounts = [np.zeros(size, dtype=np.int64) for _ in range(axis_count)]
    for table, where in zip(request.tables, node_choices, strict=True):
        for axis, need in _sums(request.axes, table):
            np.add.at(amounts[axis], where.nodes, need if isinstance(need, int) else need[where.nodes])
    return amounts


# ---- EASY: what a cycle reserves for the first group that must wait, and how that binds the groups after it ----


_NEVER: Final = 1 << 62


def runtime_of(group: PodGroup, profile: Profile) -> int:
    """Expected ms, the profile's default where nothing is known."""
    return profile.default_runtime_ms if group.runtime_ms is None else group.runtime_ms


def long_unknown_ms(default_runtime_ms: int) -> int:
    """How long a task of unknown runtime may well run: an hour, or what a profile says instead of the minute."""
    return LONG_UNKNOWN_MS if default_runtime_ms == UNKNOWN_RUNTIME_MS else default_runtime_ms


def longest_of(group: PodGroup, profile: Profile) -> int:
    """How long it may well run, in ms: a group that is backfilled before a reserved start must not delay that start."""
    if group.high_ms is None and group.runtime_ms is None:
        return long_unknown_ms(profile.default_runtime_ms)
    return runtime_of(group, profile) if group.high_ms is None else group.high_ms


def reservation_of(request: PlacementRequest, start_ms: int, chosen: Sequence[NodeChoice]) -> Reservation:
    """A reservation, in the order of the group's roles."""
    by_role = dict(zip(request.order, chosen, strict=True))
    roles = range(len(request.order))
    devices = [by_role[role].devices for role in roles]
    return Reservation(
        request.group.key,
        start_ms,
        tuple(by_role[role].nodes for role in roles),
        tuple(each for each in devices if each is not None),
    )


class Reservations:
    """At most one reservation in a cycle (EASY), and the calendar it comes from.

    Attributes:
        made: The reservations made.
        taken: The room that this cycle gave to pods; the code that starts pods adds to it.
        everywhere: (N,) all True.
    """

    def __init__(self, snapshot: Snapshot, room: Capacity, profile: Profile, now: int) -> None:
        self._snapshot, self._room, self._profile, self._now = snapshot, room, profile, now
        self.made: list[Reservation] = []
        self.taken: list[Taken] = []
        self.everywhere: Mask = np.ones(len(snapshot), dtype=np.bool_)
        self._calendars: dict[bool, tuple[int, Calendar]] = {}  #: and of `taken`, how many it knows
        self._deadline = 0  #: ms; pods that would run beyond it stay off the reserved room

    def too_long(self, group: PodGroup) -> bool:
        """Whether a group would outlast the reservation's start wherever it started now."""
        return bool(self.made) and self._now + longest_of(group, self._profile) > self._deadline

    def outlasting(self, request: PlacementRequest) -> Mask | None:
        """(N,) where the group would outlast the reservation's start, staging included; None = nowhere."""
        if not self.made:
            return None
        if self.too_long(request.group):
            return self.everywhere
        if request.missing is None:
            return None
        end = self._now + longest_of(request.group, self._profile)
        return end + request.stage_ms(len(self._snapshot)) > self._deadline

    def calendar(self) -> Calendar:
        """When room is expected to be free, this cycle's placements included."""
        return self._fresh(late=False)

    def late_calendar(self) -> Calendar:
        """When one can count on it."""
        return self._fresh(late=True)

    def _fresh(self, *, late: bool) -> Calendar:
        known, calendar = self._calendars.get(late, (0, None))
        if calendar is None:
            calendar = Calendar(self._snapshot, self._profile.default_runtime_ms, self._now, late=late)
        calendar.add(self.taken[known:])
        self._calendars[late] = (len(self.taken), calendar)
        return calendar

    def earliest(self, request: PlacementRequest) -> tuple[int, tuple[NodeChoice, ...]] | None:
        """When and where the least of a group could start, if nothing else started."""
        rows = [self._room.hard(axis) for axis in request.axes]
        least, asked = request.at_least(), (self._room, self._snapshot, self._profile)
        found = self.late_calendar().earliest(
            request.axes, rows, lambda free: least.has_room(free, *asked), self._now
        )
        if found is None:
            return None
        placed = least.place(found[1], *asked)
        return None if placed is None else (found[0], placed)

    def reserve(self, request: PlacementRequest) -> int | None:
        """Reserve the earliest start of a group; None if there is a reservation already, or it could never start."""
        if self.made or self._profile.backfill == "none":
            return None
        found = self.earliest(request)
        if found is None:
            return None
        start, node_choices = found
        axes = range(len(self._snapshot.axes))
        reserved = reserved_amounts(request, node_choices, len(axes), len(self._snapshot))
        freed = self.late_calendar().freed_of_all(start)
        spare = {axis: self._room.hard(axis) + freed[:, axis] - reserved[axis] for axis in axes}
        if self._snapshot.devices.matter:
            free = self._room.hard(DEVICES) + self.late_calendar().freed(DEVICES, start)
            spare[DEVICES] = free - seats_of(node_choices, *free.shape)
        self._room.reserve(spare)
        self.made.append(reservation_of(request, start, node_choices))
        earlier = request.group.promised_ms
        self._deadline = start if earlier is None else min(start, earlier)
        return start


# ---- the timeline: free room over time, with reservations in it ----
#
# A `Calendar` only knows when room comes back. Here reservations also take room again. Room goes up and down, and a group fits at a
# moment only if it fits until it ends.
#
# Memory and time are bounded: a timeline tells a bounded number of moments apart. Beyond it, returned room counts from the next
# later moment, and taken room from the next earlier one, so that room is never expected before it is there.


#: A timeline keeps so many moments, at most, and fewer if there are many nodes: so many numbers are kept.
_MOMENTS: Final = 1_024
_NUMBERS: Final = 4_000_000


class Returns(NamedTuple):
    """The amounts that ending pods free: (M,) when, in any order; (M,) on which node; (M, R) how much."""

    ends: Ints
    nodes: Ints
    amounts: Ints


class Timeline:
    """Free room from each moment until the next; the last one lasts for ever.

    Args:
        returns: When the room of running pods comes back.
        rows: For each axis, (N,) what is free now. Not modified.
        now: The moment, wall-clock ms.
        devices: (N, D) what is free of each GPU, where parts of them are about: they are columns after those of the axes, here
            and in all amounts.
    """

    def __init__(self, returns: Returns, rows: Sequence[Ints], now: int, devices: Ints | None = None) -> None:
        self._axes = len(rows)
        if devices is not None:
            rows = [*rows, *devices.T]
        size, axes = len(rows[0]), len(rows)
        self._most = max(64, min(_MOMENTS, _NUMBERS // (size * axes)))
        ends = _merged(np.maximum(returns.ends, now), self._most // 2)
        moments = np.unique(np.concatenate([[now], ends]), return_counts=True)[
            0
        ]  # as above: a list may ask for starts
        gained = np.zeros((len(moments), size, axes), dtype=np.int64)
        np.add.at(gained, (np.searchsorted(moments, ends), returns.nodes), returns.amounts[:, :axes])
        gained[0] += np.stack(rows, axis=1)
        self._count = len(moments)
        self._times = np.zeros(2 * len(moments) + 16, dtype=np.int64)
        self._free = np.zeros((len(self._times), size, axes), dtype=np.int64)
        self._times[: self._count] = moments
        np.cumsum(gained, axis=0, out=self._free[: self._count])

    def allocate(self, start: int, end: int, nodes: Ints, amounts: NDArray[np.int64]) -> None:
        """Allocate room from `start` until `end`: (k,) nodes, with repeats, and (k, R) amounts. Negative amounts give room
        back: the same amounts, from and until the same moments.
        """
        taken = np.zeros(self._free.shape[1:], dtype=np.int64)
        np.add.at(taken[:, : amounts.shape[1]], nodes, amounts)
        first = self._moment(start, later=False)
        self._free[first : self._moment(end, later=True)] -= taken

    def _moment(self, at: int, *, later: bool) -> int:
        """The place of a moment, which gets its own row if there is room; a moment before the first is the first."""
        place = int(np.searchsorted(self._times[: self._count], at, side="left"))
        if place == 0 or (place < self._count and self._times[place] == at):
            return place
        if self._count >= self._most:
            return place if later else place - 1
        if self._count == len(self._times):
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
            self._free = np.concatenate([self._free, np.zeros_like(self._free)])
        for rows in (self._times, self._free):
            rows[place + 1 : self._count + 1] = rows[place : self._count].copy()
        self._times[place], self._free[place] = at, self._free[place - 1]
        self._count += 1
        return place

    def least(self, start: int, end: int) -> NDArray[np.int64]:
        """(N, R) what is free all the time from `start` until `end`."""
        times = self._times[: self._count]
        first = max(0, int(np.searchsorted(times, start, side="right")) - 1)
        last = max(first + 1, int(np.searchsorted(times, end, side="left")))
        found: NDArray[np.int64] = self._free[first:last].min(axis=0)
        return found

    def earliest(
        self,
        axes: Sequence[int],
        tables: Sequence[CostTable],
        length_ms: int,
        place: Callable[[list[Ints]], T | None],
    ) -> tuple[int, T] | None:
        """The earliest moment from which something fits until it ends.

        Args:
            axes: Which axes its tables ask for.
            tables: Its roles: where one of them alone has too few places at some moment, nothing is tried.
            length_ms: How long it takes.
            place: Tries a placement on rows of these axes.

        Returns:
            The moment and the placement; None if it would not fit even at the end of all that is known.
        """
        times = self._times[: self._count]
        narrow = np.flatnonzero(~self._enough(axes, tables))
        until = np.append(times, np.iinfo(np.int64).max)[np.append(narrow, self._count)]
        next_narrow = until[np.searchsorted(narrow, np.arange(self._count), side="left")]
        wide = (next_narrow >= times + length_ms) | (next_narrow == until[-1])
        wide[narrow] = False
        for at in np.flatnonzero(wide).tolist():
            start = int(times[at])
            room = self._free[at] if at + 1 == self._count else self.least(start, start + length_ms)
            placed = place([np.ascontiguousarray(self._column(room, axis)) for axis in axes])
            if placed is not None:
                return start, placed
        return None

    def _column(self, room: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
        """(..., N) of an axis, (..., N, D) of devices."""
        return room[..., self._axes :] if axis == DEVICES else room[..., axis]

    def _enough(self, axes: Sequence[int], tables: Sequence[CostTable]) -> NDArray[np.bool_]:
        """(T,) at which moments each role alone has places enough: a quick look that rules most moments out."""
        enough = np.ones(self._count, dtype=np.bool_)
        for table in tables:
            copies = np.full(self._free[: self._count].shape[:2], table.minimum, dtype=np.int64)
            for axis, need in zip(axes, table.needs, strict=True):
                have = self._column(self._free[: self._count], axis)
                if axis == DEVICES:
                    if isinstance(need, int) and need:
                        np.minimum(copies, copies_by_device(have, need), out=copies)
                elif isinstance(need, int):
                    if need:
                        np.minimum(copies, have // need, out=copies)
                else:
                    np.minimum(
                        copies, np.where(need > 0, have // np.maximum(need, 1), table.minimum), out=copies
                    )
            if table.most is not None:
                np.minimum(copies, table.most, out=copies)
            np.maximum(copies, 0, out=copies)
            enough &= (copies * table.allowed).sum(axis=1) >= table.minimum
        return enough


def _merged(ends: Ints, most: int) -> Ints:
    """(M,) the ends, of at most `most` different values, none earlier than it was."""
    distinct = np.unique(ends, return_counts=True)[0]
    if len(distinct) <= most:
        return ends
    stride = -(-len(distinct) // most)
    last = np.minimum(np.arange(len(distinct)) // stride * stride + stride - 1, len(distinct) - 1)
    merged: Ints = distinct[last][np.searchsorted(distinct, ends)]
    return merged


def amounts_of(
    axis_count: int, axes: Sequence[int], table: CostTable, chosen: NodeChoice
) -> NDArray[np.int64]:
    """(k, R) what each pod of a role takes where it stands; (k, R + D) with its devices, if it has any."""
    rows = np.zeros((len(chosen.nodes), axis_count), dtype=np.int64)
    for axis, need in zip(axes, table.needs, strict=True):
        if axis != DEVICES:
            rows[:, axis] = need if isinstance(need, int) else need[chosen.nodes]
    return rows if chosen.devices is None else np.hstack([rows, chosen.devices])
