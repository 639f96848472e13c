"""Delay scheduling: whether a group waits for the node that has its data, and how long nodes stay busy.

Source: Zaharia et al. 2010 (delay scheduling); here the wait is bounded by what a copy would cost instead of a fixed time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.scheduling.placement.capacity import Mask
from flowsched.scheduling.placement.cost_table import Assignment, PlacementRequest
from flowsched.scheduling.placement.gang import Ints, NodeChoice
from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.pod_group import Home, PodGroup, Shape
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.reservations import Calendar, expected_ends
from flowsched.scheduling.state.claims import EMPTY, UNKNOWN, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import AXES, IO, Snapshot

Earliest = Callable[[PlacementRequest], tuple[int, tuple[NodeChoice, ...]] | None]

#: How many ends on nodes with the data are looked at for one group, at most.
_ENDS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """A group that is better off waiting.

    Args:
        reason: Why it waits, and until when.
        offer: Its request, limited to the nodes that it waits for.
        keep: The assignment of its pods that need not wait; None = all wait.
    """

    reason: Reason
    offer: PlacementRequest
    keep: Assignment | None


class Delays:
    """The decisions to wait of one cycle; it remembers which future room is awaited already.

    Args:
        now: Wall-clock ms.
        shortest_ms: `shortest_wait_ms` of the profile.
    """

    def __init__(self, now: int, shortest_ms: int) -> None:
        self.now = now
        self.shortest_ms = shortest_ms
        #: (node, axis) -> what is awaited there already
        self.awaited: dict[tuple[int, int], int] = {}

    def judge(
        self,
        fit: Assignment,
        calendar: Callable[[], Calendar],
        soonest: Callable[[], int],
        earliest: Earliest,
        rows: Sequence[Ints],
        promised: bool,
    ) -> Wait | None:
        """Whether (some of) a group should wait for its data's nodes.

        Args:
            fit: Where it would go now.
            calendar: When room will be free.
            soonest: When some will be, at the earliest.
            earliest: When an offer could start.
            rows: For each of the offer's axes, (N,) hard room now.
            promised: Whether the cycle has made its promise already.
        """
        offer = fit.offer
        local = offer.local
        if local is None or not (local & offer.tables[0].allowed).any():
            return None
        stage = offer.stage_ms(len(local))
        away = [np.flatnonzero(~local[spots.nodes]) for spots in fit.spots]
        dearest = max(
            (int(stage[s.nodes[a]].max()) for s, a in zip(fit.spots, away, strict=True) if len(a)), default=0
        )
        sticky = bool(offer.group.staged_on) and not promised
        if dearest == 0 or (dearest < self.shortest_ms and not sticky):
            return None
        if offer.group.gang or sticky:
            here = offer.only(local)
            found = earliest(here if offer.group.gang else here.wanting(1))
            if found is None or found[0] <= self.now:
                return None
            if sticky or found[0] - self.now < dearest:
                keep = None if offer.group.gang else without(fit, away[0])
                return Wait(self._reason(offer, found[0], dearest), here.at_least(), keep)
            return None
        if self.now + dearest <= soonest():
            return None  # every copy will have come before anything ends
        return self._some(fit, offer.only(local), stage, away[0], calendar(), rows)

    def _some(
        self,
        fit: Assignment,
        here: PlacementRequest,
        stage: Ints,
        away: NDArray[np.intp],
        calendar: Calendar,
        rows: Sequence[Ints],
    ) -> Wait | None:
        """A bag: its dearest pods against the earliest future rooms beside the data, one by one."""
        nodes = fit.spots[0].nodes
        costs = stage[nodes[away]]
        dearest_first = away[np.argsort(-costs, kind="stable")]
        horizon = self.now + int(costs.max())
        sums = here.by_sums()  # what is expected of busy nodes is no exact science
        slots = self._slots(sums, calendar, rows[: len(sums.axes)], horizon, len(away))
        waiting = 0
        for at, (end, _node) in zip(dearest_first.tolist(), slots, strict=False):
            cost = int(stage[nodes[at]])
            if cost < self.shortest_ms or end - self.now >= cost:
                break
            waiting += 1
        if not waiting:
            return None
        for _, node in slots[:waiting]:
            for axis, need in zip(sums.axes, sums.tables[0].needs, strict=True):
                amount = need if isinstance(need, int) else int(need[node])
                self.awaited[node, axis] = self.awaited.get((node, axis), 0) + amount
        reason = self._reason(here, slots[0][0], int(costs.max()))
        return Wait(reason, here.wanting(1), without(fit, dearest_first[:waiting]))

    def _slots(
        self, here: PlacementRequest, calendar: Calendar, rows: Sequence[Ints], horizon: int, wanted: int
    ) -> list[tuple[int, int]]:
        """(end, node) of future rooms for one pod each, earliest first, before `horizon`."""
        table = here.tables[0]
        before = int(np.searchsorted(calendar.ends, horizon, side="left"))
        ends = np.flatnonzero(table.allowed[calendar.nodes[:before]])[:_ENDS]
        free: dict[int, list[int]] = {}
        copies: dict[int, int] = {}
        slots: list[tuple[int, int]] = []
        for at in ends.tolist():
            node = int(calendar.nodes[at])
            needs = [need if isinstance(need, int) else int(need[node]) for need in table.needs]
            if node not in free:
                awaited = [self.awaited.get((node, axis), 0) for axis in here.axes]
                free[node] = [int(row[node]) - less for row, less in zip(rows, awaited, strict=True)]
                copies[node] = max(0, _copies(free[node], needs))
            for position, axis in enumerate(here.axes):
                free[node][position] += int(calendar.amounts[at, axis])
            now = max(0, _copies(free[node], needs))
            slots.extend([(int(calendar.ends[at]), node)] * (now - copies[node]))
            copies[node] = now
            if len(slots) >= wanted:
                break
        return slots[:wanted]

    def _reason(self, offer: PlacementRequest, start: int, stage_ms: int) -> Reason:
        wait = start - self.now
        text = (
            f"the node with its data has room in about {(wait + 999) // 1000} s; "
            f"a copy would cost {(stage_ms + 999) // 1000} s"
        )
        numbers = {"wait_ms": wait, "copy_ms": stage_ms}
        return Reason(offer.group.key, ReasonCode.WAITING_FOR_LOCALITY, text, numbers, start)


def _copies(free: Sequence[int], needs: Sequence[int]) -> int:
    return min((have // need for have, need in zip(free, needs, strict=True) if need), default=1)


def without(fit: Assignment, dropped: NDArray[np.intp]) -> Assignment | None:
    """A bag's fit without some of its pods (by their place in it); None when none is left."""
    spots, bound = fit.spots[0], fit.bound[0]
    keep = np.delete(np.arange(len(spots.nodes)), dropped)
    if not len(keep):
        return None
    return structs.replace(fit, spots=(spots.only(keep),), bound=(None if bound is None else bound[keep],))


