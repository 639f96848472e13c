"""Explain: why the tasks of a workflow do not run, from the facts of the last cycle and of the run, and when they will start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, TypeGuard

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.engine.backlog import Indices, fits_memory, resources_of
from flowsched.engine.data.inputs import MissingInput, dataset_ids, read_bytes
from flowsched.engine.data.staging import MAX_TRIES, last_try_ms
from flowsched.engine.forecast import expected_starts, spread_of
from flowsched.engine.io_demand import demand_text
from flowsched.engine.predictor import expected_runtime
from flowsched.engine.state import EngineState
from flowsched.engine.state.data import Backoff
from flowsched.engine.state.foreign import ForeignKey
from flowsched.engine.state.work import GroupKey, PodRef
from flowsched.executor.datasets import uri_of
from flowsched.executor.protocol import DELIVERING
from flowsched.scheduling.explain.forecast import LEVELS, Starts
from flowsched.scheduling.explain.remedies import OTHERS, Outlook, Situation
from flowsched.scheduling.plan import PERMANENT, Reason, ReasonCode
from flowsched.scheduling.reasons import larger_than_cap, larger_than_quota, quantity
from flowsched.scheduling.state.snapshot import PODS
from flowsched.values import replace
from flowsched.workflow.memory import fitted_text
from flowsched.workflow.resources import format_bytes, format_duration
from flowsched.workflow.run.elastic import PLACED, spare, stays_out
from flowsched.workflow.run.outcomes import EVICTED
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.run.states import TaskState

#: So many nodes are named whose outputs a call reads.
_WRITERS: Final = 3


def estimate_text(state: EngineState, run: WorkflowRun, stage: StageRun, task: int) -> str:
    """The expected runtime of a task as text for people: the figure, its source, and the spread of similar tasks.

    The text also gives the task's learned use of a disk, if there is one, and of a call the known facts about its inputs.
    """
    declared_ms = stage.spec.estimate.runtime_ms
    try:
        inputs = dataset_ids(state, run, stage, task // stage.members)
    except MissingInput:
        return ""
    expected_ms, _ = expected_runtime(state, run, stage, inputs)
    rest = _memory_text(state, run, stage, task, inputs) + demand_text(state, run, stage, inputs)
    rest += _inputs_text(state, run, stage, inputs)
    if expected_ms is None:
        return f"runtime unknown, counted as {format_duration(state.policy.profile.default_runtime_ms)}{rest}"
    size = read_bytes(state.cluster.catalogue, run, stage, inputs)
    kind = run.spec.kind_of(stage.spec)
    samples = state.work.estimates.samples(*kind)
    whose = "as its document says" if declared_ms is not None else f"learned from {samples}"
    if run.spec.call is not None and declared_ms is None:  # its stage is called as those of all other tasks
        whose += f" {kind[0]} {'task' if samples == 1 else 'tasks'}"
    spread = spread_of(state, run, stage, size) if samples else None
    if spread is None:
        return f"runs for {format_duration(expected_ms)}, {whose}{rest}"
    low, high = (format_duration(spread[LEVELS.index(level)]) for level in (100, 900))
    return f"runs for {format_duration(expected_ms)}, {whose}; eight of ten between {low} and {high}{rest}"


def _memory_text(
    state: EngineState, run: WorkflowRun, stage: StageRun, task: int, reads: tuple[int, ...]
) -> str:
    """The memory that the next attempt of a task gets, beside what it asks for; "" where it is not fitted."""
    if not fits_memory(state, run, stage):
        return ""
    asked = stage.spec.roles[0].resources.memory_bytes
    given = resources_of(
        state, run, stage, 0, int(stage.memory_steps[task]) if stage.uniform is None else 0, reads
    ).memory_bytes
    samples = state.work.estimates.samples(*run.spec.kind_of(stage.spec))
    tasks = "task" if samples == 1 else "tasks"
    return f"; {fitted_text(asked, given, f'from {samples} {tasks}')}"


def _inputs_text(state: EngineState, run: WorkflowRun, stage: StageRun, inputs: Sequence[int]) -> str:
    """Of a call: the bytes that it reads, the node that has most of them, and the nodes of its run that wrote some of them."""
    call, catalogue = run.spec.call, state.cluster.catalogue
    size = read_bytes(catalogue, run, stage, inputs)
    if call is None or not size:
        return ""
    there: Counter[int] = Counter()
    for dataset in inputs:
        there.update(dict.fromkeys(sorted(catalogue.nodes_of(dataset)), catalogue.sizes[dataset]))
    text = f"; reads {format_bytes(size)}"
    for node, here in there.most_common(1):
        part = "all" if here == size else format_bytes(here)
        text += f", {part} of it on {state.cluster.snapshot.names[node]}"
    if call.after:
        more = f" and {len(call.after) - _WRITERS} more" if len(call.after) > _WRITERS else ""
        text += f"; follows {', '.join(call.after[:_WRITERS])}{more}"
    return text


# ---- the explanation ----


#: How many shards are named in one explanation.
NAMED = 5


class Explanation(msgspec.Struct, frozen=True):
    """Why `tasks` tasks of a stage are in `state` and do not run.

    `group` is the number of the backlog item. `outlook` names the item's constraint and a change that would let
    it start. It is empty until a caller has worked it out from `situations_of`.
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
    last_low_ms: int | None = None  #: of the last of some tasks that start one after the other
    last_high_ms: int | None = None
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
    reserved, refused = [each.group for each in state.round.reservations], state.round.refused
    numbers = [number for number in dict.fromkeys((*reserved, *refused)) if number in refused]
    others = tuple(refused[number] for number in numbers if number != group)[:OTHERS]
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


