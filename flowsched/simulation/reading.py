"""Reads on a simulated node: what tasks read from its disk before they compute, what memory keeps, and what they share.

Memory keeps what was used last. A task goes through its files in the order of their names at the moment it begins to compute:
then it is settled which of them memory held, and the disk must have brought the others meanwhile. A task that reads a file
while another on the node does shares the rest of that read. Tasks that begin to compute at the same moment go through their
files side by side, so what one of them has read from the disk serves all, even where memory would not hold it for a later task.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

from flowsched.simulation.network import Network


@dataclass(slots=True)
class Running:
    """One attempt of one job on a node."""

    workload: int
    job: int
    node: int
    ready: float
    start: float
    attempt: int = 0
    shared: bool = False  #: reads from and writes to the storage, never its node's disk
    direct: frozenset[int] = frozenset()  #: inputs it reads straight from the storage
    mounted: frozenset[int] = frozenset()  #: inputs it reads on the storage, through the node's page cache
    remote: Mapping[int, int] = field(
        default_factory=dict
    )  #: inputs it reads straight from another node, and that node
    straight: frozenset[int] = frozenset()  #: outputs it writes straight to the storage
    fetch: tuple[
        tuple[int, int], ...
    ] = ()  #: (input, place) it copies to its node itself, before it computes
    ended: Callable[[], None] = lambda: None
    outcome: str = "succeeded"
    run_start: float = 0.0
    run_end: float = 0.0
    waiting: int = 0
    over: bool = False
    disk_bytes: int = 0  #: bytes that it made its node's disk read and write


# ---- the page cache ----


#: A file of a workload: (number of the workload, number of the file).
FileId = tuple[int, int]


class PageCache:
    """The files that a node's memory keeps, least recently used first out. A file is in it as a whole or not at all."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._files: OrderedDict[FileId, int] = OrderedDict()

    def __contains__(self, file: FileId) -> bool:
        """Whether reading the file costs no disk."""
        return file in self._files

    def touch(self, file: FileId, size: int) -> None:
        """The file was read or written."""
        if file in self._files:
            self._files.move_to_end(file)
            return
        if size > self.capacity:
            return
        self._files[file] = size
        self.used += size
        while self.used > self.capacity:
            self.used -= self._files.popitem(last=False)[1]

    def forget(self, file: FileId) -> None:
        """The file is deleted."""
        self.used -= self._files.pop(file, 0)

    def size_of(self, file: FileId) -> int:
        """Bytes of a file that is in it."""
        return self._files[file]

    def oldest(self) -> Iterator[FileId]:
        """Its files, least recently used first."""
        return iter(self._files)

    def become(self, used: int, gone: Iterable[FileId], recent: Mapping[FileId, int]) -> None:
        """Lose some files, then hold others as those used last. `used`: bytes of all it holds then."""
        for file in gone:
            del self._files[file]
        for file, size in recent.items():
            self._files.pop(file, None)
            self._files[file] = size
        self.used = used


class Afterwards:
    """The contents of a page cache after some files have been used. Its cost follows the use, however much the cache holds.

    Valid until the cache changes.
    """

    def __init__(self, cache: PageCache) -> None:
        self._cache = cache
        self._used = cache.used
        self._recent: OrderedDict[FileId, int] = OrderedDict()  #: used since, the last one last
        self._gone: set[FileId] = set()  #: files that the cache holds now and has lost by then
        self._oldest = cache.oldest()

    def __contains__(self, file: FileId) -> bool:
        """Whether reading the file costs no disk then."""
        return file in self._recent or (file in self._cache and file not in self._gone)

    def touch(self, file: FileId, size: int) -> None:
        """As `PageCache.touch`."""
        if file in self._recent:
            self._recent.move_to_end(file)
            return
        if file in self:
            self._recent[file] = self._cache.size_of(file)
            return
        if size > self._cache.capacity:
            return
        self._recent[file] = size
        self._used += size
        while self._used > self._cache.capacity:
            self._used -= self._push_out()

    def _push_out(self) -> int:
        for file in self._oldest:
            if file not in self._recent and file not in self._gone:
                self._gone.add(file)
                return self._cache.size_of(file)
        file, size = self._recent.popitem(last=False)
        if file in self._cache:
            self._gone.add(file)
        return size

    def keep(self) -> None:
        """The files have been used."""
        self._cache.become(self._used, self._gone, self._recent)


