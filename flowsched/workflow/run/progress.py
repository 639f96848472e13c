"""Progress: shards complete, stages end, and children become ready; with the last stage, the workflow ends."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from flowsched.workflow.graph import Edge
from flowsched.workflow.run.lifecycle import TaskEvent, mask_of, may
from flowsched.workflow.run.moves import READY, Indices, Moves
from flowsched.workflow.run.run import StageRun
from flowsched.workflow.run.states import RunState, TaskState
from flowsched.workflow.spec import When

_S = TaskState
_E = TaskEvent
_UNPLACED = mask_of(_S.PENDING, _S.QUEUED, _S.STAGING, _S.SKIPPED, _S.CANCELLED)
_WAITING = mask_of(_S.QUEUED, _S.PENDING)


class Progress:
    """The consequences of moves inside one workflow. `settle` carries them on to the children of stages that have ended."""

    def __init__(self, moves: Moves) -> None:
        self.moves = moves
        self.run, self.statement, self.changes = moves.run, moves.statement, moves.changes
        self._resolved: deque[int] = deque()  #: stages that have ended, and whose children do not know it yet

    def check_shard(self, stage: StageRun, shard: int) -> None:
        """See whether a shard is done, now that a task of it has ended."""
        if stage.members == 1 and not stage.spec.gang:
            if stage.task_state.item(shard) == _S.SUCCEEDED:
                self._complete_shard(stage, shard)
            else:
                self.note(stage)
            return
        tasks = stage.indices_of(shard)
        states = stage.task_state[tasks]
        succeeded = states == _S.SUCCEEDED
        needed = stage.completing if stage.completing.any() else np.ones(len(tasks), dtype=np.bool_)
        # A member that was to join a gang that has done its work meanwhile, and has not begun, is not waited for either.
        unplaced = _UNPLACED[states] | ((states == _S.BINDING) & (stage.goal[tasks] == _S.RUNNING))
        never_placed = unplaced & self._spare(stage, succeeded)
        if (succeeded | never_placed)[needed].all() and succeeded[needed].any():
            self._complete_shard(stage, shard)
        else:
            self.note(stage)

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
            self.moves.release(stage, tasks[may(states, _E.RELEASE)], _S.SUCCEEDED)
            self._skip_waiting(stage, tasks)
        self.shards_are_done(stage, np.array([shard]))

    def complete_stage(self, stage: StageRun) -> None:
        """Let the stage succeed, since a policy says so: release its running tasks and skip its waiting ones."""
        self.moves.release(stage, np.flatnonzero(may(stage.task_state, _E.RELEASE)), _S.SUCCEEDED)
        self._skip_waiting(stage, np.arange(stage.spec.tasks))
        self.statement.assign(stage, "failed", False)
        self.shards_are_done(stage, np.flatnonzero(~stage.shard_done))

    def _skip_waiting(self, stage: StageRun, tasks: Indices) -> None:
        """Skip those of these tasks that wait."""
        self.moves.account_waiting(stage, tasks)
        self.moves.move(stage, tasks[stage.task_state[tasks] == _S.STAGING], _E.STAGED)
        self.moves.move(stage, tasks[_WAITING[stage.task_state[tasks]]], _E.SKIP)

    def shards_are_done(self, stage: StageRun, shards: Indices) -> None:
        """Count shards as done, and serve the children that read them."""
        self.statement.set(stage.shard_done, shards, True)
        self.statement.assign(stage, "done", stage.done + len(shards))
        for edge in self.run.graph.edges_out[stage.number]:
            if not self.moves.is_barrier(edge):
                self._serve_shards(edge, self.run.stages[edge.child], shards)
        self.note(stage)

    def note(self, stage: StageRun) -> None:
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
        self.moves.set_stage(stage, state, "" if state is RunState.SUCCEEDED else stage.reason)
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
                elif self.moves.is_barrier(edge):  # counted all the same: it may have to run again (`lose`)
                    self.statement.assign(child, "barriers", child.barriers - 1)
        self._check_workflow()

    def _resolve(self, parent: StageRun, child: StageRun, edge: Edge) -> None:
        """A parent stage has ended: does it count as done for the child, or shall the child never run?"""
        doomed = self.doomed_by(parent, child)
        if doomed is not None:
            self.statement.assign(child, "upset", child.upset or self.unwell(parent))
            self.doom(child, doomed)
            return
        if self.moves.is_barrier(edge):
            self.statement.assign(child, "barriers", child.barriers - 1)
            if child.barriers == 0:
                self.open(child)
        elif parent.state is RunState.SKIPPED:
            if not self.moves.touch(child):  # counted anew: some shards may have been done before
                self.statement.set(child.own("missing"), slice(None), self.moves.open_missing(child))
            self._ready(child, np.arange(child.spec.width))

    @staticmethod
    def unwell(stage: StageRun) -> bool:
        """Whether it did not do its work because something failed, itself or before it."""
        return stage.state in (RunState.FAILED, RunState.CANCELLED) or (
            stage.state is RunState.SKIPPED and stage.upset
        )

    @staticmethod
    def doomed_by(parent: StageRun, child: StageRun) -> str | None:
        """Why the child can never run, now that the parent has ended; None if it can."""
        if parent.state is RunState.SUCCEEDED:
            return None
        if Progress.unwell(parent) and child.spec.when.outcome is When.SUCCESS:
            return f"{parent.spec.name!r} did not succeed"
        if any(source.stage == parent.spec.name and not source.optional for source in child.spec.inputs):
            return f"{parent.spec.name!r} wrote nothing it could read"
        return None

    def doom(self, stage: StageRun, reason: str) -> None:
        """The stage cannot run any more. Running tasks go on. Waiting ones are skipped or, if some tasks ran, cancelled."""
        if not stage.failed:
            self.statement.assign(stage, "reason", reason)
        untouched = stage.uniform is not None or bool((stage.version == 0).all())
        if untouched and stage.holding() == 0 and stage.done == 0:
            self._skip(stage, reason)
        else:
            self.moves.cancel_waiting(stage)
            self.note(stage)

    def _skip(self, stage: StageRun, reason: str) -> None:
        self.statement.assign(stage, "reason", reason)
        if stage.uniform is not None:
            self.moves.move_uniform(stage, _S.SKIPPED)
        else:
            staging = np.flatnonzero(stage.task_state == _S.STAGING)
            self.moves.account_waiting(stage, np.arange(stage.spec.tasks))
            self.moves.move(stage, staging, _E.STAGED)
            self.moves.move(stage, np.flatnonzero(may(stage.task_state, _E.SKIP)), _E.SKIP)
        self.note(stage)

    def open(self, stage: StageRun) -> None:
        """All its stage-wide parents are done: decide whether it runs at all, and release its ready tasks."""
        if stage.state.terminal:
            return
        if stage.verdict is None:
            self.statement.assign(stage, "verdict", self.wanted(stage))
        if not stage.verdict:
            self._skip(stage, "its condition (`when`) does not hold")
            return
        if stage.spec.width == 0:  # nothing is to be done, and that is done
            self.moves.set_stage(stage, RunState.RUNNING, "")
            self._end_stage(stage, RunState.SUCCEEDED)
            return
        self.moves.touch(stage)
        self._ready(stage, np.arange(stage.spec.width))

    def wanted(self, stage: StageRun) -> bool:
        """Whether the condition of a stage (`when`) holds."""
        when = stage.spec.when
        parents = {edge.parent for edge in self.run.graph.edges_in[stage.number]}
        bad = any(self.unwell(self.run.stages[p]) for p in parents)
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
            self.statement.assign(stage, "verdict", self.wanted(stage))
        self.moves.move(stage, tasks, _E.READY)
        self.moves.stamp(stage, tasks, READY)
        if stage.state is RunState.PENDING:
            self.moves.set_stage(stage, RunState.RUNNING, "")

    def _serve_shards(self, edge: Edge, child: StageRun, done: Indices) -> None:
        """These shards of the parent are done."""
        if child.state.terminal and child.uniform is not None:
            return
        shards, fewer = self.run.graph.affected(edge, done)
        if not self.moves.touch(child):
            self.statement.add(child.own("missing"), shards, -fewer)
        self._ready(child, shards)

    def await_shards(self, edge: Edge, child: StageRun, shard: int) -> None:
        """Shard `shard` of the parent runs again."""
        if child.uniform is not None:
            return
        shards = np.asarray(self.run.graph.shard_children(edge, shard), dtype=np.int64)
        self.statement.add(child.own("missing"), shards, 1)
        tasks = (shards[:, None] * child.members + np.arange(child.members)).ravel()
        self.revoke(child, tasks)

    def revoke(self, stage: StageRun, tasks: Indices) -> None:
        """Let ready tasks that hold nothing wait for their parents again."""
        if stage.uniform is None and not stage.state.terminal:
            tasks = tasks[may(stage.task_state[tasks], _E.REVOKE)]
            self.moves.move(stage, tasks, _E.REVOKE)
            self.moves.changes.anew.add(stage.number)
            if stage.cache_checked is not None:  # it will read other datasets: its cache key changes
                self.statement.set(stage.cache_checked, tasks // stage.members, False)

    def reset(self, stage: StageRun) -> None:
        """For a retry: everything of the stage that did not succeed is pending once more."""
        self.statement.assign(stage, "failed", False)
        self.statement.assign(stage, "closed", False)
        self.statement.assign(stage, "upset", False)
        self.statement.assign(stage, "verdict", None)
        self.statement.assign(stage, "started_ms", None)
        self.statement.assign(stage, "ended_ms", None)
        if stage.uniform is not None:
            self.moves.move_uniform(stage, _S.PENDING)
        else:
            if stage.spec.gang:  # a gang starts anew as a whole
                left = np.repeat(~stage.shard_done, stage.members) & (stage.task_state == _S.SUCCEEDED)
                ended = np.flatnonzero(left)
                self.moves.requeue_ended(stage, ended)
                self.moves.move(stage, ended, _E.REVOKE)
            left = np.repeat(~stage.shard_done, stage.members)
            tasks = np.flatnonzero(left & may(stage.task_state, _E.RESET))
            self.moves.move(stage, tasks, _E.RESET)
            self.moves.next_attempt(stage, tasks[stage.version[tasks] > 0])
            self.moves.put(stage, "charged", tasks, 0)
            self.moves.put(stage, "lost", tasks, 0)
        self.moves.set_stage(stage, RunState.PENDING, "")

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
        self.statement.assign(run, "ended_ms", self.moves.now)
        self.moves.set_run(state, reason)

    def _all_ended(self) -> bool:
        """Whether all stages have. It begins at one that was seen open, so that long chains are not looked at over and over."""
        stages, run = self.run.stages, self.run
        for step in range(len(stages)):
            at = (run.open_stage + step) % len(stages)
            if not stages[at].state.terminal:
                run.open_stage = at
                return False
        return True

    def fail_stage(self, stage: StageRun, reason: str) -> None:
        """Its running shards go on to their end, nothing more of it is started."""
        if not stage.failed:
            self.statement.assign(stage, "failed", True)
            self.statement.assign(stage, "reason", reason)
        self.moves.cancel_waiting(stage)
        self.note(stage)

    def stop_all(self, goal: TaskState) -> None:
        """Cancel all waiting tasks and release all pods."""
        for stage in self.run.stages:
            if stage.state.terminal and stage.holding() == 0:
                continue
            self.moves.cancel_waiting(stage)
            if stage.uniform is None:
                holding = np.flatnonzero(may(stage.task_state, _E.RELEASE))
                self.moves.release(stage, holding, goal)
            self.note(stage)

    def abort(self, reason: str) -> None:
        """Stop the workflow, since a policy says so."""
        if not self.run.reason:
            self.statement.assign(self.run, "reason", reason)
            self.changes.workflow = True  # written: a restart must know that the workflow is being aborted
        self.stop_all(_S.CANCELLED)
