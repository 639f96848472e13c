"""Making room in caches with a limit: a step's drops, and the bytes that are pinned for placed tasks.

A task that is placed pins what it reads, and room for what it will write, on its node: all of it or nothing, in the step that
places it, so that two groups never wait for each other's halves. A drop belongs to the step that decides it: the catalogue
forgets the copy, the row goes with the step, and only then are bytes deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.engine.data.cache_values import Evictable, desperate
from flowsched.engine.delta import ReplicaWrite
from flowsched.engine.predictor import written_bytes
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import Candidate, GroupKey, pod_name
from flowsched.engine.transaction import Recorder
from flowsched.executor.protocol import Drop
from flowsched.scheduling.plan import Plan, Reason, ReasonCode, Reasons
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.state.cache_space import Caches, Copy, Need, Pin, choose
from flowsched.scheduling.transfers import TransferOrder, TransferWant
from flowsched.workflow.run.run import StageRun
from flowsched.workflow.run.states import TaskState

Indices = NDArray[np.int64]
#: Data that wait for their task's cores longer than this may be dropped for other tasks.
_PATIENCE_MS: Final = 600_000
#: A round looks again at groups that were refused for lack of cache after so long, even if nothing happens.
_AGAIN_MS: Final = 60_000
#: A copy that is ordered ahead of time replaces only copies that are worth less than this part of it.
_AHEAD_PART: Final = 2


def begin_round(recorder: Recorder) -> None:
    """Release useless pins and trim over-full caches, before a step places anything.

    A pin is useless if its task no longer waits, if its node is not ready, or if it is old and nothing moves for it.
    """
    state, caches = recorder.state, recorder.state.cluster.catalogue.caches
    if caches is None:
        return
    for owner in sorted(caches.waiting):
        pin = caches.of[caches.owner[owner]].pins[owner]
        late = recorder.now - pin.since_ms > _PATIENCE_MS and not _moves(state, pin)
        if late or not _waits(state, pin) or not state.cluster.snapshot.ready[pin.node]:
            caches.release(owner, recorder.statement)
    evictable = recorder.evictable = Evictable(state)
    for node in sorted(caches.grown):
        cache = caches.of[node]
        if cache.free < 0:
            copies = evictable.copies(node)
            _drop(recorder, node, choose(copies, min(-cache.free, sum(copy.size_bytes for copy in copies))))
    caches.grown.clear()


def note_planned(recorder: Recorder, plan: Plan, candidates: Mapping[int, Candidate]) -> None:
    """Protect copies that this step's pods find on their nodes, or read on others, from eviction for other pods of the step."""
    evictable, catalogue = recorder.evictable, recorder.state.cluster.catalogue
    if evictable is None:
        return
    for placement in plan.placements:
        if placement.group not in candidates:
            continue
        group = candidates[placement.group].group
        evictable.planned.update((each, node) for each in group.remote for node in catalogue.nodes_of(each))
        for nodes in placement.nodes if group.inputs else ():
            evictable.planned.update(product(group.inputs, set(nodes.tolist())))


def _waits(state: EngineState, pin: Pin) -> bool:
    """Whether the task it is for still waits, in the same attempt."""
    if pin.task is None:
        return True
    workflow, number, task, attempt = pin.task
    run = state.work.runs.get(workflow)
    if run is None:
        return False
    stage = run.stages[number]
    waits = stage.task_is(task) in (TaskState.QUEUED, TaskState.STAGING)
    return waits and int(stage.attempt[task]) == attempt


def _moves(state: EngineState, pin: Pin) -> bool:
    """Whether a pinned dataset is still to come."""
    return any(pin.node not in state.cluster.catalogue.nodes_of(dataset) for dataset in pin.datasets)


# ---- tasks that are placed ----


class _Room(msgspec.Struct, frozen=True):
    """How some tasks find room on one node: their number, and the copies to drop."""

    tasks: int
    drops: tuple[Copy, ...]


