"""The answers of a service before it has a root: that it lives, and why it waits. It has neither a database nor a token yet."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from flowsched.api.connections import Connections
from flowsched.api.server import counted, runner_of
from flowsched.listening import BACKLOG

_RETRY_S = "5"


@asynccontextmanager
async def waiting(sockets: Sequence[socket.socket], why: str) -> AsyncIterator[None]:
    """Answer on some sockets while the block runs. The sockets stay open after it.

    Args:
        sockets: The service listens on them.
        why: The reason of the wait, in words.
    """

    async def live(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def other(_request: web.Request) -> web.Response:
        return web.Response(status=503, text=f"{why}\n", headers={"Retry-After": _RETRY_S})

    connections = Connections()
    app = web.Application(middlewares=[counted(connections)])
    app.router.add_get("/livez", live)
    app.router.add_route("*", "/{path:.*}", other)
    runner = runner_of(app)
    await runner.setup()
    assert runner.server is not None
    servers: Sequence[asyncio.Server] = ()
    try:
        servers = await connections.listen(runner.server, [sock.dup() for sock in sockets], BACKLOG)
        yield
    finally:
        for server in servers:
            server.close()
        await runner.cleanup()
