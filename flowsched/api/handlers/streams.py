"""Answers that go on: events as Server-Sent Events, logs that are followed, the bytes of outputs.

Each stream holds at most one batch in memory: the next one is read when the client has taken the last, so a slow client costs
its own time and little memory. A client that takes nothing is cut off (`connections`). When the server drains, streams end at
once; clients come back elsewhere with `Last-Event-ID` (or `offset`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import web

from flowsched.api.parameters import last_event_id, path_text, task_of
from flowsched.api.routes import Call, Q, Query, Serving
from flowsched.control.history import happens
from flowsched.errors import FlowschedError, InvalidRequest, Unavailable
from flowsched.log_lines import get_logger
from flowsched.workflow.views import EventView, encode

log = get_logger(__name__)

#: Events are written in pieces of so many, so that one answer never holds a large text.
PIECE: Final = 200
LARGEST: Final = 2**63 - 1
#: The event number that means "from now on" to the service.
FROM_NOW: Final = -1

Attempt = Annotated[
    int, msgspec.Meta(ge=0, le=LARGEST, description="Which attempt, from 0; if left out, the last.")
]


class EventsQuery(Query, frozen=True, kw_only=True):
    """Where history begins."""

    after: Annotated[
        str,
        msgspec.Meta(
            pattern="^(now|[0-9]{1,18})$",
            examples=["now", "17"],
            description="Only events after this one, or `now`: only what happens from now on. `Last-Event-ID` wins.",
        ),
    ] = "0"
    follow: Annotated[
        bool, msgspec.Meta(description="Go on with what happens, until the workflow has ended.")
    ] = True


class WorkflowEventsQuery(EventsQuery, frozen=True, kw_only=True):
    """Which events of a workflow."""

    ends: Annotated[
        bool,
        msgspec.Meta(
            description="Only its end, for a client that waits for it: no event comes before `end`."
        ),
    ] = False


Events = TypeVar("Events", bound=EventsQuery)


class LogsQuery(Query, frozen=True, kw_only=True):
    """Which part of which log."""

    stream: Annotated[Literal["stdout", "stderr"], msgspec.Meta(description="Which of the two.")] = "stdout"
    attempt: Attempt | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, le=LARGEST, description="The first byte.")] = 0
    limit: Annotated[
        int,
        msgspec.Meta(ge=1, le=1 << 20, description="Most bytes of one answer; `follow` has no limit."),
    ] = 65536
    follow: Annotated[bool, msgspec.Meta(description="Go on until the attempt has ended.")] = False
    tail: (
        Annotated[
            int,
            msgspec.Meta(
                ge=0, le=1_000_000, description="Begin with so many of its last lines, in place of `offset`."
            ),
        ]
        | None
    ) = None


class Gone(Exception):
    """The client has left, or takes nothing: the stream ends without a word."""


async def stream_events(call: Call[EventsQuery]) -> web.StreamResponse:
    """The events of all workflows."""
    return await _events(call, None)


async def stream_workflow_events(call: Call[WorkflowEventsQuery]) -> web.StreamResponse:
    """The events of one workflow, until it has ended."""
    workflow = path_text(call.request, "workflow")
    await call.service.check_workflow(workflow)  # 404 while a status can still be sent
    return await _events(call, workflow, ends=call.query.ends)


async def _events(call: Call[Events], workflow: str | None, *, ends: bool = False) -> web.StreamResponse:
    since = call.query.after
    after = last_event_id(call.request, FROM_NOW if since == "now" else int(since))
    with _counted(call.serving):
        response = _stream("text/event-stream", {"X-Accel-Buffering": "no"})
        await response.prepare(call.request)
        try:
            await _send(call, response, b": flowsched\nretry: 1000\n\n")
            service, follow = call.service, call.query.follow
            batches = (
                _none_until(partial(service.ended, workflow))
                if ends and workflow is not None
                else service.events(workflow, after, follow=follow)
            )
            await _write_events(call, response, workflow, batches)
        except (Gone, ConnectionError):
            pass
        except Exception as error:  # noqa: BLE001 (the status is out; logged with its traceback)
            await _broken(call, response, error)
        return response


async def _none_until(end: Callable[[], Awaitable[None]]) -> AsyncGenerator[Sequence[EventView], None]:
    """No events until an end. `end` is called when the first event is asked for, which a server that drains does not do."""
    await end()
    yield ()


async def _write_events(
    call: Call[Events],
    response: web.StreamResponse,
    workflow: str | None,
    batches: AsyncIterator[Sequence[EventView]],
) -> None:
    serving = call.serving
    async with aclosing(_with_silence(serving, batches)) as timed:
        async for batch in timed:
            if batch is None:
                await _send(call, response, b": keep-alive\n\n")
                continue
            for start in range(0, len(batch), PIECE):
                await _send(call, response, frames(batch[start : start + PIECE]))
    if workflow is not None and not serving.draining.is_set():
        view = await call.service.workflow(workflow)
        await _send(call, response, b"event: end\ndata: " + encode(view) + b"\n\n")


def frames(events: Sequence[EventView]) -> bytes:
    """Events in the wire format. JSON has no raw line ends, so nothing in them can begin a new field."""
    return b"".join(b"id: %d\ndata: %s\n\n" % (event.id, encode(event)) for event in events)


async def _with_silence(
    serving: Serving, batches: AsyncIterator[Sequence[EventView]]
) -> AsyncGenerator[Sequence[EventView] | None, None]:
    """The batches, and None after each silence; ends when they do or when the server drains."""
    draining = asyncio.create_task(serving.draining.wait())
    coming: asyncio.Task[Sequence[EventView] | None] | None = None
    try:
        while not serving.draining.is_set():
            coming = coming or asyncio.create_task(_next(batches))
            wait = serving.limits.keep_alive_seconds
            await asyncio.wait({coming, draining}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                yield None
                continue
            batch, coming = coming.result(), None
            if batch is None:
                return
            if batch:
                yield batch
    finally:
        draining.cancel()
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        close = getattr(batches, "aclose", None)
        if close is not None:
            await close()


async def _next(batches: AsyncIterator[Sequence[EventView]]) -> Sequence[EventView] | None:
    """The next batch, or None at the end: a task may not end with StopAsyncIteration."""
    try:
        return await anext(batches)
    except StopAsyncIteration:
        return None


async def get_logs(call: Call[LogsQuery]) -> web.StreamResponse:
    """Bytes of a log; with `follow`, as they come."""
    request, query = call.request, call.query
    task_of(call)
    follow = query.follow and request.method != "HEAD"
    size = call.serving.limits.log_bytes if follow else query.limit
    attempt = await _followed(call, query.attempt) if follow or query.tail is not None else query.attempt
    offset = query.offset if query.tail is None else await _tail(call, attempt, query.tail)
    chunk, more = await _log(call, attempt, offset, size)
    if not follow:
        headers = {
            "Flowsched-Next-Offset": str(offset + len(chunk)),
            "Flowsched-More": "true" if more else "false",
        }
        return web.Response(body=chunk, content_type="text/plain", charset="utf-8", headers=headers)
    with _counted(call.serving):
        response = _stream("text/plain", {"Flowsched-Next-Offset": str(offset)})
        await response.prepare(request)
        try:
            await _follow(call, response, attempt, offset, chunk, more)
        except (Gone, ConnectionError):
            pass
        except Exception as error:  # noqa: BLE001 (the status is out; logged with its traceback)
            await _broken(call, response, error, write=False)
        return response


async def _follow(
    call: Call[LogsQuery],
    response: web.StreamResponse,
    attempt: int | None,
    offset: int,
    chunk: bytes,
    more: bool,
) -> None:
    limits, draining = call.serving.limits, call.serving.draining
    while True:
        if chunk:
            await _send(call, response, chunk)
            offset += len(chunk)
        elif not more:
            return
        elif await happens(draining, limits.follow_seconds):
            _cut(call)  # a clean end would say that the log is complete
            raise Gone
        if call.request.transport is None:
            raise Gone
        if more or len(chunk) == limits.log_bytes:
            attempt = await _followed(call, attempt)
            chunk, more = await _log(call, attempt, offset, limits.log_bytes)
        else:
            return


async def _followed(call: Call[LogsQuery], attempt: int | None) -> int | None:
    """The attempt that is followed: the last one, unless it is known. An offset into its log is none into the next one's."""
    if attempt is not None:
        return attempt
    attempts = (await call.service.task(*task_of(call))).attempts
    return attempts[-1].attempt if attempts else None


