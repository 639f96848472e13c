"""LocalCluster: virtual nodes on this machine, the embedded default of flowsched.

It keeps the queue of events and one process at a time on a root; how pods run and bytes move is up to `Processes`:
`processes.RunnerProcesses` starts real ones; tests put timers in their place.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from flowsched.cluster.local.pairing import pair
from flowsched.cluster.local.processes import RunnerProcesses
from flowsched.cluster.local.virtual_nodes import Site
from flowsched.cluster.node.folder_lock import holder_of, lock_folder
from flowsched.errors import ConfigurationError
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import (
    ClusterEvent,
    Executor,
    Expired,
    Fingerprint,
    Opened,
    Pairing,
    Pod,
    PodEnded,
    PodGone,
    ReplicaSeen,
    Transfer,
)
from flowsched.log_lines import get_logger
from flowsched.workflow.spec import Container

log = get_logger(__name__)

#: How long to wait for another process to let go of the root: a predecessor may still be closing.
ROOT_WAIT_S = 5.0


class Processes(Protocol):
    """How pods run and bytes move. Everything is reported through `site.report`."""

    on_disk: bool  #: whether it works in the site's root, which one service at a time may use

    def clock(self) -> int:
        """Milliseconds, for the times in events, unless the cluster is given another clock."""
        ...

    async def open(self, site: Site) -> Sequence[NodeInfo]:
        """Look at what is there, and report it (replicas). Returns the nodes as they are now."""
        ...

    async def used(self) -> tuple[bool, Sequence[str]]:
        """Whether attempts were made here, and those that run."""
        ...

    async def replace(self, former: Path) -> int:
        """End what runs of another root of this machine; returns how many runners and tasks."""
        ...

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """See `Executor.adopt`."""
        ...

    async def launch(self, pods: Sequence[Pod]) -> None:
        """See `Executor.launch`."""
        ...

    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        """See `Executor.release`."""
        ...

    async def transfer(self, orders: Sequence[Transfer]) -> None:
        """See `Executor.transfer`."""
        ...

    async def evict(self, uri: str, node: str) -> bool:
        """Remove a dataset from a node's cache, unless a live attempt reads it."""
        ...

    async def logs(self, name: str, stream: str, offset: int, limit: int) -> tuple[bytes, bool]:
        """See `Executor.logs`."""
        ...

    async def log_size(self, name: str, stream: str) -> int:
        """See `Executor.log_size`."""
        ...

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Opened | None:
        """See `Executor.open_dataset`."""
        ...

    async def fingerprints(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """See `Executor.fingerprints`."""
        ...

    async def lost_copies(self, uris: Sequence[str]) -> Sequence[ReplicaSeen]:
        """See `Executor.lost_copies`."""
        ...

    async def image_digests(self, names: Sequence[str]) -> dict[str, str]:
        """See `Executor.image_digests`."""
        ...

    async def leave(self, containers: Sequence[Container]) -> None:
        """See `Executor.leave`."""
        ...

    async def orphans(self) -> Sequence[str]:
        """Attempts that run although the service did not ask for them."""
        ...

    async def settle(self, names: Sequence[str]) -> None:
        """See `Executor.settle`."""
        ...

    @property
    def trouble(self) -> str:
        """See `Executor.trouble`."""
        ...

    async def forget(self, names: Sequence[str]) -> None:
        """Remove what finished attempts left, but for their logs and records."""
        ...

    def flows(self) -> Mapping[str, tuple[int, int]]:
        """Node -> (bytes in, bytes out) that were really copied."""
        ...

    async def expire(self, expired: Expired) -> int:
        """See `Executor.expire`."""
        ...

    async def close(self) -> None:
        """Release all resources of the service. Running attempts continue."""
        ...


class LocalCluster(Executor):
    """An Executor on this machine.

    Args:
        root: Folder of the cluster; one service at a time.
        nodes: The virtual nodes, see `nodes.virtual_nodes`.
        processes: How pods run; default real processes.
        clock: Wall-clock ms, for the times in events; default the one of `processes`.
        failpoint: See `Site`.
    """

    def __init__(
        self,
        root: Path,
        nodes: Sequence[NodeInfo],
        *,
        processes: Processes | None = None,
        clock: Callable[[], int] | None = None,
        failpoint: Callable[[str], object] = lambda _: None,
    ) -> None:
        if processes is None:
            processes = RunnerProcesses()
        self.nodes = tuple(nodes)
        self.processes = processes
        folder, by_name = Path(os.path.realpath(root)), {node.name: node for node in nodes}
        self._site = Site(folder, by_name, self._report, clock or processes.clock, failpoint)
        self._queue: list[ClusterEvent] = []
        self._finals: set[str] = set()  #: pods with their final event in the queue
        self._news = asyncio.Event()
        self._closed = False
        self._lock: int | None = None

    @property
    def identity(self) -> str:
        """The machine and the root folder."""
        return f"{socket.gethostname()}:{self._site.root}"

    @property
    def trouble(self) -> str:
        """Which file system is full, in words; "" = there is room."""
        return self.processes.trouble

    @property
    def remote_reads(self) -> bool:
        """True: all nodes' caches are on one machine."""
        return True

    async def start(self) -> Sequence[NodeInfo]:
        """Open it, and say which nodes there are. Replicas in their caches follow as events.

        Raises:
            ConfigurationError: Another process uses the root.
        """
        if self.processes.on_disk and self._lock is None:
            root = self._site.root
            self._lock = await lock_folder(
                root,
                ROOT_WAIT_S,
                lambda pid: f"process {pid} runs the local cluster in {root}: stop it, or use another folder",
            )
        return await self.processes.open(self._site)

    async def pair(self, pairing: Pairing) -> str:
        """Note the database in the root. See `Executor.pair`.

        Raises:
            ConfigurationError: A service still runs the cluster that this one replaces, or tasks of another database run here.
        """
        if not self.processes.on_disk:
            return ""
        root = self._site.root
        host, _, former = pairing.replaces.partition(":")
        if former and host == socket.gethostname():
            await self._replace(Path(former))
        is_used, running = await self.processes.used()
        return await asyncio.to_thread(pair, root, pairing, is_used=is_used, running=running)

    async def _replace(self, former: Path) -> None:
        """End what runs of another root of this machine, whose place this one takes: its tasks would run a second time."""
        root = self._site.root
        holder = await asyncio.to_thread(holder_of, former)
        if holder not in ("", str(os.getpid())):  # a link at the former place leads here
            raise ConfigurationError(
                f"process {holder} runs the local cluster in {former}, whose place {root} is to take: stop it first"
            )
        ended = await self.processes.replace(former)
        if ended:
            log.warning(
                "the root has another place than before: tasks that ran were ended, and run again",
                former=str(former),
                ended=ended,
            )

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """Take over pods that were intended or running: see `Executor.adopt`."""
        await self.processes.adopt(pods)

    async def launch(self, pods: Sequence[Pod]) -> None:
        """Start pods; returns once their runners are spawned. Outcomes come as events."""
        await self.processes.launch(pods)

    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        """End pods. A final event follows for each, or is waiting in the queue already."""
        await self.processes.release([name for name in names if name not in self._finals], grace_ms)

    async def transfer(self, orders: Sequence[Transfer]) -> None:
        """Start copying; returns at once."""
        await self.processes.transfer(orders)

    async def evict(self, uri: str, node: str) -> bool:
        """Remove a dataset from a node's cache (ReplicaSeen follows); False while a live attempt reads it."""
        return await self.processes.evict(uri, node)

    async def events(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        """Yield events in batches, in order per pod; ends after `stop`. One reader."""
        while True:
            await self._news.wait()
            self._news.clear()
            batch, self._queue = self._queue, []
            self._finals.clear()
            if batch:
                yield batch
            if self._closed and not self._queue:
                return

    async def settle(self, names: Sequence[str]) -> None:
        """Keep of these attempts only what people look at, in as few files as possible."""
        await self.processes.settle(names)

    async def logs(
        self, name: str, stream: str, offset: int, limit: int, node: str = ""
    ) -> tuple[bytes, bool]:
        """Bytes of `stdout` or `stderr` from `offset`, and whether more may come."""
        return await self.processes.logs(name, stream, offset, limit)

    async def log_size(self, name: str, stream: str, node: str = "") -> int:
        """What its file has."""
        return await self.processes.log_size(name, stream)

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Opened | None:
        """Read a dataset from the cache of the first node that has it; None if none has."""
        others = [node.name for node in self.nodes if node.name not in nodes]
        return await self.processes.open_dataset(uri, [*nodes, *others])

    async def fingerprints(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """What identifies datasets, as this machine sees them."""
        return await self.processes.fingerprints(uris, by_content=by_content)

    async def lost_copies(self, uris: Sequence[str]) -> Sequence[ReplicaSeen]:
        """Copies that are in no cache any more."""
        return await self.processes.lost_copies(uris)

    async def image_digests(self, names: Sequence[str]) -> dict[str, str]:
        """Of the images that this machine has."""
        return await self.processes.image_digests(names)

    async def leave(self, containers: Sequence[Container]) -> None:
        """Write what cancelled container tasks leave."""
        await self.processes.leave(containers)

    async def orphans(self) -> Sequence[str]:
        """Attempts that run although the service did not ask for them: report them, and release them after a grace."""
        return await self.processes.orphans()

    async def forget(self, names: Sequence[str]) -> None:
        """Remove the working folders of finished attempts; logs and exit records stay."""
        await self.processes.forget(names)

    def flows(self) -> Mapping[str, tuple[int, int]]:
        """Node -> (bytes in, bytes out) that were really copied since the start."""
        return self.processes.flows()

    async def expire(self, expired: Expired) -> int:
        """Remove logs and records of finished attempts of workflows that have expired; returns how many."""
        return await self.processes.expire(expired)

    async def stop(self) -> None:
        """Close it. Running pods go on: a restarted service adopts them. A second time does nothing."""
        if self._closed:
            return
        self._closed = True
        await self.processes.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._news.set()

    def _report(self, event: ClusterEvent) -> None:
        self._queue.append(event)
        if isinstance(event, PodEnded | PodGone):
            self._finals.add(event.name)
        self._news.set()
