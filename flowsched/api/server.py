"""The API as an aiohttp application: the route table behind two middlewares, problems and access.

It knows the service only as `Facade`. Listening is done by whoever runs it (`app`): this module opens no
socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from flowsched.api.access import admit, policy_of
from flowsched.api.forwarding import forwarding
from flowsched.api.openapi import openapi
from flowsched.api.pages import CONTENT_SECURITY_POLICY
from flowsched.api.parameters import decode_query
from flowsched.api.problems import Handler, problems
from flowsched.api.routes import Call, Limits, Policy, Route, Serving
from flowsched.api.table import ALIASES, ROUTES
from flowsched.control.facade import Facade

#: An id has no colon: `tasks/{id}:cancel` is not the id of a task.
_ID: Final = "{id:[^{}/:]+}"


def build_api(
    facade: Facade,
    *,
    token: str | None = None,
    limits: Limits | None = None,
    routes: Sequence[Route[Any]] = ROUTES,
) -> web.Application:
    """Wire the routes to a service.

    Without a token only loopback names are answered (see `access`), so whoever binds another address must
    give one. On the application's shutdown `/readyz` turns 503 and streams end, so that open requests can be
    waited for.

    Args:
        facade: The service.
        token: What clients must send as `Authorization: Bearer`; None asks for nothing.
        limits: What one request may cost.
        routes: The table.
    """
    serving = Serving(facade, limits or Limits(), token, openapi(routes))
    served = (*routes, *ALIASES) if routes is ROUTES else routes
    policies = {(route.method, route.path): route.policy for route in served}
    application = web.Application(
        middlewares=[problems, _access(policies, token), forwarding(facade)],
        client_max_size=serving.limits.body_bytes,
    )
    for route in served:
        handler = _bound(route, serving)
        path = route.path.replace("{id}", _ID)
        application.router.add_route(route.method, path, handler, name=route.name)
        if route.policy is Policy.OPEN:
            application.router.add_route("HEAD", path, handler)
    application.on_response_prepare.append(_secure)

    async def drain(_: web.Application) -> None:
        serving.draining.set()

    application.on_shutdown.append(drain)
    return application


def _bound(route: Route[Any], serving: Serving) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await route.handler(Call(request, serving, decode_query(request.query, route.query)))

    return handle


def _access(policies: Mapping[tuple[str, str], Policy], token: str | None) -> Any:
    @web.middleware
    async def access(request: web.Request, handler: Handler) -> web.StreamResponse:
        admit(policy_of(request, policies), token, request.method, request.headers)
        return await handler(request)

    return access


async def _secure(_: web.Request, response: web.StreamResponse) -> None:
    """What every answer says to browsers."""
    headers = response.headers
    headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cache-Control"] = "no-store"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
