"""The agent's server: HTTP for the service, for other agents, and for the steps in pods; and the agent as a process.

Each route says its access: all clients (OPEN), clients with the bearer key (KEY), or clients with an order that was signed with
the other key (ORDER; the handler checks, since the order is in the body). A request that matches no route needs the key
too: a stranger does not learn which routes exist.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, Final

import msgspec
from aiohttp import web

from flowsched.cluster.kubernetes import orders
from flowsched.cluster.kubernetes.agent import metrics
from flowsched.cluster.kubernetes.agent.agent import Agent, Settings
from flowsched.cluster.kubernetes.agent.ledger import NoVolume, OtherOrder
from flowsched.cluster.kubernetes.agent.logs import BadName, PodId
from flowsched.cluster.kubernetes.agent.pods import Request
from flowsched.cluster.kubernetes.agent.streams import (
    LARGEST,
    LARGEST_STEP_REQUEST,
    BadRequest,
    FingerprintRequest,
    Keep,
    Orders,
    StepRequest,
    Streams,
    Wanted,
    body_of,
    number_of,
    uri_of,
)
from flowsched.cluster.kubernetes.agent.transfers import MOST_WAITING
from flowsched.cluster.kubernetes.agent_keys import bearer_of, signing_key_of
from flowsched.cluster.local.runner.safe_paths import Unsafe
from flowsched.errors import ConfigurationError
from flowsched.executor.protocol import Fingerprint, Transfer
from flowsched.log_lines import get_logger

log = get_logger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LONGEST_PIECE: Final = 4 << 20
#: How long requests that are under way may go on when the agent is stopped.
_LAST_S: Final = 2.0


class Policy(Enum):
    """The key that a route requires of a request."""

    OPEN = "nothing"
    KEY = "the agent key"
    ORDER = "a signed order"


class Server:
    """An agent's HTTP server.

    Args:
        agent: The agent that it serves.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._bearer = bearer_of(agent.settings.key).encode()
        self._signing = signing_key_of(agent.settings.key)
        self._streams = Streams(agent)
        self._policies = {(method, path): policy for policy, method, path, _ in self.routes}
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def routes(self) -> list[tuple[Policy, str, str, Handler]]:
        """Every route, and what a request needs in order to use it."""
        return [
            (Policy.OPEN, "GET", "/healthz", self._health),
            (Policy.OPEN, "GET", "/metrics", self._metrics),
            (Policy.KEY, "GET", "/v1/replicas", self._replicas),
            (Policy.KEY, "GET", "/v1/events", self._events),
            (Policy.KEY, "POST", "/v1/transfers", self._transfer),
            (Policy.KEY, "GET", "/v1/datasets", self._dataset),
            (Policy.KEY, "DELETE", "/v1/datasets", self._evict),
            (Policy.KEY, "POST", "/v1/fingerprints", self._fingerprints),
            (Policy.KEY, "GET", "/v1/logs", self._logs),
            (Policy.KEY, "POST", "/v1/logs/keep", self._keep),
            (Policy.KEY, "DELETE", "/v1/logs", self._expire),
            (Policy.ORDER, "POST", "/v1/pods/{uid}/inputs", self._inputs),
            (Policy.ORDER, "POST", "/v1/pods/{uid}/objects", self._object),
            (Policy.ORDER, "POST", "/v1/pods/{uid}/outputs", self._outputs),
            (Policy.KEY, "GET", "/v1/pods/{uid}/outputs", self._outcome),
        ]

    @property
    def readers(self) -> int:
        """How many read a dataset now."""
        return self._streams.readers

    async def open(self) -> None:
        """Listen.

        Raises:
            OSError: The address is taken, or not this node's.
        """
        app = web.Application(middlewares=[self._admit], client_max_size=LARGEST)
        for _, method, path, handler in self.routes:
            app.router.add_route(method, path, handler)
        settings = self._agent.settings
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_LAST_S, auto_decompress=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, settings.host, settings.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Listen no more."""
        self._streams.close()
        if self._runner is not None:
            await self._runner.cleanup()

    # --- admission -------------------------------------------------------------------------------------------

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request pass if its route's policy does, and turn refusals into answers."""
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else ""
        policy = self._policies.get((request.method, path), Policy.KEY)
        if policy is Policy.KEY and not self._has_key(request):
            return _problem(401, "send the header `Authorization: Bearer <key>` with the agents' bearer key")
        try:
            return await handler(request)
        except BadRequest as error:
            return _problem(error.status, str(error))
        except (orders.BadOrder, BadName) as error:
            return _problem(400, str(error))
        except OtherOrder as error:
            return _problem(403, str(error))
        except NoVolume as error:
            return _problem(404, str(error))
        except Unsafe as error:
            log.warning("unsafe path", path=request.path, why=str(error))
            return _problem(409, str(error))
        except OSError as error:
            log.warning("request failed", path=request.path, error=str(error))
            return _problem(503, str(error))

    def _has_key(self, request: web.Request) -> bool:
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        same = hmac.compare_digest(presented.strip().encode("utf-8", "surrogateescape"), self._bearer)
        return scheme.lower() == "bearer" and same

    # --- the node --------------------------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.StreamResponse:
        agent = self._agent
        body = {"node": agent.settings.node, "instance": agent.instance}
        return _json(body, 200 if agent.well else 503)

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=await metrics.text(self._agent, self._streams), content_type="text/plain")

    # --- datasets --------------------------------------------------------------------------------------------

    async def _replicas(self, _: web.Request) -> web.StreamResponse:
        news = self._agent.news
        replicas = [
            {"uri": e.uri, "size_bytes": e.size_bytes} for e in list(self._agent.cache.entries.values())
        ]
        partials = [
            {
                "uri": p.header.uri,
                "size_bytes": p.header.size_bytes,
                "version": p.header.version,
                "spans": p.spans,
            }
            for p in self._agent.cache.partials.all
        ]
        listing = {"instance": news.instance, "seq": news.seq, "replicas": replicas, "partials": partials}
        return _json(listing | {"cache_bytes": self._agent.cache.limit_bytes})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        after = number_of(request, "after", default=self._agent.news.seq)
        return await self._streams.events(request, after, request.query.get("instance"))

    async def _transfer(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, Orders)
        wanted = [self._order(each) for each in body.orders]
        coming = self._agent.transfers
        if coming.waiting + len(wanted) > MOST_WAITING:
            return _problem(429, f"{coming.waiting} transfers wait already; come back later")
        for order, url in wanted:
            coming.start(order, url)
        return _json({"accepted": len(wanted)}, 202)

    def _order(self, wanted: Wanted) -> tuple[Transfer, str]:
        """The order, and where the agent of its source is."""
        orders.check_uri(wanted.uri)
        size, offset = max(0, wanted.size_bytes), max(0, wanted.offset)
        source, url = (wanted.source.node, wanted.source.url) if wanted.source else (None, "")
        node = self._agent.settings.node
        order = Transfer(wanted.uri, size, node, source, offset, wanted.whole, version=wanted.version)
        return order, url

    async def _dataset(self, request: web.Request) -> web.StreamResponse:
        if "Range" in request.headers:
            return await self._streams.section(request, uri_of(request))
        return await self._streams.dataset(request, uri_of(request))

    async def _fingerprints(self, request: web.Request) -> web.StreamResponse:
        """The fingerprints of datasets as this node sees them: those from outside, and whole ones that tasks have made."""
        body = await body_of(request, FingerprintRequest)
        for uri in body.uris:
            orders.check_uri(uri)
        made = {uri for uri in body.uris if uri.startswith("flowsched:")}
        outside, identities = [uri for uri in body.uris if uri not in made], self._agent.identities
        found: dict[str, Fingerprint | str] = {}
        if body.sizes:
            sizes = await identities.placed_sizes(outside)
            found |= {uri: Fingerprint("", size_bytes=size) for uri, size in sizes.items()}
        else:
            found |= await identities.of(outside, by_content=body.by_content)
        for uri in made:
            entry = await asyncio.to_thread(self._agent.cache.find, uri)
            found[uri] = "this node does not have it" if entry is None else Fingerprint(uri)
        known = {uri: each for uri, each in found.items() if isinstance(each, Fingerprint)}
        unknown = {uri: each for uri, each in found.items() if not isinstance(each, Fingerprint)}
        return web.Response(
            body=msgspec.json.encode({"seen": known, "unknown": unknown}), content_type="application/json"
        )

    async def _evict(self, request: web.Request) -> web.StreamResponse:
        gone = await self._agent.evict(uri_of(request))
        if gone is None:
            return _problem(404, "this node has no such dataset")
        return web.Response(status=204) if gone else _problem(409, "a pod on this node uses it")

    # --- logs ------------------------------------------------------------------------------------------------

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        query, logs = request.query, self._agent.logs
        where = (query.get("container", "task"), query.get("stream", "stdout"))
        if "end" in query:
            pod = PodId(query.get("namespace", ""), query.get("pod", ""), query.get("uid", ""))
            length = number_of(request, "end", 0, LONGEST_PIECE)
            return _log_of(await asyncio.to_thread(logs.end, pod, *where, length), 0, more=False)
        window = (number_of(request, "offset", 0), number_of(request, "limit", 1 << 20, LONGEST_PIECE))
        if "name" in query:
            piece, more = await asyncio.to_thread(logs.read_named, query["name"], *where, *window)
        else:
            pod = PodId(query.get("namespace", ""), query.get("pod", ""), query.get("uid", ""))
            piece, more = await asyncio.to_thread(logs.read, pod, *where, *window)
        return _log_of(piece.data, piece.offset, more=more)

    async def _keep(self, request: web.Request) -> web.StreamResponse:
        body = await body_of(request, Keep)
        pods = [(PodId(each.namespace, each.pod, each.uid), each.name) for each in body.pods]
        for pod, _ in pods:
            _ = pod.folder  # all are checked before the first is copied
        copied = [await asyncio.to_thread(self._agent.logs.keep, pod, name) for pod, name in pods]
        there = [pod.uid for (pod, _), done in zip(pods, copied, strict=True) if done]
        return _json({"kept": there, "missing": [pod.uid for pod, _ in pods if pod.uid not in there]})

    async def _expire(self, request: web.Request) -> web.StreamResponse:
        before_ms = number_of(request, "before_ms")
        return _json({"removed": await asyncio.to_thread(self._agent.logs.expire, before_ms)})

    # --- pods ------------------------------------------------------------------------------------------------

    async def _inputs(self, request: web.Request) -> web.StreamResponse:
        order = await self._step_request(request, "inputs_path")
        return _or_pending(await self._agent.pods.prepare(order, self._agent.settings.long_poll_s))

    async def _object(self, request: web.Request) -> web.StreamResponse:
        order = await self._step_request(request, "inputs_path")
        answer = await self._agent.pods.write(order, lambda: request.transport is not None)
        return _problem(501, "this agent writes no objects") if answer is None else _json(answer)

    async def _outputs(self, request: web.Request) -> web.StreamResponse:
        order = await self._step_request(request, "work_path")
        return _or_pending(await self._agent.pods.publish(order, self._agent.settings.long_poll_s))

    async def _outcome(self, request: web.Request) -> web.StreamResponse:
        uid = request.match_info["uid"]
        page = self._agent.ledger.page(uid)
        if page is not None and page.outcome is not None:
            return _json(page.outcome)
        if self._agent.pods.is_busy(uid):
            return _or_pending(None)
        return _problem(404, "nothing is known of this pod's outputs")

    async def _step_request(self, request: web.Request, path: str) -> Request:
        """A step's request, if its order is signed."""
        body = await body_of(request, StepRequest, LARGEST_STEP_REQUEST)
        if not orders.is_signed(self._signing, body.order, body.signature):
            raise BadRequest(
                403,
                "this order was not signed with the agents' present key, or by a service of another version: "
                "let flowsched run the task again",
            )
        mounted: str = getattr(body, path)
        if not mounted.startswith("/") or len(mounted) > 4096 or any(ord(char) < 0x20 for char in mounted):
            raise BadRequest(400, f"{path} is no absolute path")
        order = await asyncio.to_thread(orders.read, body.order)
        return Request(request.match_info["uid"], body.order, order, mounted, body.delivered, body.file)


