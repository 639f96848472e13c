"""Paths below a folder that a task can write to: every step by descriptor, no link is followed unseen.

A task can replace any name that it can write by a link, a named pipe or another folder, between a check and the
use of the checked name. So each part of a path is opened from the descriptor of the part before it, with O_NOFOLLOW, and the
descriptor is checked before it is read. Everything here blocks. Standard library alone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Sequence

#: Links that may lie on one way, as in the kernel.
_MOST_LINKS = 40
#: Folders that may lie in each other. Everything that walks a tree does it by recursion.
DEEPEST = 200
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: To go through a folder needs no right to read it, where the system has O_PATH.
_THROUGH = _FOLDER | getattr(os, "O_PATH", 0)
#: Without O_NONBLOCK the opening of a named pipe would wait for ever.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: A mode of folders that are made: see `folder`.
BY_UMASK = -1
_KINDS = (
    (stat.S_ISREG, "a file"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


#: The answer of `kind_of` where nothing has the name.
GONE = "no longer there"


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


def kind_of(at: int | None, name: str) -> str:
    """The kind of entry that has a name now, in words."""
    try:
        mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return f"a link to {os.readlink(name, dir_fd=at)}"
    except FileNotFoundError:
        return GONE
    except OSError as error:
        return f"not to be looked at ({error.strerror})"
    return next((words for fits, words in _KINDS if fits(mode)), "a device")


class Opened:
    """A descriptor that a `with` closes at its end."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __enter__(self) -> int:
        """The descriptor."""
        return self.fd

    def __exit__(self, *_: object) -> None:
        """Close it."""
        os.close(self.fd)


def folder(at: int | None, names: Sequence[str], *, make: int | None = None) -> Opened:
    """Open the folder at the end of some names; missing folders are made with mode `make`, if that is given.

    Args:
        at: The folder that the first name is in; None = the root of the file system.
        names: Of folders, each in the one before it.
        make: The mode, whatever the umask; `BY_UMASK` = what the umask leaves of 0o777.

    Raises:
        Unsafe: A link or a file lies on the way.
        FileNotFoundError: A part is not there.
    """
    fd = os.open("/", _FOLDER) if at is None else os.dup(at)
    last = len(names) - 1
    try:
        for number, name in enumerate(names):
            try:
                inner = open_folder(fd, name, _FOLDER if number == last else _THROUGH)
            except PermissionError:
                inner = open_folder(fd, name, _THROUGH)
            except FileNotFoundError:
                if make is None:
                    raise
                make_folder(fd, name, make)
                inner = open_folder(fd, name)
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return Opened(fd)


def parent(path: str, *, make: int | None = None) -> Opened:
    """Open the folder that an absolute path lies in, over no link: the caller has followed those that may be there.

    Raises:
        Unsafe: A link or a file lies on the way now.
        FileNotFoundError: A part is not there.
    """
    return folder(None, [name for name in os.path.dirname(path).split("/") if name], make=make)


def open_mounted(path: str) -> int:
    """Open whatever lies at an absolute path, to be mounted elsewhere, over no link.

    Raises:
        Unsafe: A link lies on the way, or at the end, now.
    """
    with parent(path) as at:
        name = os.path.basename(path) or "/"
        fd = os.open(name, os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_NONBLOCK), dir_fd=at)
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            os.close(fd)
            raise Unsafe(f"{path!r} is {kind_of(at, name)}")
    return fd


