"""What node agents measure reaches the engine: the whole service, a real API server, hollow nodes, an agent process on each.

Hollow nodes have no control groups and share this machine's disk and network, so each agent is shown a host made of files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Connection
from tests.kubernetes.exec_world import KubeWorld
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.host_world import Host
from tests.kubernetes.service_world import Running, serving

pytestmark = pytest.mark.kubernetes

MB = 1_000_000
NODES = ("node-0", "node-1")
RATES = {"flowsched.io/disk-rate": "500M", "flowsched.io/nic-rate": "100M"}


@pytest.fixture
def hosts(tmp_path: Path) -> dict[str, Host]:
    """By node, what its kernel says: nothing has been carried yet."""
    made = {name: Host(tmp_path / "hosts" / name, tmp_path) for name in NODES}
    for host in made.values():
        host.card(0, 0)
    return made


@pytest.fixture
async def world(
    api: Connection, namespace: str, hosts: dict[str, Host], tmp_path: Path
) -> AsyncIterator[KubeWorld]:
    nodes = [
        NodeTemplate(name, cpu="2", labels={"example.org/at": name}, annotations=RATES) for name in NODES
    ]
    shown = {name: [f"--host-root={host.root}"] for name, host in hosts.items()}
    async with KubeWorld(api, namespace, tmp_path, nodes, arguments=shown.__getitem__) as made:
        yield made


@asynccontextmanager
async def busy(host: Host) -> AsyncIterator[None]:
    """Others keep a node's disk busy with 250 MB/s, and its card with 50 MB/s that come."""
    loop = asyncio.get_running_loop()

    async def others() -> None:
        begun = loop.time()
        while True:
            ran = loop.time() - begun
            host.disk(int(ran * 250 * MB) // 1024 * 1024)
            host.card(int(ran * 50 * MB), 0)
            await asyncio.sleep(0.1)

    doing = asyncio.create_task(others())
    try:
        yield
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


def node_of(running: Running, name: str) -> Any:
    """What the engine knows of a node."""
    assert running.leader.dispatcher is not None
    snapshot = running.leader.dispatcher.state.cluster.snapshot
    return snapshot.info(snapshot.index[name])


async def test_what_others_use_leaves_less(world: KubeWorld, hosts: dict[str, Host], tmp_path: Path) -> None:
    """A quarter of the way to 250 and 50 MB/s with each measurement; the other node's disk and card are as they were."""
    async with serving(world.connection, world.settings(), tmp_path / "service") as running:
        async with busy(hosts["node-0"]):

            async def noticed() -> bool:
                node = node_of(running, "node-0")
                return bool(node.disk_busy_rate > 100 * MB and node.nic_in_busy_rate > 20 * MB)

            await running.until(noticed)
            node = node_of(running, "node-0")
            assert node.disk_budget < 400 * MB
            assert node.nic_in_left < 80 * MB
            assert node.nic_out_left == 100 * MB
            views = {view.name: sorted(view.others) for view in await running.service.nodes()}
            # Nodes that other tests made on the same API server are seen too.
            assert (views["node-0"], views["node-1"]) == (["disk", "network_in"], [])
        other = node_of(running, "node-1")
        assert (other.disk_budget, other.nic_in_left) == (500 * MB, 100 * MB)


async def uid_of_pod(world: KubeWorld) -> str:
    """Of the only pod of the tenant's namespace, once it is there."""
    path = f"/api/v1/namespaces/{world.namespace}/pods"
    async with asyncio.timeout(200):
        while True:
            items = json.loads((await world.client.call("GET", path)).body)["items"]
            if items:
                return str(items[0]["metadata"]["uid"])
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("outputs", [True, False])
async def test_what_a_task_moved_becomes_its_sample(
    world: KubeWorld, hosts: dict[str, Host], tmp_path: Path, outputs: bool
) -> None:
    """Read at its end while its last step waits; a task without outputs has no such step: what was measured last counts."""
    go = tmp_path / "go"
    stage: dict[str, Any] = {
        "name": "sort",
        "command": ["sh", "-c", f"while ! test -e {go}; do sleep 0.1; done; echo x > out"],
        "selector": {"example.org/at": "node-1"},
        "resources": {"cpu": 1, "memory": "16Mi"},
    }
    if outputs:
        stage["outputs"] = [{"name": "out", "path": "out"}]
    document = json.dumps({"name": "w", "stages": [stage]}).encode()
    async with serving(world.connection, world.settings(), tmp_path / "service") as running:
        workflow = (await running.service.submit(document)).id
        uid = await uid_of_pod(world)
        hosts["node-1"].pod(uid, 60 * MB, 40 * MB, cpu_ms=1_500)
        if not outputs:

            async def measured() -> bool:
                return running.cluster._agents.loads.used_by(uid)[0] >= 0

            await running.until(measured)
        go.touch()
        assert (await running.ended(workflow)).state == "SUCCEEDED"
        task = await running.service.task(workflow, "sort", 0)
        assert [attempt.usage["disk_bytes"] for attempt in task.attempts] == [100 * MB]
        assert running.leader.dispatcher is not None
        assert running.leader.dispatcher.state.work.estimates.disk_bytes("w", "sort") == 100 * MB
