"""advance: what happened to tasks of one workflow, applied to its arrays; and all that follows from it inside the workflow.

It decides which shards became ready, what is tried again, what must be taken away, when a stage and the workflow end. It takes
no room and chooses no node: that is `scheduling`. Every change goes through a Statement, so that a step whose commit fails
leaves no trace.

It is built in three floors: `moves` changes arrays, `settling` knows shards, stages and edges, `outcomes` knows how attempts end.
"""

from __future__ import annotations

import numpy as np

from flowsched.workflow.lifecycle import TaskEvent, mask_of, may
from flowsched.workflow.moves import BOUND, ENDED, STAGED_AT, STARTED, Changes, Ended, Indices
from flowsched.workflow.outcomes import Outcomes
from flowsched.workflow.run import StageRun
from flowsched.workflow.spec import When
from flowsched.workflow.states import RunState, TaskState

__all__ = ["STARTED", "Advance", "Changes", "Ended"]
_S = TaskState
_E = TaskEvent
_UNSTARTED = mask_of(_S.BINDING, _S.BOUND)


class Advance(Outcomes):
    """What the cluster, the scheduler and users say to one run, in one step."""

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
        self.statement.set(stage.own("node"), tasks, nodes)
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
        self.statement.set(stage.own("node"), tasks, nodes)
        self._stamp(stage, tasks, BOUND)
        self.statement.set(stage.times, (tasks, STARTED), -1)
        self.statement.set(stage.times, (tasks, ENDED), -1)

    def started(self, stage: StageRun, task: int, attempt: int, at_ms: int) -> bool:
        """Its process runs. False for news of another attempt or of a task that has ended."""
        if not self._current(stage, task, attempt):
            return False
        state = stage.task_state[task]
        if not may(state, _E.START):
            return False
        fresh = bool(_UNSTARTED[state])
        self._move_one(stage, task, _E.START)
        if fresh:
            self.statement.put_at(stage.times, (task, STARTED), at_ms)
            self._event("task.running", stage, task)
        return fresh

    def ended(self, stage: StageRun, task: int, attempt: int, at_ms: int, end: Ended) -> bool:
        """Its process ended and told how. False for old news."""
        if not self._holds(stage, task, attempt):
            return False
        self._account(stage, task, attempt, at_ms, end.exit_code or end.returned)
        if stage.task_state[task] == _S.RELEASING and not self._in_time(stage, task, end):
            self._released(stage, task)
        elif end.exit_code == 0 and not end.reason:
            self._succeeded(stage, task, attempt, end)
        else:
            self._failed(stage, task, attempt, end)
        self.settle()
        return True

    def gone(
        self, stage: StageRun, task: int, attempt: int, at_ms: int, reason: str, *, started: bool = True
    ) -> bool:
        """There is no such pod any more and it did not say how it ended: nobody's fault, nobody's charge."""
        if not self._holds(stage, task, attempt):
            return False
        self._account(stage, task, attempt, at_ms, -1)
        if stage.task_state[task] == _S.RELEASING:
            self._released(stage, task)
        else:
            self._lost(stage, task, reason, started=started)
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
        if self.run.cancel_requested or self.run.reason:
            return  # it is being cancelled or aborted: nobody will read it
        tasks = stage.indices_of(shard)
        again = tasks[stage.task_state[tasks] == _S.SUCCEEDED]
        if len(again) == 0 or not stage.shard_done[shard]:
            return
        self._requeue_ended(stage, again)
        self._start_anew(stage, tasks)
        for (number, _), shards in self.run.outputs.items():
            if number == stage.number:  # what is not written again does not exist
                self.statement.pop(shards, shard)
        self.statement.set(stage.shard_done, shard, False)
        was_done = stage.state.terminal
        self.statement.assign(stage, "done", stage.done - 1)
        self._set_stage(stage, RunState.RUNNING, "an output was lost")
        self._event("dataset.lost", stage, int(tasks[0]))
        for edge in self.run.graph.edges_out[stage.number]:
            child = self.run.stages[edge.child]
            if not self._is_barrier(edge):
                self._await_shards(edge, child, shard)
            elif was_done:
                self.statement.assign(child, "barriers", self._open_barriers(child))
                self._revoke(child, np.arange(child.spec.tasks))
        self.settle()

    def _start_anew(self, stage: StageRun, tasks: Indices) -> None:
        """The rest of a gang whose completing members run again: who is being released comes back, so does who was spare."""
        states = stage.task_state[tasks]
        self._release(stage, tasks[states == _S.RELEASING], _S.QUEUED)
        spare = tasks[np.isin(states, (_S.SKIPPED, _S.CANCELLED))]
        self._move(stage, spare, _E.RESET)
        self._move(stage, spare, _E.READY)
        self._next_attempt(stage, spare)

    def cancel(self, why: str = "") -> None:
        """Nothing more is started; what holds a pod is taken away; the workflow ends CANCELLED. `why`: in the user's words."""
        run = self.run
        if run.state.terminal or run.state is RunState.CANCELLING:
            return
        self.statement.assign(run, "cancel_requested", True)
        self._set_run(RunState.CANCELLING, f"cancelled by request: {why}" if why else "cancelled by request")
        self._stop_all(_S.CANCELLED)
        self.settle()

    def pause(self, paused: bool, why: str = "") -> None:
        """Nothing new is started while paused."""
        run = self.run
        if run.state not in (RunState.RUNNING, RunState.PAUSED, RunState.PENDING):
            return
        self.statement.assign(run, "paused", paused)
        self._set_run(RunState.PAUSED if paused else RunState.RUNNING, why=why)

    def retry(self, why: str = "") -> None:
        """Try again what failed, was cancelled or skipped; what succeeded stays."""
        run = self.run
        if not run.state.terminal:
            return  # asked twice: it runs again already
        self.statement.assign(run, "cancel_requested", False)
        self.statement.assign(run, "ended_ms", None)
        again = [stage for stage in run.stages if stage.state is not RunState.SUCCEEDED]
        for stage in again:
            self._reset(stage)
        for stage in again:
            self.statement.assign(stage, "barriers", self._open_barriers(stage))
            if stage.uniform is None:
                self.statement.set(stage.own("missing"), slice(None), self._open_missing(stage))
        self._set_run(RunState.PAUSED if run.paused else RunState.RUNNING, "", why=why)
        for stage in again:
            if stage.barriers == 0:
                self._open(stage)
        self.settle()

    def rebuild(self) -> None:
        """After a restart: make barriers and missing of every open stage from the states that SQL remembers."""
        for number in self.run.graph.order:
            stage = self.run.stages[number]
            parents = [self.run.stages[edge.parent] for edge in self.run.graph.edges_in[number]]
            if stage.state is RunState.SKIPPED and stage.spec.when.outcome is When.SUCCESS:
                stage.upset = any(self._unwell(parent) for parent in parents)
            if stage.state.terminal:
                continue
            stage.barriers = self._open_barriers(stage)
            if stage.uniform is None:
                stage.own("missing")[:] = self._open_missing(stage)
        if self.run.cancel_requested and self.run.state is not RunState.CANCELLING:
            self._set_run(RunState.CANCELLING, "cancelled by request")  # asked for since, and not carried out
        if self.run.cancel_requested or (self.run.reason and self.run.state is RunState.RUNNING):
            self._stop_all(
                _S.CANCELLED
            )  # it was being cancelled, or aborted (a running workflow has no other reason)
            self.settle()
            return
        for stage in self.run.stages:
            parents = [self.run.stages[edge.parent] for edge in self.run.graph.edges_in[stage.number]]
            doomed = [self._doomed_by(parent, stage) for parent in parents if parent.state.terminal]
            if stage.state.terminal:
                continue
            if any(doomed):
                self._doom(stage, next(filter(None, doomed)))
            elif stage.barriers == 0:
                self._reopen(stage)
        self.settle()

    def _reopen(self, stage: StageRun) -> None:
        """Queue again what was ready before the restart."""
        untouched = stage.uniform is not None and self._per_shard_edges(stage)
        if untouched and not (self._open_missing(stage) == 0).any():
            return
        if stage.failed:
            self._fail_stage(stage, stage.reason)
        else:
            self._open(stage)
