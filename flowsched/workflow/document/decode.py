"""A workflow document as a checked `WorkflowSpec`: every stage, the edges between them, or everything that is wrong at once.

    document (bytes) -> values -> each stage by itself -> stages against each other

What is too large is refused at once (413), what is no JSON too (400); everything else is collected (422). Nothing is expanded:
the cost follows the document's size, not the number of its tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Final

import msgspec

from flowsched.errors import InvalidDocument
from flowsched.values import replace
from flowsched.workflow.document import reader as names
from flowsched.workflow.document.container import read_call, read_container, step_role
from flowsched.workflow.document.limits import DEFAULT, Limits, exceeded
from flowsched.workflow.document.policies import read_policies, read_retry
from flowsched.workflow.document.reader import (
    Number,
    Reader,
    Section,
    encodable,
    read_document,
    shown,
    written,
)
from flowsched.workflow.document.stage import (
    REFERENCE_TEXT,
    TEMPLATE_KEYS,
    Given,
    Template,
    check_lists,
    divide,
    plain_role,
    read_inputs,
    read_min_resources,
    read_outputs,
    read_roles,
    read_rules,
    read_template,
    read_traffic,
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


def _overlap(paths: Sequence[tuple[str | None, str]]) -> bool:
    """Whether of these files and folders, each with the role that writes it, two are one, or one lies in another."""
    ordered = sorted(paths, key=lambda each: (each[0] or "", each[1]))
    return any(role == other and below.startswith(path) for (role, path), (other, below) in pairwise(ordered))


#: A width that could not be read; its document has faults.
_UNKNOWN: Final = -1


class StageDraft(msgspec.Struct):
    """A stage that was read by itself, and where its references stand."""

    spec: StageSpec
    path: str
    input_paths: Sequence[str]
    equals_paths: Sequence[str]
    claimed_name: str | None  #: also when it may not be a name


def link(drafts: Sequence[StageDraft], reader: Reader) -> tuple[StageSpec, ...]:
    """Check the stages against each other and give each its width.

    Args:
        drafts: The stages, in the order of the document.
        reader: Takes the faults.

    Returns:
        The stages, with the width and the items of those that inherit them.
    """
    linker = _Linker(drafts, reader)
    linker.check_references()
    linker.check_cycles()
    linker.resolve_widths()
    linker.check_conditions()
    linker.check_items()
    linker.check_sizes()
    return tuple(draft.spec for draft in drafts)


class _Linker:
    """One pass over all stages; a reference that is wrong makes one fault, and no others in its wake."""

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
    def check_references(self) -> None:
        edges = 0
        for number, draft in enumerate(self.drafts):
            spec, parents = draft.spec, self.parents[number]
            for i, name in enumerate(spec.needs):
                if name:
                    parents.add(self._parent(number, name, name, f"{draft.path}.needs[{i}]"))
            for path, given in zip(draft.input_paths, spec.inputs, strict=True):
                if given.stage is not None:
                    parents.add(self._producer(number, given.stage, given.output or "", f"{path}.from"))
            for path, (stage, output, _) in zip(draft.equals_paths, spec.when.equals, strict=True):
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
    def check_cycles(self) -> None:
        self.order = topological_order(self.parents)
        if len(self.order) == len(self.drafts):
            return
        for cycle in cycles(self.parents):
            stages = [self.drafts[number].spec.name for number in [*cycle, cycle[0]]]
            if len(stages) > 13:
                stages[6:-6] = [f"({len(stages) - 12} more)"]
            found = f"a cycle: {' → '.join(stages)}"
            self.reader.fault(self.drafts[cycle[0]].path, found, "stages that do not wait for themselves")

    # 3. Widths: those that are not said come from `index` inputs, parents first.
    def resolve_widths(self) -> None:
        for number in set(range(len(self.drafts))) - set(self.order):
            self.drafts[number].spec = replace(self.drafts[number].spec, width=_UNKNOWN)
        for number in self.order:
            draft = self.drafts[number]
            sources = [
                (path, given, self.drafts[self.numbers[given.stage]].spec)
                for path, given in zip(draft.input_paths, draft.spec.inputs, strict=True)
                if given.stage is not None and given.stage in self.numbers and given.match is not Match.ALL
            ]
            if not draft.spec.scattered and sources:
                self._inherit(draft, [s for s in sources if s[1].match is Match.INDEX])
            if draft.spec.items is not None:
                self.named[draft.spec.name] = draft.spec.items
            for path, given, parent in sources:
                if parent is not draft.spec:
                    self._check_match(path, given, parent, draft.spec)

    def _inherit(self, draft: StageDraft, sources: Sequence[tuple[str, InputSpec, StageSpec]]) -> None:
        if not sources:
            return
        width = next((parent.width for _, _, parent in sources if parent.width >= 0), _UNKNOWN)
        items = next((parent.items for _, _, parent in sources if parent.items is not None), None)
        scattered = any(parent.scattered for _, _, parent in sources)
        draft.spec = replace(draft.spec, width=width, items=items, scattered=scattered)

    def _check_match(self, path: str, given: InputSpec, parent: StageSpec, child: StageSpec) -> None:
        if _UNKNOWN in (parent.width, child.width):
            return
        found = f"{parent.name} with {parent.width:,} shards, {child.name} with {child.width:,}"
        if given.match is Match.INDEX and parent.width != child.width:
            self.reader.fault(f"{path}.match", found, "equal widths for index (or match: all, or chunk)")
        if given.match is Match.CHUNK and parent.width < child.width:
            self.reader.fault(f"{path}.match", found, "no more shards than there are items to divide")
        if given.match is Match.INDEX and parent.width == child.width:
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

    # 4. What a `when` asks for is recorded, and there is one of it.
    def check_conditions(self) -> None:
        for number, draft in enumerate(self.drafts):
            condition = draft.spec.when
            if condition.outcome is When.FAILURE and not self.parents[number] and not draft.spec.needs:
                expected = "needs or inputs of other stages beside it: nothing could fail before this stage"
                self.reader.fault(f"{draft.path}.when", '"failure"', expected)
            for path, (stage, output, _) in zip(draft.equals_paths, condition.equals, strict=True):
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
    def check_items(self) -> None:
        for draft in self.drafts:
            if draft.spec.width == _UNKNOWN:
                continue
            checked = False
            for path, given in zip(draft.input_paths, draft.spec.inputs, strict=True):
                if given.uri is None or "{item}" not in given.uri:
                    continue
                if draft.spec.items is None:
                    expected = "{index}, or scatter.items: this stage has no items"
                    self.reader.fault(f"{path}.uri", redacted(given.uri), expected)
                elif given.uri.startswith("{item}") and not checked:
                    checked = True
                    self._check_item_uris(f"{path}.uri", draft.spec.items)
            self._check_item_paths(draft)
            if draft.spec.container is not None:
                self._check_item_files(f"{draft.path}.files", draft.spec, draft.spec.container)

    def _check_item_files(self, at: str, spec: StageSpec, container: Container) -> None:
        """What a container task reads and writes outside: no two shards write one file."""
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
            if len(paths) > 1 and _overlap(paths):
                self.reader.fault(at, f"the item {shown(item)}", "an item that makes no two outputs one file")
                return

    def _check_item_uris(self, path: str, items: Sequence[str]) -> None:
        for item in items:
            wrong = wrong_uri(item)
            if wrong is not None:
                self.reader.fault(path, f"the item {redacted(item)}", wrong)
                return

    # 6. Sizes, now that widths are known.
    def check_sizes(self) -> None:
        total = 0
        for draft in self.drafts:
            tasks = max(draft.spec.tasks, 0)
            self.reader.count("tasks_per_stage", tasks, f"too many tasks at {draft.path}")
            total += tasks
        self.reader.count("tasks", total, "too many tasks in all")


# ---- decoding ----


_WORKFLOW_KEYS: Final[Mapping[str, str]] = {
    "name": "",
    "queue": "",
    "user": "",
    "priority": "",
    "labels": "",
    "stages": "",
    "call": "",
    "resume": "",
    "tasks": "stages",
    "tags": "labels",
    "defaults": "the same keys in each stage: there are no defaults",
}
STAGE_KEYS: Final[Mapping[str, str]] = {
    "name": "",
    "scatter": "",
    "inputs": "",
    "outputs": "",
    "needs": "",
    "estimate": "",
    "retry": "",
    "timeout": "",
    "policies": "",
    "when": "",
    "gang": "",
    "roles": "",
    "min_resources": "",
    "selector": "",
    "tolerations": "",
    "affinity": "",
    "anti_affinity": "",
    "topology": "",
    "io": "",
    "cache": "",
    "steps": "",
    "files": "",
    **TEMPLATE_KEYS,
    "depends_on": "needs",
    "dependsOn": "needs",
    "after": "needs",
    "replicas": "gang: true with roles: replicas belong to a role; independent copies are scatter.count",
    "nodeSelector": "selector",
    "queue": "queue beside the workflow's name: a workflow has one queue",
    "priority": "priority beside the workflow's name",
}
_SCATTER_KEYS: Final[Mapping[str, str]] = {"items": "", "count": ""}
_ESTIMATE_KEYS: Final[Mapping[str, str]] = {"runtime": "", "output": ""}
_WHEN_KEYS: Final[Mapping[str, str]] = {"outcome": "", "equals": ""}
_OUTCOMES: Final = {str(outcome): outcome for outcome in When}
_MOST: Final = (1 << 63) - 1
_PRIORITY: Final = 1_000_000_000
_DURATION_TEXT: Final = 'a duration, as "25m", "1h30m", "90s", "250ms", or seconds'


def decode_workflow(raw: bytes, limits: Limits = DEFAULT) -> WorkflowSpec:
    """Decode and check a document as it was sent.

    Args:
        raw: JSON, UTF-8.
        limits: What this installation accepts.

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
    section = reader.section(document, "$", _WORKFLOW_KEYS)
    if section is None:
        raise InvalidDocument(reader.faults)
    name = _printable(section, "name", required=True)
    user = _printable(section, "user")
    resume = _printable(section, "resume")
    queue = section.text("queue", names.PART, names.PART_TEXT)
    priority = section.whole("priority", -_PRIORITY, _PRIORITY)
    labels = section.texts("labels", "labels", _wrong_workflow_label)
    call = read_call(section)
    entries = section.array("stages", empty=False)
    if "stages" not in section:
        section.fault("stages", "an array of stages")
    reader.count("stages", len(entries or ()), "too many stages")
    drafts = [
        draft
        for number, entry in enumerate(entries or ())
        if (draft := _stage(reader, entry, f"$.stages[{number}]")) is not None
    ]
    stages = link(drafts, reader)
    reader.finish()
    return WorkflowSpec(name, stages, queue or "default", priority or 0, labels, call, user, resume)


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


