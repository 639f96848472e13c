"""`flowsched explain --cluster`: why cores, memory and GPUs were idle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from flowsched.cli import output, render
from flowsched.cli.form import Form
from flowsched.client import Client
from flowsched.workflow.views import IdleReportView, IdleView

#: The columns, in the order in which they are told; one without any idle room is left out.
CAUSES: Final = {
    "no_demand": "no demand",
    "fragmentation": "fragmented",
    "reserved": "reserved",
    "quota": "quota",
    "data": "data",
    "io": "disk",
    "mismatch": "mismatch",
    "starting": "starting",
}
_UNITS: Final = {"cpu": "core-hours", "memory": "GiB-hours", "gpu": "GPU-hours"}


async def explain_cluster(client: Client, since: str, form: Form) -> None:
    """`flowsched explain --cluster`."""
    report = await client.idle(since)
    output.one(report, form, lambda: idle_panel(report))


def idle_panel(report: IdleReportView) -> RenderableType:
    """A table of hours for each resource that was idle, and a sentence."""
    if not report.resources:
        return Text("Nothing is known yet: no node has been seen for any time.")
    parts: list[RenderableType] = []
    for name, whole in report.resources.items():
        causes = [cause for cause in CAUSES if whole.causes.get(cause)]
        table = render.plain_table(
            f"={name}, {_UNITS.get(name, name)}",
            ">capacity",
            ">used",
            ">idle",
            *(f">{CAUSES[c]}" for c in causes),
        )
        for hour in report.hours:
            if name in hour.resources:
                begin = hour.start_at.astimezone().strftime("%m-%d %H:00")
                table.add_row(Text(begin), *_cells(hour.resources[name], causes))
        table.add_row(Text("all", "bold"), *_cells(whole, causes))
        parts += [table, Text()]
    parts += [render.text(sentence) for sentence in report.sentences]
    return Group(*parts)


def _cells(view: IdleView, causes: list[str]) -> list[Text]:
    amounts: Mapping[str, float] = view.causes
    shown = [view.capacity, view.used, view.idle, *(amounts.get(cause, 0.0) for cause in causes)]
    return [Text(_hours(amount)) for amount in shown]


def _hours(amount: float) -> str:
    """One decimal place, three where there is little."""
    return "" if not amount else f"{amount:.1f}" if amount >= 1 else f"{amount:.3f}"
