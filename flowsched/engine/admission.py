"""Admission: one scheduling cycle over the backlog, carried out: claims, launch orders, targets, and which pods start later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.engine import evictions, pacing
from flowsched.engine.backlog import Backlog, collect
from flowsched.engine.choices import NO_COSTS, choice_rows
from flowsched.engine.data import cache_evictions
from flowsched.engine.data.cache_evictions import reserve_room
from flowsched.engine.data.inputs import read_bytes
from flowsched.engine.data.prefetch import foresee
from flowsched.engine.data.remote_reads import begin_reading, sources
from flowsched.engine.data.staging import Targets, chosen_before_staging, sweep
from flowsched.engine.delta import GangOrderWrite
from flowsched.engine.pipelining import send_ahead, slot_of, take_back
from flowsched.engine.pod_orders import (
    ROSTER,
    Likeness,
    Likenesses,
    encode_member,
    encode_pod,
    encode_roster,
    encode_shared,
    likeness,
    make_pod,
    seats,
)
from flowsched.engine.predictor import is_proven
from flowsched.engine.recovery import elastic_of
from flowsched.engine.reports import make_again
from flowsched.engine.state import EngineState
from flowsched.engine.state.round import Answers
from flowsched.engine.state.work import Candidate, GangSeats, GroupKey, PodRef, pod_name
from flowsched.engine.transaction import Recorder
from flowsched.executor.protocol import GangSeat, Pod, Roster
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.cycle_state import Kept
from flowsched.scheduling.explain.recording import Draft, recorded, taped
from flowsched.scheduling.plan import Placement, Plan, Reason, ReasonCode, Reasons
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.gpus import GPU, Parts, choose, parts_of
from flowsched.scheduling.state.snapshot import IO
from flowsched.scheduling.state.usage import Payer
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.spec import On

#: Members in these states were not placed with their gang.
_SEATLESS: Final = (
    TaskState.PENDING,
    TaskState.QUEUED,
    TaskState.STAGING,
    TaskState.SKIPPED,
    TaskState.CANCELLED,
)
_RUNNING: Final = ClaimKind.RUNNING
#: Tasks of unproven runtime are spaced if a node is full of them after such a part of it: no more is lost if it is right.
_INSURED: Final = 8
_NO_SEATS: Final[Mapping[int, GangSeat]] = {}
Indices = NDArray[np.int64]


class Binds:
    """The bindings of one scheduling round."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._likenesses: Likenesses = {}
        #: By likeness and roster (their ids) and whether it delivers: the key of the part that such members of a gang share.
        self._shared: dict[tuple[int, int, bool], str] = {}
        self._rosters: dict[tuple[str, int, int], Roster] = {}  #: that have become rows, by gang
        #: By stage: its tasks, their nodes, and the bytes they read.
        self._stages: dict[int, tuple[Candidate, list[int], list[int], list[int]]] = {}
        self._claims: list[Claim] = []
        self._pods: dict[str, PodRef] = {}

    def bind(
        self,
        candidate: Candidate,
        tasks: Indices,
        nodes: Indices,
        devices: Mapping[int, Parts] | None,
        placement: Placement,
        *,
        ahead: bool = False,
    ) -> None:
        """Pods of one group take their room, or are sent ahead.

        Args:
            candidate: The group.
            tasks, nodes: (k,) its tasks, and where they go.
            devices: The GPUs of each task; None = they ask for none.
            placement: Of the plan: why these nodes, and how far waiting has promoted the group.
            ahead: They are sent ahead.
        """
        recorder = self._recorder
        state, now = recorder.state, recorder.now
        run, stage, group = candidate.run, candidate.stage, candidate.group
        gang, limited = stage.spec.gang, recorder.evictable is not None
        self._note(candidate, tasks, nodes)
        places, numbers = _NO_SEATS, {0}
        if gang:
            places = seats(state, candidate, _gang_seats(recorder, candidate, tasks), tasks)
            numbers = set(stage.role_of[tasks % stage.members].tolist())
            if group.extra:
                recorder.statement.set(stage.goal, tasks, int(TaskState.RUNNING))
        alike = {number: likeness(state, candidate, number, self._likenesses) for number in numbers}
        unit = f"{run.id}/{stage.spec.name}/"
        part_of = stage.members if gang else 1  # a gang is taken away as a whole (`recovery.standing`)
        task_numbers, node_numbers = tasks.tolist(), nodes.tolist()
        steps = placement.steps(len(tasks), gang=group.gang)
        rows = choice_rows(placement.choices, state.cluster.snapshot.names, staged=False)
        for task, node, promoted in zip(task_numbers, node_numbers, steps, strict=True):
            number = int(stage.role_of[task % stage.members]) if gang else 0
            gpus: Parts = () if devices is None else devices[task]
            devices_of = tuple([device for device, _ in gpus]) if gpus else ()
            key, after, slot = "", 0, slot_of(state, candidate, node)
            if slot is not None:
                pipeline = state.cluster.join(
                    pod_name(run.id, stage.spec.name, task, stage.attempt.item(task)),
                    slot,
                    state.policy.epoch,
                    recorder.statement,
                )
                key, after = pipeline.key, ahead * (pipeline.ended + len(pipeline.waiting) + 1)
            pod = make_pod(
                state,
                candidate,
                alike[number],
                task,
                node,
                places.get(task),
                devices_of,
                sources(state, group, node),
                promoted,
                key,
                after,
            )
            unit_of = f"{unit}{task // part_of}"
            claim = _claim(candidate, pod, node, alike[number], gpus, unit_of, now)
            if ahead and slot is not None:
                state.cluster.send_ahead(claim, slot, recorder.statement)
            else:
                self._claims.append(claim)
            self._pods[pod.name] = ref = PodRef(run.id, stage.number, task, pod.attempt, pod.remote)
            if pod.remote:
                begin_reading(state, stage, ref, recorder.statement)
            if limited:
                reserve_room(recorder, candidate, task, node, bound=True)
            why = rows[candidate.at(number)].get(node, NO_COSTS) if rows else NO_COSTS
            why = chosen_before_staging(recorder, run, stage, task, node) or why
            encoded = self._encoded_member(candidate, pod, alike[number]) if gang else encode_pod(pod)
            recorder.intend(run, stage, pod, encoded, why)
        if gang or limited or devices is not None:
            self.book_claims()
        names = state.cluster.snapshot.names
        where = [names[node_numbers[0]]] if len(node_numbers) == 1 else [names[n] for n in {*node_numbers}]
        event = {
            "group": group.name,
            "first": int(min(task_numbers)),
            "tasks": len(task_numbers),
            "nodes": sorted(where),
        }
        recorder.advance(run).changes.events.append(("gang.placed" if group.gang else "tasks.placed", event))

    def devices_of(
        self, candidate: Candidate, tasks: Indices, nodes: Indices, planned: Indices | None
    ) -> dict[int, Parts] | None:
        """The GPUs of each task that can have them; None where none asks for any.

        `planned`: (K, D) those the plan names; None = all are whole ones, any will do.
        """
        if not any(role.shape.requests[GPU] > 0 for role in candidate.group.roles):
            return None
        self.book_claims()
        found: dict[int, Parts] = {}
        free: dict[int, list[int]] = {}
        for at, (task, node) in enumerate(zip(tasks.tolist(), nodes.tolist(), strict=True)):
            left = free.setdefault(node, self._recorder.state.cluster.snapshot.devices.free_on(node))
            number = int(candidate.stage.role_of[task % candidate.stage.members])
            role = candidate.group.roles[candidate.at(number)]
            chosen: Parts | None
            if planned is None:
                chosen = choose(left, role.shape.requests[GPU])
            else:
                chosen = parts_of(planned[at].tolist())
            if chosen is None or any(at >= len(left) or left[at] < part for at, part in chosen):
                continue
            found[task] = chosen
            for device, part in chosen:
                left[device] -= part
        return found

    def _encoded_member(self, candidate: Candidate, pod: Pod, alike: Likeness) -> bytes:
        """The launch order of a gang's member as its own row. The part that members share becomes a row once a round."""
        assert pod.gang is not None
        delivers = pod.container is not None and pod.container.delivers
        key = id(alike), id(pod.gang.roster), delivers
        shared = self._shared.get(key)
        if shared is None:
            gang, rows = (
                (candidate.run.id, candidate.stage.number, pod.shard),
                self._recorder.delta.gang_orders,
            )
            shared, text = encode_shared(pod)
            self._shared[key] = shared
            rows.append(GangOrderWrite(*gang, shared, text))
            if self._rosters.get(gang) is not pod.gang.roster:
                self._rosters[gang] = pod.gang.roster
                rows.append(GangOrderWrite(*gang, ROSTER, encode_roster(pod.gang.roster)))
        return encode_member(pod, shared)

    def note(self, claim: Claim) -> None:
        """A claim that is made with the others, in its turn."""
        self._claims.append(claim)

    def book_claims(self) -> None:
        """Book all noted claims in one call, before this step reads the snapshot again."""
        state, statement = self._recorder.state, self._recorder.statement
        if self._claims:
            state.cluster.snapshot.claim_all(self._claims, statement)
            self._claims = []
        if self._pods:
            statement.put_all(state.work.pods, self._pods)
            statement.include_all(state.round.under_way, self._pods)
            self._pods = {}

    def move(self) -> None:
        """Make the claims, and move the tasks that have been noted."""
        self.book_claims()
        for candidate, *noted in self._stages.values():
            self._move(candidate, *(np.array(parts) for parts in noted))
        self._stages.clear()

    def _note(self, candidate: Candidate, tasks: Indices, nodes: Indices) -> None:
        """Note tasks and their nodes. A gang moves now, since states show its seats."""
        stage = candidate.stage
        total = read_bytes(
            self._recorder.state.cluster.catalogue, candidate.run, stage, candidate.group.reads
        )
        if stage.spec.gang:
            self._move(candidate, tasks, nodes, np.full(len(tasks), total))
            return
        noted = self._stages.get(id(stage))
        if noted is None:
            noted = self._stages[id(stage)] = candidate, [], [], []
        _, all_tasks, all_nodes, totals = noted
        all_tasks += tasks.tolist()
        all_nodes += nodes.tolist()
        totals += [total] * len(tasks)

    def _move(self, candidate: Candidate, tasks: Indices, nodes: Indices, totals: Indices) -> None:
        stage = candidate.stage
        self._recorder.advance(candidate.run).intend_launch(stage, tasks, nodes)
        local = np.maximum(0, totals - stage.moved[tasks])
        if not stage.holds_only("local", local):
            self._recorder.statement.set(stage.own("local"), tasks, local)


