"""Calls to a Kubernetes API server: raw HTTP with keep-alive, bytes or typed structs out, and which kinds the server serves.

Measured (KUBE.md, bench/kube): kubernetes_asyncio costs 2-4 times as much CPU per call as aiohttp, which costs thrice as much
as `http.Connections`, and 100 times as much per object read; 16-32 requests in flight are the knee. So a client holds at most
`in_flight` requests open (streams do not count) and decodes straight into structs. Any HTTP status is an `Answer`; only silence
is an exception (`Unreachable`).
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from flowsched.background import Explain
from flowsched.cluster.kubernetes.api.errors import Answer, Malformed, Refused, Unreachable
from flowsched.cluster.kubernetes.api.http import Connections, Lost, Reply, Sessions, preamble, request
from flowsched.cluster.kubernetes.objects.core import ListMetadata, ObjectList, OnlyMetadata
from flowsched.cluster.kubernetes.objects.metadata import Metadata
from flowsched.version import VERSION

_VERBS: Final[Mapping[str, str]] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def named(method: str, path: str, params: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The verb and the resource of a request, as RBAC names them.

    A path outside /api and /apis, or one that names no resource, is its own name.
    """
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
    else:
        return method.lower(), path
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    resource = f"{rest[0]}.{group}" if group else rest[0]
    if len(rest) > 2:
        resource = f"{resource}/{rest[2]}"
    if method == "GET":
        watched = params is not None and params.get("watch") in ("1", "true")
        verb = "watch" if watched else "list" if len(rest) == 1 else "get"
    elif method == "DELETE" and len(rest) == 1:
        verb = "deletecollection"
    else:
        verb = _VERBS.get(method, method.lower())
    return verb, resource


# ---- the client ----


T = TypeVar("T")

#: A request that the server puts off (429, or 503 with Retry-After) is sent so often in all.
TRIES: Final = 4
#: A longer Retry-After is left to the caller: an eviction that a disruption budget forbids says 10 s and means minutes.
LONGEST_WAIT_S: Final = 8.0
#: A server that does not accept a connection for so long is away.
CONNECT_S: Final = 10.0
#: Below the 90 s after which an API server closes an idle connection, so that a request seldom meets a closed one.
KEEP_ALIVE_S: Final = 60.0
#: When its continue token expires, a list is begun again so often in pages, then read in one piece.
LIST_TRIES: Final = 3

_HEADERS: Final = {
    "User-Agent": f"flowsched/{VERSION}",
    "Accept": "application/json",
    "Accept-Encoding": "identity",  # the server's CPU is the wall, not the wire
}
#: A write that may not be sent now asks again after so long.
_PAUSE_S: Final = 0.1


