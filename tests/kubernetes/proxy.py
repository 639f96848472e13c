"""A TCP proxy in front of an API server, for what networks do: cut, delay, swallow, forget, refuse.

It passes bytes, so TLS goes through it end to end: a client trusts the server's own certificate, at another port of the same
address. Faults therefore strike connections, not requests: who wants one request to suffer gives it a proxy of its own, or
watches the server directly to see when it has come through.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from flowsched.cluster.kubernetes.api.client import Connection
from flowsched.values import replace

_CHUNK = 1 << 16


@dataclass(eq=False, slots=True)
class _Pair:
    """One connection: the client's half and the server's."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    silent: bool = False

    def reset(self) -> None:
        """End both halves by RST: nobody says goodbye."""
        for half in (self.client, self.server):
            made = half.get_extra_info("socket")
            if made is not None:
                with contextlib.suppress(OSError):
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            half.transport.abort()

    def close(self) -> None:
        """End both halves in order."""
        for half in (self.client, self.server):
            half.close()


def through(kubeconfig: Path, proxy: Proxy, path: Path) -> Path:
    """A kubeconfig like another one, that reaches the server by a proxy."""
    document = json.loads(kubeconfig.read_text())
    for each in document["clusters"]:
        each["cluster"]["server"] = proxy.connection.url
    path.write_text(json.dumps(document))
    return path


class Proxy:
    """Passes on what comes; what it does to it may be changed at any time.

        async with Proxy(connection) as proxy, Client(proxy.connection) as client: ...

    Args:
        connection: Of the server behind it.

    Attributes:
        delay_s: Every piece waits so long, in both directions.
        asking: Whether what clients send gets through; else it is kept, and goes on when this is set again.
        answering: Whether what the server sends gets through; else it is lost.
        accepted: Connections so far.
        kept: Pieces of requests that wait for `asking`.
    """

    def __init__(self, connection: Connection) -> None:
        self._behind = connection
        address = urlsplit(connection.url)
        self._host, self._port = address.hostname or "", address.port or 443
        self.delay_s = 0.0
        self.answering = True
        self.accepted = 0
        self.kept = 0
        self._asking = asyncio.Event()
        self._asking.set()
        self._pairs: set[_Pair] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def connection(self) -> Connection:
        """Through the proxy."""
        scheme = urlsplit(self._behind.url).scheme
        return replace(self._behind, url=f"{scheme}://{self._host}:{self.port}")

    @property
    def open(self) -> int:
        """Connections that are open."""
        return len(self._pairs)

    @property
    def asking(self) -> bool:
        return self._asking.is_set()

    @asking.setter
    def asking(self, through: bool) -> None:
        if through:
            self._asking.set()
        else:
            self._asking.clear()

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def accept(self) -> None:
        """Listen, after a `refuse` on the same port."""
        self._server = await asyncio.start_server(self._pass, self._host, self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Listen no more, and reset what is open: a server that is not there."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut(reset=True)

    def cut(self, *, reset: bool = False) -> int:
        """End all connections, in order or by RST. Returns how many."""
        pairs = list(self._pairs)
        for pair in pairs:
            if reset:
                pair.reset()
            else:
                pair.close()
        return len(pairs)

    def silence(self) -> int:
        """Lose all that is said on the connections there are, and leave them open: they are half open. New ones are well."""
        for pair in self._pairs:
            pair.silent = True
        return len(self._pairs)

    def speak(self) -> None:
        """Pass again. What was said meanwhile is lost, so connections from then are of no use: they are reset."""
        self.cut(reset=True)
        self.asking = self.answering = True

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, far_writer)
        self._pairs.add(pair)
        own = asyncio.current_task()
        assert own is not None
        self._tasks.add(own)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up(pair, reader))
                group.create_task(self._down(pair, far_reader))
        except* (OSError, asyncio.IncompleteReadError):
            pass  # somebody has hung up
        except* asyncio.CancelledError:
            pass  # the proxy ends; asyncio's server would log that its handler was cancelled
        finally:
            self._pairs.discard(pair)
            self._tasks.discard(own)
            pair.close()

    async def _up(self, pair: _Pair, reader: asyncio.StreamReader) -> None:
        """What the client says, to the server."""
        while data := await reader.read(_CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            self.kept += 1
            await self._asking.wait()
            self.kept -= 1
            if not pair.silent:
                pair.server.write(data)
                await pair.server.drain()
        with contextlib.suppress(OSError):
            pair.server.write_eof() if pair.server.can_write_eof() else pair.server.close()

    async def _down(self, pair: _Pair, reader: asyncio.StreamReader) -> None:
        """What the server says, to the client."""
        while data := await reader.read(_CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.answering and not pair.silent:
                pair.client.write(data)
                await pair.client.drain()
        if self.answering and not pair.silent:
            pair.client.close()
