"""Work that fills disks beside work that computes: what IO budgets bring where nobody said what tasks read and write.

    python -m bench.budgets

Four workflows of one kind come two minutes apart: 64 tasks that compute a little and write 4 GB, 64 that compute for two minutes.
Four nodes of 16 cores whose disks carry 400 MB/s, and 5 % less for each further file that is written at once (`seek_percent`).
Documents say nothing of IO and runtimes: what budgets know was learned from the tasks that ended before. Without learning, the
cores of a node are full of tasks that wait for its disk.

Then all data on a storage that every node mounts and that gives 1 GB/s to all: 192 tasks that read 2 to 10 GB and 384 that compute
for half a minute to three and a half, which their documents say. Without a budget those that compute (longer on the path) go first,
and then all read at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.pains import table
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.simulation.clusters import GBIT, SimulatedCluster, SimulatedNode, SimulatedStorage
from flowsched.simulation.documents import from_document
from flowsched.simulation.simulate import Simulation
from flowsched.simulation.workload import Workload
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.spec import Estimate, WorkflowSpec

OURS = PROFILES["flowsched"]
GAP_S = 120.0
#: Of each stream of others': more than it gets rid of while the workflows run.
HOG_BYTES = 30_000_000_000


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


def mounted() -> WorkflowSpec:
    """The same where all data lie on a storage that every node mounts: 192 tasks read 2 to 10 GB each, 384 compute."""
    role = {"command": ["true"], "resources": {"cpu": 1}}
    readers = [
        {**role, "name": f"read{size}", "scatter": {"count": 24}, "estimate": {"runtime": f"{10 + 2 * size}s"},
         "inputs": [{"name": "bam", "uri": f"s3://in/{size}/{{index}}.bam", "size": f"{size}G"}]}
        for size in (2, 3, 4, 5, 7, 8, 9, 10)
    ]  # fmt: skip
    callers = [
        {**role, "name": f"call{seconds}", "scatter": {"count": 96}, "estimate": {"runtime": f"{seconds}s"}}
        for seconds in (30, 90, 150, 210)
    ]
    return check_workflow({"name": "mounted", "stages": [*readers, *callers]})


def untold(spec: WorkflowSpec) -> WorkflowSpec:
    """The document without its estimates: nobody has said anything."""
    return replace(spec, stages=tuple(replace(stage, estimate=Estimate()) for stage in spec.stages))


def run_mounted(seek: int, profile: Profile) -> tuple[float, float, float]:
    """One workflow on it: makespan, mean end of the readers, mean end of those that compute."""
    cluster = replace(
        machines(0, 10 * GBIT),
        storage=SimulatedStorage(disk=1_000_000_000, nic_in=10 * GBIT, nic_out=10 * GBIT, seek_percent=seek),
    )
    work = from_document(mounted(), "mounted", "mounted")
    ran = [line for line in lines_of(Simulation(cluster, [work], profile)) if "task" in line]
    ends = {
        kind: [float(line["end"]) for line in ran if str(line["task"]).startswith(kind)]
        for kind in ("read", "call")
    }
    return max(max(each) for each in ends.values()), *(sum(each) / len(each) for each in ends.values())


def run(
    cluster: SimulatedCluster, profile: Profile, count: int = 4, measure_s: float = 0.0, hogs: int = 0
) -> Outcome:
    """Workflows of one kind, one after the other. `hogs`: streams by which others keep the disks of two nodes busy."""
    spec = document(64, 64)
    work: list[Workload] = []
    for number in range(count):
        made = from_document(spec, f"mixed-{number}", "mixed")
        work.append(replace(made, spec=untold(spec), arrival_s=GAP_S * number))
    simulation = Simulation(cluster, work, profile, measure_s=measure_s)
    for node in (0, 1) if hogs else ():
        for _ in range(hogs):  # others' bytes leave the node by its link: a pod's own do not
            simulation.world.flow(HOG_BYTES, (3 * node, 3 * node + 2), _nothing)
    return judged(work, lines_of(simulation))


def _nothing() -> None:
    """A stream of somebody else's has ended."""


def lines_of(simulation: Simulation) -> list[dict[str, Any]]:
    """The trace of a simulation, once every task has ended well."""
    world = simulation.run()
    if world.unfinished:
        raise SystemExit(f"tasks were left undone: {'; '.join(world.unfinished)}")
    return world.lines


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


def machines(seek: int, link: int = GBIT) -> SimulatedCluster:
    """Four nodes."""
    nodes = [
        SimulatedNode(f"n{at}", 16, disk=400_000_000, nic_in=link, nic_out=link, seek_percent=seek)
        for at in range(4)
    ]
    return SimulatedCluster(tuple(nodes))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.parse_args()
    kube, off = PROFILES["kube-like"], replace(OURS, io_fill_percent=0)
    on_disks = {"kube-like": kube, "flowsched, nothing learned": off, "flowsched": OURS}
    for seek in (0, 5):
        outcomes = [(label, run(machines(seek), profile)) for label, profile in on_disks.items()]
        rows = [
            [label, f"{told.makespan:.0f}", f"{told.turnaround:.0f}", f"{told.writing:.0f}"]
            for label, told in outcomes
        ]
        print(f"\n## Disks of nodes; they lose {seek} % for each further file at once\n")
        table(["policy", "makespan, s", "arrival to end, mean s", "a task that writes, mean s"], rows)
    rows = []
    for label, profile, measure_s in (
        ("nothing learned", off, 0.0),
        ("not measured", OURS, 0.0),
        ("measured", OURS, 5.0),
    ):
        told = run(machines(0, 10 * GBIT), profile, measure_s=measure_s, hogs=12)
        rows.append([label, f"{told.makespan:.0f}", f"{told.turnaround:.0f}", f"{told.writing:.0f}"])
    print("\n## Two of four disks are kept busy by others\n")
    table(["policy", "makespan, s", "arrival to end, mean s", "a task that writes, mean s"], rows)
    shared = {
        label: replace(profile, locality=False) for label, profile in (("no budget", off), ("budget", OURS))
    }
    for seek in (0, 2):
        told = [
            (label, run_mounted(seek, profile)) for label, profile in {"kube-like": kube, **shared}.items()
        ]
        print(f"\n## A shared storage; it loses {seek} % for each further file at once\n")
        table(
            ["policy", "makespan, s", "those that read end, mean s", "others end, mean s"],
            [[label, *(f"{each:.0f}" for each in figures)] for label, figures in told],
        )


if __name__ == "__main__":
    main()
