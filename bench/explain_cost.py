"""What explaining costs a large cluster, beside the cycle that it explains. CPU seconds, medians.

    python bench/explain_cost.py [--nodes 10000] [--groups 1000]

Nodes of 16 cores with four pods each, none of which leaves room for the gangs that wait. `room`, on the loop, and `split`, in
a thread: why what is idle now is idle; made for `explain --cluster` and for each scrape of the metrics. `copy`: how long the
loop stands still when a client asks. `outlook`: what binds and three suggestions, in a thread of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.idle import idle_room, split
from flowsched.scheduling.explain.remedies import OTHERS, Situation, outlook
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement

T = TypeVar("T")
GIB = 1 << 30
NOW = 1_000


def cluster(nodes: int) -> Snapshot:
    """Nodes with 2 cores and 16 GiB left on each."""
    snapshot = Snapshot()
    for at in range(nodes):
        labels = {"host": f"n{at}"}
        snapshot.put_node(NodeInfo(f"n{at}", 16_000, 64 * GIB, rack=f"r{at // 40}", labels=labels))
    for at in range(4 * nodes):
        amount = (3_500, 12 * GIB)
        statement = Statement()
        snapshot.claim(
            Claim(f"c{at}", at // 4, amount, ClaimKind.RUNNING, "q", 0, 10_000_000 + 10 * at), statement
        )
        statement.forget()
    return snapshot


def gang(key: int) -> PodGroup:
    """Members of 4 cores: there are pieces of 2."""
    count = 8 + key % 7
    role = RoleRequest("worker", Shape((4_000, (2 + key % 40) * GIB, 0, 0, 0)), count, count)
    return PodGroup(key, f"g{key}", f"q{key % 20}", f"w{key}", 0, 0, 0, True, (role,), runtime_ms=3_600_000)


def timed(what: Callable[[], T], repeats: int) -> tuple[float, T]:
    """Median CPU seconds, and what came of it."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        made = what()
        times.append(time.process_time() - begin)
    return statistics.median(times), made


def main() -> None:
    """Print a table."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--nodes", type=int, default=10_000)
    options.add_argument("--groups", type=int, default=1_000)
    given = options.parse_args()
    snapshot, catalogue, queues, profile = (
        cluster(given.nodes),
        Catalogue(),
        QueueTree(),
        PROFILES["flowsched"],
    )
    groups = [gang(key + 1) for key in range(given.groups)]
    base, plan = timed(lambda: cycle(snapshot, catalogue, queues, groups, profile, NOW), 3)
    known = {group.key: group for group in groups}
    waiting = [(known[reason.group], reason) for reason in plan.reasons]
    asked = Situation(snapshot, catalogue, queues, groups[-1], tuple(groups[:OTHERS]), profile, NOW)
    collecting, room = timed(lambda: idle_room(snapshot, waiting, profile, {}), 7)
    splitting, _ = timed(lambda: split(room), 7)
    copying, private = timed(asked.copy, 7)
    looking, _ = timed(lambda: outlook(private), 1)
    print(f"{given.nodes} nodes, {4 * given.nodes} pods, {len(waiting)} groups that wait")
    for name, seconds in (
        ("cycle", base),
        ("room", collecting),
        ("split", splitting),
        ("copy", copying),
        ("outlook", looking),
    ):
        print(f"{name:8}{1000 * seconds:9.1f} ms{seconds / base:8.2f} of the cycle")


if __name__ == "__main__":
    main()
