"""A client that asks while something is wrong: an answer it can use, or a broken connection that it tries again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from flowsched import app
from flowsched.api.server import build_api
from flowsched.cluster.local.settings import LocalSettings
from flowsched.control.service import Service
from flowsched.control.tes import TesPage
from flowsched.errors import StorageBusy
from flowsched.store.tes import TesRow, TesTasks
from tests.house.second_ways import needs
from tests.tes.conftest import TES, Tes

HELLO: dict[str, Any] = {"name": "hello", "executors": [{"image": "a", "command": ["echo", "hi"]}]}


class AwayTes:
    """A service whose database does not answer."""

    async def create(self, raw: bytes, **sent: Any) -> str:
        raise StorageBusy("the database is away")

    async def get(self, ident: str, view: str) -> bytes:
        raise StorageBusy("the database is away")

    async def list(self, view: str, **asked: Any) -> TesPage:
        raise StorageBusy("the database is away")

    async def cancel(self, ident: str) -> None:
        raise StorageBusy("the database is away")


@pytest.fixture
async def away() -> AsyncIterator[TestClient]:
    """The API over it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
    from fake_service import FakeService

    service = FakeService()
    service.tes = AwayTes()
    async with TestClient(TestServer(build_api(service))) as client:
        yield client


async def test_a_poll_that_cannot_be_answered_breaks_its_connection(away: TestClient) -> None:
    """Cromwell fails a call for good at any answer but 200, and tries again when a connection breaks."""
    with pytest.raises(aiohttp.ClientConnectionError):
        await away.get(f"{TES}/tasks/w1")


async def test_what_can_be_sent_again_is_told_to_be(away: TestClient) -> None:
    """A create and a list: 503, come back."""
    for answer in (await away.post(f"{TES}/tasks", json=HELLO), await away.get(f"{TES}/tasks")):
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")


class Flaky(TesTasks):
    """Reads that fail when told to."""

    away = False

    async def get(self, ident: str, *, body: bool = True) -> TesRow | None:
        if self.away:
            raise StorageBusy("the database is away")
        return await super().get(ident, body=body)


@needs("remembered_answers")
async def test_a_task_that_was_polled_before_is_answered_while_the_database_is_away(tes: Tes) -> None:
    """With what was known of it last."""
    ident = await tes.create(HELLO)
    done = await tes.until(ident)
    service: Service = tes.process.service
    reads = Flaky(tes.process.database)
    service.tes._reads = reads
    known = service.tes._known.get(ident)
    assert known is not None
    known.ended = False  # as of a task that has not ended: those that have need no database at all
    reads.away = True
    assert await tes.get(ident) == done
    assert await tes.get(ident, "MINIMAL") == {"id": ident, "state": "COMPLETE"}


async def test_what_is_being_answered_when_the_service_stops_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And new connections are refused, not answered 503."""
    monkeypatch.setenv("FLOWSCHED_FAILPOINTS", "submit.after=sleep:0.8")
    settings = app.Settings(root=tmp_path, port=0, log_level="error", local=LocalSettings(images="ignore"))
    async with aiohttp.ClientSession() as session:
        async with app.running(settings) as service:
            port = int(service.url.rpartition(":")[2])
            asking = asyncio.create_task(session.post(f"{service.url}{TES}/tasks", json=HELLO))
            async with asyncio.timeout(60):
                while not (
                    await service.service.list_workflows()
                ).workflows:  # written, and not answered for 0.8 s
                    await asyncio.sleep(0.01)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        answer = await asking
        assert answer.status == 200
        ident = (await answer.json())["id"]
        async with app.running(settings) as again:
            poll = await session.get(f"{again.url}{TES}/tasks/{ident}")
            assert (poll.status, (await poll.json())["id"]) == (200, ident)
