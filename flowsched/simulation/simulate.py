"""The service's own decisions on a simulated cluster: `engine.step` on a virtual clock, around it the fluid world.

No code that decides sees the truth: the engine knows documents, expectations, and the cluster's reports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flowsched.engine.events import Accepted, EngineEvent, Stored, Tick
from flowsched.engine.explain import explain
from flowsched.engine.recovery import make_run
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.step import Step, step
from flowsched.executor.datasets import INTERMEDIATE
from flowsched.executor.nodes import Load, LoadMeasured
from flowsched.executor.protocol import (
    NodeChanged,
    Pod,
    PodEnded,
    PodGone,
    PodStarted,
    Published,
    ReplicaSeen,
    Transfer,
    TransferDone,
    TransferFailed,
    Usage,
)
from flowsched.scheduling.plan import ReasonCode
from flowsched.scheduling.policy.framework import Profile, Storage
from flowsched.scheduling.transfers import TransferLimits
from flowsched.simulation.clusters import Loss, SimulatedCluster
from flowsched.simulation.reading import Running
from flowsched.simulation.workload import Submission, Workload
from flowsched.simulation.world import STORAGE, FileId, World
from flowsched.values import replace
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.run.states import RunState, TaskState

#: Datasets of twice this size and more move in pieces.
PIECE_BYTES = 128_000_000
#: So many finals are on their way from one node to the storage at a time.
_UPLOADS_A_NODE = 2


class _Clients:
    """The clients of the workloads.

    Attributes:
        submitted: Their submissions, by run of the engine, with the number of the workload.
        ended: The moment at which each job of each workload has ended.
    """

    def __init__(self, workloads: Sequence[Workload]) -> None:
        self.submitted: dict[str, tuple[int, Submission]] = {}
        self.ended: dict[tuple[int, int], float] = {}
        self._waiting: dict[tuple[int, int], list[Submission]] = {}  # by job that must have succeeded
        self._missing: dict[Submission, int] = {}  # how many such jobs
        for number, workload in enumerate(workloads):
            for each in workload.submissions:
                self._missing[each] = len(each.after)
                for parent in each.after:
                    self._waiting.setdefault((number, parent), []).append(each)

    def learn(self, run: str) -> tuple[int, list[Submission]]:
        """A client learns that a run has succeeded. Returns the number of its workload, and the
        submissions that waited for this alone.
        """
        number, submission = self.submitted[run]
        ready = []
        for job in submission.numbers.values():
            for each in self._waiting.pop((number, job), ()):
                self._missing[each] -= 1
                if not self._missing[each]:
                    ready.append(each)
        return number, ready


@dataclass(slots=True)
class Simulation:
    """One run.

    Args:
        cluster: The cluster.
        workloads: The workloads; the engine knows their submissions as `w0`, `w1` and so on, in the order of their arrival.
        measure_s: So often nodes' disks and the storage are measured, as a service would; 0 = never.
        profile: The policy. Without locality, tasks read from and write to the shared storage, as stock clusters do.
        losses: Which nodes are lost, and when.
    """

    cluster: SimulatedCluster
    workloads: Sequence[Workload]
    profile: Profile
    state: EngineState = field(init=False)
    world: World = field(init=False)
    steps: int = 0
    evicted_bytes: int = 0  #: that were dropped to make room, on all nodes
    _events: list[EngineEvent] = field(default_factory=list)
    _running: dict[str, Running] = field(default_factory=dict)
    _files: dict[str, FileId] = field(default_factory=dict)
    _uris: dict[FileId, str] = field(default_factory=dict)  #: of outputs
    _clients: _Clients = field(init=False)
    _uploads: list[list[FileId]] = field(default_factory=list)
    _uploading: list[int] = field(default_factory=list)
    _pieces: dict[tuple[FileId, int], set[tuple[int, int]]] = field(default_factory=dict)
    limits: TransferLimits | None = None
    losses: Sequence[Loss] = ()
    measure_s: float = 0.0  #: how often disks and the storage are measured; 0 = never
    _moving: dict[int, Transfer] = field(default_factory=dict)
    _down: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = self.limits or limits_of(self.cluster)
        # Inputs from outside come from this cluster's storage.
        self.profile = replace(self.profile, origin_rate=limits.origin_rate)
        if not self.profile.locality and not self.profile.storages:
            self.profile = replace(self.profile, storages=(shared_by(self.cluster),))
        self.state = EngineState(
            policy=PolicyState(profile=self.profile, mounted=not self.profile.locality, remote_reads=True)
        )
        self.state.cluster.transfer_limits = limits
        self.world = World(self.cluster, self.workloads)
        self._clients = _Clients(self.workloads)
        self._uploads = [[] for _ in self.cluster.nodes]
        self._uploading = [0] * len(self.cluster.nodes)

    def run(self) -> World:
        """Let everything happen. Returns the world, with the trace."""
        self._events += [NodeChanged(node.info()) for node in self.cluster.nodes]
        for number, workload in enumerate(self.workloads):
            first = [each for each in workload.submissions if not each.after]
            self.world.later(workload.arrival_s, partial(self._submit, number, first))
        for loss in self.losses:
            self.world.later(loss.at_s, lambda node=loss.node: self._lose(node))  # type: ignore[misc]
            if loss.back_s is not None:
                self.world.later(loss.back_s, lambda node=loss.node: self._come_back(node))  # type: ignore[misc]
        if self.measure_s:
            links = len(self.world.network.capacities)
            self.world.network.carried = ([0.0] * links, [0.0] * links)
            self.world.later(self.measure_s, self._measure)
        while True:
            moment = self.world.next_moment()
            if moment is None:
                break
            now = math.ceil(moment * 1000 - 1e-6)
            self.world.proceed(max(moment, now / 1000))
            if self._events:
                self._step(now)
        for run in self.state.work.runs.values():
            self._note_end(run)
        return self.world

    def _note_end(self, run: WorkflowRun) -> None:
        """Note the tasks of a workflow that need not run, or will never end. `run` has ended, or nothing happens any more."""
        number, submission = self._clients.submitted[run.id]
        workload = self.workloads[number]
        name = workload.name
        if run.state is RunState.SUCCEEDED:
            skipped = int(run.counts[:, TaskState.SKIPPED].sum())
            foreseen = sum(job in workload.skipped for job in submission.numbers.values())
            self.world.asked += foreseen - skipped
        elif run.state.terminal:
            self.world.unfinished.append(f"{name}: {run.reason or run.state.value}")
        else:
            reasons = explain(self.state, run, self._now_ms(), forecast=False)
            first = [each for each in reasons if each.code != ReasonCode.WAITING_FOR_PARENTS.value]
            self.world.unfinished += [
                unfinished_text(name, each.stage, each.tasks, each.message) for each in first or reasons
            ]

    def _submit(self, number: int, submissions: Sequence[Submission]) -> None:
        """The client of a workload submits some of it. The service finds out the sizes of files that are on the storage.

        An engine's task reads what earlier tasks wrote by its URL. With locality, such a version lies on nodes alone.
        """
        workload = self.workloads[number]
        for submission in submissions:
            versions = {}
            for uri, file in submission.files.items():
                self._files[uri] = number, file
                if self.profile.locality and workload.files[file].producer is not None:
                    versions[uri] = self._uris[number, file] = f"{INTERMEDIATE}{uri}"
                    self._files[versions[uri]] = number, file
                elif STORAGE in self.world.at[number, file]:
                    self.state.cluster.catalogue.intern(uri, workload.files[file].size, True)
            seq = len(self._clients.submitted)
            run = make_run(self.state, f"w{seq}", submission.spec, seq)
            run.versions.update(versions)
            self._clients.submitted[run.id] = number, submission
            self._events.append(Accepted(run))

    def _measure(self) -> None:
        """Report the disk rates since the last call. A pod's own flows are those over nothing but its node's disk."""
        carried = self.world.network.carried
        assert carried is not None  # since `run`
        every, own = carried
        rates = [int(each / self.measure_s) for each in every]
        nodes = [
            Load(node.name, rates[3 * at], int(own[3 * at] / self.measure_s))
            for at, node in enumerate(self.cluster.nodes)
        ]
        at, name = 3 * len(self.cluster.nodes), self.cluster.storage.name
        storages = (Load(f"{name}/read", rates[at + 2]), Load(f"{name}/write", rates[at + 1]))
        self.world.network.carried = ([0.0] * len(every), [0.0] * len(every))
        self._events.append(LoadMeasured(tuple(nodes), storages))
        if self.state.work.runs or self.world.now < max(each.arrival_s for each in self.workloads):
            self.world.later(self.world.now + self.measure_s, self._measure)

    def _step(self, now: int) -> None:
        events, self._events = self._events, []
        result = step(self.state, events, now)
        self.steps += 1
        for workflow in result.ended:
            self._note_end(self.state.work.runs[workflow])
            if self.state.work.runs[workflow].state is RunState.SUCCEEDED:
                number, ready = self._clients.learn(workflow)
                if ready:
                    self.world.later(self.world.now, partial(self._submit, number, ready))
        result.keep()
        self._act(result, now)

    def _act(self, result: Step, now: int) -> None:
        for pod in result.launches:
            self._launch(pod, now)
        for name in result.releases:
            self._release(name, now)
        for drop in result.drops:
            self.evicted_bytes += drop.size_bytes
            self.world.drop(self._files[drop.uri], self.state.cluster.snapshot.index[drop.node])
        for order in result.transfers:
            self._transfer(order)
        if result.wake_ms is not None:
            self.world.later(max(result.wake_ms, now + 1) / 1000, lambda: self._events.append(Tick()))

    # ---- pods ----

    def _launch(self, pod: Pod, now: int) -> None:
        number, submission = self._clients.submitted[pod.workflow]
        workload = self.workloads[number]
        job = submission.numbers[pod.stage, pod.index]
        ready = max(
            (
                self._clients.ended.get((number, parent), workload.arrival_s)
                for parent in workload.jobs[job].parents
            ),
            default=workload.arrival_s,
        )
        running = Running(
            workload=number,
            job=job,
            node=self.state.cluster.snapshot.index[pod.node],
            ready=ready,
            start=self.world.now,
            attempt=pod.attempt,
            shared=not self.profile.locality,
            remote={
                self._files[uri][1]: self.state.cluster.snapshot.index[at] for uri, at in pod.remote.items()
            },
        )
        running.ended = lambda: self._ended(pod, running)
        self._running[pod.name] = running
        self._events.append(PodStarted(pod.name, now))
        if pod.timeout_ms is not None:
            self.world.later(
                self.world.now + pod.timeout_ms / 1000, lambda: self._time_out(pod.name, running)
            )
        self.world.run(running)

    def _time_out(self, name: str, running: Running) -> None:
        """An attempt has run for as long as its task may."""
        if self._running.get(name) is running:
            del self._running[name]
            self.world.lose(running, "timeout")
            self._events.append(PodEnded(name, self._now_ms(), 143, "Timeout"))

    def _release(self, name: str, now: int) -> None:
        """Take a pod away, as the engine ordered: its gang has done its work, or another group needs the room."""
        running = self._running.pop(name, None)
        if running is not None:
            ref = self.state.work.pods.get(name)
            run = None if ref is None else self.state.work.runs.get(ref.workflow)
            done = ref is None or run is None or run.stages[ref.stage].goal[ref.task] == TaskState.SUCCEEDED
            self.world.lose(running, "released" if done else "evicted")
            self._events.append(PodEnded(name, now, 143, "Released"))

    def _ended(self, pod: Pod, running: Running) -> None:
        del self._running[pod.name]
        workload = self.workloads[running.workload]
        job = workload.jobs[running.job]
        self._clients.ended[running.workload, running.job] = self.world.now
        of = dict(zip(job.slots, job.outputs, strict=True))
        published = []
        for output in pod.outputs:
            file = (running.workload, of[output.name])
            self._files[output.uri] = file
            self._uris[file] = output.uri
            published.append(Published(output.name, output.uri, self.world.file(file).size))
        written = [(running.workload, number) for number in job.outputs] if not running.shared else []
        if workload.by_task:  # of the files that a container leaves, the executor reports the copies
            self._events += [
                ReplicaSeen(self._uris[file], pod.node, self.world.file(file).size) for file in written
            ]
        if workload.keep_final:
            self._uploads[running.node] += [file for file in written if self.world.file(file).final]
        self._upload(running.node)
        used = self._used(running)
        self._events.append(PodEnded(pod.name, self._now_ms(), 0, outputs=tuple(published), usage=used))

    def _used(self, running: Running) -> Usage:
        """The usage that an executor would measure: CPU time, bytes through system calls, and bytes of a disk."""
        workload = self.workloads[running.workload]
        job = workload.jobs[running.job]
        read, wrote = (sum(workload.files[at].size for at in files) for files in (job.inputs, job.outputs))
        cpu_ms = int(job.compute_s * job.cores * 1000)
        return Usage(cpu_ms=cpu_ms, read_bytes=read, written_bytes=wrote, disk_bytes=running.disk_bytes)

    def _upload(self, node: int) -> None:
        while self._uploads[node] and self._uploading[node] < _UPLOADS_A_NODE:
            self._uploading[node] += 1
            file = self._uploads[node].pop(0)
            self.world.copy(file, node, STORAGE, "upload", partial(self._uploaded, node, file))

    def _uploaded(self, node: int, file: FileId) -> None:
        self._uploading[node] -= 1
        if self.state.cluster.catalogue.caches is not None:
            self._events.append(Stored(self._uris[file]))
        self._upload(node)

    # ---- copies ----

    def _transfer(self, order: Transfer) -> None:
        file = self._files[order.uri]
        dest = self.state.cluster.snapshot.index[order.dest]
        source = STORAGE if order.source is None else self.state.cluster.snapshot.index[order.source]

        def done() -> None:
            self._moving.pop(flow, None)
            now = self._now_ms()
            size, moved = self.world.file(file).size, order.size_bytes
            self._events.append(
                TransferDone(order.uri, order.dest, now, moved, order.source, size, order.offset, order.whole)
            )
            if not order.whole:
                self._piece(file, dest, order)

        piece = None if order.whole else (order.offset, order.size_bytes)
        kind = ("stage", "prefetch", "push", "prefetch")[order.ahead]
        if {source, dest} & self._down:  # it was decided to copy before the loss was known
            self.world.later(self.world.now + 1, lambda: self._events.append(self._broken(order)))
            return
        flow = self.world.copy(file, source, dest, kind, done, piece=piece)
        self._moving[flow] = order

    def _piece(self, file: FileId, dest: int, order: Transfer) -> None:
        """A node that has all pieces has the file."""
        have = self._pieces.setdefault((file, dest), set())
        have.add((order.offset, order.size_bytes))
        if sum(size for _, size in have) == self.world.file(file).size:
            self.world.at[file].add(dest)
            del self._pieces[file, dest]

    # ---- losses ----

    def _lose(self, node: int) -> None:
        """A node is gone with its pods, its files, and the copies from and to it."""
        self._down.add(node)
        info = self.cluster.nodes[node].info()
        self._events.append(NodeChanged(replace(info, ready=False, labels={})))
        for name, running in [each for each in self._running.items() if each[1].node == node]:
            del self._running[name]
            self.world.lose(running, "lost")
            self._events.append(PodGone(name, self._now_ms(), "NodeLost", started=True))
        self._lose_readers(node)
        loose = [key for key in self._pieces if key[1] == node]
        gone = {file for file, places in self.world.at.items() if node in places} | {
            file for file, _ in loose
        }
        for key in loose:
            del self._pieces[key]
        for flow in self.world.fail(node):
            order = self._moving.pop(flow, None)
            if order is not None:
                self._events.append(self._broken(order))
        self._uploads[node].clear()
        self._uploading[node] = 0
        for uri, file in self._files.items():
            if file in gone:
                self._events.append(ReplicaSeen(uri, info.name, self.world.file(file).size, present=False))

    def _lose_readers(self, node: int) -> None:
        """Attempts elsewhere that were still reading there have lost their inputs."""
        for name, running in list(self._running.items()):
            lost = [file for file, place in running.remote.items() if place == node]
            if lost and not running.run_start:
                del self._running[name]
                self.world.lose(running, "lost")
                uris = tuple(sorted(self._uris[running.workload, file] for file in lost))
                gone = PodGone(name, self._now_ms(), "InputLost", started=True, lost_inputs=uris)
                self._events.append(gone)

    def _broken(self, order: Transfer) -> TransferFailed:
        """A copy broke off. Its source has lost the bytes only if it is the source that is gone."""
        source = order.source
        source_is_up = source is None or self.state.cluster.snapshot.index[source] not in self._down
        return TransferFailed(
            order.uri,
            order.dest,
            self._now_ms(),
            "the node was lost",
            None if source_is_up else source,
            True,
            offset=order.offset,
        )

    def _come_back(self, node: int) -> None:
        """The node is there again, with nothing on it."""
        self._down.discard(node)
        self._events.append(NodeChanged(self.cluster.nodes[node].info()))

    def _now_ms(self) -> int:
        return math.ceil(self.world.now * 1000 - 1e-6)


def unfinished_text(workload: str, stage: str, tasks: int, why: str) -> str:
    """Which tasks do not end, and why."""
    return f"{workload}: {stage} ({tasks:,} task{'s' * (tasks != 1)}): {why}"


def limits_of(cluster: SimulatedCluster) -> TransferLimits:
    """Slots that fill the links of a cluster, and hardly more."""
    storage, node = cluster.storage, cluster.nodes[0]
    rate = min(storage.nic_out, storage.disk)
    return TransferLimits(
        origin=max(2, -(-rate // node.nic_in) + 1), origin_rate=rate, piece_bytes=PIECE_BYTES
    )


def shared_by(cluster: SimulatedCluster) -> Storage:
    """The storage as a profile declares it: its links and its disk bound the rates of all nodes together."""
    storage = cluster.storage
    reads, writes = (min(link, storage.disk) for link in (storage.nic_out, storage.nic_in))
    return Storage(storage.name, reads, writes)


def header(simulation: Simulation, policy: str, seed: int, version: str) -> dict[str, Any]:
    """The first line of a trace."""
    return trace_header(simulation.cluster, simulation.workloads, policy, seed, version)


def trace_header(
    cluster: SimulatedCluster, workloads: Sequence[Workload], policy: str, seed: int, version: str
) -> dict[str, Any]:
    """The first line of a trace (TRACE, "Lines")."""
    return {
        "reference": cluster.reference,
        "cluster": cluster.header(),
        "workflows": {each.name: each.source for each in workloads},
        "arrivals": {each.name: each.arrival_s for each in workloads},
        "policy": policy,
        "seed": seed,
        "version": version,
    }
