"""The score cache: the next pod's node of each shape, remembered while a cycle fills nodes.

A cycle places thousands of pods one turn at a time, and each takes room on a node or two. The cost of the next pod of the
same shape changes only there. So the cache keeps the first cost of a shape on every node, and computes only the nodes
where room has changed again. It chooses the node that `gang.place_role` would choose; tests hold it to that.

A shape that is seen once needs no such table: `cheapest` finds its node in as few passes over all nodes as can be.

It knows plain offers only (`PlacementRequest.plain`): one role with a cost that depends on how full a node is, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement.capacity import Along, Capacity, Scale
from flowsched.scheduling.placement.gang import (
    FEW,
    NEVER,
    CostTable,
    Ints,
    NodeChoice,
    Packing,
    cost_on,
    fill,
    first_costs,
    nearest,
    one_costs,
)

#: So many shapes are remembered: each takes 8 bytes a node.
_KEPT: Final = 64
#: Up to so many pods, one after the other is faster than a table of copies.
_SEQUENCE: Final = 4
#: What is free along some axes, live, and what is known of them.
_Rows: TypeAlias = tuple[list[Ints], Along]
#: No room.
NOWHERE: Final = NodeChoice(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


class ScoreCache:
    """The score cache of one cycle. It is made, used and dropped with its `Capacity`."""

    def __init__(self, room: Capacity) -> None:
        self._room = room
        self._kept: dict[tuple[object, ...], _ShapeScores] = {}
        self._rows: dict[tuple[tuple[int, ...], int], _Rows] = {}
        self._seen: dict[tuple[object, ...], NDArray[np.bool_]] = {}  #: masks, so that their ids stay theirs
        self._refused: dict[int, tuple[NDArray[np.bool_], Ints]] = {}  #: by a mask's id

    def place(self, axes: tuple[int, ...], table: CostTable, packing: Packing, *, spare: bool) -> NodeChoice:
        """Choose nodes for up to `table.count` pods, as `place_role` does.

        Args:
            axes: The axes of the table's needs.
            table: A role of a plain offer.
            packing: The tie-breaker.
            spare: It may use only what is not promised to others.
        """
        spare = spare and self._room.reserved
        key = (
            axes,
            table.needs,
            table.packs,
            id(table.allowed),
            packing,
            self._room.promised if spare else 0,
        )
        standing = self._kept.get(key)
        if standing is None:
            if table.count == 1 and (key not in self._seen or len(self._kept) >= _KEPT):
                self._seen[key] = table.allowed
                return self._cheapest(axes, table, packing, spare)
            if len(self._kept) >= _KEPT:
                self._kept.pop(next(iter(self._kept)))
            standing = self._kept[key] = _ShapeScores(self._room, axes, table, packing, spare)
        return standing.place(table, table.count)

    def _cheapest(self, axes: tuple[int, ...], table: CostTable, packing: Packing, spare: bool) -> NodeChoice:
        """The node of one pod."""
        rows, along = self._along(axes, spare)
        mask = table.allowed
        known = self._refused.get(id(mask))
        if known is None:
            if len(self._refused) >= _KEPT:
                self._refused.clear()
            known = self._refused[id(mask)] = mask, barred(mask)
        found = cheapest(rows, along, table, known[1], packing)
        return NOWHERE if found is None else NodeChoice(found[0], np.array([found[1]]))

    def _along(self, axes: tuple[int, ...], spare: bool) -> _Rows:
        """What is free along some axes, live, and what is known of them."""
        room = self._room
        key = axes, room.promised if spare else 0
        found = self._rows.get(key)
        if found is None:
            rows = [room.least(axis) if spare else room.hard(axis) for axis in axes]
            found = self._rows[key] = rows, room.along(axes)
        return found


def _costs_on(
    rows: Sequence[Ints], whole: Sequence[Ints], table: CostTable, packing: Packing, nodes: NDArray[np.intp]
) -> Ints:
    """(K,) what one pod costs on each of some nodes; NEVER where it does not fit."""
    if len(nodes) > FEW:
        return first_costs([row[nodes] for row in rows], [row[nodes] for row in whole], table, packing, nodes)
    costs = [_cost_on(rows, whole, table, packing, node, 1) for node in nodes.tolist()]
    return np.array(costs, dtype=np.int64)


def _cost_on(
    rows: Sequence[Ints], whole: Sequence[Ints], table: CostTable, packing: Packing, node: int, copy: int
) -> int:
    """What the k-th copy costs on a node, before the running maximum; NEVER where it does not fit."""
    if not table.allowed[node]:
        return NEVER
    for row, need in zip(rows, table.needs, strict=True):
        if isinstance(need, int) and need and row[node] < need * copy:
            return NEVER
    return cost_on(rows, whole, table, packing, node, copy)


class _ShapeScores:
    """What the next pod of one shape costs on every node."""

    def __init__(
        self, room: Capacity, axes: tuple[int, ...], table: CostTable, packing: Packing, spare: bool
    ) -> None:
        self._room, self._packing = room, packing
        self._allowed = table.allowed  # kept, so that its id stays its own
        self._rows = [room.least(axis) if spare else room.hard(axis) for axis in axes]
        self._whole = [room.allocatable(axis) for axis in axes]
        self._costs = self._all(table)
        self._seen = len(room.changes)

    def _all(self, table: CostTable) -> Ints:
        return first_costs(self._rows, self._whole, table, self._packing, None)

    def place(self, table: CostTable, count: int) -> NodeChoice:
        """As `ScoreCache.place`."""
        self._look_again(table)
        if count == 1:
            node = int(self._costs.argmin()) if len(self._costs) else 0
            if not len(self._costs) or self._costs[node] >= NEVER:
                return NOWHERE
            return NodeChoice(np.array([node]), self._costs[node : node + 1].copy())
        if count <= _SEQUENCE:
            return self._one_by_one(table, count)
        some = np.flatnonzero(self._costs < NEVER)
        if not len(some):
            return NOWHERE
        costs = self._costs[some]
        near = nearest(costs, count)
        some, costs = some[near], costs[near]
        copies = np.full(len(some), count, dtype=np.int64)
        for row, need in zip(self._rows, table.needs, strict=True):
            if isinstance(need, int) and need:
                np.minimum(copies, row[some] // need, out=copies)
        return fill(self._rows, self._whole, table, self._packing, some, costs, copies, count)

    def _one_by_one(self, table: CostTable, count: int) -> NodeChoice:
        """A greedy that scores a node again after each pod it gets."""
        here: dict[int, tuple[int, int]] = {}  # node -> (copies, what the first of them cost)
        nodes, costs = [], []
        highest = 0
        for _ in range(count if len(self._costs) else 0):
            node = int(self._costs.argmin())
            cost = int(self._costs[node])
            if cost >= NEVER:
                break
            copies, first = here.get(node, (0, cost))
            here[node] = (copies + 1, first)
            nodes.append(node)
            highest = max(highest, cost)
            costs.append(highest)
            self._costs[node] = _cost_on(self._rows, self._whole, table, self._packing, node, copies + 2)
        for node, (_, first) in here.items():
            self._costs[node] = first
        return NodeChoice(np.array(nodes, dtype=np.int64), np.array(costs, dtype=np.int64))

    def _look_again(self, table: CostTable) -> None:
        """Score the nodes where room has changed since the last time."""
        changes = self._room.changes
        if self._seen == len(changes):
            return
        nodes = _changed(changes, self._seen)
        self._seen = len(changes)
        if len(nodes) * 4 > len(self._costs):
            self._costs = self._all(table)
        else:
            self._costs[nodes] = _costs_on(self._rows, self._whole, table, self._packing, nodes)


def _changed(changes: Sequence[Ints], since: int) -> Ints:
    """Nodes where room has changed, each once."""
    if len(changes) - since == 1 and len(changes[since]) == 1:
        return changes[since]
    return np.unique(np.concatenate(changes[since:]))


# ---- the node of one pod ----
#
# An approximate cost of all nodes (`Scale`) leaves the few that may be the cheapest, and those are compared exactly. What is
# chosen is what `gang.place_role` chooses; tests hold it to that.

#: (1,) a node, and what the pod costs there.
Found: TypeAlias = tuple[Ints, int]
#: More than the shares of all axes together.
_TOP: Final = 1 << 62
_SIGN: Final = 63


def barred(mask: NDArray[np.bool_]) -> Ints:
    """(N,) negative where a mask is not."""
    refused: Ints = np.where(mask, 0, -1)
    return refused


def cheapest(
    rows: Sequence[Ints], along: Along, table: CostTable, refused: Ints, packing: Packing
) -> Found | None:
    """The node of one pod; None where there is no room for it.

    A cost is floor(sum of floors / axes): less than 2 below the mean of the true shares, and never above it. So the cheapest
    node's sum of shares lies within 2 per mille an axis of the least one.

    Args:
        rows: For each axis of the table's needs, (N,) what is free there. Not modified.
        along: Of the same axes.
        table: A role of a plain offer (`PlacementRequest.plain`).
        refused: (N,) negative where its pods may not be. Not modified.
        packing: The tie-breaker.
    """
    if not len(refused):
        return None
    signs, shares, slack = refused, None, 0  # negative, too, where any axis has no room
    for row, need, packs, scale in zip(rows, table.needs, table.packs, along.scales, strict=True):
        if not need:
            continue
        left = row - need
        if signs is refused:
            signs = signs | left
        else:
            signs |= left
        if not packs:
            continue
        slack += 2 + 2 * scale.slack
        if scale.shift:
            left >>= scale.shift
        left *= scale.factors
        if shares is None:
            shares = left
        else:
            shares += left
    if shares is None:
        first = (signs >= 0).nonzero()[0][:1]
        return (first, 0) if len(first) else None
    if packing == "binpack":
        shares = _TOP - shares
    signs >>= _SIGN
    shares |= signs  # the more the better; -1 where there is no room
    node = int(shares.argmax())
    most = shares.item(node)
    if most < 0:
        return None
    least = max(most - slack * Scale.UNIT, 0)
    shares[node] = -1
    if shares.item(shares.argmax()) < least:  # no other node comes near it
        return np.array([node]), cost_on(rows, along.whole, table, packing, node, 1)
    shares[node] = most
    near = (shares >= least).nonzero()[0]
    if len(near) <= FEW:
        return best_of(near.tolist(), rows, along.whole, table, packing)
    costs = one_costs(rows, along.whole, table, packing, near)
    best = int(costs.argmin())
    return near[best : best + 1], costs.item(best)


def best_of(
    nodes: Collection[int], rows: Sequence[Ints], whole: Sequence[Ints], table: CostTable, packing: Packing
) -> Found | None:
    """As `cheapest`, of a few nodes, one after the other. `whole`: for each axis, (N,) what nodes have in all."""
    best: tuple[int, int] | None = None
    for node in nodes:
        if not table.allowed.item(node):
            continue
        for row, need in zip(rows, table.needs, strict=True):
            if need and row.item(node) < need:
                break
        else:
            found = cost_on(rows, whole, table, packing, node, 1), node
            if best is None or found < best:
                best = found
    return None if best is None else (np.array([best[1]]), best[0])
