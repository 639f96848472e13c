"""What taking back costs: one cycle in which a gang of higher priority finds no room, on a full cluster.

    python bench/taking.py [--json FILE] [--repeats 5] [--quick]

Every node runs ten single pods of one to four cores, in three priorities, begun at random moments. For each size of cluster and
gang, the median CPU time of one whole `cycle()`:

- `equal`: the gang's priority is the lowest there is: nothing may be taken, which must cost nothing;
- `takes`: it is higher, so victims are sorted, chosen by bisection and thinned out until none is left over;
- `in vain`: it is higher, but asks for more than the cluster has less one node: all victims are tried, nobody is touched.

`victims` is how many go, `÷ equal` what taking costs beside the cycle that gives up.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement

GIB = 1 << 30
NOW = 10_000_000
PODS = 10


def build(nodes: int, seed: int) -> Snapshot:
    """A full cluster of single pods."""
    rng = np.random.default_rng(seed)
    snapshot, statement = Snapshot(), Statement()
    cores = rng.integers(1, 5, (nodes, PODS))
    ages = rng.integers(1, NOW, (nodes, PODS))
    priorities = rng.integers(0, 3, (nodes, PODS))
    for at in range(nodes):
        snapshot.put_node(NodeInfo(f"node-{at}", int(cores[at].sum()) * 1000, 256 * GIB, rack=f"r{at // 40}"))
        for pod in range(PODS):
            begun = NOW - int(ages[at, pod])
            claim = Claim(
                f"pod-{at}-{pod}", at, (int(cores[at, pod]) * 1000, GIB), ClaimKind.RUNNING, "default", begun, None,
                unit=f"pod-{at}-{pod}", priority=int(priorities[at, pod]), qos=pod % 3, started_ms=begun,
            )  # fmt: skip
            snapshot.claim(claim, statement)
    return snapshot


def gang(count: int, priority: int, cores: int = 4) -> PodGroup:
    """`count` pods of four cores."""
    roles = (RoleRequest("worker", Shape((cores * 1000, GIB, 0, 0, 0)), count, count),)
    return PodGroup(1, "bench", "default", "w", priority, 0, 0, True, roles, (), 60_000)


def timed(snapshot: Snapshot, group: PodGroup, repeats: int) -> tuple[float, Plan]:
    """Median ms of a cycle, and its plan."""
    catalogue, queues, profile = Catalogue(), QueueTree(), PROFILES["flowsched"]
    times = []
    gc.disable()
    for _ in range(repeats + 1):
        begun = time.process_time()
        plan = cycle(snapshot, catalogue, queues, [group], profile, NOW)
        times.append((time.process_time() - begun) * 1000)
    gc.enable()
    return statistics.median(times[1:]), plan


def main() -> None:
    """Print a table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write the figures to this file ('-' = standard output)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="100 and 1,000 nodes only")
    options = parser.parse_args()
    rows = []
    print(
        f"{'nodes':>8} {'pods':>8} {'gang':>6} {'equal':>9} {'takes':>9} {'in vain':>9} {'victims':>8} {'÷ equal':>8}   (ms)"
    )
    for nodes in (100, 1_000) if options.quick else (100, 1_000, 10_000):
        snapshot = build(nodes, 7)
        for count in (8, 64, 512):
            if count > nodes * 4:
                continue
            equal, none = timed(snapshot, gang(count, 0), options.repeats)
            takes, plan = timed(snapshot, gang(count, 5), options.repeats)
            vain, nobody = timed(snapshot, gang(nodes * PODS, 2), options.repeats)
            assert (none.evictions, nobody.evictions, len(plan.nominations)) == ((), (), 1)
            row = {
                "nodes": nodes, "pods": nodes * PODS, "gang": count, "equal_ms": round(equal, 3),
                "takes_ms": round(takes, 3), "vain_ms": round(vain, 3), "victims": len(plan.evictions),
                "ratio": round(takes / equal, 1),
            }  # fmt: skip
            rows.append(row)
            print(
                f"{nodes:>8} {nodes * PODS:>8} {count:>6} {equal:>9.2f} {takes:>9.2f} {vain:>9.2f} "
                f"{len(plan.evictions):>8} {takes / equal:>7.1f}x"
            )
    if options.json:
        text = json.dumps(rows, indent=1)
        print(text) if options.json == "-" else Path(options.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
