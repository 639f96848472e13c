"""`flowsched cancel`: workflows by name, all of a user or a queue, or one task."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import typer
from rich.console import Group

from flowsched.cli import naming
from flowsched.cli.context import DONE, WRONG, about, ask, complain, echo
from flowsched.cli.options import Output, Reason
from flowsched.cli.printing import output as printed
from flowsched.cli.printing import render
from flowsched.cli.printing.form import Form
from flowsched.client import Client
from flowsched.errors import Conflict, NotFound

commands = typer.Typer(rich_markup_mode=None)


@commands.command()
def cancel(
    ctx: typer.Context,
    workflows: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID|NAME...", help="The workflows: ids, beginnings of ids, or names."),
    ] = None,
    user: Annotated[str | None, typer.Option(help="All live workflows of this user.")] = None,
    in_queue: Annotated[str | None, typer.Option("--queue", help="All live workflows of this queue.")] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE[/INDEX]", help="Only this task: it fails for good, and its stage's policies go on."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --user or --queue: do not ask.")] = False,
    reason: Reason = None,
    output: Output = Form.TABLE,
) -> None:
    """Stop workflows, or one task; nothing of them starts any more.

    With --user and --queue: all live workflows of that user in that queue, after a question that says how many.
    """
    chosen = {"user": user, "queue": in_queue}
    filters = {name: value for name, value in chosen.items() if value is not None}
    if bool(workflows) == bool(filters):
        raise typer.BadParameter("name workflows, or give --user or --queue (both: that user in that queue)")
    if task is not None and (workflows is None or len(workflows) != 1):
        raise typer.BadParameter("name the one workflow whose task it is", param_hint="--task")
    if filters:
        ask(ctx, lambda client: _matching(client, filters, reason, output, yes=yes))
    elif task is None:
        ask(ctx, lambda client: _named(client, workflows or [], reason, output))
    else:
        (only,) = workflows or [""]
        about(ctx, only, lambda client, ident: _task(client, ident, task, reason, output))


async def _named(client: Client, refs: Sequence[str], reason: str | None, form: Form) -> int:
    """Cancel workflows that the user named; words that are no ids are looked up first."""
    first = await client.cancel_all(list(dict.fromkeys(refs)), reason)
    others, faults = [], []
    for word, why in first.refused.items():
        try:
            ident = await naming.find(client, word, to_change=True)
        except (NotFound, Conflict) as error:
            faults.append(str(error))
            continue
        if ident == word:
            faults.append(why)
        else:
            others.append(ident)
    found = await client.cancel_all(others, reason)
    found.workflows[:0] = first.workflows
    printed.many(found.workflows, form, lambda views: Group(*map(render.workflow_head, views)))
    faults += found.refused.values()
    for fault in faults:
        complain(fault)
    return WRONG if faults else DONE


async def _matching(
    client: Client, filters: Mapping[str, Any], reason: str | None, form: Form, *, yes: bool
) -> int:
    """Cancel all live workflows of a user or a queue, once the person at the terminal has agreed to their number."""
    async with aclosing(client.list(**filters, live=True, page=1000)) as views:
        ids = [view.id async for view in views]
    of = " and ".join(f"{name} {value!r}" for name, value in filters.items())
    count = f"{len(ids)} live workflow{'s' * (len(ids) != 1)} of {of}"
    if not ids:
        printed.hint(f"there are no live workflows of {of}")
        return DONE
    if not yes and not sys.stdin.isatty():
        complain(f"cancel {count}? Nothing is cancelled: without a terminal, give --yes")
        return WRONG
    if not yes and not typer.confirm(f"cancel {count}?", err=True):
        return WRONG
    found = await client.cancel_all(ids, reason)
    done = f"cancelled {len(found.workflows)} of {count}"
    printed.one(found, form, lambda: render.text(done))
    if found.refused:
        echo(f"{len(found.refused)} had ended meanwhile")
    return DONE


async def _task(client: Client, ident: str, ref: str, reason: str | None, form: Form) -> None:
    """Cancel one task, named as STAGE or STAGE/INDEX (or its item, or its role)."""
    stage, _, which = ref.partition("/")
    index = await naming.index_of(client, ident, stage, which or "0")
    view = await client.cancel_task(ident, stage, index, reason)
    printed.one(view, form, lambda: render.task_table([view]))
