"""Half-sent requests and too many connections: on real sockets, and nothing of it stops the service."""

from __future__ import annotations

import asyncio
import gzip
import logging
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp.compression_utils import ZLibDecompressor
from fake_service import LIMITS, FakeService

from flowsched.api.connections import Connections, QuietLoop
from flowsched.api.server import build_api, runner_of
from flowsched.api.waiting import waiting

WHOLE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def served(connections: Connections, service: FakeService | None = None) -> AsyncIterator[int]:
    """The port of an API whose connections are bounded."""
    runner = runner_of(build_api(service or FakeService(), limits=LIMITS, connections=connections))
    await runner.setup()
    sock = socket.create_server(("127.0.0.1", 0))
    assert runner.server is not None
    (server,) = await connections.listen(runner.server, [sock], 64)
    try:
        yield sock.getsockname()[1]
    finally:
        server.close()
        await runner.cleanup()


async def begin(port: int, text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    await writer.drain()
    return reader, writer


async def is_cut_off(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection; waits until it does."""
    async with asyncio.timeout(60):
        try:
            while await reader.read(4096):
                pass
        except ConnectionResetError:
            pass
        return True


async def test_a_compressed_body_is_refused_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never unpacked: 200 KiB that become 200 MiB would hold the loop for 0.4 s."""
    unpacked: list[object] = []
    real = ZLibDecompressor.decompress_sync

    def counted(*arguments: Any, **named: Any) -> bytes:
        unpacked.append(named)
        return real(*arguments, **named)

    monkeypatch.setattr(ZLibDecompressor, "decompress_sync", counted)
    bomb = gzip.compress(b"x" * (1 << 20), 9)
    head = (
        "POST /api/v1/workflows HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    )
    async with served(Connections()) as port:
        reader, writer = await begin(port, head.encode() + bomb)
        async with asyncio.timeout(60):
            answer = await reader.readuntil(b"}")
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"The body is compressed (Content-Encoding); send it as it is" in answer
    assert not unpacked


@pytest.mark.parametrize("text", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost: loc"])
async def test_a_head_that_does_not_arrive_ends_its_connection(text: bytes) -> None:
    """No byte, half a line, half a head: 356 such stopped the service for good."""
    async with served(Connections(head_seconds=0.2)) as port:
        reader, writer = await begin(port, text)
        assert await is_cut_off(reader)
        writer.close()


async def test_half_of_a_second_request_ends_its_connection_too() -> None:
    """After a whole one that was answered."""
    async with served(Connections(head_seconds=0.5)) as port:
        reader, writer = await begin(port, WHOLE)
        async with asyncio.timeout(60):
            await reader.readuntil(b"\r\n\r\nok\n")
        writer.write(b"GET /li")
        assert await is_cut_off(reader)
        writer.close()


async def test_bytes_that_drip_do_not_buy_time() -> None:
    """One byte now and then is no reason to wait longer (slowloris)."""
    async with served(Connections(head_seconds=0.5)) as port:
        reader, writer = await begin(port, b"GET /livez HTTP/1.1\r\n")

        async def drip() -> None:
            while not writer.is_closing():
                writer.write(b"X")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        assert await is_cut_off(reader)
        dripping.cancel()
        writer.close()


async def test_a_client_that_goes_away_in_the_middle_of_a_body_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each one logged two tracebacks: 400 of them were a megabyte."""
    head = b"POST /api/v1/workflows HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with served(Connections()) as port:
        for _ in range(3):
            _, writer = await begin(port, head + b"Content-Length: 1000\r\n\r\n{")
            await asyncio.sleep(
                0.1
            )  # the service reads the body by now; if not yet, nothing is logged either way
            writer.transport.abort()
        reader, writer = await begin(port, WHOLE)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        await asyncio.sleep(0.1)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_stream_and_a_connection_between_two_requests_are_left_alone() -> None:
    """Neither waits for a head."""
    async with served(Connections(head_seconds=0.2)) as port:
        reader, writer = await begin(port, WHOLE)
        stream, following = await begin(port, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in await reader.readline()
        assert b"200" in await stream.readline()
        await asyncio.sleep(1)
        writer.write(WHOLE)
        async with asyncio.timeout(60):
            await reader.readuntil(b"200 OK")
            assert await stream.read(1)
        writer.close()
        following.close()


async def test_of_too_many_connections_the_one_that_waits_longest_makes_room() -> None:
    """A newcomer is answered, however many others hold theirs open; a stream that is being served stays."""
    connections = Connections(8, head_seconds=600)
    async with served(connections) as port:
        stream, following = await begin(port, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in await stream.readline()
        held = [await begin(port, b"GET /livez") for _ in range(40)]
        reader, writer = await begin(port, WHOLE)
        async with asyncio.timeout(60):
            assert b"200" in await reader.readline()
            assert await stream.read(1)
        assert await is_cut_off(held[0][0])
        assert len(connections) <= 8
        for _, each in (*held, (stream, following), (reader, writer)):
            each.close()


async def test_a_service_that_waits_for_its_root_bounds_its_connections_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers a newcomer while others hold half requests, and closes the one that has waited longest."""
    monkeypatch.setattr("flowsched.api.connections.allowed", lambda: 8)
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    async with waiting([sock], "the root cannot be made yet"):
        held = [await begin(port, b"GET /livez") for _ in range(40)]
        reader, writer = await begin(port, WHOLE)
        async with asyncio.timeout(60):
            assert b"200" in await reader.readline()
            assert await is_cut_off(held[0][0])
        for _, each in (*held, (reader, writer)):
            each.close()
    sock.close()


def test_a_process_without_descriptors_says_so_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    """Asyncio said it 1,024 times a second, each with a traceback: 0.9 MB/s of log."""
    said: list[Any] = []

    class Loop:
        now = 0.0

        def time(self) -> float:
            return self.now

        def default_exception_handler(self, context: dict[str, Any]) -> None:
            said.append(context)

    loop, handler = Loop(), QuietLoop()
    context = {"message": "socket.accept() out of system resource", "exception": OSError(24, "no files")}
    call: Callable[..., None] = handler
    for second in range(120):
        loop.now = float(second)
        for _ in range(100):
            call(loop, context)
    assert capsys.readouterr().out.count("connections cannot be accepted") == 2
    call(loop, {"message": "another"})
    assert said == [{"message": "another"}]


def test_the_limit_on_open_files_is_raised_as_far_as_the_system_allows() -> None:
    """In a process of its own: soft 64 of hard 512."""
    code = (
        "from flowsched.api.connections import allowed, raise_file_limit\n"
        "print(allowed(), raise_file_limit(), allowed(), raise_file_limit(100))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512)),
    )
    assert done.stdout.split() == ["32", "512", "256", "512"]


LARGE = b"x" * (8 << 20)
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


class LargeAnswers(FakeService):
    """Answers `/metrics` with 8 MiB, and logs without an end."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    async def metrics(self) -> bytes:
        return LARGE

    async def logs(self, *_: object, offset: int, limit: int, **__: object) -> tuple[bytes, bool]:  # type: ignore[override]
        self.read.append(offset)
        return b"x" * limit, True

    def log_request(self) -> bytes:
        path = f"/api/v1/workflows/{self.add()}/tasks/align/0/logs?follow=true"
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


async def status_of(reader: asyncio.StreamReader) -> bytes:
    """The status of an answer, and no more of it."""
    async with asyncio.timeout(60):
        return (await reader.readline())[9:12]


async def hoard(port: int, text: bytes) -> socket.socket:
    """Send a request, and read nothing of the answer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, text)
    return sock


@pytest.mark.parametrize("answer", ["whole", "stream"])
async def test_clients_that_read_nothing_are_cut_off(answer: str) -> None:
    """Of a whole answer as of a log that is followed: ten such clients leave no connection, and other clients are served."""
    service, connections = LargeAnswers(), Connections(stall_seconds=0.4)
    async with served(connections, service) as port:
        text = METRICS if answer == "whole" else service.log_request()
        hoarders = [await hoard(port, text) for _ in range(10)]
        reader, writer = await begin(port, WHOLE)
        assert await status_of(reader) == b"200"
        writer.close()
        async with asyncio.timeout(60):
            while len(connections):
                await asyncio.sleep(0.02)
        assert max(service.read, default=0) < 16 << 20, "what the sockets hold, not what the log has"
        for sock in hoarders:
            sock.close()


async def test_a_client_that_reads_slowly_gets_all_of_its_answer() -> None:
    """It takes longer than a client that reads nothing may take, and is not cut off."""
    async with served(Connections(stall_seconds=3), LargeAnswers()) as port:
        sock = await hoard(port, METRICS)
        loop, got = asyncio.get_running_loop(), b""
        async with asyncio.timeout(60):
            for _ in range(80):
                await asyncio.sleep(0.05)
                got += await loop.sock_recv(sock, 1024)
            assert len(got) == 80 * 1024
            while not got.endswith(LARGE):
                piece = await loop.sock_recv(sock, 1 << 20)
                assert piece, "it was cut off"
                got += piece
        sock.close()


async def test_large_answers_that_clients_leave_unread_are_bounded_together() -> None:
    """Two of 8 MiB fit into 20 MiB: a third is refused until one of them is read. Small answers are not concerned."""
    async with served(Connections(unread_bytes=20 << 20), LargeAnswers()) as port:
        hoarders = [await hoard(port, METRICS) for _ in range(2)]
        for sock in hoarders:
            await asyncio.get_running_loop().sock_recv(sock, 100)  # the answer has begun
        reader, writer = await begin(port, METRICS)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 2\r\n" in head
        writer.close()
        reader, writer = await begin(port, WHOLE)
        assert await status_of(reader) == b"200"
        writer.close()
        hoarders[0].close()
        async with asyncio.timeout(60):
            while True:
                reader, writer = await begin(port, METRICS)
                status = await status_of(reader)
                writer.close()
                if status == b"200":
                    break
        hoarders[1].close()


async def test_an_answer_that_finds_no_room_ends_those_that_are_stalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client that has read nothing for the longest is cut off, and no other."""
    monkeypatch.setattr("flowsched.api.connections.SPARED_SECONDS", 0.0)
    connections = Connections(unread_bytes=20 << 20)
    async with served(connections, LargeAnswers()) as port:
        first, second = [await hoard(port, METRICS) for _ in range(2)]
        for sock in (first, second):
            await asyncio.get_running_loop().sock_recv(sock, 100)
        reader, writer = await begin(port, METRICS)
        assert await status_of(reader) == b"200"
        assert len(connections) == 2
        writer.close()
        first.close()
        second.close()
