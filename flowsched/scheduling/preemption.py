"""Preemption: a group that found no room gets the room of other groups, as one decision. Pure.

1. The reclaim policy (`entitled`) says which claims may be taken for the group; `victims` orders them.
2. The fewest of them are chosen, in that order, so that the group fits on what is free, is being freed anyway, or would be
   freed. Bisection finds them, and each try is an exact placement. If the group does not fit with all of them gone, none is
   evicted.
3. Of these, each that turns out not to be needed stays, the dearest first: without any of the rest the group would not fit.
4. The victims leave; the group's future place is its *nomination*. Free room there is reserved for the group from now on, and
   the victims' room as they leave. Meanwhile the group asks for no other victims, so a retry never has more.

Room that other pods leave anyway is taken first. So after a crash the same group gets the same room without new victims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.executor.nodes import ALIGNED
from flowsched.scheduling.placement.capacity import Capacity
from flowsched.scheduling.placement.cost_table import PlacementRequest
from flowsched.scheduling.placement.gang import Ints, NodeChoice
from flowsched.scheduling.plan import Eviction, Nomination, Reason, ReasonCode
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.quotas import Quotas
from flowsched.scheduling.queues.tree import Queue, QueueTree, Shares, largest_share
from flowsched.scheduling.queues.user_limits import UserLimits
from flowsched.scheduling.reservations import RELEASING_MS, Reservations, reserved_amounts, seats_of
from flowsched.scheduling.state.claims import Claim
from flowsched.scheduling.state.gpus import DEVICES, GPU
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.victims import (
    Victims,
    awaited,
    awaited_devices,
    claimed_for,
    devices_claimed_for,
    leaving,
    leaving_by_queue,
    leaving_devices,
)

#: The reasons, as tasks and events show them.
PREEMPTED, RECLAIMED = "Preempted", "Reclaimed"
MILLION: Final = 1_000_000
_BITS: Final = 40


def weighs(tree: QueueTree) -> bool:
    """Whether any queue has a guarantee or a weight above 1."""
    return any(queue.weight > 1 or queue.guarantee is not None for queue in tree)


class Accounts(msgspec.Struct):
    """The future usage of each queue (and its children): leaving pods have left and nominated groups have started.

    Args:
        tree: The queues.
        shares: Their usage now.
        total: (R,) of the cluster.
        extra: By queue, (R,) the amounts still to come, or (negative) to go.
    """

    tree: QueueTree
    shares: Shares
    total: Sequence[int]
    extra: dict[str, list[int]]

    def add(self, name: str, amount: Sequence[int], times: int) -> None:
        """A queue and its ancestors will have `times` this amount more."""
        for queue in self.tree.path(name):
            sums = self.extra.setdefault(queue.name, [0] * len(self.total))
            for axis, value in enumerate(amount[: len(sums)]):
                sums[axis] += times * value

    def usage(self, name: str) -> Ints:
        """(R,) of the queue and its children."""
        used = np.array(self.shares.usage(name), dtype=np.int64)
        if name in self.extra:
            used += np.array(self.extra[name], dtype=np.int64)
        return used

    def share(self, queue: Queue, used: Ints, need: Sequence[int]) -> Ints:
        """Weighted share, in millionths, of each row of (…, R) `used` and the queue's usage of late.

        As `fair_share` measures it: the dominant share of a queue, and of a department that of the resource of which `need` (R,)
        takes most.
        """
        shifts = [
            max(0, total.bit_length() - _BITS) for total in self.total
        ]  # bytes times a million are too many
        total = np.array([total >> by for total, by in zip(self.total, shifts, strict=True)], dtype=np.int64)
        have = _plus(np.maximum(used, 0), self.shares.past(queue.name))
        parts = np.where(total > 0, (have >> np.array(shifts)) * MILLION // np.maximum(total, 1), 0)
        if self.tree.below(queue.name):
            axis = largest_share(need, self.total)
            parts = parts[..., axis : axis + 1]
        result: Ints = parts.max(axis=-1) // queue.weight
        return result


def entitled(
    group: PodGroup,
    need: Sequence[int],
    victims: Victims,
    accounts: Accounts,
    *,
    preempt: bool,
    reclaim: bool,
) -> NDArray[np.bool_]:
    """Which units a group may take, all of them together included.

    Args:
        group: The taker.
        need: (R,) the amounts that it would get.
        victims: The U units that could be taken, the cheapest first.
        accounts: The future usage of each queue.
        preempt: Whether higher priority may take from lower.
        reclaim: Whether queues may take back what others have beyond their share.

    Returns:
        (U,).
    """
    may = np.zeros(len(victims), dtype=np.bool_)
    spared = _went_before(group, victims, accounts.tree)
    sides: dict[str, tuple[int, list[int]]] = {}
    for queue in np.unique(victims.queue).tolist():
        name = victims.queues[queue]
        if name == group.queue:
            lower = (victims.queue == queue) & (victims.priority < group.priority) & preempt
            if _apart_by_user(accounts.tree, name):
                lower &= victims.of_user(group.user, lower)
            may |= lower
            continue
        verdict = _side(group, need, name, accounts, preempt=preempt, reclaim=reclaim)
        if verdict is not None:
            sides.setdefault(verdict[0], (verdict[1], []))[1].append(queue)
    for side, (floor, queues) in sides.items():
        rows = np.flatnonzero(np.isin(victims.queue, queues) & ~spared)
        may[rows[_within(rows, need, victims, side, floor, accounts)]] = True
    return may


def _went_before(group: PodGroup, victims: Victims, tree: QueueTree) -> NDArray[np.bool_]:
    """(U,) the units that waiting had lifted to the priority of the taker's queue or above, when they started.

    The queue order would have served them before the taker. So the taker lets them end, or they would be started and taken
    away for ever.
    """
    spared = np.zeros(len(victims), dtype=np.bool_)
    for unit, steps in victims.promoted.items():
        level, us, them = _apart(tree, group.queue, victims.queues[victims.queue[unit]])
        if level < len(steps) - 1 and steps[level] and us is not None and them is not None:
            spared[unit] = them.priority + steps[level] >= us.priority
    return spared


def _apart_by_user(tree: QueueTree, name: str) -> bool:
    """Whether a priority orders only the groups of one user: the users of a department stand beside its queues (`fair_share`)."""
    return name in tree.parents and tree.get(name).order != "fifo"


def _apart(tree: QueueTree, ours: str, theirs: str) -> tuple[int, Queue | None, Queue | None]:
    """The first level at which the paths of two queues differ, and the two queues there; None = one path has ended."""
    pairs = zip_longest(tree.path(ours), tree.path(theirs))
    found = ((level, *pair) for level, pair in enumerate(pairs) if pair[0] != pair[1])
    return next(found, (0, None, None))


def _side(
    group: PodGroup, need: Sequence[int], name: str, accounts: Accounts, *, preempt: bool, reclaim: bool
) -> tuple[str, int] | None:
    """The other side's queue at the level where the paths differ, and the share it must keep; None = nothing may be taken."""
    level, us, them = _apart(accounts.tree, group.queue, name)
    if us is None or them is None:  # one is above the other: its room is ours, or ours is its
        return None
    if not all(queue.reclaimable for queue in accounts.tree.path(name)[level:]):
        return None
    if us.priority != them.priority:
        if us.priority > them.priority:
            return (them.name, 0) if preempt else None
        return (them.name, 0) if reclaim and _guaranteed(us, need, accounts) else None
    if not reclaim:
        return None
    if _guaranteed(us, need, accounts):
        return them.name, 0
    mine, yours = accounts.usage(us.name), accounts.usage(them.name)
    if accounts.share(us, mine, need) >= accounts.share(them, yours, need):
        return None
    return them.name, int(accounts.share(us, _plus(mine, need), need))


