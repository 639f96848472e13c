"""HTTP/1.1 as far as calls to an API server need it: replies from bytes, kept connections, and aiohttp for streams and proxies."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

#: The longest head of a reply, and the longest line between two chunks: a longer one is no reply.
LONGEST_HEAD_BYTES: Final = 64 << 10
_LONGEST_CHUNK_LINE: Final = 1 << 10
_END: Final = b"\r\n\r\n"
#: These never have a body.
_BARE: Final = (204, 304)


class NotHttp(Exception):
    """The bytes that arrived are no HTTP reply."""


class Reply(NamedTuple):
    """A reply. `retry_after` is as the server wrote it; `keep_alive` says whether the connection may be used again."""

    status: int
    body: bytes
    retry_after: str
    keep_alive: bool


def preamble(host: str, headers: Mapping[str, str]) -> bytes:
    """The header lines that requests have in common.

    Raises:
        ValueError: One of them would break out of its line.
    """
    lines = {"Host": host, **headers}
    if any(not text.isprintable() or not text.isascii() for pair in lines.items() for text in pair):
        raise ValueError("a header holds what no header may hold")
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()


def request(method: str, target: str, common: bytes, body: bytes | None, content_type: str) -> bytes:
    """A whole request.

    Args:
        method: As in HTTP.
        target: Path and query, escaped already.
        common: `preamble`.
        body: None = there is none.
        content_type: Of the body.

    Raises:
        ValueError: The target would break out of its line.
    """
    if not target.isascii() or not target.isprintable() or " " in target:
        raise ValueError(f"not a path: {target!r}")
    if body is None:
        length = "Content-Length: 0\r\n" if method in ("POST", "PUT", "PATCH") else ""
        return b"%b %b HTTP/1.1\r\n%b%b\r\n" % (method.encode(), target.encode(), common, length.encode())
    return b"%b %b HTTP/1.1\r\n%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        method.encode(), target.encode(), common, content_type.encode(), len(body), body,
    )  # fmt: skip


class Reader:
    """Reads replies, one after the other, from a connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: _Head | None = None
        self._body = bytearray()  #: the bytes of the chunks so far
        self._parts: list[bytes] = []  #: of a body that says its length: a page of a list is 1 MB
        self._missing = 0  #: bytes of that body that have not arrived
        self._trailing = False  #: the last chunk has been read, and trailers follow

    @property
    def begun(self) -> bool:
        """Whether something of a reply has arrived."""
        return bool(self._buffer) or self._head is not None

    def feed(self, data: bytes) -> Reply | None:
        """Take what has arrived; the reply, once it is complete.

        Raises:
            NotHttp: It is no reply, or something follows it that no request asked for.
        """
        if self._missing:
            return self._piece(data)
        self._buffer += data
        if self._head is None and not self._begin():
            return None
        head = self._head
        assert head is not None
        if head.chunked:
            return self._finish(bytes(self._body)) if self._chunks() else None
        if head.length is None:
            return None
        self._missing = head.length
        data = bytes(self._buffer)
        self._buffer.clear()
        return self._piece(data)

    def end(self) -> Reply | None:
        """The connection has ended: so has a reply that says no length. None if there is none, or a piece of one."""
        head = self._head
        if head is None or head.chunked or head.length is not None:
            return None
        return self._finish(bytes(self._buffer), keep_alive=False)

    def _begin(self) -> bool:
        """Read the head, if it is there; a head that only announces an answer (1xx) is passed over."""
        while True:
            end = self._buffer.find(_END)
            if end < 0:
                if len(self._buffer) > LONGEST_HEAD_BYTES:
                    raise NotHttp("the head of the reply does not end")
                return False
            head = _read_head(bytes(self._buffer[:end]))
            del self._buffer[: end + len(_END)]
            if head.status >= 200:
                self._head = head
                return True

    def _piece(self, data: bytes) -> Reply | None:
        """Take a piece of a body that says its length; the reply, if it is the last."""
        self._missing -= len(data)
        if self._missing < 0:
            raise NotHttp("more has arrived than was asked for")
        self._parts.append(data)
        if self._missing:
            return None
        parts, self._parts = self._parts, []
        return self._finish(b"".join(parts))

    def _chunks(self) -> bool:
        """Read chunks as far as they are there; whether that was all."""
        at = 0
        buffer = self._buffer
        while True:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                if len(buffer) - at > _LONGEST_CHUNK_LINE:
                    raise NotHttp("a chunk does not begin as chunks do")
                break
            if self._trailing:
                if end == at:
                    del buffer[: end + 2]
                    return True
                at = end + 2
                continue
            size = _hexadecimal(bytes(buffer[at:end]))
            if size == 0:
                self._trailing = True
                at = end + 2
                continue
            if len(buffer) < end + 2 + size + 2:
                break
            self._body += buffer[end + 2 : end + 2 + size]
            if buffer[end + 2 + size : end + 4 + size] != b"\r\n":
                raise NotHttp("a chunk is longer than it says")
            at = end + 4 + size
        del buffer[:at]
        return False

    def _finish(self, body: bytes, *, keep_alive: bool = True) -> Reply:
        head = self._head
        assert head is not None
        if self._buffer and keep_alive:
            raise NotHttp("more has arrived than was asked for")
        self._head, self._body, self._trailing = None, bytearray(), False
        return Reply(head.status, body, head.retry_after, keep_alive and head.keep_alive)


