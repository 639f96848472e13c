"""Metrics of the service in Prometheus' text format: what waits and why, what runs, how long decisions take.

`Metrics` adds up counters and histograms after each step, in plain numbers, and reads gauges from memory when Prometheus scrapes.
It loads prometheus-client at the first scrape, which writes the text.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from flowsched.control.views import idle_room_of
from flowsched.engine.delta import TaskWrite
from flowsched.engine.state import EngineState
from flowsched.engine.step import Step
from flowsched.executor.foreign import BindRefused
from flowsched.executor.protocol import ClusterEvent, TransferDone, TransferFailed
from flowsched.scheduling.explain.idle import Cause, IdleRoom, split
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.scheduling.state.snapshot import AXES, IO
from flowsched.version import VERSION
from flowsched.workflow.run.states import TASKS_IN, TERMINAL, TaskState

#: Seconds of one decision: 1 ms to 10 s.
_STEP_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
#: Seconds that a task waited for its node: 0.1 s to a day.
_WAIT_S: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
#: A task's runtime over its expected runtime: from a tenth to ten times.
_RATIO: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
#: A disk of which more than this part is booked counts as full.
_FULL: Final = 0.9
#: An attempt may end for a reason in any words; these are counted by name.
_OUTCOMES: Final = frozenset({"OOMKilled", "Timeout", "StartFailed", "NodeLost", "Released", "OutputMissing"})
#: Workflows that are added up before the event loop serves other requests.
_AT_ONCE: Final = 1000
_UNITS: Final = {
    "cpu": ("cores", 1000),
    "gpu": ("gpus", 1000),
    "memory": ("memory_bytes", 1),
    "io": ("disk_bytes_per_second", 1),
}


class Distribution(msgspec.Struct):
    """Values by bucket, as a histogram has them.

    Args:
        bounds: Upper bounds of the buckets, ascending; one more bucket has no bound.
    """

    bounds: Sequence[float]
    total: float = 0.0
    counts: list[int] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with empty buckets."""
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, values up to it), the last without a bound."""
        found: list[tuple[str, float]] = []
        sum_so_far = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            sum_so_far += count
            found.append((bound, sum_so_far))
        return found


class Gauges(msgspec.Struct):
    """Values that memory has at one moment.

    Attributes:
        room: The idle room, and the work that waits; the thread that writes the text splits it by cause.
        tasks: (queue, state) -> tasks of live workflows; the states are those that lists show.
        waiting: Reason code -> pod groups that the last cycle did not place.
        longest_wait_s: Reason code -> seconds since the oldest of those groups became ready.
        nodes: ready, drained or not_ready -> nodes.
        resources: (resource, allocatable or used) -> amount of the ready nodes, in units of its name.
        full_disks: Ready nodes whose disk has hardly any bandwidth left to book.
        storages: (name/read or name/write; limit, booked or others) -> bytes/s.
        caches: used, due or limit -> bytes, of the caches that have a limit.
        refetched_bytes: Bytes that came to a cache again after it had dropped them.
        copies: Copies that are under way.
        drifted: Nodes for which the room that is booked is not the sum of their claims.
    """

    room: IdleRoom
    tasks: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    waiting: Counter[str] = msgspec.field(default_factory=Counter)
    longest_wait_s: dict[str, float] = msgspec.field(default_factory=dict)
    nodes: Counter[str] = msgspec.field(default_factory=Counter)
    resources: dict[tuple[str, str], float] = msgspec.field(default_factory=dict)
    full_disks: int = 0
    storages: dict[tuple[str, str], float] = msgspec.field(default_factory=dict)
    caches: Counter[str] = msgspec.field(default_factory=Counter)
    refetched_bytes: int = 0
    copies: int = 0
    drifted: int = 0


class Standing(msgspec.Struct, frozen=True):
    """How this process stands beside its engine.

    Args:
        epoch: Of the lease that it holds or held last; 0 = it has never led.
        lease_s: Seconds until it must not count on its lease any more; None = it does not lead, or its lease has run out.
        failed_terms: Terms that failed one after the other.
        recovering: Workflows that live and are not back in memory yet.
        counted: The executor's counts since the start, by name.
    """

    epoch: int = 0
    lease_s: float | None = None
    failed_terms: int = 0
    recovering: int = 0
    counted: Mapping[str, int] = msgspec.field(default_factory=dict)


class _Gang(msgspec.Struct):
    """A gang that was placed: since when it was ready, how many members have not run yet, and when the last one began to."""

    ready_ms: int
    missing: int
    last_ms: int = 0


class Metrics:
    """The metrics of one process. Counters begin at its start, as Prometheus expects."""

    def __init__(self) -> None:
        self.steps = Distribution(_STEP_S)
        self.waits = Distribution(_WAIT_S)
        self.starts = Distribution(_WAIT_S)
        self.gangs = Distribution(_WAIT_S)
        self.predictions = Distribution(_RATIO)
        self.start_forecasts: Counter[str] = Counter()  #: held, early, late
        self.launched = 0
        self.ended: Counter[str] = Counter()  #: by outcome
        self.input_bytes: Counter[str] = Counter()  #: local, moved
        self.fitted_memory: Counter[str] = Counter()  #: asked, given; bytes x seconds
        self.released = 0
        self.binds: Counter[str] = Counter()  #: ordered, refused
        self.transfers: Counter[str] = Counter()  #: done, failed
        self.transferred_bytes: Counter[str] = Counter()  #: origin, node
        self.evicted_bytes = 0
        self.unknown_pods = 0
        self._expected: dict[str, int] = {}  #: pod that runs -> the runtime that was expected of it, ms
        self._starting: dict[tuple[str, int, int], _Gang] = {}  #: members of gangs that do not run yet

    def stepped(self, step: Step, seconds: float) -> None:
        """Add up a step that is durable.

        Args:
            step: The step.
            seconds: How long the decision took.
        """
        self.steps.add(seconds)
        self.launched += len(step.launches)
        self.released += len(step.releases)
        if step.binds:
            self.binds["ordered"] += len(step.binds)
        self.evicted_bytes += sum(drop.size_bytes for drop in step.drops)
        for end in step.delta.ends:
            ended_well = not (end.reason or end.exit_code)
            outcome = "succeeded" if ended_well else "failed"
            self.ended[end.reason if end.reason in _OUTCOMES else outcome] += 1
            if end.fitted is not None:
                self.fitted_memory["asked"] += end.fitted.asked_byte_ms // 1000
                self.fitted_memory["given"] += end.fitted.given_byte_ms // 1000
            expected = self._expected.pop(end.name, 0)
            if ended_well and expected > 0 and end.started_ms is not None:
                self.predictions.add(max(1, end.at_ms - end.started_ms) / expected)
        for row in step.delta.tasks:
            if TaskState(row.state) in TERMINAL and row.ready_ms is not None and row.bound_ms is not None:
                self.waits.add(max(0, row.bound_ms - row.ready_ms) / 1000)
                if row.started_ms is not None:
                    self.starts.add(max(0, row.started_ms - row.bound_ms) / 1000)
                self.input_bytes["local"] += row.bytes_local
                self.input_bytes["moved"] += row.bytes_moved
            if self._starting:
                self._member(row)
        self._launched(step)

    def _launched(self, step: Step) -> None:
        """Remember what is expected of pods that start, and which of them are a gang."""
        gangs: dict[tuple[str, int, int], tuple[int, list[int]]] = {}
        for pod, intent in zip(step.launches, step.delta.intents, strict=False):
            if pod.runtime_hint_ms:
                self._expected[pod.name] = pod.runtime_hint_ms
            if pod.gang is not None:
                wanted = pod.gang.roster.size
                _, members = gangs.setdefault((intent.workflow, intent.stage, pod.shard), (wanted, []))
                members.append(pod.index)
        if not gangs:
            return
        ready = {(row.workflow, row.stage, row.index): row.ready_ms for row in step.delta.tasks}
        for (workflow, stage, _), (wanted, members) in gangs.items():
            keys = [(workflow, stage, member) for member in members]
            since = [moment for key in keys if (moment := ready.get(key)) is not None]
            if since and len(keys) == wanted:  # a member that comes back alone is no gang
                self._starting |= dict.fromkeys(keys, _Gang(max(since), wanted))

    def _member(self, row: TaskWrite) -> None:
        """A member of a gang that starts may run now, or never."""
        key = (row.workflow, row.stage, row.index)
        if row.state == TaskState.BINDING or (gang := self._starting.pop(key, None)) is None:
            return
        gang.missing -= 1
        if row.started_ms is None:
            gang.missing = -1  # a member ended before it ran: there is nothing to tell
            return
        gang.last_ms = max(gang.last_ms, row.started_ms)
        if gang.missing == 0:
            self.gangs.add(max(0, gang.last_ms - gang.ready_ms) / 1000)

    def reported(self, events: Iterable[ClusterEvent]) -> None:
        """Add up what the cluster reports."""
        for event in events:
            match event:
                case TransferDone(moved_bytes=moved, source=source):
                    self.transfers["done"] += 1
                    self.transferred_bytes["origin" if source is None else "node"] += moved
                case TransferFailed():
                    self.transfers["failed"] += 1
                case BindRefused():
                    self.binds["refused"] += 1
                case _:
                    continue

    def begin(self) -> None:
        """A term begins: what became of pods of the one before is not told to it."""
        self._expected.clear()
        self._starting.clear()

    def found_unknown(self, pods: int) -> None:
        """So many pods live that the engine does not know."""
        self.unknown_pods = pods

    async def text(self, state: EngineState | None, standing: Standing, now_ms: int) -> bytes:
        """All of them. Gauges are left out where this process has no state that can be read now: it does not lead.

        Args:
            state: The engine's, at rest; None = there is none, or the lease has run out.
            standing: How this process stands beside it.
            now_ms: Wall-clock ms.
        """
        gauges = None if state is None else await gauges_of(state, now_ms)
        return await asyncio.to_thread(self._text, gauges, standing)

    def _text(self, gauges: Gauges | None, standing: Standing) -> bytes:
        from prometheus_client import CollectorRegistry, generate_latest

        class _Collector:
            def __init__(self, metrics: Metrics) -> None:
                self.metrics = metrics

            def collect(self) -> Iterator[Any]:
                yield from self.metrics._families(gauges, standing)

        registry = CollectorRegistry()
        registry.register(_Collector(self))
        return bytes(generate_latest(registry))

    def _families(self, gauges: Gauges | None, standing: Standing) -> Iterator[Any]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            InfoMetricFamily,
        )

        yield InfoMetricFamily("flowsched_build", "The version of this process.", {"version": VERSION})
        for name, about, value in (
            ("leader", "1 where this process leads: exactly one of an installation's processes does.", int(gauges is not None)),
            ("lease_epoch", "Of the lease that this process holds or held last; it grows at each take-over.", standing.epoch),
            ("failed_terms", "Terms of leading that failed one after the other.", standing.failed_terms),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"flowsched_{name}", about, value)
        if standing.lease_s is not None:
            about = "Seconds until the leader must not count on its lease any more."
            yield GaugeMetricFamily("flowsched_lease_remaining_seconds", about, standing.lease_s)
        for name, about, spread in (
            ("step_seconds", "Seconds of one decision of the scheduler.", self.steps),
            ("queue_wait_seconds", "Seconds from ready to placed, of tasks that ended.", self.waits),
            ("start_wait_seconds", "Seconds from placed to running, of tasks that ended.", self.starts),
            ("gang_wait_seconds", "Seconds from ready until the last member of a gang ran.", self.gangs),
            ("runtime_prediction_ratio", "Runtime over the expected one, of tasks that succeeded.", self.predictions),
        ):  # fmt: skip
            yield HistogramMetricFamily(
                f"flowsched_{name}", about, buckets=spread.buckets(), sum_value=spread.total
            )
        for name, about, count in (
            ("pods_launched", "Pods that were launched.", self.launched),
            ("pods_released", "Pods that were taken away.", self.released),
            ("cache_evicted_bytes", "Bytes that caches were told to drop.", self.evicted_bytes),
        ):
            yield CounterMetricFamily(f"flowsched_{name}", about, count)
        for name, label, about, counted in (
            ("pods_ended", "outcome", "Attempts that ended: succeeded, failed, or a reason of flowsched's.", self.ended),
            ("input_bytes", "source", "Input bytes of tasks that ended: local to their node, or moved there.", self.input_bytes),
            ("fitted_memory_byte_seconds", "kind", "Memory x time of ended attempts with memory that fits.", self.fitted_memory),
            ("binds", "outcome", "Bindings of other controllers' pods: ordered, and of those refused.", self.binds),
            ("transfers", "outcome", "Copies to nodes that ended: done or failed.", self.transfers),
            ("transfer_bytes", "source", "Bytes that copies moved, from an origin or from another node.", self.transferred_bytes),
            ("start_forecasts", "outcome", "Forecast starts that came: held, early, late.", self.start_forecasts),
            ("executor_events", "event", "Events of the executor's own connections.", standing.counted),
        ):  # fmt: skip
            family = CounterMetricFamily(f"flowsched_{name}", about, labels=[label])
            for label_value, count in sorted(counted.items()):
                family.add_metric([label_value], count)
            yield family
        if gauges is None:
            return
        idle = _idle(gauges.room)
        for name, about, value in (
            ("recovering_workflows", "Workflows that live and are not back in memory yet.", standing.recovering),
            ("unknown_pods", "Attempts that live although the engine does not know them.", self.unknown_pods),
            ("ledger_drift_nodes", "Nodes whose booked room is not the sum of their claims.", gauges.drifted),
            ("full_disk_nodes", "Ready nodes with no bandwidth of their disk left to book.", gauges.full_disks),
            ("transfers_under_way", "Copies to nodes that are under way.", gauges.copies),
            ("cache_refetched_bytes", "Bytes that came to a cache again after it had dropped them.", gauges.refetched_bytes),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"flowsched_{name}", about, value)
        for name, labels, about, found in (
            ("tasks", ["queue", "state"], "Tasks of live workflows.", gauges.tasks),
            ("waiting_pod_groups", ["reason"], "Pod groups that the last cycle did not place.", gauges.waiting),
            ("longest_wait_seconds", ["reason"], "Seconds since the oldest of them was ready.", gauges.longest_wait_s),
            ("nodes", ["state"], "Nodes.", gauges.nodes),
            ("resources", ["resource", "kind"], "Of ready nodes.", gauges.resources),
            ("idle_resources", ["resource", "cause"], "Idle room of ready nodes, by the cause that keeps work from it.", idle),
            ("storage_bytes_per_second", ["storage", "kind"], "Of shared storages: limit, booked, others.", gauges.storages),
            ("cache_bytes", ["kind"], "Of caches with a limit: used, due (will be written) and limit.", gauges.caches),
        ):  # fmt: skip
            gauge = GaugeMetricFamily(f"flowsched_{name}", about, labels=labels)
            for key, measured in sorted(found.items()):
                gauge.add_metric([key] if isinstance(key, str) else list(key), measured)
            yield gauge


#: The state that lists show, by the number of a task's state.
_SHOWN: Final = {int(task): reported.value.lower() for reported, tasks in TASKS_IN.items() for task in tasks}


async def gauges_of(state: EngineState, now_ms: int) -> Gauges:
    """Read the gauges from memory, some workflows at a time."""
    found = Gauges(idle_room_of(state))
    for number, reason in state.round.reasons.items():
        code = reason.code.value
        found.waiting[code] += 1
        group = state.round.refused.get(number)
        if group is not None:
            waited_s = max(0, now_ms - group.ready_ms) / 1000
            found.longest_wait_s[code] = max(waited_s, found.longest_wait_s.get(code, 0.0))
    _nodes(state, found)
    _data(state, found)
    # A step may begin in a thread at each pause: from here on only the counts are read, which are arrays of fixed size.
    for number, run in enumerate(list(state.work.runs.values())):
        if number and number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        for task, count in enumerate(run.counts.sum(axis=0).tolist()):
            if count and (task in _SHOWN or task == TaskState.PENDING):
                found.tasks[run.spec.queue, _SHOWN.get(task, "pending")] += count
    return found


def _idle(room: IdleRoom) -> dict[tuple[str, str], float]:
    """(resource, cause) -> amount that is idle, in units of its name."""
    amounts, found = split(room).amounts, dict[tuple[str, str], float]()
    for name in ("cpu", "gpu", "memory"):
        unit, scale = _UNITS[name]
        for cause, amount in zip(Cause, amounts[:, AXES.index(name)].tolist(), strict=True):
            found[unit, cause.name.lower()] = amount / scale
    return found


def _nodes(state: EngineState, found: Gauges) -> None:
    snapshot = state.cluster.snapshot
    ready, used, allocatable = snapshot.ready, snapshot.used, snapshot.allocatable
    for at in range(len(snapshot)):
        name = "ready" if ready[at] else "not_ready"
        drain = state.cluster.drains.get(snapshot.names[at])
        found.nodes["drained" if drain is not None and drain.node.ready and not ready[at] else name] += 1
    for axis, name in enumerate(snapshot.axes):
        if name in _UNITS:
            unit, scale = _UNITS[name]
            found.resources[unit, "allocatable"] = int(allocatable[ready, axis].sum()) / scale
            found.resources[unit, "used"] = int(used[ready, axis].sum()) / scale
    disks = allocatable[:, IO]
    found.full_disks = int((ready & (disks > 0) & (used[:, IO] >= disks * _FULL)).sum())
    # Booked room is added up claim by claim; here all claims are added up again.
    ledger = snapshot.ledger
    holding = ledger.kind >= ClaimKind.RUNNING
    where, drifted = ledger.node[holding], np.zeros(len(snapshot), dtype=np.bool_)
    for axis in range(ledger.amount.shape[1]):
        booked = np.zeros(len(snapshot), dtype=np.int64)
        np.add.at(booked, where, ledger.amount[holding, axis])
        drifted |= booked != used[:, axis]
    found.drifted = int(drifted.sum())


def _data(state: EngineState, found: Gauges) -> None:
    found.copies = len(state.data.moving)
    direct = state.cluster.snapshot.direct
    for storage in state.policy.profile.storages:
        for name, rate in storage.rates.items():
            if rate:
                found.storages[name, "limit"] = rate
                found.storages[name, "booked"] = direct.rates.get(name, 0)
                found.storages[name, "others"] = direct.others.get(name, 0)
    caches = state.cluster.catalogue.caches
    if caches is None:
        return
    for cache in caches.of.values():
        if cache.limit:
            found.caches["limit"] += cache.limit
            found.caches["used"] += cache.used
            found.caches["due"] += cache.due
    found.refetched_bytes = caches.refetched_bytes.total()
