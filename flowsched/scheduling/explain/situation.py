"""Situations: what a cycle looks at, one change of it as a value, and the situation that follows from the change.

A `Situation` holds all inputs of a cycle. A `Suggestion` is one change of it in plain values, so that it can be sent, stored
and applied elsewhere. `changed` answers with a copy; `alter` changes in place through a `Statement`, so that many amounts are
tried on one private copy. Nothing here searches: see `remedies`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np
from msgspec import structs

from flowsched.executor.constraints import Rules
from flowsched.executor.nodes import ALIGNED, PLENTY, NodeInfo
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.ordering import minimum_of
from flowsched.scheduling.queues.quotas import Quotas
from flowsched.scheduling.queues.tree import QueueTree, Shares
from flowsched.scheduling.queues.user_limits import UserLimits
from flowsched.scheduling.reservations import expected_ends
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.gpus import GPU, WHOLE, devices_for
from flowsched.scheduling.state.snapshot import AXES, PODS, Snapshot
from flowsched.statement import Statement
from flowsched.values import replace

#: Nodes that are made up have no more of anything: their sums must fit 64 bits.
_MOST: Final = 1 << 55


class Kind(StrEnum):
    """What is changed. `object`, `what`, `was` and `to` of a `Suggestion` mean what is said here."""

    REQUEST = "request"  #: role `object` asks for `to` of resource `what` a pod, instead of `was`
    MIN_MEMBER = "min_member"  #: role `object` starts with `to` members instead of `was`
    MIN_RESOURCES = "min_resources"  #: the group wants `to` of resource `what` at its start, instead of `was`
    RUNTIME = "runtime"  #: the group says that it runs for `to` ms, instead of `was`
    PRIORITY = "priority"  #: the group's priority is `to` instead of `was`
    TOLERATION = "toleration"  #: all roles tolerate the taint `what` (key=value:effect)
    SELECTOR = "selector"  #: no role selects the label `what` (key=value) any more
    RACK = "rack"  #: one rack is preferred, not required
    ONE_PER_NODE = "one_per_node"  #: its pods may share a node
    RULE = "rule"  #: the demand `what` of its pods is dropped (a field of `Rules`)
    CAP = "cap"  #: queue `object` may have `to` of resource `what`, instead of `was`
    RESUME = "resume"  #: queue `object` is not paused
    LABEL = "label"  #: node `object` carries the label `what` (key=value)
    READY = "ready"  #: node `object` takes pods
    NODE = "node"  #: `to` more nodes like `object`; without `object`, made for the group
    STORAGE = "storage"  #: shared storage `object` gives readers or writers (`what`) `to` bytes/s together, instead of `was`
    FREE = "free"  #: node `object` has `to` free of resource `what`, instead of `was`
    INPUT = "input"  #: the lost dataset `what` can be had from outside again
    COPY = "copy"  #: node `object` has the dataset `what`
    WAIT = "wait"  #: nothing is changed, but the moment is `to` (ms) instead of `was`


class Suggestion(msgspec.Struct, frozen=True):
    """One change after which a group starts.

    Args:
        kind: What is changed.
        object: Name of the role, queue or node; "" = the group.
        what: Which resource, label, taint, rule or dataset of it.
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

    def one_less(self) -> Suggestion | None:
        """The change made smaller by one unit; None = that would be no change at all."""
        step = min(self.unit, abs(self.to - self.was))
        to = self.to - step if self.to > self.was else self.to + step
        return None if to == self.was else replace(self, to=to)


