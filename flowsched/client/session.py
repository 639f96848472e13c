"""How a client asks its service: over HTTP (`http_session`), or within one process (`cli.own_service`)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from flowsched.errors import FlowschedError

T = TypeVar("T")

#: A request is tried so often in all; the waits between are at most 0.2, 0.4, 0.8, 1.6 s.
ATTEMPTS: Final = 5
FIRST_WAIT_S: Final = 0.2
LONGEST_WAIT_S: Final = 5.0
#: While nothing listens, or the service is not ready (503), a request is tried for so long, since a service may be starting;
#: while nothing listens, at most so many seconds are between tries.
START_S: Final = 10.0
START_WAIT_S: Final = 0.5
#: The error of a call of a closed client.
CLOSED: Final = "this client is closed: make another one, or make the call inside the `with` block"

NO_FLOWSCHED: Final = "what answers at this address is no flowsched"


class Streamed(NamedTuple):
    """An answer that comes in pieces."""

    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class Session(Protocol):
    """A service, as a client asks it. Methods, paths, parameters and bodies are those of the API."""

    url: str

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool = True,
    ) -> tuple[bytes, Mapping[str, str]]:
        """Ask once, and once more while the service is away.

        Args:
            method: As in HTTP.
            path: With its leading slash.
            params: Query parameters.
            body: JSON.
            headers: Further headers.
            again: Whether the request may reach the service twice; if not, only what never left is tried again.

        Returns:
            The body and the headers of the answer.

        Raises:
            FlowschedError: The service's error, or `Unavailable` if it did not answer.
        """

    def stream(
        self, path: str, *, params: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Streamed]:
        """Open a stream, once.

        Raises:
            FlowschedError: The service answered with an error.
            Unavailable: The connection failed, now or while it was read.
        """

    async def probe(self, path: str) -> tuple[int, str]:
        """Ask once, for a status and a text, whatever they are.

        Raises:
            Unavailable: No service answers.
        """

    async def close(self) -> None:
        """Close all connections, for good."""


def back_off(attempt: int) -> float:
    """Seconds before the next attempt: exponential, with full jitter, so that many clients do not come together."""
    most: float = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (attempt - 1))
    return random.uniform(most / 4, most)


def decoded(content: bytes, kind: type[T]) -> T:
    """An answer as a view.

    Raises:
        FlowschedError: It is none: something else answers at this address.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        shown = content[:80].decode("utf-8", "replace")
        raise FlowschedError(f"{NO_FLOWSCHED} ({error}: {shown!r})") from None
