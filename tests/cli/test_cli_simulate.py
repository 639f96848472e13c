"""`flowsched simulate`, as people use it."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flowsched.cli.app import app
from flowsched.cli.simulate import Progress, _show_until_done, spread
from flowsched.simulation.clusters import REFERENCE
from flowsched.simulation.policies import simulated
from tests.simulation.small import document, workload

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
    told = run(trace, "--policy", "kube-like", "--policy", "volcano-like", "--policy", "flowsched")
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert lines[0].split()[:2] == ["POLICY", "MAKESPAN"]
    assert [line.split()[0] for line in lines[1:4]] == ["kube-like", "volcano-like", "flowsched"]


def test_later_runs_have_figures_of_their_own(trace: Path, tmp_path: Path) -> None:
    """A row for each run, and the trace is that of the last."""
    out = tmp_path / "t.jsonl"
    told = run(trace, "--as", "tes", "--repeat", "3", "--trace", out)
    assert told.exit_code == 0, told.output
    head, *rows = (line.split()[:2] for line in told.stdout.splitlines())
    assert (head, rows) == (["POLICY", "RUN"], [["flowsched", "1"], ["flowsched", "2"], ["flowsched", "3"]])
    facts = json.loads(run(trace, "--as", "tes", "--repeat", "3", "-o", "json").stdout)["policies"]
    assert [(each["run"], each["tasks"]) for each in facts] == [(1, 23), (2, 23), (3, 23)]
    bare = json.loads(run(trace, "--as", "nothing", "-o", "json").stdout)["policies"]
    assert [each["tasks"] for each in bare] == [23]
    ends = [json.loads(line)["end"] for line in out.read_text().splitlines()[1:]]
    assert max(ends) == pytest.approx(facts[2]["makespan_s"], abs=1e-6)


async def test_a_person_who_waits_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, written anew until the simulation is done, and gone then."""
    progress = Progress(tasks=len(workload().jobs), policy="flowsched")
    assert progress.line() == "reading the workloads"
    simulated("flowsched", REFERENCE["8x16-1g"], [workload()], [], partial(setattr, progress, "world"))
    assert re.match(r"flowsched: (\d+) of \1 tasks, [\d,]+ s simulated", progress.line())
    terminal, done = io.StringIO(), asyncio.get_running_loop().create_future()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    asyncio.get_running_loop().call_later(0.1, done.set_result, None)
    await _show_until_done(progress, done)
    assert progress.line() in terminal.getvalue()


def test_json_has_the_bound_and_every_figure(trace: Path) -> None:
    """A makespan is never below the bound; 23 tasks, none lost."""
    told = json.loads(run(trace, "-o", "json").stdout)
    (facts,) = told["policies"]
    assert facts["ratio"] >= 1.0
    assert facts["makespan_s"] == pytest.approx(facts["ratio"] * told["bound_s"], rel=1e-3)
    assert (facts["policy"], facts["tasks"], facts["lost"]) == ("flowsched", 23, 0)


def test_a_trace_is_written(trace: Path, tmp_path: Path) -> None:
    """It begins with its cluster."""
    out = tmp_path / "t.jsonl"
    assert run(trace, "--trace", out, "--seed", "7").exit_code == 0
    head, *lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert (head["reference"], head["policy"], head["seed"]) == ("8x16-1g", "flowsched", 7)
    assert sum("task" in line for line in lines) == 23


