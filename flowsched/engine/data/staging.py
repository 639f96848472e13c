"""Staging: targets of tasks that wait for copies of their inputs, and these transfers. Such tasks hold no cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.engine.choices import choice_rows
from flowsched.engine.data.cache_evictions import admit_ahead, came, has_room, reserve_room
from flowsched.engine.data.prefetch import arriving, landed, moved_by, pass_over, pushes, refused
from flowsched.engine.data.versions import leave_copies, withdraw
from flowsched.engine.delta import ReplicaWrite
from flowsched.engine.pacing import bytes_landed
from flowsched.engine.state import EngineState
from flowsched.engine.state.data import Backoff, Coming, StagingGroup
from flowsched.engine.state.work import Candidate, GroupKey, pod_name
from flowsched.engine.transaction import Recorder
from flowsched.executor.datasets import uri_of
from flowsched.executor.protocol import Transfer, TransferDone, TransferFailed
from flowsched.scheduling.io_budget import limits_of
from flowsched.scheduling.plan import Choice
from flowsched.scheduling.policy.framework import Storage, storage_at
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.transfers import TransferLimits, TransferOrder, TransferWant, Wants, admit
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.run.states import TaskState

#: All copies together count for at most one part of so many of the budget, however many there are: pods get the rest.
_PARTS: Final = 2


def begin_copy(state: EngineState, order: TransferOrder, statement: Statement) -> None:
    """A copy has been ordered: one from outside counts from now on, if that is a storage with a budget."""
    storage = _origin(state, order.dataset) if order.source is None else None
    if storage is not None:
        key = f"{storage.name}/read"
        limit = limits_of((storage,), state.policy.profile.io_fill_percent)[key]
        rate = limit // (_PARTS * max(1, state.cluster.transfer_limits.origin))
        statement.put(state.data.copying, (order.dataset, order.dest, order.piece), (key, rate))
        _count(state, key, rate, statement)


def end_copy(state: EngineState, order: TransferOrder, statement: Statement) -> None:
    """It is not under way any more."""
    counted = statement.pop(state.data.copying, (order.dataset, order.dest, order.piece))
    if counted is not None:
        _count(state, counted[0], -counted[1], statement)


def limits_now(state: EngineState) -> TransferLimits:
    """How many copies may go beside each other: fewer from outside while pods work straight on the data there, at least one."""
    limits, profile, booked = state.cluster.transfer_limits, state.policy.profile, Counter[str]()
    bounds = limits_of(profile.storages, profile.io_fill_percent)
    for claim in state.cluster.snapshot.direct.claims.values() if bounds else ():
        booked.update(dict(claim.direct))
    for storage in profile.storages:
        key = f"{storage.name}/read"
        if key in bounds and booked[key] and state.data.wanted_from.get(storage.name):
            left = max(0, bounds[key] - booked[key])
            limits = replace(
                limits,
                origin=max(1, limits.origin * left // bounds[key]),
                origin_rate=max(1, limits.origin_rate * left // bounds[key]),
            )
    return limits


def count_wants(state: EngineState, statement: Statement) -> None:
    """The storages of the profile have changed: count anew how many wanted datasets lie on each."""
    statement.assign(state.data, "wanted_from", {})
    for node in state.data.wanted.nodes():
        for want in state.data.wanted.line(node):
            _count_want(state, want.dataset, 1, statement)


def _count_want(state: EngineState, dataset: int, change: int, statement: Statement) -> None:
    storage = _origin(state, dataset)
    if storage is not None:
        count = state.data.wanted_from.get(storage.name, 0)
        statement.put(state.data.wanted_from, storage.name, count + change)


def _drop_want(state: EngineState, pair: tuple[int, int], number: int, statement: Statement) -> None:
    """A staging group does not wait for a dataset any more."""
    state.data.wanted.remove(*pair, number, statement)
    _count_want(state, pair[0], -1, statement)


def _origin(state: EngineState, dataset: int) -> Storage | None:
    """The storage that a dataset from outside lies on, if it has a budget."""
    profile = state.policy.profile
    if not profile.io_fill_percent or not profile.storages:
        return None
    storage = storage_at(profile.storages, uri_of(state.cluster.catalogue.uris[dataset]))
    return storage if storage is not None and storage.read_rate else None


def _count(state: EngineState, key: str, rate: int, statement: Statement) -> None:
    rates = state.cluster.snapshot.direct.rates
    statement.put(rates, key, rates.get(key, 0) + rate)


# ---- targets ----


#: A transfer that failed is tried again after 1 s, 2 s, 4 s … at most a minute; this often at most.
_FIRST_RETRY_MS = 1_000
_MAX_RETRY_MS = 60_000
MAX_TRIES = 8


class Targets:
    """The tasks that get target nodes in one round. Tasks of bags move together (`move`), a gang's at once: states tell seats."""

    def __init__(self, recorder: Recorder, note: Callable[[Claim], None]) -> None:
        """`note`: is called with each of their claims."""
        self._recorder, self._note = recorder, note
        self._stages: dict[int, tuple[Candidate, list[int], list[int]]] = {}

    def begin(
        self,
        candidate: Candidate,
        tasks: NDArray[np.int64],
        nodes: NDArray[np.int64],
        choices: Sequence[Choice | None] = (),
    ) -> None:
        """Give tasks their targets, and want the bytes that are missing there. `choices`: why these nodes, by role."""
        recorder = self._recorder
        state, statement, catalogue = recorder.state, recorder.statement, recorder.state.cluster.catalogue
        stage, run, group = candidate.stage, candidate.run, candidate.group
        if stage.spec.gang:
            recorder.advance(run).target(stage, tasks, nodes)
        else:
            _, all_tasks, all_nodes = self._stages.setdefault(id(stage), (candidate, [], []))
            all_tasks += tasks.tolist()
            all_nodes += nodes.tolist()
        pending: set[tuple[int, int]] = set()
        payer: dict[tuple[int, int], int] = {}
        # It holds no room yet, and when it will is not known: its end is set as if it ran from now on.
        until = None if group.runtime_ms is None else recorder.now + group.runtime_ms
        why = choice_rows(choices, state.cluster.snapshot.names, staged=True)
        for task, node in zip(tasks.tolist(), nodes.tolist(), strict=True):
            name = pod_name(run.id, stage.spec.name, task, stage.attempt.item(task))
            number = int(stage.role_of[task % stage.members]) if len(group.roles) > 1 else 0
            role = group.roles[number]
            if why and node in why[number]:
                of_stage = (run.id, stage.number)
                chosen = state.data.chosen.get(of_stage)
                if chosen is None:
                    chosen = {}
                    statement.put(state.data.chosen, of_stage, chosen)
                statement.put(chosen, task, (node, why[number][node]))
            amount, kind = role.shape.requests, ClaimKind.STAGING
            self._note(Claim(name, node, amount, kind, group.queue, recorder.now, until, 0, group.name))
            reserve_room(recorder, candidate, task, node, bound=False)
            for dataset in group.inputs:
                pair = (dataset, node)
                if not catalogue.is_on(dataset, node) and pair not in pending:
                    pending.add(pair)
                    if pair not in state.data.wanted:
                        payer[pair] = task
        staging = StagingGroup(
            key=group.key,
            workflow=run.id,
            stage=stage.number,
            tasks=tasks,
            attempts=stage.attempt[tasks].copy(),
            nodes=nodes,
            pending=pending,
            priority=group.priority,
            rank_ms=group.rank_ms,
            payer=payer,
        )
        number = state.data.next_staging
        state.data.next_staging += 1
        statement.put(state.data.staging, number, staging)
        for pair in sorted(pending):
            if pair not in state.data.wanted:
                statement.pop(
                    state.data.backoff, pair
                )  # failures ahead of time are not counted against a task
            state.data.wanted.add(TransferWant(*pair, group.rank_ms, group.priority), number, statement)
            _count_want(state, pair[0], 1, statement)
        key = state.work.groups[group.key]
        assert isinstance(key, GroupKey)  # foreign groups are not staged
        staged = state.work.staged_on.get(key, ())
        statement.put(state.work.staged_on, key, (*staged, *sorted({*nodes.tolist()} - {*staged})))
        state.work.outdate((group.key,))

    def move(self) -> None:
        """Move the tasks that have been given targets."""
        for candidate, tasks, nodes in self._stages.values():
            advance = self._recorder.advance(candidate.run)
            advance.target(candidate.stage, np.array(tasks), np.array(nodes))
        self._stages.clear()


