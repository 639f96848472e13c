"""Runs of engines that keep the DAG themselves (Cromwell, Snakemake, miniwdl), as the workflows they are to people.

Each call of such a run is a workflow of one stage. Here they are put together: a run is listed, shown, explained and cancelled like
any workflow; its stages are the calls, its tasks what `run_tasks` says, and a later attempt takes the place of an earlier one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from flowsched.control import views as answers
from flowsched.control.service import Service, refusal_of
from flowsched.control.timeline import Columns
from flowsched.control.views import DAY, idle_report
from flowsched.engine.delta import TaskWrite
from flowsched.engine.explain import first_reason
from flowsched.engine.idle_book import HOUR_MS
from flowsched.engine.recovery import untouched_state
from flowsched.engine.transaction import task_row
from flowsched.errors import Conflict, InvalidRequest, NotFound
from flowsched.store.database import Database
from flowsched.store.rows import WorkflowRow
from flowsched.store.runs import CallRow, Failure, RunRow, Tally
from flowsched.store.workflows import Which, Workflows
from flowsched.workflow.returned import added
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.run.states import ReportedState, RunState, TaskState, reported_state
from flowsched.workflow.run_tasks import item_of, numbered, shard_path
from flowsched.workflow.views import (
    RETURN_CODE,
    CacheView,
    CancelledView,
    EventView,
    ExplanationView,
    IdleReportView,
    StageView,
    TaskPage,
    TaskView,
    TimelineView,
    WaitingView,
    WorkflowView,
)

#: A run is asked through so many of its live calls for the first that waits.
_ASKED: Final = 50
#: Lists have a run in ENGINE among those that have ended once it has had no call for so long.
_RESTS_MS: Final = 86_400_000
#: So many tasks are named in one explanation.
_NAMED: Final = 10
#: In place of a stage, where an explanation is about a run as a whole.
_ALL: Final = "all calls"
#: How a call shows before the leader has looked at it.
_STATES: Final = {
    "SUCCEEDED": "SUCCEEDED",
    "FAILED": "FAILED",
    "CANCELLED": "CANCELLED",
    "SKIPPED": "SKIPPED",
}


#: What a workflow of one task says of it.
#: The name of the stage in the reason of a call's workflow.
_STAGE_BEFORE: Final = re.compile(r"^[^:]+: (?=task 0\b)")
_TASK: Final = re.compile(r"\btask 0\b")


class RunTask(NamedTuple):
    """A task of a run, with its attempts: the first one first."""

    node: str
    number: int  #: its index in the node
    attempts: Sequence[CallRow]

    @property
    def last(self) -> CallRow:
        """The attempt that counts."""
        return self.attempts[-1]

    @property
    def path(self) -> str:
        """Its shards, "5.11", in scatters inside each other; else ""."""
        return shard_path(self.last.task, self.last.shard, self.number)

    @property
    def name(self) -> str:
        """As sentences name it."""
        return self.path or str(self.number)

    @property
    def item(self) -> str | None:
        """What tells it apart beside its number."""
        return item_of(self.last.task, self.last.shard, self.number)


class RunService(Service):
    """The service, where a run of another engine is one workflow."""

    def __init__(self, database: Database, *arguments: Any, **named: Any) -> None:
        super().__init__(database, *arguments, **named)
        self._workflows = Workflows(database)

    # ------------------------------------------------------------------------------------------ workflows

    async def _listed(self, which: Which, limit: int) -> tuple[list[tuple[int, WorkflowView]], int | None]:
        """Of workflows and runs together; with `which.run` the calls of that one."""
        if which.run is not None:
            return await super()._listed(which, limit)
        which = which._replace(run="")
        key, value = which.labels[0] if which.labels else ("", "")
        merged = await self._runs.page(which, limit, self._clock() - _RESTS_MS)
        chosen = [row for row in merged if isinstance(row, RunRow) and _labelled(row, key, value)]
        views = {view.id: view for view in await self._run_views(chosen)} if chosen else {}
        alone = await self.workflow_views([row for row in merged if isinstance(row, WorkflowRow)])
        views |= {view.id: view for view in alone}
        result = [(row.seq, views[row.id]) for row in merged if row.id in views]
        return result, merged[-1].seq if len(merged) == limit else None

    async def _run_views(self, rows: Sequence[RunRow]) -> list[WorkflowView]:
        names = [row.id for row in rows]
        nodes = await self._runs.nodes(names)
        tallies: dict[str, list[Tally]] = {}
        for tally in await self._runs.tallies(names):
            tallies.setdefault(tally.run, []).append(tally)
        totals: dict[str, list[Mapping[str, int]]] = {}
        for run, each in await self._runs.returned(names):
            totals.setdefault(run, []).append(each)
        live = self._live_calls(names)
        views = []
        for row in rows:
            returned = added(totals.get(row.id, ()))
            view = _run_view(row, tallies.get(row.id, []), nodes.get(row.id, 0), returned)
            views.append(self._with_live(view, live.get(row.id, [])))
        failed = {view.id: view for view in views if view.state == ReportedState.FAILED}
        for first in await self._runs.first_failures(list(failed)):
            failed[first.run].reason = _first_failure(first, failed[first.run].reason)
        return views

    def _live_calls(self, runs: Sequence[str]) -> dict[str, list[WorkflowRun]]:
        """The calls of these runs that live in memory, by run."""
        state, found = self._state(), dict[str, list[WorkflowRun]]()
        if state is not None and runs:
            for call in state.work.runs.values():
                named = call.spec.call
                if named is not None and named.run in runs and not call.state.terminal:
                    found.setdefault(named.run, []).append(call)
        return found

    def _with_live(self, view: WorkflowView, calls: Sequence[WorkflowRun]) -> WorkflowView:
        """A run as memory knows it: how far its calls have come, and the first that waits."""
        state, now = self._state(), self._clock()
        if state is None or not calls:
            return view
        ended = {name: count for name, count in view.counts.items() if name in _STATES}
        view.counts = _added([ended, *(call.totals() for call in calls)])
        if view.state == ReportedState.ENGINE:
            view.reason, view.ended_at = "", None
        view.state = reported_state(ReportedState(view.state).stored, view.counts)
        told = (first_reason(state, call, now) for call in calls[:_ASKED])
        waits = [(call, each) for call, each in zip(calls, told, strict=False) if each is not None]
        if waits and (view.state != ReportedState.RUNNING or any(each.permanent for _, each in waits)):
            call, first = next((each for each in waits if each[1].permanent), waits[0])
            view.waiting = answers.waiting_view(first)
            if view.waiting is not None and call.spec.call is not None:
                view.waiting.stage = call.spec.call.node or view.waiting.stage
        return view

    async def _find(self, run: str) -> RunRow:
        row = await self._runs.find(run)
        if row is None:
            raise NotFound(f"there is no workflow with the id {run}")
        return row

    async def workflow(self, workflow: str) -> WorkflowView:
        """One workflow or run."""
        try:
            return await super().workflow(workflow)
        except NotFound:
            row = await self._find(workflow)
        view = (await self._run_views([row]))[0]
        view.counts = _added(self._lively(task.last) for task in run_tasks(await self._runs.calls(workflow)))
        return view

    async def check_workflow(self, workflow: str) -> None:
        """Refuse an id of no workflow or run; of a workflow that lives, memory knows."""
        if not self._lives(workflow) and not await self._workflows.existing([workflow]):
            await self._find(workflow)

    def _lives(self, workflow: str) -> bool:
        """Whether memory shows that this is a workflow that has not ended; False says nothing."""
        return self._run(workflow) is not None or self._history.lives(workflow)

    async def document(self, workflow: str) -> bytes:
        """The document as it was submitted; a run has none."""
        try:
            return await super().document(workflow)
        except NotFound:
            row = await self._find(workflow)
        raise NotFound(
            f"{workflow} is a run of {row.source or 'another engine'}, which keeps its document; each call of it has one"
        )

    async def stages(self, workflow: str) -> list[StageView]:
        """All its stages; of a run, its calls in the order in which they came."""
        try:
            return await super().stages(workflow)
        except NotFound:
            await self._find(workflow)
        found: dict[str, list[RunTask]] = {}
        for task in run_tasks(await self._runs.calls(workflow)):
            found.setdefault(task.node, []).append(task)
        return [self._stage_view(number, *each) for number, each in enumerate(found.items())]

    def _stage_view(self, number: int, node: str, tasks: Sequence[RunTask]) -> StageView:
        last, tries = [task.last for task in tasks], [call for task in tasks for call in task.attempts]
        totals = [call.totals for call in tries]
        ends = [call.ended_ms for call in last if call.ended_ms is not None]
        starts = [call.started_ms for call in tries if call.started_ms is not None]
        counts = _added(self._lively(call) for call in last)
        stored = _state({call.state for call in last})
        if stored in ("CANCELLING", "PAUSED"):
            stored = "RUNNING"  # as in a workflow of one's own, of which only the whole is told so
        state = reported_state(RunState(stored), counts)
        reasons = (
            _of_task(each.last.reason, each)
            for each in tasks
            if each.last.reason and each.last.state == stored
        )
        return StageView(
            name=node,
            number=number,
            state=state,
            reason=next(reasons, ""),
            waiting=self._call_waits(node, [call.workflow for call in last]),
            width=len(last),
            members=1,
            needs=list(dict.fromkeys(parent for call in tries for parent in call.after)),
            counts=counts,
            returned=added(call.totals for call in last),
            started_at=answers.moment(min(starts, default=None)),
            ended_at=answers.moment(max(ends, default=None)) if len(ends) == len(last) else None,
            queued_seconds=sum(each.get("queued_ms", 0) for each in totals) / 1000,
            staging_seconds=sum(each.get("staging_ms", 0) for each in totals) / 1000,
            running_seconds=sum(each.get("running_ms", 0) for each in totals) / 1000,
            bytes_local=sum(each.get("bytes_local", 0) for each in totals),
            bytes_moved=sum(each.get("bytes_moved", 0) for each in totals),
            core_hours=sum(each.get("core_ms", 0) for each in totals) / HOUR_MS,
            gpu_hours=sum(each.get("gpu_ms", 0) for each in totals) / HOUR_MS,
            memory_gib_hours=sum(each.get("memory_gib_ms", 0) for each in totals) / HOUR_MS,
        )

    def _call_waits(self, node: str, calls: Sequence[str]) -> WaitingView | None:
        """The first thing that keeps a call's shards from running."""
        state, now = self._state(), self._clock()
        for ident in calls[:_ASKED] if state is not None else ():
            run = self._run(ident)
            told = None if run is None or state is None else first_reason(state, run, now)
            waiting = answers.waiting_view(told)
            if waiting is not None:
                waiting.stage = node
                return waiting
        return None

    def _lively(self, call: CallRow) -> Mapping[str, int]:
        """Tasks by state, from memory while the call lives here."""
        run = self._run(call.workflow)
        return dict(run.totals()) if run is not None else call.counts

    async def command(self, workflow: str, kind: str, body: Mapping[str, Any] | None = None) -> WorkflowView:
        """`cancel`, `pause` and `resume` of a run are those of its calls; what to try again, its engine decides."""
        try:
            return await super().command(workflow, kind, body)
        except NotFound:
            row = await self._find(workflow)
        if kind == "retry":
            engine = row.source or "another engine"
            raise Conflict(
                f"{workflow} is a run of {engine}, which decides itself what is tried again: run it again with {engine}. "
                "miniwdl and Cromwell take what succeeded from their call caches (docs/wdl.md, docs/cromwell.md)"
            )
        rows = await self._reads.some([each.workflow for each in await self._runs.calls(workflow)])
        live = [row for row in rows.values() if not (RunState(row.state).terminal or refusal_of(row, kind))]
        await self._command_all(live, kind, body or {})
        return await self.workflow(workflow)

    async def cancel_all(
        self, workflows: Sequence[str], body: Mapping[str, Any] | None = None
    ) -> CancelledView:
        """Cancel workflows, and runs with their calls."""
        found = await super().cancel_all(workflows, body)
        for run in list(found.refused):
            if await self._runs.find(run) is not None:
                found.workflows.append(await self.command(run, "cancel", body))
                del found.refused[run]
        return found

    async def cancel_task(
        self, workflow: str, stage: str, index: int, body: Mapping[str, Any] | None = None
    ) -> TaskView:
        """Stop one task; of a run, the call that it is: its engine decides what follows."""
        if self._lives(workflow) or await self._runs.find(workflow) is None:
            return await super().cancel_task(workflow, stage, index, body)
        task = await self._task(workflow, stage, index)
        await super().command(task.last.workflow, "cancel", body)
        return await self.task(workflow, stage, index)

    async def events(
        self, workflow: str | None, after: int, *, follow: bool = True
    ) -> AsyncGenerator[Sequence[EventView], None]:
        """History after an id (-1: from now on), then what happens; of a run, of all its calls, while one of them lives."""
        over = None if workflow is None else await self._over_of(workflow)
        async with aclosing(self._history.follow(workflow, after, over, follow=follow)) as batches:
            async for batch in batches:
                yield batch

    async def ended(self, workflow: str) -> None:
        """Return when a workflow has ended; a run, when none of its calls lives and its engine has said the end, if it is asked."""
        await self._history.ended(workflow, await self._over_of(workflow))

    async def _over_of(self, ident: str) -> Callable[[], Awaitable[bool]] | None:
        """Says of a run whether it is over; None for the id of a workflow."""
        if self._lives(ident) or await self._runs.find(ident) is None:
            return None
        return partial(self._over, ident)

    async def _over(self, run: str) -> bool:
        """Whether a run has ended, as far as can be known: one in ENGINE, if its engine is not asked."""
        row = await self._find(run)
        state = _run_state(row, {tally.state for tally in await self._runs.tallies([run])})
        if state == ReportedState.ENGINE:
            return not self.engine_ends.asks(run, row.source)
        return RunState(state).terminal

    async def report_end(self, run: str, state: str, reason: str) -> WorkflowView:
        """Keep how a run has ended, as its engine says."""
        if await self._workflows.existing([run]):
            raise Conflict(
                f"{run} is a workflow of flowsched, which knows its end itself; only runs of other engines are told"
            )
        await self._find(run)
        await self._runs.end(run, state, reason)
        self._history.stir()
        return await self.workflow(run)

    # ------------------------------------------------------------------------------------------ tasks

    async def tasks(
        self,
        workflow: str,
        *,
        stage: str | None = None,
        state: str | None = None,
        limit: int = 100,
        page_token: str | None = None,
    ) -> TaskPage:
        """Its tasks; of a run, the last attempt of each."""
        try:
            return await super().tasks(workflow, stage=stage, state=state, limit=limit, page_token=page_token)
        except NotFound as refusal:
            if await self._runs.find(workflow) is None:
                raise refusal
        known = run_tasks(await self._runs.calls(workflow))
        if stage is not None and all(task.node != stage for task in known):
            raise NotFound(f"run {workflow} has no call {stage!r} so far")
        start = _place(page_token)
        found: list[TaskView] = []
        for place, task in enumerate(known):
            if place < start or (stage is not None and task.node != stage):
                continue
            page = await super().tasks(task.last.workflow, limit=1)  # as in a list: without attempts
            view = _of_run(page.tasks[0], task)
            if state is not None and view.state != state:
                continue
            if len(found) == limit:
                return TaskPage(tasks=found, next_page_token=str(place))
            found.append(view)
        return TaskPage(tasks=found)

    async def cache(self, workflow: str) -> list[CacheView]:
        """Its look-ups; of a run nothing: its engine keeps a cache of its own."""
        try:
            return await super().cache(workflow)
        except NotFound:
            await self._find(workflow)
        return []

    async def timeline(
        self, workflow: str, *, limit: int = 10_000, page_token: str | None = None
    ) -> TimelineView:
        """Its tasks by stage and index, as columns; of a run, the last attempt of each."""
        try:
            return await super().timeline(workflow, limit=limit, page_token=page_token)
        except NotFound:
            row = await self._find(workflow)
        known = run_tasks(await self._runs.calls(workflow))
        nodes = {node: number for number, node in enumerate(dict.fromkeys(task.node for task in known))}
        start = _place(page_token)
        some = known[start : start + limit]
        idents = [task.last.workflow for task in some]
        stored, ended = await self._workflows.first_tasks(idents), await self._workflows.steps_ended(idents)
        columns = Columns(workflow, row.created_ms, self._clock())
        rows = [self._only_task(task.last, stored.get(task.last.workflow)) for task in some]
        left = [ended.get((row.workflow, 0, 0, row.attempt)) for row in rows]
        columns.add(
            rows, [(nodes[task.node], task.number) for task in some], left, [task.item for task in some]
        )
        found = columns.finish()
        found.next_page_token = str(start + limit) if start + limit < len(known) else None
        return found

    def _only_task(self, call: CallRow, stored: TaskWrite | None) -> TaskWrite:
        """The task of a call: from memory while the call lives here, else its row, else as one that was never touched."""
        live = self._live(call.workflow)
        if live is not None and live[1].stages[0].uniform is None:
            return task_row(live[0], live[1], live[1].stages[0], 0)
        if live is not None or stored is None:
            state = untouched_state(RunState(call.state)) if live is None else live[1].stages[0].task_is(0)
            when = answers.waited(1, call.totals, call.started_ms, call.ended_ms)
            return answers.untouched_row(call.workflow, 0, 0, state, when)
        return stored

    async def task(self, workflow: str, stage: str, index: int) -> TaskView:
        """One task with its attempts and outputs."""
        try:
            return await super().task(workflow, stage, index)
        except NotFound as refusal:
            if await self._runs.find(workflow) is None:
                raise refusal  # it names what is missing: the workflow, its stage or the task
            task = await self._task(workflow, stage, index)
        view = _of_run(await super().task(task.last.workflow, task.last.stage, 0), task)
        number = len(task.attempts) - 1  # as `logs` counts
        last = [msgspec.structs.replace(each, attempt=number) for each in view.attempts[-1:]]
        return msgspec.structs.replace(view, attempts=last)

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
        """Log bytes of a task; of a run, of a task's last attempt, or of the one that `attempt` numbers, from 0."""
        asked: dict[str, Any] = {"stream": stream, "offset": offset, "limit": limit}
        try:
            return await super().logs(workflow, stage, index, attempt=attempt, **asked)
        except NotFound as refusal:
            call = await self._call_of(workflow, stage, index, attempt, refusal)
        return await super().logs(call.workflow, call.stage, 0, **asked)

    async def log_start(
        self, workflow: str, stage: str, index: int, *, attempt: int | None, stream: str, tail: int
    ) -> int:
        """The offset of the last lines of what `logs` gives."""
        asked: dict[str, Any] = {"stream": stream, "tail": tail}
        try:
            return await super().log_start(workflow, stage, index, attempt=attempt, **asked)
        except NotFound as refusal:
            call = await self._call_of(workflow, stage, index, attempt, refusal)
        return await super().log_start(call.workflow, call.stage, 0, attempt=None, **asked)

    async def _call_of(
        self, workflow: str, stage: str, index: int, attempt: int | None, refusal: NotFound
    ) -> CallRow:
        """The call that is an attempt of a run's task; raises `refusal` if there is no such run."""
        if await self._runs.find(workflow) is None:
            raise refusal
        task = await self._task(workflow, stage, index)
        number = len(task.attempts) - 1 if attempt is None else attempt
        if not 0 <= number < len(task.attempts):
            known = f"it has 0 to {len(task.attempts) - 1}"
            raise NotFound(f"{stage}[{index}] of run {workflow} has no attempt {number}; {known}")
        return task.attempts[number]

    async def _task(self, run: str, node: str, number: int) -> RunTask:
        await self._find(run)
        tasks = [task for task in run_tasks(await self._runs.calls(run)) if task.node == node]
        if not tasks:
            raise NotFound(f"run {run} has no call {node!r} so far")
        found = next((task for task in tasks if task.number == number), None)
        if found is None:
            known = ", ".join(task.name for task in tasks[:20])
            raise NotFound(f"call {node!r} of run {run} has no task {number} so far; there are {known}")
        return found

    async def idle(self, *, since: str = DAY) -> IdleReportView:
        """Why what was idle was idle. Only the leader knows."""
        if self._leader.dispatcher is None:
            raise self._not_leading()
        return idle_report(self._leader.idle, self._clock(), since)

    async def explain(
        self, workflow: str, *, stage: str | None = None, index: int | None = None
    ) -> list[ExplanationView]:
        """Why what does not run does not run; of one task also why on its node."""
        row = None if self._lives(workflow) else await self._runs.find(workflow)
        if row is None:
            return await super().explain(workflow, stage=stage, index=index)
        failed = row.state == RunState.FAILED.value
        if stage is not None and index is not None:
            task = await self._task(workflow, stage, index)
            of_task = await super().explain(task.last.workflow, stage=task.last.stage, index=0)
            return [_explained(view, task) for view in of_task] + (
                _return_codes(row, [task]) if failed else []
            )
        known = run_tasks(await self._runs.calls(workflow))
        chosen = [task for task in known if stage in (None, task.node)]
        tasks = [task for task in chosen if task.last.state != "SUCCEEDED"]
        found = [
            _explained(view, task)
            for task in tasks
            for view in await super(RunService, self).explain(task.last.workflow)
        ]
        told = _alike(found) + (_return_codes(row, chosen) if failed else [])
        if stage is not None:
            return told
        ended = [_engine_failed(row)] if failed else []
        return ended + told + self._not_planned(workflow, [task.last for task in tasks])

    def _not_planned(self, run: str, calls: Sequence[CallRow]) -> list[ExplanationView]:
        """That the calls of a run have no rank, and why: it should have been planned and was not."""
        live = [call for call in calls if not RunState(call.state).terminal]
        why = self.plans.why_not(run) if live else None
        if why is None:
            return []
        message = f"no plan says which of its calls to run first: {why}"
        return [
            ExplanationView(stage=_ALL, tasks=len(live), state="PENDING", code="NotPlanned", message=message)
        ]


