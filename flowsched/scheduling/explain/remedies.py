"""Remedies: the least single change that would let a waiting group start, found by trying changes on the real cycle.

1. Leads: each change of the six kinds that could matter (`leads`), each with its bound.
2. Each is tried at its bound. A change that lets the group start there is sufficient alone.
3. Of those, bisection finds the least amount: this amount starts the group, and one unit less does not, whether or not the
   change is monotone in between.

Other changes (a queue that is resumed, an input that comes back, an end of what runs) are no remedies here: the reason of the
group names them with their numbers. A remedy is computed on request, never in a cycle of the service, with at most `TRIES`
cycles. A `Situation` holds all inputs of a cycle; a `Suggestion` is one change of it in plain values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import Final

import msgspec
import numpy as np
from msgspec import structs

from flowsched.executor.constraints import Rules
from flowsched.executor.nodes import ALIGNED, PLENTY, NodeInfo
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.placement.cost_table import PlacementRequest, price
from flowsched.scheduling.plan import PERMANENT, Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.ordering import minimum_of
from flowsched.scheduling.queues.quotas import Quotas
from flowsched.scheduling.queues.tree import QueueTree, Shares
from flowsched.scheduling.queues.user_limits import UserLimits
from flowsched.scheduling.reasons import over_cap, over_quota, quantity
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.gpus import WHOLE
from flowsched.scheduling.state.snapshot import AXES, PODS, Snapshot
from flowsched.statement import Statement
from flowsched.values import replace

#: Nodes that are made up have no more of anything: their sums must fit 64 bits.
_MOST: Final = 1 << 55
_MIB: Final = 1 << 20
#: Resources that only count pods.
_MARKS: Final = (PODS, ALIGNED)
#: So many nodes and taints are tried.
_FEW: Final = 3
#: So many more nodes, at most.
_MOST_NODES: Final = 256
#: Cycles that one answer may cost. Leads are rarely more than 40, a bisection rarely longer than 30.
TRIES: Final = 400
#: So many other waiting groups, at most, are in the tried cycles beside the group itself.
OTHERS: Final = 16


class Kind(StrEnum):
    """The kind of a change, and what the fields of a `Suggestion` mean for it. Changes that users can make come first."""

    REQUEST = "request"  #: role `object` asks for `to` of resource `what` a pod, instead of `was`
    MIN_MEMBER = "min_member"  #: role `object` starts with `to` members instead of `was`
    RULE = "rule"  #: the demand `what` of its pods is dropped: a label, a rack, a rule about nodes or pods; or a taint is tolerated
    CAP = "cap"  #: queue `object` may have `to` of resource `what`, instead of `was`
    FREE = "free"  #: node `object` has `to` free of resource `what`, instead of `was`
    NODE = "node"  #: there are `to` more nodes, each made for one pod of the group


#: Changes of the group or its queue. Others show that it waits, not what binds it.
_BINDING: Final = frozenset({Kind.REQUEST, Kind.MIN_MEMBER, Kind.RULE, Kind.CAP})


class Suggestion(msgspec.Struct, frozen=True):
    """One change after which a group starts.

    Args:
        kind: The kind of the change.
        object: Name of the role, queue or node; "" = the group.
        what: Which resource or demand of it.
        was: As it is now. 0 where the change is no amount.
        to: As it should be. 1 where the change is no amount.
        unit: The least by which `to` could differ. It is minimal: one unit nearer to `was` the group does not start.
        message: For people.
    """

    kind: Kind
    object: str
    what: str
    was: int
    to: int
    unit: int
    message: str = ""


class Outlook(msgspec.Struct, frozen=True):
    """The outlook of a waiting group.

    Args:
        binds: Constraints that bind alone, as (role or queue; "" = the group, resource or rule): without one of them, the
            group would start. Empty where only several constraints together keep it waiting.
        suggestions: Changes that would let it start, the cheapest first.
    """

    binds: tuple[tuple[str, str], ...] = ()
    suggestions: tuple[Suggestion, ...] = ()


class Situation(msgspec.Struct, frozen=True, eq=False):
    """All that a cycle looks at, seen from one group that waits.

    Args:
        snapshot: Nodes and claims.
        catalogue: Datasets.
        queues: The queues that pay.
        group: The group that waits.
        others: The groups that wait beside it; they may go before it, and the first may hold a reservation.
        profile: The policy.
        now: The moment, wall-clock ms.
    """

    snapshot: Snapshot
    catalogue: Catalogue
    queues: QueueTree
    group: PodGroup
    others: tuple[PodGroup, ...]
    profile: Profile
    now: int

    def plan(self) -> Plan:
        """The plan that a cycle would decide."""
        backlog = sorted((self.group, *self.others), key=lambda group: group.key)
        return cycle(self.snapshot, self.catalogue, self.queues, backlog, self.profile, self.now)

    def starts(self) -> bool:
        """Whether the group gets nodes: a gang the minimum of every role, any other one pod.

        Where inputs are still to be copied there, that copy begins.
        """
        for placed in self.plan().placements:
            if placed.group == self.group.key:
                least = [role.minimum if self.group.gang else 1 for role in self.group.roles]
                return all(len(nodes) >= n for nodes, n in zip(placed.nodes, least, strict=True))
        return False

    def copy(self, inputs: Collection[int] = ()) -> Situation:
        """A private copy: changes to it do not reach the original. Groups and the profile never change.

        Args:
            inputs: Datasets that may be changed in it, beside those of its groups.
        """
        datasets = {*inputs, *(d for group in (self.group, *self.others) for d in group.reads)}
        queues: QueueTree = deepcopy(self.queues, {id(queue): queue for queue in self.queues})
        return replace(
            self, snapshot=self.snapshot.copy(), catalogue=self.catalogue.copy(datasets), queues=queues
        )


class Lead(msgspec.Struct, frozen=True):
    """A change that may go from `was` towards `far`, unit by unit.

    Args:
        kind, object, what: As in `Suggestion`.
        was: As it is.
        far: As far as it may go.
        unit: The least step.
    """

    kind: Kind
    object: str = ""
    what: str = ""
    was: int = 0
    far: int = 1
    unit: int = 1

    @property
    def steps(self) -> int:
        """How many units there are on the way."""
        return -(-abs(self.far - self.was) // self.unit)

    def at(self, step: int) -> Suggestion:
        """The change after so many units, 1..steps."""
        size = min(step * self.unit, abs(self.far - self.was))
        to = self.was + size if self.far > self.was else self.was - size
        return Suggestion(self.kind, self.object, self.what, self.was, to, self.unit)


# ---- leads ----


def leads(s: Situation) -> list[Lead]:
    """Every change that could matter, in the order of `Kind`."""
    found = [*_requests(s), *_members(s)]
    found += [Lead(Kind.RULE, "", demand) for demand in _without_demands(s)]
    found += _caps(s)
    if len(s.snapshot):
        found += _room(s, price(s.group, s.snapshot, s.catalogue, s.profile))
    groups = (s.group, *s.others)  # one node for each pod of the others, too, which may go first
    pods = sum(role.minimum if group.gang else role.count for group in groups for role in group.roles)
    found.append(Lead(Kind.NODE, "", "", 0, min(_MOST_NODES, max(1, pods))))
    return [lead for lead in found if lead.steps > 0]


def unit_of(axis: str, amount: int = 0) -> int:
    """The least amount of a resource that makes sense to ask for: 1 milli-CPU, 1 MiB, 1 MB/s; whole GPUs beyond one."""
    if axis in ("memory", "disk"):
        return _MIB
    if axis == "io":
        return 1_000_000
    return 1000 if axis == "gpu" and amount > 1000 and amount % 1000 == 0 else 1


def _requests(s: Situation) -> Iterator[Lead]:
    for role in s.group.roles:
        for name, amount in zip(s.snapshot.axes, role.shape.requests, strict=False):
            least = unit_of(name, amount) if name in AXES else 0
            if amount > least and name not in _MARKS:
                yield Lead(Kind.REQUEST, role.name, name, amount, least, unit_of(name, amount))


def _members(s: Situation) -> Iterator[Lead]:
    if s.group.gang:
        for role in s.group.roles:
            yield Lead(Kind.MIN_MEMBER, role.name, "", role.minimum)


def _without_demands(s: Situation) -> dict[str, PodGroup]:
    """The group without one of its demands, by the name of the demand."""
    group, shapes = s.group, [role.shape for role in s.group.roles]
    found: dict[str, PodGroup] = {}
    for pair in sorted({pair for shape in shapes for pair in shape.selector}):
        left = [tuple(each for each in shape.selector if each != pair) for shape in shapes]
        found["label " + "=".join(pair)] = _reshaped(group, "selector", left)
    for key, value, effect in _taints(s)[: 2 * _FEW]:
        more = [tuple(sorted({*shape.tolerations, (key, "Equal", value, effect)})) for shape in shapes]
        found[f"taint {key}={value}:{effect}"] = _reshaped(group, "tolerations", more)
    if any(shape.rack == "required" for shape in shapes):
        found["rack"] = _reshaped(group, "rack", [shape.rack and "preferred" for shape in shapes])
    if any(shape.one_per_node for shape in shapes):
        found["one_per_node"] = _reshaped(group, "one_per_node", [False] * len(shapes))
    if any(group.min_resources or ()):
        found["min_resources"] = structs.replace(group, min_resources=None)
    empty, rules = Rules(), [shape.rules or Rules() for shape in shapes]
    for name in ("node_name", "nodes", "volumes", "ports", "affinity", "anti_affinity", "spread"):
        none = getattr(empty, name)
        if any(getattr(each, name) != none for each in rules):
            found[name] = _reshaped(group, "rules", [replace(each, **{name: none}) for each in rules])
    return found


def _taints(s: Situation) -> list[tuple[str, str, str]]:
    """Taints of nodes that not all of its pods may use."""
    if not len(s.snapshot):
        return []
    allowed = price(s.group, s.snapshot, s.catalogue, s.profile).allowed
    shut = s.snapshot.ready & ~np.logical_and.reduce([where.mask for where in allowed])
    return sorted({taint for node in np.flatnonzero(shut).tolist() for taint in s.snapshot.taints[node]})


def _reshaped(group: PodGroup, field: str, values: Sequence[object]) -> PodGroup:
    """The group with another value of one field of its roles' shapes."""
    roles = tuple(
        structs.replace(role, shape=structs.replace(role.shape, **{field: value}))
        for role, value in zip(group.roles, values, strict=True)
    )
    return structs.replace(group, roles=roles)


