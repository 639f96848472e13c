"""Each command: what it prints, where, and with which exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_service import BEGIN, stage_view, task_view
from far_server import Far
from rich.console import Console, RenderableType
from structlog.testing import capture_logs
from typer.main import get_command
from typer.testing import CliRunner

from flowsched import errors, tokens
from flowsched.cli import doctor, failures, following, running
from flowsched.cli.app import COMMANDS, app, hoisted
from flowsched.cli.printing import render
from flowsched.client import Client, session
from flowsched.client.session import ATTEMPTS
from flowsched.workflow.views import (
    AttemptView,
    CacheView,
    DrainView,
    ExplanationView,
    ImageView,
    NodeView,
    OutputView,
    StageView,
    TaskView,
)
from tests.forks import Forked, ran

Run = Callable[..., Any]


@pytest.fixture
def document(tmp_path: Path) -> Path:
    file = tmp_path / "germline.json"
    stage = {"name": "align", "command": ["true"], "inputs": [{"name": "r", "uri": "reads.fq"}]}
    file.write_text(json.dumps({"name": "germline", "stages": [stage]}))
    return file


def test_a_run_of_another_engine_is_not_taken_for_one_of_flowsched(
    flowsched: Run, far: Far, document: Path
) -> None:
    """Where runs of both have a name, `cache`, `retry` and `--resume` mean flowsched's, though miniwdl's is newer."""
    far.service.add("germline", id="w1own", state="SUCCEEDED", ended_at=BEGIN)
    far.service.add("germline", id="20260102_germline", state="FAILED", ended_at=BEGIN, source="miniwdl")
    shown = flowsched("show", "germline")
    assert "germline: 20260102_germline, the newest of 2, a run of miniwdl" in shown.stderr
    assert "germline: " not in flowsched("cache", "germline").stderr
    assert "w1own is SUCCEEDED" in flowsched("retry", "germline").stderr
    far.service.finish_on_submit = "SUCCEEDED"
    assert "resumes w1own (SUCCEEDED" in flowsched("run", str(document), "--resume").stderr
    refused = flowsched("run", str(document), "--resume-from", "20260102")
    assert refused.exit_code == 2
    assert "is a run of miniwdl, which keeps a cache of its own" in refused.stderr


def test_a_workflow_is_found_by_its_name_or_the_beginning_of_its_id(flowsched: Run, far: Far) -> None:
    """A name means the newest; what changes a workflow takes no guess; what is not there is said."""
    far.service.add("germline", id="w1abcdefghij-1", state="SUCCEEDED", ended_at=BEGIN)
    far.service.add("germline", id="w1abcdefghik-2")
    far.service.add("qc", id="w1zzz")
    assert "w1zzz" in flowsched("show", "qc").stdout
    assert "qc" in flowsched("show", "w1z").stdout
    named = flowsched("show", "germline")
    assert "w1abcdefghik-2" in named.stdout
    assert "germline: w1abcdefghik-2, the newest of 2" in named.stderr
    several = flowsched("show", "w1abc")
    assert several.exit_code == 2
    assert (
        "the ids of 2 workflows begin with 'w1abc': w1abcdefghik-2 (germline), w1abcdefghij-1"
        in several.stderr
    )
    far.service.add("sweep", id="w2-lives")
    far.service.add("sweep", id="w2-newer", state="SUCCEEDED", ended_at=BEGIN)
    assert "sweep: w2-newer, the newest of 2" in flowsched("show", "sweep").stderr
    far.service.add("germline", id="w1abcdefghil-3")
    assert flowsched("pause", "qc").exit_code == 0
    refused = flowsched("cancel", "germline")
    assert refused.exit_code == 2
    assert "2 workflows named 'germline' live: give an id" in refused.stderr
    missing = flowsched("logs", "nothing", "align")
    assert missing.exit_code == 2
    assert "there is no workflow 'nothing': it is no id, no beginning of one, and no name" in missing.stderr


def test_the_calls_of_a_run_are_listed_by_any_name_of_it(flowsched: Run, far: Far) -> None:
    """By its id, the beginning of it, or its name; what is no run of another engine is said."""
    far.service.add("germline", id="w1own")
    far.service.add("calling", id="20260102_calling", source="miniwdl")
    for given in ("20260102_calling", "20260102", "calling"):
        assert flowsched("ls", "--run", given).exit_code == 0
        assert far.service.asked[-1]["run"] == "20260102_calling"
    own = flowsched("ls", "--run", "germline")
    assert own.exit_code == 2
    assert "w1own is no run of another engine" in own.stderr
    assert "there is no workflow 'nothing'" in flowsched("ls", "--run", "nothing").stderr


def test_a_call_names_its_run(flowsched: Run, far: Far) -> None:
    """A failed call is tried again by the engine of its run, not by `retry`."""
    far.service.add("calling.join", id="w1call", state="FAILED", ended_at=BEGIN, run="20260102_calling")
    far.service.documents["w1call"] = b'{"call": {"source": "miniwdl"}, "stages": [{"name": "join"}]}'
    shown = flowsched("show", "w1call").stderr
    assert "a call of the run 20260102_calling: `flowsched show 20260102_calling`" in shown
    assert "run it again with miniwdl" in shown
    assert "retry" not in shown


def test_outputs_of_a_run_of_another_engine_are_in_its_own_folder(
    flowsched: Run, far: Far, tmp_path: Path
) -> None:
    """It is said where, in place of that nothing was written."""
    far.service.add("calling", id="20260102_calling", state="SUCCEEDED", ended_at=BEGIN, source="miniwdl")
    for out in (str(tmp_path), "-"):
        refused = flowsched("get", "calling", "call", "-O", out)
        assert refused.exit_code == 2
        assert (
            "is a run of miniwdl, which keeps its outputs itself, in its own folder of the run"
            in refused.stderr
        )


def test_show_and_explain_have_the_words_of_the_task_that_failed_first(flowsched: Run, far: Far) -> None:
    """First by time, not by its place in the document: what failed later may follow from it."""
    ident = far.service.add("calling", state="FAILED", ended_at=BEGIN)
    late = task_view("align", 0, state="FAILED", exit_code=1, ended_at=BEGIN + timedelta(seconds=9))
    far.service.task_views = [late, task_view("call", 2, state="FAILED", exit_code=3, ended_at=BEGIN)]
    far.service.log["stderr"] = b"no such file: sample.bam\n"

    async def explained(*_: str, **__: object) -> list[ExplanationView]:
        return [ExplanationView(stage="call", tasks=1, state="FAILED", code="Failed", message="exit code 3")]

    far.service.explain = explained  # type: ignore[method-assign]
    for word in ("show", "explain"):
        told = flowsched(word, ident).stderr
        assert "call[2] failed, exit code 3\n  | no such file: sample.bam\n" in told
        assert "align[0]" not in told
        assert f"… and more: `flowsched show {ident} --tasks --state FAILED`" in told
        assert f"next: `flowsched logs {ident} call 2 -e`" in told


def test_a_failed_task_that_wrote_nothing_is_told_of(flowsched: Run, far: Far) -> None:
    """Also of a run of another engine; a task that never ran has no log."""
    ident = far.service.add("calling", state="FAILED", ended_at=BEGIN, source="miniwdl")
    ran = [task_view(stage, 0) for stage in ("align", "call")]
    far.service.task_views = [*ran, task_view("call", 2, state="FAILED", exit_code=1)]
    wrote_nothing = "it wrote nothing to stdout or stderr"
    assert f"call[2] failed, exit code 1\n  {wrote_nothing}\n" in flowsched("show", ident).stderr
    far.service.task_views = [*ran, task_view("call", 2, state="FAILED", attempts=[])]
    assert wrote_nothing not in flowsched("show", ident).stderr


def test_a_task_from_the_cache_has_its_efficiency_where_it_ran(flowsched: Run, far: Far) -> None:
    """`seff` names that run."""
    ident = far.service.add()
    far.service.task_views = [
        task_view("call", 0, state="SUCCEEDED", reason="CACHED w1before/call/4", attempts=[]),
        task_view("call", 1, state="QUEUED", attempts=[]),
    ]
    cached = flowsched("seff", ident, "call", "0")
    assert cached.exit_code == 2
    assert (
        f"call[0] of {ident} has not run: it took the result of w1before; next: `flowsched seff w1before call`"
        in cached.stderr
    )
    assert (
        f"call[1] of {ident} has not been tried: it is QUEUED" in flowsched("seff", ident, "call", "1").stderr
    )


def test_a_task_that_had_too_little_memory_is_told_what_helps(flowsched: Run, far: Far) -> None:
    """Before its log, and in place of an empty one."""
    ident = far.service.add(state="FAILED")
    far.service.task_views = [task_view("call", 3, state="FAILED", exit_code=137, reason="OOMKilled")]
    helps = (
        "call[3] failed, exit code 137: OOMKilled\n"
        '  next: ask for more memory, or "retry": {"attempts": 3, "memory_factor": 2}'
    )
    silent = flowsched("show", ident).stderr
    assert helps in silent
    assert "flowsched logs" not in silent
    far.service.log["stdout"] = b"loading\n"
    assert f"`flowsched logs {ident} call 3`" in flowsched("show", ident).stderr
    assert helps in flowsched("show", ident).stderr


@pytest.mark.parametrize(
    ("source", "words", "again"),
    [
        ("cromwell", "runtime { memory: … }", "run it again with cromwell"),
        ("snakemake", "resources: mem_mb=…", "run it again with snakemake"),
        ("tes", "resources.ram_gb", "run it again with the engine that sent it"),
    ],
)
def test_advice_is_in_the_words_of_the_engine_that_sent_a_task(
    flowsched: Run, far: Far, source: str, words: str, again: str
) -> None:
    """Of a run, and of one call of it, whose document says so."""
    run = far.service.add(state="FAILED", source=source)
    one = far.service.add("call", state="FAILED", run=run)
    far.service.documents[one] = json.dumps({"call": {"source": source}, "stages": [{"name": "t"}]}).encode()
    far.service.task_views = [task_view("call", 3, state="FAILED", exit_code=137, reason="OOMKilled")]
    for ident in (run, one):
        told = flowsched("show", ident).stderr
        assert words in told
        assert again in told
        assert "memory_factor" not in told


def test_a_file_that_was_only_touched_has_a_cure(
    flowsched: Run, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the size or the time of an input differs, `cache` names the setting that looks at the content."""
    ident = far.service.add()
    assert "cache-content" not in flowsched("cache", ident).stderr

    async def missed(_: str) -> list[CacheView]:
        why = "version (size and time, or ETag) of input program differs from w1/call"
        return [CacheView(stage="call", shards=1, first=0, why=why)]

    monkeypatch.setattr(far.service, "cache", missed)
    assert "`flowsched serve --cache-content hash`" in flowsched("cache", ident).stderr


