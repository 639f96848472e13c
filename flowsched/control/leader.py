"""Leading: take the lease, recover, run the loops, stop at once when the lease is lost."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Final

import structlog

from flowsched.control.dispatch import Dispatcher
from flowsched.control.draining import remembered
from flowsched.control.expiry import Expiry
from flowsched.control.history import History
from flowsched.control.idle_keeping import IdleKeeping
from flowsched.control.intake import Documents, Intake
from flowsched.control.leftovers import Leftovers
from flowsched.control.reconcile import Reconciler
from flowsched.control.recover import Found, recover
from flowsched.engine.events import (
    BindingsSettled,
    EngineEvent,
    NodeDrained,
    ProfileChanged,
    QueueChanged,
)
from flowsched.engine.idle import IdleBook
from flowsched.engine.state import EngineState
from flowsched.errors import (
    ConfigurationError,
    FlowschedError,
    LeadershipLost,
    OutcomeUnknown,
    StaleWrite,
    StorageBusy,
    Unavailable,
)
from flowsched.scheduling.executor import ClusterEvent, Executor, NodeInfo
from flowsched.scheduling.framework import Profile
from flowsched.scheduling.queues import Queue, QueueTree
from flowsched.store.database import Database
from flowsched.store.lease import Lease
from flowsched.store.queues import Queues
from flowsched.store.rows import QueueRow
from flowsched.store.writer import GroupWriter

log = structlog.get_logger(__name__)

LEASE_MS: Final = 15_000
RENEW_S: Final = 5.0
#: Between two tries of a renewal that found the database busy.
BUSY_PAUSE_S: Final = 0.2
#: Name of the row that says which cluster the database goes with; it never expires.
CLUSTER: Final = "cluster"
FOR_EVER_MS: Final = 1_000_000_000_000
#: A term that lasted so long was a good one: what fails after it fails for the first time.
STEADY_S: Final = 60.0
#: How long the end of a process waits for its lease to be given back.
GIVE_BACK_S: Final = 2.0
Failpoint = Callable[[str], Awaitable[None]]


def _among(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error, or one of its group, is of a kind."""
    if isinstance(error, BaseExceptionGroup):
        return any(_among(each, kind) for each in error.exceptions)
    return isinstance(error, kind)


def _said(error: BaseException) -> str:
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


