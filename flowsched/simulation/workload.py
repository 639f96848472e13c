"""Workloads: the truth about tasks and files, and beside it the facts that a scheduler gets.

A `Workload` holds both sides and keeps them apart. Jobs say what a task really computes, reads and writes; the document says
what a user of this pipeline would: the DAG, cores, memory, and what tasks of a kind took before (a mean over the kind, or
nothing). Seconds and bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flowsched.errors import InvalidRequest
from flowsched.simulation.clusters import SimulatedCluster
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.document.limits import DEFAULT, Limits
from flowsched.workflow.formats.tes.document import STAGE, workflow_of
from flowsched.workflow.formats.tes.engines import identify
from flowsched.workflow.formats.tes.task import Asked, Input, Output, Task, TaskExecutor
from flowsched.workflow.spec import Estimate, Traffic, WorkflowSpec
from flowsched.workflow.traces.grouping import Group, grouped
from flowsched.workflow.traces.trace import Trace, work

#: The reference set of WOW gives a task as many cores as its memory takes of a node: 134 GB for 32 cores.
WOW_BYTES_A_CORE: Final = 134e9 / 32
_LIMITS: Final[Limits] = replace(
    DEFAULT,
    document_bytes=256 << 20,
    objects=3_000_000,
    values=30_000_000,
    stages=200_000,
    tasks=2_000_000,
    edges=5_000_000,
)


@dataclass(frozen=True, slots=True)
class File:
    """A file. `producer`: the number of the job that writes it; None = it is there before."""

    name: str
    size: int
    producer: int | None = None
    final: bool = False  #: no task reads it: it shall end on the shared storage


@dataclass(frozen=True, slots=True)
class Job:
    """The real work of one task. Files by their number in the workload; none is empty."""

    name: str
    category: str
    cores: float  #: a whole number in traces
    compute_s: float
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    slots: tuple[str, ...] = ()  #: per output, its name in the document
    memory: int = 0
    certain: bool = (
        True  #: no schedule does without it: False where a condition, a policy or its gang may end it before
    )

    @property
    def whole_cores(self) -> int:
        """For policies that count cores one by one."""
        return math.ceil(self.cores)


@dataclass(frozen=True, slots=True)
class Expected:
    """The mean use of tasks of one category in earlier runs."""

    compute_s: float
    output_bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A workflow as its client submits it. Each is equal to itself alone.

    Args:
        spec: The workflow.
        numbers: (stage, shard) -> job.
        files: URI -> file, of the inputs from outside and of the outputs that its tasks deliver to the shared storage.
        after: The client submits it when these jobs have ended.
    """

    spec: WorkflowSpec
    numbers: Mapping[tuple[str, int], int]
    files: Mapping[str, int]
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Workload:
    """One workflow to be simulated."""

    name: str
    source: str
    jobs: tuple[Job, ...]
    files: tuple[File, ...]
    expected: Mapping[str, Expected]
    spec: WorkflowSpec
    numbers: Mapping[tuple[str, int], int]  #: (stage, shard) -> job
    external: Mapping[str, int]  #: URI -> file
    arrival_s: float = 0.0
    keep_final: bool = True  #: finals go to the shared storage
    skipped: frozenset[int] = (
        frozenset()
    )  #: jobs that do not run where all goes well: the condition of their stage does not hold
    by_task: tuple[Submission, ...] = ()  #: the submissions of an engine; none = a client submits `spec`

    @property
    def submissions(self) -> tuple[Submission, ...]:
        """All that clients submit of it."""
        return self.by_task or (Submission(self.spec, self.numbers, self.external),)

    def with_expected(self, factor: Mapping[str, float]) -> Workload:
        """The same work with other expectations: times `factor` of the category, 1 where it has none."""
        expected = {
            kind: replace(each, compute_s=each.compute_s * factor.get(kind, 1.0))
            for kind, each in self.expected.items()
        }
        kinds = {stage: self.jobs[job].category for (stage, _), job in self.numbers.items()}
        stages = []
        for stage in self.spec.stages:
            kind = kinds[stage.name]
            more = 1000 * (expected[kind].compute_s - self.expected[kind].compute_s)
            runtime_ms = max(1, round((stage.estimate.runtime_ms or 0) + more))
            stages.append(replace(stage, estimate=replace(stage.estimate, runtime_ms=runtime_ms)))
        return replace(self, expected=expected, spec=replace(self.spec, stages=tuple(stages)))


