"""SQLite's connection: aiosqlite's, with one trip to its thread for a statement and its rows.

aiosqlite makes a trip for the cursor, for the statement, for its rows and for the end of the cursor. Each trip wakes two
threads and costs a turn of the event loop; a service that runs small tasks makes some thirty statements a task.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from aiosqlite import Connection

#: Rows that come with the answer to a statement; the others are fetched as they are asked for.
_WITH_ANSWER: Final = 2_000
_PER_ITERATION: Final = 64  # what aiosqlite takes for its own cursors

Row = tuple[Any, ...]


class Cursor:
    """One statement and its rows, as SQLAlchemy asks for them (PEP 249 with coroutines).

    Args:
        connection: Where the statement runs.
    """

    def __init__(self, connection: OneTrip) -> None:
        self._connection = connection
        self._open: sqlite3.Cursor | None = None  #: while SQLite has more rows
        self._rows: list[Row] = []  #: fetched, and not asked for yet
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> Cursor:
        return self

    async def execute(self, statement: str, parameters: Any = ()) -> Cursor:
        """Run a statement."""
        await self._connection.in_thread(self._execute, "execute", statement, parameters)
        return self

    async def executemany(self, statement: str, parameters: Any) -> Cursor:
        """Run a statement for each of several parameter sets."""
        await self._connection.in_thread(self._execute, "executemany", statement, parameters)
        return self

    async def fetchall(self) -> list[Row]:
        """Every row that is left."""
        if self._open is not None:
            await self._connection.in_thread(self._fetch, -1)
        rows, self._rows = self._rows, []
        return rows

    async def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows.

        Args:
            size: At most so many; default `arraysize`.
        """
        count = self.arraysize if size is None else size
        if self._open is not None and len(self._rows) < count:
            await self._connection.in_thread(self._fetch, max(count, _WITH_ANSWER))
        rows, self._rows = self._rows[:count], self._rows[count:]
        return rows

    async def fetchone(self) -> Row | None:
        """The next row; None after the last."""
        rows = await self.fetchmany(1)
        return rows[0] if rows else None

    async def close(self) -> None:
        """Give up rows that nobody has asked for."""
        self._rows = []
        if self._open is not None:
            await self._connection.in_thread(self._close)

    def _execute(self, database: sqlite3.Connection, how: str, statement: str, parameters: Any) -> None:
        """In the thread: the statement, and the first of its rows."""
        self._close(database)
        cursor: sqlite3.Cursor = getattr(database, how)(statement, parameters)
        self.description = cursor.description
        self._open, self._rows = cursor, []
        if cursor.description:
            self._fetch(database, _WITH_ANSWER)
        else:
            self._open = None
        self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid

    def _fetch(self, database: sqlite3.Connection, count: int) -> None:
        """In the thread: the next `count` rows, or all where it is negative."""
        cursor = self._open
        if cursor is None:
            return
        rows = cursor.fetchall() if count < 0 else cursor.fetchmany(count)
        self._rows += rows
        if count < 0 or len(rows) < count:
            self._close(database)

    def _close(self, _database: sqlite3.Connection) -> None:
        cursor, self._open = self._open, None
        if cursor is not None:
            cursor.close()


class OneTrip(Connection):
    """A connection whose cursors make one trip to its thread for a statement. See `connect`."""

    async def in_thread(self, act: Any, *arguments: Any) -> Any:
        """Call something in the connection's thread, with SQLite's own connection before its arguments."""
        return await self._execute(act, self._conn, *arguments)  # type: ignore[no-untyped-call]

    def cursor(self) -> Cursor:  # type: ignore[override]  # SQLAlchemy enters it, as it enters aiosqlite's
        """A cursor; nothing is asked of SQLite yet."""
        return Cursor(self)

    async def rollback(self) -> None:
        """Roll back the current transaction; makes no trip where there is none."""
        if self.in_transaction:
            await super().rollback()


async def connect(path: str, **options: Any) -> OneTrip:
    """Open a file, for `create_async_engine(async_creator=…)`.

    Args:
        path: Of the file.
        **options: Of `sqlite3.connect`.
    """
    connection = OneTrip(lambda: sqlite3.connect(path, **options), _PER_ITERATION)
    thread: Any = getattr(connection, "_thread", connection)  # aiosqlite before 0.22 is a thread
    thread.daemon = True  # a connection that nobody has closed does not keep the process alive
    await connection
    return connection
