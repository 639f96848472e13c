"""A plan as a picture: rows are levels, time goes down. SVG of our own, and DOT for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from flowsched.workflow.plan import EdgePlan, NodePlan, Plan

_WIDTH: Final = 220
_HEIGHT: Final = 46
_LANE: Final = 10
_GAP_X: Final = 28
_GAP_Y: Final = 54
_MARGIN: Final = 24
_HEAD: Final = 84
_NARROWEST: Final = 560
_LETTERS: Final = 24  #: that fit into a box
#: Barycentre sweeps: after a few the order no longer changes.
_SWEEPS: Final = 8
_STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #1f2933 } .t { font-size: 16px; font-weight: 600 } .n { font-weight: 600 }
.s { fill: #52606d; font-size: 11px } rect { fill: #e8f1fb; stroke: #3b82c4 } .unknown rect { fill: #fff7e0; stroke: #c98a0b;
stroke-dasharray: 5 3 } .no rect { fill: #f3f4f6; stroke: #b8c0c8; stroke-dasharray: 2 3 } .no text { fill: #9aa5b1 }
path { fill: none; stroke: #7b8794; stroke-width: 1.3 } .order { stroke-dasharray: 4 4; stroke: #b0741f } .stack { fill: #d3e4f6 }
""".strip()


@dataclass(frozen=True, slots=True)
class _Slot:
    """A place in a row: of a node, or of an edge from `path` to `child` that goes by on a level."""

    path: str
    child: str | None = None
    level: int = 0


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where something is drawn: its middle."""

    x: float
    y: float


def dot(plan: Plan) -> str:
    """The plan in Graphviz's language."""
    lines = ["digraph plan {", '  node [shape=box, style=rounded, fontname="sans-serif"];']
    for node in plan.nodes:
        label = f"{_short(plan, node.path)}\n{_facts(node)}"
        style = {"yes": "", "unknown": ", style=dashed", "no": ", style=dotted, fontcolor=gray"}[node.runs]
        lines.append(f"  {_quoted(node.path)} [label={_quoted(label)}{style}];")
    for edge in plan.edges:
        style = " [style=dashed]" if edge.kind == "order" else ""
        lines.append(f"  {_quoted(edge.parent)} -> {_quoted(edge.child)}{style};")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def svg(plan: Plan) -> str:
    """The plan as a picture of its own: no script, no link, no font from elsewhere."""
    rows, chains = _rows(plan)
    breadth = max((_breadth(row) for row in rows), default=0)
    width = max(2 * _MARGIN + breadth, _NARROWEST)
    height = _HEAD + len(rows) * (_HEIGHT + _GAP_Y) - _GAP_Y + _MARGIN
    spots: dict[_Slot, _Spot] = {}
    for level, row in enumerate(rows):
        x = (width - _breadth(row)) / 2
        for slot in row:
            spots[slot] = _Spot(x + _room(slot) / 2, _HEAD + level * (_HEIGHT + _GAP_Y) + _HEIGHT / 2)
            x += _room(slot) + _GAP_X
    nodes = {node.path: node for node in plan.nodes}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width:.0f}" height="{height:.0f}" style="fill:#fff;stroke:none"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" style="fill:#7b8794;stroke:none"/></marker></defs>',
        f'<text class="t" x="{_MARGIN}" y="26">{_escaped(plan.name)}</text>',
        *(
            f'<text class="s" x="{_MARGIN}" y="{44 + 15 * line}">{_escaped(text)}</text>'
            for line, text in enumerate(_legend(plan))
        ),
        *(_edge(edge, [spots[slot] for slot in chains[edge]]) for edge in plan.edges),
        *(_box(plan, nodes[slot.path], spot) for slot, spot in spots.items() if slot.child is None),
        "</svg>",
    ]
    return "\n".join(parts)


def _legend(plan: Plan) -> tuple[str, str]:
    return (
        f"{len(plan.nodes)} calls · {plan.language} · stacked box: scatter, × tasks (× ?: not known yet)",
        "dashed box: perhaps · grey: does not run · dashed line: order only",
    )


