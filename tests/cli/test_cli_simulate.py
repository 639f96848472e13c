"""`flowsched simulate`, as people use it."""

from __future__ import annotations

import gzip
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flowsched.cli.commands import app
from tests.simulation.small import document

WORKFLOWS = Path(__file__).parents[2] / "workflows"


def run(*args: str | Path) -> Any:
    """The command, in this process."""
    return CliRunner().invoke(app, ["simulate", *map(str, args)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A WfFormat document, compressed."""
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(document()))
    return path


def test_policies_are_compared_in_a_table(trace: Path) -> None:
    """One line for each, in the order in which they were asked for."""
    told = run(trace, "--policy", "kube-like", "--policy", "heft", "--policy", "flowsched")
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert lines[0].split()[:2] == ["policy", "makespan"]
    assert [line.split()[0] for line in lines[1:4]] == ["kube-like", "heft", "flowsched"]


def test_json_has_the_bound_and_every_figure(trace: Path) -> None:
    """A makespan is never below the bound; 23 tasks, none lost."""
    told = json.loads(run(trace, "-o", "json").stdout)
    (facts,) = told["policies"]
    assert facts["ratio"] >= 1.0
    assert facts["makespan_s"] == pytest.approx(facts["ratio"] * told["bound_s"], rel=1e-3)
    assert (facts["policy"], facts["tasks"], facts["lost"]) == ("flowsched", 23, 0)


def test_a_trace_and_pictures_are_written(trace: Path, tmp_path: Path) -> None:
    """The trace begins with its cluster; pictures are well-formed."""
    out, plots = tmp_path / "t.jsonl", tmp_path / "plots"
    assert run(trace, "--trace", out, "--plots", plots, "--seed", "7").exit_code == 0
    head, *lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert (head["reference"], head["policy"], head["seed"]) == ("8x16-1g", "flowsched", 7)
    assert sum("task" in line for line in lines) == 23
    names = sorted(path.name for path in plots.iterdir())
    assert names == ["cores.svg", "gantt-flowsched.svg", "makespans.svg", "waits.svg"]
    for path in plots.iterdir():
        assert ElementTree.fromstring(path.read_text()).tag.endswith("svg")


def test_workflow_documents_arrive_one_after_the_other_on_a_cluster_of_ones_own(tmp_path: Path) -> None:
    """The repository's own examples on a cluster in YAML, a minute apart."""
    cluster = tmp_path / "c.yaml"
    cluster.write_text("nodes:\n  - {name: n, count: 2, cores: 8}\n")
    out = tmp_path / "t.jsonl.gz"
    told = run(
        WORKFLOWS / "variant-calling.json", WORKFLOWS / "parameter-server.json", "--cluster", cluster,
        "--arrivals", "60", "--trace", out,
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    head = json.loads(gzip.decompress(out.read_bytes()).splitlines()[0])
    assert head["arrivals"] == {"variant-calling": 0.0, "parameter-server": 60.0}
    assert [node["name"] for node in head["cluster"]["nodes"]] == ["n0", "n1"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--cluster", "nowhere"), "cluster 'nowhere': no such file, and not one of 8x16-1g"),
        (("--policy", "magic"), "policy 'magic': no such file, and not one of flowsched"),
        (("--arrivals", "soon"), "--arrivals 'soon': seconds between arrivals were expected"),
    ],
)
def test_what_is_wrong_is_said(trace: Path, args: tuple[str, ...], said: str) -> None:
    """With what was found and what there is; exit code 2."""
    told = run(trace, *args)
    assert (told.exit_code, said in told.output) == (2, True), told.output
