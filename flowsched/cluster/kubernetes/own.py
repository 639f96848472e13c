"""Our own pods: which there shall be, which there are, and what nobody needs any more. What each goes through is `podlives`.

What is done is seen by the watch; nothing that is assumed here ends by its age.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from flowsched.cluster.kubernetes.answers import Malformed, Refused, Unreachable
from flowsched.cluster.kubernetes.client import Client
from flowsched.cluster.kubernetes.deviceclaims import DeviceClaims
from flowsched.cluster.kubernetes.devices import places_of
from flowsched.cluster.kubernetes.gangs import Gangs
from flowsched.cluster.kubernetes.marks import GROUP, REASON, VOID
from flowsched.cluster.kubernetes.objects import Pod as PodObject
from flowsched.cluster.kubernetes.objects import moment_ms
from flowsched.cluster.kubernetes.podcalls import QUOTA, Doubt
from flowsched.cluster.kubernetes.podlives import Failpoint, Live, PodLives, Report, engine_name
from flowsched.cluster.kubernetes.release import ReleaseSettings
from flowsched.executor.protocol import Pod, PodEnded, PodGone

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
