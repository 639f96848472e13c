"""The short way for what most groups are: a bag of one pod of whom nothing but its size and its inputs says where it goes.

It goes where the long way (`cycle.consider`) would put it, in a fraction of the time; tests hold it to that. What cannot be
decided shortly is left to the long way: who finds no room, and whose inputs are not all on one node that has room.

A node that has all inputs and room costs less than 1,000 ms, any other at least as much for the copy alone (`COPY_OVERHEAD_MS`), so
only those few nodes need be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np

from flowsched.scheduling.allocation import Given
from flowsched.scheduling.feasibility import allowed_nodes
from flowsched.scheduling.locality_delay import Horizon
from flowsched.scheduling.placement.capacity import Mask, Room
from flowsched.scheduling.placement.gang import FEW, Ints, Packing, RoleTable
from flowsched.scheduling.placement.score_cache import Standings
from flowsched.scheduling.plan import Reason
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import BUILT_IN_FILTERS, Filter, Profile
from flowsched.scheduling.policy.plugins.locality import IMAGE
from flowsched.scheduling.queues.tree import QueueTree, Shares
from flowsched.scheduling.reservations import Promises, Taken
from flowsched.scheduling.sieve import Found, best_of
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.gpus import GPU
from flowsched.scheduling.state.snapshot import IO, Snapshot, packing_axes

#: Of no input anything is missing.
_NOTHING: Final = np.zeros(1, dtype=np.int64)
_NOTHING.setflags(write=False)


#: For some axes: whether each counts for packing; (N,) what is free, live; (N,) what nodes have in all.
_Along: TypeAlias = tuple[tuple[bool, ...], tuple[Ints, ...], tuple[Ints, ...]]


class Considering(Protocol):
    """What of a cycle places one group; see `cycle`."""

    snapshot: Snapshot
    catalogue: Catalogue
    queues: QueueTree
    profile: Profile
    now: int
    left: int
    any_ready: bool
    room: Room
    standings: Standings
    shares: Shares
    promises: Promises
    given: dict[int, Given]
    _horizon: Horizon | None

    def known_refusal(self, group: PodGroup) -> Reason | None:
        """Why a group like this one was refused before."""
        ...


@dataclass(frozen=True, slots=True)
class _Size:
    """A shape as placement sees it: its axes, and its table for one pod."""

    axes: tuple[int, ...]
    needs: tuple[int, ...]
    table: RoleTable
    shape: Shape  #: kept, so that its id stays its own
    hard: tuple[Ints, ...]  #: by axis, (N,) what is free; live
    whole: tuple[Ints, ...]  #: by axis, (N,) what nodes have in all


@dataclass(frozen=True, slots=True)
class _Policy:
    """What a queue's profile says."""

    locality: bool
    packing: Packing
    filters: tuple[Filter, ...]
    sizes: dict[int, _Size | None]  #: by the shape's id; None = it needs the long way


