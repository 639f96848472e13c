"""Runs as the engine gets them: a fresh one with its ranks; after a restart one from the rows that SQL remembers, and the room of
pods that may still be there.

Only durable facts come back: intents, starts, ends. Everything else (missing counts, ready sets, claims, shares) is
derived again, so that a restart computes reservations exactly (FAULTS.md row 39).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.engine.data.cache_values import pin_again
from flowsched.engine.data.remote_reads import pin_sources
from flowsched.engine.delta import OutputWrite, StageWrite, TaskWrite
from flowsched.engine.io_demand import declared_demand, demands_of
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import Demand, GangSeats, PodRef
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import GangSeat, Pod
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.gpus import allocated_parts
from flowsched.scheduling.state.usage import Payer
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.estimates import weights
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.returned import in_totals
from flowsched.workflow.run.moves import BOUND, STARTED
from flowsched.workflow.run.run import TOTALS, Output, StageRun, WorkflowRun
from flowsched.workflow.run.states import HOLDING, RunState, TaskState
from flowsched.workflow.spec import On, WorkflowSpec, gets_whole_cores, qos_class

_S = TaskState
#: Rows in these states held nothing: they are offered anew.
_QUEUE_AGAIN: Final = (_S.QUEUED, _S.STAGING, _S.ALLOCATED)
#: The state of a task without a row, by the state in which its stage ended.
_UNTOUCHED: Final[Mapping[RunState, TaskState]] = {
    RunState.SUCCEEDED: _S.SKIPPED,
    RunState.SKIPPED: _S.SKIPPED,
    RunState.FAILED: _S.CANCELLED,
    RunState.CANCELLED: _S.CANCELLED,
}


class Remembered(msgspec.Struct):
    """One workflow's rows."""

    workflow: str
    seq: int
    state: str
    reason: str
    started_ms: int | None
    cancel_requested: bool
    paused: bool
    stages: Sequence[StageWrite]
    tasks: Sequence[TaskWrite]
    outputs: Sequence[OutputWrite]
    pods: Sequence[Pod] = msgspec.field(default_factory=tuple)  #: attempts that have no recorded end


def make_run(state: EngineState, workflow: str, spec: WorkflowSpec, seq: int) -> WorkflowRun:
    """A fresh run with its ranks."""
    run = WorkflowRun(workflow, spec, StageGraph(spec), seq)
    rank(state, run)
    return run


def rank(state: EngineState, run: WorkflowRun) -> None:
    """Upward ranks from the user's estimates, else what was learned, else what is known of its other stages.

    The rank of a call goes on with the kinds that are known to follow it. One that its engine or its plan ranks keeps that rank.
    """
    run.ranks = run.graph.upward_ranks(weights(state.work.estimates, run.spec))
    if run.spec.call is None or run.spec.call.rank_ms:
        return
    kind = run.spec.kind_of(run.spec.stages[0])
    onward_ms = state.work.engines.learned_plan.onward_ms(state.work.estimates, kind)
    run.ranks = run.ranks + onward_ms


def untouched_state(stage: RunState) -> TaskState:
    """The state of a task that has no row."""
    return _UNTOUCHED.get(stage, _S.PENDING)


def rebuild_run(state: EngineState, spec: WorkflowSpec, graph: StageGraph, rows: Remembered) -> WorkflowRun:
    """The run as its rows are; `Advance.rebuild` (by the event `Recovered`) derives the rest."""
    run = WorkflowRun(rows.workflow, spec, graph, rows.seq)
    run.state = RunState(rows.state)
    run.reason = rows.reason
    run.started_ms = rows.started_ms
    run.paused = rows.paused
    cancelled = rows.cancel_requested or run.state is RunState.CANCELLING  # the end of a head asks in memory
    run.cancel_requested = cancelled and not run.state.terminal
    for row in rows.stages:
        _stage(run.stages[row.stage], row)
    by_stage: dict[int, list[TaskWrite]] = {}
    for task in rows.tasks:
        by_stage.setdefault(task.stage, []).append(task)
    for number, tasks in by_stage.items():
        _tasks(state, run.stages[number], tasks)
    for out in rows.outputs:
        stage = run.stages[out.stage]
        if stage.uniform is None and out.attempt != int(stage.attempt[out.index]):
            continue  # of an attempt that was lost, or has been given up since
        shard = out.index // stage.members
        shards = run.outputs.setdefault((out.stage, out.name), {})
        shards[shard] = Output(out.uri, out.size_bytes, out.value, out.attempt)
    return run


