"""A table that fits its terminal: columns without content are left out, then the least important ones, then names are cut.

Into a pipe everything is written, one line a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

#: A pipe has no width: a table is as wide as what it holds.
PIPED_WIDTH: Final = 10_000
_GAP: Final = 2
#: A note takes at most so many lines of a terminal.
_NOTE_LINES: Final = 3
#: Cells that say nothing: a column of nothing else is left out.
_EMPTY: Final = frozenset({"", "0", "0 B", "0.0s"})


def wrapped(note: Text, width: int, indent: int = 2, most: int = _NOTE_LINES) -> Iterator[Text]:
    """A note as at most `most` lines of at most `width` cells, indented, broken between words; the last may be cut."""
    room = max(1, width - indent)
    breaks, at, used = [0], 0, 0
    for word in note.plain.split(" "):
        wide = cell_len(word)
        if used and used + 1 + wide > room:
            breaks.append(at)
            used = wide
        else:
            used += wide + bool(used)
        at += len(word) + 1
    breaks = breaks[:most]
    for start, stop in zip(breaks, [*breaks[1:], len(note.plain)], strict=True):
        line = note[start:stop]
        line.rstrip()
        line.truncate(room, overflow="ellipsis")
        made = Text(" " * indent, no_wrap=True).append_text(line)
        made.truncate(width, overflow="ellipsis")
        yield made


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        head: Its title.
        cell: Its content for a row.
        rank: 0 = always shown; where there is too little room, the columns of the highest rank go first.
        right: Aligned to the right: numbers.
        cut: Its cells may be cut, with an ellipsis. Half a number or half a state would say something else.
        whole: Shown even where no row has anything in it.
        least: Of a column that may be cut at least so many cells are shown.
        end: Where a cell is cut, its end stays: of paths it says most.
    """

    head: str
    cell: Callable[[Any], Text | str]
    rank: int = 0
    right: bool = False
    cut: bool = False
    whole: bool = False
    least: int = 12
    end: bool = False


class Columns:
    """A table of rows of any kind; a row may have a note of some lines, which stand below it, or at its end in a pipe.

    Args:
        rows: The rows.
        columns: How.
        note: The note of a row.
        noted: The title of notes in a pipe.
        copied: People copy the notes: they are neither cut nor broken, the terminal continues them.
    """

    def __init__(
        self,
        rows: Iterable[Any],
        *columns: Column,
        note: Callable[[Any], Text | None] = lambda _: None,
        noted: str = "REASON",
        copied: bool = False,
    ) -> None:
        rows = list(rows)
        self._columns, self._noted, self._copied = columns, noted, copied
        self._notes = [found if (found := note(row)) and found.plain else None for row in rows]
        self._cells: list[list[Text]] = [
            [Text(cell) if isinstance(cell := column.cell(row), str) else cell for row in rows]
            for column in columns
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines at the width of a console."""
        yield from self.lines(options.max_width)

    def lines(self, width: int) -> Iterator[Text]:
        """The table as lines of at most `width` cells."""
        piped = width >= PIPED_WIDTH
        shown = self._shown(width, piped)
        widths = self._widths(shown, width)
        heads = [Text(self._columns[at].head, "bold") for at in shown]
        noted = piped and any(self._notes)
        yield self._line(heads, shown, widths, Text(self._noted, "bold") if noted else None)
        for row, note in enumerate(self._notes):
            cells = [self._cells[at][row] for at in shown]
            parts = list(note.split("\n")) if note is not None else []
            yield self._line(cells, shown, widths, Text("; ").join(parts) if piped and parts else None)
            for part in () if piped else parts:
                if self._copied:
                    yield Text("  ", no_wrap=True, overflow="ignore").append_text(part)
                else:
                    yield from wrapped(part, width)

    def _shown(self, width: int, piped: bool) -> list[int]:
        """The numbers of the columns that are shown."""
        columns = self._columns
        shown = [at for at, column in enumerate(columns) if piped or column.whole or self._says(at)]
        ranked = sorted((at for at in shown if columns[at].rank), key=lambda at: columns[at].rank)
        dropped: list[int] = []
        while not piped and ranked and self._room(shown, least=True) > width:
            dropped.append(ranked.pop())
            shown.remove(dropped[-1])
        for at in reversed(dropped):  # a narrow one may fit where a wide one before it did not
            if self._room([*shown, at], least=False) <= width:
                shown.append(at)
        return sorted(shown)

    def _says(self, at: int) -> bool:
        return not self._notes or any(cell.plain.strip() not in _EMPTY for cell in self._cells[at])

    def _full(self, at: int) -> int:
        """The cells that a column needs to show everything."""
        return max(cell_len(self._columns[at].head), *(cell_len(cell.plain) for cell in self._cells[at]), 0)

    def _room(self, shown: Sequence[int], *, least: bool) -> int:
        """The cells of a line with these columns. `least`: with those cut that may be."""
        needs = (
            min(self._full(at), self._columns[at].least)
            if least and self._columns[at].cut
            else self._full(at)
            for at in shown
        )
        return sum(needs) + _GAP * (len(shown) - 1)

    def _widths(self, shown: Sequence[int], width: int) -> list[int]:
        """The cells of each column; what is too wide is taken from the widest that may be cut."""
        widths = [self._full(at) for at in shown]
        for _ in range(self._room(shown, least=False) - width):
            cuts = [
                i
                for i, at in enumerate(shown)
                if self._columns[at].cut and widths[i] > self._columns[at].least
            ]
            if not cuts:
                break
            widths[max(cuts, key=lambda i: widths[i])] -= 1
        return widths

    def _line(
        self, cells: Sequence[Text], shown: Sequence[int], widths: Sequence[int], note: Text | None
    ) -> Text:
        parts = []
        for cell, at, wide in zip(cells, shown, widths, strict=True):
            text = cell.copy()
            if self._columns[at].end and cell_len(text.plain) > wide:
                text = Text("…") + text[1 - wide :]
            elif self._columns[at].cut:
                text.truncate(wide, overflow="ellipsis")
            text.align("right" if self._columns[at].right else "left", max(wide, cell_len(text.plain)))
            parts.append(text)
        made = Text(" " * _GAP, no_wrap=True, overflow="ignore").join([*parts, *([note] if note else ())])
        made.rstrip()
        return made
