"""A simulated trace in fresh processes, with other hash seeds and without the SIMD instructions of this machine: the same lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np

CORE = np._core._multiarray_umath  # type: ignore[attr-defined]
DISPATCHED = sorted(name for name in CORE.__cpu_dispatch__ if CORE.__cpu_features__[name])

_CHILD = """
import hashlib, json, random, sys
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.simulation.clusters import REFERENCE
from flowsched.simulation.simulate import Simulation
from flowsched.simulation.workload import from_trace
from flowsched.workflow.traces.trace import Trace, TraceFile, TraceTask

rng = random.Random(7)
files, tasks = [], []
for at in range(20):
    files.append(TraceFile(f"in{at}", rng.randrange(1, 4_000_000_000)))
for level in range(4):
    first = len(tasks)
    for at in range(30):
        number = len(tasks)
        reads = tuple(sorted(rng.sample(range(len(files) - (len(tasks) - first)), rng.randint(1, 5))))
        parents = tuple(sorted({files[f].producer for f in reads if files[f].producer is not None}))
        files.append(TraceFile(f"f{number}", rng.randrange(0, 2_000_000_000), number))
        tasks.append(TraceTask(
            f"t{number}", f"kind{level}", rng.uniform(1, 300), parents, reads, (len(files) - 1,),
            busy_cores=rng.uniform(0.1, 6), memory_bytes=rng.randrange(1, 8_000_000_000)))
cluster = REFERENCE["8x16-1g"]
found = []
for policy in ("flowsched", "kube-like"):
    made = from_trace(Trace("made", "1.5", tuple(tasks), tuple(files)), "made", "made.json", cluster)
    world = Simulation(cluster, (made,), PROFILES[policy]).run()
    lines = json.dumps(world.lines, sort_keys=True)
    found.append([len(world.lines), hashlib.sha256(lines.encode()).hexdigest()])
print(json.dumps([found, hash("flowsched")]))
"""


def simulated(**environment: str) -> tuple[list[list[object]], int]:
    """What a fresh process simulates: lines of the trace and their digest, for two policies."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, hashed = json.loads(done.stdout)
    return found, hashed


def test_hash_seeds_and_simd_change_no_line_of_a_trace() -> None:
    """120 tasks over four levels, under two policies, in three processes."""
    one, first = simulated(PYTHONHASHSEED="1")
    two, second = simulated(PYTHONHASHSEED="77")
    off, third = simulated(PYTHONHASHSEED="3", NPY_DISABLE_CPU_FEATURES=" ".join(DISPATCHED))
    assert len({first, second, third}) == 3
    assert min(lines for lines, _ in one) > 120
    assert one[0] != one[1]
    assert one == two == off
