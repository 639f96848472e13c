"""The statements of a transaction of the group writer: on SQLAlchemy's connection, or directly on SQLite's."""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Coroutine, Iterable, Mapping
from functools import cache
from typing import Any, Protocol, TypeVar, cast

from sqlalchemy import TextClause

T = TypeVar("T")


class Statements(Protocol):
    """The methods that writes call on an open transaction: of SQLAlchemy's `Connection` and of `SqliteStatements`."""

    def execute(self, statement: TextClause, parameters: Mapping[str, Any] | None = None) -> Any:
        """Execute a text with named parameters."""

    def exec_driver_sql(self, statement: str, parameters: Any) -> Any:
        """Execute SQL of the driver with one or several sets of parameters."""

    def rollback(self) -> None:
        """Undo the writes of this transaction. It ends."""


class SqliteStatements:
    """Statements on SQLite's own connection. SQLAlchemy's part of a statement takes three times as long as SQLite's for one row."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: TextClause, parameters: Mapping[str, Any] | None = None) -> Rows:
        """Execute a text with named parameters."""
        return self._done(self._connection.execute(statement.text, parameters or {}))

    def exec_driver_sql(self, statement: str, parameters: Any) -> Rows:
        """Execute SQL with a tuple of parameters, or once for each tuple in a list."""
        if isinstance(parameters, list):
            return self._done(self._connection.executemany(statement, parameters))
        return self._done(self._connection.execute(statement, parameters))

    def rollback(self) -> None:
        """Undo the writes of this transaction. It ends."""
        self._connection.rollback()

    def _done(self, cursor: sqlite3.Cursor) -> Rows:
        if cursor.description is None:
            return Rows([], cursor.rowcount)
        names = tuple(column[0] for column in cursor.description)
        rows = list(map(_row_of(names)._make, cursor.fetchall()))
        return Rows(rows, cursor.rowcount)


class Rows(list[Any]):
    """The result of a statement: rows whose columns are attributes, and how many rows it touched."""

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


def completed(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    work.close()
    raise AssertionError("a statement of a SQLite transaction waits for something")
