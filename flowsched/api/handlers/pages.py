"""Health, the OpenAPI document, and static files of `web/`: the page (built into `web/dist`) and the API's description."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from typing import Final

from aiohttp import web

from flowsched.api.routes import PREFIX, Call, Query
from flowsched.errors import NotFound
from flowsched.version import VERSION

#: A browser may load only files that this server itself sends. No inline script or style anywhere.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: Where the page is.
UI: Final = "/ui"

LINKS: Final = {
    "ui": UI,
    "workflows": f"{PREFIX}/workflows",
    "queues": f"{PREFIX}/queues",
    "nodes": f"{PREFIX}/nodes",
    "events": f"{PREFIX}/events",
    "openapi": f"{PREFIX}/openapi.json",
    "docs": "/docs",
    "metrics": "/metrics",
    "livez": "/livez",
    "readyz": "/readyz",
}


async def get_livez(call: Call[Query]) -> web.Response:
    """Whether the loops are moving; not whether the port is open (an answer shows that by itself)."""
    alive, stuck = call.service.live()
    return _health(alive, stuck)


async def get_readyz(call: Call[Query]) -> web.Response:
    """Whether requests should come here."""
    if call.serving.draining.is_set():
        return _health(False, "draining: this server is about to stop")
    return _health(*call.service.ready())


def _health(well: bool, reason: str) -> web.Response:
    return web.Response(text=f"{reason}\n", status=200 if well else 503, content_type="text/plain")


async def get_metrics(call: Call[Query]) -> web.Response:
    """Metrics for Prometheus."""
    return web.Response(body=await call.service.metrics(), headers={"Content-Type": METRICS_TYPE})


async def get_openapi(call: Call[Query]) -> bytes:
    """All routes, as OpenAPI 3.1."""
    return await asyncio.to_thread(call.serving.openapi)


async def get_links(call: Call[Query]) -> object:
    """The links of the service: browsers go to the page, all other clients get JSON."""
    if wants_page(call.request):
        return to_page()
    return {"name": "flowsched", "version": VERSION, "links": LINKS}


def wants_page(request: web.Request) -> bool:
    """Whether a browser asks for the root. It cannot send a token: the page asks for one."""
    return request.path == "/" and "text/html" in request.headers.get("Accept", "")


def to_page() -> web.Response:
    """Where the page is."""
    return web.Response(status=302, headers={"Location": UI})


async def get_ui(call: Call[Query]) -> web.Response:
    """The page; where it has not been built, how to build it."""
    if _built("index.html") is None:
        return web.Response(body=asset("unbuilt.html"), content_type="text/html", charset="utf-8")
    return _of_ui("index.html", "text/html")


def _of_ui(name: str, media: str) -> web.Response:
    """A file of the page, packed in a thread for clients that can unpack."""
    body = _built(name)
    if body is None:
        raise NotFound("the page has not been built here: run `make ui`")
    response = web.Response(body=body, content_type=media, charset="utf-8", zlib_executor_size=4096)
    response.enable_compression()
    return response


def _built(name: str) -> bytes | None:
    """A file of the built page, read anew each time: `make ui` needs no restart."""
    path = files("flowsched").joinpath("web", "dist", name)
    return path.read_bytes() if path.is_file() else None


@cache
def asset(name: str) -> bytes:
    """A file of the package's `web` folder."""
    return files("flowsched").joinpath("web", name).read_bytes()


def built(name: str, media: str) -> Callable[[Call[Query]], Awaitable[web.Response]]:
    """The handler of a file of the built page."""

    async def get(_call: Call[Query]) -> web.Response:
        return _of_ui(name, media)

    return get


def file(name: str, media: str) -> Callable[[Call[Query]], Awaitable[web.Response]]:
    """The handler of a file of the package's `web` folder."""

    async def get(_call: Call[Query]) -> web.Response:
        return web.Response(body=asset(name), content_type=media, charset="utf-8")

    return get
