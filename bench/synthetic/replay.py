"""Replays a trace on a running service: `python -m bench.synthetic.replay trace.json.gz --server URL [--time-scale 0.01] …`.

The recorded run of a workflow (WfFormat 1.0 to 1.6, .gz or not) runs again: the same tasks, DAG and files, with synthetic work in
place of the programs. The service's nodes are on this machine or share its folders. The report is one JSON object; its times are
in seconds of the scaled run. README.md says what is real of a replay.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.synthetic.document import Largest, Place, Scale, Synthetic, synthetic
from bench.synthetic.task import write_bytes
from flowsched.client import Client
from flowsched.errors import InvalidRequest, TooLarge, Unavailable
from flowsched.workflow.formats.wfformat import LIMITS, read_trace
from flowsched.workflow.traces.trace import Trace
from flowsched.workflow.views import NodeView, TaskView, WorkflowView

ROOT: Final = Path(__file__).parents[2]
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace as a document for the nodes of one service."""

    trace: Trace
    plan: Synthetic
    scale: Scale
    cores: float  #: of all nodes

    @property
    def document(self) -> bytes:
        """The workflow document."""
        return msgspec.json.encode(self.plan.document)


@dataclass(slots=True)
class Category:
    """Tasks of one category: seconds and bytes, summed."""

    tasks: int = 0
    work_s: float = 0.0
    ran_s: float = 0.0
    read_bytes: int = 0
    local_bytes: int = 0
    moved_bytes: int = 0
    written_bytes: int = 0


@dataclass(slots=True)
class Report:
    """The result of a replay. Both bounds count computing alone."""

    tasks: int
    succeeded: int
    stages: int
    fewer_cores: int
    less_memory: int
    makespan_s: float | None
    critical_path_s: float
    cores: float
    work_over_cores_s: float
    read_bytes: int
    local_bytes: int
    moved_bytes: int
    written_bytes: int
    categories: dict[str, Category] = field(default_factory=dict)


def load(path: Path) -> Trace:
    """Read a trace.

    Raises:
        InvalidRequest: It is no trace.
        TooLarge: Unpacked, it is larger than a trace may be.
    """
    raw = path.read_bytes()
    if not raw.startswith(_GZIP):
        return read_trace(raw)
    unpacker = zlib.decompressobj(wbits=31)
    try:
        found = unpacker.decompress(raw, LIMITS.document_bytes + 1)
    except zlib.error as error:
        raise InvalidRequest(f"{path} is no gzip file: {error}") from None
    if len(found) > LIMITS.document_bytes:
        raise TooLarge(
            f"{path} is too large unpacked: the limit 'document_bytes' is {LIMITS.document_bytes:,}"
        )
    if not unpacker.eof:
        raise InvalidRequest(f"{path} is cut off: the gzip stream has no end")
    return read_trace(found)


@asynccontextmanager
async def replaying(client: Client, trace: Trace, scale: Scale, beside: Path | None) -> AsyncIterator[Replay]:
    """Fit a trace to the service's nodes, and make the files that it starts from, until the end of the context.

    Args:
        client: The service.
        trace: What ran.
        scale: How much smaller it runs.
        beside: Where the files are made; None = in a temporary folder of the machine.

    Raises:
        Unavailable: The service has no node.
    """
    nodes = [node for node in await client.nodes() if node.ready]
    if not nodes:
        raise Unavailable("the service has no node yet: its size decides what a synthetic task may ask for")
    cores = sum(node.allocatable.get("cpu", 0) for node in nodes) / 1000
    folder = Path(tempfile.mkdtemp(prefix="synthetic-", dir=beside))
    try:
        place = Place(folder.as_uri(), {"PYTHONPATH": str(ROOT)})
        plan = synthetic(trace, scale, largest_of(nodes), place)
        await asyncio.to_thread(make_files, folder, plan.files)
        yield Replay(trace, plan, scale, cores)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def largest_of(nodes: Sequence[NodeView]) -> Largest:
    """The resources of one node, less those of foreign pods (agents, on Kubernetes)."""

    def room(node: NodeView, name: str) -> int:
        return node.allocatable.get(name, 0) - (0 if node.running else node.used.get(name, 0))

    return Largest(max(room(node, "cpu") for node in nodes), max(room(node, "memory") for node in nodes))


