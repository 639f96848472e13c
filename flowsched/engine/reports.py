"""Reports of the cluster, turned into events of runs, replicas and nodes."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from flowsched.engine.backlog import memory_ahead
from flowsched.engine.data.cache_evictions import came
from flowsched.engine.data.inputs import producer_of
from flowsched.engine.data.prefetch import note_written, pieces_found
from flowsched.engine.data.staging import arrived, failed, place_again
from flowsched.engine.data.versions import replace_version
from flowsched.engine.delta import AttemptEnd, ReplicaWrite
from flowsched.engine.evictions import as_drained
from flowsched.engine.pacing import delayed, left
from flowsched.engine.pod_orders import default_timeout_ms
from flowsched.engine.state.work import PodRef
from flowsched.engine.telemetry import learn, note_load, shared_ms
from flowsched.engine.transaction import Recorder
from flowsched.executor.nodes import LoadMeasured
from flowsched.executor.protocol import (
    NOT_LAUNCHED,
    ClusterEvent,
    ContainerReport,
    NodeChanged,
    PiecesSeen,
    PodEnded,
    PodGone,
    PodHeld,
    PodStarted,
    ReplicaSeen,
    TransferDone,
    TransferFailed,
    Usage,
)
from flowsched.executor.quotas import QuotaChanged
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.scheduling.state.snapshot import AXES
from flowsched.values import replace
from flowsched.workflow.memory import Fitted
from flowsched.workflow.resources import format_bytes
from flowsched.workflow.run.advance import RELEASED
from flowsched.workflow.run.moves import BOUND, STARTED, AttemptResources, Ended
from flowsched.workflow.run.outcomes import EVICTED, OUT_OF_MEMORY
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.run.states import TaskState

_ENCODER: Final = msgspec.json.Encoder()
#: Kubelets report whole seconds: their durations are up to so much too long.
_ROUNDED_MS: Final = 1_000


def report(recorder: Recorder, event: ClusterEvent) -> None:
    """Apply one report. A report of a pod that is not known (any more) changes nothing."""
    match event:
        case PodStarted(name, at_ms):
            left(recorder, name)
            found = _find(recorder, name)
            if found is not None:
                run, stage, ref = found
                began_ms = _within(recorder, stage, ref.task, BOUND, at_ms)
                if recorder.advance(run).started(stage, ref.task, ref.attempt, began_ms):
                    recorder.state.cluster.started(name, began_ms, recorder.statement)
                    recorder.open_run(run)
        case PodHeld(name, reason, message):
            _pod_waits(recorder, name, reason, message)
        case PodEnded():
            _pod_ended(recorder, event)
        case PodGone():
            _pod_gone(recorder, event)
        case TransferDone():
            arrived(recorder, event)
        case TransferFailed():
            failed(recorder, event)
            if event.lost and event.source is not None:
                lose_replica(recorder, event.uri, event.source)
        case ReplicaSeen(uri, node, size, present):
            if present:
                add_replica(recorder, uri, node, size)
            else:
                lose_replica(recorder, uri, node)
        case PiecesSeen():
            pieces_found(recorder, event)
        case NodeChanged(node):
            at = recorder.state.cluster.snapshot.index.get(node.name)
            if at is not None:  # executors do not report other programs' use of its disk and network card
                node = node.measured_as(recorder.state.cluster.snapshot.info(at))
            at = recorder.state.cluster.snapshot.put_node(as_drained(recorder, node), recorder.statement)
            recorder.state.cluster.catalogue.limit(at, node.cache_bytes, recorder.statement)
            recorder.dirty = True
        case LoadMeasured():
            note_load(recorder, event)
        case QuotaChanged():
            _quota_changed(recorder, event)
    recorder.absorb()


def _quota_changed(recorder: Recorder, event: QuotaChanged) -> None:
    """Note a quota. A round follows only if a group may start now: use by others lets none start."""
    statement, quotas = recorder.statement, recorder.state.cluster.snapshot.quotas
    before = {limit.resource: limit for limit in quotas.get(event.name, ())}
    if event.limits:
        statement.put(quotas, event.name, event.limits)
    else:
        statement.pop(quotas, event.name)
    after = {limit.resource: limit for limit in event.limits}
    recorder.dirty |= any(
        resource not in after or after[resource].hard - after[resource].others > limit.hard - limit.others
        for resource, limit in before.items()
    )


def _pod_waits(recorder: Recorder, name: str, reason: str, message: str) -> None:
    """Store the cluster's reason why a pod does not start, for explanations. It is not in SQL: the cluster reports it again."""
    delayed(recorder, name, reason)
    if name in recorder.state.work.pods and reason:
        recorder.statement.put(recorder.state.work.waiting_pods, name, (reason, message))
    else:
        recorder.statement.pop(recorder.state.work.waiting_pods, name)


