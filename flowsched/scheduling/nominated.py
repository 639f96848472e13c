"""Those for whom others have left are placed before anybody else: see `preemption`."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from flowsched.scheduling.commitment import Committing, commit
from flowsched.scheduling.plan import Reason
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.preemption import Taking
from flowsched.scheduling.pricing import Fit, Offer, price


class Placing(Committing, Protocol):
    """What of a cycle places one group; see `cycle`."""

    waiting: dict[str, list[PodGroup]]
    taking: Taking

    def barred(self, group: PodGroup) -> Reason | None:
        """What keeps a group from being tried at all."""
        ...

    def within_cap(self, offer: Offer) -> Offer:
        """Without extras that would break a cap."""
        ...

    def fit(self, offer: Offer) -> Fit | None:
        """Find room."""
        ...


def serve_nominated(cycle: Placing) -> None:
    """Place those for whom others have left, each on what is held for it and whatever else is free, the oldest first."""
    nominations = cycle.snapshot.nominations
    if not nominations:
        return
    found = [group for groups in cycle.waiting.values() for group in groups if group.key in nominations]
    for group in sorted(found, key=lambda group: group.key):
        if cycle.barred(group) is not None:
            continue
        cycle.taking.give_back(group.key)
        pods = min(nominations[group.key].pods, group.roles[0].count)
        offer = price(group, cycle.snapshot, cycle.catalogue, cycle.profile)
        offer = cycle.within_cap(offer) if group.gang else offer.wanting(pods)
        own = np.zeros(len(cycle.snapshot), dtype=np.bool_)
        own[[node for node, _ in nominations[group.key].room]] = True
        fit = cycle.fit(offer.only(own)) or cycle.fit(offer)
        if fit is None or (not group.gang and fit.pods < pods):
            cycle.taking.hold_again(group.key)
            continue
        commit(cycle, fit)
        if all(bound is not None and not bound.any() for bound in fit.bound):
            cycle.taking.hold_again(
                group.key
            )  # its inputs are copied first; meanwhile its room stays its own