def test_the_log_of_a_stage_is_that_of_its_first_task_and_says_so(flowsched: Run, far: Far) -> None:
    """An item is no index."""
    ident = far.service.add()
    far.service.log["stdout"] = b"written\n"
    far.service.task_views = [task_view("call", at) for at in (3, 4, 7)]
    first = flowsched("logs", ident, "call")
    assert (first.exit_code, first.stdout) == (0, "written\n")
    assert "call[3]; for another task of call give its INDEX, too" in first.stderr
    assert flowsched("logs", ident, "call", "4").stderr == ""
    far.service.task_views = [task_view("call", 5)]
    alone = flowsched("logs", ident, "call")
    assert (alone.stdout, alone.stderr) == ("written\n", "")
    far.service.stage_views = [stage_view(0, "call")]
    far.service.documents[ident] = b'{"stages": [{"name": "call"}]}'
    for command in ("logs", "explain", "seff", "get"):
        wrong = flowsched(command, ident, "call", "S2")
        assert wrong.exit_code == 2
        assert "'S2' is no number" in wrong.stderr
        assert "lists the index" in wrong.stderr


def test_a_task_is_named_by_the_item_of_its_shard(flowsched: Run, far: Far) -> None:
    """Numbers are indices; an item of several tasks names none of them."""
    ident = far.service.add()
    far.service.log["stderr"] = b"oh\n"
    items = ["HG001", "HG002", "0", "twin", "twin"]
    far.service.task_views = [task_view("call", at, item=item) for at, item in enumerate(items)]
    far.service.stage_views = [stage_view(0, "call")]
    assert flowsched("logs", ident, "call", "HG002", "-e").stdout == "oh\n"
    assert far.service.logged[-1] == ("call", 1, "stderr")
    flowsched("logs", ident, "call", "0", "-e")
    assert far.service.logged[-1] == ("call", 0, "stderr")
    several = flowsched("logs", ident, "call", "twin")
    assert several.exit_code == 2
    assert "2 tasks of call have the item 'twin': give an index, of 3, 4" in several.stderr


def test_a_member_of_a_gang_is_named_by_its_role(flowsched: Run, far: Far) -> None:
    """A role of several members names none of them. Errors say the role with the index."""
    ident = far.service.add()
    far.service.log["stderr"] = b"oh\n"
    roles = ["learner", "actor", "actor"]
    far.service.task_views = [task_view("rl", at, role=role) for at, role in enumerate(roles)]
    far.service.stage_views = [stage_view(0, "rl")]
    assert flowsched("logs", ident, "rl", "learner", "-e").stdout == "oh\n"
    assert far.service.logged[-1] == ("rl", 0, "stderr")
    several = flowsched("logs", ident, "rl", "actor")
    assert several.exit_code == 2
    assert "2 tasks of rl have the role 'actor': give an index, of 1, 2" in several.stderr
    far.service.task_views = [task_view("rl", 0)]
    assert "'task' is no number from 0 on" in flowsched("logs", ident, "rl", "task").stderr
    far.service.log["stderr"] = b""
    far.service.task_views = [task_view("rl", 1, role="actor", state="FAILED", reason="OOMKilled")]
    assert "rl[1] (actor)" in flowsched("logs", ident).stderr


