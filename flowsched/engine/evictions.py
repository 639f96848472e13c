"""Evictions: pods that leave for a nominated group or for a drained node, and the room that is reserved meanwhile.

A nomination is in memory alone: after a restart the same group gets the same room again, since room that other pods leave
counts as its own (`scheduling.preemption`). Durable is that the victims leave. Claims reserve the free part of the group's room
from the moment of the decision. The step in which its victims have left reserves their room, before it places any other group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np

from flowsched.engine.state import EngineState
from flowsched.engine.state.cluster import Drain, DrainOrder
from flowsched.engine.state.work import GroupKey, PodRef
from flowsched.engine.transaction import Recorder
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.plan import Eviction, Nomination, Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.gpus import GPU, Parts, parts_of
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.victims import claimed_for, devices_claimed_for
from flowsched.values import replace


def keep_room(recorder: Recorder) -> None:
    """Reserve the parts of nominated groups' room that have become free; give up nominations that cannot succeed."""
    state = recorder.state
    for key, nomination in list(state.cluster.snapshot.nominations.items()):
        usable = all(state.cluster.snapshot.ready[node] for node, _ in nomination.room)
        if not usable or recorder.now >= nomination.until_ms or _is_refused(state, nomination):
            give_up(recorder, key)
            recorder.dirty = True
        else:
            _reserve(recorder, nomination)
            recorder.wake_at(nomination.until_ms)


def drop_unwanted(recorder: Recorder, offered: Collection[int]) -> None:
    """Give up the room of groups that wait no more (cancelled, paused, failed). A group that stages its inputs still waits."""
    state = recorder.state
    for key in [key for key in state.cluster.snapshot.nominations if key not in offered]:
        group = state.work.groups.get(key)
        if not isinstance(group, GroupKey) or not _is_staging(state, group):
            _end(recorder, key)
            recorder.dirty = True


def carry_out(recorder: Recorder, plan: Plan, make_way: Callable[[Sequence[str], str], None]) -> None:
    """Evict the victims, and reserve the free part of their room. `make_way`: how pods of others are asked to go."""
    state, statement = recorder.state, recorder.statement
    for eviction in plan.evictions:
        refs = [state.work.pods[owner] for owner in eviction.owners if owner in state.work.pods]
        if refs:
            _evict(recorder, eviction, refs)
        else:
            make_way(eviction.owners, eviction.message)
    for nomination in plan.nominations:
        statement.put(state.cluster.snapshot.nominations, nomination.group, nomination)
        statement.pop(state.cluster.snapshot.spent, nomination.group)
        _reserve(recorder, nomination)
        recorder.wake_at(nomination.until_ms)


def placed(recorder: Recorder, plan: Plan, groups: Sequence[PodGroup]) -> None:
    """End the nominations of groups that get their room now. Where inputs are to be copied first, the room stays reserved."""
    nominations = recorder.state.cluster.snapshot.nominations
    if not nominations:
        return
    gangs = {group.key for group in groups if group.gang}
    for placement in plan.placements:
        there = np.concatenate(placement.missing_bytes) == 0
        binds = there.all() if placement.group in gangs else there.any()
        if binds and placement.group in nominations:
            _end(recorder, placement.group)
            recorder.dirty = True  # more of it may be entitled to room
            recorder.wake_at(recorder.now)


def give_up(recorder: Recorder, key: int) -> None:
    """A nomination came to nothing."""
    recorder.statement.put(recorder.state.cluster.snapshot.spent, key, recorder.now)
    _end(recorder, key)


def _is_refused(state: EngineState, nomination: Nomination) -> bool:
    """Whether pods of others that were to make way for it stay after all: a disruption budget kept them."""
    claims = (
        state.cluster.snapshot.claims.get(owner)
        for owner in nomination.victims
        if owner not in state.work.pods
    )
    return any(claim is not None and claim.kind is ClaimKind.RUNNING for claim in claims)


def _end(recorder: Recorder, key: int) -> None:
    state, statement = recorder.state, recorder.statement
    nomination = statement.pop(state.cluster.snapshot.nominations, key)
    for node, _ in nomination.room if nomination is not None else ():
        state.cluster.snapshot.unclaim(nomination.holder(node), statement)  # type: ignore[union-attr]


def _reserve(recorder: Recorder, nomination: Nomination) -> None:
    snapshot = recorder.state.cluster.snapshot
    for node, amounts in nomination.room:
        reserved = np.array(claimed_for(snapshot, nomination, node), dtype=np.int64)
        wanted = np.zeros(len(snapshot.axes), dtype=np.int64)
        wanted[: len(amounts)] = amounts
        free = np.maximum(snapshot.allocatable[node] - snapshot.used[node], 0)
        more = np.minimum(wanted - reserved, free)
        devices = _devices_to_reserve(snapshot, nomination, node)
        if devices is not None:  # other devices may be free, but they are not for it
            lacks = sum(dict(nomination.devices)[node]) - sum(part for _, part in devices)
            more[GPU] = max(0, min(more[GPU], wanted[GPU] - reserved[GPU] - lacks))
        if more.any():
            claim = Claim(
                owner=nomination.holder(node),
                node=node,
                amount=tuple((reserved + more).tolist()),
                devices=devices or (),
                kind=ClaimKind.NOMINATED,
                queue=nomination.queue,
                since_ms=recorder.now,
                until_ms=nomination.until_ms,
            )
            snapshot.claim(claim, recorder.statement)