def without_estimates(workload: Workload) -> Workload:
    """The same work, of which the document declares neither runtimes nor bytes."""
    stages = tuple(
        replace(
            stage,
            estimate=Estimate(),
            io=Traffic(),
            roles=tuple(replace(role, io=None) for role in stage.roles),
        )
        for stage in workload.spec.stages
    )
    return replace(workload, spec=replace(workload.spec, stages=stages))


def by_task(workload: Workload, run: int) -> Workload:
    """The same work, submitted by an engine over TES: each task when its parents have ended.

    A task states its kind, its command, the URLs of its files, its cores and its memory. It states neither a runtime, nor the
    size of an output, nor the tasks that follow. Its URLs name the run, except those of inputs from outside.

    Args:
        workload: Any.
        run: Which run of the workflow it is.

    Raises:
        InvalidRequest: A stage is a gang.
    """
    stages = {stage.name: stage for stage in workload.spec.stages}
    for stage in stages.values():
        if stage.gang:
            raise InvalidRequest(
                f"{workload.source}: stage {stage.name!r} is a gang; a TES task of a simulation is one pod"
            )
    urls = [
        f"s3://storage/{workload.name}/{number}" + ("" if file.producer is None else f"/run{run}")
        for number, file in enumerate(workload.files)
    ]
    writers = {
        number: workload.jobs[file.producer].category
        for number, file in enumerate(workload.files)
        if file.producer is not None
    }
    sent = []
    for (name, _), number in workload.numbers.items():
        if number in workload.skipped:
            continue
        job, asked = workload.jobs[number], stages[name].roles[0].resources
        resources = Asked(cpu_cores=job.cores, ram_gb=asked.memory_bytes / 1e9)
        if asked.gpu_millis:
            resources.backend_parameters = {"gpuCount": f"{asked.gpu_millis / 1000:g}"}
        task = Task(
            name=job.category,
            executors=[TaskExecutor(image="trace", command=[job.category])],
            inputs=[Input(path=f"/in/{each}", url=urls[each]) for each in job.inputs],
            outputs=[Output(path=f"/out/{each}", url=urls[each]) for each in job.outputs],
            resources=resources,
            tags={"workflow_id": f"{workload.name}-run{run}", "step": job.category},
        )
        files = {urls[each]: each for each in (*job.inputs, *job.outputs)}
        known = identify(task)
        assert known.call is not None  # since its tags name a run
        after = tuple(dict.fromkeys(writers[each] for each in job.inputs if each in writers))
        known = replace(known, call=replace(known.call, after=after))
        made = workflow_of(task, _LIMITS, known)
        sent.append(Submission(made.spec, {(STAGE, 0): number}, files, job.parents))
    return replace(workload, by_task=tuple(sent))


@dataclass(frozen=True, slots=True)
class Pace:
    """The time of a task beside computing: starting, and writing to a disk it has for itself (bytes/s)."""

    startup_s: float
    disk: int

    def seconds(self, written_bytes: float) -> float:
        """Seconds for a task that writes so much."""
        return self.startup_s + written_bytes / self.disk


@dataclass(slots=True)
class _Written:
    """A document as it grows, with where its parts come from."""

    name: str
    stages: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    slots: dict[int, tuple[str, ...]] = field(default_factory=dict)
    external: dict[str, int] = field(default_factory=dict)


