"""Cache values: the tasks that will still read a dataset, the value of a copy, and the copies that a full cache may drop.

Copies that are pinned for a task stay. So does a copy that is being read by a transfer, a result, and the last copy of what a
task still reads. There is one exception, when nothing else goes on (`desperate`): the last copy is dropped and its producer
makes it again, once. After that the limit gives way, since waiting would help no task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowsched.engine.data.inputs import MissingInput, dataset_ids, datasets_of, is_own
from flowsched.engine.predictor import written_bytes
from flowsched.engine.state import EngineState
from flowsched.executor.datasets import INTERMEDIATE
from flowsched.executor.protocol import Pod
from flowsched.scheduling.state.cache_space import Copy, Need, Pin
from flowsched.scheduling.state.claims import Claim
from flowsched.statement import Statement
from flowsched.workflow.graph import reader_of
from flowsched.workflow.run.run import CACHED, StageRun, WorkflowRun
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.spec import WorkflowSpec

_S = TaskState
#: A read that is expected so far ahead counts half.
_HALF_MS = 600_000
#: So many ended workflows are remembered. All data of older ones are kept like results, until the workflows expire.
_ENDED = 50_000
#: One read that is certain and due.
CERTAIN = 1_000


class Use(NamedTuple):
    """The expected uses of a dataset.

    Args:
        readers: Shards that read it and have not succeeded.
        weight: Reads that are to come, in thousandths: those of ready tasks count whole, later ones less.
        result: No task reads it, and a client may ask for it after its workflow has ended.
        homes: Nodes where it shall be read.
    """

    readers: int = 0
    weight: int = 0
    result: bool = False
    homes: frozenset[int] = frozenset()


NONE = Use()
RESULT = Use(result=True)


class Origin(NamedTuple):
    """Which shard of a workflow wrote a dataset."""

    workflow: str
    stage: str
    shard: int
    output: str


class Readers:
    """The readers of datasets, as long as no task changes: a round."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._known: dict[int, Use] = {}
        self._furthest: dict[str, int] = {}

    def use(self, dataset: int) -> Use:
        """The expected uses of a dataset."""
        known = self._known.get(dataset)
        if known is None:
            known = self._known[dataset] = self._find(dataset)
        return known

    def producer(self, dataset: int) -> tuple[WorkflowRun, StageRun, int] | None:
        """The living run, stage and shard that wrote a dataset."""
        origin = origin_of(self._state.cluster.catalogue.uris[dataset])
        run = None if origin is None else self._state.work.runs.get(origin.workflow)
        if origin is None or run is None or origin.stage not in run.graph.numbers:
            return None
        return run, run.stages[run.number_of(origin.stage)], origin.shard

    def _find(self, dataset: int) -> Use:
        uri = self._state.cluster.catalogue.uris[dataset]
        origin = origin_of(uri)
        if origin is None:
            return self._from_outside(dataset)
        run = self._state.work.runs.get(origin.workflow)
        reused = dataset in self._state.caches.outside
        if run is None or reused:
            if reused:
                return self._from_outside(dataset)
            passed_on = self._state.caches.ended_reads.get(origin.workflow, frozenset())
            return NONE if (origin.stage, origin.output) in passed_on else RESULT
        number = run.graph.numbers.get(origin.stage)
        published = None if number is None else run.outputs.get((number, origin.output), {}).get(origin.shard)
        if number is None or (published is not None and published.uri != uri):
            return NONE  # of an attempt that counts no more
        if published is None:
            return RESULT  # the end of its attempt has not been reported yet
        use, read = NONE, False
        for edge in run.graph.edges_out[number]:
            child = run.stages[edge.child]
            for spec in child.spec.inputs:
                if spec.stage == origin.stage and spec.output == origin.output:
                    read = True
                    shard = reader_of(
                        spec.match, origin.shard, child.spec.width, run.stages[number].spec.width
                    )
                    use = self._with(use, run, child, shard)
        return use if read else RESULT

    def _from_outside(self, dataset: int) -> Use:
        use = NONE
        for workflow, numbers in self._state.caches.outside.get(dataset, {}).items():
            run = self._state.work.runs.get(workflow)
            for number, shard in numbers if run is not None else ():
                assert run is not None
                use = self._with(use, run, run.stages[number], shard)
        return use

    def _with(self, use: Use, run: WorkflowRun, stage: StageRun, shard: int | None) -> Use:
        if stage.state.terminal:
            return use
        if shard is None:
            left = stage.spec.width - stage.done
            waiting = int(stage.counts[_S.QUEUED] + stage.counts[_S.STAGING]) // stage.members
            later = int(stage.counts[_S.PENDING]) // stage.members
        else:
            left = int(stage.uniform is not None or not stage.shard_done[shard])
            now = stage.task_is(shard * stage.members)
            waiting, later = left * (now in (_S.QUEUED, _S.STAGING)), left * (now is _S.PENDING)
        weight = waiting * CERTAIN
        if later:
            ahead = max(0, self._front(run) - int(run.ranks[stage.number]))
            weight += later * CERTAIN * _HALF_MS // (2 * (_HALF_MS + ahead))
        home = self._state.data.homes.get((run.id, stage.number, shard or 0)) if left else None
        homes = use.homes if home is None else use.homes | {home}
        return Use(use.readers + left, use.weight + weight, False, homes)

    def _front(self, run: WorkflowRun) -> int:
        """The upward rank of what a workflow does now: the distance of a later stage from it gives when that stage begins."""
        if run.id not in self._furthest:
            ranks = [
                int(run.ranks[s.number])
                for s in run.stages
                if not s.state.terminal and s.counts[_S.PENDING] < s.spec.tasks
            ]
            self._furthest[run.id] = max(ranks, default=int(run.ranks.max(initial=0)))
        return self._furthest[run.id]


