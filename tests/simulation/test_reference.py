"""The opponents on reference traces, judged by the referee, against the columns that another simulator gave.

Needs the reference traces and the referee in `../shared`, which a clone does not have: skipped there.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bench.rivals import simulated
from flowsched.simulation.clusters import REFERENCE
from flowsched.simulation.simulate import trace_header
from flowsched.simulation.workload import Workload, by_task, from_trace, without_estimates
from flowsched.workflow.formats.wfformat import read_trace

SHARED = Path(__file__).resolve().parents[3] / "shared"
TRACES, REFEREE = SHARED / "data" / "wfinstances", SHARED / "tools" / "referee.py"
WOW_TRACES = SHARED / "data" / "wow"

pytestmark = pytest.mark.skipif(
    not (TRACES.is_dir() and WOW_TRACES.is_dir() and REFEREE.is_file()),
    reason=f"no reference traces and referee in {SHARED}",
)


def judged(
    policy: str,
    path: Path,
    folder: Path,
    name: str = "8x16-1g",
    sent: Callable[[Workload], Workload] = lambda workload: workload,
) -> dict[str, float]:
    """Simulate one instance on a reference cluster and let the referee judge the trace. `sent`: the workload as it is submitted."""
    cluster = REFERENCE[name]
    raw = path.read_bytes()
    document = gzip.decompress(raw) if path.suffix == ".gz" else raw
    workload = from_trace(read_trace(document), "it", path.name, cluster, wow=path.name.startswith("wow-"))
    world = simulated(policy, cluster, [sent(workload)])
    trace = folder / "trace.jsonl"
    lines = [trace_header(cluster, [workload], policy, 1, "test"), *world.lines]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run(
        [sys.executable, str(REFEREE), "--cluster", name, str(trace), str(path)],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize(
    ("policy", "source", "column"),
    [
        ("kube-like", "blast-chameleon-small-001.json", 6.68),
        ("kube-like", "blast-chameleon-large-001.json.gz", 1.17),
        ("kube-like", "1000genome-chameleon-4ch-250k-001.json.gz", 3.44),
        ("kube-like", "epigenomics-chameleon-ilmn-1seq-50k-001.json.gz", 1.14),
        ("wow", "blast-chameleon-small-001.json", 6.68),
        ("wow", "blast-chameleon-large-001.json.gz", 1.17),
        ("wow", "srasearch-chameleon-20a-001.json", 1.00),
        ("wow", "1000genome-chameleon-4ch-250k-001.json.gz", 3.42),
        ("wow", "epigenomics-chameleon-ilmn-1seq-50k-001.json.gz", 1.04),
        ("heft", "blast-chameleon-large-001.json.gz", 1.14),
        ("heft", "srasearch-chameleon-20a-001.json", 1.00),
        ("heft", "epigenomics-chameleon-ilmn-1seq-50k-001.json.gz", 1.01),
    ],
)
def test_opponents_meet_their_columns(policy: str, source: str, column: float, tmp_path: Path) -> None:
    """Makespan ÷ bound is within 5 % of what another simulator gave, and the referee accepts the trace."""
    assert judged(policy, TRACES / source, tmp_path)["ratio"] == pytest.approx(column, rel=0.05)


@pytest.mark.parametrize("policy", ["blind", "volcano-like"])
def test_the_others_are_possible_too(policy: str, tmp_path: Path) -> None:
    """Those without a column: the referee finds no fault."""
    assert judged(policy, TRACES / "sarek-dirt02-001.json", tmp_path)["faults"] == 0


@pytest.mark.parametrize("policy", ["flowsched", "kube-like"])
@pytest.mark.parametrize("sent", [without_estimates, partial(by_task, run=1)])
def test_other_forms_of_submission_are_possible_too(
    policy: str, sent: Callable[[Workload], Workload], tmp_path: Path
) -> None:
    """Without estimates, and task by task: the referee finds no fault."""
    assert judged(policy, TRACES / "sarek-dirt02-001.json", tmp_path, sent=sent)["faults"] == 0
    path = WOW_TRACES / "wow-group.json.gz"
    assert judged(policy, path, tmp_path, "8x32-1g", sent)["faults"] == 0


@pytest.mark.parametrize(
    ("workload", "cut"),
    [
        ("allIntoOne", -60.1),
        ("chain", -94.5),
        ("group", -90.4),
        ("synthetic-bwa", -82.7),
        ("synthetic-genome", -86.3),
    ],
)
def test_wow_cuts_makespans_as_its_authors_say(workload: str, cut: float, tmp_path: Path) -> None:
    """Against the stock way on one NFS server, within 5 points of the published percentage."""
    path = WOW_TRACES / f"wow-{workload}.json.gz"
    stock, wow = (judged(policy, path, tmp_path, "8x32-1g")["makespan_s"] for policy in ("kube-like", "wow"))
    assert 100 * (wow / stock - 1) == pytest.approx(cut, abs=5.0)
