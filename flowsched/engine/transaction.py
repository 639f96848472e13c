"""The recorder: collects the changes of one step, and makes rows of them at the end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.engine.data.cache_values import Evictable
from flowsched.engine.data.inputs import reads_outside
from flowsched.engine.data.remote_reads import end_reading
from flowsched.engine.delta import (
    AttemptEnd,
    Delta,
    EventRow,
    Intent,
    OutputWrite,
    RunEnd,
    StageWrite,
    TaskWrite,
    WorkflowWrite,
)
from flowsched.engine.memoization import is_memoized, waiting_shards
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import pod_name
from flowsched.executor.foreign import Bind, Evict
from flowsched.executor.protocol import Drop, Pod
from flowsched.scheduling.explain.recording import Tape
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.statement import Statement
from flowsched.workflow.returned import as_totals
from flowsched.workflow.run.advance import Advance
from flowsched.workflow.run.lifecycle import mask_of
from flowsched.workflow.run.moves import BOUND
from flowsched.workflow.run.outcomes import TO_JOIN
from flowsched.workflow.run.run import RARE_TOTALS, TOTALS, StageRun, WorkflowRun
from flowsched.workflow.run.states import RunState, TaskState

#: States that are written even for a task that has no row yet. Others are derived after a restart.
_DURABLE: Final = mask_of(
    TaskState.BINDING,
    TaskState.RUNNING,
    TaskState.RELEASING,
    TaskState.SUCCEEDED,
    TaskState.FAILED,
)


#: The state remembers so many runs without an engine, since calls of them may still arrive: about a megabyte.
_MOST_ENDED_RUNS: Final = 4_096


class Result(msgspec.Struct):
    """The rows and the ended workflows that `finish` returns."""

    delta: Delta
    ended: list[str]


class Recorder(msgspec.Struct):
    """One step's scratch book. Everything it changes in the state goes through `statement`."""

    state: EngineState
    statement: Statement
    now: int
    delta: Delta = msgspec.field(default_factory=Delta)
    launches: list[Pod] = msgspec.field(default_factory=list)
    binds: list[Bind] = msgspec.field(default_factory=list)
    evictions: list[Evict] = msgspec.field(default_factory=list)
    foreign_ended: list[str] = msgspec.field(default_factory=list)
    releases: list[str] = msgspec.field(default_factory=list)
    drops: list[Drop] = msgspec.field(default_factory=list)
    #: (workflow, stage) with shards that are ready and have not been looked up in the cache of results.
    lookups: dict[tuple[str, int], None] = msgspec.field(default_factory=dict)
    wake_ms: int | None = None
    #: The copies that caches with a limit may drop, in this step; None = not asked, or no cache has a limit.
    evictable: Evictable | None = None
    #: Where this step's cycle is recorded; None = nowhere. Decides nothing.
    tape: Tape | None = None
    #: Something happened that may let a waiting group start: room, bytes, nodes, new work.
    dirty: bool = False
    #: Nothing but time may have done so.
    ticked: bool = False
    #: Foreign groups, and those of their pods that may be evicted on other terms now.
    reconsidered: dict[str, set[str]] = msgspec.field(default_factory=dict)
    _advances: dict[str, Advance] = msgspec.field(default_factory=dict)
    _runs: dict[str, WorkflowRun] = msgspec.field(default_factory=dict)
    #: Runs that were advanced since `absorb` last looked: a step may hold a thousand events of as many workflows.
    _asked: dict[str, None] = msgspec.field(default_factory=dict)

    def reconsider(self, group: str, uids: Iterable[str]) -> None:
        """Note that pods of a foreign group may be evicted on other terms now."""
        self.reconsidered.setdefault(group, set()).update(uids)

    def advance(self, run: WorkflowRun) -> Advance:
        """The run's advance of this step."""
        found = self._advances.get(run.id)
        if found is None:
            found = self._advances[run.id] = Advance(run, self.statement, self.now)
            self._runs[run.id] = run
        self._asked[run.id] = None
        return found

    def end_runs(self) -> None:
        """Cancel the calls that a gone engine has sent, and those that arrive later.

        If the head has ended, its run ends. If it was lost and starts again, the new engine sends the rest of the run anew.
        """
        engines, ended = self.state.work.engines, {end.run for end in self.delta.run_ends}
        gone: dict[str, tuple[str, WorkflowRun]] = {}  #: run -> why, and its head
        for head in self._runs.values():
            call = head.spec.call
            if call is None or not call.head or call.run in ended:
                continue
            engine, stage = call.source or "its engine", head.stages[0]
            if head.state.terminal:
                gone[call.run] = f"{engine} has ended", head
                self.delta.run_ends.append(RunEnd(call.run, head.state.value, head.reason))
            elif stage.uniform is None and stage.attempt[0] and TO_JOIN[stage.task_state[0]]:
                gone[call.run] = f"{engine} starts again", head
        for name, (why, _) in gone.items():
            if len(engines.ended) >= _MOST_ENDED_RUNS:
                self.statement.pop(engines.ended, next(iter(engines.ended)))
            self.statement.put(engines.ended, name, why)
        for run in list(self.state.work.runs.values()) if gone else ():
            call = run.spec.call
            if call is not None and call.run in gone:
                why, head = gone[call.run]
                if run is not head and (head.state.terminal or not call.head):
                    self.advance(run).cancel(why)

    def open_run(self, head: WorkflowRun) -> None:
        """Calls of its run that arrive from now on are the ones of its engine. Nothing, for a workflow that is no head."""
        if head.spec.call is not None and head.spec.call.head:
            self.statement.pop(self.state.work.engines.ended, head.spec.call.run)

    def recovered(self, run: WorkflowRun) -> None:
        """Derive the state that SQL does not keep; ask again for releases that were under way."""
        advance = self.advance(run)
        if run.state is RunState.PENDING and not run.cancel_requested:
            advance.begin()
            return
        advance.rebuild()
        for stage in run.stages:
            if stage.uniform is None:
                releasing = np.flatnonzero(stage.task_state == TaskState.RELEASING)
                advance.changes.release.extend((stage.number, task) for task in releasing.tolist())
        self.absorb()  # pods by their present names: reports in this step may begin their tasks' next attempts

    def absorb(self) -> bool:
        """Take over what advances have freed, released and made ready so far, so that the cycle counts it.

        Returns:
            Whether there was anything.
        """
        if not self._asked:
            return False
        asked, self._asked = self._asked, {}
        anything = False
        for workflow in asked:
            run = self._runs[workflow]
            self._note_held_back(run)
            changes = self._advances[workflow].changes
            for number, task, attempt in changes.freed:
                self.free(run, run.stages[number], task, attempt)
            changes.freed.clear()
            for number, task in changes.release:
                stage = run.stages[number]
                name = pod_name(run.id, stage.spec.name, task, int(stage.attempt[task]))
                self.releases.append(name)
                self._leaves(name)
            changes.release.clear()
            anything = anything or bool(changes.fresh)
            for number in sorted(changes.fresh):
                self._note_ready(run, run.stages[number], anew=number in changes.anew)
            changes.fresh.clear()
            changes.anew.clear()
        return anything

    def _note_held_back(self, run: WorkflowRun) -> None:
        """Have all stages of a run looked at that was paused, goes on, or is being cancelled."""
        offers, held_back = self.state.work.offers, run.paused or run.cancel_requested
        if held_back != (run.id in offers.held_back):
            offers.held_back ^= {run.id}
            offers.changed.update([(run.id, stage.number) for stage in run.stages])

    def free(self, run: WorkflowRun, stage: StageRun, task: int, attempt: int) -> None:
        """An attempt holds nothing any more."""
        name = pod_name(run.id, stage.spec.name, task, attempt)
        state = self.state
        taker = state.cluster.free(name, self.now, self.statement)
        if taker is not None:  # its row is written when its start or end is reported
            ref = state.work.pods[taker]
            other = state.work.runs[ref.workflow].stages[ref.stage]
            self.statement.put_at(other.times, (ref.task, BOUND), self.now)
        end_reading(state, name, self.statement)
        self.statement.pop(state.work.waiting_pods, name)
        self.statement.exclude(state.round.under_way, name)
        if state.cluster.catalogue.caches is not None:
            state.cluster.catalogue.caches.release(name, self.statement)
        self.dirty = True

    def _leaves(self, name: str) -> None:
        """A pod is being evicted: its claim shows it, because other groups expect its room."""
        snapshot = self.state.cluster.snapshot
        claim = snapshot.claims.get(name)
        self.state.cluster.close(name, self.statement)
        if claim is not None and claim.kind is ClaimKind.RUNNING:
            snapshot.claim(structs.replace(claim, kind=ClaimKind.RELEASING), self.statement)

    def _note_ready(self, run: WorkflowRun, stage: StageRun, *, anew: bool) -> None:
        pair = (run.id, stage.number)
        self.state.note_change(run, stage, anew=anew)
        if stage.counts[TaskState.QUEUED] > 0 and not run.state.terminal:
            if self.state.policy.memoizing and (is_memoized(run.spec, stage.spec) or reads_outside(stage)):
                self._ask(run, stage)
            if pair not in self.state.work.ready:
                self.statement.include(self.state.work.ready, pair)
                if stage.spec.gang or stage.spec.policies:
                    self.statement.include(self.state.work.impatient, pair)
                self.dirty = True
        elif pair in self.state.work.ready:
            self.statement.exclude(self.state.work.ready, pair)
            self.statement.exclude(self.state.work.impatient, pair)

    def _ask(self, run: WorkflowRun, stage: StageRun) -> None:
        """Have ready shards looked up: the versions of their inputs from outside, and whether the cache has their results.

        They are not offered before the answer (`LookedUp`).
        """
        if stage.cache_checked is None:
            stage.cache_checked = np.zeros(stage.spec.width, dtype=np.bool_)
        if not stage.cache_checked.all() and any(map(len, waiting_shards(stage))):
            self.lookups[run.id, stage.number] = None

    def intend(self, run: WorkflowRun, stage: StageRun, pod: Pod, encoded: bytes, choice: str) -> None:
        """A pod will be launched once this step is durable. `choice`: why on its node, as `engine.choices` writes it."""
        self.launches.append(pod)
        self.delta.intents.append(
            Intent(
                workflow=run.id,
                stage=stage.number,
                index=pod.index,
                attempt=pod.attempt,
                name=pod.name,
                node=pod.node,
                epoch=pod.epoch,
                at_ms=self.now,
                pod=encoded,
                choice=choice,
            )
        )

    def attempt_ended(self, end: AttemptEnd) -> None:
        """How an attempt ended."""
        self.delta.ends.append(end)

    def done(self, command: int | None) -> None:
        """A command's row has been dealt with."""
        if command is not None:
            self.delta.commands_done.append(command)

    def wake_at(self, moment: int) -> None:
        """Step again at this moment at the latest."""
        self.wake_ms = moment if self.wake_ms is None else min(self.wake_ms, moment)

    # ------------------------------------------------------------------------------------------------ rows

    def finish(self) -> Result:
        """Make rows of everything that changed. Called once, last."""
        self.absorb()
        ended = []
        for workflow, advance in self._advances.items():
            run = self._runs[workflow]
            changes = advance.changes
            for number, touched in sorted(changes.tasks.items()):
                self._task_rows(run, run.stages[number], touched)
            self.delta.stages.extend(stage_row(run, run.stages[number]) for number in sorted(changes.stages))
            if changes.workflow:
                self.delta.workflows.append(
                    WorkflowWrite(run.id, run.state.value, run.reason, run.started_ms, run.ended_ms)
                )
            self.delta.outputs.extend(
                OutputWrite(run.id, stage, task, name, out.uri, out.size_bytes, out.value, out.attempt)
                for stage, task, name, out in changes.outputs
            )
            self.delta.events.extend(EventRow(run.id, self.now, kind, body) for kind, body in changes.events)
            if run.state.terminal:
                ended.append(run.id)
        # A task that was placed and released again within one step never had a pod asked for.
        return Result(self.delta, ended)

    def _task_rows(self, run: WorkflowRun, stage: StageRun, touched: list[NDArray[np.int64]]) -> None:
        """Rows of the tasks that need one. Most of a million that become ready, or are cancelled unseen, do not."""
        some = touched[0] if len(touched) == 1 else np.concatenate(touched)
        tasks = some[(stage.version[some] > 0) | _DURABLE[stage.task_state[some]]]
        if len(tasks) == 0:
            return
        if len(tasks) > 1:
            tasks = np.unique(tasks, return_counts=True)[0]  # without counts numpy loads numpy.ma
        self.statement.add(stage.own("version"), tasks, 1)
        self.delta.tasks.extend(task_rows(self.state, run, stage, tasks))


