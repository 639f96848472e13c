"""Statements of the group writer on SQLite's own connection, and how often they go to SQLite's thread."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from flowsched.store.database import Database
from flowsched.store.statements import SqliteStatements
from flowsched.store.writer import GroupWriter
from tests.house.second_ways import needs
from tests.store.store_samples import submission


def test_columns_are_attributes_and_counts_are_those_of_sqlite() -> None:
    """As of SQLAlchemy's connection. What is rolled back is gone."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE numbers (number INTEGER UNIQUE)")
    statements = SqliteStatements(connection)
    for _ in range(2):
        connection.execute("BEGIN")
        many = statements.exec_driver_sql("INSERT INTO numbers VALUES (?)", [(1,), (2,)])
        back = statements.exec_driver_sql("INSERT INTO numbers VALUES (?) RETURNING number", (7,))
        most = statements.execute(text("SELECT max(number) FROM numbers WHERE number < :n"), {"n": 7})
        rows = statements.execute(text("SELECT number, 5 AS five FROM numbers ORDER BY number"))
        assert (many.rowcount, back.scalar_one(), most.scalar_one()) == (2, 7, 2)
        assert [(row.number, row.five) for row in rows] == [(1, 5), (2, 5), (7, 5)]
        with pytest.raises(sqlite3.IntegrityError):
            statements.exec_driver_sql("INSERT INTO numbers VALUES (?)", [(1,)])
        statements.rollback()
    connection.close()


@needs("small_bodies")
async def test_a_transaction_of_the_writer_is_one_trip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statements and its commit: each trip wakes two threads."""
    trips: list[Any] = []
    real = ThreadPoolExecutor.submit

    def counted(self: ThreadPoolExecutor, act: Any, /, *args: Any, **kwargs: Any) -> Any:
        trips.append(act)
        return real(self, act, *args, **kwargs)

    async with await Database.open(str(tmp_path / "d.db")) as database, GroupWriter(database) as writer:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
        await writer.submit(submission("w"))
        assert len(trips) == 1
        await database.rows(text("SELECT 1"))
        assert len(trips) == 2
