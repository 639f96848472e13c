"""What users say of a queue, and what is wrong with it."""

from __future__ import annotations

import pytest

from flowsched.control.queue_settings import queue_row
from flowsched.errors import InvalidDocument
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
