"""Leading: recover, run the loops, stop at once when the lease is lost."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from flowsched.background import task_group
from flowsched.control.documents import Documents
from flowsched.control.intake import Intake
from flowsched.control.leading.dispatch import Dispatcher
from flowsched.control.leading.draining import remembered
from flowsched.control.leading.leadership import FIRST_PAUSE_S, Leadership
from flowsched.control.leading.memoizer import Memoizer
from flowsched.control.leading.recover import Found, Leftovers, Reconciler, recover, runs_back
from flowsched.control.leading.retention import Expiry
from flowsched.control.metrics import Metrics, Standing
from flowsched.control.tracing import Tracing
from flowsched.engine.events import (
    BindingsSettled,
    EngineEvent,
    NodeDrained,
    ProfileChanged,
    QueueChanged,
    QueueRemoved,
    Tick,
)
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.state.work import WorkState
from flowsched.engine.step import Step
from flowsched.errors import (
    LeadershipLost,
    OutcomeUnknown,
    StaleWrite,
    StorageCorrupt,
    Unavailable,
)
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Executor
from flowsched.log_lines import get_logger
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.store.database import REVISION, Database
from flowsched.store.rows import QueueRow
from flowsched.store.settings import Queues
from flowsched.store.writer import GroupWriter
from flowsched.values import replace

log = get_logger(__name__)

#: A term that lasted so long was a good one: what fails after it fails for the first time.
STEADY_S: Final = 60.0
Failpoint = Callable[[str], Awaitable[None]]
#: Makes an event of a change, from the state that it concerns.
_Change = Callable[[EngineState], EngineEvent]
T = TypeVar("T")


def _among(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error, or one of its group, is of a kind."""
    if isinstance(error, BaseExceptionGroup):
        return any(_among(each, kind) for each in error.exceptions)
    return isinstance(error, kind)


