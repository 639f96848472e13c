"""Short cycles: a few single pods of one line, when there is room for all of them. What wakes a quiet cluster is mostly that.

They go where the long way (`cycle`) would put them, in a fraction of the time, since nothing of it need be set up: with one
line there are no turns, and where everybody finds room nobody is promised any, refused, or takes it from others. Tests hold it
to that. Whatever cannot be decided shortly is left to the long way, which then begins afresh: nothing has been changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from flowsched.scheduling.feasibility import allowed_nodes
from flowsched.scheduling.locality_delay import half_a_node, work_ms
from flowsched.scheduling.placement.capacity import Along, Mask, along
from flowsched.scheduling.placement.gang import FEW, Ints, RoleTable
from flowsched.scheduling.plan import Placement, Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import BUILT_IN_FILTERS, Profile
from flowsched.scheduling.policy.plugins.locality import IMAGE
from flowsched.scheduling.queues.ordering import in_order
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.sieve import barred, best_of, cheapest
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.gpus import GPU, WHOLE
from flowsched.scheduling.state.snapshot import IO, Snapshot, packing_axes

#: So many groups at most: who finds no room after them has cost them for nothing.
FEW_GROUPS: Final = 8
#: Of no input anything is missing.
_NOTHING: Final = np.zeros(1, dtype=np.int64)
_NOTHING.setflags(write=False)


class _Kind(NamedTuple):
    """What is known of pods that ask for the same axes of the same nodes, remembered until a node changes."""

    axes: tuple[int, ...]
    packs: tuple[bool, ...]
    known: Along
    allowed: Mask  #: (N,) where nodes let them be
    refused: Ints  #: (N,) negative where they do not


def decide_briefly(
    snapshot: Snapshot,
    catalogue: Catalogue,
    queues: QueueTree,
    backlog: Sequence[PodGroup],
    profile: Profile,
    now: int,
    most: int | None,
) -> Plan | None:
    """As `cycle`; None where that is not decided here."""
    count = len(backlog)
    if not 0 < count <= FEW_GROUPS or (most is not None and most < count):
        return None
    own = profile.of(backlog[0].queue)
    if not _is_open(snapshot, queues, backlog, profile, own):
        return None
    kinds: dict[int, _Kind] = {}
    for group in backlog:
        kind = _kind_of(snapshot, catalogue, group)
        if kind is None:
            return None
        kinds[group.key] = kind
    if count > 1:
        work, half = work_ms(snapshot, backlog, profile, now), half_a_node(snapshot, profile)
        backlog = in_order(backlog, queues, profile, now, work, half)[backlog[0].queue]
    used, placements = snapshot.used, []
    free: dict[int, Ints] = {}
    for group in backlog:
        axes, packs, known, allowed, refused = kinds[group.key]
        requests = group.roles[0].shape.requests
        needs = tuple([requests[axis] for axis in axes])
        for axis, whole in zip(axes, known.whole, strict=True):
            if axis not in free:
                free[axis] = whole - used[:, axis]
        rows, table = [free[axis] for axis in axes], RoleTable(needs, packs, allowed, 1, 1)
        beside = catalogue.nodes_with_all(group.inputs) if group.inputs and own.locality else None
        if beside is not None and len(beside) <= FEW:
            found = best_of(beside, rows, known.whole, table, own.packing)
        else:
            if beside is not None:
                refused = refused | -catalogue.missing_bytes(group.inputs, len(snapshot))
            found = cheapest(rows, known, table, refused, own.packing)
        if found is None:
            return None
        spot, cost = found
        placements.append(Placement(group.key, (spot,), (_NOTHING,), cost))
        if count > 1:
            node = spot.item(0)
            for row, need in zip(rows, needs, strict=True):
                row[node] -= need
    return Plan(tuple(placements), looked_at=count)


def _is_open(
    snapshot: Snapshot, queues: QueueTree, backlog: Sequence[PodGroup], profile: Profile, own: Profile
) -> bool:
    """Whether it is one line, and nothing but its own groups says who starts."""
    if not profile.gang or profile.backfill == "conservative" or profile.window < len(backlog):
        return False
    for each in (profile, own):
        if each.filters or each.costs or each.first_costs or each.step_costs:
            return False
    if snapshot.nominations or snapshot.zones:
        return False
    first = backlog[0]
    for group in backlog:
        if group.queue != first.queue or group.user != first.user:
            return False
    queue = queues.configured(first.queue)
    while queue is not None:
        if queue.paused or queue.cap is not None:
            return False
        queue = None if queue.parent is None else queues.configured(queue.parent)
    return True


def _kind_of(snapshot: Snapshot, catalogue: Catalogue, group: PodGroup) -> _Kind | None:
    """What is known of a group's pods; None where it is not one pod, or more than size and inputs says where it goes."""
    role = group.roles[0]
    if role.count != 1 or group.shut or group.remote or group.home is not None:
        return None
    if group.min_resources is not None or len(group.roles) > 1:
        return None
    shape, devices = role.shape, snapshot.devices
    if shape.rules is not None or shape.rack is not None or shape.one_per_node:
        return None
    if shape.io_bytes or shape.direct:
        return None
    if shape.image is not None and catalogue.find(IMAGE + shape.image) is not None:
        return None
    requests = shape.requests
    if requests[0] <= 0 or (len(requests) > IO and requests[IO]):
        return None
    if devices.width and any(requests[GPU : GPU + 1]) and (devices.shared or requests[GPU] % WHOLE):
        return None
    axes = tuple([axis for axis, need in enumerate(requests[: len(snapshot.axes)]) if need > 0])
    key = "brief", axes, shape.selector, shape.tolerations
    kind: _Kind | None = snapshot.cache.get(key)
    if kind is None:
        packs = packing_axes(snapshot.axes)
        mask = allowed_nodes(snapshot, shape, BUILT_IN_FILTERS).mask
        kind = _Kind(axes, tuple([packs[axis] for axis in axes]), along(snapshot, axes), mask, barred(mask))
        snapshot.cache[key] = kind
    return kind
