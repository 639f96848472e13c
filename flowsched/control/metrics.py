"""Metrics of the service in Prometheus' text format: what waits and why, what runs, how long decisions take.

`Metrics` adds up counters and histograms after each step, in plain numbers, and reads gauges from memory when Prometheus scrapes.
It loads prometheus-client at the first scrape, which writes the text.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flowsched.engine.state import EngineState
from flowsched.engine.step import Step
from flowsched.version import VERSION
from flowsched.workflow.run.states import TASKS_IN, TERMINAL, TaskState

#: Seconds of one decision: 1 ms to 10 s.
_STEP_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
#: Seconds that a task waited for its node: 0.1 s to a day.
_WAIT_S: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
#: An attempt may end for a reason in any words; these are counted by name.
_OUTCOMES: Final = frozenset({"OOMKilled", "Timeout", "StartFailed", "NodeLost", "Released", "OutputMissing"})
#: Workflows that are added up before the event loop serves other requests.
_AT_ONCE: Final = 1000
_UNITS: Final = {"cpu": ("cores", 1000), "gpu": ("gpus", 1000), "memory": ("memory_bytes", 1)}


@dataclass(slots=True)
class Distribution:
    """Values by bucket, as a histogram has them.

    Args:
        bounds: Upper bounds of the buckets, ascending; one more bucket has no bound.
    """

    bounds: Sequence[float]
    total: float = 0.0
    counts: list[int] = field(default_factory=list)

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


@dataclass(slots=True)
class Gauges:
    """What memory says at one moment.

    Attributes:
        tasks: (queue, state) -> tasks of live workflows; the states are those that lists show.
        waiting: Reason code -> pod groups that the last cycle did not place.
        nodes: ready, drained or not_ready -> nodes.
        resources: (resource, allocatable or used) -> amount of the ready nodes, in units of its name.
    """

    tasks: Counter[tuple[str, str]] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    nodes: Counter[str] = field(default_factory=Counter)
    resources: dict[tuple[str, str], float] = field(default_factory=dict)


class Metrics:
    """The metrics of one process. Counters begin at its start, as Prometheus expects."""

    def __init__(self) -> None:
        self.steps = Distribution(_STEP_S)
        self.waits = Distribution(_WAIT_S)
        self.launched = 0
        self.ended: Counter[str] = Counter()  #: by outcome
        self.input_bytes: Counter[str] = Counter()  #: local, moved
        self.released = 0

    def stepped(self, step: Step, seconds: float) -> None:
        """Add up a step that is durable.

        Args:
            step: What it decided.
            seconds: How long the decision took.
        """
        self.steps.add(seconds)
        self.launched += len(step.launches)
        self.released += len(step.releases)
        for end in step.delta.ends:
            outcome = "succeeded" if not (end.reason or end.exit_code) else "failed"
            self.ended[end.reason if end.reason in _OUTCOMES else outcome] += 1
        for row in step.delta.tasks:
            if TaskState(row.state) in TERMINAL and row.ready_ms is not None and row.bound_ms is not None:
                self.waits.add(max(0, row.bound_ms - row.ready_ms) / 1000)
                self.input_bytes["local"] += row.bytes_local
                self.input_bytes["moved"] += row.bytes_moved

    async def text(self, state: EngineState | None) -> bytes:
        """All of them. Gauges are left out where this process has no state that can be read now: it does not lead."""
        gauges = None if state is None else await gauges_of(state)
        return await asyncio.to_thread(self._text, gauges)

    def _text(self, gauges: Gauges | None) -> bytes:
        from prometheus_client import CollectorRegistry, generate_latest

        class _Collector:
            def __init__(self, metrics: Metrics) -> None:
                self.metrics = metrics

            def collect(self) -> Iterator[Any]:
                yield from self.metrics._families(gauges)

        registry = CollectorRegistry()
        registry.register(_Collector(self))
        return bytes(generate_latest(registry))

    def _families(self, gauges: Gauges | None) -> Iterator[Any]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            InfoMetricFamily,
        )

        yield InfoMetricFamily("flowsched_build", "The version of this process.", {"version": VERSION})
        leads = "1 where this process leads: exactly one of an installation's processes does."
        yield GaugeMetricFamily("flowsched_leader", leads, int(gauges is not None))
        for name, about, spread in (
            ("step", "Seconds of one decision of the scheduler.", self.steps),
            ("queue_wait", "Seconds from ready to placed, of tasks that ended.", self.waits),
        ):
            yield HistogramMetricFamily(
                f"flowsched_{name}_seconds", about, buckets=spread.buckets(), sum_value=spread.total
            )
        yield CounterMetricFamily("flowsched_pods_launched", "Pods that were launched.", self.launched)
        yield CounterMetricFamily("flowsched_pods_released", "Pods that were taken away.", self.released)
        for name, label, about, counted in (
            ("pods_ended", "outcome", "Attempts that ended: succeeded, failed, or a reason of flowsched's.", self.ended),
            ("input_bytes", "source", "Input bytes of tasks that ended: local to their node, or moved there.", self.input_bytes),
        ):  # fmt: skip
            family = CounterMetricFamily(f"flowsched_{name}", about, labels=[label])
            for value, count in sorted(counted.items()):
                family.add_metric([value], count)
            yield family
        if gauges is None:
            return
        for name, labels, about, found in (
            ("tasks", ["queue", "state"], "Tasks of live workflows.", gauges.tasks),
            (
                "waiting_pod_groups",
                ["reason"],
                "Pod groups that the last cycle did not place.",
                gauges.waiting,
            ),
            ("nodes", ["state"], "Nodes.", gauges.nodes),
            ("resources", ["resource", "kind"], "Of ready nodes.", gauges.resources),
        ):
            gauge = GaugeMetricFamily(f"flowsched_{name}", about, labels=labels)
            for key, amount in sorted(found.items()):
                gauge.add_metric([key] if isinstance(key, str) else list(key), amount)
            yield gauge


#: The state that lists show, by the number of a task's state.
_SHOWN: Final = {int(task): reported.value.lower() for reported, tasks in TASKS_IN.items() for task in tasks}


async def gauges_of(state: EngineState) -> Gauges:
    """What memory says now, some workflows at a time."""
    found = Gauges()
    found.waiting.update(reason.code.value for reason in state.round.reasons.values())
    snapshot = state.cluster.snapshot
    for at in range(len(snapshot)):
        ready = "ready" if snapshot.ready[at] else "not_ready"
        found.nodes["drained" if snapshot.names[at] in state.cluster.drains else ready] += 1
    for axis, name in enumerate(snapshot.axes):
        if name in _UNITS:
            unit, scale = _UNITS[name]
            found.resources[unit, "allocatable"] = (
                int(snapshot.allocatable[snapshot.ready, axis].sum()) / scale
            )
            found.resources[unit, "used"] = int(snapshot.used[snapshot.ready, axis].sum()) / scale
    # A step may begin in a thread at each pause: from here on only the counts are read, which are arrays of fixed size.
    for number, run in enumerate(list(state.work.runs.values())):
        if number and number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        for task, count in enumerate(run.counts.sum(axis=0).tolist()):
            if count and (task in _SHOWN or task == TaskState.PENDING):
                found.tasks[run.spec.queue, _SHOWN.get(task, "pending")] += count
    return found
