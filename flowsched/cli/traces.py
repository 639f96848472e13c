"""`run --synthetic` and `submit --synthetic`: a trace in place of a document, and what came of it."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

import flowsched
from flowsched import tokens
from flowsched.cli.context import say
from flowsched.cli.printing import render
from flowsched.client import Client
from flowsched.cluster.local.virtual_nodes import machine_cores
from flowsched.errors import InvalidRequest, TooLarge, Unavailable
from flowsched.synthetic import write_bytes
from flowsched.workflow.formats.wfformat import LIMITS, read_trace
from flowsched.workflow.traces.synthetic import Largest, Place, Scale, Synthetic, synthetic
from flowsched.workflow.traces.trace import Trace, work
from flowsched.workflow.views import NodeView, TaskView, WorkflowView

_GZIP: Final = b"\x1f\x8b"
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a trace shall be replayed.

    Args:
        scale: How much smaller.
        inputs: Where the files it starts from are put and stay; None = a folder for this run.
        image: Of its tasks, where the cluster uses images.
    """

    scale: Scale
    inputs: Path | None = None
    image: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A trace that was read. `mark` is the same for the same document and sizes."""

    trace: Trace
    wanted: ReplayOptions
    mark: str


@dataclass(slots=True)
class Replay:
    """A trace that was handed in, and where its first files are."""

    trace: Trace
    plan: Synthetic
    scale: Scale
    folder: Path
    own: bool  #: the folder is this run's alone
    cores: float  #: that compute at a time: those of all nodes, or of this machine where nodes claim more
    over: bool = False  #: the workflow has ended, its tasks do not read the files any more

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
    """The result of a replay. Times in seconds, of the scaled run."""

    tasks: int
    succeeded: int
    stages: int
    time_scale: float
    size_scale: float
    makespan_s: float | None
    critical_path_s: float
    cores: float
    work_over_cores_s: float
    read_bytes: int
    local_bytes: int
    moved_bytes: int
    written_bytes: int
    categories: dict[str, Category] = field(default_factory=dict)


def load(path: str, wanted: ReplayOptions) -> Loaded:
    """Read a trace.

    Args:
        path: Of a WfFormat document, .gz or not; - reads standard input.
        wanted: How it shall be replayed.

    Raises:
        InvalidRequest: It is no trace.
    """
    raw = _bytes(path)
    mark = hashlib.sha256(raw + f"{wanted.scale.size!r}".encode()).hexdigest()[:12]
    return Loaded(read_trace(raw), wanted, mark)


@asynccontextmanager
async def replaying(client: Client, found: Loaded, own: Path | None) -> AsyncIterator[Replay]:
    """Fit a trace to the service's nodes, and make the files it starts from.

    They are removed at the end if the workflow has ended, and `inputs` was not said.

    Args:
        client: The service.
        found: The trace.
        own: The root of the service, if it runs in this process.

    Raises:
        Unavailable: The service has no node.
    """
    trace, wanted = found.trace, found.wanted
    nodes = [node for node in await client.nodes() if node.ready]
    if not nodes:
        raise Unavailable("the service has no node yet: its size decides what a synthetic task may ask for")
    largest = largest_of(nodes)
    folder = await asyncio.to_thread(_folder, found, own or tokens.data_folder())
    # Tasks of this very machine run this very program, wherever it was loaded from.
    env = {} if own is None else {"PYTHONPATH": str(Path(flowsched.__file__).parents[1])}
    plan = synthetic(trace, wanted.scale, largest, Place(folder.as_uri(), wanted.image, env))
    cores = sum(node.allocatable.get("cpu", 0) for node in nodes) / 1000
    if own is not None and not wanted.scale.sleep:
        cores = min(cores, machine_cores())
    replay = Replay(trace, plan, wanted.scale, folder, wanted.inputs is None, cores)
    _tell(replay, largest)
    try:
        await asyncio.to_thread(make_files, folder, plan.files)
        yield replay
    finally:
        if replay.own and replay.over:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        elif replay.own:
            say(f"{folder} holds the files it starts from; remove it when the workflow has ended")


def _bytes(path: str) -> bytes:
    """A document, unpacked, and no more of it than may be."""
    raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    if not raw.startswith(_GZIP):
        return raw
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
    return found


def largest_of(nodes: Sequence[NodeView]) -> Largest:
    """The resources of one node, less those of foreign pods (agents, on Kubernetes)."""

    def room(node: NodeView, name: str) -> int:
        return node.allocatable.get(name, 0) - (0 if node.running else node.used.get(name, 0))

    return Largest(max(room(node, "cpu") for node in nodes), max(room(node, "memory") for node in nodes))


def _folder(found: Loaded, beside: Path) -> Path:
    name = _NOT_A_NAME.sub("-", found.trace.name)[:60]
    if found.wanted.inputs is None:
        beside.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"synthetic-{name}-", dir=beside.absolute()))
    folder = found.wanted.inputs.absolute() / f"{name}-{found.mark}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def make_files(folder: Path, files: Mapping[str, int]) -> None:
    """Make the files a replay starts from; those that are there already stay."""
    for name, size in files.items():
        path = folder / name
        if not (path.exists() and path.stat().st_size == size):
            write_bytes(path, size, name)


def _tell(replay: Replay, largest: Largest) -> None:
    plan, total = replay.plan, sum(replay.plan.files.values())
    say(
        f"{replay.trace.name}: {len(plan.tasks)} tasks in {len(plan.document['stages'])} stages; "
        f"time × {replay.scale.time:g}, sizes × {replay.scale.size:g}; "
        f"it starts from {len(plan.files)} files of {render.size(total)}"
    )
    if plan.fewer_cores:
        most = max(work(task).cores for task in replay.trace.tasks)
        say(f"{plan.fewer_cores} tasks kept more cores busy (up to {most}) than a node has: "
            f"they spend the same CPU time on {largest.cores}")  # fmt: skip
    if plan.less_memory:
        say(
            f"{plan.less_memory} tasks used more memory than a node has: they touch {render.size(largest.touchable_bytes)}"
        )


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
        time_scale=replay.scale.time,
        size_scale=replay.scale.size,
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


def table(found: Report) -> RenderableType:
    """A report for people."""
    head = render.plain_table("SYNTHETIC", ">", "")
    bound = max(found.critical_path_s, found.work_over_cores_s)
    if found.makespan_s is not None:
        note = f"{found.makespan_s / bound:.2f} × the larger bound" if bound else ""
        head.add_row("makespan", render.seconds(found.makespan_s), note)
    else:
        head.add_row("makespan", "unfinished", f"{found.succeeded:,} of {found.tasks:,} tasks succeeded")
    rows = (
        (
            "bound: critical path",
            render.seconds(found.critical_path_s),
            "computing alone, nothing for bytes or starts",
        ),
        (
            "bound: work over cores",
            render.seconds(found.work_over_cores_s),
            f"computing alone, on {found.cores:g} cores",
        ),
        ("read by tasks", render.size(found.read_bytes), "to the last byte, each task checked how many"),
        ("  found on their node", render.size(found.local_bytes), ""),
        ("  moved for them", render.size(found.moved_bytes), "also to nodes where they did not run then"),
        ("written by tasks", render.size(found.written_bytes), ""),
    )
    for row in rows:
        head.add_row(*row)
    each = render.plain_table(
        "CATEGORY", ">TASKS", ">COMPUTE", ">RAN", ">BESIDE", ">READ", ">LOCAL", ">MOVED", ">WROTE"
    )
    for category, sums in found.categories.items():
        each.add_row(
            render.text(re.split(r"[.:/]", category)[-1] or category),
            str(sums.tasks),
            render.seconds(sums.work_s),
            render.seconds(sums.ran_s),
            render.seconds(max(0.0, sums.ran_s - sums.work_s) / max(1, sums.tasks)),
            render.size(sums.read_bytes),
            render.size(sums.local_bytes),
            render.size(sums.moved_bytes),
            render.size(sums.written_bytes),
        )
    legend = Text(
        "COMPUTE is what the trace asks for, RAN what it took, BESIDE the difference for one task", "dim"
    )
    return Group(head, Text(""), each, legend)
