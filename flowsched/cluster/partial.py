"""Datasets that are coming to a node in pieces: a file of the full length with holes, and a record of what of it is there.

    cache/.part-<sha256 of the uri>/<file under its own name>   as long as the dataset, sparse
    cache/.part-<sha256 of the uri>/pieces.json                 {"uri", "size", "version", "name", "mode", "spans": [[0, 128], …]}

The record is written after the bytes it speaks of have been synced, so what it says is there survives a crash; a piece that was
under way is fetched again. When all is there, the folder becomes the dataset's by one rename (`Cache.publish`).
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flowsched.clock import elapsed_s
from flowsched.cluster.running.records import write_record

PREFIX: Final = ".part-"
RECORD: Final = "pieces.json"
#: Half a dataset that nobody has added to for so long is nobody's.
IDLE_S: Final = 86_400.0

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Header:
    """What the pieces are pieces of. `version`: as its source has named it; pieces of two never mix."""

    uri: str
    size_bytes: int
    version: str
    name: str
    mode: int = 0o644


class Dropped(Exception):
    """The file is gone: the dataset is another one now, room was needed, or somebody has emptied the cache."""


class Partial:
    """One dataset that is coming. May be used from several threads.

    Args:
        folder: Where it lies.
        header: What it will be.
        spans: What of it is there.
        idle_s: How long ago a piece was added last.
        elapsed: Seconds that go on whatever the wall clock is set to.
    """

    def __init__(
        self,
        folder: Path,
        header: Header,
        spans: Iterable[Span] = (),
        *,
        idle_s: float = 0.0,
        elapsed: Callable[[], float] = elapsed_s,
    ) -> None:
        self.folder = folder
        self._elapsed = elapsed
        self._added_s = elapsed() - idle_s
        self.header = header
        self.users = 0  #: pieces that are coming now; see `Partials.using`
        self._spans = merged(spans)
        self._lock = threading.Lock()
        self._dropped = False

    @property
    def path(self) -> Path:
        """The file with holes."""
        return self.folder / self.header.name

    @property
    def spans(self) -> tuple[Span, ...]:
        """What is there, for good: ranges of bytes, in order."""
        return tuple(self._spans)

    @property
    def idle_s(self) -> float:
        """How long ago a piece was added last, seconds."""
        return self._elapsed() - self._added_s

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing(0, self.header.size_bytes)

    def covers(self, start: int, end: int) -> bool:
        """Whether a range is there."""
        return not self.missing(start, end)

    def missing(self, start: int, end: int) -> list[Span]:
        """The parts of a range that are not there."""
        holes, at = [], start
        for first, last in self._spans:
            if last <= at or first >= end:
                continue
            if first > at:
                holes.append((at, first))
            at = last
        if at < end:
            holes.append((at, end))
        return holes

    def open(self) -> int:
        """A descriptor to write with.

        Raises:
            Dropped: It is no longer wanted.
        """
        try:
            return os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise Dropped(self.header.uri) from error

    def landed(self, descriptor: int, start: int, end: int) -> None:
        """A range has been written: from when this returns on it is there, whatever happens.

        Raises:
            Dropped: It is no longer wanted.
        """
        os.fdatasync(descriptor)
        with self._lock:
            if self._dropped:
                raise Dropped(self.header.uri)
            spans = merged([*self._spans, (start, end)])
            try:
                self._write(spans)
            except FileNotFoundError as error:
                raise Dropped(self.header.uri) from error
            self._added_s = self._elapsed()
            self._spans = spans  # last: whoever sees that all is there moves the folder away

    def drop(self) -> None:
        """Remove it. Who writes to it hears `Dropped`."""
        with self._lock:
            self._dropped = True
            shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, spans: Iterable[Span]) -> None:
        header = self.header
        record: dict[str, object] = {
            "uri": header.uri, "size": header.size_bytes, "version": header.version, "name": header.name,
            "mode": header.mode, "spans": [list(span) for span in spans],
        }  # fmt: skip
        write_record(str(self.folder), RECORD, record)


class Partials:
    """All datasets that are coming to one cache in pieces.

    Args:
        folder: The cache's.
        elapsed: Seconds that go on whatever the wall clock is set to.
    """

    def __init__(self, folder: Path, *, elapsed: Callable[[], float] = elapsed_s) -> None:
        self._folder = folder
        self._elapsed = elapsed
        self._known: dict[str, Partial] = {}
        self._lock = threading.Lock()

    @property
    def reserved_bytes(self) -> int:
        """How much they will take when they are whole."""
        return sum(partial.header.size_bytes for partial in list(self._known.values()))

    @property
    def all(self) -> tuple[Partial, ...]:
        """Every one of them."""
        return tuple(self._known.values())

    def find(self, uri: str) -> Partial | None:
        """The one of a dataset."""
        return self._known.get(uri)

    def adopt(self, folder: Path, named: str) -> bool:
        """Take up what an earlier process has left; False if it is of no use.

        Args:
            folder: A folder of the cache.
            named: What the dataset's own folder would be called, by its uri.
        """
        try:
            told = json.loads((folder / RECORD).read_bytes())
            header = Header(told["uri"], told["size"], told["version"], told["name"], told["mode"])
            spans = [(int(first), int(last)) for first, last in told["spans"]]
            long_enough = (folder / header.name).stat().st_size == header.size_bytes
            idle_s = time.time() - (folder / RECORD).stat().st_mtime
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if not long_enough or folder.name != PREFIX + named or idle_s > IDLE_S:
            return False
        self._known[header.uri] = Partial(
            folder, header, spans, idle_s=max(idle_s, 0.0), elapsed=self._elapsed
        )
        return True

    def begin(self, header: Header, named: str) -> Partial:
        """The partial file of a dataset; one is made if there is none. One of another version stays, and is returned."""
        with self._lock:
            known = self._known.get(header.uri)
            if known is not None:
                return known
            folder = self._folder / (PREFIX + named)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            descriptor = os.open(
                folder / header.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            try:
                os.ftruncate(descriptor, header.size_bytes)
            finally:
                os.close(descriptor)
            made = self._known[header.uri] = Partial(folder, header, elapsed=self._elapsed)
            return made

    def drop(self, uri: str, only: Partial | None = None) -> bool:
        """Remove the one of a dataset, or leave it if it is not `only`. False if there was none."""
        with self._lock:
            known = self._known.get(uri)
            if known is None or (only is not None and known is not only):
                return False
            del self._known[uri]
        known.drop()
        return True

    def drop_idle(self, idle_s: float = IDLE_S) -> int:
        """Remove those that nobody adds to, and has not for so long; returns the bytes they would have taken."""
        freed = 0
        for partial in self.all:
            if partial.users == 0 and partial.idle_s >= idle_s and self.drop(partial.header.uri, partial):
                freed += partial.header.size_bytes
        return freed


def merged(spans: Iterable[Span]) -> list[Span]:
    """Ranges in order, those that touch each other made one."""
    out: list[Span] = []
    for first, last in sorted(spans):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        elif first < last:
            out.append((first, last))
    return out
