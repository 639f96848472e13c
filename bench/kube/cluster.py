"""A real API server for a bench: nodes that are no more than objects, pods made and removed, and what may be asked of it."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import loads
import msgspec
from processes import cpu_s

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.watch import Reflector
from flowsched.cluster.kubernetes.objects.metadata import Metadata, Read
from tests.kubernetes.hollow.binaries import APISERVER, ETCD
from tests.kubernetes.hollow.controlplane import ControlPlane

PODS: Final = f"/api/v1/namespaces/{loads.NAMESPACE}/pods"
IN_FLIGHT: Final = 32
_BINDINGS: Final = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)", re.MULTILINE)


class Where(Read, frozen=True):
    """Where a pod is."""

    node_name: str = ""


class Placed(Read, frozen=True):
    """As much of a pod as the observer reads."""

    metadata: Metadata = Metadata()
    spec: Where = Where()


@dataclass(slots=True)
class Observed:
    """What the bench's own watch has seen, on the monotonic clock."""

    made_s: dict[str, float] = field(default_factory=dict)  #: uid -> when it was first seen
    bound_s: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, set[str]] = field(default_factory=dict)  #: uid -> every node it was ever seen on
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def see(self, pod: Placed) -> None:
        now = time.monotonic()
        uid, node = pod.metadata.uid, pod.spec.node_name
        self.made_s.setdefault(uid, now)
        if node:
            self.bound_s.setdefault(uid, now)
            self.nodes.setdefault(uid, set()).add(node)
            self.news.set()

    async def until_bound(self, count: int, patience_s: float) -> bool:
        """Wait for so many; False if they did not come."""
        ends = time.monotonic() + patience_s
        while len(self.bound_s) < count and time.monotonic() < ends:
            self.news.clear()
            try:
                await asyncio.wait_for(self.news.wait(), 1.0)
            except TimeoutError:
                continue
        return len(self.bound_s) >= count


class Bench:
    """The cluster of one bench."""

    def __init__(self, plane: ControlPlane, client: Client) -> None:
        self.plane, self.client = plane, client
        self.size = 0
        self.observed = Observed()
        self._watching: asyncio.Task[None] | None = None

    async def grow(self, nodes: int) -> None:
        """See to it that there are so many nodes."""
        await self.create(
            ("/api/v1/nodes", loads.node(number)) for number in range(self.size, max(self.size, nodes))
        )
        self.size = max(self.size, nodes)

    async def create(self, documents: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Create objects, many at a time."""
        todo = iter(documents)

        async def worker() -> None:
            for path, document in todo:
                answer = await self.client.call("POST", path, body=msgspec.json.encode(document))
                if not answer.ok:
                    raise SystemExit(f"POST {path}: {answer.status} {answer.message}")

        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))

    async def pods(self, count: int, shape: str, scheduler: str, run: str) -> None:
        """Make pods that wait for a scheduler, and their groups before them."""
        where = f"namespaces/{loads.NAMESPACE}/podgroups"
        await self.create(
            (f"/apis/{version}/{where}", each) for version, each in loads.groups(count, shape, scheduler, run)
        )
        await self.create((PODS, loads.member(number, shape, scheduler, run)) for number in range(count))

    async def clear(self) -> None:
        """Remove all pods and groups of the namespace."""
        paths = [PODS] + [
            f"/apis/{version}/namespaces/{loads.NAMESPACE}/podgroups"
            for version in (loads.PLUGINS, loads.VOLCANO)
        ]
        for path in paths:
            while True:
                answer = await self.client.call(
                    "DELETE", path, body=b'{"gracePeriodSeconds":0}', timeout_s=600.0
                )
                if answer.status == 404:
                    break
                left = await self.client.call("GET", path, params={"limit": "1"})
                if left.ok and not msgspec.json.decode(left.body)["items"]:
                    break
                await asyncio.sleep(0.5)

    def watch(self) -> None:
        """Begin to observe anew."""
        self.observed = Observed()
        self._watching = asyncio.create_task(self._watch(self.observed))

    async def _watch(self, observed: Observed) -> None:
        async with aclosing(Reflector(self.client, PODS, Placed).changes()) as batches:
            async for batch in batches:
                for pod in batch.replaced or ():
                    observed.see(pod)
                for change, pod in batch.changed:
                    if change != "DELETED":
                        observed.see(pod)

    async def unwatch(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    def server_cpu(self) -> tuple[float, float]:
        """CPU seconds of (kube-apiserver, etcd)."""
        server, etcd = self.server_pids()
        return cpu_s([server]), cpu_s([etcd])

    def server_pids(self) -> tuple[int, int]:
        """Processes of (kube-apiserver, etcd)."""
        programs = self.plane.programs
        return pid_of(programs[APISERVER]), pid_of(programs[ETCD])

    async def bindings(self) -> Counter[str]:
        """How many bindings the API server has answered, by status."""
        answer = await self.client.call("GET", "/metrics")
        found: Counter[str] = Counter()
        for labels, value in _BINDINGS.findall(answer.body.decode()):
            if 'subresource="binding"' in labels and 'resource="pods"' in labels:
                code = re.search(r'code="(\d+)"', labels)
                found[code.group(1) if code else "?"] += int(float(value))
        return found

    async def overcommitted(self) -> list[str]:
        """Nodes that have given more than they have (P6), by what pods say."""
        pods, _ = await self.client.list("/api/v1/pods", Weighed)
        nodes, _ = await self.client.list("/api/v1/nodes", Allocating)
        used: dict[str, list[int]] = {}
        for pod in pods:
            if pod.spec.node_name:
                taken = used.setdefault(pod.spec.node_name, [0, 0])
                taken[0] += 1
                taken[1] += sum(
                    millicores(each.resources.requests.get("cpu", "0")) for each in pod.spec.containers
                )
        has = {node.metadata.name: node.status.allocatable for node in nodes}
        return [
            name
            for name, (count, cpu) in used.items()
            if name not in has or count > int(has[name]["pods"]) or cpu > millicores(has[name]["cpu"])
        ]


class Asks(Read, frozen=True):
    requests: dict[str, str] = msgspec.field(default_factory=dict)


class Box(Read, frozen=True):
    resources: Asks = Asks()


class WeighedSpec(Read, frozen=True):
    node_name: str = ""
    containers: tuple[Box, ...] = ()


class Weighed(Read, frozen=True):
    """A pod, and what it takes."""

    metadata: Metadata = Metadata()
    spec: WeighedSpec = WeighedSpec()


class Has(Read, frozen=True):
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)


class Allocating(Read, frozen=True):
    """A node, and what it has."""

    metadata: Metadata = Metadata()
    status: Has = Has()


def millicores(text: str) -> int:
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000


def pid_of(program: Any) -> int:
    """The process of a `Program`."""
    found: int = program.pid
    return found
