"""Results on their way: how many files are at their targets, and what the others wait for.

An attempt whose results find no room waits for room and says so, because its results are worth more than the wait. The runner
writes that into its journal. The service reads it there for `explain` and TES. Standard library alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from .finishing import inode_of
from .records import is_full
from .task import Task, release_grace_s

#: The attempt waits so long, then fails, because other tasks need its cores. Twice as long would not help an operator more.
WAIT_S = 3600.0
_PAUSE_S = 1.0
#: The count of files is reported so often. Each time costs a line of the journal and a read by the service.
_REPORT_S = 2.0


class Progress:
    """Reports how many files of an attempt are at their targets, if that takes longer than a few seconds.

    Args:
        task: The attempt's task.
        total: Counts all files of its results.
        report_s: Seconds between two reported counts.
    """

    def __init__(self, task: Task, total: Callable[[], int], report_s: float = _REPORT_S) -> None:
        self._task, self._total, self._report_s = task, total, report_s
        self._files = self._of = 0
        self._due = time.monotonic() + report_s

    def __call__(self) -> None:
        """One more file is at its target."""
        self._files += 1
        if time.monotonic() < self._due:
            return
        self._of = self._of or self._total()
        self._task.waits(f"{self._files:,} of {max(self._of, self._files):,} files", "Delivering")
        self._due = time.monotonic() + self._report_s


def with_room(task: Task, what: str, target: str, act: Callable[[], None], wait_s: float = WAIT_S) -> None:
    """Write a result, again and again while there is no room for it.

    Args:
        task: The attempt's task.
        what: The result, in words.
        target: The result's path.
        act: Writes the result. The caller may repeat it after an OSError.
        wait_s: The longest wait for room.

    Raises:
        OSError: The write failed for another reason, found no room in time, or the service has asked for the attempt's end.
    """
    reported, end = "", time.monotonic() + wait_s
    try:
        while True:
            try:
                act()
            except OSError as error:
                if not is_full(error):
                    raise
                why = f"{what} finds no room: {shortage(error, target)}"
                if time.monotonic() >= end or release_grace_s(task.folder) is not None:
                    raise OSError(error.errno, why) from None
                if not reported:
                    reported = why
                    task.waits(why)
            else:
                return
            time.sleep(_PAUSE_S)
    finally:
        if reported:
            task.waits("")


def is_away(task: Task) -> bool:
    """Whether the folder of the node's attempts is away: a root that was renamed, or a disk that is not mounted.

    Such a disk leaves an empty folder at its place.
    """
    found = inode_of(os.path.dirname(task.folder))
    return not found or found != (task.home_inode or found)


def wait_for_folder(task: Task, wait_s: float = WAIT_S) -> None:
    """Wait while the folder of the node's attempts is away.

    Args:
        task: The attempt's task. Its results are there when the folder is back.
        wait_s: The longest wait.
    """
    end, reported = time.monotonic() + wait_s, False
    while is_away(task) and time.monotonic() < end:
        if not reported:
            reported = True
            task.waits(f"the folder {os.path.dirname(task.folder)} is away")
        time.sleep(_PAUSE_S)
    if reported:
        task.waits("")


def shortage(error: OSError, target: str) -> str:
    """Why a write found no room: the system's words, and the free bytes and inodes of the file system."""
    folder = os.path.dirname(target)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    words = error.strerror or str(error)
    try:
        found = os.statvfs(folder)
    except OSError:
        return f"{words}, at {target}"
    free = (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize
    return (
        f"{words}, at {target}; the file system of {folder} has {free} bytes and {found.f_favail} inodes free"
    )
