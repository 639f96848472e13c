"""GPUs of a driver on hollow nodes: what a driver publishes, and what claims there are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from flowsched.cluster.kubernetes.client import MERGE, Client
from tests.kubernetes.exec_world import make

API = "/apis/resource.k8s.io/v1"


def device(name: str, **more: Any) -> dict[str, Any]:
    """A device as a driver describes it."""
    return {"name": name, "attributes": {"type": {"string": "gpu"}}, **more}


async def publish(
    client: Client, driver: str, node: str, devices: Iterable[str | dict[str, Any]], generation: int = 1
) -> str:
    """A driver's slice for a node; returns its name."""
    name = f"{node}-{driver}-{generation}"[:200]
    told = [device(each) if isinstance(each, str) else each for each in devices]
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "devices": told,
    }
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": spec,
    }
    await make(client, f"{API}/resourceslices", document)
    return name


async def device_class(client: Client, driver: str, config: Sequence[dict[str, Any]] = ()) -> None:
    """The class of all of a driver's devices, under the driver's name."""
    spec = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}], "config": list(config)}
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": spec,
    }
    await make(client, f"{API}/deviceclasses", document)


async def claims(client: Client, namespace: str) -> dict[str, dict[str, Any]]:
    """Name -> claim, of a namespace."""
    answer = await client.call("GET", f"{API}/namespaces/{namespace}/resourceclaims")
    assert answer.ok, answer
    return {each["metadata"]["name"]: each for each in json.loads(answer.body)["items"]}


async def pods(client: Client, namespace: str) -> dict[str, dict[str, Any]]:
    """Uid -> pod that has not ended, of a namespace."""
    answer = await client.call("GET", f"/api/v1/namespaces/{namespace}/pods")
    assert answer.ok, answer
    return {
        each["metadata"]["uid"]: each
        for each in json.loads(answer.body)["items"]
        if each["status"]["phase"] not in ("Succeeded", "Failed")
    }


async def stranger(client: Client, namespace: str, name: str, driver: str, pool: str, given: str) -> None:
    """Somebody else's claim, allocated as kube-scheduler does it."""
    path = f"{API}/namespaces/{namespace}/resourceclaims"
    exactly = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": 1}
    spec = {"devices": {"requests": [{"name": "one", "exactly": exactly}]}}
    await make(client, path, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                              "metadata": {"name": name}, "spec": spec})  # fmt: skip
    result = {"request": "one", "driver": driver, "pool": pool, "device": given}
    body = json.dumps({"status": {"allocation": {"devices": {"results": [result]}}}}).encode()
    answer = await client.call("PATCH", f"{path}/{name}/status", body=body, content_type=MERGE)
    assert answer.ok, answer


async def until(holds: Callable[[], Awaitable[Any]], patience_s: float = 60.0) -> Any:
    """Wait until something holds."""
    async with asyncio.timeout(patience_s):
        while not (found := await holds()):
            await asyncio.sleep(0.05)
    return found
