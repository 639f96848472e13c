"""A workflow document as a checked `WorkflowSpec`: every stage, the edges between them, or everything that is wrong at once.

    document (bytes) -> values -> each stage by itself -> stages against each other

A document that is too large is refused at once (413), one that is no JSON too (400); all other faults are collected (422).
Nothing is expanded: the cost follows the document's size, not the number of its tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from types import MappingProxyType
from typing import Any, Final

import msgspec

from flowsched.errors import InvalidDocument
from flowsched.values import replace
from flowsched.workflow.document import keys
from flowsched.workflow.document import reader as names
from flowsched.workflow.document.container import (
    CALL,
    FILES,
    STEP,
    make_call,
    make_container,
    step_role,
)
from flowsched.workflow.document.keys import Form, Key, Section, Table
from flowsched.workflow.document.limits import DEFAULT, Limits
from flowsched.workflow.document.policies import POLICY, RETRY, make_policies, make_retry
from flowsched.workflow.document.reader import (
    Number,
    Reader,
    child,
    encodable,
    read_document,
    shown,
    written,
)
from flowsched.workflow.document.stage import (
    INPUT,
    IO,
    OUTPUT,
    PLACING,
    REFERENCE,
    RESOURCES,
    ROLE,
    TEMPLATE,
    TEMPLATE_ELSEWHERE,
    Template,
    check_lists,
    make_fit,
    make_inputs,
    make_min_resources,
    make_outputs,
    make_roles,
    make_rules,
    make_template,
    make_traffic,
    plain_role,
)
from flowsched.workflow.document.uris import CONTROL, redacted, wrong_uri
from flowsched.workflow.graph import cycles, topological_order
from flowsched.workflow.resources import parse_bytes, parse_duration
from flowsched.workflow.spec import (
    Condition,
    Container,
    Estimate,
    InputSpec,
    Match,
    RoleSpec,
    StageSpec,
    When,
    WorkflowSpec,
    filled,
)

#: A width that could not be read; its document has faults.
_UNKNOWN: Final = -1


class StageDraft(msgspec.Struct):
    """A stage that was read by itself, and where its references stand."""

    spec: StageSpec
    path: str
    input_paths: Sequence[str]
    claimed_name: str | None  #: also when it may not be a name

    def equals(self) -> Iterator[tuple[str, str, str]]:
        """Where each value that its `when` asks for is named, the stage and the output."""
        for stage, output, _ in self.spec.when.equals:
            yield child(f"{self.path}.when.equals", f"{stage}.{output}"), stage, output


class _Linker:
    """The stages against each other; a reference that is wrong makes one fault, and no others in its wake."""

    def __init__(self, drafts: Sequence[StageDraft], reader: Reader) -> None:
        self.drafts = drafts
        self.reader = reader
        self.numbers = self._numbers()
        self.outputs: list[dict[str, bool]] = [{o.name: o.value for o in d.spec.outputs} for d in drafts]
        self.parents: list[set[int]] = [set() for _ in drafts]
        self.named: dict[
            str, tuple[str, ...]
        ] = {}  #: stage -> its items; of one without, those of what it reads by position
        self.order: tuple[int, ...] = ()

    def link(self) -> tuple[StageSpec, ...]:
        """The stages, with the width and the items of those that inherit them; faults are noted."""
        self._check_references()
        self._check_cycles()
        self._resolve_widths()
        self._check_conditions()
        self._check_items()
        self._check_sizes()
        return tuple(draft.spec for draft in self.drafts)

    def _numbers(self) -> Mapping[str, int]:
        numbers: dict[str, int] = {}
        for number, draft in enumerate(self.drafts):
            if draft.claimed_name is None:
                continue
            first = numbers.setdefault(draft.claimed_name, number)
            if first != number:
                expected = f"a name of its own: {self.drafts[first].path} has this one"
                self.reader.fault(f"{draft.path}.name", shown(draft.claimed_name), expected)
        return numbers

    # 1. Every name that is used exists, and no stage waits for itself.
    def _check_references(self) -> None:
        edges = 0
        for number, draft in enumerate(self.drafts):
            spec, parents = draft.spec, self.parents[number]
            for i, name in enumerate(spec.needs):
                if name:
                    parents.add(self._parent(number, name, name, f"{draft.path}.needs[{i}]"))
            for path, source in zip(draft.input_paths, spec.inputs, strict=True):
                if source.stage is not None:
                    parents.add(self._producer(number, source.stage, source.output or "", f"{path}.from"))
            for path, stage, output in draft.equals():
                parents.add(self._producer(number, stage, output, path))
            parents.discard(-1)
            edges += len(parents)
            self.reader.count("edges", edges, "too many edges between stages")

    def _parent(self, number: int, name: str, found: str, path: str) -> int:
        """The number of a stage that is waited for; -1 and a fault, which shows `found`, if there is none."""
        parent = self.numbers.get(name)
        if parent is None:
            self.reader.fault(path, shown(found), self._hint("the name of a stage", name, self.numbers))
            return -1
        if parent == number:
            self.reader.fault(path, shown(found), "another stage: this one would wait for itself")
            return -1
        return parent

    def _producer(self, number: int, stage: str, output: str, path: str) -> int:
        """The number of the stage that writes an output; -1 if no such stage can be waited for."""
        known = self._parent(number, stage, f"{stage}.{output}", path)
        if known < 0 or output in self.outputs[known]:
            return known
        expected = self._hint(f"an output of {shown(stage)}", output, self.outputs[known])
        if not self.outputs[known]:
            expected = f"an output of {shown(stage)}, which has none (needs is for order alone)"
        self.reader.fault(path, shown(f"{stage}.{output}"), expected)
        return known

    def _hint(self, expected: str, word: str, known: Collection[str]) -> str:
        close = self.reader.meant(word, known)
        if close:
            return f"{expected}: did you mean {close!r}?"
        return f"{expected}: {', '.join(map(shown, known))}" if len(known) <= 8 else expected

    # 2. No cycles.
    def _check_cycles(self) -> None:
        self.order = topological_order(self.parents)
        if len(self.order) == len(self.drafts):
            return
        for cycle in cycles(self.parents):
            stages = [self.drafts[number].spec.name for number in [*cycle, cycle[0]]]
            if len(stages) > 13:
                stages[6:-6] = [f"({len(stages) - 12} more)"]
            found = f"a cycle: {' → '.join(stages)}"
            self.reader.fault(self.drafts[cycle[0]].path, found, "stages that do not wait for themselves")

    # 3. Widths: a stage without `scatter` inherits its width from `index` inputs, parents first.
    def _resolve_widths(self) -> None:
        for number in set(range(len(self.drafts))) - set(self.order):
            self.drafts[number].spec = replace(self.drafts[number].spec, width=_UNKNOWN)
        for number in self.order:
            draft = self.drafts[number]
            sources = [
                (path, source, self.drafts[self.numbers[source.stage]].spec)
                for path, source in zip(draft.input_paths, draft.spec.inputs, strict=True)
                if source.stage is not None and source.stage in self.numbers and source.match is not Match.ALL
            ]
            if not draft.spec.scattered and sources:
                self._inherit(draft, [s for s in sources if s[1].match is Match.INDEX])
            if draft.spec.items is not None:
                self.named[draft.spec.name] = draft.spec.items
            for path, source, parent in sources:
                if parent is not draft.spec:
                    self._check_match(path, source, parent, draft.spec)

    def _inherit(self, draft: StageDraft, sources: Sequence[tuple[str, InputSpec, StageSpec]]) -> None:
        if not sources:
            return
        width = next((parent.width for _, _, parent in sources if parent.width >= 0), _UNKNOWN)
        items = next((parent.items for _, _, parent in sources if parent.items is not None), None)
        scattered = any(parent.scattered for _, _, parent in sources)
        draft.spec = replace(draft.spec, width=width, items=items, scattered=scattered)

    def _check_match(self, path: str, source: InputSpec, parent: StageSpec, child: StageSpec) -> None:
        if _UNKNOWN in (parent.width, child.width):
            return
        found = f"{parent.name} with {parent.width:,} shards, {child.name} with {child.width:,}"
        if source.match is Match.INDEX and parent.width != child.width:
            self.reader.fault(f"{path}.match", found, "equal widths for index (or match: all, or chunk)")
        if source.match is Match.CHUNK and parent.width < child.width:
            self.reader.fault(f"{path}.match", found, "no more shards than there are items to divide")
        if source.match is Match.INDEX and parent.width == child.width:
            self._check_names(f"{path}.match", parent.name, child.name)

    def _check_names(self, path: str, parent: str, child: str) -> None:
        """Shards that meet one by one have the same items in the same order, also through stages that have none."""
        theirs = self.named.get(parent)
        if theirs is None:
            return
        ours = self.named.setdefault(child, theirs)
        if ours == theirs:
            return
        at = next(at for at, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1])
        self.reader.fault(
            path,
            f"at position {at} the item {shown(theirs[at])} of {parent} beside {shown(ours[at])} of {child}",
            f"the same items in the same order (without scatter, {child} has those of {parent}), or match: chunk, which "
            "pairs by position whatever the items are",
        )

    # 4. The output that a `when` compares is recorded, and it is one value.
    def _check_conditions(self) -> None:
        for number, draft in enumerate(self.drafts):
            condition = draft.spec.when
            if condition.outcome is When.FAILURE and not self.parents[number] and not draft.spec.needs:
                expected = "needs or inputs of other stages beside it: nothing could fail before this stage"
                self.reader.fault(f"{draft.path}.when", '"failure"', expected)
            for path, stage, output in draft.equals():
                producer = self.numbers.get(stage)
                if producer is None or output not in self.outputs[producer]:
                    continue
                if not self.outputs[producer][output]:
                    self.reader.fault(
                        path, f"the key {shown(f'{stage}.{output}')}", 'an output with "value": true'
                    )
                width = self.drafts[producer].spec.width
                if width > 1:
                    found = f"{shown(stage)} with {width:,} shards"
                    self.reader.fault(path, found, "a stage with one shard: one value")

    # 5. {item} stands only where there are items; items that are whole uris, or names of files, are good ones.
    def _check_items(self) -> None:
        for draft in self.drafts:
            if draft.spec.width == _UNKNOWN:
                continue
            checked = False
            for path, source in zip(draft.input_paths, draft.spec.inputs, strict=True):
                if source.uri is None or "{item}" not in source.uri:
                    continue
                if draft.spec.items is None:
                    expected = "{index}, or scatter.items: this stage has no items"
                    self.reader.fault(f"{path}.uri", redacted(source.uri), expected)
                elif source.uri.startswith("{item}") and not checked:
                    checked = True
                    self._check_item_uris(f"{path}.uri", draft.spec.items)
            self._check_item_paths(draft)
            if draft.spec.container is not None:
                self._check_item_files(f"{draft.path}.files", draft.spec, draft.spec.container)

    def _check_item_files(self, at: str, spec: StageSpec, container: Container) -> None:
        """Check the outside files of a container task: no two shards write one file."""
        sources = [placed.source for placed in container.inputs if placed.source is not None]
        templates = [*sources, *(output.uri for output in container.outputs)]
        named = next((uri for uri in templates if "{item}" in uri), None)
        if named is not None and spec.items is None:
            self.reader.fault(at, shown(named), "{index}, or scatter.items: this stage has no items")
            return
        different = spec.items is not None and len(set(spec.items)) == spec.width
        for output in container.outputs if spec.width > 1 else ():
            alone = "{index}" in output.uri or ("{item}" in output.uri and different)
            if not alone and not output.directory and output.path_prefix is None:
                found = f"{shown(output.uri)} of {spec.width:,} shards"
                self.reader.fault(
                    f"{at}.outputs", found, "{index}, or {item} where no item is there twice, in it"
                )

    def _check_item_paths(self, draft: StageDraft) -> None:
        spec = draft.spec
        named = [output for output in spec.outputs if "{item}" in output.path]
        if not named:
            return
        at = f"{draft.path}.outputs"
        if spec.items is None:
            self.reader.fault(at, shown(named[0].path), "{index}, or scatter.items: this stage has no items")
            return
        for shard, item in enumerate(spec.items):
            if item in ("", ".", "..") or "/" in item or CONTROL.search(item) or len(item.encode()) > 128:
                expected = f"the name of a file, of at most 128 bytes: the path {named[0].path} is made of it"
                self.reader.fault(at, f"the item {redacted(item)}", expected)
                return
            paths = [(output.role, filled(output.path, spec, shard) + "/") for output in spec.outputs]
            paths.sort(key=lambda each: (each[0] or "", each[1]))
            if any(
                one == other and below.startswith(path) for (one, path), (other, below) in pairwise(paths)
            ):
                self.reader.fault(at, f"the item {shown(item)}", "an item that makes no two outputs one file")
                return

    def _check_item_uris(self, path: str, items: Sequence[str]) -> None:
        for item in items:
            wrong = wrong_uri(item)
            if wrong is not None:
                self.reader.fault(path, f"the item {redacted(item)}", wrong)
                return

    # 6. Sizes, now that widths are known.
    def _check_sizes(self) -> None:
        total = 0
        for draft in self.drafts:
            tasks = max(draft.spec.tasks, 0)
            self.reader.count("tasks_per_stage", tasks, f"too many tasks at {draft.path}")
            total += tasks
        self.reader.count("tasks", total, "too many tasks in all")


# ---- decoding ----


_MOST: Final = (1 << 63) - 1
_DURATION: Final = keys.amount(
    parse_duration, 'a duration, as "25m", "1h30m", "90s", "250ms", or seconds', "duration"
)


def _read_items(section: Section, key: Any) -> tuple[str, ...] | None:
    """The items of a scatter, as texts. Long lists are checked as one text: a million of them in some 50 ms."""
    reader, path = section.reader, section.at(key)
    found = reader.array(section.values[key], path)
    if found is None:
        return None
    reader.count("tasks_per_stage", len(found), f"too many items at {path}")
    if set(map(type, found)) <= {str, int} and all(-_MOST <= i <= _MOST for i in found if type(i) is int):
        items = tuple(map(str, found))
    else:
        checked = takewhile(lambda _: not reader.full, enumerate(found))
        items = tuple(_item(reader, item, path, i) for i, item in checked)
        reader.skip(len(found) - len(items))
    joined = "".join(items)
    size = len(joined) if joined.isascii() else len(joined.encode("utf-8", "surrogatepass"))
    reader.count("items_bytes", size, f"the items at {path} are too large (bytes)")
    longest = max(map(len, items), default=0)
    if longest > reader.limits.string_bytes // 4 or "\0" in joined or not encodable(joined):
        for i, item in enumerate(items):
            reader.text(item, f"{path}[{i}]")
    return items


def _read_texts(section: Section, key: Any) -> tuple[str, ...]:
    """One text or several."""
    several = isinstance(section.values[key], list | tuple)
    found = _TEXTS.read(section, key) if several else [_TEXT.read(section, key)]
    return tuple(text or "" for text in found or ())


def _read_when(section: Section, key: Any) -> Any:
    """The `Section` of an object, or an outcome."""
    return (_WHEN if isinstance(section.values[key], Mapping) else _OUTCOME).read(section, key)


_OUTCOME: Final = keys.choice(When)
_TEXT: Final = keys.text(Form("the text an output must have, or an array of texts"), free=True)
_TEXTS: Final = keys.list_of(_TEXT, "labels", 1)
_WHEN: Final = Table(
    "Outcome and values.",
    {
        "outcome": Key(_OUTCOME, "Of the stages it waits for", default="success"),
        "equals": Key(
            keys.map_of(
                keys.Kind(_read_texts, {"anyOf": [_TEXT.schema, _TEXTS.schema]}), "labels", REFERENCE
            ),
            '`"stage.output"`: the text, or texts, that the recorded value must be',
        ),
    },
)
_STAGE: Final = Form(names.STAGE_TEXT, names.STAGE)
_STAGE_NAME: Final = keys.text(Form("the name of a stage", least=1))
_PRINTABLE: Final = "1-128 printable characters"
_CALLED: Final = keys.text(
    Form(
        _PRINTABLE,
        least=1,
        most=128,
        wrong=lambda text: None if text.isprintable() and text.strip() else _PRINTABLE,
    )
)
_LABEL: Final = "a label's name of 1-256 printable characters"
_ITEMS: Final = keys.Kind(_read_items, keys.list_of(keys.text(free=True), "tasks_per_stage").schema)
STAGE: Final = Table(
    "A node of the DAG.",
    {
        "name": Key(keys.text(_STAGE), "Unique in the workflow", required=names.STAGE_TEXT),
        "scatter": Key(
            Table(
                "One task (or gang) for each item.",
                {
                    "items": Key(_ITEMS, "One shard for each"),
                    "count": Key(keys.number(0, "tasks_per_stage"), "So many shards"),
                },
                rules={"oneOf": [{"required": ["items"]}, {"required": ["count"]}]},
            ),
            "One *shard* for each of `items`, or `count` of them. Items are texts or numbers. Without items (`[]`, 0) the stage "
            "succeeds and runs nothing",
            otherwise="one task",
        ),
        "inputs": Key(keys.list_of(INPUT, "inputs"), "[What it reads](#inputs)"),
        "outputs": Key(keys.list_of(OUTPUT, "outputs"), "[What it writes](#outputs)"),
        "needs": Key(
            keys.list_of(_STAGE_NAME, "needs"), "Stages that must end first, though nothing is read from them"
        ),
        "estimate": Key(
            Table(
                "The expected runtime and output of one task.",
                {
                    "runtime": Key(_DURATION, "How long it runs"),
                    "output": Key(keys.amount(parse_bytes, 'bytes, as "9Gi"'), "How many bytes it writes"),
                },
            ),
            "The expected runtime and output of one task; the scheduler plans with it until it has measured tasks of this stage",
            otherwise="learned",
        ),
        "retry": Key(
            RETRY,
            "How often one task is tried in all (1-100), and by how much its memory grows (1-10) after it ran out of memory "
            "([retries](#retries))",
            otherwise="1 and 1",
        ),
        "timeout": Key(_DURATION, "An attempt that runs longer is ended and has failed"),
        "policies": Key(
            keys.list_of(POLICY, "labels"), "[What happens on events](#policies)", otherwise="see there"
        ),
        "when": Key(
            keys.Kind(_read_when, {"anyOf": [_OUTCOME.schema, _WHEN.schema]}),
            "[Whether it runs at all](#conditions)",
            otherwise='`"success"`',
        ),
        "gang": Key(keys.FLAG, "[Members that start together](#gangs)", default=False),
        "roles": Key(
            keys.map_of(ROLE, "roles", _STAGE, least=1, word="role"),
            "[The members of a gang](#gangs), by role",
        ),
        "min_resources": Key(
            RESOURCES,
            "Room that must be free before it starts, for pods that it will ask for itself (as a Spark driver does)",
        ),
        **PLACING,
        "io": Key(
            IO,
            'The bytes that one pod reads from and writes to its node\'s disk beside its inputs: in all (`"3Gi"`) or a rate '
            '(`"200Mi/s"`); with `storage` to that shared storage instead, which the profile names in `storages` '
            "([budgets](locality.md#shared-storages))",
        ),
        "cache": Key(
            keys.FLAG,
            "A task that has run before, in any run of the tenant, is not run again: [resume](resume.md)",
            default=False,
        ),
        "fit_memory": Key(
            keys.FLAG,
            "A first attempt gets the memory that tasks of its kind have used, with a margin, and never more than `resources` say: "
            "[memory that fits](#memory-that-fits)",
            otherwise="as the queue's profile says; false for a command that is told its memory",
        ),
        "steps": Key(
            keys.list_of(STEP, "roles", 1),
            "[Programs in containers, one after the other](#steps), in place of `command`",
        ),
        "files": Key(FILES, "[The files of steps](#steps)"),
        **TEMPLATE,
    },
    elsewhere={
        **TEMPLATE_ELSEWHERE,
        "depends_on": "needs",
        "dependsOn": "needs",
        "after": "needs",
        "replicas": "gang: true with roles: replicas belong to a role; independent copies are scatter.count",
        "nodeSelector": "selector",
        "queue": "queue beside the workflow's name: a workflow has one queue",
        "priority": "priority beside the workflow's name",
    },
    rules={
        "anyOf": [{"required": ["command"]}, {"required": ["roles"]}, {"required": ["steps"]}],
        "dependentSchemas": {
            "roles": {"required": ["gang"], "properties": {"gang": {"const": True}}},
            "steps": {"properties": dict.fromkeys(("command", "inputs", "outputs", "container"), False)},
            "files": {"required": ["steps"]},
        },
    },
    name="stage",
)
WORKFLOW: Final = Table(
    "A DAG of stages.",
    {
        "name": Key(_CALLED, "A name for people; it need not be unique", required=_PRINTABLE),
        "queue": Key(
            keys.text(Form(names.PART_TEXT, names.PART)), "It uses the share of this queue", default="default"
        ),
        "user": Key(
            _CALLED,
            "The user that submits it. The users of a queue [share it fairly](queues.md#users); workflows without `user` count "
            "as one user",
        ),
        "priority": Key(
            keys.number(-1_000_000_000, 1_000_000_000),
            "Higher goes first within its queue, and may take the room of lower ones ([preemption](preemption.md))",
            default=0,
        ),
        "labels": Key(
            keys.map_of(
                keys.text(free=True),
                "labels",
                Form(_LABEL, least=1, most=256, wrong=lambda text: None if text.isprintable() else _LABEL),
            ),
            "Anything to find it by",
        ),
        "stages": Key(
            keys.list_of(STAGE, "stages", 1), "At least one, in any order", required="an array of stages"
        ),
        "call": Key(
            CALL, "The larger run, of an engine of its own, that this workflow is [one call of](#calls)"
        ),
        "kind": Key(
            _CALLED,
            "Runtimes are [learned](estimates.md#kinds) under it: workflows of one `kind` do the same work. Without it, `name`",
        ),
        "resume": Key(
            _CALLED,
            "Id of an ended run: tasks that are the same as there are not run again: [resume](resume.md)",
        ),
    },
    elsewhere={
        "tasks": "stages",
        "tags": "labels",
        "defaults": "the same keys in each stage: there are no defaults",
    },
)


def decode_workflow(raw: bytes, limits: Limits = DEFAULT) -> WorkflowSpec:
    """Decode and check a document as it was sent.

    Args:
        raw: JSON, UTF-8.
        limits: The limits of this installation.

    Raises:
        InvalidRequest: The bytes are no JSON, or JSON that two readers would understand differently.
        TooLarge: A limit is exceeded; the message names it.
        InvalidDocument: It has faults; all of them are in it.
    """
    return check_workflow(read_document(raw, limits, Number), limits)


def check_workflow(document: object, limits: Limits = DEFAULT) -> WorkflowSpec:
    """Check a document that is already made of Python values: mappings, lists or tuples, texts, numbers.

    Raises:
        TooLarge: A limit is exceeded; the message names it.
        InvalidDocument: It has faults; all of them are in it.
    """
    reader = Reader(limits)
    _refuse_stage(reader, document)
    section = WORKFLOW.open(reader, document, "$")
    if section is None:
        raise InvalidDocument(reader.faults)
    drafts = [_stage(entry) for entry in section["stages"] or () if entry is not None]
    stages = _Linker(drafts, reader).link()
    call = make_call(section["call"])
    reader.finish()
    return WorkflowSpec(
        section["name"],
        stages,
        section["queue"],
        section["priority"],
        MappingProxyType(section["labels"] or {}),
        call,
        section["user"] or "",
        section["resume"] or "",
        section["kind"] or "",
    )


def _refuse_stage(reader: Reader, document: object) -> None:
    """Say of a stage that stands alone that it is one, and nothing else.

    Raises:
        InvalidDocument: The document is a stage.
    """
    if isinstance(document, Mapping) and "stages" not in document:
        found = [key for key in ("command", "roles", "gang", "scatter") if key in document]
        if found:
            keys = ", ".join(map(shown, found))
            reader.fault(
                "$", f"a stage ({keys}) in place of a workflow", 'it in a list: {"name": …, "stages": [{…}]}'
            )
            reader.finish()


def _stage(section: Section) -> StageDraft:
    gang = section["gang"]
    roles = _roles(section, make_template(section), gang=gang)
    width, items = _scatter(section)
    inputs = make_inputs(section)
    found = make_container(section)
    if found is not None:
        inputs = found.inputs
        roles = tuple(step_role(role, found.container) for role in roles)
    container = found.container if found is not None else None
    check_lists(section, roles, container)
    estimate = section["estimate"]
    if section["timeout"] == 0:
        section.fault("timeout", "more than nothing (leave it out for no limit)")
    name = section.values.get("name")
    spec = StageSpec(
        name=section["name"] or "",
        width=1 if width is None else width,
        items=items,
        scattered="scatter" in section,
        gang=gang,
        roles=roles,
        inputs=tuple(each.spec for each in inputs),
        outputs=tuple(make_outputs(section, roles)),
        needs=tuple(name or "" for name in section["needs"] or ()),
        estimate=Estimate() if estimate is None else Estimate(estimate["runtime"], estimate["output"]),
        retry=make_retry(section["retry"]),
        timeout_ms=section["timeout"],
        policies=make_policies(section["policies"] or (), gang=gang),
        when=_condition(section["when"]),
        rules=make_rules(section),
        io=make_traffic(section["io"]),
        min_resources=make_min_resources(section),
        cache=section["cache"],
        container=container,
        fit_memory=make_fit(section, roles, container, gang=gang),
    )
    # A name that may not be one is claimed too: stages that use it shall not be called wrong for it.
    claimed = name if isinstance(name, str) else None
    return StageDraft(spec, section.path, [each.path for each in inputs], claimed)


def _roles(section: Section, template: Template, *, gang: bool) -> tuple[RoleSpec, ...]:
    if "roles" not in section:
        return (plain_role(section, template),)
    if not gang:
        section.fault("roles", 'roles only beside "gang": true: members of a gang start together')
    return make_roles(section, template)


def _scatter(section: Section) -> tuple[int | None, tuple[str, ...] | None]:
    """(width, items)."""
    if "scatter" not in section:
        return None, None
    scatter = section["scatter"]
    if scatter is None:
        return _UNKNOWN, None
    if ("items" in scatter) == ("count" in scatter):
        found = "items and count" if "items" in scatter else "neither items nor count"
        scatter.reader.fault(scatter.path, found, "exactly one of items and count")
        return _UNKNOWN, None
    width, items = scatter["count"], scatter["items"]
    if items is not None:
        return len(items), items
    return _UNKNOWN if width is None else width, None


def _item(reader: Reader, item: object, path: str, place: int) -> str:
    """An item as text: numbers as they are written."""
    text = written(item)
    if isinstance(text, str) and not (isinstance(item, int) and abs(item) > _MOST):
        return text
    expected = "text or a number"
    if item is None or isinstance(item, bool):
        expected = f'{expected} (in quotes: "{shown(item)}")'
    elif isinstance(text, str):
        expected = "a whole number of at most 63 bits, or text"
    elif isinstance(item, dict | list):
        expected = "text or a number; several values are one text of JSON (Python: json.dumps(item)), which the task reads"
    reader.fault(f"{path}[{place}]", shown(item), expected)
    return ""


def _condition(entry: Section | When | None) -> Condition:
    if not isinstance(entry, Section):
        return Condition(entry or When.SUCCESS)
    equals = entry["equals"] or {}
    return Condition(entry["outcome"], tuple((*key.split(".", 1), texts) for key, texts in equals.items()))
