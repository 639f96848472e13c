"""The journal of a runner: a line for each thing it has done with an attempt, in order. The service reads it (`local.journals`).

    runners/<runner>/lock     held by the runner for life, so that its death shows; it says `pid start boot`
    runners/<runner>/000001   the first segment; a full one is followed by the next
    runners/<runner>/000001.done   a segment of attempts whose ends the service has stored

A line is the CRC of its text in hexadecimal, a blank, and the text: JSON with `kind` and mostly `name`.

    started  before the task's first instruction: at_ms, the shim, and what removes its container
    running  its process: pid; or `runner`, the process that sees it through
    waits    why its results wait; "" = no longer
    ended    how it ended; void: it never ran and never will. One of them comes last
    lost     the process that saw it through has died
    closed   no more orders come; `pending` names those that have been read and may still start

Segments have room in advance, so that ends can be written on a full disk: a reader stops at the first NUL. Standard library only.
"""

from __future__ import annotations

import os
from binascii import crc32
from collections.abc import Callable, Iterator

from .records import Record, json_text

#: A segment that is longer is followed by another. Segments are removed whole: twice as much keeps old records longer.
SEGMENT_BYTES = 4 << 20
#: Room is taken in such pieces: the call costs as much as ten records.
_PIECE_BYTES = 1 << 20
#: The kinds of an attempt's last record.
LAST = ("ended", "void", "lost")
#: Room that is kept for the end of each open attempt, and for what is not one's.
END_BYTES = 16 << 10
_SPARE_BYTES = 64 << 10
_CRC_BYTES = 9
_fdatasync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter
DONE = ".done"


def line_of(record: Record) -> bytes:
    """A record as it is written."""
    text = json_text(record).encode()
    return b"%08x %b\n" % (crc32(text), text)


def texts_in(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The text of each whole line, and where it ends. It stops at room that is not written yet, and at a torn or damaged line.

    Args:
        data: From the beginning of a line.
    """
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        text = data[at + _CRC_BYTES : end]
        if data[at : at + _CRC_BYTES] != b"%08x " % crc32(text):
            return
        at = end + 1
        yield text, at


class Journal:
    """Writes a journal. Nothing is to be seen before `flush`, nor durable before `sync`.

    Args:
        folder: Of the runner.
        ended: The journal calls it with the name of each attempt whose last record the runner adds.

    Raises:
        OSError: There is no room for a first segment.
    """

    def __init__(self, folder: str, ended: Callable[[str], object] = lambda _: None) -> None:
        self._ended = ended
        self._folder = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)  # its path may lead nowhere for a while
        self._lines: list[bytes] = []
        self._number = self._at = self._room = 0
        self._fd = -1
        self.is_durable = True
        self._begin()

    @property
    def descriptors(self) -> list[int]:
        """The open descriptors."""
        return [self._fd, self._folder]

    @property
    def records(self) -> int:
        """How many records were added and are not written."""
        return len(self._lines)

    @property
    def is_flushed(self) -> bool:
        """Whether all that was added is written."""
        return not self._lines

    def add(self, record: Record) -> None:
        """Add a record, to be written by `flush`."""
        self._lines.append(line_of(record))
        if record["kind"] in LAST:
            self._ended(str(record["name"]))

    def reserve(self, attempts: int) -> None:
        """Take the room that the ends of so many attempts need.

        Raises:
            OSError: There is not so much.
        """
        if self._at > SEGMENT_BYTES and not self._lines:
            self._begin()
        self._allocate(self._at + _SPARE_BYTES + attempts * END_BYTES)

    def flush(self) -> None:
        """Write what was added: it is to be seen then. It outlives this process, and the machine after `sync`.

        Raises:
            OSError: There is no room for all of it. It is kept, to be flushed again.
        """
        data = b"".join(self._lines)
        at = self._at
        while data:
            written = os.pwrite(self._fd, data, at)
            at, data = at + written, data[written:]
        self._at = at
        self._lines.clear()
        self.is_durable = False

    def sync(self) -> None:
        """Make all that is written durable."""
        _fdatasync(self._fd)
        self.is_durable = True

    def close(self) -> None:
        """End it: give back the room that was not needed, and make all durable."""
        os.ftruncate(self._fd, self._at)
        self.sync()
        os.close(self._fd)
        os.close(self._folder)

    def _begin(self) -> None:
        """Open the next segment. Without room for it the runner goes on in the last one."""
        name = f"{self._number + 1:06d}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._folder)
        last = self._fd, self._number, self._at, self._room
        self._fd, self._number, self._at, self._room = fd, self._number + 1, 0, 0
        try:
            self._allocate(_SPARE_BYTES)
            os.fsync(self._folder)
        except OSError:
            os.close(fd)
            os.unlink(name, dir_fd=self._folder)
            self._fd, self._number, self._at, self._room = last
            raise
        if last[0] >= 0:
            os.ftruncate(last[0], last[2])
            _fdatasync(last[0])
            os.close(last[0])

    def _allocate(self, size: int) -> None:
        if size <= self._room:
            return
        size = -(-size // _PIECE_BYTES) * _PIECE_BYTES
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, self._room, size - self._room)
        else:
            os.pwrite(self._fd, bytes(size - self._room), self._room)
        self._room = size
