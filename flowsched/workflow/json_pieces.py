"""Large JSON texts cut into pieces that can be parsed one by one.

A JSON parser written in C keeps Python's interpreter lock (GIL) until it has read its whole text. 60 MiB therefore hold up every
other thread for seconds, the event loop's too, although the parser runs in a thread of its own. `Structure` finds, on the bytes
alone, where the entries of each object and array begin and end. `parse` then hands the parser at most `PIECE` bytes at a time,
and other threads run between two pieces.

It knows nothing of what the documents mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowsched.errors import InvalidRequest
from flowsched.workflow.document.limits import Limits, exceeded

#: The parser gets so many bytes at once: some 5 ms. With a quarter of it the calls themselves take as long as the parsing.
PIECE: Final = 256 << 10
#: `_outside_strings` looks at so many bytes together: an array's operations on them hold the interpreter lock for 2 ms.
_BLOCK: Final = 1 << 20

_BYTES: Final = np.zeros(256, dtype=np.bool_)
_BYTES[list(b'"[]{},')] = True
#: The change of depth at each byte.
_STEPS: Final = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_KEY: Final = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"[ \t\r\n]*:', re.DOTALL)
_BLANK: Final = b" \t\r\n"


class Span(NamedTuple):
    """A part of the text."""

    start: int
    end: int


class Malformed(Exception):
    """The text is no JSON; the parser's own words say where."""


