"""Calls about single pods: their bodies (bindings, deletions, tombstones, events), and repeating them until the server answers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from flowsched.cluster.kubernetes.api.client import Client, decoded
from flowsched.cluster.kubernetes.api.errors import Answer, Refused, Unreachable, judge
from flowsched.cluster.kubernetes.objects.core import Node, OnlyMetadata
from flowsched.cluster.kubernetes.objects.metadata import micro_timestamp
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.pods.container_task import TOKEN_KEY
from flowsched.cluster.kubernetes.pods.labels import (
    ENGINE_NAME,
    GROUP,
    REASON,
    VOID,
    common_labels,
    owner_reference,
)
from flowsched.cluster.kubernetes.pods.manifest import CONFINED, TASK
from flowsched.cluster.kubernetes.pods.names import label_value, pod_name
from flowsched.cluster.kubernetes.pods.release import Owner, ReleaseSettings

_NOTHING: Final[Mapping[str, str]] = {}


def binding(
    name: str,
    namespace: str,
    uid: str,
    node: str,
    resource_version: str = "",
    annotations: Mapping[str, str] = _NOTHING,
) -> bytes:
    """Bind a pod, and only this one: another of its name is refused.

    Args:
        name, namespace: Where to call it.
        uid: Its identity, a precondition.
        node: Where it shall run.
        resource_version: The version that was looked at, a precondition too; "" = any.
        annotations: Put on the pod in the same write.
    """
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
    if resource_version:
        metadata["resourceVersion"] = resource_version
    if annotations:
        metadata["annotations"] = dict(annotations)
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
    )


def deletion(uid: str, grace_s: int | None = None, resource_version: str = "") -> bytes:
    """Delete an object, and only this one.

    Args:
        uid: Its identity, a precondition.
        grace_s: Between SIGTERM and SIGKILL; 0 = at once and for good, None = what the pod says.
        resource_version: The version that was looked at, a precondition too; "" = any.
    """
    preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
    options: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": preconditions,
        "propagationPolicy": "Background",
    }
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return msgspec.json.encode(options)


@dataclass(frozen=True, slots=True)
class Told:
    """What an event says. `kind`: Normal or Warning."""

    action: str
    reason: str
    note: str
    kind: str


def event(told: Told, regarding: Mapping[str, Any], now: int, instance: str = "flowsched") -> bytes:
    """An event about an object, for `kubectl describe`."""
    # The name that is generated from must be a whole one by itself but for its last "-".
    name = str(regarding["name"])[:50].rstrip(".-")
    return msgspec.json.encode(
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name}-", "namespace": regarding["namespace"]},
            "eventTime": micro_timestamp(now),
            "reportingController": "flowsched.io/scheduler",
            "reportingInstance": instance,
            "action": told.action,
            "reason": told.reason,
            "regarding": regarding,
            "note": told.note,
            "type": told.kind,
        }
    )


def tombstone(engine_name: str, settings: ReleaseSettings, reason: str) -> bytes:
    """A pod that takes a name and never runs: whoever comes late with the same name is told that it exists.

    It is gated, so nobody schedules it, and asks for nothing.
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


def gang_service(group: str, settings: ReleaseSettings, owner: Owner | None = None) -> bytes:
    """The headless Service by which a gang's members find each other, also before they are ready."""
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(group, settings, owner),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {GROUP: label_value(group)},
            },
        }
    )


def gang_secret(group: str, token: str, settings: ReleaseSettings, owner: Owner | None = None) -> bytes:
    """The Secret that holds what a gang's members share, so that it stands in no pod."""
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": _metadata(group, settings, owner),
            "type": "Opaque",
            "immutable": True,
            "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
        }
    )


def _metadata(group: str, settings: ReleaseSettings, owner: Owner | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": group,
        "namespace": settings.namespace,
        "labels": common_labels(settings, "gang") | {GROUP: label_value(group)},
    }
    if owner is not None:
        metadata["ownerReferences"] = [owner_reference(owner)]
    return metadata


# ---- the calls ----
#
# While a quota forbids pods, the create of one pod is tried again for all of them.


