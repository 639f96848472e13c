"""What the step costs that takes in one input's arrival: as much as that changed, however many inputs are still to come."""

from __future__ import annotations

from typing import Any

from flowsched.executor.protocol import Transfer
from tests.engine.scene import Scene, calls_of, node


def stage(workflow: str, inputs: int) -> dict[str, Any]:
    """One task that takes a whole node, and reads so many files from outside."""
    reads = [{"name": f"f{number}", "uri": f"http://h/{workflow}/{number}"} for number in range(inputs)]
    return {"name": "s", "command": ["x"], "resources": {"cpu": 4}, "inputs": reads}


def cost_of_an_arrival(workflows: int, nodes: int, inputs: int) -> int:
    """Calls of a step in which one of the first workflow's inputs is there; all before it have been taken in."""
    scene, orders = Scene(*(node(f"n{number}") for number in range(nodes))), list[Transfer]()
    for number in range(workflows):
        orders += scene.submit(f"w{number}", stage(f"w{number}", inputs)).transfers
    for _ in range(10):
        orders += scene.arrive(orders.pop(0)).transfers
    return calls_of(lambda: scene.arrive(orders[0]))[0]


def test_four_times_the_inputs_of_a_task_make_no_arrival_dearer() -> None:
    """An arrival is followed by the next order, and looks at no input that waits behind it."""
    assert cost_of_an_arrival(1, 1, 400) - cost_of_an_arrival(1, 1, 100) < 20


def test_an_arrival_is_no_dearer_beside_a_task_that_waits_for_room() -> None:
    """That task may not start because of it: its inputs are counted in the next round, not in one for each arrival."""
    assert cost_of_an_arrival(2, 1, 400) - cost_of_an_arrival(2, 1, 100) < 20


def test_an_arrival_is_no_dearer_on_many_nodes_that_wait_for_the_outside() -> None:
    """All its slots but one are taken: of what only the outside has, the most important goes, and the rest is not judged."""
    fewer, more = cost_of_an_arrival(8, 8, 100), cost_of_an_arrival(8, 8, 400)
    assert more - fewer < 20
