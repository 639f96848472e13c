"""WOW: tasks go to nodes that hold all their intermediate data, and copies make such nodes before the tasks start.

Whenever something ends, three steps: (1) start ready tasks on nodes that hold all their intermediates, so that the sum of
priorities is as large as it gets within the cores; (2) where cores stay free, copy for ready tasks, the one that misses fewest
bytes first; (3) copy for tasks of high rank to nodes that are full now. A node is the target of one copy job at a time, a task
has at most two targets. External inputs are read from the shared storage, by the task; intermediates stay on the nodes.

Source: Lehmann et al., WOW: Workflow-Aware Data Movement and Task Scheduling for Dynamic Scientific Workflows (CCGrid 2025). Its
step 1 is an integer program; here it is a greedy choice in two orders, each improved by moving a chosen task aside, and the
better of both. Where all tasks take one number of cores, that differs from the optimum in corner cases only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from flowsched.simulation.pagecache import FileId
from flowsched.simulation.reference import SimulatedCluster
from flowsched.simulation.rivals.opponent import Opponent, TaskId
from flowsched.simulation.workload import Workload
from flowsched.workflow.graph import topological_order

#: Priority = hops to the end of the DAG times this, plus the bytes of the inputs.
HOP: Final = 10**14
#: So many copy jobs may have one task's inputs under way.
TARGETS_A_TASK: Final = 2
#: So many files of a copy job are under way at a time.
FILES_A_JOB: Final = 8


class Wow(Opponent):
    """See the module."""

    def __init__(self, cluster: SimulatedCluster, workloads: Sequence[Workload]) -> None:
        super().__init__(cluster, workloads)
        self._targets: dict[int, TaskId] = {}  # node -> the task that a copy job is under way for
        self._left: dict[int, int] = {}  # node -> files that its copy job still has to bring
        self._sending: dict[int, int] = defaultdict(int)  # node -> bytes it has to send
        self._hops: dict[TaskId, int] = {}
        for number, workload in enumerate(workloads):
            for at in reversed(topological_order([job.parents for job in workload.jobs])):
                children = self.children[number, at]
                self._hops[number, at] = max((self._hops[child] + 1 for child in children), default=0)

    def decide(self) -> None:
        """The three steps."""
        ranked = sorted(self.ready, key=lambda task: (-self.priority(task), task))
        self._start(ranked)
        waiting = [task for task in ranked if task in self.ready]
        if waiting:
            self._copy_to_free_nodes(waiting)
            self._copy_ahead(waiting)

    def priority(self, task: TaskId) -> int:
        """Hops first, then bytes."""
        return self._hops[task] * HOP + sum(self.file(file).size for file in self.inputs(task))

    def _intermediates(self, task: TaskId) -> list[FileId]:
        return [file for file in self.inputs(task) if self.file(file).producer is not None]

    # ---- step 1 ----

    def _start(self, ranked: Sequence[TaskId]) -> None:
        wide = max(self.world.free)
        fitting = [task for task in ranked if self.job(task).whole_cores <= wide]
        prepared = {task: self._prepared(task) for task in fitting}
        able = [task for task in fitting if prepared[task]]
        by_core = sorted(able, key=lambda task: -self.priority(task) // self.job(task).whole_cores)
        plans = [self._assigned(order, prepared) for order in (able, by_core)]
        best = max(plans, key=lambda plan: sum(self.priority(task) for task in plan))
        for task, node in best.items():
            mounted = [f for f in self.job(task).inputs if self.file((task[0], f)).producer is None]
            self.start(task, node, mounted=mounted)

    def _prepared(self, task: TaskId) -> list[int]:
        """Nodes that hold all its intermediates."""
        nodes = set(range(len(self.world.free)))
        for file in self._intermediates(task):
            nodes &= self.world.at[file]
        return sorted(nodes)

    def _assigned(self, order: Sequence[TaskId], prepared: dict[TaskId, list[int]]) -> dict[TaskId, int]:
        """A node for each task, as far as they fit, in this order; chosen tasks move aside for others."""
        free = [int(each) for each in self.world.free]
        chosen: dict[TaskId, int] = {}
        for task in order:
            cores = self.job(task).whole_cores
            if not any(cores <= room for room in free) and len(prepared[task]) == len(free):
                continue
            node = max(prepared[task], key=lambda n: (free[n], -n))
            if free[node] < cores and not self._make_room(task, free, chosen, prepared):
                continue
            node = max(prepared[task], key=lambda n: (free[n], -n))
            chosen[task] = node
            free[node] -= cores
        return chosen

    def _make_room(
        self, task: TaskId, free: list[int], chosen: dict[TaskId, int], prepared: dict[TaskId, list[int]]
    ) -> bool:
        """Move one chosen task to another node that holds its data, if that lets this one in."""
        cores = self.job(task).whole_cores
        for node in prepared[task]:
            for other, where in chosen.items():
                moved = self.job(other).whole_cores
                if where != node or free[node] + moved < cores:
                    continue
                for aside in prepared[other]:
                    if aside != node and free[aside] >= moved:
                        chosen[other] = aside
                        free[aside] -= moved
                        free[node] += moved
                        return True
        return False

    # ---- steps 2 and 3 ----

    def _copy_to_free_nodes(self, waiting: Sequence[TaskId]) -> None:
        """Nodes with free cores get what lets a ready task start on them: fewest missing bytes first."""
        room = [int(each) for each in self.world.free]
        for node, task in self._targets.items():
            room[node] -= self.job(task).whole_cores
        idle = [node for node in range(len(room)) if room[node] > 0 and node not in self._targets]
        if not idle:
            return
        offers = []
        for order, task in enumerate(waiting):
            cores = self.job(task).whole_cores
            for node in idle:
                if room[node] >= cores:
                    offers.append((self._missing_bytes(task, node), order, node, task))
        self._accept(offers)

    def _copy_ahead(self, waiting: Sequence[TaskId]) -> None:
        """Any node that is not the target of a copy gets what a task of high rank would need there."""
        for task in waiting:
            idle = [node for node in range(len(self.world.free)) if node not in self._targets]
            if not idle:
                return
            self._accept([(self._missing_bytes(task, node), 0, node, task) for node in idle])

    def _missing_bytes(self, task: TaskId, node: int) -> int:
        return sum(self.file(file).size for file in self.missing(self._intermediates(task), node))

    def _accept(self, offers: list[tuple[int, int, int, TaskId]]) -> None:
        for missing, _, node, task in sorted(offers):
            if not missing or node in self._targets:
                continue
            if sum(each == task for each in self._targets.values()) < TARGETS_A_TASK:
                self._copy(task, node)

    def _copy(self, task: TaskId, node: int) -> None:
        """One copy job: all that the task misses on the node, each from the holder that then has least to send.

        A few files at a time. What the task reads first comes last, so that memory still holds it then.
        """
        files = self.missing(self._intermediates(task), node)
        sources = {}
        for file in sorted(files, key=lambda each: (-self.file(each).size, each)):
            size = self.file(file).size
            sources[file] = min(self.sources(file), key=self._load_with(size))
            self._sending[sources[file]] += size
        self._targets[node], self._left[node] = task, len(files)
        queue = sorted(files, key=lambda each: self.file(each).name)

        def following() -> None:
            if queue:
                file = queue.pop()
                done = self._copied(node, sources[file], self.file(file).size, following)
                self.world.copy(file, sources[file], node, "stage", done, task=self.job(task).name)

        for _ in range(FILES_A_JOB):
            following()

    def _load_with(self, size: int) -> Callable[[int], tuple[float, int]]:
        """0.5 × the largest load + 0.5 × all bytes, if a holder sends these too."""
        largest, total = max(self._sending.values(), default=0), sum(self._sending.values()) + size

        def weighed(place: int) -> tuple[float, int]:
            mine = self._sending[place] + size
            return 0.5 * max(largest, mine) + 0.5 * total, mine

        return weighed

    def _copied(self, node: int, source: int, size: int, following: Callable[[], None]) -> Callable[[], None]:
        def done() -> None:
            self._sending[source] -= size
            self._left[node] -= 1
            following()
            if not self._left[node]:
                del self._targets[node], self._left[node]
                self.stir()

        return done
