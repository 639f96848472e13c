"""step: the one decision function that service, simulator and crash tests share. No I/O, no clock, no randomness.

    step(state, events, now) -> Step(delta, launches, releases, drops, transfers, wake_ms)

It changes `state` through one Statement. The caller commits `delta`, then calls `keep()` and acts; if the commit fails it calls
`drop()`, after which the state is as before, and offers the events again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec
import numpy as np

from flowsched.engine.admission import place
from flowsched.engine.data.cache_values import forget_readers, note_anew, note_ended
from flowsched.engine.data.inputs import needed
from flowsched.engine.data.remote_reads import share_files
from flowsched.engine.data.staging import count_wants, order_transfers
from flowsched.engine.data.versions import read_versions
from flowsched.engine.delta import CacheKeyWrite, Delta
from flowsched.engine.events import (
    Accepted,
    BindingsSettled,
    CallsRanked,
    Command,
    Ended,
    EngineEvent,
    LookedUp,
    NodeDrained,
    ProfileChanged,
    QueueChanged,
    QueueRemoved,
    Recovered,
    Revived,
    Stored,
    Tick,
)
from flowsched.engine.evictions import change_drain
from flowsched.engine.foreign.backlog import ForeignPods
from flowsched.engine.foreign.work import note_rooms, report_foreign
from flowsched.engine.memoization import Hit, waiting_shards
from flowsched.engine.recovery import none_later, note_served, rank, reclaim
from flowsched.engine.reports import report
from flowsched.engine.state import EngineState
from flowsched.engine.transaction import Recorder
from flowsched.executor.foreign import Bind, BudgetSeen, Evict, ForeignEvent, RoomTaken
from flowsched.executor.nodes import LoadMeasured
from flowsched.executor.protocol import Drop, Pod, PodHeld, PodStarted, Transfer, TransferDone
from flowsched.executor.quotas import QuotaChanged
from flowsched.scheduling.explain.recording import Tape
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.run.run import StageRun, WorkflowRun


class Step(msgspec.Struct):
    """The decisions of one step.

    Attributes:
        delta: Rows to commit before anything is done.
        launches: Pods to launch, once committed.
        binds: Foreign pods to bind, once committed.
        evictions: Foreign pods to evict.
        releases: Names of pods to end, once committed.
        drops: Copies to delete, once committed and before any of `transfers` starts.
        transfers: Copies to start.
        lookups: (workflow, stage) with shards to be looked up in the cache of results.
        ended: Workflows that are terminal now; forgotten by `keep`.
        wake_ms: When to step again although nothing happens; None = no need.
    """

    state: EngineState
    statement: Statement
    delta: Delta
    launches: list[Pod] = msgspec.field(default_factory=list)
    binds: list[Bind] = msgspec.field(default_factory=list)
    evictions: list[Evict] = msgspec.field(default_factory=list)
    releases: list[str] = msgspec.field(default_factory=list)
    drops: list[Drop] = msgspec.field(default_factory=list)
    transfers: list[Transfer] = msgspec.field(default_factory=list)
    lookups: list[tuple[str, int]] = msgspec.field(default_factory=list)
    ended: list[str] = msgspec.field(default_factory=list)
    foreign_ended: list[str] = msgspec.field(default_factory=list)
    wake_ms: int | None = None

    @property
    def sweeps(self) -> bool:
        """Whether `keep` sweeps the catalogue: 0.6 s for 180,000 datasets."""
        return bool(self.ended) and self.state.cluster.catalogue.crowded

    def keep(self) -> None:
        """The delta is durable: the state stays as it is."""
        self.statement.forget()
        sweeps = self.sweeps
        for workflow in self.ended:
            if self.state.cluster.catalogue.caches is not None and workflow in self.state.work.runs:
                forget_readers(self.state, self.state.work.runs[workflow])
            self.state.forget(workflow)
        for key in self.foreign_ended:
            self.state.forget_foreign(key)
        if sweeps:
            self.state.cluster.catalogue.sweep(needed(self.state))

    def drop(self) -> None:
        """The delta was not written: the state is as before the step."""
        self.statement.rollback()
        self.state.note_undone()


#: These let no group start, or (RoomTaken, BudgetSeen, LoadMeasured, QuotaChanged, TransferDone) set `dirty` themselves.
_FREE_NO_ROOM = (PodStarted, PodHeld, RoomTaken, BudgetSeen, LoadMeasured, QuotaChanged, TransferDone)


def step(
    state: EngineState,
    events: Sequence[EngineEvent],
    now: int,
    *,
    placing: bool = True,
    tape: Tape | None = None,
) -> Step:
    """Apply the events, then decide the consequences.

    Args:
        state: Everything; changed, see the module.
        events: The events since the last step, in order.
        now: Wall-clock ms; never less than in the step before (the caller sees to it).
        placing: Off while a recovery brings workflows back slice by slice: room is given only once all claims are known.
        tape: Where the cycle of this step is recorded, if there is one; with it the backlog is looked at in any case.
    """
    recorder = Recorder(state, Statement(), now, ticked=not events, tape=tape)
    state.cluster.snapshot.usage.begin(now, state.policy.profile.half_life_ms)
    # 1. The events, in order; each with all that follows inside its workflow. Successive RoomTaken are applied together.
    for room_taken, some in groupby(events, lambda event: isinstance(event, RoomTaken)):
        if room_taken:
            note_rooms(recorder, [event for event in some if isinstance(event, RoomTaken)])
        else:
            for event in some:
                _apply(recorder, event)
    _learn_edges(recorder, [event.run for event in events if isinstance(event, Accepted)])
    recorder.end_runs()
    # 2. Ready groups get room. Groups that lack bytes get target nodes.
    if placing:
        place(recorder, ForeignPods(recorder))
    # 3. Bytes that shall move, as far as links allow.
    transfers = order_transfers(recorder) if placing else []
    if recorder.dirty:  # since the backlog was collected
        recorder.statement.assign(state.round, "dirty", True)
    # 4. Rows.
    _write_usage(recorder)
    result = recorder.finish()
    return Step(
        state=state,
        statement=recorder.statement,
        delta=result.delta,
        launches=recorder.launches,
        binds=recorder.binds,
        evictions=recorder.evictions,
        releases=recorder.releases,
        drops=recorder.drops,
        transfers=transfers,
        lookups=list(recorder.lookups),
        ended=result.ended,
        foreign_ended=recorder.foreign_ended,
        wake_ms=recorder.wake_ms,
    )


def _write_usage(recorder: Recorder) -> None:
    """Write the usage of queues and users, once in a step of time. A restart counts running pods again from this moment on."""
    state, usage = recorder.state, recorder.state.cluster.snapshot.usage
    if usage.written == usage.step:
        return
    if usage.written is not None and usage.step_ms:
        recorder.delta.usage.extend(usage.rows(state.cluster.snapshot.axes, recorder.statement))
    recorder.statement.assign(usage, "written", usage.step)


def _apply(recorder: Recorder, event: EngineEvent) -> None:  # noqa: C901 # one case for each kind of event
    state, statement = recorder.state, recorder.statement
    if isinstance(event, Tick):
        recorder.ticked = True
    elif not isinstance(event, _FREE_NO_ROOM):
        recorder.dirty = True
    match event:
        case Accepted(run):
            if run.id not in state.work.runs:
                _take_in(recorder, run)
                recorder.advance(run).begin()
                _end_late(recorder, run)
        case Recovered(run, pods):
            none_later(run, recorder.now)
            note_served(state, run, statement)
            _take_in(recorder, run)
            recorder.releases.extend(reclaim(state, run, pods, statement, recorder.now))
            recorder.recovered(run)
            _end_late(recorder, run)
        case Revived(run, number, reason):
            recorder.done(number)
            if run.id not in state.work.runs:  # asked twice: it is back already
                _take_in(recorder, run)
                recorder.advance(run).retry(reason)
        case Command():
            _command(recorder, event)
        case QueueChanged(queue):
            before = state.policy.queues.get(queue.name)
            statement.undo_with(lambda: state.policy.queues.put(before))
            state.policy.queues.put(queue)
        case QueueRemoved(name):
            removed = state.policy.queues.configured(name)
            if removed is not None:
                statement.undo_with(lambda: state.policy.queues.put(removed))
                state.policy.queues.drop(name)
        case ProfileChanged(profile):
            statement.assign(state.policy, "profile", profile)
            state.work.offers.clear()
            count_wants(state, statement)
        case CallsRanked(ranks):
            for workflow, rank_ms in ranks.items():
                _rank(recorder, workflow, rank_ms)
        case NodeDrained(node, order):
            change_drain(recorder, node, order)
        case Stored(uri):
            state.cluster.catalogue.intern(uri, origin=True)
        case Ended(workflow, spec):
            if workflow not in state.work.runs:
                note_ended(state, workflow, spec)
        case BindingsSettled(uids):
            recorder.delta.bindings_done.extend(uids)
        case LookedUp():
            _note_lookup(recorder, event)
        case Tick():
            return
        case _ if isinstance(event, ForeignEvent):
            report_foreign(recorder, event)
        case _:
            report(recorder, event)


def _take_in(recorder: Recorder, run: WorkflowRun) -> None:
    """A run lives from now on. Files that it reads, too, may be copied for others that wait. A head opens its run again."""
    state = recorder.state
    recorder.statement.put(state.work.runs, run.id, run)
    recorder.open_run(run)
    for reader, stage in share_files(state, run, recorder.statement):
        if reader is not run:
            recorder.advance(reader).look_again(stage)
        if state.cluster.catalogue.caches is not None:
            note_anew(state, reader)


def _end_late(recorder: Recorder, run: WorkflowRun) -> None:
    """Cancel a call that arrives after its engine is gone, which sent it before it was killed, or on a lost node."""
    call = run.spec.call
    why = None if call is None else recorder.state.work.engines.ended.get(call.run)
    if why is not None:
        recorder.advance(run).cancel(why)


def _note_lookup(recorder: Recorder, event: LookedUp) -> None:
    """Take the results that there are; the other shards are offered to the scheduler."""
    state = recorder.state
    run = state.work.runs.get(event.workflow)
    stage = None if run is None else run.stages[event.stage]
    if run is None or stage is None or run.state.terminal:
        return
    if event.looks != run.looks:  # inputs have changed meanwhile
        recorder.lookups[run.id, stage.number] = None
        return
    asked = [*(found.shard for found in event.found), *event.others]
    read_versions(recorder, run, stage, event, only_known=not asked)
    if stage.cache_checked is None:
        return
    whole, part = waiting_shards(stage)  # without those that were cancelled, or wait for other inputs now
    ready = set(whole.tolist())
    answered = [shard for shard in asked if shard in ready or shard in part]
    advance, took = recorder.advance(run), False
    for found in event.found:
        if found.shard not in ready:
            continue
        fit = [each for each in found.hits if _is_there(state, run, stage, each)]
        hit = next((each for each in fit if _is_whole(state, each)), next(iter(fit), None))
        why = found.why
        if hit is not None:
            why, took = hit.name, True
            advance.reuse(stage, found.shard, hit.outputs, hit.name)
        elif found.hits:
            why = f"{found.hits[0].name} is the same, but no node has its outputs any more"
        recorder.delta.cache_keys.append(
            CacheKeyWrite(
                run.id,
                stage.number,
                found.shard,
                found.key,
                found.place,
                found.parts,
                "" if hit is None else hit.source,
                why,
                recorder.now,
            )
        )
    advance.cache_answered(stage, np.array(answered, dtype=np.int64))
    if took and state.cluster.catalogue.caches is not None:
        note_anew(state, run)


def _is_there(state: EngineState, run: WorkflowRun, stage: StageRun, hit: Hit) -> bool:
    """Whether this run can reuse a result: an output that none of its stages reads must be on some node. An output that a stage
    reads, and no node has any more, is made again when that stage runs.
    """
    read = {
        spec.output
        for edge in run.graph.edges_out[stage.number]
        for spec in run.stages[edge.child].spec.inputs
        if spec.stage == stage.spec.name
    }
    return all(name in read or _has_replica(state, uri) for name, uri, _, _ in hit.outputs)


def _is_whole(state: EngineState, hit: Hit) -> bool:
    """Whether all outputs of a result are on some node: then nothing of it is made again."""
    return all(_has_replica(state, uri) for _, uri, _, _ in hit.outputs)


def _has_replica(state: EngineState, uri: str) -> bool:
    dataset = state.cluster.catalogue.find(uri)
    return dataset is not None and state.cluster.catalogue.has_replica(dataset)


def _learn_edges(recorder: Recorder, arrived: Sequence[WorkflowRun]) -> None:
    """Learn which kinds the calls that have arrived follow. With a new edge, calls of its run that wait get new ranks."""
    state, plan, changed = recorder.state, recorder.state.work.engines.learned_plan, set()
    for run in arrived:
        call = run.spec.call
        if call is None:
            continue
        kind = run.spec.kind_of(run.spec.stages[0])
        plan.come(call.run, kind, recorder.statement)
        edges = plan.note(call.run, call.node, kind, call.after)
        if edges:
            recorder.statement.undo_with(plan.forget, edges)
            changed.add(call.run)
    for each in state.work.runs.values() if changed else ():
        if each.spec.call is not None and each.spec.call.run in changed:
            recorder.statement.assign(each, "ranks", each.ranks)
            rank(state, each)
            for stage in each.stages:
                state.note_change(each, stage, anew=True)


def _rank(recorder: Recorder, workflow: str, rank_ms: int) -> None:
    """Order a waiting call by the rank that its plan gives it; a call that declares a rank keeps it."""
    run = recorder.state.work.runs.get(workflow)
    if run is None or run.spec.call is None or run.spec.call.rank_ms:
        return
    call = replace(run.spec.call, rank_ms=rank_ms)
    recorder.statement.assign(run, "spec", replace(run.spec, call=call))
    for stage in run.stages:
        recorder.state.note_change(run, stage, anew=True)


def _command(recorder: Recorder, command: Command) -> None:
    recorder.done(command.number)
    run = recorder.state.work.runs.get(command.workflow)
    if run is None:
        return  # it ended before the command was read; the row is marked done all the same
    advance = recorder.advance(run)
    match command.kind:
        case "cancel_task":
            number = next(each.number for each in run.stages if each.spec.name == command.stage)
            advance.cancel_task(run.stages[number], command.task, command.reason)
        case "cancel":
            advance.cancel(command.reason)
        case "pause":
            advance.pause(True, command.reason)
        case "resume":
            advance.pause(False, command.reason)
        case "retry":
            advance.retry(command.reason)
