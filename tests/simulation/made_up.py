"""Workloads written down task by task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowsched.simulation.clusters import SimulatedCluster
from flowsched.simulation.workload import Workload, from_trace
from flowsched.workflow.formats.wfformat import read_trace


class Told(NamedTuple):
    """What a task reads and writes, its cores, and how long it computes (s)."""

    reads: Sequence[str] = ()
    writes: Sequence[str] = ()
    cores: int = 1
    seconds: float = 1.0


def made(cluster: SimulatedCluster, tasks: Mapping[str, Told], files: Mapping[str, int]) -> Workload:
    """A workload of these tasks, whose parents are those that write what they read. `files`: bytes by name."""
    writer = {file: name for name, told in tasks.items() for file in told.writes}
    parents = {name: sorted({writer[f] for f in told.reads if f in writer}) for name, told in tasks.items()}
    specified = [
        {
            "name": name.split("_")[0], "id": name, "parents": parents[name],
            "children": [other for other in tasks if name in parents[other]],
            "inputFiles": list(told.reads), "outputFiles": list(told.writes),
        }
        for name, told in tasks.items()
    ]  # fmt: skip
    ran = [
        {"id": name, "runtimeInSeconds": told.seconds, "coreCount": told.cores}
        for name, told in tasks.items()
    ]
    document = {
        "name": "made", "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": specified, "files": [{"id": name, "sizeInBytes": size} for name, size in files.items()]
            },
            "execution": {"makespanInSeconds": 100, "executedAt": "2026-01-01T00:00:00Z", "tasks": ran},
        },
    }  # fmt: skip
    return from_trace(read_trace(json.dumps(document).encode()), "made", "made.json", cluster)
