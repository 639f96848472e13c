"""Moves: states of tasks, stages and the workflow, and the counts that go with them, written through the undo log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.statement import Statement
from flowsched.workflow.graph import Edge
from flowsched.workflow.memory import Fitted
from flowsched.workflow.run.lifecycle import TaskEvent, after, after_one, mask_of, may
from flowsched.workflow.run.run import (
    BYTES_LOCAL,
    BYTES_MOVED,
    CORE_MS,
    FITTED,
    FITTED_ASKED_MIB,
    FITTED_GIVEN_MIB,
    GPU_MS,
    MEMORY_GIB_MS,
    MEMORY_SAVED_GIB_MS,
    QUEUED_MS,
    RUNNING_MS,
    STAGING_MS,
    TOTALS,
    Output,
    StageRun,
    WorkflowRun,
)
from flowsched.workflow.run.states import RunState, TaskState
from flowsched.workflow.spec import Match, When

READY, STAGING, STAGED, BOUND, STARTED, ENDED = range(6)  #: columns of `StageRun.times`
Indices = NDArray[np.int64]
_S = TaskState
_E = TaskEvent
_QUEUEING = mask_of(_S.QUEUED, _S.STAGING)


class Changes(msgspec.Struct):
    """The changes that `advance` made to one run: the step makes rows, releases and queue changes of them."""

    tasks: dict[int, list[Indices]] = msgspec.field(default_factory=dict)
    stages: set[int] = msgspec.field(default_factory=set)
    fresh: set[int] = msgspec.field(default_factory=set)  #: touched stages that the step has not absorbed yet
    anew: set[int] = msgspec.field(
        default_factory=set
    )  #: those of them whose tasks may read other datasets now
    workflow: bool = False
    release: list[tuple[int, int]] = msgspec.field(
        default_factory=list
    )  #: (stage, task) with a pod that shall be taken away
    freed: list[tuple[int, int, int]] = msgspec.field(
        default_factory=list
    )  #: (stage, task, attempt) that holds nothing more
    outputs: list[tuple[int, int, str, Output]] = msgspec.field(default_factory=list)
    events: list[tuple[str, Mapping[str, Any]]] = msgspec.field(default_factory=list)

    def touch(self, stage: int) -> None:
        """Something of this stage changed."""
        self.stages.add(stage)
        self.fresh.add(stage)


class AttemptResources(msgspec.Struct, frozen=True):
    """The resources of its node that an attempt had, from its binding to its end."""

    cpu_millicores: int = 0
    memory_bytes: int = 0
    gpu_millis: int = 0
    fitted: Fitted | None = None  #: None = it had the memory that its task asks for, or more


class Ended(msgspec.Struct, frozen=True):
    """How an attempt ended, as far as the workflow is concerned."""

    exit_code: int
    reason: str = ""
    message: str = ""
    outputs: tuple[tuple[str, str, int, str | None], ...] = ()  #: (name, uri, size, value)
    returned: int = 0  #: to its client, though its own exit code is 0
    spoiled: bool = False  #: an input was written to while it ran
    outgrown: bool = False  #: it ran out of memory, and no further attempt can get more than it had
    fitted: bool = (
        False  #: it ran out of memory that was fitted: the next attempt gets what the task asks for
    )


class Moves:
    """One step's view of one run: binds the run, the statement and the moment, and collects the changes."""

    def __init__(self, run: WorkflowRun, statement: Statement, now: int) -> None:
        self.run = run
        self.statement = statement
        self.now = now
        self.changes = Changes()

    def touch(self, stage: StageRun) -> bool:
        """Make the arrays. True if they were made now: then `missing` counts all that is done up to this moment."""
        before = stage.uniform
        if before is None:
            return False
        stage.touch(self.open_missing(stage))
        self.statement.undo_with(lambda: setattr(stage, "uniform", before))
        return True

    def move(self, stage: StageRun, tasks: Indices, event: TaskEvent) -> None:
        """Apply an event to tasks of a stage."""
        if len(tasks) <= 1:
            if len(tasks):
                self.move_one(stage, int(tasks[0]), event)
            return
        old = stage.task_state[tasks]
        new = after(old, event)
        if (old == new).all():
            return
        self.statement.set(stage.task_state, tasks, new)
        size = len(stage.counts)
        shift = np.bincount(new, minlength=size) - np.bincount(old, minlength=size)
        self.statement.add(stage.counts, slice(None), shift)
        self.changes.tasks.setdefault(stage.number, []).append(tasks)
        self.changes.touch(stage.number)

    def move_one(self, stage: StageRun, task: int, event: TaskEvent) -> None:
        """As `move`, for one task: most news is of one."""
        states, counts = stage.task_state, stage.counts
        old = int(states[task])
        new = after_one(old, event)
        if old == new:
            return

        def put(before: int, then: int) -> None:
            states[task] = then
            counts[before] -= 1
            counts[then] += 1

        put(old, new)
        self.statement.undo_with(lambda: put(new, old))
        self.changes.tasks.setdefault(stage.number, []).append(np.array([task]))
        self.changes.touch(stage.number)

    def move_uniform(self, stage: StageRun, state: TaskState) -> None:
        """Give all tasks of a stage without arrays a state."""
        self.statement.set(stage.counts, slice(None), 0)
        self.statement.set(stage.counts, int(state), stage.spec.tasks)
        self.statement.assign(stage, "uniform", state)
        self.changes.touch(stage.number)

    def put(self, stage: StageRun, name: str, tasks: Indices, values: Any) -> None:
        """Write to an array that many stages do without."""
        if not stage.holds_only(name, values):
            self.statement.set(stage.own(name), tasks, values)

    def stamp(self, stage: StageRun, tasks: Indices, column: int) -> None:
        """Write now into a column of `times`."""
        self.statement.set(stage.times, (tasks, column), self.now)

    def next_attempt(self, stage: StageRun, tasks: Indices) -> None:
        """A new attempt begins: its waiting is counted from now."""
        if len(tasks) == 0:
            return
        self.statement.add(stage.own("attempt"), tasks, 1)
        self.put(stage, "node", tasks, -1)
        self.statement.set(stage.times, (tasks, READY), self.now)
        self.statement.set(stage.times, (tasks, slice(STAGING, BOUND)), -1)
        self.put(stage, "moved", tasks, 0)
        self.put(stage, "local", tasks, 0)

    def requeue_ended(self, stage: StageRun, tasks: Indices) -> None:
        """Queue tasks again that had ended: their results count no more."""
        for code in stage.exit_code[tasks].tolist():
            self.count_returned(stage, code, -1)
        self.move(stage, tasks, _E.LOSE)
        self.statement.set(stage.goal, tasks, int(_S.PENDING))
        self.next_attempt(stage, tasks)

    def count_returned(self, stage: StageRun, code: int, by: int) -> None:
        """A task has succeeded with this exit code, or one that had is to run again."""
        if code > 0:
            self.statement.put(stage.returned, code, stage.returned.get(code, 0) + by)

    def release(self, stage: StageRun, tasks: Indices, goal: TaskState) -> None:
        """Take pods away. A stronger goal is not weakened: a task that shall be cancelled is not queued again."""
        if len(tasks) == 0:
            return
        releasing = stage.task_state[tasks] == _S.RELEASING
        fixed = releasing & (stage.goal[tasks] == _S.CANCELLED)
        self.move(stage, tasks, _E.RELEASE)
        self.statement.set(stage.goal, tasks[~fixed], int(goal))
        self.changes.tasks.setdefault(stage.number, []).append(tasks[~fixed])
        self.changes.release.extend((stage.number, task) for task in tasks.tolist())

    def cancel_waiting(self, stage: StageRun) -> None:
        """Close the stage: cancel its waiting tasks now, and those that are given back later."""
        self.statement.assign(stage, "closed", True)
        if stage.uniform is not None:
            if stage.uniform is _S.PENDING:
                self.move_uniform(stage, _S.CANCELLED)
        else:
            tasks = np.flatnonzero(may(stage.task_state, _E.CANCEL))
            self.account_waiting(stage, tasks)
            self.move(stage, tasks, _E.CANCEL)
            waiting = (stage.task_state == _S.RELEASING) & (stage.goal == _S.QUEUED)
            leaving = np.flatnonzero(waiting)
            self.statement.set(stage.goal, leaving, int(_S.CANCELLED))
            if len(leaving):
                self.changes.tasks.setdefault(stage.number, []).append(leaving)

    def account(
        self,
        stage: StageRun,
        task: int,
        attempt: int,
        at_ms: int,
        exit_code: int,
        resources: AttemptResources,
        began_ms: int | None,
    ) -> None:
        """Add times, bytes and resources of an attempt that ended to the sums of its stage; its room is free now.

        However it ended: a pod that failed, was evicted or lost took that room from others too. It may have begun before that was
        reported (`began_ms`); moments before its start then were before that, too.
        """
        if began_ms is not None and began_ms != stage.times[task, STARTED]:
            before = np.minimum(stage.times[task, : STARTED + 1], began_ms)
            before[STARTED] = began_ms
            self.statement.set(stage.times, (task, slice(STARTED + 1)), before)
        ready, staging, staged, bound, started, _ = stage.times[task].tolist()
        sums = np.zeros(len(TOTALS), dtype=np.int64)
        if bound >= 0:
            # Once its bytes are there, it waits for room again.
            sums[STAGING_MS] = max(0, (staged if staged >= 0 else bound) - staging) if staging >= 0 else 0
            sums[QUEUED_MS] = max(0, bound - ready - sums[STAGING_MS]) if ready >= 0 else 0
            sums[RUNNING_MS] = max(0, at_ms - started) if started >= 0 else 0
            occupied_ms = max(0, at_ms - bound)
            sums[CORE_MS] = resources.cpu_millicores * occupied_ms // 1000
            sums[GPU_MS] = resources.gpu_millis * occupied_ms // 1000
            sums[MEMORY_GIB_MS] = (resources.memory_bytes * occupied_ms + (1 << 29)) >> 30  # rounded
        if (fitted := resources.fitted) is not None:
            sums[FITTED] = 1
            sums[FITTED_ASKED_MIB] = fitted.asked_bytes >> 20
            sums[FITTED_GIVEN_MIB] = fitted.given_bytes >> 20
            sums[MEMORY_SAVED_GIB_MS] = (fitted.asked_byte_ms - fitted.given_byte_ms + (1 << 29)) >> 30
        sums[BYTES_LOCAL] = stage.local[task]
        sums[BYTES_MOVED] = stage.moved[task]
        self.statement.add(stage.totals, slice(None), sums)
        self.statement.put_at(stage.times, (task, ENDED), at_ms)
        self.statement.put_at(stage.own("exit_code"), task, exit_code)
        self.changes.freed.append((stage.number, task, attempt))

    def account_waiting(self, stage: StageRun, tasks: Indices) -> None:
        """Tasks that will not run any more: how long those of them waited that were ready, into the sums of their stage."""
        tasks = tasks[_QUEUEING[stage.task_state[tasks]]]
        if len(tasks) == 0:
            return
        ready, staging, staged = stage.times[tasks, READY : STAGED + 1].T
        staged = np.where(staged >= 0, staged, self.now)
        staging_ms = np.where(staging >= 0, staged - staging, 0).clip(0)
        queued_ms = np.where(ready >= 0, self.now - ready - staging_ms, 0).clip(0)
        sums = np.zeros(len(TOTALS), dtype=np.int64)
        sums[STAGING_MS], sums[QUEUED_MS] = staging_ms.sum(), queued_ms.sum()
        self.statement.add(stage.totals, slice(None), sums)
        self.stamp(stage, tasks, ENDED)

    def publish(self, stage: StageRun, task: int, attempt: int, end: Ended) -> None:
        """Make the outputs of a successful attempt known."""
        shard = task // stage.members
        for name, uri, size, value in end.outputs:
            output = Output(uri, size, value, attempt)
            key = (stage.number, name)
            if key not in self.run.outputs:
                self.statement.put(self.run.outputs, key, {})
            self.statement.put(self.run.outputs[key], shard, output)
            self.changes.outputs.append((stage.number, task, name, output))

    def set_stage(self, stage: StageRun, state: RunState, reason: str) -> None:
        """Give a stage a state."""
        self.statement.assign(stage, "state", state)
        self.statement.assign(stage, "reason", reason)
        if state is RunState.RUNNING and stage.started_ms is None:
            self.statement.assign(stage, "started_ms", self.now)
        self.statement.assign(stage, "ended_ms", self.now if state.terminal else None)
        self.changes.touch(stage.number)
        self.changes.events.append(
            (f"stage.{state.value.lower()}", {"stage": stage.spec.name, "reason": reason})
        )

    def set_run(self, state: RunState, reason: str | None = None, *, why: str = "") -> None:
        """`reason` stays with the run (None: as it is); `why`, a user's words, is reported once, with the event."""
        run = self.run
        if reason is not None:
            self.statement.assign(run, "reason", reason)
        if run.state is state:
            return
        self.statement.assign(run, "state", state)
        self.changes.workflow = True
        self.changes.events.append((f"workflow.{state.value.lower()}", {"reason": why or run.reason}))

    def event(self, kind: str, stage: StageRun, task: int, **body: Any) -> None:
        """Report something of a task's present attempt."""
        attempt = int(stage.attempt[task])
        self.changes.events.append(
            (kind, {"stage": stage.spec.name, "index": task, "attempt": attempt, **body})
        )

    def is_barrier(self, edge: Edge) -> bool:
        """Whether the edge counts whole stages, as for a stage that may run after failures, or has no shards."""
        child = self.run.stages[edge.child].spec
        if child.when.outcome is not When.SUCCESS or child.width == 0:
            return True
        return edge.match not in (Match.INDEX, Match.CHUNK)

    def per_shard_edges(self, stage: StageRun) -> bool:
        """Whether the stage waits for single shards of a parent."""
        return any(not self.is_barrier(edge) for edge in self.run.graph.edges_in[stage.number])

    def open_barriers(self, stage: StageRun) -> int:
        """Parents, over barrier edges, that do not count as done now (see `Progress.settle`)."""
        edges = self.run.graph.edges_in[stage.number]
        return sum(
            self.is_barrier(edge) and not self.run.stages[edge.parent].state.terminal for edge in edges
        )

    def open_missing(self, stage: StageRun) -> NDArray[np.int32]:
        """(W,) parent shards, over `index` and `chunk` edges, that are not done now."""
        missing = np.zeros(stage.spec.width, dtype=np.int32)
        for edge in self.run.graph.edges_in[stage.number]:
            parent = self.run.stages[edge.parent]
            if self.is_barrier(edge) or parent.state is RunState.SKIPPED:
                continue
            missing += self.run.graph.parents_per_shard(edge)
            if parent.uniform is None:
                shards, fewer = self.run.graph.affected(edge, np.flatnonzero(parent.shard_done))
                missing[shards] -= fewer
        return missing
