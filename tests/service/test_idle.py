"""`explain --cluster` of a running service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowsched.cluster.fake import FakeProcesses
from flowsched.errors import InvalidRequest, Unavailable
from flowsched.store.database import url_for
from tests.service.processes import process


@pytest.mark.timeout(20)
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
