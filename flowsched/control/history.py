"""The event stream: what this process committed lately from memory, what is older from SQL, then what happens.

The group writer tells of each commit with its events. A reader that follows one workflow is woken by the events of that workflow
alone, and reads them from memory. Readers never hold anything of the writer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Final

from flowsched.control.views import event_view
from flowsched.store.rows import StoredEvent
from flowsched.store.workflows import Workflows
from flowsched.workflow.run.states import RunState
from flowsched.workflow.views import EventView

#: Without a wake-up (another process led and committed) readers look again this often.
POLL_S: Final = 1.0
#: The same where one process alone has the database, so that every commit wakes readers: only a net below.
ALONE_POLL_S: Final = 15.0
#: A batch takes some 2 ms of the event loop.
_BATCH: Final = 200
#: So many batches of old events are read at a time: 200 readers at once would hold up every other request.
_REPLAYS: Final = 2
#: Events in memory: some 2 MB.
_RECENT: Final = 4_096
#: Commands remembered as carried out: a caller asks within milliseconds.
_DONE: Final = 10_000
_FIRST: Final = "workflow.submitted"
_LAST: Final = frozenset(f"workflow.{s.value.lower()}" for s in RunState if s.terminal)


class Recent:
    """The newest events, without gaps in their numbers."""

    def __init__(self, most: int = _RECENT) -> None:
        self._most = most
        self._events: deque[StoredEvent] = deque()
        self._by_workflow: dict[str, deque[StoredEvent]] = {}

    @property
    def last(self) -> int:
        """The number of the newest; 0 if there is none."""
        return self._events[-1].id if self._events else 0

    def add(self, events: Sequence[StoredEvent]) -> None:
        """Add events that have just been committed. If another process has committed some before them, the older ones go."""
        if events[0].id != self.last + 1:
            self._events.clear()
            self._by_workflow.clear()
        for each in events:
            self._events.append(each)
            self._by_workflow.setdefault(each.workflow, deque()).append(each)
        while len(self._events) > self._most:
            workflow = self._events.popleft().workflow
            its = self._by_workflow[workflow]
            its.popleft()
            if not its:
                del self._by_workflow[workflow]

    def lives(self, workflow: str) -> bool:
        """Whether all events of a workflow are here, and none of them is an end."""
        its = self._by_workflow.get(workflow)
        return its is not None and its[0].kind == _FIRST and not any(each.kind in _LAST for each in its)

    def after(self, number: int, workflow: str | None) -> list[StoredEvent] | None:
        """All events after one, of one workflow or of all, that this process knows of; None if some of them are not here."""
        its = self._events if workflow is None else self._by_workflow.get(workflow, ())
        whole = workflow is not None and its and its[0].kind == _FIRST
        if not whole and (not self._events or number < self._events[0].id - 1):
            return None
        return list(takewhile(lambda each: each.id > number, reversed(its)))[::-1]


class History:
    """The event log as its readers follow it, and the commands that were carried out."""

    def __init__(self, reads: Workflows, poll_s: float = POLL_S) -> None:
        self._reads = reads
        self._poll_s = poll_s
        self._recent = Recent()
        self._followers: dict[str | None, set[asyncio.Event]] = {}  #: by workflow; None: they follow all
        self._waiters: dict[str | None, set[asyncio.Event]] = {}  #: the same of those that only wait for ends
        self._done: OrderedDict[int, None] = OrderedDict()
        self._callers: dict[int, asyncio.Event] = {}  #: by the number of their command
        self._replays = asyncio.Semaphore(_REPLAYS)
        self._newest = 0  #: the last event of all processes, as of `_polled_s`
        self._polled_s = 0.0

    def committed(self, events: Sequence[StoredEvent], done: Collection[int]) -> None:
        """Take in a commit of this process: its events, and the numbers of the commands that it carried out."""
        if events:
            self._recent.add(events)
            for workflow in {None, *(each.workflow for each in events)}:
                for news in self._followers.get(workflow, ()):
                    news.set()
            if self._waiters:
                for workflow in {None, *(each.workflow for each in events if each.kind in _LAST)}:
                    for news in self._waiters.get(workflow, ()):
                        news.set()
        for number in done:
            self._done[number] = None
            if number in self._callers:
                self._callers[number].set()
        while len(self._done) > _DONE:
            self._done.popitem(last=False)

    def stir(self) -> None:
        """Have those that follow a run, or wait for its end, look again: its engine has said how it ended."""
        for news in (*self._followers.get(None, ()), *self._waiters.get(None, ())):
            news.set()

    async def carried_out(self, command: int, seconds: float) -> bool:
        """Wait until the leader in this process has committed a command, at most so long."""
        if command in self._done:
            return True
        news = self._callers.setdefault(command, asyncio.Event())
        try:
            return await happens(news, seconds)
        finally:
            self._callers.pop(command, None)

    def lives(self, workflow: str) -> bool:
        """Whether memory shows that this is a workflow that has not ended; False says nothing."""
        return self._recent.lives(workflow)

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
        may_have_ended = workflow is None or not self._recent.lives(workflow)
        elsewhere = not follow  # another process may have committed something that is not here yet
        with _listening(self._followers, None if over is not None else workflow) as news:
            while True:
                news.clear()
                here = None if elsewhere or over is not None else self._recent.after(after, workflow)
                if here is None:
                    newest_here = self._recent.last
                    async with self._replays:
                        rows: Sequence[StoredEvent] = await self._reads.events(after, limit=_BATCH, **whose)
                        views = [event_view(row) for row in rows]
                    full = len(rows) == _BATCH
                    after = rows[-1].id if full else max(after, newest_here, rows[-1].id if rows else 0)
                else:
                    rows, full = here, False
                    after = self._recent.last
                    views = [event_view(row) for row in rows]
                for start in range(0, len(views), _BATCH):
                    yield views[start : start + _BATCH]
                if full:
                    continue
                if not follow:
                    return
                may_have_ended = may_have_ended or any(row.kind in _LAST for row in rows)
                if workflow is not None and (may_have_ended or over is not None):
                    may_have_ended = False
                    if await (over() if over is not None else self._ended(workflow)):
                        rest = await self._reads.events(after, limit=_BATCH, **whose)
                        if not rest:
                            return
                        after = rest[-1].id
                        may_have_ended = True
                        yield [event_view(row) for row in rest]
                        continue
                elsewhere = False
                while not elsewhere and not await happens(news, self._poll_s):
                    newest = await self._newest_event()
                    here = None if over is not None else self._recent.after(after, workflow)
                    may_have_ended = elsewhere = newest > (after if here is None else self._recent.last)

    async def _newest_event(self) -> int:
        """The last event of all processes. One look serves all followers that ask within half a period."""
        now = asyncio.get_running_loop().time()
        if now - self._polled_s >= self._poll_s / 2:
            self._polled_s = now
            self._newest = await self._reads.last_event()
        return self._newest

    async def ended(self, workflow: str, over: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Return when a workflow has ended. Its other events do not wake the caller. For `over` see `follow`."""
        covered = 0  #: the newest event of another process that the last poll has covered
        with _listening(self._waiters, None if over is not None else workflow) as news:
            while not await (over() if over is not None else self._ended(workflow)):
                while not await happens(news, self._poll_s):
                    if (newest := await self._newest_event()) > max(covered, self._recent.last):
                        covered = newest
                        break
                news.clear()

    async def _ended(self, workflow: str) -> bool:
        return RunState((await self._reads.get(workflow)).state).terminal


@contextmanager
def _listening(
    readers: dict[str | None, set[asyncio.Event]], workflow: str | None
) -> Iterator[asyncio.Event]:
    """An event that is set by each commit that the reader has to look at."""
    news = asyncio.Event()
    readers.setdefault(workflow, set()).add(news)
    try:
        yield news
    finally:
        alike = readers[workflow]
        alike.discard(news)
        if not alike:
            del readers[workflow]


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most so long."""
    try:
        async with asyncio.timeout(seconds):  # not wait_for: in 3.11 it may swallow a cancel
            return await event.wait()
    except TimeoutError:
        return False
