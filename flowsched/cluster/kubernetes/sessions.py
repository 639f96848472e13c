"""aiohttp, for what `connections` does not do: streams, and calls by way of a proxy."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import Final

import aiohttp
from yarl import URL

from flowsched.cluster.kubernetes.connections import Lost
from flowsched.cluster.kubernetes.wire import Reply

#: How much of a stream is read ahead of its reader; twice as much stops the server, which then cuts the stream.
STREAM_BUFFER_BYTES: Final = 4 << 20
#: Pieces of a stream that come this close together are many ...
CLOSE_S: Final = 0.01
#: ... and are gathered for so long. What comes alone is read at once.
GATHER_S: Final = 0.005
#: What is raised before anything has been sent.
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
        """Send a request and wait for its reply. aiohttp repeats a GET, PUT or DELETE that meets a closed connection.

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
                told = response.headers.get("Retry-After", "")
                return Reply(response.status, await response.read(), told, True)
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
                    told = response.headers.get("Retry-After", "")
                    yield Reply(response.status, await response.read(), told, True)
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
