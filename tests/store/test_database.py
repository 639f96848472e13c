"""Opening, schema versions, and the one process a SQLite file may have."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import new_schema
import pytest
from sqlalchemy import Connection, inspect, text
from store_samples import rows, submission

import flowsched
from flowsched import app
from flowsched.errors import ConfigurationError, InUse, StorageBusy, StorageCorrupt, Unavailable
from flowsched.store import database as schema
from flowsched.store.database import Database, FileLock, url_for
from flowsched.store.lease import Lease
from flowsched.store.writer import GroupWriter

ROOT = Path(flowsched.__file__).parents[1]

HOLD = """
import asyncio, sys
from flowsched.store.database import Database
async def main():
    async with await Database.open(sys.argv[1]):
        print("open", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def hold(url: str) -> subprocess.Popen[str]:
    """Another process that has the file open."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, url], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


async def test_a_new_database_is_durable_and_whole(database: Database) -> None:
    """What `doctor` says of a database we made."""
    facts = await database.doctor()
    assert facts["revision"] == facts["expected_revision"] == "0.1.0_2"
    assert facts["workflows"] == 0
    if database.kind == "sqlite":
        assert (facts["journal_mode"], facts["synchronous"], facts["foreign_keys"]) == ("wal", 2, 1)
        assert facts["integrity_check"] == "ok"
    else:
        assert facts["synchronous_commit"] == "on"
        assert facts["synchronous_standby_names"] == ""


async def test_a_request_that_comes_while_the_database_is_opened_waits_for_it(url: str) -> None:
    """The port opens first, and clients have been waiting in its queue: they are answered, not refused."""
    async with Database.attach(url) as database:
        writer = GroupWriter(database)
        async with writer:
            early = asyncio.create_task(database.doctor())
            accepted = asyncio.create_task(writer.submit(submission("wf-early")))
            await asyncio.sleep(0.1)
            assert not early.done()
            assert not accepted.done()
            await database.settle()
            assert (await accepted).workflow_id == "wf-early"
            facts = await early
    assert facts["revision"] == facts["expected_revision"]


async def test_the_revisions_make_the_tables(database: Database) -> None:
    """Autogenerate finds nothing to do, and the constant in the code is the newest script."""
    assert await database.read(schema.differences) == []
    assert schema.REVISION in schema.known_revisions()
    assert await database.current() == schema.REVISION


async def test_a_new_file_is_what_all_migrations_make(tmp_path: Path) -> None:
    """A new SQLite file is made by migrations/sqlite.sql: tables, indexes and first rows are those that the migrations leave."""
    assert (ROOT / "migrations" / "sqlite.sql").read_text() == new_schema.statements(), (
        "migrations/sqlite.sql is older than the migrations: run `python -m tests.store.new_schema`"
    )
    new_schema.migrated(tmp_path / "migrated.db")
    async with await Database.open(url_for(tmp_path / "made.db")):
        pass
    made, migrated = (contents(tmp_path / name) for name in ("made.db", "migrated.db"))
    assert made == migrated
    assert "workflows" in made
    assert made["alembic_version"][1] == [(schema.REVISION,)]


def contents(file: Path) -> dict[str, tuple[str, list[Any]]]:
    """Of everything in a file: its statement, and its rows."""
    connection = sqlite3.connect(file)
    made = connection.execute("SELECT name, type, sql FROM sqlite_master").fetchall()
    found = {
        name: (
            " ".join((sql or "").split()),
            connection.execute(f'SELECT * FROM "{name}"').fetchall() if kind == "table" else [],
        )
        for name, kind, sql in made
    }
    connection.close()
    return found


async def test_fault_12_down_and_up_again(database: Database) -> None:
    """To the bottom, where nothing is left, and back; a database that is up to date keeps its rows."""
    async with GroupWriter(database) as writer:
        await writer.submit(submission("w"))
    await database.upgrade()
    assert await rows(database, "SELECT id FROM workflows") == [("w",)]
    await database.downgrade("base")
    assert await database.current() is None
    tables = await database.read(lambda connection: inspect(connection).get_table_names())
    assert tables == ["alembic_version"]
    await database.upgrade()
    assert await rows(database, "SELECT count(*) FROM workflows") == [(0,)]


async def test_fault_12_a_newer_schema_is_refused(url: str) -> None:
    """An old binary on a new database refuses to start, whether it may migrate or not."""
    other = text("UPDATE alembic_version SET version_num = '9999'")
    async with await Database.open(url) as database:
        await database.write(lambda connection: connection.execute(other))
    for migrate in (True, False):
        with pytest.raises(ConfigurationError, match=r"9999.* is newer than this version"):
            await Database.open(url, migrate=migrate)


async def test_fault_12_an_older_schema_is_refused_without_migration(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where migration is off, the message names the command; where it is on, the schema comes up."""
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).touch()
    with pytest.raises(ConfigurationError, match="flowsched db upgrade"):
        await Database.open(url, migrate=False)
    facts = await app.database_facts(url)
    assert (facts["revision"], "workflows" in facts) == (None, False)  # a look says what is there
    async with await Database.open(url) as database:
        assert database.upgraded_from == ""
    new_schema.add_revision(tmp_path, monkeypatch)
    with pytest.raises(ConfigurationError, match=r"older \(0\.1\.0_2\) than this version needs \(next\)"):
        await Database.open(url, migrate=False)
    async with await Database.open(url) as database:
        assert (database.upgraded_from, await database.current()) == ("0.1.0_2", "next")
        assert await rows(database, "SELECT count(*) FROM added") == [(0,)]
    await (await Database.open(url, migrate=False)).close()