class Situation(msgspec.Struct, frozen=True, eq=False):
    """All that a cycle looks at, seen from one group that waits.

    Args:
        snapshot: Nodes and claims.
        catalogue: Datasets.
        queues: The queues that pay.
        group: The group that waits.
        others: The groups that wait beside it; they may go before it, and the first may hold a promise.
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
        """What a cycle would decide."""
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


def changed(situation: Situation, suggestion: Suggestion) -> Situation:
    """The situation as it would be. The given one is not modified.

    Raises:
        KeyError: The suggestion names a role, node, queue or resource that is not there.
    """
    return alter(situation.copy(), suggestion, Statement())


def alter(situation: Situation, suggestion: Suggestion, statement: Statement) -> Situation:
    """As `changed`, but snapshot, catalogue and queues are changed in place, until the statement is rolled back."""
    return _ALTER[suggestion.kind](situation, suggestion, statement)


def axis_of(snapshot: Snapshot, name: str) -> int:
    """The index of a resource.

    Raises:
        KeyError: There is none of that name.
    """
    if name not in snapshot.axes:
        raise KeyError(f"no resource {name!r}; there are {', '.join(snapshot.axes)}")
    return snapshot.axes.index(name)


def split_label(text: str) -> tuple[str, str]:
    """Key and value of `key=value`."""
    key, _, value = text.partition("=")
    return key, value


def split_taint(text: str) -> tuple[str, str, str]:
    """Key, value and effect of `key=value:effect`."""
    pair, _, effect = text.rpartition(":")
    key, value = split_label(pair)
    return key, value, effect


# ---- the group ----


def _each_shape(situation: Situation, change: Callable[[Shape], Shape], role: str | None = None) -> Situation:
    group = situation.group
    if role is not None and all(each.name != role for each in group.roles):
        raise KeyError(f"no role {role!r}; there are {', '.join(each.name for each in group.roles)}")
    roles = tuple(
        structs.replace(each, shape=change(each.shape)) if role in (None, each.name) else each
        for each in group.roles
    )
    return replace(situation, group=structs.replace(group, roles=roles))


def _with(amounts: tuple[int, ...], axis: int, to: int) -> tuple[int, ...]:
    wide = amounts + (0,) * (axis + 1 - len(amounts))
    return (*wide[:axis], to, *wide[axis + 1 :])


def _request(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    axis = axis_of(s.snapshot, change.what)
    return _each_shape(
        s,
        lambda shape: structs.replace(shape, requests=_with(shape.requests, axis, change.to)),
        change.object,
    )


def _min_member(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    roles = tuple(
        structs.replace(role, minimum=change.to) if role.name == change.object else role
        for role in s.group.roles
    )
    return replace(s, group=structs.replace(s.group, roles=roles))


def _min_resources(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    axis = axis_of(s.snapshot, change.what)
    return replace(
        s, group=structs.replace(s.group, min_resources=_with(s.group.min_resources or (), axis, change.to))
    )


def _runtime(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    return replace(s, group=structs.replace(s.group, runtime_ms=change.to))


def _priority(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    return replace(s, group=structs.replace(s.group, priority=change.to))


def _toleration(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    key, value, effect = split_taint(change.what)
    row = (key, "Equal", value, effect)
    return _each_shape(
        s, lambda shape: structs.replace(shape, tolerations=tuple(sorted({*shape.tolerations, row})))
    )


def _selector(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    pair = split_label(change.what)
    return _each_shape(
        s,
        lambda shape: structs.replace(shape, selector=tuple(each for each in shape.selector if each != pair)),
    )


def _rack(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    return _each_shape(
        s, lambda shape: structs.replace(shape, rack="preferred" if shape.rack == "required" else shape.rack)
    )


def _one_per_node(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    return _each_shape(s, lambda shape: structs.replace(shape, one_per_node=False))


def _rule(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    empty = getattr(Rules(), change.what)

    def without(shape: Shape) -> Shape:
        if shape.rules is None:
            return shape
        return structs.replace(shape, rules=replace(shape.rules, **{change.what: empty}))

    return _each_shape(s, without)


# ---- queues ----


def _cap(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    axis, before = axis_of(s.snapshot, change.what), s.queues.get(change.object)
    statement.undo_with(lambda: s.queues.put(before))
    s.queues.put(replace(before, cap=_with(before.cap or (), axis, change.to)))
    return s


def _storage(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    rates = {f"{change.what}_rate": change.to}
    if change.object not in {each.name for each in s.profile.storages}:
        raise KeyError(f"no storage {change.object!r} in profile {s.profile.name}")
    storages = tuple(
        replace(each, **rates) if each.name == change.object else each  # type: ignore[arg-type]
        for each in s.profile.storages
    )
    return replace(s, profile=replace(s.profile, storages=storages))


def _resume(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    before = s.queues.get(change.object)
    statement.undo_with(lambda: s.queues.put(before))
    s.queues.put(replace(before, paused=False))
    return s


# ---- nodes ----


def _info(s: Situation, node: str) -> NodeInfo:
    return s.snapshot.info(s.snapshot.index[node])


def _label(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    key, value = split_label(change.what)
    info = _info(s, change.object)
    s.snapshot.put_node(replace(info, labels={**info.labels, key: value}), statement)
    return s


def _ready(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    s.snapshot.put_node(replace(_info(s, change.object), ready=True), statement)
    return s


def _node(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    like = replace(_info(s, change.object), ready=True) if change.object else node_for(s.group, s.snapshot)
    for number in range(change.to):
        s.snapshot.put_node(replace(like, name=f"{like.name} again {number + 1}"), statement)
    return s


def _least(group: PodGroup) -> list[tuple[Shape, int]]:
    """The shapes of its pods, with how many of each must start: a gang's minimum, any other's first."""
    return [(role.shape, role.minimum if group.gang else 1) for role in group.roles]


def _is_apart(group: PodGroup) -> bool:
    """Whether its pods do not share a node."""
    ruled = [role.shape.rules for role in group.roles if role.shape.rules is not None]
    return any(role.shape.one_per_node for role in group.roles) or any(
        r.ports or r.anti_affinity for r in ruled
    )


def nodes_for(group: PodGroup) -> int:
    """On how many nodes of `node_for` it starts."""
    return sum(count for _, count in _least(group)) if _is_apart(group) else 1


def node_for(group: PodGroup, snapshot: Snapshot) -> NodeInfo:
    """A node on which the group's minimum fits (its largest pod, where it is one per node), and which it selects."""
    shapes = _least(group)
    ruled = [shape.rules for shape, _ in shapes if shape.rules is not None]
    apart = _is_apart(group)
    needs = [0] * len(snapshot.axes)
    for shape, count in shapes:
        for axis, need in enumerate(shape.requests[: len(needs)]):
            needs[axis] = max(needs[axis], need) if apart else needs[axis] + need * count
    for axis, need in enumerate((group.min_resources or ())[: len(needs)]):
        needs[axis] = max(needs[axis], need)
    extended = {name: need for name, need in zip(snapshot.axes, needs, strict=True) if name not in AXES}
    extended = {name: min(need, _MOST) for name, need in extended.items()}
    extended |= {mark: PLENTY for mark in (PODS, ALIGNED) if mark in extended}
    labels = {key: value for shape, _ in shapes for key, value in shape.selector}
    for term in (term for rules in ruled for term in rules.affinity):
        near = np.flatnonzero(snapshot.peers.selected((term,)))
        known_as = snapshot.labels[int(near[0])].get(term.topology_key) if len(near) else None
        labels |= {term.topology_key: known_as} if known_as is not None else {}
    if any(shape.requests[GPU : GPU + 1] and shape.requests[GPU] % WHOLE for shape, _ in shapes):
        pods = [(shape.requests[GPU], 1 if apart else count) for shape, count in shapes]
        needs[GPU] = max(needs[GPU], WHOLE * devices_for(pods))
    cpu, memory, disk, gpu, io = (min(need, _MOST) for need in needs[: len(AXES)])
    return NodeInfo(
        name="a node made for it",
        cpu_millicores=cpu,
        memory_bytes=memory,
        disk_bytes=disk,
        gpu_millis=gpu,
        extended=extended,
        labels=labels,
        rack="a rack of its own",
        disk_rate=io,
    )


