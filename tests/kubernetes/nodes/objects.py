"""A pipeline over an object store on real nodes, by py-tes: where its tasks ran, and which bytes were downloaded."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.images import image
from tests.kubernetes.nodes.installed import TOKEN, Installation

SCRIPT = Path(__file__).parents[2] / "clients" / "scripts" / "py_tes_objects.py"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The size of a pipeline: chains of align → sort → merge, and readers of one reference."""

    chains: int
    mb: int
    readers: int
    reference_mb: int
    cores: float = 0.25


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a pipeline.

    Args:
        makespan_s: Of the chains.
        at_home: The part of the consumers (sort, merge) that ran on the node of the task whose output they read.
        again_bytes: Downloaded by consumers, of what the tasks before them had delivered.
        reference_bytes: Downloaded of the reference by all its readers.
        nodes: Of each task.
    """

    makespan_s: float
    at_home: float
    again_bytes: int
    reference_bytes: int
    nodes: Mapping[str, str]


def run_pipeline(
    installed: Installation, python: Path, size: Pipeline, name: str, timeout_s: float = 3600.0
) -> Result:
    """Run a pipeline to its end.

    Args:
        installed: With an object store.
        python: Of an environment with py-tes.
        size: How much of it.
        name: Of the run, and the prefix of its objects.
        timeout_s: For all of it.

    Raises:
        RuntimeError: A task did not complete.
    """
    store = installed.store
    installed.cluster.load("debian")
    store.client.put_object(Bucket="lab", Key="reference.fa", Body=bytes(size.reference_mb << 20))
    store.read.clear()
    options = {
        "run": name, "chains": size.chains, "mb": size.mb, "readers": size.readers, "cores": size.cores,
        "image": image("debian").name,
    }  # fmt: skip
    done = subprocess.run(
        [str(python), str(SCRIPT), installed.url(), TOKEN, json.dumps(options)],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    found: dict[str, Any] = json.loads(done.stdout)
    nodes = {task["name"]: task["node"] for task in found["tasks"]}
    pairs = [
        (f"{before}-{number}", f"{after}-{number}")
        for number in range(size.chains)
        for before, after in (("align", "sort"), ("sort", "merge"))
    ]
    home = sum(nodes[before] == nodes[after] for before, after in pairs)
    again = sum(count for path, count in store.read.items() if path.startswith(f"/lab/{name}/"))
    return Result(
        found["makespan_s"], home / max(1, len(pairs)), again, store.read["/lab/reference.fa"], nodes
    )