def _find(recorder: Recorder, name: str) -> tuple[WorkflowRun, StageRun, PodRef] | None:
    ref = recorder.state.work.pods.get(name)
    run = recorder.state.work.runs.get(ref.workflow) if ref is not None else None
    if ref is None or run is None:
        return None
    return run, run.stages[ref.stage], ref


def _within(recorder: Recorder, stage: StageRun, task: int, after: int, at_ms: int) -> int:
    """A moment by another machine's or process's clock, moved after the one before it by ours, and not after now: durations are
    not negative, however clocks differ.
    """
    return min(max(at_ms, int(stage.times[task, after])), recorder.now)


class _Run(NamedTuple):
    """When an attempt ran, by the leader's clock. `measured`: its duration is a sample for others of its kind."""

    started_ms: int | None  #: None = it did not run
    ended_ms: int
    measured: bool = False


def _room_of(
    recorder: Recorder, stage: StageRun, task: int, ran: _Run, event: PodEnded | PodGone
) -> AttemptResources:
    """The allocation of an attempt, by its claim: its request when it was bound, with its memory as it was fitted or had grown."""
    claim = recorder.state.cluster.snapshot.claims.get(event.name)
    if claim is None or claim.kind is ClaimKind.STAGING:
        return AttemptResources()
    amount = dict(zip(AXES, claim.amount, strict=False))
    asked = stage.spec.roles[int(stage.role_of[task % stage.members])].resources.memory_bytes
    given = amount.get("memory", 0)
    fitted = None
    if 0 < given < asked:
        bound_ms = int(stage.times[task, BOUND])
        since_ms = bound_ms if ran.started_ms is None else min(bound_ms, ran.started_ms)
        fitted = Fitted(asked, given, max(0, ran.ended_ms - since_ms), event.reason == OUT_OF_MEMORY)
    return AttemptResources(amount["cpu"], given, amount.get("gpu", 0), fitted)


def _run_of(recorder: Recorder, stage: StageRun, ref: PodRef, event: PodEnded | PodGone) -> _Run:
    """Place an attempt that has ended on the leader's clock, so that it lasts as long as one clock has measured.

    It ends that long after its start, but not after now: if the leader learned of the start late, the start moves back.
    """
    now = recorder.now
    started, bound = stage.times[ref.task, [STARTED, BOUND]].tolist()
    if started < 0:
        return _Run(None, _within(recorder, stage, ref.task, BOUND, event.at_ms))
    ran_ms = event.ran_ms
    # Else its node's clock was set meanwhile, or it had run before a backup was restored.
    plausible = ref.adopted or (event.at_ms if ran_ms is None else now - ran_ms) >= bound - _ROUNDED_MS
    if ran_ms is None or not plausible:
        return _Run(started, _within(recorder, stage, ref.task, STARTED, event.at_ms), plausible)
    if not ref.adopted:
        ran_ms = min(ran_ms, now - bound)
    ended = min(started + ran_ms, now)
    return _Run(ended - ran_ms, ended, measured=True)


