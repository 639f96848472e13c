"""A WDL workflow gone through once: calls become nodes, sub-workflows are expanded, scatters stay what they are.

Every name is bound to the known part of its value and to the nodes that it comes from; edges, widths and resources all follow
from the same
walk. A scatter's body is gone through once, with the part that its elements share.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from WDL import Error, Tree, Type, Value

from flowsched.errors import TooLarge
from flowsched.values import replace
from flowsched.workflow.formats.wdl.documents import NODES
from flowsched.workflow.formats.wdl.partial_values import (
    BYTE_UNITS,
    WRITTEN_OUT,
    Opaque,
    PlanLibrary,
    elements,
    generalised,
    length_reasons,
    opaque,
    parts,
    reasons,
    repeated,
)
from flowsched.workflow.formats.wdl.scope import (
    NOBODY,
    Bound,
    Paths,
    Scope,
    evaluated,
    merged,
    shown,
    together,
)
from flowsched.workflow.formats.wdl.sources import Files
from flowsched.workflow.graph import topological_order
from flowsched.workflow.plan import Amount, ConditionPlan, Holds, Image, PlannedFile, ScatterPlan, Until

#: The name under which a call, or a section that contains it, declares the nodes that must have ended for `after`.
_DONE: Final = "__done__"


@dataclass(slots=True)
class Draft:
    """A node while the plan is made."""

    path: str
    task: str
    workflow: str
    call: str
    data: Paths
    order: Paths
    scatters: tuple[str, ...]
    conditions: tuple[str, ...]
    tasks: int | None
    runs: Holds
    until: frozenset[Until]
    amounts: Mapping[str, Amount]
    image: Image
    files: tuple[PlannedFile, ...]
    more_files: int


@dataclass(frozen=True, slots=True)
class _Frame:
    """One workflow, at one place of the plan."""

    path: str
    relative: str  #: how the inputs name what is in it: "", or "joint." …
    workflow: str
    library: PlanLibrary
    passed: Mapping[str, Bound]


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of the walk, and the sections around it."""

    frame: _Frame
    scope: Scope
    gates: Paths = NOBODY  #: must have ended before anything here begins
    scatters: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    tasks: int | None = 1
    uneven: bool = False  #: a width around it differs between shards
    filtered: bool = False  #: it is in some shards only
    runs: Holds = "yes"
    until: frozenset[Until] = frozenset()