async def _tail(call: Call[LogsQuery], attempt: int | None, lines: int) -> int:
    """Where the last lines begin.

    Raises:
        InvalidRequest: An offset is asked for, too.
    """
    query = call.query
    if query.offset:
        raise InvalidRequest("found offset and tail, expected one of them: each says where to begin")
    return await call.service.log_start(*task_of(call), attempt=attempt, stream=query.stream, tail=lines)


async def _log(call: Call[LogsQuery], attempt: int | None, offset: int, limit: int) -> tuple[bytes, bool]:
    return await call.service.logs(
        *task_of(call), attempt=attempt, stream=call.query.stream, offset=offset, limit=limit
    )


async def get_output(call: Call[Query]) -> web.StreamResponse:
    """The bytes of an output, under the name that the task gave its file."""
    request = call.request
    task, name = task_of(call), path_text(request, "name")
    with _counted(call.serving):
        found = await call.service.output(*task, name)
        async with aclosing(found.chunks) as chunks:
            headers = {"Content-Disposition": disposition(found.file_name)}
            response = web.StreamResponse(headers=headers)
            response.content_type = "application/octet-stream"
            response.content_length = found.size_bytes
            await response.prepare(request)
            if request.method == "HEAD":
                return response
            try:
                async for chunk in chunks:
                    await _send(call, response, chunk)
            except (Gone, ConnectionError):
                pass
            except Exception as error:  # noqa: BLE001 (the status is out; logged with its traceback)
                await _broken(call, response, error, write=False)
        return response


