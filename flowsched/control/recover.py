"""Recovery: a new leader's memory, from SQL and from what the cluster still has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from flowsched.engine.delta import StageWrite
from flowsched.engine.events import Recovered
from flowsched.engine.learning import relearn
from flowsched.engine.pods import decode_pod
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.engine.state import EngineState
from flowsched.scheduling.executor import NodeInfo, Pod
from flowsched.store.database import Database
from flowsched.store.recovery import load
from flowsched.store.rows import Recovered as RecoveredRows
from flowsched.store.rows import Recovery, StageRow
from flowsched.store.samples import samples
from flowsched.workflow.estimates import weights
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run import WorkflowRun
from flowsched.workflow.spec import WorkflowSpec

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What SQL remembers.

    Args:
        runs: Workflows that live.
        pods: Our attempts whose end is not known.
        last_seq: Number of the newest submission.
        bindings: uids of foreign pods that an earlier leader may have asked to bind.
    """

    runs: list[Recovered]
    pods: list[Pod]
    last_seq: int
    bindings: list[str]


class Specs(Protocol):
    """Where checked documents come from."""

    async def spec(self, workflow: str) -> WorkflowSpec:
        """The checked document of a workflow."""
        ...


def make_run(state: EngineState, workflow: str, spec: WorkflowSpec, seq: int) -> WorkflowRun:
    """A fresh run with its ranks."""
    run = WorkflowRun(workflow, spec, StageGraph(spec), seq)
    rank(state, run)
    return run


def rank(state: EngineState, run: WorkflowRun) -> None:
    """Upward ranks from the user's estimates, else what was learned, else what is known of its other stages."""
    run.ranks = run.graph.upward_ranks(weights(state.estimates, run.spec))


async def load_runs(
    database: Database, specs: Specs, state: EngineState, only: Collection[str] | None = None
) -> list[Recovered]:
    """Read workflows back: all that live, or just those named."""
    recovery = await load(database, only)
    return await _rebuilt(recovery, specs, state)


async def recover(database: Database, specs: Specs, state: EngineState, nodes: Sequence[NodeInfo]) -> Found:
    """Everything a new leader needs.

    Returns:
        The runs with their open pods (events for the first step), and what is to be adopted.
    """
    for node in nodes:
        state.catalogue.limit(state.snapshot.put_node(node), node.cache_bytes)
    recovery = await load(database)
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
    runs = await _rebuilt(recovery, specs, state)
    pods = [decode_pod(attempt.pod) for attempt in recovery.attempts]
    log.info("recovered", workflows=len(runs), open_pods=len(pods), replicas=len(recovery.replicas))
    return Found(runs, pods, recovery.last_seq, recovery.bindings)


async def _rebuilt(recovery: Recovery, specs: Specs, state: EngineState) -> list[Recovered]:
    pods: dict[str, list[Pod]] = {}
    for attempt in recovery.attempts:
        pods.setdefault(attempt.workflow, []).append(decode_pod(attempt.pod))
    runs = []
    for workflow, rows in recovery.workflows.items():
        spec = await specs.spec(workflow)
        run = rebuild_run(state, spec, StageGraph(spec), _remembered(rows))
        rank(state, run)
        runs.append(Recovered(run, tuple(pods.get(workflow, ()))))
    return runs


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
