"""Logs in the form in which container runtimes write them (CRI): one line each, with its time, stream and a tag.

2026-01-02T03:04:05.678901234Z stdout F a whole line
2026-01-02T03:04:05.678901234Z stderr P a part of one
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: A longer line is written in parts.
_LONGEST: Final = 16_384


class CriLog:
    """The log file of one container's run.

    Args:
        path: Where; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._rest = {"stdout": b"", "stderr": b""}

    def feed(self, stream: str, data: bytes) -> None:
        """Write what has come on a stream, as far as its lines are complete."""
        lines = (self._rest[stream] + data).split(b"\n")
        rest = lines.pop()
        written = b"".join(self._formed(stream, line) for line in lines)
        while len(rest) > _LONGEST:
            written += self._line(stream, b"P", rest[:_LONGEST])
            rest = rest[_LONGEST:]
        self._rest[stream] = rest
        if written:
            self._file.write(written)

    def close(self) -> None:
        """Write lines that were left unfinished, and close it."""
        for stream, rest in self._rest.items():
            if rest:
                self._file.write(self._line(stream, b"F", rest))
        self._file.close()

    def _formed(self, stream: str, line: bytes) -> bytes:
        parts = [line[at : at + _LONGEST] for at in range(0, len(line), _LONGEST)] or [b""]
        *first, last = parts
        return b"".join(self._line(stream, b"P", part) for part in first) + self._line(stream, b"F", last)

    def _line(self, stream: str, tag: bytes, text: bytes) -> bytes:
        now = time.time_ns()
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9))
        return f"{seconds}.{now % 10**9:09d}Z {stream} ".encode() + tag + b" " + text + b"\n"


def entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The time and the text of each complete entry; the text of a whole line ends in a newline."""
    for line in data.split(b"\n")[:-1]:
        moment, _, tag, text = line.split(b" ", 3)
        yield moment, text if tag == b"P" else text + b"\n"


def last_lines(path: Path, *, lines: int, size: int) -> str:
    """The end of a log's text, at most so many lines and bytes."""
    try:
        data = path.read_bytes()
    except OSError:
        return ""
    data = (
        data[data.find(b"\n", len(data) - 4 * size - _LONGEST) + 1 :]
        if len(data) > 4 * size + _LONGEST
        else data
    )
    text = b"".join(text for _, text in entries(data)).split(b"\n")
    return b"\n".join(text[-lines - 1 :])[-size:].decode(errors="replace").strip()
