"""`flowsched usage`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from far_server import Far

from flowsched.cli.report import usage_table
from flowsched.workflow.views import UsageRowView, UsageSumView, UsageView

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


def test_saved_memory_has_a_column_where_there_is_some() -> None:
    """At 80 columns it takes the place of the bytes that were moved. Attempts that ran out of memory may have cost more."""
    night = UsageRowView(
        name="night",
        workflows=1,
        core_hours=310.4,
        gpu_hours=24.0,
        memory_gib_hours=1241.6,
        memory_saved_gib_hours=1945.6,
        running_hours=62.0,
        queued_hours=9.2,
        bytes_moved=1 << 30,
    )
    rows = [
        night,
        UsageRowView(name="default", workflows=1, memory_saved_gib_hours=-0.5),
    ]
    view = UsageView(by="queue", rows=rows, total=UsageSumView(workflows=2, memory_saved_gib_hours=1945.1))
    lines = [each.plain for each in usage_table(view).lines(80)]
    assert lines == [
        "QUEUE    WORKFLOWS  CORE-HOURS  GPU-HOURS  GiB-HOURS     SAVED  RUNNING  QUEUED",
        "night            1      310.40      24.00   1,241.60  1,945.60    2d14h   9h12m",
        "default          1           0          0          0   -0.5000     0.0s    0.0s",
        "total            2           0          0          0  1,945.10     0.0s    0.0s",
    ]


def test_what_is_asked_reaches_the_service(flowsched: Run, far: Far) -> None:
    """By, and of which queue."""
    view = json.loads(flowsched("usage", "--by", "label:project", "--queue", "q", "-o", "json").stdout)
    assert (view["by"], view["queue"], view["rows"][1]["name"]) == ("label:project", "q", None)


def test_csv_has_a_line_for_each_name(flowsched: Run, far: Far) -> None:
    """And no sum, which a program that adds would count twice."""
    assert flowsched("usage", "--by", "user", "-o", "csv").stdout.splitlines() == [
        "user,workflows,core_hours,gpu_hours,memory_gib_hours,memory_saved_gib_hours,"
        "queued_hours,running_hours,bytes_local,bytes_moved",
        "night,2,12.500000,3.000000,100.250000,0.000000,0.000000,0.000000,0,0",
        ",1,0.012500,0.000000,0.000000,0.000000,0.000000,0.500000,0,2048",
    ]


def test_what_cannot_be_summed_up_is_said(flowsched: Run, far: Far) -> None:
    """The form, and the way to divide."""
    wrong = flowsched("usage", "-o", "xml")
    assert (wrong.exit_code, "table, json, csv, not 'xml'" in wrong.stderr) == (2, True)
    wrong = flowsched("usage", "--by", "colour")
    assert wrong.exit_code == 2
    assert "queue" in wrong.stderr
    assert "label:project" in wrong.stderr