async def test_a_schema_that_was_never_released_is_refused(url: str) -> None:
    """Development versions had revisions 0001 to 0016; the message says what to do with what is in it."""
    other = text("UPDATE alembic_version SET version_num = '0016'")
    async with await Database.open(url) as database:
        await database.write(lambda connection: connection.execute(other))
    for migrate in (True, False):
        with pytest.raises(
            ConfigurationError, match=r"0016.* before the release of 0\.1\.0, .* start this one on a new --db"
        ):
            await Database.open(url, migrate=migrate)


async def test_old_workflows_are_not_removed_beside_a_leader(url: str) -> None:
    """Its memory would still have them. A file that a service has is refused by its lock already."""
    async with await Database.open(url) as database:
        await Lease(database).acquire("leader-1", 60_000, 0)
        with pytest.raises(InUse):
            await app.database_expire(url, 1)
        await Lease(database).release(1)
    assert await app.database_expire(url, 1) == 0


async def test_fault_18_a_second_process_is_refused(tmp_path: Path) -> None:
    """It is told who holds the file; when that one is killed, the file is free at once."""
    url = url_for(tmp_path / "store.db")
    other = hold(url)
    try:
        with pytest.raises(ConfigurationError, match=rf"in use by process {other.pid} on .+ since 20\d\d-"):
            await Database.open(url)
        async with await Database.open(url, exclusive=False) as beside:  # a look from beside is allowed
            assert (await beside.doctor())["integrity_check"] == "ok"
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert other.stdout is not None
        other.stdout.close()
    await (await Database.open(url)).close()


async def test_a_lock_that_a_killed_predecessor_has_just_left_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that it was starting has its lock until its own program begins: that is no second service."""
    url = url_for(tmp_path / "store.db")
    other = hold(url)
    acquire = FileLock.acquire
    refused: list[str] = []

    def counted(lock: FileLock) -> None:
        try:
            acquire(lock)
        except ConfigurationError as error:
            if not refused:
                other.kill()
                other.wait()
            refused.append(str(error))
            raise

    monkeypatch.setattr(FileLock, "acquire", counted)
    await (await Database.open(url)).close()
    assert len(refused) == 1
    assert other.stdout is not None
    other.stdout.close()


async def test_fault_18_a_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Tasks that outlive the service do not keep the next service from starting."""
    url = url_for(tmp_path / "store.db")
    database = await Database.open(url)
    child = subprocess.Popen(["sleep", "30"], close_fds=False)  # noqa: ASYNC220 - starts at once
    try:
        await database.close()
        await (await Database.open(url)).close()
    finally:
        child.kill()
        child.wait()


async def test_a_file_that_is_not_there_is_made_only_if_asked(tmp_path: Path) -> None:
    """`create=False` (doctor, db check) must not leave an empty file behind."""
    path = tmp_path / "folder" / "store.db"
    with pytest.raises(ConfigurationError, match="there is no database"):
        await Database.open(url_for(path), create=False)
    assert not path.parent.exists()
    await (await Database.open(str(path))).close()
    assert path.is_file()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host/db", "sqlite or postgresql"),
        ("sqlite://", "SQLite needs a file"),
        ("sqlite:///:memory:", "SQLite needs a file"),
        ("://", "cannot be read"),
        ("postgresql//me@host/x", "postgresql://user@host/name"),
        ("postgres:/x", "postgresql://user@host/name"),
        ("host=127.0.0.1 dbname=x", "postgresql://user@host/name"),
    ],
)
async def test_other_databases_are_refused(url: str, says: str) -> None:
    """The message says what can be used instead."""
    with pytest.raises(ConfigurationError, match=says):
        await Database.open(url)


