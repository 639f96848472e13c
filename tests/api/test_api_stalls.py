"""Requests that ask for much, each sent to a real service: none of them holds its event loop for more than 200 ms of CPU time."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from tests.heartbeat import BEAT_S, HELD_S, beat

EXECUTOR = {"image": "a", "command": ["true"]}
STAGE = {"command": ["true"], "resources": {"cpu": 900}}
DOCUMENTS, TASKS = "/api/v1/workflows", "/ga4gh/tes/v1/tasks"


def numbered(count: int, value: Any = "x") -> dict[str, Any]:
    return {f"k{number}": value for number in range(count)}


#: Where to, what, and the answer.
REQUESTS: dict[str, tuple[str, Callable[[], Any], int]] = {
    "800,000 tags": (TASKS, lambda: {"executors": [EXECUTOR], "tags": numbered(800_000)}, 413),
    "400,000 executors": (TASKS, lambda: {"executors": [EXECUTOR] * 400_000}, 413),
    "1,000,000 unknown keys": (DOCUMENTS, lambda: numbered(1_000_000, 1), 422),
    "1,000,000 labels": (
        DOCUMENTS,
        lambda: {"name": "w", "labels": numbered(1_000_000, ""), "stages": [{"name": "s", **STAGE}]},
        413,
    ),
    "10,000 stages": (
        DOCUMENTS,
        lambda: {"name": "w", "stages": [{"name": f"s{number}", **STAGE} for number in range(10_000)]},
        202,
    ),
    "1,000,000 inputs of a plan": (
        "/api/v1/plans",
        lambda: {"source": "no WDL", "inputs": numbered(1_000_000, 1)},
        422,
    ),
    "60 MiB of node names": (
        "/scheduler/filter",
        lambda: {"Pod": {}, "NodeNames": [f"node-{number:050d}" for number in range(1_000_000)]},
        413,
    ),
}


def sent(url: str, body: bytes | None = None, method: str | None = None) -> tuple[int, bytes]:
    """Status and body of an answer."""
    request = urllib.request.Request(
        url, data=body, headers={"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize("name", REQUESTS)
async def test_fault_41_no_request_holds_the_loop(tmp_path: Path, name: str) -> None:
    """Reading, checking, refusing or accepting it, and answering what was made of it."""
    path, make, status = REQUESTS[name]
    body = json.dumps(make()).encode()
    stalls: list[float] = []
    async with running(
        Settings(port=0, root=tmp_path, log_level="error", local=LocalSettings(cpu="1"))
    ) as up:
        beating = asyncio.create_task(beat(stalls))
        answered, said = await asyncio.to_thread(sent, up.url + path, body)
        assert answered == status, said[:500]
        if status == 202:
            made = json.loads(said)["id"]
            for of in ("", "/stages", "/explain"):
                assert (await asyncio.to_thread(sent, f"{up.url}{path}/{made}{of}"))[0] == 200, of
        await asyncio.sleep(4 * BEAT_S)  # the last beat counts what was used since the one before
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
    assert stalls == [], f"held for more than {HELD_S} s"


async def test_fault_41_no_profile_holds_the_loop(tmp_path: Path) -> None:
    """PyYAML takes half a second for 31 KiB of brackets."""
    stalls: list[float] = []
    async with running(
        Settings(port=0, root=tmp_path, log_level="error", local=LocalSettings(cpu="1"))
    ) as up:
        beating = asyncio.create_task(beat(stalls))
        answered, said = await asyncio.to_thread(sent, f"{up.url}/api/v1/profile", b"[" * 32_000, "PUT")
        assert answered == 400, said[:500]
        await asyncio.sleep(4 * BEAT_S)  # the last beat counts what was used since the one before
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
    assert stalls == [], f"held for more than {HELD_S} s"


@pytest.mark.parametrize("view", ["BASIC", "FULL"])
async def test_a_page_of_large_tasks_does_not_hold_the_loop(tmp_path: Path, view: str) -> None:
    """The stored bodies of 24 tasks, 3 MiB each, are unpacked and read beside it."""
    stalls: list[float] = []
    text = random.Random(1).randbytes(3 << 19).hex()
    async with running(
        Settings(port=0, root=tmp_path, log_level="error", local=LocalSettings(cpu="1"))
    ) as up:
        for number in range(24):
            body = json.dumps({"executors": [EXECUTOR], "description": f"{number}{text}"}).encode()
            assert (await asyncio.to_thread(sent, up.url + TASKS, body))[0] == 200
        beating = asyncio.create_task(beat(stalls))
        assert (await asyncio.to_thread(sent, f"{up.url}{TASKS}?view={view}&page_size=24"))[0] == 200
        await asyncio.sleep(4 * BEAT_S)  # the last beat counts what was used since the one before
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
    assert stalls == [], f"held for more than {HELD_S} s"
