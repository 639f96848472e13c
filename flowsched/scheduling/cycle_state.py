"""The state of one cycle: the room that is left, the shares that were paid, and the placements so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import structs

from flowsched.scheduling.allocation import GroupAllocation, reserve_rest
from flowsched.scheduling.io_budget import Budgets, budgeted
from flowsched.scheduling.locality_delay import AvailableTimes, half_a_node, work_ms
from flowsched.scheduling.placement.capacity import Capacity, Mask
from flowsched.scheduling.placement.choice import choice_of
from flowsched.scheduling.placement.cost_table import Assignment, Pricer
from flowsched.scheduling.placement.gang import Ints
from flowsched.scheduling.placement.score_cache import ScoreCache
from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.ordering import WaitingOrder
from flowsched.scheduling.queues.quotas import Quotas
from flowsched.scheduling.queues.tree import QueueTree, Shares
from flowsched.scheduling.queues.user_limits import UserLimits
from flowsched.scheduling.reservations import Reservations, Taken, longest_of, runtime_of
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.gpus import GPU
from flowsched.scheduling.state.snapshot import IO, Snapshot
from flowsched.statement import Statement


class Kin:
    """Stands for the families that have something in common: their traits, and what their pods ask for but the disk's bandwidth."""

    __slots__ = ()


class Family:
    """Groups that the same lack of room refuses. There is one object for all of them.

    Attributes:
        asked: Of each role, (R,) what one pod asks for.
        kin: Of all families with its traits.
        size: Of the families whose pods ask for as much of each resource except the disk's bandwidth.
        small: Whether some node has as much of everything as a pod of a bag asks for, if no node has more of anything than this
            one; None = it is not known yet.
    """

    __slots__ = ("asked", "kin", "size", "small")

    def __init__(self, asked: tuple[tuple[int, ...], ...], kin: Kin, size: Kin) -> None:
        self.asked, self.kin, self.size = asked, kin, size
        self.small: bool | None = None


class Families:
    """The families of waiting groups, kept from cycle to cycle: working one out takes longer than passing its group by."""

    def __init__(self) -> None:
        self._basis: tuple[Profile, bool] | None = None
        self._clear()

    def _clear(self) -> None:
        self._known: dict[int, Family] = {}
        self._families: dict[tuple[Kin, tuple[tuple[int, ...], ...]], Family] = {}
        self._kin: dict[object, Kin] = {}

    def begin(self, profile: Profile, budgets: Budgets, waiting: int, changed: Iterable[PodGroup]) -> None:
        """A cycle begins. `waiting`: how many groups it has; `changed`: those that are not as in the last cycle."""
        basis = profile, bool(budgets.limits)
        if basis != self._basis or len(self._known) > 2 * waiting + _MOST_GONE:
            self._clear()
        for group in changed:
            self._known.pop(group.key, None)
        self._basis = basis
        self._profile, self._direct = basis

    def of(self, group: PodGroup) -> Family:
        """The family of a group."""
        known = self._known.get(group.key)
        if known is not None:
            return known
        profile = self._profile.of(group.queue)
        roles: list[tuple[object, int]] = []
        for role in group.roles:
            what, least = role.shape, role.minimum if group.gang else -1
            if profile.filters:  # they may look at all of it
                roles.append((what, least))
                continue
            # Room and the built-in filters know neither how much its pods read and write, nor their image.
            nodes = what.selector, what.tolerations, what.rules, what.rack, what.one_per_node, what.unknown
            roles.append(((nodes, what.direct if self._direct else ()), least))
        kin = self._kin_of((profile.name, group.min_resources, tuple(roles)))
        asked = tuple([role.shape.requests for role in group.roles])
        family = self._families.get((kin, asked))
        if family is None:
            size = self._kin_of((kin, tuple([without_io(requests) for requests in asked])))
            family = self._families[kin, asked] = Family(asked, kin, size)
        self._known[group.key] = family
        return family

    def of_all(self, groups: Sequence[PodGroup]) -> list[Family]:
        """The families of groups."""
        known, of = self._known, self.of
        return [known.get(group.key) or of(group) for group in groups]

    def _kin_of(self, common: object) -> Kin:
        return self._kin.setdefault(common, Kin())


