"""The database: opening SQLite (one process) or PostgreSQL (several), its schema and lock, and errors that pass by themselves.

This module decides wherever the two differ. SQLite runs in WAL mode with `synchronous=FULL`: a commit that was answered
survives a power cut. A write transaction begins IMMEDIATE, so that it fails at its start rather than in its middle; a reading
one never waits for the writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, cast

import msgspec
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Row,
    bindparam,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

import flowsched
from flowsched.errors import (
    ConfigurationError,
    FlowschedError,
    InUse,
    StorageBusy,
    StorageCorrupt,
    Unavailable,
)
from flowsched.private import make_database
from flowsched.store.headroom import RetainedLog
from flowsched.store.statements import SqliteStatements, Statements, completed
from flowsched.store.tables import with_partial_indexes
from flowsched.version import VERSION

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.ext.asyncio import AsyncEngine

#: Bytes of the file's text, padded: it is written over, never emptied, so that it needs room only once.
_WIDTH = 400


class FileLock:
    """The lock. A second one in the same process is refused as well."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(f"{database.name}.lock")
        self._file: int | None = None

    def acquire(self) -> None:
        """Take it, or name the process that has it. Does nothing where this object holds it.

        Raises:
            InUse: Another process holds it; the message names it.
            ConfigurationError: Its folder cannot be written.
            Unavailable: There is no room for it.
        """
        if self._file is not None:
            return
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Unavailable(f"cannot make the lock file {self.path}: {error.strerror}") from error
            raise ConfigurationError(f"cannot open the lock file {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise InUse(
                f"{self.path.with_suffix('')} is in use by {self.owner()}. One process may use a SQLite "
                "file: stop that one, choose another file, or use PostgreSQL for several"
            ) from error
        owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        with contextlib.suppress(OSError):  # on a full disk the old text stays; the lock is what counts
            os.pwrite(file, f"{owner:<{_WIDTH}}".encode(), 0)
        self._file = file

    def owner(self) -> str:
        """The holder, in words: process, host and since when (the file's own time, UTC)."""
        try:
            found = json.loads(self.path.read_bytes())
            since = datetime.fromtimestamp(self.path.stat().st_mtime, tz=UTC).isoformat(timespec="seconds")
            return f"process {found['pid']} on {found['host']} since {since}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def release(self) -> None:
        """Let it go; harmless if it is not held. The file stays: removing it would let two processes lock two
        files.
        """
        if self._file is not None:
            os.close(self._file)
            self._file = None


# ---- the schema: which one a database has, and how it gets the one this version needs (alembic, in `migrations/`) ----


#: The newest revision in `migrations/versions`: known here so that an ordinary start need not load alembic.
REVISION: Final = "0.1.0_2"
#: Revisions of builds before the release of 0.1.0. In those that made "0.1.0" states of tasks had other numbers.
_UNRELEASED: Final = re.compile(r"00\d\d|0\.1\.0")
#: The advice for a database that has one of them.
START_ANEW: Final = (
    "let its runs end with that version and fetch their results; then start this one on a new --db or --root"
)
#: Any number that no other lock uses: replicas that start together migrate one after the other.
_ADVISORY_LOCK: Final = 0x666C6F77