def _claim(
    candidate: Candidate, pod: Pod, node: int, alike: Likeness, gpus: Parts, unit: str, now: int
) -> Claim:
    """The room that a pod takes. `alike`: of its role; `unit`: the pods that are evicted together with it."""
    group, stage = candidate.group, candidate.stage
    at = candidate.at(alike.number)
    shape = group.roles[at].shape
    return Claim(
        owner=pod.name,
        node=node,
        amount=shape.requests,
        kind=_RUNNING,
        queue=group.queue,
        user=group.user,
        since_ms=now,
        until_ms=None if group.runtime_ms is None else now + group.runtime_ms,
        io_bytes=shape.io_bytes,
        direct=shape.direct,
        learned=None if not candidate.demands else _learned(candidate, at),
        group=group.name,
        late_ms=None if group.high_ms is None else now + group.high_ms,
        unit=unit,
        priority=candidate.run.spec.priority + sum(pod.promoted[-1:]),
        qos=alike.qos,
        devices=gpus,
        elastic=elastic_of(stage, pod.index) if stage.spec.gang else None,
        starting=True,
        promoted=pod.promoted,
        in_quota=True,
    )


def _learned(candidate: Candidate, number: int) -> tuple[str, str, int] | None:
    """The stage from which the demand of a role's pods was learned, and the counted per mille; None = it was not learned."""
    demand = candidate.demands[number]
    if demand is None or not demand.learned:
        return None
    return *candidate.run.spec.kind_of(candidate.stage.spec), demand.learned


