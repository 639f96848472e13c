"""The requests that Sprocket and Nextflow sent once, on a real service: with a failure, its retry, a restart and a cancel.

The engines themselves take too long to install for CI (`make engines`); test_engines.py runs them where they are.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.clients.live import LiveService, live
from tests.crash.harness import Nursery
from tests.tes.recordings import requests_of

#: The folder of the recordings.
RECORDED: Final = "/data/"
pytestmark = [pytest.mark.clients, pytest.mark.slow]


@pytest.fixture
async def service(nursery: Nursery) -> AsyncIterator[LiveService]:
    with tempfile.TemporaryDirectory(prefix="flowsched-recorded-", dir="/var/tmp") as name:
        async with live(Path(name), nursery) as made:
            yield made


def recorded(client: str, run: str, folder: Path) -> list[dict[str, Any]]:
    """The tasks of one run that a client sent, with their files in this folder instead of the recorded one."""
    lines = [line for line in requests_of("engines-2026-11.jsonl") if line["client"].startswith(client)]
    own = json.dumps([line["request"] for line in lines if run in line["request"]["tags"].values()])
    return list(json.loads(own.replace(RECORDED, f"{folder}/data/")))


async def post(service: LiveService, path: str, body: Any = None) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{service.url}/v1/tasks{path}", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def create(service: LiveService, task: dict[str, Any]) -> str:
    return str((await post(service, "", task))["id"])


async def reaches(service: LiveService, ident: str, *states: str) -> dict[str, Any]:
    """The task, once it is in one of these states."""
    async with asyncio.timeout(120):
        while True:
            task: dict[str, Any] = await service.get(f"/v1/tasks/{ident}?view=FULL")
            if task["state"] in states:
                return task
            await asyncio.sleep(0.1)


async def only_line(service: LiveService) -> tuple[str, str, dict[str, int]]:
    (run,) = (await service.get("/api/v1/workflows"))["workflows"]
    return run["id"], run["state"], run["counts"]


async def test_a_run_of_nextflow(service: LiveService) -> None:
    """A try that fails is no failure of the run after its retry; the log of the failed try is back in its folder."""
    first, second, _ = recorded("nextflow", "demo-1", service.root.parent)
    for task, script in ((first, "echo broken; exit 3"), (second, "while sleep 0.1; do :; done")):
        prepare(task, script)
    failed = await create(service, first)
    assert (await reaches(service, failed, "EXECUTOR_ERROR", "COMPLETE"))["state"] == "EXECUTOR_ERROR"
    assert own_file(first, ".command.log").read_text() == "broken\n"
    assert await only_line(service) == ("demo-1", "FAILED", {"FAILED": 1})
    lasting = await create(service, second)
    await reaches(service, lasting, "RUNNING")
    await service.restart()
    prepare(first, "echo well")
    await reaches(service, await create(service, first | {"resources": {"cpu_cores": 2}}), "COMPLETE")
    await post(service, f"/{lasting}:cancel")
    await reaches(service, lasting, "CANCELED")
    assert await only_line(service) == ("demo-1", "CANCELLED", {"SUCCEEDED": 1, "CANCELLED": 1})


def own_file(task: dict[str, Any], name: str) -> Path:
    """A file in the folder of a task of Nextflow."""
    (url,) = [each["url"] for each in task["outputs"] if each["path"] == f"/work/{name}"]
    return Path(url)


def prepare(task: dict[str, Any], script: str) -> None:
    """Write the inputs of a task of Nextflow; this is the script in its wrapper."""
    for each in task["inputs"]:
        Path(each["url"]).parent.mkdir(parents=True, exist_ok=True)
        Path(each["url"]).write_text(script if each["path"].endswith(".command.run") else "")


async def test_a_run_of_sprocket(service: LiveService) -> None:
    """Sprocket judges return codes itself: its failed try is complete for TES, and the retry takes its place in the run."""
    first, second = recorded("sprocket", "1cbrYJxejivW-1795722229-1", service.root.parent)
    first["inputs"][0]["content"] = "exit 3"
    task = await reaches(service, await create(service, first), "COMPLETE")
    assert task["logs"][-1]["logs"][-1]["exit_code"] == 3
    second["inputs"][0]["content"] = "while sleep 0.1; do :; done"
    lasting = await create(service, second)
    await reaches(service, lasting, "RUNNING")
    await service.restart()
    first["inputs"][0]["content"] = "echo well"
    again = first | {"name": "nap-3-ki5b9hTqILcR"}
    await reaches(service, await create(service, again), "COMPLETE")
    await post(service, f"/{lasting}:cancel")
    await reaches(service, lasting, "CANCELED")
    assert await only_line(service) == (
        "sprocket-1cbrYJxejivW", "CANCELLED", {"SUCCEEDED": 1, "CANCELLED": 1},
    )  # fmt: skip
