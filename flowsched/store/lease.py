"""Who leads: one row with an epoch that grows by one at each take-over.

The epoch makes it safe: every write of a leader carries it (`changes.Changes.refusals`), so that a deposed
one, paused for minutes or with a wrong clock, changes nothing. Time only makes it live: it decides when
another may take over.

Whose time: on PostgreSQL the server's, always, and the `now_ms` passed in is not used: all processes then
read one clock, and a jump of a machine's own clock steals no lease. On SQLite there is one process
(`lockfile`), whose clock is the one passed in; opening the database ends whatever lease a dead process left,
so a restart waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import text

from flowsched.store.changes import LEADER
from flowsched.store.database import Database, unbroken

_SERVER_TIME: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


@dataclass(frozen=True, slots=True)
class Holding:
    """The lease as it stands. Epoch 0: nobody has led yet."""

    epoch: int
    holder: str
    renewed_ms: int
    expires_ms: int


class Lease:
    """The leader's lease, seen from one process. Times in ms; see the module for whose."""

    def __init__(self, database: Database, name: str = LEADER) -> None:
        self._database = database
        self._name = name
        now = ":now" if database.kind == "sqlite" else _SERVER_TIME
        self._take = text(
            "INSERT INTO lease (name, epoch, holder, renewed_ms, expires_ms) "
            f"VALUES (:name, 1, :holder, {now}, {now} + :ttl) ON CONFLICT (name) DO UPDATE SET "
            "epoch = lease.epoch + 1, holder = excluded.holder, renewed_ms = excluded.renewed_ms, "
            "expires_ms = excluded.expires_ms "
            f"WHERE lease.expires_ms <= {now} OR lease.holder = excluded.holder RETURNING epoch"
        )
        self._renew = text(
            f"UPDATE lease SET renewed_ms = {now}, expires_ms = {now} + :ttl "
            "WHERE name = :name AND epoch = :epoch AND expires_ms > 0"
        )

    @unbroken
    async def acquire(self, holder: str, ttl_ms: int, now_ms: int) -> int | None:
        """Begin to lead if nobody does; the new epoch, or None while another's lease runs.

        A holder who asks again takes over from its own dead past: the epoch grows, whatever that past still
        tries.
        """
        values = {"name": self._name, "holder": holder, "ttl": ttl_ms}
        async with self._database.writing() as connection:
            row = (await connection.execute(self._take, self._with_time(values, now_ms))).first()
        return None if row is None else int(row.epoch)

    @unbroken
    async def renew(self, epoch: int, ttl_ms: int, now_ms: int) -> bool:
        """Go on leading. False: another has taken over, stop at once."""
        values = {"name": self._name, "epoch": epoch, "ttl": ttl_ms}
        async with self._database.writing() as connection:
            return (await connection.execute(self._renew, self._with_time(values, now_ms))).rowcount == 1

    @unbroken
    async def release(self, epoch: int) -> None:
        """Stop leading, so that another may begin at once. Nothing happens if another has already."""
        async with self._database.writing() as connection:
            await connection.execute(_RELEASE, {"name": self._name, "epoch": epoch})

    @unbroken
    async def look(self) -> Holding:
        """Who leads, for people and standbys."""
        async with self._database.reading() as connection:
            row = (await connection.execute(_LOOK, {"name": self._name})).first()
        return Holding(0, "", 0, 0) if row is None else Holding(*row)

    def _with_time(self, values: dict[str, object], now_ms: int) -> dict[str, object]:
        """SQLite's statements take the time as a parameter."""
        return values | {"now": now_ms} if self._database.kind == "sqlite" else values


_RELEASE: Final = text("UPDATE lease SET holder = '', expires_ms = 0 WHERE name = :name AND epoch = :epoch")
_LOOK: Final = text("SELECT epoch, holder, renewed_ms, expires_ms FROM lease WHERE name = :name")
