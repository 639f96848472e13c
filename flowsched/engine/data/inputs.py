"""Inputs and outputs of a shard: this module turns a document's inputs into names of datasets and catalogue numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from flowsched.engine.state import EngineState
from flowsched.executor.datasets import INTERMEDIATE
from flowsched.executor.protocol import InputFile, OutputFile
from flowsched.scheduling.state.data import Catalogue
from flowsched.workflow.graph import shards_read
from flowsched.workflow.run.run import CACHED, StageRun, WorkflowRun
from flowsched.workflow.spec import InputSpec, Match, OutputSpec, StageSpec, filled

#: Tasks read smaller files where they lie: a look at a file, a copy and its record cost a task more than it gains.
LEAST_BYTES: Final = 32 << 20


class MissingInput(Exception):
    """An input that is needed was never written (its producer may ignore a failure). A value in disguise:
    it never leaves the engine.
    """


def private(stage: StageRun) -> bool:
    """Whether shards of the stage read different datasets."""
    return any(map(is_own, stage.spec.inputs))


def is_own(spec: InputSpec) -> bool:
    """Whether each shard reads other datasets as this input."""
    if spec.stage is not None:
        return spec.match in (Match.INDEX, Match.CHUNK)
    return _names_shard(spec.uri or "")


def _names_shard(uri: str) -> bool:
    return "{item}" in uri or "{index}" in uri


def input_files(run: WorkflowRun, stage: StageRun, shard: int) -> tuple[InputFile, ...]:
    """The inputs of one shard as its pods see them.

    Raises:
        MissingInput: One that is not optional does not exist.
    """
    files = []
    for spec in stage.spec.inputs:
        uris = tuple([uri for uri, _ in datasets_of(run, stage, spec, shard)])
        if not uris:
            if spec.optional:
                continue
            if not _reads_no_shards(run, spec):
                raise MissingInput(f"input {spec.name!r}: {spec.stage}.{spec.output} was not written")
        files.append(InputFile(spec.name, uris, _is_manifest(run, spec)))
    return tuple(files)


def dataset_ids(
    state: EngineState, run: WorkflowRun, stage: StageRun, shard: int, *, shared: bool | None = None
) -> tuple[int, ...]:
    """Catalogue numbers of all that one shard reads, in the order of its inputs.

    `shared`: all shards of the stage read the same (not `private`); None = look.

    Raises:
        MissingInput: One that is not optional does not exist.
    """
    if shared is None:
        shared = not private(stage)
    cached = state.work.inputs.get((run.id, stage.number)) if shared else None
    if cached is not None:
        return cached
    ids: dict[int, None] = {}
    for spec in stage.spec.inputs:
        found = False
        for uri, size in datasets_of(run, stage, spec, shard):
            found = True
            outside = spec.stage is None and not uri.startswith(INTERMEDIATE)
            ids[state.cluster.catalogue.intern(uri, size, outside)] = None
        if not found and not spec.optional and not _reads_no_shards(run, spec):
            raise MissingInput(f"input {spec.name!r}: {spec.stage}.{spec.output} was not written")
    result = tuple(ids)
    if shared:
        state.work.inputs[(run.id, stage.number)] = result
    return result


def common_ids(state: EngineState, run: WorkflowRun, stage: StageRun) -> tuple[int, ...]:
    """Catalogue numbers of the datasets that all shards of a stage read, as far as they exist."""
    named = (
        name for spec in stage.spec.inputs if not is_own(spec) for name, _ in datasets_of(run, stage, spec, 0)
    )
    found = (state.cluster.catalogue.find(name) for name in named)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def needed(state: EngineState) -> set[int]:
    """The datasets that runs read or have written, tasks wait for, pods read, or transfers carry."""
    return _moved(state) | _waited_for(state) | _named_by_runs(state)


def _moved(state: EngineState) -> set[int]:
    """The datasets that transfers carry or are to carry, and those that pods read from a cache."""
    data, caches = state.data, state.cluster.catalogue.caches
    found = data.wanted.datasets() | data.foreseen.datasets()
    for pairs in (data.moving, data.coming_in, data.backoff, data.read_from, data.pushes):
        found.update([pair[0] for pair in pairs])
    for group in data.staging.values():
        found.update([dataset for dataset, _ in group.pending])
    if caches is not None:
        found.update([dataset for cache in caches.of.values() for dataset in cache.pinned])
        found.update(state.caches.outside)
    return found


def _waited_for(state: EngineState) -> set[int]:
    """The datasets that waiting tasks read."""
    found: set[int] = set()
    for inputs in state.work.inputs.values():
        found.update(inputs or ())
    for bags in state.work.offers.bags.values():
        found.update([dataset for each in bags.candidates.values() for dataset in each.group.reads])
    for refused in state.round.refused.values():
        found.update(refused.reads)
    return found


def _named_by_runs(state: EngineState) -> set[int]:
    """The datasets that runs have written, and their inputs from outside, in each version."""
    catalogue = state.cluster.catalogue
    found: set[int | None] = set()
    for run in state.work.runs.values():
        names = [output.uri for shards in run.outputs.values() for output in shards.values()]
        found.update([catalogue.find(name) for name in (*names, *run.versions.values())])
        for stage in run.stages:
            for uri in uris_outside(stage, range(stage.spec.width)):
                found.update((catalogue.find(uri), catalogue.newest.get(uri)))
    return {dataset for dataset in found if dataset is not None}


def _reads_no_shards(run: WorkflowRun, spec: InputSpec) -> bool:
    """Whether an input comes from a stage without shards: its list is empty, and nothing is missing."""
    return spec.stage is not None and run.stages[run.number_of(spec.stage)].spec.width == 0


def outputs_of(stage: StageRun, role: int) -> tuple[OutputSpec, ...]:
    """The outputs that member 0 of a role writes: one member writes each of a stage's outputs."""
    return tuple([spec for spec in stage.spec.outputs if _writer(stage, spec) == role])