@dataclass(slots=True)
class Walk:
    """Goes through one workflow.

    Args:
        inputs: Inputs by name, without the workflow's own: `joint.Genotype.memory`.
        complete: Whether `inputs` is all there is: then an optional input that is not in it is missing; else it is unknown.
        files: The known facts about files.
    """

    inputs: Mapping[str, Value.Base]
    complete: bool
    files: Files
    nodes: dict[str, Draft] = field(default_factory=dict)
    scatters: list[ScatterPlan] = field(default_factory=list)
    conditions: list[ConditionPlan] = field(default_factory=list)
    _libraries: dict[str, PlanLibrary] = field(default_factory=dict)

    def go(self, workflow: Tree.Workflow) -> None:
        """Fill `nodes`, `scatters` and `conditions`.

        Raises:
            TooLarge: There are too many calls.
        """
        frame = _Frame(workflow.name, "", workflow.name, self._library(workflow), {})
        self._workflow(workflow, _Place(frame, Scope()))

    def _library(self, callee: Tree.Workflow | Tree.Task) -> PlanLibrary:
        version = callee.effective_wdl_version
        if version not in self._libraries:
            self._libraries[version] = PlanLibrary(version, self.files)
        return self._libraries[version]

    # ---------------------------------------------------------------------------------------------- names

    def _workflow(self, workflow: Tree.Workflow, place: _Place) -> dict[str, Bound]:
        """Go through a workflow's inputs, body and outputs; returns the outputs."""
        scope = place.scope
        for decl in workflow.inputs or []:
            scope.lazy[decl.name] = partial(self._declared, decl, place, True)
        self._body(workflow.body, place, inputs=workflow.inputs is None)
        outputs = Scope(scope)
        for decl in workflow.outputs or []:
            outputs.lazy[decl.name] = partial(self._declared, decl, replace(place, scope=outputs), False)
        found = {decl.name: outputs.find(decl.name) for decl in workflow.outputs or []}
        return {name: bound for name, bound in found.items() if bound is not None}

    def _declared(self, decl: Tree.Decl, place: _Place, is_input: bool) -> Bound:
        """The meaning of a declaration: the passed or given value, else its own expression."""
        frame = place.frame
        if is_input:
            passed = frame.passed.get(decl.name)
            if passed is not None and not (isinstance(passed.value, Value.Null) and decl.expr is not None):
                return replace(passed, value=passed.value.coerce(decl.type), kind=decl.type)
            key = frame.relative + decl.name
            if passed is None and key in self.inputs:
                return Bound(self.inputs[key].coerce(decl.type), decl.type)
        if decl.expr is not None:
            return evaluated(decl.expr, place.scope, frame.library, decl.type)
        if decl.type.optional and self.complete:
            return Bound(Value.Null(), decl.type)
        return Bound(opaque(decl.type, frozenset({Until("input", frame.relative + decl.name)})), decl.type)

    # ---------------------------------------------------------------------------------------------- sections

    def _body(self, body: list[Tree.WorkflowNode], place: _Place, *, inputs: bool = False) -> None:
        """Bind all that a body defines, in an order in which everything is there when it is asked for."""
        for node in ordered(body):
            match node:
                case Tree.Decl():
                    place.scope.names[node.name] = self._declared(node, place, inputs)
                case Tree.Call():
                    place.scope.names |= self._call(node, place)
                case Tree.Scatter():
                    place.scope.names |= self._scatter(node, place)
                case Tree.Conditional():
                    place.scope.names |= self._conditional(node, place)

    def _scatter(self, section: Tree.Scatter, place: _Place) -> dict[str, Bound]:
        over = evaluated(section.expr, place.scope, place.frame.library)
        ident = f"{place.frame.path}.{section.workflow_node_id}"
        width, tasks, uneven = _width(over.value, place)
        hidden = length_reasons(over.value) if width is None else frozenset()
        self.scatters.append(
            ScatterPlan(ident, section.variable, shown(section.expr), width, tasks, tuple(sorted(hidden)))
        )
        kind = section.expr.type.item_type if isinstance(section.expr.type, Type.Array) else Type.Any()
        element = _element(over.value, kind, Until("shard", ident))
        variable = Bound(element, kind, over.data, over.waits)
        inner = replace(
            place,
            scope=Scope(place.scope, {section.variable: variable}),
            gates=place.gates | over.data | over.waits,
            scatters=(*place.scatters, ident),
            tasks=tasks,
            uneven=uneven,
            until=place.until | (hidden if tasks is None else frozenset()),
            runs="no" if tasks == 0 else place.runs,
        )
        self._body(section.body, inner)
        del inner.scope.names[section.variable]
        return {name: _gathered(bound, width, hidden) for name, bound in inner.scope.names.items()}

    def _conditional(self, section: Tree.Conditional, place: _Place) -> dict[str, Bound]:
        asked = evaluated(section.expr, place.scope, place.frame.library)
        hidden = reasons(asked.value)
        tasks = _some(asked.value, place)
        holds: Holds = "unknown"
        if isinstance(asked.value, Value.Boolean):
            holds = "yes" if asked.value.value else "no"
        ident = f"{place.frame.path}.{section.workflow_node_id}"
        plan = ConditionPlan(ident, shown(section.expr), holds, None, tuple(sorted(hidden)))
        if tasks is not None:  # nothing waits for anything: it is only not the same for all
            plan = ConditionPlan(ident, plan.text, "some", tasks)
        self.conditions.append(plan)
        inner = replace(
            place,
            scope=Scope(place.scope),
            gates=place.gates | asked.data | asked.waits,
            conditions=(*place.conditions, ident),
            until=place.until | (hidden if tasks is None else frozenset()),
            runs=both(place.runs, holds if tasks is None else "yes"),
            tasks=place.tasks if tasks is None else tasks,
            filtered=place.filtered or tasks is not None,
        )
        self._body(section.body, inner)
        return {name: _perhaps(bound, holds, asked) for name, bound in inner.scope.names.items()}

    # ---------------------------------------------------------------------------------------------- calls

    def _call(self, call: Tree.Call, place: _Place) -> dict[str, Bound]:
        callee = call.callee
        assert callee is not None  # the type check resolved it
        declared = {decl.name: decl for decl in _inputs(callee)}
        passed: dict[str, Bound] = {}
        for name, expr in call.inputs.items():
            decl = declared.get(name)
            kind = None if decl is None else decl.type
            if decl is not None and decl.expr is not None:
                kind = decl.type.copy(optional=True)  # what has a default may be left out
            passed[name] = evaluated(expr, place.scope, place.frame.library, kind)
        data = together(*(each.data for each in passed.values()))
        after = [place.scope.find(f"{name}.{_DONE}") for name in call.after]
        order = together(
            *(each.waits for each in (*passed.values(), *after) if each is not None), place.gates
        )
        if isinstance(callee, Tree.Task):
            outputs, done = self._task(call, callee, passed, data, order, place)
        else:
            outputs, done = self._subworkflow(call, callee, passed, data | order, place)
        if isinstance(call, Tree.CallTry):
            outputs = {
                name: replace(bound, value=Opaque(kind, reasons(bound.value)), kind=kind)
                for name, bound in outputs.items()
                for kind in [bound.kind.copy(optional=True)]
            }
        found = merged(outputs, call.name)
        found[f"{call.name}.{_DONE}"] = Bound(Value.Null(), Type.Any(), waits=done)
        return found

    def _task(
        self,
        call: Tree.Call,
        task: Tree.Task,
        passed: Mapping[str, Bound],
        data: Paths,
        order: Paths,
        place: _Place,
    ) -> tuple[dict[str, Bound], Paths]:
        path = f"{place.frame.path}.{call.name}"
        if len(self.nodes) >= NODES:
            raise TooLarge(
                f"the workflow has more than {NODES} calls with its sub-workflows expanded, which is the limit of a plan"
            )
        relative = f"{place.frame.relative}{call.name}."
        scope, library = Scope(), self._library(task)
        inside = _Place(_Frame(path, relative, task.name, library, passed), scope)
        inputs = {decl.name for decl in _inputs(task)}
        for decl in (*(task.inputs or ()), *task.postinputs):
            scope.lazy[decl.name] = partial(self._declared, decl, inside, decl.name in inputs)
        section = f"{relative}runtime."
        overrides = {
            key.removeprefix(section): value for key, value in self.inputs.items() if key.startswith(section)
        }
        bound = {name: scope.find(name) for name in sorted(inputs)}
        files, more = _known_files({name: each for name, each in bound.items() if each is not None})
        self.nodes[path] = Draft(
            path, task.name, place.frame.workflow, call.name, data, order - data, place.scatters, place.conditions,
            place.tasks, place.runs, place.until, _amounts(task.runtime, overrides, scope, library),
            _image(task.runtime, overrides, scope, library), files, more,
        )  # fmt: skip
        until = frozenset({Until("node", path)})
        outputs = {
            decl.name: Bound(opaque(decl.type, until), decl.type, frozenset({path})) for decl in task.outputs
        }
        return outputs, frozenset({path})

    def _subworkflow(
        self,
        call: Tree.Call,
        workflow: Tree.Workflow,
        passed: Mapping[str, Bound],
        gates: Paths,
        place: _Place,
    ) -> tuple[dict[str, Bound], Paths]:
        """As engines run it: it begins when all its inputs are there, and its outputs are had when all of it has ended."""
        path, relative = f"{place.frame.path}.{call.name}", f"{place.frame.relative}{call.name}."
        frame = _Frame(path, relative, workflow.name, self._library(workflow), passed)
        before = len(self.nodes)
        outputs = self._workflow(workflow, replace(place, frame=frame, scope=Scope(), gates=gates))
        made = list(self.nodes.values())[before:]
        parents = together(*(each.data | each.order for each in made))
        ends = (
            frozenset(each.path for each in made if each.path not in parents and each.runs != "no") or gates
        )
        return {name: replace(bound, waits=bound.waits | ends) for name, bound in outputs.items()}, ends


