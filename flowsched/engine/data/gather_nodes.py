"""Gather nodes: the node on which a task that reads many others' outputs will run (docs/locality.md).

A task that is placed without regard to the readers of its output may write it seven copies away from where all of it is needed.
So a consumer that gathers much gets a *gather node* (home) when the first of its producers is offered: the node where least is
missing of what it will read, less loaded nodes first. Producers that run elsewhere pay for the copy, their outputs are pushed
there while others still compute, and the consumer finds its bytes there. A gather node is a preference. It is dropped when the
node leaves the cluster.

A gathering task may write for another one that gathers again, and is best gathered near that one's node. A task that reads one
output and writes what will be gathered should find it there. Such nodes are looked for from the last gathering task on, a few
stages back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.engine.data.inputs import common_ids
from flowsched.engine.data.remote_reads import reads_remotely
from flowsched.engine.predictor import (
    call_bytes,
    knows_written,
    typical_runtime,
    written_bytes,
)
from flowsched.engine.state import EngineState
from flowsched.engine.state.data import Gather, Gathered, Route
from flowsched.scheduling.pod_group import Home
from flowsched.workflow.graph import reader_of, shards_read
from flowsched.workflow.learned_plan import Kind
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.spec import InputSpec, Match

#: An output that more tasks than this read gets no gather node: many nodes need it anyway.
_MOST_READERS: Final = 8
#: Inputs that one link brings together in less than this are not worth a gather node.
_LEAST_MS: Final = 500
#: Gather nodes of engines' calls at most: those of the runs that began last.
_MOST_CALL_HOMES: Final = 256
#: So many stages on, gatherers of what gatherers write are looked at.
_FAR: Final = 3
#: Members in these states have, or will have, their outputs on their node.
_THERE: Final = (
    TaskState.STAGING, TaskState.ALLOCATED, TaskState.BINDING, TaskState.RUNNING, TaskState.SUCCEEDED,
)  # fmt: skip
#: By state, whether a member is on its way to having its outputs on its node. `np.isin` takes 40 times as long on few members.
_UNDER_WAY: Final = np.isin(np.arange(max(TaskState) + 1), _THERE[:-1])


class _Gathering(msgspec.Struct):
    """Stages that gather the same: the first of them, how many of their shards read it, the work of those (milli-core ms), and how
    many bytes each of them gathers.
    """

    consumer: int
    match: Match
    each: int
    readers: int = 0
    work: int = 0

    def per_node(self, nodes: int) -> int:
        """Bytes that come together on each of the nodes that gather at a time: where few read much, few links carry it."""
        return self.readers * self.each // max(1, min(self.readers, nodes))


def gather_of(state: EngineState, run: WorkflowRun, stage: StageRun) -> Gather | None:
    """How the outputs of a stage are gathered; None if no stage gathers them, or if the gain is too small."""
    key, known = (run.id, stage.number), knows_written(state, run, stage)
    found = state.data.gathers.get(key)
    if found is None or found[0] != known:
        gather = _find(state, run, stage)
        if found is not None and found[1] == gather:
            gather = found[1]  # the same object: routes were found by it
        found = state.data.gathers[key] = known, gather
    return found[1]


def gathers_of(state: EngineState, run: WorkflowRun, stage: StageRun, far: int = _FAR) -> tuple[Gather, ...]:
    """How the outputs of a stage are gathered, and, of those that go through other stages, theirs: up to the last that is known."""
    found: list[Gather] = []
    while len(found) <= far and (gather := gather_of(state, run, stage)) is not None:
        found.append(gather)
        if not gather.through:
            break
        stage = run.stages[gather.consumer]
    return tuple(found)


def next_unknown(state: EngineState, run: WorkflowRun, stage: StageRun, far: int = _FAR) -> StageRun | None:
    """The first stage with unknown outputs on the way from a stage to the task that gathers. Once the scheduler knows these
    outputs, another task may gather. None = all outputs on the way are known.
    """
    while far >= 0 and run.graph.edges_out[stage.number]:
        gather = gather_of(state, run, stage)
        if not state.data.gathers[run.id, stage.number][0]:
            return stage
        if gather is None or not gather.through:
            return None
        stage, far = run.stages[gather.consumer], far - 1
    return None


def consumer_shard(gather: Gather, stage: StageRun, consumer: StageRun, shard: int) -> int:
    """Which shard of the consumer reads the output of this one (the first of them, where several do)."""
    return reader_of(gather.match, shard, consumer.spec.width, stage.spec.width) or 0


def divided(state: EngineState, run: WorkflowRun, stage: StageRun) -> Gather | None:
    """The gather of a stage if its shards have several gather nodes, so that they cannot be offered as one bag."""
    gather = gather_of(state, run, stage)
    if gather is None or (gather.match is Match.ALL):
        return None
    return gather if run.stages[gather.consumer].spec.width > 1 else None


class Homes:
    """The gather nodes of outputs, as one round finds them: hundreds of shards have one in common.

    Made for one round, in which no task changes.
    """

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: (workflow, stage, shard; or the run of an engine, and a kind) that gathers -> bytes that will come there.
        self.coming: dict[tuple[str, ...], int] = {}
        self._found: dict[tuple[str, int, int], int] = {}
        self._of_calls: dict[tuple[str, Kind], Home | None] = {}

    def of(self, run: WorkflowRun, stage: StageRun, shard: int, far: int = _FAR) -> Home | None:
        """The gather node of this shard's output; None = it has none. `far`: how many stages on the search goes."""
        if is_call(run):
            return self.of_call(run)
        route = self.route(run, stage, shard, far)
        return None if route is None else self.at(run, route)

    def of_call(self, run: WorkflowRun) -> Home | None:
        """The gather node of an engine's call, by the learned plan; None = it has none, as far as is known."""
        assert run.spec.call is not None
        kind = run.spec.kind_of(run.spec.stages[0])
        key = (run.spec.call.run, kind)
        if key not in self._of_calls:
            found = call_home(self.state, *key)
            self._of_calls[key] = None if found is None else found[0]
            if found is not None:
                home = found[0]
                self.coming[home.gatherer] = self.state.data.push_backlog.get(home.node, 0)
        return self._of_calls[key]

    def route(self, run: WorkflowRun, stage: StageRun, shard: int, far: int = _FAR) -> Route | None:
        """Which task gathers this shard's output; None = none, as far as is known yet."""
        sent: int | None = None
        for gather in gathers_of(self.state, run, stage, far):
            consumer = run.stages[gather.consumer]
            shard = consumer_shard(gather, stage, consumer, shard)
            sent = gather.output_bytes if sent is None else min(gather.output_bytes, sent)
            if not gather.through:
                return Route(gather.consumer, shard, sent, far)
            stage, far = consumer, far - 1
        return None

    def at(self, run: WorkflowRun, route: Route) -> Home | None:
        """Where a task gathers its inputs; None = nowhere, since there are no two nodes, or none is ready that could run it."""
        node = self._place(run, route)
        return None if node is None else Home(node, route.sent, _gatherer(run, route))

    def note_coming(self, routes: Iterable[tuple[str, Route]]) -> None:
        """Note the bytes that will come to the gather nodes of all that is offered. `routes`: with their workflows."""
        if self.state.policy.profile.locality:
            for workflow, route in routes:
                self._place(self.state.work.runs[workflow], route)

    def _place(self, run: WorkflowRun, route: Route) -> int | None:
        """The node of `at`. The bytes that will come there are noted."""
        key = (run.id, route.consumer, route.reader)
        found = self._found.get(key)
        if found is not None:
            return found
        state, consumer = self.state, run.stages[route.consumer]
        if len(state.cluster.snapshot) < 2:
            return None
        node = state.data.homes.get(key)
        if node is None or not state.cluster.snapshot.ready[node]:
            onward = self.of(run, consumer, route.reader, route.far - 1) if route.far > 0 else None
            node = _choose(state, run, consumer, route.reader, onward)
            if node is None:
                return None
            state.data.homes[key] = node
        self._found[key] = node
        self.coming[_gatherer(run, route)] = _coming(state, run, consumer, route.reader, node)
        return node


