"""Why something does not run: the facts of the last cycle and of the run, grouped so that a person can read them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flowsched.engine.forecast import estimate_text, expected_starts
from flowsched.engine.pods import pod_name
from flowsched.engine.state import EngineState
from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.suggest import OTHERS, Outlook
from flowsched.scheduling.whatif import Situation
from flowsched.workflow.resources import format_bytes, format_duration
from flowsched.workflow.run import StageRun, WorkflowRun
from flowsched.workflow.states import TaskState

#: How many shards are named in one explanation.
NAMED = 5


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why `tasks` tasks of a stage are in `state` and do not run.

    `group` is the number of the backlog item it speaks of; `outlook` what binds that and what would change it, once
    somebody has worked it out (see `situations_of`).
    """

    stage: str
    shards: tuple[int, ...]
    tasks: int
    state: str
    code: str
    message: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    start_ms: int | None = None
    start_low_ms: int | None = None
    start_high_ms: int | None = None
    estimate: str = ""  #: how long one task is taken to run, and how that is known
    group: int | None = None
    outlook: Outlook = field(default_factory=Outlook)


def situations_of(state: EngineState, groups: Collection[int], now: int) -> dict[int, Situation]:
    """All that decides over backlog items that were not placed, on one private copy that may leave this thread.

    Who holds a promise counts first, then those who are more important. An item that is not known (any more) is left out.
    """
    waiting = {group: _situation(state, group, now) for group in groups if group in state.refused}
    if not waiting:
        return {}
    inputs = {d for each in waiting.values() for who in (each.group, *each.others) for d in who.reads}
    private = next(iter(waiting.values())).copy(inputs)
    snapshot, catalogue, queues = private.snapshot, private.catalogue, private.queues
    return {
        group: replace(each, snapshot=snapshot, catalogue=catalogue, queues=queues)
        for group, each in waiting.items()
    }


def _situation(state: EngineState, group: int, now: int) -> Situation:
    promised = [each.group for each in state.reservations]
    numbers = [number for number in dict.fromkeys((*promised, *state.refused)) if number in state.refused]
    others = tuple(state.refused[number] for number in numbers if number != group)[:OTHERS]
    wanted = state.refused[group]
    return Situation(state.snapshot, state.catalogue, state.queues, wanted, others, state.profile, now)


def explain(
    state: EngineState,
    run: WorkflowRun,
    now: int,
    *,
    forecast: bool = True,
    stages: Sequence[StageRun] | None = None,
) -> list[Explanation]:
    """Everything of a live workflow that is neither running nor done, by stage and cause.

    Args:
        state, run: Not modified.
        now: Wall-clock ms.
        forecast: Also say how long a task is taken to run, and between which moments it will start, which costs more.
        stages: Of these stages of the run alone; None = of all.
    """
    found: list[Explanation] = []
    for stage in run.stages if stages is None else stages:
        if stage.state.terminal:
            continue
        if stage.counts[TaskState.PENDING]:
            found.append(_pending(run, stage))
        if stage.counts[TaskState.QUEUED]:
            found.extend(_queued(state, run, stage, now, forecast))
        if stage.counts[TaskState.STAGING]:
            found.append(_staging(state, run, stage))
        for moving in (TaskState.BINDING, TaskState.RELEASING):
            if stage.counts[moving]:
                found.append(_in_passing(state, run, stage, moving))
        for there, what in ((TaskState.BOUND, "pods do not start"), (TaskState.RUNNING, "tasks do not end")):
            held = _held(state, run, stage, there, what) if stage.counts[there] else None
            if held is not None:
                found.append(held)
    return found


