"""The same cycle in fresh processes, with other hash seeds and without the SIMD instructions of this machine: the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from random_cycles import KINDS, random_file

#: NumPy's own table of what it can choose at run time.
CORE = np._core._multiarray_umath  # type: ignore[attr-defined]
DISPATCHED = sorted(name for name in CORE.__cpu_dispatch__ if CORE.__cpu_features__[name])
SEEDS = range(12)

_CHILD = """
import hashlib, json, pathlib, sys
import numpy as np
from flowsched.scheduling.explain.recording import plan_bytes, replayed, unpacked
features = np._core._multiarray_umath.__cpu_features__
found = {}
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    record = unpacked(path.read_bytes())
    plan = plan_bytes(replayed(record))
    found[path.name] = [hashlib.sha256(plan).hexdigest(), plan == record.plan]
on = sorted(name for name in np._core._multiarray_umath.__cpu_dispatch__ if features[name])
print(json.dumps({"plans": found, "on": on, "hash": hash("flowsched")}))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of cycles that this process has decided."""
    folder = tmp_path_factory.mktemp("cycles")
    for kind in KINDS:
        for seed in SEEDS:
            (folder / f"{kind}-{seed}.zip").write_bytes(random_file(kind, seed))
    return folder


def decided(folder: Path, **environment: str) -> dict[str, object]:
    """What a fresh process decides."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder)], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_hash_seeds_and_simd_decide_nothing(files: Path) -> None:
    """60 cycles in 4 processes, each plan equal to the recorded one byte for byte."""
    plain = decided(files, PYTHONHASHSEED="1")
    others = [decided(files, PYTHONHASHSEED=seed) for seed in ("2", "4294967295")]
    off = decided(files, PYTHONHASHSEED="3", NPY_DISABLE_CPU_FEATURES=" ".join(DISPATCHED))
    assert off["on"] == []
    assert plain["on"] == DISPATCHED
    assert len({each["hash"] for each in (plain, *others, off)}) == 4
    plans = plain["plans"]
    assert isinstance(plans, dict)
    assert len(plans) == 60
    assert all(same for _, same in plans.values())
    assert [each["plans"] for each in (*others, off)] == [plans] * 3
