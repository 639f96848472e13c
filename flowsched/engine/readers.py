"""Who will still read a dataset, as the DAGs of living workflows say: what a cached copy of it is worth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flowsched.engine.state import EngineState
from flowsched.workflow.run import StageRun, WorkflowRun
from flowsched.workflow.spec import InputSpec, Match, WorkflowSpec
from flowsched.workflow.states import TaskState

_S = TaskState
#: What is expected so far ahead counts half.
_HALF_MS = 600_000
#: So many ended workflows are remembered; of others everything is kept as if it were a result, until they expire.
_ENDED = 50_000
#: One read that is certain and due.
CERTAIN = 1_000


class Use(NamedTuple):
    """What is still to be done with a dataset.

    Args:
        readers: Shards that read it and have not succeeded.
        weight: Reads that are to come, in thousandths: those of ready tasks count whole, later ones less.
        result: Somebody may ask for it when its workflow has ended: no task reads it.
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
    """The readers of datasets, as long as no task changes: a look."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._known: dict[int, Use] = {}
        self._furthest: dict[str, int] = {}

    def use(self, dataset: int) -> Use:
        """What is still to be done with a dataset."""
        known = self._known.get(dataset)
        if known is None:
            known = self._known[dataset] = self._find(dataset)
        return known

    def producer(self, dataset: int) -> tuple[WorkflowRun, StageRun, int] | None:
        """The living run, stage and shard that wrote a dataset."""
        origin = origin_of(self._state.catalogue.uris[dataset])
        run = None if origin is None else self._state.runs.get(origin.workflow)
        if origin is None or run is None or origin.stage not in run.graph.numbers:
            return None
        return run, run.stages[run.number_of(origin.stage)], origin.shard

    def _find(self, dataset: int) -> Use:
        uri = self._state.catalogue.uris[dataset]
        origin = origin_of(uri)
        if origin is None:
            return self._from_outside(dataset)
        run = self._state.runs.get(origin.workflow)
        if run is None:
            passed_on = self._state.ended_reads.get(origin.workflow, frozenset())
            return NONE if (origin.stage, origin.output) in passed_on else RESULT
        number = run.graph.numbers.get(origin.stage)
        published = None if number is None else run.outputs.get((number, origin.output), {}).get(origin.shard)
        if number is None or (published is not None and published.uri != uri):
            return NONE  # of an attempt that counts no more
        if published is None:
            return RESULT  # of an attempt whose end has not been told
        use, read = NONE, False
        for edge in run.graph.edges_out[number]:
            child = run.stages[edge.child]
            for spec in child.spec.inputs:
                if spec.stage == origin.stage and spec.output == origin.output:
                    read = True
                    shard = _reader(spec, origin.shard, run.stages[number].spec.width, child.spec.width)
                    use = self._with(use, run, child, shard)
        return use if read else RESULT

    def _from_outside(self, dataset: int) -> Use:
        use = NONE
        for workflow, numbers in self._state.outside.get(dataset, {}).items():
            run = self._state.runs.get(workflow)
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
        home = self._state.homes.get((run.id, stage.number, shard or 0)) if left else None
        homes = use.homes if home is None else use.homes | {home}
        return Use(use.readers + left, use.weight + weight, False, homes)

    def _front(self, run: WorkflowRun) -> int:
        """The upward rank of what a workflow does now: how far a later stage is from it says when that begins."""
        if run.id not in self._furthest:
            ranks = [
                int(run.ranks[s.number])
                for s in run.stages
                if not s.state.terminal and s.counts[_S.PENDING] < s.spec.tasks
            ]
            self._furthest[run.id] = max(ranks, default=int(run.ranks.max(initial=0)))
        return self._furthest[run.id]


def _reader(spec: InputSpec, shard: int, width: int, readers: int) -> int | None:
    """Which shard reads what this one wrote; None = all."""
    if spec.match is Match.INDEX:
        return shard
    if spec.match is Match.CHUNK:
        return ((shard + 1) * readers - 1) // width
    return None


def origin_of(uri: str) -> Origin | None:
    """Which shard wrote a dataset; None for what comes from outside."""
    if not uri.startswith("flowsched:"):
        return None
    parts = uri.removeprefix("flowsched:").split("/", 4)
    if len(parts) != 5 or not parts[2].isdecimal():
        return None
    return Origin(parts[0], parts[1], int(parts[2]), parts[4])


def note_outside(state: EngineState) -> None:
    """Write down what living workflows read from outside, where that has not been done."""
    for workflow in [each for each in state.runs if each not in state.noted]:
        run = state.runs[workflow]
        noted: set[int] = set()
        for stage in run.stages:
            for dataset, shard in _outside(state, stage):
                state.outside.setdefault(dataset, {}).setdefault(workflow, []).append((stage.number, shard))
                noted.add(dataset)
        state.noted[workflow] = tuple(sorted(noted))


def _outside(state: EngineState, stage: StageRun) -> Iterator[tuple[int, int | None]]:
    for spec in stage.spec.inputs:
        if spec.stage is not None:
            continue
        uri, size = spec.uri or "", spec.size_bytes or 0
        if "{index}" not in uri and "{item}" not in uri:
            yield state.catalogue.intern(uri, size, True), None
            continue
        for shard in range(stage.spec.width):
            one = uri.replace("{index}", str(shard))
            one = one.replace("{item}", stage.spec.items[shard]) if stage.spec.items else one
            yield state.catalogue.intern(one, size, True), shard


def forget_readers(state: EngineState, run: WorkflowRun) -> None:
    """A workflow has ended: what its tasks wrote for each other is needed no more, what none of them reads is its result."""
    for dataset in state.noted.pop(run.id, ()):
        readers = state.outside[dataset]
        readers.pop(run.id, None)
        if not readers:
            del state.outside[dataset]
    note_ended(state, run.id, run.spec)


def note_ended(state: EngineState, workflow: str, spec: WorkflowSpec) -> None:
    """Remember which outputs of a workflow that has ended its own stages read; nobody else needs those."""
    read = frozenset(
        (i.stage, i.output)
        for s in spec.stages
        for i in s.inputs
        if i.stage is not None and i.output is not None
    )
    state.ended_reads.pop(workflow, None)
    state.ended_reads[workflow] = read
    while len(state.ended_reads) > _ENDED:
        del state.ended_reads[next(iter(state.ended_reads))]
