"""`flowsched.Client`: one method per question that the API answers, and `Run`, an accepted workflow.

See `session` for retries, `streams` for streams.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import sys
import uuid
import warnings
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import chain, repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar
from urllib.parse import quote

from flowsched.client.building import Workflow
from flowsched.client.documents import not_json, read, resuming
from flowsched.client.naming import find
from flowsched.client.outputs import check_declared, declared_outputs, read_output, save_output
from flowsched.client.positions import with_lines
from flowsched.client.session import START_S, Session, decoded
from flowsched.client.streams import ended, followed_log, whole_log, workflow_events
from flowsched.errors import (
    CannotStart,
    FlowschedError,
    InvalidDocument,
    InvalidRequest,
    NotFound,
    RunFailed,
    no_such,
)
from flowsched.tokens import account_name
from flowsched.workflow.run.states import ReportedState, RunState, TaskState
from flowsched.workflow.views import (
    RETURN_CODE,
    AttemptPage,
    AttemptUseView,
    CacheView,
    CancelledView,
    EventView,
    ExplanationView,
    IdleReportView,
    NodeView,
    OutputView,
    PlanPage,
    PlanSummary,
    PlanView,
    PluginView,
    ProfileView,
    QueueView,
    StageView,
    SubmittedView,
    TaskPage,
    TaskView,
    TimelineView,
    UsageView,
    Views,
    WaitingView,
    WorkflowPage,
    WorkflowView,
)


@dataclass(frozen=True, slots=True)
class Run:
    """One accepted workflow. It has each method of the client that asks about one workflow or changes it."""

    id: str
    created: bool  #: False: the same document had been accepted under the same key before
    client: Client = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()  #: what the service adds to the document, such as the timeout of its queue

    def _repr_html_(self) -> str:
        """A notebook's display: its id. Its state has to be awaited: `await run.view()`."""
        return f"run <code>{escape(self.id)}</code>: <code>await run.view()</code> shows how it goes"

    async def view(self) -> WorkflowView:
        """How it is now."""
        return await self.client.get(self.id)

    async def wait(self, timeout: float | None = None, *, check: bool = False) -> WorkflowView:
        """Wait until it has ended; see `Client.wait`."""
        return await self.client.wait(self.id, timeout, check=check)

    async def stages(self) -> list[StageView]:
        """Its stages."""
        return await self.client.stages(self.id)

    def events(self, after: int = 0, *, follow: bool = True) -> AsyncGenerator[EventView, None]:
        """Its events; with `follow` also those to come, until it has ended."""
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
    ) -> AsyncGenerator[bytes, None]:
        """The log of one of its tasks, in pieces; see `Client.logs`."""
        return self.client.logs(
            self.id, stage, index, stream=stream, attempt=attempt, tail=tail, follow=follow
        )

    async def explain(self, stage: str | None = None, index: int | None = None) -> list[ExplanationView]:
        """Why what does not run does not run; of one task, also why it went to its node."""
        return await self.client.explain(self.id, stage, index)

    async def document(self) -> bytes:
        """Its document as it was submitted."""
        return await self.client.document(self.id)

    async def cache(self) -> list[CacheView]:
        """The runs that its tasks took results from, and why the other tasks ran."""
        return await self.client.cache(self.id)

    def tasks(
        self, *, stage: str | None = None, state: str | None = None, page: int = 1000
    ) -> AsyncGenerator[TaskView, None]:
        """Its tasks by stage and index, as `Client.tasks` gives them."""
        return self.client.tasks(self.id, stage=stage, state=state, page=page)

    async def task(self, stage: str, index: int = 0) -> TaskView:
        """One of its tasks with its attempts and outputs."""
        return await self.client.task(self.id, stage, index)

    def timelines(self, *, page: int = 10_000) -> AsyncGenerator[TimelineView, None]:
        """When its tasks waited, staged, ran and ended, as columns."""
        return self.client.timelines(self.id, page=page)

    def attempts(self, *, page: int = 1000) -> AsyncGenerator[AttemptUseView, None]:
        """All tries of its tasks, with what each asked for and used."""
        return self.client.attempts(self.id, page=page)

    async def log_tail(
        self, stage: str, index: int = 0, lines: int = 10, *, stream: Literal["stdout", "stderr"] = "stderr"
    ) -> list[str]:
        """The last lines that one of its tasks wrote; see `Client.log_tail`."""
        return await self.client.log_tail(self.id, stage, index, lines, stream=stream)

    def output(self, stage: str, index: int, name: str) -> AsyncGenerator[bytes, None]:
        """The bytes of an output, in pieces; see `Client.output`."""
        return self.client.output(self.id, stage, index, name)

    async def download(
        self, stage: str, index: int, name: str, path: str | Path | Callable[[str], Path]
    ) -> Path:
        """Save an output, a folder as a tar file; see `Client.download`."""
        return await self.client.download(self.id, stage, index, name, path)

    async def download_all(self, stage: str, folder: str | Path, *, name: str | None = None) -> list[Path]:
        """Save the outputs of a stage; see `Client.download_all`."""
        return await self.client.download_all(self.id, stage, folder, name=name)

    async def cancel(self, reason: str | None = None) -> WorkflowView:
        """Stop it: nothing of it starts any more."""
        return await self.client.cancel(self.id, reason)

    async def cancel_task(self, stage: str, index: int = 0, reason: str | None = None) -> TaskView:
        """Stop one task for good, as if it had failed; see `Client.cancel_task`."""
        return await self.client.cancel_task(self.id, stage, index, reason)

    async def pause(self, reason: str | None = None) -> WorkflowView:
        """Start nothing new; what runs goes on."""
        return await self.client.pause(self.id, reason)

    async def resume(self, reason: str | None = None) -> WorkflowView:
        """Take back a pause."""
        return await self.client.resume(self.id, reason)

    async def retry(self, reason: str | None = None) -> WorkflowView:
        """Try again what failed; see `Client.retry`."""
        return await self.client.retry(self.id, reason)


