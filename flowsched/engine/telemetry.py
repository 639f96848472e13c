"""Telemetry: measurements of disks, network cards and shared storages, and profiles learned of tasks that ended well.

Two things follow from a measurement. Programs other than our pods leave less to allocate: a node's disk, or a storage,
has only the rest, and so have copies over a node's network card. If pods of a kind use more or less than was counted for them,
the next of the kind count for that: a factor for each kind, drawn by each measurement a little towards measured / expected,
between a fifth and five times.

A full disk does not show the demand of the tasks that wait for it: factors fall only while at most half of its rate is in
use. A declared rate is never corrected; it is only subtracted first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from flowsched.engine.data.inputs import sources_of
from flowsched.engine.io_demand import PER_MILLE, rounded
from flowsched.engine.predictor import is_refuted
from flowsched.engine.state import EngineState
from flowsched.engine.transaction import Recorder
from flowsched.executor.nodes import Load, LoadMeasured, NodeInfo
from flowsched.executor.protocol import PodEnded, Usage
from flowsched.scheduling.policy.framework import BURSTS, Storage
from flowsched.scheduling.state.claims import UNKNOWN, ClaimKind
from flowsched.scheduling.state.snapshot import IO
from flowsched.values import replace
from flowsched.workflow.estimates import DISK, LONGEST_MS, UNMEASURED, Measured
from flowsched.workflow.run.run import StageRun, WorkflowRun

#: A fifth and five times, in per mille.
FLOOR: Final = 200
CAP: Final = 5_000
#: Each measurement moves a factor by 1/_SLOW towards its value, and the use by other programs by 1/_FAST.
_SLOW: Final = 8
_FAST: Final = 4
#: Less than this part of a rate, used by other programs or expected of our pods, counts as zero.
_TRIFLE: Final = 16
#: So many kinds have a factor at most.
_KINDS: Final = 20_000
_WAYS: Final = ("read", "write")

Kind = tuple[str, str]


class _Expected(msgspec.Struct):
    """Of the pods at one place: bytes/s by kind, where they were learned (as they are expected, and as they would be without
    correction), and those counted for them in its budget.
    """

    kinds: dict[Kind, tuple[int, int]] = msgspec.field(default_factory=dict)
    counted: int = 0

    def add(self, learned: tuple[str, str, int], rate: int, counted: int) -> None:
        workflow, stage, factor = learned
        expected, bare = self.kinds.get((workflow, stage), (0, 0))
        self.kinds[workflow, stage] = expected + rate, bare + rate * PER_MILLE // factor
        self.counted += counted


def note_load(recorder: Recorder, event: LoadMeasured) -> None:
    """Correct the expected demands by the measurements since the last time."""
    state, snapshot = recorder.state, recorder.state.cluster.snapshot
    nodes, storages = _expected(recorder)
    by_kind: dict[Kind, tuple[int, int]] = {}
    changed: dict[int, NodeInfo] = {}  #: by node: each is written once
    for load in event.nodes:
        at = snapshot.index.get(load.name)
        if at is None or snapshot.disk_rate[at] <= 0:
            continue
        here, rate = nodes.get(at, _Expected()), int(snapshot.disk_rate[at])
        declared = max(0, int(snapshot.used[at, IO]) - here.counted)
        others = _compare(recorder, load, rate, here, declared, by_kind)
        busy = rounded(others) if others * _TRIFLE >= rate else 0
        if busy != snapshot.info(at).disk_busy_rate:
            changed[at] = replace(snapshot.info(at), disk_busy_rate=busy)
    for load in event.links:
        _note_link(recorder, load, changed)
    for info in changed.values():
        snapshot.put_node(info, recorder.statement)
        recorder.dirty = True
    rates = {
        key: rate for storage in state.policy.profile.storages for key, rate in storage.rates.items() if rate
    }
    for load in _by_name(state.policy.profile.storages, event.storages):
        if load.name in rates:
            here = storages.get(load.name, _Expected())
            declared = max(0, snapshot.direct.rates.get(load.name, 0) - here.counted)
            others = _compare(recorder, load, rates[load.name], here, declared, by_kind)
            busy = rounded(others) if others * _TRIFLE >= rates[load.name] else 0
            if busy != snapshot.direct.others.get(load.name, 0):
                recorder.statement.put(snapshot.direct.others, load.name, busy)
                recorder.dirty = True
    for kind, (measured, bare) in by_kind.items():
        _correct(recorder, kind, measured, bare)


def _by_name(storages: Sequence[Storage], loads: Sequence[Load]) -> Iterator[Load]:
    """Loads of storages as documents call them; those of mounts that no storage has as its source are left out."""
    named = {
        f"{each.source}/{way}": f"{each.name}/{way}" for each in storages for way in _WAYS if each.source
    }
    for load in loads:
        yield replace(load, name=named.get(load.name, load.name))


def _note_link(recorder: Recorder, load: Load, changed: dict[int, NodeInfo]) -> None:
    """Lower the rate for copies by other programs' use of one direction of a node's network card."""
    snapshot = recorder.state.cluster.snapshot
    name, _, way = load.name.rpartition("/")
    at = snapshot.index.get(name)
    if at is None or way not in ("in", "out"):
        return
    info = changed.get(at) or snapshot.info(at)
    rate = info.nic_in_rate if way == "in" else info.nic_out_rate
    others = _others(recorder, load, load.ours)
    busy = rounded(others) if others * _TRIFLE >= rate else 0
    if way == "in" and busy != info.nic_in_busy_rate:
        changed[at] = replace(info, nic_in_busy_rate=busy)
    if way == "out" and busy != info.nic_out_busy_rate:
        changed[at] = replace(info, nic_out_busy_rate=busy)


def _expected(recorder: Recorder) -> tuple[dict[int, _Expected], dict[str, _Expected]]:
    """The expected use of running pods with a learned demand, by node and by storage."""
    fill = recorder.state.policy.profile.io_fill_percent
    nodes: dict[int, _Expected] = {}
    storages: dict[str, _Expected] = {}
    snapshot = recorder.state.cluster.snapshot
    for claim in snapshot.direct.claims.values():
        if claim.learned is None:
            continue
        counted = int(snapshot.ledger.amount[snapshot.ledger.slot_of(claim.owner), IO])
        if counted:
            rate = counted * BURSTS * fill // 100
            nodes.setdefault(claim.node, _Expected()).add(claim.learned, rate, counted)
        for key, asked in claim.direct:
            storages.setdefault(key, _Expected()).add(claim.learned, asked * BURSTS, asked)
    return nodes, storages


def _compare(
    recorder: Recorder,
    load: Load,
    rate: int,
    here: _Expected,
    declared: int,
    by_kind: dict[Kind, tuple[int, int]],
) -> int:
    """Share out a measurement over the kinds at a place. Returns the rate of other programs there, in bytes/s."""
    total = sum(expected for expected, _ in here.kinds.values())
    ours = load.ours if load.ours >= 0 else min(load.rate, total + declared)
    learned = max(0, ours - declared)
    if learned < total and load.rate * 2 > rate:
        learned = total  # it may be the disk that keeps them
    if total * _TRIFLE >= rate:
        for kind, (expected, bare) in here.kinds.items():
            measured, before = by_kind.get(kind, (0, 0))
            by_kind[kind] = measured + learned * expected // total, before + bare
    return _others(recorder, load, ours)


def _others(recorder: Recorder, load: Load, ours: int) -> int:
    """The rate of other programs on one disk, card or storage, in bytes/s: the moving average with this measurement."""
    used, known = max(0, load.rate - max(0, ours)), recorder.state.cluster.others.get(load.name)
    if known is None and not used:
        return 0
    before = known or 0
    others = before + (used - before) // _FAST
    recorder.statement.put(recorder.state.cluster.others, load.name, others)
    return others


def _correct(recorder: Recorder, kind: Kind, measured: int, bare: int) -> None:
    factors, statement = recorder.state.work.corrections, recorder.statement
    before = factors.get(kind, PER_MILLE)
    target = min(max(PER_MILLE * measured // max(bare, 1), FLOOR), CAP)
    after = before + (target - before) // _SLOW
    if after == before:
        return
    statement.put(factors, kind, after)
    recorder.state.work.outdate_kind(kind)
    if len(factors) > _KINDS:
        oldest = next(iter(factors))
        statement.pop(factors, oldest)
        recorder.state.work.outdate_kind(oldest)


# ---- learning from tasks that ended well ----


_NOTHING: Final = Usage()


def learn(
    recorder: Recorder, run: WorkflowRun, stage: StageRun, task: int, event: PodEnded, ran_ms: int
) -> bool:
    """A task has ended well: its usage is a sample for the next of its kind.

    Returns whether it is the first to show how long tasks of its kind take: what was decided for them before was a guess.
    """
    state = recorder.state
    size = int(stage.local[task]) + int(stage.moved[task])
    if stage.number not in run.placed_bytes and sources_of(stage.spec):
        size = 0
    outputs = {output.name: output.size_bytes for output in event.outputs}
    measured = _measured(size, event.usage, outputs)
    if stage.spec.estimate.runtime_ms is not None:
        measured = measured._replace(declared_ms=stage.spec.estimate.runtime_ms)
    kind = run.spec.kind_of(stage.spec)
    first = state.work.estimates.samples(*kind) == 0
    before = state.work.estimates.learn(*kind, max(1, ran_ms), measured, outputs)
    recorder.statement.undo_with(lambda: state.work.estimates.recall(before))
    far = is_refuted(state, run, stage, size)
    news = first and (far or stage.spec.estimate.runtime_ms is None)
    if news:
        _expect_others(recorder, kind, max(1, ran_ms), far=far)
    return news


def _expect_others(recorder: Recorder, kind: Kind, ran_ms: int, *, far: bool) -> None:
    """The first task of a kind has ended: those that run are expected to take as long.

    Where its document is `far` from the truth, tasks of the workflow's other kinds are expected to take what the words of its
    author are worth.
    """
    state, ledger = recorder.state, recorder.state.cluster.snapshot.ledger
    ends = {}
    for slot in np.flatnonzero(
        (ledger.kind == ClaimKind.RUNNING) & (far | (ledger.until == UNKNOWN))
    ).tolist():
        ref = state.work.pods.get(ledger.owner[slot])
        run = None if ref is None else state.work.runs.get(ref.workflow)
        if ref is None or run is None:
            continue
        stage = run.stages[ref.stage].spec
        theirs, said_ms = run.spec.kind_of(stage), stage.estimate.runtime_ms
        if theirs == kind:
            ends[slot] = int(ledger.since[slot]) + min(ran_ms, LONGEST_MS)
        elif theirs[0] == kind[0] and said_ms is not None and not state.work.estimates.samples(*theirs):
            worth = state.work.estimates.as_declared_ms(*theirs, said_ms)
            if worth is not None:
                ends[slot] = int(ledger.since[slot]) + worth
    slots, before = list(ends), ledger.until[list(ends)]
    recorder.statement.undo_with(lambda: ledger.until.put(slots, before))
    ledger.until[slots] = list(ends.values())


def relearn(
    state: EngineState,
    workflow: str,
    stage: str,
    runtime_ms: int,
    input_bytes: int,
    usage: Mapping[str, int],
    outputs: Mapping[str, int],
) -> None:
    """After a restart: one task as its row remembers it."""
    used = replace(_NOTHING, **{name: usage[name] for name in Usage.__struct_fields__ if name in usage})
    measured = _measured(input_bytes, used, outputs)
    state.work.estimates.learn(workflow, stage, runtime_ms, measured, outputs)


def _measured(size: int, used: Usage, outputs: Mapping[str, int]) -> Measured:
    """The measurements of a task.

    Not every executor measures everything. Every process uses CPU time, memory and I/O: a zero means that it was not measured.
    Tasks without inputs, and those of unknown size, read 0 bytes: neither says how an amount grows with the size.
    Without published outputs it is not known what a task wrote: to files of its own, or as a member of a gang.
    """
    moved = used.read_bytes > 0 or used.written_bytes > 0
    return Measured(
        size or UNMEASURED,
        used.cpu_ms or UNMEASURED,
        used.read_bytes if moved else UNMEASURED,
        used.written_bytes if moved else UNMEASURED,
        used.max_rss_bytes or UNMEASURED,
        sum(outputs.values()) if outputs else UNMEASURED,
        disk_bytes=used.disk_bytes,
        shared_ms=used.shared_ms,
    )


def shared_ms(recorder: Recorder, pod: str, disk_bytes: int) -> int:
    """The time that a node's disk takes for the bytes which pods beside one that ends move at the same time.

    The nearer two pods start to each other, within the time that the disk takes for the bytes of one, the more they use it at once.
    Pods of its kind are taken to move what it moved, and others what was learned of them.
    """
    state = recorder.state
    ledger, snapshot = state.cluster.snapshot.ledger, state.cluster.snapshot
    slot = ledger.slot_of(pod)
    rate = 0 if slot is None else int(snapshot.disk_rate[ledger.node[slot]])
    kind = _kind_of(state, pod)
    own_ms = disk_bytes * 1000 // rate if rate else 0
    if slot is None or kind is None or not own_ms:
        return 0
    apart, beside = np.abs(ledger.since - ledger.since[slot]), 0
    near = (ledger.node == ledger.node[slot]) & (ledger.kind == ClaimKind.RUNNING) & (apart < own_ms)
    for other in near.nonzero()[0].tolist():
        theirs = None if other == slot else _kind_of(state, ledger.owner[other])
        if theirs is not None:
            moved = disk_bytes if theirs == kind else state.work.estimates.bytes_of(*theirs, DISK)
            beside += moved * (own_ms - int(apart[other])) // own_ms
    return beside * 1000 // rate


def _kind_of(state: EngineState, pod: str) -> Kind | None:
    """The kind of a pod's task; None = it is none of ours."""
    ref = state.work.pods.get(pod)
    run = None if ref is None else state.work.runs.get(ref.workflow)
    return None if ref is None or run is None else run.spec.kind_of(run.stages[ref.stage].spec)
