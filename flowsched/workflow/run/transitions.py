"""Transitions of a run: moves of task states, and the consequences inside a workflow when shards complete and stages end.

Children become ready, stages end, and with the last stage the workflow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.statement import Statement
from flowsched.workflow.graph import Edge
from flowsched.workflow.run.lifecycle import TaskEvent, after, after_one, mask_of, may
from flowsched.workflow.run.run import (
    BYTES_LOCAL,
    BYTES_MOVED,
    CORE_MS,
    GPU_MS,
    MEMORY_GIB_MS,
    QUEUED_MS,
    RUNNING_MS,
    STAGING_MS,
    TOTALS,
    Output,
    StageRun,
    WorkflowRun,
)
from flowsched.workflow.run.states import RunState, TaskState
from flowsched.workflow.spec import Action, Match, On, When

READY, STAGING, STAGED, BOUND, STARTED, ENDED = range(6)  #: columns of `StageRun.times`
Indices = NDArray[np.int64]
_S = TaskState
_E = TaskEvent
_QUEUEING = mask_of(_S.QUEUED, _S.STAGING)
_HOLDING = mask_of(_S.BINDING, _S.RUNNING, _S.RELEASING)


class Changes(msgspec.Struct):
    """The changes that `advance` made to one run: the step makes rows, releases and queue changes of them."""

    tasks: dict[int, list[Indices]] = msgspec.field(default_factory=dict)
    stages: set[int] = msgspec.field(default_factory=set)
    fresh: set[int] = msgspec.field(default_factory=set)  #: touched stages that the step has not absorbed yet
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


class Ended(msgspec.Struct, frozen=True):
    """How an attempt ended, as far as the workflow is concerned."""

    exit_code: int
    reason: str = ""
    message: str = ""
    outputs: tuple[tuple[str, str, int, str | None], ...] = ()  #: (name, uri, size, value)
    returned: int = 0  #: to its client, though its own exit code is 0
    spoiled: bool = False  #: an input was written to while it ran
    outgrown: bool = False  #: it ran out of memory, and no further attempt can get more than it had


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
        self.statement.set(stage.times, (tasks, slice(STAGING, BOUND)), -1)
        self._put(stage, "moved", tasks, 0)
        self._put(stage, "local", tasks, 0)

    def _requeue_ended(self, stage: StageRun, tasks: Indices) -> None:
        for code in stage.exit_code[tasks].tolist():
            self._count_returned(stage, code, -1)
        self._move(stage, tasks, _E.LOSE)
        self.statement.set(stage.goal, tasks, int(_S.PENDING))
        self._next_attempt(stage, tasks)

    def _count_returned(self, stage: StageRun, code: int, by: int) -> None:
        """A task has succeeded with this exit code, or one that had is to run again."""
        if code > 0:
            self.statement.put(stage.returned, code, stage.returned.get(code, 0) + by)

    def _release(self, stage: StageRun, tasks: Indices, goal: TaskState) -> None:
        """Take pods away. A stronger goal is not weakened: a task that shall be cancelled is not queued again."""
        if len(tasks) == 0:
            return
        releasing = stage.task_state[tasks] == _S.RELEASING
        fixed = releasing & (stage.goal[tasks] == _S.CANCELLED)
        self._move(stage, tasks, _E.RELEASE)
        self.statement.set(stage.goal, tasks[~fixed], int(goal))
        self.changes.tasks.setdefault(stage.number, []).append(tasks[~fixed])
        self.changes.release.extend((stage.number, task) for task in tasks.tolist())

    def _cancel_waiting(self, stage: StageRun) -> None:
        """Close the stage: cancel its waiting tasks now, and those that are given back later."""
        self.statement.assign(stage, "closed", True)
        if stage.uniform is not None:
            if stage.uniform is _S.PENDING:
                self._move_uniform(stage, _S.CANCELLED)
        else:
            tasks = np.flatnonzero(may(stage.task_state, _E.CANCEL))
            self._account_waiting(stage, tasks)
            self._move(stage, tasks, _E.CANCEL)
            waiting = (stage.task_state == _S.RELEASING) & (stage.goal == _S.QUEUED)
            leaving = np.flatnonzero(waiting)
            self.statement.set(stage.goal, leaving, int(_S.CANCELLED))
            if len(leaving):
                self.changes.tasks.setdefault(stage.number, []).append(leaving)

    def _account(
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
        sums[BYTES_LOCAL] = stage.local[task]
        sums[BYTES_MOVED] = stage.moved[task]
        self.statement.add(stage.totals, slice(None), sums)
        self.statement.put_at(stage.times, (task, ENDED), at_ms)
        self.statement.put_at(stage.own("exit_code"), task, exit_code)
        self.changes.freed.append((stage.number, task, attempt))

    def _account_waiting(self, stage: StageRun, tasks: Indices) -> None:
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
        self._stamp(stage, tasks, ENDED)

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
        declared = self._declared_action(stage, event, exit_code)
        if declared is not None:
            return declared
        if event is On.TASK_COMPLETED:
            return Action.IGNORE
        return Action.RESTART_GANG if stage.spec.gang else Action.RESTART_TASK

    def _declared_action(self, stage: StageRun, event: On, exit_code: int) -> Action | None:
        """The action that the document declares for an event; None if it declares none."""
        for policy in stage.spec.policies:
            anything = policy.event is On.ANY and event not in (On.TASK_COMPLETED, On.TASK_PENDING)
            if policy.event is not event and not anything:
                continue
            if not policy.exit_codes or exit_code in policy.exit_codes:
                return policy.action
        return None

    def _current(self, stage: StageRun, task: int, attempt: int) -> bool:
        return stage.uniform is None and int(stage.attempt[task]) == attempt

    def _holds(self, stage: StageRun, task: int, attempt: int) -> bool:
        """Whether this attempt is the one that holds a pod now: old news changes nothing."""
        return self._current(stage, task, attempt) and bool(_HOLDING[stage.task_state[task]])

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
        """`reason` stays with the run (None: as it is); `why`, a user's words, is reported once, with the event."""
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
        """Whether the edge counts whole stages, as for a stage that may run after failures, or has no shards."""
        child = self.run.stages[edge.child].spec
        if child.when.outcome is not When.SUCCESS or child.width == 0:
            return True
        return edge.match not in (Match.INDEX, Match.CHUNK)

    def _per_shard_edges(self, stage: StageRun) -> bool:
        return any(not self._is_barrier(edge) for edge in self.run.graph.edges_in[stage.number])

    def _open_barriers(self, stage: StageRun) -> int:
        """Parents, over barrier edges, that do not count as done now (see `_resolve`)."""
        edges = self.run.graph.edges_in[stage.number]
        return sum(
            self._is_barrier(edge) and not self.run.stages[edge.parent].state.terminal for edge in edges
        )

    def _open_missing(self, stage: StageRun) -> NDArray[np.int32]:
        """(W,) parent shards, over `index` and `chunk` edges, that are not done now."""
        missing = np.zeros(stage.spec.width, dtype=np.int32)
        for edge in self.run.graph.edges_in[stage.number]:
            parent = self.run.stages[edge.parent]
            if self._is_barrier(edge) or parent.state is RunState.SKIPPED:
                continue
            missing += self.run.graph.parents_per_shard(edge)
            if parent.uniform is None:
                shards, fewer = self.run.graph.affected(edge, np.flatnonzero(parent.shard_done))
                missing[shards] -= fewer
        return missing


