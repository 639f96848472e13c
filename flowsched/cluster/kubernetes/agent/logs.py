"""What a container wrote, out of its runtime's files: bytes from an offset, as the program wrote them.

The kubelet's format (CRI) is `<time> <stdout|stderr> <P|F> <text>`, a line each, where P says that the program's line goes
on in the next one of its stream. Files are rotated: `0.log` becomes `0.log.<time>`, later `.gz`, later nothing. So an offset
may lie in a file that is gone: what is left begins further on, and `Piece.offset` says where. Everything here blocks.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, cast

LIVE: Final = "0.log"
_ROTATED: Final = re.compile(r"0\.log\.(\d{8}-\d{6})(\.gz)?")
#: Raw bytes that are decoded at a time; there is a mark behind each, so a follower reads no more than this twice.
_BLOCK: Final = 256 << 10
#: The beginning of a file, a time in nanoseconds, tells it from others: inode numbers are given again.
_HEAD: Final = 40
#: Containers whose marks are remembered.
_REMEMBERED: Final = 4096
#: A compressed file is kept decoded up to this size while it is read in pieces.
_UNZIPPED: Final = 32 << 20
#: Tries, when files are rotated under the reader's hands.
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a log. It begins at `offset`, later than asked for if what was before is gone."""

    offset: int
    data: bytes


