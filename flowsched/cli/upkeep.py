"""`flowsched db` and `secret`: the database and the secrets of a root. SQL is `store`'s; values of secrets are never shown."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer
from rich.text import Text

from flowsched import app
from flowsched.app import Settings
from flowsched.cli.context import DATABASE_AWAY, DONE, FAILED, echo
from flowsched.cli.options import Output, runs, with_settings
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render
from flowsched.cli.printing.columns import Column, Columns
from flowsched.cli.printing.form import Form
from flowsched.cluster.local import orders
from flowsched.control.leading.retention import FIRST_S
from flowsched.errors import ConfigurationError

commands = typer.Typer(rich_markup_mode=None)
db = typer.Typer(help="Look after the database.", no_args_is_help=True, rich_markup_mode=None)
secret = typer.Typer(
    help="Secrets that tasks on this machine may ask for by name.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
commands.add_typer(db, name="db")
commands.add_typer(secret, name="secret")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="As documents say it: `secrets: {VARIABLE: NAME}`.")
]


@secret.command("set")
@with_settings("root")
@runs()
async def set_command(name: Name, settings: Settings) -> None:
    """Keep what standard input says (without the last line's end).

    It lies in ROOT/secrets/NAME, for its owner alone. Tasks that start from now on get it.
    """
    if sys.stdin.isatty():
        value = str(typer.prompt(name, hide_input=True, err=True)).encode()
    else:
        value = sys.stdin.buffer.read()
    orders.set_secret(settings.root, name, value.removesuffix(b"\n"))
    echo(f"kept {name}")


@secret.command("ls")
@with_settings("root")
@runs()
async def list_command(settings: Settings, output: Output = Form.TABLE) -> None:
    """List their names; values are never shown."""
    names = [{"name": name} for name in orders.list_secrets(settings.root)]
    printed.many(
        names,
        output,
        lambda _: Columns(
            names, Column("SECRET", lambda each: render.text(each["name"], "bold"), whole=True)
        ),
    )


@secret.command("rm")
@with_settings("root")
@runs()
async def remove_command(name: Name, settings: Settings) -> None:
    """Remove one; tasks that have it keep it."""
    orders.remove_secret(settings.root, name)
    echo(f"removed {name}")


# ---- db: the schema, what is in it, and what is old ----


def _database_url(settings: Settings, *, makes: bool = False) -> str:
    """The URL of the database that a command is about.

    Args:
        settings: The root, and the database that the user named.
        makes: The command makes the root's own database, where no service has used the root yet.

    Raises:
        ConfigurationError: The root has none, so its service keeps its rows in another one, of which only that service knows.
    """
    own = settings.database is None
    new = makes and not (settings.root / "secret").exists()
    if own and not new and not (settings.root / "flowsched.db").exists():
        raise ConfigurationError(
            f"{settings.root} has no database of its own. Where the service uses PostgreSQL, give its URL: --db URL, or "
            "FLOWSCHED_DATABASE in the environment (with the unit of systemd root finds it in /etc/flowsched/environment); "
            "where it has another root: --root DIR"
        )
    return settings.url


@db.command()
@with_settings("database", "root")
@runs(DATABASE_AWAY)
async def upgrade(settings: Settings) -> None:
    """Bring the schema to this version; prints the revision.

    Back the database up first. The service does the same at its start.
    """
    before, now = await app.database_upgrade(_database_url(settings, makes=True))
    if before is not None:
        echo(f"schema upgraded from {before} to {now}" if before else f"schema made: {now}")
    print(now)


@db.command()
@runs(DATABASE_AWAY)
async def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The database that the service has used.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="An empty one, or a file that is to be made.")],
) -> None:
    """Move all workflows, queues and history to another database.

    Each is a path, sqlite:///… or postgresql://…. Stop the service before; tasks go on. The root stays as it is.
    """
    workflows, old, new = await app.database_move(source, target)
    print(f"{workflows} workflows moved")
    echo(f"{old} keeps a copy that no service uses any more; start the service with --db {new}")


@db.command()
@with_settings("database", "root")
@runs(DATABASE_AWAY)
async def check(settings: Settings, output: Output = Form.TABLE) -> int:
    """Look whether the database is well, and of which schema.

    Exit code 1 if it is not, or if this version needs another schema.
    """
    found = await app.database_facts(_database_url(settings))
    printed.one(found, output, lambda: _facts(found))
    same = found["revision"] == found["expected_revision"]
    return DONE if same and found.get("integrity_check", "ok") == "ok" else FAILED


def _facts(found: dict[str, object]) -> Text:
    lines = []
    for name, value in found.items():
        shown = render.size(value) if name == "size_bytes" and isinstance(value, int) else value
        shown = "empty" if name == "revision" and value is None else shown
        lines.append(render.text(f"{name:<20} {shown}"))
    return Text("\n").join(lines)


@db.command()
@with_settings("database", "root")
@runs(DATABASE_AWAY)
async def expire(
    days: Annotated[
        float,
        typer.Option(
            "--days", "--keep-days", min=0, help="Remove workflows that ended so many days ago, or earlier."
        ),
    ] = 30,
    *,
    settings: Settings,
) -> None:
    """Remove workflows that ended long ago from the database.

    Refused while a service leads, which does so itself (serve --keep-days). Their logs and results go two minutes after the
    next start of the service.
    """
    before_ms = time.time_ns() // 1_000_000 - int(days * 86_400_000)
    removed = await app.database_expire(_database_url(settings), before_ms)
    print(f"{removed} workflows removed from the database")
    if removed:
        echo(
            f"their logs and results are still on the nodes: the service removes them {FIRST_S / 60:g} minutes after its next "
            "start, unless that is with --keep-days 0"
        )