def _rows(plan: Plan) -> tuple[list[list[_Slot]], dict[EdgePlan, list[_Slot]]]:
    """Slots by level, in an order in which few lines cross, and the slots that each edge leads through.

    An edge that is longer than a level has a narrow slot in each one between, so that it goes past boxes, not under them.
    """
    levels = {node.path: node.level for node in plan.nodes}
    rows: list[list[_Slot]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    for node in plan.nodes:
        rows[node.level].append(_Slot(node.path))
    above: dict[_Slot, list[_Slot]] = {}
    below: dict[_Slot, list[_Slot]] = {}
    chains: dict[EdgePlan, list[_Slot]] = {}
    for edge in plan.edges:
        chain = [_Slot(edge.parent)]
        for level in range(levels[edge.parent] + 1, levels[edge.child]):
            chain.append(_Slot(edge.parent, edge.child, level))
            rows[level].append(chain[-1])
        chain.append(_Slot(edge.child))
        chains[edge] = chain
        for upper, lower in pairwise(chain):
            below.setdefault(upper, []).append(lower)
            above.setdefault(lower, []).append(upper)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        where = {slot: middle for row in rows for slot, middle in _middles(row)}
        for row in rows if down else reversed(rows):
            near = above if down else below
            row.sort(key=lambda slot: _mean([where[each] for each in near.get(slot, [])], where[slot]))
            where |= dict(_middles(row))
    return rows, chains


def _middles(row: Sequence[_Slot]) -> Iterator[tuple[_Slot, float]]:
    x = -_breadth(row) / 2
    for slot in row:
        yield slot, x + _room(slot) / 2
        x += _room(slot) + _GAP_X


def _room(slot: _Slot) -> int:
    return _WIDTH if slot.child is None else _LANE


def _breadth(row: Sequence[_Slot]) -> int:
    return sum(_room(slot) for slot in row) + _GAP_X * (len(row) - 1)


def _mean(rows: Sequence[float], own: float) -> float:
    return sum(rows) / len(rows) if rows else own


def _edge(edge: EdgePlan, spots: Sequence[_Spot]) -> str:
    """A line from the foot of a box to the head of another, straight beside those between."""
    curve = f"M{spots[0].x:.0f} {spots[0].y + _HEIGHT / 2:.0f}"
    bend = _GAP_Y / 2
    for upper, lower in pairwise(spots):
        foot, head = upper.y + _HEIGHT / 2, lower.y - _HEIGHT / 2
        curve += f" C{upper.x:.0f} {foot + bend:.0f} {lower.x:.0f} {head - bend:.0f} {lower.x:.0f} {head:.0f}"
        if lower is not spots[-1]:
            curve += f" V{lower.y + _HEIGHT / 2:.0f}"
    return f'<path class="{edge.kind}" d="{curve}" marker-end="url(#a)"/>'


def _box(plan: Plan, node: NodePlan, spot: _Spot) -> str:
    top = spot.y - _HEIGHT / 2
    size = f'width="{_WIDTH}" height="{_HEIGHT}" rx="6"'
    left = spot.x - _WIDTH / 2
    stack = f'<rect class="stack" x="{left + 5:.0f}" y="{top + 5:.0f}" {size}/>' if node.scatters else ""
    about = _escaped(f"{node.path}\ntask {node.task}\n{_facts(node)}\n{node.image.value or node.image.text}")
    return (
        f'<g class="{node.runs}"><title>{about}</title>{stack}<rect x="{left:.0f}" y="{top:.0f}" {size}/>'
        f'<text class="n" x="{left + 10:.0f}" y="{top + 19:.0f}">{_escaped(_fitting(_short(plan, node.path)))}</text>'
        f'<text class="s" x="{left + 10:.0f}" y="{top + 36:.0f}">{_escaped(_facts(node))}</text></g>'
    )


def _facts(node: NodePlan) -> str:
    cpu = "? cpu" if node.cpu.value is None else f"{node.cpu.value / 1000:g} cpu"
    memory = "? memory" if node.memory.value is None else f"{node.memory.value / (1 << 30):.3g} GiB"
    gpu = f", {node.gpu.value} GPU" if node.gpu.value else ", ? GPU" if node.gpu.value is None else ""
    width = f"× {'?' if node.tasks is None else node.tasks}, " if node.scatters else ""
    return f"{width}{cpu}, {memory}{gpu}"


def _short(plan: Plan, path: str) -> str:
    return path[len(plan.name) + 1 :]


def _fitting(text: str) -> str:
    """The end of a name says most."""
    return text if len(text) <= _LETTERS else f"…{text[1 - _LETTERS :]}"


def _escaped(text: str) -> str:
    """For XML, which knows no control characters."""
    return escape("".join(letter for letter in text if letter.isprintable() or letter == "\n"))
