"""Where two plans of the same backlog differ, in words. Plans come as `record.plan_bytes` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flowsched.scheduling.podgroup import PodGroup

#: More differences than this are counted.
SHOWN: Final = 50
#: More nodes of one role than this are counted.
_NODES: Final = 8


def summary(plan: Mapping[str, Any]) -> str:
    """What a plan decides, in one line."""
    pods = sum(len(nodes) for each in plan["placements"] for nodes in each["nodes"])
    codes: dict[str, int] = {}
    for each in plan["reasons"]:
        codes[each["code"]] = codes.get(each["code"], 0) + 1
    waits = ", ".join(f"{code} {count}" for code, count in sorted(codes.items())) or "nobody"
    return (
        f"{pods} pods of {len(plan['placements'])} groups placed, {len(plan['reservations'])} reserved; "
        f"who waits: {waits}"
    )


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], backlog: Sequence[PodGroup], nodes: Sequence[str]
) -> list[str]:
    """What another plan decides otherwise, a line each; none exactly where the plans are equal.

    Args:
        before: One plan.
        after: The other.
        backlog: For the names of groups.
        nodes: For the names of nodes.
    """
    names = {group.key: group.name for group in backlog}
    lines: list[str] = []
    for part in sorted({*before, *after}):
        old, new = before.get(part), after.get(part)
        if old == new:
            continue
        if isinstance(old, list) and isinstance(new, list) and _by_group(old) and _by_group(new):
            lines += _groups(part, old, new, names, nodes)
        else:
            lines.append(f"{part}: {_short(old)} -> {_short(new)}")
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"... and {len(lines) - SHOWN} more differences"]
    return lines


def _by_group(entries: Sequence[Any]) -> bool:
    return all(isinstance(each, dict) and "group" in each for each in entries)


def _groups(
    part: str, old: Sequence[Any], new: Sequence[Any], names: Mapping[int, str], nodes: Sequence[str]
) -> list[str]:
    """Entries of groups: those that one plan has alone, those that differ, and their order."""
    was, now = ({each["group"]: each for each in entries} for entries in (old, new))
    lines = []
    for key in sorted({*was, *now}):
        if was.get(key) != now.get(key):
            about = f"{part} of {names.get(key, 'group')} (group {key})"
            lines.append(f"{about}: {_entry(was.get(key), nodes)} -> {_entry(now.get(key), nodes)}")
    if not lines:
        first = next(at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
        lines.append(f"{part}: the same, in another order from the {first + 1}. on")
    return lines


def _entry(entry: Mapping[str, Any] | None, nodes: Sequence[str]) -> str:
    if entry is None:
        return "none"
    parts = []
    for name, value in entry.items():
        if name == "group":
            continue
        if name == "nodes":
            parts.append("on " + " | ".join(_placed(role, nodes) for role in value))
        elif value not in ([], {}, None):
            parts.append(f"{name} {_short(value)}")
    return ", ".join(parts)


def _placed(role: Sequence[int], nodes: Sequence[str]) -> str:
    shown = [nodes[at] if 0 <= at < len(nodes) else str(at) for at in role[:_NODES]]
    more = f" and {len(role) - _NODES} more" if len(role) > _NODES else ""
    return (" ".join(shown) or "nothing") + more


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
