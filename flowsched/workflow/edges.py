"""Stages against each other: names, references, cycles, widths, and what a `when` may ask for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from flowsched.workflow.data import redacted, wrong_uri
from flowsched.workflow.graph import cycles, topological_order
from flowsched.workflow.reader import Reader, shown
from flowsched.workflow.spec import InputSpec, Match, StageSpec, When


@dataclass(slots=True)
class StageDraft:
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

    # 1. Every name that is used exists, and nobody waits for itself.
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
        """The number of a stage whose output is used."""
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

    # 3. Widths: those that are not said come from `index` inputs, parents first. 0 is a width nobody knows.
    def resolve_widths(self) -> None:
        for number in set(range(len(self.drafts))) - set(self.order):
            self.drafts[number].spec = replace(self.drafts[number].spec, width=0)
        for number in self.order:
            draft = self.drafts[number]
            sources = [
                (path, given, self.drafts[self.numbers[given.stage]].spec)
                for path, given in zip(draft.input_paths, draft.spec.inputs, strict=True)
                if given.stage is not None and given.stage in self.numbers and given.match is not Match.ALL
            ]
            if not sources:
                continue
            if not draft.spec.scattered:
                self._inherit(draft, [s for s in sources if s[1].match is Match.INDEX])
            for path, given, parent in sources:
                if parent is not draft.spec:
                    self._check_match(path, given, parent, draft.spec)

    def _inherit(self, draft: StageDraft, sources: Sequence[tuple[str, InputSpec, StageSpec]]) -> None:
        if not sources:
            return
        width = next((parent.width for _, _, parent in sources if parent.width), 0)
        items = next((parent.items for _, _, parent in sources if parent.items is not None), None)
        scattered = any(parent.scattered for _, _, parent in sources)
        draft.spec = replace(draft.spec, width=width, items=items, scattered=scattered)

    def _check_match(self, path: str, given: InputSpec, parent: StageSpec, child: StageSpec) -> None:
        if not parent.width or not child.width:
            return
        found = f"{parent.name} with {parent.width:,} shards, {child.name} with {child.width:,}"
        if given.match is Match.INDEX and parent.width != child.width:
            self.reader.fault(f"{path}.match", found, "equal widths for index (or match: all, or chunk)")
        if given.match is Match.CHUNK and parent.width < child.width:
            self.reader.fault(f"{path}.match", found, "no more shards than there are items to divide")

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

    # 5. {item} stands only where there are items, and items that are whole uris are good ones.
    def check_items(self) -> None:
        for draft in self.drafts:
            if not draft.spec.width:
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
            tasks = draft.spec.tasks
            self.reader.count("tasks_per_stage", tasks, f"too many tasks at {draft.path}")
            total += tasks
        self.reader.count("tasks", total, "too many tasks in all")
