"""The checked document, as values: workflow, stages, roles, data references. No decoding here (see `decode`).

Everything is frozen, hashable where its parts are, and checked once when it is decoded: the rest of flowsched
may rely on the docstrings. Units: memory and disk in bytes, CPU in thousandths of a core, GPU in thousandths of a
device, times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})

#: The role of a stage that names none: a plain stage is a PodGroup with one role.
PLAIN_ROLE: Final = "task"


class Match(StrEnum):
    """How the shards of a producer meet the shards of a consumer."""

    INDEX = "index"  #: shard i reads what shard i wrote; widths must be equal
    ALL = "all"  #: every shard reads everything: a barrier
    CHUNK = "chunk"  #: shard i of w reads items floor(i*W/w) .. floor((i+1)*W/w) of W


class On(StrEnum):
    """The events for which a stage may declare a policy."""

    TASK_FAILED = "task_failed"  #: a non-zero exit (`pod_failed` is accepted as its Kubernetes name)
    TASK_EVICTED = (
        "task_evicted"  #: preempted, evicted, drained, its pod deleted, or its node shut down or lost
    )
    TASK_COMPLETED = "task_completed"
    TASK_UNKNOWN = "task_unknown"  #: no word from its node
    TASK_PENDING = "task_pending"  #: pending longer than the policy's timeout
    ANY = "*"


class Action(StrEnum):
    """The action of a policy."""

    RESTART_TASK = "restart_task"
    RESTART_GANG = "restart_gang"
    FAIL_STAGE = "fail_stage"
    ABORT_WORKFLOW = "abort_workflow"
    COMPLETE_STAGE = "complete_stage"
    IGNORE = "ignore"


class When(StrEnum):
    """On which outcome of the stages it needs a stage runs at all."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


class Resources(msgspec.Struct, frozen=True):
    """The resources that one pod requests. Whole numbers, never negative."""

    cpu_millicores: int = 1000
    memory_bytes: int = 256 << 20
    disk_bytes: int = 0
    gpu_millis: int = 0
    extended: Mapping[str, int] = msgspec.field(default_factory=lambda: NO_COUNTS)


class InputSpec(msgspec.Struct, frozen=True):
    """One input of a stage: bytes from outside (`uri`) or from another stage's output (`stage`, `output`).

    Exactly one of `uri` and `stage` is set. `{item}` and `{index}` stand in `uri` only.
    """

    name: str
    uri: str | None = None
    size_bytes: int | None = None
    stage: str | None = None
    output: str | None = None
    match: Match = Match.ALL
    manifest: bool = False  #: a manifest file even where the producer has one shard
    optional: bool = False  #: the task runs without it when its producer was skipped or wrote nothing


class OutputSpec(msgspec.Struct, frozen=True):
    """One output: a file below the task's working folder, published under `name` when the task succeeds.

    `{item}` and `{index}` stand in the path of a scattered stage: see `filled`.
    """

    name: str
    path: str
    role: str | None = (
        None  #: in a gang, member 0 of this role writes the file; None = the first completing role
    )
    optional: bool = False
    value: bool = False  #: its text (at most 4 KiB) is recorded, shown, and may be asked for in `when`


class Traffic(msgspec.Struct, frozen=True):
    """The bytes that a pod moves on its node's disk (or a shared storage) beside its inputs: in all, or a second."""

    read_bytes: int = 0
    write_bytes: int = 0
    read_rate: int = 0
    write_rate: int = 0
    storage: str = ""  #: name of the shared storage; "" = its node's disk


class RoleSpec(msgspec.Struct, frozen=True):
    """A pod template inside a gang. A plain stage has one, called `task`, with one replica."""

    name: str
    replicas: int
    minimum: int  #: strict: fewer never start. 1..replicas
    command: tuple[str, ...]
    image: str | None = None
    resources: Resources = msgspec.field(default_factory=Resources)
    limits: Resources | None = None  #: 0 = not limited
    env: Mapping[str, str] = msgspec.field(default_factory=lambda: EMPTY)
    secrets: Mapping[str, str] = msgspec.field(
        default_factory=lambda: EMPTY
    )  #: variable -> reference, never the value
    completes: bool = True  #: False: released when the completing members have succeeded
    grow: bool = True  #: members for which there was no room join the gang while it goes on
    io: Traffic | None = None  #: None = as its stage says


def filled(text: str, stage: StageSpec, shard: int) -> str:
    """A path or URI of a shard: of a scattered stage `{index}` and `{item}` are replaced by its number and its item."""
    if not stage.scattered:
        return text
    numbered = text.replace("{index}", str(shard))
    return numbered if stage.items is None else numbered.replace("{item}", stage.items[shard])