def _pod_ended(recorder: Recorder, event: PodEnded) -> None:
    found = _find(recorder, event.name)
    if found is None:
        return
    run, stage, ref = found
    ran = _run_of(recorder, stage, ref, event)
    event = structs.replace(
        event, at_ms=ran.ended_ms, container=_moved(event.container, ran.ended_ms - event.at_ms)
    )
    state = recorder.state
    if event.reason == "Timeout" and stage.spec.timeout_ms is None and default_timeout_ms(state, run):
        source = f"the document states none, so it has that of queue {run.spec.queue} (default_timeout_ms of its profile)"
        event = structs.replace(event, message=f"{event.message}; {source}" if event.message else source)
    if event.usage.disk_bytes > 0:
        shared = shared_ms(recorder, event.name, event.usage.disk_bytes)
        event = structs.replace(event, usage=structs.replace(event.usage, shared_ms=shared))
    node = state.cluster.snapshot.names[int(stage.node[ref.task])]
    words = event.message or _taken_away(stage, ref.task, event.reason)
    room = _room_of(recorder, stage, ref.task, ran, event)
    _note_end(
        recorder, event, ran.started_ms, event.exit_code, event.usage, room.fitted, words, event.container
    )
    for output in event.outputs:
        add_replica(recorder, output.uri, node, output.size_bytes)
    # It may have ended early, since it was asked to.
    leaving = stage.task_state.item(ref.task) == TaskState.RELEASING
    if (
        event.exit_code == 0
        and not event.reason
        and ran.started_ms is not None
        and ran.measured
        and not leaving
        and learn(recorder, run, stage, ref.task, event, ran.ended_ms - ran.started_ms)
    ):
        place_again(recorder, run.spec.kind_of(stage.spec))
    outputs = tuple((o.name, o.uri, o.size_bytes, o.value) for o in event.outputs)
    spoiled = bool(event.changed_inputs)
    at = state.cluster.snapshot.index[node]
    ahead, outgrown = "", False
    too_little = room.fitted is not None and room.fitted.in_vain
    if room.fitted is not None and too_little:
        ahead = (
            f"it had {format_bytes(room.memory_bytes)}, which its kind has used so far; "
            f"the next attempt gets the {format_bytes(room.fitted.asked_bytes)} that it asks for, and this one is not counted"
        )
    elif event.reason == OUT_OF_MEMORY:
        ahead, outgrown = memory_ahead(state, run, stage, ref.task, room.memory_bytes)
    message = "; ".join(filter(None, (event.message, ahead)))
    end = Ended(
        event.exit_code, event.reason, message, outputs, returned_by(event), spoiled, outgrown, too_little
    )
    recorder.advance(run).ended(stage, ref.task, ref.attempt, event.at_ms, end, room, ran.started_ms)
    wrote = event.outputs or (run.spec.call is not None and event.exit_code == 0)
    if wrote and len(state.cluster.snapshot) > 1:
        recorder.absorb()  # what it has written is known from here on
        note_written(recorder, run, stage, ref.task, at)


def returned_by(event: PodEnded) -> int:
    """The exit code that a successful attempt returns to its client: the number in its file `return_code`, else its last step's
    exit code, which is not 0 where the failure of a step is to be ignored.
    """
    report = event.container
    if report is None or event.exit_code or event.reason:
        return event.exit_code
    if report.returned is not None:
        return report.returned
    return report.steps[-1].exit_code if report.steps else 0


def _pod_gone(recorder: Recorder, event: PodGone) -> None:
    found = _find(recorder, event.name)
    if found is None:
        return
    run, stage, ref = found
    recorder.state.cluster.close(event.name, recorder.statement)
    ran = _run_of(recorder, stage, ref, event)
    event = replace(event, at_ms=ran.ended_ms)
    # Its pod was deleted while no process led.
    if event.reason == NOT_LAUNCHED and ran.started_ms is not None:
        event = replace(event, reason="PodDeleted", started=True)
    node = recorder.state.cluster.snapshot.names[int(stage.node[ref.task])]
    room = _room_of(recorder, stage, ref.task, ran, event)
    words = _taken_away(stage, ref.task, event.reason)
    _note_end(recorder, event, ran.started_ms, None, Usage(), room.fitted, words)
    recorder.advance(run).gone(
        stage,
        ref.task,
        ref.attempt,
        event.at_ms,
        event.reason,
        started=event.started,
        resources=room,
        began_ms=ran.started_ms,
    )
    for uri in event.lost_inputs:
        lose_replica(recorder, uri, ref.remote.get(uri, node))


