"""Any value and any damage to a good document end in a spec or in faults whose places exist."""

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from valid_documents import EVERYTHING, GERMLINE, encoded

from flowsched.errors import Fault, InvalidDocument, TooLarge
from flowsched.workflow.document.decode import check_workflow, decode_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.spec import WorkflowSpec
from tests.soak import worlds

STEP = re.compile(r'\.([A-Za-z_][A-Za-z0-9_]*)|\["((?:[^"\\]|\\.)*)"\]|\[([0-9]+)\]')

#: Words that stand for something in a document, so that damage often makes sense elsewhere.
WORDS = st.sampled_from(
    [
        "name",
        "stages",
        "scatter",
        "items",
        "count",
        "command",
        "resources",
        "cpu",
        "memory",
        "inputs",
        "outputs",
        "from",
        "uri",
        "match",
        "index",
        "chunk",
        "all",
        "needs",
        "when",
        "equals",
        "roles",
        "gang",
        "replicas",
        "min",
        "env",
        "secrets",
        "policies",
        "event",
        "action",
        "timeout",
        "PodFailed",
        "RestartJob",
        "align",
        "sort",
        "align.bam",
        "make.part",
        "judge.verdict",
        "a-b",
        "a_b",
        "{item}",
        "s3://b/{item}",
        "/x",
        "8Gi",
        "500m",
        "1h30m",
        "-1",
        "0",
        "*",
        "success",
        "FLOWSCHED_X",
        "../x",
        "./x",
        "x/y",
        "nvidia.com/gpu",
        "node",
        "required",
    ]
)
TEXTS = WORDS | st.text(max_size=5) | st.just("a\0b")
LEAVES = st.none() | st.booleans() | st.integers(-2, 10**6) | st.floats() | st.just(10**400) | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            found += places(inner, (*path, i))
    return found


@st.composite
def damaged(draw: st.DrawFn) -> object:
    """A good document with a few entries replaced, removed, added or exchanged."""
    value = copy.deepcopy(draw(st.sampled_from([GERMLINE, EVERYTHING])))
    for _ in range(draw(st.integers(1, 4))):
        spots = places(value)
        if not spots:
            break
        *before, last = draw(st.sampled_from(spots))
        holder: Any = value
        for key in before:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "remove", "add", "copy"])):
            case "replace":
                holder[last] = draw(VALUES)
            case "remove":
                del holder[last]
            case "add" if isinstance(holder, dict):
                holder[draw(TEXTS)] = draw(VALUES)
            case "add":
                holder.insert(last, draw(VALUES))
            case "copy":
                other: Any = value
                for key in draw(st.sampled_from(spots)):
                    other = other[key] if isinstance(other, list | dict) and _has(other, key) else other
                holder[last] = copy.deepcopy(other)
    return value


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else isinstance(key, int) and key < len(holder)


def resolves(value: object, fault: Fault) -> bool:
    """Whether a fault's place is in the document, or is a key that is missing where it says."""
    assert fault.path.startswith("$")
    rest, here = fault.path[1:], value
    while rest:
        step = STEP.match(rest)
        assert step is not None, fault
        rest = rest[step.end() :]
        key: Any = step[1] or (int(step[3]) if step[3] else json.loads(f'"{step[2]}"'))
        if not isinstance(here, dict | list) or not _has(here, key):
            return isinstance(here, dict) and not rest and fault.found == "nothing"
        here = here[key]
    return True


def outcome(value: object) -> WorkflowSpec | InvalidDocument | TooLarge:
    """What checking a value gives."""
    try:
        return check_workflow(value)
    except (InvalidDocument, TooLarge) as error:
        return error


def decoded(raw: bytes) -> WorkflowSpec | InvalidDocument | TooLarge:
    """What decoding bytes gives."""
    try:
        return decode_workflow(raw)
    except (InvalidDocument, TooLarge) as error:
        return error


@pytest.mark.soak
@settings(max_examples=worlds(150, 1500))
@given(damaged())
def test_damaged_documents_give_a_spec_or_faults_with_places(value: object) -> None:
    """And a spec that is accepted has a graph in which every stage comes after its parents."""
    result = outcome(value)
    if isinstance(result, InvalidDocument):
        assert result.faults
        assert all(resolves(value, fault) for fault in result.faults)
        assert all(fault.found and fault.expected for fault in result.faults)
    if isinstance(result, WorkflowSpec):
        graph = StageGraph(result)
        assert sorted(graph.order) == list(range(len(result.stages)))
        place = {stage: i for i, stage in enumerate(graph.order)}
        assert all(place[e.parent] < place[e.child] for edges in graph.edges_in for e in edges)
        for number, stage in enumerate(result.stages):
            assert stage.width >= 1
            waits = [graph.parents_per_shard(edge) for edge in graph.edges_in[number]]
            assert all(len(each) == stage.width for each in waits)
            assert stage.items is None or len(stage.items) == stage.width


@pytest.mark.soak
@settings(max_examples=worlds(100, 1000))
@given(VALUES)
def test_any_value_gives_a_spec_or_faults(value: object) -> None:
    """Nothing else is raised, whatever the value is."""
    result = outcome(value)
    assert not isinstance(result, WorkflowSpec)
    if isinstance(result, InvalidDocument):
        assert all(resolves(value, fault) for fault in result.faults)


@pytest.mark.soak
@settings(max_examples=worlds(100, 1000))
@given(damaged())
def test_bytes_and_values_are_judged_alike(value: object) -> None:
    """A document that JSON can say is the same from both sides."""
    try:
        raw = json.dumps(value, allow_nan=False).encode()
    except ValueError:
        return
    if b"\\ud" in raw:
        return
    assert str(decoded(raw)) == str(outcome(value))


def test_a_fault_never_shows_more_than_a_line() -> None:
    """However long a name, a key or a text is."""
    long = "x\n" * 10_000
    spoilt = [
        {"name": long, "stages": [{"name": long, "command": ["a"], "needs": [long], long: 1}]},
        {"name": "x", "stages": [{"name": long, "command": ["a"]}] * 2},
        {
            "name": "x",
            "stages": [{"name": "a", "command": ["a"], "when": {"equals": {long: "x", f"a.{long}": "y"}}}],
        },
        {
            "name": "x",
            "stages": [{"name": "a", "command": ["a"], "inputs": [{"name": "i", "from": f"{long}.{long}"}]}],
        },
        {"name": "x", "stages": [{"name": "a", "command": ["a"], "inputs": [{"name": "i", "uri": long}]}]},
        {
            "name": "x",
            "stages": [{"name": "a", "command": ["a"], "policies": [{"event": long, "action": long}]}],
        },
        {"name": "x", "stages": [{"name": "a", "command": ["a"], "resources": {long: 1, "cpu": long}}]},
    ]
    for value in spoilt:
        try:
            decode_workflow(encoded(value))
        except InvalidDocument as error:
            for fault in error.faults:
                assert len(str(fault)) < 500
                assert "\n" not in str(fault)