def test_a_document_of_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its relative inputs lie beside it; faults have their lines; tasks may ask for a part of a core."""
    monkeypatch.chdir(tmp_path)
    stage = {
        "name": "a", "command": ["x"], "scatter": {"count": 40}, "resources": {"cpu": "500m"},
        "inputs": [{"name": "r", "uri": "data/r.fq", "size": "1Mi"}], "estimate": {"runtime": "10s"},
    }  # fmt: skip
    Path("w.json").write_text(json.dumps({"name": "w", "stages": [stage]}))
    Path("c.yaml").write_text("nodes:\n  - {name: n, cores: 8}\n")
    told = run("w.json", "--cluster", "c.yaml", "-o", "json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["policies"][0]["tasks"] == 40
    Path("bad.yaml").write_text("name: w\nstages:\n  - name: a\n    comand: [x]\n")
    assert "bad.yaml:4: stages[0].comand: found the key" in run("bad.yaml").stderr


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
        (("--as", "wdl"), "document, nothing or tes, not 'wdl'"),
        (("--arrivals", "soon"), "--arrivals 'soon': seconds between arrivals were expected"),
        (("--lose", "n99@5"), "--lose 'n99@5': the cluster has no node 'n99'"),
    ],
)
def test_what_is_wrong_is_said(trace: Path, args: tuple[str, ...], said: str) -> None:
    """With what was found and what there is; exit code 2."""
    told = run(trace, *args)
    assert (told.exit_code, said in told.output) == (2, True), told.output


@pytest.mark.parametrize("way", ["document", "tes"])
def test_a_node_is_lost_and_everything_succeeds_all_the_same(trace: Path, tmp_path: Path, way: str) -> None:
    """n0 is gone from 10 s to 25 s: 23 tasks succeed, some attempts came to nothing."""
    cluster = tmp_path / "c.yaml"
    cluster.write_text("nodes:\n  - {name: n, count: 2, cores: 4}\n")
    told = run(trace, "--cluster", cluster, "--lose", "n0@10-25", "-o", "json", "--as", way)
    assert told.exit_code == 0, told.output
    (facts,) = json.loads(told.stdout)["policies"]
    assert facts["tasks"] == 23
    assert facts["lost"] > 0


def test_losing_every_node_is_told(trace: Path, tmp_path: Path) -> None:
    """The only node is gone for ever: how many tasks succeeded is said beside the table."""
    cluster = tmp_path / "c.yaml"
    cluster.write_text("nodes:\n  - {name: n, cores: 4}\n")
    told = run(trace, "--cluster", cluster, "--lose", "n@1")
    assert (told.exit_code, "0 of 23 tasks succeeded" in told.output) == (1, True), told.output
    assert "small: s0 (10 tasks): the only node is not ready" in told.output


def test_spread_changes_what_happens_and_not_what_is_expected() -> None:
    """Each task has its own factor between 1/1.3 and 1.3, the same for the same seed; the document and the means stay."""
    work = workload()
    other = spread(work, 0.3, 7)
    factors = [b.compute_s / a.compute_s for a, b in zip(work.jobs, other.jobs, strict=True)]
    assert 1 / 1.3 <= min(factors) < 0.9
    assert 1.1 < max(factors) <= 1.3
    assert len(set(factors)) == 23
    assert (other.spec, other.expected) == (work.spec, work.expected)
    assert other == spread(work, 0.3, 7)
    assert other != spread(work, 0.3, 8)
    assert spread(work, 0.0, 7) is work


def test_a_spread_makespan_goes_by_its_seed(trace: Path) -> None:
    """The same seed, the same makespan; another one, another."""
    told = [json.loads(run(trace, "--spread", "0.5", "--seed", seed, "-o", "json").stdout) for seed in "112"]
    first, second, third = (each["policies"][0]["makespan_s"] for each in told)
    assert first == second
    assert first != third


@pytest.mark.parametrize("policy", ["flowsched", "kube-like"])
def test_what_fits_no_node_is_an_error(policy: str, tmp_path: Path) -> None:
    """The table says that the schedule is unfinished, stderr which task has no place and why, and the exit code is 1."""
    path = tmp_path / "w.json"
    big = {"name": "big", "command": ["x"], "resources": {"cpu": 1000}}
    path.write_text(json.dumps({"name": "w", "stages": [{"name": "ok", "command": ["x"]}, big]}))
    told = run(path, "--policy", policy)
    assert told.exit_code == 1
    assert told.stdout.splitlines()[-1].split()[:3] == [policy, "unfinished", "-"]
    assert f"{policy}: unfinished, 1 of 2 tasks succeeded" in told.stderr
    assert "w: big (1 task): larger than any node; task needs 1000 CPU" in told.stderr
    (facts,) = json.loads(run(path, "--policy", policy, "-o", "json").stdout)["policies"]
    assert (facts["makespan_s"], facts["ratio"], facts["tasks"], facts["asked"]) == (None, None, 1, 2)
