"""A dataset of a cache as one stream of bytes: a file as it is, a folder as an uncompressed tar stream.

A tar stream is made block by block, and its length is known before it begins: the folder's names are read first, and
nothing in a cache changes any more. Owners are left out; links inside the dataset stay links.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tarfile
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flowsched.cluster.cache import Cache
from flowsched.executor.protocol import Opened

_BLOCK: Final = 1 << 20
_TAR_BLOCK: Final = 512
_END: Final = b"\0" * (2 * _TAR_BLOCK)


@dataclass(frozen=True, slots=True)
class _Member:
    header: bytes
    path: str
    size_bytes: int  #: of its content, which follows the header


async def open_dataset(cache: Cache, uri: str) -> Opened | None:
    """A dataset of a cache, read block by block in threads; None if it is not there."""
    entry = await asyncio.to_thread(cache.find, uri)
    if entry is None:
        return None
    opened = await asyncio.to_thread(open_payload, cache.folder, cache.payload(entry))
    if opened is None:
        return None
    size_bytes, blocks = opened
    return Opened(size_bytes, entry.directory, _in_threads(blocks))


async def _in_threads(blocks: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    while (block := await asyncio.to_thread(next, blocks, None)) is not None:
        yield block


def open_payload(cache: Path, payload: Path) -> tuple[int, Iterator[bytes]] | None:
    """The bytes of a dataset's own file or folder, and how many there are.

    Args:
        cache: The folder that everything read must lie in.
        payload: The file or folder.

    Returns:
        None if it is not there (any more), or not in the cache.
    """
    try:
        real = os.path.realpath(payload, strict=True)
        if not real.startswith(os.path.realpath(cache) + os.sep):
            return None
        if not os.path.isdir(real):
            return _file(real)
        members = list(_members(real, payload.name))
    except OSError:
        return None
    length = sum(len(member.header) + _padded(member.size_bytes) for member in members) + len(_END)
    return length, _stream(members)


def _file(path: str) -> tuple[int, Iterator[bytes]] | None:
    """Opened at once: a dataset that is evicted meanwhile is read to its end all the same."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        return None
    return status.st_size, _content(fd, status.st_size, path)


def _content(fd: int, size_bytes: int, path: str) -> Iterator[bytes]:
    """Exactly so many bytes; a file that is shorter is an error, since its length has been told."""
    with open(fd, "rb", buffering=0) as file:
        left = size_bytes
        while left:
            block = file.read(min(left, _BLOCK))
            if not block:
                raise OSError(f"{path} is {left} bytes shorter than it was")
            left -= len(block)
            yield block


def _members(top: str, name: str) -> Iterator[_Member]:
    """Everything in a folder, parents first, by name: equal folders give equal streams."""
    yield _member(top, name)
    for entry in sorted(os.scandir(top), key=lambda entry: entry.name):
        inner = f"{name}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _members(entry.path, inner)
        else:
            yield _member(entry.path, inner)


def _member(path: str, name: str) -> _Member:
    status = os.lstat(path)
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(status.st_mode) | stat.S_IWUSR  # or nobody could remove what he has unpacked
    info.mtime = int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
    else:
        info.size = status.st_size
    return _Member(info.tobuf(tarfile.PAX_FORMAT), path, info.size)


def _stream(members: list[_Member]) -> Iterator[bytes]:
    for member in members:
        yield member.header
        if member.size_bytes:
            fd = os.open(member.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            yield from _content(fd, member.size_bytes, member.path)
            yield b"\0" * (_padded(member.size_bytes) - member.size_bytes)
    yield _END


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _TAR_BLOCK) * _TAR_BLOCK
