"""Which workflow a user means: by its id, the beginning of its id, or its name."""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, NamedTuple, TypeAlias

from flowsched.errors import Conflict, NotFound
from flowsched.workflow.views import WorkflowView

#: `Client.list`.
Listing: TypeAlias = Callable[..., AsyncGenerator[WorkflowView, None]]

#: How many candidates an error names.
_SHOWN: Final = 5
#: So many of the first workflows are compared with what was mistyped, and so many of one name are counted.
_COMPARED: Final = 100


class Named(NamedTuple):
    """The workflow that is meant, and how many have its name where it was named so; 1 where it was given by its id."""

    id: str
    namesakes: int
    source: str = ""  #: the engine whose run it is


async def find(listing: Listing, ref: str, *, to_change: bool = False, own: bool = False) -> Named:
    """The id of the workflow that a user named.

    The text is taken for an id, else for a name (the newest workflow of that name), else for the beginning of one id.

    Args:
        listing: Lists the workflows of the server.
        ref: The user's text: an id, its beginning, or a name.
        to_change: The workflow shall be cancelled, paused or the like: of several that live, none is guessed.
        own: A name means a run of flowsched, where there is one: what is asked says nothing of runs of other engines.

    Raises:
        NotFound: There is none.
        Conflict: There are several, and no rule says which is meant.
    """
    found: list[WorkflowView] = []
    async with aclosing(listing(ref=ref, page=_COMPARED)) as views:
        async for view in views:
            found.append(view)
            if view.id == ref or len(found) == _COMPARED:
                break
    if not found:
        raise NotFound(
            f"there is no workflow {ref!r}: it is no id, no beginning of one, and no name{await _meant(listing, ref)}"
        )
    for view in found:
        if view.id == ref:
            return Named(ref, 1)
    named = [view for view in found if view.name == ref]
    if named:
        live = [view for view in named if view.ended_at is None]
        if to_change and len(live) > 1:
            raise Conflict(f"{len(live)} workflows named {ref!r} live: give an id, of {_listed(live)}")
        named = [view for view in named if not (own and view.source)] or named
        newest = max(named, key=lambda view: view.created_at)
        chosen = next((view for view in named if to_change and view.ended_at is None), newest)
        return Named(chosen.id, len(named), chosen.source)
    if len(found) > 1:
        raise Conflict(f"the ids of {len(found)} workflows begin with {ref!r}: {_listed(found)}")
    return Named(found[0].id, 1)


async def _meant(listing: Listing, ref: str) -> str:
    """The name or id that was probably meant, of the first workflows."""
    names: dict[str, str] = {}
    async with aclosing(listing(page=_COMPARED)) as views:
        async for view in views:
            names.setdefault(view.name, view.name)
            names[view.id] = view.id
            names.setdefault(view.id[: len(ref)], view.id)  # the beginning of an id, mistyped
            if len(names) >= 3 * _COMPARED:
                break
    close = difflib.get_close_matches(ref, names, n=1, cutoff=0.7)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def _listed(views: list[WorkflowView]) -> str:
    listed = ", ".join(f"{view.id} ({view.name})" for view in views[:_SHOWN])
    return listed + (" …" if len(views) > _SHOWN else "")