def make_room(recorder: Recorder, candidate: Candidate, tasks: Indices, nodes: Indices) -> NDArray[np.bool_]:
    """Drop copies so that tasks find room for their data on their nodes.

    Args:
        recorder: Of this step.
        candidate: Their group; a gang finds room as a whole or not at all.
        tasks, nodes: (T,) tasks, and where they shall go.

    Returns:
        (T,) bool: which of them have room.
    """
    caches = recorder.state.cluster.catalogue.caches
    fits = np.ones(len(tasks), dtype=np.bool_)
    if caches is None:
        return fits
    found: list[tuple[int, _Room]] = []
    for node in [node for node in dict.fromkeys(nodes.tolist()) if node in caches.of]:
        mine = np.flatnonzero(nodes == node)
        room = _find(recorder, caches, candidate, tasks[mine], node)
        fits[mine[room.tasks :]] = False
        found.append((node, room))
    if candidate.group.gang and not fits.all():
        return np.zeros(len(tasks), dtype=np.bool_)
    for node, room in found:
        _drop(recorder, node, room.drops)
    return fits


def _find(recorder: Recorder, caches: Caches, candidate: Candidate, tasks: Indices, node: int) -> _Room:
    """As many of the tasks as find room on a node, and the copies to drop for them."""
    state, cache, group = recorder.state, caches.of[node], candidate.group
    evictable = recorder.evictable
    inputs = tuple(dict.fromkeys(group.inputs))
    lacking = sum(caches.sizes[dataset] for dataset in inputs if not cache.has(dataset))
    each = written_bytes(state, candidate.run, candidate.stage, group.reads)
    pins = [cache.pins.get(_name(candidate, task)) for task in tasks.tolist()]
    writes = [each * _is_writer(candidate.stage, task) for task in tasks.tolist()]
    more = [write - (0 if pin is None else pin.output_bytes) for write, pin in zip(writes, pins, strict=True)]
    reads = sum(caches.sizes[dataset] for dataset in inputs)
    free = cache.free_for(reads, reads - lacking, writes[0])
    if any(pin is not None for pin in pins):  # it has been given room before
        free = cache.free
    if evictable is None or lacking + sum(more) <= free:
        return _Room(len(tasks), ())
    copies = evictable.copies(node, inputs)
    loose = sum(copy.size_bytes for copy in copies)
    count = len(tasks)
    while count and lacking + sum(more[:count]) > free + loose:
        count -= 1
    if count:
        return _Room(count, choose(copies, lacking + sum(more[:count]) - free))
    if reads > cache.limit or not desperate(state, node, recorder.now - group.ready_ms):
        return _Room(0, ())
    count = len(tasks) if group.gang else 1
    copies = evictable.copies(node, inputs, Need.AGAIN)
    wanted = min(lacking + sum(more[:count]) - free, sum(copy.size_bytes for copy in copies))
    return _Room(count, choose(copies, wanted))


def _name(candidate: Candidate, task: int) -> str:
    stage = candidate.stage
    return pod_name(candidate.run.id, stage.spec.name, task, int(stage.attempt[task]))


def _is_writer(stage: StageRun, task: int) -> bool:
    """Whether a shard's outputs are counted with this member."""
    return task % stage.members == 0


def reserve_room(recorder: Recorder, candidate: Candidate, task: int, node: int, *, bound: bool) -> None:
    """Pin the inputs of a task on a node, and reserve room for its outputs. `bound`: it has its cores."""
    state, caches = recorder.state, recorder.state.cluster.catalogue.caches
    if caches is None:
        return
    stage, group = candidate.stage, candidate.group
    writes = written_bytes(state, candidate.run, stage, group.reads) * _is_writer(stage, task)
    inputs = tuple(dict.fromkeys(group.inputs))
    if bound and group.remote:  # remote inputs that are on its node are read there
        inputs += tuple(each for each in group.remote if node in state.cluster.catalogue.nodes_of(each))
    waits = None if bound else (candidate.run.id, stage.number, task, int(stage.attempt[task]))
    pin = Pin(node, inputs, writes, recorder.now, waits)
    caches.pin(_name(candidate, task), pin, recorder.statement)
    for dataset in inputs if bound else ():
        caches.used_at[dataset, node] = recorder.now


# ---- copies that are ordered ahead ----


