"""Transfers: bytes into a node's cache, from another node's or from their origin, under the nodes' bandwidths.

Bytes are really read and written, in pieces; after each piece a flow waits until every bucket on its way has let it pass:
the source's disk and network, or the origin's rate, and the destination's network and disk. Flows that share a bucket
take turns, piece by piece.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import structlog

from flowsched.cluster.bucket import TokenBucket
from flowsched.cluster.cache import Cache, Entry, file_name
from flowsched.cluster.origins import NotFetched, Origins, failure
from flowsched.cluster.site import Site
from flowsched.scheduling.executor import NodeInfo, Published, Transfer, TransferDone, TransferFailed

log = structlog.get_logger(__name__)
T = TypeVar("T")

_PIECE_MIN: Final = 64 << 10
_PIECE_MAX: Final = 4 << 20
#: A piece takes about so long at the slowest bucket, so that flows take turns often enough.
_PIECE_S: Final = 0.05


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
        site: Whom to tell.
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
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unclaimed: dict[tuple[str, str], int] = {}
        self.traffic: dict[str, Traffic] = defaultdict(Traffic)
        self.moved_bytes: Counter[str] = Counter()  #: per dataset, over all its transfers

    def transfer(self, orders: Sequence[Transfer]) -> None:
        """Start copying. A second order for what is already on its way waits for the first."""
        for order in orders:
            key = (order.uri, order.dest)
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

    def charge(self, uri: str, node: str) -> tuple[int, int]:
        """(found on the node, brought there) bytes of an input: the first to use what was brought is charged."""
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
            entry, moved = await self._bring(order)
        except NotFetched as error:
            self._site.report(self._failed(order, error))
        except OSError as error:
            self._site.report(self._failed(order, NotFetched(f"cannot copy {order.uri}: {error}")))
        else:
            done = TransferDone(
                order.uri, order.dest, self._site.clock(), moved, order.source, entry.size_bytes
            )
            self._site.report(done)
        finally:
            key = (order.uri, order.dest)
            if self._under_way.get(key) is asyncio.current_task():
                del self._under_way[key]

    def _failed(self, order: Transfer, error: NotFetched) -> TransferFailed:
        log.info("transfer failed", uri=order.uri, dest=order.dest, source=order.source, why=str(error))
        at_ms = self._site.clock()
        return TransferFailed(
            order.uri, order.dest, at_ms, str(error), order.source, error.lost, error.permanent
        )

    async def _bring(self, order: Transfer) -> tuple[Entry, int]:
        """The entry at its destination, and how many bytes travelled for it."""
        cache = self._caches.get(order.dest)
        if cache is None:
            raise NotFetched(f"there is no node {order.dest!r}", permanent=True)
        there = await self._in_thread(cache.find, order.uri)
        if there is not None:
            return there, 0
        if not cache.room_for(order.size_bytes):
            free = cache.limit_bytes - cache.used_bytes
            raise NotFetched(
                f"the cache of {order.dest} has {free} bytes left, {order.size_bytes} are needed"
            )
        temporary = await self._in_thread(cache.temporary)
        try:
            entry = await self._fill(temporary, order)
            await self._in_thread(cache.publish, temporary, entry)
        except BaseException:
            self._pool.submit(_discard, temporary)
            raise
        self._unclaimed[order.uri, order.dest] = entry.size_bytes
        self.moved_bytes[order.uri] += entry.size_bytes
        self.traffic[order.dest].in_bytes += entry.size_bytes
        if order.source is not None:
            self.traffic[order.source].out_bytes += entry.size_bytes
        return entry, entry.size_bytes

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
            return Entry(order.uri, size, found.name, found.directory)
        way = [self._origin_link, dest.nic_in, dest.disk]
        name = file_name(order.uri)
        path = await self._in_thread(self._origins.local_path, order.uri)
        if path is None and order.uri.endswith("/") and not order.uri.startswith("http"):
            return Entry(order.uri, await self._fetch_folder(order.uri, temporary / name, way), name, True)
        if path is None:
            return Entry(order.uri, await self._fetch(order.uri, temporary / name, way), name)
        size = await self._copy_path(path, temporary / name, way)
        return Entry(order.uri, size, name, path.is_dir())

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
        stream = await self._in_thread(open, source, "rb", 0)
        try:
            return await self._copy_stream(stream, target, way, mode)  # type: ignore[arg-type]
        finally:
            self._pool.submit(stream.close)

    async def _copy_stream(
        self, stream: BinaryIO, target: Path, way: Sequence[TokenBucket], mode: int = 0o644
    ) -> int:
        slowest = min((bucket.rate for bucket in way if bucket.rate), default=0)
        piece = max(_PIECE_MIN, min(_PIECE_MAX, int(slowest * _PIECE_S))) if slowest else _PIECE_MAX
        writer = await self._in_thread(_create, target, stat.S_IMODE(mode) & ~0o222 | 0o400)
        total = 0
        try:
            while moved := await self._in_thread(_shift, stream, writer, piece):
                total += moved
                now = self._now()
                passed = max(bucket.reserve(moved, now) for bucket in way)
                if passed > now:
                    await self._sleep(passed - now)
        finally:
            self._pool.submit(os.close, writer)
        return total

    async def _in_thread(self, act: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, act, *arguments)


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
