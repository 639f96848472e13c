"""Hand-over: flowsched releases, another scheduler places; where a pod really went is what counts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.api.client import Connection
from flowsched.cluster.kubernetes.executor import ClusterSettings
from flowsched.values import replace
from tests.kubernetes.conftest import require
from tests.kubernetes.exec_world import KubeWorld
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import serving

pytestmark = pytest.mark.kubernetes

DOCUMENT = {
    "name": "w",
    "stages": [
        {"name": "make", "scatter": {"count": 3}, "command": ["sh", "-c", "echo $FLOWSCHED_INDEX > p"],
         "outputs": [{"name": "p", "path": "p"}]},
        {"name": "join", "inputs": [{"name": "ps", "from": "make.p"}],
         "command": ["sh", "-c", "cat $(cat $FLOWSCHED_INPUT_PS) | sort | tr -d '\\n' > all"],
         "outputs": [{"name": "all", "path": "all", "value": True}]},
    ],
}  # fmt: skip


@pytest.fixture
async def world(api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    nodes = [NodeTemplate(f"node-{number}", cpu="2") for number in range(2)]
    async with KubeWorld(api, namespace, tmp_path, nodes) as world:
        yield world


async def test_the_stock_scheduler_places_what_we_release(
    control_plane: ControlPlane, world: KubeWorld, tmp_path: Path
) -> None:
    """Its choice, our data: inputs follow a pod to wherever it was put, and the nodes' room is counted there."""
    require("kube-scheduler")
    # By a name of our own: it places no pods that other tests leave on this API server.
    stock = await control_plane.scheduler(profiles=[{"schedulerName": "stock"}])
    try:
        release = replace(world.settings().release, hand_over="stock")
        settings = ClusterSettings(release, world.settings().agent_key)
        async with serving(world.connection, settings, tmp_path / "service") as running:
            submitted = await running.service.submit(json.dumps(DOCUMENT).encode())
            view = await running.ended(submitted.id)
            assert view.state == "SUCCEEDED", await running.service.explain(submitted.id)
            task = await running.service.task(submitted.id, "join", 0)
            assert [(output.name, output.value) for output in task.outputs] == [("all", "012")]
            state = running.leader.dispatcher.state if running.leader.dispatcher is not None else None
            assert state is not None
            assert not state.work.pods
    finally:
        stock.kill()
