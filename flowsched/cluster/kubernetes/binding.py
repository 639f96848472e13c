"""Bindings of pods that others made: sent once, with the pod's uid and version as preconditions, and never guessed about.

The engine holds a pod's room from its decision on until the outcome is seen. So each order ends in exactly one of: the watch
shows the pod on its node, the watch shows it gone, or `BindRefused`. A lost answer is followed by a look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from flowsched.cluster.kubernetes.bodies import binding
from flowsched.cluster.kubernetes.chores import Chores
from flowsched.cluster.kubernetes.client import MERGE, Answer, Client, Unreachable, decoded
from flowsched.cluster.kubernetes.making_way import MakingWay
from flowsched.cluster.kubernetes.marks import PREFIX
from flowsched.cluster.kubernetes.objects import Pod as PodObject
from flowsched.executor.foreign import Bind, BindRefused, Evict, PodWaits
from flowsched.executor.protocol import ClusterEvent

log = structlog.get_logger(__name__)

#: Annotation of a pod that a new leader has looked at: it makes older bindings of it fail.
FENCE: Final = f"{PREFIX}fenced-by"
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0


class Waiting(Protocol):
    """What the view knows of pods that wait."""

    def waits(self, uid: str) -> PodWaits | None:
        """The pod as it waits now; None if it does not."""
        ...


class Binding:
    """The bindings under way.

    Args:
        client: Of the API server.
        view: What is known of waiting pods.
        report: Takes events.
        may_act: Whether this process still leads, by its own clock; asked right before each call.
        failpoint: Where a crash would be interesting.
        caught_up: Waits until the view shows everything up to a resourceVersion.
        volumes: Has the volumes of a pod (by uid) follow it to a node; says what is wrong.
        clock: Wall-clock ms.
    """

    def __init__(
        self,
        client: Client,
        view: Waiting,
        *,
        report: Callable[[ClusterEvent], None],
        may_act: Callable[[], bool],
        failpoint: Callable[[str], Awaitable[None]],
        caught_up: Callable[[int], Awaitable[None]],
        volumes: Callable[[str, str], Awaitable[str]],
        clock: Callable[[], int],
    ) -> None:
        self._caught_up = caught_up
        self._volumes = volumes
        self._client = client
        self._view = view
        self._report = report
        self._may_act = may_act
        self._failpoint = failpoint
        self._way = MakingWay(
            client, report=report, may_act=may_act, failpoint=failpoint, caught_up=caught_up, clock=clock
        )
        self._chores = Chores("another's pod")
        self._spawn = self._chores.begin
        self.sent = 0
        self.refused = 0

    async def close(self) -> None:
        """Stop; a new leader fences what is still under way."""
        await self._chores.close()

    def bind(self, orders: Sequence[Bind]) -> None:
        """Send bindings; returns at once."""
        for order in orders:
            self._spawn(self._bind(order))

    def evict(self, orders: Sequence[Evict]) -> None:
        """Take pods away; their controllers make them again. Those that make way go with all of their unit, or stay."""
        units: dict[str, list[Evict]] = {}
        for order in orders:
            if order.unit:
                log.info("pod makes way", namespace=order.namespace, pod=order.name, why=order.reason)
                units.setdefault(order.unit, []).append(order)
            else:
                log.warning("pod evicted", namespace=order.namespace, pod=order.name, why=order.reason)
                self._spawn(self._delete(order))
        for unit in units.values():
            self._spawn(self._way.clear(unit))

    async def fence(self, uids: Sequence[str]) -> None:
        """Touch each of these pods that still waits: its version changes, and a binding that an earlier leader has under way
        (it carries the version it saw) is refused. Pods that do not wait any more have been bound, or are gone.
        """
        waiting = [found for found in map(self._view.waits, uids) if found is not None]
        await asyncio.gather(*(self._touch(found) for found in waiting))

    async def _touch(self, found: PodWaits) -> PodObject | None:
        """Change a pod's version, and wait until the view shows it. Returns the pod as it is then; None if it is no more."""
        pod = found.pod
        # By its status: the right to patch whole pods would let its holder change anybody's image.
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        body = msgspec.json.encode(
            {"metadata": {"uid": pod.uid, "annotations": {FENCE: f"after {pod.version}"}}}
        )
        pause = _FIRST_PAUSE_S
        while True:
            answer = await self._ask("PATCH", path, body, content_type=MERGE)
            if answer is not None and answer.ok:
                touched = decoded(answer.body, PodObject, path)
                await self._caught_up(int(touched.metadata.resource_version))
                return touched
            if answer is not None and answer.status in (404, 409, 422):  # another pod, or none
                return None
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 2)

    async def _bind(self, order: Bind) -> None:
        found = self._view.waits(order.uid)
        if found is None or not self._may_act():
            if found is not None:
                self._refuse(order, "this process does not lead any more")
            return  # seen on a node, or gone: the watch has told
        path = f"/api/v1/namespaces/{order.namespace}/pods/{order.name}"
        problem = await self._volumes(order.uid, order.node)
        if problem:
            self._refuse(order, problem)
            return
        found = self._view.waits(
            order.uid
        )  # its volumes may have taken a while: it may have changed, and the leader
        if found is None:
            return
        if not self._may_act():
            self._refuse(order, "this process does not lead any more")
            return
        body = binding(order.name, order.namespace, order.uid, order.node, found.pod.version)
        self.sent += 1
        answer = await self._ask("POST", f"{path}/binding", body)
        if answer is not None and answer.ok:
            await self._failpoint("kube.bound")
            return
        if answer is None or answer.undecided:
            await self._fenced_look(order, found)
        else:
            await self._look(order, path, answer)

    async def _fenced_look(self, order: Bind, found: PodWaits) -> None:
        """Nobody knows: the binding may even be on its way still. A read alone would not tell, so the pod's version is changed in
        the same write: what comes later is refused.
        """
        pod = await self._touch(found)
        if pod is not None and not pod.spec.node_name:
            self._refuse(order, "no answer")

    async def _look(self, order: Bind, path: str, answer: Answer) -> None:
        """It was refused: see what is."""
        pause = _FIRST_PAUSE_S
        while True:
            seen = await self._ask("GET", path, None)
            if seen is not None and seen.status == 404:
                return  # the watch tells that it is gone
            if seen is not None and seen.ok:
                pod = decoded(seen.body, PodObject, path)
                if pod.metadata.uid != order.uid or pod.spec.node_name:
                    return  # on a node, ours or another: the watch tells which
                self._refuse(order, answer.message)
                return
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 2)

    def _refuse(self, order: Bind, why: str) -> None:
        self.refused += 1
        log.info("binding refused", namespace=order.namespace, pod=order.name, node=order.node, why=why)
        self._report(BindRefused(order.uid, order.node, why))

    async def _delete(self, order: Evict) -> None:
        """By eviction, which respects disruption budgets; asked again by the engine if the gang is still half placed."""
        path = f"/api/v1/namespaces/{order.namespace}/pods/{order.name}/eviction"
        body = msgspec.json.encode(
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": order.name, "namespace": order.namespace},
                "deleteOptions": {"preconditions": {"uid": order.uid}},
            }
        )
        answer = await self._ask("POST", path, body)
        if answer is not None and not answer.ok and answer.status not in (404, 409):
            log.warning("pod not evicted", namespace=order.namespace, pod=order.name, why=answer.message)

    async def _ask(
        self, method: str, path: str, body: bytes | None, content_type: str = "application/json"
    ) -> Answer | None:
        try:
            return await self._client.call(method, path, body=body, content_type=content_type)
        except Unreachable:
            return None