def run_tasks(calls: Sequence[CallRow]) -> list[RunTask]:
    """The tasks of a run: its nodes in the order in which they came, and the tasks of each by number.

    Args:
        calls: All that the run has had so far, in the order of their submission.
    """
    numbers = numbered((call.node, call.task, call.shard) for call in calls)
    nodes: dict[str, dict[int, list[CallRow]]] = {}
    for call in calls:
        nodes.setdefault(call.node, {}).setdefault(numbers[call.node, call.task], []).append(call)
    return [
        RunTask(node, number, sorted(attempts, key=lambda call: (call.attempt, call.seq)))
        for node, tasks in nodes.items()
        for number, attempts in sorted(tasks.items())
    ]


def _of_run(view: TaskView, task: RunTask) -> TaskView:
    """The task of a call as a task of its run. Outputs are its workflow's."""
    item = view.item if task.item is None else task.item
    return msgspec.structs.replace(
        view, stage=task.node, shard=task.number, index=task.number, item=item, outputs=[]
    )


def _explained(view: ExplanationView, task: RunTask) -> ExplanationView:
    """What a call's workflow says of its task, as an explanation of the run's task."""
    view.stage = task.node
    view.shards = [] if task.last.shard is None and not task.path else [task.number]
    view.items = [task.path] if task.path else []
    view.message = _of_task(view.message, task)
    return view


