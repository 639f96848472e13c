"""The dispatcher: step, commit, act. Woken by events, with a short debounce; the only writer of engine state.

Order matters and is all there is to crash safety: step -> commit -> keep -> executor. What the executor is asked for has been
durable before; a crash in between is healed by recovery, which asks the executor what became of every open intent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from flowsched.engine.events import Command, EngineEvent, Tick
from flowsched.engine.foreign_offers import verdicts
from flowsched.engine.state import EngineState
from flowsched.engine.step import Step, step
from flowsched.errors import CancelRequested, StorageBusy
from flowsched.scheduling.executor import Drop, Executor, PodHeld, PodStarted, ReplicaSeen
from flowsched.scheduling.foreign import RoomTaken
from flowsched.store.writer import GroupWriter
from flowsched.workflow.data import redacted

log = structlog.get_logger(__name__)

#: Events that come this close together are one step: a stage's thousand ends need not be a thousand commits.
DEBOUNCE_S: Final = 0.003
#: Events that change nobody's chances need not be a step of their own so soon: a commit costs as much as a hundred of them.
QUIET_S: Final = 0.05
#: How long a task has to end by itself when it is taken away, before it is killed.
GRACE_MS: Final = 5_000
#: A node that does not delete within this time keeps its copy, for now.
DELETE_S: Final = 5.0
#: Pause before a step is tried again while the database is away.
BUSY_PAUSE_S: Final = 1.0


class Dispatcher:
    """Owns the engine state of a leader."""

    def __init__(
        self,
        state: EngineState,
        writer: GroupWriter,
        executor: Executor,
        *,
        clock: Callable[[], int],
        failpoint: Callable[[str], Awaitable[None]],
        committed: Callable[[], None],
    ) -> None:
        self.state = state
        self.steps = 0
        self.ended: list[str] = []  #: pods whose ends are durable
        self.ended_well: list[str] = []  #: pods whose working folders may go
        self.busy_since: int | None = None  #: clock ms since when a step is under way; for livez
        self._writer = writer
        self._executor = executor
        self._clock = clock
        self._failpoint = failpoint
        self._committed = committed
        self._inbox: list[EngineEvent] = []
        self._wake = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None  #: wakes for quiet events
        self._now = 0
        self._told: object = None  #: the reasons that were published last

    def tell(self, events: Sequence[EngineEvent]) -> None:
        """Something happened. Never blocks; the events are applied in order, soon."""
        self._inbox.extend(events)
        if not all(map(self._is_quiet, events)):
            self._wake.set()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(QUIET_S, self._wake.set)

    def _is_quiet(self, event: EngineEvent) -> bool:
        """Whether it tells no more than that what was decided takes place. The sight of strangers' pods is urgent: they take
        room that somebody else could be given.
        """
        if isinstance(event, RoomTaken):
            return event.owner in self.state.assumed or event.owner in self.state.pods
        return isinstance(event, (PodStarted, PodHeld))

    async def run(self) -> None:
        """Step for ever. Ends by an error that needs a rebuild or another leader (see `GroupWriter.commit`)."""
        wake_ms: int | None = None
        while True:
            await self._something(wake_ms)
            events, self._inbox = self._inbox, []
            self.busy_since = self._clock()
            result = await self.once(events or [Tick()])
            self.busy_since = None
            wake_ms = result.wake_ms

    async def settled(self) -> None:
        """Wait (briefly) until it has taken in what it was told."""
        steps = self.steps
        for _ in range(100):
            if self.steps > steps:
                return
            await asyncio.sleep(0.01)

    async def once(self, events: Sequence[EngineEvent]) -> Step:
        """One step, committed and carried out."""
        while True:
            # Wall clocks jump; durations must not be negative (FAULTS.md row 16).
            self._now = max(self._now, self._clock())
            result = step(self.state, events, self._now)
            try:
                await self._commit(result)
                break
            except CancelRequested as refused:
                result.drop()
                # Behind what brings the workflow into memory: before it, a cancel would find nobody, again and again.
                events = [*events, *(Command(workflow, "cancel") for workflow in refused.workflows)]
            except StorageBusy as busy:
                result.drop()
                log.warning("the database is busy, the step waits", error=str(busy))
                await asyncio.sleep(BUSY_PAUSE_S)
        result.keep()
        self.steps += 1
        if result.delta:
            self._committed()
            self.ended.extend(e.name for e in result.delta.ends)
            self.ended_well.extend(e.name for e in result.delta.ends if e.exit_code == 0 and not e.reason)
        await self._act(result)
        return result

    async def _commit(self, result: Step) -> None:
        if not result.delta:
            return
        await self._failpoint("commit.before")
        await self._writer.commit(result.delta, self.state.epoch)
        await self._failpoint("commit.after")

    async def _act(self, result: Step) -> None:
        """Ask the executor. It answers by events, also for what it refuses."""
        if result.releases:
            await self._failpoint("release.before")
            await self._executor.release(result.releases, GRACE_MS)
        if result.drops:
            await self._drop(result.drops)
        if result.launches:
            await self._failpoint("launch.before")
            await self._executor.launch(result.launches)
            await self._failpoint("launch.after")
        if result.transfers:
            await self._failpoint("transfer.before")
            await self._executor.transfer(result.transfers)
        await self._place_foreign(result)

    async def _drop(self, drops: Sequence[Drop]) -> None:
        """Delete what the catalogue has forgotten, before anything is launched or ordered that counts on its room.

        A crash before leaves copies that nobody knows of: their node tells of them again, and so do we of what it would not delete.
        """
        await self._failpoint("drop.before")
        gone = await asyncio.gather(*(self._delete(drop) for drop in drops))
        kept = [drop for drop, went in zip(drops, gone, strict=True) if not went]
        self.tell([ReplicaSeen(drop.uri, drop.node, drop.size_bytes) for drop in kept])
        await self._failpoint("drop.after")

    async def _delete(self, drop: Drop) -> bool:
        try:
            async with asyncio.timeout(DELETE_S):
                return await self._executor.evict(drop.uri, drop.node)
        except (OSError, TimeoutError) as error:
            log.warning(
                "not deleted from a cache",
                uri=redacted(drop.uri),
                node=drop.node,
                why=str(error) or "no answer",
            )
            return False

    async def _place_foreign(self, result: Step) -> None:
        """The same for pods that others made; and why those that wait do."""
        binder = self._executor.binder
        if binder is None:
            return
        if result.evictions:
            await self._failpoint("evict.before")
            await binder.evict_pods(result.evictions)
        if result.binds:
            await self._failpoint("bind.before")
            await binder.bind(result.binds)
            await self._failpoint("bind.after")
        if self.state.reasons is not self._told:
            self._told = self.state.reasons
            await binder.publish(list(verdicts(self.state)))

    async def _something(self, wake_ms: int | None) -> None:
        """Wait until there is something to do, then a moment more for what comes with it."""
        timeout = None if wake_ms is None else max(0.0, (wake_ms - self._clock()) / 1000)
        try:
            async with asyncio.timeout(timeout):  # wait_for of Python 3.11 may lose a cancel
                await self._wake.wait()
            await asyncio.sleep(DEBOUNCE_S)
        except TimeoutError:
            return
        finally:
            self._wake.clear()
            if self._later is not None:
                self._later.cancel()
                self._later = None