def test_a_task_whose_return_code_failed_its_run_is_chosen_as_one_that_failed(
    flowsched: Run, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logs`, `show` and `explain` lead to its log; in a run that its engine has not failed no task is chosen."""
    ident = far.service.add(state="FAILED", source="cromwell", returned={"3": 2}, reason="Cromwell: code 3")
    going_on = far.service.add(state="ENGINE", source="cromwell", returned={"3": 2})
    far.service.task_views = [
        task_view("t", 0), task_view("t", 500_011, item="5.11", exit_code=3), task_view("t", 600_000, item="6.0", exit_code=3),
    ]  # fmt: skip
    far.service.log["stdout"] = b"written\n"

    async def explained(*_: str, **__: object) -> list[ExplanationView]:
        whole = ExplanationView(
            stage="all calls", tasks=0, state="FAILED", code="EngineFailed", message="its engine"
        )
        codes = ExplanationView(
            stage="t", shards=[500_011, 600_000], items=["5.11", "6.0"], tasks=2, state="SUCCEEDED", code="ReturnCode",
            message="2 tasks returned 3",
        )  # fmt: skip
        return [whole, codes]

    monkeypatch.setattr(far.service, "explain", explained)
    chosen = flowsched("logs", ident)
    assert (chosen.exit_code, chosen.stdout) == (0, "written\n")
    assert far.service.logged[-1] == ("t", 500_011, "stdout")
    assert "t[500011] (5.11) returned 3; for another task give its STAGE" in chosen.stderr
    assert flowsched("logs", ident, "t", "6.0").exit_code == 0
    assert far.service.logged[-1] == ("t", 600_000, "stdout")
    told = flowsched("explain", ident)
    assert "all calls  FAILED  EngineFailed\n  its engine\nt  2 tasks SUCCEEDED  ReturnCode\n" in told.stdout
    assert "  5.11, 6.0\n" in told.stdout
    for command in ("explain", "show"):
        assert f"next: `flowsched logs {ident} t 500011`" in flowsched(command, ident).stderr
    assert f"no task of {going_on} failed" in flowsched("logs", going_on).stderr


def test_a_log_without_a_stage_is_that_of_the_task_that_failed(flowsched: Run, far: Far) -> None:
    """Where no task failed, the stages are named."""
    ident = far.service.add()
    far.service.log["stdout"] = b"written\n"
    far.service.task_views = [task_view("call", 0), task_view("call", 1, state="FAILED", item="HG002")]
    failed = flowsched("logs", ident)
    assert failed.stdout == "written\n"
    assert far.service.logged[-1] == ("call", 1, "stdout")
    assert "call[1] (HG002) failed; for another task give its STAGE" in failed.stderr
    far.service.task_views, far.service.stage_views = [], [stage_view(0, "split"), stage_view(1, "call")]
    none = flowsched("logs", ident)
    assert none.exit_code == 2
    assert f"no task of {ident} failed: of which stage? It has split, call" in none.stderr
    far.service.stage_views = [stage_view(0, "call", width=1)]
    far.service.task_views = [task_view("call", 0)]
    assert flowsched("logs", ident).stdout == "written\n"
    assert far.service.logged[-1] == ("call", 0, "stdout")


def test_a_paused_workflow_is_said_to_be_so_once(flowsched: Run, far: Far) -> None:
    """And one that still runs is said to be paused, too."""
    assert flowsched("show", far.service.add(state="PAUSED", paused=True)).stdout.count("paused") == 0
    assert "RUNNING after" in (shown := flowsched("show", far.service.add(paused=True)).stdout)
    assert "(paused)" in shown


def test_workflows_are_listed(flowsched: Run, far: Far) -> None:
    """Newest first, as a table without trailing spaces."""
    far.service.add("first")
    far.service.add("second", state="SUCCEEDED", counts={"SUCCEEDED": 4})
    result = flowsched("ls")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["NAME", "ID", "STATE", "DONE", "FAILED", "NOW", "TIME", "QUEUE", "CREATED"]
    assert lines[1].split()[:5] == ["second", "wf2", "SUCCEEDED", "4/4", "0"]
    assert lines[2].split()[:2] == ["first", "wf1"]
    assert all(line == line.rstrip() for line in lines)
    assert result.exit_code == 0


def test_lists_are_json_for_programs(flowsched: Run, far: Far) -> None:
    """An array, or one object per line."""
    far.service.add()
    far.service.add()
    assert [view["id"] for view in json.loads(flowsched("ls", "-o", "json").stdout)] == ["wf2", "wf1"]
    lines = flowsched("ls", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["wf2", "wf1"]
    for command in (["nodes"], ["queue", "ls"], ["explain", "wf1"], ["show", "wf1"]):
        assert json.loads(flowsched(*command, "-o", "json").stdout)


def test_a_long_list_says_that_there_is_more(flowsched: Run, far: Far) -> None:
    """On stderr, so that the list stays a list."""
    for _ in range(4):
        far.service.add()
    result = flowsched("ls", "--limit", "3", "--state", "running", "-o", "jsonl")
    assert len(result.stdout.splitlines()) == 3
    assert "--limit" in result.stderr
    assert far.service.asked[0]["state"] == "RUNNING"


def test_a_workflow_is_shown_with_what_its_stages_waited_for(flowsched: Run, far: Far) -> None:
    """Queued, staged and ran apart; bytes found and moved."""
    workflow = far.service.add()
    result = flowsched("show", workflow, "--tasks")
    assert "germline wf1 RUNNING" in result.stdout
    align = next(line for line in result.stdout.splitlines() if line.startswith("align  RUNNING"))
    assert align.split()[:4] == ["align", "RUNNING", "1/3", "0"]
    assert align.endswith("1 running, 1 queued    4.0s     2.5s  1m01s  3.0 GiB  1.0 MiB")
    assert "node-0" in result.stdout
    assert "times are sums over the tasks of a stage" in result.stdout


def test_a_submission_prints_the_id(flowsched: Run, far: Far, document: Path) -> None:
    """And nothing else, for scripts; relative inputs were made absolute."""
    result = flowsched("submit", str(document), "--idempotency-key", "k")
    assert result.stdout == "wf1\n"
    sent = json.loads(far.service.documents["wf1"])
    assert sent["stages"][0]["inputs"][0]["uri"] == f"{document.parent}/reads.fq"
    again = flowsched("submit", str(document), "--idempotency-key", "k")
    assert (again.stdout, "accepted before" in again.stderr) == ("wf1\n", True)


def test_a_document_is_read_from_standard_input(flowsched: Run, far: Far) -> None:
    """By the name `-`."""
    assert flowsched("submit", "-", input='{"name": "piped"}').stdout == "wf1\n"
    assert far.service.workflows["wf1"].name == "piped"


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("CANCELLED", 1)])
def test_waiting_ends_with_the_workflows_verdict(
    flowsched: Run, far: Far, document: Path, state: str, code: int
) -> None:
    """The exit code, the stages, what to type next."""
    far.service.finish_on_submit = state
    result = flowsched("submit", str(document), "--wait")
    assert result.exit_code == code
    assert f"germline wf1 {state}" in result.stdout
    assert "submitted wf1" in result.stderr


def test_a_run_shows_what_was_made(flowsched: Run, far: Far, document: Path) -> None:
    """Outputs of the last stage and recorded values, escaped."""
    far.service.finish_on_submit = "SUCCEEDED"
    far.service.stage_views = [stage_view(0, "align", state="SUCCEEDED", counts={"SUCCEEDED": 1}, width=1)]
    output = OutputView(
        name="sum", uri="flowsched:x", size_bytes=2048, value="332834500\x1b[2J\n", nodes=["n1"]
    )
    far.service.task_views = [task_view("align", 0, outputs=[output])]
    written = {"name": "sum", "path": "sum", "value": True}
    stage = {"name": "align", "command": ["true"], "outputs": [written]}
    document.write_text(json.dumps({"name": "germline", "stages": [stage]}))
    result = flowsched("run", str(document))
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if line.startswith("align[0].sum"))
    assert line.split() == ["align[0].sum", "2.0", "KiB", r"332834500\x1b[2J", "n1", "flowsched:x"]
    found = json.loads(flowsched("run", str(document), "-o", "json").stdout)
    assert found["outputs"][0]["value"] == "332834500\x1b[2J\n"
    assert found["workflow"]["state"] == "SUCCEEDED"


def test_a_failure_shows_the_end_of_its_log(flowsched: Run, far: Far, document: Path) -> None:
    """Exit code, reason, last lines, and the next command."""
    far.service.finish_on_submit = "FAILED"
    far.service.stage_views = [stage_view(0, "align", state="FAILED", counts={"FAILED": 1})]
    failed = task_view("align", 2, state="FAILED", exit_code=7, reason="out of memory")
    far.service.task_views = [task_view("align", 0), failed]
    far.service.log["stderr"] = b"first\n" * 50 + b"\x1b[31mlast words\n"
    result = flowsched("submit", str(document), "--wait")
    assert result.exit_code == 1
    assert "align[2] failed, exit code 7: out of memory" in result.stderr
    assert "  | \\x1b[31mlast words" in result.stderr
    assert result.stderr.count("| first") == 14
    assert "`flowsched logs wf1 align 2 -e`" in result.stderr


def test_watching_waits_for_a_service_that_waits_for_its_database(
    flowsched: Run, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so once, and ends with the workflow."""
    workflow = far.service.add(state="SUCCEEDED")
    asked, stages = 0, far.service.stages

    async def away(ident: str) -> Any:
        nonlocal asked
        asked += 1
        if asked <= 2 * ATTEMPTS:
            raise errors.Unavailable("postgresql://db does not answer")
        return await stages(ident)

    monkeypatch.setattr(far.service, "stages", away)
    monkeypatch.setattr(following, "AWAY_S", 0.0)
    monkeypatch.setattr(session, "LONGEST_WAIT_S", 0.01)
    result = flowsched("watch", workflow)
    assert result.exit_code == 0
    assert result.stderr.count(f"{workflow} goes on, and this command waits for the service") == 1


def test_watching_goes_on_when_the_service_is_back(
    flowsched: Run, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens for a while: it says so once, and ends with the verdict of the workflow."""
    workflow, stages = far.service.add(), far.service.stages
    left = False

    async def leave(ident: str) -> Any:
        nonlocal left
        if not left:
            left = True
            far.service.finish(workflow)
            asyncio.get_running_loop().create_task(far.away(0.5))
        return await stages(ident)

    monkeypatch.setattr(far.service, "stages", leave)
    monkeypatch.setattr(following, "AWAY_S", 0.05)
    result = flowsched("watch", workflow)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count(f"{workflow} goes on, and this command waits for the service") == 1


def test_several_documents_are_submitted_at_once(flowsched: Run, far: Far, document: Path) -> None:
    """All are handed in before the first is waited for; one that cannot be read keeps all back."""
    other = document.with_name("other.json")
    other.write_text('{"name": "other"}')
    done = flowsched("submit", str(document), str(other))
    assert (done.exit_code, done.stdout) == (0, "wf1\nwf2\n")
    far.service.finish_on_submit = "FAILED"
    done = flowsched("submit", str(document), str(other), "--wait")
    assert done.exit_code == 1
    told = [line for line in done.stderr.splitlines() if "wf3" in line or "wf4" in line]
    assert told[:2] == ["submitted wf3", "submitted wf4"]
    assert [far.service.workflows[ident].name for ident in ("wf3", "wf4")] == ["germline", "other"]
    refused = flowsched("submit", str(document), str(document.with_name("none.json")))
    assert (refused.exit_code, len(far.service.workflows)) == (2, 4)
    keyed = flowsched("submit", str(document), str(other), "--idempotency-key", "k")
    assert (keyed.exit_code, len(far.service.workflows)) == (2, 4)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """With the option that chooses another; a token of nowhere names no address."""
    file = tmp_path / "file"
    file.touch()
    given = ["--root", str(file), "--port", "0", "--no-supervise"]
    done = ran(["serve", *given])
    assert (done.returncode, f"{file} is a file" in done.stderr, "--root DIR" in done.stderr) == (
        2,
        True,
        True,
    )
    said = CliRunner().invoke(app, ["token", "--root", str(tmp_path / "nowhere")]).stderr
    assert f"no token is known: {tmp_path / 'nowhere'} keeps none" in said


def shown(renderable: RenderableType) -> str:
    """As a wide terminal shows it."""
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get().rstrip()


def test_a_node_is_draining_until_its_tasks_have_ended() -> None:
    """The words of the service's states; below the list stand the author, the reason, and what is moved when."""
    drain = DrainView(from_at=BEGIN, by="ada", reason="new disk", until_at=BEGIN)
    view = NodeView(name="n", ready=False, state="DRAINING", drain=drain, running=2)
    assert render.node_state(view).plain == "draining"
    assert render.node_state(NodeView(name="n", ready=False, state="NOT_READY")).plain == "not ready"
    began = render.moment(BEGIN)
    assert shown(render.node_panel([view])).splitlines()[-1] == (
        f"n: drained from {began} on by ada: new disk; what runs at {began} is moved"
    )
    coming = NodeView(name="m", ready=True, drain=DrainView(from_at=BEGIN))
    away = NodeView(name="o", ready=False, state="NOT_READY", message="kubelet stopped posting")
    assert shown(render.node_panel([coming, away])).splitlines()[-2:] == [
        f"m: will be drained from {began} on",
        "o: not ready: kubelet stopped posting",
    ]


def test_a_level_of_the_log_that_there_is_not_is_refused(tmp_path: Path) -> None:
    """It was taken for `info`."""
    given = ["--root", str(tmp_path), "--port", "0", "--no-supervise", "--log-level", "loud"]
    done = CliRunner().invoke(app, ["serve", *given])
    assert (done.exit_code, "not 'loud'" in done.stderr) == (2, True), done.stderr


def test_watching_tells_each_change(flowsched: Run, far: Far) -> None:
    """Without a terminal: a line whenever a stage's state changes; 1 if it failed."""
    workflow = far.service.add()

    look = far.service.stages

    async def seen_once(ident: str) -> list[StageView]:
        """It fails as soon as the command has looked how it began."""
        begun = await look(ident)
        far.service.stages = look  # type: ignore[method-assign]
        far.service.stage_views = [stage_view(0, "align", state="FAILED", reason="task 1 failed")]
        far.service.finish(workflow, "FAILED")
        return begun

    far.service.stages = seen_once  # type: ignore[method-assign]
    result = flowsched("watch", workflow)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == ["align: RUNNING 1/3", "align: FAILED 1/3 (task 1 failed)"]


def test_an_explanation_has_words_and_numbers(flowsched: Run, far: Far) -> None:
    """As the service gave them."""
    far.service.add()
    assert "2 of 4 cpu are free" in flowsched("explain", "wf1", "align").stdout
    assert "2000" not in flowsched("explain", "wf1").stdout, (
        "the words have the numbers already, with their units"
    )
    assert json.loads(flowsched("explain", "wf1", "-o", "json").stdout)[0]["numbers"] == {
        "free": 2000,
        "asked": 4000,
    }


def test_logs_into_a_pipe_are_the_bytes_themselves(flowsched: Run, far: Far) -> None:
    """Of either stream, of a task, or of the first one."""
    workflow = far.service.add()
    far.service.log = {"stdout": b"\x1b[31m\xff\x00out", "stderr": b"err"}
    assert flowsched("logs", workflow, "align").stdout_bytes == b"\x1b[31m\xff\x00out"
    assert flowsched("logs", workflow, "align", "1", "--stderr").stdout_bytes == b"err"
    assert flowsched("logs", workflow, "align", "9").exit_code == 2


@pytest.mark.parametrize("kind", ["cancel", "retry", "pause", "resume"])
def test_commands_are_passed_on(flowsched: Run, far: Far, kind: str) -> None:
    """With the reason."""
    workflow = far.service.add(state="FAILED")
    far.service.documents[workflow] = b'{"name": "g", "stages": [{"name": "a", "command": ["x"]}]}'
    assert flowsched(kind, workflow, "--reason", "why").exit_code == 0
    assert far.service.commands == [(workflow, kind, {"reason": "why"})]


def test_a_retry_can_be_waited_for(flowsched: Run, far: Far, document: Path) -> None:
    """As `submit --wait`: it ends as the workflow does, with `--changed` as the new one does."""
    ident = far.service.add(state="FAILED", ended_at=BEGIN)
    far.service.documents[ident] = b'{"name": "g", "stages": [{"name": "a", "command": ["x"]}]}'
    ends = threading.Timer(0.5, lambda: far.service.finish(ident, "FAILED"))
    ends.start()
    waited = flowsched("retry", ident, "--wait")
    ends.join()
    assert (waited.exit_code, f"germline {ident} FAILED" in waited.stdout) == (1, True)
    far.service.finish_on_submit = "SUCCEEDED"
    anew = flowsched("retry", ident, "--changed", str(document), "-w")
    assert (anew.exit_code, "SUCCEEDED" in anew.stdout) == (0, True)
    refused = flowsched("retry", ident, "--changed", str(document), "--reason", "x")
    assert (refused.exit_code, "leave out --reason" in refused.stderr) == (2, True)


def test_a_queue_is_set_by_what_is_said(flowsched: Run, far: Far) -> None:
    """Amounts as name=quantity; nonsense is a usage error."""
    result = flowsched(
        "queue", "set", "lab", "--weight", "3", "--pause", "--cap", "cpu=4", "--cap", "memory=8Gi"
    )
    assert result.exit_code == 0
    assert far.service.queue_settings["lab"] == {
        "weight": 3, "paused": True, "cap": {"cpu": "4", "memory": "8Gi"},
    }  # fmt: skip
    assert flowsched("queue", "set", "lab", "--cap", "cpu").exit_code == 2


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (errors.Unauthorized("who?"), 2, "--token"),
        (errors.NotFound("no workflow x"), 2, "flowsched ls"),
        (errors.Conflict("it has ended"), 2, "it has ended"),
        (errors.Unavailable("database away"), 3, "ask again in a moment"),
        (errors.LeadershipLost("x"), 1, "its log has the cause"),
    ],
)
def test_errors_are_a_sentence_and_a_next_step(
    flowsched: Run, far: Far, raised: Exception, code: int, said: str
) -> None:
    """On stderr, without a traceback."""
    far.service.failure = raised
    with capture_logs():
        result = flowsched("nodes")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_standby_names_whom_to_ask_and_not_to_ask_again(flowsched: Run, far: Far) -> None:
    """It never answers, however often it is asked: the command ends at once."""
    far.service.failure = errors.NotLeader("this process does not lead: ask http://127.0.0.1:1")
    began = time.monotonic()
    result = flowsched("nodes")
    assert result.exit_code == 2
    assert result.stderr == "error: this process does not lead: ask http://127.0.0.1:1\n"
    assert time.monotonic() - began < 5


def test_a_document_is_checked_without_a_service(document: Path) -> None:
    """Nothing is submitted, and no service asked; faults have their lines."""
    checked = CliRunner().invoke(app, ["submit", "--dry-run", str(document)])
    assert (checked.exit_code, checked.stdout) == (0, "")
    assert checked.stderr == f"{document} has no faults: 1 stage, 1 task\n"
    document.write_text('{"name": "germline", "stages": [\n{"name": "align", "comand": ["true"]}]}')
    wrong = CliRunner().invoke(app, ["submit", "--dry-run", str(document)])
    assert wrong.exit_code == 2
    assert f"{document}:2: " in wrong.stderr
    assert "command" in wrong.stderr


def test_faults_of_a_document_are_a_list(flowsched: Run, tmp_path: Path) -> None:
    """Path, found, expected; exit code 2."""
    file = tmp_path / "bad.json"
    file.write_text('{"stages": []}')
    result = flowsched("submit", str(file))
    assert result.exit_code == 2
    assert (
        result.stderr == f"error: the document has 1 fault\n  {file}:1: name: found None, expected a name\n"
    )


def test_a_file_that_is_not_there_is_said(flowsched: Run) -> None:
    """With its name."""
    result = flowsched("submit", "nope.json")
    assert (result.exit_code, result.stderr) == (2, "error: No such file or directory: nope.json\n")


def test_nobody_there_is_exit_code_3() -> None:
    """And what to do about it."""
    result = CliRunner().invoke(app, ["ls", "--server", "http://127.0.0.1:9"])
    assert result.exit_code == 3
    assert "flowsched serve" in result.stderr


def test_a_command_waits_for_a_service_that_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`flowsched serve --port N &`, and a command at once: no service is known yet, nothing listens, then one is there."""
    monkeypatch.setattr(session, "START_S", 60.0)
    monkeypatch.setattr(tokens, "DEFAULT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Far() as far:
        far.service.add()
        began = threading.Timer(
            0.5, lambda: tokens.announce(int(far.url.rpartition(":")[2]), "", tokens.data_folder())
        )
        began.start()
        result = CliRunner().invoke(app, ["ls"])
        began.join()
    assert result.exit_code == 0, result.stderr
    assert "RUNNING" in result.stdout


def test_the_token_is_taken_from_option_or_environment() -> None:
    """The server refuses without."""
    with Far(token="t0") as far:
        runner = CliRunner()
        assert runner.invoke(app, ["nodes", "--server", far.url]).exit_code == 2
        assert runner.invoke(app, ["nodes", "--server", far.url, "--token", "t0"]).exit_code == 0
        environment = {"FLOWSCHED_SERVER": far.url, "FLOWSCHED_TOKEN": "t0"}
        assert runner.invoke(app, ["nodes"], env=environment).exit_code == 0


def test_global_options_may_stand_anywhere() -> None:
    """But not behind `--`, and nothing else is moved."""
    assert hoisted(["ls", "--server", "u", "-o", "json", "--debug", "--token=t"]) == [
        "--server", "u", "--debug", "--token=t", "ls", "-o", "json",
    ]  # fmt: skip
    assert hoisted(["serve", "--token-file", "f"]) == ["serve", "--token-file", "f"]
    assert hoisted(["logs", "--", "--server", "x"]) == ["logs", "--", "--server", "x"]


def test_every_command_has_help() -> None:
    """With a first line that fits."""
    runner = CliRunner()
    listed = runner.invoke(app, ["--help"]).stdout
    names = "run serve submit ls show watch explain logs cancel retry pause resume queue nodes demo doctor db version"
    names += " get secret agent plan cromwell"
    for name in names.split():
        assert f"\n  {name} " in listed
        assert runner.invoke(app, [name, "--help"]).exit_code == 0
    assert "..." not in listed.split("Commands:")[1]


def test_fault_46e_serving_others_needs_a_token(tmp_path: Path) -> None:
    """Refused with what to do; nothing listens."""
    result = CliRunner().invoke(
        app, ["serve", "--no-token", "--host", "0.0.0.0", "--root", str(tmp_path / "r")]
    )
    assert result.exit_code == 2
    assert "needs a token" in result.stderr
    empty = tmp_path / "token"
    empty.write_text("\n")
    result = CliRunner().invoke(app, ["serve", "--token-file", str(empty), "--root", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert "is empty" in result.stderr


def test_several_workflows_are_cancelled_at_once(flowsched: Run, far: Far) -> None:
    """By ids and names."""
    far.service.add("first")
    far.service.add("second")
    assert flowsched("cancel", "first", "wf2", "--reason", "enough").exit_code == 0
    assert sorted(each[:2] for each in far.service.commands) == [("wf1", "cancel"), ("wf2", "cancel")]


def test_a_word_that_means_no_workflow_does_not_keep_others_from_being_cancelled(
    flowsched: Run, far: Far
) -> None:
    """It is named, and the exit code says that something was wrong."""
    far.service.add("first")
    done = flowsched("cancel", "wf1", "nothing")
    assert (done.exit_code, [each[:2] for each in far.service.commands]) == (2, [("wf1", "cancel")])
    assert "there is no workflow 'nothing'" in done.stderr


def test_many_ids_are_cancelled_by_few_requests(flowsched: Run, far: Far) -> None:
    """600 ids take three requests: each made two, one by one."""
    ids = [far.service.add(f"many{n}") for n in range(600)]
    assert flowsched("cancel", *ids).exit_code == 0
    assert far.service.batches == [250, 250, 100]
    assert len(far.service.commands) == 600


def test_all_live_workflows_of_a_user_are_cancelled_after_a_question(flowsched: Run, far: Far) -> None:
    """Without a terminal nothing is asked and nothing cancelled, unless --yes is given; the number is said first."""
    for n in range(3):
        far.service.add(f"run{n}", user="ada" if n else "bob")
    done = flowsched("cancel", "--user", "ada", "--queue", "default")
    assert (done.exit_code, far.service.commands) == (2, [])
    assert (
        "error: cancel 2 live workflows of user 'ada' and queue 'default'? Nothing is cancelled: without a terminal, give --yes"
        in done.stderr
    )
    done = flowsched("cancel", "--user", "ada", "--yes")
    assert (done.exit_code, sorted(each[0] for each in far.service.commands)) == (0, ["wf2", "wf3"])
    assert "cancelled 2 of 2 live workflows of user 'ada'" in done.stdout
    assert "there are no live workflows of user 'eve'" in flowsched("cancel", "--user", "eve").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name workflows, or give --user or --queue"),
        (["wf1", "--user", "ada"], "name workflows, or give --user or --queue"),
        (["wf1", "wf2", "--task", "align"], "name the one workflow whose task it is"),
    ],
)
def test_a_cancel_that_does_not_say_of_what_is_refused(flowsched: Run, words: list[str], said: str) -> None:
    """Nothing is guessed."""
    done = flowsched("cancel", *words)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_one_task_is_cancelled(flowsched: Run, far: Far) -> None:
    """By its stage, and its index where the stage has several."""
    far.service.add("first")
    assert flowsched("cancel", "first", "--task", "align/1", "--reason", "hung").exit_code == 0
    assert far.service.commands == [("wf1/align/1", "cancel_task", {"reason": "hung"})]


def test_lists_ask_for_a_user_and_a_time(flowsched: Run, far: Far) -> None:
    """As the options say."""
    far.service.add("first")
    flowsched("ls", "--user", "ada", "--since", "7d", "--until", "2026-11-01")
    asked = far.service.asked[-1]
    assert (asked["user"], asked["since"], asked["until"], asked["live"]) == (
        "ada",
        "7d",
        "2026-11-01",
        False,
    )


def test_the_doctor_names_the_option_for_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service uses those that it is told of, so the devices of this machine are counted."""
    monkeypatch.setattr("os.listdir", lambda _: ["nvidia0", "nvidia1", "nvidiactl", "null"])
    (found,) = doctor.gpus(doctor.Place(tmp_path, "", "", None))
    assert found.next == "if tasks shall use them: flowsched serve --gpus 2"
    monkeypatch.setattr("os.listdir", lambda _: ["nvidiactl"])
    (none,) = doctor.gpus(doctor.Place(tmp_path, "", "", None))
    assert (none.mark, none.found, none.next) == (
        "ok",
        "none in /dev: tasks that ask for GPUs wait for other nodes",
        "",
    )


@pytest.mark.parametrize("raised", [errors.NotLeader("host:/a leads"), errors.Unavailable("not yet")])
def test_doctor_says_that_a_standby_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raised: errors.FlowschedError
) -> None:
    """A standby answers and does not lead."""

    async def ready(_: Client) -> tuple[bool, str]:
        return True, "standing by: a leads on host:/a"

    async def nodes(_: Client) -> list[object]:
        raise raised

    monkeypatch.setattr(Client, "ready", ready)
    monkeypatch.setattr(Client, "nodes", nodes)
    (found,) = asyncio.run(doctor.service(doctor.Place(tmp_path, "", "http://127.0.0.1:1", None)))
    assert (found.mark, found.found) == ("warn", f"http://127.0.0.1:1 answers: {raised}")


def test_the_doctor_looks_at_everything(flowsched: Run, tmp_path: Path) -> None:
    """Each finding is ok, warn or fail; a service that answers is ok."""
    result = flowsched("doctor", "--root", str(tmp_path), "-o", "json")
    found = {check["name"]: check["mark"] for check in json.loads(result.stdout)}
    assert set(found.values()) <= {"ok", "warn", "fail"}
    assert (found["python"], found["root"], found["database"], found["service"], found["nodes"]) == (
        "ok",
    ) * 5
    assert {"wdl", "kubernetes", "namespaces", "addresses", "machine"} <= set(found)
    assert result.exit_code == 0
    alone = CliRunner().invoke(app, ["doctor", "--root", str(tmp_path), "--server", "http://127.0.0.1:9"])
    assert "next: " in alone.stdout  # nobody serves there, or nobody may


@pytest.mark.parametrize(
    ("revision", "mark", "found", "step"),
    [
        (None, "ok", "empty; the first start makes the schema", ""),
        (
            "0016",
            "fail",
            "schema 0016 is of a build before the release of 0.1.0",
            "start this one on a new --db",
        ),
        ("9999", "fail", "is newer than this version knows", "restore the backup"),
    ],
)
def test_the_doctor_says_what_becomes_of_a_schema(
    tmp_path: Path, revision: str | None, mark: str, found: str, step: str
) -> None:
    """A new, an older and a newer one: the service makes and upgrades it itself, and cannot use a newer one."""
    path = tmp_path / "flowsched.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        if revision is not None:
            database.execute("CREATE TABLE alembic_version (version_num TEXT)")
            database.execute("CREATE TABLE workflows (id TEXT)")
            database.execute("INSERT INTO alembic_version VALUES (?)", (revision,))
            database.commit()
    given = ["--root", str(tmp_path), "--server", "http://127.0.0.1:9"]
    result = CliRunner().invoke(app, ["doctor", *given, "-o", "json"])
    check = next(each for each in json.loads(result.stdout) if each["name"] == "database")
    assert (check["mark"], found in check["found"], step in check["next"]) == (mark, True, True), check
    checked = CliRunner().invoke(app, ["db", "check", "--root", str(tmp_path), "-o", "json"])
    assert (json.loads(checked.stdout)["revision"], checked.exit_code) == (revision, 1)


@pytest.mark.parametrize("command", ["check", "expire", "upgrade"])
def test_a_root_without_a_database_of_its_own_is_told_how_to_name_the_other(
    tmp_path: Path, command: str
) -> None:
    """Its service, which has made its secret there, is on PostgreSQL. Nothing is made."""
    (tmp_path / "secret").write_bytes(b"s" * 32)
    done = CliRunner().invoke(app, ["db", command, "--root", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{tmp_path} has no database of its own" in done.stderr
    assert "--db URL, or FLOWSCHED_DATABASE" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_upgrade_makes_the_database_of_a_new_root(tmp_path: Path) -> None:
    """Before the first start of its service."""
    made = CliRunner().invoke(app, ["db", "upgrade", "--root", str(tmp_path)])
    checked = CliRunner().invoke(app, ["db", "check", "--root", str(tmp_path), "-o", "json"])
    assert (made.exit_code, checked.exit_code) == (0, 0)
    assert json.loads(checked.stdout)["revision"] == made.stdout.strip()


def test_the_doctor_says_that_a_service_asks_for_a_token(tmp_path: Path) -> None:
    """Without one, or with a wrong one, the port is not merely taken."""
    with Far(token="word") as far:
        for given in ((), ("--token", "x")):
            result = CliRunner().invoke(app, ["doctor", "--root", str(tmp_path), "--server", far.url, *given])
            assert result.exit_code == 1
            assert f"{far.url} runs: " in result.stdout
            assert "is taken" not in result.stdout


def test_a_queue_is_removed_by_its_name(flowsched: Run, far: Far) -> None:
    """A second time there is none."""
    flowsched("queue", "set", "lab", "--weight", "3")
    assert flowsched("queue", "rm", "lab").stdout == "removed queue lab\n"
    again = flowsched("queue", "rm", "lab")
    assert (again.exit_code, "there is no queue 'lab'" in again.stderr) == (2, True)


def test_a_mistyped_name_is_answered_with_the_one_that_was_meant(flowsched: Run, far: Far) -> None:
    """Of workflows by name and by the beginning of an id, and of stages and nodes."""
    far.service.add("germline", id="w1abcdefghik-2")
    assert "did you mean 'germline'?" in flowsched("show", "germlin").stderr
    assert "did you mean 'w1abcdefghik-2'?" in flowsched("show", "w1abcdefhg").stderr
    assert "did you mean" not in flowsched("show", "nothing-like-it").stderr


def test_help_imports_nothing_heavy() -> None:
    """Neither SQL nor arrays nor HTTP nor rich."""
    program = (
        "import atexit, sys\nsys.argv = ['flowsched', '--help']\n"
        "heavy = {'sqlalchemy', 'numpy', 'aiohttp', 'networkx', 'msgspec', 'rich'}\n"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules))))\n"
        "from flowsched.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize(("own", "threads"), [(None, "1"), ("2", "2")])
def test_a_command_starts_no_threads_of_numpy(own: str | None, threads: str) -> None:
    """They took 0.06 s of CPU time. A user's own number of them stays."""
    program = (
        "import atexit, os, sys\nsys.argv = ['flowsched', 'version']\n"
        "def told():\n    import numpy\n"
        "    print(os.environ['OPENBLAS_NUM_THREADS'], len(os.listdir('/proc/self/task')))\n"
        "atexit.register(told)\nfrom flowsched.__main__ import main\nmain()"
    )
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    if own is not None:
        env["OPENBLAS_NUM_THREADS"] = own
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=env
    )
    assert done.stdout.splitlines()[-1].split()[0] == threads
    if own is None:
        assert done.stdout.splitlines()[-1].split()[1] == "1"


@pytest.mark.parametrize(
    ("end", "status", "torn_down"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("threading.Thread(target=time.sleep, args=(0.2,)).start()", 0, "torn down"),
        ("sys.setprofile(lambda *_: None)", 0, "torn down"),
    ],
)
def test_a_command_ends_without_taking_python_down(end: str, status: int, torn_down: str) -> None:
    """All is written and what was registered for the end is done. A thread that lives, or a profiler, gets Python's own end."""
    program = (
        "import atexit, os, sys, threading, time\n"
        "class Kept:\n    def __del__(self, write=os.write): write(2, b'torn down')\n"
        "kept = Kept()\natexit.register(lambda: print('registered'))\n"
        "import typer\nfrom flowsched.__main__ import main\n"
        f"def called(app, prog_name):\n    print('said')\n    {end}\n    raise SystemExit(0)\n"
        "typer.Typer.__call__ = called\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (status, ["said", "registered"], torn_down)


def test_the_list_of_commands_has_the_first_line_of_each_help() -> None:
    """It is a table, so that `flowsched --help` loads no command."""
    commands: Any = get_command(app)
    listed = {name: told for name, (_, told) in COMMANDS.items()}
    assert listed.pop("pod") == ""  # for pods, not for people
    for name, told in listed.items():
        assert commands.commands[name].get_short_help_str(200) == told


def test_only_the_module_of_the_command_is_loaded() -> None:
    """Another one would cost its imports."""
    program = (
        "import sys; from flowsched.cli.app import app; app(['version'], standalone_mode=False); "
        "print([name for name in sys.modules if name.startswith('flowsched.cli.')])"
    )
    told = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert "listing" not in told
    assert "running" not in told


def command(*args: str, **settings: Any) -> Forked:
    environment = {**os.environ, "FLOWSCHED_SERVER": ""}
    return Forked(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **settings)


def test_a_real_process_has_the_same_exit_codes(far: Far, document: Path) -> None:
    """As a shell sees them."""
    for args, code in (
        (["version"], 0),
        (["ls", "--server", far.url], 0),
        (["ls", "--nonsense"], 2),
        (["show", "nope", "--server", far.url], 2),
        (["ls", "--server", "http://127.0.0.1:1"], 3),
    ):
        process = command(*args)
        _, complaint = process.communicate(timeout=120)
        assert process.returncode == code, (args, complaint)
        assert "Traceback" not in complaint


def test_ctrl_c_leaves_a_workflow_of_a_server_alone(far: Far) -> None:
    """130, how to come back, how to stop it; nothing was cancelled."""
    workflow = far.service.add()
    process = command("watch", workflow, "--server", far.url)
    end = time.monotonic() + 120
    while not far.service.streams_open:
        assert time.monotonic() < end, "it does not ask for events"
        time.sleep(0.1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"flowsched watch {workflow}" in said
    assert f"flowsched cancel {workflow}" in said
    assert far.service.commands == []


def test_the_history_of_a_workflow(flowsched: Run, far: Far) -> None:
    """As lines for people, as an array, or as lines of JSON; `watch -o jsonl` goes on until the end."""
    workflow = far.service.add()
    far.service.happen(workflow, "task.started", node="node-0", attempt=1)
    line = flowsched("events", "germline").stdout.splitlines()[0]
    assert line.endswith("task.started          node node-0  attempt 1")
    assert [each["kind"] for each in json.loads(flowsched("events", workflow, "-o", "json").stdout)] == [
        "task.started"
    ]
    far.service.finish(workflow)
    watched = [
        json.loads(line)["kind"] for line in flowsched("watch", workflow, "-o", "jsonl").stdout.splitlines()
    ]
    assert watched == ["task.started", "workflow.succeeded"]


def test_the_version_is_an_option_too(flowsched: Run) -> None:
    """As of most programs."""
    assert CliRunner().invoke(app, ["--version"]).stdout == flowsched("version").stdout


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("empty.json", " ", "is empty; a workflow as JSON or YAML was expected"),
        ("a.wdl", "workflow w {}", "is a workflow of another engine (WDL): give its file to `flowsched run`"),
        ("-", "# hello\nversion 1.0\n", "standard input is a workflow of another engine (WDL)"),
        ("bad.yaml", "name: [", "not YAML"),
    ],
)
def test_what_is_no_document_is_said(flowsched: Run, tmp_path: Path, name: str, text: str, said: str) -> None:
    """By what it is, and what to do with it."""
    file = tmp_path / name
    file.write_text(text)
    result = flowsched("submit", name if name == "-" else str(file), input=text)
    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")


def test_a_document_may_be_yaml(flowsched: Run, far: Far, tmp_path: Path) -> None:
    """It is sent as JSON; relative inputs lie beside it."""
    file = tmp_path / "w.yaml"
    file.write_text(
        "name: w\nstages:\n- name: a\n  command: [cat]\n  inputs:\n  - {name: r, uri: reads.fq}\n"
    )
    assert flowsched("submit", str(file)).exit_code == 0
    sent = json.loads(far.service.documents["wf1"])
    assert sent["stages"][0]["inputs"][0]["uri"] == f"{tmp_path}/reads.fq"


def test_one_queue_is_shown(flowsched: Run, far: Far) -> None:
    """And a name that is none is answered with those that there are."""
    far.service.queue_settings |= {"lab": {"weight": 3}, "night": {}}
    assert flowsched("queue", "show", "lab").stdout.splitlines()[1].split()[:2] == ["lab", "3"]
    missing = flowsched("queue", "show", "day")
    assert missing.exit_code == 2
    assert "there is no queue 'day'; there are" in missing.stderr


def test_an_empty_log_says_why(flowsched: Run, far: Far) -> None:
    """A task that has not run is an error; one that wrote to the other stream is not."""
    workflow = far.service.add()
    far.service.log = {"stdout": b"", "stderr": b"oh\n"}
    far.service.task_views = [task_view("align", 0), task_view("align", 1, state="QUEUED", attempts=[])]
    silent = flowsched("logs", workflow, "align")
    assert (silent.exit_code, silent.stdout) == (0, "")
    assert (
        "align[0] is RUNNING and has written nothing to stdout; --stderr shows the other stream"
        in silent.stderr
    )
    waits = flowsched("logs", workflow, "align", "1")
    assert waits.exit_code == 1
    assert "align[1] has not run: it is QUEUED" in waits.stderr
    far.service.task_views = [task_view("align", 0, state="CANCELLED", attempts=[])]
    ended = flowsched("logs", workflow, "align", "0").stderr
    assert ended == "error: align[0] has not run: it is CANCELLED\n"
    far.service.task_views = [task_view("align", 0, state="FAILED", exit_code=1)]
    failed = flowsched("logs", workflow)
    assert (failed.exit_code, failed.stdout) == (0, "oh\n")
    assert "it wrote nothing to stdout; this is its stderr:\n" in failed.stderr


def test_a_failed_task_says_what_may_help(far: Far) -> None:
    """Out of memory: what gives it more. Not found: that its image was ignored."""
    attempt = AttemptView(
        attempt=0, pod="p", node="n", bound_at=BEGIN, message="it used 300 MiB of memory and may use 256 MiB",
        images=[ImageView(name="samtools:1")],
    )  # fmt: skip
    killed = task_view("align", 3, state="FAILED", exit_code=137, reason="OOMKilled", attempts=[attempt])
    assert failures.described(killed, None) == [
        "",
        "align[3] failed, exit code 137: OOMKilled (it used 300 MiB of memory and may use 256 MiB)",
        '  next: ask for more memory, or "retry": {"attempts": 3, "memory_factor": 2} gives each attempt twice as much',
    ]
    missing = task_view("align", 0, state="FAILED", exit_code=127, reason="exit code 127", attempts=[attempt])
    assert failures.described(missing, None)[-1] == (
        "  the image samtools:1 was ignored: its programs are looked for on this machine"
    )


def test_a_value_of_the_wrong_form_is_answered_with_an_example(flowsched: Run) -> None:
    """Not with a pattern."""
    assert "found 'bad', expected text such as key=value" in flowsched("ls", "--label", "bad").stderr
    assert "'soon' is no duration: write " in flowsched("nodes", "drain", "n", "--grace", "soon").stderr


def test_the_outputs_that_are_not_listed_are_counted(flowsched: Run, far: Far, tmp_path: Path) -> None:
    """Of a wide stage the first eight tasks are listed."""
    document = tmp_path / "wide.json"
    stage = {
        "name": "align",
        "command": ["x"],
        "scatter": {"count": 12},
        "outputs": [{"name": "bam", "path": "b"}],
    }
    document.write_text(json.dumps({"name": "wide", "stages": [stage]}))
    far.service.finish_on_submit = "SUCCEEDED"
    far.service.stage_views = [stage_view(0, "align", state="SUCCEEDED", counts={"SUCCEEDED": 12}, width=12)]
    far.service.task_views = [task_view("align", index, state="SUCCEEDED") for index in range(12)]
    told = flowsched("submit", str(document), "--wait")
    assert "align[7].bam" in told.stdout
    assert "align[8].bam" not in told.stdout
    assert "… and those of 4 more tasks: `flowsched get wf1 align`" in told.stderr


def test_a_task_that_failed_before_it_ran_says_what_is_missing(
    flowsched: Run, far: Far, document: Path
) -> None:
    """Which input; there is no log to name."""
    far.service.finish_on_submit = "FAILED"
    why = "InputMissing: file:///reads.fq: there is no /reads.fq"
    far.service.stage_views = [stage_view(0, "align", state="FAILED", reason=why, counts={"FAILED": 1})]
    far.service.task_views = [task_view("align", 0, state="FAILED", reason="InputMissing", attempts=[])]
    said = flowsched("submit", str(document), "--wait").stderr
    assert f"align[0] failed before it ran: {why}" in said


def test_show_takes_a_run_whose_tasks_do_not_begin_at_0(flowsched: Run, far: Far) -> None:
    """Jobs of Snakemake have its numbers: the images are those of the first that there is."""
    workflow = far.service.add()
    far.service.stage_views = [stage_view(0, "count", counts={"SUCCEEDED": 2}, width=2)]
    used = AttemptView(attempt=0, pod="p", node="n", bound_at=BEGIN, images=[ImageView(name="samtools:1")])
    far.service.task_views = [
        task_view("count", number, state="SUCCEEDED", attempts=[used]) for number in (2, 3)
    ]
    shown = flowsched("show", workflow)
    assert shown.exit_code == 0, shown.stderr
    assert "image samtools:1 ignored" in shown.stdout


@pytest.mark.parametrize("group", ["db", "queue", "nodes"])
def test_help_of_a_group_is_whole_at_80_columns(flowsched: Run, group: str) -> None:
    """The first sentence of each of its commands fits its line."""
    result = CliRunner().invoke(app, [group, "-h"], terminal_width=80)
    assert result.exit_code == 0
    assert "..." not in result.stdout.partition("Commands:")[2]


def test_tasks_are_asked_only_for_outputs_that_their_stage_declares() -> None:
    """At the end of a `run` each question costs 2 ms. The first eight tasks of a last stage are asked, if it writes anything."""
    stages = [stage_view(0, "silent", width=9), stage_view(1, "writes", width=9)]
    document = {"name": "x", "stages": [{"name": "silent"}, {"name": "writes", "outputs": [{"name": "bam"}]}]}
    asked = []

    class Asked:
        async def document(self, _: str) -> bytes:
            return json.dumps(document).encode()

        async def task(self, _: str, stage: str, index: int) -> TaskView:
            asked.append((stage, index))
            return task_view(stage, index)

    made = asyncio.run(running.produced(Asked(), "w1", stages))  # type: ignore[arg-type]
    assert asked == [("writes", index) for index in range(8)]
    assert [(each.stage, each.index, each.output.name) for each in made][:2] == [
        ("writes", 0, "bam"),
        ("writes", 1, "bam"),
    ]
