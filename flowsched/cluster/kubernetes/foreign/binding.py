"""Bindings of pods that other controllers made, and of the volumes that such a pod is the first to use.

A binding is sent once, with the pod's uid and version as preconditions. The engine holds a pod's room from its decision on
until the outcome is seen. So each order ends in exactly one of: the watch shows the pod on its node, the watch shows it gone,
or `BindRefused`. If an answer is lost, flowsched reads the pod and does not guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from flowsched.background import BackgroundTasks, Backoff
from flowsched.cluster.kubernetes.api.client import Client, decoded
from flowsched.cluster.kubernetes.api.errors import Answer
from flowsched.cluster.kubernetes.api.watch import Batch
from flowsched.cluster.kubernetes.foreign.eviction import MakingWay
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.cluster.kubernetes.objects.core import PersistentVolume, PersistentVolumeClaim, StorageClass
from flowsched.cluster.kubernetes.objects.labels import PREFIX
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.objects.pod_constraints import AnyOf, volume_nodes
from flowsched.cluster.kubernetes.objects.pod_requests import claims_of
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE, binding, eviction
from flowsched.executor.foreign import Bind, BindRefused, Evict, PodWaits
from flowsched.executor.protocol import ClusterEvent
from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: Annotation of a pod that a new leader has read: it makes older bindings of it fail.
FENCE: Final = f"{PREFIX}fenced-by"
_LONGEST_PAUSE_S: Final = 10.0


class Binding:
    """The bindings under way.

    Args:
        client: Of the API server.
        waiting: The pod of a uid as it waits now; None if it does not wait.
        report: Takes events.
        lease: Asked right before each call that changes something.
        caught_up: Waits until the view shows everything up to a resourceVersion.
        volumes: Has the volumes of a pod (by uid) follow it to a node; says what is wrong.
    """

    def __init__(
        self,
        client: Client,
        waiting: Callable[[str], PodWaits | None],
        *,
        report: Callable[[ClusterEvent], None],
        lease: Lease,
        caught_up: Callable[[int], Awaitable[None]],
        volumes: Callable[[str, str], Awaitable[str]],
    ) -> None:
        self._caught_up = caught_up
        self._volumes = volumes
        self._client = client
        self._waiting = waiting
        self._report = report
        self._lease = lease
        self._way = MakingWay(client, report=report, lease=lease, caught_up=caught_up)
        self._background = BackgroundTasks("another's pod")

    async def close(self) -> None:
        """Stop; a new leader fences what is still under way."""
        await self._background.close()

    def bind(self, orders: Sequence[Bind]) -> None:
        """Send bindings; returns at once."""
        for order in orders:
            self._background.begin(self._bind(order))

    def evict(self, orders: Sequence[Evict]) -> None:
        """Evict pods; their controllers make them again. A preempted pod goes with all of its unit, or stays."""
        units: dict[str, list[Evict]] = {}
        for order in orders:
            if order.unit:
                log.info("pod makes way", namespace=order.namespace, pod=order.name, why=order.reason)
                units.setdefault(order.unit, []).append(order)
            else:
                log.warning("pod evicted", namespace=order.namespace, pod=order.name, why=order.reason)
                self._background.begin(self._delete(order))
        for unit in units.values():
            self._background.begin(self._way.clear(unit))

    async def fence(self, uids: Sequence[str]) -> None:
        """Touch each of these pods that still waits: its version changes, and a binding that an earlier leader has under way
        (it carries the version it saw) is refused. Pods that do not wait any more have been bound, or are gone.
        """
        waiting = [found for found in map(self._waiting, uids) if found is not None]
        await asyncio.gather(*(self._touch(found) for found in waiting))

    async def _touch(self, found: PodWaits) -> PodObject | None:
        """Change a pod's version, and wait until the view shows it. Returns the pod as it is then; None if it is no more."""
        pod = found.pod
        # By its status: the right to patch whole pods would let its holder change the image of any pod.
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        body = msgspec.json.encode(
            {"metadata": {"uid": pod.uid, "annotations": {FENCE: f"after {pod.version}"}}}
        )
        backoff = Backoff(_LONGEST_PAUSE_S)
        while True:
            answer = await self._client.try_call("PATCH", path, body, content_type=MERGE)
            if answer is not None and answer.ok:
                touched = decoded(answer.body, PodObject, path)
                await self._caught_up(int(touched.metadata.resource_version))
                return touched
            if answer is not None and answer.status in (404, 409, 422):  # another pod, or none
                return None
            await backoff.wait()

    async def _bind(self, order: Bind) -> None:
        found = self._waiting(order.uid)
        if found is None or not self._lease.may_act():
            if found is not None:
                self._refuse(order, "this process does not lead any more")
            return  # on a node, or gone: the watch has reported it
        path = f"/api/v1/namespaces/{order.namespace}/pods/{order.name}"
        problem = await self._volumes(order.uid, order.node)
        if problem:
            self._refuse(order, problem)
            return
        found = self._waiting(
            order.uid
        )  # its volumes may have taken a while: it may have changed, and the leader
        if found is None:
            return
        if not self._lease.may_act():
            self._refuse(order, "this process does not lead any more")
            return
        body = binding(order.name, order.namespace, order.uid, order.node, found.pod.version)
        answer = await self._client.try_call("POST", f"{path}/binding", body)
        if answer is not None and answer.ok:
            await self._lease.failpoint("kube.bound")
            return
        if answer is None or answer.undecided:
            # The binding may still be on its way, so a read alone decides nothing. This changes the pod's version first: the API
            # server then refuses a binding that arrives later.
            pod = await self._touch(found)
            if pod is not None and not pod.spec.node_name:
                self._refuse(order, "no answer")
        else:
            await self._check_bound(order, path, answer)

    async def _check_bound(self, order: Bind, path: str, answer: Answer) -> None:
        """Read the pod after a refused binding, to see whether it is bound all the same."""
        backoff = Backoff(_LONGEST_PAUSE_S)
        while True:
            found = await self._client.try_call("GET", path, None)
            if found is not None and found.status == 404:
                return  # the watch tells that it is gone
            if found is not None and found.ok:
                pod = decoded(found.body, PodObject, path)
                if pod.metadata.uid != order.uid or pod.spec.node_name:
                    return  # on a node, ours or another: the watch tells which
                self._refuse(order, answer.message)
                return
            await backoff.wait()

    def _refuse(self, order: Bind, why: str) -> None:
        log.info("binding refused", namespace=order.namespace, pod=order.name, node=order.node, why=why)
        self._report(BindRefused(order.uid, order.node, why))

    async def _delete(self, order: Evict) -> None:
        """By eviction, which respects disruption budgets; asked again by the engine if the gang is still half placed."""
        path = f"/api/v1/namespaces/{order.namespace}/pods/{order.name}/eviction"
        body = eviction(order.name, order.namespace, order.uid)
        answer = await self._client.try_call("POST", path, body)
        if answer is not None and not answer.ok and answer.status not in (404, 409):
            log.warning("pod not evicted", namespace=order.namespace, pod=order.name, why=answer.message)


