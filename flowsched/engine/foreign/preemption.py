"""Preemption of foreign pods: which may be evicted for a group, in which units, and how they are asked to leave.

A pod may go if it has been seen on its node, a controller would make it again (or it declares that it may go), neither it nor
its PodGroup forbids it, and the disruption budgets that cover it allow it. A gang is one unit: all of it goes, or none.
Its members beyond its minimum go before that, those that came last first, also where one of the others must stay. Everything
else is decided where our own work is (`scheduling.preemption`): a unit is a mark on claims.

Nothing of this is a row. The pods themselves carry the mark that they make way, all of a unit before the first of them goes. A
new leader continues if the marks are complete (`_finish`); if they are not, no pod has gone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import structs

from flowsched.engine.state.foreign import ForeignWork, Placed
from flowsched.engine.transaction import Recorder
from flowsched.executor.foreign import Evict, Stake
from flowsched.scheduling.state.claims import ClaimKind

#: A unit that could not be evicted is left alone for so long. The group that asked for it does not ask again sooner either.
SPARE_MS: Final = 60_000
#: From here on Kubernetes' own classes (`system-cluster-critical` …): without such pods a cluster does not work.
CRITICAL: Final = 2_000_000_000
_AGAIN: Final = "it was to make way for others when another leader led"
_DIGITS: Final = re.compile("([0-9]+)")


def cover(recorder: Recorder, uid: str, key: str, stake: Stake) -> None:
    """Note whether any disruption budget covers a pod."""
    if stake.budgets:
        recorder.statement.put(recorder.state.foreign.covered, uid, key)
    else:
        recorder.statement.pop(recorder.state.foreign.covered, uid)


def note_budget(recorder: Recorder, name: str, allowed: int | None) -> None:
    """A disruption budget allows more or less than before."""
    state = recorder.state
    if allowed is None:
        recorder.statement.pop(state.foreign.budgets, name)
    else:
        recorder.statement.put(state.foreign.budgets, name, allowed)
    for uid, key in state.foreign.covered.items():
        recorder.reconsider(key, (uid,))


def settle(recorder: Recorder) -> None:
    """Bring claims up to date: which pods may be evicted, which ones go together, and the work that would be lost."""
    state = recorder.state
    for unit, (key, until) in list(state.foreign.spared.items()):
        if recorder.now < until:
            recorder.wake_at(until)
            continue
        recorder.statement.pop(state.foreign.spared, unit)
        work = state.foreign.groups.get(key)
        recorder.reconsider(key, work.placed if work is not None else ())
    if not recorder.reconsidered:
        return
    if state.foreign.covered or state.foreign.guarded:
        _guard(recorder)
    due, recorder.reconsidered = recorder.reconsidered, {}
    for key, uids in due.items():
        work = state.foreign.groups.get(key)
        if work is None:
            continue
        _finish(recorder, key, work)
        if work.group is not None and work.group.gang:
            _settle_gang(recorder, key, work)
            continue
        for uid in sorted(uids & work.placed.keys()):
            placed = work.placed[uid]
            unit = _unit(work, key, uid)
            free = (
                _may_go(work, placed)
                and unit not in state.foreign.guarded
                and unit not in state.foreign.spared
            )
            _write(recorder, uid, placed, unit if free else "", None)


def ask(recorder: Recorder, owners: Iterable[str], message: str, *, begun: bool = False) -> None:
    """Pods make way: their room is counted as being freed from now on, and they are asked to go. `begun`: as in `Evict`."""
    state, statement = recorder.state, recorder.statement
    groups = set()
    for uid in owners:
        key = state.foreign.pods[uid]
        groups.add(key)
        work = state.foreign.groups[key]
        placed = work.placed[uid]
        unit = _unit(work, key, uid)
        statement.put(work.placed, uid, placed._replace(leaving=True))
        statement.put(state.foreign.making_way, uid, unit)
        claim = state.cluster.snapshot.claims.get(uid)
        if claim is not None:
            state.cluster.snapshot.claim(structs.replace(claim, kind=ClaimKind.RELEASING), statement)
        recorder.evictions.append(Evict(uid, placed.namespace, placed.name, message, unit, begun))
    for key in sorted(groups):
        work = state.foreign.groups[key]
        if work.staying:
            continue
        statement.assign(work, "complete", False)  # it starts anew: then it must come together again
        if work.reserved_until is not None:  # and its reserved room for pods to come is freed
            statement.assign(work, "reserved_until", recorder.now)


def stay(recorder: Recorder, uids: Sequence[str]) -> None:
    """All of a unit could not be evicted: it has its room as before, and is left alone for a while."""
    state, statement = recorder.state, recorder.statement
    for uid in uids:
        unit = statement.pop(state.foreign.making_way, uid)
        key = state.foreign.pods.get(uid)
        if unit is None or key is None:
            continue
        work = state.foreign.groups[key]
        statement.put(work.placed, uid, work.placed[uid]._replace(leaving=False))
        claim = state.cluster.snapshot.claims.get(uid)
        if claim is not None:
            state.cluster.snapshot.claim(structs.replace(claim, kind=ClaimKind.RUNNING, unit=""), statement)
        statement.put(state.foreign.spared, unit, (key, recorder.now + SPARE_MS))
        recorder.reconsider(key, (uid,))


# ------------------------------------------------------------------------------------------------------ inside


def _unit(work: ForeignWork, key: str, uid: str) -> str:
    return key if work.group is not None and work.group.gang else f"{key}/{uid}"


def _may_go(work: ForeignWork, placed: Placed) -> bool:
    """Whether a pod may be taken away at all, budgets aside."""
    if work.group is None or not placed.confirmed or placed.stake.priority >= CRITICAL:
        return False
    if len(placed.stake.budgets) > 1:  # the API server evicts no pod that more than one covers
        return False
    declared = (placed.stake.preemptible, work.group.preemptible)
    return False not in declared and (placed.owned or True in declared)


def _settle_gang(recorder: Recorder, key: str, work: ForeignWork) -> None:
    staying = work.staying
    free = all(placed.confirmed for placed in staying.values())
    free = free and key not in recorder.state.foreign.guarded and key not in recorder.state.foreign.spared
    elastic = _elastic(work, staying) if free else {}
    if free and not all(_may_go(work, placed) for placed in staying.values()):
        spare = _spare(elastic)  # some members must stay: only the spare ones may go, one by one
        for uid, placed in staying.items():
            goes = uid in spare and _may_go(work, placed)
            _write(recorder, uid, placed, f"{key}/{uid}" if goes else "", None)
        return
    for uid, placed in staying.items():
        _write(recorder, uid, placed, key if free else "", elastic.get(uid))


def _spare(elastic: Mapping[str, tuple[int, int, int]]) -> set[str]:
    """Members that a gang can do without: those of each role with the highest numbers."""
    roles: dict[int, list[str]] = {}
    for uid in sorted(elastic, key=lambda uid: elastic[uid][1]):
        roles.setdefault(elastic[uid][0], []).append(uid)
    return {uid for members in roles.values() for uid in members[elastic[members[0]][2] :]}


def _write(
    recorder: Recorder, uid: str, placed: Placed, unit: str, elastic: tuple[int, int, int] | None
) -> None:
    snapshot, stake = recorder.state.cluster.snapshot, placed.stake
    claim = snapshot.claims.get(uid)
    if claim is None or claim.kind is not ClaimKind.RUNNING:
        return
    priority = stake.priority + sum(claim.promoted[-1:])
    fresh = structs.replace(
        claim, unit=unit, priority=priority, qos=stake.qos, started_ms=stake.started_ms, elastic=elastic
    )
    if fresh != claim:
        recorder.dirty |= unit != claim.unit  # a waiting group may take its room now
        snapshot.restake(fresh, recorder.statement)


def _elastic(work: ForeignWork, staying: Mapping[str, Placed]) -> dict[str, tuple[int, int, int]]:
    """(role, number of the member, how many of the role must stay), where the gang has more than its minimum.

    Where roles have minimums of their own that add up to less than the gang's, each keeps as many more as are missing.
    """
    group = work.group
    if group is None or len(staying) + len(work.done) <= group.minimum:
        return {}
    by_role = group.role_minimums if group.minimum >= sum(group.role_minimums.values()) else {}
    beyond = group.minimum - sum(by_role.values())
    done = Counter(work.done.values()) if by_role else Counter({"": len(work.done)})
    members = sorted(
        staying, key=lambda uid: (staying[uid].stake.created_ms, _natural(staying[uid].name), uid)
    )
    roles = sorted({staying[uid].role for uid in members}) if by_role else [""]
    found = {}
    for number, uid in enumerate(members):
        role = staying[uid].role if by_role else ""
        least = by_role.get(role, 0) + beyond - done[role]
        found[uid] = (roles.index(role), number, max(1, least))
    return found


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """For sorting names: worker-10 comes after worker-9."""
    parts = _DIGITS.split(name)
    return tuple(
        (text, int(digits or "0")) for text, digits in zip(parts[::2], [*parts[1::2], ""], strict=True)
    )


def _guard(recorder: Recorder) -> None:
    """Guard the units that must stay, so that all other units could go together without breaking a disruption budget.

    The important units and the old ones stay.
    """
    state = recorder.state
    left = Counter(state.foreign.budgets)
    units: dict[str, list[Placed]] = {}
    for uid, key in state.foreign.covered.items():
        work = state.foreign.groups[key]
        placed = work.placed[uid]
        if uid in state.foreign.making_way:  # asked to go, and perhaps not counted yet
            left.subtract(placed.stake.budgets)
        elif not placed.leaving and _may_go(work, placed):
            units.setdefault(_unit(work, key, uid), []).append(placed)
    guarded = set()
    for unit in sorted(units, key=lambda unit: (*_cheapest(units[unit]), unit)):
        asked = Counter(name for placed in units[unit] for name in placed.stake.budgets)
        if all(left[name] >= count for name, count in asked.items()):
            left.subtract(asked)
        else:
            guarded.add(unit)
    changed = guarded ^ state.foreign.guarded
    for uid, key in state.foreign.covered.items() if changed else ():
        if _unit(state.foreign.groups[key], key, uid) in changed:
            recorder.reconsider(key, (uid,))
    recorder.statement.assign(state.foreign, "guarded", frozenset(guarded))


def _cheapest(pods: Sequence[Placed]) -> tuple[int, int]:
    """Lower priority before higher, the youngest before the old."""
    return max(each.stake.priority for each in pods), -max(each.stake.created_ms for each in pods)


def _finish(recorder: Recorder, key: str, work: ForeignWork) -> None:
    """Evict the pods that an earlier leader marked, if their gang then goes as a whole or keeps its minimum.

    Otherwise that leader died before it had marked all of them, and it has asked no pod to go.
    """
    staying = work.staying
    marked = sorted(uid for uid, placed in staying.items() if placed.stake.marked)
    if not marked or work.group is None:
        return
    left = len(staying) - len(marked)
    if work.group.gang and left > 0 and left + len(work.done) < work.group.minimum:
        return
    broken = work.group.gang and len(staying) + len(work.done) < work.group.minimum
    ask(recorder, marked, _AGAIN, begun=broken)