def admit_ahead(recorder: Recorder, orders: Sequence[TransferOrder]) -> list[TransferOrder]:
    """The admitted copies that find room: a copy ahead of time evicts only copies that are worth much less."""
    state, caches, evictable = recorder.state, recorder.state.cluster.catalogue.caches, recorder.evictable
    if caches is None or evictable is None:
        return list(orders)
    admitted = []
    evictable.sources |= {(order.dataset, order.source) for order in orders}  # decided in this very step
    for order in orders:
        cache = caches.of.get(order.dest)
        if cache is not None and not cache.has(order.dataset):
            size = caches.sizes[order.dataset]
            if size > cache.free:
                copies = _lesser(evictable, order.dataset, order.dest)
                drops = choose(copies, size - cache.free)
                if not drops:
                    continue
                _drop(recorder, order.dest, drops)
        admitted.append(order)
        state.cluster.catalogue.expect(order.dataset, order.dest, recorder.statement)
    return admitted


def has_room(recorder: Recorder, want: TransferWant) -> bool:
    """Whether a copy that is wanted ahead of time could find room: otherwise it takes no other's slot."""
    caches, evictable = recorder.state.cluster.catalogue.caches, recorder.evictable
    cache = None if caches is None else caches.of.get(want.dest)
    if caches is None or evictable is None or cache is None or cache.has(want.dataset):
        return True
    size = caches.sizes[want.dataset]
    if size <= cache.free:
        return True
    return size <= cache.free + sum(copy.size_bytes for copy in _lesser(evictable, want.dataset, want.dest))


def _lesser(evictable: Evictable, dataset: int, node: int) -> list[Copy]:
    copies = evictable.copies(node, (dataset,))
    if evictable.state.policy.profile.eviction == "lru":
        return copies
    worth = evictable.value(dataset, node) // _AHEAD_PART
    return [copy for copy in copies if copy.need is Need.NOBODY or copy.value < worth]


# ---- copies that are dropped ----


def _drop(recorder: Recorder, node: int, copies: Sequence[Copy]) -> None:
    """The catalogue forgets copies; their bytes are deleted once the step is durable."""
    state, statement, caches = recorder.state, recorder.statement, recorder.state.cluster.catalogue.caches
    assert caches is not None
    name = state.cluster.snapshot.names[node]
    for copy in copies:
        uri = state.cluster.catalogue.uris[copy.dataset]
        state.cluster.catalogue.drop_pieces(copy.dataset, node, statement)
        if node in state.cluster.catalogue.nodes_of(copy.dataset):
            state.cluster.catalogue.drop_replica(copy.dataset, node, statement)
            recorder.delta.replicas.append(ReplicaWrite(uri, name, 0, False))
        statement.put(caches.evicted_bytes, node, caches.evicted_bytes[node] + copy.size_bytes)
        statement.include(caches.dropped, (copy.dataset, node))
        recorder.drops.append(Drop(uri, name, copy.size_bytes))


def came(recorder: Recorder, dataset: int, node: int) -> None:
    """A copy is on a node now."""
    caches = recorder.state.cluster.catalogue.caches
    if caches is None or node not in caches.of:
        return
    caches.used_at[dataset, node] = recorder.now
    if (dataset, node) in caches.dropped:
        recorder.statement.exclude(caches.dropped, (dataset, node))
        again = caches.refetched_bytes[node] + caches.sizes[dataset]
        recorder.statement.put(caches.refetched_bytes, node, again)


# ---- groups that wait for cache ----


def full(recorder: Recorder, candidate: Candidate) -> Reason:
    """Why a group that was placed must wait all the same."""
    return explained(recorder, Reason(candidate.group.key, ReasonCode.CACHE_FULL, ""), candidate.group)


