"""From rows and arrays to what the faces answer (`workflow.views`). Mappings only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from flowsched.engine.delta import OutputWrite, TaskWrite
from flowsched.engine.draining import drained_until
from flowsched.engine.explain import Explanation
from flowsched.engine.state import EngineState
from flowsched.errors import InvalidRequest
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.snapshot import ClaimKind
from flowsched.store.rows import AttemptRow, StageRow, StoredEvent, WorkflowRow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.returned import added
from flowsched.workflow.spec import RoleSpec, StageSpec, WorkflowSpec, qos_class
from flowsched.workflow.states import TaskState
from flowsched.workflow.views import (
    AttemptView,
    EventView,
    ExplanationView,
    NodeView,
    OutputView,
    StageView,
    SuggestionView,
    TaskView,
    WorkflowView,
)

#: Of the answer, a stage: what tells whether making it is long work.
STAGE_BYTES: Final = 400


def moment(ms: int | None) -> datetime | None:
    """Wall-clock ms as a time in UTC."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def workflow_view(row: WorkflowRow, counts: dict[str, int], codes: dict[str, int]) -> WorkflowView:
    """One workflow."""
    return WorkflowView(
        id=row.id,
        name=row.name,
        queue=row.queue,
        user=row.owner,
        priority=row.priority,
        labels=dict(row.labels),
        state=row.state,
        reason=row.reason,
        created_at=datetime.fromtimestamp(row.created_ms / 1000, UTC),
        started_at=moment(row.started_ms),
        ended_at=moment(row.ended_ms),
        stages=row.stages,
        tasks=row.tasks,
        counts=counts,
        returned=codes,
        paused=row.paused,
        cancel_requested=row.cancel_requested,
    )


def stage_views(rows: Sequence[StageRow], spec: WorkflowSpec) -> list[StageView]:
    """All stages of a workflow. Takes up to 0.2 s where there are 10,000."""
    graph = StageGraph(spec)
    return [stage_view(row, spec, graph) for row in rows]


def stage_view(row: StageRow, spec: WorkflowSpec, graph: StageGraph) -> StageView:
    """One stage."""
    stage = spec.stages[row.stage]
    totals = row.totals
    return StageView(
        name=row.name,
        number=row.stage,
        state=row.state,
        reason=row.reason,
        width=row.width,
        members=row.members,
        gang=stage.gang,
        needs=[spec.stages[edge.parent].name for edge in graph.edges_in[row.stage]],
        counts=dict(row.counts),
        returned=added([totals]),
        started_at=moment(row.started_ms),
        ended_at=moment(row.ended_ms),
        queued_seconds=totals.get("queued_ms", 0) / 1000,
        staging_seconds=totals.get("staging_ms", 0) / 1000,
        running_seconds=totals.get("running_ms", 0) / 1000,
        bytes_local=totals.get("bytes_local", 0),
        bytes_moved=totals.get("bytes_moved", 0),
    )


def task_view(row: TaskWrite, stage: StageSpec) -> TaskView:
    """One task from its row."""
    member = row.index % stage.members
    role = _role_of(stage, member)
    shard = row.index // stage.members
    return TaskView(
        stage=stage.name,
        index=row.index,
        shard=shard,
        role=role.name,
        item=stage.items[shard] if stage.items else None,
        state=TaskState(row.state).name,
        qos=qos_class(role.resources, role.limits).word,
        reason=row.reason,
        attempt=row.attempt,
        node=row.node,
        exit_code=row.exit_code,
        ready_at=moment(row.ready_ms),
        bound_at=moment(row.bound_ms),
        started_at=moment(row.started_ms),
        ended_at=moment(row.ended_ms),
        bytes_local=row.bytes_local,
        bytes_moved=row.bytes_moved,
    )


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


def untouched_row(workflow: str, stage: int, index: int, state: TaskState) -> TaskWrite:
    """What stands for a task that has no row."""
    return TaskWrite(
        workflow, stage, index, int(state), 0, None, 0, 0, "", None, None, None, None, None, None, 0, 0
    )


