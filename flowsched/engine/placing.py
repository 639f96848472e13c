"""Placing: one scheduling cycle over the backlog, and what it means for tasks, claims and pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowsched.engine import evicting, making_way, pace, taking
from flowsched.engine.backlog import Backlog, Candidate, collect
from flowsched.engine.binding import Binds
from flowsched.engine.changes import Recorder
from flowsched.engine.draining import empty_nodes
from flowsched.engine.foreign import release_half_placed
from flowsched.engine.foreign_offers import carry_out_foreign, collect_foreign, serve_held
from flowsched.engine.pushing import foresee
from flowsched.engine.reports import make_again
from flowsched.engine.spacing import Spacing
from flowsched.engine.staging import Targets, sweep
from flowsched.engine.state import EngineState, GroupKey
from flowsched.scheduling.conservative import with_plans
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Placement, Plan, Reason, ReasonCode
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.record import Draft, recorded, taped
from flowsched.scheduling.snapshot import ClaimKind
from flowsched.scheduling.usage import Payer
from flowsched.workflow.spec import On

#: A group that has been staged to this many nodes waits for one of them, rather than drag its inputs to yet another.
_MAX_TARGETS = 3
_RUNNING: Final = ClaimKind.RUNNING
Indices = NDArray[np.int64]


def place(recorder: Recorder) -> None:
    """Offer the backlog to the scheduler and carry out its plan, if it is time to look at it."""
    recorder.dirty |= recorder.absorb()
    sweep(recorder)
    recorder.dirty |= recorder.absorb()
    state = recorder.state
    evicting.begin_look(recorder)
    _give_up_waiting(recorder)
    empty_nodes(recorder)
    making_way.settle(recorder)
    taking.keep_room(recorder)
    release_half_placed(recorder)
    held_back = serve_held(recorder)
    if not pace.is_due(recorder):
        if held_back:
            _keep_reasons(recorder, held_back)
        return
    if state.ready and (state.crowded or pace.is_full(state)):
        recorder.statement.assign(state, "crowded", True)
        if not pace.reserved_for_ours(state):
            _place_foreign(recorder, held_back)
        return
    recorder.dirty = False
    foreign = collect_foreign(state)
    told = (*held_back, *foreign.reasons)
    backlog = _collected(recorder)
    groups = [candidate.group for candidate in backlog.candidates.values()]
    groups += [candidate.group for candidate in foreign.candidates.values()]
    taking.drop_unwanted(recorder, {group.key for group in groups})
    if not groups:
        if state.reasons or state.reservations or told:
            _carried_out(recorder, Plan(reasons=told))  # who waited does not wait any more
        pace.looked(recorder, 0, backlog.wake_ms)
        return
    plan = _plan(recorder, groups)
    evicting.note_planned(recorder, plan, backlog.candidates)
    foresee(recorder, plan, {group.key: group for group in groups} if plan.ahead else {})
    placed = 0
    refused: list[Reason | None] = []
    binds = Binds(recorder)
    targets, spacing = Targets(recorder, binds.note), Spacing(recorder, groups)
    _serve(recorder, plan, {group.key: group for group in groups})
    taking.placed(recorder, plan, groups)
    for placement in plan.placements:
        placed += sum(len(nodes) for nodes in placement.nodes)
        if placement.group in foreign.candidates:
            binds.take()  # claims keep the order in which they were decided
            carry_out_foreign(recorder, foreign.candidates[placement.group], placement)
        else:
            candidate = backlog.candidates[placement.group]
            refused.append(_carry_out(recorder, candidate, placement, binds, targets, spacing))
    targets.move()
    binds.move()
    reasons = (*plan.reasons, *(reason for reason in refused if reason), *told)
    plan = replace(plan, reasons=reasons, look_at=_sooner(plan.look_at, spacing.next_ms))
    if state.look is not None:
        plan = evicting.end_look(recorder, plan, {group.key: group for group in groups})
    _carried_out(recorder, plan, groups)
    pace.looked(recorder, len(groups), _sooner(backlog.wake_ms, plan.look_at), full=placed >= pace.STEP)
    recorder.absorb()


def _place_foreign(recorder: Recorder, held_back: Sequence[Reason]) -> None:
    """Enough of ours is under way: only others' pods are looked at, and what was said of ours stays."""
    state = recorder.state
    recorder.dirty = False
    foreign = collect_foreign(state)
    groups = [candidate.group for candidate in foreign.candidates.values()]
    plan = _plan(recorder, groups) if groups else Plan()
    _serve(recorder, plan, {group.key: group for group in groups})
    taking.placed(recorder, plan, groups)
    for placement in plan.placements:
        carry_out_foreign(recorder, foreign.candidates[placement.group], placement)
    placed = sum(len(nodes) for placement in plan.placements for nodes in placement.nodes)
    theirs = (*plan.reasons, *foreign.reasons, *held_back)
    ours = [each for each in state.reasons.values() if isinstance(state.groups.get(each.group), GroupKey)]
    _carried_out(recorder, replace(plan, reasons=(*ours, *theirs)), [*state.refused.values(), *groups])
    later = state.look_at if state.look_at is not None and state.look_at > recorder.now else None
    pace.looked(recorder, len(groups), later, full=placed >= pace.STEP)


