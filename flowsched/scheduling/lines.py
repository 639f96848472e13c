"""Lines: the groups of a queue, or of one user of it, in the order in which they are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.podgroup import PodGroup

#: Who waits for one of these waits until the cluster or its queue is changed: it holds up nobody.
_FOR_EVER: Final = frozenset(
    (
        ReasonCode.PAUSED,
        ReasonCode.NO_MATCHING_NODE,
        ReasonCode.LARGER_THAN_NODE,
        ReasonCode.LARGER_THAN_CLUSTER,
        ReasonCode.BACKLOG_WINDOW,
    )
)


N = TypeVar("N")


class Line(Generic[N]):
    """Groups of one user in one queue (or of all its users), in their order.

    Attributes:
        queue: Name of the queue.
        groups: In the order in which they are looked at.
        at: How many of them are done with in this cycle.
        strict: Whether nobody may pass the head.
        behind: Whom those who are left wait behind; None = nobody.
        node: Where it stands; set by whoever keeps the order.
    """

    __slots__ = ("at", "behind", "groups", "node", "queue", "strict")

    def __init__(self, queue: str, groups: Sequence[PodGroup], strict: bool) -> None:
        self.queue, self.groups, self.strict, self.at = queue, groups, strict, 0
        self.behind: PodGroup | None = None
        self.node: N

    @property
    def head(self) -> PodGroup:
        """Who is looked at next."""
        return self.groups[self.at]

    @property
    def left(self) -> Sequence[PodGroup]:
        """Who has not been looked at."""
        return self.groups[self.at :]

    def hold_up(self, reasons: Sequence[Reason]) -> None:
        """Nobody passes who was looked at last, if it waits (its reason is the last of `reasons`), and not for ever."""
        group, last = self.groups[self.at - 1], reasons[-1] if reasons else None
        if last is not None and last.group == group.key and last.code not in _FOR_EVER:
            self.behind = group

    def passed_over(self, text: str) -> list[Reason]:
        """Why those who are left were not looked at: `text`, unless they wait behind somebody."""
        numbers: dict[str, int] = {}
        code, why = ReasonCode.BACKLOG_WINDOW, text
        if self.behind is not None:
            code, numbers = ReasonCode.QUEUE_ORDER, {"behind": self.behind.key}
            why = f"queue {self.queue} is first in, first out, and {self.behind.name} is before it"
        return [Reason(group.key, code, why, numbers) for group in self.left]