#: Reasons of groups that wait for room which others may free.
_FOR_ROOM: Final = frozenset(
    {ReasonCode.INSUFFICIENT, ReasonCode.GANG_INCOMPLETE, ReasonCode.RACK, ReasonCode.IO_BUDGET}
)


class Facts:
    """The state of one live run, by stage. Made for one answer: each part is read once, for all stages.

    Args:
        state, run: Not modified. Nothing may change them while this is in use.
    """

    def __init__(self, state: EngineState, run: WorkflowRun) -> None:
        self.state = state
        self.run = run

    @cached_property
    def reasons(self) -> Mapping[int, Sequence[tuple[GroupKey, Reason]]]:
        """Why backlog items of a stage were not placed in the last round."""
        found: dict[int, list[tuple[GroupKey, Reason]]] = {}
        for number, reason in self.state.round.reasons.items():
            key = self.state.work.groups.get(number)
            if _is_of(key, self.run):
                found.setdefault(key.stage, []).append((key, reason))
        return found

    @cached_property
    def staging(self) -> Mapping[int, set[tuple[int, int]]]:
        """(dataset, node) of the copies that a stage waits for."""
        found: dict[int, set[tuple[int, int]]] = {}
        for group in self.state.data.staging.values():
            if group.workflow == self.run.id:
                found.setdefault(group.stage, set()).update(group.pending)
        return found

    @cached_property
    def waiting_pods(self) -> Mapping[int, Sequence[tuple[PodRef, str, str]]]:
        """Pods of a stage that do not start or do not end, each with the cluster's reason and message."""
        found: dict[int, list[tuple[PodRef, str, str]]] = {}
        for name, (reason, message) in self.state.work.waiting_pods.items():
            pod = self.state.work.pods.get(name)
            if pod is not None and pod.workflow == self.run.id:
                found.setdefault(pod.stage, []).append((pod, reason, message))
        return found

    @cached_property
    def ahead(self) -> Mapping[int, str]:
        """Of the run's groups that wait for room: the tasks that the last cycle served before them, by the number of a group.

        The text names the other queues. A group that comes first has none.
        """
        found: dict[int, str] = {}
        before: Counter[str] = Counter()
        text = ""
        for number, group in self.state.round.refused.items():
            why = self.state.round.reasons.get(number)
            if why is None or why.code not in _FOR_ROOM:
                continue
            if group.queue != self.run.spec.queue:
                before[group.queue] += sum(role.count for role in group.roles)
                text = ""
            elif before and _is_of(self.state.work.groups.get(number), self.run):
                text = text or _comes_first(before)
                found[number] = text
        return found


