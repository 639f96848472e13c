"""An HTTP server of one dataset that counts what it gives, changes it when told to, and can stop in the middle of a range."""

from __future__ import annotations

import asyncio
from types import TracebackType

from aiohttp import web
from aiohttp.test_utils import TestServer


class RangeOrigin:
    """Give `data` at `uri`.

    Attributes:
        asked: The first byte of each range asked for; None for the whole.
        sent: Bytes given.
        etag: Of what is given from now on; "" = it tells none, nor a time.
        ranges: Whether it gives ranges.
        held: A range that begins here stops at its middle until `go` is set.
        slow_s: How long each block of 64 KiB takes.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.etag, self.ranges = data, '"one"', True
        self.asked: list[int | None] = []
        self.sent = 0
        self.held: int | None = None
        self.go = asyncio.Event()
        self.stopped = asyncio.Event()
        self.slow_s = 0.0
        app = web.Application()
        app.router.add_get("/data.bin", self._give)
        self._server = TestServer(app)

    async def __aenter__(self) -> RangeOrigin:
        await self._server.start_server()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go.set()
        await self._server.close()

    @property
    def uri(self) -> str:
        return str(self._server.make_url("/data.bin"))

    async def _give(self, request: web.Request) -> web.StreamResponse:
        asked = request.http_range if "Range" in request.headers and self.ranges else None
        first, last = (0, len(self.data)) if asked is None else (asked.start, min(asked.stop, len(self.data)))
        data, headers = self.data, {"ETag": self.etag} if self.etag else {}
        self.asked.append(None if asked is None else first)
        if asked is not None:
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{len(data)}"
        answer = web.StreamResponse(status=200 if asked is None else 206, headers=headers)
        answer.content_length = last - first
        await answer.prepare(request)
        middle = (first + last) // 2 if first == self.held else last
        for start, end in ((first, middle), (middle, last)):
            for at in range(start, end, 65_536):
                block = data[at : min(end, at + 65_536)]
                await answer.write(block)
                self.sent += len(block)
                await asyncio.sleep(self.slow_s)
            if end == middle and middle < last:
                self.stopped.set()
                await self.go.wait()
        return answer
