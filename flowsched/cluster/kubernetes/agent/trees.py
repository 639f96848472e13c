"""Files and trees of a cache in a pod's folders: links where the file system can, else copies; and tar streams unpacked.

The files in the cache are the agent's own, readable for every user, since a hard link has one owner and one mode for all, and
writable for none (`runner.trees`, which also takes what a pod has written).
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from flowsched.cluster.local.runner import safe_paths
from flowsched.cluster.local.runner.safe_paths import Opened, Unsafe, parts_of
from flowsched.cluster.local.runner.trees import check_link, copy_bytes
from flowsched.cluster.node.origins import Body

#: Why a hard link cannot be made although a copy can: another mount, a file of another user, 65,000 links already.
_COPY_INSTEAD: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP})

Link = Callable[..., None]  #: os.link


def no_link(*_: object, **__: object) -> None:
    """Refuse to make a link, as between two mounts: the agent copies the file then."""
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def place(source: str, at: int, name: str, link: Link = os.link) -> None:
    """Put a file or tree of the cache into a folder. It replaces whatever has the name there.

    Files are hard links, or copies where the system refuses a link; folders are made, links inside stay links.
    """
    safe_paths.remove(at, name)
    _place(source, at, name, link)


def _place(source: str, at: int, name: str, link: Link) -> None:
    status = os.lstat(source)
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), name, dir_fd=at)
    elif stat.S_ISDIR(mode):
        safe_paths.make_folder(at, name, 0o755)
        with Opened(safe_paths.open_folder(at, name)) as fd:
            for inner in os.listdir(source):
                _place(f"{source}/{inner}", fd, inner, link)
    else:
        try:
            link(source, name, dst_dir_fd=at, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _COPY_INSTEAD:
                raise
            with (
                Opened(safe_paths.open_file(None, source)) as reading,
                Opened(safe_paths.new_file(at, name)) as writing,
            ):
                copy_bytes(reading, writing)
                os.fchmod(writing, safe_paths.plain_mode(mode))
                os.utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))


# ---- a folder that comes as a tar stream, unpacked so that nothing of it can land anywhere else ----
#
# The tolerance of other tools for hostile archives does not matter: only files, folders and links are made, each under a folder
# that this stream has made itself before, and never through a link.


_UNPACK_BLOCK: Final = 256 << 10


def unpack(stream: Body, target: Path) -> Generator[int, None, int]:
    """Unpack a stream. All its members lie in one top folder, which becomes `target`.

    Args:
        stream: Read from its beginning; bytes behind the last member are left there.
        target: A path that does not exist yet, in a folder of ours.

    Yields:
        The bytes of the stream that have come since the last time.

    Returns:
        The bytes of all files.

    Raises:
        Unsafe: The stream asks for something that a dataset cannot hold. The files that were unpacked before stay.
        tarfile.TarError: It is no tar stream.
    """
    made: set[tuple[str, ...]] = set()
    total = counted = 0
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
                if stream.came_bytes > counted:
                    came, counted = stream.came_bytes - counted, stream.came_bytes
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
        with open(safe_paths.new_file(None, path), "wb", buffering=0) as file:
            os.fchmod(file.fileno(), member.mode & 0o777 | 0o400)
            while block := content.read(_UNPACK_BLOCK):
                file.write(block)
                yield len(block)
    else:
        raise Unsafe(f"{member.name[:200]!r} is neither a file nor a folder nor a link")
    yield 0
