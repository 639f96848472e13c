"""What a group has got so far in a cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from flowsched.scheduling.placement import Ints
from flowsched.scheduling.plan import Placement
from flowsched.scheduling.podgroup import PodGroup

_NONE: Final = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Given:
    """For each role, in the group's order, nodes and bytes missing there."""

    nodes: list[Ints]
    missing: list[Ints]
    cost_ms: int = 0
    held: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @classmethod
    def of(cls, group: PodGroup) -> Given:
        """Nothing yet."""
        return cls([_NONE] * len(group.roles), [_NONE] * len(group.roles))

    def add(self, role: int, nodes: Ints, missing: Ints, cost_ms: int) -> None:
        """Pods of a role got nodes."""
        if len(self.nodes[role]):
            nodes = np.concatenate([self.nodes[role], nodes])
            missing = np.concatenate([self.missing[role], missing])
        self.nodes[role], self.missing[role] = nodes, missing
        self.cost_ms = max(self.cost_ms, cost_ms)

    def placement(self, group: int) -> Placement:
        """As a plan tells it. `group` is the group's key."""
        return Placement(group, tuple(self.nodes), tuple(self.missing), self.cost_ms, self.held)
