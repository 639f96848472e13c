"""Our own pods on the API server: made and bound on order, followed to their end, removed once that end is durable.

A pod's name is used once (FAULTS.md P3). `AlreadyExists` with our mark is success; a name that must never run is taken by a
*tombstone*, so that an earlier leader that wakes up late is told that it exists. An answer that got lost is never guessed: the
server is asked again. What is done is seen by the watch; nothing here ends by its age.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from flowsched.cluster.kubernetes.answers import Refused, Unreachable
from flowsched.cluster.kubernetes.bodies import binding, tombstone
from flowsched.cluster.kubernetes.client import Client, decoded
from flowsched.cluster.kubernetes.gangs import Gangs
from flowsched.cluster.kubernetes.manifests import pod_manifest
from flowsched.cluster.kubernetes.marks import ENGINE_NAME, REASON, VOID
from flowsched.cluster.kubernetes.names import pod_name
from flowsched.cluster.kubernetes.objects import Pod as PodObject
from flowsched.cluster.kubernetes.objects import moment_ms
from flowsched.cluster.kubernetes.outcomes import Waiting, outcome
from flowsched.cluster.kubernetes.podcalls import FIRST_PAUSE_S, LONGEST_PAUSE_S, PodCalls
from flowsched.cluster.kubernetes.refusals import Permanent, judge
from flowsched.cluster.kubernetes.release import Extras, Refusal, ReleaseSettings
from flowsched.scheduling.executor import ClusterEvent, Pod, PodEnded, PodGone, PodHeld, PodStarted
from flowsched.workflow.spec import Resources, Rules

log = structlog.get_logger(__name__)

#: A pod that cannot start for a reason that waiting does not change is given up after so long.
START_S: Final = 300.0
#: A pod that has ended although nobody waits for it is removed after so long.
STRAY_S: Final = 60.0
#: A tombstone stands so long: no leader sleeps longer and is still connected.
TOMBSTONE_MS: Final = 6 * 3_600_000
Report = Callable[[ClusterEvent], None]
Failpoint = Callable[[str], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Live:
    """A pod that somebody waits for."""

    name: str
    order: Pod | None = None
    uid: str = ""
    node: str = ""
    told_start: bool = False
    released: bool = False
    final: PodEnded | PodGone | None = None
    held: tuple[str, str] = ("", "")
    stuck_since: float | None = None  #: on the loop's clock: it waits for what will not come
    task: asyncio.Task[None] | None = None


class OwnPods:
    """Those that flowsched makes.

    Args:
        client: Of the API server.
        settings: How pods are released.
        gangs: Their PodGroups, Services and Secrets.
        report: Takes events, on the event loop.
        clock: Wall-clock ms.
        may_act: Whether this process still leads, by its own clock: asked right before every write that starts something.
        failpoint: Where a crash would be interesting.
        has_node: Whether there is such a node: the server does not ask when a pod is bound.
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
    ) -> None:
        self._has_node = has_node
        self._client = client
        self._settings = settings
        self._gangs = gangs
        self._report = report
        self._clock = clock
        self._may_act = may_act
        self._failpoint = failpoint
        self._live: dict[str, _Live] = {}
        self._objects: dict[str, PodObject] = {}  #: by engine name, as last seen
        self._voids: dict[str, PodObject] = {}
        self._strays: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._quota = asyncio.Lock()
        self._quota_hit = False
        self._path = f"/api/v1/namespaces/{settings.namespace}/pods"

    async def close(self) -> None:
        """Stop working; what is there stays."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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

    def waits_for(self, name: str) -> bool:
        """Whether the pod's end is waited for."""
        live = self._live.get(name)
        return live is not None and live.final is None

    def node_lost(self, node: str) -> None:
        """A node is no more: its kubelet will never say how its pods ended."""
        for name, obj in list(self._objects.items()):
            if obj.spec.node_name == node:
                self._spawn(self._force(name, obj))

    # --- what is asked ---------------------------------------------------------------------------------------

    def launch(self, pods: Sequence[Pod]) -> None:
        """Make and bind pods; gangs as a whole before any of theirs is bound. Returns at once."""
        gangs: dict[str, list[_Live]] = {}
        for pod in pods:
            live = self._live.get(pod.name)
            if live is not None and (live.final is not None or live.order is not None or live.released):
                self._again(live)
                continue
            live = self._live[pod.name] = _Live(pod.name, pod, node=pod.node)
            if not self._has_node(pod.node):
                live.task = self._spawn(self._entomb(live, "NoSuchNode"))
                continue
            gangs.setdefault(self._gangs.name_of(pod) or pod.name, []).append(live)
        for members in gangs.values():
            ready = asyncio.Barrier(len(members)) if len(members) > 1 else None
            for live in members:
                live.task = self._spawn(self._launch(live, ready))

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """Take over pods of an earlier leader: those that are there go on, those that are not never will be."""
        for pod in pods:
            live = self._live[pod.name] = _Live(pod.name, pod, node=pod.node)
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

    def release(self, names: Sequence[str], grace_ms: int) -> None:
        """End pods; what does not exist never will."""
        for name in names:
            live = self._live.setdefault(name, _Live(name))
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
            if live is not None and live.order is not None:
                self._gangs.left(live.order)
            if obj is not None:
                self._spawn(self._remove(obj))

    def orphans(self) -> list[str]:
        """Pods that live although nobody asked for them."""
        return [name for name, obj in self._objects.items() if name not in self._live and not _ended(obj)]

    async def sweep(self) -> None:
        """What only time tells: pods that cannot start, ended pods that nobody settles, old tombstones."""
        now = asyncio.get_running_loop().time()
        for live in list(self._live.values()):
            if live.stuck_since is not None and now - live.stuck_since > START_S and live.final is None:
                reason, message = live.held
                live.stuck_since = None
                self._give_up(live, f"{reason}: {message}")
        ended = {n for n, obj in self._objects.items() if n not in self._live and _ended(obj)}
        self._strays = {name: self._strays.get(name, now) for name in ended}
        for name, since in self._strays.items():
            if now - since > STRAY_S:
                self._spawn(self._remove(self._objects[name]))
        old = self._clock() - TOMBSTONE_MS
        for void in list(self._voids.values()):
            if (moment_ms(void.metadata.creation_timestamp) or old) < old:
                self._spawn(self._remove(void))

    # --- one pod ---------------------------------------------------------------------------------------------

    async def _launch(self, live: _Live, ready: asyncio.Barrier | None) -> None:
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

    async def _make(self, live: _Live) -> bool:
        """Create the pod. False: it has ended already, or this process must not act any more."""
        order = live.order
        assert order is not None
        group = await self._gangs.ready(order, lambda why: self._hold(live, "GangObjects", why))
        body = pod_manifest(order, self._settings, group, _extras(order))
        if isinstance(body, Refusal):
            self._finish(live, PodEnded(live.name, self._clock(), 126, body.reason, body.message))
            return False
        pause = FIRST_PAUSE_S
        while self._may_act():
            answer = await self._create(body, live)
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
        return False

    async def _meet(self, live: _Live) -> bool:
        """There is a pod of this name. True: it is ours, and goes on as if we had just made it."""
        obj = await self._read(live)
        if obj is None:
            return False if live.final is not None else await self._make(live)
        if engine_name(obj) != live.name:
            message = f"a pod {obj.metadata.name!r} exists and is not flowsched's; it is left alone"
            self._finish(live, PodEnded(live.name, self._clock(), 126, "StartFailed", message))
            return False
        if VOID in obj.metadata.labels:
            self._finish(live, self._gone(live, obj.metadata.annotations.get(REASON, "Voided")))
            return False
        live.uid = obj.metadata.uid
        self._look(live, obj, deleted=False)
        return live.final is None

    async def _bind(self, live: _Live) -> None:
        """Bind the pod to its node, and to no other."""
        if self._settings.hand_over is not None:
            return  # somebody else's business
        pause = FIRST_PAUSE_S
        name = pod_name(live.name)
        body = binding(name, self._settings.namespace, live.uid, live.node)
        while live.final is None and self._may_act():
            answer = await self._ask("POST", f"{self._path}/{name}/binding", body, live)
            if answer is not None and answer.ok:
                await self._failpoint("kube.bound")
                self._hold(live, "", "")
                return
            obj = await self._read(live)
            if obj is None or obj.metadata.uid != live.uid:
                if live.name not in self._objects:  # else the watch tells it
                    self._finish(live, self._gone(live, "PodDeleted"))
                return
            if obj.spec.node_name or obj.metadata.deletion_timestamp:
                self._bound_elsewhere(live, obj)
                return
            if answer is not None:
                verdict = judge(answer)
                if isinstance(verdict, Permanent):
                    await self._refuse(live, obj, verdict.message)
                    return
                self._hold(live, verdict.reason, verdict.message)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 2)

    def _bound_elsewhere(self, live: _Live, obj: PodObject) -> None:
        """Somebody else's scheduler was faster: the pod runs where we took no room for it, so it goes."""
        if obj.spec.node_name and obj.spec.node_name != live.node:
            log.warning(
                "pod bound by somebody else", pod=live.name, node=obj.spec.node_name, wanted=live.node
            )
            self._spawn(self._delete(obj, None))

    async def _refuse(self, live: _Live, obj: PodObject, message: str) -> None:
        """A binding that will never be accepted: the pod goes, and its task is placed anew."""
        self._hold(live, "BindRefused", message)
        await self._delete(obj, 0)
        if live.final is None:
            self._finish(live, self._gone(live, "BindRefused"))

    async def _entomb(self, live: _Live, reason: str) -> None:
        """Take the name, so that nobody ever runs under it; unless somebody does already: then that pod goes on."""
        pause = FIRST_PAUSE_S
        while live.final is None:
            body = tombstone(live.name, self._settings, reason)
            answer = await self._ask("POST", self._path, body, live)
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

    async def _release(self, live: _Live, before: asyncio.Task[None] | None, grace_ms: int) -> None:
        """End the pod, whatever became of its launch."""
        if before is not None:
            before.cancel()
            await asyncio.gather(before, return_exceptions=True)
        if live.final is not None:
            return
        obj = self._objects.get(live.name)
        if obj is None:
            await self._entomb(live, "Released")
            if live.final is not None or not live.uid:
                return
            obj = await self._read(live)
        if obj is None:
            self._finish(live, self._gone(live, "Released"))
            return
        live.uid = obj.metadata.uid
        await self._delete(obj, -(-grace_ms // 1000))
        if not obj.spec.node_name and live.final is None and live.name not in self._objects:
            self._finish(live, self._gone(live, "Released"))

    async def _remove(self, obj: PodObject) -> None:
        """An ended pod (or a tombstone) is not needed any more."""
        await self._delete(obj, 0)

    async def _force(self, name: str, obj: PodObject) -> None:
        """The node is gone, and with it whatever ran there: only the object is left."""
        await self._delete(obj, 0)
        live = self._live.get(name)
        if live is not None and live.final is None:
            self._finish(live, PodGone(name, self._clock(), "NodeLost", started=live.told_start))

    # --- telling ---------------------------------------------------------------------------------------------

    def _look(self, live: _Live, obj: PodObject, deleted: bool) -> None:
        """Tell what a pod's status says."""
        if live.final is not None or (live.uid and live.uid != obj.metadata.uid):
            return
        live.uid = obj.metadata.uid
        now = self._clock()
        for event in outcome(obj, live.name, now, released=live.released, deleted=deleted):
            if isinstance(event, Waiting):
                self._wait(live, event)
            elif isinstance(event, PodStarted):
                live.stuck_since = None
                if not live.told_start:
                    live.told_start = True
                    self._report(event)
            else:
                self._finish(live, event)

    def _wait(self, live: _Live, waiting: Waiting) -> None:
        loop = asyncio.get_running_loop()
        if waiting.permanent and live.stuck_since is None:
            live.stuck_since = loop.time()
        elif not waiting.permanent:
            live.stuck_since = None
        self._hold(live, waiting.reason, waiting.message)

    def _hold(self, live: _Live, reason: str, message: str) -> None:
        """Tell what keeps a pod from starting, once for each kind of reason."""
        if live.final is None and live.held[0] != reason:
            live.held = (reason, message)
            self._report(PodHeld(live.name, reason, message))

    def _give_up(self, live: _Live, message: str) -> None:
        obj = self._objects.get(live.name)
        if obj is not None:
            self._spawn(self._delete(obj, 0))
        self._finish(live, PodEnded(live.name, self._clock(), 126, "StartFailed", message))

    def _finish(self, live: _Live, event: PodEnded | PodGone) -> None:
        if live.final is None:
            live.final = event
            self._report(event)

    def _again(self, live: _Live) -> None:
        """Asked twice: say how it is."""
        if live.final is not None:
            self._report(live.final)

    def _gone(self, live: _Live, reason: str) -> PodGone:
        return PodGone(live.name, self._clock(), reason, started=live.told_start)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # one pod's work must not end the others'
            log.exception("work on a pod failed")


def engine_name(obj: PodObject) -> str | None:
    """The engine's name of one of our pods; None if the object's own name says that it is not the one."""
    name = obj.metadata.annotations.get(ENGINE_NAME)
    return name if name is not None and pod_name(name) == obj.metadata.name else None


def _ended(obj: PodObject) -> bool:
    return obj.status.phase in ("Succeeded", "Failed")


def _extras(order: Pod) -> Extras:
    """What the manifest needs beyond the order's own fields."""
    resources = Resources(
        order.cpu_millicores, order.memory_bytes, order.disk_bytes, order.gpu_millis, dict(order.extended)
    )
    return Extras(resources=resources, limits=order.limits, rules=order.rules or Rules())
