"""A trace as a workflow document with tasks that do synthetic work: real bytes and real CPU time, scaled, and no programs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flowsched.workflow.spec import EMPTY, Match
from flowsched.workflow.traces.grouping import Group, Read, grouped
from flowsched.workflow.traces.trace import Trace, Work, work

#: What runs in place of a task's program.
PROGRAM: Final = ("python", "-m", "bench.synthetic.task")
#: What the interpreter needs beside the memory it touches, and the least a task asks for.
OVERHEAD_BYTES: Final = 48 << 20
_LONGEST_NAME: Final = 50
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much smaller than the trace a run is. `size` is for files and memory."""

    time: float = 0.01
    size: float = 0.001
    sleep: bool = False  #: tasks sleep in place of computing

    def bytes(self, amount: int) -> int:
        """Bytes as they are in the run: what is not empty stays so."""
        return max(1, round(amount * self.size)) if amount else 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where tasks find what they need.

    Args:
        folder: URI of the folder for the files that no task writes, without a slash at its end.
        env: Variables of every task.
    """

    folder: str
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class Largest:
    """The most one node has to give."""

    cpu_millicores: int
    memory_bytes: int

    @property
    def cores(self) -> int:
        """Whole cores; one at least."""
        return max(1, self.cpu_millicores // 1000)

    @property
    def touchable_bytes(self) -> int:
        """Memory a task may touch."""
        return max(0, self.memory_bytes - OVERHEAD_BYTES)


@dataclass(frozen=True, slots=True)
class Planned:
    """What one task of the trace does in the run."""

    task: int
    stage: str
    shard: int
    category: str
    work: Work  #: on no more cores than a node has
    memory_bytes: int  #: that it touches
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A document, the files it starts from, and what each of its tasks does."""

    document: Mapping[str, Any]
    files: Mapping[str, int]  #: below the folder of the inputs: path -> bytes
    tasks: tuple[Planned, ...]  #: in the order of the trace
    fewer_cores: int  #: tasks that kept more cores busy than a node has; they do the same on fewer
    less_memory: int  #: tasks that, scaled, need more memory than a node has; they touch less

    def critical_path(self, trace: Trace) -> float:
        """Seconds: the longest way through the DAG, computing alone. No run is shorter."""
        return critical_path(trace, [planned.work.seconds for planned in self.tasks])

    @property
    def cpu_seconds(self) -> float:
        """Core-seconds of computing in all."""
        return sum(planned.work.cpu_seconds for planned in self.tasks)


def critical_path(trace: Trace, seconds: Sequence[float]) -> float:
    """The longest way through the DAG: no schedule is shorter.

    Args:
        trace: What ran.
        seconds: Per task.
    """
    ended = [0.0] * len(trace.tasks)
    for number in trace.order():
        begin = max((ended[parent] for parent in trace.tasks[number].parents), default=0.0)
        ended[number] = begin + seconds[number]
    return max(ended, default=0.0)


def synthetic(trace: Trace, scale: Scale, largest: Largest, place: Place) -> Synthetic:
    """Make a document of a trace.

    A stage is a group of tasks of one category that meet all others shard by shard, in chunks or as a whole (`grouping`).
    It asks for the most that any of them used, as pipelines say it once for each step. Runtimes are not told to the
    scheduler, which learns them.

    Args:
        trace: What ran.
        scale: How much smaller.
        largest: What a node has: no task asks for more.
        place: Where tasks find what they need.
    """
    groups = grouped(trace, [task.category for task in trace.tasks])
    names = _stage_names([trace.tasks[group.tasks[0]].category for group in groups])
    paths = _paths(groups)
    planned: dict[int, Planned] = {}
    stages = []
    for group, name in zip(groups, names, strict=True):
        made = _plan(trace, group, name, scale, largest)
        planned |= {each.task: each for each in made}
        stages.append(_stage(trace, group, name, made, groups, names, scale, paths, place))
    files = {
        (f"{path}/{shard}" if read.shared is None else path): scale.bytes(trace.files[file].size_bytes)
        for read, path in paths.items()
        for shard, file in enumerate(read.own or (read.shared or 0,))
    }
    needed = [_needed(trace, number, scale) for number in range(len(trace.tasks))]
    return Synthetic(
        document={
            "name": trace.name[:100] or "trace",
            "labels": {"synthetic": f"time {scale.time:g}, size {scale.size:g}"},
            "stages": stages,
        },
        files=files,
        tasks=tuple(planned[number] for number in range(len(trace.tasks))),
        fewer_cores=sum(work(task).cores > largest.cores for task in trace.tasks),
        less_memory=sum(amount > largest.touchable_bytes for amount in needed),
    )


