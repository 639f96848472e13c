"""Transfers: bytes into a node's cache, from another node's or from their origin, under the nodes' bandwidths.

Bytes are really read and written, in blocks; after each block a flow waits until every bucket on its way has let it pass: the
source's disk and network, and the destination's network and disk. Flows that share a bucket take turns,
block by block. Large datasets move in pieces, several at a time, from several places. `node.transfers` has the steps of
a transfer on its node.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from flowsched.background import BackgroundTasks
from flowsched.cluster.local.root_space import Site
from flowsched.cluster.local.runner.safe_paths import Unsafe, open_any
from flowsched.cluster.node.cache import Cache, Entry, file_name
from flowsched.cluster.node.origins import NotFetched, Origins, Section, copy_open
from flowsched.cluster.node.ranges import Landed, cached_section, changed_at
from flowsched.cluster.node.rates import TokenBucket, block_bytes
from flowsched.cluster.node.transfers import NodeTransfers, OriginSource, Source
from flowsched.executor.datasets import digest_of, parse, uri_of
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Published, ReplicaSeen, Transfer, TransferDone, TransferFailed
from flowsched.log_lines import get_logger

log = get_logger(__name__)
T = TypeVar("T")

_BLOCK_MAX: Final = 4 << 20
#: Container engines split their options at these.
UNMOUNTABLE: Final = frozenset(':,"\n')
#: A look at a folder of a million files takes seconds: it counts for so many times as long as it took.
_TRUSTED: Final = 10
#: So many looks are remembered.
_CHECKS: Final = 10_000


class Traffic(msgspec.Struct):
    """Bytes that have come to a node and gone from it."""

    in_bytes: int = 0
    out_bytes: int = 0


class Links(msgspec.Struct, frozen=True):
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
        in_place: Tasks read files of this machine where they lie. Otherwise each node gets a copy, over its simulated links.
        now, sleep: Of the buckets; default the running loop's clock.
        threads: For reading and writing.
    """

    def __init__(
        self,
        site: Site,
        caches: Mapping[str, Cache],
        origins: Origins,
        *,
        in_place: bool = False,
        now: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        threads: int = 8,
    ) -> None:
        self._site = site
        self.caches = caches
        self.origins = origins
        self._in_place = in_place
        self._now = now or asyncio.get_running_loop().time
        self._sleep = sleep
        self._nodes = {name: NodeTransfers(cache, name, outward=True) for name, cache in caches.items()}
        self._links = {name: Links.of(node) for name, node in site.nodes.items()}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="staging")
        self._under_way: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        self._tasks = BackgroundTasks("a transfer")
        self._checked: dict[str, float] = {}  #: dataset -> until when (monotonic) its check counts
        self.traffic: dict[str, Traffic] = defaultdict(Traffic)

    def transfer(self, orders: Sequence[Transfer]) -> None:
        """Start copying. A second order for what is already on its way waits for the first."""
        for order in orders:
            key = (order.uri, order.dest, order.offset if not order.whole else -1)
            self._under_way[key] = self._tasks.begin(
                self._carry_out(order, self._under_way.get(key)),
                name=f"{order.uri} to {order.dest}",
                failed=partial(self._broke, order),
            )

    async def close(self) -> None:
        """Stop copying. The next start removes half copies."""
        await self._tasks.close()
        self._pool.shutdown(wait=True)

    def charge(self, uri: str, node: str, remote: str | None = None) -> tuple[int, int]:
        """(found on the node, brought there) bytes of an input: the first to use what was brought is charged.

        Args:
            uri: The input.
            node: Where the task that reads it runs.
            remote: The node that it is read from; None = `node` itself.
        """
        if remote is not None:
            there = self.caches[remote].entries.get(uri) if remote in self.caches else None
            return 0, there.size_bytes if there else 0
        return self._nodes[node].charge(uri)

    def published(self, node: str, outputs: Sequence[Published]) -> None:
        """Note the datasets that a runner has put into a node's cache."""
        cache = self.caches.get(node)
        for output in outputs if cache is not None else ():
            assert cache is not None
            cache.refresh(output.uri)

    # --- one transfer ----------------------------------------------------------------------------------------

    async def _carry_out(self, order: Transfer, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            landed = await self._bring(order)
        except NotFetched as error:
            self._fail(order, error)
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

    def _broke(self, order: Transfer, error: Exception) -> None:
        """End what waits for a transfer that raised what no transfer should: a retry may help."""
        self._fail(order, NotFetched(f"the transfer broke: {error!r}"))

    def _fail(self, order: Transfer, error: NotFetched) -> None:
        log.info("transfer failed", uri=order.uri, dest=order.dest, source=order.source, why=str(error))
        if error.emptied:
            self._site.report(ReplicaSeen(order.uri, order.dest, 0, present=False))
        lost = error.lost and not self._site.presence.away()
        failed = TransferFailed(
            order.uri, order.dest, self._site.clock(), str(error), order.source, lost, error.permanent,
            order.offset, error.changed, error.undivided, error.version, error.full,
        )  # fmt: skip
        self._site.report(failed)

    async def _bring(self, order: Transfer) -> Landed:
        """A dataset or a piece of one at its destination: from a node that has it, or from its origin."""
        node = self._nodes.get(order.dest)
        if node is None:
            raise NotFetched(f"there is no node {order.dest!r}", permanent=True)
        if self._in_place and uri_of(order.uri).startswith(("/", "file:")):
            linked = await self._in_thread(self._link, order)
            if linked is not None:
                return linked
        dest = self._links[order.dest]
        source: Source
        if order.source is None:
            way = [dest.nic_in, dest.disk]
            source = OriginSource(self.origins, order.uri)
        else:
            cache, links = self.caches.get(order.source), self._links.get(order.source)
            if cache is None or links is None:
                raise NotFetched(f"there is no node {order.source!r}", lost=True)
            way = [links.disk, links.nic_out, dest.nic_in, dest.disk]
            source = NodeSource(cache, order.source, order.uri)
        size = block_bytes((bucket.rate for bucket in way), _BLOCK_MAX)
        steps = node.bring(order, source, size)
        try:
            landed = await self._drive(steps, size, way)
        except BaseException:
            self._pool.submit(steps.close)
            raise
        self.traffic[order.dest].in_bytes += landed.moved_bytes
        if order.source is not None:
            self.traffic[order.source].out_bytes += landed.moved_bytes
        return landed

    def _link(self, order: Transfer) -> Landed | None:
        """Let a node read a file or folder of this machine where it lies; None if it has to be copied."""
        cache, wanted = self.caches[order.dest], parse(order.uri)
        present = cache.find(order.uri)
        if present is not None and (not present.in_place or self._is_now(order.uri)):
            return Landed(present.size_bytes, present.version, 0, present)
        path = self.origins.local_path(wanted.uri) if wanted.is_known else None
        if path is None or UNMOUNTABLE & set(str(path)):
            return None
        if not self._is_now(order.uri):
            if order.source is not None:
                raise NotFetched(f"{order.source} has a link to another version of {wanted.uri}", lost=True)
            raise changed_at(wanted.uri, None, "")
        size = sum(file.lstat().st_size for file in (path.rglob("*") if path.is_dir() else (path,)))
        entry = Entry(order.uri, size, file_name(order.uri), path.is_dir(), wanted.version, in_place=True)
        into = cache.temporary()
        os.symlink(path, into / entry.name)
        cache.publish(into, entry)
        return Landed(size, wanted.version, 0, entry)

    def forget(self, uri: str, node: str) -> Callable[[], object]:
        """Let a node's cache have a dataset no more. Returns what deletes it, and blocks."""
        cache = self.caches.get(node)
        return (lambda: None) if cache is None else cache.forget(uri)

    def places(self, pairs: Iterable[tuple[str, str]]) -> list[str]:
        """Where those of (uri, node) lie that are read in place. Blocks."""
        return sorted({cache.place(entry) for cache, entry in self._linked(pairs)})

    def changed(self, pairs: Iterable[tuple[str, str]]) -> list[str]:
        """The inputs among (uri, node) that would be read in place, and are another version now. Blocks."""
        return [entry.uri for _, entry in self._linked(pairs) if not self._is_now(entry.uri)]

    def _linked(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[Cache, Entry]]:
        """Those of (uri, node) that are read in place."""
        for uri, node in pairs if self._in_place else ():
            cache = self.caches.get(node)
            entry = None if cache is None else cache.entries.get(uri)
            if cache is not None and entry is not None and entry.in_place:
                yield cache, entry

    def _is_now(self, name: str) -> bool:
        """Whether the file or folder that a dataset's name means is of that version now."""
        wanted, now = parse(name), time.monotonic()
        if self._checked.get(name, 0.0) > now:
            return True
        try:
            current = self.origins.fingerprint(wanted.uri)
        except (NotFetched, Unsafe, OSError):
            return False
        took_s = time.monotonic() - now
        if len(self._checked) > _CHECKS:
            self._checked.clear()
        self._checked[name] = now + _TRUSTED * took_s
        return digest_of(current.version) == wanted.version

    async def _drive(
        self, steps: Generator[int, None, Landed], block_bytes: int, way: Sequence[TokenBucket]
    ) -> Landed:
        """Let a transfer come block by block, as fast as its way lets it."""
        landed = None
        while landed is None:
            moved_bytes, landed = await self._in_thread(_next, steps, block_bytes)
            now = self._now()
            passed = max(bucket.reserve(moved_bytes, now) for bucket in way) if moved_bytes else now
            if passed > now:
                await self._sleep(passed - now)
        return landed

    async def _in_thread(self, act: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, act, *arguments)


class NodeSource(msgspec.Struct, frozen=True):
    """A dataset in the cache of another node of this machine."""

    cache: Cache
    node: str
    uri: str

    def section(self, start: int, end: int) -> Section:
        """See `Source`."""
        section = cached_section(self.cache, self.uri, start, end)
        if section is None:
            raise NotFetched(f"{self.node} no longer has {self.uri}", lost=True)
        return section

    def copy(self, into: Path, block_bytes: int) -> Generator[int, None, Entry]:
        """See `Source`."""
        entry = self.cache.find(self.uri)
        if entry is None:
            raise NotFetched(f"{self.node} no longer has {self.uri}", lost=True)
        try:
            reading = open_any(None, str(self.cache.payload(entry)))
            try:
                size = yield from copy_open(reading, into / entry.name, block_bytes)
            finally:
                os.close(reading)
        except FileNotFoundError as error:
            raise NotFetched(f"{self.node} lost {self.uri} meanwhile", lost=True) from error
        return Entry(self.uri, size, entry.name, entry.directory, entry.version)


def _next(steps: Generator[int, None, Landed], block_bytes: int) -> tuple[int, Landed | None]:
    """(bytes of the next block, how the transfer ended): mostly a short block is the last one, and one call sees to both."""
    moved_bytes = 0
    try:
        moved_bytes = next(steps)
        if moved_bytes < block_bytes:
            moved_bytes += next(steps)
    except StopIteration as end:
        landed: Landed = end.value
        return moved_bytes, landed
    return moved_bytes, None