def output_files(
    run: WorkflowRun, stage: StageRun, shard: int, attempt: int, writes: Sequence[OutputSpec]
) -> tuple[OutputFile, ...]:
    """Where the pod of a shard that writes these puts them."""
    if not writes:
        return ()
    place = f"flowsched:{run.id}/{stage.spec.name}/{shard}/{attempt}/"
    return tuple(
        [
            OutputFile(
                name=spec.name,
                path=filled(spec.path, stage.spec, shard),
                uri=place + spec.name,
                optional=spec.optional,
                value=spec.value,
            )
            for spec in writes
        ]
    )


def producer_of(run: WorkflowRun, uri: str) -> tuple[StageRun, int] | None:
    """The stage and shard that wrote an intermediate dataset of this run, or took it from another; None for anything else."""
    if not uri.startswith(f"flowsched:{run.id}/"):
        return _taken_by(run, uri) if uri.startswith("flowsched:") else None
    _, stage, shard, _, name = uri.removeprefix("flowsched:").split("/", 4)
    number = run.graph.numbers.get(stage)
    if number is None:
        return None
    published = run.outputs.get((number, name), {}).get(int(shard))
    if published is None or published.uri != uri:
        return None
    return run.stages[number], int(shard)


def _taken_by(run: WorkflowRun, uri: str) -> tuple[StageRun, int] | None:
    """The stage and shard that took a dataset of another workflow as its output."""
    for (number, _), shards in run.outputs.items():
        if run.stages[number].totals[CACHED]:
            for shard, output in shards.items():
                if output.uri == uri:
                    return run.stages[number], shard
    return None


def _writer(stage: StageRun, spec: OutputSpec) -> int:
    """The number of the role whose member 0 writes an output."""
    roles = stage.spec.roles
    for number, role in enumerate(roles):
        if spec.role == role.name or (spec.role is None and role.completes):
            return number
    return 0


def _is_manifest(run: WorkflowRun, spec: InputSpec) -> bool:
    if spec.manifest or spec.stage is None:
        return spec.manifest
    width = run.stages[run.number_of(spec.stage)].spec.width
    return spec.match is not Match.INDEX and width != 1


def uri_outside(stage: StageRun, spec: InputSpec, shard: int) -> str:
    """The URI of an input from outside, for one shard."""
    uri, items = (spec.uri or "").replace("{index}", str(shard)), stage.spec.items
    return uri.replace("{item}", items[shard]) if items else uri


def uris_outside(stage: StageRun, shards: Iterable[int]) -> dict[str, int]:
    """URI -> size in bytes or 0, of all inputs from outside of some shards."""
    found: dict[str, int] = {}
    for spec in stage.spec.inputs:
        if spec.stage is None:
            some = shards if is_own(spec) else (0,)
            found.update((uri_outside(stage, spec, shard), spec.size_bytes or 0) for shard in some)
    return found


def reads_outside(stage: StageRun) -> bool:
    """Whether a stage has an input from outside."""
    return any(spec.stage is None for spec in stage.spec.inputs)


def sources_of(spec: StageSpec) -> frozenset[str]:
    """The files and folders that the containers of all shards of a stage read where they lie, and every node sees them."""
    placed = () if spec.container is None else spec.container.inputs
    sources = [file.source for file in placed if file.source is not None and file.input is None]
    return frozenset([each for each in sources if not (spec.scattered and _names_shard(each))])


def read_bytes(catalogue: Catalogue, run: WorkflowRun, stage: StageRun, inputs: Iterable[int]) -> int:
    """The bytes that a shard of a stage reads, as far as they are known: of its datasets, and of files where they lie."""
    sizes = catalogue.sizes
    return run.placed_bytes.get(stage.number, 0) + sum([sizes[dataset] for dataset in inputs])


def datasets_of(run: WorkflowRun, stage: StageRun, spec: InputSpec, shard: int) -> list[tuple[str, int]]:
    """(name, size in bytes or 0) of the datasets that one input of one shard consists of, in shard order.

    Of a shard that has failed for good nothing is read, though members of its gang may have written: no task makes it again.
    """
    if spec.stage is None:
        uri = uri_outside(stage, spec, shard)
        return [(run.versions.get(uri, uri), spec.size_bytes or 0)]
    parent = run.stages[run.number_of(spec.stage)]
    published = run.outputs.get((parent.number, spec.output or ""), {})
    shards = shards_read(spec.match, shard, stage.spec.width, parent.spec.width)
    failed = parent.uniform is None and parent.state.terminal and parent.done < parent.spec.width
    found = [published.get(number) for number in shards if not failed or parent.shard_done[number]]
    return [(output.uri, output.size_bytes) for output in found if output is not None]