#: So many lines of a failed task's log stand in `RunFailed`.
_LINES: Final = 10
#: So many failed tasks are compared for the one that failed first.
_COMPARED: Final = 100
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


async def first_failed(
    client: Client, workflow: str, stage: str | None = None, *, most: int = 1
) -> list[TaskView]:
    """The tasks that failed first, by the time of their end: the cause comes before what it entailed.

    Where an engine failed its run though no task did, the first task that returned another code than 0. Of a run with more
    failed tasks than `_COMPARED` the first ones in the order of the document are compared.
    """
    found: list[TaskView] = []
    async with aclosing(client.tasks(workflow, stage=stage, state="FAILED", page=_COMPARED)) as failed:
        async for task in failed:
            found.append(task)
            if len(found) == _COMPARED:
                break
    if found:
        return sorted(found, key=lambda task: task.ended_at or _NEVER)[:most]
    view = await client.get(workflow)
    if view.state == RunState.FAILED and view.source and view.returned:
        for each in await client.explain(workflow, stage):
            if each.code == RETURN_CODE:
                return [await client.task(workflow, each.stage, each.shards[0])]
    return []


async def last_lines(client: Client, task: TaskView, workflow: str, lines: int) -> tuple[str, list[str]]:
    """The stream that a task wrote to, stderr before stdout, and the last lines of it; "" and none if it wrote nothing."""
    for stream in STREAMS:
        found = await client.log_tail(workflow, task.stage, task.index, lines, stream=stream)
        if found:
            return stream, found
    return "", []


async def _last_words(client: Client, workflow: str) -> str:
    """The last lines of the first failed task, and the call that gives all of them; empty if no task failed."""
    failed = await first_failed(client, workflow)
    if not failed:
        return ""
    task = failed[0]
    stream, lines = await last_lines(client, task, workflow, _LINES)
    if not lines:
        return f"\n{task.stage}[{task.index}] wrote nothing"
    call = f'logs("{task.stage}", {task.index}, stream="{stream}")'
    shown = "".join(f"\n  | {line}" for line in lines)
    return f"\n{task.stage}[{task.index}] wrote to {stream} (all of it: {call}):{shown}"


class Prospects:
    """Warns once of a workflow that cannot start."""

    def __init__(self) -> None:
        self._permanent = 0  # seen twice in a row: nodes may just be appearing

    def observe(self, view: WorkflowView) -> None:
        """Take note of how the workflow is now."""
        self._permanent = self._permanent + 1 if view.waiting is not None and view.waiting.permanent else 0
        if self._permanent == 2 and view.waiting is not None:
            capped = CAPS.get(view.waiting.code)
            where = f"under the {capped}" if capped else "on the nodes that there are"
            cure = f"raise the {capped}" if capped else "add nodes"
            warnings.warn(
                f"{view.name} ({view.id}) cannot start {where}: {_waits(view.waiting)}; it is waited for: cancel "
                f"it, or {cure}",
                CannotStart,
                stacklevel=_level_of_caller(),
            )


def _level_of_caller() -> int:
    """The `stacklevel` that names the program's line which waits; the client's own line, where a task of the event loop does."""
    frame, level = sys._getframe(1), 1
    while (above := frame.f_back) is not None and frame.f_globals.get("__name__", "").startswith(
        "flowsched."
    ):
        if above.f_globals.get("__name__", "").startswith("asyncio."):
            break
        frame, level = above, level + 1
    return level


# ---- the client ----

#: The streams that a task writes, the one for errors first.
STREAMS: Final[tuple[Literal["stderr", "stdout"], ...]] = ("stderr", "stdout")

