"""I/O demand: the disk rates of a task where no document states them, learned from others of its kind.

A task that computes for a while and moves bytes for the rest uses, on average, its bytes over both times together. Half of that
counts in the budget of a node's disk, as with bytes that a document states: tasks read and write in bursts. The learned amount
changes with every sample, shapes must not: amounts are rounded to three binary digits, so that a kind has few shapes in its
life and the backlog mostly meets the last one.

Source: I/O-aware batch scheduling (Herbein et al. 2016): jobs are admitted by what they demand of shared bandwidth.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from flowsched.engine.data.inputs import LEAST_BYTES, private, read_bytes, sources_of
from flowsched.engine.predictor import expected_runtime, fastest_disk
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import Demand
from flowsched.scheduling.policy.framework import BURSTS, Storage, storage_at
from flowsched.scheduling.reasons import quantity
from flowsched.workflow.estimates import CPU, DISK, ENOUGH, READ, WRITTEN
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.spec import StageSpec, Traffic

#: Tasks that use less than this part of a disk are not counted: a hundred of a kind could not fill one.
_SLIGHT: Final = 128
#: Tasks that use less than this part of a shared storage are not counted.
_TRIFLE: Final = 4096
#: So many leading binary digits of an amount count.
_DIGITS: Final = 3
_PERCENT: Final = 100
#: The unit of corrections.
PER_MILLE: Final = 1_000


def demands_of(
    state: EngineState, run: WorkflowRun, stage: StageRun, inputs: tuple[int, ...]
) -> tuple[Demand | None, ...]:
    """By role, the expected use of its pods where it exceeds the declared one; () = nowhere.

    A task that reads files of a storage in place uses its node's disk too, as far as that was learned.
    """
    learned = learned_demand(state, run, stage, inputs)
    if state.policy.profile.storages:
        on = [storage_of(state, run, stage, role) for role in range(len(stage.spec.roles))]
        found = tuple(
            None if storage is None else direct_demand(state, run, stage, role, inputs, storage)
            for role, storage in enumerate(on)
        )
        if learned is None and any(on):
            return found
        if learned is not None and found[0] is not None and found[0].direct:
            return (found[0]._replace(rate=learned.rate),)
    return () if learned is None else (learned,)


def storage_of(state: EngineState, run: WorkflowRun, stage: StageRun, role: int) -> Storage | None:
    """The shared storage on which a role's pods work: the one its document names; where all data lie on one that every node mounts,
    the first of the profile's; else the one where most bytes lie that its container reads in place, if these are more than a few.
    None = they work on their node's disk, or the profile does not model it.
    """
    profile, storages = state.policy.profile.of(run.spec.queue), state.policy.profile.storages
    if not profile.contention:
        return None
    named = traffic_of(stage.spec, role).storage
    if named:
        return next((storage for storage in storages if storage.name == named), None)
    if state.policy.mounted and not profile.locality:
        return storages[0]
    found = Counter[Storage]()
    for path in () if stage.spec.says_io else sources_of(stage.spec):
        storage = storage_at(storages, path)
        if storage is not None:
            found[storage] += run.file_bytes.get(path, LEAST_BYTES)  # one of unknown size may be large
    best = max(found, key=lambda each: (found[each], each.name), default=None)
    return best if best is not None and found[best] >= LEAST_BYTES else None


def direct_demand(
    state: EngineState,
    run: WorkflowRun,
    stage: StageRun,
    role: int,
    inputs: tuple[int, ...],
    storage: Storage,
) -> Demand:
    """The rates that a pod requests from a shared storage: the declared ones; else its bytes over its runtime alone.

    The runtime alone is the time in which it computes, plus that of moving its bytes. Where the first is not known the rates are 0.
    """
    io = traffic_of(stage.spec, role)
    if io.read_rate or io.write_rate:
        return Demand(direct=_asked(storage, io.read_rate, io.write_rate))
    size = read_bytes(state.cluster.catalogue, run, stage, inputs)
    alone_ms = _computes_ms(state, run, stage, role, size)
    if alone_ms is None:
        return Demand()
    read, wrote = _moved_bytes(state, run, stage, role, size, storage)
    alone_ms += sum(
        moved * 1000 // rate
        for moved, rate in ((read, storage.read_rate), (wrote, storage.write_rate))
        if rate
    )
    over, factor = max(1, alone_ms * BURSTS), correction(state, run.spec.kind_of(stage.spec))
    asked = _asked(storage, read * factor // over, wrote * factor // over)
    return Demand(moved=rounded(read + wrote) if asked else 0, direct=asked, learned=factor)


def _computes_ms(state: EngineState, run: WorkflowRun, stage: StageRun, role: int, size: int) -> int | None:
    """The time of a pod's CPU where that was learned, else its user's estimate; None where neither is known: the runtimes of others
    show only how full the storage was.
    """
    spec = stage.spec
    cpu = state.work.estimates.trend(*run.spec.kind_of(spec), CPU)
    if cpu is None or cpu.samples < ENOUGH or len(spec.roles) > 1:
        return spec.estimate.runtime_ms
    return cpu.at(size) // max(1, -(-spec.roles[role].resources.cpu_millicores // 1000))


def _moved_bytes(
    state: EngineState, run: WorkflowRun, stage: StageRun, role: int, size: int, storage: Storage
) -> tuple[int, int]:
    """The bytes that a pod reads from a shared storage, and those that it writes there.

    They are the declared ones, and where all data are mounted its inputs and outputs. Where its document names no storage they are
    those of the files that its container reads in place, and what its kind writes if it delivers outputs there or mounts a folder
    of it; else the learned ones. Each node reads an input of all shards once, if it gets copies.
    """
    io, spec, estimates = traffic_of(stage.spec, role), stage.spec, state.work.estimates
    kind = run.spec.kind_of(spec)
    knows = len(spec.roles) == 1 and estimates.samples(*kind) >= ENOUGH
    if state.policy.mounted and not io.storage:
        nodes = max(1, len(state.cluster.snapshot))
        reads = size if private(stage) or spec.tasks <= nodes else size * nodes // spec.tasks
        writes = spec.estimate.output_bytes or estimates.output_bytes(*kind, size) or 0
        return io.read_bytes + reads, max(io.write_bytes, writes)
    if io.storage and (io.read_bytes or io.write_bytes or not knows):
        return io.read_bytes, io.write_bytes
    read, wrote = (estimates.bytes_of(*kind, column, size) if knows else 0 for column in (READ, WRITTEN))
    if io.storage:
        return read, wrote
    assert spec.container is not None  # its files in place lie there
    folders = [each.source for each in spec.container.mounts if not each.read_only]
    places = (*folders, *(each.uri for each in spec.container.outputs))
    there = any(storage_at(state.policy.profile.storages, place) == storage for place in places)
    return run.placed_bytes.get(stage.number, read), wrote if there else 0


def _asked(storage: Storage, read: int, wrote: int) -> tuple[tuple[str, int], ...]:
    """Rates by name, without those that are too small to count. Those of a storage without a bound count on the nodes' links."""
    asked = zip(storage.rates.items(), (read, wrote), strict=True)
    return tuple((key, rounded(rate)) for (key, whole), rate in asked if rate and rate * _TRIFLE >= whole)


