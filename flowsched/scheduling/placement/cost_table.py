"""The cost table: the requests of a pod group, the nodes where its pods may run, and their costs on each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.scheduling.feasibility import Allowed, InterPodAffinity, affinity_of, all_but, allowed_nodes
from flowsched.scheduling.placement.capacity import Capacity, Mask
from flowsched.scheduling.placement.gang import (
    CostTable,
    Ints,
    NodeChoice,
    fits,
    place_gang,
    place_in_one_rack,
)
from flowsched.scheduling.placement.one_by_one import Problem, place_in_one_rack_one_by_one, place_one_by_one
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.framework import Cost, Profile, term_name
from flowsched.scheduling.queues.tree import BILLION
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.gpus import DEVICES, GPU, copies_by_device
from flowsched.scheduling.state.numa import zones_for
from flowsched.scheduling.state.snapshot import IO, Snapshot, packing_axes
from flowsched.values import replace

#: Parts of a divisible bundle are counted in these; rounding favours the gang by less than one part per node.
MILLION: Final = 1_000_000


def bundle_on(left: Sequence[Ints], rest: Sequence[int], allowed: NDArray[np.bool_]) -> list[Ints] | None:
    """Spread a bundle over nodes in index order, in millionths; None if there is not room for all of it."""
    if max(rest, default=0) <= 0:
        return [np.zeros_like(have) for have in left]
    parts = np.where(allowed, MILLION, 0)
    for have, amount in zip(left, rest, strict=True):
        if amount > 0:
            shift = max(0, amount.bit_length() - 40)  # keeps the product below 2 ** 63
            share = np.clip(have, 0, amount) >> shift
            parts = np.minimum(parts, -(-share * MILLION // (amount >> shift)))
    before = np.cumsum(parts) - parts
    parts = np.clip(MILLION - before, 0, parts)
    if int(parts.sum()) < MILLION:
        return None
    laid = []
    for have, amount in zip(left, rest, strict=True):
        whole, more = divmod(max(amount, 0), MILLION)  # the product itself may have more than 64 bits
        laid.append(np.minimum(np.maximum(have, 0), parts * whole - (-parts * more // MILLION)))
    return laid


# ---- requests, assignments, and the pricer that makes them ----


class PlacementRequest(msgspec.Struct, frozen=True, eq=False):
    """A group, priced against the nodes as they are now.

    Args:
        group: The group.
        axes: Indices of the A axes its roles ask for (cpu always); `DEVICES` last, where parts of GPUs are about.
        tables: Its roles, largest dominant share first.
        order: For each table, which role of the group it is.
        allowed: For each table, where its pods may run and why not elsewhere.
        missing: (N,) bytes of its inputs that are not there; None = nothing is missing anywhere, or it does
            not matter.
        one_per_node: No two of its pods on one node.
        rack: None, "required" or "preferred".
        affinity: How rules between pods bear on it, already part of the tables; None = not at all.
        local: (N,) where nothing is missing; None = everywhere.
        terms: For each table, what is summed in `first` and `each`: the name of each cost, and (N,) ms.
    """

    group: PodGroup
    axes: tuple[int, ...]
    tables: tuple[CostTable, ...]
    order: tuple[int, ...]
    allowed: tuple[Allowed, ...]
    missing: Ints | None
    one_per_node: bool
    rack: str | None
    affinity: InterPodAffinity | None = None
    local: Mask | None = None
    terms: tuple[tuple[tuple[str, Ints], ...], ...] = ()

    @property
    def plain(self) -> bool:
        """Whether it has one role, and how full a node is decides its cost alone: the score cache may keep its scores. To those, of
        one pod, its own costs are added.
        """
        table = self.tables[0]
        own = (self.missing, table.first, table.each, table.step)
        costs = any(cost is not None for cost in own)
        return not (
            (costs and table.count > 1)
            or table.most is not None
            or len(self.tables) > 1
            or self.affinity is not None
            or self.group.shut
            or self.rack is not None
            or self.one_per_node
            or self.group.min_resources is not None
            or self.axes[-1] == DEVICES
        ) and all(isinstance(need, int) for need in table.needs)

    def stage_ms(self, nodes: int) -> Ints:
        """(N,) ms to bring the inputs there."""
        first = self.tables[0].first
        return np.zeros(nodes, dtype=np.int64) if first is None else first

    def wanting(self, count: int) -> PlacementRequest:
        """The request of a bag for `count` of its pods."""
        if self.tables[0].count == count:
            return self
        return structs.replace(self, tables=(structs.replace(self.tables[0], count=count, minimum=1),))

    def at_least(self) -> PlacementRequest:
        """The request for the minimum of every role."""
        if all(table.count == table.minimum for table in self.tables):
            return self
        return structs.replace(self, tables=tuple(structs.replace(t, count=t.minimum) for t in self.tables))

    def only(self, mask: Mask) -> PlacementRequest:
        """The request for some nodes only."""
        return structs.replace(
            self, tables=tuple(structs.replace(t, allowed=t.allowed & mask) for t in self.tables)
        )

    def without_rack(self) -> PlacementRequest:
        """The request as if racks did not matter, to explain."""
        return structs.replace(self, rack=None)

    def alone(self) -> PlacementRequest:
        """The request as if there were no other pods to be near to or apart from, and no NUMA zones, to explain."""
        if self.affinity is None:
            return self.without_zones()
        tables = (
            structs.replace(t, allowed=a.mask, most=None)
            for t, a in zip(self.tables, self.allowed, strict=True)
        )
        return structs.replace(self, tables=tuple(tables), affinity=None)

    def in_zones(self, snapshot: Snapshot) -> PlacementRequest:
        """The request as NUMA zones are now: pods, its own or of other groups, have been placed since."""
        if all(table.most is None for table in self.tables):
            return self
        now = zones_for(
            [self.group.roles[r].shape.requests for r in self.order], snapshot.zones, len(snapshot)
        )
        tables = (table if table.most is None else structs.replace(table, most=now) for table in self.tables)
        return structs.replace(self, tables=tuple(tables))

    def without_zones(self) -> PlacementRequest:
        """The request as if nodes had no NUMA zones, to explain."""
        if all(table.most is None for table in self.tables):
            return self
        return structs.replace(self, tables=tuple(structs.replace(table, most=None) for table in self.tables))

    def by_sums(self) -> PlacementRequest:
        """The request as if GPUs could be had in pieces."""
        if self.axes[-1] != DEVICES:
            return self
        tables = (structs.replace(t, needs=t.needs[:-1], packs=t.packs[:-1]) for t in self.tables)
        return structs.replace(self, axes=self.axes[:-1], tables=tuple(tables))

    def without(self, axis: int) -> PlacementRequest:
        """The request as if nothing were asked of one axis, to explain."""
        at = self.axes.index(axis)
        tables = (structs.replace(t, needs=(*t.needs[:at], 0, *t.needs[at + 1 :])) for t in self.tables)
        return structs.replace(self, tables=tuple(tables))

    def place(
        self, rows: Sequence[Ints], room: Capacity, snapshot: Snapshot, profile: Profile
    ) -> tuple[NodeChoice, ...] | None:
        """Place it on this room (by axis, (N,)); the node choices are in the order of `tables`."""
        whole = [room.allocatable(axis) for axis in self.axes]
        profile = profile.of(self.group.queue)
        problem = self.problem(rows, room, snapshot, profile)
        if self.rack is not None:
            rack = snapshot.rack
            placed = (
                place_in_one_rack(rows, whole, self.tables, profile.packing, rack, self.one_per_node)
                if problem is None
                else place_in_one_rack_one_by_one(problem)
            )
            if placed is not None or self.rack == "required":
                return placed if self._rest_fits(rows, placed) else None
        if problem is None:
            placed = place_gang(rows, whole, self.tables, profile.packing, self.one_per_node)
        else:
            placed = place_one_by_one(problem)
        return placed if self._rest_fits(rows, placed) else None

    def has_room(self, rows: Sequence[Ints], room: Capacity, snapshot: Snapshot, profile: Profile) -> bool:
        """Whether its minimum has a place on this room. `rows`: as for `place`; costs do not matter."""
        if self.group.gang or self.one_by_one or self.group.min_resources is not None:
            return self.at_least().place(rows, room, snapshot, profile) is not None
        return bool(fits(rows, self.tables[0]).any())

    @property
    def one_by_one(self) -> bool:
        """Whether its members look at each other."""
        return self.affinity is not None and self.affinity.mutual

    def problem(
        self, rows: Sequence[Ints], room: Capacity, snapshot: Snapshot, profile: Profile
    ) -> Problem | None:
        """The request as one to be placed pod by pod; None where its members do not look at each other."""
        if self.affinity is None or not self.one_by_one:
            return None
        whole = [room.allocatable(axis) for axis in self.axes]
        packing = profile.of(self.group.queue).packing
        return Problem(snapshot, rows, whole, self.tables, self.affinity, packing, self.one_per_node)

    def _rest_fits(self, rows: Sequence[Ints], placed: Sequence[NodeChoice] | None) -> bool:
        if placed is None or self.group.min_resources is None:
            return True
        return self.rest(rows, placed) is not None

    def rest(self, rows: Sequence[Ints], placed: Sequence[NodeChoice]) -> list[Ints] | None:
        """Where the room of `min_resources` beyond its own pods would be: by axis, (N,).

        The rest is taken as one divisible bundle, as much of it on each matching node as fits with all its
        parts together, so that free memory beside no free core counts for nothing. Spark's executors are
        such a rest when its driver starts.

        Returns:
            The amounts (GPUs by their sum), or None where they do not fit.
        """
        wanted = self.group.min_resources or ()
        axes = [axis for axis in self.axes if axis != DEVICES]
        rest = [wanted[axis] if axis < len(wanted) else 0 for axis in axes]
        left = [row.copy() for row in rows[: len(axes)]]
        for table, chosen in zip(self.tables, placed, strict=True):
            for at, need in enumerate(table.needs[: len(axes)]):
                amounts = np.full(len(chosen.nodes), need) if isinstance(need, int) else need[chosen.nodes]
                np.subtract.at(left[at], chosen.nodes, amounts)
                rest[at] -= int(amounts.sum())
        return bundle_on(left, rest, np.logical_or.reduce([table.allowed for table in self.tables]))


class Assignment(msgspec.Struct, frozen=True, eq=False):
    """Where a group could go.

    Args:
        request: The group.
        node_choices: In the order of the request's tables.
        bound: For each table, (k,) whether each pod may bind at once (the others are targets); None = all
            may.
        long: (N,) where it would outlast the reservation's start; None = nowhere.
    """

    request: PlacementRequest
    node_choices: tuple[NodeChoice, ...]
    bound: tuple[Mask | None, ...]
    long: Mask | None

    def full(self, rows: Sequence[Ints]) -> Mask:
        """(N,) where no further pod of its first role finds room once this one is placed. `rows`: by axis, what is free."""
        table, nodes = self.request.tables[0], self.node_choices[0].nodes
        full = np.zeros(len(rows[0]), dtype=np.bool_)
        there = np.bincount(nodes, minlength=len(rows[0])) + 1
        for row, need in zip(rows, table.needs, strict=True):
            if row.ndim == 1:
                full |= there * need > np.maximum(row, 0)
            elif isinstance(need, int) and need:
                full |= there > copies_by_device(row, need)
        return full

    @property
    def moves(self) -> bool:
        """Whether some of its pods go where their inputs are not."""
        return any(bound is not None and not bound.all() for bound in self.bound)

    @property
    def pods(self) -> int:
        """How many pods it places."""
        return sum(len(chosen.nodes) for chosen in self.node_choices)


def price(group: PodGroup, snapshot: Snapshot, catalogue: Catalogue, profile: Profile) -> PlacementRequest:
    """Put a group's tables together."""
    return Pricer(snapshot, catalogue, profile).price(group)


