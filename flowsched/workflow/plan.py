"""Plans: the calls of a run as known before it starts, as frozen values that JSON can hold, and the ranks that follow.

A *node* is one call of one task, with the sub-workflows it is in expanded: once, however wide the scatters around it are. A
value that does not follow from the source and its inputs is never guessed: it is None, and `until` names what it waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from flowsched.workflow.estimates import filled

#: The facts on which an unknown value depends.
#:
#: node: an output of that node · input: an input that was not given · size: the size of that file · content: what is in that file ·
#: shard: it differs between the shards of that scatter · error: it cannot be worked out, the name says why.
UntilKind = Literal["node", "input", "size", "content", "shard", "error"]

Holds = Literal["yes", "no", "unknown"]
EdgeKind = Literal["data", "order"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The root of a plan's values."""


class Until(Part, frozen=True, order=True):
    """One thing that must be known first."""

    kind: UntilKind
    name: str


class Amount(Part, frozen=True):
    """How much of a resource one task asks for. CPU in millicores, memory and disk in bytes, GPUs in devices."""

    value: int | None = None
    text: str = ""  #: the expression, where the task has one
    until: tuple[Until, ...] = ()
    given: bool = False  #: the task says it; else it is the default of the WDL specification


class Image(Part, frozen=True):
    """The container image of a task."""

    value: str | None = None
    text: str = ""
    until: tuple[Until, ...] = ()


class ScatterPlan(Part, frozen=True):
    """A scatter: how many shards it has in one instance of the sections around it, and in all."""

    id: str
    variable: str
    over: str  #: the expression
    width: int | None = None  #: None also where it differs between the shards around it
    total: int | None = None  #: shards over all shards of the scatters around it
    until: tuple[Until, ...] = ()


class ConditionPlan(Part, frozen=True):
    """An `if`: whether it holds; `some`: in some shards of the scatters around it, and it is known in how many (`shards`)."""

    id: str
    text: str
    holds: Holds | Literal["some"]
    shards: int | None = None
    until: tuple[Until, ...] = ()


class PlannedFile(Part, frozen=True):
    """A file that is known ahead, and the input it is read by."""

    input: str
    uri: str


class NodePlan(Part, frozen=True):
    """One call of one task.

    `tasks` counts shards (1 outside scatters, None where a width is unknown). `gang_width` is the same where it is certain:
    every width is
    known and every condition holds; only then may its tasks be started as one gang.
    """

    path: str  #: root workflow and call names: `germline.joint.Genotype`
    task: str
    workflow: str  #: the workflow that has the call in its source
    call: str
    scatters: tuple[str, ...] = ()  #: ids, outermost first
    conditions: tuple[str, ...] = ()
    tasks: int | None = None
    runs: Holds = "yes"
    until: tuple[Until, ...] = ()  #: what number of tasks and `runs` wait for
    gang_width: int | None = None
    level: int = 0  #: longest way from a node without parents
    cpu: Amount = Amount()
    memory: Amount = Amount()
    disk: Amount = Amount()
    gpu: Amount = Amount()
    image: Image = Image()
    files: tuple[PlannedFile, ...] = ()
    more_files: int = 0  #: known ones that are not listed


class EdgePlan(Part, frozen=True):
    """`child` waits for `parent`: it reads an output (data), or cannot be begun before (order: `after`, a width, a condition, a
    sub-workflow).
    """

    parent: str
    child: str
    kind: EdgeKind


class Plan(Part, frozen=True):
    """The template DAG of one run. Nodes and edges are in an order in which parents come first."""

    name: str
    language: str  #: "WDL 1.0"
    nodes: tuple[NodePlan, ...]
    edges: tuple[EdgePlan, ...]
    scatters: tuple[ScatterPlan, ...] = ()
    conditions: tuple[ConditionPlan, ...] = ()
    notes: tuple[str, ...] = ()  #: what was passed over, such as inputs that the workflow does not have


def until_text(until: tuple[Until, ...]) -> str:
    """The facts that a value waits for, in words."""
    return "; ".join(_WORDS[each.kind].format(each.name) for each in until)


_WORDS = {
    "node": "until {} has ended",
    "input": "until input {} is given",
    "size": "needs the size of {}",
    "content": "needs the content of {}",
    "shard": "differs between the shards of {}",
    "error": "{}",
}


# ---- what follows: how long it is from each node to the end, and what each stage will ask for ----


class RankPlan(Part, frozen=True):
    """The critical path of one node: expected ms from its start to the end of the run, itself included.

    `learned` says whether its own runtime was learned from finished tasks; else it is the middle of those that were, or a minute.
    """

    rank_ms: int
    runtime_ms: int
    learned: bool


