"""References go to all nodes while those who will read them still wait; of tasks that are alike the large ones go first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flowsched.engine.backlog import rank_by_size
from flowsched.simulation.clusters import REFERENCE, Loss, SimulatedCluster, SimulatedNode
from flowsched.simulation.documents import from_document
from flowsched.simulation.policies import simulated
from flowsched.simulation.workload import without_estimates
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


def test_a_reference_with_few_readers_goes_where_they_will_run() -> None:
    """Eight tasks read it, on the nodes of two cores where their producers run: four. Of eight nodes, all get it."""
    assert nodes_before(run("60s", count=9)) == {"n0", "n1", "n2", "n3"}
    assert nodes_before(run("60s", count=8)) == {f"n{at}" for at in range(8)}


def nodes_before(world: World) -> set[str]:
    """The nodes to which the reference went before its first reader was ready."""
    ready = min(line["ready"] for line in world.lines if line.get("task", "").startswith("align"))
    copies = [line for line in world.lines if line.get("transfer", "").endswith("index")]
    return {line["to"] for line in copies if line["start"] < ready}


def own(link: dict[str, Any]) -> dict[str, Any]:
    """Eight tasks of 280 s, each followed by one of 10 s that reads 4 GB of its own."""
    inputs = [{"name": "own", "uri": "https://origin.example/{index}", "size": 4000 * MB}]
    second: dict[str, Any] = {"name": "second", "scatter": {"count": 8}, "command": ["second"]}
    first = {**document("280s")["stages"][0], "name": "first"}
    inputs += link.pop("inputs", [])
    return {
        "name": "own",
        "stages": [first, {**second, "inputs": inputs, "estimate": {"runtime": "10s"}, **link}],
    }


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    "link", [{"inputs": [{"name": "part", "from": "first.part", "match": "index"}]}, {"needs": ["first"]}]
)
def test_what_each_task_reads_of_its_own_comes_while_its_parent_runs(
    link: dict[str, Any], told: bool
) -> None:
    """32 GB over a link of 117 MB/s take 273 s, and the parents 280 s: all ends after 290 s, not after 564. The parents are packed
    on one node. The copies are not, since that node's disk would give 20 GB of them in 40 s.
    """
    work = from_document(check_workflow(own(dict(link))), "w", "w.json")
    world = simulated("flowsched", REFERENCE["8x16-1g"], [work if told else without_estimates(work)])
    ends = [line["end"] for line in world.lines if line.get("task", "").startswith("second")]
    assert len(ends) == 8
    assert 290 <= max(ends) < 291


def test_of_tasks_that_are_alike_those_that_read_most_go_first() -> None:
    """100 s expected; 100, 300 and 3,500 MB of their own: half of it at least, and twice at most."""
    sizes = [100 * MB, 300 * MB, 3500 * MB]
    ranked = [rank_by_size(size, 500 * SECOND, runtime_ms=100 * SECOND, mean=1300 * MB) for size in sizes]
    assert ranked == [450 * SECOND, 450 * SECOND, 600 * SECOND]
    assert rank_by_size(sizes[0], 500 * SECOND, runtime_ms=None, mean=100 * MB) == 500 * SECOND
