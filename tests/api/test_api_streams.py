"""Streams: resumed, silent, slow, drained, ended."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import ClientPayloadError, ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from fake_service import BEGIN, LIMITS, FakeService, task_view
from structlog.testing import capture_logs

from flowsched.api.routes import Limits
from flowsched.api.server import build_api
from flowsched.errors import Unavailable
from flowsched.workflow.views import AttemptView


async def test_events_end_with_the_workflow(api: TestClient, service: FakeService) -> None:
    """History, then news, then `end` with the workflow as it is."""
    workflow = service.add()
    service.happen(workflow, "one", text="a\nb\r\n\u2028")
    answer = await api.get(f"/api/v1/workflows/{workflow}/events")
    assert answer.content_type == "text/event-stream"
    text = ""
    while ": keep-alive\n" not in text:
        text += (await asyncio.wait_for(answer.content.readany(), 60)).decode()
    service.finish(workflow)
    text += await answer.text()
    ids = [line for line in text.split("\n") if line.startswith("id: ")]
    assert ids == ["id: 1", "id: 2"]
    assert '"text":"a\\nb\\r\\n' in text
    last = text.rstrip("\n").split("\n\n")[-1]
    assert last.startswith("event: end\ndata: {")
    assert '"state":"SUCCEEDED"' in last


async def test_a_client_that_waits_for_the_end_is_sent_nothing_else(
    api: TestClient, service: FakeService
) -> None:
    """With `ends` the only message is `end`; silence is kept alive as in any stream."""
    workflow = service.add()
    answer = await api.get(f"/api/v1/workflows/{workflow}/events?after=now&ends=true")
    text = ""
    while ": keep-alive\n" not in text:
        text += (await asyncio.wait_for(answer.content.readany(), 60)).decode()
    service.happen(workflow, "one")
    service.finish(workflow)
    text += await answer.text()
    assert [line for line in text.split("\n") if line.startswith("id: ")] == []
    last = text.rstrip("\n").split("\n\n")[-1]
    assert last.startswith("event: end\ndata: {")
    assert '"state":"SUCCEEDED"' in last


@pytest.mark.parametrize(
    ("query", "header", "first"),
    [("", None, 1), ("?after=3", None, 4), ("?after=3", "5", 6), ("", "5", 6), ("?after=2", "", 3)],
)
async def test_events_go_on_where_they_stopped(
    api: TestClient, service: FakeService, query: str, header: str | None, first: int
) -> None:
    """`Last-Event-ID` wins over `after`: a browser comes back with its first URL."""
    workflow = service.add()
    for number in range(8):
        service.happen(workflow, f"e{number}")
    service.finish(workflow)
    headers = {} if header is None else {"Last-Event-ID": header}
    text = await (await api.get(f"/api/v1/workflows/{workflow}/events{query}", headers=headers)).text()
    ids = [int(line[4:]) for line in text.split("\n") if line.startswith("id: ")]
    assert ids == list(range(first, 10))


async def test_a_stream_that_cannot_begin_is_a_problem(api: TestClient, service: FakeService) -> None:
    """404 and 400 with a status, not as a broken stream."""
    workflow = service.add()
    assert (await api.get("/api/v1/workflows/nope/events")).status == 404
    bad = await api.get(f"/api/v1/workflows/{workflow}/events", headers={"Last-Event-ID": "-1"})
    assert bad.status == 400
    assert (await api.get("/api/v1/events?after=x")).status == 400


async def test_all_events_are_one_stream(api: TestClient, service: FakeService) -> None:
    """Of several workflows, without an end; when the client leaves, the service hears of it."""
    service.happen("wf1", "a")
    service.happen("wf2", "b")
    answer = await api.get("/api/v1/events")
    found = b""
    while b'"workflow":"wf2"' not in found:
        found += await asyncio.wait_for(answer.content.readany(), 60)
    assert service.streams_open == 1
    answer.close()
    await until(lambda: service.streams_open == 0)


async def read_all(answer: ClientResponse, found: bytearray) -> None:
    """Read until the stream ends or breaks; `found` has what came before that."""
    while part := await asyncio.wait_for(answer.content.readany(), 60):
        found.extend(part)


async def test_a_stream_that_breaks_does_not_end_cleanly(api: TestClient, service: FakeService) -> None:
    """The title of the problem, no internals, no `end`."""
    workflow = service.add()
    answer = await api.get(f"/api/v1/workflows/{workflow}/events")
    await asyncio.sleep(0.05)
    service.failure = RuntimeError("hunter2")
    service.happen(workflow, "x")
    found = bytearray()
    with pytest.raises(ClientPayloadError):
        await read_all(answer, found)
    assert b"event: problem" in found
    assert b"event: end" not in found
    assert b"hunter2" not in found


async def test_a_stream_that_breaks_as_the_database_is_away_is_no_error_of_the_log(
    api: TestClient, service: FakeService
) -> None:
    """The outage has a warning of its own: the stream adds no error and no traceback, and its client hears of the problem."""
    workflow = service.add()
    answer = await api.get(f"/api/v1/workflows/{workflow}/events")
    await asyncio.sleep(0.05)
    with capture_logs() as logged:
        service.failure = Unavailable("postgresql://db does not answer")
        service.happen(workflow, "x")
        found = bytearray()
        with pytest.raises(ClientPayloadError):
            await read_all(answer, found)
    assert b"event: problem" in found
    (line,) = [each for each in logged if each["event"] == "stream broke"]
    assert (line["log_level"], "exc_info" in line) == ("debug", False)


async def test_draining_ends_streams_and_readiness(service: FakeService) -> None:
    """On shutdown streams end by themselves: nobody cancels them here."""
    workflow = service.add()
    server = TestServer(build_api(service, limits=LIMITS))
    async with TestClient(server) as client:
        events = await client.get(f"/api/v1/workflows/{workflow}/events")
        service.log["stdout"], service.log_grows = b"x", True
        log = await client.get(f"/api/v1/workflows/{workflow}/tasks/align/0/logs?follow=true")
        assert server.runner is not None
        await asyncio.wait_for(server.runner.shutdown(), 60)
        text = await events.text()
        assert "event: end" not in text
        with pytest.raises(ClientPayloadError):
            await log.read()
        assert (await client.get("/readyz")).status == 503
    assert service.streams_open == 0


async def test_a_log_is_followed_as_it_grows(api: TestClient, service: FakeService) -> None:
    """It ends with the attempt."""
    workflow = service.add()
    service.log["stdout"], service.log_grows = b"one ", True
    answer = await api.get(f"/api/v1/workflows/{workflow}/tasks/align/0/logs?follow=true&limit=2")
    assert await asyncio.wait_for(answer.content.readexactly(4), 60) == b"one "
    service.log["stdout"] += b"two"
    service.log_grows = False
    assert await asyncio.wait_for(answer.read(), 60) == b"two"


async def test_a_log_that_is_followed_stays_with_its_attempt(api: TestClient, service: FakeService) -> None:
    """The next attempt begins before the next look: no byte of it comes, and no offset into another log counts."""
    workflow = service.add()
    first = AttemptView(attempt=0, pod="fs-align-0-0", node="node-0", bound_at=BEGIN)
    next_one = AttemptView(attempt=1, pod="fs-align-0-1", node="node-0", bound_at=BEGIN)
    service.task_views[0] = task_view("align", 0, attempts=[first])
    service.log["stdout"], service.log_grows = b"one ", True
    answer = await api.get(f"/api/v1/workflows/{workflow}/tasks/align/0/logs?follow=true")
    assert await asyncio.wait_for(answer.content.readexactly(4), 60) == b"one "
    service.task_views[0] = task_view("align", 0, attempts=[first, next_one])
    service.log_grows = False
    await asyncio.wait_for(answer.read(), 60)
    assert service.attempts_logged == {0}


async def test_more_streams_than_the_limit_are_told_to_come_back(service: FakeService) -> None:
    """503 with Retry-After; a place is free again when a stream has ended."""
    limits = Limits(streams=2, keep_alive_seconds=0.05)
    async with TestClient(TestServer(build_api(service, limits=limits))) as client:
        first = await client.get("/api/v1/events")
        await client.get("/api/v1/events")
        refused = await client.get("/api/v1/events")
        assert (refused.status, "Retry-After" in refused.headers) == (503, True)
        first.close()
        await until(lambda: service.streams_open == 1)
        assert (await client.get("/api/v1/events")).status == 200


async def test_fault_29_everybody_comes_back_at_once(service: FakeService) -> None:
    """A few hundred streams within a moment: health answers, every stream hears the next event."""
    limits = Limits(keep_alive_seconds=5)
    server = TestServer(build_api(service, limits=limits))
    async with TestClient(server) as client:
        readers = []

        async def connect() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            readers.append((reader, writer))

        await asyncio.gather(*(connect() for _ in range(300)))
        assert (await asyncio.wait_for(client.get("/livez"), 60)).status == 200
        await until(lambda: service.streams_open == 300)
        service.happen("wf1", "news")
        for reader, _ in readers:
            await asyncio.wait_for(reader.readuntil(b'"kind":"news"'), 60)
        for _, writer in readers:
            writer.close()


async def until(happens: object) -> None:
    """Wait for something."""
    async with asyncio.timeout(60):
        while not happens():  # type: ignore[operator]
            await asyncio.sleep(0.02)


async def test_events_from_now_on(api: TestClient, service: FakeService) -> None:
    """History is not sent; an ended workflow ends the stream at once; nonsense is refused."""
    workflow = service.add()
    service.happen(workflow, "workflow.accepted")
    service.finish(workflow)
    text = await (await api.get(f"/api/v1/workflows/{workflow}/events", params={"after": "now"})).text()
    assert "workflow.accepted" not in text
    assert "event: end" in text
    for wrong in ("-1", "soon", "1" * 19):
        assert (await api.get("/api/v1/events", params={"after": wrong})).status == 400