def _guaranteed(us: Queue, need: Sequence[int], accounts: Accounts) -> bool:
    """Whether a queue stays within its guarantee with what it would get."""
    guarantee = us.guarantee or ()
    after = _plus(accounts.usage(us.name), need)
    asked = [axis for axis, value in enumerate(guarantee[: len(need)]) if value > 0 and need[axis] > 0]
    return bool(asked) and all(int(after[axis]) <= guarantee[axis] for axis in asked)


def _plus(used: Ints, need: Sequence[int]) -> Ints:
    after = used.copy()
    width = after.shape[-1]
    after[..., : len(need)] += np.array(need[:width], dtype=np.int64)
    return after


def _within(
    rows: NDArray[np.intp],
    need: Sequence[int],
    victims: Victims,
    side: str,
    floor: int,
    accounts: Accounts,
) -> NDArray[np.bool_]:
    """Of units on one side, those that may all go together: the side keeps its share, every queue its guarantee."""
    amounts, queues = victims.totals()[rows], victims.queue[rows]
    paths = {
        queue: [each.name for each in accounts.tree.path(victims.queues[queue])]
        for queue in np.unique(queues).tolist()
    }
    fine = np.ones(len(rows), dtype=np.bool_)
    for name in sorted({name for path in paths.values() for name in path[path.index(side) :]}):
        queue, used = accounts.tree.get(name), accounts.usage(name)
        if name != side and queue.guarantee is None:
            continue
        inside = np.isin(queues, [number for number, path in paths.items() if name in path])
        counted = inside
        if name == side:  # what is too much by itself does not keep the smaller ones behind it
            counted = inside & (accounts.share(queue, used - amounts, need) >= floor)
        left = used - np.cumsum(np.where(counted[:, None], amounts, 0), axis=0)
        keeps = counted & _keeps(queue, left, amounts)
        if name == side:
            keeps &= accounts.share(queue, left, need) >= floor
        fine &= keeps | ~inside
    return fine


