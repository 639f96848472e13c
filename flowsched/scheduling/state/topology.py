"""Nodes by their labels and taints: domains of a topology, and masks of node terms. Cached for a generation of nodes.

A node that is gone must have lost its labels (see `NodeChanged`): as in Kubernetes, every node that exists counts
as part of its domains, ready or not.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowsched.executor.constraints import NODE_NAME_FIELD, NodeTerm, Requirement
from flowsched.executor.selectors import allows
from flowsched.scheduling.state.snapshot import Snapshot

Mask = NDArray[np.bool_]
Taint = tuple[str, str, str]
Toleration = tuple[str, str, str, str]

#: A taint of another effect (PreferNoSchedule) is a preference: it keeps no pod away.
_HARD_EFFECTS: Final = ("NoSchedule", "NoExecute")


class Domains(NamedTuple):
    """The values of one node label.

    `ids`: (N,) position of each node's value in `values`; one past the last where the label is not there.
    """

    ids: NDArray[np.int32]
    values: tuple[str, ...]

    @property
    def present(self) -> Mask:
        """(N,) which nodes carry the label."""
        return self.ids < len(self.values)

    def marked(self, nodes: NDArray[np.intp]) -> Mask:
        """(N,) which nodes share a domain with any of these nodes; none of those without the label."""
        hit = np.zeros(len(self.values) + 1, dtype=np.bool_)
        hit[self.ids[nodes]] = True
        hit[-1] = False
        return hit[self.ids]

    def sums(self, counts: NDArray[np.int64], nodes: NDArray[np.intp]) -> NDArray[np.int64]:
        """(D + 1,) the counts of these nodes by domain; the last is of nodes without the label."""
        sums = np.zeros(len(self.values) + 1, dtype=np.int64)
        np.add.at(sums, self.ids[nodes], counts[nodes])
        return sums


def domains_of(snapshot: Snapshot, key: str) -> Domains:
    """The domains of a topology key."""
    where = ("domains", key)
    if where not in snapshot.cache:
        found: dict[str, int] = {}
        ids = [
            -1 if value is None else found.setdefault(value, len(found))
            for value in (labels.get(key) for labels in snapshot.labels)
        ]
        array = np.array(ids, dtype=np.int32)
        array[array < 0] = len(found)
        snapshot.cache[where] = Domains(array, tuple(found))
    domains: Domains = snapshot.cache[where]
    return domains


def nodes_with(snapshot: Snapshot, wanted: Requirement) -> Mask:
    """(N,) nodes whose labels meet a requirement."""
    domains = domains_of(snapshot, wanted.key)
    judged = [allows(wanted, value) for value in (*domains.values, None)]
    return np.array(judged, dtype=np.bool_)[domains.ids]


def nodes_of(snapshot: Snapshot, terms: tuple[NodeTerm, ...], *, fields: bool = True) -> Mask:
    """(N,) nodes that one of the terms selects. A term without any requirement selects nothing.

    Args:
        snapshot: The nodes.
        terms: The terms.
        fields: Whether requirements on fields count; Kubernetes does not look at those of a volume.
    """
    where = ("terms", terms, fields)
    if where not in snapshot.cache:
        mask = np.zeros(len(snapshot), dtype=np.bool_)
        for term in terms:
            if term.labels or term.fields:
                mask |= _term(snapshot, term, fields)
        mask.setflags(write=False)
        snapshot.cache[where] = mask
    found: Mask = snapshot.cache[where]
    return found


def _term(snapshot: Snapshot, term: NodeTerm, fields: bool) -> Mask:
    mask = np.ones(len(snapshot), dtype=np.bool_)
    for wanted in term.labels:
        mask &= nodes_with(snapshot, wanted)
    for wanted in term.fields if fields else ():
        mask &= _field(snapshot, wanted)
    return mask


def _field(snapshot: Snapshot, wanted: Requirement) -> Mask:
    """(N,) nodes that meet a requirement on a field. With any number of values but one it cannot be met."""
    if wanted.key != NODE_NAME_FIELD or len(wanted.values) != 1 or wanted.operator not in ("In", "NotIn"):
        return np.zeros(len(snapshot), dtype=np.bool_)
    mask = only_node(snapshot, wanted.values[0])
    return mask if wanted.operator == "In" else ~mask


def only_node(snapshot: Snapshot, name: str) -> Mask:
    """(N,) the node of this name."""
    mask = np.zeros(len(snapshot), dtype=np.bool_)
    if name in snapshot.index:
        mask[snapshot.index[name]] = True
    return mask


def matching_nodes(
    snapshot: Snapshot, selector: tuple[tuple[str, str], ...], terms: tuple[NodeTerm, ...] | None
) -> Mask:
    """(N,) nodes that a pod's selector and required node affinity match together; None = no affinity."""
    where = ("matching", selector, terms)
    if where not in snapshot.cache:
        mask = np.ones(len(snapshot), dtype=np.bool_)
        for key, value in selector:
            mask &= nodes_with(snapshot, Requirement(key, "In", (value,)))
        if terms is not None:
            mask &= nodes_of(snapshot, terms)
        mask.setflags(write=False)
        snapshot.cache[where] = mask
    found: Mask = snapshot.cache[where]
    return found


def tolerating_nodes(snapshot: Snapshot, tolerations: tuple[Toleration, ...]) -> Mask:
    """(N,) nodes that have only hard taints which are tolerated."""
    key = ("tolerations", tolerations)
    if key not in snapshot.cache:
        judged = [all(_tolerated(taint, tolerations) for taint in taints) for taints in snapshot.taint_sets]
        snapshot.cache[key] = np.array(judged, dtype=np.bool_)[snapshot.taint]
    mask: Mask = snapshot.cache[key]
    return mask


def _tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    """As Kubernetes does with its default gates: the operators Gt and Lt (alpha in 1.36) tolerate nothing."""
    key, value, effect = taint
    if effect not in _HARD_EFFECTS:
        return True
    return any(
        (not wanted_effect or wanted_effect == effect)
        and (wanted_key == key or (not wanted_key and operator == "Exists"))
        and (operator == "Exists" or (operator in ("", "Equal") and wanted_value == value))
        for wanted_key, operator, wanted_value, wanted_effect in tolerations
    )
