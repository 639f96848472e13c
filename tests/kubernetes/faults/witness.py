"""A witness: sees every pod there ever was in the cluster, by a watch of its own, and holds it against the promises.

It reads pods with the hollow nodes' structs and adds their requests up with the hollow kubelet's arithmetic, so that it shares
no code with what it judges.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Self

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.watch import Reflector
from flowsched.cluster.kubernetes.objects.metadata import Metadata, Read
from flowsched.cluster.kubernetes.objects.pod import PodStatus
from tests.kubernetes.hollow.admission import amounts, requested
from tests.kubernetes.hollow.spec import Spec

PATIENCE_S = 200.0
ENDED = ("Succeeded", "Failed")


class Pod(Read, frozen=True):
    """A pod as a witness reads it."""

    metadata: Metadata = Metadata()
    spec: Spec = Spec()
    status: PodStatus = PodStatus()

    @property
    def started(self) -> bool:
        """Whether a container of its own has ever run."""
        states = [each.state for each in self.status.container_statuses]
        return any(state.running is not None or state.terminated is not None for state in states)

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more, as its kubelet says."""
        return self.status.phase in ENDED


class Status(Read, frozen=True):
    """What a node has."""

    allocatable: dict[str, str] = {}


class Node(Read, frozen=True):
    """A node as a witness reads it."""

    metadata: Metadata = Metadata()
    status: Status = Status()


@dataclass(slots=True)
class Life:
    """One pod, from its creation to its end."""

    pod: Pod
    started: bool = False
    gone: bool = False
    bound_at: float = 0.0  #: when the witness saw its node first, on the clock that never jumps

    @property
    def name(self) -> str:
        """The engine's name of it."""
        return self.pod.metadata.annotations.get("flowsched.io/pod", "")

    @property
    def task(self) -> tuple[str, ...]:
        """Which task it is an attempt of; () for pods that are none of ours."""
        labels = self.pod.metadata.labels
        found = tuple(labels.get(f"flowsched.io/{key}", "") for key in ("workflow", "stage", "index"))
        return found if all(found) else ()

    @property
    def runs(self) -> bool:
        """Whether its process is there now."""
        return self.started and not self.gone and not self.pod.ended


@dataclass(slots=True)
class Witness:
    """Sees.

    Args:
        client: Straight to the server: what a test does to others' connections must not blind the witness.
        namespace: Whose pods are judged by P2 and P3; P6 is about all.
        tolerated: Nodes on which somebody else takes room without asking: P6 cannot hold there.

    Attributes:
        lives: uid -> what is known of it; it stays when the pod is gone.
        broken: Promises that were seen broken, in words.
    """

    client: Client
    namespace: str
    tolerated: set[str] = field(default_factory=set)
    lives: dict[str, Life] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    _rooms: dict[str, dict[str, int]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        listed = asyncio.Event()
        self._tasks = [
            asyncio.create_task(
                self._follow("/api/v1/nodes", Node, self._node, self._no_node, asyncio.Event())
            ),
            asyncio.create_task(self._follow("/api/v1/pods", Pod, self._pod, self._no_pod, listed)),
        ]
        await listed.wait()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- asked by tests --------------------------------------------------------------------------------------

    def tasks(self, stage: str = "") -> list[Life]:
        """Every pod of a task there ever was here (of one stage)."""
        return [
            life
            for life in self.lives.values()
            if life.pod.metadata.namespace == self.namespace and life.name
            if not stage or life.pod.metadata.labels.get("flowsched.io/stage") == stage
        ]

    def here(self) -> list[str]:
        """Names of the pods that are there now."""
        return sorted(life.pod.metadata.name for life in self.tasks() if not life.gone)

    async def until(self, holds: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """Wait until something has been seen."""
        async with asyncio.timeout(patience_s):
            while not (found := holds()):
                self._news.clear()
                await self._news.wait()
        return found

    def judge(self) -> None:
        """See that no promise was broken: one pod for each attempt (P3), one running attempt for each task (P2), no node
        over-committed at any moment (P6).
        """
        pods: dict[str, set[str]] = defaultdict(set)
        for uid, life in self.lives.items():
            if life.name and life.pod.metadata.namespace == self.namespace:
                pods[life.name].add(uid)
        twice = [f"{name} had {len(uids)} pods" for name, uids in pods.items() if len(uids) > 1]
        assert not (self.broken + twice), self.broken + twice

    # --- seeing ----------------------------------------------------------------------------------------------

    async def _follow(
        self,
        path: str,
        kind: Any,
        seen: Callable[[Any], None],
        gone: Callable[[str], None],
        listed: asyncio.Event,
    ) -> None:
        known: set[str] = set()
        async with aclosing(Reflector(self.client, path, kind).changes()) as batches:
            async for batch in batches:
                if batch.replaced is not None:
                    here = {each.metadata.uid for each in batch.replaced}
                    for uid in known - here:
                        gone(uid)
                    known = here
                    for each in batch.replaced:
                        seen(each)
                for change, each in batch.changed:
                    if change == "DELETED":
                        known.discard(each.metadata.uid)
                        seen(each)
                        gone(each.metadata.uid)
                    else:
                        known.add(each.metadata.uid)
                        seen(each)
                listed.set()
                self._news.set()

    def _node(self, node: Node) -> None:
        self._rooms[node.metadata.name] = amounts(node.status.allocatable)

    def _no_node(self, uid: str) -> None:
        """A node that has gone keeps its room here: what was bound to it before is no fault."""

    def _pod(self, pod: Pod) -> None:
        life = self.lives.setdefault(pod.metadata.uid, Life(Pod()))
        before = life.pod.spec.node_name
        life.pod = pod
        life.started = life.started or pod.started
        if pod.metadata.namespace == self.namespace and life.runs:
            self._alone(life)
        if pod.spec.node_name and not before:
            life.bound_at = time.monotonic()
            self._fits(pod.spec.node_name)

    def _alone(self, life: Life) -> None:
        """No other attempt of the same task runs."""
        task = life.task
        twins = [each for each in self.lives.values() if each is not life and each.task == task and each.runs]
        if task and twins:
            self.broken.append(f"{life.name} runs beside {twins[0].name}")

    def _fits(self, node: str) -> None:
        """The pods on a node ask for no more than it has, now that one more is bound to it."""
        room = self._rooms.get(node)
        if room is None or node in self.tolerated:
            return
        used: Counter[str] = Counter()
        for life in self.lives.values():
            if life.pod.spec.node_name == node and not life.gone and not life.pod.ended:
                used.update(requested(life.pod))  # type: ignore[arg-type]
        over = {
            name: f"{amount} of {room[name]}"
            for name, amount in used.items()
            if amount > room.get(name, amount)
        }
        if over:
            self.broken.append(f"{node} is over-committed: {over}")

    def _no_pod(self, uid: str) -> None:
        if uid in self.lives:
            self.lives[uid].gone = True
