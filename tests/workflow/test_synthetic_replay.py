"""`bench.synthetic`: a trace replayed by a real service with real bytes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from trace_documents import DIVIDED, raw

from bench.synthetic.document import Largest, Scale
from bench.synthetic.replay import largest_of, load, replaying, report
from flowsched.app import Settings, running
from flowsched.client import Client
from flowsched.cluster.local.settings import LocalSettings
from flowsched.errors import InvalidRequest
from flowsched.workflow.views import NodeView

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


async def test_a_trace_is_replayed_byte_by_byte(tmp_path: Path) -> None:
    """Every task reads exactly its bytes, writes files of exactly the scaled sizes, and starts after its parents ended."""
    root = tmp_path / "root"
    settings = Settings(
        root=root, port=0, log_level="error", local=LocalSettings(nodes=2, cpu="2", memory="512Mi")
    )
    path, scale = tmp_path / "trace.json.gz", Scale(time=0.01, size=2.0)
    path.write_bytes(gzip.compress(raw(DIVIDED)))
    async with (
        running(settings) as service,
        Client(service.url) as client,
        replaying(client, load(path), scale, root) as replay,
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
        found = await report(client, view, replay)
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
    assert (found.tasks, found.succeeded, found.read_bytes, found.written_bytes) == (4, 4, 14060, 6060)
    assert found.local_bytes + found.moved_bytes >= 14060
    assert found.critical_path_s == pytest.approx(0.02 + 0.096 + 0.015)
    assert {name: each.tasks for name, each in found.categories.items()} == {
        "split": 1,
        "count": 2,
        "join": 1,
    }
    assert not list(root.glob("synthetic-*"))  # the files it started from are gone


def test_a_cut_off_gzip_file_is_refused(tmp_path: Path) -> None:
    """Half a download says so."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(raw(DIVIDED))[:-20])
    with pytest.raises(InvalidRequest, match="cut off"):
        load(path)
    path.write_bytes(b"\x1f\x8b" + b"x" * 40)
    with pytest.raises(InvalidRequest, match="no gzip file"):
        load(path)


def test_a_task_asks_for_no_more_than_a_node_can_give() -> None:
    """What others' pods took of an idle node is not there; what our own tasks use comes back."""
    idle = NodeView(
        name="a", ready=True, allocatable={"cpu": 4000, "memory": 800}, used={"cpu": 500, "memory": 300}
    )
    busy = NodeView(
        name="b", ready=True, allocatable={"cpu": 2000, "memory": 900}, used={"cpu": 2000}, running=1
    )
    assert largest_of([idle, busy]) == Largest(3500, 900)
    assert largest_of([idle]) == Largest(3500, 500)