def origin_of(uri: str) -> Origin | None:
    """The shard that wrote a dataset; None for one from outside."""
    if not uri.startswith("flowsched:"):
        return None
    parts = uri.removeprefix("flowsched:").split("/", 4)
    if len(parts) != 5 or not parts[2].isdecimal():
        return None
    return Origin(parts[0], parts[1], int(parts[2]), parts[4])


def note_outside(state: EngineState) -> None:
    """Note the datasets that living workflows read from outside, where that has not been done."""
    for workflow in [each for each in state.work.runs if each not in state.caches.noted]:
        run = state.work.runs[workflow]
        noted: set[int] = set()
        for stage in run.stages:
            for dataset, shard in _outside(state, run, stage):
                state.caches.outside.setdefault(dataset, {}).setdefault(workflow, []).append(
                    (stage.number, shard)
                )
                noted.add(dataset)
        for dataset, number, reader in _reused(state, run):
            state.caches.outside.setdefault(dataset, {}).setdefault(workflow, []).append((number, reader))
            noted.add(dataset)
        state.caches.noted[workflow] = tuple(sorted(noted))


def _outside(state: EngineState, run: WorkflowRun, stage: StageRun) -> Iterator[tuple[int, int | None]]:
    for spec in stage.spec.inputs:
        if spec.stage is not None:
            continue
        shards = range(stage.spec.width) if is_own(spec) else (None,)
        for shard in shards:
            name, size = datasets_of(run, stage, spec, shard or 0)[0]
            yield state.cluster.catalogue.intern(name, size, not name.startswith(INTERMEDIATE)), shard


def _reused(state: EngineState, run: WorkflowRun) -> Iterator[tuple[int, int, int | None]]:
    """The datasets that a run reuses from other workflows, with their readers: dataset, stage, shard (None = all)."""
    for (number, name), shards in run.outputs.items():
        stage = run.stages[number]
        if not stage.totals[CACHED]:
            continue
        children = [
            (run.stages[edge.child], spec)
            for edge in run.graph.edges_out[number]
            for spec in run.stages[edge.child].spec.inputs
            if spec.stage == stage.spec.name and spec.output == name
        ]
        for shard, output in shards.items():
            if not output.uri.startswith(f"flowsched:{run.id}/"):
                dataset = state.cluster.catalogue.intern(output.uri, output.size_bytes)
                for child, spec in children:
                    reader = reader_of(spec.match, shard, child.spec.width, stage.spec.width)
                    yield dataset, child.number, reader


def note_anew(state: EngineState, run: WorkflowRun) -> None:
    """A run has reused results of others: the datasets that it reads are to be noted again."""
    for dataset in state.caches.noted.pop(run.id, ()):
        readers = state.caches.outside[dataset]
        readers.pop(run.id, None)
        if not readers:
            del state.caches.outside[dataset]


