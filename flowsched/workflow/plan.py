"""What is known of a run before it starts: a template DAG of its calls, as frozen values that JSON can hold.

A *node* is one call of one task, with the sub-workflows it is in expanded: once, however wide the scatters around it are. What
does not
follow from the source and its inputs is never guessed: it is None, and `until` says what it waits for.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: What something that is not known depends on.
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
    """A scatter: how many shards it has in one instance of what is around it, and in all."""

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
    """What is waited for, in words."""
    return "; ".join(_WORDS[each.kind].format(each.name) for each in until)


_WORDS = {
    "node": "until {} has ended",
    "input": "until input {} is given",
    "size": "needs the size of {}",
    "content": "needs the content of {}",
    "shard": "differs between the shards of {}",
    "error": "{}",
}
