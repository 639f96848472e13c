"""What every executor promises, shown side by side in one cluster: each promise has pods and datasets of its own there.

The agents know an attempt by its name for seven days (docs/kubernetes.md), and each test of the contract calls its pod `a`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import structs

from flowsched.cluster.kubernetes.api.client import Connection
from flowsched.cluster.kubernetes.executor import ClusterSettings, KubernetesCluster
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import (
    ClusterEvent,
    Pod,
    PodEnded,
    PodGone,
    PodStarted,
    ReplicaSeen,
    Transfer,
    TransferDone,
    TransferFailed,
)
from flowsched.values import replace
from tests.executors.executor_contract import PATIENCE_S, ExecutorContract, Observer
from tests.kubernetes.exec_world import nothing as unarmed

T = TypeVar("T")

HEARD = (PodStarted, PodEnded, PodGone, ReplicaSeen, TransferDone, TransferFailed)


class OwnNames:
    """An executor under which a promise's pods and outputs have names of their own, and of which it hears what it caused.

    Real nodes also change by themselves, and other pods and datasets come and go on them.
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

    async def settle(self, names: Sequence[str]) -> None:
        await self._cluster.settle([self._prefix + name for name in names])

    async def logs(self, name: str, *where: Any) -> tuple[bytes, bool]:
        return await self._cluster.logs(self._prefix + name, *where)

    async def log_size(self, name: str, *where: Any) -> int:
        return await self._cluster.log_size(self._prefix + name, *where)

    def has(self, name: str) -> bool:
        """Whether the object of a pod is there."""
        return self._cluster.pods.object_of(self._prefix + name) is not None

    async def transfer(self, orders: Sequence[Transfer]) -> None:
        await self._cluster.transfer([self._own(order) for order in orders])

    async def evict(self, uri: str, node: str) -> bool:
        return await self._cluster.evict(self._own(uri), node)

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Any:
        return await self._cluster.open_dataset(self._own(uri), nodes)

    async def events(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        async for batch in self._cluster.events():
            yield [self._plain(event) for event in batch if isinstance(event, HEARD) and self._mine(event)]

    def _named(self, pods: Sequence[Pod]) -> list[Pod]:
        return [structs.replace(self._own(pod), name=self._prefix + pod.name) for pod in pods]

    def _mine(self, event: ClusterEvent) -> bool:
        return not isinstance(event, ReplicaSeen) or self._prefix in event.uri

    def _plain(self, event: ClusterEvent) -> ClusterEvent:
        plain = _changed(event, f"flowsched:{self._prefix}", "flowsched:")
        if isinstance(plain, PodStarted | PodEnded | PodGone):
            return structs.replace(plain, name=plain.name.removeprefix(self._prefix))
        return plain

    def _own(self, value: T) -> T:
        return _changed(value, "flowsched:", f"flowsched:{self._prefix}")


def _changed(value: T, old: str, new: str) -> T:
    """A value with other texts in it."""
    text = msgspec.json.encode(value, enc_hook=dict).replace(old.encode(), new.encode())
    return msgspec.json.decode(text, type=type(value))


class Corner:
    """Where the executor of one promise lives, in a cluster that others use as well: a `World` of the contract.

    Args:
        connection: To the API server.
        settings: Of the executor; the instance is the corner's own.
        prefix: Of all its names.
        outside: uri of a dataset with the bytes `OUTSIDE`, which no other corner reads.
        nothing: uri of a dataset that its origin does not have.
    """

    def __init__(
        self, connection: Connection, settings: ClusterSettings, prefix: str, outside: str, nothing: str
    ) -> None:
        self.outside, self.nothing = outside, nothing
        self._connection, self._prefix = connection, prefix
        self._settings = replace(settings, release=replace(settings.release, instance=prefix.rstrip("-")))
        self._cluster: OwnNames | None = None
        self._ear: Observer | None = None

    async def open(self) -> tuple[OwnNames, Observer, Sequence[NodeInfo]]:
        """Open an executor; all agents have answered."""
        lease = Lease(lambda: time.time_ns() // 1_000_000, unarmed)
        cluster = OwnNames(KubernetesCluster(self._connection, self._settings, lease), self._prefix)
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


async def shown(
    contract: type[ExecutorContract], names: Sequence[str], corner: Callable[[str], Corner], at_once: int
) -> Mapping[str, BaseException | None]:
    """Show promises side by side, so many at a time, in their order; what became of each (None: it is kept).

    Args:
        contract: Whose methods they are.
        names: Of the methods.
        corner: Makes a world for each, by its prefix.
    """
    turns = asyncio.Semaphore(at_once)

    async def show(number: int, name: str) -> BaseException | None:
        async with turns:
            world = corner(f"p{number}-")
            try:
                try:
                    await getattr(contract(), name)(world)
                finally:
                    await world.drop()
            except (Exception, pytest.skip.Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the test of it raises it
                return error
            return None

    ends = await asyncio.gather(*(show(number, name) for number, name in enumerate(names)))
    return dict(zip(names, ends, strict=True))


def promises(contract: type[ExecutorContract]) -> list[str]:
    """The names of all that a contract has."""
    return [name for name, _ in inspect.getmembers(contract, inspect.isfunction) if name.startswith("test_")]


def asked_for(request: pytest.FixtureRequest) -> Iterator[str]:
    """The promises that this run of pytest has chosen from a module whose test has the parameter `promise`."""
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.module is request.module and hasattr(item, "callspec"):
            yield item.callspec.params["promise"]
