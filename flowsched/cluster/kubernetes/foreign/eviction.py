"""Eviction of other controllers' pods: marked, then evicted, all of a unit or none of it, as disruption budgets allow.

1. Each pod of the unit gets the condition `DisruptionTarget`. A Job's `podFailurePolicy` looks for it, and it records the
   decision: if the leader dies from here on, its successor reads the mark (`engine.foreign.preemption`).
2. The first pod is evicted, by the Eviction subresource with its uid as precondition. If a disruption budget forbids it, none
   of them goes: the marks are taken back, and the engine gets an event.
3. The others are evicted, as often as it takes: half a gang is of no use.
4. An eviction writes a reason of its own into the condition, so ours is written again, with an event for `kubectl describe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from flowsched.background import Backoff
from flowsched.cluster.kubernetes.api.client import Client, decoded
from flowsched.cluster.kubernetes.api.errors import Answer
from flowsched.cluster.kubernetes.api.watch import Batch
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.cluster.kubernetes.objects.core import OnlyMetadata
from flowsched.cluster.kubernetes.objects.labels import PREFIX
from flowsched.cluster.kubernetes.objects.metadata import (
    LabelSelector,
    Metadata,
    Read,
    condition_of,
    moment_ms,
    selects,
    timestamp,
)
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.request_bodies import STRATEGIC, EventText, event, eviction
from flowsched.executor.foreign import BudgetSeen, Evict, EvictionRefused, Stake
from flowsched.executor.protocol import ClusterEvent
from flowsched.log_lines import get_logger
from flowsched.workflow.spec import QosClass

#: Annotation of a pod or its PodGroup: "false" = it is never taken away for others, "true" = it may be, controller or not.
PREEMPTIBLE: Final = f"{PREFIX}preemptible"
#: Volcano's word for the same; only its "false" is heard, since there "true" is what has to be asked for.
_VOLCANO: Final = "volcano.sh/preemptable"
#: The condition by which a Job's `podFailurePolicy` tells an eviction from a failure, and the reason kube-scheduler writes.
DISRUPTION: Final = "DisruptionTarget"
PREEMPTION: Final = "PreemptionByScheduler"
#: How our own words begin there: others (kube-scheduler) write the same reason.
MESSAGE_PREFIX: Final = "flowsched: "
_QOS: Final = {each.word: int(each) for each in QosClass}


def preemptible_of(metadata: Metadata) -> bool | None:
    """Whether an object says that it may be evicted for others; None = it does not say.

    Any value but "true" means no: an author that misspells the value of the annotation is on the safe side.
    """
    annotation = metadata.annotations.get(PREEMPTIBLE)
    if annotation is not None:
        return annotation.strip().lower() == "true"
    volcano = metadata.annotations.get(_VOLCANO) or metadata.labels.get(_VOLCANO)
    return False if volcano == "false" else None


def stake_of(pod: Pod, budgets: tuple[str, ...]) -> Stake:
    """The disruption cost of a pod, for preemption.

    Args:
        pod: One that has a node.
        budgets: Names of the disruption budgets that cover it.
    """
    condition = condition_of(pod.status.conditions, DISRUPTION)
    return Stake(
        priority=pod.spec.priority or 0,
        qos=_QOS.get(pod.status.qos_class, int(QosClass.BURSTABLE)),
        created_ms=moment_ms(pod.metadata.creation_timestamp) or 0,
        started_ms=_started_ms(pod),
        preemptible=preemptible_of(pod.metadata),
        budgets=budgets,
        marked=condition is not None
        and (condition.status, condition.reason) == ("True", PREEMPTION)
        and condition.message.startswith(MESSAGE_PREFIX),
    )


def _started_ms(pod: Pod) -> int | None:
    """When the first of its containers that runs, or has ended, began; None where none has."""
    if not pod.status.container_statuses:
        return None
    states = (each.state for each in pod.status.container_statuses)
    started = (state.running or state.terminated for state in states)
    moments = [moment_ms(each.started_at) for each in started if each is not None]
    return min((moment for moment in moments if moment is not None), default=None)


# ---- evicting units ----


log = get_logger(__name__)

#: The condition does not name the workload that takes the room: the pod's owner may have no right to know of it.
WHY: Final = f"{MESSAGE_PREFIX}preempting to accommodate work of a higher priority or of a queue that may take its room"
STAYS: Final = f"{MESSAGE_PREFIX}it stays: "
_LONGEST_PAUSE_S: Final = 10.0
#: After so many answers that decide nothing, the eviction of a unit is given up if none of its pods has gone yet.
_TRIES: Final = 5


class MakingWay:
    """Takes units away.

    Args:
        client: Of the API server.
        report: Takes events.
        lease: Its clock and failpoints.
        caught_up: Waits until the view shows everything up to a resourceVersion.
    """

    def __init__(
        self,
        client: Client,
        *,
        report: Callable[[ClusterEvent], None],
        lease: Lease,
        caught_up: Callable[[int], Awaitable[None]],
    ) -> None:
        self._client = client
        self._report = report
        self._lease = lease
        self._caught_up = caught_up

    async def clear(self, orders: Sequence[Evict]) -> None:
        """Evict all pods of a unit, or none."""
        marked = await asyncio.gather(*(self._mark(order, "True", WHY) for order in orders))
        refused = next((found for found in marked if isinstance(found, str)), None)
        there = [order for order, found in zip(orders, marked, strict=True) if isinstance(found, int)]
        begun = any(order.begun for order in orders)  # by a leader before this one
        if there and (begun or refused is None):
            await self._lease.failpoint("evict.marked")
            refused = await self._evict(there[0], begun=begun)
        if refused is not None:
            await self._revert(orders, refused)
            return
        await self._lease.failpoint("evict.first")
        await asyncio.gather(*(self._evict(order, begun=True) for order in there[1:]))
        await asyncio.gather(*(self._announce(order) for order in there))

    async def _revert(self, orders: Sequence[Evict], why: str) -> None:
        """Unmark the pods, and report the refusal only after the view shows that.

        Otherwise the engine would take the marks for those of an earlier leader.
        """
        log.info("pods stay", namespace=orders[0].namespace, pods=len(orders), first=orders[0].name, why=why)
        versions = await asyncio.gather(
            *(self._mark(order, "False", f"{STAYS}{why}"[:1024]) for order in orders)
        )
        newest = max((found for found in versions if isinstance(found, int)), default=None)
        if newest is not None:
            await self._caught_up(newest)
        self._report(EvictionRefused(tuple(order.uid for order in orders), why))

    async def _mark(self, order: Evict, status: str, message: str) -> int | str | None:
        """Write the condition. Returns the pod's version then, why it is refused, or None if the pod is no more."""
        condition = {
            "type": DISRUPTION,
            "status": status,
            "reason": PREEMPTION,
            "message": message,
            "lastTransitionTime": timestamp(self._lease.clock()),
        }
        body = msgspec.json.encode({"metadata": {"uid": order.uid}, "status": {"conditions": [condition]}})
        path = f"{_path(order)}/status"
        answer = await self._decided("PATCH", path, body, STRATEGIC)
        if answer.ok:
            return int(decoded(answer.body, OnlyMetadata, path).metadata.resource_version)
        return (
            None if answer.status in (404, 409, 422) else answer.message
        )  # another pod of its name, or none

    async def _evict(self, order: Evict, *, begun: bool) -> str | None:
        """Evict one pod. Returns why not, if it may not go and no pod of its unit has gone yet (not `begun`)."""
        body = eviction(order.name, order.namespace, order.uid)
        backoff, tries = Backoff(_LONGEST_PAUSE_S), 0
        while True:
            answer = await self._client.try_call("POST", f"{_path(order)}/eviction", body)
            tries += 1
            if answer is not None and (answer.ok or answer.status in (404, 409)):
                # A version that changed in between is a conflict too; another pod of the name is none of ours.
                if answer.status != 409 or await self._is_gone(order):
                    return None
            elif not begun and (answer is not None and not answer.undecided):
                return answer.message or f"status {answer.status}"
            if not begun and tries >= _TRIES:
                return "no answer" if answer is None else answer.message or f"status {answer.status}"
            if begun and tries % 10 == 0:
                why = "no answer" if answer is None else answer.message
                log.warning("pod not evicted yet", namespace=order.namespace, pod=order.name, why=why)
            await backoff.wait()

    async def _is_gone(self, order: Evict) -> bool:
        answer = await self._client.try_call("GET", _path(order), None)
        if answer is None or not answer.ok:
            return answer is not None and answer.status == 404
        found = decoded(answer.body, OnlyMetadata, order.name).metadata
        return found.uid != order.uid or found.deletion_timestamp is not None

    async def _announce(self, order: Evict) -> None:
        """For its controller and for people; nothing depends on it any more."""
        await self._mark(order, "True", WHY)
        regarding = {
            "apiVersion": "v1", "kind": "Pod", "namespace": order.namespace, "name": order.name, "uid": order.uid,
        }  # fmt: skip
        text = EventText("Preempting", "Preempted", WHY, "Normal")
        body = event(text, regarding, self._lease.clock())
        path = f"/apis/events.k8s.io/v1/namespaces/{order.namespace}/events"
        await self._client.try_call("POST", path, body)

    async def _decided(self, method: str, path: str, body: bytes, kind: str) -> Answer:
        """Ask until the server has decided."""
        backoff = Backoff(_LONGEST_PAUSE_S)
        while True:
            answer = await self._client.try_call(method, path, body, kind)
            if answer is not None and not answer.undecided:
                return answer
            await backoff.wait()


