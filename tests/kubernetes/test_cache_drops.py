"""Caches that are too small for a workflow: the whole service, a real API server, hollow nodes, real agents with a limit."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flowsched.cluster.kubernetes.api.client import Connection
from tests.kubernetes.exec_world import KubeWorld
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import Running, serving

pytestmark = pytest.mark.kubernetes

MB = 1_000_000
SIZE = 3 * MB
SHARDS = 6
#: Two inputs and an output of two shards find room in it, not the 18 MB that are read and the 6 MB in between.
LIMIT = 8 * MB
#: What an agent writes beside its datasets: a few hundred bytes for each.
RECORDS = 100_000


@pytest.fixture
async def world(api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    nodes = [NodeTemplate(f"node-{number}", cpu="1") for number in range(2)]
    limit = [f"--cache-size={LIMIT}"]
    async with KubeWorld(api, namespace, tmp_path, nodes, arguments=lambda _: limit) as made:
        yield made


@pytest.fixture
def inputs(tmp_path: Path) -> list[bytes]:
    """Files from outside, one for each shard."""
    made = [os.urandom(SIZE) for _ in range(SHARDS)]
    for number, data in enumerate(made):
        (tmp_path / f"in-{number}").write_bytes(data)
    return made


def document(folder: Path) -> bytes:
    """Each shard reads 3 MB from outside and makes 1 MB, which a shard of the next stage reads; then all of what those say."""
    small = {"cpu": 1, "memory": "16Mi"}
    items = [str(number) for number in range(SHARDS)]
    stages: list[dict[str, Any]] = [
        {
            "name": "cut",
            "scatter": {"items": items},
            "command": ["sh", "-c", "head -c 1000000 $FLOWSCHED_INPUT_DATA > part"],
            "resources": small,
            "inputs": [{"name": "data", "uri": f"file://{folder}/in-{{item}}", "size": SIZE}],
            "outputs": [{"name": "part", "path": "part"}],
            "estimate": {"output": MB},
        },
        {
            "name": "sum",
            "scatter": {"items": items},
            "command": ["sh", "-c", "sha256sum < $FLOWSCHED_INPUT_PART | cut -c1-64 > sum"],
            "resources": small,
            "inputs": [
                {"name": "part", "from": "cut.part", "match": "index"},
                {"name": "data", "uri": f"file://{folder}/in-{{item}}", "size": SIZE},
            ],
            "outputs": [{"name": "sum", "path": "sum", "value": True}],
        },
    ]
    return json.dumps({"name": "drops", "stages": stages}).encode()


class Watched:
    """The most that each cache's folder and its agent's book have held so far."""

    def __init__(self, root: Path) -> None:
        self.caches = [root / "agents" / f"node-{number}" / "cache" for number in range(2)]
        self.most = [0, 0]
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            for number, folder in enumerate(self.caches):
                self.most[number] = max(self.most[number], await asyncio.to_thread(held, folder))
            await asyncio.sleep(0.05)

    async def end(self) -> list[int]:
        """What was seen."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.most


def held(folder: Path) -> int:
    """Bytes of the files below a folder; 0 where some came or went in between, of which there never was the sum."""
    before = files_of(folder)
    try:
        found = sum(os.stat(name).st_size for name in before)
    except OSError:
        return 0
    return found if files_of(folder) == before else 0


def files_of(folder: Path) -> set[str]:
    """All files below a folder."""
    return {os.path.join(where, name) for where, _, names in os.walk(folder) for name in names}


async def metric(running: Running, node: str, name: str) -> int:
    """One number of an agent's own."""
    url = running.cluster._agents.url(node)
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + " "))


async def sums(running: Running, workflow: str) -> list[str | None]:
    """What the last stage says."""
    tasks = [await running.service.task(workflow, "sum", shard) for shard in range(SHARDS)]
    return [(task.outputs[0].value or "").strip() if task.outputs else None for task in tasks]


async def right(running: Running, workflow: str, inputs: list[bytes]) -> None:
    """The workflow ends well, and says what it should."""
    view = await running.ended(workflow)
    told = [(stage.name, stage.state, stage.reason) for stage in await running.service.stages(workflow)]
    assert view.state == "SUCCEEDED", told
    assert await sums(running, workflow) == [hashlib.sha256(each[:MB]).hexdigest() for each in inputs]


async def test_a_workflow_that_does_not_fit_runs_to_its_end(
    world: KubeWorld, inputs: list[bytes], tmp_path: Path
) -> None:
    """Agents drop what is needed least, no cache holds more than it may, and no attempt fails for it.

    Where nothing else goes on a last copy may go that its producer can make again, once: then a part is cut twice.
    """
    async with serving(world.connection, world.settings(), tmp_path / "service") as running:
        watched = Watched(tmp_path)
        workflow = (await running.service.submit(document(tmp_path))).id
        await right(running, workflow, inputs)
        most = await watched.end()
        ends = [
            attempt.exit_code
            for name in ("cut", "sum")
            for shard in range(SHARDS)
            for attempt in (await running.service.task(workflow, name, shard)).attempts
        ]
        assert set(ends) == {0}
        assert 2 * SHARDS <= len(ends) <= 3 * SHARDS
        dropped = [
            await metric(running, f"node-{n}", "flowsched_agent_evicted_bytes_total") for n in range(2)
        ]
        # Nodes that other tests made on the same API server are seen too.
        nodes = [node for node in await running.service.nodes() if node.name in ("node-0", "node-1")]
    assert [node.cache_limit_bytes for node in nodes] == [LIMIT, LIMIT]
    assert sum(dropped) >= SHARDS * SIZE - 2 * LIMIT
    assert sum(node.evicted_bytes for node in nodes) >= SHARDS * SIZE - 2 * LIMIT
    assert max(most) <= LIMIT + RECORDS


async def test_an_agent_that_dies_while_caches_are_full(
    world: KubeWorld, inputs: list[bytes], tmp_path: Path
) -> None:
    """Its successor says what is there, drops that were not done included; the workflow goes on, within the limit."""
    async with serving(world.connection, world.settings(), tmp_path / "service") as running:
        watched = Watched(tmp_path)
        workflow = (await running.service.submit(document(tmp_path))).id

        async def dropping() -> bool:
            return any(node.evicted_bytes for node in await running.service.nodes())

        await running.until(dropping)
        await world.kill_agent(0)
        await right(running, workflow, inputs)
        most = await watched.end()
    assert max(most) <= LIMIT + RECORDS
