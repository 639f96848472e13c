"""Foreign groups in a round (`admission.Others`), and a plan's consequences for them: bindings, and reserved room for pods that are
still to come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec
from msgspec import structs

from flowsched.engine.foreign import preemption
from flowsched.engine.foreign.work import RESERVED_MS, ask_on_drained, bind, release_half_placed
from flowsched.engine.state import EngineState
from flowsched.engine.state.cluster import UNKNOWN_MS
from flowsched.engine.state.foreign import ClassKey, ForeignKey, ForeignWork
from flowsched.engine.transaction import Recorder
from flowsched.executor.foreign import ForeignGroup, Verdict
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Placement, Reason, ReasonCode
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.values import replace
from flowsched.workflow.resources import format_duration


class ForeignCandidate(msgspec.Struct, frozen=True):
    """A pod group of the backlog, and the classes of waiting pods its roles stand for."""

    key: str
    group: PodGroup
    classes: tuple[ClassKey, ...]


class ForeignBacklog(msgspec.Struct):
    """The foreign groups that are offered to a round, and why the others are not."""

    candidates: dict[int, ForeignCandidate]
    reasons: list[Reason]


def collect_foreign(state: EngineState, now: int) -> ForeignBacklog:
    """Every group with pods that wait, at most the profile's window (by priority, then age)."""
    backlog = ForeignBacklog({}, [])
    waiting = [(key, work) for key, work in state.foreign.groups.items() if work.waiting]
    if len(waiting) > state.policy.profile.window:
        waiting.sort(key=lambda item: (-_priority(item[1]), item[1].group.created_ms if item[1].group else 0))
        waiting = waiting[: state.policy.profile.window]
    for key, work in waiting:
        if key in state.foreign.holding:
            continue  # offered by itself, on the room that is reserved for it
        refusal = _problem(state, key, work)
        if refusal is not None:
            backlog.reasons.append(refusal)
            continue
        backlog.reasons.extend(_problems(state, key, work))
        for candidate in _candidates(state, key, work, now):
            backlog.candidates[candidate.group.key] = candidate
    return backlog


class ForeignPods:
    """Pods of other controllers, as one step's round sees them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._candidates: dict[int, ForeignCandidate] = {}

    def settle(self) -> list[Reason]:
        """Bring up to date which pods may be evicted, evict those that have waited too long, and serve reserved room."""
        preemption.settle(self._recorder)
        ask_on_drained(self._recorder)
        release_half_placed(self._recorder)
        return serve_reserved(self._recorder)

    def collect_groups(self) -> tuple[list[PodGroup], list[Reason]]:
        """The groups that wait for room, and why others wait for something else."""
        backlog = collect_foreign(self._recorder.state, self._recorder.now)
        self._candidates = backlog.candidates
        return [candidate.group for candidate in backlog.candidates.values()], backlog.reasons

    def carry_out(self, placement: Placement) -> None:
        """Bind the placed pods."""
        carry_out_foreign(self._recorder, self._candidates[placement.group], placement)

    def make_way(self, owners: Sequence[str], message: str) -> None:
        """Take pods away for a group that goes before them."""
        preemption.ask(self._recorder, owners, message)


def carry_out_foreign(recorder: Recorder, candidate: ForeignCandidate, placement: Placement) -> None:
    """Bind the pods that were placed, in the order in which they came; reserve the rest of the group's room."""
    pods = sum(len(nodes) for nodes in placement.nodes)
    steps = iter(placement.steps(pods, gang=candidate.group.gang))
    for kind, nodes in zip(candidate.classes, placement.nodes, strict=True):
        if len(nodes):
            bind(recorder, candidate.key, kind, nodes.tolist(), list(islice(steps, len(nodes))))
    if placement.held:
        _reserve(recorder, candidate.key, placement.held)