def make_files(folder: Path, files: Mapping[str, int]) -> None:
    """Make the files that a replay starts from."""
    for name, size in files.items():
        write_bytes(folder / name, size, name)


async def report(client: Client, view: WorkflowView, replay: Replay) -> Report:
    """What came of it: times and bytes by category."""
    planned = {(each.stage, each.shard): each for each in replay.plan.tasks}
    found: dict[str, Category] = defaultdict(Category)
    succeeded = 0
    async for task in client.tasks(view.id):
        plan = planned[task.stage, task.shard]
        into = found[plan.category]
        into.tasks += 1
        if task.state != "SUCCEEDED":
            continue
        succeeded += 1
        into.work_s += plan.work.seconds
        into.ran_s += _ran(task)
        into.read_bytes += plan.read_bytes  # the task would have failed had it read another number
        into.written_bytes += plan.written_bytes
        into.local_bytes += task.bytes_local
        into.moved_bytes += task.bytes_moved
    over = view.state == "SUCCEEDED" and succeeded == len(replay.plan.tasks)
    makespan = (view.ended_at - view.created_at).total_seconds() if over and view.ended_at else None
    sums = found.values()
    return Report(
        tasks=len(replay.plan.tasks),
        succeeded=succeeded,
        stages=len(replay.plan.document["stages"]),
        fewer_cores=replay.plan.fewer_cores,
        less_memory=replay.plan.less_memory,
        makespan_s=makespan,
        critical_path_s=replay.plan.critical_path(replay.trace),
        cores=replay.cores,
        work_over_cores_s=replay.plan.cpu_seconds / replay.cores,
        read_bytes=sum(each.read_bytes for each in sums),
        local_bytes=sum(each.local_bytes for each in sums),
        moved_bytes=sum(each.moved_bytes for each in sums),
        written_bytes=sum(each.written_bytes for each in sums),
        categories=dict(found),
    )


def _ran(task: TaskView) -> float:
    if task.started_at is None or task.ended_at is None:
        return 0.0
    return (task.ended_at - task.started_at).total_seconds()


async def replayed(url: str, path: Path, scale: Scale, beside: Path | None = None) -> dict[str, Any]:
    """Replay one trace on a service to its end.

    Args:
        url: Of the service.
        path: Of the trace.
        scale: How much smaller it runs.
        beside: Where the files are made that it starts from.
    """
    trace = load(path)
    async with Client(url) as client, replaying(client, trace, scale, beside) as replay:
        view = await (await client.submit(replay.document)).wait()
        return {"workflow": view.id, "state": view.state, **asdict(await report(client, view, replay))}


def main() -> int:
    """The exit code: 0 if every task of the trace succeeded."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.synthetic.replay", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("trace", type=Path, help="a WfFormat document, .gz or not")
    parser.add_argument("--server", default=os.environ.get("FLOWSCHED_SERVER", "http://127.0.0.1:8470"))
    parser.add_argument(
        "--time-scale", type=float, default=0.01, help="CPU time of a task, as a part of the trace's"
    )
    parser.add_argument(
        "--size-scale", type=float, default=0.001, help="bytes of files and memory, as a part of the trace's"
    )
    parser.add_argument("--sleep", action="store_true", help="sleep instead of computing")
    parser.add_argument(
        "--inputs", type=Path, help="where the files are made that the trace starts from; every node sees it"
    )
    given = parser.parse_args()
    scale = Scale(given.time_scale, given.size_scale, given.sleep)
    found = asyncio.run(replayed(given.server, given.trace, scale, given.inputs))
    print(json.dumps(found, indent=2))
    return 0 if found["makespan_s"] is not None else 1


if __name__ == "__main__":
    sys.exit(main())
