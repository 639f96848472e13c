"""Outcomes: how an attempt ended, and what its stage's policies make of it: the task is done, runs again, or fails."""

from __future__ import annotations

from typing import Final

import numpy as np

from flowsched.workflow.run.elastic import MAX_LOST, goes_on_without
from flowsched.workflow.run.lifecycle import END_OF, TaskEvent, mask_of, may
from flowsched.workflow.run.moves import Ended, Moves
from flowsched.workflow.run.progress import Progress
from flowsched.workflow.run.run import UNFITTED, StageRun
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.spec import PLAIN_ROLE, Action, On

_S = TaskState
_E = TaskEvent

#: Back-off before attempt k: 1 s, 2 s, 4 s … at most a minute.
BACKOFF_MS: Final = 1_000
MAX_BACKOFF_MS: Final = 60_000
#: Reasons that say a pod was taken away, or its node: by flowsched, then in the words of Kubernetes. All others mean that its end
#: is not known.
EVICTED: Final = frozenset(
    {"Preempted", "Reclaimed", "Drained", "Recalled", "NodeLost"}
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
#: The reason of a task that a user has stopped by itself.
CANCELLED: Final = "Cancelled"
#: The one reason that lets a task's memory grow.
OUT_OF_MEMORY: Final = "OOMKilled"
#: The reason of a task that has succeeded although an input was written to meanwhile: its result is not taken for another's.
SPOILED: Final = "InputChanged"
#: Longer items are cut in reasons.
_ITEM_SHOWN: Final = 40
#: Members that were to join their gang.
TO_JOIN: Final = mask_of(_S.PENDING, _S.QUEUED, _S.STAGING)


def policy_action(stage: StageRun, event: On, exit_code: int) -> Action:
    """The action for an event of a task: the document's, else to ignore an end and to run a task or its gang again."""
    declared = declared_action(stage, event, exit_code)
    if declared is not None:
        return declared
    if event is On.TASK_COMPLETED:
        return Action.IGNORE
    return Action.RESTART_GANG if stage.spec.gang else Action.RESTART_TASK


def declared_action(stage: StageRun, event: On, exit_code: int) -> Action | None:
    """The action that the document declares for an event; None if it declares none."""
    for policy in stage.spec.policies:
        anything = policy.event is On.ANY and event not in (On.TASK_COMPLETED, On.TASK_PENDING)
        if policy.event is not event and not anything:
            continue
        if not policy.exit_codes or exit_code in policy.exit_codes:
            return policy.action
    return None


class Outcomes:
    """Ends of attempts."""

    def __init__(self, moves: Moves, progress: Progress) -> None:
        self.moves, self.progress = moves, progress
        self.run, self.statement, self.now = moves.run, moves.statement, moves.now

    def succeeded(self, stage: StageRun, task: int, attempt: int, end: Ended) -> None:
        """An attempt has succeeded."""
        action = policy_action(stage, On.TASK_COMPLETED, 0)
        if action is Action.FAIL_STAGE:
            self._fail_for_good(stage, task, "Completed", "a policy says so")
            return
        self.moves.publish(stage, task, attempt, end)
        self._well(stage, task)
        if end.spoiled:
            self.statement.put(stage.reasons, task, SPOILED)
        self.moves.event("task.succeeded", stage, task, message=end.message)
        if action is Action.COMPLETE_STAGE:
            self.progress.complete_stage(stage)
            return
        self.progress.check_shard(stage, task // stage.members)
        if action is Action.ABORT_WORKFLOW:
            self.progress.abort(f"stage {stage.spec.name!r}: {task_name(stage, task)} completed")

    def _well(self, stage: StageRun, task: int) -> None:
        """Count the task as done, and forget the reasons of earlier failures."""
        leaving = stage.task_state.item(task) == _S.RELEASING
        self.moves.move_one(stage, task, _E.END_SUCCEEDED if leaving else _E.SUCCEED)
        self.statement.pop(stage.reasons, task)
        self.moves.count_returned(stage, int(stage.exit_code[task]), 1)

    def failed(self, stage: StageRun, task: int, attempt: int, end: Ended) -> None:
        """An attempt has failed."""
        reason = end.reason or f"exit code {end.exit_code}"
        self.statement.put(stage.reasons, task, end.reason or "Failed")
        action = policy_action(stage, On.TASK_FAILED, end.exit_code)
        self.moves.event(
            "task.attempt_failed", stage, task, reason=reason, message=end.message, exit_code=end.exit_code
        )
        if end.fitted:
            self.statement.add(stage.own("memory_steps"), np.array([task]), UNFITTED)
            self._again(stage, task, whole=False, delay_ms=0)
            return
        shard = task // stage.members
        restart = action in (Action.RESTART_TASK, Action.RESTART_GANG)
        joined = stage.goal[task] == _S.RUNNING and goes_on_without(stage, task)
        if joined and declared_action(stage, On.TASK_FAILED, end.exit_code) is None:
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
            self.progress.check_shard(stage, shard)
        elif action is Action.COMPLETE_STAGE:
            self._well(stage, task)
            self.progress.complete_stage(stage)
        else:
            self._fail_for_good(stage, task, reason, end.message)
            if action is Action.ABORT_WORKFLOW:
                self.progress.abort(f"stage {stage.spec.name!r} failed: {reason}")

    def lost(self, stage: StageRun, task: int, reason: str, *, started: bool) -> None:
        """An attempt was taken away, lost, or never began."""
        one = np.array([task])
        self.statement.add(stage.own("lost"), one, 1)
        self.statement.put(stage.reasons, task, reason)
        self.moves.event("task.attempt_lost", stage, task, reason=reason)
        evicted = reason in EVICTED
        event = On.TASK_EVICTED if evicted else On.TASK_UNKNOWN
        action = policy_action(stage, event, -1)
        delay = 0 if stage.lost[task] < 3 else min(MAX_BACKOFF_MS, BACKOFF_MS << int(stage.lost[task]))
        if declared_action(stage, event, -1) is None and goes_on_without(stage, task):
            self._leave(stage, task, delay)
            return
        if not started and not evicted:  # it never ran: nothing happened to it that a policy could be about
            action = Action.RESTART_TASK if self._refused_once(stage, task, reason) else Action.RESTART_GANG
        if started and stage.lost[task] >= MAX_LOST:
            self._fail_for_good(stage, task, "Quarantined", f"lost {MAX_LOST} times, last: {reason}")
        elif action in (Action.FAIL_STAGE, Action.ABORT_WORKFLOW):
            self._fail_for_good(stage, task, reason, "a policy says so")
            if action is Action.ABORT_WORKFLOW:
                self.progress.abort(f"stage {stage.spec.name!r} lost a task: {reason}")
        elif action is Action.IGNORE:
            self._well(stage, task)
            self.progress.check_shard(stage, task // stage.members)
        elif action is Action.COMPLETE_STAGE:
            self._well(stage, task)
            self.progress.complete_stage(stage)
        else:
            whole = stage.spec.gang and action is not Action.RESTART_TASK
            self._again(stage, task, whole, delay)

    def _leave(self, stage: StageRun, task: int, delay_ms: int) -> None:
        """A member that its gang can do without has failed or was lost. The gang goes on, and the member may join it again."""
        one = np.array([task])
        self.moves.move(stage, one, _E.REQUEUE)
        self.moves.next_attempt(stage, one)
        self.statement.set(stage.own("not_before"), one, self.now + delay_ms)
        self.statement.set(stage.goal, one, int(_S.PENDING))
        if stage.closed:
            self.moves.cancel_waiting(stage)
        self.progress.check_shard(
            stage, task // stage.members
        )  # it may have been the last that was waited for

    def _refused_once(self, stage: StageRun, task: int, reason: str) -> bool:
        """Whether a gang's member was refused, and for the first time: it is placed anew while the others wait for it."""
        members = stage.indices_of(task // stage.members)
        return reason.startswith(REFUSED) and bool(stage.attempt[task] == stage.attempt[members].min())

    def _again(self, stage: StageRun, task: int, whole: bool, delay_ms: int) -> None:
        """Give a failed task back to the queue, or its whole gang: the gang's generation then rises."""
        one = np.array([task])
        self.moves.move(stage, one, _E.REQUEUE)
        self.moves.next_attempt(stage, one)
        tasks = stage.indices_of(task // stage.members) if whole else one
        self.statement.set(stage.own("not_before"), tasks, self.now + delay_ms)
        # A goal of RUNNING marks a member that comes back alone, into a gang that goes on.
        alone = stage.spec.gang and not whole
        self.statement.set(stage.goal, one, int(_S.RUNNING if alone else _S.PENDING))
        if whole:
            others = tasks[tasks != task]
            states = stage.task_state[others]
            self.moves.requeue_ended(stage, others[states == _S.SUCCEEDED])
            self.moves.release(stage, others[may(states, _E.RELEASE)], _S.QUEUED)
            self.moves.move(stage, others[states == _S.STAGING], _E.STAGED)
            self.moves.next_attempt(stage, others[TO_JOIN[states]])
        if stage.closed:
            self.moves.cancel_waiting(stage)
        self.progress.note(stage)

    def released(self, stage: StageRun, task: int) -> None:
        """A pod that was being taken away is gone: its task gets the state that is its goal."""
        goal = TaskState(int(stage.goal[task]))
        one = np.array([task])
        self.moves.move(stage, one, END_OF[goal])
        if goal is _S.QUEUED:
            self.moves.next_attempt(stage, one)
        self.moves.event("task.released", stage, task, goal=goal.name)
        shard = task // stage.members
        is_awaited = not stage.shard_done[shard] and (
            goal is _S.SUCCEEDED or (goal is _S.QUEUED and stage.spec.gang)
        )
        if is_awaited:  # it may have been the last that was waited for
            self.progress.check_shard(stage, shard)
        else:
            self.progress.note(stage)

    def in_time(self, stage: StageRun, task: int, end: Ended) -> bool:
        """Whether a task that was being taken away has done its work all the same: it is done, and not done again.

        A gang's member is not, since its gang starts anew. A task that a user, a policy or its workflow's end has stopped is not.
        """
        wanted = stage.goal[task] == _S.QUEUED or (stage.goal[task] == _S.CANCELLED and stage.closed)
        stopped = self.run.cancel_requested or bool(self.run.reason)
        well = not (end.exit_code or end.reason or end.returned)
        return bool(wanted) and not stopped and not stage.spec.gang and well

    def _fail_for_good(self, stage: StageRun, task: int, reason: str, message: str) -> None:
        leaving = stage.task_state[task] == _S.RELEASING
        self.moves.account_waiting(stage, np.array([task]))
        self.moves.move(stage, np.array([task]), _E.END_FAILED if leaving else _E.FAIL)
        self.statement.put(stage.reasons, task, reason)
        self.moves.event("task.failed", stage, task, reason=reason, message=message)
        if stage.spec.gang:
            others = stage.indices_of(task // stage.members)
            self.moves.release(stage, others[may(stage.task_state[others], _E.RELEASE)], _S.CANCELLED)
        text = f"{task_name(stage, task)} failed: {reason}" + (f" ({message})" if message else "")
        self.progress.fail_stage(stage, text)


def task_name(stage: StageRun, task: int) -> str:
    """A task with its item and its role: `task 1 (HG002)`, `task 1 (actor)`. Of a path or URI the last part is enough."""
    items, known = stage.spec.items, []
    if items is not None:
        item = items[task // stage.members].rstrip("/").rpartition("/")[2]
        known.append(item if len(item) <= _ITEM_SHOWN else item[: _ITEM_SHOWN - 1] + "…")
    role = stage.spec.roles[stage.role_of[task % stage.members]].name
    if role != PLAIN_ROLE:
        known.append(role)
    return f"task {task}" + (f" ({', '.join(known)})" if known else "")
