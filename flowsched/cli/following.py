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
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
import typer
from rich.live import Live

from flowsched import tokens
from flowsched.cli.context import DONE, FAILED, INTERRUPTED, complain, say
from flowsched.cli.options import Output, asks
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render, terminal_text
from flowsched.cli.printing.form import Form
from flowsched.client import Client
from flowsched.client.calls import CAPS, STREAMS
from flowsched.errors import CannotStart, Conflict, Unavailable
from flowsched.workflow.engine_words import engine_in
from flowsched.workflow.views import EventView, StageView, TaskView, WaitingView, WorkflowView

#: How often progress is asked for.
LOOK_S: Final = 0.4
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


class NeverStarts(Exception):
    """A stage asks for what no node has, or for more than its queue may have."""

    def __init__(self, waiting: WaitingView) -> None:
        super().__init__(waiting.message)
        self.waiting = waiting


class _Patience:
    """Ends the watching of a workflow that never starts; seen twice in a row, since nodes may just be appearing.

    Args:
        endless: Other nodes may come: never end it.
    """

    def __init__(self, *, endless: bool) -> None:
        self._endless = endless
        self._seen = 0

    def look(self, view: WorkflowView) -> None:
        """Take in how it stands.

        Raises:
            NeverStarts: It will not change by itself.
        """
        never = view.waiting is not None and view.waiting.permanent and view.ended_at is None
        self._seen = self._seen + 1 if never else 0
        if self._seen >= 2 and not self._endless and view.waiting is not None:
            raise NeverStarts(view.waiting)


async def follow(client: Client, ident: str, *, endless: bool = True, returns: bool = True) -> WorkflowView:
    """Show progress until a workflow has ended.

    Args:
        client: Of its server.
        ident: Its id.
        endless: Go on although a stage asks for what no node has.
        returns: A service that does not answer any more may come back: wait for it. Says so, and again every `REMIND_S`.

    Raises:
        NeverStarts: It does, and `endless` is not set.
        Unavailable: No service answers, and `returns` is not set.
    """
    warnings.simplefilter("ignore", CannotStart)  # the progress has the reason
    clock, remind = asyncio.get_running_loop().time, 0.0
    while True:
        try:
            return await _follow(client, ident, endless=endless)
        except Unavailable as error:
            if not returns and str(error).startswith("no answer from"):
                raise
            if clock() >= remind:
                remind = clock() + REMIND_S
                say(f"{error}\n{ident} goes on, and this command waits for the service; Ctrl-C leaves")
            await asyncio.sleep(AWAY_S)


async def _follow(client: Client, ident: str, *, endless: bool) -> WorkflowView:
    waiting = asyncio.create_task(client.wait(ident))
    patience = _Patience(endless=endless)
    try:
        if printed.console(stderr=True).is_terminal:
            await _live(client, ident, waiting, patience)
        else:
            await _lines(client, ident, waiting, patience)
        return await waiting
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def _live(client: Client, ident: str, waiting: asyncio.Task[WorkflowView], patience: _Patience) -> None:
    console = printed.console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            over = waiting.done()
            view, stages = await client.get(ident), await client.stages(ident)
            head = render.workflow_head(view, datetime.now(UTC))
            rows = max(3, console.size.height - 4)
            live.update(render.progress(stages, rows=rows, head=head), refresh=True)
            if over:
                return
            patience.look(view)
            await asyncio.wait({waiting}, timeout=LOOK_S)


async def _lines(
    client: Client, ident: str, waiting: asyncio.Task[WorkflowView], patience: _Patience
) -> None:
    """Without a terminal: one line whenever a stage's state changes."""
    told: dict[str, str] = {}
    while True:
        over = waiting.done()
        for stage in await client.stages(ident):
            if told.get(stage.name, "PENDING") != stage.state:
                told[stage.name] = stage.state
                say(_stage_line(stage))
        if over:
            return
        patience.look(await client.get(ident))
        await asyncio.wait({waiting}, timeout=LOOK_S)


def _stage_line(stage: StageView) -> str:
    done = stage.counts.get("SUCCEEDED", 0)
    line = f"{stage.name}: {stage.state} {done}/{stage.width * stage.members}"
    why = render.why(stage)
    return f"{line} ({why.plain})" if why is not None and stage.state != "PENDING" else line


async def watch(client: Client, ident: str, *, endless: bool = True) -> int:
    """`flowsched watch`, and the rest of `submit --wait` and `run --server`; raises `NeverStarts` as `follow` does."""
    try:
        async with interruptible():
            view = await follow(client, ident, endless=endless)
    except Interrupted:
        say(f"\nno longer watching; {ident} goes on. Come back: `flowsched watch {ident}`")
        say(f"stop it: `flowsched cancel {ident}`")
        return INTERRUPTED
    return verdict(view)