def _keeps(queue: Queue, left: Ints, amounts: Ints) -> NDArray[np.bool_]:
    """(U,) whether a queue keeps its guarantee on every axis of which something goes."""
    guarantee = np.zeros(left.shape[1], dtype=np.int64)
    width = min(len(queue.guarantee or ()), len(guarantee))
    guarantee[:width] = (queue.guarantee or ())[:width]
    result: NDArray[np.bool_] = ((left >= guarantee) | (amounts == 0)).all(axis=1)
    return result


# ---- the decision ----


#: How long a nomination lasts if its victims do not leave, or other pods hold the room.
NOMINATION_MS: Final = 600_000
#: How long a group does not ask for another nomination after one of its nominations came to nothing.
RETAKE_MS: Final = 60_000
#: So many groups may look for victims in one cycle.
TRIES: Final = 16
#: So many units at most are tried one by one whether it fits without them.
EXACT: Final = 64

#: The end of an eviction's message where a gang gives up members that it can spare.
SPARED: Final = "; its gang goes on without it"

_Family = tuple[object, ...]


class _Leaving(msgspec.Struct, eq=False):
    """The pods that could leave in this cycle, and those that leave already.

    Attributes:
        victims: The units that could be evicted.
        gone: (V,) which of them this cycle has chosen.
        coming: (N, R) what becomes free and is reserved for no group.
        coming_devices: (N, D) of that, thousandths of each GPU; (0, 0) where parts of GPUs are not about.
        accounts: The usage of queues after all leaving pods have left.
    """

    victims: Victims
    gone: NDArray[np.bool_]
    coming: Ints
    coming_devices: Ints
    accounts: Accounts


