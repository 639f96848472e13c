"""LocalCluster: virtual nodes on this machine, the embedded default of flowsched.

Runners start the tasks and see them through; their journals and the folders of attempts say everything. Memory keeps
only which attempts are waited for. Four objects do the work: `launch`, `watch`, `root_space` and `images`. Here they are put
together, one process at a time on a root; and here is what is asked of attempts beside that: their logs, and what is left of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from flowsched.background import BackgroundTasks
from flowsched.cluster.event_queue import EventQueue
from flowsched.cluster.local import attempts
from flowsched.cluster.local.attempt_states import AttemptStates, Live
from flowsched.cluster.local.attempts import Attempts
from flowsched.cluster.local.images import ContainerSettings, Images
from flowsched.cluster.local.launch import Launch
from flowsched.cluster.local.orders import outside
from flowsched.cluster.local.pairing import FILE, pair
from flowsched.cluster.local.root_space import RootSpace, Site
from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.local.runner.deliver import leave, left_at
from flowsched.cluster.local.runner.records import wall_ms
from flowsched.cluster.local.runners import COMMAND, Runners
from flowsched.cluster.local.transfers import Staging
from flowsched.cluster.local.watch import Watch
from flowsched.cluster.node.cache import Cache
from flowsched.cluster.node.delivered import keep
from flowsched.cluster.node.folder_lock import holder_of, lock_folder
from flowsched.cluster.node.identities import Identities
from flowsched.cluster.node.origins import Origins
from flowsched.cluster.node.ranges import open_dataset
from flowsched.cluster.node.space import Space
from flowsched.errors import ConfigurationError, Unavailable
from flowsched.executor.nodes import IMAGE, NodeInfo
from flowsched.executor.protocol import (
    ClusterEvent,
    Executor,
    Expired,
    FileCopies,
    Fingerprint,
    Opened,
    Pairing,
    PiecesSeen,
    Pod,
    PodEnded,
    PodGone,
    ReplicaSeen,
    Transfer,
)
from flowsched.log_lines import get_logger
from flowsched.values import replace
from flowsched.workflow.spec import Container, LeftFor

log = get_logger(__name__)

T = TypeVar("T")
#: How long to wait for another process to let go of the root: a predecessor may still be closing.
ROOT_WAIT_S: Final = 5.0
#: Between two looks at what has been killed.
_DYING_S: Final = 0.01
_LOGS: Final = ("stdout", "stderr")
_NOT_OPEN: Final = "the service starts or stops its local cluster: ask again in a moment"


class LocalCluster(Executor):
    """An Executor on this machine.

    Args:
        root: Folder of the cluster; one service at a time.
        nodes: The virtual nodes, see `virtual_nodes`.
        clock: Wall-clock ms, for the times in events.
        failpoint: See `Site`.
        origins: Where datasets may come from, and how fast.
        command: The command of a runner, see `runners`.
        threads: For work on folders.
        containers: How pods that name an image run.
        cache_percent: The limit of all caches together, in percent of what is free on the disk of the root or in them, measured
            again and again; 0 = what `site` says.
        in_place: Tasks read files of this machine where they lie: no node has links of its own.
        beside: Further folders that must have room before anything is started; they are measured here. The folder of a SQLite
            file is one: every start is written there.
    """

    def __init__(
        self,
        root: Path,
        nodes: Sequence[NodeInfo],
        *,
        clock: Callable[[], int] = wall_ms,
        failpoint: Callable[[str], object] = lambda _: None,
        origins: Origins | None = None,
        command: Sequence[str] = COMMAND,
        threads: int = 4,
        containers: ContainerSettings | None = None,
        cache_percent: int = 0,
        in_place: bool = False,
        beside: Sequence[Space] = (),
    ) -> None:
        self._queue = EventQueue(is_listening=True)
        folder, by_name = Path(os.path.realpath(root)), {node.name: node for node in nodes}
        self._site = Site(folder, by_name, self._queue.put, clock, failpoint)
        self._lock: int | None = None
        self._is_closed = False
        self._cache_percent = cache_percent
        self._in_place = in_place
        self._beside = tuple(beside)
        self._containers = containers or ContainerSettings()
        self._origins = origins or Origins()
        if self._origins.bounds is None:
            self._origins = replace(self._origins, bounds=Bounds(str(folder)))
        self._command = tuple(command)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="attempts")
        self._eyes = ThreadPoolExecutor(2, thread_name_prefix="watching")  # not behind a long launch
        self._caches: dict[str, Cache] = {}  #: of nodes, by name; none before `start`
        self._loops = BackgroundTasks("the cluster")
        self._is_open = False

    @property
    def identity(self) -> str:
        """The machine and the root folder."""
        return f"{socket.gethostname()}:{self._site.root}"

    @property
    def trouble(self) -> str:
        """Which file system is full or which folder is away, in words; "" = there is room."""
        return self._space.trouble if self._is_open else ""

    @property
    def remote_reads(self) -> bool:
        """True: all nodes' caches are on one machine."""
        return True

    @property
    def pipelines(self) -> bool:
        """True: a runner keeps orders until there is room."""
        return True

    @property
    def file_copies(self) -> FileCopies:
        """Where nodes have links of their own. A program without an image sees this machine's paths, but for those that move."""
        if self._in_place:
            return "never"
        return "moved" if self._containers.images == "ignore" else "always"

    async def start(self) -> Sequence[NodeInfo]:
        """Open it, and say which nodes there are. Replicas in their caches follow as events.

        Raises:
            ConfigurationError: Another process uses the root.
        """
        site = self._site
        if self._lock is None:
            self._lock = await lock_folder(
                site.root,
                ROOT_WAIT_S,
                lambda pid: (
                    f"process {pid} runs the local cluster in {site.root}: stop it, or use another folder"
                ),
            )
        # 1. The attempts: their folders, and what runners have written of them.
        self._attempts = Attempts(site.root, list(site.nodes))
        await self._in_thread(self._attempts.open)
        self._caches = {
            name: Cache(site.root / "nodes" / name / "cache")  # the engine sees to its limit
            for name in site.nodes
        }
        self._runners = Runners(site.root, self._command, site.presence.check, site.clock)
        self._space = RootSpace(site, self._caches.values(), self._cache_percent, self._beside)
        self._states = AttemptStates(site, self._attempts, self._runners, self._space)
        is_new = not (site.root / FILE).exists() and next(self._attempts.all(), None) is None
        if strangers := await self._in_thread(lambda: self._runners.open(is_new=is_new)):
            log.warning("another folder was here before: its tasks were ended", runners=strangers)
        await self._in_thread(self._attempts.watch, site.presence)
        # 2. The objects that see to them. Containers that an earlier service has left are removed.
        self._watch = Watch(self._states, self._pool, self._eyes, self._report_end)
        for cache in self._caches.values():
            cache.folder.mkdir(parents=True, exist_ok=True)
        self._identities = Identities(self._origins)
        self._staging = Staging(site, self._caches, self._origins, in_place=self._in_place)
        self._images = Images(self._containers, site.root, self._eyes, self._report_image, self._is_over)
        self._launch = Launch(self._states, self._watch, self._images, self._staging, self._pool)
        self._swept = self._loops.begin(self._images.sweep(), name="containers of earlier services")
        # 3. The datasets of the caches.
        for name, cache in self._caches.items():
            await self._in_thread(cache.scan)
            for entry in cache.entries.values():
                site.report(ReplicaSeen(entry.uri, name, entry.size_bytes))
            for part in cache.partials.all:
                head = part.header
                site.report(PiecesSeen(head.uri, name, head.size_bytes, head.version, part.spans))
        nodes = await self._in_thread(self._space.open)
        # 4. From now on they are looked at.
        self._watch.listen()
        self._loops.keep(self._watch.watch, "attempts")
        self._loops.keep(self._watch.measure, "disk meter")
        self._loops.keep(lambda: self._space.watch(self._eyes), "space")
        self._is_open = True
        return nodes

    async def pair(self, pairing: Pairing) -> str:
        """Note the database in the root. See `Executor.pair`.

        Raises:
            ConfigurationError: A service still runs the cluster that this one replaces, or tasks of another database run here.
        """
        host, _, former = pairing.replaces.partition(":")
        if former and host == socket.gethostname():
            await self._replace(Path(former))
        is_used = await self._in_thread(lambda: next(self._attempts.all(), None) is not None)
        running = await self.orphans()
        return await asyncio.to_thread(pair, self._site.root, pairing, is_used=is_used, running=running)

    async def _replace(self, former: Path) -> None:
        """End what runs of another root of this machine, whose place this one takes: its tasks would run a second time."""
        root = self._site.root
        holder = await asyncio.to_thread(holder_of, former)
        if holder not in ("", str(os.getpid())):  # a link at the former place leads here
            raise ConfigurationError(
                f"process {holder} runs the local cluster in {former}, whose place {root} is to take: stop it first"
            )
        ended = await self._in_thread(self._end_former, former)
        if ended:
            log.warning(
                "the root has another place than before: tasks that ran were ended, and run again",
                former=str(former),
                ended=ended,
            )

    def _end_former(self, former: Path) -> int:
        ended = self._runners.end_those_of(former)
        self._runners.refresh()
        for life, runner in self._runners.unended():
            folder = self._attempts.find(life.name)
            if folder is None or not runner.is_dead:
                continue
            there = former / folder.relative_to(self._site.root)
            if attempts.is_left(there, life):
                ended += 1
                log.warning("a task of the former root is ended", pod=life.name)
                while not attempts.end_attempt(there, life):
                    time.sleep(_DYING_S)  # a second one must not run beside it
        return ended

    async def stop(self) -> None:
        """Close it. Running pods go on: a restarted service adopts them. A second time does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_open:
            self._is_open = False
            await self._swept
            await self._loops.close()
            await self._launch.close()
            await self._images.close()
            self._watch.close()
            await self._staging.close()
            await self._in_thread(self._runners.close)
        self._pool.shutdown(wait=True)
        self._eyes.shutdown(wait=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._queue.close()

    # --- attempts --------------------------------------------------------------------------------------------

    def events(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        """Yield events in batches, in order per pod; ends after `stop`. One reader."""
        return self._queue.batches()

    async def launch(self, pods: Sequence[Pod]) -> None:
        """Start pods; returns once their orders are with a runner. Outcomes come as events."""
        await self._launch.launch(pods)

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """Take over pods that were intended or running: see `Executor.adopt`."""
        lives = []
        for pod in pods:
            live = self._watch.lives.setdefault(pod.name, Live(pod.name))
            live.pod, live.start_reported, live.reported_wait = pod, False, ""
            lives.append(live)
        there = await self._launch.enter(lives)
        await self._in_thread(self._runners.refresh)
        await self._watch.act(there, self._states.observe)
        self._watch.wake()

    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        """End pods. A final event follows for each, or is waiting in the queue already."""
        ended = self._queue.ended()
        todo = [self._watch.lives.setdefault(name, Live(name)) for name in names if name not in ended]
        await self._watch.act(todo, lambda part: self._states.release(part, grace_ms))
        self._watch.wake()

    def _report_end(self, live: Live, end: PodEnded | PodGone) -> None:
        """Report the end of an attempt, and first the changes of its data; then others may begin."""
        self._images.ended(live.name)
        for uri in end.changed_inputs if isinstance(end, PodEnded) else ():
            for node in {node for other, node in live.inputs if other == uri}:
                self._pool.submit(self._staging.forget(uri, node))
                self._site.report(ReplicaSeen(uri, node, 0, present=False))
        if isinstance(end, PodEnded) and live.folder is not None:
            self._staging.published(live.folder.parents[1].name, end.outputs)
            if end.container is not None and any(file.place for file in end.container.outputs):
                kept = self._keep_delivered(live, end, live.folder)
                self._loops.begin(
                    kept, name=f"datasets of {live.name}", failed=lambda _: self._end(live, end)
                )
                return
        self._end(live, end)

    def _end(self, live: Live, end: PodEnded | PodGone) -> None:
        if isinstance(end, PodEnded) and end.container is not None:
            files = tuple(replace(file, place=None) for file in end.container.outputs)
            end = replace(end, container=replace(end.container, outputs=files))
        del self._watch.lives[live.name]
        self._site.report(end)
        self._launch.ended(live.name)

    async def _keep_delivered(self, live: Live, end: PodEnded, folder: Path) -> None:
        """Make datasets of the objects that an attempt has delivered, and report them before its end: a task that reads them next
        goes to this node.
        """
        assert end.container is not None
        node, files = folder.parents[1].name, end.container.outputs
        if self._in_place:
            files = tuple(file for file in files if not file.uri.startswith("/"))
        container = None if live.pod is None else live.pod.container
        if node in self._caches:
            outputs = () if container is None else container.outputs
            limit = self._space.cache_limit(node)
            entries = await self._in_thread(keep, self._caches[node], folder, outputs, files, limit)
            for entry in entries:
                self._site.report(ReplicaSeen(entry.uri, node, entry.size_bytes))
        self._end(live, end)

    def _report_image(self, name: str, size_bytes: int) -> None:
        """Report that an image is here: all nodes are this machine."""
        for node in self._site.nodes:
            self._site.report(ReplicaSeen(f"{IMAGE}{name}", node, size_bytes))

    # --- data ------------------------------------------------------------------------------------------------

    async def transfer(self, orders: Sequence[Transfer]) -> None:
        """Start copying."""
        self._staging.transfer(orders)

    async def evict(self, uri: str, node: str) -> bool:
        """Remove a dataset from a node, unless a live attempt there reads it."""
        if any((uri, node) in live.inputs for live in self._watch.lives.values()):
            return False
        entry = await self._in_thread(self._caches[node].evict, uri) if node in self._caches else None
        if entry is not None:
            self._site.report(ReplicaSeen(uri, node, entry.size_bytes, present=False))
        return True

    def flows(self) -> Mapping[str, tuple[int, int]]:
        """Node -> (bytes in, bytes out) that were really copied."""
        return {node: (t.in_bytes, t.out_bytes) for node, t in self._staging.traffic.items()}

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Opened | None:
        """Read a dataset from the first cache that has it, block by block in threads; None if none has.

        Raises:
            Unavailable: It starts or stops: which datasets the caches have is not known yet.
        """
        self._check_open()
        for node in dict.fromkeys((*(node for node in nodes if node in self._caches), *self._caches)):
            opened = await open_dataset(self._caches[node], uri)
            if opened is not None:
                return opened
        return None

    async def fingerprints(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """Identify the datasets in threads."""
        found = await self._identities.of(uris, by_content=by_content)
        if not self._in_place:
            return found
        return {
            uri: replace(identity, in_place=uri.startswith(("/", "file:")))
            if isinstance(identity, Fingerprint)
            else identity
            for uri, identity in found.items()
        }

    async def placed_sizes(self, paths: Sequence[str]) -> Mapping[str, int]:
        """Look at the files in a thread."""
        return await self._identities.placed_sizes(paths)

    async def lost_copies(self, uris: Sequence[str]) -> Sequence[ReplicaSeen]:
        """Look for the files in a thread."""
        return await self._in_thread(
            lambda: [
                ReplicaSeen(uri, node, 0, present=False)
                for node, cache in self._caches.items()
                for uri in uris
                if cache.find(uri) is None
            ]
        )

    async def image_digests(self, names: Sequence[str]) -> dict[str, str]:
        """Ask the container engine."""
        return await self._images.digests(names)

    def _check_open(self) -> None:
        """Refuse a client's request: the service answers clients before `start` has ended, and while it stops.

        Raises:
            Unavailable: It starts or stops.
        """
        if not self._is_open:
            raise Unavailable(_NOT_OPEN)

    # --- what attempts have left -----------------------------------------------------------------------------

    async def logs(
        self, name: str, stream: str, offset: int, limit: int, node: str = ""
    ) -> tuple[bytes, bool]:
        """Bytes of `stdout` or `stderr` from `offset`, and whether more may come.

        Raises:
            Unavailable: It starts or stops: which attempts have ended is not known yet.
        """
        self._check_open()
        return await self._in_thread(self._read_log, name, stream, offset, limit)

    def _read_log(self, name: str, stream: str, offset: int, limit: int) -> tuple[bytes, bool]:
        folder = self._attempts.find(name)
        if stream not in _LOGS or folder is None:
            return b"", False
        finished = self._is_over(name)  # asked first: then nothing is written after the read
        try:
            with attempts.open_log(folder, stream) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(min(offset, size))  # file systems refuse to seek beyond what they can hold
                data = file.read(limit)
        except FileNotFoundError:
            return b"", not finished
        return data, not finished or offset + len(data) < size

    @property
    def knows_log_sizes(self) -> bool:
        """Once it has started: a TES task is shown without the end of its log before."""
        return self._is_open

    async def log_size(self, name: str, stream: str, node: str = "") -> int:
        """The size of a log file.

        Raises:
            Unavailable: It starts or stops.
        """
        self._check_open()
        return await self._in_thread(self._size_log, name, stream)

    def _size_log(self, name: str, stream: str) -> int:
        folder = self._attempts.find(name)
        if stream not in _LOGS or folder is None:
            return 0
        with contextlib.suppress(FileNotFoundError), attempts.open_log(folder, stream) as file:
            return file.seek(0, os.SEEK_END)
        return 0

    async def leave(self, containers: Sequence[Container]) -> None:
        """Write what cancelled container tasks leave, in a thread: its folder may be on a network.

        Raises:
            Unavailable: It stops.
        """
        if self._is_closed:
            raise Unavailable(_NOT_OPEN)
        await self._in_thread(self._leave, containers)

    def _leave(self, containers: Sequence[Container]) -> None:
        assert self._origins.bounds is not None
        for container in containers:
            leave(None, left_at(outside(container), self._origins.bounds), LeftFor.CANCELLED)

    async def settle(self, names: Sequence[str]) -> None:
        """Clear up attempts with a durable end: the folder and the logs stay."""
        await self._in_thread(self._settle, list(names))

    def _settle(self, names: list[str]) -> None:
        for name in names:
            self._states.settled(name)
            with self._states.lock(name), contextlib.suppress(OSError):  # no room: the removed files are gone
                folder = self._attempts.find(name)
                if folder is not None:
                    attempts.clear(folder)
        with contextlib.suppress(OSError):  # a segment is put away later
            self._runners.settle(names)

    async def forget(self, names: Sequence[str]) -> None:
        """Remove working folders of finished attempts."""
        await self._in_thread(self._forget, list(names))

    def _forget(self, names: list[str]) -> None:
        for name in names:
            with self._states.lock(name):
                folder = self._attempts.find(name)
                if folder is not None and self._is_over(name):
                    attempts.clear_work(folder)

    async def expire(self, expired: Expired) -> int:
        """Remove finished attempts of workflows that have expired."""
        present = await self._in_thread(
            lambda: {attempts.workflow_of(folder.name) for folder in self._attempts.all()}
        )
        gone = await expired(present)
        return await self._in_thread(self._expire, frozenset(gone))

    def _expire(self, gone: frozenset[str]) -> int:
        self._site.presence.check()
        expired = 0
        there = set()
        for folder in self._attempts.all():
            if attempts.workflow_of(folder.name) in gone and self._is_over(folder.name):
                attempts.remove_tree(folder)
                expired += 1
            else:
                there.add(folder.name)
        self._site.presence.check()
        self._runners.expire(frozenset(self._watch.lives), there)
        return expired

    def _is_over(self, name: str) -> bool | None:
        """Whether an attempt has ended, or has left nothing; None while a runner of an earlier service may still start it."""
        found = self._runners.find(name)
        if name in self._watch.lives or self._runners.may_start(name):
            if found is None and name not in self._watch.lives:
                return None
            return found is not None and found[0].end is not None
        return found is None or found[0].end is not None or found[1].is_dead or found[0].is_lost

    async def orphans(self) -> Sequence[str]:
        """Attempts that live and belong to none of this service."""
        return await self._in_thread(self._find_orphans, frozenset(self._watch.lives))

    def _find_orphans(self, wanted: frozenset[str]) -> list[str]:
        if self._site.presence.away():
            return []  # `trouble` says so
        self._runners.refresh()
        found, since = [], time.monotonic()
        for life, runner in self._runners.unended():
            if life.name in wanted:
                continue
            folder = self._attempts.find(life.name)
            is_run = not runner.is_dead and not life.is_lost
            if is_run or (folder is not None and attempts.is_left(folder, life, since)):
                found.append(life.name)
        return found

    async def _in_thread(self, act: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, act, *arguments)
