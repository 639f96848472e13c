"""Constraints: demands of a pod on nodes and on other pods, in Kubernetes' words, resolved and canonical.

The builder of these values has resolved everything that is written elsewhere: a term that names no namespace means the pod's
own, `matchLabelKeys` are requirements like any others, a claim's volume is its node terms. The meaning of the rules is in
`selectors` and in the plug-ins.

Build values by the functions below, which sort and drop repeats: equal demands are then equal values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from flowsched.values import replace

T = TypeVar("T")

#: The only field of a node that Kubernetes lets a pod select.
NODE_NAME_FIELD: Final = "metadata.name"
#: The address of a host port that names none: every address of the node.
ANY_ADDRESS: Final = "0.0.0.0"


class Requirement(msgspec.Struct, frozen=True, order=True):
    """One demand on labels. `operator`: In, NotIn, Exists, DoesNotExist; for nodes also Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


#: A label selector: all of its requirements hold. () selects everything; None (no selector) selects nothing.
Selector = tuple[Requirement, ...]


class NodeTerm(msgspec.Struct, frozen=True, order=True):
    """A node term: its demands on labels and on fields all hold. A term without any selects nothing."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


class PodTerm(msgspec.Struct, frozen=True):
    """Some pods, seen from the domains of a topology.

    Args:
        topology_key: The node label; each of its values is a domain.
        selector: Which pods; () = all, None = none.
        namespaces: Of which namespaces, by name (never "the pod's own": that is resolved).
        namespace_selector: And of which others, by their labels; () = of all, None = of no others.
    """

    topology_key: str
    selector: Selector | None
    namespaces: tuple[str, ...]
    namespace_selector: Selector | None = None


class Spread(msgspec.Struct, frozen=True):
    """A topology spread constraint, over the pods of the pod's own namespace.

    Args:
        topology_key: The node label; each of its values is a domain.
        max_skew: How many more than the least a domain may have.
        selector: Which pods are counted; `matchLabelKeys` included. () and None count none, as in Kubernetes.
        min_domains: With fewer domains the least is taken to be 0.
        honor_affinity: Only nodes that the pod's selector and node affinity match are looked at.
        honor_taints: Only nodes whose taints the pod tolerates are looked at.
    """

    topology_key: str
    max_skew: int
    selector: Selector | None
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


class HostPort(msgspec.Struct, frozen=True, order=True):
    """A port of the node. `ip` 0.0.0.0 is every address."""

    ip: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class Rules:
    """All demands of a pod beside resources, `nodeSelector` and tolerations; and the properties that others may look at.

    Args:
        namespace: Its namespace.
        labels: Its labels, sorted; only those that a selector may look at (see `narrowed`).
        node_name: The one node it is bound to by its author.
        nodes: Required node affinity: one of the terms holds. () = no node at all; None = no demand.
        volumes: For each of its volumes with node affinity: one of the terms holds.
        ports: Host ports it needs.
        affinity: Required: a pod that *all* these terms select is in its domain, term by term.
        anti_affinity: Required: no pod of any of these terms is in its domain; holds for later pods too.
        spread: Required (DoNotSchedule) topology spread.
        preferred_nodes: (weight, term): wishes about nodes.
        preferred_pods: (weight, term): wishes about pods; a negative weight wishes them away.
        preferred_spread: ScheduleAnyway topology spread.
    """

    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    node_name: str | None = None
    nodes: tuple[NodeTerm, ...] | None = None
    volumes: tuple[tuple[NodeTerm, ...], ...] = ()
    ports: tuple[HostPort, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    preferred_nodes: tuple[tuple[int, NodeTerm], ...] = ()
    preferred_pods: tuple[tuple[int, PodTerm], ...] = ()
    preferred_spread: tuple[Spread, ...] = ()

    @property
    def about_pods(self) -> bool:
        """Whether where it may run depends on which pods are where, as far as its own demands go."""
        return bool(self.ports or self.affinity or self.anti_affinity or self.spread)

    @property
    def wishes(self) -> bool:
        """Whether it prefers some nodes to others."""
        return bool(self.preferred_nodes or self.preferred_pods or self.preferred_spread)


# ---- building ----


def requirement(key: str, operator: str, values: Iterable[str] = ()) -> Requirement:
    """A demand on labels, canonical."""
    return Requirement(key, operator, tuple(sorted(set(values))))


def selector_of(match_labels: Mapping[str, str], match_expressions: Iterable[Requirement] = ()) -> Selector:
    """A label selector that is there. Where there is none (null), the selector is None instead."""
    equal = {requirement(key, "In", (value,)) for key, value in match_labels.items()}
    return tuple(sorted(equal | {requirement(r.key, r.operator, r.values) for r in match_expressions}))


def with_label_keys(
    selector: Selector | None,
    labels: Mapping[str, str],
    match: Sequence[str] = (),
    mismatch: Sequence[str] = (),
) -> Selector | None:
    """A selector with `matchLabelKeys` and `mismatchLabelKeys` resolved against the pod's own labels.

    An API server that knows these fields merges them into a pod's affinity terms when the pod is created, so
    pods that were read from one need this for topology spread only (where the scheduler merges them again).
    Keys the pod does not carry, and a selector that is not there, stay as they are.
    """
    if selector is None:
        return None
    more = {requirement(key, "In", (labels[key],)) for key in match if key in labels}
    more |= {requirement(key, "NotIn", (labels[key],)) for key in mismatch if key in labels}
    return tuple(sorted(set(selector) | more))


def node_term(labels: Iterable[Requirement] = (), fields: Iterable[Requirement] = ()) -> NodeTerm:
    """A node term, canonical."""

    def tidy(wanted: Iterable[Requirement]) -> tuple[Requirement, ...]:
        return tuple(sorted({requirement(r.key, r.operator, r.values) for r in wanted}))

    return NodeTerm(tidy(labels), tidy(fields))


def pod_term(
    topology_key: str,
    selector: Selector | None,
    own_namespace: str,
    namespaces: Iterable[str] = (),
    namespace_selector: Selector | None = None,
) -> PodTerm:
    """A pod term as written; one that names no namespaces in any way means the pod's own."""
    names = tuple(sorted(set(namespaces)))
    if not names and namespace_selector is None:
        names = (own_namespace,)
    return PodTerm(topology_key, selector, names, namespace_selector)


