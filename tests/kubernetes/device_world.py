"""GPUs of a driver on hollow nodes: what a driver publishes, and what claims there are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.dra.inventory import claim_name
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE
from tests.kubernetes.exec_world import KubeWorld, make

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


async def until(holds: Callable[[], Awaitable[Any]], patience_s: float = 200.0) -> Any:
    """Wait until something holds."""
    async with asyncio.timeout(patience_s):
        while not (found := await holds()):
            await asyncio.sleep(0.05)
    return found


#: Told to the driver for every device of the class.
CONFIG = {"apiVersion": "gpu.test/v1", "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}


class Gpus(KubeWorld):
    """One node with two GPUs of a driver of this test's own, and tasks that run until they are told to end."""

    async def __aenter__(self) -> Gpus:
        await super().__aenter__()
        self.driver, self.node = f"{self.namespace}.gpu.test", f"{self.namespace}-n"
        opaque = [{"opaque": {"driver": self.driver, "parameters": CONFIG}}]
        await device_class(self.client, self.driver, opaque)
        self.slices = [await publish(self.client, self.driver, self.node, ["gpu-a", "gpu-b"])]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for name in self.slices:
            await self.client.call("DELETE", f"{API}/resourceslices/{name}")
        await self.client.call("DELETE", f"{API}/deviceclasses/{self.driver}")
        await super().__aexit__(*exc)

    def until_told(self, name: str) -> list[str]:
        """A command that waits for a file."""
        return ["/bin/sh", "-c", f"while [ ! -e {self.root}/{name} ]; do sleep 0.1; done"]

    def tell(self, name: str) -> None:
        """Let them end."""
        (self.root / name).touch()

    def claim(self, number: int) -> str:
        """The name of our claim on a GPU of the node."""
        return claim_name(self.node, number, self.settings().release)

    async def claims(self) -> dict[str, dict[str, Any]]:
        """All claims of the namespace."""
        return await claims(self.client, self.namespace)

    async def pods(self) -> dict[str, dict[str, Any]]:
        """Uid -> pod that lives."""
        return await pods(self.client, self.namespace)

    async def patch(self, claim: str, document: dict[str, Any], part: str = "") -> None:
        """Somebody changes a claim."""
        path = f"{API}/namespaces/{self.namespace}/resourceclaims/{claim}{part}"
        answer = await self.client.call("PATCH", path, body=json.dumps(document).encode(), content_type=MERGE)
        assert answer.ok, answer


def reserved(claim: dict[str, Any]) -> set[str]:
    """Uids of a claim's users."""
    return {each["uid"] for each in claim["status"].get("reservedFor", [])}


def given(claim: dict[str, Any]) -> str:
    """The device that it has."""
    return str(claim["status"]["allocation"]["devices"]["results"][0]["device"])


def workflow(command: list[str], gpu: float, count: int = 1) -> bytes:
    """Tasks with GPUs."""
    stage = {
        "name": "s",
        "scatter": {"count": count},
        "command": command,
        "resources": {"cpu": 1, "gpu": gpu},
    }
    return json.dumps({"name": "g", "stages": [stage]}).encode()
