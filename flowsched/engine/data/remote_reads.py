"""Choice of tier: the inputs and files that a task reads where they lie, without a copy on its node (LOCALITY, b).

A copy is written to its reader's disk before it is read, so it comes no faster than that disk; and where more is gathered than
memory holds, it is read from there once more. Where links are faster than disks, a dataset with few readers arrives sooner if
each of them reads it where it was written. A task holds its cores meanwhile, but less long than the copies would have taken it.

Files that containers name on a storage of all nodes are read there. One that several tasks read (a reference) gets copies by the
same rule, as data from outside do: it becomes an input of the stages that read it, and its copy lies at its path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from flowsched.engine.data.inputs import LEAST_BYTES, datasets_of, reads_outside, sources_of
from flowsched.engine.state import EngineState
from flowsched.engine.state.data import FileReaders
from flowsched.engine.state.work import PodRef
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import storage_at
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.spec import EMPTY, InputSpec, Placed

#: So many files and their readers are remembered.
_MOST_FILES: Final = 100_000


def reads_remotely(state: EngineState, run: WorkflowRun, stage: StageRun, spec: InputSpec) -> bool:
    """Whether the shards of a stage read this input where it lies.

    They do if the executor can, it comes from another stage, and all its readers together get it sooner over their links than
    one copy of it is written to a disk. Members of gangs do not: they would hold each other up.
    """
    if (
        not state.policy.remote_reads
        or spec.stage is None
        or stage.spec.gang
        or not len(state.cluster.snapshot)
    ):
        return False
    profile = state.policy.profile.of(run.spec.queue)
    if not (profile.locality and state.policy.profile.remote_reads):
        return False
    link, disk = (_middle(state.cluster.snapshot, name) for name in ("nic_in", "disk_rate"))
    return 0 < disk * run.graph.readers[spec.stage, spec.output] < link


def share_files(
    state: EngineState, run: WorkflowRun, statement: Statement
) -> list[tuple[WorkflowRun, StageRun]]:
    """Note the files that a run's containers read where they lie. If enough tasks read one, their stages get it as an input.

    Returns:
        Stages that read such a file as an input from now on, of this run and of others that wait.
    """
    changed: dict[tuple[str, int], tuple[WorkflowRun, StageRun]] = {}
    if not (state.policy.memoizing and state.policy.profile.of(run.spec.queue).locality):
        return []
    known = state.data.file_readers
    for stage in run.stages:
        if stage.state.terminal:
            continue
        for path in sorted(sources_of(stage.spec)):
            if run.file_bytes.get(path, 0) < LEAST_BYTES or not _can_be_copied(state, run, stage, path):
                continue
            readers = statement.pop(known, path) or FileReaders()
            statement.put(known, path, readers)  # the dict is in the order of the last reads
            statement.assign(readers, "tasks", readers.tasks + stage.spec.tasks)
            statement.put(readers.in_place, (run.id, stage.number), None)
            if not _pays(state, path, readers.tasks):
                continue
            waiting = readers.in_place
            statement.assign(readers, "in_place", {})
            for workflow, number in waiting:
                reader = state.work.runs.get(workflow)
                if reader is None or reader.stages[number].state.terminal:
                    continue
                if _can_be_copied(state, reader, reader.stages[number], path):
                    _read_as_input(state, reader, reader.stages[number], path, statement)
                    changed[workflow, number] = reader, reader.stages[number]
    while len(known) > _MOST_FILES:
        statement.pop(known, next(iter(known)))
    return list(changed.values())


def _can_be_copied(state: EngineState, run: WorkflowRun, stage: StageRun, path: str) -> bool:
    """Whether the tasks of a stage can have a copy of a file in its place, and any cache has room for twice all its copies: a task
    whose inputs fill the caches would wait for room.
    """
    container, copies, caches = stage.spec.container, state.policy.file_copies, state.cluster.catalogue.caches
    assert container is not None
    has_images = copies == "always" and all(step.image for step in container.steps)
    placed = [each for each in container.inputs if each.source == path]
    if (
        copies == "never"
        or state.data.file_readers.get(path, FileReaders()).failed
        or any(each.directory or not (has_images or each.path != each.source) for each in placed)
    ):
        return False
    written = {each.path for each in container.outputs}.union(
        *((s.stdout, s.stderr) for s in container.steps)
    )
    if any(each.path in written for each in placed):
        return False  # a copy is read-only, and would be delivered as the task's output
    copied = {path} | {each.source for each in container.inputs if each.source and each.input}
    return caches is None or 2 * sum(run.file_bytes.get(each, 0) for each in copied) <= caches.smallest


def _pays(state: EngineState, path: str, tasks: int) -> bool:
    """Whether copies of a file that so many tasks read come sooner than all of them can read it where it lies. A node may have one
    of a file that a task has delivered.
    """
    snapshot, storage = state.cluster.snapshot, storage_at(state.policy.profile.storages, path)
    catalogue = state.cluster.catalogue
    if any(map(catalogue.has_replica, catalogue.versions_of(path))):
        return True
    if tasks < 2 or not len(snapshot):
        return False
    link, disk = (_middle(snapshot, name) for name in ("nic_in", "disk_rate"))
    if storage is not None and storage.read_rate:
        link = min(link, storage.read_rate)
    return not 0 < disk * tasks < link


def _read_as_input(
    state: EngineState, run: WorkflowRun, stage: StageRun, path: str, statement: Statement
) -> None:
    """Let a stage's container get a file from the node's cache. Its waiting tasks wait for the file's version, too."""
    assert stage.spec.container is not None
    placed = list(stage.spec.container.inputs)
    at = [number for number, each in enumerate(placed) if each.source == path]
    for number in at:
        placed[number] = replace(placed[number], input=f"file-{number}")
    inputs = (*stage.spec.inputs, *(InputSpec(f"file-{number}", uri=path) for number in at))
    _read_so(state, run, stage, placed, inputs, -run.file_bytes[path], statement)


