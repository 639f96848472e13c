"""Figures by which policies are compared, and a lower bound of every makespan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flowsched.simulation.clusters import SimulatedCluster
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import STORAGE, World


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one schedule. Seconds and bytes.

    Args:
        makespan_s: Until the last task has ended and the last final is on the storage.
        ratio: That over the bound; None where the bound is nothing.
        mean_completion_s: Of workflows, each from its arrival on.
        moved_bytes: Over the network.
        storage_bytes: Of those, read from the shared storage.
        busy: Of all cores, until then: the part that was taken.
        tasks: That succeeded.
        lost: Attempts that came to nothing: they were taken away or lost, or their outputs were lost and made again.
        wait_s: Between ready and started, the mean over tasks.
        undelivered: Finals that never came to the storage: their node was lost before.
    """

    makespan_s: float
    ratio: float | None
    mean_completion_s: float
    moved_bytes: int
    storage_bytes: int
    busy: float
    tasks: int
    lost: int
    wait_s: float
    undelivered: int

    def told(self) -> dict[str, Any]:
        """The values for JSON."""
        return {
            name: round(each, 6) if isinstance(each, float) else each for name, each in asdict(self).items()
        }


def figures_of(world: World, bound_s: float) -> Figures:
    """The figures of a world in which everything has happened."""
    storage = world.cluster.storage.name
    tasks = [line for line in world.lines if "task" in line]
    moves = [line for line in world.lines if "transfer" in line]
    ended: dict[str, float] = {workload.name: workload.arrival_s for workload in world.workloads}
    for line in tasks:
        ended[line["workflow"]] = max(ended[line["workflow"]], line["end"])
    for line in moves:
        if line["to"] == storage:
            ended[line["workflow"]] = max(ended[line["workflow"]], line["end"])
    makespan = max(ended.values(), default=0.0)
    arrived = {workload.name: workload.arrival_s for workload in world.workloads}
    good = [line for line in tasks if line["outcome"] == "succeeded"]
    succeeded = {(line["workflow"], line["task"]) for line in good}
    cores = sum(node.cores for node in world.cluster.nodes)
    taken = sum(line["cores"] * (line["end"] - line["start"]) for line in tasks)
    return Figures(
        makespan_s=makespan,
        ratio=makespan / bound_s if bound_s else None,
        mean_completion_s=sum(end - arrived[name] for name, end in ended.items()) / max(1, len(ended)),
        moved_bytes=sum(line["bytes"] for line in moves),
        storage_bytes=sum(line["bytes"] for line in moves if line["from"] == storage),
        busy=taken / (cores * makespan) if makespan else 0.0,
        tasks=len(succeeded),
        lost=len(tasks) - len(succeeded),
        wait_s=sum(line["start"] - line["ready"] for line in good) / max(1, len(good)),
        undelivered=_undelivered(world),
    )


def _undelivered(world: World) -> int:
    return sum(
        file.final and STORAGE not in world.at[number, at]
        for number, workload in enumerate(world.workloads)
        if workload.keep_final
        for at, file in enumerate(workload.files)
    )


# ---- the bound: a time that no schedule of workloads on a cluster can beat (LOCALITY, "LB") ----
#
# The longest of: the longest path with the input and output it cannot avoid; the work over all cores; bytes from outside over
# what the storage sends; finals over what it takes. True for every policy; loose where disks are read again, or much is
# gathered.


def lower_bound(cluster: SimulatedCluster, workloads: Sequence[Workload]) -> float:
    """Seconds, for all workloads together, each from its arrival on."""
    storage = cluster.storage
    sends, takes = min(storage.nic_out, storage.disk), min(storage.nic_in, storage.disk)
    cores = sum(node.cores for node in cluster.nodes)
    path = work = outside = kept = 0.0
    for workload in workloads:
        path = max(path, workload.arrival_s + _path(cluster, workload))
        work += sum((job.compute_s + cluster.startup) * job.cores for job in workload.jobs) / cores
        read = {file for job in workload.jobs for file in job.inputs}
        outside += (
            sum(workload.files[file].size for file in read if workload.files[file].producer is None) / sends
        )
        if workload.keep_final:
            kept += sum(file.size for file in workload.files if file.final) / takes
    return max(path, work, outside, kept)


def _path(cluster: SimulatedCluster, workload: Workload) -> float:
    """The longest way through one workload."""
    files, node, storage = workload.files, cluster.nodes[0], cluster.storage
    nic = max(each.nic_in for each in cluster.nodes)
    takes = min(storage.nic_in, storage.disk)
    fastest = max(max(each.disk for each in cluster.nodes), min(node.nic_out, takes))
    computed = [0.0] * len(workload.jobs)
    moved = [0.0] * len(workload.jobs)
    last = 0.0
    for number in _parents_first(workload):
        job = workload.jobs[number]
        spent = job.compute_s + cluster.startup
        external = sum(files[file].size for file in job.inputs if files[file].producer is None)
        arrive = external / min(nic, storage.nic_out, storage.disk)
        computed[number] = spent + max((computed[parent] for parent in job.parents), default=0.0)
        begin = max(max((moved[parent] for parent in job.parents), default=0.0), arrive)
        moved[number] = begin + spent + sum(files[file].size for file in job.outputs) / fastest
        finals = (
            sum(files[file].size for file in job.outputs if files[file].final) if workload.keep_final else 0
        )
        last = max(last, moved[number] + (finals / takes - finals / fastest if finals else 0.0))
    return max(last, max(computed, default=0.0))


def _parents_first(workload: Workload) -> list[int]:
    waiting = [len(job.parents) for job in workload.jobs]
    children: list[list[int]] = [[] for _ in workload.jobs]
    for number, job in enumerate(workload.jobs):
        for parent in job.parents:
            children[parent].append(number)
    ready = [number for number, count in enumerate(waiting) if not count]
    for number in ready:
        for child in children[number]:
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    return ready