def _is_of(key: GroupKey | ForeignKey | None, run: WorkflowRun) -> TypeGuard[GroupKey]:
    return isinstance(key, GroupKey) and key.workflow == run.id


def _comes_first(tasks: Counter[str]) -> str:
    named = ", ".join(f"{count} of queue {queue!r}" for queue, count in tasks.most_common(NAMED))
    number = tasks.total()
    return f"; {number} task{'s come' if number != 1 else ' comes'} first: {named} (`flowsched queue ls` shows the shares)"


def explain(state: EngineState, run: WorkflowRun, now: int, *, forecast: bool = True) -> list[Explanation]:
    """Everything of a live workflow that is neither running nor done, by stage and cause.

    Args:
        state, run: Not modified.
        now: Wall-clock ms.
        forecast: Add the expected runtime of a task and the interval of its start, which costs more.
    """
    facts = Facts(state, run)
    found = [each for stage in run.stages for each in explain_stage(facts, stage, now, forecast=forecast)]
    if not forecast:
        return found
    return with_starts(
        found, expected_starts(state, {each.group for each in found if each.group is not None}, now)
    )


def explain_stage(facts: Facts, stage: StageRun, now: int, *, forecast: bool = True) -> list[Explanation]:
    """The same for one stage, without the moments. Costs as much as its distinct causes, and some array operations."""
    if stage.state.terminal:
        return []
    found: list[Explanation] = []
    state, run = facts.state, facts.run
    if stage.counts[TaskState.PENDING]:
        found.append(_too_large(state, run, stage) or _pending(run, stage))
    if stage.counts[TaskState.QUEUED]:
        found.extend(_queued(facts, stage, now, forecast))
    if stage.counts[TaskState.STAGING]:
        found.append(_staging(facts, stage))
    for moving in (TaskState.BINDING, TaskState.RELEASING):
        if stage.counts[moving]:
            found.append(_in_passing(facts, stage, moving))
    if stage.counts[TaskState.RUNNING]:
        found.extend(_on_silent_nodes(state, stage, TaskState.RUNNING))
        waiting = _waiting(facts, stage, TaskState.RUNNING, _UNENDED)
        if waiting is not None:
            found.append(waiting)
    return found


def with_starts(found: Sequence[Explanation], expected: Mapping[int, Starts]) -> list[Explanation]:
    """The same, each group with the interval in which it is expected to start, by key.

    A start that was reserved stands only where none is expected: it is a bound that other groups keep to, planned with late ends.
    """
    return [with_start(each, expected) for each in found]


def with_start(each: Explanation, expected: Mapping[int, Starts]) -> Explanation:
    """One of them."""
    start = None if each.group is None else expected.get(each.group)
    if start is None:
        return each
    found = structs.replace(
        each,
        start_ms=start.first.start_ms,
        start_low_ms=start.first.low_ms,
        start_high_ms=start.first.high_ms,
    )
    if start.last == start.first:
        return found
    return structs.replace(found, last_low_ms=start.last.low_ms, last_high_ms=start.last.high_ms)


#: `first_reason` looks at so many stages of a workflow.
_STAGES_ASKED: Final = 50
_PENDING: Final = int(TaskState.PENDING)
_QUEUED: Final = int(TaskState.QUEUED)
_RUNNING: Final = int(TaskState.RUNNING)
_UNENDED: Final = "tasks do not end"


def first_reason(state: EngineState, run: WorkflowRun, now: int) -> Explanation | None:
    """The main reason why a live workflow does not run: one that never ends by itself, or else the first.

    While tasks run, only a reason that never ends by itself, or one of all of a few running tasks. Reads one task of a stage,
    and at `_STAGES_ASKED` stages.

    Args:
        state, run: Not modified.
        now: Wall-clock ms.
    """
    ready = np.flatnonzero(run.counts[:, _QUEUED:_RUNNING].any(axis=1))[:_STAGES_ASKED].tolist()
    facts = Facts(state, run)
    found = [stage_reason(facts, run.stages[number], now) for number in ready]
    reasons = [each for each in found if each is not None]
    for each in reasons:
        if each.permanent:
            return each
    for stage in run.stages[:_STAGES_ASKED]:
        ahead = _too_large(state, run, stage) if stage.counts[_PENDING] else None
        if ahead is not None:
            return ahead
    if run.counts[:, _RUNNING].any():
        return _all_waiting(facts)
    return reasons[0] if reasons else None