def migrations_folder() -> Path:
    """Where the migrations are: inside the wheel, or at the top of a checkout.

    Raises:
        ConfigurationError: They are in neither place; the installation is incomplete.
    """
    package = Path(flowsched.__file__).parent
    for folder in (package / "_share" / "migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigurationError(f"no migrations beside {package}: the installation is incomplete, reinstall it")


def revision_of(connection: Connection) -> str | None:
    """The revision of an open database; None if it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def check(revision: str | None, where: str) -> None:
    """Refuse a schema this version does not know how to use.

    Raises:
        ConfigurationError: It is older or newer; the message says what to do.
    """
    if revision == REVISION:
        return
    if is_unreleased(revision):
        raise ConfigurationError(
            f"the schema of {where} ({revision}) is of a build before the release of 0.1.0, and cannot be upgraded: {START_ANEW}"
        )
    if revision is None or revision in known_revisions():
        raise ConfigurationError(
            f"the schema of {where} is older ({revision or 'empty'}) than this version needs ({REVISION}): "
            "back it up, then start the service, or run `flowsched db upgrade` while it is stopped"
        )
    raise ConfigurationError(
        f"the schema of {where} ({revision}) is newer than this version ({VERSION}, "
        f"schema {REVISION}) knows: start the newer version, or restore the backup made before its upgrade"
    )


def is_unreleased(revision: str | None) -> bool:
    """Whether a build before the release of 0.1.0 made the schema."""
    return revision is not None and _UNRELEASED.fullmatch(revision) is not None


def known_revisions() -> frozenset[str]:
    """Every revision this version has a script for."""
    from alembic.script import ScriptDirectory

    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def upgrade(connection: Connection, to: str = "head") -> None:
    """Bring the schema up, inside the caller's transaction.

    Raises:
        ConfigurationError: The schema is newer than this version.
    """
    from alembic import command

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    revision = revision_of(connection)
    if revision is not None and revision not in known_revisions():
        check(revision, connection.engine.url.render_as_string(hide_password=True))
    command.upgrade(_config(connection), to)


def new_schema() -> list[str]:
    """The statements that make the newest schema in an empty SQLite file: the result of all migrations together.

    Alembic and its revisions took a quarter of the CPU of the first `flowsched run` on a root.
    """
    statements: list[str] = []
    text_so_far = ""
    for line in (migrations_folder() / "sqlite.sql").read_text(encoding="utf-8").splitlines(keepends=True):
        text_so_far += line
        if sqlite3.complete_statement(text_so_far):
            statements.append(text_so_far)
            text_so_far = ""
    return statements


def _make(connection: Connection, statements: Sequence[str]) -> bool:
    """Run statements in an empty file; False if it is not empty."""
    if connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first() is not None:
        return False
    for statement in statements:
        connection.exec_driver_sql(statement)
    return True


def downgrade(connection: Connection, to: str) -> None:
    """Take the schema down, inside the caller's transaction. Columns and tables that go take their rows with
    them.
    """
    from alembic import command

    command.downgrade(_config(connection), to)


def differences(connection: Connection) -> list[Any]:
    """The differences between the database's schema and `tables`: empty when the migrations are complete."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "compare_server_default": False}
    )
    return list(compare_metadata(context, with_partial_indexes()))


def _config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without an ini file."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


# ---- opening ----


#: Matches a text that is no path of a file: a URL of PostgreSQL without its colon or slashes, or a string of libpq.
_MISTYPED: Final = re.compile(r"^(postgres\w*|sqlite)(:|//)|//[^/]*@|\b(dbname|host)=")
_DRIVERS: Final = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
#: Room in a SQLite file, and in its log, that is kept for when the disk is full. A cancel of a workflow takes about ten pages. The
#: log is begun anew after `_CHECKPOINT_PAGES`, which must be well below what it has: half of SQLite's default costs one more
#: checkpoint for each 2 MiB written.
_HEADROOM_BYTES: Final = 3 << 20
_CHECKPOINT_PAGES: Final = 512
_PAGE_BYTES: Final = 4096
#: The database, its log, the log's index and the lock.
_FEW_INODES: Final = 4
#: Threads that read a SQLite file.
_READERS: Final = 4
#: How long SQLite itself waits for a lock; the writer's own retries go on from there.
_BUSY_MS: Final = 2_000
#: How long an opening waits for the process that has the file. A service that was killed while it started a child leaves its lock
#: to the child until the child's own program begins: 40 ms on a busy machine.
LOCK_WAIT_S: Final = 2.0
_LOCK_PAUSE_S: Final = 0.05
#: The opening (`Database.instance`) that this task, or the task that began it, settles: it may use it before it is settled.
_SETTLING: Final = ContextVar("settling", default="")
#: How long a request waits for a database that is being opened: some 0.3 s on a quiet machine, more where a schema is brought up.
OPENING_S: Final = 10.0
_PRAGMAS: Final = (
    f"PRAGMA busy_timeout={_BUSY_MS}",  # first: switching to WAL may have to wait
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}",
    "PRAGMA cache_size=-65536",  # KiB when negative
    "PRAGMA temp_store=MEMORY",
    # As SQLite's own default, but for pages that are written anyway. Debian's SQLite fills each freed page with zeros: twice the
    # log for the headroom, 9 ms of CPU.
    "PRAGMA secure_delete=FAST",
)
#: PostgreSQL: a lock is given up (and the batch tried again) rather than waited for without end. The server ends a session whose
#: process stops within a transaction: each step of a leader locks the row of its lease, and no standby can take over while it is
#: locked. An accepted commit is on disk even where the server's default is another.
_SESSION: Final = (
    "SET lock_timeout = '5s'",
    "SET idle_in_transaction_session_timeout = '12s'",
    "SET client_min_messages = warning",
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'",
)