# ---- consequences ----


#: Plain numbers: an array is compared with an enum in 7 µs, with a number in 1.4.
_SUCCEEDED, _BINDING = int(_S.SUCCEEDED), int(_S.BINDING)
_UNPLACED = mask_of(_S.PENDING, _S.QUEUED, _S.STAGING, _S.SKIPPED, _S.CANCELLED)
_WAITING = mask_of(_S.QUEUED, _S.PENDING)


class Settling(Moves):
    """Shards, stages and edges."""

    def _check_shard(self, stage: StageRun, shard: int) -> None:
        if stage.members == 1 and not stage.spec.gang:
            if stage.task_state[shard] == _SUCCEEDED:
                self._complete_shard(stage, shard)
            else:
                self._note(stage)
            return
        tasks = stage.indices_of(shard)
        states = stage.task_state[tasks]
        succeeded = states == _SUCCEEDED
        needed = stage.completing if stage.completing.any() else np.ones(len(tasks), dtype=np.bool_)
        # A member that was to join a gang that has done its work meanwhile, and has not begun, is not waited for either.
        unplaced = _UNPLACED[states] | ((states == _BINDING) & (stage.goal[tasks] == _S.RUNNING))
        never_placed = unplaced & self._spare(stage, succeeded)
        if (succeeded | never_placed)[needed].all() and succeeded[needed].any():
            self._complete_shard(stage, shard)
        else:
            self._note(stage)

    def _spare(self, stage: StageRun, succeeded: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(members,) True where the role's minimum has succeeded: no member that was never placed is waited for."""
        spare = np.zeros(len(succeeded), dtype=np.bool_)
        for number, role in enumerate(stage.spec.roles):
            of_role = stage.role_of == number
            if stage.spec.gang and int(succeeded[of_role].sum()) >= role.minimum:
                spare |= of_role
        return spare

    def _complete_shard(self, stage: StageRun, shard: int) -> None:
        """The completing members have succeeded: release the rest and tell the children."""
        if stage.shard_done[shard]:
            return
        if stage.members > 1:
            tasks = stage.indices_of(shard)
            states = stage.task_state[tasks]
            self._release(stage, tasks[may(states, _E.RELEASE)], _S.SUCCEEDED)
            self._skip_waiting(stage, tasks)
        self._shards_are_done(stage, np.array([shard]))

    def _complete_stage(self, stage: StageRun) -> None:
        """Let the stage succeed, since a policy says so: release its running tasks and skip its waiting ones."""
        self._release(stage, np.flatnonzero(may(stage.task_state, _E.RELEASE)), _S.SUCCEEDED)
        self._skip_waiting(stage, np.arange(stage.spec.tasks))
        self.statement.assign(stage, "failed", False)
        self._shards_are_done(stage, np.flatnonzero(~stage.shard_done))

    def _skip_waiting(self, stage: StageRun, tasks: Indices) -> None:
        """Skip those of these tasks that wait."""
        self._account_waiting(stage, tasks)
        self._move(stage, tasks[stage.task_state[tasks] == _S.STAGING], _E.STAGED)
        self._move(stage, tasks[_WAITING[stage.task_state[tasks]]], _E.SKIP)

    def _shards_are_done(self, stage: StageRun, shards: Indices) -> None:
        self.statement.set(stage.shard_done, shards, True)
        self.statement.assign(stage, "done", stage.done + len(shards))
        for edge in self.run.graph.edges_out[stage.number]:
            if not self._is_barrier(edge):
                self._serve_shards(edge, self.run.stages[edge.child], shards)
        self._note(stage)

    def _note(self, stage: StageRun) -> None:
        """Look whether the stage has ended, now that something of it changed."""
        self.changes.touch(stage.number)
        if stage.state.terminal:
            self.changes.workflow = True
            return
        if 0 < stage.spec.width == stage.done:
            self._end_stage(stage, RunState.SUCCEEDED)
        elif stage.open_tasks() == 0:
            self._end_stage(stage, RunState.FAILED if stage.failed else self._unrun(stage))

    @staticmethod
    def _unrun(stage: StageRun) -> RunState:
        # A retry may skip the rest of a stage of which something has run; how members of shards that are done ended is past.
        states = stage.counts
        if stage.uniform is None and stage.done:
            left = stage.task_state[np.repeat(~stage.shard_done, stage.members)]
            states = np.bincount(left, minlength=len(states))
        skipped = states[_S.CANCELLED] == 0 and states[_S.FAILED] == 0
        if stage.spec.width == 0:
            skipped = not stage.closed
        return RunState.SKIPPED if skipped else RunState.CANCELLED

    def _end_stage(self, stage: StageRun, state: RunState) -> None:
        self._set_stage(stage, state, "" if state is RunState.SUCCEEDED else stage.reason)
        self._resolved.append(stage.number)

    def settle(self) -> None:
        """Tell children of ended stages, until nothing more follows; then see whether the workflow has ended.

        A worklist, since a chain may be ten thousand stages long.
        """
        while self._resolved:
            parent = self.run.stages[self._resolved.popleft()]
            for edge in self.run.graph.edges_out[parent.number]:
                child = self.run.stages[edge.child]
                if not child.state.terminal:
                    self._resolve(parent, child, edge)
                elif self._is_barrier(edge):  # counted all the same: it may have to run again (`lose`)
                    self.statement.assign(child, "barriers", child.barriers - 1)
        self._check_workflow()

    def _resolve(self, parent: StageRun, child: StageRun, edge: Edge) -> None:
        """A parent stage has ended: does it count as done for the child, or shall the child never run?"""
        doomed = self._doomed_by(parent, child)
        if doomed is not None:
            self.statement.assign(child, "upset", child.upset or self._unwell(parent))
            self._doom(child, doomed)
            return
        if self._is_barrier(edge):
            self.statement.assign(child, "barriers", child.barriers - 1)
            if child.barriers == 0:
                self._open(child)
        elif parent.state is RunState.SKIPPED:
            if not self._touch(child):  # counted anew: some shards may have been done before
                self.statement.set(child.own("missing"), slice(None), self._open_missing(child))
            self._ready(child, np.arange(child.spec.width))

    @staticmethod
    def _unwell(stage: StageRun) -> bool:
        """Whether it did not do its work because something failed, itself or before it."""
        return stage.state in (RunState.FAILED, RunState.CANCELLED) or (
            stage.state is RunState.SKIPPED and stage.upset
        )

    @staticmethod
    def _doomed_by(parent: StageRun, child: StageRun) -> str | None:
        """Why the child can never run, now that the parent has ended; None if it can."""
        if parent.state is RunState.SUCCEEDED:
            return None
        if Settling._unwell(parent) and child.spec.when.outcome is When.SUCCESS:
            return f"{parent.spec.name!r} did not succeed"
        if any(source.stage == parent.spec.name and not source.optional for source in child.spec.inputs):
            return f"{parent.spec.name!r} wrote nothing it could read"
        return None

    def _doom(self, stage: StageRun, reason: str) -> None:
        """The stage cannot run any more. Running tasks go on. Waiting ones are skipped or, if some tasks ran, cancelled."""
        if not stage.failed:
            self.statement.assign(stage, "reason", reason)
        untouched = stage.uniform is not None or bool((stage.version == 0).all())
        if untouched and stage.holding() == 0 and stage.done == 0:
            self._skip(stage, reason)
        else:
            self._cancel_waiting(stage)
            self._note(stage)

    def _skip(self, stage: StageRun, reason: str) -> None:
        self.statement.assign(stage, "reason", reason)
        if stage.uniform is not None:
            self._move_uniform(stage, _S.SKIPPED)
        else:
            staging = np.flatnonzero(stage.task_state == _S.STAGING)
            self._account_waiting(stage, np.arange(stage.spec.tasks))
            self._move(stage, staging, _E.STAGED)
            self._move(stage, np.flatnonzero(may(stage.task_state, _E.SKIP)), _E.SKIP)
        self._note(stage)

    def _open(self, stage: StageRun) -> None:
        """All its stage-wide parents are done: decide whether it runs at all, and release its ready tasks."""
        if stage.state.terminal:
            return
        if stage.verdict is None:
            self.statement.assign(stage, "verdict", self._wanted(stage))
        if not stage.verdict:
            self._skip(stage, "its condition (`when`) does not hold")
            return
        if stage.spec.width == 0:  # nothing is to be done, and that is done
            self._set_stage(stage, RunState.RUNNING, "")
            self._end_stage(stage, RunState.SUCCEEDED)
            return
        self._touch(stage)
        self._ready(stage, np.arange(stage.spec.width))

    def _wanted(self, stage: StageRun) -> bool:
        when = stage.spec.when
        parents = {edge.parent for edge in self.run.graph.edges_in[stage.number]}
        bad = any(self._unwell(self.run.stages[p]) for p in parents)
        if when.outcome is When.FAILURE and not bad:
            return False
        for name, output, allowed in when.equals:
            shards = self.run.outputs.get((self.run.number_of(name), output), {})
            values = {(published.value or "").strip() for published in shards.values()}
            if not values or not values <= set(allowed):
                return False
        return True

    def _ready(self, stage: StageRun, shards: Indices) -> None:
        """Queue those of the shards for which nothing is missing."""
        if stage.barriers > 0 or stage.failed or self.run.cancel_requested or stage.state.terminal:
            return
        shards = shards[(stage.missing[shards] == 0) & ~stage.shard_done[shards]]
        tasks = (shards[:, None] * stage.members + np.arange(stage.members)).ravel()
        tasks = tasks[stage.task_state[tasks] == _S.PENDING]
        if len(tasks) == 0:
            return
        if stage.verdict is None:
            self.statement.assign(stage, "verdict", self._wanted(stage))
        self._move(stage, tasks, _E.READY)
        self._stamp(stage, tasks, READY)
        if stage.state is RunState.PENDING:
            self._set_stage(stage, RunState.RUNNING, "")

    def _serve_shards(self, edge: Edge, child: StageRun, done: Indices) -> None:
        """These shards of the parent are done."""
        if child.state.terminal and child.uniform is not None:
            return
        shards, fewer = self.run.graph.affected(edge, done)
        if not self._touch(child):
            self.statement.add(child.own("missing"), shards, -fewer)
        self._ready(child, shards)

    def _await_shards(self, edge: Edge, child: StageRun, shard: int) -> None:
        """Shard `shard` of the parent runs again."""
        if child.uniform is not None:
            return
        shards = np.asarray(self.run.graph.shard_children(edge, shard), dtype=np.int64)
        self.statement.add(child.own("missing"), shards, 1)
        tasks = (shards[:, None] * child.members + np.arange(child.members)).ravel()
        self._revoke(child, tasks)

    def _revoke(self, stage: StageRun, tasks: Indices) -> None:
        if stage.uniform is None and not stage.state.terminal:
            tasks = tasks[may(stage.task_state[tasks], _E.REVOKE)]
            self._move(stage, tasks, _E.REVOKE)
            if stage.cache_checked is not None:  # it will read other datasets: its cache key changes
                self.statement.set(stage.cache_checked, tasks // stage.members, False)

    def _reset(self, stage: StageRun) -> None:
        """For a retry: everything of the stage that did not succeed is pending once more."""
        self.statement.assign(stage, "failed", False)
        self.statement.assign(stage, "closed", False)
        self.statement.assign(stage, "upset", False)
        self.statement.assign(stage, "verdict", None)
        self.statement.assign(stage, "started_ms", None)
        self.statement.assign(stage, "ended_ms", None)
        if stage.uniform is not None:
            self._move_uniform(stage, _S.PENDING)
        else:
            if stage.spec.gang:  # a gang starts anew as a whole
                left = np.repeat(~stage.shard_done, stage.members) & (stage.task_state == _S.SUCCEEDED)
                ended = np.flatnonzero(left)
                self._requeue_ended(stage, ended)
                self._move(stage, ended, _E.REVOKE)
            left = np.repeat(~stage.shard_done, stage.members)
            tasks = np.flatnonzero(left & may(stage.task_state, _E.RESET))
            self._move(stage, tasks, _E.RESET)
            self._next_attempt(stage, tasks[stage.version[tasks] > 0])
            self._put(stage, "charged", tasks, 0)
            self._put(stage, "lost", tasks, 0)
        self._set_stage(stage, RunState.PENDING, "")

    def _check_workflow(self) -> None:
        """The workflow ends when all its stages have and nothing of it holds a pod."""
        run = self.run
        if run.state.terminal or not self._all_ended():
            return
        if any(stage.holding() for stage in run.stages):
            return
        failed = [stage for stage in run.stages if stage.state is RunState.FAILED]
        cancelled = any(stage.state is RunState.CANCELLED for stage in run.stages)
        if run.cancel_requested:
            state, reason = RunState.CANCELLED, run.reason
        elif failed:
            state, reason = RunState.FAILED, run.reason or f"{failed[0].spec.name}: {failed[0].reason}"
        elif cancelled:
            state, reason = RunState.FAILED, run.reason
        else:
            state, reason = RunState.SUCCEEDED, ""
        self.statement.assign(run, "ended_ms", self.now)
        self._set_run(state, reason)

    def _all_ended(self) -> bool:
        """Whether all stages have. It begins at one that was seen open, so that long chains are not looked at over and over."""
        stages, run = self.run.stages, self.run
        for step in range(len(stages)):
            at = (run.open_stage + step) % len(stages)
            if not stages[at].state.terminal:
                run.open_stage = at
                return False
        return True

    def _fail_stage(self, stage: StageRun, reason: str) -> None:
        """Its running shards go on to their end, nothing more of it is started."""
        if not stage.failed:
            self.statement.assign(stage, "failed", True)
            self.statement.assign(stage, "reason", reason)
        self._cancel_waiting(stage)
        self._note(stage)

    def _stop_all(self, goal: TaskState) -> None:
        for stage in self.run.stages:
            if stage.state.terminal and stage.holding() == 0:
                continue
            self._cancel_waiting(stage)
            if stage.uniform is None:
                holding = np.flatnonzero(may(stage.task_state, _E.RELEASE))
                self._release(stage, holding, goal)
            self._note(stage)

    def _abort(self, reason: str) -> None:
        if not self.run.reason:
            self.statement.assign(self.run, "reason", reason)
            self.changes.workflow = True  # written: a restart must know that the workflow is being aborted
        self._stop_all(_S.CANCELLED)