def _all_waiting(facts: Facts) -> Explanation | None:
    """Why the first of a few running tasks waits, if the pods of all of them wait."""
    running = facts.run.counts[:, _RUNNING]
    if not facts.state.work.waiting_pods or running.sum() > NAMED:
        return None
    stages = [facts.run.stages[number] for number in np.flatnonzero(running).tolist()]
    if sum(len(_waiting_tasks(facts, stage, TaskState.RUNNING)) for stage in stages) < running.sum():
        return None
    return _waiting(facts, stages[0], TaskState.RUNNING, _UNENDED)


def stage_reason(facts: Facts, stage: StageRun, now: int) -> Explanation | None:
    """The first thing that keeps tasks of a live stage from running, of one task in each state."""
    if stage.state.terminal:
        return None
    state, run = facts.state, facts.run
    if stage.counts[TaskState.QUEUED] and stage.uniform is None:
        return _first_queued(state, run, stage, now)
    if stage.counts[TaskState.STAGING]:
        return _staging(facts, stage)
    for there in (TaskState.BINDING, TaskState.RUNNING):
        if stage.counts[there]:
            silent = next(_on_silent_nodes(state, stage, there), None)
            what = _UNENDED if there is TaskState.RUNNING else "pods do not start"
            waiting = silent or _waiting(facts, stage, there, what)
            if waiting is not None:
                return waiting
    return _too_large(state, run, stage) or _pending(run, stage) if stage.counts[TaskState.PENDING] else None


def _too_large(state: EngineState, run: WorkflowRun, stage: StageRun) -> Explanation | None:
    """That a stage will wait for ever once its turn comes: it asks for more than any node has in all, its queue's cap, or a quota.

    None for a stage that may be skipped, and where no node has been seen.
    """
    found = _larger_than_node(state, stage) or _larger_than_allowed(state, run, stage)
    if found is None or stage.number in run.graph.conditional:
        return None
    code, (message, numbers) = found
    return _of(stage, TaskState.PENDING, code, message, numbers)


def _larger_than_node(
    state: EngineState, stage: StageRun
) -> tuple[ReasonCode, tuple[str, dict[str, int]]] | None:
    largest = state.cluster.snapshot.largest
    for role in stage.spec.roles:
        request = role.resources
        asked = (request.cpu_millicores, request.memory_bytes, request.disk_bytes, request.gpu_millis)
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


def _larger_than_allowed(
    state: EngineState, run: WorkflowRun, stage: StageRun
) -> tuple[ReasonCode, tuple[str, dict[str, int]]] | None:
    """By the request of one task of the stage; of a gang, by the sum over the members that it starts with."""
    gang = stage.spec.gang and state.policy.profile.gang
    needs: dict[str, int] = {}
    for role in stage.spec.roles:
        request, members = role.resources, role.minimum if gang else 1
        asked = {
            "cpu": request.cpu_millicores,
            "memory": request.memory_bytes,
            "disk": request.disk_bytes,
            "gpu": request.gpu_millis,
        }
        for name, wants in (asked | dict(request.extended) | {PODS: 1}).items():
            needs[name] = needs.get(name, 0) + members * wants
    axes = state.cluster.snapshot.axes
    least = [needs.get(name, 0) for name in axes]
    forbidden = larger_than_cap(run.spec.queue, least, state.policy.queues, axes)
    if forbidden is not None:
        return ReasonCode.LARGER_THAN_QUEUE, forbidden
    forbidden = larger_than_quota(least, state.cluster.snapshot.quotas, axes)
    return None if forbidden is None else (ReasonCode.LARGER_THAN_QUOTA, forbidden)


