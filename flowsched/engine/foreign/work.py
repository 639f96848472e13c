"""Pods that others made: the reports of them, and how a decision about them becomes bindings.

They have no workflow and no rows of their own; the API server is the truth about them. SQL keeps only the decision to bind
one (`delta.bindings`), from the moment before the request until its outcome is seen. A pod that is *assumed* (asked for,
not yet seen) holds its room until then, and never loses it by age.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import structs

from flowsched.engine.delta import BindingWrite
from flowsched.engine.evictions import EMPTIED
from flowsched.engine.foreign.preemption import cover, note_budget, stay
from flowsched.engine.pacing import left
from flowsched.engine.recovery import node_index
from flowsched.engine.state.foreign import ClassKey, ForeignWork, Placed
from flowsched.engine.transaction import Recorder
from flowsched.executor.foreign import (
    Bind,
    BindRefused,
    BudgetSeen,
    Evict,
    EvictionRefused,
    ForeignEvent,
    ForeignGroup,
    ForeignPod,
    GroupGone,
    GroupSeen,
    NamespaceSeen,
    PodLeft,
    PodWaits,
    RoomTaken,
)
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.values import replace

#: Pods that were asked to leave an emptied node and have not are asked again after so long.
ASK_AGAIN_MS: Final = 60_000
#: How long a gang may stay half placed before its placed pods are taken away (FAULTS.md P4).
T_GANG_MS: Final = 60_000
#: How long room of `min_resources` stays reserved for pods that do not come.
RESERVED_MS: Final = 600_000
#: Nothing is at stake with it.
_NOTHING: Final = Claim("", -1, (), ClaimKind.RUNNING, "", 0, None)


def report_foreign(recorder: Recorder, event: ForeignEvent) -> None:
    """Apply one event. Each reports a state, so a repetition changes nothing."""
    match event:
        case GroupSeen(group):
            _rule(recorder, group)
        case GroupGone(key):
            work = recorder.state.foreign.groups.get(key)
            if work is not None:
                recorder.statement.assign(work, "group", None)
                recorder.statement.assign(work, "complete", False)
                recorder.statement.assign(work, "done", {})
                recorder.reconsider(key, work.placed)
                _tidy(recorder, key)
        case PodWaits(pod):
            _waits(recorder, pod)
        case RoomTaken():
            note_rooms(recorder, (event,))
        case PodLeft():
            _left(recorder, event)
        case BindRefused(uid):
            _refused(recorder, uid)
        case NamespaceSeen(name, labels):
            recorder.state.cluster.snapshot.peers.set_namespace(
                name, labels
            )  # not undone: the event comes again
        case BudgetSeen(name, allowed):
            note_budget(recorder, name, allowed)
        case EvictionRefused(uids):
            stay(recorder, uids)


def bind(
    recorder: Recorder, key: str, kind: ClassKey, nodes: Sequence[int], promoted: Sequence[tuple[int, ...]]
) -> None:
    """Take the room and intend the bindings of the pods of one class that wait, as many as there are nodes, in their order.

    `promoted`: how far waiting has promoted each, as in `Claim`.
    """
    state, statement, snapshot = recorder.state, recorder.statement, recorder.state.cluster.snapshot
    work = state.foreign.groups[key]
    alike = work.waiting[kind]
    pods = list(islice(alike.values(), len(nodes)))
    group, template, now = work.group, kind.template, recorder.now
    queue = group.queue if group is not None else "default"
    amount = snapshot.vector(template.resources)
    claims, placed = [], {}
    for pod, node, steps in zip(pods, nodes, promoted, strict=True):
        statement.pop(alike, pod.uid)
        of = f"{pod.namespace}/{pod.name}" if group is None else f"{group.namespace}/{group.name}"
        claims.append(
            Claim(
                pod.uid,
                node,
                amount,
                ClaimKind.RUNNING,
                queue,
                now,
                None,
                rules=template.rules,
                user=pod.namespace,
                group=of,
                promoted=steps,
            )
        )
        placed[pod.uid] = Placed(pod.role, pod, pod.namespace, pod.name, pod.owned, node, False)
        name = snapshot.names[node]
        recorder.binds.append(
            Bind(pod.uid, pod.namespace, pod.name, pod.version, name, key, state.policy.epoch)
        )
        recorder.delta.bindings.append(
            BindingWrite(pod.uid, pod.namespace, pod.name, name, key, state.policy.epoch, now)
        )
    if not alike:
        statement.pop(work.waiting, kind)
    snapshot.claim_all(claims, statement)
    statement.put_all(work.placed, placed)
    statement.put_all(state.foreign.assumed, dict.fromkeys(placed, now))


def release_half_placed(recorder: Recorder) -> None:
    """Take away members of gangs that have stood half placed for too long, where a controller makes them again."""
    for key in sorted(recorder.state.foreign.halved):
        work = recorder.state.foreign.groups.get(key)
        if work is None or work.short_since is None:
            continue
        due = work.short_since + T_GANG_MS
        if recorder.now < due:
            recorder.wake_at(due)
            continue
        reason = (
            f"{len(work.placed)} of {work.group.minimum if work.group else 0} members had a node for too long"
        )
        for uid, placed in work.placed.items():
            if placed.owned and placed.confirmed:
                recorder.evictions.append(Evict(uid, placed.namespace, placed.name, reason))
        recorder.statement.assign(work, "short_since", recorder.now)  # asked again, if it does not help
        recorder.wake_at(recorder.now + T_GANG_MS)


def ask_on_drained(recorder: Recorder) -> None:
    """Ask for the eviction of pods that flowsched placed on emptied nodes, if their controllers would create them again."""
    state = recorder.state
    for name, drain in list(state.cluster.drains.items()):
        at = state.cluster.snapshot.index.get(name)
        if at is None or drain.order.until_ms is None or recorder.now < drain.order.until_ms:
            continue
        placed = [
            (uid, each)
            for uid, key in state.foreign.pods.items()
            if (each := state.foreign.groups[key].placed.get(uid)) is not None
            and each.node == at
            and each.owned
            and each.confirmed
        ]
        if not placed:
            continue
        due = recorder.now if drain.asked_ms is None else drain.asked_ms + ASK_AGAIN_MS
        if recorder.now >= due:
            recorder.evictions.extend(Evict(uid, each.namespace, each.name, EMPTIED) for uid, each in placed)
            recorder.statement.put(state.cluster.drains, name, replace(drain, asked_ms=recorder.now))
            due = recorder.now + ASK_AGAIN_MS
        recorder.wake_at(due)


# ---------------------------------------------------------------------------------------------------- events


def _rule(recorder: Recorder, group: ForeignGroup) -> None:
    work = _work(recorder, group.key)
    recorder.statement.assign(work, "group", group)
    recorder.reconsider(group.key, work.placed)
    if group.started and not work.complete:
        recorder.statement.assign(work, "complete", True)
        _judge(recorder, group.key)


def _work(recorder: Recorder, key: str) -> ForeignWork:
    found = recorder.state.foreign.groups.get(key)
    if found is None:
        found = ForeignWork()
        recorder.statement.put(recorder.state.foreign.groups, key, found)
    return found


def _waits(recorder: Recorder, pod: ForeignPod) -> None:
    state, statement = recorder.state, recorder.statement
    if pod.uid in state.foreign.assumed:
        return  # the binding is under way; this report is older, or of another field
    work = _work(recorder, pod.group)
    key = ClassKey(pod.role, pod.priority, pod.template, pod.within, pod.preempts)
    alike = work.waiting.get(key)
    if alike is None or pod.uid not in alike:  # else it keeps its place
        _forget(recorder, pod.uid)
        alike = work.waiting.get(key)
    if alike is None:
        alike = {}
        statement.put(work.waiting, key, alike)
    statement.put(alike, pod.uid, pod)
    statement.put(state.foreign.pods, pod.uid, pod.group)


def note_rooms(recorder: Recorder, events: Sequence[RoomTaken]) -> None:
    """Note pods on nodes, in order. The claims of those that are new are made together: after a restart that is every pod."""
    snapshot, statement = recorder.state.cluster.snapshot, recorder.statement
    fresh: dict[str, Claim] = {}
    amounts: dict[int, tuple[int, ...]] = {}  #: pods that are alike share their `resources`
    for event in events:
        node = node_index(recorder.state, event.node)
        if event.owner in recorder.state.work.pods:
            _moved(recorder, event, node)
            continue  # one of ours, which has its claim already
        if event.owner in fresh:  # reported twice
            snapshot.claim_all(tuple(fresh.values()), statement)
            fresh = {}
        amount = amounts.get(id(event.resources))
        if amount is None:
            amount = amounts[id(event.resources)] = snapshot.vector(event.resources)
        known = snapshot.claims.get(event.owner)
        claim = _taken(recorder, event, node, amount, known)
        if claim is None:
            continue
        recorder.dirty = True
        if known is None:
            fresh[event.owner] = claim
        else:
            snapshot.claim(claim, statement)
    snapshot.claim_all(tuple(fresh.values()), statement)


def _taken(
    recorder: Recorder, event: RoomTaken, node: int, amount: tuple[int, ...], known: Claim | None
) -> Claim | None:
    """Note one pod of others on its node. Returns its claim; None if the known claim agrees with the report.

    Args:
        recorder: Of this step.
        event: The pod.
        node: Its node.
        amount: (R,) its request.
        known: Its claim so far.
    """
    state, statement = recorder.state, recorder.statement
    _confirm(recorder, event.owner)
    asked = event.leaving or event.owner in state.foreign.making_way
    if event.group:
        _stop_waiting(recorder, event.owner)
        work = _work(recorder, event.group)
        placed = Placed(
            event.role, None, event.namespace, event.name, event.owned, node, True, event.stake, asked
        )
        if event.leaving:
            statement.pop(state.foreign.making_way, event.owner)
        known_as = work.placed.get(event.owner)
        if known_as != placed:
            recorder.reconsider(event.group, (event.owner,))
        statement.put(work.placed, event.owner, placed)
        statement.put(state.foreign.pods, event.owner, event.group)
        cover(recorder, event.owner, event.group, event.stake)
        _judge(recorder, event.group)
    kind = ClaimKind.RELEASING if asked else ClaimKind.RUNNING
    if known is None:
        known = _NOTHING
    elif _holds(known, event, node, amount, kind):
        return None
    return Claim(
        event.owner,
        node,
        amount,
        kind,
        event.queue,
        event.since_ms,
        None,
        0,
        event.group,
        event.rules,
        user=event.namespace if event.queue else "",
        # Its disruption cost is settled later in the step.
        unit=known.unit,
        priority=known.priority,
        qos=known.qos,
        started_ms=known.started_ms,
        elastic=known.elastic,
        promoted=known.promoted,
    )


def _holds(claim: Claim, event: RoomTaken, node: int, amount: tuple[int, ...], kind: ClaimKind) -> bool:
    """Whether a claim agrees with the report: then the claim that the decision made stays, with its moment."""
    place = (claim.node, claim.kind, claim.amount) == (node, kind, amount)
    return (
        place
        and claim.queue == event.queue
        and claim.rules == event.rules
        and event.since_ms in (0, claim.since_ms)
    )


def _moved(recorder: Recorder, event: RoomTaken, node: int) -> None:
    """One of our pods as observed. Rules of foreign pods may match its labels. In a hand-over the other scheduler chose."""
    state, statement, name = recorder.state, recorder.statement, event.owner
    left(recorder, name)
    claim = state.cluster.snapshot.claims.get(name)
    if claim is not None and claim.rules != event.rules:
        claim = structs.replace(claim, rules=event.rules)
        state.cluster.snapshot.claim(claim, statement)
        recorder.dirty = True
    if claim is None or claim.node == node:
        return
    recorder.dirty = True
    ref = state.work.pods[name]
    run = state.work.runs.get(ref.workflow)
    if run is not None:
        statement.set(run.stages[ref.stage].node, ref.task, node)
    state.cluster.snapshot.claim(structs.replace(claim, node=node), statement)


def _left(recorder: Recorder, event: PodLeft) -> None:
    state, statement, owner = recorder.state, recorder.statement, event.owner
    if owner in state.work.pods:
        return  # its end is reported as one of ours
    _confirm(recorder, owner)
    key = state.foreign.pods.get(owner) or (event.group if event.succeeded else "")
    if not key:
        state.cluster.snapshot.unclaim(owner, statement)
        return
    work = _work(recorder, key)
    placed = work.placed.get(owner)
    _forget(recorder, owner)
    if event.succeeded:
        statement.put(work.done, owner, placed.role if placed is not None else event.role)
    else:
        statement.pop(work.done, owner)
    _judge(recorder, key)
    _tidy(recorder, key)


def _refused(recorder: Recorder, uid: str) -> None:
    """The room is free again, and the pod waits as before."""
    state = recorder.state
    key = state.foreign.pods.get(uid)
    if key is None or uid not in state.foreign.assumed:
        return
    pod = state.foreign.groups[key].placed[uid].pod
    _confirm(recorder, uid)
    _forget(recorder, uid)
    if pod is not None:
        _waits(recorder, pod)
    _judge(recorder, key)


def _confirm(recorder: Recorder, uid: str) -> None:
    """The outcome of a binding is known."""
    if recorder.statement.pop(recorder.state.foreign.assumed, uid) is not None:
        recorder.delta.bindings_done.append(uid)


def _forget(recorder: Recorder, uid: str) -> None:
    """A pod neither waits nor has a node."""
    state, statement = recorder.state, recorder.statement
    _stop_waiting(recorder, uid)
    key = statement.pop(state.foreign.pods, uid)
    if key is not None:
        work = state.foreign.groups[key]
        statement.pop(work.placed, uid)
        statement.pop(state.foreign.making_way, uid)
        statement.pop(state.foreign.covered, uid)
        recorder.reconsider(key, (uid,))  # of a gang, the others too
    state.cluster.snapshot.unclaim(uid, statement)


def _stop_waiting(recorder: Recorder, uid: str) -> None:
    key = recorder.state.foreign.pods.get(uid)
    work = recorder.state.foreign.groups.get(key) if key is not None else None
    if work is None:
        return
    for kind, alike in work.waiting.items():
        if uid in alike:
            recorder.statement.pop(alike, uid)
            if not alike:
                recorder.statement.pop(work.waiting, kind)
            return


def _judge(recorder: Recorder, key: str) -> None:
    """Whether the gang stands half placed, and since when."""
    state, statement = recorder.state, recorder.statement
    work = state.foreign.groups[key]
    if work.group is None or not work.group.gang:
        return
    confirmed = sum(placed.confirmed for placed in work.staying.values())
    complete = work.complete or confirmed + len(work.done) >= work.group.minimum
    if complete and not work.complete:
        statement.assign(work, "complete", True)
    half = not complete and confirmed > 0
    if half and work.short_since is None:
        statement.assign(work, "short_since", recorder.now)
        statement.include(state.foreign.halved, key)
    elif not half and work.short_since is not None:
        statement.assign(work, "short_since", None)
        statement.exclude(state.foreign.halved, key)


def _tidy(recorder: Recorder, key: str) -> None:
    """Forget a group of which nothing is left."""
    state = recorder.state
    if state.foreign.groups[key].empty:
        recorder.statement.pop(state.foreign.groups, key)
        recorder.statement.exclude(state.foreign.halved, key)
        recorder.statement.exclude(state.foreign.holding, key)
        recorder.foreign_ended.append(key)
