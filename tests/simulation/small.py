"""A made-up workflow in WfFormat, small enough for a test and mixed enough to matter: a wide stage that reads a reference, a
chain behind each of its tasks, a gather, and finals. As a program it prints a digest of every policy's trace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from bench.rivals import POLICIES, simulated
from flowsched.simulation.clusters import SimulatedCluster, SimulatedNode, SimulatedStorage
from flowsched.simulation.workload import Workload, from_trace
from flowsched.workflow.formats.wfformat import read_trace

MB = 1_000_000
#: Three nodes of four cores with 100 MB/s disks and links, one storage as fast as a link.
CLUSTER = SimulatedCluster(
    tuple(
        SimulatedNode(f"n{at}", 4, disk=100 * MB, nic_in=100 * MB, nic_out=100 * MB, cache=600 * MB)
        for at in range(3)
    ),
    SimulatedStorage("storage", disk=200 * MB, nic_in=100 * MB, nic_out=100 * MB),
)


def _task(ident: str, parents: Sequence[str], reads: Sequence[str], writes: Sequence[str]) -> dict[str, Any]:
    kind = ident.split("_")[0]
    children = [f"sort_{ident[6:]}"] if kind == "align" else ["merge_0"] if kind == "sort" else []
    if kind == "merge":
        children = ["report_0", "report_1"]
    return {
        "name": kind, "id": ident, "parents": list(parents), "children": children, "inputFiles": list(reads),
        "outputFiles": list(writes),
    }  # fmt: skip


def document(width: int = 10) -> bytes:
    """`width` times align and sort, then merge, then two reports."""
    files = {"reference": 300 * MB, "merged": 80 * MB, "report0": 5 * MB, "report1": 7 * MB}
    tasks, took = [], {}
    for at in range(width):
        files |= {
            f"reads{at}": (20 + 7 * at) * MB,
            f"bam{at}": (30 + 5 * at) * MB,
            f"sorted{at}": (10 + at) * MB,
        }
        tasks.append(_task(f"align_{at}", [], ["reference", f"reads{at}"], [f"bam{at}"]))
        tasks.append(_task(f"sort_{at}", [f"align_{at}"], [f"bam{at}"], [f"sorted{at}"]))
        took |= {f"align_{at}": 20.0 + 3 * (at % 4), f"sort_{at}": 4.0 + at % 3}
    sorts = [f"sort_{at}" for at in range(width)]
    tasks.append(_task("merge_0", sorts, [f"sorted{at}" for at in range(width)], ["merged"]))
    took["merge_0"] = 9.0
    for at in range(2):
        tasks.append(_task(f"report_{at}", ["merge_0"], ["merged"], [f"report{at}"]))
        took[f"report_{at}"] = 5.0
    ran = [
        {
            "id": task["id"],
            "runtimeInSeconds": took[task["id"]],
            "coreCount": 2 if task["name"] == "align" else 1,
        }
        for task in tasks
    ]
    return json.dumps({
        "name": "small", "schemaVersion": "1.5",
        "workflow": {
            "specification": {"tasks": tasks, "files": [{"id": f, "sizeInBytes": size} for f, size in files.items()]},
            "execution": {"makespanInSeconds": 100, "executedAt": "2026-01-01T00:00:00Z", "tasks": ran},
        },
    }).encode()  # fmt: skip


def workload(name: str = "small", cluster: SimulatedCluster = CLUSTER) -> Workload:
    """The document as a workload."""
    return from_trace(read_trace(document()), name, "small.json", cluster)


if __name__ == "__main__":
    for each in POLICIES:
        trace = json.dumps(simulated(each, CLUSTER, [workload("one"), workload("two")]).lines)
        print(each, hashlib.sha256(trace.encode()).hexdigest())