def forget_readers(state: EngineState, run: WorkflowRun) -> None:
    """A workflow has ended: outputs that only its tasks read are needed no more; outputs that none reads are its result."""
    note_anew(state, run)
    note_ended(state, run.id, run.spec)


def note_ended(state: EngineState, workflow: str, spec: WorkflowSpec) -> None:
    """Remember which outputs of an ended workflow its own stages read. No client needs those."""
    read = frozenset(
        (i.stage, i.output)
        for s in spec.stages
        for i in s.inputs
        if i.stage is not None and i.output is not None
    )
    state.caches.ended_reads.pop(workflow, None)
    state.caches.ended_reads[workflow] = read
    while len(state.caches.ended_reads) > _ENDED:
        del state.caches.ended_reads[next(iter(state.caches.ended_reads))]


# ---- copies that may be dropped ----


#: For a task that has waited so long, a last copy is dropped and a limit gives way, on a node that holds nothing for others.
LAST_RESORT_MS: Final = 600_000
#: Where a reader is expected, a copy is worth so many times more than elsewhere.
_EXPECTED_HERE: Final = 4


class Evictable:
    """The copies that each node's cache may drop in one step."""

    def __init__(self, state: EngineState) -> None:
        note_outside(state)
        self.state = state
        self.readers = Readers(state)
        self.planned: set[tuple[int, int]] = set()  #: (dataset, node) that this step's placements read
        self.sources = {(o.dataset, o.source) for o in state.data.moving.values()}
        self._free: NDArray[np.int64] | None = None
        #: node -> (changes of its cache, bytes that may go, bytes by dataset)
        self._loose: dict[int, tuple[int, int, dict[int, int]]] = {}

    def copies(self, node: int, spare: Collection[int] = (), most: Need = Need.ELSEWHERE) -> list[Copy]:
        """The copies that a node's cache may drop. `spare`: not these."""
        caches = self.state.cluster.catalogue.caches
        assert caches is not None
        cache, lru = caches.of[node], self.state.policy.profile.eviction == "lru"
        found = []
        for dataset in sorted(cache.there):
            if dataset in cache.pinned or dataset in spare:
                continue
            need = self._need(dataset, node)
            if need is None or need > most:
                continue
            used_at = caches.used_at.get((dataset, node), 0)
            if lru and need < Need.AGAIN:
                found.append(Copy(dataset, caches.sizes[dataset], Need.ELSEWHERE, used_at, used_at))
            else:
                found.append(Copy(dataset, caches.sizes[dataset], need, self.value(dataset, node), used_at))
        return found

    def tight(self, size_bytes: int) -> list[int]:
        """Nodes that have not so many bytes free as things were when the step first asked."""
        caches = self.state.cluster.catalogue.caches
        assert caches is not None
        if self._free is None:
            self._nodes = np.fromiter(caches.of, np.int64, len(caches.of))
            free = [cache.free - cache.limit // 10 for cache in caches.of.values()]
            self._free = np.array(free, dtype=np.int64)
        tight: list[int] = self._nodes[self._free < size_bytes].tolist()
        return tight

    def loose(self, node: int, without: Collection[int] = ()) -> int:
        """Bytes on a node that may go, some datasets apart."""
        caches = self.state.cluster.catalogue.caches
        assert caches is not None
        changes = caches.of[node].changes
        known = self._loose.get(node)
        if known is None or known[0] != changes:
            sizes = {copy.dataset: copy.size_bytes for copy in self.copies(node)}
            known = self._loose[node] = (changes, sum(sizes.values()), sizes)
        return known[1] - sum([known[2].get(dataset, 0) for dataset in without])

    def value(self, dataset: int, node: int) -> int:
        """The cost of copying a dataset to a node again, for each byte, times how surely it is read there."""
        state, use = self.state, self.readers.use(dataset)
        others = self._others(dataset, node)
        weight = use.weight
        if (dataset, node) in state.data.foreseen or node in use.homes:
            weight = max(weight, CERTAIN) * _EXPECTED_HERE
        rate = max(1, int(state.cluster.snapshot.nic_in[node]))
        if not others:
            rate = max(1, min(rate, state.cluster.transfer_limits.origin_rate))
        return weight * 1_000_000 // (len(others) + 1) * 1_000 // rate

    def _others(self, dataset: int, node: int) -> list[int]:
        ready = self.state.cluster.snapshot.ready
        return [
            each for each in self.state.cluster.catalogue.nodes_of(dataset) if each != node and ready[each]
        ]

    def _need(self, dataset: int, node: int) -> Need | None:
        """How much a copy is needed; None = it stays."""
        catalogue = self.state.cluster.catalogue
        if (
            node in catalogue.expected_on(dataset)
            or (dataset, node) in self.sources
            or (dataset, node) in self.planned
            or (dataset, node) in self.state.data.read_from
        ):
            return None
        if node not in catalogue.nodes_of(dataset):
            return Need.NOBODY  # pieces of a copy that no task waits for any more
        use = self.readers.use(dataset)
        again = catalogue.origins[dataset] or bool(self._others(dataset, node))
        if use.result:
            return Need.NOBODY if again else None
        if not use.readers:
            return Need.NOBODY
        if again:
            return Need.ELSEWHERE
        return Need.AGAIN if self._remakeable(dataset) else None

    def _remakeable(self, dataset: int) -> bool:
        """Whether its producer could write it again, and has not had to before."""
        found = self.readers.producer(dataset)
        if found is None or self.state.cluster.catalogue.uris[dataset].split("/", 4)[3] != "0":
            return False
        run, stage, shard = found
        try:
            inputs = dataset_ids(self.state, run, stage, shard)
        except MissingInput:
            return False
        return not any(self.state.cluster.catalogue.lost(each) for each in inputs)


def desperate(state: EngineState, node: int, waited_ms: int) -> bool:
    """Whether nothing that ends would make room on a node: then last copies go, and the limit gives way."""
    if not (state.work.pods or state.data.moving or state.data.staging):
        return True
    caches = state.cluster.catalogue.caches
    if waited_ms < LAST_RESORT_MS or caches is None or caches.of[node].pins:
        return False
    return not any(order.dest == node for order in state.data.moving.values())


def shut_nodes(
    evictable: Evictable | None,
    run: WorkflowRun,
    stage: StageRun,
    inputs: Sequence[int],
    key: int,
    waited_ms: int,
) -> tuple[int, ...]:
    """Nodes on which a task's inputs and outputs do not fit the cache, even after every allowed eviction.

    Args:
        evictable: The copies that caches with a limit may drop; None = no cache has a limit.
        run, stage: Of the task.
        inputs: Dataset ids.
        key: Number of its group: room that other groups leave to it is its own.
        waited_ms: For how long it has been ready.
    """
    if evictable is None:
        return ()
    state, caches = evictable.state, evictable.state.cluster.catalogue.caches
    assert caches is not None
    unique = tuple(dict.fromkeys(inputs))
    reads = sum([caches.sizes[dataset] for dataset in unique])
    writes = written_bytes(state, run, stage, unique)
    total = reads + writes
    left_to_other = state.caches.nodes if state.caches.first not in (None, key) else frozenset()
    shut = []
    for node in (*evictable.tight(total), *sorted(left_to_other)):
        cache = caches.of[node]
        here = sum([caches.sizes[d] for d in unique if cache.has(d)])
        if node in left_to_other:
            fits = total == here
        elif total - here <= (free := cache.free_for(reads, here, writes)):
            fits = True
        else:
            fits = total - here <= free + evictable.loose(node, unique)
            fits = fits or (reads <= cache.limit and desperate(state, node, waited_ms))
        if not fits:
            shut.append(node)
    return tuple(sorted(set(shut)))


def pin_again(
    state: EngineState,
    run: WorkflowRun,
    stage: StageRun,
    task: int,
    pod: Pod,
    claim: Claim,
    statement: Statement,
) -> None:
    """After a restart: pin the inputs of a pod that may still be there, and reserve room for its outputs."""
    if state.cluster.catalogue.caches is None:
        return
    uris = dict.fromkeys(uri for file in pod.inputs for uri in file.uris)
    reads = tuple(state.cluster.catalogue.intern(uri) for uri in uris)
    inputs = tuple(state.cluster.catalogue.intern(uri) for uri in uris if uri not in pod.remote)
    writes = written_bytes(state, run, stage, reads) if task % stage.members == 0 else 0
    state.cluster.catalogue.caches.pin(pod.name, Pin(claim.node, inputs, writes, claim.since_ms), statement)
