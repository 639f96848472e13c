"""What every executor promises, on real nodes: kubelets run the pods, the agents are those of the chart."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec import structs

from flowsched.cluster.kubernetes.executor import ClusterSettings, KubernetesCluster
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import (
    ClusterEvent,
    Pod,
    PodEnded,
    PodGone,
    PodStarted,
    ReplicaSeen,
    TransferDone,
    TransferFailed,
)
from tests.executors.executor_contract import (
    OUTSIDE,
    PATIENCE_S,
    ExecutorContract,
    Observer,
    contained,
    program,
)
from tests.images import FLOWSCHED, image
from tests.kubernetes.exec_world import nothing
from tests.kubernetes.nodes.installed import AGENT_KEY, Installation

HEARD = (PodStarted, PodEnded, PodGone, ReplicaSeen, TransferDone, TransferFailed)


class OwnNames:
    """An executor under which a test's pods have names of their own, and of which a test hears what it caused.

    The agents know an attempt by its name for seven days (docs/kubernetes.md), and each of these tests calls its pod `a`. Real
    nodes also change by themselves, and other pods come and go on them.
    """

    def __init__(self, cluster: KubernetesCluster, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def launch(self, pods: Sequence[Pod]) -> None:
        await self._cluster.launch(self._named(pods))

    async def adopt(self, pods: Sequence[Pod]) -> None:
        await self._cluster.adopt(self._named(pods))

    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        await self._cluster.release([self._prefix + name for name in names], grace_ms)

    async def logs(self, name: str, *where: Any) -> tuple[bytes, bool]:
        return await self._cluster.logs(self._prefix + name, *where)

    async def log_size(self, name: str, *where: Any) -> int:
        return await self._cluster.log_size(self._prefix + name, *where)

    async def events(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        async for batch in self._cluster.events():
            yield [self._plain(event) for event in batch if isinstance(event, HEARD)]

    def _named(self, pods: Sequence[Pod]) -> list[Pod]:
        return [structs.replace(pod, name=self._prefix + pod.name) for pod in pods]

    def _plain(self, event: ClusterEvent) -> ClusterEvent:
        if isinstance(event, PodStarted | PodEnded | PodGone):
            return structs.replace(event, name=event.name.removeprefix(self._prefix))
        return event


class RealWorld:
    """Where a Kubernetes executor lives: a namespace of its own, and agents that other tests use as well."""

    def __init__(self, installed: Installation, namespace: str) -> None:
        self._installed = installed
        self._namespace = namespace
        (installed.origin_folder / "outside.txt").write_bytes(OUTSIDE)
        self.outside = f"{installed.origin}/outside.txt"
        self.nothing = f"{installed.origin}/nothing.txt"
        self._cluster: OwnNames | None = None
        self._ear: Observer | None = None

    async def open(self) -> tuple[OwnNames, Observer, Sequence[NodeInfo]]:
        """Open an executor; both agents have answered."""
        release = ReleaseSettings(
            namespace=self._namespace, our_image=FLOWSCHED, default_image=image("debian").name,
            agent_key=AGENT_KEY.encode(), instance=self._namespace, scheduler_name="contract",
        )  # fmt: skip
        lease = Lease(lambda: time.time_ns() // 1_000_000, nothing)
        connection = self._installed.cluster.connection
        cluster = OwnNames(
            KubernetesCluster(connection, ClusterSettings(release, AGENT_KEY), lease), f"{self._namespace}-"
        )
        nodes = await cluster.start()
        self._cluster, self._ear = cluster, Observer(cluster)
        await cluster.view()
        async with asyncio.timeout(PATIENCE_S):
            while len(cluster.agents_ready()) < len(nodes):
                await asyncio.sleep(0.05)
        return cluster, self._ear, sorted(nodes, key=lambda node: node.name)

    async def drop(self) -> None:
        """The service dies, the world goes on."""
        if self._ear is not None:
            await self._ear.close()
        if self._cluster is not None:
            await self._cluster.stop()
        self._cluster = self._ear = None

    async def empty_caches(self) -> None:
        """The next test finds the agents' caches as at first, once the pods that read them are gone."""
        await self.drop()
        cluster, ear, _ = await self.open()
        async with asyncio.timeout(PATIENCE_S):
            while here := {(e.uri, e.node) for e in ear.heard if isinstance(e, ReplicaSeen) and e.present}:
                dropped = {each for each in here if await cluster.evict(*each)}
                ear.heard = [
                    e for e in ear.heard if isinstance(e, ReplicaSeen) and (e.uri, e.node) not in dropped
                ]
                await asyncio.sleep(0.1)
        await self.drop()


class TestOnRealNodes(ExecutorContract):
    """With real kubelets, containerd and images."""

    @pytest.fixture
    async def world(self, installed: Installation) -> AsyncIterator[RealWorld]:
        installed.cluster.load("debian")
        namespace = f"contract-{secrets.token_hex(3)}"
        installed.cluster.kubectl("create", "namespace", namespace)
        installed.cluster.kubectl(
            "-n", namespace, "wait", "--for=create", "serviceaccount/default", "--timeout=30s"
        )
        world = RealWorld(installed, namespace)
        yield world
        await world.drop()
        installed.cluster.kubectl("-n", namespace, "delete", "pods", "--all", "--now", "--wait=true")
        await world.empty_caches()
        installed.cluster.kubectl("delete", "namespace", namespace, "--wait=false")

    async def test_a_running_pod_is_released(self, world: RealWorld) -> None:
        """As elsewhere, but by SIGKILL: the first process of a container gets SIGTERM only if it has a handler for it."""
        cluster, ear, _ = await world.open()
        await cluster.launch(
            [program("a", "sleep 60"), program("b", "trap 'exit 143' TERM; sleep 60 & wait", index=1)]
        )
        await ear.started("a")
        await ear.started("b")
        await cluster.release(["a", "b"], 2000)
        ends = [await ear.ended("a"), await ear.ended("b")]
        assert [(end.exit_code, end.reason) for end in ends] == [(137, "Released"), (143, "Released")]
        assert len(ear.finals("a")) == 1

    async def test_a_container_task_that_takes_too_long(self, world: RealWorld) -> None:
        """As above, once the 30 s are over that the kubelet gives a pod beyond its deadline."""
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "sleep 60", timeout_ms=6_000)])
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason) == (143, "Timeout")
        assert [step.exit_code for step in end.container.steps] == [137]

    async def test_a_container_task_is_released(self, world: RealWorld) -> None:
        """As above."""
        cluster, ear, _ = await world.open()
        await cluster.launch([contained("a", "sleep 60", "true")])
        await ear.started("a")
        await cluster.release(["a"], 2000)
        end = await ear.ended("a")
        assert end.container is not None
        assert (end.exit_code, end.reason, len(end.container.steps)) == (137, "Released", 1)
