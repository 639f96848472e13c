"""Sockets on the loop: what is written arrives, whole and in order, with and without TLS, however it is cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.sockets import Socket, connect
from tests.kubernetes.test_credentials import certificate

__all__ = ["certificate"]

LARGE = bytes(range(256)) * 40_000  #: ten megabytes: no buffer of a socket takes it at once


class Heard:
    """What a socket was told."""

    def __init__(self, socket: Socket) -> None:
        self.data = bytearray()
        self.ends: list[str] = []
        self.news = asyncio.Event()
        self.socket = socket
        socket.attach(self.receive, self.end)

    def receive(self, data: bytes) -> None:
        self.data += data
        self.news.set()

    def end(self, why: str) -> None:
        self.ends.append(why)
        self.news.set()

    async def size(self, wanted: int) -> None:
        """Wait for so many bytes."""
        async with asyncio.timeout(60):
            while len(self.data) < wanted:
                self.news.clear()
                await self.news.wait()

    async def over(self) -> str:
        """Wait for its end; why."""
        async with asyncio.timeout(60):
            while not self.ends:
                self.news.clear()
                await self.news.wait()
        return self.ends[0]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes; after a line "end" close, after a line "break" abort."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            if data == b"break\n":
                writer.transport.abort()
            if data == b"end\n":
                break
            writer.write(data)
            await writer.drain()
        writer.close()


@pytest.fixture(params=["plain", "tls"])
async def heard(request: pytest.FixtureRequest, certificate: Path) -> AsyncIterator[Heard]:
    """Connected to a server that echoes."""
    secured = request.param == "tls"
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=theirs if secured else None)
    ours = ssl.create_default_context(cafile=str(certificate)) if secured else None
    port = server.sockets[0].getsockname()[1]
    found = Heard(await connect("127.0.0.1", port, ours, "127.0.0.1" if secured else None, 30.0))
    yield found
    found.socket.close()
    server.close()


async def test_what_is_written_comes_back(heard: Heard) -> None:
    """Ten megabytes in one write, and small pieces before and after it."""
    heard.socket.write(b"first ")
    heard.socket.write(LARGE)
    heard.socket.write(b" last")
    await heard.size(len(LARGE) + 11)
    assert bytes(heard.data) == b"first " + LARGE + b" last"
    assert heard.ends == []


async def test_what_is_not_read_waits(heard: Heard) -> None:
    """While it is paused nothing is told; then everything is, in order."""
    heard.socket.pause()
    heard.socket.write(LARGE)
    await asyncio.sleep(0.2)
    assert not heard.data
    heard.socket.resume()
    await heard.size(1)
    heard.socket.pause()
    some = len(heard.data)
    await asyncio.sleep(0.1)
    assert len(heard.data) == some < len(LARGE)
    heard.socket.resume()
    await heard.size(len(LARGE))
    assert bytes(heard.data) == LARGE


async def test_an_end_is_told_once(heard: Heard) -> None:
    """After all that came before it; what is written then goes nowhere."""
    heard.socket.write(b"x")
    await heard.size(1)
    heard.socket.write(b"end\n")
    assert await heard.over() == ""
    assert heard.socket.ended
    heard.socket.write(b"more")
    await asyncio.sleep(0.05)
    assert heard.ends == [""]
    assert bytes(heard.data) == b"x"


async def test_a_break_is_told_with_its_reason(heard: Heard) -> None:
    """A reset; through TLS it may look like an end without a word."""
    heard.socket.write(b"break\n")
    why = await heard.over()
    assert heard.socket.ended
    assert "Error" in why or why == ""


async def test_who_closes_it_is_not_told(heard: Heard) -> None:
    """Nor anybody else, whatever arrives."""
    heard.socket.write(b"x")
    heard.socket.close()
    heard.socket.close()
    await asyncio.sleep(0.1)
    assert (bytes(heard.data), heard.ends) == (b"", [])


async def test_a_server_that_does_not_speak_tls(certificate: Path) -> None:
    """It echoes the greeting: that is no certificate; one that is silent takes too long."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    ours = ssl.create_default_context(cafile=str(certificate))
    with pytest.raises(ssl.SSLError):
        await connect("127.0.0.1", server.sockets[0].getsockname()[1], ours, "127.0.0.1", 30.0)
    server.close()
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        await connect("127.0.0.1", silent.getsockname()[1], ours, "127.0.0.1", 0.1)


async def test_the_name_in_the_certificate_counts(certificate: Path) -> None:
    """Another name is not to be trusted."""
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=theirs)
    ours = ssl.create_default_context(cafile=str(certificate))
    with pytest.raises(ssl.SSLCertVerificationError):
        await connect("127.0.0.1", server.sockets[0].getsockname()[1], ours, "elsewhere.example", 30.0)
    server.close()


async def test_a_port_where_nobody_listens() -> None:
    """Of several addresses the last one's trouble is told."""
    with pytest.raises(OSError, match="Connect call failed"):
        await connect("localhost", 1, None, None, 30.0)