class _Requirements(NamedTuple):
    """The constant part of a request in one cycle, for groups with the same roles. The fields are those of `PlacementRequest`.

    `needs`: for each table, what one pod takes of each axis; `packs`: for each axis, whether it counts for packing.
    """

    axes: tuple[int, ...]
    order: tuple[int, ...]
    allowed: tuple[Allowed, ...]
    needs: tuple[tuple[int | Ints, ...], ...]
    packs: tuple[bool, ...]
    rack: str | None
    one_per_node: bool


class Pricer:
    """Puts tables together, for as long as no node changes: a cycle."""

    def __init__(self, snapshot: Snapshot, catalogue: Catalogue, profile: Profile) -> None:
        self._snapshot, self._catalogue, self._profile = snapshot, catalogue, profile
        self._others: dict[int, Pricer] = {}  #: of queues that have a profile of their own, by its id
        self._filters = profile.all_filters()
        costs = (profile.all_costs(), profile.all_first_costs(), profile.all_step_costs())
        self._costs = tuple([[(cost, term_name(cost)) for cost in some] for some in costs])
        self._packs = packing_axes(snapshot.axes)
        self._known: dict[tuple[tuple[Shape, ...], tuple[int, ...] | None], _Requirements] = {}

    def price(self, group: PodGroup) -> PlacementRequest:
        """As `price`."""
        return self._of(group.queue)._own(group)

    def allowed(self, group: PodGroup) -> Sequence[Mask]:
        """Of each role, (N,) the nodes that allow its pods by node rules alone."""
        found = self._of(group.queue)._requirements(group)
        return [found.allowed[found.order.index(role)].mask for role in range(len(group.roles))]

    def _of(self, queue: str) -> Pricer:
        """The pricer of a queue's profile."""
        profile = self._profile.of(queue)
        if profile is self._profile:
            return self
        if id(profile) not in self._others:
            bare = replace(profile, queues={}) if profile.queues else profile
            self._others[id(profile)] = Pricer(self._snapshot, self._catalogue, bare)
        return self._others[id(profile)]

    def _own(self, group: PodGroup) -> PlacementRequest:
        snapshot, asked, missing = self._snapshot, self._requirements(group), self._missing(group)
        roles = [group.roles[r] for r in asked.order]
        zones = None
        masks: Sequence[Mask] = [where.mask for where in asked.allowed]
        affinity = affinity_of(snapshot, [(role.shape, role.count) for role in roles], masks)
        if affinity is not None:
            masks = affinity.masks
        if group.shut:
            shut = all_but(len(snapshot), group.shut)
            masks = [mask & shut for mask in masks]
        if snapshot.zones:
            zones = zones_for([role.shape.requests for role in roles], snapshot.zones, len(snapshot))
        tables, terms_of = [], []
        for role, needs, mask in zip(roles, asked.needs, masks, strict=True):
            terms: list[tuple[str, Ints]] = []
            pod_costs, first_costs, step_costs = self._costs
            bounded = zones is not None and snapshot.zones.is_aligned(role.shape.requests)
            tables.append(
                CostTable(
                    needs=needs,
                    packs=asked.packs,
                    allowed=mask,
                    count=role.count,
                    minimum=role.minimum if group.gang else 1,
                    first=_sum(first_costs, snapshot, self._catalogue, group, role, terms),
                    each=_sum(pod_costs, snapshot, self._catalogue, group, role, terms),
                    step=_sum(step_costs, snapshot, self._catalogue, group, role, []),
                    most=zones if bounded else None,
                )
            )
            terms_of.append(tuple(terms))
        return PlacementRequest(
            group=group,
            axes=asked.axes,
            tables=tuple(tables),
            order=asked.order,
            allowed=asked.allowed,
            missing=missing,
            one_per_node=asked.one_per_node,
            rack=asked.rack if group.gang else None,
            affinity=affinity,
            local=None if missing is None else missing == 0,
            terms=tuple(terms_of),
        )

    def _missing(self, group: PodGroup) -> Ints | None:
        """(N,) bytes of its inputs that nodes lack; None where no node lacks any, or it does not matter."""
        if not self._profile.locality or not group.inputs:
            return None
        missing = self._catalogue.missing_bytes(group.inputs, len(self._snapshot))
        return missing if np.count_nonzero(missing) else None

    def _requirements(self, group: PodGroup) -> _Requirements:
        """The requests of its roles, and the nodes that allow them by node rules alone; cached for the cycle."""
        shapes = tuple([role.shape for role in group.roles])
        key = shapes, group.min_resources
        known = self._known.get(key)
        if known is not None:
            return known
        snapshot, order = self._snapshot, tuple(range(len(shapes)))
        if len(shapes) > 1:
            order = tuple(sorted(order, key=lambda r: (-dominance(group.roles[r], snapshot), r)))
        axes = self._axes(group)
        allowed = tuple([allowed_nodes(snapshot, shapes[r], self._filters) for r in order])
        policies = {shape.rack for shape in shapes}
        self._known[key] = found = _Requirements(
            axes=axes,
            order=order,
            allowed=allowed,
            needs=tuple(
                [
                    tuple([_need(group.roles[r], axis, snapshot, self._profile) for axis in axes])
                    for r in order
                ]
            ),
            packs=tuple([axis != DEVICES and self._packs[axis] for axis in axes]),
            rack="required" if "required" in policies else "preferred" if "preferred" in policies else None,
            one_per_node=any(shape.one_per_node for shape in shapes),
        )
        return found

    def _axes(self, group: PodGroup) -> tuple[int, ...]:
        """Which axes its roles ask for, or its `min_resources`; cpu always."""
        asked = {0}
        for role in group.roles:
            asked.update([axis for axis, need in enumerate(role.shape.requests) if need > 0])
        if not self._profile.contention:
            asked.discard(IO)
        if group.min_resources is not None:
            asked.update([axis for axis, need in enumerate(group.min_resources) if need])
        if GPU in asked and self._snapshot.devices.matter:
            asked.add(DEVICES)
        return tuple(sorted(axis for axis in asked if axis < len(self._packs) or axis == DEVICES))


