"""Connections to one API server, kept alive: a request goes out, its reply comes back, or it is said how far it got.

A call costs 55 µs of CPU here and 150 µs by aiohttp's client (`bench/kube`), and a pod costs two. Streams, which are few,
and proxies stay with aiohttp (`client`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Final
from urllib.parse import urlsplit

from flowsched.cluster.kubernetes.wire import NotHttp, Reader, Reply

#: Another address of a host is tried after so long.
_OTHER_ADDRESS_S: Final = 0.25


class Lost(Exception):
    """There was no reply.

    Args:
        message: Why.
        sent: Whether the request may have reached the server.
        begun: Whether something of a reply had come.
    """

    def __init__(self, message: str, *, sent: bool, begun: bool = False) -> None:
        self.sent, self.begun = sent, begun
        super().__init__(message)


class Connections:
    """As many as are needed at a time; who limits the calls in flight limits them.

    Args:
        url: Of the server; its path is not used here.
        tls: For https.
        server_name: That the server's certificate must have; None = the URL's host.
        connect_s: How long it may take to connect.
        keep_alive_s: A connection that was not used for longer is not used again.
    """

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext | None,
        server_name: str | None,
        *,
        connect_s: float,
        keep_alive_s: float,
    ) -> None:
        parts = urlsplit(url)
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = tls if tls is not None else ssl.create_default_context()
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self._tls else 80)
        self._server_name = (server_name or self.host) if self._tls else None
        self._connect_s = connect_s
        self._keep_alive_s = keep_alive_s
        self._idle: deque[_Connection] = deque()

    async def ask(self, request: bytes, *, timeout_s: float, repeatable: bool) -> Reply:
        """Send a request and wait for its reply.

        Args:
            request: All its bytes.
            timeout_s: Until the last byte of the reply, from now.
            repeatable: Whether it may be sent once more if it meets a connection which the server has just closed.

        Raises:
            Lost: No reply.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        while True:
            used = self._used(loop.time())
            connection = used or await self._open(ends - loop.time())
            try:
                reply = await connection.ask(request, ends - loop.time())
            except Lost as lost:
                if used is not None and repeatable and connection.ended and not lost.begun:
                    continue
                raise
            if reply.kept and not connection.ended:
                connection.since = loop.time()
                self._idle.append(connection)
            else:
                connection.abort()
            return reply

    async def close(self) -> None:
        """Close those that nobody uses."""
        while self._idle:
            self._idle.pop().abort()

    def _used(self, now: float) -> _Connection | None:
        """A connection that is open and idle, the one used last: the others may grow old."""
        while self._idle and (self._idle[0].ended or now - self._idle[0].since > self._keep_alive_s):
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if not connection.ended:
                return connection
        return None

    async def _open(self, left_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(max(0.0, min(self._connect_s, left_s))):
                _, connection = await loop.create_connection(
                    _Connection,
                    self.host,
                    self.port,
                    ssl=self._tls,
                    server_hostname=self._server_name,
                    happy_eyeballs_delay=_OTHER_ADDRESS_S,
                )
        except (OSError, TimeoutError) as error:
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            raise Lost(f"cannot connect to {self.host}:{self.port}: {said}", sent=False) from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection, with at most one request under way."""

    def __init__(self) -> None:
        self.ended = False
        self.since = 0.0  #: idle since, on the loop's clock
        self._reader = Reader()
        self._waiter: asyncio.Future[Reply] | None = None
        self._transport: asyncio.Transport | None = None

    async def ask(self, request: bytes, timeout_s: float) -> Reply:
        """Send, and wait.

        Raises:
            Lost: No reply. The connection is of no use any more.
        """
        if self._transport is None or self.ended:
            raise Lost("the connection is closed", sent=False)
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(max(0.0, timeout_s), self._expire, timeout_s)
        self._transport.write(request)
        try:
            return await self._waiter
        except (
            BaseException
        ):  # whoever asked does not wait any more: what comes now would answer the next request
            self.abort()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def abort(self) -> None:
        """Close it at once."""
        self.ended = True
        if self._transport is not None:
            self._transport.abort()

    def _expire(self, timeout_s: float) -> None:
        self._fail(f"TimeoutError: no reply within {timeout_s:.3g} s")

    def _fail(self, why: str) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(Lost(why, sent=True, begun=self._reader.begun))

    # --- asyncio.Protocol ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Some of a reply; or something that nobody has asked for, after which nothing can be believed."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            self.abort()
            return
        try:
            reply = self._reader.feed(data)
        except NotHttp as error:
            self._fail(str(error))
            self.abort()
            return
        if reply is not None:
            waiter.set_result(reply)

    def eof_received(self) -> None:
        """The server says no more: that may be the end of a reply."""
        self.ended = True
        waiter = self._waiter
        reply = self._reader.end() if waiter is not None and not waiter.done() else None
        if waiter is not None and reply is not None:
            waiter.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self.ended = True
        self._fail(f"{type(exc).__name__}: {exc}" if exc is not None else "the server closed the connection")
