"""`flowsched db move`: all rows of a database go into another one, both ways, and neither runs what the other has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select
from store_samples import end, event, finished, intent, submission, task

from flowsched.engine.delta import Delta
from flowsched.errors import ConfigurationError, InUse
from flowsched.store import tables
from flowsched.store.database import Database
from flowsched.store.identity import identify
from flowsched.store.lease import Lease
from flowsched.store.moving import move
from flowsched.store.workflows import Workflows
from flowsched.store.writer import GroupWriter

KEPT = [each for each in tables.metadata.sorted_tables if each.name not in ("marks", "lease", "identity")]


async def content(database: Database) -> dict[str, list[dict[str, Any]]]:
    """All rows that a move takes along as they are."""

    def work(connection: Connection) -> Any:
        return {
            table.name: sorted(
                (dict(row) for row in (connection.execute(select(table))).mappings()), key=repr
            )
            for table in KEPT
        }

    return await database.read(work)


async def fill(database: Database) -> None:
    """A workflow that has ended and one that runs, and a row of each kind of value: flags, blobs, nulls, Unicode."""
    epoch = await Lease(database).acquire("leader", 10_000, 0)
    assert epoch is not None
    async with GroupWriter(database) as writer:
        await writer.submit(submission("done", labels={"sample": "NA18507 ä"}, spec=b"\x00\xff" * 5_000))
        await writer.submit(submission("runs", key="k"))
        await writer.commit(finished("done"), epoch)
        await writer.commit(
            Delta(tasks=[task("runs", version=1)], intents=[intent("p", "runs", epoch=epoch)]), epoch
        )
        await writer.commit(Delta(ends=[end("p", message="\u2028")], events=[event("runs")]), epoch)

    def work(connection: Connection) -> None:
        connection.execute(insert(tables.queues), {"name": "lab", "paused": True, "reclaimable": False})
        connection.execute(insert(tables.drains), {"node": "node-0", "until_ms": 5, "reason": "new disk"})
        connection.execute(insert(tables.expired), {"workflow_id": "older", "at_ms": 9})

    await database.write(work)
    await Lease(database).release(epoch)


@pytest.mark.postgresql
async def test_a_database_moves_to_postgresql_and_back(
    tmp_path: Path, fresh_postgres: Callable[[], str]
) -> None:
    """Every row is there as it was, and so is the identity: the root knows the database again. Back it may replace its old copy."""
    file, server = str(tmp_path / "flowsched.db"), fresh_postgres()
    async with await Database.open(file) as small, await Database.open(server) as large:
        await fill(small)
        before, ident = await content(small), (await identify(small)).id
        assert {name for name, rows in before.items() if rows} >= {
            "workflows",
            "stages",
            "tasks",
            "attempts",
            "queues",
            "expired",
        }
        assert await move(small, large) == 2
        assert (await content(large), (await identify(large)).id) == (before, ident)
        with pytest.raises(ConfigurationError, match=r"flowsched\.db were moved to postgresql://"):
            await identify(small)
        with pytest.raises(ConfigurationError, match="were moved to"):
            await move(small, large)
        async with GroupWriter(large) as writer:
            assert (await writer.submit(submission("later"))).seq == 3
        assert (await writer_sees(large, "runs"), await Lease(large).acquire("next", 1_000, 0)) == (
            "PENDING",
            2,
        )
        await Lease(large).release(2)
        after = await content(large)
        assert await move(large, small) == 3
        assert (await content(small), (await identify(small)).id) == (after, ident)
        with pytest.raises(ConfigurationError, match=r"were moved to .*flowsched\.db"):
            await identify(large)


async def writer_sees(database: Database, workflow: str) -> str:
    return str((await Workflows(database).get(workflow)).state)


async def test_a_database_with_rows_of_its_own_is_not_written_over(tmp_path: Path) -> None:
    """Nor is one that a service uses, nor itself."""
    async with (
        await Database.open(str(tmp_path / "a.db")) as one,
        await Database.open(str(tmp_path / "b.db")) as two,
    ):
        await fill(one)
        async with GroupWriter(two) as writer:
            await writer.submit(submission("mine"))
        before = await content(two)
        with pytest.raises(ConfigurationError, match=r"b\.db has rows of its own"):
            await move(one, two)
        with pytest.raises(ConfigurationError, match="name another one"):
            await move(one, one)
        assert await content(two) == before
        assert (await identify(one)).moved_to == ""
        epoch = await Lease(one).acquire("leader", 10_000, 0)
        with pytest.raises(InUse, match=f"leader leads on {tmp_path}/a.db"):
            await move(one, two)
        assert epoch == 2


async def test_an_empty_database_that_a_service_has_started_on_is_new(tmp_path: Path) -> None:
    """It has a lease and an identity, and no row of a user."""
    async with (
        await Database.open(str(tmp_path / "a.db")) as one,
        await Database.open(str(tmp_path / "b.db")) as two,
    ):
        await fill(one)
        epoch = await Lease(two).acquire("leader", 10_000, 0)
        assert epoch == 1
        await Lease(two).release(1)
        theirs = await identify(two)
        assert await move(one, two) == 2
        assert await identify(two) != theirs