def learned_demand(
    state: EngineState, run: WorkflowRun, stage: StageRun, inputs: tuple[int, ...]
) -> Demand | None:
    """The learned disk use of a task of a stage that reads these datasets.

    None where the document declares it, where no node states its disk's rate, where too little is known, and where it would be
    too little to count. Of gangs with several roles nothing is known: samples do not name their role.
    """
    spec, profile = stage.spec, state.policy.profile.of(run.spec.queue)
    fill = state.policy.profile.io_fill_percent
    if not fill or not profile.contention or len(spec.roles) > 1:
        return None
    if spec.says_io:  # also where it names no more than its shared storage
        return _corrected(state, run, stage, inputs)
    if state.policy.mounted and not profile.locality:  # it reads and writes elsewhere
        return None
    kind = run.spec.kind_of(spec)
    moved, disk = state.work.estimates.trend(*kind, DISK), fastest_disk(state)
    if moved is None or not disk:
        return None
    size = read_bytes(state.cluster.catalogue, run, stage, inputs)
    cores = -(-spec.roles[0].resources.cpu_millicores // 1000)
    rate = state.work.estimates.io_rate(*kind, size, cores, disk)
    factor = correction(state, kind)
    rate = None if rate is None else min(disk, rate * factor // PER_MILLE)
    if rate is None or rate * _SLIGHT < disk:
        return None
    return Demand(rounded(rate * _PERCENT // (fill * BURSTS)), rounded(moved.at(size)), learned=factor)


def _corrected(
    state: EngineState, run: WorkflowRun, stage: StageRun, inputs: tuple[int, ...]
) -> Demand | None:
    """The declared disk use of a task, if that is not what counts; else None.

    Declared bytes count over the runtime as it was observed, where that is far from the declared one. Before a task of the kind has
    ended they have no rate: too short a runtime would leave cores idle. `Spacing` goes by bytes.
    """
    declared, io = declared_demand(stage.spec, 0), traffic_of(stage.spec, 0)
    if io.read_rate or io.write_rate or not declared.rate:
        return None
    if not state.work.estimates.samples(*run.spec.kind_of(stage.spec)):
        return declared._replace(rate=0)
    expected_ms, _ = expected_runtime(state, run, stage, inputs)
    if expected_ms == stage.spec.estimate.runtime_ms:
        return None
    return declared._replace(rate=rounded(io_rate(io, expected_ms)))


def correction(state: EngineState, kind: tuple[str, str]) -> int:
    """The counted per mille of the learned demand of a kind, in few steps: shapes must not change with every measurement."""
    factor = state.work.corrections.get(kind)
    return PER_MILLE if factor is None or 900 < factor < 1_100 else rounded(factor)


def demand_text(state: EngineState, run: WorkflowRun, stage: StageRun, inputs: tuple[int, ...]) -> str:
    """Text for users, to follow that of the runtime; "" where nothing was learned that counts."""
    demand = learned_demand(state, run, stage, inputs)
    moved = state.work.estimates.trend(*run.spec.kind_of(stage.spec), DISK)
    if demand is None or moved is None or not demand.learned:
        return ""
    factor = correction(state, run.spec.kind_of(stage.spec))
    text = f"; {quantity('io', demand.rate)} are counted for it, learned from {moved.samples} that ended"
    if factor != PER_MILLE:
        text += f" and times {factor // PER_MILLE}.{factor % PER_MILLE:03} as measured"
    infos = [
        state.cluster.snapshot.info(at)
        for name in state.cluster.others
        if (at := state.cluster.snapshot.index.get(name)) is not None
    ]
    busiest = max(infos, key=lambda info: info.disk_busy_rate, default=None)
    if busiest is not None and busiest.disk_busy_rate:
        text += (
            f"; others were measured to use {quantity('io', busiest.disk_busy_rate)} of node {busiest.name}"
        )
    return text


def rounded(amount: int) -> int:
    """To the nearest number of three binary digits: within a tenth."""
    shift = max(0, amount.bit_length() - _DIGITS)
    return (amount + (1 << shift >> 1)) >> shift << shift


def declared_demand(stage: StageSpec, role: int) -> Demand:
    """The disk use that the document declares for a pod of a role: by the role, else by its stage; 0 where it declares none."""
    io = traffic_of(stage, role)
    if io.storage:
        return Demand()
    return Demand(io_rate(io, stage.estimate.runtime_ms), io.read_bytes + io.write_bytes)


def traffic_of(stage: StageSpec, role: int) -> Traffic:
    """The declared traffic of a pod of a role: by its role, else by its stage."""
    own = stage.roles[role].io
    return stage.io if own is None else own


def io_rate(io: Traffic, expected_ms: int | None) -> int:
    """Bytes/s of disk one pod is expected to use: the declared rates, else half of its bytes over its runtime: tasks read and
    write in bursts, and disks idle where they are filled to the brim by averages.
    """
    if io.read_rate or io.write_rate:
        return io.read_rate + io.write_rate
    total = io.read_bytes + io.write_bytes
    return total * 1000 // (2 * expected_ms) if total and expected_ms else 0
