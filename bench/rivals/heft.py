"""HEFT on a running cluster: the task with the longest way to go first, on the node where it is expected to finish first.

Upward ranks in seconds over expected compute times and expected bytes on edges; a list scheduler that plans anew whenever
something ends, since runtimes are not known in advance. It considers busy nodes too: a task waits for its best node if that
node is busy and it is expected to finish sooner there than on a free one. The task itself copies inputs to the node's disk,
from the storage or a peer, as many at a time as there are: no admission. The bytes that a source has to send already count in
the estimate, which makes it stronger than a HEFT that thinks every link its own.

Source: Topcuoglu, Hariri, Wu, Performance-effective and low-complexity task scheduling (2002).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from bench.rivals.opponent import Opponent, TaskId
from flowsched.simulation.clusters import SimulatedCluster
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import STORAGE, FileId
from flowsched.workflow.graph import topological_order

#: A plan looks at so many tasks for each core, at most.
AHEAD: Final = 2
#: Seconds: a task that runs longer than expected is expected to end so soon.
SOON: Final = 0.001


class Heft(Opponent):
    """See the module."""

    def __init__(self, cluster: SimulatedCluster, workloads: Sequence[Workload]) -> None:
        super().__init__(cluster, workloads)
        node = cluster.nodes[0]
        self._rate = float(min(node.nic_in, node.nic_out, node.disk))
        self._out = float(min(cluster.storage.nic_out, cluster.storage.disk))
        self._coming: list[dict[FileId, tuple[int, float]]] = [
            {} for _ in cluster.nodes
        ]  # file -> source, expected
        self._sending: dict[int, int] = defaultdict(int)  # by place: bytes under way from there
        self._ends: list[dict[TaskId, tuple[float, int]]] = [{} for _ in cluster.nodes]  # expected end, cores
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
                self._sending[coming.pop(file)[0]] -= self.file(file).size

    def decide(self) -> None:
        """Longest way first; each task on the node where it is expected to finish first, if that has room now."""
        self._arrived()
        now, free = self.world.now, self.world.free
        cores = [self._core_times(node) for node in range(len(free))]
        planned: list[dict[FileId, float]] = [
            {f: e for f, (_, e) in coming.items()} for coming in self._coming
        ]
        order = sorted(self.ready, key=lambda task: (-self.ranks[task], task))
        for task in order[: AHEAD * sum(map(len, cores))]:
            if not any(free):
                return
            job, files = self.job(task), self.inputs(task)
            took = self.expected_s(task)
            best: tuple[float, float, int, int] | None = None
            for node, times in enumerate(cores):
                if len(times) < job.whole_cores:
                    continue
                begin = max(now, times[job.whole_cores - 1])
                finish = self._staged(files, node, begin, planned[node]) + took
                offer = (finish, begin, -int(free[node]), node)
                best = offer if best is None or offer < best else best
            if best is None:
                continue
            finish, begin, _, node = best
            for file in self.missing(files, node):
                planned[node].setdefault(file, finish - took)
            cores[node][: job.whole_cores] = [finish] * job.whole_cores
            cores[node].sort()
            if begin <= now and free[node] >= job.whole_cores:
                self._begin(task, node, files, finish)

    def _core_times(self, node: int) -> list[float]:
        """When each core of a node is expected to be free, soonest first."""
        now = self.world.now
        times = [now] * int(self.world.free[node])
        for end, cores in self._ends[node].values():
            times += [max(end, now + SOON)] * cores
        return sorted(times)

    def _staged(
        self, files: Sequence[FileId], node: int, begin: float, planned: dict[FileId, float]
    ) -> float:
        """When inputs are expected on a node that asks for them at a moment: after what their sources have to send already."""
        there, queued, new = begin, 0, 0
        for file in files:
            if node in self.world.at[file]:
                continue
            if file in planned:
                there = max(there, planned[file])
            else:
                new += self.file(file).size
                queued = max(queued, self._sending[self._source(file)])
        return max(there, begin + queued / self._out + new / self._rate) if new else there

    def _source(self, file: FileId) -> int:
        """The holder that has least to send."""
        return min(self.sources(file), key=lambda place: (self._sending[place], place == STORAGE, place))

    def _begin(self, task: TaskId, node: int, files: Sequence[FileId], finish: float) -> None:
        fetch = []
        for file in self.missing(files, node):
            if file not in self._coming[node]:
                source = self._source(file)
                self._coming[node][file] = (source, finish - self.expected_s(task))
                self._sending[source] += self.file(file).size
            fetch.append((file[1], self._coming[node][file][0]))
        self._ends[node][task] = (finish, self.job(task).whole_cores)
        self.start(task, node, fetch)

    def _ended(self, task: TaskId) -> None:
        for ends in self._ends:
            ends.pop(task, None)
        super()._ended(task)
