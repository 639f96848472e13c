"""A recorded workflow as values: tasks, files, seconds and bytes. Replays and simulations start here.

Nothing of flowsched's own documents is known here (`grouping` finds its stages), nor any format
(`formats.wfformat` reads one).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flowsched.workflow.graph import topological_order


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A file. `producer` is the number of the task that wrote it; None: it was there before."""

    name: str
    size_bytes: int
    producer: int | None = None


@dataclass(frozen=True, slots=True)
class TraceTask:
    """A task as it ran. Tasks and files are named by their numbers in the trace.

    `parents` are all it waited for: the declared parents, and the tasks that wrote what it reads. Inputs and outputs have no
    file in common and name none twice. None stands where the trace says nothing.
    """

    name: str
    category: str  #: the kind of task: all of one category run one program
    runtime_s: float
    parents: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    busy_cores: float | None = None  #: cores kept busy on average (CPU seconds over runtime); above 0
    core_count: int = 1  #: cores it asked for
    memory_bytes: int | None = None  #: the most it used
    read_bytes: int | None = None  #: as the system counted, re-reading and libraries included
    written_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """The computing of a task: `cores` for `seconds`."""

    cores: int
    seconds: float

    @property
    def cpu_seconds(self) -> float:
        """Core-seconds in all."""
        return self.cores * self.seconds

    def on(self, cores: int) -> Work:
        """The same core-seconds on no more than so many cores."""
        taken = min(self.cores, cores)
        return Work(taken, self.cpu_seconds / taken)


def work(task: TraceTask, node_cores: int | None = None) -> Work:
    """The cores a task kept busy, and for how long: its runtime holds waiting for files, which shall be replayed, not copied.

    Source: the rule of the reference traces. Without a measured use of the CPU all of the runtime is taken for computing.

    Args:
        task: Of a trace.
        node_cores: Where given, no task takes more, nor longer than its runtime for that: so says the reference. (`Work.on`
            keeps the core-seconds instead.)
    """
    cores = task.core_count
    if task.busy_cores is not None:
        cores = max(1, math.ceil(task.busy_cores - 0.25), cores)
    if node_cores is not None:
        cores = min(node_cores, cores)
    if task.busy_cores is None:
        return Work(cores, task.runtime_s)
    return Work(cores, task.runtime_s * min(1.0, task.busy_cores / cores))


@dataclass(frozen=True, slots=True)
class Trace:
    """A workflow that ran. Names of tasks and of files are unique, numbers are in range, and there is no cycle."""

    name: str
    version: str  #: of the format it was read from
    tasks: tuple[TraceTask, ...]
    files: tuple[TraceFile, ...]

    def order(self) -> tuple[int, ...]:
        """Numbers of all tasks, parents first."""
        return topological_order([task.parents for task in self.tasks])

    def levels(self) -> list[int]:
        """Per task, how many tasks the longest way to it passes."""
        found = [0] * len(self.tasks)
        for number in self.order():
            found[number] = max((found[parent] + 1 for parent in self.tasks[number].parents), default=0)
        return found