def _plan(recorder: Recorder, groups: list[PodGroup]) -> Plan:
    state = recorder.state
    if state.profile.backfill == "conservative":
        groups = with_plans(groups, state.reservations)
    given = (state.snapshot, state.catalogue, state.queues, groups, state.profile, recorder.now, pace.STEP)
    plan = cycle(*given)
    if state.tape is not None:  # somebody asks for a snapshot
        taped(state.tape, plan, given)
    return plan


def recorded_idle(state: EngineState, now: int) -> Draft:
    """A cycle with nothing to look at: the cluster as it is."""
    given = (state.snapshot, state.catalogue, state.queues, (), state.profile, now, pace.STEP)
    return recorded(cycle(*given), *given)


def _serve(recorder: Recorder, plan: Plan, groups: Mapping[int, PodGroup]) -> None:
    """Note which queues and users were given something: they have not waited in vain."""
    usage, put = recorder.state.snapshot.usage, recorder.statement.put
    served = {Payer(groups[each.group].queue, groups[each.group].user) for each in plan.placements}
    for payer in sorted(served):
        put(usage.served_users, payer, recorder.now)
        for queue in recorder.state.queues.path(payer.queue):
            put(usage.served_queues, queue.name, recorder.now)


def _collected(recorder: Recorder) -> Backlog:
    """What of ours waits. What can never run has failed then, and what lost its inputs has them made again."""
    state = recorder.state
    backlog = collect(state, recorder.now)
    if backlog.unrunnable or backlog.lost:
        for lost in backlog.unrunnable:
            recorder.advance(lost.run).fail_waiting(lost.stage, lost.tasks, "InputMissing", lost.message)
        for run, uri in backlog.lost:
            make_again(recorder, run, uri)
        recorder.absorb()
        # Others of these stages may have been cancelled, or wait again.
        backlog = collect(state, recorder.now)
    return backlog


def _keep_reasons(recorder: Recorder, more: Sequence[Reason]) -> None:
    """Nobody has looked at the others: why they wait is as it was."""
    reasons = {**recorder.state.reasons, **{reason.group: reason for reason in more}}
    recorder.statement.assign(recorder.state, "reasons", reasons)


def _carried_out(recorder: Recorder, plan: Plan, groups: Sequence[PodGroup] = ()) -> None:
    """Keep what the plan says about who was not placed, and what they asked for."""
    state, statement = recorder.state, recorder.statement
    taking.carry_out(recorder, plan)
    offered = {group.key: group for group in groups}
    refused = {each.group: offered[each.group] for each in plan.reasons if each.group in offered}
    for placed in plan.placements:
        if placed.group in refused:
            refused[placed.group] = _rest(refused[placed.group], placed)
    statement.assign(state, "refused", refused)
    statement.assign(state, "reasons", {reason.group: reason for reason in plan.reasons})
    pace.keep_quiet(recorder, plan)
    statement.assign(state, "reservations", plan.reservations)
    statement.assign(state, "promises", _promises(state.promises, plan))


def _sooner(one: int | None, other: int | None) -> int | None:
    """The earlier of two moments, where there are any."""
    return min((each for each in (one, other) if each is not None), default=None)


def _rest(group: PodGroup, placed: Placement) -> PodGroup:
    """What of a bag was not placed."""
    if group.gang:
        return group
    role = group.roles[0]
    return replace(group, roles=(replace(role, count=max(1, role.count - len(placed.nodes[0]))),))


def _promises(before: Mapping[int, int], plan: Plan) -> dict[int, int]:
    """The first start that was promised to each group that still waits."""
    waiting = {reason.group for reason in plan.reasons}
    kept = {group: start for group, start in before.items() if group in waiting}
    for reservation in plan.reservations:
        kept.setdefault(reservation.group, reservation.start_ms)
    return kept


def _give_up_waiting(recorder: Recorder) -> None:
    """Policies on `task_pending`: what has waited too long, and when the next will have."""
    state = recorder.state
    staging = {(group.workflow, group.stage) for group in state.staging.values()}
    staging = {pair for pair in staging if _may_give_up(state, *pair)}
    for workflow, number in sorted(state.impatient | staging):
        run = state.runs[workflow]
        stage = run.stages[number]
        if stage.spec.gang and stage.uniform is None:
            half = recorder.advance(run).half_gangs(stage)
            if half is not None:
                recorder.wake_at(half)
        if any(policy.event is On.TASK_PENDING for policy in stage.spec.policies):
            moment = recorder.advance(run).overdue(stage)
            if moment is not None:
                recorder.wake_at(moment)
    if recorder.absorb():
        recorder.dirty = True


