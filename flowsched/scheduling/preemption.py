"""Taking back: a group that found no room gets that of others, as one decision. Pure.

1. Who may be taken away for it at all: `entitlement`. In which order: `victims`.
2. The fewest of them, in that order, with whom gone it fits, on top of what is free or is being freed anyway: found by
   bisection, each try an exact placement. If it does not fit with all of them gone, nobody is touched.
3. Of these, whoever turns out not to be needed stays, the dearest first: without any one of the rest it would not fit.
4. The victims go; where it will be placed is its *nomination*: what is free there is held for it from now on, what they
   leave is held as they leave. It asks for nobody else meanwhile, so a retry never has more victims.

Room that others are leaving anyway is taken first, so after a crash the same group gets the same room without new victims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.entitlement import PREEMPTED, RECLAIMED, Accounts, entitled, weighs
from flowsched.scheduling.framework import Profile
from flowsched.scheduling.placement import Ints, Spots
from flowsched.scheduling.plan import Eviction, Nomination, Reason, ReasonCode
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.pricing import Fit, Offer, price
from flowsched.scheduling.promises import Promises
from flowsched.scheduling.queues import QueueTree, Shares
from flowsched.scheduling.reservation import RELEASING_MS, promised
from flowsched.scheduling.room import Room
from flowsched.scheduling.snapshot import Claim, Snapshot
from flowsched.scheduling.victims import Victims, awaited, held_for, leaving, leaving_by_queue
from flowsched.scheduling.zones import ALIGNED

#: How long a nomination lasts if those who shall leave do not, or others are on their room.
NOMINATION_MS: Final = 600_000
#: How long a group whose nomination came to nothing does not ask for another.
RETAKE_MS: Final = 60_000
#: So many groups may look for victims in one cycle.
TRIES: Final = 16
#: So many units at most are tried one by one whether it fits without them.
EXACT: Final = 64

_Family = tuple[object, ...]


class Placing(Protocol):
    """What of a cycle places one group; see `cycle`."""

    snapshot: Snapshot
    catalogue: Catalogue
    profile: Profile
    waiting: dict[str, list[PodGroup]]
    taking: Taking

    def barred(self, group: PodGroup) -> Reason | None:
        """What keeps a group from being tried at all."""
        ...

    def within_cap(self, offer: Offer) -> Offer:
        """Without extras that would break a cap."""
        ...

    def fit(self, offer: Offer) -> Fit | None:
        """Find room."""
        ...

    def commit(self, fit: Fit) -> None:
        """Take it."""
        ...


def serve_nominated(cycle: Placing) -> None:
    """Place those for whom others have left, each on what is held for it and whatever else is free, the oldest first."""
    nominations = cycle.snapshot.nominations
    if not nominations:
        return
    found = [group for groups in cycle.waiting.values() for group in groups if group.key in nominations]
    for group in sorted(found, key=lambda group: group.key):
        if cycle.barred(group) is not None:
            continue
        cycle.taking.give_back(group.key)
        pods = min(nominations[group.key].pods, group.roles[0].count)
        offer = price(group, cycle.snapshot, cycle.catalogue, cycle.profile)
        offer = cycle.within_cap(offer) if group.gang else offer.wanting(pods)
        own = np.zeros(len(cycle.snapshot), dtype=np.bool_)
        own[[node for node, _ in nominations[group.key].room]] = True
        fit = cycle.fit(offer.only(own)) or cycle.fit(offer)
        if fit is None or (not group.gang and fit.pods < pods):
            cycle.taking.hold_again(group.key)
            continue
        cycle.commit(fit)
        if all(bound is not None and not bound.any() for bound in fit.bound):
            cycle.taking.hold_again(
                group.key
            )  # its inputs are copied first; meanwhile its room stays its own


class Taking:
    """What one cycle takes from some for others. Costs a comparison where nothing can be taken.

    Attributes:
        evictions, nominations: What was decided.
        look_at: When somebody will have run long enough to be taken away, if that may help a group that waits.
    """

    def __init__(
        self, snapshot: Snapshot, room: Room, shares: Shares, tree: QueueTree, profile: Profile, now: int
    ) -> None:
        self._snapshot, self._room, self._shares = snapshot, room, shares
        self._tree, self._profile, self._now = tree, profile, now
        self._lowest = snapshot.lowest_takeable
        self._reclaims = profile.reclaim and self._lowest is not None and weighs(tree)
        self._between = self._reclaims or (profile.preempt and any(queue.priority for queue in tree))
        self._tries = TRIES
        self._futile: set[_Family] = set()
        self._served: set[int] = set()
        self._victims: Victims | None = None
        self._gone: NDArray[np.bool_]
        self._coming: Ints
        self._accounts: Accounts
        self.evictions: list[Eviction] = []
        self.nominations: list[Nomination] = []
        self.look_at: int | None = None

    @property
    def decided(self) -> tuple[tuple[Eviction, ...], tuple[Nomination, ...], int | None]:
        """All of it, for the plan."""
        return tuple(self.evictions), tuple(self.nominations), self.look_at

    # ---- those who have been nominated before ----

    def give_back(self, group: int) -> None:
        """Let a nominated group use what is held for it."""
        self._turn(group, +1)
        self._served.add(group)

    def hold_again(self, group: int) -> None:
        """It still does not fit."""
        self._turn(group, -1)
        self._served.discard(group)

    def _turn(self, group: int, sign: int) -> None:
        nomination = self._snapshot.nominations[group]
        for node, _ in nomination.room:
            held = held_for(self._snapshot, nomination, node)
            self._shares.add(nomination.queue, held, -sign)
            for axis, amount in enumerate(held):
                if amount:
                    self._room.hold(axis, np.array([node]), np.array([-sign * amount]))

    def waits(self, group: PodGroup) -> Reason:
        """Why a nominated group waits."""
        nomination = self._snapshot.nominations[group.key]
        there = sum(owner in self._snapshot.claims for owner in nomination.victims)
        return _waits(group, len(nomination.victims), there, len(nomination.room), self._now)

    # ---- new ones ----

    def may(self, group: PodGroup) -> bool:
        """Whether it is worth trying for a group."""
        if self._lowest is None or self._tries <= 0 or group.key in self._snapshot.nominations:
            return False
        if not (self._between or (self._profile.preempt and self._lowest < group.priority)):
            return False
        spent = self._snapshot.spent.get(group.key)
        fresh = spent is None or self._now - spent >= RETAKE_MS
        return fresh and _family(group) not in self._futile

    def attempt(self, offer: Offer, left: int, promises: Promises) -> Reason | None:
        """Take room for a group that found none, for a bag for up to `left` of its pods; None if there is none to be had."""
        group = offer.group
        if not self.may(group):
            return None
        self._tries -= 1
        if promises.made and promises.outlasting(offer) is not None:  # what is promised is not disturbed
            spared = np.ones(len(self._snapshot), dtype=np.bool_)
            for nodes in promises.made[0].nodes:
                spared[nodes] = False
            offer = offer.only(spared)
        victims = self._all()
        wanted = 1
        if not group.gang:
            wanted = max(1, self._shares.allowed(group.queue, group.roles[0].shape.requests, left))
        tried = offer.at_least() if group.gang else offer.wanting(wanted)
        found = self._choose(tried, victims)
        low, high = 0, wanted  # a queue may be entitled to room for some of its pods, not for all
        while high - low > 1 and (found is None or low):
            middle = (low + high) // 2
            fewer = offer.wanting(middle)
            better = self._choose(fewer, victims)
            if better is None:
                high = middle
            else:
                low, tried, found = middle, fewer, better
        if found is None:
            self._futile.add(_family(group))
            self.look_at = victims.later_ms
            return None
        return self._take(tried, *found)

    def _all(self) -> Victims:
        """Victims and what is on its way; worked out once in a cycle, when it is first asked for."""
        if self._victims is None:
            snapshot = self._snapshot
            self._victims = Victims(
                snapshot, self._now, self._profile.min_runtime_ms, self._profile.victim_order
            )
            self._gone = np.zeros(len(self._victims), dtype=np.bool_)
            self._coming = leaving(snapshot) - awaited(snapshot, self._served)
            self._accounts = Accounts(self._tree, self._shares, snapshot.total, {})
            for queue, amount in leaving_by_queue(snapshot).items():
                self._accounts.add(queue, amount.tolist(), -1)
            for nomination in (
                each for each in snapshot.nominations.values() if each.group not in self._served
            ):
                for node, amounts in nomination.room:
                    self._accounts.add(nomination.queue, amounts, +1)
                    self._accounts.add(nomination.queue, held_for(snapshot, nomination, node), -1)
        return self._victims

    def _choose(self, offer: Offer, victims: Victims) -> tuple[tuple[Spots, ...], NDArray[np.bool_]] | None:
        """Where it goes, and the units (U,) that must go for it."""
        chosen = np.zeros(len(victims), dtype=np.bool_)
        base = self._rows(range(len(self._snapshot.axes)))
        spots = self._fits(offer, base)
        if spots is not None:
            return spots, chosen
        need = _need(offer, len(self._snapshot.axes))
        may = entitled(
            offer.group, need, victims, self._accounts, preempt=self._profile.preempt, reclaim=self._reclaims
        )
        eligible = np.flatnonzero(may & ~self._gone)
        if not len(eligible):
            return None
        chosen[eligible] = True
        rows = np.flatnonzero(
            chosen[victims.unit]
        )  # ascending by unit: the first so many units are the first rows
        spots = self._fits(offer, _with(base, offer.axes, victims, rows))
        if spots is None:
            return None
        low, high = 1, len(eligible)
        while low < high:
            middle = (low + high) // 2
            fewer = rows[: int(np.searchsorted(victims.unit[rows], eligible[middle - 1], side="right"))]
            found = self._fits(offer, _with(base, offer.axes, victims, fewer))
            if found is None:
                low = middle + 1
            else:
                high, spots = middle, found
        chosen[eligible[high:]] = False
        return self._needed(offer, victims, base, spots, chosen)

    def _needed(
        self,
        offer: Offer,
        victims: Victims,
        base: list[Ints],
        spots: tuple[Spots, ...],
        chosen: NDArray[np.bool_],
    ) -> tuple[tuple[Spots, ...], NDArray[np.bool_]]:
        """Without those whose room it does not need where it goes; then without those without whom it fits elsewhere."""
        every = range(len(base))
        rows = _with(base, every, victims, np.flatnonzero(chosen[victims.unit]))
        wants = self._wants(offer, rows, spots)
        asked = [axis for axis in every if wants[axis].any()]
        used = np.logical_or.reduce([wants[axis] > 0 for axis in asked])
        near = np.zeros(len(chosen), dtype=np.bool_)
        near[victims.unit[used[victims.node]]] = True
        chosen &= near
        spare = {
            node: [int(rows[axis][node] - wants[axis][node]) if wants[axis][node] else None for axis in asked]
            for node in np.flatnonzero(used).tolist()
        }
        for unit in np.flatnonzero(chosen)[::-1].tolist():
            part = victims.rows_of(unit)
            if not _missed(spare, victims.node[part].tolist(), victims.amount[part][:, asked].tolist()):
                chosen[unit] = False
        if int(chosen.sum()) > EXACT:
            return spots, chosen
        rows = _with(base, offer.axes, victims, np.flatnonzero(chosen[victims.unit]))
        for unit in np.flatnonzero(chosen)[::-1].tolist():
            part = victims.rows_of(unit)
            for axis in offer.axes:
                np.subtract.at(rows[axis], victims.node[part], victims.amount[part, axis])
            found = self._fits(offer, rows)
            if found is not None:
                chosen[unit], spots = False, found
                continue
            for axis in offer.axes:
                np.add.at(rows[axis], victims.node[part], victims.amount[part, axis])
        return self._fits(offer, rows) or spots, chosen

    def _rows(self, axes: Sequence[int]) -> list[Ints]:
        """By axis, (N,) what is free once all who are leaving have left, and all nominated groups have come."""
        return [self._room.hard(axis) + self._coming[:, axis] for axis in axes]

    def _fits(self, offer: Offer, rows: Sequence[Ints]) -> tuple[Spots, ...] | None:
        """Where all of it goes on such rows (of every axis)."""
        found = offer.place([rows[axis] for axis in offer.axes], self._room, self._snapshot, self._profile)
        if found is None or sum(len(spots.nodes) for spots in found) < sum(t.count for t in offer.tables):
            return None
        return found

    def _wants(self, offer: Offer, rows: Sequence[Ints], spots: tuple[Spots, ...]) -> list[Ints]:
        """By axis, (N,) what it takes where it goes, `min_resources` included."""
        snapshot = self._snapshot
        wants = promised(len(snapshot.axes), offer.axes, offer.tables, spots, len(snapshot))
        if offer.group.min_resources is not None:
            rest = offer.rest([rows[axis] for axis in offer.axes], spots)
            for axis, amounts in zip(offer.axes, rest or (), strict=False):
                wants[axis] = wants[axis] + amounts
        return wants

    def _take(self, offer: Offer, spots: tuple[Spots, ...], chosen: NDArray[np.bool_]) -> Reason:
        """Note the decision, and let the rest of the cycle see it."""
        group, snapshot, victims = offer.group, self._snapshot, self._all()
        units = np.flatnonzero(chosen).tolist()
        base = self._rows(range(len(snapshot.axes)))
        rows = _with(base, range(len(base)), victims, np.flatnonzero(chosen[victims.unit]))
        wants = np.stack(self._wants(offer, rows, spots), axis=1)
        if ALIGNED in snapshot.axes:
            wants[:, snapshot.axes.index(ALIGNED)] = (
                0  # zones are not held: they are worked out when it is placed
            )
        nodes = np.flatnonzero(wants.any(axis=1))
        for axis in range(wants.shape[1]):
            amounts = wants[nodes, axis]
            if amounts.any():
                held = np.clip(self._room.hard(axis)[nodes], 0, amounts)
                self._room.hold(axis, nodes, held)
                self._coming[nodes, axis] -= amounts - held
        gone: list[str] = []
        for claims in map(victims.claims_of, units):
            reason = PREEMPTED if _outranks(self._tree, group, claims[0]) else RECLAIMED
            owners = tuple(claim.owner for claim in claims)
            gone.extend(owners)
            self.evictions.append(Eviction(owners, group.key, reason, _message(group, claims[0], reason)))
            for claim in claims:
                self._coming[claim.node, : len(claim.amount)] += np.array(claim.amount, dtype=np.int64)
                self._accounts.add(claim.queue, claim.amount, -1)
        self._gone |= chosen
        self._accounts.add(group.queue, wants.sum(axis=0).tolist(), +1)
        room = tuple((int(node), tuple(wants[node].tolist())) for node in nodes)
        owners = tuple(sorted(gone))
        pods, until = sum(len(each.nodes) for each in spots), self._now + NOMINATION_MS
        self.nominations.append(Nomination(group.key, group.queue, pods, room, owners, until))
        return _waits(group, len(owners), len(owners), len(room), self._now)


def _with(base: Sequence[Ints], axes: Sequence[int], victims: Victims, rows: NDArray[np.intp]) -> list[Ints]:
    """Room by axis, with what these claims of victims give back on some of the axes."""
    sums = list(base)
    for axis in axes:
        sums[axis] = base[axis].copy()
        np.add.at(sums[axis], victims.node[rows], victims.amount[rows, axis])
    return sums


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


def _need(offer: Offer, axes: int) -> list[int]:
    total = [0] * axes
    for table, role in zip(offer.tables, offer.order, strict=True):
        for axis, need in enumerate(offer.group.roles[role].shape.requests[:axes]):
            total[axis] += need * table.count
    return total


def _family(group: PodGroup) -> _Family:
    """Whose chances are the same."""
    roles = tuple((role.shape, role.minimum if group.gang else 1) for role in group.roles)
    return group.gang, group.queue, group.priority, group.min_resources, roles


def _outranks(tree: QueueTree, group: PodGroup, unit: Claim) -> bool:
    """Whether it was priority that decided: the group's inside a queue, else that of the queues where the paths differ."""
    if unit.queue == group.queue:
        return True
    pairs = zip(tree.path(group.queue), tree.path(unit.queue), strict=False)
    return next(
        (ours.priority > theirs.priority for ours, theirs in pairs if ours.name != theirs.name), False
    )


def _message(group: PodGroup, unit: Claim, reason: str) -> str:
    if reason == RECLAIMED:
        return f"{group.name} of queue {group.queue} takes back what queue {unit.queue} has beyond its share"
    if unit.queue != group.queue:
        return f"{group.name} takes its room: queue {group.queue} goes before queue {unit.queue}"
    return f"{group.name} of priority {group.priority} takes its room; its own is {unit.priority}"


def _waits(group: PodGroup, victims: int, there: int, nodes: int, now: int) -> Reason:
    where = f"{nodes} node{'s' if nodes != 1 else ''}"
    text = f"its room on {where} is being freed: " + (
        f"{there} of {victims} pods that make way for it have not left yet"
        if victims
        else "pods that end there have not left yet"
    )
    numbers = {"victims": victims, "not_left": there, "nodes": nodes}
    return Reason(group.key, ReasonCode.NOMINATED, text, numbers, now + RELEASING_MS)