#: `wait` asks so often while events come, and while none can be had; it first asks as often as while none can be had.
CHECK_S: Final = 30.0
POLL_S: Final = 1.0
FIRST_CHECKS: Final = 2
#: The permanent reasons for which more nodes are no cure (`scheduling.plan.ReasonCode`), and what would have to be raised.
CAPS: Final = {"LargerThanQueue": "cap of its queue", "LargerThanQuota": "quota of its namespace"}
#: So long it asks why a workflow has not ended in time.
WHY_S: Final = 5.0

#: The class has a method called `list`, so the builtin is named here.
Lines: TypeAlias = list[str]
Saved: TypeAlias = list[Path]
Stages: TypeAlias = list[StageView]
CacheFound: TypeAlias = list[CacheView]
Explanations: TypeAlias = list[ExplanationView]
Queues: TypeAlias = list[QueueView]
Nodes: TypeAlias = list[NodeView]
Plugins: TypeAlias = list[PluginView]

T = TypeVar("T")
Page = TypeVar("Page", WorkflowPage, TaskPage, AttemptPage, PlanPage, TimelineView)

#: Workflows that one request cancels: the leader carries out so many in some 100 ms.
CANCELLED_AT_ONCE: Final = 250
_WORKFLOWS: Final = "/api/v1/workflows"
_PLANS: Final = "/api/v1/plans"
_IDLE: Final = "/api/v1/explain/cluster"
_USAGE: Final = "/api/v1/usage"


