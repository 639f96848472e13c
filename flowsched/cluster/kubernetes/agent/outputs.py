"""Outputs: the files that a task left in its working folder become datasets of the node's cache, all or none.

The rules are those of `runner.outputs`. Two things differ: the folder belongs to strangers (everything is reached by
descriptor), and the agent may be killed at any step:

    1. all outputs are looked at, and what was found is written down (`Page.moving`)
    2. each moves into a box of its own, outgoing/<uid>/<number>/, by one rename (or is copied there)
    3. it is sealed: owned by the agent, read-only, on the disk
    4. the box is renamed to the dataset's folder in the cache
    5. the answer is written down (`Page.outcome`)

After a crash the next agent continues at the first step that is missing; a box is never lost, as temporary folders are.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowsched.cluster.kubernetes.agent import trees
from flowsched.cluster.kubernetes.orders import Output
from flowsched.cluster.local.runner.outputs import VALUE_LIMIT, Refused
from flowsched.cluster.node import safe_paths
from flowsched.cluster.node.cache import Cache, Entry, stored_name
from flowsched.cluster.node.safe_paths import Unsafe
from flowsched.values import replace


@dataclass(frozen=True, slots=True)
class Found:
    """An output that is there. `way` leads to it over no link; `moves` unless its bytes are needed where they are."""

    name: str
    uri: str
    way: tuple[str, ...]
    value: str | None
    moves: bool


def look(work: int, outputs: Iterable[Output], mounted_at: str | None = None) -> list[Found]:
    """Look at all outputs of a task.

    Args:
        work: Its working folder.
        outputs: What it should have left there.
        mounted_at: Where the task had its working folder, for absolute links to there.

    Raises:
        Refused: One is not there, or cannot be published.
    """
    found: list[Found] = []
    for output in outputs:
        try:
            one = _look_at(work, output, mounted_at)
        except Unsafe as error:
            raise Refused("OutputRefused", f"output {output.name!r}: {error}") from error
        if one is not None:
            found.append(one)
    ways = [one.way for one in found]
    return [replace(one, moves=one.moves and not _needed(number, ways)) for number, one in enumerate(found)]


def _look_at(work: int, output: Output, mounted_at: str | None) -> Found | None:
    way = safe_paths.resolve(work, output.path, mounted_at)
    if way is None:
        if output.optional:
            return None
        there = ", ".join(sorted(os.listdir(work))[:20])
        message = f"output {output.name!r} was not written: looked for {output.path}; there: {there}"
        raise Refused("OutputMissing", message)
    with safe_paths.folder(work, way[:-1]) as parent:
        measured = trees.measure(parent, way[-1])
        value = _value(output, parent, way[-1], measured) if output.value else None
    return Found(output.name, output.uri, way, value, measured.movable)


def _value(output: Output, at: int, name: str, measured: trees.Measure) -> str:
    if measured.directory or measured.size_bytes > VALUE_LIMIT:
        message = f"output {output.name!r} is a value and may have {VALUE_LIMIT} bytes at most: {output.path}"
        raise Refused("OutputRefused", message)
    with open(safe_paths.open_file(at, name), "rb") as file:
        return file.read(VALUE_LIMIT).decode(errors="replace")


def _needed(number: int, ways: list[tuple[str, ...]]) -> bool:
    """Whether an output must stay where it is: another lies in it, it in another, or the same is to be taken again."""
    mine = ways[number]
    for later, other in enumerate(ways):
        if other == mine and later > number:
            return True
        if other != mine and (mine[: len(other)] == other or other[: len(mine)] == mine):
            return True
    return False


class Publisher:
    """Moves outputs into the cache.

    Args:
        cache: The node's.
        outgoing: For the boxes; on the cache's file system.
        at: Told of each step that is done.
    """

    def __init__(self, cache: Cache, outgoing: Path, at: Callable[[str], object] = lambda _: None) -> None:
        self._cache = cache
        self._outgoing = outgoing
        self._at = at

    def publish(self, uid: str, work: int, moving: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Publish what was found; what has been published before stays as it is. Blocks.

        Returns:
            Of each output `name`, `uri`, `size_bytes` and `value`.

        Raises:
            Refused: The task's folder is no longer as it was found.
            OSError: It cannot be done now.
        """
        answers = []
        for number, given in enumerate(moving):
            found = Found(**{**given, "way": tuple(given["way"])})
            try:
                entry = self._publish(self._outgoing / uid / str(number), work, found)
            except Unsafe as error:
                raise Refused("OutputRefused", f"output {found.name!r}: {error}") from error
            answers.append(
                {"name": found.name, "uri": found.uri, "size_bytes": entry.size_bytes, "value": found.value}
            )
        return answers

    def clear(self, uid: str) -> None:
        """Remove the boxes of a pod."""
        shutil.rmtree(self._outgoing / uid, ignore_errors=True)

    def _publish(self, box: Path, work: int, found: Found) -> Entry:
        there = self._cache.find(found.uri)
        if there is not None:
            return there
        payload = box / stored_name(found.way[-1])
        if not os.path.lexists(payload):
            box.mkdir(parents=True, exist_ok=True)
            self._put(work, found, box, payload)
            self._at("moved")
        size = trees.seal(str(payload))
        self._at("sealed")
        entry = Entry(found.uri, size, payload.name, payload.is_dir())
        self._cache.publish(box, entry)
        self._at("published")
        return entry

    def _put(self, work: int, found: Found, box: Path, payload: Path) -> None:
        name = found.way[-1]
        try:
            with safe_paths.folder(work, found.way[:-1]) as parent:
                if found.moves and _renamed(parent, name, payload):
                    return
                part = box / ".part"
                shutil.rmtree(part, ignore_errors=True)
                part.unlink(missing_ok=True)
                trees.copy(parent, name, str(part))
                part.rename(payload)
        except FileNotFoundError as error:
            raise Refused("OutputMissing", f"output {found.name!r} is no longer there") from error


def _renamed(at: int, name: str, target: Path) -> bool:
    """Move it; False if another file system is in between."""
    try:
        os.rename(name, target, src_dir_fd=at)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def as_moving(found: Iterable[Found]) -> tuple[dict[str, Any], ...]:
    """The outputs found, in the form in which the ledger keeps them."""
    return tuple(asdict(one) for one in found)
