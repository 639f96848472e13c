"""The service: what clients may ask, over the store and the leader's memory, and the address of the leader."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flowsched.aside import aside
from flowsched.control import allowed_paths, views
from flowsched.control.admission import Admission, LiveLimits, submission_of
from flowsched.control.allowed_paths import Refusal
from flowsched.control.documents import Documents, decode
from flowsched.control.engine_ends import EngineEnds
from flowsched.control.external_runs import EngineRuns, of_run
from flowsched.control.forecasts import Forecasts
from flowsched.control.history import History
from flowsched.control.leading.draining import Draining
from flowsched.control.leading.leader import Leader
from flowsched.control.planning.plans import Cromwell, LateRanks, PlanBook, Planning, with_rank
from flowsched.control.planning.wdl_path import WdlPath
from flowsched.control.policies import PolicyDesk, with_outlooks
from flowsched.control.profiles import ProfileBook
from flowsched.control.queues import check_tree, queue_row
from flowsched.control.task_rows import TaskRows
from flowsched.control.tes import TesService
from flowsched.control.timeline import Columns
from flowsched.control.tracing import LABEL, is_header
from flowsched.control.views import queue_views
from flowsched.control.wes import WesService
from flowsched.engine.delta import TaskWrite
from flowsched.engine.explain import (
    Explanation,
    Facts,
    explain_stage,
    first_reason,
    stage_reason,
    with_start,
    with_starts,
)
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import pod_name
from flowsched.errors import (
    Conflict,
    Fault,
    FlowschedError,
    InvalidDocument,
    InvalidRequest,
    NotFound,
    Unavailable,
    no_such,
)
from flowsched.executor.log_ends import start_of_last
from flowsched.executor.protocol import Executor
from flowsched.scheduling.explain.forecast import Starts
from flowsched.scheduling.explain.idle import split
from flowsched.store.accounting import Accounting
from flowsched.store.cache_keys import CacheKeys
from flowsched.store.database import Database
from flowsched.store.lease import Lease
from flowsched.store.rows import AttemptRow, QueueRow, WorkflowRow
from flowsched.store.runs import RunRow
from flowsched.store.settings import Queues
from flowsched.store.tes import TesTasks
from flowsched.store.workflows import Which, Workflows, token_of, untoken
from flowsched.store.writer import GroupWriter
from flowsched.values import replace
from flowsched.workflow.formats.tes.answers import TAIL_BYTES
from flowsched.workflow.formats.tes.document import STAGE
from flowsched.workflow.returned import added, as_totals
from flowsched.workflow.run.outcomes import CANCELLED, SPOILED
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.run.states import TERMINAL, ReportedState, RunState, TaskState
from flowsched.workflow.spec import WorkflowSpec, filled
from flowsched.workflow.views import (
    AttemptPage,
    CacheView,
    CancelledView,
    EventView,
    ExplanationView,
    IdleReportView,
    NodeView,
    QueueView,
    StageView,
    SubmittedView,
    TaskPage,
    TaskView,
    TimelineView,
    UsageView,
    WorkflowPage,
    WorkflowView,
)

if TYPE_CHECKING:
    from flowsched.control.extender import Extender


class OutputData(msgspec.Struct, frozen=True):
    """The bytes of an output. A caller that does not read `chunks` to its end closes it (`aclose`)."""

    file_name: str  #: what the task called it; with `.tar` if it is a folder, which comes as a tar stream
    size_bytes: int  #: of all chunks together
    chunks: AsyncGenerator[bytes, None]


#: So long the address of the leader is believed.
LEADER_MS: Final = 1_000
#: In the lease's holder, before the URL at which the process is reached.
AT: Final = " at "


# ---- the service ----


def no_stage(workflow: str, stage: str, spec: WorkflowSpec) -> str:
    """The message that a workflow has no stage of that name."""
    return f"workflow {workflow}: {no_such('stage', stage, (each.name for each in spec.stages))}"


#: So often, and so far apart, `explain` looks whether a workflow has been taken in: a second, usually some ms.
_TAKEN_IN_LOOKS: Final = 50
_TAKEN_IN_PAUSE_S: Final = 0.02
COMMANDS: Final = ("cancel", "pause", "resume", "retry")
#: Of stages that no cancel has ended.
_ENDED_ALONE: Final = (RunState.SUCCEEDED, RunState.FAILED, RunState.SKIPPED)
#: The states of what has ended, or has nothing that a command could end.
_OVER: Final = frozenset({ReportedState.ENGINE.value, *(state.value for state in RunState if state.terminal)})
#: The states of tasks that never ran since their stage or workflow ended before.
_DROPPED: Final = (TaskState.CANCELLED, TaskState.SKIPPED)
#: A step that takes longer than this is stuck: livez fails.
STUCK_MS: Final = 60_000
#: Stages that `explain` looks at before the event loop serves other requests: some 5 ms. A commit takes dozens of passes of the
#: loop: with slices of 250 stages, ten clients that explain 9,000 made one on PostgreSQL take longer than its timeout.
EXPLAINED: Final = 25
#: Attempts whose views are made before the event loop serves other requests: some 5 ms.
VIEWS_AT_ONCE: Final = 250
#: After so many failures of the leader's loops in a row livez fails, too.
STUCK_TERMS: Final = 5
#: A database that has been away for so long is told of: one that was locked for a moment is not.
OUTAGE_S: Final = 1.0
#: How long a command's answer waits for the leader; it is durable anyway.
CARRIED_OUT_S: Final = 5.0
#: So often it looks into the database meanwhile: another process may have begun to lead.
RECHECK_S: Final = 1.0


def refusal_of(row: WorkflowRow, kind: str) -> str:
    """Why the state of a workflow does not allow a command; empty if it does."""
    workflow, state = row.id, RunState(row.state)
    if kind == "retry" and not state.terminal:
        return (
            f"{workflow} has not ended: `flowsched cancel {workflow}` ends it; then "
            f"`flowsched run FILE --resume-from {workflow}` runs it anew, and takes over what has succeeded"
        )
    if kind == "retry" and state is not RunState.FAILED:
        return (
            f"{workflow} is {state.value}: only a FAILED workflow can be tried again. "
            f"`flowsched run FILE --resume-from {workflow}` (Python: client.submit(workflow, resume={workflow!r})) runs it "
            "anew, and takes over what has succeeded"
        )
    if kind == "cancel" and state.terminal and state is not RunState.CANCELLED:
        return f"{workflow} has ended as {state.value}: there is nothing to cancel"
    if kind in ("pause", "resume") and (state.terminal or state is RunState.CANCELLING):
        return (
            f"{workflow} is {state.value}: it cannot be paused or resumed. "
            f"`flowsched run FILE --resume-from {workflow}` runs it anew, and takes over what has succeeded"
        )
    return ""


class Service:
    """One process of flowsched: accepts, answers, and (one process of all) leads."""

    def __init__(
        self,
        database: Database,
        writer: GroupWriter,
        executor: Executor,
        history: History,
        documents: Documents,
        leader: Leader,
        *,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        failpoint: Callable[[str], Awaitable[None]],
        replicated: bool = False,
        cromwell: Sequence[str] = (),
        wdl_path: Sequence[Path] = (),
        profiles: ProfileBook | None = None,
        limits: LiveLimits = LiveLimits(),  # noqa: B008  # frozen
        refusal: Refusal | None = None,
        root: Path | None = None,
    ) -> None:
        self._refusal = refusal
        self._replicated = replicated
        self._leader_url: str | None = None
        self._leader_read_ms = 0
        self._database = database
        self._reads = Workflows(database)
        self._forecasts = Forecasts(self._state, self._at_rest, leader.metrics.start_forecasts, clock)
        self._runs = EngineRuns(database, memory=self._state, expected=self._forecasts.known, clock=clock)
        self._cache_keys = CacheKeys(database)
        self._queues = Queues(database)
        self._accounting = Accounting(database)
        self._writer = writer
        profiles = profiles or ProfileBook(leader.profile, clock=clock)
        self._admission = Admission(writer, self._reads, limits, lambda: profiles.profile)
        self._executor = executor
        self._history = history
        writer.committed = history.committed
        self._documents = documents
        self._leader = leader
        servers = Cromwell(cromwell, WdlPath(wdl_path))
        self.plans = PlanBook(
            database, Planning(), servers,
            learned=leader.runtimes, clock=clock, new_id=new_id,
        )  # fmt: skip
        self.late_ranks = LateRanks(self.plans, lambda: leader.dispatcher)
        self.plans.planned = self.late_ranks.rank
        self.engine_ends = EngineEnds(database, servers, memory=self._state, ended=history.stir)
        self.policies = PolicyDesk(profiles, leader)
        self._clock = clock
        self._turn = asyncio.Lock()  #: of one long read over memory, for one slice
        self._new_id = new_id
        self._failpoint = failpoint
        self.draining = Draining(database, nodes=self.nodes, notify=leader.drain_changed, clock=clock)
        self.tes = TesService(
            TesTasks(database), self._admission, documents, clock=clock, new_id=new_id, wake=self._wake,
            cancel=lambda workflow: self.command(workflow, "cancel"), ranks=self.plans, memory=self._state,
            forecasts=self._forecasts, failpoint=failpoint, tails=self._tails, replicated=replicated, refusal=refusal,
        )  # fmt: skip

        self.wes = WesService(
            root, submit=self.submit, workflow=self.workflow, list_workflows=self.list_workflows, task=self.task,
            tasks=self.tasks, logs=self.logs, command=self.command,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------ workflows

    async def submit(
        self, raw: bytes, *, idempotency_key: str | None = None, traceparent: str | None = None
    ) -> SubmittedView:
        """Decode, check and durably accept a document; the same key with the same bytes gives the same workflow."""
        spec = await decode(raw)
        await allowed_paths.check(spec, self._refusal)
        if spec.resume:
            await self._check_resume(spec.resume)
        spec, document = await with_rank(spec, raw, self.plans)
        await self._failpoint("submit.before")
        submission = submission_of(
            spec,
            document,
            raw,
            id=self._new_id(),
            labels={**self._trace_label(traceparent), **spec.labels},
            now_ms=self._clock(),
            idempotency_key=idempotency_key,
        )
        submitted = await self._admission.submit(submission, spec)
        await self._failpoint("submit.after")
        if submitted.created:
            self._documents.keep(submitted.workflow_id, spec, len(document))
            self._wake()
        notes = self._admission.notes(spec)
        return SubmittedView(id=submitted.workflow_id, created=submitted.created, notes=notes)

    def _trace_label(self, traceparent: str | None) -> dict[str, str]:
        """The label that keeps the parent of a workflow's span, where spans are made."""
        if traceparent is None or self._leader.traces is None or not is_header(traceparent):
            return {}
        return {LABEL: traceparent}

    async def list_workflows(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        queue: str | None = None,
        label: str | None = None,
        run: str | None = None,
        ref: str | None = None,
        search: str | None = None,
        user: str | None = None,
        since: str | None = None,
        until: str | None = None,
        live: bool = False,
        limit: int = 100,
        page_token: str | None = None,
    ) -> WorkflowPage:
        """Live ones, then those that have ended, each newest first.

        One that ends between two pages may come twice. Within a page it does not.

        `label` is `key=value`, `ref` the beginning of an id or a name, `search` that or any part of a name. `since` and `until`
        (spans before now, or times) bound when it was submitted; `live` leaves out what has ended.

        A run of another engine is one workflow; with `run` its calls are listed.
        """
        key, _, value = (label or "").partition("=")
        now = self._clock()
        wanted = None if state is None else ReportedState(state)
        which = Which(
            states=() if wanted is None else (wanted.stored,), name=name, queue=queue, run=run, ref=ref, search=search,
            labels=((key, value),) if key else (), owner=user, since_ms=views.time_before(since, now),
            until_ms=views.time_before(until, now, end_of_day=True),
        )  # fmt: skip
        begun, before = untoken(page_token, 2) if page_token else (1, None)
        found: dict[str, tuple[WorkflowView, int, int]] = {}
        for part in (1, 0) if not live else (1,):
            if part > begun or (
                wanted not in (None, ReportedState.ENGINE) and part == wanted.stored.terminal
            ):
                continue
            place = before if part == begun else None
            while len(found) <= limit:
                read, place = await self._listed(which._replace(live=bool(part), before=place), limit + 1)
                for seq, view in read:
                    if wanted in (None, view.state) and not (live and view.state in _OVER):
                        found.setdefault(view.id, (view, part, seq))
                if place is None:
                    break
        page = list(found.values())[:limit]
        token = token_of(page[-1][1:]) if len(found) > limit else None
        return WorkflowPage(workflows=[view for view, _, _ in page], next_page_token=token)

    async def _listed(self, which: Which, limit: int) -> tuple[list[tuple[int, WorkflowView]], int | None]:
        """The next `limit` with their numbers, newest first, and where the next ones are (None: there are none).

        Workflows and runs together; with `which.run` the calls of that one.
        """
        if which.run is None:
            return await self._runs.page(which, limit, self.workflow_views)
        rows = await self._reads.page(which, limit)
        found = [(row.seq, view) for row, view in zip(rows, await self.workflow_views(rows), strict=True)]
        return found, rows[-1].seq if len(rows) == limit else None

    async def workflow(self, workflow: str) -> WorkflowView:
        """One workflow or run."""
        try:
            row = await self._reads.get(workflow)
        except NotFound as refusal:
            if (run := await self._runs.find(workflow)) is None:
                raise refusal
            return await self._runs.view(run)
        return (await self.workflow_views([row]))[0]

    async def _run_named(self, ident: str) -> RunRow | None:
        """The run of another engine that has this id; None if there is none, or it is a workflow's."""
        return None if self._lives(ident) or ident in self._documents else await self._runs.find(ident)

    def _lives(self, workflow: str) -> bool:
        """Whether memory shows that this is a workflow that has not ended; False says nothing."""
        return self._run(workflow) is not None or self._history.lives(workflow)

    async def check_workflow(self, workflow: str) -> None:
        """Refuse an id of no workflow or run; of a workflow that lives, memory knows."""
        if not self._lives(workflow) and await self._runs.find(workflow) is None:
            await self._reads.get(workflow)

    async def workflow_views(self, rows: Sequence[WorkflowRow]) -> list[WorkflowView]:
        """Workflows with what memory knows of those that live here: their tasks by state, and why they wait."""
        sums = await self._sums_of(rows)
        expected = self._forecasts.known()
        return [views.workflow_view(row, *sums[row.id], self._waiting(row, expected)) for row in rows]

    def _waiting(self, row: WorkflowRow, expected: Mapping[int, Starts]) -> Explanation | None:
        """Why a workflow does not run; None where this process does not lead, or the step thread has its state."""
        run, state = self._run(row.id), self._state()
        if run is None or state is None or RunState(row.state).terminal:
            return None
        found = first_reason(state, run, self._clock())
        return None if found is None else with_start(found, expected)

    async def _sums_of(self, rows: Sequence[WorkflowRow]) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
        """Over stages, by workflow: tasks by state, and by the exit code that they succeeded with though it is not 0."""
        found = {}
        for row in rows:
            run = self._run(row.id)
            if run is not None:
                codes = added(as_totals(stage.returned) for stage in run.stages if stage.returned)
                found[row.id] = dict(run.totals()), codes
        rest = [row for row in rows if row.id not in found]
        sums = await self._reads.sums(rest)
        return found | {name: (its.counts, added(its.totals)) for name, its in sums.items()}

    async def document(self, workflow: str) -> bytes:
        """The document as it was submitted; a run has none."""
        if (run := await self._run_named(workflow)) is not None:
            raise NotFound(
                f"{workflow} is a run of {run.source or 'another engine'}, which keeps its document; each call of it has one"
            )
        return await self._reads.spec(workflow)

    async def stages(self, workflow: str) -> list[StageView]:
        """All its stages, in the document's order; of a run, its calls in the order in which they came."""
        if (run := await self._run_named(workflow)) is not None:
            return await self._runs.stages(run)
        spec = await self._documents.spec(workflow)
        rows = await self._reads.stages(workflow)
        live = await self._live_stages(workflow)
        return await aside(len(rows) * views.STAGE_BYTES, views.stage_views, rows, spec, live)

    async def cache(self, workflow: str) -> list[CacheView]:
        """The runs that its shards took results from, and why the other shards ran; of a run nothing: its engine has a cache."""
        if await self._run_named(workflow) is not None:
            return []
        spec = await self._documents.spec(workflow)
        rows, ran = await self._cache_keys.found(workflow), await self._cache_keys.ran(workflow)
        return await aside(len(rows) * views.STAGE_BYTES, views.cache_views, rows, spec, ran)

    async def _check_resume(self, workflow: str) -> None:
        """Refuse to resume what is not there, or goes on."""
        try:
            row = await self._reads.get(workflow)
        except NotFound:
            raise InvalidDocument(
                [Fault("$.resume", f"{workflow!r}", "the id of an ended run: `flowsched ls` lists runs")]
            ) from None
        if not RunState(row.state).terminal:
            raise Conflict(
                f"{workflow} ({row.name}) is {row.state} and cannot be resumed: wait for its end, or cancel it "
                f"(`flowsched cancel {workflow}`)"
            )

    async def _live_stages(self, workflow: str) -> dict[int, views.LiveStage]:
        """Memory's counts and reasons of a live workflow's stages that have not ended, some at a time.

        A step in a thread is not waited for: the database answers for the stages that are missing here.
        """
        found: dict[int, views.LiveStage] = {}
        facts, steps, first = None, -1, 0
        expected = self._forecasts.known()
        while True:
            async with self._turn:
                await asyncio.sleep(0)
                run, state, now = self._run(workflow), self._state(), self._clock()
                dispatcher = self._leader.dispatcher
                if run is None or state is None or dispatcher is None or first >= len(run.stages):
                    return found
                if facts is None or dispatcher.steps != steps:
                    facts, steps = Facts(state, run), dispatcher.steps
                for stage in run.stages[first : first + EXPLAINED]:
                    if not stage.state.terminal:
                        reason = stage_reason(facts, stage, now)
                        waits = None if reason is None else with_start(reason, expected)
                        found[stage.number] = views.LiveStage(stage.counted(), waits)
                first += EXPLAINED

    async def command(self, workflow: str, kind: str, body: Mapping[str, Any] | None = None) -> WorkflowView:
        """`cancel`, `pause`, `resume` or `retry` (of what failed): durable when this returns; of a run, for its calls.

        The answer shows the command carried out, unless that takes longer than a few seconds or no process leads.
        """
        if kind not in COMMANDS:
            raise InvalidRequest(f"there is no command {kind!r}; there are {', '.join(COMMANDS)}")
        if (run := await self._run_named(workflow)) is None:
            row = await self._reads.get(workflow)
            if why := refusal_of(row, kind):
                raise Conflict(why)
            rows = [row]
        elif kind == "retry":
            engine = run.source or "another engine"
            raise Conflict(
                f"{workflow} is a run of {engine}, which decides itself what is tried again: run it again with {engine}. "
                "miniwdl and Cromwell take what succeeded from their call caches (docs/wdl.md, docs/cromwell.md)"
            )
        else:
            calls = (await self._reads.some(await self._runs.calls(run))).values()
            rows = [row for row in calls if not (RunState(row.state).terminal or refusal_of(row, kind))]
        await self._command_all(rows, kind, body or {})
        return await self.workflow(workflow)

    async def cancel_all(
        self, workflows: Sequence[str], body: Mapping[str, Any] | None = None
    ) -> CancelledView:
        """Cancel several workflows in one transaction and one step, and runs with their calls.

        The answer names the workflows that cannot be cancelled, with the reason.
        """
        rows = await self._reads.some(workflows)
        refused = {
            each: why
            for each in workflows
            if (
                why := refusal_of(rows[each], "cancel")
                if each in rows
                else f"there is no workflow with the id {each}"
            )
        }
        some = [row for row in rows.values() if row.id not in refused]
        await self._command_all(some, "cancel", body or {})
        now = await self._reads.some([row.id for row in some])
        found = CancelledView(workflows=await self.workflow_views(list(now.values())), refused=refused)
        for each in [each for each in workflows if each not in rows]:
            if await self._runs.find(each) is not None:
                found.workflows.append(await self.command(each, "cancel", body))
                del found.refused[each]
        return found

    async def _command_all(self, rows: Sequence[WorkflowRow], kind: str, body: Mapping[str, Any]) -> None:
        """Leave the same command for workflows that may be given it; return once the leader has carried all out."""
        cancels = kind == "cancel"
        specs = [await self._documents.spec(row.id) for row in rows] if cancels else []
        asked = [row.id for row in rows if not (cancels and RunState(row.state) is RunState.CANCELLED)]
        await self._command_leader(asked, kind, body)
        for row, spec in zip(rows, specs, strict=False):
            await self._leave(row.id, spec)

    async def _command_leader(self, workflows: Sequence[str], kind: str, body: Mapping[str, Any]) -> None:
        now = self._clock()
        numbers = await asyncio.gather(*(self._writer.command(each, kind, body, now) for each in workflows))
        if numbers:
            self._wake(urgent=True)
            await self._carried_out(numbers)
        for each in workflows:
            self.tes.revived(each)

    async def _leave(self, workflow: str, spec: WorkflowSpec) -> None:
        """Have the files written that a cancelled workflow leaves for programs outside, but for stages that ended by themselves."""
        left = {
            stage.name: stage.container for stage in spec.stages if stage.container and stage.container.leave
        }
        if left:
            ended = {row.name for row in await self._reads.stages(workflow) if row.state in _ENDED_ALONE}
            await self._executor.leave([each for name, each in left.items() if name not in ended])

    async def _carried_out(self, numbers: Sequence[int]) -> None:
        """Wait until the leader in this process has committed commands: the next answer then shows what it did."""
        waits = deque(numbers)
        with suppress(TimeoutError):
            async with asyncio.timeout(CARRIED_OUT_S):
                while waits and self._leader.intake is not None:
                    if await self._history.carried_out(waits[0], RECHECK_S):
                        waits.popleft()
                        continue
                    open_ = {command.id for command in await self._reads.commands()}
                    waits = deque(number for number in waits if number in open_)

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
        """Its tasks by stage and index, also those that were never touched; with the outputs of those that succeeded.

        Of a run, the last attempt of each.
        """
        if (run := await self._run_named(workflow)) is not None:
            return await self._runs.tasks(run, self.tasks, stage, state, limit, page_token)
        spec = await self._documents.spec(workflow)
        numbers = {each.name: number for number, each in enumerate(spec.stages)}
        if stage is not None and stage not in numbers:
            raise NotFound(no_stage(workflow, stage, spec))
        wanted = views.task_state(state)
        limit = max(1, min(limit, 1000))
        at = views.task_position(page_token)
        rows: list[TaskWrite] = []
        chosen = None if stage is None else numbers[stage]
        async for some in self._rows(workflow).slices(at, limit + 1, stage=chosen, wanted=wanted):
            rows += some
        rows = await self._with_reasons(workflow, rows)
        page = [views.task_view(row, spec.stages[row.stage]) for row in rows[:limit]]
        await self._add_outputs(workflow, spec, numbers, page)
        token = f"{rows[limit].stage}.{rows[limit].index}" if len(rows) > limit else None
        return TaskPage(tasks=page, next_page_token=token)

    async def _add_outputs(
        self, workflow: str, spec: WorkflowSpec, numbers: Mapping[str, int], page: Sequence[TaskView]
    ) -> None:
        """Give the tasks of a page that succeeded their outputs, by one query for all that lie between the first and the last."""
        tasks = {
            (number, task.index): task
            for task in page
            if task.state == TaskState.SUCCEEDED.name and spec.stages[number := numbers[task.stage]].outputs
        }
        if not tasks:
            return
        for row in await self._reads.outputs_between(workflow, min(tasks), max(tasks)):
            if (row.stage, row.index) in tasks:
                tasks[row.stage, row.index].outputs.append(views.output_view(row, self._state()))

    async def timeline(
        self, workflow: str, *, limit: int = 10_000, page_token: str | None = None
    ) -> TimelineView:
        """Its tasks by stage and index, as columns; of a run, the last attempt of each."""
        if (run := await self._run_named(workflow)) is not None:
            return await self._runs.timeline(run, limit, page_token)
        row, spec = await self._reads.get(workflow), await self._documents.spec(workflow)
        ended = await self._reads.steps_ended([workflow])
        columns = Columns(workflow, row.created_ms, self._clock())
        at = views.task_position(page_token)
        async for rows in self._rows(workflow).slices(at, limit):
            left = (
                [ended.get((workflow, row.stage, row.index, row.attempt)) for row in rows] if ended else None
            )
            items = [views.item_of(spec.stages[row.stage], row.index) for row in rows]
            columns.add(rows, [(row.stage, row.index) for row in rows], left, items)
        return columns.finish({number: stage.tasks for number, stage in enumerate(spec.stages)})

    async def attempts(
        self, workflow: str, *, limit: int = 1000, page_token: str | None = None
    ) -> AttemptPage:
        """All tries of its tasks with what they asked for and used, from the database; of a run, those of its calls."""
        page = await self._reads.attempts_of(workflow, limit=limit, token=page_token)
        names = await self._runs.names(workflow)
        if not page.items and page_token is None:
            await self.workflow(workflow)  # there must be one
        found = []
        for number, row in enumerate(page.items):
            found.append(views.attempt_use_view(row, names))
            if number % VIEWS_AT_ONCE == VIEWS_AT_ONCE - 1:
                await asyncio.sleep(0)
        return AttemptPage(attempts=found, next_page_token=page.next_token)

    def _live(self, workflow: str) -> tuple[EngineState, WorkflowRun] | None:
        """Memory and the run, while it lives here and no long step changes it."""
        state, run = self._state(), self._run(workflow)
        return None if state is None or run is None else (state, run)

    def _rows(self, workflow: str) -> TaskRows:
        return TaskRows(self._reads, workflow, lambda: self._live(workflow))

    async def _with_reasons(self, workflow: str, rows: Sequence[TaskWrite]) -> list[TaskWrite]:
        """The rows; a task that was dropped without a reason of its own gets that of its stage, or of the workflow."""
        lacking = {row.stage for row in rows if row.state in _DROPPED and not row.reason}
        if not lacking:
            return list(rows)
        run = self._run(workflow)
        whole = (run or await self._reads.get(workflow)).reason
        if run is not None:
            why = {number: run.stages[number].reason for number in lacking}
        else:
            stages = await self._reads.stages(workflow, first=min(lacking), last=max(lacking))
            why = {stage.stage: stage.reason for stage in stages}
        return [
            views.dropped_row(row, why[row.stage] or whole)
            if row.state in _DROPPED and not row.reason
            else row
            for row in rows
        ]

    async def task(self, workflow: str, stage: str, index: int) -> TaskView:
        """One task with its attempts and outputs."""
        if (run := await self._run_named(workflow)) is not None:
            task = await self._runs.task(run, stage, index)
            return of_run(await self.task(task.last.workflow, task.last.stage, 0), task)
        number, spec = await self._locate(workflow, stage, index)
        rows = [
            row
            async for some in self._rows(workflow).slices((number, index), 1, stage=number)
            for row in some
        ]
        view = views.task_view((await self._with_reasons(workflow, rows))[0], spec)
        view.attempts = [
            views.attempt_view(row) for row in await self._reads.attempts(workflow, number, index)
        ]
        view.outputs = [
            views.output_view(row, self._state())
            for row in await self._reads.outputs(workflow, number, index)
        ]
        return view

    async def cancel_task(
        self, workflow: str, stage: str, index: int, body: Mapping[str, Any] | None = None
    ) -> TaskView:
        """Stop one task that is ready or runs, for good: it has failed, and its stage's policy says what follows.

        A task of a run is a call, which is cancelled: its engine decides what follows.
        """
        if (run := await self._run_named(workflow)) is not None:
            call = await self._runs.attempt(run, stage, index, None)
            await self.command(call.workflow, "cancel", body)
            return await self.task(workflow, stage, index)
        view = await self.task(workflow, stage, index)
        if view.state == TaskState.PENDING.name:
            raise Conflict(
                f"{stage}[{index}] of {workflow} waits for other stages: cancel it when it is ready, or the workflow "
                f"(`flowsched cancel {workflow}`)"
            )
        if TaskState[view.state] not in TERMINAL:
            await self._command_leader(
                [workflow], "cancel_task", {"stage": stage, "index": index, **(body or {})}
            )
        elif view.reason != CANCELLED:
            raise Conflict(
                f"{stage}[{index}] of {workflow} has ended as {view.state}: there is nothing to cancel"
            )
        return await self.task(workflow, stage, index)

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
        """Log bytes of the last (or a given) attempt, and whether more may come: as long as the attempt has not ended.

        The attempt's row says so, not its files: an executor has none of them before the launch. Attempts of a run's task are
        numbered from 0.
        """
        workflow, stage, index, attempt = await self._logged_at(workflow, stage, index, attempt)
        row = await self._logged(workflow, stage, index, attempt, stream)
        live = not RunState((await self._reads.get(workflow)).state).terminal
        if row is None:
            return b"", live
        name = pod_name(workflow, stage, index, row.attempt)
        data, more = await self._executor.logs(name, stream, offset, limit, row.node)
        return data, more or (live and row.ended_ms is None)

    async def _tails(self, workflow: str, attempt: int, node: str) -> tuple[str, str]:
        """The ends of stdout and stderr of a TES task's attempt, where the executor finds them at once."""
        if not self._executor.knows_log_sizes:
            return "", ""
        name, ends = pod_name(workflow, STAGE, 0, attempt), []
        for stream in ("stdout", "stderr"):
            start = max(0, await self._executor.log_size(name, stream, node) - TAIL_BYTES)
            ends.append((await self._executor.logs(name, stream, start, TAIL_BYTES, node))[0])
        return ends[0].decode(errors="replace"), ends[1].decode(errors="replace")

    async def log_start(
        self, workflow: str, stage: str, index: int, *, attempt: int | None, stream: str, tail: int
    ) -> int:
        """The offset of the last `tail` lines, found from the end of the log; see `start_of_last`."""
        workflow, stage, index, attempt = await self._logged_at(workflow, stage, index, attempt)
        row = await self._logged(workflow, stage, index, attempt, stream)
        if row is None:
            return 0
        name, node = pod_name(workflow, stage, index, row.attempt), row.node or ""

        async def read(offset: int, limit: int) -> bytes:
            return (await self._executor.logs(name, stream, offset, limit, node))[0]

        return await start_of_last(read, await self._executor.log_size(name, stream, node), tail)

    async def _logged_at(
        self, workflow: str, stage: str, index: int, attempt: int | None
    ) -> tuple[str, str, int, int | None]:
        """Where the log of an attempt is: of a run's task, it is that of the call's workflow."""
        if (run := await self._run_named(workflow)) is None:
            return workflow, stage, index, attempt
        call = await self._runs.attempt(run, stage, index, attempt)
        return call.workflow, call.stage, 0, None

    async def _logged(
        self, workflow: str, stage: str, index: int, attempt: int | None, stream: str
    ) -> AttemptRow | None:
        """The attempt whose log is asked for; None as long as there is none."""
        if stream not in ("stdout", "stderr"):
            raise InvalidRequest(f"there is no stream {stream!r}; there are stdout and stderr")
        number, _ = await self._locate(workflow, stage, index)
        attempts = await self._reads.attempts(workflow, number, index)
        row = next((row for row in reversed(attempts) if attempt in (None, row.attempt)), None)
        if attempts and row is None:
            raise NotFound(f"{stage}[{index}] has no attempt {attempt}")
        if row is not None:
            self._check_files_are_here()
        return row

    async def output(self, workflow: str, stage: str, index: int, name: str) -> OutputData:
        """The bytes of an output.

        Raises:
            NotFound: There is no such output, or this task has not written it.
            Conflict: It was written, and no node has it any more.
        """
        number, spec = await self._locate(workflow, stage, index)
        self._check_files_are_here()
        declared = {output.name: output for output in spec.outputs}
        if name not in declared:
            there = ", ".join(sorted(declared)) or "none"
            raise NotFound(f"stage {stage!r} has no output {name!r}; its outputs: {there}")
        rows = [row for row in await self._reads.outputs(workflow, number, index) if row.name == name]
        if not rows:
            raise NotFound(f"{stage}[{index}] has not written its output {name!r} (so far)")
        view = views.output_view(rows[0], self._state())
        opened = await self._executor.open_dataset(view.uri, view.nodes)
        if opened is None:
            raise Conflict(
                f"{stage}[{index}] wrote its output {name!r} ({view.size_bytes} bytes), but no node has it any more: "
                "it was removed, or lost with its node; run the workflow again to have it"
            )
        path = filled(declared[name].path, spec, index // spec.members)
        # Never a dot file: a user who saves outputs in a folder would not see it.
        file_name = (PurePosixPath(path).name.lstrip(".") or name) + (".tar" if opened.directory else "")
        return OutputData(file_name, opened.size_bytes, opened.chunks)

    def _check_files_are_here(self) -> None:
        """Refuse to look for a task's files where they cannot be: under the root of a process that stands by for another root.

        Raises:
            Conflict: They lie elsewhere; the message says where.
        """
        if self._leader.leadership.standing_by and not self._replicated:
            raise Conflict(
                "the logs and outputs of tasks lie under the root of the process that leads, ask that one; "
                f"this one is {self._leader.leadership.standing_by}"
            )

    async def _locate(self, workflow: str, stage: str, index: int) -> tuple[int, Any]:
        spec = await self._documents.spec(workflow)
        for number, each in enumerate(spec.stages):
            if each.name == stage:
                if not 0 <= index < each.tasks:
                    raise NotFound(f"stage {stage!r} has tasks 0 to {each.tasks - 1}, not {index}")
                return number, each
        raise NotFound(no_stage(workflow, stage, spec))

    async def explain(
        self, workflow: str, *, stage: str | None = None, index: int | None = None
    ) -> list[ExplanationView]:
        """Why what does not run does not run; for what has failed, why it failed; of one task, also why on its node."""
        if (run := await self._run_named(workflow)) is not None:
            return await self._runs.explain(run, self.explain, self.plans.why_not, stage=stage, index=index)
        if index is not None:
            return await self._explained_task(workflow, stage, index)
        await self._reads.get(workflow)  # there must be one
        number = None if stage is None else (await self._locate(workflow, stage, 0))[0]
        found = await self._explained(workflow, stage)
        stages = (await self._documents.spec(workflow)).stages
        spoiled: dict[int, list[int]] = {}
        for at, task in await self._reads.noted(workflow, SPOILED, number):
            spoiled.setdefault(at, []).append(task)
        found = [*found, *(views.spoiled(stages[at], tasks) for at, tasks in spoiled.items())]
        specs = {each.name: each for each in stages}
        return await aside(len(found) * views.STAGE_BYTES, views.explanation_views, found, specs)

    async def _explained_task(self, workflow: str, stage: str | None, index: int) -> list[ExplanationView]:
        """Of one task: why it is in its state, with the tasks of its stage that are too, and why on the node of its last try."""
        if stage is None:
            raise InvalidRequest("an index says nothing without the name of its stage")
        task = await self.task(workflow, stage, index)
        of_stage = [] if task.state == "SUCCEEDED" else await self.explain(workflow, stage=stage)
        found = [each for each in of_stage if each.state == task.state]
        if not found and task.reason and TaskState[task.state] in TERMINAL:
            found = [views.ended_view(task)]
        placed = views.placed_view(task)
        return found if placed is None else [*found, placed]

    async def _explained(self, workflow: str, stage: str | None) -> list[Explanation]:
        """Of a workflow that lives, from memory, some stages at a time: the event loop serves other requests between them.

        Long reads take turns: however many clients ask, the loop makes one slice before it serves other requests.
        """
        found: list[Explanation] = []
        facts, steps, first = None, -1, 0
        await self._taken_in(workflow)
        while True:
            async with self._turn:
                await asyncio.sleep(0)
                await self._at_rest()
                run, state, now = self._run(workflow), self._state(), self._clock()
                dispatcher = self._leader.dispatcher
                if run is None or state is None or dispatcher is None:
                    break
                if facts is None or dispatcher.steps != steps:
                    facts, steps = Facts(state, run), dispatcher.steps
                asked = run.stages if stage is None else [run.stages[run.number_of(stage)]]
                for each in asked[first : first + EXPLAINED]:
                    found += explain_stage(facts, each, now)
                first += EXPLAINED
                if first < len(asked) + EXPLAINED:
                    continue
            why = self._starts_nothing()
            found = [
                replace(each, message=f"{each.message}; {why}") if why and each.code == "Starting" else each
                for each in found
            ]
            found = await with_outlooks(state, found, now)
            return with_starts(found, await self._forecasts.fresh())
        row = await self._reads.get(workflow)
        if not RunState(row.state).terminal and self._leader.leadership.standing_by:
            raise self._not_leading()
        return [
            Explanation(
                s.name, (), s.counts.get(s.state, 0), s.state, s.state.title(), s.reason or row.reason
            )
            for s in await self._reads.stages(workflow)
            if s.state in ("FAILED", "SKIPPED", "CANCELLED") and stage in (None, s.name)
        ]

    async def _taken_in(self, workflow: str) -> None:
        """Wait a moment for a workflow that was accepted just now, and that the leader has not taken in yet."""
        if self._leader.dispatcher is None or self._run(workflow) is not None:
            return
        if RunState((await self._reads.get(workflow)).state).terminal:
            return
        for _ in range(_TAKEN_IN_LOOKS):
            if self._run(workflow) is not None or self._leader.dispatcher is None:
                return
            await asyncio.sleep(_TAKEN_IN_PAUSE_S)

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
        return None if await self._run_named(ident) is None else partial(self._over, ident)

    async def _over(self, ident: str) -> bool:
        row = await self._runs.find(ident)
        return row is None or await self._runs.over(row, self.engine_ends.asks)

    async def report_end(self, run: str, state: str, reason: str) -> WorkflowView:
        """Keep how a run has ended, as its engine says."""
        await self._runs.end(run, state, reason)
        self._history.stir()
        return await self.workflow(run)

    # ------------------------------------------------------------------------------------------ cluster

    async def queues(self) -> list[QueueView]:
        """All queues: those configured, those in use, and `default`."""
        return queue_views(await self._leading())

    async def put_queue(self, name: str, settings: Mapping[str, Any]) -> QueueView:
        """Create or change a queue."""
        if self._leader.leadership.elsewhere:
            raise self._not_leading()  # before the row is kept
        before = {row.name: row for row in await self._queues.list()}
        row = queue_row(name, settings, before.get(name, QueueRow(name)))
        check_tree(row, before)
        await self._queues.put(row)
        self._leader.queue_changed(row)
        dispatcher = self._leader.dispatcher
        if dispatcher is not None:
            await dispatcher.settled()
        for view in await self.queues():
            if view.name == name:
                return view
        raise Unavailable(f"queue {name!r} is kept, and not in force yet: ask for it again in a moment")

    async def usage(
        self,
        *,
        by: str = "queue",
        since: str | None = None,
        until: str | None = None,
        queue: str | None = None,
    ) -> UsageView:
        """The resources allocated to workflows. Every process answers it from the database."""
        now = self._clock()
        begin, end = views.time_before(since, now), views.time_before(until, now, end_of_day=True)
        sums = await self._accounting.sums(by, since_ms=begin, until_ms=end, queue=queue)
        return views.usage_view(by, begin, end, queue, sums)

    async def delete_queue(self, name: str) -> QueueView:
        """Remove the settings of a queue that has nothing in it; returns what it was."""
        before = {view.name: view for view in await self.queues()}
        if name not in before:
            raise NotFound(no_such("queue", name, before))
        try:
            await self._queues.delete(name)
        except NotFound as error:
            raise NotFound(
                f"{error}: workflows that name it bring it up, and it leaves the list with the last of them"
            ) from None
        self._leader.queue_removed(name)
        dispatcher = self._leader.dispatcher
        if dispatcher is not None:
            await dispatcher.settled()
        return before[name]

    async def metrics(self) -> bytes:
        """Metrics in Prometheus' text format; gauges only where this process leads and its lease has not run out."""
        await self._at_rest()
        leader = self._leader
        standing = leader.standing(self._executor.counters())
        state = None if standing.lease_s is None else self._state()
        return await leader.metrics.text(state, standing, self._clock())

    async def nodes(self) -> list[NodeView]:
        """All nodes."""
        return views.node_views(await self._leading(), self._executor.flows())

    async def idle(self) -> IdleReportView:
        """Why what is idle now is idle. Only the leader knows."""
        room, now = views.idle_room_of(await self._leading()), self._clock()
        return await asyncio.to_thread(lambda: views.idle_report(split(room), now))

    async def refused_nodes(self, pod: bytes) -> dict[str, str]:
        """Nodes that another scheduler's pod may not have now, and why."""
        await self._at_rest()
        leading = self._leader.dispatcher
        if leading is None:
            return {}
        return self._extender.refused(leading.state, leading.steps, pod, self._clock())

    @cached_property
    def _extender(self) -> Extender:
        """Answers to a stock kube-scheduler. Loaded when one asks: with the objects of Kubernetes that takes 18 ms."""
        from flowsched.control.extender import Extender

        return Extender()

    async def node_scores(self, pod: bytes, nodes: Sequence[str]) -> list[int]:
        """How much each node is liked for such a pod, 0 to 10."""
        await self._at_rest()
        state = self._state()
        if state is None:
            return [0] * len(nodes)
        from flowsched.control.extender import scores

        return scores(state, pod, nodes)

    async def leader(self) -> str | None:
        """The URL of the process that leads, if it is another one; asked of the database at most once a second."""
        if self._leader.leadership.epoch or not self._replicated:
            return None
        now = self._clock()
        if now - self._leader_read_ms > LEADER_MS:
            holding = await Lease(self._database).read()
            self._leader_url = holding.holder.partition(AT)[2] or None
            self._leader_read_ms = now
        return self._leader_url

    def live(self) -> tuple[bool, str]:
        """Whether the loops are moving."""
        if self._leader.failures >= STUCK_TERMS:
            return False, f"leader: its loops failed {self._leader.failures} times in a row; see the log"
        dispatcher = self._leader.dispatcher
        if dispatcher is not None and dispatcher.busy_since is not None:
            busy = self._clock() - dispatcher.busy_since
            if busy > STUCK_MS:
                return False, f"dispatch: a step has been under way for {busy} ms"
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """Whether it leads and has recovered, or stands by for the process that does; else what it waits for."""
        outage = self._database.outage
        if outage is not None and (away_s := time.monotonic() - outage.since) >= OUTAGE_S:
            return False, f"database: {outage.message} (for {away_s:.0f} s; the service waits and goes on)"
        leadership, leads = self._leader.leadership, self._leader.dispatcher is not None
        if not leads and leadership.waits_for:
            return False, leadership.waits_for
        if leadership.standing_by:
            return not leadership.leaderless, leadership.standing_by
        if leads and (why := self._starts_nothing()):
            return False, why
        if leadership.epoch == 0:
            return self._replicated, "leader: waiting for the lease"  # replicas answer all the same
        if self._leader.dispatcher is None:
            back, living = self._leader.recovered
            return False, f"recovery: {back} of {living} workflows are back; reading and cancelling work"
        return True, "ok"

    def _starts_nothing(self) -> str:
        """Why a leader starts nothing in its cluster now, in words; "" = it does."""
        trouble = self._executor.trouble and f"cluster: {self._executor.trouble}"
        why = self._leader.leadership.cut_off or trouble
        return why and f"{why}; nothing new is started"

    def _wake(self, *, urgent: bool = False) -> None:
        """Something was accepted: wake the leader's intake. `urgent`: see `Intake.wake`."""
        if self._leader.intake is not None:
            self._leader.intake.wake(urgent=urgent)
        else:
            self._documents.trim()

    def _state(self) -> EngineState | None:
        """Memory, if it can be looked at now: this process leads, and no long step changes it."""
        dispatcher = self._leader.dispatcher
        return None if dispatcher is None or not dispatcher.at_rest else dispatcher.state

    async def _leading(self) -> EngineState:
        """Memory, once it can be looked at. Nothing may be awaited between this and the look.

        Raises:
            NotLeader: Another process leads, on another root.
            Unavailable: This process does not lead yet.
        """
        await self._at_rest()
        state = self._state()
        if state is None:
            raise self._not_leading()
        return state

    def _not_leading(self) -> FlowschedError:
        """Why this process cannot answer what only the leader knows, and what to do."""
        return self._leader.leadership.not_leading(self.ready()[1])

    async def _at_rest(self) -> None:
        """Wait until no long step changes memory."""
        while (dispatcher := self._leader.dispatcher) is not None and not dispatcher.at_rest:
            await dispatcher.rest()

    def _run(self, workflow: str) -> WorkflowRun | None:
        state = self._state()
        return None if state is None else state.work.runs.get(workflow)
