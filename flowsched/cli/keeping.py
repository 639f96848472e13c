"""`flowsched secret`: names are shown, values never."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import RenderableType

from flowsched.cli import output, render
from flowsched.cli.context import DONE, say
from flowsched.cli.form import Form
from flowsched.cluster.local import orders


async def set_secret(root: Path, name: str, value: bytes) -> int:
    """Keep one."""
    orders.set_secret(root, name, value.removesuffix(b"\n"))
    say(f"kept {name}")
    return DONE


async def list_secrets(root: Path, form: Form) -> int:
    """List the names."""
    output.many([{"name": name} for name in orders.list_secrets(root)], form, _table)
    return DONE


def _table(views: Sequence[dict[str, str]]) -> RenderableType:
    made = render.plain_table("SECRET")
    for view in views:
        made.add_row(render.text(view["name"], "bold"))
    return made


async def remove_secret(root: Path, name: str) -> int:
    """Remove one."""
    orders.remove_secret(root, name)
    say(f"removed {name}")
    return DONE
