"""Views: rows and arrays become the answers of the API (`workflow.views`): workflows, idle room, queues. Mappings only."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar, overload

import msgspec
import numpy as np

from flowsched.engine.choices import decoded
from flowsched.engine.delta import OutputWrite, TaskWrite
from flowsched.engine.explain import NAMED, Explanation
from flowsched.engine.state import EngineState
from flowsched.engine.state.cluster import Drain
from flowsched.errors import InvalidRequest
from flowsched.executor.nodes import CORDONED, NodeInfo
from flowsched.scheduling.explain.idle import Cause, IdleRoom, Split, idle_room
from flowsched.scheduling.queues.tree import Queue, QueueTree, Shares, guaranteed
from flowsched.scheduling.reasons import quantity
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.scheduling.state.snapshot import AXES
from flowsched.store.accounting import UsageSum
from flowsched.store.cache_keys import Found
from flowsched.store.rows import AttemptRow, AttemptUseRow, StageRow, StoredEvent, WorkflowRow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.resources import format_duration, parse_duration
from flowsched.workflow.returned import added
from flowsched.workflow.run.elastic import Indices, joining, spare
from flowsched.workflow.run.outcomes import SPOILED
from flowsched.workflow.run.run import StageRun
from flowsched.workflow.run.states import (
    TASKS_IN,
    TERMINAL,
    ReportedState,
    RunState,
    TaskState,
    reported_state,
)
from flowsched.workflow.spec import Resources, RoleSpec, StageSpec, WorkflowSpec, qos_class
from flowsched.workflow.views import (
    CACHE_NAMED,
    AttemptUseView,
    AttemptView,
    CacheView,
    ChoiceView,
    DrainView,
    EventView,
    ExplanationView,
    FittedMemoryView,
    IdleReportView,
    IdleView,
    ImageView,
    NodeView,
    OutputView,
    QueueUserView,
    QueueView,
    StageView,
    SuggestionView,
    TaskView,
    UsageRowView,
    UsageSumView,
    UsageView,
    View,
    WaitingView,
    WorkflowView,
)

V = TypeVar("V", bound=View)

#: Of the answer, a stage: what tells whether making it is long work.
STAGE_BYTES: Final = 400
HOUR_MS: Final = 3_600_000


@overload
def moment(ms: int) -> datetime: ...
@overload
def moment(ms: int | None) -> datetime | None: ...
def moment(ms: int | None) -> datetime | None:
    """Wall-clock ms as a time in UTC."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


@cache
def _alike(kind: type[View], row: Any) -> tuple[tuple[str, str, bool], ...]:
    """(field of a view, attribute of a row, whether it is a time) of all that both have."""
    fields = {*(getattr(row, "_fields", None) or row.__struct_fields__)}
    fields |= {name for name in dir(row) if isinstance(getattr(row, name), property)}
    found = []
    for name in kind.__struct_fields__:
        stored = re.sub(r"(^|_)at$", r"\1at_ms" if name == "at" else r"\1ms", name)
        if name in fields:
            found.append((name, name, False))
        elif stored in fields:
            found.append((name, stored, True))
    return tuple(found)


def view_of(kind: type[V], row: Any, /, **more: Any) -> V:
    """The view of a row: what both have under one name, and the time `x_at` from `x_ms`.

    Args:
        kind: The view.
        row: A named tuple or a struct.
        more: Fields that the row does not have, or has in another form.
    """
    values = {
        name: moment(getattr(row, stored)) if is_time else getattr(row, stored)
        for name, stored, is_time in _alike(kind, row.__class__)
        if name not in more
    }
    return kind(**values, **more)


def waiting_view(found: Explanation | None) -> WaitingView | None:
    """The first thing that keeps tasks from running."""
    return None if found is None else view_of(WaitingView, found)


def workflow_view(
    row: WorkflowRow, counts: dict[str, int], codes: dict[str, int], waiting: Explanation | None = None
) -> WorkflowView:
    """One workflow.

    Args:
        row: As stored.
        counts: Its tasks by state, from memory where it lives there.
        codes: Exit code -> tasks that succeeded with it.
        waiting: Why it does not run.
    """
    state = reported_state(RunState(row.state), counts)
    return view_of(
        WorkflowView,
        row,
        user=row.owner,
        state=state,
        waiting=waiting_view(waiting),
        counts=counts,
        returned=codes,
    )


