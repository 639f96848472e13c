"""Spans of workflows and tasks, received by an OTLP collector that these tests are, from a service that really runs."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider

from flowsched.control.tracing import NextIds, Tracing, is_header, phases, tracing, wanted
from flowsched.engine.delta import TaskWrite
from flowsched.engine.step import Step
from flowsched.store.rows import WorkflowRow
from flowsched.store.workflows import Workflows
from flowsched.workflow.run.states import TaskState

PATIENCE_S = 120
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@dataclass
class Collector:
    """What was exported."""

    url: str
    spans: list[Span] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    def of(self, name: str) -> list[Span]:
        return [span for span in list(self.spans) if span.name == name]


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                found.services |= {
                    each.value.string_value
                    for each in resource.resource.attributes
                    if each.key == "service.name"
                }
                for scope in resource.scope_spans:
                    found.spans.extend(scope.spans)
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Service:
    """A service as a user starts it."""

    url: str
    token: str

    def ask(self, path: str, body: object = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers |= {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def end_of(self, workflow: str) -> str:
        """The state it ends in."""
        deadline = time.monotonic() + PATIENCE_S
        while (state := self.ask(f"/workflows/{workflow}")["state"]) not in ("SUCCEEDED", "FAILED"):
            assert time.monotonic() < deadline, state
            time.sleep(0.1)
        return str(state)


@contextmanager
def serving(root: Path, **environment: str) -> Iterator[Service]:
    """`flowsched serve`, until the block ends; then it is told to stop, and must end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "flowsched",
        "serve",
        "--root",
        str(root),
        "--port",
        str(port),
        "--no-supervise",
    ]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    log = root.with_suffix(".log")
    with log.open("wb") as out:
        running = subprocess.Popen(command, env=plain | environment, stdout=out, stderr=out)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while b" ready " not in log.read_bytes():
                assert running.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield Service(f"http://127.0.0.1:{port}", (root / "token").read_text().strip())
        finally:
            running.send_signal(signal.SIGTERM)
            assert running.wait(PATIENCE_S) == 0, log.read_text()


def stage(name: str, *command: str, **more: object) -> dict[str, object]:
    return {"name": name, "command": list(command), "resources": {"cpu": "100m", "memory": "16Mi"}, **more}


def test_a_run_is_a_trace(tmp_path: Path) -> None:
    """Below the span of the request that submitted it: the workflow, and its tasks with an event for each of their phases."""
    good = stage("make", "sh", "-c", "sleep 0.2; echo 1", scatter={"count": 2})
    bad = stage("fail", "sh", "-c", "exit 3", needs=["make"])
    with collector() as received:
        with serving(tmp_path / "root", OTEL_EXPORTER_OTLP_ENDPOINT=received.url) as service:
            document = {"name": "traced", "stages": [good, bad]}
            header = f"00-{TRACE}-{PARENT}-01"
            workflow = service.ask("/workflows", document, traceparent=header)["id"]
            own = service.ask("/workflows", {"name": "alone", "stages": [stage("only", "true")]})["id"]
            assert (service.end_of(workflow), service.end_of(own)) == ("FAILED", "SUCCEEDED")
        (root,) = received.of("traced")
        (alone,) = received.of("alone")
        made, (failed,) = received.of("make"), received.of("fail")
    assert received.services == {"flowsched"}
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert {span.trace_id.hex() for span in (*made, failed)} == {TRACE}
    assert {span.parent_span_id for span in (*made, failed)} == {root.span_id}
    assert alone.parent_span_id == b""
    assert alone.trace_id != root.trace_id
    assert root.status.code == failed.status.code == Status.STATUS_CODE_ERROR
    assert [task.status.code for task in made] == [Status.STATUS_CODE_UNSET] * 2
    for task in made:
        names, moments = zip(*((each.name, each.time_unix_nano) for each in task.events), strict=True)
        order = iter(("queued", "staging-in", "queued", "starting", "running"))
        assert names[-1] == "running"
        assert all(name in order for name in names)  # in this order, some left out
        assert list(moments) == sorted(moments)
        assert moments[0] == task.start_time_unix_nano
        assert task.end_time_unix_nano - moments[-1] >= 150_000_000
        assert (
            root.start_time_unix_nano
            <= task.start_time_unix_nano
            <= task.end_time_unix_nano
            <= root.end_time_unix_nano
        )
    said = {each.key: each.value for each in failed.attributes}
    assert said["flowsched.workflow.id"].string_value == workflow
    assert said["process.exit.code"].int_value == 3
    assert failed.status.message == "exit code 3"