def _plan(trace: Trace, group: Group, name: str, scale: Scale, largest: Largest) -> list[Planned]:
    made = []
    for shard, number in enumerate(group.tasks):
        task = trace.tasks[number]
        taken = work(task).on(largest.cores)
        made.append(
            Planned(
                task=number,
                stage=name,
                shard=shard,
                category=task.category,
                work=Work(taken.cores, taken.seconds * scale.time),
                memory_bytes=min(_needed(trace, number, scale), largest.touchable_bytes),
                read_bytes=sum(scale.bytes(trace.files[file].size_bytes) for file in task.inputs),
                written_bytes=sum(scale.bytes(trace.files[file].size_bytes) for file in task.outputs),
            )
        )
    return made


def _needed(trace: Trace, number: int, scale: Scale) -> int:
    return scale.bytes(trace.tasks[number].memory_bytes or 0)


def _stage(
    trace: Trace,
    group: Group,
    name: str,
    planned: Sequence[Planned],
    groups: Sequence[Group],
    names: Sequence[str],
    scale: Scale,
    paths: Mapping[Read, str],
    place: Place,
) -> dict[str, Any]:
    command = [*PROGRAM, *(["--sleep"] if scale.sleep else [])]
    inputs: list[dict[str, Any]] = []
    for number, read in enumerate(group.reads):
        entry: dict[str, Any] = {"name": f"i{number}"}
        listed = False
        if read.group is None:
            path = paths[read]
            entry["uri"] = f"{place.folder}/{path}" + ("/{index}" if read.own else "")
            found = [trace.files[file].size_bytes for file in read.own or (read.shared or 0,)]
            # One size is said for all shards, where it is the same; else it is found out when it is staged.
            entry |= {"size": scale.bytes(found[0])} if len(set(found)) == 1 else {}
        else:
            match = (
                Match.CHUNK if read.match is Match.INDEX else read.match
            )  # the items are what each task does
            entry |= {"from": f"{names[read.group]}.f{read.slot}", "match": str(match)}
            listed = len(groups[read.group].tasks) > 1
        inputs.append(entry)
        command += ["--manifest" if listed else "--input", str(entry["name"])]
    for slot in range(len(group.writes)):
        command += ["--output", f"f{slot}"]
    memory = max(each.memory_bytes for each in planned) + OVERHEAD_BYTES
    stage: dict[str, Any] = {
        "name": name,
        "scatter": {"items": [_item(trace, group, each, scale) for each in planned]},
        "command": command,
        "resources": {"cpu": max(each.work.cores for each in planned), "memory": memory},
        "outputs": [{"name": f"f{slot}", "path": f"f{slot}"} for slot in range(len(group.writes))],
    }
    if inputs:
        stage["inputs"] = inputs
    if place.env:
        stage["env"] = dict(place.env)
    if group.needs:
        stage["needs"] = [names[number] for number in group.needs]
    return stage


def _item(trace: Trace, group: Group, planned: Planned, scale: Scale) -> str:
    """What one shard has to do, as `task` reads it."""
    sizes = [scale.bytes(trace.files[files[planned.shard]].size_bytes) for files in group.writes]
    amounts = {
        "task": trace.tasks[planned.task].name,
        "cores": planned.work.cores,
        "cpu_s": round(planned.work.cpu_seconds, 6),
        "read": planned.read_bytes,
        "memory": planned.memory_bytes,
        "write": sizes,
    }
    return json.dumps(amounts, ensure_ascii=False, separators=(",", ":"))


def _paths(groups: Sequence[Group]) -> dict[Read, str]:
    """Where files that no task writes lie: one path for each, or a folder for those that are read shard by shard."""
    found: dict[Read, str] = {}
    for group in groups:
        for read in group.reads:
            if read.group is None and read not in found:
                found[read] = f"own{len(found)}" if read.own else f"shared{len(found)}"
    return found


def _stage_names(categories: Sequence[str]) -> list[str]:
    """Names for stages: the end of the category, which says most, with a number where several have it."""
    stems = []
    for category in categories:
        stem = _NOT_A_NAME.sub("-", re.split(r"[.:/]", category.rstrip(".:/"))[-1]).strip("-_")
        stems.append(stem[:_LONGEST_NAME].rstrip("-_") or "task")
    total, seen = Counter(stem.lower() for stem in stems), Counter[str]()
    names: list[str] = []
    taken: set[str] = set()
    for stem in stems:
        name = stem
        while total[stem.lower()] > 1 or name.lower() in taken:
            seen[stem.lower()] += 1
            name = f"{stem}-{seen[stem.lower()]}"
            if name.lower() not in taken:
                break
        taken.add(name.lower())
        names.append(name)
    return names