def serve_reserved(recorder: Recorder) -> list[Reason]:
    """Bind the pods of groups onto the room that is reserved for them, before the step looks at other groups.

    Reserved room that no pod has claimed in time is freed.
    """
    state = recorder.state
    reasons: list[Reason] = []
    for key in sorted(state.foreign.holding):
        work = state.foreign.groups[key]
        if work.reserved_until is not None and recorder.now >= work.reserved_until:
            _drop_reserved(recorder, key)
            recorder.dirty = True
            continue
        if work.reserved_until is not None:
            recorder.wake_at(work.reserved_until)
        if work.waiting:
            reasons.extend(_serve(recorder, key, work))
            recorder.dirty = True
    return reasons


def verdicts(state: EngineState) -> Iterator[Verdict]:
    """Why each foreign group that waits does.

    A step places so many pods and no more. Where the next follows at once, the groups that it comes to get no reason yet.
    """
    for key, work in state.foreign.groups.items():
        if not work.waiting:
            continue
        numbers = [state.work.keys.get(ForeignKey(key, part)) for part in (None, *work.waiting)]
        reasons = state.round.reasons
        found = [reasons[number] for number in numbers if number is not None and number in reasons]
        uids = tuple(uid for alike in work.waiting.values() for uid in alike)
        if found:
            first = found[0]
            if first.code is ReasonCode.BACKLOG_WINDOW and state.round.dirty:
                continue
            yield Verdict(key, uids, first.code.value, first.message, first.start_ms)


# ---------------------------------------------------------------------------------------------------- offers


def _priority(work: ForeignWork) -> int:
    return max((kind.priority for kind in work.waiting), default=0)


def _problem(state: EngineState, key: str, work: ForeignWork) -> Reason | None:
    """Why nothing of a group can be placed, whatever room there is."""
    number = state.work.key_of(ForeignKey(key, None))
    group = work.group
    if group is None:
        return Reason(number, ReasonCode.WAITING_FOR_MEMBERS, "its PodGroup does not exist (yet)")
    if group.problem:
        return Reason(number, ReasonCode.WAITING_FOR_MEMBERS, group.problem)
    if not group.gang:
        return None
    if work.lacking() == 0:
        return None
    odd = next((kind.template.problem for kind in work.waiting if kind.template.problem), None)
    if odd is not None:
        return Reason(number, ReasonCode.WAITING_FOR_MEMBERS, odd)
    waiting = sum(len(alike) for alike in work.waiting.values())
    there = waiting + len(work.staying) + len(work.done)
    if there < group.minimum:
        text = f"{there} of the {group.minimum} pods of its group exist"
        return Reason(number, ReasonCode.WAITING_FOR_MEMBERS, text, {"pods": there, "minimum": group.minimum})
    for role, least in _role_minimums(group).items():
        of_role = _of_role(work, role)
        if of_role < least:
            text = f"{of_role} of the {least} pods of its role {role!r} exist"
            return Reason(number, ReasonCode.WAITING_FOR_MEMBERS, text, {"pods": of_role, "minimum": least})
    return None


def _problems(state: EngineState, key: str, work: ForeignWork) -> Iterator[Reason]:
    """Pods that wait for something else than room; the others of their group go on without them."""
    for kind in work.waiting:
        if kind.template.problem:
            number = state.work.key_of(ForeignKey(key, kind))
            yield Reason(number, ReasonCode.WAITING_FOR_MEMBERS, kind.template.problem)


def _role_minimums(group: ForeignGroup) -> Mapping[str, int]:
    """Minimums by role. As Volcano reads them: they count only where the group's minimum is at least their sum."""
    least = group.role_minimums
    return least if group.minimum >= sum(least.values()) else {}


def _of_role(work: ForeignWork, role: str, *, waiting: bool = True) -> int:
    placed = sum(each.role == role for each in work.staying.values())
    done = sum(each == role for each in work.done.values())
    return placed + done + sum(len(a) for kind, a in work.waiting.items() if waiting and kind.role == role)


