"""What views of queues call deserved: a part of the cluster by weight."""

from __future__ import annotations

from flowsched.control.views import deserved
from flowsched.scheduling.queues.tree import Queue, QueueTree


def test_weights_divide_the_cluster_among_the_busy() -> None:
    """One to two of sixty; c has and asks for nothing."""
    tree = QueueTree([Queue("a"), Queue("b", weight=2), Queue("c", weight=3)])
    assert deserved(tree, ["a", "b"], (60, 30)) == {"a": (20, 10), "b": (40, 20)}


def test_a_department_divides_its_own_part() -> None:
    """Both departments have half, however many queues are below one of them."""
    tree = QueueTree([Queue("x", parent="one"), Queue("y", parent="one"), Queue("z", parent="two")])
    assert deserved(tree, ["x", "y", "z"], (60,)) == {
        "one": (30,), "two": (30,), "x": (15,), "y": (15,), "z": (30,),
    }  # fmt: skip


def test_guarantees_are_floors_and_caps_are_ceilings() -> None:
    """A is guaranteed twenty of thirty, b capped at three; the guarantee of a child lifts its parent."""
    tree = QueueTree(
        [
            Queue("a", guarantee=(20,)),
            Queue("b", cap=(3,)),
            Queue("c", cap=(-1,)),
            Queue("d"),
            Queue("e", parent="d", guarantee=(9,)),
        ]
    )
    assert deserved(tree, "abce", (40,)) == {"a": (20,), "b": (3,), "c": (10,), "d": (10,), "e": (10,)}
