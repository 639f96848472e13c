"""The first start on a root that an earlier version has worked in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

import pytest

from flowsched.cluster.local.runner.kin import boot_id, start_time
from flowsched.executor.protocol import PodEnded, PodGone
from tests.cluster.conftest import RealWorld
from tests.executors.executor_contract import pod

ENDED = {
    "started_ms": 1, "at_ms": 2, "exit_code": 3, "reason": "", "message": "said", "outputs": [], "usage": {"cpu_ms": 7},
    "container": None, "images": [],
}  # fmt: skip
VOID = {"reason": "InputLost", "started": False, "at_ms": 5, "lost_inputs": ["file:///x"]}


def folder_of(world: RealWorld, name: str, **files: object) -> Path:
    """An attempt as it lay on the disk."""
    folder = world.attempt(name)
    folder.mkdir(parents=True)
    for file, content in files.items():
        path = folder / file.replace("_json", ".json")
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


async def test_ends_of_an_earlier_version_are_told_as_they_were(real_world: RealWorld) -> None:
    """Packed or not; a second start tells the same, and nothing runs twice."""
    names = ("ended", "void", "packed", "never")
    folder_of(real_world, "ended", exit_json=ENDED, lock="", pod_json={}, stdout="said\n")
    folder_of(real_world, "void", void=VOID, lock="")
    folder_of(real_world, "packed", ended_json={"exit.json": ENDED, "pod.json": {}})
    folder_of(real_world, "never", lock="", order="x")
    for _ in range(2):
        cluster, ear, _ = await real_world.open()
        await cluster.adopt([pod(name) for name in names])
        for name in ("ended", "packed"):
            end = await ear.ended(name)
            assert (end.at_ms, end.exit_code, end.message, end.usage.cpu_ms) == (2, 3, "said", 7)
        assert await ear.gone("void") == PodGone("void", 5, "InputLost", False, ("file:///x",))
        assert (await ear.gone("never")).reason == "NotStarted"
        await cluster.launch([pod("ended", "sh", "-c", "exit 9")])
        assert isinstance(again := await ear.final("ended"), PodEnded)
        assert again.exit_code == 3
        await real_world.drop()
    assert sorted(path.name for path in real_world.attempt("ended").iterdir()) == ["stdout"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc to find them")
async def test_what_an_earlier_version_runs_is_ended_and_told(real_world: RealWorld) -> None:
    """Its runner and its task are dead when the attempt is said to be lost."""
    folder = folder_of(real_world, "a")
    sleeps = ("/bin/sleep", "600")
    runner = await asyncio.create_subprocess_exec(*sleeps, env={})
    task = await asyncio.create_subprocess_exec(*sleeps, env={"FLOWSCHED_FOLDER": os.path.realpath(folder)})
    try:
        (folder / "lock").write_text(f"{runner.pid} {start_time(runner.pid)} {boot_id()}")
        (folder / "started").write_text(json.dumps({"pid": task.pid, "at_ms": 1, "cgroup": ""}))
        cluster, ear, _ = await real_world.open()
        await cluster.adopt([pod("a")])
        gone = await ear.gone("a")
        assert (gone.reason, gone.started) == ("RunnerLost", True)
        assert (await runner.wait(), await task.wait()) == (-9, -9)
    finally:
        for each in (runner, task):
            with contextlib.suppress(ProcessLookupError):
                each.kill()
