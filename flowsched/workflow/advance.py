"""advance: what happened to tasks of one workflow, applied to its arrays; and all that follows from it inside the workflow.

It decides which shards became ready, what is tried again, what must be taken away, when a stage and the workflow end. It takes
no room and chooses no node: that is `scheduling`. Every change goes through a Statement, so that a step whose commit fails
leaves no trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowsched.statement import Statement
from flowsched.workflow.graph import Edge
from flowsched.workflow.lifecycle import END_OF, TaskEvent, after, may
from flowsched.workflow.run import BYTES_LOCAL, BYTES_MOVED, QUEUED_MS, RUNNING_MS, STAGING_MS
from flowsched.workflow.run import Output, StageRun, WorkflowRun
from flowsched.workflow.spec import Action, Match, On, When
from flowsched.workflow.states import RunState, TaskState

READY, STAGED_AT, BOUND, STARTED, ENDED = range(5)  #: columns of `StageRun.times`
Indices = NDArray[np.int64]
_S = TaskState
_E = TaskEvent

#: A task that the infrastructure loses this often is quarantined (FAULTS.md row 42): it may be what kills its nodes.
MAX_LOST: Final = 10
#: Back-off before attempt k: 1 s, 2 s, 4 s … at most a minute.
BACKOFF_MS: Final = 1_000
MAX_BACKOFF_MS: Final = 60_000
#: Ways to end that are the task's own doing and shall not be repeated at once on the same node are charged all the same.
OUT_OF_MEMORY: Final = "OOMKilled"


@dataclass(slots=True)
class Changes:
    """What `advance` touched in one run: the step makes rows, releases and queue changes of it."""

    tasks: dict[int, list[Indices]] = field(default_factory=dict)
    stages: set[int] = field(default_factory=set)
    workflow: bool = False
    release: list[tuple[int, int]] = field(default_factory=list)  #: (stage, task) whose pod shall be taken away
    freed: list[tuple[int, int, int]] = field(default_factory=list)  #: (stage, task, attempt) that holds nothing more
    outputs: list[tuple[int, int, str, Output]] = field(default_factory=list)
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended, as far as the workflow is concerned."""

    exit_code: int
    reason: str = ""
    message: str = ""
    outputs: tuple[tuple[str, str, int, str | None], ...] = ()  #: (name, uri, size, value)