def _inputs(callee: Tree.Task | Tree.Workflow) -> Iterable[Tree.Decl]:
    """The declarations that a caller may pass: before WDL 1.0 all of them."""
    if callee.inputs is not None:
        return callee.inputs
    if isinstance(callee, Tree.Task):
        return callee.postinputs
    return [node for node in callee.body if isinstance(node, Tree.Decl)]


def ordered(body: list[Tree.WorkflowNode]) -> list[Tree.WorkflowNode]:
    """The nodes of a body, referenced ones first: WDL allows any order."""
    owner = {inner.workflow_node_id: number for number, node in enumerate(body) for inner in _subtree(node)}
    parents = [
        sorted(
            {
                owner[dep]
                for inner in _subtree(node)
                for dep in inner.workflow_node_dependencies
                if dep in owner
            }
            - {number}
        )
        for number, node in enumerate(body)
    ]
    return [body[number] for number in topological_order(parents)]


def _subtree(node: Tree.WorkflowNode) -> Iterator[Tree.WorkflowNode]:
    stack = [node]
    while stack:
        each = stack.pop()
        yield each
        if isinstance(each, Tree.WorkflowSection):
            stack.extend(child for child in each.children if isinstance(child, Tree.WorkflowNode))


def both(outer: Holds, inner: Holds) -> Holds:
    """Whether something runs that stands inside two conditions."""
    if "no" in (outer, inner):
        return "no"
    return "unknown" if "unknown" in (outer, inner) else "yes"