class Singles:
    """The short way of one cycle."""

    def __init__(self, cycle: Considering) -> None:
        self._cycle = cycle
        profile, snapshot = cycle.profile, cycle.snapshot
        plugged = profile.costs or profile.first_costs or profile.step_costs
        #: Whether anybody goes it.
        self.open = not (
            profile.backfill == "conservative" or plugged or snapshot.zones or snapshot.nominations
        )
        self.open = self.open and cycle.any_ready
        self._bound = cycle.queues.limits
        self._queues: dict[str, _Policy | None] = {}
        self._policies: dict[int, _Policy] = {}
        self._masks: dict[tuple[object, object], Mask] = {}
        self._axes: dict[tuple[int, ...], _Along] = {}
        self._packs = packing_axes(snapshot.axes)

    def serve(self, group: PodGroup) -> bool:
        """Place a group; False where it must go the long way."""
        if (
            group.gang
            or group.shut
            or group.home is not None
            or group.min_resources is not None
            or group.remote
        ):
            return False
        role = group.roles[0]
        if role.count != 1:
            return False
        policy = self._queues.get(group.queue)
        if policy is None:
            policy = self._policy(group.queue)
            if policy is None:
                return False
        shape, cycle = role.shape, self._cycle
        size = policy.sizes.get(id(shape))
        if size is None:
            size = self._size(shape, policy)
            if size is None:
                return False
        if cycle.known_refusal(group) is not None:
            return False
        long = bool(cycle.promises.made) and cycle.promises.too_long(group)
        if group.inputs and policy.locality:
            found = self._beside(group.inputs, size, policy.packing, long)
            if found is None:
                return False
            spot, cost = found
        else:
            spots = cycle.standings.place(size.axes, size.table, policy.packing, spare=long)
            if not len(spots.nodes):
                return False
            spot, cost = spots.nodes, spots.costs.item(0)
        self._commit(group, size, spot, cost, long)
        return True

    def _policy(self, queue: str) -> _Policy | None:
        """How groups of a queue are placed; None where they go the long way."""
        cycle = self._cycle
        if self._bound and (cycle.shares.limited(queue) or cycle.shares.paused(queue)):
            return None
        profile = cycle.profile.of(queue)
        if profile.costs or profile.first_costs or profile.step_costs:
            return None
        known = self._policies.get(id(profile))
        if known is None:
            known = _Policy(profile.locality, profile.packing, profile.all_filters(), {})
            self._policies[id(profile)] = known
        self._queues[queue] = known
        return known

    def _size(self, shape: Shape, policy: _Policy) -> _Size | None:
        if id(shape) in policy.sizes:
            return None
        size, requests = None, shape.requests
        plain = shape.rules is None and not (shape.one_per_node or shape.io_bytes or shape.direct)
        if self._cycle.snapshot.devices.matter and any(requests[GPU : GPU + 1]):
            plain = False
        if plain and not (requests[IO] if len(requests) > IO else 0) and requests[0] > 0:
            catalogue = self._cycle.catalogue
            if shape.image is None or catalogue.find(IMAGE + shape.image) is None:
                asked = requests[: len(self._packs)]
                axes = tuple([axis for axis, need in enumerate(asked) if need > 0])
                needs = tuple([need for need in asked if need > 0])
                packs, hard, whole = self._axes.get(axes) or self._along(axes)
                table = RoleTable(needs, packs, self._mask(shape, policy), 1, 1)
                size = _Size(axes, needs, table, shape, hard, whole)
        policy.sizes[id(shape)] = size
        return size

    def _along(self, axes: tuple[int, ...]) -> _Along:
        """What tables of shapes that ask for these axes have in common."""
        room = self._cycle.room
        packs = tuple([self._packs[axis] for axis in axes])
        self._axes[axes] = packs, tuple(map(room.hard, axes)), tuple(map(room.allocatable, axes))
        return self._axes[axes]

    def _mask(self, shape: Shape, policy: _Policy) -> Mask:
        """(N,) where nodes let it be. Built-in filters look at these two only, where there are no zones and no rules."""
        if policy.filters != BUILT_IN_FILTERS:
            return allowed_nodes(self._cycle.snapshot, shape, policy.filters).mask
        key = shape.selector, shape.tolerations
        mask = self._masks.get(key)
        if mask is None:
            mask = self._masks[key] = allowed_nodes(self._cycle.snapshot, shape, policy.filters).mask
        return mask

    def _beside(self, inputs: tuple[int, ...], size: _Size, packing: Packing, long: bool) -> Found | None:
        """The cheapest node that has all inputs, and room; None where there is none, or are many."""
        nodes = self._cycle.catalogue.nodes_with_all(inputs)
        if len(nodes) > FEW:
            return None
        rows: Sequence[Ints] = size.hard
        if long:
            rows = [self._cycle.room.least(axis) for axis in size.axes]
        return best_of(nodes, rows, size.whole, size.table, packing)

    def _commit(self, group: PodGroup, size: _Size, spot: Ints, cost: int, long: bool) -> None:
        """As the cycle's."""
        cycle, requests = self._cycle, size.shape.requests
        cycle.given[group.key] = Given([spot], [_NOTHING], cost)
        cycle.left -= 1
        cycle.room.take_one(size.axes, size.needs, spot, outlasts=long)
        runtime = group.runtime_ms
        if runtime is None:
            runtime = cycle.profile.default_runtime_ms
        longest = runtime if group.high_ms is None else group.high_ms
        cycle.promises.taken.append(
            Taken(cycle.now + runtime, cycle.now + longest, size.axes, size.table, spot)
        )
        if cycle._horizon is not None:
            cycle._horizon.add(spot, requests, runtime)
        cycle.shares.add(group.queue, requests, 1, group.user)
