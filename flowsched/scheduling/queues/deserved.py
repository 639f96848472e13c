"""Deserved shares: what each queue deserves, by water-filling over the tree, resource by resource. Whole numbers, no state.

At every level a resource is poured out so that the shares of the children stand in the ratio of their weights. None gets more
than it wants or than its cap allows, and none less than its guarantee (as far as it wants it). Children of higher priority
drink first. What a queue leaves goes to its siblings: idle room is borrowed inside a department before it leaves it. So the
amounts say which queue borrows (it has more than it deserves) and from which (one that has less).

It is for people and decides nothing: `fair_share` decides the order, `preemption` which queue may take room back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowsched.scheduling.queues.tree import QueueTree, guaranteed

Amounts = tuple[int, ...]


class Claimant(NamedTuple):
    """One child at one level, for one resource. Amounts in the unit of the resource."""

    name: str
    weight: int
    priority: int
    floor: int  #: its guarantee, as far as it wants it
    want: int  #: what it has and asks for, at most its cap


def deserved(
    tree: QueueTree, demand: Mapping[str, Sequence[int]], total: Sequence[int]
) -> dict[str, Amounts]:
    """What each queue deserves of `total`.

    Args:
        tree: The queues.
        demand: By queue, (R,) what its own groups hold and ask for, without those of queues below it.
        total: (R,) what there is.

    Returns:
        By queue, (R,) for it and everything below it; every queue of `demand` and its ancestors. What a queue's
        own groups get beside the queues below it is not told apart.
    """
    nodes = _Nodes(tree, demand, len(total))
    found: dict[str, list[int]] = {name: [0] * len(total) for name in nodes.wants}
    for axis, amount in enumerate(total):
        given: dict[str | None, int] = {None: amount}
        for parent in nodes.parents:
            claimants = nodes.claimants(parent, axis)
            shares = poured(min(given[parent], amount), claimants)
            for claimant, share in zip(claimants, shares, strict=True):
                if claimant.name:
                    given[claimant.name] = found[claimant.name][axis] = share
    return {name: tuple(values) for name, values in found.items()}


class _Nodes:
    """The part of the tree that wants anything."""

    def __init__(self, tree: QueueTree, demand: Mapping[str, Sequence[int]], axes: int) -> None:
        self.tree, self._own = tree, {name: _padded(amount, axes) for name, amount in demand.items()}
        self.children: dict[str | None, dict[str, None]] = {None: {}}
        self.parents: list[str | None] = [None]  #: ancestors first
        for name in sorted(demand):
            for queue in tree.path(name):
                self.children.setdefault(queue.parent, {})[queue.name] = None
        for parent in self.parents:  # grows while it is read
            self.parents.extend(child for child in self.children[parent] if child in self.children)
        self.wants: dict[str, list[int]] = {}
        self._floors: dict[str, Amounts] = {}
        for child in self.children[None]:
            self._want(child, axes)

    def _want(self, name: str, axes: int) -> list[int]:
        """(R,) what it and those below it want, each at most its cap."""
        total = list(self._own.get(name, [0] * axes))
        for child in self.children.get(name, ()):
            total = [have + more for have, more in zip(total, self._want(child, axes), strict=True)]
        cap = _padded(self.tree.get(name).cap or (), axes, -1)
        self.wants[name] = [
            want if most < 0 else min(want, most) for want, most in zip(total, cap, strict=True)
        ]
        self._floors[name] = guaranteed(self.tree, name, axes)
        return self.wants[name]

    def claimants(self, parent: str | None, axis: int) -> list[Claimant]:
        """The claimants that share a queue's part of a resource: its children and, with an empty name, its own groups."""
        found = []
        if parent is not None and parent in self._own:
            found.append(Claimant("", 1, 0, 0, self._own[parent][axis]))
        for name in self.children[parent]:
            queue, want = self.tree.get(name), self.wants[name][axis]
            found.append(
                Claimant(name, queue.weight, queue.priority, min(want, self._floors[name][axis]), want)
            )
        return found


def poured(amount: int, claimants: Sequence[Claimant]) -> list[int]:
    """What each gets of `amount`: at least its floor, at most what it wants, else by weight.

    If there is not enough for all floors, the floors are cut in proportion. Nothing is kept back while a claimant wants
    more; the last units (fewer than there are claimants) go to the claimants named first.
    """
    floors = [claimant.floor for claimant in claimants]
    if sum(floors) > amount:
        return _cut(amount, floors)
    got = list(floors)
    left = amount - sum(floors)
    for priority in sorted({claimant.priority for claimant in claimants}, reverse=True):
        tier = [at for at, claimant in enumerate(claimants) if claimant.priority == priority]
        before = sum(got[at] for at in tier)
        for at, share in zip(tier, _level(left + before, [claimants[at] for at in tier]), strict=True):
            got[at] = share
        left -= sum(got[at] for at in tier) - before
    return got


def _cut(amount: int, floors: Sequence[int]) -> list[int]:
    """Floors in proportion to themselves, `amount` in all."""
    whole = sum(floors)
    parts = [floor * amount // whole for floor in floors]
    left = amount - sum(parts)
    return [part + (at < left) for at, part in enumerate(parts)]


def _level(amount: int, tier: Sequence[Claimant]) -> list[int]:
    """The water level in vessels of one priority: clip(level x weight, floor, want), `amount` in all."""
    if sum(each.want for each in tier) <= amount:
        return [each.want for each in tier]
    # Between two marks (a floor is passed, or a vessel is full) the sum grows by the weights of the vessels in between.
    marks = []
    for at, each in enumerate(tier):
        marks.append((each.floor * _FINE // each.weight, at, False))
        marks.append((each.want * _FINE // each.weight, at, True))
    fixed, weights = sum(each.floor for each in tier), 0
    for mark, at, full in sorted(marks):
        if weights and fixed * _FINE + mark * weights >= amount * _FINE:
            break
        each = tier[at]
        fixed += each.want if full else -each.floor
        weights += -each.weight if full else each.weight
    got = [
        min(each.want, max(each.floor, (amount - fixed) * each.weight // max(weights, 1))) for each in tier
    ]
    left = amount - sum(got)
    for at, each in enumerate(tier):  # rounding
        more = min(max(left, -1), each.want - got[at], 1)
        got[at] += more
        left -= more
    return got


#: Marks are compared in these parts of a unit.
_FINE = 1 << 32


def _padded(amounts: Sequence[int], axes: int, fill: int = 0) -> list[int]:
    return list(amounts[:axes]) + [fill] * (axes - len(amounts))