class _Head(NamedTuple):
    """The parsed head of a reply. `length` None = as long as the connection."""

    status: int
    length: int | None
    chunked: bool
    keep_alive: bool
    retry_after: str


def _read_head(raw: bytes) -> _Head:
    first, *lines = raw.split(b"\r\n")
    if not first.startswith(b"HTTP/1.") or not first[9:12].isdigit():
        raise NotHttp(f"not HTTP: {first[:40]!r}")
    status, keep_alive = int(first[9:12]), first[7:8] == b"1"
    length: int | None = None
    chunked, retry_after = False, ""
    for line in lines:
        name, _, value = line.partition(b":")
        match name.lower():
            case b"content-length":
                digits = value.strip()
                if not digits.isdigit() or length not in (None, int(digits)):
                    raise NotHttp("the reply's length is none")
                length = int(digits)
            case b"transfer-encoding":
                chunked = b"chunked" in value.lower()
            case b"connection":
                keep_alive = keep_alive and b"close" not in value.lower()
            case b"retry-after":
                retry_after = value.strip().decode("latin-1")
    if status in _BARE:
        return _Head(status, 0, False, keep_alive, retry_after)
    return _Head(status, None if chunked else length, chunked, keep_alive, retry_after)


def _hexadecimal(line: bytes) -> int:
    """The size of a chunk, without its extensions."""
    digits = line.partition(b";")[0].strip()
    try:
        if digits[:1] in (b"-", b"+"):
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise NotHttp(f"not the size of a chunk: {digits[:40]!r}") from None


