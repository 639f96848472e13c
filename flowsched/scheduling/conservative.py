"""Conservative backfill: every group that waits is promised a start, in order, and nobody may delay an earlier promise.

Two timelines are kept. `ahead` holds what runs and what was planned in this cycle, for groups that go first. `all` also holds what
the last cycle had planned for groups that follow. Who has a plan from the last cycle moves within `all`, so that it disturbs
nobody: without that, a group that may choose between equal nodes takes those that a later one counts on. Only who has no plan
yet, or whose plan cannot be kept since an estimate was wrong, goes by `ahead` alone, before those that follow.

Of a bag its next pod is promised: it has no size of its own.

Source: Feitelson & Weil 1998 (conservative against EASY); the compression step of Mu'alem & Feitelson 2001.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from flowsched.scheduling.devices import DEVICES, parts_of
from flowsched.scheduling.framework import Profile
from flowsched.scheduling.placement import Ints, Spots
from flowsched.scheduling.plan import Reservation
from flowsched.scheduling.podgroup import Kept, PodGroup
from flowsched.scheduling.pricing import Offer
from flowsched.scheduling.promises import Promises, longest_of, reservation_of
from flowsched.scheduling.room import Mask, Room
from flowsched.scheduling.snapshot import Snapshot
from flowsched.scheduling.timeline import Returns, Timeline, amounts_of


class ConservativePromises(Promises):
    """As many reservations as groups wait."""

    def __init__(
        self, snapshot: Snapshot, room: Room, profile: Profile, now: int, backlog: Iterable[PodGroup]
    ) -> None:
        super().__init__(snapshot, room, profile, now)
        self._kept = {group.key: group for group in backlog if group.kept is not None}
        self._lines: tuple[Timeline, Timeline] | None = None
        self._seen = 0  #: of `taken`, how many the timelines know
        self._chosen: tuple[int, int, int, Timeline] | None = None

    def too_long(self, group: PodGroup) -> bool:
        """Never said of a group as such: what holds it up depends on where it would run."""
        return False

    def outlasting(self, offer: Offer) -> Mask | None:
        """Everywhere, once there are promises: what is free until it ends is what it may use."""
        if not self.made and not self._kept:
            return None
        line = self._line(offer)
        end = self._now + longest_of(offer.group, self._profile)
        least = line.least(self._now, end)
        if offer.missing is not None:
            stage = offer.stage_ms(len(self._snapshot))
            longest = int(stage.max(initial=0))
            if longest:  # copies come first: it ends later where they take long
                far = line.least(self._now, end + longest)
                least = np.where((stage > 0)[:, None], far, least)
        axes = len(self._snapshot.axes)
        spare = {axis: np.ascontiguousarray(least[:, axis]) for axis in range(axes)}
        self._room.reserve(spare | {DEVICES: np.ascontiguousarray(least[:, axes:])})
        return self.everywhere

    def earliest(self, offer: Offer) -> tuple[int, tuple[Spots, ...]] | None:
        """When and where the least of a group could start without delaying anybody who was promised a start before it."""
        return self._earliest(offer, self._line(offer))

    def _earliest(self, offer: Offer, line: Timeline) -> tuple[int, tuple[Spots, ...]] | None:
        least = offer.at_least()

        def fits(free: list[Ints]) -> tuple[Spots, ...] | None:
            return least.place(free, self._room, self._snapshot, self._profile)

        return line.earliest(offer.axes, least.tables, longest_of(offer.group, self._profile), fits)

    def reserve(self, offer: Offer) -> int | None:
        """Promise a group its earliest start; None if it could never start."""
        found = self.earliest(offer)
        if found is None:
            return None
        start, spots = found
        # What was promised before and is late already drains its room: see decisions/003.
        earlier = offer.group.promised_ms
        begin = start if earlier is None else max(self._now, min(start, earlier))
        end = start + longest_of(offer.group, self._profile)
        for table, where in zip(offer.tables, spots, strict=True):
            amounts = amounts_of(len(self._snapshot.axes), offer.axes, table, where)
            for line in self._timelines():
                line.take(begin, end, where.nodes, amounts)
        self.made.append(reservation_of(offer, start, spots))
        return start

    def _line(self, offer: Offer) -> Timeline:
        """The timeline that a group goes by; what was planned for itself is not in its way."""
        chosen = (offer.group.key, len(self.taken), len(self.made))
        if self._chosen is None or self._chosen[:3] != chosen:
            ahead, everyone = self._timelines()
            mine = self._kept.pop(offer.group.key, None)
            if mine is not None:
                self._put(everyone, mine, -1)
            line = ahead
            if self._kept:
                found = self._earliest(offer, everyone)
                latest = max(self._now, self._planned_ms(offer.group))
                line = everyone if found is not None and found[0] <= latest else ahead
            self._chosen = (*chosen, line)
        return self._chosen[3]

    @staticmethod
    def _planned_ms(group: PodGroup) -> int:
        """The start it was promised first or has been planned for since, whichever is earlier; 0 = neither."""
        if group.kept is None:
            return 0
        return (
            group.kept.start_ms if group.promised_ms is None else min(group.kept.start_ms, group.promised_ms)
        )

    def _timelines(self) -> tuple[Timeline, Timeline]:
        """Room over time, this cycle's placements included: without and with what later groups count on."""
        axes = range(len(self._snapshot.axes))
        if self._lines is None:
            rows = [self._room.hard(axis) for axis in axes]
            late = self.late_calendar()
            returns = Returns(late.ends, late.nodes, np.hstack([late.amounts, late.devices]))
            devices = self._room.hard(DEVICES) if self._snapshot.devices.matter else None
            self._lines = (
                Timeline(returns, rows, self._now, devices),
                Timeline(returns, rows, self._now, devices),
            )
            self._seen = len(self.taken)
            for group in self._kept.values():
                self._put(self._lines[1], group, 1)
        for part in self.taken[self._seen :]:
            spots = Spots(part.nodes, part.nodes, part.devices)
            amounts = amounts_of(len(axes), part.axes, part.table, spots)
            late_ms = part.late_ms if isinstance(part.late_ms, int) else int(part.late_ms.max())
            for line in self._lines:
                line.take(self._now, late_ms, part.nodes, amounts)
        self._seen = len(self.taken)
        return self._lines

    def _put(self, line: Timeline, group: PodGroup, sign: int) -> None:
        """Take the room that the last cycle planned for a group, or (-1) give it back."""
        if group.kept is None:
            return
        start = max(self._now, group.kept.start_ms)
        end = start + longest_of(group, self._profile)
        width = self._snapshot.devices.width if self._snapshot.devices.matter else 0
        devices = group.kept.devices or ((),) * len(group.roles)
        for role, where, parts in zip(group.roles, group.kept.nodes, devices, strict=True):
            nodes = np.array(where, dtype=np.int64)
            amounts = np.zeros((len(nodes), len(self._snapshot.axes) + width), dtype=np.int64)
            amounts[:, : len(role.shape.requests)] = role.shape.requests
            for at, pod in enumerate(parts if width else ()):
                for device, part in pod:
                    amounts[at, len(self._snapshot.axes) + device] = part
            line.take(start, end, nodes, sign * amounts)


def promises_for(
    snapshot: Snapshot, room: Room, profile: Profile, now: int, backlog: Iterable[PodGroup]
) -> Promises:
    """The promises of one cycle, as the profile wants them."""
    if profile.backfill == "conservative":
        return ConservativePromises(snapshot, room, profile, now, backlog)
    return Promises(snapshot, room, profile, now)


def with_plans(groups: Iterable[PodGroup], reservations: Iterable[Reservation]) -> list[PodGroup]:
    """The groups, each with what the last cycle planned for it."""
    plans = {
        each.group: Kept(
            each.start_ms,
            tuple(tuple(nodes.tolist()) for nodes in each.nodes),
            tuple(tuple(map(parts_of, rows.tolist())) for rows in each.devices),
        )
        for each in reservations
    }
    return [replace(group, kept=plans[group.key]) if group.key in plans else group for group in groups]
