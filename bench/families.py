"""Workflows nobody tuned for: families that WfCommons generates, under the rivals and flowsched, judged by the referee.

    pip install wfcommons
    python bench/families.py [--referee FILE] [--clusters 8x32-1g,8x32-1g-ceph,8x32-10g] [--seeds 2,5]
        [--policies heft,wow,flowsched] [--only montage,…] [--natural] [--jobs 2]

WfCommons draws synthetic instances from recipes of real ones (structure, sizes, runtimes). As in WOW's evaluation each has some 200
tasks, and its files are scaled until 20 GB come from outside and 150 GB are generated; tasks take 12 s in the mean. Beside them two
patterns of that evaluation: a fork (one writes 1 GB, a hundred read it and write as much) and groups (80 write, 16 read five each,
64 read two). `--natural`: files and runtimes as they were drawn, on nodes of 16 cores; most of these are bound by computing.
Printed: makespans, their ratio to `wow` and to the best of the others, and geometric means; a trace that the referee refuses is an
error.

Source: T. Coleman et al., WfCommons (Future Generation Computer Systems 128, 2022); F. Lehmann et al., WOW (CCGrid 2025).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.rivals import simulated
from flowsched.values import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from locality import SHARED, judged

from flowsched.simulation.clusters import REFERENCE, SimulatedCluster
from flowsched.simulation.simulate import trace_header
from flowsched.simulation.workload import from_trace
from flowsched.workflow.formats.wfformat import read_trace

TASKS = 200
MEAN_S = 12.0
#: GB from outside and GB generated, as WOW scaled those of its synthetic workflows (the last two are ours).
SCALES = {
    "blast": (21.859, 151.032),
    "cycles": (20.442, 157.893),
    "montage": (19.785, 168.804),
    "seismology": (20.654, 150.698),
    "soykb": (22.271, 159.975),
    "srasearch": (20.0, 150.0),
    "epigenomics": (20.0, 150.0),
}
PATTERNS = ("fork", "groups")
#: Drawn as they are.
NATURAL = ("blast", "bwa", "cycles", "epigenomics", "genome", "montage", "seismology", "soykb", "srasearch")
Task = tuple[tuple[str, ...], Mapping[str, int], float]


def uneven() -> dict[str, SimulatedCluster]:
    """Clusters that are no reference, where it matters which of disk and link is the slower, and on which node.

    `-hdd`: disks of 150 MB/s. `-unequal`: two of the nodes have a quarter of the others' link; `-mixed`: two have a quarter of the
    others' disk.
    """
    made = {}
    for name in ("8x16-1g", "8x16-10g", "8x32-1g", "8x32-10g"):
        whole = replace(REFERENCE[name], reference=None)
        few, rest = whole.nodes[-2:], whole.nodes[:-2]
        links = [replace(node, nic_in=node.nic_in // 4, nic_out=node.nic_out // 4) for node in few]
        disks = [replace(node, disk=node.disk // 4) for node in few]
        slow = [replace(node, disk=150_000_000) for node in whole.nodes]
        made[f"{name}-hdd"] = replace(whole, nodes=tuple(slow))
        made[f"{name}-unequal"] = replace(whole, nodes=(*rest, *links))
        made[f"{name}-mixed"] = replace(whole, nodes=(*rest, *disks))
    return made


CLUSTERS = {**REFERENCE, **uneven()}


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation."""

    cluster: str
    name: str
    policy: str
    path: Path
    referee: Path
    wow: bool = True


def drawn(name: str, seed: int, folder: Path) -> Path:
    """An instance of a family."""
    from wfcommons import WorkflowGenerator
    from wfcommons.wfchef import recipes

    random.seed(seed)
    np.random.seed(seed)
    recipe = getattr(recipes, f"{name.capitalize()}Recipe")
    path = folder / f"{name}-{seed}.json"
    WorkflowGenerator(recipe.from_num_tasks(TASKS)).build_workflow().write_json(path)
    return path


