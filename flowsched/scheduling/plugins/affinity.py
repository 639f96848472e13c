"""Required affinity and anti-affinity between pods, as kube-scheduler's InterPodAffinity decides it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.domains import domains_of
from flowsched.scheduling.podgroup import Shape
from flowsched.scheduling.selectors import term_selects
from flowsched.scheduling.snapshot import Snapshot

Judged = tuple[NDArray[np.bool_], str]


def near_affinity(snapshot: Snapshot, shape: Shape) -> Judged:
    """Nodes in whose domains, term by term, is a pod that *all* terms select; the node must carry every topology key.

    Where no domain has such a pod, the first of a series that selects itself may go anywhere among these nodes.
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
    """Nodes in whose domains is no pod of a term of its anti-affinity; a node without the topology key has none."""
    mask = np.ones(len(snapshot), dtype=np.bool_)
    for term in shape.rules.anti_affinity if shape.rules else ():
        pods = np.flatnonzero(snapshot.peers.selected((term,)))
        if len(pods):
            mask &= ~domains_of(snapshot, term.topology_key).marked(pods)
    return mask, "have a pod its anti-affinity keeps away from"


def kept_away(snapshot: Snapshot, shape: Shape) -> Judged:
    """Nodes in whose domains no pod's own anti-affinity means it."""
    mask = np.ones(len(snapshot), dtype=np.bool_)
    if shape.rules is None:
        return mask, ""
    for key, counts in snapshot.peers.guards_against(shape.rules).items():
        pods = np.flatnonzero(counts)
        if len(pods):
            mask &= ~domains_of(snapshot, key).marked(pods)
    return mask, "have a pod whose anti-affinity keeps it away"
