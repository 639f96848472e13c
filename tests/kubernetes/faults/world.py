"""Where faults happen: an API server, simulated nodes, a witness, and services over it that may reach the server by a detour."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.executor import ClusterSettings
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.values import replace
from tests.kubernetes.exec_world import nothing
from tests.kubernetes.faults.witness import Witness
from tests.kubernetes.hollow.nodes import HollowNodes
from tests.kubernetes.hollow.simulated import Fate
from tests.kubernetes.hollow.spec import Pod
from tests.kubernetes.hollow.templates import NodeTemplate
from tests.kubernetes.service_world import Running, serving
from tests.kubernetes.talk import Talk

#: How long a task runs where nothing else is said.
RUNTIME_S = 0.3
#: A task that runs until it is told to end.
ENDLESS = Fate(runtime_s=None)


def bag(width: int, cpu: float = 1, name: str = "bag", **fields: Any) -> dict[str, Any]:
    """A stage of so many tasks."""
    return {
        "name": name,
        "scatter": {"items": [str(number) for number in range(width)]},
        "command": ["true"],
        "resources": {"cpu": cpu},
        **fields,
    }


def gang(members: int, cpu: float = 1, name: str = "train", **fields: Any) -> dict[str, Any]:
    """A stage that is one gang."""
    role = {"replicas": members, "command": ["true"], "resources": {"cpu": cpu}}
    return {"name": name, "gang": True, "roles": {"worker": role}, **fields}


def document(*stages: Mapping[str, Any], name: str = "faults") -> bytes:
    """A workflow."""
    return json.dumps({"name": name, "stages": list(stages)}).encode()


#: Requests of the nodes and of the witness carry it, so that a fake can spare them.
UNDISTURBED = "X-Undisturbed"


def _marked(
    headers: Callable[[], Awaitable[Mapping[str, str]]],
) -> Callable[[], Awaitable[Mapping[str, str]]]:
    async def provide() -> Mapping[str, str]:
        return {**await headers(), UNDISTURBED: "1"}

    return provide


class World:
    """A cluster of simulated nodes in which one installation of flowsched works, of one namespace and one scheduler name.

    Args:
        connection: Straight to the API server.
        namespace: Of the installation; it gives its nodes and its scheduler their names.
        folder: For databases.
        nodes: Cores of each node.

    Attributes:
        fates: Stage -> what becomes of its pods; what is not named runs for `RUNTIME_S`. Others' pods ("") run for ever.
    """

    def __init__(
        self, connection: Connection, namespace: str, folder: Path, nodes: Sequence[str] = ("4", "4")
    ) -> None:
        self.connection = connection
        self._own = replace(connection, headers=_marked(connection.headers))
        self.namespace = namespace
        self.folder = folder
        self.fates: dict[str, Fate] = {}
        self.nodes = [f"{namespace}-{number}" for number in range(len(nodes))]
        self._templates = [NodeTemplate(name, cpu=cpu) for name, cpu in zip(self.nodes, nodes, strict=True)]
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.client = await self._stack.enter_async_context(Client(self._own))
        self.talk = Talk(self.client, self.namespace)
        self.hollow = await self._stack.enter_async_context(
            HollowNodes(self.client, self._templates, heartbeat_s=None, fate=self._fate)
        )
        self.witness = await self._stack.enter_async_context(Witness(self.client, self.namespace))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for name in self.witness.here():
            await self.talk.delete(f"{self.talk.pods}/{name}", gracePeriodSeconds="0")
        await self._stack.aclose()

    def _fate(self, pod: Pod) -> Fate:
        stage = pod.metadata.labels.get("flowsched.io/stage", "")
        return self.fates.get(stage, Fate(runtime_s=RUNTIME_S) if stage else ENDLESS)

    def settings(self, **changes: Any) -> ClusterSettings:
        """Of the installation."""
        release = ReleaseSettings(
            self.namespace,
            "flowsched",
            "none",
            b"key",
            0,
            instance=self.namespace,
            scheduler_name=self.namespace,
        )
        return replace(ClusterSettings(release, pod_groups="none"), **changes)

    @asynccontextmanager
    async def serving(
        self,
        through: Connection | None = None,
        *,
        folder: str = "service",
        failpoint: Callable[[str], Awaitable[None]] = nothing,
        **settings: Any,
    ) -> AsyncIterator[Running]:
        """A service of this process that leads."""
        async with serving(
            through or self.connection, self.settings(**settings), self.folder / folder, failpoint=failpoint
        ) as running:
            yield running

    async def leftovers(self) -> list[str]:
        """What is there: pods, Services, Secrets."""
        found = [f"pods/{name}" for name in self.witness.here()]
        for path in ("services", "secrets"):
            found += [f"{path}/{name}" for name in await self.talk.names(f"{self.talk.here}/{path}")]
        return found

    async def nothing_left(self, running: Running) -> None:
        """Wait until nothing is left of what has ended (P5 gives a minute), then hold all that was seen against the promises."""
        await running.until(self._tidy)
        self.witness.judge()

    async def _tidy(self) -> bool:
        return not await self.leftovers()


async def attempts(running: Running, workflow: str, *, stage: str | None = None) -> list[tuple[int, str]]:
    """(number, reason) of all attempts of a workflow's tasks, as the API tells them."""
    found = []
    for row in (await running.service.tasks(workflow, stage=stage)).tasks:
        task = await running.service.task(workflow, row.stage, row.index)
        found += [(each.attempt, each.reason) for each in task.attempts]
    return found
