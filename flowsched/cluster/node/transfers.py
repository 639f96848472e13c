"""Transfers into the cache of one node: whole datasets and pieces of them. This machine and the node agents use the same code.

A transfer is a generator that yields the bytes of each block it has moved, so that its caller decides how fast and in which
thread; everything else blocks. It reports no event, and knows other nodes only as a `Source`.
"""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from flowsched.cluster.local.runner.records import is_full
from flowsched.cluster.local.runner.safe_paths import Unsafe
from flowsched.cluster.local.runner.trees import seal
from flowsched.cluster.node.cache import Cache, Entry, file_name
from flowsched.cluster.node.origins import NotFetched, Origins, Section
from flowsched.cluster.node.ranges import Landed, bring, changed_at
from flowsched.cluster.node.space import check_room, no_room
from flowsched.executor.datasets import digest_of, parse, uri_of
from flowsched.executor.protocol import Transfer
from flowsched.log_lines import get_logger
from flowsched.workflow.document.uris import redacted

T = TypeVar("T")

log = get_logger(__name__)


class Source(Protocol):
    """One dataset at one place that has it: its origin, or another node."""

    def section(self, start: int, end: int) -> Section:
        """Open a range.

        Raises:
            NotFetched: It cannot be had from there.
            Unsafe: It cannot be a dataset.
        """
        ...

    def copy(self, into: Path, block_bytes: int) -> Generator[int, None, Entry]:
        """Copy all of it into a folder; yields the bytes of each block.

        Raises:
            NotFetched: It cannot be had from there.
            Unsafe: It cannot be a dataset.
            OSError: It cannot be written.
        """
        ...


class OriginSource(msgspec.Struct, frozen=True):
    """A dataset at its origin. It gives the version that the dataset's name has, or fails as `changed`."""

    origins: Origins
    name: str

    def section(self, start: int, end: int) -> Section:
        """See `Source`."""
        wanted = parse(self.name)
        section = self.origins.section(wanted.uri, start, end, file_name(self.name))
        try:
            self._expect(section.version)
        except NotFetched:
            section.stream.close()
            raise
        return msgspec.structs.replace(section, version=wanted.version) if wanted.is_known else section

    def copy(self, into: Path, block_bytes: int) -> Generator[int, None, Entry]:
        """See `Source`."""
        name = file_name(self.name)
        size = yield from self.origins.copy(uri_of(self.name), into / name, block_bytes, self._expect)
        version = parse(self.name).version
        if not parse(self.name).is_known:
            version = f"copy-{secrets.token_hex(8)}"  # like no other copy's: it may be of any version
        return Entry(self.name, size, name, (into / name).is_dir(), version)

    def _expect(self, version: str) -> None:
        wanted = parse(self.name)
        if wanted.is_known and digest_of(version) != wanted.version:
            raise changed_at(wanted.uri, None, version)


class NodeTransfers:
    """The transfers into one node's cache. May be used from several threads.

    Args:
        cache: The node's.
        node: Its name, for messages.
        outward: Links of a folder may lead out of it: tasks on the node see the files of this machine.
    """

    def __init__(self, cache: Cache, node: str, *, outward: bool = False) -> None:
        self.cache = cache
        self.received_bytes = 0
        self._node = node
        self._outward = outward
        self._promised: dict[str, int] = {}  #: bytes that whole datasets under way will need
        self._unclaimed: dict[
            str, int
        ] = {}  #: bytes brought of each dataset that no task has been charged yet
        self._lock = threading.Lock()

    def bring(self, order: Transfer, source: Source, block_bytes: int) -> Generator[int, None, Landed]:
        """Bring a dataset, or a piece of one. Blocks.

        Yields:
            The bytes of each block.

        Raises:
            NotFetched: It has not come. It says whether another attempt may help, and where.
        """
        try:
            if order.whole:
                landed = yield from self._bring_whole(order, source, block_bytes)
            else:
                room = partial(self._check_room, order.uri)
                landed = yield from bring(
                    self.cache, order, source.section, room=room, block_bytes=block_bytes
                )
        except NotFetched:
            raise
        except Unsafe as error:
            raise NotFetched(f"{order.uri} cannot be a dataset: {error}", permanent=True) from error
        except OSError as error:
            full = is_full(error)
            why = no_room(self.cache.folder, error) if full else str(error)
            raise NotFetched(f"cannot copy {order.uri} to {self._node}: {why}", full=full) from error
        except Exception as error:
            log.exception("transfer broke", uri=redacted(order.uri), source=order.source)
            raise NotFetched(f"cannot copy {order.uri} to {self._node}: {error!r}") from error
        if landed.moved_bytes:
            with self._lock:
                self.received_bytes += landed.moved_bytes
                self._unclaimed[order.uri] = self._unclaimed.get(order.uri, 0) + landed.moved_bytes
        return landed

    def charge(self, uri: str) -> tuple[int, int]:
        """(found here, brought here) bytes of an input: the first to use what was brought is charged."""
        entry = self.cache.entries.get(uri)
        size = entry.size_bytes if entry else 0
        with self._lock:
            moved = min(size, self._unclaimed.pop(uri, 0))
        return size - moved, moved

    def _bring_whole(self, order: Transfer, source: Source, block_bytes: int) -> Generator[int, None, Landed]:
        """Fill a temporary folder, and give it the dataset's name when all is there."""
        there = self.cache.find(order.uri)
        if there is not None:
            return Landed(there.size_bytes, there.version, 0, there)
        try:
            self._check_room(order.uri, order.size_bytes)
            self._promised[order.uri] = order.size_bytes
            into = self.cache.temporary()
            try:
                entry = yield from self._copy(order, source.copy(into, block_bytes))
                seal(into / entry.name, outward=self._outward)
                self.cache.publish(into, entry)
            except BaseException:
                shutil.rmtree(into, ignore_errors=True)
                raise
        finally:
            self._promised.pop(order.uri, None)
        return Landed(entry.size_bytes, entry.version, entry.size_bytes, entry)

    def _copy(self, order: Transfer, blocks: Generator[int, None, Entry]) -> Generator[int, None, Entry]:
        """Let all blocks come, and see that there is room for them if they are more than was said."""
        came = 0
        try:
            while True:
                moved = next(blocks)
                came += moved
                if came > order.size_bytes:
                    self._promised[order.uri] = came
                    self._check_cache(order.uri, came)
                yield moved
        except StopIteration as end:
            entry: Entry = end.value
            return entry
        finally:
            blocks.close()

    def _check_room(self, uri: str, size_bytes: int) -> None:
        """Begin no dataset that neither the cache nor the disk can hold. Raises NotFetched, OSError."""
        self._check_cache(uri, size_bytes)
        check_room(self.cache.folder, size_bytes)

    def _check_cache(self, uri: str, size_bytes: int) -> None:
        others = sum(size for other, size in list(self._promised.items()) if other != uri)
        if not self.cache.room_for(others + size_bytes):
            cache = self.cache
            free = max(0, cache.limit_bytes - cache.used_bytes - cache.partials.reserved_bytes - others)
            raise NotFetched(f"the cache of {self._node} has {free} bytes left, {size_bytes} are needed")


def finish(steps: Generator[int, None, T], moved: Callable[[int], object]) -> T:
    """Run a transfer to its end in this thread. `moved` gets the bytes of each block before the next is moved, and may wait."""
    try:
        while True:
            moved(next(steps))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()
