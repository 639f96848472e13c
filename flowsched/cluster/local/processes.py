"""Real processes: one runner process for each attempt, started and watched here; runners wake the service through a socket.

The folders say everything (see `attempts`); what is kept here in memory is only which attempts are waited for. Blocking work on
folders happens in a few threads, one attempt at a time; what they find is applied on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from flowsched.cluster.local import attempts
from flowsched.cluster.local.attempts import Attempts, Sight
from flowsched.cluster.local.images import ContainerSettings, Images
from flowsched.cluster.local.orders import compose, staged_files, write_order
from flowsched.cluster.local.runner import cgroups
from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.local.runner.cgroups import find_base
from flowsched.cluster.local.runner.records import elapsed_ms, wall_ms
from flowsched.cluster.local.transfers import Staging
from flowsched.cluster.local.virtual_nodes import Site
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
    Fingerprint,
    Known,
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

log = structlog.get_logger(__name__)


class Pokes:
    """The service's end of the socket `poke.sock` in a cluster's root.

    Args:
        root: Folder of the cluster.
        on_poke: Called on the event loop with the name of an attempt.
    """

    def __init__(self, root: Path, on_poke: Callable[[str], None]) -> None:
        self._on_poke = on_poke
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        with contextlib.suppress(FileNotFoundError):
            (root / "poke.sock").unlink()
        try:
            _bind(self._socket, root)
        except OSError as error:  # a path of more than 107 bytes where there is no /proc
            log.warning("no pokes: changes of attempts are seen by scanning only", error=str(error))
        else:
            self._loop.add_reader(self._socket.fileno(), self._read)

    def close(self) -> None:
        """Listen no more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._on_poke(os.fsdecode(self._socket.recv(4096)))


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


# ---- the spawner: the service's end of the process that runners are forked from (`runner.spawner`) ----
#
# Not `subprocess` per runner: an interpreter's start costs 25 ms of CPU, and this process's interpreter is held meanwhile, so
# that launching a hundred pods stalled the event loop for 200 ms.


COMMAND: Final = (sys.executable, "-I", "-S", "-X", "utf8", str(Path(__file__).with_name("run_attempt.py")))
_ANSWER_S: Final = 10.0


class Spawner:
    """Starts runners. Blocks; may be called from several threads.

    Args:
        command: What to run, see `run_attempt.py`.
        log: Where its standard error goes.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = tuple(command)
        self._log = log
        self._lock = threading.Lock()
        self._pid = 0
        self._to = self._from = -1

    def spawn(self, folder: Path) -> tuple[int, int]:
        """Start the runner of a folder: its pid and start time.

        Raises:
            OSError: Nothing answered. A runner may have been started all the same: look at the folder.
        """
        with self._lock:
            if not self._pid:
                self._open()
            try:
                os.write(self._to, os.fsencode(folder) + b"\n")
                pid, start = map(int, self._answer().split())
            except (OSError, ValueError) as error:
                self._close()
                raise OSError(f"the spawner of runners failed: {error}") from error
            return pid, start

    def close(self) -> None:
        """End it. The runners go on."""
        with self._lock:
            self._close()

    def _answer(self) -> bytes:
        line = b""
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(_ANSWER_S * 1000):
                raise OSError(f"no answer in {_ANSWER_S:g} s")
            block = os.read(self._from, 64)
            if not block:
                raise OSError("it has ended")
            line += block
        return line

    def _open(self) -> None:
        in_read, self._to = os.pipe()
        self._from, out_write = os.pipe()
        errors = (str(self._log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        streams = (
            (os.POSIX_SPAWN_DUP2, in_read, 0),
            (os.POSIX_SPAWN_DUP2, out_write, 1),
            (os.POSIX_SPAWN_OPEN, 2, *errors),
        )
        environment = {"LANG": "C.UTF-8"}
        try:
            self._pid = os.posix_spawn(
                self._command[0], self._command, environment, file_actions=streams, setsid=True
            )
        finally:
            os.close(in_read)
            os.close(out_write)

    def _close(self) -> None:
        for fd in (self._to, self._from):
            with contextlib.suppress(OSError):
                os.close(fd)
        if self._pid:
            with contextlib.suppress(OSError):
                if not _reaped(self._pid):
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
        self._pid, self._to, self._from = 0, -1, -1


def _reaped(pid: int, wait_s: float = 1.0) -> bool:
    """Reap a child that is about to end; False if it does not."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.002)
    return False


