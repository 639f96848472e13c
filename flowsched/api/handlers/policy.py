"""The scheduler's policy over HTTP: profile, plugins, snapshot."""

from __future__ import annotations

from aiohttp import web

from flowsched.api.handlers.workflows import answer
from flowsched.api.parameters import read_body
from flowsched.api.routes import Call, Query


async def get_profile(call: Call[Query]) -> web.Response:
    """The profile in force."""
    return answer(await call.service.policies.show())


async def put_profile(call: Call[Query]) -> web.Response:
    """Check a document; a good one is in force when this answers."""
    limits = call.serving.limits
    raw = await read_body(call.request, limits.small_body_bytes, limits)
    return answer(await call.service.policies.apply(raw))


async def list_plugins(call: Call[Query]) -> web.Response:
    """All plugins."""
    return answer(await call.service.policies.plugins())


async def get_snapshot(call: Call[Query]) -> web.Response:
    """The next cycle in one file."""
    raw = await call.service.policies.snapshot()
    name = {"Content-Disposition": 'attachment; filename="flowsched-snapshot.zip"'}
    return web.Response(body=raw, content_type="application/zip", headers=name)