def chosen_before_staging(
    recorder: Recorder, run: WorkflowRun, stage: StageRun, task: int, node: int
) -> str | None:
    """Why a task's inputs were copied to the node where it starts now; None where they were not, or it is not known any more."""
    chosen = recorder.state.data.chosen.get((run.id, stage.number))
    if not chosen or task not in chosen:
        return None
    target, why = chosen[task]
    recorder.statement.pop(chosen, task)
    return why if target == node else None


def arrived(recorder: Recorder, event: TransferDone) -> None:
    """Bytes are on a node."""
    state, statement = recorder.state, recorder.statement
    pair = _pair(state, event.uri, event.dest)
    if pair is None:
        return
    dataset, node = pair
    order = _landed(recorder, pair, event.offset)
    complete = event.whole or landed(recorder, pair, event, order is not None)
    bytes_landed(recorder)
    if not complete and not event.moved_bytes:
        return
    waiting = state.data.wanted.groups(*pair)
    _pay(recorder, [state.data.staging[number] for number in waiting], pair, moved_by(recorder, pair, event))
    if not complete:
        return
    size = event.size_bytes or state.cluster.catalogue.sizes[dataset]
    if size != state.cluster.catalogue.sizes[dataset]:
        state.cluster.catalogue.intern(event.uri, size)
    if node not in state.cluster.catalogue.nodes_of(dataset):
        state.cluster.catalogue.add_replica(dataset, node, statement)
        recorder.delta.replicas.append(ReplicaWrite(event.uri, event.dest, size, True))
        came(recorder, dataset, node)
    statement.pop(state.data.backoff, pair)
    for number in waiting:
        pending = state.data.staging[number].pending
        statement.exclude(pending, pair)
        _drop_want(state, pair, number, statement)
        if not pending:
            finish(recorder, number)


