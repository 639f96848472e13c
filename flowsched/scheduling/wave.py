"""Serve the first turns of a cycle at once (`wave_order` says whose they are): one selection of nodes, one entry for each group.

The plan is the one that turn by turn would make; tests hold it to that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from flowsched.scheduling.framework import Profile
from flowsched.scheduling.given import Given
from flowsched.scheduling.horizon import Horizon
from flowsched.scheduling.placement import Ints
from flowsched.scheduling.plan import Reason
from flowsched.scheduling.podgroup import PodGroup, Shape
from flowsched.scheduling.pricing import Offer, Pricer
from flowsched.scheduling.promises import Promises, longest_of
from flowsched.scheduling.queues import QueueTree, Shares
from flowsched.scheduling.reservation import Taken
from flowsched.scheduling.room import Room
from flowsched.scheduling.snapshot import Snapshot
from flowsched.scheduling.standing import Standings
from flowsched.scheduling.usage import Payer
from flowsched.scheduling.wave_order import Alike, Asker, Wave, first_turns

#: With fewer queues than this, turn by turn is as fast.
FEW: Final = 8


class Serving(Protocol):
    """What of a cycle serves many groups at once; see `cycle`."""

    snapshot: Snapshot
    queues: QueueTree
    profile: Profile
    now: int
    left: int
    waiting: dict[str, list[PodGroup]]
    given: dict[int, Given]
    room: Room
    pricer: Pricer
    standings: Standings
    shares: Shares
    promises: Promises
    _horizon: Horizon | None

    def known_refusal(self, group: PodGroup) -> Reason | None:
        """Why a group like this one was refused before."""
        ...


def serve_first(cycle: Serving, budget: int) -> set[object]:
    """Place what the first turns get, as far as they are known beforehand.

    Args:
        cycle: The cycle; groups that have got everything are taken out of `waiting`.
        budget: It looks at no more groups than so many.

    Returns:
        Queues and payers that were served, those above them included. As many groups were looked at as `given` has more.
    """
    found = _kind(cycle)
    if found is None:
        return set()
    offer, alike = found
    asker = Asker(cycle.waiting, cycle.queues, cycle.shares, cycle.snapshot.usage, cycle.profile, cycle.now)
    amount = offer.group.roles[0].shape.requests
    wave = first_turns(asker, amount, cycle.left, alike)
    if wave is None:
        return set()
    pods = _within(wave, budget)
    if pods == 0:
        return set()
    long = cycle.promises.outlasting(offer)
    packing = cycle.profile.of(offer.group.queue).packing
    table = offer.tables[0].wanting(pods, 1)
    spots = cycle.standings.place_each(offer.axes, table, packing, spare=long is not None)
    pods = wave.turns(len(spots.nodes)) if len(spots.nodes) < pods else pods
    if pods == 0:
        return set()
    nodes, costs, of = spots.nodes[:pods], spots.costs[:pods], wave.of[:pods]
    cycle.room.take(offer.axes, table, type(spots)(nodes, costs), None, long)
    unknown = cycle.profile.default_runtime_ms
    runtimes = [unknown if group.runtime_ms is None else group.runtime_ms for group in wave.groups]
    ends = cycle.now + np.array(runtimes)[of]
    late = ends
    if any(group.high_ms is not None for group in wave.groups):
        late = cycle.now + np.array([longest_of(group, cycle.profile) for group in wave.groups])[of]
    cycle.promises.taken.append(Taken(ends, late, offer.axes, table, nodes))
    if cycle._horizon is not None:
        cycle._horizon.add(nodes, amount, ends - cycle.now)
    cycle.left -= pods
    return enter(cycle, wave, nodes, costs, of)


def _kind(cycle: Serving) -> tuple[Offer, Alike] | None:
    """What most of those who are first in a queue ask for, priced, and who asks for the same."""
    profile, tree = cycle.profile, cycle.queues
    if len(cycle.waiting) < FEW or cycle.left < FEW or cycle.snapshot.nominations or tree.promises:
        return None
    if profile.backfill == "conservative" or profile.costs or profile.first_costs or profile.step_costs:
        return None
    if not cycle.snapshot.ready.any():
        return None
    simple = [groups[0] for groups in cycle.waiting.values() if _is_simple(groups[0])]
    if len(simple) < FEW:
        return None
    shapes = [group.roles[0].shape for group in simple]
    kinds = {id(shape): shape for shape in shapes}
    counts: Counter[tuple[int, ...]] = Counter()
    for kind, count in Counter(map(id, shapes)).items():  # mostly one object: hashing requests takes longer
        counts[kinds[kind].requests] += count
    requests, count = counts.most_common(1)[0]
    if count < FEW:
        return None
    first = next(group for group in simple if group.roles[0].shape.requests == requests)
    alike = _alike(cycle, first)
    if not alike([first])[0] or cycle.known_refusal(first) is not None:
        return None
    offer = cycle.pricer.price(first)
    return (offer, alike) if offer.plain else None


def _is_simple(group: PodGroup) -> bool:
    """Whether nothing but its shape and its queue says where it goes, and when."""
    if group.gang or group.inputs or group.remote or group.shut:
        return False
    if group.home is not None or group.min_resources is not None:
        return False
    shape = group.roles[0].shape
    return shape.rules is None and not shape.direct


def _alike(cycle: Serving, first: PodGroup) -> Alike:
    """Whether groups are simple, ask for the same as this one, and would find the same room."""
    shape, profile, shares = first.roles[0].shape, cycle.profile, cycle.shares
    own = profile.of(first.queue) if profile.queues else None
    limits = cycle.queues.limits
    long = cycle.promises.too_long(first) if cycle.promises.made else None
    usual = own is None and long is None and not limits
    known: dict[int, tuple[Shape, bool]] = {}  #: by id; kept, so that their ids stay theirs
    free: dict[str, bool] = {}

    def same(other: Shape) -> bool:
        found = known.get(id(other))
        if found is None:
            found = known[id(other)] = other, other == shape
        return found[1]

    def may(group: PodGroup) -> bool:
        if own is not None and profile.of(group.queue) is not own:
            return False
        if limits:
            fine = free.get(group.queue)
            if fine is None:
                bound = shares.limited(group.queue) or shares.paused(group.queue)
                fine = free[group.queue] = not bound
            if not fine:
                return False
        return long is None or cycle.promises.too_long(group) == long

    def alike(groups: Sequence[PodGroup]) -> list[bool]:
        fine = []
        for group in groups:  # thousands: no call for each, as far as it can be helped
            other = group.roles[0].shape
            plain = not (group.gang or group.inputs or group.remote or group.shut)
            plain = plain and group.home is None and group.min_resources is None
            fine.append(plain and (other is shape or same(other)) and (usual or may(group)))
        return fine

    return alike


def _within(wave: Wave, budget: int) -> int:
    """How many pods go before more than `budget` groups have been looked at."""
    firsts = np.sort(np.unique(wave.of, return_index=True)[1], kind="stable")
    return len(wave.of) if len(firsts) <= budget else int(firsts[budget])


def enter(cycle: Serving, wave: Wave, nodes: Ints, costs: Ints, of: Ints) -> set[object]:
    """Note for each group what it got, and for each queue what it has."""
    order = np.argsort(of, kind="stable")
    numbers, starts, firsts, counts = _parts(of, order)
    nodes, highest = nodes[order], np.maximum.reduceat(costs[order], starts)
    nothing = np.zeros(len(nodes), dtype=np.int64)
    pods: dict[Payer, int] = {}
    done: set[int] = set()
    rows = np.stack([numbers, starts, counts, highest], axis=1)[np.argsort(firsts, kind="stable")]
    requests = wave.groups[int(of[0])].roles[0].shape.requests
    for number, start, count, cost in rows.tolist():
        group = wave.groups[number]
        end = start + count
        cycle.given[group.key] = Given([nodes[start:end]], [nothing[:count]], cost)
        payer = Payer(group.queue, group.user)
        pods[payer] = pods.get(payer, 0) + count
        if count == group.roles[0].count:
            done.add(group.key)
    cycle.shares.add_each(pods, requests)
    if done:
        for name in {group.queue for group in wave.groups if group.key in done}:
            left = [group for group in cycle.waiting[name] if group.key not in done]
            if left:
                cycle.waiting[name] = left
            else:
                del cycle.waiting[name]
    return _with_those_above({payer.queue for payer in pods} | pods.keys(), cycle)


def _with_those_above(served: set[object], cycle: Serving) -> set[object]:
    """Queues and payers, the queues above them, too."""
    tree = cycle.queues
    if tree.nested:
        for parent in {tree.parent_of(name) for name in served if isinstance(name, str)}:
            if parent is not None:
                served.update([above.name for above in cycle.shares.path(parent)])
    return served


def _parts(of: Ints, order: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each group that has pods: its number, where they begin in `order`, its first pod, and how many."""
    ordered = of[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(np.append(starts, len(of)))
    return ordered[starts], starts, order[starts], counts
