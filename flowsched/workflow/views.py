"""Views: the answers of the API, which the SDK reads: one set of structs for both sides. Times are ISO 8601 UTC in JSON.

Fields are only ever added. Nothing here imports numpy, SQL or HTTP.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from flowsched.workflow.html import fields, table
from flowsched.workflow.plan import Plan, RankPlan, StageForecast

V = TypeVar("V", bound="View")


class View(msgspec.Struct, kw_only=True, omit_defaults=False):
    """The root of all answers; unknown fields are ignored when read, so that older clients go on working.

    Attributes:
        SHOWN: The fields that a notebook shows, in their order; none = all of them.
    """

    SHOWN: ClassVar[tuple[str, ...]] = ()

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return fields(self, self.SHOWN)


class Views(list[V]):
    """Views in a list; a notebook shows it as a table."""

    def _repr_html_(self) -> str:
        return table(self, self[0].SHOWN if self else ())


class WaitingView(View, kw_only=True):
    """The first thing that keeps tasks of a workflow or a stage from running; `explain` has all of them."""

    stage: str
    tasks: int  #: of that stage in `state`
    state: str  #: of the tasks
    code: str  #: as in `explain`
    message: str
    permanent: bool = (
        False  #: it never ends by itself: other nodes are needed, or a document that asks for less
    )
    start_low_at: datetime | None = (
        None  #: the first of these tasks starts between these two eight times of ten
    )
    start_high_at: datetime | None = None


class WorkflowView(View, kw_only=True):
    """A workflow as a whole."""

    SHOWN: ClassVar = (
        "name",
        "id",
        "state",
        "returned",
        "counts",
        "queue",
        "waiting",
        "reason",
        "created_at",
        "started_at",
        "ended_at",
    )

    id: str
    name: str
    queue: str
    user: str = ""  #: the user that submitted it, as its document says
    priority: int
    labels: dict[str, str]
    state: str  #: QUEUED, STAGING, STARTING and RUNNING say how far its tasks have come: docs/explain.md
    reason: str = ""  #: why it ended so
    waiting: WaitingView | None = (
        None  #: why no task runs, or the few that run do not end; else only what never ends by itself
    )
    created_at: datetime
    started_at: datetime | None = None  #: a retry moves it by the time for which the workflow lay failed
    ended_at: datetime | None = None
    stages: int
    tasks: int
    counts: dict[str, int] = {}  #: task state -> tasks
    returned: dict[
        str, int
    ] = {}  #: exit code -> tasks that succeeded though it is not 0: their client judges by it
    paused: bool = False
    cancel_requested: bool = False
    source: str = ""  #: the engine that keeps the DAG of this run; its calls are the stages
    run: str = ""  #: the run that this workflow is one call of


class FittedMemoryView(View, kw_only=True):
    """The memory of the attempts of a stage that were given less than they ask for and have ended, and what that saved."""

    attempts: int
    asked_bytes: int  #: mean of these attempts
    given_bytes: int
    saved_gib_hours: float  #: below 0: attempts that ran out of it held more in vain than the others saved


class StageView(View, kw_only=True):
    """One stage of a workflow, with the waiting times and moved bytes of its tasks."""

    SHOWN: ClassVar = (
        "name",
        "state",
        "returned",
        "counts",
        "cached",
        "gang",
        "waiting",
        "reason",
        "queued_seconds",
        "staging_seconds",
        "running_seconds",
        "bytes_local",
        "bytes_moved",
    )

    name: str
    number: int
    state: str  #: as in `WorkflowView`
    reason: str = ""
    waiting: WaitingView | None = None  #: why tasks of it that do not run wait
    width: int
    members: int
    gang: bool = False
    needs: list[str] = []  #: names of the stages it waits for
    counts: dict[str, int] = {}
    returned: dict[str, int] = {}  #: as in `WorkflowView`
    cached: int = 0  #: tasks that took the result of a task of another workflow
    started_at: datetime | None = None  #: a retry that tries it again starts it anew
    ended_at: datetime | None = None
    queued_seconds: float = 0.0  #: sums over its tasks
    staging_seconds: float = 0.0  #: from the choice of a node to the arrival of the inputs there
    running_seconds: float = 0.0
    bytes_local: int = 0  #: input bytes that were where the task ran
    bytes_moved: int = 0  #: input bytes that had to be copied there
    core_hours: float = 0.0  #: held by its attempts from binding to end: docs/accounting.md
    gpu_hours: float = 0.0
    memory_gib_hours: float = 0.0
    fitted_memory: FittedMemoryView | None = None  #: null: no attempt was given less memory than it asks for


class NodeCostView(View, kw_only=True):
    """The cost of a task on another node, in ms by term: stage-in, gather, slowdown, preferred, or a plug-in's name."""

    node: str  #: its name
    cost_ms: dict[str, int]
    full: bool = False  #: it had no room then