def generated(name: str, seed: int, folder: Path) -> Path:
    """An instance of a family, scaled."""
    document = json.loads(drawn(name, seed, folder).read_bytes())
    told, ran = document["workflow"]["specification"], document["workflow"]["execution"]["tasks"]
    made = {file for task in told["tasks"] for file in task["outputFiles"]}
    for inside, gigabytes in zip((False, True), SCALES[name], strict=True):
        files = [file for file in told["files"] if (file["id"] in made) == inside]
        whole = sum(file["sizeInBytes"] for file in files) or 1
        for file in files:
            file["sizeInBytes"] = int(file["sizeInBytes"] * gigabytes * 1e9 / whole)
    mean = sum(task["runtimeInSeconds"] for task in ran) / len(ran)
    memory = np.random.default_rng(seed)
    for task in ran:
        task["runtimeInSeconds"] *= MEAN_S / mean
        task |= {"avgCPU": 100.0, "coreCount": 1, "memoryInBytes": int(memory.uniform(1.5e9, 6e9))}
    path = folder / f"wow-{name}-{seed}.json"
    path.write_text(json.dumps(document))
    return path


def pattern(name: str, seed: int, folder: Path) -> Path:
    """A pattern, with sizes drawn from the seed."""
    rng = np.random.default_rng(seed)

    def size(least: float, most: float) -> int:
        return int(rng.uniform(least, most) * 1e9)

    tasks: dict[str, Task] = {}
    if name == "fork":
        tasks["first_0"] = ((), {"first": size(0.9, 1.0)}, 1.0)
        for at in range(100):
            tasks[f"use_{at}"] = (("first",), {f"use{at}": size(0.8, 1.1)}, 1.0)
    else:
        for at in range(80):
            tasks[f"write_{at}"] = ((), {f"a{at}": size(1.2, 1.8)}, 1.0)
        for group in range(16):
            five = tuple(f"a{at}" for at in range(5 * group, 5 * group + 5))
            tasks[f"gather_{group}"] = (five, {f"g{group}": size(3, 6)}, 1.0)
            for at in range(4):
                read = (f"g{group}", f"a{5 * group + at}")
                tasks[f"read_{4 * group + at}"] = (read, {f"h{4 * group + at}": size(0.5, 1.5)}, 1.0)
    path = folder / f"wow-{name}-{seed}.json"
    path.write_text(json.dumps(wfformat(name, tasks)))
    return path


def wfformat(name: str, tasks: Mapping[str, Task]) -> dict[str, Any]:
    """Tasks (what they read, what they write, seconds) as WfFormat 1.5."""
    made = {file: task for task, (_, wrote, _) in tasks.items() for file in wrote}
    parents = {task: sorted({made[file] for file in read}) for task, (read, _, _) in tasks.items()}
    children: dict[str, list[str]] = {task: [] for task in tasks}
    for task, before in parents.items():
        for parent in before:
            children[parent].append(task)
    told = [
        {"name": task, "id": task, "parents": parents[task], "children": children[task],
         "inputFiles": list(read), "outputFiles": list(wrote)}
        for task, (read, wrote, _) in tasks.items()
    ]  # fmt: skip
    ran = [
        {"id": task, "runtimeInSeconds": seconds, "coreCount": 1, "avgCPU": 100.0, "memoryInBytes": 2_000_000_000}
        for task, (_, _, seconds) in tasks.items()
    ]  # fmt: skip
    files = [
        {"id": file, "sizeInBytes": size} for _, wrote, _ in tasks.values() for file, size in wrote.items()
    ]
    execution = {"makespanInSeconds": 1, "executedAt": "", "tasks": ran, "machines": []}
    return {
        "name": name, "schemaVersion": "1.5",
        "workflow": {"specification": {"tasks": told, "files": files}, "execution": execution},
    }  # fmt: skip


