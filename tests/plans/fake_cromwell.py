"""A Cromwell server that knows some runs, and notes what it was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer


class FakeCromwell:
    """Answers for the metadata of runs, as Cromwell 86 does: `submittedFiles` holds texts."""

    def __init__(self) -> None:
        self.runs: dict[str, tuple[str, dict[str, object], dict[str, str]]] = {}
        self.asked: list[str] = []
        self.answer: web.Response | None = None

    async def metadata(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        if self.answer is not None:
            return self.answer
        root = request.match_info["root"]
        if root not in self.runs:
            return web.json_response(
                {"status": "fail", "message": f"Unrecognized workflow ID: {root}"}, status=404
            )
        source, inputs, imports = self.runs[root]
        files = {
            "workflow": source,
            "root": "",
            "options": "{}",
            "inputs": json.dumps(inputs),
            "labels": "{}",
        }
        if imports:
            files["imports"] = imports  # type: ignore[assignment]
        return web.json_response({"submittedFiles": files, "id": root})


@asynccontextmanager
async def cromwell() -> AsyncIterator[tuple[FakeCromwell, str]]:
    """The server and its URL."""
    fake = FakeCromwell()
    application = web.Application()
    application.router.add_get("/api/workflows/v1/{root}/metadata", fake.metadata)
    async with TestServer(application) as server:
        yield fake, str(server.make_url("")).rstrip("/")
