"""What every part of a cluster on this machine is given: where it lives, whom it tells, what time it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import ClusterEvent


@dataclass(frozen=True, slots=True)
class Site:
    """The surroundings of `Processes`.

    Args:
        root: The cluster's folder.
        nodes: By name.
        report: Takes events, on the event loop's thread.
        clock: Wall-clock ms.
        failpoint: Called with a name where a crash would be interesting, in worker threads; may raise or kill.
    """

    root: Path
    nodes: Mapping[str, NodeInfo]
    report: Callable[[ClusterEvent], None]
    clock: Callable[[], int]
    failpoint: Callable[[str], object]