def url_for(path: str | os.PathLike[str]) -> str:
    """The URL of a SQLite file."""
    return URL.create("sqlite", database=str(Path(path).absolute())).render_as_string()


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite URL; None if it is another database's.

    Raises:
        ConfigurationError: See `_parse`.
    """
    parsed = _parse(url)
    return Path(str(parsed.database)).absolute() if parsed.get_backend_name() == "sqlite" else None


def _parse(url: str) -> URL:
    """Accept a path, or the URL forms people write, and choose the driver.

    Raises:
        ConfigurationError: It is neither SQLite nor PostgreSQL, a SQLite URL without a file, or a mistyped URL.
    """
    if "://" not in url and _MISTYPED.search(url):
        raise ConfigurationError(
            f"{url!r} is neither a URL nor the path of a SQLite file: postgresql://user@host/name names a PostgreSQL database, "
            "sqlite:///file or a path a SQLite file"
        )
    try:
        parsed = make_url(url if "://" in url else url_for(url))
    except ArgumentError as error:
        raise ConfigurationError(
            "the database URL cannot be read; sqlite:///file or postgresql://…"
        ) from error
    driver = _DRIVERS.get(parsed.get_backend_name())
    if driver is None:
        raise ConfigurationError(
            f"{parsed.get_backend_name()!r} is not a database flowsched knows: sqlite or postgresql"
        )
    if driver.startswith("sqlite") and parsed.database in (None, "", ":memory:"):
        raise ConfigurationError("SQLite needs a file: nothing in memory survives a restart")
    return parsed.set(drivername=driver)


def sqlite_engine(url: URL) -> Engine:
    """Connections to a SQLite file, one for each thread that uses it."""
    engine = create_engine(
        url.set(drivername="sqlite"),
        pool_size=_READERS + 1,
        max_overflow=0,
        connect_args={"isolation_level": None},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


_CONNECT: Final[Mapping[str, object]] = {
    "connect_timeout": 5,
    "application_name": "flowsched",
    "keepalives_idle": 15,
    "tcp_user_timeout": 10_000,  # ms: a peer that acknowledges nothing for so long is gone
}


def engine_of_a_thread(url: URL) -> Engine:
    """Connections of one thread, to either database, for `db move`."""
    if url.get_backend_name() == "sqlite":
        return sqlite_engine(url)
    engine = create_engine(url, connect_args=dict(_CONNECT))
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _postgresql_engine(url: URL) -> AsyncEngine:
    """Connections to PostgreSQL, on the event loop: a cancel takes effect at once, as it must where the other side may be gone."""
    from sqlalchemy.ext.asyncio import create_async_engine

    try:
        engine = create_async_engine(
            url,
            pool_size=8,
            max_overflow=8,
            pool_timeout=30,
            pool_pre_ping=True,
            connect_args=dict(_CONNECT),
        )
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "PostgreSQL needs one more package: pip install 'flowsched[postgresql]'"
        ) from error
    event.listen(engine.sync_engine, "connect", _prepare_postgresql)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Set the pragmas."""
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _prepare_postgresql(connection: Any, _record: object) -> None:
    """Set up a session of ours, outside any transaction (a rollback would undo it)."""
    cursor = connection.cursor()
    for statement in _SESSION:
        cursor.execute(statement)
    cursor.close()
    connection.commit()


T = TypeVar("T")
#: The ids that a query of `Database.rows_of` is about.
IDS: Final[ColumnElement[Any]] = bindparam("ids", expanding=True)
_IDS_AT_ONCE: Final = 500
#: The statements of a transaction, on an open connection.
Work: TypeAlias = Callable[[Connection], T]


class Outage(msgspec.Struct, frozen=True):
    """The database does not answer, or cannot be written.

    Args:
        since: The first failure, on the monotonic clock, in s.
        message: The attempt, and the answer of the database or the system.
    """

    since: float
    message: str


