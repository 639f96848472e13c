"""Moving a database: all rows of one into another, SQLite or PostgreSQL, with its identity, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, delete, func, insert, select, text

from flowsched.errors import ConfigurationError, InUse
from flowsched.store import tables
from flowsched.store.database import Database, engine_of_a_thread
from flowsched.store.lease import Lease

#: Tables of a process that has ended; the new database has its own rows.
_LEFT: Final = frozenset({tables.marks})
#: Tables that a service fills in a database that has no workflow yet.
_FIRST: Final = frozenset({tables.lease, tables.counters, tables.marks, tables.identity})
_MOVED: Final = tables.metadata.sorted_tables  # a table after those that it refers to
_ROWS: Final = 1_000


async def not_led(database: Database) -> None:
    """See that no service leads on a database.

    Raises:
        InUse: One does.
    """
    leader = await Lease(database).read()
    if leader.live:
        raise InUse(
            f"{leader.holder} leads on {database.place}: stop the service first (after a kill its lease lasts 15 s more)"
        )


async def move(source: Database, target: Database) -> int:
    """Move all rows. The source keeps its own, and from then on refers to the new database; no service starts with it.

    Args:
        source: Both are open, with the newest schema.
        target: New, or the source of an earlier move of these rows.

    Returns:
        How many workflows were moved.

    Raises:
        InUse: A service leads on one of them.
        ConfigurationError: The target has rows of its own, or the rows of the source are elsewhere.
    """
    for each in (source, target):
        await not_led(each)
    if source.place == target.place:
        raise ConfigurationError(
            f"{source.place} is the database that is to be moved: name another one to move it to"
        )
    workflows = await target.in_thread(_copy, source, target)
    moved = insert(tables.identity).values(name="moved_to", value=target.place)
    await source.write(lambda old: old.execute(moved))  # a stop before this leaves two whole copies
    return workflows


def _copy(source: Database, target: Database) -> int:
    """Copy all rows, in one transaction; returns how many workflows."""
    with _connected(source) as old, _connected(target) as new:
        if moved_to := (theirs := _identity(old)).get("moved_to"):
            raise ConfigurationError(
                f"the workflows of {source.place} were moved to {moved_to}: move them from there"
            )
        ours = _identity(new)
        if not (ours.get("moved_to") and ours.get("id") == theirs.get("id")):
            _check_new(new, target.place)
        for table in reversed(_MOVED):
            new.execute(delete(table))
        for table in _MOVED:
            if table in _LEFT:
                continue
            copied = 0
            for rows in old.execution_options(yield_per=_ROWS).execute(select(table)).mappings().partitions():
                new.execute(insert(table), [dict(row) for row in rows])
                copied += len(rows)
            there = new.execute(select(func.count()).select_from(table)).scalar_one()
            assert there == copied, f"{table.name}: {there} rows of {copied}"
        new.execute(
            text("UPDATE lease SET expires_ms = 0 WHERE name = 'leader'")
        )  # of a service that is not there
        workflows: int = new.execute(select(func.count()).select_from(tables.workflows)).scalar_one()
        return workflows


@contextmanager
def _connected(database: Database) -> Iterator[Connection]:
    """A transaction of this thread."""
    sqlite = database.kind == "sqlite"
    engine = engine_of_a_thread(database.url)
    try:
        with engine.connect() as connection, connection.begin():
            connection.exec_driver_sql(
                "BEGIN IMMEDIATE" if sqlite else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
            )
            yield connection
    finally:
        engine.dispose()


def _identity(connection: Connection) -> dict[str, Any]:
    return {row.name: row.value for row in connection.execute(select(tables.identity))}


def _check_new(connection: Connection, place: str) -> None:
    for table in _MOVED:
        if table not in _FIRST and (connection.execute(select(table).limit(1))).first() is not None:
            raise ConfigurationError(
                f"{place} has rows of its own ({table.name}): name a database that is empty, or a new file"
            )
