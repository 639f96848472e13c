"""Where a pod may run, in Kubernetes' words: for schedulers other than ours, which has decided that already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flowsched.cluster.kubernetes.marks import GROUP
from flowsched.workflow.spec import Rules, Toleration

#: The node label whose values are racks.
RACK_LABEL: Final = "flowsched.io/rack"
_HOSTNAME: Final = "kubernetes.io/hostname"

Json = dict[str, Any]


def toleration(given: Toleration) -> Json:
    """A toleration as a pod carries it."""
    fields = {
        "key": given.key,
        "operator": given.operator,
        "value": "" if given.operator == "Exists" else given.value,
        "effect": given.effect,
    }
    return {key: value for key, value in fields.items() if value}


def affinity(rules: Rules, group: str, node: str) -> Json:
    """Rack and spread of a gang as rules between its pods, and the node we would take as a wish.

    Args:
        rules: Of the stage.
        group: Name of the gang, by whose label its pods know each other; "" = the pod is alone.
        node: Where its inputs are; "" = not said.
    """
    told: Json = {}
    if node:
        here = {"key": "metadata.name", "operator": "In", "values": [node]}
        wish = {"weight": 100, "preference": {"matchFields": [here]}}
        told["nodeAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}
    if not group:
        return told
    peers = {"matchLabels": {GROUP: group}}
    if rules.rack is not None:
        told["podAffinity"] = _term(peers, RACK_LABEL, required=rules.rack == "required")
    if rules.one_per_node:
        told["podAntiAffinity"] = _term(peers, _HOSTNAME, required=True)
    return told


def _term(peers: Mapping[str, Any], topology_key: str, *, required: bool) -> Json:
    term = {"labelSelector": peers, "topologyKey": topology_key}
    if required:
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    wish = {"weight": 100, "podAffinityTerm": term}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}
