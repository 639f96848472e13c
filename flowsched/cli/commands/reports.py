"""Commands that account for what ran. Bodies live in the modules they import when they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowsched.cli.commands.options import Id, Output
from flowsched.cli.context import about, ask
from flowsched.cli.printing.form import Form

if TYPE_CHECKING:
    from flowsched.client.calls import Client


def usage(
    ctx: typer.Context,
    by: Annotated[
        str,
        typer.Option(metavar="queue|user|label:KEY", help="A row for each queue, user or value of a label."),
    ] = "queue",
    since: Annotated[
        str | None,
        typer.Option(help="Workflows that ended from then on, and those that live: 7d, 2026-11-01. [all]"),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="Workflows that ended before then; a date includes its day. [those that live too]"),
    ] = None,
    in_queue: Annotated[str | None, typer.Option("--queue", help="Of this queue alone.")] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table, json or csv.")] = "table",
) -> None:
    """Account for core-, GPU- and GiB-hours, by queue, user or label.

    What attempts held from their binding to their end, however they ended.
    """
    from flowsched.cli import accounting

    if output not in list(accounting.UsageForm):
        raise typer.BadParameter(f"{', '.join(accounting.UsageForm)}, not {output!r}", param_hint="--output")
    form = accounting.UsageForm(output)
    ask(ctx, lambda client: accounting.usage(client, by, since, until, in_queue, form))


def seff(
    ctx: typer.Context,
    workflow: Id,
    stage: Annotated[str | None, typer.Argument(help="Only this stage, with each of its attempts.")] = None,
    index: Annotated[
        str | None, typer.Argument(metavar="INDEX|ITEM|ROLE", help="Only this task of it.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Say what tasks used of what they asked for.

    CPU and memory of each stage, and what to ask for instead. As Slurm's seff, for a whole workflow.
    """
    from flowsched.cli import efficiency

    about(ctx, workflow, lambda client, ident: efficiency.seff(client, ident, stage, index, output))


def trace(
    ctx: typer.Context,
    workflow: Id,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write to this file; - is stdout. [stdout]"),
    ] = None,
) -> None:
    """Write each attempt as a line of a trace.tsv.

    With the default columns and formats of Nextflow's trace file.
    """
    from flowsched.cli import trace_file

    about(ctx, workflow, lambda client, ident: trace_file.trace(client, ident, out))


def report(
    ctx: typer.Context,
    workflow: Id,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The file to write; - is stdout. [report-ID.html]"),
    ] = None,
    other: Annotated[
        str | None,
        typer.Option("--with", metavar="ID|NAME", help="Compare it with this run."),
    ] = None,
) -> None:
    """Write a report of a workflow as one HTML file.

    Graph, timeline, usage against request, what waited for what, bytes, failed attempts. It needs no network.
    """
    from flowsched.cli import report as reporting
    from flowsched.cli.naming import find

    async def made(client: Client, ident: str) -> None:
        await reporting.report(client, ident, await find(client, other) if other else None, out)

    about(ctx, workflow, made)
