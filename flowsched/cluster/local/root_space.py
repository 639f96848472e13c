"""The root of a local cluster: whether it has room, or is away, and the limits of its nodes' caches.

Nothing is started while a file system is full or a folder is away: then no node is ready. A disk that is not mounted leaves an
empty folder of the same name, and a root that was renamed leaves none. A folder is there if its path leads to the folder that was
opened: an entry that is missing below a folder that is away says nothing about attempts.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor as Pool
from pathlib import Path
from typing import Final

import msgspec

from flowsched.cluster.node.cache import Cache
from flowsched.cluster.node.space import Space
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import ClusterEvent, NodeChanged
from flowsched.log_lines import get_logger
from flowsched.values import replace

log = get_logger(__name__)

#: How often the room is measured.
SPACE_S: Final = 1.0


class Presence:
    """The folders that a service has opened."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}

    def expect(self, folders: Iterable[Path]) -> None:
        """These are there from now on."""
        for folder in folders:
            found = os.stat(folder)
            self._known[str(folder)] = found.st_dev, found.st_ino

    def away(self) -> str:
        """Which folder is away, in words; "" = none."""
        for path, known in self._known.items():
            try:
                found = os.stat(path)
            except OSError as error:
                return f"the folder {path} is away ({error.strerror}): put it back, running tasks wait for it"
            if (found.st_dev, found.st_ino) != known:
                return (
                    f"the folder {path} is another one than the service has opened (an unmounted disk?): put that one back, "
                    "running tasks wait for it"
                )
        return ""

    def check(self) -> None:
        """Make sure that a missing entry is really missing.

        Raises:
            OSError: A folder is away.
        """
        if away := self.away():
            raise OSError(errno.ESTALE, away)


class Site(msgspec.Struct, frozen=True):
    """The values that every part of a cluster on this machine shares.

    Args:
        root: The cluster's folder.
        nodes: By name.
        report: Takes events, on the event loop's thread.
        clock: Wall-clock ms.
        failpoint: Called with a name where a crash would be interesting, in worker threads; may raise or kill.
        presence: Of the folders below the root that must be there.
    """

    root: Path
    nodes: Mapping[str, NodeInfo]
    report: Callable[[ClusterEvent], None]
    clock: Callable[[], int]
    failpoint: Callable[[str], object]
    presence: Presence = msgspec.field(default_factory=Presence)


class RootSpace:
    """The room of one root.

    Args:
        site: Its surroundings.
        caches: Of its nodes.
        cache_percent: The limit of all caches together, in percent of what is free on the disk of the root or in them, measured
            again and again; 0 = what `site` says.
        beside: Further folders that must have room.
    """

    def __init__(
        self, site: Site, caches: Collection[Cache], cache_percent: int, beside: Sequence[Space]
    ) -> None:
        self._site = site
        self._caches = caches
        self._percent = cache_percent
        self._root = Space(site.root)
        self._spaces = [self._root, *beside]
        self._cache_bytes = 0  #: the limit of each node's cache, as last measured
        self._reported = False, 0
        self.away = ""  #: which folder is away, in words

    @property
    def trouble(self) -> str:
        """Why nothing can be started, in words; "" = it can."""
        return self.away or next((space.trouble for space in self._spaces if space.trouble), "")

    def open(self) -> list[NodeInfo]:
        """Measure it. Returns the nodes as they are now. Blocks."""
        self.measure()
        self._reported = bool(self.trouble), self._cache_bytes
        return self.nodes()

    async def watch(self, pool: Pool) -> None:
        """Measure it again and again, and report changes."""
        while True:
            await asyncio.sleep(SPACE_S)
            await asyncio.get_running_loop().run_in_executor(pool, self.measure)
            self.report_changes()

    def note(self, error: OSError) -> None:
        """A write in the root has found no room."""
        self._root.note(error)

    def measure(self) -> None:
        """Measure it. Blocks."""
        self.find_away()
        for space in self._spaces:
            space.measure()
        if self._percent:
            self._measure_part()

    def find_away(self) -> str:
        """Find the folder that is away. Blocks."""
        self.away = self._site.presence.away()
        return self.away

    def _measure_part(self) -> None:
        """How much each cache may hold, as a part of the disk. Changes below a tenth are ignored.

        On a full disk the last limit holds, or the same part of the whole disk after a start. Other programs may be
        filling the disk, and last copies dropped because of them would have to be made again.
        """
        try:
            disk = os.statvfs(self._site.root)
        except OSError:
            return  # `Space.measure` has said so
        bytes_ = disk.f_blocks * disk.f_frsize
        if not self.trouble:
            bytes_ = disk.f_bavail * disk.f_frsize + sum(cache.used_bytes for cache in self._caches)
        elif self._cache_bytes:
            return
        found = max(1, bytes_ * self._percent // 100 // len(self._caches))
        if 10 * abs(found - self._cache_bytes) > self._cache_bytes:
            self._cache_bytes = found

    def nodes(self) -> list[NodeInfo]:
        """The nodes as they are now."""
        trouble = self.trouble
        return [
            replace(node, ready=not trouble, trouble=trouble, cache_bytes=self.cache_limit(node.name))
            for node in self._site.nodes.values()
        ]

    def cache_limit(self, node: str) -> int:
        """The bytes that a node's cache may have; 0 = any number."""
        return self._cache_bytes if self._percent else self._site.nodes[node].cache_bytes

    def report_changes(self) -> None:
        """Report whether the nodes are ready, and the limits of their caches."""
        was, now = self._reported, (bool(self.trouble), self._cache_bytes)
        if now == was:
            return
        self._reported = now
        if now[0] and not was[0]:
            log.warning("nothing new is started", why=self.trouble)
        elif was[0] and not now[0]:
            log.info("the root has room again, or is back", root=str(self._site.root))
        for node in self.nodes():
            self._site.report(NodeChanged(node))
