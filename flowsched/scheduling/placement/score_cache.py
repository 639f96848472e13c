"""The score cache: the next pod's node of each shape, remembered while a cycle fills nodes.

A cycle places thousands of pods one turn at a time, and each takes room on a node or two. The cost of the next pod of the
same shape changes only there. So the cache keeps the first cost of a shape on every node, and computes only the nodes
where room has changed again. It chooses the node that `gang.place_role` would choose; tests hold it to that.

It knows plain requests only (`PlacementRequest.plain`): one role whose cost depends on how full a node is, and on nothing else but,
of a single pod, what its inputs and outputs cost there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.scheduling.placement.capacity import Capacity
from flowsched.scheduling.placement.gang import (
    NEVER,
    CostTable,
    Ints,
    NodeChoice,
    Packing,
    copies_of,
    costs_of,
    fill,
    fits,
    nearest,
    place_role,
)

#: So many shapes are remembered: each takes 8 bytes a node.
_MOST_SHAPES: Final = 64
#: No room.
NOWHERE: Final = NodeChoice(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


class ScoreCache:
    """The score cache of one cycle. It is made, used and dropped with its `Capacity`."""

    def __init__(self, room: Capacity) -> None:
        self._room = room
        self._scores: dict[tuple[object, ...], _ShapeScores] = {}
        self._masks: dict[tuple[object, ...], NDArray[np.bool_]] = {}  #: masks, so that their ids stay theirs

    def place(self, axes: tuple[int, ...], table: CostTable, packing: Packing, *, spare: bool) -> NodeChoice:
        """Choose nodes for up to `table.count` pods, as `place_role` does.

        Args:
            axes: The axes of the table's needs.
            table: A role of a plain request.
            packing: The tie-breaker.
            spare: It may use only what is not reserved for others.
        """
        room = self._room
        spare = spare and room.reserved
        reservations = room.reservations if spare else 0
        key = (axes, table.needs, table.packs, id(table.allowed), packing, reservations)
        scores = self._scores.get(key)
        if scores is None:
            rows = [room.least(axis) if spare else room.hard(axis) for axis in axes]
            whole = [room.allocatable(axis) for axis in axes]
            if table.count == 1 and (key not in self._masks or len(self._scores) >= _MOST_SHAPES):
                self._masks[key] = table.allowed
                return place_role(rows, whole, table, 1, packing, NEVER)
            if len(self._scores) >= _MOST_SHAPES:
                self._scores.pop(next(iter(self._scores)))
            scores = self._scores[key] = _ShapeScores(room, rows, whole, table, packing)
        return scores.place(table)


class _ShapeScores:
    """The cost of the next pod of one shape on every node, without what its inputs and outputs cost; NEVER where it does not fit.

    `rows`: free amounts by axis, live.
    """

    def __init__(
        self, room: Capacity, rows: Sequence[Ints], whole: Sequence[Ints], table: CostTable, packing: Packing
    ) -> None:
        self._room, self._packing = room, packing
        #: keeps `allowed`, so that its id stays its own
        self._table = structs.replace(table, first=None, each=None, step=None)
        self._rows, self._whole = rows, [np.maximum(each, 1) for each in whole]
        self._costs = self._on(np.arange(len(table.allowed)))
        self._scored = len(room.changes)

    def _on(self, nodes: NDArray[np.intp]) -> Ints:
        """(K,) the costs on some nodes."""
        costs = costs_of(self._rows, self._whole, self._table, self._packing, nodes)
        return np.where(fits(self._rows, self._table, nodes), costs, NEVER)

    def place(self, table: CostTable) -> NodeChoice:
        """As `ScoreCache.place`."""
        self._rescore()
        count = table.count
        if count == 1 and len(self._costs):
            costs = self._costs
            for own in (table.each, table.first):
                costs = costs if own is None else costs + own
            node = int(costs.argmin())
            cost = costs[node : node + 1].copy()
            return NOWHERE if self._costs.item(node) >= NEVER else NodeChoice(np.array([node]), cost)
        some = np.flatnonzero(self._costs < NEVER)
        if not len(some):
            return NOWHERE
        costs = self._costs[some]
        near = nearest(costs, count)
        some, costs = some[near], costs[near]
        copies = copies_of(self._rows, table, count, some)
        return fill(self._rows, self._whole, table, self._packing, some, costs, copies, count)

    def _rescore(self) -> None:
        """Score the nodes where room has changed since the last time."""
        changes, since = self._room.changes, self._scored
        if since == len(changes):
            return
        self._scored = len(changes)
        nodes = np.concatenate(changes[since:]) if len(changes) - since > 1 else changes[since]
        self._costs[nodes] = self._on(nodes)
