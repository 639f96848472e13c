"""Real workflows (WfInstances) read and expanded, held to their own JSON. They are not part of this repository."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from expanding import expand

from bench.synthetic.document import Largest, Place, Scale, synthetic
from flowsched.workflow.document.decode import decode_workflow
from flowsched.workflow.formats.wfformat import read_trace

#: Beside the checkout, or beside a folder that it is in.
DATA = [
    found
    for folder in Path(__file__).parents[3:]
    for found in sorted((folder / "shared" / "data").glob("w*/*.json*"))
]


def document(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return found


@pytest.mark.skipif(not DATA, reason="no ../shared/data/w*/*.json: the real traces are not on this machine")
def test_there_are_real_traces() -> None:
    """Twelve of WfInstances at least, so that the tests below say something."""
    assert len([path for path in DATA if path.parent.name == "wfinstances"]) >= 12


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.name.split(".")[0])
def test_a_real_trace_is_expanded_to_its_own_dag(path: Path) -> None:
    """Every edge of the document, every file with its size and its readers, read here from the JSON itself."""
    found = document(path)
    said = found["workflow"]["specification"]
    edges = {(parent, task["id"]) for task in said["tasks"] for parent in task["parents"]}
    readers = {file["id"]: set() for file in said["files"]}
    writer: dict[str, str | None] = dict.fromkeys(readers)
    for task in said["tasks"]:
        for file in task["inputFiles"]:
            readers[file].add(task["id"])
        for file in task["outputFiles"]:
            writer[file] = task["id"]
    files = Counter(
        (writer[file["id"]], file["sizeInBytes"], frozenset(readers[file["id"]]))
        for file in said["files"]
        if writer[file["id"]] or readers[file["id"]]
    )

    trace = read_trace(json.dumps(found).encode())
    made = synthetic(trace, Scale(1.0, 1.0), Largest(48_000, 1 << 37), Place("file:///in"))
    decode_workflow(json.dumps(made.document).encode())
    expanded = expand(made.document, made.files, "file:///in")

    assert Counter(expanded.tasks) == Counter(task["id"] for task in said["tasks"])
    assert expanded.edges == edges
    assert expanded.files == files
    assert len(made.document["stages"]) <= len(expanded.tasks)


#: Stages that a real trace becomes, as far as they are fewer than its tasks: pipelines keep their shape.
STAGES = {
    "wow-rnaseq-real": (1269, 53),
    "smrnaseq-dirt02-001": (197, 36),
    "soykb-chameleon-30fastq-10ch-001": (256, 32),
    "srasearch-chameleon-50a-005": (104, 5),
    "1000genome-chameleon-22ch-250k-001": (902, 374),
}


@pytest.mark.parametrize("name", STAGES)
def test_lanes_of_real_pipelines_are_scatters(name: str) -> None:
    """The 39 samples of nf-core/rnaseq are 39 shards of each step, not 1,269 stages."""
    path = next((path for path in DATA if path.name.startswith(f"{name}.")), None)
    if path is None:
        pytest.skip(f"no ../shared/data/w*/{name}.json*: the real traces are not on this machine")
    trace = read_trace(json.dumps(document(path)).encode())
    made = synthetic(trace, Scale(), Largest(48_000, 1 << 37), Place("file:///in"))
    assert (len(made.tasks), len(made.document["stages"])) == STAGES[name]
