"""Real processes: a runner starts them and sees them through; its journal is read here, and it wakes the service through a socket.

The journals and folders say everything (see `runners`, `attempts`); what is kept in memory is only which attempts are waited for.
News of a living runner is applied on the event loop at once. What needs a folder or a kill happens in a few threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from flowsched.background import BackgroundTasks
from flowsched.cluster.local import attempts
from flowsched.cluster.local.attempts import Attempts, Sight
from flowsched.cluster.local.gang_files import GangFiles
from flowsched.cluster.local.images import REFUSED, ContainerSettings, Images
from flowsched.cluster.local.journals import Life
from flowsched.cluster.local.orders import compose, outside, staged_files
from flowsched.cluster.local.pairing import FILE
from flowsched.cluster.local.runner import cgroups
from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.local.runner.cgroups import find_base
from flowsched.cluster.local.runner.deliver import leave, left_at
from flowsched.cluster.local.runner.records import elapsed_ms, wall_ms
from flowsched.cluster.local.runners import COMMAND, Runner, Runners, living
from flowsched.cluster.local.transfers import Staging
from flowsched.cluster.local.virtual_nodes import Site, machine_cores
from flowsched.cluster.local.writers import Writers, writes_outside, written_paths
from flowsched.cluster.node.cache import Cache
from flowsched.cluster.node.container_paths import Refusal
from flowsched.cluster.node.identities import Identities
from flowsched.cluster.node.meter import INTERVAL_S, DiskMeter
from flowsched.cluster.node.origins import Origins
from flowsched.cluster.node.ranges import open_dataset
from flowsched.cluster.node.space import Space, is_full
from flowsched.executor.nodes import IMAGE, NodeInfo
from flowsched.executor.protocol import (
    DELIVERING,
    Expired,
    Fingerprint,
    NodeChanged,
    Opened,
    PiecesSeen,
    Pod,
    PodEnded,
    PodGone,
    PodHeld,
    PodStarted,
    ReplicaSeen,
    Transfer,
)
from flowsched.log_lines import get_logger
from flowsched.values import replace
from flowsched.workflow.spec import Container, LeftFor

log = get_logger(__name__)


class Pokes:
    """The service's end of the socket `poke.sock` in a cluster's root.

    Args:
        root: Folder of the cluster.
        on_poke: Called on the event loop when a journal has grown.
    """

    def __init__(self, root: Path, on_poke: Callable[[], None]) -> None:
        self._on_poke = on_poke
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            with contextlib.suppress(FileNotFoundError):
                (root / "poke.sock").unlink()
            _bind(self._socket, root)
        # A folder has the name, or the path is longer than 107 bytes and there is no /proc.
        except OSError as error:
            log.warning(
                "no pokes: changes of attempts are seen by scanning only. Remove what has the socket's name, and restart",
                path=str(root / "poke.sock"),
                error=str(error),
            )
        else:
            self._loop.add_reader(self._socket.fileno(), self._read)

    def close(self) -> None:
        """Listen no more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(4096):
                self._on_poke()


