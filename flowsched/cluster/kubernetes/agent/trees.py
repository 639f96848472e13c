"""Files and trees between a cache and a pod's folders: links where the file system can, else copies; and tar streams unpacked.

What a pod has written is only read by descriptor (see `safe_paths`). What lies in the cache is the agent's own, readable for
every user, since a hard link has one owner and one mode for all, and writable for none.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from flowsched.cluster.node import safe_paths
from flowsched.cluster.node.origins import Body
from flowsched.cluster.node.safe_paths import DEEPEST, Unsafe, parts_of

_BLOCK: Final = 4 << 20
#: Why a hard link cannot be made although a copy can: another mount, a file of another user, 65,000 links already.
_COPY_INSTEAD: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP})
_NO_CLONE: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF})

Link = Callable[..., None]  #: os.link


def no_link(*_: object, **__: object) -> None:
    """Refuse to make a link, as between two mounts: what should be linked is copied then."""
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@dataclass(frozen=True, slots=True)
class Measure:
    """What was found at a path."""

    size_bytes: int
    directory: bool
    movable: bool  #: none of its files has another name elsewhere, or an owner that the agent cannot replace


def measure(at: int, name: str) -> Measure:
    """Look at a file or tree that shall become a dataset.

    Raises:
        Unsafe: It is, or holds, something that a dataset cannot hold: a device, a socket, a link that leads out of it.
    """
    status = os.stat(name, dir_fd=at, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        return Measure(status.st_size, False, status.st_nlink == 1 and _can_be_ours(status))
    if not stat.S_ISDIR(status.st_mode):
        raise Unsafe(f"{name!r} is neither a file nor a folder")
    size, movable = _measure_folder(at, name, (name,))
    return Measure(size, True, movable and _can_be_ours(status))


def _can_be_ours(status: os.stat_result) -> bool:
    return os.geteuid() in (0, status.st_uid)


def _measure_folder(at: int, name: str, way: tuple[str, ...]) -> tuple[int, bool]:
    if len(way) > DEEPEST:
        raise Unsafe(f"{way[0]!r} has more than {DEEPEST} folders in each other")
    fd = safe_paths.open_folder(at, name)
    total, movable = 0, True
    try:
        for inner in os.listdir(fd):
            status = os.stat(inner, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                size, inner_movable = _measure_folder(fd, inner, (*way, inner))
                total, movable = total + size, movable and inner_movable and _can_be_ours(status)
            elif stat.S_ISLNK(status.st_mode):
                check_link((*way, inner), os.readlink(inner, dir_fd=fd))
            elif stat.S_ISREG(status.st_mode):
                total += status.st_size
                movable = movable and status.st_nlink == 1 and _can_be_ours(status)
            else:
                raise Unsafe(f"{'/'.join((*way, inner))!r} is neither a file nor a folder")
    finally:
        os.close(fd)
    return total, movable


def check_link(way: tuple[str, ...], target: str) -> None:
    """Let a link inside a dataset pass if, by its text, it leads to somewhere in it. `way[0]` is the dataset's own name.

    Raises:
        Unsafe: It leads out.
    """
    depth = len(way) - 2
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            break
    if target.startswith("/") or depth < 0:
        raise Unsafe(f"{'/'.join(way)!r} leads out of it, to {target}")


def copy(at: int, name: str, target: str) -> None:
    """Copy a file or tree in bytes from a folder that others write to; `target` is new and ours."""
    mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(name, dir_fd=at), target)
    elif stat.S_ISDIR(mode):
        os.mkdir(target, 0o755)
        fd = safe_paths.open_folder(at, name)
        try:
            for inner in os.listdir(fd):
                copy(fd, inner, f"{target}/{inner}")
        finally:
            os.close(fd)
    else:
        reading = safe_paths.open_file(at, name)
        try:
            writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                copy_bytes(reading, writing)
                os.fchmod(writing, stat.S_IMODE(os.fstat(reading).st_mode) & 0o777 | 0o400)
            finally:
                os.close(writing)
        finally:
            os.close(reading)


def copy_bytes(reading: int, writing: int) -> None:
    """Copy a file's bytes, in the kernel where it can: file systems that share blocks then share them."""
    try:
        while os.copy_file_range(reading, writing, _BLOCK):
            pass
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
    while block := os.read(reading, _BLOCK):  # from where the kernel stopped, which is the end if it did all
        safe_paths.write_all(writing, block)


def seal(path: str | Path) -> int:
    """Make a file or tree of the cache readable for all users, writable for none, and durable; returns its bytes.

    The agent takes over the ownership of each folder before it reads it, so that the task's user can add nothing any more.

    Raises:
        Unsafe: It holds something that a dataset cannot hold.
    """
    return _seal(str(path), (os.path.basename(path),))


