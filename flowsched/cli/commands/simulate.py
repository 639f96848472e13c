"""`flowsched simulate`: its options. What it does is in `cli.simulate`, which loads more than `--help` needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowsched.cli.context import options, run


def simulate(
    ctx: typer.Context,
    workloads: Annotated[
        list[Path],
        typer.Argument(metavar="WORKLOAD...", help="WfFormat traces or workflow documents."),
    ],
    cluster: Annotated[
        str,
        typer.Option(help="8x16-1g, 8x16-10g, 8x32-1g, 8x32-10g, each also with -ceph; or a YAML file."),
    ] = "8x16-1g",
    policy: Annotated[
        list[str] | None,
        typer.Option(help="kube-like, volcano-like, flowsched …, or a profile file. May be repeated."),
    ] = None,
    arrivals: Annotated[
        str, typer.Option(help="Seconds between the arrivals of the workloads; 0 = all at once.")
    ] = "0",
    errors: Annotated[
        int, typer.Option(min=0, max=1000, help="How wrong estimates of compute times are, in percent.")
    ] = 0,
    spread: Annotated[
        float,
        typer.Option(
            min=0, max=10, help="How far true compute times are from those read: 0.3 = by up to 30 %."
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Of what is drawn: errors, spread, and arrivals that are drawn.")
    ] = 1,
    lose: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE@FROM[-TO]",
            help="Lose a node at so many seconds (until); it comes back empty. May be repeated.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the schedule here, as JSON lines (one policy only).")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
) -> None:
    """Simulate workflows on a cluster, under any policies.

    The policies of flowsched decide as the service does; nothing is run, and no service is needed.

    All workloads share the cluster. `--arrivals 60` lets one come every minute; `~60`: at random, a minute apart on average.
    """
    from flowsched.cli import simulate

    if output not in ("table", "json"):
        raise typer.BadParameter(f"table or json, not {output!r}", param_hint="--output")
    chosen = policy or ["flowsched"]
    if trace is not None and len(chosen) > 1:
        raise typer.BadParameter("a trace is of one policy; say --policy once", param_hint="--trace")
    asked = simulate.Asked(
        tuple(workloads), cluster, tuple(chosen), arrivals, errors, seed, tuple(lose or ()), spread
    )
    run(options(ctx), simulate.simulate(asked, trace, output == "json"))
