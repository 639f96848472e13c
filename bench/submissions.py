"""Real workflows in each form in which clients submit them, every schedule judged by the referee.

    python bench/submissions.py [--data DIR] [--referee FILE] [--cluster 8x32-1g] [--only NAME,…] [--json FILE]

Instances and referee are those of bench/locality.py: its development set, and the five workflows that WOW's authors published.
Each runs as a document; with its runtimes times 100, and divided by 100; as a document without estimates, and task by task as
over TES: three runs of both, of which each knows what the earlier ones took; and one over TES under kube-like. WOW's five run
under WOW as well. Printed: makespans in seconds, their ratios, and the geometric means.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from locality import DEV, SHARED, WOW, judged, load, path_of

from bench.rivals import RIVALS
from bench.rivals import simulated as rival
from flowsched.simulation.clusters import REFERENCE, SimulatedCluster
from flowsched.simulation.policies import simulated
from flowsched.simulation.simulate import trace_header
from flowsched.simulation.workload import Workload, by_task, without_estimates
from flowsched.workflow.estimates import Estimates
from flowsched.workflow.learned_plan import LearnedPlan

NAMES = [*DEV, *(name for name in WOW if name != "rnaseq-real")]
#: Title -> the two makespans.
RATIOS = {
    "wrong ÷ document": ("wrong", "document"),
    "nothing": ("nothing 1", "document"),
    "nothing, third": ("nothing 3", "document"),
    "tes": ("tes 1", "document"),
    "tes, third": ("tes 3", "document"),
    "tes ÷ kube-like": ("tes 1", "kube-like"),
    "third": ("tes 3", "kube-like"),
    "nothing ÷ WOW": ("nothing 1", "wow"),
}


class Judge:
    """Simulates one instance on a cluster in several forms, and has each schedule judged."""

    def __init__(
        self, name: str, cluster: SimulatedCluster, options: argparse.Namespace, folder: Path
    ) -> None:
        self.source, self.cluster, self.options = path_of(name, options.data), cluster, options
        self.trace = folder / "trace.jsonl.gz"
        self.faults: list[str] = []

    def makespan(
        self,
        sent: Workload,
        policy: str = "flowsched",
        learned: Estimates | None = None,
        plan: LearnedPlan | None = None,
    ) -> float:
        """Seconds; NaN for a schedule that the referee refuses."""
        if policy in RIVALS:
            world = rival(policy, self.cluster, [sent])
        else:
            world = simulated(policy, self.cluster, [sent], estimates=learned, learned_plan=plan)
        with gzip.open(self.trace, "wt", compresslevel=1) as out:
            head = trace_header(self.cluster, [sent], policy, 1, "bench")
            out.writelines(json.dumps(line) + "\n" for line in [head, *world.lines])
        told = judged(self.trace, [self.source], self.options.cluster, self.options.referee)
        faults = [*world.unfinished, *told["faults"]]
        self.faults += faults
        return math.nan if faults else float(told["makespan_s"])


def measured(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The makespans of one instance."""
    cluster = REFERENCE[options.cluster]
    workload = load(name, options.data, cluster)
    judge, learned, plan, seen = (
        Judge(name, cluster, options, folder),
        Estimates(),
        LearnedPlan(),
        Estimates(),
    )
    wrong = [workload.with_expected(dict.fromkeys(workload.expected, by)) for by in (100, 0.01)]
    found = {
        "document": judge.makespan(workload),
        "wrong": max(map(judge.makespan, wrong)),
        **{f"nothing {run}": judge.makespan(without_estimates(workload), learned=seen) for run in (1, 2, 3)},
        **{
            f"tes {run}": judge.makespan(by_task(workload, run), learned=learned, plan=plan)
            for run in (1, 2, 3)
        },
        "kube-like": judge.makespan(by_task(workload, 1), "kube-like"),
        "wow": judge.makespan(workload, "wow") if name in WOW else math.nan,
    }
    return {"name": name, **found, "faults": judge.faults}


def main() -> int:
    """Measure what is asked for; 1 if the referee refused a trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--referee", type=Path, default=SHARED / "tools" / "referee.py")
    parser.add_argument("--cluster", default="8x32-1g")
    parser.add_argument("--only", default="", help="names of instances")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    only = options.only.split(",") if options.only else NAMES
    rows = []
    columns = ("document", "wrong", "nothing 1", "nothing 3", "tes 1", "tes 3", "kube-like", "wow")
    print(f"{'':17}" + "".join(f"{each:>11}" for each in columns) + "".join(f"{each:>17}" for each in RATIOS))
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            if name in only:
                row = measured(name, options, Path(folder))
                rows.append(row)
                seconds = "".join(f"{row[each]:11.1f}" for each in columns)
                ratios = "".join(f"{row[over] / row[under]:17.3f}" for over, under in RATIOS.values())
                print(f"{name:17}{seconds}{ratios}", *row["faults"][:2], flush=True)
    print(f"{'geometric mean':{17 + 11 * len(columns)}}", end="")
    for over, under in RATIOS.values():
        known = [row[over] / row[under] for row in rows if not math.isnan(row[under])]
        print(f"{math.exp(sum(map(math.log, known)) / max(1, len(known))):17.3f}", end="")
    print()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
