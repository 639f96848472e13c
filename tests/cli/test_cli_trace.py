"""`flowsched trace` and `flowsched seff`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from far_server import Far

from flowsched.cli import report
from flowsched.cli.report import duration, lines, memory
from flowsched.workflow.views import AttemptUseView

Run = Callable[..., Any]
BEGIN = datetime(2026, 11, 1, 12, 0, 0, 931_000, tzinfo=UTC)


def attempt(**given: Any) -> AttemptUseView:
    plain = {
        "attempt": 0, "pod": "fs-w-align-0-0", "node": "n", "stage": "align", "index": 3, "shard": 3, "bound_at": BEGIN,
        "started_at": BEGIN + timedelta(seconds=0.6), "ended_at": BEGIN + timedelta(seconds=12.2), "exit_code": 0,
    }  # fmt: skip
    return AttemptUseView(**(plain | given))


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_a_line_is_as_in_nextflows_documentation() -> None:
    """Its example: 12.2s 11.6s, 35.6 MB; virtual memory is not measured."""
    used = {
        "cpu_ms": 11_543,
        "max_rss_bytes": 37_329_305,
        "read_bytes": 208_981_197,
        "written_bytes": 8_283_750,
    }
    head, line = lines([attempt(usage=used)])
    assert head.split("\t") == [
        "task_id", "hash", "native_id", "name", "status", "exit", "submit", "duration", "realtime", "%cpu",
        "peak_rss", "peak_vmem", "rchar", "wchar",
    ]  # fmt: skip
    assert line.split("\t") == [
        "1", "-", "fs-w-align-0-0", "align (3)", "COMPLETED", "0", "2026-11-01 12:00:00.931", "12.2s", "11.6s", "99.5%",
        "35.6 MB", "-", "199.3 MB", "7.9 MB",
    ]  # fmt: skip


def test_attempts_come_in_the_order_of_their_binding() -> None:
    """With an item in place of its number; failed, cancelled and running attempts as Nextflow says it."""
    later = [
        attempt(bound_at=BEGIN + timedelta(seconds=n), item=f"s\t{n}", **given)
        for n, given in enumerate([
            {"exit_code": 3},
            {"exit_code": None, "reason": "NodeLost"},
            {"exit_code": 143, "reason": "Released"},
            {"exit_code": None, "ended_at": None},
            {"exit_code": None, "ended_at": None, "started_at": None},
        ])
    ]  # fmt: skip
    rows = [line.split("\t") for line in lines(reversed(later))][1:]
    assert [(row[0], row[3], row[4], row[5]) for row in rows] == [
        ("1", "align (s 0)", "FAILED", "3"),
        ("2", "align (s 1)", "FAILED", "-"),
        ("3", "align (s 2)", "ABORTED", "143"),
        ("4", "align (s 3)", "RUNNING", "-"),
        ("5", "align (s 4)", "SUBMITTED", "-"),
    ]


def test_spans_and_sizes_as_nextflow_writes_them() -> None:
    """`Duration` and `MemoryUnit`."""
    spans = (97, 1000, 29_540, 89_000, 7_503_000, 93_600_000)
    assert [duration(ms) for ms in spans] == ["97ms", "1s", "29.5s", "1m 29s", "2h 5m 3s", "1d 2h"]
    assert [memory(n) for n in (0, 97, 4096, 3 << 30)] == ["0", "97 B", "4 KB", "3 GB"]


def test_a_trace_goes_to_a_file(flowsched: Run, far: Far, tmp_path: Path) -> None:
    """Or to standard output."""
    ident = far.service.add()
    text = flowsched("trace", ident).stdout
    assert [line.split("\t")[3] for line in text.splitlines()] == ["name", "align (0)"]
    result = flowsched("trace", ident, "-o", str(tmp_path / "trace.tsv"))
    assert ((tmp_path / "trace.tsv").read_text(), "attempts: 1" in result.stderr) == (text, True)


def test_a_dash_is_standard_output(
    flowsched: Run, far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is called `-`; the results of a run, which are several files, are refused there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "template", lambda: "@TITLE@ @DATA@")
    ident = far.service.add()
    assert flowsched("trace", ident, "-o", "-").stdout.startswith("task_id\t")
    assert flowsched("report", ident, "-o", "-").stdout.startswith("germline – flowsched report {")
    refused = flowsched("run", "doc.json", "--out", "-")
    assert (refused.exit_code, "STAGE.OUTPUT -O -" in " ".join(refused.stderr.split())) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_seff_says_what_to_ask_for(flowsched: Run, far: Far) -> None:
    """4 cores and 8 GiB, of which 1.05 cores and 1.2 GiB were used."""
    ident = far.service.add()
    out = flowsched("seff", ident).stdout
    assert "CPU efficiency:  26% of 16s core-walltime" in out
    assert "align: memory: asked for 8 GiB, used at most 1.2 GiB: ask for 1536Mi" in out
    assert "align: cpu: asked for 4 cores, used at most 1.1: ask for 1" in out
    (view,) = json.loads(flowsched("seff", ident, "-o", "json").stdout)
    assert (view["cores_used"], view["memory_efficiency"]) == (1.05, pytest.approx(0.15))
    missing = flowsched("seff", ident, "nope")
    assert (missing.exit_code, "has no stage 'nope'" in missing.stderr) == (2, True)


def test_a_trace_of_unfinished_work_says_so(flowsched: Run, far: Far) -> None:
    """On stderr, since a task that never began has no line in the file; a task that was skipped is not missing."""
    failed = far.service.add(counts={"SUCCEEDED": 3, "FAILED": 1, "CANCELLED": 2, "SKIPPED": 4})
    assert "unfinished: 3 of 6 tasks succeeded" in flowsched("trace", failed).stderr
    good = far.service.add(counts={"SUCCEEDED": 3, "SKIPPED": 4})
    assert "unfinished" not in flowsched("trace", good).stderr
