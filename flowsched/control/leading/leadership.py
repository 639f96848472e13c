"""Leadership: the lease of one process, taken, renewed and given back, and the cluster that the database goes with."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path
from typing import Final, TypeVar

from flowsched import tokens
from flowsched.background import task_group
from flowsched.errors import ConfigurationError, FlowschedError, LeadershipLost, NotLeader, Unavailable
from flowsched.executor.protocol import Executor, LeaderLease, Pairing
from flowsched.log_lines import get_logger
from flowsched.store.database import Database, Outage, chance, pauses
from flowsched.store.identity import identify
from flowsched.store.lease import Lease, Renewal

log = get_logger(__name__)

#: A leader that is killed is replaced within 15 s: this, a standby's looks, and the recovery.
LEASE_MS: Final = 12_000
#: Five renewals in a row may fail: ten seconds without an answer depose no leader.
RENEW_S: Final = 2.0
#: A renewal of a SQLite file's lease is given up after this.
ANSWER_S: Final = 5.0
#: Between two tries of something that found the database away: from the first to the longest.
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 2.0
#: A long wait is logged again after this.
REMIND_S: Final = 60.0
#: The event loop shows this often that it moves.
BEAT_S: Final = 0.5
#: A process in which nothing has moved for so long is stuck: it renews no more, and livez fails.
STUCK_S: Final = 60.0
#: Name of the row that says which cluster the database goes with; it never expires.
CLUSTER: Final = "cluster"
FOR_EVER_MS: Final = 1_000_000_000_000
#: How long the end of a process waits for its lease to be given back.
GIVE_BACK_S: Final = 2.0
T = TypeVar("T")


class OutageLog:
    """Logs the database's outages: one warning at the start, one a minute, and a line when it is back.

    Args:
        monotonic: Seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._logged_at: float | None = None
        self._since: float | None = None  #: of the outage that a warning told of

    def __call__(self, outage: Outage | None) -> None:
        """Take in a failure, or with None that the database is back."""
        now = self._monotonic()
        if outage is None:
            if self._since is not None:
                log.info("the database is back", away_s=round(now - self._since, 1))
            self._since = None
        elif self._logged_at is None or now - self._logged_at >= REMIND_S:
            self._since = outage.since
            self._logged_at = now
            log.warning(
                "the database is away: nothing new starts, and the service tries again", error=outage.message
            )


def _of_another_cluster(owner: str, ours: str) -> ConfigurationError:
    return ConfigurationError(
        f"this database belongs to the cluster {owner}, not to {ours}: its tasks may still run there. "
        "Use that root, or --take-over if that cluster is gone for good"
    )


def _announced_url(cluster: str) -> str | None:
    """The URL of the service on a cluster `HOST:ROOT`, if this user runs it on this machine; else None."""
    host, _, root = cluster.partition(":")
    return tokens.url_of(Path(root)) if host == socket.gethostname() else None


