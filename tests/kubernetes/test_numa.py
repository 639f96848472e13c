"""NUMA zones, as exporters tell them: on the real API server, and every odd thing an object can say."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.api.watch import Batch
from flowsched.cluster.kubernetes.executor import ClusterSettings
from flowsched.cluster.kubernetes.objects import nodes
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.pod_requests import DEFAULT_GPU
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE
from flowsched.cluster.kubernetes.view import Topologies
from flowsched.executor.nodes import ALIGNED, PLENTY, NodeInfo, Zone
from tests.kubernetes.bound import container, create
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import serving

SINGLE = [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]


def topology(name: str, *zones: dict[str, int | str], **more: Any) -> dict[str, Any]:
    """What an exporter says of a node: for each zone its resources, all of them free."""

    def resource(key: str, value: int | str) -> dict[str, Any]:
        return {"name": key, "capacity": value, "allocatable": value, "available": value}

    told = [
        {"name": f"node-{at}", "type": "Node", "resources": [resource(*each) for each in zone.items()]}
        for at, zone in enumerate(zones)
    ]
    rest = {"topologyPolicies": [], "attributes": SINGLE, "zones": told, **more}
    return {"apiVersion": nodes.GROUP, "kind": nodes.KIND, "metadata": {"name": name}, **rest}


def read(document: dict[str, Any]) -> nodes.NodeResourceTopology:
    return msgspec.json.decode(json.dumps(document).encode(), type=nodes.NodeResourceTopology)


def cores(count: str, limit: str | None = None) -> dict[str, Any]:
    """Of a container: Guaranteed, unless its limit says otherwise."""
    amounts = {"cpu": count, "memory": "1Gi"}
    return {"requests": amounts, "limits": {**amounts, "cpu": limit or count}}


@pytest.mark.kubernetes
async def test_pods_with_whole_cores_go_where_a_zone_has_room(
    api: Connection, client: Client, namespace: str, crds: None, tmp_path: Path
) -> None:
    """A node of 16 cores in two zones takes two pods of 5 whole cores, others' or ours, and says of the third why; pods that share
    cores it takes as ever; and when its kubelet insists no more, the third too. Real API server.
    """
    release = ReleaseSettings(
        namespace, "flowsched", "none", b"key", instance=namespace, scheduler_name=namespace
    )
    node = f"{namespace}-0"
    path = f"{nodes.PATH}/{node}"
    document = topology(node, {"cpu": 8, "memory": "64Gi"}, {"cpu": 8, "memory": "64Gi"})
    assert (await client.call("POST", nodes.PATH, body=json.dumps(document).encode())).status == 201

    async def bound() -> list[str]:
        answer = await client.call("GET", f"/api/v1/namespaces/{namespace}/pods")
        return sorted(
            pod["metadata"]["name"]
            for pod in json.loads(answer.body)["items"]
            if pod["spec"].get("nodeName") == node
        )

    async def stays(count: int) -> bool:
        await asyncio.sleep(1.0)
        return len(await bound()) == count

    async with (
        HollowNodes(client, [NodeTemplate(node, cpu="16", memory="128Gi")], heartbeat_s=None),
        serving(api, ClusterSettings(release), tmp_path) as running,
    ):
        for name in ("a", "b", "c"):
            main = container("main", resources=cores("5"))
            await create(client, namespace, name, main, schedulerName=namespace)
        await running.until(lambda: _count(bound, 2))
        assert await stays(2)
        shared = container("main", resources=cores("5", limit="6"))
        await create(client, namespace, "shares", shared, schedulerName=namespace)
        await running.until(lambda: _count(bound, 3))
        await running.until(lambda: _says(client, namespace, bound, "no NUMA zone has room"))
        for name in ("a", "b", "c", "shares"):
            await client.call(
                "DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", params={"gracePeriodSeconds": "0"}
            )
        await running.until(lambda: _count(bound, 0))
        stage = {
            "name": "s",
            "scatter": {"count": 3},
            "command": ["sleep", "600"],
            "resources": {"cpu": 5, "memory": "1Gi"},
            "limits": {"cpu": 5, "memory": "1Gi"},
        }
        made = await running.service.submit(json.dumps({"name": "w", "stages": [stage]}).encode())
        await running.until(lambda: _count(bound, 2))
        assert await stays(2)
        assert "NumaZones" in [each.code for each in await running.service.explain(made.id)]
        body = json.dumps(
            {"attributes": [{"name": "topologyManagerPolicy", "value": "best-effort"}]}
        ).encode()
        assert (await client.call("PATCH", path, body=body, content_type=MERGE)).ok
        await running.until(lambda: _count(bound, 3))
        await running.service.command(made.id, "cancel")
        await running.until(lambda: _count(bound, 0))
    await client.call("DELETE", path)


async def _count(bound: Any, wanted: int) -> bool:
    return len(await bound()) == wanted


async def _says(client: Client, namespace: str, bound: Any, words: str) -> bool:
    """What the pod that waits says."""
    answer = await client.call("GET", f"/api/v1/namespaces/{namespace}/pods")
    waiting = [pod for pod in json.loads(answer.body)["items"] if not pod["spec"].get("nodeName")]
    said = [each.get("message", "") for pod in waiting for each in pod["status"].get("conditions", ())]
    return any(words in each for each in said)


def test_zones_are_read_as_exporters_write_them() -> None:
    """Amounts as numbers or quantities; what is no quantity is not listed."""
    told = read(topology("n", {"cpu": 8, "memory": "64Gi", "nvidia.com/gpu": 2, "fpga": "3", "odd": "x"}, {}))
    has = {"cpu": 8000, "memory": 64 << 30, "gpu": 2000, "fpga": 3}
    assert nodes.zones_of(told, DEFAULT_GPU) == (Zone(has, has), Zone({}, {}))


@pytest.mark.parametrize(
    ("said", "binds"),
    [
        ({}, True),
        ({"attributes": [], "topologyPolicies": ["SingleNUMANodeContainerLevel"]}, True),
        ({"attributes": [], "topologyPolicies": ["SingleNUMANodePodLevel"]}, True),
        ({"attributes": [], "topologyPolicies": ["BestEffort"]}, False),
        ({"attributes": [{"name": "topologyManagerPolicy", "value": "restricted"}]}, False),
        ({"attributes": []}, False),
    ],
)
def test_zones_bind_where_the_kubelet_insists(said: dict[str, Any], binds: bool) -> None:
    """Under any other policy it takes a pod all the same."""
    assert bool(nodes.zones_of(read(topology("n", {"cpu": 8}, **said)), "")) == binds


def test_other_levels_are_no_zones() -> None:
    """A socket above its NUMA zones."""
    document = topology("n", {"cpu": 8})
    document["zones"].append({"name": "socket-0", "type": "Socket"})
    assert len(nodes.zones_of(read(document), "")) == 1


def test_topologies_follow_their_objects() -> None:
    """Who is told of a change: the nodes whose zones are others now."""
    known = Topologies("")
    one, two = read(topology("one", {"cpu": 8})), read(topology("two", {"cpu": 4}))
    assert known.changed(Batch(replaced=[one, two])) == {"one", "two"}
    assert known.changed(Batch(replaced=[one, two])) == set()
    assert known.changed(Batch(changed=[("MODIFIED", read(topology("two", {"cpu": 6})))])) == {"two"}
    assert known.changed(Batch(changed=[("DELETED", one)])) == {"one"}
    dressed = known.dressed(NodeInfo("two", 8000, 1))
    assert (dressed.zones, dressed.extended) == ((Zone({"cpu": 6000}, {"cpu": 6000}),), {ALIGNED: PLENTY})
    assert known.dressed(NodeInfo("one", 8000, 1)).zones == ()
    assert known.changed(Batch(replaced=[])) == {"two"}


@pytest.mark.parametrize(
    ("resources", "aligned"),
    [
        ([cores("2")], True),
        ([cores("2500m")], False),
        ([cores("2", limit="3")], False),
        ([{"requests": {"cpu": "2", "memory": "1Gi"}}], False),
        ([cores("2"), cores("500m")], True),
        ([], False),
    ],
)
def test_who_gets_whole_cores(resources: list[dict[str, Any]], aligned: bool) -> None:
    """Guaranteed, and a container that asks for whole ones."""
    containers = [{"name": f"c{at}", "resources": each} for at, each in enumerate(resources)]
    pod = msgspec.json.decode(json.dumps({"spec": {"containers": containers}}).encode(), type=Pod)
    assert nodes.is_aligned(pod) == aligned
