"""Recovery: a new leader's memory, from SQL and from what the cluster still has, and the removal of what no workflow needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from flowsched.aside import aside
from flowsched.control.documents import Documents
from flowsched.control.leading.dispatch import Dispatcher
from flowsched.engine.data.cache_values import origin_of
from flowsched.engine.delta import StageWrite
from flowsched.engine.events import Ended, Recovered
from flowsched.engine.pod_orders import decode_pods
from flowsched.engine.recovery import Remembered, rank, rebuild_run
from flowsched.engine.state import EngineState
from flowsched.engine.telemetry import relearn
from flowsched.errors import FlowschedError, NotFound
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Executor, Pod
from flowsched.log_lines import get_logger
from flowsched.statement import Statement
from flowsched.store.database import Database
from flowsched.store.recovery import calls, load, load_living, outline, samples
from flowsched.store.rows import Living, StageRow
from flowsched.store.rows import Recovered as RecoveredRows
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.run import WorkflowRun

#: Workflows are read back in slices that cost about this much (`_cost`), so that a first one is there soon and no slice is long.
_SLICE: Final = 100_000


class Found(msgspec.Struct, frozen=True):
    """The rows that SQL remembers, but for the workflows themselves (`runs_back`).

    Args:
        living: Workflows that live, oldest first.
        pods: Our attempts that have no recorded end.
        last_seq: Number of the newest submission.
        bindings: uids of foreign pods that an earlier leader may have asked to bind.
    """

    living: list[Living]
    pods: list[Pod]
    last_seq: int
    bindings: list[str]


async def recover(database: Database, state: EngineState, nodes: Sequence[NodeInfo]) -> Found:
    """Everything a new leader needs but the workflows themselves.

    Returns:
        Which workflows live, and what is to be adopted.
    """
    for node in nodes:
        state.cluster.catalogue.limit(state.cluster.snapshot.put_node(node), node.cache_bytes)
    recovery = await outline(database)
    for sample in await samples(database):
        relearn(
            state,
            sample.kind,
            sample.stage,
            sample.runtime_ms,
            sample.input_bytes,
            sample.usage,
            sample.outputs,
        )
    for call in await calls(database):
        state.work.engines.learned_plan.note(*call)
        state.work.engines.learned_plan.come(call.run, call.kind, Statement())
    for replica in recovery.replicas:
        at = state.cluster.snapshot.index.get(replica.node)
        if at is not None:
            dataset = state.cluster.catalogue.intern(replica.uri, replica.size_bytes)
            state.cluster.catalogue.add_replica(dataset, at)
    state.cluster.snapshot.usage.load(recovery.usage, state.cluster.snapshot.axes)
    pods = decode_pods(recovery.pods, recovery.gang_orders)
    return Found(recovery.living, pods, recovery.last_seq, recovery.bindings)


async def runs_back(
    database: Database, specs: Documents, state: EngineState, found: Found
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


async def load_run(
    database: Database, specs: Documents, state: EngineState, workflow: str
) -> WorkflowRun | None:
    """Read one workflow back, whatever its state. None: there is no such workflow."""
    rows = await load(database, workflow)
    return None if rows is None else await _run(specs, state, rows)


async def _run(specs: Documents, state: EngineState, rows: RecoveredRows) -> WorkflowRun:
    spec = await specs.decoded(rows.workflow.id, rows.spec)

    def rebuilt() -> WorkflowRun:
        run = rebuild_run(state, spec, StageGraph(spec), _remembered(rows))
        rank(state, run)
        return run

    await asyncio.sleep(0)
    return await aside(rows.workflow.tasks + rows.workflow.stages + len(rows.spec), rebuilt)


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


# ---- leftovers: what workflows that ended before the restart left in caches with a limit ----
#
# Only the engine's memory knows which outputs of an ended workflow its own stages read, and a new leader's memory begins with
# the workflows that live. Until it knows more, it keeps everything of the others as if it were a result.


log = get_logger(__name__)

LEFTOVERS_PERIOD_S: Final = 60.0
#: Documents read in one go.
_MOST: Final = 200


class Leftovers:
    """Tells the engine of workflows that ended in an earlier life of the service."""

    def __init__(self, dispatcher: Dispatcher, specs: Documents) -> None:
        self._dispatcher = dispatcher
        self._specs = specs
        self._gone: set[str] = set()  #: workflows without a row: expired ones, or another database's

    async def run(self) -> None:
        """Look for ever: nodes may come later."""
        while True:
            try:
                await self.once()
            except FlowschedError as error:
                log.warning("what ended before cannot be looked up now", error=str(error))
            await asyncio.sleep(LEFTOVERS_PERIOD_S)

    async def once(self) -> int:
        """Tell of some. Returns how many."""
        events: list[Ended] = []
        await self._dispatcher.rest()
        for workflow in self._unknown()[:_MOST]:
            try:
                events.append(Ended(workflow, await self._specs.spec(workflow)))
            except NotFound:
                self._gone.add(workflow)
        if events:
            self._dispatcher.report(events)
        return len(events)

    def _unknown(self) -> list[str]:
        state = self._dispatcher.state
        caches = state.cluster.catalogue.caches
        found: dict[str, None] = {}
        for cache in caches.of.values() if caches is not None else ():
            for dataset in cache.there:
                origin = origin_of(state.cluster.catalogue.uris[dataset])
                if origin is not None:
                    found[origin.workflow] = None
        known = (state.work.runs, state.caches.ended_reads, self._gone)
        return sorted(name for name in found if not any(name in names for names in known))


# ---- reconciliation: pods that no row knows are reported, and removed after a grace; ended ones are tidied away ----


#: Between two looks.
RECONCILE_PERIOD_S: Final = 5.0
#: An orphan is named once and has this long to be claimed (a recovery may be under way) before it is released.
GRACE_MS: Final = 20_000
RELEASE_MS: Final = 5_000


class Reconciler:
    """Compares what lives with what the engine holds."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        executor: Executor,
        *,
        clock: Callable[[], int],
        found: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._dispatcher = dispatcher
        self._executor = executor
        self._clock = clock
        self._found = found  #: told by each look how many live that the engine does not know
        self._alive_since: dict[str, int] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(RECONCILE_PERIOD_S)
            try:
                await self.compare()
            except OSError as error:
                log.warning("attempts cannot be looked through now, trying again", error=str(error))

    async def compare(self) -> list[str]:
        """One look. Returns the orphans that were released by it."""
        now = self._clock()
        found = await self._executor.orphans()
        await self._dispatcher.rest()
        wanted = self._dispatcher.state.work.pods
        living = {name for name in found if name not in wanted}
        for name in living - self._alive_since.keys():
            log.warning(
                "an attempt lives that the engine does not know", pod=name, released_in_s=GRACE_MS // 1000
            )
        self._found(len(living))
        self._alive_since = {name: self._alive_since.get(name, now) for name in living}
        overdue = sorted(name for name, since in self._alive_since.items() if now - since >= GRACE_MS)
        if overdue:
            await self._executor.release(overdue, RELEASE_MS)
        await self._tidy()
        return overdue

    async def _tidy(self) -> None:
        """Working folders of attempts that ended well are not needed any more; logs and records stay."""
        ended, self._dispatcher.ended = self._dispatcher.ended, []
        well, self._dispatcher.ended_well = self._dispatcher.ended_well, []
        if ended:
            await self._executor.settle(ended)
        if well:
            await self._executor.forget(well)