class Client:
    """Talks to one service. An async context manager; all connections belong to it.

    Args:
        url: Where the service listens; None = FLOWSCHED_SERVER, else the service on this user's data folder, else
            http://127.0.0.1:8470.
        token: Its token; None = FLOWSCHED_TOKEN, else the one of a service that this user runs on this machine.
        timeout: Seconds for one request; streams have no end.
        slow: Called with whether nothing listens there when a request has no answer after `SLOW_S`; None = nothing is.
        start_timeout: Seconds that a call waits while nothing listens or the service is not ready: it may be starting.
        session: How the service is asked; None = over HTTP.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        slow: Callable[[bool], object] | None = None,
        start_timeout: float = START_S,
        session: Session | None = None,
    ) -> None:
        if session is None:
            from flowsched.client.http_session import (
                HttpSession,  # HTTP takes a fifth of a short `flowsched run`
            )

            session = HttpSession(url, token, timeout, slow, start_timeout)
        self._session = session

    @property
    def url(self) -> str:
        """Where the service listens."""
        return self._session.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def submit(
        self,
        workflow: Workflow | Mapping[str, Any] | bytes | Path,
        *,
        idempotency_key: str | None = None,
        resume: str | None = None,
    ) -> Run:
        """Hand in a workflow. When this returns it is durably accepted.

        An idempotency key is made up if none is given, so that a request that got no answer can be repeated
        without a second workflow. Give your own to be safe across restarts of your program.

        Args:
            workflow: Built in Python, JSON values, JSON text, or a file; the relative input URIs of a file are
                resolved against its folder.
            idempotency_key: 1 to 255 printable ASCII characters.
            resume: Id of an ended workflow: tasks that are the same as there are not run again.

        Raises:
            InvalidDocument: With every fault of the document; of a file, with their lines.
            Conflict: The key was used for another document.
            Unavailable: No answer in spite of retries.
        """
        raw = await _raw(workflow)
        if resume is not None:
            raw = resuming(raw, resume)
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        try:
            content, _ = await self._session.request("POST", _WORKFLOWS, body=raw, headers=headers)
        except InvalidDocument as error:
            if not isinstance(workflow, Path):
                raise
            written = await asyncio.to_thread(workflow.read_bytes)
            raise with_lines(error, str(workflow), written) from None
        view = decoded(content, SubmittedView)
        return Run(view.id, view.created, self, tuple(view.notes))

    async def find(self, name: str) -> Run:
        """The workflow of a name (the newest), of an id, or of the beginning of an id, as commands take it.

        All other methods take ids.

        Raises:
            NotFound: There is none; the message names the one that was probably meant.
            Conflict: Several ids begin so.
        """
        return Run((await find(self.list, name)).id, False, self)

    async def get(self, workflow: str) -> WorkflowView:
        """One workflow, by its id; `find` takes names."""
        return await self._get(_path(workflow), WorkflowView)

    async def document(self, workflow: str) -> bytes:
        """The document as it was submitted."""
        content, _ = await self._session.request("GET", f"{_path(workflow)}/document")
        return content

    async def list(
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
        page: int = 100,
    ) -> AsyncGenerator[WorkflowView, None]:
        """Live workflows, then those that have ended, each newest first. Pages are fetched as they are needed.

        `ref` is the beginning of an id, or a name. A workflow that ends meanwhile comes once, as it was when it lived.

        `since` and `until` (a span before now, "7d", or a date or time) bound when it was submitted; `live` leaves out what has
        ended. A run of another engine (Cromwell, say) is one workflow; with `run` the calls of that one are listed.
        """
        asked = _params(state=state, name=name, queue=queue, label=label, run=run, ref=ref, limit=page)
        asked |= _params(user=user, since=since, until=until, live="true" if live else None)
        lived: set[str] = set()  #: the service may repeat what ends between two pages
        async for found in self._pages(_WORKFLOWS, WorkflowPage, asked):
            for view in found.workflows:
                if view.id in lived:
                    continue
                if not is_terminal(view.state):
                    lived.add(view.id)
                yield view

    async def stages(self, workflow: str) -> Stages:
        """All stages of a workflow."""
        return Views(await self._get(f"{_path(workflow)}/stages", Stages))

    async def cache(self, workflow: str) -> CacheFound:
        """The runs that its tasks took results from, and why the other tasks ran."""
        return await self._get(f"{_path(workflow)}/cache", CacheFound)

    async def tasks(
        self, workflow: str, *, stage: str | None = None, state: str | None = None, page: int = 1000
    ) -> AsyncGenerator[TaskView, None]:
        """Tasks by stage and index, with the outputs of those that succeeded; pages are fetched as they are needed.

        Their `attempts` are empty here: `task` fills those of one task, and `attempts` gives those of all.
        """
        asked = _params(stage=stage, state=state, limit=page)
        async for found in self._pages(f"{_path(workflow)}/tasks", TaskPage, asked):
            for view in found.tasks:
                yield view

    async def timelines(self, workflow: str, *, page: int = 10_000) -> AsyncGenerator[TimelineView, None]:
        """When its tasks waited, staged, ran and ended, as columns, by stage and index; pages are fetched as they are needed."""
        async for found in self._pages(f"{_path(workflow)}/timeline", TimelineView, _params(limit=page)):
            yield found

    async def attempts(self, workflow: str, *, page: int = 1000) -> AsyncGenerator[AttemptUseView, None]:
        """All tries of its tasks, with what each asked for and used; pages are fetched as they are needed."""
        async for found in self._pages(f"{_path(workflow)}/attempts", AttemptPage, _params(limit=page)):
            for view in found.attempts:
                yield view

    async def task(self, workflow: str, stage: str, index: int = 0) -> TaskView:
        """One task with its attempts and outputs."""
        return await self._get(_task_path(workflow, stage, index), TaskView)

    async def wait(self, workflow: str, timeout: float | None = None, *, check: bool = False) -> WorkflowView:
        """Wait until a workflow has ended; of a run of another engine whose end nothing tells, until no task of it lives (ENGINE).

        The event stream tells when to look; where no stream can be had (a proxy holds it back), it is asked
        every second. A workflow that asks for what no node has is waited for, since nodes may come; the warning
        `flowsched.errors.CannotStart` says so, and a filter for it can make it an error.

        Args:
            workflow: Its id.
            timeout: Seconds; None = for ever.
            check: Raise if it did not succeed.

        Raises:
            TimeoutError: It has not ended in `timeout` seconds; the message has the first reason why tasks wait.
            RunFailed: `check` is set, and it ended otherwise than SUCCEEDED (or SKIPPED). The message has the last lines that
                the first failed task wrote.
            FlowschedError: There is no such workflow, or the service went away for good.
        """
        try:
            async with asyncio.timeout(timeout):
                view = await self._ended(workflow)
        except TimeoutError:
            why = await self._why_not_ended(workflow)
            raise TimeoutError(
                f"{workflow} has not ended after {timeout} s{why}; it goes on: wait again, or cancel it"
            ) from None
        if check and view.state not in (RunState.SUCCEEDED, RunState.SKIPPED):
            raise RunFailed(
                f"{view.name} ({view.id}) ended as {view.state}: {view.reason or 'no reason given'}"
                f"{await _last_words(self, workflow)}",
                run=view.id,
                state=view.state,
            )
        return view

    async def _why_not_ended(self, workflow: str) -> str:
        """How a workflow stands now, and the first reason why tasks of it wait; empty if the service does not say."""
        try:
            async with asyncio.timeout(WHY_S):
                view = await self.get(workflow)
        except (FlowschedError, TimeoutError):
            return ""
        return f": it is {view.state}" + (f", {_waits(view.waiting)}" if view.waiting else "")

    async def _ended(self, workflow: str) -> WorkflowView:
        view = await self.get(workflow)
        end = asyncio.create_task(ended(self._session, f"{_path(workflow)}/events"))
        pauses = chain((POLL_S,) * FIRST_CHECKS, repeat(CHECK_S))
        prospects = Prospects()
        try:
            while not is_terminal(view.state) and not (view.state == ReportedState.ENGINE and end.done()):
                if end.done():
                    await asyncio.sleep(POLL_S)
                else:
                    await asyncio.wait({end}, timeout=next(pauses))
                view = await self.get(workflow)
                prospects.observe(view)
            return view
        finally:
            end.cancel()
            await asyncio.gather(end, return_exceptions=True)

    async def events(
        self, workflow: str, after: int = 0, *, follow: bool = True
    ) -> AsyncGenerator[EventView, None]:
        """The events of a workflow after event `after`; with `follow` also those to come, until it has ended.

        Each event comes once, in order, however often the connection breaks. With `follow`, the warning
        `flowsched.errors.CannotStart` says of a workflow from which no events come that it asks for what no node has, as in `wait`.
        """
        prospects, pauses = Prospects(), chain((POLL_S,) * FIRST_CHECKS, repeat(CHECK_S))
        pause = next(pauses)
        path = f"{_path(workflow)}/events"
        async with aclosing(workflow_events(self._session, path, after, follow=follow)) as source:
            while True:
                coming = asyncio.ensure_future(anext(source, None))
                try:
                    while follow and not (await asyncio.wait({coming}, timeout=pause))[0]:
                        with suppress(FlowschedError):  # the stream says so when it gives up
                            prospects.observe(await self.get(workflow))
                        pause = next(pauses)
                    event = await coming
                finally:
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
                if event is None:
                    return
                yield event

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
    ) -> AsyncGenerator[bytes, None]:
        """The log of a task's last attempt, or of the named one, in pieces. `tail`: only so many of the last lines.

        With `follow` it goes on until the attempt that is named has ended. If none is named it begins with the attempt that
        runs or comes next, goes on with those that follow it, and ends with the task.
        """
        if follow and attempt is None:
            return self._attempts_to_come(workflow, stage, index, stream, offset, tail)
        path = f"{_task_path(workflow, stage, index)}/logs"
        read_log = followed_log if follow else whole_log
        return read_log(self._session, path, _params(stream=stream, attempt=attempt), offset, tail)

    async def _attempts_to_come(
        self, workflow: str, stage: str, index: int, stream: str, offset: int, tail: int | None
    ) -> AsyncGenerator[bytes, None]:
        path = f"{_task_path(workflow, stage, index)}/logs"
        after: int | None = None  # the attempts up to this one have been read, or had ended before
        while True:
            task = await self.task(workflow, stage, index)
            over = is_terminal(task.state)
            if after is None:
                last = task.attempts[-1] if task.attempts else None
                after = -1 if last is None else last.attempt - (over or last.ended_at is None)
            coming = [each.attempt for each in task.attempts if each.attempt > after]
            for attempt in coming:
                params = _params(stream=stream, attempt=attempt)
                async for chunk in followed_log(self._session, path, params, offset, tail):
                    yield chunk
                after, offset, tail = attempt, 0, None
            if not coming:
                if over:
                    return
                await asyncio.sleep(POLL_S)

    async def log_tail(
        self,
        workflow: str,
        stage: str,
        index: int = 0,
        lines: int = 10,
        *,
        stream: Literal["stdout", "stderr"] = "stderr",
    ) -> Lines:
        """The last lines that a task wrote, of the last 64 KiB; none if it has not run."""
        tail = b""
        try:
            async for chunk in self.logs(workflow, stage, index, stream=stream, tail=lines):
                tail = (tail + chunk)[-65536:]
        except NotFound:
            return []
        return tail.decode("utf-8", "replace").rstrip().splitlines()[-lines:]

    def output(self, workflow: str, stage: str, index: int, name: str) -> AsyncGenerator[bytes, None]:
        """The bytes of an output, in pieces; a folder comes as a tar stream.

        Raises:
            NotFound: It was not written.
            Conflict: It was, and no node has it any more.
        """
        return read_output(self._session, _output_path(workflow, stage, index, name))

    async def download(
        self, workflow: str, stage: str, index: int, name: str, path: str | Path | Callable[[str], Path]
    ) -> Path:
        """Save an output; the file is there wholly or not at all. Returns where it is.

        An output that is a folder becomes one tar file, which `tarfile` unpacks.

        Args:
            workflow: Its id.
            stage: Of the task.
            index: Of the task.
            name: Of the output.
            path: The file; a folder, which is there or ends in "/" and gets a file of the task's own name; or what makes a path
                of that name. A file that is there is replaced: all shards give theirs the same name, and `download_all` keeps
                them apart.
        """
        return await save_output(self._session, _output_path(workflow, stage, index, name), path)

    async def download_all(
        self, workflow: str, stage: str, folder: str | Path, *, name: str | None = None
    ) -> Saved:
        """Save the outputs of those tasks of a stage that succeeded, as `flowsched get` does. Returns where they are.

        Args:
            workflow: Its id.
            stage: Of the tasks.
            folder: The files go there; of a stage with several shards into folders in it that have the shards' numbers.
            name: Of the output; None = all.

        Raises:
            NotFound: There is no such stage, or it declares no such output.
            Conflict: An output was written, and no node has it any more.
        """
        stages = {each.name: each for each in await self.stages(workflow)}
        if stage not in stages:
            raise NotFound(f"workflow {workflow}: {no_such('stage', stage, stages)}")
        if name is not None:
            check_declared(
                declared_outputs(await self.document(workflow)), stage, name, f"workflow {workflow}"
            )
        names = None if name is None else {name}
        return [path async for path, _ in save_outputs(self, workflow, stages[stage], names, Path(folder))]

    async def explain(
        self, workflow: str, stage: str | None = None, index: int | None = None
    ) -> Explanations:
        """Why what does not run does not run; of one task, also why it went to its node (code `Placed`).

        The costs are those of the last try, in ms; `task(...).attempts` has them of every try (`AttemptView.choice`).
        """
        if stage is None or index is None:
            return Views(await self._get(f"{_path(workflow)}/explain", Explanations, _params(stage=stage)))
        return Views(await self._get(f"{_task_path(workflow, stage, index)}/explain", Explanations))

    async def idle(self) -> IdleReportView:
        """Why what is idle now is idle."""
        return await self._get(_IDLE, IdleReportView)

    async def usage(
        self,
        by: str = "queue",
        *,
        since: str | None = None,
        until: str | None = None,
        queue: str | None = None,
    ) -> UsageView:
        """Core-, GPU- and GiB-hours that workflows held.

        Args:
            by: "queue", "user", or "label:KEY": a row for each.
            since: Workflows that ended from then on, and those that live: a span before now ("7d"), or a time; None = all.
            until: Workflows that ended before then, likewise; a date alone includes its day. None = those that live too.
            queue: Of this queue alone.
        """
        return await self._get(_USAGE, UsageView, _params(by=by, since=since, until=until, queue=queue))

    async def cancel(self, workflow: str, reason: str | None = None) -> WorkflowView:
        """Stop a workflow: when this returns, nothing of it starts any more."""
        return await self._command(workflow, "cancel", reason)

    async def cancel_all(self, workflows: Sequence[str], reason: str | None = None) -> CancelledView:
        """Stop several workflows: one request, and one transaction, for every 250 of them.

        Workflows that cannot be cancelled raise nothing: the answer's `refused` says why not, by id.
        """
        found = CancelledView(workflows=[])
        for start in range(0, len(workflows), CANCELLED_AT_ONCE):
            some: dict[str, Any] = {"workflows": list(workflows[start : start + CANCELLED_AT_ONCE])}
            body = some | ({"reason": reason} if reason else {})
            part = await self._send("POST", "/api/v1/cancel", CancelledView, body)
            found.workflows += part.workflows
            found.refused |= part.refused
        return found

    async def cancel_task(
        self, workflow: str, stage: str, index: int = 0, reason: str | None = None
    ) -> TaskView:
        """Stop one task for good, as if it had failed: the policies of its stage say what follows.

        Raises:
            Conflict: It has ended, or waits for other stages.
        """
        path = f"{_task_path(workflow, stage, index)}/cancel"
        return await self._send("POST", path, TaskView, {"reason": reason} if reason else None)

    async def pause(self, workflow: str, reason: str | None = None) -> WorkflowView:
        """Start nothing new; what runs goes on."""
        return await self._command(workflow, "pause", reason)

    async def resume(self, workflow: str, reason: str | None = None) -> WorkflowView:
        """Take back a pause."""
        return await self._command(workflow, "resume", reason)

    async def retry(self, workflow: str, reason: str | None = None) -> WorkflowView:
        """Try again what failed.

        Raises:
            Conflict: Nothing failed.
        """
        return await self._command(workflow, "retry", reason)

    async def queues(self) -> Queues:
        """All queues."""
        return Views(await self._get("/api/v1/queues", Queues))

    async def put_queue(self, name: str, **settings: Any) -> QueueView:
        """Create or change a queue; the rest stays: `weight, parent, priority, paused, reclaimable, order, cap, guarantee`.

        A queue of higher priority also stops tasks of lower ones to get their room: docs/preemption.md. `cap` and `guarantee`
        map resources to amounts; a resource that is not named keeps its amount, and None takes it away.
        """
        return await self._send("PUT", f"/api/v1/queues/{quote(name, safe='')}", QueueView, settings)

    async def delete_queue(self, name: str) -> QueueView:
        """Remove a queue; returns what it was.

        Raises:
            NotFound: There is no such queue.
            Conflict: It has workflows that have not ended, or queues below it.
        """
        return await self._send("DELETE", f"/api/v1/queues/{quote(name, safe='')}", QueueView, again=False)

    async def nodes(self) -> Nodes:
        """All nodes."""
        return Views(await self._get("/api/v1/nodes", Nodes))

    async def drain(
        self,
        node: str,
        *,
        grace: str | None = None,
        start: datetime | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> NodeView:
        """Start nothing new on a node; what runs there goes on to its end.

        Args:
            node: Its name.
            grace: Pods that have not ended so long after the start ("5m", "0s") are taken away, and run elsewhere.
            start: A later moment, for a maintenance: before it, only tasks start there that will have ended by then.
            reason: Why; `explain` and `nodes` show it.
            by: The author, shown beside it. Not given: this user of this machine.
        """
        settings = {"grace": grace, "reason": reason, "by": account_name(os.geteuid()) if by is None else by}
        settings |= {"start": start.isoformat()} if start else {}
        return await self._send("POST", f"/api/v1/nodes/{quote(node, safe='')}/drain", NodeView, settings)

    async def uncordon(self, node: str) -> NodeView:
        """Use a node again."""
        return await self._send("POST", f"/api/v1/nodes/{quote(node, safe='')}/uncordon", NodeView)

    async def profile(self) -> ProfileView:
        """The scheduler's profile in force, and what was refused since."""
        return await self._get("/api/v1/profile", ProfileView)

    async def put_profile(self, document: bytes | str | Mapping[str, Any]) -> ProfileView:
        """Replace the profile in force.

        Args:
            document: YAML or JSON text, or its values.

        Raises:
            InvalidDocument: With every fault; the old profile stays.
        """
        if isinstance(document, Mapping):
            document = json.dumps(document)
        body = document.encode() if isinstance(document, str) else document
        content, _ = await self._session.request("PUT", "/api/v1/profile", body=body)
        return decoded(content, ProfileView)

    async def plugins(self) -> Plugins:
        """The scheduler's plugins that are installed."""
        return await self._get("/api/v1/plugins", Plugins)

    async def snapshot(self) -> bytes:
        """The next scheduling cycle in one file, for `flowsched replay`."""
        return (await self._session.request("GET", "/api/v1/snapshot"))[0]

    async def plan(
        self,
        source: str,
        *,
        imports: Mapping[str, str] | bytes = b"",
        inputs: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        contents: Mapping[str, str] | None = None,
        run: str = "",
    ) -> PlanView:
        """Plan a WDL workflow: what will run, in which order, how wide, and on what, as far as that is known. The plan is kept.

        Args:
            source: The WDL.
            imports: Its imports: sources by name, or a zip file.
            inputs: As Cromwell takes them; None if they are not known.
            sizes: Bytes of files, by the URI or path in the inputs.
            contents: Texts of files, likewise: lists that the workflow reads.
            run: The run that it is the plan of: its calls are ordered by it.

        Raises:
            InvalidDocument: With file, line and column of each fault.
        """
        packed = base64.b64encode(imports).decode() if isinstance(imports, bytes) else dict(imports)
        files = {"sizes": dict(sizes or {}), "contents": dict(contents or {})}
        body = {"source": source, "imports": packed, "inputs": inputs, "run": run} | files
        return await self._send("POST", _PLANS, PlanView, body)

    async def plan_cromwell(self, url: str, root_workflow_id: str) -> PlanView:
        """Plan a run of a Cromwell server that the service may ask. The plan is kept.

        Raises:
            Forbidden: The service may not ask this server.
        """
        body = {"cromwell": {"url": url, "root_workflow_id": root_workflow_id}}
        return await self._send("POST", _PLANS, PlanView, body)

    async def get_plan(self, plan: str) -> PlanView:
        """One plan, with ranks as they are now."""
        return await self._get(f"{_PLANS}/{quote(plan, safe='')}", PlanView)

    async def plans(self, *, run: str | None = None, page: int = 100) -> AsyncGenerator[PlanSummary, None]:
        """Plans, newest first; of one run, if it is named. Pages are fetched as they are needed."""
        async for found in self._pages(_PLANS, PlanPage, _params(run=run, limit=page)):
            for view in found.plans:
                yield view

    async def delete_plan(self, plan: str) -> None:
        """Remove a plan."""
        await self._session.request("DELETE", f"{_PLANS}/{quote(plan, safe='')}", again=False)

    async def ready(self) -> tuple[bool, str]:
        """Whether the service is ready, and if not what is missing.

        Raises:
            Unavailable: No server answers.
        """
        status, text = await self._session.probe("/readyz")
        return status == 200, text.strip()

    async def report_end(self, run: str, state: str, reason: str = "") -> WorkflowView:
        """Say how a run has ended, as the engine that keeps its DAG: its word counts more than what the tasks tell.

        Args:
            run: Its id, as `call.run` of its calls.
            state: SUCCEEDED, FAILED or CANCELLED.
            reason: Why.
        """
        body = {"state": state, "reason": reason[:1000]}
        return await self._send("POST", f"{_path(run)}/ended", WorkflowView, body)

    async def _command(self, workflow: str, kind: str, reason: str | None) -> WorkflowView:
        body = {"reason": reason} if reason else None
        return await self._send(
            "POST", f"{_path(workflow)}/{kind}", WorkflowView, body, again=kind != "retry"
        )

    async def _get(self, path: str, kind: type[T], params: Mapping[str, str] | None = None) -> T:
        content, _ = await self._session.request("GET", path, params=params)
        return decoded(content, kind)

    async def _pages(
        self, path: str, kind: type[Page], asked: Mapping[str, str]
    ) -> AsyncGenerator[Page, None]:
        """The pages of a list, each fetched when it is asked for."""
        token: str | None = ""
        while token is not None:
            found = await self._get(path, kind, {**asked, **({"page_token": token} if token else {})})
            yield found
            token = found.next_page_token

    async def _send(
        self, method: str, path: str, kind: type[T], fields: object = None, *, again: bool = True
    ) -> T:
        """Ask for a change. `again`: the request may reach the service twice."""
        body = None if fields is None else json.dumps(fields).encode()
        content, _ = await self._session.request(method, path, body=body, again=again)
        return decoded(content, kind)