def _may_give_up(state: EngineState, workflow: str, number: int) -> bool:
    spec = state.runs[workflow].stages[number].spec
    return spec.gang or bool(spec.policies)


def _carry_out(
    recorder: Recorder,
    candidate: Candidate,
    placement: Placement,
    binds: Binds,
    targets: Targets,
    spacing: Spacing,
) -> Reason | None:
    """Bind what has its bytes at hand, give targets to the rest. A gang does either as a whole.

    Returns:
        Why something of it must wait all the same.
    """
    reason = None
    tasks = _joined(
        [role[: len(nodes)] for role, nodes in zip(candidate.tasks, placement.nodes, strict=True)]
    )
    nodes, missing = _joined(placement.nodes), _joined(placement.missing_bytes)
    planned = np.concatenate(placement.devices) if placement.devices else None
    if recorder.state.look is not None and not recorder.state.mounted:
        fits = evicting.make_room(recorder, candidate, tasks, nodes)
        if not fits.all():
            reason = evicting.full(recorder, candidate)
            tasks, nodes, planned = tasks[fits], nodes[fits], None if planned is None else planned[fits]
        if len(tasks) == 0:
            return reason
        missing = _really_missing(recorder, candidate, nodes)  # others may have driven out what was there
    elif not recorder.state.profile.of(candidate.group.queue).locality:
        missing = _really_missing(recorder, candidate, nodes)
    now = None if missing.any() else spacing.fits(candidate, nodes)
    if now is not None and not now.all():
        reason = spacing.reason(candidate)
        tasks, nodes, missing = tasks[now], nodes[now], missing[now]
        planned = None if planned is None else planned[now]
        if len(tasks) == 0:
            return reason
    if not (missing.any() if len(missing) > 1 else missing[0]):
        devices = binds.devices_of(candidate, tasks, nodes, planned)
        if devices is None or len(devices) == len(tasks):
            binds.bind(candidate, tasks, nodes, devices)
            return reason
    here = missing == 0
    if candidate.group.gang and not here.all():
        here = np.zeros(len(here), dtype=np.bool_)
    away = ~here
    if here.any():
        some = None if planned is None else planned[here]
        devices = binds.devices_of(candidate, tasks[here], nodes[here], some)
        seated = here
        if devices is not None and len(devices) < np.count_nonzero(here):
            seated = here & np.isin(tasks, list(devices))
            reason = Reason(
                placement.group, ReasonCode.INSUFFICIENT, "GPUs are free in pieces only, no one has room"
            )
        if seated.any() and (not candidate.group.gang or seated.all()):
            binds.bind(candidate, tasks[seated], nodes[seated], devices)
    if away.any() and _may_move(recorder, candidate, nodes[away]):
        targets.begin(candidate, tasks[away], nodes[away])
    elif away.any():
        message = "its inputs have been copied to several nodes; it waits for room on one of them"
        reason = Reason(placement.group, ReasonCode.WAITING_FOR_LOCALITY, message)
    return reason


def _joined(parts: Sequence[Indices]) -> Indices:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _really_missing(recorder: Recorder, candidate: Candidate, nodes: Indices) -> Indices:
    """(K,) bytes missing per pod: a policy without locality does not look, but the bytes must come all the same, unless pods
    read everything where it lies.
    """
    if recorder.state.mounted:
        return np.zeros(len(nodes), dtype=np.int64)
    catalogue = recorder.state.catalogue
    return catalogue.missing_bytes(candidate.group.inputs, len(recorder.state.snapshot))[nodes]


def _may_move(recorder: Recorder, candidate: Candidate, nodes: Indices) -> bool:
    """Whether its inputs may be copied to these nodes. Once several have them it waits for room on one of those, but only if they
    have none: where there is some, the cycle knows it, and going elsewhere pays.
    """
    snapshot = recorder.state.snapshot
    seen = [node for node in candidate.group.staged_on if snapshot.ready[node]]
    if recorder.state.look is not None and seen:  # a full cache may have lost its data since
        there = _really_missing(recorder, candidate, np.array(seen)) == 0
        seen = [node for node, all_there in zip(seen, there.tolist(), strict=True) if all_there]
    if len(seen) < _MAX_TARGETS or set(nodes.tolist()) <= set(seen):
        return True
    asked = np.array(candidate.group.roles[0].shape.requests)
    free = snapshot.allocatable[seen] - snapshot.used[seen]
    return bool((free >= asked)[:, asked > 0].all(axis=1).any())