def _gang_seats(recorder: Recorder, candidate: Candidate, tasks: Indices) -> GangSeats:
    """The ranks and addresses of a gang in which these members start: they are kept while it goes on, for members that join later.

    Ranks follow the document at first. Under pod-by-pod placement all members have theirs before they are placed.
    """
    state, stage = recorder.state, candidate.stage
    shard = int(tasks[0]) // stage.members
    key = (candidate.run.id, stage.number, shard)
    known = state.work.gang_seats.get(key)
    members = stage.indices_of(shard)
    placed = members[~np.isin(stage.task_state[members], _SEATLESS)]
    begun = len(placed) == len(tasks)
    if known is None or (candidate.group.gang and begun):
        there = placed if state.policy.profile.gang else members
        if len(placed) < stage.members:  # others may join it: they are a group of their own from now on
            recorder.dirty = True
            recorder.wake_at(recorder.now)
        known = GangSeats(state.work.next_address, ())
        recorder.statement.assign(state.work, "next_address", known.first + stage.members)
    else:
        there = tasks
    numbers = sorted((there % stage.members).tolist())
    joined = known._replace(
        members=(*known.members, *(each for each in numbers if each not in known.members))
    )
    recorder.statement.put(state.work.gang_seats, key, joined)
    return joined


# ---- I/O staggering: starts spaced out where a node's disk is the bottleneck ----
#
# Tasks that start together compute together and then write together: the disk idles first, and then serves all of them at a
# fraction of its rate. If the bytes of the tasks that fit on a node take the disk longer than one of them runs, the disk
# decides when the last one ends. Such tasks start one at a time, the next when the disk could have done the bytes of the one
# before. The last ends no later, and the disk has no pauses after the first has computed. A task waits for this no longer than
# another one's bytes take, and only while no other task waits that could use the cores.
#
# A runtime that no task has shown to be true may be wrong by a factor of 100. Until then tasks also start so if they are more than
# find room at once: whatever they compute, those that start together write together.