def _moved(report: ContainerReport | None, by_ms: int) -> ContainerReport | None:
    """The report of a container task with its steps on the leader's clock."""
    if report is None or not by_ms:
        return report
    steps = (
        structs.replace(step, started_ms=step.started_ms + by_ms, ended_ms=step.ended_ms + by_ms)
        for step in report.steps
    )
    return structs.replace(report, steps=tuple(steps))


def _taken_away(stage: StageRun, task: int, reason: str) -> str:
    """Why flowsched took the pod of a task away, as one of `EVICTED`; "" if it did not, or cancelled the task."""
    why = stage.reasons.get(task, "")
    is_released = reason == RELEASED and stage.goal[task] in (TaskState.QUEUED, TaskState.FAILED)
    return why if is_released and why in EVICTED else ""


def _note_end(
    recorder: Recorder,
    event: PodEnded | PodGone,
    started_ms: int | None,
    exit_code: int | None,
    usage: Usage,
    fitted: Fitted | None,
    message: str = "",
    container: ContainerReport | None = None,
) -> None:
    used = {field: int(getattr(usage, field)) for field in Usage.__struct_fields__}
    if fitted is not None:
        used |= {"memory_asked_bytes": fitted.asked_bytes, "memory_given_bytes": fitted.given_bytes}
    report = b"" if container is None else _ENCODER.encode(container)
    end = AttemptEnd(
        event.name, event.at_ms, started_ms, exit_code, event.reason, message, used, report, fitted
    )
    recorder.attempt_ended(end)


def add_replica(recorder: Recorder, uri: str, node: str, size_bytes: int) -> None:
    """A node holds a dataset: the catalogue learns it, and SQL."""
    state = recorder.state
    at = state.cluster.snapshot.index.get(node)
    if at is None:
        return
    known = state.cluster.catalogue.find(uri)
    if known is not None and at in state.cluster.catalogue.nodes_of(known):
        return
    dataset = state.cluster.catalogue.intern(uri, size_bytes)
    state.cluster.catalogue.add_replica(dataset, at, recorder.statement)
    recorder.delta.replicas.append(ReplicaWrite(uri, node, size_bytes, True))
    came(recorder, dataset, at)
    recorder.dirty = True


def lose_replica(recorder: Recorder, uri: str, node: str) -> None:
    """A node does not hold a dataset (any more). If no node does and a stage still reads it, its producer runs again."""
    state = recorder.state
    dataset, at = state.cluster.catalogue.find(uri), state.cluster.snapshot.index.get(node)
    if dataset is None or at is None:
        return
    state.cluster.catalogue.drop_pieces(
        dataset, at, recorder.statement
    )  # a node without the whole dataset may have pieces
    if at not in state.cluster.catalogue.nodes_of(dataset):
        return
    state.cluster.catalogue.drop_replica(dataset, at, recorder.statement)
    recorder.delta.replicas.append(ReplicaWrite(uri, node, 0, False))
    recorder.dirty = True
    if not state.cluster.catalogue.lost(dataset):
        return
    for run in list(state.work.runs.values()):
        make_again(recorder, run, uri)


def make_again(recorder: Recorder, run: WorkflowRun, uri: str) -> None:
    """Let the producer of a lost dataset run again, if a stage that reads it has not ended; look again at one from outside."""
    replace_version(recorder, run, uri)
    producer = producer_of(run, uri)
    if producer is None or run.state.terminal or not _awaited(run, producer[0]):
        return
    recorder.state.work.drop_inputs(recorder.statement)
    recorder.advance(run).lose(*producer)


def _awaited(run: WorkflowRun, producer: StageRun) -> bool:
    """Whether some consumer of the stage has not ended."""
    children = {edge.child for edge in run.graph.edges_out[producer.number]}
    return any(not run.stages[child].state.terminal for child in children)
