"""The place of a task in a run of miniwdl: its run, its node, its shard, and the outputs it reads. Pure: texts in, texts out.

miniwdl names each call by its place, `call-NAME`, followed by one `-INDEX` or `-INDEX-TAG` for each scatter it is in (a tag is
made of the item, so it may be a number too); the folder of a call lies in that of its workflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import dirname
from typing import Final

from flowsched.workflow.run_tasks import shard_number

#: Neither a WDL name nor a tag has a dash.
_CALL: Final = re.compile(r"call-([A-Za-z0-9_]+)((?:-[A-Za-z0-9_]+)*)")
_DOWNLOAD: Final = "download-"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task stands in its run."""

    top: str  #: folder of the whole run
    run_name: str  #: the outermost workflow, or the task if it runs alone
    node: str  #: names of the calls on the way to it, joined by dots
    indices: tuple[int, ...] = ()  #: of the scatters it is in, the outermost first

    @property
    def shard(self) -> int | None:
        """Its indices as one number; None outside of scatters, or where there is no such number."""
        return shard_number(self.indices)

    @property
    def name(self) -> str:
        """The innermost call."""
        return self.node.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Known:
    """A workflow that runs."""

    name: str
    depths: Mapping[str, int]  #: call -> in how many scatters it is


def place(stack: Sequence[str], folder: str, known: Mapping[str, Known]) -> Place:
    """Where a task stands.

    Args:
        stack: miniwdl's ids from the outermost workflow to the task.
        folder: The task's run folder.
        known: The workflows that run, by their run folders.
    """
    of = dirname(dirname(folder))
    if len(stack) == 1 and stack[0].startswith(_DOWNLOAD) and of in known:
        # A download of a run's inputs is told without the run it is for.
        return Place(of, known[of].name, stack[0])
    top = folder
    names: list[str] = []
    indices: list[int] = []
    for ident in reversed(stack[1:]):
        top = dirname(top)
        name, parts = _divided(ident)
        names.insert(0, name)
        indices[:0] = _indices(parts, known[top].depths.get(name) if top in known else None)
    node = ".".join(names) or stack[0]
    return Place(top, stack[0], node, tuple(indices))


def after(top: str, sources: Iterable[str]) -> tuple[str, ...]:
    """The nodes that wrote a task's inputs, from where the input files lie; sorted, each once."""
    found = set()
    head = top.rstrip("/") + "/"
    for source in sources:
        names = []
        if source.startswith(head):
            for part in source.removeprefix(head).split("/"):
                if _CALL.fullmatch(part) is None:
                    break
                names.append(_divided(part)[0])
        if names:
            found.add(".".join(names))
    return tuple(sorted(found))


def _divided(ident: str) -> tuple[str, list[str]]:
    """A name, and its indices and tags."""
    match = _CALL.fullmatch(ident)
    return (match[1], match[2].split("-")[1:]) if match is not None else (ident, [])


def _indices(parts: Sequence[str], depth: int | None) -> list[int]:
    """The indices among them; with an unknown depth, everything that is a number."""
    numbers = [part.isascii() and part.isdigit() for part in parts]
    if depth is None:
        depth = sum(numbers)
    found: list[int] = []
    at = 0
    while len(found) < depth and at < len(parts) and numbers[at]:
        found.append(int(parts[at]))
        # It has a tag if what is behind it is no number, or if there are two parts for each level that is left.
        levels_left, parts_left = depth - len(found) + 1, len(parts) - at
        tagged = at + 1 < len(parts) and (not numbers[at + 1] or parts_left >= 2 * levels_left)
        at += 2 if tagged else 1
    return found
