"""A real PostgreSQL server for tests, started from whatever binaries this machine has, as an unprivileged
user.

Import `postgres_server`, `postgres_url` and `fresh_postgres` into a `conftest.py`. Without binaries the tests
are skipped and say why; with FLOWSCHED_REQUIRE_POSTGRES=1 (CI) they fail instead. Each xdist worker has a
server of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

#: Tried in this order when we are root, whom initdb refuses.
_USERS = ("postgres", "nobody")
_NUMBERS = itertools.count(1)


class NoPostgres(Exception):
    """There is no server to be had here; the message says why."""


def binaries() -> Path:
    """The folder with initdb and postgres: FLOWSCHED_PG_BIN, PATH, Debian's place, pg_config."""
    candidates = [os.environ.get("FLOWSCHED_PG_BIN", "")]
    if found := shutil.which("initdb"):
        candidates.append(str(Path(found).resolve().parent))
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    candidates += [str(p) for p in sorted(debian, key=lambda p: _version(p.parent.name), reverse=True)]
    if config := shutil.which("pg_config"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            told = subprocess.run([config, "--bindir"], capture_output=True, text=True, timeout=60)
            candidates.append(told.stdout.strip())
    for candidate in filter(None, candidates):
        if all(os.access(Path(candidate) / name, os.X_OK) for name in ("initdb", "postgres")):
            return Path(candidate)
    raise NoPostgres("no PostgreSQL binaries: set FLOWSCHED_PG_BIN, or run tests/tools/install_postgres.sh")


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdigit())


@dataclass(frozen=True)
class Account:
    """How to run a command as somebody who is not root."""

    prefix: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    uid: int | None = None

    def works(self, *command: str) -> bool:
        try:
            done = subprocess.run(
                [*self.prefix, *command], cwd="/", capture_output=True, timeout=60, **self.options
            )
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0


def account(folder: Path) -> Account:
    """Somebody who may run the binaries in `folder`: us, an existing user, or nobody in a user namespace."""
    runs = (str(folder / "postgres"), "--version")
    if os.geteuid() != 0:
        return Account()
    for name in _USERS:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            options = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            candidate = Account((), options, entry.pw_uid)
            if candidate.works(*runs):
                return candidate
    candidate = Account(("unshare", "--user"))
    if candidate.works(*runs):
        return candidate
    raise NoPostgres("PostgreSQL refuses to run as root, and no other user can be had (nor a user namespace)")


def data_folder(somebody: Account) -> Path:
    """A fresh folder that `somebody` owns and can reach; nothing above it is changed."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="fspg-", dir=parent))
            if somebody.uid is not None:
                os.chown(folder, somebody.uid, -1)
            if somebody.works("test", "-w", str(folder), "-a", "-x", str(folder)):
                return folder
            shutil.rmtree(folder, ignore_errors=True)
    raise NoPostgres("no temporary folder that the server's user can reach")


class Server:
    """One server with its own data, on a Unix socket in its own folder (no port to collide on).

    Args:
        fsync: As in production, for tests that kill it; off is many times faster.
        address: Where it listens besides, on port 5432, for everybody who gets there: nodes of other network namespaces.
    """

    def __init__(self, *, fsync: bool = False, address: str = "") -> None:
        self._bin = binaries()
        self._account = account(self._bin)
        self.folder = data_folder(self._account)
        self._fsync = "on" if fsync else "off"
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        try:
            # initdb's own syncing is not needed: nobody cuts the power before the test has begun.
            self._run("initdb", "-D", self._data, "-U", "flowsched", "--auth=trust", "-E", "UTF8", "-N")
            if address:
                with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
                    rules.write("host all all 0.0.0.0/0 trust\n")
        except NoPostgres:
            self.remove()
            raise

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._account.prefix, str(self._bin / program), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, timeout=120, text=True, **self._account.options
        )
        if done.returncode != 0:
            raise NoPostgres(f"{program} failed: {(done.stderr or done.stdout).strip()[-500:]}")

    def start(self, within_s: float = 90.0) -> None:
        """Start it and wait until it answers."""
        settings = {
            "listen_addresses": self._address,
            "unix_socket_directories": str(self.folder),
            "fsync": self._fsync,
            "full_page_writes": self._fsync,
            "max_connections": "60",
            "shared_buffers": "64MB",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [*self._account.prefix, str(self._bin / "postgres"), "-D", self._data, *options]
        end = time.monotonic() + within_s
        while True:
            if self._process is None or self._process.poll() is not None:
                with (self.folder / "log").open("ab") as log:  # a killed one may still hold its memory
                    self._process = subprocess.Popen(
                        command, cwd=self.folder, stdout=log, stderr=log, **self._account.options
                    )
            with contextlib.suppress(self._errors()):
                self.execute("SELECT 1")
                return
            if time.monotonic() > end:
                log_tail = (self.folder / "log").read_text(errors="replace")[-800:]
                raise NoPostgres(f"the server did not come up in {within_s:.0f} s: {log_tail}")
            time.sleep(0.05)

    def _errors(self) -> type[Exception]:
        import psycopg

        return psycopg.OperationalError

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement outside any transaction."""
        import psycopg

        where = {"host": str(self.folder), "user": "flowsched", "dbname": database, "connect_timeout": 20}
        with psycopg.connect(**where, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://flowsched@/{database}?host={self.folder}"

    def fresh(self) -> str:
        """A new, empty database; its URL."""
        name = f"t{next(_NUMBERS)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return self.url(name)

    def drop(self, url: str) -> None:
        name = url.rpartition("/")[2] if "?" not in url else url.split("?")[0].rpartition("/")[2]
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def kill(self) -> None:
        """Kill -9: no shutdown, no checkpoint. The backends follow when they notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """Send a signal to the server and to all processes that it has forked."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, number)  # first: one that is stopped forks no more
        for forked in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(forked), number)

    def stop(self) -> None:
        """Immediate shutdown: the data is thrown away anyway."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def start_or_skip(*, fsync: bool = False, address: str = "") -> Server:
    """A running server, or the end of this test: a skip on a laptop, a failure in CI."""
    try:
        import psycopg  # noqa: F401

        server = Server(fsync=fsync, address=address)
        try:
            server.start()
        except NoPostgres:
            server.remove()
            raise
    except (NoPostgres, ImportError) as error:
        if os.environ.get("FLOWSCHED_REQUIRE_POSTGRES") == "1":
            pytest.fail(f"FLOWSCHED_REQUIRE_POSTGRES=1, but: {error}", pytrace=False)
        pytest.skip(f"no PostgreSQL: {error}")
    return server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One server for the whole run (of one xdist worker). It does not sync: nothing here cuts the power."""
    server = start_or_skip()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """A database for one test module."""
    url = postgres_server.fresh()
    yield url
    postgres_server.drop(url)


@pytest.fixture
def fresh_postgres(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Makes databases for one test; the server starts with the first."""
    made: list[str] = []

    def make() -> str:
        made.append(request.getfixturevalue("postgres_server").fresh())
        return made[-1]

    yield make
    for url in made:
        request.getfixturevalue("postgres_server").drop(url)
