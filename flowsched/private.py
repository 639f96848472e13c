"""Folders and files that only their owner can read: the root of a service, and the database wherever it lies.

Files that tasks deliver outside the root are not private: they have the mode that the user's umask gives.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

#: A folder that holds one of these is the root of a service, and of nothing else.
_MARKS: Final = ("in-use", "nodes", "secret", "token", "flowsched.db")
_DATABASE: Final = ("", "-wal", "-shm", "-journal", ".lock")


def make_root(root: Path) -> None:
    """Make the root of a service, or tighten one that is there, so that only its owner can read its entries.

    Closes a folder that is new, empty, or the root of an earlier start. In a folder that holds other things it closes only the
    service's own entries, because the folder may be a home folder, or /tmp.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = os.listdir(root)
    if (not entries or any(mark in entries for mark in _MARKS)) and not root.stat().st_mode & stat.S_ISVTX:
        tighten(root)
    for entry in root.iterdir():
        if entry.name in (*_MARKS, "secrets", "runners", "runner.log", "wes") or entry.name.startswith(
            "flowsched.db"
        ):
            tighten(entry)


def make_database(path: Path) -> None:
    """Make the file of a SQLite database, or tighten one that is there. SQLite would make it readable for other accounts.

    A file that is there is never opened: when a process closes any descriptor of a file, POSIX drops all locks that the process has
    on it, those of SQLite's open connections, too. Another program that then closed the database last would remove the log from
    under the service, and damage the database.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for suffix in _DATABASE:
        tighten(path.with_name(path.name + suffix))


def tighten(path: Path) -> None:
    """Remove the rights of the group and of others on a file or folder of this user. Skips links and files of other accounts."""
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o077 and status.st_uid == os.geteuid():
            path.chmod(stat.S_IMODE(status.st_mode) & 0o700)
