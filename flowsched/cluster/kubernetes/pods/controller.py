"""The pod controller: it keeps the pods that this installation wants and the pods that the API server has equal.

Each pod is made, bound and ended by calls that are repeated until the server has answered. A pod's name is used once (FAULTS.md
P3). `AlreadyExists` with our marks is success. A name that must never run is taken by a *tombstone*, so that an earlier leader
that wakes up late is told that it exists. An answer that got lost is never guessed: the server is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from flowsched.cluster.kubernetes.agent.orders import LIFE_MS
from flowsched.cluster.kubernetes.api.client import Client, decoded
from flowsched.cluster.kubernetes.api.errors import Malformed, Permanent, Refused, Unreachable, judge
from flowsched.cluster.kubernetes.background import Chores
from flowsched.cluster.kubernetes.dra.claims import DeviceClaims
from flowsched.cluster.kubernetes.dra.inventory import places_of
from flowsched.cluster.kubernetes.objects.metadata import moment_ms
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.pods.calls import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    QUOTA,
    Doubt,
    PodCalls,
    binding,
    tombstone,
)
from flowsched.cluster.kubernetes.pods.gang_objects import Gangs
from flowsched.cluster.kubernetes.pods.labels import ENGINE_NAME, GROUP, INSTANCE, MANAGED_BY, REASON, VOID
from flowsched.cluster.kubernetes.pods.manifest import pod_manifest
from flowsched.cluster.kubernetes.pods.names import label_value, pod_name
from flowsched.cluster.kubernetes.pods.release import Extras, Refusal, ReleaseSettings
from flowsched.cluster.kubernetes.pods.status import Waiting, outcome
from flowsched.executor.protocol import ClusterEvent, Pod, PodEnded, PodGone, PodHeld, PodStarted
from flowsched.workflow.spec import Resources, Rules

log = structlog.get_logger(__name__)

Report = Callable[[ClusterEvent], None]
Failpoint = Callable[[str], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Live:
    """A pod that somebody waits for."""

    name: str
    order: Pod | None = None
    uid: str = ""
    node: str = ""
    told_start: bool = False
    released: bool = False
    final: PodEnded | PodGone | None = None
    verdict: PodEnded | PodGone | None = (
        None  #: what is told once it is deleted: we ourselves have it deleted for that
    )
    held: tuple[str, str] = ("", "")
    stuck_since: float | None = None  #: on the loop's clock: it waits for what will not come
    bound_since: float | None = None  #: it has a node, and has not started
    doubt: Doubt = field(default_factory=Doubt)  #: whether there may be a pod of its name, now or soon
    task: asyncio.Task[None] | None = None


class PodLives:
    """What each pod of ours goes through.

    Args:
        client: Of the API server.
        settings: How pods are released.
        gangs: Their PodGroups, Services and Secrets.
        report: Takes events, on the event loop.
        clock: Wall-clock ms.
        may_act: Whether this process still leads, by its own clock: asked right before every write that starts something.
        failpoint: Where a crash would be interesting.
        has_node: Whether there is such a node: the server does not ask when a pod is bound.
        devices: The claims on GPUs; None = GPUs are not claimed.
    """

    def __init__(
        self,
        client: Client,
        settings: ReleaseSettings,
        gangs: Gangs,
        *,
        report: Report,
        clock: Callable[[], int],
        may_act: Callable[[], bool],
        failpoint: Failpoint,
        has_node: Callable[[str], bool],
        devices: DeviceClaims | None = None,
    ) -> None:
        self._has_node = has_node
        self._devices = devices
        self._calls = PodCalls(client, settings.namespace, may_act)
        self._settings = settings
        self._gangs = gangs
        self._report = report
        self._clock = clock
        self._may_act = may_act
        self._failpoint = failpoint
        self._live: dict[str, Live] = {}
        self._objects: dict[str, PodObject] = {}  #: by engine name, as last seen
        self._voids: dict[str, PodObject] = {}
        self._chores = Chores("a pod")
        self._spawn = self._chores.begin

    async def close(self) -> None:
        """Stop working; what is there stays."""
        await self._chores.close()

    async def _launch(self, live: Live, ready: asyncio.Barrier | None) -> None:
        """Make one pod, wait for the others of its gang, bind it."""
        made = await self._make(live)
        if not made:
            if ready is not None:
                await ready.abort()
            return
        if ready is not None:
            try:
                await ready.wait()
            except asyncio.BrokenBarrierError:
                return  # another member cannot be made: the engine, which hears of that, takes this one away too
        await self._bind(live)

    async def _make(self, live: Live) -> bool:
        """Create the pod. False: it has ended already, or this process must not act any more."""
        order = live.order
        assert order is not None
        group = await self._gangs.ready(order, lambda why: self._hold(live, "GangObjects", why))
        if isinstance(group, Refusal):
            self._finish(live, PodEnded(live.name, self._clock(), 126, group.reason, group.message))
            return False
        body = pod_manifest(order, self._settings, group, _extras(order, self._clock() + LIFE_MS))
        if isinstance(body, Refusal):
            self._finish(live, PodEnded(live.name, self._clock(), 126, body.reason, body.message))
            return False
        pause = FIRST_PAUSE_S
        while True:
            answer = await self._calls.create(body, live.doubt, self._told(live))
            if answer is not None and answer.ok:
                live.uid = decoded(answer.body, PodObject, live.name).metadata.uid
                await self._failpoint("kube.created")
                self._hold(live, "", "")
                return True
            if answer is not None and answer.reason == "AlreadyExists":
                return await self._meet(live)
            if answer is not None:
                verdict = judge(answer)
                if isinstance(verdict, Permanent):
                    self._finish(
                        live, PodEnded(live.name, self._clock(), 126, "StartFailed", verdict.message)
                    )
                    return False
                self._hold(live, verdict.reason, verdict.message)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _meet(self, live: Live) -> bool:
        """There is a pod of this name. True: it is ours, and goes on as if we had just made it."""
        obj = await self._calls.read(live.name, self._told(live))
        if obj is None:
            # It was, so it may have run: its name is used up.
            await self._entomb(live, "PodDeleted")
            return False
        if not is_ours(obj, self._settings) or engine_name(obj) != live.name:
            message = f"a pod {obj.metadata.name!r} exists and is not flowsched's; it is left alone"
            self._finish(live, PodEnded(live.name, self._clock(), 126, "StartFailed", message))
            return False
        if VOID in obj.metadata.labels:
            self._finish(live, self._gone(live, obj.metadata.annotations.get(REASON, "Voided")))
            return False
        live.uid = obj.metadata.uid
        self._look(live, obj, deleted=False)
        return live.final is None

    async def _bind(self, live: Live) -> None:
        """Bind the pod to its node, and to no other."""
        if self._settings.hand_over is not None:
            return  # somebody else's business
        pause = FIRST_PAUSE_S
        path = f"{self._calls.path}/{pod_name(live.name)}/binding"
        body = binding(pod_name(live.name), self._settings.namespace, live.uid, live.node)
        refused = await self._reserve(live)
        while live.final is None:
            await self._calls.leads()
            answer, refusal = None, refused
            if not refusal and not self._has_node(live.node):  # the server would not mind
                refusal = f"there is no node {live.node!r} any more"
            if not refusal:
                answer = await self._calls.ask("POST", path, body, self._told(live))
            if answer is not None and answer.ok:
                await self._failpoint("kube.bound")
                self._hold(live, "", "")
                return
            obj = await self._calls.read(live.name, self._told(live))
            if obj is None or obj.metadata.uid != live.uid:
                if live.name not in self._objects:  # else the watch tells it
                    self._finish(live, self._gone(live, "PodDeleted"))
                return
            if obj.spec.node_name or obj.metadata.deletion_timestamp:
                self._bound_elsewhere(live, obj)
                return
            verdict = judge(answer) if answer is not None else None
            if refusal or isinstance(verdict, Permanent):
                await self._refuse(live, obj, refusal or (verdict.message if verdict else ""))
                return
            if verdict is not None:
                self._hold(live, verdict.reason, verdict.message)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _reserve(self, live: Live) -> str:
        """Have a pod's devices ready before it is bound; why that cannot be, "" if it can or there are none."""
        if self._devices is None or live.order is None or not live.order.gpu_ids:
            return ""
        return await self._devices.reserve(live.order, live.uid, self._told(live))

    def _bound_elsewhere(self, live: Live, obj: PodObject) -> None:
        """Somebody else's scheduler was faster: the pod runs where we took no room for it, so it goes."""
        if obj.spec.node_name and obj.spec.node_name != live.node:
            log.warning(
                "pod bound by somebody else", pod=live.name, node=obj.spec.node_name, wanted=live.node
            )
            self._spawn(self._calls.delete(obj, None))

    async def _refuse(self, live: Live, obj: PodObject, message: str) -> None:
        """A binding that will never be accepted: the pod goes, and its task is placed anew."""
        self._hold(live, "BindRefused", message)
        await self._end_by(live, obj, self._gone(live, "BindRefused"))

    async def _entomb(self, live: Live, reason: str) -> None:
        """Take the name, so that nobody ever runs under it; unless somebody does already: then that pod goes on."""
        pause = FIRST_PAUSE_S
        while live.final is None:
            await self._calls.leads()
            body = tombstone(live.name, self._settings, reason)
            answer = await self._calls.ask("POST", self._calls.path, body, self._told(live))
            if answer is not None and answer.ok:
                self._finish(live, self._gone(live, reason))
                return
            if answer is not None and answer.reason == "AlreadyExists":
                if await self._meet(live) and not live.released:
                    await self._bind(live)
                return
            if answer is not None:
                self._hold(live, judge(answer).reason, answer.message)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    async def _withdraw(self, live: Live, before: asyncio.Task[None] | None, reason: str) -> None:
        """See to it that there will be no pod, if there is none yet."""
        if before is not None:
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
        if live.final is not None or live.name in self._objects:
            return
        if live.doubt.open:  # a create may still be on its way, ours or an earlier leader's
            await self._entomb(live, reason)
        elif not live.uid:
            self._finish(live, self._gone(live, reason))

    async def _release(self, live: Live, before: asyncio.Task[None] | None, grace_ms: int) -> None:
        """End the pod, whatever became of its launch."""
        await self._withdraw(live, before, "Released")
        if live.final is not None:
            return
        obj = self._objects.get(live.name) or await self._calls.read(live.name, self._told(live))
        if obj is None:
            self._finish(live, self._gone(live, "Released"))
            return
        live.uid = obj.metadata.uid
        await self._calls.delete(obj, -(-grace_ms // 1000))
        if not obj.spec.node_name and live.final is None and live.name not in self._objects:
            self._finish(live, self._gone(live, "Released"))

    # --- telling ---------------------------------------------------------------------------------------------

    def _look(self, live: Live, obj: PodObject, deleted: bool) -> None:
        """Tell what a pod's status says."""
        if live.final is not None or (live.uid and live.uid != obj.metadata.uid):
            return
        live.uid = obj.metadata.uid
        now = self._clock()
        events = outcome(obj, live.name, now, released=live.released, deleted=deleted)
        for event in events:
            if isinstance(event, Waiting):
                self._wait(live, event, bound=bool(obj.spec.node_name))
            elif isinstance(event, PodStarted):
                live.bound_since = None
                if not any(isinstance(other, Waiting) for other in events):  # a later step may be stuck
                    live.stuck_since = None
                if not live.told_start:
                    live.told_start = True
                    self._report(event)
            else:
                known = live.verdict if deleted and isinstance(event, PodGone) else None
                self._finish(live, known or event)

    def _wait(self, live: Live, waiting: Waiting, *, bound: bool) -> None:
        now = asyncio.get_running_loop().time()
        if bound and live.bound_since is None:
            live.bound_since = now
        if not waiting.permanent:
            live.stuck_since = None
        elif live.stuck_since is None:
            live.stuck_since = now
        self._hold(live, waiting.reason, waiting.message)

    def _hold(self, live: Live, reason: str, message: str) -> None:
        """Tell what keeps a pod from starting, once for each kind of reason."""
        if live.final is None and live.held[0] != reason:
            live.held = (reason, message)
            self._report(PodHeld(live.name, reason, message))

    async def _give_up(self, live: Live, end: PodEnded | PodGone) -> None:
        obj = self._objects.get(live.name)
        if obj is not None:
            await self._end_by(live, obj, end)
        else:
            self._finish(live, end)

    async def _end_by(self, live: Live, obj: PodObject, end: PodEnded | PodGone) -> None:
        """Remove a pod for good, and tell why: not before it is gone, since its room is not free before. The watch may be faster
        than the answer, and would call it deleted.
        """
        live.verdict = end
        await self._calls.delete(obj, 0)
        self._finish(live, end)

    def _told(self, live: Live) -> Callable[[str, str], None]:
        return lambda reason, message: self._hold(live, reason, message)

    def _finish(self, live: Live, event: PodEnded | PodGone) -> None:
        if live.final is None:
            live.final = event
            self._report(event)

    def _again(self, live: Live) -> None:
        """Asked twice: say how it is."""
        if live.final is not None:
            self._report(live.final)

    def _gone(self, live: Live, reason: str) -> PodGone:
        return PodGone(live.name, self._clock(), reason, started=live.told_start)


def is_ours(obj: PodObject, settings: ReleaseSettings) -> bool:
    """Whether this installation has made a pod, by all its marks: one of them alone is easily copied."""
    meta = obj.metadata
    return (
        meta.labels.get(MANAGED_BY) == "flowsched"
        and meta.labels.get(INSTANCE) == label_value(settings.instance)
        and meta.namespace == settings.namespace
    )


def engine_name(obj: PodObject) -> str | None:
    """The engine's name of one of our pods; None if the object's own name says that it is not the one."""
    name = obj.metadata.annotations.get(ENGINE_NAME)
    return name if name is not None and pod_name(name) == obj.metadata.name else None


def _extras(order: Pod, expires_ms: int) -> Extras:
    """What the manifest needs beyond the order's own fields."""
    resources = Resources(
        order.cpu_millicores, order.memory_bytes, order.disk_bytes, order.gpu_millis, dict(order.extended)
    )
    return Extras(resources, order.limits, order.rules or Rules(), expires_ms=expires_ms)


# ---- which pods there shall be, and which there are ----
#
# The watch shows what was done; no assumption here ends by its age.


#: A pod that cannot start for a reason that waiting does not change is given up after so long.
START_S: Final = 300.0
#: A pod that has a node and does not start is given up after so long, whatever its kubelet says of it.
WAIT_S: Final = 3600.0
#: A gang that a quota keeps from being whole gives back what it has after so long: two such would wait for each other.
SHORT_S: Final = 60.0
#: A pod that has ended although nobody waits for it is removed after so long: the service was killed before it could do so.
STRAY_S: Final = 15.0
#: A tombstone stands so long: no leader sleeps longer and is still connected.
TOMBSTONE_MS: Final = 6 * 3_600_000


class OwnPods(PodLives):
    """Those that flowsched makes.

    Args:
        client, settings, gangs, report, clock, may_act, failpoint, has_node, devices: See `PodLives`.
        start_s, wait_s: See `START_S` and `WAIT_S`.
    """

    def __init__(
        self,
        client: Client,
        settings: ReleaseSettings,
        gangs: Gangs,
        *,
        report: Report,
        clock: Callable[[], int],
        may_act: Callable[[], bool],
        failpoint: Failpoint,
        has_node: Callable[[str], bool],
        devices: DeviceClaims | None = None,
        start_s: float = START_S,
        wait_s: float = WAIT_S,
    ) -> None:
        super().__init__(
            client,
            settings,
            gangs,
            report=report,
            clock=clock,
            may_act=may_act,
            failpoint=failpoint,
            has_node=has_node,
            devices=devices,
        )
        self._start_s, self._wait_s = start_s, wait_s
        self._strays: dict[str, float] = {}
        self._going: set[str] = set()  #: uids of strays that are being removed
        self._adopted: set[str] = set()
        self._begun = False  #: whether this process has led, and knows whom it waits for
        self._short: dict[str, float] = {}  #: gang -> since when a quota keeps it from being whole

    # --- what the watch shows --------------------------------------------------------------------------------

    def seen(self, obj: PodObject, *, deleted: bool = False) -> None:
        """One of our pods, as it is now (or was last)."""
        name = engine_name(obj)
        if name is None:
            return
        if VOID in obj.metadata.labels:
            if deleted:
                self._voids.pop(name, None)
            else:
                self._voids[name] = obj
            return
        known = self._objects.get(name)
        if not deleted:
            self._objects[name] = obj
        elif known is not None and known.metadata.uid == obj.metadata.uid:
            del self._objects[name]
        if self._devices is not None and (deleted or _ended(obj)) and self._leads():
            self._devices.left(obj)
        live = self._live.get(name)
        if live is not None:
            self._look(live, obj, deleted)

    def relisted(self, uids: Collection[str]) -> None:
        """A complete list has been read: what is not in it is gone."""
        for known in (self._objects, self._voids):
            for obj in [obj for obj in known.values() if obj.metadata.uid not in uids]:
                self.seen(obj, deleted=True)

    def object_of(self, name: str) -> PodObject | None:
        """A pod as it was last seen."""
        return self._objects.get(name)

    def outputs_of(self, name: str) -> Sequence[str]:
        """The datasets that a pod was to write."""
        live = self._live.get(name)
        return (
            [output.uri for output in live.order.outputs]
            if live is not None and live.order is not None
            else []
        )

    def waits_for(self, name: str) -> bool:
        """Whether the pod's end is waited for."""
        live = self._live.get(name)
        return live is not None and live.final is None

    def node_lost(self, node: str) -> None:
        """A node is no more: its kubelet will never say how its pods ended. (What is bound too late to be seen here, or went
        while nobody led, `sweep` finds.)
        """
        if not self._leads():
            return
        for name, obj in list(self._objects.items()):
            if obj.spec.node_name == node:
                self._spawn(self._force(name, obj))

    def _leads(self) -> bool:
        """Whether what is to be tidied away is this process's business."""
        return self._begun and self._may_act()

    # --- what is asked ---------------------------------------------------------------------------------------

    def launch(self, pods: Sequence[Pod]) -> None:
        """Make and bind pods; gangs as a whole before any of theirs is bound. Returns at once."""
        gangs: dict[str, list[Live]] = {}
        for pod in pods:
            live = self._live.get(pod.name)
            if live is not None and (live.final is not None or live.order is not None or live.released):
                self._again(live)
                continue
            live = self._live[pod.name] = Live(pod.name, pod, node=pod.node, doubt=Doubt(open=False))
            if not self._has_node(pod.node):
                self._finish(live, self._gone(live, "NoSuchNode"))
                continue
            gangs.setdefault(self._gangs.name_of(pod) or pod.name, []).append(live)
        for members in gangs.values():
            ready = asyncio.Barrier(len(members)) if len(members) > 1 else None
            for live in members:
                live.task = self._spawn(self._launch(live, ready))

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """Take over pods of an earlier leader: those that are there go on, those that are not never will be."""
        for pod in pods:
            before = self._live.get(pod.name)
            if before is not None and before.task is not None:
                before.task.cancel()  # of an earlier term of this process: it is asked anew
            live = self._live[pod.name] = Live(pod.name, pod, node=pod.node)
            self._adopted.add(pod.name)
            self._gangs.member(pod)
            obj = self._objects.get(pod.name)
            void = self._voids.get(pod.name)
            if obj is not None:
                live.uid = obj.metadata.uid
                self._look(live, obj, deleted=False)
                if not obj.spec.node_name and live.final is None:
                    live.task = self._spawn(self._bind(live))
            elif void is not None:
                self._finish(live, self._gone(live, void.metadata.annotations.get(REASON, "NotLaunched")))
            else:
                live.task = self._spawn(self._entomb(live, "NotLaunched"))

    def begin(self) -> None:
        """A term begins: who has not been adopted has an end that is durable, and nobody waits for it any more."""
        for name in self._live.keys() - self._adopted:
            live = self._live.pop(name)
            if live.task is not None:
                live.task.cancel()
            if live.order is not None:
                self._gangs.left(live.order)
        self._adopted.clear()
        self._strays.clear()
        self._begun = True

    def release(self, names: Sequence[str], grace_ms: int) -> None:
        """End pods; what does not exist never will."""
        for name in names:
            live = self._live.setdefault(name, Live(name))
            if live.final is not None:
                self._report(live.final)
            elif not live.released:
                live.released = True
                before, live.task = live.task, None
                live.task = self._spawn(self._release(live, before, grace_ms))

    async def settle(self, names: Sequence[str]) -> None:
        """Their ends are durable: remove them."""
        for name in names:
            live = self._live.pop(name, None)
            obj = self._objects.get(name)
            if live is None and obj is not None:
                self._going.add(obj.metadata.uid)
                self._spawn(self._remove_stray(obj))
                continue
            rest = self._gangs.left(live.order) if live is not None and live.order is not None else None
            if obj is not None:
                self._spawn(self._remove(obj, rest))

    def orphans(self) -> list[str]:
        """Pods that live although nobody asked for them."""
        return [name for name, obj in self._objects.items() if name not in self._live and not _ended(obj)]

    async def sweep(self) -> Sequence[str]:
        """What only time tells: pods that cannot start, gangs that stay half made, ended pods that nobody settles, old
        tombstones, pods on nodes that are no more. Only who leads tidies: others do not know what is still needed.

        Returns:
            Ended pods that nobody knows, to be settled.
        """
        if not self._leads():
            self._strays.clear()
            return ()
        now = asyncio.get_running_loop().time()
        for live in list(self._live.values()):
            if live.final is None:
                self._limit(live, now)
        self._share_quota(now)
        ended = {n for n, obj in self._objects.items() if n not in self._live and _ended(obj)}
        self._strays = {name: self._strays.get(name, now) for name in ended}
        old = self._clock() - TOMBSTONE_MS
        for void in list(self._voids.values()):
            if (moment_ms(void.metadata.creation_timestamp) or old) < old:
                self._spawn(self._remove(void))
        await self._clear_lost_nodes()
        if self._devices is not None:
            await self._devices.sweep(*self._with_devices())
        return [name for name, since in self._strays.items() if now - since > STRAY_S]

    def _with_devices(self) -> tuple[set[str], set[str]]:
        """Uids of pods that live or are being made, and the claims that those name."""
        waited = [live for live in self._live.values() if live.final is None]
        uids = {live.uid for live in waited}
        names = {p.claim for live in waited if live.order for p in places_of(live.order, self._settings)}
        for obj in self._objects.values():
            if obj.spec.resource_claims and not _ended(obj):
                uids.add(obj.metadata.uid)
                names |= {each.resource_claim_name or "" for each in obj.spec.resource_claims}
        return uids, names

    def _limit(self, live: Live, now: float) -> None:
        """Give up a pod that has not started for too long (FAULTS.md row 37)."""
        reason, message = live.held
        if live.stuck_since is not None and now - live.stuck_since > self._start_s:
            live.stuck_since = None
            end = PodEnded(live.name, self._clock(), 126, "StartFailed", f"{reason}: {message}")
            self._spawn(self._give_up(live, end))
        elif live.bound_since is not None and now - live.bound_since > self._wait_s:
            live.bound_since = None
            self._spawn(self._give_up(live, self._gone(live, reason or "NotStarted")))

    def _share_quota(self, now: float) -> None:
        """Let gangs that a quota keeps from being whole give back the members they have: the first of them last."""
        short: dict[str, Live] = {}
        for live in self._live.values():
            gang = self._gangs.name_of(live.order) if live.order is not None else None
            if gang is not None and live.final is None and not live.released and live.held[0] == QUOTA:
                short.setdefault(gang, live)
        self._short = {gang: self._short.get(gang, now) for gang in short}
        for number, (gang, since) in enumerate(sorted(self._short.items(), key=lambda item: item[1])):
            if now - since > (SHORT_S if number else 2 * SHORT_S):
                live = short[gang]
                before, live.task = live.task, None
                live.task = self._spawn(self._withdraw(live, before, QUOTA))

    async def _clear_lost_nodes(self) -> None:
        """Pods on nodes that the watch does not show: if the server has no such node either, nobody will tell how they end."""
        lost: dict[str, list[str]] = {}
        for name, obj in self._objects.items():
            if obj.spec.node_name and not _ended(obj) and not self._has_node(obj.spec.node_name):
                lost.setdefault(obj.spec.node_name, []).append(name)
        for node, names in lost.items():
            try:
                there = await self._calls.is_node(node)
            except (Refused, Unreachable, Malformed):
                continue
            for name in names if not there else ():
                if name in self._objects:
                    self._spawn(self._force(name, self._objects[name]))

    # --- removing --------------------------------------------------------------------------------------------

    async def _remove(self, obj: PodObject, after: asyncio.Task[None] | None = None) -> None:
        """An ended pod (or a tombstone) is not needed any more. The last one of a gang goes after the rest of it: as long as
        it is there, a restart sees that something is to be removed.
        """
        if after is not None:
            await asyncio.wait({after})
            if after.cancelled() or after.exception() is not None:
                return  # we are about to end: whoever comes next finds the pod, and removes the rest
        await self._calls.delete(obj, 0)

    async def _remove_stray(self, obj: PodObject) -> None:
        """An ended pod that nobody knows: with the last of its gang goes the rest of that."""
        group = obj.metadata.labels.get(GROUP, "")
        staying = (each for each in self._objects.values() if each.metadata.uid not in self._going)
        others = (each.metadata.labels.get(GROUP) for each in staying)
        rest = self._gangs.stray(group) if group and group not in others else None
        try:
            await self._remove(obj, rest)
        finally:
            self._going.discard(obj.metadata.uid)

    async def _force(self, name: str, obj: PodObject) -> None:
        """The node is gone, and with it whatever ran there: only the object is left."""
        live = self._live.get(name)
        if live is not None and live.final is None:
            gone = PodGone(name, self._clock(), "NodeLost", started=live.told_start)
            await self._end_by(live, obj, gone)
        else:
            await self._calls.delete(obj, 0)


def _ended(obj: PodObject) -> bool:
    return obj.status.phase in ("Succeeded", "Failed")
