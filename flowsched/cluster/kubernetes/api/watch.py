"""Follow a collection: list it, watch it from there, and go on through whatever an API server does to its watchers.

Each fault of a watch, and how the reflector handles it (measured in KUBE.md):

    the stream ends, is reset or falls silent   go on from the last version seen; slow readers are cut like that
    ERROR event 410, or HTTP 410                the server has forgotten that version: list again, `Batch.replaced`
    any other ERROR event                       back off, then list again
    an object older than the known state        dropped: reports of an object never go back
    a list older than what was seen             not believed, unless it is repeated (etcd was restored from a backup)
    an object that cannot be decoded            left out, counted, and named in `Batch.unread`

Nothing here ends the loop but its caller. Connects are on average more than a second apart, also under a server that
closes every stream at once, and exponentially further where nothing comes of them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from flowsched.background import BackgroundTasks
from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Malformed, Refused, Unreachable
from flowsched.cluster.kubernetes.objects.core import OnlyMetadata, Status, WatchEvent
from flowsched.cluster.kubernetes.objects.metadata import HasMetadata, Metadata
from flowsched.log_lines import get_logger

#: A longer line is dropped: it would be 30 times as long as the largest object that etcd takes.
LONGEST_BYTES: Final = 64 << 20


class Lines:
    """The splitter. aiohttp's own `readline` gives up at 512 KiB, which one large pod exceeds.

    Args:
        longest_bytes: A longer line is dropped, so that a faulty server cannot fill the memory.
    """

    def __init__(self, longest_bytes: int = LONGEST_BYTES) -> None:
        self._longest = longest_bytes
        self._parts: list[bytes] = []  #: of the line that has begun
        self._size = 0
        self._dropping = False
        self._dropped = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Take what has arrived; returns the lines that are now complete, without empty ones."""
        first, *rest = piece.split(b"\n")
        self._keep(first)
        if not rest:
            return []
        whole = b"".join(self._parts)
        self._parts, self._size, self._dropping = [], 0, False
        begun = rest.pop()
        lines = [line for line in (whole, *rest) if line]
        self._keep(begun)
        return lines

    def drain_dropped(self) -> int:
        """How many lines have been dropped since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._dropping:
            return
        if self._size > self._longest:
            self._dropping = True
            self._dropped += 1
            self._parts.clear()
        elif part:
            self._parts.append(part)


# ---- following one collection ----


log = get_logger(__name__)

T = TypeVar("T", bound=HasMetadata)
Change: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"]

#: Bookmarks come each minute, so a stream that is silent for longer is broken.
IDLE_S: Final = 75.0
#: A watch is asked to end after so long, plus at most a quarter: connections move to other API servers now and then.
WATCH_S: Final = 240.0
#: Productive connections begin at least so far from the last but one.
PAIR_S: Final = 2.0
#: Waits after connections that brought nothing: none, 1, 2, 4 … s, plus at most a half.
LONGEST_WAIT_S: Final = 20.0
#: A connection that brought nothing, but lasted so long, was no failure.
LASTING_S: Final = 30.0
#: Of so many stale lists in a row, the last is accepted.
STALE_LISTS: Final = 3
#: So many deleted objects are remembered, so that a late event does not bring one back.
GRAVES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """Objects and changes that have arrived since the last batch.

    Args:
        replaced: A complete fresh list, or None. An object that is neither in it nor in `unread` is gone.
        changed: Changes in order. A DELETED carries the object's last state, or no more than its metadata.
        unread: Objects that are there and could not be decoded.
    """

    replaced: list[T] | None = None
    changed: list[tuple[Change, T]] = field(default_factory=list)
    unread: list[Metadata] = field(default_factory=list)

    def items(self) -> Iterator[tuple[Change, T]]:
        """All objects and changes in order; those of a complete list were added."""
        for each in self.replaced or ():
            yield "ADDED", each
        yield from self.changed


@dataclass(slots=True)
class Counts:
    """For metrics."""

    events: int = 0
    relists: int = 0  #: lists after the first
    reconnects: int = 0  #: watches after the first
    skipped: int = 0  #: lines and objects that could not be decoded
    outdated: int = 0  #: events and lists that were older than the last known state


class Memory:
    """Versions seen since the last list: enough to tell new events from late or repeated ones.

    Versions grow with every write of anything, and the version of a DELETED is that of the deletion: so nothing that is
    older than an object's end is news, and what is newer (it left a selector, and came back) is.
    """

    def __init__(self) -> None:
        self.newest = 0
        self._floor = 0  #: the list's: later versions are newer
        self._versions: dict[str, int] = {}  #: uid -> version
        self._graves: deque[tuple[str, int]] = deque()

    def begin(self, version: int) -> None:
        """Begin again with a list."""
        self.newest = self._floor = version
        self._versions.clear()
        self._graves.clear()

    def pass_by(self, version: int) -> None:
        """Everything up to a version has been told."""
        self.newest = max(self.newest, version)

    def is_news(self, metadata: Metadata, *, buried: bool) -> bool:
        """Whether this is newer than all that is known of the object. Remembers it.

        Raises:
            ValueError: The version is no number.
        """
        version = int(metadata.resource_version)
        if version <= max(self._floor, self._versions.get(metadata.uid, 0)):
            return False
        self._versions[metadata.uid] = version
        self.pass_by(version)
        if buried:
            self._graves.append((metadata.uid, version))
            if len(self._graves) > GRAVES:
                uid, last = self._graves.popleft()
                if self._versions.get(uid) == last:
                    del self._versions[uid]
        return True


class Reflector(Generic[T]):
    """The reader of one collection.

    Args:
        client: Of the API server.
        path: Of the collection: "/api/v1/pods".
        kind: Struct of its objects; all fields but `metadata` have defaults.
        params: Selectors.
        idle_s: A silence of so long means a broken connection.
        page: Items of a list request.
        longest_line_bytes: A longer event is dropped.
        clock: Monotonic seconds.
        sleep: Waits.
        jitter: A random number from 0 to 1.

    Attributes:
        counts: For metrics.
        problem: Why nothing can be read at present; "" while all is well.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        kind: type[T],
        *,
        params: Mapping[str, str] | None = None,
        idle_s: float = IDLE_S,
        page: int = 500,
        longest_line_bytes: int = LONGEST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.counts = Counts()
        self.problem = ""
        self._client = client
        self._path = path
        self._kind = kind
        self._params = dict(params or {})
        self._idle_s = idle_s
        self._page = page
        self._longest = longest_line_bytes
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._decoder = msgspec.json.Decoder(kind)
        self._memory = Memory()
        self._listed_once = False
        self._gone: Status | None = None  #: an ERROR event
        self._heard = clock()
        self._begun: deque[float] = deque(maxlen=2)
        self._barren = 0  #: connections and lists in a row that brought nothing
        self._forgotten = 0  #: of these, watches that the server answered with 410

    @property
    def synced(self) -> bool:
        """Whether there has been a list, and there is no problem."""
        return self._listed_once and not self.problem

    @property
    def silent_s(self) -> float:
        """Seconds since the server was last heard: a list, an event, a bookmark."""
        return self._clock() - self._heard

    @property
    def version(self) -> int:
        """The newest resourceVersion seen."""
        return self._memory.newest

    async def changes(self) -> AsyncGenerator[Batch[T], None]:
        """Yield a full list, then every change, without end. Close it (`aclosing`) when no longer read."""
        while True:
            yield await self._listed()
            async with aclosing(self._followed()) as batches:
                async for batch in batches:
                    yield batch
            self.counts.relists += 1

    async def _listed(self) -> Batch[T]:
        """List until there is a list to believe."""
        stale = 0
        while True:
            try:
                listing = await self._client.listing(
                    self._path, self._kind, params=self._params, page=self._page
                )
                version = int(listing.version)
            except (Refused, Unreachable, Malformed, ValueError) as error:
                await self._back_off(str(error), _asked_s(error))
                continue
            self._heard = self._clock()
            self.counts.skipped += len(listing.unread)
            if version < self.version and stale + 1 < STALE_LISTS:
                stale += 1
                self.counts.outdated += 1
                await self._back_off(f"{self._path}: a list of version {version} after {self.version}")
                continue
            self._memory.begin(version)
            self.problem = ""
            self._listed_once = True
            return Batch(replaced=listing.items, unread=listing.unread)

    async def _followed(self) -> AsyncGenerator[Batch[T], None]:
        """Watch until a new list is needed."""
        while True:
            begun = self._clock()
            self._begun.append(begun)
            before = self.counts.events
            trouble: Exception | None = None
            try:
                async with aclosing(self._watched()) as batches:
                    async for batch in batches:
                        yield batch
            except (Refused, Unreachable) as error:
                trouble = error
            gone, self._gone = self._gone, None
            if gone is not None and gone.code != 410:
                problem = f"{self._path}: ERROR {gone.code} {gone.reason} {gone.message}"
                await self._back_off(problem, least_s=1.0)
                return
            if gone is not None or (isinstance(trouble, Refused) and trouble.answer.status == 410):
                # A server that forgets at once must not be listed without pause. One that was away and has forgotten may be:
                # what was waited then does not count.
                self._forgotten += 1
                self._barren = self._forgotten
                await self._pause()
                return
            self.counts.reconnects += 1
            if self.counts.events > before:
                self._well()
                await self._space_out()
            elif self._clock() - begun >= LASTING_S:
                self._well()  # also after silence: a collection in which nothing happens may get no bookmarks
            else:
                await self._back_off("" if trouble is None else str(trouble), _asked_s(trouble))

    async def _watched(self) -> AsyncGenerator[Batch[T], None]:
        """One watch, to its end or an ERROR event."""
        params = self._params | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self.version),
            "timeoutSeconds": str(int(WATCH_S * (1 + self._jitter() / 4))),
        }
        lines = Lines(self._longest)
        async with aclosing(self._client.stream(self._path, params=params, idle_s=self._idle_s)) as pieces:
            async for piece in pieces:
                self.problem = ""
                batch = self._read(lines.feed(piece))
                self.counts.skipped += lines.drain_dropped()
                if batch.changed or batch.unread:
                    yield batch
                if self._gone is not None:
                    return

    def _read(self, lines: Iterable[bytes]) -> Batch[T]:
        batch: Batch[T] = Batch()
        for line in lines:
            try:
                event = msgspec.json.decode(line, type=WatchEvent)
                self._apply(event, batch)
            except (msgspec.MsgspecError, ValueError):
                self.counts.skipped += 1
            if self._gone is not None:
                break
        return batch

    def _apply(self, event: WatchEvent, batch: Batch[T]) -> None:
        """Add an event to the batch, or note what else it says.

        Raises:
            msgspec.MsgspecError, ValueError: Not even its metadata can be read.
        """
        self._heard = self._clock()
        match event.type:
            case "ADDED" | "MODIFIED" | "DELETED":
                self._apply_change(event.type, event.object, batch)
            case "BOOKMARK":
                metadata = msgspec.json.decode(event.object, type=OnlyMetadata).metadata
                self._memory.pass_by(int(metadata.resource_version))
            case "ERROR":
                self._gone = msgspec.json.decode(event.object, type=Status)
            case _:
                raise ValueError(event.type)

    def _apply_change(self, change: Change, raw: msgspec.Raw, batch: Batch[T]) -> None:
        found: T | None
        try:
            found = self._decoder.decode(raw)
            metadata = found.metadata
        except msgspec.MsgspecError:
            bare = msgspec.json.decode(raw, type=OnlyMetadata)
            self.counts.skipped += 1
            metadata = bare.metadata
            # Its name and uid are enough to bury it; anything else must not look like an object without content.
            found = self._decoder.decode(msgspec.json.encode(bare)) if change == "DELETED" else None
        if not self._memory.is_news(metadata, buried=change == "DELETED"):
            self.counts.outdated += 1
            return
        self.counts.events += 1
        if found is None:
            batch.unread.append(metadata)
        else:
            batch.changed.append((change, found))

    def _well(self) -> None:
        self.problem = ""
        self._barren = self._forgotten = 0

    async def _space_out(self) -> None:
        """Keep connections that end quickly, but bring something, from following each other too fast."""
        if len(self._begun) == 2:
            wait_s = PAIR_S * (1 + self._jitter() / 2) - (self._clock() - self._begun[0])
            if wait_s > 0:
                await self._sleep(wait_s)

    async def _back_off(self, problem: str, least_s: float = 0.0) -> None:
        """Note what is wrong, and wait before the next try: unless that is asked for, not at all the first time."""
        self._barren += 1
        if problem and problem != self.problem:
            self.problem = problem
            log.warning("cannot read from the API server", path=self._path, problem=problem)
        await self._pause(least_s)

    async def _pause(self, least_s: float = 0.0) -> None:
        own_s = min(LONGEST_WAIT_S, 2.0 ** (self._barren - 2)) if self._barren > 1 else 0.0
        wait_s = max(own_s, least_s)
        if wait_s > 0:
            await self._sleep(wait_s * (1 + self._jitter() / 2))