class Preemption:
    """The evictions and nominations of one cycle. It costs one comparison if no claim can be taken.

    Attributes:
        evictions, nominations: The decisions so far.
        wake_ms: When a pod will have run long enough to be evicted, if that may help a waiting group; ms.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        room: Capacity,
        shares: Shares,
        user_limits: UserLimits,
        quotas: Quotas,
        tree: QueueTree,
        profile: Profile,
        now: int,
    ) -> None:
        self._snapshot, self._room, self._shares, self._user_limits = snapshot, room, shares, user_limits
        self._quotas = quotas
        self._tree, self._profile, self._now = tree, profile, now
        self._lowest = snapshot.lowest_takeable
        self._reclaims = profile.reclaim and self._lowest is not None and weighs(tree)
        self._between = self._reclaims or (profile.preempt and tree.ranks)
        self._tries = TRIES
        self._futile: set[_Family] = set()
        self._served: set[int] = set()
        self._known: _Leaving | None = None
        devices = (DEVICES,) if snapshot.devices.matter else ()
        self._every = (
            *range(len(snapshot.axes)),
            *devices,
        )  #: axes, GPUs by device among them where they matter
        self.evictions: list[Eviction] = []
        self.nominations: list[Nomination] = []
        self.wake_ms: int | None = None

    @property
    def decided(self) -> tuple[tuple[Eviction, ...], tuple[Nomination, ...], int | None]:
        """All of it, for the plan."""
        return tuple(self.evictions), tuple(self.nominations), self.wake_ms

    # ---- groups that were nominated before ----

    def give_back(self, group: int) -> None:
        """Let a nominated group use the room that its nomination holds."""
        self._turn(group, +1)
        self._served.add(group)

    def withhold(self, group: int) -> None:
        """Reserve that room again: the group still does not fit."""
        self._turn(group, -1)
        self._served.discard(group)

    def _turn(self, group: int, sign: int) -> None:
        nomination = self._snapshot.nominations[group]
        for node, _ in nomination.room:
            claimed = claimed_for(self._snapshot, nomination, node)
            self._shares.add(nomination.queue, claimed, -sign)
            for axis, amount in enumerate(claimed):
                if amount:
                    self._room.deduct(axis, np.array([node]), np.array([-sign * amount]))
            if self._every[-1] == DEVICES:
                rows = devices_claimed_for(self._snapshot, nomination, node)[None, :]
                self._room.deduct(DEVICES, np.array([node]), -sign * rows)

    def waits(self, group: PodGroup) -> Reason:
        """Why a nominated group waits."""
        nomination = self._snapshot.nominations[group.key]
        there = sum(owner in self._snapshot.claims for owner in nomination.victims)
        began = nomination.until_ms - NOMINATION_MS
        return _waits(group, len(nomination.victims), there, len(nomination.room), began, self._now)

    # ---- new ones ----

    def is_idle(self, priority: int) -> bool:
        """Whether no group of this priority may take others' room in this cycle."""
        if self._lowest is None or self._tries <= 0:
            return True
        return not (self._between or (self._profile.preempt and self._lowest < priority))

    def may(self, group: PodGroup) -> bool:
        """Whether it is worth trying for a group."""
        if self.is_idle(group.priority) or not group.preempts or group.key in self._snapshot.nominations:
            return False
        spent = self._snapshot.spent.get(group.key)
        fresh = spent is None or self._now - spent >= RETAKE_MS
        return fresh and self._family(group) not in self._futile

    def _family(self, group: PodGroup) -> _Family:
        """The values that decide whether preemption helps a group: groups with equal values have equal chances."""
        user = group.user if _apart_by_user(self._tree, group.queue) else ""
        roles = tuple((role.shape, role.minimum if group.gang else 1) for role in group.roles)
        return group.gang, group.queue, user, group.priority, group.min_resources, group.part_of, roles

    def attempt(self, request: PlacementRequest, left: int, reservations: Reservations) -> Reason | None:
        """Take room for a group that found none, for a bag for up to `left` of its pods; None if there is none to be had."""
        group = request.group
        if not self.may(group):
            return None
        self._tries -= 1
        # Reserved room is not disturbed.
        if reservations.made and reservations.outlasting(request) is not None:
            spared = np.ones(len(self._snapshot), dtype=np.bool_)
            for nodes in reservations.made[0].nodes:
                spared[nodes] = False
            request = request.only(spared)
        victims = self._leaving().victims
        wanted = 1
        if not group.gang:
            capped = self._shares.allowed(group.queue, group.roles[0].shape.requests, left)
            wanted = max(1, self._quotas.allowed(group, self._user_limits.allowed(group, capped)))
        tried = request.at_least() if group.gang else request.wanting(wanted)
        found = self._choose(tried, victims)
        low, high = 0, wanted  # a queue may be entitled to room for some of its pods, not for all
        while high - low > 1 and (found is None or low):
            middle = (low + high) // 2
            fewer = request.wanting(middle)
            better = self._choose(fewer, victims)
            if better is None:
                high = middle
            else:
                low, tried, found = middle, fewer, better
        if found is None:
            self._futile.add(self._family(group))
            self.wake_ms = victims.later_ms
            return None
        return self._commit(tried, *found)

    def _leaving(self) -> _Leaving:
        """Victims and leaving pods; computed once in a cycle, on first use."""
        if self._known is None:
            snapshot = self._snapshot
            victims = Victims(snapshot, self._now, self._profile.min_runtime_ms, self._profile.victim_order)
            devices = np.zeros((0, 0), dtype=np.int64)
            if self._every[-1] == DEVICES:
                devices = leaving_devices(snapshot) - awaited_devices(snapshot, self._served)
            accounts = Accounts(self._tree, self._shares, snapshot.total, {})
            for queue, amount in leaving_by_queue(snapshot).items():
                accounts.add(queue, amount.tolist(), -1)
            for nomination in (
                each for each in snapshot.nominations.values() if each.group not in self._served
            ):
                for node, amounts in nomination.room:
                    accounts.add(nomination.queue, amounts, +1)
                    accounts.add(nomination.queue, claimed_for(snapshot, nomination, node), -1)
            coming = leaving(snapshot) - awaited(snapshot, self._served)
            gone = np.zeros(len(victims), dtype=np.bool_)
            self._known = _Leaving(victims, gone, coming, devices, accounts)
        return self._known

    def _choose(
        self, request: PlacementRequest, victims: Victims
    ) -> tuple[tuple[NodeChoice, ...], NDArray[np.bool_]] | None:
        """Where it goes, and the units (U,) that must go for it."""
        chosen = np.zeros(len(victims), dtype=np.bool_)
        base = self._rows()
        node_choices = self._place(request, base)
        if node_choices is not None:
            return node_choices, chosen
        need = _need(request, len(self._snapshot.axes))
        book = self._leaving()
        may = entitled(
            request.group,
            need,
            victims,
            book.accounts,
            preempt=self._profile.preempt,
            reclaim=self._reclaims,
        )
        if request.group.part_of:
            may &= ~victims.named(request.group.part_of)
        may[victims.rest[(victims.rest >= 0) & ~may & ~book.gone]] = (
            False  # a gang goes as a whole, or not at all
        )
        eligible = np.flatnonzero(may & ~book.gone)
        if not len(eligible):
            return None
        chosen[eligible] = True
        rows = np.flatnonzero(
            chosen[victims.unit]
        )  # ascending by unit: the first so many units are the first rows
        node_choices = self._place(request, _with(base, request.axes, victims, rows))
        if node_choices is None:
            return None
        low, high = 1, len(eligible)
        while low < high:
            middle = (low + high) // 2
            fewer = rows[: int(np.searchsorted(victims.unit[rows], eligible[middle - 1], side="right"))]
            found = self._place(request, _with(base, request.axes, victims, fewer))
            if found is None:
                low = middle + 1
            else:
                high, node_choices = middle, found
        chosen[eligible[high:]] = False
        return self._needed(request, victims, base, node_choices, chosen)

    def _needed(
        self,
        request: PlacementRequest,
        victims: Victims,
        base: Mapping[int, Ints],
        node_choices: tuple[NodeChoice, ...],
        chosen: NDArray[np.bool_],
    ) -> tuple[tuple[NodeChoice, ...], NDArray[np.bool_]]:
        """Spare the units that the group does not need evicted.

        First the units that the chosen nodes do not need; then, one by one, the units without which the group fits elsewhere.
        """
        rows = _with(base, self._every, victims, np.flatnonzero(chosen[victims.unit]))
        wants = self._wants(request, rows, node_choices)
        asked = [axis for axis in range(len(self._snapshot.axes)) if wants[axis].any()]
        used = np.logical_or.reduce([wants[axis] > 0 for axis in asked])
        near = np.zeros(len(chosen), dtype=np.bool_)
        near[victims.unit[used[victims.node]]] = True
        chosen = victims.together(chosen & near) & ~self._leaving().gone
        spare = {
            node: [int(rows[axis][node] - wants[axis][node]) if wants[axis][node] else None for axis in asked]
            + _spare_devices(rows, wants, node)
            for node in np.flatnonzero(used).tolist()
        }
        for unit in np.flatnonzero(chosen)[::-1].tolist():
            if victims.goes_anyway(unit, chosen):
                continue
            part = victims.rows_of(unit)
            amounts = np.hstack([victims.amount[part][:, asked], victims.devices[part]])
            if not _missed(spare, victims.node[part].tolist(), amounts.tolist()):
                chosen[unit] = False
        if int(chosen.sum()) > EXACT:
            return node_choices, chosen
        rows = _with(base, request.axes, victims, np.flatnonzero(chosen[victims.unit]))
        for unit in np.flatnonzero(chosen)[::-1].tolist():
            if victims.goes_anyway(unit, chosen):
                continue
            part = victims.rows_of(unit)
            for axis in request.axes:
                np.subtract.at(rows[axis], victims.node[part], victims.amounts(axis, part))
            found = self._place(request, rows)
            if found is not None:
                chosen[unit], node_choices = False, found
                continue
            for axis in request.axes:
                np.add.at(rows[axis], victims.node[part], victims.amounts(axis, part))
        return self._place(request, rows) or node_choices, chosen

    def _rows(self) -> dict[int, Ints]:
        """By axis, (N,) what is free once all leaving pods have left and all nominated groups have started."""
        book = self._leaving()
        return {
            axis: self._room.hard(axis) + (book.coming_devices if axis == DEVICES else book.coming[:, axis])
            for axis in self._every
        }

    def _place(self, request: PlacementRequest, rows: Mapping[int, Ints]) -> tuple[NodeChoice, ...] | None:
        """Where all of it goes on such rows (of every axis)."""
        asked = [rows[axis] for axis in request.axes]
        found = request.place(asked, self._room, self._snapshot, self._profile)
        if found is None or sum(len(choice.nodes) for choice in found) < sum(t.count for t in request.tables):
            return None
        return found

    def _wants(
        self, request: PlacementRequest, rows: Mapping[int, Ints], node_choices: tuple[NodeChoice, ...]
    ) -> dict[int, Ints]:
        """By axis, (N,) what it takes where it goes, `min_resources` included."""
        snapshot = self._snapshot
        amounts = reserved_amounts(request, node_choices, len(snapshot.axes), len(snapshot))
        wants = dict(enumerate(amounts))
        if self._every[-1] == DEVICES:
            wants[DEVICES] = seats_of(node_choices, len(snapshot), snapshot.devices.width)
        if request.group.min_resources is not None:
            rest = request.rest([rows[axis] for axis in request.axes], node_choices)
            for axis, more in zip(request.axes, rest or (), strict=False):
                wants[axis] = wants[axis] + more
        return wants

    def _commit(
        self, request: PlacementRequest, node_choices: tuple[NodeChoice, ...], chosen: NDArray[np.bool_]
    ) -> Reason:
        """Note the decision, and let the rest of the cycle see it."""
        book = self._leaving()
        group, snapshot, victims = request.group, self._snapshot, book.victims
        rows = _with(self._rows(), self._every, victims, np.flatnonzero(chosen[victims.unit]))
        by_axis = self._wants(request, rows, node_choices)
        wants = np.stack([by_axis[axis] for axis in range(len(snapshot.axes))], axis=1)
        if ALIGNED in snapshot.axes:
            wants[:, snapshot.axes.index(ALIGNED)] = (
                0  # zones are not held: they are worked out when it is placed
            )
        nodes = np.flatnonzero(wants.any(axis=1))
        seats = by_axis.get(DEVICES, np.zeros((len(snapshot), 0), dtype=np.int64))[nodes]
        free = np.clip(self._room.hard(DEVICES)[nodes], 0, seats) if DEVICES in by_axis else seats
        for axis in range(wants.shape[1]):
            amounts = wants[nodes, axis]
            if amounts.any():
                free_now = np.clip(self._room.hard(axis)[nodes], 0, amounts)
                if axis == GPU:  # of devices that are free now, not of others
                    free_now = np.minimum(free_now, amounts - (seats - free).sum(axis=1))
                self._room.deduct(axis, nodes, free_now)
                book.coming[nodes, axis] -= amounts - free_now
        if DEVICES in by_axis:
            self._room.deduct(DEVICES, nodes, free)
            book.coming_devices[nodes] -= seats - free
        gone: list[str] = []
        for claims, part in victims.leaving_together(chosen):
            reason = PREEMPTED if _outranks(self._tree, group, claims[0]) else RECLAIMED
            message = _message(group, claims[0], reason) + (SPARED if part else "")
            owners = tuple(claim.owner for claim in claims)
            gone.extend(owners)
            self.evictions.append(Eviction(owners, group.key, reason, message, part))
            for claim in claims:
                book.coming[claim.node, : len(claim.amount)] += np.array(claim.amount, dtype=np.int64)
                if self._every[-1] == DEVICES:
                    book.coming_devices[claim.node] += snapshot.devices.row(claim.devices)
                book.accounts.add(claim.queue, claim.amount, -1)
        book.gone |= chosen
        book.accounts.add(group.queue, wants.sum(axis=0).tolist(), +1)
        room = tuple((int(node), tuple(wants[node].tolist())) for node in nodes)
        owners = tuple(sorted(gone))
        pods, until = sum(len(each.nodes) for each in node_choices), self._now + NOMINATION_MS
        devices = tuple(
            (at, tuple(row)) for at, row in zip(nodes.tolist(), seats.tolist(), strict=True) if any(row)
        )
        self.nominations.append(Nomination(group.key, group.queue, pods, room, owners, until, devices))
        return _waits(group, len(owners), len(owners), len(room), self._now, self._now)