def _printable(section: Section, key: str, *, required: bool = False) -> str:
    expected = "1-128 printable characters"
    text = section.text(key, expected=expected, required=required)
    if text is not None and not (1 <= len(text) <= 128 and text.isprintable() and text.strip()):
        section.fault(key, expected)
    return text or ""


def _wrong_workflow_label(name: str) -> str | None:
    if 1 <= len(name) <= 256 and name.isprintable():
        return None
    return "a label's name of 1-256 printable characters"


def _stage(reader: Reader, entry: object, path: str) -> StageDraft | None:
    section = reader.section(entry, path, STAGE_KEYS)
    if section is None:
        return None
    name = section.text("name", names.STAGE, names.STAGE_TEXT, required=True)
    gang = section.flag("gang")
    roles = _roles(section, read_template(section), gang=gang)
    width, items = _scatter(section)
    inputs = read_inputs(section)
    found = read_container(section)
    if found is not None:
        inputs = found.inputs
        roles = tuple(step_role(role, found.container) for role in roles)
    check_lists(section, roles, found.container if found is not None else None)
    condition, places = _when(section)
    traffic = read_traffic(section)
    spec = StageSpec(
        name=name or "",
        width=1 if width is None else width,
        items=items,
        scattered="scatter" in section,
        gang=gang,
        roles=roles,
        inputs=tuple(given.spec for given in inputs),
        outputs=tuple(read_outputs(section, roles)),
        needs=_needs(section),
        estimate=_estimate(section),
        retry=read_retry(section),
        timeout_ms=_timeout(section),
        policies=read_policies(section, gang=gang),
        when=condition,
        rules=read_rules(section),
        io_read_bytes=traffic.read_bytes,
        io_write_bytes=traffic.write_bytes,
        io_read_rate=traffic.read_rate,
        io_write_rate=traffic.write_rate,
        io_storage=traffic.storage,
        min_resources=read_min_resources(section),
        cache=section.flag("cache"),
        container=found.container if found is not None else None,
    )
    return StageDraft(spec, path, _paths(inputs), places, _claimed_name(section))