def leave_in_place(state: EngineState, path: str, statement: Statement) -> list[tuple[WorkflowRun, StageRun]]:
    """Copies of a file failed for good: tasks that do not run yet read it where it lies, and the scheduler orders no more copies.

    Returns:
        The stages that had it as an input; none if it is no file that containers read.
    """
    changed = []
    for run in state.work.runs.values():
        for stage in run.stages:
            placed = () if stage.spec.container is None else stage.spec.container.inputs
            names = {each.input for each in placed if each.source == path and each.input}
            if not names or stage.state.terminal:
                continue
            back = [replace(each, input=None) if each.input in names else each for each in placed]
            inputs = tuple([each for each in stage.spec.inputs if each.name not in names])
            _read_so(state, run, stage, back, inputs, run.file_bytes[path], statement)
            if not reads_outside(stage):  # nothing is left to look at
                statement.assign(stage, "cache_checked", None)
            changed.append((run, stage))
    if changed:
        statement.put(state.data.file_readers, path, FileReaders(failed=True))
    return changed


def _read_so(
    state: EngineState,
    run: WorkflowRun,
    stage: StageRun,
    placed: list[Placed],
    inputs: tuple[InputSpec, ...],
    more_bytes: int,
    statement: Statement,
) -> None:
    """A stage has these inputs from now on, and reads so many more bytes in place."""
    assert stage.spec.container is not None
    container = replace(stage.spec.container, inputs=tuple(placed))
    statement.assign(stage, "spec", replace(stage.spec, container=container, inputs=inputs))
    if stage.number in run.placed_bytes:
        statement.put(run.placed_bytes, stage.number, run.placed_bytes[stage.number] + more_bytes)
    state.work.drop_inputs(statement, [(run.id, stage.number)])


def _middle(snapshot: Snapshot, name: str) -> int:
    """The rate of the node in the middle: one that is busy or slow changes nothing for the others."""
    key = ("middle", name)
    if key not in snapshot.cache:
        rates = getattr(snapshot, name)
        snapshot.cache[key] = int(np.sort(rates, kind="stable")[(len(rates) - 1) // 2])
    middle: int = snapshot.cache[key]
    return middle


def remote_specs(state: EngineState, run: WorkflowRun, stage: StageRun) -> list[InputSpec]:
    """The inputs of a stage that its shards read where they lie."""
    if not state.policy.remote_reads:
        return []
    return [spec for spec in stage.spec.inputs if reads_remotely(state, run, stage, spec)]


def remote_ids(
    state: EngineState, run: WorkflowRun, stage: StageRun, specs: Sequence[InputSpec], shard: int
) -> tuple[int, ...]:
    """Catalogue numbers of the datasets that these inputs of one shard consist of, as far as they lie on nodes: others are
    copied from outside.
    """
    catalogue = state.cluster.catalogue
    found = [catalogue.intern(*each) for spec in specs for each in datasets_of(run, stage, spec, shard)]
    return tuple([dataset for dataset in dict.fromkeys(found) if catalogue.has_replica(dataset)])


def sources(state: EngineState, group: PodGroup, node: int) -> Mapping[str, str]:
    """The sources of inputs that a pod's node does not have, by uri: each from the holder that fewest pods read from."""
    if not group.remote:
        return EMPTY
    found = {}
    for dataset in group.remote:
        holders = state.cluster.catalogue.nodes_of(dataset)
        if node not in holders:
            ready = [each for each in holders if state.cluster.snapshot.ready[each]] or holders
            least = min(ready, key=lambda each: (state.data.read_from.get((dataset, each), 0), each))
            found[state.cluster.catalogue.uris[dataset]] = state.cluster.snapshot.names[least]
    return found


def begin_reading(state: EngineState, stage: StageRun, ref: PodRef, statement: Statement) -> None:
    """A pod is bound that reads elsewhere: that counts as moved for it, and stays where it is."""
    moved = sum(state.cluster.catalogue.sizes[state.cluster.catalogue.intern(uri)] for uri in ref.remote)
    statement.add(stage.own("moved"), np.array([ref.task]), moved)
    pin_sources(state, ref, statement)


def pin_sources(state: EngineState, ref: PodRef, statement: Statement) -> None:
    """Pin the copies that a pod reads on other nodes: they stay there."""
    for pair in _pairs(state, ref):
        statement.put(state.data.read_from, pair, state.data.read_from.get(pair, 0) + 1)


def end_reading(state: EngineState, name: str, statement: Statement) -> None:
    """A pod holds nothing any more."""
    ref = statement.pop(state.work.pods, name)
    for pair in _pairs(state, ref) if ref is not None else ():
        left = (
            state.data.read_from.get(pair, 0) - 1
        )  # none was counted if the node was not known when the pod was taken over
        if left > 0:
            statement.put(state.data.read_from, pair, left)
        else:
            statement.pop(state.data.read_from, pair)


def _pairs(state: EngineState, ref: PodRef) -> list[tuple[int, int]]:
    """(dataset, node) of a pod's remote inputs, as long as the node is known."""
    index = state.cluster.snapshot.index
    return [
        (state.cluster.catalogue.intern(uri), index[node])
        for uri, node in ref.remote.items()
        if node in index
    ]
