"""Exact gang placement over arrays: the nodes that a careful pod-by-pod greedy would choose, in a few array operations.

The cost of a pod on a node depends on the node and on how many of its group are there already (k). A greedy
that re-scores every node after each pod takes, of all entries cost(node, k) with a running maximum along k,
the G cheapest in order of (cost, node, k): behind a dear copy the cheaper ones that follow it cannot be had
earlier, and once it is taken they come before all that costs as much. So one table and one selection replace
the loop. Tests hold it to that greedy, ties included; scoring once and filling the best nodes is not the
same.

Axes: N nodes, A the resources that are asked for, G pods of a role, C candidate nodes, K copies on one node.
Whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.policy.plugins.topology import feasible_racks
from flowsched.scheduling.state.gpus import copies_by_device, seat

Ints = NDArray[np.int64]


class NodeChoice(NamedTuple):
    """Where pods of a role go, cheapest first.

    `nodes`: (k,) node indices; `costs`: (k,) ms; `devices`: (k, D) thousandths of each GPU there, None where devices do not
    matter.
    """

    nodes: Ints
    costs: Ints
    devices: Ints | None = None

    def only(self, some: NDArray[np.bool_] | NDArray[np.intp]) -> NodeChoice:
        """Some of them."""
        return NodeChoice(
            self.nodes[some], self.costs[some], None if self.devices is None else self.devices[some]
        )

    def then(self, more: NodeChoice) -> NodeChoice:
        """These, then others of the same role."""
        devices = None
        if self.devices is not None and more.devices is not None:
            devices = np.concatenate([self.devices, more.devices])
        return NodeChoice(
            np.concatenate([self.nodes, more.nodes]), np.concatenate([self.costs, more.costs]), devices
        )


def on_devices(room: Sequence[Ints], needs: Sequence[int | Ints], chosen: NodeChoice) -> NodeChoice:
    """Spots with their devices, if room by device is among the axes, as the last. `room` is not modified; `needs`: by axis."""
    if not room or room[-1].ndim == 1:
        return chosen
    need = needs[-1]
    if not len(chosen.nodes) or not isinstance(need, int) or not need:
        return chosen._replace(devices=np.zeros((len(chosen.nodes), room[-1].shape[1]), dtype=np.int64))
    some, places = np.unique(chosen.nodes, return_inverse=True)
    return chosen._replace(devices=seat(room[-1][some], places, need))


def gang_cost(placed: Sequence[NodeChoice]) -> int:
    """The cost of the slowest member, in ms; 0 for no pods at all."""
    return max((int(chosen.costs.max()) for chosen in placed if len(chosen.costs)), default=0)


# ---- the table and the selection ----


Packing = Literal["binpack", "spread"]

#: Greater than any cost, small enough to add to one.
NEVER: Final = 1 << 60
#: The packing tie-breaker is the remaining share in per mille, taken as ms.
PER_MILLE: Final = 1000


class CostTable(msgspec.Struct, frozen=True, eq=False):
    """The requests of one role, and its costs node by node.

    Args:
        needs: For each of A axes what one pod takes: one number, or (N,) where it depends on the node.
        packs: For each axis, whether it counts for packing.
        allowed: (N,) where its pods may run.
        count: G, pods wanted.
        minimum: Fewer are refused (gangs).
        each: (N,) ms every pod pays; None = nothing.
        first: (N,) ms >= 0 the first pod of the group on a node pays; None = nothing.
        step: (N,) ms a pod pays for each pod of the group that is there already; None = nothing.
        most: (N,) how many pods of the group a node takes, whatever else it has (NUMA zones); None = no such bound.
    """

    needs: tuple[int | Ints, ...]
    packs: tuple[bool, ...]
    allowed: NDArray[np.bool_]
    count: int
    minimum: int
    each: Ints | None = None
    first: Ints | None = None
    step: Ints | None = None
    most: Ints | None = None


def copies_of(
    room: Sequence[Ints], table: CostTable, limit: int, nodes: NDArray[np.intp] | None = None
) -> Ints:
    """How many pods of the role each node could hold, at most `limit`: (K,) of some nodes, (N,) where `nodes` is None."""
    where: NDArray[np.intp] | slice = slice(None) if nodes is None else nodes
    allowed = table.allowed[where]
    copies: Ints | None = None
    for have, need in zip(room, table.needs, strict=True):
        if isinstance(need, int):
            if need == 0:
                continue
            left = have[where]
            fits = left // need if left.ndim == 1 else copies_by_device(left, need)
        else:
            asked = need[where]
            fits = np.where(asked > 0, have[where] // np.maximum(asked, 1), limit)
        copies = fits if copies is None else np.minimum(copies, fits, out=copies)
    if copies is None:
        copies = np.full(len(allowed), limit, dtype=np.int64)
    np.minimum(copies, limit, out=copies)
    if table.most is not None:
        np.minimum(copies, table.most[where], out=copies)
    np.maximum(copies, 0, out=copies)
    copies *= allowed
    return copies


def place_role(
    room: Sequence[Ints],
    allocatable: Sequence[Ints],
    table: CostTable,
    count: int,
    packing: Packing,
    limit: int,
) -> NodeChoice:
    """Choose nodes for up to `count` pods of a role: what a re-scoring greedy chooses, in its order.

    Args:
        room: For each axis, (N,) what is free. Not modified.
        allocatable: For each axis, (N,) what the node has in all, for packing.
        table: The role.
        count: G, pods wanted; fewer are returned where fewer fit.
        packing: The tie-breaker.
        limit: Pods of the role one node may get (1 = one per node).
    """
    copies = copies_of(room, table, min(count, limit))
    some = copies.nonzero()[0]
    if not len(some):
        return NodeChoice(some, some)
    dearness = costs_of(room, allocatable, table, packing, some)
    cheap = nearest(dearness, count)
    return fill(room, allocatable, table, packing, some[cheap], dearness[cheap], copies[some[cheap]], count)


def costs_of(
    room: Sequence[Ints],
    allocatable: Sequence[Ints],
    table: CostTable,
    packing: Packing,
    nodes: NDArray[np.intp],
    copy: int | Ints = 1,
) -> Ints:
    """The cost of the k-th pod of a role on nodes that have room for it, in ms, before the running maximum along k.

    Args:
        room: For each axis, (N,) what is free. Not modified.
        allocatable: For each axis, (N,) what the node has in all; not 0 on these nodes where it counts for packing.
        table: The role.
        packing: The tie-breaker.
        nodes: Which nodes: (C,), or (C, 1) for several k.
        copy: k, from 1; (K,) for several.

    Returns:
        (C,), or (C, K).
    """
    shares: Ints | None = None
    axes = 0
    for have, total, need, packs in zip(room, allocatable, table.needs, table.packs, strict=True):
        if packs and isinstance(need, int) and need:
            left = have[nodes] - need * copy
            left *= PER_MILLE
            left //= total[nodes]
            shares = left if shares is None else shares + left
            axes += 1
    if shares is None:
        costs = np.zeros(np.broadcast(nodes, copy).shape, dtype=np.int64)
    else:
        costs = shares // axes if axes > 1 else shares
        if packing == "spread":
            costs = PER_MILLE - costs
    if table.each is not None:
        costs = costs + table.each[nodes]
    if table.first is not None:
        costs = costs + table.first[nodes] * (copy == 1)
    if table.step is not None:
        costs = costs + table.step[nodes] * (copy - 1)
    return costs


def fits(
    room: Sequence[Ints], table: CostTable, nodes: NDArray[np.intp] | slice = slice(None)
) -> NDArray[np.bool_]:
    """(K,) where there is room for one pod of the role, of some nodes; (N,) of all."""
    found = table.allowed[nodes]
    for have, need in zip(room, table.needs, strict=True):
        if not isinstance(need, int):
            found = found & ((need[nodes] <= 0) | (have[nodes] >= need[nodes]))
        elif need:
            left = have[nodes]
            found = found & (left >= need if have.ndim == 1 else copies_by_device(left, need) > 0)
    return found if table.most is None else found & (table.most[nodes] > 0)


def nearest(dearness: Ints, count: int) -> NDArray[np.intp] | slice:
    """Which of the nodes may get one of G pods, by position: those of which fewer than G have a cheaper first copy (ties: a
    lower index).
    """
    if len(dearness) <= count:
        return slice(None)
    edge = np.partition(dearness, count - 1)[count - 1]
    chosen: NDArray[np.intp] = (dearness <= edge).nonzero()[0]
    beyond = len(chosen) - count
    if beyond:
        kept = np.ones(len(chosen), dtype=np.bool_)
        kept[(dearness[chosen] == edge).nonzero()[0][-beyond:]] = False
        chosen = chosen[kept]
    return chosen


def fill(
    room: Sequence[Ints],
    allocatable: Sequence[Ints],
    table: CostTable,
    packing: Packing,
    some: NDArray[np.intp],
    dearness: Ints,
    copies: Ints,
    count: int,
) -> NodeChoice:
    """The last part of `place_role`: up to `count` pods on some nodes.

    Args:
        room, allocatable, table, packing: As there.
        some: (C,) the nodes, ascending.
        dearness: (C,) what the first pod costs there.
        copies: (C,) how many pods each takes, at least 1.
        count: G, pods wanted.
    """
    if packing == "binpack" and table.step is None:
        # No further pod on a node costs more than the first: once a node is chosen, it is filled.
        order = dearness.argsort(kind="stable")
        copies = copies[order]
        last = int(copies.cumsum().searchsorted(count)) + 1
        filled = order[:last].repeat(copies[:last])[:count]
        return NodeChoice(some[filled], dearness[filled])
    most = int(copies.max())
    copy = np.arange(1, most + 1)
    costs = costs_of(room, allocatable, table, packing, some[:, None], copy)
    costs[copy > copies[:, None]] = NEVER
    np.maximum.accumulate(costs, axis=1, out=costs)
    flat, wanted = costs.ravel(), min(count, int(copies.sum()))
    chosen = _smallest(flat, wanted)
    return NodeChoice(some[chosen // most], flat[chosen])


def _smallest(flat: Ints, wanted: int) -> NDArray[np.intp]:
    """Positions of the `wanted` smallest entries, in order of (value, position)."""
    if wanted < len(flat):
        edge = np.partition(flat, wanted - 1)[wanted - 1]
        below = (flat < edge).nonzero()[0]
        equal = (flat == edge).nonzero()[0][: wanted - len(below)]
    else:
        below, equal = np.arange(len(flat)), np.arange(0)
    return np.concatenate([below[np.argsort(flat[below], kind="stable")], equal])


class Trial:
    """Room as it is while a gang is being placed: a private copy of what it needs, and where its pods are."""

    def __init__(self, room: Sequence[Ints], single: bool) -> None:
        self.room = list(room) if single else [have.copy() for have in room]
        self.pods = np.zeros(len(room[0]) if room else 0, dtype=np.int64)

    def allocate(self, table: CostTable, chosen: NodeChoice) -> NodeChoice:
        """Note pods of a role; where they are, with their devices."""
        np.add.at(self.pods, chosen.nodes, 1)
        chosen = on_devices(self.room, table.needs, chosen)
        for have, need in zip(self.room, table.needs, strict=True):
            if have.ndim == 1:
                np.subtract.at(have, chosen.nodes, need if isinstance(need, int) else need[chosen.nodes])
            elif chosen.devices is not None:
                np.subtract.at(have, chosen.nodes, chosen.devices)
        return chosen

    def table(self, table: CostTable, one_per_node: bool) -> CostTable:
        """The role's table now that some of its group have nodes: staging is paid there."""
        taken = self.pods > 0
        each = table.each
        if table.step is not None:
            each = table.step * self.pods + (0 if each is None else each)
        return CostTable(
            needs=table.needs,
            packs=table.packs,
            allowed=table.allowed & ~taken if one_per_node else table.allowed,
            count=table.count,
            minimum=table.minimum,
            each=each,
            first=None if table.first is None else np.where(taken, 0, table.first),
            step=table.step,
            most=None if table.most is None else table.most - self.pods,
        )


