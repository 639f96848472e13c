"""Pods without processes and bytes without files: timers on the event loop's clock, for tests and rehearsals.

A `FakeProcesses` is the world outside of the service: it outlives any `FakeCluster` that is opened over it, so a test can
drop the service at any moment, open another over the same world, and adopt. It watches the promises that an executor's
caller must keep, and writes down in `violations` which were broken.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from flowsched.cluster.event_queue import EventQueue
from flowsched.cluster.local.root_space import Site
from flowsched.cluster.node.rates import TokenBucket
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import (
    ClusterEvent,
    ContainerReport,
    Executor,
    Expired,
    Fingerprint,
    NodeChanged,
    Opened,
    Pod,
    PodEnded,
    PodGone,
    PodStarted,
    Published,
    ReplicaSeen,
    StepEnd,
    Transfer,
    TransferDone,
    TransferFailed,
    Usage,
    UsedImage,
)
from flowsched.values import replace

DEFAULT_RUNTIME_MS: Final = 1000
DEFAULT_SIZE: Final = 1000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What shall become of a pod.

    Args:
        exit_code, reason, message: As in `PodEnded`.
        runtime_ms: How long it runs; None = the pod's hint, else a second.
        start_delay_ms: How long after its launch it starts.
        gone: Reason of a `PodGone` that comes instead of an end (`RunnerLost`, `NodeLost` …).
        never_starts: It neither starts nor ends until it is released.
        ignores_term: A release takes the whole grace.
        sizes, values: Of outputs, by name.
        missing: Names of outputs it does not write.
        returned: What a container task writes into its file `return_code`.
    """

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    runtime_ms: int | None = None
    start_delay_ms: int = 0
    gone: str | None = None
    never_starts: bool = False
    ignores_term: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    returned: int | None = None


ORDINARY: Final = Outcome()


@dataclass(slots=True, eq=False)
class _Attempt:
    pod: Pod
    outcome: Outcome
    moved_bytes: int = 0
    started_ms: int | None = None
    final: PodEnded | PodGone | None = None
    timer: asyncio.TimerHandle | None = None
    released: bool = False