class Database:
    """An open database. Make one with `open`, share it in the process, `close` it at the end.

    A service uses `attach` and then `settle`: it can answer, if only that it waits, while its database is away.
    """

    def __init__(self, url: URL, lock: FileLock | None) -> None:
        self.url = url
        self.kind = url.get_backend_name()  #: "sqlite" or "postgresql"
        self.instance = os.urandom(8).hex()  #: this opening of it, unlike any other
        self.outage: Outage | None = None  #: while it does not answer, or cannot be written
        self.report_outage: Callable[[Outage | None], object] = lambda _: (
            None
        )  #: called with each failure, and with None when it is back
        self.upgraded_from: str | None = None  #: the revision that `settle` has brought up; "" = it was empty
        self._lock = lock
        self._log = RetainedLog(Path(str(url.database))) if lock is not None else None
        self._opened: tuple[int, int] | None = None  #: device and inode of a SQLite file
        self._reading: asyncio.Future[OSError | None] | None = (
            None  #: the latest check of a file that SQLite calls damaged
        )
        self._settled = False
        self._refused = ""  #: why it cannot be used; the service ends then
        self._way: _Threads | _Loop = _Threads(self) if self.kind == "sqlite" else _Loop(self)
        self.engine = self._way.engine  #: SQLAlchemy's, for listeners

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        create: bool = True,
        migrate: bool = True,
        exclusive: bool = True,
        any_schema: bool = False,
    ) -> Self:
        """Open it, make or migrate its schema if allowed, and make sure that this version can use it.

        Args:
            url: A path, `sqlite:///file` or `postgresql://user@host/name`.
            create: Make a SQLite file that is not there yet.
            migrate: Bring an older schema up. Off: an older schema is refused.
            exclusive: Be the one process that uses this SQLite file. Off is for reads from beside (doctor,
                backup): reads only, migrates nothing.
            any_schema: With `migrate` off: take it with whatever schema it has, to say which.

        Raises:
            ConfigurationError: It cannot be used like this; the message says what to change.
            Unavailable: The server does not answer.
        """
        database = cls.attach(url, create=create, exclusive=exclusive)
        try:
            await database.settle(migrate=migrate and exclusive, any_schema=any_schema)
        except BaseException:
            await database.close()
            raise
        return database

    @classmethod
    def attach(cls, url: str, *, create: bool = True, exclusive: bool = True) -> Self:
        """Prepare to use it; it is neither locked nor asked anything yet. `settle` must follow.

        Raises:
            ConfigurationError: It cannot be used like this; the message says what to change.
        """
        parsed = _parse(url)
        lock = None
        if parsed.get_backend_name() == "sqlite":
            path = Path(str(parsed.database))
            _check_file(path, create)
            lock = FileLock(path) if exclusive else None
        return cls(parsed, lock)

    async def settle(
        self,
        *,
        migrate: bool = True,
        any_schema: bool = False,
        admit: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Lock a SQLite file, check the schema, bring it up if allowed; from then on it can be used. May be tried again.

        Args:
            migrate: Bring an older schema up.
            any_schema: Leave whatever schema it has unchecked.
            admit: Called before a schema that is there is brought up; raises where this process may not.

        Raises:
            ConfigurationError: It cannot be used like this; the message says what to change.
            Unavailable: It does not answer, or there is no room to make it.
        """
        settling = _SETTLING.set(self.instance)
        try:
            if self._lock is not None:
                self._make_private()
                await self._acquire_lock(self._lock)
                self._opened = self._opened or self._file()
            await self._settle(migrate, any_schema, admit)
        except (DBAPIError, StorageCorrupt) as error:
            message = _first_line(error.__cause__ or error if isinstance(error, StorageCorrupt) else error)
            if message == "file is not a database":
                message = "the file is not a SQLite database"
            self._refused = f"cannot use {self.shown}: {message}"
            raise ConfigurationError(self._refused) from error
        except ConfigurationError as error:
            self._refused = str(error)
            raise
        else:
            await self.keep_headroom()
        finally:
            _SETTLING.reset(settling)
        self._settled = True

    async def _acquire_lock(self, lock: FileLock) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + LOCK_WAIT_S
        while True:
            try:
                lock.acquire()
            except InUse:
                if clock() > end:
                    raise
            else:
                return
            await asyncio.sleep(_LOCK_PAUSE_S)

    def _make_private(self) -> None:
        try:
            make_database(Path(str(self.url.database)))
        except OSError as error:
            raise Unavailable(f"cannot make {self.shown}: {error.strerror}") from error

    def _file(self) -> tuple[int, int] | None:
        try:
            found = os.stat(str(self.url.database))
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def check_file(self) -> None:
        """Make sure that the path of a SQLite file leads to the file that is open: rows written to another file are lost.

        Raises:
            OSError: The file was moved, removed or replaced.
        """
        if self._opened is None or (found := self._file()) == self._opened:
            if self._log is not None:
                self._log.restore()
            return
        what = "is not there any more" if found is None else "is another file than the service has opened"
        raise OSError(
            f"{self.url.database} {what}: put the file back, and the service goes on; or stop the service before you replace it"
        )

    async def keep_headroom(self) -> None:
        """See to it that a SQLite file has pages to write into when the disk is full: free ones in the file, and a log of that
        length, both of which SQLite uses again. A cancel, or the end of a task, needs a few of them. To be called again and
        again, since a file that grows uses its free pages up.

        Does nothing where there is no room for that, and on PostgreSQL, which has a disk of its own.
        """
        if self._log is None:
            return
        try:
            await self._way.transact(self._fill_headroom)
        except Exception as error:
            if not is_transient(error):
                raise
            self.failed(error)

    def _fill_headroom(self, connection: Connection) -> None:
        assert self._log is not None
        free = connection.exec_driver_sql("PRAGMA freelist_count").scalar() or 0
        if free < _HEADROOM_BYTES // _PAGE_BYTES // 2 or self._log.log_bytes < _HEADROOM_BYTES:
            connection.exec_driver_sql("DROP TABLE IF EXISTS headroom")  # of a start that was broken off
            connection.exec_driver_sql("CREATE TABLE headroom (bytes BLOB)")
            connection.exec_driver_sql(f"INSERT INTO headroom VALUES (zeroblob({_HEADROOM_BYTES}))")
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.exec_driver_sql("DROP TABLE headroom")
        self._log.link()

    def shares_disk(self, folder: Path) -> bool:
        """Whether a SQLite file lies on the file system of a folder."""
        if self.kind != "sqlite":
            return False
        return Path(str(self.url.database)).parent.stat().st_dev == folder.stat().st_dev

    async def opened(self) -> None:
        """Wait until `settle` has come to its end: a moment after a start, in which requests may be there already.

        Raises:
            Unavailable: The database is away or cannot be used, or `settle` takes longer than `OPENING_S`.
        """
        end = time.monotonic() + OPENING_S
        while not self._settled and _SETTLING.get() != self.instance:
            reason = self.outage.message if self.outage is not None else self._refused
            if reason or time.monotonic() > end:
                why = f": {reason}" if reason else ""
                raise Unavailable(f"the service has not opened its database yet{why}")
            await asyncio.sleep(0.02)

    def failed(self, error: BaseException) -> Outage:
        """Note that it did not answer, or could not be written."""
        verb = "is busy or cannot be written" if self.kind == "sqlite" else "does not answer"
        since = time.monotonic() if self.outage is None else self.outage.since
        self.outage = Outage(
            since, f"{self.shown} {verb}: {_first_line(error)}{self._fullness()}{_remedy(error)}"
        )
        self.report_outage(self.outage)
        return self.outage

    def _fullness(self) -> str:
        """The free space of a SQLite file's file system, in words, where lack of it may be why the file cannot be written."""
        if self.kind != "sqlite":
            return ""
        folder = Path(str(self.url.database)).parent
        try:
            found = os.statvfs(folder)
        except OSError as error:
            return f" (the folder {folder} cannot be read: {error.strerror})"
        free = found.f_bavail * found.f_frsize
        if free >= _HEADROOM_BYTES and not (found.f_files and found.f_favail < _FEW_INODES):
            return ""
        return f" (the file system of {folder} is full: {free} bytes and {found.f_favail} inodes are free)"

    def answered(self) -> None:
        """Note that it answered."""
        if self.outage is not None:
            self.outage = None
            self.report_outage(None)

    async def close(self) -> None:
        """Give back connections and the file lock."""
        linked = self._log.linked() if self._log is not None else []
        await self._way.close()
        if self._log is not None and self._lock is not None:
            self._log.bring_back(linked)
            self._lock.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _settle(
        self, migrate: bool, any_schema: bool, admit: Callable[[], Awaitable[object]] | None
    ) -> None:
        """Check the schema, bring it up if allowed, and forget leases and marks of dead processes."""
        before = await self.current()
        if before != REVISION and migrate:
            if before is not None and admit is not None:
                await admit()
            await self.upgrade()
            self.upgraded_from = before or ""
        if any_schema:
            return
        check(await self.current(), self.shown)
        if self._lock is not None:  # no other process can be alive: no lease to wait for, no commit in doubt
            await self.write(_forget_the_dead)

    @property
    def shown(self) -> str:
        """Its URL without the password, for people."""
        return self.url.render_as_string(hide_password=True)

    @property
    def place(self) -> str:
        """Where it is: the path of a SQLite file, or a URL without driver and password. As the option `--db` takes it."""
        if self.kind == "sqlite":
            return str(self.url.database)
        return self.url.set(drivername="postgresql", password=None).render_as_string()

    async def read(self, work: Work[T]) -> T:
        """Do several queries on one consistent view of the database.

        Raises:
            Unavailable: It does not answer.
        """
        return await self._done(self._way.read(work))

    async def rows(self, query: Executable, values: Mapping[str, object] | None = None) -> Sequence[Row[Any]]:
        """All rows of one query: one statement has a consistent view by itself, and needs no transaction around it.

        Raises:
            Unavailable: The database does not answer.
        """
        return await self._done(self._way.rows(query, values or {}))

    async def rows_of(self, query: Executable, ids: Sequence[str]) -> list[Row[Any]]:
        """All rows of a query with the parameter `IDS`, for some of the ids at a time: databases take few parameters."""
        found: list[Row[Any]] = []
        for start in range(0, len(ids), _IDS_AT_ONCE):
            found += await self.rows(query, {"ids": ids[start : start + _IDS_AT_ONCE]})
        return found

    async def write(self, work: Work[T]) -> T:
        """Do one small write transaction outside the group writer, and commit it.

        Raises:
            StorageBusy: Another writer kept the lock.
            Unavailable: The database does not answer.
        """
        done = await self._done(self._way.transact(work))
        self.answered()
        return done

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call in a thread a function that has a connection of its own. Its errors are raised as those of `write`."""
        return await self._done(asyncio.to_thread(work, *arguments))

    async def transact(
        self, work: Callable[[Statements], bool], before_commit: Callable[[], Coroutine[Any, Any, None]]
    ) -> bool:
        """Do a transaction of the group writer. Errors are the driver's.

        Args:
            work: Its statements; False = it is rolled back.
            before_commit: Passed last. On SQLite it may wait for nothing, since it runs in SQLite's thread.
        """
        await self.opened()
        return await self._way.write_group(work, before_commit)

    async def _done(self, asked: Coroutine[Any, Any, T]) -> T:
        """Await a query or a transaction, with database errors translated."""
        with closing(asked):
            await self.opened()
            try:
                done = await asked
            except Exception as error:
                await self._translate(error)
                raise
        if (
            self.outage is not None and self.kind != "sqlite"
        ):  # a SQLite file that can be read may still be full
            self.answered()
        return done

    async def _translate(self, error: Exception) -> None:
        """Raise a database's error as one of ours: Unavailable where waiting helps. Others are left to the caller.

        Drivers raise errors of their own too: SQLAlchemy does not wrap those of the first statements on a new connection.
        """
        if isinstance(error, FlowschedError):
            return
        read = await self.read_error(error)
        if read is None and is_corrupt(error):
            raise StorageCorrupt(f"{self.shown} is damaged: {_first_line(error)}") from error
        if is_transient(error) or read is not None:
            outage = self.failed(read or error)
            busy = StorageBusy if self.kind == "sqlite" else Unavailable
            raise busy(outage.message) from error

    async def read_error(self, error: BaseException) -> OSError | None:
        """The disk's error behind SQLite's report of a damaged file: SQLite reports damage for every read that fails with EIO.

        Another process reads it, and a thread waits for that. If this process closed the file, its own locks on it would be gone.
        """
        if self.kind != "sqlite" or not is_corrupt(error):
            return None
        if self._reading is None or self._reading.done():  # one for all statements that fail meanwhile
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._read_whole)
        return await asyncio.shield(self._reading)

    def _read_whole(self) -> OSError | None:
        command = [sys.executable, "-I", "-S", "-c", _READ, str(self.url.database)]
        message = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        return OSError(f"it cannot be read: {message}") if message else None

    async def current(self) -> str | None:
        """The schema's revision; None if the database is empty."""
        return await self.read(revision_of)

    async def upgrade(self, to: str = "head") -> None:
        """Bring the schema up to a revision, in one transaction."""
        if to == "head" and self.kind == "sqlite":
            statements = await asyncio.to_thread(new_schema)
            if await self.write(lambda connection: _make(connection, statements)):
                return
        await self.write(lambda connection: upgrade(connection, to))

    async def downgrade(self, to: str) -> None:
        """Take the schema down to a revision (`base` empties the database), in one transaction."""
        await self.write(lambda connection: downgrade(connection, to))

    async def doctor(self) -> dict[str, Any]:
        """Facts that show whether the database is well."""
        facts: dict[str, Any] = {
            "url": self.shown,
            "database": self.kind,
            "revision": await self.current(),
            "expected_revision": REVISION,
        }
        queries = _SQLITE_FACTS if self.kind == "sqlite" else _POSTGRESQL_FACTS
        for name, query in queries.items():
            if name != "workflows" or facts["revision"] is not None:  # else it is empty
                facts[name] = (await self.rows(text(query)))[0][0]
        return facts


def _forget_the_dead(connection: Connection) -> None:
    connection.execute(text("UPDATE lease SET expires_ms = 0"))
    connection.execute(text("DELETE FROM marks"))


class _Threads:
    """How a SQLite file is asked: in a few threads that read, and one that writes. A caller that is cancelled breaks nothing off.

    The thread that writes keeps its connection until something fails on it.
    """

    def __init__(self, database: Database) -> None:
        self.engine = sqlite_engine(database.url)
        self._database = database
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._connection: Connection | None = None
        self._closed = False

    async def rows(self, query: Executable, values: Mapping[str, object]) -> Sequence[Row[Any]]:
        return await self._in(self._readers, self._read, lambda each: each.execute(query, values).all(), "")

    async def read(self, work: Work[T]) -> T:
        return await self._in(self._readers, self._read, work, "BEGIN")

    async def transact(self, work: Work[T]) -> T:
        return await self._in(self._writer, self._write, work)

    async def write_group(
        self, work: Callable[[Statements], bool], before_commit: Callable[[], Coroutine[Any, Any, None]]
    ) -> bool:
        return await self._in(self._writer, self._write_group, work, before_commit)

    async def _in(self, threads: ThreadPoolExecutor, act: Callable[..., T], *arguments: Any) -> T:
        if self._closed:
            raise Unavailable("the service stops: its database is closed")
        return await asyncio.get_running_loop().run_in_executor(threads, act, *arguments)

    def _read(self, work: Work[T], begin: str) -> T:
        self._database.check_file()  # SQLite would make a file that is missing
        with self.engine.connect() as connection:
            if begin:
                connection.exec_driver_sql(begin)
            done = work(connection)
        self._database.check_file()
        return done

    def _write(self, work: Work[T]) -> T:
        with self._writing() as connection, connection.begin():
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return work(connection)

    def _write_group(
        self, work: Callable[[Statements], bool], before_commit: Callable[[], Coroutine[Any, Any, None]]
    ) -> bool:
        """Without SQLAlchemy, whose part of a statement takes three times as long as SQLite's for one row."""
        with self._writing() as connection:
            driver = cast("sqlite3.Connection", connection.connection.driver_connection)
            driver.execute("BEGIN IMMEDIATE")
            good = work(SqliteStatements(driver))
            if good:
                completed(before_commit())
                driver.commit()
            else:
                driver.rollback()
            return good

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        self._database.check_file()
        if self._connection is None:
            self._connection = self.engine.connect()
        try:
            yield self._connection
        except BaseException:
            self._give_back()
            raise
        self._database.check_file()

    def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()  # uncommitted changes are rolled back

    async def close(self) -> None:
        if self._closed:
            return
        await self._in(self._writer, self._give_back)
        self._closed = True
        for threads in (self._readers, self._writer):
            await asyncio.to_thread(threads.shutdown)
        await asyncio.to_thread(self.engine.dispose)  # the last connection moves the log into the file


class _Loop:
    """How PostgreSQL is asked: on the event loop."""

    def __init__(self, database: Database) -> None:
        self._engine = _postgresql_engine(database.url)
        self.engine = self._engine.sync_engine
        # Each `read` has one snapshot: SQLite's WAL gives that to any transaction, PostgreSQL on demand.
        self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._single = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    async def rows(self, query: Executable, values: Mapping[str, object]) -> Sequence[Row[Any]]:
        async with self._single.connect() as connection:
            found: Sequence[Row[Any]] = (await connection.execute(query, values)).all()
        return found

    async def read(self, work: Work[T]) -> T:
        async with self._snapshots.connect() as connection:
            return await connection.run_sync(work)

    async def transact(self, work: Work[T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def write_group(
        self, work: Callable[[Statements], bool], before_commit: Callable[[], Coroutine[Any, Any, None]]
    ) -> bool:
        async with self._engine.connect() as connection:
            if good := await connection.run_sync(work):
                await before_commit()
                await connection.commit()
            return good

    async def close(self) -> None:
        await self._engine.dispose()


_SQLITE_FACTS: Final = {
    "version": "SELECT sqlite_version()",
    "journal_mode": "PRAGMA journal_mode",
    "synchronous": "PRAGMA synchronous",
    "foreign_keys": "PRAGMA foreign_keys",
    "integrity_check": "PRAGMA integrity_check",
    "size_bytes": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "workflows": "SELECT count(*) FROM workflows",
}
_POSTGRESQL_FACTS: Final = {
    "version": "SHOW server_version",
    "fsync": "SHOW fsync",
    "synchronous_commit": "SHOW synchronous_commit",
    "synchronous_standby_names": "SHOW synchronous_standby_names",
    "size_bytes": "SELECT pg_database_size(current_database())",
    "workflows": "SELECT count(*) FROM workflows",
}


def _check_file(path: Path, create: bool) -> None:
    """Make sure the file is there or may be made.

    Raises:
        ConfigurationError: Neither.
    """
    if path.is_file():
        return
    if not create:
        raise ConfigurationError(f"there is no database {path}; `flowsched db upgrade` makes one")
    if path.exists():
        raise ConfigurationError(f"{path} is not a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make the folder {path.parent}: {error.strerror}") from error


#: Texts of PostgreSQL about a URL that no waiting mends -> its fault. No SQLSTATE comes before a connection is there.
_REFUSALS: Final = {
    "password authentication failed": "the user or the password in the URL is wrong",
    "no password supplied": "the URL has no password",
    "root certificate file": "write the authority's certificate there, or name another file in sslrootcert of the URL",
    "does not exist": "create the role or the database that the URL names",
    "no pg_hba.conf entry": "the server's pg_hba.conf does not let this user in from here",
    "certificate verify failed": "sslrootcert of the URL does not name the authority of the server's certificate",
}


def _remedy(error: BaseException) -> str:
    """The fault to mend where waiting will probably not help; "" = wait."""
    message = str(getattr(error, "orig", None) or error)
    found = next((remedy for sign, remedy in _REFUSALS.items() if sign in message), "")
    return f" ({found})" if found else ""


def _first_line(error: BaseException) -> str:
    """The driver's message without SQL, parameters and links."""
    original = getattr(error, "orig", None) or error
    return (str(original).strip().splitlines() or [type(original).__name__])[0]


# ---- errors that pass by themselves, and how long to wait for that ----
#
# Another try may get past transient errors: locks, a full disk that an operator empties, deadlocks, lost connections, a server
# that starts. Every other error is the statement's own fault, and is raised at once.


#: Reads a SQLite file and its log, and prints the system's error if it cannot.
_READ: Final = """
import sys
try:
    for path in (sys.argv[1], sys.argv[1] + "-wal"):
        with open(path, "rb", 0) as file:
            while file.read(1 << 20):
                pass
except FileNotFoundError:
    pass
except OSError as error:
    print(error.strerror)
"""
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
#: Single SQLSTATEs: lock not available, a read-only server (failover in progress), idle session ended, an error of its disk.
_STATES: Final = frozenset({"55P03", "25006", "25P03", "58030"})


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
    # psycopg reports a lost connection, or one that was not made in time, by an OperationalError without any state.
    return hasattr(error, "sqlstate") and any(
        each.__name__ == "OperationalError" for each in type(error).__mro__
    )


def is_corrupt(error: BaseException) -> bool:
    """Whether the database reports that its own files are damaged: every further write could damage them more."""
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
    """A number in [0, 1) from the system, for callers that do not pass their own."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
