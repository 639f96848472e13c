"""A stub API server beside a bench, on a core of its own, and what is asked of it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from processes import Process, kubeconfig_of
from stub import Facts

HERE = Path(__file__).resolve().parent
#: The machine's cores: the stub's, and that of who is measured.
STUB_CORE, OUR_CORE = 0, 1


class Stub(Process):
    """`stub.py` in a process."""

    def __init__(self, folder: Path, nodes: int, pods_per_node: int) -> None:
        command = [sys.executable, str(HERE / "stub.py"), "--nodes", str(nodes)]
        command += ["--pods-per-node", str(pods_per_node), "--core", str(STUB_CORE)]
        super().__init__(command, folder / "stub.log")
        self.folder = folder
        self.url = ""

    async def ready(self) -> Path:
        """Wait until it listens; its kubeconfig."""
        self.start()
        assert self.child is not None
        assert self.child.stdout is not None
        line = await asyncio.to_thread(self.child.stdout.readline)
        self.url = line.decode().strip()
        if not self.url:
            raise SystemExit(f"no stub: {self.tail()}")
        return kubeconfig_of(self.url, self.folder / "kubeconfig")

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> Facts:
        """`/stub/...`."""
        timeout = aiohttp.ClientTimeout(total=600)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{self.url}{path}", data=msgspec.json.encode(body or {})) as answer,
        ):
            return msgspec.json.decode(await answer.read(), type=Facts)

    async def until_bound(self, pods: int, patience_s: float) -> Facts:
        """Wait for so many bindings."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + patience_s
        while (await self.ask("/stub/count")).bound < pods and loop.time() < ends:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.25)
        return await self.ask("/stub/facts")
