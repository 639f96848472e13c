"""`explain --cluster` of a running service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowsched import app
from flowsched.control.leading.leader import IdleKeeping
from flowsched.engine.idle_book import HOUR_MS, Hour, IdleBook
from flowsched.errors import InvalidRequest, Unavailable
from flowsched.scheduling.explain.idle import Cause
from flowsched.store.database import url_for
from flowsched.store.settings import IdleHours
from tests.cluster.fake import FakeProcesses
from tests.service.processes import process


async def test_an_idle_cluster_says_that_nobody_asks(tmp_path: Path) -> None:
    """Two nodes of 4 cores, no work: all of it is idle, for want of demand."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        with pytest.raises(Unavailable, match="does not lead"):
            await one.service.idle()
        one.lead()
        await one.ready()
        while not (report := await one.service.idle(since="1h")).resources:
            await asyncio.sleep(0.01)
        cpu = report.resources["cpu"]
        assert cpu.capacity == cpu.idle == sum(cpu.causes.values())
        assert set(cpu.causes) <= {"no_demand"}
        with pytest.raises(InvalidRequest, match="soon"):
            await one.service.idle(since="soon")
        with pytest.raises(InvalidRequest, match="a span before now"):
            await one.service.idle(since="0")


async def test_the_book_outlives_its_process(tmp_path: Path) -> None:
    """What one process saw is told by the next, to the core-hour; numbers may be larger than SQL's."""
    seen = Hour(
        idle={Cause.QUOTA: (96_000 * HOUR_MS, 1 << 70, 0), Cause.NO_DEMAND: (32_000 * HOUR_MS, 0, 0)},
        capacity=(128_000 * HOUR_MS, 1 << 71, 0),
        blame={(Cause.QUOTA, "night"): (96_000 * HOUR_MS, 1 << 70, 0)},
        covered_ms=HOUR_MS,
    )
    hour = app.now_ms() // HOUR_MS - 5
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        book = IdleBook()
        book.hours[hour] = seen
        book.hours[hour - 24 * 365] = seen
        keeping = IdleKeeping(one.database, book, clock=app.now_ms, holds=lambda: True)
        await keeping.once()
        await keeping.once()
        one.lead()
        await one.ready()
        report = await one.service.idle(since="24h")
        assert await IdleHours(one.database).list(0) == {hour: seen.plain()}
    told = next(each for each in report.hours if each.covered_seconds == 3600)
    assert told.resources["cpu"].causes == {"no_demand": 32.0, "quota": 96.0}
    assert told.resources["cpu"].who == {"quota": {"night": 96.0}}
