"""Commands that look after a root: its database, its secrets. Bodies live in the modules they import when they run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flowsched.cli.commands.options import Database, Output, Root, settings_for
from flowsched.cli.context import DATABASE_AWAY, options, run
from flowsched.cli.printing.form import Form

db = typer.Typer(help="Look after the database.", no_args_is_help=True, rich_markup_mode=None)
secret = typer.Typer(
    help="Secrets that tasks on this machine may ask for by name.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="As documents say it: `secrets: {VARIABLE: NAME}`.")
]


@secret.command("set")
def set_command(ctx: typer.Context, name: Name, root: Root = None) -> None:
    """Keep what standard input says (without the last line's end).

    It lies in ROOT/secrets/NAME, for its owner alone. Tasks that start from now on get it.
    """
    from flowsched.cli import upkeep

    if sys.stdin.isatty():
        value = str(typer.prompt(name, hide_input=True, err=True)).encode()
    else:
        value = sys.stdin.buffer.read()
    run(options(ctx), upkeep.set_secret(settings_for(ctx, root=root).root, name, value))


@secret.command("ls")
def list_command(ctx: typer.Context, root: Root = None, output: Output = Form.TABLE) -> None:
    """List their names; values are never shown."""
    from flowsched.cli import upkeep

    run(options(ctx), upkeep.list_secrets(settings_for(ctx, root=root).root, output))


@secret.command("rm")
def remove_command(ctx: typer.Context, name: Name, root: Root = None) -> None:
    """Remove one; tasks that have it keep it."""
    from flowsched.cli import upkeep

    run(options(ctx), upkeep.remove_secret(settings_for(ctx, root=root).root, name))


@db.command()
def upgrade(ctx: typer.Context, db: Database = None, root: Root = None) -> None:
    """Bring the schema to this version; prints the revision.

    Back the database up first. The service does the same at its start.
    """
    from flowsched.cli import upkeep

    settings = settings_for(ctx, root=root, database=db)
    run(options(ctx), upkeep.upgrade(settings), DATABASE_AWAY)


@db.command()
def move(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FROM", help="The database that the service has used.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="An empty one, or a file that is to be made.")],
) -> None:
    """Move all workflows, queues and history to another database.

    Each is a path, sqlite:///… or postgresql://…. Stop the service before; tasks go on. The root stays as it is.
    """
    from flowsched.cli import upkeep

    run(options(ctx), upkeep.move(source, target), DATABASE_AWAY)


@db.command()
def check(ctx: typer.Context, db: Database = None, root: Root = None, output: Output = Form.TABLE) -> None:
    """Look whether the database is well, and of which schema.

    Exit code 1 if it is not, or if this version needs another schema.
    """
    from flowsched.cli import upkeep

    settings = settings_for(ctx, root=root, database=db)
    run(options(ctx), upkeep.facts(settings, output), DATABASE_AWAY)


@db.command()
def expire(
    ctx: typer.Context,
    days: Annotated[
        float,
        typer.Option(
            "--days", "--keep-days", min=0, help="Remove workflows that ended so many days ago, or earlier."
        ),
    ] = 30,
    db: Database = None,
    root: Root = None,
) -> None:
    """Remove workflows that ended long ago from the database.

    Refused while a service leads, which does so itself (serve --keep-days). Their logs and results go two minutes after the
    next start of the service.
    """
    from flowsched.cli import upkeep

    settings = settings_for(ctx, root=root, database=db)
    run(options(ctx), upkeep.expire(settings, days), DATABASE_AWAY)
