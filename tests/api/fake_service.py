"""A service in memory that answers as `Service` does and runs nothing: tests set what it shall say."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from fake_plans import FakePlans

from flowsched.api.routes import Limits
from flowsched.control.service import OutputData
from flowsched.control.tes import TesPage
from flowsched.control.wes import WesService
from flowsched.errors import Conflict, Fault, InvalidDocument, NotFound
from flowsched.workflow.document.reader import read_document
from flowsched.workflow.views import (
    AttemptPage,
    AttemptUseView,
    AttemptView,
    CacheView,
    CancelledView,
    DrainView,
    EventView,
    ExplanationView,
    IdleReportView,
    IdleView,
    NodeView,
    OutputView,
    PluginView,
    ProfileView,
    QueueView,
    StageView,
    SubmittedView,
    TaskPage,
    TaskView,
    TimelineView,
    UsageRowView,
    UsageSumView,
    UsageView,
    WorkflowPage,
    WorkflowView,
)

#: Small enough to be reached; but for the patience with clients that are slow, whom a busy machine makes of all of them.
LIMITS = Limits(
    body_bytes=10 << 20, small_body_bytes=4096, streams=20, keep_alive_seconds=0.05, follow_seconds=0.01,
)  # fmt: skip

BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


def workflow_view(number: int, name: str = "germline", **changes: Any) -> WorkflowView:
    """A workflow that runs."""
    settings: dict[str, Any] = {
        "id": f"wf{number}",
        "name": name,
        "queue": "default",
        "priority": 0,
        "labels": {},
        "state": "RUNNING",
        "created_at": BEGIN + timedelta(minutes=number),
        "stages": 2,
        "tasks": 4,
        "counts": {"RUNNING": 1, "QUEUED": 3},
    }
    return WorkflowView(**settings | changes)


def stage_view(number: int, name: str, **changes: Any) -> StageView:
    """A stage of three tasks."""
    settings: dict[str, Any] = {
        "name": name,
        "number": number,
        "state": "RUNNING",
        "width": 3,
        "members": 1,
        "counts": {"RUNNING": 1, "SUCCEEDED": 1, "QUEUED": 1},
        "queued_seconds": 4.0,
        "staging_seconds": 2.5,
        "running_seconds": 61.0,
        "bytes_local": 3 << 30,
        "bytes_moved": 1 << 20,
    }
    return StageView(**settings | changes)


def task_view(stage: str, index: int, **changes: Any) -> TaskView:
    """A task that runs on node-0."""
    settings: dict[str, Any] = {
        "stage": stage,
        "index": index,
        "shard": index,
        "role": "task",
        "state": "RUNNING",
        "attempt": 1,
        "node": "node-0",
        "attempts": [AttemptView(attempt=1, pod=f"fs-{stage}-{index}-1", node="node-0", bound_at=BEGIN)],
        "outputs": [OutputView(name="bam", uri="flowsched:x", size_bytes=9, value="9")],
    }
    return TaskView(**settings | changes)


class FakePolicies:
    """Stands for `PolicyDesk`: one profile, whose name is that of the last document."""

    def __init__(self, service: FakeService) -> None:
        self.service = service
        self.raw = b'{"name": "flowsched"}'

    async def show(self) -> ProfileView:
        self.service._fail()
        document = msgspec.json.decode(self.raw)
        return ProfileView(
            name=document["name"], source="the API", since=BEGIN, kept=False,
            document={"default": document["name"], "profiles": {document["name"]: {"packing": "spread"}}},
        )  # fmt: skip

    async def apply(self, raw: bytes) -> ProfileView:
        self.service._fail()
        if not isinstance(msgspec.json.decode(raw).get("name"), str):
            raise InvalidDocument([Fault("$.name", "nothing", "a name")])
        self.raw = raw
        return await self.show()

    async def plugins(self) -> list[PluginView]:
        self.service._fail()
        return [PluginView(name="only-ssd", kind="filter", origin="lab 1.0", used_by=["flowsched"])]

    async def snapshot(self) -> bytes:
        self.service._fail()
        return b"PK snapshot"


class FakeTes:
    """Stands for `TesService`, over the same workflows: each is a TES task that runs."""

    def __init__(self, service: FakeService) -> None:
        self.service = service
        self.asked: list[dict[str, Any]] = []

    def storage(self) -> list[str]:
        return ["file:///"]

    async def create(
        self, raw: bytes, *, client: str = "", idempotency_key: str | None = None, run: str = ""
    ) -> str:
        self.service._fail()
        self.asked.append({"raw": raw, "client": client, "key": idempotency_key, "run": run})
        return self.service.add("tes")

    async def get(self, ident: str, view: str) -> bytes:
        await self.service.workflow(ident)
        return msgspec.json.encode({"id": ident, "state": "RUNNING"})

    async def list(self, view: str, **asked: Any) -> TesPage:
        self.service._fail()
        self.asked.append({"view": view, **asked})
        return TesPage([await self.get(ident, view) for ident in self.service.workflows])

    async def cancel(self, ident: str) -> None:
        self.service._fail()
        self.asked.append({"cancel": ident})


class FakeService:
    """See the module."""

    def __init__(self) -> None:
        self.plans = FakePlans()
        self.workflows: dict[str, WorkflowView] = {}
        self.documents: dict[str, bytes] = {}
        self.keys: dict[str, tuple[str, bytes]] = {}
        self.stage_views: list[StageView] = [stage_view(0, "align"), stage_view(1, "call", state="PENDING")]
        self.task_views: list[TaskView] = [
            task_view(stage, index) for stage in ("align", "call") for index in range(3)
        ]
        self.log: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self.log_grows = False
        self.outputs: dict[str, tuple[str, bytes | None, int]] = {}
        self.closed = 0
        self.history: list[EventView] = []
        self.changed = asyncio.Event()
        self.queue_settings: dict[str, dict[str, Any]] = {"default": {}}
        self.commands: list[tuple[str, str, Mapping[str, Any] | None]] = []
        self.asked: list[dict[str, Any]] = []
        self.logged: list[tuple[str, int, str]] = []  #: stage, index and stream of the logs that were read
        self.attempts_logged: set[int | None] = set()
        self.streams_open = 0
        self.failure: BaseException | None = None
        self.submissions = 0
        self.finish_on_submit: str | None = None
        self.leads_at: str | None = None
        self.alive: tuple[bool, str] = (True, "ok")
        self.prepared: tuple[bool, str] = (True, "ok")
        self.refused: dict[str, str] = {}
        self.points: dict[str, int] = {}
        self.pods: list[bytes] = []
        self.policies = FakePolicies(self)
        self.batches: list[int] = []  #: of requests to cancel several workflows, how many each named
        self.drained: dict[str, tuple[int | None, str | None, str, str]] = {}
        self.tes = FakeTes(self)
        self.wes = WesService(
            None, submit=self.submit, workflow=self.workflow, list_workflows=self.list_workflows, task=self.task,
            tasks=self.tasks, logs=self.logs, command=self.command,
        )  # fmt: skip

    # -- what tests do to it

    def happen(self, workflow: str, kind: str, **body: Any) -> None:
        """Write an event."""
        number = len(self.history) + 1
        self.history.append(EventView(id=number, workflow=workflow, at=BEGIN, kind=kind, body=body))
        self._wake()

    def finish(self, workflow: str, state: str = "SUCCEEDED") -> None:
        """End a workflow."""
        view = self.workflows[workflow]
        counts = {state: view.tasks}
        self.workflows[workflow] = msgspec.structs.replace(
            view, state=state, ended_at=BEGIN + timedelta(hours=1), counts=counts
        )
        self.happen(workflow, f"workflow.{state.lower()}")

    def add(self, name: str = "germline", **changes: Any) -> str:
        """Accept a workflow without a document."""
        view = workflow_view(len(self.workflows) + 1, name, **changes)
        self.workflows[view.id] = view
        return view.id

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    # -- what the API asks

    async def submit(
        self, raw: bytes, *, idempotency_key: str | None = None, traceparent: str | None = None
    ) -> SubmittedView:
        self.submissions += 1
        self._fail()
        document = read_document(raw)
        name = document.get("name") if isinstance(document, dict) else None
        if not isinstance(name, str) or not name:
            from flowsched.errors import Fault

            raise InvalidDocument([Fault("$.name", str(name), "a name")])
        digest = hashlib.sha256(raw).digest()
        if idempotency_key in self.keys:
            known, earlier = self.keys[idempotency_key]
            if earlier != digest:
                raise Conflict(f"the idempotency key {idempotency_key!r} was used for another document")
            return SubmittedView(id=known, created=False)
        workflow = self.add(name)
        self.documents[workflow] = raw
        if idempotency_key is not None:
            self.keys[idempotency_key] = (workflow, digest)
        self.happen(workflow, "workflow.accepted")
        if self.finish_on_submit is not None:
            self.finish(workflow, self.finish_on_submit)
        return SubmittedView(id=workflow)

    async def list_workflows(self, **asked: Any) -> WorkflowPage:
        self._fail()
        self.asked.append(asked)
        views = sorted(
            self.workflows.values(), key=lambda view: (view.ended_at is None, view.created_at), reverse=True
        )
        views = [view for view in views if asked["state"] in (None, view.state)]
        views = [view for view in views if asked["name"] in (None, view.name)]
        views = [view for view in views if asked["user"] in (None, view.user)]
        views = [view for view in views if not asked["live"] or view.ended_at is None]
        ref = asked["ref"]
        views = [view for view in views if ref is None or view.name == ref or view.id.startswith(ref)]
        start = int(asked["page_token"] or 0)
        stop = start + asked["limit"]
        token = str(stop) if stop < len(views) else None
        return WorkflowPage(workflows=views[start:stop], next_page_token=token)

    async def workflow(self, workflow: str) -> WorkflowView:
        self._fail()
        if workflow not in self.workflows:
            raise NotFound(f"there is no workflow {workflow!r}")
        return self.workflows[workflow]

    async def document(self, workflow: str) -> bytes:
        await self.workflow(workflow)
        return self.documents.get(workflow, b'{"stages": []}')

    async def stages(self, workflow: str) -> list[StageView]:
        await self.workflow(workflow)
        return self.stage_views

    async def tasks(self, workflow: str, **asked: Any) -> TaskPage:
        await self.workflow(workflow)
        self.asked.append(asked)
        views = [view for view in self.task_views if asked["stage"] in (None, view.stage)]
        views = [view for view in views if asked["state"] in (None, view.state)]
        start = int(asked["page_token"] or 0)
        stop = start + asked["limit"]
        return TaskPage(tasks=views[start:stop], next_page_token=str(stop) if stop < len(views) else None)

    async def cache(self, workflow: str) -> list[CacheView]:
        await self.workflow(workflow)
        return [CacheView(stage="align", shards=3, first=0, source="w0/align")]

    async def timeline(self, workflow: str, **asked: Any) -> TimelineView:
        view = await self.workflow(workflow)
        self.asked.append(asked)
        states = ["RUNNING"]
        return TimelineView(
            workflow=workflow, begin_at=view.created_at, now_ms=9_000, states=states, nodes=["node-0"],
            stage=[0, 0, 0], index=[0, 1, 2], state=[0, 0, 0], node=[0, 0, 0], started_ms=[5, 6, None],
        )  # fmt: skip

    async def attempts(self, workflow: str, **asked: Any) -> AttemptPage:
        view = await self.workflow(workflow)
        self.asked.append(asked)
        begin = view.created_at
        one = AttemptUseView(
            stage="align", index=0, shard=0, attempt=0, pod="fs-1", node="node-0", bound_at=begin, started_at=begin,
            ended_at=begin + timedelta(seconds=4), exit_code=0, requested={"cpu": 4_000, "memory": 8 << 30},
            usage={"cpu_ms": 4_200, "max_rss_bytes": 1_288_490_189, "read_bytes": 5_000, "written_bytes": 0},
        )  # fmt: skip
        return AttemptPage(attempts=[one])

    async def task(self, workflow: str, stage: str, index: int) -> TaskView:
        await self.workflow(workflow)
        for view in self.task_views:
            if (view.stage, view.index) == (stage, index):
                return view
        raise NotFound(f"there is no task {stage}[{index}]")

    async def explain(
        self, workflow: str, *, stage: str | None = None, index: int | None = None
    ) -> list[ExplanationView]:
        await self.workflow(workflow)
        message = "2 of 4 cpu are free"
        numbers = {"free": 2000, "asked": 4000}
        reason = ExplanationView(
            stage=stage or "align", shards=[1], tasks=1, state="QUEUED", code="no_room", message=message,
            numbers=numbers,
        )  # fmt: skip
        return [reason]

    async def idle(self) -> IdleReportView:
        view = IdleView(
            capacity=96.0,
            used=36.0,
            idle=60.0,
            causes={"no_demand": 42.0, "quota": 18.0},
            who={"quota": {"night": 18.0}},
        )
        return IdleReportView(at=BEGIN, resources={"cpu": view}, sentences=["cpu: 60 of 96 cores are idle"])

    async def usage(
        self,
        *,
        by: str = "queue",
        since: str | None = None,
        until: str | None = None,
        queue: str | None = None,
    ) -> UsageView:
        one = {"workflows": 2, "core_hours": 12.5, "gpu_hours": 3.0, "memory_gib_hours": 100.25}
        two = {"workflows": 1, "core_hours": 0.0125, "running_hours": 0.5, "bytes_moved": 2048}
        return UsageView(
            by=by,
            queue=queue,
            rows=[UsageRowView(name="night", **one), UsageRowView(name=None, **two)],
            total=UsageSumView(**(one | two | {"workflows": 3, "core_hours": 12.5125})),
        )

    async def logs(
        self,
        workflow: str,
        stage: str,
        index: int,
        *,
        attempt: int | None = None,
        stream: str = "stdout",
        offset: int = 0,
        limit: int = 65536,
    ) -> tuple[bytes, bool]:
        await self.task(workflow, stage, index)
        self.logged.append((stage, index, stream))
        self.attempts_logged.add(attempt)
        chunk = self.log[stream][offset : offset + limit]
        return chunk, self.log_grows or offset + len(chunk) < len(self.log[stream])

    async def log_start(
        self, workflow: str, stage: str, index: int, *, attempt: int | None, stream: str, tail: int
    ) -> int:
        await self.task(workflow, stage, index)
        lines = self.log[stream].splitlines(keepends=True)
        return len(b"".join(lines[: max(0, len(lines) - tail)]))

    async def output(self, workflow: str, stage: str, index: int, name: str) -> OutputData:
        await self.task(workflow, stage, index)
        if name not in self.outputs:
            raise NotFound(f"{stage}[{index}] has not written its output {name!r}")
        file_name, data, announced = self.outputs[name]
        if data is None:
            raise Conflict(f"no node has {name!r} any more")

        async def chunks() -> AsyncGenerator[bytes, None]:
            try:
                for at in range(0, len(data), 65536):
                    yield data[at : at + 65536]
                if len(data) < announced:
                    raise OSError("it is shorter than it was")
            finally:
                self.closed += 1

        return OutputData(file_name, announced, chunks())

    def write(self, name: str, file_name: str, data: bytes | None, announced: int | None = None) -> None:
        """Publish an output; `announced` bytes are promised."""
        self.outputs[name] = (file_name, data, len(data or b"") if announced is None else announced)

    async def report_end(self, run: str, state: str, reason: str) -> WorkflowView:
        view = msgspec.structs.replace(await self.workflow(run), state=state, reason=reason)
        self.workflows[run] = view
        return view

    async def command(self, workflow: str, kind: str, body: Mapping[str, Any] | None = None) -> WorkflowView:
        view = await self.workflow(workflow)
        self.commands.append((workflow, kind, body))
        if kind == "retry" and view.state != "FAILED":
            raise Conflict(f"{workflow} is {view.state}: only what failed can be tried again")
        changes: dict[str, Any] = {
            "cancel": {"cancel_requested": True, "state": "CANCELLED"},
            "pause": {"paused": True},
            "resume": {"paused": False},
            "retry": {"state": "RUNNING"},
        }[kind]
        self.workflows[workflow] = msgspec.structs.replace(view, **changes)
        self.happen(workflow, f"workflow.{kind}")
        return self.workflows[workflow]

    async def cancel_all(
        self, workflows: Sequence[str], body: Mapping[str, Any] | None = None
    ) -> CancelledView:
        self._fail()
        self.batches.append(len(workflows))
        there = [each for each in workflows if each in self.workflows]
        return CancelledView(
            workflows=[await self.command(each, "cancel", body) for each in there],
            refused={
                each: f"there is no workflow with the id {each}" for each in workflows if each not in there
            },
        )

    async def cancel_task(
        self, workflow: str, stage: str, index: int, body: Mapping[str, Any] | None = None
    ) -> TaskView:
        view = await self.task(workflow, stage, index)
        self.commands.append((f"{workflow}/{stage}/{index}", "cancel_task", body))
        return msgspec.structs.replace(view, state="RELEASING", reason="Cancelled")

    async def check_workflow(self, workflow: str) -> None:
        await self.workflow(workflow)

    async def events(
        self, workflow: str | None, after: int, *, follow: bool = True
    ) -> AsyncIterator[Sequence[EventView]]:
        self.streams_open += 1
        after = len(self.history) if after < 0 else after
        try:
            while True:
                changed = self.changed
                ended = workflow is not None and self.workflows[workflow].state in ENDED
                self._fail()
                batch = [
                    event for event in self.history if event.id > after and workflow in (None, event.workflow)
                ][:3]
                if batch:
                    after = batch[-1].id
                    yield batch
                elif ended or not follow:
                    return
                else:
                    await changed.wait()
        finally:
            self.streams_open -= 1

    async def ended(self, workflow: str) -> None:
        self.streams_open += 1
        try:
            while True:
                changed = self.changed
                if self.workflows[workflow].state in ENDED:
                    return
                await changed.wait()
        finally:
            self.streams_open -= 1

    async def metrics(self) -> bytes:
        self._fail()
        return b"flowsched_leader 1.0\n"

    async def queues(self) -> list[QueueView]:
        self._fail()
        return [QueueView(name=name, weight=s.get("weight", 1)) for name, s in self.queue_settings.items()]

    async def put_queue(self, name: str, settings: Mapping[str, Any]) -> QueueView:
        self._fail()
        self.queue_settings.setdefault(name, {}).update(settings)
        kept = self.queue_settings[name]
        return QueueView(name=name, weight=kept.get("weight", 1), paused=kept.get("paused", False))

    async def delete_queue(self, name: str) -> QueueView:
        self._fail()
        if name not in self.queue_settings:
            raise NotFound(f"there is no queue {name!r}")
        return QueueView(name=name, weight=self.queue_settings.pop(name).get("weight", 1))

    async def nodes(self) -> list[NodeView]:
        self._fail()
        return [
            NodeView(
                name="node-0", ready=True, rack="r1", running=1, cache_bytes=1 << 30,
                allocatable={"cpu": 8000, "memory": 16 << 30}, used={"cpu": 2000, "memory": 4 << 30},
            )
        ]  # fmt: skip

    @property
    def draining(self) -> FakeService:
        return self

    async def drain(
        self, name: str, *, grace_ms: int | None, start: str | None, reason: str, author: str
    ) -> NodeView:
        self._fail()
        self.drained[name] = (grace_ms, start, reason, author)
        return await self._node(name)

    async def uncordon(self, name: str) -> NodeView:
        self._fail()
        self.drained.pop(name, None)
        return await self._node(name)

    async def _node(self, name: str) -> NodeView:
        (found,) = [view for view in await self.nodes() if view.name == name] or [None]
        if found is None:
            raise NotFound(f"there is no node {name}")
        if name in self.drained:
            _, _, reason, author = self.drained[name]
            drain = DrainView(from_at=datetime.fromtimestamp(1_700_000_000, UTC), reason=reason, by=author)
            return msgspec.structs.replace(found, ready=False, state="DRAINED", drain=drain)
        return found

    async def refused_nodes(self, pod: bytes) -> Mapping[str, str]:
        self._fail()
        self.pods.append(pod)
        return self.refused

    async def node_scores(self, pod: bytes, nodes: Sequence[str]) -> list[int]:
        self._fail()
        self.pods.append(pod)
        return [self.points.get(node, 0) for node in nodes]

    async def leader(self) -> str | None:
        return self.leads_at

    def live(self) -> tuple[bool, str]:
        return self.alive

    def ready(self) -> tuple[bool, str]:
        return self.prepared

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure
