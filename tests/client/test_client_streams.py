"""Streams that break: each event once, each byte once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fake_service import BEGIN, FakeService, task_view

from flowsched import Client, errors
from flowsched.client.streams import frames
from flowsched.workflow.views import AttemptView, WaitingView


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_messages_are_found_wherever_the_network_cuts_them() -> None:
    """One byte at a time, with comments and carriage returns; an unfinished message never appears."""
    stream = b': hi\r\nretry: 5\r\n\r\nid: 7\r\ndata: {"a":1}\r\n\r\n: \n\nid: 8\nevent: end\ndata: {}\n\nid: 9\ndata: {"c'
    content = pieces(*[stream[i : i + 1] for i in range(len(stream))])
    found = [(f.id, f.name, f.data) async for f in frames(content)]
    assert found == [("7", "message", b'{"a":1}'), ("8", "end", b"{}")]


async def test_events_come_once_and_in_order_until_the_end(client: Client, service: FakeService) -> None:
    """From the beginning, and from the middle."""
    workflow = service.add()
    for number in range(7):
        service.happen(workflow, f"e{number}")
    service.happen("other", "elsewhere")
    service.finish(workflow)
    assert [event.id async for event in client.events(workflow)] == [1, 2, 3, 4, 5, 6, 7, 9]
    assert [event.kind async for event in client.events(workflow, after=6)] == ["e6", "workflow.succeeded"]


async def test_events_of_what_cannot_start_warn_as_a_wait_does(client: Client, service: FakeService) -> None:
    """Once no more events come, the reason does; and the events after it."""
    message = "it is too wide"
    reason = WaitingView(
        stage="train", tasks=6, state="QUEUED", code="LargerThanCluster", message=message, permanent=True
    )
    workflow = service.add("wide", state="QUEUED", waiting=reason)
    for number in range(5):
        service.happen(workflow, f"e{number}")
    asyncio.get_running_loop().call_later(3, service.finish, workflow)
    expected = r"wide \(wf1\) cannot start .* train waits: it is too wide"
    with pytest.warns(errors.CannotStart, match=expected) as warned:
        assert [event.kind async for event in client.events(workflow)][-2:] == ["e4", "workflow.succeeded"]
    assert [each.filename for each in warned] == [__file__]


async def test_events_go_on_after_every_connection_was_cut(service: FakeService) -> None:
    """A proxy cuts each connection after some bytes; nothing is lost, nothing comes twice."""
    from flowsched.api.server import build_api

    workflow = service.add()
    for number in range(20):
        service.happen(workflow, f"e{number}")
    service.finish(workflow)
    cuts = 0
    async with TestServer(build_api(service)) as server:

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal cuts
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
            request = await reader.readuntil(b"\r\n\r\n")
            far_writer.write(request.replace(b"Host: 127.0.0.1:", b"Connection: close\r\nHost: localhost:"))
            try:
                answer = await far_reader.readexactly(1100)
            except asyncio.IncompleteReadError as error:
                answer = error.partial
            writer.write(answer)
            await writer.drain()
            writer.close()
            far_writer.close()
            cuts += 1

        proxy = await asyncio.start_server(forward, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        async with proxy, Client(f"http://127.0.0.1:{port}") as client:
            kinds = [event.kind async for event in client.events(workflow)]
    assert kinds == [f"e{number}" for number in range(20)] + ["workflow.succeeded"]
    assert cuts > 3


async def test_an_unknown_workflow_has_no_events(client: Client) -> None:
    """404 at once, not after retries."""
    with pytest.raises(errors.NotFound):
        async for _ in client.events("nope"):
            pass


async def test_a_server_that_always_hangs_up_is_given_up() -> None:
    """Bounded retries: `Unavailable`, not for ever."""
    application = web.Application()

    async def hang_up(_: web.Request) -> web.Response:
        return web.Response(text=": bye\n\n", content_type="text/event-stream")

    application.router.add_get("/{any:.*}", hang_up)
    async with TestServer(application) as server, Client(str(server.make_url("/"))) as client:
        with pytest.raises(errors.Unavailable, match="closed the stream"):
            async for _ in client.events("wf1"):
                pass


async def test_a_whole_log_is_read_over_pages(client: Client, service: FakeService) -> None:
    """Three megabytes, byte by byte the same."""
    workflow = service.add()
    service.log["stderr"] = bytes(range(256)) * 12_000
    found = b"".join([part async for part in client.logs(workflow, "align", 0, stream="stderr")])
    assert found == service.log["stderr"]
    assert [part async for part in client.logs(workflow, "align", 0)] == []


async def test_the_last_lines_of_a_log_are_all_that_comes(client: Client, service: FakeService) -> None:
    """Of six megabytes; and what a failure shows of a log reads no more of it than that."""
    workflow = service.add()
    service.log["stderr"] = b"0123456789abcdef\n" * 350_000
    given: list[int] = []
    read = service.logs

    async def logs(*where: object, **asked: object) -> tuple[bytes, bool]:
        found = await read(*where, **asked)  # type: ignore[arg-type]
        given.append(len(found[0]))
        return found

    service.logs = logs  # type: ignore[assignment]
    parts = client.logs(workflow, "align", 0, stream="stderr", tail=2)
    assert [part async for part in parts] == [b"0123456789abcdef\n" * 2]
    assert await client.log_tail(workflow, "align", 0, 3) == ["0123456789abcdef"] * 3
    assert given == [34, 51]


async def test_a_log_is_followed_from_its_last_line(client: Client, service: FakeService) -> None:
    """The line that is there, then what comes; the next attempt comes whole."""
    workflow = service.add()
    tries = [
        AttemptView(attempt=number, pod=f"fs-align-0-{number}", node="node-0", bound_at=BEGIN, ended_at=BEGIN)
        for number in range(2)
    ]
    service.task_views[0] = task_view("align", 0, attempts=[msgspec.structs.replace(tries[0], ended_at=None)])
    service.log["stdout"] = b"one\ntwo\n"
    parts = client.logs(workflow, "align", 0, follow=True, tail=1)
    assert await asyncio.wait_for(anext(parts), 60) == b"two\n"
    service.task_views[0] = task_view("align", 0, state="FAILED", attempts=tries)
    assert [part async for part in parts] == [b"one\ntwo\n"]


async def test_a_log_is_followed_to_its_end(client: Client, service: FakeService) -> None:
    """What is written later arrives, and the end is the task's."""
    workflow = service.add()
    service.log["stdout"], service.log_grows = b"one\n", True
    found = bytearray()

    async def follow() -> None:
        async for part in client.logs(workflow, "align", 0, follow=True):
            found.extend(part)

    following = asyncio.create_task(follow())
    async with asyncio.timeout(60):
        while bytes(found) != b"one\n":
            await asyncio.sleep(0.01)
    service.log["stdout"] += b"two\n"
    service.log_grows = False
    service.task_views[0] = task_view("align", 0, state="SUCCEEDED")
    await asyncio.wait_for(following, 60)
    assert bytes(found) == b"one\ntwo\n"


