"""What it costs to record a scheduling cycle, to read it, and to decide it again, beside the cycle itself.

    python -m bench.recording [--nodes 10000] [--pods 40000] [--groups 1000] [--repeats 3]

`draft` is what the scheduler waits for while it is recorded (plain values and copied arrays); `packed` runs in a thread
beside it. `cycle` is the same cycle in the same process. Times are CPU seconds, the least of the repeats.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import TypeVar

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.recording import plan_bytes, recorded, replayed, unpacked
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement

T = TypeVar("T")
GIB = 1 << 30


def least(repeats: int, work: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds, and the answer."""
    best, answer = float("inf"), work()
    for _ in range(repeats):
        begun = time.process_time()
        answer = work()
        best = min(best, time.process_time() - begun)
    return best, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("nodes", 10_000), ("pods", 40_000), ("groups", 1_000), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    snapshot, catalogue, statement = Snapshot(), Catalogue(), Statement()
    for at in range(given.nodes):
        labels = {"kubernetes.io/hostname": f"node-{at}", "zone": f"z{at % 3}"}
        snapshot.put_node(NodeInfo(f"node-{at}", 16_000, 64 * GIB, labels=labels, rack=f"r{at // 40}"))
    for at in range(given.pods):
        claim = Claim(
            f"pod-{at}", at % given.nodes, (3_000, GIB), ClaimKind.RUNNING, f"q{at % 9}", 0, 10_000 + at
        )
        snapshot.claim(claim, statement)
    statement.forget()
    groups = []
    for key in range(1, given.groups + 1):
        dataset = catalogue.intern(f"s3://lab/{key}", GIB, True)
        catalogue.add_replica(dataset, key % given.nodes)
        role = RoleRequest("task", Shape((2_000, GIB * (1 + key % 4))), 5, 1)
        groups.append(
            PodGroup(key, f"g{key}", f"q{key % 9}", "w", 0, key, 0, key % 10 == 0, (role,), (dataset,))
        )
    arguments = (snapshot, catalogue, QueueTree(), groups, PROFILES["flowsched"], 1_000, 2_000)
    gc.set_threshold(25_000, 4, 250)  # as the service does
    deciding, plan = least(given.repeats, lambda: cycle(*arguments))
    drafting, draft = least(given.repeats, lambda: recorded(plan, *arguments))
    packing, raw = least(given.repeats, draft.packed)
    reading, record = least(given.repeats, lambda: unpacked(raw))
    again, plan_again = least(1, lambda: plan_bytes(replayed(record)))
    print(f"{given.nodes} nodes, {given.pods} pods, {given.groups} groups: {len(raw) / 1e6:.2f} MB")
    for name, seconds in (
        ("cycle", deciding), ("draft", drafting), ("packed", packing), ("read", reading), ("replay", again),
    ):  # fmt: skip
        print(f"{name:>8} {seconds:8.3f} s   {seconds / deciding:6.2f} x cycle")
    print("the same plan, byte for byte:", plan_again == record.plan)


if __name__ == "__main__":
    main()
