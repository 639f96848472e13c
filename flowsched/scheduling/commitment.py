"""What a placement commits a cycle to: the room it takes, what its queue has, and what later groups see of it.

Of whole groups, as the long way places them. `single` and `wave` do the same, shorter, for pods of whom less need be noted.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from flowsched.scheduling.budgets import Budgets
from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.framework import Profile
from flowsched.scheduling.given import Given, hold_rest
from flowsched.scheduling.horizon import Horizon
from flowsched.scheduling.placement import Ints
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.pricing import Fit
from flowsched.scheduling.promises import Promises, longest_of, runtime_of
from flowsched.scheduling.queues import Shares
from flowsched.scheduling.reservation import Taken
from flowsched.scheduling.room import Room
from flowsched.scheduling.snapshot import Snapshot
from flowsched.statement import Statement


class Committing(Protocol):
    """What of a cycle changes with each group that is placed; see `cycle`."""

    snapshot: Snapshot
    catalogue: Catalogue
    profile: Profile
    now: int
    left: int
    statement: Statement
    given: dict[int, Given]
    room: Room
    shares: Shares
    promises: Promises
    budgets: Budgets
    _horizon: Horizon | None


def commit(cycle: Committing, fit: Fit) -> None:
    """Take the room, pay the queue, note what will move and who disturbs whom."""
    offer, group = fit.offer, fit.offer.group
    given = cycle.given.get(group.key)
    if given is None:
        given = cycle.given[group.key] = Given.of(group)
    given.held = hold_rest(fit, cycle.room, cycle.snapshot)
    cycle.left -= fit.pods
    ends = cycle.now + runtime_of(group, cycle.profile), cycle.now + longest_of(group, cycle.profile)
    for table, role, spots, bound in zip(offer.tables, offer.order, fit.spots, fit.bound, strict=True):
        cycle.room.take(offer.axes, table, spots, bound, fit.long)
        start = spots.nodes if bound is None else spots.nodes[bound]
        if len(start):
            devices = spots.devices if bound is None or spots.devices is None else spots.devices[bound]
            cycle.promises.taken.append(Taken(*ends, offer.axes, table, start, devices))
        shape = group.roles[role].shape
        if cycle._horizon is not None:
            cycle._horizon.add(start, shape.requests, ends[0] - cycle.now)
            if bound is not None:
                targets = spots.nodes[~bound]
                cycle._horizon.add(targets, shape.requests, ends[0] - cycle.now, staged=True)
        if table.most is not None:
            cycle.snapshot.zones.hold(spots.nodes, shape.requests, cycle.statement)
        cycle.shares.add(group.queue, shape.requests, len(spots.nodes), group.user)
        cycle.budgets.take(shape.direct, len(spots.nodes))
        missing = offer.missing[spots.nodes] if offer.missing is not None else np.zeros_like(spots.nodes)
        given.add(role, spots, missing)
        if shape.rules is not None:
            cycle.snapshot.peers.put(shape.rules, start.tolist(), cycle.statement)
        _foresee(cycle, group, spots.nodes, missing, shape.io_bytes)


def _foresee(cycle: Committing, group: PodGroup, nodes: Ints, missing: Ints, io_bytes: int) -> None:
    """Let later groups of this cycle see the copies and IO-heavy pods that follow from this one."""
    if len(nodes) == 1:
        away = nodes if group.inputs and missing.item(0) > 0 else nodes[:0]
    else:
        away = np.unique(nodes[missing > 0]) if group.inputs and missing.any() else nodes[:0]
    if len(away):
        bytes_in = cycle.catalogue.unordered_bytes(group.inputs, len(cycle.snapshot))[away]
        cycle.snapshot.add_inbound(away, bytes_in, cycle.statement)
        for dataset in group.inputs:
            cycle.catalogue.expect(dataset, away.tolist(), cycle.statement)
    if group.home is not None:
        homeward, home = cycle.snapshot.homeward, group.home.node
        more = int(np.count_nonzero(nodes != home)) * group.home.output_bytes
        cycle.statement.put(homeward, home, homeward.get(home, 0) + more)
    if io_bytes > 0:
        pods = np.bincount(nodes, minlength=len(cycle.snapshot)).astype(np.int32)
        cycle.statement.add(cycle.snapshot.io_tasks, slice(None), pods)
