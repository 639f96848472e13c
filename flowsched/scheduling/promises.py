"""What a cycle promises the first group that must wait, and how that binds the groups after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from flowsched.scheduling.devices import DEVICES
from flowsched.scheduling.framework import Profile
from flowsched.scheduling.placement import Ints, Spots
from flowsched.scheduling.plan import Reservation
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.pricing import Offer
from flowsched.scheduling.reservation import Calendar, Taken, promised, seats_of
from flowsched.scheduling.room import Mask, Room
from flowsched.scheduling.snapshot import Snapshot

_NEVER: Final = 1 << 62


def runtime_of(group: PodGroup, profile: Profile) -> int:
    """Expected ms, the profile's default where nothing is known."""
    return profile.default_runtime_ms if group.runtime_ms is None else group.runtime_ms


def longest_of(group: PodGroup, profile: Profile) -> int:
    """What it may well take, in ms: who is let in before a promise must not break it."""
    return runtime_of(group, profile) if group.high_ms is None else group.high_ms


def reservation_of(offer: Offer, start_ms: int, spots: Sequence[Spots]) -> Reservation:
    """A promise, in the order of the group's roles."""
    by_role = dict(zip(offer.order, spots, strict=True))
    roles = range(len(offer.order))
    devices = [by_role[role].devices for role in roles]
    return Reservation(
        offer.group.key,
        start_ms,
        tuple(by_role[role].nodes for role in roles),
        tuple(each for each in devices if each is not None),
    )


class Promises:
    """At most one reservation in a cycle (EASY), and the calendar it comes from.

    Attributes:
        made: The reservations made.
        taken: What this cycle has started; whoever starts pods adds to it.
        everywhere: (N,) all True.
    """

    def __init__(self, snapshot: Snapshot, room: Room, profile: Profile, now: int) -> None:
        self._snapshot, self._room, self._profile, self._now = snapshot, room, profile, now
        self.made: list[Reservation] = []
        self.taken: list[Taken] = []
        self.everywhere: Mask = np.ones(len(snapshot), dtype=np.bool_)
        self._calendars: dict[bool, tuple[int, Calendar]] = {}  #: and of `taken`, how many it knows
        self._soonest: tuple[int, int] | None = (
            None  #: the first end of all, and how many of `taken` it knows
        )
        self._deadline = 0  #: ms; what would run beyond it stays off the reserved room

    def too_long(self, group: PodGroup) -> bool:
        """Whether a group would outlast the reservation's start wherever it started now."""
        return bool(self.made) and self._now + longest_of(group, self._profile) > self._deadline

    def outlasting(self, offer: Offer) -> Mask | None:
        """(N,) where the group would outlast the reservation's start, staging included; None = nowhere."""
        if not self.made:
            return None
        if offer.missing is None:
            return self.everywhere if self.too_long(offer.group) else None
        end = self._now + longest_of(offer.group, self._profile)
        return end + offer.stage_ms(len(self._snapshot)) > self._deadline

    def calendar(self) -> Calendar:
        """When room is expected to be free, this cycle's placements included."""
        return self._fresh(late=False)

    def soonest(self) -> int:
        """When the first of what holds room is expected to end, this cycle's placements included: as the calendar says, but cheap
        to ask for again once more has been placed.
        """
        if self._soonest is None:
            ends = self.calendar().ends
            self._soonest = int(ends[0]) if len(ends) else _NEVER, len(self.taken)
        moment, known = self._soonest
        for part in self.taken[known:]:
            end = part.end_ms if isinstance(part.end_ms, int) else int(part.end_ms.min(initial=_NEVER))
            moment = min(moment, end)
        self._soonest = moment, len(self.taken)
        return moment

    def late_calendar(self) -> Calendar:
        """When one can count on it."""
        return self._fresh(late=True)

    def _fresh(self, *, late: bool) -> Calendar:
        known, calendar = self._calendars.get(late, (0, None))
        if calendar is None:
            calendar = Calendar(self._snapshot, self._profile.default_runtime_ms, self._now, late=late)
        calendar.add(self.taken[known:])
        self._calendars[late] = (len(self.taken), calendar)
        return calendar

    def earliest(self, offer: Offer) -> tuple[int, tuple[Spots, ...]] | None:
        """When and where the least of a group could start, if nothing else started."""
        rows = [self._room.hard(axis) for axis in offer.axes]
        least = offer.at_least()

        def fits(free: list[Ints]) -> tuple[Spots, ...] | None:
            return least.place(free, self._room, self._snapshot, self._profile)

        return self.late_calendar().earliest(offer.axes, rows, fits, self._now)

    def reserve(self, offer: Offer) -> int | None:
        """Promise a group its earliest start; None if there is a promise already, or it could never start."""
        if self._profile.backfill == "none" or self.made:
            return None
        found = self.earliest(offer)
        if found is None:
            return None
        start, spots = found
        axes = range(len(self._snapshot.axes))
        kept = promised(len(axes), offer.axes, offer.tables, spots, len(self._snapshot))
        freed = [self.late_calendar().freed(axis, start) for axis in axes]
        spare = {axis: self._room.hard(axis) + freed[axis] - kept[axis] for axis in axes}
        if self._snapshot.devices.matter:
            free = self._room.hard(DEVICES) + self.late_calendar().freed(DEVICES, start)
            spare[DEVICES] = free - seats_of(spots, *free.shape)
        self._room.reserve(spare)
        self.made.append(reservation_of(offer, start, spots))
        earlier = offer.group.promised_ms
        self._deadline = start if earlier is None else min(start, earlier)
        return start
