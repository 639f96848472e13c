"""A node's cache: one folder per dataset, named by the hash of its uri, made by one rename.

    cache/<sha256 of the uri>/<file or folder under its own name>
    cache/<sha256 of the uri>/meta.json   {"uri", "size", "name", "directory", "version", "in_place"}
    cache/.tmp-…                          half made by a service; removed at the next start
    cache/.part-<sha256 of the uri>-…/    coming in pieces; goes on after a restart (`Partial`)
    cache/.out-…-<pid>                    half made by a runner; removed at the next start, if the runner is dead

Runners publish into it too (`runner.outputs`, same layout), so the folder is the truth and `entries` follows it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from flowsched.clock import elapsed_s
from flowsched.cluster.local.runner.records import sync, write_record
from flowsched.cluster.local.runner.safe_paths import Unsafe, open_file
from flowsched.cluster.local.runner.trees import file_version, seal
from flowsched.cluster.node.strangers import leave_alone
from flowsched.executor.datasets import uri_of, versioned
from flowsched.workflow.document.uris import base_name, file_path

PREFIX: Final = ".part-"
#: Names of what flowsched makes in a cache.
_OURS: Final = re.compile(r"[0-9a-f]{64}|\.(?:tmp|part|out)-.*", re.DOTALL)
RECORD: Final = "pieces.json"
#: A partial dataset that no transfer has added to for so long is abandoned.
IDLE_S: Final = 86_400.0

Span = tuple[int, int]


class Header(msgspec.Struct, frozen=True):
    """The dataset that pieces belong to. `version`: as its source has named it; pieces of two versions never mix."""

    uri: str
    size_bytes: int
    version: str
    name: str
    mode: int = 0o644


class Dropped(Exception):
    """The file is gone: the dataset has another version now, room was needed, or a user has emptied the cache."""


class Partial:
    """One dataset that is coming. May be used from several threads.

    Args:
        folder: Where it lies.
        header: The dataset that it will be.
        spans: The parts of it that are there.
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
        """The ranges of bytes that are there, on the disk, in order."""
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
            self._spans = spans  # last: the thread that sees the complete dataset moves the folder away

    def drop(self) -> None:
        """Remove it. A thread that still writes to it gets `Dropped`."""
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

    Each has a folder of its own, also one that begins anew: a thread that still reads or writes one that was dropped finds no
    file, and never that of the next.

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

    def adopt(self, folder: Path) -> bool:
        """Take up a folder of the cache that an earlier process has left; False if it is of no use."""
        try:
            with open(open_file(None, str(folder / RECORD)), "rb") as file:
                record = json.loads(file.read())
            header = Header(record["uri"], record["size"], record["version"], record["name"], record["mode"])
            spans = [(int(first), int(last)) for first, last in record["spans"]]
            long_enough = (folder / header.name).stat().st_size == header.size_bytes
            idle_s = time.time() - (folder / RECORD).stat().st_mtime
        except (OSError, ValueError, KeyError, TypeError, Unsafe):
            return False
        named = folder.name.startswith(PREFIX + folder_name(header.uri))
        if not long_enough or not named or idle_s > IDLE_S or header.uri in self._known:
            return False
        self._known[header.uri] = Partial(
            folder, header, spans, idle_s=max(idle_s, 0.0), elapsed=self._elapsed
        )
        return True

    def begin(self, header: Header) -> Partial:
        """The partial file of a dataset; one is made if there is none. One of another version stays, and is returned."""
        with self._lock:
            known = self._known.get(header.uri)
            if known is not None:
                return known
            folder = self._folder / f"{PREFIX}{folder_name(header.uri)}-{secrets.token_hex(8)}"
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
        """Remove partial datasets that no transfer has added to for so long; returns the bytes they would have taken."""
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


# ---- the cache ----


_TEMPORARY = ".tmp-"


