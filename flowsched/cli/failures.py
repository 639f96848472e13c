"""The first lines about a failed run: the tasks that failed first, the ends of their logs, and the next command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from flowsched.app import attempt_folder
from flowsched.cli.context import echo
from flowsched.cli.following import engine_of
from flowsched.cli.naming import task_name
from flowsched.client import Client
from flowsched.client.calls import first_failed, last_lines
from flowsched.workflow.efficiency import OUT_OF_MEMORY
from flowsched.workflow.engine_words import words_of
from flowsched.workflow.views import TaskView, WorkflowView

#: The exit code of shells and containers where a program is not found.
_NOT_FOUND: Final = 127
#: Of each task so many lines are printed; `logs` has all.
_LINES: Final = 15


async def show(client: Client, view: WorkflowView, root: Path | None = None, *, most: int = 1) -> str:
    """Print the tasks that failed first, with the end of what each wrote.

    Args:
        view: The failed workflow or run.
        root: Where the service keeps its files, if that is on this machine.
        most: So many tasks are printed.

    Returns:
        The arguments of `flowsched logs` for the first of them; empty if no task failed after it ran.
    """
    failed = await first_failed(client, view.id, most=most + 1)
    if not failed:
        for reason in await client.explain(view.id):
            if reason.message:
                echo(f"{reason.stage}: {reason.message}")
        return ""
    first, whole = "", {stage.name: stage.reason for stage in await client.stages(view.id)}
    engine = await engine_of(client, view.id)
    for listed in failed[:most]:
        task = await client.task(view.id, listed.stage, listed.index)
        for line in described(task, root, whole.get(task.stage, ""), engine):
            echo(line)
        stream, lines = await last_lines(client, task, view.id, _LINES)
        for line in lines:
            echo(f"  | {line}")
        if not lines and root is None and task.exit_code is not None:
            echo("  it wrote nothing to stdout or stderr")
        if lines and not first:
            first = f"{task.stage} {task.index}{' -e' if stream == 'stderr' else ''}"
    if len(failed) > most:
        echo(f"\n… and more: `flowsched show {view.id} --tasks --state FAILED`")
    return first


def described(task: TaskView, root: Path | None, whole: str = "", engine: str = "") -> list[str]:
    """The end of a task that failed, the place of its log, and remedies.

    Args:
        root: Where the service keeps its files, if that is on this machine.
        whole: Why its stage failed.
        engine: Which engine sent it: what helps is said in that engine's words.
    """
    if task.state != "FAILED":  # its engine decided what its code means
        return ["", f"{task_name(task)} returned {task.exit_code}"]
    if not task.attempts and whole.startswith(task.reason):
        # it never ran: only the stage's reason says which input is missing
        return ["", f"{task_name(task)} failed before it ran: {whole}"]
    last = task.attempts[-1] if task.attempts else None
    code = "" if task.exit_code is None else f"exit code {task.exit_code}"
    head = f"{task_name(task)} failed" + (f", {code}" if code else "")
    head += f": {task.reason}" if task.reason not in ("", code) else ""
    if last is None:
        return ["", head, *_remedies(task, (), engine)]
    head += f" ({last.message})" if last.message else ""
    ignored = [image.name for image in last.images if not image.digest]
    logs = []
    if root is not None:
        folder = attempt_folder(root, last.node, last.pod)
        paths = [folder / name for name in ("stderr", "stdout")]
        logs = [f"  log: {path}" for path in paths if path.exists() and path.stat().st_size]
        logs = logs or [f"  it wrote nothing to stdout or stderr ({folder})"]
    return ["", head, *_remedies(task, ignored, engine), *logs]


def _remedies(task: TaskView, ignored: Sequence[str], engine: str) -> Iterator[str]:
    """The remedies for a failed task. `ignored`: the images that the task named and did not get."""
    if task.reason == OUT_OF_MEMORY:
        yield f"  next: {words_of(engine).more_memory}"
    if task.exit_code == _NOT_FOUND:
        for name in ignored:
            yield f"  the image {name} was ignored: its programs are looked for on this machine"
