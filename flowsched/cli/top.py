"""`flowsched top`: nodes, what runs on them and what waits, in one picture that goes on until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from flowsched.cli.context import DONE
from flowsched.cli.following import Interrupted, interruptible
from flowsched.cli.options import asks
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render
from flowsched.cli.printing.columns import Column, Columns, wrapped
from flowsched.client import Client
from flowsched.client.calls import is_terminal
from flowsched.errors import Unavailable
from flowsched.workflow.run.states import ReportedState
from flowsched.workflow.views import NodeView, QueueView, StageView, WorkflowView

#: So many workflows are asked for at once.
_PAGE: Final = 200
#: Of so many of them the stages are asked for.
_STAGES_OF: Final = 10
_BAR: Final = 10
#: Stages in these states are shown.
_MOVING: Final = ("RUNNING", "STARTING", "STAGING", "QUEUED")
_RATES: Final = ("disk", "network_in", "network_out")


@dataclass(frozen=True, slots=True)
class Activity:
    """A stage that runs or waits."""

    workflow: WorkflowView
    stage: StageView


@dataclass(frozen=True, slots=True)
class Picture:
    """The content of `top` at one moment."""

    url: str
    at: datetime
    nodes: list[NodeView]
    queues: list[QueueView]
    live: list[WorkflowView]  #: what has not ended, runs in ENGINE too
    stages: list[Activity]
    rates: Mapping[str, tuple[float, float]] = field(default_factory=dict)  #: node -> bytes/s in, out
    rows: int = 1000  #: lines that there is room for

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The picture at the width of a console, and no longer than it has room for."""
        yield from self.lines(options.max_width)

    def lines(self, width: int) -> Iterator[Text]:
        """The picture as lines."""
        head = list(wrapped(self._head(), width, indent=0))
        parts = [list(table.lines(width)) for table in (self._nodes(), self._stages(), self._queues())]
        room = max(6, self.rows - len(head) - len(parts))
        while sum(map(len, parts)) > room and len(longest := max(parts, key=len)) > 3:
            longest[-2:] = [Text("… and more", "dim")]
        yield from head
        for part in parts:
            if len(part) > 1:
                yield Text()
                yield from part

    def _head(self) -> Text:
        """The service, and what it does."""
        ready, number = sum(node.ready for node in self.nodes), len(self.live)
        counts: Counter[str] = Counter()
        for view in self.live:
            counts.update(view.counts)
        return Text.assemble(
            ("flowsched ", "bold"), render.text(self.url), self.at.astimezone().strftime("  %H:%M:%S"),
            f"  {ready}/{len(self.nodes)} nodes ready  {number} workflow{'s' * (number != 1)}  ", render.moving(counts),
        )  # fmt: skip

    def _nodes(self) -> Columns:
        def rate(way: int) -> Callable[[NodeView], str]:
            return lambda view: render.size(round(self.rates.get(view.name, (0.0, 0.0))[way]))

        def others(view: NodeView) -> str:
            return render.size(sum(view.others.get(name, 0) for name in _RATES))

        return Columns(
            self.nodes,
            Column("NODE", lambda view: render.text(view.name), cut=True, whole=True),
            Column("READY", render.node_state, whole=True),
            *render.node_amounts(_bar),
            Column("IN/s", rate(0), rank=1, right=True),
            Column("OUT/s", rate(1), rank=2, right=True),
            Column("OTHERS/s", others, rank=5, right=True),
        )

    def _stages(self) -> Columns:
        def took(each: Activity) -> str:
            begin = each.stage.started_at
            return "" if begin is None else render.seconds(max(0.0, (self.at - begin).total_seconds()))

        return Columns(
            self.stages,
            Column("WORKFLOW", lambda each: render.text(each.workflow.name, "bold"), cut=True, whole=True),
            Column("STAGE", lambda each: render.text(each.stage.name), cut=True, whole=True),
            Column("STATE", lambda each: render.state_of(each.stage), whole=True),
            Column("DONE", lambda each: render.done(each.stage), right=True, whole=True),
            Column("GANG", lambda each: f"{each.stage.members} members" if each.stage.gang else "", rank=2),
            Column("NOW", lambda each: render.moving(each.stage.counts), rank=1),
            Column("QUEUE", lambda each: render.text(each.workflow.queue), rank=4, cut=True),
            Column("TIME", took, rank=3, right=True),
            note=lambda each: render.why(each.stage),
        )

    def _queues(self) -> Columns:
        busy = [
            view
            for view in self.queues
            if view.waiting or view.starting or view.running or view.name == "default"
        ]
        used = Column("USED", lambda view: render.amounts(view.used), rank=1, whole=True)
        pending = Column("PENDING", lambda view: render.amounts(view.pending), rank=2)
        return render.queue_table(
            busy, used, pending, note=lambda view: Text("paused" * view.paused, "yellow")
        )


