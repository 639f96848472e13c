"""The files of containers' logs: those that the kubelet has, and descriptors that keep them readable after it removes them.

A kubelet removes a pod's logs when the pod is deleted, whoever deletes it. So the agent opens them while the pod is there. It knows
files by their inode: a rotation renames them. Everything here blocks.
"""

from __future__ import annotations

import io
import os
import re
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

#: The file that a runtime writes to.
LIVE: Final = "0.log"
_ROTATED: Final = re.compile(r"0\.log\.(\d{8}-\d{6})(\.gz)?")


class Rotated(Exception):
    """The files are not those any more that were listed."""


class _Descriptor:
    """A descriptor, closed when the last user drops it."""

    __slots__ = ("inode", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.inode = os.fstat(number).st_ino

    def __del__(self) -> None:
        os.close(self.number)


class _HeldFile(io.RawIOBase):
    """Reads a descriptor from a position of its own, since other threads read it too."""

    def __init__(self, descriptor: _Descriptor) -> None:
        self._descriptor = descriptor
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (os.fstat(self._descriptor.number).st_size if base is None else base)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._descriptor.number, len(buffer), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a log.

    Args:
        path: Where it is, or was.
        inode: It must still be this file; None = any.
        held: Reads it even if it was removed; None = it is opened by its path.
    """

    path: Path
    inode: int | None = None
    held: _Descriptor | None = None

    @property
    def is_packed(self) -> bool:
        """Whether the kubelet has compressed it."""
        return self.path.suffix == ".gz"

    def open(self) -> BinaryIO:
        """Open it, from its beginning.

        Raises:
            Rotated: Another file has its name now, or none.
        """
        if self.held is not None:
            return cast("BinaryIO", _HeldFile(self.held))
        return cast("BinaryIO", open(_open(self.path, self.inode), "rb", buffering=0))


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of a container.

    Args:
        rotated: By their time.
        live: The one that the runtime writes to; None = there is none (yet, or any more).
    """

    rotated: Mapping[str, LogFile]
    live: LogFile | None


class HeldLogs:
    """Descriptors of the logs of pods. May be used from several threads."""

    def __init__(self) -> None:
        self._pods: dict[Path, dict[str, dict[str, _Descriptor]]] = {}
        self._lock = threading.Lock()

    def refresh(self, pod: Path) -> bool:
        """Open what a pod's containers have begun, and let go of files that were rotated away.

        Returns:
            Whether the kubelet still has logs of the pod. If not, what is held is all that is left.
        """
        with self._lock:
            held = self._pods.setdefault(pod, {})
            try:
                names = os.listdir(pod)
            except (FileNotFoundError, NotADirectoryError):
                return False
            removed = 0
            for name in names:
                with suppress(FileNotFoundError, NotADirectoryError):
                    files = _refreshed(pod / name, held.get(name, {}))
                    removed += files is None
                    if files is not None:
                        held[name] = files
            gone = removed + len(held.keys() - set(names))
            return not held or gone < len(held)

    def drop(self, pod: Path) -> None:
        """Let go of a pod's logs."""
        with self._lock:
            self._pods.pop(pod, None)

    def held(self, pod: Path) -> set[str]:
        """The containers of a pod of which a file is held."""
        with self._lock:
            return {name for name, files in self._pods.get(pod, {}).items() if files}

    def containers(self, pod: Path) -> set[str]:
        """The containers of a pod that have logs: those that the kubelet has, and those of which files are held."""
        found = self.held(pod)
        with suppress(FileNotFoundError, NotADirectoryError):
            found |= set(os.listdir(pod))
        return found

    def files(self, folder: Path) -> LogFiles:
        """The files of a container, by its folder. If a rotation comes in between, it is noticed.

        Raises:
            FileNotFoundError: The kubelet has no such folder, and no file of it is held.
            Rotated: The files were rotated meanwhile.
        """
        with self._lock:
            held = dict(self._pods.get(folder.parent, {}).get(folder.name, {}))
        try:
            names = _listed(folder)
        except FileNotFoundError:
            if not held:
                raise
            names = {}
        if LIVE in held and held[LIVE].inode not in names.values() and LIVE not in names:
            found = {name: LogFile(folder / name, held=file) for name, file in held.items()}
        else:
            found = {name: LogFile(folder / name, inode) for name, inode in names.items()}
        rotated: dict[str, LogFile] = {}
        for name in sorted(found, reverse=True):  # a plain file stands before its compressed copy, and wins
            match = _ROTATED.fullmatch(name)
            if match:
                rotated[match[1]] = found[name]
        return LogFiles(rotated, found.get(LIVE))


def _refreshed(folder: Path, held: Mapping[str, _Descriptor]) -> dict[str, _Descriptor] | None:
    """Descriptors of a container's files as they are now; None if the kubelet has removed them."""
    try:
        names = _listed(folder)
    except Rotated:
        return dict(held)  # the next time will do
    if LIVE in held and LIVE not in names and held[LIVE].inode not in names.values():
        return None
    known = {file.inode: file for file in held.values()}
    now: dict[str, _Descriptor] = {}
    for name, inode in names.items():
        with suppress(Rotated, OSError):  # a link, or no descriptor is left
            now[name] = known.get(inode) or _Descriptor(_open(folder / name, inode))
    return now


def _listed(folder: Path) -> dict[str, int]:
    """Name -> inode. A rotation while they are listed is noticed: `0.log` is another file afterwards."""
    before = _inode(folder / LIVE)
    found: dict[str, int] = {}
    for name in os.listdir(folder):
        inode = _inode(folder / name) if _ROTATED.fullmatch(name) else None
        if inode is not None:
            found[name] = inode
    if _inode(folder / LIVE) != before:
        raise Rotated
    return found if before is None else {**found, LIVE: before}


def _inode(path: Path) -> int | None:
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None


def _open(path: Path, inode: int | None) -> int:
    """Open an ordinary file, which still is the one that was listed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Rotated from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or inode not in (None, status.st_ino):
        os.close(fd)
        raise Rotated
    return fd
