"""Texts are what was written, also where they look like numbers, in YAML and in JSON; and shards that meet have one name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.client.documents import resolved_bytes, resuming
from flowsched.errors import InvalidDocument, InvalidRequest
from flowsched.workflow.document.decode import check_workflow, decode_workflow
from flowsched.workflow.formats.yaml_text import read_yaml
from flowsched.workflow.spec import WorkflowSpec

NUMBERLIKE = [
    "007", "010", "0", "7", "-7", "-0", "+5", "1_000", "12:30:45", "1:30", "0x1F", "0o17", "0b101", "1e3", "1E+3", "1.50", ".5",
    "5.", "-1.0", ".inf", ".nan", "NaN", "2026-01-02", "2026-01-02T10:00:00Z", "yes", "no", "on", "off", "NO", "y", "n", "=",
    "123456789012345678", "1e400",
]  # fmt: skip


def of_yaml(text: str) -> WorkflowSpec:
    """As the command line reads a document."""
    return decode_workflow(json.dumps(read_yaml(text.encode())).encode())


@pytest.mark.parametrize("text", NUMBERLIKE)
def test_a_text_of_yaml_is_as_it_is_written(text: str) -> None:
    """As an item, a variable, an argument, a label, a value that is waited for, the key of a mapping, and a name."""
    spec = of_yaml(f"""
name: w
labels: {{{text}: {text}}}
stages:
- name: a
  scatter: {{items: [{text}]}}
  env: {{X: {text}}}
  command: [echo, {text}]
  outputs: [{{name: o, path: o, value: true}}]
- name: b
  when: {{equals: {{a.o: {text}}}}}
  command: [echo]
""")
    first, second = spec.stages
    assert dict(spec.labels) == {text: text}
    assert first.items == (text,)
    assert (dict(first.roles[0].env), first.roles[0].command) == ({"X": text}, ("echo", text))
    assert second.when.equals == (("a", "o", (text,)),)


def test_words_of_yaml_that_are_no_text() -> None:
    """YAML 1.2's truth values and nulls, in its three spellings, and whole numbers as JSON writes them; quotes make texts."""
    told = read_yaml(
        b"[true, True, TRUE, false, ~, null, Null, , 12, -3, '12', \"true\", <<]".replace(b", ,", b",")
    )
    assert told == [True, True, True, False, None, None, None, 12, -3, "12", "true", "<<"]
    assert read_yaml(b"{a: , 1: x, true: y, ~: z}") == {"a": None, "1": "x", "true": "y", "~": "z"}
    assert read_yaml(b"base: &b {1.50: x}\nmore: {<<: *b, 010: y}") == {
        "base": {"1.50": "x"},
        "more": {"1.50": "x", "010": "y"},
    }


@pytest.mark.parametrize("word", ["true", "False", "~", "null", ""])
def test_a_word_that_is_no_text_is_refused_as_one(word: str) -> None:
    """It may have been meant as a text: the fault says how to write it."""
    with pytest.raises(InvalidDocument, match=r"text or a number \(in quotes: "):
        of_yaml(f"name: w\nstages:\n- name: a\n  command: [x]\n  scatter:\n    items:\n    - {word}\n")


def test_numbers_of_yaml_are_numbers_where_numbers_are_meant() -> None:
    """Also those that come as texts."""
    spec = of_yaml("""
name: w
priority: 7
stages:
- {name: a, command: [x], resources: {cpu: 1.50, memory: 1e3}, timeout: 0.5, retry: {attempts: 3, memory_factor: 1.50}}
""")
    stage = spec.stages[0]
    assert (
        spec.priority,
        stage.roles[0].resources.cpu_millicores,
        stage.roles[0].resources.memory_bytes,
    ) == (
        7,
        1500,
        1000,
    )
    assert (stage.timeout_ms, stage.retry.attempts, stage.retry.memory_factor_percent) == (500, 3, 150)


@pytest.mark.parametrize("text", ["count: 010", "count: +3", "count: 0x10", "count: 1_0", "count: 3.0"])
def test_a_number_in_another_notation_is_refused_where_a_whole_number_is_meant(text: str) -> None:
    """YAML 1.1 and 1.2 read 010 differently, so it is none."""
    with pytest.raises(InvalidDocument, match=r"a whole number from [01] to "):
        of_yaml(f"name: w\nstages: [{{name: a, command: [x], scatter: {{{text}}}}}]")


def test_dates_and_other_types_of_yaml_are_refused() -> None:
    """JSON has none of them."""
    for tag in ("timestamp", "binary", "set"):
        with pytest.raises(InvalidRequest, match="could not determine a constructor"):
            read_yaml(f"a: !!{tag} x".encode())


