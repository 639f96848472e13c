"""kill -9 of the real service, again and again: nothing is lost, nothing runs twice (P1, P2, P3, P5, P8; rows 1, 2, 9, 10)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.conftest import KILLS, SEED
from tests.crash.harness import POINTS, Campaign, Nursery


@pytest.mark.slow
@pytest.mark.timeout(3000)
async def test_killed_at_every_point_nothing_is_lost_and_nothing_runs_twice(
    tmp_path: Path,
    nursery: Nursery,
    database: str | None,
    tell: Callable[[str], None],
) -> None:
    """Every accepted workflow ends once and as it should, however often the service is killed while it runs."""
    campaign = Campaign(tmp_path, nursery, database=database, kills=max(KILLS, len(POINTS) + 3), seed=SEED)
    began = time.monotonic()
    report = await campaign.run()
    told = report.lines(
        f"{'PostgreSQL' if database else 'SQLite'}, seed {SEED}, {time.monotonic() - began:.0f} s"
    )
    tell("\n".join(told))
    assert not report.faults, campaign.tail()
    assert report.kills.total() >= KILLS
    assert not campaign.uncovered()