def _gatherer(run: WorkflowRun, route: Route) -> tuple[str, ...]:
    return run.id, str(route.consumer), str(route.reader)


def is_call(run: WorkflowRun) -> bool:
    """Whether it is one task of an engine's run, so that only the learned plan knows its readers."""
    return run.spec.call is not None and len(run.stages) == 1


def call_home(state: EngineState, run: str, kind: Kind) -> tuple[Home, Kind] | None:
    """The gather node of what calls of a kind write in an engine's run, and the kind of the call that will read all of it there.

    The newest run that had such a call says so. None where it read less than half of what was written (a report of logs), where
    two kinds do (of two pipelines, which have this kind in common), and once one has come.
    """
    plan, snapshot = state.work.engines.learned_plan, state.cluster.snapshot
    if len(snapshot) < 2 or run in state.work.engines.ended:
        return None
    each = call_bytes(state, kind)
    known = plan.gatherers(kind)
    found = [other for other, had in known.items() if 0 < each * had.calls <= 2 * had.read_bytes]
    if len(found) != 1 or any(plan.has_come(run, other) for other in known):
        return None
    gathered = each * known[found[0]].calls
    rates = np.maximum(snapshot.nic_in, 1)
    if gathered * 1000 // int(rates.max(initial=1)) < _LEAST_MS:
        return None
    homes, key = state.data.call_homes, (run, found[0])
    node = homes.get(key)
    if node is None or node >= len(snapshot) or not snapshot.ready[node]:
        cost = gathered * 1000 // rates + load_of(state)
        for (other, gatherer), at in homes.items():
            if at < len(snapshot) and not plan.has_come(other, gatherer):
                cost[at] += gathered * 1000 // int(rates[at])
        if not snapshot.ready.any():
            return None
        node = homes[key] = int(np.argmin(np.where(snapshot.ready, cost, np.iinfo(np.int64).max)))
        if len(homes) > _MOST_CALL_HOMES:
            del homes[next(iter(homes))]
    return Home(node, each, (run, *found[0])), found[0]