def _devices_to_reserve(snapshot: Snapshot, nomination: Nomination, node: int) -> Parts | None:
    """The GPU parts of a node that are reserved for it already, plus free ones of the rest. None where any whole GPUs will do."""
    wanted = dict(nomination.devices).get(node)
    if wanted is None:
        return None
    reserved = devices_claimed_for(snapshot, nomination, node).tolist()
    free = snapshot.devices.free_on(node)
    least = [min(want - has, max(left, 0)) for want, has, left in zip(wanted, reserved, free, strict=False)]
    return parts_of([has + more for has, more in zip(reserved, least, strict=False)])


def _is_staging(state: EngineState, group: GroupKey) -> bool:
    return any(
        each.workflow == group.workflow and each.stage == group.stage for each in state.data.staging.values()
    )


def _evict(recorder: Recorder, eviction: Eviction, refs: Sequence[PodRef]) -> None:
    """Take away the pods of one unit; its tasks wait again as soon as these are gone."""
    state = recorder.state
    run = state.work.runs[refs[0].workflow]
    stage = run.stages[refs[0].stage]
    tasks = np.array(sorted(ref.task for ref in refs), dtype=np.int64)
    leave = recorder.advance(run).shed if eviction.part else recorder.advance(run).evict
    leave(stage, tasks, eviction.reason, eviction.message)


# ---- drained nodes ----
#
# No new pod starts there from a moment on: now, or the begin of a maintenance. Before that moment only pods start there that will
# have ended by then (`backlog`). Pods run to their end; with a deadline, those that have not ended by it are evicted, and their
# tasks run elsewhere. A drain is a row in SQL, and an event reports it to the engine, again after a restart. The drain
# stores the cluster's latest report of the node until the node is given back.


EMPTIED: Final = "its node is being emptied"


def change_drain(recorder: Recorder, name: str, order: DrainOrder | None) -> None:
    """A node takes no new pods from a moment on, or (None) is used again."""
    state, statement = recorder.state, recorder.statement
    known = state.cluster.drains.get(name)
    if order is None:
        if known is not None:
            statement.pop(state.cluster.drains, name)
            state.cluster.snapshot.put_node(known.node, statement)
        return
    at = state.cluster.snapshot.index.get(name)
    reported = NodeInfo(name, 0, 0, ready=False) if at is None else state.cluster.snapshot.info(at)
    node = reported if known is None else known.node
    statement.put(state.cluster.drains, name, Drain(order, node))
    if name in state.cluster.snapshot.index:
        state.cluster.snapshot.put_node(_closed(node, order, recorder.now), statement)


def as_drained(recorder: Recorder, node: NodeInfo) -> NodeInfo:
    """A reported node as the snapshot shall have it."""
    drain = recorder.state.cluster.drains.get(node.name)
    if drain is None:
        return node
    recorder.statement.put(recorder.state.cluster.drains, node.name, replace(drain, node=node))
    return _closed(node, drain.order, recorder.now)


def _closed(node: NodeInfo, order: DrainOrder, now: int) -> NodeInfo:
    """A node that takes no pods any more, or from a later moment on, with the reason."""
    is_open = now < order.from_ms
    begin = (
        f" from {datetime.fromtimestamp(order.from_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC on" if is_open else ""
    )
    why = f"{node.name} is drained{begin}{order.words} (`flowsched nodes uncordon {node.name}`)"
    return replace(node, ready=node.ready and is_open, trouble=node.trouble or why)


def empty_nodes(recorder: Recorder) -> None:
    """Close the nodes whose maintenance begins, and evict pods that have not ended in time."""
    cluster = recorder.state.cluster
    for name, drain in list(cluster.drains.items()):
        at = cluster.snapshot.index.get(name)
        if recorder.now < drain.order.from_ms:
            recorder.wake_at(drain.order.from_ms)
            continue
        if at is not None and cluster.snapshot.info(at).ready:
            cluster.snapshot.put_node(_closed(drain.node, drain.order, recorder.now), recorder.statement)
            recorder.dirty = True
        until_ms = drain.order.until_ms
        if until_ms is None:
            continue
        if recorder.now < until_ms:
            recorder.wake_at(until_ms)
        elif at is not None:
            _empty(recorder, at)


def _empty(recorder: Recorder, at: int) -> None:
    state = recorder.state
    ledger = state.cluster.snapshot.ledger
    there = np.flatnonzero((ledger.kind == ClaimKind.RUNNING) & (ledger.node == at)).tolist()
    tasks: dict[tuple[str, int], list[int]] = {}
    for slot in there:
        ref = state.work.pods.get(ledger.owner[slot])
        if ref is not None:
            tasks.setdefault((ref.workflow, ref.stage), []).append(ref.task)
    for (workflow, number), of_stage in tasks.items():
        run = state.work.runs[workflow]
        recorder.advance(run).evict(run.stages[number], np.array(sorted(of_stage)), "Drained", EMPTIED)
    if tasks:
        recorder.absorb()
