"""Results in the cache of results whose files a person has removed or cut short."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from flowsched.app import Settings, running

MAKE = {
    "name": "make",
    "cache": True,
    "command": ["sh", "-c", "seq 1000 > o"],
    "outputs": [{"name": "o", "path": "o"}],
}
READ = {
    "name": "read",
    "inputs": [{"name": "x", "from": "make.o"}],
    "command": ["sh", "-c", "wc -l < $FLOWSCHED_INPUT_X > n"],
    "outputs": [{"name": "n", "path": "n", "value": True}],
}


async def run(service: Any, *stages: dict[str, Any]) -> list[Any]:
    """The tasks of a run to its end."""
    ident = (await service.submit(json.dumps({"name": "w", "stages": stages}).encode())).id
    async with asyncio.timeout(60):
        while (view := await service.workflow(ident)).ended_at is None:
            await asyncio.sleep(0.02)
    assert view.state == "SUCCEEDED"
    return list((await service.tasks(ident)).tasks)


@pytest.mark.parametrize("damage", ["removed", "cut"])
@pytest.mark.parametrize("readers", [(), (READ,)])
async def test_a_result_without_its_file_is_made_again(
    tmp_path: Path, damage: str, readers: tuple[dict[str, Any], ...]
) -> None:
    """Whether a stage reads it, or it is what the user wants."""
    settings = Settings(port=0, root=tmp_path / "root", cpu="1", log_level="error")
    async with running(settings) as up:
        await run(up.service, MAKE)
        (file,) = (tmp_path / "root" / "nodes").glob("*/cache/*/o")
        file.chmod(0o644)
        file.unlink() if damage == "removed" else file.write_text("1\n")
        made, *read = await run(up.service, MAKE, *readers)
        assert [task.outputs[0].value for task in read] == ["1000\n"] * len(readers)
        assert not made.reason
        (file,) = (tmp_path / "root" / "nodes").glob("*/cache/*/o")
        assert len(file.read_text().split()) == 1000
        (again,) = await run(up.service, MAKE)
        assert again.reason.startswith("CACHED")