def test_a_collector_that_is_away_holds_nothing(tmp_path: Path) -> None:
    """Work goes on, and the service stops when it is told to."""
    with serving(tmp_path / "root", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9") as service:
        workflow = service.ask("/workflows", {"name": "w", "stages": [stage("only", "true")]})["id"]
        assert service.end_of(workflow) == "SUCCEEDED"


class Reads:
    """The workflow `w`, and no other."""

    async def get(self, workflow: str) -> WorkflowRow:
        if workflow != "w":
            raise OSError("the database went away")
        return WorkflowRow(
            "w", 1, "many", "default", 0, {}, "RUNNING", "", "", "", 0, 0, None, False, False, 1, 3_000, 9, ""
        )

    async def stages(self, _: str) -> list[Any]:
        return [SimpleNamespace(stage=0, name="one")]


def step_of(*tasks: TaskWrite) -> Step:
    """A step in which these tasks ended."""
    return cast("Step", SimpleNamespace(delta=SimpleNamespace(tasks=tasks, workflows=[], ends=[])))


@asynccontextmanager
async def exporting() -> AsyncIterator[tuple[Tracing, Collector]]:
    """Traces, and the collector to which they are exported."""
    with collector() as received, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.url}
        async with tracing(cast("Workflows", Reads()), environment) as made:
            assert made is not None
            yield made, received


async def until_received(count: int, received: Collector) -> None:
    """Wait for so many spans."""
    async with asyncio.timeout(PATIENCE_S):
        while len(received.spans) < count:
            await asyncio.sleep(0.05)


async def test_many_tasks_that_end_at_once_lose_no_span() -> None:
    """More than the queue of a batch processor holds by default."""
    async with exporting() as (made, received):
        made.stepped(step_of(*(task(index=at) for at in range(3_000))))
        await until_received(3_000, received)
        assert len(received.of("one")) == 3_000
        assert made.dropped == 0


async def test_a_bad_row_takes_no_other_span_with_it() -> None:
    """A row that makes no span, and a workflow that cannot be read: each counts, and the rows beside them have their spans."""
    bad, unread = task(index=1, started_ms="late"), task(workflow="gone")
    async with exporting() as (made, received):
        made.stepped(step_of(task(index=0), bad, unread, task(index=2)))
        await until_received(2, received)
        made.stepped(step_of(task(index=3)))
        await until_received(3, received)
        assert len(received.of("one")) == 3
        assert made.dropped == 2


async def test_the_backlog_has_a_bound() -> None:
    """While the database does not answer, rows pile up to 100,000; what comes then is dropped, and counted."""
    made = Tracing(cast("Workflows", Reads()), TracerProvider(), NextIds())
    for _ in range(2):
        made.stepped(step_of(*[task()] * 60_000))
    assert made.dropped == 20_000


def test_without_the_variable_nothing_is_loaded(tmp_path: Path) -> None:
    """And the header of a request is not kept."""
    with serving(tmp_path / "root", PYTHONPROFILEIMPORTTIME="1") as service:
        document = {"name": "w", "stages": [stage("only", "true")]}
        workflow = service.ask("/workflows", document, traceparent=f"00-{TRACE}-{PARENT}-01")["id"]
        assert service.end_of(workflow) == "SUCCEEDED"
        assert service.ask(f"/workflows/{workflow}")["labels"] == {}
    imported = (tmp_path / "root.log").read_text()
    assert "flowsched.control.tracing" in imported
    assert "opentelemetry" not in imported


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, False),
    ],
)
def test_the_standard_variables_switch_it_on(environment: dict[str, str], on: bool) -> None:
    """As the specification of OpenTelemetry has them."""
    assert wanted(environment) is on


@pytest.mark.parametrize(
    ("header", "good"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", True),
        (f"cc-{TRACE}-{PARENT}-01-more", True),
        (f"ff-{TRACE}-{PARENT}-01", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{PARENT}-01", False),
        ("", False),
        (None, False),
    ],
)
def test_a_header_that_is_none_is_no_parent(header: str | None, good: bool) -> None:
    """As W3C Trace Context has it: lower case, no zeros, never version ff."""
    assert is_header(header) is good


def task(**changed: Any) -> TaskWrite:
    """A task that waited 1 s, was staged for 2 s, started for 3 s and ran for 4 s."""
    row = TaskWrite(
        "w", 0, 0, int(TaskState.SUCCEEDED), 1, "n", 0, 3, "", 0, 1_000, 2_000, None, 4_000, 7_000, 11_000, 0, 0
    )  # fmt: skip
    return row._replace(**changed)


def test_phases_follow_one_another() -> None:
    """Those that a task did not have are left out; times that go back count as none."""
    whole = [("queued", 1_000), ("staging-in", 2_000), ("starting", 4_000), ("running", 7_000)]
    assert phases(task()) == whole
    assert phases(task(staged_ms=2_500)) == [*whole[:2], ("queued", 2_500), *whole[2:]]
    assert phases(task(staging_ms=None, bound_ms=None, started_ms=None)) == [("queued", 1_000)]
    assert phases(task(started_ms=3_900))[-1] == ("running", 4_000)
    assert phases(task(ready_ms=None, staging_ms=None, bound_ms=None, started_ms=None)) == []


async def test_rows_that_are_dropped_while_spans_are_made_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row in the thread counts as waiting; its losses and those of a full backlog are in one sum."""
    made = Tracing(cast("Workflows", Reads()), TracerProvider(), NextIds())

    def making(rows: Sequence[object], _: object) -> int:
        if len(rows) == 1:
            made.stepped(step_of(*[task()] * 100_007))
            return 2
        return 0

    monkeypatch.setattr(made, "_make", making)
    made.stepped(step_of(task()))
    made.finish()
    await made.run()
    assert made.dropped == 10
