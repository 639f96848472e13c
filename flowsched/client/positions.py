"""The lines of a document that its faults are about. A service names a fault by its JSON path; people look for a line. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from flowsched.errors import Fault, InvalidDocument
from flowsched.workflow.formats.yaml_text import lines_of as yaml_lines

#: A path from the document's top to a value: keys and numbers of entries.
Steps = tuple[str | int, ...]

_STEP: Final = re.compile(r'\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d{1,9})\]|\[("(?:[^"\\]|\\.)*")\]')
_SPACE: Final = re.compile(r"[ \t\n\r]*")
#: Longer texts are not gone through.
_LONGEST: Final = 16 << 20
_LONGEST_YAML: Final = 1 << 20


def with_lines(error: InvalidDocument, name: str, raw: bytes) -> InvalidDocument:
    """The same faults, each with its line: `workflow.json:14: stages[2].command`.

    Args:
        error: As the service raised it.
        name: Of the file, as its user wrote it.
        raw: The file's bytes: JSON, or YAML.
    """
    paths = [steps(fault.path) for fault in error.faults]
    try:
        lines = lines_of(raw, [path or () for path in paths])
    except (ValueError, IndexError, RecursionError):
        return error  # it is neither JSON nor YAML: the fault itself says so
    return InvalidDocument(
        [
            fault
            if path is None
            else Fault(
                f"{name}:{line}" + (f": {fault.path.removeprefix('$').removeprefix('.')}" * bool(path)),
                fault.found,
                fault.expected,
            )
            for fault, path, line in zip(error.faults, paths, lines, strict=True)
        ]
    )


def steps(path: str) -> Steps | None:
    """A JSON path (`$.stages[2]["a b"]`) as its steps, as far as it can be read; None if it is no such path."""
    if not path.startswith("$"):
        return None
    found: list[str | int] = []
    at = 1
    while (step := _STEP.match(path, at)) is not None:
        key, number, quoted = step.groups()
        found.append(key if key is not None else json.loads(quoted) if number is None else int(number))
        at = step.end()
    return tuple(found)


def lines_of(raw: bytes, paths: Sequence[Steps]) -> list[int]:
    """The line of each path, from 1. A missing value has the line of the value that should hold it.

    Raises:
        ValueError: The text is neither JSON nor YAML, or too long to look.
    """
    if raw.lstrip()[:1] in (b"{", b"["):
        if len(raw) > _LONGEST:
            raise ValueError("too long")
        return _json_lines(raw.decode(), paths)
    if len(raw) > _LONGEST_YAML:
        raise ValueError("too long")
    return yaml_lines(raw, paths)


def _json_lines(text: str, paths: Sequence[Steps]) -> list[int]:
    wanted: dict[Any, Any] = {}  # the paths as a tree: a text is gone through once, whatever is looked for
    for path in paths:
        below = wanted
        for step in path:
            below = below.setdefault(step, {})
    starts: dict[Steps, int] = {}
    _walk(text, _after_space(text, 0), wanted, (), starts)
    found = []
    for path in paths:
        while path and path not in starts:
            path = path[:-1]
        found.append(text.count("\n", 0, starts.get(path, _after_space(text, 0))) + 1)
    return found


def _walk(text: str, at: int, wanted: dict[Any, Any], path: Steps, starts: dict[Steps, int]) -> int:
    """Note where the wanted members of the value at a position begin; returns where the value ends."""
    decode = json.JSONDecoder().raw_decode
    opening = text[at]
    if not wanted or opening not in "{[":
        return decode(text, at)[1]
    number, closing = 0, "}" if opening == "{" else "]"
    at = _after_space(text, at + 1)
    while text[at] != closing:
        step: Any = number
        begin = at
        if opening == "{":
            step, at = decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)  # behind the colon
        if step in wanted:
            starts[(*path, step)] = begin
        at = _after_space(text, _walk(text, at, wanted.get(step, {}), (*path, step), starts))
        if text[at] == ",":
            at = _after_space(text, at + 1)
        number += 1
    return at + 1


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
