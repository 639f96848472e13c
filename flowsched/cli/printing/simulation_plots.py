"""Pictures of simulated schedules, as SVG: Gantt, cores in use, waits, makespans against the bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from flowsched.simulation.clusters import SimulatedCluster

Lines = Sequence[Mapping[str, Any]]
_WIDTH: Final = 960
_LEFT: Final = 90
_COLOURS: Final = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")


def pictures(
    cluster: SimulatedCluster, bound_s: float, schedules: Sequence[tuple[str, Lines, float | None]]
) -> dict[str, str]:
    """File name -> SVG.

    Args:
        cluster: Where.
        bound_s: The time no schedule can beat.
        schedules: (policy, lines of its trace, its makespan in seconds; None = it has left tasks undone).
    """
    tasks = {policy: [line for line in lines if "task" in line] for policy, lines, _ in schedules}
    longest = max((line["end"] for lines in tasks.values() for line in lines), default=1.0) or 1.0
    made = {f"gantt-{policy}.svg": gantt(cluster, lines, longest, policy) for policy, lines in tasks.items()}
    made["cores.svg"] = _chart(
        "cores in use", "seconds", {policy: _in_use(lines, longest) for policy, lines in tasks.items()}, longest,
        sum(node.cores for node in cluster.nodes),
    )  # fmt: skip
    waits = {
        policy: sorted(line["start"] - line["ready"] for line in lines) for policy, lines in tasks.items()
    }
    most = max((each[-1] for each in waits.values() if each), default=1.0) or 1.0
    made["waits.svg"] = _chart(
        "part of the tasks that waited at most so long", "seconds between ready and started",
        {policy: [(wait, (at + 1) / len(each)) for at, wait in enumerate(each)] for policy, each in waits.items()},
        most, 1.0,
    )  # fmt: skip
    made["makespans.svg"] = _bars({policy: end for policy, _, end in schedules}, bound_s)
    return made


def gantt(cluster: SimulatedCluster, tasks: Lines, longest: float, title: str) -> str:
    """One row for each core of each node; bright while a task computes, pale while it reads, writes or starts up."""
    row = max(2, min(10, 900 // sum(node.cores for node in cluster.nodes)))
    parts, top = [_text(_LEFT, 16, title)], 28
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(line["workflow"] for line in tasks))}
    for node in cluster.nodes:
        parts.append(_text(8, top + row * node.cores / 2 + 4, node.name))
        free = [0.0] * node.cores
        for line in sorted(
            (t for t in tasks if t["node"] == node.name), key=lambda t: (t["start"], t["task"])
        ):
            idle = [lane for lane, until in enumerate(free) if until <= line["start"] + 1e-6]
            # Tasks with parts of a core share a row where there are more of them than cores.
            lanes = idle[: math.ceil(line["cores"])] or [min(range(len(free)), key=lambda lane: free[lane])]
            colour = _COLOURS[kinds[line["workflow"]] % len(_COLOURS)]
            for lane in lanes:
                free[lane] = line["end"]
                y = top + lane * row
                parts.append(
                    _box(line["start"], line["end"], y, row, longest, colour, 0.35, str(line["task"]))
                )
                parts.append(
                    _box(line["run_start"], line["run_end"], y, row, longest, colour, 1.0, str(line["task"]))
                )
        top += row * node.cores + 4
    parts += _axis(top, longest, "seconds")
    return _svg(parts, top + 40)


def _in_use(tasks: Lines, longest: float) -> list[tuple[float, float]]:
    steps = sorted([(t["start"], t["cores"]) for t in tasks] + [(t["end"], -t["cores"]) for t in tasks])
    level, points = 0, [(0.0, 0.0)]
    for moment, change in steps:
        points.append((moment, float(level)))
        level += change
        points.append((moment, float(level)))
    return [*points, (longest, float(level))]


def _chart(
    title: str, unit: str, lines: Mapping[str, Sequence[tuple[float, float]]], width: float, height: float
) -> str:
    tall, top = 300, 28
    parts = [_text(_LEFT, 16, title), _text(8, top + 8, f"{height:g}"), _text(8, top + tall, "0")]
    for number, (policy, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{_x(x, width):.1f},{top + tall - tall * y / height:.1f}" for x, y in points)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>')
        parts.append(_text(_WIDTH - 150, top + 16 + 16 * number, policy, colour))
    parts += _axis(top + tall, width, unit)
    return _svg(parts, top + tall + 40)


def _bars(ends: Mapping[str, float | None], bound_s: float) -> str:
    most = max([*(end for end in ends.values() if end is not None), bound_s, 1e-9])
    parts = [_text(_LEFT, 16, "makespan; the line is the bound no schedule can beat")]
    for number, (policy, end) in enumerate(ends.items()):
        y = 32 + 28 * number
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(_text(8, y + 15, policy))
        if end is None:
            parts.append(_text(_LEFT, y + 15, "unfinished"))
            continue
        parts.append(_box(0.0, end, y, 20, most, colour, 1.0, policy))
        parts.append(_text(_x(end, most) - 4, y + 15, f"{end:,.0f} s", "white", "end"))
    bottom = 36 + 28 * len(ends)
    x = _x(bound_s, most)
    parts.append(
        f'<line x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{bottom}" stroke="black" stroke-dasharray="4 3"/>'
    )
    parts += _axis(bottom, most, "seconds")
    return _svg(parts, bottom + 40)


def _x(moment: float, longest: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 20) * moment / longest


def _box(
    start: float, end: float, y: float, height: float, longest: float, colour: str, opacity: float, title: str
) -> str:
    x, wide = _x(start, longest), max(0.3, _x(end, longest) - _x(start, longest))
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{height - 0.5:.1f}" fill="{colour}" '
        f'fill-opacity="{opacity}"><title>{escape(title)}: {start:.1f} to {end:.1f} s</title></rect>'
    )


def _axis(y: float, longest: float, unit: str) -> Iterator[str]:
    yield f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - 20}" y2="{y}" stroke="#888"/>'
    for part in range(5):
        yield _text(_x(longest * part / 4, longest), y + 16, f"{longest * part / 4:,.6g}", "#444", "middle")
    yield _text(_WIDTH / 2, y + 32, unit, "#444", "middle")


def _text(x: float, y: float, text: str, colour: str = "black", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], height: float) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )
