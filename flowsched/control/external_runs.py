"""Runs of engines that keep the DAG themselves (Cromwell, Snakemake, miniwdl), as the workflows they are to people.

Each call of such a run is a workflow of one stage. Here they are put together: a run is listed, shown, explained and cancelled like
any workflow; its stages are the calls, its tasks what `run_tasks` says, and a later attempt takes the place of an earlier one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from flowsched.control import views as answers
from flowsched.control.timeline import Columns
from flowsched.engine.delta import TaskWrite
from flowsched.engine.explain import first_reason, with_start
from flowsched.engine.recovery import untouched_state
from flowsched.engine.state import EngineState
from flowsched.engine.transaction import task_row
from flowsched.errors import Conflict, InvalidRequest, NotFound
from flowsched.scheduling.explain.forecast import Starts
from flowsched.store.database import Database
from flowsched.store.rows import WorkflowRow
from flowsched.store.runs import CallRow, Failure, RunRow, Runs, Tally
from flowsched.store.workflows import Which, Workflows
from flowsched.workflow.returned import added
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.run.states import ReportedState, RunState, reported_state
from flowsched.workflow.run_tasks import item_of, numbered, shard_path
from flowsched.workflow.views import (
    RETURN_CODE,
    ExplanationView,
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
#: The states of a call in which its one task has the same state.
_ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED"})
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
        """Its shards, or the task itself, as `item_of` tells them apart; None where the number says all."""
        return item_of(self.last.task, self.last.shard, self.number)


class EngineRuns:
    """The service's answers about runs. The answers about a call are those about its workflow, which the service gives.

    Args:
        database: Where runs and their calls are.
        memory: The leader's memory, if it can be looked at now.
        expected: The starts that are expected, by the number of a group.
        clock: Wall-clock ms.
    """

    def __init__(
        self,
        database: Database,
        *,
        memory: Callable[[], EngineState | None],
        expected: Callable[[], Mapping[int, Starts]],
        clock: Callable[[], int],
    ) -> None:
        self._runs = Runs(database)
        self._workflows = Workflows(database)
        self._state = memory
        self._expected = expected
        self._clock = clock

    async def find(self, ident: str) -> RunRow | None:
        """The run of this id; None if there is none, or a workflow has it."""
        return await self._runs.find(ident)

    async def page(
        self, which: Which, limit: int, own: Callable[[Sequence[WorkflowRow]], Awaitable[list[WorkflowView]]]
    ) -> tuple[list[tuple[int, WorkflowView]], int | None]:
        """The next workflows and runs together, as `Service.list_workflows` reads them. `own`: makes the views of workflows."""
        which = which._replace(run="")
        key, value = which.labels[0] if which.labels else ("", "")
        merged = await self._runs.page(which, limit, self._clock() - _RESTS_MS)
        chosen = [
            row
            for row in merged
            if isinstance(row, RunRow) and (not key or (key in row.labels and value in ("", row.labels[key])))
        ]
        found = await own([row for row in merged if isinstance(row, WorkflowRow)])
        views = {view.id: view for view in (*found, *await self.views(chosen))}
        result = [(row.seq, views[row.id]) for row in merged if row.id in views]
        return result, merged[-1].seq if len(merged) == limit else None

    async def view(self, row: RunRow) -> WorkflowView:
        """One run."""
        view = (await self.views([row]))[0]
        view.counts = _added(self._lively(task.last) for task in await self._tasks(row))
        return view

    async def views(self, rows: Sequence[RunRow]) -> list[WorkflowView]:
        """Runs with what memory knows of their calls."""
        if not rows:
            return []
        names = [row.id for row in rows]
        nodes = await self._runs.nodes(names)
        tallies: dict[str, list[Tally]] = {}
        for tally in await self._runs.tallies(names):
            tallies.setdefault(tally.run, []).append(tally)
        totals: dict[str, list[Mapping[str, int]]] = {}
        for run, each in await self._runs.returned(names):
            totals.setdefault(run, []).append(each)
        expected = self._expected()
        live = self._live_calls(names)
        views = []
        for row in rows:
            returned = added(totals.get(row.id, ()))
            view = _run_view(row, tallies.get(row.id, []), nodes.get(row.id, 0), returned)
            views.append(self._with_live(view, live.get(row.id, []), expected))
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

    def _with_live(
        self, view: WorkflowView, calls: Sequence[WorkflowRun], expected: Mapping[int, Starts]
    ) -> WorkflowView:
        """A run as memory knows it: how far its calls have come, and the first that waits."""
        state, now = self._state(), self._clock()
        if state is None or not calls:
            return view
        ended = {name: count for name, count in view.counts.items() if name in _ENDED}
        view.counts = _added([ended, *(call.totals() for call in calls)])
        if view.state == ReportedState.ENGINE:
            view.reason, view.ended_at = "", None
        view.state = reported_state(ReportedState(view.state).stored, view.counts)
        reasons = (first_reason(state, call, now) for call in calls[:_ASKED])
        waits = [(call, each) for call, each in zip(calls, reasons, strict=False) if each is not None]
        if waits and (view.state != ReportedState.RUNNING or any(each.permanent for _, each in waits)):
            call, first = next((each for each in waits if each[1].permanent), waits[0])
            view.waiting = answers.waiting_view(with_start(first, expected))
            if view.waiting is not None and call.spec.call is not None:
                view.waiting.stage = call.spec.call.node or view.waiting.stage
        return view

    async def _tasks(self, row: RunRow) -> list[RunTask]:
        return run_tasks(await self._runs.calls(row.id))

    async def names(self, workflow: str) -> Mapping[str, tuple[int, str | None]]:
        """Number and item of the tasks of a run, by the workflow of each call; of a workflow nothing."""
        return await self._runs.names([workflow])

    async def calls(self, row: RunRow) -> list[str]:
        """The ids of its calls' workflows."""
        return [call.workflow for call in await self._runs.calls(row.id)]

    async def stages(self, row: RunRow) -> list[StageView]:
        """Its calls, in the order in which they came."""
        found: dict[str, list[RunTask]] = {}
        for task in await self._tasks(row):
            found.setdefault(task.node, []).append(task)
        return [self._stage_view(number, *each) for number, each in enumerate(found.items())]

    def _stage_view(self, number: int, node: str, tasks: Sequence[RunTask]) -> StageView:
        last, tries = [task.last for task in tasks], [call for task in tasks for call in task.attempts]
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
            **answers.stage_sums([call.totals for call in tries]),
        )

    def _call_waits(self, node: str, calls: Sequence[str]) -> WaitingView | None:
        """The first thing that keeps a call's shards from running."""
        state, now = self._state(), self._clock()
        for ident in calls[:_ASKED] if state is not None else ():
            run = self._run(ident)
            reason = None if run is None or state is None else first_reason(state, run, now)
            waiting = answers.waiting_view(reason)
            if waiting is not None:
                waiting.stage = node
                return waiting
        return None

    def _lively(self, call: CallRow) -> Mapping[str, int]:
        """Tasks by state, from memory while the call lives here."""
        run = self._run(call.workflow)
        return dict(run.totals()) if run is not None else call.counts

    def _run(self, workflow: str) -> WorkflowRun | None:
        state = self._state()
        return None if state is None else state.work.runs.get(workflow)

    async def over(self, row: RunRow, asks: Callable[[str, str], bool]) -> bool:
        """Whether a run has ended, as far as can be known. `asks`: whether the engine of one in ENGINE is asked for its end."""
        state = _run_state(row, {tally.state for tally in await self._runs.tallies([row.id])})
        if state == ReportedState.ENGINE:
            return not asks(row.id, row.source)
        return RunState(state).terminal

    async def end(self, run: str, state: str, reason: str) -> None:
        """Keep how a run has ended, as its engine says.

        Raises:
            Conflict: It is a workflow.
            NotFound: No call of it came.
        """
        if await self._workflows.existing([run]):
            raise Conflict(
                f"{run} is a workflow of flowsched, which knows its end itself; only runs of other engines are told"
            )
        if await self._runs.find(run) is None:
            raise NotFound(f"there is no workflow with the id {run}")
        await self._runs.end(run, state, reason)

    async def tasks(
        self,
        row: RunRow,
        own: Callable[..., Awaitable[TaskPage]],
        stage: str | None,
        state: str | None,
        limit: int,
        page_token: str | None,
    ) -> TaskPage:
        """The last attempt of each of its tasks. `own`: `Service.tasks`, for the workflows of its calls."""
        known = await self._tasks(row)
        if stage is not None and all(task.node != stage for task in known):
            raise NotFound(f"run {row.id} has no call {stage!r} so far")
        start = _place(page_token)
        found: list[TaskView] = []
        for place, task in enumerate(known):
            if place < start or (stage is not None and task.node != stage):
                continue
            page = await own(task.last.workflow, limit=1)  # as in a list: without attempts
            view = of_run(page.tasks[0], task)
            if state is not None and view.state != state:
                continue
            if len(found) == limit:
                return TaskPage(tasks=found, next_page_token=str(place))
            found.append(view)
        return TaskPage(tasks=found)

    async def timeline(self, row: RunRow, limit: int, page_token: str | None) -> TimelineView:
        """The last attempt of each of its tasks, as columns."""
        known = await self._tasks(row)
        nodes = {node: number for number, node in enumerate(dict.fromkeys(task.node for task in known))}
        start = _place(page_token)
        some = known[start : start + limit]
        idents = [task.last.workflow for task in some]
        stored, ended = await self._workflows.first_tasks(idents), await self._workflows.steps_ended(idents)
        columns = Columns(row.id, row.created_ms, self._clock())
        rows = [self._only_task(task.last, stored.get(task.last.workflow)) for task in some]
        left = [ended.get((each.workflow, 0, 0, each.attempt)) for each in rows]
        columns.add(
            rows, [(nodes[task.node], task.number) for task in some], left, [task.item for task in some]
        )
        found = columns.finish()
        found.next_page_token = str(start + limit) if start + limit < len(known) else None
        return found

    def _only_task(self, call: CallRow, stored: TaskWrite | None) -> TaskWrite:
        """The task of a call: from memory while the call lives here, else its row, else as one that was never touched."""
        memory, run = self._state(), self._run(call.workflow)
        if memory is not None and run is not None and run.stages[0].uniform is None:
            return task_row(memory, run, run.stages[0], 0)
        if run is not None or stored is None:
            state = untouched_state(RunState(call.state)) if run is None else run.stages[0].task_is(0)
            when = answers.waited(1, call.totals, call.started_ms, call.ended_ms)
            return answers.untouched_row(call.workflow, 0, 0, state, when)
        return stored

    async def attempt(self, row: RunRow, node: str, number: int, attempt: int | None) -> CallRow:
        """The call that is an attempt of a task; the last one, if none is numbered.

        Raises:
            NotFound: There is no such call, task or attempt.
        """
        task = await self.task(row, node, number)
        at = len(task.attempts) - 1 if attempt is None else attempt
        if not 0 <= at < len(task.attempts):
            known = f"it has 0 to {len(task.attempts) - 1}"
            raise NotFound(f"{node}[{number}] of run {row.id} has no attempt {at}; {known}")
        return task.attempts[at]

    async def task(self, row: RunRow, node: str, number: int) -> RunTask:
        """One task.

        Raises:
            NotFound: There is no such call or task.
        """
        tasks = [task for task in await self._tasks(row) if task.node == node]
        if not tasks:
            raise NotFound(f"run {row.id} has no call {node!r} so far")
        found = next((task for task in tasks if task.number == number), None)
        if found is None:
            known = ", ".join(task.name for task in tasks[:20])
            raise NotFound(f"call {node!r} of run {row.id} has no task {number} so far; there are {known}")
        return found

    async def explain(
        self,
        row: RunRow,
        own: Callable[..., Awaitable[list[ExplanationView]]],
        not_planned: Callable[[str], str | None],
        *,
        stage: str | None,
        index: int | None,
    ) -> list[ExplanationView]:
        """Why what does not run does not run; of one task also why on its node.

        Args:
            row: The run.
            own: `Service.explain`, for the workflows of its calls.
            not_planned: Why a run has no plan, if it should have one.
            stage: Of this call alone.
            index: Of this task alone.
        """
        failed = row.state == RunState.FAILED.value
        if stage is not None and index is not None:
            task = await self.task(row, stage, index)
            of_task = await own(task.last.workflow, stage=task.last.stage, index=0)
            codes = _return_codes(row, [task]) if failed else []
            return [*(_explained(view, task) for view in of_task), *codes]
        chosen = [task for task in await self._tasks(row) if stage in (None, task.node)]
        tasks = [task for task in chosen if task.last.state != "SUCCEEDED"]
        found = [_explained(view, task) for task in tasks for view in await own(task.last.workflow)]
        found = _alike(found) + (_return_codes(row, chosen) if failed else [])
        if stage is not None:
            return found
        live = [task for task in tasks if not RunState(task.last.state).terminal]
        if live and (why := not_planned(row.id)) is not None:
            message = f"no plan says which of its calls to run first: {why}"
            found.append(
                ExplanationView(
                    stage=_ALL, tasks=len(live), state="PENDING", code="NotPlanned", message=message
                )
            )
        return ([_engine_failed(row)] if failed else []) + found


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


