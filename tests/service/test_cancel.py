"""Cancels that come when nobody is ready for them (P8; row 38)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flowsched.store.database import url_for
from tests.cluster.fake import FakeProcesses
from tests.service.processes import process

DOCUMENT = b'{"name": "w", "stages": [{"name": "a", "scatter": {"count": 3}, "command": ["x"]}]}'


async def test_what_was_cancelled_while_nobody_led_is_never_launched(tmp_path: Path) -> None:
    """The leader that recovers it cancels it, and serves on: it does not offer the same launch for ever."""
    world = FakeProcesses()
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        ident = (await one.service.submit(DOCUMENT)).id
        await one.service.command(ident, "cancel")
        one.lead()
        await one.ready()
        while (await one.service.workflow(ident)).state != "CANCELLED":
            await asyncio.sleep(0.01)
        assert [(told.stage, told.tasks, told.state) for told in await one.service.explain(ident)] == [
            ("a", 3, "CANCELLED")
        ]
    assert not world.launched