def failed(recorder: Recorder, event: TransferFailed) -> None:
    """Bytes did not come: again later, from elsewhere, or never."""
    state, statement = recorder.state, recorder.statement
    pair = _pair(state, event.uri, event.dest)
    if pair is None:
        return
    event = structs.replace(event, message=event.message.replace(event.uri, uri_of(event.uri)))
    _landed(recorder, pair, event.offset)
    if event.changed and event.source is None and withdraw(recorder, event.uri):
        statement.pop(state.data.backoff, pair)
        return
    if (event.changed or event.undivided) and refused(recorder, pair[0], event):
        return
    if event.source is not None:
        pass_over(recorder, pair[0], event.source)
    before = state.data.backoff.get(pair, Backoff(0, 0))
    tries = before.tries + (0 if event.lost or event.full else 1)
    if event.permanent or tries >= MAX_TRIES:
        waiting = state.data.wanted.groups(*pair)
        elsewhere = leave_copies(recorder, uri_of(event.uri)) if waiting else set()
        for number, group in list(state.data.staging.items()) if elsewhere else ():
            if (group.workflow, group.stage) in elsewhere:
                finish(recorder, number)
        for number in state.data.wanted.groups(*pair):
            _give_up(recorder, number, event)
        if waiting:
            statement.pop(state.data.backoff, pair)
            return
        tries = MAX_TRIES - 1  # no task waits for it yet
    waits = before.waits + 1 if event.full else 0
    moment = recorder.now if event.lost else recorder.now + _delay_ms(tries + waits)
    statement.put(
        state.data.backoff, pair, Backoff(moment, tries, waits, "" if event.lost else event.message)
    )
    recorder.wake_at(moment)


def _delay_ms(tries: int) -> int:
    """How long after so many failed tries the next one begins."""
    return min(_MAX_RETRY_MS, _FIRST_RETRY_MS << min(10, max(0, tries - 1)))


def last_try_ms(backoff: Backoff) -> int:
    """When the last try begins, at the earliest: as if each one before failed at once. After it the tasks fail."""
    return backoff.not_before + sum(_delay_ms(tries) for tries in range(backoff.tries + 1, MAX_TRIES))