def _caps(s: Situation) -> Iterator[Lead]:
    axes = len(s.snapshot.axes)
    demand = [0] * axes
    for group in (s.group, *s.others):
        for role in group.roles:
            for axis, need in enumerate(role.shape.requests[:axes]):
                demand[axis] += need * role.count
    for queue in s.queues.path(s.group.queue):
        for axis, cap in enumerate((queue.cap or ())[:axes]):
            if cap >= 0:
                name = s.snapshot.axes[axis]
                far = max(cap, s.snapshot.total[axis], int(s.snapshot.used[:, axis].sum())) + demand[axis]
                yield Lead(Kind.CAP, queue.name, name, cap, far, unit_of(name))


def _room(s: Situation, request: PlacementRequest) -> Iterator[Lead]:
    """More of one resource on one of the nodes that have most of it."""
    snapshot = s.snapshot
    allowed = np.logical_or.reduce([where.mask for where in request.allowed])
    for axis in request.by_sums().axes:
        name = snapshot.axes[axis]
        nodes = np.flatnonzero(allowed & (snapshot.used[:, axis] > 0))
        if name in _MARKS:
            continue
        free = snapshot.allocatable[nodes, axis] - snapshot.used[nodes, axis]
        for at in np.argsort(-free, kind="stable")[:_FEW].tolist():
            whole = int(snapshot.allocatable[nodes[at], axis])
            yield Lead(Kind.FREE, snapshot.names[nodes[at]], name, int(free[at]), whole, unit_of(name))


