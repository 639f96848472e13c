"""Prefetch: bytes that move before a task asks for them: outputs to their gather nodes, pieces of them, and shared references.

Outputs go to the nodes where their readers will run while other producers still compute (docs/locality.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from flowsched.engine.data.gather_nodes import call_home, consumer_shard, gather_of, is_call
from flowsched.engine.predictor import typical_runtime
from flowsched.engine.state import EngineState
from flowsched.engine.state.data import Awaited, Spread
from flowsched.engine.transaction import Recorder
from flowsched.executor.protocol import PiecesSeen, TransferDone, TransferFailed
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.transfers import TransferWant, Wants
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.run.states import RunState, TaskState

#: An output of an engine's call waits so long for the call that will read it: the engine or its run may be gone.
_AWAITED_MS: Final = 1_800_000


def note_written(recorder: Recorder, run: WorkflowRun, stage: StageRun, task: int, node: int) -> None:
    """A shard's outputs are on a node: if their reader's home is another one, they shall go there."""
    state = recorder.state
    if is_call(run):
        _note_call(recorder, run, stage, task, node)
        return
    gather = gather_of(state, run, stage)
    if gather is None:
        return
    consumer = run.stages[gather.consumer]
    shard = task // stage.members
    home = state.data.homes.get((run.id, gather.consumer, consumer_shard(gather, stage, consumer, shard)))
    if home is None or home == node:
        return
    read = {i.output for i in consumer.spec.inputs if i.stage == stage.spec.name}
    for out in stage.spec.outputs:
        published = run.outputs.get((stage.number, out.name), {}).get(shard)
        dataset = (
            None if published is None or out.name not in read else state.cluster.catalogue.find(published.uri)
        )
        if dataset is not None:
            want = TransferWant(dataset, home, int(run.ranks[gather.consumer]), run.spec.priority, 2)
            _push(recorder, want, run.id, gather.consumer)


def _note_call(recorder: Recorder, run: WorkflowRun, stage: StageRun, task: int, node: int) -> None:
    """An engine's call has succeeded: what it has left on its node goes to the node of the call that will gather it."""
    state, call, kind = recorder.state, run.spec.call, run.spec.kind_of(stage.spec)
    if call is None or run.state is not RunState.SUCCEEDED:
        return
    read_bytes = int(stage.local[task]) + int(stage.moved[task])
    state.work.engines.learned_plan.succeeded(call.run, kind, call.after, read_bytes, recorder.statement)
    found = call_home(state, call.run, kind)
    if found is None or found[0].node == node or stage.spec.container is None:
        return
    (home, gatherer), catalogue = found, state.cluster.catalogue
    reader = Awaited(gatherer, recorder.now + _AWAITED_MS)
    for out in stage.spec.container.outputs:
        known = catalogue.find(run.versions.get(out.uri, out.uri))
        for dataset in (*catalogue.versions_of(out.uri), *(() if known is None else (known,))):
            if catalogue.is_on(dataset, node):
                want = TransferWant(dataset, home.node, int(run.ranks[0]), run.spec.priority, 2)
                _push(recorder, want, call.run, reader)


def _push(recorder: Recorder, want: TransferWant, workflow: str, reader: int | Awaited) -> None:
    pushes, pair = recorder.state.data.pushes, (want.dataset, want.dest)
    if pair not in pushes:
        _count(recorder, want.dest, recorder.state.cluster.catalogue.sizes[want.dataset])
    recorder.statement.put(pushes, pair, (want, workflow, reader))


def foresee(recorder: Recorder, plan: Plan, groups: Mapping[int, PodGroup]) -> None:
    """Remember until the next plan the datasets that waiting groups will read, and where."""
    state = recorder.state
    wants: dict[tuple[int, int], TransferWant] = {}
    for key, node in plan.ahead:
        group = groups[key]
        for dataset in group.inputs:
            if not state.cluster.catalogue.is_on(dataset, node):
                want = TransferWant(dataset, node, group.rank_ms, group.priority, 1)
                wants.setdefault((dataset, node), want)
    if wants or state.data.foreseen.nodes():
        recorder.statement.assign(state.data, "foreseen", Wants(wants.values()))


def pushes(recorder: Recorder) -> list[TransferWant]:
    """Copies to the gather nodes of their readers. Forgets data that are there, are lost, or have no waiting reader."""
    state, wants = recorder.state, []
    for pair, (want, workflow, reader) in list(state.data.pushes.items()):
        there = state.cluster.catalogue.is_on(*pair)
        waits = _waits(recorder, workflow, reader)
        if (
            there
            or not waits
            or state.cluster.catalogue.lost(pair[0])
            or not state.cluster.snapshot.ready[pair[1]]
        ):
            recorder.statement.pop(state.data.pushes, pair)
            _count(recorder, pair[1], -state.cluster.catalogue.sizes[pair[0]])
        else:
            wants.append(want)
    return wants


