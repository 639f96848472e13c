"""Remedies: the least single change that would let a waiting group start, found by trying changes on the real cycle.

1. Leads: every single change that could matter (`leads`), each with its bound.
2. Each is tried at its bound. A change that lets the group start there is sufficient alone.
3. Of those, cheapest first, bisection finds the least amount: this amount starts the group, and one unit less does not, whether
   or not the change is monotone in between.

A remedy is computed on request, never in a cycle of the service. The work is counted: at most `TRIES` cycles. Cost only orders
the suggestions: the client who asks can change a request sooner than a cap, and a cap sooner than the number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import partial
from typing import Final

import msgspec
import numpy as np

from flowsched.executor.constraints import Rules
from flowsched.executor.datasets import uri_of
from flowsched.executor.nodes import ALIGNED
from flowsched.executor.selectors import Labels
from flowsched.scheduling.explain.situation import (
    Kind,
    Situation,
    Suggestion,
    alter,
    free_on,
    holders_of,
    node_for,
    nodes_for,
)
from flowsched.scheduling.io_budget import demands_of
from flowsched.scheduling.placement.capacity import Capacity
from flowsched.scheduling.placement.cost_table import PlacementRequest, price
from flowsched.scheduling.placement.gang import Ints, NodeChoice
from flowsched.scheduling.plan import PERMANENT
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.quotas import Quotas
from flowsched.scheduling.queues.tree import QueueTree, Shares
from flowsched.scheduling.queues.user_limits import UserLimits
from flowsched.scheduling.reasons import over_cap, over_quota, quantity, vector_text
from flowsched.scheduling.reservations import Calendar, runtime_of
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import AXES, PODS, Snapshot
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.resources import format_duration

HOUR_MS: Final = 3_600_000
_MIB: Final = 1 << 20
_MB: Final = 1_000_000
#: So many nodes, taints or labels are tried of each kind.
_FEW: Final = 3
#: So many nodes are looked at for their kind.
_LOOKED_AT: Final = 512
#: With more claims than this, the moment of a wait is not searched for, only tried where room is expected.
_ENDS: Final = 4096
#: So many more nodes, at most.
_MOST_NODES: Final = 64
#: (price, and what the largest change costs on top). The table says what is changed rather than what.
_PRICES: Final[dict[Kind, tuple[int, int]]] = {
    Kind.RESUME: (10, 0),
    Kind.INPUT: (20, 0),
    Kind.REQUEST: (100, 900),
    Kind.MIN_RESOURCES: (120, 900),
    Kind.MIN_MEMBER: (150, 900),
    Kind.TOLERATION: (200, 0),
    Kind.RACK: (220, 0),
    Kind.ONE_PER_NODE: (240, 0),
    Kind.SELECTOR: (300, 0),
    Kind.RULE: (310, 0),
    Kind.COPY: (315, 0),
    Kind.LABEL: (330, 0),
    Kind.READY: (350, 0),
    Kind.CAP: (280, 400),
    Kind.RUNTIME: (320, 400),
    Kind.PRIORITY: (430, 0),
    Kind.WAIT: (400, 500),
    Kind.FREE: (450, 400),
    Kind.NODE: (600, 300),
    Kind.STORAGE: (550, 300),
}
#: What a rule of a pod is, that can be dropped alone.
_DEMANDS: Final = ("node_name", "nodes", "volumes", "ports", "affinity", "anti_affinity", "spread")


class Lead(msgspec.Struct, frozen=True):
    """A change that may go from `was` towards `far`, unit by unit.

    Args:
        kind, object, what: As in `Suggestion`.
        was: As it is.
        far: As far as it may go.
        unit: The least step.
        whole: What the size of a change is compared with.
    """

    kind: Kind
    object: str = ""
    what: str = ""
    was: int = 0
    far: int = 1
    unit: int = 1
    whole: int = 1

    @property
    def price(self) -> int:
        """What the smallest change of its kind costs, to order suggestions."""
        return _PRICES[self.kind][0]

    @property
    def more(self) -> int:
        """What the largest costs beyond that."""
        return _PRICES[self.kind][1]

    @property
    def steps(self) -> int:
        """How many units there are on the way."""
        return -(-abs(self.far - self.was) // self.unit)

    @property
    def bound(self) -> str:
        """What binds, if this lets the group start: a resource, or the name of the rule."""
        return self.what if self.kind in (Kind.REQUEST, Kind.RULE) else f"{self.kind} {self.what}".strip()

    def at(self, step: int) -> Suggestion:
        """The change after so many units, 1..steps."""
        size = min(step * self.unit, abs(self.far - self.was))
        to = self.was + size if self.far > self.was else self.was - size
        return Suggestion(self.kind, self.object, self.what, self.was, to, self.unit)


def leads(situation: Situation) -> list[Lead]:
    """Every change that could matter."""
    found = [
        *_paused(situation),
        *_inputs(situation),
        *_members(situation),
        *_requests(situation),
        *_rules(situation),
        *_caps(situation),
        *_turns(situation),
        *_storages(situation),
    ]
    if len(situation.snapshot):
        offer = price(situation.group, situation.snapshot, situation.catalogue, situation.profile)
        found += [*_copies(situation, offer), *_nodes(situation, offer)]
        found += [*_waits(situation, offer)]
        found += [*_room(situation, offer), *_more_nodes(situation, offer)]
    found.append(Lead(Kind.NODE, "", "", 0, _wanted(situation), 1, _MOST_NODES))
    return [lead for lead in found if lead.steps > 0]


def unit_of(axis: str, amount: int = 0) -> int:
    """The least amount of a resource that makes sense to ask for: 1 milli-CPU, 1 MiB, 1 MB/s; whole GPUs beyond one."""
    if axis in ("memory", "disk"):
        return _MIB
    if axis == "io":
        return 1_000_000
    return 1000 if axis == "gpu" and amount > 1000 and amount % 1000 == 0 else 1


def _wanted(s: Situation) -> int:
    """How many nodes to add at most: one for each pod of the group and of the others, which may go first; of a gang, only its
    minimum counts.
    """
    groups = (s.group, *s.others)
    pods = sum(role.minimum if group.gang else role.count for group in groups for role in group.roles)
    return min(_MOST_NODES, max(1, pods))


def _counted(name: str) -> bool:
    """Whether it is a resource, not a mark that only counts pods."""
    return name not in (PODS, ALIGNED)


# ---- leads: the group ----


def _members(s: Situation) -> Iterator[Lead]:
    if s.group.gang:
        for role in s.group.roles:
            yield Lead(Kind.MIN_MEMBER, role.name, "", role.minimum, 1, 1, role.minimum)


def _requests(s: Situation) -> Iterator[Lead]:
    for role in s.group.roles:
        for axis, name in enumerate(s.snapshot.axes):
            amount = role.shape.requests[axis] if axis < len(role.shape.requests) else 0
            unit = unit_of(name, amount)
            if amount > unit and _counted(name):
                yield Lead(Kind.REQUEST, role.name, name, amount, unit, unit, amount)
            elif amount > 0 and name not in AXES and _counted(name):
                yield Lead(Kind.REQUEST, role.name, name, amount, 0, unit, amount)
    for axis, amount in enumerate(s.group.min_resources or ()):
        name = s.snapshot.axes[axis]
        if amount > 0:
            yield Lead(Kind.MIN_RESOURCES, "", name, amount, 0, unit_of(name, amount), amount)


def _rules(s: Situation) -> Iterator[Lead]:
    shapes = [role.shape for role in s.group.roles]
    if any(shape.rack == "required" for shape in shapes):
        yield Lead(Kind.RACK)
    if any(shape.one_per_node for shape in shapes):
        yield Lead(Kind.ONE_PER_NODE)
    for key, value in sorted({pair for shape in shapes for pair in shape.selector}):
        yield Lead(Kind.SELECTOR, "", f"{key}={value}")
    known, empty = {field.name for field in fields(Rules)}, Rules()
    for name in _DEMANDS:
        ruled = [shape.rules for shape in shapes if shape.rules is not None]
        if name in known and any(getattr(rules, name) != getattr(empty, name) for rules in ruled):
            yield Lead(Kind.RULE, "", name)


def _turns(s: Situation) -> Iterator[Lead]:
    """Its place in the order, what it says of its runtime, and time itself."""
    if s.others:
        most = max(other.priority for other in s.others) + 1
        aged = max((s.now - other.ready_ms) // max(s.profile.promote_ms, 1) for other in s.others)
        far = max(most, s.group.priority + 1) + max(0, aged)
        yield Lead(Kind.PRIORITY, "", "", s.group.priority, far)
        runtime = runtime_of(s.group, s.profile)
        yield Lead(Kind.RUNTIME, "", "", runtime, min(1000, runtime), 1000, runtime)


def _waits(s: Situation, offer: PlacementRequest) -> Iterator[Lead]:
    """Until there is room, if nothing else starts; or, where others count, at most until all that runs has ended."""
    calendar, room = Calendar(s.snapshot, s.profile.default_runtime_ms, s.now), Capacity(s.snapshot)
    least = offer.at_least() if s.group.gang else offer.wanting(1)

    def fits(rows: list[Ints]) -> tuple[NodeChoice, ...] | None:
        return least.place(rows, room, s.snapshot, s.profile)

    found = calendar.earliest(least.axes, [room.hard(axis) for axis in least.axes], fits, s.now)
    moments = [found[0]] if found is not None else []
    if len(calendar.ends) and len(calendar.ends) <= _ENDS:
        moments.append(int(calendar.ends[-1]))
    for far in moments:
        yield Lead(Kind.WAIT, "", "", s.now, far)


def _inputs(s: Situation) -> Iterator[Lead]:
    for dataset in dict.fromkeys(s.group.reads):
        if s.catalogue.lost(dataset):
            yield Lead(Kind.INPUT, "", s.catalogue.uris[dataset])


def _copies(s: Situation, offer: PlacementRequest) -> Iterator[Lead]:
    """One input on a node that has all the others."""
    inputs = tuple(dict.fromkeys(s.group.inputs))
    if not inputs or not s.profile.locality:
        return
    missing = s.catalogue.missing_bytes(inputs, len(s.snapshot))
    allowed = np.logical_or.reduce([where.mask for where in offer.allowed])
    for dataset in inputs:
        held = np.isin(np.arange(len(s.snapshot)), sorted(s.catalogue.nodes_of(dataset)))
        alone = allowed & ~held & (missing == s.catalogue.weight(dataset))
        for node in _roomiest(s, np.flatnonzero(alone).tolist()):
            yield Lead(Kind.COPY, s.snapshot.names[node], s.catalogue.uris[dataset])


def _storages(s: Situation) -> Iterator[Lead]:
    """A shared storage that carries more."""
    asked = demands_of(s.group)
    others = sum(rate for other in s.others for rate in demands_of(other).values())
    for storage in s.profile.storages:
        for key, rate in storage.rates.items():
            if key in asked and rate > 0:
                wanted = s.snapshot.direct.rates.get(key, 0) + asked[key] + others
                far = max(rate, wanted * 100 // max(s.profile.io_fill_percent, 1)) + _MB
                yield Lead(Kind.STORAGE, storage.name, key.rpartition("/")[2], rate, far, _MB, rate)


# ---- leads: queues ----


def _paused(s: Situation) -> Iterator[Lead]:
    for queue in s.queues.path(s.group.queue):
        if queue.paused:
            yield Lead(Kind.RESUME, queue.name)


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
                yield Lead(Kind.CAP, queue.name, name, cap, far, unit_of(name), max(cap, 1))


# ---- leads: nodes ----


def _nodes(s: Situation, offer: PlacementRequest) -> Iterator[Lead]:
    """Taints, labels and nodes that take no pods."""
    snapshot = s.snapshot
    ready = np.flatnonzero(snapshot.ready).tolist()
    taints = {
        taint
        for node in ready
        for taint in snapshot.taints[node]
        if not all(where.mask[node] for where in offer.allowed)
    }
    for key, value, effect in sorted(taints)[: 2 * _FEW]:
        yield Lead(Kind.TOLERATION, "", f"{key}={value}:{effect}")
    for key, value in sorted({pair for role in s.group.roles for pair in role.shape.selector}):
        lacking = [node for node in ready if _differs(snapshot.labels[node], key, value)]
        for node in _roomiest(s, lacking):
            yield Lead(Kind.LABEL, snapshot.names[node], f"{key}={value}")
    away = np.flatnonzero(~snapshot.ready).tolist()
    for node in _roomiest(s, away):
        yield Lead(Kind.READY, snapshot.names[node])


def _differs(labels: Labels, key: str, value: str) -> bool:
    return labels.get(key) != value


def _roomiest(s: Situation, nodes: Iterable[int]) -> list[int]:
    free = s.snapshot.allocatable[:, 0] - s.snapshot.used[:, 0]
    return sorted(nodes, key=lambda node: (-int(free[node]), node))[:_FEW]


def _room(s: Situation, offer: PlacementRequest) -> Iterator[Lead]:
    """More of one resource on one of the nodes that have most of it."""
    snapshot = s.snapshot
    allowed = np.logical_or.reduce([where.mask for where in offer.allowed])
    for axis in offer.by_sums().axes:
        name = snapshot.axes[axis]
        held = allowed & (snapshot.used[:, axis] > 0)
        if not _counted(name) or not held.any():
            continue
        free = snapshot.allocatable[:, axis] - snapshot.used[:, axis]
        nodes = np.flatnonzero(held)
        for node in nodes[np.argsort(-free[nodes], kind="stable")][:_FEW].tolist():
            whole = int(snapshot.allocatable[node, axis])
            yield Lead(
                Kind.FREE,
                snapshot.names[node],
                name,
                free_on(snapshot, node, axis),
                whole,
                unit_of(name),
                whole,
            )


def _more_nodes(s: Situation, offer: PlacementRequest) -> Iterator[Lead]:
    """More of the kinds of node that there are, those that the group may use first."""
    snapshot, seen = s.snapshot, set()
    usable = np.logical_and.reduce([where.mask for where in offer.allowed])
    found = 0
    for node in np.argsort(~usable, kind="stable")[:_LOOKED_AT].tolist():
        info = snapshot.info(node)
        kind = (tuple(snapshot.allocatable[node].tolist()), info.taints, tuple(sorted(info.labels.items())))
        if kind in seen:
            continue
        seen.add(kind)
        yield Lead(Kind.NODE, info.name, "", 0, _wanted(s), 1, _MOST_NODES)
        found += 1
        if found == _FEW:
            return


# ---- trying changes ----


#: Cycles that one answer may cost. Leads are rarely more than 60, a bisection rarely longer than 30.
TRIES: Final = 400
#: So many other waiting groups, at most, are in the tried cycles beside the group itself.
OTHERS: Final = 16
#: Changes of the group or its queue. Others (more room, data, or time) show that it waits, not what binds it.
_BINDING: Final = frozenset(
    {
        Kind.REQUEST, Kind.MIN_MEMBER, Kind.MIN_RESOURCES, Kind.TOLERATION, Kind.SELECTOR, Kind.RACK,
        Kind.ONE_PER_NODE, Kind.RULE, Kind.CAP, Kind.RESUME, Kind.INPUT,
    }
)  # fmt: skip
#: Changes of a time: their size is judged against an hour, not against the present value.
_TIMES: Final = (Kind.WAIT, Kind.RUNTIME)


class Outlook(msgspec.Struct, frozen=True):
    """What can be said of a group that waits.

    Args:
        binds: What binds by itself, as (role or queue; "" = the group, resource or rule): without it, the group would
            start. Empty where only several things together keep it.
        suggestions: What would let it start, the cheapest first.
    """

    binds: tuple[tuple[str, str], ...] = ()
    suggestions: tuple[Suggestion, ...] = ()


def suggest(
    snapshot: Snapshot,
    catalogue: Catalogue,
    queues: QueueTree,
    group: PodGroup,
    profile: Profile,
    now: int,
    others: tuple[PodGroup, ...] = (),
) -> Suggestion | None:
    """The cheapest single change after which a group starts; None where no single change does, or it starts anyway.

    Args:
        snapshot: Nodes and claims. Not modified.
        catalogue: Datasets. Not modified.
        queues: The queues that pay. Not modified.
        group: The group that waits.
        profile: The policy.
        now: The moment, wall-clock ms.
        others: The groups that wait beside it, the most important first; the first `OTHERS` count.
    """
    situation = Situation(snapshot, catalogue, queues, group, others[:OTHERS], profile, now)
    private = situation.copy()
    private.snapshot.devices.look(role.shape.requests for role in group.roles)
    trial = _Trial(private)
    if trial.starts(None):
        return None
    found = _cheapest(trial, leads(private), 1)
    return replace(found[0], message=told(found[0], private)) if found else None


def outlook(situation: Situation, most: int = 3) -> Outlook:
    """What binds a group, and up to `most` changes that would let it start.

    A group that asks for more than its queue's cap or a quota is seen alone on the cluster: no end of what runs would let it start.

    Args:
        situation: A private copy (`Situation.copy`): changes are tried in place, and undone.
        most: How many suggestions, at most.
    """
    snapshot, queues = situation.snapshot, situation.queues
    capped = over_cap(situation.group, Shares(queues, snapshot), queues, snapshot)
    capped = capped or UserLimits(situation.profile, snapshot).refusal(situation.group)
    capped = capped or over_quota(situation.group, Quotas(snapshot), snapshot)
    if capped is None or capped.code not in PERMANENT:
        return _outlook(situation, most)
    statement = Statement()
    try:
        for owner in list(snapshot.claims):
            snapshot.unclaim(owner, statement)
        return _outlook(replace(situation, others=()), most)
    finally:
        statement.rollback()


def _outlook(situation: Situation, most: int) -> Outlook:
    situation.snapshot.devices.look(role.shape.requests for role in situation.group.roles)
    trial = _Trial(situation)
    if trial.starts(None):
        return Outlook()
    ways = leads(situation)
    found = _cheapest(trial, ways, most)
    binding = [way for way in ways if way.kind in _BINDING and trial.opens(way)]
    binds = tuple(dict.fromkeys((way.object, way.bound) for way in binding))
    return Outlook(binds, tuple(replace(each, message=told(each, situation)) for each in found))


def _cheapest(trial: _Trial, ways: list[Lead], most: int) -> list[Suggestion]:
    """The cheapest changes that let it start. What cannot be cheaper any more is not tried."""
    found: list[tuple[int, Suggestion]] = []
    for way in sorted(ways, key=lambda way: way.price):
        chosen = _different(found)
        if len(chosen) >= most and chosen[most - 1][0] <= way.price:
            break
        least = trial.least(way) if trial.opens(way) else None
        if least is not None:
            found = sorted([*found, (_price(way, least), least)], key=lambda each: each[0])
    return [suggestion for _, suggestion in _different(found)[:most]]


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

    def starts(self, suggestion: Suggestion | None) -> bool:
        """Whether the group starts after a change; False also when there are no tries left."""
        if self._left <= 0:
            return False
        self._left -= 1
        statement = Statement()
        try:
            after = (
                alter(self._situation, suggestion, statement) if suggestion is not None else self._situation
            )
            return after.starts()
        finally:
            statement.rollback()

    def least(self, lead: Lead) -> Suggestion | None:
        """The smallest step of a lead after which the group starts, given that its last does. None = no tries left."""
        low, high = 0, lead.steps  # low does not start it, high does
        if lead.kind is Kind.WAIT and high > 1 and not self.starts(lead.at(high - 1)):
            low = high - 1  # the end of something, as a rule
        while high - low > 1:
            if self._left <= 0:
                return None
            middle = (low + high) // 2
            if self.starts(lead.at(middle)):
                high = middle
            else:
                low = middle
        return lead.at(high)


def _price(lead: Lead, change: Suggestion) -> int:
    """The lead's price, and up to `lead.more` for the size of the change."""
    size = abs(change.to - change.was)
    if change.kind in _TIMES:
        return lead.price + lead.more * size // (size + HOUR_MS)
    if change.kind is Kind.NODE:
        return lead.price + lead.more * (size - 1) // (size + 3)
    return lead.price + lead.more * min(size, lead.whole) // max(lead.whole, 1)


