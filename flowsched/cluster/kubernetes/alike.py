"""What pods that say the same have in common, worked out once for all of them: a Job's thousand pods differ in their names. No I/O.

Two pods are alike if everything they say is equal but what is left out here by name: an unknown field makes them different,
never equal by mistake (PEERS.md, race 8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes.numa import is_aligned
from flowsched.cluster.kubernetes.pod import Pod
from flowsched.cluster.kubernetes.podrules import AnyOf, template_of
from flowsched.executor.constraints import Rules, narrowed, watched_keys
from flowsched.executor.foreign import PodTemplate
from flowsched.executor.nodes import ALIGNED

#: So many kinds are remembered, then they are worked out again: no stranger fills the memory with pods that differ.
_MOST: Final = 20_000
#: What a spec says that decides nothing here: where the pod is (its rules then bind nobody else), and volumes, whose names
#: are drawn by lot; those that do decide, claims, are looked up pod by pod.
_LEFT_OUT: Final[dict[str, Any]] = {"node_name": "", "volumes": ()}
_NOTHING: Final = Rules()
Labels = Mapping[str, str]
Volumes = tuple[AnyOf, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """Pods that are alike.

    Args:
        template: What decides where they go, but for labels and volumes.
        rules: The same without labels, volumes and node, before anything that nobody asks for was left out.
        looks: The label keys their rules look at on other pods; None = they do not look at pods.
    """

    template: PodTemplate
    rules: Rules
    looks: frozenset[str] | None


class Kinds:
    """All kinds of pods that have been met.

    Args:
        gpu_resource: What whole GPUs are called.

    Attributes:
        watched: Label keys that any pod's rules look at; None = nobody looks at pods.
        zones: Nodes tell NUMA zones: pods that are bound to them are marked.
        widened: Somebody has begun to look at keys that nobody looked at before. Whoever tells everybody of it sets it back.
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
        """What others may look at of a pod, and what it asks of nodes; None = nothing."""
        seen = self._seen(kind, labels)
        key = (kind, seen, volumes)
        if key not in self._rules:
            full = replace(kind.rules, labels=seen, volumes=volumes)
            if len(self._rules) >= _MOST:
                self._rules.clear()
            self._rules[key] = narrowed(full, self.watched)
        return self._rules[key]

    def template(self, kind: Alike, labels: Labels, volumes: Volumes = (), problem: str = "") -> PodTemplate:
        """What decides where a pod may go: the same object for all to which the same applies."""
        key = (kind, self._seen(kind, labels), volumes, problem)
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

    def _seen(self, kind: Alike, labels: Labels) -> tuple[tuple[str, str], ...]:
        """As many of a pod's labels as anybody looks at."""
        if not labels or (self.watched is None and kind.looks is None):
            return ()
        keys = (self.watched or frozenset()) | (kind.looks or frozenset())
        return tuple(sorted((key, labels[key]) for key in keys if key in labels))


def _key(pod: Pod) -> object:
    """Equal for pods that are alike."""
    spec, status = pod.spec, pod.status
    said = msgspec.json.encode(msgspec.structs.replace(spec, **_LEFT_OUT))
    # A spread constraint may mean the pod's own value of a label.
    labels: object = ()
    if spec.topology_spread_constraints and any(
        each.match_label_keys for each in spec.topology_spread_constraints
    ):
        labels = tuple(sorted(pod.metadata.labels.items()))
    held = b""
    if (
        status.container_statuses or status.init_container_statuses
    ):  # what is being resized holds the most of both
        held = msgspec.json.encode(
            (
                [each.reason for each in status.conditions if each.type == "PodResizePending"],
                [
                    (each.name, each.resources, each.allocated_resources)
                    for each in (*status.init_container_statuses, *status.container_statuses)
                ],
            )
        )
    return (pod.metadata.namespace, said, labels, held)
