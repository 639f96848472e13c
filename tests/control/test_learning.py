"""What was learned of tasks survives the end of the process that learned it."""

from __future__ import annotations

import json
from pathlib import Path

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings

DOCUMENT = json.dumps(
    {
        "name": "kept",
        "stages": [
            {
                "name": "write",
                "scatter": {"count": 3},
                "command": ["sh", "-c", "sleep 0.2; echo hello > one; echo you > two"],
                "outputs": [{"name": "one", "path": "one"}, {"name": "two", "path": "two"}],
            },
            {
                "name": "read",
                "command": ["sh", "-c", "cat $(cat $FLOWSCHED_INPUT_ONES) > all"],
                "inputs": [{"name": "ones", "from": "write.one"}],
                "outputs": [{"name": "all", "path": "all"}],
            },
        ],
    }
).encode()


async def test_a_new_leader_knows_what_the_last_one_had_learned(tmp_path: Path) -> None:
    """Runtimes, bytes in and out, each output by its name: from the rows of finished tasks."""
    settings = Settings(
        port=0, root=tmp_path, log_level="error", local=LocalSettings(nodes=2, cpu="2", memory="1Gi")
    )
    async with running(settings) as up:
        ident = (await up.service.submit(DOCUMENT)).id
        async for _ in up.service.events(ident, 0):
            pass
        first = up.service._leader.dispatcher.state.work.estimates
        runtime = first.runtime_ms("kept", "write")
    async with running(settings) as up:
        learned = up.service._leader.dispatcher.state.work.estimates
        assert learned is not first
        assert (learned.samples("kept", "write"), learned.samples("kept", "read")) == (3, 1)
        assert learned.runtime_ms("kept", "write") == runtime
        assert learned.output_bytes("kept", "write") == 10
        assert learned.output_bytes("kept", "write", 0, "two") == 4
        assert learned.typical_size("kept", "read") == 18
        assert learned.output_bytes("kept", "read", 18) == 18
        assert learned.cpu_ms("kept", "write") == first.cpu_ms("kept", "write")
