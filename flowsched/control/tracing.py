"""Traces: OpenTelemetry spans of workflows and their tasks, made from rows that are durable, and exported by OTLP.

A workflow is a trace. Its span is the root, or a child of the span whose `traceparent` the submitting request had. Each task that
ended is a child of it, with an event for each phase of its last attempt. Ids of workflows' spans follow from the workflow's id, so
that another leader goes on with the same trace.

Only the standard variables (`OTEL_*`) switch it on and configure it. opentelemetry is loaded then, and not before.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flowsched.background import BackgroundTasks
from flowsched.engine.delta import TaskWrite, WorkflowWrite
from flowsched.engine.step import Step
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
#: Spans that wait for the collector; more are dropped. The standard's 2,048 are fewer than the tasks that may end in one step.
_QUEUE: Final = 16_384
#: Rows that wait until spans are made of them; more are dropped. Some 40 MB.
_BACKLOG: Final = 100_000
#: How long the end of a process waits for the last spans to be made.
_LAST_S: Final = 5.0
#: Workflows whose names are remembered.
_KNOWN: Final = 10_000
_NS: Final = 1_000_000


def is_header(text: str | None) -> bool:
    """Whether a text is a `traceparent` that spans can be children of."""
    return text is not None and not text.startswith("ff") and _HEADER.fullmatch(text) is not None


class _Known(msgspec.Struct, frozen=True):
    """The rows of one workflow that its spans need, and where the spans belong.

    Args:
        row: The workflow.
        stages: Names by number.
        trace: The id of its trace.
        above: The span that submitted the workflow; 0 = none did, the workflow's span is the root.
        own: The id of the workflow's own span.
        sampled: Whether spans of this trace are exported: one answer for all of them.
    """

    row: WorkflowRow
    stages: Mapping[int, str]
    trace: int
    above: int
    own: int
    sampled: bool


def phases(row: TaskWrite) -> list[tuple[str, int]]:
    """(name, begin in wall-clock ms) of the phases of a task that has ended, in order; without those that it did not have.

    A moment before that of an earlier phase counts as that of the earlier one.
    """
    moments = [
        ("queued", row.ready_ms),
        ("staging-in", row.staging_ms),
        ("queued", row.staged_ms),
        ("starting", row.bound_ms),
        ("running", row.started_ms),
    ]
    found: list[tuple[str, int]] = []
    for name, at in moments:
        if at is not None:
            found.append((name, max(at, found[-1][1] if found else at)))
    return found


class Tracing:
    """Makes spans of what steps wrote.

    Args:
        reads: Names, labels and times of workflows come from their rows.
        provider: The spans' exporter; of a batch processor, so that no span waits for the network.
        ids: Where the provider finds the ids of workflows' spans.

    Attributes:
        dropped: Rows of which no span was made: too many waited, their workflow could not be read, or the span could not be made.
    """

    def __init__(self, reads: Workflows, provider: TracerProvider, ids: NextIds) -> None:
        self._reads = reads
        self._provider = provider
        self._ids = ids
        self._tracer = provider.get_tracer("flowsched", VERSION)
        self._waiting: list[TaskWrite | WorkflowWrite] = []
        self._making = 0  #: rows of which the thread makes spans
        self._news = asyncio.Event()
        self._known: dict[str, _Known] = {}
        self._finishing = False
        self.dropped = 0

    def stepped(self, step: Step) -> None:
        """Note what a durable step has ended. Never waits."""
        ended: list[TaskWrite | WorkflowWrite] = [
            row for row in step.delta.tasks if TaskState(row.state) in TERMINAL
        ]
        ended += [row for row in step.delta.workflows if RunState(row.state).terminal]
        room = max(0, _BACKLOG - len(self._waiting) - self._making)
        self._waiting += ended[:room]
        self.dropped += len(ended[room:])
        if self._waiting:
            self._news.set()

    async def run(self) -> None:
        """Make spans until `finish`, then of what is left."""
        logged = 0
        while not self._finishing or self._waiting:
            await self._news.wait()
            self._news.clear()
            waiting, self._waiting = self._waiting, []
            self._making = len(waiting)
            known = {name: await self._lookup(name) for name in {row.workflow for row in waiting}}
            lost = await asyncio.to_thread(self._make, waiting, known)
            self.dropped += lost  # `stepped` may have added to it meanwhile
            self._making = 0
            if self.dropped > logged:
                log.warning("spans were dropped", now=self.dropped - logged, since_start=self.dropped)
                logged = self.dropped

    def finish(self) -> None:
        """Let `run` end."""
        self._finishing = True
        self._news.set()

    async def _lookup(self, workflow: str) -> _Known | None:
        if workflow not in self._known:
            try:
                row, stages = await self._reads.get(workflow), await self._reads.stages(workflow)
            except Exception as error:  # noqa: BLE001 # the batch has spans of other workflows
                log.warning("no spans of a workflow that cannot be read", workflow=workflow, error=str(error))
                return None
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[workflow] = self._placed(row, {stage.stage: stage.name for stage in stages})
        return self._known[workflow]

    def _placed(self, row: WorkflowRow, stages: Mapping[int, str]) -> _Known:
        digest = hashlib.sha256(row.id.encode()).digest()
        own = int.from_bytes(digest[16:24], "big") or 1
        header = _HEADER.fullmatch(row.labels.get(LABEL, ""))
        if header is not None:
            return _Known(
                row, stages, int(header[1], 16), int(header[2], 16), own, bool(int(header[3], 16) & 1)
            )
        trace = int.from_bytes(digest[:16], "big") or 1
        decision = self._provider.sampler.should_sample(None, trace, row.name).decision
        return _Known(row, stages, trace, 0, own, decision.name == "RECORD_AND_SAMPLE")

    # ---- in a thread ----

    def _make(self, rows: Sequence[TaskWrite | WorkflowWrite], known: Mapping[str, _Known | None]) -> int:
        """Make the spans of rows; returns how many rows have none although they should."""
        dropped = 0
        for row in rows:
            of = known[row.workflow]
            if of is None:
                dropped += 1
                continue
            if not of.sampled or row.ended_ms is None:
                continue
            try:
                if isinstance(row, TaskWrite):
                    self._task(row, of, row.ended_ms)
                else:
                    self._workflow(row, of, row.ended_ms)
            except Exception:  # the other rows' spans are good
                if not dropped:
                    log.exception("no span of a row", workflow=row.workflow)
                dropped += 1
        return dropped

    def _task(self, row: TaskWrite, of: _Known, ended_ms: int) -> None:
        parts = phases(row)
        if not parts:
            return
        span = self._begun(of, of.own, of.stages.get(row.stage, str(row.stage)), parts[0][1])
        attributes: dict[str, str | int | None] = {
            "flowsched.workflow.id": row.workflow,
            "flowsched.task.index": row.index,
            "flowsched.task.attempt": row.attempt,
            "flowsched.task.state": TaskState(row.state).name,
            "flowsched.task.input_bytes_local": row.bytes_local,
            "flowsched.task.input_bytes_moved": row.bytes_moved,
            "flowsched.node": row.node,
            "process.exit.code": row.exit_code,
            "flowsched.task.reason": row.reason or None,
        }
        span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        for name, at in parts:
            span.add_event(name, timestamp=at * _NS)
        failed = TaskState(row.state) is TaskState.FAILED
        _end(
            span, max(ended_ms, parts[-1][1]), (row.reason or f"exit code {row.exit_code}") if failed else ""
        )

    def _workflow(self, row: WorkflowWrite, of: _Known, ended_ms: int) -> None:
        self._ids.ids = of.trace, of.own
        try:
            span = self._begun(of, of.above, of.row.name, of.row.created_ms)
        finally:
            self._ids.ids = None
        span.set_attributes(
            {
                "flowsched.workflow.id": row.workflow,
                "flowsched.workflow.queue": of.row.queue,
                "flowsched.workflow.state": row.state,
                "flowsched.workflow.tasks": of.row.tasks,
            }
        )
        _end(span, ended_ms, row.reason or row.state if row.state == RunState.FAILED.value else "")

    def _begun(self, of: _Known, above: int, name: str, start_ms: int) -> Span:
        """A span that has begun. `above`: the id of its parent; 0 = it is the root of its trace."""
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        context = None
        if above:
            parent = SpanContext(of.trace, above, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
            context = set_span_in_context(NonRecordingSpan(parent))
        return self._tracer.start_span(name, context, start_time=start_ms * _NS)


def _end(span: Span, end_ms: int, error: str) -> None:
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


def _provider(next_ids: NextIds, environment: Mapping[str, str]) -> TracerProvider:
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
            return next_ids.ids[0] if next_ids.ids is not None else super().generate_trace_id()

        def generate_span_id(self) -> int:
            return next_ids.ids[1] if next_ids.ids is not None else super().generate_span_id()

    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    about: dict[str, Any] = {"service.version": VERSION} | ({} if named else {"service.name": "flowsched"})
    provider = TracerProvider(resource=Resource.create(about), id_generator=_Ids())
    most = None if environment.get("OTEL_BSP_MAX_QUEUE_SIZE") else _QUEUE  # None: the SDK reads the variable
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=most))
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
        await asyncio.to_thread(provider.shutdown)  # it exports what is left
