"""Outputs that are read together are written together, or brought together while others still compute."""

from __future__ import annotations

from typing import Any

from flowsched.simulation.documents import from_document
from flowsched.simulation.policies import simulated
from flowsched.simulation.reference import SimulatedCluster, SimulatedNode
from flowsched.simulation.world import World
from flowsched.workflow.decode import check_workflow

MB = 1_000_000


def nodes(count: int, cores: int) -> SimulatedCluster:
    """Nodes with links of 100 MB/s."""
    return SimulatedCluster(
        tuple(SimulatedNode(f"n{at}", cores, nic_in=100 * MB, nic_out=100 * MB) for at in range(count))
    )


def gather(width: int, chunks: int, output: int, runtime: str = "5s") -> dict[str, Any]:
    """`width` tasks write `output` bytes each; `chunks` tasks read them in equal parts."""
    return {
        "name": "gather",
        "stages": [
            {
                "name": "write",
                "scatter": {"count": width},
                "command": ["write"],
                "outputs": [{"name": "part", "path": "part"}],
                "estimate": {"runtime": runtime, "output": output},
            },
            {
                "name": "combine",
                "scatter": {"count": chunks},
                "command": ["combine"],
                "inputs": [
                    {"name": "parts", "from": "write.part", "match": "chunk" if chunks > 1 else "all"}
                ],
                "estimate": {"runtime": "1s"},
            },
        ],
    }


def run(document: dict[str, Any], cluster: SimulatedCluster) -> World:
    """Simulate it under the service's own policy."""
    return simulated("flowsched", cluster, [from_document(check_workflow(document), "w", "w.json", cluster)])


def test_what_is_read_together_is_written_on_one_node() -> None:
    """Sixteen tasks in chunks of four on four nodes of four cores: every chunk on a node of its own, and nothing moves."""
    world = run(gather(16, 4, 500 * MB), nodes(4, 4))
    at = {line["task"]: line["node"] for line in world.lines if "task" in line}
    for chunk in range(4):
        assert {at[f"write/{shard}"] for shard in range(4 * chunk, 4 * chunk + 4)} == {at[f"combine/{chunk}"]}
    assert [line for line in world.lines if "transfer" in line] == []


def test_who_would_bring_its_output_later_waits_for_room_at_home() -> None:
    """Eight tasks of a second, 1 GB each, one gather, two nodes of two cores: a copy takes 10 s, waiting three times a second."""
    world = run(gather(8, 1, 1000 * MB, "1s"), nodes(2, 2))
    assert {line["node"] for line in world.lines if "task" in line} == {"n0"}


def test_what_was_written_elsewhere_is_pushed_home_before_it_is_asked_for() -> None:
    """Tasks of a minute are worth running elsewhere: what they wrote has moved when the last has ended, or moves then."""
    world = run(gather(12, 1, 200 * MB, "60s"), nodes(3, 2))
    pushed = [line for line in world.lines if line.get("kind") == "push"]
    combine = next(line for line in world.lines if line.get("task") == "combine/0")
    assert pushed
    assert {line["to"] for line in pushed} == {combine["node"]}
    assert min(line["start"] for line in pushed) < combine["ready"]


def test_small_outputs_have_no_home() -> None:
    """A kilobyte each is nothing to plan for: the tasks spread over the cores there are, at once."""
    world = run(gather(8, 1, 1000, "10s"), nodes(2, 4))
    starts = {line["start"] for line in world.lines if line.get("task", "").startswith("write")}
    assert starts == {0.0}
