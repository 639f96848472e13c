"""One process per SQLite file: an advisory lock on `<db>.lock`, held until the process ends.

The kernel frees the lock however the process dies, so there is nothing to clean up; the file only says who
holds it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from flowsched.errors import ConfigurationError, Unavailable

#: Bytes of what the file says, padded: it is written over, never emptied, so that it needs room only once.
_WIDTH = 400


class FileInUse(ConfigurationError):
    """Another process holds the lock."""


class FileLock:
    """The lock. A second one in the same process is refused as well."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(f"{database.name}.lock")
        self._file: int | None = None

    def acquire(self) -> None:
        """Take it, or say who has it. Does nothing where this object holds it.

        Raises:
            FileInUse: Another process holds it; the message names it.
            ConfigurationError: Its folder cannot be written.
            Unavailable: There is no room for it.
        """
        if self._file is not None:
            return
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Unavailable(f"cannot make the lock file {self.path}: {error.strerror}") from error
            raise ConfigurationError(f"cannot open the lock file {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise FileInUse(
                f"{self.path.with_suffix('')} is in use by {self.owner()}. One process may use a SQLite "
                "file: stop that one, choose another file, or use PostgreSQL for several"
            ) from error
        owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        with contextlib.suppress(OSError):  # on a full disk the old text stays; the lock is what counts
            os.pwrite(file, f"{owner:<{_WIDTH}}".encode(), 0)
        self._file = file

    def owner(self) -> str:
        """Who holds it, in words: process, host and since when (the file's own time, UTC)."""
        try:
            said = json.loads(self.path.read_bytes())
            since = datetime.fromtimestamp(self.path.stat().st_mtime, tz=UTC).isoformat(timespec="seconds")
            return f"process {said['pid']} on {said['host']} since {since}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def release(self) -> None:
        """Let it go; harmless if it is not held. The file stays: removing it would let two processes lock two
        files.
        """
        if self._file is not None:
            os.close(self._file)
            self._file = None
