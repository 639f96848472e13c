"""Which database errors pass by themselves, and how long to wait for that.

Transient is what another try may get past: locks, a full disk that someone empties, deadlocks, lost
connections, a server that starts. Everything else is the statement's own fault, and is told at once.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

#: SQLite's primary result codes: BUSY, LOCKED, READONLY (a file system that was remounted so), IOERR, FULL,
#: CANTOPEN, PROTOCOL.
_SQLITE: Final = frozenset({5, 6, 8, 10, 13, 14, 15})
#: SQLite's NOTADB and CORRUPT.
_SQLITE_CORRUPT: Final = frozenset({11, 26})
#: SQLSTATEs of PostgreSQL's "data corrupted" and "index corrupted".
_CORRUPT: Final = frozenset({"XX001", "XX002"})
#: SQLSTATE classes: connection, rollback (serialization, deadlock), resources (disk full), operator
#: (shutdown).
_CLASSES: Final = frozenset({"08", "40", "53", "57"})
#: Single SQLSTATEs: lock not available, a read-only server (failover in progress), idle session ended.
_STATES: Final = frozenset({"55P03", "25006", "25P03"})


def is_transient(error: BaseException) -> bool:
    """Whether another try may succeed."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or _driver_says(error.orig)
    return isinstance(error, (PoolTimeout, TimeoutError, OSError)) or _driver_says(error)


def _driver_says(error: BaseException | None) -> bool:
    """Read SQLite's or PostgreSQL's own code."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return state[:2] in _CLASSES or state in _STATES
    # psycopg tells of a lost connection, or one that was not made in time, by an OperationalError without any state.
    return hasattr(error, "sqlstate") and any(
        each.__name__ == "OperationalError" for each in type(error).__mro__
    )


def is_corrupt(error: BaseException) -> bool:
    """Whether the database says that its own files are damaged: every further write could damage them more."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _SQLITE_CORRUPT
    return getattr(cause, "sqlstate", None) in _CORRUPT


def pauses(jitter: Callable[[], float], first_s: float = 0.01, longest_s: float = 1.0) -> Iterator[float]:
    """Growing pauses without end, each between half and all of twice the last: two writers soon stop
    colliding.
    """
    limit = first_s
    while True:
        yield limit * (0.5 + jitter() / 2)
        limit = min(limit * 2, longest_s)


def chance() -> float:
    """A number in [0, 1) from the system, for those who do not pass their own."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
