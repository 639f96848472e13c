"""The stock kube-scheduler asks flowsched: both are the real ones, before a real API server, with the configuration of `deploy/`.

Nodes have no kubelets: a pod is where it was bound. Where data lie is told to the engine as a node's agent would tell it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import flowsched
from flowsched.app import Running, Settings, running
from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.settings import KubernetesSettings
from flowsched.control.extender import BINDING, PROMISED, TO_COME
from flowsched.executor.protocol import ReplicaSeen
from tests.kubernetes.conftest import require
from tests.kubernetes.conftest import running as started
from tests.kubernetes.hollow.controlplane import ControlPlane

DEPLOY = Path(flowsched.__file__).parent.parent / "deploy"
TOKEN = "s3cret"
GB = 10**9
NODES = ("n0", "n1", "n2", "n3")
HOSTNAME = "kubernetes.io/hostname"
#: Far beyond what anything here takes, on a machine that is busy with other tests.
PATIENCE_S = 200.0

pytestmark = pytest.mark.kubernetes


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something in this process."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.02)


class Cluster:
    """Four nodes of four cores, flowsched and kube-scheduler."""

    def __init__(self, plane: ControlPlane, client: Client, up: Running) -> None:
        self.plane, self.client, self.up = plane, client, up

    async def make(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self.client.call("POST", path, body=json.dumps(document).encode())
        assert answer.ok, answer
        made: dict[str, Any] = json.loads(answer.body)
        return made

    async def pod(
        self,
        name: str,
        cpu: str = "100m",
        *,
        scheduler: str = "default-scheduler",
        node: str = "",
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """A pod; `node`: the only one that it selects."""
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
        spec: dict[str, Any] = {"schedulerName": scheduler, "containers": [container]}
        if node:
            spec["nodeSelector"] = {HOSTNAME: node}
        meta = {"name": name, "annotations": annotations or {}, "labels": labels or {}}
        await self.make("/api/v1/namespaces/default/pods", {"metadata": meta, "spec": spec})

    async def verdict(self, name: str) -> str:
        """The node it was bound to, or why kube-scheduler could not place it."""
        while True:
            found = await self.client.get(f"/api/v1/namespaces/default/pods/{name}", dict[str, Any])
            assert found is not None
            if "nodeName" in found["spec"]:
                return str(found["spec"]["nodeName"])
            for condition in found["status"].get("conditions", ()):
                if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
                    return str(condition["message"])
            await asyncio.sleep(0.05)

    async def bound(self, name: str) -> str:
        """The node it is bound to in the end."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                said = await self.verdict(name)
                if said in NODES:
                    return said
                await asyncio.sleep(0.05)

    async def placed(self, name: str, cpu: str = "100m", **more: Any) -> str:
        """What kube-scheduler makes of a pod."""
        await self.pod(name, cpu, **more)
        return await asyncio.wait_for(self.verdict(name), PATIENCE_S)

    async def until_seen(self, *names: str) -> None:
        """Wait until the engine has seen these pods on their nodes."""
        dispatcher = self.up.service._leader.dispatcher
        wanted = set()
        for name in names:
            found = await self.client.get(f"/api/v1/namespaces/default/pods/{name}", dict[str, Any])
            assert found is not None
            wanted.add(found["metadata"]["uid"])
        state = dispatcher.state
        await until(lambda: wanted <= state.cluster.snapshot.claims.keys() - state.foreign.assumed.keys())

    async def tell(self, *events: Any) -> None:
        """The engine hears something of the cluster."""
        dispatcher = self.up.service._leader.dispatcher
        dispatcher.report(events)
        await dispatcher.settled()


async def furnish(client: Client) -> None:
    """Nodes that are ready, and the PodGroup definition that flowsched brings."""
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    ready = [{"type": "Ready", "status": "True", "reason": "Test"}]
    for name in NODES:
        document = {
            "metadata": {"name": name, "labels": {HOSTNAME: name}},
            "status": {"allocatable": amounts, "capacity": amounts, "conditions": ready},
        }
        answer = await client.call("POST", "/api/v1/nodes", body=json.dumps(document).encode())
        assert answer.ok, answer
    definition = yaml.safe_load((DEPLOY / "crds" / "podgroups.scheduling.x-k8s.io.yaml").read_text())
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    answer = await client.call("POST", path, body=json.dumps(definition).encode())
    assert answer.ok or answer.reason == "AlreadyExists", answer
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (await client.call("GET", "/apis/scheduling.x-k8s.io/v1alpha1/podgroups")).ok:
                return
            await asyncio.sleep(0.1)


