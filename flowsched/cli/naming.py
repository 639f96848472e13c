"""Which workflow a user means, on the command line: what the SDK finds, and a word where a name stands for several."""

from __future__ import annotations

from flowsched.cli.printing import output
from flowsched.client import Client, naming
from flowsched.errors import Conflict, NotFound
from flowsched.workflow.views import TaskView


async def find(client: Client, ref: str, *, to_change: bool = False, own: bool = False) -> str:
    """The id of the workflow that a user named; see `flowsched.client.naming.find`."""
    found = await naming.find(client.list, ref, to_change=to_change, own=own)
    if found.namesakes > 1:
        engine = f", a run of {found.source}" if found.source else ""
        output.hint(f"{ref}: {found.id}, the newest of {found.namesakes}{engine}")
    return found.id


async def index_of(client: Client, ident: str, stage: str, which: str) -> int:
    """The index of a task that a user named by its index, by the item of its shard, or by its role in a gang.

    Numbers are indices.

    Raises:
        NotFound: No task has this item or role.
        Conflict: Several have it.
    """
    if is_index(which):
        return int(which)
    tasks = [task async for task in client.tasks(ident, stage=stage)]
    kind, found = "item", [task.index for task in tasks if task.item == which]
    if not found:
        kind, found = "role", [task.index for task in tasks if _role_of(task) == which]
    if not found:
        raise NotFound(
            f"{which!r} is no number from 0 on, and no item or role of {stage} in {ident}; `flowsched show {ident} --tasks` "
            "lists the index, the role and the item of each task"
        )
    if len(found) > 1:
        raise Conflict(
            f"{len(found)} tasks of {stage} have the {kind} {which!r}: give an index, of {', '.join(map(str, found[:5]))}"
            + (" …" if len(found) > 5 else "")
        )
    return found[0]


def is_index(text: str) -> bool:
    """Whether a text is an index: a number from 0 on."""
    return text.isdecimal() and text.isascii()


def task_name(task: TaskView) -> str:
    """A task with its item and its role in a gang: `align[1] (HG002)`, `train[1] (actor)`."""
    known = [name for name in (task.item, _role_of(task)) if name]
    return f"{task.stage}[{task.index}]" + (f" ({', '.join(known)})" if known else "")


def _role_of(task: TaskView) -> str:
    """The role that the document gave it; "" outside gangs."""
    from flowsched.workflow.spec import PLAIN_ROLE  # only here: commands start without the document's values

    return "" if task.role == PLAIN_ROLE else task.role