class LiveStage(msgspec.Struct, frozen=True):
    """A stage that has not ended, as memory has it: its tasks by state, and why they wait."""

    counts: dict[str, int]
    waiting: Explanation | None


def stage_views(
    rows: Sequence[StageRow], spec: WorkflowSpec, live: Mapping[int, LiveStage]
) -> list[StageView]:
    """All stages of a workflow. Takes up to 0.2 s where there are 10,000. `live`: by number, of those in memory."""
    graph = StageGraph(spec)
    return [stage_view(row, spec, graph, live.get(row.stage)) for row in rows]


def stage_view(row: StageRow, spec: WorkflowSpec, graph: StageGraph, live: LiveStage | None) -> StageView:
    """One stage."""
    stage = spec.stages[row.stage]
    totals = row.totals
    state = RunState(row.state)
    if state.terminal:
        live = None
    counts = dict(row.counts) if live is None else live.counts
    return view_of(
        StageView,
        row,
        number=row.stage,
        state=reported_state(state, counts),
        waiting=None if live is None else waiting_view(live.waiting),
        gang=stage.gang,
        needs=[spec.stages[edge.parent].name for edge in graph.edges_in[row.stage]],
        counts=counts,
        returned=added([totals]),
        cached=totals.get("cached", 0),
        **stage_sums([totals]),
    )


