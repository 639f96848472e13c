"""The cluster: its nodes and what they hold."""

from __future__ import annotations

from dataclasses import dataclass

from flowsched.executor.nodes import NodeInfo


@dataclass(frozen=True, slots=True)
class Drain:
    """One node that shall be empty.

    Args:
        until_ms: What has not ended by then is taken away.
        node: The node as the cluster says it is.
        asked_ms: When foreign pods there were asked to go last.
    """

    until_ms: int
    node: NodeInfo
    asked_ms: int | None = None
