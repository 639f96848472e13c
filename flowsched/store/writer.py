"""The group writer: all pending writes of a process go in one transaction, and each caller hears after its COMMIT.

While one group is being committed the next one gathers, so the group grows with the load and no caller waits for a timer.

Three things can go wrong, and each has one answer:

1. One item is bad (stale, deposed, poisonous). Nothing was written; the group is halved and tried again, so that the bad one
   fails alone, to its own caller.
2. The database is busy, full or away. The same group is tried again with growing, jittered pauses, for 30 s.
3. The answer to COMMIT is lost. Each transaction raises this writer's row in the table `marks` from below its number to its
   number; if a repeat finds it there already, the first one took place, and its results stand. Nothing is applied twice.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, Self

import msgspec
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from flowsched.aside import aside
from flowsched.engine.delta import Delta
from flowsched.errors import FlowschedError, OutcomeUnknown, StorageBusy, StorageCorrupt, Unavailable
from flowsched.log_lines import get_logger
from flowsched.store.changes import Changes, Step
from flowsched.store.database import Database, chance, is_corrupt, is_transient, pauses
from flowsched.store.requests import Command, Requests, Submission, Submitted, Submitting, compress
from flowsched.store.rows import StoredEvent
from flowsched.store.statements import Statements
from flowsched.store.workflows import decode

log = get_logger(__name__)

#: How long an item may wait for a database that does not let it in.
RETRY_S: Final = 30.0
#: One try may take this long on PostgreSQL (a half-open connection would hang for ever); SQLite has no
#: network.
_TRY_S: Final = 20.0
#: Each group is tried for at least this long, however long its items have waited.
_FAIR_TRY_S: Final = 1.0
#: A group ends with the item that exceeds one of these, so that no transaction is unbounded.
_MOST_ITEMS: Final = 2_000
#: While several submit at a time: a group waits as long as more come within the first, and no longer than the second.
_GATHER_S: Final = 0.002
_LONGEST_GATHER_S: Final = 0.008
_MOST_ROWS: Final = 20_000
#: More than this waiting: callers wait for room before they may even queue.
_MOST_WAITING: Final = 20_000

Failpoint = Callable[[str], Awaitable[None]]
Work = Submitting | Command | Step


async def no_failpoint(_name: str) -> None:
    """Do nothing: the default."""


class _Item(msgspec.Struct, eq=False):
    """One caller's write, and where its outcome goes."""

    work: Work
    rows: int
    since: float
    done: asyncio.Future[Any]

    def settle(self, outcome: object) -> None:
        """Tell the caller, unless it has gone."""
        if self.done.done():
            return
        if isinstance(outcome, BaseException):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


class _Attempt(msgspec.Struct):
    """One transaction through all its tries."""

    txn: int
    outcomes: list[Any] = msgspec.field(default_factory=list)
    events: list[StoredEvent] = msgspec.field(default_factory=list)
    in_doubt: bool = False  #: a COMMIT was sent and not answered


