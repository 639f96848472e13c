"""What the order between queues costs: 2,000 pods of 1,000 queues, nothing placed.

    python bench/shares.py [--queues N] [--pods N]

`turns` is what a cycle does: groups in order, shares, the tournament and each turn in it (`scheduling/queues/fair_share`).
`scan` is the same order found by looking at every queue anew for each turn, which is what the tournament saves. Both in one
process; CPU time (`time.process_time`), medians. The last line is what ordering costs when only one queue asks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.fair_share import FairShareOrder
from flowsched.scheduling.queues.ordering import in_order
from flowsched.scheduling.queues.tree import BILLION, Queue, QueueTree, Shares
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement

GIB = 1 << 30
OURS = PROFILES["flowsched"]
NOW = 3_000_000
SHAPE = Shape((1000, 2 * GIB, 0, 0, 0))


def cluster(queues: int, held: bool, past: bool) -> Snapshot:
    """A thousand nodes; every queue holds something, and has held it for a while."""
    snapshot, statement = Snapshot(), Statement()
    for at in range(1_000):
        snapshot.put_node(NodeInfo(f"n{at}", 128_000, 512 * GIB))
    snapshot.usage.begin(0, OURS.half_life_ms if past else 0)
    for at in range(queues if held else 0):
        amount = (1000 + at % 7 * 500, GIB)
        snapshot.claim(Claim(f"c{at}", at % 1_000, amount, ClaimKind.RUNNING, f"q{at}", 0, None), statement)
    snapshot.usage.begin(NOW, OURS.half_life_ms if past else 0)
    snapshot.usage.faded()  # once in a step of time, not in every cycle
    return snapshot


def groups(queues: int, users: int) -> list[PodGroup]:
    """Four bags of fifty tasks in every queue."""
    role = (RoleRequest("task", SHAPE, 50, 1),)
    return [
        PodGroup(
            at, f"g{at}", f"q{at % queues}", "w", 0, at, NOW - at % 9, False, role,
            user=f"u{at // queues % users}",
        )
        for at in range(4 * queues)
    ]  # fmt: skip


def ordering(snapshot: Snapshot, tree: QueueTree, backlog: list[PodGroup], pods: int) -> int:
    """All turns until so many pods have been given out."""
    shares = Shares(tree, snapshot)
    fair_share = FairShareOrder(in_order(backlog, tree, OURS, NOW), tree, shares, snapshot.usage, OURS, NOW)
    rounds = 0
    while pods > 0 and (user_queue := fair_share.first()) is not None:
        count = min(pods, fair_share.pods_until_behind(SHAPE.requests, 50))
        shares.add(user_queue.queue, SHAPE.requests, count, user_queue.head.user)
        fair_share.moved(user_queue, False, True, ())
        pods -= count
        rounds += 1
    return rounds


def scan(snapshot: Snapshot, tree: QueueTree, backlog: list[PodGroup], pods: int) -> int:
    """The plain way for a flat tree: every queue's share anew, for each pod."""
    shares, total = Shares(tree, snapshot), snapshot.total
    waiting = in_order(backlog, tree, OURS, NOW)
    for _ in range(pods):
        first = min(
            (
                max(have * BILLION // t for have, t in zip(shares.usage(name), total, strict=True) if t),
                name,
            )
            for name in waiting
        )
        shares.add(first[1], SHAPE.requests)
    return pods


def median_ms(action: Callable[[], object], repeats: int) -> float:
    """CPU time of an action."""
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        spent.append((time.process_time() - start) * 1000)
    return statistics.median(spent)


def main() -> None:
    """Print a line for each kind of tree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--pods", type=int, default=2_000)
    asked = parser.parse_args()
    queues, pods = asked.queues, asked.pods
    flat = QueueTree([Queue(f"q{at}", weight=1 + at % 3) for at in range(queues)])
    nested = QueueTree(
        [Queue(f"d{at}") for at in range(10)]
        + [Queue(f"q{at}", weight=1 + at % 3, parent=f"d{at % 10}") for at in range(queues)]
    )
    print(f"{queues} queues, {pods} pods, {4 * queues} groups: CPU ms")
    for name, tree, users, held, past in (
        ("flat, idle", QueueTree(), 1, False, False),
        ("flat, in use", flat, 1, True, False),
        ("flat, in use, with a past", flat, 1, True, True),
        ("ten departments, with a past", nested, 1, True, True),
        ("four users each, with a past", flat, 4, True, True),
    ):
        snapshot, backlog = cluster(queues, held, past), groups(queues, users)
        spent = median_ms(lambda: ordering(snapshot, tree, backlog, pods), 9)  # noqa: B023
        sort = median_ms(lambda: in_order(backlog, tree, OURS, NOW), 9)  # noqa: B023
        rounds = ordering(snapshot, tree, backlog, pods)
        print(f"  {name:30} turns {spent:7.2f} ({rounds} turns)  of it, groups in order {sort:6.2f}")
    snapshot, backlog = cluster(queues, True, False), groups(queues, 1)
    slow = median_ms(lambda: scan(snapshot, QueueTree(), backlog, pods), 1)
    quick = median_ms(lambda: ordering(snapshot, QueueTree(), backlog, pods), 9)
    print(f"  {'scan, flat, in use':30} scan  {slow:7.2f}  = {slow / quick:.0f} times `turns`")
    alone = groups(1, 1)
    print(
        f"  {'one queue asks':30} ordering {median_ms(lambda: ordering(snapshot, flat, alone, 1), 99):7.3f}"
    )


if __name__ == "__main__":
    main()
