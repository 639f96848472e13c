"""The state of the cluster: its nodes, what they hold, and what is known of links and disks."""

from __future__ import annotations

import msgspec

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.transfers import TransferLimits


class Drain(msgspec.Struct, frozen=True):
    """One node that shall be empty.

    Args:
        until_ms: What has not ended by then is taken away.
        node: The node as the cluster says it is.
        asked_ms: When foreign pods there were asked to go last.
    """

    until_ms: int
    node: NodeInfo
    asked_ms: int | None = None


class ClusterState(msgspec.Struct):
    """Nodes, claims and data as they are now.

    Attributes:
        snapshot: Nodes and claims as arrays.
        catalogue: Datasets, and the nodes that hold them.
        transfer_limits: How many copies may be under way at a time.
        others: Node, `storage/read` or `storage/write` -> bytes/s that others were measured to use.
        drains: Nodes that shall be empty, by name.
    """

    snapshot: Snapshot = msgspec.field(default_factory=Snapshot)
    catalogue: Catalogue = msgspec.field(default_factory=Catalogue)
    transfer_limits: TransferLimits = msgspec.field(default_factory=TransferLimits)
    others: dict[str, int] = msgspec.field(default_factory=dict)
    drains: dict[str, Drain] = msgspec.field(default_factory=dict)