def from_trace(
    trace: Trace, name: str, source: str, cluster: SimulatedCluster, *, wow: bool = False
) -> Workload:
    """A trace as a workload, by the rules of the reference set-up (TRACE).

    Args:
        trace: A run that was recorded somewhere.
        name: How the workload is called in figures.
        source: Name of the file it is from.
        cluster: Where it shall run: no task takes more cores than a node has.
        wow: One of WOW's own workloads: cores follow memory, finals stay on the nodes.
    """
    trace = _without_empty(trace)
    used = {file for task in trace.tasks for file in task.inputs}
    files = tuple(
        File(
            f.name,
            f.size_bytes,
            f.producer,
            final=f.producer is not None and f.size_bytes > 0 and at not in used,
        )
        for at, f in enumerate(trace.files)
    )
    jobs = []
    for task in trace.tasks:
        done = work(task, cluster.uniform_cores)
        cores = done.cores
        if wow:
            wanted = math.ceil((task.memory_bytes or 0) / WOW_BYTES_A_CORE - 1e-9)
            cores = min(cluster.uniform_cores, max(cores, wanted))
        jobs.append(
            Job(
                name=task.name,
                category=task.category,
                cores=cores,
                compute_s=done.seconds,
                inputs=task.inputs,
                outputs=task.outputs,
                parents=task.parents,
            )
        )
    expected = _expected(jobs, files)
    written = _document(trace, jobs, name, expected, Pace(cluster.startup, cluster.nodes[0].disk))
    spec = check_workflow({"name": name[:100], "stages": written.stages}, _LIMITS)
    jobs = [replace(job, slots=written.slots[at]) for at, job in enumerate(jobs)]
    return Workload(
        name, source, tuple(jobs), files, expected, spec, written.numbers, written.external, 0.0, not wow
    )


def _without_empty(trace: Trace) -> Trace:
    """The trace without empty files, which never have to be moved. A task that waited for their producers still does."""
    tasks = tuple(
        replace(
            task,
            inputs=tuple(f for f in task.inputs if trace.files[f].size_bytes),
            outputs=tuple(f for f in task.outputs if trace.files[f].size_bytes),
        )
        for task in trace.tasks
    )
    return replace(trace, tasks=tasks)


def _expected(jobs: Sequence[Job], files: Sequence[File]) -> dict[str, Expected]:
    kinds: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        kinds[job.category].append(job)
    return {
        kind: Expected(
            sum(job.compute_s for job in members) / len(members),
            sum(files[f].size for job in members for f in job.outputs) / len(members),
        )
        for kind, members in kinds.items()
    }


def _document(
    trace: Trace, jobs: Sequence[Job], name: str, expected: Mapping[str, Expected], pace: Pace
) -> _Written:
    groups = grouped(trace, [(job.category, job.cores) for job in jobs])
    written = _Written(name)
    names = [f"s{number}" for number in range(len(groups))]
    for number, group in enumerate(groups):
        slots = [f"f{slot}" for slot in range(len(group.writes))]
        stage: dict[str, Any] = {
            "name": names[number],
            "scatter": {"count": len(group.tasks)},
            "command": ["true"],
            "resources": {"cpu": jobs[group.tasks[0]].cores},
            "outputs": [{"name": slot, "path": slot} for slot in slots],
        }
        typical = expected[jobs[group.tasks[0]].category]
        stage["estimate"] = {
            "runtime": f"{max(1, round((typical.compute_s + pace.seconds(typical.output_bytes)) * 1000))}ms",
            "output": round(typical.output_bytes),
        }
        if typical.output_bytes >= 1:
            stage["io"] = {"write": round(typical.output_bytes)}
        if group.needs:
            stage["needs"] = [names[each] for each in group.needs]
        inputs = list(_inputs(written, group, names))
        if inputs:
            stage["inputs"] = inputs
        written.stages.append(stage)
        for shard, task in enumerate(group.tasks):
            written.numbers[names[number], shard] = task
            of = {members[shard]: f"f{slot}" for slot, members in enumerate(group.writes)}
            written.slots[task] = tuple(of[file] for file in jobs[task].outputs)
    return written


def _inputs(written: _Written, group: Group, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for number, read in enumerate(group.reads):
        entry: dict[str, Any] = {"name": f"i{number}"}
        if read.group is not None:
            entry |= {"from": f"{names[read.group]}.f{read.slot}", "match": str(read.match)}
        elif read.shared is not None:
            entry["uri"] = f"s3://storage/{written.name}/{read.shared}"
            written.external[str(entry["uri"])] = read.shared
        else:
            stem = f"s3://storage/{written.name}/own{read.own[0]}"
            entry["uri"] = stem + "/{index}"
            written.external |= {f"{stem}/{shard}": file for shard, file in enumerate(read.own)}
        yield entry
