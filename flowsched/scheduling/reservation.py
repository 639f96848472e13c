"""When room will be free, and what a group that must wait is promised of it. EASY backfill (Lifka 1995).

Ends are estimates. What is unknown is taken to run for the profile's default; what is overdue is taken to
end soon, the later the longer it has already run, so that a wrong estimate delays a promise by little and
often instead of for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.devices import DEVICES
from flowsched.scheduling.ledger import EMPTY, UNKNOWN
from flowsched.scheduling.placement import Ints, RoleTable, Spots
from flowsched.scheduling.snapshot import IO, ClaimKind, Snapshot
from flowsched.values import quick

T = TypeVar("T")

#: What is being taken away is taken to be gone after this.
RELEASING_MS: Final = 10_000
#: What is overdue is taken to run for another tenth of what it has run, and at least for this long.
OVERDUE_MS: Final = 1_000


@quick
@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Room that this cycle gave to pods which start now, until `end_ms` (of all, or (P,) of each); few hold it beyond `late_ms`."""

    end_ms: int | Ints
    late_ms: int | Ints
    axes: tuple[int, ...]
    table: RoleTable
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

    Promises are made by late ends, since of many ends that must all come the latest counts; decisions to wait for a place go by
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
        held = np.flatnonzero((ledger.kind != EMPTY) & (ledger.kind != ClaimKind.STAGING))
        self.size = len(snapshot)
        self._late, self._axes = late, len(snapshot.axes)
        self.ends: Ints = np.zeros(0, dtype=np.int64)
        self.nodes: Ints = self.ends
        self.amounts: Ints = np.zeros((0, self._axes), dtype=np.int64)
        width = snapshot.devices.width if snapshot.devices.matter else 0
        self.devices: Ints = np.zeros((0, width), dtype=np.int64)
        ends = expected_ends(snapshot, held, default_runtime_ms, now, late=late)
        devices = ledger.devices_of(held, width) if width else np.zeros((len(held), 0), dtype=np.int64)
        self._insert([ends], [ledger.node[held]], [ledger.amount[held]], [devices])
        self.add(taken)

    def add(self, taken: Sequence[Taken]) -> None:
        """Note more that has started. Of equal ends, what was noted earlier comes first."""
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
        ends = np.concatenate(
            [_each(part.late_ms if self._late else part.end_ms, part.nodes) for part in taken]
        )
        self._insert([ends], [nodes], [amounts], [devices])

    def _insert(self, ends: list[Ints], nodes: list[Ints], amounts: list[Ints], devices: list[Ints]) -> None:
        every = np.concatenate([self.ends, *ends])
        order = np.argsort(every, kind="stable")
        self.ends = every[order]
        self.nodes = np.concatenate([self.nodes, *nodes])[order]
        self.amounts = np.concatenate([self.amounts, *amounts])[order]
        self.devices = np.concatenate([self.devices, *devices])[order]

    def freed(self, axis: int, until_ms: int) -> Ints:
        """(N,) what will have been given back of an axis by then; of GPUs by device (N, D)."""
        count = int(np.searchsorted(self.ends, until_ms, side="right"))
        if axis == DEVICES:
            return spread(self.nodes[:count], self.devices[:count], self.size)
        sums = np.zeros(self.size, dtype=np.int64)
        np.add.at(sums, self.nodes[:count], self.amounts[:count, axis])
        return sums

    def earliest(
        self, axes: Sequence[int], rows: Sequence[Ints], fits: Callable[[list[Ints]], T | None], now: int
    ) -> tuple[int, T] | None:
        """The earliest time at which something fits, if nothing else starts.

        Room only grows along the calendar, so a binary search over its distinct ends finds it.

        Args:
            axes: Which axes.
            rows: For each of them, (N,) what is free now.
            fits: Tries a placement on such rows.
            now: The moment, wall-clock ms.

        Returns:
            The time and the placement; None if it would not fit even when everything has ended.
        """
        times = np.unique(self.ends)
        found: tuple[int, T] | None = None
        low, high = -1, len(times)  # -1 = now; high is exclusive once something was found
        while low < high:
            middle = (low + high) // 2 if found is not None else len(times) - 1
            at = now if middle < 0 else int(times[middle])
            placed = fits([row + self.freed(axis, at) for axis, row in zip(axes, rows, strict=True)])
            if placed is None:
                if found is None:
                    return None
                low = middle + 1
            else:
                found = (at, placed)
                high = middle
        return found


def spread(nodes: Ints, rows: Ints, size: int) -> Ints:
    """(N, D) the sum of rows (K, D) of devices, by the nodes (K,) they are on."""
    sums = np.zeros((size, rows.shape[1]), dtype=np.int64)
    np.add.at(sums, nodes, rows)
    return sums


def _sums(axes: Sequence[int], table: RoleTable) -> list[tuple[int, int | Ints]]:
    """What a role takes of each axis of the snapshot."""
    return [(axis, need) for axis, need in zip(axes, table.needs, strict=True) if axis != DEVICES]


def seats_of(spots: Sequence[Spots], size: int, width: int) -> Ints:
    """(N, D) what pods take of each device."""
    sums = np.zeros((size, width), dtype=np.int64)
    for where in spots:
        if where.devices is not None:
            np.add.at(sums, where.nodes, where.devices)
    return sums


def _each(moment: int | Ints, nodes: Ints) -> Ints | list[int]:
    """(P,) the moments of all pods."""
    return [moment] * len(nodes) if isinstance(moment, int) else moment


def expected_ends(
    snapshot: Snapshot, slots: NDArray[np.intp], default_runtime_ms: int, now: int, *, late: bool = False
) -> Ints:
    """(M,) when the claims in these slots of the ledger are expected to end, or will have ended with good reason; after `now`."""
    ledger = snapshot.ledger
    since, until = ledger.since[slots], ledger.until[slots]
    if late:
        until = np.where(ledger.late[slots] == UNKNOWN, until, ledger.late[slots])
    ends = np.where(until == UNKNOWN, since + default_runtime_ms, until)
    elapsed = np.maximum(now - since, 0)
    ends = np.where(ends > now, ends, now + np.maximum(OVERDUE_MS, elapsed // 10))
    releasing = ledger.kind[slots] == ClaimKind.RELEASING
    return np.where(releasing, np.minimum(ends, now + RELEASING_MS), ends)


def promised(
    axis_count: int, axes: Sequence[int], tables: Sequence[RoleTable], spots: Sequence[Spots], size: int
) -> list[Ints]:
    """For each of `axis_count` axes, (N,) what the reserved pods will take."""
    amounts = [np.zeros(size, dtype=np.int64) for _ in range(axis_count)]
    for table, where in zip(tables, spots, strict=True):
        for axis, need in _sums(axes, table):
            np.add.at(amounts[axis], where.nodes, need if isinstance(need, int) else need[where.nodes])
    return amounts
