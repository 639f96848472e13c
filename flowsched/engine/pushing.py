"""Outputs that go to their readers' homes while others still compute (LOCALITY, d)."""

from __future__ import annotations

from collections.abc import Mapping

from flowsched.engine.changes import Recorder
from flowsched.engine.homes import consumer_shard, gather_of
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.transfers import TransferWant
from flowsched.workflow.run import StageRun, WorkflowRun
from flowsched.workflow.states import TaskState


def note_written(recorder: Recorder, run: WorkflowRun, stage: StageRun, task: int, node: int) -> None:
    """A shard's outputs are on a node: if their reader's home is another one, they shall go there."""
    state = recorder.state
    gather = gather_of(state, run, stage)
    if gather is None:
        return
    consumer = run.stages[gather.consumer]
    shard = task // stage.members
    home = state.homes.get((run.id, gather.consumer, consumer_shard(gather, stage, consumer, shard)))
    if home is None or home == node:
        return
    read = {i.output for i in consumer.spec.inputs if i.stage == stage.spec.name}
    for out in stage.spec.outputs:
        published = run.outputs.get((stage.number, out.name), {}).get(shard)
        dataset = None if published is None or out.name not in read else state.catalogue.find(published.uri)
        if dataset is not None:
            want = TransferWant(dataset, home, int(run.ranks[gather.consumer]), run.spec.priority, 2)
            if (dataset, home) not in state.pushes:
                _count(recorder, home, state.catalogue.sizes[dataset])
            recorder.statement.put(state.pushes, (dataset, home), (want, run.id, gather.consumer))


def foresee(recorder: Recorder, plan: Plan, groups: Mapping[int, PodGroup]) -> None:
    """Remember what groups that wait will read, and where, until the next plan."""
    state = recorder.state
    wants: dict[tuple[int, int], TransferWant] = {}
    for key, node in plan.ahead:
        group = groups[key]
        for dataset in group.inputs:
            if node not in state.catalogue.nodes_of(dataset):
                want = TransferWant(dataset, node, group.rank_ms, group.priority, 1)
                wants.setdefault((dataset, node), want)
    if wants or state.foreseen:
        recorder.statement.assign(state, "foreseen", wants)


def foreseen(recorder: Recorder) -> list[TransferWant]:
    """What tasks that wait for room will read where they will probably run."""
    state = recorder.state
    return [
        want
        for (dataset, node), want in state.foreseen.items()
        if node not in state.catalogue.nodes_of(dataset)
        and not state.catalogue.lost(dataset)
        and state.snapshot.ready[node]
    ]


def pushes(recorder: Recorder) -> list[TransferWant]:
    """What shall go to its readers' homes; what is there, lost, or not waited for any more is forgotten."""
    state, wants = recorder.state, []
    for pair, (want, workflow, number) in list(state.pushes.items()):
        run = state.runs.get(workflow)
        there = pair[1] in state.catalogue.nodes_of(pair[0])
        waits = run is not None and (
            run.stages[number].counts[TaskState.PENDING] or run.stages[number].counts[TaskState.QUEUED]
        )
        if there or not waits or state.catalogue.lost(pair[0]) or not state.snapshot.ready[pair[1]]:
            recorder.statement.pop(state.pushes, pair)
            _count(recorder, pair[1], -state.catalogue.sizes[pair[0]])
        else:
            wants.append(want)
    return wants


def _count(recorder: Recorder, node: int, size_bytes: int) -> None:
    backlog = recorder.state.push_backlog
    recorder.statement.put(backlog, node, backlog.get(node, 0) + size_bytes)
