"""Outputs: what a task left in its working folder moves into the node's cache, all of it or nothing."""

from __future__ import annotations

import os
import stat

from .records import Record, sync, write_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VALUE_LIMIT = 4096


class Refused(Exception):
    """An output that cannot be published: (reason, message)."""


def find_output(work: str, output: Record) -> str | None:
    """The real path of an output, None if an optional one was not written."""
    path = os.path.join(work, str(output["path"]))
    real, inside = os.path.realpath(path), os.path.realpath(work) + os.sep
    if not real.startswith(inside):
        message = f"output {output['name']!r} leads out of the working folder: {path} is {real}"
        raise Refused("OutputRefused", message)
    if not os.path.lexists(path):
        if output["optional"]:
            return None
        there = sorted({*os.listdir(work)} - {"tmp"})[:20]
        holds = f"holds {', '.join(there)}" if there else "is empty"
        message = f"output {output['name']!r} was not written: looked for {path}; the working folder {holds}"
        raise Refused("OutputMissing", message)
    if not os.path.exists(real):
        raise Refused(
            "OutputMissing", f"output {output['name']!r}: {path} leads to {real}, which is not there"
        )
    return real


def measure(name: object, top: str) -> int:
    """Bytes of a file or tree; refuses what cannot be published."""
    mode = os.lstat(top).st_mode
    if stat.S_ISREG(mode):
        return os.lstat(top).st_size
    if not stat.S_ISDIR(mode):
        raise Refused("OutputRefused", f"output {name!r}: {top} is neither a file nor a folder")
    total = 0
    for folder, folders, files in os.walk(top):
        for entry in folders + files:
            path = os.path.join(folder, entry)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                leads = os.readlink(path)
                inside = os.path.realpath(path).startswith(os.path.realpath(top) + os.sep)
                if leads.startswith("/") or not inside:
                    raise Refused("OutputRefused", f"output {name!r}: {path} leads out of it, to {leads}")
            elif stat.S_ISREG(mode):
                total += os.lstat(path).st_size
            elif not stat.S_ISDIR(mode):
                raise Refused("OutputRefused", f"output {name!r}: {path} is neither a file nor a folder")
    return total


def copy(source: str, target: str) -> None:
    """Copy a file or tree in bytes: never a link."""
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.mkdir(target)
        for name in os.listdir(source):
            copy(os.path.join(source, name), os.path.join(target, name))
    else:
        with open(source, "rb") as reading, open(target, "wb") as writing:
            while block := reading.read(1 << 20):
                writing.write(block)
        os.chmod(target, stat.S_IMODE(os.stat(source).st_mode))


def settle(path: str) -> None:
    """Make a file or tree read-only, and sync its bytes to the disk before its name gets there."""
    if os.path.islink(path):
        return
    if os.path.isdir(path):
        for name in os.listdir(path):
            settle(os.path.join(path, name))
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | 0o700)
        sync(path)
        return
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~0o222 | 0o400)
    os.close(fd)


def linked_elsewhere(path: str) -> bool:
    """Whether its bytes have another name elsewhere (it is a hard link to an input, say)."""
    if os.path.isfile(path):
        return os.stat(path).st_nlink > 1
    return any(
        os.lstat(os.path.join(folder, name)).st_nlink > 1
        for folder, _, files in os.walk(path)
        for name in files
    )


def remove(path: str) -> None:
    """Remove a file or tree."""
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            remove(os.path.join(path, name))
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


def publish(entry: str, source: str, uri: str, size: int, keep: bool) -> None:
    """Move (or, to keep it, copy) a result into the node's cache: one rename, with its record beside it.

    Raises:
        OSError: It cannot be written. The result is where it was, so that this can be done again.
    """
    temporary = f"{os.path.dirname(entry)}/.out-{os.path.basename(entry)}-{os.getpid()}"
    remove(temporary)
    os.mkdir(temporary)
    name = os.path.basename(source)
    payload, directory = f"{temporary}/{name}", os.path.isdir(source)
    # The record first: what finds no room for it has moved nothing.
    write_record(temporary, "meta.json", {"uri": uri, "size": size, "name": name, "directory": directory})
    if keep or linked_elsewhere(source):
        copy(source, payload)
        settle(payload)
    else:
        os.rename(source, payload)
        try:
            settle(payload)
        except OSError:
            os.rename(payload, source)
            raise
    remove(entry)
    os.rename(temporary, entry)
    sync(os.path.dirname(entry))


def text_of(output: Record, path: str) -> str:
    """The recorded text of an output that is a value."""
    if not os.path.isfile(path) or os.path.getsize(path) > VALUE_LIMIT:
        message = f"output {output['name']!r} is a value and may have {VALUE_LIMIT} bytes at most: {path}"
        raise Refused("OutputRefused", message)
    with open(path, "rb") as file:
        return file.read().decode(errors="replace")


def collect(
    work: str,
    outputs: list[Record],
    insist: Callable[[str, str, Callable[[], None]], None] = lambda _what, _target, act: act(),
) -> list[Record]:
    """Publish all outputs, or none: they are all looked at before the first is moved.

    Args:
        work: The task's working folder.
        outputs: As they were ordered.
        insist: Calls what publishes one output, given that output in words and its target; perhaps more than once.
    """
    found: list[tuple[Record, str, int, str | None]] = []
    for output in outputs:
        path = find_output(work, output)
        if path is not None:
            value = text_of(output, path) if output["value"] else None
            found.append((output, path, measure(output["name"], path), value))
    paths = [path for _, path, _, _ in found]
    for number, (output, path, size, _) in enumerate(found):
        within = any(
            other == path or path.startswith(other + os.sep)
            for later, other in enumerate(paths)
            if later != number and (other != path or later > number)
        )
        holds_others = any(other.startswith(path + os.sep) for other in paths)

        def move(
            output: Record = output, path: str = path, size: int = size, keep: bool = within or holds_others
        ) -> None:
            publish(str(output["entry"]), path, str(output["uri"]), size, keep)

        insist(f"output {output['name']!r}", str(output["entry"]), move)
    return [
        {"name": output["name"], "uri": output["uri"], "size": size, "value": value}
        for output, _, size, value in found
    ]
