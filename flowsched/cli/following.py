"""Commands that stay: run, submit --wait, watch, logs. Progress goes to stderr, results to stdout.

Ctrl-C leaves a workflow on a server alone: it says how to come back, and how to cancel. A service inside `run` would
end with it, so there the first Ctrl-C cancels the workflow and waits until it is gone; the second leaves at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import msgspec
from rich.live import Live

from flowsched import tokens
from flowsched.cli.context import DONE, FAILED, INTERRUPTED, complain, say
from flowsched.cli.naming import find, index_of, task_name
from flowsched.cli.printing import output, render, terminal_text
from flowsched.cli.printing.form import Form
from flowsched.client import Client
from flowsched.client.calls import CAPS, STREAMS, first_failed
from flowsched.errors import CannotStart, Conflict, InvalidRequest, Unavailable
from flowsched.workflow.engine_words import engine_in
from flowsched.workflow.views import EventView, StageView, TaskView, WaitingView, WorkflowView

if TYPE_CHECKING:
    from flowsched.app import Settings

#: How often progress is asked for.
LOOK_S: Final = 0.4
#: How long a service whose database is away is left alone between two looks.
AWAY_S: Final = 2.0
#: How often a command says that it still waits for a service.
REMIND_S: Final = 60.0
#: How long `run` waits until a workflow that it has cancelled is gone.
GIVE_UP_S: Final = 60.0
#: So many stages are named where one must be chosen.
_NAMED: Final = 20
#: The kind of a suggestion that the user cannot follow alone: it comes last.
_MORE_NODES: Final = "node"
#: So many changes are named after which such a workflow would start.
_SUGGESTED: Final = 3


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
        if output.console(stderr=True).is_terminal:
            await _live(client, ident, waiting, patience)
        else:
            await _lines(client, ident, waiting, patience)
        return await waiting
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def _live(client: Client, ident: str, waiting: asyncio.Task[WorkflowView], patience: _Patience) -> None:
    console = output.console(stderr=True)
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


async def events(client: Client, ident: str, form: Form, *, follow: bool) -> int:
    """`flowsched events`, and `watch -o jsonl`: as a table line by line, or as JSON; an array where all is known."""
    found: list[EventView] = []
    try:
        async with interruptible():
            warnings.showwarning = lambda message, *_: say(f"warning: {message}")
            async for event in client.events(ident, follow=follow):
                if form is Form.JSON:
                    found.append(event)
                else:
                    print(_event_line(event) if form is Form.TABLE else output.to_json(event), flush=True)
    except Interrupted:
        return INTERRUPTED
    if form is Form.JSON:
        print(output.to_json(found, indent=2))
    return DONE


def _event_line(event: EventView) -> str:
    """Its time, its kind, and what it says."""
    said = "  ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in event.body.items()
        if value not in (None, "", [], {})
    )
    return terminal_text.line(f"{render.moment(event.at)}  {event.kind:<20}  {said}".rstrip())


async def logs(
    client: Client,
    workflow: str,
    stage: str | None,
    task: str | None,
    *,
    errors: bool,
    attempt: int | None,
    tail: int | None,
    follow: bool,
    where: bool,
    settings: Settings,
) -> int:
    """`flowsched logs`: bytes as they are into a pipe, harmless text onto a terminal.

    Where no service answers, it reads the files of the one that ran here.

    Args:
        client: Of the service.
        workflow: As the user named it.
        stage: Of the task; None = that of the first task that failed.
        task: Its index, or the item of its shard; None = the first, with a word of the others.
        errors: What it wrote to stderr.
        attempt: Which; None = the last.
        tail: So many of the last lines; None = all.
        follow: Go on until it has ended.
        where: Print the path of the file instead.
        settings: Root and database of a service on this machine.
    """
    stream: Literal["stdout", "stderr"] = "stderr" if errors else "stdout"
    try:
        ident = await find(client, workflow)
    except Unavailable:
        if not is_local(client.url) or not (
            settings.database or settings.root.joinpath("flowsched.db").exists()
        ):
            raise
        return await _kept_log(settings, (workflow, stage, task, attempt), stream, tail, where=where)
    chosen = stage is not None
    stage, index = await _task_of(client, ident, stage, task)
    if not (chosen or errors or attempt is not None) and await _wrote_only_errors(
        client, ident, stage, index
    ):
        errors, stream = True, "stderr"
    if where:
        return _print_path(await _file(client, ident, stage, index, attempt, stream), f"{stage}[{index}]")
    kept = terminal_text.LogText() if sys.stdout.isatty() else None
    written, last = 0, b""
    try:
        async with interruptible():
            async for chunk in client.logs(
                ident, stage, index, stream=stream, attempt=attempt, tail=tail, follow=follow
            ):
                written, last = written + len(chunk), chunk[-1:] or last
                _write(chunk, kept)
    except Interrupted:
        return INTERRUPTED
    if kept is not None:
        sys.stdout.write(kept.feed(b"", final=True))
    sys.stdout.flush()
    if not written and tail != 0:
        return await _wrote_nothing(client, await client.task(ident, stage, index), ident, stream)
    if kept is not None and sys.stderr.isatty():
        path = await _file(client, ident, stage, index, attempt, stream)
        other = "" if errors else "; --stderr shows the other stream"
        if last != b"\n":
            say("")
        if path is not None:
            say(f"({path}{other})")
    return DONE


async def _first_failed(client: Client, ident: str) -> tuple[str, int]:
    """Stage and index of the first task that failed, or of the only task.

    Raises:
        InvalidRequest: No task failed, and there are several; with the stages that there are.
    """
    for failed in await first_failed(client, ident):
        output.hint(
            f"{task_name(failed)} {_ended(failed)}; for another task give its STAGE, and its INDEX or ITEM"
        )
        return failed.stage, failed.index
    stages = await client.stages(ident)
    names = [stage.name for stage in stages]
    if len(stages) == 1 and stages[0].width * stages[0].members == 1:
        return names[0], 0
    raise InvalidRequest(
        f"no task of {ident} failed: of which stage? It has {', '.join(names[:_NAMED])}{' …' * (len(names) > _NAMED)}"
    )


async def _task_of(client: Client, ident: str, stage: str | None, task: str | None) -> tuple[str, int]:
    """Stage and index of the task that a user named, by both, by its stage, or not at all."""
    if stage is None:
        return await _first_failed(client, ident)
    if task is None:
        return stage, await _first_of(client, ident, stage)
    return stage, await index_of(client, ident, stage, task)


async def _wrote_only_errors(client: Client, ident: str, stage: str, index: int) -> bool:
    """Whether the last attempt of a task wrote to stderr and nothing to stdout. Says so."""
    out, err = [await client.log_tail(ident, stage, index, 1, stream=each) for each in ("stdout", "stderr")]
    if out or not err:
        return False
    output.hint("it wrote nothing to stdout; this is its stderr:")
    return True


async def _first_of(client: Client, ident: str, stage: str) -> int:
    """The index of a stage's first task. Says that there are others, and which of them failed first."""
    found = await _some(client, ident, stage, 2)
    if len(found) < 2:
        return found[0].index if found else 0
    first = found[0]
    failed = await first_failed(client, ident, stage)
    if failed and failed[0].index != first.index:
        stream, _ = await log_tail(client, ident, stage, failed[0].index, 1)
        output.hint(
            f"{task_name(first)}; another task of {stage} {_ended(failed[0])}: "
            f"`flowsched logs {ident} {log_arguments(failed[0], stream)}`"
        )
    else:
        output.hint(f"{task_name(first)}; for another task of {stage} give its INDEX, too")
    return first.index


