"""A large dataset that three nodes of a real cluster read: the whole service, an agent on each node, a real HTTP origin."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.api.client import Connection
from tests.cluster.origin import RangeOrigin
from tests.kubernetes.exec_world import KubeWorld
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import Running, serving

pytestmark = pytest.mark.kubernetes

NODES = 3
PIECE = 64 << 10
SIZE = 20 * PIECE + 1000


@pytest.fixture
async def world(api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    nodes = [
        NodeTemplate(f"node-{number}", cpu="1", labels={"example.org/at": f"n{number}"})
        for number in range(NODES)
    ]
    async with KubeWorld(api, namespace, tmp_path, nodes) as made:
        yield made


@pytest.fixture
async def origin() -> AsyncIterator[RangeOrigin]:
    async with RangeOrigin(os.urandom(SIZE)) as made:
        yield made


def document(uri: str) -> bytes:
    """A task on each node that says which bytes it has read."""
    stages = [
        {
            "name": f"read-{n}",
            "command": ["sh", "-c", "sha256sum < $FLOWSCHED_INPUT_DATA | cut -c1-64 > sum"],
            "selector": {"example.org/at": f"n{n}"},
            "resources": {"cpu": 0.1, "memory": "16Mi"},
            "inputs": [{"name": "data", "uri": uri, "size": SIZE}],
            "outputs": [{"name": "sum", "path": "sum", "value": True}],
        }
        for n in range(NODES)
    ]
    return json.dumps({"name": "pieces", "stages": stages}).encode()


async def end_of(running: Running, workflow: str) -> tuple[str, list[str]]:
    """Its state, and why tasks failed."""
    view = await running.ended(workflow)
    tasks = [await running.service.task(workflow, f"read-{n}", 0) for n in range(NODES)]
    return view.state, [task.reason for task in tasks if task.reason]


async def read_by(running: Running, workflow: str) -> set[str | None]:
    """What the tasks have read."""
    tasks = [await running.service.task(workflow, f"read-{n}", 0) for n in range(NODES)]
    return {(task.outputs[0].value or "").strip() if task.outputs else None for task in tasks}


async def test_each_byte_comes_from_outside_once(
    world: KubeWorld, origin: RangeOrigin, tmp_path: Path
) -> None:
    """Agents give each other the pieces they have while they wait for the rest."""
    settings, folder = world.settings(), tmp_path / "service"
    async with serving(world.connection, settings, folder, piece_bytes=PIECE) as running:
        workflow = (await running.service.submit(document(origin.uri))).id
        assert await end_of(running, workflow) == ("SUCCEEDED", [])
        assert await read_by(running, workflow) == {hashlib.sha256(origin.data).hexdigest()}
        flows = running.cluster.flows()
    asked = sorted(number for number in origin.asked if number is not None)
    look = [0] * (len(asked) - 21)  # of one byte, for its version; none if no agent answered yet
    assert len(look) <= 1
    assert (origin.sent, asked) == (SIZE + len(look), [*look, *(n * PIECE for n in range(21))])
    assert {node: came for node, (came, _) in flows.items()} == {f"node-{n}": SIZE for n in range(NODES)}
    assert sum(gave for _, gave in flows.values()) == 2 * SIZE


async def test_an_agent_that_dies_in_the_middle(
    world: KubeWorld, origin: RangeOrigin, tmp_path: Path
) -> None:
    """The others go on from elsewhere; its successor has the pieces whose records say so, and gets the rest."""
    origin.held = 7 * PIECE
    settings, folder = world.settings(), tmp_path / "service"
    async with serving(world.connection, settings, folder, piece_bytes=PIECE) as running:
        workflow = (await running.service.submit(document(origin.uri))).id
        await origin.stopped.wait()
        await world.kill_agent(0)
        origin.held = None
        origin.go.set()
        assert await end_of(running, workflow) == ("SUCCEEDED", [])
        assert await read_by(running, workflow) == {hashlib.sha256(origin.data).hexdigest()}
    assert origin.sent < 2 * SIZE
