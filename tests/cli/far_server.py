"""A server in a thread of its own, since the command line has a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from aiohttp.test_utils import TestServer
from fake_service import FakeService

from flowsched.api.routes import Limits
from flowsched.api.server import build_api


class Far:
    """A server in a thread of its own, as the command line has a loop of its own."""

    def __init__(self, token: str | None = None) -> None:
        self.service = FakeService()
        self.url = ""
        self._token = token
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: TestServer | None = None

    def __enter__(self) -> Far:
        self._thread.start()
        self.do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self.do(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Any) -> Any:
        """Run a coroutine over there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def soon(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        """Call something over there in a moment."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, call, *args)

    async def away(self, seconds: float) -> None:
        """Close its port, and open it again after so long."""
        assert self._server is not None
        port = self._server.port
        await self._server.close()
        await asyncio.sleep(seconds)
        await self._start(port)

    async def _start(self, port: int | None = None) -> None:
        limits = Limits(follow_seconds=0.01, keep_alive_seconds=0.1)
        self._server = TestServer(build_api(self.service, token=self._token, limits=limits), port=port)
        await self._server.start_server()
        self.url = str(self._server.make_url("")).rstrip("/")
