"""What the lives of pods have in common, however they are lived: accepted, lived, perhaps told to end, over."""

from __future__ import annotations

import asyncio
from typing import Protocol

from tests.kubernetes.hollow.reports import Report
from tests.kubernetes.hollow.spec import Pod
from tests.kubernetes.hollow.statuses import PodRecord


class Life(Protocol):
    """A pod on a node."""

    record: PodRecord
    report: Report
    leave: Leave

    async def live(self) -> None:
        """Live to the end: afterwards the record has the final phase, and nothing of the pod runs any more."""

    def kill(self) -> None:
        """End at once, by SIGKILL: the node is lost, or the pod has been deleted by force."""

    async def forget(self) -> None:
        """Remove what outlives its processes, its logs: its object is gone."""


class Leave:
    """An order to end, given at most once."""

    def __init__(self) -> None:
        self.grace_s = 0.0
        self._given = asyncio.Event()

    def give(self, grace_s: float) -> None:
        """Let it end within so long; a later, shorter grace does not shorten it."""
        if not self._given.is_set():
            self.grace_s = grace_s
            self._given.set()

    @property
    def given(self) -> bool:
        """Whether it is to end."""
        return self._given.is_set()

    async def within(self, timeout_s: float | None) -> bool:
        """Wait for it; False if it has not been given in this time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._given.wait()
        except TimeoutError:
            return False
        return True


def overdue(record: PodRecord) -> None:
    """Note that the pod's `activeDeadlineSeconds` are over."""
    record.phase = "Failed"
    record.reason = "DeadlineExceeded"
    record.message = "Pod was active on the node longer than the specified deadline"


def deadline_s(pod: Pod) -> float | None:
    """How long the pod may live; None = as long as it likes."""
    seconds = pod.spec.active_deadline_seconds
    return None if seconds is None else float(seconds)