# ---- the horizon: how long nodes are busy, as a fluid ----
#
# A reservation's calendar knows when present pods end, not what follows them. Here the work of a node is one amount of
# core-milliseconds, of what runs and of what has been promised to the node, spread over its cores. A second amount is what that
# work asks of the disk, spread over what the disk carries at a time. The node is busy until both are done.


_CPU: Final = AXES.index("cpu")
#: After waiting so many times the cost of a copy, a task stops waiting for its preferred node's queue: it waits only for the room
#: that the next ends will free (`Delays`).
_PATIENCE: Final = 20
#: One cycle forecasts so many pods, at most …
_THOUGHTS: Final = 256
#: … and none that will start later than this.
_FURTHEST_MS: Final = 600_000
_NEVER: Final = np.iinfo(np.int64).max
#: What is asked of a disk is counted in parts of it.
_DISK: Final = 1_000_000
#: Nothing is taken to use a disk for longer (two years): products must fit 64 bits.
_LONGEST_MS: Final = 1 << 36


def work_ms(snapshot: Snapshot, backlog: Sequence[PodGroup], profile: Profile, now: int) -> int | None:
    """How long all running and waiting work would take on all cores together; None if `ordering.in_order` does not use it."""
    if profile.order != "shortest" or not snapshot.total[_CPU]:
        return None
    if len({group.queue for group in backlog}) == len(backlog):
        return None  # every queue has one group: no group is behind another
    unknown, total = profile.default_runtime_ms, snapshot.total[_CPU]
    waiting = furthest = 0
    for group in backlog:
        runtime = unknown if group.runtime_ms is None else group.runtime_ms
        furthest = max(furthest, group.rank_ms)
        for role in group.roles:
            waiting += role.count * role.shape.requests[_CPU] * runtime
    if furthest < max(waiting // total, 1):
        return None  # no group is that far from the end of its workflow, whatever runs
    return (_running(snapshot, unknown, now) + waiting) // total


def _running(snapshot: Snapshot, default_runtime_ms: int, now: int) -> int:
    """All the work of `AvailableTimes`, in milli-core ms."""
    ledger = snapshot.ledger
    cpu, left = ledger.amount[:, _CPU], ledger.until - now
    usual = (left > 0) & (ledger.kind == ClaimKind.RUNNING)  # of most that is all that need be known
    whole = int(np.dot(cpu, np.where(usual, left, 0)))
    others = np.flatnonzero(~usual & (ledger.kind != EMPTY))
    if len(others):
        staging = ledger.kind[others] == ClaimKind.STAGING
        held = others[~staging]
        whole += int(np.dot(cpu[held], expected_ends(snapshot, held, default_runtime_ms, now) - now))
        whole += int(np.dot(cpu[others[staging]], _staged_ms(snapshot, others[staging], default_runtime_ms)))
    return whole


def _staged_ms(snapshot: Snapshot, slots: NDArray[np.intp], default_runtime_ms: int) -> Ints:
    """(M,) how long the pods of STAGING claims will run, once their data have come."""
    until, since = snapshot.ledger.until[slots], snapshot.ledger.since[slots]
    return np.where(until == UNKNOWN, default_runtime_ms, until - since)


def half_a_node(snapshot: Snapshot, profile: Profile) -> tuple[int, ...]:
    """(R,) half of the most that any node has; empty if `ordering.in_order` does not use it."""
    if profile.order != "shortest" or not len(snapshot):
        return ()
    if "half" not in snapshot.cache:
        snapshot.cache["half"] = tuple((snapshot.allocatable.max(axis=0) // 2).tolist())
    half: tuple[int, ...] = snapshot.cache["half"]
    return half


class _Stays(NamedTuple):
    """Pods that wait for the gather node: how many, when the first of them can start there, and when the last of their outputs
    would be there if they ran elsewhere (ms from now).
    """

    pods: int
    first_ms: int
    dearest_ms: int


class AvailableTimes:
    """The work of each node in one cycle.

    Args:
        snapshot: Nodes and claims.
        default_runtime_ms: Of work of which nothing is known.
        now: Wall-clock ms.
        awaited: (node, axis) -> what is awaited there already, as `Delays` counts it; what is promised here is added.
        disks: Whether what pods ask of disks counts.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        default_runtime_ms: int,
        now: int,
        awaited: dict[tuple[int, int], int],
        *,
        disks: bool = False,
    ) -> None:
        self.now = now
        self.awaited = awaited
        self._snapshot, self._unknown_ms = snapshot, default_runtime_ms
        budget = snapshot.allocatable[:, IO]
        #: (N,) bytes/s of disk; None where it does not count.
        self.disks: Ints | None = budget if disks and budget.any() else None
        self.io = np.zeros(len(snapshot), dtype=np.int64)  #: (N,) millionths of the disk, times ms
        ledger = snapshot.ledger
        held = np.flatnonzero((ledger.kind != EMPTY) & (ledger.kind != ClaimKind.STAGING))
        staging = np.flatnonzero(ledger.kind == ClaimKind.STAGING) if snapshot.any_staging else held[:0]
        self.work = np.zeros(len(snapshot), dtype=np.int64)  #: milli-core ms
        #: (N,) whether some of that work waits for its data: it begins when they have come
        self.staged = np.zeros(len(snapshot), dtype=np.bool_)
        self.cores: Ints = np.maximum(snapshot.allocatable[:, _CPU], 1)
        self.ahead: dict[
            tuple[int, int], None
        ] = {}  #: (group, node) where a group that waits will probably run, in order
        self.thoughts = 0
        #: (gather node, shape's id, whether the inputs are there) of bags that wait for it -> the shape, and what `left` was then
        self.stayed: dict[tuple[int, int, bool], tuple[Shape, int]] = {}
        if len(held):
            left = expected_ends(snapshot, held, default_runtime_ms, now) - now
            np.add.at(self.work, ledger.node[held], ledger.amount[held][:, _CPU] * left)
            self._add_io(ledger.node[held], ledger.amount[held][:, IO], left)
        if len(staging):
            takes = _staged_ms(snapshot, staging, default_runtime_ms)
            np.add.at(self.work, ledger.node[staging], ledger.amount[staging][:, _CPU] * takes)
            self._add_io(ledger.node[staging], ledger.amount[staging][:, IO], takes)

    def add(self, nodes: Ints, asked: Sequence[int], runtime_ms: int | Ints, *, staged: bool = False) -> None:
        """Pods that ask for so much (R,) will run there for so long (all of them, or (P,) each); `staged`: once their data have
        come.
        """
        if not len(nodes):
            return
        cpu, io = asked[_CPU], asked[IO] if len(asked) > IO else 0
        if len(nodes) == 1 and isinstance(runtime_ms, int):
            self.work[nodes.item(0)] += cpu * runtime_ms
        else:
            np.add.at(self.work, nodes, cpu * runtime_ms)
        if io:
            self._add_io(nodes, io, runtime_ms)
        if staged:
            self.staged[nodes] = True

    def _add_io(self, nodes: Ints, rate: int | Ints, runtime_ms: int | Ints) -> None:
        """Pods will use so many bytes/s of the disks of these nodes for so long."""
        if self.disks is not None:
            np.add.at(self.io, nodes, self._part(nodes, rate) * np.minimum(runtime_ms, _LONGEST_MS))

    def _part(self, nodes: Ints | int, rate: int | Ints) -> Ints:
        """Millionths of the disks of these nodes; a pod that asks for more than a disk has gets all of it."""
        assert self.disks is not None
        disk = self.disks[nodes]
        part: Ints = np.where(disk > 0, np.minimum(rate, disk) * _DISK // np.maximum(disk, 1), 0)
        return part

    def busy_ms(self) -> Ints:
        """(N,) when nodes will have done all their work, from now on."""
        work: Ints = self.work // self.cores
        return work if self.disks is None else np.maximum(work, self.io // _DISK)

    def _io_ms(self, node: int, asked: Sequence[int], runtime_ms: int) -> int:
        """Millionths of the node's disk, times ms, of one pod."""
        if self.disks is None or len(asked) <= IO or not asked[IO]:
            return 0
        return int(self._part(node, asked[IO])) * min(runtime_ms, _LONGEST_MS)

    def at_home(self, fit: Assignment, full: Mask, runtime_ms: int, left: int) -> Wait | None:
        """Whether (some pods of) a bag should wait for the gather node, where their outputs are collected.

        If a pod runs elsewhere, its output is there once the pod has ended, and the bytes already on their way and its own have
        arrived. If the pod waits, its output is there once the node has done its work and the pod's. The sooner is chosen, pod
        by pod. `left`: `again` compares it to see whether anything was placed since.
        """
        group, local = fit.offer.group, fit.offer.local
        home = group.home
        if home is None or not full[home.node] or not fit.offer.tables[0].allowed[home.node]:
            return None  # if it has room, its costs were weighed already
        nodes = fit.spots[0].nodes
        away = np.flatnonzero(nodes != home.node)
        stays = self._stays(group, home, len(nodes) - len(away), len(away), runtime_ms)
        if not stays.pods:
            return None
        if stays.pods == len(nodes):
            shape = group.roles[0].shape
            self.stayed[home.node, id(shape), local is None or bool(local[home.node])] = shape, left
        keep = without(fit, away[len(away) - stays.pods :])
        return Wait(self._stay(group, home, stays, runtime_ms), structs.replace(fit.offer.wanting(1)), keep)

    def again(self, group: PodGroup, catalogue: Catalogue, left: int) -> Reason | None:
        """Why a bag waits for its gather node, if a bag like it did in this cycle and nothing has been placed since.

        Then there is still room elsewhere and none on that node. None = the bag has to be considered.
        """
        home, shape = group.home, group.roles[0].shape
        if home is None or not self.stayed or group.gang or group.shut or group.staged_on:
            return None
        local = all(catalogue.is_on(dataset, home.node) for dataset in group.inputs)
        if self.stayed.get((home.node, id(shape), local), (shape, -1))[1] != left or len(group.roles) > 1:
            return None
        runtime_ms = self._unknown_ms if group.runtime_ms is None else group.runtime_ms
        stays = self._stays(group, home, 0, group.roles[0].count, runtime_ms)
        return self._stay(group, home, stays, runtime_ms) if stays.pods == group.roles[0].count else None

    def _stays(self, group: PodGroup, home: Home, there: int, away: int, runtime_ms: int) -> _Stays:
        """How many of a bag's pods wait for the gather node, if `there` of them find room on it and `away` of them elsewhere.

        The gather node's disk writes the outputs that arrive as well as those of its own pods. If that disk has more to do than
        the link, no pod's output is gathered sooner because the pod waited.
        """
        snapshot, node = self._snapshot, home.node
        asked, rate = group.roles[0].shape.requests, max(1, int(snapshot.nic_in[node]))
        disk = 0 if self.disks is None else int(snapshot.disk_rate[node])
        sends_ms = home.output_bytes * 1000 // (min(rate, disk) if disk else rate)
        coming = home.coming_bytes + int(snapshot.inbound[node]) + snapshot.homeward.get(node, 0)
        waited, cores = self.now - group.ready_ms, int(self.cores[node])
        work, io = int(self.work[node]), int(self.io[node])
        pod_io = self._io_ms(node, asked, runtime_ms)
        written_ms = min(home.output_bytes * 1000 // disk, _LONGEST_MS) if disk else 0
        first = dearest = waiting = 0
        for _ in range(away):
            here = there + waiting
            start = max((work + here * asked[_CPU] * runtime_ms) // cores, (io + here * pod_io) // _DISK)
            # Wherever they run, the gather node's disk writes what these pods write, and what arrives.
            disk_ms = io // _DISK + (here + 1) * written_ms + (coming * 1000 // disk if disk else 0)
            gone = max(max(runtime_ms, coming * 1000 // rate) + sends_ms, disk_ms)
            if max(start + runtime_ms, disk_ms) < gone and waited < _PATIENCE * gone:
                first = start if not waiting else first
                waiting += 1
                dearest = max(dearest, gone)
            else:
                coming += home.output_bytes
        return _Stays(waiting, first, dearest)

    def _stay(self, group: PodGroup, home: Home, stays: _Stays, runtime_ms: int) -> Reason:
        """Count the waiting pods as work of their gather node. Returns why they wait."""
        asked = group.roles[0].shape.requests
        self.work[home.node] += stays.pods * asked[_CPU] * runtime_ms
        self.io[home.node] += stays.pods * self._io_ms(home.node, asked, runtime_ms)
        seconds = (stays.first_ms + 999) // 1000
        text = f"its output is gathered on a node that has room in about {seconds} s; elsewhere it would be there later"
        numbers = {"wait_ms": stays.first_ms, "copy_ms": stays.dearest_ms}
        return Reason(group.key, ReasonCode.WAITING_FOR_LOCALITY, text, numbers, self.now + stays.first_ms)

    def rather(self, fit: Assignment, full: Mask, runtime_ms: int, shortest_ms: int) -> Wait | None:
        """Whether (some pods of) a bag should wait for another node than copy to where there is room now.

        A pod that waits can start when the node has done its work and the data have come, which may be sooner than when they
        have come to where it could go now. The nodes that are waited for are noted in `ahead`, so that data can go there.
        Those of the bag that find no room anywhere now will take what comes free there first.
        """
        group, missing = fit.offer.group, fit.offer.missing
        if missing is None:
            return None
        table, nodes = fit.offer.tables[0], fit.spots[0].nodes
        if not (table.allowed & full).any():
            return None
        stage = fit.offer.stage_ms(len(missing))
        costs = stage[nodes]
        dearest_first = np.argsort(-costs, kind="stable")
        if int(costs.max()) < shortest_ms:
            return None
        if table.count > fit.pods:
            self.foresee(fit.offer, table.count - fit.pods, runtime_ms)
        waited, waiting, first = self.now - group.ready_ms, 0, 0
        for at in dearest_first.tolist():
            cost = int(costs[at])
            if cost < shortest_ms or waited > _PATIENCE * cost:
                break
            best, start = self._first(stage, table.allowed & full)
            if start >= cost:
                break
            first = first or start
            waiting += 1
            self._promise(group, best, 1, runtime_ms)
        if not waiting:
            return None
        dearest = int(costs.max())
        text = (
            f"another node has done its work and has its data in about {(first + 999) // 1000} s; "
            f"where there is room now they would be in {(dearest + 999) // 1000} s"
        )
        reason = Reason(
            group.key,
            ReasonCode.WAITING_FOR_LOCALITY,
            text,
            {"wait_ms": first, "copy_ms": dearest},
            self.now + first,
        )
        return Wait(reason, fit.offer.wanting(1), without(fit, dearest_first[:waiting]))

    def foresee(self, offer: PlacementRequest, count: int, runtime_ms: int) -> None:
        """Forecast where pods that find no room now will probably run, so that their data can go there."""
        missing = offer.missing
        if missing is None:
            return
        stage, allowed = offer.stage_ms(len(missing)), offer.tables[0].allowed
        if not allowed.any():
            return
        for _ in range(count):
            if self.thoughts >= _THOUGHTS:
                return
            best, start = self._first(stage, allowed)
            if start > _FURTHEST_MS:
                return
            self._promise(offer.group, best, 1, runtime_ms)

    def _first(self, stage: Ints, allowed: Mask) -> tuple[int, int]:
        """(node, ms) where a pod can start first, once the node has done its work and the data are there."""
        busy = self.busy_ms()
        start = np.where(self.staged, busy + stage, np.maximum(busy, stage))
        best = int(np.argmin(np.where(allowed, start, _NEVER)))
        return best, int(start[best])

    def _promise(self, group: PodGroup, node: int, pods: int, runtime_ms: int) -> None:
        self.thoughts += 1
        asked = group.roles[0].shape.requests
        cpu = asked[_CPU]
        self.work[node] += pods * cpu * runtime_ms
        self.io[node] += pods * self._io_ms(node, asked, runtime_ms)
        self.awaited[node, _CPU] = self.awaited.get((node, _CPU), 0) + pods * cpu
        self.ahead.setdefault((group.key, node), None)
