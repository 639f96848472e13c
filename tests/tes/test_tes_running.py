"""What a TES client sees of a task that runs, and of one that has failed: real processes on this machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from flowsched.control.service import Service
from tests.tes.conftest import FINAL


async def seen(service: Service, ident: str, view: str = "FULL") -> dict[str, Any]:
    """A task as a view shows it."""
    answer: dict[str, Any] = json.loads(await service.tes.get(ident, view))
    return answer


def settings(folder: Path) -> Settings:
    return Settings(port=0, root=folder / "root", log_level="error", local=LocalSettings(images="ignore"))


async def test_the_view_full_shows_what_a_running_executor_writes(tmp_path: Path) -> None:
    """The end of its standard output, in an entry without an end; the other views and the end have none of it."""
    go = tmp_path / "go"
    script = f"echo so far; until test -e {go}; do sleep 0.05; done; echo done"
    task = {"executors": [{"image": "a", "command": ["sh", "-c", script]}]}
    async with running(settings(tmp_path)) as up, asyncio.timeout(60):
        ident = await up.service.tes.create(json.dumps(task).encode())
        while not (logs := (await seen(up.service, ident)).get("logs")) or not logs[0]["logs"]:
            await asyncio.sleep(0.2)
        (entry,) = logs[0]["logs"]
        assert (entry["stdout"], entry["exit_code"], "end_time" in entry) == ("so far\n", 0, False)
        assert (await seen(up.service, ident, "BASIC"))["logs"][0]["logs"] == []
        go.touch()
        while (last := await seen(up.service, ident))["state"] not in FINAL:
            await asyncio.sleep(0.05)
        (entry,) = last["logs"][0]["logs"]
        assert (entry["stdout"], "end_time" in entry) == ("so far\ndone\n", True)


async def test_a_failed_task_gives_its_client_all_that_is_there(tmp_path: Path) -> None:
    """The six files that Nextflow asks for, as far as the task has made them; and what it used."""
    made = (".command.out", ".command.err", ".command.log", ".exitcode")
    script = f"cd /work; head -c 3000000 /dev/zero > large; for f in {' '.join(made)}; do echo $f > $f; done; exit 7"
    outputs = [
        {"path": f"/work/{name}", "url": f"file://{tmp_path}/out/{name}"}
        for name in (*made, ".command.trace")
    ]
    task = {"executors": [{"image": "a", "command": ["sh", "-c", script]}], "outputs": outputs}
    async with running(settings(tmp_path)) as up, asyncio.timeout(60):
        ident = await up.service.tes.create(json.dumps(task).encode())
        while (last := await seen(up.service, ident))["state"] not in FINAL:
            await asyncio.sleep(0.05)
    assert last["state"] == "EXECUTOR_ERROR"
    (log,) = last["logs"]
    assert [step["exit_code"] for step in log["logs"]] == [7]
    assert "system_logs" not in log
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        n: f"{n}\n" for n in made
    }
    assert [each["path"] for each in log["outputs"]] == [f"/work/{name}" for name in made]
    assert int(log["metadata"]["peak_memory_bytes"]) > 100_000
    assert 3_000_000 <= int(log["metadata"]["disk_used_bytes"]) < 4_000_000
