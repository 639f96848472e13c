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

import numpy as np

from flowsched.errors import InvalidRequest
from flowsched.workflow.limits import DEFAULT, Limits, exceeded

#: All bytes but those that make structure.
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[]{},'))
#: What each byte does to the depth.
_STEPS: Final = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1

_BLOCK: Final = 1 << 18  #: bytes of structure looked at together

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
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not UTF-8: byte {error.start} is {raw[error.start]:#04x}") from None
    _check_structure(raw, limits)
    _check_surrogates(raw)
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"not JSON: {error.msg}: {where}") from None
    except RecursionError:
        exceeded("depth", limits.depth, "nested too deeply", raw.count(b"["))
    except ValueError:  # from int(): the interpreter refuses to convert more than 4,300 digits
        raise InvalidRequest("a whole number has more than 4,300 digits") from None


def _check_structure(raw: bytes, limits: Limits) -> None:
    """Depth and counts, without parsing: only brackets and commas outside of strings are left to look at."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = raw.translate(None, _NOT_STRUCTURE)
    # Where two quotes meet, taking both away leaves every other byte on its side of a string's border.
    everything = np.frombuffer(structure.replace(b'""', b""), dtype=np.uint8)
    inside, depth, objects, values = False, 0, 0, 0
    for start in range(0, len(everything), _BLOCK):
        found = everything[start : start + _BLOCK]
        quotes = found == ord('"')
        if inside or quotes.any():
            border = np.logical_xor.accumulate(quotes) ^ inside
            inside = bool(border[-1])
            found = found[~(border | quotes)]
        steps = _STEPS[found]
        depths = np.cumsum(steps, dtype=np.int32) + depth
        if len(depths) == 0:
            continue
        if int(depths.max()) > limits.depth:
            exceeded("depth", limits.depth, "nested too deeply", int(depths.max()))
        depth = int(depths[-1])
        objects += int(np.count_nonzero(steps == 1))
        values += int(np.count_nonzero(found == ord(",")))
    if objects > limits.objects:
        exceeded("objects", limits.objects, "too many objects and arrays", objects)
    if objects + values > limits.values:
        exceeded("values", limits.values, "too many values", objects + values)


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