def stage_sums(totals: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """The sums of a stage's tasks (waits, moved bytes, used resources), as the fields of `StageView`."""

    def of(name: str) -> int:
        return sum(each.get(name, 0) for each in totals)

    fitted = None
    if attempts := of("fitted"):
        fitted = FittedMemoryView(
            attempts=attempts,
            asked_bytes=(of("fitted_asked_mib") << 20) // attempts,
            given_bytes=(of("fitted_given_mib") << 20) // attempts,
            saved_gib_hours=of("memory_saved_gib_ms") / HOUR_MS,
        )
    return {
        **{f"{name}_seconds": of(f"{name}_ms") / 1000 for name in ("queued", "staging", "running")},
        **{name: of(name) for name in ("bytes_local", "bytes_moved")},
        "core_hours": of("core_ms") / HOUR_MS,
        "gpu_hours": of("gpu_ms") / HOUR_MS,
        "memory_gib_hours": of("memory_gib_ms") / HOUR_MS,
        "fitted_memory": fitted,
    }


#: The number at the end of "w1/align/3".
_SHARD: Final = re.compile(r"(?<=/)?/\d+(?=$| )")


def cache_views(
    rows: Sequence[Found], spec: WorkflowSpec, ran: Collection[tuple[int, int]]
) -> list[CacheView]:
    """The results of look-ups, alike ones together. A name of another shard loses its number: "w1/align/3" is "w1/align".

    Args:
        rows: The look-ups.
        spec: The workflow.
        ran: Stage and index of the tasks that have started.
    """
    started = {(stage, index // spec.stages[stage].members) for stage, index in ran}
    found: dict[tuple[int, str, str, bool], list[int]] = {}
    for row in rows:
        why = _SHARD.sub("", row.why)
        itself = not row.source and (row.stage, row.shard) in started
        key = (row.stage, why if row.source else "", "" if row.source else why, itself)
        found.setdefault(key, []).append(row.shard)
    views = []
    for (stage, source, why, itself), shards in found.items():
        items = spec.stages[stage].items
        which = [items[shard] if items else str(shard) for shard in shards[:CACHE_NAMED]]
        views.append(
            CacheView(
                stage=spec.stages[stage].name,
                shards=len(shards),
                first=shards[0],
                which=which,
                source=source,
                ran=itself,
                why=why,
            )
        )
    return views


def task_view(row: TaskWrite, stage: StageSpec) -> TaskView:
    """One task from its row."""
    member = row.index % stage.members
    role = _role_of(stage, member)
    return view_of(
        TaskView,
        row,
        stage=stage.name,
        shard=row.index // stage.members,
        role=role.name,
        item=item_of(stage, row.index),
        state=TaskState(row.state).name,
        qos=qos_class(role.resources, role.limits).word,
    )


def item_of(stage: StageSpec, index: int) -> str | None:
    """The item of a task's shard; None where its stage has none."""
    return stage.items[index // stage.members] if stage.items else None


def _role_of(stage: StageSpec, member: int) -> RoleSpec:
    """The role of a member of a gang: roles stand in the document's order."""
    for role in stage.roles:
        if member < role.replicas:
            return role
        member -= role.replicas
    raise IndexError(f"stage {stage.name} has no member {member}")


def task_state(name: str | None) -> TaskState | None:
    """A state by the name a user gave it.

    Raises:
        InvalidRequest: There is none of that name.
    """
    if name is None:
        return None
    try:
        return TaskState[name.upper()]
    except KeyError as error:
        names = ", ".join(state.name for state in TaskState)
        raise InvalidRequest(f"there is no task state {name!r}; there are {names}") from error


def dropped_row(row: TaskWrite, why: str) -> TaskWrite:
    """The row of a task that was dropped with its stage or workflow. `why`: the reason of that."""
    never = row.state == TaskState.CANCELLED and row.bound_ms is None
    return row._replace(reason=f"not started: {why}" if never and why else why)


#: From when until when a task waited, where that is known.
Waited: TypeAlias = tuple[int | None, int | None]


def untouched_row(
    workflow: str, stage: int, index: int, state: TaskState, when: Waited = (None, None)
) -> TaskWrite:
    """The row of a task that has none yet. `when`: as `waited` returns it."""
    ready_ms, ended_ms = when
    return TaskWrite(
        workflow, stage, index, int(state), 0, None, 0, 0, "", None, ready_ms, None, None, None, None, ended_ms,
        0, 0,
    )  # fmt: skip


def waited(tasks: int, totals: Mapping[str, int], started_ms: int | None, ended_ms: int | None) -> Waited:
    """From when until when the tasks of a stage waited that ended before any of them ran; None where they did not wait alike.

    Args:
        tasks: Of the stage.
        totals: Its sums.
        started_ms: When its first task was ready.
        ended_ms: When the stage ended.
    """
    if started_ms is None or ended_ms is None or totals.get("running_ms"):
        return None, None
    together_ms = totals.get("queued_ms", 0) + totals.get("staging_ms", 0)
    alike = together_ms == tasks * (ended_ms - started_ms)
    return (started_ms, ended_ms) if alike else (None, None)


class _Report(msgspec.Struct):
    """The fields of a `ContainerReport`'s JSON that views show."""

    images: list[ImageView] = []


_REPORT: Final = msgspec.json.Decoder(_Report)


def attempt_view(row: AttemptRow) -> AttemptView:
    """One try."""
    images = _REPORT.decode(row.report).images if row.report else []
    return view_of(
        AttemptView, row, pod=row.name, bound_at=moment(row.at_ms), choice=decoded(row.choice), images=images
    )


class _Asked(msgspec.Struct):
    """The fields of a launch order (`executor.protocol.Pod`) that views show."""

    cpu_millicores: int = 0
    memory_bytes: int = 0
    gpu_millis: int = 0
    item: str | None = None
    shard: int = 0


_ASKED: Final = msgspec.json.Decoder(_Asked)


def attempt_use_view(use: AttemptUseRow, names: Mapping[str, tuple[int, str | None]]) -> AttemptUseView:
    """One attempt with what it asked for; of a run of another engine, its call is the stage.

    Args:
        use: The attempt.
        names: Number and item of the tasks of a run, by the workflow of each call.
    """
    row, asked = use.row, _ASKED.decode(use.pod)
    number, item = names.get(row.workflow, (None, None))
    requested = {"cpu": asked.cpu_millicores, "memory": asked.memory_bytes, "gpu": asked.gpu_millis}
    return view_of(
        AttemptUseView,
        attempt_view(row),
        stage=use.call or use.stage,
        index=row.index if number is None else number,
        shard=asked.shard if number is None else number,
        item=asked.item if item is None else item,
        requested={name: amount for name, amount in requested.items() if amount},
    )


def spoiled(stage: StageSpec, tasks: Sequence[int]) -> Explanation:
    """That tasks of a stage have succeeded although an input was written to meanwhile. `tasks`: in ascending order."""
    shards = tuple(dict.fromkeys(task // stage.members for task in tasks))[:NAMED]
    message = "an input was written to while it ran: no other task takes its result"
    return Explanation(stage.name, shards, len(tasks), TaskState.SUCCEEDED.name, SPOILED, message)


def ended_view(task: TaskView) -> ExplanationView:
    """Why a task has ended as it did."""
    return ExplanationView(
        stage=task.stage,
        shards=[task.shard],
        tasks=1,
        state=task.state,
        code=task.state.title(),
        message=task.reason,
    )


def placed_view(task: TaskView) -> ExplanationView | None:
    """Why the last try of a task went to its node; None where it had none."""
    if not task.attempts:
        return None
    last = task.attempts[-1]
    over = last.ended_at is not None and TaskState[task.state] not in TERMINAL
    earlier = f"attempt {last.attempt}, which has ended, was on " if over else ""
    return ExplanationView(
        stage=task.stage,
        shards=[task.shard],
        tasks=1,
        state=task.state,
        code="Placed",
        message=earlier + _placed_text(last.node, last.choice),
    )


def _placed_text(node: str, choice: ChoiceView | None) -> str:
    if choice is None:
        return f"{node}: why was not kept"
    if not choice.cost_ms:
        return f"{node}: no data to bring and no other cost, so packing decided among the nodes with room"
    parts = [
        f"{node}: {_terms_text(choice.cost_ms)}" + (", copied before it started" if choice.staged else "")
    ]
    for other in choice.others:
        terms = _terms_text(other.cost_ms)
        parts.append(f"{other.node}: {terms}, full" if other.full else f"{other.node}: {terms}")
    return "; ".join(parts)


def _terms_text(terms: Mapping[str, int]) -> str:
    priced = {name: ms for name, ms in terms.items() if ms} or dict(list(terms.items())[:1])
    return ", ".join(f"{name} {format_duration(ms) if ms else '0s'}" for name, ms in priced.items())


def output_view(row: OutputWrite, state: EngineState | None) -> OutputView:
    """One output, with where it lies now as far as the catalogue knows."""
    nodes: list[str] = []
    if state is not None:
        dataset = state.cluster.catalogue.find(row.uri)
        if dataset is not None:
            nodes = [
                state.cluster.snapshot.names[node]
                for node in sorted(state.cluster.catalogue.nodes_of(dataset))
            ]
    return view_of(OutputView, row, nodes=nodes)


def event_view(row: StoredEvent) -> EventView:
    """One line of history."""
    return view_of(EventView, row)


def explanation_views(found: Sequence[Explanation], stages: Mapping[str, StageSpec]) -> list[ExplanationView]:
    """Explanations of a workflow. `stages`: its stages by name."""
    return [explanation_view(each, stages[each.stage]) for each in found]


def explanation_view(found: Explanation, stage: StageSpec) -> ExplanationView:
    """One explanation of a stage."""
    named = len(found.shards)
    return view_of(
        ExplanationView,
        found,
        shards=list(found.shards),
        items=[stage.items[shard] for shard in found.shards] if stage.items else [],
        others=max(0, found.tasks // stage.members - named) if named else 0,
        binds=[f"{who}: {what}" if who else what for who, what in found.outlook.binds],
        suggestions=[
            view_of(SuggestionView, each, kind=each.kind.value) for each in found.outlook.suggestions
        ],
    )


def amounts(axes: tuple[str, ...], values: tuple[int, ...] | None) -> dict[str, int]:
    """A vector by resource name, zeros and absent limits left out."""
    return {name: int(v) for name, v in zip(axes, values or (), strict=False) if v > 0}


def limits(axes: tuple[str, ...], values: tuple[int, ...] | None) -> dict[str, int]:
    """Limits by resource name. -1 is none; 0 is one."""
    return {name: int(v) for name, v in zip(axes, values or (), strict=False) if v >= 0}


def _others(node: NodeInfo) -> dict[str, int]:
    """The measured use of a node by other programs, where it counts."""
    busy = {
        "disk": node.disk_busy_rate,
        "network_in": node.nic_in_busy_rate,
        "network_out": node.nic_out_busy_rate,
    }
    return {name: rate for name, rate in busy.items() if rate}


def node_views(state: EngineState, flows: Mapping[str, tuple[int, int]]) -> list[NodeView]:
    """All nodes. `flows`: node -> (bytes in, bytes out) that were really copied."""
    snapshot, catalogue, caches = (
        state.cluster.snapshot,
        state.cluster.catalogue,
        state.cluster.catalogue.caches,
    )
    drains = state.cluster.drains
    cached_bytes = np.zeros(len(snapshot), dtype=np.int64)
    datasets = np.zeros(len(snapshot), dtype=np.int64)
    for dataset in range(len(catalogue)):
        for node in catalogue.nodes_of(dataset):
            cached_bytes[node] += catalogue.sizes[dataset]
            datasets[node] += 1
    running, starting = [0] * len(snapshot), [0] * len(snapshot)
    gangs: list[dict[str, int]] = [{} for _ in snapshot.names]
    for claim in snapshot.claims.values():
        if claim.kind in (ClaimKind.RUNNING, ClaimKind.RELEASING):
            (starting if claim.starting else running)[claim.node] += 1
            if _in_gang(state, claim.owner):
                gangs[claim.node][claim.unit] = gangs[claim.node].get(claim.unit, 0) + 1
    return [
        NodeView(
            name=name,
            ready=bool(snapshot.ready[at]),
            state=_node_state(snapshot.info(at), drains.get(name), running[at] + starting[at]),
            message=snapshot.info(at).trouble,
            drain=_drain_view(drains.get(name)),
            rack=snapshot.racks[int(snapshot.rack[at])] if snapshot.racks else "",
            labels=dict(snapshot.labels[at]),
            allocatable=amounts(snapshot.axes, tuple(snapshot.allocatable[at].tolist())),
            used=amounts(snapshot.axes, tuple(snapshot.used[at].tolist())),
            starting=starting[at],
            running=running[at],
            gangs=gangs[at],
            cache_bytes=int(cached_bytes[at]),
            cache_limit_bytes=0 if caches is None or at not in caches.of else caches.of[at].limit,
            evicted_bytes=0 if caches is None else caches.evicted_bytes[at],
            refetched_bytes=0 if caches is None else caches.refetched_bytes[at],
            datasets=int(datasets[at]),
            bytes_in=flows.get(name, (0, 0))[0],
            bytes_out=flows.get(name, (0, 0))[1],
            others=_others(snapshot.info(at)),
        )
        for at, name in enumerate(snapshot.names)
    ]


def _node_state(node: NodeInfo, drain: Drain | None, tasks: int) -> str:
    if node.ready:
        return "CORDONED" if any(key == CORDONED for key, _, _ in node.taints) else "READY"
    if drain is None or not drain.node.ready:
        return "NOT_READY"
    return "DRAINING" if tasks else "DRAINED"


def _drain_view(drain: Drain | None) -> DrainView | None:
    return None if drain is None else view_of(DrainView, drain.order, by=drain.order.author)


def _in_gang(state: EngineState, pod: str) -> bool:
    """Whether a pod is a member of a gang of ours."""
    ref = state.work.pods.get(pod)
    run = None if ref is None else state.work.runs.get(ref.workflow)
    return ref is not None and run is not None and run.stages[ref.stage].spec.gang


def task_position(token: str | None) -> tuple[int, int]:
    """Stage and index at which a page of tasks begins.

    Raises:
        InvalidRequest: The token is not one of ours.
    """
    if token is None:
        return 0, 0
    stage, dot, index = token.partition(".")
    if not (dot and stage.isdecimal() and index.isdecimal()) or len(token) > 40:
        raise InvalidRequest("the page token is not one this service gave out")
    return int(stage), int(index)


# ---- idle room ----


#: Names that are told, of one cause.
_NAMED: Final = 3
#: Resource -> the axis's units in one core, GiB or GPU, and the word for it.
_IDLE_UNITS: Final = {"cpu": (1000, "cores"), "memory": (1 << 30, "GiB of memory"), "gpu": (1000, "GPUs")}
_CAUSE_WORDS: Final = {
    Cause.NO_DEMAND: "no demand",
    Cause.FRAGMENTATION: "fragmentation",
    Cause.RESERVED: "reserved",
    Cause.QUOTA: "quota",
    Cause.DATA: "waiting for data",
    Cause.IO: "disk bandwidth",
    Cause.MISMATCH: "mismatch",
    Cause.STARTING: "starting",
}


def idle_room_of(state: EngineState) -> IdleRoom:
    """The idle room now, and the groups that the last cycle refused. Takes 6 ms for 10,000 nodes and 1,000 groups."""
    refused = state.round.refused
    waiting = [(refused[key], reason) for key, reason in state.round.reasons.items() if key in refused]
    names = {key: group.name for key, group in refused.items()}
    return idle_room(state.cluster.snapshot, waiting, state.policy.profile, names)


def idle_report(found: Split, now: int) -> IdleReportView:
    """The split of a moment for people and programs, without resources that no node has."""
    resources: dict[str, IdleView] = {}
    for name, (unit, _) in _IDLE_UNITS.items():
        axis = AXES.index(name)
        capacity, off = int(found.capacity[axis]), int(found.off[axis])
        if not capacity and not off:
            continue
        amounts = found.amounts[:, axis].tolist()
        resources[name] = IdleView(
            capacity=_amount(capacity, unit),
            used=_amount(capacity - sum(amounts), unit),
            idle=_amount(sum(amounts), unit),
            off=_amount(off, unit),
            causes={cause.name.lower(): _amount(amounts[cause], unit) for cause in Cause if amounts[cause]},
            who=_who(found, axis, unit),
        )
    sentences = [_sentence(name, view) for name, view in resources.items() if view.idle]
    return IdleReportView(at=moment(now), resources=resources, sentences=sentences)


def _who(found: Split, axis: int, unit: int) -> dict[str, dict[str, float]]:
    named: dict[str, dict[str, float]] = {}
    largest = sorted(found.blame.items(), key=lambda item: (-item[1][axis], item[0]))
    for (cause, name), amount in largest:
        by_name = named.setdefault(cause.name.lower(), {})
        if name and amount[axis] and len(by_name) < _NAMED:
            by_name[name] = _amount(int(amount[axis]), unit)
    return {cause: by_name for cause, by_name in named.items() if by_name}


def _amount(amount: int, unit: int) -> float:
    return round(amount / unit, 4)


def _sentence(name: str, view: IdleView) -> str:
    """cpu: 61.0 of 100.0 cores are idle; of these 60 % no demand, 40 % quota (night)."""
    largest = sorted(Cause, key=lambda cause: -view.causes.get(cause.name.lower(), 0.0))
    parts = []
    for cause in largest:
        key = cause.name.lower()
        percent = round(100 * view.causes.get(key, 0.0) / view.idle)
        if percent:
            who = ", ".join(view.who.get(key, {}))
            parts.append(f"{percent} % {_CAUSE_WORDS[cause]}" + (f" ({who})" if who else ""))
    word = _IDLE_UNITS[name][1]
    return f"{name}: {view.idle:.1f} of {view.capacity:.1f} {word} are idle; of these {', '.join(parts)}"


# ---- queues ----
#
# The use, share, demand and past use of each queue, and which of its settings contradict others.


class _Own(msgspec.Struct):
    """Counts of a queue's own groups."""

    asked: list[int]  #: (R,) of tasks that are ready and not placed
    waiting: int = 0
    starting: int = 0
    running: int = 0


def queue_views(state: EngineState) -> list[QueueView]:
    """All queues: those configured (and those they are below), those in use, and `default`."""
    snapshot, tree = state.cluster.snapshot, state.policy.queues
    axes, own = len(snapshot.axes), _own_groups(state)
    names = dict.fromkeys(queue.name for queue in tree)
    names |= dict.fromkeys(sorted(own.keys() | {"default"} | set(snapshot.paying_queues) - {""}))
    for name in list(names):
        names |= dict.fromkeys(queue.name for queue in tree.path(name))
    shares = Shares(tree, snapshot)
    demand = {name: list(snapshot.queue_usage(name)) for name in snapshot.paying_queues}
    for name, work in own.items():
        row = demand.setdefault(name, [0] * axes)
        for axis, more in enumerate(work.asked):
            row[axis] += more
    due = deserved(tree, [name for name, row in demand.items() if any(row)], snapshot.total)
    users = _users(state)
    found = []
    for name in names:
        queue, work = tree.get(name), own.get(name, _Own([0] * axes))
        used = shares.usage(name)
        parts = [have / there for have, there in zip(used, snapshot.total, strict=False) if there > 0]
        found.append(
            view_of(
                QueueView,
                queue,
                name=name,
                cap=limits(snapshot.axes, queue.cap),
                guarantee=amounts(snapshot.axes, queue.guarantee),
                used=amounts(snapshot.axes, tuple(used)),
                deserved=amounts(snapshot.axes, due.get(name)),
                pending=amounts(snapshot.axes, tuple(work.asked)),
                recent=amounts(snapshot.axes, tuple(shares.past(name))),
                dominant_share=round(max(parts, default=0.0), 4),
                waiting=work.waiting,
                starting=work.starting,
                running=work.running,
                users=users.get(name, []),
                warnings=warnings(tree, queue, snapshot.axes, snapshot.total),
            )
        )
    return found


def deserved(tree: QueueTree, busy: Iterable[str], total: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """(R,) the part of `total` that queues have by weight among the siblings that are busy.

    It is for people and decides nothing. It is at least the guarantee of a queue and at most its cap.

    Args:
        tree: The queues.
        busy: Queues with groups that hold or ask for something.
        total: (R,) what there is.
    """
    below: dict[str | None, dict[str, None]] = {}
    for name in busy:
        for queue in tree.path(name):
            below.setdefault(queue.parent, {})[queue.name] = None
    found: dict[str, tuple[int, ...]] = {}
    parts: list[tuple[str | None, Sequence[int]]] = [(None, total)]
    for parent, whole in parts:  # grows while it is read
        queues = [tree.get(name) for name in below.get(parent, ())]
        weights = sum(queue.weight for queue in queues)
        for queue in queues:
            part = [amount * queue.weight // weights for amount in whole]
            part = list(map(max, part, guaranteed(tree, queue.name, len(total))))
            for axis, most in enumerate((queue.cap or ())[: len(total)]):
                part[axis] = part[axis] if most < 0 else min(part[axis], most)
            found[queue.name] = tuple(part)
            parts.append((queue.name, part))
    return found


def warnings(tree: QueueTree, queue: Queue, axes: Sequence[str], total: Sequence[int]) -> list[str]:
    """The settings of a queue that cannot be met, with numbers; the scheduler meets them as far as it can."""
    found = []
    for axis, (name, whole) in enumerate(zip(axes, total, strict=False)):
        own = (queue.guarantee or ())[axis : axis + 1]
        if own and own[0] > whole:
            found.append(
                f"it is guaranteed {quantity(name, own[0])}, and the cluster has {quantity(name, whole)}"
            )
        elif queue.parent is None and own and own[0]:
            roots = {each.name for each in tree if each.parent is None}
            together = sum(guaranteed(tree, root, len(axes))[axis] for root in sorted(roots))
            if together > whole:
                found.append(
                    f"its guarantee of {quantity(name, own[0])} may not be kept: all queues together are guaranteed "
                    f"{quantity(name, together)}, and the cluster has {quantity(name, whole)}"
                )
    return found


def _own_groups(state: EngineState) -> dict[str, _Own]:
    """Count the own groups of each queue that has any."""
    axes = len(state.cluster.snapshot.axes)
    found: dict[str, _Own] = {}
    for run in state.work.runs.values():
        work = found.setdefault(run.spec.queue, _Own([0] * axes))
        for stage in run.stages:
            waiting = int(stage.counts[TaskState.QUEUED] + stage.counts[TaskState.STAGING]) - len(_out(stage))
            work.waiting += waiting
            work.starting += int(stage.counts[list(TASKS_IN[ReportedState.STARTING])].sum())
            work.running += int(stage.counts[list(TASKS_IN[ReportedState.RUNNING])].sum())
            if waiting:
                _ask(state, run.id, stage, work.asked)
    for foreign in state.foreign.groups.values():
        work = found.setdefault(
            foreign.group.queue if foreign.group is not None else "default", _Own([0] * axes)
        )
        work.running += len(foreign.placed)
        for pods in foreign.waiting.values():
            work.waiting += len(pods)
            for pod in list(pods.values())[:1]:
                _add(work.asked, _plain(pod.template.resources), len(pods))
    return found


def _ask(state: EngineState, workflow: str, stage: StageRun, asked: list[int]) -> None:
    """Add what a stage's tasks that are ready and not placed ask for."""
    if stage.uniform is not None:
        return  # its tasks have not been touched
    waiting = np.flatnonzero(np.isin(stage.task_state, (TaskState.QUEUED, TaskState.STAGING)))
    waiting = waiting[~np.isin(waiting, _out(stage))]
    counts = np.bincount(stage.role_of[waiting % stage.members], minlength=len(stage.spec.roles))
    for number, count in enumerate(counts.tolist()):
        shape = state.work.shapes.get((workflow, stage.number, number, 0, None))
        resources = stage.spec.roles[number].resources
        _add(asked, _plain(resources) if shape is None else shape.requests, count)


def _out(stage: StageRun) -> Indices:
    """Members that wait and never join their gang: they ask for nothing."""
    return np.setdiff1d(spare(stage), joining(stage))


def _plain(resources: Resources) -> tuple[int, ...]:
    """The axes that every cluster has."""
    return resources.cpu_millicores, resources.memory_bytes, resources.disk_bytes, resources.gpu_millis


def _add(row: list[int], amount: Sequence[int], times: int) -> None:
    for axis, value in enumerate(amount[: len(row)]):
        row[axis] += times * value


def _users(state: EngineState) -> dict[str, list[QueueUserView]]:
    """The users of each queue that hold something, or did of late. "" stands for submissions that named no user."""
    usage, axes = state.cluster.snapshot.usage, state.cluster.snapshot.axes
    faded = usage.faded()
    found: dict[str, list[QueueUserView]] = {}
    for payer in sorted({*faded, *usage.payers()}):
        used, past = usage.of_payer(payer), faded.get(payer, ())
        view = QueueUserView(
            user=payer.user, used=amounts(axes, tuple(used)), recent=amounts(axes, tuple(past))
        )
        if payer.queue and (view.used or view.recent):
            found.setdefault(payer.queue, []).append(view)
    return {queue: views for queue, views in found.items() if [view.user for view in views] != [""]}


# ---- accounting ----


def time_before(text: str | None, now: int, *, end_of_day: bool = False) -> int | None:
    """A time as a user gives it, in ms: a span before now, or a date or time (UTC, unless it says otherwise).

    Args:
        text: As it was given; None = no time.
        now: Wall-clock ms.
        end_of_day: A date alone means the end of that day, not its begin.

    Raises:
        InvalidRequest: It is neither.
    """
    if text is None:
        return None
    at = time_at(text, end_of_day=end_of_day)
    if at is not None:
        return at
    try:
        return now - parse_duration(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error}; or a date or time, such as 2026-11-01 or 2026-11-01T08:00Z") from None


def time_at(text: str, *, end_of_day: bool = False) -> int | None:
    """A date or time (ISO 8601; UTC, unless it says otherwise) in ms; None if the text is none."""
    try:
        at = datetime.fromisoformat(text)
        if end_of_day and _is_date(text):
            at += timedelta(days=1)
        return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _is_date(text: str) -> bool:
    """Whether it is a date without a time."""
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def usage_view(
    by: str, since_ms: int | None, until_ms: int | None, queue: str | None, sums: Sequence[UsageSum]
) -> UsageView:
    """The resources allocated to workflows, with the sum of all rows."""
    total = [sum(column) for column in zip(*(row[1:] for row in sums), strict=True)]
    return UsageView(
        by=by,
        since=moment(since_ms),
        until=moment(until_ms),
        queue=queue,
        rows=[UsageRowView(name=row.name, **_usage_sum(row)) for row in sums],
        total=UsageSumView(**_usage_sum(UsageSum(None, *total))) if sums else UsageSumView(),
    )


def _usage_sum(row: UsageSum) -> dict[str, Any]:
    return {
        "workflows": row.workflows,
        "core_hours": row.core_ms / HOUR_MS,
        "gpu_hours": row.gpu_ms / HOUR_MS,
        "memory_gib_hours": row.memory_gib_ms / HOUR_MS,
        "memory_saved_gib_hours": row.memory_saved_gib_ms / HOUR_MS,
        "queued_hours": row.queued_ms / HOUR_MS,
        "running_hours": row.running_ms / HOUR_MS,
        "bytes_local": row.bytes_local,
        "bytes_moved": row.bytes_moved,
    }