def attempt_view(row: AttemptRow) -> AttemptView:
    """One try."""
    return AttemptView(
        attempt=row.attempt,
        pod=row.name,
        node=row.node,
        bound_at=datetime.fromtimestamp(row.at_ms / 1000, UTC),
        started_at=moment(row.started_ms),
        ended_at=moment(row.ended_ms),
        exit_code=row.exit_code,
        reason=row.reason,
        message=row.message,
        usage=dict(row.usage),
    )


def output_view(row: OutputWrite, state: EngineState | None) -> OutputView:
    """One output, with where it lies now as far as the catalogue knows."""
    nodes: list[str] = []
    if state is not None:
        dataset = state.catalogue.find(row.uri)
        if dataset is not None:
            nodes = [state.snapshot.names[node] for node in sorted(state.catalogue.nodes_of(dataset))]
    return OutputView(name=row.name, uri=row.uri, size_bytes=row.size_bytes, value=row.value, nodes=nodes)


def event_view(row: StoredEvent) -> EventView:
    """One line of history."""
    at = datetime.fromtimestamp(row.at_ms / 1000, UTC)
    return EventView(id=row.id, workflow=row.workflow, at=at, kind=row.kind, body=dict(row.body))


def explanation_view(found: Explanation) -> ExplanationView:
    """One explanation."""
    return ExplanationView(
        stage=found.stage,
        shards=list(found.shards),
        tasks=found.tasks,
        state=found.state,
        code=found.code,
        message=found.message,
        numbers=dict(found.numbers),
        start_at=moment(found.start_ms),
        start_low_at=moment(found.start_low_ms),
        start_high_at=moment(found.start_high_ms),
        estimate=found.estimate,
        binds=[f"{who}: {what}" if who else what for who, what in found.outlook.binds],
        suggestions=[
            SuggestionView(
                kind=each.kind.value,
                object=each.object,
                what=each.what,
                was=each.was,
                to=each.to,
                unit=each.unit,
                message=each.message,
            )
            for each in found.outlook.suggestions
        ],
    )


def amounts(axes: tuple[str, ...], values: tuple[int, ...] | None) -> dict[str, int]:
    """A vector by resource name, zeros and absent limits left out."""
    return {name: int(v) for name, v in zip(axes, values or (), strict=False) if v > 0}


def _others(node: NodeInfo) -> dict[str, int]:
    """What others were measured to use of a node, where it counts."""
    busy = {
        "disk": node.disk_busy_rate,
        "network_in": node.nic_in_busy_rate,
        "network_out": node.nic_out_busy_rate,
    }
    return {name: rate for name, rate in busy.items() if rate}


def node_views(state: EngineState, flows: Mapping[str, tuple[int, int]]) -> list[NodeView]:
    """All nodes. `flows`: node -> (bytes in, bytes out) that were really copied."""
    snapshot, catalogue, shelves = state.snapshot, state.catalogue, state.catalogue.shelves
    held = np.zeros(len(snapshot), dtype=np.int64)
    datasets = np.zeros(len(snapshot), dtype=np.int64)
    for dataset in range(len(catalogue)):
        for node in catalogue.nodes_of(dataset):
            held[node] += catalogue.sizes[dataset]
            datasets[node] += 1
    running = [0] * len(snapshot)
    for claim in snapshot.claims.values():
        running[claim.node] += claim.kind in (ClaimKind.RUNNING, ClaimKind.RELEASING)
    return [
        NodeView(
            name=name,
            ready=bool(snapshot.ready[at]),
            drained_at=moment(drained_until(state, name)),
            rack=snapshot.racks[int(snapshot.rack[at])] if snapshot.racks else "",
            labels=dict(snapshot.labels[at]),
            allocatable=amounts(snapshot.axes, tuple(snapshot.allocatable[at].tolist())),
            used=amounts(snapshot.axes, tuple(snapshot.used[at].tolist())),
            running=running[at],
            cache_bytes=int(held[at]),
            cache_limit_bytes=0 if shelves is None or at not in shelves.of else shelves.of[at].limit,
            evicted_bytes=0 if shelves is None else shelves.evicted_bytes[at],
            refetched_bytes=0 if shelves is None else shelves.refetched_bytes[at],
            datasets=int(datasets[at]),
            bytes_in=flows.get(name, (0, 0))[0],
            bytes_out=flows.get(name, (0, 0))[1],
            others=_others(snapshot.info(at)),
        )
        for at, name in enumerate(snapshot.names)
    ]


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