def open_folder(at: int | None, name: str, flags: int = _FOLDER) -> int:
    """Open a folder in a folder. `at`: None = `name` is an absolute path.

    Raises:
        Unsafe: It is a link or a file.
    """
    try:
        return os.open(name, flags, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Unsafe(f"{name!r} is {kind_of(at, name)} and no folder") from error
        raise


def open_file(at: int | None, name: str, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
    """Open an ordinary file, for reading unless the flags say otherwise. `at`: None = `name` is an absolute path.

    Raises:
        Unsafe: It is anything else.
    """
    try:
        fd = os.open(name, flags | _FILE, mode, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise Unsafe(f"{name!r} is {kind_of(at, name)} and no ordinary file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Unsafe(f"{name!r} is {kind_of(at, name)} and no ordinary file")
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
        raise Unsafe(f"{name!r} is {kind_of(at, name)}, neither a file nor a folder")
    return open_file(at, name)


def make_folder(at: int, name: str, mode: int) -> bool:
    """Make a folder with exactly this mode, whatever the umask; False if something of the name is there."""
    try:
        os.mkdir(name, 0o777 if mode == BY_UMASK else 0o700, dir_fd=at)
    except FileExistsError:
        return False
    if mode == BY_UMASK:
        return True
    fd = open_folder(at, name)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
    return True


def temporary_name() -> str:
    """A name for what is half done, beside its target. Another account that writes there cannot put a link in its way."""
    return f".flowsched-{os.urandom(8).hex()}"


def replace_file(path: str, fill: Callable[[int], object]) -> None:
    """Write a file at an absolute path, whole or not at all; missing folders are made. Its mode is what the umask leaves.

    Args:
        path: Of the file; another one of the name is replaced.
        fill: Writes to the descriptor of the new file.

    Raises:
        Unsafe: A link lies on the way: the caller has followed those that may be there.
        OSError: It cannot be written.
    """
    temporary = temporary_name()
    with parent(path, make=BY_UMASK) as at:
        try:
            with Opened(new_file(at, temporary)) as fd:
                fill(fd)
            os.rename(temporary, os.path.basename(path), src_dir_fd=at, dst_dir_fd=at)
        finally:
            remove(at, temporary)


def new_file(at: int | None, name: str) -> int:
    """Open a new file for writing; its mode is what the umask leaves. Raises FileExistsError, also for a link of the name.

    `at`: None = `name` is an absolute path.
    """
    return os.open(
        name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=at
    )


def plain_mode(mode: int) -> int:
    """The mode of a copy: a set-user-id or set-group-id file would give its owner's rights to every account that runs it."""
    return mode & 0o777


def gives_rights(file: int | str) -> bool:
    """Whether a file gives rights to the account that runs it (by its mode or capabilities), or belongs to another account.

    Such a file gets no second name: flowsched delivers a copy without any of that.

    Args:
        file: Its descriptor, or its path.
    """
    status = os.stat(file)
    return (
        plain_mode(status.st_mode) != stat.S_IMODE(status.st_mode)
        or status.st_uid != os.geteuid()
        or _is_capable(file)
    )


def drop_rights(fd: int) -> None:
    """Take from an open file what it gives to the account that runs it. Only its owner and root can."""
    status = os.fstat(fd)
    if plain_mode(status.st_mode) != stat.S_IMODE(status.st_mode):
        os.fchmod(fd, plain_mode(status.st_mode))
    if _is_capable(
        fd
    ):  # a change of the owner removes them, where this process may not remove the attribute itself
        os.fchown(fd, -1, -1)


def _is_capable(file: int | str) -> bool:
    try:
        return bool(os.getxattr(file, "security.capability"))
    except (OSError, AttributeError):  # there is none; or this is not Linux
        return False


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


def put_file(at: int, name: str, text: str, mode: int, *, durable: bool = False) -> None:
    """Write a file, wholly or not at all; a file of its name is replaced. `durable`: it is on the disk when this returns."""
    temporary = f"{name}.tmp"
    with Opened(write_file(at, temporary, text, mode)) as fd:
        if durable:
            os.fsync(fd)
    try:
        os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    except IsADirectoryError:  # a task's
        remove(at, name)
        os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    if durable:
        os.fsync(at)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_text(fd: int, text: str) -> None:
    """Write a text of a document, which may have lone surrogates."""
    write_all(fd, text.encode("utf-8", "surrogatepass"))


def remove(at: int | None, name: str) -> None:
    """Remove a file, link or tree, if it is there, also folders that a task has made read-only. Links are never followed.

    Args:
        at: The folder that it is in; None = `name` is an absolute path.
        name: Its name.

    Raises:
        OSError: Not all of it can be removed. The rest is gone.
    """
    try:
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # POSIX lets unlink of a folder be either
        if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            raise
        _remove_folder(at, name)


def _remove_folder(at: int | None, name: str) -> None:
    try:
        fd = open_folder(at, name)
    except FileNotFoundError:
        return
    except Unsafe:  # it has become something else meanwhile
        remove(at, name)
        return
    except PermissionError:
        _open_up(at, name)
        fd = open_folder(at, name)
    failed: OSError | None = None
    with Opened(fd):
        if os.fstat(fd).st_mode & 0o300 != 0o300:
            os.fchmod(fd, 0o700)
        for inner in os.listdir(fd):
            try:
                remove(fd, inner)
            except OSError as error:
                failed = error
    if failed is not None:
        raise failed
    os.rmdir(name, dir_fd=at)


def _open_up(at: int | None, name: str) -> None:
    """Let the owner of a folder read it. A link of the name is not followed."""
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, 0o700, dir_fd=at, follow_symlinks=False)
        return
    with Opened(os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)) as fd:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)


def resolve(at: int, path: str, mounted_at: Sequence[str] = ()) -> tuple[str, ...] | None:
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


def _from_mount(path: str, target: str, mounted_at: Sequence[str]) -> str:
    """An absolute link as one that is relative to the folder."""
    for top in mounted_at:
        if target.startswith(f"{top.rstrip('/')}/"):
            return target[len(top.rstrip("/")) + 1 :]
    raise Unsafe(f"{path!r} leads out of the folder, to {target}")