@dataclass(slots=True)
class _Marks:
    """What is known of one stream of one container."""

    lengths: dict[str, int] = field(
        default_factory=dict
    )  #: decoded bytes of rotated files, also of those now gone
    points: dict[bytes, list[tuple[int, int]]] = field(
        default_factory=dict
    )  #: by head: (decoded, raw), ascending
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a container, and which file `0.log` was when they were listed."""

    rotated: dict[str, Path]
    live: Path
    inode: int | None


class _Rotated(Exception):
    """The files are not those any more that were listed."""


class Reader:
    """Reads logs, and remembers where it has been."""

    def __init__(self) -> None:
        self._marks: OrderedDict[tuple[str, str], _Marks] = OrderedDict()
        self._lock = threading.Lock()
        self._unzipped: tuple[Path, str, bytes] | None = None

    def read(self, folder: Path, stream: str, offset: int, limit: int) -> Piece:
        """Read up to `limit` bytes that a container wrote to a stream, from `offset` on.

        Raises:
            FileNotFoundError: It has no such folder.
        """
        with self._lock:
            marks = self._marks.setdefault((str(folder), stream), _Marks())
            self._marks.move_to_end((str(folder), stream))
            if len(self._marks) > _REMEMBERED:
                self._marks.popitem(last=False)
        with marks.lock:
            for _ in range(_TRIES):
                with suppress(_Rotated):
                    return self._read(_files(folder), stream, offset, limit, marks)
        raise OSError(f"the logs in {folder} are rotated faster than they can be read")

    def end(self, folder: Path, stream: str, limit: int) -> bytes:
        """The last bytes that a container wrote to a stream, of those in the file that is still written to.

        Raises:
            FileNotFoundError: It has no such folder.
        """
        for _ in range(_TRIES):
            with suppress(_Rotated):
                files = _files(folder)
                kept = b""
                if files.inode is not None:
                    with _open(files.live, files.inode) as file:
                        for data, _length in _blocks(file, stream.encode()):
                            kept = (kept + data)[-limit:]
                return kept
        raise OSError(f"the logs in {folder} are rotated faster than they can be read")

    def length(self, folder: Path, stream: str) -> int:
        """How many bytes a container has written to a stream so far, of those that are left.

        Raises:
            FileNotFoundError: It has no such folder.
        """
        for _ in range(_TRIES):
            with suppress(_Rotated):
                files = _files(folder)
                paths = [*files.rotated.values(), *([files.live] if files.inode is not None else [])]
                return sum(len(data) for path in paths for data in self._decoded(path, stream, 0, _Marks()))
        raise OSError(f"the logs in {folder} are rotated faster than they can be read")

    def _read(self, files: _Files, stream: str, offset: int, limit: int, marks: _Marks) -> Piece:
        lengths = dict(marks.lengths)
        for stamp, path in files.rotated.items():
            if stamp not in lengths:
                lengths[stamp] = sum(len(data) for data in self._decoded(path, stream, 0, marks))
        if files.inode is not None:
            # Until the runtime has begun a new file it still writes to the one that was renamed.
            marks.lengths.update(lengths)
        data = bytearray()
        first, start = offset, 0  #: of the piece, and of the file at hand
        for stamp in sorted(lengths):
            end = start + lengths[stamp]
            if first + len(data) < end and len(data) < limit:
                if stamp in files.rotated:
                    local = first + len(data) - start
                    data += self._slice(files.rotated[stamp], stream, local, limit - len(data), marks)
                else:
                    first = end
            start = end
        local = first + len(data) - start
        if files.inode is not None and local >= 0 and len(data) < limit:
            data += self._slice(files.live, stream, local, limit - len(data), marks, files.inode)
        return Piece(first, bytes(data))

    def _slice(
        self, path: Path, stream: str, local: int, limit: int, marks: _Marks, inode: int | None = None
    ) -> bytes:
        """Bytes of one file, from its decoded offset `local` on."""
        found = bytearray()
        for block in self._decoded(path, stream, local, marks, inode):
            found += block[: limit - len(found)]
            if len(found) >= limit:
                break
        return bytes(found)

    def _decoded(
        self, path: Path, stream: str, local: int, marks: _Marks, inode: int | None = None
    ) -> Iterator[bytes]:
        """What is decoded of one file from `local` on, block by block."""
        if path.suffix == ".gz":
            yield from self._unzip(path, stream, local)
            return
        with _open(path, inode) as file:
            head = file.read(_HEAD)
            points = marks.points.setdefault(head, [(0, 0)]) if len(head) == _HEAD else [(0, 0)]
            decoded, raw = points[bisect_right(points, (local, 1 << 62)) - 1]
            file.seek(raw)
            for data, length in _blocks(file, stream.encode()):
                if decoded + len(data) > local:
                    yield data[max(0, local - decoded) :]
                decoded, raw = decoded + len(data), raw + length
                if decoded > points[-1][0]:
                    points.append((decoded, raw))

    def _unzip(self, path: Path, stream: str, local: int) -> Iterator[bytes]:
        known = self._unzipped
        if known is not None and known[:2] == (path, stream):
            yield known[2][local:]
            return
        kept: bytearray | None = bytearray()
        decoded = 0
        with _open(path, None) as packed, gzip.GzipFile(fileobj=packed) as file:
            for data, _ in _blocks(cast("BinaryIO", file), stream.encode()):
                if kept is not None:
                    kept = kept + data if len(kept) + len(data) <= _UNZIPPED else None
                if decoded + len(data) > local:
                    yield data[max(0, local - decoded) :]
                decoded += len(data)
        if kept is not None:
            self._unzipped = (path, stream, bytes(kept))


def _files(folder: Path) -> _Files:
    """List them. A rotation while they are listed is noticed: `0.log` is another file afterwards."""
    before = _inode(folder / LIVE)
    rotated: dict[str, Path] = {}
    for name in sorted(
        os.listdir(folder), reverse=True
    ):  # a plain file stands before its compressed copy, and wins
        found = _ROTATED.fullmatch(name)
        if found:
            rotated[found[1]] = folder / name
    if _inode(folder / LIVE) != before:
        raise _Rotated
    return _Files(rotated, folder / LIVE, before)


def _inode(path: Path) -> int | None:
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None


def _open(path: Path, inode: int | None) -> BinaryIO:
    """Open an ordinary file, which still is the one that was listed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _Rotated from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or inode not in (None, status.st_ino):
        os.close(fd)
        raise _Rotated
    return cast("BinaryIO", open(fd, "rb", buffering=0))


def _blocks(file: BinaryIO, stream: bytes) -> Iterator[tuple[bytes, int]]:
    """(decoded bytes of a stream, raw bytes they took) of a file's whole lines; a line half written is left for later."""
    rest = b""
    while block := file.read(_BLOCK):
        whole, newline, tail = (rest + block).rpartition(b"\n")
        if newline:
            yield b"".join(_texts(whole, stream)), len(whole) + 1
        rest = tail


def _texts(lines: bytes, stream: bytes) -> Iterator[bytes]:
    """The program's bytes in whole lines of the format; what is not of the format is passed over."""
    for line in lines.split(b"\n"):
        parts = line.split(b" ", 3)
        if len(parts) >= 3 and parts[1] == stream:
            yield parts[3] if len(parts) == 4 else b""
            if parts[2].partition(b":")[0] != b"P":
                yield b"\n"
