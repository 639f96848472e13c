"""JSON text as Python values, or one clear refusal: whatever the bytes are, nothing else happens.

Two things are found here that a JSON parser keeps to itself: keys that occur twice (most parsers silently
keep the last) and how deep and how many the values are (checked on the bytes, before the parser spends its
stack and memory on them).
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Final

from flowsched.errors import InvalidRequest
from flowsched.workflow.json_pieces import Structure, parse
from flowsched.workflow.limits import DEFAULT, Limits, exceeded

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF: Final = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|[c-fC-F](?<!\\u[dD][89abAB]..\\u[dD].))", re.DOTALL
)


def read_document(raw: bytes, limits: Limits = DEFAULT) -> object:
    """Parse JSON strictly.

    Args:
        raw: The document as sent.
        limits: `document_bytes`, `depth`, `objects` and `values` are checked.

    Raises:
        InvalidRequest: Not JSON, not UTF-8, or JSON that means different things to different readers: a
            key twice in one object, NaN, a number beyond a float's range, half of a surrogate pair.
        TooLarge: A limit is exceeded.
    """
    if len(raw) > limits.document_bytes:
        exceeded("document_bytes", limits.document_bytes, "the document is too large (bytes)", len(raw))
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not UTF-8: byte {error.start} is {raw[error.start]:#04x}") from None

    def loads(piece: bytes, begin: int) -> object:
        return _loads(piece, raw, begin)

    return parse(Structure(raw, limits), loads)


def _loads(piece: bytes, raw: bytes, begin: int) -> object:
    """Parse a piece of `raw`, which begins there."""
    _check_surrogates(piece)
    try:
        return json.loads(
            piece.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        place = begin + len(piece.decode()[: error.pos].encode())
        line = raw.count(b"\n", 0, place) + 1
        column = len(raw[raw.rfind(b"\n", 0, place) + 1 : place].decode()) + 1
        raise InvalidRequest(f"not JSON: {error.msg}: line {line}, column {column}") from None
    except ValueError:  # from int(): the interpreter refuses to convert more than 4,300 digits
        raise InvalidRequest("a whole number has more than 4,300 digits") from None


def _check_surrogates(raw: bytes) -> None:
    if _SURROGATE.search(raw) is None:
        return
    found = _HALF.search(raw.replace(b"\\\\", b""))
    if found is not None:
        escape = found[0][:4].decode("ascii")
        raise InvalidRequest(f"half of a surrogate pair ({escape}…): not a character, no text can hold it")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequest(f"the key {key[:64]!a} occurs twice in one object")
            seen.add(key)
    return made


def _refuse_constant(name: str) -> object:
    raise InvalidRequest(f"not JSON: {name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise InvalidRequest(f"the number {text[:32]!a} is beyond the range of a float")
    return value
