"""Who leads. Time decides when another may; the epoch decides whose writes count."""

from __future__ import annotations

from pathlib import Path

from store_samples import rows

from flowsched.store import tables
from flowsched.store.database import Database, url_for
from flowsched.store.lease import Lease


async def expire(database: Database) -> None:
    """Let the lease run out, whichever clock counts."""
    async with database.writing() as connection:
        await connection.execute(tables.lease.update().values(expires_ms=1))


async def test_one_leads_until_its_lease_is_over(database: Database) -> None:
    """Another gets nothing while it runs, and the next epoch afterwards; the old one cannot renew."""
    lease = Lease(database)
    assert (await lease.look()).epoch == 0
    assert await lease.acquire("a", 10_000, 1_000) == 1
    assert await lease.acquire("b", 10_000, 5_000) is None
    assert await lease.renew(1, 10_000, 9_000)
    assert await lease.acquire("b", 10_000, 12_000) is None
    await expire(database)
    assert await lease.acquire("b", 10_000, 20_000) == 2
    assert not await lease.renew(1, 10_000, 20_001)
    assert (await lease.look()).holder == "b"


async def test_a_released_lease_is_free_at_once(database: Database) -> None:
    """And the epoch grows by exactly one; releasing what another has does nothing."""
    lease = Lease(database)
    assert await lease.acquire("a", 10_000, 1_000) == 1
    await lease.release(1)
    assert not await lease.renew(1, 10_000, 1_001)
    assert await lease.acquire("b", 10_000, 1_002) == 2
    await lease.release(1)
    assert await lease.acquire("c", 10_000, 1_003) is None


async def test_a_holder_takes_over_from_its_dead_past(database: Database) -> None:
    """A restarted process of the same name need not wait, but has an epoch of its own."""
    lease = Lease(database)
    assert await lease.acquire("pod-0", 10_000, 1_000) == 1
    assert await lease.acquire("pod-0", 10_000, 1_001) == 2
    assert not await lease.renew(1, 10_000, 1_002)


async def test_fault_16_a_jumping_clock_steals_nothing(database: Database) -> None:
    """PostgreSQL's own clock counts there: an hour more or less on a machine changes nothing."""
    lease = Lease(database)
    assert await lease.acquire("a", 10_000, 1_000) == 1
    if database.kind == "postgresql":
        assert await lease.acquire("b", 10_000, 1_000 + 3_600_000) is None
    assert await lease.acquire("b", 10_000, 1_000 - 3_600_000) is None
    assert await lease.renew(1, 10_000, 1_000 - 3_600_000)


async def test_a_restart_on_sqlite_waits_for_nothing(tmp_path: Path) -> None:
    """Whoever has the file's lock knows that no other process lives, so the old lease is over."""
    url = url_for(tmp_path / "store.db")
    async with await Database.open(url) as database:
        assert await Lease(database).acquire("a", 3_600_000, 1_000) == 1
    async with await Database.open(url) as database:
        assert await Lease(database).acquire("b", 3_600_000, 1_001) == 2
        assert await rows(database, "SELECT holder FROM lease") == [("b",)]
