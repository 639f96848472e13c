"""The event stream: history from SQL, then what happens, woken by commits. Readers never hold anything of the writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final

from flowsched.control.views import event_view
from flowsched.store.workflows import Workflows
from flowsched.workflow.run.states import RunState
from flowsched.workflow.views import EventView

#: Without a wake-up (another process led and committed) readers look again this often.
POLL_S: Final = 1.0
#: The same where one process alone has the database, so that every commit wakes readers: only a net below.
ALONE_POLL_S: Final = 15.0
_BATCH: Final = 500
_LAST: Final = frozenset(f"workflow.{s.value.lower()}" for s in RunState if s.terminal)


class History:
    """Wakes the readers that follow the event log."""

    def __init__(self, reads: Workflows, poll_s: float = POLL_S) -> None:
        self._reads = reads
        self._poll_s = poll_s
        self._news = asyncio.Event()

    def committed(self) -> None:
        """Something was committed: let followers look."""
        self._news.set()
        self._news = asyncio.Event()

    @property
    def news(self) -> asyncio.Event:
        """Is set at the next commit. Take it before you look, or you will miss what comes in between."""
        return self._news

    async def follow(
        self,
        workflow: str | None,
        after: int,
        over: Callable[[], Awaitable[bool]] | None = None,
        *,
        follow: bool = True,
    ) -> AsyncGenerator[Sequence[EventView], None]:
        """Batches of events after an id (below 0: from now on); ends when `workflow` has ended and all was told.

        A retry makes an ended workflow live again, so the end is the last event *and* the state.

        Args:
            workflow: Id of the workflow that the events belong to; None = of all.
            after: The last event that is known.
            over: Given if `workflow` names a run: says whether the run has ended. The events are then those of its calls.
            follow: Go on with what happens; False = end with what has happened.
        """
        if after < 0:
            after = await self._reads.last_event()
        whose = {"workflow_id": workflow} if over is None else {"run": workflow}
        while True:
            news = self._news
            rows = await self._reads.events(after, limit=_BATCH, **whose)
            if rows:
                after = rows[-1].id
                yield [event_view(row) for row in rows]
            if len(rows) == _BATCH:
                continue
            if not follow:
                return
            if workflow is not None and await (over() if over is not None else self._ended(workflow)):
                rest = await self._reads.events(after, limit=_BATCH, **whose)
                if not rest:
                    return
                continue
            await happens(news, self._poll_s)

    async def _ended(self, workflow: str) -> bool:
        return RunState((await self._reads.get(workflow)).state).terminal


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most so long."""
    try:
        async with asyncio.timeout(seconds):  # not wait_for: in 3.11 it may swallow a cancel
            return await event.wait()
    except TimeoutError:
        return False
