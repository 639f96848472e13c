"""CPU of decisions as workflows grow: the rounds of a full cluster, and how many groups they look at.

    python bench/rounds.py [--shape epi,wide,fan] [--tasks 810,2830,10000] [--cluster 8x32-1g] [--repeat 2] [--nothing]
        [--save FOLDER]

`epi`: lanes of chains of four tasks, as in Epigenomics, that a task splits and a task merges. `wide`: a task for each of many
inputs from outside, one more for each of their outputs, and one that reads all. `fan`: chains of three after a common parent, on
tasks of a few seconds. Runtimes and sizes are drawn. Printed, for each size: CPU in seconds (the least of the repeats) and per
task, rounds, groups that rounds looked at ÷ placements, seconds of the longest round, the makespan in seconds, and the exponent
of the CPU between the smallest and the largest size.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.families import Task, wfformat
from flowsched.engine import admission
from flowsched.scheduling.plan import Plan
from flowsched.simulation.clusters import REFERENCE
from flowsched.simulation.policies import simulated
from flowsched.simulation.workload import Workload, from_trace, without_estimates
from flowsched.workflow.formats.wfformat import read_trace

MB = 1_000_000


def epi(count: int, rng: random.Random) -> dict[str, Task]:
    """Lanes of some 400 tasks each, at least two."""
    lanes = max(2, round(count / 400))
    width = max(1, round((count - 2 * lanes - 3) / (4 * lanes)))
    tasks: dict[str, Task] = {}
    for lane in range(lanes):
        parts = {f"part_{lane}_{at}": rng.randint(2, 6) * MB for at in range(width)}
        tasks[f"split_{lane}"] = ((), parts, rng.uniform(20, 40))
        for at in range(width):
            step, file = (
                (("filter", 4.0), ("convert", 1.0), ("pack", 2.0), ("map", 150.0)),
                f"part_{lane}_{at}",
            )
            for kind, mean in step:
                wrote = f"{kind}_{lane}_{at}"
                tasks[wrote] = ((file,), {wrote: rng.randint(1, 5) * MB}, mean * rng.uniform(0.5, 1.5))
                file = wrote
        maps = tuple(f"map_{lane}_{at}" for at in range(width))
        tasks[f"merge_{lane}"] = (maps, {f"merge_{lane}": 50 * MB}, rng.uniform(10, 20))
    tasks["all_0"] = (tuple(f"merge_{lane}" for lane in range(lanes)), {"all": 300 * MB}, 40.0)
    tasks["index_0"] = (("all",), {"index": 100 * MB}, 40.0)
    tasks["pileup_0"] = (("index",), {"pileup": 80 * MB}, 50.0)
    return tasks


def wide(count: int, rng: random.Random) -> dict[str, Task]:
    """Two tasks in a row for each input from outside, and one that reads all."""
    tasks: dict[str, Task] = {"first_0": ((), {"reference": 200 * MB}, 5.0)}
    width = (count - 2) // 2
    for at in range(width):
        tasks[f"align_{at}"] = (
            ("reference",),
            {f"align_{at}": rng.randint(50, 150) * MB},
            rng.uniform(20, 60),
        )
        tasks[f"call_{at}"] = (
            (f"align_{at}", "reference"),
            {f"call_{at}": rng.randint(1, 5) * MB},
            rng.uniform(10, 30),
        )
    tasks["join_0"] = (tuple(f"call_{at}" for at in range(width)), {"join": 10 * MB}, 30.0)
    return tasks


def fan(count: int, rng: random.Random) -> dict[str, Task]:
    """Chains of three after a common parent."""
    tasks: dict[str, Task] = {"first_0": ((), {"first": 10 * MB}, 1.0)}
    for at in range((count - 1) // 3):
        file = "first"
        for step in ("one", "two", "three"):
            wrote = f"{step}_{at}"
            tasks[wrote] = ((file,), {wrote: rng.randint(5, 20) * MB}, rng.uniform(2, 8))
            file = wrote
    return tasks


SHAPES = {"epi": epi, "wide": wide, "fan": fan}


class Counts:
    """What the cycles of a simulation looked at. Stands in for `admission.cycle`."""

    def __init__(self) -> None:
        self.rounds, self.offered, self.considered, self.placed, self.longest_s = 0, 0, 0, 0, 0.0
        self._cycle = admission.cycle

    def __call__(self, *arguments: Any) -> Plan:
        """One cycle."""
        began = time.process_time()
        plan = self._cycle(*arguments)
        self.longest_s = max(self.longest_s, time.process_time() - began)
        self.rounds += 1
        self.offered += len(arguments[3])
        self.considered += plan.looked_at
        self.placed += len(plan.placements)
        return plan


def document(shape: str, count: int, seed: int) -> bytes:
    """The workflow as WfFormat."""
    return json.dumps(wfformat(shape, SHAPES[shape](count, random.Random(seed)))).encode()


def measured(workload: Workload, cluster: str, repeat: int) -> dict[str, Any]:
    """CPU (least of the repeats) and counts."""
    cpu, found = math.inf, {}
    whole = admission.cycle
    for _ in range(repeat):
        admission.cycle = counts = Counts()  # type: ignore[assignment]
        try:
            began = time.process_time()
            world = simulated("flowsched", REFERENCE[cluster], [workload])
            took = time.process_time() - began
        finally:
            admission.cycle = whole
        assert not world.unfinished
        cpu = min(cpu, took)
        found = {
            "tasks": len(workload.jobs),
            "rounds": counts.rounds,
            "offered": counts.offered,
            "considered": counts.considered,
            "placed": counts.placed,
            "longest_s": round(counts.longest_s, 3),
            "makespan_s": round(world.now, 1),
        }
    return {"cpu_s": round(cpu, 2), **found}


def main() -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default=",".join(SHAPES))
    parser.add_argument("--tasks", default="810,2830")
    parser.add_argument("--cluster", default="8x32-1g")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--nothing", action="store_true", help="documents without estimates")
    parser.add_argument("--save", type=Path, help="keep the documents here")
    options = parser.parse_args()
    for shape in options.shape.split(","):
        rows = []
        for count in map(int, options.tasks.split(",")):
            told = document(shape, count, 1)
            if options.save:
                (options.save / f"{shape}-{count}.json").write_bytes(told)
            workload = from_trace(read_trace(told), shape, shape, REFERENCE[options.cluster], wow=False)
            workload = without_estimates(workload) if options.nothing else workload
            row = measured(workload, options.cluster, options.repeat)
            rows.append(row)
            print(
                f"{shape:5} {row['tasks']:7} tasks {row['cpu_s']:8.2f} s CPU {1000 * row['cpu_s'] / row['tasks']:6.2f} ms a task "
                f"{row['rounds']:6} rounds {row['offered'] / max(1, row['placed']):7.1f} offered and "
                f"{row['considered'] / max(1, row['placed']):7.1f} considered a placement, longest "
                f"{row['longest_s']:.3f} s, makespan {row['makespan_s']:.1f} s",
                flush=True,
            )
        if len(rows) > 1:
            least, most = rows[0], rows[-1]
            exponent = math.log(most["cpu_s"] / least["cpu_s"]) / math.log(most["tasks"] / least["tasks"])
            print(f"{shape:5} exponent {exponent:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
