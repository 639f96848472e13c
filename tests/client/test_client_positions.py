"""Faults of a document are named by the line of the file that they are in."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowsched.client.positions import lines_of, steps, with_lines
from flowsched.errors import Fault, InvalidDocument
from flowsched.workflow.document.decode import decode_workflow

JSON = b"""{
  "name": "w", "odd key": {
    "x": 1},
  "stages": [
    {"name": "a", "command": ["x, ] }", "\\"\\u00e9"]},
    {
      "name": "b",
      "comand":
        ["y"]
    }
  ]
}
"""
YAML = b"""# a comment
name: w
odd key: {x: 1}
stages:
  - name: a
    command: [x]
  - name: b
    comand:
      - y
"""


def test_a_path_is_read_step_by_step() -> None:
    """Keys, numbers, quoted keys; what cannot be read ends it; what is no path is none."""
    assert steps('$.stages[2]["a.b\\"]"].from') == ("stages", 2, 'a.b"]', "from")
    assert steps("$") == ()
    assert steps("$.cap[...]") == ("cap",)
    assert steps("{name}") is None


@pytest.mark.parametrize(
    ("path", "in_json", "in_yaml"),
    [
        (("name",), 2, 2),
        (("odd key", "x"), 3, 3),
        (("stages",), 4, 4),
        (("stages", 0), 5, 5),
        (("stages", 0, "command", 1), 5, 6),
        (("stages", 1), 6, 7),
        (("stages", 1, "comand"), 8, 8),
        (("stages", 1, "comand", 0), 9, 9),
        (("stages", 1, "command"), 6, 7),
        (("stages", 7, "name"), 4, 4),
        (("nothing",), 1, 2),
        ((), 1, 2),
    ],
)
def test_the_line_of_a_path(path: tuple[str | int, ...], in_json: int, in_yaml: int) -> None:
    """A key's own line; what is not there has the line of what should hold it."""
    assert lines_of(JSON, [path]) == [in_json]
    assert lines_of(YAML, [path]) == [in_yaml]


def test_faults_of_a_real_document_get_their_lines() -> None:
    """All of them in one look, in their order."""
    with pytest.raises(InvalidDocument) as raised:
        decode_workflow(JSON)
    located = with_lines(raised.value, "flow.json", JSON)
    assert [fault.path for fault in located.faults] == [
        'flow.json:2: ["odd key"]',
        "flow.json:8: stages[1].comand",
        "flow.json:6: stages[1].command",
    ]


def test_what_cannot_be_read_keeps_its_paths() -> None:
    """The fault itself says that it is no JSON."""
    error = InvalidDocument([Fault("$.name", "1", "text")])
    assert with_lines(error, "x.json", b"{").faults == error.faults
    assert with_lines(error, "x.yaml", b"a: [").faults == error.faults
    assert with_lines(InvalidDocument([Fault("{name}", "1", "text")]), "x", b"{}").faults[0].path == "{name}"


def test_a_deep_or_large_document_is_gone_through_once(tmp_path: Path) -> None:
    """Fifty faults at the end of 20,000 stages."""
    stages = ",\n".join('{"name": "s", "command": ["x"]}' for _ in range(20_000))
    raw = f'{{"stages": [\n{stages}]}}'.encode()
    assert lines_of(raw, [("stages", at) for at in range(19_950, 20_000)]) == list(range(19_952, 20_002))