class Leader:
    """One process's term (or terms) as the leader."""

    def __init__(
        self,
        database: Database,
        writer: GroupWriter,
        executor: Executor,
        history: History,
        documents: Documents,
        *,
        profile: Profile,
        keep_days: float = 30.0,
        piece_bytes: int = 0,
        take_over: bool = False,
        holder: str,
        secret: bytes,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        failpoint: Failpoint,
    ) -> None:
        self._database = database
        self._writer = writer
        self._executor = executor
        self._history = history
        self._documents = documents
        self.profile = profile  #: of this term and those that follow
        self._keep_days = keep_days
        self._piece_bytes = piece_bytes
        self._take_over = take_over
        self._holder = holder
        self._secret = secret
        self._clock = clock
        self._monotonic = monotonic
        self._failpoint = failpoint
        self._lease = Lease(database)
        self._renewed = monotonic()
        self.epoch = 0
        self.failures = 0  #: terms that failed one after the other
        self.dispatcher: Dispatcher | None = None
        self.intake: Intake | None = None
        self.nodes: list[NodeInfo] = []
        self.idle = IdleBook()

    def runtimes(self, names: Collection[str]) -> dict[str, int]:
        """What was learned of tasks, by the name of their workflow or stage: name -> ms. Nothing where it does not lead."""
        return {} if self.dispatcher is None else self.dispatcher.state.estimates.named(names)

    async def run(self) -> None:
        """Lead for ever. Raises LeadershipLost when another has taken over."""
        # The cluster first: a process that it refuses must not take the lease from whoever uses it.
        self.nodes = list(await self._executor.start())
        try:
            self.epoch = await self._acquire()
            await self._match()
            log.info("leading", epoch=self.epoch, nodes=len(self.nodes))
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew(), name="lease")
                group.create_task(self._terms(), name="terms")
        finally:
            self.dispatcher = self.intake = None
            await self._executor.stop()
            await self._give_back()

    async def _terms(self) -> None:
        """Recover and work. Whatever goes wrong in a term, the next one begins from SQL and the cluster, the only truths.

        Only the loss of the lease ends this: then somebody else works.
        """
        while True:
            begun = self._monotonic()
            try:
                await self._term()
            except Exception as error:  # the top of the loops: logged, and begun anew
                if _among(error, LeadershipLost):
                    raise
                if self._monotonic() - begun > STEADY_S:
                    self.failures = 0
                self.failures += 1
                pause = 0.0 if self.failures == 1 else min(30.0, 0.5 * 2**self.failures)
                if _among(error, StaleWrite) or _among(error, OutcomeUnknown):
                    log.warning("memory and database may disagree, recovering", error=_said(error))
                else:
                    log.error("a loop failed, recovering", error=_said(error), pause_s=pause, exc_info=error)
                await asyncio.sleep(pause)

    async def _term(self) -> None:
        await self._failpoint("recover.before")
        state = EngineState(
            profile=self.profile,
            epoch=self.epoch,
            secret=self._secret,
            address_start=first_address(self.epoch, self._secret),
            remote_reads=self._executor.remote_reads,
        )
        state.transfer_limits = replace(state.transfer_limits, piece_bytes=self._piece_bytes)
        found = await recover(self._database, self._documents, state, self.nodes)
        state.queues = QueueTree(
            queue_from(row, state.snapshot.axes) for row in await Queues(self._database).list()
        )
        keeping = IdleKeeping(self._database, self.idle, clock=self._clock, holds=self.holds)
        self.idle.stop()
        await keeping.load()
        state.idle = self.idle
        dispatcher = Dispatcher(
            state,
            self._writer,
            self._executor,
            clock=self._clock,
            failpoint=self._failpoint,
            committed=self._history.committed,
        )
        intake = Intake(
            self._database, self._documents, dispatcher, last_seq=found.last_seq, clock=self._clock
        )
        await dispatcher.once(await self._adopt(found))
        await self._failpoint("recover.after")
        self.dispatcher, self.intake = dispatcher, intake
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(dispatcher), name="cluster")
                group.create_task(dispatcher.run(), name="dispatch")
                group.create_task(intake.run(), name="intake")
                reconciler = Reconciler(dispatcher, self._executor, clock=self._clock)
                group.create_task(reconciler.run(), name="reconcile")
                group.create_task(self._expiry(dispatcher).run(), name="expiry")
                group.create_task(Leftovers(dispatcher, self._documents).run(), name="leftovers")
                group.create_task(keeping.run(), name="idle")
        finally:
            self.dispatcher = self.intake = None

    def _expiry(self, dispatcher: Dispatcher) -> Expiry:
        return Expiry(
            self._database, dispatcher, self._executor, keep_days=self._keep_days, clock=self._clock
        )

    async def _adopt(self, found: Found) -> list[EngineEvent]:
        """Ask what became of every pod whose end is not known. The answers come as events, after the first step.

        Returns:
            The first step's events: what was remembered, and all that others' pods are now. Nothing is placed before that
            is complete.
        """
        if found.pods:
            await self._executor.adopt(found.pods)
        drains = await remembered(self._database)
        binder = self._executor.binder
        if binder is None:
            return [*drains, *found.runs]
        await binder.fence(found.bindings)
        view = await binder.view()
        return [BindingsSettled(tuple(found.bindings)), *drains, *found.runs, *view]

    async def _listen(self, dispatcher: Dispatcher) -> None:
        """What the cluster says goes to the dispatcher, in order."""
        async for events in self._executor.events():
            self._learn(events)
            dispatcher.tell(events)

    def _learn(self, events: object) -> None:
        """Nodes as last seen, for the next recovery."""
        for event in events if isinstance(events, (list, tuple)) else ():
            node = getattr(event, "node", None)
            if isinstance(node, NodeInfo):
                self.nodes = [n for n in self.nodes if n.name != node.name] + [node]

    def holds(self) -> bool:
        """Whether this process leads, by its own monotonic clock: asked before anything is started in the cluster, since a
        process that was paused does not know that another has taken over meanwhile.
        """
        left = LEASE_MS / 1000 - (self._monotonic() - self._renewed)
        return self.epoch > 0 and left > 1.0

    async def _acquire(self) -> int:
        while True:
            asked = self._monotonic()
            epoch = await self._lease.acquire(self._holder, LEASE_MS, self._clock())
            if epoch is not None:
                self._renewed = asked
                return epoch
            await asyncio.sleep(RENEW_S / 2)

    async def _give_back(self) -> None:
        """Let another begin at once; if the database does not answer, the lease runs out by itself."""
        with contextlib.suppress(FlowschedError, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                await self._lease.release(self.epoch)

    async def _match(self) -> None:
        """See that the database goes with this cluster.

        Another cluster's answer to "what became of this attempt?" would be "there is none", and a second one would be started
        beside the first (P2).

        Raises:
            ConfigurationError: It was used with another cluster, and nobody said that this one is gone.
        """
        claim = Lease(self._database, CLUSTER)
        known, ours = (await claim.look()).holder, self._executor.identity
        if known not in ("", ours) and not self._take_over:
            raise ConfigurationError(
                f"this database belongs to the cluster {known}, not to {ours}: its tasks may still run there. "
                "Use that root, or --take-over if that cluster is gone for good"
            )
        if known != ours:
            if known:
                await claim.release((await claim.look()).epoch)
            await claim.acquire(ours, FOR_EVER_MS, self._clock())

    async def _renew(self) -> None:
        """Renew in time, by our own monotonic clock, or stop before another may begin (FAULTS.md row 14).

        A database that is busy, with our own large transaction perhaps, is asked again: only time ends the lease.
        """
        while True:
            await asyncio.sleep(RENEW_S)
            left_s = LEASE_MS / 1000 - (self._monotonic() - self._renewed) - 1.0
            try:
                async with asyncio.timeout(max(0.1, left_s)):
                    await self._insist()
            except TimeoutError as error:
                raise LeadershipLost("the lease could not be renewed in time") from error

    async def _insist(self) -> None:
        """Ask to go on leading until there is an answer.

        Raises:
            LeadershipLost: Another leads.
        """
        while True:
            asked = self._monotonic()
            try:
                held = await self._lease.renew(self.epoch, LEASE_MS, self._clock())
            except (StorageBusy, Unavailable) as busy:
                log.warning("the lease is not renewed yet", error=str(busy))
                await asyncio.sleep(BUSY_PAUSE_S)
                continue
            if not held:
                raise LeadershipLost("another process leads now")
            self._renewed = asked
            return

    async def drain_changed(self, event: NodeDrained) -> None:
        """A node shall be empty, or is used again."""
        if self.dispatcher is not None:
            self.dispatcher.tell([event])
            await self.dispatcher.settled()

    def profile_changed(self, profile: Profile) -> None:
        """Another policy is in force from now on, whoever leads."""
        self.profile = profile
        if self.dispatcher is not None:
            self.dispatcher.tell([ProfileChanged(profile)])

    def queue_changed(self, row: QueueRow) -> None:
        """A queue was configured."""
        if self.dispatcher is not None:
            state = self.dispatcher.state
            self.dispatcher.tell([QueueChanged(queue_from(row, state.snapshot.axes))])


__all__ = ["ClusterEvent", "Leader"]
