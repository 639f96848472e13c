"""Pod-by-pod schedulers after kube-scheduler, in plain Python: the opponents of `bench/placement.py`.

As in kube-scheduler (pkg/scheduler/schedule_one.go): for each pod, nodes are filtered in round-robin order
from where the last pod stopped, only until enough feasible ones are found (`numFeasibleNodesToFind`), and
those are scored; the highest wins (the first of equals here; kube-scheduler draws lots).

`Inlined` is the least that can be called this: CPU and memory only, taints checked once for all pods, scores
NodeResourcesFit/LeastAllocated and NodeResourcesBalancedAllocation, everything in two tight loops over lists.
`Plugins` is built as the original is: for each pod and node a chain of filter plugins (schedulable, taints,
selector, resources), then score plugins of the default profile that apply to such pods (least allocated,
balanced, taints, and locality of the data in place of ImageLocality, with its formula), normalised and
weighted.

Neither says how fast kube-scheduler is, which runs in Go on sixteen threads. They stand for the pod-by-pod
algorithm in the language and on the machine of what it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: minFeasibleNodesToFind, minFeasibleNodesPercentageToFind (schedule_one.go).
MIN_NODES = 100
MIN_PERCENTAGE = 5


def nodes_to_find(nodes: int) -> int:
    """`numFeasibleNodesToFind` with percentageOfNodesToScore unset.

    max(100, nodes * max(5, 50 - nodes / 125) / 100), and all of them below 100.
    """
    if nodes < MIN_NODES:
        return nodes
    percentage = max(50 - nodes // 125, MIN_PERCENTAGE)
    return max(nodes * percentage // 100, MIN_NODES)


class Inlined:
    """Nodes as lists of whole numbers; room is taken as pods are placed."""

    def __init__(
        self, cpu: list[int], memory: list[int], used_cpu: list[int], used_memory: list[int]
    ) -> None:
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


@dataclass(slots=True)
class Node:
    """What the plugins look at."""

    cpu: int
    memory: int
    used_cpu: int
    used_memory: int
    schedulable: bool
    labels: dict[str, str]
    taints: tuple[tuple[str, str, str], ...]
    data: dict[str, int] = field(default_factory=dict)  #: dataset -> bytes


@dataclass(frozen=True, slots=True)
class PodSpec:
    """One pod."""

    cpu: int
    memory: int
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[tuple[str, str, str, str], ...] = ()
    data: tuple[str, ...] = ()


def node_unschedulable(pod: PodSpec, node: Node) -> bool:
    return node.schedulable


def taint_toleration(pod: PodSpec, node: Node) -> bool:
    return not any(
        effect in ("NoSchedule", "NoExecute")
        and not any(t[0] == key and (t[1] == "Exists" or t[2] == value) for t in pod.tolerations)
        for key, value, effect in node.taints
    )


def node_affinity(pod: PodSpec, node: Node) -> bool:
    return all(node.labels.get(key) == value for key, value in pod.selector)


def resources_fit(pod: PodSpec, node: Node) -> bool:
    return node.used_cpu + pod.cpu <= node.cpu and node.used_memory + pod.memory <= node.memory


def least_allocated(pod: PodSpec, node: Node) -> int:
    cpu = (node.cpu - node.used_cpu - pod.cpu) * 100 // node.cpu
    memory = (node.memory - node.used_memory - pod.memory) * 100 // node.memory
    return (cpu + memory) // 2


def balanced_allocation(pod: PodSpec, node: Node) -> int:
    cpu = min((node.used_cpu + pod.cpu) / node.cpu, 1.0)
    memory = min((node.used_memory + pod.memory) / node.memory, 1.0)
    return int((1.0 - abs(cpu - memory) / 2.0) * 100)


def soft_taints(pod: PodSpec, node: Node) -> int:
    return sum(effect == "PreferNoSchedule" for _, _, effect in node.taints)


def data_locality(pod: PodSpec, node: Node) -> int:
    """ImageLocality's score: bytes that are there, between 23 MB and 1 GB for each."""
    held = sum(node.data.get(name, 0) for name in pod.data)
    low, high = 23 << 20, (1000 << 20) * max(len(pod.data), 1)
    return 100 * (min(max(held, low), high) - low) // (high - low)


FILTERS = (node_unschedulable, taint_toleration, node_affinity, resources_fit)
#: (score, weight, whether a high value is bad and is turned round by the default normaliser).
SCORES = (
    (least_allocated, 1, False),
    (balanced_allocation, 1, False),
    (soft_taints, 3, True),
    (data_locality, 1, False),
)


class Plugins:
    """Pod by pod through chains of plugins."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.start = 0

    def place(self, pod: PodSpec) -> int | None:
        """One pod: filter until enough nodes are found, score those by every plugin, normalise, add up."""
        nodes = self.nodes
        enough, found = nodes_to_find(len(nodes)), []
        # Filters say before the first node when they have nothing to do (PreFilter's Skip).
        filters = [judge for judge in FILTERS if judge is not node_affinity or pod.selector]
        for offset in range(len(nodes)):
            at = (self.start + offset) % len(nodes)
            node = nodes[at]
            for judge in filters:
                if not judge(pod, node):
                    break
            else:
                found.append(at)
                if len(found) == enough:
                    break
        self.start = (self.start + offset + 1) % len(nodes)
        if not found:
            return None
        totals = [0] * len(found)
        for score, weight, reverse in SCORES:
            values = [score(pod, nodes[at]) for at in found]
            if reverse:
                most = max(values)
                values = [100 - value * 100 // most if most else 100 for value in values]
            totals = [total + weight * value for total, value in zip(totals, values, strict=True)]
        best = found[max(range(len(found)), key=totals.__getitem__)]
        nodes[best].used_cpu += pod.cpu
        nodes[best].used_memory += pod.memory
        return best

    def place_gang(self, count: int, pod: PodSpec) -> list[int] | None:
        """Pod after pod; None (and the room given back) when one finds no node."""
        placed: list[int] = []
        for _ in range(count):
            node = self.place(pod)
            if node is None:
                self.give_back(placed, pod)
                return None
            placed.append(node)
        return placed

    def give_back(self, placed: list[int], pod: PodSpec) -> None:
        """Take pods away again."""
        for at in placed:
            self.nodes[at].used_cpu -= pod.cpu
            self.nodes[at].used_memory -= pod.memory
