"""kill -9 of a service and of its runners while pods of short tasks wait on their nodes (`engine.pipelining`)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.cluster.lives import living_runners
from tests.crash.conftest import KILLS, SEED
from tests.crash.harness import Campaign, Nursery

TASKS = 1_500


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("runners_too", [False, True])
async def test_each_short_task_runs_once_however_often_the_service_is_killed(
    tmp_path: Path, nursery: Nursery, database: str | None, runners_too: bool
) -> None:
    """Where only services are killed no task starts twice. Where runners are killed too, one that was lost starts again."""
    campaign = Campaign(tmp_path, nursery, database=database, kills=0)
    chance = random.Random(SEED)
    command = ["/bin/sh", "-c", 'echo "$FLOWSCHED_ATTEMPT" >> "$0/$FLOWSCHED_INDEX"', str(campaign.marks)]
    ask = {"cpu": 1, "memory": "64Mi"}
    stage = {"name": "a", "scatter": {"count": TASKS}, "command": command, "resources": ask}
    try:
        campaign.start()
        await campaign.ready()
        ident = (await campaign.client.submit({"name": "w", "stages": [stage]})).id
        for _ in range(max(4, KILLS // 10)):
            assert campaign.service is not None
            await campaign.service.death(chance.uniform(0.1, 0.5))
            for pid in living_runners(campaign.root) if runners_too and chance.random() < 0.5 else ():
                os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(chance.uniform(0, 0.05))
            await campaign.service.kill()
            campaign.start()
            await campaign.ready()
        assert (await campaign.client.wait(ident, timeout=600)).state == "SUCCEEDED"
        await campaign.service.kill()
        starts = [len((campaign.marks / str(task)).read_text().split()) for task in range(TASKS)]
        assert runners_too or set(starts) == {1}
        ends = campaign.query("SELECT exit_code, ended_ms FROM attempts")
        assert all(ended_ms is not None for _, ended_ms in ends)
        assert sum(code == 0 for code, _ in ends) == TASKS
        pods = campaign.query("SELECT pod FROM attempts")
        assert any(b'"after":0' not in bytes(pod) for (pod,) in pods), "none was sent ahead"
    finally:
        await campaign.end()
