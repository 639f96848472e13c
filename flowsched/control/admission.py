"""Admission: how much may live at a time, over all workflows. The service refuses more with the numbers, and accepts it later.

Each live task takes some 60 bytes and each byte of a document up to ten, in memory and again after a restart (docs/limits.md). A
few hundred bytes of a document could therefore fill a service that accepts every submission.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from flowsched.errors import TooLarge, TooMuch
from flowsched.store.requests import Submission, Submitted
from flowsched.store.workflows import Workflows
from flowsched.store.writer import GroupWriter

#: `Admission` reads the live load from the database again at most once in the first time. At a submission it is never older than
#: the second.
RECOUNT_S: Final = 0.5
STALE_S: Final = 10.0


class LiveLimits(msgspec.Struct, frozen=True):
    """The most that may live at a time. A workflow counts as a whole until it has ended.

    Args:
        tasks: Tasks of all live workflows: two documents of the largest size.
        document_bytes: Bytes of their documents, as clients sent them.
    """

    tasks: int = 10_000_000
    document_bytes: int = 128 << 20


class Admission:
    """Lets submissions through to the writer as long as there is room."""

    def __init__(
        self,
        writer: GroupWriter,
        reads: Workflows,
        limits: LiveLimits,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._reads = reads
        self._limits = limits
        self._monotonic = monotonic
        self._counted = (0, 0)  #: tasks and bytes at the last count
        self._since = (0, 0)  #: accepted since that count began
        self._pending = (0, 0)  #: let through, and not committed yet
        self._at = float("-inf")
        self._lock = asyncio.Lock()

    async def submit(self, submission: Submission) -> Submitted:
        """Accept a workflow, see `GroupWriter.submit`. A repeat of an accepted submission needs no room.

        Raises:
            TooLarge: The workflow alone exceeds a limit.
            TooMuch: The service can accept it when enough live workflows have ended.
        """
        wanted = sum(width * members for _, width, members in submission.stages), len(submission.spec)
        async with self._lock:
            age = self._monotonic() - self._at
            if age > STALE_S or (age > RECOUNT_S and not self._fits(wanted)):
                self._at, self._since = self._monotonic(), (0, 0)
                self._counted = await self._reads.live_load()
            if not self._fits(wanted):
                if await self._writer.is_repeat(submission):
                    return await self._writer.submit(submission)
                self._check(wanted)
            self._pending = _sum(self._pending, wanted)
        try:
            return await self._writer.submit(submission)
        finally:  # a refused submission counts until the next count: never too little
            self._pending = _sum(self._pending, (-wanted[0], -wanted[1]))
            self._since = _sum(self._since, wanted)

    def _fits(self, wanted: tuple[int, int]) -> bool:
        tasks, size = _sum(wanted, self._counted, self._since, self._pending)
        return tasks <= self._limits.tasks and size <= self._limits.document_bytes

    def _check(self, wanted: tuple[int, int]) -> None:
        live = _sum(self._counted, self._since, self._pending)
        most = self._limits.tasks, self._limits.document_bytes
        named = (("tasks", "--max-live-tasks"), ("bytes of documents", "--max-live-bytes"))
        for new, there, limit, (what, option) in zip(wanted, live, most, named, strict=True):
            if new > limit:
                raise TooLarge(
                    f"this workflow has {new:,} {what}; all that live together may have {limit:,} "
                    f"(serve {option}): divide it, or raise the limit"
                )
            if there + new > limit:
                raise TooMuch(
                    f"workflows that have not ended have {there:,} {what}, this one has {new:,}, and the limit is {limit:,} "
                    f"(serve {option}): send it again when some have ended, or cancel some (`flowsched ls`, `flowsched cancel`)"
                )


def _sum(*loads: tuple[int, int]) -> tuple[int, int]:
    return sum(load[0] for load in loads), sum(load[1] for load in loads)
