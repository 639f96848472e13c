"""Which workflow a user means: by its id, the beginning of its id, or its name."""

from __future__ import annotations

import difflib
from contextlib import aclosing
from typing import Final

from flowsched.cli.printing import output
from flowsched.client import Client
from flowsched.errors import Conflict, NotFound
from flowsched.workflow.views import WorkflowView

#: How many candidates an error names.
_SHOWN: Final = 5
#: So many of the newest workflows are compared with what was mistyped.
_COMPARED: Final = 100


async def find(client: Client, given: str, *, to_change: bool = False) -> str:
    """The id of the workflow that a user named.

    The text is taken for an id, else for a name (the newest workflow of that name), else for the beginning of one id.

    Args:
        client: Of the server.
        given: What the user typed.
        to_change: The workflow shall be cancelled, paused or the like: of several that live, none is guessed.

    Raises:
        NotFound: There is none.
        Conflict: There are several, and no rule says which is meant.
    """
    found: list[WorkflowView] = []
    async with aclosing(client.list(ref=given, page=100)) as views:
        async for view in views:
            found.append(view)
            if view.id == given or len(found) == 100:
                break
    if not found:
        raise NotFound(
            f"there is no workflow {given!r}: it is no id, no beginning of one, and no name{await _meant(client, given)}"
        )
    for view in found:
        if view.id == given:
            return given
    named = [view for view in found if view.name == given]
    if named:
        live = [view for view in named if view.ended_at is None]
        if to_change and len(live) > 1:
            raise Conflict(f"{len(live)} workflows named {given!r} live: give an id, of {_listed(live)}")
        chosen = live[0] if to_change and live else named[0]
        if len(named) > 1:
            output.hint(f"{given}: {chosen.id}, the newest of {len(named)}{'+' * (len(found) == 100)}")
        return chosen.id
    if len(found) > 1:
        raise Conflict(f"the ids of {len(found)} workflows begin with {given!r}: {_listed(found)}")
    return found[0].id


async def _meant(client: Client, given: str) -> str:
    """The name or id that was probably meant, of the newest workflows."""
    names: dict[str, str] = {}
    async with aclosing(client.list(page=_COMPARED)) as views:
        async for view in views:
            names.setdefault(view.name, view.name)
            names[view.id] = view.id
            names.setdefault(view.id[: len(given)], view.id)  # the beginning of an id, mistyped
            if len(names) >= 3 * _COMPARED:
                break
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.7)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def _listed(views: list[WorkflowView]) -> str:
    told = ", ".join(f"{view.id} ({view.name})" for view in views[:_SHOWN])
    return told + (" …" if len(views) > _SHOWN else "")
