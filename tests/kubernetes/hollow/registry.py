"""What hollow nodes ask of the API server about Nodes, Leases and deleted pods. Tried until it is answered."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Answer, Refused, Unreachable
from flowsched.cluster.kubernetes.objects.core import OnlyMetadata
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE, STRATEGIC
from tests.kubernetes.hollow.spec import Pod
from tests.kubernetes.hollow.templates import LEASES, NodeTemplate, conditions, lease_document, node_document

log = structlog.get_logger(__name__)

_NODES: Final = "/api/v1/nodes"
_PAUSE_S: Final = 0.5
#: So often is asked before an API server that does not answer is given up: at a start, and at an end.
_START_TRIES, _END_TRIES = 60, 4
#: As node-lifecycle-controller taints a node that it has not heard of.
_UNREACHABLE: Final = (
    {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
)


class Registry:
    """Nodes and their heartbeats.

    Args:
        client: Of the API server.
        heartbeat_s: How often Leases are renewed; None = there are none. (The status of a Node is not repeated.)
    """

    def __init__(self, client: Client, heartbeat_s: float | None) -> None:
        self._client = client
        self._heartbeat_s = heartbeat_s
        self._uids: dict[str, str] = {}

    async def register(self, template: NodeTemplate, address: str, port: int) -> None:
        """Create a Node, or take over one of its name.

        Raises:
            Refused: The API server does not want it.
            Unreachable: It has not answered for long.
        """
        document = node_document(template, address, port, datetime.now(UTC))
        answer = await self._ask("POST", _NODES, document)
        if answer.status == 409:
            path = f"{_NODES}/{template.name}"
            update = {"metadata": document["metadata"], "spec": document["spec"] | {"unschedulable": None}}
            await self._done("PATCH", path, update, MERGE)
            answer = await self._done("PATCH", f"{path}/status", {"status": document["status"]}, MERGE)
        if not answer.ok:
            raise Refused(f"POST {_NODES}", answer)
        self._uids[template.name] = msgspec.json.decode(answer.body, type=OnlyMetadata).metadata.uid

    async def remove(self, name: str) -> None:
        """Delete a Node.

        Raises:
            Unreachable: The API server is away.
        """
        await self._ask("DELETE", f"{_NODES}/{name}", tries=_END_TRIES)

    async def give_up(self, name: str) -> None:
        """Mark a Node as node-lifecycle-controller does when it has not heard of it."""
        status = {"status": {"conditions": conditions(datetime.now(UTC), ready=False)}}
        await self._done("PATCH", f"{_NODES}/{name}/status", status)
        await self._done("PATCH", f"{_NODES}/{name}", {"spec": {"taints": list(_UNREACHABLE)}})

    async def cordon(self, name: str, *, cordoned: bool) -> None:
        """Mark a Node as (un)schedulable."""
        await self._done("PATCH", f"{_NODES}/{name}", {"spec": {"unschedulable": cordoned}})

    async def resize(self, name: str, quantities: Mapping[str, str]) -> None:
        """Change what a Node has."""
        status = {"status": {"capacity": dict(quantities), "allocatable": dict(quantities)}}
        await self._done("PATCH", f"{_NODES}/{name}/status", status)

    async def delete_pod(self, pod: Pod) -> None:
        """Let a pod that has ended vanish, as the last thing that a kubelet does for it."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        answer = await self._ask("DELETE", pod.path, options, tries=None)
        if not answer.ok and answer.status not in (404, 409):
            log.warning("pod not deleted", pod=pod.key, why=answer.message)

    async def beat(self, names: Callable[[], list[str]]) -> None:
        """Renew the Leases of these nodes, for ever."""
        while self._heartbeat_s is not None:
            async with asyncio.TaskGroup() as group:
                for name in names():
                    group.create_task(self._renew(name))
            await asyncio.sleep(self._heartbeat_s)

    async def _renew(self, name: str) -> None:
        body = lease_document(name, self._uids[name], datetime.now(UTC))
        try:
            answer = await self._client.call("PATCH", f"{LEASES}/{name}", body=body, content_type=MERGE)
            if answer.status == 404:
                answer = await self._client.call("POST", LEASES, body=body)
        except Unreachable as error:
            log.warning("no heartbeat", node=name, why=str(error))
            return
        if not answer.ok:
            log.warning("no heartbeat", node=name, why=answer.message)

    async def _done(
        self, method: str, path: str, document: Mapping[str, Any], content_type: str = STRATEGIC
    ) -> Answer:
        answer = await self._ask(method, path, document, content_type)
        if not answer.ok:
            raise Refused(f"{method} {path}", answer)
        return answer

    async def _ask(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        tries: int | None = _START_TRIES,
    ) -> Answer:
        """Ask until there is an answer: everything that is asked here may be asked twice.

        Args:
            method, path, document, content_type: What is asked.
            tries: How often at most; None = for ever.

        Raises:
            Unreachable: There was no answer.
        """
        body = None if document is None else msgspec.json.encode(document)
        for tried in itertools.count(1):
            try:
                answer = await self._client.call(method, path, body=body, content_type=content_type)
                if tried == tries or (answer.status < 500 and answer.status != 429):
                    return answer
            except Unreachable:
                if tried == tries:
                    raise
            await asyncio.sleep(_PAUSE_S * (1 + random.random()))
        raise AssertionError("it is asked for ever, or the last try returns or raises")
