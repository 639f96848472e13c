"""References go to all nodes while those who will read them still wait; of tasks that are alike the large ones go first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowsched.engine.backlog import ranks_by_size
from flowsched.simulation.clusters import Loss, SimulatedCluster, SimulatedNode
from flowsched.simulation.documents import from_document
from flowsched.simulation.policies import simulated
from flowsched.simulation.world import World
from flowsched.workflow.document.decode import check_workflow

MB = 1_000_000
SECOND = 1_000


def document(runtime: str) -> dict[str, Any]:
    """Eight tasks, then eight more that all read one reference."""
    return {
        "name": "spread",
        "stages": [
            {
                "name": "prepare",
                "scatter": {"count": 8},
                "command": ["prepare"],
                "outputs": [{"name": "part", "path": "part"}],
                "estimate": {"runtime": runtime, "output": MB},
            },
            {
                "name": "align",
                "scatter": {"count": 8},
                "command": ["align"],
                "inputs": [
                    {"name": "part", "from": "prepare.part", "match": "index"},
                    {"name": "index", "uri": "https://origin.example/index", "size": 1000 * MB},
                ],
                "estimate": {"runtime": "5s"},
            },
        ],
    }


def run(runtime: str, count: int = 4, losses: Sequence[Loss] = ()) -> World:
    """Nodes of two cores, links of 100 MB/s: a copy of the reference takes ten seconds."""
    nodes = tuple(SimulatedNode(f"n{at}", 2, nic_in=100 * MB, nic_out=100 * MB) for at in range(count))
    cluster = SimulatedCluster(nodes)
    work = from_document(check_workflow(document(runtime)), "w", "w.json")
    return simulated("flowsched", cluster, [work], losses)


def copies_began(world: World) -> set[bool]:
    """Whether the reference went to nodes before its first reader was ready."""
    ready = min(line["ready"] for line in world.lines if line.get("task", "").startswith("align"))
    return {line["start"] < ready for line in world.lines if line.get("transfer", "").endswith("index")}


def test_a_reference_is_everywhere_before_it_is_asked_for() -> None:
    """Producers of a minute leave the links all the time there is; those of a second do not, and it moves when it is wanted."""
    assert copies_began(run("60s")) == {True}
    assert copies_began(run("1s")) == {False}


def test_a_reference_goes_to_no_more_nodes_than_it_has_readers() -> None:
    """Eight tasks read it. It stays where it is while there are nine nodes, and moves once there are eight."""
    assert copies_began(run("60s", count=9)) == {False}
    assert True in copies_began(run("60s", count=9, losses=[Loss(8, 5.0)]))


def test_of_tasks_that_are_alike_those_that_read_most_go_first() -> None:
    """100 s expected; 100, 300 and 3,500 MB of their own: half of it at least, and twice at most."""
    sizes = [100 * MB, 300 * MB, 3500 * MB]
    ranked = ranks_by_size(sizes, rank_ms=500 * SECOND, runtime_ms=100 * SECOND, mean=1300 * MB)
    assert ranked == [450 * SECOND, 450 * SECOND, 600 * SECOND]
    assert ranks_by_size(sizes[:1], 500 * SECOND, 100 * SECOND, 100 * MB) == [500 * SECOND]
