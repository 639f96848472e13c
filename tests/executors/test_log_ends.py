"""Where the last lines of a log begin: a log of any size is read from its end."""

from __future__ import annotations

import pytest

from flowsched.executor.log_ends import start_of_last


async def start(log: bytes, lines: int, most_bytes: int = 1 << 30) -> int:
    async def read(offset: int, limit: int) -> bytes:
        return log[offset : offset + limit]

    return await start_of_last(read, len(log), lines, most_bytes)


@pytest.mark.parametrize(
    ("log", "lines", "last"),
    [
        (b"a\nb\nc\n", 1, b"c\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\nc", 1, b"c"),
        (b"a\nb\n\n", 1, b"\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"\n", 1, b"\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
        (b"x" * 300_000 + b"\ny\n", 2, b"x" * 300_000 + b"\ny\n"),
        (b"a\n" * 200_000, 150_000, b"a\n" * 150_000),
    ],
)
async def test_the_last_lines(log: bytes, lines: int, last: bytes) -> None:
    """As `tail -n` has them, also across blocks."""
    assert log[await start(log, lines) :] == last


async def test_ten_lines_of_ten_gibibytes_are_one_read() -> None:
    """Of 128 KiB, at the end."""
    size, end = 10 << 30, b"line\n" * 100
    asked: list[tuple[int, int]] = []

    async def read(offset: int, limit: int) -> bytes:
        asked.append((offset, limit))
        return (b"\0" * limit + end)[-limit:]

    assert await start_of_last(read, size, 10) == size - 50
    assert asked == [(size - 131_072, 131_072)]


async def test_a_line_without_an_end_is_not_looked_for_for_ever() -> None:
    """The last 200,000 bytes, in whole blocks, if that is the most."""
    assert await start(b"x" * 1_000_000, 1, most_bytes=200_000) == 1_000_000 - 262_144
