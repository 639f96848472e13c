"""One scheduling cycle: the waiting groups and the free room give a plan. Pure, deterministic, bounded by counted work.

1. Order the groups of each queue; queues and their users take turns by weighted dominant share.
2. Take the next group of the queue that is first; a group that can never run, or may not now, is refused with its reason.
3. Price it and place it: all of a gang or nothing, as many of a bag as fit and as its queue's turn allows.
4. If a copy of its data would take longer than waiting for the node that has them, the group waits.
5. The first group that has to wait for room gets a reservation; no later group may delay it.
6. A placed group takes room and counts for its queue; go on with 2 until the window is used up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
from msgspec import structs

from flowsched.executor.datasets import uri_of
from flowsched.scheduling.cycle_state import CycleState, Family, Kept
from flowsched.scheduling.kube_like import plan_kube_like
from flowsched.scheduling.locality_delay import AvailableTimes, Wait, wait_for_data
from flowsched.scheduling.placement.capacity import Mask
from flowsched.scheduling.placement.cost_table import Assignment, PlacementRequest
from flowsched.scheduling.placement.gang import NodeChoice
from flowsched.scheduling.plan import Alike, Placement, Plan, Reason, ReasonCode, Reasons
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.preemption import Preemption
from flowsched.scheduling.queues.fair_share import FairShareOrder, UserQueue
from flowsched.scheduling.queues.ordering import Promotions, oldest_of, pop_reserved, weighted
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.reasons import Refusals, none_ready, over_cap, over_quota
from flowsched.scheduling.reservations import OVERDUE_MS, runtime_of
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.state.usage import Payer
from flowsched.statement import Statement

_NO_TARGET = "no node with its inputs has room, and the scheduler keeps free room elsewhere for tasks whose inputs it copies"
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
    kept: Kept | None = None,
) -> Plan:
    """Decide what starts now, what is reserved, and why the rest waits.

    Args:
        snapshot: Nodes and claims. Not modified.
        catalogue: Datasets and replicas. Not modified.
        queues: The queues that pay. Not modified.
        backlog: The waiting groups, in any order; keys are unique. A group that is partly placed comes again
            with its remaining pods.
        profile: The policy.
        now: The moment, wall-clock ms.
        most: After so many pods the rest waits for the next cycle; a gang that has begun is placed as a whole. None = all
            go. Without gangs it is not asked for.
        kept: Facts that the last cycle over the same waiting groups has left, valid until a node changes. This cycle brings them
            up to date. They decide nothing. None = the cycle works all of them out.

    Returns:
        Placements in the order in which they were decided, at most one for a group; reservations; and a
        reason for every group of which something was not placed.
    """
    statement = Statement()
    try:
        snapshot.devices.note((role.shape.requests for group in backlog for role in group.roles), statement)
        if not profile.gang:
            return plan_kube_like(snapshot, catalogue, queues, backlog, profile, now)
        return _Cycle(
            CycleState(snapshot, catalogue, queues, backlog, profile, now, statement, most, kept)
        ).run()
    finally:
        statement.rollback()


class _Cycle:
    """The decisions of one cycle. Made, run once, and dropped."""

    def __init__(self, state: CycleState) -> None:
        self.state = state
        self.fair_share: FairShareOrder  #: once the loop begins
        self.reasons: list[Reason | Alike] = []
        # Once a group found no soft room, later ones get no new targets: it would be passed by for ever.
        self.closed = False
        self.no_target: Reason | None = None  #: of the groups that are refused then
        self.any_ready = bool(state.snapshot.ready.any())
        self.families: dict[UserQueue, list[Family]] = {}  #: of the groups of user queues
        self.promised: Family | None = None  #: of the bag with a reserved start, until the next like it
        self.open_queues: dict[str, bool] = {}  #: whether nothing bars the groups of a queue but lost inputs
        self.preemption = Preemption(
            state.snapshot,
            state.room,
            state.shares,
            state.user_limits,
            state.quotas,
            state.queues,
            state.profile,
            state.now,
        )
        self.refusals = Refusals(state.snapshot, state.room, state.profile)

    # ---- the loop ----

    def run(self) -> Plan:
        """Go through the queues."""
        considered = 0
        self.serve_nominated()
        first, oldest = pop_reserved(self.state.waiting, self.state.queues), self.state.oldest
        if first is not None:
            considered += self.consider(first)
            oldest = oldest_of(self.state.waiting)  # its queue has been served
        considered += self.by_fair_share(considered, oldest)
        placements = self.placements()
        available, reserved = self.state.available_times, tuple(self.state.reservations.made)
        ahead = () if available is None else tuple(available.ahead)
        reasons = Reasons(self.reasons)
        plan = Plan(placements, reserved, reasons, considered, ahead, *self.preemption.decided)
        looks = [each for each in (plan.look_at, self.waits_until(reasons)) if each is not None]
        return structs.replace(plan, look_at=min(looks, default=None))

    def waits_until(self, reasons: Reasons) -> int | None:
        """When the first group that waits for a full node was expected to have it: what it waits for may run longer than that."""
        waits = (each.start_ms for each in reasons.distinct() if each.code is ReasonCode.WAITING_FOR_LOCALITY)
        latest = self.state.now + OVERDUE_MS
        return min((max(start, latest) for start in waits if start is not None), default=None)

    def placements(self) -> tuple[Placement, ...]:
        """The placements decided so far, each with the priority steps that its group had gained by waiting."""
        s = self.state
        if not s.allocations:
            return ()
        consume = Promotions(s.oldest, s.queues, s.snapshot.usage, s.now, s.profile.promote_ms).consume
        return tuple([each.placement(consume(each.group)) for each in s.allocations.values()])

    def by_fair_share(self, considered: int, oldest: Mapping[Payer, int]) -> int:
        """Go through the queues. Returns how many groups more it considered. `oldest`: as in `FairShareOrder`."""
        before, s = considered, self.state
        self.fair_share = FairShareOrder(
            s.waiting, oldest, s.queues, s.shares, s.snapshot.usage, s.profile, s.now
        )
        while (user_queue := self.fair_share.first()) is not None:
            group = user_queue.head
            again = group.key in self.state.allocations
            if self.state.left <= 0 or (considered >= self.state.profile.window and not again):
                self.fair_share.leave(
                    user_queue
                )  # done for this cycle; a bag that is being served elsewhere goes on
                continue
            considered += not again
            left = self.state.left
            done = self.consider(group)
            self.fair_share.moved(user_queue, done, self.state.left < left, self.reasons)
            self.refuse_alike(user_queue, group)
        self.serve_put_off()
        self.skip()
        return considered - before

    def refuse_alike(self, user_queue: UserQueue, group: PodGroup) -> None:
        """Refuse the groups that follow one that found no room and are like it, without looking at each: a family costs one look.

        Not so where they may take others' room.
        """
        state = self.state
        last = self.reasons[-1] if self.reasons else None
        if (
            group.gang
            or not isinstance(last, Reason)
            or last.group != group.key
            or state.snapshot.nominations
        ):
            return
        if not self.preemption.is_idle(group.priority):
            return
        known = self.known_refusal(group)
        if known is None or last.code is not known.code:
            return  # it waits for something else
        self.reasons += self.fair_share.pass_by(user_queue, self.known_refusals)

    def known_refusals(self, user_queue: UserQueue) -> list[Alike]:
        """The refusals of the next bags of a user queue, as long as each is known, and they have the priority of the group before
        them. Many groups have one family, and a look at the family is all that most of them cost.
        """
        groups, full, begin = user_queue.groups, self.state.full, user_queue.at
        families = self.families.get(user_queue)
        if families is None:
            families = self.families[user_queue] = self.state.families.of_all(groups)
        priority, end, before = groups[begin - 1].priority, len(groups), None
        refused: list[Alike] = []
        last: Reason | None = None
        for at, family in enumerate(islice(families, begin, None), begin):
            group = groups[at]
            if group.priority != priority:  # it may take others' room
                end = at
                break
            if family is before:
                continue
            known = full.get(family)
            before = None if known is None else family
            if known is not None and family is self.promised:
                self.foresee_next(group)
                before = None
            known = known or self.known_refusal(group)
            if known is None:
                end = at
                break
            if known is not last:
                if last is not None:
                    refused.append(Alike(last, groups[begin:at]))
                last, begin = known, at
        if last is not None:
            refused.append(Alike(last, groups[begin:end]))
        return refused

    def known_refusal(self, group: PodGroup) -> Reason | None:
        """Why a group need not be tried, unless others make way for it; None = it may find room."""
        return self.state.known_refusal(group) or self.away(group)

    def serve_nominated(self) -> None:
        """Place the groups for which victims have left (see `preemption`), the oldest first, before all other groups.

        Each takes the room that is reserved for it, and other free room.
        """
        state, nominations = self.state, self.state.snapshot.nominations
        if not nominations:
            return
        found = [group for groups in state.waiting.values() for group in groups if group.key in nominations]
        for group in sorted(found, key=lambda group: group.key):
            self.preemption.give_back(
                group.key
            )  # or its own reserved room would count against its queue's cap
            if self.barred(group) is not None:
                self.preemption.withhold(group.key)
                continue
            pods = min(nominations[group.key].pods, group.roles[0].count)
            request = state.pricer.price(group)
            request = self.within_cap(request) if group.gang else request.wanting(pods)
            own = np.zeros(len(state.snapshot), dtype=np.bool_)
            own[[node for node, _ in nominations[group.key].room]] = True
            assignment = self.place(request.only(own)) or self.place(request)
            if assignment is None or (not group.gang and assignment.pods < pods):
                self.preemption.withhold(group.key)
                continue
            state.commit(assignment)
            if all(bound is not None and not bound.any() for bound in assignment.bound):
                # Its inputs are copied first. Meanwhile its room stays its own.
                self.preemption.withhold(group.key)

    def serve_put_off(self) -> None:
        """Give the rest of the room to the groups that were put off, since every group has had its turn."""
        self.state.budgets.second = True
        for group in self.state.budgets.put_off:
            while self.state.left > 0 and not self.consider(group):
                pass
            if self.state.left <= 0 and self.state.placed(group) < group.roles[0].count:
                self.refuse(Reason(group.key, ReasonCode.BACKLOG_WINDOW, _AT_ONCE))

    def skip(self) -> None:
        """Add the reason of each remaining group: the cycle did not consider it."""
        text = f"not among the {self.state.profile.window} groups a cycle looks at; more important ones are before it"
        if self.state.left <= 0:
            text = _AT_ONCE
        self.reasons.extend(self.fair_share.passed_over(text))

    def consider(self, group: PodGroup) -> bool:
        """Place as much of a group as fits; True when the cycle is done with it. The numbers are this module's steps."""
        state = self.state
        # 2. It can never run, or may not now.
        if (reason := self.blocked(group)) is not None:
            return self.refuse(reason)
        if not (within := state.budgets.room_for(group)):
            waits = state.budgets.defer(group)
            return waits is None or self.refuse(waits)
        # 3. Filters, costs, and how many pods this batch allows; then the nodes.
        request = self.price(group, within)
        if request is None:
            return self.refuse(Reason(group.key, ReasonCode.BACKLOG_WINDOW, _ONE_BY_ONE))
        assignment = self.place(request)
        # 5. Without room it waits: others make way for it, or the first gets a reserved start.
        if assignment is None:
            return self.wait_for_room(request)
        # 4. A full node with its data will be free sooner than a copy would be there.
        if (wait := self.worth_waiting(assignment)) is not None:
            return self.wait_for_node(wait)
        # 6. It takes the room, and its queue pays.
        state.commit(assignment)
        if group.gang or state.placed(group) == group.roles[0].count:
            return True
        return assignment.pods < request.tables[0].count and self.wait_for_room(request.wanting(1))

    def blocked(self, group: PodGroup) -> Reason | None:
        """Why a group is not tried: it waits for its victims, is barred, like one that found no room, or beside no input."""
        state = self.state
        if group.key in state.snapshot.nominations and (group.gang or group.key not in state.allocations):
            return self.preemption.waits(group)
        if (barred := self.barred(group)) is not None:
            return barred
        known = state.known_refusal(group)
        if known is not None and not self.preemption.may(group):
            if state.families.of(group) is self.promised:
                self.foresee_next(group)
            return known.of(group.key)
        away = self.away(group)
        return None if away is None else away.of(group.key)

    def price(self, group: PodGroup, within: int) -> PlacementRequest | None:
        """Price the pods of a group for this batch; None where rules bind its pods together and the window is used up.

        `within`: how many pods of a bag, or times the minimum of a gang, the budgets of storages allow.
        """
        state = self.state
        request = state.pricer.price(group)
        if group.gang:
            return self.within_cap(request if within > 1 else request.at_least())
        placed = state.placed(group)
        most = min(group.roles[0].count - placed, state.left, within)
        if request.one_by_one:
            most = min(most, state.profile.window - placed)
            if most <= 0:
                return None
        return request.wanting(self.batch_size(group, most))

    def worth_waiting(self, assignment: Assignment) -> Wait | None:
        """Whether a group, or some of its pods, are done earlier if they wait for a full node."""
        state = self.state
        wait = None if assignment.request.group.gang else self.stay(assignment)
        if wait is not None or not assignment.moves:
            return wait
        reservations, shortest = state.reservations, state.profile.shortest_wait_ms
        return wait_for_data(assignment, reservations.earliest, bool(reservations.made), state.now, shortest)

    def wait_for_node(self, wait: Wait) -> bool:
        """Place the pods that need not wait, and reserve a start for the others on the nodes that they wait for."""
        if wait.keep is not None:
            self.state.commit(wait.keep)
        start = self.reserve(wait.request)
        return self.refuse(wait.reason if start is None else structs.replace(wait.reason, start_ms=start))

    def stay(self, assignment: Assignment) -> Wait | None:
        """Whether pods of a bag are done earlier if they wait for a full node: its gather node, or one that has its inputs."""
        request, state = assignment.request, self.state
        first, nodes = request.tables[0].first, assignment.node_choices[0].nodes
        if request.group.home is None and (first is None or not first[nodes].any()):
            return None  # all is there
        runtime, available = runtime_of(request.group, state.profile), self.available_times()
        full = assignment.full(state.room.rows(request.axes, request.local, assignment.long))
        return available.earliest(assignment, full, runtime, state.profile.shortest_wait_ms)

    def available_times(self) -> AvailableTimes:
        """How long nodes are busy."""
        s = self.state
        if s.available_times is None:
            s.available_times = AvailableTimes(
                s.snapshot, s.room, s.reservations.calendar(), s.profile.default_runtime_ms, s.now
            )
        return s.available_times

    def away(self, group: PodGroup) -> Reason | None:
        """Why a group is not tried once no room is left for copies: no node has all its inputs, or, of a bag that room alone binds,
        nodes have room for its pods and none of them has its inputs.
        """
        if not self.closed or not group.inputs or not self.state.profile.of(group.queue).locality:
            return None
        local = self.state.catalogue.nodes_with_all(group.inputs)
        if local and not self.state.fits_elsewhere(group, local):
            return None
        if self.no_target is None:
            self.no_target = Reason(group.key, ReasonCode.WAITING_FOR_DATA, _NO_TARGET)
        return self.no_target

    def batch_size(self, group: PodGroup, left: int) -> int:
        """How many pods of a bag may go now: until its queue stands behind the next one, and never beyond a cap or a quota."""
        requests = group.roles[0].shape.requests
        most = self.state.user_limits.allowed(group, self.state.shares.allowed(group.queue, requests, left))
        most = self.state.quotas.allowed(group, most)
        if most <= 1:
            return most
        spent = self.state.most - self.state.left
        return self.fair_share.batch_size(
            requests,
            most,
            self.state.placed(group),
            spent,
            lambda: min(self.state.left, self.state.room.pods(requests)),
        )

    # ---- refusals ----

    def refuse(self, reason: Reason) -> bool:
        """Note why a group waits."""
        self.reasons.append(reason)
        return True

    def barred(self, group: PodGroup) -> Reason | None:
        """The reason why the cycle does not even try a group; None = it tries the group."""
        is_open = self.open_queues.get(group.queue)
        if is_open is None:
            shares = self.state.shares
            bound = shares.limited(group.queue) or self.state.user_limits.bind(group.queue)
            is_open = self.any_ready and not (shares.paused(group.queue) or bound)
            self.open_queues[group.queue] = is_open
        if is_open:
            return self.lost_inputs(group) or over_quota(group, self.state.quotas, self.state.snapshot)
        if self.state.shares.paused(group.queue):
            return Reason(group.key, ReasonCode.PAUSED, f"queue {group.queue} is paused")
        if not self.any_ready:
            return Reason(
                group.key,
                ReasonCode.NO_NODES,
                none_ready(self.state.snapshot),
                {"nodes": len(self.state.snapshot)},
            )
        lost = self.lost_inputs(group)
        capped = lost or over_cap(group, self.state.shares, self.state.queues, self.state.snapshot)
        capped = capped or self.state.user_limits.refusal(group)
        return capped or over_quota(group, self.state.quotas, self.state.snapshot)

    def lost_inputs(self, group: PodGroup) -> Reason | None:
        """Why a group waits of which no node, and no origin, has some input."""
        reads = group.reads
        if not reads or not self.state.profile.of(group.queue).locality:
            return None
        lost = self.state.catalogue.lost_of(reads)
        if not lost:
            return None
        text = f"{len(lost)} of {len(reads)} inputs are nowhere, first {uri_of(self.state.catalogue.uris[lost[0]])}"
        return Reason(group.key, ReasonCode.WAITING_FOR_DATA, text, {"lost": len(lost)})

    def within_cap(self, request: PlacementRequest) -> PlacementRequest:
        """A gang's request without its extras, where those would break a cap, a user's limit or a quota that the minimum keeps."""
        roles = request.group.roles
        full = weighted([(role.shape.requests, role.count) for role in roles], len(self.state.snapshot.axes))
        within = self.state.user_limits.allows(request.group, full[0], sum(role.count for role in roles))
        within = within and self.state.shares.capped_by(request.group.queue, full) is None
        within = within and not (request.group.in_quota and self.state.quotas.exceeded(full))
        return request if within else request.at_least()

    def wait_for_room(self, request: PlacementRequest) -> bool:
        """Refuse a group that found no room: others make way for it, or some is reserved for it if it is the first."""
        state, group, family = self.state, request.group, self.state.families.of(request.group)
        left = self.foresee(request)
        request = request.in_zones(state.snapshot)
        if self.has_room(request, None, None):
            reason = self.delayed(request, family)
            start = self.reserve(request.at_least()) if reason.code is ReasonCode.RESERVED else None
            return self.refuse(reason if start is None else structs.replace(reason, start_ms=start))
        taken = self.preemption.attempt(request, left, state.reservations)
        if taken is not None:
            return self.refuse(taken)
        reason = self.refusals.why(request, family)
        start = self.reserve(request) if reason.code in _NOT_NOW else None
        # Groups like an extra may reserve, though the extra may not. How many members of a gang fit changes during the cycle.
        own_look = (group.extra and not state.reservations.made) or (start is not None and group.gang)
        # A pod that starts may let in one with affinity to it.
        if not own_look and request.affinity is None and not group.shut:
            state.note_full(group, family, request.tables[0].allowed, reason)
            self.promised = self.promised if start is None else family
        return self.refuse(structs.replace(reason, start_ms=start))

    def foresee_next(self, group: PodGroup) -> None:
        """Forecast where the group behind the one with the reserved start will run, though the cycle does not look at it."""
        if self.barred(group) is None:
            self.promised = None
            if group.inputs:
                self.foresee(self.state.pricer.price(group))

    def foresee(self, request: PlacementRequest) -> int:
        """Forecast where the pods of a bag that find no room will run: their data can go there. Returns how many these are."""
        group = request.group
        left = 0 if group.gang else group.roles[0].count - self.state.placed(group)
        if left and request.missing is not None:
            self.available_times().foresee(request, left, runtime_of(group, self.state.profile))
        return left

    def reserve(self, request: PlacementRequest) -> int | None:
        """Reserve a start for a group, if the cycle has a reservation left."""
        return None if request.group.extra else self.state.reservations.reserve(request)

    def delayed(self, request: PlacementRequest, family: Family) -> Reason:
        """Why a group waits although free cores would do for it: they are reserved, or its data are not there."""
        if self.state.reservations.made and self.has_room(request, request.local, None):
            reservation = self.state.reservations.made[0]
            text = f"it would fit, but would delay group {reservation.group}, which starts at {reservation.start_ms}"
            numbers = {"reserved_for": reservation.group, "reserved_start_ms": reservation.start_ms}
            reason = Reason(request.group.key, ReasonCode.RESERVED, text, numbers)
            # A pod that starts may let in a group with affinity to it.
            unruled = request.affinity is None and not request.group.shut
            too_long = unruled and self.state.reservations.too_long(request.group)
            if too_long and not self.has_room(request, None, self.state.reservations.everywhere):
                self.state.delayed[family] = reason
            return reason
        self.closed = self.state.profile.backfill != "none"
        return Reason(request.group.key, ReasonCode.WAITING_FOR_DATA, _NO_TARGET)

    def has_room(self, request: PlacementRequest, local: Mask | None, long: Mask | None) -> bool:
        """Whether the minimum of a group has a place. `local`, `long`: as in `Capacity.rows`."""
        state = self.state
        rows = state.room.rows(request.axes, local, long)
        return request.has_room(rows, state.room, state.snapshot, state.profile)

    # ---- placing ----

    def place(self, request: PlacementRequest) -> Assignment | None:
        """Find room for a group; the rows that count depend on where its inputs are (see `room`)."""
        long, local, missing = self.state.reservations.outlasting(request), request.local, request.missing
        if self.closed and local is not None:
            request = request.only(local)
        if sum(table.count for table in request.tables) == 0:
            return None
        node_choices = self.choose_nodes(request, local, long)
        if node_choices is None:
            return None
        if missing is None:
            return Assignment(request, node_choices, (None,) * len(node_choices), long)
        here = tuple(missing[s.nodes] == 0 for s in node_choices)
        if not request.group.gang:
            return Assignment(request, node_choices, here, long)
        if all(mask.all() for mask in here):
            return Assignment(request, node_choices, (None,) * len(node_choices), long)
        # All its pods would be targets, those beside their data too: they all need soft room.
        if self.state.room.staging:
            soft = self.choose_nodes(request, local, long, soft=True)
            if soft is None:
                local_choices = self.choose_nodes(request.only(missing == 0), local, long)
                return (
                    None
                    if local_choices is None
                    else Assignment(request, local_choices, (None,) * len(node_choices), long)
                )
            node_choices = soft
            if all((missing[s.nodes] == 0).all() for s in node_choices):
                return Assignment(request, node_choices, (None,) * len(node_choices), long)
        targets = tuple(np.zeros(len(s.nodes), dtype=np.bool_) for s in node_choices)
        return Assignment(request, node_choices, targets, long)

    def choose_nodes(
        self, request: PlacementRequest, local: Mask | None, long: Mask | None, *, soft: bool = False
    ) -> tuple[NodeChoice, ...] | None:
        """Place a request on hard room where its data are and soft room elsewhere, or on soft room only."""
        by_scores = long is None or long is self.state.reservations.everywhere
        if self.state.room.staging and local is not None:
            by_scores = False  # the room that counts for it is not the same on all nodes
        if by_scores and request.plain:
            table, packing = request.tables[0], self.state.profile.of(request.group.queue).packing
            chosen = self.state.score_cache.place(request.axes, table, packing, spare=long is not None)
            return (chosen,) if len(chosen.nodes) >= table.minimum else None
        rows = self.state.room.rows(request.axes, local, long, soft=soft)
        return request.place(rows, self.state.room, self.state.snapshot, self.state.profile)
