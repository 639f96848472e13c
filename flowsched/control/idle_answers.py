"""From the book of idle room to what the faces answer (`workflow.idle_views`). Mappings only."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from flowsched.engine.idle import HOUR_MS, RESOURCES, Hour, IdleBook, total
from flowsched.errors import InvalidRequest
from flowsched.scheduling.idle import Cause
from flowsched.workflow.idle_views import IdleHourView, IdleReportView, IdleView
from flowsched.workflow.resources import parse_duration

#: What is looked at if nothing else is said.
DAY: Final = "24h"
#: Names that are told, of one cause.
_NAMED: Final = 3
#: ms times the axis's unit that make an hour of a core, a GiB, a GPU.
_HOUR: Final = {"cpu": 1000 * HOUR_MS, "memory": (1 << 30) * HOUR_MS, "gpu": 1000 * HOUR_MS}
_WORDS: Final = {"cpu": "core-hours", "memory": "GiB-hours of memory", "gpu": "GPU-hours"}
_SAID: Final = {
    Cause.NO_DEMAND: "no demand",
    Cause.FRAGMENTATION: "fragmentation",
    Cause.RESERVED: "reserved",
    Cause.QUOTA: "quota",
    Cause.DATA: "waiting for data",
    Cause.IO: "disk bandwidth",
    Cause.MISMATCH: "mismatch",
    Cause.STARTING: "starting",
}


def idle_report(book: IdleBook, now: int, since: str = DAY) -> IdleReportView:
    """The report from `since` (a span before now) on, in whole hours of the clock.

    Raises:
        InvalidRequest: `since` is no span.
    """
    span = parse_duration(since)
    if span <= 0:
        raise InvalidRequest(f"since is {since!r}; it must be a span before now, such as 8h")
    hours = book.between(max(0, now - span + 1), now)
    everything = total(hour for _, hour in hours)
    begin = hours[0][0] if hours else now
    resources = _resources(everything)
    return IdleReportView(
        since=_moment(begin),
        until=_moment(now),
        resources=resources,
        hours=[
            IdleHourView(
                start_at=_moment(start), covered_seconds=hour.covered_ms / 1000, resources=_resources(hour)
            )
            for start, hour in hours
        ],
        sentences=[_sentence(name, view) for name, view in resources.items() if view.idle],
    )


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _resources(hour: Hour) -> dict[str, IdleView]:
    """By resource; none of which there was nothing."""
    found = {}
    for at, name in enumerate(RESOURCES):
        if not hour.capacity[at] and not hour.off[at]:
            continue
        unit = _HOUR[name]
        idle = hour.idle_of(name)
        found[name] = IdleView(
            capacity=_hours(hour.capacity[at], unit),
            used=_hours(hour.capacity[at] - idle, unit),
            idle=_hours(idle, unit),
            off=_hours(hour.off[at], unit),
            causes={
                cause.name.lower(): _hours(amount[at], unit)
                for cause, amount in sorted(hour.idle.items())
                if amount[at]
            },
            who=_who(hour, at, unit),
        )
    return found


def _who(hour: Hour, at: int, unit: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    largest = sorted(hour.blame.items(), key=lambda item: (-item[1][at], item[0]))
    for (cause, name), amount in largest:
        told = found.setdefault(cause.name.lower(), {})
        if amount[at] and len(told) < _NAMED:
            told[name] = _hours(amount[at], unit)
    return {cause: told for cause, told in found.items() if told}


def _hours(amount: int, unit: int) -> float:
    return round(amount / unit, 4)


def _sentence(name: str, view: IdleView) -> str:
    """cpu: 61.0 of 100.0 core-hours were idle; 60 % of that no demand, 40 % quota (night)."""
    largest = sorted(Cause, key=lambda cause: -view.causes.get(cause.name.lower(), 0.0))
    parts = []
    for cause in largest:
        key = cause.name.lower()
        percent = round(100 * view.causes.get(key, 0.0) / view.idle)
        if percent:
            who = ", ".join(view.who.get(key, {}))
            parts.append(f"{percent} % {_SAID[cause]}" + (f" ({who})" if who else ""))
    places = 1 if view.capacity >= 10 else 3
    hours = f"{view.idle:.{places}f} of {view.capacity:.{places}f} {_WORDS[name]}"
    return f"{name}: {hours} were idle; of these {', '.join(parts)}"
