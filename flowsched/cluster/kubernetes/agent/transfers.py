"""Transfers into this node's cache: a few at a time, one per dataset or piece of one, reported as events when they end.

The event of a piece has three fields more: `offset`, as it was ordered; `whole`, whether all of the dataset is here now;
`version`, which it is of.
"""

from __future__ import annotations

import asyncio
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from flowsched.cluster.kubernetes.agent import trees
from flowsched.cluster.kubernetes.agent.events import News
from flowsched.cluster.kubernetes.agent.sources import Peer, Sources
from flowsched.cluster.local.runner.records import sync_folder
from flowsched.cluster.node.cache import Cache
from flowsched.cluster.node.origins import NotFetched
from flowsched.cluster.node.ranges import Landed, Piece, bring
from flowsched.cluster.node.rates import Rates, Stopped
from flowsched.workflow.document.stage import redacted

T = TypeVar("T")


class Workers:
    """A few threads.

    Args:
        count: How many; so much work is under way at a time.
    """

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._run, name=f"transfer-{number}", daemon=True).start()

    async def do(self, act: Callable[..., T], *arguments: Any) -> T:
        """Do something in the first thread that is free."""
        done: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                result = act(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                self._answer(done, None, error)
            else:
                self._answer(done, result, None)

        self._work.put(work)
        return await done

    def close(self) -> None:
        """Take on nothing more."""
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _answer(self, done: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
        def tell() -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        with suppress(RuntimeError):  # the loop is closed: no task waits any more
            self._loop.call_soon_threadsafe(tell)


# ---- the transfers ----


log = structlog.get_logger(__name__)

#: More orders than this may not wait: the agent refuses further ones with 429.
MOST_WAITING: Final = 100_000


@dataclass(frozen=True, slots=True)
class Order:
    """A dataset that shall come, from another agent or from its origin; or a piece of it, if there is an `offset`."""

    uri: str
    size_bytes: int = 0  #: as far as it is known; of the piece, if it is one
    peer: Peer | None = None
    offset: int | None = None
    version: str = ""  #: that the piece must be of; "" = not known

    @property
    def key(self) -> tuple[str, int]:
        """The agent runs only one transfer of a key at a time."""
        return self.uri, -1 if self.offset is None else self.offset


class Transfers:
    """The transfers of one node.

    Args:
        cache: Where to.
        sources: Where from: whole datasets, and pieces of them.
        rates: How fast.
        news: The event log that ends of transfers are reported to.
        parallel: How many at a time.
    """

    def __init__(self, cache: Cache, sources: Sources, rates: Rates, news: News, parallel: int = 4) -> None:
        self._cache = cache
        self._sources = sources
        self._rates = rates
        self._news = news
        self._workers = Workers(parallel)
        self._under_way: dict[tuple[str, int], asyncio.Task[Landed]] = {}
        self._unclaimed: dict[str, int] = {}
        self._promised: dict[str, int] = {}  #: bytes that transfers under way will need
        self.in_bytes = 0
        self.done = 0
        self.pieces = 0
        self.failed = 0

    @property
    def waiting(self) -> int:
        """How many are under way, or wait for their turn."""
        return len(self._under_way)

    def is_under_way(self, uri: str) -> bool:
        """Whether a dataset is on its way here, as a whole."""
        return (uri, -1) in self._under_way

    def order(self, orders: Sequence[Order]) -> None:
        """Start them, in order. One that is under way already is not started twice: its end is told once."""
        for order in orders:
            self.start(order)

    def start(self, order: Order) -> asyncio.Task[Landed]:
        """Start one, or join the one under way. Await it shielded: others may wait for it too.

        It raises NotFetched when the dataset cannot be had.
        """
        task = self._under_way.get(order.key)
        if task is None:
            task = asyncio.create_task(self._carry_out(order), name="transfer")
            task.add_done_callback(_looked_at)
            self._under_way[order.key] = task
        return task

    def charge(self, uri: str) -> tuple[int, int]:
        """(found here, brought here) bytes of an input: the first to use what was brought is charged."""
        entry = self._cache.entries.get(uri)
        size = entry.size_bytes if entry else 0
        moved = min(size, self._unclaimed.pop(uri, 0))
        return size - moved, moved

    async def close(self) -> None:
        """Stop. What is half there is removed at the next start; of what comes in pieces, the pieces under way."""
        self._rates.stop()
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        self._workers.close()

    async def _carry_out(self, order: Order) -> Landed:
        source = order.peer.node if order.peer else None
        try:
            there = await asyncio.to_thread(self._cache.find, order.uri)
            if there is not None:
                landed = Landed(there.size_bytes, there.version, 0, there)
            else:
                fill = self._fill if order.offset is None else self._fill_piece
                landed = await self._workers.do(fill, order)
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
            del self._under_way[order.key]
            if order.offset is None:
                self._promised.pop(order.uri, None)
        moved = landed.moved_bytes
        if moved:
            self._unclaimed[order.uri] = self._unclaimed.get(order.uri, 0) + moved
            self.in_bytes += moved
        if there is None and landed.entry is not None:
            self._news.replica(order.uri, landed.size_bytes, present=True)
        self.done += 1
        self.pieces += order.offset is not None
        more = _more(order, whole=landed.entry is not None, version=landed.version)
        self._news.transfer(order.uri, source, moved, landed.size_bytes, **more)
        return landed

    def _failed(self, order: Order, error: NotFetched) -> NotFetched:
        source = order.peer.node if order.peer else None
        self.failed += 1
        uri = redacted(order.uri)
        log.info("transfer failed", uri=uri, source=source, why=str(error).replace(order.uri, uri))
        told: dict[str, Any] = {"message": str(error), "lost": error.lost, "permanent": error.permanent}
        if order.offset is not None:
            told |= {"changed": error.changed, "undivided": error.undivided}
        if error.emptied:
            self._news.replica(order.uri, 0, present=False)
        self._news.transfer(order.uri, source, 0, 0, told, **_more(order, whole=False, version=error.version))
        return error

    # --- in a thread -----------------------------------------------------------------------------------------

    def _fill(self, order: Order) -> Landed:
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
            entry = self._sources.bring(order.uri, order.peer, into, admit)
            self._cache.publish(into, entry)
        except BaseException:
            with suppress(OSError):
                shutil.rmtree(into, ignore_errors=True)
            raise
        sync_folder(str(self._cache.folder))
        return Landed(entry.size_bytes, entry.version, entry.size_bytes, entry)

    def _fill_piece(self, order: Order) -> Landed:
        source = order.peer.node if order.peer else None
        piece = Piece(order.uri, order.offset or 0, order.size_bytes, order.version, source)
        opened = partial(self._sources.section, order.uri, order.peer, order.version)
        room = partial(self._check_room_for, order.uri)
        steps = bring(self._cache, piece, opened, room=room, seal=_seal, block_bytes=self._rates.piece_bytes)
        try:
            while True:
                self._rates.take_in(next(steps))
        except StopIteration as end:
            landed: Landed = end.value
        finally:
            steps.close()
        if landed.entry is not None:
            sync_folder(str(self._cache.folder))
        return landed

    def _check_room_for(self, uri: str, size_bytes: int) -> None:
        promised = sum(list(self._promised.values()))
        if not self._cache.room_for(promised + size_bytes):
            raise NotFetched(f"the cache has no {size_bytes} bytes left for {uri}")

    def _check_room(self, uri: str, came: int) -> None:
        """Raise if what is here, what the others were promised and this one do not fit together."""
        promised = sum(list(self._promised.values()))
        if not self._cache.room_for(promised):
            free = max(0, self._cache.limit_bytes - self._cache.used_bytes)
            size = max(came, self._promised.get(uri, 0))
            raise NotFetched(f"the cache has {free} bytes left for all transfers, {size} or more are needed")


def _more(order: Order, **said: Any) -> dict[str, Any]:
    """Fields that only the event of a piece has; empty for a whole dataset."""
    return {} if order.offset is None else {"offset": order.offset, **said}


def _seal(path: Path, mode: int) -> None:
    """Make a file that has come in pieces one of the cache."""
    path.chmod(mode & 0o777 | 0o400)
    trees.seal(str(path))


def _looked_at(task: asyncio.Task[Landed]) -> None:
    """Read the exception, or asyncio warns if no task waits: the failure has been reported as an event."""
    if not task.cancelled():
        task.exception()