def host_port(port: int, protocol: str = "", ip: str = "") -> HostPort:
    """A host port; no protocol means TCP, no address every address."""
    return HostPort(ip or ANY_ADDRESS, protocol or "TCP", port)


def canonical(rules: Rules) -> Rules:
    """The same rules with everything that has no order sorted, and repeats dropped (wishes may be repeated)."""
    return replace(
        rules,
        labels=tuple(sorted(set(rules.labels))),
        nodes=None if rules.nodes is None else _ordered(set(rules.nodes)),
        volumes=_ordered({_ordered(set(terms)) for terms in rules.volumes}),
        ports=_ordered(set(rules.ports)),
        affinity=_ordered(set(rules.affinity)),
        anti_affinity=_ordered(set(rules.anti_affinity)),
        spread=_ordered(set(rules.spread)),
        preferred_nodes=_ordered(rules.preferred_nodes),
        preferred_pods=_ordered(rules.preferred_pods),
        preferred_spread=_ordered(rules.preferred_spread),
    )


def _ordered(values: Iterable[T]) -> tuple[T, ...]:
    """In an order that depends on the values alone: by `repr`, since a selector may be None."""
    return tuple(sorted(values, key=repr))


# ---- properties of a pod that matter to others ----


def watched_keys(rules: Rules) -> frozenset[str] | None:
    """The label keys that these rules' selectors look at on pods; None = they do not look at pods at all."""
    terms = (*rules.affinity, *rules.anti_affinity, *(term for _, term in rules.preferred_pods))
    selectors = [term.selector for term in terms]
    selectors += [spread.selector for spread in (*rules.spread, *rules.preferred_spread)]
    if not selectors:
        return None
    return frozenset(r.key for selector in selectors for r in selector or ())


def watched_by(everybody: Iterable[Rules]) -> frozenset[str] | None:
    """The label keys that any of the rules looks at; None = no rule looks at pods at all."""
    found = [keys for keys in map(watched_keys, everybody) if keys is not None]
    return frozenset().union(*found) if found else None


def narrowed(rules: Rules, watched: frozenset[str] | None) -> Rules | None:
    """The rules with only those labels that other rules (`watched`) or the rules themselves may look at.

    A selector's answer depends on the keys it names alone, so nothing else changes; and pods that differ only in an
    index or a hash that no selector names share a shape.

    Args:
        rules: The pod's rules, with all of its labels.
        watched: Labels that the rules of all other pods look at, those on nodes and those that wait (`watched_by`).

    Returns:
        The rules, canonical; None = nothing about the pod matters to any rule.
    """
    own = watched_keys(rules)
    if own is None and watched is None:
        rules = replace(rules, namespace="", labels=())
    else:
        keys = (own or frozenset()) | (watched or frozenset())
        rules = replace(rules, labels=tuple(pair for pair in rules.labels if pair[0] in keys))
    rules = canonical(rules)
    return None if rules == _NONE else rules


_NONE: Final = Rules()
