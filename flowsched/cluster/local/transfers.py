"""Transfers: bytes into a node's cache, from another node's or from their origin, under the nodes' bandwidths.

Bytes are really read and written, in blocks; after each block a flow waits until every bucket on its way has let it pass: the
source's disk and network, or the origin's rate, and the destination's network and disk. Flows that share a bucket take turns,
block by block. Large datasets move in pieces, several at a time, from several places (`node.ranges`).
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import structlog

from flowsched.cluster.local.space import is_full, no_room, shortage
from flowsched.cluster.local.virtual_nodes import Site
from flowsched.cluster.node.cache import Cache, Entry, file_name
from flowsched.cluster.node.origins import NotFetched, Origins, Section, failure, file_section
from flowsched.cluster.node.ranges import Landed, Piece, bring, held_section
from flowsched.cluster.node.rates import TokenBucket
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Published, ReplicaSeen, Transfer, TransferDone, TransferFailed

log = structlog.get_logger(__name__)
T = TypeVar("T")

_BLOCK_MIN: Final = 64 << 10
_BLOCK_MAX: Final = 4 << 20
#: A block takes about so long at the slowest bucket, so that flows take turns often enough.
_BLOCK_S: Final = 0.05


@dataclass(slots=True)
class Traffic:
    """Bytes that have come to a node and gone from it."""

    in_bytes: int = 0
    out_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Links:
    """The buckets of one node."""

    disk: TokenBucket
    nic_in: TokenBucket
    nic_out: TokenBucket

    @staticmethod
    def of(node: NodeInfo) -> Links:
        """Fresh ones."""
        rates = (node.disk_rate, node.nic_in_rate, node.nic_out_rate)
        return Links(*map(TokenBucket, rates))


class Staging:
    """The transfers between caches.

    Args:
        site: Where the cluster is; events are reported to it.
        caches: By node.
        origins: Where datasets come from.
        now, sleep: Of the buckets; default the running loop's clock.
        threads: For reading and writing.
    """

    def __init__(
        self,
        site: Site,
        caches: Mapping[str, Cache],
        origins: Origins,
        *,
        now: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        threads: int = 8,
    ) -> None:
        self._site = site
        self._caches = caches
        self._origins = origins
        self._now = now or asyncio.get_running_loop().time
        self._sleep = sleep
        self._links = {name: Links.of(node) for name, node in site.nodes.items()}
        self._origin_link = TokenBucket(origins.rate)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="staging")
        self._under_way: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unclaimed: dict[tuple[str, str], int] = {}
        self.traffic: dict[str, Traffic] = defaultdict(Traffic)
        self.moved_bytes: Counter[str] = Counter()  #: per dataset, over all its transfers

    def transfer(self, orders: Sequence[Transfer]) -> None:
        """Start copying. A second order for what is already on its way waits for the first."""
        for order in orders:
            key = (order.uri, order.dest, order.offset if not order.whole else -1)
            task = asyncio.create_task(
                self._carry_out(order, self._under_way.get(key)), name=f"to {order.dest}"
            )
            self._under_way[key] = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop copying. What is half there is removed at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=True)

    def charge(self, uri: str, node: str, remote: str | None = None) -> tuple[int, int]:
        """(found on the node, brought there) bytes of an input: the first to use what was brought is charged.

        Args:
            uri: The input.
            node: Where the task that reads it runs.
            remote: The node that it is read from; None = `node` itself.
        """
        if remote is not None:
            there = self._caches[remote].entries.get(uri) if remote in self._caches else None
            return 0, there.size_bytes if there else 0
        entry = self._caches[node].entries.get(uri)
        size = entry.size_bytes if entry else 0
        moved = min(size, self._unclaimed.pop((uri, node), 0))
        return size - moved, moved

    def published(self, node: str, outputs: Sequence[Published]) -> None:
        """Take note of what a runner has put into a node's cache."""
        cache = self._caches.get(node)
        for output in outputs if cache is not None else ():
            assert cache is not None
            cache.refresh(output.uri)

    # --- one transfer ----------------------------------------------------------------------------------------

    async def _carry_out(self, order: Transfer, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            landed = await (self._bring(order) if order.whole else self._bring_piece(order))
        except NotFetched as error:
            self._site.report(self._failed(order, error))
        except OSError as error:
            why = no_room(self._cache_at(order.dest).folder, error) if is_full(error) else str(error)
            failed = self._failed(order, NotFetched(f"cannot copy {order.uri} to {order.dest}: {why}"))
            self._site.report(replace(failed, full=is_full(error)))
        else:
            done = TransferDone(
                order.uri, order.dest, self._site.clock(), landed.moved_bytes, order.source, landed.size_bytes,
                order.offset, landed.entry is not None, landed.version,
            )  # fmt: skip
            self._site.report(done)
        finally:
            key = (order.uri, order.dest, order.offset if not order.whole else -1)
            if self._under_way.get(key) is asyncio.current_task():
                del self._under_way[key]

    def _failed(self, order: Transfer, error: NotFetched) -> TransferFailed:
        log.info("transfer failed", uri=order.uri, dest=order.dest, source=order.source, why=str(error))
        at_ms = self._site.clock()
        if error.emptied:
            self._site.report(ReplicaSeen(order.uri, order.dest, 0, present=False))
        return TransferFailed(
            order.uri, order.dest, at_ms, str(error), order.source, error.lost, error.permanent,
            order.offset, error.changed, error.undivided, error.version,
        )  # fmt: skip

    def _cache_at(self, node: str) -> Cache:
        cache = self._caches.get(node)
        if cache is None:
            raise NotFetched(f"there is no node {node!r}", permanent=True)
        return cache

    async def _bring_piece(self, order: Transfer) -> Landed:
        """A piece of a dataset at its destination: from a node that has it, whole or in this part, or from its origin."""
        cache = self._cache_at(order.dest)
        dest = self._links[order.dest]
        if order.source is None:
            way, opened = (
                [self._origin_link, dest.nic_in, dest.disk],
                partial(self._origin_section, order.uri),
            )
        else:
            held, source = self._caches.get(order.source), self._links.get(order.source)
            if held is None or source is None:
                raise NotFetched(f"there is no node {order.source!r}", lost=True)
            way = [source.disk, source.nic_out, dest.nic_in, dest.disk]
            opened = partial(_peer_section, held, order)
        piece = Piece(order.uri, order.offset, order.size_bytes, order.version, order.source)
        steps = bring(
            cache, piece, opened, room=partial(_check_room, cache, order), seal=_seal,
            block_bytes=_block_bytes(way),
        )  # fmt: skip
        try:
            landed = await self._drive(steps, way)
        finally:
            self._pool.submit(steps.close)
        self._count(order, landed.moved_bytes)
        return landed

    async def _drive(self, steps: Generator[int, None, Landed], way: Sequence[TokenBucket]) -> Landed:
        """Let a piece come block by block, as fast as its way lets it."""
        while True:
            step = await self._in_thread(_next, steps)
            if isinstance(step, Landed):
                return step
            await self._wait(step, way)

    def _origin_section(self, uri: str, start: int, end: int) -> Section:
        path = self._origins.local_path(uri)
        if path is None:
            return self._origins.open_section(uri, start, end, file_name(uri))
        if path.is_dir():
            raise NotFetched(f"{path} is a folder, which moves as a whole", undivided=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return file_section(descriptor, start, file_name(uri))

    def _count(self, order: Transfer, moved: int) -> None:
        key = (order.uri, order.dest)
        self._unclaimed[key] = self._unclaimed.get(key, 0) + moved
        self.moved_bytes[order.uri] += moved
        self.traffic[order.dest].in_bytes += moved
        if order.source is not None:
            self.traffic[order.source].out_bytes += moved

    async def _bring(self, order: Transfer) -> Landed:
        """The whole dataset at its destination."""
        cache = self._cache_at(order.dest)
        there = await self._in_thread(cache.find, order.uri)
        if there is not None:
            return Landed(there.size_bytes, there.version, 0, there)
        await self._in_thread(_check_room, cache, order, order.size_bytes)
        temporary = await self._in_thread(cache.temporary)
        try:
            entry = await self._fill(temporary, order)
            await self._in_thread(cache.publish, temporary, entry)
        except BaseException:
            self._pool.submit(_discard, temporary)
            raise
        self._count(order, entry.size_bytes)
        return Landed(entry.size_bytes, entry.version, entry.size_bytes, entry)

    async def _fill(self, temporary: Path, order: Transfer) -> Entry:
        dest = self._links[order.dest]
        if order.source is not None:
            held = self._caches.get(order.source)
            found = await self._in_thread(held.find, order.uri) if held is not None else None
            if held is None or found is None:
                raise NotFetched(f"{order.source} no longer has {order.uri}", lost=True)
            source = self._links[order.source]
            way = [source.disk, source.nic_out, dest.nic_in, dest.disk]
            try:
                size = await self._copy_path(held.payload(found), temporary / found.name, way)
            except FileNotFoundError as error:
                raise NotFetched(f"{order.source} lost {order.uri} meanwhile", lost=True) from error
            return Entry(order.uri, size, found.name, found.directory, found.version)
        way = [self._origin_link, dest.nic_in, dest.disk]
        name, version = file_name(order.uri), f"copy-{secrets.token_hex(8)}"  # like no other copy's
        path = await self._in_thread(self._origins.local_path, order.uri)
        if path is None and order.uri.endswith("/") and not order.uri.startswith("http"):
            return Entry(order.uri, await self._fetch_folder(order.uri, temporary / name, way), name, True)
        if path is None:
            size = await self._fetch(order.uri, temporary / name, way)
            return Entry(order.uri, size, name, version=version)
        size = await self._copy_path(path, temporary / name, way)
        return Entry(order.uri, size, name, path.is_dir(), version)

    async def _fetch_folder(self, uri: str, target: Path, way: Sequence[TokenBucket]) -> int:
        """All that lies below a folder of an object store, one after the other."""
        total = 0
        for name in await self._in_thread(self._origins.listing, uri):
            file = target / name
            await self._in_thread(partial(file.parent.mkdir, parents=True, exist_ok=True))
            total += await self._fetch(uri + name, file, way)
        return total

    async def _fetch(self, uri: str, target: Path, way: Sequence[TokenBucket]) -> int:
        stream, expected = await self._in_thread(self._origins.open, uri)
        try:
            await self._in_thread(_check_disk, target.parent, expected or 0)
            size = await self._copy_stream(stream, target, way)
        except NotFetched:
            raise
        except OSError:
            raise
        except Exception as error:  # each of fsspec's file systems has errors of its own
            raise failure(uri, error) from error
        finally:
            self._pool.submit(stream.close)
        if expected is not None and size != expected:
            raise NotFetched(f"{uri} ended after {size} of {expected} bytes")
        return size

    async def _copy_path(self, source: Path, target: Path, way: Sequence[TokenBucket]) -> int:
        """Copy a file or tree in bytes; links in a tree stay links. Returns the bytes of its files."""
        mode = (await self._in_thread(os.lstat, source)).st_mode
        if stat.S_ISLNK(mode):
            await self._in_thread(os.symlink, os.readlink(source), target)
            return 0
        if stat.S_ISDIR(mode):
            await self._in_thread(target.mkdir)
            names = await self._in_thread(os.listdir, source)
            return sum([await self._copy_path(source / name, target / name, way) for name in sorted(names)])
        if not stat.S_ISREG(mode):
            raise NotFetched(f"{source} is neither a file nor a folder", permanent=True)
        await self._in_thread(_check_disk, target.parent, (await self._in_thread(os.stat, source)).st_size)
        stream = await self._in_thread(open, source, "rb", 0)
        try:
            return await self._copy_stream(stream, target, way, mode)  # type: ignore[arg-type]
        finally:
            self._pool.submit(stream.close)

    async def _copy_stream(
        self, stream: BinaryIO, target: Path, way: Sequence[TokenBucket], mode: int = 0o644
    ) -> int:
        block = _block_bytes(way)
        writer = await self._in_thread(_create, target, stat.S_IMODE(mode) & ~0o222 | 0o400)
        total = 0
        try:
            while moved := await self._in_thread(_shift, stream, writer, block):
                total += moved
                await self._wait(moved, way)
        finally:
            self._pool.submit(os.close, writer)
        return total

    async def _wait(self, moved: int, way: Sequence[TokenBucket]) -> None:
        """Wait until every bucket on the way has let so many bytes pass."""
        now = self._now()
        passed = max(bucket.reserve(moved, now) for bucket in way)
        if passed > now:
            await self._sleep(passed - now)

    async def _in_thread(self, act: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, act, *arguments)


def _block_bytes(way: Sequence[TokenBucket]) -> int:
    """How much is moved before others have their turn."""
    slowest = min((bucket.rate for bucket in way if bucket.rate), default=0)
    return max(_BLOCK_MIN, min(_BLOCK_MAX, int(slowest * _BLOCK_S))) if slowest else _BLOCK_MAX


def _check_room(cache: Cache, order: Transfer, size_bytes: int) -> None:
    if not cache.room_for(size_bytes):
        free = cache.limit_bytes - cache.used_bytes - cache.partials.reserved_bytes
        raise NotFetched(f"the cache of {order.dest} has {free} bytes left, {size_bytes} are needed")
    _check_disk(cache.folder, size_bytes)


def _check_disk(folder: Path, size_bytes: int) -> None:
    """Begin no file that the disk cannot hold. Raises OSError."""
    why = shortage(folder, size_bytes)
    if why:
        raise OSError(errno.ENOSPC, why)


def _peer_section(held: Cache, order: Transfer, start: int, end: int) -> Section:
    section = held_section(held, order.uri, start, end)
    if section is None:
        raise NotFetched(f"{order.source} no longer has {order.uri}", lost=True)
    return section


def _next(steps: Generator[int, None, Landed]) -> int | Landed:
    """The next block's bytes, or how it ended: a StopIteration cannot leave a thread's future."""
    try:
        return next(steps)
    except StopIteration as end:
        landed: Landed = end.value
        return landed


def _seal(path: Path, mode: int) -> None:
    path.chmod(mode & ~0o222 | 0o400)


def _create(path: Path, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _shift(reader: BinaryIO, writer: int, amount: int) -> int:
    """Read up to `amount` bytes and write them: never a link, never a clone of blocks."""
    data = memoryview(reader.read(amount))
    written = 0
    while written < len(data):
        written += os.write(writer, data[written:])
    return len(data)


def _discard(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