def _width(over: Value.Base, place: _Place) -> tuple[int | None, int | None, bool]:
    """A scatter's width, its shards in all, and whether the width differs between the shards around it."""
    width = elements(over)
    if width is not None:
        return width, None if place.tasks is None else place.tasks * width, place.uneven
    if isinstance(over, Opaque) and over.variants and place.tasks and not place.filtered:
        widths = [elements(each) for each in over.variants]
        known = [each for each in widths if each is not None]
        times, left = divmod(place.tasks, len(widths))
        if len(known) == len(widths) and not left and (times == 1 or not place.uneven):
            return None, times * sum(known), True
    return None, None, place.uneven


def _some(asked: Value.Base, place: _Place) -> int | None:
    """In how many shards a condition holds that holds in some; None if that is not known, or there is no such difference."""
    if not isinstance(asked, Opaque) or not asked.variants or place.tasks is None or place.filtered:
        return None
    if not all(isinstance(each, Value.Boolean) for each in asked.variants):
        return None
    shards = len(asked.variants)
    if place.uneven and shards != place.tasks:
        return None
    holds: int = sum(bool(each.value) for each in asked.variants)
    return place.tasks * holds // shards


def _element(over: Value.Base, kind: Type.Base, differs: Until) -> Value.Base:
    """The value that stands for any element of a scatter's array."""
    found: list[Value.Base] = []
    if isinstance(over, Value.Array):
        found = over.value
    elif isinstance(over, Opaque) and all(isinstance(each, Value.Array) for each in over.variants):
        found = [each for variant in over.variants for each in variant.value]
    if 0 < len(found) <= WRITTEN_OUT:
        return generalised(found, kind, differs)
    if found:
        return Opaque(kind, frozenset({differs}), None, tuple(found))
    return opaque(kind, reasons(over) | {differs})


def _gathered(bound: Bound, width: int | None, hidden: frozenset[Until]) -> Bound:
    """The meaning outside of a name that is declared inside a scatter."""
    kind = Type.Array(bound.kind)
    if width is None:
        value = Opaque(kind, hidden | reasons(bound.value), length_until=hidden)
        return replace(bound, value=value, kind=kind)
    return replace(bound, value=repeated(bound.kind, bound.value, width), kind=kind)


def _perhaps(bound: Bound, holds: Holds, asked: Bound) -> Bound:
    """The meaning outside of a name that is declared inside an `if`."""
    kind = bound.kind.copy(optional=True)
    waits = bound.waits | asked.data | asked.waits
    match holds:
        case "yes":
            return replace(bound, kind=kind, waits=waits)
        case "no":
            return Bound(Value.Null(), kind, NOBODY, asked.data | asked.waits)
        case _:
            value = Opaque(kind, reasons(asked.value) | reasons(bound.value))
            return replace(bound, value=value, kind=kind, waits=waits)


# ---- what one task asks for, in flowsched's units, with the defaults of the WDL specification ----


#: Of the WDL specification (1.1 and 1.2): one core, 2 GiB, 1 GiB of disk, no GPU.
DEFAULT_CPU: Final = 1000
DEFAULT_MEMORY: Final = 2 << 30
DEFAULT_DISK: Final = 1 << 30
#: Beyond this an amount is nonsense, and would not fit a database's number.
MOST: Final = 1 << 53
#: Files of one node that are listed; further ones are counted.
FILES: Final = 200