class StageForecast(Part, frozen=True):
    """The nodes of one level, which can run at the same time, and their requests together.

    Sums are over known amounts; `partial` means that there is more: a width, a condition or an amount that is not known yet.
    """

    level: int
    nodes: tuple[str, ...]
    tasks: int
    cpu_millicores: int
    memory_bytes: int
    disk_bytes: int
    gpus: int
    partial: bool
    unknown_widths: tuple[str, ...] = ()  #: nodes with an unknown number of tasks


def ranks(plan: Plan, learned_ms: Mapping[str, int]) -> dict[str, RankPlan]:
    """Upward ranks of all nodes that may run: a node that surely does not run delays no other and has rank 0.

    Args:
        plan: The plan.
        learned_ms: Path -> how long one task of the node takes, as far as it was learned; see `filled` for the others.
    """
    after: dict[str, int] = {}
    children: dict[str, list[str]] = {}
    for edge in plan.edges:
        children.setdefault(edge.parent, []).append(edge.child)
    nodes = [node for node in plan.nodes if node.runs != "no"]
    own = dict(
        zip((node.path for node in nodes), filled(learned_ms.get(node.path) for node in nodes), strict=True)
    )
    found: dict[str, RankPlan] = {}
    for node in reversed(plan.nodes):
        own_ms = own.get(node.path, 0)
        after[node.path] = own_ms + max((after[child] for child in children.get(node.path, ())), default=0)
        rank = after[node.path] if own_ms else 0
        found[node.path] = RankPlan(rank, own_ms, node.path in learned_ms)
    return found


def node_of(plan: Plan, name: str) -> NodePlan | None:
    """The node that an engine means by `name`; None if it is none, or if several could be meant and none of them is the longest
    name.

    Engines name calls in their own ways: `root.sub.call` as here; Cromwell's `innermost_workflow.call`; with `/` between; with
    shards (`[3]`).
    """
    wanted = _bare(name)
    found = [node for node in plan.nodes if wanted == node.path]
    if not found:
        found = [
            node
            for node in plan.nodes
            if wanted in (f"{node.workflow}.{node.call}", node.path.partition(".")[2])
        ]
    return found[0] if len(found) == 1 else None


def rank_of(plan: Plan, known: Mapping[str, RankPlan], name: str) -> int | None:
    """Expected ms from the start of the node that an engine calls `name` to the end of the run; None if no node is called so.

    Where several nodes are called so (one sub-workflow called twice), the longest way: to be too early costs less than to be too
    late.
    """
    node = node_of(plan, name)
    if node is not None:
        return known[node.path].rank_ms
    wanted = _bare(name)
    alike = [
        known[each.path].rank_ms
        for each in plan.nodes
        if wanted in (f"{each.workflow}.{each.call}", each.call, each.task)
    ]
    return max(alike, default=None)


def _bare(name: str) -> str:
    return name.partition("[")[0].replace("/", ".").strip(".")


def stages(plan: Plan) -> list[StageForecast]:
    """The requests of each level, first to last."""
    levels: dict[int, list[NodePlan]] = {}
    for node in plan.nodes:
        if node.runs != "no":
            levels.setdefault(node.level, []).append(node)
    return [_stage(level, levels[level]) for level in sorted(levels)]


def _stage(level: int, nodes: list[NodePlan]) -> StageForecast:
    certain = [node for node in nodes if node.runs == "yes" and node.tasks is not None]
    amounts = [amount for node in nodes for amount in (node.cpu, node.memory, node.disk, node.gpu)]
    return StageForecast(
        level=level,
        nodes=tuple(node.path for node in nodes),
        tasks=sum(node.tasks or 0 for node in certain),
        cpu_millicores=_sum((node.tasks, node.cpu.value) for node in certain),
        memory_bytes=_sum((node.tasks, node.memory.value) for node in certain),
        disk_bytes=_sum((node.tasks, node.disk.value) for node in certain),
        gpus=_sum((node.tasks, node.gpu.value) for node in certain),
        partial=len(certain) < len(nodes) or any(amount.value is None for amount in amounts),
        unknown_widths=tuple(node.path for node in nodes if node.tasks is None),
    )


def _sum(products: Iterable[tuple[int | None, int | None]]) -> int:
    return sum((tasks or 0) * (amount or 0) for tasks, amount in products)


def prefetch(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Files that are known ahead, and the nodes that read them, in the order in which the nodes come."""
    found: dict[str, dict[str, None]] = {}
    for node in plan.nodes:
        if node.runs != "no":
            for file in node.files:
                found.setdefault(file.uri, {})[node.path] = None
    return {uri: tuple(nodes) for uri, nodes in found.items()}


def as_json(plan: Plan) -> bytes:
    """A plan as it is kept."""
    return msgspec.json.encode(plan)


def from_json(raw: bytes) -> Plan:
    """A plan as it was kept."""
    return msgspec.json.decode(raw, type=Plan)
