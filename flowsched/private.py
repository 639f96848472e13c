"""Folders and files that only their owner can read: the root of a service, and the database wherever it lies.

What tasks deliver to places outside the root is not private: it has the mode that the user's umask gives.
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
    """Make the root of a service, or tighten one that is there: what lies in it is its owner's alone.

    A folder that is new, empty, or the root of an earlier start is closed itself. In a folder that holds other things, only the
    service's own entries are: it may be a home folder, or /tmp.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = os.listdir(root)
    if (not entries or any(mark in entries for mark in _MARKS)) and not root.stat().st_mode & stat.S_ISVTX:
        tighten(root)
    for entry in root.iterdir():
        if entry.name in (*_MARKS, "secrets", "spawner.log") or entry.name.startswith("flowsched.db"):
            tighten(entry)


def make_database(path: Path) -> None:
    """Make the file of a SQLite database before SQLite does, which would let others read it; tighten one that is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for suffix in _DATABASE:
        tighten(path.with_name(path.name + suffix))


def tighten(path: Path) -> None:
    """Take away what the group and others may do with a file or folder of ours. Links and files of other accounts stay."""
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o077 and status.st_uid == os.geteuid():
            path.chmod(stat.S_IMODE(status.st_mode) & 0o700)