def place_gang(
    room: Sequence[Ints],
    allocatable: Sequence[Ints],
    tables: Sequence[CostTable],
    packing: Packing,
    one_per_node: bool = False,
) -> tuple[NodeChoice, ...] | None:
    """Choose nodes for all roles of a gang, or for none.

    Roles choose in the order given (the caller's: descending dominance). Minimums of all roles first, then
    what goes beyond them as far as it fits. Greedy: None means that this pass found no placement, not that
    none exists.

    Args:
        room: For each axis, (N,) what is free; for GPUs by device (the last axis) (N, D). Not modified.
        allocatable: For each axis, (N,) what nodes have in all.
        tables: The roles.
        packing: The tie-breaker.
        one_per_node: No two pods of the gang on one node.

    Returns:
        For each role, minimum..count nodes; or None.
    """
    limit = 1 if one_per_node else NEVER
    if len(tables) == 1:
        table = tables[0]
        chosen = place_role(room, allocatable, table, table.count, packing, limit)
        return (on_devices(room, table.needs, chosen),) if len(chosen.nodes) >= table.minimum else None
    trial = Trial(room, single=False)
    placed: list[NodeChoice] = []
    for table in tables:
        now = trial.table(table, one_per_node) if placed else table
        chosen = place_role(trial.room, allocatable, now, table.minimum, packing, limit)
        if len(chosen.nodes) < table.minimum:
            return None
        placed.append(trial.allocate(table, chosen))
    for at, table in enumerate(tables):
        if table.count > table.minimum:
            now = trial.table(table, one_per_node)
            more = place_role(trial.room, allocatable, now, table.count - table.minimum, packing, limit)
            placed[at] = placed[at].then(trial.allocate(table, more))
    return tuple(placed)