log = structlog.get_logger(__name__)

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 20.0
_LEAD_PAUSE_S: Final = 0.1
#: How often a create that a quota forbids is tried, by one pod for all.
QUOTA_PERIOD_S: Final = 5.0
#: So many creates are under way at a time: a quota that forbids them is noticed by no more.
CREATES: Final = 32
QUOTA: Final = "QuotaExceeded"
#: Is told (reason, message) of what keeps a pod from starting.
Tell = Callable[[str, str], None]


@dataclass(slots=True)
class Doubt:
    """Whether a pod may have been made, or may yet be, without our having been told: a create is on its way, or its answer was
    lost. An earlier leader's creates are always in doubt.
    """

    open: bool = True


class PodCalls:
    """What is asked of the API server about pods of one namespace.

    Args:
        client: Of the API server.
        namespace: Where the pods are.
        may_act: Whether this process still leads: asked right before what starts something.
    """

    def __init__(self, client: Client, namespace: str, may_act: Callable[[], bool]) -> None:
        self._client = client
        self._may_act = may_act
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self._turns = asyncio.Semaphore(CREATES)
        self._prober = asyncio.Lock()
        self._quota = ""  #: why a quota forbids pods at present

    async def ask(self, method: str, path: str, body: bytes | None, told: Tell) -> Answer | None:
        """Ask once. None: nobody knows what became of it."""
        try:
            return await self._client.call(method, path, body=body)
        except Unreachable as silence:
            told("APIServerUnreachable", str(silence))
            return None

    async def leads(self) -> None:
        """Wait until this process may act. One that has been paused may lead on; one that may not any more is ended soon."""
        while not self._may_act():  # noqa: ASYNC110 - a clock decides, nobody sets an event
            await asyncio.sleep(_LEAD_PAUSE_S)

    async def create(self, body: bytes, doubt: Doubt, told: Tell) -> Answer | None:
        """Create a pod, once; while a quota forbids pods, one asks for all, and not often. None: nobody knows."""
        while True:
            async with self._turns:
                if not self._quota:
                    answer = await self._create(body, doubt, told)
                    self._quota = _forbidden(answer) or self._quota
                    return answer
            told(QUOTA, self._quota)
            async with self._prober:
                if not self._quota:
                    continue
                answer = await self._create(body, doubt, told)
                if answer is not None:
                    self._quota = _forbidden(answer)
                if not self._quota:
                    return answer
                told(QUOTA, self._quota)
                await asyncio.sleep(QUOTA_PERIOD_S)

    async def _create(self, body: bytes, doubt: Doubt, told: Tell) -> Answer | None:
        await self.leads()
        before, doubt.open = doubt.open, True
        answer = await self.ask("POST", self.path, body, told)
        doubt.open = before or answer is None or answer.undecided
        return answer

    async def read(self, name: str, told: Tell) -> PodObject | None:
        """A pod (by its engine name) as the server has it; waits until the server answers."""
        pause = FIRST_PAUSE_S
        while True:
            answer = await self.ask("GET", f"{self.path}/{pod_name(name)}", None, told)
            if answer is not None and answer.status == 404:
                return None
            if answer is not None and answer.ok:
                return decoded(answer.body, PodObject, name)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def delete(self, obj: PodObject, grace_s: int | None) -> None:
        """Ask until the server has taken it; the watch shows when it is gone.

        Where the pod shall have a grace, the version that was just read is a precondition. An API server tries a DELETE on its
        cache first; where that does not show a binding yet, it settles on no grace at all, and the object is gone while the
        containers are still being stopped, so that the next attempt would run beside them.
        """
        pause = FIRST_PAUSE_S
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
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def is_node(self, name: str) -> bool:
        """Whether the server has such a node, whatever the watch has shown so far. Raises as `Client.list`."""
        nodes, _ = await self._client.list(
            "/api/v1/nodes", Node, params={"fieldSelector": f"metadata.name={name}"}
        )
        return bool(nodes)


def _forbidden(answer: Answer | None) -> str:
    """In whose words a quota forbids it; "" if none does."""
    if answer is None or answer.ok or judge(answer).reason != QUOTA:
        return ""
    return answer.message