def _candidates(state: EngineState, key: str, work: ForeignWork, now: int) -> Iterator[ForeignCandidate]:
    """A gang that lacks members is one group; whatever is beyond its minimum, and plain pods, are bags."""
    group = work.group
    assert group is not None
    kinds = sorted(
        (kind for kind in work.waiting if not kind.template.problem),
        key=lambda kind: (-kind.first, next(iter(work.waiting[kind].values())).created_ms),
    )
    lacking = work.lacking()
    if not kinds:
        return
    if lacking == 0:
        for kind in kinds:
            alone = (_role(state, kind, len(work.waiting[kind]), 1, group),)
            bag = _pod_group(state, group, ForeignKey(key, kind), alone, now, gang=False)
            yield ForeignCandidate(key, structs.replace(bag, preempts=kind.preempts), (kind,))
        return
    least = _minimums(work, group, kinds, lacking)
    roles = tuple(_role(state, kind, len(work.waiting[kind]), least[kind], group) for kind in kinds)
    offered = _pod_group(state, group, ForeignKey(key, None), roles, now, gang=True)
    if not all(kind.preempts for kind in kinds if least[kind]):
        offered = structs.replace(offered, preempts=False)
    if group.min_resources is not None and not work.staying:
        offered = structs.replace(offered, min_resources=state.cluster.snapshot.vector(group.min_resources))
    yield ForeignCandidate(key, offered, tuple(kinds))


def _minimums(
    work: ForeignWork, group: ForeignGroup, kinds: list[ClassKey], lacking: int
) -> dict[ClassKey, int]:
    """How many pods of each class must start together: the minimum of each role, then the most important ones."""
    least = dict.fromkeys(kinds, 0)
    for role, minimum in _role_minimums(group).items():
        missing = max(0, minimum - _of_role(work, role, waiting=False))
        for kind in kinds:
            if kind.role == role:
                least[kind] = min(missing, len(work.waiting[kind]))
                missing -= least[kind]
    left = max(0, lacking - sum(least.values()))
    for kind in kinds:
        more = min(left, len(work.waiting[kind]) - least[kind])
        least[kind] += more
        left -= more
    return least


def _role(state: EngineState, kind: ClassKey, count: int, minimum: int, group: ForeignGroup) -> RoleRequest:
    return RoleRequest(kind.role or "pod", _shape(state, kind, group.rack), count, minimum)


def _shape(state: EngineState, kind: ClassKey, rack: str | None) -> Shape:
    """The shape of a class (kept: one for each template)."""
    template = kind.template
    known = state.foreign.shapes.get((template, rack))
    if known is not None and len(known.requests) == len(state.cluster.snapshot.axes):
        return known
    shape = Shape(
        requests=state.cluster.snapshot.vector(template.resources),
        selector=template.selector,
        tolerations=template.tolerations,
        image=template.image,
        rack=rack,
        rules=template.rules,
    )
    state.foreign.shapes[template, rack] = shape
    return shape


def _pod_group(
    state: EngineState,
    group: ForeignGroup,
    key: ForeignKey,
    roles: tuple[RoleRequest, ...],
    now: int,
    *,
    gang: bool,
) -> PodGroup:
    work = state.foreign.groups[group.key]
    return PodGroup(
        key=state.work.key_of(key),
        name=f"{group.namespace}/{group.name}",
        queue=group.queue,
        user=group.namespace,
        workflow=f"{group.namespace}/{group.name}",
        priority=_priority(work),
        rank_ms=0,
        ready_ms=group.created_ms,
        gang=gang and state.policy.profile.gang,
        roles=roles,
        promised_ms=state.round.reserved_starts.get(state.work.key_of(key)),
        shut=state.cluster.closing(now, now + UNKNOWN_MS),
        part_of=group.key if group.gang and work.staying else "",
    )


# -------------------------------------------------------------------------------------- room that is reserved


def _owner(key: str, node: int) -> str:
    return f"hold/{key}/{node}"


