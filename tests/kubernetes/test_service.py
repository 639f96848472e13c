"""Whole workflows on Kubernetes: the service, a real API server, node agents, and hollow nodes that really run the commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.client.documents import read
from flowsched.cluster.kubernetes.agent.agent import FOLLOW_LOGS_S
from flowsched.cluster.kubernetes.api.client import Connection
from tests.kubernetes.exec_world import KubeWorld
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import Running, serving

pytestmark = pytest.mark.kubernetes

WORKFLOWS = Path(__file__).parent.parent.parent / "workflows"


@pytest.fixture
async def world(api: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    """Three nodes of four cores, each with an agent, that may take the example workflows' files."""
    nodes = [NodeTemplate(f"{namespace}-{number}", cpu="4") for number in range(3)]
    async with KubeWorld(api, namespace, tmp_path, nodes, roots=(WORKFLOWS,)) as world:
        yield world


@pytest.fixture
async def running(world: KubeWorld, tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(world.connection, world.settings(), tmp_path / "service") as running:
        yield running


async def leftovers(world: KubeWorld) -> list[str]:
    """What is left of a workflow in its namespace."""
    found = []
    for path in ("pods", "services"):
        answer = await world.client.call("GET", f"/api/v1/namespaces/{world.namespace}/{path}")
        found += [f"{path}/{item['metadata']['name']}" for item in json.loads(answer.body)["items"]]
    return found


async def outcome(running: Running, name: str) -> Any:
    """Submit one of the example workflows, and wait for its end."""
    submitted = await running.service.submit(read(WORKFLOWS / f"{name}.json"))
    view = await running.ended(submitted.id)
    if view.state != "SUCCEEDED":
        stages = await running.service.stages(submitted.id)
        told = [(stage.name, stage.state, stage.reason) for stage in stages]
        raise AssertionError(f"{name}: {view.state} {view.reason} {told}")
    return view


@pytest.mark.parametrize("name", ["hello-image", "spark-like"])
async def test_an_example_workflow_runs_to_its_end(running: Running, world: KubeWorld, name: str) -> None:
    """As on a local cluster, with the same document; and nothing of it is left in the namespace afterwards."""
    await outcome(running, name)

    async def nothing() -> bool:
        return not await leftovers(world)

    await running.until(nothing)


TALKS = {
    "name": "talks",
    "stages": [
        {"name": "say", "command": ["sh", "-c", "echo still here; sleep 300"], "resources": {"cpu": 1}}
    ],
}


async def said(running: Running, workflow: str) -> bytes:
    """What its first attempt has printed."""
    data, _ = await running.service.logs(workflow, "say", 0, stream="stdout", offset=0, limit=1000, attempt=0)
    return data


async def talking(running: Running) -> str:
    """A workflow with a task that has said something; its node's agent has had time to see that."""
    submitted = await running.service.submit(json.dumps(TALKS).encode())
    await running.until(lambda: said(running, submitted.id))
    await asyncio.sleep(3 * FOLLOW_LOGS_S)
    return submitted.id


async def test_the_log_of_a_cancelled_task_stays(running: Running) -> None:
    """Its pod is deleted, and with it the kubelet's files: the node's agent has kept them open."""
    workflow = await talking(running)
    await running.service.command(workflow, "cancel")
    await running.ended(workflow)
    await running.until(lambda: said(running, workflow))
    assert await said(running, workflow) == b"still here\n"


async def test_the_log_of_a_task_whose_pod_others_deleted_stays(running: Running, world: KubeWorld) -> None:
    """By kubectl delete pod: it ends by SIGTERM, the task is tried again, and its log can be read once the object is gone."""
    workflow = await talking(running)
    (pod,) = [name.removeprefix("pods/") for name in await leftovers(world) if name.startswith("pods/")]
    await world.client.call("DELETE", f"/api/v1/namespaces/{world.namespace}/pods/{pod}")

    async def tried_again() -> bool:
        return [each.reason for each in (await running.service.task(workflow, "say", 0)).attempts][:1] == [
            "PodDeleted"
        ]

    await running.until(tried_again)
    await running.service.command(workflow, "cancel")
    assert (await running.ended(workflow)).state == "CANCELLED"
    assert await leftovers(world) == []
    await running.until(lambda: said(running, workflow))
    assert await said(running, workflow) == b"still here\n"
