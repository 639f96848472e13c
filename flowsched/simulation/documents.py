"""Our own workflow documents as workloads: their estimates are taken for the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flowsched.simulation.workload import Expected, File, Job, Workload
from flowsched.statement import Statement
from flowsched.workflow.graph import StageGraph, shards_read
from flowsched.workflow.run.advance import Advance
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.spec import InputSpec, On, StageSpec, WorkflowSpec

#: How long a task computes if its stage gives no estimate, in seconds.
DEFAULT_S = 60.0


@dataclass(slots=True)
class _Draft:
    """A workload as it grows."""

    spec: WorkflowSpec
    files: list[File] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    external: dict[str, int] = field(default_factory=dict)
    written: dict[tuple[str, str, int], int] = field(default_factory=dict)  #: (stage, output, shard) -> file
    #: (stage, shard) -> what must have ended before a stage that waits for the shard begins
    ends: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    skips: frozenset[str] = frozenset()  #: stages whose condition does not hold where all goes well
    skipped: list[int] = field(default_factory=list)  #: their jobs


def from_document(spec: WorkflowSpec, name: str, source: str) -> Workload:
    """A workflow document as a workload.

    A task computes for as long as its stage estimates (a minute where it does not) and writes the bytes it estimates, shared out
    over its outputs. Inputs from outside lie on the shared storage. Every task succeeds, and no output has a value that a
    condition could ask for.

    Args:
        spec: The document.
        name: How the workload is called in figures.
        source: Name of the file it is from.
    """
    run = WorkflowRun("", spec, StageGraph(spec))
    skips = Advance(run, Statement(), 0).skips()
    draft = _Draft(spec, skips=frozenset(stage.spec.name for stage in skips))
    read: set[tuple[str | None, str | None]] = {
        (i.stage, i.output) for stage in spec.stages for i in stage.inputs if i.stage is not None
    }
    stages = {stage.name: stage for stage in spec.stages}
    for stage in _parents_first(spec):
        for shard in range(stage.width):
            _shard(draft, stage, shard, stages, read)
    expected = {
        stage.name: Expected(_seconds(stage), float(stage.estimate.output_bytes or 0))
        for stage in spec.stages
    }
    return Workload(
        name,
        source,
        tuple(draft.jobs),
        tuple(draft.files),
        expected,
        spec,
        draft.numbers,
        draft.external,
        keep_final=False,
        skipped=frozenset(draft.skipped),
    )


def _parents_first(spec: WorkflowSpec) -> Iterator[StageSpec]:
    left = {stage.name: stage for stage in spec.stages}
    while left:
        for name, stage in list(left.items()):
            before = {*stage.needs, *(i.stage for i in stage.inputs if i.stage is not None)}
            if not before & left.keys():
                yield left.pop(name)


def _seconds(stage: StageSpec) -> float:
    runtime = stage.estimate.runtime_ms
    return DEFAULT_S if runtime is None else runtime / 1000


def _shard(
    draft: _Draft,
    stage: StageSpec,
    shard: int,
    stages: dict[str, StageSpec],
    read: set[tuple[str | None, str | None]],
) -> None:
    inputs: list[int] = []
    parents: list[int | None] = []
    absent = [entry.stage for entry in stage.inputs if entry.stage in draft.skips]
    for entry in stage.inputs:
        for file in _read(draft, stage, entry, shard, stages):
            inputs.append(file)
            parents.append(draft.files[file].producer)
    for needed in (*stage.needs, *absent):
        for each in range(stages[needed].width):
            parents += draft.ends[needed, each]
    known = tuple(dict.fromkeys(parent for parent in parents if parent is not None))
    skipped = stage.name in draft.skips
    cut_short = skipped or any(policy.event is On.TASK_COMPLETED for policy in stage.policies)
    members = [(role, replica) for role in stage.roles for replica in range(role.replicas)]
    completing = next((role.name for role in stage.roles if role.completes), stage.roles[0].name)
    each = max(1, (stage.estimate.output_bytes or 0) // max(1, len(stage.outputs)))
    for member, (role, replica) in enumerate(members):
        number = len(draft.jobs)
        outputs, slots = [], []
        if role.name == completing and replica == 0:
            draft.ends[stage.name, shard] = known if skipped else (number,)
        if skipped:
            draft.skipped.append(number)
        for output in stage.outputs:
            if replica == 0 and (output.role or completing) == role.name:
                final = (stage.name, output.name) not in read
                draft.written[stage.name, output.name, shard] = len(draft.files)
                outputs.append(len(draft.files))
                slots.append(output.name)
                draft.files.append(File(f"{stage.name}/{shard}/{output.name}", each, number, final))
        draft.jobs.append(
            Job(
                name=f"{stage.name}/{shard}" + (f"/{role.name}{member}" if stage.gang else ""),
                category=stage.name,
                cores=role.resources.cpu_millicores / 1000,
                compute_s=_seconds(stage),
                inputs=tuple(dict.fromkeys(inputs)),
                outputs=tuple(outputs),
                parents=known,
                slots=tuple(slots),
                memory=role.resources.memory_bytes,
                certain=not cut_short and role.completes and replica < role.minimum,
            )
        )
        draft.numbers[stage.name, shard * len(members) + member] = number


def _read(
    draft: _Draft, stage: StageSpec, entry: InputSpec, shard: int, stages: dict[str, StageSpec]
) -> Iterator[int]:
    if entry.stage is None:
        uri = (entry.uri or "").replace("{index}", str(shard))
        uri = uri.replace("{item}", stage.items[shard]) if stage.items else uri
        if uri not in draft.external:
            draft.external[uri] = len(draft.files)
            draft.files.append(File(uri, entry.size_bytes or 1))
        yield draft.external[uri]
        return
    if entry.stage in draft.skips:
        return
    width = stages[entry.stage].width
    for each in shards_read(entry.match, shard, stage.width, width):
        yield draft.written[entry.stage, entry.output or "", each]