def finish(recorder: Recorder, number: int) -> None:
    """All is there: the tasks are offered to the scheduler again, now with their bytes at hand."""
    group = recorder.state.data.staging[number]
    run = recorder.state.work.runs.get(group.workflow)
    _drop(recorder, number)
    if run is None:
        return
    stage = run.stages[group.stage]
    tasks = _still(recorder, group)
    if len(tasks):
        recorder.advance(run).staged(stage, tasks)
    recorder.dirty = True


def place_again(recorder: Recorder, kind: tuple[str, str]) -> None:
    """Offer the tasks of a kind that wait for copies: their nodes were chosen by a runtime that has turned out to be another one.

    Copies that have come stay where they are.
    """
    runs = recorder.state.work.runs
    for number, group in list(recorder.state.data.staging.items()):
        run = runs.get(group.workflow)
        if run is not None and run.spec.kind_of(run.stages[group.stage].spec) == kind:
            finish(recorder, number)


def sweep(recorder: Recorder) -> None:
    """Give up targets of tasks that are not STAGING any more (cancelled, or a parent runs again), and those that cannot be
    reached: the bytes are nowhere, or the node takes no new pods. Such tasks are offered again.
    """
    state = recorder.state
    for number, group in _unswept(recorder):
        still = _still(recorder, group)
        if len(still) == 0:
            _drop(recorder, number)
        elif any(
            state.cluster.catalogue.lost(dataset) or not state.cluster.snapshot.ready[at]
            for dataset, at in group.pending
        ):
            finish(recorder, number)


def _unswept(recorder: Recorder) -> list[tuple[int, StagingGroup]]:
    """The groups of which something that `sweep` looks at may have changed since it last did: most steps change none."""
    state = recorder.state
    changed, state.data.unswept = state.data.unswept, set()
    if not state.data.staging:
        return []
    current = (state.cluster.catalogue.dropped, state.cluster.snapshot.ready.tobytes())
    everything, state.data.swept = current != state.data.swept, current
    return [
        (number, group)
        for number, group in state.data.staging.items()
        if everything or (group.workflow, group.stage) in changed
    ]


def order_transfers(recorder: Recorder) -> list[Transfer]:
    """Choose the copies that start now."""
    state, statement = recorder.state, recorder.statement
    recorder.absorb()
    sweep(recorder)
    recorder.absorb()
    wants = state.data.wanted, state.data.foreseen, Wants((*pushes(recorder), *arriving(recorder)))
    resting = {pair for pair, wait in state.data.backoff.items() if wait.not_before > recorder.now}
    for pair in [pair for pair in state.data.backoff if not any(pair in each for each in wants)]:
        if pair not in resting:  # a copy ahead of time may be wanted again in the next round
            statement.pop(state.data.backoff, pair)
    for pair in resting:
        recorder.wake_at(state.data.backoff[pair].not_before)
    if not any(each.nodes() for each in wants):
        return []

    def rests(want: TransferWant) -> bool:
        """Whether it failed a moment ago, or moves ahead of time and would find no room: it takes no other's slot."""
        return (want.dataset, want.dest) in resting or (want.ahead > 0 and not has_room(recorder, want))

    active, limits = list(state.data.moving.values()), limits_now(state)
    orders = admit(wants, active, state.cluster.snapshot, state.cluster.catalogue, limits, rests)
    transfers = []
    for order in orders if recorder.evictable is None else admit_ahead(recorder, orders):
        statement.put(state.data.moving, (order.dataset, order.dest, order.piece), order)
        begin_copy(state, order, statement)
        state.cluster.catalogue.expect(order.dataset, order.dest, statement)
        _count_inbound(recorder, order)
        source = None if order.source is None else state.cluster.snapshot.names[order.source]
        uri = state.cluster.catalogue.uris[order.dataset]
        whole = limits.pieces_of(order.dataset, state.cluster.catalogue) == 1
        offset = order.piece * limits.piece_bytes
        dest = state.cluster.snapshot.names[order.dest]
        edition = "" if whole else state.cluster.catalogue.edition(order.dataset)
        transfers.append(Transfer(uri, order.size_bytes, dest, source, offset, whole, order.ahead, edition))
    return transfers


