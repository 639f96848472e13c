"""`flowsched demo` on Kubernetes: a real API server on this machine, and hollow nodes that really run pods' commands.

    python -m tests.kubernetes.hollow.demo [--kill N] [--seconds S]

The service is the one that users start; only what stands in for the cluster is from the tests.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from flowsched.cli.context import Options, run
from flowsched.cli.demo import CPU, GANGS, MEMORY, NODES, Cluster, introduce, scheduled
from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Refused
from flowsched.engine_programs import share
from flowsched.errors import ConfigurationError
from tests.kubernetes.hollow.agent import SYSTEM, agent_pod
from tests.kubernetes.hollow.binaries import find, missing
from tests.kubernetes.hollow.controlplane import SCHEDULER, ControlPlane
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate

NAMESPACE: Final = "flowsched"
#: As the gangs of the demo: 2 parameter servers of one core, 4 workers of one and a half.
MEMBERS: Final = (*(("ps", number, "1") for number in range(2)), *(("worker", n, "1500m") for n in range(4)))
STILL_S: Final = 5.0
PATIENCE_S: Final = 60.0
#: Each pod is processes of three programs, started by hollow kubelets on the same two or four cores.
DEMO_S: Final = 420.0


def main(
    kill: Annotated[int, typer.Option(min=0, help="Kill the service so many times meanwhile.")] = 0,
    seconds: Annotated[float, typer.Option(min=1, help="Stop after so long.")] = DEMO_S,
) -> None:
    """See it work on a real API server, with nodes that run pods as processes of this machine."""
    run(Options(), demonstrate(kill, seconds))


async def demonstrate(kill: int, seconds: float) -> int:
    """Run the demonstration. Exit code 0 when everything ended as it should.

    Raises:
        ConfigurationError: The binaries are not there; the message says how to get them.
    """
    console = Console()
    root = Path(tempfile.mkdtemp(prefix="flowsched-demo-"))
    begun = time.monotonic()
    introduce(console, root, "Kubernetes")
    async with small_cluster(root, console, NODES, CPU, MEMORY, [share("workflows")]) as small:
        good = await scheduled(console, root / "flowsched", kill, seconds, small.cluster)
        if not kill:
            good = await stock_scheduler(console, small, GANGS) and good
    console.print(f"\nAll in {time.monotonic() - begun:.0f} s.")
    return 0 if good else 1


@dataclass(frozen=True, slots=True)
class SmallCluster:
    """What runs, and how the demo's service is pointed at it."""

    cluster: Cluster
    plane: ControlPlane
    client: Client


@asynccontextmanager
async def small_cluster(
    root: Path, console: Console, nodes: int, cpu: str, memory: str, roots: Sequence[Path]
) -> AsyncIterator[SmallCluster]:
    """An API server, its etcd, hollow nodes, and an agent on each; all gone at the end.

    Raises:
        ConfigurationError: The binaries are not there; the message says how to get them.
    """
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
            Cluster(
                ("--cluster", "kubernetes", "--kubeconfig", str(kubeconfig), "--namespace", NAMESPACE),
                {
                    "FLOWSCHED_AGENT_KEY": key,
                    "FLOWSCHED_DEFAULT_IMAGE": "hollow",
                    "FLOWSCHED_GANG_ADDRESSES": "seat",
                },
            ),
            plane,
            client,
        )


async def stock_scheduler(console: Console, small: SmallCluster, gangs: int) -> bool:
    """The same gangs, as pods, for the stock kube-scheduler on the same nodes: where do they end up?"""
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


async def _until_still(client: Client) -> Counter[str]:
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


async def _make(client: Client, path: str, document: dict[str, Any]) -> None:
    answer = await client.call("POST", path, body=json.dumps(document).encode())
    if not answer.ok and answer.reason != "AlreadyExists":
        raise Refused(f"POST {path}", answer)


if __name__ == "__main__":
    typer.run(main)