# ---- runner processes ----


T = TypeVar("T")
#: How often all live attempts are looked at, should a poke have been lost. The promise of `Executor.events` is here.
SCAN_S: Final = 0.5
#: How often the room on the root's file system is looked at.
SPACE_S: Final = 1.0
#: While attempts cannot be read, that is logged again after this.
UNSEEN_S: Final = 60.0
#: If the runner has not ended a released attempt so long after the grace, the service ends it without the runner.
OVERDUE_S: Final = 3.0
#: Why an attempt waits: another one writes its file; there is no room for its results.
WRITER: Final = "OutputBusy"
NO_ROOM: Final = "OutputNoRoom"
#: Attempts that one thread takes at a time: the others see to what comes meanwhile.
_BATCH: Final = 16


@dataclass(slots=True, eq=False)
class _Live:
    """An attempt that is waited for."""

    name: str
    folder: Path | None = None
    runner: tuple[int, int] | None = None  #: pid and start time of the runner, while it lives
    inputs: frozenset[tuple[str, str]] = frozenset()  #: (uri, node) it reads there
    node: str = ""
    busy: bool = False  #: being launched: not to be looked at yet
    held: Pod | None = None  #: to be launched once no other attempt writes what it writes
    told_start: bool = False
    told_held: str = ""  #: what it waits for, as the engine knows it
    overdue_at: float | None = None  #: on the loop's clock; set by a release


