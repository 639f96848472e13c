"""What users say of a queue, and what is wrong with it."""

from __future__ import annotations

import pytest

from flowsched.control.queues import check_tree, queue_row
from flowsched.control.views import warnings
from flowsched.errors import Conflict, InvalidDocument
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.store.rows import QueueRow


def test_all_faults_of_a_queue_are_named_with_their_places() -> None:
    """An amount that is none is a fault beside others, not the end of the check."""
    settings = {
        "cap": {"cpu": "much", "memory": "8GB"},
        "guarantee": {"example.org/fpga": "0.5"},
    }
    with pytest.raises(InvalidDocument) as raised:
        queue_row("lab", settings, QueueRow("lab"))
    assert [(fault.path, fault.found) for fault in raised.value.faults] == [
        ("$.cap.cpu", "'much'"),
        ("$.cap.memory", "'8GB'"),
        ("$.guarantee.example.org/fpga", "'0.5'"),
    ]
    assert raised.value.faults[1].expected == "Gi (times 1024) or G (times 1000), as in Kubernetes"


def test_order_and_reclaimable_are_settings() -> None:
    """As they were given."""
    row = queue_row("lab", {"order": "fifo", "reclaimable": False}, QueueRow("lab"))
    assert (row.order, row.reclaimable) == ("fifo", False)


def faults(row: QueueRow, *others: QueueRow) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidDocument) as raised:
        check_tree(row, {other.name: other for other in others})
    return [(fault.path, fault.found, fault.expected) for fault in raised.value.faults]


def test_a_guarantee_is_at_most_the_cap() -> None:
    """And what has no cap has no bound."""
    row = QueueRow("lab", guarantee={"cpu": 5000, "memory": 9}, cap={"cpu": 4000})
    assert faults(row) == [("$.guarantee.cpu", "5 CPU", "at most its cap, 4 CPU")]


def test_children_are_guaranteed_no_more_than_their_parent() -> None:
    """Four and three of six: found from below and from above; a parent that is guaranteed nothing itself allows it."""
    lab, a, b = (
        QueueRow("lab", guarantee={"cpu": 6000}),
        QueueRow("a", parent="lab", guarantee={"cpu": 4000}),
        QueueRow("b", parent="lab", guarantee={"cpu": 3000}),
    )
    most = "all queues below lab together to be guaranteed at most {} CPU, which lab has: a 4 CPU + b 3 CPU = 7 CPU"
    assert faults(b, lab, a) == [("$.guarantee.cpu", "3 CPU", most.format(6))]
    least = "at least what the queues below it are guaranteed: a 4 CPU + b 3 CPU = 7 CPU"
    assert faults(lab, a, b) == [("$.guarantee.cpu", "6 CPU", least)]
    check_tree(b, {"lab": QueueRow("lab"), "a": a})
    capped = QueueRow("lab", cap={"cpu": 5000})
    assert faults(b, capped, a)[0][2] == most.format(5)


def test_a_parent_must_be_there() -> None:
    """Create it first."""
    with pytest.raises(Conflict, match="no parent queue 'lab'"):
        check_tree(QueueRow("a", parent="lab"), {})


@pytest.mark.parametrize("name", ["a b", "", "-a", "ä", "a/b", "x" * 64])
def test_a_queue_has_a_name_that_documents_can_say(name: str) -> None:
    """`PUT /queues/a%20b` made a queue that no document could name."""
    with pytest.raises(InvalidDocument) as refused:
        queue_row(name, {"weight": 2}, QueueRow(name))
    (fault,) = refused.value.faults
    assert (fault.path, fault.expected) == ("{name}", "1-63 letters, digits, -, _ or ., the first no - or .")


def test_a_resource_that_is_not_named_keeps_its_amount() -> None:
    """None takes one away; 0 is a cap."""
    before = QueueRow("lab", cap={"cpu": 2000}, guarantee={"gpu": 1000})
    assert queue_row("lab", {"cap": {"memory": "1Gi"}}, before).cap == {"cpu": 2000, "memory": 1 << 30}
    assert queue_row("lab", {"cap": {"cpu": None}}, before).cap == {}
    assert queue_row("lab", {"cap": {"cpu": 0}}, before).cap == {"cpu": 0}
    assert queue_row("lab", {"guarantee": {"cpu": 1}}, before).guarantee == {"gpu": 1000, "cpu": 1000}


def test_a_resource_that_there_is_not_is_a_fault() -> None:
    """With the one that was probably meant; extended ones have a domain."""
    with pytest.raises(InvalidDocument) as raised:
        queue_row(
            "lab", {"cap": {"cpus": 3, "licence": 1, "pods": 9, "example.org/fpga": 1}}, QueueRow("lab")
        )
    assert [str(fault) for fault in raised.value.faults] == [
        '$.cap.cpus: found the resource "cpus"; did you mean cpu?',
        '$.cap.licence: found the resource "licence", expected cpu, memory, disk, gpu, io, or a name with a domain, '
        "as nvidia.com/gpu",
    ]


def test_an_amount_that_is_none_says_what_is_one() -> None:
    """In words that go on from `expected`."""
    with pytest.raises(InvalidDocument) as raised:
        queue_row("lab", {"cap": {"cpu": "much"}}, QueueRow("lab"))
    expected = 'a number, or one with a suffix as in Kubernetes: "500m", "8Gi", "2G"'
    assert str(raised.value.faults[0]) == f"$.cap.cpu: found 'much', expected {expected}"


def test_guarantees_that_exceed_the_cluster_together_are_told_of_each_queue_by_its_own() -> None:
    """The sum is no queue's; a queue that alone exceeds the cluster is told that."""
    tree = QueueTree([Queue("a", guarantee=(1_000,)), Queue("b", guarantee=(100_000,))])
    (told,) = warnings(tree, tree.get("a"), ("cpu",), (4_000,))
    assert told == (
        "its guarantee of 1 CPU may not be kept: all queues together are guaranteed 101 CPU, and the cluster has 4 CPU"
    )
    (told,) = warnings(tree, tree.get("b"), ("cpu",), (4_000,))
    assert told == "it is guaranteed 100 CPU, and the cluster has 4 CPU"