def _bind(listener: socket.socket, root: Path) -> None:
    """Bind below `root`. The path of `root` may be longer than a socket's address may be."""
    try:
        listener.bind(str(root / "poke.sock"))
    except OSError:
        fd = os.open(root, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{fd}/poke.sock")
        finally:
            os.close(fd)


# ---- runner processes ----


T = TypeVar("T")
#: How often all live attempts are looked at, should a poke have been lost. The promise of `Executor.events` is here.
SCAN_S: Final = 0.5
#: How often the room on the root's file system is looked at.
SPACE_S: Final = 1.0
#: While attempts cannot be read, that is logged again after this.
UNSEEN_S: Final = 60.0
#: If the runner has not ended a released attempt so long after the grace, the service kills the attempt's processes; after as long
#: again the process of its own that sees it through, or else the runner.
OVERDUE_S: Final = 3.0
#: Why an attempt waits: another one writes its file.
WRITER: Final = "OutputBusy"
#: Between two looks at what has been killed.
_DYING_S: Final = 0.01
#: Attempts that one thread takes at a time: the others see to what comes meanwhile.
_BATCH: Final = 16


class _Live(msgspec.Struct, eq=False):
    """An attempt that is waited for."""

    name: str
    folder: Path | None = None
    inputs: frozenset[tuple[str, str]] = frozenset()  #: (uri, node) it reads there
    node: str = ""
    busy: bool = False  #: being launched: not to be looked at yet
    held: Pod | None = None  #: to be launched once no other attempt writes what it writes
    told_start: bool = False
    told_held: str = ""  #: what it waits for, as the engine knows it
    overdue_at: float | None = None  #: monotonic; set by a release
    kills: int = 0  #: how often it was overdue
    bereft: bool = False  #: its folder is gone, so its processes were killed: their end tells nothing


class RunnerProcesses:
    """Processes and files of this machine.

    Args:
        origins: Where datasets may come from, and how fast.
        command: What runs a runner, see `runners`.
        threads: For work on folders.
        containers: How pods that name an image run.
        cache_percent: What the caches may hold together, in percent of what is free on the disk of the root or in them, measured
            again and again; 0 = what `site` says.
        in_place: Tasks read files of this machine where they lie: no node has links of its own.
        beside: Further folders that must have room before anything is started; they are measured here. The folder of a SQLite
            file is one: every start is written there.
    """

    on_disk = True

    def __init__(
        self,
        *,
        origins: Origins | None = None,
        command: Sequence[str] = COMMAND,
        threads: int = 4,
        containers: ContainerSettings | None = None,
        cache_percent: int = 0,
        in_place: bool = False,
        beside: Sequence[Space] = (),
    ) -> None:
        self._cache_percent = cache_percent
        self._in_place = in_place
        self._cache_bytes = 0  #: what each node's cache may hold, as last measured
        self._beside = tuple(beside)
        #: Attempts that there was no room to void in a folder. None of them has one, and while this process has the root none
        #: is made; after a restart SQL says whether their end is known.
        self._denied: dict[str, PodGone] = {}
        self._unseen_said: float | None = None
        self._away = ""  #: which folder is away, in words
        self._containers = containers or ContainerSettings()
        self._refused: dict[str, Refusal] = {}  #: pods that have no image, until they are told so
        self._origins = origins or Origins()
        self._command = tuple(command)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="attempts")
        self._eyes = ThreadPoolExecutor(2, thread_name_prefix="watching")  # not behind a long launch
        self._stripes = [threading.Lock() for _ in range(64)]
        #: Where nodes promise more cores than there are, the kernel divides them: tasks that are bound would leave some idle.
        self._binds = False
        self._caches: dict[str, Cache] = {}  #: of nodes, by name; none before `open`
        self._live: dict[str, _Live] = {}
        self._writers = Writers()
        self._background = BackgroundTasks("an attempt")
        self._loops = BackgroundTasks("the cluster")
        self._poked = False
        self._wake = asyncio.Event()
        self._is_open = False

    def clock(self) -> int:
        """The wall's."""
        return wall_ms()

    async def open(self, site: Site) -> Sequence[NodeInfo]:
        """Make the folders, read the caches, listen for pokes."""
        self._site = site
        self._space = Space(site.root)
        self._spaces = [self._space, *self._beside]
        if self._origins.bounds is None:
            self._origins = replace(self._origins, bounds=Bounds(str(site.root)))
        self._attempts = Attempts(site.root, list(site.nodes))
        promised = sum(node.cpu_millicores for node in site.nodes.values())
        self._binds = promised <= 1000 * machine_cores()
        self._caches = {
            name: Cache(site.root / "nodes" / name / "cache")  # the engine sees to its limit
            for name in site.nodes
        }
        await self._in_thread(self._attempts.open)
        self._cgroups = await self._in_thread(find_base)
        self._runners = Runners(site.root, self._command, site.presence.check, site.clock)
        if strangers := await self._in_thread(self._open_runners):
            log.warning("another folder was here before: its tasks were ended", runners=strangers)
        self._gang_files = GangFiles(site.root)
        await self._in_thread(self._gang_files.sweep)
        await self._in_thread(self._attempts.watch, site.presence)
        await self._in_thread(self._sweep)
        for cache in self._caches.values():
            cache.folder.mkdir(parents=True, exist_ok=True)
        self._identities = Identities(self._origins)
        self._staging = Staging(site, self._caches, self._origins, in_place=self._in_place)
        self._images = Images(self._containers, site.root, self._eyes, self._tell_image, self._is_over)
        self._swept = self._background.begin(self._images.sweep(), name="containers of earlier services")
        for name, cache in self._caches.items():
            await self._in_thread(cache.scan)
            for entry in cache.entries.values():
                site.report(ReplicaSeen(entry.uri, name, entry.size_bytes))
            for part in cache.partials.all:
                head = part.header
                site.report(PiecesSeen(head.uri, name, head.size_bytes, head.version, part.spans))
        await self._in_thread(self._measure_space)
        self._told = bool(self._full), self._cache_bytes
        nodes = self._nodes()
        self._pokes = Pokes(site.root, self._on_poke)
        for loop, name in (
            (self._watch, "attempts"),
            (self._measure, "disk meter"),
            (self._mind_space, "space"),
        ):
            self._loops.keep(loop, name)
        self._is_open = True
        return nodes

    def _open_runners(self) -> int:
        is_new = not (self._site.root / FILE).exists() and next(self._attempts.all(), None) is None
        return self._runners.open(is_new=is_new)

    async def close(self) -> None:
        """Stop watching and copying. Runners and tasks go on."""
        if self._is_open:
            await self._loops.close()
            await self._swept
            # What waits for an image is cancelled: the next service is told that it was never launched.
            await self._background.close()
            await self._images.close()
            self._pokes.close()
            await self._staging.close()
            await self._in_thread(self._runners.close)
        self._pool.shutdown(wait=True)
        self._eyes.shutdown(wait=True)

    # --- what is asked ---------------------------------------------------------------------------------------

    async def launch(self, pods: Sequence[Pod]) -> None:
        """Make folders and give orders. If a pod's folder is there, it was launched before, and its state is read instead.

        A pod that writes a file which another attempt writes is launched when that one is gone.
        """
        new = [pod for pod in pods if pod.name not in self._live]
        for pod in new:
            self._live[pod.name] = _Live(pod.name, inputs=_reads(pod), node=pod.node, busy=True)
        paths = await self._written(new)
        new = [pod for pod in new if pod.name in self._live]  # the others were released meanwhile
        for pod in new:
            self._writers.enter(pod, paths[pod.name])
            if self._writers.before(pod.name) is not None:
                self._live[pod.name].held = pod
                self._tell_held(self._live[pod.name], WRITER, self._writers.why(pod.name))
        await self._launch_ready([pod for pod in new if self._live[pod.name].held is None])
        self._wake.set()

    async def used(self) -> tuple[bool, Sequence[str]]:
        """Whether attempts were made here, and those that run."""
        is_used = await self._in_thread(lambda: next(self._attempts.all(), None) is not None)
        return is_used, await self.orphans()

    async def replace(self, former: Path) -> int:
        """End what runs of another root of this machine: its runners, and what dead runners have left of their attempts."""
        return await self._in_thread(self._end_former, former)

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

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """Look at what SQL says is there."""
        for pod in pods:
            live = self._live.setdefault(pod.name, _Live(pod.name))
            live.inputs, live.node, live.told_start, live.told_held = _reads(pod), pod.node, False, ""
        paths = await self._written(pods)
        there = [pod for pod in pods if pod.name in self._live]  # the ends of the others were told meanwhile
        for pod in there:
            self._writers.enter(pod, paths[pod.name])
        await self._in_thread(self._runners.refresh)
        await self._each([self._live[pod.name] for pod in there], self._look_again)
        self._wake.set()

    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        """Ask runners to end their tasks, and make sure that what has not begun never does."""
        overdue_at = time.monotonic() + grace_ms / 1000 + OVERDUE_S
        for name in names:
            live = self._live.setdefault(name, _Live(name))
            live.overdue_at = min(live.overdue_at or overdue_at, overdue_at)
        todo = [self._live[name] for name in names]
        await self._in_parts(todo, lambda part: self._release_some(part, grace_ms))
        self._wake.set()

    async def transfer(self, orders: Sequence[Transfer]) -> None:
        """Start copying."""
        self._staging.transfer(orders)

    async def evict(self, uri: str, node: str) -> bool:
        """Remove a dataset from a node, unless a live attempt there reads it."""
        if any((uri, node) in live.inputs for live in self._live.values()):
            return False
        entry = await self._in_thread(self._caches[node].evict, uri) if node in self._caches else None
        if entry is not None:
            self._site.report(ReplicaSeen(uri, node, entry.size_bytes, present=False))
        return True

    async def logs(self, name: str, stream: str, offset: int, limit: int) -> tuple[bytes, bool]:
        """Read a piece of a log file."""
        return await self._in_thread(self._read_log, name, stream, offset, limit)

    async def log_size(self, name: str, stream: str) -> int:
        """The size of a log file."""
        return await self._in_thread(self._size_log, name, stream)

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Opened | None:
        """Read it from the first cache that has it, block by block in threads."""
        for cache in (self._caches[node] for node in nodes if node in self._caches):
            opened = await open_dataset(cache, uri)
            if opened is not None:
                return opened
        return None

    async def fingerprints(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """Look at the datasets in threads."""
        found = await self._identities.of(uris, by_content=by_content)
        if not self._in_place:
            return found
        return {
            uri: replace(seen, in_place=uri.startswith(("/", "file:")))
            if isinstance(seen, Fingerprint)
            else seen
            for uri, seen in found.items()
        }

    async def lost_copies(self, uris: Sequence[str]) -> Sequence[ReplicaSeen]:
        """Look for the files in a thread."""
        return await self._in_thread(self._lost_copies, uris)

    async def leave(self, containers: Sequence[Container]) -> None:
        """Write what cancelled container tasks leave, in a thread: its folder may be on a network."""
        await self._in_thread(self._leave, containers)

    def _leave(self, containers: Sequence[Container]) -> None:
        assert self._origins.bounds is not None
        for container in containers:
            leave(None, left_at(outside(container), self._origins.bounds), LeftFor.CANCELLED)

    def _lost_copies(self, uris: Sequence[str]) -> list[ReplicaSeen]:
        return [
            ReplicaSeen(uri, node, 0, present=False)
            for node, cache in self._caches.items()
            for uri in uris
            if cache.find(uri) is None
        ]

    async def image_digests(self, names: Sequence[str]) -> dict[str, str]:
        """Ask the container engine."""
        return await self._images.digests(names)

    async def orphans(self) -> Sequence[str]:
        """Attempts that live and belong to none of this service."""
        return await self._in_thread(self._find_orphans, frozenset(self._live))

    async def settle(self, names: Sequence[str]) -> None:
        """Leave of attempts whose ends are stored durably their folders and logs."""
        await self._in_thread(self._settle, list(names))

    @property
    def trouble(self) -> str:
        """Why nothing can be started, in words; "" = it can."""
        return self._full if self._is_open else ""

    @property
    def _full(self) -> str:
        return self._away or next((space.trouble for space in self._spaces if space.trouble), "")

    async def forget(self, names: Sequence[str]) -> None:
        """Remove working folders of finished attempts."""
        await self._in_thread(self._forget, list(names))

    def flows(self) -> Mapping[str, tuple[int, int]]:
        """Node -> (bytes in, bytes out) that were really copied."""
        return {node: (t.in_bytes, t.out_bytes) for node, t in self.staging.traffic.items()}

    async def expire(self, expired: Expired) -> int:
        """Remove finished attempts of workflows that have expired."""
        gone = await expired(await self._in_thread(self._kept_of))
        return await self._in_thread(self._expire, frozenset(gone))

    @property
    def staging(self) -> Staging:
        """The transfers, for their counters."""
        return self._staging

    # --- in threads ------------------------------------------------------------------------------------------

    def _launch_some(self, pods: Sequence[Pod]) -> list[tuple[_Live, Sight | None]]:
        """Make the folders of some pods, and give their orders in one piece."""
        try:
            return self._give_orders(pods)
        finally:
            for pod in pods:
                self._runners.dismiss(pod.name)

    def _give_orders(self, pods: Sequence[Pod]) -> list[tuple[_Live, Sight | None]]:
        if away := self._site.presence.away():
            log.warning("attempts not ordered", pods=[pod.name for pod in pods], error=away)
            for pod in pods:
                self._live[pod.name].busy = False  # a later look tells that they were never launched
            return []
        done: list[tuple[_Live, Sight | None]] = []
        ordered: list[_Live] = []
        orders: list[dict[str, Any]] = []
        for pod in pods:
            live, sight, order = self._order_of(pod)
            if order is None:
                done.append((live, sight))
            else:
                ordered.append(live)
                orders.append(order)
        if not orders:
            return done
        try:
            self._runners.order(orders)
        except OSError as error:
            log.warning("runner not started", pods=[live.name for live in ordered], error=str(error))
        for live in ordered:
            self._site.failpoint("launch.spawned")
            live.busy = False
            done.append((live, self._seen(live.name)))  # it may have begun while its news was not heard
        return done

    def _order_of(self, pod: Pod) -> tuple[_Live, Sight | None, dict[str, Any] | None]:
        """Make the folder of a pod: its order; or what is seen of it, if there is none to be given."""
        live = self._live[pod.name]
        with self._stripe(pod.name):
            if pod.name in self._denied:
                return live, Sight(final=self._denied[pod.name]), None
            try:
                if pod.node not in self._caches and self._find(pod.name) is None:
                    return live, self._absent(pod.name, "NoSuchNode"), None
                self._runners.expect(pod.name)  # first: a release that finds the folder waits for the runner
                folder = self._attempts.make(pod.name, pod.node)
            except OSError as error:
                if is_full(error):
                    return live, self._no_room(pod.name, error, "DiskFull"), None
                log.warning("attempt not ordered", pod=pod.name, error=str(error))
                live.busy = False  # a later look tells that it was never launched
                return live, None, None
            if folder is not None:
                self._site.failpoint("launch.made")
                live.folder = folder
                try:
                    order = compose(
                        folder,
                        self._site.root,
                        pod,
                        self._caches,
                        lambda uri: self._staging.charge(uri, pod.node, pod.remote.get(uri)),
                        self._image_order(pod, folder),
                        self._origins.upload,
                        self._group(pod.name),
                        self._site.clock() - elapsed_ms(),
                        self._origins.bounds.record() if self._origins.bounds else {},
                        self._staging.changed(live.inputs),
                        self._gang_files.lay_out(folder, pod),
                        binds=self._binds,
                    )
                except OSError as error:
                    if is_full(error):
                        attempts.remove_tree(folder)
                        return live, self._no_room(pod.name, error, "DiskFull"), None
                    log.warning("attempt not ordered", pod=pod.name, error=str(error))
                else:
                    self._site.failpoint("launch.ordered")
                    return live, None, order
            self._runners.dismiss(pod.name)
            live.busy = False
        return (*self._look_again(live), None)

    def _image_order(self, pod: Pod, folder: Path) -> Mapping[str, Any]:
        """How a pod uses its images."""
        caches = {pod.node, *pod.remote.values()}
        read = (
            [self._caches[node].folder for node in sorted(caches) if node in self._caches]
            if pod.inputs
            else []
        )
        read += [Path(path) for path in self._staging.places(_reads(pod))]
        staged = {name: path for name, (_, path) in staged_files(pod, self._caches).items()}
        refused = self._refused.pop(pod.name, None)
        if refused is not None:
            return {"refused": (refused.reason, refused.message)}
        return self._images.order(pod, folder, read, staged)

    def _seen(self, name: str) -> Sight | None:
        """What the journal of a living runner says of an attempt; None: nothing, or what is left of it has to be looked for."""
        found = self._runners.find(name)
        if found is None:
            return None
        life, runner = found
        if life.end is None and (runner.is_dead or life.is_lost):
            return None
        return Sight(life.started_ms, life.end, life.waits, life.reason)

    def _look_one(self, live: _Live) -> tuple[_Live, Sight | None]:
        if live.busy:
            return live, None
        with self._stripe(live.name):
            sight = self._look_for(live)
            if sight is not None and isinstance(sight.final, PodGone):
                self._remove_group(live.name)
            return live, sight

    def _look_for(self, live: _Live) -> Sight | None:
        """See how an attempt stands, and end what must not go on. None: that is not known yet."""
        folder = live.folder = live.folder or self._find(live.name)
        found = self._runners.find(live.name)
        if found is None:
            if self._runners.may_start(live.name):
                self._end_overdue(live, None)
                return None
            found = self._runners.recall(live.name)
        if found is None:
            if folder is None:
                return self._absent(live.name, "NotLaunched")
            return Sight(final=attempts.gone(folder, "NotStarted"))
        life, runner = found
        if life.end is not None and live.bereft:
            return self._absent(live.name, "FolderGone")
        if life.end is not None:
            return Sight(life.started_ms, life.end)
        there = folder is not None and self._is_there(folder)
        folder = folder or self._attempts.root / "nodes" / live.node / "attempts" / live.name
        if runner.is_dead or life.is_lost:
            if life.started_ms is not None and not attempts.end_attempt(folder, life):
                return Sight(life.started_ms)
            return Sight(life.started_ms, attempts.left_end(folder) or self._lost(folder, life, runner))
        if there:
            self._end_overdue(live, found)
            return Sight(life.started_ms, waits=life.waits, reason=life.reason)
        live.bereft = True
        if self._kill(folder, life):
            return None
        return self._absent(live.name, "FolderGone")

    def _kill(self, folder: Path, life: Life) -> bool:
        """Kill the processes of an attempt whose runner lives. Returns whether there were any."""

        def is_over() -> bool:
            self._runners.read()
            return life.end is not None

        return attempts.kill_attempt(folder, life, is_over)

    def _lost(self, folder: Path, life: Life, runner: Runner) -> PodGone:
        """The end of an attempt that ended with its runner."""
        at_ms = runner.died_ms or self._site.clock()
        reason = "NotStarted" if life.started_ms is None else "RunnerLost"
        reason = "Released" if attempts.is_released(folder) else reason
        if reason == "RunnerLost":
            log.warning("attempt lost with its runner", pod=life.name, runner=runner.name)
        return PodGone(life.name, at_ms, reason, life.started_ms is not None)

    def _end_overdue(self, live: _Live, found: tuple[Life, Runner] | None) -> None:
        """Kill what should have ended long ago: the attempt's processes, and if that does not help, what should have told of it."""
        if live.overdue_at is None or time.monotonic() < live.overdue_at:
            return
        live.overdue_at = time.monotonic() + OVERDUE_S
        if found is not None and found[0].publishes:
            return  # nothing of it is left to kill, and its runner has other attempts
        live.kills += 1
        if found is not None and live.folder is not None and live.kills == 1:
            self._kill(live.folder, found[0])
            return
        if found is not None and found[0].own and live.kills == 2:
            if shim := living(found[0].shim):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(shim, signal.SIGKILL)
            return
        for runner in self._runners.those_with(live.name):
            log.warning(
                "a runner does not end an attempt: killed, with all its attempts",
                pod=live.name,
                runner=runner.name,
            )
            runner.signal(signal.SIGKILL)

    def _find(self, name: str) -> Path | None:
        """The folder of an attempt; None: there is none.

        Raises:
            OSError: Its node's folder is away.
        """
        found = self._attempts.find(name)
        if found is None:
            self._site.presence.check()
            found = self._attempts.find(name)  # it may have been away
        return found

    def _is_there(self, folder: Path) -> bool:
        """Whether a folder of an attempt is there.

        Raises:
            OSError: That cannot be told now, since its node's folder is away.
        """
        if attempts.is_folder(folder):
            return True
        self._site.presence.check()
        return attempts.is_folder(folder)

    def _look_again(self, live: _Live) -> tuple[_Live, Sight | None]:
        """Look; an attempt that cannot be read now (a full disk, a damaged record) is left to the next scan."""
        try:
            return self._look_one(live)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and is_full(error):
                self._space.note(error)
            self._say_unseen("attempt not seen", pod=live.name)
            return live, None

    def _say_unseen(self, what: str, **more: str) -> None:
        """Log the exception that is handled, now and then."""
        now = time.monotonic()
        if self._unseen_said is None or now - self._unseen_said > UNSEEN_S:
            self._unseen_said = now
            log.exception(what, **more)

    def _release_some(self, lives: Sequence[_Live], grace_ms: int) -> list[tuple[_Live, Sight | None]]:
        """Ask for the ends of some attempts, and wake their runners."""
        awake: dict[str, Runner] = {}
        done = []
        for live in lives:
            with self._stripe(live.name):
                done.append((live, self._release_one(live, grace_ms, awake)))
        for runner in awake.values():
            runner.signal(signal.SIGTERM)
        return done

    def _release_one(self, live: _Live, grace_ms: int, awake: dict[str, Runner]) -> Sight | None:
        sight = self._seen(live.name)
        if sight is not None and sight.final is not None:
            return sight
        folder = live.folder
        try:
            folder = live.folder = folder or self._find(live.name)
            if (folder is None or not self._is_there(folder)) and not self._runners.those_with(live.name):
                return self._absent(live.name, "Released")
            if folder is not None:
                attempts.ask_for_end(folder, grace_ms)
                self._site.failpoint("release.marked")
        except OSError as error:  # no room to ask, or the task has put a link in the folder's place
            if not is_full(error) and not isinstance(error, NotADirectoryError):
                log.warning(
                    "attempt is not asked to end: killed after its grace", pod=live.name, error=str(error)
                )
                return None
            if is_full(error):
                self._space.note(error)
            if folder is not None and (found := self._runners.find(live.name)) is not None:
                self._kill(folder, found[0])  # there is no room to ask
            return None
        those = self._runners.those_with(live.name)
        awake.update({runner.name: runner for runner in those})
        if those or live.busy:
            return None
        sight = self._look_for(live)
        if sight is not None and isinstance(sight.final, PodGone):
            self._remove_group(live.name)
        return sight

    def _group(self, name: str) -> str:
        return self._cgroups.group(attempts.mark_of(self._site.root), name)

    def _remove_group(self, name: str) -> None:
        """Remove the group of an attempt that is no more: its runner may have died between making it and writing that down."""
        if group := self._group(name):
            cgroups.remove(group)

    def _absent(self, name: str, reason: str) -> Sight:
        if name in self._denied:
            return Sight(final=self._denied[name])
        try:
            return Sight(final=self._attempts.entomb(name, reason))
        except OSError as error:
            return self._no_room(name, error, reason)

    def _no_room(self, name: str, error: OSError, reason: str) -> Sight:
        """There is no room for the folder of an attempt: it is no more, and this process will not make it.

        Raises:
            OSError: It was something else.
        """
        if not is_full(error):
            raise error
        self._space.note(error)
        self._live[name].busy = False
        gone = self._denied[name] = PodGone(name, self._site.clock(), reason)
        return Sight(final=gone)

    def _read_log(self, name: str, stream: str, offset: int, limit: int) -> tuple[bytes, bool]:
        folder = self._attempts.find(name)
        if stream not in ("stdout", "stderr") or folder is None:
            return b"", False
        finished = self._is_over(name)  # asked first: then nothing is written after the read
        try:
            data, more = attempts.read_log(folder, stream, offset, limit)
        except FileNotFoundError:
            return b"", not finished
        return data, not finished or more

    def _size_log(self, name: str, stream: str) -> int:
        folder = self._attempts.find(name)
        if stream not in ("stdout", "stderr") or folder is None:
            return 0
        try:
            return attempts.size_log(folder, stream)
        except FileNotFoundError:
            return 0

    def _sweep(self) -> None:
        """Remove the control groups of attempts that have ended, with what lives in them all the same."""
        self._cgroups.sweep()
        for name, group in self._cgroups.groups(attempts.mark_of(self._site.root)).items():
            if self._find(name) is None or self._is_over(name):
                cgroups.kill(group)
                cgroups.remove(group)

    def _find_orphans(self, wanted: frozenset[str]) -> list[str]:
        if self._site.presence.away():
            return []  # `trouble` says so
        self._sweep()
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

    def _forget(self, names: list[str]) -> None:
        for name in names:
            with self._stripe(name):
                folder = self._attempts.find(name)
                if folder is not None and self._is_over(name):
                    attempts.clear_work(folder)

    def _settle(self, names: list[str]) -> None:
        for name in names:
            self._denied.pop(name, None)
            with self._stripe(name), contextlib.suppress(OSError):  # no room: what was removed is gone
                folder = self._attempts.find(name)
                if folder is not None:
                    attempts.clear(folder)
        with contextlib.suppress(OSError):  # a segment is put away later
            self._runners.settle(names)

    def _kept_of(self) -> set[str]:
        """The workflows that attempts are kept of."""
        return {attempts.workflow_of(folder.name) for folder in self._attempts.all()}

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
        self._gang_files.sweep()
        self._runners.expire(frozenset(self._live), there)
        return expired

    def _is_over(self, name: str) -> bool | None:
        """Whether an attempt has ended, or has left nothing; None while a runner of an earlier service may still start it."""
        found = self._runners.find(name)
        if name in self._live or self._runners.may_start(name):
            if found is None and name not in self._live:
                return None
            return found is not None and found[0].end is not None
        return found is None or found[0].end is not None or found[1].is_dead or found[0].is_lost

    # --- watching --------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look at what was poked at once, and at all that lives every `SCAN_S`; sleep while nothing lives."""
        loop = asyncio.get_running_loop()
        scanned_at = loop.time()
        while True:
            pause = max(0.0, scanned_at + SCAN_S - loop.time()) if self._live else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # not wait_for: in 3.11 it may swallow a cancel
                    await self._wake.wait()
            self._wake.clear()
            try:
                if self._poked:
                    self._poked = False
                    await self._hear(self._runners.read())
                if loop.time() >= scanned_at + SCAN_S:
                    scanned_at = loop.time()
                    self._away = await loop.run_in_executor(self._eyes, self._site.presence.away)
                    self._tell_space()
                    if self._away:
                        continue
                    await self._hear(await loop.run_in_executor(self._eyes, self._runners.refresh))
                    await self._each(list(self._live.values()), self._look_again, self._eyes)
            except OSError:  # a journal that cannot be read now is read by the next scan
                self._say_unseen("journals not read")

    async def _hear(self, names: Sequence[str]) -> None:
        """Apply the news of attempts."""
        todo = []
        for name in dict.fromkeys(names):
            live = self._live.get(name)
            if live is None or live.busy:
                continue
            sight = self._seen(name)
            if sight is None:
                todo.append(live)
            else:
                self._site.failpoint("look.seen")
                self._apply(live, sight)
        if todo:
            await self._each(todo, self._look_again, self._eyes)

    async def _mind_space(self) -> None:
        """Tell whether there is room on the root's file system, and which one it is if not."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SPACE_S)
            await loop.run_in_executor(self._eyes, self._measure_space)
            self._tell_space()

    def _measure_space(self) -> None:
        self._away = self._site.presence.away()
        for space in self._spaces:
            space.measure()
        if self._cache_percent:
            self._measure_part()

    def _measure_part(self) -> None:
        """How much each cache may hold, as a part of the disk. Changes below a tenth are ignored.

        On a full disk the last limit holds, or the same part of the whole disk after a start. Other programs may be
        filling the disk, and last copies dropped because of them would have to be made again.
        """
        try:
            disk = os.statvfs(self._site.root)
        except OSError:
            return  # `Space.measure` has said so
        bytes_ = disk.f_blocks * disk.f_frsize
        if not self._full:
            held = sum(cache.used_bytes for cache in self._caches.values())
            bytes_ = disk.f_bavail * disk.f_frsize + held
        elif self._cache_bytes:
            return
        found = max(1, bytes_ * self._cache_percent // 100 // len(self._caches))
        if 10 * abs(found - self._cache_bytes) > self._cache_bytes:
            self._cache_bytes = found

    def _nodes(self) -> list[NodeInfo]:
        """The nodes as they are now."""
        trouble = self._full
        nodes = [replace(node, ready=not trouble, trouble=trouble) for node in self._site.nodes.values()]
        if self._cache_percent:
            nodes = [replace(node, cache_bytes=self._cache_bytes) for node in nodes]
        return nodes

    def _tell_space(self) -> None:
        """Let the nodes be ready, or not, and say what their caches may hold."""
        was, now = self._told, (bool(self._full), self._cache_bytes)
        if now == was:
            return
        self._told = now
        if now[0] and not was[0]:
            log.warning("nothing new is started", why=self._full)
        elif was[0] and not now[0]:
            log.info("the root has room again, or is back", root=str(self._site.root))
        for node in self._nodes():
            self._site.report(NodeChanged(node))

    async def _measure(self) -> None:
        """Measure and report the load of the disk every few seconds."""
        meter = DiskMeter(self._site.root, tuple(self._site.nodes))
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(INTERVAL_S)
            running = [
                (live.name, live.node, known[0].pid)
                for live in self._live.values()
                if (known := self._runners.find(live.name)) and known[0].pid and not known[1].is_dead
            ]
            now = loop.time()
            found = await loop.run_in_executor(self._eyes, meter.measure, running, now - last)
            last = now
            if found is not None:
                self._site.report(found)

    def _on_poke(self) -> None:
        self._poked = True
        self._wake.set()

    async def _each(
        self,
        items: Sequence[T],
        act: Callable[[T], tuple[_Live, Sight | None]],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Do something to many attempts in threads, and apply what it shows."""
        await self._in_parts(items, lambda part: [act(item) for item in part], pool)

    async def _in_parts(
        self,
        items: Sequence[T],
        act: Callable[[Sequence[T]], list[tuple[_Live, Sight | None]]],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """The same, with what does something to a few attempts at a time."""
        loop = asyncio.get_running_loop()
        parts = [items[at : at + _BATCH] for at in range(0, len(items), _BATCH)]
        runs = [loop.run_in_executor(pool or self._pool, act, part) for part in parts]
        for done in await asyncio.gather(*runs):
            for live, sight in done:
                if sight is not None:
                    self._apply(live, sight)

    def _apply(self, live: _Live, sight: Sight) -> None:
        if self._live.get(live.name) is not live:
            return  # its end was told meanwhile
        if sight.started_ms is not None and not live.told_start:
            live.told_start = True
            self._site.report(PodStarted(live.name, sight.started_ms))
        if sight.final is None:
            if sight.started_ms is not None:
                self._tell_held(live, sight.reason, sight.waits)
            return
        self._tell_space()  # first: what found no room is offered again at once
        del self._live[live.name]
        self._images.ended()
        for uri in sight.final.changed_inputs if isinstance(sight.final, PodEnded) else ():
            for node in {node for other, node in live.inputs if other == uri}:
                self._pool.submit(self._staging.forget(uri, node))
                self._site.report(ReplicaSeen(uri, node, 0, present=False))
        if isinstance(sight.final, PodEnded) and live.folder is not None:
            self._staging.published(live.folder.parents[1].name, sight.final.outputs)
        self._site.report(sight.final)
        self._launch_held(self._writers.leave(live.name))

    def _launch_held(self, names: Sequence[str]) -> None:
        """Launch attempts that have waited for the one that has just gone; tell what the others wait for now."""
        pods = []
        for name in names:
            live = self._live.get(name)
            if live is None or live.held is None:
                continue
            why = self._writers.why(name)
            self._tell_held(live, WRITER, why)
            if not why:
                pods.append(live.held)
                live.held = None
        if pods:
            self._launch_late(pods)

    def _launch_late(self, pods: Sequence[Pod]) -> None:
        """Launch attempts that had been held. One that cannot be launched is told as gone by the next scan."""

        async def launch() -> None:
            await self._launch_ready(pods)
            self._wake.set()

        def not_launched(_: Exception) -> None:
            for pod in pods:
                if pod.name in self._live:
                    self._live[pod.name].busy = False
            self._wake.set()

        self._background.begin(
            launch(), name=f"launch of {', '.join(pod.name for pod in pods)}", failed=not_launched
        )

    async def _launch_ready(self, pods: Sequence[Pod]) -> None:
        """Launch attempts that nothing holds but their images: at once, or when these are here."""
        for pod in pods:
            if not self._images.is_ready(pod) and pod.name not in self._refused:
                self._background.begin(
                    self._launch_with_image(pod),
                    name=f"image of {pod.name}",
                    failed=partial(self._launch_refused, pod),
                )
        ready = [pod for pod in pods if self._images.is_ready(pod) or pod.name in self._refused]
        await self._in_parts(ready, self._launch_some)

    async def _launch_with_image(self, pod: Pod) -> None:
        """Launch an attempt when its images are here, or when it is known that they never will be."""
        live = self._live[pod.name]
        refusal = await self._images.prepare(pod, lambda reason, why: self._tell_held(live, reason, why))
        if self._live.get(pod.name) is not live:
            return  # it was released meanwhile
        if refusal is not None:
            self._refused[pod.name] = refusal
        self._launch_late([pod])

    def _launch_refused(self, pod: Pod, error: Exception) -> None:
        """End an attempt whose images cannot be asked for, with what was raised."""
        if pod.name in self._live:
            self._refused[pod.name] = Refusal(
                REFUSED, f"the container engine's answer about its images is not understood: {error!r}"
            )
            self._launch_late([pod])

    def _tell_image(self, name: str, size_bytes: int) -> None:
        """Tell that an image is here: all nodes are this machine."""
        for node in self._site.nodes:
            self._site.report(ReplicaSeen(f"{IMAGE}{name}", node, size_bytes))

    def _tell_held(self, live: _Live, reason: str, why: str) -> None:
        """Tell what an attempt waits for, once; "" = for nothing any more."""
        if why == live.told_held:
            return
        live.told_held = why
        if why and reason != DELIVERING:
            log.info("attempt waits", pod=live.name, reason=reason, why=why)
        self._site.report(PodHeld(live.name, reason if why else "", why))

    async def _written(self, pods: Sequence[Pod]) -> dict[str, frozenset[str]]:
        """The files outside of them that pods write, by name."""
        none: frozenset[str] = frozenset()
        asked = [pod for pod in pods if writes_outside(pod)]
        found = await self._in_thread(lambda: [written_paths(pod) for pod in asked]) if asked else []
        return {pod.name: none for pod in pods} | {
            pod.name: paths for pod, paths in zip(asked, found, strict=True)
        }

    def _stripe(self, name: str) -> threading.Lock:
        return self._stripes[hash(name) % len(self._stripes)]

    async def _in_thread(self, act: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, act, *arguments)


def _reads(pod: Pod) -> frozenset[tuple[str, str]]:
    return frozenset((uri, pod.remote.get(uri, pod.node)) for given in pod.inputs for uri in given.uris)
