"""Results that find no room where they shall lie: the attempt waits for room and says so, since what it has computed is worth more.

The reason lies in the attempt's folder (`waits`), from where the service tells it to those who ask. Standard library alone.
"""

from __future__ import annotations

import os
import time

from .records import Record, is_full, poke, write_record
from .task import release_grace_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .task import Task

#: The file with the reason, while the attempt waits.
WAITS = "waits"
#: So long, then the attempt fails: its cores are missed by others. Twice that changes nothing for those who clean up by hand.
WAIT_S = 3600.0
_PAUSE_S = 1.0


def with_room(task: Task, what: str, target: str, act: Callable[[], None], wait_s: float = WAIT_S) -> None:
    """Do something that writes a result, again and again while there is no room for it.

    Args:
        task: Of the attempt.
        what: The result, in words.
        target: The path that it shall have.
        act: Writes it. After an OSError it can be done again.
        wait_s: How long to wait for room at most.

    Raises:
        OSError: It cannot be written, for another reason, or no room was found in time, or the attempt's end is asked for.
    """
    said, end = "", time.monotonic() + wait_s
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
                if not said:
                    said = why
                    _tell(task, why)
            else:
                return
            time.sleep(_PAUSE_S)
    finally:
        if said:
            _forget(task)


def shortage(error: OSError, target: str) -> str:
    """What a write failed by that found no room: the system's words, and what is free there."""
    folder = os.path.dirname(target)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    said = error.strerror or str(error)
    try:
        found = os.statvfs(folder)
    except OSError:
        return f"{said}, at {target}"
    free = (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize
    return (
        f"{said}, at {target}; the file system of {folder} has {free} bytes and {found.f_favail} inodes free"
    )


def _tell(task: Task, why: str) -> None:
    record: Record = {"why": why}
    try:
        write_record(task.folder, WAITS, record)
    except OSError:
        return  # the root is full too, which the service says by itself
    poke(str(task.order["root"]), str(task.order["name"]))


def _forget(task: Task) -> None:
    if os.path.exists(f"{task.folder}/{WAITS}"):
        os.unlink(f"{task.folder}/{WAITS}")