def _shards(stage: StageRun, state: TaskState) -> tuple[int, ...]:
    if stage.uniform is not None:
        return tuple(range(min(stage.spec.width, NAMED)))
    shards = np.unique(np.flatnonzero(stage.task_state == state) // stage.members)
    return tuple(shards[:NAMED].tolist())


def _pending(run: WorkflowRun, stage: StageRun) -> Explanation:
    parents = [run.stages[edge.parent] for edge in run.graph.edges_in[stage.number]]
    waiting = [parent for parent in parents if not parent.state.terminal]
    told = ", ".join(f"{p.spec.name} ({p.done} of {p.spec.width} shards done)" for p in waiting[:NAMED])
    return Explanation(
        stage=stage.spec.name,
        shards=_shards(stage, TaskState.PENDING),
        tasks=int(stage.counts[TaskState.PENDING]),
        state=TaskState.PENDING.name,
        code=ReasonCode.WAITING_FOR_PARENTS.value,
        message=f"waits for {told}" if told else "waits for shards it reads from",
        numbers={"stages_not_done": len(waiting)},
    )


def _queued(
    state: EngineState, run: WorkflowRun, stage: StageRun, now: int, forecast: bool
) -> Iterator[Explanation]:
    queued = np.flatnonzero(stage.task_state == TaskState.QUEUED)
    if run.paused or state.queues.paused(run.spec.queue):
        what = "the workflow" if run.paused else f"queue {run.spec.queue!r}"
        yield _of(stage, queued, ReasonCode.PAUSED, f"{what} is paused; resume it to go on")
        return
    held = queued[stage.not_before[queued] > now]
    if len(held):
        wait = int(stage.not_before[held].min()) - now
        message = f"the next attempt begins in {format_duration(wait)} (it failed before)"
        yield _of(stage, held, ReasonCode.BACKOFF, message, {"wait_ms": wait})
        queued = queued[stage.not_before[queued] <= now]
    by_reason: dict[tuple[str, str], list[int]] = {}
    reasons: dict[tuple[str, str], Reason] = {}
    for task in queued.tolist():
        reason = _reason(state, run, stage, task)
        key = (reason.code.value, reason.message) if reason else ("", "")
        by_reason.setdefault(key, []).append(task)
        if reason:
            reasons[key] = reason
    for key, tasks in by_reason.items():
        at = np.array(tasks)
        if key in reasons:
            reason = reasons[key]
            told = _of(stage, at, reason.code, reason.message, reason.numbers, reason.start_ms, reason.group)
            if forecast:
                told = replace(told, estimate=estimate_text(state, run, stage, int(at[0])))
                told = _with_interval(state, told, reason, now)
            yield told
        else:
            yield _of(stage, at, ReasonCode.BACKLOG_WINDOW, "ready; it is placed as soon as its turn comes")


def _with_interval(state: EngineState, told: Explanation, reason: Reason, now: int) -> Explanation:
    """What was promised a start is also told between which moments it will really come, as runtimes go."""
    if reason.start_ms is None or reason.group not in {each.group for each in state.reservations}:
        return told
    start = expected_starts(state, [reason.group], now).get(reason.group)
    if start is None:
        return told
    return replace(told, start_low_ms=start.low_ms, start_high_ms=start.high_ms)


def _reason(state: EngineState, run: WorkflowRun, stage: StageRun, task: int) -> Reason | None:
    shard = task // stage.members
    alike = stage.indices_of(shard) if stage.spec.gang else np.array([task])
    steps = int(stage.memory_steps[alike].max())
    for candidate in (shard, -1):
        number = state.keys.get((run.id, stage.number, candidate, steps))  # type: ignore[call-overload]
        if number is not None and number in state.reasons:
            return state.reasons[number]
    return None


def _of(
    stage: StageRun,
    tasks: np.ndarray[tuple[int], np.dtype[np.int64]],
    code: ReasonCode,
    message: str,
    numbers: Mapping[str, int] | None = None,
    start_ms: int | None = None,
    group: int | None = None,
) -> Explanation:
    shards = np.unique(tasks // stage.members)[:NAMED]
    return Explanation(
        stage=stage.spec.name,
        shards=tuple(shards.tolist()),
        tasks=len(tasks),
        state=TaskState.QUEUED.name,
        code=code.value,
        message=message,
        numbers=dict(numbers or {}),
        start_ms=start_ms,
        group=group,
    )


def _staging(state: EngineState, run: WorkflowRun, stage: StageRun) -> Explanation:
    pending = {
        pair
        for group in state.staging.values()
        if group.workflow == run.id and group.stage == stage.number
        for pair in group.pending
    }
    left = sum(state.catalogue.sizes[dataset] for dataset, _ in pending)
    nodes = sorted({state.snapshot.names[node] for _, node in pending})
    failed = [state.transfer_backoff[pair] for pair in sorted(pending) if pair in state.transfer_backoff]
    again = f"; {len(failed)} copies failed and are tried again" if failed else ""
    again += next((f": {each.why}" for each in failed if each.why), "")
    return Explanation(
        stage=stage.spec.name,
        shards=_shards(stage, TaskState.STAGING),
        tasks=int(stage.counts[TaskState.STAGING]),
        state=TaskState.STAGING.name,
        code=ReasonCode.WAITING_FOR_DATA.value,
        message=f"{len(pending)} inputs ({format_bytes(left)}) are being copied to {', '.join(nodes)}{again}",
        numbers={"datasets": len(pending), "bytes": left},
    )


def _in_passing(engine: EngineState, run: WorkflowRun, stage: StageRun, state: TaskState) -> Explanation:
    held = _held(engine, run, stage, state, "pods do not start") if state is TaskState.BINDING else None
    if held is not None:
        return held
    said = "is being started"
    if state is TaskState.RELEASING:
        leaving = np.flatnonzero(stage.task_state == state).tolist()
        why = sorted({stage.reasons[task] for task in leaving if task in stage.reasons})
        said = "is being taken away" + (f": {', '.join(why)}" if why else "")
    return Explanation(
        stage=stage.spec.name,
        shards=_shards(stage, state),
        tasks=int(stage.counts[state]),
        state=state.name,
        code="Starting" if state is TaskState.BINDING else "Releasing",
        message=said,
    )


def _held(
    engine: EngineState, run: WorkflowRun, stage: StageRun, state: TaskState, what: str
) -> Explanation | None:
    """What the cluster says of pods that were asked for and do not start, or do not end."""
    if not engine.held:
        return None
    there = np.flatnonzero(stage.task_state == state).tolist()
    names = {pod_name(run.id, stage.spec.name, task, int(stage.attempt[task])): task for task in there}
    told = [(task, *engine.held[name]) for name, task in names.items() if name in engine.held]
    if not told:
        return None
    shards = tuple(sorted({task // stage.members for task, _, _ in told})[:NAMED])
    _, reason, message = told[0]
    return Explanation(
        stage=stage.spec.name,
        shards=shards,
        tasks=len(there),
        state=state.name,
        code=reason,
        message=f"{len(told)} of {len(there)} {what}: {message or reason}",
        numbers={"held": len(told)},
    )