async def give_up(client: Client, ident: str, never: NeverStarts) -> int:
    """Cancel a workflow that no node can run, or that a cap or quota forbids, and say what would let it run."""
    capped = CAPS.get(never.waiting.code)
    why = f"asks for more than the {capped} allows" if capped else "can run on no node"
    coming = f"the {capped} will be raised" if capped else "such a node will come"
    told = [
        suggestion.message
        for each in await client.explain(ident, never.waiting.stage)
        for suggestion in sorted(each.suggestions[:_SUGGESTED], key=lambda found: found.kind == _MORE_NODES)
        if each.code == never.waiting.code
    ]
    with contextlib.suppress(Conflict):
        await client.cancel(ident, f"{never.waiting.stage} {why}")
    with contextlib.suppress(TimeoutError):  # what still runs is taken up by the next service on this root
        await client.wait(ident, GIVE_UP_S)
    complain(f"stage {never.waiting.stage} {why}, so {ident} was cancelled: {never.waiting.message}")
    say(f"  next: {'; or '.join(dict.fromkeys(told)) or 'ask for less'}; or --wait-for-nodes, if {coming}")
    return FAILED


async def watch_own(client: Client, ident: str, *, endless: bool = False) -> int:
    """Follow a workflow of the service in this process, which ends with it; raises `NeverStarts` as `follow` does."""
    try:
        async with interruptible():
            return verdict(await follow(client, ident, endless=endless, returns=False))
    except Interrupted:
        say("\ncancelling; press Ctrl-C again to leave at once")
    try:
        async with interruptible():
            try:
                await client.cancel(ident, "interrupted")
            except Conflict:
                return INTERRUPTED  # it had ended meanwhile
            await follow(client, ident, returns=False)
    except Interrupted:
        say("left; what still runs is taken up by the next `flowsched run` or `serve` on the same --root")
    return INTERRUPTED


@asynccontextmanager
async def interruptible() -> AsyncIterator[None]:
    """Turn SIGINT and SIGTERM into `Interrupted` in the body, where it waits."""
    loop, task, pressed = asyncio.get_running_loop(), asyncio.current_task(), False

    def press() -> None:
        nonlocal pressed
        pressed = True
        if task is not None:
            task.cancel()

    restore = _handle(loop, press)
    try:
        yield
    except asyncio.CancelledError:
        if not pressed or task is None:
            raise
        task.uncancel()
        raise Interrupted from None
    finally:
        restore()


def _handle(loop: asyncio.AbstractEventLoop, press: Callable[[], None]) -> Callable[[], None]:
    """Install the handlers; returns what puts the former ones back."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        for number in numbers:
            loop.add_signal_handler(number, press)
    except (NotImplementedError, RuntimeError, ValueError):
        return lambda: None  # not in the main thread: a test, or Windows

    def restore() -> None:
        for number, handler in zip(numbers, before, strict=True):
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    return restore


def verdict(view: WorkflowView) -> int:
    """The exit code of a workflow that has ended."""
    return DONE if view.state in ("SUCCEEDED", "SKIPPED") else FAILED


async def _events(client: Client, ident: str, form: Form, *, follow: bool) -> int:
    """`flowsched events`, and `watch -o jsonl`: as a table line by line, or as JSON; an array where all is known."""
    found: list[EventView] = []
    try:
        async with interruptible():
            warnings.showwarning = lambda message, *_: say(f"warning: {message}")
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
    said = "  ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in event.body.items()
        if value not in (None, "", [], {})
    )
    return terminal_text.line(f"{render.moment(event.at)}  {event.kind:<20}  {said}".rstrip())


def taken_from(reason: str) -> tuple[str, str, str] | None:
    """The workflow, stage and shard that a task took its result from, by its reason; None if it took none from the cache."""
    if not reason.startswith("CACHED "):
        return None
    workflow, stage, shard = reason.removeprefix("CACHED ").split("/")
    return workflow, stage, shard


def is_local(url: str) -> bool:
    """Whether a URL is this machine's."""
    return tokens.is_loopback(urlsplit(url).hostname or "")


def log_arguments(task: TaskView, stream: str) -> str:
    """The arguments of `flowsched logs` for what a task wrote, behind the id of its workflow."""
    return f"{task.stage} {task.index}{' -e' if stream == 'stderr' else ''}"


async def engine_of(client: Client, ident: str) -> str:
    """The engine that has sent a workflow or a run, as `engine_in` names it."""
    source = (await client.get(ident)).source
    return source or engine_in(msgspec.json.decode(await client.document(ident)))


async def next_try(client: Client, ident: str, stages: Sequence[StageView], file: str = "FILE") -> str:
    """The command that tries a failed workflow again, and what must come before it where it would fail in the same way."""
    retry, changed = f"`flowsched retry {ident}`", f"`flowsched retry {ident} --changed {file}`"
    failed = next((stage.name for stage in stages if stage.state == "FAILED"), None)
    reason = ""
    if failed is not None:
        async with contextlib.aclosing(client.tasks(ident, stage=failed, state="FAILED", page=1)) as tasks:
            reason = await anext((task.reason async for task in tasks), "")
    if reason == "InputMissing":
        return (
            f"put the input where {failed} looks for it, then {retry}; if a task of this run should have written it, "
            f"{changed} runs that task again"
        )
    if reason == "ImageRefused":
        return f"start the service as the reason says, then {retry}; or change the image in the document, then {changed}"
    return f"{retry}; after an edit of the document or of an input {changed}"


async def log_tail(client: Client, ident: str, stage: str, index: int, lines: int) -> tuple[str, list[str]]:
    """The stream that a task wrote to, stderr before stdout, and the last lines of it; "" and none if it wrote nothing."""
    for stream in STREAMS:
        found = await client.log_tail(ident, stage, index, lines, stream=stream)
        if found:
            return stream, [terminal_text.line(line) for line in found]
    return "", []