class ChoiceView(View, kw_only=True):
    """Why a try went to its node."""

    cost_ms: dict[str, int] = {}  #: on its node, by term; empty: nothing but packing was weighed
    others: list[NodeCostView] = []  #: the nodes that came next, at most two
    staged: bool = False  #: decided before the inputs were copied to the node


class ImageView(View, kw_only=True):
    """An image that a task names."""

    name: str
    digest: str = (
        ""  #: of what the try ran in; "" = the image was ignored, and the programs of the machine ran
    )


class AttemptView(View, kw_only=True):
    """One try of one task."""

    attempt: int  #: from 0
    pod: str
    node: str
    bound_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""  #: "" where it ended by itself: then `exit_code` says how
    message: str = ""
    usage: dict[str, int] = {}
    choice: ChoiceView | None = None  #: why on this node; none for tries of a version that did not keep it
    images: list[ImageView] = []  #: on one machine, once it has ended; on Kubernetes the pod has them


class AttemptUseView(AttemptView, kw_only=True):
    """One try of one task, with its requests beside its use. `choice` and `images` are left out."""

    SHOWN: ClassVar = (
        "stage",
        "index",
        "item",
        "attempt",
        "node",
        "exit_code",
        "reason",
        "started_at",
        "ended_at",
    )

    stage: str
    index: int
    shard: int
    item: str | None = None
    requested: dict[str, int] = {}  #: cpu in milli-CPU, memory in bytes, gpu in thousandths: what it held


class OutputView(View, kw_only=True):
    """A published output."""

    name: str
    uri: str
    size_bytes: int
    value: str | None = None
    nodes: list[str] = []  #: where it lies now


class TaskView(View, kw_only=True):
    """One task: one member of one shard of a stage."""

    SHOWN: ClassVar = (
        "stage",
        "index",
        "role",
        "item",
        "state",
        "node",
        "exit_code",
        "reason",
        "started_at",
        "ended_at",
        "bytes_local",
        "bytes_moved",
    )

    stage: str
    index: int
    shard: int
    role: str
    item: str | None = None
    state: str
    qos: str = ""  #: BestEffort, Burstable or Guaranteed: pods with the lesser promise are evicted first
    reason: str = ""  #: why it ended so; of one that waits or runs again, why its last attempt ended
    attempt: int  #: the current or last one, from 0
    node: str | None = None
    exit_code: int | None = (
        None  #: of one that succeeded, what it returned to its client: Cromwell reads that from a file
    )
    ready_at: datetime | None = None
    bound_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    bytes_local: int = 0
    bytes_moved: int = 0
    attempts: list[AttemptView] = []  #: filled when one task is asked for
    outputs: list[OutputView] = []  #: in a list, those of tasks that have succeeded


class SuggestionView(View, kw_only=True):
    """One change after which it would start, and which could not be smaller: docs/explain.md explains each kind."""

    kind: str
    object: str = ""  #: which role, queue or node; "" = the group itself
    what: str = ""  #: which resource, label, taint, rule or dataset
    was: int = 0
    to: int = 1
    unit: int = 1  #: of `was` and `to`: milli-CPU, bytes, ms, or a count
    message: str = ""


#: So many shards are named of those that found the same.
CACHE_NAMED: Final = 8


class CacheView(View, kw_only=True):
    """The result of look-ups in the cache of results, for shards of one stage with the same result."""

    stage: str
    shards: int  #: how many
    first: int  #: the first of them
    which: list[
        str
    ] = []  #: the first of them by item, or by number where the stage has no items: at most `CACHE_NAMED`
    source: str = (
        ""  #: the run and stage that they took results from, as "w1/align"; empty: they run themselves
    )
    ran: bool = (
        False  #: they have started; False too where they took a result, wait, or were cancelled before
    )
    why: str = ""  #: why no result was taken


