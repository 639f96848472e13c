"""`flowsched replay FILE --suggest NAME`: what would let a group of a snapshot start; needs no server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from flowsched.cli import output, render
from flowsched.cli.form import Form
from flowsched.control.profiles import find_plugins
from flowsched.errors import ConfigurationError, NotFound
from flowsched.scheduling.explain.recording import Record, replayed, unpacked
from flowsched.scheduling.explain.remedies import outlook
from flowsched.scheduling.explain.situation import Situation


async def suggest(file: Path, name: str, form: Form) -> int:
    """Print what binds a group that waits, and what would let it start beside all others of the snapshot.

    Raises:
        NotFound: No group of this name waits in it.
    """
    situation, code, message = situation_of(_record(file), name)
    seen = outlook(situation)
    told: dict[str, Any] = {
        "group": name,
        "code": code,
        "message": message,
        "binds": [f"{who}: {what}" if who else what for who, what in seen.binds],
        "suggestions": [asdict(each) for each in seen.suggestions],
    }
    output.one(told, form, lambda: _panel(told))
    return 0


def _record(file: Path) -> Record:
    found = find_plugins()
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error
    return unpacked(raw, found.plugins, found.broken)


def situation_of(record: Record, name: str) -> tuple[Situation, str, str]:
    """All that decides over a group of a snapshot, and the code and the message with which it waits there."""
    plan, inputs = replayed(record), record.inputs
    reasons = {reason.group: reason for reason in plan.reasons}
    waiting = {group.name: group for group in inputs["backlog"] if group.key in reasons}
    if name not in waiting:
        known = ", ".join(sorted(waiting)[:10]) or "nobody"
        raise NotFound(f"no group {name!r} waits in this snapshot; who waits: {known}")
    group = waiting[name]
    others = tuple(each for each in inputs["backlog"] if each.key != group.key)
    situation = Situation(
        inputs["snapshot"],
        inputs["catalogue"],
        inputs["queues"],
        group,
        others,
        record.profile,
        inputs["now"],
    )
    reason = reasons[group.key]
    return situation.copy(), reason.code.value, reason.message


def _panel(told: dict[str, Any]) -> Group:
    lines = [render.text(f"{told['group']}  {told['code']}"), render.text(f"  {told['message']}")]
    if told["binds"]:
        lines.append(render.text(f"  binds: {', '.join(told['binds'])}"))
    for at, each in enumerate(told["suggestions"]):
        lines.append(render.text(f"  {'or' if at else 'to start it'}: {each['message']}"))
    if not told["suggestions"]:
        lines.append(Text("  no single change would let it start"))
    return Group(*lines)
