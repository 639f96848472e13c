"""Forecast: when waiting groups will start, as an interval, from plans for several ways in which runtimes may turn out.

Runtimes that differ are known by their quantiles. A scenario gives each running pod and each waiting group a level of its own,
the same for every call (a hash of the numbers, no randomness), and plans the waiting groups in order, each as early as possible
without delaying those before it. Of `SCENARIOS` starts the second and the last but one bound eight tenths of what can happen,
as far as runtimes turn out like those that were seen, and no new group comes that goes first.

Source: the predictive interval between order statistics; scenario planning as in Smith, Taylor & Foster 1999 (queue wait times
from runtime predictions).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import isqrt
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement.capacity import Capacity
from flowsched.scheduling.placement.cost_table import PlacementRequest, price
from flowsched.scheduling.placement.gang import Ints, copies_of
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.reservations import (
    OVERDUE_MS,
    RELEASING_MS,
    Returns,
    Timeline,
    amounts_of,
    longest_of,
    runtime_of,
)
from flowsched.scheduling.state.claims import EMPTY, UNKNOWN, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.gpus import DEVICES
from flowsched.scheduling.state.snapshot import Snapshot

#: So many ways things may turn out. Of n + 1 gaps, n - 3 lie between the second and the last but one: eight tenths.
SCENARIOS: Final = 19
LOW, MIDDLE, HIGH = 1, 9, 17
#: Runtimes are given at these levels, in per mille.
LEVELS: Final = tuple(range(0, 1_001, 50))
_STEP: Final = 50_000  #: the same in millionths, the distance between levels
_WHOLE: Final = 1_000_000
#: The assumed spread of a runtime without observations, in per mille of the expected one: from a third to three times as long.
GUESSED: Final = (
    *(300, 400, 480, 550, 610, 670, 730, 790, 860, 930, 1_000),
    *(1_080, 1_170, 1_270, 1_380, 1_500, 1_650, 1_850, 2_150, 2_600, 3_500),
)
#: Groups that are planned in one call, at most, the first by order; those behind them get no start.
MOST_GROUPS: Final = 48
#: A bag is planned in so many parts at most: each part starts where all of it fits.
_PARTS: Final = 16
#: All parts that are planned in a scenario, times nodes (and these), at most: about a second of one core.
_WORK: Final = 6_000
_NODES_BESIDE: Final = 10

#: (levels,) ms: how long it may take.
Spread = Sequence[int]


class Start(msgspec.Struct, frozen=True):
    """When a task is expected to start, in wall-clock ms: eight of ten times between `low` and `high`."""

    low_ms: int
    start_ms: int
    high_ms: int


class Starts(msgspec.Struct, frozen=True):
    """When the first task of a group that waits is expected to start, and its last one: of a gang all tasks start at once."""

    first: Start
    last: Start


def guessed(runtime_ms: int) -> Spread:
    """How long something may take of which only an expectation is known."""
    return tuple(runtime_ms * part // 1_000 for part in GUESSED)


def starts(
    snapshot: Snapshot,
    catalogue: Catalogue,
    waiting: Sequence[PodGroup],
    wanted: Collection[int],
    spreads: Mapping[str, Spread],
    spread_of: Callable[[PodGroup], Spread | None],
    profile: Profile,
    now: int,
) -> dict[int, Starts]:
    """The starts of some groups that wait.

    It takes a tenth of a second for two hundred pods and a few gangs, and up to one or two seconds, so it runs only when a client
    asks, and beside the event loop.

    Args:
        snapshot: Nodes and claims. Not modified.
        catalogue: Datasets and replicas. Not modified.
        waiting: The groups that wait, in the order in which they go.
        wanted: Keys of those that are asked for.
        spreads: Owner of a claim -> how long it may run in all; a claim that is not in it gets a guess.
        spread_of: The same of a group that waits; None = it gets a guess.
        profile: The policy.
        now: The moment, wall-clock ms.

    Returns:
        By key. A group that could never start, or stands behind those that are planned, is not in it: `MOST_GROUPS`, and fewer
        where there are many nodes.
    """
    # A gang that is placed pod by pod may have no pod left in its first role: there is no start to tell.
    waiting = [group for group in waiting if group.gang or group.roles[0].count]
    last = max((at for at, group in enumerate(waiting) if group.key in wanted), default=-1)
    most = max(1, _WORK // (len(snapshot) + _NODES_BESIDE))
    ahead = waiting[: min(last + 1, MOST_GROUPS, most)]
    sizes = [1 if group.gang else group.roles[0].count for group in ahead]
    parts = next(
        shares for each in range(_PARTS, 0, -1) if sum(shares := [min(size, each) for size in sizes]) <= most
    )
    requests = [price(group, snapshot, catalogue, profile) for group in ahead]
    lengths = [np.array(spread_of(g) or guessed(runtime_of(g, profile))) for g in ahead]
    ledger = snapshot.ledger
    slots = np.flatnonzero((ledger.kind != EMPTY) & (ledger.kind != ClaimKind.STAGING))
    tables = _tables(snapshot, slots, spreads, profile)
    amounts = ledger.amount[slots]
    if snapshot.devices.matter:
        amounts = np.hstack([amounts, ledger.devices_of(slots, snapshot.devices.width)])
    found: dict[int, list[tuple[int, int]]] = {}
    for scenario in range(SCENARIOS):
        ends = _ends(snapshot, slots, tables, scenario, now)
        world = _World(snapshot, profile, Returns(ends, ledger.node[slots], amounts), now)
        for request, length, part in zip(requests, lengths, parts, strict=True):
            mean_ms = int((length[:-1] + length[1:]).mean()) // 2  # on straight lines between levels
            begun = world.plan(request, _runtimes(request.group, length, part, scenario), mean_ms)
            if begun is not None and request.group.key in wanted:
                found.setdefault(request.group.key, []).append(begun)
    return {
        key: Starts(*(_interval(each) for each in zip(*pairs, strict=True)))
        for key, pairs in found.items()
        if len(pairs) == SCENARIOS
    }


def _interval(moments: Sequence[int]) -> Start:
    """(SCENARIOS,) starts, in any order."""
    return Start(*(sorted(moments)[at] for at in (LOW, MIDDLE, HIGH)))


def _runtimes(group: PodGroup, length: NDArray[np.int64], parts: int, scenario: int) -> list[int]:
    """How long a gang takes in a scenario, or each of some pods of a bag, which stand for all."""
    numbers = (np.int64(group.key) + (1 << 32)) * _PARTS + np.arange(parts)
    values = _value_at(np.broadcast_to(length, (parts, len(LEVELS))), _levels(numbers, scenario))
    return [max(1, int(each)) for each in values]


class _World:
    """One way in which things may turn out."""

    def __init__(self, snapshot: Snapshot, profile: Profile, returns: Returns, now: int) -> None:
        self._snapshot, self._profile = snapshot, profile
        self._room = Capacity(snapshot)
        rows = [self._room.hard(axis) for axis in range(len(snapshot.axes))]
        devices = self._room.hard(DEVICES) if snapshot.devices.matter else None
        self._line = Timeline(returns, rows, now, devices)

    def plan(
        self, request: PlacementRequest, runtimes_ms: Sequence[int], mean_ms: int
    ) -> tuple[int, int] | None:
        """Let a group start as early as it can, a bag in as many parts as there are runtimes.

        A part of a large bag stands for some pods side by side, and for some that follow each other there. The mean runtime of n
        that follow each other differs from `mean_ms` by a root of n less than that of one does.

        Returns:
            When its first pod starts, and its last one; None if it never can.
        """
        if request.group.gang:
            begun = self._start(request.at_least(), runtimes_ms[0], 1)
            return None if begun is None else (begun[0], begun[0])
        left, first, last = request.tables[0].count, 0, 0
        each = -(-left // len(runtimes_ms))
        whole = [self._room.allocatable(axis) for axis in request.axes]
        on_empty_nodes = int(copies_of(whole, request.tables[0], left).sum())
        most = 1 if each == 1 else max(1, min(each, on_empty_nodes // len(runtimes_ms)))
        for runtime_ms in runtimes_ms:
            rounds = -(-each // most)
            runtime_ms = mean_ms + (runtime_ms - mean_ms) * 1_000 // isqrt(rounds * 1_000_000)
            begun = self._start(request.wanting(min(most, left)), runtime_ms, rounds)
            if begun is None:
                return None
            start, pods = begun
            first = min(first or start, start)
            left -= pods * rounds
            last = max(last, start + runtime_ms * (rounds - 1))
            if left <= 0:
                break
        return first, last

    def _start(self, request: PlacementRequest, runtime_ms: int, rounds: int) -> tuple[int, int] | None:
        """Allocate as much of the request as fits at the earliest moment. Returns this moment, and how many pods."""
        found = self._line.earliest(
            request.axes,
            request.tables,
            self._planned_ms(request, runtime_ms) * rounds,
            lambda free: request.place(free, self._room, self._snapshot, self._profile),
        )
        if found is None:
            return None
        start, node_choices = found
        for table, where in zip(request.tables, node_choices, strict=True):
            amounts = amounts_of(len(self._snapshot.axes), request.axes, table, where)
            self._line.allocate(start, start + runtime_ms * rounds, where.nodes, amounts)
        return start, sum(len(where.nodes) for where in node_choices)

    def _planned_ms(self, request: PlacementRequest, runtime_ms: int) -> int:
        """A hole is chosen by the expected runtime, never by the runtime of the scenario."""
        return max(runtime_ms, longest_of(request.group, self._profile)) if request.group.gang else runtime_ms


def _tables(
    snapshot: Snapshot, slots: NDArray[np.intp], spreads: Mapping[str, Spread], profile: Profile
) -> NDArray[np.int64]:
    """(M, levels) how long each claim may run in all."""
    ledger = snapshot.ledger
    until, since = ledger.until[slots], ledger.since[slots]
    expected = np.where(until == UNKNOWN, profile.default_runtime_ms, until - since)
    tables: NDArray[np.int64] = expected[:, None] * np.array(GUESSED, dtype=np.int64) // 1_000
    row_of = {int(slot): row for row, slot in enumerate(slots)}
    for owner, spread in spreads.items():
        slot = ledger.slot_of(owner)
        if slot in row_of:
            tables[row_of[slot]] = spread
    return tables


def _ends(
    snapshot: Snapshot, slots: NDArray[np.intp], tables: NDArray[np.int64], scenario: int, now: int
) -> Ints:
    """(M,) when each claim ends in this scenario: as its table says of those that have run for so long already."""
    ledger = snapshot.ledger
    since = ledger.since[slots]
    elapsed = np.maximum(now - since, 0)
    levels = _levels(slots, scenario)
    passed = _level_of(tables, elapsed)
    ends = since + _value_at(tables, passed + (_WHOLE - passed) * levels // _WHOLE)
    overdue = now + 1 + np.maximum(OVERDUE_MS, elapsed // 10) * levels // (_WHOLE // 2)
    ends = np.where(ends > now, ends, overdue)
    releasing = ledger.kind[slots] == ClaimKind.RELEASING
    return np.where(releasing, np.minimum(ends, now + RELEASING_MS), ends)


def _value_at(tables: NDArray[np.int64], levels: NDArray[np.int64]) -> Ints:
    """(M,) the values of tables (M, levels) at levels in millionths, on straight lines between."""
    at = np.minimum(levels // _STEP, len(LEVELS) - 2)
    rows = np.arange(len(tables))
    low, high = tables[rows, at], tables[rows, at + 1]
    found: Ints = low + (high - low) * (levels - at * _STEP) // _STEP
    return found


def _level_of(tables: NDArray[np.int64], values: Ints) -> NDArray[np.int64]:
    """(M,) the level in millionths of each value: how many of a million take no longer."""
    at = np.clip((tables <= values[:, None]).sum(axis=1) - 1, 0, len(LEVELS) - 2)
    rows = np.arange(len(tables))
    low, high = tables[rows, at], tables[rows, at + 1]
    part = np.clip(values - low, 0, np.maximum(high - low, 0)) * _STEP // np.maximum(high - low, 1)
    found: NDArray[np.int64] = at * _STEP + part
    return np.where(values >= tables[:, -1], _WHOLE, found)


def _levels(numbers: NDArray[np.int64] | NDArray[np.intp], scenario: int) -> NDArray[np.int64]:
    """(M,) levels in millionths: of each number every nineteenth once, in an order of its own.

    The number of scenarios is prime, so that a step and an offset, both hashed from the number (splitmix64), go through all.
    """
    with np.errstate(over="ignore"):
        mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    hashed = (mixed >> np.uint64(1)).astype(np.int64)
    step = 1 + hashed % (SCENARIOS - 1)
    offset = (hashed >> 16) % SCENARIOS
    within = (hashed >> 32) % 1_000
    found: NDArray[np.int64] = (
        (((step * scenario + offset) % SCENARIOS) * 1_000 + within) * _WHOLE // (SCENARIOS * 1_000)
    )
    return found