def _asked_s(error: Exception | None) -> float:
    """The seconds that the server asks to wait."""
    return (error.answer.retry_after_s or 0.0) if isinstance(error, Refused) else 0.0


# ---- objects that cannot be understood ----
#
# They are named, counted and left out; the objects after them are served (row 28).


#: An object that changes often is complained of now and then.
_EACH: Final = 100
#: uid -> how often. For metrics.
MISUNDERSTOOD: Final[Counter[str]] = Counter()


def taken(process: Callable[[T], None], each: T) -> bool:
    """Hand an object on. False: that failed, for whatever reason; its known state stays."""
    try:
        process(each)
    except Exception:  # one object that triggers a bug of ours must not stop the service for all users
        meta = each.metadata
        if MISUNDERSTOOD[meta.uid] % _EACH == 0:
            log.exception(
                "an object was not understood",
                kind=type(each).__name__,
                namespace=meta.namespace,
                name=meta.name,
            )
        MISUNDERSTOOD[meta.uid] += 1
        return False
    return True


# ---- the watches of a cluster ----
#
# Each collection is listed, then followed, and handed to its keeper in the view.


#: Before a collection is read again that could not be understood.
REREAD_S: Final = 5.0
_POLL_S: Final = 0.02


class Watches:
    """All of them.

    Args:
        client: Of the API server.
        idle_s: A watch that is silent for so long is broken.
    """

    def __init__(self, client: Client, idle_s: float) -> None:
        self._client = client
        self._idle_s = idle_s
        self._reflectors: dict[str, Reflector[Any]] = {}
        self._tasks = BackgroundTasks("a watch")

    async def follow(self, path: str, kind: type[T], handler: Callable[[Batch[T]], None]) -> None:
        """Follow a collection from now on; returns when it has been listed and handed over."""
        listed = asyncio.Event()
        reflector: Reflector[T] = Reflector(self._client, path, kind, idle_s=self._idle_s)
        self._reflectors[path] = reflector
        self._tasks.keep(partial(_follow, reflector, handler, listed), f"watch {path}")
        await listed.wait()

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    def counters(self) -> Mapping[str, int]:
        """The counts of all watches together."""
        all_of = [reflector.counts for reflector in self._reflectors.values()]
        return {
            "watch_events": sum(each.events for each in all_of),
            "watch_relists": sum(each.relists for each in all_of),
            "watch_reconnects": sum(each.reconnects for each in all_of),
            "watch_skipped": sum(each.skipped for each in all_of),
            "watch_outdated": sum(each.outdated for each in all_of),
        }

    @property
    def problem(self) -> str:
        """The first watch with a problem, and that problem; "" while all are well."""
        return next((f"{path}: {r.problem}" for path, r in self._reflectors.items() if r.problem), "")

    @property
    def blind_s(self) -> float:
        """For how long no watch at all has been well, seconds; 0 while one is."""
        all_of = self._reflectors.values()
        return 0.0 if any(not r.problem for r in all_of) else min((r.silent_s for r in all_of), default=0.0)

    async def synced(self) -> None:
        """Wait until every watch is well: nothing is placed on a view with holes."""
        while not all(r.synced for r in self._reflectors.values()):  # noqa: ASYNC110 - counters of others
            await asyncio.sleep(_POLL_S)

    async def caught_up(self, path: str, version: int) -> None:
        """Wait until a collection's watch has shown everything up to a version."""
        while self._reflectors[path].version < version:  # noqa: ASYNC110 - as above
            await asyncio.sleep(_POLL_S)


async def _follow(
    reflector: Reflector[T], handler: Callable[[Batch[T]], None], listed: asyncio.Event
) -> None:
    while True:
        async with aclosing(reflector.changes()) as batches:
            async for batch in batches:
                try:
                    handler(batch)
                finally:
                    listed.set()
        await asyncio.sleep(REREAD_S)