def explained(recorder: Recorder, reason: Reason, group: PodGroup) -> Reason:
    """The reason with the contents of a full cache in numbers: of the node where least is lacking."""
    state, evictable = recorder.state, recorder.evictable
    caches, key = state.cluster.catalogue.caches, state.work.groups.get(reason.group)
    run = state.work.runs.get(key.workflow) if isinstance(key, GroupKey) else None
    if caches is None or evictable is None or run is None or not isinstance(key, GroupKey) or not caches.of:
        return reason
    inputs = tuple(dict.fromkeys(group.inputs))
    writes = written_bytes(state, run, run.stages[key.stage], group.reads)
    reads = sum(caches.sizes[dataset] for dataset in inputs)
    total = reads + writes
    nodes = [node for node, cache in caches.of.items() if cache.limit and state.cluster.snapshot.ready[node]]
    if not nodes:
        return reason
    largest = max(caches.of[node].limit for node in nodes)
    if reads > largest:
        text = (
            f"it reads {_size(reads)}, and the largest cache may hold {_size(largest)}: give nodes more cache"
        )
        return structs.replace(reason, message=text, numbers={"need_bytes": reads, "cache_bytes": largest})
    best = min(nodes, key=lambda node: (total - caches.of[node].free - evictable.loose(node), node))
    cache = caches.of[best]
    pinned_bytes = sum(caches.sizes[dataset] for dataset in cache.pinned)
    stays = max(0, cache.used - pinned_bytes - evictable.loose(best))
    parts = [f"{_size(pinned_bytes)} are read by tasks there or wait for them"] if pinned_bytes else []
    parts += [f"{_size(cache.due)} will be written"] if cache.due else []
    parts += [f"{_size(stays)} are results or nowhere else"] if stays else []
    name = state.cluster.snapshot.names[best]
    text = f"cache of {name} full: of {_size(cache.limit)} {', '.join(parts)}; it needs {_size(total)}"
    if 2 * stays > cache.limit:
        text += "; results stay until their workflows expire (serve --keep-days), or give nodes more cache (serve --cache)"
    numbers = {
        "need_bytes": total,
        "cache_bytes": cache.limit,
        "held_bytes": pinned_bytes,
        "due_bytes": cache.due,
        "kept_bytes": stays,
    }
    return structs.replace(reason, message=text, numbers=numbers)


def end_round(recorder: Recorder, plan: Plan, groups: dict[int, PodGroup]) -> Plan:
    """Explain a full cache to groups that wait for it. The first that has waited long reserves nodes: others leave it room."""
    state = recorder.state
    waiting = [
        reason for reason in plan.reasons if reason.code is ReasonCode.CACHE_FULL and reason.group in groups
    ]
    first = state.caches.first
    if first is not None and all(reason.group != first for reason in waiting):
        recorder.statement.assign(state.caches, "first", None)
        recorder.statement.assign(state.caches, "nodes", frozenset())
    if not waiting:
        return plan
    if state.work.pods or state.data.moving or state.data.staging:  # else nothing but an event will change it
        recorder.wake_at(recorder.now + _AGAIN_MS)
    if state.caches.first is None:
        late = [
            groups[r.group]
            for r in waiting
            if recorder.now - groups[r.group].ready_ms >= state.policy.profile.age_class_ms
        ]
        if late:
            recorder.statement.assign(state.caches, "first", late[0].key)
            recorder.statement.assign(state.caches, "nodes", _nodes_for(recorder, late[0]))
    full = {reason.group: explained(recorder, reason, groups[reason.group]) for reason in waiting}
    reasons = (
        full.get(reason.group, reason) if reason.code is ReasonCode.CACHE_FULL else reason
        for reason in plan.reasons
    )
    return structs.replace(plan, reasons=Reasons(reasons))


def _nodes_for(recorder: Recorder, group: PodGroup) -> frozenset[int]:
    """As many nodes as a group has pods, those first where most may be had."""
    state, evictable = recorder.state, recorder.evictable
    caches = state.cluster.catalogue.caches
    assert caches is not None
    assert evictable is not None
    size = sum(caches.sizes[dataset] for dataset in dict.fromkeys(group.inputs))
    able = [
        node
        for node, cache in caches.of.items()
        if cache.limit >= size and state.cluster.snapshot.ready[node]
    ]
    able.sort(key=lambda node: (-caches.of[node].free - evictable.loose(node), node))
    return frozenset(able[: sum(role.minimum for role in group.roles)])


def _size(amount: int) -> str:
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if amount >= bytes_:
            return f"{amount / bytes_:.1f} {unit}".replace(".0 ", " ")
    return f"{amount} B"
