"""The state of the cluster: its nodes, the datasets on them, and the facts of links and disks."""

from __future__ import annotations

from typing import Final

import msgspec

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.transfers import TransferLimits

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


class ClusterState(msgspec.Struct):
    """Nodes, claims and data as they are now.

    Attributes:
        snapshot: Nodes and claims as arrays.
        catalogue: Datasets, and the nodes that hold them.
        transfer_limits: How many copies may be under way at a time.
        others: Node, `storage/read` or `storage/write` -> bytes/s that others were measured to use.
        drains: Nodes that take no new pods, now or later, by name.
    """

    snapshot: Snapshot = msgspec.field(default_factory=Snapshot)
    catalogue: Catalogue = msgspec.field(default_factory=Catalogue)
    transfer_limits: TransferLimits = msgspec.field(default_factory=TransferLimits)
    others: dict[str, int] = msgspec.field(default_factory=dict)
    drains: dict[str, Drain] = msgspec.field(default_factory=dict)

    def closing(self, now: int, end_ms: int) -> tuple[int, ...]:
        """The nodes that a later drain closes before `end_ms`: a pod that runs until then does not start there. Sorted."""
        index = self.snapshot.index
        due = (name for name, drain in self.drains.items() if now < drain.order.from_ms < end_ms)
        return tuple(sorted(index[name] for name in due if name in index))
