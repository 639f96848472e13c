"""Output: where and in which form answers are printed, and texts made harmless for a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from rich.console import Console, RenderableType

<<<<<<< HEAD
_CONTROL: Final = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_A_LOG: Final = re.compile(f"[{_CONTROL}]")
_IN_A_LINE: Final = re.compile(f"[{_CONTROL}\t\n\r\u2028\u2029]")


def line(text: str) -> str:
    """One line: everything that is not a visible character or a space is shown by its code."""
    return _IN_A_LINE.sub(_code, text)


def block(text: str) -> str:
    """Several lines: line ends and tabs stay; a lone carriage return, which would overwrite, ends the line too."""
    return _IN_A_LOG.sub(_code, text.replace("\r\n", "\n").replace("\r", "\n"))


def json_text(text: str) -> str:
    """JSON stays JSON: what it holds unescaped and a terminal would obey is escaped."""
    return _IN_A_LOG.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _code(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


class LogText:
    """A log for a terminal, from bytes that may be cut anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._return = False

    def feed(self, chunk: bytes, *, final: bool = False) -> str:
        """The next piece. A carriage return at its end waits for what follows."""
        text = ("\r" if self._return else "") + self._decoder.decode(chunk, final)
        self._return = text.endswith("\r") and not final
        return block(text[:-1] if self._return else text)


# ---- the forms; they need no rich, so that help does not load it ----


class Form(StrEnum):
    """How answers are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


# ---- printing ----

=======
from flowsched.cli.form import Form
from flowsched.cli.terminal_text import json_text
>>>>>>> e4e5698 (Leave the planner's process, the forms and the terminal's text modules of their own)

V = TypeVar("V")

#: A pipe has no width: tables are as wide as what they hold.
PIPED_WIDTH: Final = 10_000


def console(stderr: bool = False) -> Console:
    """A console that knows whether it is a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False, markup=False, emoji=False)
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=PIPED_WIDTH, no_color=True)


def show(renderable: RenderableType, *, stderr: bool = False) -> None:
    """Print something; without trailing spaces when it goes into a pipe."""
    out = console(stderr)
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as captured:
        out.print(renderable)
    lines = [line.rstrip() for line in captured.get().rstrip("\n").split("\n")]
    print("\n".join(lines), file=out.file)


def hint(text: str) -> None:
    """Say something beside the answer."""
    print(text, file=sys.stderr)


def to_json(view: Any, *, indent: int | None = None) -> str:
    """A view as JSON text that a terminal can show."""
    return json_text(json.dumps(msgspec.to_builtins(view), ensure_ascii=False, indent=indent))


def one(view: Any, form: Form, table: Callable[[], RenderableType]) -> None:
    """Print one thing."""
    if form is Form.TABLE:
        show(table())
    else:
        print(to_json(view, indent=2 if form is Form.JSON else None))


def many(views: Sequence[Any], form: Form, table: Callable[[Sequence[Any]], RenderableType]) -> None:
    """Print a list."""
    match form:
        case Form.TABLE:
            show(table(views))
        case Form.JSON:
            print(to_json(list(views), indent=2))
        case Form.JSONL:
            for view in views:
                print(to_json(view))


async def stream(
    views: AsyncIterable[V], form: Form, table: Callable[[Sequence[V]], RenderableType], limit: int
) -> int:
    """Print a list that comes page by page, at most `limit` entries; returns how many there were."""
    kept: list[V] = []
    number = 0
    async for view in views:
        if number == limit:
            hint(f"… and more: ask for them with --limit (now {limit})")
            break
        number += 1
        if form is Form.JSONL:
            print(to_json(view))
        else:
            kept.append(view)
    if form is not Form.JSONL:
        many(kept, form, table)
    return number
