"""GPUs beside the real kube-scheduler and the API server's own controller of claims: each sees what the other has given away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.objects.release import GpuSettings
from tests.kubernetes.conftest import require, running
from tests.kubernetes.device_world import API, Gpus, given, reserved, until, workflow
from tests.kubernetes.exec_world import make
from tests.kubernetes.hollow.controlplane import CONTROLLER_MANAGER, SCHEDULER, ControlPlane
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import serving

pytestmark = pytest.mark.kubernetes

SPACE = "tasks"


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    """One of this test's own, since a scheduler works on everything in it."""
    require(SCHEDULER, CONTROLLER_MANAGER)
    plane = running(ControlPlane())
    yield plane
    plane.stop()


@pytest.fixture
async def world(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Gpus]:
    release = {"gpu": GpuSettings(fractions="dra", driver=f"{SPACE}.gpu.test")}
    nodes = [NodeTemplate(f"{SPACE}-n", cpu="16")]
    async with Gpus(
        plane.connection(), SPACE, tmp_path, nodes, agents=False, agent_port=0, **release
    ) as world:
        await plane.scheduler()
        await plane.controller_manager(["resourceclaim-controller"])
        yield world


async def stranger(client: Client, driver: str) -> None:
    """A pod that asks for one device by a claim of its own, and is kube-scheduler's to place."""
    exactly = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": 1}
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "one", "exactly": exactly}]}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "theirs"},
        "spec": spec,
    }
    await make(client, f"{API}/namespaces/default/resourceclaims", claim)
    container = {
        "name": "main", "image": "x", "command": ["sleep", "600"], "resources": {"claims": [{"name": "gpu"}]},
    }  # fmt: skip
    spec = {
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "theirs"}],
        "terminationGracePeriodSeconds": 0,
    }
    await make(client, "/api/v1/namespaces/default/pods", {"metadata": {"name": "theirs"}, "spec": spec})


async def test_neither_gives_away_what_the_other_has(world: Gpus, tmp_path: Path) -> None:
    """Ours first, then kube-scheduler's, then ours again once that pod is gone; no claim of ours is left in the end."""
    client = world.client

    async def their_device() -> str:
        answer = await client.call("GET", f"{API}/namespaces/default/resourceclaims/theirs")
        status = json.loads(answer.body).get("status", {})
        return status["allocation"]["devices"]["results"][0]["device"] if "allocation" in status else ""

    async with serving(world.connection, world.settings(), tmp_path / "service") as running:
        nodes = running.cluster._view.nodes
        half = await running.service.submit(workflow(world.until_told("half"), 0.5))
        await until(lambda: live(world, 1))
        await stranger(client, world.driver)
        assert await until(their_device) == "gpu-b"

        async def one_is_left() -> bool:
            return nodes[world.node].gpu_millis == 1000

        await until(one_is_left)
        more = await running.service.submit(workflow(world.until_told("half"), 0.5))
        await until(lambda: live(world, 2))
        whole = await running.service.submit(workflow(world.until_told("whole"), 1))
        [ours] = (await world.claims()).values()
        assert (given(ours), len(reserved(ours))) == ("gpu-a", 2)
        await client.call("DELETE", "/api/v1/namespaces/default/pods/theirs")
        await until(lambda: live(world, 3))
        found = await world.claims()
        assert {name: given(each) for name, each in found.items()} == {
            world.claim(0): "gpu-a",
            world.claim(1): "gpu-b",
        }
        assert await their_device() == ""
        world.tell("half")
        world.tell("whole")
        for submitted in (half, whole, more):
            assert (await running.ended(submitted.id)).state == "SUCCEEDED"

        async def nothing() -> bool:
            return not await world.claims()

        await until(nothing)


async def live(world: Gpus, count: int) -> bool:
    """Whether so many tasks run."""
    phases = [each["status"]["phase"] for each in (await world.pods()).values()]
    return phases.count("Running") == count
