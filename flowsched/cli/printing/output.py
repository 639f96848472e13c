"""Output: where and in which form answers are printed."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from rich.console import Console, RenderableType

from flowsched.cli.printing.columns import PIPED_WIDTH
from flowsched.cli.printing.form import Form
from flowsched.cli.printing.terminal_text import json_text

V = TypeVar("V")


class _Console(Console):
    """Of rich, but that it does not end the process where the reader of stdout has gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(stderr: bool = False) -> Console:
    """A console that knows whether it is a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return _Console(file=stream, highlight=False, markup=False, emoji=False)
    return _Console(file=stream, highlight=False, markup=False, emoji=False, width=PIPED_WIDTH, no_color=True)


@contextmanager
def while_read() -> Iterator[None]:
    """Leave the body where the reader of stdout (`| head`) has seen enough; what is printed later goes nowhere."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """Let stdout go nowhere: its reader has gone, and Python would complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    if not sys.stderr.isatty():
        print(text, file=sys.stderr)
        return
    width = console(stderr=True).width
    for line in text.split("\n"):  # between words, so that a command can be copied
        wrapped = textwrap.wrap(
            line, width, break_long_words=False, break_on_hyphens=False, subsequent_indent="  "
        )
        print("\n".join(wrapped), file=sys.stderr)


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
    collected: list[V] = []
    number = 0
    async for view in views:
        if number == limit:
            hint(f"… and more: ask for them with --limit (now {limit})")
            break
        number += 1
        if form is Form.JSONL:
            print(to_json(view))
        else:
            collected.append(view)
    if form is not Form.JSONL:
        many(collected, form, table)
    return number