def dominance(role: RoleRequest, snapshot: Snapshot) -> int:
    """The dominant share of one pod in billionths of the cluster."""
    shares = [
        need * BILLION // total if total else BILLION
        for need, total in zip(role.shape.requests, snapshot.total, strict=False)
        if need > 0
    ]
    return max(shares, default=0)


def _need(role: RoleRequest, axis: int, snapshot: Snapshot, profile: Profile) -> int | Ints:
    """The request of one pod on an axis; a request for more disk bandwidth than a node has means all of it."""
    if axis == DEVICES:
        axis = GPU
    need = role.shape.requests[axis] if axis < len(role.shape.requests) else 0
    if axis == IO and not profile.contention:
        return 0
    if axis != IO or not need:
        return need
    budget: NDArray[np.int64] = snapshot.allocatable[:, IO]
    if not len(budget) or need <= int(budget.min()):
        return need
    return np.minimum(need, budget)


def _sum(
    costs: Sequence[tuple[Cost, str]],
    snapshot: Snapshot,
    catalogue: Catalogue,
    group: PodGroup,
    role: RoleRequest,
    terms: list[tuple[str, Ints]],
) -> Ints | None:
    """(N,) the sum of some costs, which are added to `terms` by their names; None = nothing anywhere."""
    total: Ints | None = None
    for cost, name in costs:
        more = cost(snapshot, catalogue, group, role)
        if more is not None:
            terms.append((name, more))
            total = more if total is None else total + more
    return total
