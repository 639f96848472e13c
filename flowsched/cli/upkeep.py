"""Bodies of the commands `db` and `secret`. SQL itself is `store`'s, reached through `app`; values of secrets are never shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from flowsched.cli.context import DONE, FAILED, say
from flowsched.cli.printing import output, render
from flowsched.cli.printing.form import Form
from flowsched.errors import ConfigurationError

if TYPE_CHECKING:
    from flowsched.app import Settings


async def set_secret(root: Path, name: str, value: bytes) -> int:
    """Keep one."""
    from flowsched.cluster.local import orders

    orders.set_secret(root, name, value.removesuffix(b"\n"))
    say(f"kept {name}")
    return DONE


async def list_secrets(root: Path, form: Form) -> int:
    """List the names."""
    from flowsched.cluster.local import orders

    output.many([{"name": name} for name in orders.list_secrets(root)], form, _table)
    return DONE


def _table(views: Sequence[dict[str, str]]) -> RenderableType:
    made = render.plain_table("SECRET")
    for view in views:
        made.add_row(render.text(view["name"], "bold"))
    return made


async def remove_secret(root: Path, name: str) -> int:
    """Remove one."""
    from flowsched.cluster.local import orders

    orders.remove_secret(root, name)
    say(f"removed {name}")
    return DONE


# ---- db: the schema, what is in it, and what is old ----


def _kept(settings: Settings, *, makes: bool = False) -> str:
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


async def upgrade(settings: Settings) -> int:
    """Bring the schema to this version."""
    from flowsched import app

    before, now = await app.database_upgrade(_kept(settings, makes=True))
    if before is not None:
        say(f"schema upgraded from {before} to {now}" if before else f"schema made: {now}")
    print(now)
    return DONE


async def facts(settings: Settings, form: Form) -> int:
    """What is known of a database; 1 when it is not what this version expects."""
    from flowsched import app

    found = await app.database_facts(_kept(settings))
    output.one(found, form, lambda: _facts(found))
    same = found["revision"] == found["expected_revision"]
    return DONE if same and found.get("integrity_check", "ok") == "ok" else FAILED


def _facts(found: dict[str, object]) -> Text:
    lines = []
    for name, value in found.items():
        shown = render.size(value) if name == "size_bytes" and isinstance(value, int) else value
        shown = "empty" if name == "revision" and value is None else shown
        lines.append(render.text(f"{name:<20} {shown}"))
    return Text("\n").join(lines)


async def move(source: str, target: str) -> int:
    """Move all rows of a database into another."""
    from flowsched import app

    workflows, old, new = await app.database_move(source, target)
    print(f"{workflows} workflows moved")
    say(f"{old} keeps a copy that no service uses any more; start the service with --db {new}")
    return DONE


async def expire(settings: Settings, days: float) -> int:
    """Remove workflows that ended long ago."""
    from flowsched import app
    from flowsched.control.leading.retention import FIRST_S

    before_ms = time.time_ns() // 1_000_000 - int(days * 86_400_000)
    removed = await app.database_expire(_kept(settings), before_ms)
    print(f"{removed} workflows removed from the database")
    if removed:
        say(
            f"their logs and results are still on the nodes: the service removes them {FIRST_S / 60:g} minutes after its next "
            "start, unless that is with --keep-days 0"
        )
    return DONE
