"""An input that a user mends in place: the next try reads it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings


async def test_a_retry_reads_an_input_as_it_is_now(tmp_path: Path) -> None:
    """The node has a copy of the broken file, from the try that failed, and nothing that runs needs it."""
    given = tmp_path / "reads.txt"
    given.write_text("broken\n")
    stage = {
        "name": "check",
        "command": ["sh", "-c", 'grep -q good "$FLOWSCHED_INPUT_READS"'],
        "inputs": [{"name": "reads", "uri": str(given)}],
    }
    async with running(
        Settings(port=0, root=tmp_path / "root", log_level="error", local=LocalSettings(cpu="1"))
    ) as up:

        async def end_of(ident: str) -> str:
            while (view := await up.service.workflow(ident)).ended_at is None:
                await asyncio.sleep(0.02)
            return str(view.state)

        made = await up.service.submit(json.dumps({"name": "qc", "stages": [stage]}).encode())
        assert await end_of(made.id) == "FAILED"
        given.write_text("now good\n")
        await up.service.command(made.id, "retry")
        assert await end_of(made.id) == "SUCCEEDED"
