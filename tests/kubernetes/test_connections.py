"""Connections: used again where they can be, and never for the reply of somebody else's request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from flowsched.cluster.kubernetes.api.http import Connections, Lost, Reply

GET = b"GET / HTTP/1.1\r\n\r\n"
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


class Server:
    """Answers the n-th request of all with the n-th of its answers; None = it closes instead."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.opened = 0
        self.asked = 0
        self.after: Callable[[asyncio.StreamWriter], None] = lambda writer: None
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.opened += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                answer = self.answers[self.asked] if self.asked < len(self.answers) else REPLY
                self.asked += 1
                if answer is None:
                    break
                writer.write(answer)
                self.after(writer)
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """On a port of its own."""
    server = Server()
    listening = await asyncio.start_server(server.talk, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    yield server
    listening.close()


@pytest.fixture
async def connections(server: Server) -> AsyncIterator[Connections]:
    """To it."""
    found = Connections(f"http://127.0.0.1:{server.port}", None, None, connect_s=10, keep_alive_s=60)
    yield found
    await found.close()


async def ask(connections: Connections, *, repeatable: bool = False, timeout_s: float = 60.0) -> Reply:
    """One request."""
    return await connections.ask(GET, timeout_s=timeout_s, repeatable=repeatable)


async def test_a_connection_is_used_again(server: Server, connections: Connections) -> None:
    """One after the other needs one, three at a time need three."""
    for _ in range(3):
        assert await ask(connections) == Reply(200, b"{}", "", True)
    assert server.opened == 1
    await asyncio.gather(*(ask(connections) for _ in range(3)))
    await asyncio.gather(*(ask(connections) for _ in range(3)))
    assert server.opened == 3


async def test_a_connection_that_the_server_gives_up_is_not(server: Server, connections: Connections) -> None:
    """Whether it says so or just closes; nothing is lost by it."""
    server.answers = [LAST]
    await ask(connections)
    await ask(connections)
    assert server.opened == 2
    server.after = lambda writer: writer.close()
    await ask(connections)
    await asyncio.sleep(0.1)
    await ask(connections)
    assert server.opened == 3


async def test_an_old_connection_is_not_used(server: Server) -> None:
    """The server is about to close it."""
    connections = Connections(f"http://127.0.0.1:{server.port}", None, None, connect_s=10, keep_alive_s=0.0)
    await ask(connections)
    await asyncio.sleep(0.01)
    await ask(connections)
    assert server.opened == 2
    await connections.close()


async def test_a_request_that_meets_a_closing_connection(server: Server, connections: Connections) -> None:
    """May be repeated if that does no harm: then nobody hears of it. Else nobody knows whether it was carried out."""
    server.answers = [REPLY, None, REPLY, None]
    await ask(connections)
    assert (await ask(connections, repeatable=True)).status == 200
    assert server.asked == 3
    with pytest.raises(Lost) as lost:
        await ask(connections)
    assert lost.value.sent
    assert server.asked == 4


async def test_a_new_connection_that_is_closed_at_once(server: Server, connections: Connections) -> None:
    """Is not a closing one: the server does so on purpose, and is not asked again and again."""
    server.answers = [None]
    with pytest.raises(Lost):
        await ask(connections, repeatable=True)
    assert server.asked == 1


@pytest.mark.parametrize("half", [REPLY[:-1], REPLY[:20], b"no HTTP\r\n\r\n"])
async def test_half_a_reply_is_none(server: Server, connections: Connections, half: bytes) -> None:
    """And the request is not repeated: it was carried out."""
    server.answers = [REPLY, half]
    server.after = lambda writer: writer.close() if server.asked == 2 else None
    await ask(connections)
    with pytest.raises(Lost) as lost:
        await ask(connections, repeatable=True)
    assert lost.value.sent
    assert server.asked == 2


async def test_what_nobody_has_asked_for_ends_a_connection(server: Server, connections: Connections) -> None:
    """It would else be taken for the reply of the next request."""
    written = asyncio.Event()

    def unasked(writer: asyncio.StreamWriter) -> None:
        writer.write(REPLY)
        written.set()

    server.after = lambda writer: asyncio.get_running_loop().call_later(0.02, unasked, writer) and None
    await ask(connections)
    await written.wait()
    await asyncio.sleep(0.2)
    server.after = lambda writer: None
    assert (await ask(connections)).status == 200
    assert server.opened == 2


async def test_a_reply_that_comes_too_late_is_nobodys(server: Server, connections: Connections) -> None:
    """Neither after a timeout nor after the asker has gone is the connection used again."""
    server.answers = [b"", b""]
    with pytest.raises(Lost) as late:
        await ask(connections, timeout_s=1.0)
    assert late.value.sent
    asking = asyncio.create_task(ask(connections))
    while server.asked < 2:
        await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await ask(connections)
    assert server.opened == 3


async def test_a_host_that_cannot_be_reached(server: Server) -> None:
    """Nothing was sent."""
    nobody = Connections("http://127.0.0.1:1", None, None, connect_s=10, keep_alive_s=60)
    with pytest.raises(Lost) as lost:
        await ask(nobody)
    assert not lost.value.sent
    plain = Connections(f"https://127.0.0.1:{server.port}", None, None, connect_s=0.2, keep_alive_s=60)
    with pytest.raises(Lost) as lost:
        await ask(plain)
    assert not lost.value.sent


def test_ports_and_hosts() -> None:
    """As a URL says them."""
    cases = (("https://h", "h", 443), ("http://h", "h", 80), ("https://[::1]:6443/k8s/x", "::1", 6443))
    for url, host, port in cases:
        found = Connections(url, None, None, connect_s=1, keep_alive_s=1)
        assert (found.host, found.port) == (host, port)
