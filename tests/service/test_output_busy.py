"""Of two tasks that write one file the later says which attempt it waits for, and for which file."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

from flowsched import Client
from tests.service.serving import Service


def sent(service: Service, script: str, output: Path) -> str:
    """The id of a TES task that writes what it says to a file."""
    task = {"executors": [{"image": "i", "command": ["sh", "-c", script], "stdout": "/made/out"}],
            "outputs": [{"path": "/made/out", "url": f"file://{output}"}]}  # fmt: skip
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{service.url}/v1/tasks", json.dumps(task).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["id"])


def task_of(service: Service, ident: str) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(service.get(f"/v1/tasks/{ident}?view=FULL")[1])
    return view


def explained(service: Service, ident: str) -> list[tuple[str, str]]:
    async def ask() -> list[tuple[str, str]]:
        async with Client(service.url) as client:
            return [(each.code, each.message) for each in await client.explain(ident)]

    return asyncio.run(ask())


def test_a_writer_that_waits_says_for_which_attempt_and_file(tmp_path: Path) -> None:
    """In `explain` and in the `system_logs` of TES, until it starts; the second client spells the file another way."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    go, output = tmp_path / "go", tmp_path / "out" / "f"
    with Service(tmp_path / "root", tmp_path / "log") as service:
        service.ready()
        first = sent(service, f"echo first; until [ -e {go} ]; do sleep 0.1; done", output)
        service.until(lambda: task_of(service, first)["state"] == "RUNNING", "the first runs")
        second = sent(service, "echo second", tmp_path / "link" / "f")
        (code, message), *_ = service.until(
            lambda: [each for each in explained(service, second) if each[0] == "OutputBusy"], "explained"
        )
        assert code == "OutputBusy"
        assert message.endswith(
            f"attempt 0 of task 0 of stage 'task' of workflow {first} still writes {output}"
        )
        task = task_of(service, second)
        assert task["state"] in ("QUEUED", "INITIALIZING")
        assert f"OutputBusy: {message}" in task["logs"][-1]["system_logs"]
        go.touch()
        service.until(lambda: task_of(service, second)["state"] == "COMPLETE", "the second is done")
        assert output.read_text() == "second\n"
        assert "OutputBusy" not in json.dumps(task_of(service, second))
        assert explained(service, second) == []