async def test_a_log_is_followed_from_the_next_attempt_on(client: Client, service: FakeService) -> None:
    """What the attempt wrote that failed before is not taken for it; a third attempt comes after the second."""
    workflow = service.add()
    tries = [
        AttemptView(attempt=number, pod=f"fs-align-0-{number}", node="node-0", bound_at=BEGIN, ended_at=BEGIN)
        for number in range(3)
    ]
    runs = msgspec.structs.replace(tries[1], ended_at=None)
    service.task_views[0] = task_view("align", 0, state="QUEUED", attempts=tries[:1])
    service.log["stdout"] = b"first\n"
    parts = client.logs(workflow, "align", 0, follow=True)
    second = asyncio.ensure_future(anext(parts))
    await asyncio.sleep(0.2)
    service.task_views[0] = task_view("align", 0, attempts=[tries[0], runs])
    service.log["stdout"] = b"second\n"
    assert await asyncio.wait_for(second, 60) == b"second\n"
    service.log["stdout"] = b"third\n"
    service.task_views[0] = task_view("align", 0, state="FAILED", attempts=tries)
    assert [part async for part in parts] == [b"third\n"]
    assert service.attempts_logged == {1, 2}


async def test_an_attempt_that_has_ended_before_the_next_look_is_followed_too(
    client: Client, service: FakeService
) -> None:
    """While the first attempt was followed, the second one failed and the third one began."""
    workflow = service.add()
    tries = [
        AttemptView(attempt=number, pod=f"fs-align-0-{number}", node="node-0", bound_at=BEGIN, ended_at=BEGIN)
        for number in range(3)
    ]
    runs = msgspec.structs.replace(tries[0], ended_at=None)
    service.task_views[0] = task_view("align", 0, attempts=[runs])
    service.log["stdout"] = b"said\n"
    parts = client.logs(workflow, "align", 0, follow=True)
    assert await asyncio.wait_for(anext(parts), 60) == b"said\n"
    service.task_views[0] = task_view("align", 0, state="FAILED", attempts=tries)
    assert [part async for part in parts] == [b"said\n", b"said\n"]
    assert service.attempts_logged == {0, 1, 2}
