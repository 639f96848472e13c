"""advance: events of one workflow's tasks, applied to its arrays; and all their consequences inside the workflow.

It decides which shards are ready, which tasks run again, which pods must go, and when a stage and the workflow end. It takes
no room and chooses no node: that is `scheduling`. Every change goes through the undo log, so that a step
with a failed commit leaves no trace.

Four layers, each above the one before: `transitions.Moves` changes states, `transitions.Settling` ends stages and the workflow and
makes children ready, `Outcomes` knows how attempts end, `Advance` accepts the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from flowsched.workflow.run.elastic import MAX_LOST, PLACED, goes_on_without, has_minimum, spare
from flowsched.workflow.run.lifecycle import END_OF, TaskEvent, mask_of, may
from flowsched.workflow.run.run import CACHED, Output, StageRun
from flowsched.workflow.run.states import RunState, TaskState
from flowsched.workflow.run.transitions import (
    BOUND,
    ENDED,
    READY,
    STAGED,
    STAGING,
    STARTED,
    AttemptResources,
    Ended,
    Indices,
    Settling,
)
from flowsched.workflow.spec import PLAIN_ROLE, Action, On, When

_S = TaskState
_E = TaskEvent

#: Back-off before attempt k: 1 s, 2 s, 4 s … at most a minute.
BACKOFF_MS: Final = 1_000
MAX_BACKOFF_MS: Final = 60_000
#: Reasons that say a pod was taken away, or its node: by flowsched, then in the words of Kubernetes. All others mean that its end
#: is not known.
EVICTED: Final = frozenset(
    {"Preempted", "Reclaimed", "Drained", "NodeLost"}
    | {"Evicted", "Preempting", "NodeShutdown", "PodDeleted", "TerminationByKubelet", "EvictionByEvictionAPI"}
    | {"PreemptionByScheduler", "DeletionByTaintManager", "DeletionByPodGC"}
)
#: Beginnings of reasons that say a node or the API server refused a pod that the scheduler had room for: another pod took it first.
REFUSED: Final = (
    "BindRefused",
    "OutOf",
    "NodeAffinity",
    "NodePorts",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
)
#: How long a gang may go on with fewer than its minimum while a member looks for room again (FAULTS.md P4).
T_GANG_MS: Final = 60_000
#: A service took the pod away. Where this one did not ask for it, the database is a backup of an earlier moment: the task goes on.
RELEASED: Final = "Released"
#: The reason of a task that a user has stopped by itself.
CANCELLED: Final = "Cancelled"
#: The one reason that lets a task's memory grow.
OUT_OF_MEMORY: Final = "OOMKilled"
#: The first word of the reason of a task that took the result of another: "CACHED w1/align/3".
REUSED: Final = "CACHED"
#: The reason of a task that has succeeded although an input was written to meanwhile: its result is not taken for another's.
SPOILED: Final = "InputChanged"
#: (name, uri, bytes, value) of a published output.
PublishedOutput: TypeAlias = tuple[str, str, int, str | None]


class Outcomes(Settling):
    """Ends of attempts."""

    def _succeeded(self, stage: StageRun, task: int, attempt: int, end: Ended) -> None:
        action = self._policy(stage, On.TASK_COMPLETED, 0)
        if action is Action.FAIL_STAGE:
            self._fail_for_good(stage, task, "Completed", "a policy says so")
            return
        self._publish(stage, task, attempt, end)
        self._well(stage, task)
        if end.spoiled:
            self.statement.put(stage.reasons, task, SPOILED)
        self._event("task.succeeded", stage, task, message=end.message)
        if action is Action.COMPLETE_STAGE:
            self._complete_stage(stage)
            return
        self._check_shard(stage, task // stage.members)
        if action is Action.ABORT_WORKFLOW:
            self._abort(f"stage {stage.spec.name!r}: {_named(stage, task)} completed")

    def _well(self, stage: StageRun, task: int) -> None:
        """Count the task as done, and forget the reasons of earlier failures."""
        leaving = stage.task_state[task] == _S.RELEASING
        self._move(stage, np.array([task]), _E.END_SUCCEEDED if leaving else _E.SUCCEED)
        self.statement.pop(stage.reasons, task)
        self._count_returned(stage, int(stage.exit_code[task]), 1)

    def _failed(self, stage: StageRun, task: int, attempt: int, end: Ended) -> None:
        reason = end.reason or f"exit code {end.exit_code}"
        self.statement.put(stage.reasons, task, end.reason or "Failed")
        action = self._policy(stage, On.TASK_FAILED, end.exit_code)
        self._event(
            "task.attempt_failed", stage, task, reason=reason, message=end.message, exit_code=end.exit_code
        )
        shard = task // stage.members
        restart = action in (Action.RESTART_TASK, Action.RESTART_GANG)
        joined = stage.goal[task] == _S.RUNNING and goes_on_without(stage, task)
        if joined and self._declared_action(stage, On.TASK_FAILED, end.exit_code) is None:
            self.statement.add(stage.own("charged"), np.array([task]), 1)
            self._leave(stage, task, BACKOFF_MS)
        elif restart and not end.outgrown and stage.charged[task] + 1 < stage.spec.retry.attempts:
            whole = stage.spec.gang and action is Action.RESTART_GANG
            tasks = stage.indices_of(shard) if whole else np.array([task])
            self.statement.add(stage.own("charged"), tasks, 1)
            if end.reason == OUT_OF_MEMORY:
                self.statement.add(stage.own("memory_steps"), np.array([task]), 1)
            delay = min(MAX_BACKOFF_MS, BACKOFF_MS << min(int(stage.charged[task]) - 1, 10))
            self._again(stage, task, whole, delay)
        elif action is Action.IGNORE:
            self._well(stage, task)
            self._check_shard(stage, shard)
        elif action is Action.COMPLETE_STAGE:
            self._well(stage, task)
            self._complete_stage(stage)
        else:
            self._fail_for_good(stage, task, reason, end.message)
            if action is Action.ABORT_WORKFLOW:
                self._abort(f"stage {stage.spec.name!r} failed: {reason}")

    def _lost(self, stage: StageRun, task: int, reason: str, *, started: bool) -> None:
        one = np.array([task])
        self.statement.add(stage.own("lost"), one, 1)
        self.statement.put(stage.reasons, task, reason)
        self._event("task.attempt_lost", stage, task, reason=reason)
        evicted = reason in EVICTED
        event = On.TASK_EVICTED if evicted else On.TASK_UNKNOWN
        action = self._policy(stage, event, -1)
        delay = 0 if stage.lost[task] < 3 else min(MAX_BACKOFF_MS, BACKOFF_MS << int(stage.lost[task]))
        if self._declared_action(stage, event, -1) is None and goes_on_without(stage, task):
            self._leave(stage, task, delay)
            return
        if not started and not evicted:  # it never ran: nothing happened to it that a policy could be about
            action = Action.RESTART_TASK if self._refused_once(stage, task, reason) else Action.RESTART_GANG
        if started and stage.lost[task] >= MAX_LOST:
            self._fail_for_good(stage, task, "Quarantined", f"lost {MAX_LOST} times, last: {reason}")
        elif action in (Action.FAIL_STAGE, Action.ABORT_WORKFLOW):
            self._fail_for_good(stage, task, reason, "a policy says so")
            if action is Action.ABORT_WORKFLOW:
                self._abort(f"stage {stage.spec.name!r} lost a task: {reason}")
        elif action is Action.IGNORE:
            self._well(stage, task)
            self._check_shard(stage, task // stage.members)
        elif action is Action.COMPLETE_STAGE:
            self._well(stage, task)
            self._complete_stage(stage)
        else:
            whole = stage.spec.gang and action is not Action.RESTART_TASK
            self._again(stage, task, whole, delay)

    def _leave(self, stage: StageRun, task: int, delay_ms: int) -> None:
        """A member that its gang can do without has failed or was lost. The gang goes on, and the member may join it again."""
        one = np.array([task])
        self._move(stage, one, _E.REQUEUE)
        self._next_attempt(stage, one)
        self.statement.set(stage.own("not_before"), one, self.now + delay_ms)
        self.statement.set(stage.goal, one, int(_S.PENDING))
        if stage.closed:
            self._cancel_waiting(stage)
        self._check_shard(stage, task // stage.members)  # it may have been the last that was waited for

    def _refused_once(self, stage: StageRun, task: int, reason: str) -> bool:
        """Whether a gang's member was refused, and for the first time: it is placed anew while the others wait for it."""
        members = stage.indices_of(task // stage.members)
        return reason.startswith(REFUSED) and bool(stage.attempt[task] == stage.attempt[members].min())

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
            self._release(stage, members[may(stage.task_state[members], _E.RELEASE)], _S.QUEUED)
            self._event("gang.released", stage, int(late[0]), reason="a member found no room for too long")
        return min(moments, default=None)

    @staticmethod
    def _below_minimum(stage: StageRun, members: Indices) -> bool:
        return bool(PLACED[stage.task_state[members]].any()) and not has_minimum(stage, members)

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
        self._move(stage, tasks, _E.FAIL)
        for task in tasks.tolist():
            self.statement.put(stage.reasons, task, "PendingTimeout")
            self._event("task.failed", stage, task, reason="PendingTimeout")
        self._fail_stage(stage, f"{len(tasks)} tasks waited for room longer than the policy allows")
        if action is Action.ABORT_WORKFLOW:
            self._abort(f"stage {stage.spec.name!r} waited too long for room")
        self.settle()

    def _again(self, stage: StageRun, task: int, whole: bool, delay_ms: int) -> None:
        """Give a failed task back to the queue, or its whole gang: the gang's generation then rises."""
        one = np.array([task])
        self._move(stage, one, _E.REQUEUE)
        self._next_attempt(stage, one)
        tasks = stage.indices_of(task // stage.members) if whole else one
        self.statement.set(stage.own("not_before"), tasks, self.now + delay_ms)
        # A goal of RUNNING marks a member that comes back alone, into a gang that goes on.
        alone = stage.spec.gang and not whole
        self.statement.set(stage.goal, one, int(_S.RUNNING if alone else _S.PENDING))
        if whole:
            others = tasks[tasks != task]
            states = stage.task_state[others]
            self._requeue_ended(stage, others[states == _S.SUCCEEDED])
            self._release(stage, others[may(states, _E.RELEASE)], _S.QUEUED)
            self._move(stage, others[states == _S.STAGING], _E.STAGED)
            self._next_attempt(stage, others[_UNPLACED[states]])
        if stage.closed:
            self._cancel_waiting(stage)
        self._note(stage)

    def evict(self, stage: StageRun, tasks: Indices, reason: str, message: str) -> None:
        """Take pods away for other groups, or off a node. No retry is charged. A gang is taken away as a whole.

        If the policy of `task_evicted` is to fail, the tasks fail; under any other they wait again when their pods are gone.

        Args:
            stage: The stage of the tasks.
            tasks: Which; of a gang any of its members.
            reason: "Preempted", "Reclaimed" or "Drained".
            message: The reason in words.
        """
        if stage.spec.gang:
            members = np.unique(tasks // stage.members)[:, None] * stage.members + np.arange(stage.members)
            tasks = members.ravel()
        states = stage.task_state[tasks]
        there = tasks[may(states, _E.RELEASE) & (states != _S.RELEASING)]
        if len(there) == 0:
            return
        action = self._policy(stage, On.TASK_EVICTED, -1)
        for task in there.tolist():
            self.statement.put(stage.reasons, task, reason)
            self._event("task.evicted", stage, task, reason=reason, message=message)
        if action in (Action.FAIL_STAGE, Action.ABORT_WORKFLOW):
            self._release(stage, there, _S.FAILED)
            self._fail_stage(
                stage, f"{_named(stage, int(there[0]))} was taken away: {reason}, and a policy says so"
            )
            if action is Action.ABORT_WORKFLOW:
                self._abort(f"stage {stage.spec.name!r} lost a task: {reason}")
        else:
            self._release(stage, there, _S.QUEUED)
            if stage.spec.gang:
                self._requeue_ended(stage, tasks[states == _S.SUCCEEDED])
                self._move(stage, tasks[states == _S.STAGING], _E.STAGED)
                waiting = tasks[_UNPLACED[states]]
                self.statement.set(stage.goal, waiting, int(_S.PENDING))
                self._next_attempt(stage, waiting)
            if stage.closed:
                self._cancel_waiting(stage)
        self._note(stage)
        self.settle()

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
            self._event("task.evicted", stage, task, reason=reason, message=message)
        self._release(stage, there, _S.QUEUED)
        if stage.closed:
            self._cancel_waiting(stage)
        self._note(stage)
        self.settle()

    def _released(self, stage: StageRun, task: int) -> None:
        """A pod that was being taken away is gone: its task gets the state that is its goal."""
        goal = TaskState(int(stage.goal[task]))
        one = np.array([task])
        self._move(stage, one, END_OF[goal])
        if goal is _S.QUEUED:
            self._next_attempt(stage, one)
        self._event("task.released", stage, task, goal=goal.name)
        shard = task // stage.members
        is_awaited = not stage.shard_done[shard] and (
            goal is _S.SUCCEEDED or (goal is _S.QUEUED and stage.spec.gang)
        )
        if is_awaited:  # it may have been the last that was waited for
            self._check_shard(stage, shard)
        else:
            self._note(stage)

    def _in_time(self, stage: StageRun, task: int, end: Ended) -> bool:
        """Whether a task that was being taken away has done its work all the same: it is done, and not done again.

        A gang's member is not, since its gang starts anew. A task that a user, a policy or its workflow's end has stopped is not.
        """
        wanted = stage.goal[task] == _S.QUEUED or (stage.goal[task] == _S.CANCELLED and stage.closed)
        stopped = self.run.cancel_requested or bool(self.run.reason)
        well = not (end.exit_code or end.reason or end.returned)
        return bool(wanted) and not stopped and not stage.spec.gang and well

    def _fail_for_good(self, stage: StageRun, task: int, reason: str, message: str) -> None:
        leaving = stage.task_state[task] == _S.RELEASING
        self._account_waiting(stage, np.array([task]))
        self._move(stage, np.array([task]), _E.END_FAILED if leaving else _E.FAIL)
        self.statement.put(stage.reasons, task, reason)
        self._event("task.failed", stage, task, reason=reason, message=message)
        if stage.spec.gang:
            others = stage.indices_of(task // stage.members)
            self._release(stage, others[may(stage.task_state[others], _E.RELEASE)], _S.CANCELLED)
        text = f"{_named(stage, task)} failed: {reason}" + (f" ({message})" if message else "")
        self._fail_stage(stage, text)


# ---- events of the cluster, the scheduler and users for one run ----


def _named(stage: StageRun, task: int) -> str:
    """A task with its item and its role: `task 1 (HG002)`, `task 1 (actor)`. Of a path or URI the last part is enough."""
    items, known = stage.spec.items, []
    if items is not None:
        item = items[task // stage.members].rstrip("/").rpartition("/")[2]
        known.append(item if len(item) <= _ITEM_SHOWN else item[: _ITEM_SHOWN - 1] + "…")
    role = stage.spec.roles[stage.role_of[task % stage.members]].name
    if role != PLAIN_ROLE:
        known.append(role)
    return f"task {task}" + (f" ({', '.join(known)})" if known else "")


#: Longer items are cut in reasons.
_ITEM_SHOWN = 40
#: Members that were to join their gang.
_UNPLACED = mask_of(_S.PENDING, _S.QUEUED, _S.STAGING)


class Advance(Outcomes):
    """Applies the events of the cluster, the scheduler and users to one run, in one step."""

    def skips(self) -> list[StageRun]:
        """The stages whose condition does not hold where every task succeeds and writes no values. For a run that never begins."""
        found = []
        for number in self.run.graph.order:
            stage = self.run.stages[number]
            parents = [self.run.stages[edge.parent] for edge in self.run.graph.edges_in[number]]
            doomed = any(self._doomed_by(parent, stage) is not None for parent in parents)
            stage.state = RunState.SUCCEEDED
            if doomed or not self._wanted(stage):
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
        self._set_run(RunState.PAUSED if run.paused else RunState.RUNNING)
        self.statement.assign(run, "started_ms", self.now)
        for stage in run.stages:
            self.statement.assign(stage, "barriers", self._open_barriers(stage))
        for stage in run.stages:
            if stage.barriers == 0 and not self._per_shard_edges(stage):
                self._open(stage)
        self.settle()

    def target(self, stage: StageRun, tasks: Indices, nodes: Indices) -> None:
        """Nodes were chosen; the bytes are on their way."""
        self._move(stage, tasks, _E.TARGET)
        self.statement.set(stage.own("node"), tasks, nodes)
        fresh = tasks[stage.times[tasks, STAGING] < 0]
        self._stamp(stage, fresh, STAGING)
        self.statement.set(stage.times, (tasks, STAGED), -1)

    def staged(self, stage: StageRun, tasks: Indices) -> None:
        """The bytes are there (or will not come): offer the tasks again."""
        tasks = tasks[stage.task_state[tasks] == _S.STAGING]
        self._move(stage, tasks, _E.STAGED)
        self._stamp(stage, tasks, STAGED)

    def intend_launch(self, stage: StageRun, tasks: Indices, nodes: Indices) -> None:
        """The scheduler took room for the tasks; this step's transaction holds the intent to launch each: ALLOCATE, then COMMIT."""
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
        fresh = int(state) == _S.BINDING
        self._move_one(stage, task, _E.START)
        if fresh:
            self.statement.put_at(stage.times, (task, STARTED), at_ms)
            self._event("task.running", stage, task)
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
        self._account(stage, task, attempt, at_ms, end.exit_code or end.returned, resources, began_ms)
        if stage.task_state[task] == _S.RELEASING and not self._in_time(stage, task, end):
            self._released(stage, task)
        elif end.exit_code == 0 and not end.reason:
            self._succeeded(stage, task, attempt, end)
        elif end.reason == RELEASED:
            self._lost(stage, task, RELEASED, started=True)
        else:
            self._failed(stage, task, attempt, end)
        self.settle()
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
        self._account(stage, task, attempt, at_ms, -1, resources, began_ms)
        if stage.task_state[task] == _S.RELEASING:
            self._released(stage, task)
        else:
            self._lost(stage, task, reason, started=started)
        self.settle()
        return True

    def reuse(self, stage: StageRun, shard: int, outputs: Sequence[PublishedOutput], source: str) -> None:
        """Take the result of a task that has run before: the shard's tasks succeed without a pod.

        Args:
            stage: The stage of the shard.
            shard: All its tasks are QUEUED.
            outputs: The outputs that the other task published, as `Ended.outputs`.
            source: The other task, as "w1/align/3".
        """
        tasks = stage.indices_of(shard)
        self._move(stage, tasks, _E.REUSE)
        self._stamp(stage, tasks, ENDED)
        self.statement.set(stage.own("exit_code"), tasks, 0)
        self.statement.add(stage.totals, CACHED, len(tasks))
        for task in tasks.tolist():
            self.statement.put(stage.reasons, task, f"{REUSED} {source}")
        self._publish(stage, int(tasks[0]), int(stage.attempt[tasks[0]]), Ended(0, outputs=tuple(outputs)))
        self._event("task.cached", stage, int(tasks[0]), source=source)
        self._shards_are_done(stage, np.array([shard]))
        self.settle()

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
        self.statement.assign(self.run, "looks", self.run.looks + 1)
        for stage in self.run.stages:
            if stage.cache_checked is not None:
                self.statement.set(stage.cache_checked, slice(None), False)
                self.changes.touch(stage.number)

    def fail_waiting(self, stage: StageRun, tasks: Indices, reason: str, message: str) -> None:
        """Tasks that hold nothing cannot ever run (an input does not exist): they fail for good."""
        tasks = tasks[np.isin(stage.task_state[tasks], (_S.QUEUED, _S.STAGING))]
        beyond = tasks[np.isin(tasks, spare(stage))]
        for task in beyond.tolist():  # their gang goes on, and they do not join it any more
            self.statement.put(stage.reasons, task, reason)
            self._event("task.attempt_failed", stage, task, reason=reason, message=message, exit_code=-1)
        self._move(stage, beyond[stage.task_state[beyond] == _S.STAGING], _E.STAGED)
        self._put(stage, "charged", beyond, stage.spec.retry.attempts)
        tasks = tasks[~np.isin(tasks, beyond)]
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
        """No node has an output of this shard any more, and a stage still reads it: make it again."""
        if self.run.cancel_requested or self.run.reason:
            return  # it is being cancelled or aborted: no task will read it
        tasks = stage.indices_of(shard)
        again = tasks[stage.task_state[tasks] == _S.SUCCEEDED]
        if len(again) == 0 or not stage.shard_done[shard]:
            return
        self._requeue_ended(stage, again)
        self._start_anew(stage, tasks)
        for (number, _), shards in self.run.outputs.items():
            if number == stage.number:  # an output that is not written again does not exist
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
        """The completing members of a gang run again: members that are being released, or were spare, come back too."""
        states = stage.task_state[tasks]
        self._release(stage, tasks[states == _S.RELEASING], _S.QUEUED)
        spare = tasks[np.isin(states, (_S.SKIPPED, _S.CANCELLED))]
        self._move(stage, spare, _E.RESET)
        self._move(stage, spare, _E.READY)
        self._next_attempt(stage, spare)

    def cancel(self, why: str = "") -> None:
        """Start no more tasks, release all pods, and end the workflow as CANCELLED. `why`: in the user's words."""
        run = self.run
        if run.state.terminal or run.state is RunState.CANCELLING:
            return
        self.statement.assign(run, "cancel_requested", True)
        self._set_run(RunState.CANCELLING, f"cancelled by request: {why}" if why else "cancelled by request")
        self._stop_all(_S.CANCELLED)
        self.settle()

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
        action = self._policy(stage, On.TASK_FAILED, -1)
        self.statement.put(stage.reasons, task, CANCELLED)
        self._event("task.attempt_failed", stage, task, reason=CANCELLED, message=message, exit_code=-1)
        if action is Action.COMPLETE_STAGE:
            self._complete_stage(stage)
        elif action is Action.IGNORE:
            self._release(stage, holding, _S.SUCCEEDED)
            self._account_waiting(stage, waiting)
            self._move(stage, waiting[stage.task_state[waiting] == _S.STAGING], _E.STAGED)
            self._move(stage, waiting, _E.REUSE)
            self._check_shard(stage, task // stage.members)
        else:
            self._release(stage, holding[holding != task], _S.CANCELLED)
            self._release(stage, holding[holding == task], _S.FAILED)
            self._account_waiting(stage, waiting[waiting == task])
            self._move(stage, waiting[waiting == task], _E.FAIL)
            self._event("task.failed", stage, task, reason=CANCELLED, message=message)
            self._fail_stage(stage, f"{_named(stage, task)} was {message}")
            if action is Action.ABORT_WORKFLOW:
                self._abort(f"stage {stage.spec.name!r}: {_named(stage, task)} was {message}")
        self.settle()

    def pause(self, paused: bool, why: str = "") -> None:
        """Nothing new is started while paused."""
        run = self.run
        if run.state not in (RunState.RUNNING, RunState.PAUSED, RunState.PENDING):
            return
        self.statement.assign(run, "paused", paused)
        self._set_run(RunState.PAUSED if paused else RunState.RUNNING, why=why)

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
        """Queue again the tasks that were ready before the restart; they go on waiting from then on."""
        untouched = stage.uniform is not None and self._per_shard_edges(stage)
        if untouched and not (self._open_missing(stage) == 0).any():
            return
        if stage.failed:
            self._fail_stage(stage, stage.reason)
            return
        began, before = stage.started_ms, None if stage.uniform is not None else stage.times[:, READY].copy()
        self._open(stage)
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
            if self._is_barrier(edge) or parent.uniform is not None:
                np.maximum(ended, parent.ended_ms or 0, out=ended)
            else:
                each = parent.times[:, ENDED].reshape(parent.spec.width, parent.members).max(axis=1)
                np.maximum.at(ended, self.run.graph.child_of(edge, np.arange(parent.spec.width)), each)
        return ended