def test_a_store_does_not_load_the_other_dialect() -> None:
    """It takes 25 ms of each start."""
    program = (
        "import sys\nfrom flowsched.app import assembled\nfrom flowsched.control.service import Service\n"
        "from flowsched.store.database import Database\n"
        "assert 'sqlalchemy.dialects.postgresql' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_postgresql_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'flowsched\[postgresql\]'"):
        await Database.open("postgresql://localhost/flowsched")


async def test_a_server_that_is_not_there_shows_no_password() -> None:
    """Unavailable, so that a service may wait for it; the URL in the message is without its secret."""
    with pytest.raises(Unavailable) as refusal:
        await Database.open("postgres://ann:canary@127.0.0.1:1/flowsched")
    assert "127.0.0.1" in str(refusal.value)
    assert "canary" not in str(refusal.value)


async def test_a_second_try_to_open_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """Another program that reads the database and goes does not take the log away that the service writes into."""
    path = tmp_path / "flowsched.db"
    async with await Database.open(url_for(path)) as database:
        await rows(database, "SELECT 1 FROM workflows")
        await database.settle()  # as after a try that found the database locked
        program = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM lease'); c.close()"
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program, str(path)], check=True)
        assert path.with_name("flowsched.db-wal").exists()


async def test_a_server_that_says_nothing_is_waited_for() -> None:
    """A stopped server's port still takes connections; psycopg's error for that is a class of its own."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unavailable, match="does not answer"):
            await Database.open(f"postgresql://ann@127.0.0.1:{port}/flowsched")


async def test_a_database_that_cannot_be_used_is_not_waited_for(tmp_path: Path) -> None:
    """A service that ends for it asks it a last time, to forget what it held: that is refused at once."""
    path = tmp_path / "flowsched.db"
    path.write_bytes(b"SQLite format 3\0" + os.urandom(8_000))
    database = Database.attach(url_for(path))
    with pytest.raises(ConfigurationError, match="cannot use"):
        await database.settle()
    with pytest.raises(Unavailable, match="has not opened its database yet: cannot use"):
        await asyncio.wait_for(database.opened(), timeout=5)
    await database.close()


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """Refused with a message, and not overwritten."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"these are my notes, and there are many of them" * 100)
    with pytest.raises(ConfigurationError, match="not a SQLite database"):
        await Database.open(url_for(path))
    assert path.read_bytes().startswith(b"these are my notes")


def test_migrations_are_found_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout they are at the top; in a wheel inside the package; without them the message says so."""
    assert schema.migrations_folder() == ROOT / "migrations"
    package = tmp_path / "flowsched"
    package.mkdir()
    monkeypatch.setattr(flowsched, "__file__", str(package / "__init__.py"))
    with pytest.raises(ConfigurationError, match="incomplete"):
        schema.migrations_folder()
    shutil.copytree(ROOT / "migrations", package / "_share" / "migrations")
    assert schema.migrations_folder() == package / "_share" / "migrations"
    assert schema.known_revisions() == {"0.1.0_2"}


async def test_an_error_of_the_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite says "malformed" of a read that fails with EIO: the service waits. Of a damaged file that can be read it ends."""
    malformed = sqlite3.DatabaseError("database disk image is malformed")
    malformed.sqlite_errorcode = 11

    def refused(_: Connection) -> None:
        raise malformed

    async with await Database.open(url_for(tmp_path / "flowsched.db")) as database:
        with monkeypatch.context() as patch:
            patch.setattr(
                database, "url", database.url.set(database="/proc/self/mem")
            )  # the kernel answers EIO
            patch.setattr(database, "check_file", lambda: None)
            with pytest.raises(StorageBusy, match="it cannot be read: Input/output error"):
                await database.read(refused)
        with pytest.raises(StorageCorrupt, match="is damaged: database disk image is malformed"):
            await database.read(refused)


async def test_a_damaged_file_is_read_again_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be large and its disk slow: the event loop goes on while another process reads it."""
    malformed = sqlite3.DatabaseError("database disk image is malformed")
    malformed.sqlite_errorcode = 11
    threads: list[threading.Thread] = []

    def refused(_: Connection) -> None:
        raise malformed

    def read(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        threads.append(threading.current_thread())
        return subprocess.CompletedProcess(command, 0, "", "")

    async with await Database.open(url_for(tmp_path / "flowsched.db")) as database:
        monkeypatch.setattr(subprocess, "run", read)
        with pytest.raises(StorageCorrupt):
            await database.read(refused)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
