"""Pods that only say they run, on a real API server and on the fake: hundreds of them, with the ends that were ordered."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.bound import (
    PATIENCE_S,
    bound,
    container,
    ended,
    terminated,
)
from tests.kubernetes.fake import FakeApi, answering, status_body, when
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kubernetes)])
def plane(request: pytest.FixtureRequest) -> ControlPlane | None:
    """The real one, or None for the fake; not async, as the real one must not be started from within a loop."""
    return request.getfixturevalue("control_plane") if request.param == "real" else None


@pytest.fixture
async def server(plane: ControlPlane | None) -> AsyncIterator[Client]:
    """A client of either."""
    if plane is not None:
        async with Client(plane.connection()) as client:
            yield client
        return
    async with FakeApi() as fake, Client(fake.connection) as client:
        yield client


@pytest.fixture
async def space(server: Client) -> str:
    """A namespace."""
    name = f"s-{secrets.token_hex(4)}"
    body = json.dumps({"metadata": {"name": name}}).encode()
    assert (await server.call("POST", "/api/v1/namespaces", body=body)).status == 201
    return name


def marks(**values: str) -> dict[str, str]:
    """Annotations of a simulated pod."""
    return {f"flowsched.io/hollow-{name.replace('_', '-')}": value for name, value in values.items()}


async def test_two_hundred_pods_on_twenty_nodes_end(server: Client, space: str) -> None:
    """Every tenth fails, as ordered; all run on the node that they were bound to, with an address of their own."""
    templates = [NodeTemplate(f"{space}-{number}") for number in range(20)]
    async with HollowNodes(server, templates):
        async with asyncio.TaskGroup() as group:
            for number in range(200):
                code = "3" if number % 10 == 0 else "0"
                said = marks(runtime=f"{number % 7 * 20}ms", exit_code=code)
                node = templates[number % 20].name
                group.create_task(
                    bound(server, space, f"p{number}", node, container("main"), annotations=said)
                )
        end = time.monotonic() + PATIENCE_S
        while True:
            pods, _ = await server.list(f"/api/v1/namespaces/{space}/pods", dict[str, Any])
            phases = Counter(pod["status"]["phase"] for pod in pods)
            if phases == {"Succeeded": 180, "Failed": 20}:
                break
            assert time.monotonic() < end, phases
            await asyncio.sleep(0.1)
    assert len({pod["status"]["podIP"] for pod in pods}) == 200
    assert {pod["spec"]["nodeName"] for pod in pods} == {template.name for template in templates}
    failed = next(pod for pod in pods if pod["metadata"]["name"] == "p10")
    assert terminated(failed)["exitCode"] == 3


async def test_a_status_that_was_not_written_is_written_later() -> None:
    """A server that fails now and then hears of every pod's end all the same, also when its watch was cut."""
    async with FakeApi() as fake, Client(fake.connection) as client:
        body = json.dumps({"metadata": {"name": "s"}}).encode()
        assert (await client.call("POST", "/api/v1/namespaces", body=body)).status == 201
        async with HollowNodes(client, [NodeTemplate("n")]):
            statuses = when("patch", "pods/status")
            fake.faults.refuse(answering(statuses, 500, status_body(500, "etcd has gone")), times=5)
            fake.faults.drop(statuses, times=2)
            said = marks(runtime="50ms")
            for number in range(10):
                await bound(client, "s", f"p{number}", "n", container("main"), annotations=said)
                fake.cut_watches()
            for number in range(10):
                assert (await ended(client, "s", f"p{number}"))["status"]["phase"] == "Succeeded"
