"""Choice of tier in a simulated cluster: what is read over the network, and how long it takes."""

from __future__ import annotations

from typing import Any

from flowsched.scheduling.policy.framework import PROFILES
from flowsched.simulation.clusters import Loss, SimulatedCluster, SimulatedNode
from flowsched.simulation.documents import from_document
from flowsched.simulation.simulate import Simulation
from flowsched.simulation.world import World
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow

MB = 1_000_000


def cluster(nic: int) -> SimulatedCluster:
    """Four nodes of one core, with disks of 100 MB/s and much memory."""
    return SimulatedCluster(
        tuple(
            SimulatedNode(f"n{at}", 1, disk=100 * MB, nic_in=nic, nic_out=nic, cache=64_000 * MB)
            for at in range(4)
        )
    )


def run(nic: int, losses: list[Loss] | None = None, **profile: Any) -> World:
    """Four tasks of 10 s write 1 GB each, one per node, and one reads all four."""
    wrote = {"command": ["x"], "estimate": {"runtime": "10s", "output": 1_000 * MB}, "scatter": {"count": 4}}
    stages = [
        {"name": "write", **wrote, "outputs": [{"name": "o", "path": "o"}]},
        {
            "name": "read",
            "command": ["x"],
            "estimate": {"runtime": "5s"},
            "inputs": [{"name": "i", "from": "write.o"}],
        },
    ]
    on, spec = cluster(nic), check_workflow({"name": "w", "stages": stages})
    given = replace(PROFILES["flowsched"], **profile)
    return Simulation(on, [from_document(spec, "w", "w.json")], given, losses=losses or []).run()


def moves(world: World) -> list[tuple[str, str, str, float]]:
    """(kind, from, to, seconds) of what moved."""
    return [
        (line["kind"], line["from"], line["to"], round(line["end"] - line["start"], 3))
        for line in world.lines
        if "transfer" in line
    ]


def end(world: World) -> float:
    """When the last task ended."""
    return round(max(line["end"] for line in world.lines if "task" in line), 3)


def test_over_fast_links_a_gather_reads_the_writers_memory() -> None:
    """Writing takes 10 + 10 s; 3 GB over a link of 1 GB/s 3 s, from the others' memory; 5 s of computing. As copies they would take
    the reader's disk 30 s.
    """
    world = run(1_000 * MB)
    assert moves(world) == [("read", f"n{at}", "n0", 3.0) for at in (1, 2, 3)]
    assert end(world) == 28.0
    assert end(run(1_000 * MB, remote_reads=False)) > 50.0


def test_over_slow_links_it_is_copied() -> None:
    """Over a link of 50 MB/s bytes come no faster than a disk takes them: staged before the task has a core."""
    kinds = {kind for kind, *_ in moves(run(50 * MB))}
    assert kinds <= {"stage", "push", "prefetch"}


def test_a_source_that_is_lost_while_it_is_read() -> None:
    """n3 goes at 21 s, amid the read: that attempt is lost, n3's output is written again, and then all is read again."""
    world = run(1_000 * MB, [Loss(3, 21.0)])
    ran = [(line["task"], line["outcome"], round(line["end"], 1)) for line in world.lines if "task" in line]
    assert ("read/0", "lost", 21.0) in ran
    assert [each[0] for each in ran if each[1] == "succeeded"].count("write/3") == 2
    assert ran[-1][:2] == ("read/0", "succeeded")