class Leadership:
    """Whether this process may lead.

    Attributes:
        epoch: Of the lease that it holds or held last; 0 = it has never led.
        standing_by: For which process it stands by, while another one leads.
        elsewhere: The other cluster that the database belongs to: this process stands by, and never takes over. "" = it may lead.
        leaderless: No process leads the database: not `elsewhere`, or another one leads the cluster with another database.
        accepted: Cluster and database may be led by this process: it leads, or stands by.
        waits_for: The part that must come back before it can go on: the database, room on a disk.
    """

    def __init__(
        self,
        database: Database,
        executor: Executor,
        *,
        holder: str,
        take_over: bool,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        set_clock: Callable[[int], int] = lambda _: 0,
    ) -> None:
        self._database = database
        self._set_clock = set_clock
        database.report_outage = OutageLog(monotonic)
        self._executor = executor
        self._holder = holder
        self._take_over = take_over
        self._clock = clock
        self._monotonic = monotonic
        self._lease = Lease(database)
        self._renewed = self._renewed_there = self._beat = monotonic()
        self._identity = ""  #: of the database
        self.epoch = 0
        self.standing_by = self.elsewhere = ""
        self.leaderless = False
        self.accepted = False
        self.waits_for = self._trouble_here = self._trouble_there = ""

    async def insist(self, waits: str, act: Callable[[], Awaitable[T]]) -> T:
        """Do something that needs the database or a disk, again and again until they let it.

        Args:
            waits: Text for the log meanwhile.
            act: The work. Its errors beside `Unavailable` and `OSError` are raised.
        """
        logged_at = -REMIND_S
        for pause in pauses(chance, FIRST_PAUSE_S, LONGEST_PAUSE_S):
            try:
                done = await act()
            except (Unavailable, OSError) as error:
                self.waits_for = f"{waits}: {error}"
                reported = self._database.outage is not None and isinstance(
                    error, Unavailable
                )  # by `OutageLog`
                if not reported and self._monotonic() - logged_at >= REMIND_S:
                    logged_at = self._monotonic()
                    log.warning(f"{waits}, trying again", error=str(error))
                await asyncio.sleep(pause)
            else:
                self.waits_for = ""
                return done
        raise AssertionError("pauses never end")

    async def admit(self) -> None:
        """See that this process may bring the database's schema up: it belongs to this cluster, or to none yet.

        Raises:
            ConfigurationError: It belongs to another cluster.
        """
        owner = (await Lease(self._database, CLUSTER).read()).holder
        if owner not in ("", self._executor.identity) and not self._take_over:
            raise _of_another_cluster(owner, self._executor.identity)

    async def lead(self) -> None:
        """Wait until this process may lead, and see that the database goes with its cluster.

        Raises:
            ConfigurationError: The database belongs to another cluster.
        """
        self.epoch = await self._acquire()
        await self.insist("the database does not answer", self._match)
        self.accepted = True

    async def wait_for_database(self) -> None:
        """Wait until the database answers."""
        await self.insist("the database does not answer", self._lease.read)

    def holds(self) -> bool:
        """Whether this process leads, by its own monotonic clock: asked before anything is started in the cluster, since a
        process that was paused does not know that another has taken over meanwhile. With SQLite no other can take the database.
        """
        return self.epoch > 0 and min(self._left_there_s(), self._left_here_s()) > 0

    async def _acquire(self) -> int:
        """Wait until this process may lead; returns the new epoch.

        Raises:
            ConfigurationError: The database belongs to another cluster, which no process leads.
        """
        while True:
            epoch = await self.insist("this process cannot lead yet", self._ask_to_lead)
            if epoch is not None:
                self.standing_by, self.elsewhere, self.leaderless = "", "", False
                return epoch
            await asyncio.sleep(RENEW_S / 4)

    async def _ask_to_lead(self) -> int | None:
        """Take the lease if it is free; None: this process stands by, and `standing_by` says for whom.

        A leader has the clock of the database, whose rows have times of earlier leaders.
        """
        server_ms = await self._lease.server_ms()
        if server_ms is not None and (jump_ms := self._set_clock(server_ms)):
            log.warning(
                "times here are the database's: its clock and this machine's differ", by_s=jump_ms / 1000
            )
        asked = self._monotonic()
        owner = (await Lease(self._database, CLUSTER).read()).holder
        holding = await self._lease.read()
        if owner not in ("", self._executor.identity) and not self._take_over:
            if not holding.live and not self.standing_by:
                raise _of_another_cluster(owner, self._executor.identity)
            if not holding.live:
                text = f"no process leads {owner}: start flowsched there, or here with --take-over if it is gone for good"
                self._standby(text, elsewhere=owner, leaderless=True)
            else:
                self._standby(f"{holding.holder} leads on {owner}", elsewhere=owner)
            return None
        leader = holding.holder if holding.live and holding.holder != self._holder else ""
        leads = f"{leader} leads" + (f" on {owner}" if owner else "")
        there = leader
        if (lease := self._executor.leader_lease) is not None:
            # The cluster first: a process that cannot reach it must not take the database from one that can.
            try:
                there = await self._renew_lease_there(lease, unled=not leader)
            except Unavailable as error:
                if not leader:
                    raise
                self._standby(f"{leads}; this process could not take over: {error}")
                return None
        if not there:
            # `leader` has not renewed the lease in the cluster for its whole time, and does not act any more.
            try:
                epoch = await self._lease.acquire(self._holder, LEASE_MS, self._clock(), instead_of=leader)
            except Unavailable:
                if lease is not None:
                    await lease.give_back()  # to a process that can write the database
                raise
            if epoch is not None:
                self._renewed = asked
                return epoch
        elif leader:
            self._standby(leads)
        else:
            text = f"{there} leads in the cluster, with another database than this one, or has ended just now"
            self._standby(text, leaderless=True)
        return None

    async def _renew_lease_there(self, lease: LeaderLease, *, unled: bool) -> str:
        """Take or renew the lease in the cluster; see `LeaderLease.hold`.

        Raises:
            Unavailable: It cannot be; the message says why.
        """
        asked, patience_s = self._monotonic(), LEASE_MS / 2000
        self._identity = self._identity or (await identify(self._database)).id
        try:
            async with asyncio.timeout(patience_s):
                other = await lease.hold(self._holder, self._identity, LEASE_MS / 1000, unled=unled)
        except (TimeoutError, FlowschedError, OSError) as error:
            why = str(error) or f"the cluster does not answer for {patience_s:g} s"
            raise Unavailable(why) from error
        if not other:
            self._renewed_there = asked
        return other

    def not_leading(self, waits_for: str = "") -> NotLeader | Unavailable:
        """Why this process cannot answer what only the leader knows, and what to do.

        Args:
            waits_for: The part that it waits for before it leads, if that is known.
        """
        if not self.elsewhere:
            waits = f": {waits_for}" if waits_for else ""
            return Unavailable(f"this process does not lead yet{waits}; ask again in a moment")
        if self.leaderless:
            return NotLeader(f"this process does not lead: {self.standing_by}")
        url = _announced_url(self.elsewhere) or "URL"
        return NotLeader(f"this process does not lead: {self.standing_by}; ask that service: --server {url}")

    def _standby(self, text: str, *, elsewhere: str = "", leaderless: bool = False) -> None:
        """Note for which process this one stands by, and say so once."""
        self.accepted, self.elsewhere, self.leaderless = True, elsewhere, leaderless
        text = f"standing by: {text}"
        if text != self.standing_by:
            self.standing_by = text
            log.info(text)

    async def give_back(self) -> None:
        """Let another begin at once; if the database or the cluster does not answer, the lease runs out by itself."""
        releases = [self._lease.release(self.epoch)]
        if self._executor.leader_lease is not None:
            releases.append(self._executor.leader_lease.give_back())
        for release in releases:
            with contextlib.suppress(FlowschedError, TimeoutError, OSError):
                async with asyncio.timeout(GIVE_BACK_S):
                    await release

    async def _match(self) -> None:
        """See that the database goes with this cluster.

        Another cluster's answer to "what became of this attempt?" would be "there is none", and a second one would be started
        beside the first (P2).

        Raises:
            ConfigurationError: It was used with another cluster, and `--take-over` does not say that that one is gone.
        """
        claim = Lease(self._database, CLUSTER)
        known, ours = (await claim.read()).holder, self._executor.identity
        if known not in ("", ours) and not self._take_over:
            raise _of_another_cluster(known, ours)
        pairing = Pairing(
            (await identify(self._database)).id,
            self._database.place,
            is_known=known == ours,
            replaces=known if known != ours else "",
            forced=self._take_over,
        )
        if changed := await self._executor.pair(pairing):
            log.warning(changed)
        if known != ours:
            if known:
                await claim.release((await claim.read()).epoch)
            await claim.acquire(ours, FOR_EVER_MS, self._clock())

    async def renew(self, busy_s: Callable[[], float]) -> None:
        """Renew for ever; on PostgreSQL by a thread, that no step can starve.

        While the database is away the lease runs out by our own monotonic clock: `holds` is false from then on, and nothing new is
        started (FAULTS.md row 14). If no other process has taken over when the database is back, this one leads on with the same
        epoch. With SQLite the lock on the file is the leadership, and no other process can take over.

        A lease in the cluster is renewed beside it, and only while the row is: who cannot reach one of the two loses both.

        Args:
            busy_s: For how long the step that is under way has been, seconds.

        Raises:
            LeadershipLost: Another process leads.
        """
        async with task_group() as group:
            group.create_task(self._renew_here(busy_s))
            if self._executor.leader_lease is not None:
                group.create_task(self._renew_there(self._executor.leader_lease))

    async def _renew_there(self, lease: LeaderLease) -> None:
        while True:
            await asyncio.sleep(RENEW_S / 2 if self._trouble_there else RENEW_S)
            if self._database.kind != "sqlite" and self._monotonic() - self._renewed > 2 * RENEW_S:
                continue  # the row is not renewed
            try:
                other = await self._renew_lease_there(lease, unled=True)
            except Unavailable as error:
                if not self._trouble_there:
                    log.warning("the lease in the cluster is not renewed, trying again", error=str(error))
                self._trouble_there = str(error)
                continue
            if other:
                raise LeadershipLost(f"{other} leads in the cluster now")
            self._trouble_there = ""

    async def _renew_here(self, busy_s: Callable[[], float]) -> None:
        if self._database.kind != "sqlite":
            await self._watch(busy_s)
        while True:
            await asyncio.sleep(RENEW_S)
            await self.insist("the lease is not renewed yet", self._renew_once)
            if not self._executor.trouble:
                await self._database.keep_headroom()

    async def _renew_once(self) -> None:
        asked = self._monotonic()
        try:
            async with asyncio.timeout(ANSWER_S):  # a connection may be half-open
                renewed = await self._lease.renew(self.epoch, LEASE_MS, self._clock())
        except TimeoutError:
            outage = self._database.failed(TimeoutError(f"no answer in {ANSWER_S:g} s"))
            raise Unavailable(outage.message) from None
        if not renewed:
            raise LeadershipLost("another process leads now")
        self._renewed = asked

    async def _watch(self, busy_s: Callable[[], float]) -> None:
        """See what the thread that renews meets with, and show it that the event loop moves: a stuck process renews no more.

        Raises:
            LeadershipLost: Another process leads.
        """
        self._beat = self._monotonic()
        renewal = Renewal(
            self._database,
            self.epoch,
            LEASE_MS,
            period_s=RENEW_S,
            pause_s=FIRST_PAUSE_S,
            alive=lambda: max(self.still_s(), busy_s()) < STUCK_S,
            renewed=self._renewed,
            monotonic=self._monotonic,
        )
        renewal.start()
        try:
            while not renewal.lost:
                self._beat, self._renewed = self._monotonic(), renewal.renewed
                if renewal.trouble and not self._trouble_here and self._database.outage is None:
                    log.warning("the lease is not renewed yet", error=renewal.trouble)
                self._trouble_here = renewal.trouble
                if renewal.trouble and self._left_here_s() < 0:
                    self._database.failed(OSError(renewal.trouble))
                await asyncio.sleep(BEAT_S)
        finally:
            renewal.stop()
            for _ in range(20):  # a renewal under way would bring back what is given back now
                if renewal.stopped:
                    break
                await asyncio.sleep(0.1)
        raise LeadershipLost("another process leads now")

    @property
    def cut_off(self) -> str:
        """Why a leader may not act or soon may not: a lease is not renewed. "" = both are.

        A database that only answers reads is here too, which is no outage.
        """
        if self._trouble_here and self._left_here_s() < 0:
            return f"database: {self._trouble_here}"
        return f"cluster: {self._trouble_there}" if self._trouble_there else ""

    def still_s(self) -> float:
        """For how long the event loop has not moved, seconds."""
        return self._monotonic() - self._beat

    def left_s(self) -> float:
        """Seconds until this process must not count on its leadership any more, by its own clock; negative after that."""
        return min(self._left_there_s(), self._left_s(self._renewed))

    def _left_here_s(self) -> float:
        """Of the row. With SQLite the lock on the file is the leadership."""
        return inf if self._database.kind == "sqlite" else self._left_s(self._renewed)

    def _left_there_s(self) -> float:
        """Of the lease in the cluster."""
        return inf if self._executor.leader_lease is None else self._left_s(self._renewed_there)

    def _left_s(self, renewed: float) -> float:
        return LEASE_MS / 1000 - (self._monotonic() - renewed) - 1.0
