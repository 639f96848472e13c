"""The dispatcher: step, commit, act. Woken by events, with a short pause between two steps; the only writer of engine state.

Order matters and is all there is to crash safety: step -> commit -> keep -> executor. Each order to the executor has been
durable before; a crash in between is healed by recovery, which asks the executor what became of every open intent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from flowsched.engine.events import Accepted, Command, EngineEvent, Recovered, Revived, Tick
from flowsched.engine.foreign.backlog import verdicts
from flowsched.engine.foreign.holds import holds
from flowsched.engine.state import EngineState
from flowsched.engine.step import Step, step
from flowsched.errors import CancelRequested, OutcomeUnknown, StorageBusy
from flowsched.executor.foreign import Hold, RoomTaken
from flowsched.executor.protocol import Drop, Executor, PodHeld, PodStarted, ReplicaSeen
from flowsched.log_lines import get_logger
from flowsched.scheduling.explain.recording import Tape
from flowsched.store.writer import GroupWriter
from flowsched.workflow.document.uris import redacted
from flowsched.workflow.spec import WorkflowSpec

log = get_logger(__name__)

#: Between two steps: a stage's thousand ends need not be a thousand commits. An event after a longer pause is stepped at once,
#: since a slot is idle from the end of its task until the step.
DEBOUNCE_S: Final = 0.003
#: The pause is as long as the last round took, up to this. Short tasks that were started together then end in one round, and not
#: in two or three: half as many rounds for as many tasks a second (`bench/peers.py`).
LONGEST_DEBOUNCE_S: Final = 0.012
#: Events that let no group start need no step of their own so soon: a commit costs as much as a hundred of them.
QUIET_S: Final = 0.05
#: A wait is never longer: the event loop's timers stand still while the machine is suspended, the service's clock does not.
LONGEST_WAIT_S: Final = 30.0
#: How long a task has to end by itself when it is taken away, before it is killed.
GRACE_MS: Final = 5_000
#: The same for an engine: Snakemake looks at its tasks after 40 s for the first time, and removes its locks after that.
HEAD_GRACE_MS: Final = 60_000
#: A node that does not delete within this time keeps its copy, for now.
DELETE_S: Final = 5.0
#: How long an answer waits for the step that takes in what it is about.
SETTLED_S: Final = 5.0
#: Pause before a step is tried again while the database is away.
BUSY_PAUSE_S: Final = 1.0
#: A step takes place in a thread while a workflow lives that costs more than this (`cost_of`), or if the last one took so long.
#: A step that places 5,000 tasks computes for some 100 ms.
#: The thread costs some 0.2 ms; half or double of either number changes little.
LONG_COST: Final = 5_000
LONG_S: Final = 0.02
#: A stage costs a step about as much as so many tasks of one.
STAGE_COST: Final = 50
T = TypeVar("T")


def cost_of(spec: WorkflowSpec) -> int:
    """About what a step over a whole workflow costs, in tasks."""
    return sum(stage.tasks + STAGE_COST for stage in spec.stages)


async def no_wait() -> None:
    """Do nothing."""


class Inbox:
    """Events that wait for the next step."""

    def __init__(self) -> None:
        self._events: list[EngineEvent] = []
        self._under_way = self._taken = 0  #: events in the current step, and in all before it
        self._wake = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None  #: wakes for quiet events
        self._resumes_at = float("-inf")  #: the event loop's time before which no step follows the last one

    def put(self, events: Sequence[EngineEvent], *, quiet: bool) -> None:
        """Add events; never blocks. `quiet`: no group can start because of them."""
        self._events.extend(events)
        if not quiet:
            self._wake.set()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(QUIET_S, self._wake.set)

    def collect(self) -> list[EngineEvent]:
        """All that wait; the step that takes them in ends with `taken`."""
        events, self._events = self._events, []
        self._under_way = len(events)
        self._rest()
        return events

    def taken(self, took_s: float = 0.0) -> None:
        """The step has taken in what it was given. `took_s`: with its commit and its orders."""
        self._taken, self._under_way = self._taken + self._under_way, 0
        pause_s = max(DEBOUNCE_S, min(took_s, LONGEST_DEBOUNCE_S))
        self._resumes_at = asyncio.get_running_loop().time() + pause_s

    async def settled(self) -> None:
        """Wait until all that waits now has been taken in, or `SETTLED_S` are over."""
        wanted = self._taken + self._under_way + len(self._events)
        for _ in range(int(SETTLED_S / 0.01)):
            if self._taken >= wanted:
                return
            await asyncio.sleep(0.01)

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until something comes, and until the pause after the last step is over."""
        try:
            async with asyncio.timeout(timeout_s):  # wait_for of Python 3.11 may lose a cancel
                await self._wake.wait()
            pause_s = self._resumes_at - asyncio.get_running_loop().time()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
        except TimeoutError:
            return
        finally:
            self._rest()

    def _rest(self) -> None:
        """Nothing that has come so far calls for a step any more: the next one takes it in."""
        self._wake.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None


