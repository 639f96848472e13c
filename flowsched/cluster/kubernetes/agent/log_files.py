"""The files of containers' logs, read by open descriptors, which stay readable after the kubelet has removed the files.

A kubelet removes a pod's logs when any client deletes the pod. So the agent opens them while the pod is there. It knows
files by their inode: a rotation renames them. Everything here blocks.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: The file that a runtime writes to.
LIVE: Final = "0.log"
_ROTATED: Final = re.compile(r"0\.log\.(\d{8}-\d{6})(\.gz)?")
#: Bytes that are read at a time.
_BLOCK: Final = 256 << 10
#: Tries, when files are rotated while they are opened.
_TRIES: Final = 5
#: Errors of a file that can never be opened. Others pass: without it the offsets of files behind it would change for a time.
_FOR_EVER: Final = (errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EACCES)


class Rotated(Exception):
    """The files are not those any more that were listed."""


class LogFile:
    """An open file of a log: it stays this one if it is renamed or removed. It is closed when the last user drops it."""

    __slots__ = ("inode", "is_packed", "number")

    def __init__(self, number: int, is_packed: bool) -> None:
        self.number = number
        self.inode = os.fstat(number).st_ino
        self.is_packed = is_packed  #: whether the kubelet has compressed it

    def __del__(self) -> None:
        os.close(self.number)

    def head(self, size: int) -> bytes:
        """Its first bytes."""
        return os.pread(self.number, size, 0)

    def pieces(self, at: int = 0) -> Iterator[bytes]:
        """Its bytes from a position on, piece by piece."""
        while piece := os.pread(self.number, _BLOCK, at):
            yield piece
            at += len(piece)


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of a container.

    Args:
        rotated: By their time.
        live: The one that the runtime writes to; None = there is none (yet, or any more).
    """

    rotated: Mapping[str, LogFile]
    live: LogFile | None


class OpenLogs:
    """The open files of pods' logs. May be used from several threads."""

    def __init__(self) -> None:
        self._pods: dict[Path, dict[str, dict[str, LogFile]]] = {}
        self._lock = threading.Lock()

    def refresh(self, pod: Path) -> bool:
        """Open what a pod's containers have begun, and let go of files that were rotated away.

        Returns:
            Whether the kubelet still has logs of the pod. If not, only the open files are left.
        """
        with self._lock:
            by_container = self._pods.setdefault(pod, {})
            try:
                names = os.listdir(pod)
            except (FileNotFoundError, NotADirectoryError):
                return False
            removed = 0
            for name in names:
                with suppress(OSError):  # no log yet, or no descriptor is left: the next time will do
                    files = _opened(pod / name, by_container.get(name, {}))
                    removed += files is None
                    if files is not None:
                        by_container[name] = files
            gone = removed + len(by_container.keys() - set(names))
            return not by_container or gone < len(by_container)

    def drop(self, pod: Path) -> None:
        """Let go of a pod's logs."""
        with self._lock:
            self._pods.pop(pod, None)

    def open_containers(self, pod: Path) -> set[str]:
        """The containers of a pod with an open file."""
        with self._lock:
            return {name for name, files in self._pods.get(pod, {}).items() if files}

    def containers(self, pod: Path) -> set[str]:
        """The containers of a pod that have logs: those that the kubelet has, and those with open files."""
        found = self.open_containers(pod)
        with suppress(FileNotFoundError, NotADirectoryError):
            found |= set(os.listdir(pod))
        return found

    def files(self, folder: Path) -> LogFiles:
        """The files of a container, by its folder.

        Raises:
            FileNotFoundError: The kubelet has no such folder, and no file of it is open.
            OSError: They cannot be opened now.
        """
        with self._lock:
            retained = dict(self._pods.get(folder.parent, {}).get(folder.name, {}))
        try:
            found = _opened(folder, retained) or retained
        except FileNotFoundError:
            if not retained:
                raise
            found = retained
        rotated: dict[str, LogFile] = {}
        for name in sorted(found, reverse=True):  # a plain file stands before its compressed copy, and wins
            match = _ROTATED.fullmatch(name)
            if match:
                rotated[match[1]] = found[name]
        return LogFiles(rotated, found.get(LIVE))


def _opened(folder: Path, before: Mapping[str, LogFile]) -> dict[str, LogFile] | None:
    """The files of a container as they are now, the open ones among them; None if the kubelet has removed them."""
    known = {file.inode: file for file in before.values()}
    for _ in range(_TRIES):
        live = _inode(folder / LIVE)
        inodes = {name: _inode(folder / name) for name in os.listdir(folder) if _ROTATED.fullmatch(name)}
        if live is not None:
            inodes[LIVE] = live
        if LIVE in before and live is None and before[LIVE].inode not in inodes.values():
            return None
        with suppress(Rotated):
            now, refused = {}, None
            for name, inode in inodes.items():
                try:
                    now[name] = known.get(inode or 0) or _open(folder / name, inode)
                except OSError as error:
                    # A rotated file that can never be opened, a link say, hides no other file.
                    if name == LIVE or error.errno not in _FOR_EVER:
                        raise
                    refused = error
            if refused is not None and not now:
                raise refused
            if _inode(folder / LIVE) == live:
                return now
    raise OSError(errno.EAGAIN, f"the logs in {folder} are rotated faster than they can be opened")


def _inode(path: Path) -> int | None:
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None


def _open(path: Path, inode: int | None) -> LogFile:
    """Open the file that was listed.

    Raises:
        Rotated: Another file has its name now, or none.
        OSError: It is no ordinary file, or no descriptor is left.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Rotated from None
    file = LogFile(number, path.suffix == ".gz")
    if not stat.S_ISREG(os.fstat(number).st_mode):
        raise OSError(errno.EINVAL, f"{path} is no ordinary file")
    if file.inode != inode:
        raise Rotated
    return file
