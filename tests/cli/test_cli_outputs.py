"""`flowsched get` and `run --out`: files where the user wants them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_service import stage_view, task_view, workflow_view
from far_server import Far

from flowsched.cli.fetching import final_stages
from flowsched.workflow.views import OutputView
from tests.forks import ran

Run = Callable[..., Any]


def scattered(far: Far) -> None:
    """Three tasks of `call`, each with an output `vcf`."""
    far.service.add(state="SUCCEEDED")
    output = OutputView(name="vcf", uri="flowsched:x", size_bytes=5)
    far.service.task_views = [
        task_view("call", index, state="SUCCEEDED", outputs=[output]) for index in range(3)
    ]
    far.service.write("vcf", "calls.vcf", b"calls")
    call = {"name": "call", "command": ["x"], "outputs": [{"name": "vcf", "path": "calls.vcf"}]}
    far.service.documents["wf1"] = json.dumps({"name": "g", "stages": [call]}).encode()


def test_outputs_of_a_scattered_stage_go_into_a_folder_per_shard(
    flowsched: Run, far: Far, tmp_path: Path
) -> None:
    """And one task's into the folder itself."""
    scattered(far)
    result = flowsched("get", "wf1", "call", "-O", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.vcf"))
    assert files == ["out/0/calls.vcf", "out/1/calls.vcf", "out/2/calls.vcf"]
    assert flowsched("get", "wf1", "call.vcf", "1", "-O", str(tmp_path / "one")).exit_code == 0
    assert (tmp_path / "one" / "calls.vcf").read_bytes() == b"calls"


def test_without_a_stage_the_outputs_of_the_final_stages_are_saved(
    flowsched: Run, far: Far, tmp_path: Path
) -> None:
    """As `run --out` does: a folder for each stage. `-O -` says that it takes one output."""
    scattered(far)
    result = flowsched("get", "wf1", "-O", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.vcf"))
    assert files == ["out/call/0/calls.vcf", "out/call/1/calls.vcf", "out/call/2/calls.vcf"]
    assert "flowsched get wf1 STAGE.OUTPUT -O -" in flowsched("get", "wf1", "-O", "-").stderr


def test_one_output_can_be_piped(flowsched: Run, far: Far) -> None:
    """Its bytes and nothing else; several are refused."""
    scattered(far)
    assert flowsched("get", "wf1", "call.vcf", "1", "-O", "-").stdout_bytes == b"calls"
    result = flowsched("get", "wf1", "call.vcf", "-O", "-")
    assert result.exit_code == 2
    assert "exactly one" in result.stderr


def test_what_is_not_there_is_said(flowsched: Run, far: Far) -> None:
    """A stage, an output, something that was removed."""
    scattered(far)
    assert "no stage 'nope'" in flowsched("get", "wf1", "nope").stderr
    assert "`flowsched get wf1 call.vcf`" in flowsched("get", "wf1", "call", "vcf").stderr
    said = "workflow wf1: there is no output of call 'vfc'; did you mean 'vcf'?"
    assert said in flowsched("get", "wf1", "call.vfc").stderr
    assert said in flowsched("get", "wf1", "call.vfc", "1", "-O", "-").stderr
    far.service.write("vcf", "calls.vcf", None)
    assert "any more" in flowsched("get", "wf1", "call").stderr


@pytest.mark.parametrize("into", ["out", "-"])
def test_what_was_not_written_says_what_became_of_its_stage(
    flowsched: Run, far: Far, tmp_path: Path, into: str
) -> None:
    """It says "so far" only while the run goes on."""
    scattered(far)
    far.service.workflows["wf1"] = workflow_view(1)
    into = into if into == "-" else str(tmp_path / into)
    for state, told in (("QUEUED", "there so far; call is QUEUED"), ("SKIPPED", "there; call is SKIPPED")):
        far.service.task_views = []
        far.service.stage_views = [stage_view(0, "call", state=state)]
        if state == "SKIPPED":
            far.service.finish("wf1", "FAILED")
        result = flowsched("get", "wf1", "call.vcf", "-O", into)
        assert (result.exit_code, result.stderr) == (
            2,
            f"error: call.vcf of wf1: nothing was written {told}\n",
        )


def test_a_misspelt_output_is_told_before_the_run(flowsched: Run, far: Far, tmp_path: Path) -> None:
    """Nothing is submitted. `--fetch` without `--out` is a mistake of usage."""
    stage = {"name": "merge", "command": ["x"], "outputs": [{"name": "table", "path": "t"}]}
    path = tmp_path / "d.json"
    path.write_text(json.dumps({"name": "x", "stages": [stage]}))
    for name, told in (
        ("mrege", "--fetch: there is no stage 'mrege'; did you mean 'merge'?"),
        ("all", "--fetch: there is no stage 'all'; there is merge"),
        ("merge.tabel", "--fetch: there is no output of merge 'tabel'; did you mean 'table'?"),
    ):
        result = flowsched("run", str(path), "--out", str(tmp_path / "out"), "--fetch", name)
        assert (result.exit_code, result.stderr) == (2, f"error: {told}\n")
    result = flowsched("run", str(path), "--fetch", "merge")
    assert result.exit_code == 2
    assert "give --out, too" in result.stderr
    assert not far.service.documents


def test_the_stages_nobody_reads() -> None:
    """Waiting for a stage is not reading it."""
    stages = [
        {"name": "align", "outputs": [{"name": "bam", "path": "bam"}]},
        {"name": "call", "inputs": [{"name": "b", "from": "align.bam"}]},
        {"name": "tidy", "after": ["call"]},
    ]
    assert final_stages({"stages": stages}) == ["call", "tidy"]


def test_a_run_leaves_its_results_in_a_folder(tmp_path: Path) -> None:
    """DIR/STAGE/SHARD/FILE of what nobody reads, no shard where there is one; two of one name stay apart."""
    say = [
        "/bin/sh",
        "-c",
        "mkdir a b; echo $FLOWSCHED_INDEX > a/x.txt; echo two > b/x.txt; mkdir d; echo in > d/f",
    ]
    outputs = [
        {"name": "one", "path": "a/x.txt"},
        {"name": "two", "path": "b/x.txt"},
        {"name": "d", "path": "d"},
    ]
    stages = [
        {"name": "part", "command": say, "scatter": {"count": 2}, "outputs": outputs[:1]},
        {"name": "whole", "command": say, "outputs": outputs},
        {"name": "read", "command": ["true"], "inputs": [{"name": "x", "from": "part.one"}]},
    ]
    (tmp_path / "d.json").write_text(json.dumps({"name": "x", "stages": stages}))

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "FLOWSCHED_SERVER": ""}
        return ran(["run", "d.json", "--root", "root", *more], cwd=tmp_path, env=environment)

    done = run("--out", "out")
    assert done.returncode == 0, done.stderr
    files = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*"))
    assert files == ["whole/d.tar", "whole/two/x.txt", "whole/x.txt"]
    done = run("--out", "named", "--fetch", "part.one")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "named" / "part" / "1" / "x.txt").read_text() == "1\n"
    assert "`flowsched get w" in run().stderr


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_reader_that_leaves_does_not_keep_results_from_being_saved(tmp_path: Path, form: str) -> None:
    """`run | head`: the outputs are saved, and the exit code is the run's."""
    stage = {
        "name": "whole",
        "command": ["/bin/sh", "-c", "echo 1 > x"],
        "outputs": [{"name": "x", "path": "x"}],
    }
    (tmp_path / "d.json").write_text(json.dumps({"name": "x", "stages": [stage]}))
    read, write = os.pipe()
    os.close(read)
    command = [
        sys.executable,
        "-m",
        "flowsched",
        "run",
        "d.json",
        "--root",
        "root",
        "--out",
        "out",
        "-o",
        form,
    ]
    environment = {**os.environ, "FLOWSCHED_SERVER": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, text=True, stdout=write, stderr=subprocess.PIPE, timeout=300
    )
    os.close(write)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "whole" / "x").read_text() == "1\n"