class StateThread:
    """Does what changes the engine's state: in a thread where that may take long, so that requests are answered meanwhile."""

    def __init__(self) -> None:
        self._large: set[str] = set()  #: workflows that live of which a step may take long
        self._took_s = 0.0  #: the last step
        self._at_rest = asyncio.Event()
        self._at_rest.set()

    @property
    def at_rest(self) -> bool:
        """Whether the event loop may read the state now: no other thread changes it. True until the next `await`."""
        return self._at_rest.is_set()

    async def rest(self) -> None:
        """Wait until the event loop may read the state."""
        while not self._at_rest.is_set():  # the next step may begin before a waiter gets its turn
            await self._at_rest.wait()

    def expect(self, events: Sequence[EngineEvent]) -> None:
        """Note the large workflows that events bring."""
        for event in events:
            if isinstance(event, (Accepted, Recovered, Revived)) and cost_of(event.run.spec) > LONG_COST:
                self._large.add(event.run.id)

    def forget_ended(self, runs: Mapping[str, object]) -> bool:
        """Forget large workflows that live no more. Returns whether there was one."""
        if self._large <= runs.keys():
            return False
        self._large &= runs.keys()
        return True

    async def do(self, work: Callable[[], T], *, timed: bool = False, long: bool = False) -> T:
        """Do the work. `timed`: the time that it takes decides whether the next work needs the thread. `long`: this one does."""
        began = time.perf_counter()
        done = await self._done(work, long)
        if timed:
            self._took_s = time.perf_counter() - began
        return done

    async def _done(self, work: Callable[[], T], long: bool) -> T:
        if not (long or self._large) and self._took_s < LONG_S:
            return work()
        self._at_rest.clear()
        under_way = asyncio.ensure_future(asyncio.to_thread(work))
        under_way.add_done_callback(lambda _: self._at_rest.set())
        return await asyncio.shield(under_way)  # a thread cannot be broken off: `rest` waits for its end


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
        shrink: Callable[[], object] = lambda: None,
        observed: Callable[[Step, float], None] = lambda _step, _seconds: None,
    ) -> None:
        self.state = state
        self.tape: Tape | None = None  #: where cycles are recorded; None = nowhere. Set it while at rest
        self.steps = 0
        self.ended: list[str] = []  #: pods with a durable end
        self.ended_well: list[str] = []  #: pods with a working folder that may be removed
        self._asked: dict[
            tuple[str, int], None
        ] = {}  #: stages with shards to be looked up in the cache of results
        self._asks = asyncio.Event()
        self.busy_since: int | None = None  #: clock ms since when a step is under way; for livez
        self._writer = writer
        self._executor = executor
        self._clock = clock
        self._failpoint = failpoint
        self._shrink = shrink  #: called when a large workflow has left memory
        self._observed = observed  #: told of each durable step, and how many seconds its decision took
        self._decided_s = 0.0
        self.before_step: Callable[[], Awaitable[None]] = no_wait  #: tells events that are known already
        self.took_s = 0.0  #: the last step with its commit and its orders
        self.started = False  #: whether the last step gave room to anything
        self._inbox = Inbox()
        self._thread = StateThread()
        self._now = 0
        self._published: object = None  #: the reasons that were published last
        self._holds: tuple[Hold, ...] = ()  #: the room that other schedulers were last kept from
        self.changing = asyncio.Lock()  #: held from a step's beginning until its changes are kept or undone

    def report(self, events: Sequence[EngineEvent]) -> None:
        """Something happened. Never blocks; the events are applied in order, soon."""
        self._inbox.put(events, quiet=all(map(self._is_quiet, events)))

    @property
    def at_rest(self) -> bool:
        """As `StateThread.at_rest`."""
        return self._thread.at_rest

    async def rest(self) -> None:
        """Wait until the event loop may read the state."""
        await self._thread.rest()

    def _is_quiet(self, event: EngineEvent) -> bool:
        """Whether the event only says that a decision takes place. A pod of another scheduler is urgent: it takes room that the
        engine could give to a group.
        """
        if isinstance(event, RoomTaken):
            return event.owner in self.state.foreign.assumed or event.owner in self.state.work.pods
        return isinstance(event, (PodStarted, PodHeld))

    async def run(self) -> None:
        """Step for ever. Ends by an error that needs a rebuild or another leader (see `GroupWriter.commit`)."""
        wake_ms: int | None = None
        while True:
            wait_s = None if wake_ms is None else max(0.0, (wake_ms - self._clock()) / 1000)
            await self._inbox.wait(None if wait_s is None else min(wait_s, LONGEST_WAIT_S))
            wake_ms = await self._round()

    async def _round(self) -> int | None:
        """One step with what has come; returns when the next one is due. Nothing of it is held while there is nothing to do."""
        await self.before_step()
        events = self._inbox.collect()
        self.busy_since = self._clock()
        began = time.perf_counter()
        result = await self.once(events or [Tick()])
        self.took_s = time.perf_counter() - began
        self.started = bool(result.launches or result.transfers)
        self.busy_since = None
        self._inbox.taken(self.took_s)
        return result.wake_ms

    async def asked(self) -> list[tuple[str, int]]:
        """Wait for stages with shards to be looked up in the cache of results: (workflow, stage) of each."""
        await self._asks.wait()
        asked, self._asked = list(self._asked), {}
        self._asks.clear()
        return asked

    def ask_again(self, workflow: str, stage: int) -> None:
        """A look-up could not be answered."""
        self._asked[workflow, stage] = None
        self._asks.set()

    async def settled(self) -> None:
        """Wait until it has taken in what it was told until now, or `SETTLED_S` are over."""
        await self._inbox.settled()

    async def once(self, events: Sequence[EngineEvent], *, placing: bool = True) -> Step:
        """One step, committed and carried out. See `step` for `placing`."""
        async with self.changing:
            result = await self._durable(events, placing)
        self.steps += 1
        self._observed(result, self._decided_s)
        if result.delta:
            self.ended.extend(e.name for e in result.delta.ends)
            self.ended_well.extend(e.name for e in result.delta.ends if e.exit_code == 0 and not e.reason)
        for pair in result.lookups:
            self.ask_again(*pair)
        await self._act(result)
        return result

    async def _durable(self, events: Sequence[EngineEvent], placing: bool) -> Step:
        """One step, decided, committed and kept."""
        while True:
            # A term begins where the one before ended: durations must not be negative (FAULTS.md row 16).
            self._now = max(self._now, self._clock())
            result = await self._decide(events, placing)
            try:
                await self._commit(result)
                break
            except CancelRequested as refused:
                await self._thread.do(result.drop)
                # Behind the event that brings the workflow into memory: before it, each cancel would find no run.
                events = [
                    *events,
                    *(Command(id_, "cancel", reason=why) for id_, why in refused.reasons.items()),
                ]
            except OutcomeUnknown:
                raise  # perhaps written: only a look into the database tells
            except StorageBusy as busy:
                await self._thread.do(result.drop)
                log.debug("the database is busy, the step waits", error=str(busy))  # `OutageLog` warns
                await asyncio.sleep(BUSY_PAUSE_S)
                if self.busy_since is not None:
                    self.busy_since = self._clock()  # it waits, and is not stuck
        await self._thread.do(result.keep, long=result.sweeps)
        if self._thread.forget_ended(self.state.work.runs):
            self._shrink()
        return result

    async def _decide(self, events: Sequence[EngineEvent], placing: bool) -> Step:
        """The step itself."""
        self._thread.expect(events)
        now, state, began = self._now, self.state, time.perf_counter()
        decided = await self._thread.do(
            lambda: step(state, events, now, placing=placing, tape=self.tape), timed=True
        )
        self._decided_s = time.perf_counter() - began
        return decided

    async def _commit(self, result: Step) -> None:
        if not result.delta:
            return
        await self._failpoint("commit.before")
        await self._writer.commit(result.delta, self.state.policy.epoch)
        await self._failpoint("commit.after")

    async def _act(self, result: Step) -> None:
        """Ask the executor. It answers by events, also for what it refuses."""
        if result.releases:
            await self._failpoint("release.before")
            work = self.state.work
            of = {
                name: work.runs.get(work.pods[name].workflow) for name in result.releases if name in work.pods
            }
            heads = [name for name, run in of.items() if run is not None and run.spec.is_head]
            tasks = [name for name in result.releases if name not in heads]
            for names, grace_ms in ((tasks, GRACE_MS), (heads, HEAD_GRACE_MS)):
                if names:
                    await self._executor.release(names, grace_ms)
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

        A crash before that leaves copies that the catalogue does not know: their node reports them again. This method reports the
        copies that a node did not delete.
        """
        await self._failpoint("drop.before")
        gone = await asyncio.gather(*(self._delete(drop) for drop in drops))
        remaining = [drop for drop, went in zip(drops, gone, strict=True) if not went]
        self.report([ReplicaSeen(drop.uri, drop.node, drop.size_bytes) for drop in remaining])
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
        """Evict and bind foreign pods, and publish why foreign pods wait."""
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
        if self.state.round.reasons is not self._published:
            self._published = self.state.round.reasons
            await binder.publish(list(verdicts(self.state)))
        reserved = holds(self.state)
        if reserved != self._holds:
            self._holds = reserved
            await binder.hold(reserved)