async def tasks_with_outputs(
    client: Client, workflow: str, stage: str, index: int | None
) -> AsyncGenerator[TaskView, None]:
    """One task of a stage, or all that have succeeded."""
    if index is not None:
        yield await client.task(workflow, stage, index)
        return
    async for task in client.tasks(workflow, stage=stage, state=TaskState.SUCCEEDED.name):
        yield task


async def save_outputs(
    client: Client,
    workflow: str,
    stage: StageView,
    names: Collection[str] | None,
    folder: Path,
    index: int | None = None,
) -> AsyncGenerator[tuple[Path, OutputView], None]:
    """Save outputs of a stage one after the other, and say where each is.

    Args:
        client: Of the service.
        workflow: Its id.
        stage: Of the tasks.
        names: Of the outputs; None = all.
        folder: For the files of the stage, or of the one task.
        index: Of one task; None = all that have succeeded, each shard of several in a folder of its own (`_folders`).
    """
    taken: set[Path] = set()
    folders = await _folders(client, workflow, stage) if stage.width > 1 and index is None else None

    async for task in tasks_with_outputs(client, workflow, stage.name, index):
        place = folder if folders is None else folder / folders.get(task.shard, str(task.shard))
        for output in task.outputs:
            if names is not None and output.name not in names:
                continue

            def choose(file: str, place: Path = place, name: str = output.name) -> Path:
                path = place / file
                return place / name / file if path in taken else path

            path = await client.download(workflow, stage.name, task.index, output.name, choose)
            taken.add(path)
            yield path, output


