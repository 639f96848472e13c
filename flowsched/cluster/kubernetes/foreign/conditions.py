"""Conditions and events that flowsched writes: why a pod waits, how far a group has got. Coalesced and slow on purpose.

A reason is written when its *kind* changes, not with every number in it: a scheduler that writes each cycle drowns the API
server and wakes every controller (PEERS.md, race 7). The pod's condition stays `PodScheduled=False`, reason `Unschedulable`,
which autoscalers look for; our own reason is the beginning of its message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Unreachable
from flowsched.cluster.kubernetes.foreign.groups import Group, GroupBook
from flowsched.cluster.kubernetes.objects.metadata import timestamp
from flowsched.cluster.kubernetes.objects.podgroup import Form, Life, Observed, group_path, status_patch
from flowsched.cluster.kubernetes.objects.request_bodies import STRATEGIC, EventText, event
from flowsched.executor.foreign import PodWaits, Verdict
from flowsched.log_lines import get_logger

log = get_logger(__name__)

PERIOD_S: Final = 0.5
#: So many writes of a round, and no more: the rest waits for the next.
WRITES: Final = 50
#: The numbers of a group's pods are written no sooner after one another, unless its phase changes.
COUNTS_MS: Final = 5_000
_MESSAGE: Final = 1024


class Conditions:
    """Conditions of pods, statuses of groups, events for people.

    Args:
        client: Of the API server.
        waiting: The pod of a uid as it waits now; None if it does not wait.
        groups: All groups.
        clock: Wall-clock ms.
    """

    def __init__(
        self,
        client: Client,
        waiting: Callable[[str], PodWaits | None],
        groups: GroupBook,
        clock: Callable[[], int],
    ) -> None:
        self._client = client
        self._waiting = waiting
        self._groups = groups
        self._clock = clock
        self._wanted: dict[str, tuple[str, str]] = {}  #: uid -> (code, message), to be written
        self._written: dict[str, str] = {}  #: uid -> code, as written
        self._events: dict[str, tuple[str, str]] = {}  #: group key -> (code, message)
        self._news = asyncio.Event()

    def publish(self, verdicts: Sequence[Verdict]) -> None:
        """Note why groups wait.

        Earlier verdicts that were not written yet are dropped. A pod that is no longer among the verdicts is being bound: a
        write would change its version, and the API server would refuse the binding.
        """
        before, self._events, self._wanted = self._events, {}, {}
        for verdict in verdicts:
            group = self._groups.groups.get(verdict.group)
            if group is not None and group.verdict[0] != verdict.code:
                group.verdict = (verdict.code, verdict.message)
                self._groups.dirty.add(verdict.group)
                self._events[verdict.group] = group.verdict
            elif verdict.group in before:
                self._events[verdict.group] = before[verdict.group]
            for uid in verdict.uids:
                if self._written.get(uid) != verdict.code:
                    self._wanted[uid] = (verdict.code, verdict.message)
        for key in before.keys() - self._events.keys():
            if key in self._groups.groups:
                self._groups.groups[key].verdict = ("", "")  # it was never written

    async def run(self) -> None:
        """Write conditions periodically until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.once()
            except Unreachable as silence:
                log.debug("conditions not written", why=str(silence))

    async def once(self) -> None:
        """One round."""
        for uid in [uid for uid in self._written if self._waiting(uid) is None]:
            del self._written[uid]
        some = list(self._wanted.items())[:WRITES]
        for uid, _ in some:
            del self._wanted[uid]
        await asyncio.gather(*(self._condition(uid, *why) for uid, why in some))
        keys = list(self._groups.dirty)[:WRITES]
        self._groups.dirty.difference_update(keys)
        await asyncio.gather(*(self._status(key) for key in keys))
        events, self._events = dict(list(self._events.items())[:WRITES]), {}
        await asyncio.gather(*(self._event(key, *why) for key, why in events.items()))

    async def _condition(self, uid: str, code: str, message: str) -> None:
        found = self._waiting(uid)
        if found is None:
            return
        pod = found.pod
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": f"{code}: {message}"[:_MESSAGE],
            "lastTransitionTime": timestamp(self._clock()),
        }
        body = msgspec.json.encode({"metadata": {"uid": uid}, "status": {"conditions": [condition]}})
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        answer = await self._client.call("PATCH", path, body=body, content_type=STRATEGIC)
        if answer.ok:
            self._written[uid] = code

    async def _status(self, key: str) -> None:
        group = self._groups.find(key)
        if group is None or group.form is Form.NONE or group.reported is None:
            return
        new = self._observed(group)
        now = (new.life, *((0, 0, 0) if group.form.native else (new.running, new.succeeded, new.failed)))
        if now == group.written:
            return
        if new.life is group.life and self._clock() - group.written_ms < COUNTS_MS:
            self._groups.dirty.add(key)  # numbers alone are written a little later, several at once
            return
        patch = status_patch(group.form, new)
        before, group.life = (group.life, group.written), new.life
        group.written, group.written_ms = now, self._clock()
        if patch is None:
            return
        path = group_path(group.form, group.namespace, group.name) + patch.suffix
        answer = await self._client.call("PATCH", path, body=patch.body, content_type=patch.content_type)
        if not answer.ok and answer.status != 404:
            group.life, group.written = before
            self._groups.dirty.add(key)
            log.debug("status of a group not written", group=key, why=answer.message)

    def _observed(self, group: Group) -> Observed:
        """How far a group has got, from its pods."""
        counts = group.counts
        minimum = group.reported.minimum if group.reported is not None else 1
        bound = sum(counts.values()) - counts[""]
        running, good, bad = counts["Running"], counts["Succeeded"], counts["Failed"]
        if bound >= minimum > 0:
            group.started = True
        if group.pods and good + bad == len(group.pods) and bound >= minimum:
            life = Life.FAILED if bad else Life.FINISHED
        elif running + good >= minimum > 0:
            life = Life.RUNNING
        elif bound >= minimum > 0:
            life = Life.SCHEDULED
        elif group.started and running:
            life = Life.PARTIAL
        elif group.verdict[0] and counts[""]:
            life = Life.UNSCHEDULABLE
        else:
            life = Life.ADMITTED
        return Observed(
            life,
            timestamp(self._clock()),
            message=f"{group.verdict[0]}: {group.verdict[1]}" if life is Life.UNSCHEDULABLE else "",
            running=running,
            succeeded=good,
            failed=bad,
            transition=f"{self._clock()}",
            started=group.started,
        )

    async def _event(self, key: str, code: str, message: str) -> None:
        """One event for each group and kind of reason, for `kubectl describe`."""
        group = self._groups.groups.get(key)
        if group is None:
            return
        regarding = self._regarding(group)
        if regarding is None:
            return
        text = EventText("Scheduling", "FailedScheduling", f"{code}: {message}"[:_MESSAGE], "Warning")
        body = event(text, regarding, self._clock())
        await self._client.call(
            "POST", f"/apis/events.k8s.io/v1/namespaces/{group.namespace}/events", body=body
        )

    def _regarding(self, group: Group) -> Mapping[str, Any] | None:
        if group.form is not Form.NONE:
            return {
                "apiVersion": group.form.value,
                "kind": "PodGroup",
                "namespace": group.namespace,
                "name": group.name,
                "uid": group.uid,
            }
        for uid in group.pods:
            found = self._waiting(uid)
            if found is not None:
                pod = found.pod
                return {
                    "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": uid,
                }  # fmt: skip
        return None
