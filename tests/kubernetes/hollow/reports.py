"""Writes pods' statuses to the API server: a bounded number at a time, the latest of each pod, until it is there.

Nobody waits for a status to be written before a pod's life goes on; several changes meanwhile become one write.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Unreachable
from flowsched.cluster.kubernetes.objects.request_bodies import STRATEGIC
from tests.kubernetes.hollow.statuses import PodRecord

log = structlog.get_logger()

_FIRST_WAIT_S: Final = 0.2
_LONGEST_WAIT_S: Final = 5.0


class Report:
    """What is written about one pod.

    Attributes:
        gone: The API server has no such pod (any more).
    """

    def __init__(self, record: PodRecord) -> None:
        self.record = record
        self.gone = False
        self.muted = False
        self.queued = False
        self.wait_s = _FIRST_WAIT_S
        self.changed = 0
        self.settled = asyncio.Event()
        self.settled.set()

    def mute(self) -> None:
        """Write nothing any more: the node is lost."""
        self.muted = True
        self.settled.set()


class Reporter:
    """Writes reports.

    Args:
        client: To whom.
        in_flight: At most so many writes at a time.
        now: The time.
    """

    def __init__(
        self,
        client: Client,
        in_flight: int,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._in_flight = in_flight
        self._now = now
        self._queue: asyncio.Queue[Report] = asyncio.Queue()

    def report(self, report: Report) -> None:
        """Have the pod's present record written."""
        if report.gone or report.muted:
            return
        report.changed += 1
        report.settled.clear()
        if not report.queued:
            report.queued = True
            self._queue.put_nowait(report)

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._in_flight):
                group.create_task(self._write())

    async def _write(self) -> None:
        while True:
            report = await self._queue.get()
            if report.muted:
                report.queued = False
                continue
            changed = report.changed
            path = f"{report.record.pod.path}/status"
            body = report.record.patch(self._now())
            try:
                answer = await self._client.call("PATCH", path, body=body, content_type=STRATEGIC)
            except Unreachable:
                self._later(report)
                continue
            if answer.ok:
                report.wait_s = _FIRST_WAIT_S
                if report.changed != changed:
                    self._queue.put_nowait(report)
                    continue
            elif answer.status in (404, 409):  # deleted, or another pod has its name
                report.gone = True
            elif answer.status == 422:  # asking again would change nothing
                log.warning("status refused", pod=report.record.pod.key, why=answer.message)
            else:
                self._later(report)
                continue
            report.queued = False
            report.settled.set()

    def _later(self, report: Report) -> None:
        wait_s = report.wait_s * (1 + random.random() / 2)
        report.wait_s = min(2 * report.wait_s, _LONGEST_WAIT_S)
        asyncio.get_running_loop().call_later(wait_s, self._queue.put_nowait, report)
