"""Node agents from the service's side: which there are, their caches, their measurements and their copies.

An agent's own list is the truth about its cache. The service reads it at the start of every connection and then follows it.
Orders that were under way are sent again, since an agent that was restarted has forgotten them (it answers an order for what is
there at once).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import aiohttp
import msgspec

from flowsched.background import BackgroundTasks, Backoff
from flowsched.cluster.kubernetes.agent_keys import bearer_of
from flowsched.cluster.kubernetes.step_messages import Result, read_result
from flowsched.cluster.node.meter import INTERVAL_S
from flowsched.executor.nodes import Load, LoadMeasured
from flowsched.executor.protocol import (
    ClusterEvent,
    Fingerprint,
    Opened,
    PiecesSeen,
    ReplicaSeen,
    Transfer,
    TransferDone,
    TransferFailed,
)
from flowsched.log_lines import get_logger

#: Bytes, or ms.
Amount = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
#: Of a pod: bytes of the disk since the last time, bytes in all, CPU time in all.
PodUse = tuple[Amount, Amount, Amount]


class Replica(msgspec.Struct):
    """A dataset of a cache."""

    uri: str
    size_bytes: int


class PartOf(msgspec.Struct):
    """A dataset that is coming to a cache in pieces."""

    uri: str
    size_bytes: int
    version: str
    spans: tuple[tuple[int, int], ...]


class Replicas(msgspec.Struct):
    """The content of an agent's cache."""

    instance: str
    seq: int
    replicas: list[Replica]
    partials: list[PartOf] = []
    cache_bytes: int = 0  #: its limit; 0 = none


class Refusal(msgspec.Struct):
    """Why a transfer failed, as in `TransferFailed`."""

    message: str = ""
    lost: bool = False
    permanent: bool = False
    changed: bool = False
    undivided: bool = False
    full: bool = False


class NodeLoad(msgspec.Struct):
    """A node's load since the measurement before, see `node.meter`. None = it cannot be measured."""

    over_ms: Amount
    disk_bytes: Amount | None = None
    pods: dict[str, PodUse] | None = None
    card: tuple[Amount, Amount] | None = None  #: bytes in, bytes out
    copied: tuple[Amount, Amount] = (0, 0)  #: of that, copies
    mounts: dict[str, tuple[Amount, Amount]] = {}  #: server:/export -> (read, written)


class Event(msgspec.Struct):
    """Something that has happened on a node."""

    seq: int = 0
    kind: str = ""
    uri: str = ""
    size_bytes: int = 0
    moved_bytes: int = 0
    present: bool = True
    error: Refusal | None = None
    offset: int = -1  #: of a piece
    whole: bool = True
    version: str = ""
    load: NodeLoad | None = None


class Fingerprints(msgspec.Struct):
    """The fingerprints of the outside datasets that an agent found, and why it did not find the others."""

    seen: dict[str, Fingerprint] = {}
    unknown: dict[str, str] = {}


EVENT: Final = msgspec.json.Decoder(Event)
FINGERPRINTS: Final = msgspec.json.Decoder(Fingerprints)
REPLICAS: Final = msgspec.json.Decoder(Replicas)


# ---- loads: the agents' measurements, put together ----
#
# One event for all nodes every few seconds, and the bytes that each pod has moved so far. Control groups of our pods count our
# part of a node's disk; where no agent can measure it, it is unknown (-1). Of its network card our part is the
# copies; traffic between pods is not counted. A mount of several nodes is reported only while all agents report it: a part of
# its clients does not say what it carries.


#: A measurement counts for so long: the next three may be late.
_FRESH_S: Final = 3 * INTERVAL_S
#: The moved bytes of so many pods are remembered.
_MOST_PODS: Final = 50_000


