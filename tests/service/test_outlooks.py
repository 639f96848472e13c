"""`explain` of a running service says what would change it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from flowsched.store.database import url_for
from tests.cluster.fake import FakeProcesses
from tests.service.processes import process


async def test_what_is_too_large_for_the_cluster_is_told_what_would_do(tmp_path: Path) -> None:
    """A task of 10,000 cores: how much it could have, and with which node it would start as it is."""
    task = {"name": "a", "command": ["x"], "resources": {"cpu": 10_000, "memory": "1Mi"}}
    document = json.dumps({"name": "w", "stages": [task]}).encode()
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(document)).id
        while not (found := await one.service.explain(ident)) or not found[0].suggestions:
            await asyncio.sleep(0.01)
    (told,) = found
    assert told.code == "LargerThanNode"
    assert told.binds == ["task: cpu"]
    kinds = {each.kind: each for each in told.suggestions}
    assert kinds["request"].was == 10_000_000
    assert 0 < kinds["request"].to < 10_000_000
    assert kinds["node"].message == "one more node with 10000 CPU, 1 MiB memory"
