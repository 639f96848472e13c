"""Every test of the store that asks for `database` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from postgres import fresh_postgres, postgres_server, postgres_url  # noqa: E402, F401
from store_samples import Failpoints  # noqa: E402

from flowsched.store.database import Database, url_for  # noqa: E402
from flowsched.store.lease import Lease  # noqa: E402
from flowsched.store.workflows import Workflows  # noqa: E402
from flowsched.store.writer import GroupWriter  # noqa: E402


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return url_for(tmp_path / "store.db")
    return request.getfixturevalue("fresh_postgres")()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    async with await Database.open(url) as opened:
        yield opened


@pytest.fixture
async def epoch(database: Database) -> int:
    taken = await Lease(database).acquire("leader-1", 10_000, 0)
    assert taken == 1
    return taken


@pytest.fixture
async def failpoints() -> Failpoints:
    return Failpoints()


@pytest.fixture
async def writer(database: Database, failpoints: Failpoints) -> AsyncIterator[GroupWriter]:
    async with GroupWriter(database, failpoint=failpoints, jitter=lambda: 0.5) as running:
        yield running


@pytest.fixture
def reads(database: Database) -> Workflows:
    return Workflows(database)
