"""Bodies of requests to the agent, and what it sends bit by bit: datasets and events.

If a client of a stream takes nothing, its stream is cut, and holds no memory meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Final, TypeVar

import msgspec
from aiohttp import web

from flowsched.cluster.kubernetes import orders
from flowsched.cluster.kubernetes.agent.agent import Agent
from flowsched.cluster.kubernetes.agent.pods import PodFile
from flowsched.cluster.kubernetes.agent.sources import wire_name
from flowsched.cluster.node.cache import Entry
from flowsched.cluster.node.origins import NotFetched, Section
from flowsched.cluster.node.ranges import block_stream, cached_section, open_payload

T = TypeVar("T")

LARGEST: Final = 16 << 20
#: Datasets in one question for fingerprints.
MOST_FINGERPRINTS: Final = 1000
#: The largest body on routes without the agent key: a pod's order, which JSON escapes make up to twice as long.
LARGEST_STEP_REQUEST: Final = 2 * orders.LARGEST_TEXT + 4096
_ARRIVES_S: Final = 30.0


class BadRequest(Exception):
    """A request that cannot be understood: (status, message)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Source(msgspec.Struct, frozen=True):
    """Another agent."""

    node: str
    url: str


class Wanted(msgspec.Struct, frozen=True):
    """A dataset that shall come."""

    uri: str
    size_bytes: int = 0
    source: Source | None = None
    offset: int = 0
    whole: bool = True  #: else only `size_bytes` from `offset` on, of `version` if that is known
    version: str = ""


class Orders(msgspec.Struct, frozen=True):
    """POST /v1/transfers."""

    orders: list[Wanted]


class FingerprintRequest(msgspec.Struct, frozen=True):
    """POST /v1/fingerprints."""

    uris: Annotated[list[str], msgspec.Meta(max_length=MOST_FINGERPRINTS)]
    by_content: bool = False
    sizes: bool = False  #: nothing but the sizes of files of the node, of those that are known soon


class KeptPod(msgspec.Struct, frozen=True):
    """A pod that the agent keeps the logs of."""

    namespace: str
    pod: str
    uid: str
    name: str = ""


class Keep(msgspec.Struct, frozen=True):
    """POST /v1/logs/keep."""

    pods: list[KeptPod]


class StepRequest(msgspec.Struct, frozen=True):
    """POST /v1/pods/{uid}/inputs, /objects and /outputs: the order as it was signed, and where the pod has the volume."""

    order: str
    signature: str
    inputs_path: str = "/flowsched/inputs"
    work_path: str = "/flowsched/work"
    #: The files that a container task's pod delivered itself, packed. The agent returns them with the pod's outputs.
    delivered: str = ""
    file: PodFile | None = None  #: of /objects


