"""Prefetch: bytes that move before a task asks for them: outputs to their gather nodes, pieces of them, and inputs from outside.

Outputs go to the nodes where their readers will run while other producers still compute (docs/locality.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.engine.data.gather_nodes import call_home, consumer_shard, gather_of, is_call
from flowsched.engine.data.inputs import LEAST_BYTES, is_own, reads_outside, uri_outside
from flowsched.engine.predictor import typical_runtime, written_bytes
from flowsched.engine.state import EngineState
from flowsched.engine.state.data import Awaited, Early
from flowsched.engine.transaction import Recorder
from flowsched.executor.datasets import parse
from flowsched.executor.protocol import PiecesSeen, TransferDone, TransferFailed
from flowsched.scheduling.feasibility import allowed_nodes, shape_of
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import BUILT_IN_FILTERS
from flowsched.scheduling.transfers import MAYBE, TransferWant, Wants, importance
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


# ---- inputs from outside, of tasks whose parents run ----
#
# They move while those parents run: the link to the outside is idle then, and busy once all children are ready. A shard's inputs go
# to the node where it will probably run. A dataset that at least as many shards read as there are nodes goes to all of them: a
# reference of 28 GB takes four minutes over a link of 1 Gbit/s. Eight tasks of 280 s, each before one of 10 s that reads 4 GB of
# its own from outside, on 8x16-1g: 1.00 times the bound, and 1.94 times if copies wait for the second tasks. Without copies to all
# nodes rnaseq-real takes 1.05 times as long on NFS and 1.01 on local disks.


#: A smaller dataset arrives soon enough on all nodes if it is copied on demand.
_LEAST_BYTES: Final = 256_000_000
#: So many shards of a stage are looked at, and so many copies wanted in all: more do not come before their parents have ended.
_MOST_BEHIND: Final = 256
_MOST_WANTS: Final = 512
#: By state, whether a parent will have ended soon.
_COMES: Final = np.isin(
    np.arange(max(TaskState) + 1),
    (TaskState.STAGING, TaskState.ALLOCATED, TaskState.BINDING, TaskState.RUNNING, TaskState.SUCCEEDED),
)


def shards_behind(run: WorkflowRun, stage: StageRun) -> NDArray[np.int64]:
    """The shards of a stage that wait for nothing but tasks under way; for any task of a stage that they need as a whole."""
    nothing, members = np.zeros(0, dtype=np.int64), stage.members
    if run.paused or run.cancel_requested or stage.closed or stage.number in run.graph.conditional:
        return nothing
    behind = np.ones(stage.spec.width, dtype=np.bool_)
    if stage.uniform is None:
        behind = stage.task_state[::members] == TaskState.PENDING
    elif stage.uniform is not TaskState.PENDING:
        return nothing
    for edge in run.graph.edges_in[stage.number]:
        parent = run.stages[edge.parent]
        if parent.uniform is TaskState.SUCCEEDED:
            continue
        if parent.uniform is not None or parent.closed:
            return nothing
        if edge.barrier:
            if not (parent.done or parent.holding()):
                return nothing
            continue
        shards = np.flatnonzero(_COMES[parent.task_state[:: parent.members]])
        children = run.graph.child_of(edge, shards)
        behind &= np.bincount(children, minlength=len(behind)) == run.graph.parents_per_shard(edge)
    return np.flatnonzero(behind)[:_MOST_BEHIND]


def _places(
    state: EngineState, run: WorkflowRun, stage: StageRun, shards: NDArray[np.int64], own_bytes: int
) -> NDArray[np.int64]:
    """(K,) the node where each of these (K,) shards will probably run; -1 where no ready node can run it.

    Its gather node; else the node of its parent, of several the one that writes most. If parents write less than what each shard
    reads of its own, a node gets no more than its part of the shards: tasks that write little are packed, and their children would
    share one disk. Others are dealt out; all go to one node if they read nothing of their own.
    """
    snapshot = state.cluster.snapshot
    shape = shape_of(snapshot, stage.spec.roles[0].resources, stage.spec.rules)
    fits = allowed_nodes(snapshot, shape, BUILT_IN_FILTERS).mask
    fits = fits & (snapshot.allocatable >= np.array(shape.requests, dtype=np.int64)).all(axis=1)
    able = np.flatnonzero(fits)
    at = np.full(stage.spec.width, -1, dtype=np.int64)
    if not len(able):
        return at[shards]
    edges = [
        (written_bytes(state, run, run.stages[edge.parent]), edge)
        for edge in run.graph.edges_in[stage.number]
    ]
    edges.sort(key=itemgetter(0))
    for _, edge in edges:
        parent = run.stages[edge.parent]
        nodes = np.empty(0) if parent.uniform is not None else parent.node[:: parent.members]
        if not edge.barrier and len(nodes):
            at[run.graph.child_of(edge, np.arange(len(nodes)))] = nodes
        elif len(nodes) == len(at) == 1:
            at[0] = nodes[0]
    if edges[-1][0] < own_bytes:
        most = -(-len(at) // len(able))
        for node in np.flatnonzero(np.bincount(at[at >= 0]) > most).tolist():
            at[np.flatnonzero(at == node)[most:]] = -1
    for shard in shards.tolist():
        at[shard] = state.data.homes.get((run.id, stage.number, shard), at[shard])
    found, dealt = at[shards], able[(stage.number + (shards if own_bytes else 0 * shards)) % len(able)]
    places: NDArray[np.int64] = np.where((found >= 0) & fits[found], found, dealt)
    return places


def early_of(run: WorkflowRun) -> Early:
    """The stages of a workflow that wait for others and read from outside, and how many shards read what shards have in common."""
    readers: Counter[str] = Counter()
    stages = []
    for stage in run.stages:
        if stage.spec.gang or not reads_outside(stage):
            continue
        for spec in stage.spec.inputs:
            if spec.stage is None and spec.uri is not None and not is_own(spec):
                readers[spec.uri] += stage.spec.width
        if run.graph.edges_in[stage.number]:
            stages.append(stage.number)
    return Early(tuple(stages), readers if stages else {})


def arriving(recorder: Recorder) -> list[TransferWant]:
    """Copies of the inputs from outside of tasks whose parents run."""
    state = recorder.state
    data, catalogue, snapshot = state.data, state.cluster.catalogue, state.cluster.snapshot
    if not state.policy.profile.locality or len(snapshot) < 2:
        return []
    ready = snapshot.ready.tobytes()
    if ready != data.early_over:
        data.arriving.clear()
        data.early_over = ready
    wants: dict[tuple[int, int], TransferWant] = {}
    for run in state.work.runs.values():
        if len(wants) >= _MOST_WANTS:
            break
        if run.paused or run.cancel_requested:
            continue
        early = data.early.get(run.id)
        if early is None:
            early = data.early[run.id] = early_of(run)
        for number in early.stages:
            found = data.arriving.get((run.id, number))
            if found is None:
                found = data.arriving[run.id, number] = _arriving(recorder, run, run.stages[number], early)
            for want in found:
                pair = want.dataset, want.dest
                if not catalogue.is_on(*pair) and (
                    pair not in wants or importance(want) < importance(wants[pair])
                ):
                    wants[pair] = want
    return list(wants.values())


def _arriving(
    recorder: Recorder, run: WorkflowRun, stage: StageRun, early: Early
) -> tuple[TransferWant, ...]:
    """Copies for the shards of one stage whose parents run: of their inputs, to the nodes where they will read them."""
    state, found = recorder.state, dict[tuple[int, int], TransferWant]()
    shards = shards_behind(run, stage)
    if not len(shards):
        return ()
    asked = early.asked.setdefault(stage.number, set())
    if state.policy.memoizing and not asked.issuperset(shards.tolist()):  # their versions are not known yet
        asked.update(shards.tolist())
        recorder.lookups[run.id, stage.number] = None
    ready = np.flatnonzero(state.cluster.snapshot.ready)
    rate = max(1, int(state.cluster.snapshot.nic_in[ready].max(initial=1)))
    rank, priority, sizes = int(run.ranks[stage.number]), run.spec.priority, state.cluster.catalogue.sizes
    own, common = [], list[int]()
    for spec in stage.spec.inputs:
        if spec.stage is not None or spec.uri is None:
            continue
        if is_own(spec):
            own.append(spec)
            continue
        everywhere = early.readers[spec.uri] >= len(ready)
        dataset = _known(state, run, spec.uri, _LEAST_BYTES if everywhere else LEAST_BYTES)
        if dataset is None:
            continue
        if not everywhere:
            common.append(dataset)
        elif _awaits(state, run, stage, sizes[dataset] * 1000 // rate):
            for node in ready.tolist():
                found[dataset, node] = TransferWant(dataset, node, rank, priority, 2)
    reads = [
        [_known(state, run, uri_outside(stage, spec, shard), LEAST_BYTES) for spec in own]
        for shard in shards.tolist()
    ]
    own_bytes = max(sum(sizes[dataset] for dataset in some if dataset is not None) for some in reads)
    if not own_bytes and not common:
        return tuple(found.values())
    places = _places(state, run, stage, shards, own_bytes)
    for node, some in zip(places.tolist(), reads, strict=True):
        for dataset in (*some, *common) if node >= 0 else ():
            if dataset is not None:
                found[dataset, node] = TransferWant(dataset, node, rank, priority, MAYBE)
    return tuple(found.values())


def _known(state: EngineState, run: WorkflowRun, uri: str, least_bytes: int) -> int | None:
    """The dataset that tasks of a run will read at a URI; None where that is not known, is smaller, or is not to be copied."""
    catalogue, name = state.cluster.catalogue, run.versions.get(uri, uri)
    dataset = catalogue.find(name)
    if state.policy.memoizing and name == uri:
        dataset = catalogue.newest.get(uri)
        if dataset is not None and not parse(catalogue.uris[dataset]).is_known:
            return None  # a copy of it now may be another one than its reader would get
    if dataset is None or catalogue.sizes[dataset] < least_bytes:
        return None
    return dataset if catalogue.origins[dataset] and dataset not in catalogue.in_place else None


def _awaits(state: EngineState, run: WorkflowRun, stage: StageRun, copy_ms: int) -> bool:
    """Whether a stage waits for a producer that is under way and takes as long as a copy."""
    parents = [run.stages[edge.parent] for edge in run.graph.edges_in[stage.number]]
    long = [each for each in parents if typical_runtime(state, run, each) >= copy_ms]
    return any(each.uniform is None and (each.done or each.holding()) for each in long)
