"""The requests about this installation's own pods, each repeated until the API server has answered.

A quota that forbids pods is noticed once for all of them: one pod goes on asking, the others wait for its answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from flowsched.background import Backoff, Explain
from flowsched.cluster.kubernetes.api.client import Client, decoded
from flowsched.cluster.kubernetes.api.errors import Answer, Refused, Unreachable, judge
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.cluster.kubernetes.objects.core import Node, OnlyMetadata
from flowsched.cluster.kubernetes.objects.labels import ENGINE_NAME, REASON, VOID, common_labels
from flowsched.cluster.kubernetes.objects.names import pod_name
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.objects.request_bodies import binding, deletion
from flowsched.cluster.kubernetes.pods.manifest import CONFINED, TASK
from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: How often a create that a quota forbids is tried, by one pod for all.
QUOTA_PERIOD_S: Final = 5.0
#: So many creates are under way at a time: a quota that forbids them is noticed by no more.
CREATES: Final = 32
QUOTA: Final = "QuotaExceeded"


@dataclass(slots=True)
class Doubt:
    """Whether a pod may exist, now or soon, of which this process was not informed: a create is on its way, or its answer was
    lost. An earlier leader's creates are always in doubt.
    """

    open: bool = True


class PodApi:
    """The calls to the API server about pods of one namespace.

    Args:
        client: Of the API server.
        settings: Namespace, image and labels of the pods.
        lease: Asked before every write that starts something.
    """

    def __init__(self, client: Client, settings: ReleaseSettings, lease: Lease) -> None:
        self._client = client
        self._settings = settings
        self._lease = lease
        self._path = f"/api/v1/namespaces/{settings.namespace}/pods"
        self._turns = asyncio.Semaphore(CREATES)
        self._prober = asyncio.Lock()
        self._quota = ""  #: why a quota forbids pods at present

    async def create(self, body: bytes, doubt: Doubt, explain: Explain) -> Answer | None:
        """Create a pod, once. While a quota forbids pods, one caller asks for all, and not often.

        Returns:
            The answer; None: it is not known whether the pod was made.
        """
        while True:
            async with self._turns:
                if not self._quota:
                    answer = await self._create(body, doubt, explain)
                    self._quota = _forbidden(answer) or self._quota
                    return answer
            explain(QUOTA, self._quota)
            async with self._prober:
                if not self._quota:
                    continue
                answer = await self._create(body, doubt, explain)
                if answer is not None:
                    self._quota = _forbidden(answer)
                if not self._quota:
                    return answer
                explain(QUOTA, self._quota)
                await asyncio.sleep(QUOTA_PERIOD_S)

    async def _create(self, body: bytes, doubt: Doubt, explain: Explain) -> Answer | None:
        await self._lease.held()
        before, doubt.open = doubt.open, True
        answer = await self._ask("POST", self._path, body, explain)
        doubt.open = before or answer is None or answer.undecided
        return answer

    async def create_tombstone(self, name: str, reason: str, explain: Explain) -> Answer | None:
        """Take a pod's name (the engine's) for good; asks once. None: it is not known whether that was done."""
        await self._lease.held()
        return await self._ask("POST", self._path, tombstone(name, self._settings, reason), explain)

    async def bind(self, name: str, uid: str, node: str, explain: Explain) -> Answer | None:
        """Bind a pod to a node, once. None: it is not known whether it was bound."""
        body = binding(pod_name(name), self._settings.namespace, uid, node)
        return await self._ask("POST", f"{self._path}/{pod_name(name)}/binding", body, explain)

    async def read(self, name: str, explain: Explain) -> PodObject | None:
        """A pod (by its engine name) as the server has it; waits until the server answers."""
        backoff = Backoff()
        while True:
            answer = await self._ask("GET", f"{self._path}/{pod_name(name)}", None, explain)
            if answer is not None and answer.status == 404:
                return None
            if answer is not None and answer.ok:
                return decoded(answer.body, PodObject, name)
            await backoff.wait()

    async def delete(self, obj: PodObject, grace_s: int | None) -> None:
        """Ask until the server has accepted it; the watch shows when the pod is gone.

        Where the pod shall have a grace, the version that was just read is a precondition. An API server tries a DELETE on its
        cache first; where that does not show a binding yet, it settles on no grace at all, and the object is gone while the
        containers are still being stopped, so that the next attempt would run beside them.
        """
        backoff = Backoff()
        path = f"/api/v1/namespaces/{obj.metadata.namespace}/pods/{obj.metadata.name}"
        while True:
            try:
                version = ""
                if grace_s != 0:
                    seen = await self._client.get(path, OnlyMetadata)
                    if seen is None or seen.metadata.uid != obj.metadata.uid:
                        return
                    version = seen.metadata.resource_version
                body = deletion(obj.metadata.uid, grace_s, version)
                answer = await self._client.call("DELETE", path, body=body)
                if answer.ok or answer.status == 404 or (answer.status == 409 and not version):
                    return
                if answer.status != 409:  # else it has changed meanwhile
                    log.warning("pod not deleted", pod=obj.metadata.name, why=answer.message)
            except (Refused, Unreachable) as error:
                log.debug("pod not deleted", pod=obj.metadata.name, why=str(error))
            await backoff.wait()

    async def is_node(self, name: str) -> bool:
        """Whether the server has such a node, whatever the watch has shown so far. Raises as `Client.list`."""
        nodes, _ = await self._client.list(
            "/api/v1/nodes", Node, params={"fieldSelector": f"metadata.name={name}"}
        )
        return bool(nodes)

    async def _ask(self, method: str, path: str, body: bytes | None, explain: Explain) -> Answer | None:
        """Ask once. None: there was no answer, and the server may have carried it out."""
        try:
            return await self._client.call(method, path, body=body)
        except Unreachable as silence:
            explain("APIServerUnreachable", str(silence))
            return None


def _forbidden(answer: Answer | None) -> str:
    """The server's words, if a quota forbids the pod; else ""."""
    if answer is None or answer.ok or judge(answer).reason != QUOTA:
        return ""
    return answer.message


def tombstone(engine_name: str, settings: ReleaseSettings, reason: str) -> bytes:
    """A pod that takes a name and never runs: an earlier leader that comes late is told that it exists.

    It is gated, so no scheduler places it, and it asks for nothing.
    """
    nothing = {"cpu": "0", "memory": "0"}
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod_name(engine_name),
                "namespace": settings.namespace,
                "labels": common_labels(settings, "tombstone") | {VOID: "true"},
                "annotations": {ENGINE_NAME: engine_name, REASON: reason},
            },
            "spec": {
                "schedulerName": settings.scheduler_name,
                "schedulingGates": [{"name": VOID}],
                "restartPolicy": "Never",
                "enableServiceLinks": False,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": TASK,
                        "image": settings.our_image,
                        "command": ["false"],
                        "resources": {"requests": nothing, "limits": nothing},
                        "securityContext": CONFINED,
                    }
                ],
            },
        }
    )
