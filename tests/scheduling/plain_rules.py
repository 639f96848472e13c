"""Kubernetes' rules for where a pod may run, as its documentation tells them: pod by pod, node by node, slowly.

The oracle of the vectorised filters. It shares no code with them but the values (`rules`), and asks one question:
may this pod run on this node, given these pods where they are?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flowsched.executor.constraints import (
    HostPort,
    NodeTerm,
    PodTerm,
    Requirement,
    Rules,
    Selector,
    Spread,
)


@dataclass
class PlainNode:
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[tuple[str, str, str]] = ()
    room: Mapping[str, int] = field(default_factory=dict)


@dataclass
class PlainPod:
    rules: Rules
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[tuple[str, str, str, str]] = ()
    requests: Mapping[str, int] = field(default_factory=dict)
    node: PlainNode | None = None
    leaving: bool = False

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.rules.labels)


@dataclass
class World:
    nodes: list[PlainNode]
    pods: list[PlainPod]
    namespaces: Mapping[str, Mapping[str, str]]

    def feasible(self, pod: PlainPod) -> list[str]:
        """The names of the nodes on which the pod may run now."""
        return [node.name for node in self.nodes if self.allows(pod, node)]

    def allows(self, pod: PlainPod, node: PlainNode) -> bool:
        return (
            node_name(pod, node)
            and taints(pod, node)
            and matches_node(pod, node)
            and volumes(pod, node)
            and self.ports(pod, node)
            and self.fits(pod, node)
            and self.spread(pod, node)
            and self.affinity(pod, node)
            and self.anti_affinity(pod, node)
            and self.others_anti_affinity(pod, node)
        )

    def place(self, pod: PlainPod, node: PlainNode) -> None:
        """A pod like this one is on the node from now on."""
        self.pods.append(
            PlainPod(pod.rules, pod.selector, pod.tolerations, pod.requests, node, leaving=False)
        )

    def on(self, node: PlainNode) -> list[PlainPod]:
        return [pod for pod in self.pods if pod.node is node]

    # ---- rules that look at the node's own pods ----

    def ports(self, pod: PlainPod, node: PlainNode) -> bool:
        """A host port is free on an address if no pod of the node has it there, nor on all addresses."""
        return not any(
            clash(wanted, held)
            for other in self.on(node)
            for wanted in pod.rules.ports
            for held in other.rules.ports
        )

    def fits(self, pod: PlainPod, node: PlainNode) -> bool:
        """What a pod does not ask for may be over-full."""
        for name, wanted in pod.requests.items():
            used = sum(other.requests.get(name, 0) for other in self.on(node))
            if wanted > 0 and wanted > node.room.get(name, 0) - used:
                return False
        return True

    # ---- rules that look at all pods ----

    def meant(self, term: PodTerm, pod: PlainPod) -> bool:
        """Whether a term means the pod: by its namespace's name or its namespace's labels, and by its labels."""
        namespace = pod.rules.namespace
        named = namespace in term.namespaces
        chosen = label_selector(term.namespace_selector, self.namespaces.get(namespace, {}))
        return (named or chosen) and label_selector(term.selector, pod.labels)

    def affinity(self, pod: PlainPod, node: PlainNode) -> bool:
        """For each term there is, in the node's domain, a pod that matches all terms.

        If no pod in the cluster does (on a node that has any of the keys), a pod that matches its own terms may be the
        first.
        """
        terms = pod.rules.affinity
        if not terms:
            return True
        if any(term.topology_key not in node.labels for term in terms):
            return False
        friends = [other for other in self.pods if all(self.meant(term, other) for term in terms)]
        if all(
            any(other.node and same_domain(other.node, node, term.topology_key) for other in friends)
            for term in terms
        ):
            return True
        somewhere = [
            other
            for other in friends
            if other.node and any(term.topology_key in other.node.labels for term in terms)
        ]
        return not somewhere and all(self.meant(term, pod) for term in terms)

    def anti_affinity(self, pod: PlainPod, node: PlainNode) -> bool:
        """No pod of any term is in the node's domain."""
        return not any(
            other.node and self.meant(term, other) and same_domain(other.node, node, term.topology_key)
            for other in self.pods
            for term in pod.rules.anti_affinity
        )

    def others_anti_affinity(self, pod: PlainPod, node: PlainNode) -> bool:
        """No pod in the node's domain has a term that means this pod."""
        return not any(
            other.node and self.meant(term, pod) and same_domain(other.node, node, term.topology_key)
            for other in self.pods
            for term in other.rules.anti_affinity
        )

    def spread(self, pod: PlainPod, node: PlainNode) -> bool:
        return all(self.evenly(pod, node, constraint) for constraint in pod.rules.spread)

    def evenly(self, pod: PlainPod, node: PlainNode, constraint: Spread) -> bool:
        """With this pod, the node's domain has at most `max_skew` more than the least domain."""
        key = constraint.topology_key
        if key not in node.labels:
            return False
        counts: dict[str, int] = {}
        for other in self.nodes:
            if self.counts_for_spread(pod, other, constraint):
                domain = other.labels[key]
                counts[domain] = counts.get(domain, 0) + sum(
                    self.counted(pod, neighbour, constraint) for neighbour in self.on(other)
                )
        least = min(counts.values()) if len(counts) >= constraint.min_domains and counts else 0
        itself = 1 if label_selector(constraint.selector, pod.labels) else 0
        return counts.get(node.labels[key], 0) + itself - least <= constraint.max_skew

    def counts_for_spread(self, pod: PlainPod, node: PlainNode, constraint: Spread) -> bool:
        if any(other.topology_key not in node.labels for other in pod.rules.spread):
            return False
        if constraint.honor_affinity and not matches_node(pod, node):
            return False
        return not constraint.honor_taints or taints(pod, node)

    def counted(self, pod: PlainPod, other: PlainPod, constraint: Spread) -> bool:
        """Pods of the same namespace that are not being deleted; an empty selector counts nobody."""
        if constraint.selector == () or other.leaving or other.rules.namespace != pod.rules.namespace:
            return False
        return label_selector(constraint.selector, other.labels)


