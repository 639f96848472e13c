"""A TCP connection on the event loop, with or without TLS, read and written where the bytes are.

asyncio's own TLS moves every byte through buffers in memory and through Python, and costs 150 µs for a call of which the
encryption is 15; here OpenSSL reads and writes the socket by itself. Nothing else is different: callbacks on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

#: Read at a time: the kernel gives more than one packet, OpenSSL no more than one record.
_PIECE_BYTES: Final = 64 << 10
_RECORD_BYTES: Final = 16 << 10
#: Read so many pieces in a row before others have their turn.
_IN_A_ROW: Final = 64
_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


async def connect(
    host: str, port: int, tls: ssl.SSLContext | None, server_name: str | None, timeout_s: float
) -> Socket:
    """Connect to the first of a host's addresses that answers.

    Raises:
        OSError: None does, or its certificate is not to be trusted.
        TimeoutError: None did in time.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + timeout_s
    async with asyncio.timeout(timeout_s):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    trouble: Exception = OSError(f"{host} has no address")
    for number, (family, kind, protocol, _, address) in enumerate(found):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The others must have their chance in time.
            left_s = (ends - loop.time()) / (len(found) - number)
            async with asyncio.timeout(max(0.0, left_s)):
                await loop.sock_connect(sock, address)
                if tls is not None:
                    sock = tls.wrap_socket(sock, server_hostname=server_name, do_handshake_on_connect=False)
                    await _shake_hands(sock)
            return Socket(sock)
        except (OSError, TimeoutError) as error:
            trouble = error
            sock.close()
        except BaseException:
            sock.close()
            raise
    raise trouble


async def _shake_hands(sock: ssl.SSLSocket) -> None:
    while True:
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            await _ready(sock, writing=False)
        except ssl.SSLWantWriteError:
            await _ready(sock, writing=True)


async def _ready(sock: socket.socket, *, writing: bool) -> None:
    """Wait until a socket can be read, or written."""
    loop, descriptor = asyncio.get_running_loop(), sock.fileno()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    (loop.add_writer if writing else loop.add_reader)(descriptor, wake)
    try:
        await ready
    finally:
        (loop.remove_writer if writing else loop.remove_reader)(descriptor)


class Socket:
    """A connected socket. `attach` says who is told what arrives.

    Attributes:
        ended: The other side has ended it, or we have.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.ended = False
        self._sock = sock
        self._secured = sock if isinstance(sock, ssl.SSLSocket) else None
        self._piece = _PIECE_BYTES if self._secured is None else _RECORD_BYTES
        self._descriptor = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._out = bytearray()  #: not yet sent
        self._reading = False
        self._receive: Callable[[bytes], None] = lambda data: None
        self._end: Callable[[str], None] = lambda why: None

    def attach(self, receive: Callable[[bytes], None], end: Callable[[str], None]) -> None:
        """Begin to read.

        Args:
            receive: Is told what arrives.
            end: Is told, once, that nothing more will, and why ("" = the other side has just ended it).
        """
        self._receive, self._end = receive, end
        self.resume()

    def resume(self) -> None:
        """Read on."""
        if not self._reading and not self.ended:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._readable)
            if self._secured is not None and self._secured.pending():
                self._loop.call_soon(self._readable)

    def pause(self) -> None:
        """Read no more for the present: the other side has to wait."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def write(self, data: bytes) -> None:
        """Send, now or as soon as it can be taken."""
        if self.ended:
            return
        if not self._out:
            try:
                sent = self._sock.send(data)
            except _NOT_NOW:
                sent = 0
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._descriptor, self._writable)
        self._out += data

    def close(self) -> None:
        """Close it at once. Nobody is told: who closes it knows."""
        self._end = lambda why: None
        self._finish()

    def _readable(self) -> None:
        for _ in range(_IN_A_ROW):
            if not self._reading:
                return
            try:
                data = self._sock.recv(self._piece)
            except _NOT_NOW:
                return
            except OSError as error:
                self._lose(error)
                return
            if not data:
                self._lose(None)
                return
            self._receive(data)
            if len(data) < self._piece and (self._secured is None or not self._secured.pending()):
                return  # the loop calls again if there is more
        if self._reading:
            self._loop.call_soon(self._readable)  # what is decrypted already makes no socket readable

    def _writable(self) -> None:
        try:
            sent = self._sock.send(bytes(self._out))
        except _NOT_NOW:
            return
        except OSError as error:
            self._lose(error)
            return
        del self._out[:sent]
        if not self._out and not self.ended:
            self._loop.remove_writer(self._descriptor)

    def _lose(self, error: OSError | None) -> None:
        told, self._end = self._end, lambda why: None
        self._finish()
        told(f"{type(error).__name__}: {error}" if error is not None else "")

    def _finish(self) -> None:
        if not self.ended:
            self.ended = True
            self._reading = False
            self._loop.remove_reader(self._descriptor)
            self._loop.remove_writer(self._descriptor)
            with contextlib.suppress(OSError):
                self._sock.close()