def _of_task(text: str, task: RunTask) -> str:
    """What a call's workflow says of its one task, as a sentence about the run's task."""
    return _TASK.sub(f"task {task.name}", text)


def _engine_failed(row: RunRow) -> ExplanationView:
    """That the engine of a run has failed it, in its own words."""
    message = f"its engine has failed the run; {row.reason or 'it has given no reason'}"
    return ExplanationView(stage=_ALL, tasks=0, state="FAILED", code="EngineFailed", message=message)


def _return_codes(row: RunRow, tasks: Sequence[RunTask]) -> list[ExplanationView]:
    """The tasks that returned another code than 0 to the engine that failed their run, by node and code."""
    found: dict[tuple[str, str], list[RunTask]] = {}
    for task in tasks:
        for code in added([task.last.totals]):
            found.setdefault((task.node, code), []).append(task)
    views = []
    for (node, code), some in found.items():
        first, many = some[0], len(some)
        who, whose, log = (
            (f"task {first.name}", "its", "its log")
            if many == 1
            else (f"{many} tasks", "their", "the log of the first")
        )
        command = f"flowsched logs {row.id} {shlex.quote(node)} {first.name}"
        message = f"{who} returned {code} to {whose} engine, which may have failed the run for that; {log}: `{command}`"
        named = some[:_NAMED]
        views.append(
            ExplanationView(
                stage=node, shards=[task.number for task in named], items=[task.path for task in named if task.path],
                others=many - len(named), tasks=many, state="SUCCEEDED", code=RETURN_CODE, message=message,
                numbers={"exit_code": int(code)},
            )
        )  # fmt: skip
    return views