async def no_headers() -> Mapping[str, str]:
    """Of a connection that needs no credentials in headers."""
    return {}


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach an API server, and as which user.

    Args:
        url: "https://10.0.0.1:6443".
        ssl: None for plain HTTP, or the system's default trust.
        headers: Asked before every request; it caches what it can, and a token that it gives is good now.
        namespace: Of the kubeconfig's context or of the pod we run in.
        renew: Called after a 401; True if other credentials are to be tried.
        proxy: URL of an HTTP proxy.
        server_name: That the server's certificate must have; None = the URL's.
    """

    url: str
    ssl: ssl.SSLContext | None = None
    headers: Callable[[], Awaitable[Mapping[str, str]]] = no_headers
    namespace: str = "default"
    renew: Callable[[], Awaitable[bool]] | None = None
    proxy: str | None = None
    server_name: str | None = None


@dataclass(slots=True)
class Listing(Generic[T]):
    """All objects of a path, and the version they are of: a watch from there misses nothing.

    `unread` are objects that are there and could not be decoded; without a name if not even their metadata could.
    """

    items: list[T] = field(default_factory=list)
    version: str = ""
    unread: list[Metadata] = field(default_factory=list)


class Client:
    """One API server.

    A call is sent at most once, but for what the server itself puts off. Exception: a GET is repeated that meets a
    connection which the server has just closed.

    Args:
        connection: To which server, and as which user.
        may_write: Asked right before each write (whatever is no GET) is sent, also before it is sent again. While it may not be
            sent it waits.
        in_flight: So many requests are open at a time; the others wait their turn.
        timeout_s: Of a request, from its turn to the last byte of its answer.
        sleep: Waits.
        jitter: A random number from 0 to 1.

    Attributes:
        calls: How often which verb was used on which resource, in the words of RBAC: `("create", "pods/binding")`. A
            resource outside the core group has its group in its name: `podgroups.scheduling.volcano.sh/status`.
        skipped: How many objects of lists could not be decoded.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        may_write: Callable[[], bool] = lambda: True,
        in_flight: int = 32,
        timeout_s: float = 30.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.connection = connection
        self.timeout_s = timeout_s
        self.calls: Counter[tuple[str, str]] = Counter()
        self.skipped = 0
        self._may_write = may_write
        self._turns = asyncio.Semaphore(in_flight)
        self._sleep = sleep
        self._jitter = jitter
        parts = urlsplit(connection.url.rstrip("/"))
        self._host, self._prefix = parts.netloc.rpartition("@")[2], parts.path
        self._headers: Mapping[str, str] = {}
        self._common = b""  #: header lines of `_headers` and our own
        limits = {"connect_s": CONNECT_S, "keep_alive_s": KEEP_ALIVE_S}
        tls, name = connection.ssl, connection.server_name
        self._sessions = Sessions(parts.geturl(), tls, connection.proxy, name, headers=_HEADERS, **limits)
        self._direct: Connections | None = None
        if connection.proxy is None:
            self._direct = Connections(parts.geturl(), tls, name, **limits)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._direct is not None:
            await self._direct.close()
        await self._sessions.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Ask, and wait out what the server puts off.

        Args:
            method: As in HTTP.
            path: With its leading slash: "/api/v1/namespaces/x/pods/y/binding".
            body: JSON.
            content_type: Of the body; `MERGE` or `STRATEGIC` of a patch.
            params: Of the query.
            timeout_s: Other than the client's own.

        Raises:
            Unreachable: No answer.
        """
        self.calls[named(method, path, params)] += 1
        renewed = False
        for tries in range(1, TRIES + 1):
            answer = await self._ask(method, path, body, content_type, params, timeout_s or self.timeout_s)
            if answer.status == 401 and not renewed and self.connection.renew is not None:
                renewed = True
                if await self.connection.renew():
                    continue
            wait_s = _put_off(answer)
            if wait_s is None or wait_s > LONGEST_WAIT_S or tries == TRIES:
                return answer
            await self._sleep(wait_s * (1 + self._jitter() / 2))
        return answer

    async def try_call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
        explain: Explain = lambda _reason, _message: None,
    ) -> Answer | None:
        """As `call`. None: there was no answer, which `explain` hears of, and the server may have carried out the request."""
        try:
            return await self.call(method, path, body=body, content_type=content_type)
        except Unreachable as silence:
            explain("APIServerUnreachable", str(silence))
            return None

    async def get(self, path: str, kind: type[T], params: Mapping[str, str] | None = None) -> T | None:
        """Read one object; None if there is none.

        Raises:
            Refused: Any other refusal.
            Malformed: It is not of the kind.
            Unreachable: No answer.
        """
        answer = await self.call("GET", path, params=params)
        if answer.status == 404:
            return None
        if not answer.ok:
            raise Refused(f"GET {path}", answer)
        return decoded(answer.body, kind, path)

    async def list(
        self, path: str, kind: type[T], *, params: Mapping[str, str] | None = None, page: int = 500
    ) -> tuple[list[T], str]:
        """Read all objects of a path: the items, and the version they are of. As `listing`, but unread objects are lost."""
        listing = await self.listing(path, kind, params=params, page=page)
        return listing.items, listing.version

    async def listing(
        self, path: str, kind: type[T], *, params: Mapping[str, str] | None = None, page: int = 500
    ) -> Listing[T]:
        """Read all objects of a path, in pages. The server makes a page while the one before it is decoded.

        Args:
            path: Of the collection.
            kind: Struct of one item.
            params: Selectors.
            page: Items of a request; 0 = all at once.

        Raises:
            Refused: The server refuses.
            Malformed: It is no list.
            Unreachable: No answer.
        """
        pages = msgspec.json.Decoder(ObjectList[kind])  # type: ignore[valid-type]
        for tries in range(1, LIST_TRIES + 1):
            size = page if tries < LIST_TRIES else 0
            query = dict(params or {}) | ({"limit": str(size)} if size else {})
            listing: Listing[T] = Listing()
            asked = asyncio.create_task(self.call("GET", path, params=query))
            try:
                while True:
                    answer = await asked
                    if answer.status == 410 and tries < LIST_TRIES:
                        break  # the continue token has expired: begin again
                    if not answer.ok:
                        raise Refused(f"GET {path}", answer)
                    metadata = _list_metadata(answer.body, path)
                    if metadata.next_page:
                        following = query | {"continue": metadata.next_page}
                        asked = asyncio.create_task(self.call("GET", path, params=following))
                        await asyncio.sleep(0)  # it is sent
                    try:
                        listing.items += pages.decode(answer.body).items or ()
                    except msgspec.MsgspecError:  # one of them, say
                        _collect(
                            kind, decoded(answer.body, ObjectList[msgspec.Raw], path).items or (), listing
                        )
                    listing.version = listing.version or metadata.resource_version
                    if not metadata.next_page:
                        self.skipped += len(listing.unread)
                        return listing
            finally:
                asked.cancel()  # if this one is broken off
        raise AssertionError("the last try returns or raises")

    async def stream(
        self, path: str, *, params: Mapping[str, str] | None = None, idle_s: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Read an answer piece by piece as it comes: a watch, a log. Each piece is all that has arrived.

        The first piece is empty, and says that the server has begun to answer.

        Args:
            path: As in `call`.
            params: Of the query.
            idle_s: A silence of so long is taken for a broken connection.

        Raises:
            Refused: The server refuses.
            Unreachable: No answer, silence, or an end in the middle.
        """
        self.calls[named("GET", path, params)] += 1
        headers = await self.connection.headers()
        pieces = self._sessions.stream(_target(path, params), headers, idle_s=idle_s or self.timeout_s)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if isinstance(piece, bytes):
                        yield piece
                        continue
                    if piece.status == 401 and self.connection.renew is not None:
                        await (
                            self.connection.renew()
                        )  # for the next time: a stream's reader comes again by itself
                    raise Refused(f"GET {path}", _answer(piece))
        except Lost as lost:
            raise Unreachable(f"GET {path}: {lost}", sent=lost.sent) from lost

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        content_type: str,
        params: Mapping[str, str] | None,
        timeout_s: float,
    ) -> Answer:
        """Send a request once, a write when it may be sent."""
        target = _target(path, params)
        reads = method == "GET"
        while True:
            while not (reads or self._may_write()):  # noqa: ASYNC110 - a clock decides, no event is set
                await asyncio.sleep(_PAUSE_S)
            headers = await self.connection.headers()
            async with self._turns:
                if not (reads or self._may_write()):
                    continue  # its turn came too late
                try:
                    if self._direct is not None:
                        head = self._preamble(headers)
                        raw = request(method, f"{self._prefix}{target}", head, body, content_type)
                        return _answer(await self._direct.ask(raw, timeout_s=timeout_s, repeatable=reads))
                    if body is not None:
                        headers = {**headers, "Content-Type": content_type}
                    return _answer(await self._sessions.ask(method, target, headers, body, timeout_s))
                except Lost as lost:
                    raise Unreachable(f"{method} {path}: {lost}", sent=lost.sent) from lost

    def _preamble(self, headers: Mapping[str, str]) -> bytes:
        """Header lines, made anew when the credentials change."""
        if headers != self._headers or not self._common:
            self._headers = dict(headers)
            self._common = preamble(self._host, {**self._headers, **_HEADERS})
        return self._common


