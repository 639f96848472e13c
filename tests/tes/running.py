"""A whole service on this machine: real processes, real files, container paths made real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flowsched import app
from flowsched.cluster.local.runner.namespace import refusal
from flowsched.cluster.local.settings import LocalSettings
from tests.tes.strict import check_full

FINAL = {"COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR", "CANCELED"}


@dataclass
class Running:
    """The service, and a session to it."""

    url: str
    session: aiohttp.ClientSession

    async def create(self, body: Any) -> str:
        async with self.session.post(f"{self.url}/ga4gh/tes/v1/tasks", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["id"])

    async def get(self, ident: str, view: str = "FULL") -> dict[str, Any]:
        async with self.session.get(
            f"{self.url}/ga4gh/tes/v1/tasks/{ident}", params={"view": view}
        ) as answer:
            assert (answer.status, answer.content_type) == (200, "application/json"), await answer.text()
            return check_full(await answer.json()) if view == "FULL" else dict(await answer.json())

    async def cancel(self, ident: str) -> None:
        async with self.session.post(f"{self.url}/ga4gh/tes/v1/tasks/{ident}:cancel") as answer:
            assert (answer.status, await answer.json()) == (200, {})

    async def until(self, ident: str, *states: str) -> dict[str, Any]:
        async with asyncio.timeout(200):
            while (task := await self.get(ident))["state"] not in (states or FINAL):
                assert task["state"] not in FINAL, task
                await asyncio.sleep(0.05)
        return task


def need_container_paths(folder: Path) -> None:
    """Skip where this machine lets nobody have paths of their own."""
    why = refusal(str(folder))
    if why:
        pytest.skip(f"no container paths here: {why}")


@asynccontextmanager
async def running(root: Path, **settings: Any) -> AsyncIterator[Running]:
    """Start it, and stop it at the end."""
    chosen = app.Settings(
        root=root,
        port=0,
        log_level="error",
        local=LocalSettings(cpu="4", memory="16Gi", images="ignore"),
        **settings,
    )
    async with app.running(chosen) as service, aiohttp.ClientSession() as session:
        yield Running(service.url, session)
