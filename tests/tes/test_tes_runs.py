"""Runs of engines over TES: what is learned of one task is known of the next of its kind, and one run is one workflow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from flowsched.api.server import build_api
from tests.cluster.fake import Outcome
from tests.service.processes import process
from tests.tes.conftest import NODES, Tes, World
from tests.tes.recordings import requests_of


def nextflow(name: str, own: int, reads: str = "/data/a", **more: Any) -> dict[str, Any]:
    """A task of nf-ga4gh 1.4.2, in the folder of this number."""
    folder = f"/data/work/{own:02x}/{own:030x}"
    files = {".command.sh": f"{folder}/.command.sh", ".command.run": f"{folder}/.command.run", "a": reads}
    return {
        "name": name,
        "executors": [{"image": "ubuntu:24.04", "command": ["bash", "-c", "bash /work/.command.run"]}],
        "inputs": [{"path": f"/work/{path}", "url": url} for path, url in files.items()],
        "outputs": [{"path": "/work/b", "url": f"{folder}/b"}],
        **more,
    }


async def estimate(tes: Tes, ident: str) -> str:
    """How long a task that waits is expected to take, as `explain` says it."""
    (said,) = await (await tes.api.get(f"/api/v1/workflows/{ident}/explain")).json()
    return str(said["estimate"])


@asynccontextmanager
async def serving(url: str, folder: Path, world: World) -> AsyncIterator[Tes]:
    """One life of the service."""
    async with process(url, folder, world.processes, clock=world.clock, nodes=NODES) as one:
        one.lead()
        await one.ready()
        async with TestClient(TestServer(build_api(one.service))) as api:
            yield Tes(api, one, world)


async def test_a_task_is_expected_to_take_as_long_as_others_of_its_process(
    url: str, world: World, tmp_path: Path
) -> None:
    """Eight of one process with names of their own, then one of a later run that waits; also after a restart."""
    world.outcome = lambda pod: Outcome(runtime_ms=300)
    huge = {"tags": {"workflow_id": "later"}, "resources": {"cpu_cores": 64}}
    async with serving(url, tmp_path, world) as tes:
        for number in range(8):
            await tes.until(
                await tes.create(nextflow(f"GROW (s{number})", number, f"/data/{number}")), "COMPLETE"
            )
        waits = await tes.create(nextflow("GROW (s8)", 8, **huge))
        other = await tes.create(nextflow("SHRINK (s8)", 9, **huge))
        assert re.match(r"runs for \d+ms, learned from 8; ", await estimate(tes, waits))
        assert (await estimate(tes, other)).startswith("runtime unknown")
    async with serving(url, tmp_path, world) as tes:
        assert re.match(r"runs for \d+ms, learned from 8; ", await estimate(tes, waits))


async def listed(tes: Tes) -> dict[str, tuple[int, int, str]]:
    """Of each workflow in the list: its stages, its tasks and its state."""
    page = await (await tes.api.get("/api/v1/workflows")).json()
    return {each["id"]: (each["stages"], each["tasks"], each["state"]) for each in page["workflows"]}


async def test_recorded_requests_of_engines_are_one_workflow_for_each_run(tes: Tes) -> None:
    """A process is a stage with shards. The recordings of Snakemake have no script, which names the run."""
    clients: Counter[str] = Counter()
    for line in requests_of("engines-2026-11.jsonl"):
        ident = await tes.create(line["request"])
        await tes.until(ident, "COMPLETE")
        clients[line["client"].partition("-")[0]] += 1
    assert clients == {"nextflow": 4, "sprocket": 6, "toil": 4, "cwl": 4, "snakemake": 2}
    runs = await listed(tes)
    assert len(runs) == 2 + 5 + 3 + 1 + 2
    assert runs["demo-1"] == (1, 3, "ENGINE")
    assert runs["sprocket-1cbrYJxejivW"] == (1, 2, "ENGINE")
    assert runs["cwl-tes-sPsGjA"] == (1, 4, "ENGINE")
    assert sorted(name for name in runs if name.startswith("toil-")) == [
        "toil-042c4ccbcc3e4352",
        "toil-22c1bd732284a3bb",
        "toil-bcb463e4e716c010",
    ]
