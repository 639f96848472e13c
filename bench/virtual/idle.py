"""Idle room over time: the splits of moments added up, for benches whose idle core-hours are known beforehand."""

from __future__ import annotations

from flowsched.control.views import HOUR_MS, idle_report, idle_room_of
from flowsched.engine.state import EngineState
from flowsched.scheduling.explain.idle import Split, split
from flowsched.workflow.views import IdleReportView


class IdleHours:
    """Adds up. Between two steps nothing changes, so the split of a step holds until the next."""

    def __init__(self) -> None:
        self._now: Split | None = None
        self._since = 0
        self._total: Split | None = None

    def note(self, state: EngineState, now: int) -> None:
        """A step was kept."""
        self.close(now)
        self._now, self._since = split(idle_room_of(state)), now

    def close(self, now: int) -> None:
        """Add everything up to a moment."""
        if self._now is not None and now > self._since:
            self._total = _plus(self._total, self._now, now - self._since)
            self._since = now

    def report(self, now: int) -> IdleReportView:
        """All of it until now. Amounts are core-hours, GiB-hours and GPU-hours."""
        self.close(now)
        total = self._total
        assert total is not None
        blame = {key: amount // HOUR_MS for key, amount in total.blame.items()}
        hours = Split(total.amounts // HOUR_MS, total.capacity // HOUR_MS, total.off // HOUR_MS, blame)
        return idle_report(hours, now)


def _plus(total: Split | None, split: Split, span_ms: int) -> Split:
    blame = {} if total is None else dict(total.blame)
    for key, amount in split.blame.items():
        blame[key] = blame[key] + amount * span_ms if key in blame else amount * span_ms
    if total is None:
        return Split(split.amounts * span_ms, split.capacity * span_ms, split.off * span_ms, blame)
    return Split(
        total.amounts + split.amounts * span_ms,
        total.capacity + split.capacity * span_ms,
        total.off + split.off * span_ms,
        blame,
    )