# ---- reads from the disk ----


#: How often a task may wait for another's read of one file, before it reads that file for itself.
SHARED: Final = 2
Action = Callable[[], None]


class Disks(Protocol):
    """The nodes' memories and disks, and a clock."""

    caches: list[PageCache]
    network: Network

    @property
    def now(self) -> float:
        """Seconds."""

    def later(self, moment: float, action: Action) -> None:
        """Do something at a moment."""

    def flow(self, size: float, path: Sequence[int], action: Action) -> int:
        """Bytes begin to move."""


class Input(NamedTuple):
    """A file as its reader sees it."""

    name: str
    file: FileId
    size: int


@dataclass(slots=True)
class _Reader:
    """A task while it reads.

    Attributes:
        own: Bytes by file that it has made the disk read.
        joined: How often it has waited for another's read, by file.
        coming: By file that is being read: the flow it waits for, and the bytes it reads for itself after that.
    """

    running: Running
    task: str
    files: tuple[Input, ...]
    done: Action
    own: dict[FileId, float] = field(default_factory=dict)
    joined: dict[FileId, int] = field(default_factory=dict)
    coming: dict[FileId, tuple[int, float]] = field(default_factory=dict)
    waiting: int = 0


class DiskReads:
    """All that is being read from nodes' disks."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        #: (node, file) -> the flow that brings it, and what the tasks that wait for it do then
        self._flows: dict[tuple[int, FileId], tuple[int, list[Action]]] = {}
        self._reading: dict[int, list[_Reader]] = {}  # by node: those for which the disk is reading
        self._ready: dict[int, list[_Reader]] = {}  # by node: those that have all

    def read(self, running: Running, task: str, files: Iterable[Input], done: Action) -> None:
        """A task reads its files; `done` follows when it may compute, with its files in memory as far as that holds them."""
        reader = _Reader(running, task, tuple(sorted(files)), done)
        missed, _ = _passed([reader], self._disks.caches[running.node])
        self._bring(reader, [each for _, each in missed])

    def fail(self, node: int) -> None:
        """A node is gone, with those that read there."""
        self._ready.pop(node, None)
        self._reading.pop(node, None)
        for key in [key for key in self._flows if key[0] == node]:
            del self._flows[key]

    def lost(self, running: Running) -> None:
        """An attempt is over before it could compute: the other readers on its node stop waiting for it."""
        reading = self._reading.get(running.node, [])
        if any(reader.running is running for reader in reading):
            self._reading[running.node] = [reader for reader in reading if reader.running is not running]
            self._settle_later(running.node)

    def _bring(self, reader: _Reader, missed: Sequence[Input]) -> None:
        """Let the disk read the bytes that it has not read for this task yet."""
        self._reading.setdefault(reader.running.node, []).append(reader)
        wanted = [each for each in missed if each.size - reader.own.get(each.file, 0.0) >= 1]
        reader.waiting = len(wanted) + 1
        for each in wanted:
            self._bring_one(reader, each)
        self._brought(reader)

    def _bring_one(self, reader: _Reader, wanted: Input) -> None:
        node, file = reader.running.node, wanted.file
        rest = wanted.size - reader.own.get(file, 0.0)
        under_way, joined = self._flows.get((node, file)), reader.joined.get(file, 0)
        if under_way is None:
            actions: list[Action] = []
            flow = self._disks.flow(rest, (3 * node,), partial(self._through, reader, file, rest))
            self._flows[node, file] = (flow, actions)
            reader.coming[file] = (flow, 0.0)
        elif joined < SHARED and wanted.size <= self._disks.caches[node].capacity:
            flow, actions = under_way
            rest = max(0.0, rest - self._disks.network.left(flow))
            reader.joined[file] = joined + 1
            reader.coming[file] = (flow, rest)
            actions.append(partial(self._alone, reader, file, rest))
        else:
            self._alone(reader, file, rest)
        reader.running.disk_bytes += int(rest)

    def _through(self, reader: _Reader, file: FileId, size: float) -> None:
        """A file has been read that others may have waited for."""
        _, actions = self._flows.pop((reader.running.node, file))
        self._owned(reader, file, size)
        for action in actions:
            action()

    def _alone(self, reader: _Reader, file: FileId, size: float) -> None:
        """Read the rest of a file for oneself."""
        if size < 1:
            self._owned(reader, file, 0.0)
            return
        flow = self._disks.flow(size, (3 * reader.running.node,), partial(self._owned, reader, file, size))
        reader.coming[file] = (flow, 0.0)

    def _owned(self, reader: _Reader, file: FileId, size: float) -> None:
        del reader.coming[file]
        reader.own[file] = reader.own.get(file, 0.0) + size
        self._brought(reader)

    def _brought(self, reader: _Reader) -> None:
        reader.waiting -= 1
        if reader.waiting or reader.running.over:
            return
        node = reader.running.node
        self._reading[node].remove(reader)
        self._ready.setdefault(node, []).append(reader)
        self._settle_later(node)

    def _settle_later(self, node: int) -> None:
        """Find the tasks that may compute, once all has ended that ends at this moment."""
        if self._ready.get(node):
            self._disks.later(self._disks.now, partial(self._settle, node))

    def _settle(self, node: int) -> None:
        """Readers with all their files begin to compute, except those whose files memory has lost meanwhile."""
        group = [reader for reader in self._ready.pop(node, []) if not reader.running.over]
        cache = self._disks.caches[node]
        while group:
            missed, after = _passed(group, cache)
            short = _short(missed, group, cache.capacity)
            if not short:
                break
            group = [reader for reader in group if all(reader is not other for other, _ in short)]
            for reader, lacking in short:
                self._bring(reader, lacking)
        if not group:
            return
        if self._near(node, after):
            self._ready.setdefault(node, []).extend(group)
            return
        after.keep()
        for reader in group:
            reader.done()

    def _near(self, node: int, after: Afterwards) -> bool:
        """Whether a task that shared reads is so near its end that the ready tasks should wait for it.

        If they went through their files now, memory would lose more of what that task has read with them than what it still
        has to read.
        """
        for reader in self._reading.get(node, ()):
            lost = sum(
                each.size
                for each in reader.files
                if each.file in reader.joined
                and each.file not in after
                and reader.own.get(each.file, 0.0) < each.size - 1
            )
            if lost and lost > self._left(reader):
                return True
        return False

    def _left(self, reader: _Reader) -> float:
        left = self._disks.network.left
        return sum(left(flow) + rest for flow, rest in reader.coming.values())


def _passed(readers: Sequence[_Reader], cache: PageCache) -> tuple[list[tuple[_Reader, Input]], Afterwards]:
    """Go through the files of tasks side by side. Returns what memory does not hold then, with the task that asks for it first;
    and the memory afterwards (`cache` is not modified).
    """
    after = Afterwards(cache)
    asked = [(each, reader) for reader in readers for each in reader.files]
    if len(readers) > 1:
        asked.sort(key=lambda one: (one[0], one[1].task))
    missed = []
    for each, reader in asked:
        if each.file not in after:
            missed.append((reader, each))
        after.touch(each.file, each.size)
    return missed, after


def _short(
    missed: Sequence[tuple[_Reader, Input]], group: Sequence[_Reader], capacity: int
) -> list[tuple[_Reader, list[Input]]]:
    """The inputs that no task has made the disk read, by task."""
    lacking: list[tuple[_Reader, list[Input]]] = []
    for reader, each in missed:
        able = group if each.size <= capacity else (reader,)
        if max(other.own.get(each.file, 0.0) for other in able) > each.size - 1:
            continue
        if not lacking or lacking[-1][0] is not reader:
            found = next((files for other, files in lacking if other is reader), None)
            if found is not None:
                found.append(each)
                continue
            lacking.append((reader, []))
        lacking[-1][1].append(each)
    return lacking