class Entry(msgspec.Struct, frozen=True):
    """A dataset in a cache.

    Args:
        uri: Its name.
        size_bytes: Of its file, or of all files of its folder.
        name: Of its file or folder.
        directory: Whether it is a folder.
        version: Pieces of two copies may be mixed only if they are of the same; outputs have none.
        in_place: It is no copy, but a link to where it lies on this machine.
    """

    uri: str
    size_bytes: int
    name: str
    directory: bool = False
    version: str = ""
    in_place: bool = False

    @property
    def room_bytes(self) -> int:
        """The bytes that it takes on the disk."""
        return 0 if self.in_place else self.size_bytes


class Cache:
    """The datasets on one node."""

    def __init__(self, folder: Path, limit_bytes: int = 0) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.entries: dict[str, Entry] = {}
        self.used_bytes = 0
        self.partials = Partials(folder)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._publishing = threading.Lock()

    def scan(self) -> None:
        """Read what is there; remove what is half made, or not as long as its record says (power failed).

        A folder with a name that flowsched does not give is left alone.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for item in list(os.scandir(self.folder)):
            if not _OURS.fullmatch(item.name):
                leave_alone(item.path)
                continue
            if _runner_lives(item.name):
                continue
            if item.name.startswith(PREFIX):
                if not self.partials.adopt(Path(item.path)):
                    _remove(Path(item.path))
                continue
            entry = self._read(Path(item.path)) if not item.name.startswith(".") else None
            if entry is None or item.name != folder_name(entry.uri):
                _remove(Path(item.path))
            else:
                self._add(entry)

    def _read(self, folder: Path) -> Entry | None:
        try:
            with open(
                open_file(None, str(folder / "meta.json")), "rb"
            ) as file:  # a task can put a named pipe there
                meta = json.loads(file.read())
            if "/" in meta["name"]:
                return None
            more = meta.get("version", ""), meta.get("in_place", False)
            entry = Entry(meta["uri"], meta["size"], meta["name"], meta["directory"], *more)
        except (OSError, ValueError, KeyError, TypeError, Unsafe):
            return None
        return entry if _is_whole(entry, folder) else None

    def home(self, uri: str) -> Path:
        """The folder of a dataset, whether it is there or not."""
        return self.folder / folder_name(uri)

    def payload(self, entry: Entry) -> Path:
        """The dataset's own file or folder."""
        return self.home(entry.uri) / entry.name

    def place(self, entry: Entry) -> str:
        """Where a task reads the dataset: its file or folder here, or where it lies. Blocks."""
        path = str(self.payload(entry))
        return os.readlink(path) if entry.in_place else path

    def find(self, uri: str) -> Entry | None:
        """The dataset, if its file is really there and whole: a user may have emptied the cache folder, or cut a file short."""
        entry = self.entries.get(uri) or self.refresh(uri)
        if entry is None or _is_whole(entry, self.home(uri)):
            return entry
        self._drop(uri)
        _remove(self.home(uri))
        return None

    def refresh(self, uri: str) -> Entry | None:
        """Scan the folder again, after a runner published into it."""
        entry = self._read(self.home(uri))
        if entry is not None:
            self._add(entry)
        return entry

    def room_for(self, size_bytes: int) -> bool:
        """Whether so many bytes more keep within the limit. A partial dataset counts with its full size.

        If there is no room, partial datasets that no transfer adds to now are removed first.
        """
        if not self.limit_bytes:
            return True
        if self.used_bytes + self.partials.reserved_bytes + size_bytes > self.limit_bytes:
            self.partials.drop_idle(0.0)
        return self.used_bytes + self.partials.reserved_bytes + size_bytes <= self.limit_bytes

    def temporary(self) -> Path:
        """A new folder to fill and then `publish`."""
        folder = self.folder / f"{_TEMPORARY}{os.getpid()}-{next(self._numbers)}"
        folder.mkdir()
        return folder

    def publish(self, temporary: Path, entry: Entry) -> None:
        """Make a filled folder a dataset, whose name is durable when this returns. One that is there already stays."""
        meta: dict[str, object] = {
            "uri": entry.uri, "size": entry.size_bytes, "name": entry.name, "directory": entry.directory,
            "version": entry.version, "in_place": entry.in_place,
        }  # fmt: skip
        write_record(str(temporary), "meta.json", meta)
        uri = uri_of(entry.uri)
        with contextlib.suppress(OSError, ValueError):  # ValueError: it can be no path
            source = os.stat(file_path(uri, os.path.lexists) or "")
            if versioned(uri, file_version(source)) == entry.uri and not entry.in_place:
                # Programs compare it with the time of an index that lies beside the source.
                os.utime(temporary / entry.name, ns=(source.st_atime_ns, source.st_mtime_ns))
        try:
            temporary.rename(self.home(entry.uri))
        except OSError:
            _remove(temporary)
            if self.refresh(entry.uri) is None:
                raise
            return
        sync(str(self.folder))
        self._add(entry)
        self.partials.drop(entry.uri)

    def publish_partial(self, partial: Partial, entry: Entry) -> Entry:
        """Make a dataset of a file that has come in pieces, all of which are there. A second time changes nothing.

        Raises:
            Dropped: It was dropped meanwhile.
        """
        with self._publishing:
            there = self.find(entry.uri)
            if there is not None:
                return there
            try:
                partial.path.chmod(read_only(partial.header.mode))
            except FileNotFoundError as error:
                raise Dropped(entry.uri) from error
            seal(partial.path)
            try:
                self.publish(partial.folder, entry)
            finally:
                self.partials.drop(entry.uri, partial)
            with contextlib.suppress(OSError):
                (self.home(entry.uri) / RECORD).unlink()
            return entry

    def evict(self, uri: str) -> Entry | None:
        """Remove a dataset: its name first, in one step. None if it was not there."""
        entry = self.find(uri)
        self.partials.drop(uri)
        if entry is not None:
            self.forget(uri)()
        return entry

    def forget(self, uri: str) -> Callable[[], object]:
        """Have a dataset no more from now on. Returns what deletes its files, and blocks."""
        doomed = self.folder / f"{_TEMPORARY}{os.getpid()}-{next(self._numbers)}"
        with contextlib.suppress(FileNotFoundError):
            self.home(uri).rename(doomed)
        self._drop(uri)
        return functools.partial(_remove, doomed)

    def _add(self, entry: Entry) -> None:
        with self._lock:
            old = self.entries.get(entry.uri)
            self.used_bytes += entry.room_bytes - (old.room_bytes if old else 0)
            self.entries[entry.uri] = entry

    def _drop(self, uri: str) -> None:
        with self._lock:
            entry = self.entries.pop(uri, None)
            self.used_bytes -= entry.room_bytes if entry else 0


