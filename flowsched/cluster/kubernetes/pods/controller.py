"""The pod controller: it keeps the pods that this installation wants and the pods that the API server has equal.

A pod's name is used once (FAULTS.md P3). `AlreadyExists` with our labels is success. A pod runs only by its *bind*, which is sent
after the answer to its create and after the process has asked its clock whether it leads. So a pod that an earlier leader's create
makes after the next leader has found none is never bound: it is an orphan, and is removed (docs/decisions/004). Where an answer got
lost, the controller asks the API server again instead of guessing. A change by the controller counts once the watch
shows it; no assumption ends by its age.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from flowsched.background import (
    BackgroundTasks,
    Backoff,
    Explain,
)
from flowsched.cluster.kubernetes.api.client import decoded
from flowsched.cluster.kubernetes.api.errors import (
    QUOTA_EXCEEDED,
    Malformed,
    Permanent,
    Refused,
    Unreachable,
    judge,
)
from flowsched.cluster.kubernetes.dra.claims import DeviceClaims
from flowsched.cluster.kubernetes.dra.inventory import places_of
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.cluster.kubernetes.objects.labels import GROUP, engine_name, is_ours
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.orders import LIFE_MS
from flowsched.cluster.kubernetes.pods.gang_objects import GangObjects
from flowsched.cluster.kubernetes.pods.manifest import pod_manifest
from flowsched.cluster.kubernetes.pods.pod_api import PodApi
from flowsched.cluster.kubernetes.pods.status import PULLS, Waiting, outcome
from flowsched.cluster.node.container_paths import Refusal
from flowsched.executor.protocol import (
    NOT_LAUNCHED,
    ClusterEvent,
    Pod,
    PodEnded,
    PodGone,
    PodHeld,
    PodStarted,
)
from flowsched.log_lines import get_logger

log = get_logger(__name__)

EventSink = Callable[[ClusterEvent], None]
End = PodEnded | PodGone
#: Between two looks for what is left of gangs: half of the minute in which nothing may be left (FAULTS.md P5).
GANGS_S: Final = 30.0
#: Pods that compute their manifests or bindings in one pass of the event loop: 32 take some 5 ms.
TOGETHER: Final = 32


@dataclass(frozen=True, slots=True)
class PodTimeouts:
    """After how many seconds the controller stops waiting.

    Args:
        start_s: A pod that cannot start for a reason that waiting does not change is given up.
        pull_s: An image cannot be pulled for a reason that may pass (its registry is not reached, or is busy): the pod is given up.
        bound_s: A pod that has a node and does not start is given up, whatever its kubelet says of it.
        stray_s: An ended pod that the engine does not know is removed: the service was killed before it could do so.
    """

    start_s: float = 300.0
    pull_s: float = 900.0
    bound_s: float = 3600.0
    stray_s: float = 15.0


@dataclass(slots=True, eq=False)
class DesiredPod:
    """A pod that the engine has asked for; the engine waits for its end."""

    name: str
    order: Pod | None = None
    uid: str = ""
    node: str = ""
    started: bool = False  #: its start was reported
    released: bool = False
    end: End | None = None  #: as it was reported
    end_when_deleted: End | None = (
        None  #: its end, reported once it is deleted, where the controller deletes it
    )
    reported_wait: tuple[str, str] = ("", "")  #: the reason and message that were reported last
    stuck_since: float | None = (
        None  #: on the loop's clock: it waits for what will not come, or an image that does not
    )
    patience_s: float = 0.0  #: how long it may be stuck
    bound_since: float | None = None  #: it has a node, and has not started
    task: asyncio.Task[None] | None = None


class PodController:
    """Keeps the pods that this installation wants and the pods that the API server has equal.

    Each pod that changes has one asyncio task. Every method but `settle` and `sweep` returns at once.

    Args:
        api: Requests about pods.
        gangs: PodGroups, Services and Secrets of gangs.
        devices: The claims on GPUs; None = GPUs are not claimed.
        settings: How pods are released.
        lease: Whether this process leads.
        events: Takes what happens to the pods, on the event loop.
        has_node: Whether the cluster has a node of this name. The API server does not ask when a pod is bound.
        timeouts: How long the controller waits.
    """

    def __init__(
        self,
        api: PodApi,
        gangs: GangObjects,
        devices: DeviceClaims | None,
        *,
        settings: ReleaseSettings,
        lease: Lease,
        events: EventSink,
        has_node: Callable[[str], bool],
        timeouts: PodTimeouts,
    ) -> None:
        self._api = api
        self._gangs = gangs
        self._devices = devices
        self._settings = settings
        self._lease = lease
        self._events = events
        self._has_node = has_node
        self._timeouts = timeouts
        self._desired: dict[str, DesiredPod] = {}
        self._observed: dict[str, PodObject] = {}  #: by engine name, as last observed
        self._adopted: set[str] = set()
        self._begun = False  #: whether this process has led, and knows which pods are desired
        self._strays: dict[str, float] = {}  #: ended pods that are not desired -> since when
        self._gangs_swept = float("-inf")  #: on the loop's clock
        self._background = BackgroundTasks("a pod")
        self._turns = asyncio.Semaphore(TOGETHER)

    async def close(self) -> None:
        """Stop working. Pods stay as they are."""
        await self._background.close()

    # --- desired pods: the engine's requests -----------------------------------------------------------------

    def launch(self, pods: Sequence[Pod]) -> None:
        """Make and bind pods. All pods of a gang are made before one of them is bound."""
        gangs: dict[str, list[DesiredPod]] = {}
        for order in pods:
            known = self._desired.get(order.name)
            if known is not None and (known.end is not None or known.order is not None or known.released):
                if known.end is not None:  # asked twice
                    self._events(known.end)
                continue
            pod = DesiredPod(order.name, order, node=order.node)
            self._desired[order.name] = pod
            if not self._has_node(order.node):
                self._report_end(pod, self._gone(pod, "NoSuchNode"))
                continue
            gangs.setdefault(self._gangs.name_of(order) or order.name, []).append(pod)
        for members in gangs.values():
            ready = asyncio.Barrier(len(members)) if len(members) > 1 else None
            for pod in members:
                pod.task = self._background.begin(self._launch(pod, ready), failed=partial(self._broke, pod))

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """Take over the pods of an earlier leader: those that exist go on, those that do not never will."""
        for order in pods:
            before = self._desired.get(order.name)
            if before is not None and before.task is not None:
                before.task.cancel()  # of an earlier term of this process: it is asked anew
            pod = self._desired[order.name] = DesiredPod(order.name, order, node=order.node)
            self._adopted.add(order.name)
            self._gangs.member(order)
            obj = self._observed.get(order.name)
            if obj is not None:
                pod.uid = obj.metadata.uid
                self._report_status(pod, obj, deleted=False)
                if not obj.spec.node_name and pod.end is None:
                    pod.task = self._background.begin(self._bind(pod), failed=partial(self._broke, pod))
            else:
                pod.task = self._background.keep(partial(self._find, pod), pod.name)

    def begin(self) -> None:
        """Begin a term: the ends of pods that were not adopted are durable, so they are not desired any more."""
        for name in self._desired.keys() - self._adopted:
            pod = self._desired.pop(name)
            if pod.task is not None:
                pod.task.cancel()
            if pod.order is not None:
                self._gangs.left(pod.order)
        self._adopted.clear()
        self._strays.clear()
        self._gangs_swept = float("-inf")
        self._begun = True

    def release(self, names: Sequence[str], grace_ms: int) -> None:
        """End pods. A pod that does not exist never runs."""
        for name in names:
            pod = self._desired.setdefault(name, DesiredPod(name))
            if pod.end is not None:
                self._events(pod.end)
            elif not pod.released:
                pod.released = True
                before, pod.task = pod.task, None
                pod.task = self._background.keep(partial(self._release, pod, before, grace_ms), pod.name)

    async def settle(self, names: Sequence[str]) -> None:
        """Remove pods after the engine has stored their ends durably."""
        for name in names:
            pod = self._desired.pop(name, None)
            if pod is not None and pod.order is not None:
                self._gangs.left(pod.order)
            if (obj := self._observed.get(name)) is not None:
                self._background.begin(self._delete(obj))

    def order_of(self, name: str) -> Pod | None:
        """The order of a pod that is desired."""
        pod = self._desired.get(name)
        return pod.order if pod is not None else None

    def object_of(self, name: str) -> PodObject | None:
        """A pod as it was last observed."""
        return self._observed.get(name)

    def is_awaited(self, name: str) -> bool:
        """Whether the engine waits for the pod's end."""
        pod = self._desired.get(name)
        return pod is not None and pod.end is None

    def awaited_on(self) -> set[str]:
        """Nodes to which pods are on their way: they were launched, and the watch does not show them bound yet."""
        return {
            pod.node
            for pod in self._desired.values()
            if pod.end is None
            and not pod.released
            and not ((obj := self._observed.get(pod.name)) and obj.spec.node_name)
        }

    def orphans(self) -> list[str]:
        """Pods that live and are not desired."""
        return [name for name, obj in self._observed.items() if name not in self._desired and not _ended(obj)]

    # --- observed pods: the watch's state --------------------------------------------------------------------

    def observe(self, obj: PodObject, *, deleted: bool = False) -> None:
        """Note one of our pods as it is now (or was last)."""
        name = engine_name(obj)
        if name is None:
            return
        known = self._observed.get(name)
        if not deleted:
            self._observed[name] = obj
        elif known is not None and known.metadata.uid == obj.metadata.uid:
            del self._observed[name]
        if self._devices is not None and (deleted or _ended(obj)) and self._leads():
            self._devices.left(obj)
        pod = self._desired.get(name)
        if pod is not None:
            self._report_status(pod, obj, deleted)

    def relisted(self, uids: Collection[str]) -> None:
        """Note that a complete list was read: a pod that is not in it is gone."""
        for obj in [obj for obj in self._observed.values() if obj.metadata.uid not in uids]:
            self.observe(obj, deleted=True)

    def node_lost(self, node: str) -> None:
        """Note that a node is gone: its kubelet will never report how its pods ended.

        `sweep` finds a pod that is bound too late to be seen here, or that lost its node while no process led.
        """
        if not self._leads():
            return
        for name, obj in list(self._observed.items()):
            if obj.spec.node_name == node:
                self._background.begin(self._delete_lost(name, obj))

    def _leads(self) -> bool:
        """Whether this process is the one that tidies up."""
        return self._begun and self._lease.may_act()

    # --- one pod's life --------------------------------------------------------------------------------------

    def _broke(self, pod: DesiredPod, error: Exception) -> None:
        """End a pod whose launch raised: what waits for it would wait for ever."""
        if pod.end is None:
            end = self._refused(pod, "StartFailed", f"the launch broke: {error!r}")
            self._background.keep(partial(self._give_up, pod, end), pod.name)

    async def _launch(self, pod: DesiredPod, ready: asyncio.Barrier | None) -> None:
        """Make one pod, wait for the others of its gang, bind it."""
        made = False
        try:
            await self._turn()
            made = await self._make(pod)
        finally:
            if not made and ready is not None:
                await ready.abort()
        if not made:
            return
        if ready is not None:
            try:
                await ready.wait()
            except asyncio.BrokenBarrierError:
                return  # another member cannot be made: the engine hears so, and releases this one too
        await self._bind(pod)

    async def _turn(self) -> None:
        """Wait until few pods compute in the next pass of the event loop. Members of a gang all go on at the same moment."""
        async with self._turns:
            await asyncio.sleep(0)

    async def _make(self, pod: DesiredPod) -> bool:
        """Create the pod. False: it has ended already."""
        order = pod.order
        assert order is not None
        group = await self._gangs.ready(order, self._explain(pod))
        if isinstance(group, Refusal):
            self._report_end(pod, self._refused(pod, group.reason, group.message))
            return False
        await self._turn()
        body = pod_manifest(order, self._settings, group, self._lease.clock() + LIFE_MS)
        if isinstance(body, Refusal):
            self._report_end(pod, self._refused(pod, body.reason, body.message))
            return False
        backoff = Backoff()
        while True:
            answer = await self._api.create(body, self._explain(pod))
            if answer is not None and answer.ok:
                pod.uid = decoded(answer.body, PodObject, pod.name).metadata.uid
                await self._lease.failpoint("kube.created")
                self._report_wait(pod, "", "")
                return True
            if answer is not None and answer.reason == "AlreadyExists":
                return await self._adopt_existing(pod, "PodDeleted")
            if answer is not None:
                verdict = judge(answer)
                if isinstance(verdict, Permanent):
                    self._report_end(pod, self._refused(pod, "StartFailed", verdict.message))
                    return False
                self._report_wait(pod, verdict.reason, verdict.message)
                if verdict.reason == QUOTA_EXCEEDED and order.gang is not None:
                    # The engine releases the other members: a gang that is half made would keep others' room and wait.
                    self._report_end(pod, self._gone(pod, QUOTA_EXCEEDED))
                    return False
            await backoff.wait()

    async def _find(self, pod: DesiredPod) -> None:
        """Take over a pod that the watch does not show (yet), or end it: an earlier leader made none that will ever be bound."""
        if await self._adopt_existing(pod, NOT_LAUNCHED):
            await self._bind(pod)

    async def _adopt_existing(self, pod: DesiredPod, absent: str) -> bool:
        """Decide about the pod of this name that the API server has. True: it is ours, and goes on as if it had just been made.

        Args:
            pod: Which.
            absent: Why it ends if there is none.
        """
        obj = await self._api.read(pod.name, self._explain(pod))
        if obj is None:
            self._report_end(pod, self._gone(pod, absent))
            return False
        if not is_ours(obj, self._settings) or engine_name(obj) != pod.name:
            message = f"a pod {obj.metadata.name!r} exists and is not flowsched's; it is left alone"
            self._report_end(pod, self._refused(pod, "StartFailed", message))
            return False
        pod.uid = obj.metadata.uid
        self._report_status(pod, obj, deleted=False)
        return pod.end is None

    async def _bind(self, pod: DesiredPod) -> None:
        """Bind the pod to its node, and to no other; open its gate where another scheduler binds it."""
        ours = self._settings.hand_over is None
        backoff = Backoff()
        await self._turn()
        problem = await self._reserve_devices(pod)
        while pod.end is None:
            answer, refusal = None, problem
            if not refusal and ours and not self._has_node(pod.node):  # the API server would not mind
                refusal = f"there is no node {pod.node!r} any more"
            if not refusal:
                answer = await self._api.bind(pod.name, pod.uid, pod.node, self._explain(pod))
            if answer is not None and answer.ok:
                await self._lease.failpoint("kube.bound")
                self._report_wait(pod, "", "")
                return
            obj = await self._api.read(pod.name, self._explain(pod))
            if obj is None or obj.metadata.uid != pod.uid:
                if pod.name not in self._observed:  # else the watch shows its end
                    self._report_end(pod, self._gone(pod, "PodDeleted"))
                return
            if obj.spec.node_name or obj.metadata.deletion_timestamp:
                if ours:
                    self._delete_if_bound_elsewhere(pod, obj)
                return
            verdict = judge(answer) if answer is not None else None
            if refusal or isinstance(verdict, Permanent):
                # The binding will never be accepted: the pod goes, and its task is placed anew.
                self._report_wait(pod, "BindRefused", refusal or (verdict.message if verdict else ""))
                await self._delete_and_end(pod, obj, self._gone(pod, "BindRefused"))
                return
            if verdict is not None:
                self._report_wait(pod, verdict.reason, verdict.message)
            await backoff.wait()

    async def _reserve_devices(self, pod: DesiredPod) -> str:
        """Reserve a pod's devices before it is bound. Returns why that cannot be; "" if it can or there are none."""
        if self._devices is None or pod.order is None or not pod.order.gpu_ids:
            return ""
        return await self._devices.reserve(pod.order, pod.uid, self._explain(pod))

    def _delete_if_bound_elsewhere(self, pod: DesiredPod, obj: PodObject) -> None:
        """Delete a pod that another scheduler bound first: it runs where no room was taken for it."""
        if obj.spec.node_name and obj.spec.node_name != pod.node:
            log.warning(
                "pod bound by another scheduler", pod=pod.name, node=obj.spec.node_name, wanted=pod.node
            )
            self._background.begin(self._delete(obj, None))

    async def _release(self, pod: DesiredPod, before: asyncio.Task[None] | None, grace_ms: int) -> None:
        """End the pod, whatever became of its launch."""
        if before is not None:
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
        backoff = Backoff()
        while pod.end is None:
            obj = self._observed.get(pod.name) or await self._api.read(pod.name, self._explain(pod))
            if obj is None or not is_ours(obj, self._settings):
                self._report_end(pod, self._gone(pod, "Released"))
                return
            pod.uid = obj.metadata.uid
            await self._api.delete(obj, -(-grace_ms // 1000))
            if pod.name in self._observed:
                return  # the watch shows its end
            await backoff.wait()

    async def _delete_and_end(self, pod: DesiredPod, obj: PodObject, end: End) -> None:
        """Delete a pod at once and report its end: not before it is gone, because its room is not free before.

        The watch may be faster than the answer, and would call the pod deleted. The watch alone shows the end of a pod that was
        bound meanwhile.
        """
        pod.end_when_deleted = end
        if await self._api.delete(obj, 0):
            self._report_end(pod, end)

    def _report_status(self, pod: DesiredPod, obj: PodObject, deleted: bool) -> None:
        """Report what a pod's status means."""
        if pod.end is not None or (pod.uid and pod.uid != obj.metadata.uid):
            return
        pod.uid = obj.metadata.uid
        events = outcome(obj, pod.name, self._lease.clock(), released=pod.released, deleted=deleted)
        for event in events:
            if isinstance(event, Waiting):
                self._note_waiting(pod, event, bound=bool(obj.spec.node_name))
            elif isinstance(event, PodStarted):
                pod.bound_since = None
                if not any(isinstance(other, Waiting) for other in events):  # a later step may be stuck
                    pod.stuck_since = None
                if not pod.started:
                    pod.started = True
                    self._events(event)
            else:
                known = pod.end_when_deleted if deleted and isinstance(event, PodGone) else None
                self._report_end(pod, known or event)

    def _note_waiting(self, pod: DesiredPod, waiting: Waiting, *, bound: bool) -> None:
        now = asyncio.get_running_loop().time()
        if bound and pod.bound_since is None:
            pod.bound_since = now
        if not waiting.permanent and waiting.reason not in PULLS:
            pod.stuck_since = None
        elif pod.stuck_since is None:
            pod.stuck_since = now
        pod.patience_s = self._timeouts.start_s if waiting.permanent else self._timeouts.pull_s
        self._report_wait(pod, waiting.reason, waiting.message)

    def _report_wait(self, pod: DesiredPod, reason: str, message: str) -> None:
        """Report what keeps a pod from starting, once for each kind of reason."""
        if pod.end is None and pod.reported_wait[0] != reason:
            pod.reported_wait = (reason, message)
            self._events(PodHeld(pod.name, reason, message))

    def _explain(self, pod: DesiredPod) -> Explain:
        return lambda reason, message: self._report_wait(pod, reason, message)

    def _report_end(self, pod: DesiredPod, end: End) -> None:
        if pod.end is None:
            pod.end = end
            self._events(end)

    def _gone(self, pod: DesiredPod, reason: str) -> PodGone:
        return PodGone(pod.name, self._lease.clock(), reason, started=pod.started)

    def _refused(self, pod: DesiredPod, reason: str, message: str) -> PodEnded:
        """The end of a pod that cannot be started. 126 is a shell's exit code of a command that cannot be executed."""
        return PodEnded(pod.name, self._lease.clock(), 126, reason, message)

    # --- sweep: changes that only the passing of time shows --------------------------------------------------

    async def sweep(self) -> Sequence[str]:
        """Give up pods that cannot start and gangs that stay half made; remove what is left of gangs, and pods of lost nodes.

        Only the leader tidies: other processes do not know what is still needed.

        Returns:
            Ended pods that are not desired, to be settled.
        """
        if not self._leads():
            self._strays.clear()
            return ()
        now = asyncio.get_running_loop().time()
        for pod in list(self._desired.values()):
            if pod.end is None:
                self._give_up_stuck(pod, now)
        ended = {n for n, obj in self._observed.items() if n not in self._desired and _ended(obj)}
        self._strays = {name: self._strays.get(name, now) for name in ended}
        if now - self._gangs_swept > GANGS_S:
            self._gangs_swept = now
            await self._gangs.sweep({obj.metadata.labels.get(GROUP, "") for obj in self._observed.values()})
        await self._clear_lost_nodes()
        if self._devices is not None:
            await self._devices.sweep(*self._with_devices())
        return [name for name, since in self._strays.items() if now - since > self._timeouts.stray_s]

    def _with_devices(self) -> tuple[set[str], set[str]]:
        """Uids of pods that live or are being made, and the claims that those pods name."""
        awaited = [pod for pod in self._desired.values() if pod.end is None]
        uids = {pod.uid for pod in awaited}
        names = {p.claim for pod in awaited if pod.order for p in places_of(pod.order, self._settings)}
        for obj in self._observed.values():
            if obj.spec.resource_claims and not _ended(obj):
                uids.add(obj.metadata.uid)
                names |= {each.resource_claim_name or "" for each in obj.spec.resource_claims}
        return uids, names

    def _give_up_stuck(self, pod: DesiredPod, now: float) -> None:
        """Give up a pod that has not started for too long (FAULTS.md row 37)."""
        reason, message = pod.reported_wait
        if pod.stuck_since is not None and now - pod.stuck_since > pod.patience_s:
            pod.stuck_since = None
            end = self._refused(pod, "StartFailed", f"{reason}: {message}")
            self._background.keep(partial(self._give_up, pod, end), pod.name)
        elif pod.bound_since is not None and now - pod.bound_since > self._timeouts.bound_s:
            pod.bound_since = None
            self._background.keep(
                partial(self._give_up, pod, self._gone(pod, reason or "NotStarted")), pod.name
            )

    async def _give_up(self, pod: DesiredPod, end: End) -> None:
        obj = self._observed.get(pod.name)
        if obj is not None:
            await self._delete_and_end(pod, obj, end)
        else:
            self._report_end(pod, end)

    async def _clear_lost_nodes(self) -> None:
        """Delete pods on nodes that neither the watch nor the API server has: no kubelet will report their ends."""
        lost: dict[str, list[str]] = {}
        for name, obj in self._observed.items():
            if obj.spec.node_name and not _ended(obj) and not self._has_node(obj.spec.node_name):
                lost.setdefault(obj.spec.node_name, []).append(name)
        for node, names in lost.items():
            try:
                exists = await self._api.is_node(node)
            except (Refused, Unreachable, Malformed):
                continue
            for name in names if not exists else ():
                if name in self._observed:
                    self._background.begin(self._delete_lost(name, self._observed[name]))

    async def _delete_lost(self, name: str, obj: PodObject) -> None:
        """Delete a pod after its node is gone. Its processes went with the node: only the object is left."""
        pod = self._desired.get(name)
        if pod is not None and pod.end is None:
            await self._delete_and_end(pod, obj, self._gone(pod, "NodeLost"))
        else:
            await self._api.delete(obj, 0)

    async def _delete(self, obj: PodObject, grace_s: int | None = 0) -> None:
        await self._api.delete(obj, grace_s)


def _ended(obj: PodObject) -> bool:
    return obj.status.phase in ("Succeeded", "Failed")
