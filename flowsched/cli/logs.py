"""`flowsched logs`: what a task wrote, from a service or from the files of one that ran here."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from flowsched import tokens
from flowsched.app import Settings, attempt_folder, recorded_attempt
from flowsched.cli.context import DONE, FAILED, INTERRUPTED, complain, echo
from flowsched.cli.following import Interrupted, interruptible, is_local, taken_from
from flowsched.cli.naming import find, index_of, task_name
from flowsched.cli.options import Id, asks, with_settings
from flowsched.cli.printing import output, terminal_text
from flowsched.client import Client
from flowsched.client.calls import first_failed
from flowsched.errors import InvalidRequest, Unavailable
from flowsched.executor.log_ends import start_of_last
from flowsched.workflow.views import TaskView

commands = typer.Typer(rich_markup_mode=None)
#: So many stages are named where one must be chosen.
_NAMED: Final = 20


@commands.command()
@with_settings("root", "database")
@asks()
async def logs(
    client: Client,
    workflow: Id,
    stage: Annotated[str | None, typer.Argument(help="The stage. [the first task that failed]")] = None,
    task: Annotated[
        str | None,
        typer.Argument(metavar="INDEX|ITEM|ROLE", help="Which of its tasks. [the first]"),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on until the task has ended: also with attempts to come."),
    ] = False,
    errors: Annotated[bool, typer.Option("--stderr", "-e", help="The stderr of the task.")] = False,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Which attempt; the first is 0. [the last]")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail", metavar="LINES", min=0, max=1_000_000, help="So many of the last lines. [all]"
        ),
    ] = None,
    where: Annotated[
        bool, typer.Option("--path", help="Print where the file lies instead (of a service on this machine).")
    ] = False,
    *,
    settings: Settings,
) -> int:
    """Print what a task wrote.

    Where no service answers on this machine, it reads the files below --root.
    """
    stream: Literal["stdout", "stderr"] = "stderr" if errors else "stdout"
    try:
        ident = await find(client, workflow)
    except Unavailable:
        if not is_local(client.url) or not (
            settings.database or settings.root.joinpath("flowsched.db").exists()
        ):
            raise
        return await _stored_log(settings, (workflow, stage, task, attempt), stream, tail, where=where)
    chosen = stage is not None
    stage, index = await _task_of(client, ident, stage, task)
    if not (chosen or errors or attempt is not None) and await _wrote_only_errors(
        client, ident, stage, index
    ):
        errors, stream = True, "stderr"
    if where:
        return _print_path(await _file(client, ident, stage, index, attempt, stream), f"{stage}[{index}]")
    chunks = client.logs(ident, stage, index, stream=stream, attempt=attempt, tail=tail, follow=follow)
    try:
        async with interruptible():
            last = await _printed(chunks)
    except Interrupted:
        return INTERRUPTED
    if not last and tail != 0:
        return await _wrote_nothing(client, await client.task(ident, stage, index), ident, stream)
    return DONE


async def _printed(chunks: AsyncIterator[bytes]) -> bytes:
    """Print a log: bytes as they are into a pipe, harmless text onto a terminal. Returns its last byte; b"" of an empty one."""
    text = terminal_text.LogText() if sys.stdout.isatty() else None
    last = b""
    async for chunk in chunks:
        last = chunk[-1:] or last
        if text is None:
            sys.stdout.buffer.write(chunk)
        else:
            sys.stdout.write(text.feed(chunk))
        sys.stdout.flush()
    if text is not None:
        sys.stdout.write(text.feed(b"", final=True))
    sys.stdout.flush()
    return last


async def _task_of(client: Client, ident: str, stage: str | None, task: str | None) -> tuple[str, int]:
    """Stage and index of the task that a user named by both, or by its stage; else the first that failed, or the only one.

    Raises:
        InvalidRequest: No task was named and none failed, and there are several; with the stages that there are.
    """
    if stage is not None and task is not None:
        return stage, await index_of(client, ident, stage, task)
    if stage is not None:
        async with contextlib.aclosing(client.tasks(ident, stage=stage, page=2)) as tasks:
            first, second = await anext(tasks, None), await anext(tasks, None)
        if first is not None and second is not None:
            output.hint(f"{task_name(first)}; for another task of {stage} give its INDEX, too")
        return stage, first.index if first is not None else 0
    for failed in await first_failed(client, ident):
        ended = "failed" if failed.state == "FAILED" else f"returned {failed.exit_code}"
        output.hint(f"{task_name(failed)} {ended}; for another task give its STAGE, and its INDEX or ITEM")
        return failed.stage, failed.index
    stages = await client.stages(ident)
    names = [stage.name for stage in stages]
    if len(stages) == 1 and stages[0].width * stages[0].members == 1:
        return names[0], 0
    raise InvalidRequest(
        f"no task of {ident} failed: of which stage? It has {', '.join(names[:_NAMED])}{' …' * (len(names) > _NAMED)}"
    )


async def _wrote_only_errors(client: Client, ident: str, stage: str, index: int) -> bool:
    """Whether the last attempt of a task wrote to stderr and nothing to stdout. Says so."""
    out, err = [await client.log_tail(ident, stage, index, 1, stream=each) for each in ("stdout", "stderr")]
    if out or not err:
        return False
    output.hint("it wrote nothing to stdout; this is its stderr:")
    return True


async def _file(
    client: Client, ident: str, stage: str, index: int, attempt: int | None, stream: str
) -> Path | None:
    """The file of a log on this machine; None where the service does not run here, or the task has not run."""
    root = tokens.root_of(client.url)
    task = await client.task(ident, stage, index)
    tries = [each for each in task.attempts if attempt in (None, each.attempt)]
    if root is None or not tries:
        return None
    path = attempt_folder(root, tries[-1].node, tries[-1].pod) / stream
    return path if path.exists() else None


def _print_path(path: Path | None, task: str) -> int:
    if path is None:
        complain(f"the log of {task} is no file of this machine, or nothing has been written to it")
        return FAILED
    print(path)
    return DONE


async def _stored_log(
    settings: Settings,
    task: tuple[str, str | None, str | None, int | None],
    stream: str,
    tail: int | None,
    *,
    where: bool,
) -> int:
    """The log of an attempt of a service that does not run now."""
    found = await recorded_attempt(settings, *task)
    name = f"{found.stage}[{found.index}]" + (f" ({found.item})" if found.item else "")
    if found.folder is None:
        return _not_run(name, found.state, found.reason, found.reason)
    path = found.folder / stream
    if where:
        return _print_path(path if path.exists() else None, name)
    echo(f"no service answers; read from {path} (attempt {found.attempt} of {name} in {found.workflow})")
    try:
        with path.open("rb") as file:

            async def read(offset: int, limit: int) -> bytes:
                return os.pread(file.fileno(), limit, offset)

            async def chunks() -> AsyncIterator[bytes]:
                while chunk := file.read(1 << 16):
                    yield chunk

            if tail is not None:
                file.seek(await start_of_last(read, os.fstat(file.fileno()).st_size, tail))
            await _printed(chunks())
    except FileNotFoundError:
        echo(f"{name} wrote nothing to {stream}, or its files have been removed")
    return DONE


async def _wrote_nothing(client: Client, task: TaskView, ident: str, stream: str) -> int:
    """Say why a log is empty: the task has not run, or it wrote nothing there."""
    name = task_name(task)
    if task.attempts:
        other = (
            "--stderr shows the other stream" if stream == "stdout" else "without --stderr: the other stream"
        )
        why = f" ({task.reason})" if task.reason else ""
        echo(f"{name} is {task.state}{why} and has written nothing to {stream}; {other}")
        return DONE
    reasons = [each.message for each in await client.explain(ident, task.stage) if each.state == task.state]
    return _not_run(name, task.state, task.reason, next(filter(None, (*reasons, task.reason)), ""))


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