def _count_inbound(recorder: Recorder, order: TransferOrder) -> None:
    """Count all that is still to come of a dataset from its first piece on: tasks placed next share the link with it."""
    state, pair = recorder.state, (order.dataset, order.dest)
    coming = state.data.coming_in.get(pair)
    if coming is None:
        landed = state.cluster.catalogue.landed(*pair).bit_count() * state.cluster.transfer_limits.piece_bytes
        coming = Coming(max(order.size_bytes, state.cluster.catalogue.sizes[order.dataset] - landed))
        state.cluster.snapshot.add_inbound(order.dest, coming.size_bytes, recorder.statement)
    recorder.statement.put(state.data.coming_in, pair, Coming(coming.size_bytes, coming.copies + 1))


def _pair(state: EngineState, uri: str, node: str) -> tuple[int, int] | None:
    dataset, at = state.cluster.catalogue.find(uri), state.cluster.snapshot.index.get(node)
    return None if dataset is None or at is None else (dataset, at)


def _landed(recorder: Recorder, pair: tuple[int, int], offset: int) -> TransferOrder | None:
    """The copy (of a piece) is not under way any more."""
    state, statement = recorder.state, recorder.statement
    piece = offset // state.cluster.transfer_limits.piece_bytes if offset else 0
    order = statement.pop(state.data.moving, (*pair, piece))
    if order is not None:
        end_copy(state, order, statement)
        coming, copies = state.data.coming_in[pair]
        over = copies == 1  # counted: in how many pieces it moves may be another number now
        less = coming if over else min(coming, order.size_bytes)
        state.cluster.snapshot.add_inbound(pair[1], -less, statement)
        if over:
            statement.pop(state.data.coming_in, pair)
            state.cluster.catalogue.unexpect(*pair, statement)
        else:
            statement.put(state.data.coming_in, pair, Coming(coming - less, copies - 1))
    return order


def _pay(
    recorder: Recorder, waiting: Sequence[StagingGroup], pair: tuple[int, int], moved_bytes: int
) -> None:
    """Count moved bytes for the one task they were ordered for; if that one was cancelled, for the first that waits."""
    for group in sorted(waiting, key=lambda group: pair not in group.payer):
        run = recorder.state.work.runs.get(group.workflow)
        still = _still(recorder, group)
        task = group.payer.get(pair)
        if task is None:
            at = group.nodes[np.isin(group.tasks, still)]
            task = next((int(t) for t, n in zip(still, at, strict=True) if n == pair[1]), None)
        if task is not None and task in still and run is not None and moved_bytes:
            recorder.statement.add(run.stages[group.stage].own("moved"), np.array([task]), moved_bytes)
            return


def _still(recorder: Recorder, group: StagingGroup) -> NDArray[np.int64]:
    """The tasks of the group that are in STAGING, in the same attempt."""
    run = recorder.state.work.runs.get(group.workflow)
    if run is None:
        return group.tasks[:0]
    stage = run.stages[group.stage]
    same = stage.attempt[group.tasks] == group.attempts
    still: NDArray[np.int64] = group.tasks[same & (stage.task_state[group.tasks] == TaskState.STAGING)]
    return still


def _drop(recorder: Recorder, number: int) -> None:
    """Forget a staging group and its soft claims."""
    state = recorder.state
    group = state.data.staging[number]
    recorder.statement.pop(state.data.staging, number)
    for pair in group.pending:
        _drop_want(state, pair, number, recorder.statement)
    run = state.work.runs.get(group.workflow)
    stage = None if run is None else run.stages[group.stage]
    for task, attempt in zip(group.tasks.tolist(), group.attempts.tolist(), strict=True):
        if stage is None:
            continue
        name = pod_name(group.workflow, stage.spec.name, task, attempt)
        claim = state.cluster.snapshot.claims.get(name)
        if claim is not None and claim.kind is ClaimKind.STAGING:
            state.cluster.snapshot.unclaim(name, recorder.statement)


def _give_up(recorder: Recorder, number: int, event: TransferFailed) -> None:
    """An input does not exist (or never comes): the tasks that need it fail for good."""
    group = recorder.state.data.staging[number]
    run = recorder.state.work.runs.get(group.workflow)
    tasks = _still(recorder, group)
    _drop(recorder, number)
    if run is not None and len(tasks):
        uri = uri_of(event.uri)
        named = uri.removeprefix("file://") in event.message
        message = event.message if named else f"{uri}: {event.message}"
        recorder.advance(run).fail_waiting(run.stages[group.stage], tasks, "InputMissing", message)
