"""Delay scheduling: whether a pod is done earlier if it waits for a full node than where there is room now.

Source: Zaharia et al. 2010 (delay scheduling); here the cost of a copy bounds the wait, not a fixed time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.scheduling.placement.capacity import Capacity, Mask
from flowsched.scheduling.placement.cost_table import Assignment, PlacementRequest
from flowsched.scheduling.placement.gang import Ints, NodeChoice
from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.ordering import WaitingOrder
from flowsched.scheduling.reservations import Calendar, expected_ends
from flowsched.scheduling.state.claims import EMPTY, UNKNOWN, ClaimKind
from flowsched.scheduling.state.snapshot import AXES, IO, Snapshot

#: When and where a request could start.
Earliest = Callable[[PlacementRequest], tuple[int, tuple[NodeChoice, ...]] | None]


class Wait(msgspec.Struct, frozen=True, eq=False):
    """A group that is better off waiting.

    Args:
        reason: Why it waits, and until when.
        request: Its request, limited to the nodes that it waits for.
        keep: The assignment of its pods that need not wait; None = all wait.
    """

    reason: Reason
    request: PlacementRequest
    keep: Assignment | None


#: A group whose inputs were copied for it waits for their node so many times as long as another copy takes.
_PATIENCE: Final = 4


def wait_for_data(
    assignment: Assignment, earliest: Earliest, reserved: bool, now: int, shortest_ms: int
) -> Wait | None:
    """Whether a gang, or a group with inputs that were copied for it, should wait for a node that has its data.

    Args:
        assignment: Where it would go now.
        earliest: When a request could start.
        reserved: Whether the cycle has made its reservation already.
        now: Wall-clock ms.
        shortest_ms: `shortest_wait_ms` of the profile.
    """
    request, local, group = assignment.request, assignment.request.local, assignment.request.group
    copied = bool(group.staged_on) and not reserved
    if local is None or not (group.gang or copied) or not (local & request.tables[0].allowed).any():
        return None
    stage = request.stage_ms(len(local))
    nodes = [chosen.nodes for chosen in assignment.node_choices]
    away = [np.flatnonzero(~local[where]) for where in nodes]
    dearest = max((int(stage[n[a]].max()) for n, a in zip(nodes, away, strict=True) if len(a)), default=0)
    if dearest == 0 or (dearest < shortest_ms and not copied):
        return None
    here = request.only(local)
    found = earliest(here if group.gang else here.wanting(1))
    patience = dearest * _PATIENCE if copied else dearest  # the copy that it has had was for that node
    if found is None or found[0] <= now or found[0] - now >= patience:
        return None
    wait_ms = found[0] - now
    text = f"the node with its data has room in about {_s(wait_ms)} s; a copy would cost {_s(dearest)} s"
    numbers = {"wait_ms": wait_ms, "copy_ms": dearest}
    reason = Reason(group.key, ReasonCode.WAITING_FOR_LOCALITY, text, numbers, found[0])
    return Wait(reason, here.at_least(), None if group.gang else without(assignment, away[0]))


def _s(ms: int) -> int:
    """Whole seconds, upwards."""
    return (ms + 999) // 1000


def without(assignment: Assignment, dropped: NDArray[np.intp]) -> Assignment | None:
    """A bag's assignment without some of its pods (by their place in it); None when none is left."""
    chosen, bound = assignment.node_choices[0], assignment.bound[0]
    if len(dropped) == len(chosen.nodes):
        return None
    keep = np.delete(np.arange(len(chosen.nodes)), dropped)
    bound = None if bound is None else bound[keep]
    return structs.replace(assignment, node_choices=(chosen.only(keep),), bound=(bound,))


# ---- what the order of groups asks for ----


_CPU: Final = AXES.index("cpu")


