"""Move or wait: whether a pod is better off on the node with its data, although that is busy now (LOCALITY, f).

Moving costs the copy, and half of it again for the link that others could use; waiting costs the time until
room is expected on a node with the data. Bytes are staged before cores are taken, so moving costs network
and time, never cores. A copy that takes next to nothing is never waited for. An end that keeps slipping is
expected ever later (see `reservation`), so no wait goes on for ever: once it looks longer than the copy,
the pod moves.

What has been staged once is not staged elsewhere while the first promise of the cycle is still to be had: it
waits for its data's nodes with a reservation. Otherwise a stream of small work could chase it from node to
node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement import Ints, Spots
from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.pricing import Fit, Offer
from flowsched.scheduling.reservation import Calendar

Earliest = Callable[[Offer], tuple[int, tuple[Spots, ...]] | None]

#: How many ends on nodes with the data are looked at for one group, at most.
_ENDS: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """A group that had better wait.

    Args:
        reason: Why, and until when.
        offer: For which nodes.
        keep: What of it need not wait; None = nothing.
    """

    reason: Reason
    offer: Offer
    keep: Fit | None


class Delays:
    """The decisions to wait of one cycle; it remembers which future room is awaited already.

    Args:
        now: Wall-clock ms.
        shortest_ms: `shortest_wait_ms` of the profile.
    """

    def __init__(self, now: int, shortest_ms: int) -> None:
        self.now = now
        self.shortest_ms = shortest_ms
        #: (node, axis) -> what is awaited there already
        self.awaited: dict[tuple[int, int], int] = {}

    def judge(
        self,
        fit: Fit,
        calendar: Callable[[], Calendar],
        soonest: Callable[[], int],
        earliest: Earliest,
        rows: Sequence[Ints],
        promised: bool,
    ) -> Wait | None:
        """Whether (some of) a group should wait for its data's nodes.

        Args:
            fit: Where it would go now.
            calendar: When room will be free.
            soonest: When some will be, at the earliest.
            earliest: When an offer could start.
            rows: For each of the offer's axes, (N,) hard room now.
            promised: Whether the cycle has made its promise already.
        """
        offer = fit.offer
        local = offer.local
        if local is None or not (local & offer.tables[0].allowed).any():
            return None
        stage = offer.stage_ms(len(local))
        away = [np.flatnonzero(~local[spots.nodes]) for spots in fit.spots]
        dearest = max(
            (int(stage[s.nodes[a]].max()) for s, a in zip(fit.spots, away, strict=True) if len(a)), default=0
        )
        sticky = bool(offer.group.staged_on) and not promised
        if dearest == 0 or (dearest < self.shortest_ms and not sticky):
            return None
        if offer.group.gang or sticky:
            here = offer.only(local)
            found = earliest(here if offer.group.gang else here.wanting(1))
            if found is None or found[0] <= self.now:
                return None
            if sticky or found[0] - self.now < dearest:
                keep = None if offer.group.gang else without(fit, away[0])
                return Wait(self._reason(offer, found[0], dearest), here.at_least(), keep)
            return None
        if self.now + dearest <= soonest():
            return None  # every copy will have come before anything ends
        return self._some(fit, offer.only(local), stage, away[0], calendar(), rows)

    def _some(
        self,
        fit: Fit,
        here: Offer,
        stage: Ints,
        away: NDArray[np.intp],
        calendar: Calendar,
        rows: Sequence[Ints],
    ) -> Wait | None:
        """A bag: its dearest pods against the earliest future rooms beside the data, one by one."""
        nodes = fit.spots[0].nodes
        costs = stage[nodes[away]]
        dearest_first = away[np.argsort(-costs, kind="stable")]
        horizon = self.now + int(costs.max())
        sums = here.by_sums()  # what is expected of busy nodes is no exact science
        slots = self._slots(sums, calendar, rows[: len(sums.axes)], horizon, len(away))
        waiting = 0
        for at, (end, _node) in zip(dearest_first.tolist(), slots, strict=False):
            cost = int(stage[nodes[at]])
            if cost < self.shortest_ms or end - self.now >= cost:
                break
            waiting += 1
        if not waiting:
            return None
        for _, node in slots[:waiting]:
            for axis, need in zip(sums.axes, sums.tables[0].needs, strict=True):
                amount = need if isinstance(need, int) else int(need[node])
                self.awaited[node, axis] = self.awaited.get((node, axis), 0) + amount
        reason = self._reason(here, slots[0][0], int(costs.max()))
        return Wait(reason, here.wanting(1), without(fit, dearest_first[:waiting]))

    def _slots(
        self, here: Offer, calendar: Calendar, rows: Sequence[Ints], horizon: int, wanted: int
    ) -> list[tuple[int, int]]:
        """(end, node) of future rooms for one pod each, earliest first, before `horizon`."""
        table = here.tables[0]
        before = int(np.searchsorted(calendar.ends, horizon, side="left"))
        ends = np.flatnonzero(table.allowed[calendar.nodes[:before]])[:_ENDS]
        free: dict[int, list[int]] = {}
        copies: dict[int, int] = {}
        slots: list[tuple[int, int]] = []
        for at in ends.tolist():
            node = int(calendar.nodes[at])
            needs = [need if isinstance(need, int) else int(need[node]) for need in table.needs]
            if node not in free:
                awaited = [self.awaited.get((node, axis), 0) for axis in here.axes]
                free[node] = [int(row[node]) - less for row, less in zip(rows, awaited, strict=True)]
                copies[node] = max(0, _copies(free[node], needs))
            for position, axis in enumerate(here.axes):
                free[node][position] += int(calendar.amounts[at, axis])
            now = max(0, _copies(free[node], needs))
            slots.extend([(int(calendar.ends[at]), node)] * (now - copies[node]))
            copies[node] = now
            if len(slots) >= wanted:
                break
        return slots[:wanted]

    def _reason(self, offer: Offer, start: int, stage_ms: int) -> Reason:
        wait = start - self.now
        text = (
            f"the node with its data has room in about {(wait + 999) // 1000} s; "
            f"a copy would cost {(stage_ms + 999) // 1000} s"
        )
        numbers = {"wait_ms": wait, "copy_ms": stage_ms}
        return Reason(offer.group.key, ReasonCode.WAITING_FOR_LOCALITY, text, numbers, start)


def _copies(free: Sequence[int], needs: Sequence[int]) -> int:
    return min((have // need for have, need in zip(free, needs, strict=True) if need), default=1)


def without(fit: Fit, dropped: NDArray[np.intp]) -> Fit | None:
    """A bag's fit without some of its pods (by their place in it); None when none is left."""
    spots, bound = fit.spots[0], fit.bound[0]
    keep = np.delete(np.arange(len(spots.nodes)), dropped)
    if not len(keep):
        return None
    return replace(fit, spots=(spots.only(keep),), bound=(None if bound is None else bound[keep],))