# ---- which nodes a pod's volumes tie it to. No I/O ----
#
# A claim that is bound brings its volume's node affinity. One that is not bound keeps its pod waiting. If its storage class
# waits for the first consumer, our pod is that consumer: the binding names a node first (`selected-node`), and the volume
# follows.


DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
WAITS: Final = "WaitForFirstConsumer"


class Volumes:
    """Claims, volumes and classes, as they were seen last."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}

    def changed(self, kind: str, batch: Batch[Any]) -> bool:
        """Apply a watch's batch of `claims`, `volumes` or `classes`; whether anything was new."""
        store: dict[Any, Any] = getattr(self, kind)
        if batch.replaced is not None:
            store.clear()
        for change, each in batch.items():
            if change == "DELETED":
                store.pop(_key(kind, each), None)
            else:
                store[_key(kind, each)] = each
        return batch.replaced is not None or bool(batch.changed)

    def of(self, pod: Pod) -> tuple[tuple[AnyOf, ...], str]:
        """Node terms of a pod's volumes, and why it cannot be placed at present ("" = it can)."""
        terms: list[AnyOf] = []
        for name in claims_of(pod):
            claim = self.claims.get((pod.metadata.namespace, name))
            if claim is None:
                return (), f"its volume claim {name!r} does not exist"
            if claim.metadata.deletion_timestamp is not None:
                return (), f"its volume claim {name!r} is being deleted"
            if not claim.spec.volume_name or claim.status.phase not in ("Bound", ""):
                if self.waits_for_us(claim):
                    continue
                return (), f"its volume claim {name!r} is not bound to a volume"
            volume = self.volumes.get(claim.spec.volume_name)
            if volume is None:
                return (), f"the volume {claim.spec.volume_name!r} of its claim {name!r} does not exist"
            nodes = volume_nodes(volume)
            if nodes is not None:
                terms.append(nodes)
        return tuple(terms), ""

    def unbound(self, pod: Pod) -> list[PersistentVolumeClaim]:
        """Claims of a pod that get their volume once a node is chosen."""
        found = [self.claims.get((pod.metadata.namespace, name)) for name in claims_of(pod)]
        return [each for each in found if each is not None and not each.spec.volume_name]

    def waits_for_us(self, claim: PersistentVolumeClaim) -> bool:
        """Whether a claim is bound only when it is known where its pod runs."""
        if claim.spec.volume_name:
            return False
        name = claim.spec.storage_class_name
        if name is None:
            name = next(
                (
                    n
                    for n, each in self.classes.items()
                    if each.metadata.annotations.get(DEFAULT_CLASS) == "true"
                ),
                "",
            )
        storage = self.classes.get(name)
        return storage is not None and storage.volume_binding_mode == WAITS


