"""Applications of Spark's kind on a real API server with hollow nodes: who starts drivers until no executor has room.

The test plays the drivers: once one runs it makes its executors' pods, and once all of those run the application is done.
(Spark's own client and drivers are in `spark/`; the same on a virtual clock, with 104 applications, in `bench/spark.py`.)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.executor import ClusterSettings
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from tests.kubernetes.bound import container, create
from tests.kubernetes.conftest import require
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import serving

pytestmark = pytest.mark.kubernetes

APPLICATIONS, EXECUTORS = 10, 3
GROUPS = "/apis/scheduling.volcano.sh/v1beta1"
#: With a driver on every core nothing more can be expected to happen, as is seen after so long without a change.
STILL_S = 2.0
#: Where something should happen, it takes less than this on any machine.
START_S = 120.0
CORES = 8


@dataclass(slots=True)
class Drivers:
    """What drivers do, and what was seen of them.

    Attributes:
        asked: Applications whose driver runs and has made its executors.
        done: Applications all of whose executors ran.
        most: Drivers that ran at a time, at most.
        moved: When something happened last.
    """

    client: Client
    namespace: str
    scheduler: str
    asked: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    most: int = 0
    moved: float = field(default_factory=time.monotonic)

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def submit(self, name: str, *, reserved: bool) -> None:
        """An application: its PodGroup, if it has one, and its driver."""
        if reserved:
            room = {"minMember": 1, "minResources": {"cpu": str(1 + EXECUTORS)}}
            document = {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "PodGroup",
                "metadata": {"name": name},
                "spec": room,
            }
            path = f"{GROUPS}/namespaces/{self.namespace}/podgroups"
            answer = await self.client.call("POST", path, body=json.dumps(document).encode())
            assert answer.status == 201, answer
        await self.make(f"{name}-driver", name if reserved else None)

    async def make(self, pod: str, group: str | None) -> None:
        """A pod of one core that runs until it is deleted."""
        said = {} if group is None else {"scheduling.k8s.io/group-name": group}
        main = container("main", resources={"requests": {"cpu": "1"}})
        await create(self.client, self.namespace, pod, main, annotations=said, schedulerName=self.scheduler)

    async def look(self, *, reserved: bool) -> None:
        """What drivers do now."""
        pods, _ = await self.client.list(self.pods, Pod)
        runs = {pod.metadata.name for pod in pods if pod.status.phase == "Running"}
        drivers = {name.removesuffix("-driver") for name in runs if name.endswith("-driver")}
        self.most = max(self.most, len(drivers))
        for name in sorted(drivers - self.asked):
            self.asked.add(name)
            self.moved = time.monotonic()
            for number in range(EXECUTORS):
                await self.make(f"{name}-executor-{number}", name if reserved else None)
        for name in sorted(drivers - self.done):
            executors = [f"{name}-executor-{number}" for number in range(EXECUTORS)]
            if runs.issuperset(executors):
                self.done.add(name)
                self.moved = time.monotonic()
                for pod in (*executors, f"{name}-driver"):
                    await self.client.call("DELETE", f"{self.pods}/{pod}")

    async def run(self, *, reserved: bool) -> None:
        """Until all are done, or nothing has happened for a while although somebody waits for executors."""
        while len(self.done) < APPLICATIONS:
            await self.look(reserved=reserved)
            if time.monotonic() - self.moved > (
                STILL_S if len(self.asked) == CORES and not reserved else START_S
            ):
                return
            await asyncio.sleep(0.1)


@pytest.fixture
async def nodes(client: Client, namespace: str, crds: None) -> AsyncIterator[HollowNodes]:
    """Eight cores: room for two applications."""
    templates = [NodeTemplate(f"{namespace}-{number}", cpu="4") for number in range(2)]
    async with HollowNodes(client, templates, heartbeat_s=None) as hollow:
        yield hollow


async def test_min_resources_let_ten_applications_finish_on_room_for_two(
    api: Connection, client: Client, namespace: str, nodes: HollowNodes, tmp_path: Path
) -> None:
    """Never do three drivers run; each one's executors find the room that was kept for them."""
    settings = ClusterSettings(
        ReleaseSettings(namespace, "flowsched", "none", b"key", instance=namespace, scheduler_name=namespace)
    )
    drivers = Drivers(client, namespace, namespace)
    for number in range(APPLICATIONS):
        await drivers.submit(f"app-{number}", reserved=True)
    async with serving(api, settings, tmp_path):
        await drivers.run(reserved=True)
    assert len(drivers.done) == 10
    assert drivers.most == 2


async def test_the_stock_scheduler_starts_a_driver_on_every_core(
    control_plane: ControlPlane, client: Client, namespace: str, nodes: HollowNodes
) -> None:
    """Eight drivers run, and not one executor: nobody is done, and nothing happens any more."""
    require("kube-scheduler")
    # By a name of our own: pods without one, which other tests leave on this API server, would take the room of ours.
    drivers = Drivers(client, namespace, namespace)
    for number in range(APPLICATIONS):
        await drivers.submit(f"app-{number}", reserved=False)
    stock = await control_plane.scheduler(profiles=[{"schedulerName": namespace}])
    try:
        await drivers.run(reserved=False)
        pods, _ = await client.list(drivers.pods, Pod)
    finally:
        stock.kill()
    assert (drivers.most, len(drivers.asked), drivers.done) == (CORES, CORES, set())
    executors = [pod for pod in pods if "executor" in pod.metadata.name]
    assert len(executors) == 24
    assert all(not pod.spec.node_name for pod in executors)