_NUMBER: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def _amounts(
    runtime: Mapping[str, object], overrides: Mapping[str, Value.Base], scope: Scope, library: PlanLibrary
) -> dict[str, Amount]:
    """CPU, memory, disk and GPUs of one task.

    Args:
        runtime: The runtime (or requirements) section: key -> expression.
        overrides: Values that the inputs give in place of it.
        scope: The task's own names.
        library: Functions.
    """

    def ask(keys: tuple[str, ...], default: int, read: Callable[[Value.Base], int]) -> Amount:
        return _amount(_first(runtime, overrides, keys, scope, library), default, read)

    return {
        "cpu": ask(("cpu", "cpus"), DEFAULT_CPU, lambda cpu: math.ceil(float(cpu.value) * 1000)),
        "memory": ask(("memory",), DEFAULT_MEMORY, _bytes),
        "disk": ask(("disks", "disk"), DEFAULT_DISK, _disks),
        "gpu": ask(("gpuCount", "acceleratorCount", "gpu"), 0, _devices),
    }


def _image(
    runtime: Mapping[str, object], overrides: Mapping[str, Value.Base], scope: Scope, library: PlanLibrary
) -> Image:
    """The container image; the first one where there are several."""
    found = _first(runtime, overrides, ("container", "docker"), scope, library)
    if found is None:
        return Image()
    text, value = found
    if isinstance(value, Value.Array) and value.value:
        value = value.value[0]
    if isinstance(value, Value.String):
        return Image(value.value, text)
    return Image(None, text, tuple(sorted(reasons(value))))


def _first(
    runtime: Mapping[str, object],
    overrides: Mapping[str, Value.Base],
    keys: tuple[str, ...],
    scope: Scope,
    library: PlanLibrary,
) -> tuple[str, Value.Base] | None:
    for key in keys:
        if key in overrides:
            return f"from the inputs: {overrides[key]}", overrides[key]
        if key in runtime:
            expr = runtime[key]
            return shown(expr), evaluated(expr, scope, library).value  # type: ignore[arg-type]  # expressions, typed loosely here
    return None


def _amount(found: tuple[str, Value.Base] | None, default: int, read: Callable[[Value.Base], int]) -> Amount:
    if found is None or isinstance(found[1], Value.Null):
        return Amount(default)
    text, value = found
    hidden = reasons(value)
    if hidden:
        return Amount(None, text, tuple(sorted(hidden)), given=True)
    try:
        amount = read(value)
        if 0 <= amount <= MOST:
            return Amount(amount, text, given=True)
        why = f"{amount} is beyond what there can be"
    except (ValueError, TypeError, OverflowError, Error.RuntimeError) as error:
        why = f"{value} is no such amount ({error})"
    return Amount(None, text, (Until("error", why),), given=True)


def _bytes(value: Value.Base) -> int:
    if isinstance(value, Value.Int):
        return int(value.value)
    number, unit = _quantity(str(value.value))
    return math.ceil(number * (BYTE_UNITS[unit] if unit else 1))


def _quantity(text: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or (found[2] and found[2] not in BYTE_UNITS):
        raise ValueError("a number and a unit such as GiB are expected")
    return float(found[1]), found[2]


def _disks(value: Value.Base) -> int:
    """`local-disk 100 HDD`, `/mnt 50 SSD`, `100 GiB`, a number of GiB, and lists of these: their sum."""
    if isinstance(value, Value.Array):
        return sum(_disks(each) for each in value.value)
    if isinstance(value, Value.Int | Value.Float):
        gib: float = value.value
        return math.ceil(gib * (1 << 30))
    total = 0
    for disk in str(value.value).split(","):
        found = _NUMBER.search(disk)
        if found is None:
            raise ValueError("a size such as `local-disk 100 HDD` is expected")
        unit = found[2] if found[2] in BYTE_UNITS else "GiB"
        total += math.ceil(float(found[1]) * BYTE_UNITS[unit])
    return total


def _devices(value: Value.Base) -> int:
    if isinstance(value, Value.Boolean):
        return int(value.value)
    return int(str(value.value))


def _known_files(inputs: Mapping[str, Bound]) -> tuple[tuple[PlannedFile, ...], int]:
    """Files among a call's inputs that are known ahead, also those that differ between shards.

    Returns:
        The first `FILES` of them, each once, and how many more there are.
    """
    found: dict[PlannedFile, None] = {}
    for name, bound in inputs.items():
        waiting = deque([bound.value])
        while waiting:
            for each in parts(waiting.popleft()):
                if isinstance(each, Opaque):
                    waiting.extend(each.variants)
                elif isinstance(each, Value.File | Value.Directory):
                    found.setdefault(PlannedFile(name, each.value))
    listed = tuple(found)[:FILES]
    return listed, len(found) - len(listed)