@dataclass(slots=True)
class Loads:
    """The last measurements of all agents."""

    is_ours: Callable[[str], bool] = lambda _: False  #: whether a pod, by uid, is one of ours
    _last: dict[str, tuple[float, NodeLoad]] = field(default_factory=dict)
    _reported: dict[str, float] = field(default_factory=dict)
    _used: dict[str, tuple[int, int]] = field(default_factory=dict)  #: uid -> (bytes, CPU ms) in all
    _due: float = 0.0

    def hear(self, node: str, load: NodeLoad, now: float) -> None:
        """An agent has measured its node.

        Args:
            node: Its node.
            load: The measurement that the agent sent.
            now: The loop's time, s.
        """
        self._last[node] = now, load
        for uid, (_, total, cpu_ms) in (load.pods or {}).items():
            self._used.pop(uid, None)
            self._used[uid] = total, cpu_ms
        while len(self._used) > _MOST_PODS:
            del self._used[next(iter(self._used))]

    def forget(self, node: str) -> None:
        """The agent of a node is gone."""
        self._last.pop(node, None)
        self._reported.pop(node, None)

    def used_by(self, uid: str) -> tuple[int, int]:
        """Bytes that a pod has moved on its node's disk (-1 = never reported) and its CPU time in ms, as last reported."""
        return self._used.get(uid, (-1, 0))

    def event(self, now: float, agents: Collection[str]) -> LoadMeasured | None:
        """The new measurements, once in `INTERVAL_S`; None where there are none.

        Args:
            now: The loop's time, s.
            agents: The nodes with an agent.
        """
        if now < self._due:
            return None
        self._due = now + INTERVAL_S
        fresh = {node: load for node, (at, load) in self._last.items() if now - at <= _FRESH_S}
        news = [node for node in fresh if self._reported.get(node) != self._last[node][0]]
        self._reported |= {node: self._last[node][0] for node in news}
        nodes = tuple(self._disk(node, fresh[node]) for node in news if fresh[node].disk_bytes is not None)
        links = tuple(each for node in news for each in _card(node, fresh[node]))
        whole = bool(news) and set(agents) <= fresh.keys()
        storages = _mounts(fresh.values()) if whole else ()
        return LoadMeasured(nodes, storages, links) if nodes or links or storages else None

    def _disk(self, node: str, load: NodeLoad) -> Load:
        rate = _rate(load.disk_bytes or 0, load)
        if load.pods is None:
            return Load(node, rate)
        return Load(
            node,
            rate,
            _rate(sum(moved for uid, (moved, _, _) in load.pods.items() if self.is_ours(uid)), load),
        )


def _rate(amount: int, load: NodeLoad) -> int:
    return amount * 1000 // max(1, load.over_ms)


def _card(node: str, load: NodeLoad) -> tuple[Load, ...]:
    if load.card is None:
        return ()
    ways = zip(("in", "out"), load.card, load.copied, strict=True)
    return tuple(Load(f"{node}/{way}", _rate(all_, load), _rate(ours, load)) for way, all_, ours in ways)


def _mounts(loads: Collection[NodeLoad]) -> tuple[Load, ...]:
    """Of each mount what all nodes read from and write to it."""
    rates: dict[str, int] = {}
    for load in loads:
        for source, (read, wrote) in load.mounts.items():
            for way, amount in (("read", read), ("write", wrote)):
                rates[f"{source}/{way}"] = rates.get(f"{source}/{way}", 0) + _rate(amount, load)
    return tuple(Load(name, rates[name]) for name in sorted(rates))


# ---- the agents ----


log = get_logger(__name__)

#: An agent that cannot be reached for so long gives its orders back: their tasks may go elsewhere.
AWAY_S: Final = 30.0
#: An agent says something at least each 10 s.
SILENCE_S: Final = 35.0
_LONGEST_PAUSE_S: Final = 5.0
_CHUNK: Final = 1 << 20
#: Datasets in one question for their fingerprints, and how long an agent may look at them: it may have to read genomes.
_ASKED: Final = 500
_FINGERPRINTS_S: Final = 600.0
#: How long an agent may look for files of its own cache.
_FILES_S: Final = 30.0
#: So long after a start a question waits for the first agent. Without one, inputs have no known version, and are copied anew.
_ARRIVAL_S: Final = 15.0
_LOST: Final = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(slots=True, eq=False)
class _Agent:
    node: str
    url: str
    task: asyncio.Task[None] | None = None
    replicas: dict[str, int] = field(default_factory=dict)
    orders: dict[tuple[str, int], list[Transfer]] = field(default_factory=dict)  #: under way, by `_key`
    bytes_in: int = 0
    heard: bool = False
    followed: bool = False  #: its list has been read, and its events are followed


