"""Many pods on few devices at a time, while others meddle with their claims: on the fake API server, which is fast."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import msgspec
import pytest

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Answer
from flowsched.cluster.kubernetes.api.watch import Watches
from flowsched.cluster.kubernetes.dra.claims import DeviceClaims, claimed_devices
from flowsched.cluster.kubernetes.dra.inventory import API, places_of
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.release import GpuSettings
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE
from flowsched.errors import ConfigurationError
from flowsched.values import replace
from tests.kubernetes import device_world as gpus
from tests.kubernetes import written as w
from tests.kubernetes.exec_world import make
from tests.kubernetes.fake import FakeApi

SETTINGS = replace(w.SETTINGS, gpu=GpuSettings(fractions="dra", driver="gpu.test"))
NODES = ("n1", "n2")
PODS = 60
#: So often others write as fast as they can; then ten times a second: on a slow machine, too, every write has its turn.
HASTY = 1_000


async def meddle(client: Client, rng: random.Random) -> None:
    """Be the API server's controller and a curious user: label claims, and take away or delete what nobody uses."""
    path = f"{API}/namespaces/lab/resourceclaims"
    for number in range(10**9):
        await asyncio.sleep(0.002 if number < HASTY else 0.1)
        found = await gpus.claims(client, "lab")
        given = [gpus.given(each) + each["metadata"]["annotations"]["flowsched.io/node"]
                 for each in found.values() if each.get("status", {}).get("allocation")]  # fmt: skip
        assert len(given) == len(set(given))
        if not found:
            continue
        name, claim = rng.choice(sorted(found.items()))
        version = {"resourceVersion": claim["metadata"]["resourceVersion"]}
        unused = not claim.get("status", {}).get("reservedFor")
        what = rng.choice(["label", "finalizer", "delete"] if unused else ["label"])
        if what == "delete":
            options = json.dumps({"preconditions": version}).encode()
            await client.call("DELETE", f"{path}/{name}", body=options)
            continue
        changed: dict[str, Any] = (
            {"labels": {"number": str(number)}} if what == "label" else {"finalizers": None}
        )
        body = json.dumps({"metadata": {**version, **changed}}).encode()
        await client.call("PATCH", f"{path}/{name}", body=body, content_type=MERGE)


async def life(claims: DeviceClaims, client: Client, number: int, rng: random.Random) -> None:
    """A pod gets its devices, has them, and ends."""
    ids = rng.choice([(0,), (1,), (0, 1)])
    order = w.task(f"fs-w1-a-{number}-1", node=rng.choice(NODES), gpu_millis=500, gpu_ids=ids)
    await asyncio.sleep(rng.random() * 0.2)
    assert await claims.reserve(order, f"u-{number}", lambda *_: None) == ""
    await asyncio.sleep(rng.random() * 0.05)
    names = [place.claim for place in places_of(order, SETTINGS)]
    found = await gpus.claims(client, "lab")
    for name in names:
        assert f"u-{number}" in gpus.reserved(found[name])
        assert found[name]["status"]["allocation"]
    spec = {"resourceClaims": [{"name": name, "resourceClaimName": name} for name in names]}
    claims.left(msgspec.convert({"metadata": {"uid": f"u-{number}"}, "spec": spec}, Pod))


@pytest.mark.parametrize("seed", range(3))
async def test_every_pod_has_its_devices_and_nothing_is_left(seed: int) -> None:
    """Whoever meddles; and no device is ever in two claims."""
    rng = random.Random(seed)
    async with FakeApi() as fake, Client(fake.connection) as client, Client(fake.connection) as other:
        await make(client, "/api/v1/namespaces", {"metadata": {"name": "lab"}})
        await gpus.device_class(client, "gpu.test")
        for node in NODES:
            await gpus.publish(client, "gpu.test", node, ["gpu-a", "gpu-b"])
        claims = DeviceClaims(client, SETTINGS)
        watches = Watches(client, 60)
        for path, kind, handler in claims.watched():
            await watches.follow(path, kind, handler)
        meddling = asyncio.create_task(meddle(other, rng))
        async with asyncio.timeout(400):
            await asyncio.gather(*(life(claims, client, number, rng) for number in range(PODS)))
            while await gpus.claims(client, "lab"):
                await asyncio.sleep(0.05)
        assert not meddling.done()
        meddling.cancel()
        await asyncio.gather(meddling, return_exceptions=True)
        await watches.close()
        await claims.close()
        assert {node: claims.gpus(node) for node in NODES} == {"n1": (2000, 0), "n2": (2000, 0)}


class Deaf:
    """An API server of before Kubernetes 1.34."""

    async def call(self, *_: Any) -> Answer:
        """There is no such group."""
        return Answer(404, b"404 page not found")


async def test_where_claims_are_not_served_the_service_says_so_and_does_not_start() -> None:
    """And where they are not asked for, nobody asks."""
    deaf: Any = Deaf()
    with pytest.raises(ConfigurationError, match=r"serves no ResourceClaim of resource.k8s.io/v1"):
        await claimed_devices(deaf, SETTINGS)
    assert await claimed_devices(None, w.SETTINGS) is None  # type: ignore[arg-type]