def _pending(run: WorkflowRun, stage: StageRun) -> Explanation:
    parents = [run.stages[edge.parent] for edge in run.graph.edges_in[stage.number]]
    waiting = [parent for parent in parents if not parent.state.terminal]
    names = ", ".join(
        p.spec.name if p.spec.width == 1 else f"{p.spec.name} ({p.done} of {p.spec.width} shards done)"
        for p in waiting[:NAMED]
    )
    message = f"waits for {names}" if names else "waits for shards it reads from"
    numbers = {"stages_not_done": len(waiting)}
    return _of(stage, TaskState.PENDING, ReasonCode.WAITING_FOR_PARENTS, message, numbers)


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
        reason = Reason(-1, ReasonCode.BACKOFF, _backoff_text(wait), {"wait_ms": wait})
    else:
        reason = _reason(state, run, stage, task) or reason
    found = _queued_for(stage, reason, np.array([task]))
    return structs.replace(found, tasks=int(stage.counts[TaskState.QUEUED]))


def _queued_for(stage: StageRun, reason: Reason, tasks: Indices) -> Explanation:
    found = _of(stage, TaskState.QUEUED, reason.code, reason.message, reason.numbers, tasks)
    return structs.replace(found, start_ms=reason.start_ms, group=reason.group if reason.group >= 0 else None)


#: Of a task for which the last cycle has no reason.
_TURN: Final = ReasonCode.BACKLOG_WINDOW, "ready; it is placed as soon as its turn comes"


def _paused(state: EngineState, run: WorkflowRun) -> str:
    """Name what is paused, the workflow or the first paused queue on the way to its own, and the command that resumes it."""
    if run.paused:
        return f"the workflow is paused; `flowsched resume {run.id}` lets it go on"
    name = next(queue.name for queue in state.policy.queues.path(run.spec.queue) if queue.paused)
    return f"queue {name!r} is paused; `flowsched queue set {name} --resume` lets it go on"


def _backoff_text(wait_ms: int) -> str:
    return f"the next attempt begins in {format_duration(wait_ms)} (it failed before)"


def _queued(facts: Facts, stage: StageRun, now: int, forecast: bool) -> Iterator[Explanation]:
    """Why queued tasks wait, one explanation a cause."""
    state, run = facts.state, facts.run
    queued = np.flatnonzero(stage.task_state == TaskState.QUEUED)
    if run.paused or state.policy.queues.paused(run.spec.queue):
        yield _of(stage, TaskState.QUEUED, ReasonCode.PAUSED, _paused(state, run), tasks=queued)
        return
    if not stage.holds_only("not_before", 0):
        waits = stage.not_before[queued] > now
        delayed, queued = queued[waits], queued[~waits]
        if len(delayed):
            wait = int(stage.not_before[delayed].min()) - now
            rests = Reason(-1, ReasonCode.BACKOFF, _backoff_text(wait), {"wait_ms": wait})
            yield _queued_for(stage, rests, delayed)
    evicted = np.array([task for task, why in stage.reasons.items() if why in EVICTED], dtype=np.int64)
    for reason, tasks in _causes(facts, stage, queued):
        if reason is None:
            yield _of(stage, TaskState.QUEUED, *_TURN, tasks=tasks)
            continue
        message = reason.message + facts.ahead.get(reason.group, "") + _stopped(stage, tasks, evicted)
        found = _queued_for(stage, structs.replace(reason, message=message), tasks)
        if forecast:
            found = structs.replace(found, estimate=estimate_text(state, run, stage, int(tasks[0])))
        yield found


def _causes(facts: Facts, stage: StageRun, queued: Indices) -> list[tuple[Reason | None, Indices]]:
    """Queued tasks by the last cycle's reason, in the order of their first tasks; None where it has none."""
    pairs = facts.reasons.get(stage.number, ())
    reasons = [reason for _, reason in pairs]
    which = _matched(stage, queued, [key for key, _ in pairs])
    beyond = spare(stage)
    known: dict[tuple[object, ...], int] = {}
    for at in np.flatnonzero(np.isin(queued, beyond)).tolist() if len(beyond) else ():
        task, before = int(queued[at]), int(which[at])
        kind = (
            task // stage.members, stage.role_of.item(task % stage.members), stage.lost.item(task),
            stage.charged.item(task), stage.reasons.get(task), before,
        )  # fmt: skip
        if kind not in known:
            known[kind] = len(reasons)
            reasons.append(_beyond(stage, task, reasons[before] if before >= 0 else None))
        which[at] = known[kind]
    texts: dict[tuple[str, str], int] = {}
    alike = [texts.setdefault((each.code.value, each.message), len(texts) + 1) for each in reasons]
    small = np.min_scalar_type(len(texts))  # NumPy sorts numbers of 16 bits by radix: a million in 5 ms
    kinds = np.array([0, *alike], dtype=small)[which + 1]
    order = np.argsort(kinds, kind="stable")
    borders = np.flatnonzero(np.diff(kinds[order])) + 1
    parts = [part for part in np.split(order, borders) if len(part)]
    return [
        (reasons[int(which[part[-1]])] if kinds[part[0]] else None, queued[part])
        for part in sorted(parts, key=lambda part: int(part[0]))
    ]


