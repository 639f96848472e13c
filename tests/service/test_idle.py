"""`explain --cluster` and its metric, of a running service."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowsched.errors import Unavailable
from flowsched.store.database import url_for
from tests.cluster.fake import FakeProcesses
from tests.service.processes import process


async def test_an_idle_cluster_says_that_no_work_asks(tmp_path: Path) -> None:
    """Two nodes of 4 cores, no work: all of it is idle, for want of demand."""
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        with pytest.raises(Unavailable, match="does not lead"):
            await one.service.idle()
        one.lead()
        await one.ready()
        report = await one.service.idle()
        metrics = await one.service.metrics()
    cpu = report.resources["cpu"]
    assert (cpu.capacity, cpu.used, cpu.idle, cpu.causes) == (8.0, 0.0, 8.0, {"no_demand": 8.0})
    assert report.sentences[0] == "cpu: 8.0 of 8.0 cores are idle; of these 100 % no demand"
    assert b'flowsched_idle_resources{cause="no_demand",resource="cores"} 8.0' in metrics
    assert b'flowsched_idle_resources{cause="quota",resource="cores"} 0.0' in metrics
