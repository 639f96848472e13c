"""The fake on a socket."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from aiohttp import web

from flowsched.cluster.kubernetes.api.client import Connection
from tests.kubernetes.fake.faults import Faults, Gate
from tests.kubernetes.fake.feed import Feed
from tests.kubernetes.fake.handling import Api
from tests.kubernetes.fake.replies import Refusal, Reply, status_body
from tests.kubernetes.fake.requests import Request

#: As the real one: a watch that names no end gets one between half an hour and an hour.
_WATCH_S = 1800.0


class FakeApi(Api):
    """An API server of this process, with knobs.

        async with FakeApi() as api, Client(api.connection) as client: ...

    Args:
        tokens: Bearer tokens that are let in; None = no token is needed.
        bookmark_s: How often a watch that allows it gets a bookmark.
        tls: Its certificate; None = plain HTTP.
        port: 0 = any that is free.
        settings: Of `Api`.

    Attributes:
        faults: What goes wrong at present.
        counts: How often which verb came for which resource: `("create", "pods/binding")`.
        silent: Whether watches are told nothing; see `silence`.
    """

    def __init__(
        self,
        *,
        tokens: set[str] | None = None,
        bookmark_s: float = 60.0,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.tokens = tokens
        self.bookmark_s = bookmark_s
        self._tls = tls
        self.faults = Faults()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.silent = False
        self._cuts: dict[asyncio.Event, tuple[asyncio.Event, web.BaseRequest]] = {}
        self._runner: web.ServerRunner | None = None
        self._port = port

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._cuts)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    @property
    def connection(self) -> Connection:
        """For a `Client`, with one of the tokens."""
        token = next(iter(self.tokens), "") if self.tokens else ""

        async def headers() -> Mapping[str, str]:
            return {"Authorization": f"Bearer {token}"} if token else {}

        return Connection(self.url, None, headers)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after a `stop` on the same port, with the same objects."""
        self._runner = web.ServerRunner(
            web.Server(self._serve, handler_cancellation=True), shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self._port, ssl_context=self._tls, reuse_address=True, backlog=1024
        )
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Listen no more; connections are refused, watches end."""
        self.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def cut_watches(self, reset: bool = False) -> int:
        """End all watches: as the real one does to slow readers (a clean end), or by a reset. Returns how many."""
        cuts = list(self._cuts.items())
        for cut, (wake, http) in cuts:
            if reset:
                _broken(http)
            cut.set()
            wake.set()
        return len(cuts)

    def silence(self) -> None:
        """Tell watches nothing from now on, and leave them open: a connection that is half open."""
        self.silent = True

    def speak(self) -> None:
        """Tell watches everything again, also what has happened meanwhile."""
        self.silent = False
        for wake, _ in self._cuts.values():
            wake.set()

    def compact(self) -> None:
        """Forget the past: watches from before now get 410, and lists cannot be continued."""
        self.store.compact()

    def freeze_lists(self, times: int | None = None) -> None:
        """From now on lists tell the present state, whatever happens (a stale cache): all, or so many of them."""
        self.frozen_lists = times
        self.frozen = {
            key: (collection.sorted_entries(), self.store.version)
            for key, collection in self.store.collections.items()
        }

    async def _serve(self, http: web.BaseRequest) -> web.StreamResponse:
        request = Request(
            http.method,
            http.path,
            http.query,
            await http.read() if http.can_read_body else b"",
            http.content_type,
            http.headers,
        )
        self.counts[request.verb, request.resource if request.plural else request.path] += 1
        if self.tokens is not None:
            given = http.headers.get("Authorization", "").removeprefix("Bearer ")
            if given not in self.tokens:
                return _response(Reply(401, status_body(401, "Unauthorized")))
        delay_s = self.faults.delay_s(request)
        # What is under way is carried out, also when the client has gone.
        if gate := self.faults.gate(request):
            reply = await asyncio.shield(asyncio.ensure_future(self._behind(gate, request)))
        elif delay_s:
            reply = await asyncio.shield(asyncio.ensure_future(self._later(delay_s, request)))
        else:
            reply = self._reply(request)
        if reply is not None:
            return _response(reply)
        if request.watching and not self.faults.drops(request):
            return await self._watch(http, request)
        return _broken(http)

    async def _later(self, delay_s: float, request: Request) -> Reply | None:
        await asyncio.sleep(delay_s)
        return self._reply(request)

    async def _behind(self, gate: Gate, request: Request) -> Reply | None:
        await gate.open.wait()
        reply = self._reply(request)
        gate.passed.set()
        return reply

    def _reply(self, request: Request) -> Reply | None:
        """The answer; None if there is none, or if it is a watch."""
        answer = self.faults.answer(request)
        if answer is not None:
            return Reply(*answer)
        if request.watching or self.faults.drops(request):
            return None
        reply = self.handle(request)
        return None if self.faults.loses(request) else reply

    async def _watch(self, http: web.BaseRequest, request: Request) -> web.StreamResponse:
        try:
            feed = Feed(self, request)
        except Refusal as refused:
            return _response(refused.reply)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(http)
        wake, cut = asyncio.Event(), asyncio.Event()
        collection = self.store.collection(feed.kind)
        collection.watchers.add(wake)
        self._cuts[cut] = (wake, http)
        try:
            await self._tell(request, response.write, feed, wake, cut)
        except ConnectionError:
            pass  # the client has gone, or was cut off
        finally:
            collection.watchers.discard(wake)
            del self._cuts[cut]
        return response

    async def _tell(
        self,
        request: Request,
        write: Callable[[bytes], Awaitable[None]],
        feed: Feed,
        wake: asyncio.Event,
        cut: asyncio.Event,
    ) -> None:
        """Write lines until the watch ends."""
        loop = asyncio.get_running_loop()
        given = float(request.query.get("timeoutSeconds") or 0)
        ends = loop.time() + (given or _WATCH_S * (1 + random.random()))
        bookmarks = request.query.get("allowWatchBookmarks") in ("1", "true")
        due = loop.time() + self.bookmark_s
        while not cut.is_set() and loop.time() < ends:
            wake.clear()
            lines = [] if self.silent else feed.take()
            if self.faults.lines is not None:
                lines = self.faults.lines(request, lines)
            if bookmarks and not feed.over and loop.time() >= due:
                due = loop.time() + self.bookmark_s
                lines += [] if self.silent else [feed.bookmark()]
            if lines:
                await write(b"".join(lines))
            if feed.over:
                return
            wait_s = min(ends, due) - loop.time() if bookmarks else ends - loop.time()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), max(0.0, wait_s))
        if bookmarks and not cut.is_set() and not self.silent:
            await write(feed.bookmark())


def _response(reply: Reply) -> web.Response:
    return web.Response(
        body=reply.body, status=reply.status, headers=reply.headers, content_type=reply.content_type
    )


def _broken(http: web.BaseRequest) -> web.Response:
    if http.transport is not None:
        http.transport.abort()
    return web.Response()