def _target(path: str, params: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path


def _answer(reply: Reply) -> Answer:
    return Answer(reply.status, reply.body, _retry_after(reply.retry_after))


def decoded(body: bytes | msgspec.Raw, kind: type[T], what: str) -> T:
    """Decode JSON.

    Raises:
        Malformed: It is not of the kind.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Malformed(f"{what}: {error}") from error


def _list_metadata(body: bytes, what: str) -> ListMetadata:
    """The metadata of a page. API servers write them before the items, which then need not be gone through twice.

    Raises:
        Malformed: It is no list.
    """
    try:
        before = msgspec.json.decode(body[: body.find(b',"items":[')] + b"}", type=ObjectList[msgspec.Raw])
        if before.metadata.resource_version:
            return before.metadata
    except msgspec.MsgspecError:
        pass
    return decoded(body, ObjectList[msgspec.Raw], what).metadata


def _collect(kind: type[T], items: Iterable[msgspec.Raw], listing: Listing[T]) -> None:
    """Decode the items that can be decoded, and note the others."""
    for item in items:
        try:
            listing.items.append(msgspec.json.decode(item, type=kind))
        except msgspec.MsgspecError:
            try:
                metadata = msgspec.json.decode(item, type=OnlyMetadata).metadata
            except msgspec.MsgspecError:
                metadata = Metadata()
            listing.unread.append(metadata)


def _put_off(answer: Answer) -> float | None:
    """How long the server asks to wait before the same request; None if it has decided."""
    if answer.status == 429:
        return answer.retry_after_s if answer.retry_after_s is not None else 1.0
    if answer.status == 503:
        return answer.retry_after_s
    return None


def _retry_after(header: str) -> float | None:
    """Seconds. The form with a date is not used by API servers, and is as good as none."""
    return float(header) if header.isascii() and header.isdigit() else None


# ---- what an API server serves ----


async def served(client: Client, version: str) -> set[str] | None:
    """The kinds of a group and version (`resource.k8s.io/v1`); None if it is not served.

    Raises:
        Unreachable: No answer.
    """
    answer = await client.call("GET", f"/apis/{version}")
    if not answer.ok:
        return None
    return {each.kind for each in msgspec.json.decode(answer.body, type=_Resources).resources}


class _Resource(msgspec.Struct):
    kind: str


class _Resources(msgspec.Struct):
    resources: list[_Resource]
