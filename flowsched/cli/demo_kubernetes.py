"""`flowsched demo --kubernetes`: a real API server on this machine, and nodes that really run what pods say, without containers."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

NAMESPACE: Final = "flowsched"
#: As the gangs of the demo: 2 parameter servers of one core, 4 workers of one and a half.
MEMBERS: Final = (*(("ps", number, "1") for number in range(2)), *(("worker", n, "1500m") for n in range(4)))
STILL_S: Final = 5.0
PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SmallCluster:
    """What runs, and how a service is pointed at it."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    plane: Any
    client: Any


@asynccontextmanager
async def small_cluster(
    root: Path, console: Console, nodes: int, cpu: str, memory: str, roots: Sequence[Path]
) -> AsyncIterator[SmallCluster]:
    """An API server, its etcd, hollow nodes, and an agent on each; all gone at the end.

    Raises:
        ConfigurationError: The binaries are not there; the message says how to get them.
    """
    from flowsched.cluster.kubernetes.api.client import Client
    from flowsched.cluster.kubernetes.binaries import missing
    from flowsched.cluster.kubernetes.controlplane import ControlPlane
    from flowsched.cluster.kubernetes.hollow.agent import SYSTEM, agent_pod
    from flowsched.cluster.kubernetes.hollow.nodes import HollowNodes
    from flowsched.cluster.kubernetes.hollow.templates import NodeTemplate
    from flowsched.errors import ConfigurationError

    why = missing()
    if why is not None:
        raise ConfigurationError(f"no Kubernetes for the demo: {why}")
    templates = [NodeTemplate(f"node-{number}", cpu=cpu, memory=memory) for number in range(nodes)]
    key = secrets.token_hex(16)
    async with AsyncExitStack() as stack:
        plane = ControlPlane()
        stack.callback(plane.stop)
        await plane.start()
        client = await stack.enter_async_context(Client(plane.connection()))
        for name in (SYSTEM, NAMESPACE):
            await _make(client, "/api/v1/namespaces", {"metadata": {"name": name}})
        folder = root / "hollow"
        hollow = HollowNodes(client, templates, "exec", folder, certificate=plane.certificate)
        await stack.enter_async_context(hollow)
        for template in templates:
            home = root / "agents" / template.name
            pod = agent_pod(template.name, folder, home, key, roots)
            await _make(client, f"/api/v1/namespaces/{SYSTEM}/pods", pod)
        kubeconfig = plane.kubeconfig()
        console.print(
            f"kube-apiserver {plane.url}; look in with  kubectl --kubeconfig {kubeconfig} get pods -A\n"
        )
        yield SmallCluster(
            ("--cluster", "kubernetes", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE),
            {
                "FLOWSCHED_AGENT_KEY": key,
                "FLOWSCHED_DEFAULT_IMAGE": "hollow",
                "FLOWSCHED_GANG_ADDRESSES": "seat",
            },
            plane,
            client,
        )


async def stock_scheduler(console: Console, small: SmallCluster, gangs: int) -> bool:
    """The same gangs, as pods, for the stock kube-scheduler on the same nodes: where do they end up?"""
    from flowsched.cluster.kubernetes.binaries import find
    from flowsched.cluster.kubernetes.controlplane import SCHEDULER

    console.print(
        Text(
            f"\nThe same {gangs} gangs as plain pods, placed by the stock kube-scheduler on the same nodes.",
            "bold",
        )
    )
    if find(SCHEDULER) is None:
        console.print("left out: there is no kube-scheduler (make kube-assets builds it)")
        return True
    await _make(small.client, "/api/v1/namespaces", {"metadata": {"name": "stock"}})
    for role, number, cores in MEMBERS:
        for gang in range(gangs):
            await _make(small.client, "/api/v1/namespaces/stock/pods", _member(gang, role, number, cores))
    stock = await small.plane.scheduler()
    try:
        placed = await _until_still(small.client)
    finally:
        stock.kill()
    for gang in range(gangs):
        held = placed[f"train-{gang + 1}"]
        console.print(
            f"  train-{gang + 1}: {held} of {len(MEMBERS)} members hold room and wait for the others"
        )
    whole = sum(count == len(MEMBERS) for count in placed.values())
    if whole == 0:
        console.print(
            Text(
                f"Deadlock: for {STILL_S:.0f} s nothing has moved, and no gang is complete. "
                "(They would wait for ever; this is where the demo gives up.)",
                "bold red",
            )
        )
    else:
        console.print(
            Text(f"{whole} of {gangs} gangs are complete, the others wait half placed.", "bold yellow")
        )
    params = {"gracePeriodSeconds": "0"}
    await small.client.call("DELETE", "/api/v1/namespaces/stock/pods", params=params)
    return whole < gangs


def _member(gang: int, role: str, number: int, cores: str) -> dict[str, Any]:
    job = f"train-{gang + 1}"
    container = {
        "name": "main",
        "image": "hollow",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": cores}},
    }
    return {
        "metadata": {"name": f"{job}-{role}-{number}", "labels": {"job": job}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]},
    }


async def _until_still(client: Any) -> Counter[str]:
    """Members with a node, by job, once nothing has changed for a while."""
    loop = asyncio.get_running_loop()
    begun = moved = loop.time()
    placed: Counter[str] = Counter()
    while loop.time() - begun < PATIENCE_S:
        answer = await client.call("GET", "/api/v1/namespaces/stock/pods")
        pods = json.loads(answer.body)["items"]
        now = Counter(pod["metadata"]["labels"]["job"] for pod in pods if pod["spec"].get("nodeName"))
        if now != placed or not now:
            placed, moved = now, loop.time()
        elif loop.time() - moved > STILL_S:
            break
        await asyncio.sleep(0.3)
    return placed


async def _make(client: Any, path: str, document: dict[str, Any]) -> None:
    from flowsched.cluster.kubernetes.api.errors import Refused

    answer = await client.call("POST", path, body=json.dumps(document).encode())
    if not answer.ok and answer.reason != "AlreadyExists":
        raise Refused(f"POST {path}", answer)