def _message(error: BaseException) -> str:
    """The first real error of a group, for a line of log."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def first_address(epoch: int, secret: bytes) -> int:
    """Where the gang addresses of a term begin: far from those of the terms before, and of other services on this machine."""
    own = hashlib.blake2b(b"addresses " + secret, digest_size=3).digest()
    return (epoch * 65_537 + int.from_bytes(own, "big")) & 0x3FFFFF


def queue_from(row: QueueRow, axes: tuple[str, ...]) -> Queue:
    """A configured queue in the units of the arrays."""
    cap = tuple(row.cap.get(axis, -1) for axis in axes) if row.cap else None
    guarantee = tuple(row.guarantee.get(axis, 0) for axis in axes) if row.guarantee else None
    return Queue(
        name=row.name,
        weight=row.weight,
        parent=row.parent,
        guarantee=guarantee,
        cap=cap,
        reclaimable=row.reclaimable,
        priority=row.priority,
        paused=row.paused,
        order="fifo" if row.order == "fifo" else "best-effort",
    )


class TermSettings(msgspec.Struct, frozen=True):
    """The settings of every term of a leader.

    Args:
        keep_days: Ended workflows stay for so long.
        retention_clock: By which that is measured; None = the leader's clock.
        root: Of the service, with the folders of WES runs; None = its tasks run elsewhere.
        piece_bytes: Larger datasets move in pieces of this size; 0 = as a whole.
        shrink: Called where much memory has become free.
        cache_by_content: The cache of results knows files of this machine by their content, not by size and time.
    """

    keep_days: float = 30.0
    retention_clock: Callable[[], int] | None = None
    root: Path | None = None
    piece_bytes: int = 0
    shrink: Callable[[], object] = lambda: None
    cache_by_content: bool = False


class Leader:
    """One process's term (or terms) as the leader."""

    def __init__(
        self,
        database: Database,
        writer: GroupWriter,
        executor: Executor,
        documents: Documents,
        *,
        profile: Profile,
        settings: TermSettings | None = None,
        take_over: bool = False,
        holder: str,
        secret: bytes,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        failpoint: Failpoint,
        traces: Tracing | None = None,
        set_clock: Callable[[int], int] = lambda _: 0,
    ) -> None:
        self._database = database
        self.traces = traces  #: spans of what its steps end; None = none are made
        self._writer = writer
        self._executor = executor
        self._documents = documents
        self.profile = profile  #: of this term and those that follow
        self.settings = settings or TermSettings()
        self._secret = secret
        self._clock = clock
        self._monotonic = monotonic
        self._failpoint = failpoint
        self.leadership = Leadership(
            database,
            executor,
            holder=holder,
            take_over=take_over,
            clock=clock,
            monotonic=monotonic,
            set_clock=set_clock,
        )
        self.failures = 0  #: terms that failed one after the other
        self.recovered = 0, 0  #: of how many workflows that live, how many are back in memory
        self.dispatcher: Dispatcher | None = None
        self.intake: Intake | None = None
        self.nodes: list[NodeInfo] = []
        self.metrics = Metrics()
        self._changes: list[_Change] = []  #: told while a term recovered

    async def runtimes(self, names: Collection[str]) -> dict[str, int]:
        """Learned runtimes of tasks: name of their workflow -> ms. Empty where this process does not lead.

        It waits for the step that is under way: ranks without the learned runtimes would be minutes beside seconds.
        """
        dispatcher = self.dispatcher
        if dispatcher is None:
            return {}
        await dispatcher.rest()
        return dispatcher.state.work.estimates.named(names)

    def standing(self, counted: Mapping[str, int]) -> Standing:
        """How this process stands, for metrics. `counted`: what its executor counts."""
        left_s = self.leadership.left_s()
        leads = self.dispatcher is not None and left_s > 0
        living, back = self.recovered[1], self.recovered[0]
        return Standing(
            epoch=self.leadership.epoch,
            lease_s=left_s if leads else None,
            failed_terms=self.failures,
            recovering=living - back,
            counted=counted,
        )

    async def run(self) -> None:
        """Lead for ever, and wait for whatever is away: a database, room on a disk, another process that leads.

        It ends only where going on could do harm:

        Raises:
            LeadershipLost: Another process has taken over; the memory of this one is not the truth any more.
            StorageCorrupt: The database's files are damaged.
            ConfigurationError: It cannot lead like this; the message says what to change.
        """
        leadership, started = self.leadership, False

        async def start_executor() -> None:
            nonlocal started
            if not started:
                self.nodes = list(
                    await leadership.insist("the cluster cannot be opened yet", self._executor.start)
                )
                started = True

        async def admit() -> None:  # an older schema: only the cluster that has the database may bring it up
            await start_executor()  # which knows its identity from then on
            await leadership.admit()

        try:
            await leadership.insist(
                "the database cannot be opened yet", partial(self._database.settle, admit=admit)
            )
            if (before := self._database.upgraded_from) is not None:
                log.info("schema upgraded" if before else "schema made", before=before or None, now=REVISION)
            # The cluster first: a process that it refuses must not take the lease from the one that uses it.
            await start_executor()
            await leadership.lead()
            log.info("leading", epoch=leadership.epoch, nodes=len(self.nodes))
            async with task_group() as group:
                group.create_task(leadership.renew(self._busy_s), name="lease")
                group.create_task(self._terms(), name="terms")
        finally:
            self.dispatcher = self.intake = None
            if started:
                await self._executor.stop()
            await leadership.give_back()

    async def _terms(self) -> None:
        """Recover and work. After any failure the next term begins from SQL and the cluster, the only truths.

        A term that ends because the database or a disk is away is no failure: the next one begins when they are back.
        """
        while True:
            begun = self._monotonic()
            try:
                await self._term()
            except Exception as error:  # the top of the loops: logged, and begun anew
                if _among(error, LeadershipLost) or _among(error, StorageCorrupt):
                    raise
                if self._monotonic() - begun > STEADY_S:
                    self.failures = 0
                if _among(error, StaleWrite) or _among(error, OutcomeUnknown):
                    log.warning("memory and database may disagree, recovering", error=_message(error))
                    pause = self._failed()
                elif _among(error, Unavailable):
                    log.warning("the database is away, recovering when it is back", error=_message(error))
                    pause = FIRST_PAUSE_S
                else:
                    pause = self._failed()
                    log.error(
                        "a loop failed, recovering", error=_message(error), pause_s=pause, exc_info=error
                    )
                await asyncio.sleep(pause)
                await self.leadership.wait_for_database()

    def _failed(self) -> float:
        """Count a failed term; returns how long to wait before the next, in s."""
        self.failures += 1
        return 0.0 if self.failures == 1 else min(30.0, 0.5 * 2**self.failures)

    async def _term(self) -> None:
        self.metrics.begin()
        await self._failpoint("recover.before")
        if self._executor.binder is not None:
            self.nodes = list(await self._executor.binder.nodes())
        self._changes.clear()  # what was changed until here is read below
        state = EngineState(
            policy=PolicyState(
                profile=self.profile,
                epoch=self.leadership.epoch,
                secret=self._secret,
                remote_reads=self._executor.remote_reads,
                file_copies=self._executor.file_copies,
                pipelines=self._executor.pipelines,
                memoizing=True,
            ),
            work=WorkState(next_address=first_address(self.leadership.epoch, self._secret)),
        )
        state.cluster.transfer_limits = replace(
            state.cluster.transfer_limits, piece_bytes=self.settings.piece_bytes
        )
        found = await recover(self._database, state, self.nodes)
        self.recovered = 0, len(found.living)
        state.policy.queues = QueueTree(
            queue_from(row, state.cluster.snapshot.axes) for row in await Queues(self._database).list()
        )
        dispatcher = Dispatcher(
            state,
            self._writer,
            self._executor,
            clock=self._clock,
            failpoint=self._failpoint,
            shrink=self.settings.shrink,
            observed=self._observe,
        )
        intake = Intake(
            self._database,
            self._documents,
            dispatcher,
            self._executor,
            last_seq=found.last_seq,
            clock=self._clock,
        )
        await self._bring_back(dispatcher, intake, found)
        await self._failpoint("recover.after")
        dispatcher.before_step = intake.catch_up
        self.dispatcher, self.intake = dispatcher, intake
        dispatcher.report([change(state) for change in self._changes])
        try:
            async with task_group() as group:
                group.create_task(self._listen(dispatcher), name="cluster")
                group.create_task(dispatcher.run(), name="dispatch")
                group.create_task(intake.run(), name="intake")
                reconciler = Reconciler(
                    dispatcher, self._executor, clock=self._clock, found=self.metrics.found_unknown
                )
                group.create_task(reconciler.run(), name="reconcile")
                group.create_task(self._expiry(dispatcher).run(), name="expiry")
                group.create_task(Leftovers(dispatcher, self._documents).run(), name="leftovers")
                memoizer = Memoizer(
                    self._database,
                    self._documents,
                    dispatcher,
                    self._executor,
                    by_content=self.settings.cache_by_content,
                )
                group.create_task(memoizer.run(), name="cache of results")
        finally:
            self.dispatcher = self.intake = None

    def _observe(self, step: Step, seconds: float) -> None:
        """A step is durable."""
        self.metrics.stepped(step, seconds)
        if self.traces is not None:
            self.traces.stepped(step)

    def _expiry(self, dispatcher: Dispatcher) -> Expiry:
        settings, clock = self.settings, self.settings.retention_clock or self._clock
        return Expiry(
            self._database,
            dispatcher,
            self._executor,
            root=settings.root,
            keep_days=settings.keep_days,
            clock=clock,
        )

    async def _bring_back(self, dispatcher: Dispatcher, intake: Intake, found: Found) -> None:
        """Load live workflows slice by slice, so that the event loop serves requests. Then place waiting tasks for the first time.

        Nothing is placed before all claims and the present state of foreign pods are known. Before that, the executor is asked
        what became of every pod that has no recorded end. Its answers come as events, after all of this.
        """
        if found.pods:
            await self._executor.adopt(found.pods)
        binder = self._executor.binder
        first: list[EngineEvent] = list(await remembered(self._database))
        if binder is not None:
            await binder.fence(found.bindings)
            first.insert(0, BindingsSettled(tuple(found.bindings)))
        await dispatcher.once(first, placing=False)
        async for runs in runs_back(self._database, self._documents, dispatcher.state, found):
            await intake.measure([each.run for each in runs])
            await dispatcher.once(runs, placing=False)
            self._documents.trim()
            self.recovered = self.recovered[0] + len(runs), self.recovered[1]
            await self._failpoint("recover.slice")
        log.info("recovered", workflows=self.recovered[0], open_pods=len(found.pods))
        await dispatcher.once([Tick()] if binder is None else await binder.view())

    async def _listen(self, dispatcher: Dispatcher) -> None:
        """Report the cluster's events to the dispatcher, in order."""
        async for events in self._executor.events():
            self._learn(events)
            self.metrics.reported(events)
            dispatcher.report(events)

    def _learn(self, events: object) -> None:
        """Nodes as last seen, for the next recovery."""
        for event in events if isinstance(events, (list, tuple)) else ():
            node = getattr(event, "node", None)
            if isinstance(node, NodeInfo):
                self.nodes = [n for n in self.nodes if n.name != node.name] + [node]

    def _busy_s(self) -> float:
        began = None if self.dispatcher is None else self.dispatcher.busy_since
        return 0.0 if began is None else (self._clock() - began) / 1000

    async def drain_changed(self, event: NodeDrained) -> None:
        """A node shall be empty, or is used again."""
        self._change(lambda _: event)
        if self.dispatcher is not None:
            await self.dispatcher.settled()

    def profile_changed(self, profile: Profile) -> None:
        """Another policy is in force from now on, whether this process leads now or later."""
        self.profile = profile
        self._change(lambda _: ProfileChanged(profile))

    def queue_changed(self, row: QueueRow) -> None:
        """A queue was configured."""
        self._change(lambda state: QueueChanged(queue_from(row, state.cluster.snapshot.axes)))

    def queue_removed(self, name: str) -> None:
        """A queue's settings are gone."""
        self._change(lambda _: QueueRemoved(name))

    def _change(self, change: _Change) -> None:
        """Tell the engine of a change. A term that is recovering may have read the older value: it is told afterwards."""
        if self.dispatcher is None:
            self._changes.append(change)
        else:
            self.dispatcher.report([change(self.dispatcher.state)])
