"""The small steps of `advance`: every change of a run's arrays is made here, through a Statement, and noted for the rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowsched.statement import Statement
from flowsched.workflow.graph import Edge
from flowsched.workflow.lifecycle import TaskEvent, after, after_one, mask_of, may
from flowsched.workflow.run import (
    BYTES_LOCAL,
    BYTES_MOVED,
    QUEUED_MS,
    RUNNING_MS,
    STAGING_MS,
    Output,
    StageRun,
    WorkflowRun,
)
from flowsched.workflow.spec import Action, Match, On, When
from flowsched.workflow.states import RunState, TaskState

READY, STAGED_AT, BOUND, STARTED, ENDED = range(5)  #: columns of `StageRun.times`
Indices = NDArray[np.int64]
_S = TaskState
_E = TaskEvent
_HOLDING = mask_of(_S.BINDING, _S.BOUND, _S.RUNNING, _S.RELEASING)


@dataclass(slots=True)
class Changes:
    """What `advance` touched in one run: the step makes rows, releases and queue changes of it."""

    tasks: dict[int, list[Indices]] = field(default_factory=dict)
    stages: set[int] = field(default_factory=set)
    fresh: set[int] = field(default_factory=set)  #: stages nobody has looked at since they were touched
    workflow: bool = False
    release: list[tuple[int, int]] = field(
        default_factory=list
    )  #: (stage, task) whose pod shall be taken away
    freed: list[tuple[int, int, int]] = field(
        default_factory=list
    )  #: (stage, task, attempt) that holds nothing more
    outputs: list[tuple[int, int, str, Output]] = field(default_factory=list)
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def touch(self, stage: int) -> None:
        """Something of this stage changed."""
        self.stages.add(stage)
        self.fresh.add(stage)


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended, as far as the workflow is concerned."""

    exit_code: int
    reason: str = ""
    message: str = ""
    outputs: tuple[tuple[str, str, int, str | None], ...] = ()  #: (name, uri, size, value)
    returned: int = 0  #: to its client, though its own exit code is 0