def _waits(recorder: Recorder, workflow: str, reader: int | Awaited) -> bool:
    """Whether the task that gathers is still to start; of an engine's run, to arrive."""
    state, engines = recorder.state, recorder.state.work.engines
    if isinstance(reader, Awaited):
        gone = recorder.now > reader.until_ms or workflow in engines.ended
        return not (gone or engines.learned_plan.has_come(workflow, reader.kind))
    run = state.work.runs.get(workflow)
    if run is None:
        return False
    counts = run.stages[reader].counts
    return bool(counts[TaskState.PENDING] or counts[TaskState.QUEUED])


def _count(recorder: Recorder, node: int, size_bytes: int) -> None:
    backlog = recorder.state.data.push_backlog
    recorder.statement.put(backlog, node, backlog.get(node, 0) + size_bytes)


# ---- datasets that move in pieces ----
#
# The catalogue knows which pieces of which version each node has, and which datasets do not move in pieces. SQL does not keep
# the pieces of a node: they are on its disk. After a restart nodes report their pieces (`pieces_found`). A node that is
# ordered to copy a piece that it has answers without copying it.


#: An origin that gives another version each time it is asked (mirrors that do not agree) is read as a whole, from one of them.
_MOST_EDITIONS: Final = 3


def landed(recorder: Recorder, pair: tuple[int, int], event: TransferDone, ordered: bool) -> bool:
    """Note a piece that has come to a node. Returns whether the node has all of the dataset now.

    The catalogue adopts the size and the version that the event states. Pieces of another version than the others do not count:
    they are ordered again, now with the stated version.
    """
    state, statement = recorder.state, recorder.statement
    dataset, node = pair
    catalogue, limits = state.cluster.catalogue, state.cluster.transfer_limits
    if event.size_bytes and event.size_bytes != catalogue.sizes[dataset]:
        catalogue.intern(event.uri, event.size_bytes)
        catalogue.drop_all_pieces(dataset, statement)  # the last one may be longer than was thought
    edition, times = catalogue.editions.get(dataset, ("", 0))
    if edition and event.version and event.version != edition:
        return False
    if event.version != edition:
        statement.put(catalogue.editions, dataset, (event.version or edition, times))
    pieces = limits.pieces_of(dataset, catalogue)
    if not ordered or pieces == 1 or node in catalogue.nodes_of(dataset):
        return False  # the last: reported after the piece that found all of it there
    statement.pop(state.data.backoff, pair)  # it goes on: earlier failures count no more
    return catalogue.land(dataset, node, event.offset // limits.piece_bytes, statement) == (1 << pieces) - 1


def moved_by(recorder: Recorder, pair: tuple[int, int], event: TransferDone) -> int:
    """Bytes that moved for an arrived piece or dataset.

    Reports can arrive out of order. When one reports the whole dataset, the pieces still under way have moved too. No task
    will wait for their reports, so their bytes count now.
    """
    state = recorder.state
    pieces = state.cluster.transfer_limits.pieces_of(pair[0], state.cluster.catalogue)
    if pieces == 1 or not event.whole or not event.moved_bytes:
        return event.moved_bytes
    late = [state.data.moving.get((*pair, piece)) for piece in range(pieces)]
    return event.moved_bytes + sum(order.size_bytes for order in late if order is not None)


def pieces_found(recorder: Recorder, event: PiecesSeen) -> None:
    """A node reports the parts of a dataset that it has from before this service, or its agent, started."""
    state, statement = recorder.state, recorder.statement
    node = state.cluster.snapshot.index.get(event.node)
    if node is None:
        return
    catalogue, limits = state.cluster.catalogue, state.cluster.transfer_limits
    dataset = catalogue.intern(event.uri, event.size_bytes)
    edition, times = catalogue.editions.get(dataset, ("", 0))
    pieces = limits.pieces_of(dataset, catalogue)
    if pieces == 1 or node in catalogue.nodes_of(dataset) or (edition and event.version != edition):
        return  # it drops them when it is ordered those of the other version
    statement.put(catalogue.editions, dataset, (event.version, times))
    for piece in range(pieces):
        start = piece * limits.piece_bytes
        end = start + limits.piece_size(event.size_bytes, piece)
        if any(first <= start and end <= last for first, last in event.spans):
            catalogue.land(dataset, node, piece, statement)


def refused(recorder: Recorder, dataset: int, event: TransferFailed) -> bool:
    """A piece did not come because the dataset is another one now, or does not come in pieces.

    Returns whether that is all that is to be done; else it counts as any failure, and is tried again after a while.
    """
    state, statement = recorder.state, recorder.statement
    catalogue = state.cluster.catalogue
    edition, times = catalogue.editions.get(dataset, ("", 0))
    if event.changed and event.version == edition and edition:
        return True  # known by now: it was ordered before
    catalogue.drop_all_pieces(dataset, statement)
    # Where a node has it whole, that is what it is: copies of the whole cannot mix with the origin's new version.
    whole = event.undivided or catalogue.has_replica(dataset) or times >= _MOST_EDITIONS
    if whole:
        if dataset not in catalogue.undivided:
            statement.include(catalogue.undivided, dataset)
        statement.put(catalogue.editions, dataset, ("", times))
    else:
        statement.put(catalogue.editions, dataset, (event.version, times + 1))
    return event.undivided


def pass_over(recorder: Recorder, dataset: int, source: str) -> None:
    """A node did not give a piece. If it does not have the whole dataset, it is no source until it reports its pieces again."""
    state = recorder.state
    node = state.cluster.snapshot.index.get(source)
    if node is not None and node not in state.cluster.catalogue.nodes_of(dataset):
        state.cluster.catalogue.drop_pieces(dataset, node, recorder.statement)


# ---- external datasets that nearly every node will need ----
#
# They move while their readers still wait for their producers. A reference of 28 GB takes four minutes over a link of 1 Gbit/s.
# If forty tasks that are not ready yet will read it, every node will want it at once, when the links are busy with other inputs
# of those tasks. Until then the links have time. Without this rnaseq-real takes 1.05 times as long on NFS and 1.01 on local disks,
# 11 other workloads stay as they are, and two generated families of nine take 0.97 and 0.99 of the time.


#: A smaller dataset arrives soon enough if it is copied on demand.
_LEAST_BYTES: Final = 256_000_000


def spreads_of(run: WorkflowRun, nodes: int) -> tuple[Spread, ...]:
    """The datasets of a workflow that may be worth having on so many nodes: at least as many shards read each."""
    readers: dict[str, list[int]] = {}
    for stage in run.stages:
        for spec in stage.spec.inputs:
            if spec.stage is None and spec.uri is not None and "{" not in spec.uri and not stage.spec.gang:
                readers.setdefault(spec.uri, []).append(stage.number)
    return tuple(
        Spread(uri, tuple(stages))
        for uri, stages in readers.items()
        if sum(run.stages[s].spec.width for s in stages) >= nodes
    )


def spreading(recorder: Recorder) -> Iterator[TransferWant]:
    """Copies of datasets that every node shall have before its tasks ask for them."""
    state = recorder.state
    data, catalogue, snapshot = state.data, state.cluster.catalogue, state.cluster.snapshot
    if not state.policy.profile.locality or len(snapshot) < 2:
        return
    nodes = int(np.count_nonzero(snapshot.ready))
    if nodes != data.spread_over:
        data.spreads.clear()
        data.spread_over = nodes
    ready: list[int] | None = None
    for run in state.work.runs.values():
        spreads = data.spreads.get(run.id)
        if spreads is None:
            spreads = data.spreads[run.id] = spreads_of(run, nodes)
            if state.policy.memoizing:  # their versions are not known before they are looked at
                recorder.lookups.update({(run.id, spread.stages[0]): None for spread in spreads})
        for spread in spreads:
            name = run.versions.get(spread.uri)
            dataset = catalogue.newest.get(spread.uri) if name is None else catalogue.find(name)
            if not state.policy.memoizing:
                dataset = catalogue.find(spread.uri)
            if dataset is None or catalogue.sizes[dataset] < _LEAST_BYTES:
                continue
            there = catalogue.nodes_of(dataset)
            if len(there) >= nodes or not catalogue.origins[dataset]:
                continue
            if ready is None:
                ready = np.flatnonzero(snapshot.ready).tolist()
            copy_ms = catalogue.sizes[dataset] * 1000 // max(1, int(snapshot.nic_in[ready].max()))
            rank = _rank(state, run, spread, copy_ms)
            if rank is not None:
                for node in ready:
                    if node not in there:
                        yield TransferWant(dataset, node, rank, run.spec.priority, 2)


def _rank(state: EngineState, run: WorkflowRun, spread: Spread, copy_ms: int) -> int | None:
    """The rank of the first stage that reads it soon. None if no stage waits long enough for a copy."""
    if run.paused or run.cancel_requested:
        return None
    pending = [run.stages[s] for s in spread.stages if run.stages[s].counts[TaskState.PENDING]]
    soon = [stage.number for stage in pending if _awaits(state, run, stage, copy_ms)]
    return max((int(run.ranks[s]) for s in soon), default=None)


def _awaits(state: EngineState, run: WorkflowRun, stage: StageRun, copy_ms: int) -> bool:
    """Whether a stage waits for a producer that is under way and takes as long as a copy."""
    parents = [run.stages[edge.parent] for edge in run.graph.edges_in[stage.number]]
    long = [each for each in parents if typical_runtime(state, run, each) >= copy_ms]
    return any(each.uniform is None and (each.done or each.holding()) for each in long)
