"""A Cromwell server that knows some runs, and notes what it was asked. It answers as a real one did (93, develop of 2026)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer


class FakeCromwell:
    """Answers for the metadata of runs: `submittedFiles` holds texts, and imports of draft-2 workflows only.

    A run is not known at once: Cromwell writes metadata some seconds after a submission, and of a workflow that was submitted by
    URL the source after the rest. `early` has what is answered first of all: 404, or an answer without the source.
    """

    def __init__(self) -> None:
        self.early: list[int] = []
        self.runs: dict[str, tuple[str, dict[str, object], dict[str, str]]] = {}
        self.asked: list[str] = []
        self.answer: web.Response | None = None
        self.statuses: dict[str, str] = {}
        self.failures: list[dict[str, object]] = []

    async def status(self, request: web.Request) -> web.Response:
        root = request.match_info["root"]
        self.asked.append(request.path_qs)
        if root not in self.statuses:
            return web.json_response(
                {"status": "fail", "message": f"Unrecognized workflow ID: {root}"}, status=404
            )
        return web.json_response({"status": self.statuses[root], "id": root})

    async def metadata(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        if self.answer is not None:
            return self.answer
        if request.query.get("includeKey") == "failures":
            return web.json_response({"failures": self.failures, "id": request.match_info["root"]})
        root = request.match_info["root"]
        first = self.early.pop(0) if self.early else None
        if first == 200:
            return web.json_response({"submittedFiles": {"inputs": "{}", "workflowUrl": "x.wdl"}, "id": root})
        if root not in self.runs or first == 404:
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
        if imports and not source.startswith("version"):
            files["imports"] = imports  # type: ignore[assignment]
        return web.json_response({"submittedFiles": files, "id": root})


@asynccontextmanager
async def cromwell() -> AsyncIterator[tuple[FakeCromwell, str]]:
    """The server and its URL."""
    fake = FakeCromwell()
    application = web.Application()
    application.router.add_get("/api/workflows/v1/{root}/metadata", fake.metadata)
    application.router.add_get("/api/workflows/v1/{root}/status", fake.status)
    async with TestServer(application) as server:
        yield fake, str(server.make_url("")).rstrip("/")
