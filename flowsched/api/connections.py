"""Bounds on the connections of clients: how many may be open, how long a request's head may take, how much may be unread.

A client without a token can hold descriptors: it opens connections, or sends half of a request. Two bounds keep such clients from
stopping the service. A request's head must arrive within `head_seconds` of its first byte, or of the connection's opening. When too
many connections are open, the service closes the one that has waited longest without being served.

A client can hold memory: it asks for large answers and reads none. The service closes a connection whose client takes no byte for
`stall_seconds`, whatever is written to it: an answer, a log, events, a file. All large answers that are under way have
`unread_bytes` together. If one more does not fit, the service closes those that have been stalled for `SPARED_SECONDS`, the longest
first, and refuses the new answer if that is not enough. A client that reads slowly is not stalled.

The module knows when requests begin and end, and how much of an answer is left. It knows nothing else of them.
"""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
import struct
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from flowsched.errors import Unavailable
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
#: A client that takes no byte for so long is cut off. A line that loses packets pauses for some seconds, seldom for 30.
STALL_SECONDS: Final = 60.0
#: While answers find no room, a client that has taken no byte for so long is cut off.
SPARED_SECONDS: Final = 10.0
#: All large answers that are under way together: 30 of the largest lists.
UNREAD_BYTES: Final = 256 << 20
#: An answer from this size on is large. It is written in pieces of this size.
PIECE_BYTES: Final = 128 << 10
#: How often the service looks for clients that take nothing.
_CHECK_SECONDS: Final = 5.0
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
        stall_seconds: How long a client may take nothing of what is written to it.
        unread_bytes: The most bytes of all large answers that are under way.
    """

    def __init__(
        self,
        most: int | None = None,
        head_seconds: float = HEAD_SECONDS,
        stall_seconds: float = STALL_SECONDS,
        unread_bytes: int = UNREAD_BYTES,
    ) -> None:
        self._most = allowed() if most is None else most
        self._head_seconds = head_seconds
        self._stall_seconds = stall_seconds
        self._unread_bytes = unread_bytes
        self._unread: dict[asyncio.BaseTransport, int] = {}  #: bytes of the large answer under way
        self._looking = False
        self._open: dict[asyncio.BaseTransport, _Connection] = {}
        self._waiting: dict[asyncio.BaseTransport, None] = {}  #: not being served, longest first
        self._cut = 0
        self._logged_at = -QUIET_SECONDS

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

    @contextmanager
    def writing(self, transport: asyncio.BaseTransport, size: int) -> Iterator[None]:
        """Count a large answer while the block writes it.

        Args:
            transport: Of the client.
            size: Of the answer, in bytes.

        Raises:
            Unavailable: Clients have too much of other answers left to read.
        """
        stalled = sorted(
            self._unread, key=lambda each: self._open[each].moved_at if each in self._open else 0
        )
        spared = asyncio.get_running_loop().time() - SPARED_SECONDS
        for other in stalled:
            connection = self._open.get(other)
            if self._fits(size) or (connection is not None and connection.moved_at > spared):
                break
            self._stalled(other)
        if not self._fits(size):
            left = sum(self._unread.values())
            raise Unavailable(
                f"this answer has {size:,} bytes, and clients have not read others of {left:,} bytes; the limit for all is "
                f"{self._unread_bytes:,} bytes: ask again in a moment, or for less"
            )
        self._unread[transport] = size
        try:
            yield
        finally:
            self._unread.pop(transport, None)

    def _fits(self, size: int) -> bool:
        return not self._unread or sum(self._unread.values()) + size <= self._unread_bytes

    def _check(self) -> None:
        """Cut off each client that has taken nothing of what is written to it for too long."""
        loop = asyncio.get_running_loop()
        for transport, connection in list(self._open.items()):
            if connection.stalled_seconds(loop.time()) >= self._stall_seconds:
                self._stalled(transport)
        self._looking = bool(self._open)
        if self._looking:
            loop.call_later(min(_CHECK_SECONDS, self._stall_seconds / 4), self._check)

    def _stalled(self, transport: asyncio.BaseTransport) -> None:
        log.info("client cut off: it reads nothing", unread_bytes=self._unread.pop(transport, 0))
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()

    def opened(self, transport: asyncio.BaseTransport, connection: _Connection) -> None:
        """Count a new connection, and close the one that has waited longest if that is one too many."""
        self._open[transport] = connection
        self._waiting[transport] = None
        connection.start_clock(self._head_seconds)
        if not self._looking:
            self._check()
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
        if now - self._logged_at >= QUIET_SECONDS:
            log.warning(
                "too many connections",
                most=self._most,
                cut_off=self._cut,
                why="the one that has waited longest for its request's end is closed for each new one",
                next="see who opens them (`ss -tn`), or raise the limit on open files (`ulimit -Hn`)",
            )
            self._logged_at = now


class _Connection(asyncio.Protocol):
    """Stands between a transport and the protocol that speaks HTTP, and passes all calls on."""

    def __init__(self, inner: Any, among: Connections) -> None:
        self._inner = inner
        self._among = among
        self._transport: asyncio.Transport | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._left = 0  #: bytes that the client had left to take at the last look
        self.moved_at = (
            asyncio.get_running_loop().time()
        )  #: when it was last seen to take some, or had none left
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

    def stalled_seconds(self, now: float) -> float:
        """How long its client has taken nothing. The caller looks often: what happened between two looks counts from the later."""
        left = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if left:  # the kernel has more, and tells at once how much of it the client has not taken
            left += _in_kernel(self._transport)
        if left != self._left or not left:
            self._left, self.moved_at = left, now
        return now - self.moved_at

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


def _in_kernel(transport: asyncio.BaseTransport | None) -> int:
    """Bytes that were given to the kernel, and that the other side has not taken. 0 where that cannot be told."""
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None:
        return 0
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
    except (OSError, ValueError):
        return 0


class QuietLoop:
    """Logs the event loop's failures to accept connections once a minute.

    When a process has no descriptors left, asyncio logs a traceback for every waiting connection every second.
    """

    def __init__(self) -> None:
        self._count = 0
        self._logged_at = -QUIET_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an exception of an event loop."""
        if "accept" not in context.get("message", ""):
            loop.default_exception_handler(context)
            return
        self._count += 1
        if loop.time() - self._logged_at >= QUIET_SECONDS:
            error = context.get("exception")
            log.error(
                "connections cannot be accepted",
                error=str(error),
                times=self._count,
                next="raise `ulimit -n`",
            )
            self._logged_at = loop.time()
