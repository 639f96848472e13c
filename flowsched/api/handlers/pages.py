"""Health, the OpenAPI document, and a few static files, which lie in `web/` and are read once, as data."""

from __future__ import annotations

import html
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec
from aiohttp import web

from flowsched.api.routes import PREFIX, Call, Query
from flowsched.version import VERSION

#: What a browser may load: only what this server itself sends. No inline script or style anywhere.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

LINKS: Final = {
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
    alive, stuck = call.facade.live()
    return _health(alive, stuck)


async def get_readyz(call: Call[Query]) -> web.Response:
    """Whether requests should come here."""
    if call.serving.draining.is_set():
        return _health(False, "draining: this server is about to stop")
    return _health(*call.facade.ready())


def _health(well: bool, said: str) -> web.Response:
    return web.Response(text=f"{said}\n", status=200 if well else 503, content_type="text/plain")


async def get_metrics(call: Call[Query]) -> web.Response:
    """Metrics for Prometheus."""
    return web.Response(body=await call.facade.metrics(), headers={"Content-Type": METRICS_TYPE})


async def get_openapi(call: Call[Query]) -> web.Response:
    """All routes, as OpenAPI 3.1."""
    return web.Response(body=call.serving.openapi, content_type="application/json")


async def get_links(call: Call[Query]) -> web.Response:
    """What there is: as a page for browsers, as JSON for all other clients."""
    if "text/html" in call.request.headers.get("Accept", ""):
        return web.Response(text=_links_page(), content_type="text/html")
    body = {"name": "flowsched", "version": VERSION, "links": LINKS}
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


@cache
def _links_page() -> str:
    entries = "".join(
        f'<li><a href="{html.escape(path)}">{html.escape(name)}</a></li>' for name, path in LINKS.items()
    )
    return asset("index.html").decode().replace("<!-- links -->", entries)


async def get_docs(call: Call[Query]) -> web.Response:
    """The OpenAPI document, readable."""
    return web.Response(body=asset("docs.html"), content_type="text/html", charset="utf-8")


async def get_docs_script(call: Call[Query]) -> web.Response:
    """The page's program."""
    return web.Response(body=asset("docs.js"), content_type="text/javascript", charset="utf-8")


async def get_docs_style(call: Call[Query]) -> web.Response:
    """The pages' style."""
    return web.Response(body=asset("docs.css"), content_type="text/css", charset="utf-8")


@cache
def asset(name: str) -> bytes:
    """A file of the package's `web` folder."""
    return files("flowsched").joinpath("web", name).read_bytes()