class RunnerProcesses:
    """Processes and files of this machine.

    Args:
        origins: Where datasets may come from, and how fast.
        command: What forks runners, see `spawner`.
        threads: For work on folders.
        containers: How pods that name an image run.
        cache_percent: What the caches may hold together, in percent of what is free on the disk of the root or in them, measured
            again and again; 0 = what `site` says.
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
        beside: Sequence[Space] = (),
    ) -> None:
        self._cache_percent = cache_percent
        self._cache_bytes = 0  #: what each node's cache may hold, as last measured
        self._beside = tuple(beside)
        #: Attempts that there was no room to void in a folder. None of them has one, and while this process has the root none
        #: is made; after a restart SQL says whether their end is known.
        self._denied: dict[str, PodGone] = {}
        self._unseen_said: float | None = None
        self._containers = containers or ContainerSettings()
        self._refused: dict[str, Refusal] = {}  #: pods that have no image, until they are told so
        self._origins = origins or Origins()
        self._command = tuple(command)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="attempts")
        self._eyes = ThreadPoolExecutor(2, thread_name_prefix="watching")  # not behind a long launch
        self._stripes = [threading.Lock() for _ in range(64)]
        self._caches: dict[str, Cache] = {}  #: of nodes, by name; none before `open`
        self._live: dict[str, _Live] = {}
        self._writers = Writers()
        self._launches: set[asyncio.Task[None]] = set()  #: of attempts that had been held
        self._poked: set[str] = set()
        self._wake = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

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
        self._caches = {
            name: Cache(site.root / "nodes" / name / "cache")  # the engine sees to its limit
            for name in site.nodes
        }
        await self._in_thread(self._attempts.open)
        self._cgroups = await self._in_thread(find_base)
        await self._in_thread(self._sweep)
        for cache in self._caches.values():
            cache.folder.mkdir(parents=True, exist_ok=True)
        self._identities = Identities(self._origins)
        self._staging = Staging(site, self._caches, self._origins)
        self._images = Images(self._containers, site.root, self._eyes, self._tell_image, self._is_over)
        self._swept = asyncio.create_task(self._images.sweep(), name="containers of earlier services")
        self._spawner = Spawner(self._command, site.root / "spawner.log")
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
        self._watcher = asyncio.create_task(self._watch(), name="attempts")
        self._meter = asyncio.create_task(self._measure(), name="disk meter")
        self._minder = asyncio.create_task(self._mind_space(), name="space")
        return nodes

    async def close(self) -> None:
        """Stop watching and copying. Runners and tasks go on."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._meter.cancel()
            self._minder.cancel()
            await asyncio.gather(self._watcher, self._meter, self._minder, return_exceptions=True)
            for launch in self._launches:
                launch.cancel()  # what waits for an image: the next service is told that it was never launched
            await asyncio.gather(*self._launches, self._swept, return_exceptions=True)
            await self._images.close()
            self._pokes.close()
            await self._staging.close()
            await self._in_thread(self._spawner.close)
        self._pool.shutdown(wait=True)
        self._eyes.shutdown(wait=True)

    # --- what is asked ---------------------------------------------------------------------------------------

    async def launch(self, pods: Sequence[Pod]) -> None:
        """Make folders and spawn runners. If a pod's folder is there, it was launched before, and its state is read instead.

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

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """Look at what SQL says is there."""
        for pod in pods:
            live = self._live.setdefault(pod.name, _Live(pod.name))
            live.inputs, live.node, live.told_start, live.told_held = _reads(pod), pod.node, False, ""
        paths = await self._written(pods)
        there = [pod for pod in pods if pod.name in self._live]  # the ends of the others were told meanwhile
        for pod in there:
            self._writers.enter(pod, paths[pod.name])
        await self._each([self._live[pod.name] for pod in there], self._look_again)
        self._wake.set()

    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        """Ask runners to end their tasks, and make sure that what has not begun never does."""
        overdue_at = asyncio.get_running_loop().time() + grace_ms / 1000 + OVERDUE_S
        for name in names:
            live = self._live.setdefault(name, _Live(name))
            live.overdue_at = min(live.overdue_at or overdue_at, overdue_at)
        todo = [self._live[name] for name in names]
        await self._each(todo, lambda live: self._release_one(live, grace_ms))
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

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Opened | None:
        """Read it from the first cache that has it, block by block in threads."""
        for cache in (self._caches[node] for node in nodes if node in self._caches):
            opened = await open_dataset(cache, uri)
            if opened is not None:
                return opened
        return None

    async def fingerprints(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """Look at the datasets in threads."""
        return await self._identities.of(uris, by_content=by_content)

    async def forget_changed(self, uris: Sequence[str]) -> Sequence[str]:
        """Compare copies with their files in a thread, and drop those that differ."""
        changed = await self._in_thread(self._changed, [uri for uri in uris if _is_file(uri)])
        return [uri for uri, node in changed if not await self.evict(uri, node)]

    def _changed(self, uris: Sequence[str]) -> list[tuple[str, str]]:
        """The copies, by uri and node, that are not what their files are now."""
        exact = {uri for uri in uris if "{" not in uri}
        begin = tuple(uri.partition("{")[0] for uri in uris if "{" in uri)
        found = []
        for node, cache in self._caches.items():
            known = [uri for uri in exact if uri in cache.entries]
            known += [uri for uri in list(cache.entries) if begin and uri.startswith(begin)]
            found += [(uri, node) for uri in dict.fromkeys(known) if cache.is_outdated(uri)]
        return found

    async def image_digests(self, names: Sequence[str]) -> dict[str, str]:
        """Ask the container engine."""
        return await self._images.digests(names)

    async def orphans(self) -> Sequence[str]:
        """Folders with a held lock that belong to no attempt of this service."""
        return await self._in_thread(self._find_orphans, frozenset(self._live))

    async def settle(self, names: Sequence[str]) -> None:
        """Pack what is kept of attempts after the service has stored their ends durably."""
        await self._in_thread(self._pack, list(names))

    @property
    def trouble(self) -> str:
        """Why nothing can be started, in words; "" = it can."""
        return self._full if self._watcher is not None else ""

    @property
    def _full(self) -> str:
        return next((space.trouble for space in self._spaces if space.trouble), "")

    async def forget(self, names: Sequence[str]) -> None:
        """Remove working folders of finished attempts."""
        await self._in_thread(self._forget, list(names))

    def flows(self) -> Mapping[str, tuple[int, int]]:
        """Node -> (bytes in, bytes out) that were really copied."""
        return {node: (t.in_bytes, t.out_bytes) for node, t in self.staging.traffic.items()}

    async def expire(self, known: Known) -> int:
        """Remove finished attempts of workflows that are not known any more; pack those that an earlier version left."""
        workflows = await self._in_thread(self._kept_of)
        gone = frozenset(workflows) - frozenset(await known(workflows))
        return await self._in_thread(self._expire, gone)

    @property
    def staging(self) -> Staging:
        """The transfers, for their counters."""
        return self._staging

    # --- in threads ------------------------------------------------------------------------------------------

    def _launch_one(self, pod: Pod) -> tuple[_Live, Sight | None]:
        live = self._live[pod.name]
        with self._stripe(pod.name):
            if pod.name in self._denied:
                return live, Sight(final=self._denied[pod.name])
            if pod.node not in self._caches and self._attempts.find(pod.name) is None:
                return live, self._absent(pod.name, "NoSuchNode")
            try:
                folder = self._attempts.make(pod.name, pod.node)
            except OSError as error:
                return live, self._no_room(pod.name, error, "DiskFull")
            if folder is not None:
                spawning = False
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
                    )
                    write_order(folder, pod, order)
                    self._site.failpoint("launch.ordered")
                    spawning = True
                    live.runner = self._spawner.spawn(folder)
                    self._site.failpoint("launch.spawned")
                except OSError as error:
                    if is_full(error) and not spawning:
                        attempts.remove_tree(folder)
                        return live, self._no_room(pod.name, error, "DiskFull")
                    log.warning("runner not started", pod=pod.name, error=str(error))
                    live.runner = None
            live.busy = False
        return self._look_again(live) if live.runner is None else (live, None)

    def _image_order(self, pod: Pod, folder: Path) -> Mapping[str, Any]:
        """How a pod uses its images."""
        caches = {pod.node, *pod.remote.values()}
        read = (
            [self._caches[node].folder for node in sorted(caches) if node in self._caches]
            if pod.inputs
            else []
        )
        staged = {name: path for name, (_, path) in staged_files(pod, self._caches).items()}
        refused = self._refused.pop(pod.name, None)
        if refused is not None:
            return {"refused": (refused.reason, refused.message)}
        return self._images.order(pod, folder, read, staged)

    def _look_one(self, live: _Live) -> tuple[_Live, Sight | None]:
        if live.busy:
            return live, None
        with self._stripe(live.name):
            folder = live.folder = live.folder or self._attempts.find(live.name)
            if folder is None:
                return live, self._absent(live.name, "NotLaunched")
            if not folder.is_dir():
                removed = attempts.removed(self._group(live.name))
                attempts.kill_attempt(folder, removed)
                if attempts.is_left(folder, removed):
                    return live, None
                return live, self._absent(live.name, "FolderGone")
            live.runner = _living(live.runner)
            sight = attempts.look(folder, live.runner is not None, live.overdue_at is not None)
            self._remove_group(live.name, sight)
            self._site.failpoint("look.seen")
            return live, sight

    def _look_again(self, live: _Live) -> tuple[_Live, Sight | None]:
        """Look; an attempt that cannot be read now (a full disk, a damaged record) is left to the next scan."""
        try:
            return self._look_one(live)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError) and is_full(error):
                self._space.note(error)
            now = time.monotonic()
            if self._unseen_said is None or now - self._unseen_said > UNSEEN_S:
                self._unseen_said = now
                log.exception("attempt not seen", pod=live.name)
            return live, None

    def _release_one(self, live: _Live, grace_ms: int) -> tuple[_Live, Sight | None]:
        with self._stripe(live.name):
            folder = live.folder = live.folder or self._attempts.find(live.name)
            if folder is None or not folder.is_dir():
                return live, self._absent(live.name, "Released")
            try:
                sight = attempts.release(folder, grace_ms)
            except OSError as error:
                if not is_full(error):
                    raise
                self._space.note(error)
                attempts.kill_runner(
                    folder
                )  # there is no room to ask it; what it leaves is ended by the next look
                return live, None
            self._remove_group(live.name, sight)
            self._site.failpoint("release.marked")
            return live, sight

    def _group(self, name: str) -> str:
        return self._cgroups.group(attempts.mark_of(self._site.root), name)

    def _remove_group(self, name: str, sight: Sight | None) -> None:
        """Remove the group of an attempt that is no more: its runner may have died between making it and writing that down."""
        if sight is not None and isinstance(sight.final, PodGone) and (group := self._group(name)):
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
        gone = self._denied[name] = PodGone(name, wall_ms(), reason)
        return Sight(final=gone)

    def _read_log(self, name: str, stream: str, offset: int, limit: int) -> tuple[bytes, bool]:
        folder = self._attempts.find(name)
        if stream not in ("stdout", "stderr") or folder is None:
            return b"", False
        finished = attempts.is_finished(folder)  # asked first: then nothing is written after the read
        try:
            with open(folder / stream, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if offset > size:  # file systems refuse to seek beyond what they can hold
                    return b"", not finished
                file.seek(offset)
                data = file.read(limit)
                return data, not finished or file.tell() < os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return b"", not finished

    def _sweep(self) -> None:
        """Remove the control groups of attempts that have ended, with what lives in them all the same."""
        self._cgroups.sweep()
        for name, group in self._cgroups.groups(attempts.mark_of(self._site.root)).items():
            folder = self._attempts.find(name)
            if folder is None or attempts.is_finished(folder):
                cgroups.kill(group)
                cgroups.remove(group)

    def _find_orphans(self, wanted: frozenset[str]) -> list[str]:
        self._sweep()
        return [
            folder.name
            for folder in self._attempts.all()
            if folder.name not in wanted and not attempts.is_finished(folder) and attempts.is_alive(folder)
        ]

    def _forget(self, names: list[str]) -> None:
        for name in names:
            with self._stripe(name):
                folder = self._attempts.find(name)
                if folder is not None and attempts.is_finished(folder):
                    for made in ("work", "container"):
                        attempts.remove_tree(folder / made)
                    for file in ("order", "release"):
                        with contextlib.suppress(FileNotFoundError):
                            (folder / file).unlink()

    def _pack(self, names: list[str]) -> None:
        for name in names:
            self._denied.pop(name, None)
            with (
                self._stripe(name),
                contextlib.suppress(OSError),
            ):  # no room: what was removed is gone, the rest is kept
                folder = self._attempts.find(name)
                if folder is not None:
                    attempts.pack(folder)

    def _kept_of(self) -> set[str]:
        """The workflows that attempts are kept of."""
        return {attempts.workflow_of(folder) for folder in self._attempts.all()}

    def _expire(self, gone: frozenset[str]) -> int:
        expired = 0
        for folder in self._attempts.all():
            if not attempts.is_finished(folder):
                continue
            if attempts.workflow_of(folder) in gone:
                attempts.remove_tree(folder)
                expired += 1
            elif not (folder / attempts.PACKED).exists():
                self._pack([folder.name])  # its end was not told of in this life of the service
        return expired

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
            poked, self._poked = self._poked, set()
            names = poked
            if loop.time() >= scanned_at + SCAN_S:
                scanned_at = loop.time()
                names = set(self._live)
            todo = [self._live[name] for name in names if name in self._live]
            self._end_overdue(todo, loop.time())
            await self._each(todo, self._look_again, self._eyes)

    async def _mind_space(self) -> None:
        """Tell whether there is room on the root's file system, and which one it is if not."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SPACE_S)
            await loop.run_in_executor(self._eyes, self._measure_space)
            self._tell_space()

    def _measure_space(self) -> None:
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
            log.info("there is room again", root=str(self._site.root))
        for node in self._nodes():
            self._site.report(NodeChanged(node))

    async def _measure(self) -> None:
        """Measure and report the load of the disk every few seconds."""
        meter = DiskMeter(self._site.root, tuple(self._site.nodes))
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(INTERVAL_S)
            running = [(live.name, live.node, live.runner[0]) for live in self._live.values() if live.runner]
            now = loop.time()
            found = await loop.run_in_executor(self._eyes, meter.measure, running, now - last)
            last = now
            if found is not None:
                self._site.report(found)

    def _end_overdue(self, todo: list[_Live], now: float) -> None:
        for live in todo:
            if live.overdue_at is not None and now > live.overdue_at and live.folder is not None:
                attempts.kill_runner(live.folder)

    def _on_poke(self, name: str) -> None:
        if name in self._live:
            self._poked.add(name)
            self._wake.set()

    async def _each(
        self,
        items: Sequence[T],
        act: Callable[[T], tuple[_Live, Sight | None]],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Do something to many attempts in threads, and apply what it shows."""
        loop = asyncio.get_running_loop()

        def some(part: Sequence[T]) -> list[tuple[_Live, Sight | None]]:
            return [act(item) for item in part]

        parts = [items[at : at + _BATCH] for at in range(0, len(items), _BATCH)]
        runs = [loop.run_in_executor(pool or self._pool, some, part) for part in parts]
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
                self._tell_held(live, NO_ROOM, sight.waits)
            return
        self._tell_space()  # first: what found no room is offered again at once
        del self._live[live.name]
        self._images.ended()
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
            task = asyncio.create_task(self._launch_late(pods), name="held launches")
            self._launches.add(task)
            task.add_done_callback(self._launches.discard)

    async def _launch_late(self, pods: Sequence[Pod]) -> None:
        """Launch attempts that had been held. One that cannot be launched is told as gone by the next scan."""
        try:
            await self._launch_ready(pods)
        except OSError as error:
            log.warning("attempts not launched", pods=[pod.name for pod in pods], error=str(error))
            for pod in pods:
                if pod.name in self._live:
                    self._live[pod.name].busy = False
        self._wake.set()

    async def _launch_ready(self, pods: Sequence[Pod]) -> None:
        """Launch attempts that nothing holds but their images: at once, or when these are here."""
        for pod in pods:
            if not self._images.is_ready(pod) and pod.name not in self._refused:
                task = asyncio.create_task(self._launch_with_image(pod), name=f"image of {pod.name}")
                self._launches.add(task)
                task.add_done_callback(self._launches.discard)
        await self._each(
            [pod for pod in pods if self._images.is_ready(pod) or pod.name in self._refused], self._launch_one
        )

    async def _launch_with_image(self, pod: Pod) -> None:
        """Launch an attempt when its images are here, or when it is known that they never will be."""
        live = self._live[pod.name]
        refusal = await self._images.prepare(pod, lambda reason, why: self._tell_held(live, reason, why))
        if self._live.get(pod.name) is not live:
            return  # it was released meanwhile
        if refusal is not None:
            self._refused[pod.name] = refusal
        await self._launch_late([pod])

    def _tell_image(self, name: str, size_bytes: int) -> None:
        """Tell that an image is here: all nodes are this machine."""
        for node in self._site.nodes:
            self._site.report(ReplicaSeen(f"{IMAGE}{name}", node, size_bytes))

    def _is_over(self, name: str) -> bool:
        """Whether an attempt has ended, or has left nothing."""
        folder = self._attempts.find(name)
        return folder is None or attempts.is_finished(folder)

    def _tell_held(self, live: _Live, reason: str, why: str) -> None:
        """Tell what an attempt waits for, once; "" = for nothing any more."""
        if why == live.told_held:
            return
        live.told_held = why
        if why:
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


def _living(runner: tuple[int, int] | None) -> tuple[int, int] | None:
    """The runner, if it still lives."""
    return runner if runner is not None and attempts.lives(*runner) else None


def _is_file(uri: str) -> bool:
    """Whether a uri names a file of this machine."""
    return uri.startswith(("/", "file:"))
