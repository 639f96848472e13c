"""How long nodes are busy, as a fluid: for decisions that look further than the ends of what runs now.

The calendar of `reservation` knows when present pods end, not what comes after them. Here a node's work is one amount of
core-milliseconds, of what runs and of what has been promised to it, spread over its cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from flowsched.scheduling.delay import Wait, without
from flowsched.scheduling.framework import Profile
from flowsched.scheduling.ledger import EMPTY, UNKNOWN
from flowsched.scheduling.placement import Ints
from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.pricing import Fit, Offer
from flowsched.scheduling.reservation import expected_ends
from flowsched.scheduling.room import Mask
from flowsched.scheduling.snapshot import AXES, ClaimKind, Snapshot

_CPU: Final = AXES.index("cpu")
#: Who has waited so many times longer than going elsewhere would cost waits for no queue any more: only, as `delay` says, for the
#: next ends.
_PATIENCE: Final = 20
#: So many pods are thought about in one cycle, at most …
_THOUGHTS: Final = 256
#: … and none that will start later than this.
_FURTHEST_MS: Final = 600_000
_NEVER: Final = np.iinfo(np.int64).max


def work_ms(snapshot: Snapshot, backlog: Sequence[PodGroup], profile: Profile, now: int) -> int | None:
    """How long all that runs and waits would take on all cores together; None where nobody asks (see `backlog.in_order`)."""
    if profile.order != "shortest" or not snapshot.total[_CPU]:
        return None
    if len({group.queue for group in backlog}) == len(backlog):
        return None  # nobody has anybody before it in its queue
    unknown = profile.default_runtime_ms
    running = int(Horizon(snapshot, unknown, now, {}).work.sum())
    waiting = 0
    for group in backlog:
        runtime = unknown if group.runtime_ms is None else group.runtime_ms
        for role in group.roles:
            waiting += role.count * role.shape.requests[_CPU] * runtime
    return (running + waiting) // snapshot.total[_CPU]


def half_a_node(snapshot: Snapshot, profile: Profile) -> tuple[int, ...]:
    """(R,) half of the most that any node has; nothing where nobody asks (see `backlog.in_order`)."""
    if profile.order != "shortest" or not len(snapshot):
        return ()
    if "half" not in snapshot.cache:
        snapshot.cache["half"] = tuple((snapshot.allocatable.max(axis=0) // 2).tolist())
    half: tuple[int, ...] = snapshot.cache["half"]
    return half


class Horizon:
    """The work of each node in one cycle.

    Args:
        snapshot: Nodes and claims.
        default_runtime_ms: Of work of which nothing is known.
        now: Wall-clock ms.
        awaited: (node, axis) -> what is awaited there already, as `delay` counts it; what is promised here is added.
    """

    def __init__(
        self, snapshot: Snapshot, default_runtime_ms: int, now: int, awaited: dict[tuple[int, int], int]
    ) -> None:
        self.now = now
        self.awaited = awaited
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
        self.coming: dict[int, int] = {}  #: node -> bytes that this cycle's pods will bring home there
        if len(held):
            left = expected_ends(snapshot, held, default_runtime_ms, now) - now
            np.add.at(self.work, ledger.node[held], ledger.amount[held][:, _CPU] * left)
        if len(staging):
            until, since = ledger.until[staging], ledger.since[staging]
            takes = np.where(until == UNKNOWN, default_runtime_ms, until - since)
            np.add.at(self.work, ledger.node[staging], ledger.amount[staging][:, _CPU] * takes)

    def add(self, nodes: Ints, cpu: int, runtime_ms: int | Ints, *, staged: bool = False) -> None:
        """Pods will run there for so long (all of them, or (P,) each); `staged`: once their data have come."""
        np.add.at(self.work, nodes, cpu * runtime_ms)
        if staged:
            self.staged[nodes] = True

    def wait_ms(self, node: int) -> int:
        """When a node will have done all its work, from now on."""
        return int(self.work[node] // self.cores[node])

    def at_home(self, fit: Fit, full: Mask, runtime_ms: int, nic_in: Ints, inbound: Ints) -> Wait | None:
        """Whether (some pods of) a bag should wait for the node where their outputs will be gathered.

        A pod that runs elsewhere has its output home when it has ended, what is on its way there before has come, and its own
        has come too; a pod that waits, when the node has done its work and the pod's. What is sooner is chosen, pod by pod.
        """
        group = fit.offer.group
        home = group.home
        if home is None or not full[home.node] or not fit.offer.tables[0].allowed[home.node]:
            return None  # where it has room, its costs have been weighed already
        nodes = fit.spots[0].nodes
        away = np.flatnonzero(nodes != home.node)
        cpu, rate = group.roles[0].shape.requests[_CPU], max(1, int(nic_in[home.node]))
        coming = self.coming.get(home.node, home.coming_bytes + int(inbound[home.node]))
        waited = self.now - group.ready_ms
        extra = len(nodes) - len(away)
        start = self.wait_ms(home.node) + extra * cpu * runtime_ms // int(self.cores[home.node])
        first, dearest, waiting = start, 0, 0
        for _ in range(len(away)):
            gone = max(runtime_ms, coming * 1000 // rate) + home.output_bytes * 1000 // rate
            if start + runtime_ms < gone and waited < _PATIENCE * gone:
                waiting += 1
                dearest = max(dearest, gone)
                start += cpu * runtime_ms // int(self.cores[home.node])
            else:
                coming += home.output_bytes
        self.coming[home.node] = coming
        if not waiting:
            return None
        self.work[home.node] += waiting * cpu * runtime_ms
        seconds = (first + 999) // 1000
        text = f"its output is gathered on a node that has room in about {seconds} s; elsewhere it would be there later"
        reason = Reason(
            group.key,
            ReasonCode.WAITING_FOR_LOCALITY,
            text,
            {"wait_ms": first, "copy_ms": dearest},
            self.now + first,
        )
        keep = without(fit, away[len(away) - waiting :])
        return Wait(reason, replace(fit.offer.wanting(1)), keep)

    def rather(self, fit: Fit, full: Mask, runtime_ms: int, shortest_ms: int) -> Wait | None:
        """Whether (some pods of) a bag should wait for another node than copy to where there is room now.

        A pod that waits can start when the node has done its work and the data have come, which may be sooner than when they
        have come to where it could go now. The nodes that are waited for are noted in `ahead`, so that data can go there.
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

    def foresee(self, offer: Offer, count: int, runtime_ms: int) -> None:
        """Think where pods that find no room now will probably run, so that their data can go there."""
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
        work = self.work // self.cores
        start = np.where(self.staged, work + stage, np.maximum(work, stage))
        best = int(np.argmin(np.where(allowed, start, _NEVER)))
        return best, int(start[best])

    def _promise(self, group: PodGroup, node: int, pods: int, runtime_ms: int) -> None:
        self.thoughts += 1
        cpu = group.roles[0].shape.requests[_CPU]
        self.work[node] += pods * cpu * runtime_ms
        self.awaited[node, _CPU] = self.awaited.get((node, _CPU), 0) + pods * cpu
        self.ahead.setdefault((group.key, node), None)