def _with(
    base: Mapping[int, Ints], axes: Sequence[int], victims: Victims, rows: NDArray[np.intp]
) -> dict[int, Ints]:
    """Room by axis, with what these claims of victims give back on some of the axes."""
    sums = dict(base)
    for axis in axes:
        sums[axis] = base[axis].copy()
        np.add.at(sums[axis], victims.node[rows], victims.amounts(axis, rows))
    return sums


def _spare_devices(rows: Mapping[int, Ints], wants: Mapping[int, Ints], node: int) -> list[int | None]:
    """The spare amount of each requested GPU of a node, in the order of devices; None = not requested."""
    if DEVICES not in wants:
        return []
    pairs = zip(rows[DEVICES][node].tolist(), wants[DEVICES][node].tolist(), strict=True)
    return [has - wanted if wanted else None for has, wanted in pairs]


def _missed(
    spare: dict[int, list[int | None]], nodes: Sequence[int], amounts: Sequence[Sequence[int]]
) -> bool:
    """Whether claims are needed where they are; if not, what is spare without them is noted. None = not asked for there."""
    taken: dict[int, list[int | None]] = {}
    for node, amount in zip(nodes, amounts, strict=True):
        if node in spare:
            before = taken.get(node, spare[node])
            taken[node] = [None if s is None else s - a for s, a in zip(before, amount, strict=True)]
    if any(left is not None and left < 0 for rest in taken.values() for left in rest):
        return True
    spare.update(taken)
    return False


