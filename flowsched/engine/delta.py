"""The delta: the changes of one step, as rows for the store. The engine writes it, and only the store reads it.

Times are wall-clock milliseconds (since 1970), given to the engine as `now`. `stage` is the stage's number in the document,
`index` the task's number in its stage (shard * members + member).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from flowsched.scheduling.state.usage import UsageRow
from flowsched.workflow.memory import Fitted


class TaskWrite(NamedTuple):
    """A task's new row. Compare-and-set: the row must have version `version - 1` (none at all where that is 0)."""

    workflow: str
    stage: int
    index: int  # type: ignore[assignment]  # the field hides tuple.index, which no code calls on a row
    state: int  #: TaskState
    attempt: int
    node: str | None
    goal: int  #: TaskState it becomes once released; meaningful in RELEASING only
    version: int
    reason: str
    exit_code: int | None
    ready_ms: int | None
    staging_ms: int | None
    staged_ms: int | None
    bound_ms: int | None
    started_ms: int | None
    ended_ms: int | None
    bytes_local: int
    bytes_moved: int
    charged: int = 0  #: failed attempts that count against `retry.attempts`
    memory_steps: int = 0  #: how often its memory has grown after it was out of memory


class Intent(NamedTuple):
    """A pod that shall be launched: committed before anything is asked of the cluster. Inserted once, never changed.

    `pod` is the launch order (`executor.protocol.Pod`), encoded as JSON, so that recovery needs nothing else. Of a gang's member
    it is the part that the others do not have (`GangOrderWrite`).
    """

    workflow: str
    stage: int
    index: int  # type: ignore[assignment]  # the field hides tuple.index, which no code calls on a row
    attempt: int
    name: str
    node: str
    epoch: int
    at_ms: int
    pod: bytes
    choice: str = ""  #: why on this node, as `engine.choices` writes it; empty = it was not kept


class GangOrderWrite(NamedTuple):
    """The common part of the launch orders of a gang's members (replaces an earlier one with the same key).

    `pod` comes from `pod_orders.encode_shared`. Each member's own `Intent.pod` names the key.
    """

    workflow: str
    stage: int
    shard: int
    key: str
    pod: bytes


class AttemptEnd(NamedTuple):
    """How an attempt ended."""

    name: str
    at_ms: int
    started_ms: int | None
    exit_code: int | None
    reason: str
    message: str
    usage: Mapping[str, int]
    report: bytes = b""  #: JSON of a `ContainerReport`; empty where the attempt had no steps
    fitted: Fitted | None = None  #: not a column: `usage` has the amounts


class StageWrite(NamedTuple):
    """A stage's new row."""

    workflow: str
    stage: int
    state: str  #: RunState
    counts: Mapping[str, int]  #: TaskState name -> tasks, zeros left out
    started_ms: int | None
    ended_ms: int | None
    reason: str
    totals: Mapping[
        str, int
    ]  #: sums over the ended attempts of its tasks, by the names of `run.TOTALS`; and `workflow.returned`


class WorkflowWrite(NamedTuple):
    """A workflow's new state. The workflow row has other columns; these are the leader's."""

    workflow: str
    state: str  #: RunState
    reason: str
    started_ms: int | None
    ended_ms: int | None


class OutputWrite(NamedTuple):
    """An output that an attempt published (replaces that of an earlier attempt under the same name)."""

    workflow: str
    stage: int
    index: int  # type: ignore[assignment]  # the field hides tuple.index, which no code calls on a row
    name: str
    uri: str
    size_bytes: int
    value: str | None
    attempt: int


class CacheKeyWrite(NamedTuple):
    """The cache key of a shard (`engine.memoization`), and the result of its look-up."""

    workflow: str
    stage: int
    shard: int
    key: str  #: empty: the shard has none, because an input cannot be identified
    place: str  #: the same for the same shard of the same stage in all runs of a workflow
    parts: str  #: JSON of the key's parts
    source: str  #: the workflow that wrote the outputs it took; empty = it ran
    why: str  #: "w1/align/3" whose result it took; or why it ran
    at_ms: int


class ReplicaWrite(NamedTuple):
    """A dataset is (or is no longer) on a node."""

    uri: str
    node: str
    size_bytes: int
    present: bool


class BindingWrite(NamedTuple):
    """A foreign pod shall be bound: committed before it is asked for, removed once its outcome has been seen."""

    uid: str
    namespace: str
    name: str
    node: str
    group: str
    epoch: int
    at_ms: int


class EventRow(NamedTuple):
    """One line of a workflow's history; the writer numbers them in commit order."""

    workflow: str
    at_ms: int
    kind: str  #: "task.running", "gang.placed", "workflow.succeeded" …
    body: Mapping[str, Any]


class RunEnd(NamedTuple):
    """The run of an engine has ended, since its head has. A reason that its engine has reported beside the same state stays."""

    run: str
    state: str  #: RunState
    reason: str


class Delta(msgspec.Struct):
    """Everything one step changed: written in one transaction, or not at all."""

    tasks: list[TaskWrite] = msgspec.field(default_factory=list)
    intents: list[Intent] = msgspec.field(default_factory=list)
    gang_orders: list[GangOrderWrite] = msgspec.field(default_factory=list)  #: only beside intents
    ends: list[AttemptEnd] = msgspec.field(default_factory=list)
    stages: list[StageWrite] = msgspec.field(default_factory=list)
    workflows: list[WorkflowWrite] = msgspec.field(default_factory=list)
    outputs: list[OutputWrite] = msgspec.field(default_factory=list)
    replicas: list[ReplicaWrite] = msgspec.field(default_factory=list)
    cache_keys: list[CacheKeyWrite] = msgspec.field(default_factory=list)
    events: list[EventRow] = msgspec.field(default_factory=list)
    commands_done: list[int] = msgspec.field(default_factory=list)
    bindings: list[BindingWrite] = msgspec.field(default_factory=list)
    bindings_done: list[str] = msgspec.field(default_factory=list)  #: uids
    usage: list[UsageRow] = msgspec.field(default_factory=list)
    run_ends: list[RunEnd] = msgspec.field(default_factory=list)  #: only beside workflows

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return any(
            (
                self.tasks,
                self.intents,
                self.ends,
                self.stages,
                self.workflows,
                self.outputs,
                self.replicas,
                self.cache_keys,
                self.events,
                self.commands_done,
                self.bindings,
                self.bindings_done,
                self.usage,
            )
        )
