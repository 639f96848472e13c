"""Cromwell reaches the service in two ways, over TES and by the commands of its config backend: a plan means the same in both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import flowsched
from flowsched import app
from flowsched.cli.cromwell_job import Job, Mounted, document
from flowsched.cluster.local.settings import LocalSettings

FIRST_RUN = "5a6b7c8d-0000-4000-8000-000000000001"
SECOND_RUN = "9c1d2e3f-0000-4000-8000-000000000002"
WDL = """version 1.0
workflow W {
  scatter (i in range(3)) { call Shard { input: i = i } }
  call First
  call Second { input: o = First.o }
}
task Shard { input { Int i } command {} }
task First { command {} output { Int o = 1 } }
task Second { input { Int o } command {} }"""


class Cromwell:
    """Cromwell as the service sees it.

    Args:
        way: "tes" or "config".
        folder: Its `root`, which its containers see at the same path.
    """

    def __init__(self, way: str, url: str, client: flowsched.Client, folder: Path) -> None:
        self._way, self._url, self._client, self._folder = way, url, client, folder

    async def start(self, run: str, call: str, command: str, shard: int | None = None) -> str:
        """Submit one call; its id here."""
        cwd = self._folder / "W" / run / f"call-{call}" / ("" if shard is None else f"shard-{shard}")
        script = cwd / "execution" / "script"
        script.parent.mkdir(parents=True)
        script.write_text(command + "\n")
        if self._way == "config":
            job = Job(
                name=f"cromwell_{run[:8]}_{call}",
                cwd=str(cwd),
                script=str(script),
                mounts=[Mounted(str(cwd), str(cwd))],
                cpu="1",
            )
            return (await self._client.submit(document(job))).id
        number = -1 if shard is None else shard
        task = {
            "name": f"W.{call}",
            "description": f"{run}:BackendJobDescriptorKey_CommandCallNode_W.{call}:{number}:1",
            "inputs": [
                {
                    "name": "commandScript",
                    "description": f"W.{call}.commandScript",
                    "path": str(script),
                    "url": str(script),
                }
            ],
            "executors": [{"image": "ubuntu", "command": ["/bin/bash", str(script)]}],
            "resources": {"cpu_cores": 1},
            "tags": {"workflow_id": run, "root_workflow_id": run},
        }
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self._url}/ga4gh/tes/v1/tasks", json=task) as answer,
        ):
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["id"])


def held_until(gate: Path) -> dict[str, Any]:
    """A workflow that keeps the one core until a file is there."""
    command = ["sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done"]
    return {"name": "held", "stages": [{"name": "held", "command": command, "resources": {"cpu": 1}}]}


def call_with(rank_ms: int) -> dict[str, Any]:
    """A call that says its rank itself."""
    stage = {"name": "s", "command": ["true"], "resources": {"cpu": 1}}
    call = {"run": "r", "node": f"W.c{rank_ms}", "rank_ms": rank_ms}
    return {"name": f"c{rank_ms}", "call": call, "stages": [stage]}


async def start_of(client: flowsched.Client, ident: str) -> datetime:
    """When the one task of a workflow that succeeds began."""
    assert (await client.wait(ident)).state == "SUCCEEDED"
    (moment,) = [task.started_at async for task in client.tasks(ident)]
    assert moment is not None
    return moment


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[app.Running]:
    settings = app.Settings(root=tmp_path / "root", port=0, local=LocalSettings(cpu="1", images="ignore"))
    async with app.running(settings) as running:
        yield running


@pytest.mark.parametrize("way", ["tes", "config"])
async def test_a_planned_call_passes_waiting_shards_in_a_second_run(
    service: app.Running, tmp_path: Path, way: str
) -> None:
    """The first run has taught how long its calls take; by that the plan of the second knows which is on the longest way."""
    async with flowsched.Client(service.url) as client:
        cromwell = Cromwell(way, service.url, client, tmp_path / "data")
        for call, command in (("Shard", "true"), ("First", "true"), ("Second", "sleep 4")):
            ident = await cromwell.start(FIRST_RUN, call, command, 0 if call == "Shard" else None)
            assert (await client.wait(ident)).state == "SUCCEEDED"
        await client.plan(WDL, inputs={}, run=SECOND_RUN)
        gate = tmp_path / "gate"
        held = await client.submit(held_until(gate))
        try:
            shards = [await cromwell.start(SECOND_RUN, "Shard", "true", shard) for shard in range(3)]
            first = await cromwell.start(SECOND_RUN, "First", "true")
        finally:
            gate.touch()
        await client.wait(held.id)
        begun = [await start_of(client, ident) for ident in (first, *shards)]
        said = json.loads(await client.document(first))["call"]
    assert said["node"] == "W.First"
    assert 4_000 <= said["rank_ms"] < 60_000
    assert min(begun) == begun[0], begun


@pytest.mark.parametrize("way", ["tes", "config"])
async def test_calls_that_come_before_their_plan_are_ordered_by_it(
    service: app.Running, tmp_path: Path, way: str
) -> None:
    """Cromwell's metadata come seconds after the first calls, or a client posts the plan: what still waits goes by it."""
    async with flowsched.Client(service.url) as client:
        cromwell = Cromwell(way, service.url, client, tmp_path / "data")
        gate = tmp_path / "gate"
        held = await client.submit(held_until(gate))
        try:
            shards = [await cromwell.start(FIRST_RUN, "Shard", "true", shard) for shard in range(3)]
            first = await cromwell.start(FIRST_RUN, "First", "true")
            await client.plan(WDL, inputs={}, run=FIRST_RUN)
        finally:
            gate.touch()
        await client.wait(held.id)
        begun = [await start_of(client, ident) for ident in (first, *shards)]
    assert min(begun) == begun[0], begun


async def test_a_restart_forgets_no_rank_of_a_call_that_came_before_its_plan(tmp_path: Path) -> None:
    """Its document says none, and nothing asks for it but the new term."""
    settings = app.Settings(root=tmp_path / "root", port=0, local=LocalSettings(cpu="1", images="ignore"))
    gate = tmp_path / "gate"
    try:
        async with app.running(settings) as running, flowsched.Client(running.url) as client:
            await client.submit(held_until(gate))
            cromwell = Cromwell("tes", running.url, client, tmp_path / "data")
            shard = await cromwell.start(FIRST_RUN, "Shard", "true", 0)
            first = await cromwell.start(FIRST_RUN, "First", "true")
            await client.plan(WDL, inputs={}, run=FIRST_RUN)
        async with app.running(settings) as running, flowsched.Client(running.url) as client:
            runs = running.service._leader.dispatcher.state.work.runs
            async with asyncio.timeout(120):
                while not runs[first].spec.call.rank_ms:
                    await asyncio.sleep(0.05)
            assert runs[first].spec.call.rank_ms > runs[shard].spec.call.rank_ms
            gate.touch()
            assert await start_of(client, first) < await start_of(client, shard)
    finally:
        gate.touch()


async def test_a_rank_below_the_minute_that_an_unknown_task_is_taken_for_counts(
    service: app.Running, tmp_path: Path
) -> None:
    """Calls of seconds, under names of which nothing was learned: the longest way still goes first."""
    gate = tmp_path / "gate"
    async with flowsched.Client(service.url) as client:
        held = await client.submit(held_until(gate))
        try:
            short, far = [await client.submit(call_with(rank_ms)) for rank_ms in (5_000, 30_000)]
        finally:
            gate.touch()
        await client.wait(held.id)
        assert await start_of(client, far.id) < await start_of(client, short.id)