def _find(state: EngineState, run: WorkflowRun, stage: StageRun) -> Gather | None:
    """Find how the outputs of a stage are gathered in the end; None = no stage gathers them."""
    gather = _find_gather(state, run, stage)
    if gather is not None:
        state.data.home_work[run.id, gather.consumer] = gather.work
        return Gather(gather.consumer, gather.match, written_bytes(state, run, stage))
    nodes, best = len(state.cluster.snapshot), None
    edges = run.graph.edges_out[stage.number]
    for edge in edges if len(edges) <= _MOST_READERS else ():
        consumer = run.stages[edge.child]
        read = [i for i in consumer.spec.inputs if i.stage == stage.spec.name]
        one = all(i.match is Match.INDEX for i in read) or stage.spec.width == consumer.spec.width == 1
        if consumer.spec.gang or not read or not one:
            continue
        if (
            reads_remotely(state, run, consumer, read[0])
            or run.graph.readers[read[0].stage, read[0].output] > _MOST_READERS
        ):
            continue
        onward = _find_gather(state, run, consumer)
        if onward is not None and (best is None or onward.per_node(nodes) > best[0]):
            best = onward.per_node(nodes), edge.child, read[0].match
    if best is None:
        return None
    return Gather(best[1], best[2], written_bytes(state, run, stage), through=True)


def _find_gather(state: EngineState, run: WorkflowRun, stage: StageRun) -> _Gathering | None:
    """Of the stages that gather what a stage writes, those that bring most bytes over one link."""
    found: dict[tuple[int, ...], _Gathering] = {}
    rate = max(1, int(state.cluster.snapshot.nic_in.max(initial=1)))
    for edge in run.graph.edges_out[stage.number]:
        consumer = run.stages[edge.child]
        if consumer.spec.gang:
            continue
        read = [i for i in consumer.spec.inputs if i.stage == stage.spec.name]
        if not read or reads_remotely(state, run, consumer, read[0]):
            continue
        match = read[0].match
        if run.graph.readers[read[0].stage, read[0].output] > _MOST_READERS:
            continue
        readers = consumer.spec.width if match is Match.ALL else 1
        if sum(_gathered(state, run, consumer).parents.values()) < 2:
            continue
        gathered = gathered_bytes(state, run, consumer)
        if gathered * 1000 // rate < _LEAST_MS:
            continue
        together = tuple(sorted(_gathered(state, run, consumer).parents))
        known = found.setdefault(together, _Gathering(edge.child, match, gathered))
        known.readers += readers
        known.work += readers * _work(state, run, consumer)
    nodes = len(state.cluster.snapshot)
    return max(found.values(), key=lambda each: each.per_node(nodes), default=None)