class Advance:
    """One step's view of one run: binds the run, the statement and the moment, and collects the changes."""

    def __init__(self, run: WorkflowRun, statement: Statement, now: int) -> None:
        self.run = run
        self.statement = statement
        self.now = now
        self.changes = Changes()
        self._resolved: deque[int] = deque()

    # ---------------------------------------------------------------- what the cluster and the scheduler say

    def begin(self) -> None:
        """The workflow was accepted: open what needs nobody."""
        run = self.run
        self._set_run(RunState.PAUSED if run.paused else RunState.RUNNING)
        self.statement.assign(run, "started_ms", self.now)
        for stage in run.stages:
            self.statement.assign(stage, "barriers", self._initial_barriers(stage))
        for stage in run.stages:
            if stage.barriers == 0 and not self._per_shard_edges(stage):
                self._open(stage)
        self.settle()

    def target(self, stage: StageRun, tasks: Indices, nodes: Indices) -> None:
        """Nodes were chosen; the bytes are on their way."""
        self._move(stage, tasks, _E.TARGET)
        self.statement.set(stage.node, tasks, nodes)
        fresh = tasks[stage.times[tasks, STAGED_AT] < 0]
        self._stamp(stage, fresh, STAGED_AT)

    def staged(self, stage: StageRun, tasks: Indices) -> None:
        """The bytes are there (or will not come): offer the tasks again."""
        tasks = tasks[stage.task_state[tasks] == _S.STAGING]
        self._move(stage, tasks, _E.STAGED)

    def bind(self, stage: StageRun, tasks: Indices, nodes: Indices) -> None:
        """Room was taken and the intent will be committed with this step."""
        self._move(stage, tasks, _E.ALLOCATE)
        self._move(stage, tasks, _E.COMMIT)
        self.statement.set(stage.node, tasks, nodes)
        self._stamp(stage, tasks, BOUND)
        self.statement.set(stage.times, (tasks, STARTED), -1)
        self.statement.set(stage.times, (tasks, ENDED), -1)

    def started(self, stage: StageRun, task: int, attempt: int, at_ms: int) -> bool:
        """Its process runs. False for news of another attempt or of a task that has ended."""
        if not self._current(stage, task, attempt):
            return False
        one = np.array([task])
        if not may(stage.task_state[one], _E.START)[0]:
            return False
        fresh = stage.task_state[task] in (_S.BINDING, _S.BOUND)
        self._move(stage, one, _E.START)
        if fresh:
            self.statement.set(stage.times, (one, STARTED), at_ms)
            self._event("task.running", stage, task)
        return fresh

    def ended(self, stage: StageRun, task: int, attempt: int, at_ms: int, end: Ended) -> bool:
        """Its process ended and told how. False for old news."""
        if not self._holds(stage, task, attempt):
            return False
        self._account(stage, task, attempt, at_ms, end.exit_code)
        if stage.task_state[task] == _S.RELEASING:
            self._released(stage, task)
        elif end.exit_code == 0 and not end.reason:
            self._succeeded(stage, task, attempt, end)
        else:
            self._failed(stage, task, attempt, end)
        self.settle()
        return True

    def gone(self, stage: StageRun, task: int, attempt: int, at_ms: int, reason: str) -> bool:
        """There is no such pod any more and it did not say how it ended: nobody's fault, nobody's charge."""
        if not self._holds(stage, task, attempt):
            return False
        self._account(stage, task, attempt, at_ms, -1)
        if stage.task_state[task] == _S.RELEASING:
            self._released(stage, task)
        else:
            self._lost(stage, task, attempt, reason)
        self.settle()
        return True

    def fail_waiting(self, stage: StageRun, tasks: Indices, reason: str, message: str) -> None:
        """Tasks that hold nothing cannot ever run (an input does not exist): they fail for good."""
        tasks = tasks[np.isin(stage.task_state[tasks], (_S.QUEUED, _S.STAGING))]
        if len(tasks) == 0:
            return
        self._move(stage, tasks, _E.FAIL)
        self._stamp(stage, tasks, ENDED)
        for task in tasks.tolist():
            self.statement.put(stage.reasons, task, reason)
            self._event("task.failed", stage, task, reason=reason, message=message)
        self._fail_stage(stage, f"{reason}: {message}")
        self.settle()

    def lose(self, stage: StageRun, shard: int) -> None:
        """An output of this shard is nowhere any more although somebody waits for it: make it again."""
        tasks = stage.indices_of(shard)
        again = tasks[stage.task_state[tasks] == _S.SUCCEEDED]
        if len(again) == 0 or not stage.shard_done[shard]:
            return
        self._requeue_ended(stage, again)
        self.statement.set(stage.shard_done, shard, False)
        was_done = stage.state is RunState.SUCCEEDED
        self.statement.assign(stage, "done", stage.done - 1)
        self._set_stage(stage, RunState.RUNNING, "an output was lost")
        self._event("dataset.lost", stage, int(tasks[0]))
        for edge in self.run.graph.edges_out[stage.number]:
            child = self.run.stages[edge.child]
            if not self._is_barrier(edge):
                self._await_shards(edge, child, shard)
            elif was_done:
                self.statement.assign(child, "barriers", child.barriers + 1)
                self._revoke(child, np.arange(child.spec.tasks))
        self.settle()

    # ---------------------------------------------------------------- what users say

    def cancel(self) -> None:
        """Nothing more is started; what holds a pod is taken away; the workflow ends CANCELLED."""
        run = self.run
        if run.state.terminal or run.state is RunState.CANCELLING:
            return
        self.statement.assign(run, "cancel_requested", True)
        self._set_run(RunState.CANCELLING, "cancelled by request")
        self._stop_all(_S.CANCELLED)
        self.settle()

    def pause(self, paused: bool) -> None:
        """Nothing new is started while paused."""
        run = self.run
        if run.state not in (RunState.RUNNING, RunState.PAUSED, RunState.PENDING):
            return
        self.statement.assign(run, "paused", paused)
        self._set_run(RunState.PAUSED if paused else RunState.RUNNING)

    def retry(self) -> None:
        """Try again what failed, was cancelled or skipped; what succeeded stays."""
        run = self.run
        self.statement.assign(run, "cancel_requested", False)
        self.statement.assign(run, "ended_ms", None)
        again = [stage for stage in run.stages if stage.state is not RunState.SUCCEEDED]
        for stage in again:
            self._reset(stage)
        for stage in again:
            self.statement.assign(stage, "barriers", self._open_barriers(stage))
            if stage.uniform is None:
                self.statement.set(stage.missing, slice(None), self._open_missing(stage))
        self._set_run(RunState.PAUSED if run.paused else RunState.RUNNING, "")
        for stage in again:
            if stage.barriers == 0:
                self._open(stage)
        self.settle()

    # ---------------------------------------------------------------- ends of attempts

    def _succeeded(self, stage: StageRun, task: int, attempt: int, end: Ended) -> None:
        self._publish(stage, task, attempt, end)
        if self._policy(stage, On.TASK_COMPLETED, 0) is Action.COMPLETE_STAGE:
            self._move(stage, np.array([task]), _E.SUCCEED)
            self._event("task.succeeded", stage, task)
            self._complete_shard(stage, task // stage.members)
            return
        self._move(stage, np.array([task]), _E.SUCCEED)
        self._event("task.succeeded", stage, task)
        self._check_shard(stage, task // stage.members)

    def _failed(self, stage: StageRun, task: int, attempt: int, end: Ended) -> None:
        reason = end.reason or f"exit code {end.exit_code}"
        self.statement.put(stage.reasons, task, end.reason or "Failed")
        action = self._policy(stage, On.TASK_FAILED, end.exit_code)
        self._event(
            "task.attempt_failed", stage, task, reason=reason, message=end.message, exit_code=end.exit_code
        )
        shard = task // stage.members
        restart = action in (Action.RESTART_TASK, Action.RESTART_GANG)
        if restart and stage.charged[task] + 1 < stage.spec.retry.attempts:
            whole = stage.spec.gang and action is Action.RESTART_GANG
            tasks = stage.indices_of(shard) if whole else np.array([task])
            self.statement.add(stage.charged, tasks, 1)
            if end.reason == OUT_OF_MEMORY:
                self.statement.add(stage.memory_steps, np.array([task]), 1)
            delay = min(MAX_BACKOFF_MS, BACKOFF_MS << min(int(stage.charged[task]) - 1, 10))
            self._again(stage, task, whole, delay)
        elif action is Action.IGNORE:
            self._move(stage, np.array([task]), _E.SUCCEED)
            self._check_shard(stage, shard)
        elif action is Action.COMPLETE_STAGE:
            self._move(stage, np.array([task]), _E.SUCCEED)
            self._complete_shard(stage, shard)
        else:
            self._fail_for_good(stage, task, reason, end.message)
            if action is Action.ABORT_WORKFLOW:
                self._abort(f"stage {stage.spec.name!r} failed: {reason}")

    def _lost(self, stage: StageRun, task: int, attempt: int, reason: str) -> None:
        one = np.array([task])
        self.statement.add(stage.lost, one, 1)
        self.statement.put(stage.reasons, task, reason)
        self._event("task.attempt_lost", stage, task, reason=reason)
        action = self._policy(stage, On.TASK_EVICTED, -1)
        if stage.lost[task] >= MAX_LOST:
            self._fail_for_good(stage, task, "Quarantined", f"lost {MAX_LOST} times, last: {reason}")
        elif action in (Action.FAIL_STAGE, Action.ABORT_WORKFLOW):
            self._fail_for_good(stage, task, reason, "policy on task_evicted")
            if action is Action.ABORT_WORKFLOW:
                self._abort(f"stage {stage.spec.name!r} lost a task: {reason}")
        else:
            whole = stage.spec.gang and action is not Action.RESTART_TASK
            delay = 0 if stage.lost[task] < 3 else BACKOFF_MS << int(stage.lost[task])
            self._again(stage, task, whole, delay)

    def _again(self, stage: StageRun, task: int, whole: bool, delay_ms: int) -> None:
        """Give a failed task (or its whole gang, whose generation rises) back to the queue."""
        one = np.array([task])
        self._move(stage, one, _E.REQUEUE)
        self._next_attempt(stage, one)
        tasks = stage.indices_of(task // stage.members) if whole else one
        self.statement.set(stage.not_before, tasks, self.now + delay_ms)
        if not whole:
            return
        others = tasks[tasks != task]
        states = stage.task_state[others]
        self._requeue_ended(stage, others[states == _S.SUCCEEDED])
        self._release(stage, others[may(states, _E.RELEASE)], _S.QUEUED)
        self._next_attempt(stage, others[states == _S.QUEUED])

    def _released(self, stage: StageRun, task: int) -> None:
        """What was being taken away is gone: it becomes its goal."""
        goal = TaskState(int(stage.goal[task]))
        one = np.array([task])
        self._move(stage, one, END_OF[goal])
        if goal is _S.QUEUED:
            self._next_attempt(stage, one)
        self._event("task.released", stage, task, goal=goal.name)
        self._note(stage)

    def _fail_for_good(self, stage: StageRun, task: int, reason: str, message: str) -> None:
        self._move(stage, np.array([task]), _E.FAIL)
        self.statement.put(stage.reasons, task, reason)
        self._event("task.failed", stage, task, reason=reason, message=message)
        if stage.spec.gang:
            others = stage.indices_of(task // stage.members)
            self._release(stage, others[may(stage.task_state[others], _E.RELEASE)], _S.CANCELLED)
        text = f"task {task} failed: {reason}" + (f" ({message})" if message else "")
        self._fail_stage(stage, text)

    def _fail_stage(self, stage: StageRun, reason: str) -> None:
        """Its running shards go on to their end, nothing more of it is started."""
        if not stage.failed:
            self.statement.assign(stage, "failed", True)
            self.statement.assign(stage, "reason", reason)
        self._cancel_waiting(stage)
        self._note(stage)

    def _abort(self, reason: str) -> None:
        if not self.run.reason:
            self.statement.assign(self.run, "reason", reason)
        self._stop_all(_S.CANCELLED)

    def _stop_all(self, goal: TaskState) -> None:
        for stage in self.run.stages:
            if stage.state.terminal and stage.holding() == 0:
                continue
            self._cancel_waiting(stage)
            if stage.uniform is None:
                holding = np.flatnonzero(may(stage.task_state, _E.RELEASE))
                self._release(stage, holding, goal)
            self._note(stage)

    # ---------------------------------------------------------------- shards and stages

    def _check_shard(self, stage: StageRun, shard: int) -> None:
        tasks = stage.indices_of(shard)
        states = stage.task_state[tasks]
        succeeded = states == _S.SUCCEEDED
        needed = stage.completing if stage.completing.any() else np.ones(len(tasks), dtype=np.bool_)
        never_placed = (states == _S.QUEUED) & self._spare(stage, succeeded)
        if (succeeded | never_placed)[needed].all() and succeeded[needed].any():
            self._complete_shard(stage, shard)
        else:
            self._note(stage)

    def _spare(self, stage: StageRun, succeeded: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(members,) True where the role's minimum has succeeded: who was never placed is not waited for."""
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
        tasks = stage.indices_of(shard)
        states = stage.task_state[tasks]
        self._release(stage, tasks[may(states, _E.RELEASE)], _S.SUCCEEDED)
        waiting = tasks[np.isin(states, (_S.QUEUED, _S.PENDING))]
        self._move(stage, waiting, _E.SKIP)
        self.statement.set(stage.shard_done, shard, True)
        self.statement.assign(stage, "done", stage.done + 1)
        for edge in self.run.graph.edges_out[stage.number]:
            if not self._is_barrier(edge):
                self._serve_shards(edge, self.run.stages[edge.child], shard)
        self._note(stage)

    def _note(self, stage: StageRun) -> None:
        """Look whether the stage has ended, now that something of it changed."""
        self.changes.stages.add(stage.number)
        if stage.state.terminal:
            self.changes.workflow = True
            return
        if stage.done == stage.spec.width:
            self._end_stage(stage, RunState.SUCCEEDED)
        elif stage.open_tasks() == 0:
            self._end_stage(stage, RunState.FAILED if stage.failed else self._unrun(stage))

    @staticmethod
    def _unrun(stage: StageRun) -> RunState:
        skipped = stage.counts[_S.SKIPPED] == stage.spec.tasks
        return RunState.SKIPPED if skipped else RunState.CANCELLED

    def _end_stage(self, stage: StageRun, state: RunState) -> None:
        self._set_stage(stage, state, stage.reason)
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
        self._check_workflow()

    def _resolve(self, parent: StageRun, child: StageRun, edge: Edge) -> None:
        """A parent stage has ended: does it count as done for the child, or shall the child never run?"""
        outcome = child.spec.when.outcome
        failed = parent.state in (RunState.FAILED, RunState.CANCELLED)
        if outcome is When.SUCCESS and failed:
            self._doom(child, f"{parent.spec.name!r} did not succeed")
            return
        skipped = parent.state is RunState.SKIPPED
        if skipped and edge.input is not None and outcome is not When.ALWAYS:
            needed = [i for i in child.spec.inputs if i.stage == parent.spec.name and not i.optional]
            if needed:
                self._doom(child, f"{parent.spec.name!r} was skipped")
                return
        if self._is_barrier(edge):
            self.statement.assign(child, "barriers", child.barriers - 1)
            if child.barriers == 0:
                self._open(child)
        elif skipped:
            if not self._touch(child):
                self.statement.add(child.missing, slice(None), -self.run.graph.parents_per_shard(edge))
            self._ready(child, np.arange(child.spec.width))

    def _doom(self, stage: StageRun, reason: str) -> None:
        """It cannot run any more. What runs of it goes on; what waits is skipped or, if some ran, cancelled."""
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
            self._move(stage, staging, _E.STAGED)
            self._move(stage, np.flatnonzero(may(stage.task_state, _E.SKIP)), _E.SKIP)
        self._note(stage)

    def _open(self, stage: StageRun) -> None:
        """All its stage-wide parents are done: decide whether it runs at all, and release what is ready."""
        if stage.state.terminal:
            return
        if stage.verdict is None:
            self.statement.assign(stage, "verdict", self._wanted(stage))
        if not stage.verdict:
            self._skip(stage, "its condition (`when`) does not hold")
            return
        self._touch(stage)
        self._ready(stage, np.arange(stage.spec.width))

    def _wanted(self, stage: StageRun) -> bool:
        when = stage.spec.when
        parents = {edge.parent for edge in self.run.graph.edges_in[stage.number]}
        bad = any(
            self.run.stages[p].state in (RunState.FAILED, RunState.CANCELLED) for p in parents
        )
        if when.outcome is When.FAILURE and not bad:
            return False
        for name, output, allowed in when.equals:
            shards = self.run.outputs.get((self.run.number_of(name), output), {})
            values = {published.value for published in shards.values()}
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

    def _serve_shards(self, edge: Edge, child: StageRun, shard: int) -> None:
        """Shard `shard` of the parent is done."""
        if child.state.terminal:
            return
        shards = np.asarray(self.run.graph.shard_children(edge, shard), dtype=np.int64)
        if not self._touch(child):
            self.statement.add(child.missing, shards, -1)
        self._ready(child, shards)

    def _await_shards(self, edge: Edge, child: StageRun, shard: int) -> None:
        """Shard `shard` of the parent runs again."""
        if child.uniform is not None:
            return
        shards = np.asarray(self.run.graph.shard_children(edge, shard), dtype=np.int64)
        self.statement.add(child.missing, shards, 1)
        tasks = (shards[:, None] * child.members + np.arange(child.members)).ravel()
        self._revoke(child, tasks)

    def _revoke(self, stage: StageRun, tasks: Indices) -> None:
        if stage.uniform is None and not stage.state.terminal:
            self._move(stage, tasks[may(stage.task_state[tasks], _E.REVOKE)], _E.REVOKE)

    def _reset(self, stage: StageRun) -> None:
        """For a retry: everything of the stage that did not succeed is pending once more."""
        self.statement.assign(stage, "failed", False)
        self.statement.assign(stage, "verdict", None)
        self.statement.assign(stage, "ended_ms", None)
        if stage.uniform is not None:
            self._move_uniform(stage, _S.PENDING)
        else:
            tasks = np.flatnonzero(may(stage.task_state, _E.RESET))
            self._move(stage, tasks, _E.RESET)
            self.statement.add(stage.attempt, tasks[stage.version[tasks] > 0], 1)
            self.statement.set(stage.charged, tasks, 0)
            self.statement.set(stage.lost, tasks, 0)
        self._set_stage(stage, RunState.PENDING, "")

    def _check_workflow(self) -> None:
        """The workflow ends when all its stages have and nothing of it holds a pod."""
        run = self.run
        if run.state.terminal or not all(stage.state.terminal for stage in run.stages):
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

    # ---------------------------------------------------------------- edges

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
                for shard in np.flatnonzero(parent.shard_done).tolist():
                    missing[np.asarray(self.run.graph.shard_children(edge, shard), dtype=np.int64)] -= 1
        return missing

    def rebuild(self) -> None:
        """After a restart: make barriers and missing of every open stage from the states that SQL remembers."""
        for stage in self.run.stages:
            if stage.state.terminal:
                continue
            stage.barriers = self._open_barriers(stage)
            if stage.uniform is None:
                stage.missing[:] = self._open_missing(stage)
        if self.run.cancel_requested:
            self._stop_all(_S.CANCELLED)
        else:
            for stage in self.run.stages:
                if not stage.state.terminal and stage.barriers == 0:
                    self._reopen(stage)
        self.settle()

    def _reopen(self, stage: StageRun) -> None:
        """Queue again what was ready before the restart."""
        if stage.uniform is not None and self._per_shard_edges(stage):
            if not (self._open_missing(stage) == 0).any():
                return
        if stage.failed:
            self._fail_stage(stage, stage.reason)
        else:
            self._open(stage)

    # ---------------------------------------------------------------- small steps

    def _touch(self, stage: StageRun) -> bool:
        """Make the arrays. True if they were made now: then `missing` counts all that is done up to this moment."""
        before = stage.uniform
        if before is None:
            return False
        stage.touch(self._open_missing(stage))
        self.statement.undo_with(lambda: setattr(stage, "uniform", before))
        return True

    def _move(self, stage: StageRun, tasks: Indices, event: TaskEvent) -> None:
        if len(tasks) == 0:
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
        self.changes.stages.add(stage.number)

    def _move_uniform(self, stage: StageRun, state: TaskState) -> None:
        self.statement.set(stage.counts, slice(None), 0)
        self.statement.set(stage.counts, int(state), stage.spec.tasks)
        self.statement.assign(stage, "uniform", state)
        self.changes.stages.add(stage.number)

    def _stamp(self, stage: StageRun, tasks: Indices, column: int) -> None:
        self.statement.set(stage.times, (tasks, column), self.now)

    def _next_attempt(self, stage: StageRun, tasks: Indices) -> None:
        """A new attempt begins: its waiting is counted from now."""
        if len(tasks) == 0:
            return
        self.statement.add(stage.attempt, tasks, 1)
        self.statement.set(stage.node, tasks, -1)
        self.statement.set(stage.times, (tasks, READY), self.now)
        self.statement.set(stage.times, (tasks, STAGED_AT), -1)
        self.statement.set(stage.moved, tasks, 0)
        self.statement.set(stage.local, tasks, 0)

    def _requeue_ended(self, stage: StageRun, tasks: Indices) -> None:
        self._move(stage, tasks, _E.LOSE)
        self._next_attempt(stage, tasks)

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
        ready, staging, bound, started, _ = (int(t) for t in stage.times[task])
        sums = np.zeros(5, dtype=np.int64)
        if bound >= 0:
            sums[QUEUED_MS] = max(0, (staging if staging >= 0 else bound) - ready) if ready >= 0 else 0
            sums[STAGING_MS] = max(0, bound - staging) if staging >= 0 else 0
            sums[RUNNING_MS] = max(0, at_ms - started) if started >= 0 else 0
        sums[BYTES_LOCAL] = stage.local[task]
        sums[BYTES_MOVED] = stage.moved[task]
        self.statement.add(stage.totals, slice(None), sums)
        self.statement.set(stage.times, (np.array([task]), ENDED), at_ms)
        self.statement.set(stage.exit_code, np.array([task]), exit_code)
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
            if policy.event not in (event, On.ANY):
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
        states = (_S.BINDING, _S.BOUND, _S.RUNNING, _S.RELEASING)
        return TaskState(int(stage.task_state[task])) in states

    def _set_stage(self, stage: StageRun, state: RunState, reason: str) -> None:
        self.statement.assign(stage, "state", state)
        self.statement.assign(stage, "reason", reason)
        if state is RunState.RUNNING and stage.started_ms is None:
            self.statement.assign(stage, "started_ms", self.now)
        self.statement.assign(stage, "ended_ms", self.now if state.terminal else None)
        self.changes.stages.add(stage.number)
        self.changes.events.append(
            (f"stage.{state.value.lower()}", {"stage": stage.spec.name, "reason": reason})
        )

    def _set_run(self, state: RunState, reason: str | None = None) -> None:
        run = self.run
        if reason is not None:
            self.statement.assign(run, "reason", reason)
        if run.state is state:
            return
        self.statement.assign(run, "state", state)
        self.changes.workflow = True
        self.changes.events.append((f"workflow.{state.value.lower()}", {"reason": run.reason}))

    def _event(self, kind: str, stage: StageRun, task: int, **body: Any) -> None:
        attempt = int(stage.attempt[task])
        self.changes.events.append(
            (kind, {"stage": stage.spec.name, "index": task, "attempt": attempt, **body})
        )


def indices(values: Sequence[int]) -> Indices:
    """(K,) task numbers as an array."""
    return np.asarray(values, dtype=np.int64)
