"""The API as an aiohttp application: the route table behind two middlewares, problems and access.

`app` listens: this module opens no socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from aiohttp import web

from flowsched.api.access import admit, policy_of
from flowsched.api.connections import IDLE_SECONDS, PIECE_BYTES, Connections
from flowsched.api.forwarding import forwarding
from flowsched.api.handlers.pages import CONTENT_SECURITY_POLICY, to_page, wants_page
from flowsched.api.openapi import openapi
from flowsched.api.parameters import decode_query
from flowsched.api.problems import Handler, problems, refused
from flowsched.api.routes import Call, Limits, Policy, Route, Serving
from flowsched.api.table import ALIASES, ROUTES
from flowsched.control.service import Service
from flowsched.errors import Unauthorized, Unavailable
from flowsched.workflow.views import encode

#: An id has no colon: `tasks/{id}:cancel` is not the id of a task.
_ID: Final = "{id:[^{}/:]+}"


def build_api(
    service: Service,
    *,
    token: str | None = None,
    limits: Limits | None = None,
    routes: Sequence[Route] = ROUTES,
    connections: Connections | None = None,
) -> web.Application:
    """Wire the routes to a service.

    Without a token only loopback names are answered (see `access`), so a caller that binds another
    address must give one. On the application's shutdown `/readyz` turns 503 and streams end, so that open requests can be
    waited for.

    Args:
        service: Answers the routes.
        token: Clients must send it as `Authorization: Bearer`; None asks for nothing.
        limits: The most that one request may cost.
        routes: The table.
        connections: Its connections, where they are bounded.
    """

    @cache
    def document() -> bytes:
        return openapi(routes)

    serving = Serving(service, limits or Limits(), token, document)
    served = (*routes, *ALIASES) if routes is ROUTES else routes
    policies = {(route.method, route.path): route.access for route in served}
    application = web.Application(
        middlewares=[
            *([] if connections is None else [counted(connections)]),
            problems,
            _access(policies, token),
            forwarding(service, serving.limits, routes),
        ],
        client_max_size=serving.limits.body_bytes,
    )
    for route in served:
        _add(application.router, route, _bound(route, serving))
    application.on_response_prepare.append(_secure)

    async def drain(_: web.Application) -> None:
        serving.draining.set()

    application.on_shutdown.append(drain)
    return application


def _add(router: web.UrlDispatcher, route: Route, handler: Handler) -> None:
    """A route under its path, and under the same with a slash at its end, which some TES clients write.

    Each GET route answers HEAD too (RFC 9110), but for events, which go on for ever. Names of the other forms
    begin with the route's own, and a dot.
    """
    path = route.path.replace("{id}", _ID)
    methods = (route.method, "HEAD") if route.method == "GET" and route.tag != "events" else (route.method,)
    for method in methods:
        for end in ("", "/") if route.access is not Policy.OPEN and path != "/" else ("",):
            form = ".".join(["", *(["head"] if method == "HEAD" else []), *(["slash"] if end else [])])
            name = None if route.alias else route.name + form.rstrip(".")
            router.add_route(method, path + end, handler, name=name)


def _bound(route: Route, serving: Serving) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        made = await route.handler(Call(request, serving, decode_query(request.query, route.query)))
        if isinstance(made, web.StreamResponse):
            return made
        body = made if isinstance(made, bytes) else encode(made)
        return web.Response(body=body, content_type="application/json")

    return handle


def runner_of(application: web.Application) -> web.AppRunner:
    """The runner that serves an application: quiet, and without unpacking bodies.

    aiohttp unpacks a compressed body as it arrives, before any of us has seen the request: 200 KiB that become 200 MiB held the
    event loop for 0.4 s. `read_body` refuses such a request by its head.
    """
    return web.AppRunner(
        application,
        access_log=None,
        shutdown_timeout=2.0,
        keepalive_timeout=IDLE_SECONDS,
        auto_decompress=False,
    )


def counted(connections: Connections) -> Any:
    """A middleware that tells the connections when a request of theirs is being answered, and how large the answer is.

    It writes large answers itself, in pieces: aiohttp gives all of an answer to the transport, which copies what the client does
    not take at once.
    """

    @web.middleware
    async def serving(request: web.Request, handler: Handler) -> web.StreamResponse:
        with connections.serving(request.transport):
            response = await handler(request)
            body = response.body if isinstance(response, web.Response) and not response.compression else None
            transport = request.transport
            if not isinstance(body, bytes) or len(body) < PIECE_BYTES or transport is None:
                return response
            try:
                with connections.writing(transport, len(body)):
                    await _write(request, response, memoryview(body))
            except Unavailable as error:
                if (request.match_info.route.name or "").startswith("get_tes_task"):
                    transport.abort()  # its clients would give the task up
                return refused(request, error)
            except ConnectionError:
                transport.abort()
            return response

    return serving


async def _write(request: web.Request, response: web.StreamResponse, body: memoryview) -> None:
    """Write an answer in pieces, each when the client has taken most of the one before."""
    await response.prepare(request)
    for at in range(0, len(body) if request.method != "HEAD" else 0, PIECE_BYTES):
        await response.write(body[at : at + PIECE_BYTES])
    assert isinstance(response, web.Response)
    response.body = None  # what aiohttp would write at the end
    await response.write_eof()


def _access(policies: Mapping[tuple[str, str], Policy], token: str | None) -> Any:
    @web.middleware
    async def access(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            admit(policy_of(request, policies), token, request.method, request.headers)
        except Unauthorized:
            if wants_page(request):
                return to_page()  # it asks for the token
            raise
        return await handler(request)

    return access


async def _secure(_: web.Request, response: web.StreamResponse) -> None:
    """Add the headers that every answer has for browsers."""
    headers = response.headers
    headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cache-Control"] = "no-store"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
