"""`flowsched cancel`: workflows by name, all of a user or a queue, or one task."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from rich.console import Group

from flowsched.cli import naming
from flowsched.cli.context import DONE, WRONG, complain, say
from flowsched.cli.printing import output, render
from flowsched.cli.printing.form import Form
from flowsched.client import Client
from flowsched.client.calls import CANCELLED_AT_ONCE
from flowsched.errors import Conflict, NotFound
from flowsched.workflow.views import CancelledView


async def named(client: Client, given: Sequence[str], reason: str | None, form: Form) -> int:
    """Cancel workflows that the user named; words that are no ids are looked up first."""
    first = await client.cancel_all(list(dict.fromkeys(given)), reason)
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
    output.many(found.workflows, form, lambda views: Group(*map(render.workflow_head, views)))
    return _faults([*faults, *found.refused.values()])


async def matching(
    client: Client, filters: Mapping[str, Any], reason: str | None, form: Form, *, yes: bool
) -> int:
    """Cancel all live workflows of a user or a queue, once the person at the terminal has agreed to their number."""
    async with aclosing(client.list(**filters, live=True, page=1000)) as views:
        ids = [view.id async for view in views]
    of = " and ".join(f"{name} {value!r}" for name, value in filters.items())
    count = f"{len(ids)} live workflow{'s' * (len(ids) != 1)} of {of}"
    if not ids:
        output.hint(f"there are no live workflows of {of}")
        return DONE
    if not yes and not _agrees(f"cancel {count}?"):
        return WRONG
    found = CancelledView(workflows=[])
    for start in range(0, len(ids), CANCELLED_AT_ONCE):
        part = await client.cancel_all(ids[start : start + CANCELLED_AT_ONCE], reason)
        found.workflows += part.workflows
        found.refused |= part.refused
        if len(ids) > CANCELLED_AT_ONCE:
            say(f"{min(start + CANCELLED_AT_ONCE, len(ids))} of {count}")
    done = f"cancelled {len(found.workflows)} of {count}"
    output.one(found, form, lambda: render.text(done))
    if found.refused:
        say(f"{len(found.refused)} had ended meanwhile")
    return DONE


async def task(client: Client, ident: str, given: str, reason: str | None, form: Form) -> None:
    """Cancel one task, named as STAGE or STAGE/INDEX (or its item, or its role)."""
    stage, _, which = given.partition("/")
    index = await naming.index_of(client, ident, stage, which or "0")
    view = await client.cancel_task(ident, stage, index, reason)
    output.one(view, form, lambda: render.task_table([view]))


def _agrees(question: str) -> bool:
    """Whether the person at the terminal says yes; without a terminal nobody is asked, and the answer is no."""
    if not sys.stdin.isatty():
        complain(f"{question} Nothing is cancelled: without a terminal, give --yes")
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _faults(faults: Sequence[str]) -> int:
    for fault in faults:
        complain(fault)
    return WRONG if faults else DONE