def _log_of(data: bytes, offset: int, *, more: bool) -> web.Response:
    headers = {"X-Flowsched-More": str(int(more)), "X-Flowsched-Offset": str(offset)}
    headers |= {"X-Content-Type-Options": "nosniff", "Content-Type": "application/octet-stream"}
    return web.Response(body=data, headers=headers)


def _or_pending(answer: dict[str, Any] | None) -> web.Response:
    """An answer, or that it takes its time: ask again."""
    return _json({"pending": True}, 202) if answer is None else _json(answer)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _problem(status: int, message: str) -> web.Response:
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    body = json.dumps({"message": message}).encode()
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


# ---- the process: from its settings to the signal that ends it ----


#: For work on files. asyncio's own six on two cores would all be busy while six large outputs reach the disk.
_THREADS: Final = 24


async def run(settings: Settings) -> None:
    """Run a node agent until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: It cannot start like this.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="files"))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    agent = Agent(settings)
    door = Server(agent)
    try:
        await agent.open()
        try:
            await door.open()
        except OSError as error:
            raise ConfigurationError(f"cannot listen on {settings.host}:{settings.port}: {error}") from error
        log.info(
            "agent ready",
            node=settings.node,
            url=f"http://{settings.host}:{door.port}",
            instance=agent.instance,
            datasets=len(agent.cache.entries),
            cached_bytes=agent.cache.used_bytes,
        )
        await stop.wait()
        log.info("agent stops", node=settings.node)
    finally:
        await door.close()
        await agent.close()