def measured(case: Case) -> dict[str, Any]:
    """Simulate a case, write its trace, have it judged."""
    cluster = CLUSTERS[case.cluster]
    workload = from_trace(
        read_trace(case.path.read_bytes()), case.name, case.path.name, cluster, wow=case.wow
    )
    began = time.process_time()
    world = simulated(case.policy, cluster, [workload])
    cpu = time.process_time() - began
    if world.unfinished:
        return {"case": case, "cpu_s": cpu, "faults": world.unfinished}
    trace = case.path.with_suffix(f".{case.cluster}.{case.policy}.jsonl")
    with trace.open("w") as out:
        head = trace_header(cluster, [workload], case.policy, 1, "bench")
        out.writelines(json.dumps(line) + "\n" for line in [head, *world.lines])
    told = judged(trace, [case.path], cluster.reference, case.referee)
    trace.unlink()
    return {"case": case, "cpu_s": cpu, **told}


def print_rows(rows: Sequence[dict[str, Any]], policies: Sequence[str]) -> None:
    """By cluster: makespans in s, flowsched ÷ wow and ÷ the best of the others, and geometric means and worst of these."""
    found = {(row["case"].cluster, row["case"].name, row["case"].policy): row for row in rows}
    others = [policy for policy in policies if policy != "flowsched"]
    rivals = ([["wow"]] if "wow" in others else []) + ([others] if others else [])
    for cluster in dict.fromkeys(row["case"].cluster for row in rows):
        heads = "".join(f"{'÷ wow' if rival == ['wow'] else '÷ best':>12}" for rival in rivals)
        print(f"\n{cluster:24}" + "".join(f"{policy:>12}" for policy in policies) + heads)
        ratios: list[list[float]] = [[] for _ in rivals]
        for name in dict.fromkeys(row["case"].name for row in rows):
            spans = {policy: found[cluster, name, policy].get("makespan_s", math.nan) for policy in policies}
            for column, rival in zip(ratios, rivals, strict=True):
                column.append(spans.get("flowsched", math.nan) / min(spans[each] for each in rival))
            cells = [f"{span:12.0f}" for span in spans.values()] + [
                f"{column[-1]:12.2f}" for column in ratios
            ]
            print(f"{name:24}" + "".join(cells))
        means = [math.exp(sum(map(math.log, column)) / len(column)) for column in ratios]
        for label, values in (("geometric mean", means), ("worst", [max(column) for column in ratios])):
            print(f"{label:24}{'':{12 * len(policies)}}" + "".join(f"{value:12.2f}" for value in values))


def main() -> int:
    """Run what is asked for; 1 if the referee refused a trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--referee", type=Path, default=SHARED / "tools" / "referee.py")
    parser.add_argument("--clusters", default="")
    parser.add_argument("--seeds", default="2,5")
    parser.add_argument("--policies", default="heft,wow,flowsched")
    parser.add_argument("--only", default="", help="families and patterns")
    parser.add_argument("--natural", action="store_true", help="as they were drawn, on 8x16-1g and 8x16-10g")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if not options.referee.exists():
        print(f"{options.referee} is not there: this benchmark needs the referee (--referee)")
        return 2
    try:
        import wfcommons  # noqa: F401
    except ImportError:
        print(
            "wfcommons is not installed: this benchmark draws its workflows with it (pip install wfcommons)"
        )
        return 2
    policies, only = options.policies.split(","), set(filter(None, options.only.split(",")))
    made = dict.fromkeys(NATURAL, drawn) if options.natural else dict.fromkeys(SCALES, generated)
    made |= {} if options.natural else dict.fromkeys(PATTERNS, pattern)
    usual = "8x16-1g,8x16-10g" if options.natural else "8x32-1g,8x32-1g-ceph,8x32-10g"
    with tempfile.TemporaryDirectory() as scratch:
        paths = {
            f"{name}-{seed}": make(name, int(seed), Path(scratch))
            for seed in options.seeds.split(",")
            for name, make in made.items()
            if not only or name in only
        }
        asked = [
            Case(cluster, name, policy, path, options.referee, not options.natural)
            for cluster in (options.clusters or usual).split(",")
            for name, path in paths.items()
            for policy in policies
        ]
        with ProcessPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(measured, asked))
    print_rows(rows, policies)
    refused = [row for row in rows if row["faults"]]
    for row in refused:
        print("REFUSED:", row["case"].cluster, row["case"].name, row["case"].policy, *row["faults"][:3])
    print(f"{len(rows) - len(refused)} of {len(rows)} traces accepted")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
