"""Large JSON texts, parsed piece by piece: the same values, the same refusals, and never much at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.errors import InvalidRequest, TooLarge
from flowsched.workflow.document.limits import DEFAULT
from flowsched.workflow.document.reader import read_document
from flowsched.workflow.json_pieces import Malformed, Structure, parse
from tests.house.second_ways import needs

TEXTS = st.text(st.sampled_from('ab"\\[]{},: \n\tü\u2028'), max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=30,
)


def loads(piece: bytes, begin: int) -> object:
    return json.loads(piece)


@given(VALUES, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 40))
def test_pieces_make_the_same_values(value: Any, indent: int | None, ascii_only: bool, piece: int) -> None:
    """Whatever stands in strings and between values, and however small the pieces are."""
    raw = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert parse(Structure(raw, DEFAULT), loads, piece) == value


@given(st.lists(st.sampled_from(list('[]{},:"a1 \\')), max_size=30).map("".join), st.integers(1, 8))
def test_what_is_no_json_is_no_json_in_pieces(text: str, piece: int) -> None:
    """Brackets that do not match, commas too many, text behind the end: never a value, always a refusal."""
    raw = text.encode()
    try:
        expected = json.loads(raw)
    except ValueError:
        with pytest.raises((ValueError, InvalidRequest)):
            parse(Structure(raw, DEFAULT), loads, piece)
        return
    if not isinstance(expected, dict) or len(json.dumps(expected)) == len(
        raw
    ):  # keys that repeat are refused
        assert parse(Structure(raw, DEFAULT), loads, piece) == expected


MILLION = range(1_000_000)
#: Made when they are asked for: each worker of a run imports this module, and few run these tests.
LARGE: dict[str, Callable[[], Any]] = {
    "a million keys": lambda: {f"k{n}": 0 for n in MILLION},
    "a million texts in a list in an object": lambda: {
        "stages": [{"scatter": {"items": [f"i{n}" for n in MILLION]}}]
    },
    "a million labels": lambda: {"name": "x", "labels": {f"k{n}": "" for n in MILLION}},
    "400,000 objects": lambda: [{"command": ["a"]} for _ in range(200_000)],
}


@needs("json_pieces")
@pytest.mark.parametrize("case", LARGE)
def test_the_parser_never_gets_more_than_a_piece(case: str) -> None:
    """It keeps the interpreter lock while it reads: 14 MiB at once held up the event loop for a second."""
    document, most = LARGE[case](), 0

    def measured(piece: bytes, begin: int) -> object:
        nonlocal most
        most = max(most, len(piece))
        return json.loads(piece)

    assert parse(Structure(json.dumps(document).encode(), DEFAULT), measured) == document
    assert most <= (256 << 10) + 2


def test_a_fault_in_a_late_piece_is_told_where_it_stands_in_the_text() -> None:
    raw = b'{"stages": [\n' + b",\n".join([b'{"name": "\xc3\xa4"}'] * 40_000) + b",\n  {name: 1}]}"
    with pytest.raises(InvalidRequest, match=r"line 40002, column 4$"):
        read_document(raw)


def test_a_key_that_occurs_twice_in_pieces_far_apart_is_refused() -> None:
    members = ",".join(f'"k{n}": 0' for n in range(100_000))
    with pytest.raises(InvalidRequest, match="the key 'k0' occurs twice in one object"):
        read_document(f'{{{members}, "k0": 1}}'.encode())


@needs("json_pieces")
def test_a_key_of_a_megabyte_is_refused_with_the_limit() -> None:
    raw = b'{"a": 1, "' + b"k" * (1 << 20) + b'": 2}'
    with pytest.raises(TooLarge, match="the limit 'string_bytes' is 65,536"):
        read_document(raw)


def test_an_entry_that_is_empty_is_no_entry() -> None:
    structure = Structure(b"[1,,2]", DEFAULT)
    with pytest.raises(Malformed):
        structure.entries(structure.whole)
