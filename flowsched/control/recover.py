"""Recovery: a new leader's memory, from SQL and from what the cluster still has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from flowsched.engine.delta import StageWrite
from flowsched.engine.events import Recovered
from flowsched.engine.learning import relearn
from flowsched.engine.pods import decode_pod
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.engine.state import EngineState
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Pod
from flowsched.store.database import Database
from flowsched.store.recovery import load, load_living, outline
from flowsched.store.rows import Living, StageRow
from flowsched.store.rows import Recovered as RecoveredRows
from flowsched.store.samples import samples
from flowsched.workflow.estimates import weights
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run import WorkflowRun
from flowsched.workflow.spec import WorkflowSpec

#: Workflows are read back in slices that cost about this much (`_cost`), so that a first one is there soon and no slice is long.
_SLICE: Final = 100_000
#: A workflow of so many tasks, stages or bytes is rebuilt in a thread.
_THREAD: Final = 20_000


@dataclass(frozen=True, slots=True)
class Found:
    """What SQL remembers, but for the workflows themselves (`runs_back`).

    Args:
        living: Workflows that live, oldest first.
        pods: Our attempts whose end is not known.
        last_seq: Number of the newest submission.
        bindings: uids of foreign pods that an earlier leader may have asked to bind.
    """

    living: list[Living]
    pods: list[Pod]
    last_seq: int
    bindings: list[str]


class Specs(Protocol):
    """Where checked documents come from."""

    async def decoded(self, workflow: str, raw: bytes) -> WorkflowSpec:
        """The checked document of a workflow, of which these are the bytes."""
        ...


def make_run(state: EngineState, workflow: str, spec: WorkflowSpec, seq: int) -> WorkflowRun:
    """A fresh run with its ranks."""
    run = WorkflowRun(workflow, spec, StageGraph(spec), seq)
    rank(state, run)
    return run


def rank(state: EngineState, run: WorkflowRun) -> None:
    """Upward ranks from the user's estimates, else what was learned, else what is known of its other stages."""
    run.ranks = run.graph.upward_ranks(weights(state.estimates, run.spec))


async def recover(database: Database, state: EngineState, nodes: Sequence[NodeInfo]) -> Found:
    """Everything a new leader needs but the workflows themselves.

    Returns:
        Which workflows live, and what is to be adopted.
    """
    for node in nodes:
        state.catalogue.limit(state.snapshot.put_node(node), node.cache_bytes)
    recovery = await outline(database)
    for sample in await samples(database):
        relearn(
            state,
            sample.workflow,
            sample.stage,
            sample.runtime_ms,
            sample.input_bytes,
            sample.usage,
            sample.outputs,
        )
    for replica in recovery.replicas:
        at = state.snapshot.index.get(replica.node)
        if at is not None:
            dataset = state.catalogue.intern(replica.uri, replica.size_bytes)
            state.catalogue.add_replica(dataset, at)
    state.snapshot.usage.load(recovery.usage, state.snapshot.axes)
    pods = [decode_pod(attempt.pod) for attempt in recovery.attempts]
    return Found(recovery.living, pods, recovery.last_seq, recovery.bindings)


async def runs_back(
    database: Database, specs: Specs, state: EngineState, found: Found
) -> AsyncIterator[list[Recovered]]:
    """The workflows that live with their open pods, a slice at a time, oldest first."""
    pods: dict[str, list[Pod]] = {}
    for pod in found.pods:
        pods.setdefault(pod.workflow, []).append(pod)
    for some in _slices(found.living):
        rows = await load_living(database, some[0].seq, some[-1].seq)
        yield [
            Recovered(await _run(specs, state, each), tuple(pods.get(name, ())))
            for name, each in rows.items()
        ]


async def load_run(database: Database, specs: Specs, state: EngineState, workflow: str) -> WorkflowRun | None:
    """Read one workflow back, whatever its state. None: there is no such workflow."""
    rows = await load(database, workflow)
    return None if rows is None else await _run(specs, state, rows)


async def _run(specs: Specs, state: EngineState, rows: RecoveredRows) -> WorkflowRun:
    spec = await specs.decoded(rows.workflow.id, rows.spec)
    if rows.workflow.tasks + rows.workflow.stages + len(rows.spec) > _THREAD:
        return await asyncio.to_thread(_rebuilt, state, spec, rows)
    await asyncio.sleep(0)
    return _rebuilt(state, spec, rows)


def _rebuilt(state: EngineState, spec: WorkflowSpec, rows: RecoveredRows) -> WorkflowRun:
    run = rebuild_run(state, spec, StageGraph(spec), _remembered(rows))
    rank(state, run)
    return run


def _slices(living: Iterable[Living]) -> Iterator[list[Living]]:
    """In order; a slice ends with the workflow that makes it cost more than `_SLICE`."""
    some: list[Living] = []
    cost = 0
    for each in living:
        some.append(each)
        cost += each.tasks + 50 * each.stages + each.spec_bytes // 50
        if cost > _SLICE:
            yield some
            some, cost = [], 0
    if some:
        yield some


def _remembered(rows: RecoveredRows) -> Remembered:
    workflow = rows.workflow
    return Remembered(
        workflow=workflow.id,
        seq=workflow.seq,
        state=workflow.state,
        reason=workflow.reason,
        started_ms=workflow.started_ms,
        cancel_requested=workflow.cancel_requested,
        paused=workflow.paused,
        stages=[_stage(row) for row in rows.stages],
        tasks=rows.tasks,
        outputs=rows.outputs,
    )


def _stage(row: StageRow) -> StageWrite:
    return StageWrite(
        row.workflow,
        row.stage,
        row.state,
        row.counts,
        row.started_ms,
        row.ended_ms,
        row.reason,
        row.totals,
    )
