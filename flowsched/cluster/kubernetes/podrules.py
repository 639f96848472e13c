"""Where a pod may run, in the words of `executor.constraints`: affinity, spread, ports, volumes, selector and tolerations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flowsched.cluster.kubernetes import metadata
from flowsched.cluster.kubernetes import pod as objects
from flowsched.cluster.kubernetes.objects import PersistentVolume
from flowsched.cluster.kubernetes.pod import NodeSelector, NodeSelectorTerm, Pod, TopologySpreadConstraint
from flowsched.cluster.kubernetes.podspec import DEFAULT_GPU, host_ports, image_of, requests_of
from flowsched.executor.constraints import (
    NodeTerm,
    PodTerm,
    Requirement,
    Rules,
    Selector,
    Spread,
    canonical,
    node_term,
    pod_term,
    requirement,
    selector_of,
    with_label_keys,
)
from flowsched.executor.foreign import PodTemplate

#: Terms of which one must hold.
AnyOf = tuple[NodeTerm, ...]


def template_of(
    pod: Pod, volumes: Iterable[AnyOf] = (), problem: str = "", gpu_resource: str = DEFAULT_GPU
) -> PodTemplate:
    """Everything about a pod that influences where it may go.

    Args:
        pod: The pod.
        volumes: For each of its volumes that is tied to nodes, `volume_nodes`.
        problem: Why it can be nowhere at present (a claim without a volume …).
        gpu_resource: What whole GPUs are called.
    """
    return PodTemplate(
        resources=requests_of(pod, gpu_resource),
        selector=selector_pairs(pod),
        tolerations=toleration_rows(pod),
        rules=rules_of(pod, volumes),
        image=image_of(pod),
        problem=problem or _problem(pod),
    )


def _problem(pod: Pod) -> str:
    """Why it is placed nowhere, whatever room there is: devices that somebody would have to allocate to it first."""
    if not pod.spec.resource_claims:
        return ""
    names = ", ".join(claim.name for claim in pod.spec.resource_claims)
    return f"it claims devices ({names}): dynamic resource allocation is not done here"


def selector_pairs(pod: Pod) -> tuple[tuple[str, str], ...]:
    """Its node selector, sorted."""
    return tuple(sorted(pod.spec.node_selector.items()))


def toleration_rows(pod: Pod) -> tuple[tuple[str, str, str, str], ...]:
    """(key, operator, value, effect) of each taint it puts up with, sorted, each once; a value means nothing to Exists.

    For how long it does so (`tolerationSeconds`) matters to its eviction, not to its placement.
    """
    rows = set()
    for each in pod.spec.tolerations:
        operator = each.operator or "Equal"
        rows.add((each.key, operator, "" if operator == "Exists" else each.value, each.effect))
    return tuple(sorted(rows))


def rules_of(pod: Pod, volumes: Iterable[AnyOf] = ()) -> Rules:
    """Its demands on nodes and on other pods, with all of its labels."""
    affinity = pod.spec.affinity or objects.Affinity()
    nodes = affinity.node_affinity or objects.NodeAffinity()
    near = affinity.pod_affinity or objects.PodAffinity()
    far = affinity.pod_anti_affinity or objects.PodAffinity()
    spread = pod.spec.topology_spread_constraints
    return canonical(
        Rules(
            namespace=pod.metadata.namespace,
            labels=tuple(pod.metadata.labels.items()),
            node_name=pod.spec.node_name or None,
            nodes=None if nodes.required is None else tuple(_node_terms(nodes.required)),
            volumes=tuple(volumes),
            ports=host_ports(pod),
            affinity=tuple(_pod_term(pod, term) for term in near.required),
            anti_affinity=tuple(_pod_term(pod, term) for term in far.required),
            spread=tuple(_spread(pod, each) for each in spread if not _is_wish(each)),
            preferred_nodes=tuple((each.weight, _node_term(each.preference)) for each in nodes.preferred),
            preferred_pods=(*_weighted(pod, near.preferred, 1), *_weighted(pod, far.preferred, -1)),
            preferred_spread=tuple(_spread(pod, each) for each in spread if _is_wish(each)),
        )
    )


def volume_nodes(volume: PersistentVolume) -> AnyOf | None:
    """From which nodes a volume can be reached; None = from all."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    return tuple(_node_terms(affinity.required))


def _node_terms(selector: NodeSelector) -> Iterator[NodeTerm]:
    return (_node_term(term) for term in selector.node_selector_terms)


def _node_term(term: NodeSelectorTerm) -> NodeTerm:
    return node_term(map(_requirement, term.match_expressions), map(_requirement, term.match_fields))


def _requirement(given: metadata.Requirement) -> Requirement:
    return requirement(given.key, given.operator, given.values)


def _selector(given: metadata.LabelSelector | None) -> Selector | None:
    if given is None:
        return None
    return selector_of(given.match_labels, map(_requirement, given.match_expressions))


def _pod_term(pod: Pod, term: objects.PodAffinityTerm) -> PodTerm:
    """The server has merged `matchLabelKeys` into the selector when the pod was made."""
    return pod_term(
        term.topology_key,
        _selector(term.label_selector),
        pod.metadata.namespace,
        term.namespaces,
        _selector(term.namespace_selector),
    )


def _weighted(
    pod: Pod, terms: Sequence[objects.WeightedPodAffinityTerm], sign: int
) -> Iterator[tuple[int, PodTerm]]:
    return ((sign * each.weight, _pod_term(pod, each.pod_affinity_term)) for each in terms)


def _spread(pod: Pod, given: TopologySpreadConstraint) -> Spread:
    selector = with_label_keys(_selector(given.label_selector), pod.metadata.labels, given.match_label_keys)
    return Spread(
        topology_key=given.topology_key,
        max_skew=given.max_skew,
        selector=selector,
        min_domains=given.min_domains or 1,
        honor_affinity=given.node_affinity_policy != "Ignore",
        honor_taints=given.node_taints_policy == "Honor",
    )


def _is_wish(given: TopologySpreadConstraint) -> bool:
    return given.when_unsatisfiable == "ScheduleAnyway"