def extenders(url: str, token: str) -> list[dict[str, Any]]:
    """Those of the example in `deploy/`, with this server's address; twice, so that both forms of questions are asked."""
    document = yaml.safe_load((DEPLOY / "extender" / "kube-scheduler.yaml").read_text())
    (extender,) = document["extenders"]
    prefix = extender["urlPrefix"].replace("TOKEN", token)
    prefix = prefix.replace("CLUSTER-IP-OF-THE-SERVICE:8470", url.removeprefix("http://"))
    # A machine that is busy with other tests may take its time, and an answer that is too late would be no opinion.
    names = extender | {"urlPrefix": prefix, "httpTimeout": "60s"}
    assert names["nodeCacheCapable"]
    return [names, names | {"nodeCacheCapable": False}]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane of its own: its kube-scheduler would place other tests' pods."""
    require("kube-scheduler")
    made = started(ControlPlane())
    yield made
    made.stop()


@pytest.fixture
async def cluster(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    kubernetes = KubernetesSettings(kubeconfig=plane.kubeconfig(), namespace="default", default_image="none")
    settings = Settings(port=0, root=tmp_path, token=TOKEN, log_level="error", kubernetes=kubernetes)
    async with Client(plane.connection()) as client:
        await furnish(client)
        async with running(settings) as up:
            scheduler = await plane.scheduler(extenders=extenders(up.url, TOKEN))
            yield Cluster(plane, client, up)
        scheduler.kill()
        for path in (
            "/api/v1/namespaces/default/pods",
            "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups",
            "/api/v1/nodes",
        ):
            assert (await client.call("DELETE", path, params={"gracePeriodSeconds": "0"})).ok


async def test_pods_go_where_their_data_are(cluster: Cluster) -> None:
    """A stock kube-scheduler spreads by load; what it is told of data weighs more."""
    for number, name in enumerate(NODES):
        await cluster.tell(ReplicaSeen(f"s3://lab/{number}", name, 40 * GB))
    await cluster.placed("load", "2", node="n2")  # by load alone, it would be the last choice
    for number in (2, 0, 2, 3, 1, 2):
        name = f"reads-{number}-{os.urandom(2).hex()}"
        inputs = {"flowsched.io/inputs": f"s3://lab/{number}"}
        assert await cluster.placed(name, annotations=inputs) == f"n{number}"


async def test_pods_keep_off_a_node_where_room_is_held_for_a_gang(cluster: Cluster) -> None:
    """A Spark driver has its node, executors for two of the three cores beside it are still to come."""
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "app"},
        "spec": {"minMember": 1, "minResources": {"cpu": "3"}},
    }
    await cluster.make("/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups", group)
    member = {"scheduling.x-k8s.io/pod-group": "app"}
    await cluster.pod("driver", "1", scheduler="flowsched", labels=member)
    home = await cluster.bound("driver")
    await cluster.until_seen("driver")
    # All the data are there as well: without the hold, that is where it would go.
    await cluster.tell(ReplicaSeen("s3://lab/reads", home, 40 * GB))
    inputs = {"flowsched.io/inputs": "s3://lab/reads"}
    assert await cluster.placed("small", "1", annotations=inputs) == home
    await cluster.until_seen("small")
    elsewhere = await cluster.placed("large", "2", annotations=inputs)
    assert elsewhere in set(NODES) - {home}
    said = await cluster.placed("bound-to-it", "2", node=home)
    assert said.startswith("0/4 nodes are available:")
    assert f"1 {TO_COME}" in said
    for name in ("executor-1", "executor-2"):
        await cluster.pod(name, "1", scheduler="flowsched", labels=member)
        assert await cluster.bound(name) == home


async def test_pods_keep_off_what_is_promised_to_a_gang_that_waits(cluster: Cluster) -> None:
    """Four members of four cores find two empty nodes and wait: who may stay for long gets nothing of them meanwhile."""
    for at in ("n0", "n1"):
        await cluster.placed(f"load-{at}", "3", node=at)
    await cluster.until_seen("load-n0", "load-n1")
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"minMember": 4},
    }
    await cluster.make("/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups", group)
    for number in range(4):
        labels = {"scheduling.x-k8s.io/pod-group": "train"}
        await cluster.pod(f"worker-{number}", "4", scheduler="flowsched", labels=labels)
    state = cluster.up.service._leader.dispatcher.state
    await until(lambda: bool(state.round.reservations))
    said = await cluster.placed("service", "2")
    assert said.startswith("0/4 nodes are available:")
    assert f"2 {PROMISED}" in said
    assert BINDING not in said
    short = {"flowsched.io/runtime": "10m"}
    assert await cluster.placed("short", "2", annotations=short) in ("n2", "n3")


async def test_an_extender_that_refuses_blocks_nobody(cluster: Cluster) -> None:
    """With a wrong token kube-scheduler goes on by itself: it does not go to the data, since they are on a busy node."""
    await cluster.tell(ReplicaSeen("s3://lab/reads", "n2", 40 * GB))
    inputs = {"flowsched.io/inputs": "s3://lab/reads"}
    await cluster.placed("load", "2", node="n2")
    assert await cluster.placed("asked", annotations=inputs) == "n2"
    await cluster.plane.scheduler(extenders=extenders(cluster.up.url, "wrong"))
    assert await cluster.placed("refused", annotations=inputs) in ("n0", "n1", "n3")
