"""Which workflow a user means, on the command line: what the SDK finds, and a word where a name stands for several."""

from __future__ import annotations

from flowsched.cli.printing import output
from flowsched.client import Client, naming
from flowsched.errors import Conflict, NotFound
from flowsched.workflow.views import TaskView


async def find(client: Client, given: str, *, to_change: bool = False, own: bool = False) -> str:
    """The id of the workflow that a user named; see `flowsched.client.naming.find`."""
    found = await naming.find(client.list, given, to_change=to_change, own=own)
    if found.namesakes > 1:
        engine = f", a run of {found.source}" if found.source else ""
        output.hint(f"{given}: {found.id}, the newest of {found.namesakes}{engine}")
    return found.id


async def index_of(client: Client, ident: str, stage: str, given: str) -> int:
    """The index of a task that a user named by its index or by the item of its shard. Numbers are indices.

    Raises:
        NotFound: No task has this item.
        Conflict: Several have it.
    """
    if is_index(given):
        return int(given)
    found = [task.index async for task in client.tasks(ident, stage=stage) if task.item == given]
    if not found:
        raise NotFound(
            f"{given!r} is no number from 0 on, and no item of {stage} in {ident}; `flowsched show {ident} --tasks` "
            "lists the index and the item of each task"
        )
    if len(found) > 1:
        raise Conflict(
            f"{len(found)} tasks of {stage} have the item {given!r}: give an index, of {', '.join(map(str, found[:5]))}"
            + (" …" if len(found) > 5 else "")
        )
    return found[0]


def is_index(given: str) -> bool:
    """Whether a text is an index: a number from 0 on."""
    return given.isdecimal() and given.isascii()


def task_name(task: TaskView) -> str:
    """A task with its item: `align[1] (HG002)`."""
    return f"{task.stage}[{task.index}]" + (f" ({task.item})" if task.item else "")
