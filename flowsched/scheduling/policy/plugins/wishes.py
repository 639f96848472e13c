"""Preferences of pods: preferred affinities and ScheduleAnyway spread, as small costs in ms.

A wish is no demand: with a weight of 100 it outweighs any packing, and no copy of data that takes longer than 2 s.
kube-scheduler's scores mean something only beside each other, so this keeps their order and not their size.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.executor.selectors import selects
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.state.topology import domains_of, nodes_of

Ints = NDArray[np.int64]

#: The worth of one point of weight (1 to 100).
POINT_MS: Final = 20
#: The cost of each pod beyond `max_skew`, for up to so many.
SKEW_MS: Final = 200
_SKEW_MOST: Final = 10


def wishes(snapshot: Snapshot, catalogue: Catalogue, group: PodGroup, role: RoleRequest) -> Ints | None:
    """(N,) ms for what a role's wishes find missing on each node."""
    return wish_ms(snapshot, role.shape)


def wish_ms(snapshot: Snapshot, shape: Shape) -> Ints | None:
    """(N,) ms; None = it has no wishes."""
    rules = shape.rules
    if rules is None or not rules.wishes:
        return None
    cost = np.zeros(len(snapshot), dtype=np.int64)
    for weight, node_term in rules.preferred_nodes:
        cost += ~nodes_of(snapshot, (node_term,)) * (weight * POINT_MS)
    for weight, term in rules.preferred_pods:
        near = domains_of(snapshot, term.topology_key).marked(
            np.flatnonzero(snapshot.peers.selected((term,)))
        )
        cost += (near if weight < 0 else ~near) * (abs(weight) * POINT_MS)
    labels = dict(rules.labels)
    for wanted in rules.preferred_spread:
        domains = domains_of(snapshot, wanted.topology_key)
        nodes = np.flatnonzero(domains.present)
        sums = domains.sums(snapshot.peers.spread(rules.namespace, wanted.selector), nodes)
        least = int(sums[domains.ids[nodes]].min()) if len(nodes) else 0
        over = sums[domains.ids] + int(selects(wanted.selector, labels)) - least - wanted.max_skew
        cost += np.where(domains.present, np.clip(over, 0, _SKEW_MOST), _SKEW_MOST) * SKEW_MS
    return cost
