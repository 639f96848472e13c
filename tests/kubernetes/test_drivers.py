"""Applications of Spark's kind on a real API server with hollow nodes: as many drivers start as their executors have room.

The test plays the drivers: once one runs it makes its executors' pods, and once all of those run the application is done.
(Spark's own client and drivers are in `spark/`; the same on a virtual clock, with 104 applications, beside the stock scheduler, in
`bench/spark.py`.)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.executor import ClusterSettings
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from tests.kubernetes.bound import container, create
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import serving

pytestmark = pytest.mark.kubernetes

APPLICATIONS, EXECUTORS = 10, 3
GROUPS = "/apis/scheduling.volcano.sh/v1beta1"
PATIENCE_S = 300.0


@dataclass(slots=True)
class Drivers:
    """What drivers do, and what was seen of them.

    Attributes:
        asked: Applications whose driver runs and has made its executors.
        done: Applications all of whose executors ran.
        most: Drivers that ran at a time, at most.
    """

    client: Client
    namespace: str
    scheduler: str
    asked: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    most: int = 0

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def submit(self, name: str) -> None:
        """An application: its PodGroup, and its driver."""
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
        await self.make(f"{name}-driver", name)

    async def make(self, pod: str, group: str) -> None:
        """A pod of one core that runs until it is deleted."""
        said = {"scheduling.k8s.io/group-name": group}
        main = container("main", resources={"requests": {"cpu": "1"}})
        await create(self.client, self.namespace, pod, main, annotations=said, schedulerName=self.scheduler)

    async def look(self) -> None:
        """What drivers do now."""
        pods, _ = await self.client.list(self.pods, Pod)
        runs = {pod.metadata.name for pod in pods if pod.status.phase == "Running"}
        drivers = {name.removesuffix("-driver") for name in runs if name.endswith("-driver")}
        self.most = max(self.most, len(drivers))
        for name in sorted(drivers - self.asked):
            self.asked.add(name)
            for number in range(EXECUTORS):
                await self.make(f"{name}-executor-{number}", name)
        for name in sorted(drivers - self.done):
            executors = [f"{name}-executor-{number}" for number in range(EXECUTORS)]
            if runs.issuperset(executors):
                self.done.add(name)
                for pod in (*executors, f"{name}-driver"):
                    await self.client.call("DELETE", f"{self.pods}/{pod}")

    async def run(self) -> None:
        """Until all are done."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.done) < APPLICATIONS:
                await self.look()
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
        await drivers.submit(f"app-{number}")
    async with serving(api, settings, tmp_path):
        await drivers.run()
    assert len(drivers.done) == 10
    assert drivers.most == 2
