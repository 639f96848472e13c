"""The log of a SQLite file keeps its blocks from one process to the next, so that a service can be started on a full disk.

SQLite removes `-wal` and `-shm` when the last connection is closed, and cannot open the file again where there is no room to make
them. They therefore have second names while the service runs, and get their own back after the last connection is closed.
Knows file names alone, and nothing of connections. Blocks, for a few system calls.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_SUFFIXES: Final = ("-wal", "-shm")
#: Of a log: without a valid one SQLite takes the log for empty, and writes over it.
_HEADER_BYTES: Final = 32


class KeptLog:
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

    def hold(self) -> None:
        """Give the log files that are there now a second name. Where that cannot be, they are not kept."""
        for path, kept in self._names:
            with contextlib.suppress(OSError):
                if path.exists() and not (kept.exists() and path.samefile(kept)):
                    kept.unlink(missing_ok=True)  # of a process that was killed
                    os.link(path, kept)

    def held(self) -> list[tuple[Path, Path]]:
        """The log files that have a second name, with it: to be asked while the database is open."""
        return [
            (path, kept)
            for path, kept in self._names
            if path.exists() and kept.exists() and path.samefile(kept)
        ]

    def bring_back(self, held: list[tuple[Path, Path]]) -> None:
        """Give the files that SQLite removed their names back: it does so only once all of the log is in the database.

        Args:
            held: What `held` said before the last connection was closed.
        """
        for path, kept in held:
            with contextlib.suppress(OSError):
                if path.exists():  # it was not removed: another program has the database open
                    kept.unlink()
                    continue
                if path.name.endswith("-wal"):
                    with kept.open("r+b") as file:
                        file.write(bytes(_HEADER_BYTES))
                kept.rename(path)
