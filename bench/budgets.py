"""Work that fills disks beside work that computes: what IO budgets bring where nobody said what tasks read and write.

    python -m bench.budgets

Four workflows of one kind come two minutes apart: 64 tasks that compute a little and write 4 GB, 64 that compute for two minutes.
Four nodes of 16 cores whose disks carry 400 MB/s, and 5 % less for each further file that is written at once (`seek_percent`).
Documents say nothing of IO and runtimes: what budgets know was learned from the tasks that ended before. Without learning, the
cores of a node are full of tasks that wait for its disk.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.pains import table
from flowsched.scheduling.framework import PROFILES, Profile
from flowsched.simulation.documents import from_document
from flowsched.simulation.reference import SimulatedCluster, SimulatedNode
from flowsched.simulation.simulate import Simulation
from flowsched.simulation.workload import Workload
from flowsched.workflow.decode import check_workflow
from flowsched.workflow.spec import Estimate, WorkflowSpec

OURS = PROFILES["flowsched"]
GAP_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds: until all is done, mean from arrival to end, and of the tasks that write, from start to end in the mean."""

    makespan: float
    turnaround: float
    writing: float


def document(sorts: int, calls: int) -> WorkflowSpec:
    """What the truth is made of: its estimates are what happens."""
    role = {"command": ["true"]}
    return check_workflow({
        "name": "mixed",
        "stages": [
            {**role, "name": "sort", "scatter": {"count": sorts}, "resources": {"cpu": 1},
             "outputs": [{"name": "bam", "path": "bam"}], "estimate": {"runtime": "10s", "output": "4G"}},
            {**role, "name": "call", "scatter": {"count": calls}, "resources": {"cpu": 1}, "estimate": {"runtime": "120s"}},
        ],
    })  # fmt: skip


def untold(spec: WorkflowSpec) -> WorkflowSpec:
    """The document without its estimates: nobody has said anything."""
    return replace(spec, stages=tuple(replace(stage, estimate=Estimate()) for stage in spec.stages))


def run(cluster: SimulatedCluster, profile: Profile, count: int = 4) -> Outcome:
    """Workflows of one kind, one after the other."""
    spec = document(64, 64)
    work: list[Workload] = []
    for number in range(count):
        made = from_document(spec, f"mixed-{number}", "mixed", cluster)
        work.append(replace(made, spec=untold(spec), arrival_s=GAP_S * number))
    world = Simulation(cluster, work, profile).run()
    return judged(work, world.lines)


def judged(work: Sequence[Workload], lines: Sequence[dict[str, object]]) -> Outcome:
    """Figures of a trace."""
    ran = [line for line in lines if "task" in line]
    ends = {
        each.name: max(float(str(line["end"])) for line in ran if line["workflow"] == each.name)
        for each in work
    }
    took = [
        float(str(line["end"])) - float(str(line["start"]))
        for line in ran
        if str(line["task"]).startswith("sort")
    ]
    turns = [ends[each.name] - each.arrival_s for each in work]
    return Outcome(max(ends.values()), sum(turns) / len(turns), sum(took) / len(took))


def machines(seek: int) -> SimulatedCluster:
    """Four nodes."""
    nodes = [SimulatedNode(f"n{at}", 16, disk=400_000_000, seek_percent=seek) for at in range(4)]
    return SimulatedCluster(tuple(nodes))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.parse_args()
    for seek in (0, 5):
        rows = []
        for label, profile in {
            "kube-like": PROFILES["kube-like"],
            "flowsched, nothing learned of IO": replace(OURS, io_fill_percent=0),
            "flowsched": OURS,
        }.items():
            told = run(machines(seek), profile)
            rows.append([label, f"{told.makespan:.0f}", f"{told.turnaround:.0f}", f"{told.writing:.0f}"])
        print(f"\n## {seek} % lost for each further flow\n")
        table(["policy", "makespan, s", "arrival to end, mean s", "a task that writes, mean s"], rows)


if __name__ == "__main__":
    main()
