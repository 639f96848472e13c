"""Streams of the service, read to their end however often the connection breaks: events and logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import msgspec

from flowsched.client.session import Session, back_off, decoded
from flowsched.errors import Unavailable
from flowsched.workflow.views import EventView

#: So many connections in a row may fail without bringing anything before the reader gives up: about half a minute.
FRUITLESS: Final = 12
#: A connection that stood for so long was a good one, even if nothing came: silence is no failure.
STOOD_S: Final = 10.0


class Frame(msgspec.Struct, frozen=True):
    """One message of a Server-Sent Events stream."""

    id: str
    name: str
    data: bytes


async def frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    """Split a stream into messages. Comments and `retry` are dropped; a message that was cut off never appears."""
    number, name, data = "", "message", bytearray()
    pending = b""
    async for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if field == b"id":
                number = value.decode()
            elif field == b"event":
                name = value.decode()
            elif field == b"data":
                data += value
            elif not line.strip() and data:
                yield Frame(number, name, bytes(data))
                name, data = "message", bytearray()


async def workflow_events(
    session: Session, path: str, after: int, *, follow: bool = True
) -> AsyncGenerator[EventView, None]:
    """Events after one, in order, each once; ends with the workflow, or without `follow` with what has happened.

    Raises:
        FlowschedError: The server refused.
        Unavailable: It was away for too long.
    """
    async for frame in _resumed(session, path, after, follow=follow):
        yield decoded(frame.data, EventView)


async def ended(session: Session, path: str) -> None:
    """Return when the workflow has ended. Its events, which may be many, are not sent."""
    async for _ in _resumed(session, path, None):
        pass


async def _resumed(
    session: Session, path: str, after: int | None, *, follow: bool = True
) -> AsyncIterator[Frame]:
    """Frames after an event; None: only the end."""
    patience = Patience()
    while True:
        failure = Unavailable("the server closed the stream before the workflow had ended")
        try:
            params = {"after": "now", "ends": "true"} if after is None else {}
            params |= {} if follow else {"follow": "false"}
            headers = {} if after is None else {"Last-Event-ID": str(after)}
            async with session.stream(path, params=params, headers=headers) as response:
                patience.opened()
                async for frame in frames(response.chunks):
                    if frame.name == "end":
                        return
                    if frame.name == "message" and frame.id.isdigit():
                        after = int(frame.id)
                        patience.fed()
                        yield frame
        except Unavailable as error:
            failure = error
        await patience.failed(failure)


async def followed_log(
    session: Session, path: str, params: dict[str, str], offset: int, tail: int | None = None
) -> AsyncGenerator[bytes, None]:
    """A log from `offset` or its last lines, as it grows, until its attempt has ended. A silent task is no reason to give up."""
    patience = Patience()
    begin = {"offset": str(offset)} if tail is None else {"tail": str(tail)}
    while True:
        try:
            async with session.stream(path, params={**params, "follow": "true", **begin}) as response:
                patience.opened()
                if "tail" in begin:
                    offset = int(response.headers["Flowsched-Next-Offset"])
                    begin = {"offset": str(offset)}
                async for chunk in response.chunks:
                    offset += len(chunk)
                    begin = {"offset": str(offset)}
                    patience.fed()
                    yield chunk
            return
        except Unavailable as error:
            failure = error
        await patience.failed(failure)


class Patience:
    """How often in a row a stream failed without having brought anything, or having stood for a while."""

    def __init__(self) -> None:
        self._fruitless = 0
        self._opened_at: float | None = None

    def opened(self) -> None:
        """The server has begun to answer."""
        self._opened_at = asyncio.get_running_loop().time()

    def fed(self) -> None:
        """Something came."""
        self._fruitless = 0

    async def failed(self, failure: Unavailable) -> None:
        """Wait before the next attempt, or raise `failure` when there were too many."""
        now = asyncio.get_running_loop().time()
        if self._opened_at is not None and now - self._opened_at > STOOD_S:
            self._fruitless = 0
        self._opened_at = None
        self._fruitless += 1
        if self._fruitless >= FRUITLESS:
            raise failure
        await asyncio.sleep(back_off(self._fruitless))


async def whole_log(
    session: Session, path: str, params: dict[str, str], offset: int, tail: int | None = None
) -> AsyncGenerator[bytes, None]:
    """A log from `offset` or its last lines as far as it goes now, page by page."""
    begin = {"offset": str(offset)} if tail is None else {"tail": str(tail)}
    while True:
        chunk, headers = await session.request("GET", path, params={**params, **begin, "limit": "1048576"})
        if not chunk:
            return
        yield chunk
        begin = {"offset": headers["Flowsched-Next-Offset"]}
        if headers.get("Flowsched-More") != "true":
            return
