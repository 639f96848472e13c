"""Pods that only say they run, on a real API server and on the fake: hundreds of them, with the ends that were ordered."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.bound import (
    PATIENCE_S,
    bound,
    container,
    create,
    delete,
    ended,
    gone,
    pod,
    running,
    terminated,
)
from tests.kubernetes.fake import FakeApi, answering, status_body, when
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.registry import Registry
from tests.kubernetes.hollow.simulated import Fate
from tests.kubernetes.hollow.spec import Pod
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


async def test_a_simulated_pod_shows_the_states_of_a_real_one(server: Client, space: str) -> None:
    """It runs until it is deleted; sidecars run beside it, init containers have been done, all ends with the messages ordered."""
    node = f"{space}-n"
    out = {**container("stage-out"), "restartPolicy": "Always"}
    inits = [container("stage-in"), out]
    async with HollowNodes(server, [NodeTemplate(node)]):
        await bound(server, space, "p", node, container("main"), initContainers=inits)
        found = await running(server, space, "p")
        assert found["status"]["phase"] == "Running"
        assert terminated(found, "stage-in")["exitCode"] == 0
        assert "running" in found["status"]["initContainerStatuses"][1]["state"]
        await delete(server, space, "p")
        await gone(server, space, "p")
        said = marks(runtime="0", messages='{"stage-out": "told", "main": "me"}')
        await bound(server, space, "q", node, container("main"), initContainers=inits, annotations=said)
        found = await ended(server, space, "q")
        assert terminated(found, "stage-out")["message"] == "told"
        assert terminated(found)["message"] == "me"


async def test_a_simulated_pod_can_run_out_of_memory_and_of_time(server: Client, space: str) -> None:
    """The reasons that a real kubelet would give."""
    node = f"{space}-n"
    async with HollowNodes(server, [NodeTemplate(node)]):
        said = marks(runtime="10ms", exit_code="137", reason="OOMKilled")
        beside = {**container("beside"), "restartPolicy": "Always"}
        await bound(
            server, space, "memory", node, container("main"), annotations=said, initContainers=[beside]
        )
        await bound(server, space, "time", node, container("main"), activeDeadlineSeconds=1)
        found = await ended(server, space, "memory")
        assert terminated(found)["reason"] == "OOMKilled"
        assert terminated(found, "beside")["exitCode"] == 0
        found = await ended(server, space, "time")
        assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "DeadlineExceeded")


async def test_fates_can_be_given_by_a_function(server: Client, space: str) -> None:
    """For pods whose annotations are somebody else's."""
    node = f"{space}-n"
    fate = Fate(runtime_s=0.0, exit_code=9)
    async with HollowNodes(server, [NodeTemplate(node)], fate=lambda pod: fate):
        await bound(server, space, "p", node, container("main"))
        assert terminated(await ended(server, space, "p"))["exitCode"] == 9


async def test_pods_that_were_there_before_are_taken_up(server: Client, space: str) -> None:
    """Bound while there was no hollow process; deleted ones of them go."""
    node = f"{space}-n"
    await bound(server, space, "p", node, container("main"), annotations=marks(runtime="0"))
    await bound(server, space, "q", node, container("main"))
    await delete(server, space, "q", 60)
    async with HollowNodes(server, [NodeTemplate(node)]):
        await ended(server, space, "p")
        await gone(server, space, "q")


async def test_only_the_pod_that_ended_is_deleted(server: Client, space: str) -> None:
    """Not another one that has its name by now."""
    old = msgspec.convert(await create(server, space, "p", container("main")), Pod)
    await delete(server, space, "p")
    new = await create(server, space, "p", container("main"))
    await Registry(server, None).delete_pod(old)
    found = await pod(server, space, "p")
    assert found is not None
    assert found["metadata"]["uid"] == new["metadata"]["uid"]
    await Registry(server, None).delete_pod(msgspec.convert(new, Pod))
    assert await pod(server, space, "p") is None


async def test_nodes_can_be_added_and_looked_up(server: Client, space: str) -> None:
    """What was said of a node is what the API server has."""
    template = NodeTemplate(
        f"{space}-big",
        cpu="64",
        memory="256Gi",
        extended={"nvidia.com/gpu": "8"},
        labels={"topology.kubernetes.io/zone": "z1"},
        annotations={"flowsched.io/disk-rate": "1G"},
        taints=[{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}],
        images={"tool:1": 5_000_000},
    )
    async with HollowNodes(server, [NodeTemplate(f"{space}-n")]) as hollow:
        await hollow.add(template)
        node = await server.get(f"/api/v1/nodes/{space}-big", dict[str, Any])
        assert node is not None
        assert node["status"]["allocatable"] == {
            "cpu": "64",
            "memory": "256Gi",
            "ephemeral-storage": "100Gi",
            "pods": "110",
            "nvidia.com/gpu": "8",
        }
        assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "z1"
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == f"{space}-big"
        assert node["metadata"]["annotations"]["flowsched.io/disk-rate"] == "1G"
        assert node["spec"]["taints"] == [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}]
        assert node["status"]["images"] == [{"names": ["tool:1"], "sizeBytes": 5_000_000}]
        await bound(server, space, "p", f"{space}-big", container("main"), annotations=marks(runtime="0"))
        await ended(server, space, "p")


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
