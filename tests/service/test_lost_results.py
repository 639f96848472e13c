"""Results in the cache of results whose files were removed, cut short, or written to."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from flowsched.errors import Conflict

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


async def submit(service: Any, *stages: dict[str, Any]) -> str:
    return str((await service.submit(json.dumps({"name": "w", "stages": stages}).encode())).id)


async def run(service: Any, *stages: dict[str, Any], ident: str = "") -> list[Any]:
    """The tasks of a run to its end. `ident`: of one that was submitted before."""
    ident = ident or await submit(service, *stages)
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
    settings = Settings(port=0, root=tmp_path / "root", log_level="error", local=LocalSettings(cpu="1"))
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


SPOIL = {
    "name": "spoil",
    "cache": True,
    "inputs": [{"name": "x", "from": "make.o"}],
    "command": ["sh", "-c", 'chmod u+w "$FLOWSCHED_INPUT_X" && echo more >> "$FLOWSCHED_INPUT_X"'],
}


async def test_an_input_that_a_task_writes_to_is_made_again_for_others(tmp_path: Path) -> None:
    """For other readers of the run, and for the cache. The task says what it did, its stage names it, and no other task takes its
    result.
    """
    settings = Settings(port=0, root=tmp_path / "root", log_level="error", local=LocalSettings(cpu="1"))
    async with running(settings) as up:
        spoiled_in = await submit(up.service, MAKE, SPOIL, {**READ, "needs": ["spoil"]})
        _, spoiled, read = await run(up.service, ident=spoiled_in)
        assert read.outputs[0].value == "1000\n"
        assert (spoiled.state, spoiled.reason) == ("SUCCEEDED", "InputChanged")
        for stage in (None, "spoil"):
            (told,) = await up.service.explain(spoiled_in, stage=stage)
            assert (told.stage, told.state, told.code, told.tasks) == (
                "spoil",
                "SUCCEEDED",
                "InputChanged",
                1,
            )
        assert await up.service.explain(spoiled_in, stage="make") == []
        assert [each.code for each in await up.service.explain(spoiled_in, stage="make", index=0)] == [
            "Placed"
        ]
        _, again, read = await run(up.service, MAKE, SPOIL, {**READ, "needs": ["spoil"]})
        assert (read.outputs[0].value, again.reason) == ("1000\n", "InputChanged")


async def test_a_file_of_the_user_that_is_written_to_while_a_task_reads_it(tmp_path: Path) -> None:
    """The task reads it in place. Its result is of neither version, so the next run does not take it."""
    mine = tmp_path / "mine"
    mine.write_text("one\n")
    wait = f"while ! [ -e {tmp_path}/go ]; do sleep 0.05; done"
    slow = {
        "name": "slow",
        "cache": True,
        "inputs": [{"name": "x", "uri": str(mine)}],
        "command": ["sh", "-c", f'touch {tmp_path}/began; {wait}; cat "$FLOWSCHED_INPUT_X" > o'],
        "outputs": [{"name": "o", "path": "o", "value": True}],
    }
    settings = Settings(port=0, root=tmp_path / "root", log_level="error", local=LocalSettings(cpu="1"))
    async with running(settings) as up:
        first = asyncio.create_task(run(up.service, slow))
        async with asyncio.timeout(60):
            while not (tmp_path / "began").exists():
                await asyncio.sleep(0.01)
        mine.write_text("two\n")
        (tmp_path / "go").touch()
        (task,) = await first
        assert task.reason == "InputChanged"
        (task,) = await run(up.service, slow)
        assert (task.reason, task.outputs[0].value) == ("", "two\n")
        (task,) = await run(up.service, slow)
        assert task.reason.startswith("CACHED")


@pytest.mark.parametrize("readers", [(), ({**READ, "cache": True},)])
async def test_a_result_whose_file_is_gone_is_made_again_once(
    tmp_path: Path, readers: tuple[dict[str, Any], ...]
) -> None:
    """Also one with a recorded value, after a restart, and when a reader has looked for it. The next run takes the new one."""
    settings = Settings(port=0, root=tmp_path / "root", log_level="error", local=LocalSettings(cpu="1"))
    value = {**MAKE, "outputs": [{"name": "o", "path": "o", "value": True}]}
    async with running(settings) as up:
        first = await submit(up.service, value)
        await run(up.service, ident=first)
        (file,) = (tmp_path / "root" / "nodes").glob("*/cache/*/o")
        file.unlink()
        with pytest.raises(Conflict):
            await up.service.output(first, "make", 0, "o")
    async with running(settings) as up:
        await run(up.service, value, *readers)
        (file,) = (tmp_path / "root" / "nodes").glob("*/cache/*/o")
        assert len(file.read_text().split()) == 1000
        again = await run(up.service, value, *readers)
        assert [task.reason.startswith("CACHED") for task in again] == [True] * (1 + len(readers))
