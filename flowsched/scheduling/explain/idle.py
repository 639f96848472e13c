"""Idle room: why free resources are free at one moment, split by what keeps waiting work from using them.

*Idle* is allocatable - used on nodes that take pods, never below 0. Everything that is idle gets exactly one cause:

1. Room that waiting pods would take if one thing were not in the way. They are laid onto the idle room, as whole pods, by their
   cause in the order of `_FIRST`: missing bytes, room reserved for another group, a queue's cap, a disk's bandwidth, a turn that
   comes next, rules that keep pods apart.
2. The rest on nodes where waiting pods may run but do not fit, up to their requests: *fragmentation*.
3. The rest elsewhere, up to their remaining requests: *mismatch*, they may not run there, or no node is large enough.
4. Room that no ready work asks for: *no demand*.

So the causes of a resource add up to all of its idle room, even if they overlap. Whole numbers, nodes in index order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.feasibility import allowed_nodes
from flowsched.scheduling.placement.gang import Ints
from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.state.snapshot import IO, Snapshot

Mask = NDArray[np.bool_]


class Cause(IntEnum):
    """Why room is idle. Answers and stored rows use the names in lower case."""

    NO_DEMAND = 0  #: nothing that is ready asks for it
    FRAGMENTATION = 1  #: waiting work does not fit the free room: too small, too scattered, or beside a resource that is full
    RESERVED = 2  #: waiting work would fit, but would delay a gang that has a reservation
    QUOTA = 3  #: waiting work would fit, but its queue, user or namespace has reached a cap, or its queue keeps its order
    DATA = 4  #: waiting work would fit, but its inputs are not there yet
    IO = 5  #: waiting work would fit, but the disk's bandwidth is booked
    MISMATCH = 6  #: waiting work may not run there: selector, taint, rules between pods, or size
    STARTING = 7  #: its turn comes next


_OF: Final[Mapping[ReasonCode, Cause]] = {
    ReasonCode.RESERVED: Cause.RESERVED,
    ReasonCode.MAINTENANCE: Cause.RESERVED,
    ReasonCode.QUEUE_LIMIT: Cause.QUOTA,
    ReasonCode.LARGER_THAN_QUEUE: Cause.QUOTA,
    ReasonCode.QUOTA_EXCEEDED: Cause.QUOTA,
    ReasonCode.LARGER_THAN_QUOTA: Cause.QUOTA,
    ReasonCode.USER_LIMIT: Cause.QUOTA,
    ReasonCode.PAUSED: Cause.QUOTA,
    ReasonCode.QUEUE_ORDER: Cause.QUOTA,
    ReasonCode.NOMINATED: Cause.STARTING,
    ReasonCode.WAITING_FOR_DATA: Cause.DATA,
    ReasonCode.WAITING_FOR_LOCALITY: Cause.DATA,
    ReasonCode.IO_BUDGET: Cause.IO,
    ReasonCode.STORAGE_BUDGET: Cause.IO,
    ReasonCode.BACKLOG_WINDOW: Cause.STARTING,
    ReasonCode.BACKOFF: Cause.STARTING,
    ReasonCode.WAITING_FOR_MEMBERS: Cause.STARTING,
    ReasonCode.NEIGHBOURS: Cause.MISMATCH,
}
#: No node takes such pods, however empty.
_NOWHERE: Final = (ReasonCode.NO_MATCHING_NODE, ReasonCode.LARGER_THAN_NODE)
#: The causes of waiting for which pods are laid onto idle room, in this order: the nearest to running first.
_FIRST: Final = (Cause.DATA, Cause.RESERVED, Cause.QUOTA, Cause.IO, Cause.STARTING, Cause.MISMATCH)
#: So many kinds of waiting work are kept apart, the most important ones; all others count as one kind that may run anywhere.
KINDS: Final = 64
#: More than any cluster has; so much of every kind can be added up in 64 bits.
_MOST: Final = 1 << 55


class Split(msgspec.Struct, frozen=True, eq=False):
    """The idle room of a moment.

    Args:
        amounts: (C, R) by cause and axis; each column adds up to the idle amount of the axis.
        capacity: (R,) what nodes that take pods have.
        off: (R,) what the other nodes have.
        blame: By cause and name, (R,) the name's part of `amounts`. The name is a queue for QUOTA, the group with the reservation
            for RESERVED, and the waiting group for the others.
    """

    amounts: Ints
    capacity: Ints
    off: Ints
    blame: Mapping[tuple[Cause, str], Ints]


class _Kind(msgspec.Struct):
    """Waiting work that is alike: `times` groups of these roles (a bag counts pods), or their requests in all."""

    cause: Cause
    name: str
    roles: tuple[tuple[Shape, int], ...]
    times: int = 0
    masks: list[Mask] = msgspec.field(default_factory=list)  #: by role, the nodes that it may use


class _Spill(msgspec.Struct):
    """The requests of work that may run on the same nodes, beyond the part that would fit."""

    mask: Mask
    asks: list[tuple[str, Ints]] = msgspec.field(default_factory=list)


class IdleRoom(msgspec.Struct, frozen=True, eq=False):
    """The idle room of a moment and the work that waits for it, in arrays of its own: a thread may split it while nodes change.

    Args:
        ready: (N,) True on nodes that take pods.
        left: (N, R) allocatable - used on these, never below 0.
        staging: (N, R) the part of `left` for which inputs are on their way; None = there is none.
        kinds: The first `KINDS` of waiting work.
        crowd, nowhere: (R,) what groups of other kinds ask for, and what groups that fit no node ask for.
        capacity, off: (R,) what nodes that take pods have, and what the other nodes have.
    """

    ready: Mask
    left: Ints
    staging: Ints | None
    kinds: list[_Kind]
    crowd: Ints
    nowhere: Ints
    capacity: Ints
    off: Ints


def idle_room(
    snapshot: Snapshot, waiting: Iterable[tuple[PodGroup, Reason]], profile: Profile, names: Mapping[int, str]
) -> IdleRoom:
    """The idle room now, and the work that waits for it, copied for `split`.

    Args:
        snapshot: Nodes and claims. Not modified.
        waiting: The groups that the last cycle refused, and why; the most important first.
        profile: For its filters.
        names: Of groups, by key, for the group that holds a reservation.
    """
    ready, has = snapshot.ready.copy(), snapshot.allocatable
    left = np.where(ready[:, None], np.maximum(has - snapshot.used, 0), 0)
    staging = np.clip(snapshot.staging, 0, left) if snapshot.any_staging else None
    kinds, crowd, nowhere = _kinds(waiting, names, len(snapshot.axes))
    filters = profile.all_filters()
    for kind in kinds:
        kind.masks = [allowed_nodes(snapshot, shape, filters).mask for shape, _ in kind.roles]
    return IdleRoom(
        ready, left, staging, kinds, crowd, nowhere, has[ready].sum(axis=0), has[~ready].sum(axis=0)
    )


def split(room: IdleRoom) -> Split:
    """Why what is idle at a moment is idle. Takes up to 50 ms for 10,000 nodes: call it beside the event loop.

    Args:
        room: The moment. Not modified.
    """
    left, still = room.left.copy(), room.nowhere
    axes = left.shape[1]
    idle = left.sum(axis=0)
    amounts = np.zeros((len(Cause), axes), dtype=np.int64)
    blame: dict[tuple[Cause, str], Ints] = {}

    def charge(cause: Cause, name: str, taken: Ints) -> None:
        if taken.any():
            amounts[cause] += taken
            before = blame.get((cause, name))
            blame[cause, name] = taken.copy() if before is None else before + taken

    if room.staging is not None:
        left -= room.staging
        charge(Cause.DATA, "inputs on their way", room.staging.sum(axis=0))
    spill: dict[bytes, _Spill] = {}
    for kind in sorted(room.kinds, key=_order):
        placed = 0
        if kind.cause in _FIRST:
            placed, taken = _lay(left, kind)
            charge(kind.cause, kind.name, taken)
        rest = _demand(kind.roles, kind.times - placed, axes)
        if rest.any():
            mask = np.logical_or.reduce(kind.masks)
            spill.setdefault(mask.tobytes(), _Spill(mask)).asks.append((kind.name, rest))
    if room.crowd.any():
        spill.setdefault(room.ready.tobytes(), _Spill(room.ready)).asks.append(("many others", room.crowd))
    for each in spill.values():
        rests = [rest for _, rest in each.asks]
        taken = _pieces(left, each.mask, np.sum(rests, axis=0))
        still = still + np.sum(rests, axis=0) - taken
        for name, rest in each.asks:
            part = np.minimum(rest, taken)
            charge(Cause.FRAGMENTATION, name, part)
            taken = taken - part
    over = left.sum(axis=0)
    charge(Cause.MISMATCH, "", np.minimum(over, still))
    amounts[Cause.NO_DEMAND] = idle - amounts.sum(axis=0)
    return Split(amounts, room.capacity, room.off, blame)


def _order(kind: _Kind) -> int:
    return _FIRST.index(kind.cause) if kind.cause in _FIRST else len(_FIRST)


def _kinds(
    waiting: Iterable[tuple[PodGroup, Reason]], names: Mapping[int, str], axes: int
) -> tuple[list[_Kind], Ints, Ints]:
    """The kinds of waiting work; (R,) what groups beyond the first `KINDS` ask for; (R,) what groups that fit no node ask for."""
    kinds: dict[object, _Kind] = {}
    crowd, nowhere = np.zeros((2, axes), dtype=np.int64)
    for group, reason in waiting:
        cause = _OF.get(reason.code, Cause.FRAGMENTATION)
        roles = tuple((role.shape, role.count if group.gang else 1) for role in group.roles)
        whose = group.name
        if cause is Cause.QUOTA:
            whose = group.queue
        elif cause is Cause.RESERVED:
            whose = names.get(reason.numbers.get("reserved_for", -1), "a gang")
        owner = whose if cause in (Cause.QUOTA, Cause.RESERVED) else ""
        key = (cause, owner, roles)
        kind = kinds.get(key)
        times = 1 if group.gang else group.roles[0].count
        if reason.code in _NOWHERE:
            np.minimum(nowhere + _demand(roles, times, axes), _MOST, out=nowhere)
            continue
        if kind is None and len(kinds) >= KINDS:
            np.minimum(crowd + _demand(roles, times, axes), _MOST, out=crowd)
            continue
        if kind is None:
            kind = kinds[key] = _Kind(cause, whose, roles)
        kind.times += times
    return list(kinds.values()), crowd, nowhere


def _demand(roles: tuple[tuple[Shape, int], ...], times: int, axes: int) -> Ints:
    total = [0] * axes
    for shape, count in roles:
        for axis, need in enumerate(shape.requests[:axes]):
            total[axis] += need * count * times
    return np.array([min(amount, _MOST) for amount in total], dtype=np.int64)


def _lay(left: Ints, kind: _Kind) -> tuple[int, Ints]:
    """Lay as many groups of a kind as fit onto what is left (changed): how many, and (R,) what they take."""
    axes = left.shape[1]
    times = kind.times
    for _ in range(4):  # fewer each time: greedy, as placement is
        if times <= 0:
            break
        trial, fits = left.copy(), times
        for (shape, count), mask in zip(kind.roles, kind.masks, strict=True):
            need = np.zeros(axes, dtype=np.int64)
            need[: min(axes, len(shape.requests))] = shape.requests[:axes]
            if kind.cause is Cause.IO:
                need[IO] = 0
            got = _allocate_pods(trial, need, mask, count * times)
            fits = min(fits, got // count if count else fits)
        if fits == times:
            taken: Ints = (left - trial).sum(axis=0)
            left[:] = trial
            return times, taken
        times = fits
    return 0, np.zeros(axes, dtype=np.int64)


def _allocate_pods(left: Ints, need: Ints, mask: Mask, pods: int) -> int:
    """Take room for up to so many pods, node after node: how many found some."""
    asked = np.flatnonzero(need)
    copies = np.where(mask, pods, 0)
    for axis in asked.tolist():
        np.minimum(copies, left[:, axis] // need[axis], out=copies)
    before = np.cumsum(copies) - copies
    copies = np.clip(pods - before, 0, copies)
    left -= copies[:, None] * need
    return int(copies.sum())


def _pieces(left: Ints, mask: Mask, demand: Ints) -> Ints:
    """Take the rest of some nodes' room (changed), each resource by itself, up to a demand: (R,) the amounts taken."""
    rows = np.where(mask[:, None], left, 0)
    before = np.cumsum(rows, axis=0) - rows
    taken = np.clip(demand - before, 0, rows)
    left -= taken
    total: Ints = taken.sum(axis=0)
    return total