class Spacing:
    """Which of the pods that were placed in one round start now.

    Attributes:
        next_ms: When the first of those that wait may start; None = none waits.
    """

    def __init__(
        self, recorder: Recorder, offered: Iterable[PodGroup], candidates: Mapping[int, Candidate]
    ) -> None:
        """`offered`: all groups of the round; `candidates`: flowsched's own ones, by key."""
        self._recorder, self._offered, self._candidates = recorder, offered, candidates
        self._all_wait: bool | None = None
        #: by the shape's id, its pods' runtime, and how many of them there are if that was never seen
        self._bound: dict[tuple[int, int, int], tuple[Shape, NDArray[np.bool_], Indices]] = {}
        self.next_ms: int | None = None

    def fits(self, candidate: Candidate, nodes: Indices) -> NDArray[np.bool_] | None:
        """(K,) which of a bag's pods may start on these nodes now; None = all of them."""
        group = candidate.group
        shape = group.roles[0].shape
        if not shape.io_bytes or shape.direct or group.gang or not group.runtime_ms:
            return None
        bound, io_ms = self._disk_bound(group)
        if not bound[nodes].any() or not self._all_wait_for_disks():
            return None
        state, statement, now = self._recorder.state, self._recorder.statement, self._recorder.now
        fits = np.ones(len(nodes), dtype=np.bool_)
        for at, node in enumerate(nodes.tolist()):
            if not bound[node]:
                continue
            free, by = state.round.disk_free_at.get(node, (0, ()))
            if free > now and not self._read_together(group, by):
                fits[at] = False
                self.next_ms = free if self.next_ms is None else min(self.next_ms, free)
            else:
                statement.put(state.round.disk_free_at, node, (now + int(io_ms[node]), group.inputs))
        return fits

    def _read_together(self, group: PodGroup, others: tuple[int, ...]) -> bool:
        """Whether most bytes that a group takes from the disk are read by others just now: a node's memory serves all of them."""
        sizes, moved = self._recorder.state.cluster.catalogue.sizes, group.roles[0].shape.io_bytes
        common = sum(sizes[each] for each in set(group.inputs).intersection(others))
        return moved < common * 2 <= moved * 9 // 4

    def reason(self, candidate: Candidate) -> Reason:
        """Why the others wait."""
        assert self.next_ms is not None
        wait = self.next_ms - self._recorder.now
        text = f"the disk is what tasks like it wait for: one starts at a time, the next in {(wait + 999) // 1000} s"
        return Reason(candidate.group.key, ReasonCode.IO_BUDGET, text, {"wait_ms": wait}, self.next_ms)

    def _disk_bound(self, group: PodGroup) -> tuple[NDArray[np.bool_], Indices]:
        """(N,) where pods like those of a group wait for their disk, and the ms that the bytes of one take there."""
        shape, runtime_ms, unseen = group.roles[0].shape, group.runtime_ms or 0, self._unseen(group)
        known = self._bound.get((id(shape), runtime_ms, unseen))
        if known is None:
            snapshot = self._recorder.state.cluster.snapshot
            disk = snapshot.disk_rate
            io_ms = np.where(disk > 0, min(shape.io_bytes, 1 << 53) * 1000 // np.maximum(disk, 1), 0)
            full = np.full(len(snapshot), 1 << 20, dtype=np.int64)
            for axis, need in enumerate(shape.requests):
                if need > 0 and axis != IO:
                    np.minimum(full, snapshot.allocatable[:, axis] // need, out=full)
            bound = full * io_ms * 9 // 8 > runtime_ms
            if unseen > int(full.sum()):
                bound |= (io_ms > 0) & (io_ms <= runtime_ms // (_INSURED * np.maximum(full, 1)))
            known = self._bound[id(shape), runtime_ms, unseen] = shape, bound, io_ms
        return known[1:]

    def _unseen(self, group: PodGroup) -> int:
        """How many tasks a group's stage has, if none of their kind has ended; else 0."""
        candidate = self._candidates.get(group.key)
        if candidate is None:
            return 0
        run, stage = candidate.run, candidate.stage
        return 0 if is_proven(self._recorder.state, run, stage) else stage.spec.tasks

    def _all_wait_for_disks(self) -> bool:
        """Whether all offered groups would wait for disks; those of which nothing is known do not count.

        One whose runtime was never seen does if it moves as much as another that does.
        """
        if self._all_wait is None:
            others, least = [], 1 << 62
            for group in self._offered:
                moved = group.roles[0].shape.io_bytes
                if not group.runtime_ms:
                    continue
                if moved and self._disk_bound(group)[0].any():
                    least = min(least, moved)
                else:
                    others.append((moved, self._unseen(group)))
            self._all_wait = all(moved >= least and unseen for moved, unseen in others)
        return self._all_wait


# ---- a round ----


#: A group that has been staged to this many nodes waits for one of them, rather than drag its inputs to yet another.
_MAX_TARGETS = 3


class Others(Protocol):
    """Pods that flowsched did not make: a source of groups for a round, and a sink of its orders about them."""

    def settle(self) -> list[Reason]:
        """Apply the consequences of their events and of time alone. Returns why groups with reserved room wait."""
        ...

    def collect_groups(self) -> tuple[list[PodGroup], list[Reason]]:
        """The groups that wait for room, and why others wait for something else."""
        ...

    def carry_out(self, placement: Placement) -> None:
        """Bind the placed pods."""
        ...

    def make_way(self, owners: Sequence[str], message: str) -> None:
        """Take pods away for a group that goes before them."""
        ...


def place(recorder: Recorder, others: Others) -> None:
    """Offer waiting groups to the scheduler and carry out its plan, if a round is due."""
    state = recorder.state
    # 1. Changes that events and time alone have caused.
    _bring_up_to_date(recorder)
    foreign_reasons = others.settle()
    # 2. Whether a round is due: of others alone while enough of our own pods are on their way.
    if not pacing.is_due(recorder):
        if foreign_reasons:
            made = {**state.round.reasons, **{reason.group: reason for reason in foreign_reasons}}
            recorder.statement.assign(state.round, "reasons", Answers(made.copy))
        return
    at_limit = bool(state.work.ready) and (state.round.at_limit or pacing.is_full(state))
    if at_limit:
        recorder.statement.assign(state.round, "at_limit", True)
        if pacing.reserved_for_ours(state):
            return
    recorder.dirty = False
    # 3. The groups that wait.
    theirs, more_reasons = others.collect_groups()
    foreign_reasons += more_reasons
    backlog = _as_before(recorder) if at_limit else _collected(recorder)
    by_key = {**backlog.groups, **{group.key: group for group in theirs}}
    groups = [*by_key.values()]
    if not at_limit:
        evictions.drop_unwanted(recorder, by_key)
        if not groups:
            if state.round.reasons or state.round.reservations or foreign_reasons:
                _keep(recorder, Plan(reasons=Reasons(foreign_reasons)), {})  # no group waits any more
            pacing.round_ended(recorder, 0, backlog.wake_ms)
            return
    # 4. The plan.
    plan = _plan(recorder, groups, theirs_alone=at_limit) if groups else Plan()
    # 5. Bindings, transfers and evictions.
    ours = _Ours(recorder, groups, backlog.candidates)
    if not at_limit:
        cache_evictions.note_planned(recorder, plan, backlog.candidates)
        foresee(recorder, plan, by_key if plan.ahead else {})
    _serve(recorder, plan, by_key)
    evictions.placed(recorder, plan, groups)
    for placement in plan.placements:
        candidate = backlog.candidates.get(placement.group)
        if candidate is not None:
            ours.carry_out(candidate, placement)
        else:
            ours.binds.book_claims()  # claims keep the order in which they were decided
            others.carry_out(placement)
    if not at_limit:
        ours.send_ahead(plan, backlog.candidates)
    ours.finish()
    # 6. The groups that stay, why, and when the next round is due.
    look_at = _sooner(plan.look_at, ours.spacing.next_ms)
    reasons = Reasons((*plan.reasons.parts, *ours.refused, *foreign_reasons))
    plan = structs.replace(plan, reasons=reasons, look_at=look_at)
    if recorder.evictable is not None and not at_limit:
        plan = cache_evictions.end_round(recorder, plan, by_key)
    evictions.carry_out(recorder, plan, others.make_way)
    _keep(recorder, plan, by_key, ours_too=not at_limit)
    placed = sum(len(nodes) for placement in plan.placements for nodes in placement.nodes)
    wake_ms = _sooner(backlog.wake_ms, plan.look_at)
    pacing.round_ended(recorder, len(groups), wake_ms, full=placed >= pacing.STEP)
    recorder.absorb()


def _bring_up_to_date(recorder: Recorder) -> None:
    """Apply to our own work the consequences of events and of time alone, whether a round follows or not."""
    recorder.dirty |= recorder.absorb()
    sweep(recorder)
    recorder.dirty |= recorder.absorb()
    cache_evictions.begin_round(recorder)
    _give_up_waiting(recorder)
    evictions.empty_nodes(recorder)
    take_back(recorder)
    evictions.keep_room(recorder)


def _as_before(recorder: Recorder) -> Backlog:
    """The backlog of a round that offers none of our own groups; it is looked at again when it was to be."""
    due = recorder.state.round.next_round_at
    return Backlog({}, {}, [], [], due if due is not None and due > recorder.now else None)


def _plan(recorder: Recorder, groups: list[PodGroup], *, theirs_alone: bool) -> Plan:
    state = recorder.state
    kept = None if theirs_alone else state.cluster.snapshot.cache.setdefault("kept", Kept())
    arguments = (
        state.cluster.snapshot,
        state.cluster.catalogue,
        state.policy.queues,
        groups,
        state.policy.profile,
        recorder.now,
        pacing.STEP,
    )
    plan = cycle(*arguments, kept)
    if recorder.tape is not None:  # a user asks for a snapshot
        taped(recorder.tape, plan, arguments)
    return plan


def recorded_idle(state: EngineState, now: int) -> Draft:
    """A cycle with nothing to look at: the cluster as it is."""
    arguments = (
        state.cluster.snapshot,
        state.cluster.catalogue,
        state.policy.queues,
        (),
        state.policy.profile,
        now,
        pacing.STEP,
    )
    return recorded(cycle(*arguments), *arguments)


def _serve(recorder: Recorder, plan: Plan, groups: Mapping[int, PodGroup]) -> None:
    """Note which queues and users were given something: they have not waited in vain."""
    usage, put = recorder.state.cluster.snapshot.usage, recorder.statement.put
    served = {Payer(groups[each.group].queue, groups[each.group].user) for each in plan.placements}
    for payer in sorted(served):
        put(usage.served_users, payer, recorder.now)
        for queue in recorder.state.policy.queues.path(payer.queue):
            put(usage.served_queues, queue.name, recorder.now)


def _collected(recorder: Recorder) -> Backlog:
    """The backlog of our own work. Tasks that can never run fail here, and the producers of lost inputs run again."""
    state = recorder.state
    backlog = collect(state, recorder.now, recorder.evictable)
    if backlog.unrunnable or backlog.lost:
        for lost in backlog.unrunnable:
            recorder.advance(lost.run).fail_waiting(lost.stage, lost.tasks, "InputMissing", lost.message)
        for run, uri in backlog.lost:
            make_again(recorder, run, uri)
        recorder.end_runs()
        recorder.absorb()
        # Others of these stages may have been cancelled, or wait again.
        backlog = collect(state, recorder.now, recorder.evictable)
    return backlog


def _keep(recorder: Recorder, plan: Plan, offered: Mapping[int, PodGroup], *, ours_too: bool = True) -> None:
    """Store the plan's reasons for the groups that were not placed, and the requests of those groups.

    `ours_too`: the plan is of our own groups, too; if not, theirs are kept as they were.
    """
    state, statement = recorder.state, recorder.statement
    if not ours_too:
        our_reasons = [
            each
            for each in state.round.reasons.values()
            if isinstance(state.work.groups.get(each.group), GroupKey)
        ]
        plan = structs.replace(plan, reasons=Reasons((*our_reasons, *plan.reasons.parts)))
        offered = {**state.round.refused, **offered}
    statement.assign(state.round, "refused", Answers(partial(_refused, plan, offered)))
    statement.assign(state.round, "reasons", Answers(partial(_by_group, plan.reasons)))
    pacing.keep_quiet(recorder, plan)
    statement.assign(state.round, "reservations", plan.reservations)
    reserved_starts = _reserved_starts(state.round.reserved_starts, plan, offered)
    state.work.outdate(group for group, _ in state.round.reserved_starts.items() ^ reserved_starts.items())
    statement.assign(state.round, "reserved_starts", reserved_starts)


def _by_group(reasons: Reasons) -> dict[int, Reason]:
    """The reasons by group; of several the last."""
    return {reason.group: reason for reason in reasons}


def _refused(plan: Plan, offered: Mapping[int, PodGroup]) -> dict[int, PodGroup]:
    """The requests of the groups that wait, in the order of their reasons: of a bag that was placed in part, for the rest."""
    refused = {each.group: offered[each.group] for each in plan.reasons if each.group in offered}
    for placed in plan.placements:
        if placed.group in refused:
            refused[placed.group] = _rest(refused[placed.group], placed)
    return refused


def _sooner(one: int | None, other: int | None) -> int | None:
    """The earlier of two moments, where there are any."""
    return min((each for each in (one, other) if each is not None), default=None)


def _rest(group: PodGroup, placed: Placement) -> PodGroup:
    """The request for the pods of a bag that were not placed."""
    if group.gang:
        return group
    role = group.roles[0]
    return structs.replace(
        group, roles=(structs.replace(role, count=max(1, role.count - len(placed.nodes[0]))),)
    )


def _reserved_starts(
    before: Mapping[int, int], plan: Plan, offered: Mapping[int, PodGroup]
) -> dict[int, int]:
    """The first start that was reserved for each group that still waits: it has a reason, or was offered and not placed."""
    placed = set()  #: the groups of which nothing is left
    for each in plan.placements if before else ():
        group = offered[each.group]
        if group.gang or len(each.nodes[0]) >= group.roles[0].count:
            placed.add(each.group)
    others = {part.group for part in plan.reasons.parts if isinstance(part, Reason)} if before else set()
    starts = {
        group: start
        for group, start in before.items()
        if group in others or (group in offered and group not in placed)
    }
    for reservation in plan.reservations:
        starts.setdefault(reservation.group, reservation.start_ms)
    return starts


def _give_up_waiting(recorder: Recorder) -> None:
    """Apply policies on `task_pending` to tasks that have waited too long, and wake when the next one will have."""
    state = recorder.state
    staging = {(group.workflow, group.stage) for group in state.data.staging.values()}
    staging = {pair for pair in staging if _may_give_up(state, *pair)}
    for workflow, number in sorted(state.work.impatient | staging):
        run = state.work.runs[workflow]
        stage = run.stages[number]
        if stage.spec.gang and stage.uniform is None:
            half = recorder.advance(run).half_gangs(stage)
            if half is not None:
                recorder.wake_at(half)
        if any(policy.event is On.TASK_PENDING for policy in stage.spec.policies):
            moment = recorder.advance(run).overdue(stage)
            if moment is not None:
                recorder.wake_at(moment)
    recorder.end_runs()
    if recorder.absorb():
        recorder.dirty = True


def _may_give_up(state: EngineState, workflow: str, number: int) -> bool:
    spec = state.work.runs[workflow].stages[number].spec
    return spec.gang or bool(spec.policies)


class _Ours:
    """Carries out the placements of flowsched's own groups in one round.

    Attributes:
        refused: Why pods of a placed group must wait all the same.
    """

    def __init__(
        self, recorder: Recorder, offered: Iterable[PodGroup], candidates: Mapping[int, Candidate]
    ) -> None:
        self._recorder = recorder
        self.binds = Binds(recorder)
        self.spacing = Spacing(recorder, offered, candidates)
        self.refused: list[Reason] = []
        self._targets = Targets(recorder, self.binds.note)

    def finish(self) -> None:
        """Make the claims, and move the tasks."""
        self._targets.move()
        self.binds.move()

    def send_ahead(self, plan: Plan, candidates: Mapping[int, Candidate]) -> None:
        """Send pods of short tasks to nodes that have no room yet."""
        self.binds.book_claims()
        send_ahead(self._recorder, plan, candidates, self._bind_ahead)

    def _bind_ahead(self, candidate: Candidate, tasks: Indices, node: int) -> None:
        nodes = np.full(len(tasks), node)
        if self._recorder.evictable is not None and not self._recorder.state.policy.mounted:
            fits = cache_evictions.make_room(self._recorder, candidate, tasks, nodes)
            tasks, nodes = tasks[fits], nodes[fits]
        if len(tasks):
            placement = Placement(candidate.group.key, (nodes,), (np.zeros(len(tasks), dtype=np.int64),))
            self.binds.bind(candidate, tasks, nodes, None, placement, ahead=True)

    def carry_out(self, candidate: Candidate, placement: Placement) -> None:
        """Bind pods whose inputs are at hand, give targets to the rest. A gang does either as a whole."""
        recorder, gang = self._recorder, candidate.group.gang
        tasks = _joined(
            [role[: len(nodes)] for role, nodes in zip(candidate.tasks, placement.nodes, strict=True)]
        )
        nodes, missing = _joined(placement.nodes), _joined(placement.missing_bytes)
        planned = np.concatenate(placement.devices) if placement.devices else None
        if recorder.evictable is not None and not recorder.state.policy.mounted:
            fits = cache_evictions.make_room(recorder, candidate, tasks, nodes)
            if not fits.all():
                self.refused.append(cache_evictions.full(recorder, candidate))
                tasks, nodes, planned = tasks[fits], nodes[fits], _of(planned, fits)
            missing = _really_missing(recorder, candidate, nodes)  # this step may have evicted copies
        elif not recorder.state.policy.profile.of(candidate.group.queue).locality:
            missing = _really_missing(recorder, candidate, nodes)
        now = None if missing.any() or not len(tasks) else self.spacing.fits(candidate, nodes)
        if now is not None and not now.all():
            self.refused.append(self.spacing.reason(candidate))
            tasks, nodes, missing, planned = tasks[now], nodes[now], missing[now], _of(planned, now)
        here = missing == 0
        if gang and not here.all():
            here[:] = False
        if here.any():
            devices = self.binds.devices_of(candidate, tasks[here], nodes[here], _of(planned, here))
            seated = here
            if devices is not None and len(devices) < np.count_nonzero(here):
                seated = here & np.isin(tasks, list(devices))
                text = "GPUs are free in pieces only, no one has room"
                self.refused.append(Reason(placement.group, ReasonCode.INSUFFICIENT, text))
            if seated.any() and (not gang or seated.all()):
                self.binds.bind(candidate, tasks[seated], nodes[seated], devices, placement)
        away = ~here
        if away.any() and _may_move(recorder, candidate, nodes[away]):
            self._targets.begin(candidate, tasks[away], nodes[away], placement.choices)
        elif away.any():
            text = "its inputs have been copied to several nodes; it waits for room on one of them"
            self.refused.append(Reason(placement.group, ReasonCode.WAITING_FOR_LOCALITY, text))


def _of(planned: Indices | None, which: NDArray[np.bool_]) -> Indices | None:
    return None if planned is None else planned[which]


def _joined(parts: Sequence[Indices]) -> Indices:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _really_missing(recorder: Recorder, candidate: Candidate, nodes: Indices) -> Indices:
    """(K,) bytes missing per pod: a policy without locality does not look, but the bytes must come all the same, unless pods
    read everything where it lies.
    """
    if recorder.state.policy.mounted:
        return np.zeros(len(nodes), dtype=np.int64)
    catalogue = recorder.state.cluster.catalogue
    return catalogue.missing_bytes(candidate.group.inputs, len(recorder.state.cluster.snapshot))[nodes]


def _may_move(recorder: Recorder, candidate: Candidate, nodes: Indices) -> bool:
    """Whether its inputs may be copied to these nodes. Once several have them it waits for room on one of those, but only if they
    have none: where there is some, the cycle knows it, and going elsewhere pays.
    """
    snapshot = recorder.state.cluster.snapshot
    staged = [node for node in candidate.group.staged_on if snapshot.ready[node]]
    if recorder.evictable is not None and staged:  # a full cache may have lost its data since
        there = _really_missing(recorder, candidate, np.array(staged)) == 0
        staged = [node for node, all_there in zip(staged, there.tolist(), strict=True) if all_there]
    if len(staged) < _MAX_TARGETS or set(nodes.tolist()) <= set(staged):
        return True
    asked = np.array(candidate.group.roles[0].shape.requests)
    free = snapshot.allocatable[staged] - snapshot.used[staged]
    return bool((free >= asked)[:, asked > 0].all(axis=1).any())
