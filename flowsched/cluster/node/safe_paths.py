"""Paths below a folder that strangers have written to: every step by descriptor, no link is followed unseen.

Looking first and opening then would be a race: what was a folder may be a link a moment later. So each part of a path is
opened from the descriptor of the one before it, with O_NOFOLLOW. Everything here blocks.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

#: Links that may lie on one way, as in the kernel.
_MOST_LINKS: Final = 40
#: Folders that may lie in each other. Everything that walks a tree does it by recursion.
DEEPEST: Final = 200
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Without O_NONBLOCK the opening of a named pipe would wait for ever.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Unsafe(Exception):
    """A path that leads out of its folder, or over a link or something else that it must not lead over."""


def parts_of(path: str) -> tuple[str, ...]:
    """The names of a relative path, of which there is at least one.

    Raises:
        Unsafe: It is absolute, empty, has `..` in it, or a name that no file can have.
    """
    if path.startswith("/") or "\0" in path:
        raise Unsafe(f"{path!r} is not a relative path")
    names = tuple(name for name in path.split("/") if name not in ("", "."))
    if not names or ".." in names:
        raise Unsafe(f"{path!r} does not stay below the folder it is relative to")
    try:
        if any(len(os.fsencode(name)) > 255 for name in names) or len(names) > DEEPEST:
            raise Unsafe(f"a name in {path[:200]!r} is longer than 255 bytes, or it has more than {DEEPEST}")
    except UnicodeEncodeError as error:
        raise Unsafe(f"{path!r} has a lone surrogate in it") from error
    return names


@contextmanager
def folder(at: int, names: Sequence[str], *, make: int | None = None) -> Iterator[int]:
    """Open the folder at the end of some names; what is missing is made with mode `make`, if that is given.

    Raises:
        Unsafe: A link or a file lies on the way.
        FileNotFoundError: A part is not there.
    """
    fd = os.dup(at)
    try:
        for name in names:
            if make is not None:
                make_folder(fd, name, make)
            inner = open_folder(fd, name)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def open_folder(at: int | None, name: str) -> int:
    """Open a folder in a folder.

    Raises:
        Unsafe: It is a link or a file.
    """
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Unsafe(f"{name!r} is a link or no folder") from error
        raise


def open_file(at: int | None, name: str) -> int:
    """Open an ordinary file for reading.

    Raises:
        Unsafe: It is anything else.
    """
    try:
        fd = os.open(name, _FILE, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Unsafe(f"{name!r} is a link, or no ordinary file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Unsafe(f"{name!r} is no ordinary file")
    return fd


def open_any(at: int | None, name: str) -> int:
    """Open an ordinary file or a folder for reading. `at`: None = `name` is an absolute path.

    Raises:
        Unsafe: It is anything else.
    """
    mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        return open_folder(at, name)
    if not stat.S_ISREG(mode):
        raise Unsafe(f"{name!r} is neither a file nor a folder")
    return open_file(at, name)


def make_folder(at: int, name: str, mode: int) -> bool:
    """Make a folder with exactly this mode, whatever the umask; False if something of the name is there."""
    try:
        os.mkdir(name, 0o700, dir_fd=at)
    except FileExistsError:
        return False
    fd = open_folder(at, name)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
    return True


def write_file(at: int, name: str, text: str, mode: int) -> int:
    """Write a new file; one of the name is replaced. Returns its descriptor, which the caller closes."""
    remove(at, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=at)
    try:
        write_all(fd, text.encode())
        os.fchmod(fd, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_all(fd: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def remove(at: int, name: str) -> None:
    """Remove a file, link or tree, if it is there. Links are never followed."""
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # POSIX lets unlink of a folder be either
        with suppress(FileNotFoundError):
            shutil.rmtree(name, dir_fd=at)


def resolve(at: int, path: str, mounted_at: str | None = None) -> tuple[str, ...] | None:
    """The names of what a path means when the links on its way are followed, also the last; None if it is not there.

    Args:
        at: The folder that it must stay below.
        path: Relative to the folder.
        mounted_at: Where the folder lies for the program that made the links: an absolute link to there leads inside.

    Raises:
        Unsafe: It leads out, or round in a circle.
    """
    ahead = deque(parts_of(path))
    reached: list[str] = []
    links = 0
    while ahead:
        name = ahead.popleft()
        if name == "..":
            if not reached:
                raise Unsafe(f"{path!r} leads out of the folder")
            reached.pop()
            continue
        target = _link_in(at, (*reached, name))
        if target is None:
            return None
        if target == "":
            reached.append(name)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise Unsafe(f"{path!r} leads round in a circle")
        if target.startswith("/"):
            reached, target = [], _from_mount(path, target, mounted_at)
        ahead.extendleft(name for name in reversed(target.split("/")) if name not in ("", "."))
    if not reached:
        raise Unsafe(f"{path!r} is the folder itself")
    return tuple(reached)


def _link_in(at: int, names: Sequence[str]) -> str | None:
    """Where a link leads; "" for what is no link, None for what is not there."""
    try:
        with folder(at, names[:-1]) as fd:
            if not stat.S_ISLNK(os.stat(names[-1], dir_fd=fd, follow_symlinks=False).st_mode):
                return ""
            return os.readlink(names[-1], dir_fd=fd)
    except FileNotFoundError:
        return None


def _from_mount(path: str, target: str, mounted_at: str | None) -> str:
    """An absolute link as one that is relative to the folder."""
    inside = f"{mounted_at.rstrip('/')}/" if mounted_at else None
    if inside and target.startswith(inside):
        return target[len(inside) :]
    raise Unsafe(f"{path!r} leads out of the folder, to {target}")
