"""`explain --cluster` and its metric, of a running service."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from flowsched.errors import Unavailable
from flowsched.scheduling.explain.idle import IdleRoom, Split, split
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


async def test_the_event_loop_does_not_split_idle_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 10,000 nodes that takes up to 200 ms on a busy machine: a scrape and a report do it in a thread."""
    threads = []

    def noted(room: IdleRoom) -> Split:
        threads.append(threading.current_thread())
        return split(room)

    for module in ("metrics", "service"):
        monkeypatch.setattr(f"flowsched.control.{module}.split", noted)
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        one.lead()
        await one.ready()
        await one.service.idle()
        await one.service.metrics()
    assert len(threads) == 2
    assert threading.current_thread() not in threads
