"""The lease: one row with an epoch that grows by one at each take-over, and the process that leads.

The epoch makes it safe: every write of a leader carries it (`changes.Changes.refusals`), so that a deposed one, paused for
minutes or with a wrong clock, changes nothing. Time only makes it live: it decides when another may take over.

On PostgreSQL the server's clock counts, always, and the `now_ms` passed in is not used: all processes then read one clock, and
a jump of a machine's own clock steals no lease. On SQLite there is one process (`database.FileLock`), and its clock is passed
in; opening the database ends a lease that a dead process left, so a restart waits for nothing. There the lock on the file is
the leadership, and the row only shows it: a late renewal means nothing.

On PostgreSQL a thread renews (`Renewal`), so that no step, request or garbage collection can starve the lease.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import msgspec
from sqlalchemy import Engine, TextClause, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from flowsched.store.changes import LEADER
from flowsched.store.database import Database

_SERVER_TIME: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


class Holding(msgspec.Struct, frozen=True):
    """The lease as it stands. Epoch 0: no process has led yet."""

    epoch: int
    holder: str
    renewed_ms: int
    expires_ms: int
    live: bool = False  #: it has not expired, by the clock that counts


class Lease:
    """The leader's lease, seen from one process. Times in ms; the module's docstring names the clock."""

    def __init__(self, database: Database, name: str = LEADER) -> None:
        self._database = database
        self._name = name
        now = ":now" if database.kind == "sqlite" else _SERVER_TIME
        self._acquire = text(
            "INSERT INTO lease (name, epoch, holder, renewed_ms, expires_ms) "
            f"VALUES (:name, 1, :holder, {now}, {now} + :ttl) ON CONFLICT (name) DO UPDATE SET "
            "epoch = lease.epoch + 1, holder = excluded.holder, renewed_ms = excluded.renewed_ms, "
            "expires_ms = excluded.expires_ms "
            f"WHERE lease.expires_ms <= {now} OR lease.holder IN (excluded.holder, :instead_of) RETURNING epoch"
        )
        self._renew = _renewing(now)
        self._select = text(
            "SELECT epoch, holder, renewed_ms, expires_ms, "
            f"{'expires_ms > 0' if database.kind == 'sqlite' else f'expires_ms > {now}'} AS live "
            "FROM lease WHERE name = :name"
        )

    async def acquire(self, holder: str, ttl_ms: int, now_ms: int, instead_of: str = "") -> int | None:
        """Begin to lead if no process does. Returns the new epoch, or None while another's lease runs.

        A holder that asks again takes over from its own dead past: the epoch grows, whatever that past still
        tries. The same is true of `instead_of`: a process that leads, and may not act any more.
        """
        values = {"name": self._name, "holder": holder, "ttl": ttl_ms, "instead_of": instead_of}
        row = await self._database.write(
            lambda connection: connection.execute(self._acquire, self._with_time(values, now_ms)).first()
        )
        return None if row is None else int(row.epoch)

    async def renew(self, epoch: int, ttl_ms: int, now_ms: int) -> bool:
        """Go on leading. False: another has taken over, stop at once."""
        values = {"name": self._name, "epoch": epoch, "ttl": ttl_ms}
        return await self._database.write(
            lambda connection: connection.execute(self._renew, self._with_time(values, now_ms)).rowcount == 1
        )

    async def release(self, epoch: int) -> None:
        """Stop leading, so that another may begin at once. Nothing happens if another has already."""
        values = {"name": self._name, "epoch": epoch}
        await self._database.write(lambda connection: connection.execute(_RELEASE, values))

    async def read(self) -> Holding:
        """The present leader, for people and standbys."""
        found = await self._database.rows(self._select, {"name": self._name})
        if not found:
            return Holding(0, "", 0, 0)
        row = found[0]
        return Holding(row.epoch, row.holder, row.renewed_ms, row.expires_ms, bool(row.live))

    async def server_ms(self) -> int | None:
        """The time of the server's clock; None on SQLite, which has none."""
        if self._database.kind == "sqlite":
            return None
        return int((await self._database.rows(_SERVER_NOW))[0][0])

    def _with_time(self, values: dict[str, object], now_ms: int) -> dict[str, object]:
        """SQLite's statements take the time as a parameter."""
        return values | {"now": now_ms} if self._database.kind == "sqlite" else values


_SERVER_NOW: Final = text(f"SELECT {_SERVER_TIME}")
_RELEASE: Final = text("UPDATE lease SET holder = '', expires_ms = 0 WHERE name = :name AND epoch = :epoch")


def _renewing(now: str) -> TextClause:
    return text(
        f"UPDATE lease SET renewed_ms = {now}, expires_ms = {now} + :ttl "
        "WHERE name = :name AND epoch = :epoch AND expires_ms > 0"
    )


#: Time limits of a session that renews, for locks and answers: after them it asks again, on another connection if need be. The
#: server waits as long for its commit: a process that is stopped before it must not keep the row locked.
_IMPATIENT: Final = (
    "SET lock_timeout = '3s'",
    "SET statement_timeout = '4s'",
    "SET idle_in_transaction_session_timeout = '4s'",
)


class Renewal:
    """Renews the leader's lease on PostgreSQL from a thread of its own, over a connection of its own.

    A leader that is really stuck must lose its lease all the same: the thread asks `alive` before each renewal.

    Attributes:
        renewed: When the last renewal that succeeded was asked for, by `monotonic`.
        lost: Another process leads.
        trouble: Why the last one did not succeed; "" where it did.
    """

    def __init__(
        self,
        database: Database,
        epoch: int,
        ttl_ms: int,
        *,
        period_s: float,
        pause_s: float,
        alive: Callable[[], bool],
        renewed: float,
        monotonic: Callable[[], float],
    ) -> None:
        self.renewed = renewed
        self.lost = False
        self.trouble = ""
        self._url = database.url
        self._values = {"name": LEADER, "epoch": epoch, "ttl": ttl_ms}
        self._period_s, self._pause_s = period_s, pause_s
        self._alive, self._monotonic = alive, monotonic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no more. A renewal under way may still take place. It does no harm: the lease is given back after it."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        """Whether the thread has come to its end."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        arguments = {
            "connect_timeout": 5, "application_name": "flowsched-lease", "keepalives_idle": 5,
            "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 4_000,
        }  # fmt: skip
        engine = create_engine(self._url, pool_size=1, max_overflow=0, connect_args=arguments)
        try:
            wait_s = self._period_s
            while not self._stop.wait(wait_s) and not self.lost:
                wait_s = self._period_s if not self._alive() or self._asked(engine) else self._pause_s
        finally:
            engine.dispose()

    def _asked(self, engine: Engine) -> bool:
        """Ask once. False: there was no answer."""
        asked = self._monotonic()
        try:
            with engine.begin() as connection:
                for setting in _IMPATIENT:
                    connection.exec_driver_sql(setting)
                self.lost = connection.execute(_renewing(_SERVER_TIME), self._values).rowcount != 1
        except (SQLAlchemyError, OSError) as error:
            self.trouble = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return False
        self.trouble = ""
        if not self.lost:
            self.renewed = asked
        return True
