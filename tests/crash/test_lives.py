"""How a life of the service begins and ends: SIGTERM, a second one, a database that dies (P1, P2; rows 18, 19)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.conftest import SEED
from tests.crash.harness import Campaign, Nursery
from tests.forks import Forked
from tests.postgres import Server, start_or_skip


def serve(root: Path, *more: str) -> Forked:
    """`flowsched serve` as a user starts it."""
    words = ["serve", "--port", "0", "--root", str(root), *more]
    return Forked(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.slow
async def test_terminated_its_tasks_go_on_and_the_next_start_takes_them_up(
    tmp_path: Path, nursery: Nursery, database: str | None
) -> None:
    """SIGTERM ends the service and no task: the attempt that ran is the one that succeeds."""
    campaign = Campaign(tmp_path, nursery, database=database, kills=0)
    document = {
        "name": "w",
        "stages": [
            {
                "name": "a",
                "command": [
                    "/bin/sh",
                    "-c",
                    f"echo >> {tmp_path}/starts; until [ -e {tmp_path}/go ]; do sleep 0.05; done",
                ],
            }
        ],
    }
    try:
        campaign.start()
        await campaign.ready()
        ident = (await campaign.client.submit(document)).id
        while not (tmp_path / "starts").exists():
            await asyncio.sleep(0.02)
        assert campaign.service is not None
        await campaign.service.kill(signal.SIGTERM)
        (tmp_path / "go").touch()
        campaign.start()
        await campaign.ready()
        assert (await campaign.client.wait(ident, timeout=120)).state == "SUCCEEDED"
        task = await campaign.client.task(ident, "a")
        assert [(each.attempt, each.exit_code) for each in task.attempts] == [(0, 0)]
        assert len((tmp_path / "starts").read_text().splitlines()) == 1
    finally:
        await campaign.end()


@pytest.mark.slow
async def test_a_second_service_on_the_same_root_is_told_who_is_there(
    tmp_path: Path, nursery: Nursery, database: str | None
) -> None:
    """It ends with an error that names the process; the first one leads on with its epoch (row 18)."""
    campaign = Campaign(tmp_path, nursery, database=database, kills=0)
    try:
        campaign.start()
        await campaign.ready()
        assert campaign.service is not None
        second = serve(campaign.root, *(["--db", database] if database else []))
        told, _ = await asyncio.to_thread(second.communicate)
        assert second.returncode not in (0, None)
        assert f"process {campaign.service.pid}" in " ".join(told.split())
        assert not campaign.service.dead()
        ident = (
            await campaign.client.submit({"name": "w", "stages": [{"name": "a", "command": ["true"]}]})
        ).id
        assert (await campaign.client.wait(ident, timeout=120)).state == "SUCCEEDED"
        await campaign.service.kill()
        assert campaign.query("SELECT epoch FROM lease WHERE name = 'leader'") == [(1,)]
    finally:
        await campaign.end()


@pytest.mark.slow
@pytest.mark.postgresql
async def test_a_service_that_waits_to_lead_can_be_terminated(tmp_path: Path, fresh_postgres: object) -> None:
    """SIGTERM is heard while another holds the lease, too."""
    url = fresh_postgres()  # type: ignore[operator]
    from flowsched.store.database import Database
    from flowsched.store.lease import Lease

    async with await Database.open(url) as opened:
        await Lease(opened).acquire("somebody else", 600_000, 0)
    waiting = serve(tmp_path, "--db", url)
    in_use = tmp_path / "in-use"
    while not (in_use.exists() and in_use.read_text()):
        assert waiting.poll() is None
        await asyncio.sleep(0.05)
    waiting.terminate()
    await asyncio.to_thread(waiting.communicate)
    assert waiting.returncode == 0


@pytest.fixture
def durable_server() -> Iterator[Server]:
    """A PostgreSQL that syncs, to be killed."""
    server = start_or_skip(fsync=True)
    yield server
    server.remove()


@pytest.mark.slow
@pytest.mark.postgresql
async def test_postgresql_and_the_service_are_killed_together(
    tmp_path: Path, nursery: Nursery, durable_server: Server, tell: Callable[[str], None]
) -> None:
    """The database dies under a working service, which dies as well; both come back, and nothing is lost (row 19)."""
    campaign = Campaign(tmp_path, nursery, database=durable_server.fresh(), kills=0, seed=SEED)
    try:
        for both in (False, True):
            for _ in range(4):
                campaign.add(campaign.mix.next())
            campaign.start()
            await campaign.ready()
            await asyncio.sleep(0.7)
            durable_server.kill()
            assert campaign.service is not None
            if both:
                await campaign.service.kill()
            await asyncio.sleep(0.5)
            durable_server.start()
            if not both:
                await campaign.ready()  # the pool heals
                await campaign.finish()
                await campaign.service.kill()
        campaign.start()
        await campaign.finish()
        await campaign.ready()
        await campaign.audit()
    finally:
        await campaign.end()
    tell("\n".join(campaign.report.lines("PostgreSQL killed twice, once with the service")))
    assert not campaign.report.faults, campaign.tail()
