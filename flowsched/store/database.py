"""Opening the database: SQLite in one process, or PostgreSQL for several. What differs between them is
decided here.

SQLite runs in WAL mode with `synchronous=FULL`: a commit that was answered survives a power cut. A write
transaction begins IMMEDIATE, so that it fails at its start rather than in its middle; a reading one never
waits for the writer.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

from sqlalchemy import URL, Connection, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from flowsched.errors import ConfigurationError, StorageBusy, Unavailable
from flowsched.store import schema
from flowsched.store.lockfile import FileLock

_DRIVERS: Final = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
#: How long SQLite itself waits for a lock; the writer's own retries go on from there.
_BUSY_MS: Final = 2_000
_PRAGMAS: Final = (
    f"PRAGMA busy_timeout={_BUSY_MS}",  # first: switching to WAL may have to wait
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA cache_size=-65536",  # KiB when negative
    "PRAGMA temp_store=MEMORY",
)
#: PostgreSQL: a lock is given up (and the batch tried again) rather than waited for without end; a session
#: whose process is cut off ends and frees its locks; and an accepted commit is on disk even where the
#: server's default says otherwise.
_SESSION: Final = (
    "SET lock_timeout = '5s'",
    "SET idle_in_transaction_session_timeout = '60s'",
    "SET client_min_messages = warning",
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'",
)


def url_for(path: str | os.PathLike[str]) -> str:
    """The URL of a SQLite file."""
    return URL.create("sqlite+aiosqlite", database=str(Path(path).absolute())).render_as_string()


def _parse(url: str) -> URL:
    """Accept a path, or the URL forms people write, and choose the driver.

    Raises:
        ConfigurationError: It is neither SQLite nor PostgreSQL, or a SQLite URL without a file.
    """
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


def _engine(url: URL) -> AsyncEngine:
    """The engine with its pool, and what each new connection is told first."""
    if url.get_backend_name() == "sqlite":
        engine = create_async_engine(url, pool_size=6, max_overflow=4, pool_timeout=30)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    try:
        engine = create_async_engine(
            url,
            pool_size=8,
            max_overflow=8,
            pool_timeout=30,
            pool_pre_ping=True,
            connect_args={"connect_timeout": 5, "application_name": "flowsched", "keepalives_idle": 15},
        )
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "PostgreSQL needs one more package: pip install flowsched[postgresql]"
        ) from error
    event.listen(engine.sync_engine, "connect", _prepare_postgresql)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Take the transactions out of the driver's hands (it would begin late and DEFERRED), then set the
    pragmas.
    """
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """A write transaction takes the write lock at once; a reading one takes none."""
    reading = connection.get_execution_options().get("flowsched_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _prepare_postgresql(connection: Any, _record: object) -> None:
    """Set what a session of ours needs, outside any transaction (a rollback would undo it)."""
    cursor = connection.cursor()
    for statement in _SESSION:
        cursor.execute(statement)
    cursor.close()
    connection.commit()


Method = TypeVar("Method", bound=Callable[..., Coroutine[Any, Any, Any]])


def unbroken(method: Method) -> Method:
    """Let what a method asks of SQLite come to its end before a cancel of its caller does.

    A statement that is cancelled in SQLite's thread makes SQLAlchemy stop that thread, and the rollback that follows then waits for
    it for ever (seen in stack dumps of a leader that never began its next term). On PostgreSQL a cancel takes effect at
    once, as it must where the other side may be gone.

    Args:
        method: Its first argument is the database, or has it as `_database`.
    """

    @functools.wraps(method)
    async def whole(first: Any, *args: Any, **kwargs: Any) -> Any:
        database = getattr(first, "_database", first)
        work = method(first, *args, **kwargs)
        if database.kind != "sqlite":
            return await work
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.gather(task, return_exceptions=True)
            raise

    return cast("Method", whole)


class Database:
    """An open database. Make one with `open`, share it in the process, `close` it at the end."""

    def __init__(self, url: URL, engine: AsyncEngine, lock: FileLock | None) -> None:
        self.url = url
        self.engine = engine
        self.kind = url.get_backend_name()  #: "sqlite" or "postgresql"
        self.instance = os.urandom(8).hex()  #: this opening of it, unlike any other
        self._lock = lock
        # One look is one snapshot: SQLite's WAL gives that to any transaction, PostgreSQL on demand.
        if self.kind == "sqlite":
            self._readers = engine.execution_options(flowsched_reading=True)
        else:
            self._readers = engine.execution_options(isolation_level="REPEATABLE READ")

    @classmethod
    async def open(
        cls, url: str, *, create: bool = True, migrate: bool = True, exclusive: bool = True
    ) -> Self:
        """Open it, make or migrate its schema if allowed, and make sure that this version can use it.

        Args:
            url: A path, `sqlite:///file` or `postgresql://user@host/name`.
            create: Make a SQLite file that is not there yet.
            migrate: Bring an older schema up. Off: an older schema is refused.
            exclusive: Be the one process that uses this SQLite file. Off is for a look from beside (doctor,
                backup): reads only, migrates nothing.

        Raises:
            ConfigurationError: It cannot be used like this; the message says what to change.
            Unavailable: The server does not answer.
        """
        parsed = _parse(url)
        lock = None
        if parsed.get_backend_name() == "sqlite":
            path = Path(str(parsed.database))
            _check_file(path, create)
            lock = FileLock(path) if exclusive else None
        engine = _engine(parsed)
        database = cls(parsed, engine, lock)
        try:
            if lock is not None:
                lock.acquire()
            await database._settle(migrate=migrate and exclusive)
        except DBAPIError as error:
            await database.close()
            message = _first_line(error)
            if message == "file is not a database":
                message = "the file is not a SQLite database"
            raise ConfigurationError(f"cannot use {database.shown}: {message}") from error
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        """Give back connections and the file lock."""
        await self.engine.dispose()
        if self._lock is not None:
            self._lock.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _settle(self, *, migrate: bool) -> None:
        """Check the schema, bring it up if allowed, and forget what dead processes held."""
        if await self.current() != schema.REVISION and migrate:
            await self.upgrade()
        schema.check(await self.current(), self.shown)
        if self._lock is not None:  # nobody else can be alive: no lease to wait for, no commit in doubt
            async with self.writing() as connection:
                await connection.execute(text("UPDATE lease SET expires_ms = 0"))
                await connection.execute(text("DELETE FROM marks"))

    @property
    def shown(self) -> str:
        """Its URL without the password, for people."""
        return self.url.render_as_string(hide_password=True)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """One consistent look at the database.

        Raises:
            Unavailable: It does not answer.
        """
        async with self._translated(self._readers) as connection:
            yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """One small write transaction outside the group writer, committed at the end of the block.

        Raises:
            StorageBusy: Another writer kept the lock.
            Unavailable: The database does not answer.
        """
        async with self._translated(self.engine) as connection, connection.begin():
            yield connection

    @asynccontextmanager
    async def _translated(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """A connection whose database errors are ours: Unavailable where waiting helps, else as they are."""
        from flowsched.store.retry import is_transient

        try:
            async with engine.connect() as connection:
                yield connection
        except (DBAPIError, PoolTimeout, OSError) as error:
            if not is_transient(error):
                raise
            if self.kind == "sqlite":
                raise StorageBusy(
                    f"{self.shown} is busy or cannot be written: {_first_line(error)}"
                ) from error
            raise Unavailable(f"{self.shown} does not answer: {_first_line(error)}") from error

    async def current(self) -> str | None:
        """The schema's revision; None if the database is empty."""
        async with self.reading() as connection:
            return await connection.run_sync(schema.revision_of)

    async def upgrade(self, to: str = "head") -> None:
        """Bring the schema up to a revision, in one transaction."""
        await self._alter(lambda connection: schema.upgrade(connection, to))

    async def downgrade(self, to: str) -> None:
        """Take the schema down to a revision (`base` empties the database), in one transaction."""
        await self._alter(lambda connection: schema.downgrade(connection, to))

    async def _alter(self, change: Callable[[Connection], None]) -> None:
        """Run a migration."""
        async with self.writing() as connection:
            await connection.run_sync(change)

    async def doctor(self) -> dict[str, Any]:
        """Facts about the database that tell whether it is well."""
        facts: dict[str, Any] = {
            "url": self.shown,
            "database": self.kind,
            "revision": await self.current(),
            "expected_revision": schema.REVISION,
        }
        queries = _SQLITE_FACTS if self.kind == "sqlite" else _POSTGRESQL_FACTS
        async with self.reading() as connection:
            for name, query in queries.items():
                facts[name] = (await connection.execute(text(query))).scalar()
        return facts


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


def _first_line(error: BaseException) -> str:
    """The driver's message without SQL, parameters and links."""
    original = getattr(error, "orig", None) or error
    return (str(original).strip().splitlines() or [type(original).__name__])[0]
