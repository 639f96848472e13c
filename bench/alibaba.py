"""Alibaba's GPU trace (2023, "openb") as CSV: a list of nodes is a cluster, a list of pods is workflows of one task each.

A pod arrives when it was created, and runs for as long as it was scheduled then. No policy is told how long that is. Pods that
were never scheduled are left out, since their runtimes are not known. `engine.step` counts their cores, memory and GPUs.

    python bench/alibaba.py openb_pod_list_default.csv openb_node_list_all_node.csv 500
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from flowsched.errors import InvalidRequest
from flowsched.simulation.clusters import SimulatedCluster, SimulatedNode
from flowsched.simulation.documents import from_document
from flowsched.simulation.figures import figures_of, lower_bound
from flowsched.simulation.policies import simulated
from flowsched.simulation.workload import Workload
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.document.limits import DEFAULT

_NODE: Final = ("sn", "cpu_milli", "memory_mib", "gpu")
_POD: Final = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "creation_time", "deletion_time", "scheduled_time",
)  # fmt: skip
_MIB: Final = 1 << 20


def cluster_of_nodes(text: str, source: str) -> SimulatedCluster:
    """A cluster from a list of nodes (`sn, cpu_milli, memory_mib, gpu`); disks and links, of which it says nothing, are usual ones.

    Args:
        text: The CSV.
        source: Name of its file, for messages.

    Raises:
        InvalidRequest: It is no such list; says the line.
    """
    nodes = tuple(
        SimulatedNode(
            row["sn"],
            cores=_whole(row, "cpu_milli", where) // 1000,
            memory=_whole(row, "memory_mib", where) * _MIB,
            gpus=_whole(row, "gpu", where),
        )
        for where, row in _rows(text, source, _NODE)
    )
    if not nodes or len({node.name for node in nodes}) != len(nodes):
        raise InvalidRequest(f"{source}: at least one node was expected, and no name twice")
    return SimulatedCluster(nodes)


def workloads_of_pods(text: str, source: str, limit: int | None = None) -> list[Workload]:
    """Workflows of one task each from a list of pods, in the order of their arrival.

    Args:
        text: The CSV.
        source: Name of its file.
        limit: The first so many that ran; None = all.

    Raises:
        InvalidRequest: It is no such list; says the line.
    """
    ran = []
    for where, row in _rows(text, source, _POD):
        if row["gpu_spec"]:
            raise InvalidRequest(
                f"{where}: gpu_spec {row['gpu_spec']!r}: pods that name a model of GPU cannot be simulated yet"
            )
        if row["scheduled_time"]:
            ran.append((_whole(row, "creation_time", where), where, row))
        if len(ran) == limit:
            break
    if len({row["name"] for _, _, row in ran}) != len(ran):
        raise InvalidRequest(f"{source}: no name of a pod twice was expected")
    ran.sort(key=lambda each: each[0])
    return [_workload(row, created, where, source) for created, where, row in ran]


def _workload(row: Mapping[str, str], created: int, where: str, source: str) -> Workload:
    seconds = _whole(row, "deletion_time", where) - _whole(row, "scheduled_time", where)
    if seconds < 0:
        raise InvalidRequest(f"{where}: deletion_time is before scheduled_time")
    cpu, gpus = _whole(row, "cpu_milli", where), _whole(row, "num_gpu", where)
    asks = {"cpu": f"{cpu}m", "memory": _whole(row, "memory_mib", where) * _MIB}
    if gpus:
        asks["gpu"] = f"{gpus * _whole(row, 'gpu_milli', where)}m"
    stage = {"name": "pod", "command": ["true"], "resources": asks}
    spec = check_workflow({"name": row["name"], "stages": [stage]}, DEFAULT)
    work = from_document(spec, row["name"], source)
    job = replace(work.jobs[0], name=row["name"], cores=cpu / 1000, compute_s=float(seconds))
    return replace(work, jobs=(job,), arrival_s=float(created))


def _rows(text: str, source: str, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """(where it is, row) of a CSV that has these columns."""
    reader = csv.DictReader(text.splitlines())
    lacking = [name for name in columns if name not in (reader.fieldnames or ())]
    if lacking:
        raise InvalidRequest(
            f"{source}: a CSV with the columns {', '.join(columns)} was expected; {', '.join(lacking)} lack"
        )
    for row in reader:
        where = f"{source}, line {reader.line_num}"
        if any(row[name] is None for name in columns):
            raise InvalidRequest(f"{where}: fewer values than columns")
        yield where, row


def _whole(row: Mapping[str, str], name: str, where: str) -> int:
    text = row[name]
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidRequest(f"{where}: {name} is {text[:30]!r}, a whole number was expected")
    return int(text)


def main(pods: Path, nodes: Path, limit: int) -> None:
    """Let the first pods of a list run on the nodes of a list, and print what came of it."""
    cluster = cluster_of_nodes(nodes.read_text(), nodes.name)
    workloads = workloads_of_pods(pods.read_text(), pods.name, limit)
    world = simulated("flowsched", cluster, workloads)
    print(figures_of(world, lower_bound(cluster, workloads)).to_dict())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
