"""Figures by which policies are compared, and a lower bound of every makespan."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

from flowsched.simulation.clusters import SimulatedCluster
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import STORAGE, World


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one schedule. Seconds and bytes.

    Where tasks have not succeeded that were asked for, what counts until the end is None: there is none.

    Args:
        makespan_s: Until the last task has ended and the last final is on the storage.
        ratio: That over the bound; None also where the bound is nothing.
        mean_completion_s: Of workflows, each from its arrival on.
        moved_bytes: Over the network.
        storage_bytes: Of those, read from the shared storage.
        busy: Of all cores, until then: the part that was taken.
        tasks: That succeeded, or were released because their gang or stage had done its work.
        asked: Tasks in all, without those that a condition or the end of their gang or stage has skipped.
        lost: Attempts that came to nothing: they were taken away or lost, or their outputs were lost and made again.
        wait_s: Between ready and started, the mean over tasks.
        undelivered: Finals that never came to the storage: their node was lost before.
        unfinished: The stages that have not succeeded, with their workflow and the reason; one sentence a stage.
    """

    makespan_s: float | None
    ratio: float | None
    mean_completion_s: float | None
    moved_bytes: int
    storage_bytes: int
    busy: float | None
    tasks: int
    asked: int
    lost: int
    wait_s: float | None
    undelivered: int
    unfinished: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every task that was asked for has succeeded."""
        return self.tasks == self.asked and not self.unfinished

    def to_dict(self) -> dict[str, Any]:
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
    good = [line for line in tasks if line["outcome"] in ("succeeded", "released")]
    succeeded = {(line["workflow"], line["task"]) for line in good}
    cores = sum(node.cores for node in world.cluster.nodes)
    taken = sum(line["cores"] * (line["end"] - line["start"]) for line in tasks)
    complete = len(succeeded) == world.asked and not world.unfinished
    mean_s = sum(end - arrived[name] for name, end in ended.items()) / max(1, len(ended))
    wait_s = sum(line["start"] - line["ready"] for line in good) / max(1, len(good))
    return Figures(
        makespan_s=makespan if complete else None,
        ratio=makespan / bound_s if bound_s and complete else None,
        mean_completion_s=mean_s if complete else None,
        moved_bytes=sum(line["bytes"] for line in moves),
        storage_bytes=sum(line["bytes"] for line in moves if line["from"] == storage),
        busy=(taken / (cores * makespan) if makespan else 0.0) if complete else None,
        tasks=len(succeeded),
        asked=world.asked,
        lost=len(tasks) - len(succeeded),
        wait_s=wait_s if complete else None,
        undelivered=_undelivered(world, succeeded),
        unfinished=tuple(world.unfinished),
    )


def _undelivered(world: World, succeeded: Set[tuple[str, str]]) -> int:
    return sum(
        file.final
        and STORAGE not in world.at[number, at]
        and (workload.name, workload.jobs[file.producer or 0].name) in succeeded
        for number, workload in enumerate(world.workloads)
        if workload.keep_final
        for at, file in enumerate(workload.files)
    )


# ---- the bound: a time that no schedule of workloads on a cluster can beat (LOCALITY, "LB") ----
#
# The longest of: the longest path with the input and output it cannot avoid; the work over all cores; bytes from outside over
# what the storage sends; finals over what it takes. True for every policy; loose where disks are read again, or much is
# gathered. Jobs that a schedule may do without count nothing.


def lower_bound(cluster: SimulatedCluster, workloads: Sequence[Workload]) -> float:
    """Seconds, for all workloads together, each from its arrival on."""
    storage = cluster.storage
    sends, receives = min(storage.nic_out, storage.disk), min(storage.nic_in, storage.disk)
    cores = sum(node.cores for node in cluster.nodes)
    path = work = outside = delivery = 0.0
    for workload in workloads:
        path = max(path, workload.arrival_s + _path(cluster, workload))
        certain = [job for job in workload.jobs if job.certain]
        work += sum((job.compute_s + cluster.startup) * job.cores for job in certain) / cores
        read = {file for job in certain for file in job.inputs}
        outside += (
            sum(workload.files[file].size for file in read if workload.files[file].producer is None) / sends
        )
        if workload.keep_final:
            written = {file for job in certain for file in job.outputs}
            delivery += sum(workload.files[at].size for at in written if workload.files[at].final) / receives
    return max(path, work, outside, delivery)


def _path(cluster: SimulatedCluster, workload: Workload) -> float:
    """The longest way through one workload."""
    files, node, storage = workload.files, cluster.nodes[0], cluster.storage
    nic = max(each.nic_in for each in cluster.nodes)
    receives = min(storage.nic_in, storage.disk)
    fastest = max(max(each.disk for each in cluster.nodes), min(node.nic_out, receives))
    computed = [0.0] * len(workload.jobs)
    moved = [0.0] * len(workload.jobs)
    last = 0.0
    for number in _parents_first(workload):
        job = workload.jobs[number]
        if not job.certain:
            computed[number] = max((computed[parent] for parent in job.parents), default=0.0)
            moved[number] = max((moved[parent] for parent in job.parents), default=0.0)
            continue
        spent = job.compute_s + cluster.startup
        external = sum(files[file].size for file in job.inputs if files[file].producer is None)
        arrive = external / min(nic, storage.nic_out, storage.disk)
        computed[number] = spent + max((computed[parent] for parent in job.parents), default=0.0)
        begin = max(max((moved[parent] for parent in job.parents), default=0.0), arrive)
        moved[number] = begin + spent + sum(files[file].size for file in job.outputs) / fastest
        finals = (
            sum(files[file].size for file in job.outputs if files[file].final) if workload.keep_final else 0
        )
        last = max(last, moved[number] + (finals / receives - finals / fastest if finals else 0.0))
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
