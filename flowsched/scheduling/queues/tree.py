"""The queue tree, what every queue has in one cycle, and how much it may have. `fair_share` decides which goes next.

Shares are whole billionths, so that order does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from flowsched.errors import ConfigurationError
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.state.usage import Payer

BILLION: Final = 1_000_000_000
_MOST: Final = 1 << 62


class Queue(msgspec.Struct, frozen=True):
    """A queue: its groups are charged to it, and it has a weight, a guarantee and a cap.

    Args:
        name: Unique.
        weight: Its part beside its siblings', >= 1.
        parent: The queue it belongs to; None = the root.
        guarantee: (R,) while it has less, it goes before siblings that have theirs; may be shorter than the
            axes.
        cap: (R,) what it and its children never exceed; negative = no cap on this axis, and none on axes
            beyond its end.
        reclaimable: Whether others may take back the room that it has beyond its share.
        priority: Higher goes before siblings.
        paused: Nothing new starts.
        order: Inside the queue: "best-effort" (the profile's order; a group that fits may pass one that does not) or
            "fifo" (by priority and arrival; no group passes the head).
    """

    name: str
    weight: int = 1
    parent: str | None = None
    guarantee: tuple[int, ...] | None = None
    cap: tuple[int, ...] | None = None
    reclaimable: bool = True
    priority: int = 0
    paused: bool = False
    order: Literal["best-effort", "fifo"] = "best-effort"


class _Facts(NamedTuple):
    """Facts about a tree as a whole, computed once: it may have thousands of queues."""

    nested: bool
    guarantees: bool
    ranks: bool
    parents: frozenset[str]


class QueueTree:
    """The queues that were configured. A name that was not has weight 1 and no limits."""

    def __init__(self, queues: Iterable[Queue] = ()) -> None:
        self._queues: dict[str, Queue] = {}
        self._below: dict[str | None, tuple[str, ...]] | None = None
        self._facts: _Facts | None = None
        self.changes = 0  #: how often one was added, replaced or forgotten
        for queue in queues:
            self.put(queue)

    def put(self, queue: Queue) -> None:
        """Add or replace a queue.

        Raises:
            ConfigurationError: Its weight is not positive, or it would be its own ancestor.
        """
        if queue.weight < 1:
            raise ConfigurationError(f"queue {queue.name!r}: weight {queue.weight} is not at least 1")
        visited, parent = {queue.name}, queue.parent
        while parent is not None:
            if parent in visited:
                raise ConfigurationError(
                    f"queue {queue.name!r}: parent {queue.parent!r} makes it its own ancestor"
                )
            visited.add(parent)
            parent = self.get(parent).parent
        self._queues[queue.name] = queue
        self._below = self._facts = None
        self.changes += 1

    def drop(self, name: str) -> None:
        """Forget a queue; groups that still name it get the default."""
        self._queues.pop(name, None)
        self._below = self._facts = None
        self.changes += 1

    def get(self, name: str) -> Queue:
        """The queue, or the default of that name."""
        return self._queues.get(name) or Queue(name)

    def configured(self, name: str) -> Queue | None:
        """The queue, if it is configured."""
        return self._queues.get(name)

    def __len__(self) -> int:
        """How many are configured."""
        return len(self._queues)

    def __bool__(self) -> bool:
        """Always True: a tree without configured queues is a tree too."""
        return True

    def __iter__(self) -> Iterator[Queue]:
        """All configured queues, in the order in which they were put."""
        return iter(self._queues.values())

    def path(self, name: str) -> tuple[Queue, ...]:
        """The queue and its ancestors, root's child first."""
        queues = [self.get(name)]
        while queues[-1].parent is not None:
            queues.append(self.get(queues[-1].parent))
        return tuple(reversed(queues))

    def below(self, name: str | None) -> tuple[str, ...]:
        """The configured children of a queue, sorted by name; of None, the children of the root."""
        if self._below is None:
            self._below = {}
            for queue in sorted(self._queues.values(), key=lambda queue: queue.name):
                self._below[queue.parent] = (*self._below.get(queue.parent, ()), queue.name)
        return self._below.get(name, ())

    @property
    def nested(self) -> bool:
        """Whether any queue is below another."""
        return self._all_facts().nested

    @property
    def guarantees(self) -> bool:
        """Whether any queue has a guarantee."""
        return self._all_facts().guarantees

    @property
    def ranks(self) -> bool:
        """Whether any queue has a priority."""
        return self._all_facts().ranks

    @property
    def parents(self) -> frozenset[str]:
        """Queues that have queues below them."""
        return self._all_facts().parents

    def _all_facts(self) -> _Facts:
        if self._facts is None:
            every = self._queues.values()
            self._facts = _Facts(
                any(queue.parent is not None for queue in every),
                any(queue.guarantee for queue in every),
                any(queue.priority for queue in every),
                frozenset([queue.parent for queue in every if queue.parent is not None]),
            )
        return self._facts

    def paused(self, name: str) -> bool:
        """Whether the queue or an ancestor is paused."""
        return any(queue.paused for queue in self.path(name))


def guaranteed(tree: QueueTree, name: str, axes: int) -> tuple[int, ...]:
    """(R,) what a queue is guaranteed: its own guarantee, and at least what those below it are guaranteed together."""
    below = [0] * axes
    for child in tree.below(name):
        for axis, floor in enumerate(guaranteed(tree, child, axes)):
            below[axis] += floor
    own = tree.get(name).guarantee or ()
    return tuple(max(own[axis] if axis < len(own) else 0, floor) for axis, floor in enumerate(below))


def largest_share(amount: Sequence[int], total: Sequence[int]) -> int:
    """The axis of which a request takes the largest share."""
    parts = [
        (need * BILLION // whole if whole > 0 else BILLION * BILLION) if need > 0 else -1
        for need, whole in zip(amount, total, strict=False)
    ]
    return parts.index(max(parts, default=-1)) if parts else 0


class Shares:
    """The usage of every queue, as one cycle counts on: its claims so far, and the cycle's placements.

    Attributes:
        total: (R,) what the cluster has.
    """

    def __init__(self, tree: QueueTree, snapshot: Snapshot) -> None:
        self._tree, self._book = tree, snapshot.usage
        self.total = snapshot.total
        self._axes = len(self.total)
        self._usage: dict[str, list[int]] = {}
        self._paths: dict[str, tuple[Queue, ...]] = {}
        self._users: dict[Payer, list[int]] = {}  #: of those that were asked for
        self._nested = tree.nested
        self._past: Mapping[str, Sequence[int]] = self._book.faded_queues(self._axes)
        if self._nested:
            for name in self._book.queues:
                self.add(name, self._book.of_queue(name))
            self._past = self._with_those_below(self._past)

    def _with_those_below(self, own: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        whole: dict[str, list[int]] = {}
        for name, amounts in own.items():
            for queue in self.path(name):
                row = whole.setdefault(queue.name, [0] * self._axes)
                for axis, amount in enumerate(amounts):
                    row[axis] += amount
        return whole

    def path(self, name: str) -> tuple[Queue, ...]:
        """As `QueueTree.path`, remembered."""
        path = self._paths.get(name)
        if path is None:
            path = self._paths[name] = self._tree.path(name)
        return path

    def usage(self, name: str) -> list[int]:
        """(R,) the usage of the queue and the queues below it. The same list for the whole cycle: it changes with `add`."""
        used = self._usage.get(name)
        if (
            used is None
        ):  # it has no queues below it that would count for it too, or none of its groups holds anything
            booked = () if self._nested else self._book.of_queue(name)
            used = [*booked[: self._axes], *[0] * (self._axes - len(booked))] if booked else [0] * self._axes
            self._usage[name] = used
        return used

    def past(self, name: str) -> Sequence[int]:
        """(R,) what the queue and those below it have held of late (`UsageBook.faded`); empty = nothing."""
        return self._past.get(name, ())

    def of_user(self, payer: Payer) -> list[int]:
        """(R,) of one user of a queue, as `usage`."""
        used = self._users.get(payer)
        if used is None:
            booked = list(self._book.of_payer(payer))[: self._axes]
            used = self._users[payer] = booked + [0] * (self._axes - len(booked))
        return used

    def past_of_user(self, payer: Payer) -> Sequence[int]:
        """(R,) as `past`, of one user of a queue."""
        past = self._book.faded().get(payer, ())
        return (*past, *[0] * (self._axes - len(past))) if past else ()

    def add(self, name: str, amount: Sequence[int], times: int = 1, user: str | None = None) -> None:
        """The queue (by that user), and so its ancestors, get `times` this amount.

        Users must be asked for by `of_user` before anything is added for them.
        """
        rows = [self.usage(queue.name) for queue in self.path(name)] if self._nested else [self.usage(name)]
        if user is not None and self._users:
            row = self._users.get(Payer(name, user))
            rows += [] if row is None else [row]
        for used in rows:
            for axis, value in enumerate(amount[: len(used)]):
                if value:
                    used[axis] += times * value

    def paused(self, name: str) -> bool:
        """As `QueueTree.paused`."""
        return any(queue.paused for queue in self.path(name))

    def limited(self, name: str) -> bool:
        """Whether the queue or an ancestor has a cap."""
        return any(queue.cap is not None for queue in self.path(name))

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
        """The first queue on the path with a cap that forbids `amount`, and the axis; None if it is allowed."""
        for queue in self.path(name):
            used = self.usage(queue.name)
            for axis, cap in enumerate((queue.cap or ())[: len(used)]):
                asked = amount[axis] if axis < len(amount) else 0
                if cap >= 0 and asked > 0 and used[axis] + asked > cap:
                    return queue.name, axis
        return None
