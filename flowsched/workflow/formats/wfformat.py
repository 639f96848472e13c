"""WfFormat (wfcommons.org) as a trace: instances of real workflows, versions 1.0 to 1.6.

Up to 1.4 everything about a task is one object of `workflow.tasks` (before 1.3: `workflow.jobs`), and tasks name each
other by `name`. From 1.5 on the DAG is in `workflow.specification`, what was measured in `workflow.execution`, and tasks
name each other by `id`. Keys that are not needed here are ignored, since producers add their own. Dependencies are taken
from wherever they stand: the parents, the children, and the files that one task writes and another one reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flowsched.values import replace
from flowsched.workflow.document import keys
from flowsched.workflow.document.keys import Section
from flowsched.workflow.document.limits import DEFAULT, Limits
from flowsched.workflow.document.reader import Reader, read_document, shown
from flowsched.workflow.graph import cycles
from flowsched.workflow.resources import LARGEST_BYTES, LARGEST_DURATION_MS
from flowsched.workflow.traces.trace import Trace, TraceFile, TraceTask

#: Traces are larger than workflow documents: they name every task and every file.
LIMITS: Final = replace(
    DEFAULT, document_bytes=256 << 20, objects=3_000_000, values=30_000_000, tasks=200_000, edges=5_000_000
)
_VERSION: Final = re.compile(r"1\.[0-6]")
_LONGEST_S: Final = LARGEST_DURATION_MS / 1000
_MOST_CORES: Final = 1_000_000
#: The suffixes that engines append to a task's category to distinguish its tasks.
_NUMBERED: Final = re.compile(r"_?ID[0-9]+$|_[0-9]+$")
_TEXT: Final = keys.text()
_LINK: Final = keys.choice({word: word.lower() for word in ("input", "output", "Input", "Output")})
_KILO: Final = 1000  #: `memory` was in KB before 1.4


@dataclass(slots=True)
class _Entry:
    """A task as it was read, before names have become numbers."""

    path: str
    name: str  #: by which others refer to it
    other_name: str = ""  #: its second name, before 1.5
    category: str = ""
    parents: list[tuple[str, str]] = field(default_factory=list)  #: (where it stands, name)
    children: list[tuple[str, str]] = field(default_factory=list)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    outputs: list[tuple[str, str]] = field(default_factory=list)
    runtime_s: float = 0.0
    busy_cores: float | None = None
    core_count: int = 1
    memory_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None


@dataclass(slots=True)
class _Draft:
    """All that was read of a document."""

    reader: Reader
    entries: list[_Entry] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  #: file -> bytes


def read_trace(raw: bytes, limits: Limits = LIMITS) -> Trace:
    """Read a WfFormat document.

    Args:
        raw: JSON.
        limits: `document_bytes`, `depth`, `objects`, `values`, `tasks`, `edges`, `string_bytes` and `faults` are checked.

    Raises:
        InvalidRequest: It is no JSON.
        TooLarge: A limit is exceeded.
        InvalidDocument: It is no WfFormat or contradicts itself; every fault with its JSON path.
    """
    reader = Reader(limits)
    document = _object(reader, read_document(raw, limits), "$")
    workflow = None if document is None else _inner(document, "workflow")
    draft = _Draft(reader)
    if document is not None and workflow is not None:
        version = document.get(
            "schemaVersion", keys.text(keys.Form('a version of WfFormat, "1.0" to "1.6"', _VERSION))
        )
        if "specification" in workflow:
            _read_divided(draft, workflow)
        else:
            _read_flat(draft, workflow)
        tasks = _linked(draft)
        reader.finish()
        files = _files(draft, tasks)
        name = document.get("name", _TEXT) or "trace"
        return Trace(name, version or "", tuple(tasks), tuple(files))
    reader.finish()
    raise AssertionError("a document that is no object has a fault")


# Version 1.5 and later: specification and execution.


def _read_divided(draft: _Draft, workflow: Section) -> None:
    specification = _inner(workflow, "specification")
    execution = _inner(workflow, "execution", hint="what was measured: runtimes of the tasks")
    if specification is None or execution is None:
        return
    for entry in _entries(draft.reader, specification, "files", required=False):
        name = entry.get("id", _TEXT, required="text")
        if name is not None:
            _size(draft, entry, name, "sizeInBytes", again="a file named once")
    ran: dict[str, Section] = {}
    for entry in _entries(draft.reader, execution, "tasks"):
        name = entry.get("id", _TEXT, required="text")
        if name is not None and ran.setdefault(name, entry) is not entry:
            entry.fault("id", "the id of another task than those before")
    for entry in _entries(draft.reader, specification, "tasks"):
        name = entry.get("id", _TEXT, required="text")
        if name is None:
            continue
        made = _Entry(entry.path, name)
        made.parents, made.children = list(_names(entry, "parents")), list(_names(entry, "children"))
        made.inputs, made.outputs = list(_names(entry, "inputFiles")), list(_names(entry, "outputFiles"))
        measured = ran.get(name)
        if measured is None:
            entry.fault("id", "the id of a task of $.workflow.execution.tasks: its runtime is there")
        else:
            _read_measured(made, measured, "coreCount")
            made.category = _category(entry, measured, name)
        draft.entries.append(made)


# Version 1.4 and before: one object for each task.


def _read_flat(draft: _Draft, workflow: Section) -> None:
    key = "jobs" if "jobs" in workflow and "tasks" not in workflow else "tasks"
    if key not in workflow:
        expected = "specification and execution (WfFormat 1.5), or tasks (1.4 and before)"
        draft.reader.fault(workflow.path, "neither", expected)
        return
    for entry in _entries(draft.reader, workflow, key):
        name, ident = entry.get("name", _TEXT), entry.get("id", _TEXT)
        if not name and not ident:
            entry.fault("name", "a name or an id")
            continue
        made = _Entry(entry.path, name or ident or "", ident or "")
        made.parents, made.children = list(_names(entry, "parents")), list(_names(entry, "children"))
        for file in _entries(draft.reader, entry, "files", required=False):
            found = _flat_file(draft, file)
            if found is not None:
                link = file.get("link", _LINK, required='"input" or "output"')
                (made.inputs if link == "input" else made.outputs).append((file.path, found))
        _read_measured(made, entry, "cores")
        made.category = _category(entry, entry, made.name)
        draft.entries.append(made)


def _flat_file(draft: _Draft, file: Section) -> str | None:
    key = "id" if "id" in file and "name" not in file else "name"
    name: str | None = file.get(key, _TEXT, required="text")
    if name is None:
        return None
    name = (file.get("path", _TEXT) or "") + name
    _size(draft, file, name, "sizeInBytes" if "sizeInBytes" in file else "size", again="")
    return name


# Both.


def _read_measured(made: _Entry, found: Section, cores: str) -> None:
    key = "runtime" if "runtime" in found and "runtimeInSeconds" not in found else "runtimeInSeconds"
    if found.values.get(key) is None:
        found.fault(key, "seconds: how long the task ran")
    made.runtime_s = _number(found, key, _LONGEST_S, "seconds") or 0.0
    busy = _number(found, "avgCPU", _MOST_CORES * 100.0, "percent of a core")
    made.busy_cores = busy / 100 if busy else None
    count = _number(found, cores, _MOST_CORES, "a number of cores")
    made.core_count = max(1, math.ceil(count or 1))
    made.memory_bytes = _bytes(found, "memoryInBytes")
    if made.memory_bytes is None:
        kilobytes = _bytes(found, "memory")
        made.memory_bytes = None if kilobytes is None else min(kilobytes * _KILO, LARGEST_BYTES)
    made.read_bytes, made.written_bytes = _bytes(found, "readBytes"), _bytes(found, "writtenBytes")


def _category(task: Section, measured: Section, name: str) -> str:
    """The kind of a task: as it says, else by its program or the part of its name that others share."""
    category: str | None = task.get("category", _TEXT)
    if category:
        return category
    title = task.values.get("name")
    if isinstance(title, str) and title and title != name:
        return title
    command = measured.values.get("command")
    program = command.get("program") if isinstance(command, Mapping) else None
    if isinstance(program, str) and program and (name == program or name.startswith(f"{program}_")):
        return program
    return _NUMBERED.sub("", name) or name


def _linked(draft: _Draft) -> list[TraceTask]:
    """Names as numbers; parents from all that says so."""
    reader = draft.reader
    reader.count("tasks", len(draft.entries), "too many tasks")
    numbers = _numbers(draft)
    file_numbers = {name: number for number, name in enumerate(draft.sizes)}
    parents: list[set[int]] = [set() for _ in draft.entries]
    for number, entry in enumerate(draft.entries):
        for path, name in entry.parents:
            if (parent := _known(reader, numbers, path, name, "task")) is not None:
                parents[number].add(parent)
        for path, name in entry.children:
            if (child := _known(reader, numbers, path, name, "task")) is not None:
                parents[child].add(number)
    producers = _producers(draft)
    tasks = []
    for number, entry in enumerate(draft.entries):
        outputs = dict.fromkeys(_known_files(reader, file_numbers, entry.outputs))
        # A file that a task changes in place is its output: no other task can have written it before.
        inputs = dict.fromkeys(
            file for file in _known_files(reader, file_numbers, entry.inputs) if file not in outputs
        )
        parents[number] |= {producers[file] for file in inputs if file in producers}
        tasks.append(_task(entry, parents[number], tuple(inputs), tuple(outputs)))
    reader.count("edges", sum(map(len, parents)), "too many pairs of parent and child")
    for found in cycles(parents):
        names = " → ".join(draft.entries[number].name for number in [*found, found[0]][:12])
        reader.fault(f"{draft.entries[found[0]].path}.parents", f"the cycle {names}", "tasks without cycles")
    return tasks


def _task(entry: _Entry, parents: set[int], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> TraceTask:
    return TraceTask(
        name=entry.name,
        category=entry.category,
        runtime_s=entry.runtime_s,
        parents=tuple(sorted(parents)),
        inputs=inputs,
        outputs=outputs,
        busy_cores=entry.busy_cores,
        core_count=entry.core_count,
        memory_bytes=entry.memory_bytes,
        read_bytes=entry.read_bytes,
        written_bytes=entry.written_bytes,
    )


def _numbers(draft: _Draft) -> dict[str, int]:
    """The names of tasks -> their number. A second name counts where no other task has it."""
    numbers: dict[str, int] = {}
    for number, entry in enumerate(draft.entries):
        if numbers.setdefault(entry.name, number) != number:
            draft.reader.fault(entry.path, f"a second task {shown(entry.name)}", "names that occur once")
    for number, entry in enumerate(draft.entries):
        if entry.other_name:
            numbers.setdefault(entry.other_name, number)
    return numbers


def _producers(draft: _Draft) -> dict[int, int]:
    """File -> the task that writes it."""
    file_numbers = {name: number for number, name in enumerate(draft.sizes)}
    producers: dict[int, int] = {}
    for number, entry in enumerate(draft.entries):
        for path, name in entry.outputs:
            file = file_numbers.get(name)
            if file is not None and producers.setdefault(file, number) != number:
                other = draft.entries[producers[file]].name
                draft.reader.fault(
                    path, f"the output {shown(name)}", f"a file that {shown(other)} does not write too"
                )
    return producers


def _files(draft: _Draft, tasks: list[TraceTask]) -> Iterator[TraceFile]:
    producers = {file: number for number, task in enumerate(tasks) for file in task.outputs}
    for number, (name, size) in enumerate(draft.sizes.items()):
        yield TraceFile(name, size, producers.get(number))


def _known(reader: Reader, numbers: Mapping[str, int], path: str, name: str, what: str) -> int | None:
    found = numbers.get(name)
    if found is None:
        reader.fault(path, shown(name), f"the name of a {what} of this document")
    return found


def _known_files(reader: Reader, numbers: Mapping[str, int], names: list[tuple[str, str]]) -> Iterator[int]:
    for path, name in names:
        found = _known(reader, numbers, path, name, "file")
        if found is not None:
            yield found


def _size(draft: _Draft, entry: Section, name: str, key: str, *, again: str) -> None:
    """Note a file. Where a file stands with each task that uses it, the largest size holds."""
    if again and name in draft.sizes:
        entry.fault("id", again)
    if entry.values.get(key) is None:
        entry.fault(key, "bytes")
    draft.sizes[name] = max(draft.sizes.get(name, 0), _bytes(entry, key) or 0)


def _bytes(section: Section, key: str) -> int | None:
    found = _number(section, key, LARGEST_BYTES, "bytes")
    return None if found is None else math.ceil(found)


def _number(section: Section, key: str, high: float, what: str) -> float | None:
    """A number from 0 on, or None: not there, null, or a fault. Whole numbers stay exact."""
    value = section.values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
        section.fault(key, f"{what} from 0 to {high:,.0f}")
        return None
    return value


def _names(section: Section, key: str) -> Iterator[tuple[str, str]]:
    """The texts of an array that may be missing, each with its path."""
    if section.values.get(key) is None:
        return
    for number, value in enumerate(section.reader.array(section.values[key], section.at(key)) or ()):
        path = f"{section.at(key)}[{number}]"
        text = section.reader.text(value, path, "a name")
        if text is not None:
            yield path, text


def _entries(reader: Reader, section: Section, key: str, *, required: bool = True) -> Iterator[Section]:
    """The objects of an array."""
    if key not in section.values:
        if required:
            section.fault(key, "an array")
        return
    found = reader.array(section.values[key], section.at(key), empty=not required)
    for number, value in enumerate(found or ()):
        if reader.full:
            reader.skip(1)
            continue
        entry = _object(reader, value, f"{section.at(key)}[{number}]")
        if entry is not None:
            yield entry


def _inner(section: Section, key: str, *, hint: str = "an object") -> Section | None:
    if key not in section.values:
        section.fault(key, hint)
        return None
    return _object(section.reader, section.values[key], section.at(key))


def _object(reader: Reader, value: Any, path: str) -> Section | None:
    found = reader.mapping(value, path)
    return None if found is None else Section(reader, found, path)
