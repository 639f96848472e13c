"""Connections to one API server, kept alive: a request goes out, its reply comes back, or it is said how far it got.

A call costs 60 µs of CPU here, with TLS, and 220 by aiohttp's client (`bench/kube`), and a pod costs two of them and some events
of a watch. Proxies stay with aiohttp (`sessions`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import urlsplit

from flowsched.cluster.kubernetes.sockets import Socket, connect
from flowsched.cluster.kubernetes.wire import NotHttp, Pieces, Reader, Reply

#: How much of a stream is read ahead of its reader; then the server has to wait, and cuts the stream after a while.
STREAM_BUFFER_BYTES: Final = 8 << 20


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
            connection = used or _Connection(await self._open(timeout_s))
            try:
                reply = await connection.ask(request, ends - loop.time())
            except Lost as lost:
                if used is not None and repeatable and connection.closed_by_server and not lost.begun:
                    continue
                raise
            if reply.kept and not connection.ended:
                connection.since = loop.time()
                self._idle.append(connection)
            else:
                connection.close()
            return reply

    async def stream(self, request: bytes, *, idle_s: float) -> AsyncGenerator[Reply | bytes, None]:
        """Send a request and read its reply piece by piece; the first piece is empty. A refusal comes as a whole instead.

        Raises:
            Lost: No reply, silence for `idle_s`, or an end in the middle.
        """
        stream = _Stream(await self._open(idle_s))
        try:
            stream.begin(request)
            while True:
                piece = await stream.next(idle_s)
                if piece is None:
                    return
                yield piece
                if isinstance(piece, Reply):
                    return
        finally:
            stream.close()

    async def close(self) -> None:
        """Close those that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    def _used(self, now: float) -> _Connection | None:
        """A connection that is open and idle, the one used last: the others may grow old."""
        while self._idle and (self._idle[0].ended or now - self._idle[0].since > self._keep_alive_s):
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if not connection.ended:
                return connection
        return None

    async def _open(self, timeout_s: float) -> Socket:
        limit_s = min(self._connect_s, timeout_s)
        try:
            return await connect(self.host, self.port, self._tls, self._server_name, limit_s)
        except (OSError, TimeoutError) as error:
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            raise Lost(f"cannot connect to {self.host}:{self.port}: {said}", sent=False) from error


class _Connection:
    """One connection, with at most one request under way."""

    def __init__(self, socket: Socket) -> None:
        self.since = 0.0  #: idle since, on the loop's clock
        self.closed_by_server = False
        self._reader = Reader()
        self._waiter: asyncio.Future[Reply] | None = None
        self._socket = socket
        socket.attach(self._received, self._over)

    @property
    def ended(self) -> bool:
        """Whether it is of no use any more."""
        return self._socket.ended

    async def ask(self, request: bytes, timeout_s: float) -> Reply:
        """Send, and wait.

        Raises:
            Lost: No reply. The connection is of no use any more.
        """
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(max(0.0, timeout_s), self._expire, timeout_s)
        self._socket.write(request)
        try:
            return await self._waiter
        except (
            BaseException
        ):  # whoever asked does not wait any more: what comes now would answer the next request
            self.close()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def close(self) -> None:
        """Close it at once."""
        self._socket.close()

    def _expire(self, timeout_s: float) -> None:
        self._fail(f"TimeoutError: no reply within {timeout_s:.3g} s")

    def _fail(self, why: str) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(Lost(why, sent=True, begun=self._reader.begun))

    def _received(self, data: bytes) -> None:
        """Some of a reply; or something that nobody has asked for, after which nothing can be believed."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            self.close()
            return
        try:
            reply = self._reader.feed(data)
        except NotHttp as error:
            self._fail(str(error))
            self.close()
            return
        if reply is not None:
            waiter.set_result(reply)

    def _over(self, why: str) -> None:
        """The connection has ended: that may be the end of a reply."""
        self.closed_by_server = True
        waiter = self._waiter
        reply = self._reader.end() if waiter is not None and not waiter.done() and not why else None
        if waiter is not None and reply is not None:
            waiter.set_result(reply)
        else:
            self._fail(why or "the server closed the connection")


class _Stream:
    """One connection whose reply is read as it comes."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._pieces = Pieces()
        self._arrived: list[bytes] = []
        self._size = 0
        self._news = asyncio.Event()
        self._trouble: Lost | None = None
        self._told = False  #: that the server has begun to answer

    def begin(self, request: bytes) -> None:
        """Send the request."""
        self._socket.attach(self._received, self._over)
        self._socket.write(request)

    async def next(self, idle_s: float) -> Reply | bytes | None:
        """All that has arrived; None at the end.

        Raises:
            Lost: Nothing comes, or nothing more.
        """
        while True:
            if not self._told and self._pieces.status == 200:
                self._told = True
                return b""
            if self._arrived and self._pieces.status == 200:
                piece = b"".join(self._arrived) if len(self._arrived) > 1 else self._arrived[0]
                self._arrived, self._size = [], 0
                self._socket.resume()
                return piece
            if self._trouble is not None:
                raise self._trouble
            if self._pieces.over:
                return None if self._told else self._pieces.whole(b"".join(self._arrived))
            self._news.clear()
            try:
                async with asyncio.timeout(idle_s):
                    await self._news.wait()
            except TimeoutError:
                raise Lost(f"TimeoutError: silence for {idle_s:.3g} s", sent=True, begun=self._told) from None

    def close(self) -> None:
        """Read no more."""
        self._socket.close()

    def _received(self, data: bytes) -> None:
        try:
            piece = self._pieces.feed(data)
        except NotHttp as error:
            self._trouble = Lost(str(error), sent=True, begun=True)
            self._socket.close()
            piece = b""
        if piece:
            self._arrived.append(piece)
            self._size += len(piece)
            if self._size > STREAM_BUFFER_BYTES:
                self._socket.pause()
        self._news.set()

    def _over(self, why: str) -> None:
        if not self._pieces.end() or why:
            said = why or "the server closed the connection in the middle of its answer"
            self._trouble = self._trouble or Lost(said, sent=True, begun=self._pieces.status > 0)
        self._news.set()