class Moves:
    """One step's view of one run: binds the run, the statement and the moment, and collects the changes."""

    def __init__(self, run: WorkflowRun, statement: Statement, now: int) -> None:
        self.run = run
        self.statement = statement
        self.now = now
        self.changes = Changes()
        self._resolved: deque[int] = deque()

    def _touch(self, stage: StageRun) -> bool:
        """Make the arrays. True if they were made now: then `missing` counts all that is done up to this moment."""
        before = stage.uniform
        if before is None:
            return False
        stage.touch(self._open_missing(stage))
        self.statement.undo_with(lambda: setattr(stage, "uniform", before))
        return True

    def _move(self, stage: StageRun, tasks: Indices, event: TaskEvent) -> None:
        if len(tasks) <= 1:
            if len(tasks):
                self._move_one(stage, int(tasks[0]), event)
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

    def _move_one(self, stage: StageRun, task: int, event: TaskEvent) -> None:
        """As `_move`, for one task: most news is of one."""
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

    def _move_uniform(self, stage: StageRun, state: TaskState) -> None:
        self.statement.set(stage.counts, slice(None), 0)
        self.statement.set(stage.counts, int(state), stage.spec.tasks)
        self.statement.assign(stage, "uniform", state)
        self.changes.touch(stage.number)

    def _put(self, stage: StageRun, name: str, tasks: Indices, values: Any) -> None:
        """Write to an array that many stages do without."""
        if not stage.holds_only(name, values):
            self.statement.set(stage.own(name), tasks, values)

    def _stamp(self, stage: StageRun, tasks: Indices, column: int) -> None:
        self.statement.set(stage.times, (tasks, column), self.now)

    def _next_attempt(self, stage: StageRun, tasks: Indices) -> None:
        """A new attempt begins: its waiting is counted from now."""
        if len(tasks) == 0:
            return
        self.statement.add(stage.own("attempt"), tasks, 1)
        self._put(stage, "node", tasks, -1)
        self.statement.set(stage.times, (tasks, READY), self.now)
        self.statement.set(stage.times, (tasks, STAGED_AT), -1)
        self._put(stage, "moved", tasks, 0)
        self._put(stage, "local", tasks, 0)

    def _requeue_ended(self, stage: StageRun, tasks: Indices) -> None:
        for code in stage.exit_code[tasks].tolist():
            self._count_returned(stage, code, -1)
        self._move(stage, tasks, _E.LOSE)
        self._next_attempt(stage, tasks)

    def _count_returned(self, stage: StageRun, code: int, by: int) -> None:
        """A task has succeeded with this exit code, or one that had is to run again."""
        if code > 0:
            self.statement.put(stage.returned, code, stage.returned.get(code, 0) + by)

    def _release(self, stage: StageRun, tasks: Indices, goal: TaskState) -> None:
        """Take pods away. A stronger goal is not weakened: who shall be cancelled is not queued again."""
        if len(tasks) == 0:
            return
        releasing = stage.task_state[tasks] == _S.RELEASING
        fixed = releasing & (stage.goal[tasks] == _S.CANCELLED)
        self._move(stage, tasks, _E.RELEASE)
        self.statement.set(stage.goal, tasks[~fixed], int(goal))
        self.changes.tasks.setdefault(stage.number, []).append(tasks[~fixed])
        self.changes.release.extend((stage.number, task) for task in tasks.tolist())

    def _cancel_waiting(self, stage: StageRun) -> None:
        """Close the stage: what waits is cancelled, and what is given back later will be."""
        self.statement.assign(stage, "closed", True)
        if stage.uniform is not None:
            if stage.uniform is _S.PENDING:
                self._move_uniform(stage, _S.CANCELLED)
        else:
            self._move(stage, np.flatnonzero(may(stage.task_state, _E.CANCEL)), _E.CANCEL)
            waiting = (stage.task_state == _S.RELEASING) & (stage.goal == _S.QUEUED)
            held = np.flatnonzero(waiting)
            self.statement.set(stage.goal, held, int(_S.CANCELLED))
            if len(held):
                self.changes.tasks.setdefault(stage.number, []).append(held)

    def _account(self, stage: StageRun, task: int, attempt: int, at_ms: int, exit_code: int) -> None:
        """Times and bytes of an attempt that ended, into the sums of its stage; and its room is free."""
        ready, staging, bound, started, _ = stage.times[task].tolist()
        sums = np.zeros(5, dtype=np.int64)
        if bound >= 0:
            sums[QUEUED_MS] = max(0, (staging if staging >= 0 else bound) - ready) if ready >= 0 else 0
            sums[STAGING_MS] = max(0, bound - staging) if staging >= 0 else 0
            sums[RUNNING_MS] = max(0, at_ms - started) if started >= 0 else 0
        sums[BYTES_LOCAL] = stage.local[task]
        sums[BYTES_MOVED] = stage.moved[task]
        self.statement.add(stage.totals, slice(None), sums)
        self.statement.put_at(stage.times, (task, ENDED), at_ms)
        self.statement.put_at(stage.own("exit_code"), task, exit_code)
        self.changes.freed.append((stage.number, task, attempt))

    def _publish(self, stage: StageRun, task: int, attempt: int, end: Ended) -> None:
        shard = task // stage.members
        for name, uri, size, value in end.outputs:
            output = Output(uri, size, value, attempt)
            key = (stage.number, name)
            if key not in self.run.outputs:
                self.statement.put(self.run.outputs, key, {})
            self.statement.put(self.run.outputs[key], shard, output)
            self.changes.outputs.append((stage.number, task, name, output))

    def _policy(self, stage: StageRun, event: On, exit_code: int) -> Action:
        for policy in stage.spec.policies:
            anything = policy.event is On.ANY and event not in (On.TASK_COMPLETED, On.TASK_PENDING)
            if policy.event is not event and not anything:
                continue
            if not policy.exit_codes or exit_code in policy.exit_codes:
                return policy.action
        if event is On.TASK_COMPLETED:
            return Action.IGNORE
        return Action.RESTART_GANG if stage.spec.gang else Action.RESTART_TASK

    def _current(self, stage: StageRun, task: int, attempt: int) -> bool:
        return stage.uniform is None and int(stage.attempt[task]) == attempt

    def _holds(self, stage: StageRun, task: int, attempt: int) -> bool:
        """Whether this attempt is the one that holds a pod now: old news changes nothing."""
        if not self._current(stage, task, attempt):
            return False
        return bool(_HOLDING[stage.task_state[task]])

    def _set_stage(self, stage: StageRun, state: RunState, reason: str) -> None:
        self.statement.assign(stage, "state", state)
        self.statement.assign(stage, "reason", reason)
        if state is RunState.RUNNING and stage.started_ms is None:
            self.statement.assign(stage, "started_ms", self.now)
        self.statement.assign(stage, "ended_ms", self.now if state.terminal else None)
        self.changes.touch(stage.number)
        self.changes.events.append(
            (f"stage.{state.value.lower()}", {"stage": stage.spec.name, "reason": reason})
        )

    def _set_run(self, state: RunState, reason: str | None = None, *, why: str = "") -> None:
        """`reason` stays with the run (None: as it is); `why`, a user's words, is told once, with the event."""
        run = self.run
        if reason is not None:
            self.statement.assign(run, "reason", reason)
        if run.state is state:
            return
        self.statement.assign(run, "state", state)
        self.changes.workflow = True
        self.changes.events.append((f"workflow.{state.value.lower()}", {"reason": why or run.reason}))

    def _event(self, kind: str, stage: StageRun, task: int, **body: Any) -> None:
        attempt = int(stage.attempt[task])
        self.changes.events.append(
            (kind, {"stage": stage.spec.name, "index": task, "attempt": attempt, **body})
        )

    def _is_barrier(self, edge: Edge) -> bool:
        """Whether the edge counts whole stages. A stage that may run after failures waits for whole stages only."""
        if self.run.stages[edge.child].spec.when.outcome is not When.SUCCESS:
            return True
        return edge.match not in (Match.INDEX, Match.CHUNK)

    def _per_shard_edges(self, stage: StageRun) -> bool:
        return any(not self._is_barrier(edge) for edge in self.run.graph.edges_in[stage.number])

    def _initial_barriers(self, stage: StageRun) -> int:
        return sum(self._is_barrier(edge) for edge in self.run.graph.edges_in[stage.number])

    def _initial_missing(self, stage: StageRun) -> NDArray[np.int32]:
        missing = np.zeros(stage.spec.width, dtype=np.int32)
        for edge in self.run.graph.edges_in[stage.number]:
            if not self._is_barrier(edge):
                missing += self.run.graph.parents_per_shard(edge)
        return missing

    def _open_barriers(self, stage: StageRun) -> int:
        """Parents, over barrier edges, that do not count as done now (see `_resolve`)."""
        total = 0
        for edge in self.run.graph.edges_in[stage.number]:
            if self._is_barrier(edge):
                parent = self.run.stages[edge.parent]
                total += not parent.state.terminal
        return total

    def _open_missing(self, stage: StageRun) -> NDArray[np.int32]:
        """(W,) parent shards, over `index` and `chunk` edges, that are not done now."""
        missing = self._initial_missing(stage)
        for edge in self.run.graph.edges_in[stage.number]:
            if self._is_barrier(edge):
                continue
            parent = self.run.stages[edge.parent]
            if parent.state is RunState.SKIPPED:
                missing -= self.run.graph.parents_per_shard(edge)
            elif parent.uniform is None:
                shards, fewer = self.run.graph.affected(edge, np.flatnonzero(parent.shard_done))
                missing[shards] -= fewer
        return missing