def _ended(task: TaskView) -> str:
    """What went wrong with a task that failed, or that returned another code than 0 to its engine."""
    return "failed" if task.state == "FAILED" else f"returned {task.exit_code}"


async def _some(client: Client, ident: str, stage: str, most: int) -> list[TaskView]:
    """The first tasks of a stage."""
    found: list[TaskView] = []
    async with contextlib.aclosing(client.tasks(ident, stage=stage, page=most)) as tasks:
        async for task in tasks:
            found.append(task)
            if len(found) == most:
                break
    return found


async def _file(
    client: Client, ident: str, stage: str, index: int, attempt: int | None, stream: str
) -> Path | None:
    """The file of a log on this machine; None where the service does not run here, or the task has not run."""
    root = tokens.root_of(client.url)
    task = await client.task(ident, stage, index)
    tries = [each for each in task.attempts if attempt in (None, each.attempt)]
    if root is None or not tries:
        return None
    from flowsched.app import attempt_folder

    path = attempt_folder(root, tries[-1].node, tries[-1].pod) / stream
    return path if path.exists() else None


def _print_path(path: Path | None, task: str) -> int:
    if path is None:
        complain(f"the log of {task} is no file of this machine, or nothing has been written to it")
        return FAILED
    print(path)
    return DONE


