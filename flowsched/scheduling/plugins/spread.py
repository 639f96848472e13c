"""Required topology spread, as kube-scheduler's PodTopologySpread decides it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.domains import domains_of, matching_nodes, tolerating_nodes
from flowsched.scheduling.podgroup import Shape
from flowsched.scheduling.selectors import selects
from flowsched.scheduling.snapshot import Snapshot


def evenly_spread(snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
    """Nodes whose domain would not have more than `max_skew` pods beyond the least.

    Domains are those of nodes that carry the keys of *all* constraints and that the constraint's policies let in;
    a node outside of them is judged as if its domain were empty, but must carry the key.
    """
    rules = shape.rules
    mask = np.ones(len(snapshot), dtype=np.bool_)
    if rules is None or not rules.spread:
        return mask, ""
    labels = dict(rules.labels)
    counted = mask.copy()
    for wanted in rules.spread:
        counted &= domains_of(snapshot, wanted.topology_key).present
    for wanted in rules.spread:
        domains = domains_of(snapshot, wanted.topology_key)
        eligible = counted
        if wanted.honor_affinity:
            eligible = eligible & matching_nodes(snapshot, shape.selector, rules.nodes)
        if wanted.honor_taints:
            eligible = eligible & tolerating_nodes(snapshot, shape.tolerations)
        nodes = np.flatnonzero(eligible)
        counts = snapshot.peers.spread(rules.namespace, wanted.selector)
        sums = domains.sums(counts, nodes[counts[nodes] > 0])
        found = np.zeros(len(sums), dtype=np.bool_)
        found[domains.ids[nodes]] = True
        least = int(sums[found].min()) if int(found.sum()) >= max(wanted.min_domains, 1) else 0
        itself = int(selects(wanted.selector, labels))
        mask &= domains.present & (sums[domains.ids] + itself - least <= wanted.max_skew)
    return mask, "are where too many of its kind run already"
