"""Traces: OpenTelemetry spans of workflows and their tasks, made from rows that are durable, and exported by OTLP.

A workflow is a trace. Its span is the root, or a child of the span whose `traceparent` the submitting request had. Each task that
ended is a child of it, with the phases of its last attempt as children: queued, staging-in, starting, running, staging-out. Ids of
workflows' spans follow from the workflow's id, so that another leader goes on with the same trace.

Only the standard variables (`OTEL_*`) switch it on and configure it. opentelemetry is loaded then, and not before.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flowsched.background import BackgroundTasks
from flowsched.engine.delta import TaskWrite, WorkflowWrite
from flowsched.engine.state.work import pod_name
from flowsched.engine.step import Step
from flowsched.errors import FlowschedError, NotFound
from flowsched.log_lines import get_logger
from flowsched.store.rows import WorkflowRow
from flowsched.store.workflows import Workflows
from flowsched.version import VERSION
from flowsched.workflow.run.states import TERMINAL, RunState, TaskState

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = get_logger(__name__)

#: The label of a workflow that keeps the header of the request that submitted it.
LABEL: Final = "traceparent"
#: W3C Trace Context, version 00: trace, parent, flags.
_HEADER: Final = re.compile(
    r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
#: So many rows wait for a database that is slow or away; more are dropped, since a trace is worth less than memory.
_MOST: Final = 200_000
#: Rows whose spans are made in one go, in a thread.
_SLICE: Final = 500
#: A batch processor drops spans that find its queue full (2,048 by default), so all are exported after so many. A task has six.
_QUEUED: Final = 1_500
_FLUSH_MS: Final = 10_000
#: How long the end of a process waits for the last spans to be made.
_LAST_S: Final = 5.0
#: Workflows whose names are remembered.
_KNOWN: Final = 10_000
_NS: Final = 1_000_000
#: Name of an attempt -> its `ContainerReport`, of attempts that ended in one step.
Reports = Mapping[str, bytes]


def is_header(text: str | None) -> bool:
    """Whether a text is a `traceparent` that spans can be children of."""
    return text is not None and not text.startswith("ff") and _HEADER.fullmatch(text) is not None


class Parent(msgspec.Struct, frozen=True):
    """The trace of a workflow.

    Args:
        trace: Its id.
        span: Of the span that submitted the workflow; 0 = none did, the workflow's span is the root.
        sampled: Whether spans of this trace are exported.
        own: The id of the workflow's own span.
    """

    trace: int
    span: int
    sampled: bool
    own: int


class _Known(msgspec.Struct, frozen=True):
    """What spans of one workflow need of its rows."""

    row: WorkflowRow
    stages: Mapping[int, str]
    parent: Parent


class Phase(msgspec.Struct, frozen=True):
    """A part of the life of a task, in wall-clock ms."""

    name: str
    start_ms: int
    end_ms: int


def phases(row: TaskWrite, steps_ended_ms: int | None = None) -> list[Phase]:
    """The phases of a task that has ended, in order; those that it did not have are left out.

    Args:
        row: Its last row.
        steps_ended_ms: When the last step of a container task ended; its outputs are delivered after that.
    """
    if row.ready_ms is None or row.ended_ms is None:
        return []
    ended = max(row.ready_ms, row.ended_ms)
    out = None if row.started_ms is None else steps_ended_ms
    marks = [
        ("queued", row.ready_ms),
        ("staging-in", row.staging_ms),
        ("queued", row.staged_ms),
        ("starting", row.bound_ms),
        ("running", row.started_ms),
        ("staging-out", out),
    ]
    begun: list[tuple[str, int]] = []
    for name, at in marks:
        if at is not None:
            begun.append((name, min(max(at, begun[-1][1] if begun else at), ended)))
    ends = [at for _, at in begun[1:]] + [ended]
    return [
        Phase(name, at, end)
        for (name, at), end in zip(begun, ends, strict=True)
        if end > at or name == "running"
    ]


class _Waiting(msgspec.Struct):
    """Rows that have ended since spans were made last."""

    tasks: list[tuple[TaskWrite, Reports]] = msgspec.field(default_factory=list)
    workflows: list[WorkflowWrite] = msgspec.field(default_factory=list)


class Tracing:
    """Makes spans of what steps wrote.

    Args:
        reads: Names, labels and times of workflows come from their rows.
        provider: The spans' exporter; of a batch processor, so that no span waits for the network.
        ids: Where the provider finds the ids of workflows' spans.
    """

    def __init__(self, reads: Workflows, provider: TracerProvider, ids: NextIds) -> None:
        self._reads = reads
        self._provider = provider
        self._ids = ids
        self._tracer = provider.get_tracer("flowsched", VERSION)
        self._waiting = _Waiting()
        self._news = asyncio.Event()
        self._known: dict[str, _Known] = {}
        self._finishing = False
        self._queued = 0  #: spans since all were exported last, at most
        self.dropped = 0  #: rows that found no room

    def stepped(self, step: Step) -> None:
        """Note what a durable step has ended. Never waits."""
        ended = [
            row for row in step.delta.tasks if TaskState(row.state) in TERMINAL and row.ended_ms is not None
        ]
        over = [row for row in step.delta.workflows if RunState(row.state).terminal]
        if not ended and not over:
            return
        if len(self._waiting.tasks) + len(ended) > _MOST:
            self.dropped += len(ended)
            ended = []
        reports = {end.name: end.report for end in step.delta.ends if end.report}
        self._waiting.tasks.extend((row, reports) for row in ended)
        self._waiting.workflows.extend(over)
        self._news.set()

    async def run(self) -> None:
        """Make spans until `finish`, then of what is left."""
        while not self._finishing or self._waiting.tasks or self._waiting.workflows:
            await self._news.wait()
            self._news.clear()
            try:
                await self.once()
            except Exception:
                log.exception("spans of tasks that ended were not made")

    def finish(self) -> None:
        """Let `run` end."""
        self._finishing = True
        self._news.set()

    async def once(self) -> None:
        """Make spans of all that waits."""
        waiting, self._waiting = self._waiting, _Waiting()
        for first in range(0, len(waiting.tasks), _SLICE):
            some = waiting.tasks[first : first + _SLICE]
            known = await self._look_up({row.workflow for row, _ in some})
            await asyncio.to_thread(self._tasks, some, known)
        known = await self._look_up({row.workflow for row in waiting.workflows})
        await asyncio.to_thread(self._workflows, waiting.workflows, known)
        for each in waiting.workflows:
            self._known.pop(each.workflow, None)
        if self.dropped:
            log.warning("tasks without spans: too many have ended at a time", tasks=self.dropped)
            self.dropped = 0

    async def _look_up(self, workflows: set[str]) -> dict[str, _Known]:
        found = {}
        for workflow in sorted(workflows):
            known = self._known.get(workflow)
            if known is None:
                try:
                    row, stages = await self._reads.get(workflow), await self._reads.stages(workflow)
                except NotFound:
                    continue
                except FlowschedError as error:
                    log.warning(
                        "no spans of a workflow: its row cannot be read", workflow=workflow, error=str(error)
                    )
                    continue
                known = _Known(row, {stage.stage: stage.name for stage in stages}, self._parent(row))
                if len(self._known) >= _KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[workflow] = known
            found[workflow] = known
        return found

    def _parent(self, row: WorkflowRow) -> Parent:
        """Where the spans of a workflow belong, and whether they are sampled: one answer for all spans of a trace."""
        digest = hashlib.sha256(row.id.encode()).digest()
        own = int.from_bytes(digest[16:24], "big") or 1
        given = _HEADER.fullmatch(row.labels.get(LABEL, ""))
        if given is not None:
            trace, span = int(given[1], 16), int(given[2], 16)
            return Parent(trace, span, bool(int(given[3], 16) & 1), own)
        trace = int.from_bytes(digest[:16], "big") or 1
        decision = self._provider.sampler.should_sample(None, trace, row.name).decision
        return Parent(trace, 0, decision.name == "RECORD_AND_SAMPLE", own)

    # ---- in a thread ----

    def _tasks(self, rows: Sequence[tuple[TaskWrite, Reports]], known: Mapping[str, _Known]) -> None:
        for row, reports in rows:
            of = known.get(row.workflow)
            if of is None or not of.parent.sampled:
                continue
            stage = of.stages.get(row.stage, str(row.stage))
            report = reports.get(pod_name(row.workflow, stage, row.index, row.attempt))
            parts = phases(row, _steps_ended(report))
            if not parts:
                continue
            if self._queued >= _QUEUED:  # waits for the collector, in this thread alone
                self._provider.force_flush(_FLUSH_MS)
                self._queued = 0
            self._queued += 1 + len(parts)
            task = self._span(of.parent, of.parent.own, stage, parts[0].start_ms)
            task.set_attributes(dict(_attributes(row)))
            failed = TaskState(row.state) is TaskState.FAILED
            _end(task, parts[-1].end_ms, (row.reason or f"exit code {row.exit_code}") if failed else "")
            inside = task.get_span_context().span_id
            for part in parts:
                _end(self._span(of.parent, inside, part.name, part.start_ms), part.end_ms)

    def _workflows(self, rows: Sequence[WorkflowWrite], known: Mapping[str, _Known]) -> None:
        for row in rows:
            of = known.get(row.workflow)
            if of is None or not of.parent.sampled or row.ended_ms is None:
                continue
            self._ids.ids = of.parent.trace, of.parent.own
            span = self._span(of.parent, of.parent.span, of.row.name, of.row.created_ms)
            self._ids.ids = None
            span.set_attributes(
                {
                    "flowsched.workflow.id": row.workflow,
                    "flowsched.workflow.queue": of.row.queue,
                    "flowsched.workflow.state": row.state,
                    "flowsched.workflow.tasks": of.row.tasks,
                }
            )
            _end(span, row.ended_ms, row.reason or row.state if row.state == RunState.FAILED.value else "")

    def _span(self, parent: Parent, span: int, name: str, start_ms: int) -> Span:
        """A span that has begun. `span`: the id of its parent; 0 = it is the root of its trace."""
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        context = Context()
        if span:
            above = SpanContext(
                parent.trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
            )
            context = set_span_in_context(NonRecordingSpan(above), context)
        return self._tracer.start_span(name, context, start_time=start_ms * _NS)

    def close(self) -> None:
        """Export what is left, and stop. Blocks."""
        self._provider.shutdown()


def _steps_ended(report: bytes | None) -> int | None:
    """When the last step of a container task ended, by its report."""
    if not report:
        return None
    steps = msgspec.json.decode(report).get("steps") or []
    return max((step["ended_ms"] for step in steps), default=None)


def _attributes(row: TaskWrite) -> Iterator[tuple[str, str | int]]:
    yield "flowsched.workflow.id", row.workflow
    yield "flowsched.task.index", row.index
    yield "flowsched.task.attempt", row.attempt
    yield "flowsched.task.state", TaskState(row.state).name
    yield "flowsched.task.input_bytes_local", row.bytes_local
    yield "flowsched.task.input_bytes_moved", row.bytes_moved
    if row.node is not None:
        yield "flowsched.node", row.node
    if row.exit_code is not None:
        yield "process.exit.code", row.exit_code
    if row.reason:
        yield "flowsched.task.reason", row.reason


def _end(span: Span, end_ms: int, error: str = "") -> None:
    from opentelemetry.trace import Status, StatusCode

    if error:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(end_time=end_ms * _NS)


# ---- from the environment ----


class NextIds(msgspec.Struct):
    """The ids of the next span, (trace, span); None = at random. One thread at a time makes spans."""

    ids: tuple[int, int] | None = None


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for traces by OTLP."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(environment.get(f"OTEL_EXPORTER_OTLP_{name}") for name in ("ENDPOINT", "TRACES_ENDPOINT"))


def _provider(told: NextIds, environment: Mapping[str, str]) -> TracerProvider:
    """A provider as the environment configures it.

    Raises:
        ImportError: opentelemetry is not installed.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class _Ids(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            return told.ids[0] if told.ids is not None else super().generate_trace_id()

        def generate_span_id(self) -> int:
            return told.ids[1] if told.ids is not None else super().generate_span_id()

    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    about: dict[str, Any] = {"service.version": VERSION} | ({} if named else {"service.name": "flowsched"})
    provider = TracerProvider(resource=Resource.create(about), id_generator=_Ids())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


@asynccontextmanager
async def tracing(
    reads: Workflows, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Tracing | None]:
    """Traces as the environment asks for them; None where it does not."""
    environment = os.environ if environment is None else environment
    if not wanted(environment):
        yield None
        return
    ids = NextIds()
    try:
        provider = await asyncio.to_thread(_provider, ids, environment)
    except ImportError as error:
        log.warning(
            "no traces: OTEL_EXPORTER_OTLP_ENDPOINT is set, and opentelemetry is not installed: pip install 'flowsched[otel]'",
            error=str(error),
        )
        yield None
        return
    made = Tracing(reads, provider, ids)
    tasks = BackgroundTasks("traces")
    task = tasks.keep(made.run, "traces")
    try:
        yield made
    finally:
        made.finish()
        await asyncio.wait({task}, timeout=_LAST_S)  # not broken off at once: what it holds is nowhere else
        await tasks.close()
        await asyncio.to_thread(made.close)
