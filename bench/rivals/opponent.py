"""The part that all opponents share: tasks become ready, start with their cores, and end; copies are under way.

Cores are held from the first byte that a task brings to the last that it takes away: so did the simulator behind the figures
that these opponents are compared with. Finals are written straight to the shared storage, by a task that still has its cores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flowsched.simulation.clusters import SimulatedCluster
from flowsched.simulation.reading import Running
from flowsched.simulation.workload import File, Job, Workload
from flowsched.simulation.world import STORAGE, FileId, World

#: A task: (number of the workload, number of the job).
TaskId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ready:
    """A task that may start. `order`: first come, first served."""

    task: TaskId
    order: int
    since: float


class Opponent:
    """A policy over a world. A subclass says in `decide` what starts where.

    Attributes:
        world: What there is.
        ready: Tasks that may start, first come first.
        never: Tasks that do not run: no node has room for them, or a condition skips them.
    """

    def __init__(self, cluster: SimulatedCluster, workloads: Sequence[Workload]) -> None:
        self.world = World(cluster, workloads)
        self.ready: dict[TaskId, Ready] = {}
        self.never: set[TaskId] = {
            (number, job) for number, workload in enumerate(workloads) for job in workload.skipped
        }
        self.children: dict[TaskId, list[TaskId]] = defaultdict(list)
        self._waits: dict[TaskId, int] = {}
        self._order = 0
        self._stirred = False
        for number, workload in enumerate(self.world.workloads):
            for at, job in enumerate(workload.jobs):
                self._waits[number, at] = len(job.parents)
                for parent in job.parents:
                    self.children[number, parent].append((number, at))

    def run(self) -> World:
        """Let everything happen. Returns the world, with the trace."""
        for number, workload in enumerate(self.world.workloads):
            self.world.later(workload.arrival_s, lambda n=number: self._arrive(n))  # type: ignore[misc]
        while (moment := self.world.next_moment()) is not None:
            self.world.proceed(moment)
            if self._stirred:
                self._stirred = False
                self.decide()
        return self.world

    def decide(self) -> None:
        """Something has happened: start what shall start."""
        raise NotImplementedError

    def stir(self) -> None:
        """There may be something to decide."""
        self._stirred = True

    # ---- what may be known ----

    def job(self, task: TaskId) -> Job:
        """A task; an opponent may look at anything of it but `compute_s`."""
        return self.world.workloads[task[0]].jobs[task[1]]

    def file(self, file: FileId) -> File:
        """A file; its size may be looked at once it exists."""
        return self.world.file(file)

    def expected_s(self, task: TaskId) -> float:
        """How long it is expected to compute, in seconds: the mean of its category."""
        return self.world.workloads[task[0]].expected[self.job(task).category].compute_s

    def inputs(self, task: TaskId) -> list[FileId]:
        """All its inputs."""
        return [(task[0], number) for number in self.job(task).inputs]

    def missing(self, files: Iterable[FileId], node: int) -> list[FileId]:
        """Those that are not on a node."""
        return [file for file in files if node not in self.world.at[file]]

    # ---- what may be done ----

    def start(
        self, task: TaskId, node: int, fetch: Iterable[tuple[int, int]] = (), mounted: Iterable[int] = ()
    ) -> None:
        """Start a ready task.

        Args:
            task: It.
            node: Where; it has the cores.
            fetch: (input, place) it copies to its node, holding its cores.
            mounted: Inputs that it reads where they are, on the shared storage.
        """
        told = self.ready.pop(task)
        job, workload = self.job(task), self.world.workloads[task[0]]
        straight = [f for f in job.outputs if workload.keep_final and workload.files[f].final]
        running = Running(
            workload=task[0],
            job=task[1],
            node=node,
            ready=told.since,
            start=self.world.now,
            mounted=frozenset(mounted),
            straight=frozenset(straight),
            fetch=tuple(fetch),
        )
        running.ended = lambda: self._ended(task)
        self.world.run(running)

    def _arrive(self, number: int) -> None:
        for at, job in enumerate(self.world.workloads[number].jobs):
            if not job.parents:
                self._becomes_ready((number, at))

    def _becomes_ready(self, task: TaskId) -> None:
        if task in self.never:
            return
        self._order += 1
        self.ready[task] = Ready(task, self._order, self.world.now)
        self._stirred = True

    def _ended(self, task: TaskId) -> None:
        self._stirred = True
        for child in self.children[task]:
            self._waits[child] -= 1
            if not self._waits[child]:
                self._becomes_ready(child)

    def sources(self, file: FileId) -> list[int]:
        """The places that hold a file, nodes first."""
        held = self.world.at[file]
        return sorted(place for place in held if place != STORAGE) + ([STORAGE] if STORAGE in held else [])