# ---- rules about the node alone ----


def node_name(pod: PlainPod, node: PlainNode) -> bool:
    return pod.rules.node_name in (None, node.name)


def taints(pod: PlainPod, node: PlainNode) -> bool:
    for key, value, effect in node.taints:
        if effect == "PreferNoSchedule":
            continue
        tolerated = False
        for wanted_key, operator, wanted_value, wanted_effect in pod.tolerations:
            if wanted_effect and wanted_effect != effect:
                continue
            if wanted_key and wanted_key != key:
                continue
            if operator == "Exists" or (operator in ("", "Equal") and wanted_key and wanted_value == value):
                tolerated = True
        if not tolerated:
            return False
    return True


def matches_node(pod: PlainPod, node: PlainNode) -> bool:
    """`nodeSelector` and required node affinity together."""
    for key, value in pod.selector.items():
        if node.labels.get(key) != value:
            return False
    if pod.rules.nodes is None:
        return True
    return any(node_term(term, node, name=node.name) for term in pod.rules.nodes)


def volumes(pod: PlainPod, node: PlainNode) -> bool:
    """Each volume can be reached from the node; the node's name does not matter for them."""
    return all(any(node_term(term, node, name=None) for term in terms) for terms in pod.rules.volumes)


def node_term(term: NodeTerm, node: PlainNode, name: str | None) -> bool:
    if not term.labels and not term.fields:
        return False
    if not all(requirement(wanted, node.labels) for wanted in term.labels):
        return False
    if name is None:
        return True
    for wanted in term.fields:
        if len(wanted.values) != 1 or wanted.operator not in ("In", "NotIn"):
            return False
        if (wanted.values[0] == name) != (wanted.operator == "In"):
            return False
    return True


# ---- labels ----


def label_selector(selector: Selector | None, labels: Mapping[str, str]) -> bool:
    """None selects nothing, an empty one everything."""
    if selector is None:
        return False
    return all(requirement(wanted, labels) for wanted in selector)


def requirement(wanted: Requirement, labels: Mapping[str, str]) -> bool:
    there = wanted.key in labels
    if wanted.operator == "Exists":
        return there
    if wanted.operator == "DoesNotExist":
        return not there
    if wanted.operator == "In":
        return there and labels[wanted.key] in wanted.values
    if wanted.operator == "NotIn":
        return not there or labels[wanted.key] not in wanted.values
    if wanted.operator in ("Gt", "Lt"):
        try:
            have, bound = int(labels[wanted.key]), int(wanted.values[0])
        except (KeyError, ValueError):
            return False
        return have > bound if wanted.operator == "Gt" else have < bound
    return False


def clash(one: HostPort, other: HostPort) -> bool:
    if one.protocol != other.protocol or one.port != other.port:
        return False
    return one.ip == other.ip or one.ip == "0.0.0.0" or other.ip == "0.0.0.0"


def same_domain(one: PlainNode, other: PlainNode, key: str) -> bool:
    return key in one.labels and key in other.labels and one.labels[key] == other.labels[key]


def names(nodes: Iterable[PlainNode]) -> list[str]:
    return [node.name for node in nodes]
