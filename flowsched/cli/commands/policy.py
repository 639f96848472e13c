"""Commands about the scheduler's policy: profiles, plugins, snapshots. Bodies live in the modules they import when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowsched.cli.commands.options import Output
from flowsched.cli.context import ask, options, run
from flowsched.cli.printing.form import Form

profile = typer.Typer(
    help="The scheduler's policy: look at it, check it, replace it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ProfileFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Profiles in YAML or JSON; - reads standard input.")
]
Snapshot = Annotated[Path, typer.Argument(metavar="FILE", help="The snapshot.")]


@profile.command("show")
def show(ctx: typer.Context, output: Output = Form.TABLE) -> None:
    """Show the profile in force, where it comes from, and what was refused since."""
    from flowsched.cli import policy

    ask(ctx, lambda client: policy.show(client, output))


@profile.command("check")
def check(ctx: typer.Context, file: ProfileFile) -> None:
    """Check a profile with the plugins that are installed here; needs no server."""
    from flowsched.cli import policy

    run(options(ctx), policy.check(file))


@profile.command("apply")
def apply(ctx: typer.Context, file: ProfileFile, output: Output = Form.TABLE) -> None:
    """Replace the profile of a running service.

    A bad one changes nothing. A service that was started with --profile keeps it in that file; another one forgets it
    when it stops.
    """
    from flowsched.cli import policy

    ask(ctx, lambda client: policy.apply(client, file, output))


@profile.command("plugins")
def plugins(
    ctx: typer.Context,
    local: Annotated[bool, typer.Option("--local", help="Those installed here; no server is asked.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """List plugins: what they do, what they take, and whether they failed."""
    from flowsched.cli import policy

    if local:
        run(options(ctx), policy.local_plugins(output))
    else:
        ask(ctx, lambda client: policy.plugins(client, output))


@profile.command("fields")
def fields(ctx: typer.Context, output: Output = Form.TABLE) -> None:
    """List what a profile may say, with its defaults."""
    from flowsched.cli import policy

    run(options(ctx), policy.fields(output))


def snapshot(ctx: typer.Context, file: Snapshot) -> None:
    """Record the next scheduling cycle of a service in a file.

    It holds the cluster, what waits, the profile and the plan.
    """
    from flowsched.cli import policy

    ask(ctx, lambda client: policy.snapshot(client, file))


def replay(
    ctx: typer.Context,
    file: Snapshot,
    other: Annotated[
        Path | None,
        typer.Option("--profile", metavar="FILE", help="Decide under this profile instead, and compare."),
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Decide again what a snapshot recorded; needs no server.

    The exit code is 0 if the plan is the same, byte for byte, and 1 if not; then it says what differs. With --profile
    it shows what another policy would do, and the exit code is 0.
    """
    from flowsched.cli import policy

    run(options(ctx), policy.replay(file, other, output))
