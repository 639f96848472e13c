"""What a trace becomes in a document, and the program that stands in for its tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from trace_documents import DIVIDED, changed, raw

from bench.synthetic import task as program
from bench.synthetic.document import Largest, Place, Scale, synthetic
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.formats.wfformat import read_trace

PLACE = Place("file:///in", env={"A": "b"})


def test_a_stage_does_what_its_tasks_did() -> None:
    """Sizes, CPU time and memory scaled; a scatter asks for the most that one of its tasks used."""
    document = changed("workflow.specification.tasks.0.outputFiles", ["a"])
    document["workflow"]["specification"]["tasks"][2]["inputFiles"] = ["a", "words"]
    document["workflow"]["specification"]["files"].pop(3)
    made = synthetic(read_trace(raw(document)), Scale(0.1, 0.5), Largest(4000, 1 << 30), PLACE)
    assert made.document["stages"][1] == {
        "name": "count",
        "scatter": {
            "items": [
                '{"task":"count_ID2","cores":2,"cpu_s":1.5,"read":750,"memory":50000000,"write":[5]}',
                '{"task":"count_ID3","cores":1,"cpu_s":0.96,"read":750,"memory":100000000,"write":[10]}',
            ]
        },
        "command": [
            "python",
            "-m",
            "bench.synthetic.task",
            "--input",
            "i0",
            "--input",
            "i1",
            "--output",
            "f0",
        ],
        "resources": {"cpu": 2, "memory": 100_000_000 + (48 << 20)},
        "outputs": [{"name": "f0", "path": "f0"}],
        "inputs": [
            {"name": "i0", "uri": "file:///in/shared1", "size": 250},
            {"name": "i1", "from": "split.f0", "match": "all"},
        ],
        "env": {"A": "b"},
    }
    assert made.document["stages"][2]["command"][3:] == ["--manifest", "i0", "--output", "f0"]
    assert made.files == {"shared0": 1500, "shared1": 250}
    check_workflow(made.document)


def test_what_no_node_has_is_fitted_and_counted() -> None:
    """The same core-seconds on one core; memory up to what a node can give beside the interpreter."""
    made = synthetic(read_trace(raw(DIVIDED)), Scale(1.0, 1.0), Largest(1500, 148 << 20), PLACE)
    assert (made.fewer_cores, made.less_memory) == (1, 1)
    assert [(each.work.cores, each.work.seconds) for each in made.tasks] == [
        (1, 2.0), (1, 15.0), (1, pytest.approx(9.6)), (1, 1.5),
    ]  # fmt: skip
    assert [each.memory_bytes for each in made.tasks] == [0, 100_000_000, 100 << 20, 0]
    assert made.cpu_seconds == pytest.approx(28.1)
    assert made.critical_path(read_trace(raw(DIVIDED))) == pytest.approx(18.5)


def test_files_that_are_not_empty_stay_so() -> None:
    """However small the scale: an empty file is another file."""
    assert [Scale(size=0.0001).bytes(size) for size in (0, 1, 4999, 20_000)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("categories", "names"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a-1", "a-2", "a-3"]),
        (["NF.CORE.FASTQC", "x:y:FASTQC"], ["FASTQC-1", "FASTQC-2"]),
        (["a", "A"], ["a-1", "A-2"]),
        (["a-1", "a", "a"], ["a-1", "a-2", "a-3"]),
        ([".", "...", "é/é", "a b"], ["task-1", "task-2", "task-3", "a-b"]),
        (["x" * 200], ["x" * 50]),
    ],
)
def test_stages_are_named_after_categories(categories: list[str], names: list[str]) -> None:
    """The end of the category, made a stage's name, and different where two would be the same."""
    tasks = [{"name": f"t{n}", "runtime": 1, "category": c} for n, c in enumerate(categories)]
    for before, after in pairwise(tasks):
        after["parents"] = [before["name"]]
    trace = read_trace(raw({"name": "x", "schemaVersion": "1.4", "workflow": {"tasks": tasks}}))
    made = synthetic(trace, Scale(), Largest(1000, 1 << 30), Place("file:///in"))
    check_workflow(made.document)
    assert [stage["name"] for stage in made.document["stages"]] == names


def work(**given: Any) -> str:
    return json.dumps({"task": "t", "cores": 1, "cpu_s": 0.0, "read": 0, "memory": 0, "write": [], **given})


def perform(folder: Path, item: str, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = {f"FLOWSCHED_{name}": str(folder / path) for name, path in variables.items()}
    return subprocess.run(
        [sys.executable, "-m", "bench.synthetic.task", *args],
        env={**os.environ, **paths, "FLOWSCHED_ITEM": item, "PYTHONPATH": str(Path(program.__file__).parents[2])},
        cwd=folder, text=True, capture_output=True, timeout=200, check=False,
    )  # fmt: skip


def test_the_program_reads_and_writes_every_byte(tmp_path: Path) -> None:
    """One file, and those of a manifest; outputs in folders that are not there yet."""
    for name, size in (("one", 3_000_000), ("two", 5), ("three", 0)):
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "list").write_text(f"{tmp_path / 'two'}\n{tmp_path / 'three'}\n")
    done = perform(
        tmp_path, work(read=3_000_005, write=[1_048_577, 0]),
        "--input", "i0", "--manifest", "i1", "--output", "f0", "--output", "f1",
        INPUT_I0="one", INPUT_I1="list", OUTPUT_F0="out/f0", OUTPUT_F1="out/f1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["files"], said["read"], said["written"]) == (3, 3_000_005, 1_048_577)
    assert [(tmp_path / "out" / name).stat().st_size for name in ("f0", "f1")] == [1_048_577, 0]


def test_the_program_fails_where_bytes_are_missing(tmp_path: Path) -> None:
    """A replay that lost data does not look like one that did not."""
    (tmp_path / "one").write_bytes(b"four")
    done = perform(tmp_path, work(read=5), "--input", "i0", INPUT_I0="one")
    assert done.returncode == 1
    assert "read 4 bytes in 1 files, expected 5" in done.stderr


def test_computing_spends_cpu_time_and_sleeping_does_not() -> None:
    """Each thread spends its share; how long that takes is the machine's affair."""
    before = time.process_time()
    assert program.burn(0.2, 2) >= 0.2
    assert time.process_time() - before >= 0.2
    assert program.rest(0.01) == 0.0


def test_memory_is_touched_page_by_page() -> None:
    """Memory that nobody writes to is not there."""
    memory = program.touched(10_000)
    assert len(memory) == 10_000
    assert [memory[0], memory[4096], memory[8192], memory[1]] == [1, 1, 1, 0]
    assert program.touched(0) == b""


def test_files_are_the_same_every_time(tmp_path: Path) -> None:
    """So that an attempt that is tried again writes what the first one wrote; another task writes something else."""
    for name, seed in (("a", "t/f0"), ("b", "t/f0"), ("c", "u/f0")):
        program.write_bytes(tmp_path / name, 100, seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c
    assert len(set(a)) > 50
