"""A call followed from its submission to its end, against the real API over a service in memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))

from fake_service import BEGIN, FakeService, task_view

from flowsched.api.routes import Limits
from flowsched.api.server import build_api
from flowsched.client import session, streams
from flowsched.errors import InvalidDocument, Unavailable
from flowsched.miniwdl import following
from flowsched.miniwdl.following import End, Following, Where, begin, largest_node
from flowsched.workflow.views import AttemptView

DOCUMENT = {"name": "w", "stages": [{"name": "a", "command": ["true"]}]}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (session, "FIRST_WAIT_S", 0.01),
        (session, "LONGEST_WAIT_S", 0.02),
        (streams, "FRUITLESS", 2),
        (following, "FIRST_WAIT_S", 0.05),
        (following, "AGAIN_S", 0.05),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def service() -> FakeService:
    made = FakeService()
    made.task_views = [task_view("a", 0, attempts=[attempt(exit_code=0)])]
    return made


@pytest.fixture
async def server(service: FakeService) -> AsyncIterator[TestServer]:
    async with TestServer(
        build_api(service, limits=Limits(follow_seconds=0.01, keep_alive_seconds=0.05))
    ) as running:
        yield running


def attempt(**changes: Any) -> AttemptView:
    return AttemptView(
        **{"attempt": 0, "pod": "p", "node": "n", "bound_at": BEGIN, "started_at": BEGIN} | changes
    )


class Said:
    """What the log would say."""

    def __init__(self) -> None:
        self.lines: list[tuple[bool, str]] = []

    def __call__(self, warning: bool, sentence: str, fields: Mapping[str, Any]) -> None:
        self.lines.append((warning, sentence))


def follow(server: TestServer, said: Said, *, patience_s: float = 60, key: str = "k") -> Following:
    return Following(Where(str(server.make_url("/")), None, patience_s), DOCUMENT, key, said)


async def submitted(service: FakeService) -> str:
    while not service.workflows:
        await asyncio.sleep(0.01)
    return next(iter(service.workflows))


async def test_a_call_is_followed_to_its_end(server: TestServer, service: FakeService) -> None:
    """It is known to run when it runs, and its exit code is that of its last attempt."""
    service.task_views = [task_view("a", 0, attempts=[attempt(exit_code=3)])]
    said = Said()
    call = follow(server, said)
    future = begin(call.end())
    ident = await submitted(service)
    assert not call.running.is_set()
    service.happen(ident, "task.running")
    assert await asyncio.to_thread(call.running.wait, 60)
    service.finish(ident, "FAILED")
    assert await asyncio.wrap_future(future) == End(ident, "FAILED", True, 3, "", "")
    assert said.lines == [(False, "submitted")]


async def test_a_service_that_is_away_for_a_while_is_waited_for(
    server: TestServer, service: FakeService
) -> None:
    """Said once, and said again when it is back; the call is submitted once."""
    said = Said()
    service.failure = Unavailable("no leader")
    call = follow(server, said)
    future = begin(call.end())
    while not said.lines:
        await asyncio.sleep(0.01)
    service.failure = None
    ident = await submitted(service)
    service.finish(ident)
    assert (await asyncio.wrap_future(future)).state == "SUCCEEDED"
    assert len(service.workflows) == 1
    assert said.lines == [
        (True, "flowsched does not answer; asking again"),
        (False, "flowsched answers again"),
        (False, "submitted"),
    ]


async def test_a_service_that_stays_away_is_given_up(server: TestServer, service: FakeService) -> None:
    """With what was tried."""
    service.failure = Unavailable("no leader")
    with pytest.raises(Unavailable, match="no leader"):
        await asyncio.wrap_future(begin(follow(server, Said(), patience_s=0.3).end()))


async def test_a_refused_document_is_told_at_once(server: TestServer, service: FakeService) -> None:
    """Asking again would not make it better."""
    call = Following(Where(str(server.make_url("/")), None, 20), {"stages": []}, "k", Said())
    with pytest.raises(InvalidDocument):
        await asyncio.wrap_future(begin(call.end()))
    assert service.submissions == 1


async def test_a_stopped_call_is_cancelled_and_waited_for(server: TestServer, service: FakeService) -> None:
    """When it ends, nothing of it runs any more."""
    said = Said()
    call = follow(server, said)
    future = begin(call.end())
    ident = await submitted(service)
    call.stop()
    end = await asyncio.wrap_future(future)
    assert (end.workflow, end.state) == (ident, "CANCELLED")
    assert [kind for _, kind, _ in service.commands] == ["cancel"]
    assert (False, "cancelling") in said.lines


async def test_a_call_that_waits_says_why(
    server: TestServer, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that no node is large enough for would otherwise be silent for ever."""
    monkeypatch.setattr(following, "ASK_WHY_S", 0.05)
    told = asyncio.Event()
    here = asyncio.get_running_loop()
    fields: list[Mapping[str, Any]] = []

    def say(warning: bool, sentence: str, more: Mapping[str, Any]) -> None:
        if sentence == "the task waits":
            fields.append(more)
            here.call_soon_threadsafe(told.set)

    call = Following(Where(str(server.make_url("/")), None, 20), DOCUMENT, "k", say)
    future = begin(call.end())
    ident = await submitted(service)
    await asyncio.wait_for(told.wait(), 60)
    service.finish(ident)
    await asyncio.wrap_future(future)
    assert fields == [{"workflow": ident, "why": "no_room: 2 of 4 cpu are free"}]


async def test_the_largest_node_is_asked_for_once(server: TestServer) -> None:
    """Whole cores and bytes."""
    where = Where(str(server.make_url("/")), None, 20)
    assert await largest_node(where, Said()) == (8, 17_179_869_184)