#: The code of an explanation of tasks that returned another exit code than 0 to the engine that failed their run.
RETURN_CODE: Final = "ReturnCode"


class ExplanationView(View, kw_only=True):
    """Why something of a workflow does not run; of one task, also why it went to its node (code `Placed`)."""

    SHOWN: ClassVar = ("stage", "tasks", "state", "code", "message", "start_at")

    stage: str
    shards: list[int] = []  #: the first few concerned
    items: list[str] = []  #: theirs, where the stage is scattered over items
    others: int = 0  #: how many more shards are concerned
    tasks: int  #: how many tasks it speaks of
    state: str
    code: str
    message: str
    numbers: dict[str, int] = {}
    start_at: datetime | None = None
    start_low_at: datetime | None = None  #: it starts between these two eight times of ten
    start_high_at: datetime | None = None
    last_low_at: datetime | None = (
        None  #: the same of the last of these tasks, where they start one after the other
    )
    last_high_at: datetime | None = None
    estimate: str = ""  #: how long one task is taken to run, and how that is known
    binds: list[str] = []  #: what keeps it by itself: "worker: memory", "queue night: cap cpu"
    suggestions: list[SuggestionView] = []  #: the cheapest first


class EventView(View, kw_only=True):
    """One line of history."""

    SHOWN: ClassVar = ("at", "kind", "body")

    id: int  #: rises in the order in which they happened
    workflow: str
    at: datetime
    kind: str  #: what has happened, as "task.running": docs/reference/events.md lists all
    body: dict[str, Any] = {}  #: what is to be said about it, by `kind`


class QueueUserView(View, kw_only=True):
    """A user of a queue: its usage now, and on average of late. `user` is empty for workflows that name no user."""

    user: str
    used: dict[str, int] = {}
    recent: dict[str, int] = {}


class QueueView(View, kw_only=True):
    """A queue: its limits and its usage. Amounts by resource name (cpu in millicores, memory in bytes …)."""

    SHOWN: ClassVar = (
        "name",
        "parent",
        "weight",
        "paused",
        "waiting",
        "starting",
        "running",
        "used",
        "pending",
        "cap",
        "guarantee",
        "warnings",
    )

    name: str
    weight: int
    parent: str | None = None
    priority: int = 0
    paused: bool = False
    cap: dict[str, int] = {}
    guarantee: dict[str, int] = {}
    reclaimable: bool = True  #: others may take back what it has beyond what it deserves
    order: str = "best-effort"  #: or "fifo": no task passes the head
    used: dict[str, int] = {}  #: with everything below it
    deserved: dict[
        str, int
    ] = {}  #: its part of the cluster by weight among its siblings that have or ask for something; with those below it
    pending: dict[str, int] = {}  #: what its own tasks ask for that are ready and not placed
    recent: dict[
        str, int
    ] = {}  #: what it has had on average of late, faded; counts beside `used` when it is ordered
    users: list[QueueUserView] = []  #: users with something now or of late; empty where none was named
    warnings: list[str] = []  #: what its settings promise and the cluster cannot keep
    dominant_share: float = 0.0
    waiting: int = 0  #: tasks that are ready and not placed
    starting: int = 0  #: tasks that have a node, and whose process does not run yet
    running: int = 0  #: tasks whose process runs, or is being ended


class DrainView(View, kw_only=True):
    """An administrator's order to drain a node: no new tasks, now or from a later moment on."""

    from_at: datetime  #: from then on no task starts there; before, only tasks that will have ended by then
    until_at: datetime | None = None  #: what has not ended by then is taken away; null: it runs to its end
    reason: str = ""
    by: str = ""  #: the author, as the client named them
    at: datetime | None = None  #: when it was ordered


