"""The API over the real service with pods that are timers, for tools that read its description and then try everything."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestServer

from flowsched.api.server import build_api
from flowsched.workflow.views import EventView
from tests.cluster.fake import FakeProcesses
from tests.service.processes import process
from tests.soak import worlds

#: An event stream that has been silent for so long ends: a tool waits for the end of every answer.
SILENCE_S = 0.05
#: Examples per operation and phase.
EXAMPLES, SEED = str(worlds(3, 50)), "1"
ROOT = Path(__file__).parents[2]


class EndingStreams:
    """A service whose event streams end when there is nothing more to tell, as they do when it drains."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def events(
        self, workflow: str | None, after: int, *, follow: bool = True
    ) -> AsyncIterator[Sequence[EventView]]:
        batches = self._service.events(workflow, after, follow=follow)
        try:
            while True:
                yield await asyncio.wait_for(anext(batches), SILENCE_S)
        except (TimeoutError, StopAsyncIteration):
            return
        finally:
            await batches.aclose()


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[TestServer]:
    """The whole API on a socket; pods run for a moment."""
    url = f"sqlite:///{folder / 'flowsched.db'}"
    async with process(url, folder, FakeProcesses()) as made:
        made.lead()
        await made.ready()
        async with TestServer(build_api(EndingStreams(made.service))) as server:
            yield server


async def schemathesis(
    folder: Path, *arguments: str, hooks: str, rules: Path | None = None
) -> tuple[int | None, str]:
    """Run it with a fixed seed, so that a red run is about the change; its exit code, and what it said."""
    command = [sys.executable, "-m", "schemathesis.cli"]
    command += [] if rules is None else ["--config-file", str(rules)]
    command += [
        "run",
        *arguments,
        "--max-examples",
        EXAMPLES,
        "--seed",
        SEED,
        "--generation-database",
        "none",
    ]
    command += [
        "--request-timeout",
        "120",
        "--continue-on-failure",
        "--no-color",
        "--suppress-health-check",
        "too_slow",
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": hooks, "PYTHONPATH": str(ROOT)}
    tool = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        told = (await tool.communicate())[0].decode(errors="replace")
    finally:
        if tool.returncode is None:
            tool.kill()
    return tool.returncode, told
