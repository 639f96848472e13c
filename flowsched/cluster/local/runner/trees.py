"""Files and trees that a task has left, on their way into a cache: measured, copied and sealed, by descriptor alone.

The runner uses it for the working folder of an attempt, a node's agent for the volumes of a pod.
"""

from __future__ import annotations

import errno
import os
import stat
from threading import Thread

from . import safe_paths
from .safe_paths import DEEPEST, Opened, Unsafe

_BLOCK = 4 << 20
#: Files that wait to be synced at once, and how many threads do it. Small files on an SSD take 2.4 ms each alone, and 0.16 ms so;
#: twice as many of either gain a tenth.
_WAITING = 128
_SYNCING = 16
_NO_CLONE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)


class Measure:
    """The file or folder that was found at a path.

    Args:
        size_bytes: Of the file, or of all files of the folder.
        directory: Whether it is a folder.
        movable: Whether none of its files has another name elsewhere, or an owner that this process cannot replace.
    """

    __slots__ = ("directory", "movable", "size_bytes")

    def __init__(self, size_bytes: int, directory: bool, movable: bool) -> None:
        self.size_bytes, self.directory, self.movable = size_bytes, directory, movable


def measure(at: int, name: str) -> Measure:
    """Measure a file or tree that shall become a dataset.

    Raises:
        Unsafe: It is, or holds, something that a dataset cannot hold: a device, a socket, a link that leads out of it.
    """
    status = os.stat(name, dir_fd=at, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        return Measure(status.st_size, False, status.st_nlink == 1 and _can_be_ours(status))
    if not stat.S_ISDIR(status.st_mode):
        raise Unsafe(f"{name!r} is {safe_paths.kind_of(at, name)}, neither a file nor a folder")
    size, movable = _measure_folder(at, name, (name,))
    return Measure(size, True, movable and _can_be_ours(status))


def _can_be_ours(status: os.stat_result) -> bool:
    return os.geteuid() in (0, status.st_uid)


def _measure_folder(at: int, name: str, way: tuple[str, ...]) -> tuple[int, bool]:
    if len(way) > DEEPEST:
        raise Unsafe(f"{way[0]!r} has more than {DEEPEST} folders in each other")
    total, movable = 0, True
    with Opened(safe_paths.open_folder(at, name)) as fd:
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
                what = safe_paths.kind_of(fd, inner)
                raise Unsafe(f"{'/'.join((*way, inner))!r} is {what}, neither a file nor a folder")
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
        with Opened(safe_paths.open_folder(at, name)) as fd:
            for inner in os.listdir(fd):
                copy(fd, inner, f"{target}/{inner}")
    else:
        with (
            Opened(safe_paths.open_file(at, name)) as reading,
            Opened(safe_paths.new_file(None, target)) as writing,
        ):
            copy_bytes(reading, writing)
            os.fchmod(writing, safe_paths.plain_mode(os.fstat(reading).st_mode) | 0o400)


def copy_bytes(reading: int, writing: int) -> None:
    """Copy a file's bytes, in the kernel where it can: file systems that share blocks then share them."""
    try:
        while os.copy_file_range(reading, writing, _BLOCK):
            pass
    except AttributeError:  # no Linux
        pass
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
    while block := os.read(reading, _BLOCK):  # from where the kernel stopped, which is the end if it did all
        safe_paths.write_all(writing, block)


class Durable:
    """Files and folders that must be on the disk before they get their names.

    Each is synced by itself, and many wait at once: a file system commits all that wait together in the time of one. A `with`
    closes what is left after an error.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._failed: list[OSError] = []

    def __enter__(self) -> Durable:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget what has not been synced."""
        while self._waiting:
            os.close(self._waiting.pop())

    def add(self, fd: int) -> None:
        """Let a file or folder be synced, now or by `settle`. The caller keeps its descriptor.

        Raises:
            OSError: One of those added so far cannot be synced.
        """
        try:
            self._waiting.append(os.dup(fd))
        except OSError:  # this process may open no more files
            os.fsync(fd)
        if len(self._waiting) >= _WAITING:
            self.settle()

    def settle(self) -> None:
        """Wait until all that was added is on the disk.

        Raises:
            OSError: One of them cannot be synced.
        """
        threads = []
        if len(self._waiting) > 1:
            threads = [Thread(target=self._sync) for _ in range(min(len(self._waiting), _SYNCING) - 1)]
        started = []
        for thread in threads:
            try:
                thread.start()
            except RuntimeError:  # the system has no room for another
                break
            started.append(thread)
        self._sync()
        for thread in started:
            thread.join()
        if self._failed:
            failed, self._failed = self._failed, []
            raise failed[0]

    def _sync(self) -> None:
        """Sync what waits, one after the other, until nothing does."""
        while self._waiting:
            try:
                fd = self._waiting.pop()
            except IndexError:  # another thread has the last one
                return
            try:
                os.fsync(fd)
            except OSError as error:
                self._failed.append(error)
            finally:
                os.close(fd)


def seal(path: str | os.PathLike[str], *, outward: bool = False) -> int:
    """Make a file or tree of the cache readable for all users, writable for none, and durable; returns its bytes.

    The owner of each folder becomes this process before the folder is read, so that the task's user can add nothing any more.

    Args:
        path: The file or the top of the tree.
        outward: Links of the tree may lead out of it: all nodes that read it have this machine's files.

    Raises:
        Unsafe: It holds something that a dataset cannot hold. A file with another name elsewhere is one: the task can have put it
            there since it was measured, and the file would change under its other name too.
    """
    top = os.fspath(path)
    with Durable() as durable:
        size = _seal(None, top, (os.path.basename(top),), durable, outward)
        durable.settle()
    return size


def _seal(at: int | None, name: str, way: tuple[str, ...], durable: Durable, outward: bool) -> int:
    mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode) and len(way) > 1:
        if not outward:
            check_link(way, os.readlink(name, dir_fd=at))
        return 0
    if len(way) > DEEPEST:
        raise Unsafe(f"{way[0]!r} has more than {DEEPEST} folders in each other")
    with Opened(safe_paths.open_any(at, name)) as fd:
        status = os.fstat(fd)
        directory = stat.S_ISDIR(status.st_mode)
        if not directory and status.st_nlink > 1:
            raise Unsafe(f"{'/'.join(way)!r} is a file that has another name elsewhere")
        if status.st_uid != os.geteuid():
            os.fchown(fd, os.geteuid(), os.getegid())
        if not directory:
            safe_paths.drop_rights(fd)
        os.fchmod(fd, 0o755 if directory else 0o555 if status.st_mode & 0o111 else 0o444)
        size = status.st_size
        if directory:
            size = sum(_seal(fd, inner, (*way, inner), durable, outward) for inner in os.listdir(fd))
        durable.add(fd)
    return size


def file_version(status: os.stat_result) -> str:
    """The version of a file of this machine: another one has another inode, size, or time of change.

    The kernel sets ctime at each change, and no program can set it back: a file that was moved, touched or copied over is noticed.
    """
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"
