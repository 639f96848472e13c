"""Pokes: runners tell by a datagram that there is something to see. A lost one costs half a second, nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


class Pokes:
    """The service's end of the socket `poke.sock` in a cluster's root.

    Args:
        root: Folder of the cluster.
        on_poke: Called on the event loop with the name of an attempt.
    """

    def __init__(self, root: Path, on_poke: Callable[[str], None]) -> None:
        self._on_poke = on_poke
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        with contextlib.suppress(FileNotFoundError):
            (root / "poke.sock").unlink()
        try:
            _bind(self._socket, root)
        except OSError as error:  # a path of more than 107 bytes where there is no /proc
            log.warning("no pokes: changes of attempts are seen by scanning only", error=str(error))
        else:
            self._loop.add_reader(self._socket.fileno(), self._read)

    def close(self) -> None:
        """Listen no more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._on_poke(os.fsdecode(self._socket.recv(4096)))


def _bind(listener: socket.socket, root: Path) -> None:
    """Bind below `root`, whose path may be longer than a socket's address may be."""
    try:
        listener.bind(str(root / "poke.sock"))
    except OSError:
        fd = os.open(root, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{fd}/poke.sock")
        finally:
            os.close(fd)
