"""The log of a SQLite file keeps its blocks from one process to the next, so that a service can start on a full disk.

SQLite removes `-wal` and `-shm` when the last connection closes. It cannot open the file again without room for new ones.
`RetainedLog` therefore gives them second names while the service runs, and their own names back after the last connection has
closed. It knows file names alone, and nothing of connections. Blocks, for a few system calls.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_SUFFIXES: Final = ("-wal", "-shm")
#: The header of a log. Without a valid header SQLite takes the log for empty, and writes over it.
_HEADER_BYTES: Final = 32


class RetainedLog:
    """The log files of one database. The caller has the lock of the database, and alone opens it.

    Args:
        database: The SQLite file.
    """

    def __init__(self, database: Path) -> None:
        self._names = [
            (database.with_name(database.name + suffix), database.with_name(f"{database.name}{suffix}-kept"))
            for suffix in _SUFFIXES
        ]

    @property
    def log_bytes(self) -> int:
        """Length of the log."""
        path = self._names[0][0]
        return path.stat().st_size if path.exists() else 0

    def link(self) -> None:
        """Give the present log files a second name. A file that the system gives no second name is lost at the end."""
        for path, second in self._names:
            with contextlib.suppress(OSError):
                if path.exists() and not (second.exists() and path.samefile(second)):
                    second.unlink(missing_ok=True)  # a killed process has left it
                    os.link(path, second)

    def restore(self) -> None:
        """Give removed log files their names back: commits are in them that are not in the database yet."""
        for path, second in self._names:
            if not os.path.exists(path) and os.path.exists(second):
                with contextlib.suppress(OSError):
                    os.link(second, path)

    def linked(self) -> list[tuple[Path, Path]]:
        """The log files that have a second name, with it. Call it while the database is open."""
        return [
            (path, second)
            for path, second in self._names
            if path.exists() and second.exists() and path.samefile(second)
        ]

    def bring_back(self, linked: list[tuple[Path, Path]]) -> None:
        """Give the files that SQLite removed their names back. SQLite removes a log only once all of it is in the database.

        Args:
            linked: The result of `linked` from before the last connection closed.
        """
        for path, second in linked:
            with contextlib.suppress(OSError):
                if path.exists():  # SQLite did not remove it: another program has the database open
                    second.unlink()
                    continue
                if path.name.endswith("-wal"):
                    with second.open("r+b") as file:
                        file.write(bytes(_HEADER_BYTES))
                os.link(
                    second, path
                )  # fails where another program has just made one: a rename would take its log from it
                second.unlink()
