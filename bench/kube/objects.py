"""Objects of a store on two real nodes: a pipeline and a reference by py-tes, under `flowsched` and under `kube-like`.

    python bench/kube/objects.py [--chains 8] [--mb 200] [--readers 100] [--reference-mb 400] [--rate 10M] [--times 1] [--quick]

Two real nodes on this machine (`make kube-node`, `make images`, `make clients`; Linux, root), flowsched as its chart installs it,
and an S3 server of this machine. Each chain is align (writes so many MB) → sort (reads them, writes as many) → merge (reads these);
the client sends a task once the one before it is COMPLETE. Then, under `flowsched` alone, the readers each read the reference.

`--rate` is what the agent of a node may bring in a second, from the store or from the other node: on two cores each node has one,
and 1 Gbit/s for 16 cores is 8 MB/s for each. Uploads have no such limit. A small pipeline before the first turn warms the nodes.

It fails if, under `flowsched`, consumers download again what the pipeline wrote, less than 80 % of them run where most of their
bytes are, or the reference is downloaded more than once a node. The ratio of makespans is a median over `--times`, in turns; it
must be 0.75 at most where this machine does nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from flowsched.values import replace  # noqa: E402
from tests.clients.environments import environment  # noqa: E402
from tests.kubernetes.nodes.cluster import NODES, RealCluster  # noqa: E402
from tests.kubernetes.nodes.installed import CHART, Installation  # noqa: E402
from tests.kubernetes.nodes.objects import Pipeline, Result, run_pipeline  # noqa: E402
from tests.postgres import Server  # noqa: E402

POLICIES: Final = ("flowsched", "kube-like")
AT_HOME: Final = 0.8
RATIO: Final = 0.75


def faults(found: Result, size: Pipeline) -> list[str]:
    """The goals that a run under `flowsched` has missed."""
    most = NODES * size.reference_mb << 20
    return [
        fault
        for fault, missed in (
            (f"consumers downloaded {found.again_bytes:,} bytes again", found.again_bytes > 0),
            (f"{found.at_home:.0%} of consumers ran where their bytes are", found.at_home < AT_HOME),
            (
                f"the reference was downloaded for {found.reference_bytes:,} bytes",
                found.reference_bytes > most,
            ),
        )
        if missed
    ]


def measure(installed: Installation, size: Pipeline, times: int, more: dict[str, str]) -> int:
    """Run the pipeline under both policies, in turns; returns the exit code."""
    python = environment("py-tes-1.1") / "bin" / "python"
    spans: dict[str, list[float]] = defaultdict(list)
    missed: list[str] = []
    run_pipeline(installed, python, Pipeline(NODES, 1, 0, 0), "warm")
    for turn in range(times):
        for policy in POLICIES[:: -1 if turn % 2 else 1]:
            options = installed.values(**more, **{"scheduler.policy": policy})
            installed.helm("upgrade", "flowsched", str(CHART), *options)
            installed.ready()
            asked = size if policy == "flowsched" else replace(size, readers=0)
            found = run_pipeline(installed, python, asked, f"{policy}-{turn}")
            spans[policy].append(found.makespan_s)
            print(
                f"{policy}: chains {found.makespan_s:.1f} s; at home {found.at_home:.0%}; downloaded again "
                f"{found.again_bytes:,} bytes; reference {found.reference_bytes:,} bytes",
                flush=True,
            )
            missed += faults(found, size) if policy == "flowsched" else []
    ours, theirs = (statistics.median(spans[policy]) for policy in POLICIES)
    print(f"makespan {ours:.1f} s ÷ kube-like {theirs:.1f} s = {ours / theirs:.2f} (aim {RATIO})")
    for each in missed:
        print(f"MISSED: {each}")
    return 1 if missed else 0


def main() -> int:
    """Read the options, build the cluster, measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--reference-mb", type=int, default=400)
    parser.add_argument("--rate", default="10M")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two chains of 20 MB and four readers of 20 MB")
    given = parser.parse_args()
    size = Pipeline(given.chains, given.mb, given.readers, given.reference_mb)
    if given.quick:
        size = Pipeline(2, 20, 4, 20)
    more = {"agent.cache.size": "20Gi", "agent.rates.network": given.rate}
    with RealCluster() as cluster:
        database = Server(address=cluster.network.address)
        try:
            database.start()
            installed = Installation(cluster, database)
            installed.install()
            return measure(installed, size, given.times, more)
        finally:
            database.remove()


if __name__ == "__main__":
    sys.exit(main())
