"""A pod-by-pod scheduler after kube-scheduler, in plain Python: the opponent of `bench/placement.py`.

As in kube-scheduler (pkg/scheduler/schedule_one.go): for each pod, nodes are filtered in round-robin order from where the
last pod stopped, only until enough feasible ones are found (`numFeasibleNodesToFind`), and those are scored; the highest wins,
the first of equals here (kube-scheduler draws lots). Scores are NodeResourcesFit/LeastAllocated and
NodeResourcesBalancedAllocation with equal weights, on CPU and memory.

Fair to the original: per-node state is plain integers in lists, labels and taints are checked once per shape, and filter and
score are inlined into one loop each. Unlike the original it runs in Python and on one core, so its *times* say nothing about
kube-scheduler; it stands for the pod-by-pod algorithm in the language and on the machine of the thing it is compared with.
"""

from __future__ import annotations

#: minFeasibleNodesToFind, minFeasibleNodesPercentageToFind (schedule_one.go).
MIN_NODES = 100
MIN_PERCENTAGE = 5


def nodes_to_find(nodes: int) -> int:
    """`numFeasibleNodesToFind` with percentageOfNodesToScore unset: max(100, nodes * max(5, 50 - nodes / 125) %)."""
    if nodes < MIN_NODES:
        return nodes
    percentage = max(50 - nodes // 125, MIN_PERCENTAGE)
    return max(nodes * percentage // 100, MIN_NODES)


class KubeLike:
    """Nodes as lists of whole numbers; room is taken as pods are placed."""

    def __init__(self, cpu: list[int], memory: list[int], used_cpu: list[int], used_memory: list[int]) -> None:
        self.cpu, self.memory = cpu, memory
        self.used_cpu, self.used_memory = list(used_cpu), list(used_memory)
        self.start = 0

    def place(self, cpu: int, memory: int, allowed: list[bool]) -> int | None:
        """One pod: filter until enough nodes are found, score those, take the best."""
        nodes = len(self.cpu)
        enough = nodes_to_find(nodes)
        all_cpu, all_memory, used_cpu, used_memory = self.cpu, self.memory, self.used_cpu, self.used_memory
        found = []
        position = self.start
        for _ in range(nodes):
            node = position
            position += 1
            if position == nodes:
                position = 0
            if (
                allowed[node]
                and used_cpu[node] + cpu <= all_cpu[node]
                and used_memory[node] + memory <= all_memory[node]
            ):
                found.append(node)
                if len(found) == enough:
                    break
        self.start = position
        if not found:
            return None
        best, best_score = -1, -1.0
        for node in found:
            cpu_part = (used_cpu[node] + cpu) / all_cpu[node]
            memory_part = (used_memory[node] + memory) / all_memory[node]
            least = (2.0 - cpu_part - memory_part) * 50.0
            score = least + (1.0 - abs(cpu_part - memory_part) / 2.0) * 100.0
            if score > best_score:
                best, best_score = node, score
        used_cpu[best] += cpu
        used_memory[best] += memory
        return best

    def place_gang(self, count: int, cpu: int, memory: int, allowed: list[bool]) -> list[int] | None:
        """Pod after pod; None (and the room given back) when one finds no node."""
        placed = []
        for _ in range(count):
            node = self.place(cpu, memory, allowed)
            if node is None:
                self.give_back(placed, cpu, memory)
                return None
            placed.append(node)
        return placed

    def give_back(self, placed: list[int], cpu: int, memory: int) -> None:
        """Take pods away again."""
        for node in placed:
            self.used_cpu[node] -= cpu
            self.used_memory[node] -= memory
