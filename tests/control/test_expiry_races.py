"""Expiry beside workflows that end, begin or are asked to go on while it looks things up in the database."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from flowsched.app import Settings, now_ms, running
from flowsched.control.leading.retention import Expiry

pytestmark = pytest.mark.timeout(120)
FORMS = ["plain", "container"]
DAYS = 86_400_000


def document(form: str, gate: Path) -> bytes:
    """A workflow whose first stage leaves a dataset in a cache, and whose last one ends once `gate` is there."""
    wait = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    last: dict[str, Any] = {"name": "wait", "needs": ["write"]}
    if form == "plain":
        last["command"] = ["sh", "-c", wait]
    else:
        last["steps"] = [{"command": ["sh", "-c", wait]}]
    write = {
        "name": "write",
        "command": ["sh", "-c", "echo kept > out.txt"],
        "outputs": [{"name": "out", "path": "out.txt"}],
    }
    return json.dumps({"name": "race", "stages": [write, last]}).encode()


class GatedDatabase:
    """A database whose readers wait, once it is armed, until they are let through."""

    def __init__(self, database: Any) -> None:
        self._inner = database
        self.armed = False
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def rows_of(self, *given: Any) -> Any:
        if self.armed:
            self.reached.set()
            await self.opened.wait()
        return await self._inner.rows_of(*given)


class ArmingExecutor:
    """The executor, of which the last thing that is asked before datasets are looked up arms the gate."""

    def __init__(self, executor: Any, gated: GatedDatabase) -> None:
        self._inner, self._gated = executor, gated
        self.evicted: list[str] = []

    async def expire(self, expired: Any) -> int:
        removed = int(await self._inner.expire(expired))
        self._gated.armed = True
        return removed

    async def evict(self, uri: str, node: str) -> bool:
        self.evicted.append(uri)
        return bool(await self._inner.evict(uri, node))


async def ended(service: Any, ident: str) -> None:
    async for _ in service.events(ident, 0):
        pass


async def written(service: Any, ident: str) -> None:
    """Wait until the dataset of the first stage is known, and the last stage runs."""
    while True:
        stages = {stage.name: stage.counts for stage in await service.stages(ident)}
        if stages["write"].get("SUCCEEDED") == 1 and stages["wait"].get("RUNNING") == 1:
            return
        await asyncio.sleep(0.02)


async def content(service: Any, ident: str) -> bytes:
    data = await service.output(ident, "write", 0, "out")
    return b"".join([chunk async for chunk in data.chunks])


@pytest.mark.parametrize("form", FORMS)
async def test_what_ends_or_begins_while_expiry_looks_keeps_its_results(
    tmp_path: Path, database_url: str | None, form: str
) -> None:
    """One workflow lives on, one ends and one comes and ends while the database is asked who is known."""
    root = tmp_path / "root"
    settings = Settings(port=0, root=root, database=database_url, log_level="error", keep_days=0)
    async with running(settings) as up:
        service = up.service
        old = (await service.submit(document(form, Path("/")))).id
        await ended(service, old)
        between = now_ms() + 1
        lives = (await service.submit(document(form, tmp_path / "never"))).id
        ends = (await service.submit(document(form, tmp_path / "gate"))).id
        await written(service, lives)
        await written(service, ends)
        gated = GatedDatabase(service._database)
        executor = ArmingExecutor(up.executor, gated)
        dispatcher = service._leader.dispatcher
        expiry = Expiry(gated, dispatcher, executor, keep_days=30, clock=lambda: between + 30 * DAYS)  # type: ignore[arg-type]
        looking = asyncio.create_task(expiry.once())
        await gated.reached.wait()
        (tmp_path / "gate").touch()
        await ended(service, ends)
        begins = (await service.submit(document(form, Path("/")))).id
        await ended(service, begins)
        assert ends not in dispatcher.state.work.runs
        gated.opened.set()
        assert await looking == 1
        assert {uri.split("/")[0] for uri in executor.evicted} == {f"flowsched:{old}"}
        for ident in (lives, ends, begins):
            assert await content(service, ident) == b"kept\n"
        (tmp_path / "never").touch()
        await ended(service, lives)
