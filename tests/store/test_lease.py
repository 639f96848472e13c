"""Who leads. Time decides when another may; the epoch decides whose writes count."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.util import await_only
from store_samples import rows

from flowsched.errors import Unavailable
from flowsched.store import tables
from flowsched.store.database import Database, url_for
from flowsched.store.lease import Lease, Renewal


async def expire(database: Database) -> None:
    """Let the lease run out, whichever clock counts."""
    late = tables.lease.update().values(expires_ms=1)
    await database.write(lambda connection: connection.execute(late))


async def test_one_leads_until_its_lease_is_over(database: Database) -> None:
    """Another gets nothing while it runs, and the next epoch afterwards; the old one cannot renew."""
    lease = Lease(database)
    assert (await lease.read()).epoch == 0
    assert await lease.acquire("a", 10_000, 1_000) == 1
    assert await lease.acquire("b", 10_000, 5_000) is None
    assert await lease.renew(1, 10_000, 9_000)
    assert await lease.acquire("b", 10_000, 12_000) is None
    await expire(database)
    assert await lease.acquire("b", 10_000, 20_000) == 2
    assert not await lease.renew(1, 10_000, 20_001)
    assert (await lease.read()).holder == "b"


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


async def taken(lease: Lease) -> int:
    """The epoch of a standby that asks until it leads."""
    while True:
        try:
            epoch = await lease.acquire("standby", 10_000, 0)
        except Unavailable:  # the row is locked
            continue
        if epoch is not None:
            return epoch
        await asyncio.sleep(0.1)


@pytest.mark.postgresql
async def test_a_leader_that_stops_before_its_renewal_is_committed_keeps_no_lock(
    fresh_postgres: Callable[[], str],
) -> None:
    """The server ends its session: a process stopped by SIGSTOP or a paused machine would keep the row locked for ever."""
    async with await Database.open(fresh_postgres()) as database:
        lease, stopped, awake = Lease(database), threading.Event(), threading.Event()
        assert await lease.acquire("leader", 500, 0) == 1

        def stop(_connection: Connection) -> None:
            if threading.current_thread().name == "lease":
                stopped.set()
                awake.wait(60)

        event.listen(Engine, "commit", stop)
        renewal = Renewal(
            database,
            1,
            500,
            period_s=0.01,
            pause_s=60,
            alive=lambda: True,
            renewed=0,
            monotonic=lambda: 0,
        )
        renewal.start()
        try:
            assert await asyncio.to_thread(stopped.wait, 60)
            async with asyncio.timeout(60):
                assert await taken(lease) == 2
        finally:
            renewal.stop()
            awake.set()
            while not renewal.stopped:
                await asyncio.sleep(0.05)
            event.remove(Engine, "commit", stop)
        assert renewal.trouble


@pytest.mark.postgresql
async def test_a_leader_that_stops_within_a_step_keeps_no_lock(fresh_postgres: Callable[[], str]) -> None:
    """Each step locks the row of its lease. Its session ends when a standby may lead: nothing of that step is written."""
    url = fresh_postgres()

    async def stopped(leader: Database, standby: Database) -> None:
        async def taken_over() -> None:
            async with asyncio.timeout(60):
                assert await taken(Lease(standby)) == 2

        def work(connection: Connection) -> None:
            connection.execute(tables.lease.update().values(holder="stopped"))
            await_only(taken_over())

        await leader.write(work)

    async with await Database.open(url) as leader, await Database.open(url) as standby:
        assert await Lease(leader).acquire("leader", 500, 0) == 1
        with pytest.raises(Unavailable):
            await stopped(leader, standby)
        assert (await Lease(leader).read()).holder == "standby"