def _paths(inputs: Sequence[Given]) -> list[str]:
    return [given.path for given in inputs]


def _claimed_name(section: Section) -> str | None:
    """The name as it stands there, valid or not: stages that use it shall not be called wrong for it."""
    name = section.values.get("name")
    return name if isinstance(name, str) else None


def _roles(section: Section, template: Template, *, gang: bool) -> tuple[RoleSpec, ...]:
    if "roles" not in section:
        return (plain_role(section, template),)
    if not gang:
        section.fault("roles", 'roles only beside "gang": true: members of a gang start together')
    return read_roles(section, template)


def _scatter(section: Section) -> tuple[int | None, tuple[str, ...] | None]:
    """(width, items)."""
    if "scatter" not in section:
        return None, None
    scatter = section.section("scatter", _SCATTER_KEYS)
    if scatter is None:
        return _UNKNOWN, None
    if ("items" in scatter) == ("count" in scatter):
        found = "items and count" if "items" in scatter else "neither items nor count"
        scatter.reader.fault(scatter.path, found, "exactly one of items and count")
        return _UNKNOWN, None
    if "count" in scatter:
        count = scatter.size("count", "tasks_per_stage", least=0)
        return _UNKNOWN if count is None else count, None
    items = _items(scatter)
    return _UNKNOWN if items is None else len(items), items


