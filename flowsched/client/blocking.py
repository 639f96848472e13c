"""`flowsched.SyncClient`: the client for notebooks and programs without an event loop. Its calls return when they are done.

An event loop runs in a thread of its own, so it works where another loop runs already (Jupyter).
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar

from flowsched.client.building import Workflow
from flowsched.client.calls import WAITS_AT, Client, program_line
from flowsched.client.session import CLOSED, START_S
from flowsched.errors import FlowschedError
from flowsched.workflow import html
from flowsched.workflow.views import (
    AttemptUseView,
    CacheView,
    CancelledView,
    EventView,
    ExplanationView,
    IdleReportView,
    NodeView,
    PlanSummary,
    PlanView,
    PluginView,
    ProfileView,
    QueueView,
    StageView,
    TaskView,
    TimelineView,
    UsageView,
    View,
    Views,
    WorkflowView,
)

T = TypeVar("T")
V = TypeVar("V", bound=View)
#: At most so long connections are closed for.
_CLOSE_S: Final = 5.0
#: A process that was forked has no thread of the client's.
_FORKED: Final = (
    "this client was made in another process, of which this one was forked: make a client in each process"
)
#: The class has a method called `list`.
Lines: TypeAlias = list[str]
Saved: TypeAlias = list[Path]
Stages: TypeAlias = list[StageView]
CacheFound: TypeAlias = list[CacheView]
Explanations: TypeAlias = list[ExplanationView]
Nodes: TypeAlias = list[NodeView]
Queues: TypeAlias = list[QueueView]
Plugins: TypeAlias = list[PluginView]


class Rows(Iterator[V]):
    """Views that come as they are asked for. A notebook shows the first of them as a table; they still come afterwards."""

    def __init__(self, source: Iterator[V]) -> None:
        self._source = source
        self._read: deque[V] = deque()  #: what was shown and has not been asked for

    def __next__(self) -> V:
        return self._read.popleft() if self._read else next(self._source)

    def __repr__(self) -> str:
        return "<views that come as they are asked for: list(…) reads all of them>"

    def _repr_html_(self) -> str:
        self._read.extend(islice(self._source, max(0, html.ROWS + 1 - len(self._read))))
        views = Views(islice(self._read, html.ROWS))
        more = f"<p>… and more than {html.ROWS}</p>" if len(self._read) > html.ROWS else ""
        return views._repr_html_() + more


@dataclass(frozen=True, slots=True)
class SyncRun:
    """One accepted workflow, as `Run`."""

    id: str
    created: bool  #: False: the same document had been accepted under the same key before
    client: SyncClient = field(repr=False, compare=False)

    def _repr_html_(self) -> str:
        """What a notebook shows: how it is now, with its stages."""
        view, stages = self.view(), self.stages()
        return html.fields(view, view.SHOWN) + html.table(stages, StageView.SHOWN)

    def view(self) -> WorkflowView:
        """How it is now."""
        return self.client.get(self.id)

    def wait(self, timeout: float | None = None, *, check: bool = False) -> WorkflowView:
        """Wait until it has ended; see `Client.wait`."""
        return self.client.wait(self.id, timeout, check=check)

    def stages(self) -> list[StageView]:
        """Its stages."""
        return self.client.stages(self.id)

    def events(self, after: int = 0, *, follow: bool = False) -> Iterator[EventView]:
        """What happened in it, and with `follow` what happens, until it has ended."""
        return self.client.events(self.id, after, follow=follow)

    def logs(
        self,
        stage: str,
        index: int = 0,
        *,
        stream: Literal["stdout", "stderr"] = "stdout",
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> str:
        """What one of its tasks wrote, as text; with `follow` when its attempt has ended."""
        return self.client.logs(
            self.id, stage, index, stream=stream, attempt=attempt, tail=tail, follow=follow
        )

    def explain(self, stage: str | None = None, index: int | None = None) -> list[ExplanationView]:
        """Why what does not run does not run."""
        return self.client.explain(self.id, stage, index)

    def document(self) -> bytes:
        """Its document as it was submitted."""
        return self.client.document(self.id)

    def cache(self) -> list[CacheView]:
        """The runs that its tasks took results from, and why the other tasks ran."""
        return self.client.cache(self.id)

    def tasks(self, *, stage: str | None = None, state: str | None = None) -> Rows[TaskView]:
        """Its tasks by stage and index, as `Client.tasks` gives them."""
        return self.client.tasks(self.id, stage=stage, state=state)

    def task(self, stage: str, index: int = 0) -> TaskView:
        """One of its tasks with its attempts and outputs."""
        return self.client.task(self.id, stage, index)

    def timelines(self) -> Iterator[TimelineView]:
        """When its tasks waited, staged, ran and ended, as columns."""
        return self.client.timelines(self.id)

    def attempts(self) -> Rows[AttemptUseView]:
        """All tries of its tasks, with what each asked for and used."""
        return self.client.attempts(self.id)

    def log_tail(
        self, stage: str, index: int = 0, lines: int = 10, *, stream: Literal["stdout", "stderr"] = "stderr"
    ) -> list[str]:
        """The last lines that one of its tasks wrote; none if it has not run."""
        return self.client.log_tail(self.id, stage, index, lines, stream=stream)

    def output(self, stage: str, index: int, name: str) -> bytes:
        """The bytes of an output; a folder is a tar file."""
        return self.client.output(self.id, stage, index, name)

    def download(self, stage: str, index: int, name: str, path: str | Path | Callable[[str], Path]) -> Path:
        """Save an output, a folder as a tar file; see `Client.download`."""
        return self.client.download(self.id, stage, index, name, path)

    def download_all(self, stage: str, folder: str | Path, *, name: str | None = None) -> list[Path]:
        """Save the outputs of a stage; see `Client.download_all`."""
        return self.client.download_all(self.id, stage, folder, name=name)

    def cancel(self, reason: str | None = None) -> WorkflowView:
        """Stop it."""
        return self.client.cancel(self.id, reason)

    def cancel_task(self, stage: str, index: int = 0, reason: str | None = None) -> TaskView:
        """Stop one task for good, as if it had failed; see `Client.cancel_task`."""
        return self.client.cancel_task(self.id, stage, index, reason)

    def pause(self, reason: str | None = None) -> WorkflowView:
        """Start nothing new; what runs goes on."""
        return self.client.pause(self.id, reason)

    def resume(self, reason: str | None = None) -> WorkflowView:
        """Take back a pause."""
        return self.client.resume(self.id, reason)

    def retry(self, reason: str | None = None) -> WorkflowView:
        """Try again what failed; see `Client.retry`."""
        return self.client.retry(self.id, reason)


class SyncClient:
    """Talks to one service. A context manager; without `with`, `close` ends its thread, or the program does.

    It has each method of `flowsched.Client`, which does the same and raises the same. What comes piece by piece there is an
    iterator here; logs are a text, and outputs are bytes. Ctrl-C ends a call.

    Args:
        url: Where the service listens; None = FLOWSCHED_SERVER, else the service on this user's data folder, else
            http://127.0.0.1:8470.
        token: Its token; None = FLOWSCHED_TOKEN, else the one of a service that this user runs on this machine.
        timeout: Seconds for one request.
        start_timeout: Seconds that a call waits while nothing listens or the service is not ready: it may be starting.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        *,
        start_timeout: float = START_S,
    ) -> None:
        self._closed = False
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="flowsched-client", daemon=True)
        self._thread.start()
        self._client = self._do(_made(url, token, timeout, start_timeout))
        self._end = weakref.finalize(self, _shut, self._loop, self._thread, self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the service listens."""
        return self._client.url

    def close(self) -> None:
        """Close all connections. A second time does nothing."""
        self._closed = True
        self._end()

    def submit(
        self,
        workflow: Workflow | Mapping[str, Any] | bytes | Path,
        *,
        idempotency_key: str | None = None,
        resume: str | None = None,
    ) -> SyncRun:
        """Hand in a workflow. When this returns it is durably accepted. See `Client.submit`."""
        run = self._do(self._client.submit(workflow, idempotency_key=idempotency_key, resume=resume))
        return SyncRun(run.id, run.created, self)

    def wait(self, workflow: str, timeout: float | None = None, *, check: bool = False) -> WorkflowView:
        """Wait until a workflow has ended; see `Client.wait`. Ctrl-C ends the wait, and the workflow goes on."""
        at = WAITS_AT.set(program_line())
        try:
            return self._do(self._client.wait(workflow, timeout, check=check))
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"{workflow} goes on: wait again, or cancel it")
            raise
        finally:
            WAITS_AT.reset(at)

    def find(self, name: str) -> SyncRun:
        """The workflow of a name (the newest), of an id, or of the beginning of an id; see `Client.find`."""
        return SyncRun(self._do(self._client.find(name)).id, False, self)

    def get(self, workflow: str) -> WorkflowView:
        """One workflow, by its id; `find` takes names."""
        return self._do(self._client.get(workflow))

    def document(self, workflow: str) -> bytes:
        """The document as it was submitted."""
        return self._do(self._client.document(workflow))

    def list(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        queue: str | None = None,
        label: str | None = None,
        run: str | None = None,
        ref: str | None = None,
        user: str | None = None,
        since: str | None = None,
        until: str | None = None,
        live: bool = False,
    ) -> Rows[WorkflowView]:
        """Live workflows, then those that have ended, each newest first; see `Client.list`."""
        found = self._client.list(
            state=state, name=name, queue=queue, label=label, run=run, ref=ref, user=user, since=since, until=until,
            live=live,
        )  # fmt: skip
        return Rows(self._each(found))

    def stages(self, workflow: str) -> Stages:
        """All stages of a workflow."""
        return self._do(self._client.stages(workflow))

    def cache(self, workflow: str) -> CacheFound:
        """The runs that its tasks took results from, and why the other tasks ran."""
        return self._do(self._client.cache(workflow))

    def tasks(self, workflow: str, *, stage: str | None = None, state: str | None = None) -> Rows[TaskView]:
        """Tasks by stage and index, with the outputs of those that succeeded, and without `attempts`; see `Client.tasks`."""
        return Rows(self._each(self._client.tasks(workflow, stage=stage, state=state)))

    def timelines(self, workflow: str) -> Iterator[TimelineView]:
        """When its tasks waited, staged, ran and ended, as columns, by stage and index."""
        return self._each(self._client.timelines(workflow))

    def attempts(self, workflow: str) -> Rows[AttemptUseView]:
        """All tries of its tasks, with what each asked for and used."""
        return Rows(self._each(self._client.attempts(workflow)))

    def task(self, workflow: str, stage: str, index: int = 0) -> TaskView:
        """One task with its attempts and outputs."""
        return self._do(self._client.task(workflow, stage, index))

    def events(self, workflow: str, after: int = 0, *, follow: bool = False) -> Iterator[EventView]:
        """What happened in a workflow after event `after`, and with `follow` what happens, until it has ended."""
        return self._each(self._client.events(workflow, after, follow=follow))

    def logs(
        self,
        workflow: str,
        stage: str,
        index: int = 0,
        *,
        stream: Literal["stdout", "stderr"] = "stdout",
        attempt: int | None = None,
        offset: int = 0,
        tail: int | None = None,
        follow: bool = False,
    ) -> str:
        """What a task wrote, as text; with `follow` when it has ended. See `Client.logs`."""
        pieces = self._each(
            self._client.logs(
                workflow,
                stage,
                index,
                stream=stream,
                attempt=attempt,
                offset=offset,
                tail=tail,
                follow=follow,
            )
        )
        return b"".join(pieces).decode("utf-8", "replace")

    def log_tail(
        self,
        workflow: str,
        stage: str,
        index: int = 0,
        lines: int = 10,
        *,
        stream: Literal["stdout", "stderr"] = "stderr",
    ) -> Lines:
        """The last lines that a task wrote; none if it has not run."""
        return self._do(self._client.log_tail(workflow, stage, index, lines, stream=stream))

    def output(self, workflow: str, stage: str, index: int, name: str) -> bytes:
        """The bytes of an output; a folder is a tar file."""
        return b"".join(self._each(self._client.output(workflow, stage, index, name)))

    def download(
        self, workflow: str, stage: str, index: int, name: str, path: str | Path | Callable[[str], Path]
    ) -> Path:
        """Save an output, a folder as a tar file; see `Client.download`."""
        return self._do(self._client.download(workflow, stage, index, name, path))

    def download_all(
        self, workflow: str, stage: str, folder: str | Path, *, name: str | None = None
    ) -> Saved:
        """Save the outputs of those tasks of a stage that succeeded; see `Client.download_all`."""
        return self._do(self._client.download_all(workflow, stage, folder, name=name))

    def explain(self, workflow: str, stage: str | None = None, index: int | None = None) -> Explanations:
        """Why what does not run does not run; of one task, also why it went to its node."""
        return self._do(self._client.explain(workflow, stage, index))

    def idle(self, since: str | None = None) -> IdleReportView:
        """Why what was idle in the last `since` (a span such as 8h; a day) was idle."""
        return self._do(self._client.idle(since))

    def cancel(self, workflow: str, reason: str | None = None) -> WorkflowView:
        """Stop a workflow."""
        return self._do(self._client.cancel(workflow, reason))

    def cancel_all(self, workflows: Sequence[str], reason: str | None = None) -> CancelledView:
        """Stop several workflows; see `Client.cancel_all`."""
        return self._do(self._client.cancel_all(workflows, reason))

    def cancel_task(self, workflow: str, stage: str, index: int = 0, reason: str | None = None) -> TaskView:
        """Stop one task for good, as if it had failed; see `Client.cancel_task`."""
        return self._do(self._client.cancel_task(workflow, stage, index, reason))

    def pause(self, workflow: str, reason: str | None = None) -> WorkflowView:
        """Start nothing new of a workflow; what runs goes on."""
        return self._do(self._client.pause(workflow, reason))

    def resume(self, workflow: str, reason: str | None = None) -> WorkflowView:
        """Take back a pause."""
        return self._do(self._client.resume(workflow, reason))

    def retry(self, workflow: str, reason: str | None = None) -> WorkflowView:
        """Try again what failed."""
        return self._do(self._client.retry(workflow, reason))

    def report_end(self, run: str, state: str, reason: str = "") -> WorkflowView:
        """Say how a run has ended, as the engine that keeps its DAG; see `Client.report_end`."""
        return self._do(self._client.report_end(run, state, reason))

    def nodes(self) -> Nodes:
        """All nodes."""
        return self._do(self._client.nodes())

    def drain(
        self,
        node: str,
        *,
        grace: str | None = None,
        start: datetime | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> NodeView:
        """Start nothing new on a node; see `Client.drain`."""
        return self._do(self._client.drain(node, grace=grace, start=start, reason=reason, by=by))

    def uncordon(self, node: str) -> NodeView:
        """Use a node again."""
        return self._do(self._client.uncordon(node))

    def usage(
        self,
        by: str = "queue",
        *,
        since: str | None = None,
        until: str | None = None,
        queue: str | None = None,
    ) -> UsageView:
        """Core-, GPU- and GiB-hours that workflows held; see `Client.usage`."""
        return self._do(self._client.usage(by, since=since, until=until, queue=queue))

    def queues(self) -> Queues:
        """All queues."""
        return self._do(self._client.queues())

    def put_queue(self, name: str, **settings: Any) -> QueueView:
        """Create or change a queue."""
        return self._do(self._client.put_queue(name, **settings))

    def delete_queue(self, name: str) -> QueueView:
        """Remove a queue."""
        return self._do(self._client.delete_queue(name))

    def profile(self) -> ProfileView:
        """The scheduler's profile in force, and what was refused since."""
        return self._do(self._client.profile())

    def put_profile(self, document: bytes | str | Mapping[str, Any]) -> ProfileView:
        """Replace the profile in force; see `Client.put_profile`."""
        return self._do(self._client.put_profile(document))

    def plugins(self) -> Plugins:
        """The scheduler's plugins that are installed."""
        return self._do(self._client.plugins())

    def snapshot(self) -> bytes:
        """The next scheduling cycle in one file, for `flowsched replay`."""
        return self._do(self._client.snapshot())

    def plan(
        self,
        source: str,
        *,
        imports: Mapping[str, str] | bytes = b"",
        inputs: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        contents: Mapping[str, str] | None = None,
        run: str = "",
    ) -> PlanView:
        """Plan a WDL workflow; see `Client.plan`."""
        return self._do(
            self._client.plan(source, imports=imports, inputs=inputs, sizes=sizes, contents=contents, run=run)
        )

    def plan_cromwell(self, url: str, root_workflow_id: str) -> PlanView:
        """Plan a run of a Cromwell server that the service may ask; see `Client.plan_cromwell`."""
        return self._do(self._client.plan_cromwell(url, root_workflow_id))

    def get_plan(self, plan: str) -> PlanView:
        """One plan, with ranks as they are now."""
        return self._do(self._client.get_plan(plan))

    def plans(self, *, run: str | None = None) -> Iterator[PlanSummary]:
        """Plans, newest first; of one run, if it is named."""
        return self._each(self._client.plans(run=run))

    def delete_plan(self, plan: str) -> None:
        """Remove a plan."""
        self._do(self._client.delete_plan(plan))

    def ready(self) -> tuple[bool, str]:
        """Whether the service is ready, and if not what is missing."""
        return self._do(self._client.ready())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the thread."""
        if self._closed:
            work.close()
            raise RuntimeError(CLOSED)
        if os.getpid() != self._process:
            work.close()
            raise RuntimeError(_FORKED)
        found = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return found.result()
        except FlowschedError as error:
            raise error.with_traceback(None) from None  # what led to it in the other thread says nothing more
        except KeyboardInterrupt as interrupt:
            found.cancel()
            raise interrupt.with_traceback(None) from None
        except BaseException:
            found.cancel()
            raise

    def _each(self, source: AsyncIterator[T]) -> Iterator[T]:
        """What an asynchronous iterator gives, one by one as it is asked for."""
        try:
            while True:
                found = self._do(_next(source))
                if not found:
                    return
                yield found[0]
        finally:
            close = getattr(source, "aclose", None)
            if close is not None and not self._closed:
                self._do(close())


def _shut(loop: asyncio.AbstractEventLoop, thread: threading.Thread, client: Client) -> None:
    """Close the connections, and end the thread: by `close`, when the client is collected, or when the program ends."""
    if thread is threading.current_thread():  # collected there: nothing may wait for this loop
        loop.create_task(client.close()).add_done_callback(lambda _: loop.stop())
        return
    if thread.is_alive():
        asyncio.run_coroutine_threadsafe(client.close(), loop).result(_CLOSE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
    loop.close()


async def _made(url: str | None, token: str | None, timeout: float, start_timeout: float) -> Client:
    return Client(url, token, timeout, start_timeout=start_timeout)


async def _next(source: AsyncIterator[T]) -> tuple[T, ...]:
    """The next value, or nothing at the end: a task may not end with StopAsyncIteration."""
    try:
        return (await anext(source),)
    except StopAsyncIteration:
        return ()
