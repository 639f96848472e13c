"""A whole small cluster: an API server, hollow nodes that run pods' commands, a node agent on each; and an executor over it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.executor import ClusterSettings, KubernetesCluster
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.executor.nodes import NodeInfo
from tests.executors.executor_contract import Observer
from tests.kubernetes.hollow.agent import SYSTEM, agent_pod
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.templates import NodeTemplate

KEY = "a key that agents and the service share"
PATIENCE_S = 200.0


async def nothing(_: str) -> None:
    """A failpoint that is not armed."""


#: Of a process that leads, whatever the time.
LEASE = Lease(lambda: 0, nothing)


async def make(client: Client, path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Create an object, unless it is there."""
    answer = await client.call("POST", path, body=json.dumps(document).encode())
    assert answer.ok or answer.reason == "AlreadyExists", answer
    made: dict[str, Any] = json.loads(answer.body)
    return made


class KubeWorld:
    """Where a Kubernetes executor lives. It outlives the executor.

    Args:
        connection: To the API server.
        namespace: Where tasks run.
        root: Folders of nodes, agents and data.
        nodes: Their templates.
        agents: Whether each has an agent.
        roots: Folders that agents may take files from.
        arguments: More of a node's agent's command line, by the node's name.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        root: Path,
        nodes: Sequence[NodeTemplate] | None = None,
        *,
        agents: bool = True,
        roots: Sequence[Path] = (),
        arguments: Callable[[str], Sequence[str]] = lambda _: (),
        failpoint: Callable[[str], Awaitable[None]] = nothing,
        **release: Any,
    ) -> None:
        self.connection = connection
        self.namespace = namespace
        self.root = root
        self.failpoint = failpoint
        self._templates = nodes or [NodeTemplate(f"node-{number}", cpu="16") for number in range(2)]
        self._agents = agents
        self._roots = tuple(roots)
        self._arguments = arguments
        self._release = release
        outside = root / "outside.txt"
        outside.parent.mkdir(parents=True, exist_ok=True)
        outside.write_bytes(b"outside")
        self.outside = f"file://{outside}"
        self.nothing = f"file://{root}/nothing.txt"
        self.cluster: KubernetesCluster | None = None
        self.ear: Observer | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> KubeWorld:
        self.client = await self._stack.enter_async_context(Client(self.connection))
        for name in (SYSTEM, self.namespace):
            document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await make(self.client, "/api/v1/namespaces", document)
        self.hollow = await self._stack.enter_async_context(
            HollowNodes(self.client, self._templates, "exec", self.root / "hollow", heartbeat_s=None)
        )
        self._agent_pods: list[str] = []
        if self._agents:
            for template in self._templates:
                pod = self._agent(template)
                made = await make(self.client, f"/api/v1/namespaces/{SYSTEM}/pods", pod)
                self._agent_pods.append(made["metadata"]["name"])
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.drop()
        for name in self._agent_pods:
            path = f"/api/v1/namespaces/{SYSTEM}/pods/{name}"
            await self.client.call("DELETE", path, params={"gracePeriodSeconds": "0"})
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        await self.client.call("DELETE", path, params={"gracePeriodSeconds": "0"})
        await self._stack.aclose()

    def settings(self) -> ClusterSettings:
        """Of the executor."""
        given = {"our_image": "flowsched", "default_image": "none", "gang_addresses": "seat", **self._release}
        release = ReleaseSettings(
            namespace=self.namespace, agent_key=KEY.encode(), instance=self.namespace, **given
        )
        return ClusterSettings(release, KEY if self._agents else "")

    async def open(self) -> tuple[KubernetesCluster, Observer, Sequence[NodeInfo]]:
        """Open an executor over the world; its agents have answered."""
        self.cluster = KubernetesCluster(
            self.connection,
            self.settings(),
            Lease(lambda: time.time_ns() // 1_000_000, self.failpoint),
        )
        nodes = await self.cluster.start()
        self.ear = Observer(self.cluster)
        await self.cluster.view()
        if self._agents:
            await self._agents_answer()
        return self.cluster, self.ear, sorted(nodes, key=lambda node: node.name)

    async def _agents_answer(self) -> None:
        assert self.cluster is not None
        async with asyncio.timeout(PATIENCE_S):
            while len(self.cluster.agents_ready()) < len(self._templates):
                await asyncio.sleep(0.05)

    async def kill_agent(self, number: int) -> None:
        """A node's agent dies on the spot, and the DaemonSet makes another one."""
        path = f"/api/v1/namespaces/{SYSTEM}/pods"
        await self.client.call(
            "DELETE", f"{path}/{self._agent_pods[number]}", params={"gracePeriodSeconds": "0"}
        )
        pod = self._agent(self._templates[number])
        self._agent_pods[number] = (await make(self.client, path, pod))["metadata"]["name"]

    def _agent(self, template: NodeTemplate) -> dict[str, Any]:
        node = template.name
        more = ("--scheme=http", "--network=127.0.0.0/8", *self._arguments(node))
        roots = (self.root, *self._roots)
        return agent_pod(node, self.hollow.root, self.root / "agents" / node, KEY, roots, more)

    async def drop(self) -> None:
        """The service dies, the world goes on."""
        if self.ear is not None:
            await self.ear.close()
        if self.cluster is not None:
            await self.cluster.stop()
        self.cluster = self.ear = None
