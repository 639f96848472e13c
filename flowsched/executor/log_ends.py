"""Where the last lines of a log begin. It reads a log from its end, so that the log's size does not matter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

#: So many bytes before the end are looked through at most: longer lines are cut.
MOST_BYTES: Final = 64 << 20
_BLOCK: Final = 128 << 10


async def start_of_last(
    read: Callable[[int, int], Awaitable[bytes]], size: int, lines: int, most_bytes: int = MOST_BYTES
) -> int:
    """The offset of the first of the last lines of a log.

    Args:
        read: (offset, limit) → bytes of the log.
        size: Bytes that it has.
        lines: How many lines; the text after the last line end is a line, too.
        most_bytes: Lines that begin further from the end are left out.
    """
    at, left = size, lines
    while left and at > max(0, size - most_bytes):
        first = max(0, at - _BLOCK)
        data = await read(first, at - first)
        end = min(len(data), size - 1 - first)  # the last byte ends a line, and begins none
        count = data.count(b"\n", 0, end)
        if count >= left:
            for _ in range(left):
                end = data.rindex(b"\n", 0, end)
            return first + end + 1
        at, left = first, left - count
    return at