class NodeView(View, kw_only=True):
    """A node: its resources, their use, and the bytes moved."""

    SHOWN: ClassVar = (
        "name",
        "state",
        "rack",
        "starting",
        "running",
        "used",
        "allocatable",
        "cache_bytes",
        "bytes_in",
        "bytes_out",
    )

    name: str
    ready: bool  #: tasks may start there
    state: str = "READY"  #: READY, DRAINING (drained, tasks run on), DRAINED (none runs), CORDONED (by `kubectl`), NOT_READY
    message: str = ""  #: why it is not ready, or which drain is to come
    drain: DrainView | None = None
    rack: str = ""
    labels: dict[str, str] = {}
    allocatable: dict[str, int] = {}
    used: dict[str, int] = {}
    starting: int = 0  #: tasks that have room here, and whose process does not run yet
    running: int = 0  #: tasks whose process runs here, or is being ended
    gangs: dict[str, int] = {}  #: workflow/stage/shard of a gang -> its pods here
    cache_bytes: int = 0
    cache_limit_bytes: int = 0  #: what its cache may hold; 0 = all that comes
    evicted_bytes: int = 0  #: dropped to make room, since the service began to lead
    refetched_bytes: int = 0  #: of those, brought back since
    datasets: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    others: dict[
        str, int
    ] = {}  #: bytes/s that others than flowsched were measured to use: disk, network_in, network_out


class Page(View, kw_only=True):
    """How a long list goes on: ask again with `page_token`."""

    next_page_token: str | None = None


class WorkflowPage(Page, kw_only=True):
    """Some workflows: live ones, then those that have ended, each newest first."""

    workflows: list[WorkflowView]


class CancelledView(View, kw_only=True):
    """The result of a request to cancel several workflows."""

    workflows: list[WorkflowView]  #: those that are cancelled, or are ending
    refused: dict[str, str] = {}  #: the others by id, and why: they have ended, or do not exist


class TaskPage(Page, kw_only=True):
    """Some tasks of one workflow, by stage and index."""

    tasks: list[TaskView]


class TimelineView(Page, kw_only=True):
    """Tasks of a workflow by stage and index, as columns with an entry for each task.

    A column is empty if all its entries are null or 0. Times are ms since `begin_at`, of the last attempt. Of a run of another
    engine the last try of each call is a task.
    """

    workflow: str
    begin_at: datetime  #: when the workflow was accepted
    now_ms: int  #: when this was answered
    states: list[str]  #: the names of the numbers in `state`
    nodes: list[str] = []  #: the names of the numbers in `node`
    stage: list[int] = []  #: number of the stage, as in `StageView`
    index: list[int] = []  #: in its stage: shard * members + member
    attempt: list[int] = []
    state: list[int] = []
    node: list[int | None] = []
    ready_ms: list[int | None] = []  #: its parents had ended, and it was queued
    staging_in_ms: list[int | None] = []  #: a node was chosen, and its inputs were to be copied there
    staged_ms: list[int | None] = []  #: they had been copied: from now on it waited for room
    bound_ms: list[int | None] = []  #: its room on the node was taken
    started_ms: list[int | None] = []
    staging_out_ms: list[
        int | None
    ] = []  #: the last step of a container task had ended, and its outputs were taken out
    ended_ms: list[int | None] = []
    bytes_local: list[int] = []  #: input bytes that were on the node
    bytes_moved: list[int] = []  #: input bytes that were copied to the node
    exit_code: list[int | None] = []
    reasons: dict[int, str] = {}  #: place in the columns -> why the task ended so
    items: dict[int, str] = {}  #: place in the columns -> the item of its shard, where its stage has items


class AttemptPage(Page, kw_only=True):
    """Some attempts of one workflow, by stage, index and attempt."""

    attempts: list[AttemptUseView]


class SubmittedView(View, kw_only=True):
    """The answer to a submission. `created` is false when the idempotency key had been seen with the same body."""

    id: str
    created: bool = True
    url: str = ""
    notes: list[str] = []  #: what the service adds to the document, such as the timeout of its queue


