"""Explain: why the tasks of a workflow do not run, from the facts of the last cycle and of the run, and when they will start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Final

import msgspec
import numpy as np
from msgspec import structs

from flowsched.engine.backlog import collect, expected
from flowsched.engine.data.cache_values import look_at
from flowsched.engine.data.inputs import MissingInput, dataset_ids
from flowsched.engine.data.staging import MAX_TRIES, last_try_ms
from flowsched.engine.foreign.backlog import collect_foreign
from flowsched.engine.io_demand import demand_text
from flowsched.engine.state import EngineState
from flowsched.engine.state.data import Backoff
from flowsched.engine.state.work import GroupKey, pod_name
from flowsched.executor.datasets import uri_of
from flowsched.scheduling.explain.forecast import GUESSED, LEVELS, Spread, Start, guessed, starts
from flowsched.scheduling.explain.remedies import OTHERS, Outlook
from flowsched.scheduling.explain.situation import Situation
from flowsched.scheduling.plan import PERMANENT, Reason, ReasonCode
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.reasons import larger_than_cap, quantity
from flowsched.values import replace
from flowsched.workflow.estimates import ENOUGH, RUNTIME, SAID
from flowsched.workflow.resources import format_bytes, format_duration
from flowsched.workflow.run.advance import EVICTED
from flowsched.workflow.run.elastic import PLACED, spare, stays_out
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.spec import When

#: In tenths: how much of the wait at least there is, and how far towards the promised moment it goes.
_EARLIER: Final = 6
_LATER: Final = 9
#: Under conservative backfill every waiting group has a reservation, and those move too: at least so much of the wait, and at
#: most so much longer.
_EARLIER_AMONG_PLANS: Final = 2
_LATER_AMONG_PLANS: Final = 2


def expected_starts(state: EngineState, wanted: Collection[int], now: int) -> dict[int, Start]:
    """The starts of groups that were refused in the last cycle, by key. A group without a predictable start is left out.

    They are planned in the order in which the last cycle looked at them. Does not change what is decided.
    """
    look = look_at(state)
    groups = {key: each.group for key, each in collect(state, now, look).candidates.items()}
    groups |= {key: each.group for key, each in collect_foreign(state).candidates.items()}
    waiting = [groups[key] for key in state.round.reasons if key in groups]
    spreads: dict[str, Spread] = {}
    known: dict[tuple[str, str, int | None, int], Spread | None] = {}
    for name, pod in state.work.pods.items():
        run = state.work.runs[pod.workflow]
        stage = run.stages[pod.stage]
        size = int(stage.local[pod.task] + stage.moved[pod.task])
        kind = (run.spec.name, stage.spec.name, stage.spec.estimate.runtime_ms, size)
        if kind not in known:
            known[kind] = spread_of(state, run, stage, size)
        spread = known[kind]
        if spread is not None:
            spreads[name] = spread
    of_groups = {}
    for key, candidate in collect(state, now, look).candidates.items():
        size = sum(state.cluster.catalogue.sizes[dataset] for dataset in candidate.group.reads)
        spread = spread_of(state, candidate.run, candidate.stage, size)
        if spread is not None:
            of_groups[key] = spread
    found = starts(
        state.cluster.snapshot,
        state.cluster.catalogue,
        waiting,
        sorted(wanted),
        spreads,
        of_groups,
        state.policy.profile,
        now,
    )
    promised = {each.group: each.start_ms for each in state.round.reservations}
    return {
        key: _with_backfill(start, promised.get(key), state.policy.profile, now)
        for key, start in found.items()
    }


def _with_backfill(start: Start, promised_ms: int | None, profile: Profile, now: int) -> Start:
    """Add what scenarios leave out: backfill may lend the group's reserved room, and may start the group before its turn.

    How far both go was measured (`bench/predictions.py`, seeds 1 to 12; its figures are of other seeds).
    """
    among_plans = profile.backfill == "conservative"
    earlier, later = (_EARLIER_AMONG_PLANS, _LATER_AMONG_PLANS) if among_plans else (_EARLIER, 0)
    low = now + (start.low_ms - now) * earlier // 10
    late = start.high_ms if promised_ms is None else max(start.high_ms, promised_ms)
    high = start.high_ms + (late - start.high_ms) * _LATER // 10
    return Start(low, start.start_ms, high + (start.high_ms - now) * later // 10)


def estimate_text(state: EngineState, run: WorkflowRun, stage: StageRun, task: int) -> str:
    """The expected runtime of a task as text for people: the figure, its source, and the spread of similar tasks.

    The text also gives the task's learned use of a disk, if there is one.
    """
    said = stage.spec.estimate.runtime_ms
    try:
        inputs = dataset_ids(state, run, stage, task // stage.members)
    except MissingInput:
        return ""
    expected_ms, _ = expected(state, run, stage, inputs)
    disk = demand_text(state, run, stage, inputs)
    if expected_ms is None:
        return f"runtime unknown, counted as {format_duration(state.policy.profile.default_runtime_ms)}{disk}"
    size = sum(state.cluster.catalogue.sizes[dataset] for dataset in inputs)
    samples = state.work.estimates.samples(run.spec.name, stage.spec.name)
    whose = "as its document says" if said is not None else f"learned from {samples}"
    spread = spread_of(state, run, stage, size) if samples else None
    if spread is None:
        return f"runs for {format_duration(expected_ms)}, {whose}{disk}"
    low, high = (format_duration(spread[LEVELS.index(level)]) for level in (100, 900))
    return f"runs for {format_duration(expected_ms)}, {whose}; eight of ten between {low} and {high}{disk}"


def spread_of(state: EngineState, run: WorkflowRun, stage: StageRun, input_bytes: int) -> Spread | None:
    """How long a task may take, at `LEVELS`; None where nothing is known of it.

    Around the user's word, as far as such words were right of this kind; else as learned; from few samples, as a guess around
    their middle.
    """
    said = stage.spec.estimate.runtime_ms
    column, size = (RUNTIME, input_bytes) if said is None else (SAID, said)
    trend = state.work.estimates.trend(run.spec.name, stage.spec.name, column)
    if trend is None:
        return None if said is None else guessed(said)
    if trend.samples < ENOUGH:
        return guessed(said or trend.at(size))
    # Beyond the first and the last sample the spread continues like the guess: the longest runtime may not have occurred yet.
    edge = 1_000 // (trend.samples + 1)
    low, high = trend.quantile(size, edge), trend.quantile(size, 1_000 - edge)
    inner = [at for at, level in enumerate(LEVELS) if edge <= level <= 1_000 - edge]
    first, last = inner[0], inner[-1]
    return tuple(
        low * GUESSED[at] // GUESSED[first]
        if at < first
        else high * GUESSED[at] // GUESSED[last]
        if at > last
        else trend.quantile(size, level)
        for at, level in enumerate(LEVELS)
    )


# ---- the explanation ----


#: How many shards are named in one explanation.
NAMED = 5


class Explanation(msgspec.Struct, frozen=True):
    """Why `tasks` tasks of a stage are in `state` and do not run.

    `group` is the number of the backlog item. `outlook` says what binds that item and what would let it start. It is empty
    until a caller has worked it out from `situations_of`.
    """

    stage: str
    shards: tuple[int, ...]
    tasks: int
    state: str
    code: str
    message: str
    numbers: Mapping[str, int] = {}
    start_ms: int | None = None
    start_low_ms: int | None = None
    start_high_ms: int | None = None
    estimate: str = ""  #: how long one task is taken to run, and how that is known
    group: int | None = None
    outlook: Outlook = Outlook()  # frozen

    @property
    def permanent(self) -> bool:
        """Whether it never ends by itself: other nodes are needed, or another document."""
        return self.code in PERMANENT


def situations_of(state: EngineState, groups: Collection[int], now: int) -> dict[int, Situation]:
    """All that decides over backlog items that were not placed, on one private copy that may leave this thread.

    Groups with a reservation count first, then the more important ones. An item that is not known (any more) is left out, and
    one whose victims are leaving: its room is held for it already, and no change would start it earlier.
    """
    reasons = state.round.reasons
    waiting = {
        group: _situation(state, group, now)
        for group in groups
        if group in state.round.refused
        and (group not in reasons or reasons[group].code is not ReasonCode.NOMINATED)
    }
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
    promised = [each.group for each in state.round.reservations]
    numbers = [
        number for number in dict.fromkeys((*promised, *state.round.refused)) if number in state.round.refused
    ]
    others = tuple(state.round.refused[number] for number in numbers if number != group)[:OTHERS]
    wanted = state.round.refused[group]
    return Situation(
        state.cluster.snapshot,
        state.cluster.catalogue,
        state.policy.queues,
        wanted,
        others,
        state.policy.profile,
        now,
    )


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
            found.append(_too_large(state, run, stage) or _pending(run, stage))
        if stage.counts[TaskState.QUEUED]:
            found.extend(_queued(state, run, stage, now, forecast))
        if stage.counts[TaskState.STAGING]:
            found.append(_staging(state, run, stage))
        for moving in (TaskState.BINDING, TaskState.RELEASING):
            if stage.counts[moving]:
                found.append(_in_passing(state, run, stage, moving))
        for there, what in ((TaskState.BOUND, "pods do not start"), (TaskState.RUNNING, "tasks do not end")):
            if stage.counts[there]:
                found.extend(_on_silent_nodes(state, run, stage, there))
            held = _held(state, run, stage, there, what) if stage.counts[there] else None
            if held is not None:
                found.append(held)
    return found


#: `first_reason` looks at so many stages of a workflow.
_STAGES_ASKED: Final = 50
_PENDING: Final = int(TaskState.PENDING)
_QUEUED: Final = int(TaskState.QUEUED)
_RUNNING: Final = int(TaskState.RUNNING)


def first_reason(state: EngineState, run: WorkflowRun, now: int) -> Explanation | None:
    """The one thing to know of a live workflow that does not run: what never ends by itself, or else the first that waits.

    While tasks run, only what never ends by itself. Looks at one task of a stage, and at `_STAGES_ASKED` stages.

    Args:
        state, run: Not modified.
        now: Wall-clock ms.
    """
    if len(run.stages) <= _STAGES_ASKED:  # plain numbers: each call of NumPy costs as much as a few stages
        rows = run.counts.tolist()
        ready = [number for number, row in enumerate(rows) if any(row[_QUEUED:_RUNNING])]
        running = any(row[_RUNNING] for row in rows)
    else:
        ready = np.flatnonzero(run.counts[:, _QUEUED:_RUNNING].any(axis=1))[:_STAGES_ASKED].tolist()
        running = bool(run.counts[:, _RUNNING].any())
    found = [stage_reason(state, run, run.stages[number], now) for number in ready]
    told = [each for each in found if each is not None]
    for each in told:
        if each.permanent:
            return each
    for stage in run.stages[:_STAGES_ASKED]:
        ahead = _too_large(state, run, stage) if stage.counts[_PENDING] else None
        if ahead is not None:
            return ahead
    return None if running or not told else told[0]


def stage_reason(state: EngineState, run: WorkflowRun, stage: StageRun, now: int) -> Explanation | None:
    """The first thing that keeps tasks of a live stage from running, of one task in each state."""
    if stage.state.terminal:
        return None
    if stage.counts[TaskState.QUEUED] and stage.uniform is None:
        return _first_queued(state, run, stage, now)
    if stage.counts[TaskState.STAGING]:
        return _staging(state, run, stage)
    for there in (TaskState.BINDING, TaskState.BOUND, TaskState.RUNNING):
        if stage.counts[there]:
            silent = next(_on_silent_nodes(state, run, stage, there), None)
            what = "tasks do not end" if there is TaskState.RUNNING else "pods do not start"
            held = silent or _held(state, run, stage, there, what)
            if held is not None:
                return held
    return _too_large(state, run, stage) or _pending(run, stage) if stage.counts[TaskState.PENDING] else None


def _shards(stage: StageRun, state: TaskState) -> tuple[int, ...]:
    if stage.uniform is not None:
        return tuple(range(min(stage.spec.width, NAMED)))
    shards = np.unique(np.flatnonzero(stage.task_state == state) // stage.members)
    return tuple(shards[:NAMED].tolist())


def _too_large(state: EngineState, run: WorkflowRun, stage: StageRun) -> Explanation | None:
    """That a stage will wait for ever once its turn comes: it asks for more than any node has in all, or than its queue's cap.

    None for a stage that may be skipped, and where no node has been seen.
    """
    found = _larger_than_node(state, stage) or _larger_than_queue(state, run, stage)
    if found is None or _conditional(run, stage):
        return None
    code, (message, numbers) = found
    return _all_pending(stage, code, message, numbers)


def _larger_than_node(
    state: EngineState, stage: StageRun
) -> tuple[ReasonCode, tuple[str, dict[str, int]]] | None:
    largest = state.cluster.snapshot.largest
    for role in stage.spec.roles:
        given = role.resources
        asked = (given.cpu_millicores, given.memory_bytes, given.disk_bytes, given.gpu_millis)
        for axis, (wants, has) in enumerate(zip(asked, largest, strict=False)):
            if wants > has and largest[0]:
                name = state.cluster.snapshot.axes[axis]
                message = (
                    f"larger than any node; {role.name} needs {quantity(name, wants)}; the most that a node has is "
                    f"{quantity(name, has)}"
                )
                numbers = {f"need_{name}": wants, f"most_{name}": has}
                return ReasonCode.LARGER_THAN_NODE, (message, numbers)
    return None


def _larger_than_queue(
    state: EngineState, run: WorkflowRun, stage: StageRun
) -> tuple[ReasonCode, tuple[str, dict[str, int]]] | None:
    """By what one task of the stage asks for; of a gang, by the sum over the members that it starts with."""
    gang = stage.spec.gang and state.policy.profile.gang
    needs: dict[str, int] = {}
    for role in stage.spec.roles:
        given, members = role.resources, role.minimum if gang else 1
        asked = {
            "cpu": given.cpu_millicores,
            "memory": given.memory_bytes,
            "disk": given.disk_bytes,
            "gpu": given.gpu_millis,
        }
        for name, wants in (asked | dict(given.extended)).items():
            needs[name] = needs.get(name, 0) + members * wants
    axes = state.cluster.snapshot.axes
    least = [needs.get(name, 0) for name in axes]
    forbidden = larger_than_cap(run.spec.queue, least, state.policy.queues, axes)
    return None if forbidden is None else (ReasonCode.LARGER_THAN_QUEUE, forbidden)


def _conditional(run: WorkflowRun, stage: StageRun) -> bool:
    """Whether it depends on values or failures that a stage runs, or one that it comes after: it may be skipped."""
    seen, left = {stage.number}, [stage.number]
    while left:
        number = left.pop()
        when = run.stages[number].spec.when
        if when.outcome is When.FAILURE or when.equals:
            return True
        parents = {edge.parent for edge in run.graph.edges_in[number]} - seen
        seen |= parents
        left.extend(parents)
    return False


def _pending(run: WorkflowRun, stage: StageRun) -> Explanation:
    parents = [run.stages[edge.parent] for edge in run.graph.edges_in[stage.number]]
    waiting = [parent for parent in parents if not parent.state.terminal]
    told = ", ".join(
        p.spec.name if p.spec.width == 1 else f"{p.spec.name} ({p.done} of {p.spec.width} shards done)"
        for p in waiting[:NAMED]
    )
    message = f"waits for {told}" if told else "waits for shards it reads from"
    return _all_pending(stage, ReasonCode.WAITING_FOR_PARENTS, message, {"stages_not_done": len(waiting)})


def _all_pending(stage: StageRun, code: ReasonCode, message: str, numbers: Mapping[str, int]) -> Explanation:
    return Explanation(
        stage=stage.spec.name,
        shards=_shards(stage, TaskState.PENDING),
        tasks=int(stage.counts[TaskState.PENDING]),
        state=TaskState.PENDING.name,
        code=code.value,
        message=message,
        numbers=numbers,
    )


def _first_queued(state: EngineState, run: WorkflowRun, stage: StageRun, now: int) -> Explanation:
    """Why the first queued task of a stage waits, as `_queued` has it. Lists show it of each workflow, so it makes no arrays."""
    task = int((stage.task_state == _QUEUED).argmax())
    wait = int(stage.not_before[task]) - now
    reason = Reason(-1, *_TURN)
    if run.paused or state.policy.queues.paused(run.spec.queue):
        reason = Reason(-1, ReasonCode.PAUSED, _paused(state, run))
    elif task in spare(stage):
        reason = _beyond(stage, task, _reason(state, run, stage, task))
    elif wait > 0:
        reason = Reason(-1, ReasonCode.BACKOFF, _held_back(wait), {"wait_ms": wait})
    else:
        reason = _reason(state, run, stage, task) or reason
    return Explanation(
        stage=stage.spec.name,
        shards=(task // stage.members,),
        tasks=int(stage.counts[TaskState.QUEUED]),
        state=TaskState.QUEUED.name,
        code=reason.code.value,
        message=reason.message,
        numbers=dict(reason.numbers),
        start_ms=reason.start_ms,
        group=reason.group if reason.group >= 0 else None,
    )


#: Of a task of which the last cycle said nothing.
_TURN: Final = ReasonCode.BACKLOG_WINDOW, "ready; it is placed as soon as its turn comes"


def _paused(state: EngineState, run: WorkflowRun) -> str:
    """What is paused, the workflow or the first paused queue on the way to its own, and the command that takes it back."""
    if run.paused:
        return f"the workflow is paused; `flowsched resume {run.id}` lets it go on"
    name = next(queue.name for queue in state.policy.queues.path(run.spec.queue) if queue.paused)
    return f"queue {name!r} is paused; `flowsched queue set {name} --resume` lets it go on"


def _held_back(wait_ms: int) -> str:
    return f"the next attempt begins in {format_duration(wait_ms)} (it failed before)"


def _queued(
    state: EngineState, run: WorkflowRun, stage: StageRun, now: int, forecast: bool
) -> Iterator[Explanation]:
    """Why queued tasks wait, one explanation a cause."""
    queued = np.flatnonzero(stage.task_state == TaskState.QUEUED)
    if run.paused or state.policy.queues.paused(run.spec.queue):
        yield _of(stage, queued, ReasonCode.PAUSED, _paused(state, run))
        return
    held = queued[stage.not_before[queued] > now]
    if len(held):
        wait = int(stage.not_before[held].min()) - now
        yield _of(stage, held, ReasonCode.BACKOFF, _held_back(wait), {"wait_ms": wait})
        queued = queued[stage.not_before[queued] <= now]
    by_reason: dict[tuple[str, str], list[int]] = {}
    reasons: dict[tuple[str, str], Reason] = {}
    beyond = set(spare(stage).tolist())
    for task in queued.tolist():
        reason = _reason(state, run, stage, task)
        if task in beyond:
            reason = _beyond(stage, task, reason)
        key = (reason.code.value, reason.message) if reason else ("", "")
        by_reason.setdefault(key, []).append(task)
        if reason:
            reasons[key] = reason
    for key, alike in by_reason.items():
        at = np.array(alike)
        if key in reasons:
            reason = reasons[key]
            message = reason.message + _come_first(state, reason) + _stopped(stage, alike)
            told = _of(stage, at, reason.code, message, reason.numbers, reason.start_ms, reason.group)
            if forecast:
                told = structs.replace(told, estimate=estimate_text(state, run, stage, int(at[0])))
                told = _with_interval(state, told, reason, now)
            yield told
        else:
            yield _of(stage, at, *_TURN)


#: Reasons of groups that wait for room which others may free.
_FOR_ROOM: Final = frozenset(
    {ReasonCode.INSUFFICIENT, ReasonCode.GANG_INCOMPLETE, ReasonCode.RACK, ReasonCode.IO_BUDGET}
)


def _come_first(state: EngineState, reason: Reason) -> str:
    """Name the other queues whose waiting tasks the last cycle served before a group that waits for room."""
    own = state.round.refused.get(reason.group)
    if own is None or reason.code not in _FOR_ROOM:
        return ""
    tasks: Counter[str] = Counter()
    for number in takewhile(lambda number: number != reason.group, state.round.refused):
        other, why = state.round.refused[number], state.round.reasons.get(number)
        if other.queue != own.queue and why is not None and why.code in _FOR_ROOM:
            tasks[other.queue] += sum(role.count for role in other.roles)
    if not tasks:
        return ""
    told = ", ".join(f"{count} of queue {queue!r}" for queue, count in tasks.most_common(NAMED))
    number = tasks.total()
    return f"; {number} task{'s come' if number != 1 else ' comes'} first: {told} (`flowsched queue ls` shows the shares)"


def _stopped(stage: StageRun, tasks: Sequence[int]) -> str:
    """That tasks which wait ran before, and were taken away; the event `task.evicted` says for what."""
    taken = [stage.reasons[task] for task in tasks if stage.reasons.get(task) in EVICTED]
    if not taken:
        return ""
    who = "it was" if len(tasks) == 1 else f"{len(taken)} of {len(tasks)} were"
    return f"; {who} stopped before: {', '.join(sorted(set(taken)))} (the events say for what)"


def _with_interval(state: EngineState, told: Explanation, reason: Reason, now: int) -> Explanation:
    """Add to a group with a reservation the interval in which its start is expected, given the spread of runtimes.

    The reservation is planned with other runtimes (what is expected, not what was seen): the interval always holds its start.
    """
    if reason.start_ms is None or reason.group not in {each.group for each in state.round.reservations}:
        return told
    start = expected_starts(state, [reason.group], now).get(reason.group)
    if start is None:
        return told
    low, high = min(start.low_ms, reason.start_ms), max(start.high_ms, reason.start_ms)
    return structs.replace(told, start_low_ms=low, start_high_ms=high)


def _beyond(stage: StageRun, task: int, reason: Reason | None) -> Reason:
    """Why a member waits without which its gang goes on. `reason`: what the last cycle said of it."""
    members = stage.indices_of(task // stage.members)
    there = int(PLACED[stage.task_state[members]].sum())
    head = f"its gang goes on with {there} of {stage.members} members"
    out = stays_out(stage, task)
    if out is not None:
        message = f"{head} and does not grow: {out}"
    elif reason is None:
        message = f"{head}; it joins as soon as its turn comes"
    else:
        message = f"{head}; it joins when room comes: {reason.message}"
    numbers = dict(reason.numbers) if reason is not None and out is None else {}
    group = -1 if reason is None or out is not None else reason.group
    return Reason(
        group, ReasonCode.GANG_GOES_ON, message, numbers | {"members": there, "replicas": stage.members}
    )


def _reason(state: EngineState, run: WorkflowRun, stage: StageRun, task: int) -> Reason | None:
    shard = task // stage.members
    if stage.spec.gang:
        steps = int(stage.memory_steps[stage.indices_of(shard)].max())
    else:
        steps = int(stage.memory_steps[task])
    role = int(stage.role_of[task % stage.members])
    for key in (
        GroupKey(run.id, stage.number, shard, steps),
        GroupKey(run.id, stage.number, -1, steps),
        GroupKey(run.id, stage.number, shard, steps, role),
    ):
        number = state.work.keys.get(key)
        if number is not None and number in state.round.reasons:
            return state.round.reasons[number]
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
        for group in state.data.staging.values()
        if group.workflow == run.id and group.stage == stage.number
        for pair in group.pending
    }
    left = sum(state.cluster.catalogue.sizes[dataset] for dataset, _ in pending)
    nodes = sorted({state.cluster.snapshot.names[node] for _, node in pending})
    failed = [(pair, state.data.backoff[pair]) for pair in sorted(pending) if pair in state.data.backoff]
    number = len(pending)
    size = f" ({format_bytes(left)})" if left else ""  # of some origins it is known only once the bytes come
    what = f"{number} input{'s' * (number != 1)}{size} {'are' if number != 1 else 'is'}"
    told = f"{what} being copied to {', '.join(nodes)}"
    numbers = {"datasets": number, "bytes": left}
    if failed:
        (dataset, _), first = next((each for each in failed if each[1].why), failed[0])
        uri, more = uri_of(state.cluster.catalogue.uris[dataset]), len(pending) - 1
        told = _tried_again(uri, first, len(failed))
        told += f"; {more} more inputs of the stage are on their way" if more else ""
        numbers |= {"failed": len(failed), "tries": first.tries, "last_try_ms": last_try_ms(first)}
    return Explanation(
        stage=stage.spec.name,
        shards=_shards(stage, TaskState.STAGING),
        tasks=int(stage.counts[TaskState.STAGING]),
        state=TaskState.STAGING.name,
        code=ReasonCode.WAITING_FOR_DATA.value,
        message=told,
        numbers=numbers,
    )


def _tried_again(uri: str, failed: Backoff, number: int) -> str:
    """Of a copy that failed: what could not be read, why, and until when it is tried again."""
    why = failed.why or "the copy was broken off"
    said = why if uri in why else f"{uri}: {why}"
    others = f" (and {number - 1} more)" if number > 1 else ""
    if not failed.tries:  # there was no room for it, or its source went away: neither is counted
        return f"{said}{others}; tried again at {_clock(failed.not_before)}"
    return (
        f"{said}{others}; tried {failed.tries} of {MAX_TRIES} times, trying again until {_clock(last_try_ms(failed))} at least; "
        "the stage fails then"
    )


def _clock(moment_ms: int) -> str:
    """A time of day, as logs have it."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%H:%M:%S UTC")


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