def of_run(view: TaskView, task: RunTask) -> TaskView:
    """The task of a call as a task of its run, with its last attempt, numbered as `logs` counts. Outputs are its workflow's."""
    item = view.item if task.item is None else task.item
    last = [msgspec.structs.replace(each, attempt=len(task.attempts) - 1) for each in view.attempts[-1:]]
    return msgspec.structs.replace(
        view, stage=task.node, shard=task.number, index=task.number, item=item, attempts=last, outputs=[]
    )


def _explained(view: ExplanationView, task: RunTask) -> ExplanationView:
    """The explanation of a call's workflow, as an explanation of the run's task."""
    view.stage = task.node
    view.shards = [] if task.last.shard is None and not task.path else [task.number]
    view.items = [task.path] if task.path else []
    view.message = _of_task(view.message, task)
    return view


def _of_task(text: str, task: RunTask) -> str:
    """The reason of a call's workflow, as a sentence about the run's task."""
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
    at_rest = state == ReportedState.ENGINE or RunState(state).terminal
    return answers.view_of(
        WorkflowView,
        row,
        priority=0,
        state=state,
        reason=_reason(row, state, tallies),
        started_at=answers.moment(
            row.created_ms
        ),  # its engine is at work from then on: the timeline begins there
        ended_at=answers.moment(max(ends, default=None)) if at_rest else None,
        stages=nodes,
        tasks=sum(tally.tasks for tally in tallies),
        counts=_added({_task_state(tally.state): tally.tasks} for tally in tallies),
        returned=returned,
    )


def _run_state(row: RunRow, states: set[str]) -> str:
    """The state of a run: its calls' while one of them lives, then the one that its engine has said, else what its tasks tell."""
    state = _state(states)
    if not RunState(state).terminal:
        return state
    return row.state or (ReportedState.ENGINE.value if state == "SUCCEEDED" else state)


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
    cause = _TASK.sub(f"task {first.name}", _STAGE_BEFORE.sub("", first.reason))
    return f"{first.node}: {cause}" + ("" if failed.startswith("1 ") else f" ({failed} in all)")


def _task_state(state: str) -> str:
    """The probable state of a call's one task, by the state of its workflow."""
    return state if state in _ENDED else "QUEUED" if state == "PENDING" else "RUNNING"


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
