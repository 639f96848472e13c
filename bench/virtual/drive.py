"""A plain virtual-clock driver of the engine: the service's decisions on a simulated cluster, without SQL or processes.

The same `engine.step` as the service; around it, instead of SQL and processes, a heap of things that will happen. Transfers take
bytes over the slower of both links (no sharing: `flowsched.simulation.network` has the fluid model), pods take
what `durations` says. Crash tests drop and rebuild around the same loop.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.virtual.idle import IdleHours
from flowsched.engine.delta import Delta
from flowsched.engine.events import Accepted, Command, EngineEvent, Tick
from flowsched.engine.recovery import make_run
from flowsched.engine.state import EngineState
from flowsched.engine.step import Step, step
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import (
    NodeChanged,
    Pod,
    PodEnded,
    PodStarted,
    Published,
    Transfer,
    TransferDone,
)
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.spec import WorkflowSpec


@dataclass(frozen=True, slots=True)
class Fate:
    """How a simulated pod will end."""

    runtime_ms: int
    exit_code: int = 0
    reason: str = ""
    output_bytes: int = 0


Durations = Callable[[Pod], Fate]
Observer = Callable[[EngineState, Step, Sequence[EngineEvent], int], None]


def as_hinted(pod: Pod) -> Fate:
    """A pod takes as long as its workflow estimated, and succeeds."""
    return Fate(pod.runtime_hint_ms or 1_000)


@dataclass(slots=True)
class Drive:
    """A cluster on a virtual clock.

    Args:
        state: A fresh engine state.
        nodes: What the cluster has.
        fate: How each pod will end.
        observe: Called after each step, before it is kept; for invariants.
        startup_ms: From launch to start.
        idle_hours: Where idle room is added up; None = nowhere.
    """

    state: EngineState
    nodes: Sequence[NodeInfo]
    fate: Durations = as_hinted
    observe: Observer | None = None
    startup_ms: int = 0
    idle_hours: IdleHours | None = None
    now: int = 0
    deltas: list[Delta] = field(default_factory=list)
    ended: dict[str, WorkflowRun] = field(default_factory=dict)
    _heap: list[tuple[int, int, EngineEvent]] = field(default_factory=list)
    _sequence: int = 0
    _released: set[str] = field(default_factory=set)
    _live: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node in self.nodes:
            self.at(0, NodeChanged(node))

    def at(self, moment: int, event: EngineEvent) -> None:
        """Let something happen."""
        self._sequence += 1
        heapq.heappush(self._heap, (moment, self._sequence, event))

    def submit(self, ident: str, spec: WorkflowSpec, at: int = 0) -> WorkflowRun:
        """A workflow arrives."""
        run = make_run(self.state, ident, spec, self._sequence)
        self.at(at, Accepted(run))
        return run

    def command(self, ident: str, kind: str, at: int) -> None:
        """A user says something."""
        self.at(at, Command(ident, kind))

    def run(self, until: int | None = None, max_steps: int = 1_000_000) -> int:
        """Let everything happen, or all up to a moment. Returns the moment of the last event."""
        for _ in range(max_steps):
            if not self._heap or (until is not None and self._heap[0][0] > until):
                return self.now
            self.tick()
        return self.now

    def tick(self) -> Step:
        """One step: everything that happens at the next moment."""
        self.now = max(self.now, self._heap[0][0])
        events = []
        while self._heap and self._heap[0][0] <= self.now:
            event = heapq.heappop(self._heap)[2]
            if self._happens(event):
                events.append(event)
        result = step(self.state, events, self.now)
        runs = {name: self.state.work.runs[name] for name in result.ended}
        if self.observe is not None:
            self.observe(self.state, result, events, self.now)
        self.deltas.append(result.delta)
        self.ended |= runs
        result.keep()
        if self.idle_hours is not None:
            self.idle_hours.note(self.state, self.now)
        self._act(result)
        return result

    def _happens(self, event: EngineEvent) -> bool:
        """A pod that was taken away neither starts nor ends by itself."""
        if isinstance(event, PodStarted):
            return event.name in self._live
        if isinstance(event, PodEnded):
            if event.name not in self._live:
                return False
            self._live.discard(event.name)
        return True

    def _act(self, result: Step) -> None:
        for pod in result.launches:
            self._live.add(pod.name)
            self._launch(pod)
        for name in result.releases:
            self._release(name)
        for order in result.transfers:
            self._transfer(order)
        if result.wake_ms is not None:
            self.at(max(result.wake_ms, self.now + 1), Tick())

    def _launch(self, pod: Pod) -> None:
        fate = self.fate(pod)
        start = self.now + self.startup_ms
        self.at(start, PodStarted(pod.name, start))
        self.at(start + fate.runtime_ms, self.ending(pod, fate, start))

    def ending(self, pod: Pod, fate: Fate, start: int) -> PodEnded:
        """How a pod that began to work at a moment will end."""
        good = fate.exit_code == 0 and not fate.reason
        outputs = tuple(Published(o.name, o.uri, fate.output_bytes) for o in pod.outputs) if good else ()
        return PodEnded(pod.name, start + fate.runtime_ms, fate.exit_code, fate.reason, "", outputs)

    def _release(self, name: str) -> None:
        if name in self._live:
            self._live.discard(name)
            self._live.add(name)
            self.at(self.now, PodEnded(name, self.now, 143, "Released"))

    def _transfer(self, order: Transfer) -> None:
        rates = {node.name: node for node in self.nodes}
        rate = rates[order.dest].nic_in_rate
        if order.source is not None:
            rate = min(rate, rates[order.source].nic_out_rate)
        end = self.now + max(1, order.size_bytes * 1000 // max(rate, 1))
        self.at(
            end, TransferDone(order.uri, order.dest, end, order.size_bytes, order.source, order.size_bytes)
        )


def submit_all(drive: Drive, specs: Iterable[tuple[str, WorkflowSpec]]) -> list[WorkflowRun]:
    """Several workflows at once, in order."""
    return [drive.submit(ident, spec) for ident, spec in specs]
