"""SQLite's connection: aiosqlite's, with one trip to its thread for a statement and its rows, or for a whole transaction.

aiosqlite makes a trip for the cursor, for the statement, for its rows and for the end of the cursor. Each trip wakes two
threads and costs a turn of the event loop; a service that runs small tasks makes some thirty statements a task. The group writer
makes one trip for its transaction with the commit (`whole`), without SQLAlchemy, whose part of a statement costs three times what
SQLite needs for one row.
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast

from aiosqlite import Connection
from sqlalchemy import TextClause

from flowsched.store.bulk import Statements

T = TypeVar("T")

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

    def __await__(self) -> Generator[None, None, Cursor]:
        """SQLAlchemy 2.0 waits for a cursor, 2.1 enters it."""
        yield from ()
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

    _beginning = ""

    def begin(self, statement: str) -> None:
        """Begin a transaction by this statement, on the same trip as the first statement in it."""
        self._beginning = statement

    async def in_thread(self, act: Any, *arguments: Any) -> Any:
        """Call something in the connection's thread, with SQLite's own connection before its arguments."""
        beginning, self._beginning = self._beginning, ""
        return await self._execute(_begun, self._conn, beginning, act, arguments)  # type: ignore[no-untyped-call]

    async def whole(self, work: Callable[[Statements], Coroutine[Any, Any, T]]) -> T:
        """Do a write transaction on one trip.

        Args:
            work: Its statements, with its commit or rollback. It may await nothing else, since it runs in the connection's thread.
        """
        self.begin("BEGIN IMMEDIATE")
        done: T = await self.in_thread(lambda database: _completed(work(SqliteStatements(database))))
        return done

    def cursor(self) -> Cursor:  # type: ignore[override]  # SQLAlchemy enters it, as it enters aiosqlite's
        """A cursor; nothing is asked of SQLite yet."""
        return Cursor(self)

    async def commit(self) -> None:
        """Commit the current transaction; makes no trip where there is none."""
        if self._is_open():
            await super().commit()

    async def rollback(self) -> None:
        """Roll back the current transaction; makes no trip where there is none."""
        if self._is_open():
            await super().rollback()

    def _is_open(self) -> bool:
        """Whether a transaction is open. One that was to be begun, and had no statement, is forgotten."""
        self._beginning = ""
        return self.in_transaction


def _begun(database: sqlite3.Connection, beginning: str, act: Any, arguments: tuple[Any, ...]) -> Any:
    """In the thread: begin a transaction, if one is to be begun, and act."""
    if beginning:
        database.execute(beginning)
    return act(database, *arguments)


class SqliteStatements:
    """Statements on a connection that belongs to this thread. Its methods wait for nothing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def execute(self, statement: TextClause, parameters: Mapping[str, Any] | None = None) -> Rows:
        """Execute a text with named parameters."""
        return self._done(self._connection.execute(statement.text, parameters or {}))

    async def exec_driver_sql(self, statement: str, parameters: Any) -> Rows:
        """Execute SQL with a tuple of parameters, or once for each tuple in a list."""
        if isinstance(parameters, list):
            return self._done(self._connection.executemany(statement, parameters))
        return self._done(self._connection.execute(statement, parameters))

    async def commit(self) -> None:
        """Keep what this transaction has written. It ends."""
        self._connection.commit()

    async def rollback(self) -> None:
        """Undo what this transaction has written. It ends."""
        self._connection.rollback()

    def _done(self, cursor: sqlite3.Cursor) -> Rows:
        if cursor.description is None:
            return Rows([], cursor.rowcount)
        names = tuple(column[0] for column in cursor.description)
        rows = list(map(_row_of(names)._make, cursor.fetchall()))
        return Rows(rows, cursor.rowcount)


class Rows(list[Any]):
    """What a statement gave back: rows whose columns are attributes, and how many rows it touched."""

    def __init__(self, rows: Iterable[Any], rowcount: int) -> None:
        super().__init__(rows)
        self.rowcount = rowcount

    def scalar_one(self) -> Any:
        """The only value."""
        ((value,),) = self
        return value


@cache
def _row_of(names: tuple[str, ...]) -> Any:
    """The class of rows with these columns. The statements are constants, so there are few."""
    return namedtuple("Row", names, rename=True)


def _completed(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    work.close()
    raise AssertionError("a statement of a SQLite transaction waits for something")


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
