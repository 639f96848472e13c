"""Real workflows on the reference clusters under several policies, every schedule judged by the referee.

    python bench/locality.py [--data DIR] [--referee FILE] [--sets dev,wow,together] [--clusters 8x16-1g,…]
        [--policies kube-like,heft,wow,flowsched] [--only NAME,…] [--errors 0,30,100] [--seed 1] [--jobs 2]
        [--keep DIR] [--json FILE] [--validate]

DIR holds `wfinstances/` and `wow/`, FILE is the referee (default: `../shared/data` and `../shared/tools/referee.py`). Each
simulated schedule is written as a trace and given to the referee in a process of its own; a figure is printed only if the
referee accepts the trace. Printed: makespan ÷ bound, gigabytes moved and read from the shared storage, mean completion,
geometric means, and the goals with must and stretch. `--errors 30`: every category's expected compute time is off by a
factor between 1/1.3 and 1.3, drawn from the seed. `--validate`: how far the opponents are from the columns they should meet.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from locality_goals import print_goals, print_validation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.rivals import simulated
from flowsched.cli.simulate import wrong
from flowsched.simulation.clusters import REFERENCE, SimulatedCluster
from flowsched.simulation.simulate import trace_header
from flowsched.simulation.workload import Workload, from_trace
from flowsched.workflow.formats.wfformat import read_trace

SHARED = Path(__file__).resolve().parents[2] / "shared"
DEV = {
    "blast-small": "blast-chameleon-small-001.json",
    "blast-large": "blast-chameleon-large-001.json.gz",
    "srasearch-20a": "srasearch-chameleon-20a-001.json",
    "srasearch-50a": "srasearch-chameleon-50a-005.json",
    "1000genome-4ch": "1000genome-chameleon-4ch-250k-001.json.gz",
    "1000genome-22ch": "1000genome-chameleon-22ch-250k-001.json.gz",
    "epigenomics-1seq": "epigenomics-chameleon-ilmn-1seq-50k-001.json.gz",
    "epigenomics-6seq": "epigenomics-chameleon-hep-6seq-50k-001.json.gz",
    "soykb": "soykb-chameleon-30fastq-10ch-001.json.gz",
    "sarek": "sarek-dirt02-001.json",
    "mag": "mag-dirt02-001.json.gz",
    "smrnaseq": "smrnaseq-dirt02-001.json.gz",
}
WOW = {
    "all-in-one": "wow-allIntoOne.json.gz",
    "chain": "wow-chain.json.gz",
    "group": "wow-group.json.gz",
    "syn-bwa": "wow-synthetic-bwa.json.gz",
    "syn-genome": "wow-synthetic-genome.json.gz",
    "rnaseq-real": "wow-rnaseq-real.json.gz",
}
#: All of the first set but soykb, whose critical path is longer than all the rest together.
ELEVEN = "+".join(name for name in DEV if name != "soykb")
CLUSTERS = {
    "dev": ("8x16-1g", "8x16-10g"),
    "wow": ("8x32-1g", "8x32-1g-ceph", "8x32-10g"),
    "together": ("8x16-1g",),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation. `names`: joined by +, all start together."""

    cluster: str
    names: str
    policy: str
    error: int = 0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are on this machine."""

    data: Path
    referee: Path
    keep: Path


def path_of(name: str, data: Path) -> Path:
    """The file of an instance."""
    return data / "wfinstances" / DEV[name] if name in DEV else data / "wow" / WOW[name]


def load(name: str, data: Path, cluster: SimulatedCluster) -> Workload:
    """An instance as a workload."""
    path = path_of(name, data)
    raw = path.read_bytes()
    document = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return from_trace(read_trace(document), name, path.name, cluster, wow=name in WOW)


def measured(case: Case, places: Places) -> dict[str, Any]:
    """Simulate a case, write its trace, have it judged."""
    cluster = REFERENCE[case.cluster]
    names = case.names.split("+")
    workloads = [wrong(load(name, places.data, cluster), case.error, case.seed) for name in names]
    began = time.process_time()
    world = simulated(case.policy, cluster, workloads)
    cpu = time.process_time() - began
    if world.unfinished:
        return {"case": case, "cpu_s": round(cpu, 2), "faults": world.unfinished}
    label = names[0] if len(names) == 1 else f"{len(names)}-together"
    trace = places.keep / f"{case.cluster}-{label}-{case.policy}-{case.error}-{case.seed}.jsonl.gz"
    with gzip.open(trace, "wt", compresslevel=1) as out:
        head = trace_header(cluster, workloads, case.policy, case.seed, "bench")
        out.writelines(json.dumps(line) + "\n" for line in [head, *world.lines])
    told = judged(trace, [path_of(name, places.data) for name in names], case.cluster, places.referee)
    return {"case": case, "cpu_s": round(cpu, 2), **told}


def judged(trace: Path, workloads: Sequence[Path], cluster: str | None, referee: Path) -> dict[str, Any]:
    """What the referee says: its figures, and its faults. `cluster`: the reference it must have run on; None = of its own."""
    known = [] if cluster is None else ["--cluster", cluster]
    command = [sys.executable, str(referee), *known, str(trace), *map(str, workloads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {"faults": [*lines, done.stderr[-400:]]}
    return {**json.loads(lines[-1]), "faults": [line for line in lines[:-1] if done.returncode]}


# ---- what is printed ----


def print_case(row: dict[str, Any]) -> None:
    """One line for one simulation."""
    case: Case = row["case"]
    names = case.names if "+" not in case.names else f"{case.names.count('+') + 1} at once"
    head = f"{case.cluster:13} {names:17} {case.policy:13} {case.error:3} %"
    if row["faults"]:
        print(head, "REFUSED:", *row["faults"][:3], flush=True)
        return
    print(
        f"{head} ratio {row['ratio']:7.3f} makespan {row['makespan_s']:9.1f} s mean {row['mean_completion_s']:8.1f} s"
        f" moved {row['moved_bytes'] / 1e9:7.1f} GB storage {row['from_storage_bytes'] / 1e9:7.1f} GB cpu {row['cpu_s']:6.1f} s",
        flush=True,
    )


def print_table(rows: Sequence[dict[str, Any]], cluster: str, error: int, policies: Sequence[str]) -> None:
    """Makespan ÷ bound of the instances that ran alone, and their geometric means."""
    found = {
        (row["case"].names, row["case"].policy): row["ratio"]
        for row in rows
        if row["case"].cluster == cluster and row["case"].error == error and not row["faults"]
    }
    names = list(dict.fromkeys(name for name, _ in found if "+" not in name))
    if not names:
        return
    print(f"\nmakespan ÷ bound on {cluster}, estimates {error} % wrong")
    print(f"{'':17}" + "".join(f"{policy:>14}" for policy in policies))
    for name in names:
        cells = [found.get((name, policy)) for policy in policies]
        print(f"{name:17}" + "".join(f"{'-' if cell is None else format(cell, '.3f'):>14}" for cell in cells))
    means = []
    for policy in policies:
        ratios = [found[name, policy] for name in names if (name, policy) in found]
        whole = len(ratios) == len(names)
        means.append(format(math.exp(sum(map(math.log, ratios)) / len(ratios)), ".3f") if whole else "-")
    print(f"{'geometric mean':17}" + "".join(f"{mean:>14}" for mean in means))


def cases(options: argparse.Namespace) -> list[Case]:
    """What is asked for."""
    made = []
    only = options.only.split(",") if options.only else None
    for chosen in options.sets.split(","):
        names = {"dev": list(DEV), "wow": list(WOW), "together": [ELEVEN]}[chosen]
        clusters = options.clusters.split(",") if options.clusters else CLUSTERS[chosen]
        made += [
            Case(cluster, name, policy, int(error), options.seed)
            for cluster in clusters
            for error in options.errors.split(",")
            for name in names
            if only is None or name in only or (chosen == "together" and "together" in only)
            for policy in options.policies.split(",")
        ]
    return made


def main() -> int:
    """Run what is asked for; 1 if the referee refused a trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--referee", type=Path, default=SHARED / "tools" / "referee.py")
    parser.add_argument("--sets", default="dev,wow,together")
    parser.add_argument("--clusters", default="", help="instead of those of each set")
    parser.add_argument("--policies", default="kube-like,heft,wow,flowsched")
    parser.add_argument("--only", default="", help="names of instances")
    parser.add_argument("--errors", default="0", help="percent by which estimates are wrong, with commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the traces")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--validate", action="store_true", help="hold the opponents against their columns")
    options = parser.parse_args()
    for needed in (options.data, options.referee):
        if not needed.exists():
            print(
                f"{needed} is not there: this benchmark needs the reference traces (--data) and the referee (--referee)"
            )
            return 2
    with tempfile.TemporaryDirectory() as scratch:
        keep = options.keep or Path(scratch)
        keep.mkdir(parents=True, exist_ok=True)
        places = Places(options.data, options.referee, keep)
        rows = []
        with ProcessPoolExecutor(options.jobs) as pool:
            asked = cases(options)
            for row in pool.map(measured, asked, [places] * len(asked)):
                print_case(row)
                rows.append(row)
    policies = options.policies.split(",")
    for cluster, error in dict.fromkeys((case.cluster, case.error) for case in asked):
        print_table(rows, cluster, error, policies)
    print_goals(rows)
    if options.validate:
        print_validation(rows, options.data)
    if options.json:
        told = [
            {**{key: getattr(row["case"], key) for key in Case.__slots__}, **row, "case": None}
            for row in rows
        ]
        options.json.write_text(json.dumps(told, indent=1))
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
