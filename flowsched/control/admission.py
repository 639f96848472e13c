"""Admission: how much may live at a time, over all workflows. The service refuses more with the numbers, and accepts it later.

Each live task takes some 60 bytes and each byte of a document up to ten, in memory and again after a restart (docs/limits.md). A
few hundred bytes of a document could therefore fill a service that accepts every submission.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from flowsched.errors import Fault, InvalidDocument, TooLarge, TooMuch
from flowsched.scheduling.policy.framework import Profile
from flowsched.store.requests import Submission, Submitted
from flowsched.store.workflows import Workflows
from flowsched.store.writer import GroupWriter
from flowsched.workflow.resources import format_duration
from flowsched.workflow.spec import WorkflowSpec

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


def submission_of(spec: WorkflowSpec, document: bytes, body: bytes, **more: Any) -> Submission:
    """A workflow to be accepted.

    Args:
        spec: Its checked document.
        document: The document that is kept.
        body: As the client sent it: a repeat of a submission has the same.
        more: The other fields of `Submission`.
    """
    return Submission(
        name=spec.name,
        queue=spec.queue,
        priority=spec.priority,
        spec=document,
        stages=[(stage.name, stage.width, stage.members) for stage in spec.stages],
        body_hash=hashlib.sha256(body).hexdigest(),
        owner=spec.user,
        call=spec.call,
        kind=spec.kind,
        **more,
    )


class Admission:
    """Lets submissions through to the writer as long as there is room."""

    def __init__(
        self,
        writer: GroupWriter,
        reads: Workflows,
        limits: LiveLimits,
        profile: Callable[[], Profile],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._reads = reads
        self._limits = limits
        self._profile = profile
        self._monotonic = monotonic
        self._counted = (0, 0)  #: tasks and bytes at the last count
        self._since = (0, 0)  #: accepted since that count began
        self._pending = (0, 0)  #: let through, and not committed yet
        self._pending_of: Counter[tuple[str, str]] = Counter()  #: of these, tasks by queue and user
        self._at = float("-inf")
        self._lock = asyncio.Lock()

    async def submit(self, submission: Submission, spec: WorkflowSpec) -> Submitted:
        """Accept a workflow, see `GroupWriter.submit`. A repeat of an accepted submission needs no room.

        Raises:
            InvalidDocument: A stage states a longer timeout than its queue allows.
            TooLarge: The workflow alone exceeds a limit.
            TooMuch: The service can accept it when enough live workflows have ended.
        """
        profile = self._profile().of(submission.queue)
        faults = timeout_faults(spec, profile.max_timeout_ms)
        if faults and not await self._writer.is_repeat(submission):
            raise InvalidDocument(faults)
        payer = submission.queue, submission.owner
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
            if profile.max_submitted_tasks_per_user and not await self._writer.is_repeat(submission):
                live = await self._reads.live_tasks(*payer) + self._pending_of[payer]
                check_user(*payer, live, wanted[0], profile.max_submitted_tasks_per_user)
            self._pending = _sum(self._pending, wanted)
            self._pending_of[payer] += wanted[0]
        try:
            return await self._writer.submit(submission)
        finally:  # a refused submission counts until the next count: never too little
            self._pending = _sum(self._pending, (-wanted[0], -wanted[1]))
            self._since = _sum(self._since, wanted)
            self._pending_of[payer] -= wanted[0]
            if not self._pending_of[payer]:
                del self._pending_of[payer]

    def notes(self, spec: WorkflowSpec) -> list[str]:
        """Notes about the stages that get the timeout of their queue."""
        profile = self._profile().of(spec.queue)
        default_ms = profile.default_timeout_ms or profile.max_timeout_ms
        names = [stage.name for stage in spec.stages if stage.timeout_ms is None] if default_ms else []
        if not names:
            return []
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        after = format_duration(default_ms)
        return [f"queue {spec.queue} ends tasks that state no timeout after {after}: those of {shown}"]

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


def timeout_faults(spec: WorkflowSpec, most_ms: int) -> list[Fault]:
    """The timeouts that are longer than a queue allows. `most_ms`: 0 = it allows all."""
    if not most_ms:
        return []
    expected = f"at most {format_duration(most_ms)} in queue {spec.queue} (max_timeout_ms of its profile)"
    return [
        Fault(f"$.stages[{at}].timeout", format_duration(stage.timeout_ms), expected)
        for at, stage in enumerate(spec.stages)
        if stage.timeout_ms is not None and stage.timeout_ms > most_ms
    ]


def check_user(queue: str, user: str, live: int, new: int, most: int) -> None:
    """Refuse a workflow with which a user would have too many tasks in a queue.

    Raises:
        TooLarge: It alone has too many.
        TooMuch: The service can accept it when enough of the user's workflows have ended.
    """
    who = f"user {user}" if user else "work without a user"
    limit = f"{who} may have {most:,} tasks in queue {queue} (max_submitted_tasks_per_user of its profile)"
    if new > most:
        raise TooLarge(f"this workflow has {new:,} tasks, and {limit}: divide it")
    if live + new > most:
        raise TooMuch(
            f"{limit}; workflows that have not ended have {live:,}, and this one has {new:,}: send it again when some have ended"
        )


def _sum(*loads: tuple[int, int]) -> tuple[int, int]:
    tasks = size = 0
    for more_tasks, more_bytes in loads:
        tasks, size = tasks + more_tasks, size + more_bytes
    return tasks, size