def _work(state: EngineState, run: WorkflowRun, stage: StageRun) -> int:
    """Milli-core ms that one shard is expected to take."""
    return typical_runtime(state, run, stage) * stage.spec.roles[0].resources.cpu_millicores


def gathered_bytes(state: EngineState, run: WorkflowRun, consumer: StageRun) -> int:
    """The bytes of the datasets with few readers that one shard of a stage is expected to read.

    Only the parents of which something has changed are looked at again: a stage may read a thousand others.
    """
    gathered, estimates = _gathered(state, run, consumer), state.work.estimates
    kinds = estimates.learned_since(gathered.learned)
    if kinds is None or len(kinds) > len(gathered.parents):
        gathered.changed.update(gathered.parents)
        kinds = []
    for workflow, *stage in kinds:
        if stage and workflow == run.spec.kind_of(consumer.spec)[0]:
            gathered.changed.update({run.graph.numbers.get(stage[0], -1)} & gathered.parents.keys())
    for number in gathered.changed:
        now = written_bytes(state, run, run.stages[number])
        gathered.total_bytes += gathered.parents[number] * (now - gathered.each.get(number, 0))
        gathered.each[number] = now
    gathered.changed.clear()
    gathered.learned = estimates.learned
    return gathered.total_bytes


def _gathered(state: EngineState, run: WorkflowRun, consumer: StageRun) -> Gathered:
    """The inputs of a stage that few others read."""
    known = state.data.gathered.get((run.id, consumer.number))
    if known is not None:
        return known
    found: dict[int, int] = {}
    for spec in consumer.spec.inputs:
        if spec.stage is None or run.graph.readers[spec.stage, spec.output] > _MOST_READERS:
            continue
        number = run.number_of(spec.stage)
        found[number] = max(found.get(number, 0), _count(run.stages[number], consumer, spec))
    gathered = state.data.gathered[run.id, consumer.number] = Gathered(found, set(found))
    return gathered


def _count(parent: StageRun, consumer: StageRun, spec: InputSpec) -> int:
    """How many shards of the parent one shard of the consumer reads, at least."""
    return max(1, len(shards_read(spec.match, 0, max(1, consumer.spec.width), parent.spec.width)))


