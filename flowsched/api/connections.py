"""Bounds on the connections of clients: how many may be open, and how long a request's head may take.
from flowsched.log_lines import get_logger

A client without a token can hold descriptors: it opens connections, or sends half of a request. Two bounds keep such clients from
stopping the service. A request's head must arrive within `head_seconds` of its first byte, or of the connection's opening. When too
many connections are open, the service closes the one that has waited longest without being served.

The module knows when requests begin and end, and nothing else of them.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: A request's head is 8 KiB at most: a client on a slow line sends it within this time.
HEAD_SECONDS: Final = 30.0
#: The time between two requests of a connection, as in nginx. It also bounds half of a request that came with a whole one.
IDLE_SECONDS: Final = 75.0
#: The most open connections, if the process may open enough files.
MOST: Final = 16_384
#: Connections may take one descriptor in so many; the rest is for the database, logs and tasks.
SHARE: Final = 2
#: The event loop accepts so many connections in one turn, before it counts any of them. A process that may open 256 files still
#: has descriptors for other uses at 32, and none at 64. Connections per second are the same at 8 and at 1,024.
ACCEPTED_AT_ONCE: Final = 8
#: The log has "too many connections" once in so many seconds.
QUIET_SECONDS: Final = 60.0


def allowed() -> int:
    """The most connections that may be open, by the limit on this process's open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(16, min(MOST, soft // SHARE))


def raise_file_limit(most: int = 65_536) -> int:
    """Let this process open as many files as the system allows it, up to `most`; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Connections:
    """The open connections of one server.

    Args:
        most: The most open connections; None = `allowed()`.
        head_seconds: How long a request's head may take.
    """

    def __init__(self, most: int | None = None, head_seconds: float = HEAD_SECONDS) -> None:
        self._most = allowed() if most is None else most
        self._head_seconds = head_seconds
        self._open: dict[asyncio.BaseTransport, _Connection] = {}
        self._waiting: dict[asyncio.BaseTransport, None] = {}  #: not being served, longest first
        self._cut = 0
        self._told_at = -QUIET_SECONDS

    def __len__(self) -> int:
        return len(self._open)

    async def listen(
        self, protocols: Callable[[], Any], sockets: Sequence[socket.socket], backlog: int
    ) -> list[asyncio.Server]:
        """Accept connections on these sockets, each for a protocol of its own.

        Args:
            protocols: Makes a protocol.
            sockets: Sockets that are bound to an address.
            backlog: Connections that the kernel keeps until they are accepted.
        """
        loop = asyncio.get_running_loop()
        servers = []
        for sock in sockets:
            # asyncio accepts `backlog` connections in one turn, before it makes a transport of any of them. The kernel's queue
            # would take all descriptors before this class could close the first connection.
            server = await loop.create_server(
                lambda: _Connection(protocols(), self), sock=sock, backlog=ACCEPTED_AT_ONCE
            )
            sock.listen(backlog)
            servers.append(server)
        return servers

    @contextmanager
    def serving(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """Mark a connection as served while the block runs: neither a newcomer nor its own silence closes it."""
        connection = None if transport is None else self._open.get(transport)
        if connection is None or transport is None:
            yield
            return
        connection.stop_clock()
        self._waiting.pop(transport, None)
        connection.served += 1
        try:
            yield
        finally:
            connection.served -= 1
            if connection.served == 0 and transport in self._open:
                self._waiting[transport] = None

    def opened(self, transport: asyncio.BaseTransport, connection: _Connection) -> None:
        """Count a new connection, and close the one that has waited longest if that is one too many."""
        self._open[transport] = connection
        self._waiting[transport] = None
        connection.start_clock(self._head_seconds)
        if len(self._open) > self._most:
            self._cut_off(next(iter(self._waiting)))

    def received(self, connection: _Connection) -> None:
        """Start the clock of a request's head: bytes that arrive while no request is served belong to one."""
        if connection.served == 0:
            connection.start_clock(self._head_seconds)

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection that has ended."""
        self._open.pop(transport, None)
        self._waiting.pop(transport, None)

    def _cut_off(self, transport: asyncio.BaseTransport) -> None:
        self.closed(transport)
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()
        self._cut += 1
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= QUIET_SECONDS:
            log.warning(
                "too many connections",
                most=self._most,
                cut_off=self._cut,
                why="the one that has waited longest for its request's end is closed for each new one",
                next="see who opens them (`ss -tn`), or raise the limit on open files (`ulimit -Hn`)",
            )
            self._told_at = now


class _Connection(asyncio.Protocol):
    """Stands between a transport and the protocol that speaks HTTP, and passes all calls on."""

    def __init__(self, inner: Any, among: Connections) -> None:
        self._inner = inner
        self._among = among
        self._transport: asyncio.Transport | None = None
        self._clock: asyncio.TimerHandle | None = None
        self.served = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        self._among.opened(transport, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_clock()
        if self._transport is not None:
            self._among.closed(self._transport)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._among.received(self)
        self._inner.data_received(data)

    def eof_received(self) -> Any:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def start_clock(self, seconds: float) -> None:
        """Close the connection after so many seconds, unless a request is served by then. The first call counts."""
        if self._clock is None:
            self._clock = asyncio.get_running_loop().call_later(seconds, self._late)

    def stop_clock(self) -> None:
        """Stop the clock: a whole head has arrived, or the connection has ended."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _late(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class QuietLoop:
    """Logs the event loop's failures to accept connections once a minute.

    When a process has no descriptors left, asyncio logs a traceback for every waiting connection every second.
    """

    def __init__(self) -> None:
        self._count = 0
        self._told_at = -QUIET_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception of an event loop."""
        if "accept" not in context.get("message", ""):
            loop.default_exception_handler(context)
            return
        self._count += 1
        if loop.time() - self._told_at >= QUIET_SECONDS:
            error = context.get("exception")
            log.error(
                "connections cannot be accepted",
                error=str(error),
                times=self._count,
                next="raise `ulimit -n`",
            )
            self._told_at = loop.time()
