"""NUMA zones: the room that a kubelet that aligns pods (topology manager policy `single-numa-node`) finds for a pod.

Such a kubelet refuses a pod that gets whole cores if no single zone has all it asks for, however much the node has. So a node
that reports its zones takes only as many of these pods as its zones do, one by one.

No object says which zone a pod got. It is worked out as kubelets do, from the pods on the node in the order in which they came:
the first zone with room for all of it. The node's own report of free room in a zone, which may be older, bounds that: a wrong
guess is too careful for a while, never too bold for long.

Everything is a function of the nodes and their pods, so a restart and an undo come to the same. Zones are in the order of the
node's report. Amounts are in the order and units of `Snapshot.axes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.executor.nodes import ALIGNED, Zone
from flowsched.statement import Statement

Ints = NDArray[np.int64]

#: The amount in a zone of a resource that no zone of its node lists: it is not bound to zones.
_ANY: Final = 1 << 60
#: A `since` after that of every pod that is there already.
_LAST: Final = 1 << 62


class Zones:
    """The zones of all nodes that report any, and the aligned pods of all nodes."""

    def __init__(self) -> None:
        self._axes: tuple[str, ...] = ()
        self._told: dict[int, tuple[Zone, ...]] = {}
        self._rows: dict[int, int] = {}  #: node -> row of the arrays
        self._pods: dict[int, dict[str, tuple[int, Ints]]] = {}  #: node -> owner -> (since, amount)
        self._nodes = np.zeros(0, dtype=np.int64)  #: (M,) row -> node
        self._has = self._said = self._free = np.zeros((0, 0, 0), dtype=np.int64)  #: (M, Z, R)
        self._stale: set[int] = set()  #: nodes that need their row of `_free` computed again
        self._held = 0

    def __bool__(self) -> bool:
        """Whether any node reports zones."""
        return bool(self._told)

    # ---- nodes and pods ----

    def set_axes(self, axes: Sequence[str]) -> None:
        """Note the axes of all amounts."""
        self._axes = tuple(axes)
        self._rebuild()

    def report(self, node: int, zones: tuple[Zone, ...]) -> None:
        """Note the zones that a node reports; () = it does not align pods."""
        if self._told.get(node, ()) == zones:
            return
        if zones:
            self._told[node] = zones
        else:
            del self._told[node]
        self._rebuild()

    def add(self, owner: str, node: int, since: int, amount: Ints) -> None:
        """An aligned pod is on a node, or is meant to be. `amount`: (R,)."""
        self._pods.setdefault(node, {})[owner] = (since, amount.copy())
        self._stale.add(node)

    def remove(self, owner: str, node: int) -> None:
        """It is not."""
        self._pods[node].pop(owner)
        self._stale.add(node)

    def assume(self, nodes: Ints, requests: Sequence[int], statement: Statement) -> None:
        """Count pods that are placed and have no claim yet: (k,) their nodes, and the request of each."""
        amount = self._vector(requests)
        for node in nodes.tolist():
            owner = f"held {self._held:012}"  # its place in the order is its number
            self._held += 1
            self.add(owner, node, _LAST, amount)
            statement.undo_with(self._let_go, owner, node)

    def _let_go(self, owner: str, node: int) -> None:
        self.remove(owner, node)
        self._held -= 1

    # ---- questions ----

    def is_aligned(self, requests: Sequence[int]) -> bool:
        """Whether a pod is one that zones bind."""
        if not self._told or ALIGNED not in self._axes:
            return False
        at = self._axes.index(ALIGNED)
        return at < len(requests) and requests[at] > 0

    def most(self, requests: Sequence[int], nodes: int) -> Ints:
        """(N,) how many pods with these requests the zones of each node take now; more than any count if it reports no zones."""
        self._refresh()
        return self._copies(self._free, requests, nodes)

    def could(self, requests: Sequence[int], nodes: int) -> NDArray[np.bool_]:
        """(N,) whether an empty zone of the node would do for such a pod."""
        return self._copies(self._has, requests, nodes) > 0

    def _copies(self, room: Ints, requests: Sequence[int], nodes: int) -> Ints:
        need = self._vector(requests)
        asked = np.flatnonzero(need)
        copies = np.full(nodes, _ANY, dtype=np.int64)
        if len(asked) and len(self._nodes):
            per_zone = (room[:, :, asked] // need[asked]).min(axis=2)
            copies[self._nodes] = np.maximum(per_zone, 0).sum(axis=1)
        return copies

    # ---- arrays ----

    def _vector(self, requests: Sequence[int]) -> Ints:
        vector = np.zeros(len(self._axes), dtype=np.int64)
        vector[: len(requests)] = requests
        if ALIGNED in self._axes:
            vector[self._axes.index(ALIGNED)] = 0
        return vector

    def _rebuild(self) -> None:
        """Compute the arrays of zones again. Nodes report zones anew only when they change, which is seldom."""
        nodes = sorted(self._told)
        self._nodes = np.array(nodes, dtype=np.int64)
        self._rows = {node: row for row, node in enumerate(nodes)}
        most = max((len(self._told[node]) for node in nodes), default=0)
        shape = (len(nodes), most, len(self._axes))
        self._has, self._said = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for row, node in enumerate(nodes):
            listed = {axis for zone in self._told[node] for axis in zone.has}
            without = [0 if axis in listed else _ANY for axis in self._axes]
            for at, zone in enumerate(self._told[node]):
                for array, reported in ((self._has, zone.has), (self._said, zone.free)):
                    amounts = zip(self._axes, without, strict=True)
                    array[row, at] = [reported.get(axis, other) for axis, other in amounts]
        self._free = np.zeros(shape, dtype=np.int64)
        self._stale |= set(nodes)

    def _refresh(self) -> None:
        for node in self._stale:
            row = self._rows.get(node)
            if row is not None:
                self._free[row] = np.minimum(self._left(node, self._has[row]), self._said[row])
        self._stale.clear()

    def _left(self, node: int, has: Ints) -> Ints:
        """(Z, R) what its pods leave, taken zone by zone as a kubelet does."""
        left = has.copy()
        pods = self._pods.get(node, {})
        for owner in sorted(pods, key=lambda owner: (pods[owner][0], owner)):
            need = self._vector(pods[owner][1].tolist())
            fits = np.flatnonzero((left >= need).all(axis=1))
            # One that fits nowhere is there all the same: it is taken from where the most is left.
            zone = int(fits[0]) if len(fits) else int(left[: len(self._told[node]), 0].argmax())
            left[zone] -= need
        return left


def zones_for(requests: Sequence[tuple[int, ...]], zones: Zones, nodes: int) -> Ints | None:
    """(N,) how many pods of a group the zones of each node take; None = zones bind none of them.

    Where several roles are bound, each pod counts as one that asks for the most of everything: too few, never too many.
    """
    bound = [each for each in requests if zones.is_aligned(each)]
    if not bound:
        return None
    width = max(map(len, bound))
    largest = [max(each[at] if at < len(each) else 0 for each in bound) for at in range(width)]
    return zones.most(largest, nodes)