# ---- one rack for the whole gang ----
#
# The rack where the gang is cheapest. Axes as above.


def place_in_one_rack(
    room: Sequence[Ints],
    allocatable: Sequence[Ints],
    tables: Sequence[CostTable],
    packing: Packing,
    rack: NDArray[np.int32],
    one_per_node: bool = False,
) -> tuple[NodeChoice, ...] | None:
    """As `place_gang`, all in the rack where the gang is cheapest.

    A gang costs its slowest member; then the sum decides, then the lower rack id.
    """
    limit = 1 if one_per_node else NEVER
    copies = [copies_of(room, table, min(limit, max(table.minimum, 1))) for table in tables]
    best: tuple[int, int] | None = None
    chosen: tuple[NodeChoice, ...] | None = None
    for members in feasible_racks(rack, copies, [table.minimum for table in tables]):
        local = place_gang(
            [have[members] for have in room],
            [have[members] for have in allocatable],
            [_within(table, members) for table in tables],
            packing,
            one_per_node,
        )
        if local is None:
            continue
        cost = (gang_cost(local), sum(int(each.costs.sum()) for each in local))
        if best is None or cost < best:
            best = cost
            chosen = tuple(each._replace(nodes=members[each.nodes].astype(np.int64)) for each in local)
    return chosen


def _within(table: CostTable, members: NDArray[np.intp]) -> CostTable:
    """The table of some nodes only."""

    def part(values: Ints | None) -> Ints | None:
        return None if values is None else values[members]

    return CostTable(
        needs=tuple(need if isinstance(need, int) else need[members] for need in table.needs),
        packs=table.packs,
        allowed=table.allowed[members],
        count=table.count,
        minimum=table.minimum,
        each=part(table.each),
        first=part(table.first),
        step=part(table.step),
        most=part(table.most),
    )