def none_later(run: WorkflowRun, now: int) -> None:
    """Replace times in the future by `now`: the wall clock was set back while the service was down, by an unknown amount.

    So no wait gets longer, and no duration is negative.
    """
    run.started_ms = None if run.started_ms is None else min(run.started_ms, now)
    for stage in run.stages:
        stage.started_ms = None if stage.started_ms is None else min(stage.started_ms, now)
        if stage.uniform is None:
            np.minimum(stage.times, now, out=stage.times)


def note_served(state: EngineState, run: WorkflowRun, statement: Statement) -> None:
    """A queue and its user were given something when a task of the run was bound last. Ageing counts from there."""
    served = max([0, *(int(s.times[:, BOUND].max()) for s in run.stages if s.uniform is None)])
    usage, payer = state.cluster.snapshot.usage, Payer(run.spec.queue, run.spec.user)
    statement.put(usage.served_users, payer, max(served, usage.served_users.get(payer, 0)))
    served = max(served, usage.served_queues.get(payer.queue, 0))
    for queue in state.policy.queues.path(payer.queue):
        statement.put(usage.served_queues, queue.name, max(served, usage.served_queues.get(queue.name, 0)))


def _stage(stage: StageRun, row: StageWrite) -> None:
    stage.state = RunState(row.state)
    stage.reason = row.reason
    stage.started_ms, stage.ended_ms = row.started_ms, row.ended_ms
    stage.totals[:] = [row.totals.get(name, 0) for name in TOTALS]
    stage.returned = in_totals(row.totals)
    stage.uniform = untouched_state(stage.state)
    stage.verdict = True if row.started_ms is not None else None
    if stage.state is RunState.SUCCEEDED:
        stage.done = stage.spec.width
    stage.counts[:] = 0
    stage.counts[stage.uniform] = stage.spec.tasks


def _load(stage: StageRun, name: str, at: NDArray[np.int64], values: Sequence[int]) -> None:
    """Fill an array that most stages do without."""
    if not stage.holds_only(name, values):
        stage.own(name)[at] = values


def _tasks(state: EngineState, stage: StageRun, rows: Sequence[TaskWrite]) -> None:
    stage.touch(np.zeros(stage.spec.width, dtype=np.int32))
    at = np.array([row.index for row in rows], dtype=np.int64)
    stage.task_state[at] = [_S.PENDING if row.state in _QUEUE_AGAIN else row.state for row in rows]
    _load(stage, "attempt", at, [row.attempt for row in rows])
    _load(stage, "version", at, [row.version for row in rows])
    stage.goal[at] = [row.goal for row in rows]
    _load(stage, "charged", at, [row.charged for row in rows])
    _load(stage, "memory_steps", at, [row.memory_steps for row in rows])
    _load(stage, "node", at, [node_index(state, row.node) for row in rows])
    _load(stage, "local", at, [row.bytes_local for row in rows])
    _load(stage, "moved", at, [row.bytes_moved for row in rows])
    _load(stage, "exit_code", at, [-1 if row.exit_code is None else row.exit_code for row in rows])
    moments = [(r.ready_ms, r.staging_ms, r.staged_ms, r.bound_ms, r.started_ms, r.ended_ms) for r in rows]
    stage.times[at] = [[-1 if moment is None else moment for moment in row] for row in moments]
    stage.reasons = {row.index: row.reason for row in rows if row.reason}
    stage.counts[:] = np.bincount(stage.task_state, minlength=len(stage.counts))
    failed = [
        row for row in rows if _S.FAILED in (row.state, row.goal if row.state == _S.RELEASING else None)
    ]
    stage.failed = bool(failed)
    if stage.failed and not stage.reason:
        stage.reason = f"task {failed[0].index} failed: {failed[0].reason}"
    shards = stage.task_state.reshape(stage.spec.width, stage.members)
    goals = stage.goal.reshape(stage.spec.width, stage.members)
    ended = np.isin(shards, (_S.SUCCEEDED, _S.SKIPPED))
    ended |= (shards == _S.RELEASING) & (goals == _S.SUCCEEDED)
    ended |= _skip_never_placed(stage, shards)
    needed = stage.completing if stage.completing.any() else np.ones(stage.members, dtype=np.bool_)
    some = (shards == _S.SUCCEEDED).any(axis=1)
    stage.shard_done[:] = ended[:, needed].all(axis=1) & some
    if stage.state is RunState.SUCCEEDED:
        stage.shard_done[:] = True
    stage.done = int(stage.shard_done.sum())


