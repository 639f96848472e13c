"""Real processes: each attempt has a runner process of its own (see `running`), which this module starts and watches.

The folders say everything (see `attempts`); what is kept here in memory is only which attempts are waited for. Blocking
work on folders happens in a few threads, one attempt at a time; what they find is applied on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

import structlog

from flowsched.cluster import attempts, kin
from flowsched.cluster.attempts import Attempts, Sight
from flowsched.cluster.cache import Cache
from flowsched.cluster.measuring import INTERVAL_S, DiskMeter
from flowsched.cluster.orders import compose, write_order
from flowsched.cluster.origins import Origins
from flowsched.cluster.pokes import Pokes
from flowsched.cluster.reading import open_dataset
from flowsched.cluster.running.records import wall_ms
from flowsched.cluster.site import Site
from flowsched.cluster.spawner import COMMAND, Spawner
from flowsched.cluster.staging import Staging
from flowsched.scheduling.executor import Opened, PiecesSeen, Pod, PodEnded, PodStarted, ReplicaSeen, Transfer

log = structlog.get_logger(__name__)
T = TypeVar("T")
Images = Literal["ignore", "refuse"]

#: How often all live attempts are looked at, should a poke have been lost. The promise of `Executor.events` is here.
SCAN_S: Final = 0.5
#: A released attempt whose runner has not ended it so long after the grace is ended without the runner.
OVERDUE_S: Final = 3.0
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
    told_start: bool = False
    overdue_at: float | None = None  #: on the loop's clock; set by a release


class RunnerProcesses:
    """Processes and files of this machine.

    Args:
        origins: Where datasets may come from, and how fast.
        command: What forks runners, see `spawner`.
        threads: For work on folders.
        images: What to do with a pod that names an image: `ignore` it, or `refuse` the pod.
    """

    on_disk = True

    def __init__(
        self,
        *,
        origins: Origins | None = None,
        command: Sequence[str] = COMMAND,
        threads: int = 4,
        images: Images = "ignore",
    ) -> None:
        self._images = images
        self._told_images: set[str] = set()
        self._origins = origins or Origins()
        self._command = tuple(command)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="attempts")
        self._eyes = ThreadPoolExecutor(2, thread_name_prefix="watching")  # not behind a long launch
        self._stripes = [threading.Lock() for _ in range(64)]
        self._live: dict[str, _Live] = {}
        self._poked: set[str] = set()
        self._wake = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    def clock(self) -> int:
        """The wall's."""
        return wall_ms()

    async def open(self, site: Site) -> None:
        """Make the folders, read the caches, listen for pokes."""
        self._site = site
        self._attempts = Attempts(site.root, list(site.nodes))
        self._caches = {
            name: Cache(site.root / "nodes" / name / "cache")  # the engine sees to its limit
            for name in site.nodes
        }
        self._staging = Staging(site, self._caches, self._origins)
        await self._in_thread(self._attempts.open)
        self._spawner = Spawner(self._command, site.root / "spawner.log")
        for name, cache in self._caches.items():
            await self._in_thread(cache.scan)
            for entry in cache.entries.values():
                site.report(ReplicaSeen(entry.uri, name, entry.size_bytes))
            for part in cache.partials.all:
                head = part.header
                site.report(PiecesSeen(head.uri, name, head.size_bytes, head.version, part.spans))
        self._pokes = Pokes(site.root, self._on_poke)
        self._watcher = asyncio.create_task(self._watch(), name="attempts")
        self._meter = asyncio.create_task(self._measure(), name="disk meter")

    async def close(self) -> None:
        """Stop watching and copying. Runners and tasks go on."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._meter.cancel()
            await asyncio.gather(self._watcher, self._meter, return_exceptions=True)
            self._pokes.close()
            await self._staging.close()
            await self._in_thread(self._spawner.close)
        self._pool.shutdown(wait=True)
        self._eyes.shutdown(wait=True)

    # --- what is asked ---------------------------------------------------------------------------------------

    async def launch(self, pods: Sequence[Pod]) -> None:
        """Make folders and spawn runners. A pod whose folder is there was launched before: it is looked at."""
        new = [pod for pod in pods if pod.name not in self._live]
        for pod in new:
            self._live[pod.name] = _Live(pod.name, inputs=_reads(pod), node=pod.node, busy=True)
        await self._each(new, self._launch_one)
        self._wake.set()

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """Look at what SQL says is there."""
        for pod in pods:
            live = self._live.setdefault(pod.name, _Live(pod.name))
            live.inputs, live.node, live.told_start = _reads(pod), pod.node, False
        await self._each([self._live[pod.name] for pod in pods], self._look_one)
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

    async def orphans(self) -> Sequence[str]:
        """Folders with a held lock that nobody waits for."""
        return await self._in_thread(self._find_orphans, frozenset(self._live))

    async def forget(self, names: Sequence[str]) -> None:
        """Remove working folders of finished attempts."""
        await self._in_thread(self._forget, list(names))

    def flows(self) -> Mapping[str, tuple[int, int]]:
        """Node -> (bytes in, bytes out) that were really copied."""
        return {node: (t.in_bytes, t.out_bytes) for node, t in self.staging.traffic.items()}

    async def expire(self, before_ms: int) -> int:
        """Remove finished attempts of long ago."""
        return await self._in_thread(self._expire, before_ms)

    @property
    def staging(self) -> Staging:
        """The transfers, for their counters."""
        return self._staging

    # --- in threads ------------------------------------------------------------------------------------------

    def _launch_one(self, pod: Pod) -> tuple[_Live, Sight | None]:
        live = self._live[pod.name]
        with self._stripe(pod.name):
            if pod.node not in self._caches and self._attempts.find(pod.name) is None:
                return live, self._absent(pod.name, "NoSuchNode")
            folder = self._attempts.make(pod.name, pod.node)
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
                        self._refusal(pod),
                        self._origins.upload,
                    )
                    write_order(folder, pod, order)
                    self._site.failpoint("launch.ordered")
                    live.runner = self._spawner.spawn(folder)
                    self._site.failpoint("launch.spawned")
                except OSError as error:
                    log.warning("runner not started", pod=pod.name, error=str(error))
                    live.runner = None
            live.busy = False
        return self._look_one(live) if live.runner is None else (live, None)

    def _refusal(self, pod: Pod) -> str:
        """Why a pod's image is refused; an image that is ignored is told once per workflow."""
        if pod.image is None:
            return ""
        if self._images == "refuse":
            return (
                f"the stage asks for the image {pod.image!r}, and this cluster runs processes without images: run it where "
                "images are used, or take `container` out, or start flowsched with --images ignore"
            )
        if pod.workflow not in self._told_images:
            self._told_images.add(pod.workflow)
            log.warning("image ignored", workflow=pod.workflow, stage=pod.stage, image=pod.image)
        return ""

    def _look_one(self, live: _Live) -> tuple[_Live, Sight | None]:
        if live.busy:
            return live, None
        with self._stripe(live.name):
            folder = live.folder = live.folder or self._attempts.find(live.name)
            if folder is None:
                return live, self._absent(live.name, "NotLaunched")
            if not folder.is_dir():
                kin.kill_attempt(folder, kin.UNKNOWN)
                return live, self._absent(live.name, "FolderGone")
            live.runner = _living(live.runner)
            sight = attempts.look(folder, live.runner is not None, live.overdue_at is not None)
            self._site.failpoint("look.seen")
            return live, sight

    def _look_again(self, live: _Live) -> tuple[_Live, Sight | None]:
        """Look; what cannot be seen now (a full disk, a record that somebody changed) is left to the next scan."""
        try:
            return self._look_one(live)
        except (OSError, ValueError, KeyError, TypeError):
            log.exception("attempt not seen", pod=live.name)
            return live, None

    def _release_one(self, live: _Live, grace_ms: int) -> tuple[_Live, Sight | None]:
        with self._stripe(live.name):
            folder = live.folder = live.folder or self._attempts.find(live.name)
            if folder is None or not folder.is_dir():
                return live, self._absent(live.name, "Released")
            sight = attempts.release(folder, grace_ms)
            self._site.failpoint("release.marked")
            return live, sight

    def _absent(self, name: str, reason: str) -> Sight:
        return Sight(final=self._attempts.entomb(name, reason))

    def _read_log(self, name: str, stream: str, offset: int, limit: int) -> tuple[bytes, bool]:
        folder = self._attempts.find(name)
        if stream not in ("stdout", "stderr") or folder is None:
            return b"", False
        finished = attempts.is_finished(folder)  # asked first: then nothing is written after the read
        try:
            with open(folder / stream, "rb") as file:
                file.seek(offset)
                data = file.read(limit)
                return data, not finished or file.tell() < os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return b"", not finished

    def _find_orphans(self, wanted: frozenset[str]) -> list[str]:
        return [
            folder.name
            for folder in self._attempts.all()
            if folder.name not in wanted and not attempts.is_finished(folder) and attempts.is_locked(folder)
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

    def _expire(self, before_ms: int) -> int:
        expired = 0
        for folder in self._attempts.all():
            record = attempts.read_record(folder, "exit.json") or attempts.read_record(folder, "void")
            if record is not None and record["at_ms"] < before_ms:
                attempts.remove_tree(folder)
                expired += 1
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

    async def _measure(self) -> None:
        """What the disk carries, every few seconds."""
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
                kin.kill_runner(live.folder)

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
            return
        del self._live[live.name]
        if isinstance(sight.final, PodEnded) and live.folder is not None:
            self._staging.published(live.folder.parents[1].name, sight.final.outputs)
        self._site.report(sight.final)

    def _stripe(self, name: str) -> threading.Lock:
        return self._stripes[hash(name) % len(self._stripes)]

    async def _in_thread(self, act: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, act, *arguments)


def _reads(pod: Pod) -> frozenset[tuple[str, str]]:
    return frozenset((uri, pod.remote.get(uri, pod.node)) for given in pod.inputs for uri in given.uris)


def _living(runner: tuple[int, int] | None) -> tuple[int, int] | None:
    """The runner, if it still lives."""
    return runner if runner is not None and kin.lives(*runner) else None
