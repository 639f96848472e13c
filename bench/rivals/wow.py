"""WOW: tasks go to nodes that hold all their intermediate data, and copies make such nodes before the tasks start.

Whenever something ends, three steps: (1) start ready tasks on nodes that hold all their intermediates, so that the sum of
priorities is as large as it gets within the cores; (2) where cores stay free, copy for ready tasks: those that fewest nodes are
ready for first, of them the one that misses fewest bytes; (3) copy for tasks of high rank to nodes that are full now. A node is
the target of one copy job at a time, a task has at most two targets. A copy job takes one file at a time from each holder.
External inputs are read from the shared storage, by the task; intermediates stay on the nodes.

Source: Lehmann et al., WOW: Workflow-Aware Data Movement and Task Scheduling for Dynamic Scientific Workflows (CCGrid 2025), and
for the order of steps 2 and 3 its code (CommonWorkflowScheduler/KubernetesScheduler, `LocationAwareSchedulerV2`). What differs:

- Its step 1 is an integer program. Here it is a greedy choice in two orders, each improved by moving a chosen task aside, and the
  better of both; both go by rank first. The sum alone also prefers many narrow tasks of low rank to a wide one of high rank,
  which makes it weaker (rnaseq-real by 16 to 24 %) than what others measured of WOW in a simulator.
- Its copies ahead of time are slowed down to 70 %. Here they are not: it changes little.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.rivals.opponent import Opponent, TaskId
from flowsched.simulation.clusters import SimulatedCluster
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import STORAGE, FileId
from flowsched.workflow.graph import topological_order

#: Priority = one more than the hops to the end of the DAG, times this, plus the bytes of the inputs.
HOP: Final = 10**14
#: So many copy jobs may have one task's inputs under way.
TARGETS_A_TASK: Final = 2


@dataclass(slots=True)
class _Offer:
    """A task that a copy would help.

    Attributes:
        order: Its place among those that wait.
        spread: How many nodes hold all its intermediates, and on how many that is under way.
        size: Bytes of its intermediates.
        nodes: (bytes it misses there, node), least first, without those of `spread`.
        at: Which of them it asks for now.
    """

    task: TaskId
    order: int
    spread: tuple[int, int]
    size: int
    nodes: list[tuple[int, int]]
    at: int = 0

    @property
    def node(self) -> int:
        """The node it asks for."""
        return self.nodes[self.at][1]

    @property
    def missing(self) -> int:
        """What it misses there, in bytes."""
        return self.nodes[self.at][0]


class Wow(Opponent):
    """See the module."""

    def __init__(self, cluster: SimulatedCluster, workloads: Sequence[Workload]) -> None:
        super().__init__(cluster, workloads)
        self._targets: dict[int, TaskId] = {}  # node -> the task that a copy job is under way for
        self._coming: dict[int, set[FileId]] = {}  # node -> files that its copy job still has to bring
        self._sending: dict[int, int] = defaultdict(int)  # node -> bytes it has to send
        self._hops: dict[TaskId, int] = {}
        self._priorities: dict[TaskId, int] = {}
        self._needs: dict[TaskId, list[FileId]] = {}
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
            began = self._copy_to_free_nodes(waiting)
            self._copy_ahead([task for task in waiting if task not in began])

    def priority(self, task: TaskId) -> int:
        """Hops first, then bytes. Of a ready task, so the files exist."""
        if task not in self._priorities:
            size = sum(self.file(file).size for file in self.inputs(task))
            self._priorities[task] = (self._hops[task] + 1) * HOP + size
        return self._priorities[task]

    def _intermediates(self, task: TaskId) -> list[FileId]:
        if task not in self._needs:
            self._needs[task] = [file for file in self.inputs(task) if self.file(file).producer is not None]
        return self._needs[task]

    # ---- step 1 ----

    def _start(self, ranked: Sequence[TaskId]) -> None:
        wide = max(self.world.free)
        fitting = [task for task in ranked if self.job(task).whole_cores <= wide]
        prepared = {task: self._prepared(task) for task in fitting}
        able = [task for task in fitting if prepared[task]]
        narrow = sorted(able, key=lambda task: (-self._hops[task], self.job(task).whole_cores))
        plans = [self._assigned(order, prepared) for order in (able, narrow)]
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
            if sum(free) < cores or (max(free) < cores and len(prepared[task]) == len(free)):
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

    def _copy_to_free_nodes(self, waiting: Sequence[TaskId]) -> set[TaskId]:
        """Nodes with free cores get what lets a ready task start on them: tasks that may start on fewest nodes first, of those
        the one that misses least. Returns the tasks for which a copy has begun.
        """
        room = [int(each) for each in self.world.free]
        for node, task in self._targets.items():
            cores = self.job(task).whole_cores
            room[node] -= cores if cores <= room[node] else 0

        def accept(offer: _Offer) -> bool:
            cores = self.job(offer.task).whole_cores
            if room[offer.node] < cores:
                return False
            room[offer.node] -= cores
            return True

        return self._copy_for(waiting, lambda offer: (*offer.spread, offer.missing, offer.order), accept)

    def _copy_ahead(self, waiting: Sequence[TaskId]) -> set[TaskId]:
        """Any node that is not the target of a copy gets what a task of high rank would need there."""
        return self._copy_for(
            waiting,
            lambda offer: (-self._hops[offer.task], *offer.spread, -offer.size, offer.missing, offer.order),
            lambda offer: True,
        )

    def _copy_for(
        self,
        waiting: Sequence[TaskId],
        order: Callable[[_Offer], tuple[int, ...]],
        accept: Callable[[_Offer], bool],
    ) -> set[TaskId]:
        """Begin copies, the best offer first, at most one for each task. A task that is refused a node asks for its next one."""
        began: set[TaskId] = set()
        idle = len(self.world.free) - len(self._targets)
        if not idle:
            return began
        under_way = Counter(self._targets.values())
        offers = [
            self._offer(task, at) for at, task in enumerate(waiting) if under_way[task] < TARGETS_A_TASK
        ]
        queue = [(order(offer), at, offer) for at, offer in enumerate(offers) if offer.nodes]
        heapq.heapify(queue)
        while queue and idle:
            _, at, offer = heapq.heappop(queue)
            if offer.node not in self._targets and accept(offer):
                self._copy(offer.task, offer.node)
                began.add(offer.task)
                idle -= 1
                continue
            offer.at += 1
            if offer.at < len(offer.nodes):
                heapq.heappush(queue, (order(offer), at, offer))
        return began

    def _offer(self, task: TaskId, order: int) -> _Offer:
        """What a task lacks on each node."""
        files = self._intermediates(task)
        size = sum(self.file(file).size for file in files)
        nodes = range(len(self.world.free))
        missing, held = [size] * len(nodes), [0] * len(nodes)
        for file in files:
            for place in self.world.at[file]:
                if place != STORAGE:
                    missing[place] -= self.file(file).size
                    held[place] += 1
        for node, coming in self._coming.items():
            missing[node] -= sum(self.file(file).size for file in files if file in coming)
        complete = held.count(len(files))
        offers = sorted((missing[node], node) for node in nodes if missing[node])
        return _Offer(task, order, (complete, len(nodes) - complete - len(offers)), size, offers)

    def _copy(self, task: TaskId, node: int) -> None:
        """One copy job: all that the task misses on the node, each file from the holder that then has least to send.

        One file at a time from each. What the task reads first comes last, so that memory still holds it then.
        """
        files = self.missing(self._intermediates(task), node)
        queues: dict[int, list[FileId]] = defaultdict(list)
        for file in sorted(files, key=lambda each: (-self.file(each).size, each)):
            size = self.file(file).size
            source = min(self.sources(file), key=self._load_with(size))
            self._sending[source] += size
            queues[source].append(file)
        self._targets[node], self._coming[node] = task, set(files)
        for source, queue in queues.items():
            queue.sort(key=lambda each: self.file(each).name)
            self._following(task, node, source, queue)

    def _following(self, task: TaskId, node: int, source: int, queue: list[FileId]) -> None:
        """The next file from one holder."""
        if not queue:
            return
        file = queue.pop()

        def done() -> None:
            self._sending[source] -= self.file(file).size
            coming = self._coming[node]
            coming.discard(file)
            self._following(task, node, source, queue)
            if not coming:
                del self._targets[node], self._coming[node]
                self.stir()

        self.world.copy(file, source, node, "stage", done, task=self.job(task).name)

    def _load_with(self, size: int) -> Callable[[int], tuple[float, int]]:
        """0.5 × the largest load + 0.5 × all bytes, if a holder sends these too."""
        largest, total = max(self._sending.values(), default=0), sum(self._sending.values()) + size

        def weighed(place: int) -> tuple[float, int]:
            mine = self._sending[place] + size
            return 0.5 * max(largest, mine) + 0.5 * total, mine

        return weighed