class _Answer(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]


class Agents:
    """All node agents.

    Args:
        key: The secret that they and the service share.
        report: Takes events, on the event loop.
        clock: Wall-clock ms.
        has_node: Whether there is such a node.
    """

    def __init__(
        self,
        key: str,
        report: Callable[[ClusterEvent], None],
        clock: Callable[[], int],
        has_node: Callable[[str], bool],
    ) -> None:
        self._has_node = has_node
        self._headers = {"Authorization": f"Bearer {bearer_of(key.encode())}"}
        self._report = report
        self._clock = clock
        self._agents: dict[str, _Agent] = {}
        self._waiting: dict[str, list[tuple[Transfer, float]]] = defaultdict(
            list
        )  #: for an agent, with since
        self._out: dict[str, int] = defaultdict(int)
        #: Node -> bytes that its agent's cache may hold; absent where the agent reports no limit.
        self.limits: dict[str, int] = {}
        #: Called with a node after its limit has changed.
        self.limited: Callable[[str], None] = lambda _: None
        self.loads = Loads()
        self.reconnects = 0  #: how often the stream of an agent had ended or failed, and was asked for again
        self._session: aiohttp.ClientSession | None = None
        self._first = asyncio.Event()  #: an agent has been found, or `_ARRIVAL_S` have passed since the start
        self._tasks = BackgroundTasks("agents")

    def start(self) -> None:
        """Begin; belongs to the running loop."""
        self._session = aiohttp.ClientSession(headers=self._headers, cookie_jar=aiohttp.DummyCookieJar())
        self._tasks.keep(self._sweep, "agents")
        asyncio.get_running_loop().call_later(_ARRIVAL_S, self._first.set)

    async def close(self) -> None:
        """Close the connections to all agents. Their transfers and copies continue."""
        await self._tasks.close()
        if self._session is not None:
            await self._session.close()

    # --- which there are -------------------------------------------------------------------------------------

    def observe(self, node: str, url: str) -> None:
        """The agent of a node is there, at this address."""
        known = self._agents.get(node)
        if known is not None and known.url == url:
            return
        if known is not None and known.task is not None:
            known.task.cancel()
        agent = known or _Agent(node, url)
        agent.url, agent.followed = url, False
        self._agents[node] = agent
        self._first.set()
        for order, _ in self._waiting.pop(node, []):
            agent.orders.setdefault(_key(order), []).append(order)
        agent.task = self._tasks.keep(partial(self._follow, agent), f"agent {node}")

    def gone(self, node: str, *, node_lost: bool = False) -> None:
        """The agent of a node is gone; with the node its cache is, too."""
        agent = self._agents.pop(node, None)
        if agent is None:
            return
        self.loads.forget(node)
        if agent.task is not None:
            agent.task.cancel()
        for orders in agent.orders.values():
            for order in orders:
                self._waiting[node].append((order, asyncio.get_running_loop().time()))
        if node_lost:
            for uri, size in agent.replicas.items():
                self._report(ReplicaSeen(uri, node, size, present=False))

    def url(self, node: str) -> str | None:
        """The address of a node's agent."""
        agent = self._agents.get(node)
        return None if agent is None else agent.url

    @property
    def ready(self) -> Sequence[str]:
        """Nodes with an agent that has reported its datasets."""
        return tuple(node for node, agent in self._agents.items() if agent.heard)

    def flows(self) -> Mapping[str, tuple[int, int]]:
        """Node -> (bytes in, bytes out) that agents have really moved."""
        names = {*self._agents, *self._out}
        return {n: (self._agents[n].bytes_in if n in self._agents else 0, self._out.get(n, 0)) for n in names}

    # --- what is asked ---------------------------------------------------------------------------------------

    async def transfer(self, orders: Sequence[Transfer]) -> None:
        """Have bytes moved. TransferDone or TransferFailed follows for each."""
        fresh: dict[str, list[Transfer]] = defaultdict(list)
        for order in orders:
            agent = self._agents.get(order.dest)
            if agent is None and not self._has_node(order.dest):
                self._refuse(order, f"there is no node {order.dest!r}", Refusal(permanent=True))
                continue
            if agent is None:
                self._waiting[order.dest].append((order, asyncio.get_running_loop().time()))
                continue
            agent.orders.setdefault(_key(order), []).append(order)
            if (
                agent.followed
            ):  # else it would be done before we listen, and found there when it is asked for again
                fresh[order.dest].append(order)
        await asyncio.gather(*(self._ask(self._agents[node], some) for node, some in fresh.items()))

    async def evict(self, uri: str, node: str) -> bool:
        """Remove a dataset from a node's cache; False while it is in use, or if the agent does not answer."""
        answer = await self._asked(node, "DELETE", "datasets", params={"uri": uri})
        return answer is not None and answer.status in (200, 204, 404)

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Opened | None:
        """Read a dataset from the first agent that has it."""
        holders = [node for node, agent in self._agents.items() if uri in agent.replicas]
        for node in dict.fromkeys((*nodes, *holders)):
            opened = await self._open(node, uri)
            if opened is not None:
                return opened
        return None

    async def fingerprints(self, uris: Sequence[str], **how: bool) -> dict[str, Fingerprint | str]:
        """See `Executor.fingerprints`: the first agent that answers says what it sees. `how`: fields of the agent's request."""
        found: dict[str, Fingerprint | str] = dict.fromkeys(uris, "no node agent answers")
        await self._first.wait()
        for start in range(0, len(uris), _ASKED):
            for agent in list(self._agents.values()):
                some = uris[start : start + _ASKED]
                answer = await self._fingerprints_of(agent, some, _FINGERPRINTS_S, **how)
                if answer is not None:
                    found |= {**answer.seen, **answer.unknown}
                    break
        return found

    async def lost_copies(self, uris: Sequence[str]) -> Sequence[ReplicaSeen]:
        """See `Executor.lost_copies`: all agents look for all of them, at the same time."""
        lost: list[ReplicaSeen] = []

        async def check(agent: _Agent) -> None:
            for start in range(0, len(uris), _ASKED):
                answer = await self._fingerprints_of(agent, uris[start : start + _ASKED], _FILES_S)
                for uri in answer.unknown if answer is not None else ():
                    size = agent.replicas.pop(uri, 0)
                    lost.append(ReplicaSeen(uri, agent.node, size, present=False))

        await asyncio.gather(*map(check, list(self._agents.values())))
        return lost

    async def _fingerprints_of(
        self, agent: _Agent, uris: Sequence[str], limit_s: float, **how: bool
    ) -> Fingerprints | None:
        """Ask one agent for the fingerprints of datasets; None if it does not answer in time."""
        body = {"uris": uris, **how}
        answer = await self._asked(agent.node, "POST", "fingerprints", limit_s, json=body)
        try:
            return FINGERPRINTS.decode(answer.body) if answer is not None and answer.status == 200 else None
        except msgspec.MsgspecError:
            return None

    async def logs(self, node: str, query: Mapping[str, str]) -> tuple[bytes, bool] | None:
        """A piece of a container's log; None if the agent has none, or does not answer."""
        answer = await self._asked(node, "GET", "logs", params=query)
        if answer is None or answer.status != 200:
            return None
        return answer.body, answer.headers.get("X-Flowsched-More", "0") == "1"

    async def outputs(self, node: str, uid: str) -> Result | None:
        """All that a pod has published or delivered there; None if the agent does not answer, or does not know."""
        answer = await self._asked(node, "GET", f"pods/{uid}/outputs")
        return read_result(answer.body) if answer is not None and answer.status == 200 else None

    async def keep_logs(self, node: str, pods: Sequence[Mapping[str, str]]) -> bool:
        """Have logs copied, so that they outlive their pods. False: the agent did not answer."""
        answer = await self._asked(node, "POST", "logs/keep", 60.0, json={"pods": list(pods)})
        return answer is not None and answer.status < 300

    async def _asked(
        self, node: str, method: str, path: str, limit_s: float = 30.0, **options: Any
    ) -> _Answer | None:
        """The answer of a node's agent; None if there is no agent, or no answer."""
        agent = self._agents.get(node)
        if agent is None or self._session is None:
            return None
        limit = aiohttp.ClientTimeout(limit_s)
        try:
            async with self._session.request(
                method, f"{agent.url}/v1/{path}", timeout=limit, **options
            ) as answer:
                return _Answer(answer.status, await answer.read(), answer.headers)
        except _LOST:
            return None

    # --- one agent -------------------------------------------------------------------------------------------

    async def _follow(self, agent: _Agent) -> None:
        """Read the agent's list, then follow its events, until cancelled."""
        backoff = Backoff(_LONGEST_PAUSE_S)
        away_since: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            try:
                seq = await self._read_list(agent)
                agent.followed = True
                away_since, backoff = None, Backoff(_LONGEST_PAUSE_S)
                await self._ask(agent, [orders[0] for orders in agent.orders.values()])
                await self._read_events(agent, seq)
            except (*_LOST, msgspec.MsgspecError) as error:
                away_since = away_since if away_since is not None else loop.time()
                if loop.time() - away_since > AWAY_S:
                    for key in list(agent.orders):
                        self._fail(agent, key, f"the agent of {agent.node} cannot be reached: {error}")
                log.debug("agent away", node=agent.node, error=str(error))
            agent.followed = False
            self.reconnects += 1
            await backoff.wait()

    async def _read_list(self, agent: _Agent) -> int:
        async with self._http.get(
            f"{agent.url}/v1/replicas", timeout=aiohttp.ClientTimeout(30), raise_for_status=True
        ) as answer:
            listing = REPLICAS.decode(await answer.read())
        now = {replica.uri: replica.size_bytes for replica in listing.replicas}
        for uri, size in agent.replicas.items():
            if uri not in now:
                self._report(ReplicaSeen(uri, agent.node, size, present=False))
        for uri, size in now.items():
            if agent.replicas.get(uri) != size:
                self._report(ReplicaSeen(uri, agent.node, size))
        for part in listing.partials:
            self._report(PiecesSeen(part.uri, agent.node, part.size_bytes, part.version, part.spans))
        agent.replicas, agent.heard = now, True
        if listing.cache_bytes != self.limits.get(agent.node, 0):
            self.limits[agent.node] = listing.cache_bytes
            self.limited(agent.node)
        return listing.seq

    async def _read_events(self, agent: _Agent, seq: int) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENCE_S)
        async with self._http.get(
            f"{agent.url}/v1/events", params={"after": str(seq)}, timeout=timeout, raise_for_status=True
        ) as answer:
            rest = b""
            async for piece in answer.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.strip():
                        self._hear(agent, EVENT.decode(line))

    def _hear(self, agent: _Agent, event: Event) -> None:
        if event.kind == "replica":
            if event.present:
                agent.replicas[event.uri] = event.size_bytes
            else:
                agent.replicas.pop(event.uri, None)
            self._report(ReplicaSeen(event.uri, agent.node, event.size_bytes, event.present))
        elif event.kind == "transfer":
            self._settle(agent, event)
        elif event.load is not None:
            self.loads.hear(agent.node, event.load, asyncio.get_running_loop().time())

    def _settle(self, agent: _Agent, event: Event) -> None:
        """A copy has ended, well or not."""
        now, moved = self._clock(), event.moved_bytes
        agent.bytes_in += moved
        for order in self._answered(agent, event):
            if event.error is None:
                if order.source is not None:
                    self._out[order.source] += moved
                size = event.size_bytes
                if event.whole:
                    agent.replicas[event.uri] = size
                self._report(
                    TransferDone(
                        order.uri,
                        order.dest,
                        now,
                        moved,
                        order.source,
                        size,
                        order.offset,
                        event.whole,
                        event.version,
                    )
                )
                moved = 0  # the others found it there
            else:
                self._refuse(order, event.error.message, event.error, event.version)

    def _answered(self, agent: _Agent, event: Event) -> list[Transfer]:
        """The orders that an event ends. An event about the whole dataset also ends the orders of its pieces.

        In that case a pod has fetched the dataset.
        """
        if event.offset >= 0:
            return agent.orders.pop((event.uri, event.offset), [])
        keys = [key for key in agent.orders if key[0] == event.uri]
        return [order for key in keys for order in agent.orders.pop(key)]

    def _refuse(self, order: Transfer, message: str, error: Refusal, version: str = "") -> None:
        self._report(
            TransferFailed(
                order.uri, order.dest, self._clock(), message, order.source, error.lost, error.permanent,
                order.offset, error.changed, error.undivided, version, error.full,
            )
        )  # fmt: skip

    async def _ask(self, agent: _Agent, orders: Sequence[Transfer]) -> None:
        """Give an agent its orders. If it does not answer, they are given again when it is back."""
        sent = []
        for order in orders:
            source = None
            if order.source is not None:
                url = self.url(order.source)
                if url is None:
                    self._fail(agent, _key(order), f"the agent of {order.source} is not there")
                    continue
                source = {"node": order.source, "url": url}
            wanted: dict[str, Any] = {"uri": order.uri, "size_bytes": order.size_bytes, "source": source}
            if not order.whole:
                wanted |= {"offset": order.offset, "whole": False, "version": order.version}
            sent.append(wanted)
        if not sent:
            return
        with contextlib.suppress(*_LOST):
            async with self._http.post(
                f"{agent.url}/v1/transfers", json={"orders": sent}, timeout=aiohttp.ClientTimeout(30)
            ) as answer:
                if answer.status >= 400:
                    why = (await answer.text())[:300]
                    for one in sent:
                        key = one["uri"], one.get("offset", -1)
                        self._fail(agent, key, f"the agent refuses: {answer.status} {why}")

    def _fail(self, agent: _Agent, key: tuple[str, int], message: str) -> None:
        for order in agent.orders.pop(key, []):
            self._refuse(order, message, Refusal())

    async def _sweep(self) -> None:
        """Every second, report measured loads and end orders that have waited too long for a node's agent."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1.0)
            measured = self.loads.event(loop.time(), self._agents)
            if measured is not None:
                self._report(measured)
            for node, waiting in list(self._waiting.items()):
                late = [order for order, since in waiting if loop.time() - since > AWAY_S]
                self._waiting[node] = [(o, s) for o, s in waiting if loop.time() - s <= AWAY_S]
                if not self._waiting[node]:
                    del self._waiting[node]
                for order in late:
                    text = f"there is no agent on {node}; see that the DaemonSet runs there"
                    self._refuse(order, text, Refusal())

    async def _open(self, node: str, uri: str) -> Opened | None:
        agent = self._agents.get(node)
        if agent is None:
            return None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
        try:
            answer = await self._http.get(f"{agent.url}/v1/datasets", params={"uri": uri}, timeout=timeout)
        except _LOST:
            return None
        if answer.status != 200:
            answer.release()
            return None
        folder = answer.headers.get("X-Flowsched-Directory", "0") == "1"
        return Opened(int(answer.headers.get("Content-Length", "0")), folder, _pieces(answer))

    @property
    def _http(self) -> aiohttp.ClientSession:
        assert self._session is not None, "start() comes first"
        return self._session


def fetched_by_pods(order: Transfer, now_ms: int) -> TransferDone | TransferFailed:
    """The end of a transfer order on clusters without agents: pods fetch the whole datasets that they read."""
    if not order.whole:
        text = f"there are no agents that could bring pieces of {order.uri}"
        return TransferFailed(
            order.uri, order.dest, now_ms, text, order.source, offset=order.offset, undivided=True
        )
    return TransferDone(order.uri, order.dest, now_ms, 0, order.source, order.size_bytes)


def _key(order: Transfer) -> tuple[str, int]:
    """The key of a transfer: an agent runs only one at a time for a dataset, or for a piece of one."""
    return order.uri, -1 if order.whole else order.offset


async def _pieces(answer: Any) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in answer.content.iter_chunked(_CHUNK):
            yield piece
    finally:
        answer.close()