def _alike(views: Sequence[ExplanationView]) -> list[ExplanationView]:
    """Shards that wait for one reason are told as one."""
    merged: dict[tuple[Any, ...], ExplanationView] = {}
    for view in views:
        key = (view.stage, view.state, view.code, view.message)
        first = merged.setdefault(key, view)
        if first is not view:
            first.tasks += view.tasks
            first.shards = [*first.shards, *view.shards][:_NAMED]
            first.items = [*first.items, *view.items][:_NAMED]
            first.others = first.tasks - len(first.shards)
    return list(merged.values())


def _labelled(row: RunRow, key: str, value: str) -> bool:
    """Whether a run has a label; without a value any will do."""
    return not key or (key in row.labels and value in ("", row.labels[key]))


def _state(states: set[str]) -> str:
    """The state of what has parts in these states, so far: its engine alone knows whether more comes."""
    live = {state for state in states if not RunState(state).terminal}
    if live in ({"CANCELLING"}, {"PAUSED"}):
        return live.pop()
    if live:
        return "PENDING" if states == {"PENDING"} else "RUNNING"
    for word in ("FAILED", "CANCELLED"):
        if word in states:
            return word
    return "SUCCEEDED"


def _run_view(row: RunRow, tallies: Sequence[Tally], nodes: int, returned: dict[str, int]) -> WorkflowView:
    ends = [tally.ended_ms for tally in tallies if tally.ended_ms is not None]
    state = _run_state(row, {tally.state for tally in tallies})
    begin = datetime.fromtimestamp(row.created_ms / 1000, UTC)
    return WorkflowView(
        id=row.id,
        name=row.name,
        queue=row.queue,
        priority=0,
        labels=dict(row.labels),
        state=state,
        reason=_reason(row, state, tallies),
        created_at=begin,
        started_at=begin,  # its engine is at work from then on, and the timeline begins there
        ended_at=answers.moment(max(ends, default=None)) if _at_rest(state) else None,
        stages=nodes,
        tasks=sum(tally.tasks for tally in tallies),
        counts=_added({_task_state(tally.state): tally.tasks} for tally in tallies),
        returned=returned,
        source=row.source,
    )


