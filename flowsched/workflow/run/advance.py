"""advance: events of one workflow's tasks, applied to its arrays; and all their consequences inside the workflow.

It decides which shards are ready, which tasks run again, which pods must go, and when a stage and the workflow end. It takes
no room and chooses no node: that is `scheduling`. Every change goes through the undo log, so that a step
with a failed commit leaves no trace.

Four objects, each above the one before: `Moves` writes states, `Progress` ends stages and the workflow and makes children ready,
`Outcomes` knows how attempts end, `Advance` accepts the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from flowsched.statement import Statement
from flowsched.workflow.run.elastic import PLACED, has_minimum, spare
from flowsched.workflow.run.lifecycle import TaskEvent, mask_of, may
from flowsched.workflow.run.moves import (
    BOUND,
    ENDED,
    READY,
    STAGED,
    STAGING,
    STARTED,
    AttemptResources,
    Ended,
    Indices,
    Moves,
)
from flowsched.workflow.run.outcomes import CANCELLED, TO_JOIN, Outcomes, policy_action, task_name
from flowsched.workflow.run.progress import Progress
from flowsched.workflow.run.run import CACHED, Output, StageRun, WorkflowRun
from flowsched.workflow.run.states import RunState, TaskState
from flowsched.workflow.spec import Action, On, When

_S = TaskState
_E = TaskEvent
_HOLDING = mask_of(_S.BINDING, _S.RUNNING, _S.RELEASING)

#: How long a gang may go on with fewer than its minimum while a member looks for room again (FAULTS.md P4).
T_GANG_MS: Final = 60_000
#: A service took the pod away. Where this one did not ask for it, the database is a backup of an earlier moment: the task goes on.
RELEASED: Final = "Released"
#: The first word of the reason of a task that took the result of another: "CACHED w1/align/3".
REUSED: Final = "CACHED"
#: (name, uri, bytes, value) of a published output.
PublishedOutput: TypeAlias = tuple[str, str, int, str | None]


class Advance:
    """The events of one run in one step."""

    def __init__(self, run: WorkflowRun, statement: Statement, now: int) -> None:
        self.run, self.statement, self.now = run, statement, now
        self.moves = Moves(run, statement, now)
        self.changes = self.moves.changes
        self.progress = Progress(self.moves)
        self.outcomes = Outcomes(self.moves, self.progress)

    def skips(self) -> list[StageRun]:
        """The stages whose condition does not hold where every task succeeds and writes no values. For a run that never begins."""
        found = []
        for number in self.run.graph.order:
            stage = self.run.stages[number]
            parents = [self.run.stages[edge.parent] for edge in self.run.graph.edges_in[number]]
            doomed = any(self.progress.doomed_by(parent, stage) is not None for parent in parents)
            stage.state = RunState.SUCCEEDED
            if doomed or not self.progress.wanted(stage):
                stage.state = RunState.SKIPPED
                found.append(stage)
            else:
                written = {
                    (number, output.name): {0: Output("", 0, None, 0)} for output in stage.spec.outputs
                }
                self.run.outputs.update(written)
        return found

    def begin(self) -> None:
        """The workflow was accepted: open the stages that wait for no other."""
        run = self.run
        self.moves.set_run(RunState.PAUSED if run.paused else RunState.RUNNING)
        self.statement.assign(run, "started_ms", self.now)
        for stage in run.stages:
            self.statement.assign(stage, "barriers", self.moves.open_barriers(stage))
        for stage in run.stages:
            if stage.barriers == 0 and not self.moves.per_shard_edges(stage):
                self.progress.open(stage)
        self.progress.settle()

    def target(self, stage: StageRun, tasks: Indices, nodes: Indices) -> None:
        """Nodes were chosen; the bytes are on their way."""
        self.moves.move(stage, tasks, _E.TARGET)
        self.statement.set(stage.own("node"), tasks, nodes)
        fresh = tasks[stage.times[tasks, STAGING] < 0]
        self.moves.stamp(stage, fresh, STAGING)
        self.statement.set(stage.times, (tasks, STAGED), -1)

    def staged(self, stage: StageRun, tasks: Indices) -> None:
        """The bytes are there (or will not come): offer the tasks again."""
        tasks = tasks[stage.task_state[tasks] == _S.STAGING]
        self.moves.move(stage, tasks, _E.STAGED)
        self.moves.stamp(stage, tasks, STAGED)

    def intend_launch(self, stage: StageRun, tasks: Indices, nodes: Indices) -> None:
        """The scheduler took room for the tasks; this step's transaction holds the intent to launch each: ALLOCATE, then COMMIT."""
        self.moves.move(stage, tasks, _E.ALLOCATE)
        self.moves.move(stage, tasks, _E.COMMIT)
        self.statement.set(stage.own("node"), tasks, nodes)
        self.moves.stamp(stage, tasks, BOUND)
        self.statement.set(stage.times, (tasks, STARTED), -1)
        self.statement.set(stage.times, (tasks, ENDED), -1)

    def started(self, stage: StageRun, task: int, attempt: int, at_ms: int) -> bool:
        """Its process runs. False for news of another attempt or of a task that has ended."""
        if not self._current(stage, task, attempt):
            return False
        state = stage.task_state[task]
        if not may(state, _E.START):
            return False
        fresh = int(state) == _S.BINDING
        self.moves.move_one(stage, task, _E.START)
        if fresh:
            self.statement.put_at(stage.times, (task, STARTED), at_ms)
            self.moves.event("task.running", stage, task)
        return fresh

    def ended(
        self,
        stage: StageRun,
        task: int,
        attempt: int,
        at_ms: int,
        end: Ended,
        resources: AttemptResources = AttemptResources(),  # noqa: B008  # frozen
        began_ms: int | None = None,
    ) -> bool:
        """Its process ended and reported how. False for old reports. `began_ms`: when it began; None = as reported."""
        if not self._holds(stage, task, attempt):
            return False
        self.moves.account(stage, task, attempt, at_ms, end.exit_code or end.returned, resources, began_ms)
        if stage.task_state.item(task) == _S.RELEASING and not self.outcomes.in_time(stage, task, end):
            self.outcomes.released(stage, task)
        elif end.exit_code == 0 and not end.reason:
            self.outcomes.succeeded(stage, task, attempt, end)
        elif end.reason == RELEASED:
            self.outcomes.lost(stage, task, RELEASED, started=True)
        else:
            self.outcomes.failed(stage, task, attempt, end)
        self.progress.settle()
        return True

    def gone(
        self,
        stage: StageRun,
        task: int,
        attempt: int,
        at_ms: int,
        reason: str,
        *,
        started: bool = True,
        resources: AttemptResources = AttemptResources(),  # noqa: B008  # frozen
        began_ms: int | None = None,
    ) -> bool:
        """The pod exists no more and has not reported how it ended: it is not the task's fault, and no retry is charged."""
        if not self._holds(stage, task, attempt):
            return False
        self.moves.account(stage, task, attempt, at_ms, -1, resources, began_ms)
        if stage.task_state[task] == _S.RELEASING:
            self.outcomes.released(stage, task)
        else:
            self.outcomes.lost(stage, task, reason, started=started)
        self.progress.settle()
        return True

    def _current(self, stage: StageRun, task: int, attempt: int) -> bool:
        return stage.uniform is None and stage.attempt.item(task) == attempt

    def _holds(self, stage: StageRun, task: int, attempt: int) -> bool:
        """Whether this attempt is the one that holds a pod now: old news changes nothing."""
        return self._current(stage, task, attempt) and bool(_HOLDING[stage.task_state[task]])

    def evict(self, stage: StageRun, tasks: Indices, reason: str, message: str) -> None:
        """Take pods away for other groups, or off a node. No retry is charged. A gang is taken away as a whole.

        If the policy of `task_evicted` is to fail, the tasks fail; under any other they wait again when their pods are gone.

        Args:
            stage: The stage of the tasks.
            tasks: Which; of a gang any of its members.
            reason: "Preempted", "Reclaimed", "Drained" or "Recalled".
            message: The reason in words.
        """
        if stage.spec.gang:
            members = np.unique(tasks // stage.members)[:, None] * stage.members + np.arange(stage.members)
            tasks = members.ravel()
        states = stage.task_state[tasks]
        there = tasks[may(states, _E.RELEASE) & (states != _S.RELEASING)]
        if len(there) == 0:
            return
        action = policy_action(stage, On.TASK_EVICTED, -1)
        for task in there.tolist():
            self.statement.put(stage.reasons, task, reason)
            self.moves.event("task.evicted", stage, task, reason=reason, message=message)
        if action in (Action.FAIL_STAGE, Action.ABORT_WORKFLOW):
            self.moves.release(stage, there, _S.FAILED)
            self.progress.fail_stage(
                stage, f"{task_name(stage, int(there[0]))} was taken away: {reason}, and a policy says so"
            )
            if action is Action.ABORT_WORKFLOW:
                self.progress.abort(f"stage {stage.spec.name!r} lost a task: {reason}")
        else:
            self.moves.release(stage, there, _S.QUEUED)
            if stage.spec.gang:
                self.moves.requeue_ended(stage, tasks[states == _S.SUCCEEDED])
                self.moves.move(stage, tasks[states == _S.STAGING], _E.STAGED)
                waiting = tasks[TO_JOIN[states]]
                self.statement.set(stage.goal, waiting, int(_S.PENDING))
                self.moves.next_attempt(stage, waiting)
            if stage.closed:
                self.moves.cancel_waiting(stage)
        self.progress.note(stage)
        self.progress.settle()

    def shed(self, stage: StageRun, tasks: Indices, reason: str, message: str) -> None:
        """Take members that their gang can spare, for other groups. The gang goes on and does not wait for them.

        They come back only if the gang is begun anew. Where it could not go on without them, it is taken away as a whole.

        Args:
            stage: The stage of the tasks.
            tasks: Which, all of one gang.
            reason: "Preempted" or "Reclaimed".
            message: The reason in words.
        """
        members = stage.indices_of(int(tasks[0]) // stage.members)
        stays = members[~np.isin(members, tasks)]
        if self._below_minimum(stage, stays):
            self.evict(stage, tasks, reason, message)
            return
        states = stage.task_state[tasks]
        there = tasks[may(states, _E.RELEASE) & (states != _S.RELEASING)]
        for task in there.tolist():
            self.statement.put(stage.reasons, task, reason)
            self.moves.event("task.evicted", stage, task, reason=reason, message=message)
        self.moves.release(stage, there, _S.QUEUED)
        if stage.closed:
            self.moves.cancel_waiting(stage)
        self.progress.note(stage)
        self.progress.settle()

    def overdue(self, stage: StageRun) -> int | None:
        """Apply `task_pending` policies to tasks that have waited for room too long.

        Returns:
            When the next task will be overdue; None if no policy says so.
        """
        moments = []
        for policy in stage.spec.policies:
            if policy.event is not On.TASK_PENDING or policy.timeout_ms is None:
                continue
            waiting = np.flatnonzero(np.isin(stage.task_state, (_S.QUEUED, _S.STAGING)))
            waiting = waiting[~np.isin(waiting, spare(stage))]  # their gang runs
            due = stage.times[waiting, 0] + policy.timeout_ms
            late = waiting[due <= self.now]
            if len(late) and policy.action in (Action.FAIL_STAGE, Action.ABORT_WORKFLOW):
                self._give_up(stage, late, policy.action)
            elif len(due):
                moments.append(int(due.min()))
        return min((moment for moment in moments if moment > self.now), default=None)

    def _give_up(self, stage: StageRun, tasks: Indices, action: Action) -> None:
        self.moves.move(stage, tasks, _E.FAIL)
        for task in tasks.tolist():
            self.statement.put(stage.reasons, task, "PendingTimeout")
            self.moves.event("task.failed", stage, task, reason="PendingTimeout")
        self.progress.fail_stage(stage, f"{len(tasks)} tasks waited for room longer than the policy allows")
        if action is Action.ABORT_WORKFLOW:
            self.progress.abort(f"stage {stage.spec.name!r} waited too long for room")
        self.progress.settle()

    def half_gangs(self, stage: StageRun) -> int | None:
        """Take back gangs that have gone on below their minimum for too long, while members of theirs found no room.

        Returns:
            When the next one will have; None if there is none.
        """
        alone = np.flatnonzero((stage.task_state == _S.QUEUED) & (stage.goal == _S.RUNNING))
        moments = []
        for shard in np.unique(alone // stage.members).tolist():
            members = stage.indices_of(shard)
            if not self._below_minimum(stage, members):
                continue
            late = alone[alone // stage.members == shard]
            since = np.maximum(stage.times[late, READY], stage.not_before[late])
            due = int(since.min()) + T_GANG_MS
            if due > self.now:
                moments.append(due)
                continue
            self.statement.set(stage.goal, late, int(_S.PENDING))
            self.moves.release(stage, members[may(stage.task_state[members], _E.RELEASE)], _S.QUEUED)
            self.moves.event(
                "gang.released", stage, int(late[0]), reason="a member found no room for too long"
            )
        return min(moments, default=None)

    @staticmethod
    def _below_minimum(stage: StageRun, members: Indices) -> bool:
        return bool(PLACED[stage.task_state[members]].any()) and not has_minimum(stage, members)

    def reuse(self, stage: StageRun, shard: int, outputs: Sequence[PublishedOutput], source: str) -> None:
        """Take the result of a task that has run before: the shard's tasks succeed without a pod.

        Args:
            stage: The stage of the shard.
            shard: All its tasks are QUEUED.
            outputs: The outputs that the other task published, as `Ended.outputs`.
            source: The other task, as "w1/align/3".
        """
        tasks = stage.indices_of(shard)
        self.moves.move(stage, tasks, _E.REUSE)
        self.moves.stamp(stage, tasks, ENDED)
        self.statement.set(stage.own("exit_code"), tasks, 0)
        self.statement.add(stage.totals, CACHED, len(tasks))
        for task in tasks.tolist():
            self.statement.put(stage.reasons, task, f"{REUSED} {source}")
        self.moves.publish(
            stage, int(tasks[0]), int(stage.attempt[tasks[0]]), Ended(0, outputs=tuple(outputs))
        )
        self.moves.event("task.cached", stage, int(tasks[0]), source=source)
        self.progress.shards_are_done(stage, np.array([shard]))
        self.progress.settle()

    def cache_answered(self, stage: StageRun, shards: Indices) -> None:
        """The cache has answered for these shards: tasks of them that are still QUEUED go to the scheduler."""
        assert stage.cache_checked is not None
        self.statement.set(stage.cache_checked, shards, True)
        self.changes.touch(stage.number)

    def recheck_inputs(self, uri: str | None = None) -> None:
        """An input from outside, or all of them (None), may have another version: unbound tasks wait until it is known."""
        if uri is None:
            self.statement.assign(self.run, "versions", {})
            self.statement.assign(self.run, "changed", {})
        else:
            self.statement.pop(self.run.versions, uri)
        self.look_again(*[each for each in self.run.stages if each.cache_checked is not None])

    def look_again(self, *stages: StageRun) -> None:
        """Unbound tasks of these stages wait until all their inputs from outside are known. A look that is under way is ignored."""
        self.statement.assign(self.run, "looks", self.run.looks + 1)
        for stage in stages:
            if stage.cache_checked is not None:
                self.statement.set(stage.cache_checked, slice(None), False)
            self.changes.touch(stage.number)
            self.changes.anew.add(stage.number)

    def fail_waiting(self, stage: StageRun, tasks: Indices, reason: str, message: str) -> None:
        """Tasks that hold nothing cannot ever run (an input does not exist): they fail for good."""
        tasks = tasks[np.isin(stage.task_state[tasks], (_S.QUEUED, _S.STAGING))]
        beyond = tasks[np.isin(tasks, spare(stage))]
        for task in beyond.tolist():  # their gang goes on, and they do not join it any more
            self.statement.put(stage.reasons, task, reason)
            self.moves.event("task.attempt_failed", stage, task, reason=reason, message=message, exit_code=-1)
        self.moves.move(stage, beyond[stage.task_state[beyond] == _S.STAGING], _E.STAGED)
        self.moves.put(stage, "charged", beyond, stage.spec.retry.attempts)
        tasks = tasks[~np.isin(tasks, beyond)]
        if len(tasks) == 0:
            return
        self.moves.move(stage, tasks, _E.FAIL)
        self.moves.stamp(stage, tasks, ENDED)
        for task in tasks.tolist():
            self.statement.put(stage.reasons, task, reason)
            self.moves.event("task.failed", stage, task, reason=reason, message=message)
        self.progress.fail_stage(stage, f"{reason}: {message}")
        self.progress.settle()

    def lose(self, stage: StageRun, shard: int) -> None:
        """No node has an output of this shard any more, and a stage still reads it: make it again."""
        if self.run.cancel_requested or self.run.reason:
            return  # it is being cancelled or aborted: no task will read it
        tasks = stage.indices_of(shard)
        again = tasks[stage.task_state[tasks] == _S.SUCCEEDED]
        if len(again) == 0 or not stage.shard_done[shard]:
            return
        self.moves.requeue_ended(stage, again)
        self._start_anew(stage, tasks)
        for (number, _), shards in self.run.outputs.items():
            if number == stage.number:  # an output that is not written again does not exist
                self.statement.pop(shards, shard)
        self.statement.set(stage.shard_done, shard, False)
        was_done = stage.state.terminal
        self.statement.assign(stage, "done", stage.done - 1)
        self.moves.set_stage(stage, RunState.RUNNING, "an output was lost")
        self.moves.event("dataset.lost", stage, int(tasks[0]))
        for edge in self.run.graph.edges_out[stage.number]:
            child = self.run.stages[edge.child]
            if not self.moves.is_barrier(edge):
                self.progress.await_shards(edge, child, shard)
            elif was_done:
                self.statement.assign(child, "barriers", self.moves.open_barriers(child))
                self.progress.revoke(child, np.arange(child.spec.tasks))
        self.progress.settle()

    def _start_anew(self, stage: StageRun, tasks: Indices) -> None:
        """The completing members of a gang run again: members that are being released, or were spare, come back too."""
        states = stage.task_state[tasks]
        self.moves.release(stage, tasks[states == _S.RELEASING], _S.QUEUED)
        spare = tasks[np.isin(states, (_S.SKIPPED, _S.CANCELLED))]
        self.moves.move(stage, spare, _E.RESET)
        self.moves.move(stage, spare, _E.READY)
        self.moves.next_attempt(stage, spare)

    def cancel(self, why: str = "") -> None:
        """Start no more tasks, release all pods, and end the workflow as CANCELLED. `why`: in the user's words."""
        run = self.run
        if run.state.terminal or run.state is RunState.CANCELLING:
            return
        self.statement.assign(run, "cancel_requested", True)
        self.moves.set_run(
            RunState.CANCELLING, f"cancelled by request: {why}" if why else "cancelled by request"
        )
        self.progress.stop_all(_S.CANCELLED)
        self.progress.settle()

    def cancel_task(self, stage: StageRun, task: int, why: str = "") -> None:
        """Stop one task that is ready or holds a pod, for good. The policy for failed tasks applies, but none is retried.

        Its gang ends with it. A task that waits for other stages, has ended, or is ending for good stays as it is.
        """
        if stage.uniform is not None:
            return
        tasks = stage.indices_of(task // stage.members) if stage.spec.gang else np.array([task])
        states = stage.task_state[tasks]
        leaving = (states == _S.RELEASING) & (stage.goal[tasks] != _S.QUEUED)
        holding = tasks[may(states, _E.RELEASE) & ~leaving]
        waiting = tasks[(states == _S.QUEUED) | (states == _S.STAGING)]
        if task not in holding and task not in waiting:
            return
        message = "cancelled by request" + (f": {why}" if why else "")
        action = policy_action(stage, On.TASK_FAILED, -1)
        self.statement.put(stage.reasons, task, CANCELLED)
        self.moves.event("task.attempt_failed", stage, task, reason=CANCELLED, message=message, exit_code=-1)
        if action is Action.COMPLETE_STAGE:
            self.progress.complete_stage(stage)
        elif action is Action.IGNORE:
            self.moves.release(stage, holding, _S.SUCCEEDED)
            self.moves.account_waiting(stage, waiting)
            self.moves.move(stage, waiting[stage.task_state[waiting] == _S.STAGING], _E.STAGED)
            self.moves.move(stage, waiting, _E.REUSE)
            self.progress.check_shard(stage, task // stage.members)
        else:
            self.moves.release(stage, holding[holding != task], _S.CANCELLED)
            self.moves.release(stage, holding[holding == task], _S.FAILED)
            self.moves.account_waiting(stage, waiting[waiting == task])
            self.moves.move(stage, waiting[waiting == task], _E.FAIL)
            self.moves.event("task.failed", stage, task, reason=CANCELLED, message=message)
            self.progress.fail_stage(stage, f"{task_name(stage, task)} was {message}")
            if action is Action.ABORT_WORKFLOW:
                self.progress.abort(f"stage {stage.spec.name!r}: {task_name(stage, task)} was {message}")
        self.progress.settle()

    def pause(self, paused: bool, why: str = "") -> None:
        """Nothing new is started while paused."""
        run = self.run
        if run.state not in (RunState.RUNNING, RunState.PAUSED, RunState.PENDING):
            return
        self.statement.assign(run, "paused", paused)
        self.moves.set_run(RunState.PAUSED if paused else RunState.RUNNING, why=why)

    def retry(self, why: str = "") -> None:
        """Retry the tasks that failed or were cancelled or skipped; tasks that succeeded stay.

        The run's start moves by the time for which it lay failed, since that is none of its running time.
        """
        run = self.run
        if not run.state.terminal:
            return  # asked twice: it runs again already
        began = self.now if run.started_ms is None else run.started_ms
        ended = max((stage.ended_ms for stage in run.stages if stage.ended_ms is not None), default=began)
        self.statement.assign(run, "cancel_requested", False)
        self.statement.assign(run, "started_ms", self.now - max(0, ended - began))
        self.statement.assign(run, "ended_ms", None)
        again = [stage for stage in run.stages if stage.state is not RunState.SUCCEEDED]
        self.recheck_inputs()
        for stage in again:
            self.progress.reset(stage)
        for stage in again:
            self.statement.assign(stage, "barriers", self.moves.open_barriers(stage))
            if stage.uniform is None:
                self.statement.set(stage.own("missing"), slice(None), self.moves.open_missing(stage))
        self.moves.set_run(RunState.PAUSED if run.paused else RunState.RUNNING, "", why=why)
        for stage in again:
            if stage.barriers == 0:
                self.progress.open(stage)
        self.progress.settle()

    def rebuild(self) -> None:
        """After a restart: make barriers and missing of every open stage from the states that SQL remembers."""
        for number in self.run.graph.order:
            stage = self.run.stages[number]
            parents = [self.run.stages[edge.parent] for edge in self.run.graph.edges_in[number]]
            if stage.state is RunState.SKIPPED and stage.spec.when.outcome is When.SUCCESS:
                stage.upset = any(self.progress.unwell(parent) for parent in parents)
            if stage.state.terminal:
                continue
            stage.barriers = self.moves.open_barriers(stage)
            if stage.uniform is None:
                stage.own("missing")[:] = self.moves.open_missing(stage)
        if self.run.cancel_requested and self.run.state is not RunState.CANCELLING:
            self.moves.set_run(
                RunState.CANCELLING, "cancelled by request"
            )  # asked for since, and not carried out
        if self.run.cancel_requested or (self.run.reason and self.run.state is RunState.RUNNING):
            self.progress.stop_all(
                _S.CANCELLED
            )  # it was being cancelled, or aborted (a running workflow has no other reason)
            self.progress.settle()
            return
        for stage in self.run.stages:
            parents = [self.run.stages[edge.parent] for edge in self.run.graph.edges_in[stage.number]]
            doomed = [self.progress.doomed_by(parent, stage) for parent in parents if parent.state.terminal]
            if stage.state.terminal:
                continue
            if any(doomed):
                self.progress.doom(stage, next(filter(None, doomed)))
            elif stage.barriers == 0:
                self._reopen(stage)
        self.progress.settle()

    def _reopen(self, stage: StageRun) -> None:
        """Queue again the tasks that were ready before the restart; they go on waiting from then on."""
        untouched = stage.uniform is not None and self.moves.per_shard_edges(stage)
        if untouched and not (self.moves.open_missing(stage) == 0).any():
            return
        if stage.failed:
            self.progress.fail_stage(stage, stage.reason)
            return
        began, before = stage.started_ms, None if stage.uniform is not None else stage.times[:, READY].copy()
        self.progress.open(stage)
        if stage.uniform is None and began is not None:
            queued = np.flatnonzero(stage.task_state == _S.QUEUED)
            since = np.maximum(began, self._parents_ended(stage))[queued // stage.members]
            since = since if before is None else np.maximum(since, before[queued])
            self.statement.set(stage.times, (queued, READY), np.minimum(since, self.now))

    def _parents_ended(self, stage: StageRun) -> Indices:
        """(W,) when the last parent of each shard had ended, by the rows of the parents; 0 without parents."""
        ended = np.zeros(stage.spec.width, dtype=np.int64)
        for edge in self.run.graph.edges_in[stage.number]:
            parent = self.run.stages[edge.parent]
            if self.moves.is_barrier(edge) or parent.uniform is not None:
                np.maximum(ended, parent.ended_ms or 0, out=ended)
            else:
                each = parent.times[:, ENDED].reshape(parent.spec.width, parent.members).max(axis=1)
                np.maximum.at(ended, self.run.graph.child_of(edge, np.arange(parent.spec.width)), each)
        return ended

    def settle(self) -> None:
        """See `Progress.settle`."""
        self.progress.settle()
