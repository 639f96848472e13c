"""Ranges: one piece of a dataset from its source to a node's partial file, and a dataset of a cache read as one stream of bytes.

A copy is a generator that yields the bytes of each block it has moved, so that its caller decides how fast and in which thread;
everything else blocks. The source says with each range which version it is of (`Section.version`): ranges of two versions are
never put into one file. This machine and the node agents use the same code.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tarfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from pathlib import Path
from typing import Final

import msgspec

from flowsched.cluster.local.runner.safe_paths import Unsafe, open_file, parent, plain_mode
from flowsched.cluster.node.cache import Cache, Dropped, Entry, Header, Partial
from flowsched.cluster.node.origins import NotFetched, Section, Stream
from flowsched.executor.protocol import Opened, Transfer

#: Gives the bytes of a range, from first to last; raises NotFetched.
Opener = Callable[[int, int], Section]
_BLOCK: Final = 1 << 20


class Landed(msgspec.Struct, frozen=True):
    """A dataset or a piece of one that is there. `entry`: the whole dataset, if it is complete; `size_bytes`: of all of it."""

    size_bytes: int
    version: str
    moved_bytes: int
    entry: Entry | None = None


def bring(
    cache: Cache,
    piece: Transfer,
    opened: Opener,
    *,
    room: Callable[[int], object],
    block_bytes: int = _BLOCK,
) -> Generator[int, None, Landed]:
    """Bring one piece, and make the dataset whole if it was the last one. Blocks.

    Args:
        cache: Where to.
        piece: Which, as it was ordered: of a version if that is known, from `source` (None = its origin).
        opened: Where from.
        room: Asked with the dataset's size before its first piece comes; raises NotFetched if there is none.
        block_bytes: To be moved at a time.

    Yields:
        The bytes of each block.

    Raises:
        NotFetched: It cannot be had from there; says how to go on.
        OSError: This node cannot store it.
    """
    there = cache.find(piece.uri)
    if there is not None:
        return Landed(there.size_bytes, there.version, 0, there)
    partial = cache.partials.find(piece.uri)
    if partial is not None and piece.version and partial.header.version != piece.version:
        cache.partials.drop(piece.uri, partial)
        partial = None
    start, end = piece.offset, piece.offset + piece.size_bytes
    moved = 0
    try:
        for first, last in [(start, end)] if partial is None else partial.missing(start, _end(partial, end)):
            if first >= last:
                continue
            section = opened(first, last)
            try:
                partial = _partial_for(cache, piece, section, room)
                moved += yield from _fill(partial, section, first, _end(partial, last), block_bytes, piece)
            finally:
                section.stream.close()
        assert partial is not None
        entry = None
        if partial.complete:
            header = partial.header
            whole = Entry(header.uri, header.size_bytes, header.name, False, header.version)
            entry = cache.publish_partial(partial, whole)
    except Dropped:
        gone = partial is not None and cache.partials.drop(piece.uri, partial)
        why = "what was here of it is gone" if gone else "they changed while they were copied"
        raise NotFetched(f"pieces of {piece.uri} are fetched again: {why}", emptied=gone) from None
    return Landed(partial.header.size_bytes, partial.header.version, moved, entry)


def cached_section(cache: Cache, uri: str, start: int, end: int) -> Section | None:
    """A range of a dataset that a cache has, whole or in this part; None if it has not.

    Raises:
        NotFetched: It is a folder, which has no ranges.
    """
    # It may become whole, and so move, between two looks.
    return _cached_section(cache, uri, start, end) or _cached_section(cache, uri, start, end)


def _cached_section(cache: Cache, uri: str, start: int, end: int) -> Section | None:
    entry = cache.find(uri)
    try:
        if entry is not None:
            if entry.directory:
                raise NotFetched(f"{uri} is a folder, which moves as a whole", undivided=True)
            path, total, version, name, whole = (
                cache.payload(entry), entry.size_bytes, entry.version, entry.name, True
            )  # fmt: skip
            mode = path.stat().st_mode & 0o777
        else:
            partial = cache.partials.find(uri)
            if partial is None or not partial.covers(start, min(end, partial.header.size_bytes)):
                return None
            header = partial.header
            path, total, version, name, whole = (
                partial.path, header.size_bytes, header.version, header.name, False
            )  # fmt: skip
            mode = header.mode
        stream = os.fdopen(open_file(None, os.path.realpath(path)), "rb", buffering=0)
    except (FileNotFoundError, Unsafe):
        return None
    stream.seek(start)
    return Section(stream, total, version, name, mode, whole)


def _end(partial: Partial, end: int) -> int:
    return min(end, partial.header.size_bytes)


def _partial_for(cache: Cache, piece: Transfer, section: Section, room: Callable[[int], object]) -> Partial:
    """The file that a range goes to, if it fits what is there already."""
    known = cache.partials.find(piece.uri)
    expected = piece.version or (known.header.version if known is not None else section.version)
    if section.version != expected:
        if known is not None and known.header.version == expected and piece.source is None:
            cache.partials.drop(piece.uri, known)
        raise _other(piece, section)
    if known is None:
        cache.partials.drop_idle()
        room(section.total)
        header = Header(piece.uri, section.total, section.version, section.name, section.mode)
        known = cache.partials.begin(header)
    if known.header.version != section.version or known.header.size_bytes != section.total:
        raise _other(piece, section)
    return known


def _other(piece: Transfer, section: Section) -> NotFetched:
    """The source has another version than was asked for."""
    if piece.source is not None and not section.whole:
        return NotFetched(f"{piece.source} has pieces of another version of {piece.uri}", lost=True)
    return changed_at(piece.uri, piece.source, section.version)


def changed_at(uri: str, source: str | None, version: str) -> NotFetched:
    """A dataset is another one now, there where it comes from."""
    where = "its origin" if source is None else source
    return NotFetched(
        f"{uri} is another version at {where} than the one that was to be copied (now: {version or 'unknown'})",
        changed=True,
        version=version,
    )


def _fill(
    partial: Partial, section: Section, first: int, last: int, block_bytes: int, piece: Transfer
) -> Generator[int, None, int]:
    """Move a range into the file, and note that it is there."""
    descriptor = partial.open()
    partial.users += 1
    try:
        at = first
        while at < last:
            block = section.stream.read(min(block_bytes, last - at))
            if not block:
                raise NotFetched(f"{piece.uri} ended at byte {at} of {section.total}")
            _write_at(descriptor, block, at)
            at += len(block)
            yield len(block)
        if not section.unchanged():
            raise NotFetched(f"{piece.uri} has changed at its origin while it was read")
        partial.landed(descriptor, first, last)
    finally:
        partial.users -= 1
        os.close(descriptor)
    return max(0, last - first)


def _write_at(descriptor: int, block: bytes, at: int) -> None:
    view = memoryview(block)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def block_stream(section: Section, length: int) -> Iterator[bytes]:
    """Exactly so many bytes of a section, block by block; it is closed at the end. Blocks."""
    return _exactly(section.stream, length, section.name)


def _exactly(stream: Stream, length: int, name: str) -> Generator[bytes, None, None]:
    """Exactly so many bytes of a stream; one that is shorter is an error, since its length has been told."""
    try:
        left = length
        while left:
            block = stream.read(min(left, _BLOCK))
            if not block:
                raise OSError(f"{name} is {left} bytes shorter than it was")
            left -= len(block)
            yield block
    finally:
        stream.close()


# ---- reading: a file as it is, a folder as an uncompressed tar stream ----
#
# A tar stream is made block by block, and its length is known before it begins: the folder's names are read first, and nothing
# in a cache changes any more. Owners are left out; links inside the dataset stay links.


_TAR_BLOCK: Final = 512
_END: Final = b"\0" * (2 * _TAR_BLOCK)


class _Member(msgspec.Struct, frozen=True):
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
    try:
        with parent(path) as at:
            fd = open_file(at, os.path.basename(path))
    except Unsafe:
        return None
    status = os.fstat(fd)
    return status.st_size, _exactly(os.fdopen(fd, "rb", buffering=0), status.st_size, path)


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
    info.mode = plain_mode(status.st_mode) | stat.S_IWUSR  # or the user who unpacks it could not remove it
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
            fd = os.open(member.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            yield from _exactly(os.fdopen(fd, "rb", buffering=0), member.size_bytes, member.path)
            yield b"\0" * (_padded(member.size_bytes) - member.size_bytes)
    yield _END


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _TAR_BLOCK) * _TAR_BLOCK
