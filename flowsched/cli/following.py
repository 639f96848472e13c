"""`flowsched watch` and `events`, and how `run` and `submit --wait` follow a workflow. Progress goes to stderr, results to stdout.

Ctrl-C leaves a workflow on a server alone: it says how to come back, and how to cancel. A service inside `run` would
end with it, so there the first Ctrl-C cancels the workflow and waits until it is gone; the second leaves at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
import typer
from rich.live import Live

from flowsched import tokens
from flowsched.cli.context import DONE, FAILED, INTERRUPTED, complain, echo
from flowsched.cli.options import Output, asks
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render, terminal_text
from flowsched.cli.printing.form import Form
from flowsched.client import Client
from flowsched.client.calls import CAPS, Prospects
from flowsched.errors import CannotStart, Conflict, Unavailable
from flowsched.workflow.engine_words import engine_in
from flowsched.workflow.views import EventView, WorkflowView

#: How often progress is asked for.
REFRESH_S: Final = 0.4
#: How long a service whose database is away is left alone between two looks.
AWAY_S: Final = 2.0
#: How often a command says that it still waits for a service.
REMIND_S: Final = 60.0
#: How long `run` waits until a workflow that it has cancelled is gone.
GIVE_UP_S: Final = 60.0
#: The kind of a suggestion that the user cannot follow alone: it comes last.
_MORE_NODES: Final = "node"
#: So many changes are named after which such a workflow would start.
_SUGGESTED: Final = 3


commands = typer.Typer(rich_markup_mode=None)


@commands.command("watch")
@asks()
async def watch_command(client: Client, ident: str, output: Output = Form.TABLE) -> int:
    """Show how a workflow goes until it has ended.

    With `-o jsonl` each thing that has happened and happens is a line of JSON, as `events` has them.
    """
    return await (
        watch(client, ident) if output is Form.TABLE else _events(client, ident, output, follow=True)
    )


@commands.command()
@asks()
async def events(
    client: Client,
    ident: str,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")] = False,
    output: Output = Form.TABLE,
) -> int:
    """Print what happened in a workflow.

    Each thing that happened to it and to its tasks, with its time.
    """
    return await _events(client, ident, output, follow=follow)


class Interrupted(Exception):
    """Ctrl-C, or SIGTERM."""


async def follow(client: Client, ident: str, *, endless: bool = True, returns: bool = True) -> WorkflowView:
    """Show progress until a workflow has ended.

    Args:
        client: Of its server.
        ident: Its id.
        endless: Go on although a stage asks for what no node has.
        returns: A service that does not answer any more may come back: wait for it. Says so, and again every `REMIND_S`.

    Raises:
        CannotStart: It does, and `endless` is not set.
        Unavailable: No service answers, and `returns` is not set.
    """
    warnings.simplefilter("ignore" if endless else "error", CannotStart)  # the progress has the reason
    clock, remind = asyncio.get_running_loop().time, 0.0
    while True:
        try:
            return await _follow(client, ident)
        except Unavailable as error:
            if not returns and str(error).startswith("no answer from"):
                raise
            if clock() >= remind:
                remind = clock() + REMIND_S
                echo(f"{error}\n{ident} goes on, and this command waits for the service; Ctrl-C leaves")
            await asyncio.sleep(AWAY_S)


async def _follow(client: Client, ident: str) -> WorkflowView:
    """Without a terminal: one line whenever a stage's state changes."""
    waiting = asyncio.create_task(client.wait(ident))
    prospects, shown = Prospects(), dict[str, str]()
    console = printed.console(stderr=True)
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    try:
        with live or contextlib.nullcontext():
            while True:
                over = waiting.done()
                view, stages = await client.get(ident), await client.stages(ident)
                changed = [stage for stage in stages if shown.get(stage.name, "PENDING") != stage.state]
                shown |= {stage.name: stage.state for stage in changed}
                if live is not None:
                    rows, head = (
                        max(3, console.size.height - 7),
                        render.workflow_head(view, datetime.now(UTC)),
                    )
                    live.update(render.progress(stages, rows=rows, head=head), refresh=True)
                else:
                    for stage in changed:
                        done, why = stage.counts.get("SUCCEEDED", 0), render.why(stage)
                        because = f" ({why.plain})" if why is not None and stage.state != "PENDING" else ""
                        echo(f"{stage.name}: {stage.state} {done}/{stage.width * stage.members}{because}")
                if over:
                    return await waiting
                prospects.observe(view)
                await asyncio.wait({waiting}, timeout=REFRESH_S)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def watch(client: Client, ident: str, *, own: bool = False, endless: bool = True) -> int:
    """Follow a workflow; returns the exit code. Raises `CannotStart` as `follow` does.

    `own`: of the service in this process, which ends with it; Ctrl-C cancels the workflow.
    """
    try:
        async with interruptible():
            return verdict(await follow(client, ident, endless=endless, returns=not own))
    except Interrupted:
        if not own:
            echo(f"\nno longer watching; {ident} goes on. Come back: `flowsched watch {ident}`")
            echo(f"stop it: `flowsched cancel {ident}`")
            return INTERRUPTED
    echo("\ncancelling; press Ctrl-C again to leave at once")
    try:
        async with interruptible():
            with contextlib.suppress(Conflict):  # it had ended meanwhile
                await client.cancel(ident, "interrupted")
                await follow(client, ident, returns=False)
    except Interrupted:
        echo("left; what still runs is taken up by the next `flowsched run` or `serve` on the same --root")
    return INTERRUPTED


