"""Versions: which version of each input from outside a run reads.

The leader looks at an input when the first task that reads it becomes ready (`events.LookedUp`). From then on the run reads that
version, by the dataset's name, from whatever node or origin has it. If no node has it and its origin has another one by now, the
run looks again: its next tasks read the new version.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flowsched.engine.data.cache_values import note_anew
from flowsched.engine.data.inputs import reads_outside, uris_outside
from flowsched.engine.data.remote_reads import leave_in_place
from flowsched.engine.delta import ReplicaWrite
from flowsched.engine.events import LookedUp
from flowsched.engine.transaction import Recorder
from flowsched.executor.datasets import parse, uri_of
from flowsched.executor.protocol import Drop
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.run.states import TaskState

#: So often a run looks for a new version of one input. A file that is written to all the time is never copied as one version.
_MOST_CHANGES: Final = 8


def read_versions(
    recorder: Recorder, run: WorkflowRun, stage: StageRun, answer: LookedUp, *, only_known: bool
) -> None:
    """A run reads these versions, where it has not read others of the same inputs before.

    Args:
        recorder: Of the step.
        run, stage: The stage that asked.
        answer: The answer to its look-up.
        only_known: No task reads them yet: they may be copied ahead, and the task's own look-up follows.
    """
    state, catalogue = recorder.state, recorder.state.cluster.catalogue
    declared = {spec.uri: spec.size_bytes for spec in stage.spec.inputs if spec.stage is None}
    for uri, name in answer.names.items():
        size = declared.get(uri) or answer.sizes.get(name, 0)
        catalogue.newest[uri] = catalogue.intern(name, size, True)
        if name in answer.in_place:
            catalogue.read_in_place(catalogue.newest[uri])
    pair = run.id, stage.number
    state.work.drop_inputs(recorder.statement, [pair])  # they may have been asked for before they were ready
    for number in state.data.early[run.id].stages if run.id in state.data.early else ():
        state.data.arriving.pop((run.id, number), None)
    new = {uri: name for uri, name in answer.names.items() if uri not in run.versions}
    if only_known or not new:
        return
    recorder.statement.put_all(run.versions, new)
    for uri, name in new.items():
        _drop_others(recorder, uri, name)
    if catalogue.caches is not None:
        note_anew(state, run)


def _drop_others(recorder: Recorder, uri: str, name: str) -> None:
    """Copies of versions that no run reads any more go: an input that is edited every day would fill the nodes."""
    state, catalogue = recorder.state, recorder.state.cluster.catalogue
    for dataset in catalogue.versions_of(uri):
        other = catalogue.uris[dataset]
        if other == name or not catalogue.has_replica(dataset):
            continue
        if any(each.versions.get(uri) == other for each in state.work.runs.values()):
            continue
        for node in sorted(catalogue.nodes_of(dataset)):
            if (dataset, node) in state.data.read_from:
                continue
            catalogue.drop_replica(dataset, node, recorder.statement)
            on = state.cluster.snapshot.names[node]
            recorder.delta.replicas.append(ReplicaWrite(other, on, 0, False))
            recorder.drops.append(Drop(other, on, catalogue.sizes[dataset]))


def withdraw(recorder: Recorder, name: str) -> bool:
    """The origin of a dataset has another version now. Returns whether the name contains the version that was wanted."""
    dataset = recorder.state.cluster.catalogue.find(name)
    if dataset is None or not parse(name).is_known:
        return False
    recorder.state.cluster.catalogue.withdraw(dataset, recorder.statement)
    recorder.dirty = True
    return True


def replace_version(recorder: Recorder, run: WorkflowRun, name: str) -> None:
    """A version that a run reads cannot be had any more: it looks for the one that there is now, or gives up."""
    uri = uri_of(name)
    if run.versions.get(uri) != name or run.state.terminal:
        return
    times = run.changed.get(uri, 0) + 1
    if times > _MOST_CHANGES:
        if not leave_copies(recorder, uri):
            _give_up(recorder, run, uri)
        return
    recorder.statement.put(run.changed, uri, times)
    recorder.state.work.drop_inputs(recorder.statement)
    recorder.advance(run).recheck_inputs(uri)


def leave_copies(recorder: Recorder, uri: str) -> set[tuple[str, int]]:
    """Copies of an input failed for good. If it is a file that containers read, their tasks read it where it lies from now on.

    Returns:
        Their stages: (workflow, stage).
    """
    changed = leave_in_place(recorder.state, uri, recorder.statement)
    for run, stage in changed:
        changes = recorder.advance(run).changes
        changes.touch(stage.number)
        changes.anew.add(stage.number)  # tasks that wait as before read other datasets now
        if recorder.state.cluster.catalogue.caches is not None:
            note_anew(recorder.state, run)
    recorder.dirty |= bool(changed)
    return {(run.id, stage.number) for run, stage in changed}


def _give_up(recorder: Recorder, run: WorkflowRun, uri: str) -> None:
    message = (
        f"{uri} was another version at each of {_MOST_CHANGES} copies: expected a file that is not written to while tasks read it, "
        "and that is the same on all nodes"
    )
    for stage in run.stages:
        if stage.state.terminal or stage.uniform is not None or not reads_outside(stage):
            continue
        waits = np.flatnonzero(np.isin(stage.task_state, (TaskState.QUEUED, TaskState.STAGING)))
        readers = [task for task in waits.tolist() if uri in uris_outside(stage, (task // stage.members,))]
        recorder.advance(run).fail_waiting(stage, np.array(readers, dtype=np.int64), "InputChanged", message)
