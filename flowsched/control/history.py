"""The event stream: history from SQL, then what happens, woken by commits. Readers never hold anything of the writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from flowsched.control.answers import event_view
from flowsched.store.workflows import Workflows
from flowsched.workflow.states import RunState
from flowsched.workflow.views import EventView

#: Without a wake-up (another process led and committed) readers look again this often.
POLL_S: Final = 1.0
_BATCH: Final = 500
_LAST: Final = frozenset(f"workflow.{s.value.lower()}" for s in RunState if s.terminal)


class History:
    """Wakes whoever follows the event log."""

    def __init__(self, reads: Workflows) -> None:
        self._reads = reads
        self._news = asyncio.Event()

    def committed(self) -> None:
        """Something was committed: let followers look."""
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self, workflow: str | None, after: int) -> AsyncIterator[Sequence[EventView]]:
        """Batches of events after an id; ends when `workflow` has ended and all was told.

        A retry makes an ended workflow live again, so the end is the last event *and* the state.
        """
        while True:
            news = self._news
            rows = await self._reads.events(after, workflow_id=workflow, limit=_BATCH)
            if rows:
                after = rows[-1].id
                yield [event_view(row) for row in rows]
            if len(rows) == _BATCH:
                continue
            if workflow is not None and RunState((await self._reads.get(workflow)).state).terminal:
                rest = await self._reads.events(after, workflow_id=workflow, limit=_BATCH)
                if not rest:
                    return
                continue
            try:
                await asyncio.wait_for(news.wait(), POLL_S)
            except TimeoutError:
                continue