class ProblemView(View, kw_only=True):
    """RFC 9457 problem details; `faults` names everything that is wrong with a document."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    instance: str = ""
    faults: list[dict[str, str]] = []


# ---- idle room ----


class IdleView(View, kw_only=True):
    """One resource now, in cores, GiB or GPUs. capacity = used + the sum of `causes`."""

    capacity: float  #: of nodes that take pods
    used: float
    idle: float
    off: float = 0.0  #: of nodes that take none: not idle, and not counted above
    causes: dict[str, float] = msgspec.field(
        default_factory=dict
    )  #: by cause (docs/explain.md); they add up to `idle`
    who: dict[str, dict[str, float]] = msgspec.field(
        default_factory=dict
    )  #: cause -> queue, gang or work -> its part, the largest few


class IdleReportView(View, kw_only=True):
    """The causes of the room that is idle now."""

    at: datetime
    resources: dict[str, IdleView] = msgspec.field(
        default_factory=dict
    )  #: cpu, memory, gpu, where there are any
    sentences: list[str] = msgspec.field(default_factory=list)  #: the same for people, one for each resource


# ---- accounting ----


class UsageSumView(View, kw_only=True):
    """The resources allocated to workflows: sums over their attempts that have ended, from the binding of each to its end."""

    workflows: int = 0  #: each call of another engine's run counts as one
    core_hours: float = 0.0
    gpu_hours: float = 0.0
    memory_gib_hours: float = 0.0
    memory_saved_gib_hours: float = 0.0  #: not held, since memory that fits gave less than was asked for
    queued_hours: float = 0.0  #: in which tasks were ready and waited for room
    running_hours: float = 0.0  #: in which their processes ran
    bytes_local: int = 0  #: input bytes that were where the task ran
    bytes_moved: int = 0  #: input bytes that had to be copied there


class UsageRowView(UsageSumView, kw_only=True):
    """The part of one queue, user or value of a label."""

    name: str | None  #: null: of workflows that name no user, or do not have the label


class UsageView(View, kw_only=True):
    """The usage of each queue, user or label. The rows add up to `total`."""

    by: str  #: queue, user, or label:KEY
    since: datetime | None = (
        None  #: workflows that ended from then on, and those that live; null: all that are known
    )
    until: datetime | None = None  #: and before then; null: those that live count too
    queue: str | None = None  #: of this queue alone
    rows: list[UsageRowView]  #: most core-hours first
    total: UsageSumView


# ---- plans ----


class CromwellSource(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A run of a Cromwell server that this installation may ask."""

    url: str
    root_workflow_id: str


class PlanBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A workflow to plan: its source with its imports, or the Cromwell server that has it."""

    source: str | None = None
    imports: dict[str, str] | str = {}  #: sources by name, or a zip file in base64
    inputs: dict[str, Any] | None = None  #: `{"workflow.input": value}`; null: not known at all
    sizes: dict[str, int] = {}  #: bytes of files, by the URI or path in the inputs
    contents: dict[
        str, str
    ] = {}  #: texts of files, likewise: lists of intervals or samples that the workflow reads
    run: str = ""  #: the run that it is the plan of, as the run's calls name it
    cromwell: CromwellSource | None = None


class PlanSummary(View, kw_only=True):
    """A plan in a list."""

    id: str
    name: str
    run: str = ""
    created_at: datetime
    nodes: int
    url: str = ""


class PlanView(PlanSummary, kw_only=True):
    """A plan, and the forecast that follows from it with the present estimates of tasks."""

    plan: Plan
    ranks: dict[str, RankPlan]  #: node -> its way to the end
    stages: list[StageForecast]
    files: dict[str, list[str]]  #: URI that is known ahead -> nodes that read it


class PlanPage(Page, kw_only=True):
    """Some plans, newest first."""

    plans: list[PlanSummary]


# ---- the scheduler's policy ----


class RefusedView(View, kw_only=True):
    """A profile document that changed nothing, and everything that is wrong with it."""

    at: datetime
    source: str
    faults: list[dict[str, str]]


class ProfileView(View, kw_only=True):
    """The profile in force."""

    name: str
    source: str  #: a file, the API, or built in
    since: datetime
    kept: bool  #: whether a restart finds it again
    document: dict[str, Any]  #: all of it, with what was inherited
    refused: RefusedView | None = None  #: what was refused since, the last of them


class PluginView(View, kw_only=True):
    """A plugin of the scheduler."""

    name: str
    kind: str = ""  #: filter, cost, queue-order or victim
    origin: str = ""  #: the package that offers it
    about: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)  #: name -> default
    used_by: list[str] = msgspec.field(default_factory=list)  #: profiles in force that name it
    problem: str = ""  #: why it does not work at all
    failures: int = 0  #: how often it failed under the profiles in force
    last_failure: str = ""


def encode(view: object) -> bytes:
    """As JSON. Lone surrogates, which UTF-8 cannot hold, are replaced: an echo must not be a 500."""
    try:
        return msgspec.json.encode(view)
    except UnicodeEncodeError:
        return msgspec.json.encode(_replaced(msgspec.to_builtins(view)))


def _replaced(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_replaced(key): _replaced(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner) for inner in value]
    return value
