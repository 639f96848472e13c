"""How fast a gang is placed, against pod by pod after kube-scheduler, and whether the choice is exact.

    python bench/placement.py [--json FILE] [--repeats 7] [--quick] [--nodes 100,1000,10000] [--gangs 1,8,64,512]

For each size of cluster and gang: the median time of one whole `cycle()` call (order, price, place, plan)
against the median time of placing the same gang pod by pod, sampled as kube-scheduler samples, in the same
process, by turns (`bench/kubelike.py`: `plugins` is built as the original, `inlined` is the least that could
be called so). Clusters are half full at random, in five sizes of node, in racks of 40; a tenth of the nodes
has a taint nobody tolerates; the gang reads a dataset of which 30 nodes (or a third) have a replica, so that
data decide. `cold` is the first cycle after a node has changed (masks are computed again), `cycle` any other.

`exact` is the share of random gangs of that size whose nodes are those of a greedy that scores every node
again after each pod (in NumPy here; the readable one is in tests/scheduling/test_oracle.py).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from kubelike import Inlined, Node, Plugins, PodSpec, nodes_to_find

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.placement.gang import NEVER, CostTable, place_role
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement

T = TypeVar("T")
GIB = 1 << 30
SIZES = ((16, 64), (32, 128), (64, 256), (96, 384), (128, 512))
CPU, MEMORY = 2000, 8 * GIB


def build(nodes: int, seed: int) -> tuple[Snapshot, Catalogue, int]:
    """A half-full cluster and a dataset with replicas."""
    rng = np.random.default_rng(seed)
    snapshot, catalogue, statement = Snapshot(), Catalogue(), Statement()
    taint = (("dedicated", "others", "NoSchedule"),)
    for at in range(nodes):
        cores, memory = SIZES[int(rng.integers(len(SIZES)))]
        info = NodeInfo(
            f"node-{at}",
            cores * 1000,
            memory * GIB,
            disk_bytes=1000 * GIB,
            labels={"zone": str(at % 3)},
            taints=taint if rng.random() < 0.1 else (),
            rack=f"rack-{at // 40}",
        )
        snapshot.put_node(info)
        used = int(rng.integers(0, cores + 1))
        amount = (used * 1000, used * int(rng.integers(2, 5)) * GIB)
        snapshot.claim(Claim(f"pod-{at}", at, amount, ClaimKind.RUNNING, "others", 0, 60_000), statement)
    dataset = catalogue.intern("s3://lab/reads", 2 * GIB, origin=True)
    for node in rng.choice(nodes, min(30, nodes // 3), replace=False).tolist():
        catalogue.add_replica(dataset, node)
    return snapshot, catalogue, dataset


def gang(count: int, dataset: int) -> PodGroup:
    """`count` pods of 2 cores and 8 GiB that read the dataset."""
    roles = (RoleRequest("worker", Shape((CPU, MEMORY, 0, 0, 0)), count, count),)
    return PodGroup(1, "bench", "default", "w", 0, 0, 0, True, roles, (dataset,), 60_000)


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """Wall-clock ms of one call and its result, the collector held off."""
    gc.disable()
    try:
        start = time.perf_counter()
        result = action()
        return (time.perf_counter() - start) * 1000, result
    finally:
        gc.enable()


def opponents(snapshot: Snapshot, catalogue: Catalogue, dataset: int) -> tuple[Inlined, Plugins]:
    """The same cluster for the two pod-by-pod schedulers."""
    cpu, memory = snapshot.allocatable[:, 0].tolist(), snapshot.allocatable[:, 1].tolist()
    used_cpu, used_memory = snapshot.used[:, 0].tolist(), snapshot.used[:, 1].tolist()
    holders = catalogue.nodes_of(dataset)
    nodes = [
        Node(
            *row, True, snapshot.labels[at], snapshot.taints[at], {"reads": 2 * GIB} if at in holders else {}
        )
        for at, row in enumerate(zip(cpu, memory, used_cpu, used_memory, strict=True))
    ]
    return Inlined(cpu, memory, used_cpu, used_memory), Plugins(nodes)


def measure(nodes: int, count: int, repeats: int) -> dict[str, object]:
    """One line of the table: everything by turns, medians."""
    snapshot, catalogue, dataset = build(nodes, seed=nodes)
    queues, profile, backlog = QueueTree(), PROFILES["flowsched"], [gang(count, dataset)]
    inlined, plugins = opponents(snapshot, catalogue, dataset)
    allowed = [not taints for taints in snapshot.taints]
    pod = PodSpec(CPU, MEMORY, data=("reads",))

    def ours() -> Plan:
        return cycle(snapshot, catalogue, queues, backlog, profile, 0)

    plan = ours()
    warm, cold, tight, chain = [], [], [], []
    for _ in range(repeats):
        warm.append(timed(ours)[0])
        spent, placed = timed(lambda: inlined.place_gang(count, CPU, MEMORY, allowed))
        inlined.give_back(placed or [], CPU, MEMORY)
        tight.append(spent)
        spent, placed = timed(lambda: plugins.place_gang(count, pod))
        plugins.give_back(placed or [], pod)
        chain.append(spent)
        snapshot.cache.clear()
        cold.append(timed(ours)[0])
    cycle_ms, plugins_ms, inlined_ms = (statistics.median(times) for times in (warm, chain, tight))
    return {
        "nodes": nodes,
        "gang": count,
        "placed": len(plan.placements) == 1,
        "kube_like_placed": placed is not None,
        "sampled_nodes": nodes_to_find(nodes),
        "plugins_ms": round(plugins_ms, 3),
        "inlined_ms": round(inlined_ms, 3),
        "cycle_ms": round(cycle_ms, 3),
        "cycle_cold_ms": round(statistics.median(cold), 3),
        "ratio_plugins": round(plugins_ms / cycle_ms, 1),
        "ratio_inlined": round(inlined_ms / cycle_ms, 1),
    }


def greedy(room: np.ndarray, whole: np.ndarray, needs: list[int], table: CostTable) -> list[int]:
    """Pod after pod, every node scored again each time (binpack); room and whole are (A, N)."""
    room, here, chosen = room.copy(), np.zeros(room.shape[1], dtype=np.int64), []
    column = np.array(needs)[:, None]
    for _ in range(table.count):
        fits = (room >= column).all(axis=0) & table.allowed
        if not fits.any():
            break
        cost = ((room - column) * 1000 // np.maximum(whole, 1)).sum(axis=0) // len(needs)
        cost += table.each + np.where(here == 0, table.first, 0) + table.step * here
        node = int(np.argmin(np.where(fits, cost, NEVER)))
        room[:, node] -= column[:, 0]
        here[node] += 1
        chosen.append(node)
    return chosen


def identical(nodes: int, count: int, samples: int) -> tuple[int, int]:
    """How many random gangs of how many are placed exactly as the greedy places them."""
    same = 0
    for sample in range(samples):
        rng = np.random.default_rng([nodes, count, sample])
        whole = rng.choice([16, 32, 64], (2, nodes))
        room = whole - rng.integers(0, 40, (2, nodes))
        table = CostTable(
            needs=(2, 1),
            packs=(True, True),
            allowed=rng.random(nodes) < 0.9,
            count=count,
            minimum=count,
            each=rng.choice([0, 0, 40], nodes),
            first=rng.choice([0, 900, 20_000], nodes),
            step=rng.choice([0, 0, 300], nodes),
        )
        chosen = place_role(list(room), list(whole), table, count, "binpack", NEVER)
        same += chosen.nodes.tolist() == greedy(room, whole, [2, 1], table)
    return same, samples


def line(row: dict[str, object]) -> str:
    """One row for people."""
    names = ("nodes", "gang", "plugins_ms", "inlined_ms", "cycle_ms", "cycle_cold_ms")
    numbers = " ".join(f"{row[name]!s:>10}" for name in names)
    note = "" if row["placed"] else "  (had better wait, or does not fit)"
    ratios = f"{row['ratio_plugins']!s:>7}x {row['ratio_inlined']!s:>7}x"
    return f"{numbers} {ratios}  {row['exact']}/{row['exact_of']}{note}"


def numbers(text: str) -> list[int]:
    """Whole numbers, by commas."""
    return [int(each) for each in text.split(",")]


def main() -> None:
    """Print the table, and JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write the figures to this file ('-' = standard output)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="100 and 1,000 nodes only, few samples")
    parser.add_argument("--nodes", type=numbers, help="sizes of clusters, by commas")
    parser.add_argument("--gangs", type=numbers, default=[1, 8, 64, 512], help="pods, by commas")
    options = parser.parse_args()
    heads = ("nodes", "gang", "plugins", "inlined", "cycle", "cold")
    print(" ".join(f"{head:>10}" for head in heads), "  ÷ plugins ÷ inlined  exact    (times in ms)")
    rows = []
    for nodes in options.nodes or ([100, 1_000] if options.quick else [100, 1_000, 10_000]):
        for count in options.gangs:
            row = measure(nodes, count, options.repeats)
            samples = 5 if options.quick or nodes == 10_000 else 40
            row["exact"], row["exact_of"] = identical(nodes, count, samples)
            rows.append(row)
            print(line(row), flush=True)
    if options.json:
        text = json.dumps({"repeats": options.repeats, "rows": rows}, indent=1)
        if options.json == "-":
            print(text)
        else:
            Path(options.json).write_text(text + "\n", encoding="utf-8")
    if any(row["exact"] != row["exact_of"] for row in rows):
        sys.exit("placement is not the greedy's")


if __name__ == "__main__":
    main()