class Kept:
    """Facts about waiting groups that one cycle leaves to the next. They hold as long as no node changes."""

    __slots__ = ("families", "order")

    def __init__(self) -> None:
        self.order, self.families = WaitingOrder(), Families()


def without_io(requests: tuple[int, ...]) -> tuple[int, ...]:
    """(R,) a request without the disk's bandwidth."""
    return (*requests[:IO], 0, *requests[IO + 1 :])


#: So many groups that have gone may be known still.
_MOST_GONE: Final = 1_000
#: So many sizes of refused bags are compared with one that is looked at.
_MOST_SIZES: Final = 8
_ALL: Final = 1 << 62


class CycleState:
    """The working state of one cycle. It is made, changed through `statement`, and dropped.

    Attributes:
        most, left: Pods that this cycle may place, and may still place.
        waiting: Groups by queue, in their order.
        oldest: When the oldest waiting group of each user of a queue became ready.
        families: Of the waiting groups.
        allocations: Placements so far, by group key.
        full, delayed: Why groups of some families were refused. Room only shrinks in a cycle, so a refusal holds until its end:
            `full` for the whole family, `delayed` for those that would outlast the reservation's start.
        larger: By traits, the most that a pod of a bag may ask for (R,), and, of bags that found no room, (axis, amount) of what
            was lacking, and the refusal of all that ask for as much or more of it.
        available_times: How long nodes are busy; None until the cycle has asked for it.
    """

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
        kept: Kept | None,
    ) -> None:
        self.most = self.left = _ALL if most is None else most
        self.snapshot, self.catalogue, self.queues, self.backlog = snapshot, catalogue, queues, backlog
        self.profile, self.now, self.statement = profile, now, statement
        self.room = Capacity(snapshot)
        self.pricer = Pricer(snapshot, catalogue, profile)
        self.score_cache = ScoreCache(self.room)
        self.shares, self.user_limits = Shares(queues, snapshot), UserLimits(profile, snapshot)
        self.quotas = Quotas(snapshot)
        kept = kept or Kept()
        order = kept.order
        order.bring(backlog, queues, profile, now, half_a_node(snapshot, profile))
        waiting, self.oldest = order.by_queue(work_ms(snapshot, order, profile, now)), order.oldest()
        self.allocations: dict[int, GroupAllocation] = {}
        self.reservations = Reservations(snapshot, self.room, profile, now)
        self.full: dict[Family, Reason] = {}
        self.delayed: dict[Family, Reason] = {}
        self.larger: dict[Kin, tuple[tuple[int, ...], list[tuple[tuple[tuple[int, int], ...], Reason]]]] = {}
        self._with_room: dict[Kin, frozenset[int]] = {}
        self.available_times: AvailableTimes | None = None
        self.budgets: Budgets
        self.waiting: dict[str, list[PodGroup]]
        self.budgets, self.waiting = budgeted(snapshot, queues, backlog, waiting, profile, now)
        self.families = kept.families
        self.families.begin(profile, self.budgets, len(backlog), order.changed)

    def known_refusal(self, group: PodGroup) -> Reason | None:
        """The reason why the cycle refused a group like this one, or a bag whose pods ask for no more; None = it has not."""
        if not self.full and not self.delayed:
            return None
        family = self.families.of(group)
        known = self.full.get(family)
        if known is None and not group.shut and self.reservations.too_long(group):
            known = self.delayed.get(family)
        if known is not None or group.gang:
            return known
        larger = self.larger.get(family.kin)
        if larger is None or not self._is_small(family, larger[0]):
            return None
        asked = family.asked[0]
        for least, reason in larger[1]:
            for axis, need in least:
                if asked[axis] < need:
                    break
            else:
                if family not in self.delayed:
                    self.full[family] = reason
                return reason
        return None

    @staticmethod
    def _is_small(family: Family, most: tuple[int, ...]) -> bool:
        """Whether a pod asks for no more than `most` of anything. A pod that knows of fewer resources is compared with none."""
        if family.small is None:
            asked = family.asked[0]
            fits = len(asked) == len(most) and all(
                want <= high for want, high in zip(asked, most, strict=True)
            )
            family.small = fits
        return family.small

    def note_full(self, group: PodGroup, family: Family, allowed: Mask, reason: Reason) -> None:
        """Note why a group of a family finds no room. `allowed`: (N,) where a bag's pods may run.

        Bags whose pods ask for more find none either. The cycle looks at those that no node is large enough for, and says so.
        """
        self.full[family] = reason
        bag = not group.gang and group.min_resources is None
        if not bag or reason.code is not ReasonCode.INSUFFICIENT or self.snapshot.zones:
            return
        known, asked = self.larger.get(family.kin), family.asked[0]
        if known is None:
            nodes = self.snapshot.allocatable[allowed]
            most = nodes.max(axis=0)
            if not (nodes == most).all(axis=1).any():
                return
            known = self.larger[family.kin] = tuple(most.tolist()), []
        if len(known[1]) < _MOST_SIZES and self._is_small(family, known[0]):
            scarce = self._scarce(asked, allowed)
            what = f" {self.snapshot.axes[scarce[0][0]]}" if len(scarce) == 1 else ""
            text = f"a task that asks for no more{what} finds no room: {reason.message}"
            known[1].append((scarce, structs.replace(reason, message=text)))

    def _scarce(self, asked: tuple[int, ...], allowed: Mask) -> tuple[tuple[int, int], ...]:
        """(axis, amount) of the part of a request that alone finds no room: the first resource of which no node has so much left.

        It is all but the disk's bandwidth where one node lacks this and another that. (Where room is full for want of bandwidth,
        the reason is another one.)
        """
        parts = [(axis, need) for axis, need in enumerate(without_io(asked)) if need > 0]
        for axis, need in parts:
            if not (self.room.hard(axis)[allowed] >= need).any():
                return ((axis, need),)
        return tuple(parts)

    def fits_elsewhere(self, group: PodGroup, local: Collection[int]) -> bool:
        """Whether a pod of a bag has room on some node, and on none of `local`. False where more than room binds it, too."""
        shape = group.roles[0].shape
        ruled = shape.rules is not None or shape.rack is not None or shape.one_per_node or self.snapshot.zones
        if (
            group.gang
            or group.shut
            or group.min_resources is not None
            or ruled
            or any(shape.requests[GPU : GPU + 1])
        ):
            return False
        size = self.families.of(group).size
        room = self._with_room.get(size)
        if room is None:
            asked, (allowed,) = without_io(shape.requests), self.pricer.allowed(group)
            rows = [self.room.hard(axis) >= need for axis, need in enumerate(asked) if need > 0]
            room = self._with_room[size] = frozenset(
                np.flatnonzero(np.logical_and.reduce([allowed, *rows])).tolist()
            )
        # Others may have taken room since, or the disk's bandwidth. (Of a disk a pod gets at most what its node has.)
        free = [(self.room.hard(axis), need, axis) for axis, need in enumerate(shape.requests) if need > 0]
        if any(
            node in room and all(row[node] >= need or axis == IO for row, need, axis in free)
            for node in local
        ):
            return False
        return any(node not in local and all(row[node] >= need for row, need, _ in free) for node in room)

    def placed(self, group: PodGroup) -> int:
        """How many pods of a bag this cycle has placed."""
        allocation = self.allocations.get(group.key)
        return len(allocation.nodes[0]) if allocation is not None else 0

    def commit(self, assignment: Assignment) -> None:
        """Take the room, pay the queue, note which copies will follow and which disks the pods will load."""
        request, group = assignment.request, assignment.request.group
        allocation = self.allocations.get(group.key)
        if allocation is None:
            allocation = self.allocations[group.key] = GroupAllocation.of(group)
        allocation.held = reserve_rest(assignment, self.room, self.snapshot)
        self.left -= assignment.pods
        ends = self.now + runtime_of(group, self.profile), self.now + longest_of(group, self.profile)
        self._explain(assignment, allocation)
        parts = zip(request.tables, request.order, assignment.node_choices, assignment.bound, strict=True)
        for table, role, chosen, bound in parts:
            self.room.allocate(request.axes, table, chosen, bound, assignment.long)
            start = chosen.nodes if bound is None else chosen.nodes[bound]
            if len(start):
                devices = chosen.devices if bound is None or chosen.devices is None else chosen.devices[bound]
                self.reservations.taken.append(Taken(*ends, request.axes, table, start, devices))
            shape = group.roles[role].shape
            if self.available_times is not None:
                self.available_times.add(start, shape.requests, ends[0] - self.now)
                if bound is not None:
                    targets = chosen.nodes[~bound]
                    self.available_times.add_targets(targets, shape.requests, ends[0] - self.now)
            if table.most is not None:
                self.snapshot.zones.assume(chosen.nodes, shape.requests, self.statement)
            self.shares.add(group.queue, shape.requests, len(chosen.nodes), group.user)
            self.user_limits.charge(group, shape.requests[0] * len(chosen.nodes), len(chosen.nodes))
            self.quotas.charge(group, shape.requests, len(chosen.nodes))
            self.budgets.charge(shape.direct, len(chosen.nodes))
            missing = np.zeros_like(chosen.nodes)
            if request.missing is not None:
                missing = request.missing[chosen.nodes]
            allocation.add(role, chosen, missing)
            if shape.rules is not None:
                self.snapshot.peers.put(shape.rules, start.tolist(), self.statement)
            self._foresee(group, chosen.nodes, missing, shape.io_bytes)
            if self.snapshot.starts_queue:
                some, pods = np.unique(chosen.nodes, return_counts=True)
                self.statement.add(self.snapshot.starting, some, pods)

    def _explain(self, assignment: Assignment, allocation: GroupAllocation) -> None:
        """Note why its nodes were chosen, before it takes their room."""
        request = assignment.request
        if request.terms and any(request.terms):
            rows = self.room.rows(request.axes, None, assignment.long)
            for at, (role, chosen) in enumerate(zip(request.order, assignment.node_choices, strict=True)):
                choice = choice_of(request, at, chosen.nodes, rows)
                if choice is not None:
                    allocation.explain(role, choice)

    def _foresee(self, group: PodGroup, nodes: Ints, missing: Ints, io_bytes: int) -> None:
        """Let later groups of this cycle see the copies and IO-heavy pods that follow from this one."""
        # `np.unique` would load numpy.ma, in each run of a few tasks.
        away = np.array(sorted({*nodes[missing > 0].tolist()}) if group.inputs else [], dtype=np.int64)
        if len(away):
            bytes_in = self.catalogue.unordered_bytes(group.inputs, len(self.snapshot))[away]
            self.snapshot.add_inbound(away, bytes_in, self.statement)
            for dataset in group.inputs:
                self.catalogue.expect(dataset, away.tolist(), self.statement)
        if group.home is not None:
            homeward, home = self.snapshot.homeward, group.home.node
            more = int(np.count_nonzero(nodes != home)) * group.home.output_bytes
            self.statement.put(homeward, home, homeward.get(home, 0) + more)
        if io_bytes > 0:
            pods = np.bincount(nodes, minlength=len(self.snapshot)).astype(np.int32)
            self.statement.add(self.snapshot.io_tasks, slice(None), pods)