def _bar(used: int, whole: int) -> Text:
    cells = 0 if whole <= 0 else min(_BAR, -(-used * _BAR // whole))
    return Text("█" * cells, "cyan").append("░" * (_BAR - cells), "dim")


commands = typer.Typer(rich_markup_mode=None)


@commands.command()
@asks()
async def top(
    client: Client,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two pictures.")] = 2.0,
) -> int:
    """Show nodes, running stages and queues, live until Ctrl-C.

    CPU, memory and GPUs are what tasks have asked for, of what the node has; IN/s and OUT/s are bytes that were really copied.
    In a pipe it prints one picture.
    """
    console = printed.console()
    if once or not console.is_terminal:
        printed.show(await picture(client))
        return DONE
    with contextlib.suppress(Interrupted):
        async with interruptible():
            await _live(client, every, console)
    return DONE


async def _live(client: Client, every_s: float, console: Console) -> None:
    before: Picture | None = None
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            try:
                before = await picture(client, before, rows=console.size.height)
                live.update(before, refresh=True)
            except Unavailable as away:  # the last picture stays: the service may come back
                live.update(Text(f"{away}; trying again", "yellow"), refresh=True)
            await asyncio.sleep(every_s)


async def picture(client: Client, before: Picture | None = None, rows: int = 1000) -> Picture:
    """Ask the service for its state now; with rates since the picture before."""
    nodes, queues, live = await asyncio.gather(client.nodes(), client.queues(), _living(client))
    asked = [view for view in live if view.state != ReportedState.ENGINE][:_STAGES_OF]
    stages = await asyncio.gather(*(client.stages(view.id) for view in asked))
    moving = [
        Activity(view, stage)
        for view, found in zip(asked, stages, strict=True)
        for stage in found
        if stage.state in _MOVING
    ]
    moving.sort(key=lambda each: (not each.stage.gang, _MOVING.index(each.stage.state)))
    at = datetime.now(UTC)
    return Picture(client.url, at, nodes, queues, live, moving, _rates(nodes, at, before), rows)


async def _living(client: Client) -> list[WorkflowView]:
    """The live workflows: lists have them before those that have ended."""
    found: list[WorkflowView] = []
    async with aclosing(client.list(page=_PAGE)) as views:
        async for view in views:
            if is_terminal(view.state):
                break
            found.append(view)
    return found


def _rates(nodes: Sequence[NodeView], at: datetime, before: Picture | None) -> dict[str, tuple[float, float]]:
    """Bytes a second that each node has read and sent since the picture before."""
    span = 0.0 if before is None else (at - before.at).total_seconds()
    if before is None or span <= 0:
        return {}
    earlier = {node.name: node for node in before.nodes}
    return {
        node.name: (
            max(0.0, (node.bytes_in - earlier[node.name].bytes_in) / span),
            max(0.0, (node.bytes_out - earlier[node.name].bytes_out) / span),
        )
        for node in nodes
        if node.name in earlier
    }