def _reserve(recorder: Recorder, key: str, rooms: tuple[tuple[int, tuple[int, ...]], ...]) -> None:
    """Reserve the rest of a group's `min_resources` for pods that do not exist yet."""
    state, statement = recorder.state, recorder.statement
    work = state.foreign.groups[key]
    queue = work.group.queue if work.group is not None else "default"
    user = work.group.namespace if work.group is not None else ""
    until = recorder.now + RESERVED_MS
    for node, amount in rooms:
        state.cluster.snapshot.claim(
            Claim(
                _owner(key, node),
                node,
                amount,
                ClaimKind.NOMINATED,
                queue,
                recorder.now,
                until,
                0,
                f"hold {key}",
                user=user,
            ),
            statement,
        )
    statement.assign(work, "reserved_until", until)
    statement.assign(work, "reserved_on", tuple(node for node, _ in rooms))
    statement.include(state.foreign.holding, key)


def _drop_reserved(recorder: Recorder, key: str) -> list[Claim]:
    state, statement, claims = recorder.state, recorder.statement, recorder.state.cluster.snapshot.claims
    owners = [_owner(key, node) for node in state.foreign.groups[key].reserved_on]
    reserved = [claims[owner] for owner in owners if owner in claims]
    for claim in reserved:
        state.cluster.snapshot.unclaim(claim.owner, statement)
    statement.exclude(state.foreign.holding, key)
    statement.assign(state.foreign.groups[key], "reserved_until", None)
    statement.assign(state.foreign.groups[key], "reserved_on", ())
    return reserved


def _serve(recorder: Recorder, key: str, work: ForeignWork) -> list[Reason]:
    """Place the pods of one group where room is reserved for it; reserve room for those still to come."""
    state = recorder.state
    until = work.reserved_until
    reserved = _drop_reserved(recorder, key)
    refusal = _problem(state, key, work)
    if refusal is not None:
        reasons = [refusal]
    else:
        candidates = {
            candidate.group.key: candidate for candidate in _candidates(state, key, work, recorder.now)
        }
        groups = [candidate.group for candidate in candidates.values()]
        gentle = replace(state.policy.profile, preempt=False, reclaim=False)  # it has room already
        plan = cycle(
            state.cluster.snapshot, state.cluster.catalogue, state.policy.queues, groups, gentle, recorder.now
        )
        for placement in plan.placements:
            carry_out_foreign(recorder, candidates[placement.group], placement)
        reasons = list(plan.reasons)
    rest = _rest(state, work, reserved)
    if rest and until is not None:
        _reserve(recorder, key, tuple(rest))
        recorder.statement.assign(work, "reserved_until", until)
    return reasons


def _rest(state: EngineState, work: ForeignWork, reserved: list[Claim]) -> list[tuple[int, tuple[int, ...]]]:
    """The room that stays reserved: no more than the group's minimum less its present room, and no more than before."""
    if work.group is None or work.group.min_resources is None:
        return []
    left = list(state.cluster.snapshot.vector(work.group.min_resources))
    used: dict[int, list[int]] = {}
    for uid, placed in work.placed.items():
        claim = state.cluster.snapshot.claims.get(uid)
        for axis, amount in enumerate(claim.amount if claim is not None else ()):
            left[axis] -= amount
            used.setdefault(placed.node, [0] * len(left))[axis] += amount
    rest = []
    for claim in reserved:
        free = state.cluster.snapshot.allocatable[claim.node] - state.cluster.snapshot.used[claim.node]
        amounts = [
            max(0, min(amount, more, room))
            for amount, more, room in zip(claim.amount, left, free.tolist(), strict=False)
        ]
        if any(amounts):
            rest.append((claim.node, tuple(amounts)))
            left = [more - amount for more, amount in zip(left, (*amounts, *[0] * len(left)), strict=False)]
    return rest


def waited(reason: Reason, now: int) -> str:
    """A reason as text of a pod's condition."""
    if reason.start_ms is None:
        return reason.message
    return f"{reason.message}; expected to start in {format_duration(max(0, reason.start_ms - now))}"
