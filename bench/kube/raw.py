"""The raw loop, the baseline: our client posting bindings, round robin over the nodes, and nothing else. A process of its own.

    python bench/kube/raw.py --kubeconfig K [--create N]

It says "ready" when it knows its pods (or has written their manifests), and begins when it reads a line.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from flowsched.app import spare_the_collector  # noqa: E402
from flowsched.cluster.kubernetes.api.client import Client, decoded  # noqa: E402
from flowsched.cluster.kubernetes.api.credentials import connect  # noqa: E402
from flowsched.cluster.kubernetes.objects.core import Node  # noqa: E402
from flowsched.cluster.kubernetes.objects.names import pod_name  # noqa: E402
from flowsched.cluster.kubernetes.objects.pod import Pod  # noqa: E402
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings  # noqa: E402
from flowsched.cluster.kubernetes.objects.request_bodies import binding  # noqa: E402
from flowsched.cluster.kubernetes.pods.manifest import pod_manifest  # noqa: E402
from flowsched.executor.protocol import Pod as Order  # noqa: E402

NAMESPACE = "bench"
PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
Work = Callable[[Client, str], Awaitable[None]]


def binder(pod: Pod) -> Work:
    """Bind a pod that is there."""
    meta = pod.metadata

    async def work(client: Client, node: str) -> None:
        body = binding(meta.name, NAMESPACE, meta.uid, node, meta.resource_version)
        answer = await client.call("POST", f"{PATH}/{meta.name}/binding", body=body)
        if not answer.ok:
            raise SystemExit(f"not bound: {answer}")

    return work


def maker(number: int, settings: ReleaseSettings) -> Work:
    """Create a pod of ours, then bind it."""
    name = f"fs-raw-wide-{number}-0"
    body = pod_manifest(
        Order(
            name=name,
            workflow="raw",
            stage="wide",
            index=number,
            shard=number,
            attempt=0,
            epoch=1,
            node="",
            command=("/usr/local/bin/align",),
            env={},
            image="registry.example/tools/task:1",
            cpu_millicores=100,
            memory_bytes=128 << 20,
            gpu_millis=0,
        ),
        settings,
    )
    assert isinstance(body, bytes)

    async def work(client: Client, node: str) -> None:
        answer = await client.call("POST", PATH, body=body)
        if not answer.ok:
            raise SystemExit(f"not created: {answer}")
        uid = decoded(answer.body, Pod, name).metadata.uid
        told = binding(pod_name(name), NAMESPACE, uid, node)
        answer = await client.call("POST", f"{PATH}/{pod_name(name)}/binding", body=told)
        if not answer.ok:
            raise SystemExit(f"not bound: {answer}")

    return work


def places(nodes: list[Node], pods: list[Pod]) -> Iterator[str]:
    """Nodes in turn, each as often as it takes another pod."""
    used = Counter(pod.spec.node_name for pod in pods)
    room = {
        node.metadata.name: int(node.status.allocatable["pods"]) - used[node.metadata.name] for node in nodes
    }
    while room:
        room = {name: left for name, left in room.items() if left > 0}
        for name in room:
            room[name] -= 1
            yield name


async def run(given: argparse.Namespace) -> None:
    async with Client(await connect(given.kubeconfig, None), in_flight=given.in_flight) as client:
        nodes, _ = await client.list("/api/v1/nodes", Node)
        pods, _ = await client.list(PATH, Pod)
        names = places(nodes, pods)
        if given.create:
            settings = ReleaseSettings(NAMESPACE, "flowsched", "", b"")
            todo: Iterator[Work] = iter([maker(number, settings) for number in range(given.create)])
        else:
            todo = iter([binder(pod) for pod in pods if not pod.spec.node_name])
        spare_the_collector()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def worker() -> None:
            for work in todo:
                await work(client, next(names))

        await asyncio.gather(*(worker() for _ in range(given.in_flight)))
        print("done", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--create", type=int, default=0, help="create so many pods of ours, and bind them")
    parser.add_argument("--in-flight", type=int, default=32)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
