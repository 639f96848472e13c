"""What users say of a queue, and what is wrong with it."""

from __future__ import annotations

import pytest

from flowsched.control.queues import check_tree, queue_row
from flowsched.errors import Conflict, InvalidDocument
from flowsched.store.rows import QueueRow


def test_all_faults_of_a_queue_are_named_with_their_places() -> None:
    """An amount that is none is a fault beside others, not the end of the check."""
    settings = {
        "weight": 0,
        "cap": {"cpu": "much", "memory": "8Gi"},
        "guarantee": {"example.org/fpga": "0.5"},
    }
    with pytest.raises(InvalidDocument) as raised:
        queue_row("lab", settings, QueueRow("lab"))
    assert [(fault.path, fault.found) for fault in raised.value.faults] == [
        ("$.weight", "0"),
        ("$.cap.cpu", "'much'"),
        ("$.guarantee.example.org/fpga", "'0.5'"),
    ]


def test_order_and_reclaimable_are_settings() -> None:
    """Words that are none are faults."""
    row = queue_row("lab", {"order": "fifo", "reclaimable": False}, QueueRow("lab"))
    assert (row.order, row.reclaimable) == ("fifo", False)
    with pytest.raises(InvalidDocument, match="best-effort"):
        queue_row("lab", {"order": "lifo"}, QueueRow("lab"))


def faults(row: QueueRow, *others: QueueRow) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidDocument) as raised:
        check_tree(row, {other.name: other for other in others})
    return [(fault.path, fault.found, fault.expected) for fault in raised.value.faults]


def test_a_guarantee_is_at_most_the_cap() -> None:
    """And what has no cap has no bound."""
    row = QueueRow("lab", guarantee={"cpu": 5, "memory": 9}, cap={"cpu": 4})
    assert faults(row) == [("$.guarantee.cpu", "5", "at most its cap, 4")]


def test_children_are_guaranteed_no_more_than_their_parent() -> None:
    """Four and three of six: found from below and from above; a parent that is guaranteed nothing itself allows it."""
    lab, a, b = (
        QueueRow("lab", guarantee={"cpu": 6}),
        QueueRow("a", parent="lab", guarantee={"cpu": 4}),
        QueueRow("b", parent="lab", guarantee={"cpu": 3}),
    )
    expected = "a 4 + b 3 to be at most what lab has of its own, 6"
    assert faults(b, lab, a) == [("$.guarantee.cpu", "3", expected)]
    assert faults(lab, a, b) == [
        ("$.guarantee.cpu", "6", "at least what those below it are guaranteed: a 4 + b 3")
    ]
    check_tree(b, {"lab": QueueRow("lab"), "a": a})
    capped = QueueRow("lab", cap={"cpu": 5})
    assert faults(b, capped, a)[0][2] == "a 4 + b 3 to be at most what lab has of its own, 5"


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