def gets_whole_cores(resources: Resources, limits: Resources | None) -> bool:
    """Whether a pod asks for whole cores and may use no more than it asks for: then a kubelet can give it cores of its own."""
    if limits is None or resources.cpu_millicores < 1000 or resources.cpu_millicores % 1000:
        return False
    return (
        0 < limits.cpu_millicores <= resources.cpu_millicores
        and limits.memory_bytes <= resources.memory_bytes
    )


class QosClass(IntEnum):
    """The QoS class of a pod, as Kubernetes computes it from requests and limits. Pods of a lower class are evicted first."""

    BEST_EFFORT = 0  #: it asks for neither CPU nor memory, and has no limits of them
    BURSTABLE = 1  #: it asks for some, and may use more
    GUARANTEED = 2  #: of CPU and memory it may use exactly what it asks for

    @property
    def word(self) -> str:
        """As Kubernetes spells it: BestEffort, Burstable, Guaranteed."""
        return self.name.title().replace("_", "")


def qos_class(resources: Resources, limits: Resources | None) -> QosClass:
    """The class of one pod (of one container) that asks for `resources`. A limit of 0 is none."""
    asks = (resources.cpu_millicores, resources.memory_bytes)
    may = (0, 0) if limits is None else (limits.cpu_millicores, limits.memory_bytes)
    if not any(asks) and not any(may):
        return QosClass.BEST_EFFORT
    return QosClass.GUARANTEED if asks == may and all(asks) else QosClass.BURSTABLE


class Estimate(msgspec.Struct, frozen=True):
    """The amounts that the user expects; None where none was declared."""

    runtime_ms: int | None = None
    output_bytes: int | None = None


class Retry(msgspec.Struct, frozen=True):
    """How often one task is tried in all, and by how much its memory grows after it was out of memory."""

    attempts: int = 1
    memory_factor_percent: int = 100  #: 150 = one and a half times as much on each further attempt


class Policy(msgspec.Struct, frozen=True):
    """On `event` (with one of `exit_codes`, if any are named; after `timeout_ms`) do `action`."""

    event: On
    action: Action
    exit_codes: tuple[int, ...] = ()
    timeout_ms: int | None = None


class Condition(msgspec.Struct, frozen=True):
    """Whether a stage runs: the outcome of the stages that it needs, and the values that outputs must have.

    `equals` holds (stage, output, allowed texts): the recorded text of an output with `value: true`, stripped.
    """

    outcome: When = When.SUCCESS
    equals: tuple[tuple[str, str, tuple[str, ...]], ...] = ()


