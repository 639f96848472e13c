"""`flowsched explain --cluster`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from far_server import Far
from rich.console import Console

from flowsched.cli.listing import idle_panel
from flowsched.cli.printing import render
from flowsched.workflow.views import ExplanationView, IdleReportView, SuggestionView

Run = Callable[..., Any]


def drawn(renderable: Any) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_a_table_and_a_sentence(flowsched: Run, far: Far) -> None:
    """Only causes that occur have a column."""
    lines = flowsched("explain", "--cluster").stdout.splitlines()
    heads = [head.strip() for head in lines[0].split("  ") if head]
    assert heads == ["resource", "capacity", "used", "idle", "no demand", "quota"]
    assert lines[1].split() == ["cpu,", "cores", "96.0", "36.0", "60.0", "42.0", "18.0"]
    assert "cpu: 60 of 96 cores are idle" in lines


def test_programs_get_the_whole_report(flowsched: Run, far: Far) -> None:
    """As JSON."""
    report = json.loads(flowsched("explain", "--cluster", "-o", "json").stdout)
    assert report["resources"]["cpu"]["causes"] == {"no_demand": 42.0, "quota": 18.0}


@pytest.mark.parametrize("words", [("explain",), ("explain", "wf1", "--cluster")])
def test_either_a_workflow_or_the_cluster_is_explained(
    flowsched: Run, far: Far, words: tuple[str, ...]
) -> None:
    """Neither and both are mistakes, and it says what to give."""
    result = flowsched(*words)
    assert result.exit_code == 2
    assert "give the ID of a workflow, or --cluster" in result.stderr


def test_nothing_seen_is_said() -> None:
    """A service that has just begun."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert "Nothing is known yet" in drawn(idle_panel(IdleReportView(at=now)))


def test_what_binds_and_what_would_start_it_are_shown() -> None:
    """The first suggestion, and the others after it."""
    view = ExplanationView(
        stage="align", tasks=1, state="QUEUED", code="Insufficient", message="m", binds=["task: cpu"],
        suggestions=[SuggestionView(kind="request", message="ask for less"), SuggestionView(kind="wait", message="wait")],
    )  # fmt: skip
    text = drawn(render.explain_panel([view]))
    assert "binds: task: cpu" in text
    assert "to start it: ask for less" in text
    assert "or: wait" in text
