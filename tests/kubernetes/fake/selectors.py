"""Label and field selectors, as in a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tests.kubernetes.fake.kinds import Kind
from tests.kubernetes.fake.replies import refusal

Labels: TypeAlias = Mapping[str, str]
Test: TypeAlias = Callable[[Labels], bool]

_REQUIREMENT = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^)]*)\)\s*")
_EQUAL = re.compile(r"\s*([^\s!=,]+)\s*(!=|==|=)\s*([^\s!=,]*)\s*")
_EXISTS = re.compile(r"\s*(!?)\s*([^\s!=,()]+)\s*")


def label_test(text: str) -> Test:
    """Whether an object with these labels is selected."""
    tests = [_label_test(part) for part in _parts(text)]
    return lambda labels: all(test(labels) for test in tests)


def field_test(text: str, kind: Kind) -> Test:
    """The same for fields, whose names are those that the kind has."""
    known = ("metadata.name", "metadata.namespace", *kind.fields)
    tests: list[Test] = []
    for part in text.split(","):
        match = _EQUAL.fullmatch(part)
        if match is None:
            raise refusal(400, f'invalid selector: "{text}"; can\'t understand "{part}"')
        if match[1] not in known:
            raise refusal(400, f"field label not supported: {match[1]}")
        tests.append(_compare(*match.groups()))
    return lambda fields: all(test(fields) for test in tests)


def _parts(text: str) -> list[str]:
    """Split at commas that are not in parentheses."""
    return [part for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def _label_test(part: str) -> Test:
    if match := _REQUIREMENT.fullmatch(part):
        key, inside = match[1], match[2] == "in"
        values = {value.strip() for value in match[3].split(",")}
        if inside:
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUAL.fullmatch(part):
        key, operator, value = match.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _EXISTS.fullmatch(part):
        wanted, key = not match[1], match[2]
        return lambda labels: (key in labels) == wanted
    raise refusal(400, f"unable to parse requirement: {part.strip()!r}")


def _compare(key: str, operator: str, value: str) -> Test:
    if operator == "!=":
        return lambda fields: fields.get(key, "") != value
    return lambda fields: fields.get(key, "") == value
