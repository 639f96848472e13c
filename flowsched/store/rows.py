"""Rows that reads give back. Plain tuples with names; JSON is decoded, documents are decompressed only on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from flowsched.engine.delta import OutputWrite, TaskWrite
from flowsched.scheduling.state.usage import UsageRow

T = TypeVar("T")


class Sums(NamedTuple):
    """Over the stages of a workflow."""

    counts: dict[str, int]  #: tasks by state
    totals: list[Mapping[str, int]]  #: of stages with a task that succeeded with another exit code than 0


class WorkflowRow(NamedTuple):
    """A workflow, without its document. `seq` is the order of submission."""

    id: str
    seq: int
    name: str
    queue: str
    priority: int
    labels: Mapping[str, str]
    state: str  #: RunState
    reason: str
    tenant: str
    owner: str
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    cancel_requested: bool
    paused: bool
    stages: int
    tasks: int
    spec_bytes: int
    run: str  #: the run of another engine that it is a call of; ""


class StageRow(NamedTuple):
    """A stage with how many of its tasks are in which state."""

    workflow: str
    stage: int
    name: str
    state: str  #: RunState
    width: int
    members: int
    counts: Mapping[str, int]
    totals: Mapping[str, int]
    started_ms: int | None
    ended_ms: int | None
    reason: str


class AttemptRow(NamedTuple):
    """One try of one task; `ended_ms` None while it is open."""

    name: str
    workflow: str
    stage: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which no code needs here
    attempt: int
    node: str
    epoch: int
    at_ms: int
    started_ms: int | None
    ended_ms: int | None
    exit_code: int | None
    reason: str
    message: str
    usage: Mapping[str, int]
    report: str  #: JSON of a `ContainerReport`, or ""
    choice: str = ""  #: JSON, as `engine.choices` writes it; "" = it was not kept


class AttemptUseRow(NamedTuple):
    """An attempt as reports need it: of a run of another engine, with the name of its call."""

    row: AttemptRow  #: without `report` and `choice`
    stage: str
    call: str  #: "" = it is no call of a run
    pod: bytes  #: its launch order, with its request


class StoredEvent(NamedTuple):
    """One line of history. Ids grow in the order of commits, over all workflows."""

    id: int
    workflow: str
    at_ms: int
    kind: str
    body: Mapping[str, Any]


class CommandRow(NamedTuple):
    """A command the leader has not carried out yet."""

    id: int
    workflow: str
    kind: str
    body: Mapping[str, Any]
    at_ms: int


class ReplicaRow(NamedTuple):
    """A dataset on a node."""

    uri: str
    node: str
    size_bytes: int


class QueueRow(NamedTuple):
    """A queue as it is configured. `guarantee` and `cap`: resource → amount."""

    name: str
    parent: str | None = None
    weight: int = 1
    priority: int = 0
    guarantee: Mapping[str, int] = {}
    cap: Mapping[str, int] = {}
    reclaimable: bool = True
    paused: bool = False
    order: str = "best-effort"


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list; `next_token` asks for the next part and is None at the end."""

    items: Sequence[T]
    next_token: str | None = None


class Recovered(msgspec.Struct):
    """One workflow with all that is needed to go on with it. Tasks that were never touched have no row."""

    workflow: WorkflowRow
    spec: bytes
    stages: list[StageRow] = msgspec.field(default_factory=list)
    tasks: list[TaskWrite] = msgspec.field(default_factory=list)  #: by stage and index
    outputs: list[OutputWrite] = msgspec.field(default_factory=list)


class Living(NamedTuple):
    """A workflow that lives, with the sizes that show what reading it back costs."""

    id: str
    seq: int
    stages: int
    tasks: int
    spec_bytes: int


class Recovery(msgspec.Struct):
    """The first read of a new leader: one consistent view of everything that lives, without the workflows themselves."""

    living: list[Living]  #: in order of submission
    pods: list[
        tuple[str, int, bytes]
    ]  #: workflow, stage and launch order of attempts that have no recorded end
    replicas: list[ReplicaRow]
    last_seq: int  #: newest submission seen: later ones are found by `after`
    last_event: int
    bindings: list[str] = msgspec.field(
        default_factory=list
    )  #: uids of foreign pods that may have been bound
    usage: list[UsageRow] = msgspec.field(default_factory=list)
    #: Workflow, stage, shard, key -> the common part of a gang's members (`engine.delta.GangOrderWrite`).
    gang_orders: dict[tuple[str, int, int, str], bytes] = msgspec.field(default_factory=dict)
