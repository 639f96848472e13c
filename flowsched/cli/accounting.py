"""`flowsched usage`: the core-, GPU- and GiB-hours of queues, users or labels, as a table, JSON or CSV."""

from __future__ import annotations

import csv
import re
import sys
from enum import StrEnum
from typing import Any, Final

import msgspec
from rich.text import Text

from flowsched.cli.printing import output, render
from flowsched.cli.printing.columns import Column, Columns
from flowsched.cli.printing.terminal_text import line
from flowsched.client.calls import Client
from flowsched.errors import InvalidRequest
from flowsched.workflow.views import UsageRowView, UsageSumView, UsageView

_NONE: Final = "(none)"


class UsageForm(StrEnum):
    """How the sums are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


async def usage(
    client: Client, by: str, since: str | None, until: str | None, queue: str | None, form: UsageForm
) -> None:
    """`flowsched usage`."""
    try:
        view = await client.usage(by, since=since, until=until, queue=queue)
    except InvalidRequest as error:  # it names parameters of the URL, and the user wrote options
        raise InvalidRequest(re.sub(r"\?(?=(by|since|until|queue)\b)", "--", str(error))) from None
    match form:
        case UsageForm.TABLE:
            output.show(usage_table(view))
        case UsageForm.JSON:
            print(output.to_json(view, indent=2))
        case UsageForm.CSV:
            write_csv(view, sys.stdout)


def usage_table(view: UsageView) -> Columns:
    """A row for each name, and their sum."""
    table = Columns([
        Column(view.by.removeprefix("label:").upper(), cut=True),
        Column("WORKFLOWS", rank=1, right=True),
        Column("CORE-HOURS", right=True, whole=True),
        Column("GPU-HOURS", right=True),
        Column("GiB-HOURS", right=True),
        Column("RUNNING", rank=2, right=True),
        Column("QUEUED", rank=3, right=True),
        Column("MOVED", rank=4, right=True),
    ])  # fmt: skip
    for row in view.rows:
        table.add(render.text(_NONE, "dim") if row.name is None else render.text(row.name), *_cells(row))
    table.add(Text("total", "bold"), *_cells(view.total))
    return table


def _cells(row: UsageSumView) -> list[str]:
    return [
        str(row.workflows),
        hours(row.core_hours),
        hours(row.gpu_hours),
        hours(row.memory_gib_hours),
        render.seconds(row.running_hours * 3600),
        render.seconds(row.queued_hours * 3600),
        render.size(row.bytes_moved),
    ]


def hours(amount: float) -> str:
    """Two decimal places, four where there is little."""
    return "0" if not amount else f"{amount:,.2f}" if amount >= 1 else f"{amount:.4f}"


def write_csv(view: UsageView, file: Any) -> None:
    """A line for each name, without the sum: programs add by themselves. An empty name: no user, or no such label."""
    columns = [field.name for field in msgspec.structs.fields(UsageSumView)]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([view.by, *columns])
    for row in view.rows:
        writer.writerow([line(row.name or ""), *(_plain(row, column) for column in columns)])


def _plain(row: UsageRowView, column: str) -> str:
    value = getattr(row, column)
    return f"{value:.6f}" if isinstance(value, float) else str(value)
