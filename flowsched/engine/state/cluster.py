"""The state of the cluster: its nodes, the datasets on them, and the facts of links and disks."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.state.claims import Claim
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.transfers import TransferLimits
from flowsched.statement import Statement

#: How long a pod of unknown runtime without a time limit may run, beside a maintenance: on the day before it none starts, and
#: before that day all do.
UNKNOWN_MS: Final = 86_400_000


class DrainOrder(msgspec.Struct, frozen=True):
    """An administrator's order for one node: no new pods from a moment on, and why. Times are wall-clock ms.

    Args:
        from_ms: From then on no pod starts on the node. Before it, only pods start that will have ended by then.
        until_ms: Pods that have not ended by then are evicted; None = they run to their end.
        reason: Why, in the administrator's words.
        author: The administrator, as the client named them.
        at_ms: When it was ordered.
    """

    from_ms: int
    until_ms: int | None = None
    reason: str = ""
    author: str = ""
    at_ms: int = 0

    @property
    def words(self) -> str:
        """The author and the reason, as the end of a sentence; empty where neither is known."""
        by = f" by {self.author}" if self.author else ""
        return f"{by}: {self.reason}" if self.reason else by


class Drain(msgspec.Struct, frozen=True):
    """One node that takes no new pods, now or from a later moment on.

    Args:
        order: The administrator's order.
        node: The node as the cluster reports it.
        asked_ms: When foreign pods there were asked to go last.
    """

    order: DrainOrder
    node: NodeInfo
    asked_ms: int | None = None


class Slot(NamedTuple):
    """Room of a size on a node, for one user of a queue at one priority.

    `amount`: (R,) as in `Claim`.
    """

    node: int
    amount: tuple[int, ...]
    queue: str
    user: str
    priority: int


class Pipeline(msgspec.Struct, frozen=True):
    """Pods of short tasks that take over room from each other (`engine.pipelining`).

    Args:
        key: The name of the pipeline in orders; no other one ever has it.
        ended: How many of its pods have ended. The node counts the same.
        waiting: The pods without room, in order: their claims as if they had begun when they were sent.
        members: How many of its pods have not ended.
        is_closed: A pod of it has not ended by itself: node and engine may count differently from then on.
    """

    key: str
    ended: int = 0
    waiting: tuple[Claim, ...] = ()
    members: int = 0
    is_closed: bool = False


class ClusterState(msgspec.Struct):
    """Nodes, claims and data as they are now.

    Attributes:
        snapshot: Nodes and claims as arrays.
        catalogue: Datasets, and the nodes that hold them.
        transfer_limits: How many copies may be under way at a time.
        others: Node, `storage/read` or `storage/write` -> bytes/s that others were measured to use.
        drains: Nodes that take no new pods, now or later, by name.
        pipelines: Pods of short tasks that take over room from each other.
        in_line: The pods of these pipelines.
        sent: Pods that were sent ahead and have not started -> when they were sent, or found again by this leader.
        next_pipeline: The number of the next one.
    """

    snapshot: Snapshot = msgspec.field(default_factory=Snapshot)
    catalogue: Catalogue = msgspec.field(default_factory=Catalogue)
    transfer_limits: TransferLimits = msgspec.field(default_factory=TransferLimits)
    others: dict[str, int] = msgspec.field(default_factory=dict)
    drains: dict[str, Drain] = msgspec.field(default_factory=dict)
    pipelines: dict[Slot, Pipeline] = msgspec.field(default_factory=dict)
    in_line: dict[str, Slot] = msgspec.field(default_factory=dict)
    sent: dict[str, int] = msgspec.field(default_factory=dict)
    next_pipeline: int = 0

    def join(self, owner: str, slot: Slot, epoch: int, statement: Statement) -> Pipeline:
        """A pod enters the pipeline of its slot. Returns it."""
        found = self.pipelines.get(slot)
        if found is None:
            found = Pipeline(f"{epoch}-{self.next_pipeline}")
            statement.assign(self, "next_pipeline", self.next_pipeline + 1)
        found = structs.replace(found, members=found.members + 1)
        statement.put(self.pipelines, slot, found)
        statement.put(self.in_line, owner, slot)
        return found

    def send_ahead(self, claim: Claim, slot: Slot, statement: Statement) -> None:
        """A pod that has joined its pipeline waits for room there."""
        found = self.pipelines[slot]
        statement.put(self.pipelines, slot, structs.replace(found, waiting=(*found.waiting, claim)))
        statement.put(self.sent, claim.owner, claim.since_ms)

    def free(self, owner: str, now: int, statement: Statement) -> str | None:
        """Take a pod's claim away. The first pod that waits in its pipeline takes it over.

        Returns:
            The name of that pod; None = the room is free.
        """
        claim = self.snapshot.unclaim(owner, statement)
        slot = statement.pop(self.in_line, owner)
        statement.pop(self.sent, owner)
        found = None if slot is None else self.pipelines.get(slot)
        if slot is None or found is None:
            return None
        waiting, taker = found.waiting, None
        if claim is None:
            waiting = tuple([each for each in waiting if each.owner != owner])
        elif waiting and not found.is_closed:
            taker, *others = waiting
            waiting = tuple(others)
            later = now - taker.since_ms
            until_ms = None if taker.until_ms is None else taker.until_ms + later
            late_ms = None if taker.late_ms is None else taker.late_ms + later
            self.snapshot.claim(
                structs.replace(taker, since_ms=now, until_ms=until_ms, late_ms=late_ms), statement
            )
        if found.members > 1:
            left = structs.replace(found, ended=found.ended + 1, members=found.members - 1, waiting=waiting)
            statement.put(self.pipelines, slot, left)
        else:
            statement.pop(self.pipelines, slot)
        return None if taker is None else taker.owner

    def started(self, owner: str, at_ms: int, statement: Statement) -> None:
        """A pod runs."""
        statement.pop(self.sent, owner)
        self.snapshot.started(owner, at_ms, statement)

    def close(self, owner: str, statement: Statement) -> None:
        """A pod leaves its pipeline, if it has one, otherwise than by its own end: no room is handed over there any more."""
        slot = self.in_line.get(owner)
        found = None if slot is None else self.pipelines.get(slot)
        if slot is not None and found is not None:
            statement.put(self.pipelines, slot, structs.replace(found, is_closed=True))

    def dissolve(self, slot: Slot, statement: Statement) -> tuple[Claim, ...]:
        """End a pipeline: its pods go on, and hand nothing over. Returns the claims of those that wait for room there."""
        found = statement.pop(self.pipelines, slot)
        for owner in [owner for owner, where in self.in_line.items() if where == slot]:
            statement.pop(self.in_line, owner)
        return () if found is None else found.waiting

    def closing(self, now: int, end_ms: int) -> tuple[int, ...]:
        """The nodes that a later drain closes before `end_ms`: a pod that runs until then does not start there. Sorted."""
        index = self.snapshot.index
        due = (name for name, drain in self.drains.items() if now < drain.order.from_ms < end_ms)
        return tuple(sorted(index[name] for name in due if name in index))
