"""Transfers into this node's cache: a few at a time, one per dataset, told as events when they end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from flowsched.cluster.cache import Cache, Entry
from flowsched.cluster.kubernetes.agent.news import News
from flowsched.cluster.kubernetes.agent.rates import Rates, Stopped
from flowsched.cluster.kubernetes.agent.sources import Admit, Peer
from flowsched.cluster.kubernetes.agent.workers import Workers
from flowsched.cluster.origins import NotFetched
from flowsched.cluster.running.records import sync_folder
from flowsched.workflow.data import redacted

log = structlog.get_logger(__name__)

#: More orders than this may not wait: who asks for more is told to come back.
MOST_WAITING: Final = 100_000


@dataclass(frozen=True, slots=True)
class Order:
    """A dataset that shall come, from another agent or from its origin."""

    uri: str
    size_bytes: int = 0  #: as far as it is known
    peer: Peer | None = None


class Bring(Protocol):
    """Fills a folder with a dataset; see `Sources.bring`."""

    def __call__(self, uri: str, peer: Peer | None, into: Path, admit: Admit, /) -> Entry:
        """Blocks."""
        ...


class Transfers:
    """The transfers of one node.

    Args:
        cache: Where to.
        bring: Where from.
        rates: How fast.
        news: Whom to tell.
        parallel: How many at a time.
    """

    def __init__(self, cache: Cache, bring: Bring, rates: Rates, news: News, parallel: int = 4) -> None:
        self._cache = cache
        self._bring = bring
        self._rates = rates
        self._news = news
        self._workers = Workers(parallel)
        self._under_way: dict[str, asyncio.Task[Entry]] = {}
        self._unclaimed: dict[str, int] = {}
        self._promised: dict[str, int] = {}  #: bytes that transfers under way will need
        self.in_bytes = 0
        self.done = 0
        self.failed = 0

    @property
    def waiting(self) -> int:
        """How many are under way, or wait for their turn."""
        return len(self._under_way)

    def is_under_way(self, uri: str) -> bool:
        """Whether a dataset is on its way here."""
        return uri in self._under_way

    def order(self, orders: Sequence[Order]) -> None:
        """Start them, in order. One that is under way already is not started twice: its end is told once."""
        for order in orders:
            self.start(order)

    def start(self, order: Order) -> asyncio.Task[Entry]:
        """Start one, or join the one under way. Await it shielded: others may wait for it too.

        It raises NotFetched when the dataset cannot be had.
        """
        task = self._under_way.get(order.uri)
        if task is None:
            task = asyncio.create_task(self._carry_out(order), name="transfer")
            task.add_done_callback(_looked_at)
            self._under_way[order.uri] = task
        return task

    def charge(self, uri: str) -> tuple[int, int]:
        """(found here, brought here) bytes of an input: the first to use what was brought is charged."""
        entry = self._cache.entries.get(uri)
        size = entry.size_bytes if entry else 0
        moved = min(size, self._unclaimed.pop(uri, 0))
        return size - moved, moved

    async def close(self) -> None:
        """Stop. What is half there is removed at the next start."""
        self._rates.stop()
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        self._workers.close()

    async def _carry_out(self, order: Order) -> Entry:
        source = order.peer.node if order.peer else None
        try:
            there = await asyncio.to_thread(self._cache.find, order.uri)
            entry: Entry = await self._workers.do(self._fill, order) if there is None else there
        except NotFetched as error:
            raise self._failed(order, error) from None
        except OSError as error:
            raise self._failed(order, NotFetched(f"cannot store {order.uri}: {error}")) from error
        except Stopped:
            raise
        except Exception as error:
            log.exception("transfer broke", uri=redacted(order.uri), source=source)
            raise self._failed(order, NotFetched(f"cannot bring {order.uri}: {error!r}")) from error
        finally:
            del self._under_way[order.uri]
            self._promised.pop(order.uri, None)
        moved = 0 if there else entry.size_bytes
        if not there:
            self._unclaimed[order.uri] = moved
            self.in_bytes += moved
            self._news.replica(order.uri, entry.size_bytes, present=True)
        self.done += 1
        self._news.transfer(order.uri, source, moved, entry.size_bytes)
        return entry

    def _failed(self, order: Order, error: NotFetched) -> NotFetched:
        source = order.peer.node if order.peer else None
        self.failed += 1
        uri = redacted(order.uri)
        log.info("transfer failed", uri=uri, source=source, why=str(error).replace(order.uri, uri))
        told = {"message": str(error), "lost": error.lost, "permanent": error.permanent}
        self._news.transfer(order.uri, source, 0, 0, told)
        return error

    # --- in a thread -----------------------------------------------------------------------------------------

    def _fill(self, order: Order) -> Entry:
        self._promised[order.uri] = order.size_bytes
        self._check_room(order.uri, 0)
        came = 0

        def admit(amount: int) -> None:
            nonlocal came
            came += amount
            if came > order.size_bytes:
                self._promised[order.uri] = came
                self._check_room(order.uri, came)
            self._rates.take_in(amount)

        into = self._cache.temporary()
        try:
            entry = self._bring(order.uri, order.peer, into, admit)
            self._cache.publish(into, entry)
        except BaseException:
            with suppress(OSError):
                shutil.rmtree(into, ignore_errors=True)
            raise
        sync_folder(str(self._cache.folder))
        return entry

    def _check_room(self, uri: str, came: int) -> None:
        """Raise if what is here, what the others were promised and this one do not fit together."""
        promised = sum(list(self._promised.values()))
        if not self._cache.room_for(promised):
            free = max(0, self._cache.limit_bytes - self._cache.used_bytes)
            size = max(came, self._promised.get(uri, 0))
            raise NotFetched(f"the cache has {free} bytes left for all transfers, {size} or more are needed")


def _looked_at(task: asyncio.Task[Entry]) -> None:
    """Nobody may be waiting, and asyncio would complain: the failure has been told as an event."""
    if not task.cancelled():
        task.exception()
