"""Commands that account for what ran. Bodies live in the modules they import when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from flowsched.cli.context import ask


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
        str | None, typer.Option(help="Workflows that ended before then. [those that live too]")
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
