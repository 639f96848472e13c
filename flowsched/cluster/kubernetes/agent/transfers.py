"""Transfers into this node's cache: a few at a time, one per dataset or piece of one, reported as events when they end.

The event of a piece has three fields more: `offset`, as it was ordered; `whole`, whether all of the dataset is here now;
`version`, which it is of.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from flowsched.cluster.kubernetes.agent.events import EventLog
from flowsched.cluster.kubernetes.agent.sources import Sources
from flowsched.cluster.node.cache import Cache
from flowsched.cluster.node.origins import NotFetched
from flowsched.cluster.node.ranges import Landed
from flowsched.cluster.node.rates import Rates
from flowsched.cluster.node.transfers import NodeTransfers, finish
from flowsched.executor.protocol import Transfer
from flowsched.log_lines import get_logger
from flowsched.workflow.document.uris import redacted

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
        """Accept nothing more."""
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _answer(self, done: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
        def notify() -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        with suppress(RuntimeError):  # the loop is closed: no task waits any more
            self._loop.call_soon_threadsafe(notify)


# ---- the transfers ----


log = get_logger(__name__)

#: More orders than this may not wait: the agent refuses further ones with 429.
MOST_WAITING: Final = 100_000


class Transfers:
    """The transfers of one node, a few at a time, and their events.

    Args:
        node: The node's name.
        cache: Where to.
        sources: Where from.
        rates: How fast.
        news: The event log that ends of transfers are reported to.
        parallel: How many at a time.
    """

    def __init__(
        self, node: str, cache: Cache, sources: Sources, rates: Rates, news: EventLog, parallel: int = 4
    ) -> None:
        self._node = node
        self._incoming = NodeTransfers(cache, node)
        self._cache = cache
        self._sources = sources
        self._rates = rates
        self._news = news
        self._workers = Workers(parallel)
        self._under_way: dict[tuple[str, int], asyncio.Task[Landed]] = {}
        self.done = 0
        self.pieces = 0
        self.failed = 0

    @property
    def waiting(self) -> int:
        """How many are under way, or wait for their turn."""
        return len(self._under_way)

    @property
    def in_bytes(self) -> int:
        """Bytes that have come."""
        return self._incoming.received_bytes

    def is_under_way(self, uri: str) -> bool:
        """Whether a dataset is on its way here, as a whole."""
        return (uri, -1) in self._under_way

    def start(self, order: Transfer, url: str = "") -> asyncio.Task[Landed]:
        """Start one, or join the one under way, whose end is reported once. Await it shielded: others may wait for it too.

        It raises NotFetched when the dataset cannot be had.

        Args:
            order: Which. `dest` is this node.
            url: Of the agent of `order.source`.
        """
        key = order.uri, -1 if order.whole else order.offset
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.create_task(self._carry_out(key, order, url), name="transfer")
            task.add_done_callback(_retrieve_exception)
            self._under_way[key] = task
        return task

    async def fetch(self, uri: str) -> None:
        """Wait until a dataset has come from its origin.

        Raises:
            NotFetched: It cannot be had.
        """
        await asyncio.shield(self.start(Transfer(uri, 0, self._node)))

    def charge(self, uri: str) -> tuple[int, int]:
        """(found here, brought here) bytes of an input: the first to use what was brought is charged."""
        return self._incoming.charge(uri)

    async def close(self) -> None:
        """Stop. The next start removes half copies; of a dataset in pieces it removes only the pieces under way."""
        self._rates.stop()
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        self._workers.close()

    async def _carry_out(self, key: tuple[str, int], order: Transfer, url: str) -> Landed:
        try:
            there = await asyncio.to_thread(self._cache.find, order.uri)
            if there is not None:
                landed = Landed(there.size_bytes, there.version, 0, there)
            else:
                source = self._sources.of(order, url)
                steps = self._incoming.bring(order, source, self._rates.block_bytes)
                landed = await self._workers.do(finish, steps, self._rates.admit)
        except NotFetched as error:
            self._fail(order, error)
            raise
        finally:
            del self._under_way[key]
        if there is None and landed.entry is not None:
            self._news.replica(order.uri, landed.size_bytes, present=True)
        self.done += 1
        self.pieces += not order.whole
        more = _more(order, whole=landed.entry is not None, version=landed.version)
        self._news.transfer(order.uri, order.source, landed.moved_bytes, landed.size_bytes, **more)
        return landed

    def _fail(self, order: Transfer, error: NotFetched) -> None:
        self.failed += 1
        uri = redacted(order.uri)
        log.info("transfer failed", uri=uri, source=order.source, why=str(error).replace(order.uri, uri))
        failure: dict[str, Any] = {"message": str(error), "lost": error.lost, "permanent": error.permanent}
        if error.changed or not order.whole:
            failure["changed"] = error.changed
        if not order.whole:
            failure["undivided"] = error.undivided
        if error.full:
            failure["full"] = True
        if error.emptied:
            self._news.replica(order.uri, 0, present=False)
        more = _more(order, whole=False, version=error.version)
        self._news.transfer(order.uri, order.source, 0, 0, failure, **more)


def _more(order: Transfer, **fields: Any) -> dict[str, Any]:
    """Fields that only the event of a piece has; empty for a whole dataset."""
    return {} if order.whole else {"offset": order.offset, **fields}


def _retrieve_exception(task: asyncio.Task[Landed]) -> None:
    """Read the exception, or asyncio warns if no task waits: the failure has been reported as an event."""
    if not task.cancelled():
        task.exception()