def _choose(
    state: EngineState, run: WorkflowRun, consumer: StageRun, reader: int, onward: Home | None
) -> int | None:
    """The ready node where the shard is done first.

    The time counts the inputs over the node's link and onto its disk, with what other stages gather there. It also counts the
    work already planned there, the copy of the shard's output to its own gather node, and the datasets that all its producers read.
    """
    snapshot = state.cluster.snapshot
    nodes = len(snapshot)
    there = np.zeros(nodes, dtype=np.int64)
    total = gathered_bytes(state, run, consumer)
    for number in _gathered(state, run, consumer).parents:
        parent = run.stages[number]
        each = written_bytes(state, run, parent)
        if parent.uniform is not None or not each:
            continue
        shards = np.array(_read_by(run, parent, consumer, reader), dtype=np.int64) * parent.members
        at = parent.node[shards]
        known = np.isin(parent.task_state[shards], _THERE) & (at >= 0)
        there += np.bincount(at[known], minlength=nodes)[:nodes] * each
    rates = np.maximum(snapshot.nic_in, 1)
    written = _written_ms(state, _own_part(state, run, consumer))
    cost = np.maximum(np.maximum(total - there, 0) * 1000 // rates, written)
    if onward is not None:
        home, sent = onward.node, onward.output_bytes + _from_elsewhere(state, run, consumer, onward.node)
        cost = cost + np.where(np.arange(nodes) == home, 0, sent * 1000 // int(rates[home]))
    cost = cost + load_of(state)
    common = dict.fromkeys(
        dataset
        for number in _gathered(state, run, consumer).parents
        for dataset in common_ids(state, run, run.stages[number])
    )
    cost = cost + state.cluster.catalogue.missing_bytes(tuple(common), nodes) * 1000 // rates
    role = consumer.spec.roles[0].resources
    fits = snapshot.ready & (snapshot.allocatable[:, 0] >= role.cpu_millicores)
    fits &= snapshot.allocatable[:, 1] >= role.memory_bytes
    if not fits.any():
        return None
    return int(np.argmin(np.where(fits, cost, np.iinfo(np.int64).max)))


def _coming(state: EngineState, run: WorkflowRun, consumer: StageRun, reader: int, home: int) -> int:
    """Bytes that producers which run elsewhere will send to the gather node, and those that wait to be pushed there already."""
    waiting = state.data.push_backlog.get(home, 0)
    known = state.data.coming.setdefault((run.id, consumer.number), {})
    if reader in known and known[reader][0] == home:
        return waiting + known[reader][1]
    total = 0
    for number in _gathered(state, run, consumer).parents:
        parent = run.stages[number]
        if parent.uniform is not None:
            continue
        parts = state.data.coming_from.setdefault((run.id, number), {})
        part = parts.get((consumer.number, reader))
        if part is None or part[0] != home:
            read = _read_by(run, parent, consumer, reader)
            tasks = slice(read.start * parent.members, read.stop * parent.members, parent.members)
            running = _UNDER_WAY[parent.task_state[tasks]] & (parent.node[tasks] != home)
            away = int(np.count_nonzero(running))
            part = parts[consumer.number, reader] = (
                home,
                away * written_bytes(state, run, parent) if away else 0,
            )
        total += part[1]
    known[reader] = (home, total)
    return waiting + total


def _read_by(run: WorkflowRun, parent: StageRun, consumer: StageRun, reader: int) -> range:
    """The shards of a parent that one shard of the consumer reads."""
    matches = (spec.match for spec in consumer.spec.inputs if spec.stage == parent.spec.name)
    match = next((each for each in matches if each is not Match.ALL), Match.ALL)
    return shards_read(match, reader, consumer.spec.width, parent.spec.width)


def _written_ms(state: EngineState, more: int) -> NDArray[np.int64]:
    """(N,) ms that nodes' disks take for data gathered there, and so many bytes more: they are written wherever they come from.

    An output with several readers counts for each of them in part: tasks that read the same often share a gather node.
    """
    written = np.full(len(state.cluster.snapshot), more, dtype=np.int64)
    for (workflow, number, _), node in state.data.homes.items():
        run = state.work.runs.get(workflow)
        if run is not None:
            written[node] += _own_part(state, run, run.stages[number])
    rates = state.cluster.snapshot.disk_rate
    return np.where(rates > 0, written * 1000 // np.maximum(rates, 1), 0)


def _from_elsewhere(state: EngineState, run: WorkflowRun, consumer: StageRun, node: int) -> int:
    """Bytes that stages with the same readers will send to a node, because they gather on other nodes.

    It decides in trees of gathering tasks (16 parts, 8 halves of 2 GB, one whole: 79 s, 107 s without it; five other trees:
    from 0.99 to 1.95 times as long without it). Workflows that gather once do not change.
    """
    readers = {edge.child for edge in run.graph.edges_out[consumer.number]}
    sent = 0
    for (workflow, number, _), at in state.data.homes.items():
        if workflow != run.id or at == node:
            continue
        if not readers.isdisjoint(edge.child for edge in run.graph.edges_out[number]):
            sent += written_bytes(state, run, run.stages[number])
    return sent


def _own_part(state: EngineState, run: WorkflowRun, consumer: StageRun) -> int:
    """Bytes that one shard of a stage is expected to gather, each divided among all its readers."""
    part = 0
    for spec in consumer.spec.inputs:
        if spec.stage is None:
            continue
        readers = run.graph.readers[spec.stage, spec.output]
        if readers <= _MOST_READERS:
            parent = run.stages[run.number_of(spec.stage)]
            part += _count(parent, consumer, spec) * written_bytes(state, run, parent) // max(1, readers)
    return part


def load_of(state: EngineState) -> NDArray[np.int64]:
    """(N,) ms of work that each node gets as a gather node, spread over its cores.

    All stages that gather the same inputs will run there, so the work of all of them counts.
    """
    load = np.zeros(len(state.cluster.snapshot), dtype=np.int64)
    for (workflow, number, _), node in state.data.homes.items():
        run = state.work.runs.get(workflow)
        if run is None:
            continue
        cores = max(1, int(state.cluster.snapshot.allocatable[node, 0]))
        work = state.data.home_work.get((workflow, number)) or _work(state, run, run.stages[number])
        load[node] += work // cores
    return load