def in_json(text: str, uri: str = "s3://b/k") -> bytes:
    stage = {
        "name": "a",
        "command": ["echo", 0],
        "inputs": [{"name": "i", "uri": uri}],
        "scatter": {"items": [0]},
    }
    written = json.dumps({"name": "w", "stages": [{**stage, "env": {"X": 0}}]})
    return written.replace(" 0", f" {text}").replace("[0]", f"[{text}]").encode()


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True))
def test_a_number_of_json_is_text_as_it_is_written(text: str) -> None:
    """Also after the command line has put paths into the document. Only `-0` is 0, as JSON readers have it."""
    expected = "0" if text == "-0" else text
    for raw in (
        in_json(text),
        resolved_bytes(in_json(text, "data/x"), _FOLDER),
        resuming(in_json(text), "w1"),
    ):
        stage = decode_workflow(raw).stages[0]
        assert stage.items == (expected,)
        assert (dict(stage.roles[0].env), stage.roles[0].command) == ({"X": expected}, ("echo", expected))


_FOLDER = Path("/lab")


# --- shards that meet ---


def reader_of(name: str, *sources: str, match: str = "index", **more: Any) -> dict[str, Any]:
    inputs = [{"name": source, "from": f"{source}.o", "match": match} for source in sources]
    return {"name": name, "command": ["x"], "inputs": inputs, "outputs": [{"name": "o", "path": "o"}], **more}


def items(*found: str) -> dict[str, Any]:
    return {"scatter": {"items": list(found)}}


def faults(*stages: dict[str, Any]) -> list[tuple[str, str]]:
    try:
        check_workflow({"name": "w", "stages": list(stages)})
    except InvalidDocument as error:
        return [(fault.path, fault.found) for fault in error.faults]
    return []


A = reader_of("a", **items("S1", "S2", "S3"))
COUNT = {"scatter": {"count": 3}}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (("S3", "S1", "S2"), 'at position 0 the item "S1" of a beside "S3" of b'),
        (("S1", "S3", "S2"), 'at position 1 the item "S2" of a beside "S3" of b'),
        (("S1", "S2", "S4"), 'at position 2 the item "S3" of a beside "S4" of b'),
        (("s1", "s2", "s3"), 'at position 0 the item "S1" of a beside "s1" of b'),
    ],
)
def test_items_that_differ_do_not_meet_one_by_one(found: tuple[str, ...], told: str) -> None:
    """The first difference is shown. The same items in the same order meet, as do all, and parts by position."""
    assert faults(A, reader_of("b", "a", **items(*found))) == [("$.stages[1].inputs[0].match", told)]
    for match in ("all", "chunk"):
        assert faults(A, reader_of("b", "a", match=match, **items(*found))) == []
    assert faults(A, reader_of("b", "a", **items("S1", "S2", "S3"))) == []


def test_items_are_followed_through_stages_that_have_none() -> None:
    """A stage with a count, or without scatter, has what it reads one by one under the names of that."""
    for between in (reader_of("b", "a", **COUNT), reader_of("b", "a")):
        assert faults(A, between, reader_of("c", "b", **items("S1", "S2", "S3"))) == []
        assert faults(A, between, reader_of("c", "b", **items("S1", "S3", "S2"))) == [
            ("$.stages[2].inputs[0].match", 'at position 1 the item "S2" of b beside "S3" of c')
        ]


def test_two_stages_that_meet_in_a_third_have_the_same_items() -> None:
    """Also where that one has none of its own; a stage with a count alone has no names."""
    other = reader_of("d", **items("S2", "S1", "S3"))
    for third in ({}, COUNT):
        assert faults(A, other, reader_of("b", "a", "d", **third)) == [
            ("$.stages[2].inputs[1].match", 'at position 0 the item "S2" of d beside "S1" of b')
        ]
    numbered = reader_of("n", **COUNT)
    assert faults(A, numbered, reader_of("b", "n", **items("S3", "S2", "S1"))) == []


def files(scatter: dict[str, Any], uri: str) -> list[tuple[str, str]]:
    outputs = [{"path": "/out/o", "uri": uri}]
    stage = {"name": "a", "steps": [{"command": ["x"]}], "files": {"outputs": outputs}, "scatter": scatter}
    return faults(stage)


def test_no_two_shards_deliver_to_one_file() -> None:
    """The last one would win."""
    for scatter in ({"count": 2}, {"items": ["x", "y"]}):
        assert files(scatter, "/lab/o") == [("$.stages[0].files.outputs", '"/lab/o" of 2 shards')]
        assert files(scatter, "/lab/{index}") == []
    assert files({"items": ["x", "x"]}, "/lab/{item}") == [
        ("$.stages[0].files.outputs", '"/lab/{item}" of 2 shards')
    ]
    assert files({"items": ["x", "y"]}, "/lab/{item}") == []
    assert files({"count": 2}, "/lab/{item}") == [("$.stages[0].files", '"/lab/{item}"')]


@pytest.mark.parametrize("text", [b"[" * 20_000, b"\n".join(b" " * n + b"a:" for n in range(100))])
def test_yaml_that_is_nested_too_deeply_is_refused_at_its_65th_level(text: bytes) -> None:
    """Not after 1,000 levels: PyYAML looks at all open levels for each token, and 20 KiB took half a second."""
    with pytest.raises(
        InvalidRequest, match=r"^not YAML: nested too deeply, more than 64 levels \(line \d+, column 66\)$"
    ):
        read_yaml(text)
