"""The queue tree: who goes next, and how much a queue may have. Weighted hierarchical dominant resource
fairness.

At every level of the tree the child with the lowest weighted dominant share goes first (Ghodsi et al. 2011;
hierarchical after Bhattacharya et al. 2013). A queue of higher priority goes before its siblings, then one
that is below its guarantee. Shares are whole billionths, so that order does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from flowsched.errors import ConfigurationError
from flowsched.scheduling.snapshot import Snapshot

BILLION: Final = 1_000_000_000

#: Of one level of the path: (-priority, 1 unless below its guarantee, share in billionths, name).
QueueKey = tuple[tuple[int, int, int, str], ...]


@dataclass(frozen=True, slots=True)
class Queue:
    """Who pays.

    Args:
        name: Unique.
        weight: Its part beside its siblings', >= 1.
        parent: The queue it belongs to; None = the root.
        guarantee: (R,) while it has less, it goes before siblings that have theirs; may be shorter than the
            axes.
        cap: (R,) what it and its children never exceed; negative = no cap on this axis, and none on axes
            beyond its end.
        reclaimable: Whether others may take back what it has beyond its share.
        priority: Higher goes before siblings.
        paused: Nothing new starts.
        order: Inside the queue: "priority" (the profile's order) or "fifo".
    """

    name: str
    weight: int = 1
    parent: str | None = None
    guarantee: tuple[int, ...] | None = None
    cap: tuple[int, ...] | None = None
    reclaimable: bool = True
    priority: int = 0
    paused: bool = False
    order: Literal["priority", "fifo"] = "priority"


class QueueTree:
    """The queues that were configured. A name that was not has weight 1 and no limits."""

    def __init__(self, queues: Iterable[Queue] = ()) -> None:
        self._queues: dict[str, Queue] = {}
        for queue in queues:
            self.put(queue)

    def put(self, queue: Queue) -> None:
        """Add or replace a queue.

        Raises:
            ConfigurationError: Its weight is not positive, or it would be its own ancestor.
        """
        if queue.weight < 1:
            raise ConfigurationError(f"queue {queue.name!r}: weight {queue.weight} is not at least 1")
        seen, parent = {queue.name}, queue.parent
        while parent is not None:
            if parent in seen:
                raise ConfigurationError(
                    f"queue {queue.name!r}: parent {queue.parent!r} makes it its own ancestor"
                )
            seen.add(parent)
            parent = self.get(parent).parent
        self._queues[queue.name] = queue

    def drop(self, name: str) -> None:
        """Forget a queue; groups that still name it get the default."""
        self._queues.pop(name, None)

    def get(self, name: str) -> Queue:
        """The queue, or the default of that name."""
        return self._queues.get(name) or Queue(name)

    def __iter__(self) -> Iterator[Queue]:
        """All configured queues, in the order in which they were put."""
        return iter(self._queues.values())

    def path(self, name: str) -> tuple[Queue, ...]:
        """The queue and its ancestors, root's child first."""
        queues = [self.get(name)]
        while queues[-1].parent is not None:
            queues.append(self.get(queues[-1].parent))
        return tuple(reversed(queues))

    def paused(self, name: str) -> bool:
        """Whether the queue or an ancestor is paused."""
        return any(queue.paused for queue in self.path(name))


class Shares:
    """What every queue has, as one cycle counts on: what it holds already, and what the cycle gives it."""

    def __init__(self, tree: QueueTree, snapshot: Snapshot) -> None:
        self._tree = tree
        self._total = snapshot.total
        self._usage: dict[str, list[int]] = {}
        self._paths: dict[str, tuple[Queue, ...]] = {}
        self._keys: dict[str, QueueKey] = {}  #: as they are now
        for name in snapshot.paying_queues:
            self.add(name, snapshot.queue_usage(name))

    def path(self, name: str) -> tuple[Queue, ...]:
        """As `QueueTree.path`, remembered."""
        path = self._paths.get(name)
        if path is None:
            path = self._paths[name] = self._tree.path(name)
        return path

    def usage(self, name: str) -> Sequence[int]:
        """(R,) of the queue and its children."""
        return self._usage.get(name) or [0] * len(self._total)

    def add(self, name: str, amount: Sequence[int], times: int = 1) -> None:
        """The queue, and so its ancestors, get `times` this amount."""
        self._keys.clear()
        for queue in self.path(name):
            used = self._usage.setdefault(queue.name, [0] * len(self._total))
            for axis, value in enumerate(amount[: len(used)]):
                used[axis] += times * value

    def paused(self, name: str) -> bool:
        """As `QueueTree.paused`."""
        return any(queue.paused for queue in self.path(name))

    def limited(self, name: str) -> bool:
        """Whether the queue or an ancestor has a cap."""
        return any(queue.cap is not None for queue in self.path(name))

    def key(self, name: str, extra: Sequence[int] = (), times: int = 0) -> QueueKey:
        """Where the queue stands in the order, lowest first, if it had `times` `extra` more."""
        if not times:
            known = self._keys.get(name)
            if known is None:
                known = self._keys[name] = tuple(self._level(queue, (), 0) for queue in self.path(name))
            return known
        return tuple(self._level(queue, extra, times) for queue in self.path(name))

    def _level(self, queue: Queue, extra: Sequence[int], times: int) -> tuple[int, int, int, str]:
        used = list(self.usage(queue.name))
        if times:
            for axis, value in enumerate(extra[: len(used)]):
                used[axis] += times * value
        share = 0
        for have, total in zip(used, self._total, strict=True):
            if total > 0 and have > 0:
                share = max(share, have * BILLION // (total * queue.weight))
        guarantee = queue.guarantee or ()
        sated = all(have >= promised for have, promised in zip(used, guarantee, strict=False))
        return (-queue.priority, int(sated), share, queue.name)

    def turns(self, name: str, amount: Sequence[int], rival: QueueKey, most: int) -> int:
        """How many pods of `amount` the queue gets in a row until it stands behind `rival`: 1..most."""
        low, high = 1, most
        if most > 1 and self.key(name, amount, 1) > rival:
            return 1  # as between queues that have the same
        while low < high:
            middle = (low + high) // 2
            if self.key(name, amount, middle) > rival:
                high = middle
            else:
                low = middle + 1
        return low

    def allowed(self, name: str, amount: Sequence[int], most: int) -> int:
        """How many pods of `amount` the caps of the queue and of its ancestors allow: 0..most."""
        for queue in self.path(name):
            used = self.usage(queue.name)
            for axis, cap in enumerate((queue.cap or ())[: len(used)]):
                asked = amount[axis] if axis < len(amount) else 0
                if cap >= 0 and asked > 0:
                    most = min(most, max(0, cap - used[axis]) // asked)
        return most

    def capped_by(self, name: str, amount: Sequence[int]) -> tuple[str, int] | None:
        """The first queue on the path whose cap forbids `amount`, and the axis; None if it is allowed."""
        for queue in self.path(name):
            used = self.usage(queue.name)
            for axis, cap in enumerate((queue.cap or ())[: len(used)]):
                asked = amount[axis] if axis < len(amount) else 0
                if cap >= 0 and asked > 0 and used[axis] + asked > cap:
                    return queue.name, axis
        return None