def _is_whole(entry: Entry, folder: Path) -> bool:
    """Whether a dataset's file is there as long as it was. Of a folder only whether it is there: its record has no names."""
    try:
        status = (folder / entry.name).stat()
    except OSError:
        return False
    return entry.directory or status.st_size == entry.size_bytes


def folder_name(uri: str) -> str:
    """The name of a dataset's folder."""
    return hashlib.sha256(uri.encode()).hexdigest()


def file_name(uri: str) -> str:
    """The name a dataset from outside has in a cache."""
    return stored_name(base_name(uri_of(uri), os.path.lexists))


def stored_name(name: str) -> str:
    """A file name as the cache can have it beside its record: of at most 200 bytes, without what confuses."""
    safe = line_safe(name.replace("\0", "").replace("/", "_"))
    while len(safe.encode("utf-8", "replace")) > 200:
        safe = safe[1:]
    safe = safe.encode("utf-8", "replace").decode()
    return "data" if safe in ("", ".", "..", "meta.json", "meta.json.tmp") else safe


def line_safe(name: str) -> str:
    """A file name that is one line of a manifest."""
    return "".join("_" if ord(char) < 0x20 or char == "\x7f" else char for char in name)


def read_only(mode: int) -> int:
    """The mode of a file of a cache, by the mode that it had: its owner may read it, and no user may write it."""
    return mode & 0o555 | 0o400


def _runner_lives(name: str) -> bool:
    """Whether a folder is being filled by a runner: they go on while the service restarts."""
    if not name.startswith(".out-"):
        return False
    try:
        os.kill(int(name.rpartition("-")[2]), 0)
    except (OSError, ValueError):
        return False
    return True


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
