"""Pod constraints: where a pod may run, in the words of `executor.constraints`, worked out once for pods that are alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes.objects import metadata
from flowsched.cluster.kubernetes.objects import pod as objects
from flowsched.cluster.kubernetes.objects.core import PersistentVolume
from flowsched.cluster.kubernetes.objects.nodes import is_aligned
from flowsched.cluster.kubernetes.objects.pod import (
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    TopologySpreadConstraint,
)
from flowsched.cluster.kubernetes.objects.pod_requests import DEFAULT_GPU, host_ports, image_of, requests_of
from flowsched.executor.constraints import (
    NodeTerm,
    PodTerm,
    Requirement,
    Rules,
    Selector,
    Spread,
    canonical,
    narrowed,
    node_term,
    pod_term,
    requirement,
    selector_of,
    watched_keys,
    with_label_keys,
)
from flowsched.executor.foreign import PodTemplate
from flowsched.executor.nodes import ALIGNED
from flowsched.values import replace

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
        gpu_resource: The resource name of whole GPUs.
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
    """Why no node can take it, whatever room there is: it claims devices, which flowsched does not allocate to it."""
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


def _requirement(expression: metadata.Requirement) -> Requirement:
    return requirement(expression.key, expression.operator, expression.values)


def _selector(selector: metadata.LabelSelector | None) -> Selector | None:
    if selector is None:
        return None
    return selector_of(selector.match_labels, map(_requirement, selector.match_expressions))


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


def _spread(pod: Pod, rule: TopologySpreadConstraint) -> Spread:
    selector = with_label_keys(_selector(rule.label_selector), pod.metadata.labels, rule.match_label_keys)
    return Spread(
        topology_key=rule.topology_key,
        max_skew=rule.max_skew,
        selector=selector,
        min_domains=rule.min_domains or 1,
        honor_affinity=rule.node_affinity_policy != "Ignore",
        honor_taints=rule.node_taints_policy == "Honor",
    )


def _is_wish(constraint: TopologySpreadConstraint) -> bool:
    return constraint.when_unsatisfiable == "ScheduleAnyway"


# ---- pods that are alike ----
#
# A Job's thousand pods differ in their names only. Two pods are alike if everything they say is equal but what is left out here
# by name: an unknown field makes them different, never equal by mistake (PEERS.md, race 8).


#: At most so many kinds are kept, then they are computed again: foreign pods that all differ cannot fill the memory.
_MOST: Final = 20_000
#: Fields of a spec that decide nothing here: the pod's node, and volumes, because their names are random. Claims do decide;
#: they are looked up pod by pod.
_LEFT_OUT: Final[dict[str, Any]] = {"node_name": "", "volumes": ()}
_NOTHING: Final = Rules()
Labels = Mapping[str, str]
Volumes = tuple[AnyOf, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """Pods that are alike.

    Args:
        template: Everything that decides where they go, but for labels and volumes.
        rules: All its rules, without labels, volumes and node. `Kinds.rules` narrows them to what other pods look at.
        looks: The label keys their rules look at on other pods; None = they do not look at pods.
    """

    template: PodTemplate
    rules: Rules
    looks: frozenset[str] | None


class Kinds:
    """All kinds of pods that have been met.

    Args:
        gpu_resource: The resource name of whole GPUs.

    Attributes:
        watched: Label keys that the rules of any pod look at; None = no pod's rules look at other pods.
        zones: Nodes report NUMA zones: pods that are bound to them are marked.
        widened: A pod's rules look at label keys that no rules looked at before. The view reports all pods again, then resets it.
    """

    def __init__(self, gpu_resource: str) -> None:
        self.watched: frozenset[str] | None = None
        self.widened = False
        self.zones = False
        self._gpu_resource = gpu_resource
        self._kinds: dict[object, Alike] = {}
        self._rules: dict[tuple[Alike, Any, Volumes], Rules | None] = {}
        self._templates: dict[tuple[Alike, Any, Volumes, str], PodTemplate] = {}

    def of(self, pod: Pod) -> Alike:
        """The kind of a pod."""
        key = _key(pod)
        found = self._kinds.get(key)
        if found is None:
            found = self._meet(pod)
            if len(self._kinds) >= _MOST:
                self._kinds.clear()
            self._kinds[key] = found
        return found

    def rules(self, kind: Alike, labels: Labels, volumes: Volumes = ()) -> Rules | None:
        """The labels of a pod that other pods' rules match, and its own rules for nodes; None = neither."""
        relevant = self._relevant_labels(kind, labels)
        key = (kind, relevant, volumes)
        if key not in self._rules:
            full = replace(kind.rules, labels=relevant, volumes=volumes)
            if len(self._rules) >= _MOST:
                self._rules.clear()
            self._rules[key] = narrowed(full, self.watched)
        return self._rules[key]

    def template(self, kind: Alike, labels: Labels, volumes: Volumes = (), problem: str = "") -> PodTemplate:
        """The template of a pod: everything that decides where it may go. Equal pods share one object."""
        key = (kind, self._relevant_labels(kind, labels), volumes, problem)
        found = self._templates.get(key)
        if found is None:
            rules = self.rules(kind, labels, volumes)
            found = replace(kind.template, rules=rules, problem=problem or kind.template.problem)
            if len(self._templates) >= _MOST:
                self._templates.clear()
            self._templates[key] = found
        return found

    def _meet(self, pod: Pod) -> Alike:
        template = template_of(pod, gpu_resource=self._gpu_resource)
        if self.zones and is_aligned(pod):
            has = template.resources
            template = replace(template, resources=replace(has, extended={**has.extended, ALIGNED: 1}))
        rules = replace(template.rules or _NOTHING, labels=(), node_name=None)
        looks = watched_keys(rules)
        if looks is not None and (self.watched is None or not looks <= self.watched):
            self.watched = looks | (self.watched or frozenset())
            self.widened = True
            self._rules.clear()
            self._templates.clear()
        return Alike(template, rules, looks)

    def _relevant_labels(self, kind: Alike, labels: Labels) -> tuple[tuple[str, str], ...]:
        """The labels of a pod that the rules of any pod look at."""
        if not labels or (self.watched is None and kind.looks is None):
            return ()
        keys = (self.watched or frozenset()) | (kind.looks or frozenset())
        return tuple(sorted((key, labels[key]) for key in keys if key in labels))


def _key(pod: Pod) -> object:
    """Equal for pods that are alike."""
    spec, status = pod.spec, pod.status
    encoded = msgspec.json.encode(msgspec.structs.replace(spec, **_LEFT_OUT))
    # A spread constraint may mean the pod's own value of a label.
    labels: object = ()
    if spec.topology_spread_constraints and any(
        each.match_label_keys for each in spec.topology_spread_constraints
    ):
        labels = tuple(sorted(pod.metadata.labels.items()))
    resizing = b""
    if (
        status.container_statuses or status.init_container_statuses
    ):  # what is being resized holds the most of both
        resizing = msgspec.json.encode(
            (
                [each.reason for each in status.conditions if each.type == "PodResizePending"],
                [
                    (each.name, each.resources, each.allocated_resources)
                    for each in (*status.init_container_statuses, *status.container_statuses)
                ],
            )
        )
    return (pod.metadata.namespace, encoded, labels, resizing)
