"""Room on the file system of a cluster's root: whether there is enough to start a pod, and which file system it is.

A full file system is a state, not an error: the cluster starts nothing new, and running tasks go on. Blocks: for worker threads.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flowsched.cluster.local.runner.safe_paths import temporary_name
from flowsched.workflow.resources import format_bytes

#: The cluster starts nothing below a hundredth of the file system, but between these: running tasks need room for their ends.
_LEAST_BYTES: Final = (1 << 20, 64 << 20)
_LEAST_FILES: Final = (64, 1024)
#: A full file system stays full until twice as much is free, so that starts do not stop and go on with every block.
_RELIEF: Final = 2
_PROBE_BYTES: Final = 1 << 16


@dataclass(slots=True)
class Space:
    """Room for the files below a folder.

    Args:
        folder: The folder, which may not exist yet.
    """

    folder: Path
    trouble: str = ""  #: why the cluster can start nothing, in words; "" = there is room
    _refused: str = field(default="", repr=False)  #: the system's answer to a write that found no room

    def note(self, error: OSError) -> None:
        """Note a write that found no room, whatever the system says of free blocks (a quota)."""
        self._refused = os.strerror(error.errno or errno.ENOSPC)
        self.trouble = self.trouble or f"{self._name()}: {self._refused}"

    def measure(self) -> str:
        """Measure the file system again; returns `trouble`."""
        try:
            found = os.statvfs(self.folder)
        except OSError as error:
            self.trouble = f"the file system of {self.folder} cannot be read: {error.strerror}"
            return self.trouble
        times = _RELIEF if self.trouble else 1
        free = found.f_bavail * found.f_frsize
        need = times * _between(found.f_blocks * found.f_frsize // 100, _LEAST_BYTES)
        files, need_files = found.f_favail, times * _between(found.f_files // 100, _LEAST_FILES)
        until = "to start again (twice the least)" if self.trouble else "to start anything"
        if free < need or (found.f_files > 0 and files < need_files):
            self.trouble = (
                f"{self._name()} is full: {format_bytes(free)} and {files} inodes are free, "
                f"{format_bytes(need)} and {need_files} are needed {until}"
            )
        elif not self._refused or self._probe():
            self.trouble = self._refused = ""
        return self.trouble

    def _probe(self) -> bool:
        """Whether a small file can be written."""
        path = self.folder / temporary_name()
        try:
            with path.open("xb") as file:  # the folder may be another account's, too
                file.write(b"\1" * _PROBE_BYTES)
        except OSError:
            return False
        finally:
            path.unlink(missing_ok=True)
        return True

    def _name(self) -> str:
        return _file_system(self.folder)


def shortage(folder: Path, size_bytes: int) -> str:
    """Why no copy of this size begins in a folder, in words; "" = there is room.

    As much must stay free as `Space` needs: a copy that is too large must not stop the starts of other tasks, again and again.
    """
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""  # the write itself then reports why it fails
    free = found.f_bavail * found.f_frsize
    spare = _between(found.f_blocks * found.f_frsize // 100, _LEAST_BYTES)
    if free >= size_bytes + spare:
        return ""
    return (
        f"the file system {mount_point(folder)} has {format_bytes(free)} free, "
        f"{format_bytes(size_bytes)} are needed and {format_bytes(spare)} stay free"
    )


def check_room(folder: Path, size_bytes: int) -> None:
    """Begin no copy that the disk cannot hold.

    Raises:
        OSError: ENOSPC, with the words of `shortage`.
    """
    why = shortage(folder, size_bytes)
    if why:
        raise OSError(errno.ENOSPC, why)


def no_room(folder: Path, error: OSError) -> str:
    """Why a write below a folder found no room: the system's words with the file system, or those of `shortage`."""
    words = error.strerror or str(error)
    return f"{words}: {_file_system(folder)}" if words == os.strerror(error.errno or 0) else words


def _file_system(folder: Path) -> str:
    return f"the file system {mount_point(folder)} with {folder}"


def mount_point(path: Path) -> Path:
    """The mount point of a path's file system."""
    here = path
    while here != here.parent and not (here.exists() and os.path.ismount(here)):
        here = here.parent
    return here


def _between(wanted: int, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(bounds[1], wanted))
