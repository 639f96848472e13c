"""aiohttp, loaded without the certificates of this machine: the first connection with TLS reads them.

aiohttp makes two contexts of TLS when it is loaded, and each reads all certificates: 45 ms of CPU time. Most commands ask a service
without TLS, on this machine.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Unread(ssl.SSLContext):
    """A context that has read no certificates yet. It reads them, and becomes an ordinary one, when a connection needs it."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin TLS over asyncio."""
        self._read()
        return self.wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Begin TLS over a socket."""
        self._read()
        return self.wrap_socket(*args, **options)

    def _read(self) -> None:
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]
        self.load_default_certs()


@contextmanager
def _certificates_later() -> Iterator[None]:
    """Contexts that are made in here read this machine's certificates when they are needed."""

    def later(context: ssl.SSLContext, *_: object) -> None:
        context.__class__ = _Unread

    real = ssl.SSLContext.load_default_certs
    ssl.SSLContext.load_default_certs = later  # type: ignore[method-assign,assignment]
    ssl.SSLContext.set_default_verify_paths = later  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ssl.SSLContext.load_default_certs = real  # type: ignore[method-assign]
        del ssl.SSLContext.set_default_verify_paths  # that of its base again


with _certificates_later():
    import aiohttp as aiohttp
