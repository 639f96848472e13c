"""Flows that share disks and links max-min fairly, on a virtual clock: a fluid model. Seconds and bytes, no packets.

Flows over the same resources have the same rate, so they are one class: a class keeps the bytes that each of its flows has
got since it began (its *level*), and a heap of the levels at which they end. Rates are found by progressive filling
(Bertsekas and Gallager, Data Networks, 6.5.2): the resource that gives each of its flows least settles theirs, and so on.
Only additions, divisions and comparisons in a fixed order: the same on every machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

#: Bytes: less than this is nothing left (floating point, and whole bytes at the end of it).
_CRUMB: Final = 1e-3


@dataclass(slots=True)
class _Class:
    """Flows over one path. `ends`: (level at which it ends, number, flow)."""

    path: tuple[int, ...]
    level: float = 0.0
    rate: float = 0.0
    ends: list[tuple[float, int, Hashable]] = field(default_factory=list)
    flows: int = 0


class Network:
    """Resources with a capacity each, and the flows over them.

    Attributes:
        now: Seconds.
        capacities: Bytes/s by resource. With a `seeks` entry above 0, n flows at once get capacity / (1 + seek * (n - 1)) together:
            what a disk loses when many read it at once.
    """

    def __init__(self, capacities: Sequence[float], seeks: Sequence[float] = ()) -> None:
        self.now = 0.0
        self.capacities = list(capacities)
        self._seeks = [(at, seek) for at, seek in enumerate(seeks) if seek > 0]
        self._classes: dict[tuple[int, ...], _Class] = {}
        self._of: dict[Hashable, _Class] = {}
        self._number = 0
        self._stale = False
        self._next: float | None = None
        #: by resource, bytes that went over it: of all flows, and of those over it alone; None = not counted
        self.carried: tuple[list[float], list[float]] | None = None

    def __len__(self) -> int:
        """How many flows there are."""
        return len(self._of)

    def start(self, flow: Hashable, size_bytes: float, path: Sequence[int]) -> None:
        """A flow begins now.

        Args:
            flow: Its name, not used by another flow that is under way.
            size_bytes: How much, > 0.
            path: The resources it uses, at least one.
        """
        key = tuple(sorted(set(path)))
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = _Class(key)
        self._number += 1
        heapq.heappush(found.ends, (found.level + size_bytes, self._number, flow))
        found.flows += 1
        self._of[flow] = found
        self._stale = True

    def stop(self, flow: Hashable) -> None:
        """A flow is given up. One that is not under way is no matter."""
        found = self._of.pop(flow, None)
        if found is None:
            return
        found.ends = [end for end in found.ends if end[2] != flow]
        heapq.heapify(found.ends)
        self._left(found)

    def over(self, resources: Iterable[int]) -> list[Hashable]:
        """The flows that use any of these resources, the oldest first."""
        asked = frozenset(resources)
        return [flow for flow, found in self._of.items() if not asked.isdisjoint(found.path)]

    def rate(self, flow: Hashable) -> float:
        """Bytes/s that a flow gets now."""
        self._settle()
        return self._of[flow].rate

    def left(self, flow: Hashable) -> float:
        """Bytes of a flow that have not come through yet."""
        found = self._of[flow]
        return next(end[0] for end in found.ends if end[2] == flow) - found.level

    def next_end(self) -> float | None:
        """When the first flow will end if nothing changes, in seconds; None = there is none."""
        self._settle()
        return self._next

    def advance(self, to: float) -> list[Hashable]:
        """Let the time pass, at most to `next_end`. Returns the flows that have ended, in the order in which they would."""
        self._settle()
        passed = to - self.now
        self.now = to
        ended: list[tuple[float, int, Hashable]] = []
        for each in list(self._classes.values()):
            each.level += each.rate * passed
            if self.carried is not None:
                for resource in each.path:
                    self.carried[0][resource] += each.rate * passed * each.flows
                if len(each.path) == 1:
                    self.carried[1][each.path[0]] += each.rate * passed * each.flows
            # A flow that would end within a nanosecond has ended: a clock of this size cannot distinguish the two.
            reach = each.level + max(_CRUMB, each.rate * 1e-9)
            while each.ends and each.ends[0][0] <= reach:
                _, number, flow = heapq.heappop(each.ends)
                ended.append((0.0, number, flow))
                del self._of[flow]
                self._left(each)
        if passed and not ended:
            self._next = None
            self._stale = True
        return [flow for _, _, flow in sorted(ended, key=lambda end: end[:2])]

    def _left(self, found: _Class) -> None:
        found.flows -= 1
        self._stale = True
        if not found.flows:
            del self._classes[found.path]

    def _settle(self) -> None:
        if not self._stale:
            return
        self._stale = False
        left = list(self.capacities)
        count = [0] * len(left)
        through: dict[int, list[_Class]] = {}
        for each in self._classes.values():
            each.rate = -1.0
            for resource in each.path:
                count[resource] += each.flows
                through.setdefault(resource, []).append(each)
        for resource, seek in self._seeks:
            left[resource] /= 1 + seek * max(0, count[resource] - 1)
        heap = [(left[resource] / count[resource], resource) for resource in through]
        heapq.heapify(heap)
        while heap:
            share, resource = heapq.heappop(heap)
            if not count[resource]:
                continue
            now = left[resource] / count[resource]
            if now > share * (1 + 1e-12):  # others have been settled since: it has more for each
                heapq.heappush(heap, (now, resource))
                continue
            for each in through[resource]:
                if each.rate >= 0:
                    continue
                each.rate = now
                for other in each.path:
                    left[other] -= now * each.flows
                    count[other] -= each.flows
        soonest: float | None = None
        for each in self._classes.values():
            if each.rate > 0:
                end = self.now + max(0.0, each.ends[0][0] - each.level) / each.rate
                soonest = end if soonest is None or end < soonest else soonest
        self._next = soonest
