"""`flowsched report`: what the page is given. How it looks is tests/web's."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from far_server import Far

from flowsched.cli import report
from flowsched.errors import ConfigurationError
from flowsched.workflow.views import AttemptPage, AttemptUseView, WorkflowView

Run = Callable[..., Any]
FRAME = '<title>@TITLE@</title><script id="data" type="application/json">@DATA@</script>'
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def data_of(text: str) -> dict[str, Any]:
    return json.loads(text.split('type="application/json">')[1].split("</script>")[0])


@pytest.fixture
def frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "template", lambda: FRAME)


@pytest.mark.usefixtures("frame")
def test_a_report_holds_all_of_its_run(flowsched: Run, far: Far, tmp_path: Path) -> None:
    """The run, its stages, its timeline, what they used with advice; the whole in one file."""
    ident = far.service.add()
    result = flowsched("report", ident, "-o", str(tmp_path / "r.html"))
    assert "r.html" in result.stderr
    text = (tmp_path / "r.html").read_text()
    (run,) = data_of(text)["runs"]
    assert (run["workflow"]["id"], run["timelines"][0]["nodes"]) == (ident, ["node-0"])
    assert run["stages"][0]["name"] == "align"
    (used,) = run["efficiency"]
    assert (used["stage"], used["cores_used"], used["memory_used_bytes"]) == ("align", 1.05, 1_288_490_189)
    assert used["advice"][0] == "memory: asked for 8 GiB, used at most 1.2 GiB: ask for 1536Mi"
    assert (run["failed"], run["failed_more"]) == ([], 0)
    assert f"<title>{run['workflow']['name']} – flowsched report</title>" in text


@pytest.mark.usefixtures("frame")
def test_reports_of_two_runs_do_not_replace_each_other(
    flowsched: Run, far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without -o the file is named after the runs; a second report of a run replaces the first."""
    monkeypatch.chdir(tmp_path)
    one, other = far.service.add(), far.service.add()
    for arguments in ([one], [one], [other], [one, "--with", other]):
        assert flowsched("report", *arguments).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        f"report-{one}.html", f"report-{other}.html", f"report-{one}-{other}.html",
    }  # fmt: skip


@pytest.mark.usefixtures("frame")
def test_two_runs_are_compared(flowsched: Run, far: Far, tmp_path: Path) -> None:
    """The one that was asked for comes first."""
    one, other = far.service.add(), far.service.add()
    flowsched("report", one, "--with", other, "-o", str(tmp_path / "r.html"))
    runs = data_of((tmp_path / "r.html").read_text())["runs"]
    assert [run["workflow"]["id"] for run in runs] == [one, other]


@pytest.mark.usefixtures("frame")
def test_failed_attempts_are_listed_and_the_rest_counted(
    flowsched: Run, far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost and failed ones, not those that succeeded or run."""
    plain: dict[str, Any] = {"attempt": 0, "pod": "p", "node": "n", "stage": "align", "shard": 0}
    ended = {"started_at": BEGIN, "ended_at": BEGIN + timedelta(seconds=2)}
    kinds: list[dict[str, Any]] = [
        {"exit_code": 3, "message": "no such file"} | ended,
        {"exit_code": None, "reason": "NodeLost"} | ended,
        {"exit_code": 137, "reason": "OOMKilled"} | ended,
        {"exit_code": 0} | ended,
        {"exit_code": None},
    ]
    attempts = [
        AttemptUseView(index=number, bound_at=BEGIN, **plain, **kind) for number, kind in enumerate(kinds)
    ]

    async def told(workflow: str, **_: Any) -> AttemptPage:
        return AttemptPage(attempts=attempts)

    monkeypatch.setattr(far.service, "attempts", told)
    monkeypatch.setattr(report, "MOST_FAILED", 2)
    flowsched("report", far.service.add(), "-o", str(tmp_path / "r.html"))
    (run,) = data_of((tmp_path / "r.html").read_text())["runs"]
    assert [
        (each["index"], each["reason"], each["message"], each["ran_seconds"]) for each in run["failed"]
    ] == [
        (0, "", "no such file", 2.0),
        (1, "NodeLost", "", 2.0),
    ]
    assert run["failed_more"] == 1


def test_what_users_wrote_stays_data() -> None:
    """A name may end an element, or be a place of the page, and ends nothing."""
    name = "</script><script>alert(1)</script><!-- @DATA@ & @TITLE@"
    view = WorkflowView(
        id="w",
        name=name,
        queue="q",
        priority=0,
        labels={},
        state="RUNNING",
        created_at=BEGIN,
        stages=1,
        tasks=1,
    )
    text = report.filled(FRAME, [{"workflow": view}], BEGIN)
    assert text.count("<script") == text.count("</script>") == 1
    assert data_of(text)["runs"][0]["workflow"]["name"] == name
    assert "<title>&lt;/script&gt;" in text


def test_a_page_that_is_not_built_says_what_to_do(
    flowsched: Run, far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a source checkout without `make ui`; and one of another version."""
    monkeypatch.setattr(report.resources, "files", lambda _: tmp_path)
    result = flowsched("report", far.service.add(), "-o", str(tmp_path / "r.html"))
    assert result.exit_code != 0
    assert "run `make ui`" in " ".join(result.stderr.split())
    assert not (tmp_path / "r.html").exists()
    with pytest.raises(ConfigurationError, match="another version"):
        report.filled("<html></html>", [], BEGIN)
