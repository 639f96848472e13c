"""The book of idle room: how much of what was idle for how long, hour by hour, and why.

Between two steps nothing changes, so the split of a step holds until the next. It is made anew at most once in
`resolution_ms` (0: after every step that changed something), and a step that comes sooner asks to be woken for it: a
busy second costs one split, a quiet night none. Amounts are whole numbers (milli-CPU ms, byte ms, milli-GPU ms), so
nothing is lost by adding up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from flowsched.engine.state import EngineState
from flowsched.scheduling.explain.idle import Cause, Split, split
from flowsched.scheduling.state.snapshot import AXES

HOUR_MS: Final = 3_600_000
#: What is accounted for, and where it is among the axes.
RESOURCES: Final = ("cpu", "memory", "gpu")
_AT: Final = tuple(AXES.index(name) for name in RESOURCES)
#: A split of so many nodes is kept for a ms at least: 10,000 nodes, 5 s.
NODES_PER_MS: Final = 2
#: Hours that are remembered.
KEPT_HOURS: Final = 24 * 31
#: Names that are told apart in an hour, of one cause.
_NAMES: Final = 16
_OTHERS: Final = "others"

Amounts = tuple[int, ...]  #: by `RESOURCES`


class Hour(msgspec.Struct):
    """What was idle in one hour (or a part of it, or several), in units of the axis times ms.

    Attributes:
        idle: By cause.
        capacity: Of nodes that took pods. `capacity` less the sum of `idle` is what was used.
        off: Of nodes that took none.
        blame: By cause and name; see `scheduling.idle.Split`.
        covered_ms: How much of the hour is accounted for.
    """

    idle: dict[Cause, Amounts] = msgspec.field(default_factory=dict)
    capacity: Amounts = (0,) * len(RESOURCES)
    off: Amounts = (0,) * len(RESOURCES)
    blame: dict[tuple[Cause, str], Amounts] = msgspec.field(default_factory=dict)
    covered_ms: int = 0

    def add(self, other: Hour, times: int = 1) -> None:
        """Add another one, so many times over."""
        for cause, amount in other.idle.items():
            self.idle[cause] = _plus(self.idle.get(cause), amount, times)
        self.capacity = _plus(self.capacity, other.capacity, times)
        self.off = _plus(self.off, other.off, times)
        self.covered_ms += other.covered_ms * times
        for (cause, name), amount in other.blame.items():
            key = (cause, name)
            if key not in self.blame and sum(known is cause for known, _ in self.blame) >= _NAMES:
                key = (cause, _OTHERS)
            self.blame[key] = _plus(self.blame.get(key), amount, times)

    def plain(self) -> dict[str, Any]:
        """As plain values, to be stored."""
        return {
            "idle": {cause.name.lower(): list(amount) for cause, amount in self.idle.items() if any(amount)},
            "capacity": list(self.capacity),
            "off": list(self.off),
            "blame": [[cause.name.lower(), name, list(each)] for (cause, name), each in self.blame.items()],
            "covered_ms": self.covered_ms,
        }

    @staticmethod
    def from_plain(values: Mapping[str, Any]) -> Hour:
        """The hour that `plain` made these values of."""
        return Hour(
            idle={Cause[name.upper()]: tuple(amount) for name, amount in values["idle"].items()},
            capacity=tuple(values["capacity"]),
            off=tuple(values["off"]),
            blame={(Cause[of.upper()], name): tuple(amount) for of, name, amount in values["blame"]},
            covered_ms=values["covered_ms"],
        )

    def idle_of(self, resource: str) -> int:
        """All that was idle of a resource."""
        at = RESOURCES.index(resource)
        return sum(amount[at] for amount in self.idle.values())


class IdleBook:
    """The book.

    Args:
        resolution_ms: How old a split may be before a step makes a new one.

    Attributes:
        hours: By number since the epoch. Read `total` and `between`, which close the current interval first.
    """

    def __init__(self, resolution_ms: int = 1_000) -> None:
        self.resolution_ms = resolution_ms
        self.hours: dict[int, Hour] = {}
        self._since: int | None = None
        self._now = Hour()  #: what one ms adds
        self._seen: tuple[object, ...] = ()

    def note(self, state: EngineState, now: int) -> int | None:
        """A step was kept.

        Returns:
            When to step again, so that what is skipped now is seen; None = no need.
        """
        seen = (
            state.cluster.snapshot.generation,
            int(state.cluster.snapshot.version.sum()),
            state.cluster.snapshot.any_staging,
        )
        if self._since is not None and self._seen[:-1] == seen and self._seen[-1] is state.round.reasons:
            return None
        span = max(
            self.resolution_ms, len(state.cluster.snapshot) // NODES_PER_MS if self.resolution_ms else 0
        )
        if self._since is not None and now - self._since < span:
            return self._since + span
        self.close(now)
        waiting = [
            (state.round.refused[number], reason)
            for number, reason in state.round.reasons.items()
            if number in state.round.refused
        ]
        names = {number: group.name for number, group in state.round.refused.items()}
        self._now = _rate(split(state.cluster.snapshot, waiting, state.policy.profile, names))
        self._since, self._seen = now, (*seen, state.round.reasons)
        return None

    def stop(self) -> None:
        """Account for nothing until the next step: what happens until then is not known."""
        self._since = None

    def close(self, now: int) -> None:
        """Account for everything up to a moment."""
        begin = self._since
        if begin is None or now <= begin:  # a clock that went back is waited for
            return
        self._since = now
        oldest = (now - 1) // HOUR_MS - KEPT_HOURS + 1
        for hour in [hour for hour in self.hours if hour < oldest]:
            del self.hours[hour]
        begin = max(begin, oldest * HOUR_MS)  # after a long gap: what is forgotten is not counted first
        while begin < now:
            hour = begin // HOUR_MS
            end = min(now, (hour + 1) * HOUR_MS)
            self.hours.setdefault(hour, Hour()).add(self._now, end - begin)
            begin = end

    def between(self, since: int, now: int) -> list[tuple[int, Hour]]:
        """The hours from the one that holds `since`, as (first ms, hour), oldest first, up to now."""
        self.close(now)
        return [(at * HOUR_MS, self.hours[at]) for at in sorted(self.hours) if at >= since // HOUR_MS]


def total(hours: Iterable[Hour]) -> Hour:
    """All of them together."""
    found = Hour()
    for hour in hours:
        found.add(hour)
    return found


def _rate(now: Split) -> Hour:
    """A split as what one ms of it adds."""
    return Hour(
        idle={cause: tuple(int(now.amounts[cause, at]) for at in _AT) for cause in Cause},
        capacity=tuple(int(now.capacity[at]) for at in _AT),
        off=tuple(int(now.off[at]) for at in _AT),
        blame={key: tuple(int(amount[at]) for at in _AT) for key, amount in now.blame.items() if key[1]},
        covered_ms=1,
    )


def _plus(one: Amounts | None, other: Amounts, times: int) -> Amounts:
    if one is None:
        return tuple(amount * times for amount in other)
    return tuple(have + amount * times for have, amount in zip(one, other, strict=True))
