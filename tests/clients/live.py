"""A service that really serves: a process of its own, its database, its local cluster, and a port that outlives it.

As under the supervisor of `flowsched serve`, the port is open while the service is dead: its clients wait, for however long a
start takes, and no connection is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.crash.harness import Nursery, ServiceProcess, processes_under

#: How long a start may take on a busy machine.
START_S = 120.0


class LiveService:
    """One service in its lives.

    Args:
        folder: For its root and its log.
        nursery: Where it is forked from.
        database: A PostgreSQL URL; None = SQLite in the root.
        path: Folders before PATH, for what its tasks call by name.
    """

    def __init__(
        self, folder: Path, nursery: Nursery, *, database: str | None = None, path: str | None = None
    ) -> None:
        self.root, self.log = folder / "root", folder / "service.log"
        self._nursery, self._database, self._path = nursery, database, path
        self._process: ServiceProcess | None = None
        self.port = nursery.listen()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self, failpoints: str = "") -> None:
        """Start it (again); it answers as soon as it can."""
        argv = ["serve", "--no-token", "--root", str(self.root)]
        argv += ["--nodes", "2", "--cpu", "8", "--memory", "16Gi", "--log-level", "warning"]
        argv += ["--images", "ignore"]  # recorded and real clients name images that no test machine has
        if self._database is not None:
            argv += ["--db", self._database]
        env = {"FLOWSCHED_FAILPOINTS": failpoints}
        if self._path is not None:
            env["PATH"] = f"{self._path}{os.pathsep}{os.environ['PATH']}"
        if self._process is not None:
            self._process.close()
        self._process = ServiceProcess(self._nursery.fork(argv, env, self.log, "", self.port))

    async def ready(self, *, may_die: bool = False) -> None:
        """Wait until it leads. With `may_die` also until it has died: a client that waits at its port reaches a failpoint first."""
        end = time.monotonic() + START_S
        async with aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientConnectionError, TimeoutError):
                    async with session.get(f"{self.url}/readyz", timeout=_timeout(10)) as answer:
                        if answer.status == 200:
                            return
                assert time.monotonic() < end, f"the service does not come up: {self.tail()}"
                assert self._process is not None
                if may_die and self._process.dead():
                    return
                assert not self._process.dead(), f"the service ended: {self.tail()}"
                await asyncio.sleep(0.02)

    async def died(self, within_s: float) -> bool:
        """Whether it dies by itself, as a failpoint lets it."""
        assert self._process is not None
        return await self._process.death(within_s)

    async def kill(self) -> None:
        """Kill -9."""
        assert self._process is not None
        assert not self._process.dead(), f"the service ended by itself: {self.tail()}"
        await self._process.kill()

    async def restart(self) -> None:
        """A planned restart: SIGTERM, and the next life on the same port."""
        assert self._process is not None
        await self._process.kill(signal.SIGTERM)
        self.start()
        await self.ready()

    async def end(self) -> None:
        """Leave nothing behind."""
        if self._process is not None:
            await self._process.kill()
            self._process.close()
        self._nursery.unlisten(self.port)
        for pid in processes_under(self.root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def tail(self) -> str:
        """The end of its log, for a failing test."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    async def get(self, path: str) -> Any:
        """A JSON answer."""
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()


@asynccontextmanager
async def live(
    folder: Path, nursery: Nursery, *, failpoints: str = "", **settings: Any
) -> AsyncIterator[LiveService]:
    """A service that is ready."""
    service = LiveService(folder, nursery, **settings)
    try:
        service.start(failpoints)
        await service.ready()
        yield service
    finally:
        await service.end()


def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds)