def _path(order: Evict) -> str:
    return f"/api/v1/namespaces/{order.namespace}/pods/{order.name}"


# ---- disruption budgets: which pods they cover, and how many of those may go now. No I/O ----


PATH = "/apis/policy/v1/poddisruptionbudgets"


class BudgetSpec(Read, frozen=True):
    """Which pods it covers."""

    selector: LabelSelector | None = None


class BudgetStatus(Read, frozen=True):
    """How many of them may go, by its controller."""

    disruptions_allowed: int = 0
    observed_generation: int = 0


class PodDisruptionBudget(Read, frozen=True):
    """A disruption budget."""

    metadata: Metadata = Metadata()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


@dataclass(frozen=True, slots=True)
class _Budget:
    selector: LabelSelector | None
    allowed: int


class Budgets:
    """All of them.

    Args:
        report: Takes events.
    """

    def __init__(self, report: Callable[[ClusterEvent], None]) -> None:
        self._report = report
        self._of: dict[str, dict[str, _Budget]] = {}  #: namespace -> name -> budget

    def everything(self) -> Iterator[ClusterEvent]:
        """All budgets once more."""
        for namespace, budgets in self._of.items():
            for name, budget in budgets.items():
                yield BudgetSeen(f"{namespace}/{name}", budget.allowed)

    def covering(self, namespace: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Names of those that cover a pod, sorted."""
        budgets = self._of.get(namespace)
        if not budgets:
            return ()
        found = (name for name, budget in budgets.items() if selects(budget.selector, labels))
        return tuple(f"{namespace}/{name}" for name in sorted(found))

    def changed(self, batch: Batch[PodDisruptionBudget]) -> set[str]:
        """Budgets came, changed or went. Returns the namespaces in which others are covered now."""
        touched = set()
        if batch.replaced is not None:
            here = {(each.metadata.namespace, each.metadata.name) for each in batch.replaced}
            known = [(space, name) for space, budgets in self._of.items() for name in budgets]
            touched |= {
                space for space, name in known if (space, name) not in here and self._gone(space, name)
            }
        for change, each in batch.items():
            meta = each.metadata
            if change == "DELETED":
                other = self._gone(meta.namespace, meta.name)
            else:
                other = self._apply(each)
            if other:
                touched.add(meta.namespace)
        return touched

    def _apply(self, each: PodDisruptionBudget) -> bool:
        meta, status = each.metadata, each.status
        # One that its controller has not looked at yet allows nothing: the server says so too.
        allowed = status.disruptions_allowed if status.observed_generation >= meta.generation else 0
        budgets = self._of.setdefault(meta.namespace, {})
        known = budgets.get(meta.name)
        budgets[meta.name] = _Budget(each.spec.selector, allowed)
        if known is None or known.allowed != allowed:
            self._report(BudgetSeen(f"{meta.namespace}/{meta.name}", allowed))
        return known is None or known.selector != each.spec.selector

    def _gone(self, namespace: str, name: str) -> bool:
        budgets = self._of.get(namespace, {})
        if budgets.pop(name, None) is None:
            return False
        if not budgets:
            del self._of[namespace]
        self._report(BudgetSeen(f"{namespace}/{name}", None))
        return True