def _run_state(row: RunRow, states: set[str]) -> str:
    """The state of a run: its calls' while one of them lives, then the one that its engine has said, else what its tasks tell."""
    state = _state(states)
    if not RunState(state).terminal:
        return state
    return row.state or (ReportedState.ENGINE.value if state == "SUCCEEDED" else state)


def _at_rest(state: str) -> bool:
    return state == ReportedState.ENGINE or RunState(state).terminal


def _reason(row: RunRow, state: str, tallies: Sequence[Tally]) -> str:
    """Why a run ended so, as far as its calls tell: `show` names them, with their own reasons; else what its engine says."""
    if state == ReportedState.ENGINE:
        engine = "its engine" if row.source in ("", "tes") else row.source
        return f"no task of it waits or runs; {engine} alone knows whether more come"
    failed = sum(tally.tasks for tally in tallies if tally.state == state)
    if state == "FAILED" and failed:
        return f"{failed} task{'s' * (failed != 1)} failed"
    return row.reason if state == row.state else ""


def _first_failure(first: Failure, failed: str) -> str:
    """`align: task 1 failed: exit code 3`, and how many failed where they are several."""
    if not first.reason:
        return failed
    said = _TASK.sub(f"task {first.name}", _STAGE_BEFORE.sub("", first.reason))
    return f"{first.node}: {said}" + ("" if failed.startswith("1 ") else f" ({failed} in all)")


def _task_state(state: str) -> str:
    """What the one task of a call probably does, by the state of its workflow."""
    return _STATES.get(state, TaskState.QUEUED.name if state == "PENDING" else TaskState.RUNNING.name)


def _added(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, number in each.items():
            total[name] = total.get(name, 0) + number
    return total


def _place(token: str | None) -> int:
    """Where the next page of tasks begins."""
    if token is None:
        return 0
    if not token.isdecimal() or len(token) > 12:
        raise InvalidRequest("the page token is not one this service gave out")
    return int(token)
