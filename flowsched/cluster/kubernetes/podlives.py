"""The lives of our own pods, one by one: each is made, bound and ended by calls that are repeated until the server has answered.

A pod's name is used once (FAULTS.md P3). `AlreadyExists` with our marks is success; a name that must never run is taken by a
*tombstone*, so that an earlier leader that wakes up late is told that it exists. An answer that got lost is never guessed: the
server is asked again. Which pods there shall be is `own`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from flowsched.cluster.kubernetes.agent.orders import LIFE_MS
from flowsched.cluster.kubernetes.bodies import binding, tombstone
from flowsched.cluster.kubernetes.chores import Chores
from flowsched.cluster.kubernetes.client import Client, decoded
from flowsched.cluster.kubernetes.deviceclaims import DeviceClaims
from flowsched.cluster.kubernetes.gangs import Gangs
from flowsched.cluster.kubernetes.manifests import pod_manifest
from flowsched.cluster.kubernetes.marks import ENGINE_NAME, INSTANCE, MANAGED_BY, REASON, VOID
from flowsched.cluster.kubernetes.names import label_value, pod_name
from flowsched.cluster.kubernetes.objects import Pod as PodObject
from flowsched.cluster.kubernetes.outcomes import Waiting, outcome
from flowsched.cluster.kubernetes.podcalls import FIRST_PAUSE_S, LONGEST_PAUSE_S, Doubt, PodCalls
from flowsched.cluster.kubernetes.refusals import Permanent, judge
from flowsched.cluster.kubernetes.release import Extras, Refusal, ReleaseSettings
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
