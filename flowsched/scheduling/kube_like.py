"""Pod by pod, as a stock cluster does it: no gangs, no data, no reservations. The opponent, done as well as
it is done there.

Pods of all groups are tried interleaved, one of each group in turn, as their controllers create them (or
group after group, if the profile says so); each goes where filters allow and the node is emptiest (least
allocated). A pod that does not fit is passed over and asked again next time.
Its inputs are read over the network once it runs, so nothing is ever staged: `missing_bytes` is 0 throughout.

In the plan, placements stand in the order in which each group's first pod was placed, and may hold fewer
pods than the gang has; inside a role, pods are in replica order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from flowsched.scheduling.feasibility import beside_others
from flowsched.scheduling.placement.capacity import Capacity
from flowsched.scheduling.placement.cost_table import PlacementRequest, price
from flowsched.scheduling.placement.gang import NEVER, Ints, on_devices, place_role
from flowsched.scheduling.plan import Placement, Plan, Reason, ReasonCode, Reasons
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.ordering import in_order
from flowsched.scheduling.queues.quotas import Quotas
from flowsched.scheduling.queues.tree import QueueTree, Shares
from flowsched.scheduling.queues.user_limits import UserLimits
from flowsched.scheduling.reasons import none_ready, over_quota, why_not
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement


class _Stream:
    """The pods of one group, role by role in the group's order, as they are still to be placed."""

    def __init__(self, group: PodGroup, request: PlacementRequest) -> None:
        self.group, self.request = group, request
        self.left = [role.count for role in group.roles]
        self.nodes: list[list[int]] = [[] for _ in group.roles]
        self.devices: list[list[Ints]] = [[] for _ in group.roles]
        self.cost_ms = 0
        self.reason: Reason | None = None

    def next_role(self) -> int | None:
        """The role of the next pod; None when all have been tried."""
        return next((role for role, left in enumerate(self.left) if left), None)


def plan_kube_like(
    snapshot: Snapshot,
    catalogue: Catalogue,
    queues: QueueTree,
    backlog: Sequence[PodGroup],
    profile: Profile,
    now: int,
) -> Plan:
    """As `cycle`, pod by pod."""
    statement = Statement()
    try:
        return _plan(snapshot, catalogue, queues, backlog, profile, now, statement)
    finally:
        statement.rollback()


def _plan(
    snapshot: Snapshot,
    catalogue: Catalogue,
    queues: QueueTree,
    backlog: Sequence[PodGroup],
    profile: Profile,
    now: int,
    statement: Statement,
) -> Plan:
    room, shares, limits = Capacity(snapshot), Shares(queues, snapshot), UserLimits(profile, snapshot)
    quotas = Quotas(snapshot)
    groups = [group for waiting in in_order(backlog, queues, profile, now).values() for group in waiting]
    groups.sort(key=lambda group: (-group.priority, group.ready_ms, group.key))
    reasons = []
    streams = []
    for group in groups[: profile.window]:
        if queues.paused(group.queue):
            reasons.append(Reason(group.key, ReasonCode.PAUSED, f"queue {group.queue} is paused"))
        elif not snapshot.ready.any():
            reasons.append(Reason(group.key, ReasonCode.NO_NODES, none_ready(snapshot)))
        else:
            streams.append(_Stream(group, price(group, snapshot, catalogue, profile)))
    active = streams
    placed: dict[int, _Stream] = {}
    # Room only shrinks: where one pod of a shape found none, no other will.
    full: dict[tuple[str, Shape], Reason] = {}
    while active:
        for stream in active if profile.interleave else active[:1]:
            if any(role.shape.rules is not None for role in stream.group.roles):
                # Other pods may have been placed since.
                stream.request = price(stream.group, snapshot, catalogue, profile)
            if _place_pod(stream, room, shares, limits, quotas, snapshot, profile, full, statement):
                placed.setdefault(stream.group.key, stream)
        active = [stream for stream in active if stream.next_role() is not None]
    reasons.extend(stream.reason for stream in streams if stream.reason is not None)
    text = f"not among the {profile.window} groups a cycle looks at"
    reasons.extend(Reason(group.key, ReasonCode.BACKLOG_WINDOW, text) for group in groups[profile.window :])
    return Plan(
        tuple(map(_placement, placed.values())), (), Reasons(reasons), min(len(groups), profile.window)
    )


def _place_pod(
    stream: _Stream,
    room: Capacity,
    shares: Shares,
    limits: UserLimits,
    quotas: Quotas,
    snapshot: Snapshot,
    profile: Profile,
    full: dict[tuple[str, Shape], Reason],
    statement: Statement,
) -> bool:
    """Place the group's next pod; when it fits nowhere, the role's other pods would not either."""
    role, group, request = stream.next_role(), stream.group, stream.request
    if role is None:
        return False
    requests = group.roles[role].shape.requests
    at, shape = request.order.index(role), group.roles[role].shape
    table = request.alone().tables[at]
    kin = (profile.of(group.queue).name, shape)
    if kin in full:
        stream.left[role] = 0
        stream.reason = stream.reason or structs.replace(full[kin], group=group.key)
        return False
    if not shares.allowed(group.queue, requests, 1):
        stream.left[role] = 0
        text = f"queue {group.queue} has reached its cap"
        stream.reason = stream.reason or Reason(group.key, ReasonCode.QUEUE_LIMIT, text)
        return False
    refused = limits.refusal(group) or over_quota(group, quotas, snapshot, requests)
    if refused is not None:
        stream.left[role] = 0
        stream.reason = stream.reason or refused
        return False
    if request.one_per_node:
        taken = np.isin(np.arange(len(snapshot)), [n for role in stream.nodes for n in role])
        table = structs.replace(table, allowed=table.allowed & ~taken)
    if shape.rules is not None:
        table = structs.replace(table, allowed=beside_others(snapshot, shape, table.allowed)[0])
    rows = [room.hard(axis) for axis in request.axes]
    whole = [room.allocatable(axis) for axis in request.axes]
    chosen = place_role(rows, whole, table, 1, profile.of(group.queue).packing, NEVER)
    if not len(chosen.nodes):
        stream.left[role] = 0
        reason = why_not(request, room, snapshot, profile)
        stream.reason = stream.reason or reason
        if not request.one_per_node and len(group.roles) == 1 and shape.rules is None:
            full[kin] = reason
        return False
    chosen = on_devices(rows, table.needs, chosen)
    room.allocate(request.axes, table, chosen, None, None)
    if chosen.devices is not None:
        stream.devices[role].append(chosen.devices[0])
    shares.add(group.queue, requests)
    limits.charge(group, requests[0], 1)
    quotas.charge(group, requests, 1)
    stream.left[role] -= 1
    stream.nodes[role].append(int(chosen.nodes[0]))
    stream.cost_ms = max(stream.cost_ms, int(chosen.costs[0]))
    if shape.rules is not None:
        snapshot.peers.put(shape.rules, chosen.nodes.tolist(), statement)
    return True


def _placement(stream: _Stream) -> Placement:
    nodes = tuple(np.array(role, dtype=np.int64) for role in stream.nodes)
    devices: tuple[Ints, ...] = ()
    if any(stream.devices):
        width = len(next(rows[0] for rows in stream.devices if rows))
        devices = tuple(
            np.array(rows, dtype=np.int64).reshape(len(where), width)
            for rows, where in zip(stream.devices, nodes, strict=True)
        )
    return Placement(
        stream.group.key, nodes, tuple(map(np.zeros_like, nodes)), stream.cost_ms, devices=devices
    )