def disposition(file_name: str) -> str:
    """A file's name for browsers (RFC 6266): plain for old ones, whole for the others; never a path, nor a dot file.

    The whole name has every other byte of it: a backslash, a line end, or what is no UTF-8.
    """
    name = file_name.rpartition("/")[2].lstrip(".") or "output"
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    whole = quote(name, safe="", errors="surrogateescape")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{whole}"


def _stream(media: str, headers: dict[str, str]) -> web.StreamResponse:
    return web.StreamResponse(headers={"Content-Type": f"{media}; charset=utf-8", **headers})


async def _send(call: Call[Q], response: web.StreamResponse, data: bytes) -> None:
    """Write, and wait until the client has taken what was written before."""
    transport = call.request.transport
    if transport is None or transport.is_closing():
        raise Gone
    await response.write(data)


async def _broken(
    call: Call[Q], response: web.StreamResponse, error: Exception, *, write: bool = True
) -> None:
    """Something failed in the middle of a stream: log it and cut off, since a clean end means success.

    A database that is away is no failure of the service: its outage has a warning of its own, however many streams there are.
    """
    if isinstance(error, Unavailable):
        log.debug("stream broke", path=call.request.path, error=str(error))
    else:
        log.error("stream broke", path=call.request.path, exc_info=error)
    if write:
        title = error.title if isinstance(error, FlowschedError) else "Internal error"
        try:
            await _send(call, response, b"event: problem\ndata: " + encode({"title": title}) + b"\n\n")
        except (Gone, ConnectionError):
            return
    _cut(call)


def _cut(call: Call[Q]) -> None:
    if call.request.transport is not None:
        call.request.transport.close()


@contextmanager
def _counted(serving: Serving) -> Iterator[None]:
    """Hold one of the places for streams."""
    if serving.streams >= serving.limits.streams:
        raise Unavailable(f"{serving.limits.streams} streams are open, which is the limit; try again later")
    serving.streams += 1
    try:
        yield
    finally:
        serving.streams -= 1
