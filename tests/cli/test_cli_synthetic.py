"""`run --synthetic`: a trace replayed by a real service with real bytes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowsched.app import Settings, running
from flowsched.cli import traces
from flowsched.client import Client
from flowsched.workflow.traces.synthetic import Largest, Scale
from flowsched.workflow.views import NodeView

sys.path.append(str(Path(__file__).parents[1] / "workflow"))

from trace_documents import DIVIDED, changed, raw

#: In the order of the trace: what each task has read and written at twice the size. `all` is empty in the trace.
READ = {"split_ID1": 6000, "count_ID2": 3000, "count_ID3": 5000, "join_ID4": 60}
WROTE = {"split_ID1": [2000, 4000], "count_ID2": [20], "count_ID3": [40], "join_ID4": [0]}
EDGES = [
    ("split_ID1", "count_ID2"),
    ("split_ID1", "count_ID3"),
    ("count_ID2", "join_ID4"),
    ("count_ID3", "join_ID4"),
]
FILES = {"split_ID1": 1, "count_ID2": 2, "count_ID3": 2, "join_ID4": 2}


def load(folder: Path, document: Any, scale: Scale) -> traces.Loaded:
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(raw(document)))
    return traces.load(str(path), traces.ReplayOptions(scale))


async def test_a_trace_is_replayed_byte_by_byte(tmp_path: Path) -> None:
    """Every task reads exactly its bytes, writes files of exactly the scaled sizes, and starts after its parents ended."""
    root = tmp_path / "root"
    settings = Settings(root=root, port=0, nodes=2, cpu="2", memory="512Mi", log_level="error")
    loaded = load(tmp_path, DIVIDED, Scale(time=0.01, size=2.0))
    async with (
        running(settings) as service,
        Client(service.url) as client,
        traces.replaying(client, loaded, root) as replay,
    ):
        accepted = await client.submit(replay.document)
        view = await accepted.wait(timeout=300)
        assert view.state == "SUCCEEDED"
        stages = {stage.name: stage.width for stage in await client.stages(view.id)}
        tasks = {}
        for name, width in stages.items():
            for shard in range(width):
                task = await client.task(view.id, name, shard)
                out = b"".join([part async for part in client.logs(view.id, name, shard)])
                tasks[json.loads(out)["task"]] = (task, json.loads(out))
        replay.over = True
        report = await traces.report(client, view, replay)
    assert {name: said["read"] for name, (_, said) in tasks.items()} == READ
    assert {name: said["files"] for name, (_, said) in tasks.items()} == FILES
    assert {
        name: [output.size_bytes for output in task.outputs] for name, (task, _) in tasks.items()
    } == WROTE
    for parent, child in EDGES:
        assert tasks[parent][0].ended_at <= tasks[child][0].started_at
    # A busy 1.5 cores of 10 s are two cores for 7.5 s; a hundredth of each, in CPU time, or a little more.
    assert tasks["count_ID2"][1]["cpu_s"] >= 0.15
    assert tasks["split_ID1"][1]["cpu_s"] >= 0.02
    assert (report.tasks, report.succeeded, report.read_bytes, report.written_bytes) == (4, 4, 14060, 6060)
    assert report.local_bytes + report.moved_bytes >= 14060
    assert report.critical_path_s == pytest.approx(0.02 + 0.096 + 0.015)
    assert {name: found.tasks for name, found in report.categories.items()} == {
        "split": 1,
        "count": 2,
        "join": 1,
    }
    assert not list(root.glob("synthetic-*"))  # the files it started from are gone


def start(folder: Path, document: Any, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "trace.json").write_bytes(raw(document))
    environment = {**os.environ, "FLOWSCHED_SERVER": "", "XDG_DATA_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "flowsched", "run", str(folder / "trace.json"), "--synthetic", *args],
        text=True, capture_output=True, env=environment, timeout=300, check=False,
    )  # fmt: skip


def test_the_command_line_reports_a_replay(tmp_path: Path) -> None:
    """With --sleep no CPU is burnt; --inputs keeps the files; JSON holds the report."""
    done = start(
        tmp_path, DIVIDED, "--sleep", "--time-scale", "0.001", "--size-scale", "1", "--inputs", str(tmp_path / "in"),
        "--root", str(tmp_path / "r"), "--cpu", "1", "-o", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["workflow"]["state"] == "SUCCEEDED"
    assert found["workflow"]["labels"] == {"synthetic": "time 0.001, size 1"}
    assert (
        found["synthetic"]["tasks"],
        found["synthetic"]["succeeded"],
        found["synthetic"]["read_bytes"],
    ) == (4, 4, 7030)
    assert "1 tasks kept more cores busy (up to 2) than a node has" in done.stderr
    kept = sorted(path.stat().st_size for path in (tmp_path / "in").rglob("*") if path.is_file())
    assert kept == [500, 3000]


def test_a_wrong_trace_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Exit code 2, each fault with its place, and no database was made."""
    done = start(
        tmp_path, changed("workflow.specification.tasks.1.parents", ["nobody"]), "--root", str(tmp_path / "r")
    )
    assert done.returncode == 2
    assert '$.workflow.specification.tasks[1].parents[0]: found "nobody"' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_cut_off_gzip_file_is_refused(tmp_path: Path) -> None:
    """Half a download says so."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(raw(DIVIDED))[:-20])
    with pytest.raises(traces.InvalidRequest, match="cut off"):
        traces.load(str(path), traces.ReplayOptions(Scale()))
    path.write_bytes(b"\x1f\x8b" + b"x" * 40)
    with pytest.raises(traces.InvalidRequest, match="no gzip file"):
        traces.load(str(path), traces.ReplayOptions(Scale()))


def test_a_task_asks_for_no_more_than_a_node_can_give() -> None:
    """What others' pods took of an idle node is not there; what our own tasks use comes back."""
    idle = NodeView(
        name="a", ready=True, allocatable={"cpu": 4000, "memory": 800}, used={"cpu": 500, "memory": 300}
    )
    busy = NodeView(
        name="b", ready=True, allocatable={"cpu": 2000, "memory": 900}, used={"cpu": 2000}, running=1
    )
    assert traces.largest_of([idle, busy]) == Largest(3500, 900)
    assert traces.largest_of([idle]) == Largest(3500, 500)
