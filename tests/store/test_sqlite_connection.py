"""SQLite's connection: how many trips to its thread a statement takes, and that its rows are all there."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from flowsched.store import sqlite_connection
from flowsched.store.bulk import Statements
from flowsched.store.database import Database
from flowsched.store.sqlite_connection import OneTrip, connect
from flowsched.store.writer import GroupWriter
from tests.store.store_samples import submission

MANY = 2 * sqlite_connection._WITH_ANSWER + 7


@pytest.fixture
async def trips(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What has been asked of the threads of connections."""
    seen: list[Any] = []
    real = OneTrip._execute

    async def counted(self: OneTrip, act: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(act)
        return await real(self, act, *args, **kwargs)

    monkeypatch.setattr(OneTrip, "_execute", counted)
    return seen


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """A database with a table of `MANY` numbers."""
    async with await Database.open(str(tmp_path / "d.db")) as database:
        async with database.writing() as connection:
            await connection.execute(text("CREATE TABLE numbers (n INTEGER PRIMARY KEY)"))
            await connection.execute(text("INSERT INTO numbers VALUES (:n)"), [{"n": n} for n in range(MANY)])
        yield database.engine


async def test_a_statement_with_its_rows_is_one_trip(engine: AsyncEngine, trips: list[Any]) -> None:
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
        trips.clear()
        found = (await connection.execute(text("SELECT n FROM numbers WHERE n < 5"))).scalars().all()
        assert list(found) == [0, 1, 2, 3, 4]
        assert len(trips) == 1
        trips.clear()
        await connection.commit()
        await connection.rollback()
        assert len(trips) == 1, "there was nothing to roll back"


async def test_all_rows_of_a_long_answer_come(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        found = (await connection.execute(text("SELECT n FROM numbers ORDER BY n"))).scalars().all()
        assert list(found) == list(range(MANY))
        result = await connection.stream(text("SELECT n FROM numbers ORDER BY n"))
        seen = [n async for rows in result.partitions(300) for (n,) in rows]
        assert seen == list(range(MANY))


async def test_rows_that_nobody_reads_do_not_hold_the_table(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        result = await connection.stream(text("SELECT n FROM numbers ORDER BY n"))
        assert (await result.fetchmany(3))[0] == (0,)
        await result.close()
        await connection.execute(text("DROP TABLE numbers"))
        await connection.commit()


async def test_counts_and_errors_are_those_of_sqlite(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        changed = await connection.execute(text("UPDATE numbers SET n = -n WHERE n BETWEEN 1 AND 3"))
        assert changed.rowcount == 3
        given = await connection.execute(text("INSERT INTO numbers VALUES (-9) RETURNING n"))
        assert given.scalar_one() == -9
    with pytest.raises(IntegrityError):
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO numbers VALUES (-9)"))


async def test_a_cursor_alone(tmp_path: Path) -> None:
    connection = await connect(str(tmp_path / "one.db"))
    cursor = connection.cursor()
    assert await cursor is cursor, "as SQLAlchemy 2.0 asks for one"
    await cursor.execute("CREATE TABLE t (n)")
    await cursor.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
    assert cursor.rowcount == 2
    await cursor.execute("SELECT n FROM t ORDER BY n")
    assert await cursor.fetchone() == (1,)
    assert await cursor.fetchmany() == [(2,)]
    assert await cursor.fetchone() is None
    with pytest.raises(sqlite3.OperationalError):
        await cursor.execute("SELECT nothing FROM t")
    await cursor.close()
    await connection.close()


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[OneTrip]:
    connection = await connect(str(tmp_path / "numbers.db"), isolation_level=None)
    await connection.cursor().execute("CREATE TABLE numbers (number INTEGER UNIQUE)")
    yield connection
    await connection.close()


async def filled(connection: OneTrip, count: int) -> None:
    rows = [(number,) for number in range(count)]
    await connection.cursor().executemany("INSERT INTO numbers VALUES (?)", rows)


async def test_a_transaction_begins_with_its_first_statement(opened: OneTrip) -> None:
    """One that has no statement leaves nothing open; one that is rolled back leaves nothing behind."""
    opened.begin("BEGIN IMMEDIATE")
    assert not opened.in_transaction
    await opened.rollback()
    await opened.cursor().execute("SELECT 1")
    assert not opened.in_transaction
    opened.begin("BEGIN IMMEDIATE")
    await filled(opened, 3)
    assert opened.in_transaction
    await opened.rollback()
    assert not await (await opened.cursor().execute("SELECT * FROM numbers")).fetchall()


async def test_statements_of_a_whole_transaction(opened: OneTrip) -> None:
    """Columns are attributes, counts are those of SQLite, and nothing is kept without the commit."""

    async def work(statements: Statements, *, kept: bool) -> tuple[object, ...]:
        many = await statements.exec_driver_sql("INSERT INTO numbers VALUES (?)", [(1,), (2,)])
        back = await statements.exec_driver_sql("INSERT INTO numbers VALUES (?) RETURNING number", (7,))
        most = await statements.execute(text("SELECT max(number) FROM numbers WHERE number < :n"), {"n": 7})
        rows = await statements.execute(text("SELECT number, 5 AS five FROM numbers ORDER BY number"))
        await (statements.commit() if kept else statements.rollback())
        return many.rowcount, back.scalar_one(), most.scalar_one(), [(row.number, row.five) for row in rows]

    for kept in (False, True):
        assert await opened.whole(partial(work, kept=kept)) == (2, 7, 2, [(1, 5), (2, 5), (7, 5)])
        assert not opened.in_transaction
    assert len(await (await opened.cursor().execute("SELECT * FROM numbers")).fetchall()) == 3


async def test_an_error_in_a_whole_transaction_is_the_drivers(opened: OneTrip) -> None:
    """The transaction stays open for the rollback."""

    async def work(statements: Statements) -> None:
        await statements.exec_driver_sql("INSERT INTO numbers VALUES (?)", [(1,), (1,)])

    with pytest.raises(sqlite3.IntegrityError):
        await opened.whole(work)
    assert opened.in_transaction
    await opened.rollback()
    assert not await (await opened.cursor().execute("SELECT * FROM numbers")).fetchall()


async def test_a_transaction_of_the_writer_is_one_trip(tmp_path: Path, trips: list[Any]) -> None:
    """Its statements and its commit: each trip wakes two threads."""
    async with await Database.open(str(tmp_path / "d.db")) as database, GroupWriter(database) as writer:
        await writer.submit(submission("w"))  # opens the connection
        trips.clear()
        await writer.submit(submission("x"))
        assert len(trips) == 1
