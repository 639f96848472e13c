"""A time that no schedule of workloads on a cluster can beat (LOCALITY, "LB"): what makespans are compared with.

The longest of: the longest path with the input and output it cannot avoid; the work over all cores; bytes from outside over what
the storage sends; finals over what it takes. True for every policy; loose where disks are read again, or much is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowsched.simulation.reference import SimulatedCluster
from flowsched.simulation.workload import Workload


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