def _matched(stage: StageRun, queued: Indices, keys: Sequence[GroupKey]) -> NDArray[np.int32]:
    """(queued,) the place in `keys` of the backlog item that each queued task belongs to, -1 where it belongs to none.

    An item of the task's shard comes before one of all ready shards, and this before one of a role that joins the shard's gang.
    """
    which = np.full(len(queued), -1, dtype=np.int32)
    steps: int | Indices = 0
    if not stage.holds_only("memory_steps", 0):
        steps = stage.memory_steps[queued].astype(np.int64)
        if stage.spec.gang:
            steps = (
                stage.memory_steps.reshape(-1, stage.members)
                .max(axis=1)[queued // stage.members]
                .astype(np.int64)
            )
    of_roles = [at for at, key in enumerate(keys) if key.role >= 0]
    of_all = [at for at, key in enumerate(keys) if key.shard < 0]
    of_shards = [at for at, key in enumerate(keys) if key.shard >= 0 and key.role < 0]
    for places in filter(None, (of_roles, of_all, of_shards)):
        shard = -1 if places is of_all else queued // stage.members
        role = stage.role_of[queued % stage.members].astype(np.int64) if places is of_roles else -1
        codes = np.array([_code(keys[at].shard, keys[at].role, keys[at].memory_steps) for at in places])
        ranked = np.argsort(codes)
        wanted = _code(shard, role, steps)
        near = ranked[np.minimum(np.searchsorted(codes, wanted, sorter=ranked), len(codes) - 1)]
        which = np.where(codes[near] == wanted, np.array(places, dtype=np.int32)[near], which)
    return which


def _code(shard: int | Indices, role: int | Indices, steps: int | Indices) -> Any:
    """One number for a shard, a role and steps of memory, each -1 or more and below the factors here."""
    return ((shard + 1) * 1_024 + role + 1) * 256 + steps


def _stopped(stage: StageRun, tasks: Indices, evicted: Indices) -> str:
    """That waiting tasks ran before, and were evicted; the event `task.evicted` names the reason."""
    taken = tasks[np.isin(tasks, evicted)].tolist() if len(evicted) else []
    if not taken:
        return ""
    who = "it was" if len(tasks) == 1 else f"{len(taken)} of {len(tasks)} were"
    why = ", ".join(sorted({stage.reasons[task] for task in taken}))
    return f"; {who} stopped before: {why} (the events say for what)"


def _beyond(stage: StageRun, task: int, reason: Reason | None) -> Reason:
    """Why a member waits without which its gang goes on. `reason`: of the last cycle."""
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
    state: TaskState,
    code: str,
    message: str,
    numbers: Mapping[str, int] | None = None,
    tasks: Indices | None = None,
) -> Explanation:
    """Of some tasks of a stage in one state; None = of all that are in it."""
    if tasks is None and stage.uniform is not None:
        shards = tuple(range(min(stage.spec.width, NAMED)))
    else:
        those = np.flatnonzero(stage.task_state == state) if tasks is None else tasks
        first = those[: NAMED * stage.members].tolist()
        shards = tuple(sorted({task // stage.members for task in first}))[:NAMED]
    number = int(stage.counts[state]) if tasks is None else len(tasks)
    return Explanation(stage.spec.name, shards, number, state.name, str(code), message, dict(numbers or {}))


def _staging(facts: Facts, stage: StageRun) -> Explanation:
    state, pending = facts.state, facts.staging.get(stage.number, set())
    left = sum(state.cluster.catalogue.sizes[dataset] for dataset, _ in pending)
    nodes = sorted({state.cluster.snapshot.names[node] for _, node in pending})
    failed = [(pair, state.data.backoff[pair]) for pair in sorted(pending) if pair in state.data.backoff]
    number = len(pending)
    size = f" ({format_bytes(left)})" if left else ""  # of some origins it is known only once the bytes come
    what = f"{number} input{'s' * (number != 1)}{size} {'are' if number != 1 else 'is'}"
    message = f"{what} being copied to {', '.join(nodes)}"
    numbers = {"datasets": number, "bytes": left}
    if failed:
        (dataset, _), first = next((each for each in failed if each[1].why), failed[0])
        uri, more = uri_of(state.cluster.catalogue.uris[dataset]), len(pending) - 1
        message = _tried_again(uri, first, len(failed))
        message += f"; {more} more inputs of the stage are on their way" if more else ""
        numbers |= {"failed": len(failed), "tries": first.tries, "last_try_ms": last_try_ms(first)}
    return _of(stage, TaskState.STAGING, ReasonCode.WAITING_FOR_DATA, message, numbers)


def _tried_again(uri: str, failed: Backoff, number: int) -> str:
    """Of a copy that failed: the input, the cause, and until when it is tried again."""
    why = failed.why or "the copy was broken off"
    cause = why if uri in why else f"{uri}: {why}"
    others = f" (and {number - 1} more)" if number > 1 else ""
    if not failed.tries:  # there was no room for it, or its source went away: neither is counted
        return f"{cause}{others}; tried again at {_clock(failed.not_before)}"
    return (
        f"{cause}{others}; tried {failed.tries} of {MAX_TRIES} times, trying again until {_clock(last_try_ms(failed))} at least; "
        "the stage fails then"
    )


def _clock(moment_ms: int) -> str:
    """A time of day, as logs have it."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%H:%M:%S UTC")


def _in_passing(facts: Facts, stage: StageRun, state: TaskState) -> Explanation:
    waiting = _waiting(facts, stage, state, "pods do not start") if state is TaskState.BINDING else None
    if waiting is not None:
        return waiting
    message = "is being started"
    if state is TaskState.RELEASING:
        leaving = np.flatnonzero(stage.task_state == state).tolist()
        why = sorted({stage.reasons[task] for task in leaving if task in stage.reasons})
        message = "is being taken away" + (f": {', '.join(why)}" if why else "")
    return _of(stage, state, "Starting" if state is TaskState.BINDING else "Releasing", message)


def _on_silent_nodes(engine: EngineState, stage: StageRun, state: TaskState) -> Iterator[Explanation]:
    """Tasks on nodes that do not report what their pods do."""
    snapshot = engine.cluster.snapshot
    there = np.flatnonzero(stage.task_state == state)
    nodes = stage.node[there]
    silent = [at for at in sorted(set(nodes[nodes >= 0].tolist())) if snapshot.info(at).silent]
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
    yield _of(stage, state, ReasonCode.NODE_NOT_READY, message, numbers, tasks)


def _waiting(facts: Facts, stage: StageRun, state: TaskState, what: str) -> Explanation | None:
    """The cluster's reason why ordered pods do not start, or do not end."""
    pods = _waiting_tasks(facts, stage, state)
    if not pods:
        return None
    tasks = int(stage.counts[state])
    stuck = [each for each in pods if each[1] != DELIVERING]
    pods = stuck or pods
    _, reason, message = pods[0]
    if not stuck:
        what = "tasks deliver their files"
    text = f"{len(pods)} of {tasks} {what}: {message or reason}"
    found = _of(stage, state, reason, text, {"held": len(pods)}, np.array([task for task, _, _ in pods]))
    return structs.replace(found, tasks=tasks, state=state.name if stuck else DELIVERING.upper())


def _waiting_tasks(facts: Facts, stage: StageRun, state: TaskState) -> list[tuple[int, str, str]]:
    """(task, reason, message) of the tasks of a state whose pods wait, by the cluster's report."""
    return sorted(
        (pod.task, reason, message)
        for pod, reason, message in facts.waiting_pods.get(stage.number, ())
        if stage.task_is(pod.task) is state and pod.attempt == int(stage.attempt[pod.task])
    )