async def _kept_log(
    settings: Settings,
    task: tuple[str, str | None, str | None, int | None],
    stream: str,
    tail: int | None,
    *,
    where: bool,
) -> int:
    """The log of an attempt of a service that does not run now."""
    from flowsched.app import kept_attempt
    from flowsched.executor.log_ends import start_of_last

    found = await kept_attempt(settings, *task)
    name = f"{found.stage}[{found.index}]" + (f" ({found.item})" if found.item else "")
    if found.folder is None:
        return _not_run(name, found.state, found.reason, found.reason)
    path = found.folder / stream
    if where:
        return _print_path(path if path.exists() else None, name)
    say(f"no service answers; read from {path} (attempt {found.attempt} of {name} in {found.workflow})")
    kept = terminal_text.LogText() if sys.stdout.isatty() else None
    try:
        with path.open("rb") as file:

            async def read(offset: int, limit: int) -> bytes:
                return os.pread(file.fileno(), limit, offset)

            if tail is not None:
                file.seek(await start_of_last(read, os.fstat(file.fileno()).st_size, tail))
            while chunk := file.read(1 << 16):
                _write(chunk, kept)
    except FileNotFoundError:
        say(f"{name} wrote nothing to {stream}, or its files have been removed")
    if kept is not None:
        sys.stdout.write(kept.feed(b"", final=True))
    return DONE


async def _wrote_nothing(client: Client, task: TaskView, ident: str, stream: str) -> int:
    """Say why a log is empty: the task has not run, or it wrote nothing there."""
    name = task_name(task)
    if task.attempts:
        other = (
            "--stderr shows the other stream" if stream == "stdout" else "without --stderr: the other stream"
        )
        why = f" ({task.reason})" if task.reason else ""
        say(f"{name} is {task.state}{why} and has written nothing to {stream}; {other}")
        return DONE
    told = [each.message for each in await client.explain(ident, task.stage) if each.state == task.state]
    return _not_run(name, task.state, task.reason, next(filter(None, (*told, task.reason)), ""))


def _not_run(name: str, state: str, reason: str, why: str) -> int:
    """Tell the user whose result a task took instead of running, or why it has not run."""
    origin = taken_from(reason)
    if origin is None:
        complain(f"{name} has not run: it is {state}{f'; {why}' if why else ''}")
    else:
        workflow, stage, shard = origin
        complain(
            f"{name} has not run: it took the result of {workflow}, stage {stage}, shard {shard}; "
            f"`flowsched show {workflow} --tasks` lists that run's tasks"
        )
    return FAILED


def taken_from(reason: str) -> tuple[str, str, str] | None:
    """The workflow, stage and shard that a task took its result from, by its reason; None if it took none from the cache."""
    if not reason.startswith("CACHED "):
        return None
    workflow, stage, shard = reason.removeprefix("CACHED ").split("/")
    return workflow, stage, shard


def is_local(url: str) -> bool:
    """Whether a URL is this machine's."""
    return tokens.is_loopback(urlsplit(url).hostname or "")


def _write(chunk: bytes, kept: terminal_text.LogText | None) -> None:
    if kept is None:
        sys.stdout.buffer.write(chunk)
    else:
        sys.stdout.write(kept.feed(chunk))
    sys.stdout.flush()


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
