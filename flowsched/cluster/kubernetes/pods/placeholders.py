"""Placeholders: pods that keep promised room from the cluster's stock scheduler until flowsched has bound its own pods there.

A placeholder never runs. It is gated, it names the stock scheduler, and its `nominatedNodeName` is the node: kube-scheduler counts
its requests there for every pod of no higher priority, whatever frees up. A nominated pod of another scheduler's name counts for
nothing (both measured on 1.36.2; `tests/kubernetes/faults/test_neighbours.py` holds it).

A placeholder that is not wanted any more stays as long as a pod of ours is on its way to the node. kube-scheduler then counts that
pod itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Malformed, Refused, Unreachable
from flowsched.cluster.kubernetes.objects.core import OnlyMetadata
from flowsched.cluster.kubernetes.objects.labels import HOLD, common_labels, ours
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.objects.request_bodies import STRATEGIC, deletion
from flowsched.cluster.kubernetes.pods.manifest import CONFINED, TASK, quantities
from flowsched.executor.foreign import Hold
from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: The scheduler that others' pods are placed by where they name none.
STOCK: Final = "default-scheduler"
#: Placeholders that could not be made or removed are tried again after so long.
PERIOD_S: Final = 1.0
#: At its end a service waits no longer for placeholders to be deleted.
CLOSE_S: Final = 5.0


class Placeholders:
    """One placeholder on each node where room is held.

    Args:
        client: Of the API server.
        settings: Namespace, image and labels of the pods.
        awaited: Nodes to which pods of ours are on their way.
    """

    def __init__(
        self, client: Client, settings: ReleaseSettings, awaited: Callable[[], Collection[str]]
    ) -> None:
        self._client = client
        self._settings = settings
        self._awaited = awaited
        self._path = f"/api/v1/namespaces/{settings.namespace}/pods"
        self._wanted: dict[str, Hold] = {}
        self._made: dict[str, tuple[Hold, OnlyMetadata]] = {}  #: by node
        self._listed = False  #: whether all that there are is in `_made`
        self._news = asyncio.Event()

    def begin(self) -> None:
        """Begin a term: placeholders of an earlier leader go."""
        self._wanted, self._listed = {}, False
        self._news.set()

    def want(self, holds: Sequence[Hold]) -> None:
        """Reserve this room, and no other."""
        self._wanted = {reservation.node: reservation for reservation in holds}
        self._news.set()

    async def run(self) -> None:
        """Make and remove placeholders until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._once()
            except (Refused, Unreachable, Malformed) as error:
                log.warning("room not held", why=str(error))
                self._listed &= not isinstance(error, Unreachable)  # one may have been made
            if not self._listed or {node: entry[0] for node, entry in self._made.items()} != self._wanted:
                await asyncio.sleep(PERIOD_S)
                self._news.set()

    async def close(self) -> None:
        """Give up the room that is held, as far as the server answers: the next leader removes what is left."""
        try:
            async with asyncio.timeout(CLOSE_S):
                while self._made:
                    await self._remove(self._made.popitem()[1][1])
        except (Refused, Unreachable, TimeoutError) as error:
            log.warning(
                "a placeholder is left", why=str(error) or "no answer", next="the next leader removes it"
            )

    async def _once(self) -> None:
        if not self._listed:
            self._made.clear()
            selector = f"{ours(self._settings)},{HOLD}"
            found, _ = await self._client.list(self._path, OnlyMetadata, params={"labelSelector": selector})
            for old in found:
                await self._remove(old)
            self._listed = True
        for node, reservation in list(self._wanted.items()):
            before = self._made.get(node)
            if before is None or before[0] != reservation:
                self._made[node] = reservation, await self._make(reservation)
                if before is not None:
                    await self._remove(before[1])
        for node in [node for node in self._made if node not in self._wanted and node not in self._awaited()]:
            await self._remove(self._made.pop(node)[1])

    async def _make(self, reservation: Hold) -> OnlyMetadata:
        answer = await self._client.call("POST", self._path, body=placeholder(reservation, self._settings))
        if not answer.ok:
            raise Refused(f"a placeholder on {reservation.node}", answer)
        made = msgspec.json.decode(answer.body, type=OnlyMetadata)
        body = msgspec.json.encode({"status": {"nominatedNodeName": reservation.node}})
        path = f"{self._path}/{made.metadata.name}/status"
        answer = await self._client.call("PATCH", path, body=body, content_type=STRATEGIC)
        if not answer.ok:
            await self._remove(made)
            raise Refused(f"the node of placeholder {made.metadata.name}", answer)
        return made

    async def _remove(self, made: OnlyMetadata) -> None:
        body = deletion(made.metadata.uid, 0)
        answer = await self._client.call("DELETE", f"{self._path}/{made.metadata.name}", body=body)
        if not answer.ok and answer.status != 404:
            raise Refused(f"placeholder {made.metadata.name} cannot be deleted", answer)


def placeholder(reservation: Hold, settings: ReleaseSettings) -> bytes:
    """The pod that keeps room on a node."""
    amounts = quantities(reservation.resources, settings.gpu.resource)
    container: dict[str, Any] = {
        "name": TASK,
        "image": settings.our_image,
        "command": ["false"],
        "resources": {"requests": amounts, "limits": {k: v for k, v in amounts.items() if "/" in k}},
        "securityContext": CONFINED,
    }
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": "fs-hold-",
                "namespace": settings.namespace,
                "labels": common_labels(settings, "placeholder") | {HOLD: "true"},
            },
            "spec": {
                "schedulerName": STOCK,
                "schedulingGates": [{"name": HOLD}],
                "restartPolicy": "Never",
                "enableServiceLinks": False,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [container],
            },
        }
    )
