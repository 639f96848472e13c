"""External datasets that nearly every node will need: they go there while those who will read them still wait for their producers.

A reference of 28 GB takes four minutes over a link of 1 Gbit/s. If forty tasks that are not ready yet will read it, it will be
wanted on every node at once, when the links are busy with what else those tasks read; until then the links have time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from flowsched.engine.changes import Recorder
from flowsched.engine.state import Spread
from flowsched.scheduling.transfers import TransferWant
from flowsched.workflow.run import StageRun, WorkflowRun
from flowsched.workflow.states import TaskState

#: What is less is there soon enough when it is asked for.
_LEAST_BYTES: Final = 256_000_000


def spreads_of(run: WorkflowRun) -> tuple[Spread, ...]:
    """The datasets of a workflow that may be worth it, however many nodes there are."""
    readers: dict[str, list[int]] = {}
    for stage in run.stages:
        for spec in stage.spec.inputs:
            if spec.stage is None and spec.uri is not None and "{" not in spec.uri and not stage.spec.gang:
                readers.setdefault(spec.uri, []).append(stage.number)
    return tuple(Spread(uri, tuple(stages)) for uri, stages in readers.items())


def spreading(recorder: Recorder) -> Iterator[TransferWant]:
    """What shall be on every node before it is asked for there."""
    state = recorder.state
    if not state.profile.locality or len(state.snapshot) < 2:
        return
    ready: list[int] | None = None
    for run in state.runs.values():
        if run.id not in state.spreads:
            state.spreads[run.id] = spreads_of(run)
        for spread in state.spreads[run.id]:
            dataset = state.catalogue.find(spread.uri)
            if dataset is None or state.catalogue.sizes[dataset] < _LEAST_BYTES:
                continue
            if ready is None:
                ready = np.flatnonzero(state.snapshot.ready).tolist()
            there = state.catalogue.nodes_of(dataset)
            if len(there) >= len(ready) or not state.catalogue.origins[dataset]:
                continue
            copy_ms = state.catalogue.sizes[dataset] * 1000 // max(1, int(state.snapshot.nic_in[ready].max()))
            rank = _rank(run, spread, len(ready), copy_ms)
            if rank is not None:
                for node in ready:
                    if node not in there:
                        yield TransferWant(dataset, node, rank, run.spec.priority, 2)


def _rank(run: WorkflowRun, spread: Spread, nodes: int, copy_ms: int) -> int | None:
    """The rank of the first who will read it soon; None where too few will, or none before long, or all too soon for a copy."""
    if run.paused or run.cancel_requested or sum(run.stages[s].spec.width for s in spread.stages) < nodes:
        return None
    pending = [run.stages[s] for s in spread.stages if run.stages[s].counts[TaskState.PENDING]]
    soon = [stage.number for stage in pending if _awaits(run, stage, copy_ms)]
    return max((int(run.ranks[s]) for s in soon), default=None)


def _awaits(run: WorkflowRun, stage: StageRun, copy_ms: int) -> bool:
    """Whether something of what a stage waits for is under way that takes as long as a copy."""
    parents = [run.stages[edge.parent] for edge in run.graph.edges_in[stage.number]]
    long = [each for each in parents if (each.spec.estimate.runtime_ms or 0) >= copy_ms]
    return any(each.uniform is None and (each.done or each.holding()) for each in long)