def _key(kind: str, each: Any) -> Any:
    meta = each.metadata
    return (meta.namespace, meta.name) if kind == "claims" else meta.name


# ---- volumes that wait for their first consumer ----
#
# As kube-scheduler does it: annotation `selected-node` on each such claim, then wait for the provisioner (or the volume
# binder). A provisioner that cannot serve that node takes the annotation away again, and the pod is placed anew.


#: A provisioner takes so long at most (kube-scheduler's own limit).
CLAIM_S: Final = 600.0
_POLL_S: Final = 0.1


class Claims:
    """Brings claims to their volumes.

    Args:
        client: Of the API server.
        volumes: The volume claims as the watches show them.
    """

    def __init__(self, client: Client, volumes: Volumes) -> None:
        self._client = client
        self._volumes = volumes

    async def follow(self, pod: Pod, node: str) -> str:
        """Have a pod's unbound claims bound for a node. "" = all are bound; else why not."""
        waiting = self._volumes.unbound(pod)
        if not waiting:
            return ""
        for claim in waiting:
            path = (
                f"/api/v1/namespaces/{claim.metadata.namespace}/persistentvolumeclaims/{claim.metadata.name}"
            )
            body = msgspec.json.encode({"metadata": {"annotations": {SELECTED_NODE: node}}})
            answer = await self._client.call("PATCH", path, body=body, content_type=MERGE)
            if not answer.ok:
                return f"its volume claim {claim.metadata.name!r} cannot be told its node: {answer.message}"
        try:
            async with asyncio.timeout(CLAIM_S):
                return await self._bound(waiting, node)
        except TimeoutError:
            return f"its volume claims were not bound within {CLAIM_S:.0f} s"

    async def _bound(self, waiting: Sequence[PersistentVolumeClaim], node: str) -> str:
        selected: set[str] = set()
        while True:
            claims = self._volumes.claims
            left = [claims.get((each.metadata.namespace, each.metadata.name)) for each in waiting]
            if any(claim is None for claim in left):
                return "one of its volume claims is gone"
            if all(claim is not None and claim.spec.volume_name for claim in left):
                return ""
            for claim in left:
                if claim is None or claim.spec.volume_name:
                    continue
                if claim.metadata.annotations.get(SELECTED_NODE) == node:
                    selected.add(claim.metadata.uid)
                elif claim.metadata.uid in selected:
                    return f"no volume for its claim {claim.metadata.name!r} can be made for {node}"
            await asyncio.sleep(_POLL_S)