def _on_silent_nodes(
    engine: EngineState, run: WorkflowRun, stage: StageRun, state: TaskState
) -> Iterator[Explanation]:
    """Tasks on nodes that do not report what their pods do."""
    snapshot = engine.cluster.snapshot
    there = np.flatnonzero(stage.task_state == state)
    nodes = stage.node[there]
    silent = [at for at in np.unique(nodes[nodes >= 0]).tolist() if snapshot.info(at).silent]
    if not silent:
        return
    tasks = there[np.isin(nodes, silent)]
    named = ", ".join(snapshot.names[at] for at in silent[:NAMED]) + (" …" if len(silent) > NAMED else "")
    why = next((f" ({info.trouble})" for at in silent if (info := snapshot.info(at)).trouble), "")
    they = "the other members wait for them; they " if stage.spec.gang else "they "
    message = (
        f"{len(tasks)} of {len(there)} are on {named}, not ready{why}: {they}may go on there, so none is started a second "
        "time; bring the node back, or remove it from the cluster"
    )
    numbers = {"silent_nodes": len(silent), "tasks_on_them": len(tasks)}
    told = _of(stage, tasks, ReasonCode.NODE_NOT_READY, message, numbers)
    yield structs.replace(told, state=state.name)


def _held(
    engine: EngineState, run: WorkflowRun, stage: StageRun, state: TaskState, what: str
) -> Explanation | None:
    """What the cluster says of pods that were asked for and do not start, or do not end."""
    if not engine.work.held:
        return None
    there = np.flatnonzero(stage.task_state == state).tolist()
    names = {pod_name(run.id, stage.spec.name, task, int(stage.attempt[task])): task for task in there}
    told = [(task, *engine.work.held[name]) for name, task in names.items() if name in engine.work.held]
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
