"""Values as HTML tables, for notebooks. All text is escaped: names, reasons and labels come from other people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

from flowsched.workflow.resources import format_bytes, format_cpu, format_duration

_COLOURS: Final = {
    "SUCCEEDED": "#1a7f37",
    "FAILED": "#cf222e",
    "RUNNING": "#0969da",
    "STARTING": "#0969da",
    "STAGING": "#9a6700",
    "QUEUED": "#9a6700",
    "PAUSED": "#9a6700",
}
#: Longer texts are cut.
_LONGEST: Final = 400
#: Rows of a table; more are counted.
ROWS: Final = 500


def table(rows: Sequence[Any], names: Sequence[str], note: str = "") -> str:
    """Objects as a table; columns without any content are left out.

    Args:
        rows: With the fields `names` as attributes.
        names: Of the columns; none = a plain number of rows.
        note: A line above, as text.
    """
    cells = [[cell(name, getattr(row, name)) for name in names] for row in rows[:ROWS]]
    filled = [at for at in range(len(names)) if not cells or any(row[at] for row in cells)]
    head = "".join(f"<th style='text-align:left'>{escape(_title(names[at]))}</th>" for at in filled)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{row[at]}</td>" for at in filled) + "</tr>"
        for row in cells
    )
    more = f"<p>… and {len(rows) - ROWS:,} more</p>" if len(rows) > ROWS else ""
    caption = f"<p>{escape(note)}</p>" if note else ""
    empty = "<p>none</p>" if not rows else ""
    return f"{caption}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}{empty}"


def fields(value: Any, names: Sequence[str] = ()) -> str:
    """One object as a table of its fields that say something."""
    names = names or tuple(getattr(value, "__struct_fields__", ()))
    found = [(name, cell(name, getattr(value, name))) for name in names]
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(_title(name))}</th><td style='text-align:left'>{text}</td></tr>"
        for name, text in found
        if text
    )
    return f"<table><tbody>{rows}</tbody></table>"


def cell(name: str, value: Any) -> str:
    """A field as HTML; "" where it says nothing.

    Units follow from the name: `bytes_*` and `*_bytes`, `*_seconds`; amounts by resource as documents write them.
    """
    match value:
        case None | "" | False:
            return ""
        case 0 if name == "cached":
            return ""
        case True:
            return "yes"
        case datetime():
            return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
        case int() | float() if name.endswith("_seconds"):
            return format_duration(round(value * 1000)) if value else ""
        case int() if "bytes" in name.split("_"):
            return format_bytes(value) if value else ""
        case Mapping():
            return escape(_short(", ".join(_pairs(name, value))))
        case str():
            colour = _COLOURS.get(value) if name == "state" else None
            text = escape(_short(value))
            return text if colour is None else f"<b style='color:{colour}'>{text}</b>"
        case list() | tuple():
            return escape(_short(", ".join(map(str, value))))
    message = getattr(value, "message", None)  # why something waits
    return escape(_short(str(value if message is None else message)))


def _pairs(name: str, values: Mapping[str, Any]) -> Iterable[str]:
    for key, value in values.items():
        if name == "counts":
            yield f"{value} {key}"
        elif name == "returned":
            yield f"{value}× exit {key}"
        elif key in ("cpu", "gpu") and isinstance(value, int):
            yield f"{key} {format_cpu(value)}"
        elif key in ("memory", "disk") and isinstance(value, int):
            yield f"{key} {format_bytes(value)}"
        elif key == "io" and isinstance(value, int):
            yield f"{key} {format_bytes(value)}/s"
        else:
            yield f"{key} {value}"


def _title(name: str) -> str:
    return name.removesuffix("_at").removesuffix("_seconds").replace("_", " ")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
