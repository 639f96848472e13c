"""Rules between pods: required affinity, anti-affinity and topology spread, as kube-scheduler decides them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.executor.selectors import selects, term_selects
from flowsched.scheduling.pod_group import Shape
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.state.topology import domains_of, matching_nodes, tolerating_nodes

Judged = tuple[NDArray[np.bool_], str]


def near_affinity(snapshot: Snapshot, shape: Shape) -> Judged:
    """Nodes that have, in the domain of each term, a pod that *all* terms select; the node must carry every topology key.

    If no domain has such a pod, a pod that its own terms select may go to any node that carries the keys.
    """
    terms = shape.rules.affinity if shape.rules else ()
    mask = np.ones(len(snapshot), dtype=np.bool_)
    if shape.rules is None or not terms:
        return mask, ""
    pods = np.flatnonzero(snapshot.peers.selected(terms))
    near = mask.copy()
    nobody = True
    for term in terms:
        domains = domains_of(snapshot, term.topology_key)
        mask &= domains.present
        near &= domains.marked(pods)
        nobody &= not domains.present[pods].any()
    labels, namespaces = dict(shape.rules.labels), snapshot.peers.namespaces
    first = nobody and all(term_selects(t, shape.rules.namespace, labels, namespaces) for t in terms)
    return mask if first else mask & near, "have no pod near that its affinity asks for"


def away_from_others(snapshot: Snapshot, shape: Shape) -> Judged:
    """Nodes without a pod in their domain that a term of its anti-affinity selects; a node without the topology key has none."""
    mask = np.ones(len(snapshot), dtype=np.bool_)
    for term in shape.rules.anti_affinity if shape.rules else ():
        pods = np.flatnonzero(snapshot.peers.selected((term,)))
        if len(pods):
            mask &= ~domains_of(snapshot, term.topology_key).marked(pods)
    return mask, "have a pod its anti-affinity keeps away from"


def excluded_by_others(snapshot: Snapshot, shape: Shape) -> Judged:
    """Nodes without a pod in their domain that keeps this pod away by its own anti-affinity."""
    mask = np.ones(len(snapshot), dtype=np.bool_)
    if shape.rules is None:
        return mask, ""
    for key, counts in snapshot.peers.guards_against(shape.rules).items():
        pods = np.flatnonzero(counts)
        if len(pods):
            mask &= ~domains_of(snapshot, key).marked(pods)
    return mask, "have a pod whose anti-affinity keeps it away"


# ---- topology spread (kube-scheduler's PodTopologySpread) ----


def evenly_spread(snapshot: Snapshot, shape: Shape) -> tuple[NDArray[np.bool_], str]:
    """Nodes in domains that would have at most `max_skew` pods more than the domain with the fewest.

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