class FakeProcesses:
    """The world of fake pods.

    Args:
        script: What shall become of a pod; default success after its hinted runtime.
        sizes: Bytes of datasets from outside; those not named have the size their transfer says.
        refuse: Why a transfer shall fail, or None. It gets the order and returns a TransferFailed to be completed.
    """

    def __init__(
        self,
        script: Callable[[Pod], Outcome] = lambda _: ORDINARY,
        *,
        sizes: Mapping[str, int] | None = None,
        refuse: Callable[[Transfer], TransferFailed | None] = lambda _: None,
    ) -> None:
        self.script = script
        self.sizes = dict(sizes or {})
        self.refuse = refuse
        self.replicas: dict[str, dict[str, int]] = {}  #: node -> uri -> bytes
        self.versions: dict[str, Fingerprint | str] = {}  #: of datasets from outside
        self.digests: dict[str, str] = {}  #: of images
        self.slow: dict[str, asyncio.Event] = {}  #: datasets that cannot be looked at before their event
        self.violations: list[str] = []
        self.launched: Counter[str] = Counter()  #: times a pod of the name came to be: 1 each, always
        self.moved_bytes: Counter[str] = Counter()
        self._site: Site | None = None
        self._clock = self.clock
        self._attempts: dict[str, _Attempt] = {}
        self._voided: dict[str, PodGone] = {}
        self._running: dict[tuple[str, str, int], str] = {}
        self._used: dict[str, Counter[str]] = {}
        self._links: dict[tuple[str, str], TokenBucket] = {}
        self._coming: dict[tuple[str, str], float] = {}
        self._unclaimed: dict[tuple[str, str], int] = {}

    # --- what a cluster asks -------------------------------------------------------------------------------------------

    async def open(self, site: Site) -> Sequence[NodeInfo]:
        """A service looks at the world: it is told where datasets are, and from now on what happens."""
        self._site = site
        self._clock = site.clock
        for name, node in site.nodes.items():
            self._used.setdefault(name, Counter())
            for uri, size in self.replicas.setdefault(name, {}).items():
                site.report(ReplicaSeen(uri, name, size))
            for way, rate in (("disk", node.disk_rate), ("in", node.nic_in_rate), ("out", node.nic_out_rate)):
                self._links.setdefault((name, way), TokenBucket(rate))
        return list(site.nodes.values())

    def clock(self) -> int:
        """The loop's time: virtual where the loop is."""
        return round(asyncio.get_running_loop().time() * 1000)

    async def close(self) -> None:
        """The service has gone; the world goes on."""
        self._site = None

    async def launch(self, pods: Sequence[Pod]) -> None:
        """Let pods be, unless there are or were such."""
        for pod in pods:
            if pod.name in self._attempts or pod.name in self._voided:
                self._tell_state(pod.name)
                continue
            lost = self._lost_inputs(pod)
            if pod.node not in self.replicas or lost:
                self._void(pod.name, "InputLost" if lost else "NoSuchNode", lost)
                continue
            self.launched[pod.name] += 1
            self._check(pod)
            attempt = self._attempts[pod.name] = _Attempt(pod, self.script(pod))
            attempt.moved_bytes = sum(self._unclaimed.pop((uri, pod.node), 0) for uri in _uris(pod))
            attempt.moved_bytes += sum(self.replicas[at][uri] for uri, at in pod.remote.items())
            self._running[pod.workflow, pod.stage, pod.index] = pod.name
            if not attempt.outcome.never_starts:
                attempt.timer = self._after(attempt.outcome.start_delay_ms, partial(self._start, attempt))

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """Say how each stands; what never was will never be."""
        for pod in pods:
            if pod.name not in self._attempts and pod.name not in self._voided:
                self._void(pod.name, "NotLaunched")
            else:
                self._tell_state(pod.name)

    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        """End pods at once, or after the grace if they ignore the signal."""
        for name in names:
            attempt = self._attempts.get(name)
            if attempt is None and name not in self._voided:
                self._void(name, "Released")
            elif attempt is None or attempt.final is not None:
                self._tell_state(name)
            elif not attempt.released:
                attempt.released = True
                wait_ms = grace_ms if attempt.outcome.ignores_term and attempt.started_ms is not None else 0
                self._after(wait_ms, partial(self._end_released, attempt))

    async def transfer(self, orders: Sequence[Transfer]) -> None:
        """Let bytes arrive when the slowest link on their way lets them."""
        for order in orders:
            self._begin(order)

    async def evict(self, uri: str, node: str) -> bool:
        """Take a dataset from a node, unless a pod there reads it."""
        if any(name for name in self._running.values() if self._reads(name, uri, node)):
            return False
        self.lose_dataset(uri, node)
        return True

    async def logs(self, name: str, stream: str, offset: int, limit: int) -> tuple[bytes, bool]:
        """A fake pod says its own name."""
        attempt = self._attempts.get(name)
        text = f"{name}\n".encode() if attempt and attempt.started_ms and stream == "stdout" else b""
        more = attempt is not None and attempt.final is None
        return text[offset : offset + limit], more or offset + limit < len(text)

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Opened | None:
        """A fake dataset is so many zeros."""
        for node in nodes:
            size = self.replicas.get(node, {}).get(uri)
            if size is not None:
                return Opened(size, False, _zeros(size))
        return None

    async def fingerprints(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """What a test says; a dataset that it does not name was never changed."""
        for uri in uris:
            if uri in self.slow:
                await self.slow[uri].wait()
        same = Fingerprint("1", 0, "1" if by_content else "")
        return {
            uri: self.versions.get(uri, f"there is no {uri}" if "nothing" in uri else same) for uri in uris
        }

    async def image_digests(self, names: Sequence[str]) -> dict[str, str]:
        """What a test says."""
        return {name: self.digests[name] for name in names if name in self.digests}

    async def expire(self, expired: Expired) -> int:
        """Drop the records of ended pods of workflows that have expired."""
        gone = await expired({a.pod.workflow for a in self._attempts.values()})
        old = [name for name, a in self._attempts.items() if a.final is not None and a.pod.workflow in gone]
        for name in old:
            del self._attempts[name]
        return len(old)

    # --- what a test does to the world -----------------------------------------------------------------------

    def lose(self, name: str, reason: str = "RunnerLost") -> None:
        """A pod is lost now."""
        attempt = self._attempts[name]
        started = attempt.started_ms is not None
        self._finish(attempt, PodGone(name, self._now_ms(), reason, started))

    def lose_node(self, node: str) -> None:
        """A node is lost now, with its pods and datasets."""
        for name in [n for n in self._running.values() if self._attempts[n].pod.node == node]:
            self.lose(name, "NodeLost")
        for uri in list(self.replicas[node]):
            self.lose_dataset(uri, node)
        if self._site is not None:
            self._tell(NodeChanged(replace(self._site.nodes[node], ready=False)))

    def lose_dataset(self, uri: str, node: str) -> None:
        """A dataset is no longer on a node."""
        size = self.replicas[node].pop(uri, None)
        if size is not None:
            self._tell(ReplicaSeen(uri, node, size, present=False))

    @property
    def running(self) -> frozenset[str]:
        """Names of pods that have been launched and have not ended."""
        return frozenset(self._running.values())

    # --- pods ------------------------------------------------------------------------------------------------

    def _start(self, attempt: _Attempt) -> None:
        if attempt.final is not None:
            return
        outcome, pod = attempt.outcome, attempt.pod
        attempt.started_ms = self._now_ms()
        self._tell(PodStarted(pod.name, attempt.started_ms))
        runtime = outcome.runtime_ms if outcome.runtime_ms is not None else pod.runtime_hint_ms
        runtime = DEFAULT_RUNTIME_MS if runtime is None else runtime
        timeout = pod.timeout_ms
        if timeout and runtime > timeout:
            attempt.timer = self._after(timeout, partial(self._end, attempt, 143, "Timeout"))
            return
        attempt.timer = self._after(runtime, partial(self._end, attempt, outcome.exit_code, outcome.reason))

    def _end(self, attempt: _Attempt, exit_code: int, reason: str) -> None:
        if attempt.final is not None:
            return
        pod, outcome, now = attempt.pod, attempt.outcome, self._now_ms()
        if outcome.gone is not None and reason == outcome.reason:
            self._finish(attempt, PodGone(pod.name, now, outcome.gone, started=True))
            return
        message = outcome.message
        outputs: tuple[Published, ...] = ()
        if exit_code == 0 and not reason:
            absent = [o.name for o in pod.outputs if o.name in outcome.missing and not o.optional]
            if absent:
                reason, message = "OutputMissing", f"output {absent[0]!r} was not written"
            else:
                outputs = self._publish(pod, outcome)
        total = sum(self.replicas[pod.remote.get(uri, pod.node)].get(uri, 0) for uri in _uris(pod))
        usage = Usage(
            cpu_ms=now - (attempt.started_ms or now),
            bytes_local=total - attempt.moved_bytes,
            bytes_moved=attempt.moved_bytes,
        )
        report = _report(attempt, exit_code, reason, now, self.digests)
        self._finish(attempt, PodEnded(pod.name, now, exit_code, reason, message, outputs, usage, report))

    def _end_released(self, attempt: _Attempt) -> None:
        if attempt.started_ms is not None:
            self._end(attempt, 137 if attempt.outcome.ignores_term else 143, "Released")
        elif attempt.final is None:
            self._finish(attempt, PodGone(attempt.pod.name, self._now_ms(), "Released"))

    def _publish(self, pod: Pod, outcome: Outcome) -> tuple[Published, ...]:
        written = [output for output in pod.outputs if output.name not in outcome.missing]
        published = tuple(
            Published(o.name, o.uri, outcome.sizes.get(o.name, DEFAULT_SIZE), outcome.values.get(o.name))
            for o in written
        )
        self.replicas[pod.node].update({output.uri: output.size_bytes for output in published})
        return published

    def _finish(self, attempt: _Attempt, final: PodEnded | PodGone) -> None:
        if attempt.timer is not None:
            attempt.timer.cancel()
        attempt.final = final
        pod = attempt.pod
        key = (pod.workflow, pod.stage, pod.index)
        if self._running.get(key) == pod.name:
            del self._running[key]
        self._used[pod.node].subtract(_amounts(pod))
        self._tell(final)

    def _void(self, name: str, reason: str, lost: tuple[str, ...] = ()) -> None:
        gone = self._voided[name] = PodGone(name, self._now_ms(), reason, lost_inputs=lost)
        self._tell(gone)

    def _tell_state(self, name: str) -> None:
        if name in self._voided:
            self._tell(self._voided[name])
            return
        attempt = self._attempts[name]
        if attempt.started_ms is not None:
            self._tell(PodStarted(name, attempt.started_ms))
        if attempt.final is not None:
            self._tell(attempt.final)

    def _check(self, pod: Pod) -> None:
        """Write down what a caller must never do: two attempts of a task at once (P2), more than a node has (P6)."""
        other = self._running.get((pod.workflow, pod.stage, pod.index))
        if other is not None:
            self.violations.append(f"P2: {pod.name} was launched while {other} runs")
        used = self._used[pod.node]
        used.update(_amounts(pod))
        assert self._site is not None
        node = self._site.nodes[pod.node]
        room = {"cpu": node.cpu_millicores, "memory": node.memory_bytes, "gpu": node.gpu_millis}
        for key, has in room.items():
            if used[key] > has:
                self.violations.append(f"P6: {pod.name} brings {pod.node} to {used[key]} {key} of {has}")

    def _lost_inputs(self, pod: Pod) -> tuple[str, ...]:
        return tuple(
            uri for uri in _uris(pod) if uri not in self.replicas.get(pod.remote.get(uri, pod.node), {})
        )

    def _reads(self, name: str, uri: str, node: str) -> bool:
        pod = self._attempts[name].pod
        return uri in _uris(pod) and pod.remote.get(uri, pod.node) == node

    # --- bytes -----------------------------------------------------------------------------------------------

    def _begin(self, order: Transfer) -> None:
        failed = self.refuse(order)
        if failed is None and not order.whole:  # it has no bytes that could be in pieces
            failed = replace(
                self._failure(order, f"{order.uri} moves as a whole"), undivided=True, offset=order.offset
            )
        if failed is None and order.dest not in self.replicas:
            failed = self._failure(order, f"there is no node {order.dest!r}", permanent=True)
        if failed is not None:
            self._after(0, partial(self._tell, failed))
            return
        held = self.replicas.get(order.source, {}) if order.source is not None else self.sizes
        size = held.get(order.uri, order.size_bytes)
        now = asyncio.get_running_loop().time()
        key = (order.uri, order.dest)
        if order.uri in self.replicas[order.dest] or (order.source is not None and order.uri not in held):
            arrives = now
        elif key in self._coming:
            arrives = self._coming[key]
        else:
            way = [(order.dest, "in"), (order.dest, "disk")]
            way += [(order.source, "out"), (order.source, "disk")] if order.source is not None else []
            arrives = max(self._links[link].reserve(size, now) for link in way)
            self._coming[key] = arrives
        self._after(round((arrives - now) * 1000), partial(self._arrive, order, size))

    def _arrive(self, order: Transfer, size: int) -> None:
        self._coming.pop((order.uri, order.dest), None)
        there = self.replicas[order.dest].get(order.uri)
        if there is None and order.source is not None and order.uri not in self.replicas[order.source]:
            self._tell(self._failure(order, f"{order.source} no longer has {order.uri}", lost=True))
            return
        moved = size if there is None else 0
        if there is None:
            self.replicas[order.dest][order.uri] = size
            self._unclaimed[order.uri, order.dest] = size
            self.moved_bytes[order.uri] += size
        real = size if there is None else there
        self._tell(TransferDone(order.uri, order.dest, self._now_ms(), moved, order.source, real))

    def _failure(
        self, order: Transfer, message: str, *, lost: bool = False, permanent: bool = False
    ) -> TransferFailed:
        return TransferFailed(order.uri, order.dest, self._now_ms(), message, order.source, lost, permanent)

    # --- time and news ---------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._clock()

    def _after(self, ms: int, act: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(ms / 1000, act)

    def _tell(self, event: ClusterEvent) -> None:
        if self._site is not None:
            self._site.report(event)


def _report(
    attempt: _Attempt, exit_code: int, reason: str, now_ms: int, digests: Mapping[str, str]
) -> ContainerReport | None:
    """Of a container task: all its steps ended well, or the first did not. Of other tasks the image, where its digest is known."""
    container, started, image = attempt.pod.container, attempt.started_ms, attempt.pod.image
    if container is None and image is not None and image in digests:
        return ContainerReport(images=(UsedImage(image, digests[image]),))
    if container is None or started is None:
        return None
    if exit_code or reason:
        return ContainerReport((StepEnd(exit_code, started, now_ms),))
    steps = tuple(StepEnd(0, started, now_ms) for _ in container.steps)
    return ContainerReport(steps, returned=attempt.outcome.returned)


async def _zeros(size: int) -> AsyncGenerator[bytes, None]:
    yield bytes(size)


def _uris(pod: Pod) -> tuple[str, ...]:
    return tuple(dict.fromkeys(uri for given in pod.inputs for uri in given.uris))


def _amounts(pod: Pod) -> dict[str, int]:
    return {"cpu": pod.cpu_millicores, "memory": pod.memory_bytes, "gpu": pod.gpu_millis}


class FakeCluster(Executor):
    """An executor over a world of fakes.

    Args:
        world: It.
        root: Of its identity alone.
        nodes: The virtual nodes.
        clock: Wall-clock ms; default the world's.
    """

    def __init__(
        self,
        world: FakeProcesses,
        root: Path,
        nodes: Sequence[NodeInfo],
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.world = world
        self._queue = EventQueue(is_listening=True)
        by_name = {node.name: node for node in nodes}
        self._site = Site(
            Path(os.path.realpath(root)), by_name, self._queue.put, clock or world.clock, lambda _: None
        )

    @property
    def identity(self) -> str:
        """As a local cluster's."""
        return f"{socket.gethostname()}:{self._site.root}"

    @property
    def remote_reads(self) -> bool:
        """Fake pods read anywhere."""
        return True

    async def start(self) -> Sequence[NodeInfo]:
        """Look at the world."""
        return await self.world.open(self._site)

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """See the world."""
        await self.world.adopt(pods)

    async def launch(self, pods: Sequence[Pod]) -> None:
        """See the world."""
        await self.world.launch(pods)

    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        """See the world. What has ended and was not heard yet is not told twice."""
        told = self._queue.ended()
        await self.world.release([name for name in names if name not in told], grace_ms)

    async def transfer(self, orders: Sequence[Transfer]) -> None:
        """See the world."""
        await self.world.transfer(orders)

    async def evict(self, uri: str, node: str) -> bool:
        """See the world."""
        return await self.world.evict(uri, node)

    def events(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        """What the world reports."""
        return self._queue.batches()

    async def logs(
        self, name: str, stream: str, offset: int, limit: int, node: str = ""
    ) -> tuple[bytes, bool]:
        """See the world."""
        return await self.world.logs(name, stream, offset, limit)

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Opened | None:
        """See the world."""
        return await self.world.open_dataset(uri, [*nodes, *self._site.nodes])

    async def fingerprints(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """See the world."""
        return await self.world.fingerprints(uris, by_content=by_content)

    async def image_digests(self, names: Sequence[str]) -> dict[str, str]:
        """See the world."""
        return await self.world.image_digests(names)

    async def expire(self, expired: Expired) -> int:
        """See the world."""
        return await self.world.expire(expired)

    async def stop(self) -> None:
        """The world goes on."""
        await self.world.close()
        self._queue.close()