class GroupWriter:
    """The one writer of a process. `run` it in a task group (or use it as a context manager), then call the
    others.

    A caller that is cancelled while it waits has not undone its write: it is committed all the same.
    """

    def __init__(
        self,
        database: Database,
        *,
        failpoint: Failpoint = no_failpoint,
        jitter: Callable[[], float] = chance,
        retry_s: float = RETRY_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        name: str | None = None,
    ) -> None:
        self._database = database
        self._name = name or f"{database.instance}-{os.urandom(4).hex()}"  # two writers must not share a mark
        self._failpoint, self._jitter, self._sleep = failpoint, jitter, sleep
        self._retry_s, self._monotonic = retry_s, monotonic
        self._requests = Requests(database.kind)
        self._changes = Changes(database.kind)
        self._waiting: deque[_Item] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._txn = 0
        self._closing = False
        self._marked = False  #: whether it may have left a mark in the database
        self._crowded = False  #: whether the last group held several submissions
        self._task: asyncio.Task[None] | None = None
        #: Why no new work may be accepted, "" = it may: the rest of a full disk is for cancels and for ends of tasks.
        self.refusal: Callable[[], str] = str
        #: Called after each commit with its events, and the numbers of commands that it carried out.
        self.committed: Callable[[Sequence[StoredEvent], Collection[int]], None] = lambda _events, _done: None
        self.commits = 0  #: transactions committed
        self.retries = 0  #: tries that had to be repeated

    async def submit(self, submission: Submission) -> Submitted:
        """Accept a workflow; durable when this returns. The same key with the same body gives the earlier
        workflow.

        Raises:
            Conflict: The key was used for another body, or the id is taken.
            StorageBusy: Not accepted within the limit (OutcomeUnknown: perhaps accepted; ask again with the
                same key).
        """
        if why := self.refusal():
            raise StorageBusy(f"no new work is accepted now: {why}")
        spec = await aside(len(submission.spec), compress, submission.spec)
        outcome: Submitted = await self._put(Submitting(submission, spec), 2 + len(submission.stages))
        return outcome

    async def is_repeat(self, submission: Submission) -> bool:
        """Whether `submit` would find that its key stands for a workflow already. Writes nothing."""
        return await self._database.read(lambda connection: self._requests.is_repeat(connection, submission))

    async def command(self, workflow_id: str, kind: str, body: Mapping[str, Any], now_ms: int) -> int:
        """Leave a command for the leader; "cancel" forbids every further launch in the same transaction.

        Raises:
            NotFound: There is no such workflow.
            StorageBusy: Not written within the limit.
        """
        outcome: int = await self._put(Command(workflow_id, kind, body, now_ms), 2)
        return outcome

    async def commit(self, delta: Delta, epoch: int) -> int:
        """Write a step of the leader, all of it or nothing; returns its first event's id (0 if it has no
        events).

        Raises:
            LeadershipLost: `epoch` is over. Stop at once.
            CancelRequested: It launches for cancelled workflows. Process the cancel and step again.
            StaleWrite: A row is not as memory has it. Rebuild the memory.
            OutcomeUnknown: Perhaps written. Rebuild the memory.
            StorageBusy: Not written within the limit.
        """
        rows = len(delta.tasks) + len(delta.events) + 2 * len(delta.intents) + len(delta.ends) + 1
        outcome: int = await self._put(Step(delta, epoch), rows)
        return outcome

    async def _put(self, work: Work, rows: int) -> Any:
        """Queue an item and wait for its outcome."""
        while len(self._waiting) >= _MOST_WAITING:
            self._room.clear()
            await self._room.wait()
        if self._closing:
            raise Unavailable("the writer is closed")
        item = _Item(work, rows, self._monotonic(), asyncio.get_running_loop().create_future())
        self._waiting.append(item)
        self._wake.set()
        return await item.done

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name="group writer")
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Accept no new write, write those that wait, and end `run`."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task

    async def run(self) -> None:
        """Write groups until `close`. If it is stopped otherwise, waiting callers get `Unavailable`."""
        try:
            while self._waiting or not self._closing:
                if not self._waiting:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                if self._crowded:
                    await self._more()
                await self._write_next()
        finally:
            self._closing = True
            self._room.set()
            for item in self._waiting:
                item.settle(Unavailable("the writer was stopped before this was written"))
            self._waiting.clear()
        await self._forget_mark()

    async def _write_next(self) -> None:
        """Write the next group. Nothing of it is held afterwards: the writer may then wait for long."""
        group = self._gather()
        self._crowded = sum(isinstance(item.work, Submitting) for item in group) > 1
        self._room.set()
        try:
            await self._write(group)
        except BaseException as error:
            for item in group:  # their callers have no answer yet
                item.settle(Unavailable("the writer was stopped; whether this was written is not known"))
            if not isinstance(error, Exception):
                raise
            log.exception(
                "a group of rows was not written as a whole"
            )  # a writer that ends would refuse all that follow

    async def _more(self) -> None:
        """While several clients submit at a time, wait a moment for more: a transaction costs as much as many rows."""
        end = self._monotonic() + _LONGEST_GATHER_S
        known = 0
        while known < len(self._waiting) < _MOST_ITEMS and self._monotonic() < end and not self._closing:
            known = len(self._waiting)
            await asyncio.sleep(_GATHER_S)

    def _gather(self) -> list[_Item]:
        """The next group, in order of arrival."""
        group: list[_Item] = []
        rows = 0
        while self._waiting and len(group) < _MOST_ITEMS and rows < _MOST_ROWS:
            group.append(self._waiting.popleft())
            rows += group[-1].rows
        return group

    async def _write(self, group: Sequence[_Item]) -> None:
        """Write a group; if an item spoils it, write its halves."""
        try:
            attempt = await self._insist(group)
        except Exception as error:  # noqa: BLE001 - the top of this loop: the callers get the error, and it goes on
            if len(group) == 1 or isinstance(error, StorageBusy):
                self._fail(group, error)
                return
            # Requests first, as within a group: a cancel is decided before the launches it came with.
            ordered = sorted(group, key=lambda item: isinstance(item.work, Step))
            half = len(ordered) // 2
            await self._write(ordered[:half])
            await self._write(ordered[half:])
            return
        done: list[int] = []
        for item, outcome in zip(group, attempt.outcomes, strict=True):
            item.settle(outcome)
            if isinstance(item.work, Step) and not isinstance(outcome, BaseException):
                done += item.work.delta.commands_done
        self.committed(
            attempt.events, done
        )  # after the callers: memory is as the database before readers look at it

    def _fail(self, group: Sequence[_Item], error: Exception) -> None:
        """Give the callers the error. If the database was busy, those with time left wait on."""
        patient: list[_Item] = []
        if isinstance(error, StorageBusy) and not isinstance(error, OutcomeUnknown):
            patient = [item for item in group if item.since + self._retry_s > self._monotonic()]
        for item in group:
            if item not in patient:
                item.settle(error)
        self._waiting.extendleft(reversed(patient))

    async def _insist(self, group: Sequence[_Item]) -> _Attempt:
        """One transaction, tried again while the database is in the way, and committed at most once.

        Raises:
            StorageBusy: It stayed in the way; nothing was written.
            OutcomeUnknown: It went away during a COMMIT and did not come back.
        """
        self._txn += 1
        attempt = _Attempt(self._txn)
        # The oldest item has waited longest. An item that waited behind another group still gets a fair try.
        deadline = max(min(item.since for item in group) + self._retry_s, self._monotonic() + _FAIR_TRY_S)
        for pause in pauses(self._jitter):
            try:
                async with self._patience():
                    await self._try(attempt, group)
                    self._database.answered()
                    return attempt
            except Exception as error:
                read = await self._database.read_error(error)
                if read is None and is_corrupt(error):
                    raise StorageCorrupt(f"{self._database.shown} is damaged: {error}") from error
                if not (is_transient(error) or read is not None or attempt.in_doubt):
                    raise
                self.retries += 1
                self._database.failed(read or error)
                if self._monotonic() + pause > deadline:
                    if attempt.in_doubt:
                        raise OutcomeUnknown("the database went away during a commit") from error
                    why = outage.message if (outage := self._database.outage) is not None else str(error)
                    raise StorageBusy(
                        f"the database stayed busy or away for {self._retry_s:.0f} s: {why}"
                    ) from error
            await self._sleep(pause)
        raise AssertionError("pauses never end")

    def _patience(self) -> Any:
        """A limit for one try, where there is a network."""
        return asyncio.timeout(_TRY_S) if self._database.kind == "postgresql" else nullcontext()

    async def _try(self, attempt: _Attempt, group: Sequence[_Item]) -> None:
        """One try of a transaction. Writes nothing if an earlier try was committed."""

        def work(statements: Statements) -> bool:
            if not self._raise_mark(statements, attempt, max(map(_moment, group))):
                return False
            attempt.in_doubt = False  # this try holds the mark, so no earlier one was committed
            attempt.outcomes, attempt.events = self._fill(statements, group)
            return True

        async def before_commit() -> None:
            await self._failpoint("writer.before_commit")
            attempt.in_doubt = True

        if await self._database.transact(work, before_commit):
            await self._failpoint("writer.after_commit")
            self.commits += 1

    def _raise_mark(self, connection: Statements, attempt: _Attempt, at_ms: int) -> bool:
        """Raise this writer's mark to the transaction's number. Not possible: an earlier try of it was
        committed.

        On PostgreSQL the update waits for an earlier try that is still being committed on a lost connection.
        """
        values = {"writer": self._name, "txn": attempt.txn, "at": at_ms}
        self._marked = True
        if (connection.execute(_RAISE_MARK, values)).rowcount == 1:
            return True
        if (connection.execute(_FIRST_MARK, values)).rowcount == 1:
            return True
        if not attempt.in_doubt:
            raise FlowschedError(f"two writers call themselves {self._name}")
        return False

    async def _forget_mark(self) -> None:
        """Leave nothing behind; if the database is away, expiry removes the mark later."""
        if not self._marked:
            return
        try:
            await self._database.write(
                lambda connection: connection.execute(_FORGET_MARK, {"writer": self._name})
            )
        except (FlowschedError, SQLAlchemyError, OSError):
            return

    def _fill(self, connection: Statements, group: Sequence[_Item]) -> tuple[list[Any], list[StoredEvent]]:
        """Write a group into the open transaction: submissions, commands, then deltas. Their outcomes, and all events."""
        new = [(item, item.work) for item in group if isinstance(item.work, Submitting)]
        commands = [(item, item.work) for item in group if isinstance(item.work, Command)]
        steps = [(item, item.work) for item in group if isinstance(item.work, Step)]
        accepted, events = self._requests.submit(connection, [work for _, work in new])
        numbers = self._requests.command(connection, [work for _, work in commands])
        refusals = self._changes.refusals(connection, [work for _, work in steps])
        outcomes: dict[_Item, Any] = {}
        for items, results in ((new, accepted), (commands, numbers), (steps, refusals)):
            outcomes |= {item: result for (item, _), result in zip(items, results, strict=True)}

        good = [(item, work.delta) for item, work in steps if outcomes[item] is None]
        if good:
            self._changes.write(connection, [delta for _, delta in good])
        offsets: list[int] = []
        for _, delta in good:
            offsets.append(len(events))
            events.extend(delta.events)
        rows = self._changes.write_events(connection, events)
        for (item, delta), offset in zip(good, offsets, strict=True):
            outcomes[item] = rows[offset][0] if delta.events else 0
        stored = [StoredEvent(*row[:4], decode(row[4])) for row in rows]
        return [outcomes[item] for item in group], stored


def _moment(item: _Item) -> int:
    """When a write was asked for, by its caller's clock: for the expiry of marks that were left behind."""
    work = item.work
    if isinstance(work, Command):
        return work.now_ms
    if isinstance(work, Submitting):
        return work.submission.now_ms
    return max((event.at_ms for event in work.delta.events), default=0)


_RAISE_MARK: Final = text("UPDATE marks SET txn = :txn, at_ms = :at WHERE writer = :writer AND txn < :txn")
_FIRST_MARK: Final = text(
    "INSERT INTO marks (writer, txn, at_ms) VALUES (:writer, :txn, :at) ON CONFLICT DO NOTHING"
)
_FORGET_MARK: Final = text("DELETE FROM marks WHERE writer = :writer")
