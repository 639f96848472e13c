"""Why shapes find no room, remembered: most steps start and end nobody, and all who wait are told the same again.

What is remembered holds as long as no claim and no node changes; where this cycle has placed anybody, nothing is looked up.
"""

from __future__ import annotations

from typing import Final

from flowsched.scheduling.explain import why_not
from flowsched.scheduling.framework import Profile
from flowsched.scheduling.plan import Reason
from flowsched.scheduling.pricing import Offer
from flowsched.scheduling.room import Room
from flowsched.scheduling.snapshot import Snapshot

_KEY: Final = "refusals"


class Refusals:
    """Refusals of one cycle, and of those before it in which the nodes were as full."""

    def __init__(self, snapshot: Snapshot, room: Room, profile: Profile) -> None:
        self._snapshot, self._room, self._profile = snapshot, room, profile
        self._known: dict[object, Reason] | None = None

    def why(self, offer: Offer, family: object) -> Reason:
        """As `why_not`. `family`: what offers have in common that are refused for the same lack of room."""
        group = offer.group
        alone = (
            not group.shut and offer.company is None and offer.rack is None and group.min_resources is None
        )
        if group.gang or not alone or self._room.changes or offer.tables[0].most is not None:
            return why_not(offer, self._room, self._snapshot, self._profile)
        known = self._remembered()
        key = (family, offer.axes, group.roles[0].name)
        reason = known.get(key)
        if reason is None:
            reason = known[key] = why_not(offer, self._room, self._snapshot, self._profile)
        return reason if reason.group == group.key else reason.of(group.key)

    def _remembered(self) -> dict[object, Reason]:
        if self._known is None:
            # Versions only grow while nothing is undone, and who undoes a step empties the cache.
            stamp = int(self._snapshot.version.sum())
            kept = self._snapshot.cache.get(_KEY)
            if kept is None or kept[0] != stamp:
                kept = self._snapshot.cache[_KEY] = (stamp, {})
            self._known = kept[1]
        return self._known
