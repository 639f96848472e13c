"""Replicas: what only the leading process knows is asked of it, so that it does not matter which of them a client meets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import aiohttp
from aiohttp import web

from flowsched.api.parameters import read_body
from flowsched.api.routes import Limits, Process, Route
from flowsched.control.service import Service
from flowsched.errors import Unavailable

#: Set on what was forwarded: it is not forwarded again.
MARK: Final = "Flowsched-Forwarded"
_HEADERS: Final = ("Authorization", "Content-Type", "Accept", "Idempotency-Key")
_TIMEOUT_S: Final = 15.0
#: So long a standby waits for the leader with what it can answer itself.
_SHORT_S: Final = 2.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def forwarding(service: Service, limits: Limits, routes: Sequence[Route]) -> Any:
    """The middleware: a standby sends the requests of routes that need the leader on to it."""
    processes = {route.name: route.process for route in routes if not route.alias}

    @web.middleware
    async def forward(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = (request.match_info.route.name or "").partition(".")[0]
        process = processes.get(name, Process.ANY)
        if process is Process.ANY or MARK in request.headers:
            return await handler(request)
        url = await service.leader()
        if url is None:
            return await handler(request)
        if process is Process.LEADER:
            return await _ask(request, url, limits, _TIMEOUT_S)
        try:
            return await _ask(request, url, limits, _SHORT_S)
        except Unavailable:
            return await handler(request)

    return forward


async def _ask(request: web.Request, url: str, limits: Limits, timeout_s: float) -> web.Response:
    headers = {name: request.headers[name] for name in _HEADERS if name in request.headers} | {MARK: "1"}
    body = await read_body(request, limits.body_bytes, limits) if request.can_read_body else None
    timeout = aiohttp.ClientTimeout(timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                request.method,
                url.rstrip("/") + request.raw_path,
                data=body,
                headers=headers,
                allow_redirects=False,
            ) as answer,
        ):
            kind = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            return web.Response(status=answer.status, body=await answer.read(), headers=kind)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unavailable(f"the leading process at {url} does not answer: ask again in a moment") from error
