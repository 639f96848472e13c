"""Faults from outside: power cuts, locks, full disks, a killed server. What was acknowledged is there
afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import postgres
import pytest
from sqlalchemy import event as sql_event
from store_samples import event, rows, submission, task

import flowsched
from flowsched.engine.delta import Delta
from flowsched.errors import StorageBusy, Unavailable
from flowsched.store.database import Database, url_for
from flowsched.store.lease import Lease
from flowsched.store.workflows import Which, Workflows
from flowsched.store.writer import GroupWriter

ROOT = Path(flowsched.__file__).parents[1]

#: Accepts workflows for ever and says each one's id as soon as it is acknowledged.
ACCEPT = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from store_samples import submission
from flowsched.store.database import Database
from flowsched.store.writer import GroupWriter
async def client(writer, side):
    for number in range(10**9):
        name = f"{side}-{number}"
        await writer.submit(submission(name, key=name))
        sys.stdout.write(name + "\\n"); sys.stdout.flush()
async def main():
    async with await Database.open(sys.argv[1]) as database, GroupWriter(database) as writer:
        await asyncio.gather(*(client(writer, side) for side in range(8)))
asyncio.run(main())
"""


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(url_for(tmp_path / "store.db")) as opened:
        yield opened


def copy_at_once(source: Path, target: Path) -> None:
    """What a power cut leaves (-shm is rebuilt). One file is copied after the other: who reads keeps the log from being
    begun anew in between, by which frames would be lost that are in neither copy.
    """
    with contextlib.closing(sqlite3.connect(source / "store.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM workflows").fetchone()
        for suffix in ("", "-wal"):
            shutil.copy(source / f"store.db{suffix}", target / f"store.db{suffix}")
        reader.execute("ROLLBACK")


async def test_fault_11_a_copy_at_any_moment_is_whole(tmp_path: Path, sqlite: Database) -> None:
    """Database and log copied while 20 clients write: each copy opens, is whole, and holds all acknowledged
    before.
    """
    acknowledged: list[str] = []
    copies: list[tuple[Path, set[str]]] = []

    async def client(writer: GroupWriter, side: int) -> None:
        number = 0
        while number < 60 or len(copies) < 6:
            name = f"{side}-{number}"
            await writer.submit(submission(name))
            acknowledged.append(name)
            number += 1

    async with GroupWriter(sqlite) as writer:
        writing = asyncio.gather(*(client(writer, side) for side in range(20)))
        while not writing.done():
            await asyncio.sleep(0.02)
            before, folder = set(acknowledged), tmp_path / f"copy{len(copies)}"
            folder.mkdir()
            await asyncio.to_thread(copy_at_once, tmp_path, folder)
            copies.append((folder / "store.db", before))
        await writing
    for path, before in copies:
        async with await Database.open(url_for(path), create=False) as copy:
            assert (await copy.doctor())["integrity_check"] == "ok"
            assert before <= {name for (name,) in await rows(copy, "SELECT id FROM workflows")}


@pytest.mark.parametrize("after_s", [0.15, 0.4])
def test_fault_11_a_killed_process_loses_nothing(tmp_path: Path, after_s: float) -> None:
    """Kill -9 in the middle of writing: every id that was said is there, once, with its stages."""
    url = url_for(tmp_path / "store.db")
    process = subprocess.Popen(
        [sys.executable, "-c", ACCEPT, url, str(Path(__file__).parent)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    first = b"".join(process.stdout.readline() for _ in range(9))  # more than one group of eight
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    said = [line.decode() for line in (first + process.stdout.read()).split(b"\n")[:-1]]
    process.stdout.close()
    process.wait()
    assert len(said) >= 9

    async def look() -> tuple[list[Any], Any]:
        async with await Database.open(url, create=False) as database:
            found = await rows(
                database,
                "SELECT w.id, count(*) FROM workflows w JOIN stages s ON s.workflow_id = w.id GROUP BY w.id",
            )
            return list(found), (await database.doctor())["integrity_check"]

    found, integrity = asyncio.run(look())
    assert integrity == "ok"
    assert set(said) <= {name for name, _ in found}
    assert {stages for _, stages in found} == {2}


async def test_fault_43_locked_by_a_backup(sqlite: Database, tmp_path: Path) -> None:
    """Another program holds the write lock for longer than SQLite waits: requests wait, then all are
    accepted.
    """
    backup = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    async with GroupWriter(sqlite) as writer:
        backup.execute("BEGIN IMMEDIATE")
        waiting = asyncio.gather(*(writer.submit(submission(f"w{n}")) for n in range(10)))
        await asyncio.sleep(2.5)
        assert not waiting.done()
        assert await Workflows(sqlite).count() == {}  # reading goes on meanwhile
        backup.execute("ROLLBACK")
        assert all(answer.created for answer in await asyncio.wait_for(waiting, 60))
    backup.close()


async def test_fault_43_locked_for_too_long(sqlite: Database, tmp_path: Path) -> None:
    """Beyond the limit the answer is StorageBusy; once the lock is gone the same writer accepts again."""
    backup = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    async with GroupWriter(sqlite, retry_s=1.0) as writer:
        backup.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageBusy):
            await writer.submit(submission("w"))
        with pytest.raises(StorageBusy):
            await Lease(sqlite).acquire("a", 1_000, 0)
        backup.execute("ROLLBACK")
        assert (await writer.submit(submission("w"))).seq == 1
    backup.close()


async def test_fault_43_disk_full(sqlite: Database) -> None:
    """No page more may be allocated: writes wait and then fail, reads go on; with room again all is well and
    whole.
    """
    most = {"pages": 2**30}

    def limit(connection: Any, _record: object, _proxy: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA max_page_count={most['pages']}")
        cursor.close()

    sql_event.listen(sqlite.engine, "checkout", limit)
    async with GroupWriter(sqlite) as writer:
        await writer.submit(submission("before"))
    async with GroupWriter(sqlite, retry_s=0.5) as writer:
        most["pages"] = 1  # SQLite keeps it at the present size
        await sqlite.write(lambda connection: limit(connection.connection, None, None))
        spec = os.urandom(6_000_000)  # more than the headroom in the file
        with pytest.raises(StorageBusy, match="busy or away"):
            await writer.submit(submission("big", spec=spec))
        assert [row.id for row in await Workflows(sqlite).page(Which(), 100)] == ["before"]
    async with GroupWriter(sqlite) as writer:  # which does not give up while this test looks elsewhere
        waiting = asyncio.create_task(writer.submit(submission("big", spec=spec)))
        await asyncio.sleep(0.1)
        most["pages"] = 2**30
        assert (await waiting).created
    facts = await sqlite.doctor()
    assert (facts["integrity_check"], facts["workflows"]) == ("ok", 2)


@pytest.fixture
def own_server() -> Iterator[postgres.Server]:
    """A server of one's own, syncing as in production, to be killed."""
    server = postgres.start_or_skip(fsync=True)
    yield server
    server.remove()


async def away(reads: Workflows) -> None:
    """Wait until a killed server answers nobody: its backends end when they notice."""
    async with asyncio.timeout(60):
        while True:
            try:
                await reads.count()
            except Unavailable:
                return
            await asyncio.sleep(0.05)


@pytest.mark.postgresql
async def test_fault_19_a_killed_server_loses_nothing(own_server: postgres.Server) -> None:
    """Kill -9 of PostgreSQL twice while clients and a leader write: they go on, and nothing is lost."""
    url = own_server.fresh()
    acknowledged: list[str] = []
    versions = 0
    going = True
    async with await Database.open(url) as database, GroupWriter(database, retry_s=300) as writer:
        epoch = await Lease(database).acquire("a", 600_000, 0)
        assert epoch == 1
        await writer.submit(submission("leader"))

        async def client(side: int) -> None:
            number = 0
            while going:
                name = f"{side}-{number}"
                await writer.submit(submission(name, key=name))
                acknowledged.append(name)
                number += 1

        async def leader() -> None:
            nonlocal versions
            while going:
                await writer.commit(
                    Delta(tasks=[task("leader", version=versions + 1)], events=[event("leader")]), 1
                )
                versions += 1

        running = asyncio.gather(*(client(side) for side in range(8)), leader())
        for _ in range(2):
            await asyncio.sleep(0.5)
            before = len(acknowledged)
            await asyncio.to_thread(own_server.kill)
            await away(Workflows(database))
            await asyncio.to_thread(own_server.start)
            async with asyncio.timeout(60):
                while len(acknowledged) <= before + 8:
                    await asyncio.sleep(0.05)
        going = False
        await running
        assert writer.retries > 0
        found = {name for (name,) in await rows(database, "SELECT id FROM workflows")}
        assert set(acknowledged) | {"leader"} == found
        assert await rows(database, "SELECT version FROM tasks") == [(versions,)]
        ((count, last),) = await rows(database, "SELECT count(*), max(id) FROM events")
        assert count == last == versions + len(acknowledged) + 1