def _skip_never_placed(stage: StageRun, shards: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Mark the members of elastic gangs that were skipped before the restart. They were never placed, so they have no row.

    They were skipped when their shard was done: the role's minimum has succeeded, and none of the role is left to run. If other
    members of the shard still run, it was not done. A member without a row was then on its way to a node, and is offered again.

    Returns:
        (W, members) True for all members of roles that are done in this sense.
    """
    enough = np.zeros(shards.shape, dtype=np.bool_)
    versions = stage.version.reshape(shards.shape)
    goes_on = np.isin(shards, [state for state in HOLDING if state is not _S.RELEASING]).any(axis=1)
    for number, role in enumerate(stage.spec.roles):
        if not stage.spec.gang or role.minimum == role.replicas:
            continue
        of_role = stage.role_of == number
        satisfied = (shards[:, of_role] == _S.SUCCEEDED).sum(axis=1) >= role.minimum
        unplaced = (versions == 0) & (shards == _S.PENDING) & of_role
        others = np.isin(shards, (_S.SUCCEEDED, _S.SKIPPED, _S.CANCELLED)) | unplaced
        done = satisfied & others[:, of_role].all(axis=1) & ~goes_on
        shards[unplaced & done[:, None]] = _S.SKIPPED
        enough |= done[:, None] & of_role
    stage.counts[:] = np.bincount(stage.task_state, minlength=len(stage.counts))
    return enough


def node_index(state: EngineState, name: str | None) -> int:
    """The index of a node; one that is not there (any more) gets a place in the arrays, and no new pods."""
    if name is None:
        return -1
    at = state.cluster.snapshot.index.get(name)
    return at if at is not None else state.cluster.snapshot.put_node(NodeInfo(name, 0, 0, ready=False))


def reclaim(
    state: EngineState, run: WorkflowRun, pods: Iterable[Pod], statement: Statement, now: int
) -> list[str]:
    """Claim the room of pods that may still exist. Returns the pods that no task wants any more, to be released."""
    orphans: list[str] = []
    claims: list[Claim] = []
    wanted: list[tuple[StageRun, Pod, Claim]] = []
    binding: list[str] = []
    by_stage: dict[str, list[Pod]] = {}
    for pod in pods:
        by_stage.setdefault(pod.stage, []).append(pod)
    for name, mine in by_stage.items():
        stage = run.stages[run.number_of(name)]
        adopted = _wanted(stage, mine)
        orphans.extend(pod.name for pod in mine if pod.name not in adopted)
        claims_here = list(_claims(state, run, stage, list(adopted.values())))
        claims.extend(claims_here)
        wanted.extend(zip(repeat(stage), adopted.values(), claims_here))
        begun = stage.task_state[[pod.index for pod in adopted.values()]] == _S.BINDING
        binding.extend(compress(adopted, begun.tolist()))
    # Pods that were sent ahead have claims too, also beyond the room of their node: they may start at any moment.
    state.cluster.snapshot.claim_all(claims, statement)
    ahead = {pod.name for _, pod, _ in wanted if pod.after}.intersection(binding)
    statement.put_all(state.cluster.sent, dict.fromkeys(sorted(ahead), now))
    _credit(state, claims, statement)
    refs = {
        pod.name: PodRef(run.id, stage.number, pod.index, pod.attempt, pod.remote, adopted=True)
        for stage, pod, _ in wanted
    }
    statement.put_all(state.work.pods, refs)
    statement.include_all(state.round.under_way, binding)
    for stage, pod, claim in wanted:
        pin_sources(state, refs[pod.name], statement)
        pin_again(state, run, stage, pod.index, pod, claim, statement)
        if pod.gang is not None:
            _remember_seats(state, run, stage, pod, pod.gang, statement)
    return orphans


def _wanted(stage: StageRun, pods: Sequence[Pod]) -> dict[str, Pod]:
    """The pods that are present attempts of tasks that hold room, by name."""
    if stage.uniform is not None:
        return {}
    at = [pod.index for pod in pods]
    attempts, states = stage.attempt[at].tolist(), stage.task_state[at].tolist()
    return {
        pod.name: pod
        for pod, attempt, state in zip(pods, attempts, states, strict=True)
        if pod.attempt == attempt and state in HOLDING
    }


def _claims(state: EngineState, run: WorkflowRun, stage: StageRun, pods: Sequence[Pod]) -> Iterator[Claim]:
    """The claims of pods of one stage.

    A gang is one unit: without one of its members it would start anew. A claim is the request of the pod when it was bound: its
    memory may have grown since the document was written.
    """
    at = np.array([pod.index for pod in pods], dtype=np.int64)
    columns = [stage.task_state[at], stage.role_of[at % stage.members], *stage.times[at].T[[BOUND, STARTED]]]
    demands: dict[tuple[int, tuple[int, ...]], Demand] = {}
    amounts: dict[tuple[int, int, Demand], tuple[int, ...]] = {}
    qos = [int(qos_class(role.resources, role.limits)) for role in stage.spec.roles]
    group = f"{run.spec.name}/{stage.spec.name}"
    for pod, state_of, number, bound, started in zip(
        pods, *(column.tolist() for column in columns), strict=True
    ):
        inputs = _inputs(state, pod)
        io = demands.get((number, inputs))
        if io is None:
            io = demands[number, inputs] = _demand(state, run, stage, number, inputs)
        shape = (number, pod.memory_bytes, io)
        amount = amounts.get(shape)
        if amount is None:
            role = stage.spec.roles[number]
            resources = replace(role.resources, memory_bytes=pod.memory_bytes)
            aligned = gets_whole_cores(resources, role.limits)
            amount = amounts[shape] = state.cluster.snapshot.pod_vector(resources, io.rate, aligned=aligned)
        runs = state_of == TaskState.RUNNING and started >= 0
        part = pod.index // stage.members if stage.spec.gang else pod.index
        yield Claim(
            owner=pod.name,
            node=node_index(state, pod.node),
            amount=amount,
            kind=ClaimKind.RELEASING if state_of == TaskState.RELEASING else ClaimKind.RUNNING,
            queue=run.spec.queue,
            user=run.spec.user,
            since_ms=max(bound, 0),
            until_ms=None if pod.runtime_hint_ms is None else max(bound, 0) + pod.runtime_hint_ms,
            io_bytes=io.moved,
            direct=io.direct,
            learned=(*run.spec.kind_of(stage.spec), io.learned) if io.learned else None,
            group=group,
            devices=allocated_parts(pod.gpu_ids, pod.gpu_millis) if pod.gpu_ids else (),
            unit=f"{run.id}/{stage.spec.name}/{part}",
            priority=run.spec.priority + sum(pod.promoted[-1:]),
            qos=qos[number],
            started_ms=started if runs else None,
            elastic=elastic_of(stage, pod.index) if stage.spec.gang else None,
            starting=not runs,
            promoted=pod.promoted,
            in_quota=True,
        )


def _credit(state: EngineState, claims: Sequence[Claim], statement: Statement) -> None:
    """Count for queues and users the usage of these pods since they were bound."""
    allocations: Counter[tuple[Payer, int, tuple[int, ...]]] = Counter(
        (Payer(claim.queue, claim.user), claim.since_ms, claim.amount) for claim in claims
    )
    for (payer, since_ms, amount), pods in allocations.items():
        together = [pods * each for each in amount]
        state.cluster.snapshot.usage.credit(payer, together, since_ms, statement)


def _inputs(state: EngineState, pod: Pod) -> tuple[int, ...]:
    """The datasets that a pod reads, as far as they are known."""
    if not pod.inputs:
        return ()
    found = (state.cluster.catalogue.find(uri) for file in pod.inputs for uri in file.uris)
    return tuple(dataset for dataset in found if dataset is not None)


def _demand(
    state: EngineState, run: WorkflowRun, stage: StageRun, role: int, inputs: tuple[int, ...]
) -> Demand:
    """The demand for its node's disk as far as it is known now (SQL keeps none), else the declared one."""
    known = demands_of(state, run, stage, inputs)
    demand = known[role] if known else None
    return demand if demand is not None else declared_demand(stage.spec, role)


def elastic_of(stage: StageRun, task: int) -> tuple[int, int, int] | None:
    """How a member stands in a gang that may go on with fewer of its role; None where all must stay, or a policy decides
    about a gang of which one is evicted.
    """
    member = task % stage.members
    number = int(stage.role_of[member])
    role = stage.spec.roles[number]
    has_policy = any(policy.event in (On.TASK_EVICTED, On.ANY) for policy in stage.spec.policies)
    if not stage.spec.gang or role.minimum >= role.replicas or has_policy:
        return None
    return number, member, role.minimum


def _remember_seats(
    state: EngineState, run: WorkflowRun, stage: StageRun, pod: Pod, seat: GangSeat, statement: Statement
) -> None:
    """Members placed later must get ranks and addresses that go on from these, and new gangs must not."""
    first = seat.number - pod.index % stage.members
    key = (run.id, stage.number, pod.shard)
    known = state.work.gang_seats.get(key)
    if (
        known is None or len(known.members) < seat.roster.size
    ):  # a member that joined later knows more of them
        statement.put(state.work.gang_seats, key, GangSeats.of(seat.roster, first))
    statement.assign(state.work, "next_address", max(state.work.next_address, first + stage.members))