def _different(found: list[tuple[int, Suggestion]]) -> list[tuple[int, Suggestion]]:
    """One of each kind and object: the second best node to free is no news."""
    seen: set[object] = set()
    kept = []
    for each in found:
        change = each[1]
        of = (change.kind, change.object) if change.kind in (Kind.REQUEST, Kind.MIN_MEMBER) else change.kind
        if of not in seen:
            seen.add(of)
            kept.append(each)
    return kept


# ---- words ----


def told(change: Suggestion, situation: Situation) -> str:
    """A suggestion for people."""
    simple = _SAID.get(change.kind)
    if simple is not None:
        if change.kind is Kind.MIN_MEMBER and change.to == 1:
            simple = simple.replace("members", "member")
        return simple.format(
            object=change.object,
            what=uri_of(change.what),
            was=change.was,
            to=change.to,
            seconds=-(-change.to // 1000),
            rule=change.what.replace("_", " "),
        )
    amount = partial(quantity, change.what)
    match change.kind:
        case Kind.REQUEST:
            return f"ask for {_exact(change, change.to)} instead of {amount(change.was)} for each {change.object}"
        case Kind.MIN_RESOURCES:
            return f"ask for min_resources of {_exact(change, change.to)} instead of {amount(change.was)}"
        case Kind.CAP:
            more = _exact(change, change.to - change.was)
            return f"raise the cap of queue {change.object} by {more} to {_exact(change, change.to)}"
        case Kind.FREE:
            more, who = _exact(change, change.to - change.was), ", ".join(_holders(change, situation))
            first = _goes_first(change, situation)
            taken = (
                f", of which {_exact(change, first)} would go to what is before it in the queue"
                if first
                else ""
            )
            return f"free {more} on node {change.object}{taken}" + (f" (held by {who})" if who else "")
        case Kind.READY:
            why = situation.snapshot.info(situation.snapshot.index[change.object]).trouble
            return f"let node {change.object} take pods again" + (f": {why}" if why else "")
        case Kind.STORAGE:
            now, then = (f"{-(-rate // 1_000_000)} MB/s" for rate in (change.was, change.to))
            return (
                f"let storage {change.object} give those who {change.what} {then} together instead of {now}"
            )
        case Kind.WAIT:
            seconds = -(-(change.to - change.was) // 1000)
            return f"wait {format_duration(seconds * 1000)}: by then enough of what runs is expected to have ended"
        case _:
            nodes = "one more node" if change.to == 1 else f"{change.to} more nodes"
            if change.object:
                return f"{nodes} like {change.object}"
            first = max(change.to - nodes_for(situation.group), 0)
            return f"{nodes} with {_made(situation)}" + (
                f" ({first} of them would go to {_before(situation, first)})" if first else ""
            )


def _before(situation: Situation, nodes: int) -> str:
    """Which groups would get so many of the added nodes: other shards of the group's own stage, if they need that many."""
    stage, shard, _ = situation.group.name.rpartition("[")
    siblings = [other for other in situation.others if shard and other.name.rpartition("[")[0] == stage]
    if sum(map(nodes_for, siblings)) >= nodes:
        return f"other tasks of {stage}"
    return "what is before it in the queue"


_SAID: Final = {
    Kind.MIN_MEMBER: "start with {to} members instead of {was} (minimum of {object})",
    Kind.RUNTIME: "say that it runs for {seconds} s (if it does): it would end before the promised start",
    Kind.PRIORITY: "give it priority {to} instead of {was}: it would go first",
    Kind.TOLERATION: "tolerate the taint {what}",
    Kind.SELECTOR: "do not ask for the label {what}",
    Kind.RACK: "prefer one rack instead of requiring it",
    Kind.ONE_PER_NODE: "let its pods share a node",
    Kind.RULE: "drop its demand: {rule}",
    Kind.RESUME: "resume queue {object}: `flowsched queue set {object} --resume`",
    Kind.LABEL: "add the label {what} to node {object}",
    Kind.INPUT: "bring back its input {what}",
    Kind.COPY: "have its input {what} on node {object}",
}


def _made(situation: Situation) -> str:
    """What a node that is made for the group has."""
    node = node_for(situation.group, situation.snapshot)
    known = (node.cpu_millicores, node.memory_bytes, node.disk_bytes, node.gpu_millis)
    return vector_text(AXES, known) + "".join(f", label {key}={value}" for key, value in node.labels.items())


def _exact(change: Suggestion, amount: int) -> str:
    """An amount in the units in which it was found: a request for a little more than this is refused."""
    if change.what in ("memory", "disk"):
        return (
            f"{amount >> 20} MiB {change.what}"
            if amount & (1 << 30) - 1
            else f"{amount >> 30} GiB {change.what}"
        )
    return quantity(change.what, amount)


def _goes_first(change: Suggestion, situation: Situation) -> int:
    """How much of the room that is to be freed other groups take before one pod of the group has its own; 0 for a gang."""
    if situation.group.gang:
        return 0
    axis = situation.snapshot.axes.index(change.what)
    return max(0, change.to - change.was - situation.group.roles[0].shape.requests[axis])


#: How room is told that victims have left, and that nobody else gets.
_KEPT: Final = "kept for "


def _holders(change: Suggestion, situation: Situation, most: int = 3) -> Iterator[str]:
    """The groups that hold most of a resource of a node, with their amounts: room kept for a group first, then the largest."""
    snapshot = situation.snapshot
    node, axis = snapshot.index[change.object], snapshot.axes.index(change.what)
    held: dict[str, int] = {}
    for claim in holders_of(situation):
        if claim.node == node:
            name = claim.group or claim.owner
            if claim.kind is ClaimKind.NOMINATED:
                name = f"{_KEPT}the next group of queue {claim.queue}"
            held[name] = held.get(name, 0) + int(snapshot.ledger.amount_of(claim.owner)[axis])
    largest = sorted(
        (name for name in held if held[name]),
        key=lambda name: (not name.startswith(_KEPT), -held[name], name),
    )
    for name in largest[:most]:
        yield f"{name} {quantity(change.what, held[name])}"
    if len(largest) > most:
        yield f"{len(largest) - most} more"
