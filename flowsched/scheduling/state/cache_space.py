"""Cache accounting: what the caches of nodes hold and may hold, and which copies a full cache drops.

The catalogue keeps it, for nodes with a limit only. A dataset counts on a node once, as soon as it is there, on its way, or
pinned for a task that will read it there. The expected output of a task counts until it is written. The module does not know
why a task was placed; the caller says what a dataset is worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from enum import IntEnum
from typing import NamedTuple

from flowsched.statement import Statement


class Pin(NamedTuple):
    """The inputs of one pod and its expected output on a node: its inputs stay there while the pin lasts.

    Args:
        node: The node, by index.
        datasets: The datasets that the pod reads.
        output_bytes: The bytes that it is expected to write.
        since_ms: From when on.
        task: The task that these data are for while its pod has no room yet: (workflow, stage, task, attempt); None = the
            pod has room.
    """

    node: int
    datasets: tuple[int, ...]
    output_bytes: int
    since_ms: int
    task: tuple[str, int, int, int] | None = None


class NodeCache:
    """One node's cache.

    Attributes:
        limit: Bytes it may hold; 0 = any number (its limit was taken away).
        used: Bytes of `there` and of what is pinned, each dataset once.
        due: Bytes that will be written.
        there: Datasets that are there or on their way.
        pinned: Dataset -> how many pins it has.
        pins: By owner (a pod's name).
        changes: Grows with every change.
    """

    __slots__ = ("changes", "due", "limit", "pinned", "pins", "there", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.due = 0
        self.there: set[int] = set()
        self.pinned: Counter[int] = Counter()
        self.pins: dict[str, Pin] = {}
        self.changes = 0

    @property
    def free(self) -> int:
        """Bytes that may still come without anything going; negative where there is too much."""
        return self.limit - self.used - self.due if self.limit else 1 << 60

    def free_for(self, reads_bytes: int, here_bytes: int, writes_bytes: int) -> int:
        """As `free`, for a task that reads and writes so much; `here_bytes` of what it reads is here.

        The last tenth is for tasks that find most of what they read: they will let it go, while other tasks only bring more. A
        task that brings at most a tenth of what it finds here is always let in.
        """
        if reads_bytes - here_bytes + writes_bytes <= here_bytes // 10:
            return max(self.free, reads_bytes - here_bytes + writes_bytes)
        tenth = self.limit // 10
        if 0 < reads_bytes <= 2 * here_bytes or reads_bytes + writes_bytes > self.limit - tenth:
            return self.free
        return self.free - tenth

    def has(self, dataset: int) -> bool:
        """Whether the dataset counts here already."""
        return dataset in self.there or dataset in self.pinned


class Caches:
    """The caches that have a limit, by node index.

    Attributes:
        of: Node -> its cache.
        sizes: Bytes that a dataset takes in a cache, by dataset: its size, or 0 where nodes read it in place.
        used_at: (dataset, node) -> when it came there or was last read there, ms.
        owner: Pod -> node of its pin.
        evicted_bytes: Node -> bytes that were dropped there to make room, since the start.
        refetched_bytes: Node -> bytes that came there again after they had been dropped.
        dropped: (dataset, node) that was dropped and has not come again.
    """

    def __init__(self, sizes: list[int]) -> None:
        self.of: dict[int, NodeCache] = {}
        self.sizes = sizes
        self.used_at: dict[tuple[int, int], int] = {}
        self.owner: dict[str, int] = {}
        self.waiting: set[str] = set()  #: owners of pins without room
        self.evicted_bytes: Counter[int] = Counter()
        self.refetched_bytes: Counter[int] = Counter()
        self.dropped: set[tuple[int, int]] = set()
        self.grown: set[int] = set()  #: nodes that hold more than before, for cache evictions
        self._smallest: int | None = None

    @property
    def smallest(self) -> int:
        """The smallest limit of any cache."""
        if self._smallest is None:
            self._smallest = min((cache.limit for cache in self.of.values() if cache.limit), default=1 << 62)
        return self._smallest

    def limit(self, node: int, limit_bytes: int) -> None:
        """A cache that is known has another limit."""
        cache = self.of[node]
        cache.limit, self._smallest = limit_bytes, None
        cache.changes += 1
        self.grown.add(node)

    def settle(self, dataset: int, node: int, there: bool) -> None:
        """The dataset is there (or on its way there), or it is not. Idempotent, and its own undo."""
        cache = self.of.get(node)
        if cache is None or (dataset in cache.there) is there:
            return
        cache.changes += 1
        if there:
            cache.there.add(dataset)
            self.grown.add(node)
            if dataset not in cache.pinned:
                cache.used += self.sizes[dataset]
        else:
            cache.there.discard(dataset)
            if dataset not in cache.pinned:
                cache.used -= self.sizes[dataset]

    def resize(self, dataset: int, size_bytes: int) -> None:
        """The dataset turns out to take another number of bytes."""
        more, self.sizes[dataset] = size_bytes - self.sizes[dataset], size_bytes
        for node, cache in self.of.items():
            if cache.has(dataset):
                cache.used += more
                cache.changes += 1
                self.grown.add(node)

    def keep(self, datasets: Set[int]) -> None:
        """Forget when other datasets were read or dropped."""
        self.used_at = {pair: at for pair, at in self.used_at.items() if pair[0] in datasets}
        self.dropped = {pair for pair in self.dropped if pair[0] in datasets}

    def pin(self, owner: str, pin: Pin, statement: Statement) -> None:
        """Pin the inputs of a pod; its earlier pin is released."""
        if self.owner.get(owner) is not None:
            self.release(owner, statement)
        if pin.node in self.of:
            self._put(owner, pin)
            statement.undo_with(lambda: self._unpin(owner))

    def release(self, owner: str, statement: Statement) -> Pin | None:
        """Release the pin of the pod of that name, if it has one."""
        node = self.owner.get(owner)
        if node is None:
            return None
        pin = self._unpin(owner)
        statement.undo_with(lambda: self._put(owner, pin))
        return pin

    def _put(self, owner: str, pin: Pin) -> None:
        cache = self.of[pin.node]
        cache.pins[owner] = pin
        self.owner[owner] = pin.node
        if pin.task is not None:
            self.waiting.add(owner)
        cache.due += pin.output_bytes
        cache.changes += 1
        for dataset in pin.datasets:
            if not cache.has(dataset):
                cache.used += self.sizes[dataset]
            cache.pinned[dataset] += 1

    def _unpin(self, owner: str) -> Pin:
        cache = self.of[self.owner.pop(owner)]
        self.waiting.discard(owner)
        pin = cache.pins.pop(owner)
        cache.due -= pin.output_bytes
        cache.changes += 1
        for dataset in pin.datasets:
            cache.pinned[dataset] -= 1
            if not cache.pinned[dataset]:
                del cache.pinned[dataset]
                if dataset not in cache.there:
                    cache.used -= self.sizes[dataset]
        return pin


# ---- which copies go ----
#
# First the copies that no task needs, then those that are worth least for their bytes.


class Need(IntEnum):
    """How much a copy is needed, the least first."""

    NOBODY = 0  #: no task will read it any more
    ELSEWHERE = 1  #: a task will read it, and it can be fetched again
    AGAIN = 2  #: a task will read it, and only its producer could make it again


class Copy(NamedTuple):
    """A copy that may be dropped. `value`: what its absence would cost for each byte, in any unit; `used_at`: ms."""

    dataset: int
    size_bytes: int
    need: Need
    value: int
    used_at: int


def choose(copies: Iterable[Copy], shortage_bytes: int) -> tuple[Copy, ...]:
    """The copies to drop so that so many bytes are freed, the least valuable first; () where all together are too few.

    Of those, the most valuable ones are spared again where the rest is enough: one large copy of little value may do for many.
    """
    chosen: list[Copy] = []
    freed = 0
    for copy in sorted(copies, key=lambda c: (c.need, c.value, c.used_at, c.dataset)):
        if freed >= shortage_bytes:
            break
        if copy.size_bytes > 0:
            chosen.append(copy)
            freed += copy.size_bytes
    if freed < shortage_bytes:
        return ()
    for copy in reversed(chosen[:]):
        if freed - copy.size_bytes >= shortage_bytes:
            freed -= copy.size_bytes
            chosen.remove(copy)
    return tuple(chosen)
