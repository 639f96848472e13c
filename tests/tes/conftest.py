"""The TES server over a real database and fake pods, on a real socket, with a clock that tests may move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from flowsched import app
from flowsched.api.server import build_api
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Pod
from flowsched.store.database import url_for
from tests.cluster.fake import FakeProcesses, Outcome
from tests.postgres import fresh_postgres, postgres_server, postgres_url
from tests.service.processes import Process, process
from tests.tes.strict import check_full, check_minimal

NODES = [NodeInfo(f"node-{number}", 4_000, 4 << 30, 1 << 40) for number in range(2)]
__all__ = ["fresh_postgres", "postgres_server", "postgres_url"]
BOTH = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)
TES = "/ga4gh/tes/v1"
FINAL = {"COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR", "CANCELED"}


@dataclass
class World:
    """What tests decide: what becomes of pods, and what time it is."""

    outcome: Callable[[Pod], Outcome] = lambda pod: Outcome(runtime_ms=10)
    skew_ms: int = 0
    stopped_ms: int = 0  #: where the clock stands still; 0 = it goes
    processes: FakeProcesses = field(init=False)

    def __post_init__(self) -> None:
        self.processes = FakeProcesses(lambda pod: self.outcome(pod))

    def clock(self) -> int:
        return (self.stopped_ms or app.now_ms()) + self.skew_ms

    def stop_clock(self) -> None:
        """From now on only `skew_ms` moves it."""
        self.stopped_ms = app.now_ms()


@dataclass
class Tes:
    """A client of the server."""

    api: TestClient
    process: Process
    world: World

    async def create(self, body: Any, *, prefix: str = TES, **headers: str) -> str:
        answer = await self.api.post(f"{prefix}/tasks", json=body, headers=headers)
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "application/json"
        made = await answer.json()
        assert set(made) == {"id"}
        return str(made["id"])

    async def get(self, ident: str, view: str = "FULL", *, prefix: str = TES) -> dict[str, Any]:
        answer = await self.api.get(f"{prefix}/tasks/{ident}", params={"view": view})
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "application/json"
        task = await answer.json()
        return {"FULL": check_full, "MINIMAL": check_minimal}.get(view, dict)(task)

    async def until(self, ident: str, *states: str) -> dict[str, Any]:
        """Poll in full until the task is in a state; each answer on the way is checked."""
        async with asyncio.timeout(120):
            while (task := await self.get(ident))["state"] not in (states or FINAL):
                assert not states or task["state"] not in FINAL, task
                await asyncio.sleep(0.01)
        return task

    async def list(self, **asked: Any) -> dict[str, Any]:
        answer = await self.api.get(f"{TES}/tasks", params=asked)
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())

    async def refused(self, body: Any) -> dict[str, tuple[str, str]]:
        """Create what is wrong: path -> (found, expected)."""
        data = body if isinstance(body, bytes) else None
        answer = await self.api.post(f"{TES}/tasks", data=data, json=None if data is not None else body)
        problem = await answer.json()
        assert answer.status == 400, problem
        return {fault["path"]: (fault["found"], fault["expected"]) for fault in problem["faults"]}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLite, unless a test asks for the other."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return url_for(tmp_path / "db")
    return str(request.getfixturevalue("fresh_postgres")())


@pytest.fixture
async def tes(url: str, tmp_path: Path, world: World) -> AsyncIterator[Tes]:
    async with process(url, tmp_path, world.processes, clock=world.clock, nodes=NODES) as one:
        one.lead()
        await one.ready()
        async with TestClient(TestServer(build_api(one.service))) as api:
            yield Tes(api, one, world)