# ---- connections to one API server, kept alive ----
#
# A request goes out and its reply comes back, or the error says how far the request got. A call costs 55 µs of CPU here and 150
# µs by aiohttp's client (`bench/kube`), and a pod costs two. Streams, which are few, and proxies stay with aiohttp.


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
    """Connections to one server, as many as are needed at a time: the caller limits its calls in flight.

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
            if reply.keep_alive and not connection.ended:
                connection.since = loop.time()
                self._idle.append(connection)
            else:
                connection.abort()
            return reply

    async def close(self) -> None:
        """Close those that no request uses."""
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
            detail = f"{type(error).__name__}: {error}".rstrip(": ")
            raise Lost(f"cannot connect to {self.host}:{self.port}: {detail}", sent=False) from error
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
        except BaseException:  # the caller has gone: a reply that comes now would answer the next request
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
        """Take some of a reply. Bytes that no request asked for end the connection: no later byte can be trusted."""
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


# ---- aiohttp: streams, and calls by way of a proxy ----


#: How much of a stream is read ahead of its reader; twice as much stops the server, which then cuts the stream.
STREAM_BUFFER_BYTES: Final = 4 << 20
#: Pieces of a stream that come this close together are many ...
CLOSE_S: Final = 0.01
#: ... and are gathered for so long. A line that comes alone is read at once.
GATHER_S: Final = 0.005
#: The errors that are raised before anything has been sent.
_NOT_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_LOST: Final = (aiohttp.ClientError, TimeoutError, OSError)


class Sessions:
    """One server, by aiohttp.

    Args:
        base: Its URL, with the path that all others follow.
        tls: For https; None = the system's default trust.
        proxy: URL of an HTTP proxy.
        server_name: That the server's certificate must have; None = the URL's host.
        headers: Of every request.
        connect_s: How long it may take to connect.
        keep_alive_s: A connection that was not used for longer is not used again.
    """

    def __init__(
        self,
        base: str,
        tls: ssl.SSLContext | None,
        proxy: str | None,
        server_name: str | None,
        *,
        headers: Mapping[str, str],
        connect_s: float,
        keep_alive_s: float,
    ) -> None:
        self._base = base
        self._tls: ssl.SSLContext | bool = tls if tls is not None else True
        self._proxy = proxy
        self._server_name = server_name
        self._headers = headers
        self._connect_s = connect_s
        self._keep_alive_s = keep_alive_s
        self._opened: aiohttp.ClientSession | None = None

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> Reply:
        """Send a request and wait for its reply. aiohttp repeats a GET or DELETE that meets a closed connection.

        Raises:
            Lost: No reply.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._connect_s)
        try:
            async with self._session().request(
                method,
                self._url(target),
                data=body,
                headers=headers,
                ssl=self._tls,
                proxy=self._proxy,
                server_hostname=self._server_name,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                retry_after = response.headers.get("Retry-After", "")
                return Reply(response.status, await response.read(), retry_after, True)
        except _LOST as lost:
            raise _lost(lost) from lost

    async def stream(
        self, target: str, headers: Mapping[str, str], *, idle_s: float
    ) -> AsyncGenerator[Reply | bytes, None]:
        """Read a reply piece by piece; the first piece is empty. A refusal comes as a whole instead.

        Raises:
            Lost: No reply, silence for `idle_s`, or an end in the middle.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s, sock_read=idle_s)
        try:
            async with self._session().get(
                self._url(target),
                headers=headers,
                ssl=self._tls,
                proxy=self._proxy,
                server_hostname=self._server_name,
                timeout=timeout,
                allow_redirects=False,
                read_bufsize=STREAM_BUFFER_BYTES,
            ) as response:
                if response.status != 200:
                    retry_after = response.headers.get("Retry-After", "")
                    yield Reply(response.status, await response.read(), retry_after, True)
                    return
                yield b""
                loop = asyncio.get_running_loop()
                last = -1.0
                async for piece in response.content.iter_any():
                    yield piece
                    if loop.time() - last < CLOSE_S:
                        await _gather(response)
                    last = loop.time()
        except _LOST as lost:
            raise _lost(lost) from lost

    async def close(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    def _url(self, target: str) -> URL:
        return URL(f"{self._base}{target}", encoded=True)

    def _session(self) -> aiohttp.ClientSession:
        """The open session; made on first use, as it belongs to the running loop."""
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keep_alive_s),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._opened


async def _gather(response: aiohttp.ClientResponse) -> None:
    """Let what comes next pile up in the socket, so that it is one piece: each costs as much as reading many events."""
    transport = None if response.connection is None else response.connection.transport
    if transport is None:
        return
    transport.pause_reading()
    try:
        await asyncio.sleep(GATHER_S)
    finally:
        transport.resume_reading()


def _lost(error: BaseException) -> Lost:
    return Lost(f"{type(error).__name__}: {error}".rstrip(": "), sent=not isinstance(error, _NOT_SENT))
