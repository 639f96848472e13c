"""A stage for literal stories: an engine state, a few nodes, and what each step asked for, by name.

Nothing happens by itself here: a test tells each event, and reads what the step launched, released and ordered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

from flowsched.engine.delta import Delta
from flowsched.engine.events import Accepted, Command, EngineEvent
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.step import Step, step
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import (
    NodeChanged,
    Pod,
    PodEnded,
    PodGone,
    PodStarted,
    Published,
    Transfer,
    TransferDone,
    TransferFailed,
)
from flowsched.scheduling.explain.recording import Tape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.run.states import TaskState

GIB = 1 << 30
T = TypeVar("T")


def node(name: str = "n0", cpu: int = 4, gpus: int = 0, **more: Any) -> NodeInfo:
    """A node of `cpu` cores and, if `more` says nothing else, 8 GiB."""
    return NodeInfo(name, cpu * 1000, gpu_millis=gpus * 1000, **{"memory_bytes": 8 * GIB, **more})


def calls_of(function: Callable[[], T]) -> tuple[int, T]:
    """How many functions a call calls, C functions too, and its answer."""
    calls = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        found = function()
    finally:
        sys.setprofile(None)
    return calls, found


class Scene:
    """Steps are kept at once; what they asked for stays readable.

    Attributes:
        told: The events of the step before.
        launches, releases, transfers: What the last step asked for.
        pods: Every pod that was ever launched, by name.
        tape: Where cycles are recorded; None = nowhere.
    """

    def __init__(self, *nodes: NodeInfo, profile: str = "flowsched", pipelines: bool = False) -> None:
        policy = PolicyState(profile=PROFILES[profile], secret=b"secret", pipelines=pipelines)
        self.state = EngineState(policy=policy)
        self.now = 1_000
        self.tape: Tape | None = None
        self.runs: dict[str, WorkflowRun] = {}
        self.pods: dict[str, Pod] = {}
        self.deltas: list[Delta] = []
        self.last: Step
        self.tell(*(NodeChanged(each) for each in nodes or (node(),)))

    def tell(self, *events: EngineEvent, after: int = 0) -> Step:
        """Some time passes, then one step with these events."""
        self.now += after
        self.last = step(self.state, events, self.now, tape=self.tape)
        self.deltas.append(self.last.delta)
        self.pods |= {pod.name: pod for pod in self.last.launches}
        self.last.keep()
        return self.last

    def submit(self, ident: str, *stages: dict[str, Any], **more: Any) -> Step:
        """A workflow arrives."""
        return self.tell(self.accepted(ident, *stages, **more))

    def accepted(self, ident: str, *stages: dict[str, Any], **more: Any) -> Accepted:
        """The event of its arrival."""
        spec = check_workflow({"name": ident, "stages": list(stages), **more})
        run = self.runs[ident] = WorkflowRun(ident, spec, StageGraph(spec), len(self.runs) + 1)
        return Accepted(run)

    def command(self, ident: str, kind: str) -> Step:
        """A user says something."""
        return self.tell(Command(ident, kind))

    def start(self, *names: str) -> Step:
        """Processes run."""
        return self.tell(*(PodStarted(name, self.now) for name in names))

    def end(
        self, *names: str, code: int = 0, reason: str = "", size: int = 1_000_000, after: int = 0
    ) -> Step:
        """Processes end, and publish what they were to write."""
        self.now += after
        return self.tell(*(self.ending(name, code, reason, size) for name in names))

    def ending(self, name: str, code: int = 0, reason: str = "", size: int = 1_000_000) -> PodEnded:
        """The event of an end."""
        good = code == 0 and not reason
        wrote = tuple(Published(o.name, o.uri, size) for o in self.pods[name].outputs) if good else ()
        return PodEnded(name, self.now, code, reason, outputs=wrote)

    def gone(self, *names: str, reason: str = "RunnerLost", lost: Sequence[str] = ()) -> Step:
        """Pods are no more, and nobody knows how they ended."""
        return self.tell(
            *(PodGone(n, self.now, reason, started=True, lost_inputs=tuple(lost)) for n in names)
        )

    def arrive(self, order: Transfer, size: int | None = None) -> Step:
        """Bytes are there."""
        return self.tell(self.arrival(order, size))

    def arrival(self, order: Transfer, size: int | None = None) -> TransferDone:
        """The event of an arrival."""
        real = order.size_bytes if size is None else size
        return TransferDone(order.uri, order.dest, self.now, real, order.source, real)

    def miss(self, order: Transfer, *, lost: bool = False, permanent: bool = False) -> Step:
        """Bytes did not come."""
        return self.tell(
            TransferFailed(order.uri, order.dest, self.now, "reset", order.source, lost, permanent)
        )

    # ------------------------------------------------------------------------------------------------ told

    @property
    def launched(self) -> list[str]:
        """Pods the last step launched, sorted."""
        return sorted(pod.name for pod in self.last.launches)

    @property
    def released(self) -> list[str]:
        """Pods the last step takes away, sorted."""
        return sorted(self.last.releases)

    def states(self, ident: str, stage: str) -> str:
        """The states of a stage's tasks in words, in order: "SUCCEEDED RUNNING"."""
        run = self.runs[ident]
        at = run.stages[run.number_of(stage)]
        return " ".join(at.task_is(index).name for index in range(at.spec.tasks))

    def state_of(self, ident: str) -> str:
        """The workflow and its stages: "RUNNING: a SUCCEEDED, b PENDING"."""
        run = self.runs[ident]
        return f"{run.state}: " + ", ".join(f"{s.spec.name} {s.state}" for s in run.stages)

    def queued(self, ident: str, stage: str) -> int:
        """How many tasks of a stage wait for room."""
        run = self.runs[ident]
        return int(run.stages[run.number_of(stage)].counts[TaskState.QUEUED])

    def nothing_left(self) -> None:
        """Every book is empty."""
        state = self.state
        assert not state.work.pods
        assert not state.cluster.snapshot.claims
        assert not state.cluster.pipelines
        assert not state.cluster.in_line
        assert not state.cluster.sent
        assert not state.work.runs
        assert not state.data.staging
        assert not any(state.data.wanted_from.values())
        assert not any(readers.in_place for readers in state.data.file_readers.values())
        assert not state.data.read_from
        assert not state.work.ready
        assert not state.work.keys
        assert not state.work.groups
        assert not state.work.staged_on
        assert not state.work.shapes
        assert not state.work.inputs
        assert not state.work.gang_seats
        assert not state.round.reasons
        assert not state.cluster.snapshot.nominations
        assert not state.cluster.snapshot.spent
        assert state.cluster.snapshot.devices.shared == 0
        assert not state.cluster.snapshot.ledger.devices.any()
