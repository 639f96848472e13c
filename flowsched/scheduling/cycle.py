"""One scheduling cycle: the waiting groups and the free room give a plan. Pure, deterministic, bounded by counted work.

1. Order the groups of each queue; queues and their users take turns by weighted dominant share.
2. Take the next group of the queue that is first; a group that can never run, or may not now, is refused with its reason.
3. Price it and place it: all of a gang or nothing, as many of a bag as fit and as its queue's turn allows.
4. If a copy of its data would take longer than waiting for the node that has them, the group waits.
5. The first group that has to wait for room gets a reservation (conservative backfill: each); no later group may delay it.
6. What was placed takes room and counts for its queue; go on with 2 until the window is used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from flowsched.scheduling.allocation import Given, hold_rest
from flowsched.scheduling.batches import serve_first
from flowsched.scheduling.brief import decide_briefly
from flowsched.scheduling.io_budget import Budgets, budgeted, serve_put_off
from flowsched.scheduling.locality_delay import Delays, Horizon, half_a_node, work_ms
from flowsched.scheduling.placement.capacity import Mask, Room
from flowsched.scheduling.placement.cost_table import Fit, Offer, Pricer, price
from flowsched.scheduling.placement.gang import Ints, Spots
from flowsched.scheduling.placement.score_cache import Standings
from flowsched.scheduling.plan import Plan, Reason, ReasonCode
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.podwise import plan_podwise
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.preemption import Taking
from flowsched.scheduling.queues.fair_share import Turns
from flowsched.scheduling.queues.ordering import in_order, take_promised, weighted
from flowsched.scheduling.queues.tree import QueueTree, Shares
from flowsched.scheduling.reasons import none_ready, over_cap, why_not
from flowsched.scheduling.reservations import Promises, Taken, longest_of, promises_for, runtime_of
from flowsched.scheduling.single import Singles
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
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


# ---- nominated groups ----
#
# They are placed before all others, on the room that their victims left: see `preemption`.


class Placing(Committing, Protocol):
    """What of a cycle places one group; see `cycle`."""

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
        commit(cycle, fit)
        if all(bound is not None and not bound.any() for bound in fit.bound):
            cycle.taking.hold_again(
                group.key
            )  # its inputs are copied first; meanwhile its room stays its own


# ---- refusals that are remembered ----
#
# Most steps change no room, and the waiting groups get the same refusals again. A remembered refusal is valid as long as no
# claim and no node changes, and until this cycle has placed a pod.


_KEY: Final = "refusals"


class Refusals:
    """Refusals of one cycle, and of those before it in which the nodes were as full."""

    def __init__(self, snapshot: Snapshot, room: Room, profile: Profile) -> None:
        self._snapshot, self._room, self._profile = snapshot, room, profile
        self._known: dict[object, Reason] | None = None

    def why(self, offer: Offer, family: object) -> Reason:
        """As `why_not`. `family`: what offers have in common that are refused for the same lack of room."""
        group = offer.group
        alone = (
            not group.shut and offer.company is None and offer.rack is None and group.min_resources is None
        )
        if group.gang or not alone or self._room.changes or offer.tables[0].most is not None:
            return why_not(offer, self._room, self._snapshot, self._profile)
        known = self._remembered()
        key = (family, offer.axes, group.roles[0].name)
        reason = known.get(key)
        if reason is None:
            reason = known[key] = why_not(offer, self._room, self._snapshot, self._profile)
        return reason if reason.group == group.key else reason.of(group.key)

    def _remembered(self) -> dict[object, Reason]:
        if self._known is None:
            # Versions only grow while nothing is undone, and who undoes a step empties the cache.
            stamp = int(self._snapshot.version.sum())
            kept = self._snapshot.cache.get(_KEY)
            if kept is None or kept[0] != stamp:
                kept = self._snapshot.cache[_KEY] = (stamp, {})
            self._known = kept[1]
        return self._known


# ---- the cycle ----


#: What groups have in common that are refused for the same lack of room.
Family = tuple[str, bool, tuple[int, ...] | None, tuple[tuple[Shape, int], ...]]

_ALL = 1 << 62
_NO_TARGET = "no room where its inputs are, and what is free elsewhere is being prepared for others"
_AT_ONCE = "more important ones are on their way to their nodes; it follows at once"
_ONE_BY_ONE = "its pods look at each other, so a cycle places only as many as it looks at groups"
_NOT_NOW = (ReasonCode.INSUFFICIENT, ReasonCode.GANG_INCOMPLETE, ReasonCode.RACK, ReasonCode.IO_BUDGET)


def cycle(
    snapshot: Snapshot,
    catalogue: Catalogue,
    queues: QueueTree,
    backlog: Sequence[PodGroup],
    profile: Profile,
    now: int,
    most: int | None = None,
) -> Plan:
    """Decide what starts now, what is promised, and why the rest waits.

    Args:
        snapshot: Nodes and claims. Not modified.
        catalogue: Datasets and replicas. Not modified.
        queues: Who pays. Not modified.
        backlog: What waits, in any order; keys are unique. A group that is partly placed is offered again
            with what is left.
        profile: The policy.
        now: The moment, wall-clock ms.
        most: After so many pods the rest waits for the next cycle; a gang that has begun is placed as a whole. None = all
            go. Without gangs it is not asked for.

    Returns:
        Placements in the order in which they were decided, at most one for a group; reservations; and a
        reason for every group of which something was not placed.
    """
    brief = decide_briefly(snapshot, catalogue, queues, backlog, profile, now, most)
    if brief is not None:
        return brief
    statement = Statement()
    try:
        snapshot.devices.look((role.shape.requests for group in backlog for role in group.roles), statement)
        if not profile.gang:
            return plan_podwise(snapshot, catalogue, queues, backlog, profile, now)
        return _Cycle(snapshot, catalogue, queues, backlog, profile, now, statement, most).run()
    finally:
        statement.rollback()


class _Cycle:
    """The working state of one cycle. Made, run once, and dropped."""

    def __init__(
        self,
        snapshot: Snapshot,
        catalogue: Catalogue,
        queues: QueueTree,
        backlog: Sequence[PodGroup],
        profile: Profile,
        now: int,
        statement: Statement,
        most: int | None,
    ) -> None:
        self.most = self.left = _ALL if most is None else most  #: pods that this cycle may (still) place
        self.snapshot, self.catalogue, self.queues = snapshot, catalogue, queues
        self.profile, self.now, self.statement = profile, now, statement
        self.room = Room(snapshot)
        self.pricer = Pricer(snapshot, catalogue, profile)
        self.standings = Standings(self.room)
        self.shares = Shares(queues, snapshot)
        work, half = work_ms(snapshot, backlog, profile, now), half_a_node(snapshot, profile)
        self.waiting = in_order(backlog, queues, profile, now, work, half)
        self.turns: Turns  #: once the loop begins
        self.given: dict[int, Given] = {}
        self.reasons: list[Reason] = []
        self.promises = promises_for(snapshot, self.room, profile, now, backlog)
        # What has found no room in this cycle will find none, since room only shrinks: `full` whoever asks,
        # `held` who would outlast the reservation's start.
        self.full: dict[Family, Reason] = {}
        self.held: dict[Family, Reason] = {}
        # Once a group found no soft room, later ones get no new targets: it would be passed by for ever.
        self.closed = False
        self.delays = Delays(now, profile.shortest_wait_ms)
        self._horizon: Horizon | None = None
        self.any_ready = bool(snapshot.ready.any())
        self.taking = Taking(snapshot, self.room, self.shares, queues, profile, now)
        self.budgets, self.waiting = budgeted(snapshot, queues, backlog, self.waiting, profile, now)
        self.refusals = Refusals(snapshot, self.room, profile)

    # ---- the loop ----

    def run(self) -> Plan:
        """Go through the queues."""
        looked = 0
        serve_nominated(self)
        promised = take_promised(self.waiting, self.queues)
        if promised is not None:
            looked += self.consider(promised)
        before = len(self.given)
        served = serve_first(self, self.profile.window - looked)
        looked += len(self.given) - before
        if self.left > 0:
            looked += self.by_turns(looked, served)
        else:
            self.reasons.extend(Turns.none_looked_at(self.waiting, self.queues, _AT_ONCE))
        placements = tuple([given.placement(key) for key, given in self.given.items()])
        ahead = () if self._horizon is None else tuple(self._horizon.ahead)
        reasons, taking = tuple(self.reasons), self.taking
        return Plan(placements, tuple(self.promises.made), reasons, looked, ahead, *taking.decided)

    def by_turns(self, looked: int, served: set[object]) -> int:
        """Go through the queues. `served`: who has got something already. Returns how many groups more were looked at."""
        before, singles = looked, Singles(self)
        self.turns = Turns(
            self.waiting, self.queues, self.shares, self.snapshot.usage, self.profile, self.now, served
        )
        while (line := self.turns.first()) is not None:
            group = line.head
            again = group.key in self.given
            if self.left <= 0 or (looked >= self.profile.window and not again):
                self.turns.leave(line)  # done for this cycle; a bag that is being served elsewhere goes on
                continue
            looked += not again
            left = self.left
            done = (singles.open and singles.serve(group)) or self.consider(group)
            self.turns.moved(line, done, self.left < left, self.reasons)
        serve_put_off(self, self.budgets, _AT_ONCE)
        self.skip()
        return looked - before

    def skip(self) -> None:
        """Say of what is left that it was not looked at."""
        text = (
            f"not among the {self.profile.window} groups a cycle looks at; more important ones are before it"
        )
        if self.left <= 0:
            text = _AT_ONCE
        self.reasons.extend(self.turns.passed_over(text))

    def consider(self, group: PodGroup) -> bool:
        """Place what can be placed of a group; True when it is done with for this cycle."""
        if group.key in self.snapshot.nominations and (group.gang or group.key not in self.given):
            return group.key in self.given or self.refuse(self.taking.waits(group))
        if (barred := self.barred(group)) is not None:
            return self.refuse(barred)
        family, known = self.family(group), self.known_refusal(group)
        if known is not None and not self.taking.may(group):
            return self.refuse(known.of(group.key))
        if not (straight := self.budgets.room_for(group)):
            return self.budgets.hold(self, group)
        if self.closed and self.nowhere_local(group):
            return self.refuse(Reason(group.key, ReasonCode.WAITING_FOR_DATA, _NO_TARGET))
        if self._horizon and (again := self._horizon.again(group, self.catalogue, self.left)):
            return self.refuse(again)
        offer = self.pricer.price(group)
        left = 0
        if not group.gang:
            left = group.roles[0].count - self.placed(group)
            budget = self.profile.window - self.placed(group)
            if offer.one_by_one and budget <= 0:
                return self.refuse(Reason(group.key, ReasonCode.BACKLOG_WINDOW, _ONE_BY_ONE))
            most = min(left, self.left, straight, budget if offer.one_by_one else left)
            offer = offer.wanting(self.turn(group, most))
        else:
            offer = self.within_cap(offer if straight > 1 else offer.at_least())
        fit = None if not group.gang and self.room.lacks(group.roles[0].shape.requests) else self.fit(offer)
        if fit is None:
            return self.wait_for_room(offer, family)
        if not group.gang and (stays := self.stay(fit)) is not None:
            return self.refuse(stays)
        wait = None
        if fit.moves:
            hard = [self.room.hard(axis) for axis in offer.axes]
            promises = self.promises
            given = (fit, promises.calendar, promises.soonest, promises.earliest, hard, bool(promises.made))
            wait = self.delays.judge(*given)
        if wait is not None:
            if wait.keep is not None:
                commit(self, wait.keep)
            start = self.promises.reserve(wait.offer)
            return self.refuse(wait.reason if start is None else replace(wait.reason, start_ms=start))
        commit(self, fit)
        if group.gang or fit.pods == left:
            return True
        return fit.pods < offer.tables[0].count and self.wait_for_room(offer.wanting(1), family)

    def family(self, group: PodGroup) -> Family:
        """What it has in common with groups that are refused for the same lack of room."""
        roles = tuple([(role.shape, role.minimum if group.gang else 1) for role in group.roles])
        return self.profile.of(group.queue).name, group.gang, group.min_resources, roles

    def known_refusal(self, group: PodGroup) -> Reason | None:
        """Why a group like this one was refused before."""
        if not self.full and not self.held:
            return None
        family = self.family(group)
        return self.full.get(family) or (self.held.get(family) if self.promises.too_long(group) else None)

    def stay(self, fit: Fit) -> Reason | None:
        """Let those pods of a bag wait that had better run where their outputs are gathered or their inputs are; the others go."""
        first = fit.offer.tables[0].first
        if fit.offer.group.home is None and (first is None or not first[fit.spots[0].nodes].any()):
            return None  # all is there
        runtime, horizon = runtime_of(fit.offer.group, self.profile), self.horizon()
        full = fit.full(self.room.rows(fit.offer.axes, fit.offer.local, None))
        wait = horizon.at_home(fit, full, runtime, self.left)
        wait = wait or horizon.rather(fit, full, runtime, self.profile.shortest_wait_ms)
        if wait is None:
            return None
        if wait.keep is not None:
            commit(self, wait.keep)
        return wait.reason

    def horizon(self) -> Horizon:
        """How long nodes are busy."""
        if self._horizon is None:
            self._horizon = Horizon(
                self.snapshot, self.profile.default_runtime_ms, self.now, self.delays.awaited,
                disks=self.profile.contention,
            )  # fmt: skip
            for taken in self.promises.taken:
                self._horizon.add(taken.nodes, taken.asked, taken.end_ms - self.now)
        return self._horizon

    def nowhere_local(self, group: PodGroup) -> bool:
        """Whether every node lacks some of its inputs."""
        asks = self.profile.of(group.queue).locality and bool(group.inputs)
        return asks and bool(self.catalogue.missing_bytes(group.inputs, len(self.snapshot)).all())

    def placed(self, group: PodGroup) -> int:
        """How many pods of a bag this cycle has placed."""
        given = self.given.get(group.key)
        return len(given.nodes[0]) if given is not None else 0

    def turn(self, group: PodGroup, left: int) -> int:
        """How many pods of a bag may go now: until its queue stands behind the next one, and never beyond a cap."""
        requests = group.roles[0].shape.requests
        most = self.shares.allowed(group.queue, requests, left)
        if most <= 1:
            return most
        spent = self.most - self.left
        return self.turns.stride(
            requests, most, self.placed(group), spent, lambda: min(self.left, self.room.pods(requests))
        )

    # ---- refusals ----

    def refuse(self, reason: Reason) -> bool:
        """Note why a group waits."""
        self.reasons.append(reason)
        return True

    def barred(self, group: PodGroup) -> Reason | None:
        """What keeps a group from being tried at all."""
        if self.shares.paused(group.queue):
            return Reason(group.key, ReasonCode.PAUSED, f"queue {group.queue} is paused")
        if not self.any_ready:
            return Reason(
                group.key, ReasonCode.NO_NODES, none_ready(self.snapshot), {"nodes": len(self.snapshot)}
            )
        if self.profile.of(group.queue).locality and group.reads:
            lost = self.catalogue.lost_of(group.reads)
            if lost:
                first = self.catalogue.uris[lost[0]]
                text = f"{len(lost)} of {len(group.reads)} inputs are nowhere, first {first}"
                return Reason(group.key, ReasonCode.WAITING_FOR_DATA, text, {"lost": len(lost)})
        return over_cap(group, self.shares, self.queues, self.snapshot)

    def within_cap(self, offer: Offer) -> Offer:
        """A gang's offer without its extras, where those would break a cap that the minimum keeps."""
        roles = offer.group.roles
        full = weighted([(role.shape.requests, role.count) for role in roles], len(self.snapshot.axes))
        return offer if self.shares.capped_by(offer.group.queue, full) is None else offer.at_least()

    def wait_for_room(self, offer: Offer, family: Family) -> bool:
        """Refuse a group that found no room, and promise it some if it is the first."""
        if not offer.group.gang and offer.missing is not None:
            count = offer.group.roles[0].count - self.placed(offer.group)
            self.horizon().foresee(offer, count, runtime_of(offer.group, self.profile))
        offer = offer.in_zones(self.snapshot)
        least = offer.at_least()
        lacks = not offer.group.gang and self.room.lacks(offer.group.roles[0].shape.requests)
        if not lacks and self.fits(least, None, None):
            reason = self.held_up(least, family)
            held = self.promises.reserve(least) if reason.code is ReasonCode.RESERVED else None
            return self.refuse(reason if held is None else replace(reason, start_ms=held))
        left = 0 if offer.group.gang else offer.group.roles[0].count - self.placed(offer.group)
        taken = self.taking.attempt(offer, left, self.promises)
        if taken is not None:
            return self.refuse(taken)
        reason = self.refusals.why(offer, family)
        start = self.promises.reserve(offer) if reason.code in _NOT_NOW else None
        if (
            start is None and offer.company is None and not offer.group.shut
        ):  # a pod that comes may let in who asks for its company
            self.full[family] = reason
        return self.refuse(replace(reason, start_ms=start))

    def held_up(self, least: Offer, family: Family) -> Reason:
        """Why a group waits although free cores would do for it: they are promised, or its data are not there."""
        if self.promises.made and self.fits(least, least.local, None):
            held = self.promises.made[0]
            text = f"it would fit, but would delay group {held.group}, which starts at {held.start_ms}"
            numbers = {"reserved_for": held.group, "reserved_start_ms": held.start_ms}
            reason = Reason(least.group.key, ReasonCode.RESERVED, text, numbers)
            unruled = least.company is None  # who looks at other pods may be let in by one that comes
            too_long = unruled and self.promises.too_long(least.group)
            if too_long and not self.fits(least, None, self.promises.everywhere):
                self.held[family] = reason
            return reason
        self.closed = self.profile.backfill != "none"
        return Reason(least.group.key, ReasonCode.WAITING_FOR_DATA, _NO_TARGET)

    # ---- placing ----

    def fit(self, offer: Offer) -> Fit | None:
        """Find room for a group; the rows that count depend on where its inputs are (see `room`)."""
        long, local, missing = self.promises.outlasting(offer), offer.local, offer.missing
        if self.closed and local is not None:
            offer = offer.only(local)
        if sum(table.count for table in offer.tables) == 0:
            return None
        spots = self.fits(offer, local, long)
        if spots is None:
            return None
        if missing is None:
            return Fit(offer, spots, (None,) * len(spots), long)
        here = tuple(missing[s.nodes] == 0 for s in spots)
        if not offer.group.gang:
            return Fit(offer, spots, here, long)
        if all(mask.all() for mask in here):
            return Fit(offer, spots, (None,) * len(spots), long)
        if (
            self.room.staging
        ):  # all its pods would be targets, those beside their data too: they all need soft room
            soft = self.fits(offer, local, long, soft=True)
            if soft is None:
                spots_local = self.fits(offer.only(missing == 0), local, long)
                return None if spots_local is None else Fit(offer, spots_local, (None,) * len(spots), long)
            spots = soft
            if all((missing[s.nodes] == 0).all() for s in spots):
                return Fit(offer, spots, (None,) * len(spots), long)
        return Fit(offer, spots, tuple(np.zeros(len(s.nodes), dtype=np.bool_) for s in spots), long)

    def fits(
        self, offer: Offer, local: Mask | None, long: Mask | None, *, soft: bool = False
    ) -> tuple[Spots, ...] | None:
        """Place an offer on hard room where its data are and soft room elsewhere, or on soft room only."""
        if offer.plain and (long is None or long is self.promises.everywhere):
            table, packing = offer.tables[0], self.profile.of(offer.group.queue).packing
            spots = self.standings.place(offer.axes, table, packing, spare=long is not None)
            return (spots,) if len(spots.nodes) >= table.minimum else None
        rows = self.room.rows(offer.axes, local, long, soft=soft)
        return offer.place(rows, self.room, self.snapshot, self.profile)
