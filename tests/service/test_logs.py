"""Logs of attempts, from the attempt's row in the database to its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flowsched.store.database import url_for
from tests.cluster.fake import FakeProcesses
from tests.service.processes import process

SUBMITTED = b'{"name": "w", "stages": [{"name": "a", "command": ["x"]}]}'


async def test_more_may_come_of_an_attempt_that_the_executor_does_not_know_yet(tmp_path: Path) -> None:
    """Its row is stored and its launch is not ordered: a reader waits for it, also one that names it."""
    stored, go_on = asyncio.Event(), asyncio.Event()

    async def stop_before_the_launch(point: str) -> None:
        if point == "launch.before":
            stored.set()
            await go_on.wait()

    world = process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(), failpoint=stop_before_the_launch)
    async with world as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(SUBMITTED)).id
        await asyncio.wait_for(stored.wait(), 60)
        assert await one.service.logs(ident, "a", 0) == (b"", True)
        assert await one.service.logs(ident, "a", 0, attempt=0, stream="stderr") == (b"", True)
        go_on.set()
        async with asyncio.timeout(60):
            while (await one.service.workflow(ident)).state != "SUCCEEDED":
                await asyncio.sleep(0.01)
        assert await one.service.logs(ident, "a", 0) == (f"fs-{ident}-a-0-0\n".encode(), False)
