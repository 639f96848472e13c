"""Allocations: what each group has got so far in a cycle."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from flowsched.scheduling.placement.capacity import Capacity
from flowsched.scheduling.placement.cost_table import Assignment
from flowsched.scheduling.placement.gang import Ints, NodeChoice, gang_cost
from flowsched.scheduling.plan import Choice, Placement
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.state.snapshot import Snapshot

_NONE: Final = np.zeros(0, dtype=np.int64)


class GroupAllocation(msgspec.Struct):
    """For each role of a group, in its order, nodes and bytes missing there."""

    group: PodGroup
    nodes: list[Ints]
    missing: list[Ints]
    cost_ms: int = 0
    held: tuple[tuple[int, tuple[int, ...]], ...] = ()
    devices: dict[int, Ints] = msgspec.field(default_factory=dict)  #: by role, where they matter
    choices: dict[int, Choice] = msgspec.field(
        default_factory=dict
    )  #: by role, where more than packing was weighed

    @classmethod
    def of(cls, group: PodGroup) -> GroupAllocation:
        """Nothing yet."""
        return cls(group, [_NONE] * len(group.roles), [_NONE] * len(group.roles))

    def add(self, role: int, chosen: NodeChoice, missing: Ints) -> None:
        """Pods of a role got nodes."""
        nodes, cost_ms = chosen.nodes, gang_cost((chosen,))
        if chosen.devices is not None:
            before = self.devices.get(role, chosen.devices[:0])
            self.devices[role] = np.concatenate([before, chosen.devices])
        if len(self.nodes[role]):
            nodes = np.concatenate([self.nodes[role], nodes])
            missing = np.concatenate([self.missing[role], missing])
        self.nodes[role], self.missing[role] = nodes, missing
        self.cost_ms = max(self.cost_ms, cost_ms)

    def explain(self, role: int, choice: Choice) -> None:
        """Pods of a role got nodes for this reason."""
        before = self.choices.get(role)
        self.choices[role] = choice if before is None else before.then(choice)

    def placement(self, promoted: tuple[int, ...]) -> Placement:
        """The allocation as an entry of a plan. `promoted`: as in `Placement`."""
        devices = tuple([self.devices[role] for role in sorted(self.devices)]) if self.devices else ()
        nodes, missing = tuple(self.nodes), tuple(self.missing)
        choices: tuple[Choice | None, ...] = ()
        if self.choices:
            choices = tuple(map(self.choices.get, range(len(nodes))))
        return Placement(self.group.key, nodes, missing, self.cost_ms, self.held, devices, choices, promoted)


def reserve_rest(
    assignment: Assignment, room: Capacity, snapshot: Snapshot
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Keep the rest of `min_resources` free for pods that do not exist yet: (node, (R,) amounts)."""
    request = assignment.request
    if request.group.min_resources is None or any(bound is not None for bound in assignment.bound):
        return ()
    rest = request.rest([room.hard(axis) for axis in request.axes], assignment.node_choices)
    everywhere = np.arange(len(snapshot))
    reserved = np.zeros((len(snapshot), len(snapshot.axes)), dtype=np.int64)
    for axis, amounts in zip(request.axes, rest or (), strict=False):
        room.deduct(axis, everywhere, amounts)
        reserved[:, axis] = amounts
    where = np.flatnonzero(reserved.any(axis=1))
    return tuple((node, tuple(reserved[node].tolist())) for node in where.tolist())
