"""`flowsched usage`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from far_server import Far

Run = Callable[..., Any]


def test_a_table_with_its_sum(flowsched: Run, far: Far) -> None:
    """A workflow without a name is in the row (none)."""
    lines = flowsched("usage").stdout.splitlines()
    assert lines[0].split() == [
        "QUEUE", "WORKFLOWS", "CORE-HOURS", "GPU-HOURS", "GiB-HOURS", "RUNNING", "QUEUED", "MOVED",
    ]  # fmt: skip
    assert lines[1].split()[:5] == ["night", "2", "12.50", "3.00", "100.25"]
    assert lines[2].split()[:3] == ["(none)", "1", "0.0125"]
    assert lines[3].split()[:3] == ["total", "3", "12.51"]


def test_what_is_asked_reaches_the_service(flowsched: Run, far: Far) -> None:
    """By, and of which queue."""
    view = json.loads(flowsched("usage", "--by", "label:project", "--queue", "q", "-o", "json").stdout)
    assert (view["by"], view["queue"], view["rows"][1]["name"]) == ("label:project", "q", None)


def test_csv_has_a_line_for_each_name(flowsched: Run, far: Far) -> None:
    """And no sum, which a program that adds would count twice."""
    assert flowsched("usage", "--by", "user", "-o", "csv").stdout.splitlines() == [
        "user,workflows,core_hours,gpu_hours,memory_gib_hours,queued_hours,running_hours,bytes_local,bytes_moved",
        "night,2,12.500000,3.000000,100.250000,0.000000,0.000000,0,0",
        ",1,0.012500,0.000000,0.000000,0.000000,0.500000,0,2048",
    ]


def test_what_cannot_be_summed_up_is_said(flowsched: Run, far: Far) -> None:
    """The form, and the way to divide."""
    wrong = flowsched("usage", "-o", "xml")
    assert (wrong.exit_code, "table, json, csv, not 'xml'" in wrong.stderr) == (2, True)
    wrong = flowsched("usage", "--by", "colour")
    assert wrong.exit_code == 2
    assert "queue" in wrong.stderr
    assert "label:project" in wrong.stderr
