"""Node agents from the service's side, against an agent that answers when it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from flowsched.cluster.kubernetes.agents import Agents
from flowsched.executor.nodes import Load, LoadMeasured
from flowsched.executor.protocol import ClusterEvent, Transfer, TransferDone
from tests.kubernetes.agent_world import until


class ToldAgent:
    """An agent that has nothing, whose list can be held back, and that says what it is told to say."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.lists = 0
        self.looks = 0
        self.ready = asyncio.Event()
        self.says: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        app = web.Application()
        app.router.add_get("/v1/replicas", self._list)
        app.router.add_get("/v1/events", self._events)
        app.router.add_post("/v1/transfers", self._transfer)
        app.router.add_post("/v1/fingerprints", self._fingerprints)
        self._server = TestServer(app)

    async def start(self) -> str:
        await self._server.start_server()
        return str(self._server.make_url("")).rstrip("/")

    async def close(self) -> None:
        await self._server.close()

    async def _list(self, _: web.Request) -> web.StreamResponse:
        self.lists += 1
        await self.ready.wait()
        return web.json_response({"instance": "one", "seq": 0, "replicas": []})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(json.dumps(await self.says.get()).encode() + b"\n")

    async def _transfer(self, request: web.Request) -> web.StreamResponse:
        self.asked += [order["uri"] for order in (await request.json())["orders"]]
        return web.json_response({"accepted": 1}, status=202)

    async def _fingerprints(self, request: web.Request) -> web.StreamResponse:
        self.looks += 1
        await self.ready.wait()
        uris = (await request.json())["uris"]
        return web.json_response({"unknown": dict.fromkeys(uris, "no such file")})


@pytest.fixture
async def told() -> list[ClusterEvent]:
    return []


@pytest.fixture
async def agent() -> AsyncIterator[ToldAgent]:
    agent = ToldAgent()
    yield agent
    await agent.close()


@pytest.fixture
async def agents(told: list[ClusterEvent], agent: ToldAgent) -> AsyncIterator[Agents]:
    """Closed before the agent, which waits for those who follow it."""
    agents = Agents("k" * 16, told.append, lambda: 7, lambda _: True)
    agents.start()
    yield agents
    await agents.close()


async def test_an_agent_is_asked_for_copies_once_it_is_listened_to(
    agents: Agents, agent: ToldAgent, told: list[ClusterEvent]
) -> None:
    """What it did before would be found there when it is asked for again, and nobody would know what it has moved."""
    agents.observe("n0", await agent.start())
    await until(lambda: agent.lists)
    await agents.transfer([Transfer("s3://lab/x", 90, "n0")])
    assert agent.asked == []
    agent.ready.set()
    await until(lambda: agent.asked)
    agent.says.put_nowait(
        {"seq": 1, "kind": "transfer", "uri": "s3://lab/x", "moved_bytes": 90, "size_bytes": 90}
    )
    await until(lambda: told)
    assert agent.asked == ["s3://lab/x"]
    assert told == [TransferDone("s3://lab/x", "n0", 7, 90, None, 90)]
    assert agents.flows() == {"n0": (90, 0)}
    await agents.transfer([Transfer("s3://lab/y", 90, "n0")])
    assert agent.asked == ["s3://lab/x", "s3://lab/y"]


async def test_what_an_agent_measures_is_told_on(
    agents: Agents, agent: ToldAgent, told: list[ClusterEvent]
) -> None:
    """As one event, within a second or so."""
    agent.ready.set()
    agents.observe("n0", await agent.start())
    load = {
        "over_ms": 5_000,
        "disk_bytes": 500_000_000,
        "pods": {},
        "card": [50_000_000, 0],
        "copied": [0, 0],
    }
    agent.says.put_nowait({"seq": 0, "kind": "load", "load": load})
    await until(lambda: told)
    links = (Load("n0/in", 10_000_000, 0), Load("n0/out", 0, 0))
    assert told == [LoadMeasured((Load("n0", 100_000_000, 0),), (), links)]


async def test_a_question_after_a_start_waits_for_the_first_agent(agents: Agents, agent: ToldAgent) -> None:
    """The leader asks before the first agent has been seen. Its answer counts, not its absence."""
    agent.ready.set()
    asked = asyncio.create_task(agents.fingerprints(["s3://lab/x"], by_content=False))
    await asyncio.sleep(0.05)
    assert not asked.done()
    agents.observe("n0", await agent.start())
    assert await asked == {"s3://lab/x": "no such file"}


async def test_all_agents_look_for_lost_copies_at_the_same_time(agents: Agents, agent: ToldAgent) -> None:
    """An agent that does not answer delays no other agent's look."""
    other = ToldAgent()
    agents.observe("n0", await agent.start())
    agents.observe("n1", await other.start())
    asked = asyncio.create_task(agents.lost_copies(["s3://lab/x"]))
    await until(lambda: agent.looks and other.looks)
    agent.ready.set()
    other.ready.set()
    assert {(lost.uri, lost.node, lost.present) for lost in await asked} == {
        ("s3://lab/x", "n0", False),
        ("s3://lab/x", "n1", False),
    }
    await agents.close()
    await other.close()