def _items(scatter: Section) -> tuple[str, ...] | None:
    """The items as texts. Long lists are checked as one text: a million of them in some 50 ms."""
    reader, path = scatter.reader, scatter.at("items")
    found = scatter.array("items")
    if found is None:
        return None
    reader.count("tasks_per_stage", len(found), f"too many items at {path}")
    if set(map(type, found)) <= {str, int} and all(-_MOST <= i <= _MOST for i in found if type(i) is int):
        items = tuple(map(str, found))
    else:
        looked_at = takewhile(lambda _: not reader.full, enumerate(found))
        items = tuple(_item(reader, item, path, i) for i, item in looked_at)
        reader.skip(len(found) - len(items))
    joined = "".join(items)
    size = len(joined) if joined.isascii() else len(joined.encode("utf-8", "surrogatepass"))
    if size > reader.limits.items_bytes:
        exceeded("items_bytes", reader.limits.items_bytes, f"the items at {path} are too large (bytes)", size)
    longest = max(map(len, items), default=0)
    if longest > reader.limits.string_bytes // 4 or "\0" in joined or not encodable(joined):
        for i, item in enumerate(items):
            reader.text(item, f"{path}[{i}]")
    return items


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


def _needs(section: Section) -> tuple[str, ...]:
    """Names of stages; which exist is seen when all are known. A wrong type is an empty name."""
    found = section.array("needs") or ()
    section.reader.count("needs", len(found), f"too many needs at {section.path}")
    names_of_stages = []
    for i, value in enumerate(found):
        path = f"{section.path}.needs[{i}]"
        name = section.reader.text(value, path, "the name of a stage")
        if name == "":
            section.reader.fault(path, '""', "the name of a stage")
        names_of_stages.append(name or "")
    return tuple(names_of_stages)


def _estimate(section: Section) -> Estimate:
    entry = section.section("estimate", _ESTIMATE_KEYS)
    if entry is None:
        return Estimate()
    return Estimate(
        entry.amount("runtime", parse_duration, _DURATION_TEXT),
        entry.amount("output", parse_bytes, 'bytes, as "9Gi"'),
    )


def _timeout(section: Section) -> int | None:
    timeout_ms = section.amount("timeout", parse_duration, _DURATION_TEXT)
    if timeout_ms == 0:
        section.fault("timeout", "more than nothing (leave it out for no limit)")
    return timeout_ms


def _when(section: Section) -> tuple[Condition, list[str]]:
    """The condition, and where each part of `equals` stands."""
    if not isinstance(section.values.get("when"), Mapping):
        return Condition(section.choice("when", _OUTCOMES) or When.SUCCESS), []
    entry = section.section("when", _WHEN_KEYS)
    if entry is None:
        return Condition(), []
    outcome = entry.choice("outcome", _OUTCOMES) or When.SUCCESS
    equals = entry.reader.mapping(entry.values.get("equals", {}), entry.at("equals")) or {}
    entry.reader.count("labels", len(equals), f"too many conditions at {entry.path}")
    parts: list[tuple[str, str, tuple[str, ...]]] = []
    places: list[str] = []
    inner = Section(entry.reader, equals, entry.at("equals"))
    for key in equals:
        text = entry.reader.text(key, inner.at(key))
        reference = divide(text or "")
        texts = _texts(inner, key)
        if text is not None and reference is None:
            entry.reader.fault(inner.at(key), f"the key {shown(key)}", REFERENCE_TEXT)
        if reference is not None:
            parts.append((*reference, texts))
            places.append(inner.at(key))
    return Condition(outcome, tuple(parts)), places


def _texts(section: Section, key: str) -> tuple[str, ...]:
    """One text or several."""
    value = section.values[key]
    expected = "the text an output must have, or an array of texts"
    if isinstance(written(value), str):
        return (section.reader.free_text(value, section.at(key), expected) or "",)
    found = section.array(key, empty=False) if isinstance(value, list | tuple) else None
    if found is None:
        if not isinstance(value, list | tuple):
            section.fault(key, expected)
        return ()
    section.reader.count("labels", len(found), f"too many texts at {section.at(key)}")
    path = section.at(key)
    return tuple(section.reader.free_text(t, f"{path}[{i}]", expected) or "" for i, t in enumerate(found))
