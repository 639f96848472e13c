"""The state of the cluster: its nodes, the datasets on them, and the facts of links and disks."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.state.claims import Claim, ClaimKind
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
    """Room of a size on a node.

    `amount`: (R,) as in `Claim`.
    """

    node: int
    amount: tuple[int, ...]


class ClusterState(msgspec.Struct):
    """Nodes, claims and data as they are now.

    Attributes:
        snapshot: Nodes and claims as arrays.
        catalogue: Datasets, and the nodes that hold them.
        transfer_limits: How many copies may be under way at a time.
        others: Node, `storage/read` or `storage/write` -> bytes/s that others were measured to use.
        drains: Nodes that take no new pods, now or later, by name.
        pipelines: The pods that were sent ahead (`engine.pipelining`), by the room that they wait for, in order: their claims as
            if they had begun when they were sent.
    """

    snapshot: Snapshot = msgspec.field(default_factory=Snapshot)
    catalogue: Catalogue = msgspec.field(default_factory=Catalogue)
    transfer_limits: TransferLimits = msgspec.field(default_factory=TransferLimits)
    others: dict[str, int] = msgspec.field(default_factory=dict)
    drains: dict[str, Drain] = msgspec.field(default_factory=dict)
    pipelines: dict[Slot, tuple[Claim, ...]] = msgspec.field(default_factory=dict)

    def free(self, owner: str, now: int, statement: Statement) -> str | None:
        """Take a pod's claim away. The first pod that was sent ahead for such room takes it over, unless others wait for it.

        Returns:
            The name of that pod; None = the room is free.
        """
        claim = self.snapshot.unclaim(owner, statement)
        if claim is None:
            self.leave_pipeline(owner, statement)
        elif claim.kind is not ClaimKind.STAGING and not self.snapshot.nominations:
            waiting = self.pipelines.get(Slot(claim.node, claim.amount), ())
            if waiting:
                return self._take_room(waiting[0], now, statement)
        return None

    def send_ahead(self, claim: Claim, statement: Statement) -> None:
        """Note a pod that was sent ahead."""
        slot = Slot(claim.node, claim.amount)
        statement.put(self.pipelines, slot, (*self.pipelines.get(slot, ()), claim))

    def started(self, owner: str, at_ms: int, statement: Statement) -> None:
        """A pod runs. One that was sent ahead by an earlier leader may have taken over the room of a pod that nobody remembers."""
        claims = (claim for waiting in self.pipelines.values() for claim in waiting)
        ahead = next((claim for claim in claims if claim.owner == owner), None)
        if ahead is not None:
            free = self.snapshot.allocatable[ahead.node] - self.snapshot.used[ahead.node]
            if all(left >= amount for left, amount in zip(free.tolist(), ahead.amount, strict=False)):
                self._take_room(ahead, at_ms, statement)
        self.snapshot.started(owner, at_ms, statement)

    def leave_pipeline(self, owner: str, statement: Statement) -> None:
        """A pod that was sent ahead waits for room no more."""
        for slot, waiting in list(self.pipelines.items()):
            rest = tuple([claim for claim in waiting if claim.owner != owner])
            if rest and len(rest) < len(waiting):
                statement.put(self.pipelines, slot, rest)
            elif not rest:
                statement.pop(self.pipelines, slot)

    def _take_room(self, claim: Claim, now: int, statement: Statement) -> str:
        self.leave_pipeline(claim.owner, statement)
        later = now - claim.since_ms
        begun = structs.replace(
            claim,
            since_ms=now,
            until_ms=None if claim.until_ms is None else claim.until_ms + later,
            late_ms=None if claim.late_ms is None else claim.late_ms + later,
        )
        self.snapshot.claim(begun, statement)
        return claim.owner

    def closing(self, now: int, end_ms: int) -> tuple[int, ...]:
        """The nodes that a later drain closes before `end_ms`: a pod that runs until then does not start there. Sorted."""
        index = self.snapshot.index
        due = (name for name, drain in self.drains.items() if now < drain.order.from_ms < end_ms)
        return tuple(sorted(index[name] for name in due if name in index))