#: Items that can be names of folders.
_FOLDER_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@,-]{0,199}")


async def _folders(client: Client, workflow: str, stage: StageView) -> dict[int, str]:
    """By shard, its item as a folder name; empty where not every item is one, or two differ at most in case: numbers name them."""
    items = {task.shard: task.item or "" async for task in client.tasks(workflow, stage=stage.name)}
    apart = len({item.casefold() for item in items.values()}) == len(items)
    return items if apart and all(map(_FOLDER_NAME.fullmatch, items.values())) else {}


def is_terminal(state: str) -> bool:
    """Whether nothing will happen any more. A state that this version does not know is not the end."""
    return state in RunState.__members__ and RunState(state).terminal


def _waits(waiting: WaitingView) -> str:
    return f"{waiting.stage} waits: {waiting.message} ({waiting.code})"


async def _raw(workflow: object) -> bytes:
    if isinstance(workflow, Path):
        return await asyncio.to_thread(read, workflow)
    if isinstance(workflow, bytes):
        return workflow
    if isinstance(workflow, (Workflow, Mapping)):
        document = workflow.to_document() if isinstance(workflow, Workflow) else dict(workflow)
        try:
            return json.dumps(document).encode()
        except TypeError:
            raise InvalidRequest("; ".join(not_json(document))) from None
    cure = f"; a file is Path({workflow!r}), JSON text is bytes" if isinstance(workflow, str) else ""
    raise InvalidRequest(f"cannot submit {workflow!r}, expected a Workflow, a Path, bytes or a mapping{cure}")


def _path(workflow: str) -> str:
    if not isinstance(workflow, str):
        raise InvalidRequest(
            f"found {type(workflow).__name__} as the id of a workflow, expected a text: write run.id, or find(NAME).id"
        )
    return f"{_WORKFLOWS}/{quote(workflow, safe='')}"


def _task_path(workflow: str, stage: str, index: int) -> str:
    return f"{_path(workflow)}/tasks/{quote(stage, safe='')}/{index}"


def _output_path(workflow: str, stage: str, index: int, name: str) -> str:
    return f"{_task_path(workflow, stage, index)}/outputs/{quote(name, safe='')}"


def _params(**values: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}