class Structure:
    """The positions of a JSON text's brackets and commas outside of its strings.

    Args:
        raw: The text, UTF-8. It need not be valid JSON.
        limits: `Structure` checks `depth`, `objects` and `values`.

    Raises:
        TooLarge: The text exceeds a limit.
    """

    __slots__ = ("_at", "_depths", "_kinds", "_longest_key", "raw")

    def __init__(self, raw: bytes, limits: Limits) -> None:
        self.raw = raw
        self._longest_key = limits.string_bytes
        at: list[NDArray[np.int32]] = []
        kinds: list[NDArray[np.uint8]] = []
        depths: list[NDArray[np.int16]] = []
        depth, objects, values = 0, 0, 0
        for where, found in _outside_strings(raw):
            steps = _STEPS[found]
            deep = np.cumsum(steps, dtype=np.int32) + depth
            if len(deep) == 0:
                continue
            if int(deep.max()) > limits.depth:
                exceeded("depth", limits.depth, "nested too deeply", int(deep.max()))
            depth = max(int(deep[-1]), -1)
            objects += int(np.count_nonzero(steps == 1))
            values += int(np.count_nonzero(found == ord(",")))
            if objects > limits.objects or objects + values > limits.values:
                continue  # only count: the refusal reports the number
            at.append(where)
            kinds.append(found)
            depths.append(np.maximum(deep, -1).astype(np.int16))
        if objects > limits.objects:
            exceeded("objects", limits.objects, "too many objects and arrays", objects)
        if objects + values > limits.values:
            exceeded("values", limits.values, "too many values", objects + values)
        self._at = np.concatenate(at) if at else np.zeros(0, np.int32)
        self._kinds = np.concatenate(kinds) if kinds else np.zeros(0, np.uint8)
        self._depths = np.concatenate(depths) if depths else np.zeros(0, np.int16)

    @property
    def whole(self) -> Span:
        """The text without blanks around it."""
        return self._trimmed(0, len(self.raw))

    def count(self, span: Span) -> int:
        """About how many entries the object or array in `span` has: its commas and one. Cheaper than `entries`."""
        first, end = (int(i) for i in np.searchsorted(self._at, span))
        if end == first:
            return 0
        depths, kinds = self._depths[first:end], self._kinds[first:end]
        return int(np.count_nonzero((kinds == ord(",")) & (depths == depths[0]))) + 1

    def entries(self, span: Span) -> list[Span]:
        """The entries of the object or array that fills `span`: a member with its key, or an element.

        Raises:
            Malformed: No object or array fills it.
        """
        starts, ends = self._borders(span)
        found = [self._trimmed(*each) for each in zip(starts.tolist(), ends.tolist(), strict=True)]
        if len(found) == 1 and found[0].start == found[0].end:
            return []
        if any(start == stop for start, stop in found):
            raise Malformed
        return found

    def pieces(self, span: Span, most: int = PIECE) -> Iterator[tuple[Span, int]]:
        """Neighbouring entries of the object or array that fills `span`, up to `most` bytes together, and how many they are.

        A larger entry comes alone. Costs nothing for a single entry, of which there may be millions.

        Raises:
            Malformed: No object or array fills it.
        """
        starts, ends = self._borders(span)
        first = 0
        while first < len(starts):
            last = max(first + 1, int(np.searchsorted(ends, starts[first] + most, side="right")))
            found = self._trimmed(int(starts[first]), int(ends[last - 1]))
            if len(starts) > 1 or found.start < found.end:
                yield found, last - first
            first = last

    def _borders(self, span: Span) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(entries,) where each entry of an object or array begins and ends, with the blanks around it."""
        first, end = (int(i) for i in np.searchsorted(self._at, span))
        depths, kinds = self._depths[first:end], self._kinds[first:end]
        if len(depths) < 2 or self._at[first] != span.start or self._at[end - 1] != span.end - 1:
            raise Malformed
        opened, depth = chr(kinds[0]) + chr(kinds[-1]), int(depths[0])
        if opened not in ("[]", "{}") or int(depths[-1]) != depth - 1 or int(depths[:-1].min()) < depth:
            raise Malformed
        commas = self._at[first:end][(kinds == ord(",")) & (depths == depth)].astype(np.int64)
        return np.concatenate(([span.start + 1], commas + 1)), np.concatenate((commas, [span.end - 1]))

    def member(self, entry: Span) -> tuple[Span, Span]:
        """(key with its quotes, value) of an entry of an object.

        Raises:
            Malformed: It has no key.
            TooLarge: The key is longer than any text may be.
        """
        most = 2 * self._longest_key
        found = _KEY.match(self.raw, entry.start, min(entry.end, entry.start + most))
        if found is None:
            if entry.end - entry.start > most and b'":' not in self.raw[entry.start : entry.start + most]:
                exceeded("string_bytes", self._longest_key, "a key is too long (bytes)", most)
            raise Malformed
        return Span(found.start(1) - 1, found.end(1) + 1), self._trimmed(found.end(), entry.end)

    def text(self, span: Span) -> bytes:
        """The bytes of a span."""
        return self.raw[span.start : span.end]

    def is_object(self, span: Span) -> bool:
        """Whether an object begins here."""
        return self.raw[span.start : span.start + 1] == b"{"

    def _trimmed(self, start: int, end: int) -> Span:
        raw = self.raw
        while start < end and raw[start] in _BLANK:
            start += 1
        while start < end and raw[end - 1] in _BLANK:
            end -= 1
        return Span(start, end)


def parse(structure: Structure, loads: Callable[[bytes, int], object], piece: int = PIECE) -> object:
    """The text as Python values.

    Args:
        structure: The text's structure.
        loads: Parses one piece. It gets the piece and its position in the text, and raises the errors for the caller.
        piece: The most bytes of one piece. A text or a number may be longer, because `parse` never cuts it.

    Raises:
        InvalidRequest: The pieces are JSON, and the text is not.
    """
    try:
        return _Parser(structure, loads, piece).value(structure.whole)
    except Malformed:  # the parser's own words for it
        loads(structure.raw, 0)
    raise InvalidRequest("not JSON: brackets or commas are out of place")


class _Parser:
    """See `parse`."""

    __slots__ = ("_loads", "_piece", "_structure")

    def __init__(self, structure: Structure, loads: Callable[[bytes, int], object], piece: int) -> None:
        self._structure = structure
        self._loads = loads
        self._piece = piece

    def value(self, span: Span) -> object:
        """One value, whatever it is."""
        raw = self._structure.raw
        if span.end - span.start <= self._piece or raw[span.start] not in b"[{":
            return self._loads(raw[span.start : span.end], span.start)
        return self._object(span) if self._structure.is_object(span) else self._array(span)

    def _array(self, span: Span) -> list[object]:
        made: list[object] = []
        for piece, count in self._structure.pieces(span, self._piece):
            if piece.end - piece.start > self._piece:
                made.append(self.value(piece))
                continue
            found = self._loads(b"[" + self._structure.text(piece) + b"]", piece.start - 1)
            if not isinstance(found, list) or len(found) != count:
                raise Malformed
            made.extend(found)
        return made

    def _object(self, span: Span) -> dict[str, object]:
        made: dict[str, object] = {}
        for piece, count in self._structure.pieces(span, self._piece):
            found = self._members(piece)
            if not isinstance(found, dict) or len(found) != count:
                raise Malformed
            twice = made.keys() & found.keys()
            if twice:
                raise InvalidRequest(f"the key {min(twice)[:64]!a} occurs twice in one object")
            made.update(found)
        return made

    def _members(self, piece: Span) -> object:
        if piece.end - piece.start <= self._piece:
            return self._loads(b"{" + self._structure.text(piece) + b"}", piece.start - 1)
        key, value = self._structure.member(piece)
        return {self._loads(self._structure.raw[key.start : key.end], key.start): self.value(value)}


def _outside_strings(raw: bytes) -> Iterator[tuple[NDArray[np.int32], NDArray[np.uint8]]]:
    """(positions, bytes) of brackets and commas outside of strings, block by block."""
    inside, start = False, 0
    while start < len(raw):
        end = min(start + _BLOCK, len(raw))
        while end < len(raw) and raw[end - 1] == ord("\\"):  # never cut an escape in two
            end += 1
        block = raw[start:end]
        if b"\\" in block:
            block = block.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        every = np.frombuffer(block, dtype=np.uint8)
        where = np.flatnonzero(_BYTES[every]).astype(np.int32)
        found = every[where]
        quotes = found == ord('"')
        if inside or quotes.any():
            border = np.logical_xor.accumulate(quotes) ^ inside
            inside = bool(border[-1]) if len(border) else inside
            outside = ~(border | quotes)
            where, found = where[outside], found[outside]
        yield where + np.int32(start), found
        start = end
