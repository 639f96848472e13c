"""The simulated world: pods read, compute and write; bytes move; page caches keep what was read last.

It decides nothing. The scheduler (the engine, or a rival) starts jobs and copies, and is told their outcomes; all of it is
written down as the lines of a trace. Seconds and bytes, on a virtual clock.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final

from flowsched.simulation.clusters import SimulatedCluster
from flowsched.simulation.network import Network
from flowsched.simulation.reading import DiskReads, Input, PageCache
from flowsched.simulation.reading import Running as Running
from flowsched.simulation.workload import File, Job, Workload

#: The number of the shared storage as a place; nodes are 0 … N-1.
STORAGE: Final = -1
#: A file of a workload: (number of the workload, number of the file).
FileId = tuple[int, int]
Action = Callable[[], None]


class Stopped(Exception):
    """Another thread has stopped this world."""


class World:
    """The cluster, its clock, and everything that is under way.

    Attributes:
        cluster, workloads: The simulated cluster and its workloads.
        now: Seconds.
        free: (N) cores not taken, by node.
        readers: How many jobs read each file.
        at: Places of each file that is whole somewhere: STORAGE or nodes.
        lines: The trace so far.
        ended: How many jobs have come to a good end.
        asked: How many jobs there are, but for those that need not run.
        unfinished: The stages that have not succeeded when no event is left, and why. The policy sets it.
        stopped: Another thread sets this, and nothing more happens.
    """

    def __init__(self, cluster: SimulatedCluster, workloads: Sequence[Workload]) -> None:
        self.cluster, self.workloads = cluster, tuple(workloads)
        capacities: list[float] = []
        for node in cluster.nodes:
            capacities += [float(node.disk), float(node.nic_in), float(node.nic_out)]
        storage = cluster.storage
        capacities += [float(storage.disk), float(storage.nic_in), float(storage.nic_out)]
        seeks = [node.seek_percent / 100 for node in cluster.nodes] + [storage.seek_percent / 100]
        self.network = Network(capacities, [part for seek in seeks for part in (seek, 0.0, 0.0)])
        self.free = [float(node.cores) for node in cluster.nodes]
        self.caches = [PageCache(node.cache) for node in cluster.nodes]
        self.at: dict[FileId, set[int]] = {}
        self.readers: Counter[FileId] = Counter()
        for number, workload in enumerate(self.workloads):
            for file, entry in enumerate(workload.files):
                self.at[number, file] = {STORAGE} if entry.producer is None else set()
            self.readers.update((number, file) for job in workload.jobs for file in job.inputs)
        self.lines: list[dict[str, Any]] = []
        self.ended = 0
        self.asked = sum(len(workload.jobs) - len(workload.skipped) for workload in self.workloads)
        self.unfinished: list[str] = []
        self.stopped = False
        self._timers: list[tuple[float, int, Action]] = []
        self._actions: dict[Hashable, Action] = {}
        self._reading: dict[tuple[int, FileId], list[Action]] = {}
        self._disk_reads = DiskReads(self)
        self._number = 0

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.network.now

    def file(self, file: FileId) -> File:
        """The description of a file."""
        return self.workloads[file[0]].files[file[1]]

    # ---- the clock ----

    def later(self, moment: float, action: Action) -> None:
        """Do something at a moment."""
        self._number += 1
        heapq.heappush(self._timers, (max(moment, self.now), self._number, action))

    def next_moment(self) -> float | None:
        """When something happens next; None = never."""
        end = self.network.next_end()
        if self._timers and (end is None or self._timers[0][0] <= end):
            return self._timers[0][0]
        return end

    def proceed(self, until: float) -> None:
        """Let everything happen up to a moment.

        Raises:
            Stopped: `stopped` is set.
        """
        if self.stopped:
            raise Stopped
        while True:
            moment = self.next_moment()
            if moment is None or moment > until:
                break
            self._advance(moment)
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
        if until > self.now:
            self._advance(until)  # a flow that ends within a nanosecond of that has ended too

    def _advance(self, moment: float) -> None:
        for flow in self.network.advance(moment):
            self._actions.pop(flow)()

    def flow(self, size: float, path: Sequence[int], action: Action) -> int:
        """Bytes begin to move over these resources; `action` follows when all are through. Returns its number."""
        self._number += 1
        number = self._number
        if size <= 0:
            self.later(self.now, action)
            return number
        self._actions[number] = action
        self.network.start(number, size, path)
        return number

    # ---- moving bytes ----

    def path(self, file: FileId, source: int, dest: int, *, keep: bool) -> tuple[int, ...]:
        """The resources a copy uses; `keep`: it is written to the destination's disk."""
        storage = 3 * len(self.cluster.nodes)
        if source == STORAGE:
            used = [storage, storage + 2]
        else:
            used = [3 * source + 2] + ([] if file in self.caches[source] else [3 * source])
        if dest == STORAGE:
            used += [storage, storage + 1]
        else:
            used += [3 * dest + 1] + ([3 * dest] if keep else [])
        return tuple(used)

    def copy(
        self,
        file: FileId,
        source: int,
        dest: int,
        kind: str,
        action: Action,
        *,
        task: str | None = None,
        piece: tuple[int, int] | None = None,
    ) -> int:
        """Copy a file, or a piece of it (offset, bytes), from a place to another. Returns the number of its flow."""
        began, size = self.now, piece[1] if piece else self.file(file).size

        def done() -> None:
            if kind != "read":
                if piece is None:
                    self.at[file].add(dest)
                if dest != STORAGE:
                    self.caches[dest].touch(file, self.file(file).size)
            self._moved(file, size, source, dest, began, kind, task, piece)
            action()

        return self.flow(size, self.path(file, source, dest, keep=kind != "read"), done)

    def _moved(
        self,
        file: FileId,
        size: int,
        source: int,
        dest: int,
        began: float,
        kind: str,
        task: str | None,
        piece: tuple[int, int] | None = None,
    ) -> None:
        line = {
            "transfer": self.file(file).name, "workflow": self.workloads[file[0]].name, "bytes": size,
            "from": self.place(source), "to": self.place(dest), "start": began, "end": self.now,
            "kind": kind, "for": task,
        }  # fmt: skip
        if piece is not None:
            line["offset"] = piece[0]
        self.lines.append(line)

    def place(self, place: int) -> str:
        """The name of a place."""
        return self.cluster.storage.name if place == STORAGE else self.cluster.nodes[place].name

    def drop(self, file: FileId, node: int) -> None:
        """A node's disk, and its memory, do not hold a file any more."""
        self.at[file].discard(node)
        self.caches[node].forget(file)

    # ---- running jobs ----

    def job(self, running: Running) -> Job:
        """The job of a running attempt."""
        return self.workloads[running.workload].jobs[running.job]

    def run(self, running: Running) -> None:
        """An attempt begins: its cores are taken now."""
        job = self.job(running)
        self.free[running.node] -= job.cores
        assert self.free[running.node] > -1e-6, f"{job.name}: no cores left on node {running.node}"
        self.later(self.now + self.cluster.startup, lambda: self._read(running))

    def _read(self, running: Running) -> None:
        """Bring the inputs to the node, or read them on the storage."""
        if running.over:  # lost while it started
            return
        job, node = self.job(running), running.node
        fetched = dict(running.fetch)
        running.waiting = 1

        def arrived() -> None:
            running.waiting -= 1
            if running.waiting == 0 and not running.over:
                self._read_disk(running)

        for number in job.inputs:
            file = (running.workload, number)
            running.waiting += 1
            if number in running.direct:
                self.copy(file, STORAGE, node, "read", arrived, task=job.name)
            elif number in running.remote:
                self.copy(file, running.remote[number], node, "read", arrived, task=job.name)
            elif running.shared or number in running.mounted:
                self._read_mounted(running, number, arrived)
            elif number in fetched and node not in self.at[file]:
                self._once(file, node, arrived, partial(self._fetch, file, fetched[number], node, job.name))
            else:
                assert node in self.at[file], (
                    f"{job.name} reads {self.file(file).name}, which is not on node {node}"
                )
                arrived()
        arrived()

    def _read_disk(self, running: Running) -> None:
        """Read the inputs that memory does not hold; then compute."""
        files = self.workloads[running.workload].files
        inputs = [
            Input(files[number].name, (running.workload, number), files[number].size)
            for number in self.job(running).inputs
            if number not in running.direct and number not in running.remote
        ]
        self._disk_reads.read(running, self.job(running).name, inputs, lambda: self._compute(running))

    def _read_mounted(self, running: Running, number: int, action: Action) -> None:
        """Read a file from the storage, unless the node's memory holds it.

        A file that several tasks read is cached, for all that read it meanwhile on this node, and goes through the disk
        like any copy. A file that only one task reads is not.
        """
        file, node, job = (running.workload, number), running.node, self.job(running)
        if file in self.caches[node]:
            action()
        elif self.readers[file] == 1:
            running.direct |= {number}
            self.copy(file, STORAGE, node, "read", action, task=job.name)
        else:
            self._once(file, node, action, partial(self._fetch, file, STORAGE, node, job.name))

    def _fetch(self, file: FileId, source: int, node: int, task: str, action: Action) -> None:
        self.copy(file, source, node, "stage", action, task=task)

    def _once(self, file: FileId, node: int, action: Action, begin: Callable[[Action], object]) -> None:
        """A task that wants a file on a node while it is being brought there, or read, waits for the same bytes."""
        actions = self._reading.get((node, file))
        if actions is not None:
            actions.append(action)
            return
        self._reading[node, file] = [action]

        def done() -> None:
            for each in self._reading.pop((node, file)):
                each()

        begin(done)

    def _compute(self, running: Running) -> None:
        running.run_start = self.now
        self.later(self.now + self.job(running).compute_s, lambda: self._write(running))

    def _write(self, running: Running) -> None:
        """Write the outputs: to the node's disk, or straight to the storage."""
        if running.over:
            return
        job, node = self.job(running), running.node
        running.run_end = self.now
        running.waiting = 1

        local = [number for number in job.outputs if not running.shared and number not in running.straight]
        away = [number for number in job.outputs if number not in local]

        def written() -> None:
            running.waiting -= 1
            if running.waiting or running.over:
                return
            if away:
                running.waiting = len(away)
                files = [(running.workload, away.pop()) for _ in range(len(away))][::-1]
                for file in files:
                    self._upload_straight(file, node, job.name, written)
            else:
                self._end(running)

        for number in local:
            running.waiting += 1
            size = self.file((running.workload, number)).size
            running.disk_bytes += size
            self.flow(size, (3 * node,), written)
        written()

    def _upload_straight(self, file: FileId, node: int, task: str, action: Action) -> None:
        began, size = self.now, self.file(file).size
        storage = 3 * len(self.cluster.nodes)

        def done() -> None:
            self._moved(file, size, node, STORAGE, began, "upload", task)
            self.at[file].add(STORAGE)
            self.caches[node].touch(file, size)
            action()

        self.flow(size, (3 * node + 2, storage, storage + 1), done)

    def _end(self, running: Running) -> None:
        job, node = self.job(running), running.node
        running.over = True
        self.ended += 1
        self.free[node] += job.cores
        for number in job.outputs:
            file = (running.workload, number)
            if not running.shared and number not in running.straight:
                self.at[file].add(node)
                self.caches[node].touch(file, self.file(file).size)
        self._ran(running)
        running.ended()

    def lose(self, running: Running, outcome: str) -> None:
        """An attempt is evicted or lost: its work is worth nothing."""
        if running.over:
            return
        running.over, running.outcome = True, outcome
        self._disk_reads.lost(running)
        running.run_start = max(running.run_start, running.start)
        running.run_end = max(running.run_end, running.run_start)
        self.free[running.node] += self.job(running).cores
        self._ran(running)

    def fail(self, node: int) -> list[int]:
        """A node is gone, with its files and its memory. The caller loses the attempts that it started there (`lose`).

        Returns:
            The numbers of the flows over it that broke off; nothing follows them.
        """
        broken: list[int] = []
        for flow in self.network.over(range(3 * node, 3 * node + 3)):
            assert isinstance(flow, int)
            self.network.stop(flow)
            del self._actions[flow]
            broken.append(flow)
        for key in [key for key in self._reading if key[0] == node]:
            del self._reading[key]
        self._disk_reads.fail(node)
        for places in self.at.values():
            places.discard(node)
        self.caches[node] = PageCache(self.cluster.nodes[node].cache)
        return broken

    def _ran(self, running: Running) -> None:
        job = self.job(running)
        self.lines.append({
            "task": job.name, "workflow": self.workloads[running.workload].name,
            "node": self.cluster.nodes[running.node].name, "cores": job.cores, "ready": running.ready,
            "start": running.start, "run_start": running.run_start, "run_end": running.run_end, "end": self.now,
            "attempt": running.attempt, "outcome": running.outcome,
        })  # fmt: skip