class Toleration(msgspec.Struct, frozen=True):
    """As in Kubernetes: operator Exists or Equal, effect empty for all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """Where pods of a stage may run, beside the room they need."""

    selector: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    tolerations: tuple[Toleration, ...] = ()
    rack: str | None = None  #: "required" | "preferred": all members in one rack
    one_per_node: bool = False  #: `anti_affinity: node`


class Step(msgspec.Struct, frozen=True):
    """One program of a container task. The steps of a task run one after the other and see the same files.

    Paths are absolute, inside the container. `stdout` and `stderr` are appended to, never truncated: what runs may write there too.
    """

    command: tuple[str, ...]
    image: str | None = None
    env: Mapping[str, str] = msgspec.field(default_factory=lambda: EMPTY)
    workdir: str | None = None
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    ignore_error: bool = False  #: the next step runs though this one failed


class Placed(msgspec.Struct, frozen=True):
    """A file or folder put at a path of the container before the first step. Of `source`, `input` and `content` one is set; both
    `source` and `input` where tasks read a copy of a file instead of the file.
    """

    path: str
    source: str | None = (
        None  #: a path or file URI that every node sees (this machine's, or on shared storage): used where it is, read only
    )
    input: str | None = None  #: name of the stage's input that has these bytes
    content: str | None = None
    directory: bool = False


class Delivered(msgspec.Struct, frozen=True):
    """A file or folder copied from a path of the container to `uri` when the steps have ended. A missing one is no error.

    `path` may hold wildcards (*, ?, [...]): then `uri` is a folder, and each match goes to `uri` + its path without `path_prefix`.
    """

    path: str
    uri: str  #: /absolute/path or s3://bucket/key
    directory: bool = False
    path_prefix: str | None = None
    name: str = ""


class Mount(msgspec.Struct, frozen=True):
    """A folder that every node sees, at a path of the container."""

    source: str
    path: str
    read_only: bool = False


class LeftFor(StrEnum):
    """An end that alone leaves a file."""

    OOM_KILLED = "OOMKilled"  #: the task was ended for the memory that it used
    CANCELLED = "Cancelled"  #: a client has cancelled the workflow


class Left(msgspec.Struct, frozen=True):
    """A file that shall be there once an attempt has ended: written if no step has, nor an earlier entry for the same path."""

    path: str
    content: str
    reason: LeftFor | None = None  #: None = every end leaves it


class Container(msgspec.Struct, frozen=True):
    """A task that gives its files paths of their own, as GA4GH TES has them."""

    steps: tuple[Step, ...]
    inputs: tuple[Placed, ...] = ()
    outputs: tuple[Delivered, ...] = ()
    mounts: tuple[Mount, ...] = ()
    volumes: tuple[str, ...] = ()  #: empty folders, shared by the steps
    leave: tuple[Left, ...] = ()
    delivers: bool = (
        True  #: False in members of a gang but one: what they write at the paths of outputs stays theirs
    )
    return_code: str | None = (
        None  #: the file into which the steps write a return code that their client judges by
    )


class Call(msgspec.Struct, frozen=True):
    """Of which larger run a workflow is one call, where an engine of its own (Cromwell, Nextflow, miniwdl) keeps the DAG."""

    run: str  #: same text, same run
    run_name: str
    source: str  #: the engine that sent the call ("cromwell", "miniwdl", …), "tes" where that is not known
    node: str  #: the call, with the sub-workflows it is in
    shard: int | None = None
    attempt: int = 0  #: of its task, from 1; 0 = the engine does not number them
    after: tuple[str, ...] = ()  #: nodes whose outputs it reads
    task: str = ""  #: which task of the node: same text, same task; "" = `identity` says
    rank_ms: int = 0  #: from its start to the end of the run; 0 = unknown
    since_ms: int = 0  #: when the run began; wall-clock ms, 0 = unknown
    head: bool = False  #: it is the process of the engine itself: the run ends with it

    def identity(self, workflow: str) -> str:
        """Which task of its node it is an attempt of.

        Without `task`, an engine that numbers attempts means those of the shard. Otherwise the call is a task of its own: a retry
        looks like another task then.

        Args:
            workflow: The id of the workflow that is this call.
        """
        if self.task:
            return self.task
        return f"shard {self.shard}" if self.attempt else workflow


class StageSpec(msgspec.Struct, frozen=True):
    """A node of the DAG: `width` shards × the members of its roles.

    `items` has `width` entries when the scatter names them, else None. `width` is already resolved for a stage that
    inherits it from its `index` input. Task number = shard * members + member; members are ordered by role, then replica.
    """

    name: str
    width: int
    items: tuple[str, ...] | None
    scattered: bool
    gang: bool
    roles: tuple[RoleSpec, ...]
    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()
    needs: tuple[str, ...] = ()
    estimate: Estimate = msgspec.field(default_factory=Estimate)
    retry: Retry = msgspec.field(default_factory=Retry)
    timeout_ms: int | None = None
    policies: tuple[Policy, ...] = ()
    when: Condition = msgspec.field(default_factory=Condition)
    rules: Rules = msgspec.field(default_factory=Rules)
    io: Traffic = msgspec.field(default_factory=Traffic)  #: of a pod whose role says nothing of its own
    min_resources: Resources | None = None
    cache: bool = False
    container: Container | None = None
    fit_memory: bool | None = None  #: None = as the profile of its queue says

    @property
    def says_io(self) -> bool:
        """Whether the document declares the reads and writes of its pods."""
        return self.io != Traffic() or any(role.io is not None for role in self.roles)

    @property
    def members(self) -> int:
        """How many tasks one shard has."""
        return sum(role.replicas for role in self.roles)

    @property
    def tasks(self) -> int:
        """How many tasks the stage has."""
        return self.width * self.members


class WorkflowSpec(msgspec.Struct, frozen=True, weakref=True):
    """A DAG of stages, checked: names are unique, edges exist, widths fit, there is no cycle."""

    name: str
    stages: tuple[StageSpec, ...]
    queue: str = "default"
    priority: int = 0
    labels: Mapping[str, str] = msgspec.field(default_factory=lambda: EMPTY)
    call: Call | None = None
    user: str = ""  #: the user that submits it, as its queue tells users apart; empty = not named
    resume: str = ""  #: id of the workflow whose results it takes up, for all of its stages; empty = none
    kind: str = ""  #: workflows with the same text do the same work; empty = its name says so

    @property
    def is_head(self) -> bool:
        """Whether it is the process of a run's engine."""
        return self.call is not None and self.call.head

    def kind_of(self, stage: StageSpec) -> tuple[str, str]:
        """The kind of the tasks of a stage: tasks of one kind are expected to take as long, in later runs too."""
        return self.kind or self.name, stage.name
