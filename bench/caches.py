"""What it brings to drop from full caches what the DAG will need least, against what was used longest ago.

    python -m bench.caches [--data DIR] [--only NAME,NAME+NAME,…] [--shares 25,50,100] [--cluster 8x16-1g] [--apart 0]

Each workflow (several joined by + come `--apart` seconds after each other) runs once with caches that hold whatever comes: the
most that any node held then is its working set. Then every node may hold a share of that (but never less than the largest task
reads and writes, and a tenth more), under both orders of eviction. Printed: makespan and bytes moved, both over those of the run
without limits, bytes dropped and bytes fetched again. DIR holds `wfinstances/` (default `../shared/data`); without it there is
nothing to run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowsched.scheduling.policy.framework import PROFILES
from flowsched.simulation.clusters import REFERENCE, SimulatedCluster
from flowsched.simulation.figures import figures_of
from flowsched.simulation.simulate import Simulation
from flowsched.simulation.workload import Workload, from_trace
from flowsched.values import replace
from flowsched.workflow.formats.wfformat import read_trace

SHARED = Path(__file__).resolve().parents[2] / "shared"
FILES = {
    "srasearch-20a": "srasearch-chameleon-20a-001.json",
    "srasearch-50a": "srasearch-chameleon-50a-005.json",
    "1000genome-4ch": "1000genome-chameleon-4ch-250k-001.json.gz",
    "epigenomics-1seq": "epigenomics-chameleon-ilmn-1seq-50k-001.json.gz",
    "smrnaseq": "smrnaseq-dirt02-001.json.gz",
}
#: A limit so large that nothing is ever dropped: bytes are counted all the same.
BOUNDLESS = 1 << 50


@dataclass(frozen=True, slots=True)
class Run:
    """What one simulation came to. Seconds and bytes."""

    makespan_s: float
    moved_bytes: int
    dropped_bytes: int
    again_bytes: int
    most_bytes: int  #: that any node held
    tasks: int
    cpu_s: float


class Watched(Simulation):
    """A simulation that notes the most any node held."""

    most_bytes = 0

    def _step(self, now: int) -> None:
        super()._step(now)
        caches = self.state.cluster.catalogue.caches
        if caches is not None:
            self.most_bytes = max(self.most_bytes, *(cache.used for cache in caches.of.values()))


def simulated(workloads: Sequence[Workload], cluster: SimulatedCluster, limit: int, eviction: str) -> Run:
    """One run where each node may hold so many bytes."""
    nodes = tuple(replace(node, datasets=limit) for node in cluster.nodes)
    profile = replace(PROFILES["flowsched"], eviction="lru" if eviction == "lru" else "dag")
    simulation = Watched(replace(cluster, nodes=nodes), workloads, profile)
    began = time.process_time()
    figures = figures_of(simulation.run(), 1.0)
    cpu = time.process_time() - began
    if figures.makespan_s is None:
        raise SystemExit(f"tasks were left undone: {'; '.join(figures.unfinished)}")
    caches = simulation.state.cluster.catalogue.caches
    again = 0 if caches is None else sum(caches.refetched_bytes.values())
    dropped, most = simulation.evicted_bytes, simulation.most_bytes
    return Run(figures.makespan_s, figures.moved_bytes, dropped, again, most, figures.tasks, cpu)


def load(name: str, data: Path, cluster: SimulatedCluster) -> Workload:
    """An instance as a workload."""
    import gzip

    path = data / "wfinstances" / FILES[name]
    raw = path.read_bytes()
    document = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return from_trace(read_trace(document), name, path.name, cluster)


def largest_task(workload: Workload) -> int:
    """Bytes that the largest task reads and writes."""
    return max(sum(workload.files[f].size for f in (*job.inputs, *job.outputs)) for job in workload.jobs)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--only", default=",".join(FILES))
    parser.add_argument("--apart", type=float, default=60.0)
    parser.add_argument("--shares", default="25,50,100")
    parser.add_argument("--cluster", default="8x16-1g", choices=REFERENCE)
    asked = parser.parse_args()
    if not (asked.data / "wfinstances").is_dir():
        sys.exit(f"nothing to run: there is no folder {asked.data / 'wfinstances'} with traces (--data DIR)")
    cluster = REFERENCE[asked.cluster]
    for name in asked.only.split(","):
        each = [load(one, asked.data, cluster) for one in name.split("+")]
        workloads = [replace(workload, arrival_s=at * asked.apart) for at, workload in enumerate(each)]
        tasks = sum(len(workload.jobs) for workload in workloads)
        free = simulated(workloads, cluster, BOUNDLESS, "dag")
        took = f"{free.makespan_s:8.1f} s, {free.moved_bytes / 1e9:7.1f} GB moved, cpu {free.cpu_s:.1f} s"
        label = name if len(workloads) == 1 else f"{len(workloads)} in turn"
        print(f"{label:17} {free.most_bytes / 1e9:7.2f} GB a node without limit, {took}", flush=True)
        for share in map(int, asked.shares.split(",")):
            limit = max(free.most_bytes * share // 100, max(map(largest_task, workloads)) * 11 // 10)
            for eviction in ("lru", "dag"):
                run = simulated(workloads, cluster, limit, eviction)
                print(
                    f"  {share:3} % {limit / 1e9:7.2f} GB {eviction}: makespan {run.makespan_s / free.makespan_s:6.3f}"
                    f" moved {run.moved_bytes / max(1, free.moved_bytes):6.3f} dropped {run.dropped_bytes / 1e9:7.1f} GB"
                    f" again {run.again_bytes / 1e9:7.1f} GB tasks {run.tasks} of {tasks} cpu {run.cpu_s:.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
