"""A node's cache: one folder per dataset, named by the hash of its uri, made by one rename.

    cache/<sha256 of the uri>/<file or folder under its own name>
    cache/<sha256 of the uri>/meta.json   {"uri", "size", "name", "directory", "version"}
    cache/.tmp-…                          half made by a service; removed at the next start
    cache/.part-<sha256 of the uri>/      coming in pieces; goes on after a restart (`partial`)
    cache/.out-…-<pid>                    half made by a runner; removed at the next start, if the runner is dead

Runners publish into it too (`running.outputs`, same layout), so the folder is the truth and `entries` follows it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flowsched.cluster.partial import PREFIX, RECORD, Partial, Partials
from flowsched.cluster.running.records import write_record

_TEMPORARY = ".tmp-"


@dataclass(frozen=True, slots=True)
class Entry:
    """A dataset in a cache. `version`: pieces of two copies may be mixed only if they are of the same; outputs have none."""

    uri: str
    size_bytes: int
    name: str
    directory: bool = False
    version: str = ""


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
        """Read what is there; remove what is half made, or not as long as its record says (power failed)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for item in list(os.scandir(self.folder)):
            if _runner_lives(item.name):
                continue
            if item.name.startswith(PREFIX):
                if not self.partials.adopt(Path(item.path), item.name.removeprefix(PREFIX)):
                    _remove(Path(item.path))
                continue
            entry = self._read(Path(item.path)) if not item.name.startswith(".") else None
            if entry is None or item.name != folder_name(entry.uri):
                _remove(Path(item.path))
            else:
                self._add(entry)

    def _read(self, folder: Path) -> Entry | None:
        try:
            meta = json.loads((folder / "meta.json").read_bytes())
            status = (folder / meta["name"]).stat()
            version = meta.get("version", _version_of(meta["uri"], status.st_mtime_ns))
            entry = Entry(meta["uri"], meta["size"], meta["name"], meta["directory"], version)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return entry if entry.directory or status.st_size == entry.size_bytes else None

    def home(self, uri: str) -> Path:
        """The folder of a dataset, whether it is there or not."""
        return self.folder / folder_name(uri)

    def payload(self, entry: Entry) -> Path:
        """The dataset's own file or folder."""
        return self.home(entry.uri) / entry.name

    def find(self, uri: str) -> Entry | None:
        """The dataset, if it is really there: somebody may have emptied the folder behind our back."""
        entry = self.entries.get(uri) or self.refresh(uri)
        if entry is not None and not os.path.lexists(self.payload(entry)):
            self._drop(uri)
            return None
        return entry

    def refresh(self, uri: str) -> Entry | None:
        """Look at the folder again, after a runner published into it."""
        entry = self._read(self.home(uri))
        if entry is not None:
            self._add(entry)
        return entry

    def room_for(self, size_bytes: int) -> bool:
        """Whether so many bytes more keep within the limit. What is coming in pieces counts as if it were there; those that
        nobody adds to now make way.
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
        """Make a filled folder a dataset. One that is there already stays."""
        meta: dict[str, object] = {
            "uri": entry.uri, "size": entry.size_bytes, "name": entry.name, "directory": entry.directory,
            "version": entry.version,
        }  # fmt: skip
        write_record(str(temporary), "meta.json", meta)
        try:
            temporary.rename(self.home(entry.uri))
        except OSError:
            _remove(temporary)
            if self.refresh(entry.uri) is None:
                raise
            return
        self._add(entry)
        self.partials.drop(entry.uri)

    def publish_partial(self, partial: Partial, entry: Entry, seal: Callable[[Path, int], object]) -> Entry:
        """Make a dataset of a file that has come in pieces, all of which are there. A second time changes nothing.

        Args:
            partial: The file.
            entry: What it becomes.
            seal: Called with the file and the mode it shall have, before it gets its name.
        """
        with self._publishing:
            there = self.find(entry.uri)
            if there is not None:
                return there
            seal(partial.path, partial.header.mode)
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
        if entry is None:
            return None
        doomed = self.folder / f"{_TEMPORARY}{os.getpid()}-{next(self._numbers)}"
        self.home(uri).rename(doomed)
        self._drop(uri)
        _remove(doomed)
        return entry

    def _add(self, entry: Entry) -> None:
        with self._lock:
            old = self.entries.get(entry.uri)
            self.used_bytes += entry.size_bytes - (old.size_bytes if old else 0)
            self.entries[entry.uri] = entry

    def _drop(self, uri: str) -> None:
        with self._lock:
            entry = self.entries.pop(uri, None)
            self.used_bytes -= entry.size_bytes if entry else 0


def _version_of(uri: str, modified_ns: int) -> str:
    """Of a dataset that was stored without one: an output is the same everywhere, anything else may be like no other copy."""
    return "" if uri.startswith("flowsched:") else f"kept-{modified_ns}"


def folder_name(uri: str) -> str:
    """The name of a dataset's folder."""
    return hashlib.sha256(uri.encode()).hexdigest()


def file_name(uri: str) -> str:
    """The name a dataset from outside has in a cache: the last part of its uri's path."""
    name = unquote(urlsplit(uri).path.rstrip("/").rpartition("/")[2]).replace("\0", "").replace("/", "_")
    return name[-200:] if name not in ("", ".", "..", "meta.json") else "data"


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
