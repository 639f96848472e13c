"""What has waited through a restart of the service shows its whole wait afterwards."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from tests.postgres import fresh_postgres, postgres_server

__all__ = ["fresh_postgres", "postgres_server"]


def document(name: str, script: str) -> bytes:
    stage = {"name": "a", "command": ["sh", "-c", script], "resources": {"cpu": 1, "memory": "16Mi"}}
    return json.dumps({"name": name, "stages": [stage]}).encode()


async def test_a_task_that_waited_through_a_restart_was_ready_before_it(
    database_url: str | None, tmp_path: Path
) -> None:
    """It waits for the only core. Its row says since when, which the histogram of waits and the timeline read."""
    gate = tmp_path / "gate"
    settings = Settings(
        port=0,
        root=tmp_path / "root",
        database=database_url,
        log_level="error",
        local=LocalSettings(nodes=1, cpu="1", memory="1Gi"),
    )
    async with running(settings) as up:
        await up.service.submit(document("blocker", f"while [ ! -e {gate} ]; do sleep 0.05; done"))
        waits = (await up.service.submit(document("waits", "true"))).id
        while (since := (await up.service.workflow(waits)).started_at) is None:
            await asyncio.sleep(0.02)
        assert (await up.service.task(waits, "a", 0)).state in ("PENDING", "QUEUED")
    async with running(settings) as up:
        gate.touch()
        async for _ in up.service.events(waits, 0):
            pass
        task = await up.service.task(waits, "a", 0)
    assert (task.state, task.ready_at) == ("SUCCEEDED", since)
