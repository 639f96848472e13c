"""Creates that are sent more than once: by clients that lose patience, and by clients that do not look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.clients.live import LiveService, live
from tests.clients.test_py_tes import script
from tests.crash.harness import Nursery

pytestmark = pytest.mark.slow
TASK = {"name": "slow", "executors": [{"image": "a", "command": ["sleep", "30"]}]}


async def posted(service: LiveService, body: Any, prefix: str = "/ga4gh/tes/v1") -> str:
    """POST over a connection of its own; the id."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{service.url}{prefix}/tasks", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return str((await answer.json())["id"])


async def known(service: LiveService) -> list[str]:
    return [task["id"] for task in (await service.get("/ga4gh/tes/v1/tasks"))["tasks"]]


async def test_five_identical_creates_at_once_make_one_task(
    tmp_path: Path, nursery: Nursery, database: str | None
) -> None:
    """All five are answered with its id."""
    async with live(tmp_path, nursery, database=database) as service:
        idents = await asyncio.gather(*(posted(service, TASK) for _ in range(5)))
        assert len(set(idents)) == 1
        assert await known(service) == [idents[0]]


async def test_tasks_that_differ_are_never_taken_for_one_another(tmp_path: Path, nursery: Nursery) -> None:
    """A second attempt of Cromwell's has another description; another shard, too."""
    bodies = [
        TASK
        | {
            "description": f"wf:BackendJobDescriptorKey_CommandCallNode_W.c:{shard}:{attempt}",
            "tags": {"a": "b"},
        }
        for shard in (0, 1)
        for attempt in (1, 2)
    ]
    async with live(tmp_path, nursery) as service:
        idents = await asyncio.gather(*(posted(service, body) for body in bodies))
        assert len(set(idents)) == 4
        assert sorted(await known(service)) == sorted(idents)


@asynccontextmanager
async def late(service: LiveService, seconds: float) -> AsyncIterator[str]:
    """The service behind a proxy that keeps each answer to a POST for so long; the proxy's URL."""

    async def forward(request: web.Request) -> web.Response:
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, service.url + request.path_qs, data=await request.read(),
                headers={"Content-Type": "application/json", "User-Agent": request.headers["User-Agent"]},
            ) as answer,
        ):  # fmt: skip
            body = await answer.read()
        if request.method == "POST":
            await asyncio.sleep(seconds)
        return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.clients
async def test_an_answer_of_twelve_seconds_makes_one_task(
    tmp_path: Path, nursery: Nursery, py_tes_1: Path
) -> None:
    """py-tes 1.1 waits for ten seconds and POSTs on the next prefix, three times in all; it had made three tasks elsewhere."""
    async with live(tmp_path, nursery) as service, late(service, 12.0) as url:
        printed = await script(py_tes_1 / "bin" / "python", "py_tes_slow_create.py", [url, "10"])
        assert printed.split() == ["HTTPError"]
        assert len(await known(service)) == 1


@pytest.mark.clients
async def test_a_create_that_is_slow_to_be_written_makes_one_task(
    tmp_path: Path, nursery: Nursery, py_tes_1: Path
) -> None:
    """The first POST hangs before it is written, the second overtakes it: the first finds the task there."""
    service = LiveService(tmp_path, nursery)
    try:
        service.start("submit.before=sleep:10@1")
        await service.ready()
        printed = await script(py_tes_1 / "bin" / "python", "py_tes_slow_create.py", [service.url, "6"])
        await asyncio.sleep(6)
        assert await known(service) == printed.split()
    finally:
        await service.end()