# ---- the situation after a change ----


def altered(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    """The situation as it would be. Snapshot and queues are changed in place, until the statement is rolled back."""
    group, snapshot = s.group, s.snapshot
    match change.kind:
        case Kind.REQUEST:
            axis = snapshot.axes.index(change.what)
            requests = [
                _with(role.shape.requests, axis, change.to)
                if role.name == change.object
                else role.shape.requests
                for role in group.roles
            ]
            return replace(s, group=_reshaped(group, "requests", requests))
        case Kind.MIN_MEMBER:
            roles = tuple(
                structs.replace(role, minimum=change.to) if role.name == change.object else role
                for role in group.roles
            )
            return replace(s, group=structs.replace(group, roles=roles))
        case Kind.RULE:
            return replace(s, group=_without_demands(s)[change.what])
        case Kind.CAP:
            axis, before = snapshot.axes.index(change.what), s.queues.get(change.object)
            statement.undo_with(lambda: s.queues.put(before))
            s.queues.put(replace(before, cap=_with(before.cap or (), axis, change.to)))
        case Kind.FREE:
            _free(s, change, statement)
        case Kind.NODE:
            made = node_for(group, snapshot)
            for number in range(change.to):
                snapshot.put_node(replace(made, name=f"{made.name} {number + 1}"), statement)
    return s


def _with(amounts: tuple[int, ...], axis: int, to: int) -> tuple[int, ...]:
    wide = amounts + (0,) * (axis + 1 - len(amounts))
    return (*wide[:axis], to, *wide[axis + 1 :])


def _free(s: Situation, change: Suggestion, statement: Statement) -> None:
    """Free room on a node: the claims that came last give theirs first. Under a cap only room of the capped queue helps."""
    axis, node = s.snapshot.axes.index(change.what), s.snapshot.index[change.object]
    lack = change.to - change.was
    holders = [claim for claim in holders_of(s) if claim.node == node]
    for claim in sorted(holders, key=lambda claim: (-claim.since_ms, claim.owner)):
        amount = tuple(s.snapshot.ledger.amount_of(claim.owner).tolist())
        less = min(amount[axis], lack)
        if less > 0:
            less_of = _with(amount, axis, amount[axis] - less)
            s.snapshot.claim(structs.replace(claim, amount=less_of), statement)
            lack -= less


def holders_of(s: Situation) -> list[Claim]:
    """The claims whose room the group could use: all, or where a cap or a quota keeps it from starting those under it."""
    claims = [claim for claim in s.snapshot.claims.values() if claim.kind is not ClaimKind.STAGING]
    shares = Shares(s.queues, s.snapshot)
    least = minimum_of(s.group, len(s.snapshot.axes))
    capped = shares.capped_by(s.group.queue, least) if shares.limited(s.group.queue) else None
    if capped is None:
        if UserLimits(s.profile, s.snapshot).refusal(s.group) is None:
            over = s.group.in_quota and Quotas(s.snapshot).exceeded(least)
            return [claim for claim in claims if claim.in_quota] if over else claims
        return [claim for claim in claims if (claim.queue, claim.user) == (s.group.queue, s.group.user)]
    return [claim for claim in claims if any(queue.name == capped[0] for queue in shares.path(claim.queue))]


def node_for(group: PodGroup, snapshot: Snapshot) -> NodeInfo:
    """A node on which any one pod of the group fits, with the labels that the group selects."""
    shapes = [role.shape for role in group.roles]
    needs = dict.fromkeys(snapshot.axes, 0)
    for shape in shapes:
        for name, need in zip(snapshot.axes, shape.requests, strict=False):
            needs[name] = max(needs[name], min(need, _MOST))
    needs["gpu"] = WHOLE * -(-needs["gpu"] // WHOLE)
    needs |= {mark: PLENTY for mark in _MARKS if mark in needs}
    labels = {key: value for shape in shapes for key, value in shape.selector}
    for term in (term for shape in shapes if shape.rules is not None for term in shape.rules.affinity):
        near = np.flatnonzero(snapshot.peers.selected((term,)))
        known_as = snapshot.labels[int(near[0])].get(term.topology_key) if len(near) else None
        labels |= {term.topology_key: known_as} if known_as is not None else {}
    return NodeInfo(
        name="a node made for it",
        cpu_millicores=needs["cpu"],
        memory_bytes=needs["memory"],
        disk_bytes=needs["disk"],
        gpu_millis=needs["gpu"],
        extended={name: need for name, need in needs.items() if name not in AXES},
        labels=labels,
        rack="a rack of its own",
        disk_rate=needs["io"],
    )


# ---- trying changes ----


def outlook(situation: Situation, most: int = 3) -> Outlook:
    """The constraints that bind a group, and up to `most` changes that would let it start.

    A group that asks for more than its queue's cap or a quota is tried alone on the cluster: no end of a pod would help.

    Args:
        situation: A private copy (`Situation.copy`): changes are tried in place, and undone.
        most: How many suggestions, at most.
    """
    group, snapshot, queues = situation.group, situation.snapshot, situation.queues
    capped = over_cap(group, Shares(queues, snapshot), queues, snapshot)
    capped = capped or UserLimits(situation.profile, snapshot).refusal(group)
    capped = capped or over_quota(group, Quotas(snapshot), snapshot)
    statement = Statement()
    try:
        if capped is not None and capped.code in PERMANENT:
            for owner in list(snapshot.claims):
                snapshot.unclaim(owner, statement)
            situation = replace(situation, others=())
        snapshot.devices.note(role.shape.requests for role in group.roles)
        trial = _Trial(situation)
        if trial.starts(None):
            return Outlook()
        ways = leads(situation)
        found = _cheapest(trial, ways, most)
        binding = [way for way in ways if way.kind in _BINDING and trial.opens(way)]
        binds = tuple(dict.fromkeys((way.object, _bound(way)) for way in binding))
        return Outlook(binds, tuple(replace(each, message=message_of(each, situation)) for each in found))
    finally:
        statement.rollback()


def _bound(way: Lead) -> str:
    """The constraint that binds if this change lets the group start: a resource, or the name of the rule."""
    return way.what if way.kind in (Kind.REQUEST, Kind.RULE) else f"{way.kind} {way.what}".strip()


def _cheapest(trial: _Trial, ways: list[Lead], most: int) -> list[Suggestion]:
    """The first changes that let it start, in the order of `Kind`, the smallest of each; those that take most of an amount last."""
    found: dict[tuple[Kind, str], Suggestion] = {}
    large: dict[tuple[Kind, str], Suggestion] = {}
    for kind, alike in groupby(ways, key=lambda way: way.kind):
        sizes = []
        for way in alike:
            least = trial.least(way) if trial.opens(way) else None
            if least is not None:  # how much of the resource there is in all tells what is little of it
                sizes.append((abs(least.to - least.was) * 1_000_000 // max(way.was, way.far), least))
        for _, change in sorted(sizes, key=lambda each: each[0]):
            most_of_it = kind in (Kind.REQUEST, Kind.MIN_MEMBER) and 2 * change.to < change.was
            of = kind, "" if kind is Kind.FREE else change.object  # the second best node to free is no news
            (large if most_of_it else found).setdefault(of, change)
        if len(found) >= most:
            break
    return [*found.values(), *(large[of] for of in large if of not in found)][:most]


class _Trial:
    """Tries changes on one copy, so many times and no more."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._left = TRIES
        self._opens: dict[Lead, bool] = {}

    def opens(self, lead: Lead) -> bool:
        """Whether the group starts if a lead goes as far as it may."""
        if lead not in self._opens:
            self._opens[lead] = self.starts(lead.at(lead.steps))
        return self._opens[lead]

    def starts(self, change: Suggestion | None) -> bool:
        """Whether the group starts after a change; False also when there are no tries left."""
        if self._left <= 0:
            return False
        self._left -= 1
        statement = Statement()
        try:
            situation = self._situation
            return (situation if change is None else altered(situation, change, statement)).starts()
        finally:
            statement.rollback()

    def least(self, lead: Lead) -> Suggestion | None:
        """The smallest step of a lead after which the group starts, given that its last does. None = no tries left."""
        low, high = 0, lead.steps  # low does not start it, high does
        while high - low > 1:
            if self._left <= 0:
                return None
            middle = (low + high) // 2
            if self.starts(lead.at(middle)):
                high = middle
            else:
                low = middle
        return lead.at(high)


# ---- words ----


def message_of(change: Suggestion, situation: Situation) -> str:
    """A suggestion for people."""
    amount, enough = partial(_exact, change.what), partial(_enough, change.what)
    more = change.to - change.was
    match change.kind:
        case Kind.REQUEST:
            was = quantity(change.what, change.was)
            return f"ask for {amount(change.to)} instead of {was} for each {change.object}"
        case Kind.MIN_MEMBER:
            members = "member" if change.to == 1 else "members"
            return f"start with {change.to} {members} instead of {change.was} (minimum of {change.object})"
        case Kind.RULE if change.what.startswith("taint "):
            return f"tolerate the {change.what}"
        case Kind.RULE:
            return f"drop its demand: {change.what.replace('_', ' ')}"
        case Kind.CAP:
            return f"raise the cap of queue {change.object} by {enough(more)} to {enough(change.to)}"
        case Kind.FREE:
            who = ", ".join(_holders(change, situation))
            return f"free {enough(more)} on node {change.object} (held by {who}){_others(change, situation)}"
        case Kind.NODE:
            node = node_for(situation.group, situation.snapshot)
            amounts = {
                "cpu": node.cpu_millicores,
                "memory": node.memory_bytes,
                "disk": node.disk_bytes,
                "gpu": node.gpu_millis,
                "io": node.disk_rate,
            }
            amounts |= {name: need for name, need in node.extended.items() if name not in _MARKS}
            has = ", ".join(_enough(axis, need) for axis, need in amounts.items() if need) or "nothing"
            has += "".join(f", label {key}={value}" for key, value in node.labels.items())
            nodes = "one more node" if change.to == 1 else f"{change.to} more nodes"
            return f"{nodes} with {has}{_others(change, situation)}"


def _others(change: Suggestion, situation: Situation) -> str:
    """That part of the room goes to groups that come first, where it does."""
    if not situation.others:
        return ""
    now = {placed.group for placed in situation.plan().placements}
    statement = Statement()
    try:
        then = {placed.group for placed in altered(situation, change, statement).plan().placements}
    finally:
        statement.rollback()
    names = [other.name for other in situation.others if other.key in then - now]
    return f"; {', '.join(names[:_FEW])}{' …' * (len(names) > _FEW)} would start there too" if names else ""


def _exact(axis: str, amount: int) -> str:
    """An amount in the units in which it was found: a request for a little more than this is refused."""
    return (
        f"{amount >> 20} MiB {axis}"
        if unit_of(axis) == _MIB and amount & (1 << 30) - 1
        else quantity(axis, amount)
    )


def _enough(axis: str, amount: int) -> str:
    """An amount that must be there, rounded up to the unit that is shown: a little less would not do."""
    unit = unit_of(axis)
    return _exact(axis, -(-amount // unit) * unit)


#: The prefix for room that victims have left and that no other group gets.
_NOMINATED: Final = "kept for "


def _holders(change: Suggestion, situation: Situation) -> Iterator[str]:
    """The groups that hold most of a resource of a node, with their amounts: room kept for a group first, then the largest."""
    snapshot = situation.snapshot
    node, axis = snapshot.index[change.object], snapshot.axes.index(change.what)
    amounts: Counter[str] = Counter()
    for claim in holders_of(situation):
        if claim.node == node:
            name = claim.group or claim.owner
            if claim.kind is ClaimKind.NOMINATED:
                name = f"{_NOMINATED}the next group of queue {claim.queue}"
            amounts[name] += int(snapshot.ledger.amount_of(claim.owner)[axis])
    largest = sorted(+amounts, key=lambda name: (not name.startswith(_NOMINATED), -amounts[name], name))
    for name in largest[:_FEW]:
        yield f"{name} {quantity(change.what, amounts[name])}"
    if len(largest) > _FEW:
        yield f"{len(largest) - _FEW} more"