def work_ms(snapshot: Snapshot, order: WaitingOrder, profile: Profile, now: int) -> int | None:
    """How long all running and waiting work would take on all cores together; None if no waiting group is that far from the end
    of its workflow, or the order does not depend on it.
    """
    total, furthest_ms = snapshot.total[_CPU], order.furthest_ms
    if profile.order != "shortest" or not total or furthest_ms is None:
        return None
    if furthest_ms < max(order.work // total, 1):
        return None  # whatever runs
    return (_running(snapshot, profile.default_runtime_ms, now) + order.work) // total


def _running(snapshot: Snapshot, default_runtime_ms: int, now: int) -> int:
    """All the work of `AvailableTimes`, in milli-core ms."""
    ledger = snapshot.ledger
    cpu, left = ledger.amount[:, _CPU], ledger.until - now
    usual = (left > 0) & (ledger.kind == ClaimKind.RUNNING)  # of most that is all that need be known
    whole = int(np.dot(cpu, np.where(usual, left, 0)))
    others = np.flatnonzero(~usual & (ledger.kind != EMPTY))
    if len(others):
        staging = ledger.kind[others] == ClaimKind.STAGING
        holding = others[~staging]
        whole += int(np.dot(cpu[holding], expected_ends(snapshot, holding, default_runtime_ms, now) - now))
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


# ---- where a pod's outputs are first where they are read, waiting included ----


#: One cycle forecasts so many pods that find no room, at most …
_THOUGHTS: Final = 256
#: … none that will start later than this …
_FURTHEST_MS: Final = 600_000
#: … and lets so many wait although there is room.
_WAITING: Final = 1_024
#: Nothing is expected to run, or to be written, for longer (two years): sums must fit 64 bits.
_LONGEST_MS: Final = 1 << 36
_NEVER: Final = np.iinfo(np.int64).max


class _Queue:
    """The work queue of one node: the running pods, and the work reserved on it, first come, first served.

    Attributes:
        free: (R,) the free amounts from `floor` on.
        ends: (ms from now, (R,) the amounts that end then), ascending.
        floor: No further pod starts earlier (ms from now): work that was reserved before goes first.
    """

    __slots__ = ("ends", "floor", "free")

    def __init__(self, free: list[int], ends: list[tuple[int, list[int]]], floor: int = 0) -> None:
        self.free, self.ends, self.floor = free, ends, floor

    def copy(self) -> _Queue:
        """One that changes for itself."""
        return _Queue(list(self.free), list(self.ends), self.floor)

    def start_ms(self, need: Sequence[int]) -> int:
        """When so much will be free, ms from now."""
        if _holds(self.free, need):
            return self.floor
        free = list(self.free)
        for end, amount in self.ends:
            free = [have + more for have, more in zip(free, amount, strict=True)]
            if _holds(free, need):
                return max(self.floor, end)
        return _NEVER

    def reserve(self, need: list[int], runtime_ms: int, ready_ms: int) -> None:
        """A pod will run here as soon as there is room and its inputs have come."""
        start = max(self.start_ms(need), ready_ms)
        if start == _NEVER:
            return
        ended = 0
        for end, amount in self.ends:
            if end > start:
                break
            ended += 1
            self.free = [have + more for have, more in zip(self.free, amount, strict=True)]
        del self.ends[:ended]
        self.floor = start
        self.allocate(need, start + min(runtime_ms, _LONGEST_MS))

    def allocate(self, need: list[int], until_ms: int) -> None:
        """A pod has room from now or `floor` on, until then."""
        self.free = [have - less for have, less in zip(self.free, need, strict=True)]
        insort(self.ends, (until_ms, need), key=lambda end: end[0])


def _holds(free: Sequence[int], need: Sequence[int]) -> bool:
    return all(have >= asked or not asked for have, asked in zip(free, need, strict=True))


class AvailableTimes:
    """When each node will have room, in one cycle, by expected ends; work that is reserved here takes its turn.

    Args:
        snapshot: Nodes and claims.
        room: The free capacity now.
        calendar: Expected ends, this cycle's placements included.
        default_runtime_ms: Of work of which nothing is known.
        now: Wall-clock ms.
    """

    def __init__(
        self, snapshot: Snapshot, room: Capacity, calendar: Calendar, default_runtime_ms: int, now: int
    ) -> None:
        self.now = now
        #: (group, node) where a group that waits will probably run, in order
        self.ahead: dict[tuple[int, int], None] = {}
        self.forecast = self.waiting = 0
        self._snapshot = snapshot
        self._free = np.array([room.hard(axis) for axis in range(len(snapshot.axes))]).T
        order = calendar.nodes.argsort(kind="stable")
        self._nodes, self._amounts = calendar.nodes[order], calendar.amounts[order]
        self._left: Ints = np.minimum(calendar.ends[order] - now, _LONGEST_MS)
        self._bounds = self._nodes.searchsorted(np.arange(len(snapshot) + 1))
        self._queues: dict[int, _Queue] = {}  #: of nodes on which something was placed or reserved since
        self._freed: dict[int, Ints] = {}  #: by axis, (K,) what a pod and those that end before it give back
        self._starts: dict[tuple[int, ...], Ints] = {}
        self._stale: dict[tuple[int, ...], set[int]] = {}
        if snapshot.any_staging:
            self._add_staging(default_runtime_ms)

    def _add_staging(self, default_runtime_ms: int) -> None:
        """Pods that wait for copies start once these have come."""
        ledger = self._snapshot.ledger
        slots = (ledger.kind == ClaimKind.STAGING).nonzero()[0]
        runtimes = _staged_ms(self._snapshot, slots, default_runtime_ms).tolist()
        for node, amount, runtime_ms in zip(
            ledger.node[slots].tolist(), ledger.amount[slots].tolist(), runtimes, strict=True
        ):
            self._touched(node).reserve(amount, runtime_ms, self._comes_ms(node))

    def _comes_ms(self, node: int) -> int:
        """When all that is on its way to a node has come, ms from now."""
        rates = [int(column[node]) for column in (self._snapshot.nic_in, self._snapshot.disk_rate)]
        rate = min([rate for rate in rates if rate], default=0)
        return int(self._snapshot.inbound[node]) * 1000 // rate if rate else 0

    def _touched(self, node: int) -> _Queue:
        """The queue of a node that is about to change."""
        for stale in self._stale.values():
            stale.add(node)
        if node not in self._queues:
            span = slice(self._bounds[node], self._bounds[node + 1])
            ends = list(zip(self._left[span].tolist(), self._amounts[span].tolist(), strict=True))
            self._queues[node] = _Queue(self._free[node].tolist(), ends)
        return self._queues[node]

    def _need(self, node: int, asked: Sequence[int]) -> list[int]:
        """(R,) the request of a pod there; one that asks for more than a disk has gets all of it."""
        need = [*asked, *[0] * (self._free.shape[1] - len(asked))]
        if need[IO]:
            need[IO] = min(need[IO], int(self._snapshot.allocatable[node, IO]))
        return need

    def add(self, nodes: Ints, asked: Sequence[int], runtime_ms: int) -> None:
        """Pods that ask for so much (R,) start there and will run for so long."""
        for node in nodes.tolist():
            self._touched(node).allocate(self._need(node, asked), min(runtime_ms, _LONGEST_MS))

    def add_targets(self, nodes: Ints, asked: Sequence[int], runtime_ms: int) -> None:
        """The same of pods with inputs that are copied there first: they start when all that is on its way has come."""
        for node in nodes.tolist():
            self._touched(node).reserve(self._need(node, asked), runtime_ms, self._comes_ms(node))

    def starts(self, asked: tuple[int, ...]) -> Ints:
        """(N,) when a pod that asks for so much (R,) will find room, ms from now; `_NEVER` = on an empty node neither."""
        starts = self._starts.get(asked)
        if starts is None:
            starts = self._starts[asked] = self._untouched(asked)
            self._stale[asked] = set(self._queues)
        for node in self._stale[asked]:
            starts[node] = self._queues[node].start_ms(self._need(node, asked))
        self._stale[asked].clear()
        return starts

    def _untouched(self, asked: tuple[int, ...]) -> Ints:
        """(N,) the same by running pods alone."""
        starts = np.full(len(self._free), _NEVER, dtype=np.int64)
        enough = np.ones(len(self._nodes), dtype=np.bool_)
        at_once = np.ones(len(self._free), dtype=np.bool_)
        for axis in [axis for axis, amount in enumerate(asked) if amount]:
            need: int | Ints = asked[axis]
            if axis == IO:
                need = np.minimum(need, self._snapshot.allocatable[:, IO])
            lacks = need - self._free[:, axis]
            at_once &= lacks <= 0
            if axis not in self._freed:
                amounts = self._amounts[:, axis]
                sums = amounts.cumsum()
                self._freed[axis] = sums - (sums - amounts)[self._bounds[self._nodes]]
            enough &= self._freed[axis] >= lacks[self._nodes]
        when = enough.nonzero()[0][::-1]
        starts[self._nodes[when]] = self._left[when]  # the first of a node comes last here, and counts
        starts[at_once] = 0
        return starts

    def earliest(self, assignment: Assignment, full: Mask, runtime_ms: int, shortest_ms: int) -> Wait | None:
        """Whether (some pods of) a bag should wait for a full node rather than go where there is room now.

        A pod is done where its outputs are first on the node that gathers them, or first written if none does: it starts when its
        inputs have come and the node has room, and its outputs are sent if it ran elsewhere. These are the costs by which its
        node was chosen. The nodes that are waited for are noted in `ahead`, so that data can go there. Those of the bag that find
        no room anywhere now will take what comes free there first.

        Args:
            assignment: Where the bag would go now.
            full: (N,) where nothing more finds room once it has.
            runtime_ms: Of one pod.
            shortest_ms: `shortest_wait_ms` of the profile.
        """
        request, group, nodes = assignment.request, assignment.request.group, assignment.node_choices[0].nodes
        stage, gather = request.stage_ms(len(full)), self._gather_ms(request, runtime_ms)
        costs = stage[nodes] if gather is None else stage[nodes] + gather[nodes]
        dearest = int(costs.max())
        awaited = request.tables[0].allowed & full
        if dearest < shortest_ms or not awaited.any():
            return None
        if request.missing is not None and request.tables[0].count > assignment.pods:
            self.foresee(request, request.tables[0].count - assignment.pods, runtime_ms)
        dearest_first = np.argsort(-costs, kind="stable")
        own = nodes[full[nodes]].tolist()
        before = {node: self._touched(node).copy() for node in set(own)}
        for node in own:  # there they will run, if they do not wait
            self._reserve(group, node, runtime_ms, int(stage[node]))
        behind, each = self._written_ms(group, runtime_ms)
        chosen: list[int] = []
        first = 0
        for cost in costs[dearest_first[: _WAITING - self.waiting]].tolist():
            best, done = self._first(group, stage, gather, awaited)
            if cost < shortest_ms or max(done, behind + (len(chosen) + 1) * each) >= cost:
                break
            first = first or done
            chosen.append(best)
            self._reserve(group, best, runtime_ms, int(stage[best]))
        for node, queue in before.items():  # the cycle says by `add` which of them go
            self._touched(node)
            self._queues[node] = queue
        if not chosen:
            return None
        for node in chosen:
            self.ahead.setdefault((group.key, node), None)
            if node in before:
                self._reserve(group, node, runtime_ms, int(stage[node]))
        self.waiting += len(chosen)
        there = np.zeros(len(full), dtype=np.bool_)
        there[chosen] = True
        at_home = group.home is not None and chosen[0] == group.home.node
        reason = self._reason(group, first, dearest, gathered=at_home and not stage[chosen[0]])
        return Wait(reason, request.wanting(1).only(there), without(assignment, dearest_first[: len(chosen)]))

    def _reason(self, group: PodGroup, wait_ms: int, copy_ms: int, *, gathered: bool) -> Reason:
        text = (
            f"another node has room, and its data, in about {_s(wait_ms)} s; "
            f"where there is room now they would be in {_s(copy_ms)} s"
        )
        if gathered:
            text = (
                f"its outputs are gathered on a node that has room in about {_s(wait_ms)} s; "
                "elsewhere they would be there later"
            )
        numbers = {"wait_ms": wait_ms, "copy_ms": copy_ms}
        return Reason(group.key, ReasonCode.WAITING_FOR_LOCALITY, text, numbers, self.now + wait_ms)

    def _gather_ms(self, request: PlacementRequest, runtime_ms: int) -> Ints | None:
        """(N,) ms by which its outputs come later to the node that gathers them than if it ran there; None = none does.

        Copies to that node meanwhile use the same link. Without this, wow-rnaseq-real takes 3.3 % longer on 8x32-1g.
        """
        home = request.group.home
        cost = (
            next((ms for name, ms in request.terms[0] if name == "gather"), None) if request.terms else None
        )
        if home is None or cost is None or not self._snapshot.inbound[home.node]:
            return cost
        rate = max(1, int(self._snapshot.nic_in[home.node]))
        coming = self._snapshot.coming_bytes(home)
        both = coming + int(self._snapshot.inbound[home.node])
        more = max(0, both * 1000 // rate - runtime_ms) - max(0, coming * 1000 // rate - runtime_ms)
        later: Ints = np.where(cost > 0, cost + more, cost)
        return later

    def _written_ms(self, group: PodGroup, runtime_ms: int) -> tuple[int, int]:
        """How much later than a pod's end its gather node's disk has written what is on its way, and how long that takes for the
        outputs of one pod, which it writes wherever the pod runs; (0, 0) where there is no such node, or its rate is not known.
        """
        home, snapshot = group.home, self._snapshot
        disk = 0 if home is None else int(snapshot.disk_rate[home.node])
        if home is None or not disk:
            return 0, 0
        coming = snapshot.coming_bytes(home) + int(snapshot.inbound[home.node])
        return coming * 1000 // disk - runtime_ms, min(home.output_bytes * 1000 // disk, _LONGEST_MS)

    def foresee(self, request: PlacementRequest, count: int, runtime_ms: int) -> None:
        """Forecast where pods that find no room now will probably run, so that their data can go there."""
        allowed = request.tables[0].allowed
        if request.missing is None or not allowed.any():
            return
        stage = request.stage_ms(len(allowed))
        for _ in range(count):
            if self.forecast >= _THOUGHTS:
                return
            best, start = self._first(request.group, stage, None, allowed)
            if start > _FURTHEST_MS:
                return
            self.forecast += 1
            self._reserve(request.group, best, runtime_ms, int(stage[best]))
            self.ahead.setdefault((request.group.key, best), None)

    def _first(self, group: PodGroup, stage: Ints, gather: Ints | None, allowed: Mask) -> tuple[int, int]:
        """(node, ms) where a pod is done first, its runtime left out."""
        done = np.maximum(self.starts(group.roles[0].shape.requests), stage)
        done = np.where(allowed & (done < _NEVER), done if gather is None else done + gather, _NEVER)
        best = int(np.argmin(done))
        return best, int(done[best])

    def _reserve(self, group: PodGroup, node: int, runtime_ms: int, ready_ms: int) -> None:
        """A pod of a group will run there after what was reserved before, and not before its inputs have come."""
        self._touched(node).reserve(self._need(node, group.roles[0].shape.requests), runtime_ms, ready_ms)
