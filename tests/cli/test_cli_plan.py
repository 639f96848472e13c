"""`flowsched plan`, as people see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flowsched.cli.app import app

pytest.importorskip("WDL", reason="needs miniwdl: pip install 'flowsched[wdl]'")

WDLS = Path(__file__).parents[2] / "workflows" / "wdl"


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["plan", *args])


def plan(name: str, *args: str) -> Any:
    return run(str(WDLS / f"{name}.wdl"), "-i", str(WDLS / f"{name}.inputs.json"), *args)


def test_a_plan_is_a_table_of_calls_sums_and_what_is_not_known() -> None:
    """Without a server."""
    lines = plan("joint-imputation").stdout.splitlines()
    assert (
        lines[0]
        == "JointImputation: 8 calls, WDL 1.0; a minute is taken for each task whose runtime is not known"
    )
    assert [line.split()[:3] for line in lines[2:11]] == [
        ["LEVEL", "CALL", "TASKS"],
        ["0", "CheckBatch", "3"],
        ["1", "GenotypeContig", "3"],
        ["2", "SplitByPloidy", "1"],
        ["3", "PhaseChunk", "8"],
        ["4", "ImputeChunk", "8"],
        ["5", "RareVariants", "not"],
        ["5", "LigateChunks", "3"],
        ["6", "GatherCohort", "1"],
    ]
    assert lines[-2] == "Not known yet"
    assert lines[-1].startswith(
        "  disk of JointImputation.ImputeChunk: until JointImputation.PhaseChunk has ended; differs"
    )


def test_a_plan_is_json_for_programs() -> None:
    """With ranks, stages and files."""
    found = json.loads(plan("haplotype-caller", "-o", "json").stdout)
    assert [node["tasks"] for node in found["plan"]["nodes"]] == [1, 4, 1]
    assert found["ranks"]["HaplotypeCallerGvcf.CramToBam"] == {
        "rank_ms": 180000,
        "runtime_ms": 60000,
        "learned": False,
    }
    assert [stage["tasks"] for stage in found["stages"]] == [1, 4, 1]
    assert found["files"]["s3://references/hg38/scattered/0002.interval_list"] == [
        "HaplotypeCallerGvcf.HaplotypeCaller"
    ]


def test_a_plan_is_a_graph_for_graphviz() -> None:
    """Every call and every edge; those of order are dashed."""
    text = plan("single-sample/single-sample", "-o", "dot").stdout
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("digraph plan {", "}")
    assert sum(" -> " in line for line in lines) == 17
    assert (
        '  "SingleSample.CheckContamination" -> "SingleSample.ToVariants.CutIntervals" [style=dashed];'
        in lines
    )
    assert '  "SingleSample.ToAligned.BwaMem" [label="ToAligned.BwaMem\\n× 3, 16 cpu, 14 GiB"];' in lines


def test_names_in_a_source_cannot_break_a_graph(tmp_path: Path) -> None:
    """What an expression holds is shown, never obeyed."""
    path = tmp_path / "w.wdl"
    task = 'task t { command {} runtime { docker: "a\\"><script>alert(1)</script>\\n" memory: "]]>&" } }'
    path.write_text(f"version 1.0\nworkflow w {{ call t }}\n{task}")
    assert len(run(str(path), "-o", "dot").stdout.splitlines()) == 4


def test_faults_have_their_places_and_an_exit_code(tmp_path: Path) -> None:
    """2: what was asked is wrong."""
    path = tmp_path / "w.wdl"
    path.write_text("version 1.0\nworkflow w { call nobody }")
    result = run(str(path))
    assert result.exit_code == 2
    assert f"{path}:2:14: miniwdl refuses this: No such task/workflow: nobody" in result.stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("nowhere.wdl",), "No such file or directory: nowhere.wdl"),
        (("-i", "nowhere.json"), "No such file or directory: nowhere.json"),
        (("-o", "pdf"), "table, json, dot, not 'pdf'"),
    ],
)
def test_what_is_not_there_is_told(args: tuple[str, ...], told: str) -> None:
    """2, and a sentence."""
    given = () if args[0].endswith(".wdl") else (str(WDLS / "joint-imputation.wdl"),)
    result = run(*given, *args)
    assert (result.exit_code, told in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("text", ["[1]", "{", "7"])
def test_inputs_that_are_no_object_are_told(tmp_path: Path, text: str) -> None:
    """With what is expected."""
    path = tmp_path / "inputs.json"
    path.write_text(text)
    result = run(str(WDLS / "joint-imputation.wdl"), "-i", str(path))
    assert result.exit_code == 2
    assert str(path) in result.stderr


def test_sizes_of_files_that_are_here_are_looked_at(tmp_path: Path) -> None:
    """So disk amounts that follow from them are known."""
    data = tmp_path / "reads.bam"
    data.write_bytes(b"x" * 3_000_000)
    source = tmp_path / "w.wdl"
    task = 'task t { input { File f } command {} runtime { disks: "local-disk " + ceil(size(f, "MB")) + " HDD" } }'
    source.write_text(f"version 1.0\nworkflow w {{ input {{ File f }} call t {{ input: f = f }} }}\n{task}")
    inputs = tmp_path / "i.json"
    inputs.write_text(json.dumps({"w.f": str(data)}))
    found = json.loads(run(str(source), "-i", str(inputs), "-o", "json").stdout)
    assert found["plan"]["nodes"][0]["disk"]["value"] == 3 * 1024**3


def test_lists_of_the_inputs_are_read_and_no_other_file(tmp_path: Path) -> None:
    """A width that stands in a list is known; a file that only the source names is not opened."""
    named, other = tmp_path / "intervals.list", tmp_path / "secret"
    named.write_text("a\nb\nc\n")
    other.write_text("1\n2\n")
    source = tmp_path / "w.wdl"
    body = f"""version 1.0
workflow w {{ input {{ File f }} scatter (x in read_lines(f)) {{ call t }} scatter (x in read_lines("{other}")) {{ call t as u }} }}
task t {{ command {{}} }}"""
    source.write_text(body)
    inputs = tmp_path / "i.json"
    inputs.write_text(json.dumps({"w.f": str(named)}))
    found = json.loads(run(str(source), "-i", str(inputs), "-o", "json").stdout)["plan"]
    assert {node["path"]: node["tasks"] for node in found["nodes"]} == {"w.t": 3, "w.u": None}
    assert found["scatters"][1]["until"] == [{"kind": "content", "name": str(other)}]


def test_without_miniwdl_it_says_what_to_install() -> None:
    """And loads nothing of it for anything else."""
    code = "import sys; sys.modules['WDL'] = None; from flowsched.__main__ import main; main()"
    path = str(WDLS / "joint-imputation.wdl")
    found = subprocess.run(
        [sys.executable, "-c", code, "plan", path], capture_output=True, text=True, timeout=200
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert "pip install 'flowsched[wdl]'" in found.stderr
