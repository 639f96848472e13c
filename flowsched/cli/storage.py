"""`flowsched db`: the schema, what is in it, and what is old. SQL itself is `store`'s, reached through `app`."""

from __future__ import annotations

import time

from rich.text import Text

from flowsched.cli import output, render
from flowsched.cli.context import DONE, FAILED
from flowsched.cli.form import Form


async def upgrade(url: str) -> int:
    """Bring the schema to this version."""
    from flowsched import app

    print(await app.database_upgrade(url))
    return DONE


async def facts(url: str, form: Form) -> int:
    """What is known of a database; 1 when it is not what this version expects."""
    from flowsched import app

    found = await app.database_facts(url)
    output.one(found, form, lambda: _facts(found))
    same = found["revision"] == found["expected_revision"]
    return DONE if same and found.get("integrity_check", "ok") == "ok" else FAILED


def _facts(found: dict[str, object]) -> Text:
    lines = []
    for name, value in found.items():
        shown = render.size(value) if name == "size_bytes" and isinstance(value, int) else value
        lines.append(render.text(f"{name:<20} {shown}"))
    return Text("\n").join(lines)


async def current(url: str) -> int:
    """The revision of the schema."""
    from flowsched import app

    found = await app.database_facts(url)
    print(found["revision"])
    return DONE if found["revision"] == found["expected_revision"] else FAILED


async def expire(url: str, days: float) -> int:
    """Remove workflows that ended long ago."""
    from flowsched import app

    before_ms = time.time_ns() // 1_000_000 - int(days * 86_400_000)
    print(f"{await app.database_expire(url, before_ms)} workflows removed")
    return DONE