def task_row(state: EngineState, run: WorkflowRun, stage: StageRun, task: int) -> TaskWrite:
    """One task as its row."""
    return task_rows(state, run, stage, np.array([task]))[0]


def task_rows(
    state: EngineState, run: WorkflowRun, stage: StageRun, tasks: NDArray[np.int64]
) -> list[TaskWrite]:
    """Tasks as their rows."""
    names, reasons = state.cluster.snapshot.names, stage.reasons
    columns = (
        tasks,
        stage.task_state[tasks],
        stage.attempt[tasks],
        stage.node[tasks],
        stage.goal[tasks],
        stage.version[tasks],
        stage.exit_code[tasks],
        stage.local[tasks],
        stage.moved[tasks],
        stage.charged[tasks],
        stage.memory_steps[tasks],
    )
    numbers, states, attempts, nodes, goals, versions, codes, local, moved, charged, steps = [
        column.tolist() for column in columns
    ]
    # Column by column, in the order of TaskWrite: a look may write a thousand rows.
    rows = zip(
        repeat(run.id),
        repeat(stage.number),
        numbers,
        states,
        attempts,
        [names[node] if node >= 0 else None for node in nodes],
        goals,
        versions,
        [reasons.get(task, "") for task in numbers] if reasons else repeat(""),
        [None if code < 0 else code for code in codes],
        *[[None if at < 0 else at for at in column] for column in stage.times[tasks].T.tolist()],
        local,
        moved,
        charged,
        steps,
        strict=False,
    )
    return list(map(TaskWrite._make, rows))


def stage_row(run: WorkflowRun, stage: StageRun) -> StageWrite:
    """One stage as its row."""
    return StageWrite(
        workflow=run.id,
        stage=stage.number,
        state=stage.state.value,
        counts=stage.counted(),
        started_ms=stage.started_ms,
        ended_ms=stage.ended_ms,
        reason=stage.reason,
        totals=_totals(stage),
    )


def _totals(stage: StageRun) -> dict[str, int]:
    totals = dict(zip(TOTALS, stage.totals.tolist(), strict=True)) | as_totals(stage.returned)
    for name in RARE_TOTALS:
        if not totals[name]:
            del totals[name]
    return totals