async def give_up(client: Client, ident: str) -> int | None:
    """Cancel a workflow that no node can run, or that a cap or quota forbids, and say what would let it run.

    Returns the exit code; None where it can start by now.
    """
    waiting = (await client.get(ident)).waiting
    if waiting is None or not waiting.permanent:
        return None
    capped = CAPS.get(waiting.code)
    why = f"asks for more than the {capped} allows" if capped else "can run on no node"
    coming = f"the {capped} will be raised" if capped else "such a node will come"
    cures = [
        suggestion.message
        for each in await client.explain(ident, waiting.stage)
        for suggestion in sorted(each.suggestions[:_SUGGESTED], key=lambda found: found.kind == _MORE_NODES)
        if each.code == waiting.code
    ]
    with contextlib.suppress(Conflict):
        await client.cancel(ident, f"{waiting.stage} {why}")
    with contextlib.suppress(TimeoutError):  # what still runs is taken up by the next service on this root
        await client.wait(ident, GIVE_UP_S)
    complain(f"stage {waiting.stage} {why}, so {ident} was cancelled: {waiting.message}")
    echo(f"  next: {'; or '.join(dict.fromkeys(cures)) or 'ask for less'}; or --wait-for-nodes, if {coming}")
    return FAILED


@asynccontextmanager
async def interruptible() -> AsyncIterator[None]:
    """Turn SIGINT and SIGTERM into `Interrupted` in the body, where it waits."""
    loop, task, pressed = asyncio.get_running_loop(), asyncio.current_task(), False
    numbers = (signal.SIGINT, signal.SIGTERM)

    def press() -> None:
        nonlocal pressed
        pressed = True
        if task is not None:
            task.cancel()

    before = [signal.getsignal(number) for number in numbers]
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread: a test
        for number in numbers:
            loop.add_signal_handler(number, press)
    try:
        yield
    except asyncio.CancelledError:
        if not pressed or task is None:
            raise
        task.uncancel()
        raise Interrupted from None
    finally:
        for number, handler in zip(numbers, before, strict=True):
            if loop.remove_signal_handler(number):
                signal.signal(number, handler)


def verdict(view: WorkflowView) -> int:
    """The exit code of a workflow that has ended."""
    return DONE if view.state in ("SUCCEEDED", "SKIPPED") else FAILED


async def _events(client: Client, ident: str, form: Form, *, follow: bool) -> int:
    """`flowsched events`, and `watch -o jsonl`: as a table line by line, or as JSON; an array where all is known."""
    found: list[EventView] = []
    try:
        async with interruptible():
            warnings.showwarning = lambda message, *_: echo(f"warning: {message}")
            async for event in client.events(ident, follow=follow):
                if form is Form.JSON:
                    found.append(event)
                else:
                    print(_event_line(event) if form is Form.TABLE else printed.to_json(event), flush=True)
    except Interrupted:
        return INTERRUPTED
    if form is Form.JSON:
        print(printed.to_json(found, indent=2))
    return DONE


def _event_line(event: EventView) -> str:
    """Its time, its kind, and what it says."""
    facts = "  ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in event.body.items()
        if value not in (None, "", [], {})
    )
    return terminal_text.line(f"{render.moment(event.at)}  {event.kind:<20}  {facts}".rstrip())


def taken_from(reason: str) -> tuple[str, str, str] | None:
    """The workflow, stage and shard that a task took its result from, by its reason; None if it took none from the cache."""
    if not reason.startswith("CACHED "):
        return None
    workflow, stage, shard = reason.removeprefix("CACHED ").split("/")
    return workflow, stage, shard


def is_local(url: str) -> bool:
    """Whether a URL is this machine's."""
    return tokens.is_loopback(urlsplit(url).hostname or "")


async def engine_of(client: Client, ident: str) -> str:
    """The engine that has sent a workflow or a run, as `engine_in` names it."""
    source = (await client.get(ident)).source
    return source or engine_in(msgspec.json.decode(await client.document(ident)))


def next_try(ident: str, file: str = "FILE") -> str:
    """The command that tries a failed workflow again."""
    return f"`flowsched retry {ident}`; after an edit of the document or of an input `flowsched retry {ident} --changed {file}`"