async def body_of(request: web.Request, kind: type[T], limit: int = LARGEST) -> T:
    """Read a request's body.

    Raises:
        BadRequest: It is too large, too slow, or no such thing.
    """
    if request.content_length is not None and request.content_length > limit:
        raise BadRequest(413, f"a body may have {limit} bytes at most")
    body = bytearray()
    try:
        async with asyncio.timeout(_ARRIVES_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > limit:
                    raise BadRequest(413, f"a body may have {limit} bytes at most")
    except TimeoutError:
        raise BadRequest(408, f"the body did not arrive within {_ARRIVES_S:g} s") from None
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(400, str(error)) from None


def uri_of(request: web.Request) -> str:
    """The dataset that a request is about.

    Raises:
        BadRequest: None is named.
    """
    uri = request.query.get("uri", "")
    try:
        orders.check_uri(uri)
    except orders.BadOrder as error:
        raise BadRequest(400, str(error)) from None
    return uri


def number_of(request: web.Request, name: str, default: int | None = None, most: int = 1 << 62) -> int:
    """A whole number from a request's parameters, not negative.

    Raises:
        BadRequest: It is no such number.
    """
    text = request.query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise BadRequest(400, f"{name} is to be a whole number")
    return min(int(text), most)


# ---- sending ----


#: Readers of datasets, and followers of events, at a time. The agent asks more of them to come back.
MOST_READERS: Final = 64
MOST_FOLLOWERS: Final = 16


class Streams:
    """Sends datasets and events.

    Args:
        agent: The agent that has them.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._closing = asyncio.Event()
        self.readers = 0
        self.followers = 0
        self.follows = 0  #: followers so far

    def close(self) -> None:
        """Let the followers go."""
        self._closing.set()

    async def dataset(self, request: web.Request, uri: str) -> web.StreamResponse:
        """Send a dataset: a file as it is, a folder as a tar stream.

        Raises:
            BadRequest: It is not here, or too many read at once.
        """
        cache = self._agent.cache
        entry = await asyncio.to_thread(cache.find, uri)
        if entry is None:
            raise BadRequest(404, "this node has no such dataset")
        with self._reader():
            opened = await asyncio.to_thread(open_payload, cache.folder, cache.payload(entry))
            if opened is None:
                raise BadRequest(404, "this node has no such dataset any more")
            return await self._send(request, entry, *opened)

    async def section(self, request: web.Request, uri: str) -> web.StreamResponse:
        """Send a range of a file, of one that is still coming, too, if the range is here.

        Raises:
            BadRequest: It is not here, of another version (If-Match), a folder, or too many read at once.
        """
        try:
            asked = request.http_range
        except ValueError as error:
            raise BadRequest(416, str(error)) from None
        start, end = asked.start, asked.stop
        if start is None or end is None or not 0 <= start < end:
            raise BadRequest(416, "a range has a first and a last byte: bytes=0-99")
        with self._reader():
            try:
                found = await asyncio.to_thread(cached_section, self._agent.cache, uri, start, end)
            except NotFetched as error:
                answer = web.json_response({"message": str(error)}, status=416)
                answer.headers["X-Flowsched-Directory"] = "1"
                return answer
            if found is None:
                raise BadRequest(404, "this node has no such part of it")
            return await self._send_section(request, found, start, min(end, found.total))

    @contextmanager
    def _reader(self) -> Iterator[None]:
        """One reader more, if there are not too many. Raises BadRequest."""
        if self.readers >= MOST_READERS:
            raise BadRequest(503, f"{MOST_READERS} readers at a time are served; come back in a second")
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1

    async def _send_section(
        self, request: web.Request, found: Section, start: int, end: int
    ) -> web.StreamResponse:
        tag = f'"{wire_name(found.version)}"'
        headers = {
            "ETag": tag,
            "X-Flowsched-Version": wire_name(found.version),
            "X-Flowsched-Whole": str(int(found.whole)),
        }
        blocks = block_stream(found, max(0, end - start))
        try:
            if request.headers.get("If-Match", tag) != tag:
                return web.json_response(
                    {"message": "this node has another version"}, status=412, headers=headers
                )
            if start >= end:
                headers["Content-Range"] = f"bytes */{found.total}"
                return web.json_response(
                    {"message": f"it has {found.total} bytes"}, status=416, headers=headers
                )
            headers |= {
                "Content-Type": "application/octet-stream",
                "Content-Range": f"bytes {start}-{end - 1}/{found.total}",
                "X-Flowsched-Name": wire_name(found.name),
                "X-Flowsched-Mode": f"{found.mode:o}",
            }
            answer = web.StreamResponse(status=206, headers=headers)
            answer.content_length = end - start
            await answer.prepare(request)
            async with _cut_when_broken(request):
                while (block := await asyncio.to_thread(next, blocks, None)) is not None:
                    await self._send_block(answer, block)
            return answer
        finally:
            await asyncio.to_thread(found.stream.close)

    async def _send(
        self, request: web.Request, entry: Entry, length: int, blocks: Iterator[bytes]
    ) -> web.StreamResponse:
        answer = web.StreamResponse(
            headers={
                "Content-Type": "application/octet-stream",
                "X-Flowsched-Directory": str(int(entry.directory)),
                "X-Flowsched-Name": wire_name(entry.name),
                "X-Flowsched-Size": str(entry.size_bytes),
                "X-Flowsched-Version": wire_name(entry.version),
            }
        )
        answer.content_length = length
        await answer.prepare(request)
        async with _cut_when_broken(request):
            while (block := await asyncio.to_thread(next, blocks, None)) is not None:
                await self._send_block(answer, block)
        return answer

    async def _send_block(self, answer: web.StreamResponse, block: bytes) -> None:
        rates, view = self._agent.rates, memoryview(block)
        for start in range(0, len(view), rates.block_bytes):
            piece = view[start : start + rates.block_bytes]
            async with asyncio.timeout(self._agent.settings.stall_s):
                await answer.write(piece)
            self._agent.out_bytes += len(piece)
            await asyncio.sleep(rates.outgoing_s(len(piece)))

    async def events(self, request: web.Request, after: int, instance: str | None) -> web.StreamResponse:
        """Send events as they come, one JSON object to a line, and a heartbeat when none do.

        Raises:
            BadRequest: The events after `after` are no longer known: the client reads the list of replicas again.
        """
        news = self._agent.news
        if news.since(after) is None or instance not in (None, news.instance):
            raise BadRequest(
                410, "these events are no longer known: read /v1/replicas, and follow from there"
            )
        if self.followers >= MOST_FOLLOWERS:
            raise BadRequest(503, f"{MOST_FOLLOWERS} followers at a time are served")
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        self.followers += 1
        self.follows += 1
        try:
            await answer.prepare(request)
            async with _cut_when_broken(request):
                await self._follow(answer, after)
        finally:
            self.followers -= 1
        return answer

    async def _follow(self, answer: web.StreamResponse, sent: int) -> None:
        news, settings = self._agent.news, self._agent.settings
        measured = news.load[0]
        with news.bell() as bell:
            await self._write(answer, news.heartbeat(sent))
            while not self._closing.is_set():
                bell.clear()
                lines = news.since(sent)
                if lines is None:
                    return  # the follower was too slow; when it connects again, the agent tells it so
                number, load = news.load
                if lines or number != measured:
                    await self._write(answer, b"".join(lines) + (load if number != measured else b""))
                    sent, measured = sent + len(lines), number
                elif not await self._rings(bell, settings.heartbeat_s):
                    await self._write(answer, news.heartbeat(sent))

    async def _rings(self, bell: asyncio.Event, within_s: float) -> bool:
        """Whether something happens in time; the closing of the door counts."""
        waits = [asyncio.create_task(event.wait()) for event in (bell, self._closing)]
        done, _ = await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return bool(done)

    async def _write(self, answer: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self._agent.settings.stall_s):
            await answer.write(data)


@asynccontextmanager
async def _cut_when_broken(request: web.Request) -> AsyncIterator[None]:
    """Cut the connection if the answer cannot be sent whole: else its reader would take what came for all there is."""
    try:
        yield
    except (OSError, TimeoutError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()
