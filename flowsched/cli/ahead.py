"""`flowsched plan`: its options. What it does is in `plan`, which loads more than `--help` needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowsched.cli.context import options, run


def plan(
    ctx: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="FILE.wdl", help="The workflow; imports are found beside it.")
    ],
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", "-i", metavar="JSON", help="Its inputs, as Cromwell takes them."),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table, json, dot or svg.")] = "table",
    out: Annotated[Path | None, typer.Option(help="Write to this file instead (not a table).")] = None,
) -> None:
    """Say what a WDL will run, as far as it is known.

    Its calls, their order, how wide its scatters are, what its tasks ask for; and what is not known yet.

    Works without a server. Nothing is run, and nothing fetched.
    """
    from flowsched.cli import plan as planning

    if output not in list(planning.PlanForm):
        raise typer.BadParameter(f"{', '.join(planning.PlanForm)}, not {output!r}", param_hint="--output")
    run(options(ctx), planning.plan(source, inputs, planning.PlanForm(output), out))