def _free(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    """Free room on a node: the claims that came last give theirs first. Under a cap only room of the capped queue helps."""
    axis, node = axis_of(s.snapshot, change.what), s.snapshot.index[change.object]
    lack = change.to - free_on(s.snapshot, node, axis)
    holders = [c for c in holders_of(s) if c.node == node]
    for claim in sorted(holders, key=lambda c: (-c.since_ms, c.owner)):
        held = int(s.snapshot.ledger.amount_of(claim.owner)[axis])
        less = min(held, lack)
        if less > 0:
            amount = tuple(s.snapshot.ledger.amount_of(claim.owner).tolist())
            s.snapshot.claim(structs.replace(claim, amount=_with(amount, axis, held - less)), statement)
            lack -= less
    return s


def holders_of(s: Situation) -> list[Claim]:
    """The claims whose room the group could use: all, or where a cap or a quota keeps it from starting those under it."""
    held = [claim for claim in s.snapshot.claims.values() if claim.kind is not ClaimKind.STAGING]
    shares = Shares(s.queues, s.snapshot)
    least = minimum_of(s.group, len(s.snapshot.axes))
    capped = shares.capped_by(s.group.queue, least) if shares.limited(s.group.queue) else None
    if capped is None:
        if UserLimits(s.profile, s.snapshot).refusal(s.group) is None:
            over = s.group.in_quota and Quotas(s.snapshot).exceeded(least)
            return [claim for claim in held if claim.in_quota] if over else held
        return [claim for claim in held if (claim.queue, claim.user) == (s.group.queue, s.group.user)]
    return [claim for claim in held if any(queue.name == capped[0] for queue in shares.path(claim.queue))]


def free_on(snapshot: Snapshot, node: int, axis: int) -> int:
    """What a node has left of an axis."""
    return int(snapshot.allocatable[node, axis] - snapshot.used[node, axis])


# ---- data and time ----


def _input(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    dataset = s.catalogue.find(change.what)
    if dataset is None:
        raise KeyError(f"no dataset {change.what!r}")
    s.catalogue.bring_back(dataset, statement)
    return s


def _copy(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    dataset = s.catalogue.find(change.what)
    if dataset is None:
        raise KeyError(f"no dataset {change.what!r}")
    s.catalogue.add_replica(dataset, s.snapshot.index[change.object], statement)
    return s


def _wait(s: Situation, change: Suggestion, statement: Statement) -> Situation:
    """What is expected to have ended by then has ended; nothing else has started."""
    owners = sorted(s.snapshot.claims)
    slots = np.array([s.snapshot.ledger.slot_of(owner) for owner in owners], dtype=np.intp)
    ends = expected_ends(s.snapshot, slots, s.profile.default_runtime_ms, s.now)
    staging = s.snapshot.ledger.kind[slots] == ClaimKind.STAGING
    for at in np.flatnonzero((ends <= change.to) & ~staging).tolist():
        s.snapshot.unclaim(owners[at], statement)
    return replace(s, now=change.to)


_ALTER: Final[Mapping[Kind, Callable[[Situation, Suggestion, Statement], Situation]]] = {
    Kind.REQUEST: _request,
    Kind.MIN_MEMBER: _min_member,
    Kind.MIN_RESOURCES: _min_resources,
    Kind.RUNTIME: _runtime,
    Kind.PRIORITY: _priority,
    Kind.TOLERATION: _toleration,
    Kind.SELECTOR: _selector,
    Kind.RACK: _rack,
    Kind.ONE_PER_NODE: _one_per_node,
    Kind.RULE: _rule,
    Kind.CAP: _cap,
    Kind.RESUME: _resume,
    Kind.LABEL: _label,
    Kind.READY: _ready,
    Kind.NODE: _node,
    Kind.FREE: _free,
    Kind.STORAGE: _storage,
    Kind.INPUT: _input,
    Kind.COPY: _copy,
    Kind.WAIT: _wait,
}
