"""A table that fits its terminal: columns without content are left out, then the least important ones, then names are cut.

Into a pipe everything is written, one line a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from flowsched.values import replace

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
        rank: 0 = always shown; where there is too little room, the columns of the highest rank go first.
        right: Aligned to the right: numbers.
        cut: Its cells may be cut, with an ellipsis. Half a number or half a state would say something else.
        whole: Shown even where no row has anything in it.
        least: Of a column that may be cut at least so many cells are shown.
        shorter: Shorter words for all cells of the column, where they would be cut otherwise.
    """

    head: str
    rank: int = 0
    right: bool = False
    cut: bool = False
    whole: bool = False
    least: int = 12
    shorter: Callable[[Sequence[str]], Sequence[str]] | None = None


@dataclass(slots=True)
class Columns:
    """A table of texts; a row may have a note, which stands below it, or at its end in a pipe."""

    columns: Sequence[Column]
    note: str = "REASON"  #: the title of notes in a pipe
    copied: bool = (
        False  #: people copy the notes: they are neither cut nor broken, the terminal continues them
    )
    rows: list[tuple[list[Text], Text | None]] = field(default_factory=list)

    def add(self, *cells: Text | str, note: Text | None = None) -> None:
        """Add a row, a cell for each column."""
        made = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        if len(made) != len(self.columns):
            raise ValueError(f"{len(made)} cells, expected {len(self.columns)}")
        self.rows.append((made, note if note is not None and note.plain else None))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines at the width of a console."""
        yield from self.lines(options.max_width)

    def lines(self, width: int) -> Iterator[Text]:
        """The table as lines of at most `width` cells."""
        piped = width >= PIPED_WIDTH
        shown = self._shown(width, piped)
        if not piped and any(self.columns[at].shorter for at in shown) and self.full_width > width:
            yield from self._shortened().lines(width)
            return
        widths = self._widths(shown, width)
        heads = [Text(self.columns[at].head, "bold") for at in shown]
        noted = piped and any(note is not None for _, note in self.rows)
        yield self._line(heads, shown, widths, Text(self.note, "bold") if noted else None)
        for cells, note in self.rows:
            yield self._line([cells[at] for at in shown], shown, widths, note if piped else None)
            if note is not None and not piped:
                if self.copied:
                    yield Text("  ", no_wrap=True, overflow="ignore").append_text(note)
                else:
                    yield from wrapped(note, width)

    def _shortened(self) -> Columns:
        """The same table with the shorter words of its columns."""
        made = replace(self, columns=[replace(column, shorter=None) for column in self.columns], rows=[])
        rows = [list(cells) for cells, _ in self.rows]
        for at, column in enumerate(self.columns):
            if column.shorter is not None:
                for row, word in zip(rows, column.shorter([row[at].plain for row in rows]), strict=True):
                    row[at] = Text(word, row[at].style)
        made.rows = [(row, note) for row, (_, note) in zip(rows, self.rows, strict=True)]
        return made

    def heads(self, width: int) -> list[str]:
        """The heads of the columns that are shown in lines of so many cells."""
        return [self.columns[at].head for at in self._shown(width, width >= PIPED_WIDTH)]

    @property
    def full_width(self) -> int:
        """The cells of a line in which nothing is cut or left out."""
        return self._room(
            [at for at, column in enumerate(self.columns) if column.whole or self._says(at)], least=False
        )

    def _shown(self, width: int, piped: bool) -> list[int]:
        """The numbers of the columns that are shown."""
        shown = [at for at, column in enumerate(self.columns) if piped or column.whole or self._says(at)]
        ranked = sorted((at for at in shown if self.columns[at].rank), key=lambda at: self.columns[at].rank)
        dropped: list[int] = []
        while not piped and ranked and self._room(shown, least=True) > width:
            dropped.append(ranked.pop())
            shown.remove(dropped[-1])
        for at in reversed(dropped):  # a narrow one may fit where a wide one before it did not
            if self._room([*shown, at], least=False) <= width:
                shown.append(at)
        return sorted(shown)

    def _says(self, at: int) -> bool:
        return not self.rows or any(cells[at].plain.strip() not in _EMPTY for cells, _ in self.rows)

    def _full(self, at: int) -> int:
        """The cells that a column needs to show everything."""
        return max(cell_len(self.columns[at].head), *(cell_len(cells[at].plain) for cells, _ in self.rows), 0)

    def _room(self, shown: Sequence[int], *, least: bool) -> int:
        """The cells of a line with these columns. `least`: with those cut that may be."""
        cut = (self.columns[at].least if least else PIPED_WIDTH for at in shown)
        needs = (
            min(self._full(at), most) if self.columns[at].cut else self._full(at)
            for at, most in zip(shown, cut, strict=True)
        )
        return sum(needs) + _GAP * (len(shown) - 1)

    def _widths(self, shown: Sequence[int], width: int) -> list[int]:
        """The cells of each column; what is too wide is taken from the widest that may be cut."""
        widths = [self._full(at) for at in shown]
        over = self._room(shown, least=False) - width
        while over > 0:
            cuts = [
                i for i, at in enumerate(shown) if self.columns[at].cut and widths[i] > self.columns[at].least
            ]
            if not cuts:
                break
            widths[max(cuts, key=lambda i: widths[i])] -= 1
            over -= 1
        return widths

    def _line(
        self, cells: Sequence[Text], shown: Sequence[int], widths: Sequence[int], note: Text | None
    ) -> Text:
        made = Text(no_wrap=True, overflow="ignore")
        for place, (cell, at, wide) in enumerate(zip(cells, shown, widths, strict=True)):
            last = place == len(shown) - 1 and note is None
            text = cell.copy()
            if self.columns[at].cut:
                text.truncate(wide, overflow="ellipsis")
            space = " " * (wide - cell_len(text.plain))
            made.append(" " * _GAP if place else "")
            if self.columns[at].right:
                made.append(space).append_text(text)
            else:
                made.append_text(text).append("" if last else space)
        if note is not None:
            made.append(" " * _GAP).append_text(note)
        made.rstrip()
        return made