def _need(request: PlacementRequest, axes: int) -> list[int]:
    total = [0] * axes
    for table, role in zip(request.tables, request.order, strict=True):
        for axis, need in enumerate(request.group.roles[role].shape.requests[:axes]):
            total[axis] += need * table.count
    return total


def _outranks(tree: QueueTree, group: PodGroup, unit: Claim) -> bool:
    """Whether it was priority that decided: the group's inside a queue, else that of the queues where the paths differ."""
    if unit.queue == group.queue:
        return True
    _, us, them = _apart(tree, group.queue, unit.queue)
    return us is not None and them is not None and us.priority > them.priority


def _message(group: PodGroup, unit: Claim, reason: str) -> str:
    if reason == RECLAIMED:
        return f"{group.name} of queue {group.queue} takes back what queue {unit.queue} has beyond its share"
    if unit.queue != group.queue:
        return f"{group.name} takes its room: queue {group.queue} goes before queue {unit.queue}"
    return f"{group.name} of priority {group.priority} takes its room; its own is {unit.priority}"


def _waits(group: PodGroup, victims: int, there: int, nodes: int, began: int, now: int) -> Reason:
    """`began`: when its victims were evicted. Its start is expected so long after that: a reserved start does not move."""
    where = f"{nodes} node{'s' if nodes != 1 else ''}"
    text = f"its room on {where} is being freed: " + (
        f"{there} of {victims} pods that make way for it have not left yet"
        if victims
        else "pods that end there have not left yet"
    )
    numbers = {"victims": victims, "not_left": there, "nodes": nodes}
    start = began + RELEASING_MS
    return Reason(group.key, ReasonCode.NOMINATED, text, numbers, start if start > now else None)
