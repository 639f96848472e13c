"""The state between scheduling rounds: the decisions of the last one, and the moment of the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from flowsched.scheduling.plan import Reason, Reservation
from flowsched.scheduling.pod_group import PodGroup

V = TypeVar("V")


class Answers(Mapping[int, V]):
    """Answers of a round by group, made when they are first read: most rounds follow before a client asks for them.

    Args:
        make: Makes all of them, of values that do not change.
    """

    __slots__ = ("_made", "_make", "_without")

    def __init__(self, make: Callable[[], dict[int, V]] = dict) -> None:
        self._make = make
        self._made: dict[int, V] | None = None
        self._without: set[int] = set()

    def _all(self) -> dict[int, V]:
        make = self._make  # another thread may be the first
        if self._made is None:
            made = make()
            for group in self._without:
                made.pop(group, None)
            self._made = made
            self._make = dict  # the values that it was made from may go
        return self._made

    def __getitem__(self, group: int) -> V:
        """The answer of a group."""
        return self._all()[group]

    def __iter__(self) -> Iterator[int]:
        """The groups."""
        return iter(self._all())

    def __len__(self) -> int:
        """How many groups have one."""
        return len(self._all())

    def forget(self, groups: Iterable[int]) -> None:
        """Drop the answers of some groups."""
        if self._made is None:
            self._without.update(groups)
        else:
            for group in groups:
                self._made.pop(group, None)


class RoundState(msgspec.Struct):
    """Answers of the last scheduling round, and the pace of rounds (`engine.pacing`).

    Attributes:
        reasons: Why a group was not placed in the last round, by its number.
        refused: The requests of those groups, the most important first.
        reservations: Room that is reserved.
        reserved_starts: Group -> the first start that was reserved for it.
        disk_free_at: Node -> when the next task that keeps its disk busy may start, and the datasets that the one before reads.
        under_way: Pods of ours that have not got to their node yet.
        at_limit: As many as may be were under way, and no more follow for a while.
        dirty: Something may let a group start, and no round has been since.
        rest_until: No round takes place before this moment.
        last_round_at: The last round.
        quiet_until: Before this moment time alone lets no group start.
        next_round_at: A round is due at this moment, whatever happens.
    """

    reasons: Answers[Reason] = msgspec.field(default_factory=Answers)
    refused: Answers[PodGroup] = msgspec.field(default_factory=Answers)
    reservations: tuple[Reservation, ...] = ()
    reserved_starts: dict[int, int] = msgspec.field(default_factory=dict)
    disk_free_at: dict[int, tuple[int, tuple[int, ...]]] = msgspec.field(default_factory=dict)
    under_way: set[str] = msgspec.field(default_factory=set)
    at_limit: bool = False
    dirty: bool = True
    rest_until: int = 0
    last_round_at: int = 0
    quiet_until: int = 0
    next_round_at: int | None = None

    def forget(self, groups: Iterable[int]) -> None:
        """Drop the state of groups that are no more."""
        numbers = tuple(groups)
        self.reasons.forget(numbers)
        self.refused.forget(numbers)
