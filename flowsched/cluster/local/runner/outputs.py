"""Outputs: the files that a task left in its working folder move into the node's cache, all or none.

The task can replace whatever it can write to. So the caller opens the working folder once, as the folder that the task was given.
From that descriptor on every name is a step of its own (`safe_paths`), and moved files are measured again (`trees.seal`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence

from . import safe_paths, trees
from .records import Record, sync, write_record
from .safe_paths import Opened, Unsafe

VALUE_LIMIT = 4096
#: Names that a dataset's own record has beside it.
_RECORDS = ("meta.json", "meta.json.tmp")


class Refused(Exception):
    """An output that cannot be published: (reason, message)."""


class Found:
    """An output that is there.

    Args:
        name: Of the output.
        uri: Of the dataset that it becomes.
        way: The names that lead to it, over no link.
        value: The text of an output that is a value.
        moves: Whether it moves. False if its bytes are needed where they are, or belong to another file too.
        size: Bytes, as it was measured.
        directory: Whether it is a folder.
    """

    __slots__ = ("directory", "moves", "name", "size", "uri", "value", "way")

    def __init__(
        self,
        name: str,
        uri: str,
        way: Sequence[str],
        value: str | None,
        moves: bool,
        size: int = 0,
        directory: bool = False,
    ) -> None:
        self.name, self.uri, self.way, self.value, self.moves = name, uri, tuple(way), value, moves
        self.size, self.directory = size, directory

    def record(self) -> Record:
        """The arguments that make it again."""
        return {name: getattr(self, name) for name in self.__slots__}


def find_outputs(
    work: int, outputs: Iterable[Record], mounted_at: Sequence[str] = (), shown: str = ""
) -> list[Found]:
    """Find all outputs of a task.

    Args:
        work: Its working folder.
        outputs: `name`, `path`, `uri`, `optional` and `value` of each that it should have left there.
        mounted_at: Where the task had its working folder, for absolute links to there.
        shown: The folder in messages.

    Raises:
        Refused: One is not there, or cannot be published.
    """
    found: list[Found] = []
    for output in outputs:
        try:
            one = _find_output(work, output, mounted_at, shown)
        except Unsafe as error:
            raise Refused("OutputRefused", f"output {output['name']!r}: {error}") from error
        if one is not None:
            found.append(one)
    for number, one in enumerate(found):
        one.moves = one.moves and not _needed(number, found)
    return found


def _find_output(work: int, output: Record, mounted_at: Sequence[str], shown: str) -> Found | None:
    name, path = str(output["name"]), str(output["path"])
    way = safe_paths.resolve(work, path, mounted_at)
    if way is None:
        if output["optional"]:
            return None
        there = sorted({*os.listdir(work)} - {"tmp"})[:20]
        holds = f"holds {', '.join(there)}" if there else "is empty"
        where = os.path.join(shown, path)
        message = f"output {name!r} was not written: looked for {where}; the working folder {holds}"
        raise Refused("OutputMissing", message)
    with safe_paths.folder(work, way[:-1]) as parent:
        measured = trees.measure(parent, way[-1])
        value = _value(name, path, parent, way[-1], measured) if output["value"] else None
    size, directory = measured.size_bytes, measured.directory
    return Found(name, str(output["uri"]), way, value, measured.movable, size, directory)


def _value(output: str, path: str, at: int, name: str, measured: trees.Measure) -> str:
    """The recorded text of an output that is a value."""
    if measured.directory or measured.size_bytes > VALUE_LIMIT:
        message = f"output {output!r} is a value and may have {VALUE_LIMIT} bytes at most: {path}"
        raise Refused("OutputRefused", message)
    with Opened(safe_paths.open_file(at, name)) as fd:
        return os.read(fd, VALUE_LIMIT).decode(errors="replace")


def _needed(number: int, found: Sequence[Found]) -> bool:
    """Whether an output must stay where it is: another lies in it, it in another, or the same is to be taken again."""
    mine = found[number].way
    for later, other in enumerate(each.way for each in found):
        if other == mine and later > number:
            return True
        if other != mine and (mine[: len(other)] == other or other[: len(mine)] == mine):
            return True
    return False


def move_out(work: int, found: Found, payload: str) -> bool:
    """Move or copy an output out of the working folder. `payload` is new and ours. Returns whether it has moved.

    Raises:
        Refused: It is no longer there.
        Unsafe: Another thing is there now.
        OSError: It cannot be done now. It is where it was.
    """
    try:
        with safe_paths.folder(work, found.way[:-1]) as parent:
            if found.moves:
                try:
                    os.rename(found.way[-1], payload, src_dir_fd=parent)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                else:
                    return True
            part = f"{os.path.dirname(payload)}/.part"
            safe_paths.remove(None, part)
            trees.copy(parent, found.way[-1], part)
            os.rename(part, payload)
    except FileNotFoundError as error:
        raise Refused("OutputMissing", f"output {found.name!r} is no longer there") from error
    return False


def publish(entry: str, work: int, found: Found) -> None:
    """Move (or, to keep it, copy) a result into the node's cache: one rename, with its record beside it.

    Raises:
        Refused: It is not what was found any more.
        OSError: It cannot be written. The result is where it was, so that this can be done again.
    """
    temporary = f"{os.path.dirname(entry)}/.out-{os.path.basename(entry)}-{os.getpid()}"
    safe_paths.remove(None, temporary)
    os.mkdir(temporary)
    name = "data" if found.way[-1] in _RECORDS else found.way[-1]
    payload = f"{temporary}/{name}"
    # The record first: if it finds no room, nothing has moved.
    write_record(
        temporary,
        "meta.json",
        {"uri": found.uri, "size": found.size, "name": name, "directory": found.directory},
    )
    try:
        moved = move_out(work, found, payload)
        try:
            size = trees.seal(payload)
        except OSError:
            if moved:
                with safe_paths.folder(work, found.way[:-1]) as parent:
                    os.rename(payload, found.way[-1], dst_dir_fd=parent)
            raise
        if size != found.size:
            raise Unsafe(f"it had {found.size} bytes when the task ended, and {size} when it was taken")
    except Unsafe as error:
        safe_paths.remove(None, temporary)
        raise Refused("OutputRefused", f"output {found.name!r} was replaced: {error}") from error
    safe_paths.remove(None, entry)
    os.rename(temporary, entry)
    sync(os.path.dirname(entry))


def collect(
    work: int,
    outputs: list[Record],
    shown: str,
    insist: Callable[[str, str, Callable[[], None]], None] = lambda _what, _target, act: act(),
) -> list[Record]:
    """Publish all outputs, or none: all are found before the first is moved.

    Args:
        work: The task's working folder.
        outputs: As they were ordered.
        shown: The path of the folder, as the task knew it.
        insist: Calls what publishes one output, given that output in words and its target; perhaps more than once.
    """
    # A task may name its folder by its path without links, too: as text it only makes a link relative to the descriptor.
    published = find_outputs(work, outputs, (shown, os.path.realpath(shown)), shown)
    entries = {str(output["uri"]): str(output["entry"]) for output in outputs}
    for found in published:
        entry = entries[found.uri]
        insist(f"output {found.name!r}", entry, lambda entry=entry, found=found: publish(entry, work, found))  # type: ignore[misc]
    return [
        {"name": found.name, "uri": found.uri, "size": found.size, "value": found.value}
        for found in published
    ]
