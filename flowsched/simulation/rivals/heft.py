"""HEFT on a running cluster: the task with the longest way to go first, on the node where it is expected to finish first.

Upward ranks in seconds over expected compute times and expected bytes on edges; a list scheduler that decides whenever
something ends, since runtimes are not known in advance. Inputs are copied to the node's disk by the task itself, from the
storage or a peer, as many at a time as there are: no admission.

Source: Topcuoglu, Hariri, Wu, Performance-effective and low-complexity task scheduling (2002).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from flowsched.simulation.reference import SimulatedCluster
from flowsched.simulation.rivals.opponent import Opponent, TaskId
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import STORAGE, FileId
from flowsched.workflow.graph import topological_order


class Heft(Opponent):
    """See the module."""

    def __init__(self, cluster: SimulatedCluster, workloads: Sequence[Workload]) -> None:
        super().__init__(cluster, workloads)
        node = cluster.nodes[0]
        self._rate = float(min(node.nic_in, node.nic_out, node.disk))
        self._coming: list[dict[FileId, int]] = [{} for _ in cluster.nodes]  # per node: file -> source
        self._sending: dict[int, int] = defaultdict(int)  # by place: bytes under way from there
        self.ranks: dict[TaskId, float] = {}
        for number in range(len(workloads)):
            self._rank(number)

    def _rank(self, number: int) -> None:
        """Upward ranks of one workflow: expected seconds to its end, copies included."""
        workload = self.world.workloads[number]
        order = topological_order([job.parents for job in workload.jobs])
        away = (len(self.world.cluster.nodes) - 1) / len(self.world.cluster.nodes)
        for at in reversed(order):
            job = workload.jobs[at]
            told = workload.expected[job.category]
            outputs = set(job.outputs)
            after = 0.0
            for child in self.children[number, at]:
                read = len(outputs.intersection(self.job(child).inputs))
                share = read / len(outputs) if outputs else 0.0
                copy = told.output_bytes * share / self._rate * away
                after = max(after, copy + self.ranks[child])
            self.ranks[number, at] = told.compute_s + after

    def _arrived(self) -> None:
        """Forget copies that are through."""
        for node, coming in enumerate(self._coming):
            for file in [file for file in coming if node in self.world.at[file]]:
                self._sending[coming.pop(file)] -= self.file(file).size

    def decide(self) -> None:
        """Longest way first; of equals, the pair of task and node whose inputs are there soonest."""
        self._arrived()
        equals: dict[float, list[TaskId]] = defaultdict(list)
        for task in sorted(self.ready):  # equals in the order in which they were submitted
            equals[self.ranks[task]].append(task)
        for rank in sorted(equals, reverse=True):
            if not any(self.world.free):
                return
            while (offer := self._best(equals[rank])) is not None:
                task, node = offer
                equals[rank].remove(task)
                self._begin(task, node, self.inputs(task))

    def _best(self, tasks: Sequence[TaskId]) -> tuple[TaskId, int] | None:
        """The pair with the least staging; then the emptiest node, and who came first. None = nothing fits."""
        free = self.world.free
        best: tuple[float, int, int, int] | None = None
        seen: set[tuple[int, tuple[int, ...], int]] = set()
        for order, task in enumerate(tasks):
            job = self.job(task)
            alike = (task[0], job.inputs, job.cores)
            if alike in seen:
                continue
            seen.add(alike)
            files = self.inputs(task)
            for node, room in enumerate(free):
                if room >= job.cores:
                    offer = (self._staging_s(files, node), -room, node, order)
                    best = offer if best is None or offer < best else best
        return None if best is None else (tasks[best[3]], best[2])

    def _staging_s(self, files: Sequence[FileId], node: int) -> float:
        """What bringing the inputs that neither are on a node nor on their way is expected to take, in seconds."""
        new = [file for file in files if node not in self.world.at[file] and file not in self._coming[node]]
        return sum(self.file(file).size for file in new) / self._rate

    def _source(self, file: FileId) -> int:
        """The holder that has least to send."""
        return min(self.sources(file), key=lambda place: (self._sending[place], place == STORAGE, place))

    def _begin(self, task: TaskId, node: int, files: Sequence[FileId]) -> None:
        fetch = []
        for file in self.missing(files, node):
            if file not in self._coming[node]:
                source = self._source(file)
                self._coming[node][file] = source
                self._sending[source] += self.file(file).size
            fetch.append((file[1], self._coming[node][file]))
        self.start(task, node, fetch)