def _seal(path: str, way: tuple[str, ...]) -> int:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode) and len(way) > 1:
        check_link(way, os.readlink(path))
        return 0
    if len(way) > DEEPEST or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise Unsafe(f"{'/'.join(way)!r} is neither a file nor a folder")
    directory = stat.S_ISDIR(mode)
    flags = os.O_DIRECTORY if directory else os.O_NONBLOCK
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            os.fchown(fd, os.geteuid(), os.getegid())
        os.fchmod(fd, 0o755 if directory else 0o555 if mode & 0o111 else 0o444)
        size = 0 if directory else os.fstat(fd).st_size
        if directory:
            size = sum(_seal(f"{path}/{name}", (*way, name)) for name in os.listdir(fd))
        os.fsync(fd)
    finally:
        os.close(fd)
    return size


def place(source: str, at: int, name: str, link: Link = os.link) -> None:
    """Put a file or tree of the cache into a folder. It replaces whatever has the name there.

    Files are hard links, or copies where the system refuses a link; folders are made, links inside stay links.
    """
    safe_paths.remove(at, name)
    _place(source, at, name, link)


def _place(source: str, at: int, name: str, link: Link) -> None:
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), name, dir_fd=at)
    elif stat.S_ISDIR(mode):
        safe_paths.make_folder(at, name, 0o755)
        fd = safe_paths.open_folder(at, name)
        try:
            for inner in os.listdir(source):
                _place(f"{source}/{inner}", fd, inner, link)
        finally:
            os.close(fd)
    else:
        try:
            link(source, name, dst_dir_fd=at, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _COPY_INSTEAD:
                raise
            _copy_file(source, at, name, mode)


def _copy_file(source: str, at: int, name: str, mode: int) -> None:
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        writing = os.open(name, flags, 0o600, dir_fd=at)
        try:
            copy_bytes(reading, writing)
            os.fchmod(writing, stat.S_IMODE(mode))
        finally:
            os.close(writing)
    finally:
        os.close(reading)


# ---- a folder that comes as a tar stream, unpacked so that nothing of it can land anywhere else ----
#
# The tolerance of other tools for hostile archives does not matter: only files, folders and links are made, each under a folder
# that this stream has made itself before, and never through a link.


_UNPACK_BLOCK: Final = 256 << 10


def unpack(stream: Body, target: Path) -> Generator[int, None, int]:
    """Unpack a stream. All its members lie in one top folder, which becomes `target`.

    Args:
        stream: Read from its beginning; what follows the last member is left there.
        target: A path that does not exist yet, in a folder of ours.

    Yields:
        The bytes of the stream that have come since the last time.

    Returns:
        The bytes of all files.

    Raises:
        Unsafe: The stream asks for something that a dataset cannot hold. What has been unpacked stays.
        tarfile.TarError: It is no tar stream.
    """
    made: set[tuple[str, ...]] = set()
    total = seen = 0
    with tarfile.open(fileobj=cast("BinaryIO", stream), mode="r|", bufsize=_UNPACK_BLOCK) as tar:
        for member in tar:
            tar.members.clear()  # type: ignore[attr-defined]  # it would remember every one
            way = parts_of(member.name)
            if len(way) == 1 and member.isdir() and not made:
                os.mkdir(target, 0o755)
                made.add(way)
                continue
            if way[:-1] not in made:
                raise Unsafe(f"{member.name[:200]!r} lies in no folder of the stream")
            for written in _make(tar, member, "/".join((str(target), *way[1:])), way):
                total += written
                if stream.came_bytes > seen:
                    came, seen = stream.came_bytes - seen, stream.came_bytes
                    yield came
            if member.isdir():
                made.add(way)
    if not made:
        raise Unsafe("the stream holds no folder")
    return total


def _make(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, way: tuple[str, ...]) -> Iterator[int]:
    """Make one member, and yield the bytes of each block; a name that is there already is an error of the system (EEXIST)."""
    if member.isdir():
        os.mkdir(path, 0o755)
    elif member.issym():
        check_link(way, member.linkname)
        os.symlink(member.linkname, path)
    elif member.isreg():
        content = tar.extractfile(member)
        assert content is not None
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            os.fchmod(fd, member.mode & 0o777 | 0o400)
            while block := content.read(_UNPACK_BLOCK):
                file.write(block)
                yield len(block)
    else:
        raise Unsafe(f"{member.name[:200]!r} is neither a file nor a folder nor a link")
    yield 0
