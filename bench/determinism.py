"""The same real traces in fresh processes: other hash seeds, and without NumPy's SIMD instructions. The lines must be the same.

    python -m bench.determinism [--traces FOLDER] [--cluster 8x16-1g] [NAME ...]

FOLDER holds WfFormat traces (.json, .json.gz); without it, those beside the repository, if they are there. Each process
simulates all of them under two policies and prints a digest of every line of each trace. The exit code is 1 if any differ.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "wfinstances"
#: Small enough for a minute.
NAMES = (
    "epigenomics-chameleon-hep-6seq-50k-001", "blast-chameleon-small-001", "1000genome-chameleon-4ch-250k-001",
    "smrnaseq-dirt02-001", "mag-dirt02-001",
)  # fmt: skip
POLICIES = ("flowsched", "kube-like")
CORE = np._core._multiarray_umath  # type: ignore[attr-defined]


def simulate(files: list[Path], cluster_name: str) -> None:
    """In a process of its own: digests as JSON."""
    from flowsched.scheduling.policy.framework import PROFILES
    from flowsched.simulation.clusters import REFERENCE
    from flowsched.simulation.simulate import Simulation
    from flowsched.simulation.workload import from_trace
    from flowsched.workflow.formats.wfformat import read_trace

    cluster = REFERENCE[cluster_name]
    found = {}
    for file in files:
        raw = file.read_bytes()
        trace = read_trace(gzip.decompress(raw) if file.suffix == ".gz" else raw)
        for policy in POLICIES:
            workload = from_trace(trace, file.name, file.name, cluster)
            lines = Simulation(cluster, (workload,), PROFILES[policy]).run().lines
            digest = hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()
            found[f"{file.name.partition('.')[0]} {policy}"] = [len(lines), digest]
    on = [name for name in CORE.__cpu_dispatch__ if CORE.__cpu_features__[name]]
    print(json.dumps({"found": found, "on": on, "hash": hash("flowsched")}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=FOLDER)
    parser.add_argument("--cluster", default="8x16-1g")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", default=[])
    given = parser.parse_args()
    names = given.names or list(NAMES)
    files = [path for name in names for path in sorted(given.traces.glob(f"{name}.json*"))]
    if not files:
        print(f"skipped: there are no such traces in {given.traces}; name a folder with --traces")
        return 0
    if given.child:
        simulate(files, given.cluster)
        return 0
    off = " ".join(name for name in CORE.__cpu_dispatch__ if CORE.__cpu_features__[name])
    runs = {
        "hash seed 1": {"PYTHONHASHSEED": "1"},
        "hash seed 2": {"PYTHONHASHSEED": "2"},
        "hash seed 3, no SIMD": {"PYTHONHASHSEED": "3", "NPY_DISABLE_CPU_FEATURES": off},
    }
    answers = {}
    for about, environment in runs.items():
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "bench.determinism", "--child", "--traces", str(given.traces),
             "--cluster", given.cluster, *names],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        answers[about] = json.loads(done.stdout)
        on = " ".join(answers[about]["on"]) or "none"
        print(f"{about}: {time.monotonic() - begun:.0f} s; features chosen at run time: {on}", flush=True)
    first, *others = answers.values()
    differ = 0
    for name, (lines, digest) in first["found"].items():
        same = all(other["found"][name] == [lines, digest] for other in others)
        differ += not same
        print(f"{name:55} {lines:6} lines  {digest[:16]}  {'the same' if same else 'DIFFERENT'}")
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
