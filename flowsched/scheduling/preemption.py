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

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.entitlement import PREEMPTED, RECLAIMED, Accounts, entitled, weighs
from flowsched.scheduling.framework import Profile
from flowsched.scheduling.placement import Ints, Spots
from flowsched.scheduling.plan import Eviction, Nomination, Reason, ReasonCode
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.pricing import Offer
from flowsched.scheduling.promises import Promises
from flowsched.scheduling.queues import QueueTree, Shares
from flowsched.scheduling.reservation import RELEASING_MS, promised
from flowsched.scheduling.room import Room
from flowsched.scheduling.snapshot import ClaimKind, Snapshot
from flowsched.scheduling.victims import Unit, Victims, awaited, held_for, leaving
from flowsched.scheduling.zones import ALIGNED

#: How long a nomination lasts if those who shall leave do not, or others are on their room.
NOMINATION_MS: Final = 600_000
#: How long a group whose nomination came to nothing does not ask for another.
RETAKE_MS: Final = 60_000
#: So many groups may look for victims in one cycle.
TRIES: Final = 16
#: So many units at most are tried one by one whether it fits without them.
EXACT: Final = 256

_Family = tuple[object, ...]


def backlog_of(waiting: Mapping[str, Sequence[PodGroup]], keys: Collection[int]) -> list[PodGroup]:
    """The groups with these keys, by key: the longest-waiting first."""
    if not keys:
        return []
    found = [group for groups in waiting.values() for group in groups if group.key in keys]
    return sorted(found, key=lambda group: group.key)


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
        while True:
            tried = offer.at_least() if group.gang else offer.wanting(wanted)
            found = self._choose(tried, victims)
            if found is not None:
                return self._take(tried, *found)
            if wanted <= 1:
                self._futile.add(_family(group))
                self.look_at = victims.later_ms
                return None
            wanted //= 2  # a queue may be entitled to room for some of its pods, not for all

    def _all(self) -> Victims:
        """Victims and what is on its way; worked out once in a cycle, when it is first asked for."""
        if self._victims is None:
            snapshot = self._snapshot
            self._victims = Victims(snapshot, self._now, self._profile.min_runtime_ms)
            self._gone = np.zeros(len(self._victims.units), dtype=np.bool_)
            self._coming = leaving(snapshot) - awaited(snapshot, self._served)
            self._accounts = Accounts(self._tree, self._shares, snapshot.total, {})
            for claim in snapshot.claims.values():
                if claim.kind is ClaimKind.RELEASING:
                    self._accounts.add(claim.queue, claim.amount, -1)
            for nomination in (
                each for each in snapshot.nominations.values() if each.group not in self._served
            ):
                for node, amounts in nomination.room:
                    self._accounts.add(nomination.queue, amounts, +1)
                    self._accounts.add(nomination.queue, held_for(snapshot, nomination, node), -1)
        return self._victims

    def _choose(self, offer: Offer, victims: Victims) -> tuple[tuple[Spots, ...], NDArray[np.bool_]] | None:
        """Where it goes, and the units (U,) that must go for it."""
        need = _need(offer, len(self._snapshot.axes))
        reclaims = self._reclaims
        may = entitled(
            offer.group, need, victims.units, self._accounts, preempt=self._profile.preempt, reclaim=reclaims
        )
        eligible = np.flatnonzero(may & ~self._gone)
        chosen = np.zeros(len(may), dtype=np.bool_)
        spots = self._fits(offer, victims, chosen)
        if spots is not None:
            return spots, chosen
        chosen[eligible] = True
        spots = self._fits(offer, victims, chosen)
        if spots is None:
            return None
        low, high = 1, len(eligible)
        while low < high:
            middle = (low + high) // 2
            fewer = np.zeros(len(may), dtype=np.bool_)
            fewer[eligible[:middle]] = True
            found = self._fits(offer, victims, fewer)
            if found is None:
                low = middle + 1
            else:
                high, spots, chosen = middle, found, fewer
        return self._needed(offer, victims, spots, chosen)

    def _needed(
        self, offer: Offer, victims: Victims, spots: tuple[Spots, ...], chosen: NDArray[np.bool_]
    ) -> tuple[tuple[Spots, ...], NDArray[np.bool_]]:
        """Without those whose room it does not need where it goes; then without those without whom it fits elsewhere."""
        wants = self._wants(offer, victims, spots, chosen)
        left = self._rows(range(len(wants)), victims, chosen)
        spare = np.stack(left, axis=1) - np.stack(wants, axis=1)
        asked = np.stack(wants, axis=1) > 0
        for unit in np.flatnonzero(chosen)[::-1].tolist():
            rows = victims.of_unit(unit)
            nodes = victims.node[rows]
            np.subtract.at(spare, nodes, victims.amount[rows])
            if ((spare[nodes] < 0) & asked[nodes]).any():
                np.add.at(spare, nodes, victims.amount[rows])
            else:
                chosen[unit] = False
        if int(chosen.sum()) > EXACT:
            return spots, chosen
        for unit in np.flatnonzero(chosen)[::-1].tolist():
            chosen[unit] = False
            found = self._fits(offer, victims, chosen)
            if found is None:
                chosen[unit] = True
            else:
                spots = found
        return self._fits(offer, victims, chosen) or spots, chosen

    def _rows(self, axes: Sequence[int], victims: Victims, chosen: NDArray[np.bool_]) -> list[Ints]:
        size = len(self._snapshot)
        some = bool(chosen.any())
        return [
            self._room.hard(axis) + self._coming[:, axis] + (victims.freed(axis, chosen, size) if some else 0)
            for axis in axes
        ]

    def _fits(self, offer: Offer, victims: Victims, chosen: NDArray[np.bool_]) -> tuple[Spots, ...] | None:
        rows = self._rows(offer.axes, victims, chosen)
        found = offer.place(rows, self._room, self._snapshot, self._profile)
        if found is None or sum(len(spots.nodes) for spots in found) < sum(t.count for t in offer.tables):
            return None
        return found

    def _wants(
        self, offer: Offer, victims: Victims, spots: tuple[Spots, ...], chosen: NDArray[np.bool_]
    ) -> list[Ints]:
        """By axis, (N,) what it takes where it goes, `min_resources` included."""
        snapshot = self._snapshot
        wants = promised(len(snapshot.axes), offer.axes, offer.tables, spots, len(snapshot))
        if offer.group.min_resources is not None:
            rest = offer.rest(self._rows(offer.axes, victims, chosen), spots)
            for axis, amounts in zip(offer.axes, rest or (), strict=False):
                wants[axis] = wants[axis] + amounts
        return wants

    def _take(self, offer: Offer, spots: tuple[Spots, ...], chosen: NDArray[np.bool_]) -> Reason:
        """Note the decision, and let the rest of the cycle see it."""
        group, snapshot, victims = offer.group, self._snapshot, self._all()
        wants = np.stack(self._wants(offer, victims, spots, chosen), axis=1)
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
        units = [victims.units[at] for at in np.flatnonzero(chosen).tolist()]
        for unit in units:
            reason = PREEMPTED if _outranks(self._tree, group, unit) else RECLAIMED
            owners = tuple(sorted(claim.owner for claim in unit.claims))
            self.evictions.append(Eviction(owners, group.key, reason, _message(group, unit, reason)))
            for claim in unit.claims:
                self._coming[claim.node, : len(claim.amount)] += np.array(claim.amount, dtype=np.int64)
                self._accounts.add(claim.queue, claim.amount, -1)
        self._gone |= chosen
        self._accounts.add(group.queue, wants.sum(axis=0).tolist(), +1)
        room = tuple((int(node), tuple(wants[node].tolist())) for node in nodes)
        owners = tuple(sorted(claim.owner for unit in units for claim in unit.claims))
        pods, until = sum(len(each.nodes) for each in spots), self._now + NOMINATION_MS
        self.nominations.append(Nomination(group.key, group.queue, pods, room, owners, until))
        return _waits(group, len(owners), len(owners), len(room), self._now)


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


def _outranks(tree: QueueTree, group: PodGroup, unit: Unit) -> bool:
    """Whether it was priority that decided: the group's inside a queue, else that of the queues where the paths differ."""
    if unit.queue == group.queue:
        return True
    pairs = zip(tree.path(group.queue), tree.path(unit.queue), strict=False)
    return next(
        (ours.priority > theirs.priority for ours, theirs in pairs if ours.name != theirs.name), False
    )


def _message(group: PodGroup, unit: Unit, reason: str) -> str:
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
